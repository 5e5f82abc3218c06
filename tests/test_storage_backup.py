"""Backups: one moment of a store in one file, all of it or nothing."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from isovist.storage import backup as module
from isovist.storage import schema
from isovist.storage.backup import backup
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "isovist.db"
    db = schema.open_file(path)
    db.execute("INSERT INTO meta VALUES ('word', 'kept')")
    db.close()
    return path


def word(path: Path) -> str:
    db = sqlite3.connect(path)
    try:
        return str(db.execute("SELECT value FROM meta WHERE name = 'word'").fetchone()[0])
    finally:
        db.close()


def test_a_backup_is_the_store_while_somebody_writes_it(store: Path, tmp_path: Path) -> None:
    writer = schema.open_file(store)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE meta SET value = 'under way' WHERE name = 'word'")
    target = tmp_path / "copy.db"
    size = backup(store, target)
    writer.execute("COMMIT")
    writer.close()
    assert word(target) == "kept"
    assert size == target.stat().st_size
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "isovist.db"]


def test_a_backup_can_be_opened_as_a_store_and_backed_up_again(store: Path, tmp_path: Path) -> None:
    backup(store, tmp_path / "first.db")
    backup(tmp_path / "first.db", tmp_path / "second.db")
    schema.open_file(tmp_path / "second.db").close()
    assert word(tmp_path / "second.db") == "kept"


def test_nothing_is_replaced(store: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "there", tmp_path / "dangling"):
        if target.name == "there":
            target.write_text("mine")
        else:
            target.symlink_to("nowhere")
        with pytest.raises(IsovistError) as caught:
            backup(store, target)
        assert caught.value.errno == Errno.EEXIST
    assert (tmp_path / "there").read_text() == "mine"


def test_what_is_no_sound_store_is_refused_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    sources = {name: tmp_path / name for name in ("text", "other.db", "newer.db", "missing")}
    sources["text"].write_text("no database " * 1000)
    db = sqlite3.connect(sources["other.db"])
    db.execute("CREATE TABLE t (a)")
    db.close()
    backup(store, sources["newer.db"])
    db = sqlite3.connect(sources["newer.db"])
    db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    before = sorted(os.listdir(tmp_path))
    for source in sources.values():
        with pytest.raises(WorldError):
            backup(source, tmp_path / "copy.db")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_disk_that_fails_is_a_typed_error_and_leaves_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(Errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_flush", full)
    with pytest.raises(WorldError) as caught:
        backup(store, tmp_path / "copy.db")
    assert caught.value.errno == Errno.ENOSPC
    with pytest.raises(CallerError) as refused:
        backup(store, tmp_path / "no" / "folder.db")
    assert (refused.value.errno, refused.value.field) == (Errno.ENOENT, "path")
    assert [name for name in os.listdir(tmp_path) if not name.startswith("isovist.db")] == []
