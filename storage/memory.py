"""The store without a file.

:class:`MemoryStore` keeps the same promises as the store on disk while its process lives: it is
a public tool for tests and simulation.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nsmallest

import msgspec

from isovist.storage import agents, chronicle, files, holdings, learning, ledger
from isovist.storage.agents import Permissions
from isovist.storage.backend import Grants, Groups, Owed
from isovist.storage.chronicle import Head
from isovist.storage.contexts import Ready, check_room
from isovist.storage.dense import Vector
from isovist.storage.engine import MemoryEngine
from isovist.storage.filed import KeepsFiles, check_all
from isovist.storage.guard import clean_op
from isovist.storage.holdings import SetLimits
from isovist.storage.learned import KeepsLearning
from isovist.storage.ledger import KeepsLedger
from isovist.storage.prepared import Prepared, prepare
from isovist.storage.registers import usage, without_user
from isovist.storage.rules import (
    Refused,
    check,
    check_vectors,
    covers,
    failed,
    gone,
    moved,
    no_older,
    not_expired,
    nowhere,
    outdated,
    owned_by,
    ring,
    rival,
    round_after,
    stale,
    twin,
    without,
)
from isovist.storage.schema import AGENTS, CHRONICLE, FILES, HOLDINGS, LEARNING, LEDGER
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.file_operations import Changed, FileChange
from isovist.syscalls.manifest import Approval
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    NEXT_ROUND,
    Context,
    Drop,
    Expire,
    Held,
    Lapsed,
    Move,
    Op,
    Outcome,
    Published,
    Put,
    Query,
    Receipt,
    Replace,
    Restored,
    Selection,
    Vectors,
)
from isovist.syscalls.records import SavedContext, ToolRule, Usage, View, partition_of


class _Row(msgspec.Struct):
    """The system of record's line for one unit: ``put`` as it would have to be put today."""

    put: Put
    version: int
    wrote: int
    prepared: Prepared
    twin: tuple[object, ...] | None
    embedded: bool = False


class MemoryStore(KeepsLearning, KeepsLedger, KeepsFiles):
    """A :class:`~isovist.storage.backend.Backend` without a file."""

    def __init__(self, embedder_name: str, dim: int) -> None:
        self._engine = MemoryEngine(dim)
        self._name = embedder_name
        self._dim = dim
        self._key = os.urandom(16)
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._twins: dict[tuple[object, ...], str] = {}
        self._newer: dict[str, set[str]] = {}
        """By the id of a unit, here or not: those that supersede it."""
        self._prepared: dict[tuple[str, int], Prepared] = {}
        self._records: dict[str, Record] = {}
        self._grants: Grants = {}
        self._permissions: Permissions = {}
        self._approvals: dict[str, Approval] = {}
        self._groups: Groups = {}
        self._receipts: dict[str, Receipt] = {}
        self._contexts: dict[tuple[str, str, str], Ready] = {}
        """By user, agent and name."""
        self._tables = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in (*AGENTS, *LEARNING, *LEDGER, *CHRONICLE, *FILES, *HOLDINGS):
            self._tables.execute(statement)

    @property
    def key(self) -> bytes:
        return self._key

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        with self._lock:
            return [self._one(op) for op in ops]

    def _one(self, op: Op) -> Outcome:
        secrets: dict[str, int] = {}
        try:
            check(op)
            op, secrets = clean_op(op)
            outcome = self._do(op)
            holdings.add(self._tables, outcome.held)
            return msgspec.structs.replace(outcome, secrets=secrets) if secrets else outcome
        except Exception as e:
            return msgspec.structs.replace(failed(op, e), secrets=secrets)

    def _do(self, op: Op) -> Outcome:
        if isinstance(op, Put):
            return self._put(op)
        row = self._rows.get(op.id)
        if row is None:
            raise gone()
        if row.put.partition != op.partition:
            raise moved()
        if isinstance(op, Drop):
            if op.version not in (0, row.version):
                raise stale(op.version, row.version)
            return self._drop(op, row)
        if isinstance(op, Vectors):
            if outdated(op, row.version, row.wrote):
                raise stale(op.version, row.version)
            check_vectors(op, self._name, self._dim, len(row.prepared.chunks))
            row.embedded = True
            return Outcome(op=op, id=op.id, version=row.version)
        if row.version != op.version:
            raise stale(op.version, row.version)
        if isinstance(op, Replace):
            return self._replace(op, row)
        if isinstance(op, Move):
            return self._move(op, row)
        return self._expire(op, row)

    def _put(self, op: Put) -> Outcome:
        if op.round == NEXT_ROUND:
            op = self._numbered(op)
        # Whatever may go wrong comes before the first change: there is nothing to roll back.
        imported = bool(op.born_at)
        older = self._rows.get(op.supersedes) if op.supersedes else None
        if older is not None and not (
            (older.put.agent, older.put.user) == (op.agent, op.user)
            and (imported or _lives(older.put, op.stored_at))
        ):
            older = None
        if op.supersedes and older is None and not imported:
            raise no_older(op.supersedes)
        prepared = prepare(op.text, op.said_at)
        key = _twin(op, prepared.hash)
        known = self._rows.get(self._twins.get(key, ""))
        another = known is not None and known is not older and not imported
        if known is not None and another and _answers(known.put, op):
            with self._learning(write=True):
                self._enter(known.put.id, op)
            return Outcome(op=op, id=known.put.id, version=known.version, duplicate=True)
        if op.id in self._rows:
            raise Refused(Errno.EEXIST, "a unit of that id is already stored")
        if older is not None and not op.born_at:
            self._check_rivals(op)
        self._check_ring(op)
        with self._learning(write=True):
            self._enter(op.id, op)
        if known is not None:
            self._free_twin(known)
        if older is not None and covers(op.partition, older.put.partition):
            self._free_twin(older)
        row = self._rows[op.id] = _Row(op, op.version, op.seq, prepared, key)
        self._twins[key] = op.id
        if op.supersedes:
            self._newer.setdefault(op.supersedes, set()).add(op.id)
        if imported and any(
            (newer.agent, newer.user, newer.supersedes) == (op.agent, op.user, op.id)
            and covers(newer.partition, op.partition)
            for newer in (one.put for one in self._rows.values())
        ):
            self._free_twin(row)
        self._prepared[op.id, op.version] = prepared
        held = (Held(op.agent, op.user, 1, len(op.text.encode())),)
        return Outcome(op=op, id=op.id, version=op.version, chunks=prepared.chunks, held=held)

    def _check_ring(self, op: Put) -> None:
        at: str = op.supersedes
        seen = set[str]()
        while (row := self._rows.get(at)) is not None and at not in seen:
            put = row.put
            if (put.agent, put.user) != (op.agent, op.user):
                return
            seen.add(at)
            at = put.supersedes
            if at == op.id:
                raise ring(op.supersedes)

    def _check_rivals(self, op: Put) -> None:
        for id_ in self._heirs(op.supersedes, op):
            if _lives(self._rows[id_].put, op.stored_at):
                raise rival(op.supersedes, id_)

    def _heirs(self, older: str, like: Put) -> list[str]:
        """Units of the pair and partition of ``like`` that supersede ``older``, by id."""
        whose = like.partition, like.agent, like.user
        return [
            id_
            for id_ in sorted(self._newer.get(older, ()))
            if ((put := self._rows[id_].put).partition, put.agent, put.user) == whose
        ]

    def _numbered(self, op: Put) -> Put:
        """``op`` as the next round of its session; without a session there is but round 0."""
        if not op.handle:
            return msgspec.structs.replace(op, round=0)
        rounds = (row.put.round for row in self._rows.values() if row.put.handle == op.handle)
        return msgspec.structs.replace(op, round=round_after(max(rounds, default=None)))

    def _replace(self, op: Replace, row: _Row) -> Outcome:
        prepared = prepare(op.text, row.put.said_at)
        with self._learning(write=True):  # either may refuse
            self._enter(op.id, op)
            self._stand_for(row, row.put, prepared.hash, op.stored_at)
        more = len(op.text.encode()) - len(row.put.text.encode())
        row.put = msgspec.structs.replace(row.put, text=op.text)
        row.version += 1
        row.wrote = op.seq
        row.prepared = prepared
        row.embedded = False
        self._prepared[op.id, row.version] = prepared
        held = (Held(row.put.agent, row.put.user, 0, more),)
        return Outcome(op=op, id=op.id, version=row.version, chunks=prepared.chunks, held=held)

    def _expire(self, op: Expire, row: _Row) -> Outcome:
        row.version += 1
        row.put = msgspec.structs.replace(row.put, expires_at=op.expires_at)
        return Outcome(op=op, id=op.id, version=row.version)

    def _move(self, op: Move, row: _Row) -> Outcome:
        if op.to == op.partition:
            raise nowhere()
        put = msgspec.structs.replace(row.put, partition=op.to)
        if op.owner is not None:
            put = msgspec.structs.replace(put, user=op.owner[0], agent=op.owner[1])
        if op.hidden:
            self._free_twin(row)
        self._stand_for(row, put, row.prepared.hash, op.stored_at)
        learning.touch(self._tables, op.id)
        agents.moved(self._tables, op)
        held: tuple[Held, ...] = ()
        if op.owner is not None:
            size = len(put.text.encode())
            held = (
                Held(row.put.agent, row.put.user, -1, -size), Held(put.agent, put.user, 1, size),
            )  # fmt: skip
        row.version += 1
        row.wrote = op.to_seq
        row.put = put
        chunks = () if row.embedded else row.prepared.chunks
        return Outcome(op=op, id=op.id, version=row.version, chunks=chunks, held=held)

    def _drop(self, op: Drop, row: _Row) -> Outcome:
        if op.expired and _lives(row.put, op.stored_at):
            raise not_expired()
        del self._rows[op.id]
        learning.leave(self._tables, op.id)
        agents.left(self._tables, op.id)
        self._free_twin(row)
        heirs = self._hand_down(op.id, row.put)
        if op.receipt:
            known = self._receipts.get(op.receipt)
            asked, units = (known.asked_at, known.units) if known else (op.stored_at, ())
            self._receipts[op.receipt] = Receipt(
                id=op.receipt, asked_at=asked, issued_at=0, units=(*units, op.id)
            )
        held = (Held(row.put.agent, row.put.user, -1, -len(row.put.text.encode())),)
        return Outcome(op=op, id=op.id, version=row.version, heirs=heirs, held=held)

    def _enter(self, id_: str, op: Put | Replace) -> None:
        """Before anything else changes: this may be refused."""
        if op.learned is not None:
            learning.enter(self._tables, id_, op.learned)
        elif isinstance(op, Replace):
            learning.touch(self._tables, id_)

    def change_file(self, change: FileChange) -> Changed:
        with self._learning(write=True) as db:
            plan = files.plan(db, change, lambda unit: unit in self._rows)
            if isinstance(plan, Changed):
                return plan
            done = plan.carry_out()  # it may refuse; the units of a file never are
        outcomes = self.commit(plan.ops)
        check_all(outcomes)
        return msgspec.structs.replace(done, outcomes=tuple(outcomes))

    @contextmanager
    def _learning(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        db = self._tables
        if write:
            db.execute("BEGIN")
        try:
            yield db
        except BaseException:
            if write:
                db.execute("ROLLBACK")
            raise
        if write:
            db.execute("COMMIT")

    def _version_of(self, unit: str) -> int:
        row = self._rows.get(unit)
        return row.version if row else 0

    def _hand_down(self, id_: str, put: Put) -> tuple[str, ...]:
        """Pass what ``id_``, which goes, superseded to its heirs; why to them alone stands at
        :meth:`isovist.storage.commit.Commit._hand_down`."""
        older = put.supersedes
        if not older:
            return ()
        heirs = tuple(heir for heir in self._heirs(id_, put) if heir != older)
        self._supersede(id_, older, "")
        for heir in heirs:
            self._supersede(heir, id_, older)
            row = self._rows[heir]
            row.put = msgspec.structs.replace(row.put, supersedes=older)
        return heirs

    def _supersede(self, newer: str, before: str, after: str) -> None:
        """``newer`` superseded ``before``, and from now on ``after`` (empty: nothing)."""
        self._newer[before].discard(newer)
        if not self._newer[before]:
            del self._newer[before]
        if after:
            self._newer.setdefault(after, set()).add(newer)

    def _stand_for(self, row: _Row, put: Put, hash_: str, now: int) -> None:
        """Let ``row`` stand for this text in the partition of ``put``, if it stands for any. A
        twin there must have expired."""
        if row.twin is None:
            return
        key = _twin(put, hash_)
        known = self._rows.get(self._twins.get(key, put.id))
        if known is not None and known is not row:
            if _lives(known.put, now):
                raise twin()
            self._free_twin(known)
        self._free_twin(row)
        row.twin = key
        self._twins[key] = put.id

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

    def usage(self, by: str, since: int, until: int | None) -> tuple[Usage, ...]:
        return usage(list(self._records.values()), by, since, until)

    def save_grant(
        self,
        agent: str,
        users: Sequence[str],
        scopes: Sequence[str],
        mail: Sequence[str] = (),
        tools: Sequence[ToolRule] = (),
    ) -> None:
        self._grants.pop(agent, None)
        self._permissions.pop(agent, None)
        if users or scopes:
            self._grants[agent] = (tuple(users), tuple(scopes))
        if mail or tools:
            self._permissions[agent] = (tuple(mail), tuple(tools))

    def permissions(self) -> Permissions:
        return dict(sorted(self._permissions.items()))

    def save_approval(
        self,
        agent: str,
        approval: Approval | None,
        users: Sequence[str],
        scopes: Sequence[str],
        mail: Sequence[str],
        tools: Sequence[ToolRule],
    ) -> None:
        self._approvals.pop(agent, None)
        if approval is not None:
            self._approvals[agent] = approval
        self.save_grant(agent, users, scopes, mail, tools)

    def save_distrust(self, agent: str, on: bool) -> None:
        agents.save_distrust(self._tables, agent, on)

    def distrusted(self) -> tuple[str, ...]:
        return agents.distrusted(self._tables)

    def published(
        self, agent: str, hidden: bool, limit: int, skip: Collection[tuple[str, int]] = ()
    ) -> tuple[Published, ...]:
        learned = agents.published_by(self._tables, agent)
        found = []
        for id_, row in self._rows.items():
            put = row.put
            if put.agent != agent and id_ not in learned:
                continue
            pair = partition_of("pair", put.user, put.agent)
            to = agents.hidden(self._tables, id_) if hidden else pair
            if to is not None and to != put.partition and (id_, row.version) not in skip:
                found.append(
                    Published(
                        id=id_, version=row.version, user=put.user, partition=put.partition, to=to
                    )
                )
        return tuple(found[:limit])

    def approvals(self) -> dict[str, Approval]:
        return dict(sorted(self._approvals.items()))

    def grants(self) -> Grants:
        return dict(sorted(self._grants.items()))

    def save_group(self, of: str, name: str, members: Sequence[str]) -> None:
        self._groups[of, name] = tuple(sorted(set(members)))

    def groups(self) -> Groups:
        return dict(sorted(self._groups.items()))

    def holdings(self) -> tuple[Held, ...]:
        return holdings.held(self._tables)

    def save_limits(self, axis: str, name: str, figures: Mapping[str, int]) -> None:
        holdings.save_limits(self._tables, axis, name, figures)

    def limits(self) -> SetLimits:
        return holdings.limits(self._tables)

    def head(self) -> Head:
        return chronicle.head(self._tables)

    def save_head(self, head: Head) -> None:
        chronicle.save_head(self._tables, head)

    def pseudonyms(self, users: Collection[str]) -> dict[str, str]:
        return chronicle.pseudonyms(self._tables, users)

    def save_context(self, ready: Ready, most: int, most_bytes: int) -> str:
        context = ready.context
        key = context.user, context.agent, context.name
        others = [one for at, one in self._contexts.items() if at[:2] == key[:2] and at != key]
        check_room(len(others), sum(o.bytes for o in others), ready.bytes, most, most_bytes)
        replaced = self._contexts.get(key)
        kept = msgspec.structs.replace(context, tools=(), choice="auto")
        self._contexts[key] = msgspec.structs.replace(ready, context=kept)
        return replaced.context.id if replaced else ""

    def context(self, user: str, agent: str, name: str) -> Context | None:
        found = self._contexts.get((user, agent, name))
        return found.context if found else None

    def contexts(self, user: str, agent: str) -> tuple[SavedContext, ...]:
        return tuple(
            SavedContext(
                name=ready.context.name,
                model=ready.context.model,
                messages=len(ready.context.messages),
                bytes=ready.bytes,
                saved_at=ready.context.saved_at,
            )
            for key, ready in sorted(self._contexts.items())
            if key[:2] == (user, agent)
        )

    def drop_context(self, user: str, agent: str, name: str) -> str:
        dropped = self._contexts.pop((user, agent, name), None)
        return dropped.context.id if dropped else ""

    def context_ids(self) -> frozenset[str]:
        return frozenset(ready.context.id for ready in self._contexts.values())

    def owned(self, user: str) -> tuple[tuple[str, int, str], ...]:
        return tuple(
            (id_, row.version, row.put.partition.scope)
            for id_, row in sorted(self._rows.items())
            if owned_by(user, row.put.user, row.put.partition)
        )

    def purge(self, user: str, receipt: str, now: int) -> list[Outcome]:
        outcomes = self.commit(
            [
                Drop(partition=self._rows[id_].put.partition, seq=0, id=id_, receipt=receipt,
                     stored_at=now)
                for id_, *_ in self.owned(user)
            ]
        )  # fmt: skip
        if not outcomes:
            self._receipts.setdefault(
                receipt, Receipt(id=receipt, asked_at=now, issued_at=0, units=())
            )
        gone = {outcome.id for outcome in outcomes}
        for call, record in self._records.items():
            self._records[call] = without_user(record, user, gone) or record
        for agent, (users, scopes) in self.grants().items():
            permissions = self._permissions.get(agent, ((), ()))
            self.save_grant(agent, without(user, users), scopes, *permissions)
        for agent, approval in self.approvals().items():
            if user in approval.manifest.users:
                del self._approvals[agent]
        for key in [key for key in self._contexts if key[0] == user]:
            del self._contexts[key]
        learning.forget_user(self._tables, user)
        ledger.forget_user(self._tables, user)
        chronicle.forget_user(self._tables, user)
        holdings.forget_user(self._tables, user)
        files.forget_user(self._tables, user)
        for (of, name), members in self.groups().items():
            if of == "users":
                self.save_group(of, name, without(user, members))
        return outcomes

    def expired(self, now: int, limit: int) -> tuple[tuple[Lapsed, ...], int | None]:
        rows = nsmallest(
            limit + 1,
            (row for row in self._rows.values() if row.put.expires_at is not None),
            key=lambda row: row.put.expires_at or 0,
        )
        found = [row for row in rows[:limit] if not _lives(row.put, now)]
        lapsed = tuple(
            Lapsed(
                partition=row.put.partition,
                id=row.put.id,
                version=row.version,
                agent=row.put.agent,
                kind=row.put.kind,
            )
            for row in found
        )
        return lapsed, rows[len(found)].put.expires_at if len(rows) > len(found) else None

    def receipt(self, id: str) -> Receipt | None:
        return self._receipts.get(id)

    def owed(self) -> Owed | None:
        asked = [id_ for id_, receipt in self._receipts.items() if not receipt.issued_at]
        return (asked, 0) if asked else None

    def scrub(self, now: int, owed: Owed | None = None) -> bool:
        """There is no file: what was dropped is gone already."""
        for id_, receipt in self._receipts.items():
            if not receipt.issued_at and (owed is None or id_ in owed[0]):
                self._receipts[id_] = msgspec.structs.replace(receipt, issued_at=now)
        return True

    def backup(self, path: str) -> int:
        raise CallerError("a store in memory has no file to copy", errno=Errno.ENOSYS)

    def statistics(self) -> dict[str, int]:
        held = sum(ready.bytes for ready in self._contexts.values())
        kept = {"contexts": len(self._contexts), "context_bytes": held}
        return {**self._engine.statistics(), **kept, **learning.sizes(self._tables)}

    def close(self) -> None:
        self._tables.close()


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
