"""The vectors of a partition that are searched by scanning: all of them, or those that its graph
does not hold.

Scanned as int8 codes; exact vectors decide. They are kept here while the partition is resident,
else read from the store.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isovist.storage.codes import Codes

Halves = NDArray[np.float16]


class Scanned:
    """Vectors in the order in which they came; ``slots`` says whose each is.

    Invariant: a slot stands at one place at most, ``_place`` says at which (−1: at none).
    """

    __slots__ = ("_exact", "_place", "_slots", "codes", "size")

    def __init__(self, dim: int, *, exact: bool) -> None:
        self.codes = Codes(dim)
        self.size = 0
        self._place = np.full(16, -1, dtype=np.int32)
        self._slots = np.zeros(16, dtype=np.intp)
        self._exact: Halves | None = np.zeros((16, dim), np.float16) if exact else None

    @property
    def slots(self) -> NDArray[np.intp]:
        return self._slots[: self.size]

    @property
    def exact(self) -> bool:
        """Whether the exact vectors are here."""
        return self._exact is not None

    def put(self, slots: NDArray[np.intp], vectors: Halves) -> None:
        """One vector a slot; a slot that has one gets the new one."""
        if not len(slots):
            return
        for slot in slots[self.places(slots) >= 0].tolist():
            self.clear(slot)
        start, self.size = self.size, self.size + len(slots)
        if self.size > len(self._slots):
            self._grow(self.size)
        self._slots[start : self.size] = slots
        reach = int(slots.max()) + 1
        if reach > len(self._place):
            place = np.full(max(reach, len(self._place) * 5 // 4), -1, dtype=np.int32)
            place[: len(self._place)] = self._place
            self._place = place
        self._place[slots] = np.arange(start, self.size)
        self.codes.put(np.arange(start, self.size), vectors)
        if self._exact is not None:
            self._exact[start : self.size] = vectors

    def clear(self, slot: int) -> None:
        place = int(self._place[slot]) if slot < len(self._place) else -1
        if place >= 0:
            self._place[slot] = -1
            self.codes.clear(place)
            if self._exact is not None:
                self._exact[place] = 0

    def places(self, slots: NDArray[np.intp]) -> NDArray[np.int32]:
        """Where the vectors of ``slots`` (at least one) are here; −1 where there is none."""
        places: NDArray[np.int32] = self._place.take(slots, mode="clip")
        if slots.max() >= len(self._place):
            places[slots >= len(self._place)] = -1
        return places

    def place(self, slot: int) -> int:
        """The same of one slot."""
        return int(self._place[slot]) if slot < len(self._place) else -1

    def vector(self, place: int) -> Halves | None:
        """The exact vector at ``place``; ``None`` where it is in the store."""
        return None if self._exact is None else self._exact[place]

    def keep(self, slots: NDArray[np.intp], vectors: Halves) -> None:
        """From here on hold the exact vectors; these are of all slots that are here."""
        exact = np.zeros((len(self._slots), vectors.shape[1]), dtype=np.float16)
        exact[self._place[slots]] = vectors
        self._exact = exact

    def let_go(self) -> None:
        """Hold no exact vectors any more."""
        self._exact = None

    def _grow(self, need: int) -> None:
        size = max(need, 2 * len(self._slots) if need < 1 << 14 else need + need // 4)
        slots = np.zeros(size, dtype=np.intp)
        slots[: len(self._slots)] = self._slots
        self._slots = slots
        if self._exact is not None:
            exact = np.zeros((size, self._exact.shape[1]), dtype=np.float16)
            exact[: len(self._exact)] = self._exact
            self._exact = exact
