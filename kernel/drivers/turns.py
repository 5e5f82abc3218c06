"""Calls of tools and their results as words of a prompt, for templates that know of neither."""

from __future__ import annotations

import json
from collections.abc import Sequence

from isovist.syscalls.records import Message, ToolCall

RESULT = "Result of a tool:\n"


def words_of(call: ToolCall) -> str:
    """A call as :func:`~isovist.kernel.drivers.grammar.of_tools` has a model write it, so that a
    turn that repeats it has the very text of the answer."""
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'


def worded(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with each turn's calls in its content, one a line. Where a turn has made
    several, each result says of which it is: results may come in any order."""
    plain: list[Message] = []
    made: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "tool":
            call = made.get(message.call)
            head = f"{call.name}({call.arguments}):\n" if call and len(made) > 1 else ""
            plain.append(Message("tool", head + (message.content or "")))
            continue
        made = {call.id: call for call in message.calls}
        if made:
            said = [message.content] if message.content else []
            message = Message(message.role, "\n".join([*said, *map(words_of, message.calls)]))
        plain.append(message)
    return tuple(plain)


def told_by_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with results as words of the user's, those of one turn together: for templates
    that know no ``tool`` or want turns to alternate."""
    told: list[Message] = []
    results = False
    for message in messages:
        if message.role != "tool":
            told.append(message)
        elif results:
            told[-1] = Message("user", f"{told[-1].content}\n\n{RESULT}{message.content or ''}")
        else:
            told.append(Message("user", f"{RESULT}{message.content or ''}"))
        results = message.role == "tool"
    return tuple(told)
