"""Vectors of questions from a process of their own, for embedders that are slow to load, hold a
library that can end its process, or wait for a network.

It is another process than the one that embeds documents, so a question never waits for a backlog.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import numpy as np
import structlog
import trio

from isovist.kernel.drivers import protocol as p
from isovist.kernel.drivers.supervisor import DriverProcess
from isovist.storage.dense import Vector
from isovist.storage.endpoint import KEY, OPENAI_KEY
from isovist.syscalls.errors import CallerError, Errno, WorldError, error

log = structlog.get_logger()

PATIENCE_S = 5.0
"""How long one question may take. While an answer is overdue, further ones fail at once: a
stalled embedder costs one reader so much, and every other one nothing."""
HANG_S = 30.0
"""A process whose answer is so long overdue hangs, and is killed."""
LOAD_S = 300.0
"""How long a model may take to load."""


def keys_of(kind: str) -> tuple[str, ...]:
    """The environment's variables that a process of embedder ``kind`` must be given."""
    return (KEY, OPENAI_KEY) if kind.startswith("openai:") else ()


async def learn(kind: str) -> tuple[str, int]:
    """The name and dimension of embedder ``kind``, from a process that loads it and ends.

    Raises a typed error that says why it cannot be used.
    """
    known: list[p.Up] = []
    reason = f"it did not load within {LOAD_S:.0f} s"
    with trio.move_on_after(LOAD_S):
        process = _process(kind)

        def receive(message: p.FromProcess) -> None:
            if isinstance(message, p.Up):
                known.append(message)
                process.kill()

        reason = (await process.run(receive)).reason
    if not known:
        raise WorldError(f"the embedder cannot be used: {reason}", field="embedder")
    return known[0].tokenizer, known[0].dim


class Asker:
    """Questions to the embedder ``kind``, whose space is ``name`` and ``dim``.

    :meth:`query` belongs to one thread that is not the loop's; everything else is the loop's.
    Invariant: a future is in ``_asked`` iff its question was put and has no answer yet.
    """

    def __init__(self, kind: str, name: str, dim: int) -> None:
        self.name, self.dim = name, dim
        self._kind = kind
        self._asked: dict[int, Future[Vector]] = {}
        self._last = 0
        self._put_at = 0.0
        self._process: DriverProcess | None = None
        self._up = False
        self._token: trio.lowlevel.TrioToken | None = None

    def query(self, text: str) -> Vector:
        """The vector of a question, shape (dim,), float32, length 1. Raises :class:`WorldError`
        at once where no process can answer, ``ETIMEDOUT`` after ``PATIENCE_S``."""
        token = self._token
        if token is None or not self._up or self._asked:
            if token is not None and self._asked and time.monotonic() - self._put_at > HANG_S:
                token.run_sync_soon(self._kill)
            raise WorldError("the embedder of questions does not answer", errno=Errno.EAGAIN)
        self._last += 1
        number, answer = self._last, Future[Vector]()
        self._put_at = time.monotonic()
        self._asked[number] = answer
        # Whoever fails what is outstanding took `_token` away before: one of the two sees it.
        if self._token is None:
            self._settle(number, WorldError("the kernel stops", errno=Errno.ECANCELED))
        else:
            token.run_sync_soon(self._send, number, text)
        try:
            return answer.result(PATIENCE_S)
        except FutureTimeout:
            raise WorldError("a question's vector is overdue", errno=Errno.ETIMEDOUT) from None

    async def run(self) -> None:
        """Keep a process alive for as long as this runs; restarts back off from 0.1 to 5 s."""
        self._token = trio.lowlevel.current_trio_token()
        pause = 0.1
        try:
            while True:
                self._process = _process(self._kind)
                death = await self._process.run(self._receive)
                pause = 0.1 if self._up else min(pause * 2, 5.0)
                self._up = False
                log.warning("embedder of questions gone", reason=death.reason)
                self._fail_all("the embedder of questions died")
                await trio.sleep(pause)
        finally:
            self._up, self._token = False, None
            self._fail_all("the kernel stops")

    def _send(self, number: int, text: str) -> None:
        try:
            if self._process is None or not self._up:
                raise WorldError("the embedder of questions died", errno=Errno.EPIPE)
            self._process.send(p.Embed(number, (text,), question=True))
        except (WorldError, CallerError) as e:
            self._settle(number, e)

    def _receive(self, message: p.FromProcess) -> None:
        match message:
            case p.Up():
                self._up = fits(message, self.name, self.dim)
                if not self._up:
                    self._kill()
            case p.Embedded():
                data = message.vectors[0] if message.vectors else b""
                if len(data) == 4 * self.dim:
                    self._settle(message.id, np.frombuffer(data, "<f4"))
                else:
                    self._settle(message.id, WorldError("the embedder's answer is no vector"))
            case p.RequestFailed():
                self._settle(message.key, error(message.errno, message.message))
            case _:
                pass

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _settle(self, number: int, answer: Vector | Exception) -> None:
        future = self._asked.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _fail_all(self, why: str) -> None:
        for number in list(self._asked):
            self._settle(number, WorldError(why, errno=Errno.EPIPE))


def fits(up: p.Up, name: str, dim: int) -> bool:
    """Whether a process makes vectors of the store's space; a model's file may have changed."""
    if (up.tokenizer, up.dim) == (name, dim):
        return True
    log.error("the embedder has become another one", was=name, now=up.tokenizer)
    return False


def _process(kind: str) -> DriverProcess:
    return DriverProcess("embed", "--embedder", kind, keep=keys_of(kind))
