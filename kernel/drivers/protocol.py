"""What the kernel and a driver, counter or embedder process say to each other.

MessagePack arrays with integer tags, one a frame, over a pipe pair; the frame's id is not used.
Requests have tags below 100, answers from 100. Both ends come from one installation, so there is
no version to agree on. ``key`` and ``id`` are the kernel's own numbers and come back unchanged.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.framing import pack
from isovist.syscalls.records import Message

Finish = Literal["stop", "length", "cancelled"]


class Generate(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Answer ``messages`` with at most ``max_tokens`` (from 1) tokens.

    ``temperature`` 0 is greedy; above, ``seed`` decides. The text ends before the first of the
    ``stop`` strings (none is empty).
    """

    key: int
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """End request ``key`` with ``Finished(finish="cancelled")``; no effect where it has ended."""

    key: int


class Count(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """How many tokens has each text, taken as plain text?"""

    id: int
    texts: tuple[str, ...]


class CountPrompt(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """How many tokens has the whole prompt that the model's chat template makes of these?"""

    id: int
    messages: tuple[Message, ...]


class Embed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The vector of each text, each computed alone: as a text to be stored, or as a question."""

    id: int
    texts: tuple[str, ...]
    question: bool = False


class Up(msgspec.Struct, frozen=True, array_like=True, tag=100):
    """Ready. ``context`` in tokens (0 for a counter or embedder), ``tokenizer`` (or the embedder's
    name), ``detail`` for people, ``dim`` of an embedder's vectors (0 for all others)."""

    context: int
    tokenizer: str
    detail: str = ""
    dim: int = 0


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=101):
    """How much of the model is loaded, 0 to 1."""

    fraction: float


class Token(msgspec.Struct, frozen=True, array_like=True, tag=102):
    """The next piece of an answer: whole characters, and nothing that may yet become a stop
    string."""

    key: int
    text: str


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=103):
    """The end of an answer, with what it cost. ``cached_tokens`` of the prompt were reused."""

    key: int
    finish: Finish
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int = 0


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag=104):
    """One request failed (``key`` is its key or id); the process lives."""

    key: int
    errno: int
    message: str


class Counted(msgspec.Struct, frozen=True, array_like=True, tag=105):
    """One count a text; one in all for :class:`CountPrompt`."""

    id: int
    counts: tuple[int, ...]


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag=106):
    """One vector a text: ``dim`` little-endian values as bytes, of length 1; float16 as they are
    stored, float32 for questions."""

    id: int
    vectors: tuple[bytes, ...]


class Fatal(msgspec.Struct, frozen=True, array_like=True, tag=107):
    """The process cannot do its work and ends; another start would end the same way."""

    message: str


ToProcess = Generate | Abort | Count | CountPrompt | Embed
FromProcess = (
    Up | Progress | Token | Finished | RequestFailed | Counted | Embedded | Fatal
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_to_process: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
_from_process: msgspec.msgpack.Decoder[FromProcess] = msgspec.msgpack.Decoder(FromProcess)


def frame(message: ToProcess | FromProcess) -> bytes:
    """One whole frame. Raises ``EINVAL`` for a lone surrogate, ``EMSGSIZE`` over the limit."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        raise CallerError("a text holds a lone surrogate") from None
    return pack(0, body)


def decode_to_process(body: bytes) -> ToProcess:
    """Raises :class:`msgspec.DecodeError` where ``body`` is no such message."""
    return _to_process.decode(body)


def decode_from_process(body: bytes) -> FromProcess:
    """Raises :class:`msgspec.DecodeError` where ``body`` is no such message."""
    return _from_process.decode(body)


def check_request(request: Generate) -> None:
    """The rules of :class:`Generate` that types cannot state; raises ``EINVAL``."""
    if request.max_tokens < 1:
        raise CallerError("max_tokens must be at least 1", field="max_tokens")
    if not 0.0 <= request.temperature <= 100.0:
        raise CallerError("temperature must lie between 0 and 100", field="temperature")
    if "" in request.stop:
        raise CallerError("a stop string may not be empty", field="stop")


def check_fit(prompt: int, max_tokens: int, context: int) -> None:
    """Raises ``EMSGSIZE`` where prompt and reply together exceed the context (all in tokens)."""
    if prompt + max_tokens > context:
        raise CallerError(
            f"prompt of {prompt} tokens and reply of {max_tokens} make {prompt + max_tokens}, "
            f"the model's context is {context}",
            errno=Errno.EMSGSIZE,
            field="messages",
        )
