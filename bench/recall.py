"""Is what answers a question found? On conversations with known evidence (``bench/corpora.py``).

Each set is asked twice: *each*, every user's history in pair scope of one store and read by that
user's own view, and *pooled*, all histories in global scope and read by one reader who sees all
of them. All goes the way of the kernel: rounds are put into a store, cut into chunks, dated and
embedded by it, and found through its ``select`` with a view.

Figures are means over questions, in [0, 1]:

- ``recall@k``: share of the evidence labels that the first k units hold;
- ``any@k``, ``all@k``: whether the first k distinct sessions hold one, or all, of the evidence;
- ``ndcg@10``: a unit (or session) counts where it holds evidence that none before it held; the
  ideal has as many as the store holds, ten at most;
- ``chars@n``: share of the evidence labels in whole units, taken in order while they fit into n
  characters; what does not fit is passed over, as injection does.

``below.*`` compares the default with BM25 alone on the same questions: the 95 % quantile of the
mean difference over resampled questions. Below 0, the default is surely worse (paired bootstrap,
one-sided).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

import numpy as np

from bench.corpora import LOADERS, Corpus, Question
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure
from bench.store import BenchStore
from bench.vectors import CachedEmbedder, default_folder
from isovist.kernel.state.views import view_of
from isovist.storage.embedder import make_embedder
from isovist.syscalls.records import Mode, Reader, View, partition_of

Setting = Literal["each", "pooled"]
SETTINGS: tuple[Setting, ...] = ("each", "pooled")
MODES: tuple[Mode, ...] = ("bm25", "dense", "rrf", "hybrid")
DEFAULT: Mode = "hybrid"
AGENT, READER = "assistant", "reader"
FOUND = 50
"""Units asked for."""
RESAMPLED, SURE = 4000, 0.95
BARS = {
    "locomo.each.hybrid.chars@1500": ">= 0.70",
    "longmemeval.each.hybrid.any@5": ">= 0.97",
    "longmemeval.each.hybrid.all@5": ">= 0.90",
}
ABOVE_LEGS = ("locomo",)
"""Where the default's nDCG is to be above both legs' own."""
QUICK = 2
"""Histories of each set in a quick run."""

BUDGETS = (1500, 3000, 6000)


@dataclass(frozen=True)
class Hit:
    """A unit that was found: its evidence labels and its length in characters."""

    labels: frozenset[str]
    length: int


Metric = Callable[[Sequence[Hit], Question, int], float]
"""Of the hits, best first, and the number of units of the store that hold evidence."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", default=",".join(LOADERS), help="which, comma-separated")
    parser.add_argument("--cache", type=Path, help="where vectors are kept between runs")
    parser.add_argument("--dump", type=Path, help="write a line of JSON a question and mode")
    parser.add_argument("--embedder", default="universal", help="default universal")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    if options.data is None:
        raise CannotRun("--data: the folder of data sets is not named")
    names = options.sets.split(",")
    unknown = [name for name in names if name not in LOADERS]
    if unknown:
        raise CannotRun(f"no set {unknown[0]!r}; there are: {', '.join(LOADERS)}")
    embedder = CachedEmbedder(make_embedder(options.embedder), options.cache or default_folder())
    figures: list[Figure] = []
    sizes: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(embedder.close)
        dump = stack.enter_context(open(options.dump, "w")) if options.dump else None
        for name in names:
            corpus = LOADERS[name](options.data)
            if options.quick:
                corpus = corpus.first(QUICK)
            rounds = sum(len(history.rounds) for history in corpus.histories)
            sizes[name] = (
                f"{len(corpus.histories)} histories, {rounds} rounds, "
                f"{len(corpus.questions)} questions"
            )
            for setting in SETTINGS:
                ranks = Ranks(corpus, setting, embedder, progress)
                if dump:
                    ranks.dump(dump)
                figures += ranks.figures(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        facts = machine(Path(folder))
    config = {"embedder": embedder.name, "seed": options.seed, "quick": options.quick, **sizes}
    return Report(bench="recall", machine=facts, config=config, figures=figures)


class Ranks:
    """One corpus in one setting: its store, filled and asked in every mode."""

    def __init__(
        self, corpus: Corpus, setting: Setting, embedder: CachedEmbedder, progress: Progress
    ) -> None:
        self._corpus, self._setting = corpus, setting
        self._title = f"{corpus.name}.{setting}"
        self._store = BenchStore(embedder)
        self._labels: dict[tuple[str, str], frozenset[str]] = {}
        """By owner of the view and text: results are distinct texts, so units of one text in one
        view stand for each other."""
        self._fill(progress)
        holding: dict[str, set[tuple[str, str]]] = {}
        for key, labels in self._labels.items():
            for label in labels:
                holding.setdefault(label, set()).add(key)
        self._holding = {
            q.id: len(set[tuple[str, str]]().union(*(holding[label] for label in q.gold)))
            for q in corpus.questions
        }
        self.hits: dict[Mode, list[list[Hit]]] = {mode: [] for mode in MODES}
        for at, question in enumerate(corpus.questions):
            progress(f"{self._title}: questions", at, len(corpus.questions))
            for mode in MODES:
                self.hits[mode].append(self._ask(question, mode))

    def _fill(self, progress: Progress) -> None:
        scope = "pair" if self._setting == "each" else "global"
        for at, history in enumerate(self._corpus.histories):
            progress(f"{self._title}: histories", at, len(self._corpus.histories))
            for unit in history.rounds:
                _, text = self._store.put(
                    partition_of(scope, history.user, AGENT),
                    unit.text,
                    user=history.user,
                    agent=AGENT,
                    said_at=unit.said_at,
                    kind="conversation",
                    session=unit.session,
                    round=unit.number,
                    handle=f"{history.user}/{unit.session}",
                )
                key = self._owner(history.user), text
                self._labels[key] = self._labels.get(key, frozenset()) | unit.labels
                self._store.now = max(self._store.now, unit.said_at)

    def _owner(self, user: str) -> str:
        return user if self._setting == "each" else READER

    def _view(self, user: str) -> View:
        return view_of(Reader(self._owner(user), AGENT))

    def _ask(self, question: Question, mode: Mode) -> list[Hit]:
        selection = self._store.search(self._view(question.user), question.text, FOUND, mode)
        owner = self._owner(question.user)
        return [Hit(self._labels[owner, unit.text], len(unit.text)) for unit in selection.units()]

    def figures(self, seed: int) -> Iterator[Figure]:
        metrics = METRICS[self._corpus.name]
        values: dict[Mode, dict[str, Values]] = {
            mode: {name: self._values(mode, metric) for name, metric in metrics.items()}
            for mode in MODES
        }
        for mode in MODES:
            for name, found in values[mode].items():
                yield self._figure(mode, name, found, values)
        for name in metrics:
            worse = values[DEFAULT][name] - values["bm25"][name]
            yield figure(
                f"{self._title}.below.{name}", highest(worse, seed), "difference", bar=">= 0"
            )

    def _values(self, mode: Mode, metric: Metric) -> Values:
        pairs = zip(self.hits[mode], self._corpus.questions, strict=True)
        return np.array([metric(hits, q, self._holding[q.id]) for hits, q in pairs])

    def _figure(
        self, mode: Mode, name: str, found: Values, values: dict[Mode, dict[str, Values]]
    ) -> Figure:
        title = f"{self._title}.{mode}.{name}"
        mean = _mean(found)
        if mode != DEFAULT:
            return figure(title, mean, "share")
        if name == "ndcg@10" and self._corpus.name in ABOVE_LEGS:
            legs = {leg: _mean(values[leg][name]) for leg in ("bm25", "dense")}
            best = max(legs, key=lambda leg: legs[leg])
            return figure(title, mean, "share", reference=(best, legs[best]), bar="ratio > 1")
        bm25 = ("bm25", _mean(values["bm25"][name]))
        return figure(title, mean, "share", reference=bm25, bar=BARS.get(title))

    def dump(self, out: TextIO) -> None:
        """A line a question and mode: the rank (from 1) of the first hit with each of its gold
        labels, and all hits with their labels and lengths. No text of the data."""
        for mode in MODES:
            for question, hits in zip(self._corpus.questions, self.hits[mode], strict=True):
                ranks = {
                    label: next((at for at, h in enumerate(hits, 1) if label in h.labels), None)
                    for label in sorted(question.gold)
                }
                line = {
                    "set": self._corpus.name,
                    "setting": self._setting,
                    "mode": mode,
                    "question": question.id,
                    "kind": question.kind,
                    "gold": ranks,
                    "hits": [[sorted(h.labels), h.length] for h in hits],
                }
                out.write(json.dumps(line, ensure_ascii=False) + "\n")


# -- metrics

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def recall(k: int) -> Metric:
    def share(hits: Sequence[Hit], question: Question, holding: int) -> float:
        return _share(hits[:k], question)

    return share


def chars(budget: int) -> Metric:
    def share(hits: Sequence[Hit], question: Question, holding: int) -> float:
        left = budget
        taken: list[Hit] = []
        for hit in hits:
            if hit.length <= left:
                left -= hit.length
                taken.append(hit)
        return _share(taken, question)

    return share


def any_at(k: int) -> Metric:
    def found(hits: Sequence[Hit], question: Question, holding: int) -> float:
        return float(_share(sessions(hits)[:k], question) > 0.0)

    return found


def all_at(k: int) -> Metric:
    def found(hits: Sequence[Hit], question: Question, holding: int) -> float:
        return float(_share(sessions(hits)[:k], question) == 1.0)

    return found


def ndcg(hits: Sequence[Hit], question: Question, holding: int) -> float:
    """nDCG@10 with gain 1 for a hit that holds evidence that none before it held."""
    gain = 0.0
    seen: frozenset[str] = frozenset()
    for place, hit in enumerate(hits[:10]):
        new = (hit.labels & question.gold) - seen
        gain += _discount(place) * bool(new)
        seen |= new
    return gain / sum(map(_discount, range(min(holding, 10))))


def session_ndcg(hits: Sequence[Hit], question: Question, holding: int) -> float:
    return ndcg(sessions(hits), question, len(question.gold))


def sessions(hits: Sequence[Hit]) -> list[Hit]:
    """The hits that bring a session not met before; labels are sessions here."""
    seen: frozenset[str] = frozenset()
    found: list[Hit] = []
    for hit in hits:
        if hit.labels - seen:
            found.append(hit)
            seen |= hit.labels
    return found


def highest(differences: Values, seed: int) -> float:
    """The ``SURE`` quantile of the mean of resampled ``differences``."""
    count = len(differences)
    if not count:
        return 0.0
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLED)
    return float(np.quantile(drawn @ differences / count, SURE))


def _share(hits: Sequence[Hit], question: Question) -> float:
    held = frozenset[str]().union(*(hit.labels for hit in hits))
    return len(question.gold & held) / len(question.gold)


def _discount(place: int) -> float:
    return float(1.0 / np.log2(place + 2))


def _mean(values: Values) -> float:
    return float(values.mean()) if len(values) else 0.0


METRICS: dict[str, dict[str, Metric]] = {
    "locomo": {
        **{f"recall@{k}": recall(k) for k in (5, 10, 20)},
        "ndcg@10": ndcg,
        **{f"chars@{budget}": chars(budget) for budget in BUDGETS},
    },
    "longmemeval": {
        **{f"any@{k}": any_at(k) for k in (5, 10)},
        **{f"all@{k}": all_at(k) for k in (5, 10)},
        "ndcg@10": session_ndcg,
    },
    # A question of this set has one day of evidence, so one is all.
    "memorybank": {
        **{f"any@{k}": any_at(k) for k in (1, 5, 10)},
        "ndcg@10": session_ndcg,
    },
}
