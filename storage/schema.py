"""The file: its tables, its settings, and who may open it.

One SQLite file is the system of record. A unit, its forward index, its vectors and its
partition's counter change in one transaction, so a crash leaves no half of a write.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from isovist.syscalls.errors import WorldError

APPLICATION = 0x49534F56
"""``ISOV``: says in the file's header whose file it is."""
VERSION = 1
"""The schema's version. An older file is brought up to date at open, a newer one refused."""

_TABLES = """
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- A partition is a key of two axes, in columns of their own and never joined, so that the users
-- a_b and a cannot meet. accepted: the last sequence number known to be issued.
CREATE TABLE partitions (
    pid         INTEGER PRIMARY KEY,
    users_kind  TEXT NOT NULL,
    users_name  TEXT NOT NULL,
    agents_kind TEXT NOT NULL,
    agents_name TEXT NOT NULL,
    accepted    INTEGER NOT NULL DEFAULT 0,
    UNIQUE (users_kind, users_name, agents_kind, agents_name)
);

-- seq is the birth's number, wrote that of the last write. twin is the text's hash while a second
-- write of the same thing must come to this unit; NULL once it is superseded, has expired, or the
-- same was said again to supersede another unit.
CREATE TABLE units (
    uid        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    pid        INTEGER NOT NULL REFERENCES partitions (pid),
    seq        INTEGER NOT NULL,
    wrote      INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    text       TEXT NOT NULL,
    hash       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    agent      TEXT NOT NULL,
    user       TEXT NOT NULL,
    stream     TEXT NOT NULL,
    said_at    INTEGER NOT NULL,
    born_at    INTEGER NOT NULL,
    stored_at  INTEGER NOT NULL,
    session    TEXT NOT NULL,
    round      INTEGER NOT NULL,
    expires_at INTEGER,
    supersedes TEXT NOT NULL,
    meta       BLOB NOT NULL,
    twin       TEXT,
    UNIQUE (pid, agent, user, kind, session, round, twin)
);
CREATE INDEX units_by_seq ON units (pid, seq);

-- The forward index: a chunk by its places in the text, its terms with their counts, its vector.
CREATE TABLE chunks (
    uid    INTEGER NOT NULL REFERENCES units (uid) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    head   INTEGER NOT NULL,
    start  INTEGER NOT NULL,
    stop   INTEGER NOT NULL,
    terms  BLOB NOT NULL,
    vector BLOB,
    PRIMARY KEY (uid, number)
);

CREATE TABLE records (
    call TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE grants (
    agent  TEXT PRIMARY KEY,
    users  BLOB NOT NULL,
    scopes BLOB NOT NULL
) WITHOUT ROWID;
"""


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the store's settings, usable from any one thread at a time.

    FULL: a commit returns when the log is flushed, so what is acknowledged outlives a power cut.
    Transactions are begun and ended by hand.
    """
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        db.close()
        raise
    return db


def open_file(path: Path) -> sqlite3.Connection:
    """Open or create the store's file, readable by its owner alone.

    Raises :class:`WorldError` where it is no store, is of a newer schema, or cannot be opened.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = connect(path)
    except (OSError, sqlite3.Error) as e:
        raise WorldError(f"{path}: the store cannot be opened: {e}") from e
    try:
        _prepare(db, path)
    except sqlite3.Error as e:
        db.close()
        raise WorldError(f"{path}: the store cannot be opened: {e}") from e
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION:
        raise WorldError(f"{path}: this is not a store of Isovist")
    if version > VERSION:
        raise WorldError(
            f"{path}: the store has schema {version}, this Isovist knows up to {VERSION}; "
            "use the newer Isovist that wrote it"
        )
    if not tables:
        db.executescript(
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; "
            f"PRAGMA user_version = {VERSION}; {_TABLES} COMMIT;"
        )
