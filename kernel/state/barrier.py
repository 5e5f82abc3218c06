"""The write barrier [K 3.4, eq. 3]: per partition, what is accepted and what each leg shows.

A reading call snapshots ``accepted`` over its view on arrival and may go on once every asked leg
of every partition has caught up with that snapshot. The snapshot is of sequence numbers, never
of owners, so an owner's older visible unit cannot stand in for its newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from isovist.syscalls.records import LEGS, Leg, Partition


class Watermark:
    """The largest ``n`` such that every number up to ``n`` has arrived, in whatever order.

    Invariant: ``early`` holds only numbers above ``value`` + 1, so it is bounded by the writes
    in flight.
    """

    __slots__ = ("early", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.early: set[int] = set()

    def add(self, number: int) -> None:
        if number <= self.value:
            return
        self.early.add(number)
        while self.value + 1 in self.early:
            self.value += 1
            self.early.remove(self.value)


class _Sequences:
    """One partition: numbers issued, and per leg the watermark and who waits for it.

    ``waiters`` are heaps of (number waited for, call); ``waiting`` counts their live entries.
    ``lacking`` maps units whose vectors are still to come to the write that needs them, ``lost``
    those whose vectors came to nothing.
    """

    __slots__ = ("accepted", "lacking", "lost", "visible", "waiters", "waiting")

    def __init__(self, accepted: int = 0) -> None:
        self.accepted = accepted
        self.visible: dict[Leg, Watermark] = {leg: Watermark(accepted) for leg in LEGS}
        self.waiters: dict[Leg, list[tuple[int, int]]] = {leg: [] for leg in LEGS}
        self.waiting: dict[Leg, int] = dict.fromkeys(LEGS, 0)
        self.lacking: dict[str, int] = {}
        self.lost: dict[str, int] = {}


class Barrier:
    """All partitions' sequences and the calls that wait on them.

    A call waits iff ``_missing`` holds it; the set there are the (partition, leg) pairs that have
    yet to catch up, and is never empty.
    """

    def __init__(self) -> None:
        self._partitions: dict[Partition, _Sequences] = {}
        self._missing: dict[int, set[tuple[Partition, Leg]]] = {}
        self.grouped: list[Partition] = []
        """All and only the partitions known here whose audience a group takes part in."""

    def _know(self, partition: Partition, accepted: int = 0) -> _Sequences:
        if "group" in (partition.users.kind, partition.agents.kind):
            self.grouped.append(partition)
        sequences = self._partitions[partition] = _Sequences(accepted)
        return sequences

    def restore(
        self, partition: Partition, accepted: int, lacking: Iterable[tuple[int, str]] = ()
    ) -> None:
        """A partition found on disk; ``lacking`` are the (number, unit) without vectors yet."""
        sequences = self._know(partition, accepted)
        sequences.lacking = {unit: number for number, unit in lacking}
        missing = set(sequences.lacking.values())
        if missing:
            dense = sequences.visible["dense"] = Watermark(min(missing) - 1)
            for number in range(dense.value + 1, accepted + 1):
                if number not in missing:
                    dense.add(number)

    def accept(self, partition: Partition) -> int:
        """Issue the next number of ``partition``: from now on readers wait for it."""
        sequences = self._partitions.get(partition) or self._know(partition)
        sequences.accepted += 1
        return sequences.accepted

    def show(self, partition: Partition, number: int, legs: Iterable[Leg]) -> list[int]:
        """``number`` is visible in ``legs`` (or void there); returns the calls set free."""
        sequences = self._partitions[partition]
        free: list[int] = []
        for leg in legs:
            mark = sequences.visible[leg]
            mark.add(number)
            waiters = sequences.waiters[leg]
            while waiters and waiters[0][0] <= mark.value:
                _, key = heappop(waiters)
                missing = self._missing.get(key)
                if missing is None or (partition, leg) not in missing:
                    continue  # it has left, or given this partition up
                missing.remove((partition, leg))
                sequences.waiting[leg] -= 1
                if not missing:
                    del self._missing[key]
                    free.append(key)
            self._sweep(partition, leg)
        return free

    def written(self, partition: Partition, unit: str, number: int, lacks: bool) -> None:
        """Write ``number`` is now the newest of ``unit``, which ``lacks`` vectors or needs none."""
        sequences = self._partitions[partition]
        sequences.lost.pop(unit, None)
        if lacks:
            sequences.lacking[unit] = number
        else:
            sequences.lacking.pop(unit, None)

    def embedded(self, partition: Partition, unit: str, number: int, failed: bool) -> None:
        """The vectors of write ``number`` are there, or came to nothing. A lost vector blocks
        nobody, but whoever asks for the dense leg is told (:meth:`behind`): the unit is stored
        and the leg lacks it. Says nothing where the unit has since been written anew."""
        sequences = self._partitions[partition]
        if sequences.lacking.get(unit) == number:
            del sequences.lacking[unit]
            if failed:
                sequences.lost[unit] = number

    def removed(self, partition: Partition, unit: str) -> None:
        """``unit`` is gone without a write of its own: it lacks no vectors any more."""
        sequences = self._partitions.get(partition)
        if sequences is not None:
            sequences.lacking.pop(unit, None)
            sequences.lost.pop(unit, None)

    def behind(
        self, legs: Iterable[Leg], snapshot: Iterable[tuple[Partition, int]]
    ) -> tuple[Leg, ...]:
        """Those of ``legs`` that do not hold all of ``snapshot``: (partition, accepted) pairs."""
        known = [(s, n) for p, n in snapshot if (s := self._partitions.get(p))]
        return tuple(
            leg
            for leg in legs
            if any(
                s.visible[leg].value < n
                or (leg == "dense" and s.lost and min(s.lost.values()) <= n)
                for s, n in known
            )
        )

    def accepted(self, partition: Partition) -> int:
        sequences = self._partitions.get(partition)
        return sequences.accepted if sequences else 0

    def wait(self, key: int, partitions: Iterable[Partition], legs: Iterable[Leg]) -> bool:
        """True iff call ``key`` must wait for what is accepted now in any of ``partitions``."""
        missing: set[tuple[Partition, Leg]] = set()
        for partition in partitions:
            sequences = self._partitions.get(partition)
            if sequences is None:
                continue
            for leg in legs:
                if sequences.visible[leg].value < sequences.accepted:
                    heappush(sequences.waiters[leg], (sequences.accepted, key))
                    sequences.waiting[leg] += 1
                    missing.add((partition, leg))
        if missing:
            self._missing[key] = missing
        return bool(missing)

    def leave(self, key: int) -> None:
        """Stop waiting (timeout, cancel, death)."""
        for partition, leg in self._missing.pop(key, ()):
            sequences = self._partitions[partition]
            sequences.waiting[leg] -= 1
            self._sweep(partition, leg)

    def give_up(self, key: int, partitions: Collection[Partition]) -> bool:
        """Call ``key`` waits for ``partitions`` no more; true iff that sets it free."""
        missing = self._missing.get(key)
        if missing is None:
            return False
        for partition, leg in [entry for entry in missing if entry[0] in partitions]:
            missing.discard((partition, leg))
            sequences = self._partitions[partition]
            sequences.waiting[leg] -= 1
            self._sweep(partition, leg)
        if not missing:
            del self._missing[key]
        return not missing

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition in which anything was ever accepted."""
        return tuple(self._partitions)

    def _sweep(self, partition: Partition, leg: Leg) -> None:
        """A heap keeps its dead entries only while there are few, or as many that live."""
        sequences = self._partitions[partition]
        waiters, live = sequences.waiters[leg], sequences.waiting[leg]
        if len(waiters) - live > max(64, live):
            entry = partition, leg
            waiters[:] = sorted(w for w in waiters if entry in self._missing.get(w[1], ()))

    def waiting(self) -> frozenset[int]:
        return frozenset(self._missing)

    def validate(self) -> None:
        for partition, sequences in self._partitions.items():
            for leg, mark in sequences.visible.items():
                assert 0 <= mark.value <= sequences.accepted, (partition, leg)
                assert all(mark.value + 1 < n <= sequences.accepted for n in mark.early)
                waiters = sequences.waiters[leg]
                live = [n for n, k in waiters if (partition, leg) in self._missing.get(k, ())]
                assert all(number > mark.value for number in live), (partition, leg)
                assert len(live) == sequences.waiting[leg], (partition, leg)
                assert len(waiters) - len(live) <= max(64, len(live)), (partition, leg)
        assert all(self._missing.values())
        assert self.grouped == [
            p for p in self._partitions if "group" in (p.users.kind, p.agents.kind)
        ]
