"""A whole kernel lets go of what has expired, and keeps rival corrections apart."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
import trio
from kernel_helpers import client, running, short_folder
from storage_helpers import put

from isovist.kernel import forgetting
from isovist.kernel.kernel import Kernel
from isovist.storage.store import Store
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import CallerError, Errno, IsovistError

PAST = "2020-01-01T00:00Z"


async def gone(kernel: Kernel) -> None:
    """Wait until the store holds nothing that expires."""
    with trio.fail_after(30):
        while kernel.store.expired(time.time_ns(), 0)[1] is not None:
            await trio.sleep(0.01)


async def scores(k: AsyncClient) -> list[tuple[str, float]]:
    found = await k.search("lemon tart recipe", k=20)
    return [(hit.unit.text, hit.score) for hit in found.hits]


@pytest.mark.promise("view.noninterference")
async def test_what_has_expired_moves_no_score_and_its_record_says_who_did_it() -> None:
    with short_folder() as folder, structlog.testing.capture_logs() as logs:
        async with (
            running(Path(folder)) as kernel,
            client(kernel, "mail") as k,
            client(kernel, "operator", operator=True) as admin,
        ):
            for n in range(5):
                await k.remember(f"lemon tart recipe {n} " + "sugar " * n)
            before = await scores(k)
            born = await k.remember("lemon tart expired at birth", expires_at=PAST)
            cut = await k.remember("lemon tart recipe cut short")
            await k.expire(cut.id, 1, PAST)
            soon = datetime.now(UTC) + timedelta(seconds=0.2)
            timed = await k.remember("lemon tart for a moment", expires_at=soon.isoformat())
            await gone(kernel)
            assert await scores(k) == before
            for unit in (born, cut, timed):
                with pytest.raises(CallerError) as e:
                    await k.read(unit.id)
                assert e.value.errno == Errno.ENOENT
            told = [line for line in logs if line["event"] == "expired units are gone"]
            assert sum(line["units"] for line in told) == 3
            records = [await admin.why(line["call"]) for line in told]
            assert {record.syscall for record in records} == {"expired"}
            named = {unit.unit for record in records for unit in record.units}
            assert named == {born.id, cut.id, timed.id}
            with pytest.raises(CallerError):
                await k.why(told[0]["call"])


@pytest.mark.promise("erase.complete")
async def test_what_expired_while_no_kernel_was_up_leaves_the_files_first_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forgetting, "QUIET_S", 0.0)
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            path = kernel.config.database
            name, dim = kernel.embedding.name, kernel.embedding.dim
        store = Store.open(path, name, dim)
        store.restore()
        units = [
            put(n, f"the canary quagglemire {n}", user="agent/mail", agent="mail",
                expires_at=time.time_ns() - n if n % 2 else None)
            for n in range(1, 101)
        ]  # fmt: skip
        store.apply(store.commit(units))
        store.close()

        def holding(word: bytes) -> list[str]:
            found: list[str] = []
            for file in Path(folder).rglob("*"):
                with suppress(FileNotFoundError, IsADirectoryError):  # upkeep goes on meanwhile
                    found += [file.name] * (word in file.read_bytes())
            return found

        assert holding(b"quagglemire 51") != []
        async with running(Path(folder)) as kernel, client(kernel, "mail") as k:
            await gone(kernel)
            assert len([unit async for unit in k.memories()]) == 50
            with trio.fail_after(30):
                while holding(b"quagglemire 51"):
                    await trio.sleep(0.05)
            assert kernel.store.verify() == []


async def test_of_two_writers_who_correct_one_memory_at_once_one_is_told() -> None:
    with short_folder() as folder:
        async with (
            running(Path(folder)) as kernel,
            client(kernel, "mail") as one,
            client(kernel, "mail") as two,
        ):
            old = await one.remember("the code word is magnolia")
            told: list[str | IsovistError] = []

            async def correct(k: AsyncClient, word: str) -> None:
                try:
                    made = await k.remember(f"the code word is {word}", supersedes=old.id)
                    told.append(made.id)
                except IsovistError as e:
                    told.append(e)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(correct, one, "tulip")
                nursery.start_soon(correct, two, "rose")
            (kept,) = [one_ for one_ in told if isinstance(one_, str)]
            (refused,) = [one_ for one_ in told if isinstance(one_, IsovistError)]
            assert (refused.errno, refused.field) == (Errno.ESTALE, "supersedes")
            assert kept in refused.message
            hits = (await one.search("code word")).hits
            assert [hit.unit.id for hit in hits] == [kept]
            # Whoever was told corrects the correction.
            await two.remember("the code word is rose", supersedes=kept)


@pytest.mark.promise("erase.complete")
async def test_what_comes_after_a_forgotten_memory_still_hides_what_came_before() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel, client(kernel, "mail") as k:
            first = await k.remember("the code word is magnolia")
            second = await k.remember("the code word is tulip", supersedes=first.id)
            third = await k.remember("the code word is rose", supersedes=second.id)
            assert (await k.forget(second.id)).derived == (third.id,)
            hits = (await k.search("code word")).hits
            assert [hit.unit.id for hit in hits] == [third.id]
