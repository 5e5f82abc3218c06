"""The floor of learning: what goes to which stream by rules, and what is written of it."""

from __future__ import annotations

import string
import sys
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_cases import CASES, FORM, Case

from isovist.kernel.learning import lexicon
from isovist.kernel.learning.facts import plain, words_of
from isovist.kernel.learning.rules import RuleSplitter, RuleWriter, split, write
from isovist.kernel.learning.rules.writer import ANY
from isovist.kernel.learning.values import plain_number
from isovist.kernel.state.lessons import (
    CAP,
    MAX_LESSON,
    MAX_OPERATIONS,
    MAX_SITUATION,
    Attempt,
    Brief,
    Held,
    Verdict,
)
from isovist.syscalls.records import Message, Stream, ToolCall

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
        made = await RuleWriter().write(brief(streams.reusable, stream=stream))  # type: ignore[arg-type] # of a table of cases
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
NUMBERS = st.integers(10_000, 10**12).map(str).filter(lambda n: not plain_number(n))
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
    "owner: {}", "He said {}.", "I found that {} breaks the encoder.", "Skip {}; sort the rest.",
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
            Message(role, place.format(fact)),  # type: ignore[arg-type] # of a table of cases
            Message("assistant", f"{saying.format(fact)} Replace the comma with a dot."),
        ),
        outcome=outcome,
        claim=f"Done: {fact}",
    )
    shared = split(planted).reusable
    assert fact.lower() not in shared.lower()
    assert not {w for w in words_of(fact) if len(w) > 4} & set(words_of(shared))


UNITS = (
    "The CSV parser fails. ",
    "Aa ",
    "a.",
    "name is Bob\n",
    "`a` ",
    "my reports ",
    "1-2 ",
    "- x\n",
)


@pytest.mark.parametrize("role", ["assistant", "tool", "user"])
@pytest.mark.parametrize("unit", UNITS)
def test_the_work_grows_with_the_attempt_and_no_faster(unit: str, role: str) -> None:
    """Counted in calls of functions."""

    def calls(size: int) -> int:
        said = Message(role, unit * (size // len(unit)))  # type: ignore[arg-type] # of a table of cases
        long = Attempt(
            submission="s1", user="ana", agent="codex", task=TASK, trajectory=(said,), tail=TASK
        )
        count = 0

        def each(_frame: object, _event: str, _arg: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(each)
        try:
            split(long)
        finally:
            sys.setprofile(None)
        return count

    calls(1000)  # what is worked out once a character
    assert calls(16_000) <= 2.3 * calls(8_000) + 500


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


def test_a_lesson_has_the_task_for_its_situation_and_a_wish_any() -> None:
    (lesson,) = write(brief(LEARNT))
    assert lesson.situation == "the task is like: Convert the CSV export to JSON."
    assert lesson.lesson == "The amounts use a decimal comma."
    first, second = write(brief(WISHES, stream="protected"))
    assert first.situation == second.situation == ANY
    assert first.lesson == "Prefers dates as DD.MM.YYYY."


@pytest.mark.parametrize(
    ("text", "outcome", "lessons"),
    [
        (LEARNT, "passed", ["The amounts use a decimal comma."]),
        (LEARNT, "failed", []),
        (LEARNT, "error", []),
        (LEARNT, "timeout", []),
        (LEARNT, "unknown", []),
        ("task: Sort it.\nperhaps: Use sort -V.", "unknown", ["Unverified: Use sort -V."]),
        ("task: Sort it.\nperhaps: Use sort -V.", "passed", []),
        ("task: Sort it.\ntried: Use sort -n.\ncheck said: 1.10 must follow 1.9", "failed",
         ["A check rejected an attempt: 1.10 must follow 1.9."]),
        ("task: Sort it.\ncheck said: 1.10 must follow 1.9", "error", []),
        ("lesson: Use sort -V.", "passed", []),
        ("When sorting version numbers, use sort -V.", "passed", ["Use sort -V."]),
        ("When sorting version numbers, use sort -V.", "unknown", ["Unverified: use sort -V."]),
        ("", "passed", []),
        ("lorem ipsum\x00\ud800 " * 99, "passed", []),
    ],
)  # fmt: skip
def test_a_verdict_says_what_is_established(
    text: str, outcome: Verdict, lessons: list[str]
) -> None:
    made = write(brief(text, outcome=outcome))
    assert [one.lesson.lower() for one in made] == [lesson.lower() for lesson in lessons]


SORT = "the task is like: Sort the version numbers."
SORTING = "task: Sort the version numbers.\n"


@pytest.mark.parametrize(
    ("entry", "text", "outcome", "expected"),
    [
        # Said already, in other words: nothing.
        (held(SORT, "Use sort -V.", "global"), SORTING + "lesson: use sort -V", "passed", None),
        # A second lesson of one task stands beside the first, alone.
        (
            held(SORT, "Use sort -V.", "global"),
            SORTING + "lesson: Use sort -V.\nlesson: Drop empty lines before sorting.",
            "passed",
            ("", "Drop empty lines before sorting."),
        ),
        # What was unverified is established now.
        (
            held(SORT, "Unverified: Use sort -V.", "global"),
            SORTING + "lesson: Use sort -V.",
            "passed",
            ("e1", "Use sort -V."),
        ),
        # What is established stays so.
        (held(SORT, "Use sort -V.", "global"), SORTING + "perhaps: Use sort -V.", "unknown", None),
        # The later verdict on the same thing takes the earlier one's place.
        (
            held(SORT, "Do not use the sort option -V.", "global"),
            SORTING + "lesson: Use the sort option -V.",
            "passed",
            ("e1", "Use the sort option -V."),
        ),
        # Another task's lesson is another lesson.
        (
            held("the task is like: Draw a map.", "Use sort -V.", "global"),
            SORTING + "lesson: Use sort -V.",
            "passed",
            ("", "Use sort -V."),
        ),
        # What an attempt has tried, and a check rejected.
        (
            held(SORT, "Unverified: Use plain sort.", "global"),
            SORTING + "tried: Use plain sort.",
            "failed",
            ("delete", "e1"),
        ),
        (
            held(SORT, "Use plain sort.", "global"),
            SORTING + "tried: Use plain sort.",
            "failed",
            None,
        ),
    ],
)
def test_what_there_is_already_is_not_said_twice(
    entry: Held, text: str, outcome: Verdict, expected: tuple[str, str] | None
) -> None:
    made = write(brief(text, entry, outcome=outcome))
    told = [("delete", o.delete) if o.delete else (o.revises, o.lesson) for o in made]
    assert told == ([] if expected is None else [expected])
    assert all(bool(o.delete) == bool(o.reason) for o in made)


@pytest.mark.parametrize(
    ("old", "new", "revises"),
    [
        ("Prefers dates as DD.MM.YYYY.", "Prefers dates as ISO 8601.", True),
        ("Prefers dates as DD.MM.YYYY.", "Prefers tables over lists.", False),
        ("Wants metric units.", "Wants imperial units from now on.", True),
        ("Prefers a formal tone.", "Prefers a casual tone.", True),
        ("Prefers tables with a caption.", "Prefers no tables wider than five columns.", False),
    ],
)
def test_a_changed_wish_takes_the_place_of_the_old_one(old: str, new: str, revises: bool) -> None:
    entry = held(ANY, old, "user", "protected")
    (made,) = write(brief(f"preference: {new}", entry, stream="protected", outcome="error"))
    assert (made.revises, made.lesson, made.scope) == ("e1" if revises else "", new, "user")
    again = held(ANY, new, "user", "protected")
    assert write(brief(f"preference: {new}", again, stream="protected")) == ()


@settings(max_examples=100, deadline=None)
@given(
    text=st.lists(
        st.tuples(
            st.sampled_from(("task", "lesson", "own", "check said", "preference", "here", "context",
                             "remark", "perhaps", "tried", "about", "")),
            st.text(max_size=3000),
        ),
        max_size=40,
    ).map(lambda lines: "\n".join(f"{label}: {said}" for label, said in lines)),
    stream=st.sampled_from(("reusable", "protected")),
    scopes=st.sets(st.sampled_from(SCOPES)).map(tuple),
    outcome=st.sampled_from(get_args(Verdict)),
)  # fmt: skip
def test_whatever_the_text_the_operations_are_within_the_rules(
    text: str, stream: Stream, scopes: tuple[str, ...], outcome: Verdict
) -> None:
    made = write(brief(text, stream=stream, scopes=scopes, outcome=outcome))
    assert len(made) <= MAX_OPERATIONS
    for one in made:
        assert one.scope in scopes
        assert one.scope in CAP[stream]
        assert 0 < len(one.situation) <= MAX_SITUATION
        assert 0 < len(one.lesson) <= MAX_LESSON
        assert len(one.situation.splitlines()) == 1


def test_what_is_said_of_a_tool_by_its_name_is_of_this_agent() -> None:
    said = "The read_file tool returns only the first 60 lines, so long files need several calls."
    for called, label in (("read_file", "own"), ("read", "lesson")):
        turns = (
            Message("user", "Count the errors."),
            Message("assistant", "", calls=(ToolCall(called, "{}", "call00001"),)),
            Message("tool", "x", call="call00001"),
            Message("assistant", said),
        )
        attempt = Attempt(
            submission="s", user="ana", agent="coder", task="Count the errors in the log.",
            trajectory=turns, outcome="passed",
        )  # fmt: skip
        assert f"{label}: The read_file tool returns" in split(attempt).reusable


def test_a_quirk_is_filed_where_it_shows_and_not_with_the_task() -> None:
    text = (
        "task: Sort the export by date.\n"
        "own: The read_file tool returns only the first 60 lines.\n"
        "own: This sandbox has no access to the network."
    )
    scopes = ("pair", "user", "agent", "global")
    brief = Brief(stream="reusable", text=text, entries=(), scopes=scopes, outcome="failed")
    assert [(o.scope, o.situation) for o in write(brief)] == [
        ("agent", "doing any task with the tool read_file"),
        ("agent", "doing any task in this agent's own surroundings"),
    ]
    alone = msgspec.structs.replace(brief, scopes=("global",), agent="coder")
    assert [o.situation for o in write(alone)] == [
        "the agent is coder and doing any task with the tool read_file",
        "the agent is coder and doing any task in this agent's own surroundings",
    ]


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_how_a_tool_behaves_is_seen_whatever_the_verdict(outcome: str) -> None:
    case = Case("", "Sort the lines.", "My edit tool drops the last line end.", outcome=outcome)
    assert "own: My edit tool drops the last line end." in split(attempt(case)).reusable
