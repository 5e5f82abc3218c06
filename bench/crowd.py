"""Who takes part: users with what is true of them and what they wish, and the agents they use.

Agents run in harnesses, two of them in one: a group of agents by nature. Each user works with a
few of the agents. All is drawn from the seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from bench import planted, wishes
from bench.errands import House, draw_house
from bench.planted import Fact
from bench.wishes import Wishes

AGENTS: dict[str, str] = {
    "kestrel": "terminal",
    "osprey": "terminal",
    "heron": "notebook",
    "merlin": "console",
    "plover": "mailroom",
    "dunlin": "workbench",
}
"""By agent: its harness."""
HARNESSES = tuple(dict.fromkeys(AGENTS.values()))
AGENTS_EACH = 3
"""Agents that one user works with."""


@dataclass(frozen=True)
class User:
    """``house`` is how this user's tables are laid out; no prompt says it."""

    id: str
    name: str
    identity: tuple[Fact, ...]
    facts: tuple[Fact, ...]
    wishes: Wishes
    house: House
    agents: tuple[str, ...]

    @cached_property
    def private(self) -> tuple[Fact, ...]:
        """What must not reach anybody else."""
        return tuple(fact for fact in (*self.identity, *self.facts) if fact.private)


@dataclass(frozen=True)
class Crowd:
    users: tuple[User, ...]

    @property
    def pairs(self) -> list[tuple[User, str]]:
        return [(user, agent) for user in self.users for agent in user.agents]


def draw(seed: int, users: int) -> Crowd:
    """The first users of a larger crowd are those of a smaller one."""
    taken: set[str] = set()
    found = []
    for n in range(users):
        rng = random.Random(f"crowd {seed} {n}")
        name, identity = planted.identity(rng, taken)
        found.append(
            User(
                id=f"u{n:03}",
                name=name,
                identity=identity,
                facts=planted.category_facts(rng, taken),
                wishes=wishes.draw(rng, HARNESSES),
                house=draw_house(rng),
                agents=tuple(rng.sample(list(AGENTS), AGENTS_EACH)),
            )
        )
    return Crowd(tuple(found))
