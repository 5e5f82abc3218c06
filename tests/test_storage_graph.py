"""A partition's graph: near enough, the same every time, and never read from a damaged file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from isovist.storage import graph as module
from isovist.storage.dense import Vector, exact
from isovist.storage.graph import Graph, available, ef_of, stamp_of

needs_hnswlib = pytest.mark.skipif(not available(), reason="the extra `ann` is not installed")

DIM = 48


def units(n: int, seed: int = 0) -> NDArray[np.float16]:
    """Vectors in clusters, as texts are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(n // 50, 1), DIM))
    rows = centres[rng.integers(len(centres), size=n)] + 0.6 * rng.standard_normal((n, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def queries(n: int, seed: int = 0) -> Vector:
    rows = units(40 * n, seed)[::40].astype(np.float32)
    rows += np.random.default_rng(seed + 1).standard_normal(rows.shape).astype(np.float32) * 0.05
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def labels(n: int) -> NDArray[np.int64]:
    return np.cumsum(np.random.default_rng(5).integers(1, 9, size=n)).astype(np.int64)


def build(rows: NDArray[np.int64], vectors: NDArray[np.float16]) -> Graph:
    graph = Graph.build(rows, vectors, cancelled=lambda: False)
    assert graph is not None
    return graph


def answers(graph: Graph, k: int = 20) -> list[tuple[list[int], list[float]]]:
    found = [graph.nearest(q, k) for q in queries(20)]
    return [(rows.tolist(), approx.tolist()) for rows, approx in found]


def recall(graph: Graph, vectors: NDArray[np.float16], k: int) -> float:
    """The part of ``k`` rows that are as near as the k-th nearest."""
    hits = 0
    for q in queries(50):
        scores = exact(vectors.astype(np.float32), q)
        rows, _ = graph.nearest(q, k)
        found = scores[np.searchsorted(graph.rows, rows)]
        hits += int((found >= np.sort(scores)[-k]).sum())
    return hits / (50 * k)


@needs_hnswlib
def test_the_nearest_are_found() -> None:
    vectors = units(3000)
    graph = build(labels(3000), vectors)
    assert recall(graph, vectors, 10) >= 0.995
    assert recall(graph, vectors, 50) >= 0.98


@needs_hnswlib
def test_more_neighbours_get_a_wider_walk() -> None:
    vectors = units(3000)
    assert recall(build(labels(3000), vectors), vectors, 300) >= 0.98


@needs_hnswlib
def test_copies_of_one_vector_hide_nothing() -> None:
    """hnswlib alone finds half here: copies link to each other and to nothing else."""
    vectors = units(4000)
    vectors[np.random.default_rng(1).permutation(4000)[:1500]] = vectors[17]
    graph = build(labels(4000), vectors)
    assert recall(graph, vectors, 50) >= 0.98
    rows, approx = graph.nearest(vectors[17].astype(np.float32), 2000)
    copies = graph.rows[(vectors == vectors[17]).all(axis=1)]
    assert rows[: len(copies)].tolist() == copies.tolist()
    assert len(set(approx[: len(copies)].tolist())) == 1


@needs_hnswlib
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60),
    distinct=st.integers(1, 60),
    k=st.integers(1, 80),
    seed=st.integers(0, 1000),
)
def test_answers_are_rows_once_best_first_with_their_scores(
    n: int, distinct: int, k: int, seed: int
) -> None:
    vectors = units(60, seed)[np.random.default_rng(seed).integers(distinct, size=n)]
    graph = build(labels(n), vectors)
    rows, approx = graph.nearest(queries(1, seed)[0], k)
    assert rows.dtype == np.int64
    assert approx.dtype == np.float32
    assert len(set(rows.tolist())) == len(rows) == min(n, k)
    assert graph.size == n
    at = np.searchsorted(graph.rows, rows)
    assert (graph.rows[at] == rows).all()
    order = [(-score, row) for score, row in zip(approx.tolist(), rows.tolist(), strict=True)]
    assert order == sorted(order)
    scores = exact(vectors[at].astype(np.float32), queries(1, seed)[0])
    assert np.abs(scores - approx).max() < 1e-6
    assert graph.vectors(rows).tobytes() == vectors[at].tobytes()


@needs_hnswlib
def test_all_rows_can_be_asked_for() -> None:
    """A walk does not reach every node: hnswlib then raises, and a scan answers."""
    vectors = units(3000)
    vectors[:1000] = units(10)[np.arange(1000) % 10]
    graph = build(labels(3000), vectors)
    rows, _ = graph.nearest(queries(1)[0], 10_000)
    assert sorted(rows.tolist()) == graph.rows.tolist()


@needs_hnswlib
def test_a_walk_that_falls_short_is_made_good_by_a_scan() -> None:
    vectors = units(600)
    graph = build(labels(600), vectors)

    class Short:
        def knn_query(self, *_: object, **__: object) -> None:
            raise RuntimeError("Cannot return the results in a contiguous 2D array")

    graph._index = Short()
    assert recall(graph, vectors, 10) == 1.0


@needs_hnswlib
def test_vectors_of_a_row_that_is_not_there() -> None:
    graph = build(np.array([3, 7]), units(2))
    for row in (2, 5, 8):
        with pytest.raises(KeyError):
            graph.vectors(np.array([row]))
    assert graph.vectors(np.array([], dtype=np.int64)).shape == (0, DIM)


@needs_hnswlib
@pytest.mark.parametrize("rows", [[], [1, 1], [2, 1], [1, 2, 3]])
def test_rows_must_ascend_and_match(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Graph.build(np.array(rows, dtype=np.int64), units(2), cancelled=lambda: False)


@needs_hnswlib
def test_the_same_rows_give_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = units(1500)
    first = build(labels(1500), vectors)
    other = build(labels(700), units(700, 3))
    monkeypatch.setattr(module, "_BLOCK", 17)
    second = build(labels(1500), np.asfortranarray(vectors))
    assert answers(first) == answers(second)
    parts = [g._index.__getstate__()[0] for g in (first, second)]
    for name in ("data_level0", "link_lists", "element_levels"):
        assert parts[0][name].tobytes() == parts[1][name].tobytes()
    assert answers(other) != answers(first)


@needs_hnswlib
def test_what_else_was_asked_changes_nothing() -> None:
    graph = build(labels(1500), units(1500))
    before = answers(graph)
    graph.nearest(queries(1)[0], 1000)
    assert answers(graph) == before


@needs_hnswlib
@pytest.mark.parametrize("polls", [0, 1, 5])
def test_a_build_stops_when_it_is_cancelled(polls: int) -> None:
    said: list[bool] = []

    def cancelled() -> bool:
        said.append(len(said) >= polls)
        return said[-1]

    assert Graph.build(labels(900), units(900), cancelled=cancelled) is None
    assert len(said) == polls + 1


@needs_hnswlib
def test_queries_while_another_graph_is_built_and_saved(tmp_path: Path) -> None:
    graph = build(labels(1500), units(1500))
    expected = answers(graph)
    asked = threading.Event()
    ended: list[Graph] = []

    def work() -> None:
        other = build(labels(1200), units(1200, 8))
        asked.wait()
        other.save(tmp_path / "other", b"s" * 32)
        ended.append(other)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(5):
            assert answers(graph) == expected
    finally:
        asked.set()
    while worker.is_alive():
        assert answers(graph) == expected
    worker.join()
    assert answers(ended[0]) == answers(build(labels(1200), units(1200, 8)))


# ── files ─────────────────────────────────────────────────────────────────────────────────────

STAMP = b"s" * 32


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Graph, Path]:
    vectors = units(400)
    vectors[50:80] = vectors[3]
    graph = build(labels(400), vectors)
    path = tmp_path / "graph"
    graph.save(path, STAMP)
    return graph, path


@needs_hnswlib
def test_a_saved_graph_answers_the_same(tmp_path: Path) -> None:
    vectors = units(1500)
    vectors[200:300] = vectors[5]
    graph = build(labels(1500), vectors)
    expected = answers(graph), answers(graph, 400)
    graph.save(tmp_path / "graph", STAMP)
    assert (answers(graph), answers(graph, 400)) == expected
    loaded = Graph.load(tmp_path / "graph", STAMP, DIM)
    assert loaded is not None
    assert (answers(loaded), answers(loaded, 400)) == expected
    assert loaded.rows.tolist() == graph.rows.tolist()
    for g in (graph, loaded):
        assert g.vectors(g.rows).tobytes() == vectors.tobytes()
    loaded.save(tmp_path / "again", STAMP)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "graph").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "graph"]


@needs_hnswlib
def test_a_file_is_for_its_owner_alone(saved: tuple[Graph, Path]) -> None:
    assert saved[1].stat().st_mode & 0o777 == 0o600


@needs_hnswlib
def test_a_replaced_file_serves_who_still_reads_it(saved: tuple[Graph, Path]) -> None:
    graph, path = saved
    before = graph.vectors(graph.rows).tobytes()
    build(labels(90), units(90, 4)).save(path, STAMP)
    assert graph.vectors(graph.rows).tobytes() == before
    path.unlink()
    assert graph.vectors(graph.rows).tobytes() == before


@needs_hnswlib
def test_memory_falls_when_the_vectors_are_in_a_file(tmp_path: Path) -> None:
    graph = build(labels(400), units(400))
    before = graph.memory
    graph.save(tmp_path / "graph", STAMP)
    assert before - graph.memory == 400 * 2 * DIM
    loaded = Graph.load(tmp_path / "graph", STAMP, DIM)
    assert loaded is not None
    assert loaded.memory == graph.memory > 400 * 4 * DIM


@needs_hnswlib
def test_no_other_file_is_taken_for_it(saved: tuple[Graph, Path], tmp_path: Path) -> None:
    _, path = saved
    assert Graph.load(path, STAMP, DIM) is not None
    assert Graph.load(path, b"t" * 32, DIM) is None
    assert Graph.load(path, STAMP, DIM + 1) is None
    assert Graph.load(tmp_path / "missing", STAMP, DIM) is None
    assert Graph.load(tmp_path, STAMP, DIM) is None
    (tmp_path / "text").write_text("isovist graph 0\n" * 400)
    assert Graph.load(tmp_path / "text", STAMP, DIM) is None


@needs_hnswlib
def test_a_truncated_file_is_no_graph(saved: tuple[Graph, Path]) -> None:
    content = saved[1].read_bytes()
    for size in (0, 1, 15, 16, 47, 48, 79, 80, 84, 300, len(content) // 2, len(content) - 1):
        saved[1].write_bytes(content[:size])
        assert Graph.load(saved[1], STAMP, DIM) is None
    saved[1].write_bytes(content + b"\0")
    assert Graph.load(saved[1], STAMP, DIM) is None


@needs_hnswlib
def test_a_flipped_bit_is_no_graph(saved: tuple[Graph, Path]) -> None:
    content = bytearray(saved[1].read_bytes())
    places = np.random.default_rng(2).integers(len(content), size=60).tolist()
    for place in (*range(0, 340, 3), *places, len(content) - 1):
        content[place] ^= 1 << place % 8
        saved[1].write_bytes(content)
        assert Graph.load(saved[1], STAMP, DIM) is None
        content[place] ^= 1 << place % 8
    saved[1].write_bytes(content)
    assert Graph.load(saved[1], STAMP, DIM) is not None


@needs_hnswlib
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_save_leaves_what_was_there(
    saved: tuple[Graph, Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    graph, path = saved
    content = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            build(labels(90), units(90, 4)).save(path, STAMP)
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["graph"]
    graph.save(path, STAMP)
    assert path.read_bytes() == content


@needs_hnswlib
def test_what_a_killed_save_left_is_written_over(saved: tuple[Graph, Path]) -> None:
    graph, path = saved
    content = path.read_bytes()
    path.with_name("graph.new").write_bytes(b"torn" * 100_000)
    assert Graph.load(path, STAMP, DIM) is not None
    graph.save(path, STAMP)
    assert path.read_bytes() == content


def test_a_stamp_tells_rows_vectors_and_recipes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([1, 2, 3])
    stamps = [
        stamp_of(rows, b"model"),
        stamp_of(rows, b"other"),
        stamp_of(rows[:2], b"model"),
        stamp_of(rows + 1, b"model"),
        stamp_of(rows[:0], b"model"),
    ]
    assert stamp_of(np.array([9, 1, 9, 2, 9, 3])[1::2], b"model") == stamps[0]
    monkeypatch.setattr(module, "_LINKS", 17)
    stamps.append(stamp_of(rows, b"model"))
    assert len(set(stamps)) == len(stamps)
    assert {len(stamp) for stamp in stamps} == {32}


def test_walks_widen_with_the_size() -> None:
    widths = [ef_of(n) for n in (1, 50, 8_192, 8_193, 100_000, 400_000, 10**7)]
    assert widths == sorted(widths)
    assert widths[0] >= module._NEAREST
    assert widths[0] == widths[1] == 50  # what is asked for at most, of few nodes all


def test_without_hnswlib_there_is_no_graph_and_nothing_else_breaks(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"isovist graph 1\n" + bytes(200))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from isovist.storage import graph\n"
        "assert 'hnswlib' not in sys.modules\n"
        "sys.modules['hnswlib'] = None\n"
        "assert not graph.available()\n"
        "assert len(graph.stamp_of(graph.np.arange(3), b'model')) == 32\n"
        "assert graph.Graph.load(Path(sys.argv[1]), b's' * 32, 8) is None\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
