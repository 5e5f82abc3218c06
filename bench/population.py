"""A population as it occurs: who there is, who is with whom, and how much each place holds.

1,000 users with 7 agents each; 10 groups of users and 10 of agents, whose members are drawn. A
partition's size falls with its rank (Zipf, exponent 1.6): the ranks are drawn within three tiers,
what groups of users share with groups of agents or with all agents first, then what is open to
all users or meant for one agent's work with a group, then the 8,000 private ones (each pair, and
each user with all agents). Sizes are drawn from that law, so most private partitions are small
and many are empty. One user and one agent are in every group: nobody sees all, since nobody sees
others' private partitions, but they see nearly all.

A unit is a short fact: 24 to 56 words of a Zipf vocabulary of made-up words, two of five from the
vocabulary of its topic. Its vector is its topic's direction with noise, of 384 dimensions whose
spread falls as it does in sentence vectors, so both legs agree somewhat. Measured beside 7,309
vectors of an embedder of real conversations: effective dimensions (participation ratio) 60 and
56, intrinsic dimension near a point 20 and 12, cosine of the tenth neighbour 0.6 and 0.7: these
here are the harder ones for a graph. A question takes words and direction of a unit in view and
blurs both, so the unit is often but not always its best answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.text import made_up
from isovist.kernel.state.views import Membership, view_of
from isovist.storage.chunks import dated
from isovist.storage.words import index_terms, query_terms
from isovist.syscalls.records import ALL, Axis, Partition, Reader, View

USERS, AGENTS, GROUPS = 1000, 7, 10
"""``GROUPS`` of users, and as many of agents."""
EXPONENT = 1.6
DIM = 384
TOPICS, TOPIC_WORDS, VOCABULARY = 1000, 200, 30_000
SHORTEST, LONGEST = 24, 56
TOPICAL = 0.4
"""Share of a unit's words that are its topic's."""
NEAR = 0.65
"""Share of a vector's square that is its topic's."""
BLUR = 0.5
"""Length of what a question adds to its unit's vector."""
ASKED = 10
"""Words of a question; two of them are not its unit's."""
BLOCK = 16_384
NOBODY = (1 << 16) - 1
"""Stands where a short unit has no more words."""
BEGAN = 1_735_689_600 * 10**9
"""When the first unit was said (2025, ns since 1970); the last was a year later."""
YEAR = 365 * 86_400 * 10**9

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Seat:
    """A reader, its view, and what the view holds of all units."""

    name: str
    view: View
    share: float
    members: NDArray[np.bool_]
    """By unit: whether it is in view."""
    places: tuple[int, ...]
    """Partitions in view that hold anything, by index."""


@dataclass(frozen=True)
class Question:
    text: str
    words: tuple[int, ...]
    vector: Vectors


class Population:
    """``units`` facts of one seed. What is large is drawn once, into ``folder``."""

    def __init__(self, units: int, seed: int, folder: Path) -> None:
        self.units = units
        self.seed = seed
        self._folder = folder
        rng = np.random.default_rng([seed, 1])
        names = random.Random(f"population {seed}")
        self._memberships = {
            of: _groups(rng, members) for of, members in (("user", USERS), ("agent", AGENTS))
        }
        self.partitions = _ranked(rng)
        law = np.arange(1, len(self.partitions) + 1, dtype=float) ** -EXPONENT
        self.sizes = rng.multinomial(units, law / law.sum())
        self.place = rng.permutation(np.repeat(np.arange(len(law)), self.sizes))
        """By unit: the index of its partition."""
        self.vocabulary = _vocabulary(names)
        self._frequent = _cumulated(VOCABULARY)
        self._topical = _cumulated(TOPIC_WORDS)
        self._topics = _cumulated(TOPICS)
        self._topic_words = rng.integers(0, VOCABULARY, (TOPICS, TOPIC_WORDS))
        spread = 1 / (1 + np.arange(DIM) / 32)
        self._spread = (spread / np.linalg.norm(spread)).astype(np.float32)
        turned = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)
        self._turned = turned
        self._centres = _unit(rng.standard_normal((TOPICS, DIM), np.float32) * self._spread)

    # -- units

    def draw(self) -> Iterator[int]:
        """Draw what is not there yet; says how many units are."""
        done = self._folder / "drawn"
        if done.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        words = np.lib.format.open_memmap(
            self._folder / "words.npy", "w+", np.uint16, (self.units, LONGEST)
        )
        vectors = np.lib.format.open_memmap(
            self._folder / "vectors.npy", "w+", np.float16, (self.units, DIM)
        )
        for start in range(0, self.units, BLOCK):
            size = min(BLOCK, self.units - start)
            rng = np.random.default_rng([self.seed, 2, start])
            topics = _drawn(rng, self._topics, size)
            drawn = _drawn(rng, self._frequent, (size, LONGEST))
            special = self._topic_words[
                topics[:, None], _drawn(rng, self._topical, (size, LONGEST))
            ]
            drawn = np.where(rng.random((size, LONGEST)) < TOPICAL, special, drawn)
            lengths = rng.integers(SHORTEST, LONGEST + 1, size)
            drawn[np.arange(LONGEST) >= lengths[:, None]] = NOBODY
            words[start : start + size] = drawn
            noise = rng.standard_normal((size, DIM), np.float32) * self._spread
            mixed = NEAR**0.5 * self._centres[topics] + (1 - NEAR) ** 0.5 * noise
            vectors[start : start + size] = _unit(mixed @ self._turned)
            yield start + size
        words.flush()
        vectors.flush()
        done.touch()

    @cached_property
    def words(self) -> NDArray[np.uint16]:
        """By unit: its words' numbers, then ``NOBODY``."""
        found: NDArray[np.uint16] = np.load(self._folder / "words.npy", mmap_mode="r")
        return found

    @cached_property
    def vectors(self) -> NDArray[np.float16]:
        found: NDArray[np.float16] = np.load(self._folder / "vectors.npy", mmap_mode="r")
        return found

    def text(self, unit: int) -> str:
        row = self.words[unit]
        return " ".join([self.vocabulary[word] for word in row[row != NOBODY].tolist()])

    def said_at(self, unit: int) -> int:
        return BEGAN + YEAR * unit // self.units

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """By unit: its terms as indexed, those of its date included."""
        days = np.array([self.said_at(n) // (86_400 * 10**9) for n in range(self.units)])
        dates = {
            day: sum(index_terms(dated("", day * 86_400 * 10**9)).values())
            for day in np.unique(days).tolist()
        }
        known, which = np.unique(days, return_inverse=True)
        own = np.array([dates[day] for day in known.tolist()], dtype=np.int64)
        words: NDArray[np.int64] = (np.asarray(self.words) != NOBODY).sum(axis=1)
        return words + own[which]

    def owner(self, unit: int) -> tuple[str, str]:
        """The user and the agent whose unit it is: of those that its partition admits, one."""
        partition = self.partitions[self.place[unit]]
        return self._one("user", partition.users, unit), self._one("agent", partition.agents, unit)

    def _one(self, of: str, axis: Axis, unit: int) -> str:
        if axis.kind == "one":
            return axis.name
        if axis.kind == "all":
            return f"{of}{unit % (USERS if of == 'user' else AGENTS)}"
        among = self._members[axis.name]
        return among[unit % len(among)]

    @cached_property
    def _members(self) -> dict[str, list[str]]:
        """By group: who is in it."""
        found: dict[str, list[str]] = {}
        for memberships in self._memberships.values():
            for name, groups in memberships.items():
                for group in groups:
                    found.setdefault(group, []).append(name)
        return found

    # -- readers

    def seats(self, shares: dict[str, float]) -> list[Seat]:
        """For each share of the units the reader whose view comes nearest to it."""
        place = {partition: n for n, partition in enumerate(self.partitions)}
        held: dict[Reader, float] = {}
        for user in self._memberships["user"]:
            for agent in self._memberships["agent"]:
                reader = Reader(user, agent)
                known = [place[p] for p in self._view(reader).partitions if p in place]
                held[reader] = float(self.sizes[known].sum()) / self.units
        seats = []
        for name, share in shares.items():
            reader = min(held, key=lambda reader: abs(held[reader] - share))
            view = self._view(reader)
            known = [place[p] for p in view.partitions if p in place and self.sizes[place[p]]]
            members = np.isin(self.place, known)
            seats.append(Seat(name, view, held[reader], members, tuple(known)))
        return seats

    def membership(self, reader: Reader) -> Membership:
        return Membership(
            self._memberships["user"][reader.user], self._memberships["agent"][reader.agent]
        )

    def _view(self, reader: Reader) -> View:
        return view_of(reader, self.membership(reader))

    # -- questions

    def questions(self, seat: Seat, count: int, *, draw: int = 0) -> list[Question]:
        """About units in view; another ``draw`` gives others."""
        rng = np.random.default_rng([self.seed, 3, draw, int(seat.share * 1e6)])
        about = rng.choice(np.flatnonzero(seat.members), count)
        questions = []
        for unit in about.tolist():
            row = self.words[unit]
            own = np.unique(row[row != NOBODY])
            rng.shuffle(own)
            others = _drawn(rng, self._frequent, 2)
            words = tuple(dict.fromkeys([*own[: ASKED - 2].tolist(), *others.tolist()]))
            noise = _unit(rng.standard_normal((1, DIM), np.float32) * self._spread) @ self._turned
            blurred = self.vectors[unit][None].astype(np.float32) + np.float32(BLUR) * noise
            vector = _unit(np.asarray(blurred, np.float32))[0]
            text = " ".join(self.vocabulary[word] for word in words)
            questions.append(Question(text, words, np.ascontiguousarray(vector, np.float32)))
        return questions


def _groups(rng: np.random.Generator, members: int) -> dict[str, tuple[str, ...]]:
    """By name: the groups it is in, sorted. The first is in all; of the others most are in few,
    some in many."""
    of = "user" if members == USERS else "agent"
    names = [f"{of}s{n}" for n in range(GROUPS)]
    joins = rng.random((members, GROUPS)) < rng.beta(0.6, 1.4, (members, 1))
    joins[0] = True
    return {
        f"{of}{n}": tuple(name for name, joined in zip(names, row, strict=True) if joined)
        for n, row in enumerate(joins.tolist())
    }


def _ranked(rng: np.random.Generator) -> list[Partition]:
    """All partitions that are used, the largest first."""
    users, agents = (
        [Axis("one", f"{of}{n}") for n in range(count)]
        for of, count in (("user", USERS), ("agent", AGENTS))
    )
    teams, crews = ([Axis("group", f"{of}s{n}") for n in range(GROUPS)] for of in ("user", "agent"))
    tiers = [
        [Partition(team, crew) for team in teams for crew in (*crews, ALL)],
        [Partition(ALL, axis) for axis in (*agents, *crews, ALL)]
        + [Partition(team, agent) for team in teams for agent in agents],
        [Partition(user, axis) for user in users for axis in (*agents, ALL)],
    ]
    return [tier[n] for tier in tiers for n in rng.permutation(len(tier))]


def _vocabulary(names: random.Random) -> list[str]:
    """Words that are each one term, and none another's."""
    words: dict[str, str] = {}
    dates = index_terms(" ".join(dated("", BEGAN + n * YEAR // 365) for n in range(366)))
    while len(words) < VOCABULARY:
        word = made_up(names, names.choice((1, 2, 2, 2, 3)))
        terms = query_terms(word)
        if len(terms) == 1 and terms[0] not in dates and query_terms(f"{word} zq") != ["zq"]:
            words.setdefault(terms[0], word)
    return list(words.values())


def _cumulated(count: int) -> NDArray[np.float64]:
    weights = np.cumsum(1 / (np.arange(count) + 3))
    return np.asarray(weights / weights[-1])


def _drawn(rng: np.random.Generator, cumulated: NDArray[np.float64], shape: Any) -> Any:
    return np.searchsorted(cumulated, rng.random(shape), side="right")


def _unit(rows: Vectors) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
