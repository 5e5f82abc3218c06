"""Two arms over the same attempts: what the one gains, and whether that could be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


@dataclass(frozen=True)
class Paired:
    """``won``: attempts that passed here alone; ``lost``: there alone."""

    attempts: int
    won: int
    lost: int

    @property
    def gain(self) -> float:
        """Percentage points here above there; 0 where nothing was tried."""
        return 100 * (self.won - self.lost) / self.attempts if self.attempts else 0.0

    @property
    def p(self) -> float:
        return mcnemar(self.won, self.lost)


def compare(here: Sequence[bool], there: Sequence[bool]) -> Paired:
    """Of the same attempts in the same order."""
    won = sum(h and not t for h, t in zip(here, there, strict=True))
    lost = sum(t and not h for h, t in zip(here, there, strict=True))
    return Paired(len(here), won, lost)


def mcnemar(won: int, lost: int) -> float:
    """The exact two-sided p-value of McNemar's test: how likely a fair coin splits the attempts in
    which the two arms differ at least as unevenly."""
    differ, fewer = won + lost, min(won, lost)
    tail = sum(comb(differ, n) for n in range(fewer + 1))
    return float(min(1.0, 2 * tail / (1 << differ)))
