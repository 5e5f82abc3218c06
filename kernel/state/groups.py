"""Groups: named sets of users and of agents, which the operator alone manages.

Joining and leaving are in force at once. A call that arrives sees the groups of that moment.
One that is under way when its reader leaves a group loses that group's partitions: before it was
given anything its view narrows; later, what the view gave is in its hands already, so it ends and
may be asked again. So no reply that begins after a leave holds anything that came through the
group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.users import EVERY, own_user
from isovist.kernel.state.views import Membership, view_of
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError, error
from isovist.syscalls.exchange import write_group
from isovist.syscalls.names import check_group, check_name
from isovist.syscalls.operations import CountQuery
from isovist.syscalls.records import Axis, Group, Partition, Reader, Seen, View

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

Of = Literal["users", "agents"]
Saved = Mapping[tuple[str, str], tuple[str, ...]]
"""By axis and name: the members, as the store keeps them."""

MAX_GROUPS, MAX_MEMBERS, MAX_MEMBERSHIPS = 1024, 4096, 32
"""Groups in all, members of one, and groups of one axis that one name may be in: the last bounds
a view, which is the product of both axes."""
AFTER = frozenset({Step.RETRIEVE, Step.RENDER, Step.QUEUE, Step.DECODE, Step.KEEP})
"""Where a reading call stands that is past the barrier."""


class Groups:
    """Invariant: ``_of`` is the inverse of ``_members``: a name stands under (axis, name) iff it
    is a member of the groups listed there."""

    def __init__(self, state: State, saved: Saved) -> None:
        self._state = state
        self._members: dict[tuple[str, str], set[str]] = {}
        self._of: dict[tuple[str, str], set[str]] = {}
        for (of, name), members in saved.items():
            self._members[of, name] = set()
            for member in members:
                self._join(of, name, member)

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.Groups: self._list, m.GroupChange: self._change, m.ViewOf: self._view}

    # -- what others ask

    def view(self, reader: Reader) -> View:
        """The reader's view as of now."""
        return view_of(reader, self.membership(reader))

    def membership(self, reader: Reader) -> Membership:
        return Membership(
            tuple(sorted(self._of.get(("users", reader.user), ()))),
            tuple(sorted(self._of.get(("agents", reader.agent), ()))),
        )

    def unknown(self, partition: Partition) -> str:
        """The first group of ``partition`` that the operator never named; empty: none."""
        for of, axis in (("users", partition.users), ("agents", partition.agents)):
            if axis.kind == "group" and (of, axis.name) not in self._members:
                return f"group {axis.name!r} of {of}"
        return ""

    def known(self, of: Of, name: str) -> bool:
        return (of, name) in self._members

    def member(self, of: str, name: str, member: str) -> bool:
        """True iff ``member`` is in that group; of a group that there is not nobody is."""
        return member in self._members.get((of, name), ())

    def within(self, of: Of, narrow: Axis, wide: Axis) -> bool:
        """True iff whoever ``narrow`` admits now, ``wide`` admits too."""
        if wide.kind == "all" or narrow == wide:
            return True
        one_of = narrow.kind == "one" and wide.kind == "group"
        return one_of and self.member(of, wide.name, narrow.name)

    def all(self) -> list[tuple[Of, str]]:
        """All groups, by axis and name, sorted."""
        found = sorted(self._members)
        return [("users" if of == "users" else "agents", name) for of, name in found]

    def lines(self, key: tuple[Of, str], among: Collection[str] | None = None) -> list[str]:
        """A group in the lines of an export, with those of its members that are ``among`` these
        (``None``: all). Of a group that there is not, none."""
        members = self._members.get(key)
        if members is None:
            return []
        shown = members if among is None else members.intersection(among)
        return write_group(*key, tuple(sorted(shown)))

    def join(self, request: m.GroupChange) -> tuple[str, ...]:
        """Let members join, where they may; gives who is in the group then."""
        self._check(request)
        key = request.of, request.name
        self._members.setdefault(key, set())
        for member in request.add:
            self._join(*key, member)
        return tuple(sorted(self._members[key]))

    def forget(self, user: str) -> None:
        """A forgotten user is in no group any more (the store has removed it from its own)."""
        for name in sorted(self._of.get(("users", user), ())):
            self._leave("users", name, user)
        self.narrow()

    # -- syscalls

    def _list(self, channel: Channel, frame: int, request: m.Groups) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator lists groups", errno=Errno.EPERM)
        keys = sorted(key for key in self._members if request.of in ("", key[0]))
        self._state.reply(channel, frame, m.GroupList(groups=tuple(map(self._shown, keys))))

    def _shown(self, key: tuple[str, str]) -> Group:
        of: Of = "users" if key[0] == "users" else "agents"
        return Group(name=key[1], of=of, members=tuple(sorted(self._members[key])))

    def _change(self, channel: Channel, frame: int, request: m.GroupChange) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator changes groups", errno=Errno.EPERM)
        self._check(request)
        call = self._state.open(channel, frame, request)
        key = request.of, request.name
        self.join(request)
        self.note(channel.who.agent, "group.join", *key, request.add)
        self.note(channel.who.agent, "group.leave", *key, request.remove)
        for member in request.remove:
            self._leave(*key, member)
        call.to(Step.LOOKUP, self._state.now)
        members = tuple(sorted(self._members[key]))
        self._state.emit(ins.SaveGroup(call.key, request.of, request.name, members))
        if request.remove:
            self.narrow()

    def note(self, actor: str, kind: str, of: Of, name: str, members: tuple[str, ...]) -> None:
        """Have the chronicle say who joins or leaves; of nobody it says nothing."""
        note, subject = self._state.chronicle.note, f"@{name} of {of}"
        if members and of == "users":
            note(kind, actor, subject, users=members)
        elif members:
            note(kind, actor, subject, agents=members)

    def _check(self, request: m.GroupChange) -> None:
        key = request.of, check_name(request.name, "name")
        if key not in self._members:
            check_group(request.name, "name")
        for field, members in (("add", request.add), ("remove", request.remove)):
            for member in members:
                # An agent that serves nobody is a user of its own, and may be a member as such.
                own = request.of == "users" and member == own_user(member.partition("/")[2])
                check_name(member.partition("/")[2] if own else member, field)
                if member == EVERY:
                    raise CallerError(f"{field}: {EVERY!r} is no member; for all there is the "
                                      "scope all", field=field)  # fmt: skip
        both = set(request.add) & set(request.remove)
        if both:
            raise CallerError(f"{min(both)!r} cannot both join and leave", field="remove")
        known = self._members.get(key)
        if known is None and len(self._members) >= MAX_GROUPS:
            raise CallerError(f"{MAX_GROUPS} groups are known, the limit", field="name")
        after = (known or set()) | set(request.add)
        if len(after) > MAX_MEMBERS:
            raise CallerError(f"a group has at most {MAX_MEMBERS} members", field="add")
        for member in request.add:
            others = self._of.get((request.of, member), set()) - {request.name}
            if len(others) >= MAX_MEMBERSHIPS:
                raise CallerError(
                    f"{member!r} is in {MAX_MEMBERSHIPS} groups, the limit", field="add"
                )

    def saved(self, call: Call) -> m.GroupList:
        """The answer to a change that is durable: the group as it now stands."""
        request = call.request
        if not isinstance(request, m.GroupChange):
            raise KernelError("not a change of a group", story=call.told())
        return m.GroupList(groups=(self._shown((request.of, request.name)),))

    def _join(self, of: str, name: str, member: str) -> None:
        self._members[of, name].add(member)
        self._of.setdefault((of, member), set()).add(name)

    def _leave(self, of: str, name: str, member: str) -> None:
        self._members[of, name].discard(member)
        groups = self._of.get((of, member), set())
        groups.discard(name)
        if not groups:
            self._of.pop((of, member), None)

    # -- who has left loses at once what the group opened

    def narrow(self) -> None:
        """Take from the calls under way what their readers may see no more."""
        for call in list(self._state.calls.values()):
            # The operator's view of the whole store hangs on no group.
            if call.view is None or not call.view.reader.agent:
                continue
            lost = set(call.view.partitions) - set(self.view(call.view.reader).partitions)
            if lost:
                self._narrow(call, call.view, lost)

    def _narrow(self, call: Call, view: View, lost: set[Partition]) -> None:
        if call.step is Step.RETRIEVE and self._state.forgetting.is_done(call):
            call.found = [c for c in call.found if c.partition not in lost]
            self._state.forgetting.answer(call)
        elif call.step in AFTER and call.turn:
            if not _passed_on(call):
                why = "the reader has left a group meanwhile; ask again"
                self._state.fail(call, error(Errno.EAGAIN, why))
        else:
            left = [p for p in view.partitions if p not in lost]
            users = tuple(sorted({p.users.name for p in left if p.users.kind == "group"}))
            agents = tuple(sorted({p.agents.name for p in left if p.agents.kind == "group"}))
            call.view = view_of(view.reader, Membership(users, agents))
            if call.sequences:
                numbers = zip(view.partitions, call.sequences, strict=True)
                call.sequences = tuple(number for p, number in numbers if p not in lost)
            call.tell(self._state.now, "its view narrows")
            if call.step is Step.BARRIER and self._state.barrier.give_up(call.key, lost):
                self._state.memory.go_on(call)

    # -- a view explained

    def readings(self) -> dict[type[m.Call], Groups]:
        return {m.ViewOf: self}

    def _view(self, channel: Channel, frame: int, request: m.ViewOf) -> None:
        memory = self._state.memory
        memory.hold(memory.enter(channel, frame, request), "lexical", request.barrier_ms)

    def query(self, call: Call, now: int) -> CountQuery:
        return CountQuery(now=now)

    def took(self, call: Call) -> None:
        """The partitions of the call's view, why each is in it, and how many units it holds."""
        if call.view is None or call.resolved is None:
            raise KernelError("a view of nobody", story=call.told())
        counts = call.selection.counts
        seen = tuple(
            Seen(
                scope=partition.scope,
                users=_who(partition.users),
                agents=_who(partition.agents),
                why=why(partition),
                units=units,
                accepted=accepted,
            )
            for partition, units, (_, accepted) in zip(
                call.view.partitions, counts, call.sequences, strict=True
            )
        )
        self._state.finish(
            call,
            m.ViewShown(
                agent=call.agent,
                user=call.resolved.user,
                rule=call.resolved.rule,
                seen=seen,
                barrier=call.barrier,
            ),
        )

    def validate(self) -> None:
        inverse: dict[tuple[str, str], set[str]] = {}
        for (of, name), members in self._members.items():
            assert len(members) <= MAX_MEMBERS
            for member in members:
                inverse.setdefault((of, member), set()).add(name)
        assert inverse == self._of, "groups and memberships say the same"
        assert all(len(groups) <= MAX_MEMBERSHIPS for groups in inverse.values())


def _passed_on(call: Call) -> bool:
    """Whether the reply has begun: a part of it is out."""
    return call.generation is not None and call.generation.passed_on


def _who(axis: Axis) -> str:
    return axis.name if axis.kind == "one" else str(axis)


def why(partition: Partition) -> str:
    """Why a partition is in a reader's view, in plain words."""
    users, agents = partition.users, partition.agents
    if (users.kind, agents.kind) == ("one", "one"):
        return "your own"
    if (users.kind, agents.kind) == ("all", "all"):
        return "open to all"
    whose = {
        "one": "your user's",
        "group": f"group {users.name} of users, which you are in",
        "all": "every user's",
    }[users.kind]
    through = {
        "one": "this agent",
        "group": f"group {agents.name} of agents, which this agent is in",
        "all": "any agent",
    }[agents.kind]
    return f"{whose}, {through}"
