"""Whose request is it? Grants and user resolution [K 3.1], here and nowhere else.

The order: (1) the user that the request names, under a grant; (2) the session of the channel;
(3) the user formerly seen on the channel; (4) the agent itself, as a user of its own. An
ungranted name is an error, not a fall-through, and where a rule finds several users it refuses
instead of guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isovist.kernel.state.rights import UNBOUND, Rights, ToolRule
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_name

if TYPE_CHECKING:
    from isovist.kernel.state.quotas import Account

OPERATOR = "operator"
"""As whom a program of the kernel's own user acts where it says nothing else."""
EVERY = "*"
"""In a grant: every user."""
MAX_DEPTH = 32
"""Generations of processes that spawn each other, the first included."""


def own_user(agent: str) -> str:
    """The agent as a user of its own. Holds a ``/``, which no name of a person may, so that an
    agent called ``ana`` never meets what belongs to the user ``ana``."""
    return f"agent/{agent}"


@dataclass
class Grants:
    """What an agent may do, for all its instances: users it may act for, scopes it may fill, agents
    that it may send mail to, tools that it may call."""

    users: set[str] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)
    mail: set[str] = field(default_factory=set)
    tools: list[ToolRule] = field(default_factory=list)


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
    pid: int = 0
    above: Principal | None = None
    """Who spawned it: what that one loses is lost to this one too, and lives on here when it has
    ended. ``None``: the operator did, or it was not spawned."""
    scope: str = ""
    """The scope of what it remembers without naming one; empty: its pair's."""
    lineage: str = ""
    """The name of the work that it does; processes that are started in each other's place have the
    same."""
    children: int | None = None
    """How many living processes may descend from it; ``None``: no manifest says, so that it may
    have instances of itself alone."""
    account: Account | None = None
    """What it and its descendants have used, where its rights bound that."""
    priority: int = 0
    """Added to its agent's level at queues that go by priority."""

    def line(self) -> Iterable[Principal]:
        """Itself, who spawned it, who spawned that one, and so on (at most ``MAX_DEPTH`` in all).
        It holds a right iff each of these does."""
        one: Principal | None = self
        while one is not None:
            yield one
            one = one.above


@dataclass(frozen=True)
class Resolved:
    """The user served and the rule that chose it: request, session, registry or agent."""

    user: str
    rule: str


class Users:
    """The grants of all agents, and the resolution of requests against them."""

    def __init__(self) -> None:
        self._grants: dict[str, Grants] = {}
        self.leaving: dict[int, str] = {}
        """By the call that forgets them: users who are served no more, as they are being purged."""

    def grants(self, agent: str) -> Grants:
        return self._grants.get(agent) or Grants()

    def all_grants(self) -> list[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
        """Each agent that holds any, with its users and its scopes, all sorted."""
        return [
            (agent, (tuple(sorted(held.users)), tuple(sorted(held.scopes))))
            for agent, held in sorted(self._grants.items())
            if held.users or held.scopes
        ]

    def permissions(self) -> list[tuple[str, Grants]]:
        """Each agent that holds anything, sorted by name."""
        return [
            (agent, held)
            for agent, held in sorted(self._grants.items())
            if held.users or held.scopes or held.mail or held.tools
        ]

    def grant(
        self,
        agent: str,
        users: set[str],
        scopes: set[str],
        revoke: bool = False,
        *,
        mail: Iterable[str] = (),
        tools: Iterable[ToolRule] = (),
    ) -> Grants:
        held = self._grants.setdefault(agent, Grants())
        if revoke and EVERY not in users and EVERY in held.users and users:
            raise CallerError(
                f"agent {agent!r} may serve every user; revoke {EVERY!r}, then grant some",
                field="users",
            )
        if revoke:
            held.users -= held.users if EVERY in users else users
            held.scopes -= scopes
            held.mail.difference_update(mail)
            gone = {rule.name for rule in tools}
            held.tools = [rule for rule in held.tools if rule.name not in gone]
        else:
            held.users |= users
            held.scopes |= scopes
            held.mail.update(mail)
            held.tools += [rule for rule in tools if rule not in held.tools]
        return held

    def forget(self, user: str) -> None:
        """No agent is granted ``user`` by name any more."""
        for held in self._grants.values():
            held.users.discard(user)

    def may_serve(self, who: Principal, user: str) -> bool:
        """True iff the channel, and each that it descends from, holds a grant for ``user``."""
        if user in self.leaving.values():
            return False
        return who.operator or all(
            one.rights.serves(user) and self._granted(one, user) for one in who.line()
        )

    def _granted(self, one: Principal, user: str) -> bool:
        if one.operator or user in (one.bound, own_user(one.agent)):
            return True
        users = self.grants(one.agent).users
        return user in users or EVERY in users

    def serves_all(self, one: Principal) -> bool:
        """True iff ``one``, taken by itself, is granted every user and not bound to some."""
        return one.rights.users is None and EVERY in self.grants(one.agent).users

    def may_publish(self, who: Principal, scope: str) -> bool:
        """True iff the channel, and each that it descends from, is granted ``scope``."""
        return all(
            one.rights.publishes(scope) and scope in self.grants(one.agent).scopes
            for one in who.line()
        )

    def may_mail(self, who: Principal, agent: str) -> bool:
        """True iff the channel, and each that it descends from, may send mail to ``agent``. To
        instances of itself each may."""
        if who.operator and who.agent == OPERATOR:
            return True
        return all(
            agent == one.agent
            or (one.rights.mails(agent) and {agent, EVERY} & self.grants(one.agent).mail)
            for one in who.line()
        )

    def may_call(self, who: Principal, tool: str, arguments: Mapping[str, object]) -> bool:
        """True iff the channel, and each that it descends from, may call ``SERVER.TOOL`` so."""
        if who.operator and who.agent == OPERATOR:
            return True
        return all(
            one.rights.calls(tool, arguments)
            and Rights(tools=(tuple(self.grants(one.agent).tools),)).calls(tool, arguments)
            for one in who.line()
        )

    def held(self, who: Principal) -> Rights:
        """All that a process may do now, as a value: what it spawns is bound by it."""
        found = UNBOUND
        for one in () if who.operator else who.line():
            grants = self.grants(one.agent)
            users = {*grants.users, own_user(one.agent), *filter(None, (one.bound,))}
            found = found.meet(one.rights).meet(
                Rights(
                    users=None if EVERY in users else frozenset(users),
                    scopes=frozenset(grants.scopes),
                    mail=None if EVERY in grants.mail else frozenset({*grants.mail, one.agent}),
                    tools=(tuple(grants.tools),),
                )
            )
        return found

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
        own = own_user(who.agent)
        if not self.may_serve(who, own):
            raise CallerError(
                "whoever spawned it may not act for its own; the request must name a user",
                errno=Errno.EPERM,
                field="user",
            )
        return Resolved(own, "agent")

    @staticmethod
    def saw(who: Principal, resolved: Resolved) -> None:
        """Enter the user of an accepted request into the channel's registry (at most 1,024)."""
        if resolved.rule == "request" and resolved.user not in who.seen and len(who.seen) < 1024:
            who.seen.append(resolved.user)
