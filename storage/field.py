"""The oracle's field: the view's shelves laid side by side as one row of slots.

Built anew for each query from the view alone, so nothing of another view can show through.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isovist.storage.dense import Vector, exact, shortlist
from isovist.storage.fields import Place, Scores, Slots, one_a_text
from isovist.storage.lexical import Lexical
from isovist.storage.partitions import Shelf, Stored
from isovist.storage.words import query_terms
from isovist.syscalls.operations import SearchQuery


class ShelfField:
    """A :class:`~isovist.storage.fields.Field` over the shelves that hold any slot, in the
    view's order; exhaustive in both legs."""

    def __init__(self, shelves: Sequence[Shelf], query: SearchQuery) -> None:
        self.shelves = [shelf for shelf in shelves if len(shelf)]
        self._query = query
        self._starts: list[int] = []
        self.size = 0
        for shelf in self.shelves:
            self._starts.append(self.size)
            self.size += len(shelf)
        parts = [(at, s.postings) for at, s in zip(self._starts, self.shelves, strict=True)]
        self._lexical = Lexical(parts, self.size, query_terms(query.text))

    def locate(self, slot: int) -> tuple[int, int]:
        """Which shelf, and which slot of it."""
        part = bisect_right(self._starts, slot) - 1
        return part, slot - self._starts[part]

    def holder(self, slot: int) -> Stored:
        part, local = self.locate(slot)
        stored = self.shelves[part].holders[local]
        assert stored is not None, "a free slot has no score"
        return stored

    def texts(self, slots: Sequence[int]) -> Sequence[Hashable]:
        return [self.holder(slot).hash for slot in slots]

    def places(self, slots: Sequence[int]) -> Sequence[Place | None]:
        return [self._place(slot) for slot in slots]

    def _place(self, slot: int) -> Place | None:
        unit = self.holder(slot).unit
        return ((self.locate(slot)[0], unit.handle), unit.round) if unit.handle else None

    def beside(self, slots: Sequence[int], chunks: int) -> list[int]:
        found: dict[int, None] = {}
        for slot in slots:
            part, _ = self.locate(slot)
            for stored in self.shelves[part].beside(self.holder(slot).unit):
                found.update(dict.fromkeys(self._starts[part] + s for s in stored.slots[:chunks]))
        allowed = self._allowed
        return [slot for slot in found if allowed is None or allowed[slot]]

    def scores(self, slots: Sequence[int]) -> Scores:
        return self._scores[list(slots)]

    def coverage(self, slots: Sequence[int]) -> list[float]:
        return self._lexical.coverage(slots)

    def order(self, slots: Slots, scores: Scores) -> list[int]:
        if len(slots) < 2:
            return _list(slots)
        by_score = np.argsort(-scores, kind="stable")
        ranked = scores[by_score]
        if bool((ranked[1:] == ranked[:-1]).any()):
            part = np.searchsorted(self._starts, slots, side="right")
            chunk, seq = self._column("chunk")[slots], self._column("seq")[slots]
            by_score = np.lexsort((chunk, -seq, part, -scores))
        return _list(slots[by_score])

    def found(self, depth: int) -> list[int]:
        allowed = self._allowed
        scores = self._scores if allowed is None else self._scores * allowed
        found = np.flatnonzero(scores)
        values = scores[found]
        count = depth
        while True:
            if count < len(found):
                cut = np.partition(values, len(found) - count)[len(found) - count]
                keep = values >= cut
                ranked = self.order(found[keep], values[keep])
            else:
                ranked = self.order(found, values)
            best = one_a_text(self, ranked, depth)
            if len(best) == depth or count >= len(found):
                return best
            count *= 4

    def near(self, vector: Vector, depth: int) -> list[int]:
        rough = np.empty(self.size, dtype=np.float32)
        for at, shelf in zip(self._starts, self.shelves, strict=True):
            shelf.matrix.scan(vector, rough[at : at + len(shelf)])
        if self._allowed is not None:
            rough[~self._allowed] = -np.inf
        count = depth
        while True:
            near = shortlist(rough, count, len(vector))
            ranked = self.order(near, self.cosines(vector, _list(near)))
            # Beyond the first ``count`` the order may have gaps, unless all are here.
            complete = count >= self.size or len(near) < count
            best = one_a_text(self, ranked if complete else ranked[:count], depth)
            if len(best) == depth or complete:
                return best
            count *= 4

    def cosines(self, vector: Vector, slots: Sequence[int]) -> Scores:
        values = np.full(len(slots), -np.inf)
        wanted = np.array(slots, dtype=np.intp)
        part = np.searchsorted(self._starts, wanted, side="right") - 1
        for number in np.unique(part).tolist():
            here = np.flatnonzero(part == number)
            matrix = self.shelves[number].matrix
            rows = np.empty((len(here), len(vector)), dtype=np.float32)
            there = matrix.gather(wanted[here] - self._starts[number], rows)
            values[here[there]] = exact(rows[there], vector)
        return values

    @cached_property
    def _scores(self) -> Scores:
        return self._lexical.scores()

    @cached_property
    def _allowed(self) -> NDArray[np.bool_] | None:
        """Which slots may answer: not expired, not superseded in this view, in the asked times
        and kinds. ``None``: all that hold anything."""
        query = self._query
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
                if not shelf.stands(newer, now):
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
