"""Splitter and writers through a real kernel: with the scripted model, with endpoints of any
manners, and with a small real model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from driver_helpers import real_model
from endpoint_helpers import Completions, Turn, completions, delta, event, refuses, says, streams
from kernel_helpers import client, config, running, short_folder
from learning_helpers import attempt, brief, held

from isovist.kernel.endpoints import Endpoint
from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.model import ChatModel
from isovist.kernel.learning.roles import Unusable
from isovist.kernel.models import ModelSpec, available
from isovist.kernel.state.lessons import MAX_OPERATIONS, Operation, Streams
from isovist.syscalls import messages as m
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.records import Message

NEW = {"situation": "sorting numbers", "lesson": "Use sort -g.", "scope": "global"}
ANSWER = json.dumps({"operations": [NEW]})
SAID = Message("user", "Sort prices.csv by price. Dates as 31.12.2025, please.")
TURN = Message("assistant", "sort -k2 compared texts; sort -k2 -g compares numbers.")


@asynccontextmanager
async def kernel(state: Path, **settings: Any) -> AsyncIterator[AsyncClient]:
    """A client of a kernel in which the user has something to be injected."""
    async with running(state, **settings) as one, client(one, "learner", operator=True) as k:
        await k.remember("Prices are sorted by hand.", user="ana")
        yield k


@asynccontextmanager
async def endpoint(*turns: Turn) -> AsyncIterator[tuple[Completions, ChatModel]]:
    with completions(*turns) as server, short_folder() as folder:
        far = Endpoint(url=server.url, model="m", tries=1, context=8192)
        models = available(config(Path(folder), endpoints={"far": far}))
        async with kernel(Path(folder), models=models, model="far") as k:
            yield server, await ChatModel.reach(k, "ana")


def calls(*made: tuple[str, object]) -> Turn:
    told = [
        {"index": at, "id": f"c{at}", "function": {"name": name, "arguments": json.dumps(given)}}
        for at, (name, given) in enumerate(made)
    ]
    return streams(
        event(**delta(tool_calls=told)), event(**delta("tool_calls")), b"data: [DONE]\n\n"
    )


async def test_the_scripted_model_learns_by_schema_and_by_tools(tmp_path: Path) -> None:
    async with kernel(tmp_path) as k:
        model = await ChatModel.reach(k, "ana")
        assert (model.name, model.context) == ("", 2048)
        streams = await ModelSplitter(model).split(attempt(SAID, TURN))
        assert streams.by == model.name == "scripted"
        assert streams.reusable
        assert await ModelWriter(model).write(brief(held("u-1"), text=streams.reusable)) == ()
        # It calls the tools that are named to it, again and again.
        with pytest.raises(Unusable, match="changed nothing"):
            await AgenticWriter(model).write(brief(held("u-1")))


async def test_a_question_has_a_deadline_and_the_kernel_lives_on(tmp_path: Path) -> None:
    async with kernel(tmp_path) as k:
        model = await ChatModel.reach(k, "ana")
        await model.ask([Message("user", "Are you up?")], max_tokens=8)
        hurried = await ChatModel.reach(k, "ana", deadline_ms=20)
        with pytest.raises(WorldError) as e:
            await hurried.ask([Message("user", "!script delay_ms=600000")], max_tokens=8)
        assert e.value.errno is Errno.ETIMEDOUT
        answer = await model.ask([Message("user", "!script text=here")], max_tokens=8)
        assert (answer.text, answer.user, answer.injected) == ("here", "ana", ())


async def test_an_endpoint_splits_writes_and_works_with_tools() -> None:
    marked = "=== REUSABLE ===\nsort -g compares numbers.\n=== PROTECTED ===\nDates as 31.12.2025."
    async with endpoint(
        says(marked), says(ANSWER), calls(("add_entry", NEW)), calls(("finish", {}))
    ) as (server, model):
        assert await ModelSplitter(model).split(attempt(SAID, TURN)) == Streams(
            reusable="sort -g compares numbers.", protected="Dates as 31.12.2025.", by="far"
        )
        assert await ModelWriter(model).write(brief()) == (Operation(**NEW),)
        assert await AgenticWriter(model).write(brief()) == (Operation(**NEW),)
    form = server.seen[1]["response_format"]
    assert form["json_schema"]["strict"] is True
    assert [request.get("tool_choice") for request in server.seen] == [
        None, None, "required", "required",
    ]  # fmt: skip
    assert [one["role"] for one in server.seen[3]["messages"]] == [
        "system", "user", "assistant", "tool",
    ]  # fmt: skip
    assert "by hand" not in json.dumps(server.seen), "memory was injected"


@pytest.mark.parametrize(
    "first",
    [refuses(400), says(f"```json\n{ANSWER}\n```")],
    ids=["no schemas", "schemas not heeded"],
)
async def test_an_endpoint_without_schemas_is_asked_without(first: Turn) -> None:
    async with endpoint(first, says(f"```json\n{ANSWER}\n```")) as (server, model):
        assert await ModelWriter(model).write(brief()) == (Operation(**NEW),)
    assert ["response_format" in request for request in server.seen] == [True, False]


async def test_an_endpoint_that_is_down_is_the_worlds_fault() -> None:
    async with endpoint(*[refuses(503)] * 9) as (_, model):
        for ask in (
            lambda: ModelSplitter(model).split(attempt(SAID)),
            lambda: ModelWriter(model).write(brief()),
            lambda: AgenticWriter(model).write(brief()),
        ):
            with pytest.raises(WorldError):
                await ask()


class Terse:
    """A model that is stopped early, so that a test need not wait for all that it would say."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def context(self) -> int:
        return self._model.context

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, **options: Any
    ) -> m.Chatted:
        return await self._model.ask(messages, max_tokens=min(max_tokens, 64), **options)


async def test_a_small_real_model_breaks_nothing() -> None:
    """What it answers is its own affair; that it comes to an end of the known kinds is ours
    (`bench learners` lets it finish its words)."""
    spec = ModelSpec(name="real", driver="llama", path=real_model(), context=1024)
    long = [Message("assistant", f"step {n} " + "sort " * 200) for n in range(30)]
    with short_folder() as folder:
        async with kernel(Path(folder), models=[spec], model="real") as k:
            model = Terse(await ChatModel.reach(k, "ana"))
            assert model.context == 1024
            with contextlib.suppress(Unusable):
                split = await ModelSplitter(model).split(attempt(SAID, *long, TURN))
                assert split.by == "real"
            for writer in (ModelWriter(model), AgenticWriter(model)):
                with contextlib.suppress(Unusable):
                    assert len(await writer.write(brief(held("u-1")))) <= MAX_OPERATIONS
            assert (await model.ask([Message("user", "Say yes.")], max_tokens=4)).model == "real"
