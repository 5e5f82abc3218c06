"""Chunks: pieces of at most 1,000 characters that cover the text."""

from __future__ import annotations

import itertools

import regex
from hypothesis import given
from hypothesis import strategies as st

from isovist.storage.chunks import GAP, LIMIT, OVERLAP, dated, spans

_long = st.text("ab é\u0301.!?\n。用👍🏽\u200d", max_size=600).map(lambda piece: piece * 9)


def test_a_short_text_is_one_chunk() -> None:
    text = "x" * LIMIT
    assert [span.cut(text) for span in spans(text)] == [text]
    assert [span.cut("") for span in spans("")] == [""]


@given(_long)
def test_chunks_are_short_cover_the_text_and_overlap_a_little(text: str) -> None:
    found = spans(text)
    assert all(len(span.cut(text)) <= LIMIT for span in found)
    assert found[0].start == 0
    assert found[-1].stop == len(text)
    for before, after in itertools.pairwise(found):
        assert before.start < after.start <= before.stop < after.stop
        assert before.stop - after.start <= OVERLAP


@given(_long)
def test_no_cut_splits_a_grapheme(text: str) -> None:
    bounds = {0, *(m.end() for m in regex.finditer(r"\X", text))}
    longest = max((len(m.group()) for m in regex.finditer(r"\X", text)), default=0)
    if longest < LIMIT // 8:
        for span in spans(text):
            assert {span.head, span.start, span.stop} <= bounds


def test_cuts_fall_between_sentences() -> None:
    text = "".join(f"Sentence number {i} says something plain. " for i in range(100))
    found = spans(text)
    assert len(found) > 3
    for span in found:
        assert text[span.start :].startswith("Sentence")
        assert text[: span.stop].endswith(". ")


def test_a_chinese_text_is_cut_between_sentences_too() -> None:
    text = "".join(f"第{i}句话说了一些很普通的事情。" for i in range(200))
    assert all(text[: span.stop].endswith("。") for span in spans(text))


def test_a_continuation_repeats_the_start_of_the_users_turn() -> None:
    text = "User: How do I deploy on Tuesdays?\nAssistant: " + "It depends on the day. " * 150
    first, *others = [span.cut(text) for span in spans(text)]
    assert first.startswith("User: How do I deploy on Tuesdays?")
    assert others
    assert all(chunk.startswith("User: How do I deploy on Tuesdays?") for chunk in others)
    assert all(GAP in chunk for chunk in others)


def test_one_endless_grapheme_is_cut_all_the_same() -> None:
    text = "e" + "\u0301" * 5000
    found = spans(text)
    assert found[-1].stop == len(text)
    assert all(len(span.cut(text)) <= LIMIT for span in found)


def test_the_date_stands_in_what_is_indexed() -> None:
    day = 86_400_000_000_000
    assert dated("tea", 0) == "[1970-01-01, 1 January 1970] tea"
    assert dated("tea", 364 * day + 5) == "[1970-12-31, 31 December 1970] tea"
    assert dated("tea", -1) == "[1969-12-31, 31 December 1969] tea"
    assert dated("tea", 1 << 62) == "[2116-02-20, 20 February 2116] tea"
    assert dated("tea", -(1 << 63) * 1000) == "tea"
