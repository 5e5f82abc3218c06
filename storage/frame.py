"""The parts of one view side by side as one row of slots: what a query needs of them all at once.

A reader's view may have hundreds of parts, and it asks again. So what depends on the parts alone
is put together once and kept until something in the store changes. A frame is of its own view's
parts and of nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isovist.storage.changes import Change
from isovist.storage.codes import Abreast
from isovist.storage.columns import Mask, Part
from isovist.storage.parts import Parts
from isovist.storage.scanned import Scanned
from isovist.storage.snapshot import Snapshot
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import View

KEPT = 64
"""Views that are remembered, at most; up to fifty bytes a slot each."""
SLOTS = 2_000_000
"""Slots of all of them together, at most: beyond it the one that was asked longest ago goes."""
SETTLES = 2
"""Queries, nothing changing meanwhile, after which whole columns are put together."""
SUMS = 4_096
"""Terms whose frequencies are remembered of a view."""


class Frame:
    """``parts`` in the view's order, all that hold anything; ``starts`` where the slots of each
    begin, ``size`` how many slots there are, ``count`` and ``total`` the sums of their living
    chunks and of these's lengths."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        sizes = [part.n for part in parts]
        self.size = sum(sizes)
        self.starts: NDArray[np.intp] = np.cumsum([0, *sizes], dtype=np.intp)[:-1]
        self.count = sum(part.count for part in parts)
        self.total = sum(part.total for part in parts)
        self.places = {part.pid: at for at, part in enumerate(parts)}
        self.pids = list(self.places)
        self.soonest = min((part.soonest for part in parts), default=0)
        """Nothing here expires before this."""
        self.waiting = [
            (start, part)
            for start, part in zip(self.starts.tolist(), parts, strict=True)
            if part.delta is not None and len(part.delta)
        ]
        """Those of which the shared index lacks something."""
        self._sums: dict[int, int] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        self.asked = 0
        """How often."""

    def masks(self, query: SearchQuery, superseded: dict[int, list[int]]) -> list[Mask | None]:
        """Which slots of each part may answer, ``None`` for all that live; no list: of all parts
        all that live."""
        plain = query.since is None and query.until is None and not query.kinds
        plain = plain and not superseded and query.now < self.soonest
        if plain and not any(part.hidden_count for part in self.parts):
            return []
        return [part.filter(query, superseded.get(at, ())) for at, part in enumerate(self.parts)]

    def frequencies(self, tids: Sequence[int], snapshot: Snapshot) -> list[int]:
        """In how many chunks of the view each term stands."""
        sums = self._sums
        fresh = [tid for tid in tids if tid >= 0 and tid not in sums]
        if fresh:
            if len(sums) > SUMS:
                sums.clear()
                fresh = [tid for tid in tids if tid >= 0]
            found = snapshot.frequencies(fresh, self.pids)
            sums.update((tid, found.get(tid, 0)) for tid in fresh)
        return [sums.get(tid, 0) for tid in tids]

    @property
    def settled(self) -> bool:
        """Whether it has been asked often enough for whole columns to pay."""
        return self.asked > SETTLES

    def column(self, name: str) -> NDArray[Any]:
        """A column of all parts."""
        whole = self._columns.get(name)
        if whole is None:
            own = [getattr(part, name)[: part.n] for part in self.parts]
            whole = self._columns[name] = np.concatenate(own)
        return whole

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        """Whose the codes are, by place among :attr:`codes`."""
        whole = [self.starts[at] + scanned.slots for at, scanned in self.scanned]
        return np.concatenate([*whole, np.zeros(0, np.intp)]).astype(np.int32)

    @cached_property
    def scanned(self) -> list[tuple[int, Scanned]]:
        """Of each part that is scanned: its place, and what there is to scan."""
        return [
            (at, part.scanned)
            for at, part in enumerate(self.parts)
            if part.scanned is not None and part.scanned.size
        ]

    @cached_property
    def walked(self) -> list[int]:
        """The places of the parts that have a graph."""
        return [at for at, part in enumerate(self.parts) if part.graph is not None]

    @cached_property
    def codes(self) -> Abreast:
        return Abreast([s.codes for _, s in self.scanned], [s.size for _, s in self.scanned])

    @cached_property
    def ends(self) -> NDArray[np.intp]:
        """Where the codes of each that is scanned end."""
        return np.cumsum([scanned.size for _, scanned in self.scanned], dtype=np.intp)


class Frames:
    """The frames of the views that were asked last.

    Invariant: one that is given out was made since anything changed that a query reads.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._version = parts.ledger.version
        self._kept: dict[tuple[str, str, int], tuple[View, Frame]] = {}
        self._slots = 0

    def of(self, view: View, snapshot: Snapshot, *, vectors: bool) -> Frame:
        """The view's frame; with ``vectors`` the codes of all its parts are there."""
        ledger = self._parts.ledger
        if self._version != ledger.version:
            self.clear()
        key = (view.reader.user, view.reader.agent, len(view.partitions))
        found = self._kept.pop(key, None)
        if found is not None and found[0].partitions == view.partitions:
            self._kept[key] = found
            frame = found[1]
        else:
            self._slots -= found[1].size if found is not None else 0
            frame = self._keep(key, view, Frame(self._parts.of(view)))
        frame.asked += 1
        if vectors and any(part.scanned is None for part in frame.parts):
            for part in frame.parts:
                self._parts.read_vectors(part, snapshot)
            self.clear()
            self._keep(key, view, frame)
        return frame

    def _keep(self, key: tuple[str, str, int], view: View, frame: Frame) -> Frame:
        while self._kept and (len(self._kept) >= KEPT or self._slots + frame.size > SLOTS):
            _, gone = self._kept.pop(next(iter(self._kept)))
            self._slots -= gone.size
        self._kept[key] = view, frame
        self._slots += frame.size
        return frame

    def before(self, changes: Sequence[Change]) -> None:
        """These are about to be applied: let go of what they may change."""
        changed: set[int] = set()
        for change in changes:
            changed.update((change.pid, change.to_pid))
        changed.discard(0)
        # A part that holds nothing is in no frame, and will be in some.
        if any(pid not in self._parts or not self._parts[pid].count for pid in changed):
            self.clear()
            return
        for key, (_, frame) in list(self._kept.items()):
            if not changed.isdisjoint(frame.places):
                del self._kept[key]
                self._slots -= frame.size

    def clear(self) -> None:
        """Let go of all: they hold on to what their parts have dropped."""
        self._kept.clear()
        self._slots = 0
        self._version = self._parts.ledger.version
