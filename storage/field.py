"""What one query looks at: the view's shelves laid side by side as one row of slots.

Built anew for each query from the view alone, so nothing of another view can show through.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isovist.storage.dense import Vector, exact, shortlist
from isovist.storage.lexical import Lexical
from isovist.storage.partitions import Shelf, Stored
from isovist.syscalls.operations import SearchQuery

Slots = NDArray[np.intp]
Scores = NDArray[np.float64]


class Field:
    """The slots of the shelves that hold any, in the view's order; slot numbers are the row's.

    Invariant: every order given out is by score, then the place of the partition in the view,
    then newest sequence, then chunk: a total order that no slot number enters.
    """

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self.shelves = [shelf for shelf in shelves if len(shelf)]
        self._starts: list[int] = []
        self.size = 0
        for shelf in self.shelves:
            self._starts.append(self.size)
            self.size += len(shelf)

    def locate(self, slot: int) -> tuple[int, int]:
        """Which shelf, and which slot of it."""
        part = bisect_right(self._starts, slot) - 1
        return part, slot - self._starts[part]

    def holder(self, slot: int) -> Stored:
        part, local = self.locate(slot)
        stored = self.shelves[part].holders[local]
        assert stored is not None, "a free slot has no score"
        return stored

    def lexical(self, terms: Sequence[str]) -> Lexical:
        parts = [(at, s.postings) for at, s in zip(self._starts, self.shelves, strict=True)]
        return Lexical(parts, self.size, terms)

    def order(self, slots: Slots, scores: Scores) -> list[int]:
        """``slots`` best first; ``scores`` are theirs."""
        if len(slots) < 2:
            return _list(slots)
        by_score = np.argsort(-scores, kind="stable")
        ranked = scores[by_score]
        if bool((ranked[1:] == ranked[:-1]).any()):
            part = np.searchsorted(self._starts, slots, side="right")
            chunk, seq = self._column("chunk")[slots], self._column("seq")[slots]
            by_score = np.lexsort((chunk, -seq, part, -scores))
        return _list(slots[by_score])

    def best(self, scores: Scores, allowed: NDArray[np.bool_] | None, depth: int) -> list[int]:
        """The lexically best chunks of the ``depth`` best distinct texts, best first."""
        found = np.flatnonzero(scores if allowed is None else scores * allowed)
        values = scores[found]
        count = depth
        while True:
            if count < len(found):
                cut = np.partition(values, len(found) - count)[len(found) - count]
                keep = values >= cut
                ranked = self.order(found[keep], values[keep])
            else:
                ranked = self.order(found, values)
            distinct = self.distinct(ranked, depth)
            if len(distinct) == depth or count >= len(found):
                return distinct
            count *= 4

    def nearest(
        self, query: Vector, allowed: NDArray[np.bool_] | None, depth: int
    ) -> tuple[list[int], dict[int, float]]:
        """The nearest chunks of the ``depth`` nearest distinct texts, best first, and the exact
        cosines of these and of others that came near."""
        rough = np.empty(self.size, dtype=np.float32)
        for at, shelf in zip(self._starts, self.shelves, strict=True):
            shelf.matrix.scan(query, rough[at : at + len(shelf)])
        if allowed is not None:
            rough[~allowed] = -np.inf
        count = depth
        while True:
            near = shortlist(rough, count, len(query))
            cosines = self.cosines(query, near)
            ranked = self.order(near, cosines)
            # Beyond the first ``count`` the order may have gaps, unless all are here.
            complete = count >= self.size or len(near) < count
            distinct = self.distinct(ranked if complete else ranked[:count], depth)
            if len(distinct) == depth or complete:
                return distinct, dict(zip(near.tolist(), cosines.tolist(), strict=True))
            count *= 4

    def cosines(self, query: Vector, slots: Slots) -> Scores:
        """Exact cosines of ascending ``slots``; −inf where there is no vector yet."""
        ends = np.searchsorted(slots, [*self._starts[1:], self.size]).tolist()
        rows = np.empty((len(slots), len(query)), dtype=np.float32)
        there = np.empty(len(slots), dtype=np.bool_)
        low = 0
        for at, shelf, high in zip(self._starts, self.shelves, ends, strict=True):
            if low < high:
                there[low:high] = shelf.matrix.gather(slots[low:high] - at, rows[low:high])
            low = high
        values = exact(rows, query).astype(np.float64)
        values[~there] = -np.inf
        return values

    def distinct(self, ranked: Iterable[int], limit: int) -> list[int]:
        """The first chunk of each of the first ``limit`` distinct texts."""
        seen: set[str] = set()
        kept: list[int] = []
        starts, shelves = self._starts, self.shelves
        for slot in ranked:  # Field.holder, laid open: this is where a query's Python time goes
            part = bisect_right(starts, slot) - 1
            stored = shelves[part].holders[slot - starts[part]]
            if stored is not None and stored.hash not in seen:
                seen.add(stored.hash)
                kept.append(slot)
                if len(kept) == limit:
                    break
        return kept

    def allowed(self, query: SearchQuery) -> NDArray[np.bool_] | None:
        """Which slots may answer: not expired, not superseded in this view, in the asked times
        and kinds. ``None``: all that hold anything."""
        allowed: NDArray[np.bool_] | None = None
        if any(shelf.soonest <= query.now for shelf in self.shelves):
            allowed = self._column("expires") > query.now
        if any(shelf.hidden for shelf in self.shelves):
            allowed = _both(allowed, ~self._column("hidden"))
        if query.since is not None:
            allowed = _both(allowed, self._column("said") >= query.since)
        if query.until is not None:
            allowed = _both(allowed, self._column("said") < query.until)
        if query.kinds:
            matches = [
                np.isin(shelf.rows.kind[: len(shelf)], [shelf.kind(k) for k in query.kinds])
                for shelf in self.shelves
            ]
            allowed = _both(allowed, np.concatenate(matches) if matches else np.zeros(0, np.bool_))
        superseded = self._superseded_elsewhere(query.now)
        if superseded:
            allowed = np.ones(self.size, np.bool_) if allowed is None else allowed
            allowed[superseded] = False
        return allowed

    def _superseded_elsewhere(self, now: int) -> list[int]:
        """Slots of units superseded from another partition of the view, or by a unit that may
        expire; what a partition knows for good by itself is in its ``hidden`` marks."""
        slots: list[int] = []
        for shelf in self.shelves:
            for newer in shelf.wandering:
                if not newer.lives(now):
                    continue
                for at, other in zip(self._starts, self.shelves, strict=True):
                    older = other.units.get(newer.unit.supersedes)
                    if older is not None and newer.same_pair(older):
                        slots += (at + slot for slot in older.slots)
        return slots

    def _column(self, name: str) -> NDArray[Any]:
        """A column of ``Rows`` over the whole row of slots."""
        return np.concatenate([getattr(s.rows, name)[: len(s)] for s in self.shelves])


def _list(slots: Slots) -> list[int]:
    numbers: list[int] = slots.tolist()
    return numbers


def _both(a: NDArray[np.bool_] | None, b: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return b if a is None else a & b
