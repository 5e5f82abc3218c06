"""What models are shown: the rules in words, and no more of an attempt than fits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import Scripted, attempt, brief, held

from isovist.kernel.learning import answers, fitting, prompts
from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.state.lessons import CAP, VERDICTS, Verdict
from isovist.syscalls.records import Message, ToolCall

PERSON, AGENT, RESULT = (
    Message("user", "Dates as 31.12.2025, please."),
    Message("assistant", "I sort.", (ToolCall("shell", '{"run": "sort -g"}', "c1"),)),
    Message("tool", "sorted", call="c1"),
)


def test_an_attempt_that_fits_is_told_whole() -> None:
    told = prompts.told(attempt(PERSON, AGENT, RESULT, outcome="failed", tail="row 3"), 4000)
    for words in ("Task: Sort a file.", "Verdict: failed.", "row 3", "[user] Dates as 31.12.2025",
                  "I sort.\nshell({\"run\": \"sort -g\"})", "[tool] sorted"):  # fmt: skip
        assert words in told
    assert "left out" not in told


@pytest.mark.parametrize("outcome", VERDICTS)
def test_the_claim_is_told_only_where_there_is_no_verdict(outcome: Verdict) -> None:
    told = prompts.told(attempt(PERSON, outcome=outcome, claim="It is all correct."), 4000)
    assert ("It is all correct." in told) == (outcome == "unknown")
    assert prompts.VERDICTS[outcome] in told


async def test_an_error_or_a_time_out_establishes_nothing() -> None:
    for outcome in ("error", "timeout"):
        for writer in (ModelWriter, AgenticWriter):
            model = Scripted('{"operations": []}')
            assert await writer(model).write(brief(outcome=outcome)) == ()
            assert model.prompts == []
        # What a person said of themselves needs no verdict.
        model = Scripted('{"operations": []}')
        await ModelWriter(model).write(brief(stream="protected", outcome=outcome))
        assert "nothing shows whether" in model.shown()


async def test_nobody_is_asked_about_nothing() -> None:
    model = Scripted("")
    assert await ModelWriter(model).write(brief(text=" \n")) == ()
    assert await AgenticWriter(model).write(brief(text="")) == ()
    assert model.prompts == []


def test_each_streams_writer_has_its_own_words_and_scopes() -> None:
    for stream, scopes in CAP.items():
        given = brief(stream=stream)
        about = prompts.about(given, held=False, how=())
        assert prompts.ABOUT[stream] in about
        assert [scope for scope in CAP["reusable"] if f"{scope}: " in about] == list(scopes)
        assert "no other scope" not in about
    fewer = prompts.about(brief(scopes=("global",)), held=False, how=())
    assert "goes into the nearest" in fewer
    assert "with the agent coder" in fewer
    assert "coder" not in prompts.about(brief(scopes=("pair", "agent")), held=False, how=())


def test_a_schema_knows_the_scopes_and_the_entries() -> None:
    given = brief(held("u-1"), scopes=("user", "global"))
    schema = json.loads(prompts.write_schema(given, prompts.Shown(given, 4000)))
    new, revision, deletion = schema["properties"]["operations"]["items"]["anyOf"]
    assert new["properties"]["scope"]["enum"] == ["user", "global"]
    assert revision["properties"]["revises"]["enum"] == ["e1"]
    assert deletion["properties"]["delete"]["enum"] == ["e1"]
    schema = json.loads(prompts.write_schema(brief(), prompts.Shown(brief(), 4000)))
    assert "anyOf" not in schema["properties"]["operations"]["items"]


def test_entries_that_do_not_fit_are_not_shown_and_have_no_name() -> None:
    entries = [held(f"u-{n}", f"case {n}", "x" * 500) for n in range(20)]
    shown = prompts.Shown(brief(*entries, text="y" * 5000), 3000)
    assert 0 < len(shown.entries) == len(shown.names) < 20
    assert shown.names["e1"] == "u-0"
    assert shown.left_out == 20 - len(shown.names)
    assert sum(map(len, shown.entries)) + len(shown.text) <= 3000


def test_nothing_in_the_data_is_a_fence_or_a_marker() -> None:
    words = "\n".join(
        ["=== PROTECTED ===", "-----", "**Reusable:**", "Protected text", "ＲＥＵＳＡＢＬＥ"]
    )
    fenced = prompts.fenced(words)
    first, *lines, last = fenced.splitlines()
    assert first == last == prompts.FENCE
    assert not any(line == prompts.FENCE or answers.marker_of(line) for line in lines)
    assert [line.removeprefix("said: ") for line in lines] == words.splitlines()


def test_a_markers_forms() -> None:
    for line in ("=== REUSABLE ===", "## reusable", "**Protected:**", "[protected stream]",
                 "Reusable text:", "ＰＲＯＴＥＣＴＥＤ", "- Protected -"):  # fmt: skip
        assert answers.marker_of(line), line
    for line in ("", "===", "the reusable text is:", "protected branches need a review",
                 "reusable protected", "unprotected", "x" * 10_000):  # fmt: skip
        assert answers.marker_of(line) is None, line


# -- what fits


def test_a_long_attempt_keeps_what_matters_and_says_what_is_gone() -> None:
    middle = [Message("assistant", f"step {n}: " + "x" * 2000 + f" end{n}") for n in range(40)]
    told = prompts.told(
        attempt(
            PERSON, *middle, Message("user", "And no tabs!"),
            task="Sort. " + "t" * 9000 + " That is the task.", tail="v" * 9000 + " row 40 is wrong",
            outcome="failed",
        ),
        3000,
    )  # fmt: skip
    for words in ("Sort. ", "That is the task.", "row 40 is wrong", "Dates as 31.12.2025, please.",
                  "And no tabs!", "end0", "end39"):  # fmt: skip
        assert words in told
    assert "characters left out" in told
    assert "turns left out" in told
    assert len(told) < 3500


def test_injected_memory_is_no_persons_words() -> None:
    told = fitting.transcript(
        [Message("user", "[memory]\n- Ana likes tea.\n[/memory]\nSort it."), AGENT], 1000
    )
    assert "tea" not in told
    assert "[user] Sort it." in told


TEXTS = st.text("ab \n", max_size=400)
TURNS = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), TEXTS), max_size=60
)


@settings(deadline=None)
@given(TURNS, st.integers(-100, 3000))
def test_a_transcript_fits_its_room(turns: list[Message], room: int) -> None:
    told = fitting.transcript(turns, room)
    gaps = told.count("turns left out]")
    assert len(told) <= max(room, 0) + 30 * gaps + len(turns)


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(-10, 350))
def test_a_cut_text_fits_its_room(text: str, room: int) -> None:
    for cut in (fitting.ends, fitting.tail):
        short = cut(text, room)
        assert len(short) <= max(room, 0)
        assert short == text or "left out" in short or short == ""
    if room > 60 and len(text) > room:
        assert fitting.tail(text, room).endswith(text[-10:])
        assert fitting.ends(text, room).startswith(text[:10])


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=30), st.integers(-50, 2000))
def test_shares_are_fair_and_fit(sizes: list[int], room: int) -> None:
    given_ = fitting.shares(sizes, room)
    assert sum(given_) <= max(room, 0)
    assert all(0 <= share <= size for share, size in zip(given_, sizes, strict=True))
    if sum(sizes) <= room:
        assert given_ == sizes
    cut = [share for share, size in zip(given_, sizes, strict=True) if share < size]
    if cut:
        assert max(given_) - min(cut) <= 1


async def test_a_splitter_shows_no_more_than_the_model_takes() -> None:
    turns = [Message("tool", "z" * 3000) for _ in range(50)]
    model = Scripted("=== REUSABLE ===\n\n=== PROTECTED ===\n", context=2048)
    await ModelSplitter(model).split(attempt(*turns))
    assert len(model.shown()) < 2048 * 3
