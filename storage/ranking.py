"""From the legs' lists to one ranking. A function of the view and the query, nothing else.

Each leg gives the chunks of its 50 best distinct texts [S 3.1] (``k`` where more are asked), of
the units that may answer at all: superseded, expired and filtered ones never take a place.

- ``bm25``, ``dense``: the leg's own order.
- ``rrf``: reciprocal rank fusion with constant 60 [S 3.1].
- ``hybrid``: a blend of scores, with what stands beside a good unit in its session: see
  :mod:`isovist.storage.fusion`. It found more evidence than any other way on every corpus.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from isovist.storage.dense import Vector
from isovist.storage.fields import Field, one_a_text
from isovist.storage.fusion import fuse
from isovist.syscalls.operations import SearchQuery

DEPTH = 50
CONSTANT = 60

Ranked = tuple[int, float, float]
"""A chunk's slot in the field, its score, its cosine (0 where the dense leg took no part)."""


def rank(field: Field, query: SearchQuery, vector: Vector | None) -> list[Ranked]:
    """The best chunks of the ``k`` best distinct texts, best first."""
    if not field.size:
        return []
    depth = max(DEPTH, query.k)
    mode = query.mode
    near = field.near(vector, depth) if vector is not None and mode != "bm25" else []
    found = field.found(depth) if mode != "dense" else []
    if mode == "hybrid":
        fused = fuse(field, found, near, vector)[: query.k]
        return [(slot, score, _shown(cosine)) for slot, score, cosine in fused]
    if mode == "bm25":
        best = found[: query.k]
        return [
            (slot, score, 0.0)
            for slot, score in zip(best, field.scores(best).tolist(), strict=True)
        ]
    if mode == "rrf":
        scores = _reciprocal(field, found, near)
        slots = np.array(list(scores), dtype=np.intp)
        best = one_a_text(field, field.order(slots, np.array(list(scores.values()))), query.k)
    else:
        best, scores = near[: query.k], {}
    cosines = [-np.inf] * len(best) if vector is None else field.cosines(vector, best).tolist()
    return [
        (slot, scores.get(slot, cosine), _shown(cosine))
        for slot, cosine in zip(best, cosines, strict=True)
    ]


def _shown(cosine: float) -> float:
    """Within [-1, 1] in spite of rounding; 0 for a chunk that has no vector yet."""
    return min(1.0, max(-1.0, cosine)) if cosine > -np.inf else 0.0


def _reciprocal(field: Field, found: list[int], near: list[int]) -> dict[int, float]:
    """By text, since the legs may have met different chunks or copies of it; the lexical leg's
    chunk is the one shown."""
    shown: dict[Hashable, int] = {}
    fused: dict[Hashable, float] = {}
    for ranked in (found, near):
        for place, (slot, key) in enumerate(zip(ranked, field.texts(ranked), strict=True), start=1):
            shown.setdefault(key, slot)
            fused[key] = fused.get(key, 0.0) + 1.0 / (CONSTANT + place)
    return {shown[key]: score for key, score in fused.items()}
