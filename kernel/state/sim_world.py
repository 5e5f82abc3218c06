"""The simulated world: it carries out the kernel's instructions, slowly, badly and late.

A store with the semantics of a dict, an embedder, drivers and processes, all on virtual time.
What the real world may do, this one does more often: delays, stalls, full disks, deaths at any
step, doubled events and words of the dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.syscalls.errors import Errno
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    Candidate,
    Drop,
    ListQuery,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    Replace,
    Selection,
    Vectors,
)
from isovist.syscalls.records import Hit, Leg, Partition, Unit, View

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
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
    """A stored unit: as it was put, its newest text, and which version has vectors."""

    put: Put
    text: str
    version: int = 1
    dense: int = 0


class Store:
    """Writes are applied to dicts; every question about them is answered from those.

    ``results`` holds what became of each numbered write: (unit, version), version 0 where the
    unit was dropped; ``None`` where the write failed.
    """

    def __init__(self) -> None:
        self.units: dict[Partition, dict[str, Held]] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.results: dict[tuple[Partition, int], tuple[str, int] | None] = {}
        self._same: dict[object, str] = {}

    def apply(self, op: Op) -> Outcome:
        units = self.units.setdefault(op.partition, {})
        if isinstance(op, Vectors):
            held = units.get(op.id)
            if held is not None and held.version == op.version:
                held.dense = op.version
            return Outcome(op=op, id=op.id, version=op.version)
        held = units.get(op.id)
        if isinstance(op, Put):
            same = (op.partition, op.agent, op.user, op.text, op.kind, op.session, op.round)
            older = units.get(self._same.get(same, ""))
            if older is not None and older.text == op.text:
                return self._done(op, older.put.id, older.version, duplicate=True)
            self._same[same] = op.id
            self.owners[op.id] = (op.user, op.agent)
            units[op.id] = Held(op, op.text)
            return self._done(op, op.id, 1, chunks=(op.text,))
        if held is None:
            return self.refuse(op, Errno.ENOENT)
        if isinstance(op, Drop):
            del units[op.id]
            return self._done(op, op.id, 0)
        if held.version != op.version:
            return self.refuse(op, Errno.ESTALE)
        held.version, held.text = op.version + 1, op.text
        return self._done(op, op.id, held.version, chunks=(op.text,))

    def _done(self, op: Put | Replace | Drop, unit: str, version: int, **more: Any) -> Outcome:
        self.results[op.partition, op.seq] = (unit, version)
        return Outcome(op=op, id=unit, version=version, **more)

    def refuse(self, op: Op, errno: Errno) -> Outcome:
        if not isinstance(op, Vectors):
            self.results[op.partition, op.seq] = None
        return Outcome(op=op, errno=errno, message=f"simulated {errno.name}")

    def shows(self, partition: Partition, seq: int, leg: Leg) -> bool:
        """True iff ``leg`` holds write ``seq``, or something newer of the same unit, or the
        write failed and there is nothing to hold."""
        if (partition, seq) not in self.results:
            return False
        result = self.results[partition, seq]
        if result is None:
            return True
        unit, version = result
        held = self.units[partition].get(unit)
        if held is None or held.version > version:
            return True
        return leg == "lexical" or held.dense == version

    def select(self, view: View, query: Query) -> Selection:
        found = [
            self._candidate(partition, held)
            for partition in view.partitions
            for held in self.units.get(partition, {}).values()
            if not isinstance(query, ReadQuery) or held.put.id == query.id
        ]
        limit = query.limit if isinstance(query, ListQuery) else getattr(query, "k", 1)
        return Selection(candidates=tuple(found[-min(limit, 4) :]))

    @staticmethod
    def _candidate(partition: Partition, held: Held) -> Candidate:
        put = held.put
        unit = Unit(
            id=put.id, version=held.version, text=held.text, kind=put.kind,
            scope=partition.scope, agent=put.agent, user=put.user, stream=put.stream,
            said_at=put.said_at, stored_at=put.stored_at,
        )  # fmt: skip
        return Candidate(
            hit=Hit(unit=unit, chunk=held.text, score=0.5), partition=partition,
            owner_agent=put.agent, owner_user=put.user, cosine=0.5, coverage=0.5, hash="h",
        )  # fmt: skip


@dataclass(slots=True)
class Life:
    """One life of a driver: the requests that it works on, and whether it still lives."""

    model: str
    gen: int
    running: set[int] = field(default_factory=set)
    dead: bool = False


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
            ins.SaveGrant: self._save_grant,
            ins.Audit: lambda i: self.records.__setitem__(i.record.call, i.record),
            ins.StartDriver: self._start_driver,
            ins.StopDriver: self._stop_driver,
            ins.Decode: self._decode,
            ins.Abort: self._abort,
            ins.StartProcess: self._start_process,
            ins.KillProcess: lambda i: self.end(i.pid, -9, "killed"),
        }

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

    def _soon(self, event: type[ev.Event], **fields: Any) -> None:
        """Tell an event after a delay, and now and then once more."""
        self.after(self.delay(), lambda: self._tell(event, **fields))

    def _tell(self, event: type[ev.Event], **fields: Any) -> None:
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
        self._tell(ev.WriteFailed if outcome.errno else ev.Committed, outcome=outcome)
        if outcome.chunks:
            op = outcome.op
            vectors = Vectors(
                partition=op.partition, seq=op.seq, id=outcome.id, version=outcome.version,
                model="simulated", vectors=(b"",),
            )  # fmt: skip
            self.after(self.delay(), lambda: self._embedded(vectors))

    def _embedded(self, op: Vectors) -> None:
        if self.chance(self.faults.vectors):
            # An embedder that gives up never gets as far as the store.
            outcome = Outcome(op=op, errno=Errno.EIO, message="simulated embedder")
            self._tell(ev.WriteFailed, outcome=outcome)
        else:
            self._enter_lane(op)

    def _retrieve(self, i: ins.Retrieve) -> None:
        if self.chance(self.faults.retrieve):
            self._soon(ev.WorkFailed, key=i.key, errno=Errno.EIO, message="simulated")
            return
        lagging = ("dense",) if self.chance(self.faults.retrieve) else ()
        early = self.store.select(i.view, i.query)

        def answer() -> None:
            late = early if self.rng.random() < 0.5 else self.store.select(i.view, i.query)
            self._tell(ev.Retrieved, key=i.key, selection=late, lagging=lagging)

        self.after(self.delay(), answer)

    def _lookup(self, i: ins.Lookup) -> None:
        self._soon(ev.LookedUp, key=i.key, record=self.records.get(i.call))

    def _save_grant(self, i: ins.SaveGrant) -> None:
        if self.chance(self.faults.write):
            self._soon(ev.WorkFailed, key=i.key, errno=Errno.ENOSPC, message="simulated")
        else:
            self._soon(ev.Saved, key=i.key)

    # -- models

    def _render(self, i: ins.Render) -> None:
        if self.chance(self.faults.render):
            self._soon(ev.WorkFailed, key=i.key, errno=Errno.EMSGSIZE, message="simulated")
            return
        shown = tuple((c, 1) for c in i.selection.candidates[: min(i.units, i.budget)])
        self._soon(
            ev.Rendered, key=i.key, prompt=f"prompt {i.key}", prompt_tokens=10,
            shown=shown, injected_tokens=len(shown), counter="simulated",
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
            self._tell(ev.DriverUp, model=life.model, gen=life.gen, context=context)

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
        self._tell(ev.DriverDied, **about, reason="simulated death", fatal=fatal)
        for key in sorted(last.running):
            self._soon(ev.Token, **about, key=key, text="late ")
            self._soon(ev.DriverDone, **about, key=key)

    def _decode(self, i: ins.Decode) -> None:
        life = self._life(i.model, i.gen)
        if life is not None:
            life.running.add(i.key)
            tokens = self.rng.randrange(min(i.max_tokens, 5) + 1)
            self.after(self.delay(), lambda: self._next_token(life, i.key, tokens, 0))

    def _next_token(self, life: Life, key: int, tokens: int, said: int) -> None:
        if life.dead or key not in life.running or self.chance(self.faults.deaf):
            return
        if self.chance(self.faults.token):
            self.kill_driver(life)
        elif said < tokens:
            self.tell(ev.Token, model=life.model, gen=life.gen, key=key, text=f"w{said} ")
            self.after(self.delay(), lambda: self._next_token(life, key, tokens, said + 1))
        else:
            errno = Errno.EIO if self.chance(self.faults.request) else 0
            self._done(life, key, "stop", said, errno)

    def _done(self, life: Life, key: int, finish: str, said: int = 0, errno: int = 0) -> None:
        if not life.dead and key in life.running:
            life.running.remove(key)
            self._tell(
                ev.DriverDone, model=life.model, gen=life.gen, key=key, finish=finish,
                output_tokens=said, errno=errno, message="simulated" if errno else "",
            )  # fmt: skip

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
            self._tell(ev.SpawnFailed, pid=process.pid, errno=Errno.ENOEXEC, message="simulated")
            return
        process.channel = self.attach(process)
        if process.doomed is None and self.chance(self.faults.start / 2):
            process.doomed = (1, "fails at import")
        if process.doomed is not None:
            self.end(process.pid, *process.doomed)
        else:
            self._tell(ev.Spawned, pid=process.pid)

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
        self._soon(ev.Exited, pid=pid, status=status, reason=reason, stderr=("last words",))
        self._soon(ev.Detached, channel=process.channel, why=reason)

    def write_stderr(self) -> None:
        """Some process writes to its standard error."""
        alive = [p for p in self.processes.values() if p.started and not p.gone]
        if alive:
            self.tell(ev.Stderr, pid=self.rng.choice(alive).pid, text="a line\n")
