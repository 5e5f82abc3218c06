"""Who said what in an attempt, and which words are nobody's to share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from isovist.kernel.learning.rules.generalise import content, said_openly
from isovist.kernel.learning.rules.wishes import is_wish, listed, marks
from isovist.kernel.learning.sentences import (
    looks_personal,
    sentences,
    speaks_of_person,
    states_private,
)
from isovist.kernel.state.lessons import Attempt
from isovist.storage.folding import fold
from isovist.syscalls.fence import spoken

MOST = 400_000
"""Characters of one text that are looked at, the last ones."""
_LEARNT = re.compile(r"^- When [^\n]{1,500}?: ([^\n]+)$", re.M)


class Spoken(NamedTuple):
    """An attempt's texts by who they are from.

    ``agent`` is the agent's own prose, the last turn last; ``user`` what the user said. ``public``
    are stems of unusual words that the task and the verifier use; ``tainted`` those of all that was
    said or read beside them; ``private`` those of lines about a person. ``wishes`` are the marks of
    what the user prefers.
    """

    agent: list[str]
    user: list[str]
    public: frozenset[str]
    tainted: frozenset[str]
    private: frozenset[str]
    wishes: list[frozenset[str]]


def spoken_in(attempt: Attempt) -> Spoken:
    """What was said in ``attempt``, told apart."""
    agent = [m.content for m in attempt.trajectory if m.role == "assistant" and m.content]
    if attempt.claim:
        agent.append(attempt.claim)
    user: list[str] = [attempt.task]
    tainted: set[str] = set()
    private: set[str] = set()
    delivered: list[str] = []
    seen: set[str] = set()
    for message in attempt.trajectory:
        if message.role == "assistant" or not message.content:
            continue
        text = fold(message.content).text
        if message.role == "user":
            user.append(_unlearned(spoken(text)))
        for line in text.split("\n"):
            if line not in seen:
                seen.add(line)
                words = content(line)
                tainted |= words
                if words and (looks_personal(line) or speaks_of_person(line)):
                    private |= words
        delivered += [m[1] for m in _LEARNT.finditer(text)]
    for sentence in sentences_of(attempt.task):
        if speaks_of_person(sentence, second=False) and states_private(sentence):
            private |= content(sentence)
    stated = [*delivered, *(one for text in user for one in wishes_of(text))]
    public = said_openly(fold(attempt.task).text) | said_openly(fold(attempt.tail).text)
    public -= private
    return Spoken(
        agent,
        user,
        frozenset(public),
        frozenset(tainted - public),
        frozenset(private),
        list(dict.fromkeys(map(marks, stated))),
    )


def _unlearned(text: str) -> str:
    """``text`` without lessons that were delivered with it: nobody said them."""
    kept = []
    inside = False
    for line in text.split("\n"):
        if line.startswith("# Learned memory:"):
            inside = True
        elif inside and line.strip() and not line.startswith(("- ", " ")):
            inside = False
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def sentences_of(text: str) -> list[str]:
    """The sentences of ``text``, folded."""
    text = fold(text[-MOST:]).text
    return [text[s.start : s.stop] for s in sentences(text)]


def wishes_of(text: str) -> Iterator[str]:
    """What a user's ``text`` states of lasting preferences."""
    yield from listed(fold(text[-MOST:]).text.split("\n"))
    yield from (sentence for sentence in sentences_of(text) if is_wish(sentence))
