"""One kernel a store, whatever the path to its database."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from isovist.kernel.lock import Lock, holder
from isovist.syscalls.errors import Errno, WorldError


def database(path: Path) -> Path:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
    return path


def test_a_store_by_another_path_is_the_same_store(tmp_path: Path) -> None:
    file = database(tmp_path / "one" / "s.db")
    (tmp_path / "two").mkdir()
    alias = tmp_path / "two" / "s.db"
    alias.symlink_to(file)
    second = Lock(tmp_path / "two" / "lock", alias)
    with Lock(tmp_path / "one" / "lock", file):
        # SQLite goes on as ever: its locks are of another kind.
        with closing(sqlite3.connect(file, timeout=0)) as db:
            db.execute("INSERT INTO t VALUES (1)")
            db.commit()
        with pytest.raises(WorldError, match="by another path") as caught:
            second.__enter__()
        assert caught.value.errno is Errno.EEXIST
        assert not holder(tmp_path / "two" / "lock"), "nothing is left locked"
    with second:
        assert holder(tmp_path / "two" / "lock") == os.getpid()


def test_a_database_with_two_names_is_refused(tmp_path: Path) -> None:
    file = database(tmp_path / "one" / "s.db")
    (tmp_path / "two").mkdir()
    other = tmp_path / "two" / "s.db"
    with Lock(tmp_path / "one" / "lock", file):
        os.link(file, other)
        with (
            pytest.raises(WorldError, match="by another path"),
            Lock(tmp_path / "two" / "lock", other),
        ):
            pass
    for path in (file, other):
        with pytest.raises(WorldError, match="hard link"), Lock(path.parent / "lock", path):
            pass
    other.unlink()
    with Lock(tmp_path / "one" / "lock", file):
        pass


def test_a_store_that_is_made_under_the_lock_is_held_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "one" / "s.db"
    with Lock(tmp_path / "lock", file) as lock:
        database(file)
        lock.hold_database()
        lock.hold_database()
        with (
            pytest.raises(WorldError, match="by another path"),
            Lock(tmp_path / "one" / "lock", file),
        ):
            pass
