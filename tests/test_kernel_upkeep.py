"""Upkeep of the store beside the loop: when it looks, what it does at once, how it ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel import kernel as kernels
from isovist.kernel import upkeep
from isovist.kernel.upkeep import Upkeep
from isovist.storage.indexed import Tuning
from isovist.storage.jobs import BuildGraph
from isovist.syscalls.errors import Errno, WorldError


class Store:
    """Hands out the jobs that it is given; a job that is an error fails with it."""

    def __init__(self, *jobs: object, dirty: int = 0, worker: bool = True) -> None:
        self.jobs = deque(jobs)
        self.looks: list[float] = []
        self.ran: list[object] = []
        self.finished: list[object] = []
        self.dirty = dirty
        """So often a scrub says that jobs are due first."""
        self.loop = threading.get_ident()
        self.busy = 0
        self.worker = worker
        """Whether jobs are run in a thread of their own."""

    def job(self) -> object:
        assert threading.get_ident() == self.loop
        self.looks.append(trio.current_time())
        return self.jobs.popleft() if self.jobs else None

    def run(self, job: object) -> None:
        self._alone()
        self.ran.append(job)
        if isinstance(job, Exception):
            raise job

    def finish(self, job: object) -> None:
        assert threading.get_ident() == self.loop
        self.finished.append(job)

    def scrub(self, now: int, owed: object = None) -> bool:
        self._alone()
        self.ran.append(f"scrub at {now}")
        self.dirty -= 1
        if self.dirty >= 0:
            self.jobs.append(f"graph {self.dirty}")
        return self.dirty < 0

    def _alone(self) -> None:
        assert (threading.get_ident() != self.loop) is self.worker
        self.busy += 1
        assert self.busy == 1
        self.busy -= 1


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would run on while a thread works."""

    async def run_sync(work: Callable[..., object], *args: object) -> object:
        await trio.lowlevel.checkpoint()
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.mark.usefixtures("no_threads")
async def test_a_look_follows_a_write_soon_and_many_writes_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store("one", "two", worker=False)
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        keeper = Upkeep(store)
        nursery.start_soon(keeper.run)
        await trio.sleep(5)
        assert (store.ran, store.finished) == (["one", "two"], ["one", "two"])
        assert {at - begin for at in store.looks} == {0}
        await trio.sleep(100)
        assert len(store.looks) == 3, "nothing was written"
        now = trio.current_time()
        for _ in range(100):
            keeper.note()
            await trio.sleep(0.05)
        await trio.sleep(60)
        assert 5 <= len(store.looks[3:]) <= 11
        assert store.looks[3] - now == upkeep.PAUSE_S
        count, now = len(store.looks), trio.current_time()
        keeper.note_read()
        await trio.sleep(1)
        assert len(store.looks) == count
        await trio.sleep(60)
        assert [at - now for at in store.looks[count:]] == [upkeep.READS_S]
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("no_threads")
async def test_a_job_that_fails_is_undone_and_tried_again_later(
    autojump_clock: trio.abc.Clock,
) -> None:
    failure = WorldError("full", errno=Errno.ENOSPC)
    store = Store(failure, "next", worker=False)
    async with trio.open_nursery() as nursery:
        keeper = Upkeep(store)
        nursery.start_soon(keeper.run)
        await trio.sleep(1)
        assert store.finished == [failure]
        keeper.note()
        await trio.sleep(upkeep.AGAIN_S - 2)
        assert store.finished == [failure]
        await trio.sleep(3)
        assert store.finished == [failure, "next"]
        nursery.cancel_scope.cancel()


async def test_a_scrub_does_what_is_due_first_and_then_begins_again() -> None:
    store = Store(dirty=2)
    keeper = Upkeep(store)
    await keeper.scrub(7)
    assert store.ran == [
        "scrub at 7", "graph 1", "scrub at 7", "graph 0", "scrub at 7"
    ]  # fmt: skip
    assert store.finished == ["graph 1", "graph 0"]


async def test_jobs_and_scrubs_take_turns() -> None:
    store = Store(*range(20), dirty=3)
    keeper = Upkeep(store)
    async with trio.open_nursery() as nursery:
        for n in range(5):
            nursery.start_soon(keeper.once)
            nursery.start_soon(keeper.scrub, n)
    assert sorted(store.finished, key=str) == sorted(
        [*range(20), "graph 0", "graph 1", "graph 2"], key=str
    )


async def test_a_kernel_keeps_its_store_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_tuning", lambda settings: Tuning(delta=4))
    with short_folder() as folder:
        async with running(Path(folder)) as kernel, client(kernel, "mail") as mail:
            for n in range(8):
                await mail.remember(f"parcel number {n}")
            with trio.fail_after(30):
                while kernel.store.statistics()["delta"]:
                    await trio.sleep(0.01)
            found = await mail.search("parcel", k=8)
            assert len(found.hits) == 8
            figures = kernel.statistics()
            assert (figures["store_chunks"], figures["store_delta"]) == (8, 0)


async def test_a_kernel_that_stops_waits_for_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on until it is told that nobody waits for it any more."""
    pytest.importorskip("hnswlib")
    monkeypatch.setattr(kernels, "_tuning", lambda settings: Tuning(crossover=4))
    began = threading.Event()

    def endless(job: BuildGraph, reader: object) -> None:
        began.set()
        while not job._cancelled():
            threading.Event().wait(0.01)

    monkeypatch.setattr(BuildGraph, "run", endless)
    with short_folder() as folder, trio.fail_after(60):
        async with running(Path(folder)) as kernel, client(kernel, "mail") as mail:
            for n in range(8):
                await mail.remember(f"parcel number {n}")
            await trio.to_thread.run_sync(began.wait)
