"""Whether a policy keeps the bounds that it states, watched from outside.

The watch counts service by its own account and knows no counter of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf

from isovist.scheduler.policy import Policy
from isovist.scheduler.ranked import Fifo, Priority
from isovist.scheduler.simulation import Served, Simulation, load_of, simulate
from isovist.scheduler.traces import Arrival

_ROUNDING = 1e-6


class Fairness:
    """Watches a run of a policy that shares by tokens. ``worst`` is the largest difference of
    service between two clients that both waited all the while, as a share of its bound, and
    ``longest`` the same of what others were served while one waited for its turn."""

    def __init__(
        self, make: Callable[[], Policy], arrivals: Sequence[Arrival], slots: int, pauses: bool
    ) -> None:
        policy, load = make(), load_of(arrivals, slots, pauses)
        self._weights = {a.client: a.weight for a in arrivals}
        self._leads = {c: policy.lead(load, w) for c, w in self._weights.items()}
        self._spans: dict[tuple[str, str], tuple[tuple[int, int], float, float]] = {}
        self._waited: dict[str, tuple[int, float, dict[str, int]]] = {}
        self.worst = self.longest = 0.0

    def __call__(self, run: Simulation) -> None:
        waiting = [c for c in self._weights if run.waits[c]]
        for f, g in combinations(waiting, 2):
            spells = run.spells[f], run.spells[g]
            apart = run.service[f] / self._weights[f] - run.service[g] / self._weights[g]
            was, low, high = self._spans.get((f, g), (spells, apart, apart))
            low, high = (min(low, apart), max(high, apart)) if was == spells else (apart, apart)
            self._spans[f, g] = spells, low, high
            self.worst = max(self.worst, (high - low) / (self._leads[f] + self._leads[g]))
        for f in waiting:
            self._wait(f, run)

    def _wait(self, f: str, run: Simulation) -> None:
        spell, own, then = self._waited.get(f, (0, 0.0, {}))
        if spell != run.spells[f] or own != run.service[f]:
            self._waited[f] = run.spells[f], run.service[f], dict(run.service)
            return
        others = sum(served - then.get(c, 0) for c, served in run.service.items() if c != f)
        allowed = sum(
            w * (self._leads[f] + 2 * self._leads[c]) for c, w in self._weights.items() if c != f
        )
        self.longest = max(self.longest, others / allowed) if allowed else self.longest


def out_of_order(served: Sequence[Served], rank: Callable[[Served], float]) -> int:
    """How many calls began while one of a lower rank waited that had not begun."""
    return sum(
        a.offered <= b.picked < a.picked and (rank(a), i) < (rank(b), j)
        for i, a in enumerate(served)
        for j, b in enumerate(served)
    )


def excess(
    make: Callable[[], Policy], arrivals: Sequence[Arrival], *, slots: int, pauses: bool
) -> float:
    """The worst measure of the policy's bounds, as a share of what they allow: they hold iff it is
    at most 1. A lost or stuck call raises ``AssertionError``."""
    policy = make()
    if isinstance(policy, Fifo | Priority):
        served = simulate(make, arrivals, slots=slots, pauses=pauses)
        age = policy.age if isinstance(policy, Priority) else 0
        wrong = out_of_order(served, lambda s: s.offered - age * s.arrival.priority)
        return inf if wrong else 0.0
    watch = Fairness(make, arrivals, slots, pauses)
    simulate(make, arrivals, slots=slots, pauses=pauses, watch=watch)
    return max(watch.worst, watch.longest) / (1 + _ROUNDING)
