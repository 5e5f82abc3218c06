"""A text as the detectors of secrets see it, and the way back to the stored text.

Folding undoes what hides a number or a key from a pattern and changes nothing for a reader:
full-width letters, digits of other scripts, dashes and spaces of any kind become their ASCII
forms, invisible characters vanish. What is replaced is the stretch of the *original* text.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple


class Found(NamedTuple):
    """A stretch [start, stop) of a text and the type of secret that it is."""

    start: int
    stop: int
    type: str


class Folded(NamedTuple):
    """``text`` and ``lower`` have equal lengths; character i of both comes from character
    ``origin[i]`` of the original, or from i itself where ``origin`` is ``None``."""

    text: str
    lower: str
    origin: list[int] | None

    def back(self, found: Found) -> Found:
        """``found`` as a stretch of the original, invisible characters inside included."""
        if self.origin is None:
            return found
        return Found(self.origin[found.start], self.origin[found.stop - 1] + 1, found.type)


class _Table(dict[int, int | None]):
    """What ``str.translate`` asks for each character; worked out once a character."""

    def __missing__(self, code: int) -> int | None:
        self[code] = folded = _fold(code)
        return folded


def _fold(code: int) -> int | None:
    """The ASCII form of a character, ``None`` for an invisible one, else the character."""
    if code < 0x80:
        return code
    char = chr(code)
    category = unicodedata.category(char)
    # Variation selectors and joiners are drawn as nothing, like format characters.
    if category == "Cf" or 0xFE00 <= code <= 0xFE0F or code in (0x034F, 0x115F, 0x1160, 0x3164):
        return None
    if category == "Nd":
        return ord("0") + unicodedata.decimal(char)
    if category == "Pd" or code == 0x2212:
        return ord("-")
    if category == "Zs":
        return ord(" ")
    if category in ("Zl", "Zp"):
        return ord("\n")
    plain = unicodedata.normalize("NFKC", char)
    return ord(plain) if len(plain) == 1 and plain.isascii() else code


_TABLE = _Table()


def fold(text: str) -> Folded:
    """``text`` as the detectors see it. Any string is legal, lone surrogates too."""
    if text.isascii():
        return Folded(text, text.lower(), None)
    folded = text.translate(_TABLE)
    origin = None
    if len(folded) != len(text):
        origin = [i for i, char in enumerate(text) if _TABLE[ord(char)] is not None]
    lower = folded.lower()
    if len(lower) != len(folded):  # a few capitals have small forms of two characters
        lower = "".join(c if len(c.lower()) != 1 else c.lower() for c in folded)
    return Folded(folded, lower, origin)
