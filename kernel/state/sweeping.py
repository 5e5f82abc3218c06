"""Sweeping: what has expired goes for good, by the door through which all that is forgotten goes.

A unit whose ``expires_at`` has passed answers nothing more, but it still counts in the word
statistics of its partition and its text is on disk. So the kernel removes it, with a number of its
partition like any other write, and has the files scrubbed; nobody asked for that, so there is no
receipt. Batches are small and one at a time: writes of others go in between.

A unit may be given more time while its removal is on its way. The store decides, in the one
transaction: it removes what has expired by the removal's own time, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Expire, Lapsed, Op, Outcome, Put
from isovist.syscalls.records import Barrier, Injected, Partition

if TYPE_CHECKING:
    from isovist.kernel.state.core import State

BATCH = 32
"""Units that go together: what the writer flushes at once."""
AGAIN, LATEST = 1_000_000_000, 60_000_000_000
"""Nanoseconds until a batch that the disk refused is tried again, doubled each time up to the
second."""
NEVER = (1 << 63) - 1


class Sweeping:
    """Invariants: no unit that is visible expires before ``_soonest`` (ns since 1970 UTC), but
    those that a look or a batch under way is about; at most one look or one batch is under way;
    ``_batch`` holds all and only the removals not yet answered."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._soonest = NEVER
        self._looks = 0
        self._looking = False
        self._batch: dict[tuple[Partition, int], Lapsed] = {}
        self._gone: list[tuple[Partition, int, Lapsed]] = []
        self._refused = False
        self._not_before = 0
        self._pause = AGAIN
        self._armed = NEVER
        """When the earliest timer that was set fires (virtual ns)."""

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.Lapsed: self._found}

    # -- when

    def note(self, op: Op) -> None:
        """A write is visible: its unit may expire sooner than all others."""
        if isinstance(op, Put | Expire) and op.expires_at is not None:
            self._soonest = min(self._soonest, op.expires_at)
            self._look()

    def woken(self) -> None:
        if self._armed <= self._state.now:
            self._armed = NEVER
        self._look()

    def clock_set(self) -> None:
        """The calendar may have moved; where it went back, the timer that is set finds out."""
        if self._soonest <= self._state.calendar():
            self._look()

    def _look(self) -> None:
        """Ask the store for what is due, or be woken when it is."""
        if self._looking or self._batch or self._soonest == NEVER:
            return
        now = self._state.now
        at = max(now + self._soonest - self._state.calendar(), self._not_before)
        if at <= now:
            self._looking, self._soonest = True, NEVER
            self._looks += 1
            self._state.emit(ins.FindLapsed(self._looks, self._state.calendar(), BATCH))
        elif at < self._armed:
            self._armed = at
            self._state.timer(at, 0, "sweep")

    # -- what

    def _found(self, event: ev.Lapsed) -> None:
        """The store's answer, or its first word at a start, when nobody has asked yet."""
        if event.soonest is not None:
            self._soonest = min(self._soonest, event.soonest)
        if self._looking and event.look == self._looks:
            self._looking = False
            for unit in event.units:
                seq = self._state.barrier.accept(unit.partition)
                self._batch[unit.partition, seq] = unit
                self._state.memory.hand_out_own(
                    Drop(
                        partition=unit.partition,
                        seq=seq,
                        id=unit.id,
                        stored_at=self._state.calendar(),
                        expired=True,
                    ),
                    self.answered,
                )
        self._look()

    def answered(self, outcome: Outcome) -> None:
        """One removal has come to its end; the last one of a batch ends that."""
        op = outcome.op
        unit = self._batch.pop((op.partition, op.seq))
        if not outcome.errno:
            self._gone.append((op.partition, op.seq, unit))
        elif outcome.errno == Errno.ESTALE:
            # It has moved, or was given more time: another look tells.
            self._soonest = min(self._soonest, self._state.calendar())
        elif outcome.errno != Errno.ENOENT:
            self._refused = True
        if self._batch:
            return
        if self._gone:
            self._state.forgetting.left(unit.id for *_, unit in self._gone)
            self._tell()
        if self._refused:
            self._soonest = min(self._soonest, self._state.calendar())
            self._not_before = self._state.now + self._pause
            self._pause = min(2 * self._pause, LATEST)
        else:
            self._pause = AGAIN
        self._refused = False
        self._look()

    def _tell(self) -> None:
        """Leave a record of the batch: the kernel's own doing, for the operator's eyes."""
        gone, self._gone = self._gone, []
        call = self._state.opaque("c", self._state.boot, "sweep", self._looks)
        units = tuple(
            Injected(
                unit=unit.id,
                version=unit.version,
                owner=unit.agent,
                scope=partition.scope,
                kind=unit.kind,
                tokens=0,
                score=0.0,
                hash="",
            )
            for partition, _, unit in gone
        )
        record = m.Record(
            call=call,
            syscall="expired",
            agent="",
            user="",
            rule="kernel",
            at=self._state.calendar(),
            barrier=Barrier(state="ready"),
            sequences=tuple((partition.scope, seq) for partition, seq, _ in gone),
            units=units,
        )
        self._state.emit(ins.Audit(record))
        self._state.emit(ins.Swept(call, len(units)))

    def validate(self) -> None:
        assert not (self._looking and self._batch), "one look or one batch"
        assert len(self._batch) <= BATCH
        assert self._batch or not self._gone, "a batch that is over is told of"
