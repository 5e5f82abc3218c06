"""From the legs' lists to one score a unit.

Functions of what is listed: no index, no store, no clock. So an engine that scores all of a view
and one that only looks candidates up reach the same bits, if their lists are the same. Listed are
the units of both legs' lists, and the rounds before and after the ``HEADS`` best of these.

The blend was chosen on conversations (``bench recall``), where what answers a question stands
beside what is asked for, and where one session is about a few things:

    lexical'(u) = lexical(u) + 0.2 · (lexical(round before) + lexical(round after))
    own(u)      = 0.6 · minmax(lexical'(u)) + 0.4 · minmax(dense(u))
    score(u)    = (own(u) + 0.4 · max own over the session of u) / 1.4

Neither leg gates the other. The session's share moves no session's best unit, nor the order in
which sessions are first met: it only brings a good session's other units forward.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from isovist.storage.dense import Vector
from isovist.storage.fields import Field, Place, Scores, Slots

LEXICAL_WEIGHT = 0.6
DENSE_WEIGHT = 0.4
NEIGHBOUR_WEIGHT = 0.2
SESSION_WEIGHT = 0.4
HEADS = 16
"""Units, best first, whose neighbours are listed: more changed nothing."""
NEIGHBOUR_CHUNKS = 4
"""Chunks of a neighbour, from its first, that are looked at: it takes a bounded time."""

Fused = tuple[int, float, float]
"""A unit's chunk to show, its score in [0, 1], the cosine of its best chunk (−inf: no vector)."""


def fuse(
    field: Field, found: Sequence[int], near: Sequence[int], vector: Vector | None
) -> list[Fused]:
    """The units that both legs' lists lead to, each text once, best first.

    ``found`` and ``near`` are the legs' lists: one chunk a text, best first. A unit that both
    list has the score of its best chunk in each; one that a single leg lists is scored in the
    other by that same chunk, so no unit costs more than two look-ups however long it is. Without
    ``vector`` (``near`` is empty then) the dense leg adds nothing.
    """
    lexical_chunk = _by_text(field, found)
    dense_chunk = _by_text(field, near)
    shown = {**dense_chunk, **lexical_chunk}
    slots = list(shown.values())
    if not slots:
        return []
    lexical = field.scores(slots)
    dense = _cosines(field, vector, [dense_chunk.get(t, slot) for t, slot in shown.items()])

    heads = field.order(np.array(slots, dtype=np.intp), plain(lexical, dense))[:HEADS]
    beside = field.beside(heads, NEIGHBOUR_CHUNKS)
    texts = dict(zip(beside, field.texts(beside), strict=True))
    fresh = [slot for slot in beside if texts[slot] not in shown]
    if fresh:
        scores, cosines = field.scores(fresh), _cosines(field, vector, fresh)
        best: dict[Hashable, float] = {}
        for slot, cosine in zip(fresh, cosines.tolist(), strict=True):
            best[texts[slot]] = max(cosine, best.get(texts[slot], cosine))
        score_of = dict(zip(fresh, scores.tolist(), strict=True))
        more: dict[Hashable, int] = {}
        for slot in field.order(np.array(fresh, dtype=np.intp), scores):
            more.setdefault(texts[slot], slot)
        slots += more.values()
        lexical = np.append(lexical, [score_of[slot] for slot in more.values()])
        dense = np.append(dense, [best[text] for text in more])

    blended = blend(lexical, dense, Links(field.places(slots), lexical))
    known = {
        slot: (slot, score, cosine)
        for slot, score, cosine in zip(slots, blended.tolist(), dense.tolist(), strict=True)
    }
    return [known[slot] for slot in field.order(np.array(slots, dtype=np.intp), blended)]


def _by_text(field: Field, ranked: Sequence[int]) -> dict[Hashable, int]:
    """The best chunk of each text."""
    chunks: dict[Hashable, int] = {}
    for slot, text in zip(ranked, field.texts(ranked), strict=True):
        chunks.setdefault(text, slot)
    return chunks


def _cosines(field: Field, vector: Vector | None, slots: Sequence[int]) -> Scores:
    return np.full(len(slots), -np.inf) if vector is None else field.cosines(vector, slots)


class Links:
    """How listed units hang together.

    ``before[i]`` and ``after[i]`` are the unit that stands a round before and after unit ``i`` in
    its session, −1 where none is listed; ``sessions[i]`` numbers its session. A unit without a
    place (``None``) has a session of its own and no neighbour. Where several units share a place,
    the lexically best stands for it.
    """

    __slots__ = ("after", "before", "sessions")

    def __init__(self, places: Sequence[Place | None], lexical: Scores) -> None:
        numbers: dict[Hashable, int] = {}
        held: dict[Place, int] = {}
        sessions: list[int] = []
        for i, place in enumerate(places):
            key: Hashable = (place[0],) if place else i
            sessions.append(numbers.setdefault(key, len(numbers)))
            if place and place[1] and (place not in held or lexical[held[place]] < lexical[i]):
                held[place] = i
        self.before = self._beside(places, held, -1)
        self.after = self._beside(places, held, +1)
        self.sessions = np.array(sessions, dtype=np.intp)

    @staticmethod
    def _beside(places: Sequence[Place | None], held: dict[Place, int], step: int) -> Slots:
        found = (held.get((p[0], p[1] + step), -1) if p and p[1] else -1 for p in places)
        return np.fromiter(found, dtype=np.intp, count=len(places))


def plain(lexical: Scores, dense: Scores) -> Scores:
    """The blend of two legs alone, in [0, 1]: what picks the units whose neighbours are listed.

    ``lexical``: exact scores, 0 and more. ``dense``: cosines, −inf where there is no vector.
    """
    return LEXICAL_WEIGHT * normalised(lexical) + DENSE_WEIGHT * normalised(dense)


def blend(lexical: Scores, dense: Scores, links: Links) -> Scores:
    """One score in [0, 1] for each listed unit; arguments as for :func:`plain`.

    Its bits do not depend on the order of the units.
    """
    if not len(lexical):
        return np.zeros(0)
    padded = np.append(lexical, 0.0)  # index −1, no neighbour, is the zero at the end
    around = padded[links.before] + padded[links.after]
    own = plain(lexical + NEIGHBOUR_WEIGHT * around, dense)
    best = np.zeros(int(links.sessions.max()) + 1)
    np.maximum.at(best, links.sessions, own)
    score: Scores = (own + SESSION_WEIGHT * best[links.sessions]) / (1.0 + SESSION_WEIGHT)
    return score


def normalised(scores: Scores) -> Scores:
    """To [0, 1]; what has no score (−inf) gets 0. Where all are alike, 1 if they say anything."""
    if not len(scores):
        return np.zeros(0)
    low, high = scores.min(), scores.max()
    if low > -np.inf and high > low:
        whole: Scores = (scores - low) / (high - low)
        return whole
    known = scores > -np.inf
    result = np.zeros(len(scores))
    if known.any():
        values = scores[known]
        low, high = values.min(), values.max()
        result[known] = (values - low) / (high - low) if high > low else float(high > 0.0)
    return result
