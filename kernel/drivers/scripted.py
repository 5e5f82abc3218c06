"""The scripted driver: a deterministic stand-in for a model, for tests, benches and simulation.

Run as ``python -m isovist.kernel.drivers.scripted [--context TOKENS] [--slots N] R W``. Up to
``slots`` requests run at a time and take turns, a token each; further ones wait, and paused ones
rest.

**Answer.** It repeats the line of the injected memory block that shares most words with the
user's own words after the block, and says ``I do not know.`` where none shares any or there is
no block. So an answer shows what was injected.

**Directives.** A line of the user's own words (in the last user message) that begins with
``!script`` is obeyed instead:
``!script [tokens=N] [delay_ms=MS] [crash_after=N] [fail=ERRNO] [hang] [text=REST OF LINE]``.

- ``text``: what to answer (default ``word0 word1 …``); ``tokens``: how many tokens of it, with
  the text repeated as often as needed (default: all of ``text``, or 8 words);
- ``delay_ms``: pause before each token, ended by an abort;
- ``crash_after``: the process is killed after so many tokens, as by the kernel's memory killer;
- ``fail`` (as in ``fail=EIO``) and ``hang`` take the place of the end; where ``tokens`` is not
  given they take the place of all. A hanging driver obeys no abort.

**Tokens.** A token is one Chinese, Japanese or Korean character, or a run of other word
characters, or one other visible character; white space goes with what follows it, and counts
one where nothing follows. A prompt costs its contents, 4 a message, and 2.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice

import msgspec

from isovist.kernel.drivers.grammar import with_tools
from isovist.kernel.drivers.outflow import Outflow
from isovist.kernel.drivers.peer import Peer, serve
from isovist.kernel.drivers.protocol import (
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
from isovist.syscalls.errors import CallerError, Errno, IsovistError, error
from isovist.syscalls.fence import CLOSE
from isovist.syscalls.records import Message

TOKENIZER = "scripted/words"
UNKNOWN = "I do not know."
BEAT_S = 1.0
"""How often a busy driver says that it lives."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = re.compile(rf"\s*(?:[{_CJK}]|[^\W{_CJK}]+|[^\w\s])|\s+\Z")
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be by do does for from has have how i in is it me my of on or that the "
        "their they this to was we were what when where which who why will with you your"
    )
)


def scripted_tokens(text: str) -> list[str]:
    """The tokens of ``text``; joined they are ``text`` again."""
    return _TOKEN.findall(text)


def scripted_count(text: str) -> int:
    """How many tokens ``text`` has."""
    return len(scripted_tokens(text))


def scripted_prompt(messages: Sequence[Message]) -> int:
    """How many tokens the whole prompt has."""
    return 2 + sum(4 + scripted_count(message.content or "") for message in messages)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What a directive asks for; see the module's text."""

    tokens: int | None = None
    delay_ms: int = 0
    crash_after: int | None = None
    fail: str = ""
    hang: bool = False
    text: str = ""

    def pieces(self) -> Iterator[str]:
        """The tokens to stream."""
        count = self.tokens
        if count is None:
            if self.fail or self.hang:
                return iter(())
            count = scripted_count(self.text) if self.text else 8
        if not self.text:
            return (f" word{i}" if i else "word0" for i in range(count))
        first = scripted_tokens(self.text)
        again = [" " + first[0].lstrip(), *first[1:]]
        return islice(chain(first, cycle(again)), count)


def read_script(line: str) -> Script:
    """The directive on ``line``. Raises ``EINVAL`` for a word that is none."""
    head, found, text = line.partition("text=")
    fields: dict[str, object] = {"text": text} if found else {}
    for word in head.split()[1:]:
        name, _, value = word.partition("=")
        fields[name] = True if name == "hang" else value
    try:
        script = msgspec.convert(fields, Script, strict=False)
    except msgspec.ValidationError as e:
        raise CallerError(f"directive {line!r}: {e}", field="messages") from None
    unknown = fields.keys() - set(Script.__struct_fields__)
    if unknown or (script.fail and script.fail not in Errno.__members__):
        raise CallerError(f"no such directive: {line!r}", field="messages")
    return script


def answer(messages: Sequence[Message]) -> Script:
    """What to do for these messages: their directive, or the default answer as one."""
    said = next((m.content for m in reversed(messages) if m.role == "user" and m.content), "")
    block, _, words = said.rpartition(CLOSE)
    for line in words.splitlines():
        if line.split()[:1] == ["!script"]:
            return read_script(line)
    asked = _words(words)
    memories = [line for line in block.splitlines() if line.startswith(("- ", "  "))]
    best = max(memories, key=lambda line: len(asked & _words(line)), default="")
    return Script(text=best.removeprefix("- ").strip() if asked & _words(best) else UNKNOWN)


def _words(text: str) -> set[str]:
    """The telling words of a text, cut to five letters so that most endings do not matter."""
    return {word[:5] for word in _WORD.findall(text.casefold()) if word not in _COMMON}


class Running:
    """A request at work. ``due``: when it makes its next token, by the monotonic clock."""

    def __init__(self, peer: Peer, request: Generate, context: int) -> None:
        """Raises its typed failure where it cannot be served."""
        check_request(request)
        self.prompt = scripted_prompt(request.messages)
        check_fit(self.prompt, request.max_tokens, context)
        self.request = request
        self.count = 0
        self._peer = peer
        self._script = answer(request.messages)
        self._pieces = self._script.pieces()
        self._outflow = Outflow(request.stop)
        self._unsent = 0
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
            self.end("stop")
            return True
        self.count += 1
        self._unsent += 1
        self._emit(self._outflow.feed(piece.encode()))
        if self._outflow.stopped:
            self.end("stop")
            return True
        # After the last token nothing is paused for.
        self.due += script.delay_ms / 1000
        return False

    def end(self, finish: Finish) -> None:
        self._emit(self._outflow.finish())
        self._peer.send(Finished(self.request.key, finish, self.count, self.prompt))

    def _emit(self, text: str) -> None:
        if text:
            self._peer.send(Token(self.request.key, text, self._unsent))
            self._unsent = 0


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
                    prompt = scripted_prompt(one.messages)
                    self._peer.send(Finished(message.key, "cancelled", 0, prompt))
            case Pause():
                if message.key in self._requests:
                    self._rest.add(message.key)
            case Resume():
                self._rest.discard(message.key)
            case Count():
                counts = tuple(map(scripted_count, message.texts))
                self._peer.send(Counted(message.id, counts))
            case CountPrompt():
                messages = with_tools(message.messages, message.tools, message.choice)
                self._peer.send(Counted(message.id, (scripted_prompt(messages),)))
            case Flush() | Restore() | Snapshot():
                self._peer.send(Kept(message.id, 0))  # it holds nothing
            case _:
                pass

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
