"""What the tests of learning with models share: a model that answers from a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
from fakes import chatted
from msgspec.structs import replace

from isovist.kernel.state.lessons import Attempt, Brief, Held, Verdict
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Stream, Tool, ToolCall

Answer = str | Chatted | IsovistError | tuple[ToolCall, ...] | None
"""A text, a whole reply, an error that is raised, calls of tools; or silence without an end."""


class Scripted:
    """A model that gives ``answers`` in order, and the last of them for ever. What it was asked
    stays in ``prompts``, ``schemas``, ``tools`` and ``choices``."""

    def __init__(self, *answers: Answer | Callable[[], Answer], context: int = 2048) -> None:
        self._answers, self.context = answers, context
        self.name = ""
        self.prompts: list[tuple[Message, ...]] = []
        self.schemas: list[str] = []
        self.tools: list[tuple[Tool, ...]] = []
        self.choices: list[str] = []

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
    ) -> Chatted:
        await trio.lowlevel.checkpoint()
        at = min(len(self.prompts), len(self._answers) - 1)
        self.prompts.append(tuple(messages))
        self.schemas.append(schema)
        self.tools.append(tuple(tools))
        self.choices.append(choice)
        answer = self._answers[at]
        if callable(answer):
            answer = answer()
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, IsovistError):
            raise answer
        self.name = "fake"
        if isinstance(answer, Chatted):
            return answer
        if isinstance(answer, tuple):
            return replace(chatted(""), calls=answer)
        assert isinstance(answer, str)
        return chatted(answer)

    def shown(self, at: int = -1) -> str:
        """All that one question showed the model."""
        return "\n".join(message.content or "" for message in self.prompts[at])


def cut(text: str) -> Chatted:
    """An answer that ends where its tokens did."""
    return replace(chatted(text), finish="length")


def attempt(*turns: Message, outcome: Verdict = "passed", **fields: str) -> Attempt:
    given = {"submission": "s1", "user": "ana", "agent": "coder", "task": "Sort a file.", **fields}
    return Attempt(trajectory=turns, outcome=outcome, **given)


def brief(
    *entries: Held,
    stream: Stream = "reusable",
    text: str = "sort -g sorts numbers.",
    scopes: tuple[str, ...] = (),
    outcome: Verdict = "passed",
) -> Brief:
    """A brief with all the scopes of its stream, where none are given."""
    all_scopes = ("pair", "user") if stream == "protected" else ("pair", "user", "agent", "global")
    return Brief(
        stream=stream,
        text=text,
        entries=entries,
        scopes=scopes or all_scopes,
        outcome=outcome,
        agent="coder",
    )


def held(id: str, situation: str = "sorting", lesson: str = "Use sort.", **fields: str) -> Held:
    given = {"scope": "user", "stream": "reusable", **fields}
    return Held(id=id, version=1, situation=situation, lesson=lesson, **given)  # type: ignore[arg-type] # words of a test
