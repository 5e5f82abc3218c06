"""The embedder's keeper: whose turn it is, what a dead or hanging process costs, what is logged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import structlog
import trio
import trio.testing
from numpy.typing import NDArray

from isovist.kernel import embedding
from isovist.kernel.drivers.protocol import (
    Embed,
    Embedded,
    FromProcess,
    RequestFailed,
    ToProcess,
    Up,
)
from isovist.kernel.drivers.supervisor import Death
from isovist.kernel.embedding import PATIENCE_S, QUERY_CHARS, TRIES, TURN, WINDOW, Embedding
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Outcome, Vectors
from isovist.syscalls.records import Partition, partition_of

SECRET = "a line that quotes memory"
settle = trio.testing.wait_all_tasks_blocked


class Scribe:
    """Stands in for the process: comes up when told, answers when told."""

    def __init__(self, *command: str, keep: Sequence[str] = ()) -> None:
        self.pid = 1
        self.alive = True
        self.asked: list[Embed] = []
        self.receive: Callable[[FromProcess], None] = lambda message: None
        self._end = trio.Event()

    async def run(self, receive: Callable[[FromProcess], None]) -> Death:
        self.receive = receive
        await self._end.wait()
        return Death(status=-9, reason="killed by SIGKILL", stderr=(SECRET,))

    def send(self, message: ToProcess) -> None:
        assert isinstance(message, Embed)
        self.asked.append(message)

    def kill(self) -> None:
        self.alive = False
        self._end.set()

    def up(self) -> None:
        self.receive(Up(0, "hash-256", dim=256))

    def answer(self) -> Embed:
        """Answer the oldest request; the vector of a text is the text."""
        request = self.asked.pop(0)
        self.receive(Embedded(request.id, tuple(text.encode() for text in request.texts)))
        return request

    @property
    def chunks(self) -> int:
        return sum(len(request.texts) for request in self.asked)


class Office:
    """An ``Embedding`` over scribes."""

    def __init__(self) -> None:
        self.done: list[Vectors] = []
        self.lost: list[Outcome] = []
        self.embedding = Embedding("hash", self.done.append, self.lost.append)

    def submit(self, unit: str, user: str = "ana", chunks: int = 1) -> None:
        texts = tuple(f"{unit} {number}" for number in range(chunks))
        self.embedding.submit(self.partition(user), 1, unit, 1, texts)

    def partition(self, user: str) -> Partition:
        return partition_of("pair", user, "p")

    @property
    def scribe(self) -> Scribe:
        assert isinstance(self.embedding.process, Scribe)
        return self.embedding.process

    async def next_life(self, clock: trio.testing.MockClock) -> Scribe:
        """The process has died: let the pause before the next one pass."""
        last = self.scribe
        await settle()
        clock.jump(5.0)
        await settle()
        assert self.scribe is not last
        return self.scribe


@pytest.fixture(autouse=True)
def scribes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "DriverProcess", Scribe)


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    made = Office()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.embedding.run)
        await settle()
        yield made
        nursery.cancel_scope.cancel()


async def test_a_newcomer_waits_for_few_chunks_however_much_is_queued(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with office() as at:
        at.scribe.up()
        for number in range(20):
            at.submit(f"flood {number}", "flood", chunks=100)
        at.submit("other", "other", chunks=5)
        assert at.scribe.chunks == WINDOW
        at.submit("one", "ana")
        ahead = 0
        while "one" not in [op.id for op in at.done]:
            assert at.scribe.chunks <= WINDOW
            ahead += len(at.scribe.answer().texts)
        # What the process already had, and a turn of each of the two others.
        assert ahead <= WINDOW + 2 * TURN + 1
        assert len(at.embedding) == 20
        while len(at.embedding):
            at.scribe.answer()
        floods = [op for op in at.done if op.partition == at.partition("flood")]
        assert [op.id for op in floods] == [f"flood {number}" for number in range(20)]
        assert floods[7].vectors == tuple(f"flood 7 {i}".encode() for i in range(100))
        assert not at.scribe.asked


@pytest.mark.promise("kernel.survives")
async def test_work_in_progress_is_sent_again_from_where_it_was(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with office() as at:
        at.scribe.up()
        at.submit("small")
        at.submit("long", chunks=30)
        at.submit("last")
        at.scribe.answer()
        at.scribe.answer()
        at.scribe.kill()
        scribe = await at.next_life(mock_clock)
        scribe.up()
        assert scribe.asked[0].texts[0] == f"long {TURN}"
        while scribe.asked:
            scribe.answer()
        assert [op.id for op in at.done] == ["small", "long", "last"]
        assert at.done[1].vectors == tuple(f"long {i}".encode() for i in range(30))
        assert not at.lost


@pytest.mark.promise("kernel.survives")
async def test_a_death_is_held_against_what_was_being_embedded_alone(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with office() as at:
        at.submit("deadly", "bob", chunks=12)
        at.submit("sound")
        for _ in range(TRIES + 2):  # lives that end before they were sent anything
            at.scribe.kill()
            await at.next_life(mock_clock)
        assert len(at.embedding) == 2
        for _ in range(TRIES):
            assert not at.lost
            at.scribe.up()
            while not at.scribe.asked[0].texts[0].startswith("deadly"):
                at.scribe.answer()
            at.scribe.kill()
            await at.next_life(mock_clock)
        (lost,) = at.lost
        assert (lost.op.id, lost.errno) == ("deadly", Errno.EIO)
        at.scribe.up()
        while at.scribe.asked:
            assert not at.scribe.answer().texts[0].startswith("deadly")
        assert [op.id for op in at.done] == ["sound"]
        assert len(at.embedding) == 0


async def test_a_unit_that_fails_in_its_middle_is_given_up_whole(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with office() as at:
        at.scribe.up()
        at.submit("bad", chunks=60)
        at.submit("good")
        at.scribe.answer()
        failed = at.scribe.asked.pop(0)
        at.scribe.receive(RequestFailed(failed.id, Errno.EINVAL, "no"))
        request = at.scribe.asked.pop(0)  # was on its way already; what comes of it is let go
        at.scribe.receive(Embedded(request.id, ()))
        assert [request.texts for request in at.scribe.asked] == [("good 0",)]
        assert at.scribe.answer()
        assert ([o.op.id for o in at.lost], [o.id for o in at.done]) == (["bad"], ["good"])
        at.submit("short of one", chunks=2)
        at.scribe.receive(Embedded(at.scribe.asked.pop(0).id, (b"",)))
        assert [o.op.id for o in at.lost] == ["bad", "short of one"]
        assert len(at.embedding) == 0


@pytest.mark.promise("kernel.survives")
async def test_a_process_that_hangs_is_killed_and_an_idle_one_is_not(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with office() as at:
        scribe = at.scribe
        scribe.up()
        for _ in range(2):
            mock_clock.jump(10 * PATIENCE_S)
            await settle()
            assert scribe.alive
            at.submit("one")
            at.submit("two")
            for _ in range(2):  # slow, and at work
                mock_clock.jump(0.9 * PATIENCE_S)
                await settle()
                scribe.answer()
        assert len(at.done) == 4
        at.submit("three")
        mock_clock.jump(0.9 * PATIENCE_S)
        at.submit("four")  # that more was sent is no answer
        await settle()
        assert scribe.alive
        mock_clock.jump(0.2 * PATIENCE_S)
        await settle()
        assert not scribe.alive
        scribe = await at.next_life(mock_clock)
        scribe.up()
        scribe.answer()
        scribe.answer()
        assert [op.id for op in at.done[4:]] == ["three", "four"]


async def test_the_last_lines_of_a_process_are_logged_at_debug_alone(
    mock_clock: trio.testing.MockClock,
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with office() as at:
            at.scribe.kill()
            await at.next_life(mock_clock)
    assert "embedder gone" in [line["event"] for line in logs]
    assert {line["log_level"] for line in logs if SECRET in str(line)} == {"debug"}


def test_of_a_long_question_the_beginning_and_the_end_are_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedded: list[str] = []

    class Recorder:
        name, dim = "recorder", 2

        def embed_query(self, text: str) -> NDArray[np.float32]:
            embedded.append(text)
            return np.array([1.0, 0.0], dtype=np.float32)

    monkeypatch.setattr(embedding, "make_embedder", lambda name: Recorder())
    asked = Embedding("recorder", lambda op: None, lambda outcome: None)
    whole = "x" * QUERY_CHARS
    asked.query(whole)
    asked.query("Where does Ana " + "well " * 1000 + "keep her keys?")
    assert embedded[0] == whole
    assert len(embedded[1]) <= QUERY_CHARS + 1
    assert embedded[1].startswith("Where does Ana well")
    assert embedded[1].endswith("well keep her keys?")
