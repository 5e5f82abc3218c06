"""A power cut, a full disk, a broken one: what was acknowledged is there, and nothing by half.

The benches of crashes run the same at length (``python -m bench crash``).
"""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import crash, faults, torn
from bench.disk import FULL, Call, Disk, scratch_folder
from bench.report import Progress
from bench.scripted import DATABASE, EMBEDDER, TUNING, Refused, Scripted, opened, upkeep

from isovist.kernel import log
from isovist.storage.inverted import Inverted
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno, WorldError


@pytest.fixture
def quiet() -> Progress:
    return Progress("test", io.StringIO())


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk of memory, where there is one: nothing here is about how long a flush takes."""
    with tempfile.TemporaryDirectory(prefix="isovist-", dir=scratch_folder()) as name:
        yield Path(name)


@pytest.fixture
def seed() -> int:
    drawn = random.randrange(1 << 32)
    print(f"seed {drawn}")
    return drawn


def replayed(folder: Path, seed: int, progress: Progress) -> torn.Replayed:
    folder.mkdir()
    return torn.run(folder, seed, 10, 20, progress)


@pytest.mark.promise("write.durable")
def test_a_power_cut_leaves_what_was_acknowledged_and_no_half(
    folder: Path, seed: int, quiet: Progress
) -> None:
    found = replayed(folder / "store", seed, quiet)
    assert found.problems == []
    assert found.flushes > 10, "a step is flushed before it is acknowledged"
    assert found.states >= 3 * found.flushes


@pytest.mark.promise("write.durable")
def test_an_acknowledgement_before_the_flush_would_be_caught(
    folder: Path, seed: int, quiet: Progress
) -> None:
    with crash._acknowledged_early():
        found = replayed(folder / "store", seed, quiet)
    assert any("was acknowledged" in line for line in found.problems)


def test_a_cut_keeps_all_and_only_what_was_flushed() -> None:
    cut, rng = torn.Cut(), random.Random(1)
    cut.do(Call("write", "a", 0, b"x" * 1024))
    cut.do(Call("sync", "a"))
    cut.do(Call("write", "a", 512, b"y" * 1024))
    cut.do(Call("write", "b-wal", 0, b"z"))
    assert cut.state("none", rng) == {"a": b"x" * 1024}
    assert cut.state("all", rng) == {"a": b"x" * 512 + b"y" * 1024, "b-wal": b"z"}
    seen = {cut.state("some", rng)["a"] for _ in range(400)}
    assert seen == {
        b"x" * 1024, b"x" * 512 + b"y" * 1024, b"x" * 512 + b"y" * 512,
        b"x" * 1024 + b"y" * 512,
    }  # fmt: skip
    cut.do(Call("truncate", "a", 100))
    cut.do(Call("delete", "b-wal", 1))
    assert cut.state("none", rng) == {"a": b"x" * 1024}
    assert cut.state("all", rng) == {"a": b"x" * 100}


# -- a disk that fails


@pytest.mark.promise("write.durable", "kernel.survives")
def test_a_failing_disk_is_said_and_costs_nothing(folder: Path, seed: int, quiet: Progress) -> None:
    told = faults.run(folder, seed, 1, quiet, quick=True)
    assert told.problems == []
    assert told.refused > 10
    assert told.jobs > 0, "upkeep met no full disk"


@pytest.mark.promise("kernel.survives")
def test_a_scrub_on_a_full_disk_issues_no_receipt_and_is_done_later(folder: Path) -> None:
    full = False
    with Disk(DATABASE, lambda call: FULL if full and call.kind == "write" else 0):
        work = Scripted(folder, random.Random(3))
        try:
            for _ in range(8):
                work.write()
                work.embed()
            work.purge()
            waiting = work.store._db.execute("SELECT id FROM receipts").fetchall()
            full = True
            with pytest.raises(Refused) as e:
                work.scrub()
            assert e.value.errno is Errno.ENOSPC
            full = False
            receipts = [work.store.receipt(id_) for (id_,) in waiting]
            assert receipts
            assert all(r is not None and not r.issued_at for r in receipts)
            work.scrub()
            receipts = [work.store.receipt(id_) for (id_,) in waiting]
            assert all(r is not None and r.issued_at for r in receipts)
        finally:
            work.store.close()


def test_filling_gaps_on_a_broken_disk_is_an_error_of_the_world(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Scripted(folder, random.Random(4))
    try:
        work.write()
        work.purge()
        work.store.save_group("users", "x", ())

        def broken(handle: int, size: int) -> None:
            raise OSError(Errno.ENOSPC, "no room")

        for _ in range(6):
            work.write()
        with monkeypatch.context() as patch:
            patch.setattr("isovist.storage.gaps._fill", broken)
            with pytest.raises(WorldError) as e:
                work.store.scrub(1)
        assert e.value.errno is Errno.ENOSPC
        work.scrub()
    finally:
        work.store.close()


# -- what else a crash leaves


@pytest.mark.promise("write.durable")
def test_any_derived_file_torn_anywhere_costs_no_start_and_no_answer(
    folder: Path, seed: int
) -> None:
    rng = random.Random(seed)
    work = Scripted(folder, rng)
    derived = folder / f"{DATABASE}.index"
    for _ in range(12):
        work.write()
        work.embed()
        upkeep(work.store)
    while not list(derived.rglob("*.graph")):  # until some partition has enough for one
        work.write()
        work.embed()
        upkeep(work.store)
    work.store.close()
    files = [path for path in sorted(derived.rglob("*")) if path.is_file()]
    whole = {path: path.read_bytes() for path in files}
    assert {path.suffix for path in files} >= {".term", ".json", ".graph"}
    for path in files:
        size = len(whole[path])
        for length in (rng.choice((0, 1, 7)), rng.randrange(max(1, size))):
            for other, content in whole.items():
                other.write_bytes(content)
            path.write_bytes(whole[path][:length])
            store = opened(folder)
            try:
                units = list(work.units.values())
                assert work.problems(rng.sample(units, 3), (), store) == [], (path.name, length)
            finally:
                store.close()


def test_an_index_file_of_a_few_bytes_is_not_whole(folder: Path) -> None:
    store = Store.open(folder / DATABASE, EMBEDDER.name, EMBEDDER.dim, tuning=TUNING)
    store.close()
    words = folder / f"{DATABASE}.index" / "words"
    (words / "generation").write_bytes(b"1")
    index, whole = Inverted.open(words, b"any")
    assert not whole
    index.close()


@pytest.mark.promise("kernel.survives")
def test_a_line_of_log_that_finds_no_room_is_lost_and_ends_nothing() -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 # its close fails, too
    stream = log._Unfailing(full)
    stream.write("a line\n")
    stream.flush()
    with pytest.raises(OSError, match="No space"):
        full.close()
