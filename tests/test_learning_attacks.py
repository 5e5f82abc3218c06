"""Broken and hostile answers: reading them is total, bounded and typed (what the whole kernel makes
of them is tested with the pipeline)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_attacks import ATTACKS, ATTEMPT, Attack, Hostile, asked_by, asks_for
from learning_helpers import Scripted, brief, held

from isovist.kernel.learning import answers
from isovist.kernel.learning.agentic import TURNS, AgenticWriter
from isovist.kernel.learning.answers import Unreadable
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.roles import Unusable
from isovist.kernel.state.lessons import MAX_LESSON, MAX_OPERATIONS, MAX_SITUATION, Operation
from isovist.syscalls.errors import CallerError, IsovistError, WorldError

SHOWN = (held("u-1"), held("u-2"))


async def carried_out(attack: Attack, model: Scripted) -> tuple[object, ...]:
    """What the part that is attacked gives."""
    if attack.part == "splitter":
        streams = await ModelSplitter(model).split(ATTEMPT)
        return tuple(text for text in (streams.reusable, streams.protected) if text)
    writer = AgenticWriter(model) if attack.part == "agentic" else ModelWriter(model)
    stream = "protected" if attack.part == "protected" else "reusable"
    return await writer.write(brief(*SHOWN, stream=stream))


async def end_of(attack: Attack, model: Scripted) -> tuple[object, ...] | Exception:
    try:
        return await carried_out(attack, model)
    except (Unusable, IsovistError) as e:
        return e


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.part}: {attack.name}")
async def test_every_answer_comes_to_a_typed_end(attack: Attack, autojump_clock: object) -> None:
    model = Scripted(*attack.answers())
    end = await end_of(attack, model)
    match attack.end:
        case "unusable":
            assert isinstance(end, Unusable)
            # Its text is shown to people and kept in logs.
            assert len(str(end)) < 300
            assert not any(value in str(end) for value in (*attack.never, *attack.stays))
        case "world":
            assert isinstance(end, WorldError)
        case "caller":
            assert isinstance(end, CallerError)
        case "nothing":
            assert end == ()
        case "something":
            assert isinstance(end, tuple)
            assert 0 < len(end) <= MAX_OPERATIONS
            for wanted in end:
                if isinstance(wanted, Operation):
                    assert len(wanted.situation) <= MAX_SITUATION
                    assert len(wanted.lesson) <= MAX_LESSON
                    assert bool(wanted.delete) != bool(wanted.situation and wanted.lesson)
    # Bounded: so many questions, none longer than the model takes.
    assert len(model.prompts) <= TURNS
    longest = max(len(model.shown(at)) for at in range(len(model.prompts)))
    assert longest < model.context * 4


def test_the_table_is_large_and_each_case_is_another() -> None:
    assert len({(attack.part, attack.name) for attack in ATTACKS}) == len(ATTACKS) >= 40


async def test_a_hostile_model_answers_its_part_alone() -> None:
    for attack in ATTACKS:
        told = Hostile(attack)
        for part in ("splitter", "reusable", "protected", "agentic"):
            model = Scripted("")
            if part == attack.part:
                continue
            with pytest.raises(Unusable):
                await carried_out(Attack("", part, tuple, "unusable"), model)
            messages = model.prompts[0]
            tools = bool(model.tools[0])
            assert asked_by(messages[0].content or "", tools=tools) == part
            answer = told(messages, tools=tools)
            if part == "splitter":
                assert answers.streams(str(answer))[0]
            elif part == "agentic":
                assert isinstance(answer, tuple)
            else:
                assert answer == asks_for()


TEXTS = st.text(st.characters(codec=None), max_size=60) | st.sampled_from(
    [
        "global",
        "e1",
        "=== REUSABLE ===",
        "=== PROTECTED ===",
        "```json\n",
        "\n```",
        "NaN",
        "\\ud800",
    ]
)
FIELDS = st.sampled_from(
    ["situation", "lesson", "scope", "revises", "delete", "reason", "operations"]
)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.floats() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS | TEXTS, inner, max_size=6),
)
ANSWERS = (
    st.lists(TEXTS, max_size=12).map("\n".join)
    | VALUES.map(json.dumps)
    | st.lists(st.dictionaries(FIELDS, TEXTS, max_size=4), max_size=3).map(lambda o: asks_for(*o))
)


def read(reader: Callable[[str], object], answer: str) -> object:
    """What ``reader`` makes of it; ``None`` where that is unreadable."""
    with contextlib.suppress(Unreadable):
        return reader(answer)
    return None


@settings(deadline=None)
@given(ANSWERS, st.integers(0, 400))
def test_readers_are_total(answer: str, end: int) -> None:
    for text in (answer, answer[:end], answers.whole(answer[:end])):
        found = read(lambda text: answers.operations(text, {"e1": "u-1"}), text)
        for wanted in found if isinstance(found, tuple) else ():
            if not wanted.delete:
                assert wanted.situation == " ".join(wanted.situation.split()) != ""
                assert wanted.lesson
                assert wanted.scope
        for reader in (answers.streams, answers.streams_of_json):
            both = read(reader, text)
            for stream in both if isinstance(both, tuple) else ():
                assert stream.encode().decode() == stream
