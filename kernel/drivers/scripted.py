"""The scripted driver: a deterministic stand-in for a model, for tests, benches and simulation.

Run as ``python -m isovist.kernel.drivers.scripted [--context TOKENS] [--slots N] R W``. Up to
``slots`` requests run at a time and take turns, a token each; further ones wait, and paused ones
rest. What it answers, and how it is told to delay, to fail or to die:
:mod:`~isovist.kernel.drivers.script`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from isovist.kernel.drivers.outflow import Outflow
from isovist.kernel.drivers.peer import Peer, serve
from isovist.kernel.drivers.protocol import (
    LOGPROBS,
    NO_LOGPROBS,
    Abort,
    Count,
    Counted,
    CountPrompt,
    Finish,
    Finished,
    Flush,
    Generate,
    Kept,
    Load,
    Pause,
    Read,
    Restore,
    Resume,
    Snapshot,
    Token,
    ToProcess,
    Up,
    check_fit,
    check_request,
)
from isovist.kernel.drivers.script import TOKENIZER, plan, scripted_count, scripted_prompt
from isovist.syscalls.errors import Errno, IsovistError, error
from isovist.syscalls.records import Logprob, ToolCall

BEAT_S = 1.0
"""How often a busy driver says that it lives."""


class Running:
    """A request at work. ``due``: when it makes its next token, by the monotonic clock."""

    def __init__(self, peer: Peer, request: Generate, context: int) -> None:
        """Raises its typed failure where it cannot be served."""
        check_request(request)
        self.prompt = scripted_prompt(request.messages, request.tools, request.choice)
        check_fit(self.prompt, request.max_tokens, context)
        self.request = request
        self.count = 0
        self._peer = peer
        self._script, self._calls = plan(request)
        self._pieces = self._script.pieces()
        self._outflow = Outflow(request.stop)
        self._unsent = 0
        self._held: list[str] = []
        """The text of calls, which nobody gets unless it is cut off."""
        self._logprobs: list[Logprob] = []
        self.due = time.monotonic() + self._script.delay_ms / 1000
        peer.send(Read(request.key, self.prompt, self.prompt, 0))

    def step(self) -> bool:
        """Make a token, or the end; true iff the request has ended. Raises the failure that its
        script asks for."""
        script, request = self._script, self.request
        piece = next(self._pieces, None)
        if piece is not None and self.count == request.max_tokens:
            self.end("length")
            return True
        if self.count == script.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if piece is None:
            if script.hang:
                self._peer.hang()
            if script.fail:
                raise error(Errno[script.fail], "the script says so")
            self.end("stop", self._calls)
            return True
        self.count += 1
        self._unsent += 1
        self._log(piece)
        self._emit(self._outflow.feed(piece.encode()))
        if self._outflow.stopped:
            self.end("stop")
            return True
        # After the last token nothing is paused for.
        self.due += script.delay_ms / 1000
        return False

    def end(self, finish: Finish, calls: tuple[ToolCall, ...] = ()) -> None:
        """The end; of calls, where their text is whole."""
        self._emit(self._outflow.finish())
        held, self._held = "".join(self._held), []
        if held and not calls:
            self._say(held)
        logprobs = tuple(self._logprobs)
        key, prompt = self.request.key, self.prompt
        self._peer.send(Finished(key, finish, self.count, prompt, calls=calls, logprobs=logprobs))

    def _emit(self, text: str) -> None:
        if text and self._calls:
            self._held.append(text)
        elif text:
            self._say(text)

    def _say(self, text: str) -> None:
        logprobs = tuple(self._logprobs)
        self._peer.send(Token(self.request.key, text, self._unsent, logprobs))
        self._unsent = 0
        self._logprobs.clear()

    def _log(self, piece: str) -> None:
        if self.request.logprobs == NO_LOGPROBS:
            return
        token = piece.encode()
        self._logprobs.append(Logprob(token, 0.0, ((token, 0.0),) if self.request.logprobs else ()))
        if len(self._logprobs) == LOGPROBS:
            self._peer.send(Token(self.request.key, "", 0, tuple(self._logprobs)))
            self._logprobs.clear()


class Driver:
    """All requests, in order of arrival; the first ``slots`` that do not rest run."""

    def __init__(self, peer: Peer, context: int, slots: int) -> None:
        self._peer, self._context, self._slots = peer, context, slots
        self._requests: dict[int, Generate | Running] = {}
        self._rest: set[int] = set()
        self._beaten = time.monotonic()
        self._steps = 0

    def run(self) -> None:
        """Until the kernel closes the pipe."""
        while True:
            running = self._running()
            if not running:
                self._handle(self._peer.receive())
            else:
                soonest = min(one.due for one in running)
                self._peer.wait(min(BEAT_S, soonest - time.monotonic()))
            for message in self._peer.received():
                self._handle(message)
            self._beat()
            now = time.monotonic()
            for one in self._running():
                if one.due <= now:
                    self._step(one)

    def _running(self) -> list[Running]:
        """Those that have a slot, started where they have not been."""
        running: list[Running] = []
        for key, one in list(self._requests.items()):
            if len(running) == self._slots:
                break
            if key in self._rest:
                continue
            if isinstance(one, Generate):
                try:
                    one = self._requests[key] = Running(self._peer, one, self._context)
                except IsovistError as e:
                    del self._requests[key]
                    self._peer.fail(key, e)
                    continue
            running.append(one)
        return running

    def _step(self, one: Running) -> None:
        key = one.request.key
        self._steps += 1
        try:
            ended = one.step()
        except IsovistError as e:
            self._peer.fail(key, e)
            ended = True
        if ended:
            del self._requests[key]

    def _handle(self, message: ToProcess) -> None:
        match message:
            case Generate():
                self._requests[message.key] = message
            case Abort():
                one = self._requests.pop(message.key, None)
                self._rest.discard(message.key)
                if isinstance(one, Running):
                    one.end("cancelled")
                elif one is not None:
                    self._cancelled(one)
            case Pause():
                if message.key in self._requests:
                    self._rest.add(message.key)
            case Resume():
                self._rest.discard(message.key)
            case Count():
                counts = tuple(map(scripted_count, message.texts))
                self._peer.send(Counted(message.id, counts))
            case CountPrompt():
                self._count(message)
            case Flush() | Restore() | Snapshot():
                self._peer.send(Kept(message.id, 0))  # it holds nothing
            case _:
                pass

    def _cancelled(self, request: Generate) -> None:
        """The end of a request that has not begun."""
        try:
            prompt = scripted_prompt(request.messages, request.tools, request.choice)
        except IsovistError as e:
            self._peer.fail(request.key, e)
            return
        self._peer.send(Finished(request.key, "cancelled", 0, prompt))

    def _count(self, request: CountPrompt) -> None:
        try:
            count = scripted_prompt(request.messages, request.tools, request.choice)
        except IsovistError as e:
            self._peer.fail(request.id, e)
            return
        self._peer.send(Counted(request.id, (count,)))

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten < BEAT_S:
            return
        self._beaten = now
        running = len(self._running())
        rest = len(self._rest)
        self._peer.send(
            Load(
                slots=self._slots,
                running=running,
                waiting=len(self._requests) - running - rest,
                paused=rest,
                cells=0,
                cells_total=0,
                host_bytes=0,
                host_total=0,
                steps=self._steps,
                read=0,
                written=0,
            )
        )


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    peer.send(Up(arguments.context, TOKENIZER, "scripted", slots=arguments.slots))
    Driver(peer, arguments.context, arguments.slots).run()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripted driver")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--slots", type=int, default=1)
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
