"""The interface of a policy, and the first one.

A policy holds the calls that wait for one model and says which runs next. It is a value: it
reads no clock, every call that needs the time is given it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import msgspec


class Job(msgspec.Struct, frozen=True, gc=False):
    """A model call that waits: its key, its agent and user, and its size in tokens."""

    key: int
    agent: str
    user: str
    prompt_tokens: int
    max_tokens: int
    at: int
    """When it was offered, virtual ns."""


class Policy(Protocol):
    """Invariant: ``pick`` gives out each offered job exactly once, unless it is withdrawn."""

    name: str

    def offer(self, job: Job) -> None: ...

    def pick(self, now: int) -> Job | None:
        """The job to run next, removed from the queue; ``None`` iff nothing waits."""

    def withdraw(self, key: int) -> bool:
        """Forget a waiting job; true iff it was waiting."""

    def charge(self, key: int, tokens: int) -> None:
        """Tell that a job has been served so many tokens."""

    def __len__(self) -> int: ...


class Fifo:
    """First come, first served.

    Bound: a job waits for all and only the jobs offered before it, so it is served after at most
    the sum of their tokens.
    """

    name = "fifo"

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, Job] = OrderedDict()

    def offer(self, job: Job) -> None:
        self._jobs[job.key] = job

    def pick(self, now: int) -> Job | None:
        return self._jobs.popitem(last=False)[1] if self._jobs else None

    def withdraw(self, key: int) -> bool:
        return self._jobs.pop(key, None) is not None

    def charge(self, key: int, tokens: int) -> None:
        pass

    def __len__(self) -> int:
        return len(self._jobs)
