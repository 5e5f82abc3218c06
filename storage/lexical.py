"""The lexical leg: exhaustive BM25 whose statistics are those of the view [S Prop. 1].

N, document frequency and the sum of lengths are added up over the partitions of the view, so a
chunk is indexed once, in its partition, and what lies outside the view moves no score. Scores
are float64, summed in the order of the sorted terms: the same view and query give the same bits,
whatever the history of the index.

    score(c) = Σ_t idf(t) · (2.2·tf / (tf + (0.3 + |c| · (0.9 / avg))))
    idf(t)   = ln(1 + (N − df + 0.5) / (df + 0.5))

which is BM25 with k1 = 1.2 and b = 0.75, in the order in which it is computed.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", str, int)
Key_contra = TypeVar("Key_contra", str, int, contravariant=True)
Floats = NDArray[np.float64]

_SHIFT = 16
_COUNT = (1 << _SHIFT) - 1
_BLANK = (1 << 32) - 1
"""A term's number that no term has."""


class Postings(Generic[Key]):
    """One partition's inverted index over slots (small integers that its owner gives out). A term
    is its string, or the number that a store gave it.

    Invariants: a term's list holds ``slot << 16 | tf``, ascending, and is never empty; a slot
    stands in the lists of its ``_terms`` and in no other; ``count`` and ``total`` are the number
    and the summed length of the slots that are in. Nothing of a removed slot remains.
    """

    __slots__ = ("_lists", "_terms", "count", "lengths", "total")

    def __init__(self) -> None:
        self._lists: dict[Key, tuple[Key, array[int]]] = {}
        """By term: the term, as the one string that all its slots share, and its list."""
        self._terms: dict[int, tuple[Key, ...]] = {}
        """By slot: its terms, so that taking it out does not read its text again."""
        self.lengths: Floats = np.zeros(16)
        self.count = 0
        self.total = 0

    def add(self, slot: int, terms: Mapping[Key, int]) -> None:
        """Take in the chunk of ``slot``, which must be out. Counts are below 65,536: a chunk has
        at most 1,000 characters."""
        lists = self._lists
        base = slot << _SHIFT
        shared: list[Key] = []
        for term, tf in terms.items():
            found = lists.get(term)
            if found is None:
                found = lists[term] = (term, array("q"))
            term, entries = found
            shared.append(term)
            if not entries or entries[-1] < base:
                entries.append(base | tf)
            else:
                entries.insert(bisect_left(entries, base), base | tf)
        self._terms[slot] = tuple(shared)
        if slot >= len(self.lengths):
            grown = np.zeros(max(slot + 1, 2 * len(self.lengths)))
            grown[: len(self.lengths)] = self.lengths
            self.lengths = grown
        length = sum(terms.values())
        self.lengths[slot] = length
        self.count += 1
        self.total += length

    def remove(self, slot: int) -> None:
        """Take the chunk of ``slot`` out."""
        for term in self._terms.pop(slot):
            _, entries = self._lists[term]
            del entries[bisect_left(entries, slot << _SHIFT)]
            if not entries:
                del self._lists[term]
        self.count -= 1
        self.total -= int(self.lengths[slot])
        self.lengths[slot] = 0.0

    def counts(self, slot: int) -> dict[Key, int]:
        """What :meth:`add` was given for ``slot``."""
        counts: dict[Key, int] = {}
        for term in self._terms[slot]:
            _, entries = self._lists[term]
            counts[term] = entries[bisect_left(entries, slot << _SHIFT)] & _COUNT
        return counts

    def find_all(self, terms: Sequence[Key]) -> list[tuple[int, array[int]]]:
        """The lists of those of ``terms`` that stand here, by their place in it."""
        lists = self._lists
        return [(place, lists[term][1]) for place, term in enumerate(terms) if term in lists]

    def __len__(self) -> int:
        """The number of distinct terms."""
        return len(self._lists)

    def __contains__(self, slot: int) -> bool:
        return slot in self._terms

    def slots(self) -> list[int]:
        return list(self._terms)


class Delta:
    """The chunks of one partition that the shared index does not hold yet: so few that a query
    looks at all their terms, end to end, and so short-lived that sorting them would not pay.

    Invariants: ``_places`` maps all and only the chunks that are in to their place in ``slots``;
    what belonged to another place is blank and meets no term.
    """

    __slots__ = ("_counts", "_ends", "_holders", "_places", "_slots", "_tids")

    def __init__(self) -> None:
        self._tids = np.full(256, _BLANK, dtype=np.uint32)
        self._counts = np.zeros(256, dtype=np.uint16)
        self._holders = np.zeros(256, dtype=np.int32)
        self._slots: list[int] = []
        self._ends: list[int] = [0]
        """Where the terms of each place end; those of the first start at 0."""
        self._places: dict[int, int] = {}

    def add(self, slot: int, terms: Mapping[int, int]) -> None:
        start = self._ends[-1]
        end = start + len(terms)
        if end > len(self._tids):
            self._grow(end)
        self._tids[start:end] = np.fromiter(terms, np.uint32, len(terms))
        self._counts[start:end] = np.fromiter(terms.values(), np.uint16, len(terms))
        self._holders[start:end] = len(self._slots)
        self._places[slot] = len(self._slots)
        self._slots.append(slot)
        self._ends.append(end)

    def remove(self, slot: int) -> None:
        place = self._places.pop(slot)
        start, end = self._ends[place : place + 2]
        self._tids[start:end], self._counts[start:end] = _BLANK, 0
        if len(self._slots) > max(64, 2 * len(self._places)):
            self._close_up()

    def __contains__(self, slot: int) -> bool:
        return slot in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def slots(self) -> list[int]:
        """By place; that of a blank place means nothing."""
        return self._slots

    def entries(self) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.int32]]:
        """Term numbers, their counts, and the places of the chunks that they stand in."""
        end = self._ends[-1]
        return self._tids[:end], self._counts[:end], self._holders[:end]

    def living(self) -> list[int]:
        return list(self._places)

    def _close_up(self) -> None:
        """Do without the blank places."""
        kept = [(slot, *self._ends[at : at + 2]) for slot, at in self._places.items()]
        whole, counts = self._tids, self._counts
        self.__init__()  # type: ignore[misc] # as it began
        for slot, start, end in kept:
            tids, tfs = whole[start:end].tolist(), counts[start:end].tolist()
            self.add(slot, dict(zip(tids, tfs, strict=True)))

    def _grow(self, need: int) -> None:
        for name in ("_tids", "_counts", "_holders"):
            old = getattr(self, name)
            new = np.zeros(max(need, 2 * len(old)), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)


class Statistics:
    """What a view's BM25 scores rest on: how many chunks there are, their average length, and the
    weight of each term of the query, in the order of the terms' strings."""

    __slots__ = ("average", "mass", "weights")

    def __init__(self, count: int, total: int, frequencies: Sequence[int]) -> None:
        self.average = total / max(count, 1)
        self.weights = [idf(count, frequency) for frequency in frequencies]
        self.mass = 0.0
        for weight in self.weights:
            self.mass += weight

    def score(self, counts: Floats, lengths: Floats) -> Floats:
        """The scores of chunks: ``counts`` has one row a chunk, one column a term. The same
        steps in the same order as in :meth:`Lexical.scores`, hence the same bits."""
        below = lengths * (0.9 / self.average if self.average else 0.0)
        below += 0.3
        scores: Floats = np.zeros(len(lengths))
        for column, weight in enumerate(self.weights):
            tf = counts[:, column]
            gains = 2.2 * tf
            gains /= below + tf
            gains *= weight
            scores += gains
        return scores

    def held(self, counts: Floats) -> list[float]:
        """The share in [0, 1] of the query's idf mass that each chunk holds."""
        if not self.mass:
            return [0.0] * len(counts)
        held: Floats = np.zeros(len(counts))
        for column, weight in enumerate(self.weights):
            held += np.where(counts[:, column] > 0, weight, 0.0)
        return [min(1.0, value / self.mass) for value in held.tolist()]


def idf(count: int, frequency: int) -> float:
    return math.log(1.0 + (count - frequency + 0.5) / (frequency + 0.5))


class Index(Protocol[Key_contra]):
    """What :class:`Lexical` needs of a part's index: :class:`Postings` is one."""

    @property
    def count(self) -> int: ...

    @property
    def total(self) -> int: ...

    @property
    def lengths(self) -> NDArray[Any]: ...

    def find_all(
        self, terms: Sequence[Key_contra]
    ) -> Sequence[tuple[int, array[int] | NDArray[np.int64]]]:
        """See :meth:`Postings.find_all`; a term may have several lists, which share no slot."""
        ...


class Lexical(Generic[Key]):
    """The lexical leg of one query over one view.

    ``parts`` are the view's indexes, each with the offset of its slots in the view's row of
    ``size`` slots. ``terms`` are distinct, in the order of their strings. ``statistics`` are the
    view's where ``parts`` are not all of it, ``lengths`` by slot where its owner has them.
    """

    def __init__(
        self,
        parts: Sequence[tuple[int, Index[Key]]],
        size: int,
        terms: Sequence[Key],
        statistics: Statistics | None = None,
        lengths: NDArray[Any] | None = None,
    ) -> None:
        self._parts: Sequence[tuple[int, Index[Key]]] = parts
        self._size = size
        self._known = lengths
        found: list[list[tuple[int, array[int] | NDArray[np.int64]]]] = [[] for _ in terms]
        for at, postings in parts:
            for place, entries in postings.find_all(terms):
                found[place].append((at, entries))
        self._statistics = statistics or Statistics(
            sum(postings.count for _, postings in parts),
            sum(postings.total for _, postings in parts),
            [sum(len(f) for _, f in held) for held in found],
        )
        # One entry a posting, terms in sorted order: the order in which every sum runs.
        offsets = [at for held in found for at, _ in held]
        lists = [entries for held in found for _, entries in held]
        sizes = list(map(len, lists))
        self._slots = np.concatenate(lists) if lists else np.zeros(0, np.int64)
        self._counts = (self._slots & _COUNT).astype(np.float64)
        self._slots >>= _SHIFT
        if any(offsets):
            self._slots += np.array(offsets).repeat(sizes)
        each = np.array(self._statistics.weights).repeat(list(map(len, found)))
        self._weights: Floats = each.repeat(sizes)

    def scores(self) -> Floats:
        """The score of each slot of the view; 0 where no term of the query stands."""
        tf, average = self._counts, self._statistics.average
        below = self._lengths()[self._slots].astype(np.float64)
        below *= 0.9 / average if average else 0.0
        below += 0.3
        below += tf
        gains = 2.2 * tf
        gains /= below
        gains *= self._weights
        return self._sum(gains)

    def coverage(self, slots: Sequence[int]) -> list[float]:
        """For each of ``slots`` the share in [0, 1] of the query's idf mass that its chunk
        holds. A term that the view lacks counts in the mass."""
        mass = self._statistics.mass
        if not mass or not slots:
            return [0.0] * len(slots)
        held = self._sum(self._weights)
        return [min(1.0, float(held[slot]) / mass) for slot in slots]

    def _sum(self, values: Floats) -> Floats:
        """``values`` added up by slot. ``bincount`` adds in the order of its input, from 0.0."""
        sums: Floats = np.bincount(self._slots, weights=values, minlength=self._size).astype(
            np.float64, copy=False
        )
        return sums

    def _lengths(self) -> NDArray[Any]:
        """The length of each slot of the view."""
        if self._known is not None:
            return self._known
        if len(self._parts) == 1:
            return self._parts[0][1].lengths
        lengths: Floats = np.zeros(self._size)
        ends = [*(at for at, _ in self._parts[1:]), self._size]
        for (at, postings), end in zip(self._parts, ends, strict=True):
            known = postings.lengths[: end - at]
            lengths[at : at + len(known)] = known
        return lengths
