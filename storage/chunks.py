"""A unit's text in pieces short enough to find, embed and show [S 3.3].

A text of at most 1,000 characters is one chunk. A longer one is cut at the end of a sentence,
else of a word, else between two graphemes, and neighbours overlap by up to 200 characters. Each
continuation repeats the start of the text (of a conversation round: the start of the user's
turn), so that a piece found alone still says what it belongs to.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache

import msgspec
import regex  # type: ignore[import-untyped] # the package ships no stubs

LIMIT = 1000
"""Characters in a chunk, its repeated start included."""
OVERLAP = 200
"""Characters at most that two neighbours share."""
HEAD = 160
"""Characters at most of the start that a continuation repeats."""
GAP = " … "
"""Stands between the repeated start and the continuation."""

_SENTENCE = regex.compile(r"(?:[.!?…]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*\s*|\n\s*)")
_SPACE = regex.compile(r"\s+")
_GRAPHEME = regex.compile(r"\X")


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A chunk by its places in the text: ``text[:head]``, then ``text[start:stop]``."""

    head: int
    start: int
    stop: int

    def cut(self, text: str) -> str:
        """The chunk as it is shown."""
        piece = text[self.start : self.stop]
        return text[: self.head] + GAP + piece if self.head else piece


def spans(text: str) -> tuple[Span, ...]:
    """The chunks of ``text`` in order.

    Invariants: each is at most ``LIMIT`` characters; together they cover the text; each starts
    after its neighbour started and ends after it ended. A cut never splits a grapheme, unless
    that grapheme alone is longer than half a chunk.
    """
    if len(text) <= LIMIT:
        return (Span(0, 0, len(text)),)
    head = _latest(text, 0, HEAD // 2, HEAD)
    found: list[Span] = []
    start = 0
    while True:
        prefix = head if found else 0
        room = LIMIT - (prefix + len(GAP) if prefix else 0)
        if len(text) - start <= room:
            found.append(Span(prefix, start, len(text)))
            return tuple(found)
        stop = start + _latest(text, start, room // 2, room)
        found.append(Span(prefix, start, stop))
        start += _earliest(text[start:stop], stop - start - OVERLAP)


def _bounds(text: str) -> list[int]:
    """Where a grapheme ends."""
    return _ends(_GRAPHEME, text)


def _ends(pattern: regex.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in pattern.finditer(text)]


def _latest(text: str, start: int, low: int, high: int) -> int:
    """The last good place to cut ``text[start:]``, in (low, high] from ``start``."""
    window = text[start : start + high + 1]
    whole = {b for b in _bounds(window) if b <= high}
    for pattern in (_SENTENCE, _SPACE):
        ends = whole.intersection(_ends(pattern, window))
        if good := [end for end in ends if low < end <= high]:
            return max(good)
    return max((b for b in whole if b > low), default=high)


def _earliest(piece: str, low: int) -> int:
    """The first good place in [low, len(piece)] to start the next chunk of ``piece``."""
    whole = set(_bounds(piece))
    for pattern in (_SENTENCE, _SPACE):
        ends = whole.intersection(_ends(pattern, piece))
        if good := [end for end in ends if end >= low]:
            return min(good)
    return min((b for b in whole if b >= low), default=len(piece))


def dated(chunk: str, said_at: int) -> str:
    """The chunk as it is indexed and embedded: the day it was said (UTC) in figures and in
    words, then its text. On LoCoMo the date is worth two points of recall.

    ``said_at`` in nanoseconds since 1970; a time outside the calendar's range adds nothing.
    """
    day = _day(said_at // 86_400_000_000_000)
    return f"[{day}] {chunk}" if day else chunk


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


@lru_cache(maxsize=4096)
def _day(number: int) -> str:
    try:
        day = datetime(1970, 1, 1) + timedelta(days=number)
    except OverflowError:
        return ""
    return f"{day.date().isoformat()}, {day.day} {_MONTHS[day.month - 1]} {day.year}"
