"""``kill -9`` of a kernel at random points of a mixed load, again and again over one store.

Authors write, update, expire, re-scope and forget, also by query, search, and wait for receipts,
so that the store is scrubbed meanwhile; the operator makes backups; upkeep runs as it always does.
Then the kernel is killed, some also while they start, and the ledger says what must be there: what
was acknowledged, and of what was not, all or nothing.
"""

from __future__ import annotations

import contextlib
import random
import resource
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.author import USER, Author
from bench.disk import scratch_folder
from bench.kernels import SECONDS, TUNING, Kernels
from bench.report import CannotRun
from isovist.kernel.lock import holder
from isovist.kernel.state.views import view_of
from isovist.storage.embedder import make_embedder
from isovist.storage.store import Store
from isovist.syscalls import messages as m
from isovist.syscalls.client import Client
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import Mode, Reader, Unit

AUTHORS = 3
PROBED = 5
"""Units of each author that are looked for after each kill: those last written first."""
STARTING = 0.8
"""Seconds within which a kernel is killed that has just been started."""
SHORT = 4096
"""Bytes that no file may grow beyond while the disk is made to fail."""


class Operator:
    """Makes backups and asks for receipts, in the midst of it all."""

    def __init__(self, kernels: Kernels, rng: random.Random) -> None:
        self._folder = kernels.state / "copies"
        self._folder.mkdir(exist_ok=True)
        self._rng = rng
        self._client = kernels.attach()
        self.backups = 0

    def begin(self) -> None:
        self.backups += 1
        path = self._folder / f"{self._rng.randrange(1 << 60)}.db"
        self._client.submit(m.Backup(path=str(path)))

    def end(self) -> list[str]:
        """Every copy that has its name is whole."""
        self._client.close()
        told = []
        for path in self._folder.glob("*.db"):
            told += [f"backup: {line}" for line in _recount(path)]
        shutil.rmtree(self._folder)
        return told


# -- the runs


@dataclass
class Killed:
    kills: int = 0
    kills_at_start: int = 0
    answered: int = 0
    doubtful: int = 0
    units: int = 0
    backups: int = 0
    problems: list[str] = field(default_factory=list)


def run(state: Path, seed: str, runs: int, progress: Callable[[int], None]) -> Killed:
    """``runs`` kills over one store in ``state``."""
    rng = random.Random(f"kills {seed}")
    authors = [Author(number, rng) for number in range(AUTHORS)]
    told = Killed()
    with Kernels(state) as kernels:
        kernels.start()
        with kernels.attach() as k:
            for author in authors:
                k.grant(author.name, users=(USER,), scopes=("user",))
        for number in range(runs):
            progress(number)
            _one(kernels, authors, rng, told)
            if rng.random() < 0.3:
                kernels.begin()
                time.sleep(rng.random() * STARTING)
                kernels.kill()
                told.kills_at_start += 1
            kernels.start()
            with contextlib.ExitStack() as stack:
                for author in authors:
                    k = stack.enter_context(kernels.attach(author.name, user=USER))
                    wrong = author.settle(_listed(k, author, told))
                    count = PROBED if number < runs - 1 else len(author.units)
                    wrong += author.probe(k, count)
                    told.problems += [f"kill {number}: {author.name}: {line}" for line in wrong]
        told.units = sum(len(author.units) for author in authors)
        told.answered = sum(author.answered for author in authors)
        told.problems += _short_of_room(kernels)
    return told


def _one(kernels: Kernels, authors: list[Author], rng: random.Random, told: Killed) -> None:
    """Load until the kernel is killed, then look at the files it left."""
    for author in authors:
        author.attach(kernels)
        author.ask()
    operator = Operator(kernels, rng)
    left = rng.choice((0, rng.randrange(40), rng.randrange(150), rng.randrange(300)))
    backup_at = rng.randrange(200)
    while left > 0:
        ready = select.select([author.sock for author in authors], [], [], SECONDS)[0]
        if not ready:
            told.problems.append("the kernel answers no more")
            break
        for author in authors:
            if author.sock in ready:
                got = author.take()
                if got < 0:
                    told.problems.append(f"the kernel ended by itself: {kernels.log()}")
                    left = 0
                    break
                left -= got
                author.ask()
        if left < backup_at:
            operator.begin()
            backup_at = -1
    kernels.kill()
    told.kills += 1
    for author in authors:
        while author.take() >= 0:
            pass
        author.sock.close()
        told.doubtful += len(author.doubtful)
    told.backups += operator.backups
    told.problems += operator.end()
    told.problems += _files(kernels.state, authors, rng)


def _listed(k: Client, author: Author, told: Killed) -> dict[str, Unit]:
    units = [unit for unit in k.memories(limit=200) if unit.agent == author.name]
    found = {unit.id: unit for unit in units}
    if len(found) != len(units) or len({unit.text for unit in units}) != len(units):
        told.problems.append(f"{author.name}: a unit is listed twice")
    return found


def _recount(path: Path) -> list[str]:
    embedder = make_embedder("hash")
    store = Store.open(path, embedder.name, embedder.dim, engine="memory")
    try:
        return store.verify()
    finally:
        store.close()


def _files(state: Path, authors: list[Author], rng: random.Random) -> list[str]:
    """A copy of what the dead kernel left: the statistics are those of a recount, and answers
    with the derived files are those without."""
    embedder = make_embedder("hash")
    with tempfile.TemporaryDirectory(prefix="isovist-left-", dir=scratch_folder()) as name:
        for path in state.glob("isovist.db*"):
            if path.is_dir():
                shutil.copytree(path, Path(name, path.name))
            elif not path.name.endswith("-shm"):
                shutil.copy(path, name)
        path = Path(name, "isovist.db")
        told, answers = [], []
        for engine in ("indexed", "memory"):
            store = Store.open(path, embedder.name, embedder.dim, engine=engine, tuning=TUNING)
            try:
                store.restore()
                if engine == "indexed":
                    told += [f"files: {line}" for line in store.verify()]
                answers.append(list(_answers(store, authors, random.Random(len(told)))))
            finally:
                store.close()
        if answers[0] != answers[1]:
            told.append("files: the index that was left answers otherwise than all units do")
        return told


def _answers(store: Store, authors: list[Author], rng: random.Random) -> Iterator[object]:
    embedder = make_embedder("hash")
    for author in authors:
        view = view_of(Reader(USER, author.name))
        modes: tuple[Mode, ...] = ("bm25", "hybrid")
        for mode in modes:
            text = " ".join(f"common{rng.randrange(400)}" for _ in range(4))
            query = SearchQuery(text=text, k=8, mode=mode, now=1 << 61)
            found = store.select(view, query, embedder.embed(text))
            yield [hit.hit.unit.id for hit in found.candidates]


def _short_of_room(kernels: Kernels) -> list[str]:
    """A running kernel's disk takes no more: its calls end typed, and it goes on when there is
    room again."""
    told = []
    with kernels.attach("author0", user=USER) as k:
        before = [unit.id for unit in k.memories(limit=200) if unit.agent == "author0"]
        soft, hard = resource.prlimit(kernels.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(kernels.pid, resource.RLIMIT_FSIZE, (SHORT, hard))
        try:
            for call in (lambda: k.remember("no room for this"), lambda: k.forget(before[0])):
                try:
                    call()
                except IsovistError as e:
                    if e.errno not in (Errno.EIO, Errno.ENOSPC):
                        told.append(f"no room: {e}")
                else:
                    told.append("no room: acknowledged what cannot be written")
            after = [unit.id for unit in k.memories(limit=200) if unit.agent == "author0"]
            if after != before:
                told.append("no room: a list is not what it was")
        finally:
            resource.prlimit(kernels.pid, resource.RLIMIT_FSIZE, (soft, hard))
        k.remember("zqroom is there again")
        if len(k.search("zqroom", mode="bm25").hits) != 1:
            told.append("room again: what was written is not found")
    return told


def one_kernel_a_store(state: Path) -> list[str]:
    """A second kernel is refused in words that name the first; a dead one's lock is taken over."""
    told = []
    with Kernels(state) as kernels, Kernels(state) as others:
        kernels.start()
        try:
            others.start()
        except CannotRun:
            if f"process {kernels.pid}" not in others.log():
                told.append("the second kernel is refused without the first's number")
        else:
            told.append("two kernels serve one store")
        if holder(state / "kernel.lock") != kernels.pid:
            told.append("the lock does not name the first kernel")
        kernels.kill()
        kernels.start()
        if holder(state / "kernel.lock") != kernels.pid:
            told.append("a dead kernel's lock is not taken over")
    return told
