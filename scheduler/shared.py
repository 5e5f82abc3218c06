"""Policies that share a model by tokens served: fair share, round robin, deadlines within it.

Each client has a virtual counter: the weighted tokens that it was served, divided by its weight
(Sheng et al., OSDI 2024, section 4: the Virtual Token Counter). The client of the least counter is
next. *Virtual time* is the least counter of a client that waits; it never goes back, and where
nobody has waited it comes within a quantum of the furthest that runs. A client that begins to wait
is lifted to it (the paper's counter lift), so nobody saves up service by being idle, and a counter
that virtual time has passed need not be remembered.

While a client waits, its counter is never further ahead of virtual time than its ``lead``: it is
picked, and goes on while others wait, only near it. So over any time in which clients f and g
both wait all the while, their services S, in weighted tokens, differ by

    |S(f) / weight(f) - S(g) / weight(g)|  <=  lead(f) + lead(g)

and a client waits for no more than what the others may be served until their counters have passed
its own. Nobody starves, as long as finitely many clients come.
"""

from __future__ import annotations

from abc import abstractmethod
from heapq import heapify, heappop, heappush, heapreplace

from isovist.scheduler.policy import INPUT, OUTPUT, Job, Load, Queue

QUANTUM = 64
"""Weighted tokens, by weight, between two changes of who runs."""
SLACK = 1024
"""Weighted tokens, by weight, by which a deadline may bring a client forward."""
_NEW = -(1 << 62)
"""Turns of clients that had none yet come before all others."""


class Shared(Queue):
    """Counters, virtual time, and the waiting clients in order of rank.

    Invariant: no entry of the heap is above its client's rank, and every waiting client has one.
    So the first entry that equals its client's rank is the least.
    """

    def __init__(self, quantum: int = QUANTUM) -> None:
        super().__init__()
        self.quantum = quantum
        self._jobs: dict[str, dict[int, Job]] = {}
        """The waiting jobs of each client: first those that were paused, then as they came."""
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._turns: dict[str, int] = {}
        """These three know the same clients: all that have a job here, and some that had."""
        self._turn = 0
        self._time = 0.0
        self._heap: list[tuple[float, int, str]] = []
        self._entries: set[str] = set()

    @abstractmethod
    def _rank(self, client: str) -> tuple[float, int]:
        """It never falls while the client waits."""

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def _know(self, job: Job) -> None:
        """A client comes, or comes back."""
        client = job.client
        self._weights[client] = job.weight
        self._turns.setdefault(client, _NEW + self._next_turn())
        self._counters[client] = max(self._counters.get(client, 0.0), self._time)

    def _least(self) -> str | None:
        """The waiting client of the least rank."""
        while self._heap:
            counter, turn, client = self._heap[0]
            if client not in self._jobs:
                self._entries.discard(client)
                heappop(self._heap)
            elif (rank := self._rank(client)) != (counter, turn):
                heapreplace(self._heap, (*rank, client))
            else:
                self._time = max(self._time, self._counters[client])
                return client
        return None

    def _tidy(self) -> None:
        """Forget the clients that virtual time has passed, when they are the bulk."""
        if len(self._counters) <= 2 * (len(self._jobs) + len(self._running)) + 64:
            return
        here = self._jobs.keys() | {job.client for job in self._running.values()}
        for client in [c for c in self._counters if c not in here]:
            if self._counters[client] <= self._time:
                del self._counters[client], self._weights[client], self._turns[client]
        self._heap = [(*self._rank(client), client) for client in self._jobs]
        self._entries = set(self._jobs)
        heapify(self._heap)

    # -- what Queue asks

    def _enter(self, job: Job) -> None:
        client = job.client
        jobs = self._jobs.get(client)
        if jobs is None:
            if self._least() is None and self._running:
                # What was served while nobody waited is held against nobody.
                most = max(self._counters[j.client] for j in self._running.values())
                self._time = max(self._time, most - self.quantum)
            self._know(job)
            jobs = self._jobs[client] = {}
            if client not in self._entries:
                self._entries.add(client)
                heappush(self._heap, (*self._rank(client), client))
        self._weights[client] = job.weight
        if job.key in self._begun:
            self._jobs[client] = {job.key: job, **jobs}
        else:
            jobs[job.key] = job

    def _exit(self, job: Job) -> None:
        self._least()
        jobs = self._jobs[job.client]
        del jobs[job.key]
        if not jobs:
            del self._jobs[job.client]
            self._tidy()

    def _first(self) -> Job | None:
        client = self._least()
        return None if client is None else next(iter(self._jobs[client].values()))

    def _started(self, job: Job) -> None:
        if job.client not in self._counters:
            self._know(job)

    def _served(self, job: Job, cost: int) -> None:
        self._counters[job.client] += cost / self._weights[job.client]

    def _ahead(self, client: str) -> float:
        return max(0.0, self._counters[client] - self._time)


class RoundRobin(Shared):
    """Clients in turn, each for a quantum of weighted tokens by weight.

    A client at its turn is served until its quantum is used up, then the next; what it took beyond
    is held against its later quanta, however many (surplus round robin), so that long jobs gain
    nothing where they cannot be paused. Who comes back goes to the end of the round.

    Bound: ``lead`` is ``quantum`` + (``INPUT`` P + ``OUTPUT`` S n) / weight, where P is the longest
    prompt, S the number of slots, and n is 1 where jobs can be paused, else the longest answer.
    """

    name = "round_robin"

    def lead(self, load: Load, weight: float) -> float:
        unpaid = load.slots * (1 if load.pauses else load.output)
        return self.quantum + (INPUT * load.prompt + OUTPUT * unpaid) / weight

    def _rank(self, client: str) -> tuple[float, int]:
        return self._counters[client] // self.quantum, self._turns[client]

    def _know(self, job: Job) -> None:
        super()._know(job)
        self._turns[job.client] = self._next_turn()

    def _served(self, job: Job, cost: int) -> None:
        before = self._counters[job.client] // self.quantum
        super()._served(job, cost)
        if self._counters[job.client] // self.quantum > before:
            self._turns[job.client] = self._next_turn()

    def _rival(self, job: Job, running: list[Job]) -> Job | None:
        last = max(running, key=lambda j: (self._rank(j.client), j.key))
        return last if self._rank(last.client)[0] > self._rank(job.client)[0] else None


class FairShare(Shared):
    """Weighted fair share: the client that was served least, by its weight, is next.

    At equal counters the client whose last turn is longest ago goes first. A job that has not
    begun pauses one whose client is ahead of its own at once; one that was paused itself, when
    that client is more than ``quantum`` ahead, so that who runs changes no more often than that.

    Bound: ``lead`` is (``INPUT`` P + ``OUTPUT`` S G) / weight, where P is the longest prompt, S the
    number of slots and G the longest answer. Where jobs can be paused it is
    max(``INPUT`` P / weight, ``quantum``) + ``OUTPUT`` S / weight. (The paper never pauses a job
    of its own accord; its bound is like the first, with the tokens that fit a batch for S G.)
    """

    name = "fair"

    def lead(self, load: Load, weight: float) -> float:
        prompt = INPUT * load.prompt / weight
        if load.pauses:
            return max(prompt, self.quantum) + OUTPUT * load.slots / weight
        return prompt + OUTPUT * load.slots * load.output / weight

    def _rank(self, client: str) -> tuple[float, int]:
        return self._counters[client], self._turns[client]

    def _started(self, job: Job) -> None:
        super()._started(job)
        self._turns[job.client] = self._next_turn()

    def _rival(self, job: Job, running: list[Job]) -> Job | None:
        last = max(running, key=lambda j: (self._rank(j.client), j.key))
        allowed = self.quantum if job.key in self._begun else 0
        ahead = self._counters[last.client] - self._counters[job.client]
        return last if last.client != job.client and ahead > allowed else None


class Deadline(FairShare):
    """Earliest deadline first, within what is fair.

    Of all clients whose counters are within ``slack`` of virtual time, the job of the earliest
    deadline is next; where none of them has any, it is as under fair share. A deadline is a hint:
    it brings a client forward by ``slack`` at most, whatever it claims, and a missed one changes
    nothing.

    Bound: ``lead`` is ``slack`` more than under fair share.
    """

    name = "deadline"

    def __init__(self, quantum: int = QUANTUM, slack: int = SLACK) -> None:
        super().__init__(quantum)
        self.slack = slack
        self._due: list[tuple[int, int]] = []
        """(deadline, key) of all that wait and have one, and some that do no more."""

    def lead(self, load: Load, weight: float) -> float:
        return self.slack + super().lead(load, weight)

    def _enter(self, job: Job) -> None:
        super()._enter(job)
        if job.deadline:
            heappush(self._due, (job.deadline, job.key))

    def _exit(self, job: Job) -> None:
        super()._exit(job)
        if len(self._due) > 2 * len(self._waiting) + 64:
            due = {j.key: j.deadline for j in self._waiting.values() if j.deadline}
            self._due = [(deadline, key) for key, deadline in due.items()]
            heapify(self._due)

    def _rival(self, job: Job, running: list[Job]) -> Job | None:
        # Whoever would be picked again at once need not be paused.
        limit = self._time + self.slack
        behind = [
            r
            for r in running
            if not r.deadline
            or self._counters[r.client] > limit
            or (job.deadline and (job.deadline, job.key) < (r.deadline, r.key))
        ]
        return super()._rival(job, behind) if behind else None

    def _first(self) -> Job | None:
        fair = super()._first()
        if fair is None:
            return None
        limit = self._counters[fair.client] + self.slack
        passed_over: list[tuple[int, int]] = []
        found = None
        while self._due and found is None:
            job = self._waiting.get(self._due[0][1])
            if job is not None and self._counters[job.client] <= limit:
                found = job
            else:
                entry = heappop(self._due)
                if job is not None:
                    passed_over.append(entry)
        for entry in passed_over:
            heappush(self._due, entry)
        return found or fair
