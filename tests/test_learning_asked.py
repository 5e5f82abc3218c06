"""A splitter and a writer that ask a model: what they show it, and how they read its answers."""

from __future__ import annotations

import json

import pytest
from learning_helpers import Scripted, attempt, brief, cut, held

from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.roles import Splitter, Unusable, Writer
from isovist.kernel.state.lessons import Operation, Streams
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.records import Message

BOTH = "=== REUSABLE ===\nUse sort -g.\n=== PROTECTED ===\nAna likes short answers."
NEW = {"situation": "sorting numbers", "lesson": "Use sort -g.", "scope": "global"}


def operations(*items: object) -> str:
    return json.dumps({"operations": items})


async def test_a_splitter_makes_two_streams_of_the_marked_answer() -> None:
    model = Scripted(BOTH)
    splitter: Splitter = ModelSplitter(model)
    said = Message("user", "Sort it, please.")
    streams = await splitter.split(attempt(said, outcome="failed", tail="line 3 is wrong"))
    assert streams == Streams(
        reusable="Use sort -g.", protected="Ana likes short answers.", by="fake"
    )
    for words in ("Sort a file.", "Sort it, please.", "line 3 is wrong", "does not work"):
        assert words in model.shown()


async def test_a_writer_asks_by_schema_and_gives_back_the_ids_behind_short_names() -> None:
    model = Scripted(
        operations(NEW, {**NEW, "revises": "e2"}, {"delete": "e1", "reason": "it is wrong"})
    )
    writer: Writer = ModelWriter(model)
    wanted = await writer.write(brief(held("u-1"), held("u-2")))
    assert wanted == (
        Operation(**NEW),
        Operation(**NEW, revises="u-2"),
        Operation(delete="u-1", reason="it is wrong"),
    )
    assert "u-1" not in model.shown()
    (schema,) = model.schemas
    assert '"enum": ["e1", "e2"]' in schema
    assert '"enum": ["pair", "user", "agent", "global"]' in schema


async def test_an_empty_list_is_a_good_answer() -> None:
    assert await ModelWriter(Scripted(operations())).write(brief()) == ()


async def test_what_cannot_be_read_is_asked_again_with_what_was_wrong() -> None:
    model = Scripted("=== REUSABLE ===\nonly", BOTH)
    assert (await ModelSplitter(model).split(attempt())).reusable == "Use sort -g."
    assert "PROTECTED === is missing" in model.shown(1)
    assert "is missing" not in model.shown(0)


async def test_three_answers_that_cannot_be_read_are_the_end() -> None:
    for answer in ("secret-words", operations(NEW)[:-8], cut('{"operations": [')):
        model = Scripted(answer)
        with pytest.raises(Unusable) as e:
            await ModelWriter(model).write(brief())
        assert len(model.prompts) == 3
        assert "secret-words" not in str(e.value)


async def test_thoughts_before_an_answer_are_no_part_of_it() -> None:
    thought = "<think>\n=== REUSABLE ===\n{\n</think>\n\n"
    assert (await ModelSplitter(Scripted(thought + BOTH)).split(attempt())).reusable
    answer = f"{thought}```json\n{operations(NEW)}\n```"
    assert await ModelWriter(Scripted(answer)).write(brief()) == (Operation(**NEW),)
    with pytest.raises(Unusable):
        await ModelSplitter(Scripted(f"<think>\n{BOTH}")).split(attempt())


async def test_an_answer_without_end_counts_as_far_as_it_is_whole() -> None:
    endless = operations(NEW, NEW, {"delete": "e1", "reason": "it is } wrong"}, NEW)
    answer = cut(endless[: endless.index("global", 250)])
    wanted = await ModelWriter(Scripted(answer)).write(brief(held("u-1")))
    assert wanted == (Operation(**NEW), Operation(delete="u-1", reason="it is } wrong"))


async def test_a_splitter_that_does_not_manage_markers_is_asked_by_schema() -> None:
    model = Scripted("no", '{"reusable": "Use sort -g.", "protected": ""}')
    streams = await ModelSplitter(model).split(attempt())
    assert (streams.reusable, streams.protected) == ("Use sort -g.", "")
    assert [bool(schema) for schema in model.schemas] == [False, True]


async def test_a_model_without_schemas_is_asked_without() -> None:
    refuses = CallerError("the endpoint refuses the request", errno=Errno.EINVAL)
    model = Scripted(refuses, operations(NEW))
    assert await ModelWriter(model).write(brief()) == (Operation(**NEW),)
    assert [bool(schema) for schema in model.schemas] == [True, False]


async def test_a_prompt_that_is_too_long_is_shown_in_part() -> None:
    long = CallerError("prompt of 9000 tokens", errno=Errno.EMSGSIZE)
    model = Scripted(long, long, BOTH)
    turns = [Message("assistant", f"step {n} " + "x" * 300) for n in range(200)]
    await ModelSplitter(model).split(attempt(Message("user", "I want it short."), *turns))
    first, second, third = (len(model.shown(at)) for at in range(3))
    assert first > second > third
    assert "I want it short." in model.shown(2)
    assert "left out" in model.shown(2)


async def test_what_never_fits_is_the_callers_error() -> None:
    model = Scripted(CallerError("prompt of 9000 tokens", errno=Errno.EMSGSIZE))
    with pytest.raises(CallerError):
        await ModelWriter(model).write(brief(text="x" * 100_000))
    assert len(model.prompts) < 20


async def test_the_worlds_errors_are_passed_on() -> None:
    for part in (ModelSplitter, ModelWriter):
        model = Scripted(WorldError("busy", errno=Errno.EAGAIN))
        with pytest.raises(WorldError, match="busy"):
            await (
                part(model).split(attempt())
                if isinstance(part(model), ModelSplitter)
                else ModelWriter(model).write(brief())
            )
        assert len(model.prompts) == 1


async def test_a_model_that_never_answers_is_left_at_last(autojump_clock: object) -> None:
    with pytest.raises(WorldError) as e:
        await ModelSplitter(Scripted(None)).split(attempt())
    assert e.value.errno is Errno.ETIMEDOUT
