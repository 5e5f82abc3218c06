"""Memory as tools for a model [S 3.3]: their schemas, and a call of one as text.

The schemas are made of the request Structs: fields, types, defaults, and the ranges that their
docs state. A tool is a syscall like any other, made by a client, so it sees what its reader may
see and no more.

    reply = client.chat(question, tools=offer())        # or schemas(), for a model elsewhere
    texts = [run_tool(client, call.name, call.arguments) for call in reply.calls]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

import msgspec

from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.fence import escape
from isovist.syscalls.records import Round, Tool

RESULT = 30_000
"""Characters of one result [S 3.3]."""
NOTHING = "Nothing in view fits."
MORE = "(More is in view than fits here.)"
PARTS = "(Where […] stands a message goes on: it has up to {} parts, ask for part 1 and so on.)"

TOOLS: dict[str, type[m.Call]] = {
    "memory_search": m.MemorySearch,
    "memory_read": m.MemoryRead,
    "session_search": m.SessionSearch,
}
"""Each tool and its syscall."""
HIDDEN = frozenset({*m.Call.__struct_fields__, "barrier_ms"})
"""Fields that are no model's business: whom it serves, and how long a call may take."""
WORDS = {
    "query": "What to look for, in plain words.",
    "k": "How many at most.",
    "since": "Only what was said at this time or later: ISO 8601 with a zone.",
    "until": "Only what was said before this time: ISO 8601 with a zone.",
    "session": "A session, as an earlier result names it.",
    "round": "A round of that session, as an earlier result numbers it.",
    "window": "How many rounds before and after it as well.",
    "part": "Which part of long messages; 0 is their beginning.",
    "compact": "Only what was found of each session, not all of it.",
}
"""What the fields mean, in words for a model."""

_MODELS_FAULT = (Errno.EINVAL, Errno.ENOENT, Errno.EMSGSIZE)
_RANGE = re.compile(r"``(\w+)``(?: \w+)? \(([\d,]+) to ([\d,]+)\)")
_TYPES = {str: "string", int: "integer", bool: "boolean"}


F = TypeVar("F", bound=Callable[..., Any])


def tool(*, read_only: bool = False, idempotent: bool = False) -> Callable[[F], F]:
    """Say of a function that the kernel mounts as a tool what it does: it changes nothing, or
    once and twice is the same. Without, each call of it is taken to change something."""

    def mark(function: F) -> F:
        vars(function).update(read_only=read_only, idempotent=idempotent or read_only)
        return function

    return mark


class Caller(Protocol):
    """What is needed of a client."""

    def call(self, request: m.Request) -> m.AnyReply: ...


def offer(names: Iterable[str] = tuple(TOOLS)) -> tuple[Tool, ...]:
    """The tools as ``chat`` takes them."""
    return tuple(
        Tool(name, _description(_tool(name)), json.dumps(_parameters(_tool(name))))
        for name in names
    )


def schemas(names: Iterable[str] = tuple(TOOLS)) -> list[dict[str, Any]]:
    """Function objects for a model's request, in the form that OpenAI's API takes."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": _description(_tool(name)),
                "parameters": _parameters(_tool(name)),
            },
        }
        for name in names
    ]


def run_tool(client: Caller, name: str, arguments: object) -> str:
    """Make the call that a model asked for; its result as text of at most ``RESULT`` characters.

    What the model got wrong (an unknown tool, an argument, a round that is not there) is a result
    too, which names the field and the rule, so that it can try again. Raises what else the syscall
    raises: that is no fault of the model's.
    """
    try:
        return render(client.call(request_of(name, arguments)))
    except CallerError as e:
        if e.errno not in _MODELS_FAULT:
            raise
        field = f" ({e.field})" if e.field else ""
        return f"Error{field}: {e.message}"[:RESULT]


def request_of(name: str, arguments: object) -> m.Request:
    """The request for a tool's ``arguments`` (a mapping, or the JSON that a model wrote).

    Raises ``ENOENT`` for an unknown tool, ``EINVAL`` with the argument at fault otherwise.
    """
    kind = _tool(name)
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments.strip() or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as e:
            raise CallerError(f"arguments are no JSON object: {e}", field="arguments") from None
    if not isinstance(arguments, Mapping):
        kind_of = type(arguments).__name__
        raise CallerError(f"arguments must be an object, not {kind_of}", field="arguments")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in _fields(kind)}
    for field in arguments:
        if field not in fields:
            takes = ", ".join(fields)
            raise CallerError(f"{name} takes no argument {field!r}; it takes {takes}",
                              field=str(field))  # fmt: skip
    values: dict[str, Any] = {}
    for field, info in fields.items():
        if field in arguments:
            try:
                values[field] = msgspec.convert(arguments[field], hints[field])
            except msgspec.ValidationError as e:
                raise CallerError(f"{field}: {e}", field=field) from None
        elif info.required:
            raise CallerError(f"{name} needs the argument {field!r}", field=field)
    for field, (low, high) in _ranges(kind).items():
        if field in values and not low <= values[field] <= high:
            raise CallerError(f"{field} must be {low} to {high}", field=field)
    request: m.Request = kind(**values)  # type: ignore[assignment] # all of TOOLS are requests
    return request


def render(reply: m.AnyReply) -> str:
    """Rounds as text: whole ones, as many as fit. Nothing in one can pass for another, nor for
    the fence of injected memory."""
    if not isinstance(reply, m.Rounds):
        raise KernelError(f"no tool answers with {type(reply).__name__}")
    parts: list[str] = []
    parted = PARTS.format(reply.parts) if reply.truncated and reply.parts > 1 else ""
    room = RESULT - len(MORE) - len(parted) - 2
    truncated = reply.truncated and not parted
    for number, shown in enumerate(reply.rounds, 1):
        text = _round(number, shown)
        if len(text) > room and not parts:
            # One long round alone: its beginning is better than nothing.
            parts.append(text[:room])
            truncated = True
            break
        room -= len(text) + 1
        if room < 0:
            truncated = True
            break
        parts.append(text)
    parts += [said for said in (parted, truncated and MORE) if said]
    return "\n".join(parts) if parts else NOTHING


def _round(number: int, shown: Round) -> str:
    owner = f", told to {shown.owner}" if shown.owner else ""
    head = f"{number}. {shown.date}, session {shown.session}, round {shown.round}{owner}"
    return "\n   ".join([head, *escape(shown.text.strip()).splitlines()])


def _tool(name: object) -> type[m.Call]:
    if not isinstance(name, str) or name not in TOOLS:
        raise CallerError(
            f"no tool called {name!r}; there are: {', '.join(TOOLS)}",
            errno=Errno.ENOENT,
            field="name",
        )
    return TOOLS[name]


def _fields(kind: type[m.Call]) -> list[msgspec.structs.FieldInfo]:
    return [field for field in msgspec.structs.fields(kind) if field.name not in HIDDEN]


def _doc(kind: type[m.Call]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _description(kind: type[m.Call]) -> str:
    """The Struct's docs without its marks and sources."""
    plain = re.sub(r" \[S [^\]]*\]", "", _doc(kind))
    return plain.replace("``", "")


def _ranges(kind: type[m.Call]) -> dict[str, tuple[int, int]]:
    """The ranges that the Struct's docs state, by field."""
    return {
        name: (int(low.replace(",", "")), int(high.replace(",", "")))
        for name, low, high in _RANGE.findall(_doc(kind))
    }


def _parameters(kind: type[m.Call]) -> dict[str, Any]:
    hints, ranges = get_type_hints(kind), _ranges(kind)
    properties: dict[str, Any] = {}
    for field in _fields(kind):
        # What may be left out is left out of "required", never written as null.
        hint = next((h for h in get_args(hints[field.name]) if h in _TYPES), hints[field.name])
        schema: dict[str, Any] = {"type": _TYPES[hint], "description": WORDS[field.name]}
        if field.name in ranges:
            schema["minimum"], schema["maximum"] = ranges[field.name]
        if not field.required and field.default is not None:
            schema["default"] = field.default
        properties[field.name] = schema
    return {
        "type": "object",
        "properties": properties,
        "required": [field.name for field in _fields(kind) if field.required],
        "additionalProperties": False,
    }
