"""One partition of the store in memory: its units, and both legs' indexes over its chunks.

Each chunk has a *slot*, a small integer of this partition alone. What a slot's number is depends
on the partition's history; no answer does: order is taken from sequence numbers and chunk
numbers, never from slots.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec
import numpy as np

from isovist.storage.changes import NEVER
from isovist.storage.chunks import Span
from isovist.storage.dense import Matrix, Vector
from isovist.storage.lexical import Postings
from isovist.storage.pages import Entry
from isovist.syscalls.records import Partition, Unit

_seq = attrgetter("seq")


class Rows:
    """What filters and ties need of each slot, beside its unit, as growing columns."""

    __slots__ = ("chunk", "expires", "hidden", "kind", "said", "seq")

    def __init__(self) -> None:
        self.seq = np.zeros(16, dtype=np.int64)
        self.chunk = np.zeros(16, dtype=np.int64)
        self.said = np.zeros(16, dtype=np.int64)
        self.expires = np.zeros(16, dtype=np.int64)
        self.kind = np.zeros(16, dtype=np.int64)
        self.hidden = np.zeros(16, dtype=np.bool_)

    def set(self, slot: int, seq: int, chunk: int, said: int, expires: int, kind: int) -> None:
        if slot == len(self.seq):
            for name in self.__slots__:
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.seq[slot] = seq
        self.chunk[slot] = chunk
        self.said[slot] = said
        self.expires[slot] = expires
        self.kind[slot] = kind
        self.hidden[slot] = False


class Stored:
    """A unit in the index. ``unit`` is whole: it names the owner's user whoever that is."""

    __slots__ = ("born", "hash", "seq", "slots", "spans", "unit")

    def __init__(
        self, unit: Unit, seq: int, born: int, hash_: str, spans: tuple[Span, ...]
    ) -> None:
        self.unit = unit
        self.seq = seq
        self.born = born
        """When version 1 was stored: order that no update changes."""
        self.hash = hash_
        self.spans = spans
        self.slots: list[int] = []

    def lives(self, now: int) -> bool:
        expires = self.unit.expires_at
        return expires is None or expires > now

    def same_pair(self, other: Stored) -> bool:
        return self.unit.agent == other.unit.agent and self.unit.user == other.unit.user


class Shelf:
    """A partition's units and indexes.

    Invariants: ``holders[slot]`` is the unit whose chunk the slot holds, ``None`` for a free
    slot; ``order`` holds the same units as ``units``, in ascending sequence; ``rows.hidden``
    marks the chunks of each unit that a unit of this partition without expiry supersedes.
    """

    def __init__(self, key: Partition, dim: int) -> None:
        self.key = key
        self.units: dict[str, Stored] = {}
        self.order: list[Stored] = []
        self._rounds: dict[tuple[str, int], list[Stored]] = {}
        self.postings: Postings[str] = Postings()
        self.matrix = Matrix(dim)
        self.holders: list[Stored | None] = []
        self.rows = Rows()
        self.hidden = 0
        self.soonest = NEVER
        """No unit of this partition expires before this."""
        self.supersedes: dict[str, list[Stored]] = {}
        """By the id of the older unit: those of this partition that supersede it."""
        self.wandering: list[Stored] = []
        """Of those, the ones that a ``hidden`` mark does not cover: the older unit is in another
        partition, or the newer one may expire."""
        self._kinds: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """The number of slots, free ones included."""
        return len(self.holders)

    def add(self, stored: Stored, terms: list[dict[str, int]]) -> None:
        """Take in a unit, lexically, with the terms of each chunk."""
        unit = stored.unit
        self.units[unit.id] = stored
        insort(self.order, stored, key=_seq)
        self._place(stored, terms)
        if unit.handle and unit.round:
            self._rounds.setdefault((unit.handle, unit.round), []).append(stored)
        if unit.expires_at is not None:
            self.soonest = min(self.soonest, unit.expires_at)
        if unit.supersedes:
            self.supersedes.setdefault(unit.supersedes, []).append(stored)
            if unit.expires_at is not None or unit.supersedes not in self.units:
                self.wandering.append(stored)
            self._mark(unit.supersedes)
        if unit.id in self.supersedes:
            self._mark(unit.id)
        self._wander(unit.id)

    def replace(self, stored: Stored, unit: Unit, hash_: str, spans: tuple[Span, ...],
                terms: list[dict[str, int]]) -> None:  # fmt: skip
        """Give a unit of this partition a new version; its vectors are gone until they come."""
        self._clear(stored)
        stored.unit, stored.hash, stored.spans = unit, hash_, spans
        self._place(stored, terms)
        if unit.id in self.supersedes:
            self._mark(unit.id)

    def drop(self, stored: Stored) -> None:
        """Take a unit out of everything."""
        self._clear(stored)
        del self.units[stored.unit.id]
        place = (stored.unit.handle, stored.unit.round)
        if all(place):
            self._rounds[place].remove(stored)
            if not self._rounds[place]:
                del self._rounds[place]
        del self.order[self.order.index(stored, bisect_left(self.order, stored.seq, key=_seq))]
        older = stored.unit.supersedes
        if older:
            self.supersedes[older].remove(stored)
            if stored in self.wandering:
                self.wandering.remove(stored)
            if not self.supersedes[older]:
                del self.supersedes[older]
            self._mark(older)
        self._wander(stored.unit.id)

    def forget(self, stored: Stored) -> None:
        """Take a unit out for good: its heirs (``Outcome.heirs``) inherit what it superseded."""
        unit = stored.unit
        heirs = [
            newer
            for newer in self.supersedes.get(unit.id, ())
            if unit.supersedes and newer.same_pair(stored) and newer.unit.id != unit.supersedes
        ]
        self.drop(stored)
        for heir in heirs:
            self.supersedes[unit.id].remove(heir)
            heir.unit = msgspec.structs.replace(heir.unit, supersedes=unit.supersedes)
            self.supersedes.setdefault(unit.supersedes, []).append(heir)
        if heirs:
            if not self.supersedes[unit.id]:
                del self.supersedes[unit.id]
            self._wander(unit.supersedes)
            self._mark(unit.supersedes)

    def stands(self, newer: Stored, now: int) -> bool:
        """Whether ``newer`` still supersedes at ``now``: it has not expired, or one that will
        inherit from it has not. So a sweep changes nothing here."""
        seen, asked = {newer.unit.supersedes}, [newer]
        while asked:
            one = asked.pop()
            if one.lives(now):
                return True
            seen.add(one.unit.id)
            heirs = self.supersedes.get(one.unit.id, ())
            asked += [h for h in heirs if h.same_pair(one) and h.unit.id not in seen]
        return False

    def beside(self, unit: Unit) -> list[Stored]:
        """The units a round before or after ``unit``, in its session."""
        if not unit.handle or not unit.round:
            return []
        rounds = (unit.round - 1, unit.round + 1)
        return [s for number in rounds for s in self._rounds.get((unit.handle, number), ())]

    def take(self, stored: Stored) -> tuple[list[dict[str, int]], Vector | None]:
        """Take a unit out, and give what was indexed of it: the terms of each chunk, and one row
        of vectors a chunk where they are there."""
        terms = [self.postings.counts(slot) for slot in stored.slots]
        vectors = np.empty((len(stored.slots), self.matrix.dim), dtype=np.float32)
        there = self.matrix.gather(np.array(stored.slots, dtype=np.intp), vectors)
        self.drop(stored)
        return terms, vectors if there.all() else None

    def newest(self) -> int:
        """The highest sequence number of a unit that is held; 0 where none is."""
        return self.order[-1].seq if self.order else 0

    def down_from(self, seq: int, now: int, kinds: Sequence[str]) -> Iterator[Entry[Stored]]:
        """Units numbered ``seq`` or less that live at ``now`` and are of ``kinds`` (none: any),
        newest first."""
        for at in range(bisect_right(self.order, seq, key=_seq) - 1, -1, -1):
            stored = self.order[at]
            if stored.lives(now) and (not kinds or stored.unit.kind in kinds):
                yield Entry(stored.seq, stored.born, len(stored.unit.text.encode()), stored)

    def kind(self, name: str) -> int:
        """This partition's number for a kind; −1 for one that it never held."""
        return self._kinds.get(name, -1)

    def _place(self, stored: Stored, terms: list[dict[str, int]]) -> None:
        unit = stored.unit
        kind = self._kinds.setdefault(unit.kind, len(self._kinds))
        expires = NEVER if unit.expires_at is None else unit.expires_at
        for number, counts in enumerate(terms):
            if self._free:
                slot = self._free.pop()
                self.holders[slot] = stored
            else:
                slot = len(self.holders)
                self.holders.append(stored)
            stored.slots.append(slot)
            self.rows.set(slot, stored.seq, number, unit.said_at, expires, kind)
            self.postings.add(slot, counts)

    def _clear(self, stored: Stored) -> None:
        for slot in stored.slots:
            self.postings.remove(slot)
            self.matrix.clear(slot)
            self.hidden -= int(self.rows.hidden[slot])
            self.rows.set(slot, 0, 0, 0, 0, -1)
            self.holders[slot] = None
            self._free.append(slot)
        stored.slots = []

    def _wander(self, id_: str) -> None:
        """Sort out, as things now stand, which units that supersede ``id_`` its mark covers."""
        newer = self.supersedes.get(id_)
        if newer is None:
            return
        self.wandering = [one for one in self.wandering if one not in newer] + [
            one for one in newer if id_ not in self.units or one.unit.expires_at is not None
        ]

    def _mark(self, id_: str) -> None:
        """Set ``hidden`` on the chunks of unit ``id_``, as things now stand."""
        older = self.units.get(id_)
        if older is None:
            return
        hide = any(
            newer.unit.expires_at is None and newer.same_pair(older)
            for newer in self.supersedes.get(id_, ())
        )
        marks = self.rows.hidden
        self.hidden += len(older.slots) * hide - int(marks[older.slots].sum())
        marks[older.slots] = hide
