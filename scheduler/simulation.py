"""A model that serves many at once, simulated in virtual time under any policy.

The cost model is that of continuous batching: one step costs ``fixed`` + ``prefill`` for each
prompt token in it + ``decode`` for each sequence that makes a token in it. Prompts are prefilled
in chunks that share their step with the running decodes. A paused job keeps its cells, so pausing
costs nothing (or, with a driver that cannot pause, never happens).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from isovist.scheduler.policy import INPUT, OUTPUT, Job, Load, Policy
from isovist.scheduler.traces import Arrival


class Cost(msgspec.Struct, frozen=True):
    """Nanoseconds. The defaults fit a 135M model in Q4_0 on two cores: 1,330 prompt tokens a
    second, and 189 / 326 / 459 / 597 tokens a second at batches of 1 / 4 / 8 / 16."""

    fixed: int = 4_200_000
    prefill: int = 750_000
    decode: int = 1_450_000
    chunk: int = 256
    """Most prompt tokens of a step."""


class Served(msgspec.Struct, gc=False):
    """What became of one call; times in virtual ns from the start, 0 where it has not come so
    far."""

    arrival: Arrival
    offered: int = 0
    picked: int = 0
    first: int = 0
    """When its first token was there."""
    ended: int = 0


class _Run(msgspec.Struct, gc=False):
    key: int
    prompt_left: int
    output_left: int


COST = Cost()
Watch = Callable[["Simulation"], None]


def simulate(
    make: Callable[[], Policy],
    arrivals: Sequence[Arrival],
    *,
    slots: int,
    pauses: bool = True,
    cost: Cost = COST,
    until: int = 0,
    watch: Watch | None = None,
) -> list[Served]:
    """Serve ``arrivals`` (in order of time) to the end, or until virtual time ``until``.

    ``watch`` is called after every step. Raises ``AssertionError`` where a slot is free while a
    job waits, a paused job is picked at once, or a job is lost.
    """
    simulation = Simulation(make(), arrivals, slots, pauses, cost)
    while simulation.left and not (until and simulation.now >= until):
        simulation.step()
        if watch is not None:
            watch(simulation)
    assert simulation.left or not (simulation.policy.waiting() or simulation.policy.running())
    return simulation.served


class Simulation:
    """A run so far. It keeps its own account of who was served what, beside the policy's."""

    def __init__(
        self, policy: Policy, arrivals: Sequence[Arrival], slots: int, pauses: bool, cost: Cost
    ) -> None:
        self.policy, self.now, self.left = policy, 0, len(arrivals)
        self.served = [Served(a) for a in arrivals]
        self._slots, self._pauses, self._cost = slots, pauses, cost
        self._coming = 0
        self._runs: dict[int, _Run] = {}
        self._paused: dict[int, _Run] = {}
        self._held: dict[str, deque[int]] = {}
        """Calls in turn, by client: the first is outstanding, the others are yet to come."""
        self.service: Counter[str] = Counter()
        """Weighted tokens that each client was served so far."""
        self.waits: Counter[str] = Counter()
        """Waiting jobs of each client."""
        self.spells: Counter[str] = Counter()
        """How often each client began to wait: two equal numbers at two times, and it waited all
        the while between them."""

    def step(self) -> None:
        self._arrive()
        while len(self._runs) < self._slots and self._start() is not None:
            pass
        if self._pauses and len(self._runs) == self._slots:
            while (key := self.policy.preempt(self.now)) is not None:
                self.policy.pause(key)
                self._wait(self.served[key].arrival.client)
                self._paused[key] = self._runs.pop(key)
                assert self._start() not in (None, key), "a paused job is picked at once"
        assert len(self._runs) == self._slots or not len(self.policy), "a slot is free"
        self.now += _pass(self._runs.values(), self._cost)
        for run in list(self._runs.values()):
            if not run.prompt_left:
                self._token(run)

    def _arrive(self) -> None:
        served = self.served
        if not self._runs and not len(self.policy):
            self.now = max(self.now, served[self._coming].arrival.at)
        while self._coming < len(served) and served[self._coming].arrival.at <= self.now:
            key, arrival = self._coming, served[self._coming].arrival
            self._coming += 1
            if arrival.in_turn:
                held = self._held.setdefault(arrival.client, deque())
                held.append(key)
                if len(held) > 1:
                    continue
            self._offer(key, arrival.at)

    def _offer(self, key: int, at: int) -> None:
        about = self.served[key]
        about.offered = at
        a = about.arrival
        self._wait(a.client)
        self.policy.offer(
            Job(
                key=key,
                client=a.client,
                prompt_tokens=a.prompt,
                max_tokens=a.max_tokens,
                at=at,
                weight=a.weight,
                priority=a.priority,
                deadline=at + a.patience if a.patience else 0,
            )
        )

    def _wait(self, client: str) -> None:
        self.spells[client] += not self.waits[client]
        self.waits[client] += 1

    def _start(self) -> int | None:
        job = self.policy.pick(self.now)
        if job is None:
            return None
        self.waits[job.client] -= 1
        run = self._paused.pop(job.key, None)
        if run is None:
            about = self.served[job.key]
            about.picked = self.now
            self.service[job.client] += INPUT * job.prompt_tokens
            run = _Run(job.key, about.arrival.prompt, about.arrival.output)
        self._runs[job.key] = run
        return job.key

    def _token(self, run: _Run) -> None:
        run.output_left -= 1
        self.policy.charge(run.key, 1)
        about = self.served[run.key]
        self.service[about.arrival.client] += OUTPUT
        about.first = about.first or self.now
        if run.output_left:
            return
        about.ended = self.now
        self.policy.leave(run.key)
        del self._runs[run.key]
        self.left -= 1
        if about.arrival.in_turn:
            held = self._held[about.arrival.client]
            held.popleft()
            if held:
                self._offer(held[0], self.now)


def _pass(runs: Iterable[_Run], cost: Cost) -> int:
    """One step of the driver; returns what it takes. Who has prompt left after it makes no token
    in it; who has not, makes one."""
    room, decoding = cost.chunk, 0
    for run in runs:
        if run.prompt_left:
            part = min(room, run.prompt_left)
            run.prompt_left -= part
            room -= part
        decoding += not run.prompt_left
    return cost.fixed + cost.prefill * (cost.chunk - room) + cost.decode * decoding


def load_of(arrivals: Sequence[Arrival], slots: int, pauses: bool) -> Load:
    """The largest prompt and answer of a trace."""
    return Load(
        prompt=max(a.prompt for a in arrivals),
        output=max(a.max_tokens for a in arrivals),
        slots=slots,
        pauses=pauses,
    )
