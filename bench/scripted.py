"""Random work on a store, one durable step after the other, with a ledger of what must be there.

For the benches of crashes and of failing disks: both run the store in this process, over a disk
that is watched (:mod:`bench.disk`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from isovist.kernel.state.views import view_of
from isovist.storage import schema
from isovist.storage.embedder import HashEmbedder, stored
from isovist.storage.indexed import Tuning
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    Drop,
    Expire,
    Move,
    Op,
    Outcome,
    Put,
    Replace,
    SearchQuery,
    Vectors,
)
from isovist.syscalls.records import Barrier, Partition, Reader, View, partition_of

DATABASE = "isovist.db"
EMBEDDER = HashEmbedder(32)
TUNING = Tuning(crossover=8, delta=6, narrow=4, room=1 << 16)
"""So small that all structures are at work: graphs, the shared index, its delta."""
START = 1_900_000_000_000_000_000
NEVER = 1 << 62
USERS = ("ana", "ben", "chen")
AGENTS = ("planner", "writer")
SCOPES = ("pair", "user", "agent", "global")


def opened(folder: Path) -> Store:
    """The store in ``folder``, restored: what a kernel has when it starts."""
    store = Store.open(folder / DATABASE, EMBEDDER.name, EMBEDDER.dim, tuning=TUNING)
    try:
        store.restore()
    except BaseException:
        store.close()
        raise
    return store


def upkeep(store: Store) -> None:
    """All that is due."""
    while (job := store.job()) is not None:
        store.run(job)
        store.finish(job)


@dataclass(frozen=True)
class Held:
    """A unit as it must be found. ``word`` stands in no other unit; ``chunks`` are the texts that
    its vectors are of, ``embedded`` says whether these are stored."""

    id: str
    partition: Partition
    user: str
    agent: str
    version: int
    wrote: int
    word: str
    chunks: tuple[str, ...]
    embedded: bool = False


class Refused(Exception):
    """The store said that it could not."""

    def __init__(self, errno: Errno, message: str) -> None:
        super().__init__(f"{errno.name}: {message}")
        self.errno = errno


class Scripted:
    """A store at work. ``units`` is what is durable; ``words`` of those that are no more are in
    ``gone``. Each step either takes effect, or raises :class:`Refused` and changes neither."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.store = opened(folder)
        self.units: dict[str, Held] = {}
        self.gone: set[str] = set()
        self._seqs: dict[Partition, int] = {}
        self._now = START
        self._made = 0

    # -- steps, each one transaction or none

    def write(self) -> None:
        """A group of operations."""
        ops: list[Op] = []
        busy: set[str] = set()
        for _ in range(self.rng.randint(1, 6)):
            free = [unit for unit in self.units if unit not in busy]
            op = self._op(self.units[self.rng.choice(free)] if free else None)
            busy.add(op.id)
            ops.append(op)
        self._commit(ops)

    def embed(self) -> None:
        """The vectors of all units that lack them."""
        ops: list[Op] = [
            Vectors(
                partition=held.partition,
                seq=held.wrote,
                id=held.id,
                version=held.version,
                model=EMBEDDER.name,
                vectors=tuple(stored(EMBEDDER.embed(chunk)) for chunk in held.chunks),
            )
            for held in self.units.values()
            if not held.embedded
        ]
        if ops:
            self._commit(ops[:24])

    def register(self) -> None:
        """What a kernel keeps beside units."""
        kind = self.rng.randrange(3)
        try:
            if kind == 0:
                self.store.save_records([self._record() for _ in range(self.rng.randint(1, 4))])
            elif kind == 1:
                self.store.save_grant(self.rng.choice(AGENTS), USERS[: self.rng.randint(0, 2)], ())
            else:
                some = self.rng.sample(USERS, self.rng.randint(0, 3))
                self.store.save_group("users", self.rng.choice("xyz"), some)
        except WorldError as e:
            raise Refused(e.errno, e.message) from e

    def purge(self) -> None:
        """A user is forgotten."""
        user = self.rng.choice(USERS)
        try:
            outcomes = self.store.purge(user, self._receipt(), self._tick())
        except WorldError as e:
            raise Refused(e.errno, e.message) from e
        self._take(outcomes)

    def scrub(self) -> None:
        """What was forgotten leaves every file."""
        try:
            while not self.store.scrub(self._tick()):
                upkeep(self.store)
        except WorldError as e:
            raise Refused(e.errno, e.message) from e

    # -- what is there

    def portrait(self) -> bytes:
        return portrait(self.folder / DATABASE)

    @classmethod
    def problems(cls, units: Sequence[Held], gone: Sequence[str], store: Store) -> list[str]:
        """What of these is not in both legs, or is although it should not be."""
        told = []
        for held in units:
            view = view_of(Reader(held.user, held.agent))
            found = cls._ask(store, view, held.word, "bm25")
            if found != [held.id]:
                told.append(f"{held.word}: the lexical leg gives {found}, not {held.id}")
            if held.embedded:
                for chunk in held.chunks:
                    near = cls._ask(store, view, chunk, "dense", EMBEDDER.embed(chunk))
                    if near[:1] != [held.id]:
                        told.append(f"{held.word}: the dense leg gives {near}, not {held.id}")
        for word in gone:
            for user in USERS:
                for agent in AGENTS:
                    view = view_of(Reader(user, agent))
                    if found := cls._ask(store, view, word, "bm25"):
                        told.append(f"{word}: forgotten, and found as {found}")
        return told

    @staticmethod
    def _ask(
        store: Store,
        view: View,
        text: str,
        mode: Any,
        vector: np.ndarray[Any, np.dtype[np.float32]] | None = None,
    ) -> list[str]:
        query = SearchQuery(text=text, k=3, mode=mode, now=START)
        return [unit.id for unit in store.select(view, query, vector).units()]

    # -- its parts

    def _op(self, held: Held | None) -> Op:
        now = self._tick()
        if held is None or self.rng.random() < 0.45:
            user, agent = self.rng.choice(USERS), self.rng.choice(AGENTS)
            partition = partition_of(self.rng.choice(SCOPES), user, agent)
            seq = self._seq(partition)
            self._made += 1
            return Put(
                partition=partition, seq=seq, id=f"unit{self._made}", text=self._text(),
                kind="note", agent=agent, user=user, stream="reusable", said_at=now,
                stored_at=now, meta={"mark": self._word()},
            )  # fmt: skip
        place: dict[str, Any] = {"partition": held.partition, "seq": self._seq(held.partition)}
        place["id"], place["stored_at"] = held.id, now
        what = self.rng.choice(("replace", "expire", "move", "drop", "drop"))
        if what == "drop":
            return Drop(**place, receipt=self._receipt())
        place["version"] = held.version
        if what == "replace":
            return Replace(**place, text=self._text())
        others = [
            to
            for scope in SCOPES
            if (to := partition_of(scope, held.user, held.agent)) != held.partition
        ]
        if what == "expire":
            return Expire(**place, expires_at=self.rng.choice((None, NEVER)))
        to = self.rng.choice(others)
        return Move(**place, to=to, to_seq=self._seq(to))

    def _commit(self, ops: list[Op]) -> None:
        outcomes = self.store.commit(ops)
        broken = [o for o in outcomes if o.errno in (Errno.ENOSPC, Errno.EIO, Errno.EKERNEL)]
        if broken:
            if len(broken) < len(outcomes):
                raise AssertionError("the disk failed for a part of one group")
            raise Refused(Errno(broken[0].errno), broken[0].message)
        if wrong := [o for o in outcomes if o.errno]:
            raise AssertionError(f"{type(wrong[0].op).__name__}: {wrong[0].message}")
        self._take(outcomes)

    def _take(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._note(outcome)
        self.store.apply(outcomes)

    def _note(self, outcome: Outcome) -> None:
        op = outcome.op
        if isinstance(op, Put):
            self.units[op.id] = Held(
                op.id, op.partition, op.user, op.agent, 1, op.seq, _first(op.text), outcome.chunks
            )
            return
        held = self.units[op.id]
        if isinstance(op, Drop):
            del self.units[op.id]
            self.gone.add(held.word)
        elif isinstance(op, Vectors):
            self.units[op.id] = replace(held, embedded=True)
        elif isinstance(op, Replace):
            self.gone.add(held.word)
            self.units[op.id] = replace(
                held, version=outcome.version, wrote=op.seq, word=_first(op.text),
                chunks=outcome.chunks, embedded=False,
            )  # fmt: skip
        elif isinstance(op, Move):
            self.units[op.id] = replace(
                held, partition=op.to, version=outcome.version, wrote=op.to_seq
            )
        else:
            self.units[op.id] = replace(held, version=outcome.version)

    def _text(self) -> str:
        """Begins with a word of its own; now and then several chunks long."""
        count = self.rng.choice((3, 8, 8, 400))
        words = (f"common{self.rng.randrange(60)}" for _ in range(count))
        return f"{self._word()} {' '.join(words)}"

    def _word(self) -> str:
        return "zq" + "".join(self.rng.choices("bcdfghjklmnp", k=12))

    def _receipt(self) -> str:
        return f"receipt{self.rng.randrange(1 << 40)}"

    def _record(self) -> Record:
        return Record(
            call=f"call{self.rng.randrange(1 << 40)}", syscall="search", agent="planner",
            user="ana", rule="request", at=self._tick(), barrier=Barrier(state="ready"),
        )  # fmt: skip

    def _seq(self, partition: Partition) -> int:
        self._seqs[partition] = self._seqs.get(partition, 0) + 1
        return self._seqs[partition]

    def _tick(self) -> int:
        self._now += 1
        return self._now


def _first(text: str) -> str:
    return text.split(" ", 1)[0]


def portrait(path: Path) -> bytes:
    """A digest of all rows of the store at ``path`` that mean something: a word that no chunk
    holds any more may be there or not."""
    digest = blake2b(digest_size=16)
    with closing(schema.connect(path, read_only=True)) as db:
        db.execute("BEGIN")
        tables = [name for (name,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            " ORDER BY name"
        )]  # fmt: skip
        for table in tables:
            used = " WHERE tid IN (SELECT tid FROM frequencies)" if table == "terms" else ""
            digest.update(table.encode())
            columns = len(db.execute(f"PRAGMA table_info({table})").fetchall())
            order = ", ".join(str(n + 1) for n in range(min(2, columns)))
            for row in db.execute(f"SELECT * FROM {table}{used} ORDER BY {order}"):
                digest.update(repr(row).encode())
    return digest.digest()
