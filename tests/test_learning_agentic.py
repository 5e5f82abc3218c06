"""The writer that works with tools: what it offers, shows and takes back."""

from __future__ import annotations

import json

import pytest
from learning_attacks import calls
from learning_helpers import Scripted, brief, held

from isovist.kernel.learning.agentic import TURNS, AgenticWriter, tools
from isovist.kernel.learning.roles import Unusable, Writer
from isovist.kernel.state.answers import check_tools, check_turns
from isovist.kernel.state.lessons import Operation
from isovist.syscalls.errors import CallerError, Errno

NEW = {"situation": "sorting numbers", "lesson": "Use sort -g.", "scope": "global"}
FINISH = ("finish", {})


async def test_it_looks_changes_takes_back_and_finishes() -> None:
    model = Scripted(
        calls(("list_entries", {})),
        calls(("read_entry", {"entry": "e2"})),
        calls(("add_entry", {**NEW, "lesson": "Use sort -n."})),
        calls(("undo", {})),
        calls(("add_entry", NEW), ("delete_entry", {"entry": "e2", "reason": "it is wrong"})),
        calls(("revise_entry", {"entry": "e1", **NEW, "scope": "user"}), FINISH),
    )
    writer: Writer = AgenticWriter(model)
    entries = (held("u-1", "sorting words"), held("u-2", "sorting dates", "Use sort -M."))
    assert await writer.write(brief(*entries)) == (
        Operation(**NEW),
        Operation(delete="u-2", reason="it is wrong"),
        Operation(**{**NEW, "scope": "user"}, revises="u-1"),
    )
    # A lesson is shown when it is read, and not before.
    assert "When sorting dates" in model.shown(1)
    assert "Use sort -M." not in model.shown(1)
    assert "Use sort -M." in model.shown(2)
    assert "Changes so far:\n1. add: When sorting numbers: Use sort -n." in model.shown(3)
    assert "Changes so far" not in model.shown(4)
    assert "u-1" not in "".join(model.shown(at) for at in range(6))
    for messages in model.prompts:
        check_turns(messages)


async def test_a_turn_without_a_call_ends_the_work() -> None:
    model = Scripted(calls(("add_entry", NEW)), "That was all.")
    assert await AgenticWriter(model).write(brief()) == (Operation(**NEW),)


async def test_the_last_word_on_an_entry_counts() -> None:
    model = Scripted(
        calls(
            ("revise_entry", {"entry": "e1", **NEW}),
            ("delete_entry", {"entry": "e1", "reason": "it is wrong"}),
            ("revise_entry", {"entry": "e1", **NEW, "lesson": "Use sort -n."}),
            FINISH,
        )
    )
    assert await AgenticWriter(model).write(brief(held("u-1"))) == (
        Operation(**{**NEW, "lesson": "Use sort -n."}, revises="u-1"),
    )


async def test_what_is_not_done_says_why_and_changes_nothing() -> None:
    model = Scripted(
        calls(
            ("add_entry", {**NEW, "scope": "agent"}),
            ("add_entry", {**NEW, "situation": " "}),
            ("revise_entry", {"entry": "u-1", **NEW}),
            ("delete_entry", {"entry": "e1", "reason": ""}),
            ("read_entry", {"entry": "e9"}),
            ("undo", {}),
        ),
        calls(FINISH),
    )
    assert await AgenticWriter(model).write(brief(held("u-1"), scopes=("global",))) == ()
    for why in ("must be one of global", "without a situation", "no such entry", "has no reason",
                "nothing to undo"):  # fmt: skip
        assert why in model.shown(1)


async def test_a_turn_with_one_call_that_cannot_be_read_does_nothing() -> None:
    model = Scripted(calls(("add_entry", NEW), ("grant", {})), calls(FINISH))
    assert await AgenticWriter(model).write(brief()) == ()
    assert "there is no such tool" in model.shown(1)
    assert "grant" not in model.shown(1)


async def test_a_call_is_demanded_until_a_model_refuses_that() -> None:
    refuses = CallerError("the endpoint refuses the request", errno=Errno.EINVAL)
    model = Scripted(calls(("undo", {})), refuses, calls(FINISH))
    assert await AgenticWriter(model).write(brief()) == ()
    assert model.choices == ["required", "required", "auto"]


async def test_a_model_that_does_the_same_again_is_told_and_left() -> None:
    model = Scripted(calls(("list_entries", {})))
    with pytest.raises(Unusable, match="changed nothing"):
        await AgenticWriter(model).write(brief(held("u-1")))
    assert len(model.prompts) == 4


async def test_it_has_so_many_turns_and_no_more() -> None:
    many = [calls(("add_entry", {**NEW, "lesson": f"Use {n}."})) for n in range(TURNS)]
    model = Scripted(*many, calls(FINISH))
    with pytest.raises(Unusable, match="12 turns"):
        await AgenticWriter(model).write(brief())
    assert len(model.prompts) == TURNS


async def test_a_long_conversation_is_shown_in_part_and_stays_one() -> None:
    entries = [held(f"u-{n}", f"case {n} " + "x" * 300, "y" * 1500) for n in range(12)]
    model = Scripted(
        *(calls(("read_entry", {"entry": f"e{n}"}), ("list_entries", {})) for n in range(1, 11)),
        calls(FINISH),
        context=2048,
    )
    assert await AgenticWriter(model).write(brief(*entries, text="note " * 2000)) == ()
    lengths = [len(model.shown(at)) for at in range(11)]
    assert max(lengths) < 2048 * 3
    for messages in model.prompts:
        check_turns(messages)


def test_only_what_can_be_done_is_offered() -> None:
    offered = tools(brief(scopes=("user",)))
    assert [tool.name for tool in offered] == ["add_entry", "undo", "finish"]
    (add, *_) = offered
    assert json.loads(add.parameters)["properties"]["scope"]["enum"] == ["user"]
    offered = tools(brief(held("u-1"), held("u-2")))
    check_tools(offered, "required")
    (revise,) = [tool for tool in offered if tool.name == "revise_entry"]
    assert json.loads(revise.parameters)["properties"]["entry"]["enum"] == ["e1", "e2"]
