"""Policies whose order never changes: first come first served, and priority with ageing.

Every job has a rank that stands from the moment it is offered, so a paused job keeps its place
and two jobs never pause each other in turn.
"""

from __future__ import annotations

from abc import abstractmethod
from heapq import heapify, heappop, heappush

from isovist.scheduler.policy import PRIORITIES, Job, Queue

SECOND = 1_000_000_000


class Ranked(Queue):
    """The waiting job of the least rank is next, of equals the one that was offered first."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int]] = []

    @abstractmethod
    def _rank(self, job: Job) -> int: ...

    def _enter(self, job: Job) -> None:
        heappush(self._heap, (self._rank(job), job.key))

    def _exit(self, job: Job) -> None:
        # Entries of jobs that wait no more stay until they come up or are the bulk. A job that
        # waits again has the same entry, so a second one does no harm.
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [(self._rank(j), j.key) for j in self._waiting.values()]
            heapify(self._heap)

    def _first(self) -> Job | None:
        while self._heap:
            job = self._waiting.get(self._heap[0][1])
            if job is not None:
                return job
            heappop(self._heap)
        return None


class Fifo(Ranked):
    """First come, first served.

    Bound: a job waits for all and only the jobs offered before it, so it begins after at most the
    sum of their ``INPUT * prompt_tokens + OUTPUT * max_tokens``: nobody starves. The difference of
    service between two clients has no bound but that: it is whatever they ask for.
    """

    name = "fifo"

    def _rank(self, job: Job) -> int:
        return job.at


class Priority(Ranked):
    """Strict priority with ageing: each level is worth ``age`` ns of waiting.

    A running job is paused for one of a higher level that is ahead of it.

    Bound: a job of level p waits for all and only the jobs that were offered before it, or up to
    (q - p) * ``age`` after it with a higher level q. Whatever comes later than
    (highest level - p) * ``age`` after it is served after it, however much that is: nobody starves.
    Between clients there is no bound but that.
    """

    name = "priority"

    def __init__(self, age: int = 5 * SECOND) -> None:
        super().__init__()
        self.age = age

    def _rank(self, job: Job) -> int:
        assert job.priority in PRIORITIES
        return job.at - job.priority * self.age

    def _rival(self, job: Job, running: list[Job]) -> Job | None:
        last = max(running, key=lambda j: (self._rank(j), j.key))
        ahead = last.priority < job.priority and self._rank(job) < self._rank(last)
        return last if ahead else None
