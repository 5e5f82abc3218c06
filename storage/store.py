"""The store on disk: SQLite is the truth, the engine is what answers.

A write takes three steps. ``commit`` (writer's thread) makes a group durable in one transaction
and takes a snapshot of the state it left; ``apply`` (loop's thread) hands both to the engine; only
then is it visible. At start ``restore`` fills the engine from the file, so that every answer is
the same as before.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from isovist.storage import (
    agents,
    chronicle,
    contexts,
    files,
    gaps,
    holdings,
    indexing,
    learning,
    ledger,
    life,
    registers,
    restore,
    schema,
    words,
)
from isovist.storage.backend import Grants, Groups, Owed
from isovist.storage.backup import backup
from isovist.storage.blas import one_thread
from isovist.storage.changes import Change
from isovist.storage.chronicle import Head
from isovist.storage.commit import Commit
from isovist.storage.contexts import Ready
from isovist.storage.dense import Vector
from isovist.storage.engines import Engine, Job, WholeEngine
from isovist.storage.filed import KeepsFiles, check_all
from isovist.storage.holdings import SetLimits
from isovist.storage.indexed import USUAL, IndexedEngine, Tuning
from isovist.storage.learned import KeepsLearning
from isovist.storage.ledger import KeepsLedger
from isovist.storage.log import Log
from isovist.storage.reembed import settle_space
from isovist.storage.snapshot import Readers, Snapshot
from isovist.syscalls.errors import Errno, KernelError, WorldError
from isovist.syscalls.file_operations import Changed, FileChange
from isovist.syscalls.manifest import Approval
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    Context,
    Drop,
    Held,
    Lapsed,
    Op,
    Outcome,
    Published,
    Query,
    Receipt,
    Restored,
    Selection,
    Vectors,
)
from isovist.syscalls.records import Partition, SavedContext, ToolRule, Usage, View

T = TypeVar("T")

_TERMS = 1 << 18
"""Terms whose numbers are remembered, at most."""


class _Batch(msgspec.Struct):
    """One commit on its way to the engine. ``awaited``: its outcomes without an error that are
    still to be handed to :meth:`Store.apply`, in order."""

    awaited: deque[Outcome]
    changes: list[Change]
    snapshot: Snapshot | None


class Store(KeepsLearning, KeepsLedger, KeepsFiles):
    """A :class:`~isovist.storage.backend.Backend` in one file.

    Invariants: the engine holds exactly the units whose commit was applied, and its snapshot shows
    exactly those; ``_pending`` holds all and only the commits that changed something and are not
    applied, oldest first.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        space: tuple[str, int],
        key: bytes,
        make: Callable[[], Engine],
    ) -> None:
        self._db = db  # the writer's
        db.execute("PRAGMA wal_autocheckpoint = 0")  # the log is kept short by ``_keep_log``
        self._path = path
        self._space = space
        self._key = key
        self._lock = threading.Lock()  # one transaction at a time on the writer's connection
        self._reading = threading.Lock()  # a snapshot is renewed between two reads, never in one
        self._partitions: dict[int, Partition] = {}
        self._pids: dict[Partition, int] = {}
        self._tids: dict[str, int] = {}
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._readers = Readers(path, self._partitions, space[1])
        self._reader = schema.connect(path, read_only=True)
        self._pending: deque[_Batch] = deque()
        self._applied = threading.Condition()
        self._stopping = False
        self._log = Log(path)
        self._closed = False
        for pid, (partition, _) in restore.partitions(db).items():
            self._know(partition, pid)
        self._snapshot = self._readers.open()
        self._engine = make()

    @classmethod
    def open(
        cls,
        path: Path | str,
        embedder_name: str,
        dim: int,
        *,
        engine: Literal["indexed", "memory"] = "indexed",
        tuning: Tuning = USUAL,
    ) -> Store:
        """Open or create the file at ``path`` for vectors of ``dim`` made by ``embedder_name``.

        Raises :class:`WorldError` where the file is no store, of a newer schema, damaged, or
        holds vectors of another embedder.
        """
        path = Path(path)
        one_thread()
        db = schema.open_file(path)
        try:
            key, generation = _settle(db, path, embedder_name, dim)
            if engine == "indexed":
                name = blake2b(msgspec.msgpack.encode((key, generation, embedder_name, dim)))
                folder = path.with_name(f"{path.name}.index")
                return cls(
                    db,
                    path,
                    (embedder_name, dim),
                    key,
                    lambda: IndexedEngine(dim, folder, name.digest(), tuning),
                )
            return cls(db, path, (embedder_name, dim), key, lambda: WholeEngine(dim))
        except BaseException as e:
            db.close()
            if isinstance(e, sqlite3.Error):
                raise WorldError(f"{path}: the store cannot be opened: {e}") from e
            raise

    @property
    def key(self) -> bytes:
        return self._key

    # -- writes

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        """Make a group durable in one transaction, each operation in a savepoint of its own.

        A group of vectors alone is durable with the next group that is not."""
        with self._lock:
            try:
                self._keep_log()
                return self._commit(ops)
            except sqlite3.Error as e:
                errno, message = _fault(e)
                return [Outcome(op=op, errno=int(errno), message=message) for op in ops]

    def _commit(
        self, ops: Sequence[Op], also: Callable[[list[Outcome]], None] | None = None
    ) -> list[Outcome]:
        """One transaction, in which ``also`` is done too. ``_lock`` is held."""
        group = Commit(self._db, self._space, self._pids, self._tids)
        # Vectors are derived of a text that is durable: a start makes those that a power cut took
        # anew. So they wait for no flush of their own, and come with the next that any write asks.
        flushed = also is not None or not all(isinstance(op, Vectors) for op in ops)
        with self._transaction(flushed=flushed):
            outcomes = group.run(ops)
            if any(isinstance(change.outcome.op, Drop) for change in group.changes):
                life.drop_noted(self._db)
            if also is not None:
                also(outcomes)
        for partition, pid in group.pids.items():
            self._know(partition, pid)
        if len(self._tids) > _TERMS:
            self._tids.clear()
        self._tids.update(group.tally.tids)
        if group.changes:
            # Durable whatever comes now: where no snapshot can be had, ``apply`` tries again.
            snapshot = None
            with suppress(sqlite3.Error):
                snapshot = self._readers.open()
            awaited = deque(outcome for outcome in outcomes if not outcome.errno)
            self._pending.append(_Batch(awaited, group.changes, snapshot))
        return outcomes

    @contextmanager
    def _transaction(self, *, flushed: bool = True) -> Iterator[None]:
        db = self._db
        try:
            if not flushed:
                db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the failure that led here is the one to tell
                if db.in_transaction:
                    db.execute("ROLLBACK")
            raise
        finally:
            if not flushed:
                db.execute("PRAGMA synchronous = FULL")

    def _know(self, partition: Partition, pid: int) -> None:
        self._pids[partition] = pid
        self._partitions[pid] = partition

    def apply(self, outcomes: Sequence[Outcome]) -> None:
        """Make what was committed visible. Outcomes come in the order of commit, those with an
        error need not; a commit is seen whole, when the last of its own has come."""
        for outcome in outcomes:
            if outcome.errno:
                continue
            batch = self._pending[0] if self._pending else None
            if batch is not None and outcome is batch.awaited[0]:
                batch.awaited.popleft()
                if not batch.awaited:
                    self._apply(batch)
            elif not outcome.duplicate:  # nothing is awaited of a commit of duplicates alone
                raise KernelError("an outcome that is not the next of its commit")

    def _apply(self, batch: _Batch) -> None:
        with self._reading:
            snapshot = batch.snapshot or self._readers.open()
            self._engine.apply(batch.changes, snapshot)
            before, self._snapshot = self._snapshot, snapshot
            before.release()
        with self._applied:
            self._pending.popleft()
            self._applied.notify_all()

    # -- reads

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        """The only read of units; see :meth:`MemoryEngine.select`."""
        with self._reading:
            return self._engine.select(view, query, vector)

    def restore(self) -> tuple[Restored, ...]:
        """Fill the engine from the file, once, before the first ``select``; says of each
        partition the last number issued and which units lack vectors."""
        with self._typed():
            whole = restore.read(self._snapshot)
            self._engine.load(whole.found, whole.links, self._snapshot)
            return whole.restored

    # -- upkeep

    def job(self) -> Job | None:
        """Upkeep of the engine that is due: :meth:`run` it in a worker's thread, then
        :meth:`finish` it on the loop's."""
        return self._engine.job()

    def run(self, job: Job) -> None:
        job.run(self._readers.open)

    def finish(self, job: Job) -> None:
        with self._reading:
            self._engine.finish(job)

    def stop_upkeep(self) -> None:
        """Have the job or the scrub under way end soon and undone: the store will be closed."""
        self._stopping = True
        self._engine.stop()
        with self._applied:
            self._applied.notify_all()

    def _keep_log(self) -> None:
        """Before a commit, where the log has grown: bring it into the file, so that it can begin
        anew. ``_lock`` is held."""
        if self._log.due():
            with suppress(sqlite3.Error):  # a write does not fail for want of upkeep
                self._log.check(self._db)
                if self._settled(self._log.patience()):
                    self._renew()
                    self._log.cut(self._db)

    def _settled(self, seconds: float) -> bool:
        """Whether everything committed is applied, after some waiting."""
        with self._applied:
            self._applied.wait_for(lambda: self._stopping or not self._pending, seconds)
            return not self._pending

    def _settled_to_scrub(self, seconds: float) -> bool:
        """The same for a scrub, which ends where the store is about to be closed."""
        settled = self._settled(seconds)
        if self._stopping:
            raise WorldError("the store is about to be closed", errno=Errno.ECANCELED)
        return settled

    def _renew(self) -> None:
        """Move the engine's snapshot off the log. All is applied and ``_lock`` is held: it shows
        the same as before."""
        with self._reading:
            self._snapshot.renew()

    # -- the end of a unit

    def owned(self, user: str) -> tuple[tuple[str, int, str], ...]:
        with self._typed():
            return life.owned(self._reader, user)

    def purge(self, user: str, receipt: str, now: int) -> list[Outcome]:
        with self._lock, self._typed():
            drops = life.drops(self._db, user, receipt, now)

            def also(_: list[Outcome]) -> None:
                life.ask(self._db, receipt, now)
                registers.forget_user(self._db, user, {drop.id for drop in drops})
                contexts.forget_user(self._db, user)
                chronicle.forget_user(self._db, user)
                holdings.forget_user(self._db, user)
                learning.forget_user(self._db, user)
                ledger.forget_user(self._db, user)
                files.forget_user(self._db, user)

            return self._commit(drops, also)

    def expired(self, now: int, limit: int) -> tuple[tuple[Lapsed, ...], int | None]:
        with self._typed():
            return life.expired(self._reader, now, limit)

    def receipt(self, id: str) -> Receipt | None:
        with self._typed():
            return life.receipt(self._reader, id)

    def owed(self) -> Owed | None:
        with self._typed():
            asked, dropped = life.waiting(self._reader), life.dropped(self._reader)
            return (asked, dropped) if asked or dropped or life.shed(self._reader) else None

    def scrub(self, now: int, owed: Owed | None = None) -> bool:
        with self._lock, self._typed():
            asked, dropped = owed or (life.waiting(self._db), life.dropped(self._db))
            shed = life.shed(self._db)
            if not asked and not dropped and not shed:
                return True
            self._tids.clear()
            words.forget()
            life.shrink(self._db)
            self._log.empty(self._db, self._settled_to_scrub, self._renew)
            while not gaps.clear(self._path, self._handle):
                self._log.empty(self._db, self._settled_to_scrub, self._renew)
            life.check_free(self._db)
        if not self._engine.scrub(self._readers.open):
            return False
        with self._lock, self._typed(), self._transaction():
            life.issue(self._db, asked, now)
            life.scrubbed(self._db, dropped)
            life.shed_scrubbed(self._db, shed)
        return True

    def verify(self) -> list[str]:
        """Where the statistics in the file differ from a recount; empty: nowhere."""
        with self._lock, self._typed():
            return life.differences(self._db)

    # -- audit, grants, groups

    def save_records(self, records: Sequence[Record]) -> None:
        """Make audit records durable in one transaction. Raises :class:`WorldError`."""
        with self._lock, self._typed(), self._transaction():
            registers.save_records(self._db, records)

    def record(self, call: str) -> Record | None:
        with self._typed():
            return registers.record(self._reader, call)

    def usage(self, by: str, since: int, until: int | None) -> tuple[Usage, ...]:
        with self._typed():
            db = schema.connect(self._path, read_only=True)
            try:
                return registers.usage(registers.all_records(db), by, since, until)
            finally:
                db.close()

    def save_grant(
        self,
        agent: str,
        users: Sequence[str],
        scopes: Sequence[str],
        mail: Sequence[str] = (),
        tools: Sequence[ToolRule] = (),
    ) -> None:
        """What ``agent`` holds from now on; nothing of all removes it."""
        with self._lock, self._typed(), self._transaction():
            registers.save_grant(self._db, agent, users, scopes)
            agents.save_permissions(self._db, agent, mail, tools)

    def permissions(self) -> agents.Permissions:
        with self._typed():
            return agents.permissions(self._reader)

    def save_approval(
        self,
        agent: str,
        approval: Approval | None,
        users: Sequence[str],
        scopes: Sequence[str],
        mail: Sequence[str],
        tools: Sequence[ToolRule],
    ) -> None:
        """What of ``agent`` is approved from now on, and, with it, what it holds."""
        with self._lock, self._typed(), self._transaction():
            agents.save_approval(self._db, agent, approval)
            registers.save_grant(self._db, agent, users, scopes)
            agents.save_permissions(self._db, agent, mail, tools)

    def save_distrust(self, agent: str, on: bool) -> None:
        with self._lock, self._typed(), self._transaction():
            agents.save_distrust(self._db, agent, on)

    def distrusted(self) -> tuple[str, ...]:
        with self._typed():
            return agents.distrusted(self._reader)

    def published(
        self, agent: str, hidden: bool, limit: int, skip: Collection[tuple[str, int]] = ()
    ) -> tuple[Published, ...]:
        with self._typed():
            db = schema.connect(self._path, read_only=True)
            try:
                return agents.published(db, agent, hidden, limit, skip)
            finally:
                db.close()

    def approvals(self) -> dict[str, Approval]:
        with self._typed():
            return agents.approvals(self._reader)

    def grants(self) -> Grants:
        with self._typed():
            return registers.grants(self._reader)

    def save_group(self, of: str, name: str, members: Sequence[str]) -> None:
        with self._lock, self._typed(), self._transaction():
            registers.save_group(self._db, of, name, members)

    def groups(self) -> Groups:
        with self._typed():
            return registers.groups(self._reader)

    # -- quotas

    def holdings(self) -> tuple[Held, ...]:
        with self._typed():
            return holdings.held(self._reader)

    def save_limits(self, axis: str, name: str, figures: Mapping[str, int]) -> None:
        with self._lock, self._typed(), self._transaction():
            holdings.save_limits(self._db, axis, name, figures)

    def limits(self) -> SetLimits:
        with self._typed():
            return holdings.limits(self._reader)

    # -- the chronicle

    def head(self) -> Head:
        with self._typed():
            return chronicle.head(self._reader)

    def save_head(self, head: Head) -> None:
        # The file of the chronicle is flushed: what the store knows of it may come later.
        with self._lock, self._typed(), self._transaction(flushed=False):
            chronicle.save_head(self._db, head)

    def pseudonyms(self, users: Collection[str]) -> dict[str, str]:
        with self._lock, self._typed(), self._transaction():
            return chronicle.pseudonyms(self._db, users)

    # -- contexts

    def save_context(self, ready: Ready, most: int, most_bytes: int) -> str:
        with self._lock, self._typed(), self._transaction():
            replaced = contexts.save(self._db, ready, most, most_bytes)
            if replaced:
                life.shed_noted(self._db)
            return replaced

    def context(self, user: str, agent: str, name: str) -> Context | None:
        with self._typed():
            return contexts.find(self._reader, user, agent, name)

    def contexts(self, user: str, agent: str) -> tuple[SavedContext, ...]:
        with self._typed():
            return contexts.kept(self._reader, user, agent)

    def drop_context(self, user: str, agent: str, name: str) -> str:
        with self._lock, self._typed(), self._transaction():
            dropped = contexts.drop(self._db, user, agent, name)
            if dropped:
                life.shed_noted(self._db)
            return dropped

    def context_ids(self) -> frozenset[str]:
        with self._typed():
            return contexts.ids(self._reader)

    def change_file(self, change: FileChange) -> Changed:
        with self._lock, self._typed():
            self._keep_log()
            plan = files.plan(self._db, change, lambda unit: self._version_of(unit) > 0)
            if isinstance(plan, Changed):
                return plan
            done: list[Changed] = []

            def also(outcomes: list[Outcome]) -> None:
                check_all(outcomes)
                done.append(plan.carry_out())
                if change.receipt:
                    life.ask(self._db, change.receipt, change.at)
                # Bytes that are in no unit may have gone.
                life.shed_noted(self._db)

            outcomes = self._commit(plan.ops, also)
            return msgspec.structs.replace(done[0], outcomes=tuple(outcomes))

    @contextmanager
    def _learning(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        if not write:
            with self._typed():
                yield self._reader
            return
        with self._lock, self._typed(), self._transaction():
            yield self._db

    def _version_of(self, unit: str) -> int:
        with self._typed():
            found = self._db.execute("SELECT version FROM units WHERE id = ?", (unit,)).fetchone()
            return int(found[0]) if found else 0

    def backup(self, path: str) -> int:
        return backup(self._path, Path(path))

    def statistics(self) -> dict[str, int]:
        """The engine's sizes, and the file's bytes (with its log)."""
        logs = (Path(f"{self._path}{suffix}") for suffix in ("", "-wal"))
        size = sum(path.stat().st_size for path in logs if path.exists())
        with self._typed():
            count, held = contexts.sizes(self._reader)
            kept = {
                **learning.sizes(self._reader),
                **ledger.sizes(self._reader),
                **files.sizes(self._reader),
            }
        kept |= {"contexts": count, "context_bytes": held}
        return {**self._engine.statistics(), **kept, "bytes": size}

    def close(self) -> None:
        with self._lock:
            with self._reading:
                self._engine.close()
                with suppress(sqlite3.Error):
                    self._snapshot.release()
                for batch in self._pending:
                    if batch.snapshot is not None:
                        batch.snapshot.release()
                self._pending.clear()
                self._readers.close()
                self._reader.close()
            self._db.close()
            if not self._closed:  # the last of all: see :func:`gaps.clear`
                self._closed = True
                os.close(self._handle)

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as e:  # gaps are filled without SQLite
            errno, message = _fault(e)
            raise WorldError(f"{self._path}: {message}", errno=errno) from e


def _settle(db: sqlite3.Connection, path: Path, name: str, dim: int) -> tuple[bytes, bytes]:
    """Check the embedder, bring the terms up to date with the rules for words; gives the store's
    key and its generation."""
    db.execute("BEGIN IMMEDIATE")
    try:
        swapped = settle_space(db, name, dim)
        generation = indexing.keep_up(db, renewed=swapped)
        db.execute("INSERT OR IGNORE INTO meta (name, value) VALUES ('key', ?)", (os.urandom(16),))
        (key,) = db.execute("SELECT value FROM meta WHERE name = 'key'").fetchone()
        db.execute("COMMIT")
    except BaseException as e:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if isinstance(e, WorldError):
            raise WorldError(f"{path}: {e.message}", errno=e.errno, field=e.field) from None
        raise
    return key, generation


def _fault(e: sqlite3.Error | OSError) -> tuple[Errno, str]:
    full = isinstance(e, OSError) and e.errno == Errno.ENOSPC
    if full or getattr(e, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        return Errno.ENOSPC, "the disk that holds the store is full"
    return Errno.EIO, f"the store failed: {e}"
