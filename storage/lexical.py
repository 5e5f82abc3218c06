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

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SHIFT = 16
_COUNT = (1 << _SHIFT) - 1


class Postings:
    """One partition's inverted index over slots (small integers that its owner gives out).

    Invariants: a term's list holds ``slot << 16 | tf``, ascending, and is never empty; a slot
    stands in the lists of its ``_terms`` and in no other; ``count`` and ``total`` are the number
    and the summed length of the slots that are in. Nothing of a removed slot remains.
    """

    __slots__ = ("_lists", "_terms", "count", "lengths", "total")

    def __init__(self) -> None:
        self._lists: dict[str, tuple[str, array[int]]] = {}
        """By term: the term, as the one string that all its slots share, and its list."""
        self._terms: dict[int, tuple[str, ...]] = {}
        """By slot: its terms, so that taking it out does not read its text again."""
        self.lengths: Floats = np.zeros(16)
        self.count = 0
        self.total = 0

    def add(self, slot: int, terms: Mapping[str, int]) -> None:
        """Take in the chunk of ``slot``, which must be out. Counts are below 65,536: a chunk has
        at most 1,000 characters."""
        lists = self._lists
        base = slot << _SHIFT
        shared: list[str] = []
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

    def find(self, term: str) -> array[int] | None:
        found = self._lists.get(term)
        return found[1] if found else None

    def __len__(self) -> int:
        """The number of distinct terms."""
        return len(self._lists)


def idf(count: int, frequency: int) -> float:
    return math.log(1.0 + (count - frequency + 0.5) / (frequency + 0.5))


class Lexical:
    """The lexical leg of one query over one view.

    ``parts`` are the view's indexes, each with the offset of its slots in the view's row of
    ``size`` slots. ``terms`` are sorted and distinct.
    """

    def __init__(
        self, parts: Sequence[tuple[int, Postings]], size: int, terms: Sequence[str]
    ) -> None:
        self._parts = parts
        self._size = size
        count = sum(postings.count for _, postings in parts)
        offsets: list[int] = []
        weights: list[float] = []
        lists: list[NDArray[np.int64]] = []
        self._mass = 0.0
        for term in terms:
            found = [(at, f) for at, postings in parts if (f := postings.find(term)) is not None]
            weight = idf(count, sum(len(f) for _, f in found))
            self._mass += weight
            for at, entries in found:
                offsets.append(at)
                weights.append(weight)
                lists.append(np.frombuffer(entries, dtype=np.int64))
        self._average = sum(postings.total for _, postings in parts) / max(count, 1)
        # One entry a posting, terms in sorted order: the order in which every sum runs.
        sizes = [len(entries) for entries in lists]
        self._slots = np.concatenate(lists) if lists else np.zeros(0, np.int64)
        self._counts = (self._slots & _COUNT).astype(np.float64)
        self._slots >>= _SHIFT
        if any(offsets):
            self._slots += np.repeat(offsets, sizes)
        self._weights: Floats = np.repeat(np.array(weights), sizes)

    def scores(self) -> Floats:
        """The score of each slot of the view; 0 where no term of the query stands."""
        tf = self._counts
        below = self._lengths()[self._slots]
        below *= 0.9 / self._average if self._average else 0.0
        below += 0.3
        below += tf
        gains = 2.2 * tf
        gains /= below
        gains *= self._weights
        return self._sum(gains)

    def coverage(self, slots: Sequence[int]) -> list[float]:
        """For each of ``slots`` the share in [0, 1] of the query's idf mass that its chunk
        holds. A term that the view lacks counts in the mass."""
        if not self._mass or not slots:
            return [0.0] * len(slots)
        held = self._sum(self._weights)
        return [min(1.0, float(held[slot]) / self._mass) for slot in slots]

    def _sum(self, values: Floats) -> Floats:
        """``values`` added up by slot. ``bincount`` adds in the order of its input, from 0.0."""
        sums: Floats = np.bincount(self._slots, weights=values, minlength=self._size).astype(
            np.float64, copy=False
        )
        return sums

    def _lengths(self) -> Floats:
        """The length of each slot of the view."""
        if len(self._parts) == 1:
            return self._parts[0][1].lengths
        ends = [*(at for at, _ in self._parts[1:]), self._size]
        return np.concatenate(
            [p.lengths[: end - at] for (at, p), end in zip(self._parts, ends, strict=True)]
        )
