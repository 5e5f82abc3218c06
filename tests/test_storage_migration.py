"""From every released schema to this one."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest
from storage_helpers import DIM, EMBEDDER, T0, embedded, put, search, view, write

from isovist.storage import migration, schema
from isovist.storage.memory import MemoryStore
from isovist.storage.prepared import prepare
from isovist.storage.store import Store
from isovist.syscalls.operations import ListQuery, Put
from isovist.syscalls.records import partition_of

# What version 0.1.0 wrote, word for word.
SCHEMA_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE partitions (
    pid         INTEGER PRIMARY KEY,
    users_kind  TEXT NOT NULL,
    users_name  TEXT NOT NULL,
    agents_kind TEXT NOT NULL,
    agents_name TEXT NOT NULL,
    accepted    INTEGER NOT NULL DEFAULT 0,
    UNIQUE (users_kind, users_name, agents_kind, agents_name)
);
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
CREATE TABLE records (call TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE grants (
    agent  TEXT PRIMARY KEY,
    users  BLOB NOT NULL,
    scopes BLOB NOT NULL
) WITHOUT ROWID;
PRAGMA application_id = 1230196566;
PRAGMA user_version = 1;
"""

PUTS = [
    put(1, "Ana drinks tea", meta={"k": "v"}, session="s", round=2),
    put(2, "Ana deploys on Tuesday. " * 100, expires_at=T0 * 2),
    put(3, "Ana drinks coffee", supersedes="pair-ana-p-1"),
    put(1, "Bob's", scope="global", user="bob"),
    put(5, "without its vectors"),
]
READERS = (view("ana", "p"), view("bob", "q"))
KEY = bytes(range(16))


def released(path: Path) -> None:
    """The file as version 0.1.0 left it after ``PUTS``."""
    pack = msgspec.msgpack.encode
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(SCHEMA_1)
    embedder = pack((EMBEDDER.name, DIM))
    db.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [("embedder", embedder), ("words", pack(1)), ("key", KEY)],
    )
    pids = {partition_of("pair", "ana", "p"): 1, partition_of("global", "", ""): 2}
    for partition, pid in pids.items():
        users, agents = partition.users, partition.agents
        axes = (users.kind, users.name, agents.kind, agents.name)
        db.execute("INSERT INTO partitions VALUES (?, ?, ?, ?, ?, ?)", (pid, *axes, 9))
    for uid, unit in enumerate(PUTS, 1):
        hash_ = hashlib.sha256(unit.text.encode()).hexdigest()
        twin = None if unit.id == PUTS[2].supersedes else hash_
        db.execute(
            f"INSERT INTO units VALUES ({', '.join('?' * 21)})",
            (uid, unit.id, pids[unit.partition], unit.seq, unit.seq, 1, unit.text, hash_,
             unit.kind, unit.agent, unit.user, unit.stream, unit.said_at, unit.stored_at,
             unit.stored_at, unit.session, unit.round, unit.expires_at, unit.supersedes,
             pack(unit.meta), twin),
        )  # fmt: skip
        ready = prepare(unit.text, unit.said_at)
        for number, span in enumerate(ready.spans):
            vector = EMBEDDER.embed(ready.chunks[number]).astype("<f4").tobytes()
            db.execute(
                "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
                (uid, number, span.head, span.start, span.stop, pack(ready.terms[number]),
                 None if unit is PUTS[-1] else vector),
            )  # fmt: skip
    db.execute("INSERT INTO grants VALUES ('p', ?, ?)", (pack(("ana",)), pack(("user",))))
    db.commit()
    db.close()


def answers(store: Store | MemoryStore) -> bytes:
    queries = [search("Ana drinks tea", mode=mode) for mode in ("bm25", "dense", "rrf", "hybrid")]
    return msgspec.msgpack.encode(
        [
            store.select(reader, query, None if query is None else embedded("Ana drinks tea"))
            for reader in READERS
            for query in (*queries, ListQuery(limit=50, now=0))
        ]
    )


def expected() -> bytes:
    store = MemoryStore(EMBEDDER.name, DIM)
    write(store, *PUTS[:-1])
    write(store, PUTS[-1], embed=False)
    return answers(store)


def check(path: Path) -> None:
    store = Store.open(path, EMBEDDER.name, DIM)
    restored = {one.partition: one for one in store.restore()}
    assert answers(store) == expected()
    assert store.verify() == []
    assert store.key == KEY
    assert store.grants() == {"p": (("ana",), ("user",))}
    pair = restored[PUTS[0].partition]
    assert pair.accepted == 9
    assert [one[:3] for one in pair.lacking] == [(5, PUTS[-1].id, 1)]
    # The duplicate rule holds across it, for those alone that stood for their text.
    again: list[Put] = [
        put(10, PUTS[1].text, expires_at=T0 * 2),
        put(11, PUTS[0].text, meta={"k": "v"}, session="s", round=2),
    ]
    assert [outcome.duplicate for outcome in store.commit(again)] == [True, False]
    store.close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    assert not [name for name in tables if name.endswith("_1") and not name.startswith("sqlite")]
    db.close()


def test_a_file_of_schema_1_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    released(path)
    check(path)


def test_a_migration_that_dies_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "isovist.db"
    released(path)

    def dies(db: sqlite3.Connection) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(migration, "index_again", dies)
        with pytest.raises(InterruptedError):
            Store.open(path, EMBEDDER.name, DIM)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert db.execute("SELECT count(vector) FROM chunks").fetchone()[0] > 0
    db.close()
    check(path)


def test_vectors_are_halved_and_stay_of_unit_length(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    released(path)
    Store.open(path, EMBEDDER.name, DIM).close()
    db = sqlite3.connect(path)
    rows = db.execute("SELECT vector FROM vectors").fetchall()
    db.close()
    assert len(rows) == sum(len(prepare(p.text, p.said_at).spans) for p in PUTS[:-1])
    for (vector,) in rows:
        halves = np.frombuffer(vector, "<f2").astype(np.float32)
        assert len(halves) == DIM
        assert abs(float((halves * halves).sum()) - 1.0) < 1e-3
