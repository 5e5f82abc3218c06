"""Power cuts, replayed: what a disk may hold of a recorded run, opened as a kernel would.

``kill -9`` alone proves little: the system keeps what a dead process wrote, flushed or not. So a
store works over a disk that is watched, and every write, cut and flush of its file and its log is
recorded, with the moments when a step began and when it was acknowledged. Then the power fails at
every flush (just before it has its effect, and just after) and at random points between.

A flush promises that all earlier changes *of that file* are on the disk. Of later ones any may be
there, in any order, each torn in sectors of 512 bytes: what SQLite assumes of a disk, and no more.
From each such state the store is opened, and must hold exactly the rows that were there after some
step between the last acknowledged and the last begun. Derived files beside it are missing, older,
newer or damaged.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from unittest import mock

from bench.disk import OK, Call, Disk, scratch_folder
from bench.report import Progress
from bench.scripted import DATABASE, Held, Scripted, opened, portrait, upkeep

SECTOR = 512
LOG = 96 << 10
"""Bytes of the log at which it is copied into the file: a run of a minute does so many times."""
PROBED = 3
"""Units, living and gone, that are looked for in each leg of every opened store."""

Fate = Literal["none", "all", "prefix", "some"]
Derived = dict[str, bytes]


class Mark(NamedTuple):
    """Step ``number`` began, or what it did was acknowledged."""

    acknowledged: bool
    number: int


@dataclass
class Trace:
    """``events`` in order. Step 0 is the making of the store; after step i the store held the rows
    of ``portraits[i]``, ``units[i]`` and no word of ``gone[i]``. ``derived``: the other files, as
    they were at some moments."""

    events: list[Call | Mark] = field(default_factory=list)
    portraits: list[bytes] = field(default_factory=list)
    units: list[list[Held]] = field(default_factory=list)
    gone: list[list[str]] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)

    def flushes(self) -> list[int]:
        return [i for i, e in enumerate(self.events) if isinstance(e, Call) and e.kind == "sync"]


def record(folder: Path, seed: int, steps: int, progress: Progress) -> Trace:
    """Run a store in ``folder``, watched."""
    rng = random.Random(f"torn {seed}")
    trace = Trace()

    def note(call: Call) -> int:
        trace.events.append(call._replace(path=os.path.basename(call.path)))
        return OK

    def after(work: Scripted) -> None:
        trace.portraits.append(work.portrait())
        trace.units.append(list(work.units.values()))
        trace.gone.append(sorted(work.gone))

    with Disk(DATABASE, note), mock.patch("isovist.storage.log.LIMIT", LOG):
        trace.events.append(Mark(False, 0))
        work = Scripted(folder, rng)
        try:
            trace.events.append(Mark(True, 0))
            after(work)
            for number in range(1, steps + 1):
                progress("steps recorded", number, steps)
                trace.events.append(Mark(False, number))
                if _step(work, rng):
                    trace.events.append(Mark(True, number))
                after(work)
                if rng.random() < 0.3:
                    upkeep(work.store)
                    trace.derived.append(_contents(folder))
                if rng.random() < 0.03:
                    work.store.close()
                    work.store = opened(folder)
        finally:
            work.store.close()
    return trace


def _step(work: Scripted, rng: random.Random) -> bool:
    """Whether what was done is durable now. Vectors are not by themselves: they are derived, and a
    start makes those anew that a power cut took."""
    kinds: list[Callable[[], None]] = [
        work.write, work.embed, work.register, work.scrub, work.purge
    ]  # fmt: skip
    kind = rng.choices(kinds, (60, 25, 8, 5, 2))[0]
    kind()
    return kind != work.embed


# -- what a disk may hold


class Cut:
    """A disk on which the power may fail: what is on it for sure, and what may be."""

    def __init__(self) -> None:
        self._sure: dict[str, bytearray | None] = {}
        self._open: dict[str, list[Call]] = {}

    def do(self, call: Call) -> None:
        waiting = self._open.setdefault(call.path, [])
        if call.kind != "sync":
            waiting.append(call)
        if call.kind == "delete" and call.offset:
            self._names()
        elif call.kind == "sync":
            new = self._sure.get(call.path) is None or any(c.kind == "delete" for c in waiting)
            if new and call.path != DATABASE:
                self._names()
            self._settle(call.path, len(waiting))

    def _names(self) -> None:
        """The folder is flushed, as SQLite does with the first flush of a new log or journal: of
        every file it is sure that it is gone, if it is."""
        for path, waiting in self._open.items():
            gone = [i for i, call in enumerate(waiting) if call.kind == "delete"]
            if gone:
                self._settle(path, gone[-1] + 1)

    def _settle(self, path: str, count: int) -> None:
        waiting = self._open[path]
        self._sure[path] = _done(self._sure.get(path), waiting[:count])
        del waiting[:count]

    def state(self, fate: Fate, rng: random.Random) -> dict[str, bytes]:
        """One of the states that are possible now: nothing of what is not flushed is there, all
        of it, the first so many changes of each file with the next one torn, or any of them."""
        found = {}
        for path in sorted(self._sure.keys() | self._open.keys()):
            calls = self._open.get(path, [])
            content = _done(self._sure.get(path), list(_survivors(calls, fate, rng)))
            if content is not None:
                found[path] = bytes(content)
        return found


def _survivors(calls: Sequence[Call], fate: Fate, rng: random.Random) -> Iterator[Call]:
    if fate == "all":
        yield from calls
    elif fate == "prefix" and calls:
        count = rng.randrange(len(calls) + 1)
        yield from calls[:count]
        for call in calls[count : count + 1]:
            if call.kind == "write":
                sectors = list(_sectors(call))
                yield from sectors[: rng.randrange(len(sectors) + 1)]
    elif fate == "some":
        share = rng.choice((0.1, 0.5, 0.9, 0.99))
        for call in calls:
            parts = _sectors(call) if call.kind == "write" else [call]
            yield from (part for part in parts if rng.random() < share)


def _sectors(call: Call) -> Iterator[Call]:
    at = 0
    while at < len(call.data):
        size = SECTOR - (call.offset + at) % SECTOR
        yield Call("write", call.path, call.offset + at, call.data[at : at + size])
        at += size


def _done(content: bytearray | None, calls: Sequence[Call]) -> bytearray | None:
    made = None if content is None else bytearray(content)
    for call in calls:
        if call.kind == "delete":
            made = None
            continue
        made = bytearray() if made is None else made
        if call.kind == "truncate":
            if call.offset < len(made):
                del made[call.offset :]
        else:
            made.extend(bytes(max(0, call.offset + len(call.data) - len(made))))
            made[call.offset : call.offset + len(call.data)] = call.data
    return made


# -- opened again


class Replayed(NamedTuple):
    """``problems``: what was wrong with any state, a line each."""

    flushes: int
    points: int
    states: int
    problems: list[str]


def replay(trace: Trace, seed: int, points: int, progress: Progress) -> Replayed:
    """Open the states around every flush, and at ``points`` random points."""
    rng = random.Random(f"cuts {seed}")
    flushes = set(trace.flushes())
    expected = 3 * len(flushes) + points
    torn = sorted(rng.choices(range(len(trace.events)), k=points))
    disk, problems, states = Cut(), [], 0
    begun = acknowledged = -1
    for at, event in enumerate(trace.events):
        fates: list[Fate] = ["prefix" if rng.random() < 0.5 else "some"] * torn.count(at)
        if isinstance(event, Mark):
            if event.acknowledged:
                acknowledged = event.number
            else:
                begun = event.number
        else:
            if at in flushes:
                fates.append("some")
            else:
                disk.do(event)
        while True:
            for fate in fates:
                states += 1
                progress("states opened", states, expected)
                state = disk.state(fate, rng)
                wrong = _opened(trace, state, acknowledged, begun, rng)
                problems += [f"event {at}, {fate}: {line}" for line in wrong]
            if at not in flushes or isinstance(event, Mark):
                break
            flushes.remove(at)  # so far it was the moment before this flush
            disk.do(event)
            fates = ["none", "all"]
    return Replayed(len(trace.flushes()), points, states, problems)


def _opened(
    trace: Trace, state: dict[str, bytes], acknowledged: int, begun: int, rng: random.Random
) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="isovist-cut-", dir=scratch_folder()) as name:
        folder = Path(name)
        for path, content in state.items():
            (folder / path).write_bytes(content)
        _derive(folder, trace, rng)
        try:
            store = opened(folder)
        except Exception as e:  # whatever it is, a kernel could not start
            return [f"cannot be opened: {type(e).__name__}: {e}"]
        try:
            if rng.random() < 0.2:
                upkeep(store)
            told = store.verify()
            if acknowledged < 0:
                return told
            found = portrait(folder / DATABASE)
            steps = range(acknowledged, begun + 1)
            equal = [step for step in steps if trace.portraits[step] == found]
            if not equal:
                return [*told, _which(trace, found, acknowledged, begun)]
            units, gone = trace.units[equal[0]], trace.gone[equal[0]]
            told += Scripted.problems(
                rng.sample(units, min(PROBED, len(units))),
                rng.sample(gone, min(PROBED, len(gone))),
                store,
            )
            return told
        except Exception as e:
            return [f"breaks: {type(e).__name__}: {e}"]
        finally:
            store.close()


def _which(trace: Trace, found: bytes, acknowledged: int, begun: int) -> str:
    if found in trace.portraits:
        step = trace.portraits.index(found)
        return f"holds step {step}, although {acknowledged} was acknowledged and {begun} begun"
    return f"holds no step: {acknowledged} was acknowledged and {begun} begun"


# -- derived files


def _contents(folder: Path) -> Derived:
    derived = folder / f"{DATABASE}.index"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(derived.rglob("*"))
        if path.is_file()
    }


def _derive(folder: Path, trace: Trace, rng: random.Random) -> None:
    """Put derived files of any age beside the store, or none; of some of them damage one."""
    if not trace.derived or rng.random() < 0.3:
        return
    files = dict(rng.choice(trace.derived))
    if files and rng.random() < 0.5:
        path = rng.choice(sorted(files))
        content = bytearray(files[path])
        if content and rng.random() < 0.5:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content) + 1) :]
        files[path] = bytes(content)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def run(folder: Path, seed: int, steps: int, points: int, progress: Progress) -> Replayed:
    """Record in ``folder``, which is used up, and replay."""
    trace = record(folder, seed, steps, progress)
    shutil.rmtree(folder)
    return replay(trace, seed, points, progress)
