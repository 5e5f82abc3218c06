"""The scripted driver: a deterministic stand-in for a model, for tests, benches and simulation.

Run as ``python -m isovist.kernel.drivers.scripted --context TOKENS R W``.

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
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice

import msgspec

from isovist.kernel.drivers.outflow import Outflow
from isovist.kernel.drivers.peer import Peer, serve
from isovist.kernel.drivers.protocol import (
    Count,
    Counted,
    CountPrompt,
    Finish,
    Finished,
    Generate,
    Token,
    Up,
    check_fit,
    check_request,
)
from isovist.syscalls.errors import CallerError, Errno, IsovistError, error
from isovist.syscalls.fence import CLOSE
from isovist.syscalls.records import Message

TOKENIZER = "scripted/words"
UNKNOWN = "I do not know."

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


def generate(peer: Peer, request: Generate, context: int) -> Finished:
    """Stream the answer to ``request``. Raises its typed failure, asked for or not."""
    check_request(request)
    prompt = scripted_prompt(request.messages)
    check_fit(prompt, request.max_tokens, context)
    script = answer(request.messages)
    outflow = Outflow(request.stop)
    finish: Finish = "stop"
    count = 0
    for piece in script.pieces():
        if count == request.max_tokens:
            finish = "length"
            break
        if count == script.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if peer.aborted(request.key, script.delay_ms / 1000):
            finish = "cancelled"
            break
        count += 1
        if text := outflow.feed(piece.encode()):
            peer.send(Token(request.key, text))
        if outflow.stopped:
            break
    else:
        if count == script.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if script.hang:
            peer.hang()
        if script.fail:
            raise error(Errno[script.fail], "the script says so")
    if text := outflow.finish():
        peer.send(Token(request.key, text))
    return Finished(request.key, finish, count, prompt)


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    peer.send(Up(arguments.context, TOKENIZER, "scripted"))
    while True:
        request = peer.receive()
        if isinstance(request, Count):
            peer.send(Counted(request.id, tuple(map(scripted_count, request.texts))))
        elif isinstance(request, CountPrompt):
            peer.send(Counted(request.id, (scripted_prompt(request.messages),)))
        elif isinstance(request, Generate):
            try:
                peer.send(generate(peer, request, arguments.context))
            except IsovistError as e:
                peer.fail(request.key, e)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripted driver")
    parser.add_argument("--context", type=int, default=2048)
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
