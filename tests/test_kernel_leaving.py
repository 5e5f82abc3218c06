"""A user who is forgotten while agents are at work for it: nothing comes after the receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count as count_up
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel.kernel import Kernel
from isovist.kernel.tools.config import ToolSettings
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.records import ToolRule

WORD = "quetzalcoatlus"
TOOLS = """
import time

def act(text: str) -> str:
    return text

def slow(text: str) -> str:
    open("begun", "w").close()
    time.sleep(2)
    return text * 4000
"""


async def forget(k: AsyncClient, user: str) -> str:
    counted = await k.forget_user(user)
    gone = await k.forget_user(user, confirm=counted.confirm)
    return gone.receipt


def found(folder: Path) -> list[str]:
    words = WORD.encode(), WORD.encode("utf-32-le")
    files = [p for p in folder.rglob("*") if p.is_file()]
    return [str(p) for p in files if any(word in p.read_bytes() for word in words)]


@pytest.mark.promise("erase.complete")
@pytest.mark.parametrize("tool", ["act", "slow"])
async def test_a_call_of_a_tool_ends_with_its_user(tool: str, tmp_path: Path) -> None:
    (tmp_path / "some_tools.py").write_text(TOOLS)
    tools = {"py": ToolSettings(python="some_tools", folder=str(tmp_path), approve=("act",))}
    with short_folder() as folder, trio.fail_after(60):
        async with (
            running(Path(folder), tools=tools) as kernel,
            client(kernel, "operator", operator=True) as k,
        ):
            await k.grant("clerk", users=["ana"], tools=(ToolRule("py.*"),))
            refusals: list[IsovistError] = []
            async with client(kernel, "clerk", user="ana") as clerk, trio.open_nursery() as nursery:

                async def call() -> None:
                    with pytest.raises(IsovistError) as caught:
                        await clerk.tool_call(f"py.{tool}", {"text": WORD})
                    refusals.append(caught.value)

                nursery.start_soon(call)
                while not ((await k.tools_approvals()).approvals or (tmp_path / "begun").exists()):
                    await trio.sleep(0.01)
                receipt = await forget(k, "ana")
                assert (await k.tools_approvals()).approvals == ()
                assert (await k.receipt(receipt, wait=True)).issued_at
            assert [e.errno for e in refusals] == [Errno.ENOENT]
            await trio.sleep(3 if tool == "slow" else 0)
            assert await k.effects() == ()
            assert found(Path(folder)) == []


async def busy(kernel: Kernel, user: str, count: int, tell: list[Any], stop: trio.Event) -> None:
    hers = user == "ana"
    async with client(kernel, "clerk", user=user) as k, trio.open_nursery() as nursery:

        async def work(n: int) -> None:
            texts = map(str, count_up())
            writes: list[Callable[[], Awaitable[Any]]] = [
                lambda: k.remember(f"{WORD if hers else user} {n} {next(texts)}"),
                lambda: k.file_write(f"f{n}", WORD if hers else user),
            ]
            if hers:
                writes += [
                    lambda: k.timer_every(86_400, WORD, name=f"t{n}"),
                    lambda: k.effect_begin("step", WORD),
                ]
            while not stop.is_set():
                for write in writes:
                    try:
                        await write()
                    except IsovistError as e:
                        tell.append(e)
                        await trio.sleep(0.005)

        for n in range(count):
            nursery.start_soon(work, n)


@pytest.mark.promise("erase.complete")
async def test_writes_beside_a_purge_neither_outlive_it_nor_are_lost() -> None:
    with short_folder() as folder, trio.fail_after(120):
        async with (
            running(Path(folder)) as kernel,
            client(kernel, "operator", operator=True) as k,
        ):
            await k.grant("clerk", users=["ana", "bob"])
            hers: list[IsovistError] = []
            his: list[IsovistError] = []
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(busy, kernel, "ana", 3, hers, stop)
                nursery.start_soon(busy, kernel, "bob", 8, his, stop)
                await trio.sleep(0.5)
                while True:
                    try:
                        receipt = await forget(k, "ana")
                        break
                    except IsovistError as e:
                        assert e.errno is Errno.ESTALE  # noqa: PT017 # she writes on meanwhile
                await trio.sleep(0.3)
                stop.set()
            assert {e.errno for e in his} <= {Errno.EAGAIN}
            assert (await k.receipt(receipt, wait=True)).issued_at
            figures = kernel.store.statistics()
            assert [figures[n] for n in ("effects", "timers")] == [0, 0]
            assert found(Path(folder)) == []
            assert kernel.store.verify() == []


@pytest.mark.promise("erase.complete")
async def test_what_a_model_still_says_to_a_user_who_is_forgotten_is_not_kept() -> None:
    with short_folder() as folder, trio.fail_after(60):
        async with (
            running(Path(folder)) as kernel,
            client(kernel, "operator", operator=True) as k,
        ):
            await k.grant("clerk", users=["ana"])
            async with client(kernel, "clerk", user="ana") as clerk, trio.open_nursery() as nursery:
                asked = f"!script delay_ms=100 tokens=20 text={WORD} says the model"
                stream = await clerk.stream(asked, keep=True, memory=False)

                async def listen() -> None:
                    with pytest.raises(IsovistError) as caught:
                        [part async for part in stream]
                    assert caught.value.errno is Errno.ENOENT

                await anext(aiter(stream))
                nursery.start_soon(listen)
                receipt = await forget(k, "ana")
                assert (await k.receipt(receipt, wait=True)).issued_at
            await trio.sleep(2.5)
            assert (await k.forget_user("ana")).count == 0
