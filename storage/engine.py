"""The exhaustive engine: all units in memory, both legs exact per view.

It is the public in-memory engine and the oracle that faster legs are compared with. Its one read
is :meth:`MemoryEngine.select`, and that demands a sealed ``View`` (promise ``view.choke``).

Non-interference holds by construction (promise ``view.noninterference``): there is no index, no
counter, no dictionary and no cache beyond the shelf of one partition, and a query touches the
shelves of its view alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from isovist.storage.candidates import candidate
from isovist.storage.changes import NEVER
from isovist.storage.dense import Vector
from isovist.storage.field import ShelfField
from isovist.storage.matching import matches
from isovist.storage.pages import bounded, page
from isovist.storage.partitions import Shelf, Stored
from isovist.storage.prepared import Prepared, prepare
from isovist.storage.ranking import rank
from isovist.syscalls.errors import KernelError
from isovist.syscalls.operations import (
    Candidate,
    CountQuery,
    Drop,
    Expire,
    MatchQuery,
    Move,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    Replace,
    RoundsQuery,
    SearchQuery,
    Selection,
)
from isovist.syscalls.records import Partition, Reader, Unit, View


class MemoryEngine:
    """Units, postings and vectors of every partition; ``dim`` is the vectors' length."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._shelves: dict[Partition, Shelf] = {}

    # -- writes

    def apply(self, op: Op, outcome: Outcome, prepared: Prepared | None = None) -> None:
        """Take in an operation that is durable. One without effect (``errno`` not 0, or a
        duplicate) changes nothing. Operations of a partition come in the order of commit."""
        if outcome.errno or outcome.duplicate:
            return
        if isinstance(op, Put):
            self._put(op, prepared or prepare(op.text, op.said_at))
            return
        shelf = self._shelves.get(op.partition)
        stored = shelf.units.get(op.id) if shelf else None
        if shelf is None or stored is None:
            raise KernelError(f"{type(op).__name__} of a unit that the engine does not hold")
        if isinstance(op, Drop):
            shelf.forget(stored)
        elif isinstance(op, Replace):
            ready = prepared or prepare(op.text, stored.unit.said_at)
            unit = msgspec.structs.replace(
                stored.unit, text=op.text, version=outcome.version, stored_at=op.stored_at
            )
            shelf.replace(stored, unit, ready.hash, ready.spans, ready.terms)
        elif isinstance(op, Expire):
            unit = msgspec.structs.replace(
                stored.unit, expires_at=op.expires_at, version=outcome.version,
                stored_at=op.stored_at,
            )  # fmt: skip
            self._transfer(stored, unit, shelf, shelf, stored.seq, stored.born)
        elif isinstance(op, Move):
            unit = msgspec.structs.replace(
                stored.unit, scope=op.to.scope, version=outcome.version, stored_at=op.stored_at
            )
            if op.owner is not None:
                unit = msgspec.structs.replace(unit, user=op.owner[0], agent=op.owner[1])
            self._transfer(stored, unit, shelf, self._shelf(op.to), op.to_seq, op.stored_at)
        else:  # the store has made sure that the text is still the one that was embedded
            shelf.matrix.put(stored.slots, _rows(op.vectors, self.dim))

    def _transfer(
        self, stored: Stored, unit: Unit, source: Shelf, target: Shelf, seq: int, born: int
    ) -> None:
        """Index a unit anew as ``unit``, of the same text, without reading it."""
        terms, vectors = source.take(stored)
        new = Stored(unit, seq, born, stored.hash, stored.spans)
        target.add(new, terms)
        if vectors is not None:
            target.matrix.put(new.slots, vectors)

    def _shelf(self, partition: Partition) -> Shelf:
        shelf = self._shelves.get(partition)
        if shelf is None:
            shelf = self._shelves[partition] = Shelf(partition, self.dim)
        return shelf

    def _put(self, op: Put, ready: Prepared) -> None:
        unit = Unit(
            id=op.id,
            version=op.version,
            text=op.text,
            kind=op.kind,
            scope=op.partition.scope,
            agent=op.agent,
            user=op.user,
            stream=op.stream,
            said_at=op.said_at,
            stored_at=op.stored_at,
            session=op.session,
            round=op.round,
            expires_at=op.expires_at,
            supersedes=op.supersedes,
            meta=op.meta,
            handle=op.handle,
        )
        born = op.born_at or op.stored_at
        stored = Stored(unit, op.seq, born, ready.hash, ready.spans)
        self._shelf(op.partition).add(stored, ready.terms)

    def load(
        self,
        partition: Partition,
        units: Iterable[tuple[Stored, list[dict[str, int]], Sequence[bytes]]],
    ) -> None:
        """Take in a partition found on disk: its units in ascending sequence, each with the terms
        of its chunks and, where it has them, their vectors."""
        shelf = self._shelves[partition] = Shelf(partition, self.dim)
        slots: list[int] = []
        vectors: list[bytes] = []
        for stored, terms, held in units:
            shelf.add(stored, terms)
            if held:
                slots += stored.slots
                vectors += held
        if slots:
            shelf.matrix.put(slots, _rows(vectors, self.dim))

    # -- the one read

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        """The answer to ``query`` out of ``view``.

        ``vector`` (float32, unit length, ``dim`` long) is the embedded text of a search; without
        it the dense leg takes no part. A unit outside the view is answered exactly as one that
        never was. Raises ``EINVAL`` for an ``after`` that is no list's ``next``,
        ``ESTALE`` for one of another view.
        """
        if not isinstance(view, View):
            raise KernelError("a read without a view")
        if isinstance(query, SearchQuery):
            return self._search(view, query, vector)
        if isinstance(query, ReadQuery):
            return self._read(view, query)
        if isinstance(query, RoundsQuery):
            return self._rounds(view, query)
        shelves = [self._shelves.get(partition) for partition in view.partitions]
        if isinstance(query, CountQuery):
            counts = (
                0 if shelf is None
                else sum(1 for _ in shelf.down_from(NEVER, query.now, query.kinds))
                for shelf in shelves
            )  # fmt: skip
            return Selection(counts=tuple(counts))
        found, later = page(view.partitions, shelves, query)
        lines = tuple(
            _candidate(view.reader, view.partitions[place], stored) for place, stored in found
        )
        if isinstance(query, MatchQuery):
            lines = tuple(matches(query, view.reader, lines))
        return Selection(candidates=lines, next=later)

    def _shelves_of(self, view: View) -> list[Shelf]:
        found = (self._shelves.get(partition) for partition in view.partitions)
        return [shelf for shelf in found if shelf is not None]

    def _search(self, view: View, query: SearchQuery, vector: Vector | None) -> Selection:
        if vector is not None and (vector.shape != (self.dim,) or vector.dtype != np.float32):
            raise KernelError(
                f"a query vector of {vector.dtype} {vector.shape}, not of float32 ({self.dim},)"
            )
        field = ShelfField(self._shelves_of(view), query)
        ranked = rank(field, query, None if query.lexical_only else vector)
        coverage = field.coverage([slot for slot, _, _ in ranked])
        candidates: list[Candidate] = []
        for (slot, score, cosine), covered in zip(ranked, coverage, strict=True):
            part, local = field.locate(slot)
            stored = field.holder(slot)
            candidates.append(
                _candidate(
                    view.reader,
                    field.shelves[part].key,
                    stored,
                    number=stored.slots.index(local),
                    score=score,
                    cosine=cosine,
                    coverage=covered,
                )
            )
        return Selection(candidates=tuple(candidates))

    def _read(self, view: View, query: ReadQuery) -> Selection:
        for shelf in self._shelves_of(view):
            stored = shelf.units.get(query.id)
            if stored is not None and (query.expired or stored.lives(query.now)):
                return Selection(candidates=(_candidate(view.reader, shelf.key, stored),))
        return Selection()

    def _rounds(self, view: View, query: RoundsQuery) -> Selection:
        """Each stretch by round, then by the time of storing, then by the place in the view."""
        wanted: dict[str, tuple[Partition, Stored]] = {}
        for handle, low, high in query.wanted:
            stretch = [
                (unit.round, stored.born, place, stored.seq, stored)
                for place, partition in enumerate(view.partitions)
                if handle and partition in self._shelves
                for stored in self._shelves[partition].order
                if (unit := stored.unit).handle == handle
                and low <= unit.round <= high
                and stored.lives(query.now)
            ]
            for _, _, place, _, stored in sorted(stretch, key=lambda entry: entry[:4]):
                wanted.setdefault(stored.unit.id, (view.partitions[place], stored))
        sizes = ((len(found[1].unit.text.encode()), found) for found in wanted.values())
        some, cut = bounded(sizes, query.limit)
        return Selection(
            candidates=tuple(
                _candidate(view.reader, partition, stored) for partition, stored in some
            ),
            next=cut,
        )

    def statistics(self) -> dict[str, int]:
        """Sizes for the operator: they sum over all partitions and go to no agent."""
        shelves = self._shelves.values()
        return {
            "partitions": len(self._shelves),
            "units": sum(len(shelf.units) for shelf in shelves),
            "chunks": sum(shelf.postings.count for shelf in shelves),
            "vectors": sum(shelf.matrix.count for shelf in shelves),
            "terms": sum(len(shelf.postings) for shelf in shelves),
        }


def _rows(vectors: Sequence[bytes], dim: int) -> Vector:
    return np.frombuffer(b"".join(vectors), dtype="<f2").astype(np.float32).reshape(-1, dim)


def _candidate(reader: Reader, partition: Partition, stored: Stored, **found: Any) -> Candidate:
    return candidate(
        reader, partition, stored.unit, stored.spans, stored.hash, born_at=stored.born, **found
    )
