"""Whether two texts say the same, for a writer by rules: by their content words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from isovist.kernel.learning.facts import words_of
from isovist.kernel.learning.lexicon import FUNCTION, stems
from isovist.kernel.learning.sentences import sentences

SAME = 0.8
_HEDGE = re.compile(r"\s*unverified\s*:", re.I)
_DENIES = re.compile(
    r"\b(?:not|no|never|don't|doesn't|do not|cannot|can't|without|avoid"
    r"|n't)\b",
    re.I,
)


def content(text: str) -> set[str]:
    """The stems of the content words of ``text``."""
    return set(stems([word for word in words_of(text) if word not in FUNCTION]))


def share(one: set[str], other: set[str]) -> float:
    """What part of all their words two texts have in common (Jaccard), 0 to 1."""
    return len(one & other) / len(one | other) if one | other else 0.0


def alike(one: str, other: str, least: float) -> bool:
    """Whether two texts have at least this part of their content words in common."""
    return share(content(one), content(other)) >= least


def hedged(lesson: str) -> bool:
    """Whether a lesson says that nobody has verified it."""
    return _HEDGE.match(lesson) is not None


def news(said: Sequence[str], text: str, least: float = SAME) -> tuple[str, ...]:
    """Those of the sentences ``said`` that no sentence of ``text`` says."""
    known = [(content(one), _denies(one)) for one in _sentences(text)]
    return tuple(
        one
        for one in said
        if not any(
            share(content(one), words) >= least and _denies(one) == denied
            for words, denied in known
        )
    )


def contradicts(sentence: str, text: str) -> bool:
    """Whether a sentence of ``text`` says the same with a *not*, or without the *not*."""
    words, denied = content(sentence), _denies(sentence)
    return any(
        share(words, content(one)) >= 0.7 and _denies(one) != denied for one in _sentences(text)
    )


def _denies(text: str) -> bool:
    return len(_DENIES.findall(text)) % 2 == 1


def _sentences(text: str) -> list[str]:
    return [text[one.start : one.stop] for one in sentences(text)]
