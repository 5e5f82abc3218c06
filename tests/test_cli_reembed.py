"""``isovist memory reembed``: beside a kernel, or in its place."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from reembed_helpers import NEW, OLD, make, space, vectors

from isovist.kernel.cli import main
from isovist.kernel.lock import Lock
from isovist.storage import schema
from isovist.storage.embedder import make_embedder
from isovist.storage.reembed import reembed

COUNT = 40
HASH = make_embedder("hash")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make(tmp_path / "isovist.db", COUNT)
    return tmp_path


def run(state: Path, *words: str) -> int:
    return main(["memory", "reembed", "--embedder", "hash", "--state", str(state), *words])


def held(state: Path) -> tuple[object, set[int], int]:
    """The space, the lengths of the vectors in bytes, and how many wait to take their place."""
    with closing(schema.connect(state / "isovist.db")) as db:
        lengths = {len(vector) for vector in vectors(db).values()}
        return space(db), lengths, len(vectors(db, "next_vectors"))


def test_without_a_kernel_the_vectors_are_swapped_at_once(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(state, "--json") == 0
    expected = {"embedder": HASH.name, "chunks": COUNT, "embedded": COUNT, "swapped": True}
    assert json.loads(capsys.readouterr().out) == expected
    assert held(state) == ((HASH.name, HASH.dim), {2 * HASH.dim}, 0)
    assert run(state) == 0, "again, there is nothing to do"
    assert f"are of {HASH.name}" in capsys.readouterr().out


def test_beside_a_kernel_the_old_vectors_stay_until_the_next_start(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lock(state / "kernel.lock"):
        assert run(state) == 0
    out, err = capsys.readouterr()
    assert f"{COUNT} chunks have a vector of {HASH.name}" in out
    assert "isovist down" in err
    assert "isovist up --embedder hash" in err
    assert held(state) == ((OLD.name, OLD.dim), {2 * OLD.dim}, COUNT)
    assert run(state) == 0, "the kernel is gone: what was gathered is put in place"
    assert held(state) == ((HASH.name, HASH.dim), {2 * HASH.dim}, 0)


def test_what_another_run_gathered_for_another_model_is_dropped(state: Path) -> None:
    reembed(state / "isovist.db", NEW)
    assert run(state) == 0
    assert held(state) == ((HASH.name, HASH.dim), {2 * HASH.dim}, 0)


def test_without_a_store_or_with_a_wrong_embedder_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 1
    assert "there is no store" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    make(tmp_path / "isovist.db", 1)
    assert main(["memory", "reembed", "--embedder", "nope", "--state", str(tmp_path)]) == 1
    assert "no embedder 'nope'" in capsys.readouterr().err
    assert held(tmp_path) == ((OLD.name, OLD.dim), {2 * OLD.dim}, 0)
