"""The interface of a policy, and what all policies share.

A policy holds the jobs of one model: those that wait for a slot and those that have one. It says
which waiting job runs next, and which running one should make room. It is a value: it reads no
clock, every call that needs the time is given it.

Service is counted in weighted tokens, as in the Virtual Token Counter (Sheng et al., "Fairness in
Serving Large Language Models", OSDI 2024): ``INPUT`` for each token of the prompt, counted
when its job first gets a slot, and ``OUTPUT`` for each token of the answer as it is made.
Fairness is between *clients*: whom a job's maker names so, as a rule its agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import Protocol

import msgspec

INPUT, OUTPUT = 1, 2
"""Weights of a prompt token and of a generated one, as in the paper's experiments."""
PRIORITIES = range(10)
"""Levels of priority: 0, the least, to 9."""


class Job(msgspec.Struct, frozen=True, gc=False):
    """One model call: its key, whose it is, and its size in tokens.

    ``prompt_tokens`` >= 1 and ``max_tokens`` >= 1 bound what it can cost; ``weight`` > 0 is its
    client's share (equal in all jobs of a client, else the newest counts); ``priority`` is one of
    ``PRIORITIES``; ``at`` is when it was offered and ``deadline`` (0: none) when its answer is
    wanted, both virtual ns.
    """

    key: int
    client: str
    prompt_tokens: int
    max_tokens: int
    at: int
    weight: float = 1.0
    priority: int = 0
    deadline: int = 0


class Load(msgspec.Struct, frozen=True, gc=False):
    """Most that one job and the driver can be: what a bound on service is stated in.

    ``prompt`` and ``output`` are the largest ``prompt_tokens`` and ``max_tokens`` of a job,
    ``slots`` how many run at once; ``pauses``: whether the driver can pause a running job, and is
    asked after each token of each job.
    """

    prompt: int
    output: int
    slots: int
    pauses: bool


class Standing(msgspec.Struct, frozen=True, gc=False):
    """A client that waits or runs: its jobs, and the weighted tokens by which it is ahead of the
    client that is next (0 where the policy does not count)."""

    waiting: int
    running: int
    ahead: float = 0.0


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """Jobs that wait and run now; how often one was offered, picked, paused, so far; tokens
    served so far; and every client that has a job here."""

    waiting: int
    running: int
    offered: int
    picked: int
    paused: int
    prompt_tokens: int
    output_tokens: int
    clients: dict[str, Standing]


class Policy(Protocol):
    """Invariant: a job offered and not yet left either waits or runs, never both."""

    name: str

    def offer(self, job: Job) -> None:
        """A job waits. Its key must not be known yet."""

    def pick(self, now: int) -> Job | None:
        """The job to run next, which now runs; ``None`` iff nothing waits (work-conserving)."""

    def charge(self, key: int, tokens: int) -> None:
        """A job has made ``tokens`` more of its answer; no effect where it is not known."""

    def preempt(self, now: int) -> int | None:
        """The running job that should be paused for the one that ``pick`` would give next.

        To be asked only while no slot is free. What it names is then given to :meth:`pause`. It
        never names a job that has not made its first token.
        """

    def pause(self, key: int) -> None:
        """A running job waits again. It will be picked as it stands, its prompt counted once."""

    def leave(self, key: int) -> bool:
        """Forget a job: it has ended, or is not wanted any more. True iff it waited."""
        ...

    def statistics(self) -> Statistics: ...

    def waiting(self) -> list[Job]:
        """Those that wait, in the order in which they were offered or paused."""
        ...

    def running(self) -> list[Job]: ...

    def begun(self) -> frozenset[int]:
        """The keys of the jobs that have had a slot: all that run, and those that were paused."""
        ...

    def lead(self, load: Load, weight: float) -> float:
        """How far ahead a client of ``weight`` can be of any other that waits all the while, in
        weighted tokens by weight; ``inf`` where there is no such bound."""
        ...

    def take_over(self, other: Policy) -> None:
        """Hold all that ``other`` holds. Nothing is lost, doubled or begun anew; nobody's past
        service counts. ``other`` is not to be used any more."""

    def __len__(self) -> int:
        """How many wait."""
        ...


class Queue(ABC):
    """Bookkeeping of waiting and running jobs; what a policy adds is an order."""

    name = ""

    def __init__(self) -> None:
        self._waiting: dict[int, Job] = {}
        self._running: dict[int, Job] = {}
        self._begun: set[int] = set()
        self._silent: set[int] = set()
        """Running jobs that have not made a token yet: their prompts are being read, and a pause
        would put off their first word without freeing what was paid for it."""
        self._offered = self._picked = self._paused = self._prompt = self._output = 0

    # -- what a policy says

    @abstractmethod
    def _enter(self, job: Job) -> None:
        """A job waits, new or paused."""

    @abstractmethod
    def _first(self) -> Job | None:
        """The waiting job to run next; ``None`` iff none waits."""

    @abstractmethod
    def _exit(self, job: Job) -> None:
        """A job waits no more. It may be any, not only the first."""

    def _started(self, job: Job) -> None:  # noqa: B027 # most orders need not know
        """A job runs."""

    def _served(self, job: Job, cost: int) -> None:  # noqa: B027 # most orders do not count
        """A job that has begun was served ``cost`` weighted tokens."""

    def _rival(self, job: Job, running: list[Job]) -> Job | None:
        """Which of ``running`` (there is one) should make room for ``job``."""
        return None

    def _ahead(self, client: str) -> float:
        return 0.0

    # -- Policy

    def lead(self, load: Load, weight: float) -> float:
        return inf

    def offer(self, job: Job) -> None:
        assert job.key not in self._waiting
        assert job.key not in self._running
        self._offered += 1
        self._waiting[job.key] = job
        self._enter(job)

    def pick(self, now: int) -> Job | None:
        job = self._first()
        if job is None:
            return None
        self._exit(job)
        del self._waiting[job.key]
        self._running[job.key] = job
        self._picked += 1
        self._started(job)
        if job.key not in self._begun:
            self._begun.add(job.key)
            self._silent.add(job.key)
            self._prompt += job.prompt_tokens
            self._served(job, INPUT * job.prompt_tokens)
        return job

    def charge(self, key: int, tokens: int) -> None:
        job = self._running.get(key) or self._waiting.get(key)
        if job is not None:
            self._silent.discard(key)
            self._output += tokens
            self._served(job, OUTPUT * tokens)

    def preempt(self, now: int) -> int | None:
        job = self._first()
        running = [j for j in self._running.values() if j.key not in self._silent]
        rival = self._rival(job, running) if job is not None and running else None
        return None if rival is None else rival.key

    def pause(self, key: int) -> None:
        job = self._running.pop(key)
        self._paused += 1
        self._waiting[key] = job
        self._enter(job)

    def leave(self, key: int) -> bool:
        self._begun.discard(key)
        self._silent.discard(key)
        if self._running.pop(key, None) is not None:
            return False
        job = self._waiting.get(key)
        if job is None:
            return False
        self._exit(job)
        del self._waiting[key]
        return True

    def take_over(self, other: Policy) -> None:
        assert not self._waiting
        assert not self._running
        self._begun |= other.begun()
        for job in other.running():
            self._running[job.key] = job
            self._started(job)
        for job in other.waiting():
            self._waiting[job.key] = job
            self._enter(job)
        statistics = other.statistics()
        self._offered, self._picked = statistics.offered, statistics.picked
        self._paused = statistics.paused
        self._prompt, self._output = statistics.prompt_tokens, statistics.output_tokens

    def waiting(self) -> list[Job]:
        return list(self._waiting.values())

    def running(self) -> list[Job]:
        return list(self._running.values())

    def begun(self) -> frozenset[int]:
        return frozenset(self._begun)

    def statistics(self) -> Statistics:
        counts: dict[str, list[int]] = {}
        for at, jobs in enumerate((self._waiting, self._running)):
            for job in jobs.values():
                counts.setdefault(job.client, [0, 0])[at] += 1
        return Statistics(
            waiting=len(self._waiting),
            running=len(self._running),
            offered=self._offered,
            picked=self._picked,
            paused=self._paused,
            prompt_tokens=self._prompt,
            output_tokens=self._output,
            clients={c: Standing(n[0], n[1], self._ahead(c)) for c, n in sorted(counts.items())},
        )

    def __len__(self) -> int:
        return len(self._waiting)
