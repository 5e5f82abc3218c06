"""A store's file with chunks and vectors, for the tests of a change of embedder."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from isovist.storage import schema
from isovist.storage.chunks import dated
from isovist.storage.embedder import HashEmbedder, stored

OLD = HashEmbedder(16)
NEW = HashEmbedder(32)
SAID = 1_796_000_000_000_000_000


def text(number: int) -> str:
    return f"Ana keeps parcel {number} in locker {number * 7}"


def vector(embedder: HashEmbedder, number: int) -> bytes:
    return stored(embedder.embed(dated(text(number), SAID)))


def add(db: sqlite3.Connection, number: int) -> None:
    """A unit of one chunk, with a vector of the old model."""
    words = text(number)
    db.execute(
        "INSERT INTO units (uid, pid, seq, said_at, kind, hash, id, version, wrote, born_at,"
        " stored_at, agent, user, stream, session, round, handle, supersedes, meta, text)"
        " VALUES (?1, 1, ?1, ?2, 'note', x'', ?1, 1, ?1, 0, 0, 'p', 'ana', 'reusable', '', 0, '',"
        " '', x'80', ?3)",
        (number, SAID, words),
    )
    row = db.execute(
        "INSERT INTO chunks (uid, number, head, start, stop, length, terms)"
        " VALUES (?, 0, 0, 0, ?, 0, x'')",
        (number, len(words)),
    ).lastrowid
    db.execute("INSERT INTO vectors VALUES (?, ?)", (row, vector(OLD, number)))


def forget(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM units WHERE uid = ?", (number,))


def make(path: Path, count: int) -> None:
    db = schema.open_file(path)
    db.execute("BEGIN")
    db.execute(
        "INSERT INTO partitions (pid, users_kind, users_name, agents_kind, agents_name)"
        " VALUES (1, 'own', 'ana', 'own', 'p')"
    )
    for number in range(1, count + 1):
        add(db, number)
    space = msgspec.msgpack.encode((OLD.name, OLD.dim))
    db.execute("INSERT INTO meta VALUES ('embedder', ?)", (space,))
    db.execute("COMMIT")
    db.close()


def space(db: sqlite3.Connection, name: str = "embedder") -> tuple[str, int] | None:
    found = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return msgspec.msgpack.decode(found[0], type=tuple[str, int]) if found else None


def vectors(db: sqlite3.Connection, table: str = "vectors") -> dict[int, bytes]:
    """By the unit's number."""
    return dict(db.execute(f"SELECT uid, vector FROM {table} JOIN chunks USING (row)"))
