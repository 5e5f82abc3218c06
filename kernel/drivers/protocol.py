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
from isovist.syscalls.records import Logprob, Message, Tool, ToolCall

Finish = Literal["stop", "length", "cancelled"]
NO_LOGPROBS = -1
MAX_LOGPROBS = 20
"""Alternatives that a request may ask for beside each token."""
LOGPROBS = 64
"""Most of them that wait for a text to go with: many of them must not outgrow a frame."""


class Generate(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Answer ``messages`` with at most ``max_tokens`` (from 1) tokens.

    ``temperature`` 0 is greedy; above, ``seed`` decides. The text ends before the first of the
    ``stop`` strings (none is empty).

    ``owner`` names whose conversation it is: what a sequence holds of an owner's last request is
    kept for the next, and nobody else can tell from times or counts what that was. ``logprobs``
    (0 to 20) asks for each token's, with so many alternatives. ``schema`` is a JSON schema, as
    text, that the whole answer must match. With ``tools`` the answer is a call of one of them
    (``choice`` ``required`` or a tool's name), or a call or a text (``auto``); not both ``schema``
    and ``tools``.
    """

    key: int
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    owner: str = ""
    logprobs: int = NO_LOGPROBS
    schema: str = ""
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"


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
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"


class Embed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The vector of each text, each computed alone: as a text to be stored, or as a question."""

    id: int
    texts: tuple[str, ...]
    question: bool = False


class Pause(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Let request ``key`` rest from the next step on; it gives its slot away and keeps what was
    computed for as long as there is room. No effect where it has ended."""

    key: int


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Let a paused request go on with the same text."""

    key: int


class Flush(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Forget all that no living request needs: cells, saved states, remembered answers; and what
    the living ones need when each ends. Answered at once, by :class:`Kept` with 0."""

    id: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Write what is held of the owner's conversation ``messages``, asked with ``tools``, and of
    nothing that was said after them or beside them, to a new file at ``path``. Answered by
    :class:`Kept`, with 0 (and no file) where nothing of use is held."""

    id: int
    messages: tuple[Message, ...]
    path: str
    owner: str = ""
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"


class Restore(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Take in the file of a snapshot, so that its owner's conversation need not be computed.
    Answered by :class:`Kept`; fails with ``ESTALE`` where it is of another model file or other
    settings."""

    id: int
    path: str
    owner: str = ""


class Up(msgspec.Struct, frozen=True, array_like=True, tag=100):
    """Ready. ``context`` in tokens (0 for a counter or embedder), ``tokenizer`` (or the embedder's
    name), ``detail`` for people, ``dim`` of an embedder's vectors (0 for all others), ``slots``
    requests worked on at a time: more may be sent, they wait in the order of their coming."""

    context: int
    tokenizer: str
    detail: str = ""
    dim: int = 0
    slots: int = 1


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=101):
    """How much of the model is loaded, 0 to 1."""

    fraction: float


class Token(msgspec.Struct, frozen=True, array_like=True, tag=102):
    """The next piece of an answer: whole characters, and nothing that may yet become a stop
    string. ``tokens`` were made since the last piece. ``text`` is empty where many ``logprobs``
    have gathered before any text could go."""

    key: int
    text: str
    tokens: int = 1
    logprobs: tuple[Logprob, ...] = ()


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=103):
    """The end of an answer, with what it cost. ``cached_tokens`` of the prompt were reused.

    Times are in ns: from arrival to the start of its prompt, from there to the first token, from
    there to the end; pauses count as time in the queue. A call of a tool comes in ``calls``, and no
    text of it came before; the kernel gives it its id. ``logprobs`` are those of tokens that no
    text was sent for.
    """

    key: int
    finish: Finish
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int = 0
    queue_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag=104):
    """One request failed (``key`` is its key or id); the process lives. It may succeed after
    ``retry_ns`` (0: not known). ``field`` is the one at fault (empty: none)."""

    key: int
    errno: int
    message: str
    retry_ns: int = 0
    field: str = ""


class Counted(msgspec.Struct, frozen=True, array_like=True, tag=105):
    """One count a text; one in all for :class:`CountPrompt`."""

    id: int
    counts: tuple[int, ...]


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag=106):
    """One vector a text: ``dim`` little-endian values as bytes, of length 1; float16 as they are
    stored, float32 for questions."""

    id: int
    vectors: tuple[bytes, ...]


class Read(msgspec.Struct, frozen=True, array_like=True, tag=108):
    """``read`` of the prompt's tokens have been computed or, ``cached_tokens``, reused. Comes after
    each chunk, the last time with ``read == prompt_tokens``."""

    key: int
    read: int
    prompt_tokens: int
    cached_tokens: int


class Load(msgspec.Struct, frozen=True, array_like=True, tag=109):
    """How busy the process is: sent at a change, and once a second while it works, so that its
    silence means that a step hangs. Cells and totals in tokens; ``read`` and ``written`` are the
    tokens computed so far, ``swapped`` those moved between the model and host memory, in
    ``swap_ns`` of time."""

    slots: int
    running: int
    waiting: int
    paused: int
    cells: int
    cells_total: int
    host_bytes: int
    host_total: int
    steps: int
    read: int
    written: int
    swapped: int = 0
    swap_ns: int = 0


class Kept(msgspec.Struct, frozen=True, array_like=True, tag=110):
    """A :class:`Flush`, :class:`Snapshot` or :class:`Restore` is done, for so many tokens."""

    id: int
    tokens: int


class Fatal(msgspec.Struct, frozen=True, array_like=True, tag=107):
    """The process cannot do its work and ends; another start would end the same way."""

    message: str


ToProcess = (
    Generate | Abort | Count | CountPrompt | Embed | Pause | Resume | Flush | Snapshot | Restore
)  # fmt: skip
FromProcess = (
    Up | Progress | Token | Finished | RequestFailed | Counted | Embedded | Read | Load | Kept
    | Fatal
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
    if not NO_LOGPROBS <= request.logprobs <= MAX_LOGPROBS:
        raise CallerError(f"logprobs must lie between 0 and {MAX_LOGPROBS}", field="logprobs")
    if request.schema and request.tools:
        raise CallerError("an answer has a schema or tools, not both", field="schema")


def check_fit(prompt: int, max_tokens: int, context: int) -> None:
    """Raises ``EMSGSIZE`` where prompt and reply together exceed the context (all in tokens)."""
    if prompt + max_tokens > context:
        raise CallerError(
            f"prompt of {prompt} tokens and reply of {max_tokens} make {prompt + max_tokens}, "
            f"the model's context is {context}",
            errno=Errno.EMSGSIZE,
            field="messages",
        )
