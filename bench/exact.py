"""What is right: both legs by brute force over the units of one view, in numpy, with nothing of the
store's own but the blend of two scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.population import NOBODY, Population, Question, Seat
from isovist.storage.fusion import plain

Slots = NDArray[np.intp]
Scores = NDArray[np.float64]

DEPTH = 50
"""Units of either leg that the hybrid looks at [S 3.1]."""
BLOCK = 65_536
NEAREST = 400
"""Units kept a question from the rough pass, which is one matrix product: more than any list."""


class Words:
    """For every word, the units that hold it and how often."""

    def __init__(self, population: Population) -> None:
        words = np.asarray(population.words)
        units = np.repeat(np.arange(len(words), dtype=np.int32), (words != NOBODY).sum(axis=1))
        flat = words[words != NOBODY]
        order = np.argsort(flat, kind="stable")
        self._units = units[order]
        self._starts = np.searchsorted(flat[order], np.arange(len(population.vocabulary) + 1))

    def find(self, word: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        units = self._units[self._starts[word] : self._starts[word + 1]]
        first = np.flatnonzero(np.append(True, units[1:] != units[:-1])[: len(units)])
        return units[first], np.diff(np.append(first, len(units)))


class Truth:
    """The right answers of one view."""

    def __init__(self, population: Population, words: Words, seat: Seat) -> None:
        self.population = population
        self.words = words
        self.seat = seat
        places = {p: n for n, p in enumerate(seat.view.partitions)}
        order = [places.get(p, len(places)) for p in population.partitions]
        self.place = np.array(order)[population.place]
        """By unit: its partition's place in the view."""
        lengths = population.lengths
        self.count = int(seat.members.sum())
        self.average = float(lengths[seat.members].sum()) / self.count

    def dense(self, questions: Sequence[Question], k: int) -> list[list[str]]:
        """The ids of the ``k`` nearest."""
        near = zip(questions, self.near(questions), strict=True)
        return [_ids(self._nearest(question, units, k)) for question, units in near]

    def lexical(self, questions: Sequence[Question], k: int) -> list[list[str]]:
        """The ids of the ``k`` best by words."""
        scored = map(self._scores, questions)
        return [_ids(self._best(np.flatnonzero(scores), scores, k)) for scores in scored]

    def hybrid(self, questions: Sequence[Question], k: int) -> list[list[str]]:
        """Of the ``DEPTH`` best of either leg, those with the best blend. No unit here is of a
        session, so the blend is that of the two legs alone."""
        answers = []
        for question, units in zip(questions, self.near(questions), strict=True):
            scores = self._scores(question)
            found = self._best(np.flatnonzero(scores), scores, DEPTH)
            near = self._nearest(question, units, DEPTH)
            union = np.union1d(found, near)
            blend = np.zeros(len(scores))
            blend[union] = plain(scores[union], self._cosines(question, union))
            answers.append(_ids(self._best(union, blend, k)))
        return answers

    def near(self, questions: Sequence[Question]) -> list[Slots]:
        """Surely the nearest of each question, by one pass over all vectors in view."""
        units = np.flatnonzero(self.seat.members)
        asked = np.array([question.vector for question in questions]).T
        best: list[list[NDArray[np.float32]]] = [[] for _ in questions]
        which: list[list[Slots]] = [[] for _ in questions]
        for start in range(0, len(units), BLOCK):
            some = units[start : start + BLOCK]
            scores = self.population.vectors[some].astype(np.float32) @ asked
            keep = min(NEAREST, len(some))
            top = np.argpartition(scores, len(some) - keep, axis=0)[-keep:]
            for n in range(len(questions)):
                best[n].append(scores[top[:, n], n])
                which[n].append(some[top[:, n]])
        found = []
        for values, slots in zip(best, which, strict=True):
            order = np.argsort(-np.concatenate(values))[:NEAREST]
            found.append(np.concatenate(slots)[order])
        return found

    def _nearest(self, question: Question, units: Slots, count: int) -> Slots:
        cosines = np.full(self.population.units, -np.inf)
        cosines[units] = self._cosines(question, units)
        return self._best(units, cosines, count)

    def _cosines(self, question: Question, units: Slots) -> Scores:
        rows = self.population.vectors[units].astype(np.float32)
        return np.asarray((rows * question.vector).sum(axis=1), np.float64)

    def _best(self, units: Slots, scores: Scores, count: int) -> Slots:
        """The ``count`` best of ``units``, best first; of equals the narrower partition's, then
        the newer. ``scores``: of all units of the population."""
        if len(units) > count:
            values = scores[units]
            units = units[values >= np.partition(values, -count)[-count]]
        ranked = units[np.lexsort((-units, self.place[units], -scores[units]))]
        return ranked[:count]

    def _scores(self, question: Question) -> Scores:
        """By unit: BM25 (k1 1.2, b 0.75) under the view's own statistics."""
        scores = np.zeros(self.population.units)
        for word in question.words:
            units, tf = self.words.find(word)
            here = self.seat.members[units]
            units, counts = units[here], tf[here].astype(np.float64)
            idf = np.log1p((self.count - len(units) + 0.5) / (len(units) + 0.5))
            lengths = self.population.lengths[units] / self.average
            scores[units] += idf * 2.2 * counts / (counts + 0.3 + 0.9 * lengths)
        return scores


def _ids(units: Slots) -> list[str]:
    return [f"u{unit}" for unit in units.tolist()]
