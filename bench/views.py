"""Is a search through a view exact, and fast, whatever else the store holds?

A population (``bench/population.py``) in one store, and four readers whose views hold about 0.6,
10, 50 and 100 % of its units. The store is filled through its own writes, then opened by a process
of its own that answers as a running kernel does: all upkeep done, files in the system's cache, 20
questions a view asked before any is timed. ``k`` is 10, times are of ``Store.select`` with the
question embedded already; recall is the share of the ten best by brute force over the view's units
(``bench/exact.py``) that came back: nearest vectors, and the hybrid's list.

``ms`` is the wall's clock and has the bars; ``ms.own`` is the answering thread's own time, which
busy neighbours on the machine do not lengthen. ``peer.*`` are other ways to search under a filter,
one leg each, asked the same questions one at a time.

``memory.*`` is anonymous memory of the process that answered (what no file backs), with graphs and
in the int8 mode: no graphs, codes alone, exact rows of the shortlist read from the file.
``round.bytes`` is the size of a store of conversation rounds on disk, both legs, nothing left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.corpora import LOADERS
from bench.exact import Truth, Words
from bench.filled import Answered, Answers, Spec, answer, fill, fill_rounds, sitting, size
from bench.machine import machine
from bench.peers import PEERS, Peer, timed
from bench.population import DIM, EXPONENT, Population, Question, Seat
from bench.report import CannotRun, Figure, Progress, Report, figure, percentile
from bench.text import Writer

K = 10
SHARES = {"0.6%": 0.006, "10%": 0.1, "50%": 0.5, "100%": 1.0}
LATENCY: dict[int, dict[str, float]] = {
    120_000: {"0.6%": 1.5, "100%": 6},
    1_000_000: {"0.6%": 2, "100%": 20},
}
"""Milliseconds at the median, by units and view."""
RECALL = ">= 0.995"
MEMORY: dict[int, dict[str, float]] = {1_000_000: {"graphs": 2.2, "int8": 1.2}}
"""Gigabytes (10⁹ bytes)."""
INT8_FULL = {1_000_000: "<= 40"}
GROWTH = "ratio < 2"
ROUND_BAR, PAPER = "<= 8", 11.4
"""KiB a conversation round; the paper's own figure [S]."""
ROUND_DIM = 512
"""Dimensions of the default embedder."""
QUICK = {"units": 3000, "asked": 10, "rounds": 200}
RECIPE = 1
"""To be raised when a population is drawn, or filled in, otherwise than before."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--units", default="120000", help="sizes, comma-separated")
    parser.add_argument(
        "--dir", type=Path, help="where populations and stores are kept between runs"
    )
    parser.add_argument("--asked", type=int, default=200, help="questions a view")
    parser.add_argument("--int8", action="store_true", help="the int8 mode alone")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--seconds", type=float, default=20, help="a peer and view, about")
    parser.add_argument("--rounds", type=int, default=3000, help="conversation rounds to weigh")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    try:
        sizes = [int(part) for part in options.units.split(",")]
    except ValueError:
        raise CannotRun(f"--units {options.units!r}: numbers, comma-separated") from None
    asked, rounds = options.asked, options.rounds
    if options.quick:
        sizes, asked, rounds = [QUICK["units"]], QUICK["asked"], QUICK["rounds"]
    with contextlib.ExitStack() as stack:
        folder = options.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        about = machine(folder)
        config: dict[str, object] = {
            "seed": options.seed,
            "units": sizes,
            "dimensions": DIM,
            "k": K,
            "questions": asked,
            "exponent": EXPONENT,
            "cache": "warm: files in the system's cache, 20 questions a view before",
        }
        figures: list[Figure] = []
        medians: dict[int, float] = {}
        for units in sizes:
            one = _Size(units, options, asked, folder, progress)
            figures += one.run(config)
            if one.median is not None:
                medians[units] = one.median
        if len(medians) > 1:
            small, large = min(medians), max(medians)
            figures.append(
                figure(
                    "growth.0.6%",
                    medians[large],
                    f"ms at {_short(large)}",
                    reference=(f"ms at {_short(small)}", medians[small]),
                    bar=GROWTH if (small, large) == (120_000, 1_000_000) else None,
                )
            )
        figures += _rounds(options, rounds, folder, config, progress)
    return Report(bench="views", machine=about, config=config, figures=figures)


class _Size:
    """The figures of one size of the population."""

    def __init__(
        self,
        units: int,
        options: argparse.Namespace,
        asked: int,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._units = units
        self._options = options
        self._progress = progress
        self._folder = _kept(folder / f"{units}-{options.seed}", units, options.seed)
        self._population = Population(units, options.seed, self._folder)
        self._name = _short(units)
        for done in self._population.draw():
            progress(f"draw {self._name}", done, units)
        self._store = self._folder / "store.db"
        self._seats = self._population.seats(SHARES)
        self._questions = [self._population.questions(seat, asked) for seat in self._seats]
        self.median: float | None = None
        """Of the smallest view, with graphs."""

    def run(self, config: dict[str, object]) -> list[Figure]:
        filled = self._folder / "filled"
        if not filled.exists():
            fill(self._population, self._store, self._progress)
            filled.touch()
        config[f"views of {self._name}"] = {
            seat.name: {
                "share": round(seat.share, 4),
                "units": int(seat.members.sum()),
                "partitions": len(seat.places),
                "of": len(seat.view.partitions),
            }
            for seat in self._seats
        }
        truths = self._truths()
        figures: list[Figure] = []
        beside: list[float] = []
        for mode in ("int8",) if self._options.int8 else ("graphs", "int8"):
            answered = self._answered(mode, config)
            for seat, right, found in zip(self._seats, truths, answered.answers, strict=True):
                figures += self._view(mode, seat, right, found)
            if not beside:
                beside = [percentile(found.wall, 0.5) for found in answered.answers]
            if mode == "graphs":
                self.median = beside[0]
            figures += self._memory(mode, answered)
        if not self._options.no_peers:
            figures += self._peers([right["dense"] for right in truths], beside)
        return figures

    def _truths(self) -> list[dict[str, list[list[str]]]]:
        words = Words(self._population)
        truths = []
        for seat, questions in zip(self._seats, self._questions, strict=True):
            self._progress(f"brute force {self._name}, {seat.name}")
            truth = Truth(self._population, words, seat)
            truths.append(
                {"dense": truth.dense(questions, K), "hybrid": truth.hybrid(questions, K)}
            )
        return truths

    def _answered(self, mode: str, config: dict[str, object]) -> Answered:
        """What a process says that opens the store when its upkeep is done already."""
        spec = Spec(path=str(self._store), dim=DIM, k=K, scan=mode == "int8")
        if mode == "graphs":
            self._progress(f"upkeep {self._name}")
            config[f"seconds of upkeep of {self._name}"] = round(answer(spec, self._folder).jobs, 1)
        self._progress(f"answer {self._name}, {mode}")
        sittings = tuple(
            sitting(self._population, seat, questions)
            for seat, questions in zip(self._seats, self._questions, strict=True)
        )
        answered = answer(_with(spec, sittings), self._folder)
        config[f"{mode} of {self._name}"] = {
            **answered.statistics,
            "seconds to open": round(answered.open, 1),
        }
        return answered

    def _view(
        self, mode: str, seat: Seat, right: dict[str, list[list[str]]], found: Answers
    ) -> list[Figure]:
        name = f"{self._name}.{mode}.{seat.name}"
        bar: str | None = None
        if mode == "graphs" and (limit := LATENCY.get(self._units, {}).get(seat.name)):
            bar = f"<= {limit}"
        if mode == "int8" and seat.name == "100%":
            bar = INT8_FULL.get(self._units)
        exact = ("exact under the view", 1.0)
        return [
            figure(
                f"{name}.recall.dense",
                recall(right["dense"], found.dense),
                "of 1",
                reference=exact,
                bar=RECALL,
            ),
            figure(
                f"{name}.recall.hybrid",
                recall(right["hybrid"], found.hybrid),
                "of 1",
                reference=exact,
                bar=RECALL,
            ),
            figure(f"{name}.p50", percentile(found.wall, 0.5), "ms", bar=bar),
            figure(f"{name}.p95", percentile(found.wall, 0.95), "ms"),
            figure(f"{name}.own.p50", percentile(found.own, 0.5), "ms"),
        ]

    def _memory(self, mode: str, answered: Answered) -> list[Figure]:
        limit = MEMORY.get(self._units, {}).get(mode)
        name = f"{self._name}.{mode}.memory"
        bar = f"<= {limit}" if limit else None
        return [
            figure(name, answered.anonymous / 1e9, "GB", bar=bar),
            figure(f"{name}.peak", answered.peak / 1e9, "GB"),
        ]

    def _peers(self, dense: list[list[list[str]]], beside: list[float]) -> list[Figure]:
        figures: list[Figure] = []
        lexical: list[list[list[str]]] = []
        words = Words(self._population)
        for seat, questions in zip(self._seats, self._questions, strict=True):
            lexical.append(Truth(self._population, words, seat).lexical(questions, K))
        for make in PEERS:
            try:
                peer = make(self._population, self._folder)
            except CannotRun as e:
                figures.append(figure(f"{self._name}.peer.{make.name}", 0, f"not run: {e}"))
                continue
            for done in peer.make():
                self._progress(f"{peer.name}, {self._name}", done, self._units)
            right = dense if peer.leg == "dense" else lexical
            for seat, questions, truth, ours in zip(
                self._seats, self._questions, right, beside, strict=True
            ):
                figures += self._peer(peer, seat, questions, truth, ours)
            peer.close()
        return figures

    def _peer(
        self,
        peer: Peer,
        seat: Seat,
        questions: Sequence[Question],
        right: list[list[str]],
        ours: float,
    ) -> list[Figure]:
        self._progress(f"{peer.name}, {self._name}, {seat.name}")
        found, took = timed(peer, seat, questions, K, self._options.seconds)
        name = f"{self._name}.peer.{peer.name}.{seat.name}"
        what = "recall.dense" if peer.leg == "dense" else "same as the view's own"
        median = percentile(took, 0.5)
        return [
            figure(f"{name}.p50", median, "ms", reference=("isovist, both legs", ours)),
            figure(f"{name}.{what}", recall(right[: len(found)], found), "of 1"),
        ]


def recall(right: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> float:
    """The mean share of each right list that was found."""
    shares = [len(set(r) & set(f)) / len(r) for r, f in zip(right, found, strict=True) if r]
    return float(np.mean(shares)) if shares else 1.0


def _with(spec: Spec, sittings: tuple[Any, ...]) -> Spec:
    return Spec(path=spec.path, dim=spec.dim, k=spec.k, scan=spec.scan, sittings=sittings)


def _short(units: int) -> str:
    return f"{units // 10**6}M" if units % 10**6 == 0 else f"{units / 1000:g}k"


def _kept(folder: Path, units: int, seed: int) -> Path:
    """The folder of what is kept, empty unless it is of this recipe."""
    recipe = {"units": units, "seed": seed, "recipe": RECIPE}
    sidecar = folder / "recipe.json"
    with contextlib.suppress(OSError, ValueError):
        if json.loads(sidecar.read_text("utf-8")) == recipe:
            return folder
    if folder.exists():
        if any(folder.iterdir()) and not sidecar.exists():
            raise CannotRun(f"{folder} holds something that no bench put there")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    sidecar.write_text(json.dumps(recipe), "utf-8")
    return folder


# -- bytes a round


def _rounds(
    options: argparse.Namespace,
    count: int,
    folder: Path,
    config: dict[str, object],
    progress: Progress,
) -> list[Figure]:
    """The store of so many conversation rounds, once for each data set that is there."""
    figures: list[Figure] = []
    for name, texts in _texts(options.data, count, options.seed):
        progress(f"rounds, {name}")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "rounds.db"
            chunks = fill_rounds(texts, path, ROUND_DIM, options.seed)
            held = size(path)
        config[f"rounds, {name}"] = {
            "rounds": len(texts),
            "characters a round": round(sum(map(len, texts)) / len(texts)),
            "chunks a round": round(chunks / len(texts), 2),
            "share derived": round(held["derived"] / sum(held.values()), 2),
        }
        figures.append(
            figure(
                f"round.bytes.{name}",
                sum(held.values()) / len(texts) / 1024,
                "KiB",
                reference=("the paper [S], quoted, not run here", PAPER),
                bar=None if options.quick else ROUND_BAR,
            )
        )
    return figures


def _texts(data: Path | None, count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    if data is None:
        writer = Writer(seed)
        made = []
        for _ in range(count):
            text = ""
            while len(text) < 2000:
                text += f"{writer.question()} {writer.note()} "
            made.append(text)
        yield "synthetic", made
        return
    for name in ("locomo", "longmemeval"):
        corpus = LOADERS[name](data)
        texts = [r.text for history in corpus.histories for r in history.rounds]
        if texts:
            yield name, list(dict.fromkeys(texts))[:count]
