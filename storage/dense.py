"""The dense leg: exact search over one matrix a partition, with bits that nothing else moves.

A BLAS product is fast, but its last bits depend on the shape of the whole matrix, and so on how
many other units are stored. It therefore only makes a shortlist, with a margin wider than its
error; the scores are then computed row by row in an order that depends on the row alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Matrix:
    """One partition's vectors, by slot.

    Held twice: by dimension to scan (memory is read in order, in half the time) and by row to
    score. Invariant: ``present`` is false and the vector zero where a slot has none.
    """

    __slots__ = ("_columns", "_rows", "count", "dim", "present")

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._columns: Vector = np.zeros((dim, 16), dtype=np.float32)
        self._rows: Vector = np.zeros((16, dim), dtype=np.float32)
        self.present: NDArray[np.bool_] = np.zeros(16, dtype=np.bool_)
        self.count = 0

    def put(self, slots: list[int], vectors: Vector) -> None:
        """``vectors``: one row a slot."""
        if max(slots) >= len(self.present):
            self._grow(max(slots) + 1)
        self.count += len(slots) - int(self.present[slots].sum())
        self._columns[:, slots] = vectors.T
        self._rows[slots] = vectors
        self.present[slots] = True

    def clear(self, slot: int) -> None:
        if slot < len(self.present) and self.present[slot]:
            self._columns[:, slot] = 0.0
            self._rows[slot] = 0.0
            self.present[slot] = False
            self.count -= 1

    def scan(self, query: Vector, out: Vector) -> None:
        """Approximate cosines of the first ``len(out)`` slots; −inf where there is no vector."""
        n = min(len(out), len(self.present))
        np.matmul(query, self._columns[:, :n], out=out[:n])
        out[n:] = -np.inf
        if self.count < len(out):
            out[:n][~self.present[:n]] = -np.inf

    def gather(self, slots: NDArray[np.intp], out: Vector) -> NDArray[np.bool_]:
        """Copy the vectors of ``slots`` into the rows of ``out``; says which there are."""
        if len(slots) and int(slots.max()) >= len(self.present):
            self._grow(int(slots.max()) + 1)
        self._rows.take(slots, axis=0, out=out)
        return self.present[slots]

    def _grow(self, need: int) -> None:
        old = len(self.present)
        size = max(need, 2 * old)
        columns = np.zeros((self.dim, size), dtype=np.float32)
        columns[:, :old] = self._columns
        rows = np.zeros((size, self.dim), dtype=np.float32)
        rows[:old] = self._rows
        present = np.zeros(size, dtype=np.bool_)
        present[:old] = self.present
        self._columns, self._rows, self.present = columns, rows, present


def widened(halves: NDArray[np.float16]) -> Vector:
    """Finite float16 as float32, bit for bit: numpy's own way takes four times as long."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13  # sign, exponent and fraction, each where float32 has it
    bits &= np.int32(-0x7000_2000)
    wide = bits.view(np.float32)
    wide *= np.float32(2.0**112)  # exponents count from 127 there, from 15 here
    return wide


def exact(rows: Vector, query: Vector) -> Vector:
    """Row-wise inner products: numpy sums each contiguous row by itself, pairwise, so a row's
    result is the same in whatever company it stands (BLAS's is not)."""
    products = rows * query
    return np.asarray(products.sum(axis=1), dtype=np.float32)


def shortlist(approximate: Vector, count: int, dim: int) -> NDArray[np.intp]:
    """Slots among which the ``count`` best by exact score surely are (−inf never is).

    A float32 sum of ``dim`` products of unit vectors is off by less than dim · 2⁻²⁴, in whatever
    order it runs. So a BLAS product and an exact score differ by less than twice, and two
    differences by less than four times that.
    """
    if count < len(approximate):
        cut = np.partition(approximate, len(approximate) - count)[len(approximate) - count]
        if cut > -np.inf:
            return np.flatnonzero(approximate >= cut - np.float32(4 * dim * 2.0**-24))
    return np.flatnonzero(approximate > -np.inf)
