"""A disk that is full or broken, at each place where the store meets it.

A store works over a disk that is watched (:mod:`bench.disk`). For each kind of step and of fault,
the disk begins to fail at the first of the step's calls, then at the second, and so on, until the
step gets by without meeting the fault. Each time:

- the store takes effect or says ``ENOSPC`` or ``EIO``, as the fault was, and nothing else;
- the file holds exactly the rows of before the step if it was refused, of after it if it was not;
- every unit of before is found in both legs meanwhile, and once the disk works again, the next
  step takes effect.

At the end the store is opened anew, with all of it there. Derived files are made to fail by a limit
on the length of files: a job of upkeep fails, answers stay right, and later it is done.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from bench.disk import FULL, IOERR_FSYNC, IOERR_TRUNCATE, IOERR_WRITE, OK, Call, Disk, Kind
from bench.report import Progress
from bench.scripted import DATABASE, Refused, Scripted, opened, upkeep
from bench.torn import LOG
from isovist.syscalls.errors import Errno, IsovistError

SMALL = 256
"""Bytes that no derived file fits in."""


class Fault(NamedTuple):
    name: str
    kind: Kind
    code: int
    errno: Errno


FAULTS = (
    Fault("full", "write", FULL, Errno.ENOSPC),
    Fault("write", "write", IOERR_WRITE, Errno.EIO),
    Fault("flush", "sync", IOERR_FSYNC, Errno.EIO),
    Fault("cut", "truncate", IOERR_TRUNCATE, Errno.EIO),
)


class Failing:
    """A judge: from its ``after``-th call of a kind on, all fail, until it is mended."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.after = 0
        self.met = 0

    def begin(self, fault: Fault, after: int) -> None:
        self.fault, self.after, self.met = fault, after, 0

    def mend(self) -> None:
        self.fault = None

    def __call__(self, call: Call) -> int:
        fault = self.fault
        if fault is None or call.kind != fault.kind:
            return OK
        if self.after:
            self.after -= 1
            return OK
        self.met += 1
        return fault.code


@dataclass
class Faulted:
    """``injected``: times that the disk failed in a step; ``refused``: steps that said so;
    ``problems``: what was wrong, a line each; ``jobs``: of upkeep, that failed and were done
    later."""

    injected: int = 0
    refused: int = 0
    jobs: int = 0
    problems: list[str] = field(default_factory=list)


def run(
    folder: Path, seed: int, rounds: int, progress: Progress, *, quick: bool = False
) -> Faulted:
    """``rounds``: how often each kind of step meets each fault, from its first call on. ``quick``:
    writes alone do."""
    rng = random.Random(f"faults {seed}")
    failing, told = Failing(), Faulted()
    with Disk(DATABASE, failing), mock.patch("isovist.storage.log.LIMIT", LOG):
        work = Scripted(folder, rng)
        try:
            for _ in range(12):
                work.write()
                work.embed()
            steps: list[tuple[str, Callable[[], None]]] = [
                ("write", work.write),
                ("embed", work.embed),
                ("register", work.register),
                ("scrub", work.scrub),
                ("purge", work.purge),
            ]
            if quick:
                del steps[1:]
            done, of = 0, rounds * len(steps) * len(FAULTS)
            for _ in range(rounds):
                for name, step in steps:
                    for fault in FAULTS:
                        done += 1
                        progress("steps on a failing disk", done, of)
                        _sweep(work, failing, f"{fault.name} in {name}", fault, step, told)
            work.store.close()
            work.store = opened(folder)
            told.problems += [f"opened again: {line}" for line in _all(work)]
            _derived(work, told)
        finally:
            work.store.close()
    return told


def _sweep(
    work: Scripted,
    failing: Failing,
    name: str,
    fault: Fault,
    step: Callable[[], None],
    told: Faulted,
) -> None:
    """The fault at each of a step's calls, until it meets none any more."""
    after = 0
    while True:
        # What a step needs to have something to do.
        work.write()
        before = work.portrait()
        failing.begin(fault, after)
        try:
            refused = _tried(step)
        except (IsovistError, AssertionError) as e:
            refused = None
            told.problems.append(f"{name}, call {after}: {type(e).__name__}: {e}")
        met = failing.met
        told.problems += [f"{name}, call {after}, meanwhile: {line}" for line in _some(work)]
        failing.mend()
        told.injected += bool(met)
        if refused is not None:
            told.refused += 1
            if refused.errno != fault.errno or not met:
                told.problems.append(f"{name}, call {after}: said {refused}")
            if work.portrait() != before:
                told.problems.append(f"{name}, call {after}: refused, and took effect")
        try:
            work.write()
        except (Refused, IsovistError) as e:
            told.problems.append(f"{name}, call {after}: no write after it: {e}")
            return
        told.problems += [f"{name}, call {after}: {line}" for line in _some(work)]
        if not met:
            return
        # Every call at first, then fewer: a step has up to a thousand.
        after += max(1, after // 4)


def _tried(step: Callable[[], None]) -> Refused | None:
    try:
        step()
    except Refused as e:
        return e
    return None


def _some(work: Scripted) -> list[str]:
    units = list(work.units.values())
    gone = sorted(work.gone)
    return work.problems(
        work.rng.sample(units, min(2, len(units))), work.rng.sample(gone, min(1, len(gone))),
        work.store,
    )  # fmt: skip


def _all(work: Scripted) -> list[str]:
    told = work.problems(list(work.units.values()), sorted(work.gone)[:50], work.store)
    return told + work.store.verify()


def _derived(work: Scripted, told: Faulted) -> None:
    """Jobs of upkeep on a disk that takes no new file."""
    for _ in range(4):
        for _ in range(6):
            work.write()
            work.embed()
        while (job := work.store.job()) is not None:
            name = type(job).__name__
            failed = False
            with _short_files():
                try:
                    work.store.run(job)
                except IsovistError:
                    failed = True
                work.store.finish(job)
                told.problems += [f"after {name} failed: {line}" for line in _some(work)]
            if failed:
                told.jobs += 1
                before = work.store.statistics()["delta"]
                upkeep(work.store)
                if work.store.statistics()["delta"] > before:
                    told.problems.append(f"{name} is not done later")
                told.problems += [f"after {name} was done: {line}" for line in _some(work)]
    told.problems += [f"after upkeep: {line}" for line in _all(work)]


@contextmanager
def _short_files() -> Iterator[None]:
    """No file of this process may grow beyond a few bytes: as on a full disk, a write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
