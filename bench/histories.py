"""Random histories of all that befalls a store, drawn so that the edge of one reader's view is
crossed in every way.

A :class:`History` is drawn step by step, since what may come next depends on what the store took.
It knows of each unit where it is and what it is as it stands: the *record*.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from isovist.kernel.state.views import Membership, view_of
from isovist.storage.dense import Vector
from isovist.storage.embedder import HashEmbedder, stored
from isovist.syscalls.operations import (
    CountQuery,
    Drop,
    Expire,
    ListQuery,
    Move,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    Replace,
    RoundsQuery,
    SearchQuery,
    Vectors,
)
from isovist.syscalls.records import ALL, Axis, Mode, Partition, Reader, View

EMBEDDER = HashEmbedder(16)
USERS, AGENTS = ("ana", "ana_b", "cleo"), ("p", "q", "p_q")
TEAMS, DESKS = ("team", "team2"), ("desk",)
T0 = 1_796_000_000_000_000_000
DAY = 86_400_000_000_000
WORDS = ("tea", "coffee", "deploys", "tuesday", "release", "ana", "部署", "周二", "api-v2_final",
         "milk", "boat", "train", "garden", "blue", "paper", "river", "music", "lamp")  # fmt: skip
LONG = "The release goes out on a Tuesday, and the garden waits for it. " * 20
MODES: tuple[Mode, ...] = ("bm25", "dense", "rrf", "hybrid")


@lru_cache(maxsize=1 << 14)
def embedded(text: str) -> Vector:
    return EMBEDDER.embed(text)


@lru_cache(maxsize=1 << 14)
def vector_of(text: str) -> bytes:
    return stored(EMBEDDER.embed(text))


@dataclass
class Known:
    """A unit as it stands: ``put`` as it would have to be put today, its version, the number that
    its text came with, its chunks, and whether these have their vectors."""

    put: Put
    version: int
    wrote: int
    chunks: tuple[str, ...]
    embedded: bool = False


@dataclass(frozen=True)
class Event:
    """An operation and what became of it in the store that has everything. ``unit``: the unit
    before it; ``older``: where the unit that it supersedes was, if anywhere."""

    op: Op
    outcome: Outcome
    unit: Known | None
    older: Partition | None


@dataclass
class History:
    """What is drawn comes from ``rng`` alone. ``memberships`` are those that the reader will have,
    one after the other; ``views`` are their views."""

    rng: random.Random
    units: dict[str, Known] = field(default_factory=dict)
    gone: dict[str, Known] = field(default_factory=dict)
    now: int = T0
    seqs: dict[Partition, int] = field(default_factory=dict)
    _texts: list[Put] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.reader = Reader(rng.choice(USERS), rng.choice(AGENTS))
        count = rng.choice((1, 1, 2, 3))
        self.memberships = [
            Membership(
                tuple(team for team in TEAMS if rng.random() < 0.5),
                tuple(desk for desk in DESKS if rng.random() < 0.5),
            )
            for _ in range(count)
        ]
        self.views = [view_of(self.reader, membership) for membership in self.memberships]
        self.seen = list(dict.fromkeys(p for view in self.views for p in view.partitions))
        home = self.views[0].partitions
        self.home = rng.choice(home)
        """Where many units are, so that there is a graph."""

    # -- what is written

    def bulk(self) -> list[Op]:
        """The units that were there before: many at home, some in its view, many elsewhere."""
        rng = self.rng
        wide = [self.home] * rng.choice((0, 36, 44, 60, 90))
        wide += [rng.choice(self.seen) for _ in range(rng.randint(0, 12))]
        wide += [self._elsewhere() for _ in range(rng.randint(10, 60))]
        rng.shuffle(wide)
        return [self._put(partition) for partition in wide]

    def group(self) -> list[Op]:
        """Some operations for one commit. A move comes alone: what a store without its unit must
        do instead depends on how things stand at that moment."""
        if self.units and self.rng.random() < 0.3:
            moved = self._move()
            return [moved] if moved is not None else []
        return [self._one() for _ in range(self.rng.choice((1, 1, 1, 2, 4)))]

    def vectors(self, outcomes: Iterable[Outcome]) -> list[Op]:
        """The dense leg of what was written; now and then it never comes."""
        return [
            Vectors(
                partition=op.to if isinstance(op, Move) else op.partition,
                seq=op.to_seq if isinstance(op, Move) else op.seq,
                id=outcome.id,
                version=outcome.version,
                model=EMBEDDER.name,
                vectors=tuple(map(vector_of, outcome.chunks)),
            )
            for outcome in outcomes
            if outcome.chunks and not outcome.errno and self.rng.random() < 0.93
            and isinstance(op := outcome.op, Put | Replace | Move)
        ]  # fmt: skip

    def _seq(self, partition: Partition) -> int:
        self.seqs[partition] = self.seqs.get(partition, 0) + 1
        return self.seqs[partition]

    def _elsewhere(self) -> Partition:
        rng = self.rng
        while True:
            users = rng.choice((*(Axis("one", u) for u in USERS), Axis("group", "team"),
                                Axis("group", "team2"), ALL))  # fmt: skip
            agents = rng.choice((*(Axis("one", a) for a in AGENTS), Axis("group", "desk"),
                                 Axis("group", "shop"), ALL))  # fmt: skip
            partition = Partition(users, agents)
            if partition not in self.views[0].partitions:
                return partition

    def _somewhere(self) -> Partition:
        draw = self.rng.random()
        if draw < 0.3:
            return self.home
        return self.rng.choice(self.seen) if draw < 0.6 else self._elsewhere()

    def _text(self) -> str:
        rng = self.rng
        if rng.random() < 0.04:
            return LONG + rng.choice(WORDS)
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))

    def _put(self, partition: Partition, **fields: Any) -> Put:
        rng = self.rng
        self.now += rng.choice((0, 1, 1, 7))
        users, agents = partition.users, partition.agents
        user = users.name if users.kind == "one" else rng.choice(USERS)
        agent = agents.name if agents.kind == "one" else rng.choice(AGENTS)
        seq = self._seq(partition)
        session = rng.choice(("", "trip", "work"))
        drawn: dict[str, Any] = {
            "text": self._text(),
            "kind": rng.choice(("note", "note", "profile", "lesson")),
            "user": user,
            "agent": agent,
            "stream": rng.choice(("reusable", "reusable", "protected")),
            "said_at": self.now - rng.randrange(9) * DAY,
            "session": session,
            "handle": f"{user}-{session}" if session else "",
            "round": rng.randrange(6),
            "expires_at": self._expiry(),
        }
        return Put(
            partition=partition,
            seq=seq,
            id=f"{hash_of(partition):x}.{seq}",
            stored_at=self.now,
            **(drawn | fields),
        )

    def _expiry(self) -> int | None:
        rng = self.rng
        return self.now + rng.choice((3, 40, 10**15)) if rng.random() < 0.12 else None

    def _some(self) -> Known:
        """A unit; of those that the reader may see more often than not."""
        rng = self.rng
        seen = set(self.seen)
        units = list(self.units.values())
        drawn = [rng.choice(units) for _ in range(3)]
        inside = [known for known in drawn if known.put.partition in seen]
        return rng.choice(inside) if inside and rng.random() < 0.75 else drawn[0]

    def _one(self) -> Op:
        rng = self.rng
        what = rng.choices(
            ("put", "again", "supersede", "replace", "expire", "drop", "back"),
            (30, 12, 12, 14, 8, 16, 4),
        )[0]
        if not self.units or what == "put":
            return self._put(self._somewhere())
        if what == "back" and self.gone:
            return self._back(rng.choice(list(self.gone.values())))
        known = self._some()
        put = known.put
        if what == "again":
            # The same once more, as its pair says it again: there, or to another audience.
            return self._put(
                put.partition if rng.random() < 0.7 else self._of_pair(put),
                **_fields(put, "text", "kind", "user", "agent", "stream", "said_at", "session",
                          "handle", "round", "expires_at"),
            )  # fmt: skip
        if what == "supersede":
            return self._put(
                put.partition if rng.random() < 0.4 else self._of_pair(put),
                supersedes=put.id,
                **_fields(put, "user", "agent"),
            )
        self.now += 1
        common: dict[str, Any] = {
            "partition": put.partition,
            "seq": self._seq(put.partition),
            "id": put.id,
            "stored_at": self.now,
        }
        if what in ("drop", "back"):
            return Drop(**common, receipt=rng.choice(("", "r1", "r2")))
        common["version"] = known.version + (rng.random() < 0.07)
        if what == "replace":
            return Replace(**common, text=self._text())
        return Expire(**common, expires_at=self._expiry())

    def _back(self, known: Known) -> Put:
        """A forgotten unit comes back from an export."""
        put = known.put
        partition = put.partition
        self.now += 1
        return msgspec.structs.replace(
            put, seq=self._seq(partition), stored_at=self.now, version=known.version + 1,
            supersedes="",
        )  # fmt: skip

    def _of_pair(self, put: Put) -> Partition:
        """Where its pair may have put it."""
        rng = self.rng
        users = (Axis("one", put.user), ALL, *(Axis("group", team) for team in TEAMS))
        agents = (Axis("one", put.agent), ALL, *(Axis("group", desk) for desk in DESKS))
        return Partition(rng.choice(users), rng.choice(agents))

    def _move(self) -> Move | None:
        known = self._some()
        put = known.put
        to = self.home if self.rng.random() < 0.3 else self._of_pair(put)
        older = self.units.get(put.supersedes)
        if to == put.partition or (older is not None and _expired(older, self.now + 1)):
            return None
        self.now += 1
        return Move(
            partition=put.partition,
            seq=self._seq(put.partition),
            id=put.id,
            version=known.version + (self.rng.random() < 0.05),
            to=to,
            to_seq=self._seq(to),
            stored_at=self.now,
        )

    # -- what became of it

    def record(self, outcomes: Sequence[Outcome]) -> list[Event]:
        """Keep the record; each operation with what there was before it."""
        return [self._record(outcome) for outcome in outcomes]

    def _record(self, outcome: Outcome) -> Event:
        op = outcome.op
        unit = self.units.get(op.id)
        older = None
        if (isinstance(op, Put) and (before := self.units.get(op.supersedes))) or (
            unit is not None and (before := self.units.get(unit.put.supersedes))
        ):
            older = before.put.partition
        event = Event(op, outcome, unit, older)
        if not outcome.errno and not outcome.duplicate:
            self._enter(op, outcome, unit)
        return event

    def _enter(self, op: Op, outcome: Outcome, unit: Known | None) -> None:
        if isinstance(op, Put):
            self.units[op.id] = Known(op, op.version, op.seq, outcome.chunks)
            self.gone.pop(op.id, None)
            return
        assert unit is not None, "what took effect has a unit"
        if isinstance(op, Drop):
            self.gone[op.id] = self.units.pop(op.id)
            return
        change: dict[str, Any] = {}
        new = Known(unit.put, outcome.version, unit.wrote, unit.chunks, unit.embedded)
        if isinstance(op, Replace):
            change = {"text": op.text, "stored_at": op.stored_at}
            new.wrote, new.chunks, new.embedded = op.seq, outcome.chunks, False
        elif isinstance(op, Expire):
            change = {"expires_at": op.expires_at, "stored_at": op.stored_at}
        elif isinstance(op, Move):
            change = {"partition": op.to, "seq": op.to_seq, "stored_at": op.stored_at}
            new.wrote = op.to_seq
        else:
            new.embedded = True
        new.put = msgspec.structs.replace(unit.put, **change)
        self.units[op.id] = new

    # -- what is asked

    def queries(self, view: View) -> list[Query]:
        """Of every kind; ids inside the view and outside, of units that are gone, of none."""
        rng, now = self.rng, self.now
        found: list[Query] = [
            SearchQuery(text=self._question(), mode=mode, k=rng.choice((1, 5, 20)), now=now)
            for mode in MODES
            for _ in range(2)
        ]
        for mode in rng.sample(MODES, 2):
            plain = SearchQuery(text=self._question(), mode=mode, k=8, now=now)
            found.append(msgspec.structs.replace(plain, kinds=("profile", "lesson")))
            dated = msgspec.structs.replace(plain, text=self._question())
            span = {"since": now - 4 * DAY, "until": now - 2 * DAY}
            found.append(msgspec.structs.replace(dated, **span))
        found.append(
            SearchQuery(text=self._question(), mode="hybrid", k=8, now=now, lexical_only=True)
        )
        ids = [*self.units, *self.gone, "never"]
        found += [ReadQuery(id=id_, now=now) for id_ in rng.sample(ids, min(8, len(ids)))]
        handles = [f"{user}-{session}" for user in USERS for session in ("trip", "work")]
        wanted = tuple((handle, 0, 9) for handle in rng.sample(handles, 3))
        found += [
            ListQuery(limit=rng.choice((3, 500)), now=now),
            ListQuery(limit=5, now=now + 20, kinds=("note",)),
            CountQuery(now=now),
            CountQuery(now=now + 20, kinds=("note", "lesson")),
            RoundsQuery(wanted=wanted, now=now),
            RoundsQuery(wanted=((wanted[0][0], 1, 3), (wanted[1][0], 2, 2)), now=now, limit=3),
        ]
        return found

    def _question(self) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.choice((1, 2, 3, 8))))


def hash_of(partition: Partition) -> int:
    """A name for a partition in ids, the same in every process."""
    digest = blake2b(msgspec.msgpack.encode(partition), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def _fields(put: Put, *names: str) -> dict[str, Any]:
    return {name: getattr(put, name) for name in names}


def _expired(known: Known, now: int) -> bool:
    return known.put.expires_at is not None and known.put.expires_at <= now
