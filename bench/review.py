"""Does a review cost what has changed, find twins of old entries, and merge nothing else?

Two stores of lessons, of 2,000 and of 20,000 entries, on disk and with the search that agents are
served by, are reviewed by what carries out the kernel's own reviews. To each come 100 changes: 50
say in other words what an old entry says, ten of these in the same words by another pair; the rest
are an old entry with something turned round (denied, another condition or number, hedged, another
thing), or new. What each means is known apart from its words (:mod:`bench.sayings`). Most entries
are in one destination, where a search has most to look through; the others are a user's own, of
both streams, with twins of entries in the first that must not be merged across.

The judge is the one by rules; what a model would be sent is counted on the way. The reference of
the cost is the small store's review; beside it stands what one pass over the whole store would
send. The words of the entries were chosen by who wrote the judge: they show what a review costs and
that it finds what it can, and say little of how freely an entry may be reworded.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trio

from bench.filled import keep_up
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure
from bench.sayings import CHANGES, Meaning, changed, meanings, say
from bench.vectors import CachedEmbedder, default_folder
from isovist.kernel.learning.asked_review import UNITING, asked, lines, stepping
from isovist.kernel.learning.judging import RuleJudge
from isovist.kernel.learning.protected import Protected
from isovist.kernel.learning.review import BATCH, Batch, Judge, Said, Step, Union
from isovist.kernel.learning.reviewer import Judging, Reviewer
from isovist.kernel.state import instructions
from isovist.kernel.state.events import Event, ReviewMade
from isovist.kernel.state.lessons import Held, entry_text
from isovist.kernel.state.views import everything
from isovist.kernel.writer import Writer
from isovist.storage.dense import Vector
from isovist.storage.embedder import Embedder, make_embedder, stored
from isovist.storage.learning import Work, file
from isovist.storage.store import Store
from isovist.syscalls.operations import Learned, Op, Outcome, Put, Vectors
from isovist.syscalls.records import Partition, Stream, Submission, partition_of

SMALL, LARGE, QUICK = 2_000, 20_000, (200, 1_000)
TWINS, EXACT, OTHERS = 50, 10, 50
"""Changes that say what an old entry says, how many of those word for word, and others."""
RUNS = 3
"""Reviews of each store: the median of their times counts."""
GROUP = 500
BEGAN = 1_735_689_600 * 10**9
"""When the first entry was written (ns since 1970)."""
CHARACTERS = 4
"""Of a token."""

GLOBAL = partition_of("global", "ana", "coder")
OWN = partition_of("user", "ana", "coder")
PLACES: tuple[tuple[Partition, Stream, float], ...] = (
    (GLOBAL, "reusable", 0.8), (OWN, "reusable", 0.1), (OWN, "protected", 0.1),
)  # fmt: skip
"""Destinations and streams, and the share of the entries in each."""


class Entry(NamedTuple):
    held: Held
    partition: Partition
    meaning: Meaning


class Found(NamedTuple):
    """What the reviews of one store gave: the last one, seconds of the processor, and characters
    of what a model would have been sent."""

    made: ReviewMade
    seconds: float
    characters: int


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--embedder", help="of the dense leg (default: universal; quick: hash)")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    small, large = QUICK if options.quick else (SMALL, LARGE)
    name = options.embedder or ("hash" if options.quick else "universal")
    embedder = make_embedder(name)
    documents = embedder if options.quick else CachedEmbedder(embedder, default_folder())
    with tempfile.TemporaryDirectory() as folder:
        facts = machine(Path(folder))
        trials = [
            Trial(options.seed, size, Path(folder) / f"{size}.db", embedder)
            for size in (small, large)
        ]
        for trial in trials:
            trial.fill(documents, progress)
        found = []
        for trial in trials:
            progress(f"review {trial.size:,}")
            found.append(trial.reviewed())
            trial.close()
    config = {
        "seed": options.seed,
        "embedder": embedder.name,
        "entries": [small, large],
        "changes": TWINS + OTHERS,
        "twins": TWINS,
        "store": "indexed, on disk",
    }
    return Report(bench="review", machine=facts, config=config, figures=_figures(trials, found))


def _figures(trials: Sequence[Trial], found: Sequence[Found]) -> list[Figure]:
    few, many = found
    small, large = trials
    beside = f"{small.size:,} entries"
    whole = large.characters() / CHARACTERS
    tokens, fewer = many.characters / CHARACTERS, few.characters / CHARACTERS
    figures = [
        figure("seconds", many.seconds, "s of the processor", reference=(beside, few.seconds),
               bar="ratio <= 2"),
        figure("tokens", tokens, "a model is sent", reference=(beside, fewer), bar="ratio <= 2"),
        figure("tokens_of_whole", tokens, "a model is sent",
               reference=("one pass over all entries", whole)),
        figure("shown", many.made.shown, "entries",
               reference=(beside, few.made.shown)),
    ]  # fmt: skip
    for trial, one in zip(trials, found, strict=True):
        twins, exact, false = trial.graded(one.made)
        figures += [
            figure(f"twins_merged_{trial.size}", twins / TWINS, "share", bar=">= 0.9"),
            figure(f"equals_merged_{trial.size}", exact / EXACT, "share"),
            figure(f"false_merges_{trial.size}", false, "", bar="== 0"),
        ]
    return figures


class Counting:
    """The judge by rules, and how many characters a model would be sent in its place."""

    def __init__(self) -> None:
        self._judge = RuleJudge()
        self.spent = self._judge.spent
        self.characters = 0

    async def steps(self, batch: Batch) -> Sequence[Step]:
        instructions, schema = stepping(batch)
        if schema:
            self.characters += _sent(instructions, batch.entries)
        return await self._judge.steps(batch)

    async def unions(self, batch: Batch) -> Sequence[Union]:
        self.characters += _sent(UNITING, batch.entries)
        return await self._judge.unions(batch)


def _sent(instructions: str, entries: Sequence[Said]) -> int:
    messages = asked(instructions, lines(entries, 1 << 30, 1))
    return sum(len(message.content or "") for message in messages)


class Trial:
    """One store: ``size`` old entries, and what has changed since its last review."""

    def __init__(self, seed: int, size: int, path: Path, embedder: Embedder) -> None:
        self.size = size
        self._rng = random.Random(f"review {seed} {size}")
        self._embedder = embedder
        self._store = Store.open(path, embedder.name, embedder.dim)
        self._store.restore()
        self._seqs: dict[Partition, int] = {}
        self.old: list[Entry] = []
        self.new: list[Entry] = []
        self._draw()

    def _draw(self) -> None:
        rng = self._rng
        drawn = meanings(rng)
        seen: set[tuple[Partition, Stream, Meaning]] = set()
        for partition, stream, share in PLACES:
            for number in range(int(self.size * share)):
                # Of the user's own every fourth says what is said in the first place as well.
                decoy = partition != GLOBAL and number % 4 == 0
                one = rng.choice(self.old).meaning if decoy else next(drawn)
                if (partition, stream, one) in seen:
                    one = next(drawn)
                seen.add((partition, stream, one))
                self.old.append(self._entry(one, partition, stream, say(one, rng)))
        chosen = rng.sample(self.old, TWINS + OTHERS)
        for number, entry in enumerate(chosen):
            where = entry.partition, entry.held.stream
            if number < TWINS:
                said = entry.held.situation, entry.held.lesson
                while number >= EXACT and said == (entry.held.situation, entry.held.lesson):
                    said = say(entry.meaning, rng)
                one = entry.meaning
            else:
                how = CHANGES[number % len(CHANGES)]
                one = changed(entry.meaning, how, rng)
                if (*where, one) in seen:
                    one = next(drawn)
                said = say(one, rng)
            seen.add((*where, one))
            self.new.append(self._entry(one, *where, said))
        self._twins = {
            new.held.id: old.held.id for new, old in zip(self.new[:TWINS], chosen, strict=False)
        }
        self._exact = {entry.held.id for entry in self.new[:EXACT]}

    def _entry(
        self, one: Meaning, partition: Partition, stream: Stream, said: tuple[str, str]
    ) -> Entry:
        number = len(self.old) + len(self.new)
        # Ids say nothing of the order.
        name = f"{random.Random(number).getrandbits(64):016x}"
        situation, lesson = said
        held = Held(id=name, version=1, situation=situation, lesson=lesson,
                    scope=partition.scope, stream=stream)  # fmt: skip
        return Entry(held, partition, one)

    def fill(self, documents: Embedder | CachedEmbedder, progress: Progress) -> None:
        entries = [*self.old, *self.new]
        for agent in ("coder", "writer"):
            one = Submission(id=agent, user="ana", agent=agent, state="queued", outcome="passed",
                             submitted_at=BEGAN)  # fmt: skip
            self._store.submit(file(one, "", Work(task="", trajectory=())), 1)
        for start in range(0, len(entries), GROUP):
            group = entries[start : start + GROUP]
            puts = [self._put(start + at, entry) for at, entry in enumerate(group)]
            outcomes = self._written(puts)
            self._written([self._vectors(documents, outcome) for outcome in outcomes])
            progress(f"fill {self.size:,}", start + len(group), len(entries))
        keep_up(self._store)
        self._store.entries_looked_at([(entry.held.id, entry.held.version) for entry in self.old])

    def _put(self, number: int, entry: Entry) -> Put:
        said = BEGAN + number * 60 * 10**9
        held = entry.held
        # A pair that says the same once more is no second entry: here it is another pair's.
        agent = "coder" if number < self.size else "writer"
        return Put(partition=entry.partition, seq=self._next(entry.partition), id=held.id,
                   text=entry_text(held.situation, held.lesson), kind="lesson", agent=agent,
                   user="ana", stream=held.stream, said_at=said, stored_at=said,
                   learned=Learned(writer="rules", submission=agent))  # fmt: skip

    def _vectors(self, documents: Embedder | CachedEmbedder, outcome: Outcome) -> Vectors:
        assert isinstance(outcome.op, Put)
        return Vectors(
            partition=outcome.op.partition,
            seq=self._next(outcome.op.partition),
            id=outcome.id,
            version=outcome.version,
            model=self._embedder.name,
            vectors=tuple(stored(documents.embed(chunk)) for chunk in outcome.chunks),
        )

    def _next(self, partition: Partition) -> int:
        self._seqs[partition] = self._seqs.get(partition, 0) + 1
        return self._seqs[partition]

    def _written(self, ops: Sequence[Op]) -> list[Outcome]:
        outcomes = self._store.commit(ops)
        assert not any(outcome.errno or outcome.duplicate for outcome in outcomes)
        self._store.apply(outcomes)
        return outcomes

    # -- the review

    def reviewed(self) -> Found:
        seconds: list[float] = []
        while True:
            judge = Counting()
            began = time.process_time()
            made = trio.run(self._review, judge)
            seconds.append(time.process_time() - began)
            # The first one loads what is loaded once.
            if len(seconds) > RUNS:
                return Found(made, statistics.median(seconds[1:]), judge.characters)

    async def _review(self, judge: Judge) -> ReviewMade:
        """One review, as the kernel has it made. Nothing of it is carried out."""
        made: list[Event] = []
        writer = Writer(self._store)
        try:
            async with trio.open_nursery() as nursery:
                reviewer = Reviewer(
                    self._store,
                    writer,
                    nursery,
                    Judging(lambda: judge, "rules"),
                    _Library(self._store, self._embedder),
                    now=time.time_ns,
                    dispatch=made.append,
                )
                view = everything(dict.fromkeys(partition for partition, _, _ in PLACES))
                reviewer.instructions()[instructions.Review](instructions.Review(view=view))
        finally:
            writer.close()
        (one,) = made
        assert isinstance(one, ReviewMade)
        if one.errno or one.changed != len(self.new):
            raise CannotRun(f"{one.changed} entries were reviewed, {one.message or 'not all'}")
        return one

    def graded(self, made: ReviewMade) -> tuple[int, int, int]:
        """Twins that were merged with the old entry of the same meaning; how many of these were
        said word for word; and merges of what means two things, or across a place."""
        known = {entry.held.id: entry for entry in (*self.old, *self.new)}
        merged: set[str] = set()
        false = 0
        for proposed in made.proposals:
            if proposed.to is None:
                parts = {part.id for part in proposed.parts}
                entries = [known[part] for part in parts]
                what = {(one.meaning, one.partition, one.held.stream) for one in entries}
                false += len(what) > 1
                merged |= {new for new, old in self._twins.items() if {new, old} <= parts}
        return len(merged), len(merged & self._exact), false

    def characters(self) -> int:
        """What one pass over all entries would send to a model."""
        said = [Said(entry.held.situation, entry.held.lesson) for entry in (*self.old, *self.new)]
        return sum(
            _sent(UNITING, said[start : start + BATCH]) for start in range(0, len(said), BATCH)
        )

    def close(self) -> None:
        self._store.close()


class _Library:
    """What a review needs of the learner."""

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self.protected = Protected(store, trio.CapacityLimiter(1))
        self._embedder = embedder

    async def embed(self, text: str) -> Vector | None:
        return np.asarray(self._embedder.embed_query(text), np.float32)
