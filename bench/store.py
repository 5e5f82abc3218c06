"""A store as benches fill and ask it: with the embedder's vectors, and in one step a write."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.report import CannotRun
from bench.vectors import CachedEmbedder
from isovist.storage.embedder import stored
from isovist.storage.memory import MemoryStore
from isovist.syscalls.operations import (
    Drop,
    ListQuery,
    Move,
    Op,
    Outcome,
    Put,
    ReadQuery,
    SearchQuery,
    Selection,
    Vectors,
)
from isovist.syscalls.records import Mode, Partition, Unit, View

PAGE = 500
"""Units of a page of a list."""


class BenchStore:
    """The store in memory. Every unit is searchable in both legs when its write returns.

    ``now`` (ns) is the time of every read; the caller moves it.
    """

    def __init__(self, embedder: CachedEmbedder) -> None:
        self._store = MemoryStore(embedder.name, embedder.dim)
        self._embedder = embedder
        self._seq = 0
        self.now = 0

    def put(
        self, partition: Partition, text: str, *, user: str, agent: str, said_at: int, **more: Any
    ) -> tuple[str, str]:
        """Store a unit: its id, or that of the unit that says it already, and its text as it was
        stored (the guard may have replaced something in it)."""
        seq = self._next()
        fields: dict[str, Any] = {"kind": "note", "stream": "reusable", "stored_at": said_at}
        op = Put(
            partition=partition,
            seq=seq,
            id=f"u{seq}",
            text=text,
            user=user,
            agent=agent,
            said_at=said_at,
            **(fields | more),
        )
        outcome = self._done(op)
        self._embed(partition, outcome)
        assert isinstance(outcome.op, Put)
        return outcome.id, outcome.op.text

    def move(self, unit: str, partition: Partition, to: Partition) -> None:
        self._done(
            Move(
                partition=partition,
                seq=self._next(),
                id=unit,
                version=1,
                to=to,
                to_seq=self._next(),
                stored_at=self.now,
            )
        )

    def drop(self, unit: str, partition: Partition) -> None:
        self._done(Drop(partition=partition, seq=self._next(), id=unit))

    def search(self, view: View, text: str, k: int, mode: Mode = "hybrid") -> Selection:
        query = SearchQuery(text=text, k=k, mode=mode, now=self.now)
        return self._store.select(view, query, self._vector(text))

    def read(self, view: View, unit: str) -> tuple[Unit, ...]:
        return self._store.select(view, ReadQuery(id=unit, now=self.now)).units()

    def everything(self, view: View) -> list[Unit]:
        """All that a list shows, page by page."""
        units: list[Unit] = []
        after = ""
        while True:
            query = ListQuery(limit=PAGE, now=self.now, after=after)
            page = self._store.select(view, query)
            units += page.units()
            after = page.next
            if not after:
                return units

    def _vector(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.asarray(self._embedder.embed(text), np.float32)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _embed(self, partition: Partition, outcome: Outcome) -> None:
        if outcome.duplicate or not outcome.chunks:
            return
        self._done(
            Vectors(
                partition=partition,
                seq=self._next(),
                id=outcome.id,
                version=outcome.version,
                model=self._embedder.name,
                vectors=tuple(stored(self._vector(chunk)) for chunk in outcome.chunks),
            )
        )

    def _done(self, op: Op) -> Outcome:
        (outcome,) = self._store.commit([op])
        if outcome.errno:
            raise CannotRun(f"the store refused {type(op).__name__}: {outcome.message}")
        self._store.apply([outcome])
        return outcome
