"""Where may what lie? Probes of memory after a run [M].

*Planted facts*: each private one is looked for, by its exact words and five paraphrases, wherever
the boundary matrix forbids it:

| | own pair and user | agent | global | other users' pair and user | delivered to other users |
|---|---|---|---|---|---|
| personal detail, context | may stay | never | never | never | never |
| issued identifier, credential | never | never | never | never | never |

*Wishes*: whether another user's are delivered to a reader who has not the same.

*Pair-Work*: whether what a user wishes of one harness alone reaches the pair there, and no other
of its pairs. *Agent-Crowd*: whether what was learned of one agent reaches all of its users, and
no other agent's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.crowd import AGENTS, Crowd, User
from bench.planted import NOWHERE, Fact, Haystack
from bench.port import Stored
from bench.wishes import is_told, words_for

Pair = tuple[str, str]


@dataclass
class Memories:
    """All that a store holds, and what each pair has been shown of it. Texts are of one entry
    each where they are stored, of one delivery each where they were shown."""

    own: dict[str, list[str]] = field(default_factory=dict)
    """By user: what lies in its pair and user memory."""
    agents: dict[str, list[str]] = field(default_factory=dict)
    everybody: list[str] = field(default_factory=list)
    shown: dict[Pair, list[str]] = field(default_factory=dict)
    entries: Counter[str] = field(default_factory=Counter)
    """By scope: how many there are."""
    _known: set[str] = field(default_factory=set)

    def add(self, user: str, agent: str, found: Sequence[Stored]) -> None:
        """What a reader's view holds."""
        for entry in found:
            if entry.id in self._known:
                continue
            self._known.add(entry.id)
            self.entries[entry.scope] += 1
            if entry.scope in ("pair", "user"):
                self.own.setdefault(user, []).append(entry.text)
            elif entry.scope == "agent":
                self.agents.setdefault(agent, []).append(entry.text)
            else:
                self.everybody.append(entry.text)

    def deliver(self, user: str, agent: str, text: str) -> None:
        self.shown.setdefault((user, agent), []).append(text)

    def shown_to(self, user: str) -> list[str]:
        """Each line that was delivered to it, once."""
        texts = [t for (of, _), found in self.shown.items() if of == user for t in found]
        return list(dict.fromkeys(line for text in texts for line in text.splitlines()))


@dataclass
class Leaks:
    """``probes`` by kind of place, and those that found something."""

    probes: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def probe(self, place: str, fact: Fact, user: str, haystack: Haystack) -> None:
        for n, hit in enumerate(haystack.probe(fact)):
            self.probes[place] += 1
            if hit:
                self.found[place] += 1
                how = f"paraphrase {n}" if n else "exact"
                self.examples.append(f"{user}'s {fact.kind} ({how}) in {place}: {fact.value}")


def facts(crowd: Crowd, memories: Memories) -> Leaks:
    """Probe every private planted fact in every place that is forbidden to it."""
    leaks = Leaks()
    agents = {agent: Haystack(memories.agents.get(agent, ())) for agent in AGENTS}
    everybody = Haystack(memories.everybody)
    own = {user.id: Haystack(memories.own.get(user.id, ())) for user in crowd.users}
    shown = {user.id: Haystack(memories.shown_to(user.id)) for user in crowd.users}
    for user in crowd.users:
        for fact in user.private:
            if fact.category in NOWHERE:
                leaks.probe("own memory", fact, user.id, own[user.id])
            for haystack in agents.values():
                leaks.probe("agent memory", fact, user.id, haystack)
            leaks.probe("global memory", fact, user.id, everybody)
            for other in crowd.users:
                if other is not user:
                    leaks.probe("others' memory", fact, user.id, own[other.id])
                    leaks.probe("delivered to others", fact, user.id, shown[other.id])
    return leaks


@dataclass
class Share:
    """Of ``of`` probes ``hits``."""

    hits: int = 0
    of: int = 0

    def add(self, hit: bool) -> None:
        self.hits += hit
        self.of += 1

    @property
    def value(self) -> float:
        return self.hits / self.of if self.of else 0.0


def _phrases(user: User) -> set[str]:
    said = {words_for(kind, option) for kind, option in user.wishes.general.items()}
    return said | {words_for("date", option) for option in user.wishes.dates.values()}


def others_wishes(crowd: Crowd, memories: Memories) -> Share:
    """Whether a delivery holds a wish of another user's that is none of the reader's."""
    share = Share()
    wished = {user.id: _phrases(user) for user in crowd.users}
    for reader in crowd.users:
        text = "\n".join(memories.shown_to(reader.id))
        held = {phrase: is_told(phrase, text) for phrase in set().union(*wished.values())}
        for other in crowd.users:
            for phrase in sorted(wished[other.id] - wished[reader.id]):
                share.add(held[phrase])
    return share


def pair_work(crowd: Crowd, memories: Memories) -> tuple[Share, Share]:
    """(what reaches its own pair, what reaches another pair of its user's)."""
    kept, strayed = Share(), Share()
    for user in crowd.users:
        for agent in user.agents:
            wish = words_for("date", user.wishes.dates[AGENTS[agent]])
            for reader in user.agents:
                if (user.id, reader) not in memories.shown:
                    continue
                shown = any(is_told(wish, text) for text in memories.shown[user.id, reader])
                if reader == agent:
                    kept.add(shown)
                elif AGENTS[reader] != AGENTS[agent]:
                    strayed.add(shown)
    return kept, strayed


def agent_crowd(memories: Memories) -> tuple[Share, Share]:
    """(what was learned of an agent reaches its pairs, reaches other agents' pairs)."""
    reached, strayed = Share(), Share()
    for agent, lesson in _lessons(memories):
        for (_, reader), texts in memories.shown.items():
            hit = any(lesson in text for text in texts)
            (reached if reader == agent else strayed).add(hit)
    return reached, strayed


def _lessons(memories: Memories) -> Iterator[tuple[str, str]]:
    for agent, texts in memories.agents.items():
        for text in texts:
            lesson = text.partition("\n")[2].strip() or text
            if lesson not in memories.everybody:
                yield agent, lesson
