"""Export, import, backup and statistics: the operator's doors to the whole store.

An export reads through a minted view like everybody else (promise ``view.choke``); an import is
a write like any other, with its own number and checks, that brings id, version and owner along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.users import own_user
from isovist.kernel.state.views import everything
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.exchange import GrantLine, GroupLine, Line, read, write, write_grant
from isovist.syscalls.file_operations import file_of
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import (
    Candidate,
    ListQuery,
    Outcome,
    Put,
    Query,
    ReadQuery,
)
from isovist.syscalls.records import Partition

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

PAGE, PAGE_BYTES = 500, 900_000
"""Units of one page of an export, and bytes of its lines: a reply must fit a frame."""
LINES = 1000
"""Lines of one import."""
USERS: Literal["users"] = "users"
AGENTS: Literal["agents"] = "agents"
REST = "~"
"""Begins the part of a cursor that stands in the groups and grants, behind all units."""
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
    ``taken`` are lines whose id is there already: whether it is the same unit is yet to see;
    ``saving`` counts the groups and grants that are not durable yet."""

    pending: dict[tuple[Partition, int], int] = field(default_factory=dict)
    taken: list[tuple[int, Put]] = field(default_factory=list)
    saving: int = 0
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
        if after.startswith(REST):
            self._state.reply(channel, frame, self._rest(places, after))
            return
        call = self._state.open(channel, frame, request)
        user = request.name
        if not request.after:
            named = (user,) if user else ()
            self._state.chronicle.note("export", channel.who.agent, "memory", users=named)
        call.work = Walk(places, after)
        # In an order that is the same in every store that holds the same.
        call.view = everything(
            p
            for p in sorted(known[:places])
            if not user or p.users.kind != "one" or p.users.name == user
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
        # A file is more than its units: it is taken along by file.fetch.
        shown = [
            c
            for c in selection.candidates
            if request.name in ("", c.owner_user) and not file_of(c.hit.unit)
        ]
        lines = tuple(map(write, shown))
        if request.name:
            lines += self._named(request.name, shown)
        if walk.limit > 1 and sum(len(line.encode()) for line in lines) > PAGE_BYTES:
            # As JSON it is longer than the store could know: take fewer.
            walk.limit = max(1, min(walk.limit, len(lines)) // 2)
            self._ask(call)
            return
        following = selection.next
        if not following and not request.name and (rest := self._registers()):
            following = f"{REST}0.{self._state.opaque('', rest)}"
        self._state.finish(call, m.Exported(lines=lines, next=self._next(walk.places, following)))

    def _next(self, places: int, after: str) -> str:
        return f"{self._state.boot.hex()}.{places}.{after}" if after else ""

    def _named(self, user: str, shown: list[Candidate]) -> tuple[str, ...]:
        """The groups in the audiences of a user's units: of their members this user and the
        agents of these units, since who else is there is not this user's to take along."""
        groups = self._state.groups
        agents = {c.owner_agent for c in shown}
        return tuple(
            line
            for of, axes, own in (
                (USERS, {c.partition.users for c in shown}, {user}),
                (AGENTS, {c.partition.agents for c in shown}, agents),
            )
            for axis in sorted(axes, reverse=True)
            if axis.kind == "group"
            for line in groups.lines((of, axis.name), own)
        )

    def _registers(self) -> list[str]:
        """All groups and grants, last the first line of the file."""
        users, groups = self._state.users, self._state.groups
        grants = [line for agent, held in users.all_grants() for line in write_grant(agent, *held)]
        return [*[line for key in groups.all() for line in groups.lines(key)], *grants][::-1]

    def _rest(self, places: int, after: str) -> m.Exported:
        """A page of groups and grants."""
        place, _, word = after.removeprefix(REST).partition(".")
        rest = self._registers()
        if word != self._state.opaque("", rest):
            raise CallerError(
                "groups or grants have changed since that page; begin the export again",
                errno=Errno.ESTALE,
                field="after",
            )
        first = last = int(place) if place.isascii() and place.isdigit() else 0
        size = 0
        while last < len(rest) and (last == first or size + len(rest[last].encode()) < PAGE_BYTES):
            size += len(rest[last].encode())
            last += 1
        following = f"{REST}{last}.{word}" if last < len(rest) else ""
        return m.Exported(lines=tuple(rest[first:last]), next=self._next(places, following))

    # -- import

    def _import(self, channel: Channel, frame: int, request: m.Import) -> None:
        _operator(channel, "imports")
        if not 1 <= len(request.lines) <= LINES:
            raise CallerError(f"lines takes 1 to {LINES} lines", field="lines")
        self._state.memory.check_room(channel)
        call = self._state.open(channel, frame, request)
        intake = call.work = Intake()
        self._state.chronicle.note("import", channel.who.agent, "memory", lines=len(request.lines))
        call.to(Step.LOOKUP, self._state.now, f"{len(request.lines)} lines")
        lines: list[tuple[int, Line | GroupLine | GrantLine]] = []
        for place, text in enumerate(request.lines):
            try:
                lines.append((place, read(text)))
            except CallerError as e:
                intake.failed.append((place, e.message))
        # Grants name groups, and so do units: whatever the order, these come first.
        for kind in (GroupLine, GrantLine, Line):
            for place, line in lines:
                if isinstance(line, kind):
                    self._take(call, intake, place, line)
        self._go_on(call, intake)

    def _take(
        self, call: Call, intake: Intake, place: int, line: Line | GroupLine | GrantLine
    ) -> None:
        try:
            if isinstance(line, Line):
                if line.kind == "file" and "file" in line.meta:
                    raise CallerError("a unit of a file is stored by file.write alone")
                unknown = self._state.groups.unknown(line.partition)
                if unknown:
                    raise CallerError(f"there is no {unknown}; make it first")
                self._hand_out(call, intake, place, self._put(line))
                return
            save = (
                self._join(call, line) if isinstance(line, GroupLine) else self._allow(call, line)
            )
        except CallerError as e:
            intake.failed.append((place, e.message))
            return
        if save is None:
            intake.known += 1
        else:
            intake.stored += 1
            intake.saving += 1
            self._state.emit(save)

    def _join(self, call: Call, line: GroupLine) -> ins.SaveGroup | None:
        """Let the members of a line join; nobody leaves. ``None``: they are there already."""
        groups = self._state.groups
        if groups.known(line.of, line.name) and all(
            groups.member(line.of, line.name, member) for member in line.members
        ):
            return None
        members = groups.join(m.GroupChange(name=line.name, of=line.of, add=line.members))
        groups.note(call.agent, "group.join", line.of, line.name, line.members)
        return ins.SaveGroup(call.key, line.of, line.name, members)

    def _allow(self, call: Call, line: GrantLine) -> ins.SaveGrant | None:
        """Let an agent hold what a line says beside what it holds. ``None``: it does already."""
        held = self._state.users.grants(line.agent)
        if held.users.issuperset(line.users) and held.scopes.issuperset(line.scopes):
            return None
        grant = m.Grant(agent=line.agent, users=line.users, scopes=line.scopes)
        self._state.identities.grant(grant)
        self._state.identities.note_grant(call.agent, grant)
        return self._state.identities.save(call.key, line.agent)

    def saved(self, call: Call) -> None:
        """A group or a grant is durable."""
        intake = _intake(call)
        intake.saving -= 1
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
            born_at=line.born_at or line.stored_at or 1,
        )

    def _hand_out(self, call: Call, intake: Intake, place: int, put: Put) -> None:
        if call.step is Step.LOOKUP:
            call.to(Step.COMMIT, self._state.now)
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
            intake.stored += 1
        elif outcome.errno == Errno.EEXIST:
            intake.taken.append((place, put))
        else:
            intake.failed.append((place, outcome.message))
        self._go_on(call, intake)

    def _go_on(self, call: Call, intake: Intake) -> None:
        if intake.pending:
            return
        if intake.saving:
            if call.step is not Step.LOOKUP:
                call.to(Step.LOOKUP, self._state.now, "groups and grants")
            return
        if intake.taken:
            if call.step is not Step.RETRIEVE:
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
        what = _differs(found[0], put) if found else "owner"
        if not what:
            intake.known += 1
        else:
            intake.failed.append((place, f"unit {put.id} is there already, with another {what}"))
        self._go_on(call, intake)

    # -- backup, statistics

    def _backup(self, channel: Channel, frame: int, request: m.Backup) -> None:
        _operator(channel, "makes backups")
        path = request.path
        if not path.startswith("/") or "\0" in path or len(path.encode(errors="replace")) > 4096:
            raise CallerError("path must be absolute, with at most 4096 bytes", field="path")
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.chronicle.note("backup", channel.who.agent, "store")
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


def _differs(found: Candidate, put: Put) -> str:
    """What a unit has otherwise than the line of its id; empty: nothing that can change."""
    unit = found.hit.unit
    for what, here, there in (
        ("version", unit.version, put.version),
        ("text", unit.text, put.text),
        ("scope", found.partition, put.partition),
        ("expiry", unit.expires_at, put.expires_at),
    ):
        if here != there:
            return what
    return ""


def _intake(call: Call) -> Intake:
    if not isinstance(call.work, Intake):
        raise KernelError("not an import", story=call.told())
    return call.work
