"""The dense leg of one query over the parts of a view: what may be nearest, by approximate cosines
of scans and graphs, and the exact cosines that decide.

A view may have a hundred small parts, so what is done a part is as little as can be: their codes
are multiplied one after the other into one array, and only what is near is mapped to slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isovist.storage.codes import Query, scan
from isovist.storage.columns import Mask, Part
from isovist.storage.dense import Vector, exact
from isovist.storage.scanned import Halves, Scanned

if TYPE_CHECKING:
    from isovist.storage.part_field import PartField

Slots = NDArray[np.intp]


class Rough:
    """``values``: approximate cosines of all slots that may be among the ``count`` nearest (−inf:
    may not answer), ``margin``: how far off they may be, ``whole``: whether they are of all
    vectors of the view."""

    def __init__(self, field: PartField, vector: Vector, query: Query, count: int) -> None:
        self._starts: list[int] = []
        """Of each that is scanned: where its slots begin in the view."""
        self._scanned: list[Scanned] = []
        self._ends: list[int] = []
        """Where its values end."""
        self._walked: list[Slots] = []
        self.whole = True
        walked: list[Vector] = []
        hidden: list[tuple[int, Mask]] = []
        end = 0
        for part, mask, start in zip(field.parts, field.masks, field.starts.tolist(), strict=True):
            scanned = part.scanned
            if scanned is not None and scanned.size:
                if mask is not None:
                    hidden.append((end, ~mask[scanned.slots]))
                end += scanned.size
                self._starts.append(start)
                self._scanned.append(scanned)
                self._ends.append(end)
            if part.graph is not None:
                rows, values = part.graph.nearest(vector, _reach(part, mask, count))
                here = part.find(rows)
                good = here >= 0
                if mask is not None:
                    good &= mask[np.maximum(here, 0)]
                self._walked.append(here[good] + start)
                walked.append(values[good])
                self.whole = self.whole and len(rows) >= part.graph.size
        sizes = [one.size for one in self._scanned]
        self.values = np.empty(end + sum(map(len, walked)), dtype=np.float32)
        self.margin = scan([one.codes for one in self._scanned], sizes, query, self.values[:end])
        for at, mask in hidden:
            self.values[at : at + len(mask)][mask] = -np.inf
        if walked:
            np.concatenate(walked, out=self.values[end:])

    def slots(self, near: NDArray[np.intp]) -> Slots:
        """Whose the values at ``near`` (ascending) are."""
        ends = self._ends
        inside = int(np.searchsorted(near, ends[-1])) if ends else 0
        which = np.searchsorted(ends, near[:inside], side="right").tolist()
        found = [
            self._starts[one] + self._scanned[one].slots[at - (ends[one - 1] if one else 0)]
            for one, at in zip(which, near[:inside].tolist(), strict=True)
        ]
        scanned = np.array(found, dtype=np.intp)
        if inside == len(near):
            return scanned
        walked = np.concatenate(self._walked)[near[inside:] - (ends[-1] if ends else 0)]
        return np.concatenate((scanned, walked))


def _reach(part: Part, mask: Mask | None, count: int) -> int:
    """How many to ask of a graph so that about ``count`` remain that live and may answer. A
    function of the partition and the query alone."""
    graph = part.graph
    assert graph is not None
    able = part.count if mask is None else int(mask.sum())
    share = max(able, 1) / max(part.n, graph.size)
    return min(graph.size, int(count / share) + 10)


def cosines(field: PartField, vector: Vector, wanted: Sequence[int]) -> NDArray[np.float64]:
    """Exact cosines, −inf where there is no vector yet."""
    slots = np.array(wanted, dtype=np.intp)
    values = np.full(len(slots), -np.inf)
    held: list[Slots] = []
    halves: list[Halves] = []
    unread: list[Slots] = []
    rows: list[NDArray[np.int64]] = []
    for at, here in field.split(slots):
        part = field.parts[at]
        local = slots[here] - field.starts[at]
        if part.graph is not None:
            there = part.graph.holds(part.row[local])
            held.append(here[there])
            halves.append(part.graph.vectors(part.row[local[there]]))
            here, local = here[~there], local[~there]
        if part.scanned is None or not len(here):
            continue
        places = part.scanned.places(local)
        if places.min() < 0:
            there = places >= 0
            here, local, places = here[there], local[there], places[there]
        kept = part.scanned.vectors(places)
        if kept is not None:
            held.append(here)
            halves.append(kept)
        elif len(here):
            unread.append(here)
            rows.append(part.row[local])
    if unread:
        vectors, present = field.snapshot.vectors(np.concatenate(rows).tolist())
        held.append(np.concatenate(unread)[present])
        halves.append(vectors[present])
    if held:
        values[np.concatenate(held)] = exact(np.concatenate(halves).astype(np.float32), vector)
    return values
