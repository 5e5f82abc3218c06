"""The openai driver: any endpoint that speaks the chat completions format, behind the protocol
that all drivers speak.

Run as ``python -m isovist.kernel.drivers.openai --url URL --model NAME [--key VARIABLE]
[--context TOKENS] [--slots N] [--tries N] [--silence SECONDS] [--backoff SECONDS]
[--length FIELD] [--form FORM] [--omit FIELD]… R W``.

Up to ``slots`` requests are with the endpoint at a time; further ones wait in the order of their
coming. An abort closes the request's connection, so that the endpoint stops as well. Nothing is
kept between requests, and none is paused: the endpoint's cache is its own.

``--key`` is the name of an environment variable. What it holds is sent to the endpoint and stands
nowhere else. See :mod:`~isovist.kernel.drivers.remote` for what is tried again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import trio

from isovist.kernel.drivers.completions import Answer, Dialect
from isovist.kernel.drivers.peer import Closed, Peer, Unusable, serve
from isovist.kernel.drivers.protocol import (
    Abort,
    Finish,
    Finished,
    Flush,
    Generate,
    Kept,
    Load,
    Pause,
    RequestFailed,
    Restore,
    Resume,
    Snapshot,
    Token,
    ToProcess,
    Up,
    check_request,
)
from isovist.kernel.drivers.remote import Address, Remote, Times
from isovist.syscalls.errors import Errno, IsovistError

BEAT_S = 1.0
"""How often a busy driver says that it lives: the endpoint's silence is none of its own."""


@dataclass
class _Request:
    """From its coming to its end; ``scope`` is what an abort cancels."""

    asked: Generate
    times: Times
    at: int = field(default_factory=time.monotonic_ns)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    passed: int = 0
    """Tokens passed on."""


class Driver:
    """Requests between the pipe and the endpoint.

    Invariant: at most ``slots`` are with the endpoint, and fewer only where none waits; each ends
    with one message, whatever happens.
    """

    def __init__(self, peer: Peer, remote: Remote, slots: int) -> None:
        self._peer, self._remote, self._slots = peer, remote, slots
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._read = self._written = self._tries = 0

    async def run(self) -> None:
        """Until the kernel closes the pipe (a group of :class:`Closed`)."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            while True:
                await trio.lowlevel.wait_readable(self._peer.fileno())
                for message in self._peer.received():
                    self._handle(message)
                self._fill(nursery)

    def _fill(self, nursery: trio.Nursery) -> None:
        while self._waiting and len(self._running) < self._slots:
            request = self._waiting.popleft()
            self._running[request.asked.key] = request
            nursery.start_soon(self._serve, request, nursery)

    def _handle(self, message: ToProcess) -> None:
        match message:
            case Generate():
                try:
                    check_request(message)
                except IsovistError as e:
                    self._peer.fail(message.key, e)
                    return
                self._waiting.append(_Request(message, Times()))
            case Abort():
                if (running := self._running.get(message.key)) is not None:
                    running.scope.cancel()
                for request in [r for r in self._waiting if r.asked.key == message.key]:
                    self._waiting.remove(request)
                    self._end(request, "cancelled")
            case Flush() | Restore() | Snapshot():
                self._peer.send(Kept(message.id, 0))  # it holds nothing
            case Pause() | Resume():
                pass  # its Up says nothing of pauses, and nobody asks for one
            case _:
                why = "this driver neither counts nor embeds"
                self._peer.send(RequestFailed(message.id, int(Errno.ENOSYS), why))

    async def _serve(self, request: _Request, nursery: trio.Nursery) -> None:
        key = request.asked.key
        answer: Answer | None = None
        failure: IsovistError | None = None

        def send(token: Token) -> None:
            request.passed += token.tokens
            self._peer.send(token)

        try:
            with request.scope:
                answer = await self._remote.answer(request.asked, send, request.times)
        except IsovistError as e:
            failure = e
        del self._running[key]
        self._tries += request.times.tries
        if failure is not None:
            self._written += request.passed
            self._peer.fail(key, failure)
        elif answer is None:
            self._end(request, "cancelled")
        else:
            self._end(request, answer.finish or "stop", answer)
        self._fill(nursery)

    def _end(self, request: _Request, finish: Finish, answer: Answer | None = None) -> None:
        now, times = time.monotonic_ns(), request.times
        start = times.start or now
        first = times.first or now
        written = answer.output_tokens if answer else request.passed
        self._written += written
        self._read += answer.prompt_tokens if answer else 0
        self._peer.send(
            Finished(
                request.asked.key,
                finish,
                written,
                answer.prompt_tokens if answer else 0,
                answer.cached_tokens if answer else 0,
                start - request.at,
                first - start,
                now - first,
                answer.calls() if answer else (),
                answer.logprobs if answer else (),
            )
        )

    async def _beat(self) -> None:
        """Say how busy it is: each second while it is, and once more when it is not any more."""
        said: Load | None = None
        while True:
            await trio.sleep(BEAT_S)
            load = self._load()
            if load != said or self._running:
                self._peer.send(load)
                said = load

    def _load(self) -> Load:
        """``steps`` are requests sent; it knows of no cells."""
        tries = self._tries + sum(r.times.tries for r in self._running.values())
        written = self._written + sum(r.passed for r in self._running.values())
        return Load(
            slots=self._slots,
            running=len(self._running),
            waiting=len(self._waiting),
            paused=0,
            cells=0,
            cells_total=0,
            host_bytes=0,
            host_total=0,
            steps=tries,
            read=self._read,
            written=written,
        )


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    address = Address(
        arguments.url,
        arguments.model,
        _key(arguments.key),
        arguments.key,
        Dialect(omit=tuple(arguments.omit), length=arguments.length, form=arguments.form),
        arguments.tries,
        arguments.silence,
        arguments.backoff,
    )

    try:
        remote = Remote(address)
    except (httpx.InvalidURL, OSError) as e:
        # An address that is none, or certificates that cannot be read.
        raise Unusable(f"the endpoint cannot be asked: {type(e).__name__}") from None

    async def main() -> None:
        try:
            peer.send(Up(arguments.context, "", arguments.model, slots=arguments.slots))
            await Driver(peer, remote, arguments.slots).run()
        finally:
            with trio.CancelScope(shield=True):
                await remote.aclose()

    try:
        trio.run(main)
    except* Closed:
        pass


def _key(variable: str) -> str:
    """What the variable holds. Raises :class:`Unusable`, which names the variable alone."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise Unusable(f"the kernel's environment has no {variable}, the endpoint's key")
    if not (key.isascii() and key.isprintable()):
        raise Unusable(f"{variable} holds characters that no header may")
    return key


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="openai driver")
    parser.add_argument("--url", required=True, help="the part before /chat/completions")
    parser.add_argument("--model", required=True, help="what the endpoint calls the model")
    parser.add_argument("--key", default="", help="the variable that holds the key")
    parser.add_argument("--context", type=int, default=8192, help="tokens of one request at most")
    parser.add_argument("--slots", type=int, default=8, help="requests sent at a time")
    parser.add_argument("--tries", type=int, default=4, help="of one request at most")
    parser.add_argument("--silence", type=float, default=120.0, help="seconds borne at most")
    parser.add_argument("--backoff", type=float, default=0.5, help="seconds before a second try")
    parser.add_argument("--length", default="max_tokens", help="the field of an answer's length")
    parser.add_argument("--form", default="json_schema", help="how a schema is handed over")
    parser.add_argument("--omit", action="append", default=[], help="a field not to be sent")
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
