"""A seeded simulator of the kernel: virtual time, injected faults, one integer for all of it.

``run(seed)`` drives a ``State`` with agents, users, a store, drivers and processes that exist
in this process only, lets them misbehave, and has a judge watch every event and instruction.
Pure like the rest of this floor: no clock, thread or I/O, and all chance from one ``Random``,
so a seed that fails is replayed by its number:

    python -m isovist.kernel.state.simulator --seed 17 --trace
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.core import Limits, State
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.scheduling import Scheduling
from isovist.kernel.state.sim_effects import Durable
from isovist.kernel.state.sim_judge import Judge, Violation
from isovist.kernel.state.sim_lives import STEPS as LIFETIME
from isovist.kernel.state.sim_lives import Lives
from isovist.kernel.state.sim_load import AGENTS, GROUPS, Load, Peer
from isovist.kernel.state.sim_world import MS, SECOND, Faults, Running, World
from isovist.scheduler.choice import POLICIES
from isovist.scheduler.quota import Limit
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.records import View

STEPS = 150
"""Requests and mishaps of a run, if nothing else is asked for."""
GRANTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mail": (("ana", "bob"), ("global",)),
    "plan": (("*",), ("agent", "@team")),
    "ana": (("ana",), ()),
    "a_b": (("a_b", "a"), ("agent", "global")),
    "a": (("a",), ("global", "@crew")),
}
"""Users and scopes of each agent at the start; the operator changes them as a run goes on."""
QUOTAS: tuple[dict[str, dict[str, Limit]], ...] = (
    {},
    {},
    {"agent": {"*": Limit(calls=4, queue=2)}, "user": {"ana": Limit(tokens=3000)}},
)
"""One of these is a run's."""
LEARNING = (
    Learning(), Learning(review_after=0), Learning(review_after=3), Learning(review_after=1),
    Learning(scopes=("pair", "user", "global"), consent="own", review_after=2),
    Learning(writer="off"),
)  # fmt: skip
"""One of these is a run's."""
MOST_EVENTS = 200
"""Events per step after which a world that should calm down is given up."""


@dataclass(frozen=True)
class Result:
    """A run that broke nothing. ``counts`` has replies by kind, errors by name, and ``events``;
    ``digest`` is that of the whole stream of instructions."""

    seed: int
    steps: int
    counts: Mapping[str, int]
    digest: str


def run(
    seed: int,
    steps: int = STEPS,
    *,
    agents: int | None = None,
    trace: Callable[[str], None] | None = None,
) -> Result:
    """Simulate ``steps`` requests and mishaps, then wait until all is quiet.

    ``agents`` overrides how many channels are open at first. ``trace`` is given each event and
    instruction as a line. Raises :class:`Violation`, which names the seed, where the kernel
    broke a promise or fell over.
    """
    simulation = Simulation(seed, agents, trace)
    try:
        return simulation.run(steps)
    except Exception as e:
        what = str(e) if isinstance(e, Violation) else f"{type(e).__name__}: {e}"
        raise Violation(
            f"seed {seed}, event {simulation.events}: {what}\n"
            f"replay: python -m isovist.kernel.state.simulator"
            f" --seed {seed} --steps {steps} --trace"
        ) from e


def live(
    seed: int,
    steps: int = LIFETIME,
    *,
    ledger: Durable | None = None,
    trace: Callable[[str], None] | None = None,
) -> Result:
    """Simulate ``steps`` requests and mishaps about effects, mail and timers, over several lives of
    a kernel that is killed now and then; see :mod:`isovist.kernel.state.sim_lives`."""
    lives = Lives(Random(seed), ledger, trace)
    try:
        lives.run(steps)
    except Exception as e:
        what = str(e) if isinstance(e, Violation) else f"{type(e).__name__}: {e}"
        raise Violation(
            f"seed {seed}, life {lives.life}: {what}\n"
            f"replay: python -m isovist.kernel.state.simulator"
            f" --lives --seed {seed} --steps {steps} --trace"
        ) from e
    return Result(seed, steps, {**lives.counts, "lives": lives.life}, lives.digest)


class Simulation:
    """One run. Time is a heap of actions; it never stands still, so no two events are at once."""

    def __init__(
        self, seed: int, agents: int | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed, self.events, self.now = seed, 0, 0
        self.rng = rng = Random(seed)
        self._trace = trace
        self._digest = blake2b(digest_size=16)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self._woken = 0
        models = tuple(
            ModelConfig(
                f"m{n}",
                "simulated",
                rng.choice((1024, 2048)),
                slots=rng.randrange(1, 4),
                pausable=rng.choice((0, 1, 9)),
                snapshots=rng.choice((True, True, False)),
            )
            for n in range(rng.randrange(1, 4))
        )
        quotas = rng.choice(QUOTAS)
        learning = rng.choice(LEARNING)
        self.world = World(rng, Faults.draw(rng), models, self.tell, self.after)
        limit = rng.choice((3, 16, 256))
        unlearned = self.world.learner.begin()
        self.state = State(
            secret=b"simulated",
            models=models,
            grants=GRANTS,
            groups=GROUPS,
            limits=Limits(calls=limit, exited=rng.choice((2, 256))),
            scheduling=Scheduling(
                policy=rng.choice(sorted(POLICIES)),
                clients=rng.choice(("agent", "user", "pair")),
                weights={"agent": {"mail": 2.0}, "user": {"ana": 0.5}},
                priorities={"agent": {"plan": 3}},
                quotas=quotas,
            ),
            learning=learning,
            unlearned=unlearned,
        )
        self.world.attach = self._attach_process
        self.load = Load(rng, tuple(model.name for model in models))
        self.load.study.submissions += [id_ for id_, *_ in unlearned]
        slots = {model.name: model.slots for model in models}
        self.judge = Judge(self.world.store, slots, limit, GRANTS, GROUPS, learning, bool(quotas))
        self.peers: list[Peer] = []
        self._channels = 0
        self._shown: dict[tuple[int, int], m.ForgetMatching | m.ForgetUser] = {}
        self._haste = rng.choice((10_000, MS, 20 * MS, SECOND))
        self._attach("operator", operator=True)
        for n in range(rng.choice((1, 3, 8, 24)) if agents is None else agents):
            self._attach(AGENTS[n % len(AGENTS)])

    # -- time

    def after(self, ns: int, action: Callable[[], None]) -> None:
        self._planned += 1
        heappush(self._heap, (self.now + ns, self._planned, action))

    def _next(self) -> None:
        at, _, action = heappop(self._heap)
        self.now = max(self.now + 1, at)
        action()

    def run(self, steps: int) -> Result:
        for _ in range(steps):
            due = self.now + int(self._haste * 2 * self.rng.random())
            while self._heap and self._heap[0][0] <= due:
                self._next()
            self.now = max(self.now + 1, due)
            self._step()
        for process in self.world.processes.values():
            self.world.end(process.pid, 0, "the end")
        self._calm(steps)
        self.judge.drained()
        for channel in list(self.state.channels):
            self.tell(ev.Detached, channel=channel, why="the end")
        self._calm(steps)
        self._nothing_left()
        counts = {**self.judge.counts, "events": self.events}
        return Result(self.seed, steps, counts, self._digest.hexdigest())

    def _calm(self, steps: int) -> None:
        """Let all happen that is under way, and time pass until the kernel wants no more."""
        last = self.events + MOST_EVENTS * (steps + 10)
        while self._heap:
            self._next()
            if self.events > last:
                raise Violation("the kernel never comes to rest")

    def _nothing_left(self) -> None:
        """No table holds anything of calls that have ended."""
        state = self.state
        partitions = state.barrier._partitions.values()
        left = {
            "calls": len(state.calls),
            "channels": len(state.channels),
            "timers": len(state._timers),
            "waiting": len(state.barrier.waiting()),
            "writers": len(state.memory._writers),
            "contexts": len(state.contexts._writes),
            "queued": sum(len(d.policy) + len(d.running) for d in state.drivers._all),
            "lacking": sum(len(p.lacking) for p in partitions),
            "heaps": sum(len(heap) for p in partitions for heap in p.waiters.values()),
            "filing": len(state.lessons._filing),
            "submissions": state.lessons.waiting() if state.lessons._up else 0,
            "reviews": int(state.reviewing._running is not None),
            "processes": sum(e.state != "exited" for e in state.processes._table.values()),
        }  # fmt: skip
        if any(left.values()):
            raise Violation(f"left over after all has ended: {left}")

    # -- events

    def tell(self, event: type[ev.Event], *, fault: str = "", **fields: Any) -> None:
        """Hand the kernel an event, have it judged, and have its instructions carried out."""
        self._hand(event(now=self.now, **fields), fault)

    def _hand(self, event: ev.Event, fault: str = "") -> None:
        self.events += 1
        if self._trace is not None:
            self._trace(f"{self.now / SECOND:14.9f} > {event}"[:400])
        self.judge.before(event, fault)
        out = self.state.handle(event)
        key = 0
        if isinstance(event, ev.Arrived) and event.channel in self.state.channels:
            key = self.state.channels[event.channel].calls.get(event.call, 0)
        for instruction in out:
            self._digest.update(type(instruction).__name__.encode())
            self._digest.update(msgspec.json.encode(instruction, enc_hook=_plain))
            if self._trace is not None:
                self._trace(f"{'':14} < {instruction}"[:400])
        self.judge.after(event, out, key)
        self.state.validate()
        for instruction in out:
            self._carry_out(instruction)
            self.world.carry_out(instruction)

    def _carry_out(self, instruction: ins.Instruction) -> None:
        """What the world beyond store and drivers does: the time, the channels."""
        if isinstance(instruction, ins.WakeAt):
            # Like a timer of the shell: the newest wish counts, and it is met a little late.
            self._woken += 1
            wish, late = self._woken, self.rng.randrange(2 * MS)
            self.after(max(0, instruction.ns - self.now) + late, lambda: self._wake(wish))
        elif isinstance(instruction, ins.Disconnect):
            channel, why = instruction.channel, instruction.why
            self.after(self.world.delay(), lambda: self._detach(channel, why))
        elif isinstance(instruction, ins.Commit) and hasattr(instruction.op, "id"):
            self.load.units.append(instruction.op.id)
            if getattr(instruction.op, "learned", None) is not None:
                self.load.study.entries.append(instruction.op.id)
            if handle := getattr(instruction.op, "handle", ""):
                self.load.sessions.append(handle)
        elif isinstance(instruction, ins.Audit):
            self.load.calls.append(instruction.record.call)
        elif isinstance(instruction, ins.Reply) and isinstance(instruction.message, m.Forgotten):
            self.load.receipts.append(instruction.message.receipt)
        elif isinstance(instruction, ins.Reply) and isinstance(instruction.message, m.Matched):
            self._matched(instruction.channel, instruction.call, instruction.message)
        elif isinstance(instruction, ins.FileSubmission):
            self.load.study.submissions.append(instruction.submission.id)
        elif isinstance(instruction, ins.StartProcess):
            self.load.pids.append(instruction.pid)
        elif isinstance(instruction, ins.Reply) and isinstance(instruction.message, m.Welcome):
            for peer in self.peers:
                peer.greeted |= peer.channel == instruction.channel

    def _matched(self, channel: int, frame: int, reply: m.Matched) -> None:
        """What was shown may be agreed to, by the same request with its word."""
        if reply.receipt:
            self.load.receipts.append(reply.receipt)
        request = self._shown.pop((channel, frame), None)
        if reply.confirm and request is not None:
            agreed = msgspec.structs.replace(request, confirm=reply.confirm)
            self.load.agreed.append((channel, agreed))

    def _wake(self, wish: int) -> None:
        if wish == self._woken:
            self.tell(ev.Tick)

    # -- what people and programs do

    def _attach(self, agent: str, operator: bool = False, pid: int = 0) -> int:
        self._channels += 1
        self.peers.append(Peer(self._channels, agent, operator, pid))
        self.tell(ev.Attached, channel=self._channels, agent=agent, operator=operator, pid=pid)
        return self._channels

    def _attach_process(self, process: Running) -> int:
        return self._attach(process.agent, pid=process.pid)

    def _detach(self, channel: int, why: str) -> None:
        pid = next((p.pid for p in self.peers if p.channel == channel), 0)
        if pid:
            self.world.end(pid, 1, why)
        else:
            self.tell(ev.Detached, channel=channel, why=why)

    def _step(self) -> None:
        """One thing that somebody does, mostly a request."""
        chance = self.rng.random()
        # The operator is one of many and has the most to say.
        peer = self.peers[0] if self.rng.random() < 0.1 else self.rng.choice(self.peers)
        if chance < 0.004:
            self.now += int(self.rng.random() * 300 * SECOND)
        elif chance < 0.01:
            self.tell(ev.Tick, wall=self.rng.choice((0, 1_700_000_000 * SECOND + self.now)))
        elif chance < 0.02 and not peer.operator:
            self._detach(peer.channel, "gone")
            self.peers.remove(peer)
            self._attach(peer.agent)
        elif chance < 0.03:
            self.world.kill_driver()
        elif chance < 0.035 and self.load.pids:
            self.world.end(self.rng.choice(self.load.pids), -11, "crashed")
        elif chance < 0.04:
            self.world.write_stderr()
        elif chance < 0.06:
            peer.frame += 1
            errno = self.rng.choice((Errno.EPROTO, Errno.EINVAL, Errno.ENOSYS))
            frame = peer.frame - self.rng.choice((0, 0, 1))
            for _ in range(self.rng.choice((1, 1, 1, 8))):
                self.tell(ev.Malformed, channel=peer.channel, call=frame, errno=errno, message="?")
        elif not peer.greeted and self.rng.random() < 0.95:
            self._ask(peer, self.load.hello())
        elif chance < 0.10:
            self._ask(peer, *self.load.bad())
        elif chance < 0.11:
            for _ in range(20):
                self._ask(peer, self.load.request(peer))
        else:
            self._ask(peer, self.load.request(peer))

    def _ask(self, peer: Peer, request: m.Request, fault: str = "") -> None:
        # Now and then a program uses a frame id again that may still be outstanding.
        peer.frame += self.rng.random() > 0.02
        self.now += 1
        if isinstance(request, m.ForgetMatching | m.ForgetUser):
            self._shown[peer.channel, peer.frame] = request
        self.tell(ev.Arrived, fault=fault, channel=peer.channel, call=peer.frame, request=request)


def _plain(value: object) -> object:
    """Views, for the digest; nothing else in an instruction needs help."""
    if isinstance(value, View):
        return (value.reader, value.partitions)
    raise TypeError(f"{type(value)} in an instruction")


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="simulator", description="Replay one seed.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lives", action="store_true", help="effects, mail, timers, and crashes")
    parser.add_argument("--trace", action="store_true", help="print each event and instruction")
    options = parser.parse_args(argv)

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")

    try:
        trace = say if options.trace else None
        if options.lives:
            result = live(options.seed, options.steps or LIFETIME, trace=trace)
        else:
            result = run(options.seed, options.steps or STEPS, trace=trace)
    except Violation as e:
        say(str(e))
        return 1
    for name, count in sorted(result.counts.items()):
        say(f"{name:14} {count:7}")
    say(f"digest {result.digest}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
