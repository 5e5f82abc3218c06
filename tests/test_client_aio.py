"""The trio client against the same fake kernel."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from tests.fakes import KINDS, PATIENCE, WELCOME, Peer, chatted, exited, kernel, serve, units
from tests.test_client import bare_environment, listen  # noqa: F401 # a fixture of this module too

from isovist.syscalls import messages as m
from isovist.syscalls.aio import open_client
from isovist.syscalls.aio import serve as serve_line
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError
from isovist.syscalls.framing import pack

both = pytest.mark.parametrize("kind", KINDS)


@asynccontextmanager
async def client(kind: str, script, user: str | None = None):
    with kernel(kind, script) as line, trio.fail_after(PATIENCE):
        async with serve_line(line, user) as k:
            yield k


async def errno(call, *args, **options) -> Errno:
    with pytest.raises(IsovistError) as caught:
        await call(*args, **options)
    return caught.value.errno


@both
async def test_calls_are_answered(kind):
    async with client(kind, serve, user="ana") as k:
        await k.shake_hands()
        assert k.welcome.pid == 7
        assert (await k.ping("hello")).payload == "hello"
        assert (await k.remember("x")).user == "ana"
        assert (await k.chat("hi")).text == "echo hi"
        assert isinstance(await k.call(m.Ping()), m.Pong)


@both
async def test_tasks_share_a_client_and_replies_come_in_any_order(kind):
    def script(peer: Peer) -> None:
        waiting = [peer.expect(m.Ping) for _ in range(50)]
        for call, request in reversed(waiting):
            peer.reply(call, m.Pong(payload=request.payload))

    async with client(kind, script) as k, trio.open_nursery() as nursery:

        async def one(text: str) -> None:
            assert (await k.ping(text)).payload == text

        for i in range(50):
            nursery.start_soon(one, str(i) * 5000)


@both
async def test_twenty_thousand_calls_may_be_sent_before_the_first_result_is_asked_for(kind):
    async with client(kind, serve) as k:
        pending = [await k.submit(m.Ping(payload=str(i))) for i in range(20_000)]
        for i, p in enumerate(pending):
            assert (await p.result()).payload == str(i)


@both
async def test_a_message_larger_than_the_pipe(kind):
    async with client(kind, serve) as k:
        assert (await k.ping("é" * 400_000)).payload == "é" * 400_000
        assert await errno(k.ping, "x" * (1 << 20)) is Errno.EMSGSIZE
        assert (await k.ping("after")).payload == "after"


async def test_a_reply_streams_and_lists_come_by_pages():
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Chat)
        peer.reply(call, m.Part(text="Tues"), m.Part(text="day"), chatted("Tuesday"))
        call, _ = peer.expect(m.WaitPid)
        peer.reply(call, m.Part(text="line\n"), exited(4))
        call, request = peer.expect(m.MemoryList)
        peer.reply(call, units("b", next="b"))
        call, request = peer.expect(m.MemoryList)
        assert request.after == "b"
        peer.reply(call, units("a"))

    async with client("pipe", script) as k:
        stream = await k.stream("when?")
        with pytest.raises(CallerError, match="not ended"):
            _ = stream.reply
        assert [part async for part in stream] == ["Tues", "day"]
        assert stream.reply.text == "Tuesday"
        followed = await k.follow(4)
        assert [part async for part in followed] == ["line\n"]
        assert [unit.text async for unit in k.memories()] == ["b", "a"]


async def test_a_cancelled_scope_cancels_the_call_and_leaves_the_client_sound():
    waiting = threading.Event()

    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Kill)
        waiting.set()
        cancel, request = peer.expect(m.Cancel)
        assert request.call == call
        peer.reply(call, exited(3))  # the reply was faster than the cancel
        peer.reply(cancel, m.Done())
        serve(peer)

    async with client("pipe", script) as k:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def stop() -> None:
                    assert await trio.to_thread.run_sync(waiting.wait, PATIENCE)
                    scope.cancel()

                nursery.start_soon(stop)
                await k.kill(3)
        assert scope.cancelled_caught
        assert (await k.ping("on")).payload == "on"


async def test_a_scope_that_was_cancelled_before_sends_nothing():
    def script(peer: Peer) -> None:
        assert peer.expect(m.Ping)[1].payload == "first"

    async with client("pipe", script) as k:
        with trio.CancelScope() as scope:
            scope.cancel()
            await k.kill(3)
        await k.submit(m.Ping(payload="first"))


async def test_a_write_cut_off_by_a_cancel_still_goes_out_whole():
    start = threading.Event()

    def script(peer: Peer) -> None:
        assert start.wait(PATIENCE)
        kinds = []
        for call, request in peer:
            kinds.append(type(request))
            peer.reply(call, m.Pong(payload="p") if isinstance(request, m.Ping) else m.Done())
        assert kinds == [m.Ping, m.Cancel, m.Ping]

    async with client("pipe", script) as k:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(k.ping, "x" * 900_000)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        start.set()
        assert (await k.ping("on")).payload == "p"


async def test_a_dead_kernel_ends_every_call_and_all_later_ones():
    def script(peer: Peer) -> None:
        for _ in range(3):
            peer.expect(m.Ping)

    async with client("socket", script) as k:
        pending = [await k.submit(m.Ping()) for _ in range(3)]
        for p in pending:
            assert await errno(p.result) is Errno.EPIPE
        assert await errno(k.ping) is Errno.EPIPE


@both
async def test_a_kernel_that_dies_while_the_client_writes_ends_the_call(kind):
    async with client(kind, lambda peer: peer.expect(m.Ping)) as k:
        await k.submit(m.Ping())
        assert await errno(k.ping, "x" * 900_000) is Errno.EPIPE


async def test_a_bad_reply_is_eproto_for_its_call_alone():
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        peer.write(pack(call, b"\xc1"))
        serve(peer)

    async with client("pipe", script) as k:
        assert await errno(k.ping) is Errno.EPROTO
        assert (await k.ping("on")).payload == "on"


async def test_a_pending_call_can_be_cancelled_by_another_task():
    async with client("pipe", serve_but_kill) as k, trio.open_nursery() as nursery:
        pending = await k.submit(m.Kill(pid=1))

        async def wait() -> None:
            assert await errno(pending.result) is Errno.ECANCELED

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pending.cancel()
        assert pending.done


async def test_calls_that_outlive_the_client_end():
    ends: list[Errno] = []

    async def late(k) -> None:
        ends.append(await errno(k.kill, 1))

    async with trio.open_nursery() as nursery, client("pipe", serve_but_kill) as k:
        nursery.start_soon(late, k)
        await trio.testing.wait_all_tasks_blocked()
    assert ends == [Errno.EPIPE]
    assert await errno(k.ping) is Errno.EPIPE


async def test_what_the_body_raises_goes_up_as_it_is():
    with pytest.raises(WorldError, match="mine"):
        async with client("pipe", serve):
            raise WorldError("mine")


async def test_open_client_finds_the_kernel_and_shakes_hands(tmp_path):
    def script(peer: Peer) -> None:
        call, request = peer.expect(m.Hello)
        assert (request.token, request.agent) == ("t", "demo")
        peer.reply(call, WELCOME)
        serve(peer)

    thread = listen(tmp_path / "door", script)
    async with open_client(socket=tmp_path / "door", token="t", agent="demo", user="ana") as k:
        assert k.welcome.agent == "fake"
        assert (await k.remember("x")).user == "ana"
    thread.join(PATIENCE)
    assert await errno(open_client(socket=tmp_path / "none").__aenter__) is Errno.EPIPE


def serve_but_kill(peer: Peer) -> None:
    for call, request in peer:
        if not isinstance(request, m.Kill):
            peer.reply(call, m.Pong(payload="") if isinstance(request, m.Ping) else m.Done())
