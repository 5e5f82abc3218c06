"""How long is a text for a model? The target model's own tokenizer answers, beside its driver.

A budget is counted in whole units [M 3.4], and the same units come back call after call: counts
are cached by the hash of the text. A count is a function of text and tokenizer alone, so the
cache may serve all views.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import trio

from isovist.kernel.drivers.protocol import (
    Count,
    Counted,
    CountPrompt,
    FromProcess,
    RequestFailed,
    Up,
)
from isovist.kernel.drivers.script import TOKENIZER, scripted_count, scripted_prompt
from isovist.kernel.drivers.supervisor import Death, DriverProcess
from isovist.kernel.models import ModelSpec
from isovist.syscalls.errors import Errno, WorldError, error
from isovist.syscalls.records import Message, Tool

CACHE_ENTRIES = 65_536
BATCH_BYTES = 512 * 1024
"""UTF-8 bytes of text a request to the process carries at most, well within one frame."""
TEMPLATE, TEMPLATE_MESSAGE = 64, 16
"""Tokens allowed for what an unknown template writes around a prompt and around each message."""
TEMPLATE_TOOLS, TEMPLATE_TOOL, TEMPLATE_CALL = 256, 32, 16
"""The same around all tools that are offered, around each of them, and around each call."""
ANSWER_S = 15.0
"""A process that does not answer a request for so long hangs, and is killed."""
START_S = 60.0
"""The same for its start, which reads a vocabulary from disk."""


class TokenCounter(Protocol):
    """Counts for one model. ``name`` says whose tokenizer counted, for the reply."""

    name: str

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, taken as plain text."""
        ...

    async def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: str = "auto"
    ) -> int:
        """Tokens of the whole prompt, chat template and offered tools included. Raises ``EINVAL``
        where the template refuses the messages, or a tool's schema is of no use."""
        ...


class ScriptedCounter:
    """Counts for the scripted model, in the kernel itself; never waits."""

    name = TOKENIZER

    async def count(self, texts: Sequence[str]) -> list[int]:
        return [scripted_count(text) for text in texts]

    async def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: str = "auto"
    ) -> int:
        return scripted_prompt(messages, tools, choice)


class CountCache:
    """The most recently used counts, by hash of the text; at most ``entries`` of them."""

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
        self.entries = entries
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def get(self, key: bytes) -> int | None:
        if (count := self._counts.get(key)) is not None:
            self._counts.move_to_end(key)
        return count

    def put(self, key: bytes, count: int) -> None:
        self._counts[key] = count
        self._counts.move_to_end(key)
        if len(self._counts) > self.entries:
            self._counts.popitem(last=False)


def text_key(text: str) -> bytes:
    """16 bytes that stand for ``text``, lone surrogates included."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class ProcessCounter:
    """Counts for a GGUF model, by a counter process that it starts when first asked.

    One request is with the process at a time, so a request that kills it is known by its
    deed: it is tried once more on a fresh process, then fails with ``EIO``, and nobody else's
    request fails with it. One that makes it hang fails at once with ``EIO``, since everybody
    else waits meanwhile; the next gets a fresh process. A process that says it cannot work (a
    missing extra, a broken file) is not started again: every call raises ``EIO`` with its reason.

    The process lives in ``nursery`` and ends with it.
    """

    def __init__(
        self, nursery: trio.Nursery, command: Sequence[str], cache: CountCache | None = None
    ) -> None:
        self.name = ""
        """The tokenizer's own name, known after the first answer or :meth:`start`."""
        self.starts = 0
        """Processes started so far."""
        self._nursery = nursery
        self._command = tuple(command)
        self._cache = cache if cache is not None else CountCache()
        self._turn = trio.Lock()
        self._last_id = 0
        self._life: _Life | None = None
        self._hopeless = ""

    @property
    def pid(self) -> int:
        """The host's number of the process, 0 where none runs."""
        return 0 if self._life is None or self._life.over else self._life.process.pid

    async def start(self) -> None:
        """Have the process up, so that the first count does not wait for it. Raises ``EIO``."""
        async with self._turn:
            await self._ready()

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; asks the process about those alone that the cache lacks."""
        keys = [text_key(text) for text in texts]
        known = {key: count for key in keys if (count := self._cache.get(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        for batch in _batches(missing):
            counts = await self._ask(partial(_count, tuple(batch.values())))
            for key, count in zip(batch, counts, strict=True):
                known[key] = count
                self._cache.put(key, count)
        return [known[key] for key in keys]

    async def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: str = "auto"
    ) -> int:
        (count,) = await self._ask(partial(_count_prompt, tuple(messages), tuple(tools), choice))
        return count

    async def _ask(self, request: Callable[[int], Count | CountPrompt]) -> tuple[int, ...]:
        """One request, tried on a second process where it sees the first one die."""
        async with self._turn:
            reason = ""
            for _ in range(2):
                life = await self._ready()
                self._last_id += 1
                answer = None
                with trio.move_on_after(ANSWER_S) as patience:
                    answer = await life.ask(request(self._last_id))
                if patience.cancelled_caught:
                    raise self._hung(life, f"did not answer within {ANSWER_S:g} s")
                if isinstance(answer, RequestFailed):
                    raise error(answer.errno, answer.message, answer.field)
                if answer is not None:
                    return answer.counts
                reason = life.reason
            raise WorldError(f"the token counter died twice: {reason}")

    async def _ready(self) -> _Life:
        """A life whose process is up. Two starts at most, else ``EIO``."""
        if self._hopeless:
            raise WorldError(self._hopeless)
        reason = ""
        for _ in range(2):
            if self._life is None or self._life.over:
                self._life = _Life(DriverProcess(*self._command))
                self.starts += 1
                self._nursery.start_soon(self._life.run)
            life = self._life
            with trio.move_on_after(START_S) as patience:
                await life.up.wait()
            if patience.cancelled_caught:
                raise self._hung(life, f"did not start within {START_S:g} s")
            if not life.over:
                self.name = life.tokenizer
                return life
            reason = life.reason
            if life.fatal:
                self._hopeless = f"the token counter cannot work: {reason}"
                break
        raise WorldError(self._hopeless or f"the token counter does not start: {reason}")

    def _hung(self, life: _Life, how: str) -> WorldError:
        """End a life that is of no use any more; the next request begins another."""
        life.process.kill()
        self._life = None
        return WorldError(f"the token counter {how}")


class _Life:
    """One process and the one answer that is waited for."""

    def __init__(self, process: DriverProcess) -> None:
        self.up = trio.Event()
        """Up, or over before it was up."""
        self.over = False
        self.fatal = False
        self.reason = ""
        self.tokenizer = ""
        self.process = process
        self._id = 0
        self._answer: Counted | RequestFailed | None = None
        self._answered = trio.Event()

    async def run(self) -> None:
        try:
            death: Death = await self.process.run(self._receive)
            self.fatal, self.reason = death.fatal, death.reason
        finally:
            self.over = True
            self.up.set()
            self._answered.set()

    async def ask(self, request: Count | CountPrompt) -> Counted | RequestFailed | None:
        """The answer, or ``None`` where the process died instead."""
        self._id, self._answer = request.id, None
        if self.over:
            return None
        self._answered = trio.Event()
        try:
            self.process.send(request)
        except WorldError as e:
            if e.errno is not Errno.EPIPE:
                raise
            # Its death is known and run() is about to say why; that ends the wait as well.
        await self._answered.wait()
        return self._answer

    def _receive(self, message: FromProcess) -> None:
        if isinstance(message, Up):
            self.tokenizer = message.tokenizer
            self.up.set()
        elif isinstance(message, Counted) and message.id == self._id:
            self._answer = message
            self._answered.set()
        elif isinstance(message, RequestFailed) and message.key == self._id:
            # An answer to a caller that was cancelled bears an older id and is let go.
            self._answer = message
            self._answered.set()


class BoundCounter:
    """Counts for a model whose tokenizer is not here: an upper bound, never waits.

    A token of a byte-level vocabulary stands for a byte at least, so a text has no more tokens
    than UTF-8 bytes. Around each message and around the prompt an allowance is made for what the
    endpoint's template writes.
    """

    name = "utf-8 bytes (upper bound)"
    bytes_a_token = 1

    async def count(self, texts: Sequence[str]) -> list[int]:
        return [self._count(text) for text in texts]

    async def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: str = "auto"
    ) -> int:
        said = sum(self._count(m.content or "") + TEMPLATE_MESSAGE for m in messages)
        made = sum(
            self._count(call.name + call.arguments + call.id) + TEMPLATE_CALL
            for message in messages
            for call in message.calls
        )
        # Endpoints are told of the tools whatever the choice.
        offered = sum(
            self._count(tool.name + tool.description + tool.parameters) + TEMPLATE_TOOL
            for tool in tools
        )
        return TEMPLATE + said + made + (TEMPLATE_TOOLS + offered if tools else 0)

    def _count(self, text: str) -> int:
        size = len(text.encode("utf-8", "surrogatepass"))
        return -(-size // self.bytes_a_token)


class EstimateCounter(BoundCounter):
    """An estimate, where the bound is too wide: a third of the bytes. English has about four bytes
    a token in the common vocabularies, so it holds for most texts, not for all: digits, rare
    scripts and code may have more tokens."""

    name = "utf-8 bytes / 3 (estimate)"
    bytes_a_token = 3


def _count(texts: tuple[str, ...], id: int) -> Count:
    return Count(id, texts)


def _count_prompt(
    messages: tuple[Message, ...], tools: tuple[Tool, ...], choice: str, id: int
) -> CountPrompt:
    return CountPrompt(id, messages, tools, choice)


def _batches(texts: dict[bytes, str]) -> Iterator[dict[bytes, str]]:
    """``texts`` in pieces of at most ``BATCH_BYTES`` (one longer text alone)."""
    batch: dict[bytes, str] = {}
    size = 0
    for key, text in texts.items():
        length = len(text.encode("utf-8", "surrogatepass"))
        if batch and size + length > BATCH_BYTES:
            yield batch
            batch, size = {}, 0
        batch[key] = text
        size += length
    if batch:
        yield batch


def counter_for(spec: ModelSpec, nursery: trio.Nursery) -> TokenCounter:
    """The counter of a model."""
    if spec.driver == "scripted":
        return ScriptedCounter()
    if spec.endpoint is not None and spec.endpoint.tokenizer == "bound":
        return BoundCounter()
    if spec.endpoint is not None and spec.endpoint.tokenizer == "estimate":
        return EstimateCounter()
    if spec.endpoint is not None:
        return ProcessCounter(nursery, ("counter", "--model", spec.endpoint.tokenizer))
    return ProcessCounter(nursery, ("counter", "--model", spec.path))
