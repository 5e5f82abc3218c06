"""Seeded text: sentences whose words are as unequally frequent as those of real ones.

A word's frequency falls with its rank (Zipf). The frequent ones are English, the rare tail are
compounds of those; so postings are as long, and words take as many pieces of an embedder's
vocabulary, as in notes that people write.
"""

from __future__ import annotations

import random
from itertools import accumulate


def words_of(text: str) -> list[str]:
    """Those that blanks separate: a long list, written short."""
    return text.split()


_FREQUENT = words_of(
    "the to a and of in is it on for we that with at be have this as but not will are from or by "
    "after before she he they you about when next last week team review report meeting plan "
    "project client order invoice budget server office train ticket station garden kitchen "
    "window table music lesson teacher student school paper letter phone number colour green "
    "blue red white black morning evening monday tuesday friday weekend summer winter spring "
    "coffee bread dinner lunch recipe market price store friend sister brother mother doctor "
    "street house room door key box bag car bicycle road bridge river lake mountain city town "
    "village country language book chapter page story film picture camera screen printer "
    "keyboard file folder backup test release branch build bug fix change version note list "
    "question answer reason problem solution idea decision date time hour minute day month year "
    "start end begin finish send receive bring take give find look need want like prefer ask "
    "tell call write read learn remember forget travel visit meet move open close repair clean "
    "cook paint sing play run walk swim sleep wait work pay buy sell save spend lose win small "
    "large old new early late quick slow easy hard quiet loud warm cold dry wet first second"
)
_ONSETS = words_of("b br c d dr f fl g gr h j k kl l m n p pl qu r s sk st t tr v w z")
_VOWELS = words_of("a e i o u ai ea oo ou")
_CODAS = words_of("l m n nd r rk s st th x ck mp")
TAIL = 20_000
"""Compounds behind the plain words."""


def made_up(random: random.Random, syllables: int = 2) -> str:
    """A word that no dictionary holds."""
    parts = [random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(syllables)]
    return "".join(parts) + random.choice(_CODAS)


class Writer:
    """Writes notes and questions about nothing; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"text {seed}")
        pairs = self._random.sample(range(len(_FREQUENT) ** 2), TAIL)
        tail = (_FREQUENT[p // len(_FREQUENT)] + _FREQUENT[p % len(_FREQUENT)] for p in pairs)
        self._words = [*_FREQUENT, *tail]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(len(self._words))))

    def _draw(self, low: int, high: int) -> str:
        count = self._random.randint(low, high)
        return " ".join(self._random.choices(self._words, cum_weights=self._weights, k=count))

    def note(self) -> str:
        """12 to 28 words."""
        return self._draw(12, 28).capitalize() + "."

    def question(self) -> str:
        """7 to 11 words; two of 10,000 are hardly ever the same."""
        return "What about " + self._draw(5, 9) + "?"
