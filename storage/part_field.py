"""The indexed engine's field: the parts of one view side by side as one row of slots.

Built anew for each query from the view alone. Both legs first propose chunks, then score them
exactly, so that the answer is the one that the exhaustive engine gives (where a graph takes part:
all but surely), whatever else the store holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isovist.storage.codes import Query, shortlist
from isovist.storage.columns import Mask, Part
from isovist.storage.dense import Vector
from isovist.storage.fields import Place, Scores, Slots, one_a_text
from isovist.storage.forward import frequencies, table
from isovist.storage.inverted import Inverted
from isovist.storage.lexical import Floats, Lexical, Statistics
from isovist.storage.rough import Rough, cosines
from isovist.storage.snapshot import Snapshot
from isovist.storage.words import query_terms
from isovist.syscalls.operations import SearchQuery

FIRST = 100
"""Chunks asked of the shared index at first; four times as many each time they do not do."""


class Leg(Protocol):
    """The lexical leg of one query."""

    def found(self, depth: int) -> list[int]: ...

    def scores(self, slots: Sequence[int]) -> Scores: ...

    def coverage(self, slots: Sequence[int]) -> list[float]: ...


class PartField:
    """A :class:`~isovist.storage.fields.Field` over ``parts``, in the view's order.

    ``superseded`` holds, by place of a part, slots that a unit of another part hides, or one
    that may expire. A view of at most ``narrow`` chunks whose parts are all resident is answered
    from memory: beyond that the shared index is faster.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        query: SearchQuery,
        snapshot: Snapshot,
        inverted: Inverted,
        superseded: dict[int, list[int]],
        narrow: int,
    ) -> None:
        self.parts = parts
        self.snapshot = snapshot
        self.starts = np.zeros(len(parts), dtype=np.intp)
        self.size = 0
        for place, part in enumerate(parts):
            self.starts[place] = self.size
            self.size += part.n
        self.masks = [p.filter(query, superseded.get(at, ())) for at, p in enumerate(parts)]
        self._masked = any(mask is not None for mask in self.masks)
        self._known: dict[int, float] = {}
        """Cosines by slot: a field serves one query, so they are of one vector."""
        self._texts: dict[int, Hashable] = {}
        terms = query_terms(query.text)
        known = snapshot.tids(terms)
        # A term that no chunk of the store holds weighs as one that no chunk of the view holds.
        tids = [known.get(term, -1) for term in terms]
        if self.size <= narrow and all(part.resident and part.resident.ready() for part in parts):
            self._leg: Leg = _Narrow(self, tids)
        else:
            self._leg = _Wide(self, tids, query, inverted)

    # -- where a slot is

    def split(self, slots: NDArray[np.intp]) -> list[tuple[int, NDArray[np.intp]]]:
        """Which of ``slots`` (by their place among them) lie in which part."""
        if len(self.parts) == 1 or not len(slots):
            return [(0, np.arange(len(slots)))] if len(slots) else []
        place = np.searchsorted(self.starts, slots, side="right") - 1
        order = np.argsort(place, kind="stable")
        place = place[order]
        cuts = [0, *(np.flatnonzero(place[1:] != place[:-1]) + 1).tolist(), len(place)]
        return [(int(place[a]), order[a:b]) for a, b in itertools.pairwise(cuts)]

    def locate(self, slot: int) -> tuple[Part, int]:
        at = int(np.searchsorted(self.starts, slot, side="right")) - 1
        return self.parts[at], slot - int(self.starts[at])

    def gather(self, name: str, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """A column of the parts at ``slots``, which are few: each is looked at by itself."""
        place = np.searchsorted(self.starts, slots, side="right") - 1
        local = (slots - self.starts[place]).tolist()
        columns = {at: getattr(self.parts[at], name) for at in set(place.tolist())}
        found = [columns[at][slot] for at, slot in zip(place.tolist(), local, strict=True)]
        return np.array(found, dtype=np.int64)

    def allowed(self, slots: NDArray[np.intp]) -> Mask:
        """Which of these living slots may answer."""
        mask = np.ones(len(slots), dtype=np.bool_)
        if not self._masked:
            return mask
        for at, here in self.split(slots):
            own = self.masks[at]
            if own is not None:
                mask[here] = own[slots[here] - self.starts[at]]
        return mask

    # -- the field

    def texts(self, slots: Sequence[int]) -> Sequence[Hashable]:
        known = self._texts
        fresh = [slot for slot in slots if slot not in known]
        if fresh:
            hashes = self.gather("hash", np.array(fresh, dtype=np.intp)).tolist()
            known.update(zip(fresh, hashes, strict=True))
        return [known[slot] for slot in slots]

    def places(self, slots: Sequence[int]) -> Sequence[Place | None]:
        wanted = np.array(slots, dtype=np.intp)
        parts = np.searchsorted(self.starts, wanted, side="right").tolist()
        handles = self.gather("handle", wanted).tolist()
        rounds = self.gather("round", wanted).tolist()
        return [
            ((part, handle), number) if handle else None
            for part, handle, number in zip(parts, handles, rounds, strict=True)
        ]

    def beside(self, slots: Sequence[int], chunks: int) -> list[int]:
        wanted = np.array(slots, dtype=np.intp)
        found: list[NDArray[np.intp]] = []
        for at, here in self.split(wanted):
            part, start = self.parts[at], int(self.starts[at])
            local = part.beside(wanted[here] - start, chunks)
            found.append(local + start)
        if not found:
            return []
        near = np.concatenate(found)
        return _list(near[self.allowed(near)])

    def order(self, slots: Slots, scores: Scores) -> list[int]:
        if len(slots) < 2:
            return _list(slots)
        by_score = np.argsort(-scores, kind="stable")
        ranked = scores[by_score]
        if bool((ranked[1:] == ranked[:-1]).any()):
            part = np.searchsorted(self.starts, slots, side="right")
            number, seq = self.gather("number", slots), self.gather("seq", slots)
            by_score = np.lexsort((number, -seq, part, -scores))
        return _list(slots[by_score])

    def found(self, depth: int) -> list[int]:
        return self._leg.found(depth)

    def scores(self, slots: Sequence[int]) -> Scores:
        return self._leg.scores(slots)

    def coverage(self, slots: Sequence[int]) -> list[float]:
        return self._leg.coverage(slots)

    def near(self, vector: Vector, depth: int) -> list[int]:
        query = Query(vector)
        count = depth
        while True:
            rough = Rough(self, vector, query, count)
            near = rough.slots(shortlist(rough.values, count, rough.margin))
            ranked = self.order(near, self.cosines(vector, _list(near)))
            # Beyond the first ``count`` the order may have gaps, unless all are here.
            complete = rough.whole and (count >= len(rough.values) or len(near) < count)
            best = one_a_text(self, ranked if complete else ranked[:count], depth)
            if len(best) == depth or complete:
                return best
            count *= 4

    def cosines(self, vector: Vector, slots: Sequence[int]) -> Scores:
        known = self._known
        fresh = [slot for slot in slots if slot not in known]
        if fresh:
            known.update(zip(fresh, cosines(self, vector, fresh).tolist(), strict=True))
        return np.array([known[slot] for slot in slots], dtype=np.float64)


class _Held:
    """A resident part as the lexical leg reads it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.count, self.total, self.lengths = part.count, part.total, part.length[: part.n]

    def find_all(self, terms: Sequence[int]) -> list[tuple[int, NDArray[np.int64]]]:
        resident = self._part.resident
        assert resident is not None
        return resident.find_all(terms, self._part.alive)


class _Narrow:
    """A view whose postings are all in memory: every chunk that holds a term is scored."""

    def __init__(self, field: PartField, tids: Sequence[int]) -> None:
        self._field = field
        parts = [(int(at), _Held(part)) for at, part in zip(field.starts, field.parts, strict=True)]
        self._lexical: Lexical[int] = Lexical(parts, field.size, tids)
        self._scores = self._lexical.scores()

    def found(self, depth: int) -> list[int]:
        found = np.flatnonzero(self._scores)
        found = found[self._field.allowed(found)]
        values = self._scores[found]
        count = depth
        while True:
            if count < len(found):
                cut = np.partition(values, len(found) - count)[len(found) - count]
                keep = values >= cut
                ranked = self._field.order(found[keep], values[keep])
            else:
                ranked = self._field.order(found, values)
            best = one_a_text(self._field, ranked, depth)
            if len(best) == depth or count >= len(found):
                return best
            count *= 4

    def scores(self, slots: Sequence[int]) -> Scores:
        return self._scores[list(slots)]

    def coverage(self, slots: Sequence[int]) -> list[float]:
        return self._lexical.coverage(slots)


class _Wide:
    """Any view: the shared index proposes chunks, and says how well those that it kept back can
    score at most; chunks that it does not hold yet are scored all.

    Invariant: statistics are sums over the view's partitions, read at one snapshot, so what is
    deleted, or outside the view, counts nowhere.
    """

    def __init__(
        self, field: PartField, tids: Sequence[int], query: SearchQuery, inverted: Inverted
    ) -> None:
        self._field = field
        self._tids = tids
        self._inverted = inverted
        self._said = (query.since, query.until)
        self._places = {part.pid: at for at, part in enumerate(field.parts)}
        pids = list(self._places)
        known = [tid for tid in tids if tid >= 0]
        sums = field.snapshot.frequencies(known, pids) if known and pids else {}
        self._statistics = Statistics(
            sum(part.count for part in field.parts),
            sum(part.total for part in field.parts),
            [sums.get(tid, 0) for tid in tids],
        )
        self._scored: dict[int, tuple[float, float]] = {}
        """By slot: its score, and the share of the query's mass that it holds."""

    def found(self, depth: int) -> list[int]:
        field = self._field
        fresh = self._fresh()
        terms = [
            (tid, weight)
            for tid, weight in zip(self._tids, self._statistics.weights, strict=True)
            if tid >= 0
        ]
        count = FIRST
        while True:
            candidates = self._inverted.candidates(
                list(self._places),
                terms,
                average=self._statistics.average,
                count=count,
                said=self._said,
            )
            proposed = self._slots(candidates.rows, candidates.pids)
            slots = np.unique(np.concatenate((fresh, proposed)))
            slots = slots[field.allowed(slots)]
            scores = self.scores(_list(slots))
            best = one_a_text(field, field.order(slots[scores > 0], scores[scores > 0]), depth)
            if not candidates.ceiling:
                return best
            if len(best) == depth and self._scored[best[-1]][0] > candidates.ceiling:
                return best
            count *= 4

    def scores(self, slots: Sequence[int]) -> Scores:
        self._score([slot for slot in slots if slot not in self._scored])
        return np.array([self._scored[slot][0] for slot in slots], dtype=np.float64)

    def coverage(self, slots: Sequence[int]) -> list[float]:
        self._score([slot for slot in slots if slot not in self._scored])
        return [self._scored[slot][1] for slot in slots]

    def _score(self, slots: Sequence[int]) -> None:
        if not slots:
            return
        array = np.array(slots, dtype=np.intp)
        rows = self._field.gather("row", array)
        counts = frequencies(self._field.snapshot.forward(rows.tolist()), self._tids)
        lengths: Floats = self._field.gather("length", array).astype(np.float64)
        scores = self._statistics.score(counts, lengths)
        held = self._statistics.held(counts)
        self._scored.update(zip(slots, zip(scores.tolist(), held, strict=True), strict=True))

    def _fresh(self) -> NDArray[np.intp]:
        """The slots of the delta that hold a term of the query, scored."""
        field = self._field
        tids: list[NDArray[np.uint32]] = []
        counts: list[NDArray[np.uint16]] = []
        holders: list[NDArray[np.int32]] = []
        places: list[NDArray[np.intp]] = []
        size = 0
        for start, part in zip(field.starts, field.parts, strict=True):
            if part.delta is not None and len(part.delta):
                terms, tfs, at = part.delta.entries()
                tids.append(terms)
                counts.append(tfs)
                holders.append(at + np.int32(size))
                places.append(np.array(part.delta.slots, dtype=np.intp) + start)
                size += len(part.delta.slots)
        if not size:
            return np.zeros(0, np.intp)
        joined = np.concatenate(tids), np.concatenate(counts), np.concatenate(holders)
        whole = table(*joined, size, self._tids)
        found = np.flatnonzero(whole.any(axis=1))
        fresh: NDArray[np.intp] = np.concatenate(places)[found]
        lengths: Floats = field.gather("length", fresh).astype(np.float64)
        scores = self._statistics.score(whole[found], lengths)
        held = self._statistics.held(whole[found])
        self._scored.update(zip(_list(fresh), zip(scores.tolist(), held, strict=True), strict=True))
        return fresh

    def _slots(self, rows: NDArray[np.int64], pids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Where proposed chunks are; those that the view holds no more are left out."""
        found: list[NDArray[np.intp]] = []
        for pid in np.unique(pids).tolist():
            at = self._places[pid]
            here = self._field.parts[at].find(rows[pids == pid])
            found.append(here[here >= 0] + self._field.starts[at])
        return np.concatenate(found) if found else np.zeros(0, np.intp)


def _list(slots: Slots) -> list[int]:
    numbers: list[int] = slots.tolist()
    return numbers
