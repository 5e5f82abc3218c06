"""JSON schemas and tools as grammars that an answer must follow, and tools as words of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from isovist.syscalls.errors import CallerError
from isovist.syscalls.records import Message, Tool, ToolCall

SCHEMA_BYTES = 64 * 1024
GRAMMAR_BYTES = 256 * 1024
MOST = 1000
"""The highest count that a schema may name: llama.cpp writes repetitions out."""
AUTO, NONE, REQUIRED = "auto", "none", "required"

_GBNF = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[a-zA-Z][a-zA-Z0-9-]*')
"""Literals, character classes, and names of rules."""
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")


def of_schema(text: str, field: str = "schema") -> str:
    """A GBNF grammar whose root matches all and only JSON by the schema, as far as llama.cpp's
    converter knows its keywords. Raises ``EINVAL`` naming what is wrong with it."""
    return _grammar(_checked(text, field), field)


def of_tools(tools: Sequence[Tool], choice: str) -> str:
    """A grammar for a call of one of the tools: ``{"name": …, "arguments": {…}}``. With choice
    ``auto`` any text that does not begin with a brace matches as well; with ``none`` there is no
    grammar (an empty one)."""
    if not tools or choice == NONE:
        return ""
    named = [tool for tool in tools if choice in (AUTO, REQUIRED, tool.name)]
    if not named:
        raise CallerError(f"no tool is called {choice!r}", field="choice")
    calls, rules = [], []
    for at, tool in enumerate(named):
        # Each has rules of its own: two schemas may call different things alike.
        prefix = f"t{at}-"
        calls.append(
            f'"{{" sp {_literal("name")} ":" sp {_literal(tool.name)} "," sp '
            f'{_literal("arguments")} ":" sp {prefix}root "}}"'
        )
        rules.append(_renamed(_grammar(_arguments(tool), "tools"), prefix))
    free = " | [^{] .*" if choice == AUTO else ""
    return f'root ::= {" | ".join(calls)}{free}\nsp ::= " "?\n' + "\n".join(rules)


def _literal(text: str) -> str:
    """A GBNF literal of ``text`` as a JSON string."""
    inside = json.dumps(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside}"'


def _renamed(grammar: str, prefix: str) -> str:
    """The grammar with ``prefix`` before each rule's name; literals and classes stay."""
    return _GBNF.sub(lambda found: found[0] if found[0][0] in '"[' else prefix + found[0], grammar)


def with_tools(
    messages: Sequence[Message], tools: Sequence[Tool], choice: str
) -> tuple[Message, ...]:
    """The messages with the tools described in the first, a system one.

    As content, not by the template's own means: what tools come with is written by strangers, and
    content cannot become control tokens.
    """
    if not tools or choice == NONE:
        return tuple(messages)
    lines = ["You may call these functions:"]
    lines += (
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": _arguments(tool)},
            ensure_ascii=False,
        )
        for tool in tools
    )
    how = 'answer with JSON alone: {"name": NAME, "arguments": {…}}'
    lines.append(f"To call one, {how}." if choice == AUTO else f"Call one: {how}.")
    said = "\n".join(lines)
    first = messages[0] if messages else None
    if first is not None and first.role == "system":
        return (Message("system", f"{first.content or ''}\n\n{said}"), *messages[1:])
    return (Message("system", said), *messages)


def read_call(text: str, tools: Sequence[Tool]) -> ToolCall | None:
    """The call that ``text`` is, or ``None`` where it is none."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or call.get("name") not in {tool.name for tool in tools}:
        return None
    try:
        arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None  # a number as 1e999
    # Half a pair of UTF-16 is no text, and fits no frame.
    return ToolCall(call["name"], arguments.encode(errors="replace").decode())


def _arguments(tool: Tool) -> dict[str, Any]:
    schema = _checked(tool.parameters or "{}", "tools")
    # An argument list is an object, whatever else the schema leaves open.
    return schema if schema.get("type") == "object" else {"type": "object", **schema}


def _checked(text: str, field: str) -> dict[str, Any]:
    if len(text.encode()) > SCHEMA_BYTES:
        raise CallerError(f"a schema may have {SCHEMA_BYTES} bytes at most", field=field)
    try:
        schema = json.loads(text)
        _check(schema, field)
    except (ValueError, RecursionError) as e:
        raise CallerError(f"not a JSON schema: {e}", field=field) from None
    if not isinstance(schema, dict):
        raise CallerError("a JSON schema must be an object", field=field)
    return schema


def _check(node: Any, field: str) -> None:
    if isinstance(node, list):
        for one in node:
            _check(one, field)
    if not isinstance(node, dict):
        return
    reference = node.get("$ref")
    # The converter would fetch others from the network.
    if isinstance(reference, str) and not reference.startswith("#/"):
        raise CallerError(f"a schema may refer to itself alone, not to {reference!r}", field=field)
    for count in _pattern_counts(node.get("pattern")):
        if len(count) > len(str(MOST)) or int(count) > MOST:
            raise CallerError(f"a pattern may repeat {MOST} times at most", field=field)
    for name in _COUNTS:
        if isinstance(node.get(name), int) and node[name] > MOST:
            raise CallerError(f"{name} may be {MOST} at most", field=field)
    for one in node.values():
        _check(one, field)


def _pattern_counts(pattern: Any) -> list[str]:
    """The numbers in braces as Python reads them, ``1_000`` too."""
    found = re.findall(r"\{([^}]*)\}", pattern) if isinstance(pattern, str) else []
    counts = re.findall(r"\d+", " ".join(found).replace("_", ""))
    return [count.lstrip("0") or "0" for count in counts]


def _grammar(schema: dict[str, Any], field: str) -> str:
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        grammar = str(json_schema_to_gbnf(json.dumps(schema)))
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError,
            AttributeError) as e:  # fmt: skip
        raise CallerError(f"this schema cannot be made a grammar: {e}", field=field) from None
    if len(grammar.encode()) > GRAMMAR_BYTES:
        raise CallerError("the schema's grammar is too large", field=field)
    return grammar
