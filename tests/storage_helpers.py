"""What the storage tests share: views, operations, and a plain way to fill an engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from isovist.kernel.state.views import view_of
from isovist.storage.backend import Backend
from isovist.storage.embedder import HashEmbedder, stored
from isovist.storage.engine import MemoryEngine, prepare
from isovist.syscalls.operations import Drop, Op, Outcome, Put, Replace, SearchQuery, Vectors
from isovist.syscalls.records import Partition, Reader, View, audience_of

DIM = 32
EMBEDDER = HashEmbedder(DIM)
DAY = 86_400_000_000_000
T0 = 1_796_000_000_000_000_000


def view(user: str, agent: str) -> View:
    return view_of(Reader(user, agent))


def put(seq: int, text: str, *, scope: str = "pair", user: str = "ana", agent: str = "p",
        **fields: Any) -> Put:  # fmt: skip
    partition = audience_of(scope, user, agent)
    assert partition is not None, scope
    defaults: dict[str, Any] = {
        "id": f"{scope}-{user}-{agent}-{seq}",
        "kind": "note",
        "stream": "reusable",
        "said_at": T0 + seq * 1000,
        "stored_at": T0 + seq * 1000,
    }
    return Put(
        partition=partition, seq=seq, text=text, agent=agent, user=user, **{**defaults, **fields}
    )


def vectors(op: Put | Replace, outcome: Outcome) -> Vectors:
    return Vectors(
        partition=op.partition,
        seq=op.seq,
        id=outcome.id,
        version=outcome.version,
        model=EMBEDDER.name,
        vectors=tuple(stored(EMBEDDER.embed(chunk)) for chunk in outcome.chunks),
    )


def done(op: Op) -> Outcome:
    if isinstance(op, Put):
        chunks = prepare(op.text, op.said_at).chunks
        return Outcome(op=op, id=op.id, version=1, chunks=chunks)
    if isinstance(op, Replace):
        return Outcome(op=op, id=op.id, version=op.version + 1)
    return Outcome(op=op, id=op.id)


def fill(engine: MemoryEngine, *ops: Op, embed: bool = True) -> None:
    """Apply operations as if a store had committed them, with their vectors."""
    for op in ops:
        outcome = done(op)
        engine.apply(op, outcome)
        if embed and isinstance(op, Put):
            later = vectors(op, outcome)
            engine.apply(later, done(later))


def write(store: Backend, *ops: Op, embed: bool = True) -> list[Outcome]:
    """Commit, apply, and the same again for the vectors."""
    outcomes = store.commit(ops)
    store.apply(outcomes)
    if embed:
        later = [vectors(o.op, o) for o in outcomes if isinstance(o.op, Put | Replace) and o.chunks]
        store.apply(store.commit(later))
    return outcomes


def search(text: str, **fields: Any) -> SearchQuery:
    return SearchQuery(
        **{"text": text, "k": 8, "mode": "hybrid", "now": T0 + 1_000_000 * DAY // 1000, **fields}
    )


def embedded(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return EMBEDDER.embed(text)


__all__ = ["DAY", "DIM", "EMBEDDER", "T0", "Drop", "Partition", "Vectors", "done", "embedded",
           "fill", "put", "search", "vectors", "view", "write"]  # fmt: skip
