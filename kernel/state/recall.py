"""How agents look back [S 3.3]: by round, by session, all at once, as files [M 3.4], and the block
that a prompt would get.

Every one of them asks the store through :meth:`Memory.ask`, out of the reader's view, and leaves
a record. Work is bounded: a walk takes at most ``PAGES`` pages, a search is widened at most
``SEARCHES`` times, and no reply outgrows its frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Generation, Step
from isovist.kernel.state.chat import CANDIDATES, QUERY, default_budget
from isovist.kernel.state.memory import MAX_QUERY, Reading, check_span
from isovist.kernel.state.rounds import (
    Key,
    cut,
    date_of,
    entry,
    heading,
    key_of,
    parts_of,
    rounds_of,
)
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.names import check_kinds, check_name, check_text, check_time
from isovist.syscalls.operations import (
    Candidate,
    ListQuery,
    Query,
    ReadQuery,
    RoundsQuery,
    SearchQuery,
)
from isovist.syscalls.records import MemoryFile, Round

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

CHUNK = 1000
"""Characters of a found round [S 3.3]."""
MESSAGES = 50
"""Messages that session search ranks [S 3.3]."""
WIDEN, SEARCHES = 4, 4
"""A search for k rounds takes 4k units, and four times as many again while too few rounds come."""
PAGE, PAGES = 500, 20
"""Units on a page of a walk, and pages of a walk."""
ROOM, UNITS = 600 * 1024, 2500
"""Bytes of text and units in one reply, so that it fits its frame."""
LAST_ROUND = (1 << 31) - 1

Piece = tuple[Round, list[Candidate]]
"""A round of a reply, and the units that it shows."""


class Recall:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.MemorySearch: self._memory_search,
            m.MemoryRead: self._memory_read,
            m.SessionSearch: self._session_search,
            m.FullContext: self._full_context,
            m.MemoryFiles: self._memory_files,
            m.Prefetch: self._prefetch,
        }

    def readings(self) -> dict[type[m.Call], Reading]:
        return dict.fromkeys(self.syscalls(), self)

    # -- arrivals

    def _memory_search(self, channel: Channel, frame: int, request: m.MemorySearch) -> None:
        check_text(request.query, "query", MAX_QUERY)
        _check(request.k, "k", 1, 50)
        check_span(request.since, request.until)
        self._enter(channel, frame, request, "both")

    def _memory_read(self, channel: Channel, frame: int, request: m.MemoryRead) -> None:
        check_name(request.session, "session")
        _check(request.round, "round", 0, LAST_ROUND)
        _check(request.window, "window", 0, 10)
        _check(request.part, "part", 0, 100)
        self._enter(channel, frame, request, "lexical")

    def _session_search(self, channel: Channel, frame: int, request: m.SessionSearch) -> None:
        check_text(request.query, "query", MAX_QUERY)
        _check(request.k, "k", 1, 20)
        self._enter(channel, frame, request, "both")

    def _full_context(self, channel: Channel, frame: int, request: m.FullContext) -> None:
        _check(request.limit, "limit", 1, 500_000)
        self._enter(channel, frame, request, "lexical")

    def _memory_files(self, channel: Channel, frame: int, request: m.MemoryFiles) -> None:
        _check(request.limit, "limit", 1, 200_000)
        self._enter(channel, frame, request, "lexical")

    def _prefetch(self, channel: Channel, frame: int, request: m.Prefetch) -> None:
        driver = self._state.drivers.find(request.model, channel.who.agent)
        check_text(request.query, "query", MAX_QUERY)
        if request.budget is not None:
            _check(request.budget, "budget", 0, driver.context)
        _check(request.units, "units", 0, 64)
        check_kinds(request.kinds)
        call = self._state.memory.enter(channel, frame, request)
        call.generation = Generation(
            driver.config.name, default_budget(request.budget, driver.context)
        )
        self._state.memory.hold(call, request.wait, request.barrier_ms)

    def _enter(
        self,
        channel: Channel,
        frame: int,
        request: m.MemorySearch | m.MemoryRead | m.SessionSearch | m.FullContext | m.MemoryFiles,
        wait: m.Wait,
    ) -> None:
        call = self._state.memory.enter(channel, frame, request)
        self._state.memory.hold(call, wait, request.barrier_ms)

    # -- what each asks, and what it makes of the answer

    def query(self, call: Call, now: int) -> Query:
        request = call.request
        if isinstance(request, m.MemorySearch):
            return SearchQuery(
                text=check_text(request.query, "query", MAX_QUERY),
                k=request.k * WIDEN ** (call.turn + 1),
                mode="hybrid",
                now=now,
                since=check_time(request.since, "since"),
                until=check_time(request.until, "until"),
            )
        if isinstance(request, m.SessionSearch):
            text = check_text(request.query, "query", MAX_QUERY)
            return SearchQuery(text=text, k=MESSAGES, mode="hybrid", now=now)
        if isinstance(request, m.MemoryRead):
            low, high = request.round - request.window, request.round + request.window
            wanted = ((request.session, max(0, low), min(high, LAST_ROUND)),)
            return RoundsQuery(wanted=wanted, now=now)
        if isinstance(request, m.Prefetch):
            text = check_text(request.query, "query", MAX_QUERY).strip()[:QUERY]
            return SearchQuery(text=text, k=CANDIDATES, mode="hybrid", now=now, kinds=request.kinds)
        return ListQuery(limit=PAGE, now=now, after=call.selection.next)

    def took(self, call: Call) -> None:
        request = call.request
        match request:
            case m.MemorySearch():
                self._found_rounds(call, request)
            case m.MemoryRead():
                self._read_rounds(call, request)
            case m.SessionSearch():
                self._found_sessions(call, request)
            case m.FullContext():
                self._walked(call, request)
            case m.MemoryFiles():
                self._filed(call, request)
            case m.Prefetch():
                self._render(call, request)
            case _:
                raise KernelError(f"{call.name} recalls nothing", story=call.told())

    def _again(self, call: Call) -> None:
        self._state.memory.ask(call, self.query(call, self._state.calendar()))

    def _found_rounds(self, call: Call, request: m.MemorySearch) -> None:
        """The best unit of each round, best first; asked more widely while one noisy round fills
        what was found."""
        candidates = call.selection.candidates
        best: dict[Key, Candidate] = {}
        for candidate in candidates:
            best.setdefault(key_of(candidate.hit.unit), candidate)
        full = len(candidates) >= request.k * WIDEN**call.turn
        if len(best) < request.k and full and call.turn < SEARCHES:
            self._again(call)
            return
        self._finish(
            call,
            [
                (self._round(call, [c], c.hit.chunk[:CHUNK], c.hit.score), [c])
                for c in list(best.values())[: request.k]
            ],
        )

    def _read_rounds(self, call: Call, request: m.MemoryRead) -> None:
        if not call.selection.candidates and call.turn == 1 and request.round <= request.window:
            # A unit without a session is a session of its own, with the one round 0.
            query = ReadQuery(id=request.session, now=self._state.calendar())
            self._state.memory.ask(call, query)
            return
        candidates = call.selection.candidates
        if call.turn == 2:
            candidates = tuple(c for c in candidates if not c.hit.unit.handle)
        if not candidates:
            self._state.fail(call, no_round())
            return
        part, parts = request.part, max(parts_of(c.hit.unit.text) for c in candidates)
        if part >= parts:
            last = f"part must be 0 to {parts - 1}: no message of these rounds is longer"
            self._state.fail(call, CallerError(last, field="part"))
            return
        pieces = [
            (self._round(call, shown, "\n".join(cut(c.hit.unit.text, part) for c in shown)), shown)
            for units in rounds_of(candidates)
            if (shown := [c for c in units if not part or cut(c.hit.unit.text, part)])
        ]
        self._finish(call, pieces, bool(call.selection.next) or part + 1 < parts, parts)

    def _found_sessions(self, call: Call, request: m.SessionSearch) -> None:
        if call.turn == 1:
            ranked: dict[str, list[Candidate]] = {}
            for candidate in call.selection.candidates:
                ranked.setdefault(key_of(candidate.hit.unit)[0], []).append(candidate)
            call.found = [c for session in list(ranked)[: request.k] for c in ranked[session]]
            handles = dict.fromkeys(c.hit.unit.handle for c in call.found if c.hit.unit.handle)
            if handles and not request.compact:
                wanted = tuple((handle, 0, LAST_ROUND) for handle in handles)
                query = RoundsQuery(wanted=wanted, now=self._state.calendar())
                self._state.memory.ask(call, query)
                return
        # Best session first: hydrated ones in the order of their rounds, in place of what was
        # found of them.
        whole: dict[str, list[Candidate]] = {}
        if call.turn == 2:
            for candidate in call.selection.candidates:
                whole.setdefault(candidate.hit.unit.handle, []).append(candidate)
        pieces: list[Piece] = []
        for session, group in groupby(call.found, key=lambda c: key_of(c.hit.unit)[0]):
            found = list(group)
            if call.turn == 1:
                pieces += [(self._round(call, [c], c.hit.unit.text, c.hit.score), [c])
                           for c in found]  # fmt: skip
                continue
            alone = found if not found[0].hit.unit.handle else []
            for units in rounds_of(whole.get(session, alone)):
                text = "\n".join(c.hit.unit.text for c in units)
                pieces.append((self._round(call, units, text, found[0].hit.score), units))
        self._finish(call, pieces, call.turn == 2 and bool(call.selection.next))

    def _walked(self, call: Call, request: m.FullContext) -> None:
        """Newest first until no more fits, then turned round."""
        characters = sum(len(c.hit.unit.text) for c in call.found)
        size = sum(len(c.hit.unit.text.encode()) for c in call.found)
        full = False
        for candidate in call.selection.candidates:
            text = candidate.hit.unit.text
            characters += len(text)
            size += len(text.encode())
            full = characters > request.limit or size > ROOM or len(call.found) == UNITS
            if full:
                break
            call.found.append(candidate)
        more = bool(call.selection.next)
        if more and not full and call.turn < PAGES:
            self._again(call)
            return
        pieces = [(self._round(call, [c], c.hit.unit.text), [c]) for c in reversed(call.found)]
        self._finish(call, pieces, full or more)

    def _filed(self, call: Call, request: m.MemoryFiles) -> None:
        """Newest first, each unit into the file of its scope until one does not fit there."""
        used: dict[str, int] = {}
        size = 0
        for candidate in call.found:
            scope, text = candidate.partition.scope, entry(candidate)
            used[scope] = used.get(scope, len(heading(scope))) + len(text)
            size += len(text.encode())
        full = False
        for candidate in call.selection.candidates:
            scope, text = candidate.partition.scope, entry(candidate)
            if scope in call.cut:
                continue
            length = used.get(scope, len(heading(scope))) + len(text)
            if length > request.limit:
                call.cut.add(scope)
                continue
            size += len(text.encode())
            full = size > ROOM or len(call.found) == UNITS
            if full:
                break
            used[scope] = length
            call.found.append(candidate)
        scopes = tuple(p.scope for p in call.view.partitions) if call.view else ()
        more = bool(call.selection.next) and not call.cut.issuperset(scopes)
        if more and not full and call.turn < PAGES:
            self._again(call)
            return
        files = []
        for scope in scopes:
            entries = [entry(c) for c in call.found if c.partition.scope == scope]
            truncated = scope in call.cut or full or more
            if entries or scope in call.cut:
                text = "".join([heading(scope), *reversed(entries)]) if entries else ""
                files.append(
                    MemoryFile(
                        name=f"{scope}.md", text=text, units=len(entries), truncated=truncated
                    )
                )
        self._record(call, call.found)
        if call.resolved is None:
            raise KernelError("files for nobody", story=call.told())
        self._state.finish(
            call,
            m.Files(
                files=tuple(files),
                user=call.resolved.user,
                rule=call.resolved.rule,
                barrier=call.barrier,
            ),
        )

    # -- prefetch

    def _render(self, call: Call, request: m.Prefetch) -> None:
        """The block alone, counted by the model's tokenizer; its driver need not be up."""
        if call.generation is None:
            raise KernelError("a prefetch without a model", story=call.told())
        model, budget = call.generation.model, call.generation.budget
        call.to(Step.RENDER, self._state.now, f"{len(call.selection.candidates)} candidates")
        context = self._state.drivers.find(model).context
        self._state.emit(
            ins.Render(call.key, model, (), call.selection, budget, request.units, 0, context)
        )

    def rendered(self, call: Call, block: str) -> None:
        """The block is there, and ``call.generation`` says what is in it."""
        generation, resolved = call.generation, call.resolved
        if generation is None or resolved is None:
            raise KernelError("a block for nobody", story=call.told())
        call.leave(self._state.now)
        self._state.audits.record(call, generation.injected)
        self._state.finish(
            call,
            m.Prefetched(
                text=block,
                call=call.id,
                model=generation.model,
                user=resolved.user,
                rule=resolved.rule,
                injected=generation.injected,
                budget=generation.budget,
                counter=generation.counter,
                injected_tokens=generation.injected_tokens,
                barrier=call.barrier,
                timings=call.timings(self._state.now),
            ),
        )

    # -- replies

    @staticmethod
    def _round(call: Call, units: Sequence[Candidate], text: str, score: float = 0.0) -> Round:
        unit = units[0].hit.unit
        session, number = key_of(unit)
        return Round(
            session=session,
            round=number,
            date=date_of(unit),
            text=text,
            unit=unit.id,
            owner="" if unit.agent == call.agent else unit.agent,
            score=score,
        )

    def _record(self, call: Call, shown: Iterable[Candidate]) -> None:
        call.leave(self._state.now)
        audits = self._state.audits
        audits.record(call, tuple(map(audits.shown, shown)))

    def _finish(
        self, call: Call, pieces: Sequence[Piece], truncated: bool = False, parts: int = 1
    ) -> None:
        """Reply with as many rounds as fit, whole ones only."""
        kept: list[Piece] = []
        room = ROOM
        for piece in pieces:
            room -= len(piece[0].text.encode())
            if room < 0 or len(kept) == UNITS:
                truncated = True
                break
            kept.append(piece)
        self._record(call, (c for _, shown in kept for c in shown))
        if call.resolved is None:
            raise KernelError("rounds for nobody", story=call.told())
        self._state.finish(
            call,
            m.Rounds(
                rounds=tuple(round_ for round_, _ in kept),
                call=call.id,
                user=call.resolved.user,
                rule=call.resolved.rule,
                barrier=call.barrier,
                truncated=truncated,
                parts=parts,
            ),
        )


def _check(value: int, field: str, low: int, high: int) -> None:
    if not low <= value <= high:
        raise CallerError(f"{field} must be {low} to {high}", field=field)


def no_round() -> CallerError:
    """The same words whether the session never was, is gone, or lies outside the view."""
    return CallerError("no such round in view", errno=Errno.ENOENT, field="session")
