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

MOST = 200_000
"""Characters of the agent's own words that are looked at, the last ones."""
AT_ONCE = 20_000
"""Of a task, of a verifier's words, and of either end of what a user says at once. All that a user
says and all that is read beside is looked at for what it taints."""
_LEARNT = re.compile(r"^- When [^\n]{1,500}?: ([^\n]+)$", re.M)


class Spoken(NamedTuple):
    """An attempt's texts by who they are from.

    ``agent`` are sentences of the agent's own, by turn, the last turn first; ``user`` those of the
    user, ``stated`` what of them are wishes; ``task`` and ``tail`` as they were given. ``public``
    are stems of unusual words that the task and the verifier use; ``tainted`` those of all that
    was said or read beside them; ``private`` those of lines about a person. ``wishes`` are the
    marks of what the user prefers.
    """

    agent: list[list[str]]
    user: list[str]
    stated: list[str]
    task: str
    tail: str
    public: frozenset[str]
    tainted: frozenset[str]
    private: frozenset[str]
    wishes: list[frozenset[str]]


def spoken_in(attempt: Attempt) -> Spoken:
    """What was said in ``attempt``, told apart."""
    task = fold(attempt.task[:AT_ONCE]).text
    tail = fold(attempt.tail[-AT_ONCE:]).text
    turns = [task]
    tainted: set[str] = set()
    private: set[str] = set()
    delivered: list[str] = []
    seen: set[str] = set()
    for message in attempt.trajectory:
        if message.role == "assistant" or not message.content:
            continue
        text = fold(message.content).text
        if message.role == "user":
            turns.append(_ends(_unlearned(spoken(text))))
        for line in text.split("\n"):
            if line not in seen:
                seen.add(line)
                words = content(line)
                tainted |= words
                if words and message.role != "user" and _of_somebody(line):
                    private |= words
        delivered += [m[1] for m in _LEARNT.finditer(text)]
    said = list(dict.fromkeys(one for turn in turns for one in sentences_of(turn)))
    for sentence in said:
        personal = looks_personal(sentence)
        if states_private(sentence) or speaks_of_person(sentence, first=personal, second=False):
            private |= content(sentence)
    stated = list(dict.fromkeys(one for turn in turns for one in wishes_of(turn)))
    public = (said_openly(task) | said_openly(tail)) - private
    return Spoken(
        agent=list(_own(attempt)),
        user=said,
        stated=stated,
        task=task,
        tail=tail,
        public=frozenset(public),
        tainted=frozenset(tainted - public),
        private=frozenset(private),
        wishes=list(dict.fromkeys(map(marks, (*delivered, *stated)))),
    )


def _of_somebody(line: str) -> bool:
    return looks_personal(line) or speaks_of_person(line, second=False)


def _own(attempt: Attempt) -> Iterator[list[str]]:
    """The sentences of the agent's turns, the last turn first; its claim belongs to that."""
    left = MOST
    own = [m.content for m in attempt.trajectory if m.role == "assistant" and m.content]
    if attempt.claim:
        own[-1:] = [f"{own[-1] if own else ''}\n\n{attempt.claim}"]
    for text in reversed(own):
        if left > 0:
            yield sentences_of(fold(text[-left:]).text)
            left -= len(text)


def _ends(text: str) -> str:
    """Both ends of what was said at once: between them stands what was pasted."""
    if len(text) <= 2 * AT_ONCE:
        return text
    return f"{text[:AT_ONCE]}\n\n{text[-AT_ONCE:]}"


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
    """The sentences of ``text``."""
    return [text[s.start : s.stop] for s in sentences(text)]


def wishes_of(text: str) -> Iterator[str]:
    """What a user's ``text`` states of lasting preferences."""
    yield from listed(text.split("\n"))
    yield from (sentence for sentence in sentences_of(text) if is_wish(sentence))
