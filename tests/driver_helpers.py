"""What the tests of the driver processes share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from isovist.kernel.config import default_models
from isovist.kernel.drivers.protocol import (
    Finished,
    FromProcess,
    Generate,
    Load,
    Progress,
    Read,
    RequestFailed,
    Token,
    ToProcess,
    Up,
)
from isovist.kernel.drivers.supervisor import Death, DriverProcess
from isovist.kernel.models import PACKAGED
from isovist.syscalls.records import Message

DEADLINE_S = 60

# Read when tests are collected, before any test gives itself another home.
_MODEL = Path(os.environ.get("ISOVIST_TEST_MODEL") or default_models() / PACKAGED["smollm2"].file)


def needs_llama() -> None:
    """Skips where the compiled extra is not installed, which CI does not forgive."""
    if importlib.util.find_spec("llama_cpp") is None:
        _lacks("the extra [llama] is not installed")


def real_model() -> str:
    """The path of smollm2; skips where it is not installed, which CI does not forgive."""
    needs_llama()
    if not _MODEL.is_file():
        _lacks(f"no model at {_MODEL}: run `isovist model add smollm2`")
    return str(_MODEL)


def _lacks(what: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def user(text: str | None) -> tuple[Message, ...]:
    return (Message("user", text),)


class Talk:
    """A driver process and the messages that came from it, in order."""

    def __init__(self, process: DriverProcess) -> None:
        self.process = process
        self.up: Up | None = None
        self.watch: Callable[[FromProcess], None] = lambda message: None
        """Called with each message that :meth:`next` leaves out."""
        self._death: Death | None = None
        self._sender, self._receiver = trio.open_memory_channel[FromProcess](100_000)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._death = await self.process.run(self._sender.send_nowait, task_status=task_status)
        self._sender.close()

    def send(self, message: ToProcess) -> None:
        self.process.send(message)

    async def next(self) -> FromProcess:
        """The next message that is an answer's own. Raises ``trio.EndOfChannel`` after the
        death."""
        while isinstance(message := await self._receiver.receive(), Progress | Read | Load):
            self.watch(message)
        return message

    async def death(self) -> Death:
        """How it died, once all its messages are read."""
        async for _ in self._receiver:
            pass
        assert self._death is not None
        return self._death

    async def answer(self, request: Generate) -> tuple[str, Finished | RequestFailed]:
        self.send(request)
        return await self.rest(request.key)

    async def rest(self, key: int) -> tuple[str, Finished | RequestFailed]:
        """The text and the end of request ``key``."""
        text = ""
        while True:
            message = await self.next()
            assert isinstance(message, Token | Finished | RequestFailed)
            assert message.key == key
            if not isinstance(message, Token):
                return text, message
            assert message.text
            text += message.text


@asynccontextmanager
async def talk(module: str, *args: str) -> AsyncIterator[Talk]:
    """A process that is up; it ends with the block."""
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            peer = Talk(DriverProcess(module, *args))
            await nursery.start(peer.run)
            up = await peer.next()
            assert isinstance(up, Up)
            peer.up = up
            yield peer
            nursery.cancel_scope.cancel()


async def death_of(process: DriverProcess) -> Death:
    """Run a process whose messages do not matter to its end."""
    with trio.fail_after(DEADLINE_S):
        return await process.run(lambda message: None)
