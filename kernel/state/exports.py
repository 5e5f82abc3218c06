"""Export, import, backup and statistics: the operator's doors to the whole store.

An export reads through a minted view like everybody else (promise ``view.choke``); an import is
a write like any other, with its own number and checks, that brings id, version and owner along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.users import own_user
from isovist.kernel.state.views import everything
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.exchange import Line, read, write
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import ListQuery, Outcome, Put, Query, ReadQuery
from isovist.syscalls.records import Partition

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

PAGE, PAGE_BYTES = 500, 900_000
"""Units of one page of an export, and bytes of its lines: a reply must fit a frame."""
LINES = 1000
"""Lines of one import."""
EVER = -(1 << 63)
"""As ``now`` of a query: before anything expires."""


@dataclass(slots=True)
class Walk:
    """An export's page. The partitions are those of the walk's beginning: ``places`` says how
    many, of the store's in the order in which they came to be known."""

    places: int
    after: str
    limit: int = PAGE


@dataclass(slots=True)
class Intake:
    """An import under way. ``pending`` maps what was handed out to the place of its line;
    ``taken`` are lines whose id is there already: whether it is the same unit is yet to see."""

    pending: dict[tuple[Partition, int], int] = field(default_factory=dict)
    taken: list[tuple[int, Put]] = field(default_factory=list)
    stored: int = 0
    known: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)
    secrets: Counter[str] = field(default_factory=Counter)


class Exports:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.Export: self._export,
            m.Import: self._import,
            m.Backup: self._backup,
            m.Statistics: self._statistics,
        }

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.Measured: self._measured}

    def readings(self) -> dict[type[m.Call], Exports]:
        return {m.Export: self, m.Import: self}

    # -- what the store answers

    def query(self, call: Call, now: int) -> Query:
        """The next question: a page, or the unit of an id that is there already."""
        if isinstance(call.work, Walk):
            return ListQuery(limit=call.work.limit, now=now, after=call.work.after)
        return ReadQuery(id=_intake(call).taken[-1][1].id, now=EVER)

    def took(self, call: Call) -> None:
        if isinstance(call.work, Walk):
            self._page(call, call.work)
        else:
            self._compared(call, _intake(call))

    def _ask(self, call: Call) -> None:
        self._state.memory.ask(call, self.query(call, self._state.calendar()))

    # -- export

    def _export(self, channel: Channel, frame: int, request: m.Export) -> None:
        _operator(channel, "exports")
        if request.name:
            own = request.name == own_user(request.name.partition("/")[2])
            check_name(request.name.partition("/")[2] if own else request.name, "name")
        known = self._state.barrier.partitions()
        places, after = len(known), ""
        if request.after:
            places, after = self._where(request.after, places)
        call = self._state.open(channel, frame, request)
        user = request.name
        call.work = Walk(places, after)
        call.view = everything(
            p for p in known[:places] if not user or p.users.kind != "one" or p.users.name == user
        )
        call.to(Step.RETRIEVE, self._state.now)
        self._ask(call)

    def _where(self, cursor: str, known: int) -> tuple[int, str]:
        """Where a walk goes on. The order of partitions is that of this life of the kernel."""
        boot, _, rest = cursor.partition(".")
        places, _, after = rest.partition(".")
        if not (places.isascii() and places.isdigit() and len(places) < 10 and after):
            raise CallerError("after must be the `next` of an earlier page", field="after")
        if boot != self._state.boot.hex() or int(places) > known:
            raise CallerError(
                "the kernel has started anew since that page; begin the export again",
                errno=Errno.ESTALE,
                field="after",
            )
        return int(places), after

    def _page(self, call: Call, walk: Walk) -> None:
        request, selection = call.request, call.selection
        if not isinstance(request, m.Export):
            raise KernelError("not an export", story=call.told())
        lines = tuple(
            write(candidate)
            for candidate in selection.candidates
            if request.name in ("", candidate.owner_user)
        )
        if walk.limit > 1 and sum(len(line.encode()) for line in lines) > PAGE_BYTES:
            # As JSON it is longer than the store could know: take fewer.
            walk.limit = max(1, min(walk.limit, len(lines)) // 2)
            self._ask(call)
            return
        following = ""
        if selection.next:
            following = f"{self._state.boot.hex()}.{walk.places}.{selection.next}"
        self._state.finish(call, m.Exported(lines=lines, next=following))

    # -- import

    def _import(self, channel: Channel, frame: int, request: m.Import) -> None:
        _operator(channel, "imports")
        if not 1 <= len(request.lines) <= LINES:
            raise CallerError(f"lines takes 1 to {LINES} lines", field="lines")
        self._state.memory.check_room(channel)
        call = self._state.open(channel, frame, request)
        intake = call.work = Intake()
        call.to(Step.COMMIT, self._state.now, f"{len(request.lines)} lines")
        for place, text in enumerate(request.lines):
            try:
                line = read(text)
                unknown = self._state.groups.unknown(line.partition)
                if unknown:
                    raise CallerError(f"there is no {unknown}; make it first")
            except CallerError as e:
                intake.failed.append((place, e.message))
            else:
                self._hand_out(call, intake, place, self._put(line))
        self._go_on(call, intake)

    def _put(self, line: Line) -> Put:
        opaque, session = self._state.opaque, line.session
        return Put(
            partition=line.partition,
            seq=0,
            id=line.id,
            version=line.version,
            text=line.text,
            kind=line.kind,
            agent=line.agent,
            user=line.user,
            stream=line.stream,
            said_at=line.said_at,
            stored_at=line.stored_at,
            session=session,
            round=line.round,
            expires_at=line.expires_at,
            supersedes=line.supersedes,
            meta=line.meta,
            handle=opaque("s", line.agent, line.user, session) if session else "",
        )

    def _hand_out(self, call: Call, intake: Intake, place: int, put: Put) -> None:
        seq = self._state.barrier.accept(put.partition)
        intake.pending[put.partition, seq] = place
        self._state.memory.hand_out(call, msgspec.structs.replace(put, seq=seq))

    def settled(self, call: Call, outcome: Outcome) -> None:
        """What became of one line."""
        put, intake = outcome.op, _intake(call)
        if not isinstance(put, Put):
            raise KernelError("an import stores units, nothing else", story=call.told())
        place = intake.pending.pop((put.partition, put.seq))
        intake.secrets.update(outcome.secrets)
        if not outcome.errno:
            intake.known += outcome.duplicate
            intake.stored += not outcome.duplicate
        elif outcome.errno == Errno.ENOENT and put.supersedes:
            # What it once superseded is here no more (it was forgotten, or has expired).
            self._hand_out(call, intake, place, msgspec.structs.replace(put, supersedes=""))
        elif outcome.errno == Errno.EEXIST:
            intake.taken.append((place, put))
        else:
            intake.failed.append((place, outcome.message))
        self._go_on(call, intake)

    def _go_on(self, call: Call, intake: Intake) -> None:
        if intake.pending:
            return
        if intake.taken:
            if call.step is Step.COMMIT:
                call.to(Step.RETRIEVE, self._state.now, f"{len(intake.taken)} ids are taken")
            call.view = everything(self._state.barrier.partitions())
            self._ask(call)
            return
        failed = tuple(f"line {place}: {why}" for place, why in sorted(intake.failed))
        self._state.finish(
            call,
            m.Imported(
                stored=intake.stored,
                known=intake.known,
                failed=failed,
                secrets=dict(intake.secrets),
            ),
        )

    def _compared(self, call: Call, intake: Intake) -> None:
        place, put = intake.taken.pop()
        found = call.selection.candidates
        if found and found[0].hit.unit.text == put.text:
            intake.known += 1
        else:
            intake.failed.append((place, f"unit {put.id} is there already, in other words"))
        self._go_on(call, intake)

    # -- backup, statistics

    def _backup(self, channel: Channel, frame: int, request: m.Backup) -> None:
        _operator(channel, "makes backups")
        path = request.path
        if not path.startswith("/") or "\0" in path or len(path.encode(errors="replace")) > 4096:
            raise CallerError("path must be absolute, with at most 4096 bytes", field="path")
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.Backup(call.key, path))

    def _statistics(self, channel: Channel, frame: int, request: m.Statistics) -> None:
        _operator(channel, "sees the statistics of all")
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.Measure(call.key))

    def _measured(self, event: ev.Measured) -> None:
        call = self._state.calls.get(event.key)
        if call is not None and isinstance(call.request, m.Statistics):
            self._state.finish(call, m.Figures(figures=event.figures))


def _operator(channel: Channel, what: str) -> None:
    if not channel.who.operator:
        raise CallerError(f"only the operator {what}", errno=Errno.EPERM)


def _intake(call: Call) -> Intake:
    if not isinstance(call.work, Intake):
        raise KernelError("not an import", story=call.told())
    return call.work
