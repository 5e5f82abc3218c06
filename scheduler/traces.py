"""Seeded arrival traces: who asks when, with how long a prompt, for how long an answer."""

from __future__ import annotations

from random import Random

import msgspec

SECOND = 1_000_000_000


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One call to come. ``output`` is how long its answer really gets, which no policy is told;
    it asks for at most ``max_tokens``. ``patience`` (ns; 0: none) is what its deadline allows."""

    at: int
    client: str
    prompt: int
    output: int
    max_tokens: int
    weight: float = 1.0
    priority: int = 0
    patience: int = 0
    in_turn: bool = False
    """Not before its client's call before this one has been answered."""


def calls(rng: Random, client: str, ats: list[int], prompt: int, output: int) -> list[Arrival]:
    """A call at each instant; lengths are drawn around ``prompt`` and ``output`` tokens."""
    made: list[Arrival] = []
    for at in ats:
        longest = 2 * output
        length = min(longest, max(1, int(rng.expovariate(1 / output))))
        made.append(
            Arrival(at, client, max(1, int(rng.uniform(0.5, 1.5) * prompt)), length, longest)
        )
    return made


def poisson(rng: Random, agents: int, *, rate: float, each: float = 2.0) -> list[Arrival]:
    """Every agent calls at random moments, ``each`` times on average; together ``rate`` calls a
    second. One agent in five is in a hurry, with a priority and a deadline."""
    span = agents * each / rate
    made: list[Arrival] = []
    for n in range(agents):
        ats: list[int] = []
        at = rng.expovariate(each / span)
        while at < span:
            ats.append(int(at * SECOND))
            at += rng.expovariate(each / span)
        for call in calls(rng, f"a{n}", ats, 265, 64):
            hurried = msgspec.structs.replace(call, priority=5, patience=2 * SECOND)
            made.append(call if n % 5 else hurried)
    return in_order(made)


def bursts(rng: Random, agents: int, *, rate: float, each: int = 2) -> list[Arrival]:
    """One agent in ten asks for ``10 * each`` answers at one moment, the others as in
    :func:`poisson`; together ``rate`` calls a second."""
    span = agents * (0.9 + 1.0) * each / rate
    made: list[Arrival] = []
    for n in range(agents):
        greedy = n % 10 == 0
        start = int(rng.random() * span * SECOND)
        ats = [start] * 10 * each if greedy else []
        ats += [] if greedy else sorted(int(rng.random() * span * SECOND) for _ in range(each))
        made += calls(rng, f"a{n}", ats, 265, 64)
    return in_order(made)


def beside(rng: Random, long: int = 8, *, seconds: int = 120, output: int = 512) -> list[Arrival]:
    """``long`` agents that ask for one long text after the other, beside one ``interactive``
    agent with a short question every 2 s."""
    made: list[Arrival] = []
    for n in range(long):
        at = int(rng.random() * SECOND)
        for _ in range(seconds):
            length = int(rng.uniform(0.75, 1.0) * output)
            made.append(Arrival(at, f"long{n}", 265, length, output, in_turn=True))
    for at in range(2, seconds, 2):
        when = at * SECOND + int(rng.random() * SECOND / 10)
        made.append(Arrival(when, "interactive", 40, 24, 48, priority=5, patience=SECOND))
    return in_order(made)


def weighted(rng: Random, agents: int = 8, *, each: int = 40) -> list[Arrival]:
    """All agents ask for far more than can be served; every second one has weight 2."""
    made: list[Arrival] = []
    for n in range(agents):
        weight = 1 + n % 2
        made += [
            msgspec.structs.replace(call, weight=float(weight))
            for call in calls(rng, f"w{weight}.{n}", [0] * each, 100, 128)
        ]
    return in_order(made)


def mixed(rng: Random) -> list[Arrival]:
    """A few clients of every kind at once: short and long, patient and not, with weights and
    priorities, early and late."""
    made: list[Arrival] = []
    for n in range(rng.randrange(2, 7)):
        weight = rng.choice((0.5, 1.0, 1.0, 2.0, 3.0))
        prompt, output = rng.choice((1, 20, 300)), rng.choice((1, 8, 40))
        start, gap = rng.choice((0, SECOND, 5 * SECOND)), rng.choice((0, 50, 500, 3000))
        ats = [start + k * gap * 1_000_000 for k in range(rng.randrange(1, 16))]
        made += [
            msgspec.structs.replace(
                call,
                weight=weight,
                priority=rng.randrange(10),
                patience=rng.choice((0, 0, SECOND, 20 * SECOND)),
            )
            for call in calls(rng, f"m{n}", ats, prompt, output)
        ]
    return in_order(made)


def in_order(arrivals: list[Arrival]) -> list[Arrival]:
    return sorted(arrivals, key=lambda a: (a.at, a.client))
