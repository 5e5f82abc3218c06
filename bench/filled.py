"""The store of a population, filled as an import fills it; and a process of its own that opens it
and answers, so that its memory and its times are those of a store and of nothing else.

``python -m bench.filled SPEC`` is that process; it ends when it has answered.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import ROOT
from bench.lanes import environment
from bench.population import BEGAN, DIM, Population, Question, Seat
from bench.report import CannotRun, Progress
from isovist.kernel.state.views import Membership, view_of
from isovist.storage.indexed import Tuning
from isovist.storage.store import Store
from isovist.syscalls.operations import Op, Outcome, Put, SearchQuery, Vectors
from isovist.syscalls.records import Mode, Reader, partition_of

MODEL = "bench"
GROUP = 1000
"""Units a commit: puts, then their vectors."""
IMPORT = Tuning(crossover=0, room=0, narrow=0, delta=20_000)
"""While it fills: no graph is made that would be old at once, and nothing is packed."""
NOW = 1_800_000_000 * 10**9
"""When questions are asked (ns since 1970): after the last unit was said."""
WARM = 20
"""Questions a view that are asked before those that are timed."""


class Asked(msgspec.Struct, frozen=True):
    """A question, its vector as float32 bytes."""

    text: str
    vector: bytes


class Sitting(msgspec.Struct, frozen=True):
    """A reader with its groups, and what it asks: first to warm up, then for time."""

    name: str
    user: str
    agent: str
    teams: tuple[str, ...]
    crews: tuple[str, ...]
    warm: tuple[Asked, ...]
    asked: tuple[Asked, ...]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``scan``: no graphs and nothing packed, the mode of least memory."""

    path: str
    dim: int
    k: int
    scan: bool
    sittings: tuple[Sitting, ...] = ()


class Answers(msgspec.Struct, frozen=True):
    """Of one view: ids by question for either mode, and the times of hybrid (ms): on the wall's
    clock, and on this thread's alone, which other processes do not lengthen."""

    name: str
    dense: list[list[str]]
    hybrid: list[list[str]]
    wall: list[float]
    own: list[float]


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """``anonymous`` and ``peak``: bytes of anonymous memory after all answers, and at most at
    the ends of stages; ``open`` and ``jobs``: seconds that opening and upkeep took."""

    answers: list[Answers]
    anonymous: int
    peak: int
    open: float
    jobs: float
    statistics: dict[str, int]


# -- filling


def fill(population: Population, path: Path, progress: Progress) -> None:
    """Write every unit through commit and apply, with its vector; go on where a fill ended early:
    a group is there or is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = Store.open(path, MODEL, DIM, tuning=IMPORT)
    store.restore()
    there = store.statistics()["chunks"]  # one a unit
    known = np.bincount(population.place[:there], minlength=len(population.partitions))
    issued: list[int] = known.tolist()
    for start in range(there, population.units, GROUP):
        ops = _group(population, range(start, min(start + GROUP, population.units)), issued)
        _written(store, ops)
        keep_up(store)
        progress(f"fill {population.units:,}", start + GROUP, population.units)
    store.close()


def fill_rounds(texts: list[str], path: Path, dim: int, seed: int) -> int:
    """A store of one user's conversation, with vectors that mean nothing and are of the right
    size; gives the number of chunks."""
    rng = np.random.default_rng([seed, 4])
    store = Store.open(path, MODEL, dim)
    store.restore()
    partition, seq, chunks = partition_of("pair", "user", "agent"), 0, 0
    for start in range(0, len(texts), GROUP):
        puts: list[Op] = []
        for number, text in enumerate(texts[start : start + GROUP], start + 1):
            seq += 1
            puts.append(
                Put(
                    partition=partition,
                    seq=seq,
                    id=blake2b(f"{seed} {seq}".encode(), digest_size=16).hexdigest(),
                    text=text,
                    kind="conversation",
                    agent="agent",
                    user="user",
                    stream="reusable",
                    said_at=BEGAN + number * 60 * 10**9,
                    stored_at=BEGAN + number * 60 * 10**9,
                    session=f"session {number // 10}",
                    round=number % 10 + 1,
                )
            )
        outcomes = _written(store, puts)
        vectors: list[Op] = []
        for outcome in outcomes:
            seq += 1
            rows = rng.standard_normal((len(outcome.chunks), dim), np.float32)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            chunks += len(rows)
            vectors.append(
                Vectors(
                    partition=partition,
                    seq=seq,
                    id=outcome.id,
                    version=outcome.version,
                    model=MODEL,
                    vectors=tuple(row.astype("<f2").tobytes() for row in rows),
                )
            )
        _written(store, vectors)
        keep_up(store)
    store.close()
    return chunks


def _written(store: Store, ops: list[Op]) -> list[Outcome]:
    outcomes = store.commit(ops)
    if failed := next((outcome for outcome in outcomes if outcome.errno), None):
        raise CannotRun(f"the store refused a unit: {failed.message}")
    store.apply(outcomes)
    return outcomes


def _group(population: Population, units: range, issued: list[int]) -> list[Op]:
    puts: list[Op] = []
    vectors: list[Op] = []
    matrix = population.vectors[units.start : units.stop].astype("<f2")
    for unit, vector in zip(units, matrix, strict=True):
        place = int(population.place[unit])
        partition = population.partitions[place]
        issued[place] += 1
        user, agent = population.owner(unit)
        said = population.said_at(unit)
        put = Put(
            partition=partition,
            seq=issued[place],
            id=f"u{unit}",
            text=population.text(unit),
            kind="note",
            agent=agent,
            user=user,
            stream="reusable",
            said_at=said,
            stored_at=said,
        )
        puts.append(put)
        vectors.append(
            Vectors(
                partition=partition,
                seq=put.seq,
                id=put.id,
                version=1,
                model=MODEL,
                vectors=(vector.tobytes(),),
            )
        )
    return puts + vectors


def keep_up(store: Store) -> None:
    """Do all upkeep that is due."""
    while (job := store.job()) is not None:
        store.run(job)
        store.finish(job)


# -- answering


def sitting(population: Population, seat: Seat, questions: list[Question]) -> Sitting:
    reader = seat.view.reader
    groups = population.membership(reader)
    warm = population.questions(seat, WARM, draw=1)
    return Sitting(
        name=seat.name,
        user=reader.user,
        agent=reader.agent,
        teams=groups.users,
        crews=groups.agents,
        warm=tuple(map(_asked, warm)),
        asked=tuple(map(_asked, questions)),
    )


def _asked(question: Question) -> Asked:
    return Asked(question.text, question.vector.tobytes())


def answer(spec: Spec, folder: Path) -> Answered:
    """Have a process of its own answer."""
    path = folder / "spec"
    path.write_bytes(msgspec.msgpack.encode(spec))
    done = subprocess.run(
        [sys.executable, "-m", "bench.filled", str(path)],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CannotRun(f"the process that answers ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Answered)


def _serve(spec: Spec) -> Answered:
    tuning = Tuning(crossover=0, room=0) if spec.scan else Tuning()
    began = time.perf_counter()
    store = Store.open(Path(spec.path), MODEL, spec.dim, tuning=tuning)
    store.restore()
    opened = time.perf_counter() - began
    peak = _anonymous()
    keep_up(store)
    for one in spec.sittings:
        for _ in _ask(store, spec.k, one, one.warm, "hybrid"):
            pass
    keep_up(store)  # what was asked is now kept in memory
    upkeep = time.perf_counter() - began - opened
    peak = max(peak, _anonymous())
    gc.collect()
    gc.freeze()  # what is loaded stays: a kernel does the same
    answers = []
    for one in spec.sittings:
        hybrid = list(_ask(store, spec.k, one, one.asked, "hybrid"))
        dense = [ids for ids, _, _ in _ask(store, spec.k, one, one.asked, "dense")]
        ids, wall, own = (list(column) for column in zip(*hybrid, strict=True))
        answers.append(Answers(one.name, dense, ids, wall, own))
    anonymous = _anonymous()
    statistics = store.statistics()
    store.close()
    return Answered(
        answers=answers,
        anonymous=anonymous,
        peak=max(peak, anonymous),
        open=opened,
        jobs=upkeep,
        statistics=statistics,
    )


def _ask(
    store: Store, k: int, one: Sitting, asked: tuple[Asked, ...], mode: Mode
) -> Iterator[tuple[list[str], float, float]]:
    view = view_of(Reader(one.user, one.agent), Membership(one.teams, one.crews))
    for question in asked:
        vector = np.frombuffer(question.vector, np.float32)
        query = SearchQuery(text=question.text, k=k, mode=mode, now=NOW)
        wall, own = time.perf_counter_ns(), time.thread_time_ns()
        found = store.select(view, query, vector)
        own, wall = time.thread_time_ns() - own, time.perf_counter_ns() - wall
        yield [unit.id for unit in found.units()], wall / 1e6, own / 1e6


def _anonymous() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: list[str]) -> None:
    spec = msgspec.msgpack.decode(Path(arguments[0]).read_bytes(), type=Spec)
    sys.stdout.buffer.write(msgspec.json.encode(_serve(spec)))


def size(path: Path) -> dict[str, int]:
    """Bytes of a closed store: of its file, and of what is derived from it."""
    derived = path.with_name(f"{path.name}.index")
    files: Any = derived.rglob("*")
    return {
        "file": sum(f.stat().st_size for f in path.parent.glob(f"{path.name}*") if f.is_file()),
        "derived": sum(f.stat().st_size for f in files if f.is_file()),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
