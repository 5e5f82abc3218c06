"""The memory syscalls: who is asked for, which audience, which order, and when to answer.

Writes: checked, given a number in their partition, committed, visible, acknowledged. Reads:
resolved, given a view, held at the barrier, retrieved. The text itself is never looked at here
beyond its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.views import view_of
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError, error
from isovist.syscalls.names import (
    check_kinds,
    check_meta,
    check_name,
    check_text,
    check_time,
)
from isovist.syscalls.operations import (
    Drop,
    ListQuery,
    Op,
    Put,
    Query,
    ReadQuery,
    Replace,
    SearchQuery,
    Vectors,
)
from isovist.syscalls.records import (
    LEGS,
    SCOPES,
    Barrier,
    Hit,
    Leg,
    Partition,
    Reader,
    partition_of,
)

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MAX_QUERY = 8 * 1024
"""Bytes of a query; a longer user turn is cut for retrieval, a longer search is refused."""


class Memory:
    """Invariants: ``_writers`` maps all and only the writes handed out and not yet answered to
    their calls, ended ones included; ``_unanswered`` counts them by channel."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._writers: dict[tuple[Partition, int], tuple[int, int]] = {}
        self._unanswered: Counter[int] = Counter()

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.Remember: self._remember,
            m.Search: self._search,
            m.Read: self._read,
            m.MemoryList: self._list,
            m.Update: self._change,
            m.Forget: self._change,
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
        scope, note = self._scope(channel, request)
        self._check_room(channel)
        call = self._state.open(channel, frame, request, resolved)
        call.note = note
        self.put(
            call,
            partition_of(scope, resolved.user, call.agent),
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
        call.to(Step.COMMIT, self._state.now, scope)

    def put(
        self, call: Call, partition: Partition, *, said_at: int | None = None, **fields: Any
    ) -> None:
        """Accept a new unit of ``call``: from here on readers wait for it."""
        if call.resolved is None:
            raise KernelError("a write without an owner", story=call.told())
        seq = self._state.barrier.accept(partition)
        now = self._state.calendar()
        call.put = Put(
            partition=partition,
            seq=seq,
            id=self._state.opaque("u", partition, seq),
            agent=call.agent,
            user=call.resolved.user,
            said_at=now if said_at is None else said_at,
            stored_at=now,
            **fields,
        )
        self._hand_out(call, call.put)

    def _hand_out(self, call: Call, op: Op) -> None:
        self._writers[op.partition, op.seq] = call.key, call.channel
        self._unanswered[call.channel] += 1
        self._state.emit(ins.Commit(op))

    def _answered(self, op: Op) -> int:
        """The key of the call that wrote ``op``; 0 where that is answered already."""
        key, channel = self._writers.pop((op.partition, op.seq), (0, 0))
        if key:
            self._unanswered[channel] -= 1
            if not self._unanswered[channel]:
                del self._unanswered[channel]
        return key

    def _check_room(self, channel: Channel) -> None:
        """A write that was cancelled still counts until it is on disk: else a slow disk and an
        agent that cancels would fill the memory. Raises ``EAGAIN``."""
        limit = self._state.limits.calls
        if self._unanswered[channel.number] >= limit:
            raise CallerError(f"{limit} writes wait for the disk, the limit", errno=Errno.EAGAIN)

    def _scope(self, channel: Channel, request: m.Remember) -> tuple[str, str]:
        """The audience of a new unit. Whatever is missing, unknown or not granted is private,
        and the second value says why (promise ``private.default``)."""
        scope = request.scope
        if scope is None:
            return "pair", ""
        if scope not in SCOPES:
            return "pair", "unknown scope, stored as private"
        if not self._state.users.may_publish(channel.who, scope):
            return "pair", f"no grant to publish to {scope} scope, stored as private"
        if scope in ("agent", "global") and request.stream != "reusable":
            # Only a reusable unit may reach other users (promise protected.stays).
            return "pair", f"the protected stream cannot reach {scope} scope, stored as private"
        return scope, ""

    def _change(self, channel: Channel, frame: int, request: m.Update | m.Forget) -> None:
        """Update and forget begin alike: find the unit inside the view, then see whose it is.

        The shell answers this ``Retrieve`` at once, before it takes the next request, so that the
        change has its number, and readers wait for it, as soon as its request was taken.
        """
        if isinstance(request, m.Update):
            check_text(request.text)
            if request.version < 1:
                raise CallerError("version must be at least 1", field="version")
        resolved = self._state.users.resolve(channel.who, request.user)
        self._check_room(channel)
        call = self._state.open(channel, frame, request, resolved)
        call.view = view_of(Reader(resolved.user, call.agent))
        call.to(Step.LOCATE, self._state.now)
        query = ReadQuery(id=request.id, now=self._state.calendar())
        self._state.emit(ins.Retrieve(call.key, call.view, query))

    def _located(self, call: Call, event: ev.Retrieved) -> None:
        request = call.request
        if call.resolved is None or not isinstance(request, m.Update | m.Forget):
            raise KernelError("located for nobody", story=call.told())
        if not event.selection.candidates:
            self._state.fail(call, not_found())
            return
        found = event.selection.candidates[0]
        if (found.owner_user, found.owner_agent) != (call.resolved.user, call.agent):
            self._state.fail(
                call, error(Errno.EPERM, "the unit belongs to another user or agent", "id")
            )
            return
        channel = self._state.channels[call.channel]
        scope = found.partition.scope
        if isinstance(request, m.Update) and not self._state.users.may_publish(channel.who, scope):
            # A grant that was taken away ends what it allowed, new words in an old unit included.
            self._state.fail(
                call, error(Errno.EPERM, f"no grant to publish to {scope} scope", "id")
            )
            return
        seq = self._state.barrier.accept(found.partition)
        op: Op
        if isinstance(request, m.Update):
            op = Replace(
                partition=found.partition,
                seq=seq,
                id=request.id,
                version=request.version,
                text=check_text(request.text),
                stored_at=self._state.calendar(),
            )
        else:
            op = Drop(partition=found.partition, seq=seq, id=request.id)
        call.to(Step.COMMIT, self._state.now, found.hit.unit.scope)
        self._hand_out(call, op)

    def _committed(self, event: ev.Committed) -> None:
        outcome = event.outcome
        op = outcome.op
        if isinstance(op, Vectors):
            self._embedded(op, failed=False)
            return
        key = self._answered(op)
        if not key:
            return
        if not outcome.duplicate:
            self._state.barrier.written(op.partition, outcome.id, op.seq, bool(outcome.chunks))
        # Visible first, then acknowledged: whoever hears of the write can already find it.
        self._show(op, ("lexical",) if outcome.chunks else LEGS)
        call = self._state.calls.get(key)
        if call is None or call.resolved is None:
            return
        if call.step is Step.KEEP:
            self._state.chats.kept(call, outcome.id)
        elif isinstance(op, Drop):
            who = call.resolved
            self._state.finish(call, m.Forgotten(id=op.id, user=who.user, rule=who.rule))
        else:
            self._state.finish(
                call,
                m.Stored(
                    id=outcome.id,
                    version=outcome.version,
                    scope=op.partition.scope,
                    user=call.resolved.user,
                    rule=call.resolved.rule,
                    duplicate=outcome.duplicate,
                    note=call.note,
                ),
            )

    def _write_failed(self, event: ev.WriteFailed) -> None:
        op = event.outcome.op
        if isinstance(op, Vectors):
            self._embedded(op, failed=True)
            return
        key = self._answered(op)
        if not key:
            return
        # The number is void: it is visible as nothing, so nobody waits for it.
        self._show(op, LEGS)
        call = self._state.calls.get(key)
        if call is None:
            return
        if call.step is Step.KEEP:
            self._state.chats.kept(call, "")
        else:
            self._state.fail(call, error(event.outcome.errno, event.outcome.message))

    def _embedded(self, op: Vectors, failed: bool) -> None:
        self._state.barrier.embedded(op.partition, op.id, op.seq, failed)
        self._show(op, ("dense",))

    def _show(self, op: Op, legs: tuple[Leg, ...]) -> None:
        for key in self._state.barrier.show(op.partition, op.seq, legs):
            self._leave_barrier(self._state.calls[key])

    # -- reads

    def _search(self, channel: Channel, frame: int, request: m.Search) -> None:
        check_text(request.query, "query", MAX_QUERY)
        if not 1 <= request.k <= 100:
            raise CallerError("k must be 1 to 100", field="k")
        check_kinds(request.kinds)
        since = check_time(request.since, "since")
        until = check_time(request.until, "until")
        if since is not None and until is not None and since >= until:
            raise CallerError("since must lie before until", field="since")
        self.hold(self.enter(channel, frame, request), request.wait, request.barrier_ms)

    def _read(self, channel: Channel, frame: int, request: m.Read) -> None:
        self.hold(self.enter(channel, frame, request), "lexical", request.barrier_ms)

    def _list(self, channel: Channel, frame: int, request: m.MemoryList) -> None:
        if not 1 <= request.limit <= 500:
            raise CallerError("limit must be 1 to 500", field="limit")
        check_kinds(request.kinds)
        self.hold(self.enter(channel, frame, request), "lexical", request.barrier_ms)

    def enter(
        self, channel: Channel, frame: int, request: m.Search | m.Read | m.MemoryList | m.Chat
    ) -> Call:
        """Resolve the reader, mint its view and note what is accepted in it, all on arrival."""
        if not 0 <= request.barrier_ms <= 60_000:
            raise CallerError("barrier_ms must be 0 to 60000", field="barrier_ms")
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.id = self._state.opaque("c", self._state.boot, call.key)
        call.view = view_of(Reader(resolved.user, call.agent))
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
        legs = LEGS if isinstance(call.request, m.Search | m.Chat) else call.legs
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
        if call.view is None:
            raise KernelError("a read without a view", story=call.told())
        call.to(Step.RETRIEVE, self._state.now)
        self._state.emit(ins.Retrieve(call.key, call.view, query))

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
        return self._state.chats.query(call, now)

    def _retrieved(self, event: ev.Retrieved) -> None:
        call = self._state.calls.get(event.key)
        if call is None or call.step not in (Step.RETRIEVE, Step.LOCATE):
            return
        if call.step is Step.LOCATE:
            self._located(call, event)
            return
        if event.lagging:
            lagging = tuple(sorted({*call.barrier.lagging, *event.lagging}))
            if not self._fresh_enough(call, call.barrier.waited_ms, lagging):
                return
        call.selection = event.selection
        if isinstance(call.request, m.Chat):
            self._state.chats.render(call)
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


def not_found() -> CallerError:
    """The same words whether the unit never was, is gone, or lies outside the view."""
    return CallerError("no unit of that id in view", errno=Errno.ENOENT, field="id")
