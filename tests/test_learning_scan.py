"""The kernel's scan: what is protected stands in no reusable text, however it is written."""

from __future__ import annotations

import base64
import codecs

import pytest

from isovist.kernel.learning.scan import Facts, scan

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
