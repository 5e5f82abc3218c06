"""What the scripted model says: a deterministic function of its request.

**Answer.** It repeats the line of the injected memory block that shares most words with the
user's own words after the block, and says ``I do not know.`` where none shares any or there is
no block. So an answer shows what was injected.

**Tools and schemas.** With a schema it answers with JSON that matches it, made by
:mod:`~isovist.kernel.drivers.sample` with the user's own words as texts. With tools it calls those
that the user's own words name, in the order of the offer, with arguments made in the same way;
where a call is demanded and none is named, the first. With ``auto`` it calls none where the
conversation ends with results of tools, and answers with these, or where a directive says what to
say. Its log probabilities are all 0: nothing else could have come.

**Directives.** A line of the user's own words (in the last user message) that begins with
``!script`` is obeyed instead:
``!script [tokens=N] [delay_ms=MS] [crash_after=N] [fail=ERRNO] [hang] [text=REST OF LINE]``.

- ``text``: what to answer, where it is neither a schema's answer nor a call (default
  ``word0 word1 …``); ``tokens``: how many tokens of it, with the text repeated as often as needed
  (default: all of ``text``, or 8 words);
- ``delay_ms``: pause before each token, ended by an abort;
- ``crash_after``: the process is killed after so many tokens, as by the kernel's memory killer;
- ``fail`` (as in ``fail=EIO``) and ``hang`` take the place of the end; where ``tokens`` is not
  given they take the place of all. A hanging driver obeys no abort.

**Tokens.** A token is one Chinese, Japanese or Korean character, or a run of other word
characters, or one other visible character; white space goes with what follows it, and counts
one where nothing follows. A prompt costs its contents, 4 a message, and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice, takewhile

import msgspec

from isovist.kernel.drivers.grammar import AUTO, NONE, REQUIRED, with_tools
from isovist.kernel.drivers.protocol import Generate
from isovist.kernel.drivers.sample import sample
from isovist.kernel.drivers.turns import worded, words_of
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.fence import CLOSE
from isovist.syscalls.records import Message, Tool, ToolCall

TOKENIZER = "scripted/words"
UNKNOWN = "I do not know."

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = re.compile(rf"\s*(?:[{_CJK}]|[^\W{_CJK}]+|[^\w\s])|\s+\Z")
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
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


def scripted_prompt(
    messages: Sequence[Message], tools: Sequence[Tool] = (), choice: str = AUTO
) -> int:
    """How many tokens the whole prompt has. Raises ``EINVAL`` for a tool that is of no use."""
    said = with_tools(worded(messages), tools, choice)
    return 2 + sum(4 + scripted_count(message.content or "") for message in said)


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


def plan(request: Generate) -> tuple[Script, tuple[ToolCall, ...]]:
    """What to do for a request, and the calls of tools that its text then is. Raises ``EINVAL``
    for a directive that is none, and for a schema that it cannot answer."""
    told = _directive(request.messages)
    _, words = _said(request.messages)
    own = "\n".join(line for line in words.splitlines() if not _directs(line))
    if request.schema:
        return _saying(told, sample(request.schema, own)), ()
    calls = tuple(
        ToolCall(tool.name, sample(tool.parameters, own, "tools", "object"))
        for tool in _called(request, own, told)
    )
    if calls:
        return _saying(told, "\n".join(map(words_of, calls))), calls
    return told or answer(request.messages), ()


def answer(messages: Sequence[Message]) -> Script:
    """What to do for these messages: their directive, or the default answer as one."""
    if (told := _directive(messages)) is not None:
        return told
    results = "\n".join(_results(messages))
    if results.strip():
        return Script(text=results)
    block, words = _said(messages)
    asked = _words(words)
    memories = [line for line in block.splitlines() if line.startswith(("- ", "  "))]
    best = max(memories, key=lambda line: len(asked & _words(line)), default="")
    return Script(text=best.removeprefix("- ").strip() if asked & _words(best) else UNKNOWN)


def _called(request: Generate, own: str, told: Script | None) -> Sequence[Tool]:
    """The tools to be called, in the order of the offer."""
    tools, choice = request.tools, request.choice
    if not tools or choice == NONE:
        return ()
    if choice not in (AUTO, REQUIRED):
        return [tool for tool in tools if tool.name == choice]
    says = told is not None and (told.text or told.tokens is not None)
    if choice == AUTO and (says or _results(request.messages)):
        return ()
    named = [tool for tool in tools if tool.name in _NAME.findall(own)]
    return named or (tools[:1] if choice == REQUIRED else ())


def _saying(told: Script | None, text: str) -> Script:
    """A directive's delays and ends, with another text."""
    return msgspec.structs.replace(told or Script(), text=text, tokens=None)


def _directive(messages: Sequence[Message]) -> Script | None:
    _, words = _said(messages)
    return next((read_script(line) for line in words.splitlines() if _directs(line)), None)


def _directs(line: str) -> bool:
    return line.split()[:1] == ["!script"]


def _said(messages: Sequence[Message]) -> tuple[str, str]:
    """Of the last user turn: all before the end of the injected block, and the user's own words."""
    said = next((m.content for m in reversed(messages) if m.role == "user" and m.content), "")
    block, _, words = said.rpartition(CLOSE)
    return block, words


def _results(messages: Sequence[Message]) -> list[str]:
    """The results of tools that the conversation ends with."""
    last = takewhile(lambda m: m.role == "tool", reversed(messages))
    return [message.content or "" for message in last][::-1]


def _words(text: str) -> set[str]:
    """The telling words of a text, cut to five letters so that most endings do not matter."""
    return {word[:5] for word in _WORD.findall(text.casefold()) if word not in _COMMON}
