"""The store without a file.

:class:`MemoryStore` keeps the same promises as the store on disk while its process lives: it is
a public tool for tests and simulation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import msgspec

from isovist.storage.backend import Grants
from isovist.storage.dense import Vector
from isovist.storage.engine import MemoryEngine, Prepared, prepare
from isovist.storage.rules import Refused, check, check_vectors, failed, gone, no_older, stale, twin
from isovist.syscalls.errors import Errno
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import Drop, Op, Outcome, Put, Query, Replace, Restored, Selection
from isovist.syscalls.records import View


class _Row(msgspec.Struct):
    """The system of record's line for one unit."""

    put: Put
    version: int
    prepared: Prepared
    twin: tuple[object, ...] | None


class MemoryStore:
    """A :class:`~isovist.storage.backend.Backend` without a file."""

    def __init__(self, embedder_name: str, dim: int) -> None:
        self._engine = MemoryEngine(dim)
        self._name = embedder_name
        self._dim = dim
        self._key = os.urandom(16)
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._twins: dict[tuple[object, ...], str] = {}
        self._prepared: dict[tuple[str, int], Prepared] = {}
        self._records: dict[str, Record] = {}
        self._grants: Grants = {}

    @property
    def key(self) -> bytes:
        return self._key

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        with self._lock:
            return [self._one(op) for op in ops]

    def _one(self, op: Op) -> Outcome:
        try:
            check(op)
            if isinstance(op, Put):
                return self._put(op)
            row = self._rows.get(op.id)
            if row is None or row.put.partition != op.partition:
                raise gone()
            if isinstance(op, Drop):
                del self._rows[op.id]
                self._free_twin(row)
                return Outcome(op=op, id=op.id, version=row.version)
            if row.version != op.version:
                raise stale(op.version, row.version)
            if isinstance(op, Replace):
                return self._replace(op, row)
            check_vectors(op, self._name, self._dim, len(row.prepared.chunks))
            return Outcome(op=op, id=op.id, version=row.version)
        except Exception as e:
            return failed(op, e)

    def _put(self, op: Put) -> Outcome:
        # Whatever may go wrong comes before the first change: there is nothing to roll back.
        older = self._rows.get(op.supersedes) if op.supersedes else None
        if op.supersedes and (
            older is None
            or (older.put.agent, older.put.user) != (op.agent, op.user)
            or not _lives(older.put, op.stored_at)
        ):
            raise no_older(op.supersedes)
        prepared = prepare(op.text, op.said_at)
        key = _twin(op, prepared.hash)
        known = self._rows.get(self._twins.get(key, ""))
        if known is not None and known is not older and _answers(known.put, op):
            return Outcome(op=op, id=known.put.id, version=known.version, duplicate=True)
        if op.id in self._rows:
            raise Refused(Errno.EEXIST, "a unit of that id is already stored")
        for row in (known, older):
            if row is not None:
                self._free_twin(row)
        self._rows[op.id] = _Row(op, 1, prepared, key)
        self._twins[key] = op.id
        self._prepared[op.id, 1] = prepared
        return Outcome(op=op, id=op.id, version=1, chunks=prepared.chunks)

    def _replace(self, op: Replace, row: _Row) -> Outcome:
        prepared = prepare(op.text, row.put.said_at)
        if row.twin is not None:
            key = _twin(row.put, prepared.hash)
            known = self._rows.get(self._twins.get(key, op.id))
            if known is not None and known is not row:
                if _lives(known.put, op.stored_at):
                    raise twin()
                self._free_twin(known)
            self._free_twin(row)
            row.twin = key
            self._twins[key] = op.id
        row.version += 1
        row.prepared = prepared
        self._prepared[op.id, row.version] = prepared
        return Outcome(op=op, id=op.id, version=row.version, chunks=prepared.chunks)

    def _free_twin(self, row: _Row) -> None:
        if row.twin is not None:
            del self._twins[row.twin]
            row.twin = None

    def apply(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            prepared = None
            if isinstance(outcome.op, Put | Replace) and not outcome.duplicate:
                prepared = self._prepared.pop((outcome.id, outcome.version), None)
            self._engine.apply(outcome.op, outcome, prepared)

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        return self._engine.select(view, query, vector)

    def restore(self) -> tuple[Restored, ...]:
        return ()

    def save_records(self, records: Sequence[Record]) -> None:
        self._records.update((record.call, record) for record in records)

    def record(self, call: str) -> Record | None:
        return self._records.get(call)

    def save_grant(self, agent: str, users: Sequence[str], scopes: Sequence[str]) -> None:
        if users or scopes:
            self._grants[agent] = (tuple(users), tuple(scopes))
        else:
            self._grants.pop(agent, None)

    def grants(self) -> Grants:
        return dict(self._grants)

    def statistics(self) -> dict[str, int]:
        return self._engine.statistics()

    def close(self) -> None:
        pass


def _twin(op: Put, hash_: str) -> tuple[object, ...]:
    """What two writes of the same thing have in common."""
    return op.partition, op.agent, op.user, op.kind, op.session, op.round, hash_


def _answers(twin: Put, op: Put) -> bool:
    """Whether a unit with the text of ``op`` does all that ``op`` asks for: it is in force, what
    ``op`` would supersede it supersedes too, and it bears the same labels."""
    same = (twin.stream, twin.expires_at, twin.meta) == (op.stream, op.expires_at, op.meta)
    return same and _lives(twin, op.stored_at) and op.supersedes in ("", twin.supersedes)


def _lives(put: Put, now: int) -> bool:
    return put.expires_at is None or put.expires_at > now
