"""A change of embedder: beside a kernel, killed anywhere, never two models in one space."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from reembed_helpers import NEW, OLD, add, forget, make, space, vector, vectors

from isovist.storage import schema
from isovist.storage.dense import Vector
from isovist.storage.embedder import HashEmbedder
from isovist.storage.indexing import GENERATION
from isovist.storage.reembed import BATCH, Progress, current_space, reembed, settle_space
from isovist.syscalls.errors import WorldError

COUNT = 2 * BATCH + 5


class Counting(HashEmbedder):
    """Tells how many texts it has embedded, before each."""

    def __init__(self, dim: int, before: Callable[[int], None] = lambda count: None) -> None:
        super().__init__(dim)
        self.count = 0
        self._before = before

    def embed(self, text: str) -> Vector:
        self._before(self.count)
        self.count += 1
        return super().embed(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "isovist.db"
    make(made, COUNT)
    return made


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    opened = schema.connect(path)
    yield opened
    opened.close()


def test_all_chunks_get_a_next_vector_and_the_old_ones_stay(
    path: Path, db: sqlite3.Connection
) -> None:
    shown: list[Progress] = []
    assert reembed(path, NEW, shown.append) == Progress(COUNT, COUNT)
    assert [p.done for p in shown] == [0, BATCH, 2 * BATCH, COUNT]
    assert vectors(db, "next_vectors") == {n: vector(NEW, n) for n in range(1, COUNT + 1)}
    assert vectors(db) == {n: vector(OLD, n) for n in range(1, COUNT + 1)}
    assert current_space(path) == (OLD.name, OLD.dim)
    again = Counting(NEW.dim)
    reembed(path, again)
    assert again.count == 0


def test_the_swap_leaves_nothing_of_the_old_model(path: Path, db: sqlite3.Connection) -> None:
    reembed(path, NEW)
    forget(db, 3)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, x'00')", (GENERATION,))
    assert settle_space(db, NEW.name, NEW.dim)
    assert not db.in_transaction
    assert vectors(db) == {n: vector(NEW, n) for n in range(1, COUNT + 1) if n != 3}
    assert vectors(db, "next_vectors") == {}
    assert (space(db), space(db, "next")) == ((NEW.name, NEW.dim), None)
    found = db.execute("SELECT value FROM meta WHERE name = ?", (GENERATION,)).fetchone()
    assert found is None, "graphs of the old vectors would be taken for ones of the new"
    assert not settle_space(db, NEW.name, NEW.dim)


def test_a_swap_is_part_of_the_callers_transaction(path: Path, db: sqlite3.Connection) -> None:
    reembed(path, NEW)
    db.execute("BEGIN IMMEDIATE")
    assert settle_space(db, NEW.name, NEW.dim)
    db.execute("ROLLBACK")
    assert space(db) == (OLD.name, OLD.dim)
    assert vectors(db)[1] == vector(OLD, 1)


@pytest.mark.parametrize("asked", [(NEW.name, NEW.dim), (OLD.name, 99), ("third", 16)])
def test_another_embedder_is_refused_by_both_names_and_changes_nothing(
    asked: tuple[str, int], db: sqlite3.Connection
) -> None:
    with pytest.raises(WorldError) as caught:
        settle_space(db, *asked)
    for word in (repr(OLD.name), repr(asked[0]), str(asked[1]), "isovist memory reembed"):
        assert word in caught.value.message
    assert not db.in_transaction
    assert space(db) == (OLD.name, OLD.dim)


def test_a_store_without_vectors_takes_any_embedder(path: Path, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM vectors")
    assert not settle_space(db, NEW.name, NEW.dim)
    assert space(db) == (NEW.name, NEW.dim)


@pytest.mark.parametrize("at", [0, 1, BATCH - 1, BATCH, BATCH + 7, COUNT - 1])
def test_a_killed_run_loses_a_batch_at_most_and_is_taken_up(
    at: int, path: Path, db: sqlite3.Connection
) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from test_storage_reembed import Counting, NEW, reembed\n"
        "def before(count):\n"
        "    if count == int(sys.argv[2]): os.kill(os.getpid(), 9)\n"
        "reembed(Path(sys.argv[1]), Counting(NEW.dim, before))\n"
    )
    command = [sys.executable, "-c", code, str(path), str(at), str(Path(__file__).parent)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    kept = at // BATCH * BATCH
    assert len(vectors(db, "next_vectors")) == kept
    rest = Counting(NEW.dim)
    reembed(path, rest)
    assert rest.count == COUNT - kept
    assert vectors(db, "next_vectors") == {n: vector(NEW, n) for n in range(1, COUNT + 1)}


def test_what_a_kernel_writes_and_forgets_meanwhile_is_seen(
    path: Path, db: sqlite3.Connection
) -> None:
    def before(count: int) -> None:
        if count == 5:  # in mid batch: one of it, one that is done, one that is to come, a new one
            for number in (4, 20, COUNT):
                forget(db, number)
            add(db, 1000)
        if count == BATCH + 3:
            forget(db, 1)
            add(db, 1001)

    reembed(path, Counting(NEW.dim, before))
    alive = {*range(1, COUNT), 1000, 1001} - {1, 4, 20}
    assert vectors(db, "next_vectors") == {n: vector(NEW, n) for n in alive}
    assert db.execute("SELECT count(*) FROM next_vectors").fetchone() == (len(alive),)


def test_a_chunk_written_after_the_run_simply_lacks_a_vector(
    path: Path, db: sqlite3.Connection
) -> None:
    reembed(path, NEW)
    add(db, 1000)
    assert settle_space(db, NEW.name, NEW.dim)
    assert 1000 not in vectors(db)
    assert len(vectors(db)) == COUNT


def test_no_lock_is_held_while_a_text_is_embedded(path: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA busy_timeout = 0")

    def before(count: int) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("COMMIT")

    assert reembed(path, Counting(NEW.dim, before)).done == COUNT


def test_another_choice_drops_what_was_gathered_and_the_run_it_took_over(
    path: Path, db: sqlite3.Connection
) -> None:
    third = HashEmbedder(8)

    def before(count: int) -> None:
        if count == BATCH + 1:
            reembed(path, third)

    with pytest.raises(WorldError, match="another run took over"):
        reembed(path, Counting(NEW.dim, before))
    assert space(db, "next") == (third.name, third.dim)
    assert {len(v) for v in vectors(db, "next_vectors").values()} == {2 * third.dim}
    with pytest.raises(WorldError, match="reembed"):
        settle_space(db, NEW.name, NEW.dim)
    assert settle_space(db, third.name, third.dim)


def test_a_disk_that_fails_is_a_typed_error(path: Path) -> None:
    def before(count: int) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.execute("DROP TABLE next_vectors")

    with pytest.raises(WorldError, match="the store failed"):
        reembed(path, Counting(NEW.dim, before))
