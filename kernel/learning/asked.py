"""A splitter and a writer that ask a model once each, and again where the answer cannot be read.

The model is not trusted. What it answers passes :mod:`~isovist.kernel.learning.answers`, which
sees to its form, and then the kernel's own scan and rules, which see to all else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from isovist.kernel.learning import answers, prompts
from isovist.kernel.learning.answers import Unreadable
from isovist.kernel.learning.roles import Model, Unusable
from isovist.kernel.models import DEFAULT_CONTEXT
from isovist.kernel.state.lessons import Attempt, Brief, Operation, Streams
from isovist.syscalls.errors import Errno, IsovistError, WorldError
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Tool

TRIES = 3
"""Answers that are looked at before a model is given up [issue 5]."""
PATIENCE_S = 600.0
"""How long one answer may take, whatever deadline the model itself keeps."""
REPLY, REPLY_SHARE = 2048, 4
"""Tokens of an answer: so many, and one part in so many of the context, at most."""
CHARACTERS = 3
"""Of a token, on the careful side of English; where it is fewer, less is shown in another try."""
MOST_SHOWN = 160_000
"""Characters that are shown, however large a context: they fit a frame in any script."""
LEAST_SHOWN = 200

T = TypeVar("T")
Prompt = Callable[[int], tuple[Sequence[Message], str]]
"""What is asked in so many characters of data, and the schema of the answer (empty: none)."""


class ModelSplitter:
    """Splits by one question to ``model``: by markers, and where it does not manage these, by
    schema."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def split(self, attempt: Attempt) -> Streams:
        """Raises :class:`Unusable`, and what the model raises."""

        def marked(room: int) -> tuple[Sequence[Message], str]:
            return prompts.split(attempt, room), ""

        def by_schema(room: int) -> tuple[Sequence[Message], str]:
            return prompts.split(attempt, room), prompts.SPLIT_SCHEMA

        asking = Asking(self._model, len(prompts.SPLIT))
        ways = [(marked, _marked), (by_schema, _either), (marked, _marked)]
        reusable, protected = await asking.until_read(ways)
        return Streams(reusable=reusable, protected=protected, by=self._model.name)


def _marked(answer: Chatted) -> tuple[str, str]:
    # Both markers are there or it is of no use; the last text may lack its end.
    return answers.streams(answer.text)


def _either(answer: Chatted) -> tuple[str, str]:
    """The streams as JSON, or marked all the same: not every model heeds a schema."""
    try:
        return answers.streams_of_json(answer.text)
    except Unreadable:
        return _marked(answer)


class ModelWriter:
    """Writes by one answer of ``model``, JSON by schema. It knows nothing but its brief, so two
    calls never share a context [M]."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def write(self, brief: Brief) -> tuple[Operation, ...]:
        """Raises :class:`Unusable`, and what the model raises."""
        if nothing_to_learn(brief):
            return ()
        shown = prompts.Shown(brief, 0)

        def prompt(room: int) -> tuple[Sequence[Message], str]:
            nonlocal shown
            shown = prompts.Shown(brief, room)
            return prompts.write(brief, shown), prompts.write_schema(brief, shown)

        def read(answer: Chatted) -> tuple[Operation, ...]:
            text = answers.whole(answer.text) if answer.finish == "length" else answer.text
            return answers.operations(text, shown.names)

        instructions, _ = prompt(0)
        asking = Asking(self._model, len(instructions[0].content or ""))
        return await asking.until_read([(prompt, read)] * TRIES)


def nothing_to_learn(brief: Brief) -> bool:
    """Whether no model need be asked: there are no notes; or nothing shows that they are true, as
    an error or a time-out establishes nothing of what was tried [M]. What a person said of
    themselves needs no verdict."""
    untold = brief.stream == "reusable" and brief.outcome in ("error", "timeout")
    return untold or not brief.text.strip() or not brief.scopes


class Refused(Unreadable):
    """The model did not take the schema or the tools, or could not follow them: ``error``."""

    def __init__(self, error: IsovistError) -> None:
        super().__init__("it is not in the form asked for")
        self.error = error


class Asking:
    """One question to a model, in as many tries as it takes: shorter where it was too long, less
    strictly where the model takes no schema or no demand for a call, with a word of what was wrong
    where the answer could not be read. ``instructions``: characters of the prompt beside the data;
    ``share``: what part of the context is the answer's, as one in so many."""

    def __init__(self, model: Model, instructions: int, share: int = REPLY_SHARE) -> None:
        self._model = model
        context = model.context or DEFAULT_CONTEXT
        self.max_tokens = max(1, min(REPLY, context // share))
        room = (context - self.max_tokens) * CHARACTERS - instructions
        self.room = max(LEAST_SHOWN, min(room, MOST_SHOWN))
        self._strict = True
        self._failures, self._why = 0, ""

    async def until_read(self, ways: Sequence[tuple[Prompt, Callable[[Chatted], T]]]) -> T:
        """What the first answer that can be read says; each of three tries has its own prompt and
        reader. Raises what :meth:`again` raises."""
        while True:
            prompt, read = ways[self._failures]
            try:
                return read(await self.fitting(prompt))
            except Unreadable as e:
                self.again(e)

    def again(self, e: Unreadable) -> None:
        """Ask once more, with a word of what was wrong. Raises :class:`Unusable` after the last of
        three tries, or what the model itself has raised."""
        self._failures += 1
        if self._failures < TRIES:
            self._why = prompts.again(str(e), self._failures)
        elif isinstance(e, Refused):
            raise e.error
        else:
            raise Unusable(f"no answer of {TRIES} could be used; of the last, {e}")

    async def fitting(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> Chatted:
        """The answer to the prompt in as much room as the model has; where ``tools`` are offered
        it has to call one. Raises what the model raises where even the least does not fit, and
        :class:`Refused` where it is to be asked less strictly from now on."""
        why, self._why = self._why, ""
        while True:
            messages, schema = prompt(self.room)
            if why:
                messages = (*messages, Message("user", why))
            schema = schema if self._strict else ""
            try:
                return await self._ask(messages, schema, tools)
            except IsovistError as e:
                if e.errno is Errno.EMSGSIZE and self.room > LEAST_SHOWN:
                    self.room = max(LEAST_SHOWN, self.room // 2)
                elif (schema or tools) and e.errno in (Errno.EINVAL, Errno.EIO):
                    self._strict = False
                    raise Refused(e) from None
                else:
                    raise

    async def _ask(
        self, messages: Sequence[Message], schema: str, tools: Sequence[Tool]
    ) -> Chatted:
        with trio.move_on_after(PATIENCE_S):
            return await self._model.ask(
                messages,
                max_tokens=self.max_tokens,
                schema=schema,
                tools=tools,
                choice="required" if tools and self._strict else "auto",
            )
        raise WorldError("the model does not answer", errno=Errno.ETIMEDOUT)
