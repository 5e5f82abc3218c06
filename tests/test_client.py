"""The blocking client against a fake kernel over real pipes and sockets."""

from __future__ import annotations

import dis
import inspect
import itertools
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import get_type_hints

import msgspec
import pytest
from tests.fakes import KINDS, PATIENCE, WELCOME, Peer, chatted, exited, kernel, serve, units

from isovist.syscalls import client as client_module
from isovist.syscalls import messages as m
from isovist.syscalls import options
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.client import Client, connect
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, WorldError
from isovist.syscalls.framing import HEADER, pack
from isovist.syscalls.locate import directories, locate
from isovist.syscalls.records import Message

both = pytest.mark.parametrize("kind", KINDS)


def errno(call, *args, **options) -> Errno:
    with pytest.raises(IsovistError) as caught:
        call(*args, **options)
    return caught.value.errno


@both
def test_calls_are_answered(kind):
    with kernel(kind, serve) as line, Client(line, user="ana") as k:
        k.shake_hands()
        assert k.welcome.pid == 7
        assert k.ping("hello").payload == "hello"
        stored = k.remember("Ana deploys on Tuesdays", scope="user", meta={"a": "b"})
        assert (stored.scope, stored.user, stored.rule) == ("user", "ana", "request")
        assert k.remember("x", user="ben").user == "ben"
        assert k.chat("hi").text == "echo hi"
        assert k.chat([Message("system", "s"), Message("user", "u")]).text == "echo u"
        assert isinstance(k.call(m.Ping()), m.Pong)


@both
def test_replies_come_in_any_order_and_each_finds_its_call(kind):
    def script(peer: Peer) -> None:
        waiting = [peer.expect(m.Ping) for _ in range(50)]
        for call, request in reversed(waiting):
            peer.reply(call, m.Pong(payload=request.payload))

    with kernel(kind, script) as line, Client(line) as k:
        pending = [k.submit(m.Ping(payload=str(i))) for i in range(50)]
        assert len({p.call for p in pending}) == 50
        assert [p.result(PATIENCE).payload for p in pending] == [str(i) for i in range(50)]


@both
def test_twenty_thousand_calls_may_be_sent_before_the_first_result_is_asked_for(kind):
    with kernel(kind, serve) as line, Client(line) as k:
        pending = [k.submit(m.Ping(payload=str(i))) for i in range(20_000)]
        assert all(p.result(PATIENCE).payload == str(i) for i, p in enumerate(pending))


@both
def test_a_message_larger_than_the_pipe_goes_out_and_comes_back(kind):
    payload = "é" * 400_000
    with kernel(kind, serve) as line, Client(line) as k:
        assert k.ping(payload).payload == payload
        assert errno(k.ping, "x" * (1 << 20)) is Errno.EMSGSIZE
        assert errno(k.ping, "\ud800") is Errno.EINVAL
        assert k.ping("after").payload == "after"


@both
def test_threads_share_a_client(kind):
    with kernel(kind, serve) as line, Client(line) as k, ThreadPoolExecutor(8) as pool:

        def many(thread: int) -> bool:
            texts = [f"{thread} {i}" * (1 + i % 3 * 5000) for i in range(100)]
            return all(k.ping(text).payload == text for text in texts)

        assert all(pool.map(many, range(8), timeout=PATIENCE))


def test_a_slow_call_does_not_hold_up_other_threads():
    answered = threading.Event()

    def script(peer: Peer) -> None:
        slow, _ = peer.expect(m.Kill)
        for call, request in peer:
            peer.reply(call, m.Pong(payload=request.payload))
            if request.payload == "last":
                assert answered.wait(PATIENCE)
                peer.reply(slow, exited(3))

    with kernel("pipe", script) as line, Client(line) as k:
        pending = k.submit(m.Kill(pid=3))
        with ThreadPoolExecutor(4) as pool:
            # One thread waits for the slow call, perhaps as the leader, while others are served.
            slow = pool.submit(pending.result, PATIENCE)
            assert list(pool.map(lambda i: k.ping(str(i)).payload, range(40)))[-1] == "39"
            k.ping("last")
            assert not slow.done()
            answered.set()
            assert slow.result(PATIENCE).process.pid == 3


@both
def test_a_reply_streams(kind):
    def script(peer: Peer) -> None:
        call, request = peer.expect(m.Chat)
        assert request.stream
        peer.reply(call, m.Part(text="Tues"), m.Part(text="day"), chatted("Tuesday"))
        serve(peer)

    with kernel(kind, script) as line, Client(line) as k:
        stream = k.stream("when?", temperature=0.5)
        with pytest.raises(CallerError, match="not ended"):
            _ = stream.reply
        assert list(stream) == ["Tues", "day"]
        assert stream.reply.text == "Tuesday"
        assert list(stream) == []


def test_a_stream_left_early_is_cancelled_and_its_rest_is_dropped():
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Chat)
        peer.reply(call, m.Part(text="one"))
        cancel, request = peer.expect(m.Cancel)
        assert request.call == call
        peer.reply(call, m.Part(text="two"), m.Failed(errno=125, message="cancelled"))
        peer.reply(cancel, m.Done())
        serve(peer)

    with kernel("pipe", script) as line, Client(line) as k:
        with k.stream("when?") as stream:
            assert next(stream) == "one"
        with pytest.raises(WorldError) as caught:
            list(stream)
        assert caught.value.errno is Errno.ECANCELED
        assert k.ping("on").payload == "on"


def test_standard_error_of_a_process_can_be_followed():
    def script(peer: Peer) -> None:
        call, request = peer.expect(m.WaitPid)
        assert request.follow
        peer.reply(call, m.Part(text="line\n"), exited(4))

    with kernel("pipe", script) as line, Client(line) as k:
        stream = k.follow(4)
        assert list(stream) == ["line\n"]
        assert stream.reply.process.pid == 4


def test_memories_are_fetched_page_by_page():
    def script(peer: Peer) -> None:
        call, request = peer.expect(m.MemoryList)
        assert (request.after, request.limit) == ("", 2)
        peer.reply(call, units("c", "b", next="b"))
        call, request = peer.expect(m.MemoryList)
        assert (request.after, request.limit) == ("b", 2)
        peer.reply(call, units("a"))

    with kernel("pipe", script) as line, Client(line) as k:
        assert [unit.text for unit in k.memories(limit=2)] == ["c", "b", "a"]


def test_a_failure_comes_as_the_exception_of_whoever_is_at_fault():
    def script(peer: Peer) -> None:
        for (call, _), number in zip(peer, (22, 110, 255, 99), strict=False):
            peer.reply(call, m.Failed(errno=number, message="why", field="f", story=("a", "b")))

    with kernel("pipe", script) as line, Client(line) as k:
        for kind in (CallerError, WorldError, KernelError, WorldError):
            pending = k.submit(m.Ping())
            for _ in range(2):
                with pytest.raises(kind) as caught:
                    pending.result(PATIENCE)
                assert (caught.value.field, caught.value.story) == ("f", ("a", "b"))


def test_a_timeout_leaves_the_call_under_way():
    go = threading.Event()

    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        assert go.wait(PATIENCE)
        peer.reply(call, m.Pong(payload="late"))

    with kernel("pipe", script) as line, Client(line) as k:
        pending = k.submit(m.Ping())
        assert errno(pending.result, 0.01) is Errno.ETIMEDOUT
        go.set()
        assert pending.result(PATIENCE).payload == "late"
        assert pending.done


def test_a_cancel_wakes_the_thread_that_waits():
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        cancel, request = peer.expect(m.Cancel)
        assert request.call == call
        peer.reply(call, m.Pong(payload="too late"))
        peer.reply(cancel, m.Done())
        serve(peer)

    with kernel("pipe", script) as line, Client(line) as k, ThreadPoolExecutor(2) as pool:
        pending = k.submit(m.Ping())
        waiters = [pool.submit(errno, pending.result, PATIENCE) for _ in range(2)]
        pending.cancel()
        assert [w.result(PATIENCE) for w in waiters] == [Errno.ECANCELED] * 2
        pending.cancel()
        assert k.ping("on").payload == "on"


def test_cancel_as_a_syscall_leaves_the_last_word_to_the_kernel():
    def script(peer: Peer) -> None:
        peer.expect(m.Kill)
        cancel, request = peer.expect(m.Cancel)
        peer.reply(request.call, m.Failed(errno=125, message="as you wish"))
        peer.reply(cancel, m.Done())

    with kernel("pipe", script) as line, Client(line) as k:
        pending = k.submit(m.Kill(pid=1))
        assert isinstance(k.cancel(pending.call), m.Done)
        with pytest.raises(WorldError, match="as you wish"):
            pending.result(PATIENCE)


# -- a kernel that dies or talks nonsense ------------------------------------------------------


@both
def test_a_dead_kernel_ends_every_call_and_all_later_ones(kind):
    def script(peer: Peer) -> None:
        for _ in range(5):
            peer.expect(m.Ping)

    with kernel(kind, script) as line, Client(line) as k, ThreadPoolExecutor(4) as pool:
        pending = [k.submit(m.Ping()) for _ in range(5)]
        ends = [pool.submit(errno, p.result, PATIENCE) for p in pending]
        assert {end.result(PATIENCE) for end in ends} == {Errno.EPIPE}
        assert errno(k.ping) is Errno.EPIPE


@both
def test_a_kernel_that_dies_while_the_client_writes_ends_the_call(kind):
    with kernel(kind, lambda peer: peer.expect(m.Ping)) as line, Client(line) as k:
        first = k.submit(m.Ping())
        assert errno(k.ping, "x" * 900_000) is Errno.EPIPE
        assert errno(first.result, PATIENCE) is Errno.EPIPE


def test_what_the_kernel_said_before_it_died_still_counts():
    died = threading.Event()

    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        peer.reply(call, m.Pong(payload="last"))
        peer.close()
        died.set()

    with kernel("pipe", script) as line, Client(line) as k:
        pending = k.submit(m.Ping())
        assert died.wait(PATIENCE)
        assert errno(k.submit(m.Ping()).result, PATIENCE) is Errno.EPIPE
        assert pending.result(PATIENCE).payload == "last"


def test_the_kernel_can_say_why_it_ends_the_channel():
    def script(peer: Peer) -> None:
        peer.expect(m.Ping)
        peer.reply(0, m.Failed(errno=105, message="you never read your replies"))

    with kernel("pipe", script) as line, Client(line) as k:
        with pytest.raises(WorldError, match="never read"):
            k.ping()
        assert errno(k.ping) is Errno.ENOBUFS


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x91\x65", b"\x91\xcd\xff\xff", b"\x91" * 50_000, b"\x92\x69\x01"],
    ids=["empty", "invalid", "short", "unknown tag", "nested", "wrong type"],
)
def test_a_bad_reply_is_eproto_for_its_call_alone(body):
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        peer.write(pack(call, body))
        serve(peer)

    with kernel("pipe", script) as line, Client(line) as k:
        assert errno(k.ping) is Errno.EPROTO
        assert k.ping("on").payload == "on"


def test_a_reply_of_another_kind_is_eproto():
    def script(peer: Peer) -> None:
        for reply in (m.Done(), m.Part(text="not asked for"), m.Pong(payload="yes")):
            call, _ = peer.expect(m.Ping)
            peer.reply(call, reply)

    with kernel("pipe", script) as line, Client(line) as k:
        assert [errno(k.ping), errno(k.ping)] == [Errno.EPROTO] * 2
        assert k.ping().payload == "yes"


def test_a_reply_to_nobody_is_ignored():
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        peer.reply(call + 1000, m.Pong(payload="no"))
        peer.reply(call, m.Pong(payload="yes"), m.Pong(payload="again"))
        serve(peer)

    with kernel("pipe", script) as line, Client(line) as k:
        assert k.ping().payload == "yes"
        assert k.ping("on").payload == "on"


def test_an_oversize_frame_ends_the_channel():
    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Ping)
        peer.write(HEADER.pack((1 << 20) + 1, call))
        with pytest.raises(EOFError):
            peer.next()

    with kernel("pipe", script) as line, Client(line) as k:
        assert errno(k.ping) is Errno.EMSGSIZE
        assert errno(k.ping) is Errno.EMSGSIZE


def test_close_ends_the_calls_of_other_threads_and_all_later_ones():
    with (
        kernel("pipe", lambda peer: list(peer)) as line,
        Client(line) as k,
        ThreadPoolExecutor(3) as pool,
    ):
        waiters = [pool.submit(errno, k.submit(m.Ping()).result, PATIENCE) for _ in range(3)]
        k.close()
        assert {w.result(PATIENCE) for w in waiters} == {Errno.EPIPE}
        assert errno(k.ping) is Errno.EPIPE
        k.close()


# -- Ctrl-C ------------------------------------------------------------------------------------


class Interrupt:
    """Raises ``KeyboardInterrupt`` at the ``nth`` point of the client's code where CPython may
    run a signal handler: on entry to a function, after a call, and at a jump backwards."""

    FILES = frozenset({"client.py", "session.py", "framing.py", "codec.py"})
    AFTER = frozenset(n for name, n in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACK")))

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.last: dict[FrameType, int] = {}

    def __enter__(self) -> Interrupt:
        self.outer = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.outer)
        self.last.clear()

    def __call__(self, frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if path.parent.name != "syscalls" or path.name not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self.point()
        elif event == "opcode":
            if self.last.get(frame) in self.AFTER:
                self.point()
            self.last[frame] = frame.f_code.co_code[frame.f_lasti]
        return self

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt


@both
def test_ctrl_c_at_any_point_leaves_the_client_usable(kind):
    """Replies that are read by an interrupted call belong to others, so none may be lost."""

    def script(peer: Peer) -> None:
        for call, request in peer:
            if isinstance(request, m.Chat):
                peer.reply(call, *(m.Part(text=str(i)) for i in range(5)), chatted("01234"))
            elif isinstance(request, m.Cancel):
                peer.reply(call, m.Done())
            else:
                peer.reply(call, m.Pong(payload=request.payload))

    struck = 0
    with kernel(kind, script) as line, Client(line) as k:
        for nth in range(1, 1000, 1 if kind == "pipe" else 7):
            stream = k.stream("count")
            before = [k.submit(m.Ping(payload=str(i))) for i in range(3)]
            try:
                with Interrupt(nth):
                    assert k.ping("mine" * 20_000).payload == "mine" * 20_000
            except KeyboardInterrupt:
                struck += 1
            else:
                break
            assert "".join(stream) == "01234"
            assert [p.result(PATIENCE).payload for p in before] == ["0", "1", "2"]
            assert k.ping(str(nth)).payload == str(nth)
        else:
            pytest.fail("the call never came to an end")
    assert struck > 20


def test_ctrl_c_in_one_thread_leaves_the_others_served():
    stop = threading.Event()

    def others(k: Client) -> int:
        count = 0
        while not stop.is_set():
            assert k.ping(str(count)).payload == str(count)
            count += 1
        return count

    with (
        kernel("pipe", serve) as line,
        Client(line) as k,
        ThreadPoolExecutor(2) as pool,
    ):
        futures = [pool.submit(others, k) for _ in range(2)]
        try:
            for nth in range(1, 120):
                with pytest.raises(KeyboardInterrupt), Interrupt(nth):
                    all(k.ping("mine") for _ in itertools.count())
                assert k.ping(str(nth)).payload == str(nth)
        finally:
            stop.set()
        assert all(f.result(PATIENCE) > 0 for f in futures)


def test_ctrl_c_while_waiting_sends_a_cancel():
    cancelled = threading.Event()

    def script(peer: Peer) -> None:
        call, _ = peer.expect(m.Kill)
        os.kill(os.getpid(), 2)
        cancel, request = peer.expect(m.Cancel)
        assert request.call == call
        cancelled.set()
        peer.reply(call, m.Failed(errno=125, message="cancelled"))
        peer.reply(cancel, m.Done())
        serve(peer)

    with kernel("pipe", script) as line, Client(line) as k:
        with pytest.raises(KeyboardInterrupt):
            k.kill(3)
        assert cancelled.wait(PATIENCE)
        assert k.ping("on").payload == "on"


# -- where the kernel is -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in ("FDS", "SOCKET", "TOKEN", "KERNEL"):
        monkeypatch.delenv(f"ISOVIST_{name}", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def listen(path: Path, script) -> threading.Thread:
    """A kernel at a socket, for one connection."""
    path.parent.mkdir(parents=True, exist_ok=True)
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(path))
    door.listen()

    def play() -> None:
        with door:
            channel, _ = door.accept()
        with channel:
            script(Peer(channel.fileno(), channel.fileno(), channel))

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    return thread


def greeting(token: str):
    def script(peer: Peer) -> None:
        call, request = peer.expect(m.Hello)
        assert (request.token, request.agent, request.user) == (token, "", None)
        peer.reply(call, WELCOME)
        serve(peer)

    return script


def test_the_default_places_are_runtime_directory_then_state_directory(tmp_path, monkeypatch):
    assert directories("default") == [
        tmp_path / "run" / "isovist" / "default",
        tmp_path / "state" / "isovist" / "default",
    ]
    monkeypatch.setenv("ISOVIST_KERNEL", "other")
    place = tmp_path / "state" / "isovist" / "other"
    thread = listen(place / "socket", greeting("s3same"))
    (place / "token").write_text("s3same\n")
    with connect(user="ana") as k:
        assert k.remember("x").user == "ana"
    thread.join(PATIENCE)


def test_socket_and_token_may_come_from_the_environment_or_the_call(tmp_path, monkeypatch):
    thread = listen(tmp_path / "a", greeting("one"))
    monkeypatch.setenv("ISOVIST_SOCKET", str(tmp_path / "a"))
    monkeypatch.setenv("ISOVIST_TOKEN", "one")
    with connect() as k:
        assert k.ping("x").payload == "x"
    thread.join(PATIENCE)
    thread = listen(tmp_path / "b", greeting("two"))
    with connect(socket=tmp_path / "b", token="two") as k:
        assert k.ping("x").payload == "x"
    thread.join(PATIENCE)


def test_an_agent_finds_its_pipes_in_the_environment(monkeypatch):
    with kernel("pipe", serve) as line:
        reader, writer = os.dup(line.reader), os.dup(line.writer)
        monkeypatch.setenv("ISOVIST_FDS", f"{reader},{writer}")
        with connect() as k:
            assert k.welcome.agent == "fake"
            assert not os.get_inheritable(reader)
            with pytest.raises(CallerError, match="share that client"):
                connect()
        assert errno(connect) is Errno.EPIPE


@pytest.mark.parametrize("value", ["3", "a,b", "3,4,5", "99999999999999999999,1"])
def test_malformed_descriptors_are_named(monkeypatch, value):
    monkeypatch.setenv("ISOVIST_FDS", value)
    with pytest.raises(IsovistError, match="ISOVIST_FDS"):
        connect()


def test_no_kernel_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(WorldError, match="isovist up") as caught:
        connect()
    assert caught.value.errno is Errno.EPIPE
    with pytest.raises(CallerError) as too_long:
        locate(tmp_path / ("x" * 200))
    assert too_long.value.field == "socket"


@pytest.mark.parametrize("name", ["..", "a/b", "\0"])
def test_a_kernels_name_is_no_path(monkeypatch, name):
    with pytest.raises(CallerError):
        directories(name)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_abi_is_a_clear_error(version):
    def script(peer: Peer) -> None:
        call, request = peer.expect(m.Hello)
        assert (request.low, request.version, request.token) == (1, 1, "sesame")
        peer.reply(call, msgspec.structs.replace(WELCOME, version=version))

    with kernel("socket", script) as line, Client(line) as k:
        with pytest.raises(IsovistError, match=f"version {version}, this client 1 to 1") as caught:
            k.shake_hands()
        assert caught.value.errno is Errno.EPROTO


def test_spawn_hands_over_descriptors_with_the_first_byte_of_its_frame(tmp_path):
    def script(peer: Peer) -> None:
        data = b""
        while len(data) < 60_000:  # what stood in the way, in whole reads
            data += os.read(peer.reader, 60_000 - len(data))
        frame, fds, _, _ = socket.recv_fds(peer.door, 1 << 16, 8)
        assert [os.read(fd, 9) for fd in fds] == [b"0", b"1", b"2"]
        for fd in fds:
            os.close(fd)
        (size, call), body = HEADER.unpack(frame[:8]), frame[8:]
        assert size == len(body)
        peer.reply(call, m.Spawned(pid=12, user="", rule=""))

    files = []
    for name in "012":
        (tmp_path / name).write_text(name)
        files.append(os.open(tmp_path / name, os.O_RDONLY))
    with kernel("socket", script) as line, Client(line) as k:
        filler = len(pack(1, msgspec.msgpack.encode([2, None, None, "x" * 59_900])))
        k.submit(m.Ping(payload="x" * (59_900 + 60_000 - filler)))
        assert k.spawn("agent.py", stdio=tuple(files), args=("a",)).pid == 12
    for fd in files:
        os.close(fd)


def test_a_pipe_cannot_hand_over_descriptors():
    with kernel("pipe", serve) as line, Client(line) as k:
        with pytest.raises(CallerError) as caught:
            k.spawn("agent.py", stdio=(0, 1, 2))
        assert caught.value.field == "stdio"
        assert k.ping("on").payload == "on"


# -- both clients offer the same ---------------------------------------------------------------


def test_the_options_are_the_optional_fields_of_the_requests():
    pairs = {
        m.Spawn: (options.SpawnOptions, {"stdio"}),
        m.Remember: (options.RememberOptions, set()),
        m.Search: (options.SearchOptions, set()),
        m.Read: (options.ReadOptions, set()),
        m.MemoryList: (options.ListOptions, set()),
        m.Chat: (options.ChatOptions, {"stream"}),
        m.MemorySearch: (options.MemorySearchOptions, set()),
        m.MemoryRead: (options.MemoryReadOptions, set()),
        m.SessionSearch: (options.SessionSearchOptions, set()),
        m.FullContext: (options.LimitOptions, set()),
        m.MemoryFiles: (options.LimitOptions, set()),
        m.Prefetch: (options.PrefetchOptions, set()),
        m.ForgetMatching: (options.MatchOptions, set()),
        m.mail.MailSend: (options.SendOptions, set()),
        m.mail.MailReceive: (options.ReceiveOptions, {"limit", "wait_ms"}),
        m.timers.TimerSet: (options.TimerOptions, {"at", "every", "cron", "zone"}),
        m.effects.EffectBegin: (options.EffectOptions, {"arguments"}),
        m.effects.EffectList: (options.EffectsOptions, set()),
        m.Ping: (options.CallOptions, {"payload"}),
    }
    for request, (typed, own) in pairs.items():
        fields = {f.name for f in msgspec.structs.fields(request) if not f.required}
        assert set(typed.__annotations__) == fields - own, request
        hints, wanted = get_type_hints(typed), get_type_hints(request)
        assert all(hints[name] == wanted[name] for name in hints), request


def test_both_clients_have_the_same_methods_with_the_same_parameters():
    def public(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(f).parameters)
            for name, f in members
            if not name.startswith("_")
        }

    blocking, awaited = public(client_module.Client), public(AsyncClient)
    assert blocking.pop("close") == ["self"]  # the async one is closed by its context
    assert blocking == awaited
    assert len(m.NAMES.keys() - {m.Hello}) <= len(blocking)
