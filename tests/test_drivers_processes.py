"""Driver processes and their supervisor, with the scripted driver: answers, faults, deaths."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys

import numpy as np
import pytest
import trio
from driver_helpers import DEADLINE_S, Talk, death_of, talk, user

import isovist
from isovist.kernel import tokens
from isovist.kernel.drivers import supervisor
from isovist.kernel.drivers.protocol import (
    Abort,
    Count,
    Counted,
    CountPrompt,
    Embed,
    Embedded,
    Finished,
    FromProcess,
    Generate,
    Pause,
    RequestFailed,
    Resume,
    Token,
    ToProcess,
    Up,
)
from isovist.kernel.drivers.script import TOKENIZER, scripted_count, scripted_prompt
from isovist.kernel.drivers.supervisor import OUTBOX_BYTES, STDERR_BYTES, Death, DriverProcess
from isovist.kernel.tokens import CountCache, ProcessCounter, ScriptedCounter, text_key
from isovist.storage.embedder import make_embedder, stored
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.records import Message


def python(code: str) -> DriverProcess:
    """A process that runs ``code`` in a driver's place; ``r`` and ``w`` are its descriptors."""
    process = DriverProcess("none")
    head = "import os, sys, signal; r, w = map(int, sys.argv[-2:])\n"
    process._command = [sys.executable, "-c", head + code]
    return process


# Answers


async def test_a_scripted_answer_streams_and_ends() -> None:
    async with talk("scripted", "--context", "512") as peer:
        assert peer.up == Up(512, TOKENIZER, "scripted")
        request = Generate(7, user("!script text=你好, world🚀 again"), 64)
        text, end = await peer.answer(request)
        assert text == "你好, world🚀 again"
        assert end == Finished(7, "stop", 6, scripted_prompt(request.messages))


async def test_max_tokens_and_stop_strings_end_an_answer() -> None:
    async with talk("scripted") as peer:
        text, end = await peer.answer(Generate(1, user("!script tokens=50"), 3))
        assert (text, end.finish) == ("word0 word1 word2", "length")  # type: ignore[union-attr] # Finished
        text, end = await peer.answer(Generate(2, user("!script tokens=50"), 60, stop=("2 word3",)))
        assert (text, end.finish) == ("word0 word1 word", "stop")  # type: ignore[union-attr] # Finished


async def test_an_abort_ends_an_answer_in_the_middle() -> None:
    async with talk("scripted") as peer:
        # A pause longer than the test's deadline: the abort alone can end it.
        slow = user("!script tokens=2 delay_ms=600000")
        peer.send(Generate(2, slow, 9))
        peer.send(Generate(3, user("hello"), 9))
        peer.send(Abort(2))
        assert await peer.rest(2) == ("", Finished(2, "cancelled", 0, scripted_prompt(slow)))
        assert (await peer.rest(3))[0] == "I do not know."


async def test_a_prompt_too_long_fails_alone() -> None:
    async with talk("scripted", "--context", "64") as peer:
        _, end = await peer.answer(Generate(1, user("x " * 60), 8))
        assert isinstance(end, RequestFailed)
        assert end.errno == Errno.EMSGSIZE
        assert "75" in end.message
        assert "64" in end.message
        text, _ = await peer.answer(Generate(2, user("hello"), 8))
        assert text == "I do not know."


async def test_a_failure_on_request_is_typed() -> None:
    async with talk("scripted") as peer:
        text, end = await peer.answer(Generate(1, user("!script tokens=2 fail=ENOSPC"), 8))
        assert text == "word0 word1"
        assert isinstance(end, RequestFailed)
        assert end.errno == Errno.ENOSPC


async def test_the_process_counts_as_the_kernel_does() -> None:
    async with talk("scripted") as peer:
        texts = ("Ana deploys.", "", "安娜")
        peer.send(Count(1, texts))
        assert await peer.next() == Counted(1, tuple(map(scripted_count, texts)))
        messages = (Message("assistant", None), *user("hello"))
        peer.send(CountPrompt(2, messages))
        assert await peer.next() == Counted(2, (scripted_prompt(messages),))


async def test_the_embedder_gives_the_vectors_of_its_library() -> None:
    embedder = make_embedder("hash")
    async with talk("embed", "--embedder", "hash") as peer:
        assert peer.up == Up(0, embedder.name, dim=embedder.dim)
        peer.send(Embed(1, ("Ana deploys", "安娜")))
        message = await peer.next()
        assert isinstance(message, Embedded)
        for text, vector in zip(("Ana deploys", "安娜"), message.vectors, strict=True):
            assert vector == stored(embedder.embed(text))
        peer.send(Embed(2, ("Ana deploys",), question=True))
        message = await peer.next()
        assert isinstance(message, Embedded)
        (vector,) = message.vectors
        assert np.array_equal(np.frombuffer(vector, "<f4"), embedder.embed_query("Ana deploys"))


async def test_an_unknown_embedder_is_fatal() -> None:
    death = await death_of(DriverProcess("embed", "--embedder", "nonsense"))
    assert death.fatal
    assert "nonsense" in death.reason


# Deaths


@pytest.mark.promise("kernel.survives")
async def test_a_crash_in_mid_answer_is_seen_after_its_last_token() -> None:
    async with talk("scripted") as peer:
        peer.send(Generate(1, user("!script tokens=9 crash_after=3"), 9))
        assert [await peer.next() for _ in range(3)] == [
            Token(1, "word0"),
            Token(1, " word1"),
            Token(1, " word2"),
        ]
        with pytest.raises(trio.EndOfChannel):
            await peer.next()
        death = await peer.death()
        assert (death.status, death.reason, death.fatal) == (-9, "killed by SIGKILL", False)
        assert not peer.process.alive
        with pytest.raises(WorldError) as e:
            peer.send(Abort(1))
        assert e.value.errno is Errno.EPIPE


@pytest.mark.promise("kernel.survives")
async def test_a_hanging_driver_obeys_no_abort_and_can_be_killed() -> None:
    async with talk("scripted") as peer:
        peer.send(Generate(1, user("!script tokens=1 hang"), 9))
        assert await peer.next() == Token(1, "word0")
        peer.send(Abort(1))
        peer.process.kill()
        assert (await peer.death()).status == -9


async def test_cancelling_kills_and_reaps() -> None:
    async with talk("scripted") as peer:
        pid = peer.process.pid
        peer.send(Generate(1, user("!script hang"), 9))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_receive_raises_ends_the_process() -> None:
    process = DriverProcess("scripted")

    def refuse(message: FromProcess) -> None:
        raise ZeroDivisionError

    with trio.fail_after(DEADLINE_S), pytest.raises(ExceptionGroup) as e:
        await process.run(refuse)
    assert e.group_contains(ZeroDivisionError)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_a_start_that_fails_says_why_on_its_last_lines() -> None:
    death = await death_of(DriverProcess("scripted", "--context", "many"))
    assert death.reason == "exited with status 2"
    assert "invalid int value: 'many'" in death.stderr[-1]


async def test_a_program_that_does_not_exist_is_fatal() -> None:
    process = DriverProcess("scripted")
    process._command = ["/nonexistent/python"]
    death = await death_of(process)
    assert death.fatal
    assert "No such file" in death.reason


@pytest.mark.promise("kernel.survives")
async def test_standard_error_is_kept_in_bounds() -> None:
    code = "for i in range(20000): print('line', i, file=sys.stderr)\nsys.exit(3)"
    death = await death_of(python(code))
    assert death.status == 3
    assert death.stderr[-1] == "line 19999"
    assert sum(len(line) + 1 for line in death.stderr) <= STDERR_BYTES


@pytest.mark.promise("kernel.survives")
@pytest.mark.parametrize(
    "code",
    [
        "os.write(w, b'\\xff' * 64); signal.pause()",
        "os.write(w, b'\\x01\\0\\0\\0\\0\\0\\0\\0\\xc1'); signal.pause()",
        "os.write(w, b'\\x02\\0\\0\\0\\0\\0\\0\\0\\x91\\x63'); signal.pause()",
    ],
    ids=["oversize", "no message", "unknown tag"],
)
async def test_garbage_ends_the_process(code: str) -> None:
    death = await death_of(python(code))
    assert death.status == -9
    assert "sent what is no message" in death.reason


async def test_a_process_that_closes_its_pipe_and_lives_on_is_ended() -> None:
    assert (await death_of(python("os.close(w); signal.pause()"))).status == -9


def test_what_waits_to_be_written_has_a_bound() -> None:
    process = DriverProcess("scripted")
    message = Count(1, ("x" * 1_000_000,))
    for _ in range(OUTBOX_BYTES // 1_000_050):
        process.send(message)
    with pytest.raises(WorldError) as e:
        process.send(message)
    assert e.value.errno is Errno.EAGAIN


async def test_secrets_of_the_kernels_environment_stay_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISOVIST_TOKEN", "s3cret")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    code = "print(sorted(os.environ), os.environ['OPENBLAS_NUM_THREADS'])"
    death = await death_of(python(code))
    assert "ISOVIST_TOKEN" not in death.stderr[0]
    assert death.stderr[0].endswith(" 1")


KERNEL = """
import sys, trio
from isovist.kernel.drivers.protocol import Generate, Token
from isovist.kernel.drivers.supervisor import DriverProcess
from isovist.syscalls.records import Message

process = DriverProcess("scripted")

def receive(message):
    if isinstance(message, Token):
        print(process.pid, flush=True)

process.send(Generate(1, (Message("user", "!script tokens=1 hang"),), 9))
trio.run(process.run, receive)
"""


def test_a_driver_dies_with_its_kernel_even_where_its_pipe_stays_open() -> None:
    roots = [os.path.dirname(path) for path in isovist.__path__]
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
    )
    assert kernel.stdout is not None
    with kernel, kernel.stdout:
        driver = os.pidfd_open(int(kernel.stdout.readline()))
        # Holding all of the kernel's pipes open, nothing but its death can reach the driver.
        links = f"/proc/{kernel.pid}/fd"
        held = [
            os.open(f"{links}/{fd}", os.O_RDWR | os.O_NONBLOCK)
            for fd in os.listdir(links)
            if os.readlink(f"{links}/{fd}").startswith("pipe:")
        ]
        assert len(held) >= 3
        kernel.kill()
        poll = select.poll()
        poll.register(driver, select.POLLIN)
        ended = poll.poll(DEADLINE_S * 1000)
        for fd in (driver, *held):
            os.close(fd)
        assert ended


# Counters


async def test_the_scripted_counter_is_the_drivers_rule() -> None:
    counter = ScriptedCounter()
    assert await counter.count(["安娜 deploys", ""]) == [3, 0]
    assert await counter.prompt(user("hello")) == scripted_prompt(user("hello"))
    assert counter.name == TOKENIZER


async def test_a_process_counter_asks_once_for_each_text() -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            cache = CountCache()
            counter = ProcessCounter(nursery, ("scripted",), cache)
            assert await counter.count([]) == []
            assert (counter.starts, counter.pid) == (0, 0)
            assert await counter.count(["a b", "c", "a b"]) == [2, 1, 2]
            assert (counter.starts, counter.name) == (1, TOKENIZER)
            assert len(cache) == 2
            os.kill(counter.pid, signal.SIGSTOP)
            assert await counter.count(["c", "a b"]) == [1, 2]  # the process cannot have answered
            nursery.cancel_scope.cancel()


@pytest.mark.promise("kernel.survives")
async def test_a_counter_that_dies_is_started_again() -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            counter = ProcessCounter(nursery, ("scripted",))
            await counter.start()
            os.kill(counter.pid, signal.SIGSTOP)
            async with trio.open_nursery() as askers:
                counts: list[int] = []

                async def ask() -> None:
                    counts.append(await counter.prompt(user("hello")))

                askers.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                os.kill(counter.pid, signal.SIGKILL)
            assert counts == [scripted_prompt(user("hello"))]
            assert counter.starts == 2
            nursery.cancel_scope.cancel()


class Mortal:
    """Stands in for a process: comes up, and dies by each request that says so."""

    lives = 0

    def __init__(self, *command: str) -> None:
        self.pid = 1
        self.dying = trio.Event()

    async def run(self, receive) -> Death:  # type: ignore[no-untyped-def] # the real one's type
        type(self).lives += 1
        self.receive = receive
        receive(Up(0, "mortal"))
        await self.dying.wait()
        return Death(status=-11, reason="killed by SIGSEGV")

    def send(self, message: ToProcess) -> None:
        assert isinstance(message, Count)
        if "poison" in message.texts:
            self.dying.set()
        else:
            self.receive(Counted(message.id, (1,) * len(message.texts)))
            self.receive(Counted(message.id - 1, (99,)))  # late, for a caller long gone


@pytest.mark.promise("kernel.survives")
async def test_a_text_that_kills_the_counter_twice_fails_and_harms_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "DriverProcess", Mortal)
    monkeypatch.setattr(Mortal, "lives", 0)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            counter = ProcessCounter(nursery, ("mortal",))
            for lives in (2, 4):
                with pytest.raises(WorldError, match="died twice: killed by SIGSEGV") as e:
                    await counter.count(["poison"])
                assert e.value.errno is Errno.EIO
                assert Mortal.lives == lives
                assert await counter.count([f"sound {lives}"]) == [1]
            nursery.cancel_scope.cancel()


class Hanging(Mortal):
    """Stands in for a process that hangs: in each start while ``stuck``, or by a request."""

    stuck = False

    async def run(self, receive) -> Death:  # type: ignore[no-untyped-def] # the real one's type
        self.receive = receive
        if not self.stuck:
            receive(Up(0, "hanging"))
        await self.dying.wait()
        return Death(status=-9, reason="killed by SIGKILL")

    def send(self, message: ToProcess) -> None:
        assert isinstance(message, Count)
        if "riddle" not in message.texts:
            super().send(message)

    def kill(self) -> None:
        self.dying.set()


@pytest.mark.promise("kernel.survives")
async def test_a_counter_that_hangs_is_killed_and_the_next_request_gets_another(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(tokens, "DriverProcess", Hanging)
    async with trio.open_nursery() as nursery:
        counter = ProcessCounter(nursery, ("hanging",))
        for starts in (1, 2):
            with pytest.raises(WorldError, match="did not answer within 15 s") as e:
                await counter.count(["riddle"])
            assert (e.value.errno, counter.starts) == (Errno.EIO, starts)
        # Those who waited for the hanging one are served by the next.
        counts: list[int] = []

        async def ask() -> None:
            counts.extend(await counter.count(["sound"]))

        async with trio.open_nursery() as askers:
            askers.start_soon(ask)
            askers.start_soon(ask)
        assert (counts, counter.starts) == ([1, 1], 3)
        monkeypatch.setattr(Hanging, "stuck", True)
        with pytest.raises(WorldError, match="did not answer"):
            await counter.count(["riddle"])
        with pytest.raises(WorldError, match="did not start within 60 s") as e:
            await counter.count(["more"])
        assert e.value.errno is Errno.EIO
        monkeypatch.setattr(Hanging, "stuck", False)
        assert await counter.count(["more"]) == [1]
        nursery.cancel_scope.cancel()


async def test_a_counter_that_cannot_work_is_not_started_again() -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            counter = ProcessCounter(nursery, ("embed", "--embedder", "nonsense"))
            for _ in range(3):
                with pytest.raises(WorldError, match="nonsense") as e:
                    await counter.count(["x"])
                assert e.value.errno is Errno.EIO
            assert counter.starts == 1
            nursery.cancel_scope.cancel()


async def test_texts_go_in_several_frames_and_a_bad_one_harms_no_process() -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            counter = ProcessCounter(nursery, ("scripted",))
            with pytest.raises(CallerError, match="surrogate"):
                await counter.count(["\ud800"])
            assert await counter.count(["x" * 300_000, "y " * 200_000, "z"]) == [1, 200_001, 1]
            assert counter.starts == 1
            nursery.cancel_scope.cancel()


def test_the_cache_keeps_what_was_used_last() -> None:
    cache = CountCache(entries=2)
    for number, text in enumerate("abc"):
        if text == "c":
            assert cache.get(text_key("a")) == 0
        cache.put(text_key(text), number)
    assert [cache.get(text_key(text)) for text in "abc"] == [0, None, 2]
    assert len(cache) == 2


async def test_every_message_is_handed_over_before_the_death() -> None:
    process = python(
        "from isovist.kernel.drivers.protocol import Up, Token, frame\n"
        "tokens = b''.join(frame(Token(1, str(i))) for i in range(5000))\n"
        "data = memoryview(frame(Up(1, 't')) + tokens)\n"
        "while data: data = data[os.write(w, data):]\n"
    )
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            peer = Talk(process)
            await nursery.start(peer.run)
            assert await peer.next() == Up(1, "t")
            assert [await peer.next() for _ in range(5000)] == [
                Token(1, str(i)) for i in range(5000)
            ]
            assert (await peer.death()).status == 0


# Several at a time


async def test_slots_run_side_by_side_and_a_paused_answer_rests() -> None:
    async with talk("scripted", "--slots", "2") as peer:
        assert peer.up == Up(2048, TOKENIZER, "scripted", slots=2)
        slow = user("!script tokens=2 delay_ms=600000")
        peer.send(Generate(1, slow, 9))
        peer.send(Generate(2, slow, 9))
        peer.send(Generate(3, user("!script text=done"), 9))
        peer.send(Pause(1))  # only so does the third one get a slot
        assert await peer.rest(3) == ("done", Finished(3, "stop", 1, scripted_prompt(
            user("!script text=done"))))  # fmt: skip
        peer.send(Abort(1))
        peer.send(Abort(2))
        assert (await peer.rest(1))[1] == Finished(1, "cancelled", 0, scripted_prompt(slow))
        assert (await peer.rest(2))[1] == Finished(2, "cancelled", 0, scripted_prompt(slow))
        peer.send(Generate(4, user("!script text=a b c"), 9))
        peer.send(Pause(4))
        peer.send(Resume(4))
        assert (await peer.rest(4))[0] == "a b c"


@pytest.mark.promise("kernel.survives")
async def test_a_driver_that_has_work_and_says_nothing_is_killed_as_hanging() -> None:
    process = DriverProcess("scripted", patience_s=60.0)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            peer = Talk(process)
            await nursery.start(peer.run)
            await peer.next()  # it is up
            assert process._patience.deadline == math.inf  # without work it may be silent
            await peer.answer(Generate(1, user("hello"), 9))
            assert process._patience.deadline == math.inf
            peer.send(Generate(2, user("!script tokens=1 hang"), 9))
            assert process._patience.deadline < math.inf
            assert await peer.next() == Token(2, "word0")
            peer.send(Pause(2))
            assert process._patience.deadline == math.inf  # a paused one is no work
            process._patience_s = 0.1
            peer.send(Resume(2))
            death = await peer.death()
            assert death.reason == "hangs: it has work and said nothing for 0.1 s"
            nursery.cancel_scope.cancel()


@pytest.mark.promise("kernel.survives")
async def test_a_death_for_want_of_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter((3, 4))
    monkeypatch.setattr(supervisor, "_oom_kills", lambda: next(kills))
    death = await death_of(python("os.kill(os.getpid(), signal.SIGKILL)"))
    assert "for want of memory" in death.reason
