"""The judge that needs no model: it re-scopes and merges where words alone leave no doubt.

It does a smaller job than a good model, and an honest one. It merges what says the same in nearly
the same words (:func:`isovist.kernel.learning.likeness.same`) and keeps the wording of one of the
parts. It narrows what says itself that it is about one person or one agent, and widens only what
others have found as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import trio

from isovist.kernel.learning.likeness import features, same
from isovist.kernel.learning.review import STEPS, WIDER, Batch, Spent, Step, Union
from isovist.kernel.state.lessons import CAP
from isovist.syscalls.records import Stream

_PERSON = re.compile(
    r"\b(?:this user(?:'s)?|she|he|his|hers|him|(?:user|client|customer)(?:'s)?"
    r" (?:prefer(?:s|red|ences?)|like[sd]?|dislike[sd]?|want(?:s|ed)|wish(?:es)?|sign(?:s|ed) off)"
    r"|prefers|preferences?|dislikes)\b",
    re.IGNORECASE,
)
"""A person's convention or wish. "The user" alone may be anybody."""
_SPEAKER = re.compile(r"\b(?:my|mine)\b", re.IGNORECASE)
"""Who speaks: in the protected stream the person, in the reusable one the agent, of its tools."""
_AGENT = re.compile(
    r"\b(?:this (?:agent|harness|assistant|sandbox|model|program|runtime|tool ?set)(?:'s)?"
    r"|(?:your|its|the) own (?:agent|harness|sandbox|tool ?set|system prompt|context window))\b",
    re.IGNORECASE,
)
"""One agent's quirk or surroundings."""


class RuleJudge:
    """A :class:`~isovist.kernel.learning.review.Judge` by rules. Works in a thread of its own."""

    def __init__(self) -> None:
        self.spent = Spent()

    async def steps(self, batch: Batch) -> Sequence[Step]:
        return _steps(batch)

    async def unions(self, batch: Batch) -> Sequence[Union]:
        return await trio.to_thread.run_sync(_unions, batch)


def _steps(batch: Batch) -> list[Step]:
    steps: list[Step] = []
    for number, said in enumerate(batch.entries):
        to = step_toward(
            batch.scope, belongs(f"{said.situation}. {said.lesson}", batch.stream), batch.stream
        )
        if to:
            # That nothing is said of a person or an agent does not prove that none is meant.
            steps.append(Step(number, to, sure=to not in WIDER[batch.scope]))
    return steps


def belongs(text: str, stream: Stream = "protected") -> str:
    """The scope of what ``text`` says [M]: a person's convention is the user's, one agent's quirk
    the agent's, a person's wish for one agent the pair's, all else everybody's."""
    person, agent = bool(_PERSON.search(text)), bool(_AGENT.search(text))
    if _SPEAKER.search(text):
        person, agent = person or stream == "protected", agent or stream == "reusable"
    if person:
        return "pair" if agent else "user"
    return "agent" if agent else "global"


def step_toward(scope: str, to: str, stream: Stream) -> str:
    """The next scope on the way from ``scope`` to ``to`` under the cap, or none. Where there are
    two ways, the one that reaches other users last, and leaves them first."""
    if scope == to or scope not in STEPS:
        return ""
    way = to if to in STEPS[scope] else STEPS[scope][0]
    return way if way in CAP[stream] else ""


def _unions(batch: Batch) -> list[Union]:
    known = [features(said.situation, said.lesson) for said in batch.entries]
    groups: list[list[int]] = []
    for number, one in enumerate(known):
        for group in groups:
            if all(same(one, known[other]) for other in group):
                group.append(number)
                break
        else:
            groups.append([number])
    unions: list[Union] = []
    for group in groups:
        if len(group) > 1:
            # All say the same, so one of them says it all: the fullest, in the fewest letters.
            best = min(group, key=lambda n: (-len(known[n].words), _length(batch, n), n))
            said = batch.entries[best]
            unions.append(Union(tuple(group), said.situation, said.lesson))
    return unions


def _length(batch: Batch, number: int) -> int:
    return len(batch.entries[number].situation) + len(batch.entries[number].lesson)
