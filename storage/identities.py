"""Finds identity, insurance, card and bank numbers in a folded text.

Digits that stand together, or apart by separators, form a *chain* of groups. A number is a run
of whole groups of one chain: a date before it does not hide it, nor do separators inside. What
such a run must be is said in :mod:`isovist.storage.identity_rules`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from string import ascii_letters

from isovist.storage.check_digits import iban_length
from isovist.storage.folding import Folded, Found
from isovist.storage.identity_rules import (
    CODE,
    CODED,
    LABELLED,
    NUMBERS,
    OTHER,
    PATTERNS,
    Rule,
)

SECRETS = frozenset({"card", "iban", "bank-account"})
TYPES = (
    frozenset({r.type for r in NUMBERS} | {c.type for c in CODED} | {v.type for v in LABELLED})
    - SECRETS
)

# Searches that rule a text out: eight digits (a number), six (a code), two letters and two digits
# (a code or an IBAN), five digits with at most a letter between (what a label names). They read
# the text's marks, where every digit is a 0: a search for one character skips all others.
_KINDS = {"0": "0123456789", "a": ascii_letters, " ": " ", "-": "-.", "_": "/\u00b7_()"}
_MARKS = bytes(
    next((ord(mark) for mark, those in _KINDS.items() if chr(code) in those), ord("#"))
    for code in range(256)
)
_NUMBER = re.compile(rb"0(?:[ \-_]{0,3}0){7}")
_SIX = re.compile(rb"0(?:[ \-]?0){5}")
_LETTERS = re.compile(rb"0(?:(?<=aa0)|(?<=a 0))0")
_FIVE = re.compile(rb"0(?:[ \-_]{0,3}a?0){4}")
_HEAD = re.compile(rb"0(?:a{1,5}|[ \-](a{1,2}))?(?![a0])")
"""Read backwards: the first digit of a code, and the letters before it."""
_LETTERED = b"a" * 16
"""A code that may have no digit: so many letters or digits."""
_BANK = re.compile(rb"0(?:(?<=(?<![a0])aa0)|(?<=(?<![a0])aa[ \-]0))0")
"""The first digits of an IBAN."""


def _marks(text: str) -> bytes:
    """``text`` with each character's kind in its place: ``0`` for a digit, ``a`` for a letter,
    one for each kind of separator, ``#`` for all else."""
    return text.encode("latin-1", "replace").translate(_MARKS)


_CHAIN = re.compile(
    r"(?<![A-Za-z0-9])[0-9]++(?:[ \-./·_()]{1,3}+[0-9]++)*+(?:[ \-.]?[xX](?![A-Za-z0-9]))?"
)
_GROUP = re.compile(r"[0-9]+|[xX]")
_DATE = re.compile(r"(?:19|20)[0-9]{2}[-/. ](?:0?[1-9]|1[0-2])[-/. ][0-3]?[0-9](?![0-9])")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[ \-]?[0-9]{2}(?:[ \-]?[A-Za-z0-9]){11,30}")
_GAP = re.compile(
    r"(?:[\s:#=.,()'\"*\-“”’]|(?:numbers?|num|nos?|nr|id|is|was|are|card|code|it's|its|the|my|s|"
    r"as|of|policy|member|holder|account|issued|and|expires?|numéro|número|nummer|号码|号|码|卡|是|"
    r"为|為|n°|№)(?![a-z])){0,10}+"
)
_BEFORE, _AFTER = 60, 24
"""How many characters before and after a number its label may stand."""
_GROUPS = 8
"""Of how many groups a number is at most, unless each is one digit."""

_BY_LENGTH: dict[int, list[Rule]] = {}
for _rule in NUMBERS:
    for _n in _rule.lengths:
        _BY_LENGTH.setdefault(_n, []).append(_rule)

_FREE = 18
"""The one length whose numbers stand alone in groups of any sizes: a resident id."""
_CENTURIES = ("18", "19", "20")
"""Of the birth years in it."""


def _openings() -> Iterator[tuple[int, int, int]]:
    for rule in NUMBERS:
        for shape in rule.shapes - {"*"}:
            sizes = [int(size) for size in shape.split("-")]
            yield sum(sizes), sizes[0], sizes[1] if len(sizes) > 1 else 0


_OPENINGS = frozenset(_openings())
"""(digits, those of the first group, of the second or 0) of all that stands alone: most runs of
groups are told apart by these."""


class _Labels:
    """Where the labels of one text stand; each kind is looked for when a number first asks."""

    def __init__(self, lower: str) -> None:
        self._lower = lower
        self._starts: dict[str, list[int]] = {}
        self._lengths: dict[int, list[int]] = {}
        self._rules: dict[int, tuple[list[Rule], list[Rule]]] = {}

    def matches(self, kind: str) -> Iterator[re.Match[str]]:
        for m in PATTERNS[kind].finditer(self._lower):
            at = m.start()
            before = self._lower[at - 1] if at else " "
            if not (before.isascii() and before.isalnum()) or not m[0].isascii():
                yield m

    def starts(self, kind: str) -> list[int]:
        if kind not in self._starts:
            self._starts[kind] = [m.start() for m in self.matches(kind)]
        return self._starts[kind]

    def beside(self, kinds: Iterable[str], start: int, stop: int) -> bool:
        for kind in kinds:
            starts = self.starts(kind)
            at = bisect_left(starts, start - _BEFORE)
            if at < len(starts) and starts[at] <= stop + _AFTER:
                return True
        return False

    def other(self, start: int) -> bool:
        """Whether a label right before ``start`` names a number that is none of ours."""
        return OTHER.search(self._lower[max(0, start - 32) : start]) is not None

    def rules(self, length: int) -> tuple[list[Rule], list[Rule]]:
        """The rules for numbers of this length: that stand alone, and whose label the text has."""
        if length not in self._rules:
            rules = _BY_LENGTH.get(length, [])
            self._rules[length] = (
                [rule for rule in rules if rule.shapes],
                [rule for rule in rules if any(self.starts(kind) for kind in rule.labels)],
            )
        return self._rules[length]

    def lengths(self, size: int) -> list[int]:
        """How long a number may be whose first group has ``size`` digits, the longest first."""
        if size not in self._lengths:
            openings = {total for total, first, _ in _OPENINGS if first == size}
            labelled = {n for n in _BY_LENGTH if self.rules(n)[1]}
            self._lengths[size] = sorted(
                (n for n in openings | labelled | {_FREE} if n >= size), reverse=True
            )
        return self._lengths[size]


def identities(folded: Folded) -> Iterator[Found]:
    """All identity, insurance, card and bank numbers of ``folded``; they may overlap."""
    text = folded.text
    marks = _marks(text)
    lettered = _LETTERS.search(marks) is not None
    five = _FIVE.search(marks) is not None
    if not lettered and not five:
        return
    labels = _Labels(folded.lower)
    if five and _NUMBER.search(marks):
        for chain in _CHAIN.finditer(text):
            if chain.end() - chain.start() >= 8:
                yield from _numbers(text, chain, labels)
    if (lettered or _SIX.search(marks)) and _coded(text, marks):
        yield from _codes(text, labels)
    if lettered and _BANK.search(marks):
        at = 0
        while m := _IBAN.search(text, at):
            length = iban_length(m[0])
            at = m.start() + (length or 4)
            if length:
                yield Found(m.start(), at, "iban")
    if five:
        yield from _labelled(folded.lower, labels)


def _numbers(text: str, chain: re.Match[str], labels: _Labels) -> Iterator[Found]:
    groups = [m.span() for m in _GROUP.finditer(text, chain.start(), chain.end())]
    sizes = [b - a for a, b in groups]
    if len(groups) > _GROUPS and max(sizes) == 1:
        type_ = None
        if len(groups) <= 19:
            digits = "".join(text[a] for a, _ in groups)
            type_ = _judge(digits, "1", chain.start(), chain.end(), labels)
        if type_:
            yield Found(chain.start(), chain.end(), type_)
        return
    upto = [0, *accumulate(sizes)]
    at_total = {total: i for i, total in enumerate(upto)}
    after = 0
    for first, (start, _) in enumerate(groups):
        if start < after:
            continue
        size, base = sizes[first], upto[first]
        for total in labels.lengths(size):
            last = at_total.get(base + total, 0) - 1
            if not first <= last < first + _GROUPS:
                continue
            second = sizes[first + 1] if last > first else 0
            opens = (total, size, second) in _OPENINGS
            if not (opens or total == _FREE or labels.rules(total)[1]):
                continue
            if (
                last == first
                and start >= 2
                and text[start - 1] == "."
                and text[start - 2].isdigit()
            ):
                continue  # digits after a decimal point
            if size == 4 and _DATE.match(text, start):
                break
            stop = groups[last][1]
            digits = "".join([text[a:b] for a, b in groups[first : last + 1]])
            if not opens and digits[6:8] not in _CENTURIES and not labels.rules(total)[1]:
                continue
            shape = "-".join(map(str, sizes[first : last + 1]))
            type_ = _judge(digits, shape, start, stop, labels)
            if type_:
                after = stop
                yield Found(start, stop, type_)
                break


def _judge(digits: str, shape: str, start: int, stop: int, labels: _Labels) -> str | None:
    """The type of the number ``digits``, which stands at [start, stop) in groups of ``shape``."""
    alone, labelled = labels.rules(len(digits))
    mark = digits[-1] in "xX"
    for rule in alone:
        if (
            (shape in rule.shapes or "*" in rule.shapes)
            and (not mark or rule.marked)
            and rule.valid(digits)
            and not labels.other(start)
        ):
            return rule.type
    for rule in labelled:
        if (
            (not mark or rule.marked)
            and labels.beside(rule.labels, start, stop)
            and rule.valid(digits)
        ):
            return rule.type
    return None


def _coded(text: str, marks: bytes) -> bool:
    """Whether a code may stand in ``text``: quicker than to look for one everywhere."""
    if not text.isascii() or _LETTERED in marks.replace(b"0", b"a"):
        return True
    for head in _HEAD.finditer(marks[::-1]):
        if CODE.match(text, len(text) - head.end()):
            return True
        if head[1] and CODE.match(text, len(text) - head.start() - 1):
            return True
    return False


def _codes(text: str, labels: _Labels) -> Iterator[Found]:
    at = 0
    while some := CODE.search(text, at):
        at = some.start() + 1
        for code in CODED:
            m = code.pattern.match(text, some.start())
            if (
                m
                and code.valid(m[0])
                and (not code.labels or labels.beside(code.labels, *m.span()))
            ):
                yield Found(m.start(), m.end(), code.type)
                at = m.end()
                break


def _labelled(lower: str, labels: _Labels) -> Iterator[Found]:
    for rule in LABELLED:
        if any(stem in lower for stem in rule.stems):
            for label in labels.matches(rule.label):
                gap = _GAP.match(lower, label.end())
                value = rule.value.match(lower, gap.end() if gap else label.end())
                if value and sum(map(str.isdigit, value[0])) >= rule.digits:
                    yield Found(value.start(), value.end(), rule.type)
