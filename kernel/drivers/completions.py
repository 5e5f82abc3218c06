"""The chat completions format: a request as JSON, and what its streamed answer says.

Pure: bytes in, messages to the kernel out. Servers differ in what they leave out, so all fields of
an answer may be missing or null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from isovist.kernel.drivers.grammar import AUTO, NONE, REQUIRED
from isovist.kernel.drivers.outflow import Outflow
from isovist.kernel.drivers.protocol import LOGPROBS, NO_LOGPROBS, Finish, Generate, Token
from isovist.kernel.drivers.turns import RESULT
from isovist.syscalls.errors import CallerError
from isovist.syscalls.records import Logprob, Message, Tool, ToolCall

STOPS = 4
"""Stop strings that servers take; all of them are looked for here as well."""
PIECES = 8
"""Pieces that a token may come in: whoever sends more does not know where to stop."""
CALLS = 64
CALL_TEXT = 1 << 17
"""Most calls of an answer, and most characters of their arguments together."""
TOKEN_BYTES = 256
"""Most bytes of a token beside its log probability; the rest is cut off."""

Omit = Literal["temperature", "seed", "stop", "stream_options"]
Length = Literal["max_tokens", "max_completion_tokens"]
Form = Literal["json_schema", "json_object"]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """In what endpoints differ: fields that one refuses, the name of an answer's longest length,
    and how a schema is handed over (``json_object``: with a ``schema`` beside it)."""

    omit: tuple[Omit, ...] = ()
    length: Length = "max_tokens"
    form: Form = "json_schema"


# -- what is asked


def body(request: Generate, model: str, dialect: Dialect) -> bytes:
    """The request as JSON. Raises ``EINVAL``."""
    asked: dict[str, Any] = {
        "model": model,
        "messages": spoken(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        dialect.length: request.max_tokens,
        "temperature": request.temperature,
    }
    if request.temperature > 0:
        asked["seed"] = request.seed
    if request.stop:
        asked["stop"] = list(request.stop[:STOPS])
    if request.logprobs >= 0:
        asked["logprobs"] = True
        asked["top_logprobs"] = request.logprobs
    if request.schema:
        schema = _json(request.schema, "schema")
        asked["response_format"] = (
            {"type": "json_object", "schema": schema}
            if dialect.form == "json_object"
            else {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": schema},
            }
        )
    if request.tools:
        asked["tools"] = [_tool(tool) for tool in request.tools]
        asked["tool_choice"] = _choice(request.choice, request.tools)
    return msgspec.json.encode({k: v for k, v in asked.items() if k not in dialect.omit})


def spoken(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in the endpoint's form.

    A tool's results answer the calls of the assistant's turn before them: its ``calls``, or the
    one that its content is, as :func:`~isovist.kernel.drivers.grammar.of_tools` writes it. A result
    without such a turn is given as the user's words: endpoints refuse an answer to a call that
    nobody made.
    """
    out: list[dict[str, Any]] = []
    call = ""
    """The call in the turn just before that bears no id of its own."""
    for at, message in enumerate(messages):
        content = message.content or ""
        after = messages[at + 1].role if at + 1 < len(messages) else ""
        if message.calls:
            out.append(_calling(message.content, message.calls))
        elif (
            message.role == "assistant"
            and after == "tool"
            and (made := _made(content, f"call_{at}"))
        ):
            out.append(_calling(None, (made,)))
            call = made.id
            continue
        elif message.role == "tool" and (message.call or call):
            answered = message.call or call
            out.append({"role": "tool", "tool_call_id": answered, "content": content})
        elif message.role == "tool":
            out.append({"role": "user", "content": f"{RESULT}{content}"})
        else:
            out.append({"role": message.role, "content": content})
        call = ""
    return out


def _calling(content: str | None, calls: Sequence[ToolCall]) -> dict[str, Any]:
    made = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content or None, "tool_calls": made}


def _made(content: str, id: str) -> ToolCall | None:
    """The call that a turn is, or ``None`` where it is none."""
    try:
        call = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return ToolCall(call["name"], json.dumps(call.get("arguments", {})), id)


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _json(tool.parameters or "{}", "tools"),
    }
    return {"type": "function", "function": function}


def _choice(choice: str, tools: Sequence[Tool]) -> object:
    if choice in (AUTO, NONE, REQUIRED):
        return choice
    if choice not in {tool.name for tool in tools}:
        raise CallerError(f"no tool is called {choice!r}", field="choice")
    return {"type": "function", "function": {"name": choice}}


def _json(text: str, field: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CallerError("a JSON schema must be an object", field=field)
    return found


# -- what is answered


class Malformed(Exception):
    """The endpoint's answer breaks the format; the text says how, and quotes nothing of it."""


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int | None = None
    function: _Function | None = None


class _Said(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Alternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float | None = None
    raw: list[int] | None = msgspec.field(default=None, name="bytes")

    @property
    def text(self) -> bytes:
        if self.raw is not None and all(0 <= b < 256 for b in self.raw):
            return bytes(self.raw)
        return self.token.encode("utf-8", "replace")


class _Chosen(_Alternative, frozen=True):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_Chosen] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Said | None = None
    message: _Said | None = None
    """In the place of ``delta`` where a server does not stream."""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Problem(msgspec.Struct, frozen=True):
    """What an error says for machines. Its words for people are not even read: some servers quote
    the prompt, or the key."""

    code: object = None
    type: object = None
    param: object = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of the stream, or the whole answer where a server does not stream."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Problem | str | None = None


_chunk = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Raises :class:`Malformed`."""
    try:
        return _chunk.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise Malformed("an event is no chunk of an answer") from None


class Answer:
    """An answer as it comes in, of one try.

    Invariants: ``passed`` iff a token of it was given out, so that another try would be seen; what
    was given out holds no stop string.
    """

    def __init__(self, request: Generate) -> None:
        self.request = request
        self.passed = False
        self.finish: Finish | None = None
        """How it ended; ``None`` while it has not."""
        self.filtered = False
        """The endpoint withheld what it had to say."""
        self.pieces = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.logprobs: tuple[Logprob, ...] = ()
        """Of tokens that no text was given out for yet; fewer than :data:`LOGPROBS`."""
        self._logged = 0
        self._outflow = Outflow(request.stop)
        self._calls: dict[int, tuple[str, str]] = {}
        self._written = 0
        self._unsent = 0
        self._text: list[str] = []

    @property
    def output_tokens(self) -> int:
        """As the endpoint counts them, else as many as pieces came."""
        return self._written or self.pieces

    @property
    def over(self) -> bool:
        """Nothing more is wanted of it: a stop string came, or far more than was asked for."""
        return self._outflow.stopped or self._endless

    @property
    def _endless(self) -> bool:
        return self.pieces > PIECES * self.request.max_tokens

    def feed(self, chunk: Chunk) -> list[Token]:
        """What ``chunk`` sets free. Raises :class:`Malformed`."""
        if chunk.usage is not None:
            self._written = chunk.usage.completion_tokens or self._written
            self.prompt_tokens = chunk.usage.prompt_tokens or self.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            self.cached_tokens = (details and details.cached_tokens) or self.cached_tokens
        tokens: list[Token] = []
        for choice in (chunk.choices or ())[:1]:
            if choice.logprobs is not None and self.request.logprobs != NO_LOGPROBS:
                tokens += self._log(choice.logprobs.content or [])
            said = choice.delta or choice.message or _Said()
            for call in said.tool_calls or ():
                self._call(call)
            if said.content:
                self.pieces += 1
                self._unsent += 1
                if not self._endless:
                    tokens += self._passed(
                        self._outflow.feed(said.content.encode(errors="replace"))
                    )
            if choice.finish_reason is not None:
                self.finish = "length" if choice.finish_reason == "length" else "stop"
                self.filtered = choice.finish_reason == "content_filter"
        return tokens

    def end(self) -> list[Token]:
        """What was held back in case a stop string came."""
        if self._outflow.stopped:
            self.finish = "stop"
        elif self._endless:
            self.finish = "length"
        return self._passed(self._outflow.finish())

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools, whole. Raises :class:`Malformed` where one is none of the tools', or
        where what ought to be JSON is none; what was cut for length is left out."""
        whole: list[ToolCall] = []
        choice = self.request.choice
        known = {tool.name for tool in self.request.tools if choice in (AUTO, REQUIRED, tool.name)}
        for name, arguments in self._calls.values():
            if name in known and isinstance(_loaded(arguments or "{}"), dict):
                whole.append(ToolCall(name, arguments or "{}"))
            elif self.finish == "stop":
                raise Malformed("a call is of no tool that was offered, or has no JSON object")
        demanded = known and choice != AUTO and not self._outflow.stopped
        if demanded and not whole and self.finish == "stop":
            raise Malformed("the answer calls no tool, as was demanded")
        whole_text = self.request.schema and self.finish == "stop" and not self._outflow.stopped
        if whole_text and _loaded("".join(self._text)) is _NOTHING:
            raise Malformed("the answer is not JSON, as the schema demands")
        return tuple(whole)

    def _log(self, chosen: Sequence[_Chosen]) -> list[Token]:
        """Take log probabilities in; those that are too many to wait for a text go without."""
        self._logged += len(chosen)
        if self._logged > PIECES * self.request.max_tokens:
            raise Malformed("log probabilities without end")
        tokens: list[Token] = []
        for one in chosen:
            self.logprobs += (_logprob(one, self.request.logprobs),)
            if len(self.logprobs) == LOGPROBS:
                tokens.append(Token(self.request.key, "", 0, self.logprobs))
                self.logprobs, self.passed = (), True
        return tokens

    def _passed(self, text: str) -> list[Token]:
        if not text:
            return []
        token = Token(self.request.key, text, self._unsent, self.logprobs)
        self._text.append(text)
        self._unsent, self.logprobs, self.passed = 0, (), True
        return [token]

    def _call(self, call: _Call) -> None:
        # Servers that send each call whole leave its number out.
        at = call.index if call.index is not None else len(self._calls)
        name, arguments = self._calls.get(at, ("", ""))
        if call.function is not None:
            name = call.function.name or name
            arguments += call.function.arguments or ""
        self._calls[at] = (name, arguments)
        long = sum(len(name) + len(text) for name, text in self._calls.values())
        if len(self._calls) > CALLS or long > CALL_TEXT:
            raise Malformed("calls of tools without end")


def _logprob(chosen: _Chosen, most: int) -> Logprob:
    likeliest = (chosen.top_logprobs or [])[:most]
    top = tuple((one.text[:TOKEN_BYTES], _finite(one.logprob)) for one in likeliest)
    return Logprob(chosen.text[:TOKEN_BYTES], _finite(chosen.logprob), top)


def _finite(value: float | None) -> float:
    return min(value, 0.0) if value is not None and math.isfinite(value) else -9999.0


_NOTHING = object()


def _loaded(text: str) -> object:
    """What JSON ``text`` is, or ``_NOTHING``."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING
