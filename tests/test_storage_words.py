"""Words: from any text to terms."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isovist.storage import words
from isovist.storage.words import (
    _ASCII_TOKEN,
    _TOKEN,
    MAX_TERM,
    content_terms,
    index_terms,
    query_terms,
)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("Ana deploys on Tuesdays", "which day does Ana deploy?"),
        ("Bob is running marathons", "marathon runs"),
        ("our café opens at nine", "CAFE"),
        ("用docker部署服务器", "怎么部署?"),
        ("会議は火曜日です", "火曜日"),
        ("배포는 화요일", "화요일"),
        ("the config is api-v2_final", "api-v2_final"),
        ("the config is api-v2_final", "final api"),
        ("edit src/x.py first", "src/x.py"),
        ("edit src/x.py first", "x.py"),
        ("calls getUserName twice", "user name"),
        ("calls getUserName twice", "getusername"),
        ("meet at 10:30 on 2026-11-29", "2026-11-29"),
        ("written in C++ and C#", "c++"),
        ("ＡＢＣ ﬁnd", "abc find"),
        ("Straße", "STRASSE"),
        ("مُحَمَّد يحب القهوة", "القهوة"),
        ("שלום עולם", "עולם"),
        ("हिन्दी में लिखो", "हिन्दी"),
        ("Ana’s dog", "ana's"),
    ],
)
def test_a_question_meets_the_text(text: str, question: str) -> None:
    asked = query_terms(question)
    assert asked
    assert set(asked) & index_terms(text).keys()


def test_a_mixed_text_gives_characters_pairs_and_words() -> None:
    assert index_terms("用docker部署") == {"用": 1, "docker": 1, "部": 1, "署": 1, "部署": 1}


def test_an_identifier_is_whole_and_split() -> None:
    assert index_terms("api-v2_final") == {"api-v2_final": 1, "api": 1, "v2": 1, "final": 1}
    assert set(index_terms("src/x.py")) == {"src/x.py", "src", "x", "py"}


@pytest.mark.parametrize(
    "text", ["", "\0", "\ud800", "\udfff\ud800", "!?…。", "___", "\u200d\ufe0f", "'''"]
)
def test_what_is_no_word_has_no_term(text: str) -> None:
    assert index_terms(text) == {}
    assert query_terms(text) == []


def test_noise_around_a_word_does_no_harm() -> None:
    assert index_terms("\ud800deploy\0 \u200ddeploy") == {"deploy": 2}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("🎉🎉🎉", {"🎉": 3}),
        ("go🎉now", {"go": 1, "🎉": 1, "now": 1}),
        ("密码🎉", {"密": 1, "码": 1, "密码": 1, "🎉": 1}),
        ("👍🏽", {"👍🏽": 1, "👍": 1}),
        ("👩‍👩‍👧", {"👩‍👩‍👧": 1, "👩": 2, "👧": 1}),
        ("🇩🇪🇫🇷", {"🇩🇪": 1, "🇫🇷": 1}),
        ("🏴\U000e0067\U000e0062\U000e0073\U000e007f",
         {"🏴\U000e0067\U000e0062\U000e0073\U000e007f": 1}),
        ("1\ufe0f\u20e3 #\ufe0f\u20e3", {"1\u20e3": 1, "#\u20e3": 1}),
        ("❤\ufe0f ❤", {"❤": 2}),
        ("✓ ☃ ▶ ©", {"✓": 1, "☃": 1, "▶": 1, "©": 1}),
    ],
)  # fmt: skip
def test_a_symbol_is_a_word(text: str, terms: dict[str, int]) -> None:
    assert index_terms(text) == terms
    assert query_terms(text) == sorted(terms)


def test_punctuation_is_no_word() -> None:
    """All of ASCII and of the usual blocks; what is unassigned is none either."""
    ordinary = [*range(0x80), *range(0xA0, 0xC0), *range(0x2000, 0x2070), *range(0x2500, 0x2580),
                *range(0x3000, 0x3021), *range(0xFF00, 0xFF10)]  # fmt: skip
    signs = [c for c in map(chr, ordinary) if unicodedata.category(c)[0] in "PSZC"]
    assert len(signs) > 200
    found = [c for c in signs if index_terms(c)]
    assert set(found) == set("©®〄〒〓〠")
    assert index_terms("• one\n● two\n■ three – 20 °C") == dict.fromkeys(
        ("one", "two", "three", "20", "c"), 1
    )


def test_content_terms_hold_no_stop_words() -> None:
    assert content_terms("what is the name of my dog?") == {"name", "dog"}
    assert content_terms("What is it?") == content_terms("!?") == content_terms("") == set()


def test_stop_words_go_unless_nothing_is_left() -> None:
    assert query_terms("what is the name of my dog?") == ["dog", "name"]
    assert query_terms("What is it?") == ["is", "it", "what"]


def test_query_syntax_is_data() -> None:
    for text in ('title:foo AND "bar"', "foo* OR -bar", "(foo] bar~2^", "' OR 1=1 --"):
        assert all(isinstance(term, str) for term in query_terms(text))
    assert {"foo", "bar"} <= set(query_terms('title:foo AND "bar"'))


def test_a_question_of_two_hundred_words() -> None:
    words = [f"word{i}" for i in range(200)]
    assert query_terms(" ".join(words)) == sorted(words)


def test_a_long_word_is_cut_alike_on_both_sides() -> None:
    (term,) = index_terms("x" * 5000)
    assert len(term) == MAX_TERM
    assert query_terms("x" * 6000) == [term]


_texts = st.text(st.characters(), max_size=200) | st.text(
    "aZ9_-./'’用部ก에é\u0301 \0\ud800", max_size=80
)


@given(_texts)
def test_any_text_has_terms_that_encode(text: str) -> None:
    counts = index_terms(text)
    assert all(count > 0 for count in counts.values())
    for term in counts:
        term.encode()
        assert 0 < len(term) <= 3 * MAX_TERM


@given(_texts)
def test_a_query_asks_for_nothing_that_its_own_text_lacks(text: str) -> None:
    asked = query_terms(text)
    assert asked == sorted(set(asked))
    assert set(asked) <= index_terms(text).keys()


@given(
    st.text(st.characters(max_codepoint=127), max_size=200)
    | st.text("abAZ09_'-./\\:@+#=&%~ \n(", max_size=40)
)
def test_the_pattern_for_ascii_finds_what_the_whole_one_finds(text: str) -> None:
    assert _ASCII_TOKEN.findall(text) == _TOKEN.findall(text)


def test_a_text_that_normal_form_makes_ascii_is_read_alike() -> None:
    assert index_terms("don’t use ＡＰＩ－ｋｅｙ") == index_terms("don't use API-key")


@given(st.from_regex(r"[A-Za-z]?[a-z]{0,9}|[A-Z]{1,9}", fullmatch=True))
def test_a_plain_word_is_one_part(word: str) -> None:
    assert words._PART.findall(word) == ([word] if word else [])
    assert words._split(word) == ([words._word(word)] if word else [])
