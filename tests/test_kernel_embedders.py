"""Embedders that work in processes of their own: slow ones, dying ones, ones behind a network."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio
from endpoint_helpers import HASH, Endpoint, endpoint, vector_of
from kernel_helpers import client, config, running, short_folder

from isovist.kernel import asking
from isovist.kernel.asking import Asker, fits
from isovist.kernel.drivers.protocol import Up
from isovist.kernel.kernel import Kernel
from isovist.storage.endpoint import KEY
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.messages import Search

SECRET = "sk-never-shown"
PASSAGE, QUESTION = "passage: ", "query: "


class Gate:
    """Holds back the vectors of texts with a prefix until it is opened."""

    def __init__(self, server: Endpoint, prefix: str) -> None:
        self._prefix = prefix
        self._open = threading.Event()
        self.waiting = 0
        server.answer = self

    def __call__(self, text: str) -> tuple[int, bytes]:
        if text.startswith(self._prefix):
            self.waiting += 1
            assert self._open.wait(60)
        return vector_of(text)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv(KEY, SECRET)
    with endpoint() as made:
        yield made


@asynccontextmanager
async def serving(server: Endpoint) -> AsyncIterator[tuple[Kernel, AsyncClient]]:
    choice = f"{server.address}?query=query:%20&passage=passage:%20#m"
    with short_folder() as folder, trio.fail_after(120):
        async with (
            running(Path(folder), embedder=choice) as kernel,
            client(kernel, "one", operator=True, user="ana") as one,
        ):
            await until(lambda: kernel.embedding.up and asker(kernel)._up)
            yield kernel, one


def asker(kernel: Kernel) -> Asker:
    assert kernel.embedding._asker is not None
    return kernel.embedding._asker


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.sleep(0.005)


async def lagging(call: Awaitable[object]) -> tuple[str, ...]:
    found = await call
    return found.barrier.lagging  # type: ignore[attr-defined,no-any-return] # of a Found


@pytest.mark.promise("barrier.order")
async def test_a_slow_embedder_delays_the_dense_leg_alone_and_that_is_said(
    server: Endpoint,
) -> None:
    async with serving(server) as (_, one):
        gate = Gate(server, PASSAGE)
        stored = await one.remember("The locker of Ana is 4417")
        await until(lambda: gate.waiting)
        found = await one.search("locker", wait="lexical", barrier_ms=0)
        assert (found.barrier.state, found.barrier.lagging) == ("ready", ("dense",))
        assert [hit.unit.id for hit in found.hits] == [stored.id]
        assert gate.waiting == 1, "the question was not embedded behind the text"
        late = await one.search("locker", barrier_ms=20)
        assert (late.barrier.state, late.barrier.lagging) == ("timed_out", ("dense",))
        gate.open()
        found = await one.search("locker", mode="dense", barrier_ms=60_000)
        assert (found.barrier.state, found.barrier.lagging) == ("ready", ())
        assert [hit.unit.id for hit in found.hits] == [stored.id]
        asked = {body["input"] for body in server.seen}
        assert f"{QUESTION}locker" in asked
        assert any(text.startswith(PASSAGE) and "4417" in text for text in asked)


async def test_a_question_that_is_overdue_costs_one_reader_and_no_other(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.05)
    async with serving(server) as (kernel, one):
        await one.remember("The locker of Ana is 4417")
        await until(lambda: not len(kernel.embedding))
        gate = Gate(server, QUESTION)
        for query in ("locker", "locker of Ana", "4417"):
            found = await one.search(query, wait="lexical")
            assert found.barrier.lagging == ("dense",)
            assert len(found.hits) == 1
        assert gate.waiting == 1, "nobody else waited"
        gate.open()
        await until(lambda: not asker(kernel)._asked)
        monkeypatch.setattr(asking, "PATIENCE_S", 60.0)
        assert await lagging(one.search("locker", wait="lexical")) == ()


async def test_a_question_process_that_hangs_is_killed_and_another_one_answers(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(server) as (kernel, one):
        await one.remember("The locker of Ana is 4417")
        await until(lambda: not len(kernel.embedding))
        process = asker(kernel)._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(asking, "PATIENCE_S", 0.05)
        monkeypatch.setattr(asking, "HANG_S", 0.0)
        for _ in range(2):  # the first one is overdue, the second one sees it
            assert await lagging(one.search("locker", wait="lexical")) == ("dense",)
        await until(lambda: not process.alive)
        monkeypatch.setattr(asking, "PATIENCE_S", 60.0)
        # That it is dead is known before the one who keeps it has noticed.
        await until(lambda: asker(kernel)._process is not process and asker(kernel)._up)
        assert await lagging(one.search("locker", wait="lexical")) == ()


async def test_a_kernel_stops_while_a_question_is_outstanding(server: Endpoint) -> None:
    async with serving(server) as (kernel, one):
        gate = Gate(server, QUESTION)
        await one.submit(Search(query="locker"))
        await until(lambda: gate.waiting)
        asked = asker(kernel)
        assert asked._asked
    assert not asked._asked, "the thread of questions was let go, and the kernel has ended"
    gate.open()


async def test_an_endpoint_that_fails_for_a_while_loses_no_vector(server: Endpoint) -> None:
    async with serving(server) as (_, one):
        tries: list[str] = []

        def answer(text: str) -> tuple[int, bytes]:
            if text.startswith(PASSAGE):
                tries.append(text)
                if len(tries) == 1:
                    return 503, b"later"
            return vector_of(text)

        server.answer = answer
        await one.remember("The locker of Ana is 4417")
        found = await one.search("locker", mode="dense", barrier_ms=60_000)
        assert (found.barrier.state, found.barrier.lagging) == ("ready", ())
        assert len(found.hits) == 1
        assert len(tries) == 2


async def test_a_text_that_the_endpoint_refuses_is_given_up_and_said(server: Endpoint) -> None:
    async with serving(server) as (_, one):
        server.answer = lambda text: (400, b"no") if "deadly" in text else vector_of(text)
        await one.remember("the deadly one")
        await one.remember("the harmless one")
        found = await one.search("one", barrier_ms=60_000)
        assert found.barrier.lagging == ("dense",), "lost, and never silently"
        assert len(found.hits) == 2


async def test_the_key_reaches_the_endpoint_and_no_log(server: Endpoint) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(server) as (kernel, one):
            await one.remember("tea")
            await one.search("tea", barrier_ms=60_000)
            name = kernel.embedding.name
    assert set(server.keys) == {f"Bearer {SECRET}"}
    assert SECRET not in f"{logs} {name}"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("onnx:/nowhere", "/nowhere"),
        ("openai:http://127.0.0.1:1/v1#m", "cannot be reached"),
        ("nonsense", "no embedder"),
    ],
)
async def test_a_kernel_does_not_start_with_an_embedder_that_cannot_be_used(
    choice: str, words: str
) -> None:
    with short_folder() as folder, trio.fail_after(60):
        kernel = Kernel(config(Path(folder), embedder=choice), models=[], door=False)
        with pytest.raises(WorldError) as caught:
            await kernel.run()
        assert caught.value.field == "embedder"
        assert choice in caught.value.message
        if choice != "onnx:/nowhere":  # without the extra, that is what is said
            assert words in caught.value.message
        assert caught.value.errno == Errno.EIO
        assert not (Path(folder) / "isovist.db").exists()


def test_a_process_of_another_model_does_not_fit() -> None:
    up = Up(0, HASH.name, dim=HASH.dim)
    assert fits(up, HASH.name, HASH.dim)
    assert not fits(up, "other", HASH.dim)
    assert not fits(up, HASH.name, HASH.dim + 1)


def test_without_a_process_a_question_fails_at_once() -> None:
    with pytest.raises(WorldError) as caught:
        Asker("hash", HASH.name, HASH.dim).query("tea")
    assert caught.value.errno == Errno.EAGAIN
