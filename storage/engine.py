"""The exhaustive engine: all units in memory, both legs exact per view.

It is the public in-memory engine and the oracle that faster legs are compared with. Its one read
is :meth:`MemoryEngine.select`, and that demands a sealed ``View`` (promise ``view.choke``).

Non-interference holds by construction (promise ``view.noninterference``): there is no index, no
counter, no dictionary and no cache beyond the shelf of one partition, and a query touches the
shelves of its view alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from isovist.storage.chunks import Span, dated, spans
from isovist.storage.dense import Vector
from isovist.storage.field import Field
from isovist.storage.pages import page
from isovist.storage.partitions import Shelf, Stored
from isovist.storage.ranking import rank
from isovist.storage.words import index_terms, query_terms
from isovist.syscalls.errors import KernelError
from isovist.syscalls.operations import (
    Candidate,
    Drop,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    Replace,
    SearchQuery,
    Selection,
)
from isovist.syscalls.records import Hit, Partition, Reader, Unit, View


class Prepared(msgspec.Struct, frozen=True):
    """What indexing a text takes, so that it can be made in another thread than the loop's."""

    hash: str
    spans: tuple[Span, ...]
    terms: list[dict[str, int]]
    chunks: tuple[str, ...]
    """What the dense leg embeds: each chunk with its date."""


def prepare(text: str, said_at: int) -> Prepared:
    cuts = spans(text)
    chunks = tuple(dated(span.cut(text), said_at) for span in cuts)
    return Prepared(text_hash(text), cuts, terms_of(text, said_at, cuts), chunks)


def terms_of(text: str, said_at: int, spans: tuple[Span, ...]) -> list[dict[str, int]]:
    """The terms of each chunk, as they are indexed."""
    return [index_terms(dated(span.cut(text), said_at)) for span in spans]


def text_hash(text: str) -> str:
    """SHA-256 of a unit's text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
            shelf.drop(stored)
        elif isinstance(op, Replace):
            ready = prepared or prepare(op.text, stored.unit.said_at)
            unit = msgspec.structs.replace(
                stored.unit, text=op.text, version=outcome.version, stored_at=op.stored_at
            )
            shelf.replace(stored, unit, ready.hash, ready.spans, ready.terms)
        elif op.version == stored.unit.version:
            shelf.matrix.put(stored.slots, _rows(op.vectors, self.dim))

    def _put(self, op: Put, ready: Prepared) -> None:
        shelf = self._shelves.get(op.partition)
        if shelf is None:
            shelf = self._shelves[op.partition] = Shelf(op.partition, self.dim)
        unit = Unit(
            id=op.id,
            version=1,
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
        )
        stored = Stored(unit, op.seq, op.stored_at, ready.hash, ready.spans)
        shelf.add(stored, ready.terms)

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
        never was. Raises ``EINVAL`` for an ``after`` that is no list's ``next``.
        """
        if not isinstance(view, View):
            raise KernelError("a read without a view")
        if isinstance(query, SearchQuery):
            return self._search(view, query, vector)
        if isinstance(query, ReadQuery):
            return self._read(view, query)
        shelves = [self._shelves.get(partition) for partition in view.partitions]
        found, later = page(shelves, query)
        return Selection(
            candidates=tuple(_candidate(view.reader, shelf, stored) for shelf, stored in found),
            next=later,
        )

    def _shelves_of(self, view: View) -> list[Shelf]:
        found = (self._shelves.get(partition) for partition in view.partitions)
        return [shelf for shelf in found if shelf is not None]

    def _search(self, view: View, query: SearchQuery, vector: Vector | None) -> Selection:
        if vector is not None and (vector.shape != (self.dim,) or vector.dtype != np.float32):
            raise KernelError(
                f"a query vector of {vector.dtype} {vector.shape}, not of float32 ({self.dim},)"
            )
        field = Field(self._shelves_of(view))
        lexical = field.lexical(query_terms(query.text))
        ranked = rank(field, query, lexical, None if query.lexical_only else vector)
        coverage = lexical.coverage([slot for slot, _, _ in ranked])
        candidates: list[Candidate] = []
        for (slot, score, cosine), covered in zip(ranked, coverage, strict=True):
            part, local = field.locate(slot)
            stored = field.holder(slot)
            candidates.append(
                _candidate(
                    view.reader,
                    field.shelves[part],
                    stored,
                    chunk=stored.spans[stored.slots.index(local)].cut(stored.unit.text),
                    score=score,
                    cosine=cosine,
                    coverage=covered,
                )
            )
        return Selection(candidates=tuple(candidates))

    def _read(self, view: View, query: ReadQuery) -> Selection:
        for shelf in self._shelves_of(view):
            stored = shelf.units.get(query.id)
            if stored is not None and stored.lives(query.now):
                return Selection(candidates=(_candidate(view.reader, shelf, stored),))
        return Selection()

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
    return np.frombuffer(b"".join(vectors), dtype="<f4").reshape(-1, dim)


def _candidate(
    reader: Reader,
    shelf: Shelf,
    stored: Stored,
    *,
    chunk: str | None = None,
    score: float = 0.0,
    cosine: float = 0.0,
    coverage: float = 0.0,
) -> Candidate:
    """What a reader is shown of a unit: another user's name is not."""
    unit = stored.unit
    owner = unit.user
    if owner != reader.user:
        unit = msgspec.structs.replace(unit, user="")
    if chunk is None:
        chunk = stored.spans[0].cut(unit.text)
    return Candidate(
        hit=Hit(unit=unit, chunk=chunk, score=score),
        partition=shelf.key,
        owner_agent=unit.agent,
        owner_user=owner,
        cosine=cosine,
        coverage=coverage,
        hash=stored.hash,
    )
