"""Forgetting by query, in two steps (promise ``erase.complete``): first it is shown what fits, then
all and only that goes.

What was shown is kept with the channel, as ids and versions under a word; who says the word has
these units removed, each iff it still has that version. So a unit that came later, or was changed,
moved or forgotten meanwhile, is left alone and counted, whatever else happens between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.memory import MAX_QUERY, check_span, compact
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.file_operations import file_of
from isovist.syscalls.names import check_kinds, check_name, check_text, check_time
from isovist.syscalls.operations import Candidate, Drop, MatchQuery, Outcome, Query

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MOST = 1000
"""Units that one demand names."""
PAGE = 200
"""Units that the store looks through at a time: other calls go on in between."""
KEPT = 4
"""Dry runs that a channel remembers."""
NOT_THERE = (Errno.ENOENT, Errno.ESTALE)
"""Outcomes after which a unit is not what was shown any more."""

Demand = tuple[object, ...]


class Named(NamedTuple):
    """What a dry run named: on whose demand, and the units without their texts."""

    demand: Demand
    units: tuple[Candidate, ...]


class Matching:
    """Invariant: a channel's ``named`` has at most ``KEPT`` entries of at most ``MOST`` units."""

    def __init__(self, state: State, drop: Callable[[Call, Candidate, int], Drop]) -> None:
        self._state, self._drop = state, drop

    def arrived(self, channel: Channel, frame: int, request: m.ForgetMatching) -> None:
        memory = self._state.memory
        check_text(request.query, "query", MAX_QUERY)
        if not 1 <= request.limit <= 100:
            raise CallerError("limit must be 1 to 100", field="limit")
        if not 0 <= request.offset <= MOST:
            raise CallerError(f"offset must be 0 to {MOST}", field="offset")
        check_kinds(request.kinds)
        check_span(request.since, request.until)
        if not request.confirm:
            memory.hold(memory.enter(channel, frame, request), "lexical", request.barrier_ms)
            return
        check_name(request.confirm, "confirm")
        memory.check_room(channel)
        call = memory.enter(channel, frame, request)
        named = channel.named.get(request.confirm)
        if named is None or named.demand != _demand(call, request):
            self._state.fail(call, unknown())
            return
        del channel.named[request.confirm]
        self._drop_all(call, named)

    # -- the first step

    def query(self, call: Call, now: int) -> Query:
        request = call.request
        if not isinstance(request, m.ForgetMatching):
            raise KernelError(f"{call.name} matches nothing", story=call.told())
        return MatchQuery(
            text=check_text(request.query, "query", MAX_QUERY),
            limit=PAGE,
            now=now,
            after=call.selection.next,
            since=check_time(request.since, "since"),
            until=check_time(request.until, "until"),
            kinds=request.kinds,
        )

    def took(self, call: Call) -> None:
        """Note what fits on this page, its text only where it is to be shown; go on with the next
        page until all was looked at, or no more can be named."""
        request = call.request
        if not isinstance(request, m.ForgetMatching):
            raise KernelError(f"{call.name} matches nothing", story=call.told())
        shown = range(request.offset, request.offset + request.limit)
        for candidate in call.selection.candidates:
            if file_of(candidate.hit.unit):
                continue  # a file goes whole, by file.delete
            call.found.append(_slim(candidate, show=len(call.found) in shown))
        if call.selection.next and len(call.found) <= MOST:
            self._state.memory.ask(call, self.query(call, self._state.calendar()))
        else:
            self._show(call, request)

    def _show(self, call: Call, request: m.ForgetMatching) -> None:
        named = tuple(call.found[:MOST])
        word = ""
        if named:
            demand = _demand(call, request)
            units = tuple((c.hit.unit.id, c.hit.unit.version) for c in named)
            word = self._state.opaque("w", demand, units)
            kept = self._state.channels[call.channel].named
            kept.pop(word, None)
            kept[word] = Named(demand, tuple(_slim(c) for c in named))
            while len(kept) > KEPT:
                del kept[next(iter(kept))]
        page = named[request.offset : request.offset + request.limit]
        call.leave(self._state.now)
        audits = self._state.audits
        audits.record(call, tuple(map(audits.shown, page)))
        self._state.finish(
            call,
            m.Matched(
                units=tuple(c.hit.unit for c in page),
                count=len(named),
                confirm=word,
                more=len(call.found) > MOST,
            ),
        )

    # -- the second

    def _drop_all(self, call: Call, named: Named) -> None:
        call.found = list(named.units)
        accept = self._state.barrier.accept
        ops = [
            msgspec.structs.replace(
                self._drop(call, c, accept(c.partition)), version=c.hit.unit.version
            )
            for c in named.units
        ]
        call.to(Step.COMMIT, self._state.now, f"{len(ops)} units")
        self._state.forgetting.matched(call, len(ops))
        for op in ops:
            self._state.memory.hand_out(call, op)

    def dropped(self, call: Call, last: Outcome) -> None:
        """The last of the removals has come to its end."""
        failures = [errno for errno in call.drops.values() if errno and errno not in NOT_THERE]
        if failures:
            left = f"{len(failures)} of {len(call.drops)} units are still there"
            why = last.message if last.errno == failures[-1] else ""
            self._state.fail(call, error(failures[-1], f"{why}: {left}" if why else left))
            return
        call.leave(self._state.now)
        audits = self._state.audits
        gone = [not errno for errno in call.drops.values()]
        shown = [c for c, is_gone in zip(call.found, gone, strict=True) if is_gone]
        audits.record(call, tuple(map(audits.shown, shown)))
        self._state.finish(
            call,
            m.Matched(
                units=(),
                count=len(shown),
                confirm="",
                receipt=call.receipt if shown else "",
                skipped=len(gone) - len(shown),
            ),
        )

    def validate(self) -> None:
        for channel in self._state.channels.values():
            assert len(channel.named) <= KEPT, channel
            assert all(0 < len(named.units) <= MOST for named in channel.named.values()), channel


def _demand(call: Call, request: m.ForgetMatching) -> Demand:
    """Who asks for what: a word serves this alone."""
    if call.resolved is None:
        raise KernelError("matched for nobody", story=call.told())
    what = request.query, request.since, request.until, request.kinds
    return call.resolved.user, call.agent, *what


def _slim(candidate: Candidate, *, show: bool = False) -> Candidate:
    """``candidate`` as search shows it, or without all that makes it long."""
    hit = compact(candidate.hit)
    if show:
        return msgspec.structs.replace(candidate, hit=hit)
    unit = msgspec.structs.replace(hit.unit, text="", meta={})
    return msgspec.structs.replace(candidate, hit=msgspec.structs.replace(hit, unit=unit, chunk=""))


def unknown() -> IsovistError:
    message = "no dry run of this query gave this word here; ask without confirm first"
    return error(Errno.ESTALE, message, "confirm")
