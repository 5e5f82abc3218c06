"""What one query looks at: the chunks of its view, whichever engine holds them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isovist.storage.dense import Vector

Slots = NDArray[np.intp]
Scores = NDArray[np.float64]

Place = tuple[Hashable, int]
"""A unit's session (with its partition) and its round; round 0 is no place in the session."""


class Field(Protocol):
    """The chunks of one view, by slot, with both legs' exact scores.

    Invariants: slots are given out only of units that may answer (alive, in force, in the asked
    times and kinds); every order is by score, then the place of the partition in the view, then
    newest sequence, then chunk: a total order that no slot number enters.
    """

    size: int
    """The number of slots."""

    def found(self, depth: int) -> list[int]:
        """The lexically best chunks of the ``depth`` best distinct texts, best first."""
        ...

    def near(self, vector: Vector, depth: int) -> list[int]:
        """The nearest chunks of the ``depth`` nearest distinct texts, best first."""
        ...

    def scores(self, slots: Sequence[int]) -> Scores:
        """Exact BM25 under the view's statistics; 0 where no term of the query stands."""
        ...

    def coverage(self, slots: Sequence[int]) -> list[float]:
        """The share in [0, 1] of the query's idf mass that each chunk holds."""
        ...

    def cosines(self, vector: Vector, slots: Sequence[int]) -> Scores:
        """Exact cosines; −inf where there is no vector yet."""
        ...

    def order(self, slots: Slots, scores: Scores) -> list[int]:
        """``slots`` best first; ``scores`` are theirs."""
        ...

    def texts(self, slots: Sequence[int]) -> Sequence[Hashable]:
        """What two slots have in common iff their units' texts are the same."""
        ...

    def places(self, slots: Sequence[int]) -> Sequence[Place | None]:
        """Where each slot's unit stands in its session; ``None`` without one."""
        ...

    def beside(self, slots: Sequence[int], chunks: int) -> list[int]:
        """The first ``chunks`` chunks of each unit that stands a round before or after one of
        ``slots``, in its session and partition, and may answer; none twice."""
        ...


def one_a_text(field: Field, ranked: Sequence[int], limit: int) -> list[int]:
    """The first chunk of each of the first ``limit`` distinct texts."""
    seen: set[Hashable] = set()
    kept: list[int] = []
    for start in range(0, len(ranked), 2 * limit):
        some = ranked[start : start + 2 * limit]
        for slot, key in zip(some, field.texts(some), strict=True):
            if key not in seen:
                seen.add(key)
                kept.append(slot)
                if len(kept) == limit:
                    return kept
    return kept
