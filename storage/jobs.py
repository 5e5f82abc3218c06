"""The jobs of the indexed engine's upkeep: see :mod:`isovist.storage.upkeep`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from isovist.storage.columns import Part
from isovist.storage.forward import unpack
from isovist.storage.graph import ENOUGH, Graph
from isovist.storage.inverted import Entry, Inverted
from isovist.storage.parts import Parts
from isovist.storage.resident import Packed, Resident
from isovist.storage.scanned import Scanned
from isovist.storage.snapshot import Snapshot


@runtime_checkable
class IndexJob(Protocol):
    """Made in the loop's thread, run in a worker's, finished in the loop's."""

    def run(self, reader: Callable[[], Snapshot]) -> None: ...

    def finish(self, snapshot: Snapshot) -> None:
        """``snapshot`` is the one that the engine reads. After a ``run`` that failed, undo."""
        ...


class CommitDelta:
    """Bring the shared index up to date: the delta of all parts goes in, drops go out."""

    def __init__(self, parts: Parts, inverted: Inverted, writing: threading.Lock) -> None:
        self._parts = parts
        self._inverted = inverted
        self._writing = writing
        self._drops, parts.drops = parts.drops, set()
        self._adds = [
            (part.pid, part.row[slots], part.said[slots])
            for part in parts
            if part.delta is not None and (slots := part.delta.living())
        ]
        self._done = False

    def run(self, reader: Callable[[], Snapshot]) -> None:
        entries: list[Entry] = []
        with reader() as snapshot:
            for pid, rows, said in self._adds:
                blobs = snapshot.known_forward(rows.tolist())
                entries += [
                    Entry(row, pid, at, unpack(blobs[row]))
                    for row, at in zip(rows.tolist(), said.tolist(), strict=True)
                    if row in blobs
                ]
        with self._writing:
            # A scrub may have brought some of them in meanwhile: none may stand there twice.
            drops = self._drops.union(entry.row for entry in entries)
            self._inverted.write(entries, drops, self._inverted.generation + 1)
        self._done = True

    def finish(self, snapshot: Snapshot) -> None:
        if not self._done:
            self._parts.drops |= self._drops
            return
        self._inverted.refresh()
        for pid, rows, _ in self._adds:
            part = self._parts[pid]
            part.committed(part.find(rows).tolist())
            if part.delta is None and part.n - part.count > max(1024, part.count):
                part.compact()


class BuildGraph:
    """Make the graph of a part anew, of all the vectors that it has now; with fewer than
    ``least`` it has none, nor where a walk finds too few of the nearest."""

    def __init__(
        self,
        parts: Parts,
        part: Part,
        path: Path,
        stamp: bytes,
        *,
        least: int,
        cancelled: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._part = part
        self._path = path
        self._stamp = stamp
        self._least = least
        self._cancelled = cancelled
        self._rows = np.sort(part.row[: part.n][part.alive[: part.n]])
        self._graph: Graph | None = None
        self._declined = 0
        self._done = False

    def run(self, reader: Callable[[], Snapshot]) -> None:
        with reader() as snapshot:
            vectors, present = snapshot.vectors(self._rows.tolist())
        rows = self._rows[present]
        if len(rows) >= max(self._least, 1):
            self._graph = Graph.build(rows, vectors[present], cancelled=self._cancelled)
            self._done = self._graph is not None
            if self._graph is not None and self._graph.recall < ENOUGH:
                self._graph, self._declined = None, len(rows)
        else:
            self._done = True
        # A graph that cannot be kept is made again after the next start; the old one must go.
        if self._done:
            with suppress(OSError):
                if self._graph is not None:
                    self._graph.save(self._path, self._stamp)
                    return
            self._path.unlink(missing_ok=True)

    def finish(self, snapshot: Snapshot) -> None:
        if not self._done:
            return
        part = self._part
        part.ledger.changed.add(part.pid)
        part.declined = self._declined
        if self._graph is not None:
            adopt(self._parts, part, self._graph, snapshot)
        else:
            part.graph, part.scanned, part.lost, part.tainted = None, None, 0, False
            self._parts.read_vectors(part, snapshot)


def adopt(parts: Parts, part: Part, graph: Graph, snapshot: Snapshot) -> None:
    """From here on ``graph`` answers for its rows; the others are scanned."""
    part.graph = graph
    part.lost = int((part.find(graph.rows) < 0).sum())
    # Of these nobody knows whether their unit was rewritten or has left.
    part.tainted = part.lost > 0
    old, part.scanned = part.scanned, None
    if old is None:
        parts.read_vectors(part, snapshot)
        return
    slots = old.slots[old.codes.present[: old.size]]
    rest = slots[~np.isin(part.row[slots], graph.rows)]
    vectors, present = snapshot.vectors(part.row[rest].tolist())
    part.scanned = Scanned(parts.dim, exact=False)
    part.scanned.put(rest[present], vectors[present])


class Pack:
    """Have a part's postings, packed, and its exact vectors in memory."""

    def __init__(self, parts: Parts, part: Part) -> None:
        self._parts = parts
        self._part = part
        self._slots = np.flatnonzero(part.alive[: part.n])
        self._rows = part.row[self._slots]
        self._shape = part.shape
        self._packed: Packed | None = None

    def run(self, reader: Callable[[], Snapshot]) -> None:
        with reader() as snapshot:
            blobs = snapshot.known_forward(self._rows.tolist())
        there = [at for at, row in enumerate(self._rows.tolist()) if row in blobs]
        self._slots = self._slots[there]
        self._packed = Packed(self._slots, [blobs[row] for row in self._rows[there].tolist()])

    def finish(self, snapshot: Snapshot) -> None:
        part = self._part
        if self._packed is None or part.shape != self._shape:
            part.ledger.changed.add(part.pid)
            return  # compacted meanwhile: the next one will do
        resident = Resident(self._packed)
        resident.dead = int((~part.alive[self._slots]).sum())
        packed = np.zeros(part.n, dtype=np.bool_)
        packed[self._slots] = True
        later = np.flatnonzero(part.alive[: part.n] & ~packed).tolist()
        blobs = snapshot.forward(part.row[later].tolist())
        for slot, blob in zip(later, blobs, strict=True):
            resident.add(slot, unpack(blob))
        part.resident = resident
        self._parts.read_vectors(part, snapshot)
        if part.scanned is not None and not part.scanned.exact:
            slots = part.scanned.slots[part.scanned.codes.present[: part.scanned.size]]
            vectors, _ = snapshot.vectors(part.row[slots].tolist())
            part.scanned.keep(slots, vectors)
