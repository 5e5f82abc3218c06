"""Whose request is it? Grants and user resolution [K 3.1], here and nowhere else.

The order: (1) the user that the request names, under a grant; (2) the session of the channel;
(3) the user formerly seen on the channel; (4) the agent itself, as a user of its own. An
ungranted name is an error, not a fall-through, and where a rule finds several users it refuses
instead of guessing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isovist.kernel.state.rights import UNBOUND, Rights
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_name

OPERATOR = "operator"
"""As whom a program of the kernel's own user acts where it says nothing else."""
EVERY = "*"
"""In a grant: every user."""


def own_user(agent: str) -> str:
    """The agent as a user of its own. Holds a ``/``, which no name of a person may, so that an
    agent called ``ana`` never meets what belongs to the user ``ana``."""
    return f"agent/{agent}"


@dataclass
class Grants:
    """What an agent may do, for all its instances: users it may act for, scopes it may fill."""

    users: set[str] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)


@dataclass
class Principal:
    """Who a channel is, bound by the kernel when it opened, and what it has done since.

    ``bound`` is the user for whom the kernel spawned it: a grant for this process alone.
    ``sessions`` and ``seen`` keep the order in which users came.
    """

    agent: str
    operator: bool = False
    bound: str = ""
    sessions: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    rights: Rights = UNBOUND
    """The bound of this process; see :mod:`isovist.kernel.state.rights`."""


@dataclass(frozen=True)
class Resolved:
    """The user served and the rule that chose it: request, session, registry or agent."""

    user: str
    rule: str


class Users:
    """The grants of all agents, and the resolution of requests against them."""

    def __init__(self) -> None:
        self._grants: dict[str, Grants] = {}

    def grants(self, agent: str) -> Grants:
        return self._grants.get(agent) or Grants()

    def all_grants(self) -> list[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
        """Each agent that holds any, with its users and its scopes, all sorted."""
        return [
            (agent, (tuple(sorted(held.users)), tuple(sorted(held.scopes))))
            for agent, held in sorted(self._grants.items())
            if held.users or held.scopes
        ]

    def grant(self, agent: str, users: set[str], scopes: set[str], revoke: bool = False) -> Grants:
        held = self._grants.setdefault(agent, Grants())
        if revoke and EVERY not in users and EVERY in held.users and users:
            raise CallerError(
                f"agent {agent!r} may serve every user; revoke {EVERY!r}, then grant some",
                field="users",
            )
        if revoke:
            held.users -= held.users if EVERY in users else users
            held.scopes -= scopes
        else:
            held.users |= users
            held.scopes |= scopes
        return held

    def forget(self, user: str) -> None:
        """No agent is granted ``user`` by name any more."""
        for held in self._grants.values():
            held.users.discard(user)

    def may_serve(self, who: Principal, user: str) -> bool:
        """True iff the channel holds a grant for ``user``."""
        if who.operator or user in (who.bound, own_user(who.agent)):
            return True
        users = self.grants(who.agent).users
        return user in users or EVERY in users

    def resolve(self, who: Principal, named: str | None) -> Resolved:
        """The user of a request, by the first rule that applies. Raises ``EPERM``."""
        if named is not None:
            if named != own_user(who.agent):
                check_name(named, "user")
            if not self.may_serve(who, named):
                raise CallerError(
                    f"agent {who.agent!r} holds no grant for the user it names",
                    errno=Errno.EPERM,
                    field="user",
                )
            return Resolved(named, "request")
        for rule, users in (("session", who.sessions), ("registry", who.seen)):
            if len(users) > 1:
                raise CallerError(
                    f"{len(users)} users are possible by {rule}; the request must name one",
                    errno=Errno.EPERM,
                    field="user",
                )
            if users and not self.may_serve(who, users[0]):
                # Else what was meant for one user would pass to whoever comes next in the order.
                raise CallerError(
                    f"the user known by {rule} is granted no more; the request must name one",
                    errno=Errno.EPERM,
                    field="user",
                )
            if users:
                return Resolved(users[0], rule)
        return Resolved(own_user(who.agent), "agent")

    @staticmethod
    def saw(who: Principal, resolved: Resolved) -> None:
        """Enter the user of an accepted request into the channel's registry (at most 1,024)."""
        if resolved.rule == "request" and resolved.user not in who.seen and len(who.seen) < 1024:
            who.seen.append(resolved.user)
