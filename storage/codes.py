"""int8 codes of a partition's vectors: a quarter of their size, and exact to add up.

A scan reads every row, so it costs what the rows weigh. Each row is therefore kept once more as
one byte a dimension, scaled by its own largest entry, and the scan multiplies bytes. Products of
int8 and their sums are whole numbers: no order of summation, no instruction set and no shape of
the matrix changes them. So an approximate cosine is a function of its row and the query alone.
It makes a shortlist; exact vectors then decide (:func:`isovist.storage.dense.exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numkong
import numpy as np
from numpy.typing import NDArray

from isovist.storage.dense import Vector

_BLOCK = 65_536
"""Rows a block: codes beyond it are never moved again, and at most one block stands half empty."""
PIECE = 8_192
"""Rows, about, that are multiplied at a time where threads share a scan: some 0.3 ms."""
_BATCH = 4_096
"""Rows quantised at a time, since that takes float32 copies of them."""


def _quantise(rows: Vector) -> tuple[NDArray[np.int8], Vector, Vector]:
    """Codes (−127 to 127) and scale of each row, and the length of what rounding took away."""
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    safe = np.where(scales > 0, scales, np.float32(1))  # a zero row has zero codes
    codes = np.rint(rows / safe[:, None])
    lost = rows - codes * safe[:, None]
    lengths = np.sqrt((lost * lost).sum(axis=1))
    return codes.astype(np.int8), scales, np.asarray(lengths, dtype=np.float32)


class Query:
    """A float32 vector of unit length, quantised once for the scans of many partitions."""

    __slots__ = ("codes", "lost", "scale")

    def __init__(self, vector: Vector) -> None:
        codes, scales, lost = _quantise(np.asarray(vector, dtype=np.float32)[None])
        self.codes = codes
        self.scale = scales[0]
        self.lost = float(lost[0])


class Codes:
    """Codes by local slot: slots count from 0, come in any order and may leave holes.

    Invariants: ``present`` holds iff a slot's vector was put and not cleared since; ``count`` of
    them do. A slot that is not present has the scale zero and no code left of an earlier vector.
    """

    __slots__ = ("_blocks", "_lost", "_scales", "count", "dim", "present")

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._blocks: list[NDArray[np.int8]] = []
        self._scales: Vector = np.zeros(0, dtype=np.float32)
        self._lost = 0.0
        self.present: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.count = 0

    @property
    def memory(self) -> int:
        """Bytes allocated (those of a block's unused end are not yet backed by the system)."""
        return sum(b.nbytes for b in self._blocks) + self._scales.nbytes + self.present.nbytes

    def put(self, slots: NDArray[np.intp], vectors: NDArray[np.float16]) -> None:
        """``vectors``: one finite row of unit length a slot, in any slots, each named once."""
        if not len(slots):
            return
        self._reach(int(slots.max()) + 1)
        for at in range(0, len(slots), _BATCH):
            some = slots[at : at + _BATCH]
            codes, scales, lost = _quantise(vectors[at : at + _BATCH].astype(np.float32))
            for number in np.unique(some // _BLOCK).tolist():
                inside = some // _BLOCK == number
                self._blocks[number][some[inside] - number * _BLOCK] = codes[inside]
            self._scales[some] = scales
            self._lost = max(self._lost, float(lost.max()))
            self.count += len(some) - int(self.present[some].sum())
            self.present[some] = True

    def clear(self, slot: int) -> None:
        """Forget a slot's vector; where there is none, nothing happens."""
        if slot < len(self.present) and self.present[slot]:
            self._blocks[slot // _BLOCK][slot % _BLOCK] = 0
            self._scales[slot] = 0.0
            self.present[slot] = False
            self.count -= 1

    def scan(self, query: Query, start: int, out: Vector) -> None:
        """Approximate cosines of the slots from ``start`` on, as many as the contiguous ``out``
        holds; −inf where a slot has no vector."""
        stop = min(start + len(out), len(self.present))
        held = max(stop - start, 0)
        out[held:] = -np.inf
        if held:
            self._multiply(query, start, out[:held])
            out[:held] *= self._scales[start:stop]
            out[:held] *= query.scale
            out[:held][~self.present[start:stop]] = -np.inf

    def _multiply(self, query: Query, start: int, out: Vector) -> None:
        """Products of codes, not scaled."""
        at, stop = start, start + len(out)
        while at < stop:
            block, first = self._blocks[at // _BLOCK], at % _BLOCK
            rows = block[first : first + stop - at]
            part = out[at - start : at - start + len(rows)]
            numkong.cdist(query.codes, rows, "dot", out=part[None])  # on one thread
            at += len(rows)

    def margin(self, query: Query) -> float:
        """How far below the ``count``-th best approximate cosine one of the ``count`` best exact
        ones can lie at most, so that ``shortlist(approx, count, margin)`` surely holds those.

        q·v − q̂·v̂ = (q − q̂)·v + q̂·(v − v̂), which is no more than the lengths that rounding took
        away (Cauchy-Schwarz), for vectors whose length is within 1e-3 of one. Twice that lies
        between two scores. The last term covers the float32 products themselves.

        For the 50 best it leaves 82 of 12,000 texts' vectors (median; at most 111), 92 of 20,000
        in clusters (217), 417 of 20,000 at random (666). With no margin the best 64 held all of
        the 50 for each of 200 questions on each of these; but nothing promises it.
        """
        return _margin(query, self._lost, self.dim)

    def _reach(self, size: int) -> None:
        """Make room for ``size`` slots: half as much again while small, then block by block."""
        old = len(self.present)
        if size <= old:
            return
        if size < _BLOCK:
            size = min(max(size, old + old // 2), _BLOCK)
        else:
            size = -(-size // _BLOCK) * _BLOCK
        for first in range(0, size, _BLOCK):
            number, rows = first // _BLOCK, min(size - first, _BLOCK)
            if number == len(self._blocks):
                self._blocks.append(np.zeros((rows, self.dim), dtype=np.int8))
            elif len(self._blocks[number]) < rows:
                block = np.zeros((rows, self.dim), dtype=np.int8)
                block[: len(self._blocks[number])] = self._blocks[number]
                self._blocks[number] = block
        self._scales = np.concatenate((self._scales, np.zeros(size - old, dtype=np.float32)))
        self.present = np.concatenate((self.present, np.zeros(size - old, dtype=np.bool_)))


class Abreast:
    """The codes of many partitions, side by side: to the bit what :meth:`Codes.scan` gives of each,
    but faster for many small ones. Made of what was put up to then: not to be used after the next
    put or clear in any of them. One scan at a time."""

    __slots__ = ("_absent", "_lost", "_pieces", "_scales", "_values", "size")

    def __init__(self, codes: Sequence[Codes], sizes: Sequence[int]) -> None:
        """``sizes``: how many slots of each, all within reach of what was put."""
        self.size = sum(sizes)
        self._values: Vector = np.empty(self.size, dtype=np.float32)
        self._pieces: list[list[tuple[NDArray[np.int8], Vector]]] = []
        """Rows, and where their products go."""
        at = 0
        for one, size in zip(codes, sizes, strict=True):
            for start in range(0, size, PIECE):
                rows = one._blocks[start // _BLOCK][start % _BLOCK :][: min(PIECE, size - start)]
                if at >= len(self._pieces) * PIECE:
                    self._pieces.append([])
                self._pieces[-1].append((rows, self._values[None, at : at + len(rows)]))
                at += len(rows)
        pairs = list(zip(codes, sizes, strict=True))
        empty: list[Vector] = [np.zeros(0, np.float32)]
        self._scales = np.concatenate([*(one._scales[:n] for one, n in pairs), *empty])
        self._absent: NDArray[np.intp] | None = None
        if any(one.count < n for one, n in pairs):
            present = np.concatenate([one.present[:n] for one, n in pairs])
            self._absent = np.flatnonzero(~present)
        self._lost = max((one._lost for one in codes), default=0.0)

    def tasks(self, query: Query) -> list[Callable[[], None]]:
        """A scan's products in pieces of about the same size, to be made in any threads."""
        return [partial(_multiply, query.codes, pieces) for pieces in self._pieces]

    def finish(self, query: Query) -> Vector:
        """When all that is done: approximate cosines, −inf where a slot has no vector. Good until
        the next scan."""
        values = self._values
        np.multiply(values, self._scales, out=values)
        np.multiply(values, query.scale, out=values)
        if self._absent is not None:
            values[self._absent] = -np.inf
        return values

    def margin(self, query: Query, dim: int) -> float:
        """The widest of their margins: see :meth:`Codes.margin`."""
        return _margin(query, self._lost, dim)


def _multiply(asked: NDArray[np.int8], pieces: Sequence[tuple[NDArray[np.int8], Vector]]) -> None:
    for rows, out in pieces:
        numkong.cdist(asked, rows, "dot", out=out)  # on one thread


def _margin(query: Query, most: float, dim: int) -> float:
    lost = 1.001 * query.lost + (1.001 + query.lost) * most
    return 2.0 * (lost + 4 * dim * 2.0**-24)


def shortlist(approx: Vector, count: int, margin: float = 0.0) -> NDArray[np.intp]:
    """Positions of the ``count`` best, ascending, with all that tie with the last of them or lie
    no more than ``margin`` below it (−inf never): which depends on the values alone."""
    cut = _nth_best(approx, count)
    if cut == -np.inf:
        return np.flatnonzero(approx > -np.inf)
    return np.flatnonzero(approx >= cut - np.float32(margin))


def _nth_best(values: Vector, n: int) -> np.float32:
    """The ``n``-th best value (−inf if there are fewer).

    The n-th best of the maxima of disjoint groups is no better than the n-th best of all, and
    quick to find. What lies below it need not be sorted.
    """
    groups = 64
    if n > len(values):
        return np.float32(-np.inf)
    if len(values) // groups > 2 * n:
        width = len(values) // groups
        maxima = values[: width * groups].reshape(groups, width).max(axis=0)
        floor = np.partition(maxima, width - n)[width - n]
        values = values[values >= floor]
    return np.float32(np.partition(values, len(values) - n)[len(values) - n])
