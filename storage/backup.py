"""Copies of a store: made while it works, and put back while it does not.

A copy is one moment of the store: SQLite's online backup takes it in one step, under one read
transaction, and the log lets writers go on meanwhile. It is written beside its place, flushed and
then named, so that under its name there is all of it or nothing.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from isovist.storage.schema import APPLICATION, VERSION
from isovist.syscalls.errors import CallerError, Errno, WorldError


def backup(store: Path, target: Path) -> int:
    """Copy the store in the file ``store`` to the new file ``target``; returns its bytes.

    May be called in any thread: it uses connections of its own. Raises ``EEXIST`` where
    ``target`` is there already, and :class:`WorldError` where ``store`` is no sound store of
    this schema or an older one, or the copy cannot be written; then no file is left.
    """
    if os.path.lexists(target):
        raise CallerError(f"{target}: is there already", errno=Errno.EEXIST, field="path")
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
            _copy(store, part)
            size = part.stat().st_size
            # A link refuses to replace what has come to stand there meanwhile.
            os.link(part, target)
        finally:
            part.unlink(missing_ok=True)
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
