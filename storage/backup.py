"""Copies of a store: made while it works, and put back while it does not.

A copy is one moment of the store: SQLite's online backup takes it in one step, under one read
transaction, and the log lets writers go on meanwhile. It is written beside its place, flushed and
then named, so that under its name there is all of it or nothing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from isovist.storage.schema import APPLICATION, VERSION
from isovist.syscalls.errors import CallerError, Errno, WorldError

FILES_FROM = 6
"""The schema from which on a store has files."""


def backup(store: Path, target: Path) -> int:
    """Copy the store in the file ``store`` to the new file ``target``, and longer versions of files
    to the folder ``target.files`` beside it; returns the bytes of both.

    May be called in any thread: it uses connections of its own. Raises ``EEXIST`` where
    ``target`` is there already, and :class:`WorldError` where ``store`` is no sound store of
    this schema or an older one, or the copy cannot be written; then no file is left.
    """
    for place in (target, contents(target)):
        if os.path.lexists(place):
            raise CallerError(f"{place}: is there already", errno=Errno.EEXIST, field="path")
    if not store.is_file():
        raise WorldError(f"{store}: there is no such file")
    if not target.parent.is_dir():
        raise CallerError(
            f"{target.parent}: there is no such folder", errno=Errno.ENOENT, field="path"
        )
    part = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            # What is removed while the store is copied is held by then.
            _copy_contents(contents(store), contents(part), None)
            _copy(store, part)
            size = _copy_contents(contents(store), contents(part), _named(part))
            size += part.stat().st_size
            if contents(part).exists():
                contents(part).rename(contents(target))
            # A link refuses to replace what has come to stand there meanwhile.
            os.link(part, target)
        finally:
            part.unlink(missing_ok=True)
            shutil.rmtree(contents(part), ignore_errors=True)
        _flush(target.parent)
    except FileExistsError:
        raise CallerError(f"{target}: is there already", errno=Errno.EEXIST, field="path") from None
    except sqlite3.Error as e:
        raise WorldError(f"{store}: cannot be copied to {target}: {e}") from e
    except OSError as e:
        full = e.errno == Errno.ENOSPC
        raise WorldError(
            f"{target}: cannot be written: {e.strerror}",
            errno=Errno.ENOSPC if full else Errno.EIO,
            field="path",
        ) from e
    return size


def contents(store: Path) -> Path:
    """The folder that holds the longer versions of the files of a store, or of a copy."""
    return store.with_name(f"{store.name}.files")


def _named(copy: Path) -> list[str]:
    """The files that the versions of a copy stand in."""
    with closing(sqlite3.connect(copy)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < FILES_FROM:
            return []
        rows = db.execute("SELECT DISTINCT blob FROM versions WHERE blob <> ''").fetchall()
    return [name for (name,) in rows]


def _copy_contents(source: Path, target: Path, named: list[str] | None) -> int:
    """Copy what of ``named`` is not there yet, and remove all else; ``None``: all that there is.
    Returns the bytes that are there then, where it is the last word. Raises ``EIO`` where one has
    gone meanwhile: the copy would not be whole."""
    wanted = named if named is not None else os.listdir(source) if source.is_dir() else []
    if not wanted and not target.exists():
        return 0
    target.mkdir(mode=0o700, exist_ok=True)
    held = set(os.listdir(target))
    for name in wanted:
        if name in held:
            continue
        try:
            shutil.copyfile(source / name, target / name)
        except FileNotFoundError:
            (target / name).unlink(missing_ok=True)
            if named is not None:
                raise WorldError(f"{source / name}: bytes of a file are missing") from None
            continue
        os.chmod(target / name, 0o600)
        _flush(target / name)
    if named is None:
        return 0
    for name in held.difference(named):
        (target / name).unlink()
    _flush(target)
    return sum(path.stat().st_size for path in target.iterdir())


def _copy(store: Path, part: Path) -> None:
    with (
        closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(part, isolation_level=None)) as copy,
    ):
        source.backup(copy)
        _check(copy, store)
        # A log belongs to a store that is in use: the copy is one file and needs none.
        copy.execute("PRAGMA journal_mode = DELETE")
    _flush(part)


def _check(copy: sqlite3.Connection, store: Path) -> None:
    """Raise :class:`WorldError` where the copy is not a sound store."""
    (application,) = copy.execute("PRAGMA application_id").fetchone()
    (version,) = copy.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise WorldError(f"{store}: this is not a store of Isovist")
    if version > VERSION:
        raise WorldError(
            f"{store}: the store has schema {version}, this Isovist knows up to {VERSION}; "
            "use the newer Isovist that wrote it"
        )
    (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise WorldError(f"{store}: the store is damaged: {verdict}")


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
