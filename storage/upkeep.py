"""What the indexed engine does beside answering: commits of the shared index, graphs, postings in
memory.

Work comes in jobs. The loop's thread takes one from :meth:`Upkeep.next` (it holds copies of all
that it needs; a look costs what has changed since the last one, not what there is), a worker's
thread runs it, and the loop's thread has it finished: what changed meanwhile is seen to there. One
job at a time. A graph is due by the history of its own partition alone. When the shared index
commits, and what is kept in memory, depends on all partitions: it changes no answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isovist.storage import graph as graphs
from isovist.storage.columns import Part
from isovist.storage.forward import unpack
from isovist.storage.graph import Graph
from isovist.storage.inverted import Entry, Inverted
from isovist.storage.jobs import BuildGraph, CommitDelta, IndexJob, Pack, adopt
from isovist.storage.parts import Parts
from isovist.storage.snapshot import Snapshot
from isovist.syscalls.errors import Errno, WorldError

if TYPE_CHECKING:
    from isovist.storage.engines import Job

AT_ONCE = 4096
"""Chunks that the shared index may lack at start and that become delta; more are indexed first."""


class Upkeep:
    """See :class:`~isovist.storage.indexed.Tuning` for the settings."""

    def __init__(
        self,
        parts: Parts,
        inverted: Inverted,
        *,
        folder: Path,
        stamp: bytes,
        crossover: int,
        room: int,
        narrow: int,
        delta: int,
    ) -> None:
        self._parts = parts
        self._inverted = inverted
        self._folder = folder
        self._stamp = graphs.stamp_of(np.zeros(0, np.int64), stamp)
        self._crossover = crossover if graphs.available() else 0
        self._room = room
        self._narrow = narrow
        self._delta = delta
        self._to_build: dict[int, None] = {}
        self._to_fit: dict[int, None] = {}
        """Partitions to look at, for a graph and for the room, in order."""
        self._held: dict[int, int] = {}
        """What each partition takes of the room, the one that was needed last at the end."""
        self._taken = 0
        self._writing = threading.Lock()  # the shared index has one writer at a time
        self.closing = False
        folder.mkdir(parents=True, exist_ok=True)

    # -- at start

    def fill(self, missing: Sequence[tuple[Part, NDArray[np.intp]]], snapshot: Snapshot) -> None:
        """Bring in what the shared index lacks: few chunks as delta, many into the index."""
        if sum(len(slots) for _, slots in missing) <= AT_ONCE:
            for part, slots in missing:
                blobs = snapshot.forward(part.row[slots].tolist())
                part.await_commit(zip(slots.tolist(), map(unpack, blobs), strict=True))
            return
        drops, self._parts.drops = self._parts.drops, set()
        self._inverted.write((), drops, 0)
        whole = [(part.pid, part.row[slots], part.said[slots]) for part, slots in missing]
        self._inverted.write(_entries(whole, snapshot), (), self._inverted.generation + 1)
        self._inverted.refresh()

    def load_graphs(self, snapshot: Snapshot) -> None:
        """Take in the graphs that are on disk, once; all other files go. One that is not used is
        never made anew, and would keep what is forgotten."""
        used: set[Path] = set()
        for part in self._parts if self._crossover else ():
            if part.vectors >= self._crossover // 2:
                graph = Graph.load(self._path(part), self._stamp, self._parts.dim)
                if graph is not None and self._fits(part, graph, snapshot):
                    adopt(self._parts, part, graph, snapshot)
                    used.add(self._path(part))
        for path in set(self._folder.iterdir()) - used:
            path.unlink()

    @staticmethod
    def _fits(part: Part, graph: Graph, snapshot: Snapshot) -> bool:
        """Whether a graph found on disk is of this file: a row is never used twice, so a look at
        the newest vectors that both have tells."""
        known = graph.rows[part.find(graph.rows) >= 0][-32:]
        if not len(known):
            return False
        vectors, present = snapshot.vectors(known.tolist())
        return bool(present.all()) and bool((vectors == graph.vectors(known)).all())

    def _path(self, part: Part) -> Path:
        return self._folder / f"{part.pid}.graph"

    # -- in between

    def next(self) -> Job | None:
        """What is due, if anything."""
        ledger = self._parts.ledger
        if ledger.waiting + len(self._parts.drops) >= self._delta:
            return CommitDelta(self._parts, self._inverted, self._writing)
        self._note(ledger.changed)
        while self._to_build:
            part = self._parts[next(iter(self._to_build))]
            if self._graph_due(part):
                return BuildGraph(
                    self._parts,
                    part,
                    self._path(part),
                    self._stamp,
                    # Much smaller than it was: a scan does, and a graph would come and go.
                    least=self._crossover // 2,
                    cancelled=lambda: self.closing,
                )
            del self._to_build[part.pid]
        while self._to_fit:
            part = self._parts[next(iter(self._to_fit))]
            del self._to_fit[part.pid]
            if self._kept(part) and part.count and (part.resident is None or part.resident.stale):
                return Pack(self._parts, part)
        return None

    def _note(self, changed: set[int]) -> None:
        """What has changed or was asked since the last look is looked at; who was asked last
        stays in memory longest."""
        pids: list[int] = []
        while changed:  # another thread may add to it
            pids.append(changed.pop())
        for pid in sorted(pids, key=lambda pid: (self._parts[pid].used, pid)):
            self._to_build[pid] = self._to_fit[pid] = None

    def finish(self, job: Job, snapshot: Snapshot) -> None:
        assert isinstance(job, IndexJob)
        job.finish(snapshot)

    def _graph_due(self, part: Part) -> bool:
        # By numbers that are always there: what others asked, or when the shared index was
        # committed, decides whether the vectors themselves are in memory.
        if not self._crossover:
            return False
        if part.graph is None:
            return part.vectors >= max(self._crossover, part.declined + part.declined // 4)
        size = part.graph.size
        behind = part.vectors - (size - part.lost)
        return part.tainted or behind > max(size // 4, 256) or part.lost > max(size // 10, 64)

    def _kept(self, part: Part) -> bool:
        """Whether the room has a place for ``part``, which was asked or written last. Others make
        way for it, unless nobody has asked for it yet. They come back when they are asked again,
        and not before: two that do not fit beside each other would take turns for ever."""
        self._taken -= self._held.pop(part.pid, 0)
        cost = self._cost(part)
        room = self._room if part.used else self._room - self._taken
        if part.n > self._narrow or cost > room:
            part.let_go()
            return False
        self._held[part.pid] = cost
        self._taken += cost
        while self._taken > self._room:
            oldest = next(iter(self._held))
            self._taken -= self._held.pop(oldest)
            self._parts[oldest].let_go()
        return True

    def _cost(self, part: Part) -> int:
        packed = 8 * part.total + 2 * self._parts.dim * part.n
        return max(packed, part.resident.memory if part.resident is not None else 0)

    def scrub(self, reader: Callable[[], Snapshot]) -> bool:
        """See :meth:`~isovist.storage.indexed.IndexedEngine.scrub`. The shared index is written
        anew if it holds anything dead, while it is read: what it then holds beyond the delta's
        knowledge is the delta's own, and is met there with the same score."""
        with self._writing, reader() as snapshot:
            generation = self._inverted.generation + 1
            # What was dropped since the last commit of the index lives on in it until the next.
            awaited = bool(self._parts.drops)
            if self._inverted.scrub(self._living(snapshot), generation, awaited=awaited):
                self._inverted.refresh()
            self._inverted.sweep()
        return not any(part.tainted for part in list(self._parts))  # the loop may add one

    def _living(self, snapshot: Snapshot) -> Iterator[Entry]:
        for entry in _everything(snapshot):
            if self.closing:
                raise WorldError("the store is about to be closed", errno=Errno.ECANCELED)
            yield entry


def _entries(
    chunks: Sequence[tuple[int, NDArray[np.int64], NDArray[np.int64]]], snapshot: Snapshot
) -> Iterator[Entry]:
    for pid, rows, said in chunks:
        for start in range(0, len(rows), 1024):
            some = rows[start : start + 1024].tolist()
            blobs = snapshot.known_forward(some)
            for row, at in zip(some, said[start : start + 1024].tolist(), strict=True):
                if row in blobs:
                    yield Entry(row, pid, at, unpack(blobs[row]))


def _everything(snapshot: Snapshot) -> Iterator[Entry]:
    for row, pid, said, terms in snapshot.chunks():
        yield Entry(row, pid, said, unpack(terms))
