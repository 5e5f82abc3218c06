"""The store on disk: SQLite is the truth, the engine is what answers.

A write takes three steps. ``commit`` (writer's thread) makes a group durable in one transaction;
``apply`` (loop's thread) moves what was committed into the engine; only then is it visible. At
start ``restore`` fills the engine from the file, so that every answer is the same as before.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from isovist.storage import schema, words
from isovist.storage.backend import Grants
from isovist.storage.blas import one_thread
from isovist.storage.chunks import Span, dated
from isovist.storage.dense import Vector
from isovist.storage.engine import MemoryEngine, Prepared, prepare, terms_of
from isovist.storage.partitions import Stored
from isovist.storage.rules import Refused, check, check_vectors, failed, gone, no_older, stale, twin
from isovist.syscalls.errors import Errno, KernelError, WorldError
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    Drop,
    Op,
    Outcome,
    Put,
    Query,
    Replace,
    Restored,
    Selection,
    Vectors,
)
from isovist.syscalls.records import Axis, Partition, Unit, View

_pack = msgspec.msgpack.Encoder().encode
_terms = msgspec.msgpack.Decoder(dict[str, int]).decode
_meta = msgspec.msgpack.Decoder(dict[str, str]).decode
_names = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_record = msgspec.msgpack.Decoder(Record).decode

_OF_ITS_VALUES = (sqlite3.IntegrityError, sqlite3.DataError)
"""Errors of SQLite where the tables refuse a value: its operation's own fault."""
_OF_ONE = (*_OF_ITS_VALUES, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""Those that leave the transaction sound; the last two are a bug in how one operation is put."""


class Store:
    """A :class:`~isovist.storage.backend.Backend` in one file.

    Invariant: the engine holds exactly the units whose commit was applied. ``_prepared`` holds
    the indexes of texts that are committed and not yet applied, no more.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        reader: sqlite3.Connection,
        path: Path,
        embedder_name: str,
        dim: int,
        key: bytes,
    ) -> None:
        self._db = db  # the writer's; reads of records and grants never wait for a commit
        self._reader = reader
        self._path = path
        self._name = embedder_name
        self._dim = dim
        self._key = key
        self._lock = threading.Lock()  # one transaction at a time on the connection
        self._engine = MemoryEngine(dim)
        self._pids: dict[Partition, int] = {}
        self._prepared: dict[tuple[str, int], Prepared] = {}

    @classmethod
    def open(cls, path: Path | str, embedder_name: str, dim: int) -> Store:
        """Open or create the file at ``path`` for vectors of ``dim`` made by ``embedder_name``.

        Raises :class:`WorldError` where the file is no store, of a newer schema, damaged, or
        holds vectors of another embedder.
        """
        path = Path(path)
        one_thread()
        db = schema.open_file(path)
        try:
            key = _settle(db, path, embedder_name, dim)
            reader = schema.connect(path)
        except BaseException as e:
            db.close()
            if isinstance(e, sqlite3.Error):
                raise WorldError(f"{path}: the store cannot be opened: {e}") from e
            raise
        return cls(db, reader, path, embedder_name, dim, key)

    @property
    def key(self) -> bytes:
        return self._key

    # -- writes

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        """Make a group durable in one transaction, each operation in a savepoint of its own.

        A partition's counter moves in the same transaction, for refused operations too: their
        numbers are void and are never issued again.
        """
        prepared: dict[tuple[str, int], Prepared] = {}
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                outcomes = [self._one(op, prepared) for op in ops]
                pids = self._count(ops)
                self._db.execute("COMMIT")
            except sqlite3.Error as e:
                self._roll_back()
                errno, message = _fault(e)
                return [Outcome(op=op, errno=int(errno), message=message) for op in ops]
            except BaseException:
                self._roll_back()
                raise
            self._pids.update(pids)
        self._prepared.update(prepared)
        return outcomes

    def _one(self, op: Op, prepared: dict[tuple[str, int], Prepared]) -> Outcome:
        self._db.execute("SAVEPOINT op")
        try:
            check(op)
            pid = self._pid(op.partition)
            if isinstance(op, Put):
                outcome, ready = self._put(op, pid)
            else:
                outcome, ready = self._change(op, pid)
            if ready is not None:
                prepared[outcome.id, outcome.version] = ready
            return outcome
        except Exception as e:
            if isinstance(e, sqlite3.Error) and not isinstance(e, _OF_ONE):
                raise
            self._db.execute("ROLLBACK TO op")
            if isinstance(e, _OF_ITS_VALUES):
                e = Refused(Errno.EINVAL, f"cannot be stored: {e}")
            return failed(op, e)
        finally:
            if self._db.in_transaction:
                self._db.execute("RELEASE op")

    def _put(self, op: Put, pid: int) -> tuple[Outcome, Prepared | None]:
        db = self._db
        if op.supersedes:
            # The older unit stops standing for its text: should the same be said again later,
            # that is a new unit and not this hidden one.
            freed = db.execute(
                "UPDATE units SET twin = NULL WHERE id = ? AND agent = ? AND user = ?"
                " AND (expires_at IS NULL OR expires_at > ?)",
                (op.supersedes, op.agent, op.user, op.stored_at),
            )
            if not freed.rowcount:
                raise no_older(op.supersedes)
        # A twin answers for this write only where it does all that this one asks for: one that has
        # expired gives way, one that supersedes something else, one with other labels.
        ready = prepare(op.text, op.said_at)
        twins = (pid, op.agent, op.user, op.kind, op.session, op.round, ready.hash)
        db.execute(
            "UPDATE units SET twin = NULL WHERE (pid, agent, user, kind, session, round, twin)"
            " = (?, ?, ?, ?, ?, ?, ?) AND (expires_at <= ? OR ? NOT IN ('', supersedes)"
            " OR stream IS NOT ? OR expires_at IS NOT ? OR meta IS NOT ?)",
            (*twins, op.stored_at, op.supersedes, op.stream, op.expires_at, _pack(op.meta)),
        )
        new = db.execute(
            "INSERT INTO units (pid, agent, user, kind, session, round, twin, id, seq, wrote,"
            " version, text, hash, stream, said_at, born_at, stored_at, expires_at, supersedes,"
            " meta) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (pid, agent, user, kind, session, round, twin) DO NOTHING"
            " ON CONFLICT (id) DO NOTHING",
            (*twins, op.id, op.seq, op.seq, op.text, ready.hash, op.stream, op.said_at,
             op.stored_at, op.stored_at, op.expires_at, op.supersedes, _pack(op.meta)),
        )  # fmt: skip
        if not new.rowcount:
            known = db.execute(
                "SELECT id, version FROM units WHERE (pid, agent, user, kind, session, round,"
                " twin) = (?, ?, ?, ?, ?, ?, ?)",
                twins,
            ).fetchone()
            if known is None:
                raise Refused(Errno.EEXIST, "a unit of that id is already stored")
            db.execute("ROLLBACK TO op")
            return Outcome(op=op, id=known[0], version=known[1], duplicate=True), None
        if new.lastrowid is None:
            raise KernelError("an insert without a row")
        self._chunks(new.lastrowid, ready)
        return Outcome(op=op, id=op.id, version=1, chunks=ready.chunks), ready

    def _change(self, op: Replace | Drop | Vectors, pid: int) -> tuple[Outcome, Prepared | None]:
        db = self._db
        row = db.execute(
            "SELECT uid, version, said_at FROM units WHERE id = ? AND pid = ?", (op.id, pid)
        ).fetchone()
        if row is None:
            raise gone()
        uid, version, said_at = row
        if isinstance(op, Drop):
            db.execute("DELETE FROM units WHERE uid = ?", (uid,))
            return Outcome(op=op, id=op.id, version=version), None
        if op.version != version:
            raise stale(op.version, version)
        if isinstance(op, Vectors):
            (count,) = db.execute("SELECT count(*) FROM chunks WHERE uid = ?", (uid,)).fetchone()
            check_vectors(op, self._name, self._dim, count)
            db.executemany(
                "UPDATE chunks SET vector = ? WHERE uid = ? AND number = ?",
                [(vector, uid, number) for number, vector in enumerate(op.vectors)],
            )
            return Outcome(op=op, id=op.id, version=version), None
        ready = prepare(op.text, said_at)
        db.execute(
            "UPDATE units SET twin = NULL WHERE twin = ? AND expires_at <= ? AND (pid, agent, user,"
            " kind, session, round) = (SELECT pid, agent, user, kind, session, round FROM units"
            " WHERE uid = ?)",
            (ready.hash, op.stored_at, uid),
        )
        try:
            db.execute(
                "UPDATE units SET version = version + 1, text = ?, hash = ?, stored_at = ?,"
                " wrote = ?, twin = CASE WHEN twin IS NULL THEN NULL ELSE ? END WHERE uid = ?",
                (op.text, ready.hash, op.stored_at, op.seq, ready.hash, uid),
            )
        except sqlite3.IntegrityError:
            raise twin() from None
        db.execute("DELETE FROM chunks WHERE uid = ?", (uid,))
        self._chunks(uid, ready)
        return Outcome(op=op, id=op.id, version=version + 1, chunks=ready.chunks), ready

    def _chunks(self, uid: int, ready: Prepared) -> None:
        self._db.executemany(
            "INSERT INTO chunks (uid, number, head, start, stop, terms) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (uid, number, span.head, span.start, span.stop, _pack(terms))
                for number, (span, terms) in enumerate(zip(ready.spans, ready.terms, strict=True))
            ],
        )

    def _pid(self, partition: Partition) -> int:
        pid = self._pids.get(partition)
        if pid is None:
            users, agents = partition.users, partition.agents
            axes = (users.kind, users.name, agents.kind, agents.name)
            self._db.execute(
                "INSERT INTO partitions (users_kind, users_name, agents_kind, agents_name)"
                " VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                axes,
            )
            (pid,) = self._db.execute(
                "SELECT pid FROM partitions WHERE (users_kind, users_name, agents_kind,"
                " agents_name) = (?, ?, ?, ?)",
                axes,
            ).fetchone()
        return int(pid)

    def _count(self, ops: Sequence[Op]) -> dict[Partition, int]:
        """Move the partitions' counters; gives the partitions' numbers, true once committed."""
        pids: dict[Partition, int] = {}
        highest: dict[Partition, int] = {}
        for op in ops:
            highest[op.partition] = max(op.seq, highest.get(op.partition, 0))
        for partition, seq in highest.items():
            try:
                pid = pids[partition] = self._pid(partition)
                self._db.execute(
                    "UPDATE partitions SET accepted = max(accepted, ?) WHERE pid = ?", (seq, pid)
                )
            except (UnicodeEncodeError, OverflowError):
                pids.pop(partition, None)  # cannot be stored: that operation was refused too
        return pids

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # the failure that led here is the one to tell
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def apply(self, outcomes: Sequence[Outcome]) -> None:
        """Make what was committed visible, in the order of commit."""
        for outcome in outcomes:
            prepared = None
            if isinstance(outcome.op, Put | Replace) and not outcome.duplicate:
                prepared = self._prepared.pop((outcome.id, outcome.version), None)
            self._engine.apply(outcome.op, outcome, prepared)

    # -- reads

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        """The only read of units; see :meth:`MemoryEngine.select`."""
        return self._engine.select(view, query, vector)

    def restore(self) -> tuple[Restored, ...]:
        """Fill the engine from the file, once, before the first ``select``; says of each
        partition the last number issued and which units lack vectors."""
        try:
            return tuple(self._restore())
        except sqlite3.Error as e:
            _raise(self._path, e)

    def _restore(self) -> Iterator[Restored]:
        partitions = self._reader.execute(
            "SELECT pid, users_kind, users_name, agents_kind, agents_name, accepted"
            " FROM partitions ORDER BY pid"
        ).fetchall()
        for pid, users_kind, users_name, agents_kind, agents_name, accepted in partitions:
            partition = Partition(Axis(users_kind, users_name), Axis(agents_kind, agents_name))
            self._pids[partition] = pid
            lacking: list[tuple[int, str, int, tuple[str, ...]]] = []
            self._engine.load(partition, self._units(partition, pid, lacking))
            yield Restored(partition=partition, accepted=accepted, lacking=tuple(lacking))

    def _units(
        self,
        partition: Partition,
        pid: int,
        lacking: list[tuple[int, str, int, tuple[str, ...]]],
    ) -> Iterator[tuple[Stored, list[dict[str, int]], list[bytes]]]:
        """A partition's units as the engine loads them; notes those without vectors."""
        rows = self._reader.execute(
            "SELECT uid, seq, wrote, born_at, hash, id, version, text, kind, agent, user, stream,"
            " said_at, stored_at, session, round, expires_at, supersedes, meta,"
            " head, start, stop, terms, vector FROM units JOIN chunks USING (uid)"
            " WHERE pid = ? ORDER BY seq, uid, number",
            (pid,),
        )
        for _, group in groupby(rows, key=lambda row: row[0]):
            chunks = list(group)
            _, seq, wrote, born, hash_, *fields, meta = chunks[0][:19]
            (id_, version, text, kind, agent, user, stream, said_at, stored_at, session,
             round_, expires_at, supersedes) = fields  # fmt: skip
            unit = Unit(
                id=id_,
                version=version,
                text=text,
                kind=kind,
                scope=partition.scope,
                agent=agent,
                user=user,
                stream=stream,
                said_at=said_at,
                stored_at=stored_at,
                session=session,
                round=round_,
                expires_at=expires_at,
                supersedes=supersedes,
                meta=_meta(meta),
            )
            cuts = tuple(Span(*chunk[19:22]) for chunk in chunks)
            terms = [_terms(chunk[22]) for chunk in chunks]
            vectors = [chunk[23] for chunk in chunks]
            if None in vectors:
                texts = tuple(dated(cut.cut(text), said_at) for cut in cuts)
                lacking.append((wrote, id_, version, texts))
                vectors = []
            yield Stored(unit, seq, born, hash_, cuts), terms, vectors

    # -- audit and grants

    def save_records(self, records: Sequence[Record]) -> None:
        """Make audit records durable in one transaction. Raises :class:`WorldError`."""
        self._write(
            "INSERT OR REPLACE INTO records (call, body) VALUES (?, ?)",
            [(record.call, _pack(record)) for record in records],
        )

    def record(self, call: str) -> Record | None:
        found = self._rows("SELECT body FROM records WHERE call = ?", (call,))
        return _record(found[0][0]) if found else None

    def save_grant(self, agent: str, users: Sequence[str], scopes: Sequence[str]) -> None:
        """What ``agent`` holds from now on; nothing of both removes it."""
        if users or scopes:
            self._write(
                "INSERT OR REPLACE INTO grants (agent, users, scopes) VALUES (?, ?, ?)",
                [(agent, _pack(tuple(users)), _pack(tuple(scopes)))],
            )
        else:
            self._write("DELETE FROM grants WHERE agent = ?", [(agent,)])

    def grants(self) -> Grants:
        rows = self._rows("SELECT agent, users, scopes FROM grants ORDER BY agent", ())
        return {agent: (_names(users), _names(scopes)) for agent, users, scopes in rows}

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except sqlite3.Error as e:
                self._roll_back()
                _raise(self._path, e)

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._reader.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            _raise(self._path, e)

    def statistics(self) -> dict[str, int]:
        """The engine's sizes, and the file's bytes (with its log)."""
        logs = (Path(f"{self._path}{suffix}") for suffix in ("", "-wal"))
        size = sum(path.stat().st_size for path in logs if path.exists())
        return {**self._engine.statistics(), "bytes": size}

    def close(self) -> None:
        with self._lock:
            self._reader.close()
            self._db.close()


def _settle(db: sqlite3.Connection, path: Path, name: str, dim: int) -> bytes:
    """Check the embedder, bring the terms up to date with the rules for words, give the key."""
    db.execute("BEGIN IMMEDIATE")
    try:
        meta: dict[str, bytes] = dict(db.execute("SELECT name, value FROM meta"))
        embedder = _pack((name, dim))
        if meta.get("embedder", embedder) != embedder:
            old_name, old_dim = msgspec.msgpack.decode(meta["embedder"], type=tuple[str, int])
            if db.execute("SELECT 1 FROM chunks WHERE vector IS NOT NULL LIMIT 1").fetchone():
                raise WorldError(
                    f"{path}: its vectors are of embedder {old_name!r} ({old_dim} dimensions),"
                    f" not of {name!r} ({dim})"
                )
        rules = _pack(words.RULES)
        if meta.get("words", rules) != rules:
            _index_again(db)
        key = meta.get("key") or os.urandom(16)
        db.executemany(
            "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
            [("embedder", embedder), ("words", rules), ("key", key)],
        )
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return key


def _index_again(db: sqlite3.Connection) -> None:
    """The rules for words have changed: terms made by the old ones match no query of today."""
    rows = db.execute(
        "SELECT uid, number, head, start, stop, text, said_at FROM chunks JOIN units USING (uid)"
    ).fetchall()
    for uid, number, head, start, stop, text, said_at in rows:
        (terms,) = terms_of(text, said_at, (Span(head, start, stop),))
        db.execute(
            "UPDATE chunks SET terms = ? WHERE uid = ? AND number = ?", (_pack(terms), uid, number)
        )


def _fault(e: sqlite3.Error) -> tuple[Errno, str]:
    if getattr(e, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        return Errno.ENOSPC, "the disk that holds the store is full"
    return Errno.EIO, f"the store failed: {e}"


def _raise(path: Path, e: sqlite3.Error) -> NoReturn:
    errno, message = _fault(e)
    raise WorldError(f"{path}: {message}", errno=errno) from e
