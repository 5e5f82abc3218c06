"""Peers that keep no rules: each costs the kernel bounded memory, and nobody else anything."""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import resource
import select
import socket
import threading
import types
import typing
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import trio
from kernel_helpers import client, running, short_folder
from kernel_process import KernelProcess
from raw_helpers import (
    HELLO,
    SECONDS,
    Raw,
    dial,
    frame,
    knock,
    lazy_spawner,
    raw,
    send_descriptors,
    whys,
)
from structlog.testing import capture_logs

from isovist.kernel import channels
from isovist.kernel.confinement import workspace
from isovist.kernel.kernel import STRANGERS, Kernel
from isovist.kernel.tokens import ScriptedCounter
from isovist.syscalls import messages as m
from isovist.syscalls.codec import encode
from isovist.syscalls.errors import Errno
from isovist.syscalls.fence import CLOSE, OPEN
from isovist.syscalls.framing import HEADER, pack
from isovist.syscalls.names import MAX_FRAME
from isovist.syscalls.operations import Op, Outcome
from isovist.syscalls.records import Message, Tool

pytestmark = pytest.mark.promise("kernel.survives")

HANG = m.Chat(messages=(Message("user", "!script hang"),), memory=False)
"""A call that stays outstanding until it is cancelled."""


@pytest.fixture
async def kernel(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kernel]:
    lazy_spawner(monkeypatch)
    with short_folder() as folder, trio.fail_after(SECONDS):
        async with running(Path(folder), door=True) as running_kernel:
            yield running_kernel


async def is_well(kernel: Kernel) -> None:
    """Another agent is served as if nothing had happened."""
    async with client(kernel, "good") as good:
        assert (await good.ping("well")).payload == "well"


def failed(reply: m.AnyReply | None, errno: Errno) -> m.Failed:
    assert isinstance(reply, m.Failed), reply
    assert reply.errno == errno, reply
    return reply


# -- bytes


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
    ],
    ids=["empty", "reserved", "zeros", "http", "deep", "huge array"],
)  # fmt: skip
async def test_seven_bodies_that_are_none_are_answered_the_eighth_is_the_last(
    kernel: Kernel, body: bytes
) -> None:
    async with raw(kernel) as peer:
        for _ in range(3):
            for call in range(1, 8):
                await peer.send(pack(call, body))
                assert isinstance(await peer.reply(), m.Failed)
            assert isinstance(await peer.ask(9, m.Ping()), m.Pong), "seven are forgiven"
        with capture_logs() as logs:
            await peer.send(pack(10, body) * 9)
            assert len(await peer.to_end()) == 8
        assert whys(logs) == [peer.told] == ["8 malformed requests"]
    await is_well(kernel)


async def test_after_the_eighth_nothing_is_served(kernel: Kernel) -> None:
    async with raw(kernel) as peer:
        await peer.send(pack(1, b"\xc1") * 8 + frame(2, m.Ping()) * 1000)
        assert not any(isinstance(reply, m.Pong) for reply in await peer.to_end())


async def test_a_frame_over_the_limit_ends_at_its_header(kernel: Kernel) -> None:
    async with raw(kernel) as peer:
        with capture_logs() as logs:
            await peer.send(HEADER.pack(MAX_FRAME + 1, 7))
            assert await peer.to_end() == []
        (why,) = whys(logs)
        assert why == peer.told
        assert str(MAX_FRAME + 1) in why
        assert str(MAX_FRAME) in why
    await is_well(kernel)


async def test_a_frame_at_the_limit_is_read_whole(kernel: Kernel) -> None:
    async with raw(kernel) as peer:
        await peer.send(pack(3, b"\xc1" * MAX_FRAME))
        assert isinstance(await peer.reply(), m.Failed)
        assert isinstance(await peer.ask(4, m.Ping()), m.Pong)


@pytest.mark.parametrize("seed", range(4))
async def test_noise_ends_typed_or_not_at_all(kernel: Kernel, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        async with raw(kernel) as peer:
            for call in range(1, 9):
                if rng.random() < 0.2:
                    await peer.send(rng.randbytes(rng.randrange(1, 4000)))
                else:
                    whole = bytearray(frame(call, m.Remember(text="a note " * 20, meta={"a": "b"})))
                    for _ in range(rng.randrange(1, 6)):
                        whole[rng.randrange(8, len(whole))] = rng.randrange(256)
                    await peer.send(bytes(whole))
            await is_well(kernel)


STRINGS = [
    "", "x", "\0", "a\0b", "../..", "*", "operator", "agent/abuser", "ana", "pair", "global",
    "e\u0301", "\u202e", "\uffff", "𝔘", "安娜", " ", "\n", "'; DROP TABLE units; --", "%s{}\\",
    "-1", "u" + "0" * 20, "2026-01-31T09:00:00Z", "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+14:00", "x" * 129, "wort " * 3000, OPEN, CLOSE, "!script fail=EIO",
    "!script text=",
]  # fmt: skip
INTS = [0, 1, -1, 2, 7, 255, 256, 500, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1]


def anything(rng: random.Random, kind: Any) -> Any:
    """A value of type ``kind``, as nasty as the type allows."""
    arguments = get_args(kind)
    match get_origin(kind) or kind:
        case typing.Literal:
            return rng.choice(arguments)
        case types.UnionType:
            return anything(rng, rng.choice(arguments))
        case builtins.tuple:
            return tuple(anything(rng, arguments[0]) for _ in range(rng.randrange(4)))
        case builtins.dict:
            return {
                rng.choice(STRINGS): anything(rng, arguments[1]) for _ in range(rng.randrange(3))
            }
        case builtins.bytes:
            return rng.choice([b"", b"\0", b"\xff\xfe", b"words " * 5000])
        case builtins.str:
            return rng.choice(STRINGS)
        case builtins.int:
            return rng.choice(INTS)
        case builtins.float:
            return rng.choice([0.0, -1.0, 1e308, float("nan"), float("inf")])
        case builtins.bool:
            return rng.random() < 0.5
        case types.NoneType:
            return None
        case struct:
            return request(rng, struct, 1.0)


def request(rng: random.Random, struct: type[Any], share: float) -> Any:
    """A request in which ``share`` of the fields that have a default hold anything."""
    hints = get_type_hints(struct)
    fields = {
        f.name: anything(rng, hints[f.name])
        for f in msgspec.structs.fields(struct)
        if f.required or rng.random() < share
    }
    return struct(**fields)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_a_request_holds_it_has_one_typed_end(kernel: Kernel, seed: int) -> None:
    rng = random.Random(seed)
    kinds = [kind for kind in m.REPLY_OF if kind not in (m.Hello, m.Exit, m.Spawn)]
    async with raw(kernel, operator=seed == 0) as peer:
        # Values that break their type are malformed; a channel has eight of those.
        for channel in kernel.state.channels.values():
            channel.malformed = -(10**6)
        for call in range(1, 401):
            asked = request(rng, rng.choice(kinds), rng.choice([0.0, 0.2, 0.6]))
            await peer.send(frame(call, asked))
            while True:
                got = await peer.next()
                assert got is not None, (asked, "ended the channel")
                assert got[0] == call
                if not isinstance(got[1], m.Part):
                    break
            assert isinstance(got[1], (m.Failed, m.REPLY_OF[type(asked)]))
            if isinstance(got[1], m.Failed):
                assert got[1].errno != Errno.EKERNEL, (asked, got[1])
            if rng.random() < 0.05:
                await is_well(kernel)
        await is_well(kernel)


async def test_a_frame_that_stays_incomplete_ends_its_channel(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "PARTIAL_NS", 50_000_000)
    whole = frame(5, m.Ping(payload="x" * 1000))
    for cut in (1, 7, 8, 500):
        async with raw(kernel) as peer:
            with capture_logs() as logs:
                await peer.send(frame(4, m.Ping()) + whole[:cut])
                assert isinstance(await peer.reply(), m.Pong), "what is whole is served"
                assert await peer.to_end() == []
            assert "incomplete" in whys(logs)[0]
            assert peer.told == whys(logs)[0]
    await is_well(kernel)


async def test_dribbling_buys_no_time(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PARTIAL_NS", 50_000_000)
    async with raw(kernel) as peer, client(kernel, "good") as good:
        await peer.send(HEADER.pack(MAX_FRAME, 5))
        sent = 0
        while await peer.send(b"x"):
            sent += 1
            await good.ping()
        assert sent < MAX_FRAME


async def test_a_stalled_frame_holds_nobody_up(kernel: Kernel) -> None:
    async with raw(kernel) as one, raw(kernel) as two:
        whole = frame(5, m.Ping(payload="late"))
        await one.send(whole[:-1])
        for call in range(1, 101):
            assert isinstance(await two.ask(call, m.Ping()), m.Pong)
        await one.send(whole[-1:])
        assert await one.reply() == m.Pong(payload="late")


# -- the handshake


async def test_hello_comes_first_once_and_in_a_common_version(kernel: Kernel) -> None:
    async with raw(kernel, greet=False) as peer:
        failed(await peer.ask(1, m.Ping()), Errno.EPROTO)
        for low, version in ((2, 9), (0, 0), (5, 1), (-3, -2)):
            reply = await peer.ask(2, m.Hello(version=version, low=low))
            assert failed(reply, Errno.EPROTO).field == "version"
        failed(await peer.ask(3, m.Ping()), Errno.EPROTO)
        welcome = await peer.ask(4, m.Hello(version=99, features=("cancel", "unheard of")))
        assert isinstance(welcome, m.Welcome)
        assert (welcome.version, welcome.features) == (1, ("cancel",))
        failed(await peer.ask(5, HELLO), Errno.EPROTO)
        assert isinstance(await peer.ask(6, m.Ping()), m.Pong)


@pytest.mark.promise("identity.bound", "author.true")
async def test_nobody_says_by_itself_who_it_is(kernel: Kernel) -> None:
    async with raw(kernel, "notes", greet=False) as peer:
        token = kernel.config.token.read_text()
        hello = m.Hello(version=1, agent="operator", token=token, user="ana")
        welcome = await peer.ask(1, hello)
        assert isinstance(welcome, m.Welcome)
        assert welcome.agent == "notes"
        who = await peer.ask(2, m.Whoami())
        assert isinstance(who, m.Identity)
        assert (who.agent, who.user, who.operator) == ("notes", "agent/notes", False)
        failed(await peer.ask(3, m.Grant(agent="notes", users=("*",))), Errno.EPERM)
        failed(await peer.ask(4, m.Remember(text="x", user="ana")), Errno.EPERM)
        stored = await peer.ask(5, m.Remember(text="mine"))
        assert isinstance(stored, m.Stored)
        units = await peer.ask(6, m.Read(id=stored.id))
        assert isinstance(units, m.Units)
        assert (units.units[0].agent, units.units[0].user) == ("notes", "agent/notes")


async def test_an_unknown_syscall_is_enosys_and_no_offence(kernel: Kernel) -> None:
    async with raw(kernel) as peer:
        for call in range(1, 21):
            await peer.send(pack(call, b"\x93\x63\xc0\xc0"))  # [99, nil, nil]
            failed(await peer.reply(), Errno.ENOSYS)
        assert isinstance(await peer.ask(21, m.Ping()), m.Pong)


# -- floods


async def test_twenty_thousand_pings_in_one_breath_are_all_answered(kernel: Kernel) -> None:
    count = 20_000
    async with raw(kernel) as peer, trio.open_nursery() as nursery:
        breath = b"".join(frame(call, m.Ping(payload=str(call))) for call in range(1, count + 1))
        nursery.start_soon(peer.send, breath)
        for call in range(1, count + 1):
            assert await peer.next() == (call, m.Pong(payload=str(call)))


async def test_the_257th_outstanding_call_is_refused_and_cancel_still_served(
    kernel: Kernel,
) -> None:
    async with raw(kernel) as peer:
        await peer.send(b"".join(frame(call, HANG) for call in range(1, 257)))
        failed(await peer.ask(257, HANG), Errno.EAGAIN)
        assert isinstance(await peer.ask(258, m.Ping()), m.Pong)
        failed(await peer.ask(255, m.Ping()), Errno.EEXIST)
        await peer.send(frame(259, m.Cancel(call=100)))
        got = dict([await peer.next() or (0, None), await peer.next() or (0, None)])
        assert isinstance(got[259], m.Done)
        failed(got[100], Errno.ECANCELED)
        await peer.send(frame(100, HANG))
        failed(await peer.ask(260, HANG), Errno.EAGAIN)
        assert len(kernel.state.calls) == 256
        await is_well(kernel)
    while kernel.state.calls:
        await is_well(kernel)


@pytest.mark.promise("fair.progress")
@pytest.mark.parametrize(
    "request_of",
    [
        lambda i: m.Remember(text=f"note {i}"),
        lambda i: m.Search(query=f"note {i}"),
        lambda i: m.Chat(messages=(Message("user", f"note {i}"),), memory=False),
    ],
    ids=["remember", "search", "chat"],
)
async def test_cancelled_calls_leave_no_backlog(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[int], m.Request]
) -> None:
    """What is asked and cancelled in one breath may not leave work behind that piles up, however
    slow the disk and the tokenizer are."""
    disk, worst = threading.Event(), 0
    commit, turn = kernel.store.commit, kernel._turn

    def slow_commit(ops: Sequence[Op]) -> list[Outcome]:
        disk.wait(SECONDS)
        return commit(ops)

    class Stuck(ScriptedCounter):
        async def prompt(
            self, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: str = "auto"
        ) -> int:
            await trio.sleep_forever()
            raise AssertionError

    def watched_turn() -> None:
        nonlocal worst
        turn()
        figures = kernel.statistics()
        worst = max(worst, *(n for what, n in figures.items() if what.endswith("_waiting")))

    monkeypatch.setattr(kernel.store, "commit", slow_commit)
    monkeypatch.setattr(kernel.models, "counter", lambda model: Stuck())
    monkeypatch.setattr(kernel, "_turn", watched_turn)
    try:
        async with raw(kernel) as peer, trio.open_nursery() as nursery:
            breath = b"".join(
                frame(2 * i, request_of(i)) + frame(2 * i + 1, m.Cancel(call=2 * i))
                for i in range(1, 2001)
            )
            nursery.start_soon(peer.send, breath)
            for _ in range(4000):
                await peer.reply()
        # A few rounds' worth of what is dead already, beside 256 that live.
        assert worst <= 256 + 2 * channels.TURN
    finally:
        disk.set()
    await is_well(kernel)


# -- peers that never read


class Backlog:
    """The most bytes of unread replies that the kernel held after any of its turns."""

    def __init__(self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        turn = kernel._turn

        def watched() -> None:
            turn()
            self.most = max(self.most, kernel.statistics()["backlog_bytes"])

        monkeypatch.setattr(kernel, "_turn", watched)


ONE_REPLY = MAX_FRAME + 8


@pytest.mark.promise("fair.progress")
@pytest.mark.parametrize("kind", ["ping", "list", "memory.list"])
async def test_a_peer_that_never_reads_is_held_and_then_ended(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(channels, "UNREAD_NS", 300_000_000)
    flood: m.Request
    if kind == "ping":
        flood = m.Ping(payload="x" * 50_000)
    elif kind == "list":
        # Small requests, long replies, answered inline.
        await talkers(kernel, 12)
        flood = m.ListProcesses(all=True)
    else:
        # The same, answered later, one at a time.
        async with client(kernel, "abuser") as before:
            for i in range(6):
                await before.remember(f"{i} " + "word " * 12_000)
        flood = m.MemoryList(limit=500)
    backlog = Backlog(kernel, monkeypatch)
    async with raw(kernel, operator=kind == "list") as peer:
        with capture_logs() as logs:
            data = b"".join(frame(call, flood) for call in range(1, 2001))
            assert not await peer.send(data * (1 if kind == "ping" else 10)), "the kernel read all"
            while not whys(logs):
                await is_well(kernel)
            assert "never reads" in whys(logs)[0]
    assert channels.OUT_LIMIT < backlog.most <= channels.OUT_LIMIT + ONE_REPLY
    await is_well(kernel)


async def test_a_peer_that_reads_late_gets_everything(kernel: Kernel) -> None:
    async with client(kernel, "abuser") as before:
        for i in range(6):
            await before.remember(f"{i} " + "word " * 12_000)
    async with raw(kernel) as peer, trio.open_nursery() as nursery:
        data = b"".join(frame(call, m.MemoryList(limit=500)) for call in range(1, 61))
        nursery.start_soon(peer.send, data)
        while not any(c.full for c in kernel.hub.channels()):
            await is_well(kernel)
        replies = dict([await peer.next() or (0, None) for _ in range(60)])
    assert set(replies) == set(range(1, 61))
    assert all(isinstance(r, m.Units) and len(r.units) == 6 for r in replies.values())


async def test_the_last_word_waits_for_nobody_for_ever(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that leaves its last replies unread, though few, is let go all the same."""
    monkeypatch.setattr(channels, "UNREAD_NS", 50_000_000)
    async with raw(kernel) as peer:
        with capture_logs() as logs:
            # More than the pipe holds, less than the limit.
            await peer.send(frame(1, m.Ping(payload="x" * 60_000)) * 2)
            await peer.send(pack(2, b"\xc1") * 8)
            while not whys(logs):
                await is_well(kernel)
            assert whys(logs) == ["8 malformed requests"]


async def talkers(kernel: Kernel, count: int) -> None:
    """Let ``count`` processes write much to standard error and end."""
    program = kernel.config.state / "talker.py"
    program.write_text("import sys\nsys.stderr.write('x' * 60_000)\n")
    async with client(kernel, "operator", operator=True) as k:
        for _ in range(count):
            spawned = await k.spawn(str(program))
            assert (await k.wait(spawned.pid)).process.status == 0


@pytest.mark.promise("fair.progress")
async def test_a_follower_that_does_not_read_holds_up_its_process_and_nobody_else(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "UNREAD_NS", SECONDS * 1_000_000_000)
    size = 20_000_000
    program = kernel.config.state / "flood.py"
    # An agent opens nothing of the state folder but its own workspace.
    os.mkfifo(gate := workspace.prepare(kernel.config.workspaces, "flood") / "gate")
    program.write_text(
        f"import sys\nopen({str(gate)!r}).close()\n"
        f"for i in range({size} // 10000):\n"
        "    sys.stderr.write(f'{i:09}\\n' * 1000)\n"
    )
    backlog = Backlog(kernel, monkeypatch)
    async with raw(kernel, operator=True) as peer:
        spawned = await peer.ask(2, m.Spawn(program=str(program)))
        assert isinstance(spawned, m.Spawned)
        await peer.send(frame(3, m.WaitPid(pid=spawned.pid, follow=True)))
        await trio.to_thread.run_sync(lambda: open(gate, "w").close())
        while not any(c.full for c in kernel.hub.channels()):
            await is_well(kernel)
        text = ""
        while isinstance(reply := await peer.reply(), m.Part):
            text += reply.text
        assert isinstance(reply, m.Exited)
        assert reply.process.status == 0
    numbers = [int(line) for line in text.splitlines()]
    assert numbers == [i for i in range(size // 10000) for _ in range(1000)]
    assert backlog.most <= channels.OUT_LIMIT + ONE_REPLY
    await is_well(kernel)


# -- the socket door


@pytest.mark.promise("identity.bound")
async def test_the_door_opens_to_the_token_alone(kernel: Kernel) -> None:
    token = kernel.config.token.read_text()
    firsts: list[tuple[bytes, Errno]] = [
        (frame(1, m.Hello(version=1)), Errno.EPERM),
        (frame(1, m.Hello(version=1, token="0" * 64)), Errno.EPERM),
        (frame(1, m.Hello(version=1, token=token[:-1])), Errno.EPERM),
        (frame(1, m.Hello(version=1, token=token + "0")), Errno.EPERM),
        (frame(1, m.Hello(version=1, token="ключ")), Errno.EPERM),
        (frame(1, m.Hello(version=1, token=token, agent="a/b")), Errno.EINVAL),
        (frame(1, m.Ping()), Errno.EPROTO),
        (frame(1, m.Remember(text="in by the window")), Errno.EPROTO),
        (pack(1, b"GET / HTTP/1.1"), Errno.EINVAL),
        (pack(1, b"\x93\x63\xc0\xc0"), Errno.ENOSYS),
    ]
    for first, errno in firsts:
        async with knock(kernel) as peer:
            with capture_logs() as logs:
                # What follows a refused first word is not even looked at.
                await peer.send(first + frame(2, m.Hello(version=1, token=token)))
                (reply,) = await peer.to_end()
                failed(reply, errno)
            assert "refused at the door" in whys(logs)[0]
            assert peer.told == whys(logs)[0]
    async with knock(kernel) as peer:
        welcome = await peer.ask(1, m.Hello(version=1, token=token, agent="notes"))
        assert isinstance(welcome, m.Welcome)
        assert welcome.agent == "notes"


async def test_who_says_no_hello_is_sent_away(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HELLO_NS", 50_000_000)
    for said in (b"", b"\x40", frame(1, m.Ping())[:-1]):
        async with knock(kernel) as peer:
            await peer.send(said)
            with capture_logs() as logs:
                assert await peer.to_end() == []
            assert "did not say hello" in whys(logs)[0]
            assert peer.told == whys(logs)[0]


async def settled(kernel: Kernel) -> None:
    """Return when the kernel has started all that it starts by itself."""
    await kernel.spawner.start()
    async with client(kernel, "first") as first:
        await first.remember("something to embed")
        assert (await first.search("something", barrier_ms=30_000)).barrier.state == "ready"
    await nobody_is_attached(kernel)


async def nobody_is_attached(kernel: Kernel) -> None:
    while kernel.statistics()["channels"]:
        await trio.lowlevel.checkpoint()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_flood_of_connections_does_not_shut_the_door(kernel: Kernel) -> None:
    token = kernel.config.token.read_text()
    await settled(kernel)
    before = descriptors()
    crowd: list[socket.socket] = []
    try:
        for _ in range(500):
            sock = dial(kernel)
            crowd.append(sock)
            if len(crowd) % 50 == 0:
                async with knock(kernel) as late:
                    assert isinstance(await late.ask(1, m.Hello(version=1, token=token)), m.Welcome)
        assert descriptors() - before - len(crowd) <= 2 * (STRANGERS + 1), "bounded"
    finally:
        for sock in crowd:
            sock.close()
    await nobody_is_attached(kernel)
    assert descriptors() == before


@pytest.mark.parametrize("left", [9, 10])
async def test_out_of_descriptors_the_kernel_serves_on(kernel: Kernel, left: int) -> None:
    """Callers are turned away, not left in the queue, where they would wake the loop for ever."""
    token = kernel.config.token.read_text()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as crowd:
        async with client(kernel, "good") as good:
            # Taken by us for callers first, so that the kernel finds few left; it
            # needs two for each of them, so the last is missing now for the first half, now for
            # the second.
            callers = [crowd.enter_context(contextlib.closing(unconnected())) for _ in range(40)]
            highest = max(map(int, os.listdir("/proc/self/fd")))
            free = [os.dup(0) for _ in range(highest - descriptors() + 2)]
            for fd in free:
                crowd.callback(os.close, fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1 + left, hard))
            try:
                for caller in callers:
                    caller.connect(str(kernel.config.socket))
                    await good.ping()
                assert kernel._door is not None
                while select.select([kernel._door], [], [], 0)[0]:
                    await good.ping()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with knock(kernel) as late:
        assert isinstance(await late.ask(1, m.Hello(version=1, token=token)), m.Welcome)


def unconnected() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


async def test_descriptors_that_nobody_uses_are_closed(kernel: Kernel) -> None:
    hello = frame(1, m.Hello(version=1, token=kernel.config.token.read_text()))
    await settled(kernel)
    before = descriptors()
    with open(os.devnull) as null:
        for count in (1, 3, 4, 50):
            sock = dial(kernel)
            for data in (hello, *(frame(call, m.Ping()) for call in range(2, 40))):
                send_descriptors(sock, data, [null.fileno()] * count)
            peer = Raw(sock.fileno(), os.dup(sock.fileno()))
            sock.detach()
            for _ in range(39):
                await peer.reply()
            assert descriptors() - before <= 5 + 3, "of each passing at most the last is kept"
            # Asked for with a spawn: they are used, or closed with their number refused.
            await peer.send(frame(50, m.Spawn(program="/no/such.py", stdio=True)))
            assert isinstance(await peer.reply(), m.Failed)
            await peer.aclose()
    await nobody_is_attached(kernel)
    assert descriptors() == before


async def test_each_spawn_gets_the_descriptors_that_came_with_it(kernel: Kernel) -> None:
    program = kernel.config.state / "say.py"
    program.write_text("import sys\nprint(sys.argv[1])\n")
    sock = dial(kernel)
    outputs = []
    sock.sendall(frame(1, m.Hello(version=1, token=kernel.config.token.read_text())))
    for i in range(5):
        reader, writer = os.pipe()
        outputs.append(open(reader))  # noqa: SIM115 # closed below
        spawn = m.Spawn(program=str(program), args=(str(i),), stdio=True)
        send_descriptors(sock, frame(2 + i, spawn), [0, writer, writer])
        os.close(writer)
    peer = Raw(sock.fileno(), os.dup(sock.fileno()))
    sock.detach()
    assert isinstance(await peer.reply(), m.Welcome)
    for _ in range(5):
        assert isinstance(await peer.reply(), m.Spawned)
    for i, output in enumerate(outputs):
        with output:
            assert await trio.to_thread.run_sync(output.read) == f"{i}\n"
    await peer.aclose()


# -- ten at once, as real processes, beside a good one


PRELUDE = f"""
import os, random, select, struct, sys, time
reads, writes = map(int, os.environ["ISOVIST_FDS"].split(","))
os.set_blocking(writes, True)

def frame(call, body):
    return struct.pack("<II", len(body), call) + body

def say(data):
    while data:
        data = data[os.write(writes, data):]

def read_for_ever():
    while os.read(reads, 65536):
        pass

PING = {encode(m.Ping(payload="x" * 20_000))!r}
LIST = {encode(m.ListProcesses(all=True))!r}
REMEMBER = {encode(m.Remember(text="flood " * 20))!r}
CHAT = {encode(HANG)!r}
say(frame(1, {encode(HELLO)!r}))
"""

ABUSERS: dict[str, tuple[str, str]] = {
    "garbage": ("say(frame(2, b'\\xc1') * 8); read_for_ever()", "8 malformed requests"),
    "oversize": ("say(struct.pack('<II', 1 << 30, 2)); read_for_ever()", "the limit is 1048576"),
    "stalled": ("say(frame(2, PING)[:-1]); read_for_ever()", "stayed incomplete"),
    "dribbler": (
        "say(struct.pack('<II', 1 << 20, 2))\n"
        "while True: say(b'x'); select.select([reads], [], [], 0.01)",
        "stayed incomplete",
    ),
    "deaf": ("while True: say(frame(2, PING))", "never reads"),
    "lister": ("while True: say(frame(2, LIST) * 1000)", "never reads"),
    "writer": (
        "for call in range(2, 1 << 30): say(frame(call, REMEMBER))",
        "never reads",
    ),
    "asker": ("for call in range(2, 1 << 30): say(frame(call, CHAT))", "never reads"),
    "noise": (
        "rng = random.Random(7)\nwhile True: say(rng.randbytes(65536))",
        "EMSGSIZE",
    ),
    "mute": ("os.close(reads)\nwhile True: say(frame(2, PING))", ""),
}
"""Name: what it does, and words of the reason why it ended."""

GOOD = """
from isovist.agents import connect
with connect() as k:
    for i in range(60):
        k.remember(f"parcel {i} is in locker {i * 7919}")
        assert str(i * 7919) in k.search(f"locker of parcel {i}", k=3).hits[0].unit.text
        assert k.ping(str(i)).payload == str(i)
"""


@pytest.mark.promise("fair.progress")
def test_ten_abusers_at_once_end_each_with_its_reason_and_a_good_agent_sees_none_of_it() -> None:
    with short_folder() as folder, ExitStack() as stack:
        state = Path(folder)
        (state / "good.py").write_text(GOOD)
        for name, (body, _) in ABUSERS.items():
            (state / f"{name}.py").write_text(PRELUDE + body)
        second = 1_000_000_000
        host = stack.enter_context(KernelProcess(state, PARTIAL_NS=second, UNREAD_NS=second))
        operator = stack.enter_context(host.attach())
        # Warm: the good agent alone, so that what a kernel needs anyway is not counted.
        assert operator.wait(operator.spawn(str(state / "good.py")).pid).process.status == 0
        before = host.memory("VmRSS")
        pids = {name: operator.spawn(str(state / f"{name}.py")).pid for name in ABUSERS}
        good = operator.spawn(str(state / "good.py"), agent="better").pid
        waits = {name: operator.submit(m.WaitPid(pid=pid)) for name, pid in pids.items()}
        end = operator.wait(good).process
        assert (end.status, end.reason, end.stderr) == (0, "", ())
        for wait in waits.values():
            wait.result(SECONDS)
        listed = {p.pid: p for p in operator.processes(all=True).processes}
        for name, (_, reason) in ABUSERS.items():
            process = listed[pids[name]]
            assert process.state == "exited"
            assert reason in process.reason, (name, process)
            assert process.status == (-9 if reason else 1), (name, process)
        most = host.memory("VmHWM") - before
        # Each abuser may cost a frame, a read, a full queue and one reply.
        assert most < 64 << 20, f"{most >> 20} MiB"
        assert operator.ping("still here").payload == "still here"
