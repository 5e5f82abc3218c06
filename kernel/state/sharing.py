"""Who may publish to whom: the rules for the audience of a unit, here and nowhere else.

A unit that reaches its own user alone (whatever the agents) exposes nothing to others, so that
takes no grant. To reach other users takes a grant of the agent that writes, and the reusable
stream (promise ``protected.stays``). Into a group publishes who is in it. A new unit that may not
go where it was meant to is private (promise ``private.default``); a change of an audience that may
not be made is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isovist.kernel.state.users import OPERATOR, Principal
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import Candidate, Move, Op, Put
from isovist.syscalls.records import Partition, audience_of, partition_of

if TYPE_CHECKING:
    from isovist.kernel.state.core import State

GRANTED = ("user", "agent", "global")
"""The scopes that a grant may name beside groups of users. ``user`` needs none."""


class Sharing:
    def __init__(self, state: State) -> None:
        self._state = state

    def audience(
        self, who: Principal, scope: str | None, user: str, agent: str, stream: str
    ) -> tuple[Partition, str]:
        """Where a new unit of the pair goes that asks for ``scope``, and why that is narrower
        than it asked for (empty: it is not)."""
        pair = partition_of("pair", user, agent)
        if scope is None:
            return pair, ""
        asked = audience_of(scope, user, agent)
        why = f"unknown scope{_hint(scope)}"
        if asked is not None:
            why = self.refusal(who, asked, user, stream)
        return (pair, f"{why}, stored as private") if why or asked is None else (asked, "")

    def refusal(
        self, who: Principal, to: Partition, user: str, stream: str, *, narrows: bool = False
    ) -> str:
        """Why ``who`` may not let a unit of ``user`` and its own agent reach ``to``; empty: it may.

        The one rule for what is new, changed or given another audience. To reach other users
        takes a grant (not to narrow what reached them), and always the reusable stream. Into a
        group only its members publish: else an owner would not see the unit, and who has left
        would still speak there. The operator that acts as itself holds all grants, and may
        publish into any group that there is. To an agent a group that there is not and one that
        it has no right to are the same.
        """
        needed = grant_for(to)
        alone = partition_of("pair", user, who.agent)
        if to != alone and self._state.distrust.of(who.agent):
            return f"agent {who.agent!r} is distrusted"
        if acts_as_itself(who):
            if unknown := self._state.groups.unknown(to):
                return f"there is no {unknown}"
        else:
            if needed and not narrows and not self._state.users.may_publish(who, needed):
                return f"no grant to publish to {needed} scope"
            if outside := self._outside(to, user, who.agent):
                return outside
        if needed and stream != "reusable":
            return f"the protected stream cannot reach {needed} scope"
        return ""

    def _outside(self, to: Partition, user: str, agent: str) -> str:
        """Which group of ``to`` the owner is not in; empty: none."""
        member = self._state.groups.member
        for of, axis, name in (("users", to.users, user), ("agents", to.agents, agent)):
            if axis.kind == "group" and not member(of, axis.name, name):
                return f"only members publish to {axis}: {name!r} is not in that group of {of}"
        return ""

    def check_still(self, who: Principal, found: Candidate) -> None:
        """A right that was taken away ends what it allowed, new words in an old unit included.
        Raises ``EPERM``."""
        why = self.refusal(who, found.partition, found.owner_user, found.hit.unit.stream)
        if why:
            raise CallerError(why, errno=Errno.EPERM, field="id")

    def target(self, who: Principal, scope: str, user: str, agent: str) -> Partition:
        """The audience that a re-scope names. Raises ``EINVAL``: it must not end up elsewhere."""
        asked = audience_of(scope, user, agent)
        if asked is None:
            raise CallerError(
                "scope must be pair, user, agent, global, or two axes as in own/all, "
                f"@team/own{_hint(scope)}",
                field="scope",
            )
        unknown = acts_as_itself(who) and self._state.groups.unknown(asked)
        if unknown:
            raise CallerError(f"scope: there is no {unknown}", field="scope")
        return asked

    def check_move(self, who: Principal, found: Candidate, to: Partition) -> None:
        """The owner may always narrow a unit, on both axes or to its own user. Whatever reaches
        more users, or by an open user axis more of their agents, is published anew.

        Raises ``EINVAL`` where the unit is there already, else ``EPERM``.
        """
        source, groups = found.partition, self._state.groups
        if to == source:
            raise CallerError("the unit has that scope already", field="scope")
        narrows = groups.within("users", to.users, source.users) and groups.within(
            "agents", to.agents, source.agents
        )
        stream = found.hit.unit.stream
        why = self.refusal(who, to, found.owner_user, stream, narrows=narrows)
        if why:
            raise CallerError(f"scope: {why}", errno=Errno.EPERM, field="scope")

    def note(self, actor: str, op: Op) -> None:
        """Have the chronicle say what reaches other users from now on: what is published to them,
        and what is given an audience that was not within the one before."""
        groups = self._state.groups
        if isinstance(op, Put) and grant_for(op.partition):
            scope = op.partition.scope
            self._state.chronicle.note("publish", actor, op.id, users=(op.user,), to=scope)
        elif isinstance(op, Move) and grant_for(op.to):
            before = op.partition.users
            if not groups.within("users", op.to.users, before):
                self._state.chronicle.note(
                    "widen",
                    actor,
                    op.id,
                    users=(before.name,) if before.kind == "one" else (),
                    before=op.partition.scope,
                    to=op.to.scope,
                )

    def check_grant(self, scopes: tuple[str, ...], revoke: bool) -> None:
        """Scopes that a grant may name: known ones (to revoke, well-formed ones)."""
        for scope in scopes:
            if scope in GRANTED:
                continue
            if not scope.startswith("@"):
                raise CallerError(
                    "scopes must be user, agent, global or @GROUP of users", field="scopes"
                )
            name = check_name(scope[1:], "scopes")
            if not (revoke or self._state.groups.known("users", name)):
                raise CallerError(f"scopes: there is no group {name!r} of users", field="scopes")


def grant_for(partition: Partition) -> str:
    """The scope that a grant must name for an audience; empty where it reaches its own user
    alone."""
    if partition.users.kind == "one":
        return ""
    if partition.users.kind == "group":
        return str(partition.users)
    return "agent" if partition.agents.kind == "one" else "global"


def acts_as_itself(who: Principal) -> bool:
    """The operator's channel may act as any agent, and has then that agent's rights."""
    return who.operator and who.agent == OPERATOR


def _hint(scope: str) -> str:
    """Of a group's bare name, as grants have it, what is missing."""
    return f" (write {scope}/own or {scope}/all)" if audience_of(f"{scope}/own", "", "") else ""
