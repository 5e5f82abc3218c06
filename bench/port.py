"""The memory that a run learns into, as the bench sees it. The real one is a kernel's
(:mod:`bench.learner`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.solvers import Solved

SCOPES = ("pair", "user", "agent", "global")


@dataclass(frozen=True)
class Stored:
    """An entry as it lies in the store: its situation on the first line, then the lesson."""

    id: str
    scope: str
    text: str


@dataclass(frozen=True)
class Cost:
    """Processor seconds of the kernel and its children, tokens that models were given and gave,
    and how many submissions ended in each state."""

    seconds: float = 0.0
    tokens: int = 0
    ended: tuple[tuple[str, int], ...] = ()


class Memory(Protocol):
    def lessons(
        self, user: str, agent: str, task: str, *, scopes: Sequence[str] = (), budget: int = 0
    ) -> str:
        """What the pair is shown for ``task``; no scopes: all that there are; 0: the budget of
        the run (characters a scope)."""
        ...

    def submit(
        self, user: str, agent: str, task: str, solved: Solved, outcome: str, tail: str
    ) -> None: ...

    def settle(self) -> None:
        """Return when everything submitted has been learned, or has failed for good."""
        ...

    def review(self) -> None:
        """Review what is new."""
        ...

    def entries(self, user: str, agent: str) -> list[Stored]:
        """All that the pair's view holds."""
        ...

    def cost(self) -> Cost: ...
