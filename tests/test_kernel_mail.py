"""Effects, mail and timers through the whole kernel: durable, over a restart, gone with a user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel.kernel import Kernel
from isovist.kernel.state.mail import LEASES
from isovist.syscalls.abi.mail import Mail
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import CallerError, Errno, WorldError

PATIENCE = 120.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield Path(made)


@asynccontextmanager
async def kernel_of(folder: Path) -> AsyncIterator[tuple[Kernel, AsyncClient]]:
    """With an operator's client; ``plan`` and ``post`` serve ana, and ``plan`` may write to
    ``post``."""
    with trio.fail_after(PATIENCE):
        async with (
            running(folder) as kernel,
            client(kernel, "operator", operator=True) as operator,
        ):
            for agent, mail in (("plan", ("post",)), ("post", ())):
                await operator.grant(agent, ("ana",), mail=mail)
            yield kernel, operator


async def test_mail_is_there_after_a_restart_and_acknowledged_mail_is_not(folder: Path) -> None:
    async with kernel_of(folder) as (kernel, _), client(kernel, "plan", user="ana") as plan:
        first = await plan.send("post", "one", key="k")
        second = await plan.send("post", "two")
        async with client(kernel, "post", user="ana") as post:
            one, two = await post.receive()
            assert (one.id, two.id) == (first.id, second.id)
            await post.ack(one)
    async with kernel_of(folder) as (kernel, _):
        async with client(kernel, "post", user="ana") as post:
            assert [mail.id for mail in await post.receive()] == [second.id]
        async with client(kernel, "plan", user="ana") as plan:
            again = await plan.send("post", "one", key="k")
            assert (again.id, again.fresh) == (first.id, False)
            with pytest.raises(CallerError) as caught:
                await plan.send("post", "other", key="k")
            assert caught.value.field == "key"


async def test_a_receiver_that_waits_is_woken(folder: Path) -> None:
    async with (
        kernel_of(folder) as (kernel, _),
        client(kernel, "plan", user="ana") as plan,
        client(kernel, "post", user="ana") as post,
        trio.open_nursery() as nursery,
    ):

        async def wait() -> None:
            (one,) = await post.receive(wait=60)
            assert (one.text, one.from_agent, one.from_user) == ("wake up", "plan", "ana")
            await post.ack(one)
            assert await post.boxes() == ()

        nursery.start_soon(wait)
        while not len(kernel.state.mail):
            await trio.sleep(0)
        await plan.send("post", "wake up")


async def test_who_waits_is_given_what_an_acknowledgement_makes_room_for(folder: Path) -> None:
    async with (
        kernel_of(folder) as (kernel, _),
        client(kernel, "plan", user="ana") as plan,
        client(kernel, "post", user="ana") as post,
        client(kernel, "post", user="ana") as other,
        trio.open_nursery() as nursery,
    ):
        for n in range(LEASES - 1):
            await plan.send("post", f"{n}")
        out: list[Mail] = []
        while len(out) < LEASES - 1:
            out += await post.receive(limit=64, lease_ms=3_600_000)
        given: list[str] = []

        async def wait() -> None:
            given.extend(one.text for one in await other.receive(limit=1, wait=60))

        for _ in range(2):
            nursery.start_soon(wait)
        while len(kernel.state.mail) < 2:
            await trio.sleep(0)
        for text in ("first", "second"):
            await plan.send("post", text)
        while given != ["first"]:
            await trio.sleep(0.01)
        await post.ack(*out[:10])
        with trio.fail_after(10):
            while given != ["first", "second"]:
                await trio.sleep(0.01)


async def test_what_a_restart_found_started_is_unknown(folder: Path) -> None:
    async with kernel_of(folder) as (kernel, _), client(kernel, "plan", user="ana") as plan:
        done = await plan.effect_begin("pay", "5 coins", key="one")
        await plan.effect_done(done.effect.id, "receipt")
        left = await plan.effect_begin("pay", "6 coins", key="two")
    async with (
        kernel_of(folder) as (kernel, operator),
        client(kernel, "plan", user="ana") as plan,
    ):
        last = await plan.last_step()
        assert last is not None
        assert last.result is not None
        assert (last.key, last.arguments.text, last.result.text) == ("one", "5 coins", "receipt")
        with pytest.raises(WorldError) as caught:
            await plan.effect_begin("pay", "6 coins", key="two")
        assert caught.value.errno is Errno.ESTALE
        (unknown,) = await operator.effects(states=("unknown",))
        assert unknown.id == left.effect.id
        await operator.effect_resolve(unknown.id, "retry")
        again = await plan.effect_begin("pay", "6 coins", key="two")
        assert again.fresh
        assert again.effect.tries == 2


async def test_timers_survive_and_come_by_mail(folder: Path) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    async with kernel_of(folder) as (kernel, _), client(kernel, "plan", user="ana") as plan:
        timer = await plan.timer_at(soon.isoformat(), "look")
        yearly = await plan.timer_cron("0 0 1 1 *", "new year", zone="Europe/Berlin", name="year")
        every = await plan.timer_every(86_400, "daily")
        assert await plan.timer_cancel(every.id) == every
    async with kernel_of(folder) as (kernel, _), client(kernel, "plan", user="ana") as plan:
        (one,) = await plan.receive(wait=60)
        assert (one.kind, one.text, one.about) == ("timer", "look", timer.id)
        assert [left.id for left in await plan.timers()] == [yearly.id]


async def test_a_forgotten_user_leaves_no_mail_no_effects_no_timers(folder: Path) -> None:
    async with (
        kernel_of(folder) as (kernel, operator),
        client(kernel, "plan", user="ana") as plan,
    ):
        await plan.send("post", "about ana")
        await plan.effect_begin("pay", "for ana")
        await plan.timer_every(60, "for ana")
        shown = await operator.forget_user("ana")
        await operator.forget_user("ana", confirm=shown.confirm)
        figures = kernel.store.statistics()
        assert [figures[name] for name in ("mail", "effects", "timers")] == [0, 0, 0]
        assert len(kernel.state.timers) == 0
