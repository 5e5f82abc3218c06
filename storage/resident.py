"""One partition's postings in memory, packed: for small views, where scoring every chunk that
holds a term beats asking the shared index.

A packed base of what was there when it was made, immutable, and beside it the chunks that came
since. A chunk of the base that has died is skipped by the part's ``alive`` column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from isovist.storage.forward import contents
from isovist.storage.lexical import Postings

AT_ONCE = 16
"""Chunks that one look takes in: each costs a tenth of a millisecond."""

_SHIFT = 16
NOBODY = (1 << 32) - 1
"""A number that no term has."""


class Packed:
    """All postings of some chunks: for each term number, ascending, ``slot << 16 | count`` of the
    chunks that hold it, ascending."""

    __slots__ = ("_entries", "_starts", "_tids", "chunks")

    def __init__(self, slots: NDArray[np.intp], blobs: Sequence[bytes]) -> None:
        """``blobs``: the forward vector of each of ``slots``, which ascend."""
        self.chunks = len(slots)
        tids, counts, holders = contents(blobs)
        order = np.argsort(tids, kind="stable")
        self._entries = (slots[holders[order]].astype(np.int64) << _SHIFT) | counts[order]
        known, starts = np.unique(tids[order], return_index=True)
        # The last one is nobody's, with no posting: whatever is asked has a place before it.
        self._tids = np.append(known, NOBODY).astype(np.uint32)
        self._starts = np.append(starts, [len(tids), len(tids)]).astype(np.int64)

    def find_all(self, asked: NDArray[np.uint32]) -> list[tuple[int, NDArray[np.int64]]]:
        """The postings of those of ``asked`` that stand here, by their place in it."""
        at = self._tids.searchsorted(asked)
        held = (self._tids[at] == asked).nonzero()[0]
        at = at[held]
        entries = self._entries
        return [
            (place, entries[start:end])
            for place, start, end in zip(
                held.tolist(), self._starts[at].tolist(), self._starts[at + 1].tolist(), strict=True
            )
        ]

    @property
    def memory(self) -> int:
        return self._entries.nbytes + self._starts.nbytes + self._tids.nbytes


class Resident:
    """The postings of a part's living chunks.

    Invariant: a living slot is in one of the base, ``extra`` and ``_late``; ``dead`` counts those
    of the base that live no more.
    """

    __slots__ = ("_base", "_late", "dead", "extra")

    def __init__(self, base: Packed | None = None) -> None:
        self._base = base
        self.dead = 0
        self.extra: Postings[int] = Postings()
        self._late: dict[int, Mapping[int, int]] = {}
        """Chunks that came since somebody asked, with their terms. Of many, most are packed
        before anybody asks, and their way through ``extra`` is saved."""

    def add(self, slot: int, terms: Mapping[int, int]) -> None:
        self._late[slot] = terms

    def ready(self) -> bool:
        """Whether :meth:`find_all` can answer. Where much came at once it cannot yet: each call
        takes in a little of it."""
        for slot in list(islice(self._late, AT_ONCE)):
            self.extra.add(slot, self._late.pop(slot))
        return not self._late

    def remove(self, slot: int) -> None:
        """``slot`` has just died."""
        if slot in self._late:
            del self._late[slot]
        elif slot in self.extra:
            self.extra.remove(slot)
        else:
            self.dead += 1

    def find_all(
        self, tids: Sequence[int], asked: NDArray[np.uint32], alive: NDArray[np.bool_]
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """The postings among living slots of those of ``tids`` that stand here, by their place
        in it; in no order of slots, none twice. ``asked`` are the same, ``NOBODY`` for a term
        that has no number. Only when it is :meth:`ready`."""
        found = [] if self._base is None else self._base.find_all(asked)
        if self.dead:
            living = ((place, entries[alive[entries >> _SHIFT]]) for place, entries in found)
            found = [(place, entries) for place, entries in living if len(entries)]
        if self.extra.count:
            more = self.extra.find_all(tids)
            found += [(place, np.frombuffer(e, np.int64).copy()) for place, e in more]
        return found

    @property
    def stale(self) -> bool:
        """Whether packing it anew pays."""
        held = 0 if self._base is None else self._base.chunks
        later = self.extra.count + len(self._late)
        return max(later, self.dead) > max(1024, held // 4)

    @property
    def memory(self) -> int:
        """Bytes, about: a chunk that is not packed takes some kilobytes."""
        return (0 if self._base is None else self._base.memory) + 4096 * (
            self.extra.count + len(self._late)
        )
