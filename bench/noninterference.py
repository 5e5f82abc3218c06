"""Does anything outside a reader's view show in a reply?

Random histories over users, agents, groups of both, scopes, updates, supersession, expiry, moves,
forgetting; with background upkeep, scrubs, restarts and changes of membership in between. Each is
played in one store with all principals, and again in a store in which all units outside the
reader's view were never written (:mod:`bench.twins` says what is the same in both). Then the
reader asks both: search in all modes and with filters, single units, lists page by page, counts,
rounds of sessions, what a chat would inject. All replies must be equal to the byte, and so must
what became of each write inside the view.

Partitions get graphs from 32 vectors. Half of the histories run with graphs of few links that are
walked briefly, so that an answer depends on how the graph came to be.

The same run has a reference, an engine that weighs words by the whole store as most do: it must
be found out, or the bench sees nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure
from bench.trials import Tally, Trial, short_walks
from bench.twins import CROSSOVER
from isovist.storage import graph, lexical
from isovist.storage.indexed import IndexedEngine
from isovist.syscalls.operations import Selection

HISTORIES, QUICK, LEAKY = 10_000, 100, 10
_AT_ONCE = 10
"""Histories that a process plays before it reports."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--histories", type=int, help=f"how many (default {HISTORIES:,})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1,
                        help="that play at the same time (default: one a core)")  # fmt: skip


def run(options: argparse.Namespace, progress: Progress) -> Report:
    if not graph.available():
        raise CannotRun("hnswlib is not installed, so no query would meet a graph: isovist[ann]")
    histories = options.histories or (QUICK if options.quick else HISTORIES)
    started = time.monotonic()
    whole = Tally()
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        facts = machine(Path(folder))
        progress("the reference: words weighed by the whole store")
        leaky = play(folder, f"{options.seed} leaky", range(LEAKY), leaks=True)
        started = time.monotonic()
        for tally in _played(folder, options, histories):
            whole.add(tally)
            progress("histories", whole.counts["histories"], histories)
    for difference in whole.differences[:5]:
        progress(difference)
    seconds = time.monotonic() - started
    config = {
        "seed": options.seed,
        "histories": histories,
        "processes": options.processes,
        "crossover": CROSSOVER,
        "store": "indexed, one for all principals",
        "differences": whole.differences[:5],
    }
    return Report(
        bench="noninterference",
        machine=facts,
        config=config,
        figures=_figures(whole, leaky, histories, seconds),
    )


def _figures(whole: Tally, leaky: Tally, histories: int, seconds: float) -> list[Figure]:
    counts = whole.counts
    searches = max(counts["searches"], 1)
    events = ("restarts", "scrubs", "purges", "moves in", "moves out", "membership changes",
              "duplicates", "BuildGraph", "CommitDelta", "Pack")  # fmt: skip
    return [
        figure(
            id="differences",
            value=counts["differences"],
            unit="replies",
            reference=(f"of {LEAKY} histories, words weighed by the whole store",
                       leaky.counts["differences"]),
            bar="== 0",
        ),
        figure(
            id="reference_found_out", value=leaky.counts["differences"], unit="replies", bar="> 0"
        ),
        figure(id="histories", value=counts["histories"], unit="", bar=f">= {histories}"),
        figure(id="queries_with_graph", value=counts["graph"] / searches, unit="share of searches",
               bar=">= 0.3"),
        figure(id="replies", value=counts["replies"], unit="compared"),
        figure(id="searches", value=counts["searches"], unit="compared"),
        figure(id="searches_that_found", value=counts["found"] / searches, unit="share"),
        figure(id="units_outside", value=1 - counts["inside"] / max(counts["units"], 1),
               unit="share of units"),
        *(figure(id=name.replace(" ", "_"), value=counts[name], unit="times") for name in events),
        figure(id="speed", value=counts["histories"] / seconds, unit="histories/s"),
    ]  # fmt: skip


def _played(folder: str, options: argparse.Namespace, histories: int) -> Iterator[Tally]:
    batches = [range(n, min(n + _AT_ONCE, histories)) for n in range(0, histories, _AT_ONCE)]
    if options.processes < 2:
        yield from (play(folder, str(options.seed), batch) for batch in batches)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=spawn) as pool:
        count = len(batches)
        yield from pool.map(play, [folder] * count, [str(options.seed)] * count, batches)


def play(folder: str, seed: str, numbers: range, *, leaks: bool = False) -> Tally:
    """Some histories, one after the other."""
    tally = Tally()
    for number in numbers:
        with (
            tempfile.TemporaryDirectory(dir=folder) as own,
            short_walks() if number % 2 else contextlib.nullcontext(),
            leaking() if leaks else contextlib.nullcontext(),
        ):
            tally.add(Trial(f"{seed}/{number}", Path(own)).run())
    return tally


@contextlib.contextmanager
def leaking() -> Iterator[None]:
    """An engine that counts the chunks of the whole store in the weight of a word."""
    weight, select, size = lexical.idf, IndexedEngine.select, [0]

    def leaky_idf(count: int, frequency: int) -> float:
        return weight(size[0], frequency)

    def leaky_select(self: IndexedEngine, *asked: Any) -> Selection:
        size[0] = sum(part.count for part in self.parts)
        return select(self, *asked)

    with (
        mock.patch.object(lexical, "idf", leaky_idf),
        mock.patch.object(IndexedEngine, "select", leaky_select),
    ):
        yield


def memory_folder() -> str | None:
    """A folder in memory, where there is one: flushes to a disk would be most of the time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
