"""From every released schema forwards to the newest, in one transaction: a file is wholly of one
schema, whenever a process dies."""

from __future__ import annotations

import sqlite3

import numpy as np

from isovist.storage import holdings, life, schema
from isovist.storage.indexing import index_again


def to_newest(db: sqlite3.Connection, version: int) -> None:
    """Bring a file of schema ``version`` up to date. Raises :class:`sqlite3.Error`."""
    # Tables change names below what refers to them; the switch works outside a transaction alone.
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("PRAGMA legacy_alter_table = ON")
    try:
        db.execute("BEGIN IMMEDIATE")
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found == 1:  # and not yet brought up by another process
            _from_1(db)
        elif found == 2:  # the same without this index
            (by_expiry,) = (made for made in schema.MEMORY if "units_by_expiry" in made)
            db.execute(by_expiry)
        if found < 4:
            db.execute(schema.CONTEXTS)
        if found < 5:
            for statement in schema.LEARNING:
                db.execute(statement)
        if found < 6:
            for statement in (*schema.AGENTS, *schema.LEDGER, *schema.CHRONICLE, *schema.FILES):
                db.execute(statement)
            for statement in schema.HOLDINGS:
                db.execute(statement)
            holdings.count(db)
        db.execute(f"PRAGMA user_version = {schema.VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    finally:
        db.execute("PRAGMA legacy_alter_table = OFF")
        db.execute("PRAGMA foreign_keys = ON")


def _from_1(db: sqlite3.Connection) -> None:
    """Schema 1 had vectors of float32 in its chunks, terms as words, no handles."""
    db.create_function("unhex_", 1, bytes.fromhex, deterministic=True)
    db.create_function("halves", 1, _halves, deterministic=True)
    for table in ("partitions", "units", "chunks"):
        db.execute(f"ALTER TABLE {table} RENAME TO {table}_1")
    db.execute("DROP INDEX units_by_seq")
    for statement in schema.MEMORY:
        db.execute(statement)
    db.execute(
        "INSERT INTO partitions (pid, users_kind, users_name, agents_kind, agents_name, accepted)"
        " SELECT pid, users_kind, users_name, agents_kind, agents_name, accepted FROM partitions_1"
    )
    db.execute(
        "INSERT INTO units (uid, pid, seq, said_at, expires_at, kind, hash, id, version, wrote,"
        " born_at, stored_at, agent, user, stream, session, round, handle, supersedes, twin, meta,"
        " text) SELECT uid, pid, seq, said_at, expires_at, kind, unhex_(hash), id, version, wrote,"
        " born_at, stored_at, agent, user, stream, session, round, '', supersedes,"
        " CASE WHEN twin IS NULL THEN NULL ELSE 1 END, meta, text FROM units_1 ORDER BY uid"
    )
    db.execute(
        "INSERT INTO chunks (uid, number, head, start, stop, length, terms)"
        " SELECT uid, number, head, start, stop, 0, x'' FROM chunks_1 ORDER BY uid, number"
    )
    db.execute(
        "INSERT INTO vectors (row, vector) SELECT row, halves(vector) FROM chunks"
        " JOIN chunks_1 USING (uid, number) WHERE vector IS NOT NULL ORDER BY row"
    )
    for table in ("chunks", "units", "partitions"):
        db.execute(f"DROP TABLE {table}_1")
    life.drop_noted(db)  # no scrub had yet been thought of
    index_again(db)


def _halves(vector: bytes) -> bytes:
    return np.frombuffer(vector, dtype="<f4").astype("<f2").tobytes()
