"""The indexed engine: what answers when the store is large.

Columns of every chunk are in memory, texts in SQLite; the lexical leg is one shared inverted
index with a delta, or postings in memory for small views; the dense leg is a scan of int8 codes,
or a graph a partition. All of it is derived from SQLite and made anew where it is missing.

Its answers are those of the exhaustive engine, bit for bit (where a graph takes part, all but
surely), and depend on the view alone (promise ``view.noninterference``): the one structure that
partitions share proposes candidates and decides no score.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from isovist.storage import graph
from isovist.storage.candidates import candidate
from isovist.storage.changes import Change, Found, Link
from isovist.storage.dense import Vector
from isovist.storage.engines import Job
from isovist.storage.frame import Frames
from isovist.storage.inverted import Inverted
from isovist.storage.lookup import look_up
from isovist.storage.part_field import PartField
from isovist.storage.parts import Parts
from isovist.storage.ranking import rank
from isovist.storage.snapshot import Snapshot
from isovist.storage.upkeep import Upkeep
from isovist.syscalls.errors import KernelError
from isovist.syscalls.operations import Candidate, Query, SearchQuery, Selection
from isovist.syscalls.records import View


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """``crossover`` is the number of vectors from which a partition has a graph (0: none has),
    ``room`` the bytes that partitions held whole in memory may take together, ``narrow`` the
    chunks in a view up to which these answer for it, ``delta`` how many chunks may wait for the
    shared index."""

    crossover: int = graph.CROSSOVER
    room: int = 256 << 20
    narrow: int = 16_384
    delta: int = 512


USUAL = Tuning()


class IndexedEngine:
    """An :class:`~isovist.storage.engines.Engine` over a store's snapshots.

    ``folder`` is where derived files live, ``fingerprint`` names the store and the rules by which
    terms and vectors were made: files of another are not used.
    """

    def __init__(self, dim: int, folder: Path, fingerprint: bytes, tuning: Tuning) -> None:
        self.dim = dim
        self._tuning = tuning
        folder.mkdir(mode=0o700, exist_ok=True)
        self._inverted, _ = Inverted.open(folder / "words", fingerprint)
        self.parts = Parts(dim)
        self.upkeep = Upkeep(
            self.parts,
            self._inverted,
            folder=folder / "graphs",
            stamp=fingerprint,
            crossover=tuning.crossover,
            room=tuning.room,
            narrow=tuning.narrow,
            delta=tuning.delta,
        )
        self._frames = Frames(self.parts)
        self._ahead = ThreadPoolExecutor(1, "isovist-lexical")
        self._tick = itertools.count(1)
        self._snapshot: Snapshot | None = None

    def load(self, found: Iterable[Found], links: Iterable[Link], snapshot: Snapshot) -> None:
        """Take in a store found on disk, once, before anything else."""
        self._snapshot = snapshot
        self.parts.ledger.version += 1
        self.parts.load(found, links, self._inverted.entries())
        self.upkeep.fill(self.parts.missing(), snapshot)
        self.upkeep.load_graphs(snapshot)

    def apply(self, changes: Sequence[Change], snapshot: Snapshot) -> None:
        """Take in one commit; from here on reads are at ``snapshot``, the state right after it."""
        self._snapshot = snapshot
        self._frames.before(changes)
        self.parts.apply(changes, snapshot)

    # -- the one read

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        """See :meth:`isovist.storage.engine.MemoryEngine.select`."""
        if not isinstance(view, View):
            raise KernelError("a read without a view")
        snapshot = self._reading()
        if not isinstance(query, SearchQuery):
            return look_up(view, query, snapshot, self.parts.pids)
        if vector is not None and (vector.shape != (self.dim,) or vector.dtype != np.float32):
            raise KernelError(
                f"a query vector of {vector.dtype} {vector.shape}, not of float32 ({self.dim},)"
            )
        dense = vector is not None and query.mode != "bm25" and not query.lexical_only
        frame = self._frames.of(view, snapshot, vectors=dense)
        parts = frame.parts
        if not parts:
            return Selection()
        used = next(self._tick)
        for part in parts:
            part.used = used
        if frame.size <= self._tuning.narrow:
            self.parts.ledger.changed.update(frame.pids)
        wander = any(part.wandering for part in parts)
        hidden = self.parts.links.superseded(parts, query.now) if wander else {}
        ahead = self._ahead if dense else None
        narrow = self._tuning.narrow
        field = PartField(frame, query, snapshot, self._inverted, hidden, narrow, ahead)
        ranked = rank(field, query, vector if dense else None)
        return Selection(candidates=tuple(self._shown(view, field, ranked)))

    def _shown(
        self, view: View, field: PartField, ranked: Sequence[tuple[int, float, float]]
    ) -> Iterable[Candidate]:
        coverage = field.coverage([slot for slot, _, _ in ranked])
        places = [field.locate(slot) for slot, _, _ in ranked]
        held = self._reading().units([int(part.uid[slot]) for part, slot in places])
        for (part, slot), (_, score, cosine), covered in zip(places, ranked, coverage, strict=True):
            found = held[int(part.uid[slot])]
            yield candidate(
                view.reader,
                part.key,
                found.unit,
                found.spans,
                found.hash,
                born_at=found.born_at,
                number=int(part.number[slot]),
                score=score,
                cosine=cosine,
                coverage=covered,
            )

    def _reading(self) -> Snapshot:
        if self._snapshot is None:
            raise KernelError("a read before the store was restored")
        return self._snapshot

    def statistics(self) -> dict[str, int]:
        """Sizes for the operator: they sum over all partitions and go to no agent."""
        parts = list(self.parts)
        return {
            "partitions": len(parts),
            "chunks": sum(part.count for part in parts),
            "vectors": sum(part.vectors for part in parts),
            "delta": self.parts.ledger.waiting,
            "graphs": sum(part.graph is not None for part in parts),
            "resident": sum(part.resident is not None for part in parts),
        }

    # -- upkeep

    def job(self) -> Job | None:
        return self.upkeep.next()

    def finish(self, job: Job) -> None:
        self.parts.ledger.version += 1
        self.upkeep.finish(job, self._reading())

    def scrub(self, reader: Callable[[], Snapshot]) -> bool:
        """Let nothing of what was dropped remain in a derived file, in any one thread. False where
        a graph has yet to be made anew: then jobs are due, and it is to be called again."""
        self.parts.ledger.version += 1
        return self.upkeep.scrub(reader)

    def stop(self) -> None:
        self.upkeep.closing = True

    def close(self) -> None:
        self.stop()
        self._ahead.shutdown()
        self._inverted.close()
