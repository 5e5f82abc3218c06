"""The indexed engine's field: the parts of one view side by side as one row of slots.

Built anew for each query from the view alone. Both legs first propose chunks, then score them
exactly, so that the answer is the one that the exhaustive engine gives (where a graph takes part:
all but surely), whatever else the store holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor, Future
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isovist.storage.codes import Query, shortlist
from isovist.storage.columns import Mask, Part
from isovist.storage.dense import Vector
from isovist.storage.fields import Place, Scores, Slots, one_a_text
from isovist.storage.forward import frequencies, table
from isovist.storage.frame import Frame
from isovist.storage.inverted import Candidates, Inverted
from isovist.storage.lexical import Floats, Lexical, Statistics
from isovist.storage.resident import NOBODY
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
    """A :class:`~isovist.storage.fields.Field` over the parts of ``frame``.

    ``superseded`` holds, by place of a part, slots that a unit of another part hides, or one
    that may expire. A view of at most ``narrow`` chunks whose parts are all resident is answered
    from memory: beyond that the shared index is faster; it is asked by a thread of ``ahead``,
    while this one sees to the dense leg.
    """

    def __init__(
        self,
        frame: Frame,
        query: SearchQuery,
        snapshot: Snapshot,
        inverted: Inverted,
        superseded: dict[int, list[int]],
        narrow: int,
        ahead: Executor | None = None,
    ) -> None:
        self.frame = frame
        self.ahead = ahead
        self.parts, self.starts, self.size = frame.parts, frame.starts, frame.size
        self.snapshot = snapshot
        self.masks = frame.masks(query, superseded)
        self._masked = any(mask is not None for mask in self.masks)
        self._known: dict[int, float] = {}
        """Cosines by slot: a field serves one query, so they are of one vector."""
        self._texts: dict[int, Hashable] = {}
        self.nearest: list[int] = []
        """What :meth:`near` has found."""
        terms = query_terms(query.text)
        known = snapshot.tids(terms)
        # A term that no chunk of the store holds weighs as one that no chunk of the view holds.
        tids = [known.get(term, -1) for term in terms]
        parts = self.parts
        if self.size <= narrow and all(part.resident and part.resident.ready() for part in parts):
            self._leg: Leg = _Narrow(self, tids)
        else:
            self._leg = _Wide(self, tids, query, inverted, ahead)

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

    def whose(self, slots: NDArray[np.intp]) -> Iterator[tuple[Part, int]]:
        """The part of each of ``slots``, and its own number for it."""
        place = self.starts.searchsorted(slots, side="right") - 1
        local = slots - self.starts[place]
        parts = self.parts
        return zip([parts[at] for at in place.tolist()], local.tolist(), strict=True)

    def gather(self, name: str, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """A column of the parts at ``slots``, which are few: each is looked at by itself, unless
        there is a column of all."""
        if self.frame.settled:
            return self.frame.column(name)[slots].astype(np.int64, copy=False)
        column = attrgetter(name)
        found = [column(part)[slot] for part, slot in self.whose(slots)]
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
        wanted = wanted[self.gather("handle", wanted) != 0]
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
                self.nearest = best
                return best
            count *= 4

    def cosines(self, vector: Vector, slots: Sequence[int]) -> Scores:
        known = self._known
        fresh = [slot for slot in slots if slot not in known]
        if fresh:
            known.update(zip(fresh, cosines(self, vector, fresh).tolist(), strict=True))
        return np.array([known[slot] for slot in slots], dtype=np.float64)


class _Held:
    """A resident part as the lexical leg reads it. ``asked`` are the terms that it will be asked
    for."""

    __slots__ = ("_asked", "_part")

    def __init__(self, part: Part, asked: NDArray[np.uint32]) -> None:
        self._part = part
        self._asked = asked

    @property
    def count(self) -> int:
        return self._part.count

    @property
    def total(self) -> int:
        return self._part.total

    @property
    def lengths(self) -> NDArray[np.uint16]:
        return self._part.length[: self._part.n]

    def find_all(self, terms: Sequence[int]) -> list[tuple[int, NDArray[np.int64]]]:
        resident = self._part.resident
        assert resident is not None
        return resident.find_all(terms, self._asked, self._part.alive)


class _Narrow:
    """A view whose postings are all in memory: every chunk that holds a term is scored."""

    def __init__(self, field: PartField, tids: Sequence[int]) -> None:
        self._field = field
        asked = np.array([tid if tid >= 0 else NOBODY for tid in tids], dtype=np.uint32)
        held = [_Held(part, asked) for part in field.parts]
        parts = list(zip(field.starts.tolist(), held, strict=True))
        lengths = field.frame.column("length")
        self._lexical: Lexical[int] = Lexical(parts, field.size, tids, lengths=lengths)
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
        self,
        field: PartField,
        tids: Sequence[int],
        query: SearchQuery,
        inverted: Inverted,
        ahead: Executor | None,
    ) -> None:
        self._field = field
        self._tids = tids
        self._inverted = inverted
        self._said = (query.since, query.until)
        frame = field.frame
        self._statistics = Statistics(
            frame.count, frame.total, frame.frequencies(tids, field.snapshot)
        )
        self._scored: dict[int, tuple[float, float]] = {}
        """By slot: its score, and the share of the query's mass that it holds."""
        self._asked: Future[Candidates] = Future()
        """The first candidates, or on their way."""
        if query.mode != "dense":
            ask = self._ask(FIRST)
            if ahead is not None:
                self._asked = ahead.submit(ask)
            else:
                self._asked.set_result(ask())

    def _ask(self, count: int) -> Callable[[], Candidates]:
        frame = self._field.frame
        weighed = zip(self._tids, self._statistics.weights, strict=True)
        return self._inverted.ask(
            frame.pids,
            [(tid, weight) for tid, weight in weighed if tid >= 0],
            average=self._statistics.average,
            count=count,
            said=self._said,
            # Where others hold much of what scores high, the next time is not in vain.
            held=frame.count if count == FIRST else 0,
        )

    def found(self, depth: int) -> list[int]:
        field = self._field
        fresh = self._fresh()
        count = FIRST
        while True:
            candidates = self._asked.result() if count == FIRST else self._ask(count)()
            proposed = self._slots(candidates.rows, candidates.pids)
            # What the dense leg has found will be scored anyhow, and is read at once with these.
            near = np.array(field.nearest, dtype=np.intp)
            slots = np.unique(np.concatenate((fresh, proposed, near)))
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
        for start, part in field.frame.waiting:
            assert part.delta is not None
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
        places, parts = self._field.frame.places, self._field.parts
        at = [places[pid] for pid in pids.tolist()]
        pairs = zip(at, rows.tolist(), strict=True)
        slots = np.array([parts[place].slot_of(row) for place, row in pairs], dtype=np.intp)
        return (slots + self._field.starts[at])[slots >= 0]


def _list(slots: Slots) -> list[int]:
    numbers: list[int] = slots.tolist()
    return numbers
