"""Entries as their readers and their people see them: delivered for a task, listed with where they
come from, changed and removed by hand [M 3.4].

An entry is a unit, so every way to it goes through a view. Its origins tell of persons: the
operator is told all, anybody else those of the own user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.changes import not_found
from isovist.kernel.state.chat import QUERY
from isovist.kernel.state.learning import MAX_TASK
from isovist.kernel.state.lessons import (
    CAP,
    LEARNER,
    MAX_LESSON,
    MAX_SITUATION,
    entry_text,
    line_of,
    one_line,
    owner_of,
    parts_of,
    stream_of,
    visible,
)
from isovist.kernel.state.memory import Reading
from isovist.kernel.state.recall import PAGES, ROOM
from isovist.kernel.state.sharing import acts_as_itself
from isovist.kernel.state.views import everything, part_of
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.names import LAST_VERSION, check_name, check_text
from isovist.syscalls.operations import (
    Candidate,
    Learned,
    ListQuery,
    Move,
    Op,
    Outcome,
    Query,
    ReadQuery,
    Replace,
    SearchQuery,
)
from isovist.syscalls.records import (
    SCOPES,
    Axis,
    Entry,
    MemoryFile,
    Origin,
    Partition,
    Reader,
    partition_of,
)

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

LEAST, MOST = 100, 200_000
"""Characters a scope that may be asked for."""
TYPICAL, FEWEST, HIGHEST = 100, 10, 400
"""A search for so many characters asks for an entry each 100 of them, 10 to 400 in all."""
BESIDE = 256
"""Bytes of an entry in a reply beside its words."""
LESSON = ("lesson",)
Sources = dict[str, tuple[str, tuple[Origin, ...]]]


@dataclass(slots=True)
class Delivery:
    """One call for lessons: the partitions still to be asked, what was taken of each, and whether
    the budget left out more."""

    left: list[Partition]
    taken: list[tuple[Partition, list[Candidate], bool]] = field(default_factory=list)


class Entries:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.LearnLessons: self._lessons,
            m.LearnList: self._list,
            m.LearnEdit: self._change,
            m.LearnDelete: self._change,
        }

    def readings(self) -> dict[type[m.Call], Reading]:
        return {m.LearnLessons: self, m.LearnList: self}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.SourcesFound: self._sources}

    # -- what is of use for a task

    def _lessons(self, channel: Channel, frame: int, request: m.LearnLessons) -> None:
        check_text(request.task, "task", MAX_TASK)
        if not LEAST <= request.budget <= MOST:
            raise CallerError(f"budget must be {LEAST} to {MOST} characters", field="budget")
        if unknown := set(request.scopes) - set(SCOPES):
            raise CallerError(
                f"scopes must be among {', '.join(SCOPES)}, not {min(unknown)!r}", field="scopes"
            )
        call = self._state.memory.enter(channel, frame, request)
        self._state.memory.hold(call, "both", request.barrier_ms)

    def query(self, call: Call, now: int) -> Query:
        request = call.request
        if isinstance(request, m.LearnList):
            if request.id:
                return ReadQuery(id=request.id, now=now)
            after = call.selection.next or request.after
            return ListQuery(limit=request.limit, now=now, after=after, kinds=LESSON)
        if not isinstance(request, m.LearnLessons) or call.view is None:
            raise KernelError(f"{call.name} reads no entries", story=call.told())
        if call.work is None:
            left = [
                p for p in call.view.partitions if not request.scopes or p.scope in request.scopes
            ]
            call.work = Delivery(left)
        # One scope after the other, so that none takes another's room.
        call.part = part_of(call.view, _delivery(call).left[:1])
        return SearchQuery(
            text=check_text(request.task, "task", MAX_TASK)[:QUERY],
            k=max(FEWEST, min(request.budget // TYPICAL, HIGHEST)),
            mode="hybrid",
            now=now,
            kinds=LESSON,
        )

    def took(self, call: Call) -> None:
        request = call.request
        if isinstance(request, m.LearnList):
            units = tuple(c.hit.unit.id for c in call.selection.candidates)
            self._state.emit(ins.FindSources(call.key, units, call.turn))
            return
        if not isinstance(request, m.LearnLessons):
            raise KernelError(f"{call.name} reads no entries", story=call.told())
        delivery = _delivery(call)
        if not delivery.left:
            self._deliver(call, delivery)
            return
        partition = delivery.left.pop(0)
        taken: list[Candidate] = []
        room = request.budget - len(_header(partition)) - 1
        for candidate in call.selection.candidates:
            size = len(line_of(*parts_of(candidate.hit.unit.text))) + 1
            if size <= room:
                taken.append(candidate)
                room -= size
        more = len(taken) < len(call.selection.candidates)
        delivery.taken.append((partition, taken, more))
        if delivery.left:
            self._state.memory.ask(call, self.query(call, self._state.calendar()))
        else:
            self._deliver(call, delivery)

    def _deliver(self, call: Call, delivery: Delivery) -> None:
        if call.resolved is None:
            raise KernelError("lessons for nobody", story=call.told())
        call.leave(self._state.now)
        files: list[MemoryFile] = []
        shown: list[Candidate] = []
        room = ROOM
        # From narrow to wide: what is dearest to the reader is there, whatever fits the frame.
        for partition, taken, more in delivery.taken:
            lines: list[str] = []
            for candidate in taken:
                line = line_of(*parts_of(candidate.hit.unit.text))
                # It stands in the text, in its file and among the entries.
                room -= 3 * len(line.encode()) + BESIDE
                if room < 0:
                    break
                lines.append(line)
                shown.append(candidate)
            if lines:
                text = "\n".join((_header(partition), *lines)) + "\n"
                files.append(
                    MemoryFile(
                        name=f"{partition.scope}.md",
                        text=text,
                        units=len(lines),
                        truncated=more or len(lines) < len(taken),
                    )
                )
        audits = self._state.audits
        audits.record(call, tuple(map(audits.shown, shown)))
        self._state.finish(
            call,
            m.Lessons(
                text="\n".join(file.text for file in files),
                entries=tuple(self._entry(call, c) for c in shown),
                files=tuple(files),
                call=call.id,
                user=call.resolved.user,
                rule=call.resolved.rule,
                barrier=call.barrier,
            ),
        )

    # -- what there is

    def _list(self, channel: Channel, frame: int, request: m.LearnList) -> None:
        if not 1 <= request.limit <= 100:
            raise CallerError("limit must be 1 to 100", field="limit")
        if not acts_as_itself(channel.who):
            call = self._state.memory.enter(channel, frame, request)
            self._state.memory.hold(call, "lexical", 2000)
            return
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.view = everything(self._state.barrier.partitions())
        call.to(Step.RETRIEVE, self._state.now)
        self._state.memory.ask(call, self.query(call, self._state.calendar()))

    def _sources(self, event: ev.SourcesFound) -> None:
        call = self._state.calls.get(event.key)
        if call is None or event.turn != call.turn:
            return
        if isinstance(call.request, m.LearnList) and call.step is Step.RETRIEVE:
            self._listed(call, call.request, event.sources)
        elif isinstance(call.request, Change) and call.step is Step.LOCATE:
            self._sourced(call, event.sources)

    def _listed(self, call: Call, request: m.LearnList, sources: Sources) -> None:
        chosen = [
            self._entry(call, c, sources[c.hit.unit.id])
            for c in call.selection.candidates
            if c.hit.unit.id in sources and self._wanted(call, c, sources[c.hit.unit.id][1])
        ]
        if not chosen and request.id:
            self._state.fail(call, not_found())
        elif not chosen and call.selection.next and call.turn < PAGES:
            self._state.memory.ask(call, self.query(call, self._state.calendar()))
        else:
            entries = m.Entries(entries=tuple(chosen), next=call.selection.next)
            self._state.finish(call, entries)

    def _wanted(self, call: Call, candidate: Candidate, origins: tuple[Origin, ...]) -> bool:
        """The operator that names a user is shown what is that user's, or comes from there."""
        user = call.request.user
        if user is None or not self._operates(call):
            return True
        own = candidate.partition.users == Axis("one", user)
        return own or any(origin.user == user for origin in origins)

    def _entry(
        self, call: Call, candidate: Candidate, source: tuple[str, tuple[Origin, ...]] = ("", ())
    ) -> Entry:
        unit, partition = candidate.hit.unit, candidate.partition
        situation, lesson = parts_of(unit.text)
        writer, origins = source
        user = call.resolved.user if call.resolved else ""
        operates = self._operates(call)
        mine = candidate.owner_user == user or operates
        every = operates and call.request.user is None
        return Entry(
            id=unit.id,
            version=unit.version,
            situation=situation,
            lesson=lesson,
            scope=partition.scope,
            stream=stream_of(candidate),
            agent="" if candidate.owner_agent == LEARNER else candidate.owner_agent,
            user=candidate.owner_user if mine and candidate.owner_user != LEARNER else "",
            stored_at=unit.stored_at,
            readers=readers_of(partition),
            writer=writer,
            origins=tuple(o for o in origins if every or o.user == user),
        )

    def _operates(self, call: Call) -> bool:
        return acts_as_itself(self._state.channels[call.channel].who)

    # -- by hand

    def _change(self, channel: Channel, frame: int, request: m.LearnEdit | m.LearnDelete) -> None:
        if isinstance(request, m.LearnEdit):
            _check_edit(request)
            if request.agent and not acts_as_itself(channel.who):
                raise CallerError(
                    "only the operator names another agent", errno=Errno.EPERM, field="agent"
                )
        resolved = self._state.users.resolve(channel.who, request.user)
        self._state.memory.check_room(channel)
        call = self._state.open(channel, frame, request, resolved)
        if acts_as_itself(channel.who):
            call.view = everything(self._state.barrier.partitions())
        else:
            call.view = self._state.groups.view(Reader(resolved.user, call.agent))
        call.to(Step.LOCATE, self._state.now)
        self._state.memory.ask(call, ReadQuery(id=request.id, now=self._state.calendar()))

    def located(self, call: Call, event: ev.Retrieved) -> None:
        call.selection = event.selection
        if not event.selection.candidates:
            self._state.fail(call, not_found())
            return
        units = (event.selection.candidates[0].hit.unit.id,)
        self._state.emit(ins.FindSources(call.key, units, call.turn))

    def _sourced(self, call: Call, sources: Sources) -> None:
        found = call.selection.candidates[0]
        try:
            if found.hit.unit.id not in sources:
                raise not_found()
            op = self._op(call, found)
        except IsovistError as e:
            self._state.fail(call, e)
            return
        call.to(Step.COMMIT, self._state.now, op.partition.scope)
        self._state.memory.hand_out(call, op)

    def _op(self, call: Call, found: Candidate) -> Op:
        """The change as the store takes it. Every check comes before a number is issued."""
        request, resolved = call.request, call.resolved
        if resolved is None or not isinstance(request, Change):
            raise KernelError("changed by nobody", story=call.told())
        who = self._state.channels[call.channel].who
        own = found.partition.users == Axis("one", resolved.user)
        if not own and not acts_as_itself(who):
            raise CallerError(
                "what other users read is the operator's to change", errno=Errno.EPERM, field="id"
            )
        if call.view is None or found.partition not in call.view.partitions:
            raise not_found()  # its reader has left a group meanwhile
        accept, now = self._state.barrier.accept, self._state.calendar()
        if isinstance(request, m.LearnDelete):
            return self._state.forgetting.drop(call, found, accept(found.partition))
        situation, lesson = parts_of(found.hit.unit.text)
        if not request.scope:
            return Replace(
                partition=found.partition,
                seq=accept(found.partition),
                id=request.id,
                version=request.version,
                text=entry_text(
                    visible(request.situation) or situation, visible(request.lesson) or lesson
                ),
                stored_at=now,
                learned=Learned(writer="person"),
            )
        to = self._target(call, found)
        narrows = to.users == found.partition.users or to.users.kind == "one"
        stream = found.hit.unit.stream
        why = self._state.sharing.refusal(who, to, resolved.user, stream, narrows=narrows)
        if not (why or narrows or acts_as_itself(who)) and not self._shares(found.partition):
            why = "the user shares nothing with others"
        if why:
            raise CallerError(f"scope: {why}", errno=Errno.EPERM, field="scope")
        return Move(
            partition=found.partition,
            seq=accept(found.partition),
            id=request.id,
            version=request.version,
            to=to,
            to_seq=accept(to),
            stored_at=now,
            owner=owner_of(to),
        )

    def _shares(self, partition: Partition) -> bool:
        return partition.users.kind != "one" or self._state.lessons.shares(partition.users.name)

    def _target(self, call: Call, found: Candidate) -> Partition:
        """Where an entry goes: along an axis that it leaves open it becomes the caller's own."""
        request, source = call.request, found.partition
        if call.resolved is None or not isinstance(request, m.LearnEdit):
            raise KernelError("moved by nobody", story=call.told())
        stream = stream_of(found)
        if request.scope not in CAP[stream]:
            raise CallerError(
                f"scope: the {stream} stream cannot reach {request.scope} scope",
                errno=Errno.EPERM,
                field="scope",
            )
        user = source.users.name if source.users.kind == "one" else call.resolved.user
        mine = request.agent or call.agent
        agent = source.agents.name if source.agents.kind == "one" else mine
        to = partition_of(request.scope, user, agent)
        if to == source:
            raise CallerError("scope: the entry has that scope already", field="scope")
        return to

    def dropped(self, call: Call, outcome: Outcome) -> None:
        if call.resolved is None or not isinstance(call.request, m.LearnDelete):
            raise KernelError("deleted by nobody", story=call.told())
        if outcome.errno:
            self._state.fail(call, error(outcome.errno, outcome.message, outcome.field))
            return
        self._state.finish(
            call,
            m.Forgotten(
                id=call.request.id,
                user=call.resolved.user,
                rule=call.resolved.rule,
                receipt=call.receipt,
            ),
        )


Change = m.LearnEdit | m.LearnDelete


def _check_edit(request: m.LearnEdit) -> None:
    if not 1 <= request.version <= LAST_VERSION:
        raise CallerError("version must be 1 to 2^62", field="version")
    words = request.situation or request.lesson
    if not words and not request.scope:
        raise CallerError("nothing is to be changed: give words or a scope", field="scope")
    if words and request.scope:
        raise CallerError("change the words or the scope, one after the other", field="scope")
    if request.agent:
        check_name(request.agent, "agent")
    if request.scope and request.scope not in SCOPES:
        raise CallerError(f"scope must be one of {', '.join(SCOPES)}", field="scope")
    for name, most in (("situation", MAX_SITUATION), ("lesson", MAX_LESSON)):
        value = getattr(request, name)
        if not value:
            continue
        check_text(visible(value), name)
        if len(value) > most:
            raise CallerError(
                f"{name} has {len(value)} characters, the limit is {most}",
                errno=Errno.EMSGSIZE,
                field=name,
            )
    if request.situation and one_line(request.situation) != request.situation:
        raise CallerError("situation must be one line", field="situation")


def _delivery(call: Call) -> Delivery:
    if not isinstance(call.work, Delivery):
        raise KernelError("no delivery", story=call.told())
    return call.work


def _header(partition: Partition) -> str:
    return f"# Learned memory: {partition.scope}"


def readers_of(partition: Partition) -> str:
    """In words, who may read what is in ``partition``."""
    users = {"one": partition.users.name, "all": "every user"}.get(
        partition.users.kind, f"users of group {partition.users.name}"
    )
    agents = {"one": f"agent {partition.agents.name}", "all": "every agent"}.get(
        partition.agents.kind, f"agents of group {partition.agents.name}"
    )
    return f"{agents}, for {users}"
