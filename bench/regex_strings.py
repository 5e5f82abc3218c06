"""Strings that a regular expression matches, drawn at random.

For measuring a detector against rules that others published: what their rule describes, ours
should find. Understands what such rules use; assertions that look ahead or behind are left out.
"""

from __future__ import annotations

import random
import re
import string

# The parser of the standard library is private; it is the one reading that cannot be wrong.
from re import _constants as op  # type: ignore[attr-defined] # the stubs leave it out
from re import _parser as parser  # type: ignore[attr-defined] # the stubs leave it out
from typing import Any

_PRINTABLE = list(map(chr, range(32, 127)))
_CLASSES = {
    op.CATEGORY_DIGIT: string.digits,
    op.CATEGORY_WORD: string.ascii_letters + string.digits + "_",
    op.CATEGORY_SPACE: " ",
}
_MOST = 6
"""How far above its least an open repetition goes."""


class Drawn:
    """One match: the whole text, and the text of group 1 (the whole where there is none)."""

    def __init__(self, pattern: str, dice: random.Random) -> None:
        self._dice = dice
        self.groups: dict[int, str] = {}
        self.text = self._draw(parser.parse(_python(pattern)))
        inner = [g for g in self.groups.values() if len(g) >= 8]
        self.secret = inner[0] if inner else self.text

    def _draw(self, nodes: Any) -> str:
        return "".join(self._one(kind, value) for kind, value in nodes)

    def _one(self, kind: Any, value: Any) -> str:
        if kind is op.LITERAL:
            return chr(value)
        if kind is op.NOT_LITERAL:
            return self._dice.choice([c for c in _PRINTABLE if ord(c) != value])
        if kind is op.ANY:
            return self._dice.choice(string.ascii_letters + string.digits)
        if kind is op.IN:
            return self._dice.choice(_members(value))
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            low, high, body = value
            high = min(int(high), low + _MOST)
            return "".join(self._draw(body) for _ in range(self._dice.randint(low, high)))
        if kind is op.SUBPATTERN:
            text = self._draw(value[3])
            if value[0] is not None:
                self.groups[value[0]] = text
            return text
        if kind is op.BRANCH:
            return self._draw(self._dice.choice(value[1]))
        if kind is op.ATOMIC_GROUP:
            return self._draw(value)
        if kind is op.GROUPREF:
            return self.groups.get(value, "")
        return ""


def _members(items: Any) -> list[str]:
    chosen: set[str] = set()
    negated = False
    for kind, value in items:
        if kind is op.NEGATE:
            negated = True
        elif kind is op.LITERAL:
            chosen.add(chr(value))
        elif kind is op.RANGE:
            chosen.update(map(chr, range(value[0], value[1] + 1)))
        elif kind is op.CATEGORY:
            chosen.update(_CLASSES.get(value, string.punctuation))
    if negated:
        return [c for c in _PRINTABLE if c not in chosen]
    return sorted(c for c in chosen if c not in "\n\r\t\x0b\x0c") or sorted(chosen)


def _python(pattern: str) -> str:
    """A pattern of Go's syntax in Python's; without its flags, so drawn as it is written."""
    pattern = re.sub(r"\(\?[a-z]*(?:-[a-z]+)?\)", "", pattern)
    pattern = re.sub(r"\(\?[a-z]*(?:-[a-z]+)?:", "(?:", pattern)
    return (
        pattern.replace(r"\z", r"\Z")
        .replace("[[:alnum:]]", "[A-Za-z0-9]")
        .replace("[:alnum:]", "A-Za-z0-9")
    )
