"""The judge's books on erasure: that a scrub is asked for when something is gone, and that a flush
reaches the drivers, after the last living prompt with it and before long (``erase.complete``)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TYPE_CHECKING

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.sim_world import SECOND
from isovist.syscalls import messages as m
from isovist.syscalls.operations import Drop
from isovist.syscalls.records import Partition

if TYPE_CHECKING:
    from isovist.kernel.state.sim_judge import Asked

PATIENCE = 60 * SECOND
"""Ns that a flush may wait for those who were given what is gone."""


class ErasureBooks:
    """Each method gives the rule that is broken, or an empty text."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[Asked, Set[str]]] = {}
        """By call: the units that each chat was given last."""
        self._told: set[tuple[Partition, int]] = set()
        """Removals of which the kernel was told; it may hear of one twice."""
        self._stale: set[int] = set()
        """Chats that were given what is gone since."""
        self._awaited: set[int] = set()
        """Those among them that the scrub at hand waits for."""
        self._due: int | None = None
        """When the flush must have come that a scrub waits for."""

    def given(self, key: int, asked: Asked, event: ev.Retrieved) -> None:
        if isinstance(asked.request, m.Chat):
            units = {candidate.hit.unit.id for candidate in event.selection.candidates}
            self._given[key] = asked, units

    def after(self, event: ev.Event, out: list[ins.Instruction]) -> str:
        gone = self._gone(event)
        if gone:
            if not any(isinstance(i, ins.Scrub) for i in out):
                return f"{sorted(gone)} are gone, and nothing is scrubbed"
            self._stale |= {
                k for k, (_, units) in self._given.items() if not gone.isdisjoint(units)
            }
        if isinstance(event, ev.Scrubbing):
            if self._due is None:
                self._due = event.now + PATIENCE
            self._awaited |= self._living(self._stale)
        if any(isinstance(i, ins.Flush) for i in out):
            self._due = None
            if living := self._living(self._awaited):
                return f"a flush while {sorted(living)} hold what is gone"
            self._awaited.clear()
        return self.late(event.now)

    def _living(self, keys: Iterable[int]) -> set[int]:
        living = ((key, self._given[key][0]) for key in keys)
        return {key for key, asked in living if not asked.answer and not asked.who.gone}

    def late(self, now: int) -> str:
        """A scrub waits for a flush longer than any of its reasons may last."""
        return "a scrub, and no flush of the drivers" if (self._due or now) < now else ""

    def drained(self) -> str:
        return "" if self._due is None else "a scrub that no flush of the drivers has followed"

    def _gone(self, event: ev.Event) -> set[str]:
        """Units that are in no view from this event on."""
        if isinstance(event, ev.Purged):
            return {outcome.id for outcome in event.outcomes}
        if not isinstance(event, ev.Committed) or not isinstance(event.outcome.op, Drop):
            return set()
        op = event.outcome.op
        if op.expired or (op.partition, op.seq) in self._told:
            return set()
        self._told.add((op.partition, op.seq))
        return {op.id}
