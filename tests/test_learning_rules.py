"""The floor of learning: what goes to which stream by rules, and what is written of it."""

from __future__ import annotations

import string
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning_cases import CASES, FORM, Case

from isovist.kernel.learning import lexicon
from isovist.kernel.learning.facts import plain, words_of
from isovist.kernel.learning.rules import RuleSplitter, RuleWriter, split, write
from isovist.kernel.state.lessons import (
    CAP,
    Attempt,
    Brief,
    Held,
    Verdict,
)
from isovist.syscalls.records import Message, Stream

SCOPES = ("pair", "user", "agent", "global")
TASK = "Convert the CSV export with amounts to JSON."


def attempt(case: Case) -> Attempt:
    return Attempt(
        submission="s1",
        user="ana",
        agent="codex",
        task=case.task,
        trajectory=(
            Message("user", f"{case.task} {case.user}"),
            Message("assistant", "Let me look at the files."),
            Message("tool", case.tool),
            Message("assistant", case.said),
        ),
        outcome=msgspec.convert(case.outcome, Verdict),
        tail=case.tail,
    )


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_goes_where(case: Case) -> None:
    streams = split(attempt(case))
    reusable, protected = streams.reusable.lower(), streams.protected.lower()
    assert not [part for part in case.reusable if part not in reusable]
    assert not [part for part in case.never if part in reusable]
    assert not [part for part in case.protected if part not in protected]
    assert not [part for part in case.nowhere if part in reusable + protected]


async def test_both_take_part_as_splitter_and_writer() -> None:
    case = next(case for case in CASES if case.name == "a form read out")
    streams = await RuleSplitter().split(attempt(case))
    assert (streams.by, streams.cut) == ("rules", 0)
    for stream, scope in (("reusable", "global"), ("protected", "user")):
        made = await RuleWriter().write(brief(streams.reusable, stream=stream))  # type: ignore[arg-type]
        assert {one.scope for one in made} <= {scope}
    assert split(attempt(case)) == streams


@pytest.mark.parametrize("value", [line.split(": ")[1] for line in FORM.splitlines()])
def test_no_value_of_a_form_is_shared_even_where_the_agent_reads_it_out(value: str) -> None:
    for saying in (
        f"The form says {value}.",
        f"Lesson: the file must hold {value} in the first column.",
        f"Use `{value}` as the key when parsing the CSV file.",
        f'The parser fails on "{value}" because of the encoding.',
    ):
        case = Case("", TASK, f"{saying} Use the csv module.", tool=FORM)
        reusable = plain(split(attempt(case)).reusable).lower()
        assert "csv module" in reusable
        known = lexicon.FUNCTION | lexicon.ORDINARY | lexicon.TECHNICAL
        for word in words_of(value):
            if len(word) > 2 and word not in known:
                assert word not in words_of(reusable)


NAMES = st.text(string.ascii_lowercase, min_size=5, max_size=12).filter(
    lambda w: lexicon.stems([w])[0] not in lexicon.COMMON
)
NUMBERS = st.integers(10_000, 10**12).map(str)
FACTS = st.one_of(
    NAMES,
    NAMES.map(str.capitalize),
    NUMBERS,
    st.tuples(NAMES, NAMES).map(lambda two: f"{two[0].title()} {two[1].title()}"),
    st.tuples(NAMES, NAMES).map(lambda two: f"{two[0]}@{two[1]}.example"),
    st.tuples(NAMES, NUMBERS).map(lambda two: f"{two[0][:2].upper()}-{two[1]}"),
)
SAYINGS = (
    "{}", "The file is about {}.", "Use {} as the key.", "Lesson: always use {} with the parser.",
    "The column `{}` must be quoted.", 'The string "{}" is wrong; the parser fails.',
    "{} is what the CSV parser needs.", "The error is in /home/{}/run.py, line 3.",
    "owner: {}", "He said {}.", "I found that {} breaks the JSON encoder.",
    "Skip {}; sort the rest.",
)  # fmt: skip
PLACES = ("value: {}", "{}", "note to self: {} is the password hint", "x;{};y", "# {}", "id\t{}\t7")


@pytest.mark.promise("protected.stays")
@settings(max_examples=300, deadline=None)
@given(
    fact=FACTS,
    saying=st.sampled_from(SAYINGS),
    place=st.sampled_from(PLACES),
    role=st.sampled_from(("tool", "user")),
    outcome=st.sampled_from(get_args(Verdict)),
)
def test_what_was_read_or_said_is_never_shared(
    fact: str, saying: str, place: str, role: str, outcome: Verdict
) -> None:
    """A fact planted in a file or in a user's turn, which the agent then repeats as a lesson."""
    planted = Attempt(
        submission="s1",
        user="ana",
        agent="codex",
        task=TASK,
        trajectory=(
            Message("user", TASK),
            Message(role, place.format(fact)),  # type: ignore[arg-type]
            Message("assistant", f"{saying.format(fact)} Replace the comma with a dot."),
        ),
        outcome=outcome,
        claim=f"Done: {fact}",
    )
    shared = split(planted).reusable
    assert fact.lower() not in shared.lower()
    assert not {w for w in words_of(fact) if len(w) > 4} & set(words_of(shared))


def brief(
    text: str,
    *entries: Held,
    stream: Stream = "reusable",
    scopes: tuple[str, ...] = SCOPES,
    outcome: Verdict = "passed",
    agent: str = "codex",
) -> Brief:
    allowed = tuple(scope for scope in scopes if scope in CAP[stream])
    return Brief(
        stream=stream, text=text, entries=entries, scopes=allowed, outcome=outcome, agent=agent
    )


def held(situation: str, lesson: str, scope: str, stream: Stream = "reusable") -> Held:
    return Held(id="e1", version=1, situation=situation, lesson=lesson, scope=scope, stream=stream)


LEARNT = "task: Convert the CSV export to JSON.\nlesson: The amounts use a decimal comma.\n"
OWN = LEARNT + "own: In this harness the shell has no jq.\n"
WISHES = (
    "preference: Prefers dates as DD.MM.YYYY.\nhere: When you sign off, write the date first.\n"
)


@pytest.mark.parametrize(
    ("text", "stream", "scopes", "filed"),
    [
        (OWN, "reusable", SCOPES, ["global", "agent"]),
        (OWN, "reusable", ("global",), ["global", "global: agent"]),
        (OWN, "reusable", ("agent",), ["agent", "agent"]),
        (OWN, "reusable", ("user",), ["user", "user: agent"]),
        (OWN, "reusable", ("pair",), ["pair", "pair"]),
        (OWN, "reusable", ("pair", "user", "agent"), ["agent", "agent"]),
        (OWN, "reusable", ("pair", "user", "global"), ["global", "pair"]),
        (OWN, "reusable", (), []),
        (WISHES, "protected", SCOPES, ["user", "pair"]),
        (WISHES, "protected", ("user",), ["user", "user: agent"]),
        (WISHES, "protected", ("pair",), ["pair", "pair"]),
        (WISHES, "protected", ("global", "agent"), []),
    ],
)
def test_a_missing_scope_s_lesson_goes_to_the_nearest(
    text: str, stream: Stream, scopes: tuple[str, ...], filed: list[str]
) -> None:
    made = write(brief(text, stream=stream, scopes=scopes))
    conditions = [": agent" if "the agent is codex" in one.situation else "" for one in made]
    assert [f"{o.scope}{c}" for o, c in zip(made, conditions, strict=True)] == filed
    assert all(one.situation and one.lesson for one in made)
