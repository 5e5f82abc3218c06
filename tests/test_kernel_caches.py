"""What models keep of prompts goes before a receipt is issued, by the whole kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel import llm
from isovist.kernel.drivers import protocol as p
from isovist.kernel.kernel import Kernel
from isovist.kernel.state import events as ev
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.records import Message

pytestmark = pytest.mark.promise("erase.complete")
PATIENCE = 60.0


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    with short_folder() as folder:
        async with running(Path(folder)) as running_kernel:
            yield running_kernel


def said(text: str) -> list[Message]:
    return [Message("user", text)]


async def forgotten(k: AsyncClient) -> int:
    """Store a unit and forget it; when its receipt was issued."""
    gone = await k.forget((await k.remember("the canary sings")).id)
    with trio.fail_after(PATIENCE):
        return (await k.receipt(gone.receipt, wait=True)).issued_at


async def test_a_receipt_comes_when_drivers_have_flushed_and_snapshots_are_gone(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        await k.chat(said("hello"))
        process = kernel.models.process("scripted")
        assert process is not None
        sent: list[p.ToProcess] = []
        send = process.send
        monkeypatch.setattr(process, "send", lambda message: (sent.append(message), send(message)))
        snapshot = kernel.config.snapshots / "talk"
        snapshot.write_text("the canary sings")
        assert await forgotten(k)
        assert sent == [p.Flush(-1)]
        assert not snapshot.exists()
        assert kernel.models.process("scripted") is process


async def test_a_driver_that_does_not_flush_is_killed_and_its_memory_with_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm, "FLUSH_S", 0.05)
    async with client(kernel, "one", operator=True, user="ana") as k, trio.open_nursery() as side:
        await k.chat(said("hello"))
        process = kernel.models.process("scripted")
        assert process is not None

        async def hang() -> None:
            with suppress(IsovistError):
                await k.chat(said("!script tokens=1 hang text=so"))

        begun = trio.Event()
        dispatch = kernel.models._dispatch

        def watched(event: ev.Event) -> None:
            dispatch(event)
            if isinstance(event, ev.Token):
                begun.set()

        monkeypatch.setattr(kernel.models, "_dispatch", watched)
        side.start_soon(hang)
        with trio.fail_after(PATIENCE):
            await begun.wait()
        assert await forgotten(k)
        assert not process.alive
        side.cancel_scope.cancel()


async def test_a_start_that_owes_no_scrub_keeps_snapshots() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            async with client(kernel, "one") as k:
                await k.context_save("talk", said("so"))
            (id_,) = kernel.store.context_ids()
            snapshot = kernel.config.snapshots / id_
            snapshot.write_text("so")
            # A context that is gone, and a file that was being written when all ended.
            orphans = [snapshot.with_name("x0"), snapshot.with_name(f"{id_}.part")]
            for orphan in orphans:
                orphan.write_text("so")
        async with running(Path(folder)) as kernel, client(kernel, "one", operator=True) as k:
            await k.remember("a fact")
            assert kernel.store.owed() is None
            assert snapshot.exists()
            assert not any(orphan.exists() for orphan in orphans)
