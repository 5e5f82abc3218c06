"""Is what may be known found, and nothing else? Three public sets, mapped to our scopes, no judge.

All principals of all sets live in one store of one real kernel and are served over its channels.
What the sets call principals, roles, relations and policies becomes users, agents, groups, grants,
streams and scopes; how, and what scopes cannot express, stands at the head of each set's module:

- SMGB, ``bench/scenarios.py``: scopes, promotion, supersession, deletion, tenants, authors;
- PrecisionMemBench, ``bench/beliefs.py``: what must not come back;
- GateMem, ``bench/episodes.py``: who may be shown what, and what was forgotten.

*Must* counts what a set says has to be found, and is: among the first 8 of a search (``must``), or
among its 50 (``must_deep``). *Must not* counts what comes back although it may not, at any door
that is tried: a search 50 units deep, a list of all that the reader sees, the block that a chat
would have held, the full context. A question is passed if all of the first and none of the second
is met. What no scope could decide is counted apart, by reason, and is in neither.

Beside each stands the same history in one scope that everybody reads, searched 50 deep by BM25
alone. Superseded, expired and forgotten units are left out there too, so the difference is made by
scopes alone; its *must not* counts that one search, no list.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench import beliefs, episodes, scenarios
from bench.ground import Ground
from bench.host import Host, scratch
from bench.machine import machine
from bench.report import CannotRun, Progress, Report
from bench.store import BenchStore
from bench.vectors import CachedEmbedder
from isovist.storage.embedder import make_embedder

SETS = {
    "smgb": scenarios.measure,
    "precisionmembench": beliefs.measure,
    "gatemem": episodes.measure,
}
BARRED = ("smgb",)
"""Sets of which every question must be passed."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dump", type=Path, help="write the names of what failed to this file")
    parser.add_argument("--embedder", default="universal", help="default universal")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    if options.data is None:
        raise CannotRun("--data: the folder of data sets is not named")
    with scratch() as folder, tempfile.TemporaryDirectory() as vectors:
        facts = machine(Path(folder))
        # The reference uses the lexical leg alone; its vectors are of the quickest kind.
        embedder = CachedEmbedder(make_embedder("hash"), Path(vectors))
        store = BenchStore(embedder)
        with Host(Path(folder), embedder=options.embedder) as host:
            ground = Ground(host)
            try:
                counts = {
                    name: SETS[name](options.data, ground, store, options.quick, progress)
                    for name in options.sets
                }
            finally:
                ground.close()
                embedder.close()
    if options.dump:
        failures = [f"{name} {what}\n" for name, c in counts.items() for what in c.failures]
        options.dump.write_text("".join(failures), "utf-8")
    return Report(
        bench="govern",
        machine=facts,
        config={
            "seed": "nothing is drawn",
            "quick": options.quick,
            "embedder": options.embedder,
            "sets": options.sets,
        },
        figures=[f for name, c in counts.items() for f in c.figures(name, name in BARRED)],
    )
