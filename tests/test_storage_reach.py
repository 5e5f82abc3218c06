"""How far a walk over a graph reaches: no node is out of reach, and what walks badly is scanned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.scripted import upkeep
from numpy.typing import NDArray
from storage_helpers import EMBEDDER, put, write

from isovist.storage import graph as module
from isovist.storage import reach
from isovist.storage.graph import ENOUGH, Graph, available
from isovist.storage.indexed import IndexedEngine, Tuning
from isovist.storage.store import Store
from isovist.syscalls.operations import Put

pytestmark = pytest.mark.skipif(not available(), reason="the extra `ann` is not installed")


def scattered(n: int, dim: int = 256) -> NDArray[np.float16]:
    """Vectors that have little in common, but that every fifth lies near all others."""
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, dim)) / dim**0.5
    middle = rows.sum(axis=0) / n**0.5
    rows[::5] = middle + 0.3 * rows[::5]
    rows += 0.3 * middle
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def build(vectors: NDArray[np.float16]) -> Graph:
    graph = Graph.build(np.arange(1, len(vectors) + 1), vectors, cancelled=lambda: False)
    assert graph is not None
    return graph


def lost(graph: Graph, vectors: NDArray[np.float16]) -> list[int]:
    """Rows that are not found by their own vector."""
    own = vectors.astype(np.float32)
    return [i for i, q in enumerate(own, 1) if i not in graph.nearest(q, 10)[0]]


@pytest.mark.promise("barrier.order")
@pytest.mark.parametrize("n", [70, 600])
def test_a_small_graph_finds_every_row_by_its_own_vector(n: int, tmp_path: Path) -> None:
    vectors = scattered(n)
    graph = build(vectors)
    assert lost(graph, vectors) == []
    graph.save(tmp_path / "graph", b"s" * 32)
    loaded = Graph.load(tmp_path / "graph", b"s" * 32, vectors.shape[1])
    assert loaded is not None
    assert lost(loaded, vectors) == []
    assert (loaded.ef, loaded.recall) == (graph.ef, graph.recall)


def test_nodes_to_which_no_link_leads_are_found_all_the_same() -> None:
    vectors = scattered(1_000)
    graph = build(vectors)
    assert len(graph._strays), "nothing to be seen here: draw other vectors"
    rows = (graph._strays + 1).tolist()
    assert all(row in graph.nearest(vectors[row - 1].astype(np.float32), 10)[0] for row in rows)
    graph._strays = graph._strays[:0]
    gone = [row for row in rows
            if row not in graph.nearest(vectors[row - 1].astype(np.float32), 10)[0]]  # fmt: skip
    assert gone, "they would have been found anyhow"


def test_all_are_found_where_a_walk_meets_what_seemed_out_of_reach() -> None:
    """It did not end once: who asks for more until all are here was given one too few."""
    vectors = scattered(200)
    graph = build(vectors)
    graph._strays = np.array([3, 77], dtype=np.int32)
    for k in (1, 10, 150, 199, 200):
        rows, scores = graph.nearest(vectors[5].astype(np.float32), k)
        assert len(set(rows.tolist())) == len(rows) == k
        assert (scores[1:] <= scores[:-1]).all()
        assert rows[0] == 6


def test_a_walk_widens_until_it_finds_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WHOLE", 0)
    monkeypatch.setattr(module, "_EF", ((1 << 20, 60),))
    near, far = build(scattered(200)), build(scattered(3_000))
    assert (near.ef, near.recall >= ENOUGH) == (60 * 2 ** [60, 120, 240].index(near.ef), True)
    assert far.ef == 240
    assert far.recall < ENOUGH


def test_what_is_measured_is_what_is_found() -> None:
    vectors = scattered(500).astype(np.float16)
    probes = reach.questions(vectors)
    cuts = reach.best(vectors, probes)
    assert len(probes) == reach.PROBES
    exact = np.sort(probes @ vectors.astype(np.float32).T, axis=1)[:, ::-1][:, : reach.NEAREST]
    assert np.allclose(cuts, exact[:, -1], atol=1e-5)
    answers = iter(exact)
    assert reach.recall(lambda q: next(answers), probes, cuts, 500) == 1.0
    halves = iter(exact[:, ::2])
    assert reach.recall(lambda q: next(halves), probes, cuts, 500) == 0.5
    few = scattered(3)
    assert reach.recall(lambda q: few.astype(np.float32) @ q, reach.questions(few),
                        reach.best(few, reach.questions(few)), 3) == 1.0  # fmt: skip


@pytest.mark.promise("barrier.order")
def test_where_a_graph_finds_too_little_all_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isovist.storage.jobs.ENOUGH", 1.1)
    store = Store.open(
        tmp_path / "isovist.db", EMBEDDER.name, EMBEDDER.dim,
        tuning=Tuning(crossover=12, delta=8, narrow=4, room=1 << 20),
    )  # fmt: skip
    store.restore()

    def more(first: int, count: int) -> Put:
        puts = [put(n, f"lamp {n} in the hall") for n in range(first, first + count)]
        write(store, *puts)
        return puts[0]

    one = more(1, 16)
    engine = store._engine
    assert isinstance(engine, IndexedEngine)
    part = engine.parts[engine.parts.pids[one.partition]]
    upkeep(store)
    assert (part.graph, part.declined) == (None, 16)
    assert part.scanned is not None
    assert part.scanned.codes.count == 16
    monkeypatch.undo()
    more(17, 3)
    upkeep(store)
    assert part.graph is None, "no other is tried so soon"
    more(20, 1)
    upkeep(store)
    assert part.graph is not None
    assert (part.graph.size, part.declined) == (20, 0)
    store.close()
