"""What a chat may ask of its answer (tools, a schema, log probabilities), and how the calls of
tools stand in a conversation: the rules, each broken one named with its field.

What only a model's driver can tell (whether a schema makes a grammar) it tells in an error of the
same kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.records import Message, Tool, ToolCall

CHOICES = ("auto", "none", "required")
TOOLS = 64
"""Most tools of a request, and most calls of one turn."""
DESCRIPTION = 4096
"""Characters of a tool's description."""
SCHEMA = 64 * 1024
"""Bytes of a schema, and of a call's arguments."""
DEPTH = 64
"""How deep a schema may nest: whoever reads it calls itself as often."""
LOGPROBS = 20
LOGGED = 32_768
"""Most log probabilities of one reply, alternatives included: it has to fit a frame."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_FORM = "must have 1 to 64 letters (A to Z, a to z), digits, '_' and '-'"


def size(request: m.Chat) -> int:
    """Characters of all that becomes part of the prompt."""
    said = sum(
        len(message.content or "") + sum(len(c.name) + len(c.arguments) for c in message.calls)
        for message in request.messages
    )
    offered = sum(len(t.name) + len(t.description) + len(t.parameters) for t in request.tools)
    return said + offered


def check_answer(request: m.Chat) -> None:
    """Raise ``EINVAL`` or ``EMSGSIZE`` where the answer that is asked for breaks a rule."""
    # A choice may name one of the tools that the kernel has yet to find.
    check_tools(request.tools, "auto" if request.tools_of else request.choice)
    if request.schema:
        if request.tools:
            raise CallerError("an answer has a schema or tools, not both", field="schema")
        check_object(request.schema, "schema", "schema")
    if not -1 <= request.logprobs <= LOGPROBS:
        raise CallerError(f"logprobs must be -1 to {LOGPROBS}", field="logprobs")
    if (many := request.max_tokens * (request.logprobs + 1)) > LOGGED:
        raise CallerError(
            f"logprobs: {request.max_tokens} tokens with {request.logprobs} alternatives each make "
            f"{many} log probabilities, the limit is {LOGGED}",
            errno=Errno.EMSGSIZE,
            field="logprobs",
        )


def check_tools(tools: Sequence[Tool], choice: str) -> None:
    """Raise ``EINVAL`` or ``EMSGSIZE`` where an offer of tools breaks a rule."""
    if len(tools) > TOOLS:
        raise CallerError(
            f"tools has {len(tools)}, the limit is {TOOLS}", errno=Errno.EMSGSIZE, field="tools"
        )
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if not _NAME.match(tool.name):
            raise CallerError(f"tools[{at}].name {_FORM}", field="tools")
        if tool.name in CHOICES:
            raise CallerError(f"tools[{at}].name {tool.name!r} means a choice", field="tools")
        if tool.name in names:
            raise CallerError(f"tools[{at}].name {tool.name!r} is there twice", field="tools")
        names.add(tool.name)
        if len(tool.description) > DESCRIPTION:
            raise CallerError(
                f"tools[{at}].description has {len(tool.description)} characters, the limit is "
                f"{DESCRIPTION}",
                errno=Errno.EMSGSIZE,
                field="tools",
            )
        check_object(tool.parameters or "{}", f"tools[{at}].parameters", "tools")
    if choice not in names and (choice not in CHOICES or (choice == "required" and not names)):
        known = ", ".join(("auto, none, required", *sorted(names)) if names else ("auto, none",))
        raise CallerError(
            f"choice {choice[:64]!r} names no tool; it may be {known}", field="choice"
        )


def check_turns(messages: Sequence[Message]) -> None:
    """Raise ``EINVAL`` where calls and their results do not belong together."""
    open_: dict[str, int] = {}
    """Calls without a result so far: by id, the place of their message."""
    for at, message in enumerate(messages):
        if message.role == "tool":
            if message.call in open_:
                del open_[message.call]
            elif message.call or open_:
                raise _turn(at, f"call {message.call[:64]!r} is no open one of the turn before it")
            continue
        if message.call:
            raise _turn(at, f"a {message.role} message answers no call")
        _check_answered(open_)
        if message.calls and message.role != "assistant":
            raise _turn(at, f"a {message.role} message makes no calls")
        open_ = _checked_calls(message.calls, at)
    _check_answered(open_)


def _checked_calls(calls: Sequence[ToolCall], at: int) -> dict[str, int]:
    if len(calls) > TOOLS:
        raise _turn(at, f"it makes {len(calls)} calls, the limit is {TOOLS}")
    ids: dict[str, int] = {}
    for nth, call in enumerate(calls):
        where = f"messages[{at}].calls[{nth}]"
        for field, value in (("name", call.name), ("id", call.id)):
            if not _NAME.match(value):
                raise CallerError(f"{where}.{field} {_FORM}", field="messages")
        if call.id in ids:
            raise CallerError(f"{where}.id {call.id!r} is there twice", field="messages")
        ids[call.id] = at
        check_object(call.arguments, f"{where}.arguments", "messages")
    return ids


def _check_answered(open_: dict[str, int]) -> None:
    for call, at in open_.items():
        raise _turn(at, f"call {call!r} has no result right after it")


def _turn(at: int, why: str) -> CallerError:
    return CallerError(f"messages[{at}]: {why}", field="messages")


def check_object(text: str, where: str, field: str) -> dict[str, Any]:
    """``text``, which is a JSON object of bounded size and depth. Raises ``EINVAL`` or
    ``EMSGSIZE``."""
    if (size := len(text.encode())) > SCHEMA:
        raise CallerError(
            f"{where} has {size} bytes, the limit is {SCHEMA}", errno=Errno.EMSGSIZE, field=field
        )
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as e:
        raise CallerError(f"{where} must be a JSON object: {e}", field=field) from None
    if not isinstance(found, dict):
        raise CallerError(f"{where} must be a JSON object", field=field)
    level: list[Any] = [found]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return found
    raise CallerError(f"{where} may nest {DEPTH} deep at most", field=field)


def _inside(value: Any) -> Iterable[Any]:
    inner = value.values() if isinstance(value, dict) else value
    return [one for one in inner if isinstance(one, dict | list)]


def in_words(text: str, calls: Sequence[ToolCall]) -> str:
    """An answer as it is kept: its text, then its calls, one a line."""
    lines = [text, *(f"{call.name}({call.arguments})" for call in calls)]
    return "\n".join(line for line in lines if line.strip())
