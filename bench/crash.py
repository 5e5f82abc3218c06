"""Does what was acknowledged outlive every crash, and nothing else?

Three parts, each over the real store:

- *kills*: ``kill -9`` of a kernel at random points of a mixed load (:mod:`bench.kills`);
- *power*: a recorded trace of writes and flushes, cut at every flush and at random torn points
  (:mod:`bench.torn`). Beside it the same with ``synchronous = NORMAL``, which acknowledges before
  it flushes: it must be caught, or the replay proves nothing;
- *disk*: a disk that is full or broken at each place where the store meets it
  (:mod:`bench.faults`).

``--show`` prints every problem on standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from tempfile import TemporaryDirectory
from unittest import mock

from bench import faults, kills, torn
from bench.disk import scratch_folder
from bench.host import scratch
from bench.machine import machine
from bench.report import Figure, Progress, Report, figure
from isovist.storage import schema

LANES = 2
"""Stores whose kernels are killed at the same time."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=300, help="kills (default 300)")
    parser.add_argument("--points", type=int, default=1000, help="torn points (default 1000)")
    parser.add_argument("--steps", type=int, default=120, help="steps of the trace (default 120)")
    parser.add_argument("--parts", default="kills,power,disk", help="some of: kills,power,disk")
    parser.add_argument("--show", action="store_true", help="print every problem")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    parts = options.parts.split(",")
    if options.quick:
        options.runs, options.points, options.steps = 4, 40, 12
    figures: list[Figure] = []
    problems: list[str] = []
    with scratch() as name:
        folder = Path(name)
        facts = machine(folder)
        if "kills" in parts:
            figures += _kills(folder, options, progress, problems)
        if "power" in parts:
            figures += _power(options, progress, problems)
        if "disk" in parts:
            figures += _disk(options, progress, problems)
    if options.show or problems:
        for line in problems if options.show else problems[:20]:
            print(line, file=sys.stderr)
    config = {
        "seed": options.seed, "quick": options.quick, "runs": options.runs,
        "points": options.points, "steps": options.steps, "parts": options.parts,
        "sector": torn.SECTOR,
    }  # fmt: skip
    return Report(bench="crash", machine=facts, config=config, figures=figures)


def _kills(
    folder: Path, options: argparse.Namespace, progress: Progress, problems: list[str]
) -> list[Figure]:
    lanes = min(LANES, options.runs)
    done = [0] * lanes

    def lane(number: int) -> kills.Killed:
        state = folder / str(number)
        state.mkdir()

        def told(count: int) -> None:
            done[number] = count
            progress("kills", sum(done), options.runs)

        runs = options.runs // lanes + (number < options.runs % lanes)
        return kills.run(state, f"{options.seed} {number}", runs, told)

    with ThreadPoolExecutor(lanes) as pool:
        killed = list(pool.map(lane, range(lanes)))
    (folder / "lock").mkdir()
    locks = kills.one_kernel_a_store(folder / "lock")
    found = [line for one in killed for line in one.problems]
    lost = [line for line in found if "lost" in line or "by half" in line or "legs:" in line]
    ghosts = [line for line in found if "gone" in line or "ghost" in line]
    others = [line for line in found if line not in lost and line not in ghosts]
    problems += found + locks

    def total(name: str) -> float:
        return float(sum(getattr(one, name) for one in killed))

    return [
        figure("kills", total("kills"), "kills", bar=f">= {options.runs}"),
        figure("kills.at_start", total("kills_at_start"), "kills"),
        figure("kills.acknowledged", total("answered"), "requests"),
        figure("kills.doubtful", total("doubtful"), "requests"),
        figure("kills.units", total("units"), "units, all looked for in both legs at the end"),
        figure("kills.backups", total("backups"), "copies"),
        figure("kills.lost", len(lost), "units", bar="== 0"),
        figure("kills.ghosts", len(ghosts), "units", bar="== 0"),
        figure("kills.other_problems", len(others), "problems", bar="== 0"),
        figure("kills.second_kernel", len(locks), "problems", bar="== 0"),
    ]


def _power(options: argparse.Namespace, progress: Progress, problems: list[str]) -> list[Figure]:
    whole = _replayed(options.seed, options.steps, options.points, progress)
    problems += whole.problems
    with _acknowledged_early():
        early = _replayed(options.seed, min(options.steps, 20), min(options.points, 60), progress)
    return [
        figure("power.flushes", whole.flushes, "flushes"),
        figure("power.torn_points", whole.points, "points"),
        figure("power.states", whole.states, "states opened"),
        figure("power.wrong", len(whole.problems), "states", bar="== 0"),
        figure("power.caught", len(early.problems), "states (mutation: flushed late)", bar="> 0"),
    ]


def _replayed(seed: int, steps: int, points: int, progress: Progress) -> torn.Replayed:
    with TemporaryDirectory(prefix="isovist-torn-", dir=scratch_folder()) as name:
        folder = Path(name, "store")
        folder.mkdir()
        return torn.run(folder, seed, steps, points, progress)


@contextmanager
def _acknowledged_early() -> Iterator[None]:
    """A store that says that it is done before its log is flushed."""
    connect = schema.connect

    def early(path: Path, *, read_only: bool = False) -> Connection:
        db = connect(path, read_only=read_only)
        if not read_only:
            db.execute("PRAGMA synchronous = NORMAL")
        return db

    with mock.patch.object(schema, "connect", early):
        yield


def _disk(options: argparse.Namespace, progress: Progress, problems: list[str]) -> list[Figure]:
    with TemporaryDirectory(prefix="isovist-faults-", dir=scratch_folder()) as name:
        rounds = 1 if options.quick else 2
        told = faults.run(Path(name), options.seed, rounds, progress, quick=options.quick)
    problems += told.problems
    return [
        figure("disk.failures", told.injected, "steps that met one", bar="> 0"),
        figure("disk.refused", told.refused, "steps, each with ENOSPC or EIO"),
        figure("disk.upkeep", told.jobs, "jobs that failed, and were done later", bar="> 0"),
        figure("disk.wrong", len(told.problems), "problems", bar="== 0"),
    ]
