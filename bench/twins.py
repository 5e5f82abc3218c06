"""A history played twice: in a store with everything, and in a *twin* for each view of the reader,
in which all units outside that view were never written.

A twin gets every operation on a unit in its view with the same numbers, ids and times. A unit that
leaves the view is dropped there, one that comes into it is put. Two things are the unit's own and
come along: its version, and whether it stands for its text or has given way to another unit (an
update counter and a mark that the owner's writes have set). To bring them in, a twin puts such a
unit *aside*, in a partition of nobody's view, and moves it in with the same commit; nothing stays
aside.

Both stores have graphs built at the same points of the history, and are opened anew at the same
points: how far a graph is behind is a matter of time, not of other units. All else that upkeep
does, each store does when it likes: commits of the shared index, what is held in memory, which
view is answered from where.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.histories import EMBEDDER, Event, Known, embedded, vector_of
from isovist.kernel.injection import render
from isovist.kernel.state.instructions import Render
from isovist.kernel.tokens import ScriptedCounter
from isovist.storage.indexed import Tuning
from isovist.storage.jobs import BuildGraph
from isovist.storage.store import Store
from isovist.syscalls.operations import (
    Drop,
    ListQuery,
    Move,
    Op,
    Outcome,
    Put,
    Query,
    SearchQuery,
    Selection,
    Vectors,
)
from isovist.syscalls.records import Axis, Message, Partition, View

T = TypeVar("T")
CROSSOVER = 32
ASIDE = Partition(Axis("one", "nobody at all"), Axis("one", "nothing at all"))
_encode = msgspec.msgpack.Encoder().encode


class Played:
    """A store in which a history is played; upkeep of its own choice."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self._path = path
        self._rng = rng
        self._aside = 0
        self.tally: Counter[str] = Counter()
        self.store = self._open()
        self.store.restore()

    def _open(self) -> Store:
        rng = self._rng
        tuning = Tuning(
            crossover=CROSSOVER,
            room=rng.choice((0, 20_000, 256 << 20)),
            narrow=rng.choice((0, 100, 16_384)),
            delta=rng.choice((4, 40, 90, 512)),
        )
        return Store.open(self._path, EMBEDDER.name, EMBEDDER.dim, tuning=tuning)

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        outcomes = self.store.commit(ops) if ops else []
        self.store.apply(outcomes)
        return outcomes

    def aside(self) -> int:
        """The next number of the partition that is in nobody's view."""
        self._aside += 1
        return self._aside

    def upkeep(self) -> None:
        """Perhaps a job; none that makes a graph."""
        if self._rng.random() < 0.3:
            job = self.store.job()
            if job is not None and not isinstance(job, BuildGraph):
                self._do(job)

    def settle(self) -> None:
        """All jobs that are due."""
        while (job := self.store.job()) is not None:
            self._do(job)

    def _do(self, job: Any) -> None:
        self.tally[type(job).__name__] += 1
        self.store.run(job)
        self.store.finish(job)

    def scrub(self, now: int) -> None:
        """A store that dropped nothing has nothing to scrub: so something is dropped first, in
        each."""
        put = Put(partition=ASIDE, seq=self.aside(), id="scrubbed", text="so", kind="note",
                  agent="", user="", stream="reusable", said_at=now, stored_at=now)  # fmt: skip
        self.commit([put, Drop(partition=ASIDE, seq=self.aside(), id=put.id)])
        while not self.store.scrub(now):
            self.settle()

    def reopen(self, within: frozenset[Partition]) -> bytes:
        """What was found again of these partitions."""
        self.store.close()
        self.store = self._open()
        found = [one for one in self.store.restore() if one.partition in within]
        return _encode(sorted(found, key=lambda one: one.partition))

    def answers(self, view: View, asked: Sequence[Query]) -> Iterator[tuple[object, bytes]]:
        """Each question with its reply as bytes. Lists are walked to their end; with a hybrid
        search goes what a chat would inject."""
        for query in asked:
            vector = embedded(query.text) if isinstance(query, SearchQuery) else None
            reply = self.store.select(view, query, vector)
            yield query, _encode(reply)
            if isinstance(query, SearchQuery) and query.mode == "hybrid":
                yield f"injected: {query}", injected(reply)
            while isinstance(query, ListQuery) and reply.next:
                query = msgspec.structs.replace(query, after=reply.next)
                reply = self.store.select(view, query)
                yield query, _encode(reply)


class Twin(Played):
    """A store that never held a unit outside ``view``."""

    def __init__(self, path: Path, rng: random.Random, view: View) -> None:
        super().__init__(path, rng)
        self.view = view
        self.within = frozenset(view.partitions)

    def play(self, events: Sequence[Event], frees: bool) -> list[tuple[object, object]]:
        """One commit of the other store, as far as it is seen from here: what became of each
        operation there and here, which is to be the same. ``frees``: whether the unit that moves
        (alone) has given way to another one that says the same."""
        ops: list[Op] = []
        compared: list[tuple[Outcome, int]] = []
        for event in events:
            mine = self._translate(event, frees)
            if mine:
                at = len(ops) + next((i for i, op in enumerate(mine) if op.id == event.op.id), 0)
                if isinstance(event.op, Move):
                    at = len(ops) + len(mine) - 1
                compared.append((event.outcome, at))
            ops += mine
        outcomes = self.commit(ops)
        pairs: list[tuple[object, object]] = []
        for theirs, at in compared:
            ours = outcomes[at]
            crossing = type(ours.op) is not type(theirs.op) or ours.op.partition == ASIDE
            if crossing and theirs.errno:
                pairs.append((True, bool(ours.errno)))
            elif isinstance(ours.op, Drop) and crossing:
                pairs.append((theirs.id, ours.id))
            else:
                pairs.append((outcome_seen(theirs), outcome_seen(ours)))
        return pairs

    def _translate(self, event: Event, frees: bool) -> list[Op]:
        op, refused = event.op, bool(event.outcome.errno)
        inside = op.partition in self.within
        if isinstance(op, Move) and inside != (op.to in self.within):
            if refused:  # its number is void all the same
                there, seq = (op.partition, op.seq) if inside else (op.to, op.to_seq)
                return [Drop(partition=there, seq=seq, id="never")]
            if inside:
                return [Drop(partition=op.partition, seq=op.seq, id=op.id, stored_at=op.stored_at)]
            assert event.unit is not None, "what moved was there"
            return self._arrival(op, event.unit, event.older, frees)
        if not inside:
            return []
        if isinstance(op, Put) and op.supersedes and not refused and not self._has(event.older):
            return [self._stand_in(op, op.supersedes), op, self._end(op.supersedes)]
        return [op]

    def _has(self, older: Partition | None) -> bool:
        return older is not None and older in self.within

    def _arrival(self, op: Move, unit: Known, older: Partition | None, frees: bool) -> list[Op]:
        """A unit comes into the view, as it is."""
        put = unit.put
        ops: list[Op] = []
        lends = bool(put.supersedes) and not self._has(older)
        if lends:
            ops.append(self._stand_in(put, put.supersedes, op.stored_at))
        number = self.aside()
        ops.append(
            msgspec.structs.replace(
                put, partition=ASIDE, seq=number, version=unit.version, stored_at=op.stored_at
            )
        )
        if unit.embedded:
            vectors = tuple(map(vector_of, unit.chunks))
            ops.append(
                Vectors(partition=ASIDE, seq=number, id=put.id, version=unit.version,
                        model=EMBEDDER.name, vectors=vectors)
            )  # fmt: skip
        if frees:
            other = self._stand_in(put, "another", op.stored_at)
            ops += [msgspec.structs.replace(other, supersedes=put.id), self._end("another")]
        if lends:
            ops.append(self._end(put.supersedes))
        return [*ops, msgspec.structs.replace(op, partition=ASIDE, seq=self.aside())]

    def _stand_in(self, put: Put, id_: str, now: int = 0) -> Put:
        return Put(
            partition=ASIDE, seq=self.aside(), id=id_, text=f"for {id_}", kind="note",
            agent=put.agent, user=put.user, stream="reusable", said_at=put.said_at,
            stored_at=now or put.stored_at,
        )  # fmt: skip

    def _end(self, id_: str) -> Drop:
        return Drop(partition=ASIDE, seq=self.aside(), id=id_)


def outcome_seen(outcome: Outcome) -> object:
    """Of an outcome what the writer is told, and what is embedded next."""
    return (outcome.errno, outcome.message, outcome.id, outcome.version, outcome.duplicate,
            outcome.chunks)  # fmt: skip


def injected(selection: Selection) -> bytes:
    """The block that a chat would get, and the units in it."""
    request = Render(
        key=0, model="", messages=(Message("user", "?"),), selection=selection, budget=120,
        units=5, max_tokens=10, context=100_000,
    )  # fmt: skip
    rendered = _at_once(render(request, ScriptedCounter()))
    shown = [(c.hit.unit.id, c.hit.unit.version, c.hash, n) for c, n in rendered.shown]
    return _encode((rendered.block, rendered.injected_tokens, rendered.prompt_tokens, shown))


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")
