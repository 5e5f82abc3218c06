"""The memory syscalls: who is asked for, which audience, which order, and when to answer.

Writes: checked, given a number in their partition, committed, visible, acknowledged. Reads:
resolved, given a view, held at the barrier, retrieved. The text itself is never looked at here
beyond its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.changes import not_found
from isovist.kernel.state.lessons import LEARNER
from isovist.syscalls import messages as m
from isovist.syscalls.abi.files import FileSearch
from isovist.syscalls.errors import CallerError, Errno, KernelError, error
from isovist.syscalls.names import (
    check_barrier,
    check_kinds,
    check_meta,
    check_name,
    check_text,
    check_time,
    dropped,
)
from isovist.syscalls.operations import (
    Drop,
    Expire,
    ListQuery,
    Move,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    SearchQuery,
    Vectors,
)
from isovist.syscalls.records import (
    LEGS,
    Barrier,
    Hit,
    Leg,
    Partition,
    Reader,
    View,
)

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

_KERNEL = -1
"""As the key of a call: the write is the kernel's own."""
MAX_QUERY = 8 * 1024
"""Bytes of a query; a longer user turn is cut for retrieval, a longer search is refused."""


Reads = (
    m.Search | m.Read | m.MemoryList | m.Chat | m.MemorySearch | m.MemoryRead | m.SessionSearch
    | m.FullContext | m.MemoryFiles | m.Prefetch | m.ForgetMatching | m.ViewOf
    | m.LearnLessons | m.LearnList | FileSearch
)  # fmt: skip
"""Requests that read units, and wait at the barrier before."""
CHOOSY = m.Search | m.Chat | m.Prefetch | m.LearnLessons
"""Those that choose which legs to wait for, and are told of both."""


class Reading(Protocol):
    """What a module makes of the reading syscalls that it adds."""

    def query(self, call: Call, now: int) -> Query:
        """The first question to the store."""
        ...

    def took(self, call: Call) -> None:
        """The answer is in ``call.selection``: reply, or ask on."""
        ...


class Memory:
    """Invariants: ``_writers`` maps all and only the writes handed out and not yet answered to
    their calls, ended ones included; ``_unanswered`` counts them by channel."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._writers: dict[tuple[Partition, int], tuple[int, int]] = {}
        self._unanswered: Counter[int] = Counter()
        self._own: dict[tuple[Partition, int], Callable[[Outcome], None]] = {}
        self.readings: dict[type[m.Call], Reading] = {}
        """Who takes care of the reading syscalls that are not written out here."""

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.Remember: self._remember,
            m.Search: self._search,
            m.Read: self._read,
            m.MemoryList: self._list,
        }

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.Committed: self._committed,
            ev.WriteFailed: self._write_failed,
            ev.Retrieved: self._retrieved,
        }

    # -- writes

    def _remember(self, channel: Channel, frame: int, request: m.Remember) -> None:
        check_kinds((request.kind,), "kind")
        if request.kind == "file":
            raise CallerError("kind: what is of kind file is stored by file.write", field="kind")
        if request.session:
            check_name(request.session, "session")
        if request.supersedes:
            check_name(request.supersedes, "supersedes")
        if not 0 <= request.round < 1 << 31:
            raise CallerError("round must be 0 to 2147483647", field="round")
        text = check_text(request.text)
        meta = check_meta(request.meta)
        said_at = check_time(request.said_at, "said_at")
        expires_at = check_time(request.expires_at, "expires_at")
        resolved = self._state.users.resolve(channel.who, request.user)
        audience, note = self._audience(channel, request, resolved.user)
        self.check_room(channel)
        call = self._state.open(channel, frame, request, resolved)
        call.note = "; ".join(filter(None, (note, dropped(request.text))))
        self.put(
            call,
            audience,
            text=text,
            kind=request.kind,
            stream=request.stream,
            said_at=said_at,
            session=request.session,
            round=request.round,
            expires_at=expires_at,
            supersedes=request.supersedes,
            meta=meta,
        )
        call.to(Step.COMMIT, self._state.now, audience.scope)

    def put(
        self, call: Call, partition: Partition, *, said_at: int | None = None, **fields: Any
    ) -> None:
        """Accept a new unit of ``call``: from here on readers wait for it. Raises ``EDQUOT``, and
        then has issued no number."""
        if call.resolved is None:
            raise KernelError("a write without an owner", story=call.told())
        who, size = self._state.channels[call.channel].who, len(fields["text"].encode())
        self._state.quotas.check(who, call.resolved.user, {"units": 1, "bytes": size})
        seq = self._state.barrier.accept(partition)
        now = self._state.calendar()
        session, user = fields.get("session"), call.resolved.user
        call.put = Put(
            partition=partition,
            seq=seq,
            # Of this life of the kernel: a store put back from a backup gives numbers out again,
            # and what an import brings may have the ids of those that it lost.
            id=self._state.opaque("u", self._state.boot, partition, seq),
            agent=call.agent,
            user=user,
            handle=self._state.opaque("s", call.agent, user, session) if session else "",
            said_at=now if said_at is None else said_at,
            stored_at=now,
            **fields,
        )
        self._state.quotas.reserve(who, user, call.put, 1, size)
        self.hand_out(call, call.put)

    def hand_out(self, call: Call, op: Op) -> None:
        self._writers[op.partition, op.seq] = call.key, call.channel
        self._unanswered[call.channel] += 1
        if not isinstance(call.request, m.Import):  # which has a line of its own
            self._state.sharing.note(call.agent, op)
        self._state.emit(ins.Commit(op))

    def hand_out_own(self, op: Op, then: Callable[[Outcome], None]) -> None:
        """A write that no call asks for: readers wait for it like for any other. ``then`` is told
        what became of it."""
        self._writers[op.partition, op.seq] = _KERNEL, 0
        self._own[op.partition, op.seq] = then
        self._unanswered[0] += 1
        self._state.sharing.note(LEARNER, op)
        self._state.emit(ins.Commit(op))

    def _answered(self, op: Op) -> int:
        """The key of the call that wrote ``op``; 0 where that is answered already."""
        key, channel = self._writers.pop((op.partition, op.seq), (0, 0))
        if key:
            self._unanswered[channel] -= 1
            if not self._unanswered[channel]:
                del self._unanswered[channel]
        return key

    def check_room(self, channel: Channel) -> None:
        """A write that was cancelled still counts until it is on disk: else a slow disk and an
        agent that cancels would fill the memory. Raises ``EAGAIN``."""
        limit = self._state.limits.calls
        if self._unanswered[channel.number] >= limit:
            raise CallerError(f"{limit} writes wait for the disk, the limit", errno=Errno.EAGAIN)

    def _audience(self, channel: Channel, request: m.Remember, user: str) -> tuple[Partition, str]:
        """The audience of a new unit. Whatever is missing, unknown or not granted is private,
        and the second value says why (promise ``private.default``)."""
        who = channel.who
        scope = request.scope if request.scope is not None else who.scope or None
        return self._state.sharing.audience(who, scope, user, who.agent, request.stream)

    def _committed(self, event: ev.Committed) -> None:
        outcome = event.outcome
        op = outcome.op
        if isinstance(op, Vectors):
            self._embedded(op, failed=False)
            return
        key = self._answered(op)
        if not key:
            return
        self._state.quotas.settled(outcome)
        self._written(outcome)
        # Visible first, then acknowledged: whoever hears of the write can already find it.
        self._show(op, ("lexical",) if outcome.chunks else LEGS)
        self._state.sweeping.note(op)
        if isinstance(op, Drop) and op.receipt:
            # Even if nobody waits for it any more: the unit is gone all the same.
            self._state.forgetting.left((op.id,))
        if key == _KERNEL:
            self._own.pop((op.partition, op.seq))(outcome)
            return
        call = self._state.calls.get(key)
        if call is None:
            return
        if isinstance(call.request, m.Import):
            self._state.exports.settled(call, outcome)
        elif call.resolved is None:
            raise KernelError("a write without an owner", story=call.told())
        elif call.step is Step.KEEP:
            self._state.chats.kept(call, outcome)
        elif isinstance(op, Drop):
            self._state.forgetting.dropped(call, outcome)
        else:
            self._state.finish(
                call,
                m.Stored(
                    id=outcome.id,
                    version=outcome.version,
                    scope=(op.to if isinstance(op, Move) else op.partition).scope,
                    user=call.resolved.user,
                    rule=call.resolved.rule,
                    duplicate=outcome.duplicate,
                    note=call.note,
                    secrets=outcome.secrets,
                ),
            )

    def take(self, outcomes: Sequence[Outcome]) -> None:
        """What became of units that changed with something else, in one transaction: those that
        left are owed no vectors, those that came are found by their words."""
        for outcome in outcomes:
            op = outcome.op
            self._state.quotas.settled(outcome)
            if isinstance(op, Drop):
                self._state.barrier.removed(op.partition, op.id)
            else:
                self._written(outcome)

    def show(self, partition: Partition, seq: int, legs: tuple[Leg, ...]) -> None:
        """Number ``seq`` is visible in ``legs``, or void."""
        for key in self._state.barrier.show(partition, seq, legs):
            self._leave_barrier(self._state.calls[key])

    def _written(self, outcome: Outcome) -> None:
        """Note which write owes the vectors of its unit from now on. ``Expire`` changes nothing
        there: what an earlier write owes is owed still."""
        op = outcome.op
        if outcome.duplicate or isinstance(op, Expire | Vectors):
            return
        written, lacks = self._state.barrier.written, bool(outcome.chunks)
        if isinstance(op, Move):
            written(op.partition, outcome.id, op.seq, False)
            written(op.to, outcome.id, op.to_seq, lacks)
        else:
            written(op.partition, outcome.id, op.seq, lacks)

    def _write_failed(self, event: ev.WriteFailed) -> None:
        op = event.outcome.op
        if isinstance(op, Vectors):
            self._embedded(op, failed=True)
            return
        key = self._answered(op)
        if not key:
            return
        self._state.quotas.settled(event.outcome)
        # The number is void: it is visible as nothing, so nobody waits for it.
        self._show(op, LEGS)
        if key == _KERNEL:
            self._own.pop((op.partition, op.seq))(event.outcome)
            return
        call = self._state.calls.get(key)
        if call is None:
            return
        if call.step is Step.KEEP:
            self._state.chats.kept(call)
        elif isinstance(op, Drop):
            self._state.forgetting.dropped(call, event.outcome)
        elif isinstance(call.request, m.Import):
            self._state.exports.settled(call, event.outcome)
        else:
            failure = event.outcome
            self._state.fail(call, error(failure.errno, failure.message, failure.field))

    def _embedded(self, op: Vectors, failed: bool) -> None:
        self._state.barrier.embedded(op.partition, op.id, op.seq, failed)
        self._show(op, ("dense",))

    def _show(self, op: Op, legs: tuple[Leg, ...]) -> None:
        """``op`` is visible in ``legs``, or void. A move has a number on either side; where it
        left there is nothing more to come."""
        show = self._state.barrier.show
        if isinstance(op, Move):
            free = [*show(op.partition, op.seq, LEGS), *show(op.to, op.to_seq, legs)]
        else:
            free = show(op.partition, op.seq, legs)
        for key in free:
            self._leave_barrier(self._state.calls[key])

    # -- reads

    def _search(self, channel: Channel, frame: int, request: m.Search) -> None:
        check_text(request.query, "query", MAX_QUERY)
        if not 1 <= request.k <= 100:
            raise CallerError("k must be 1 to 100", field="k")
        check_kinds(request.kinds)
        check_span(request.since, request.until)
        self.hold(self.enter(channel, frame, request), request.wait, request.barrier_ms)

    def _read(self, channel: Channel, frame: int, request: m.Read) -> None:
        self.hold(self.enter(channel, frame, request), "lexical", request.barrier_ms)

    def _list(self, channel: Channel, frame: int, request: m.MemoryList) -> None:
        if not 1 <= request.limit <= 500:
            raise CallerError("limit must be 1 to 500", field="limit")
        check_kinds(request.kinds)
        self.hold(self.enter(channel, frame, request), "lexical", request.barrier_ms)

    def enter(self, channel: Channel, frame: int, request: Reads) -> Call:
        """Resolve the reader, mint its view and note what is accepted in it, all on arrival."""
        check_barrier(getattr(request, "barrier_ms", 0))
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.id = self._state.opaque("c", self._state.boot, call.key)
        call.view = self._state.groups.view(Reader(resolved.user, call.agent))
        accepted = self._state.barrier.accepted
        call.sequences = tuple((p.scope, accepted(p)) for p in call.view.partitions)
        return call

    def hold(self, call: Call, wait: m.Wait, barrier_ms: int) -> None:
        """Hold the call at the barrier until the asked legs have caught up, then go on."""
        if call.view is None:
            raise KernelError("a read without a view", story=call.told())
        call.legs = LEGS if wait == "both" else ("lexical",) if wait == "lexical" else ()
        if self._state.barrier.wait(call.key, call.view.partitions, call.legs):
            call.to(Step.BARRIER, self._state.now)
            # What a record says of a call that ends in here.
            call.barrier = Barrier(state="timed_out", lagging=call.legs)
            self._state.timer(self._state.now + barrier_ms * 1_000_000, call.key, "barrier")
        else:
            self._leave_barrier(call)

    def go_on(self, call: Call) -> None:
        """Nothing is left that a call at the barrier waits for."""
        self._leave_barrier(call)

    def barrier_timed_out(self, call: Call) -> None:
        if call.step is Step.BARRIER:
            self._state.barrier.leave(call.key)
            self._leave_barrier(call)

    def _leave_barrier(self, call: Call) -> None:
        """Say what the barrier found, and go on. A leg that the caller chose not to wait for is
        named where it lags, but makes the reply no less ready."""
        if call.view is None:
            raise KernelError("a read without a view", story=call.told())
        snapshot = [
            (partition, number)
            for partition, (_, number) in zip(call.view.partitions, call.sequences, strict=True)
            if number
        ]
        legs = LEGS if isinstance(call.request, CHOOSY) else call.legs
        lagging = self._state.barrier.behind(legs, snapshot)
        waited = self._state.now - call.at if call.step is Step.BARRIER else 0
        if self._fresh_enough(call, waited / 1e6, lagging):
            self._go_on(call)

    def _fresh_enough(self, call: Call, waited_ms: float, lagging: tuple[str, ...]) -> bool:
        """Note what lags; false where that ended the call, as its caller had wished."""
        late = tuple(leg for leg in lagging if leg in call.legs)
        call.barrier = Barrier(
            state="timed_out" if late else "ready", waited_ms=waited_ms, lagging=lagging
        )
        if not late:
            return True
        call.tell(self._state.now, f"barrier timed out, lagging: {', '.join(late)}")
        request = call.request
        if not (isinstance(request, m.Search | m.Chat) and request.on_stale == "error"):
            return True
        message = f"the barrier timed out, lagging: {', '.join(late)}"
        self._state.fail(call, error(Errno.ETIMEDOUT, message))
        return False

    def _go_on(self, call: Call) -> None:
        query = self._query(call)
        if query is None:
            self._state.chats.render(call)
            return
        call.to(Step.RETRIEVE, self._state.now)
        self.ask(call, query)

    def ask(self, call: Call, query: Query, view: View | None = None) -> None:
        """Put ``query`` to the store, out of the call's view or its part of that (or ``view``, to
        find what is to be changed). From here on the answer to an earlier one is late, and changes
        nothing."""
        view = view or call.part or call.view
        if view is None:
            raise KernelError("a read without a view", story=call.told())
        call.turn += 1
        self._state.emit(ins.Retrieve(call.key, view, query, call.turn))

    def _query(self, call: Call) -> Query | None:
        request, now = call.request, self._state.calendar()
        if isinstance(request, m.Search):
            return SearchQuery(
                text=check_text(request.query, "query", MAX_QUERY),
                k=request.k,
                mode=request.mode,
                now=now,
                since=check_time(request.since, "since"),
                until=check_time(request.until, "until"),
                kinds=request.kinds,
            )
        if isinstance(request, m.Read):
            return ReadQuery(id=request.id, now=now)
        if isinstance(request, m.MemoryList):
            return ListQuery(limit=request.limit, now=now, after=request.after, kinds=request.kinds)
        if (reading := self.readings.get(type(request))) is not None:
            return reading.query(call, now)
        return self._state.chats.query(call, now)

    def _retrieved(self, event: ev.Retrieved) -> None:
        call = self._state.calls.get(event.key)
        if call is None or call.step not in (Step.RETRIEVE, Step.LOCATE):
            return
        if event.turn != call.turn:
            return
        if call.step is Step.LOCATE:
            if isinstance(call.request, m.LearnEdit | m.LearnDelete):
                self._state.entries.located(call, event)
            else:
                self._state.changes.located(call, event)
            return
        if event.lagging:
            lagging = tuple(sorted({*call.barrier.lagging, *event.lagging}))
            if not self._fresh_enough(call, call.barrier.waited_ms, lagging):
                return
        call.selection = event.selection
        if isinstance(call.request, m.Chat):
            self._state.chats.render(call)
        elif (reading := self.readings.get(type(call.request))) is not None:
            reading.took(call)
        else:
            self._answer(call)

    def _answer(self, call: Call) -> None:
        request, selection, resolved = call.request, call.selection, call.resolved
        if resolved is None:
            raise KernelError("an answer for nobody", story=call.told())
        call.leave(self._state.now)
        if isinstance(request, m.Search):
            timings = call.timings(self._state.now)
            audits = self._state.audits
            audits.record(call, tuple(map(audits.shown, selection.candidates)))
            self._state.finish(
                call,
                m.Found(
                    hits=tuple(compact(c.hit) for c in selection.candidates),
                    call=call.id,
                    user=resolved.user,
                    rule=resolved.rule,
                    barrier=call.barrier,
                    timings=timings,
                ),
            )
        elif isinstance(request, m.Read) and not selection.candidates:
            self._state.fail(call, not_found())
        else:
            self._state.finish(
                call,
                m.Units(
                    units=selection.units(),
                    user=resolved.user,
                    rule=resolved.rule,
                    barrier=call.barrier,
                    next=selection.next,
                ),
            )

    def validate(self) -> None:
        for (partition, seq), (key, _) in self._writers.items():
            assert seq <= self._state.barrier.accepted(partition)
            call = self._state.calls.get(key)
            assert call is None or call.step in (Step.COMMIT, Step.KEEP), call
        committing = {
            c.key for c in self._state.calls.values() if c.step in (Step.COMMIT, Step.KEEP)
        }
        assert committing <= {key for key, _ in self._writers.values()}, (
            "each commit is known to its writer"
        )
        assert self._unanswered == Counter(channel for _, channel in self._writers.values())


def compact(hit: Hit) -> Hit:
    """A hit as search shows it: of a long unit the best chunk alone, so that a few long units
    never make a reply too long for its frame; ``read`` gives the whole."""
    if len(hit.unit.text) <= len(hit.chunk):
        return hit
    return msgspec.structs.replace(hit, unit=msgspec.structs.replace(hit.unit, text=hit.chunk))


def check_span(since: str | None, until: str | None) -> None:
    """Raise ``EINVAL`` where a bound is no time with a zone, or the span is empty."""
    low, high = check_time(since, "since"), check_time(until, "until")
    if low is not None and high is not None and low >= high:
        raise CallerError("since must lie before until", field="since")
