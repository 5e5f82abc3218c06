"""The simulated world: it carries out the kernel's instructions, slowly, badly and late.

A store with the semantics of a dict, an embedder, drivers and processes, all on virtual time.
What the real world may do, this one does more often: delays, stalls, full disks, deaths at any
step, doubled events and words of the dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.state.sim_learned import Learned
from isovist.kernel.state.sim_learner import Learner
from isovist.syscalls.errors import Errno
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    NEXT_ROUND,
    Candidate,
    Context,
    CountQuery,
    Drop,
    Expire,
    Lapsed,
    ListQuery,
    MatchQuery,
    Move,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    Receipt,
    Replace,
    RoundsQuery,
    SearchQuery,
    Selection,
    Vectors,
)
from isovist.syscalls.records import (
    Hit,
    Leg,
    Logprob,
    Partition,
    SavedContext,
    Stream,
    ToolCall,
    Unit,
    View,
)

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
Numbered = Put | Replace | Expire | Move | Drop
T = TypeVar("T")


class Chance(Protocol):
    """The generator of a seed: what is used of it. The simulator alone makes one."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int | None = None, /) -> int: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def choices(self, population: Sequence[T], weights: Sequence[float], /) -> list[T]: ...
    def sample(self, population: Sequence[T], k: int, /) -> list[T]: ...


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong, each a probability per occasion."""

    stall: float
    """Work takes 0.1 to 400 s instead of 0.01 to 5 ms."""
    write: float
    vectors: float
    retrieve: float
    render: float
    double: float
    """An event comes twice, the second time later."""
    load: float
    """A driver dies before it is up."""
    token: float
    """A driver dies between two tokens."""
    request: float
    """A driver fails one request and lives."""
    deaf: float
    """A driver goes silent, or ignores an abort."""
    start: float
    """A process cannot be started, or ends while it starts."""

    @staticmethod
    def draw(rng: Chance) -> Faults:
        """Some seeds have a kind world, some a cruel one; each fault has its own weight."""
        cruelty = rng.choice((0.0, 0.02, 0.05, 0.15, 0.4))
        return Faults(*(cruelty * rng.random() for _ in range(11)))


@dataclass(slots=True)
class Held:
    """A stored unit: as it was put, its newest text, the number under which that was written,
    and whether it has its vectors."""

    put: Put
    text: str
    wrote: int
    version: int = 1
    dense: bool = False
    expires_at: int | None = None

    @property
    def stream(self) -> Stream:
        return "reusable" if self.put.stream == "reusable" else "protected"


def _lives(held: Held, now: int) -> bool:
    return held.expires_at is None or held.expires_at > now


class Store:
    """Writes are applied to dicts; every question about them is answered from those.

    ``results`` holds what became of each numbered write: (unit, version, number of the text that
    it stands for), version 0 where the unit was dropped, number 0 where it gave none; ``None``
    where the write failed.
    """

    def __init__(self) -> None:
        self.units: dict[Partition, dict[str, Held]] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.places: dict[str, set[Partition]] = {}
        """Every partition that a unit was ever in."""
        self.reborn: set[str] = set()
        """Units that came back by an import after they were forgotten."""
        self.results: dict[tuple[Partition, int], tuple[str, int, int] | None] = {}
        self.receipts: dict[str, Receipt] = {}
        self.contexts: dict[tuple[str, str, str], Context] = {}
        self.saved: list[object] = []
        """The messages of every context that was ever stored."""
        self.learned = Learned()
        self.lapsed: set[str] = set()
        """Units that were told to have expired."""
        self._same: dict[object, str] = {}

    def apply(self, op: Op) -> Outcome:
        if not self.learned.takes(op):
            return self.refuse(op, Errno.ENOENT)
        outcome = self._apply(op)
        if not outcome.errno:
            self.learned.wrote(op, outcome.id)
        return outcome

    def _apply(self, op: Op) -> Outcome:
        units = self.units.setdefault(op.partition, {})
        if isinstance(op, Vectors):
            held = units.get(op.id)
            if held is not None and held.wrote == op.seq:
                held.dense = True
            return Outcome(op=op, id=op.id, version=op.version)
        held = units.get(op.id)
        if isinstance(op, Put):
            owner = self.owners.get(op.supersedes)
            if op.supersedes and not op.born_at and owner != (op.user, op.agent):
                return self.refuse(op, Errno.ENOENT)
            if op.round == NEXT_ROUND:
                op = msgspec.structs.replace(op, round=self._next_round(op.handle))
            same = (op.partition, op.agent, op.user, op.text, op.kind, op.session, op.round,
                    op.stream)  # fmt: skip
            older = units.get(self._same.get(same, ""))
            if older is not None and not _lives(older, op.stored_at):
                older = None
            if older is not None and older.text == op.text and not op.born_at:
                version, text = older.version, older.wrote
                return self._done(op, older.put.id, version, text, duplicate=True)
            if op.id in self.owners and any(op.id in here for here in self.units.values()):
                return self.refuse(op, Errno.EEXIST)
            self._same[same] = op.id
            self.owners[op.id] = (op.user, op.agent)
            if op.id in self.places and op.born_at:
                self.reborn.add(op.id)
            self.places.setdefault(op.id, set()).add(op.partition)
            units[op.id] = Held(op, op.text, op.seq, op.version, expires_at=op.expires_at)
            return self._done(op, op.id, op.version, op.seq, chunks=(op.text,))
        if held is None:
            moved = any(op.id in here for here in self.units.values())
            return self.refuse(op, Errno.ESTALE if moved else Errno.ENOENT)
        if isinstance(op, Drop):
            if op.version not in (0, held.version):
                return self.refuse(op, Errno.ESTALE)
            if op.expired and _lives(held, op.stored_at):
                return self.refuse(op, Errno.ESTALE)
            del units[op.id]
            self._forgotten(op.receipt, op.id)
            return self._done(op, op.id, 0)
        if held.version != op.version:
            return self.refuse(op, Errno.ESTALE)
        if isinstance(op, Expire):
            held.version, held.expires_at = op.version + 1, op.expires_at
            return self._done(op, op.id, held.version)
        if isinstance(op, Move):
            return self._move(op, units, held)
        held.version, held.text, held.wrote = op.version + 1, op.text, op.seq
        held.dense = False
        return self._done(op, op.id, held.version, op.seq, chunks=(op.text,))

    def _next_round(self, handle: str) -> int:
        rounds = [held.put.round for here in self.units.values() for held in here.values()
                  if handle and held.put.handle == handle]  # fmt: skip
        return max(rounds, default=0) + 1 if handle else 0

    def _move(self, op: Move, units: dict[str, Held], held: Held) -> Outcome:
        there = self.units.setdefault(op.to, {})
        if any(other.text == held.text for other in there.values()):
            # More than the real store refuses, so that a move often fails.
            return self.refuse(op, Errno.EEXIST)
        there[op.id] = units.pop(op.id)
        self.places[op.id].add(op.to)
        if op.owner is not None:
            user, agent = self.owners[op.id] = op.owner
            held.put = msgspec.structs.replace(held.put, user=user, agent=agent)
        held.version, held.wrote = op.version + 1, op.to_seq
        self.results[op.to, op.to_seq] = (op.id, held.version, op.to_seq)
        return self._done(op, op.id, held.version, chunks=() if held.dense else (held.text,))

    def _done(self, op: Numbered, unit: str, version: int, text: int = 0, **more: Any) -> Outcome:
        self.results[op.partition, op.seq] = (unit, version, text)
        return Outcome(op=op, id=unit, version=version, **more)

    def _forgotten(self, receipt: str, *units: str) -> None:
        known = self.receipts.get(receipt)
        gone = (*(known.units if known else ()), *units)
        self.receipts[receipt] = Receipt(id=receipt, asked_at=1, issued_at=0, units=gone)

    def owned(self, user: str) -> tuple[tuple[str, int, str], ...]:
        mine = [
            (unit, held.version, partition.scope)
            for partition, units in self.units.items()
            for unit, held in units.items()
            if user in (held.put.user, partition.users.kind == "one" and partition.users.name)
        ]
        return tuple(sorted(mine))

    def purge(self, user: str, receipt: str) -> tuple[Outcome, ...]:
        mine = {unit for unit, *_ in self.owned(user)}
        gone = tuple(
            Outcome(op=Drop(partition=partition, seq=0, id=unit, receipt=receipt), id=unit)
            for partition, units in self.units.items()
            for unit in units
            if unit in mine
        )
        for outcome in gone:
            del self.units[outcome.op.partition][outcome.id]
            self.learned.leave(outcome.id)
        self.learned.forget(user)
        self.contexts = {key: one for key, one in self.contexts.items() if key[0] != user}
        self._forgotten(receipt, *sorted(mine))
        return gone

    def expired(self, now: int, limit: int) -> tuple[tuple[Lapsed, ...], int | None]:
        lapsed = sorted(
            (held.expires_at, unit, partition, held)
            for partition, units in self.units.items()
            for unit, held in units.items()
            if held.expires_at is not None
        )
        found = [entry for entry in lapsed[:limit] if entry[0] <= now]
        self.lapsed |= {unit for _, unit, *_ in found}
        return tuple(
            Lapsed(
                partition=partition, id=unit, version=held.version, agent=held.put.agent,
                kind=held.put.kind,
            )
            for _, unit, partition, held in found
        ), lapsed[len(found)][0] if len(lapsed) > len(found) else None  # fmt: skip

    def scrub(self) -> None:
        for receipt in list(self.receipts.values()):
            issued = Receipt(id=receipt.id, asked_at=1, issued_at=2, units=receipt.units)
            self.receipts[receipt.id] = issued

    def refuse(self, op: Op, errno: Errno) -> Outcome:
        if not isinstance(op, Vectors):
            self.results[op.partition, op.seq] = None
        if isinstance(op, Move):
            self.results[op.to, op.to_seq] = None
        return Outcome(op=op, errno=errno, message=f"simulated {errno.name}")

    def shows(self, partition: Partition, seq: int, leg: Leg) -> bool:
        """True iff ``leg`` holds write ``seq``, or something newer of the same unit, or the
        write failed and there is nothing to hold."""
        if (partition, seq) not in self.results:
            return False
        result = self.results[partition, seq]
        if result is None or leg == "lexical":
            return True
        unit, _, text = result
        held = self.units[partition].get(unit)
        return held is None or held.wrote != text or held.dense

    def select(self, view: View, query: Query) -> Selection:
        found = [
            self._candidate(partition, held)
            for partition in view.partitions
            for held in self.units.get(partition, {}).values()
            if _lives(held, query.now)
            or isinstance(query, MatchQuery)
            or (isinstance(query, ReadQuery) and query.expired)
            if self._answers(query, held.put)
            if not isinstance(query, MatchQuery)
            or (held.put.user, held.put.agent) == (view.reader.user, view.reader.agent)
        ]
        if isinstance(query, CountQuery):
            counted = Counter(candidate.partition for candidate in found)
            return Selection(counts=tuple(counted[p] for p in view.partitions))
        limit = query.k if isinstance(query, SearchQuery) else getattr(query, "limit", 1)
        return Selection(candidates=tuple(found[-min(limit, 4) :]))

    @staticmethod
    def _answers(query: Query, put: Put) -> bool:
        if isinstance(query, SearchQuery | ListQuery) and query.kinds:
            return put.kind in query.kinds
        if isinstance(query, ReadQuery):
            return put.id == query.id
        if isinstance(query, RoundsQuery):
            return any(put.handle == h and a <= put.round <= b for h, a, b in query.wanted)
        return True

    @staticmethod
    def _candidate(partition: Partition, held: Held) -> Candidate:
        put = held.put
        unit = Unit(
            id=put.id, version=held.version, text=held.text, kind=put.kind,
            scope=partition.scope, agent=put.agent, user=put.user, stream=put.stream,
            said_at=put.said_at, stored_at=put.stored_at, expires_at=held.expires_at,
            session=put.session, round=put.round, handle=put.handle, supersedes=put.supersedes,
            meta=put.meta,
        )  # fmt: skip
        return Candidate(
            hit=Hit(unit=unit, chunk=held.text, score=0.5), partition=partition,
            owner_agent=put.agent, owner_user=put.user, cosine=0.5, coverage=0.5, hash="h",
            owner_session=put.session, born_at=put.born_at,
        )  # fmt: skip


@dataclass(slots=True)
class Life:
    """One life of a driver: the requests that it works on, and whether it still lives."""

    model: str
    gen: int
    running: set[int] = field(default_factory=set)
    """Paused ones among them."""
    dead: bool = False
    paused: set[int] = field(default_factory=set)
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    """How long the answer of a paused request gets, and how far it is."""
    asked: dict[int, ins.Decode] = field(default_factory=dict)


@dataclass(slots=True)
class Running:
    """One process of the world; its channel is 0 until it is attached. ``doomed`` is how one
    ends that was killed before it had started."""

    pid: int
    agent: str
    channel: int = 0
    started: bool = False
    gone: bool = False
    doomed: tuple[int, str] | None = None


class World:
    """``tell(event class, **fields)`` hands an event to the kernel now; ``after(ns, action)``
    does something later. Nothing is ever told from inside :meth:`carry_out`."""

    def __init__(
        self,
        rng: Chance,
        faults: Faults,
        models: tuple[ModelConfig, ...],
        tell: Callable[..., None],
        after: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self.rng, self.faults, self.tell, self.after = rng, faults, tell, after
        self.store = Store()
        self.records: dict[str, Record] = {}
        self.processes: dict[int, Running] = {}
        self.attach: Callable[[Running], int] = lambda process: 0
        """Opens a channel for a process that has started."""
        self._contexts = {model.name: model.context for model in models}
        self._lives: dict[str, Life] = {}
        self._lanes: dict[Partition, list[Callable[[], None]]] = {}
        self._hands: dict[type[ins.Instruction], Callable[[Any], None]] = {
            ins.Commit: lambda i: self._enter_lane(i.op),
            ins.Retrieve: self._retrieve,
            ins.Render: self._render,
            ins.Lookup: self._lookup,
            ins.Owned: self._owned,
            ins.Purge: self._purge,
            ins.FindReceipt: self._find_receipt,
            ins.FindLapsed: self._find_lapsed,
            ins.Scrub: self._begin_scrub,
            ins.Flush: lambda i: self.after(self.delay(), self._scrub),
            ins.SaveGrant: self.save,
            ins.SaveGroup: self.save,
            ins.Backup: self.save,
            ins.SaveContext: self._save_context,
            ins.DropContext: self._drop_context,
            ins.FindContext: self._find_context,
            ins.ListContexts: self._list_contexts,
            ins.Snapshot: self._keep,
            ins.Restore: self._keep,
            ins.Meter: lambda i: self.soon(ev.Metered, key=i.key, usage=()),
            ins.Measure: lambda i: self.soon(ev.Measured, key=i.key, figures={}),
            ins.Audit: lambda i: self.records.__setitem__(i.record.call, i.record),
            ins.StartDriver: self._start_driver,
            ins.StopDriver: self._stop_driver,
            ins.Decode: self._decode,
            ins.Abort: self._abort,
            ins.Pause: self._pause,
            ins.Resume: self._resume,
            ins.StartProcess: self._start_process,
            ins.KillProcess: lambda i: self.end(i.pid, -9, "killed"),
            ins.SignalProcess: self._signal,
            ins.GaugeProcesses: lambda i: self.soon(ev.ProcessesGauged, key=i.key, usage={}),
        }
        self.learner = Learner(self)
        self._hands |= self.learner.instructions()

    def carry_out(self, instruction: ins.Instruction) -> None:
        hand = self._hands.get(type(instruction))
        if hand is not None:
            hand(instruction)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def delay(self) -> int:
        if self.chance(self.faults.stall):
            return int(SECOND * 0.1 * 4000 ** self.rng.random())
        return int(10 * US * 500 ** self.rng.random())

    def soon(self, event: type[ev.Event], **fields: Any) -> None:
        """Tell an event after a delay, and now and then once more."""
        self.after(self.delay(), lambda: self.say(event, **fields))

    def say(self, event: type[ev.Event], **fields: Any) -> None:
        if self.chance(self.faults.double):
            self.after(self.delay(), lambda: self.tell(event, **fields))
        self.tell(event, **fields)

    # -- the store: one lane a partition, so that its writes are applied and told in order

    def _enter_lane(self, op: Op) -> None:
        lane = self._lanes.setdefault(op.partition, [])
        lane.append(lambda: self._write(op))
        if len(lane) == 1:
            self.after(self.delay(), lane[0])

    def _leave_lane(self, partition: Partition) -> None:
        lane = self._lanes[partition]
        lane.pop(0)
        if lane:
            self.after(self.delay(), lane[0])

    def _write(self, op: Op) -> None:
        fails = self.faults.vectors if isinstance(op, Vectors) else self.faults.write
        if self.chance(fails):
            outcome = self.store.refuse(op, self.rng.choice((Errno.ENOSPC, Errno.EIO)))
        else:
            outcome = self.store.apply(op)
        self.after(self.delay(), lambda: self._told(outcome))

    def _told(self, outcome: Outcome) -> None:
        self._leave_lane(outcome.op.partition)
        self.say(ev.WriteFailed if outcome.errno else ev.Committed, outcome=outcome)
        if outcome.chunks:
            op = outcome.op
            partition, seq = (op.to, op.to_seq) if isinstance(op, Move) else (op.partition, op.seq)
            vectors = Vectors(
                partition=partition, seq=seq, id=outcome.id, version=outcome.version,
                model="simulated", vectors=(b"",),
            )  # fmt: skip
            self.after(self.delay(), lambda: self._embedded(vectors))

    def _embedded(self, op: Vectors) -> None:
        if self.chance(self.faults.vectors):
            # An embedder that gives up never gets as far as the store.
            outcome = Outcome(op=op, errno=Errno.EIO, message="simulated embedder")
            self.say(ev.WriteFailed, outcome=outcome)
        else:
            self._enter_lane(op)

    def _retrieve(self, i: ins.Retrieve) -> None:
        if self.chance(self.faults.retrieve):
            self.soon(ev.WorkFailed, key=i.key, errno=Errno.EIO, message="simulated")
            return
        lagging = ("dense",) if self.chance(self.faults.retrieve) else ()
        early = self.store.select(i.view, i.query)

        def answer() -> None:
            late = early if self.rng.random() < 0.5 else self.store.select(i.view, i.query)
            if isinstance(i.query, ListQuery) and self.rng.random() < 0.3:
                late = Selection(candidates=late.candidates, next="more")
            self.say(ev.Retrieved, key=i.key, turn=i.turn, selection=late, lagging=lagging)

        self.after(self.delay(), answer)

    def _owned(self, i: ins.Owned) -> None:
        self.soon(ev.Owned, key=i.key, units=self.store.owned(i.user))

    def _purge(self, i: ins.Purge) -> None:
        if self.chance(self.faults.write):
            self.soon(ev.WorkFailed, key=i.key, errno=Errno.ENOSPC, message="simulated")
        else:
            outcomes = self.store.purge(i.user, i.receipt)
            self.soon(ev.Purged, key=i.key, user=i.user, outcomes=outcomes)

    def _find_receipt(self, i: ins.FindReceipt) -> None:
        self.soon(ev.ReceiptFound, key=i.key, receipt=self.store.receipts.get(i.receipt))

    def _find_lapsed(self, i: ins.FindLapsed) -> None:
        units, soonest = self.store.expired(i.at, i.limit)
        self.soon(ev.Lapsed, look=i.look, units=units, soonest=soonest)

    def _begin_scrub(self, i: ins.Scrub) -> None:
        self.after(SECOND // (10 if i.soon else 1), lambda: self.tell(ev.Scrubbing))

    def _scrub(self) -> None:
        if self.chance(self.faults.write):
            self.after(self.delay(), self._scrub)
            return
        self.store.scrub()
        self.soon(ev.ReceiptsIssued)

    def _lookup(self, i: ins.Lookup) -> None:
        self.soon(ev.LookedUp, key=i.key, record=self.records.get(i.call))

    def save(self, i: ins.SaveGrant | ins.SaveGroup | ins.Backup | ins.SaveConsent) -> None:
        if self.chance(self.faults.write):
            self.soon(ev.WorkFailed, key=i.key, errno=Errno.ENOSPC, message="simulated")
        else:
            self.soon(ev.Saved, key=i.key)

    # -- contexts

    def _save_context(self, i: ins.SaveContext) -> None:
        context = i.context

        def write() -> None:
            if self.chance(self.faults.write):
                self.say(ev.WorkFailed, key=i.key, errno=Errno.EDQUOT, message="simulated")
                return
            key = context.user, context.agent, context.name
            replaced = key in self.store.contexts
            self.store.saved.append(context.messages)
            self.store.contexts[key] = context
            self.say(ev.ContextSaved, key=i.key, context=context, bytes=1, replaced=replaced)

        self.after(self.delay(), write)

    def _drop_context(self, i: ins.DropContext) -> None:
        def write() -> None:
            if self.chance(self.faults.write):
                self.say(ev.WorkFailed, key=i.key, errno=Errno.EIO, message="simulated")
                return
            found = self.store.contexts.pop((i.user, i.agent, i.name), None) is not None
            self.say(ev.ContextDropped, key=i.key, found=found)

        self.after(self.delay(), write)

    def _find_context(self, i: ins.FindContext) -> None:
        found = self.store.contexts.get((i.user, i.agent, i.name))
        self.soon(ev.ContextFound, key=i.key, context=found, state=self.rng.random() < 0.7)

    def _list_contexts(self, i: ins.ListContexts) -> None:
        kept = tuple(
            SavedContext(name=name, model=one.model, messages=1, bytes=1, saved_at=one.saved_at)
            for (user, agent, name), one in sorted(self.store.contexts.items())
            if (user, agent) == (i.user, i.agent)
        )
        self.soon(ev.ContextsListed, key=i.key, contexts=kept)

    def _keep(self, i: ins.Snapshot | ins.Restore) -> None:
        """A driver that hangs says nothing; one that is dead has nothing."""
        if not self.chance(self.faults.deaf):
            self.soon(ev.ContextKept, key=i.key, tokens=self.rng.choice((0, 7)))

    # -- models

    def _render(self, i: ins.Render) -> None:
        if self.chance(self.faults.render):
            self.soon(ev.WorkFailed, key=i.key, errno=Errno.EMSGSIZE, message="simulated")
            return
        shown = tuple((c, 1) for c in i.selection.candidates[: min(i.units, i.budget)])
        self.soon(
            ev.Rendered, key=i.key, prompt=f"prompt {i.key}", prompt_tokens=10,
            shown=shown, injected_tokens=len(shown), counter="simulated",
            block=" ".join(c.hit.unit.id for c, _ in shown),
        )  # fmt: skip

    def _start_driver(self, i: ins.StartDriver) -> None:
        life = self._lives[i.model] = Life(i.model, i.gen)
        if self.chance(self.faults.load):
            fatal = self.chance(0.2)
            self.after(self.delay(), lambda: self.kill_driver(life, fatal))
        elif not self.chance(self.faults.deaf):
            context = self.rng.choice((0, self._contexts[i.model], self._contexts[i.model] // 2))
            self.after(self.delay(), lambda: self._come_up(life, context))

    def _come_up(self, life: Life, context: int) -> None:
        if not life.dead:
            self.say(ev.DriverUp, model=life.model, gen=life.gen, context=context)

    def _life(self, model: str, gen: int) -> Life | None:
        life = self._lives.get(model)
        return life if life is not None and life.gen == gen and not life.dead else None

    def _stop_driver(self, i: ins.StopDriver) -> None:
        life = self._life(i.model, i.gen)
        if life is not None:
            self.after(self.delay(), lambda: self.kill_driver(life))

    def kill_driver(self, life: Life | None = None, fatal: bool = False) -> None:
        """A life ends, one of those that live if none is named; some of what it had said comes
        after the news of its death."""
        if life is None:
            alive = [one for one in self._lives.values() if not one.dead]
            if not alive:
                return
            life = self.rng.choice(alive)
        if life.dead:
            return
        life.dead = True
        last, about = life, {"model": life.model, "gen": life.gen}
        self.say(ev.DriverDied, **about, reason="simulated death", fatal=fatal)
        for key in sorted(last.running):
            # Some come so late that the request is with the next life by then.
            late = self.delay() * self.rng.choice((1, 64))
            self.after(late, partial(self.say, ev.Token, **about, key=key, text="late "))
            self.soon(ev.DriverDone, **about, key=key)

    def _decode(self, i: ins.Decode) -> None:
        life = self._life(i.model, i.gen)
        if life is not None:
            life.running.add(i.key)
            life.asked[i.key] = i
            tokens = self.rng.randrange(min(i.max_tokens, 5) + 1)
            self.after(self.delay(), lambda: self._next_token(life, i.key, tokens, 0))

    def _next_token(self, life: Life, key: int, tokens: int, said: int) -> None:
        if life.dead or key not in life.running or self.chance(self.faults.deaf):
            return
        if key in life.paused and said < tokens:
            # One that is at its end anyway may still say so.
            life.held[key] = tokens, said
            return
        if self.chance(self.faults.token):
            self.kill_driver(life)
        elif said < tokens:
            # Some log probabilities come with the end alone, as those of a call do.
            told = self._logged(life, key, said) if said % 2 else ()
            self.tell(
                ev.Token, model=life.model, gen=life.gen, key=key, text=f"w{said} ", logprobs=told
            )
            self.after(self.delay(), lambda: self._next_token(life, key, tokens, said + 1))
        else:
            errno = Errno.EIO if self.chance(self.faults.request) else 0
            self._done(life, key, "stop", said, errno)

    def _pause(self, i: ins.Pause) -> None:
        life = self._life(i.model, i.gen)
        if life is not None:
            life.paused.add(i.key)

    def _resume(self, i: ins.Resume) -> None:
        life = self._life(i.model, i.gen)
        if life is None:
            return
        life.paused.discard(i.key)
        if i.key in life.held:
            tokens, said = life.held.pop(i.key)
            self.after(self.delay(), lambda: self._next_token(life, i.key, tokens, said))

    def _done(self, life: Life, key: int, finish: str, said: int = 0, errno: int = 0) -> None:
        if not life.dead and key in life.running:
            life.running.remove(key)
            self.say(
                ev.DriverDone, model=life.model, gen=life.gen, key=key, finish=finish,
                output_tokens=said, errno=errno, message="simulated" if errno else "",
                calls=self._called(life, key), logprobs=self._logged(life, key, said),
            )  # fmt: skip

    def _logged(self, life: Life, key: int, said: int) -> tuple[Logprob, ...]:
        if life.asked[key].logprobs < 0:
            return ()
        return (Logprob(f"w{said} of {life.gen}".encode(), -1.0),)

    def _called(self, life: Life, key: int) -> tuple[ToolCall, ...]:
        tools = life.asked[key].tools
        many = self.rng.randrange(3) if tools else 0
        return tuple(ToolCall(tools[0].name, f'{{"of": {life.gen}}}') for _ in range(many))

    def _abort(self, i: ins.Abort) -> None:
        life = self._life(i.model, i.gen)
        if life is not None and not self.chance(self.faults.deaf):
            self.after(self.delay(), lambda: self._done(life, i.key, "cancelled"))

    # -- processes

    def _start_process(self, i: ins.StartProcess) -> None:
        process = self.processes[i.pid] = Running(i.pid, i.agent)
        self.after(self.delay(), lambda: self._started(process))

    def _started(self, process: Running) -> None:
        process.started = True
        if self.chance(self.faults.start / 2):
            process.gone = True
            self.say(ev.SpawnFailed, pid=process.pid, errno=Errno.ENOEXEC, message="simulated")
            return
        process.channel = self.attach(process)
        if process.doomed is None and self.chance(self.faults.start / 2):
            process.doomed = (1, "fails at import")
        if process.doomed is not None:
            self.end(process.pid, *process.doomed)
        else:
            self.say(ev.Spawned, pid=process.pid)

    def end(self, pid: int, status: int, reason: str) -> None:
        """A process ends; its exit and the end of its channel come in any order. One that has
        not started yet ends as soon as it has."""
        process = self.processes.get(pid)
        if process is None or process.gone:
            return
        if not process.started:
            process.doomed = (status, reason)
            return
        process.gone = True
        self.soon(ev.Exited, pid=pid, status=status, reason=reason, stderr=("last words",))
        self.soon(ev.Detached, channel=process.channel, why=reason)

    def _signal(self, i: ins.SignalProcess) -> None:
        if i.what == "terminate" and not self.chance(self.faults.deaf):
            self.end(i.pid, -15, "terminated")

    def write_stderr(self) -> None:
        """Some process writes to its standard error."""
        alive = [p for p in self.processes.values() if p.started and not p.gone]
        if alive:
            self.tell(ev.Stderr, pid=self.rng.choice(alive).pid, text="a line\n")
