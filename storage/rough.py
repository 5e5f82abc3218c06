"""The dense leg of one query over the parts of a view: what may be nearest, by approximate cosines
of scans and graphs, and the exact cosines that decide.

A view may have hundreds of small parts, so what is done a part is as little as can be: their codes
are multiplied one after the other into one array, and only what is near is mapped to slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isovist.storage.codes import Query
from isovist.storage.columns import Mask, Part
from isovist.storage.dense import Vector, exact, widened
from isovist.storage.scanned import Halves

if TYPE_CHECKING:
    from isovist.storage.part_field import PartField

Slots = NDArray[np.intp]

WORTH = 4
"""Tasks from which a second thread pays: to wake it takes 0.1 ms."""


class Rough:
    """``values``: approximate cosines of all slots that may be among the ``count`` nearest (−inf:
    may not answer), ``margin``: how far off they may be, ``whole``: whether they are of all
    vectors of the view."""

    def __init__(self, field: PartField, vector: Vector, query: Query, count: int) -> None:
        frame, masks = field.frame, field.masks
        self._frame = frame
        found: dict[int, tuple[NDArray[np.int64], Vector]] = {}

        def walk(at: int) -> None:
            graph = field.parts[at].graph
            assert graph is not None
            mask = masks[at] if masks else None
            found[at] = graph.nearest(vector, _reach(field.parts[at], mask, count))

        walks: list[Callable[[], object]] = [partial(walk, at) for at in frame.walked]
        shared(field.ahead, [*walks, *frame.codes.tasks(query)])
        self.values = frame.codes.finish(query)
        self.margin = frame.codes.margin(query, len(vector))
        for (at, scanned), end in zip(frame.scanned, frame.ends, strict=True) if masks else ():
            mask = masks[at]
            if mask is not None:
                self.values[end - scanned.size : end][~mask[scanned.slots]] = -np.inf
        self._walked: list[Slots] = []
        self.whole = True
        walked: list[Vector] = []
        for at in frame.walked:
            part, mask = field.parts[at], masks[at] if masks else None
            assert part.graph is not None
            rows, values = found[at]
            here = part.find(rows)
            good = here >= 0
            if mask is not None:
                good &= mask[np.maximum(here, 0)]
            self._walked.append(here[good] + frame.starts[at])
            walked.append(values[good])
            self.whole = self.whole and len(rows) >= part.graph.size
        if walked:
            self.values = np.concatenate((self.values, *walked))

    def slots(self, near: NDArray[np.intp]) -> Slots:
        """Whose the values at ``near`` (ascending) are."""
        frame = self._frame
        inside = int(near.searchsorted(frame.codes.size))
        if frame.settled:
            scanned = frame.owners[near[:inside]].astype(np.intp)
        else:
            scanned = near[:inside].copy()
            which = frame.ends.searchsorted(scanned, side="right")
            back = scanned - frame.ends[which] if inside else scanned  # counted from the end
            for n, (one, place) in enumerate(zip(which.tolist(), back.tolist(), strict=True)):
                at, there = frame.scanned[one]
                scanned[n] = frame.starts[at] + there.slots[place]
        if inside == len(near):
            return scanned
        walked = np.concatenate(self._walked)[near[inside:] - frame.codes.size]
        return np.concatenate((scanned, walked))


def shared(ahead: Executor | None, tasks: Sequence[Callable[[], object]]) -> None:
    """Run ``tasks``: here, and in a thread of ``ahead`` as soon as it is free. They hardly need the
    interpreter, so two cores take half the time."""
    left = deque(tasks)

    def drain() -> None:
        while left:
            try:
                task = left.popleft()
            except IndexError:  # the other thread was first
                return
            task()

    other = ahead.submit(drain) if ahead is not None and len(left) >= WORTH else None
    drain()
    if other is not None and not other.cancel():
        other.result()


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
    values = np.full(len(wanted), -np.inf)
    held: list[int] = []
    halves: list[Halves] = []
    unread: list[int] = []
    rows: list[int] = []
    left = list(enumerate(field.whose(np.array(wanted, dtype=np.intp))))
    for at in field.frame.walked:
        part = field.parts[at]
        graph = part.graph
        own = [(place, slot) for place, (of, slot) in left if of is part]
        if graph is None or not own:
            continue
        its = part.row[[slot for _, slot in own]]
        there = graph.holds(its)
        got = {place for (place, _), has in zip(own, there.tolist(), strict=True) if has}
        held += [place for place, _ in own if place in got]
        halves += list(graph.vectors(its[there]))
        left = [one for one in left if one[0] not in got]
    for place, (part, slot) in left:
        half: Halves | None = None
        if part.scanned is not None:
            kept = part.scanned.place(slot)
            if kept < 0:
                continue
            half = part.scanned.vector(kept)
            if half is None:
                unread.append(place)
                rows.append(int(part.row[slot]))
        if half is not None:
            held.append(place)
            halves.append(half)
    if unread:
        vectors, present = field.snapshot.vectors(rows)
        known = np.flatnonzero(present).tolist()
        held += [unread[at] for at in known]
        halves += [vectors[at] for at in known]
    if held:
        whole = np.concatenate(halves).reshape(len(held), -1)
        values[held] = exact(widened(whole), vector)
    return values
