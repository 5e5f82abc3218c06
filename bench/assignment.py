"""Who tries what, and when: the scheduled assignment and the random one [M].

In round 0 each pair tries one task and its user says its wishes. Afterwards the *scheduled*
assignment sees to it that tasks come again by the same pair, by a pair that shares the user, the
agent or neither with all who have tried them, and that some have never been tried. The *random*
one draws tasks afresh in each round and gives them to random pairs.

What an attempt can profit from is what was tried in earlier rounds: a round's memory is read before
the round's first attempt is submitted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Before = Literal["same pair", "shared user", "shared agent", "strangers", "nobody"]
"""Who has tried a task before, the nearest of all who have."""
KINDS: tuple[Before, ...] = ("same pair", "shared user", "shared agent", "strangers", "nobody")
TRIES = 400
"""Draws after which a kind of repetition counts as not to be had."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Turn:
    """An attempt to come: the ``task`` is a place in the pool."""

    round: int
    user: str
    agent: str
    task: int
    before: Before

    @property
    def stated(self) -> bool:
        """Whether the user says its wishes."""
        return self.round == 0


@dataclass
class _History:
    """Which pairs have tried which task; ``fresh`` are this round's."""

    tried: dict[int, list[Pair]] = field(default_factory=dict)
    fresh: list[tuple[int, Pair]] = field(default_factory=list)

    def before(self, pair: Pair, task: int) -> Before:
        tried = self.tried.get(task, [])
        if pair in tried:
            return "same pair"
        if any(user == pair[0] for user, _ in tried):
            return "shared user"
        if any(agent == pair[1] for _, agent in tried):
            return "shared agent"
        return "strangers" if tried else "nobody"

    def end_round(self) -> None:
        for task, pair in self.fresh:
            self.tried.setdefault(task, []).append(pair)
        self.fresh.clear()


def scheduled(
    rng: random.Random, pairs: Sequence[Pair], tasks: int, rounds: int, each: int
) -> list[Turn]:
    """``each`` attempts in every round after the first. Where a kind of repetition is not to be
    had any more, any other attempt takes its place."""
    history = _History()
    turns = _first(rng, pairs, tasks, history)
    known = {turn.task for turn in turns}
    for number in range(1, rounds):
        wanted: list[Before] = [KINDS[n % len(KINDS)] for n in range(each)]
        taken: set[tuple[Pair, int]] = set()
        for kind in wanted:
            turn = _one(rng, pairs, tasks, known, history, number, kind, taken)
            taken.add(((turn.user, turn.agent), turn.task))
            history.fresh.append((turn.task, (turn.user, turn.agent)))
            turns.append(turn)
        history.end_round()
        known |= {turn.task for turn in turns}
    return turns


def at_random(
    rng: random.Random, pairs: Sequence[Pair], tasks: int, rounds: int, each: int
) -> list[Turn]:
    history = _History()
    turns = _first(rng, pairs, tasks, history)
    for number in range(1, rounds):
        for _ in range(each):
            pair, task = rng.choice(pairs), rng.randrange(tasks)
            turns.append(Turn(number, *pair, task, history.before(pair, task)))
            history.fresh.append((task, pair))
        history.end_round()
    return turns


def _first(rng: random.Random, pairs: Sequence[Pair], tasks: int, history: _History) -> list[Turn]:
    """Each pair once; at least every other task is left for later."""
    order = rng.sample(range(tasks), max(1, tasks // 2))
    turns = [Turn(0, *pair, order[n % len(order)], "nobody") for n, pair in enumerate(pairs)]
    history.fresh += [(turn.task, (turn.user, turn.agent)) for turn in turns]
    history.end_round()
    return turns


def _one(
    rng: random.Random,
    pairs: Sequence[Pair],
    tasks: int,
    known: set[int],
    history: _History,
    number: int,
    kind: Before,
    taken: set[tuple[Pair, int]],
) -> Turn:
    among = range(tasks) if kind == "nobody" else sorted(known)
    for _ in range(TRIES):
        pair, task = rng.choice(pairs), rng.choice(among)
        if kind == "same pair":
            own = [t for t, tried in history.tried.items() if pair in tried]
            task = rng.choice(own) if own else task
        if history.before(pair, task) == kind and (pair, task) not in taken:
            return Turn(number, *pair, task, kind)
    pair, task = rng.choice(pairs), rng.randrange(tasks)
    return Turn(number, *pair, task, history.before(pair, task))


def counted(turns: Sequence[Turn]) -> dict[str, int]:
    """How many attempts after the first round there are of each kind."""
    found = Counter(turn.before for turn in turns if turn.round)
    return {kind: found[kind] for kind in KINDS}
