"""The kernel's scan: what is protected stands in no reusable text, however it is written."""

from __future__ import annotations

import base64
import codecs
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isovist.kernel.learning.disguise import SHARE, decoded
from isovist.kernel.learning.scan import Facts, scan, scan_operations
from isovist.kernel.state.lessons import Operation

PROTECTED = (
    "My name is Lena Hartwig and I live in Heidelberg. My son Jonas was born on 12.03.1984.\n"
    "Reach me at lena.h@posteo.example or +49 170 1234567; staff number K-40713.\n"
    "I am diabetic and I play the cello. My files are in /home/lhartwig/ledger.",
    "The user wants amounts with a decimal comma.",
    "The user prefers short reports in which every heading is a question.",
)
FACTS = Facts.of(PROTECTED)
WIDE = str.maketrans({chr(i): chr(i + 0xFEE0) for i in range(0x21, 0x7F)})


def in_pieces(code: str) -> str:
    return " ".join(code[i : i + 4] for i in range(0, len(code), 4))


DISGUISES = {
    "plain": str,
    "capitals": str.upper,
    "small": str.lower,
    "full-width": lambda s: s.translate(WIDE),
    "zero-width": "\u200b".join,
    "soft hyphens": "\u00ad".join,
    "spaced": " ".join,
    "hyphens": "-".join,
    "dots": ".".join,
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 url": lambda s: base64.urlsafe_b64encode(f"as {s}".encode()).decode().rstrip("="),
    "base64 twice": lambda s: base64.b64encode(base64.b64encode(s.encode())).decode(),
    "base64 in pieces": lambda s: in_pieces(base64.b64encode(f"it is {s}".encode()).decode()),
    "base32": lambda s: base64.b32encode(s.encode()).decode(),
    "hex": lambda s: s.encode().hex(),
    "hex apart": lambda s: s.encode().hex(" "),
    "hex escapes": lambda s: "".join(f"\\x{b:02x}" for b in s.encode()),
    "unicode escapes": lambda s: "".join(f"\\u{ord(c):04x}" for c in s),
    "entities": lambda s: "".join(f"&#{ord(c)};" for c in s),
    "percent": lambda s: "".join(f"%{b:02X}" for b in s.encode()),
    "codes": lambda s: " ".join(str(ord(c)) for c in s),
    "bits": lambda s: " ".join(f"{b:08b}" for b in s.encode()),
    "rot13": lambda s: codecs.encode(s, "rot13"),
    "reversed": lambda s: s[::-1],
    "base64 of reversed": lambda s: base64.b64encode(s[::-1].encode()).decode(),
    "look-alikes": lambda s: s.translate(str.maketrans("aeoic", "аеоіс")),
    "accents": lambda s: s.translate(str.maketrans("aeoi", "áèöî")),
}  # fmt: skip
VALUES = ("Lena Hartwig", "Heidelberg", "lena.h@posteo.example", "170 1234567", "diabetic",
          "lhartwig", "K-40713")  # fmt: skip


@pytest.mark.promise("protected.stays")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_fact_is_cut_however_it_is_written(disguise: str, value: str) -> None:
    hidden = DISGUISES[disguise](value)
    scanned = scan(f"Use utf-8 for the file. The value {hidden} helps. Sort the rows first.", FACTS)
    assert scanned.cut >= 1
    assert hidden not in scanned.text
    assert scanned.text.startswith("Use utf-8 for the file.") or disguise in WHOLE_LINE


WHOLE_LINE = {"percent", "entities", "unicode escapes", "hex escapes", "dots"}
"""What is undone a line at a time takes the line along; dots end sentences."""


@pytest.mark.parametrize(
    "text",
    [
        "Amounts use a decimal comma in the input files.",
        "Dates are written DD.MM.YYYY; parse them with strptime.",
        "Reports go to stdout; every heading ends with a newline.",
        "The number lines are counted from 1.",
        "A 404 from port 8080 means that the server is not up.",
        "The user table needs an index on its id.",
        "task: Convert the CSV export with amounts to JSON.",
        "The data/input.csv file has CRLF line ends; use utf-8-sig.",
        "Use sha256 of the file, base64 encoded, as `key_id`.",
        "Live logs rotate on 2024-05-01 at noon.",
    ],
)
def test_ordinary_words_stay_though_a_protected_text_has_them(text: str) -> None:
    assert scan(text, FACTS).text == text
    assert scan(text, FACTS).cut == 0


def test_what_is_left_is_sound() -> None:
    text = (
        "lesson: Lena Hartwig did it. It was wrong. Use utf-8.\n"
        "- lesson: Heidelberg has no logs.\n"
        "- lesson: Sort the rows\n  before merging. Lena agreed."
    )
    scanned = scan(text, FACTS)
    assert scanned.text == "lesson: Use utf-8.\n- lesson: Sort the rows\n  before merging."
    assert scanned.cut == 4


@pytest.mark.parametrize(
    "copied",
    [
        "The user prefers short reports in which every heading is a question.",
        "Note that short reports in which every heading is a question are best.",
        "I am diabetic and I play the cello.",
        "Born 1984-03-12, so be careful.",
        "Born on March 12, 1984",
        "The 12/3/1984 birthday.",
    ],
)
def test_a_copied_sentence_or_a_date_in_another_form_is_found(copied: str) -> None:
    assert scan(f"Use utf-8. {copied}", FACTS).text == "Use utf-8."


@pytest.mark.promise("protected.stays")
@pytest.mark.parametrize("at", range(1, 9))
def test_a_fact_that_is_split_over_two_fields_is_found(at: int) -> None:
    value = "Heidelberg"
    split = Operation(
        situation=f"the task is in {value[:at]}", lesson=f"{value[at:]} is where", scope="global"
    )
    fine = Operation(situation="unrelated", lesson="Use sort -V.", scope="global")
    left = scan_operations([split, fine], FACTS)
    assert left.operations == (fine,)
    assert left.cut == 1


KEY = "AKIAIOSFODNN7EXAMPLE"


@pytest.mark.promise("secrets.never")
@pytest.mark.parametrize("facts", [FACTS, Facts.of(())], ids=["reusable", "protected"])
@pytest.mark.parametrize(
    "written",
    [
        KEY,
        KEY.translate(WIDE),
        base64.b64encode(KEY.encode()).decode(),
        base64.b64encode(f"the key is {KEY}".encode()).decode(),
        KEY.encode().hex(),
        KEY[::-1],
        codecs.encode(KEY, "rot13"),
        "\u200b".join(KEY),
    ],
)
def test_a_secret_stands_in_neither_stream(written: str, facts: Facts) -> None:
    operation = Operation(situation="deploying", lesson=f"Use {written} for it.", scope="user")
    kept = scan_operations([operation], facts)
    assert kept.secrets == {"aws-key": 1}
    assert not any(written in one.lesson for one in kept.operations)
    scanned = scan(f"Sort first. Use {written} for it.", facts)
    assert written not in scanned.text
    assert scanned.text.startswith("Sort first.")
    assert scanned.secrets == {"aws-key": 1}


@pytest.mark.promise("secrets.never")
@pytest.mark.parametrize("at", [4, 9, 16])
def test_a_secret_that_is_split_over_two_fields_or_operations_is_found(at: int) -> None:
    head, tail = f"use {KEY[:at]}", f"{KEY[at:]} then"
    fine = Operation(situation="sorting", lesson="Use sort -V.", scope="global")
    one = Operation(situation=head, lesson=tail, scope="global")
    kept = scan_operations([fine, one], FACTS)
    assert kept.operations == (fine,)
    assert (kept.cut, set(kept.secrets)) == (1, {"aws-key"})
    first = Operation(situation="deploying", lesson=head, scope="global")
    second = Operation(situation="building", lesson=tail, scope="global")
    assert scan_operations([first, fine, second], FACTS).operations in ((fine,), ())
    reason = Operation(delete="e1", reason=head)
    assert scan_operations([second, reason], FACTS).operations == ()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=400))
def test_nothing_is_raised_and_a_clean_text_stays_as_it_is(text: str) -> None:
    facts = Facts.of([text])
    left = scan(text, facts)
    assert len(left.text) <= len(text) + 24
    assert scan(text, Facts.of(())).cut in (0, 1)
    again = scan(left.text, facts)
    assert len(again.text) <= len(left.text) + 24


HOSTILE = (
    "A1b2",
    "T W F y ",
    "%41",
    "\\u0041",
    "41 ",
    "a",
    "lena ",
    "é",
    "a.",
    "Aa ",
    "&#65;",
    "1-",
)


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(unit: str) -> None:
    """Counted in characters decoded, and in calls of functions."""

    def calls(size: int) -> int:
        text = unit * (size // len(unit))
        assert sum(len(g.text) for g in decoded(text)) <= SHARE * len(text) + 4096
        count = 0

        def each(_frame: object, _event: str, _arg: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(each)
        try:
            scan(text, FACTS)
        finally:
            sys.setprofile(None)
        return count

    calls(1000)  # what is worked out once a character
    assert calls(16_000) <= 2.3 * calls(8_000) + 500


def test_facts_of_a_user_and_of_a_submission_add_up() -> None:
    both = Facts.of(PROTECTED[:1]) | Facts.of(PROTECTED[1:])
    assert both == FACTS
    assert FACTS.names >= {"Lena Hartwig", "Heidelberg", "Jonas"}
    assert scan("The wanted one is Bo Li.", Facts.of((), names=["Bo Li"])).cut == 1
