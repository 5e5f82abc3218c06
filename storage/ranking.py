"""From the legs' lists to one ranking. A function of the view and the query, nothing else.

Each leg gives the chunks of its 50 best distinct texts [S 3.1] (``k`` where more are asked), of
the units that may answer at all: superseded, expired and filtered ones never take a place.

- ``bm25``, ``dense``: the leg's own order.
- ``rrf``: reciprocal rank fusion with constant 60 [S 3.1].
- ``hybrid``: 0.6 lexical + 0.4 dense, each min-max normalised over the union of both lists, where
  each chunk has its true score in both legs. Score fusion found more evidence than rank fusion
  on LoCoMo at every size of context.

Neither leg gates the other: a text that only one leg knows is ranked with 0 from the other. A
unit's score is its best chunk's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isovist.storage.dense import Vector
from isovist.storage.field import Field, Scores
from isovist.storage.lexical import Lexical
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import Mode

DEPTH = 50
CONSTANT = 60
LEXICAL_WEIGHT = 0.6
DENSE_WEIGHT = 0.4

Ranked = tuple[int, float, float]
"""A chunk's slot in the field, its score, its cosine (0 where the dense leg took no part)."""


def rank(field: Field, query: SearchQuery, lexical: Lexical, vector: Vector | None) -> list[Ranked]:
    """The best chunks of the ``k`` best distinct texts, best first."""
    if not field.size:
        return []
    allowed = field.allowed(query)
    depth = max(DEPTH, query.k)
    mode: Mode = query.mode
    near: list[int] = []
    cosines: dict[int, float] = {}
    if vector is not None and mode != "bm25":
        near, cosines = field.nearest(vector, allowed, depth)
    if mode == "dense":
        return [(slot, cosines[slot], _shown(cosines[slot])) for slot in near[: query.k]]
    scores = lexical.scores()
    found = field.best(scores, allowed, depth)
    if mode == "bm25":
        return [(slot, float(scores[slot]), 0.0) for slot in found[: query.k]]
    if vector is not None:
        unknown = np.array(sorted(s for s in found if s not in cosines), dtype=np.intp)
        if len(unknown):
            rest = field.cosines(vector, unknown)
            cosines.update(zip(unknown.tolist(), rest.tolist(), strict=True))
    if mode == "rrf":
        fused = _reciprocal(field, found, near)
    else:
        fused = _blend(found, near, scores, cosines)
    slots = np.array(list(fused), dtype=np.intp)
    ranked = field.order(slots, np.array(list(fused.values())))
    return [
        (slot, fused[slot], _shown(cosines.get(slot, -np.inf)))
        for slot in field.distinct(ranked, query.k)
    ]


def _shown(cosine: float) -> float:
    """Within [-1, 1] in spite of rounding; 0 for a chunk that has no vector yet."""
    return min(1.0, max(-1.0, cosine)) if cosine > -np.inf else 0.0


def _blend(
    found: list[int], near: list[int], scores: Scores, cosines: dict[int, float]
) -> dict[int, float]:
    union = list(dict.fromkeys((*found, *near)))
    sparse = _normalised(scores[union])
    dense = _normalised(np.array([cosines.get(slot, -np.inf) for slot in union]))
    blend = LEXICAL_WEIGHT * sparse + DENSE_WEIGHT * dense
    return dict(zip(union, blend.tolist(), strict=True))


def _normalised(scores: Scores) -> Scores:
    """To [0, 1]; what has no score (−inf) gets 0. Where all are alike, 1 if they say anything."""
    known: NDArray[np.bool_] = scores > -np.inf
    result = np.zeros(len(scores))
    if known.any():
        values = scores[known]
        low, high = values.min(), values.max()
        result[known] = (values - low) / (high - low) if high > low else float(high > 0.0)
    return result


def _reciprocal(field: Field, found: list[int], near: list[int]) -> dict[int, float]:
    """By text, since the legs may have met different chunks or copies of it; the lexical leg's
    chunk is the one shown."""
    shown: dict[str, int] = {}
    fused: dict[str, float] = {}
    for ranked in (found, near):
        for place, slot in enumerate(ranked, start=1):
            key = field.holder(slot).hash
            shown.setdefault(key, slot)
            fused[key] = fused.get(key, 0.0) + 1.0 / (CONSTANT + place)
    return {shown[key]: score for key, score in fused.items()}
