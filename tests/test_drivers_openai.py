"""The openai driver as a process, before a real server on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from driver_helpers import DEADLINE_S, Talk, death_of, real_model, user
from endpoint_helpers import breaks, completions, event, holds, refuses, says, streams

from isovist.kernel.drivers.protocol import (
    Abort,
    Count,
    Finished,
    Flush,
    FromProcess,
    Generate,
    Kept,
    Load,
    RequestFailed,
    Token,
    Up,
)
from isovist.kernel.drivers.supervisor import DriverProcess
from isovist.syscalls.errors import Errno

KEY, VARIABLE = "sk-quite-a-secret-0123456789", "ISOVIST_TEST_KEY"


def process(url: str, *more: str, key: bool = False) -> DriverProcess:
    named = ("--key", VARIABLE) if key else ()
    command = ("--url", url, "--model", "m", "--backoff", "0.001", *named, *more)
    return DriverProcess("openai", *command, keep=(VARIABLE,))


@asynccontextmanager
async def driver(url: str, *more: str, key: bool = False) -> AsyncIterator[Talk]:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            peer = Talk(process(url, *more, key=key))
            await nursery.start(peer.run)
            up = await peer.next()
            assert isinstance(up, Up)
            peer.up = up
            yield peer
            nursery.cancel_scope.cancel()


async def test_an_answer_a_failure_and_an_answer() -> None:
    with completions(says("on", " Tuesday"), refuses(400)) as server:
        async with driver(server.url, "--context", "4096", "--slots", "3") as peer:
            assert peer.up == Up(4096, "", "m", slots=3)
            text, end = await peer.answer(Generate(1, user("when?"), 32))
            assert text == "on Tuesday"
            assert isinstance(end, Finished)
            assert (end.finish, end.output_tokens) == ("stop", 2)
            assert (end.prompt_tokens, end.cached_tokens) == (11, 3)
            assert min(end.queue_ns, end.prefill_ns, end.decode_ns) >= 0
            _, end = await peer.answer(Generate(2, user("when?"), 32))
            assert isinstance(end, RequestFailed)
            assert end.errno == Errno.EINVAL
            _, end = await peer.answer(Generate(3, user("when?"), 0))
            assert isinstance(end, RequestFailed)
            assert end.errno == Errno.EINVAL
            text, _ = await peer.answer(Generate(4, user("when?"), 32))
            assert text == "word0 word1"


async def test_no_more_requests_than_slots_are_sent_and_none_is_lost() -> None:
    busy: list[Load] = []

    def watch(message: FromProcess) -> None:
        if isinstance(message, Load):
            busy.append(message)
            if (message.running, message.waiting) == (3, 4):
                server.gate.set()

    with completions() as server:
        server.then = holds()
        async with driver(server.url, "--slots", "3") as peer:
            peer.watch = watch
            for key in range(7):
                peer.send(Generate(key, user("when?"), 32))
            ends = [await peer.next() for _ in range(7)]
    assert {end.key for end in ends if isinstance(end, Finished)} == set(range(7))
    assert server.most == 3
    assert all(load.running <= 3 for load in busy)


async def test_an_abort_hangs_up_and_gives_the_slot_on() -> None:
    with completions(holds("on"), holds("on")) as server:
        async with driver(server.url, "--slots", "1") as peer:
            for key in (1, 2, 3):
                peer.send(Generate(key, user("when?"), 32))
            assert await peer.next() == Token(1, "on")
            peer.send(Abort(1))
            peer.send(Abort(3))
            ends: dict[int, FromProcess] = {}
            for _ in range(3):
                message = await peer.next()
                if message == Token(2, "on"):
                    continue
                assert isinstance(message, Finished)
                ends[message.key] = message
                assert message.finish == "cancelled"
            assert ends.keys() == {1, 3}
            assert await trio.to_thread.run_sync(server.gone.wait, 10)
            peer.send(Abort(99))
            server.gate.set()
            assert isinstance(end := await peer.next(), Finished)
            assert (end.key, end.finish) == (2, "stop")
    assert len(server.seen) == 2


async def test_when_to_come_again_is_told() -> None:
    with completions(refuses(429, Retry_After="900")) as server:
        async with driver(server.url) as peer:
            _, end = await peer.answer(Generate(1, user("when?"), 32))
    assert isinstance(end, RequestFailed)
    assert end.errno == Errno.EAGAIN
    assert end.retry_ns == 900_000_000_000


async def test_it_holds_nothing_and_says_what_it_does_not_do() -> None:
    with completions() as server:
        async with driver(server.url) as peer:
            peer.send(Flush(5))
            assert await peer.next() == Kept(5, 0)
            peer.send(Count(6, ("a",)))
            failed = await peer.next()
            assert isinstance(failed, RequestFailed)
            assert (failed.key, failed.errno) == (6, Errno.ENOSYS)


async def test_the_key_comes_from_the_environment_and_is_written_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    said: list[FromProcess] = []
    with completions() as server:
        server.turns = [
            refuses(401, KEY.encode()), refuses(400, KEY.encode()),
            streams(event(error={"code": KEY})), breaks("on"), says("fine"),
        ]  # fmt: skip
        async with driver(server.url, "--tries", "1", key=True) as peer:
            command = Path(f"/proc/{peer.process.pid}/cmdline").read_bytes()
            for key in range(5):
                _, end = await peer.answer(Generate(key, user("when?"), 32))
                said.append(end)
            server.gate.set()
            peer.process.kill()
            death = await peer.death()
    assert server.keys == [f"Bearer {KEY}"] * 5
    assert VARIABLE.encode() in command
    assert isinstance(said[-1], Finished)
    first = said[0]
    assert isinstance(first, RequestFailed)
    assert first.errno == Errno.EACCES
    assert VARIABLE in first.message
    for words in (command.decode(), repr(said), repr(death)):
        assert "quite-a-secret" not in words


@pytest.mark.parametrize("value", [None, "", " ", "sk-not\nquite", "schlüssel"])
async def test_a_key_that_is_missing_or_broken_ends_the_process_with_its_name(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    death = await death_of(process("http://127.0.0.1:1/v1", key=True))
    assert death.fatal
    assert VARIABLE in death.reason
    if value and value.strip():
        assert value not in f"{death!r} {death.reason}"


async def test_an_address_that_is_none_ends_the_process_with_its_reason() -> None:
    death = await death_of(process("https://exa mple.org:x/v1"))
    assert death.fatal
    assert "InvalidURL" in death.reason


async def test_it_ends_with_its_pipe_even_while_it_works() -> None:
    with completions() as server:
        server.then = holds("on")
        async with driver(server.url) as peer:
            peer.send(Generate(1, user("when?"), 32))
            assert await peer.next() == Token(1, "on")
        assert await trio.to_thread.run_sync(server.gone.wait, 10)


# -- before llama.cpp's own server


@contextmanager
def llama_server(model: str) -> Iterator[str]:
    """The address of ``llama_cpp.server``, once it answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [
        sys.executable, "-m", "llama_cpp.server", "--model", model, "--port", str(port),
        "--host", "127.0.0.1", "--n_ctx", "512", "--n_threads", "1",
    ]  # fmt: skip
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}/v1"
        for _ in range(600):
            assert server.poll() is None, "the server has ended"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/models"):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.1)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def model() -> str:
    """A model file, where llama.cpp's server can run at all."""
    for needed in ("fastapi", "uvicorn", "sse_starlette", "pydantic_settings", "starlette_context"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"llama_cpp.server needs {needed}, which is not installed")
    return real_model()


async def test_before_the_server_of_llama_cpp(model: str) -> None:
    with llama_server(model) as url:
        # It knows the older form of a schema alone.
        async with driver(url, "--form", "json_object") as peer:
            text, end = await peer.answer(Generate(1, user("Say hello."), 8))
            assert text
            assert isinstance(end, Finished)
            assert 0 < end.output_tokens <= 8
            schema = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
            text, end = await peer.answer(Generate(2, user("A number."), 64, schema=schema))
            assert isinstance(end, Finished)
            assert text.lstrip().startswith("{")
