"""The kernel's own look at what a splitter or a writer made (promises ``protected.stays``,
``secrets.never``).

Whoever wrote a text that others may read, no value which the kernel knows as protected stands in
what is left of it, in none of the disguises of :mod:`isovist.kernel.learning.disguise`, and no
secret that the guard knows. Time is linear in the length of the text, and nothing is raised for any
text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from isovist.kernel.learning.disguise import decoded, turned
from isovist.kernel.learning.facts import (
    CLAUSE,
    LONGEST,
    RUN,
    SHORT_SENTENCE,
    STEM,
    Facts,
    Tokens,
    tokens,
)
from isovist.kernel.learning.lexicon import stems
from isovist.kernel.learning.sentences import Sentence, sentences
from isovist.kernel.learning.values import dates, days
from isovist.kernel.state.lessons import Operation
from isovist.storage import guard
from isovist.storage.folding import Found, fold

__all__ = ["Facts", "Kept", "Scanned", "scan", "scan_operations"]

_SHORT_CODE = 5
"""Letters and digits of the shortest fact that counts where a text was decoded: bytes that are no
text at all decode to short words now and then."""
_END = 256
"""Characters of a field's end, or beginning, that a secret split over two fields may take."""


class Scanned(msgspec.Struct, frozen=True):
    """What is left of a text. ``cut`` counts the sentences that were taken out, ``secrets`` those
    stretches that gave way to a placeholder or made a sentence go, by type."""

    text: str
    cut: int = 0
    secrets: dict[str, int] = {}


class Kept(msgspec.Struct, frozen=True):
    """The operations that may stay; ``cut`` counts the others."""

    operations: tuple[Operation, ...]
    cut: int = 0
    secrets: dict[str, int] = {}


def scan(text: str, facts: Facts) -> Scanned:
    """``text`` without each sentence that holds one of ``facts``, and past the secrets guard."""
    cleaned = guard.clean(text)
    secrets = Counter(cleaned.counts)
    text = cleaned.text
    stretches, hidden = _found(text, facts)
    secrets.update(hidden)
    if not stretches:
        return Scanned(text, 0, dict(secrets))
    left, cut = _cut(text, stretches)
    return Scanned(left, cut, dict(secrets))


def scan_operations(operations: Sequence[Operation], facts: Facts) -> Kept:
    """Those ``operations`` in which nothing had to be cut; with placeholders for secrets that the
    guard replaced. One writer's operations are looked at together."""
    fields = [field for one in operations for field in (one.situation, one.lesson, one.reason)]
    each = [scan(field, facts) for field in fields]
    secrets = Counter[str]()
    for one in each:
        secrets.update(one.secrets)
    left = ["" if one.cut else one.text for one in each]
    broken, split = _across(left, facts)
    secrets.update(split)
    broken |= {i for i, one in enumerate(each) if one.cut}
    kept = [
        msgspec.structs.replace(
            one, situation=left[3 * i], lesson=left[3 * i + 1], reason=left[3 * i + 2]
        )
        for i, one in enumerate(operations)
        if not broken & {3 * i, 3 * i + 1, 3 * i + 2}
    ]
    return Kept(tuple(kept), len(operations) - len(kept), dict(secrets))


def _found(text: str, facts: Facts) -> tuple[list[tuple[int, int]], Counter[str]]:
    """The stretches of ``text`` that hold a fact or a disguised secret; such secrets, by type."""
    folded = fold(text)
    spans = list(_hits(folded.text, facts, 1))
    secrets = Counter[str]()
    for guise in turned(folded.text):
        for found in guard.find(guise.text):
            secrets[found.type] += 1
            spans.append(guise.back(found.start, found.stop))
    for guise in decoded(folded.text):
        inside = guard.find(guise.text)
        secrets.update(found.type for found in inside)
        if not guise.text or inside or any(_hits(guise.text, facts, _SHORT_CODE)):
            spans.append((guise.start, guise.stop))
    whole = (folded.back(Found(start, max(stop, start + 1), "")) for start, stop in spans)
    return sorted((found.start, found.stop) for found in whole), secrets


def _hits(text: str, facts: Facts, least: int) -> Iterator[tuple[int, int]]:
    """Where a fact of at least so many letters and digits stands in a folded text."""
    if not facts:
        return
    found = tokens(text)
    words, starts, stops = found
    heads, keys = facts.heads, facts.keys
    for i, word in enumerate(words):
        if word[:STEM] not in heads:
            continue
        spelt, j = word, i
        while True:
            known = spelt[:LONGEST]
            if known in keys and len(known) >= least:
                yield starts[i], stops[j]
            j += 1
            if len(spelt) >= LONGEST or j == len(words) or spelt[:STEM] not in heads:
                break
            spelt += words[j]
    if facts.long:
        yield from _inside(found, facts)
    if facts.dates:
        for value in dates(text):
            if not facts.dates.isdisjoint(days(value.text)):
                yield value.start, value.stop
    if facts.rare or facts.first:
        yield from _said(found, facts, least)


def _inside(found: Tokens, facts: Facts) -> Iterator[tuple[int, int]]:
    """Long facts, wherever in a longer word, and over however many words."""
    stream = "".join(found.words)
    begins = [0, *accumulate(map(len, found.words))]
    long = facts.long
    for i in range(len(stream) - 5):
        if (head := stream[i : i + 6]) in long:
            for key in long[head]:
                if stream.startswith(key, i):
                    first = bisect_right(begins, i) - 1
                    last = bisect_right(begins, i + len(key) - 1) - 1
                    yield found.starts[first], found.stops[last]


def _said(found: Tokens, facts: Facts, least: int) -> Iterator[tuple[int, int]]:
    """Words and runs of words of personal statements."""
    words, starts, stops = found
    stemmed = stems(words)
    for i, stem in enumerate(stemmed):
        if stem in facts.rare and len(words[i]) >= least:
            yield starts[i], stops[i]
        if stem in facts.first:
            for size in (RUN, CLAUSE):
                if hash(tuple(stemmed[i : i + size])) in facts.runs and i + size <= len(stemmed):
                    yield starts[i], stops[i + size - 1]
            for size in SHORT_SENTENCE:
                if hash(tuple(stemmed[i : i + size])) in facts.whole and i + size <= len(stemmed):
                    yield starts[i], stops[i + size - 1]


def _across(fields: Sequence[str], facts: Facts) -> tuple[set[int], Counter[str]]:
    """The fields that take part in a fact or a secret which is split over two or more of them."""
    broken: set[int] = set()
    secrets = Counter[str]()
    filled = [i for i, field in enumerate(fields) if field.strip()]
    for between in ("", " "):
        _joined(fields, filled, between, facts, broken, secrets)
    # Any two, whatever stands between them: the end of one and the beginning of another.
    for i in filled:
        for j in filled:
            if i != j and j != i + 1:
                ends = [fields[i][-_END:], fields[j][:_END]]
                pair: set[int] = set()
                _joined(ends, (0, 1), "", facts, pair, secrets)
                broken |= {(i, j)[n] for n in pair}
    return broken, secrets


def _joined(
    fields: Sequence[str],
    order: Sequence[int],
    between: str,
    facts: Facts,
    broken: set[int],
    secrets: Counter[str],
) -> None:
    """Add to ``broken`` those fields over which a stretch of their joined text goes."""
    starts: list[int] = []
    text = ""
    for i in order:
        starts.append(len(text))
        text += fields[i] + between
    stretches, hidden = _found(text, facts)
    for found in guard.find(text):
        stretches.append((found.start, found.stop))
        hidden[found.type] += 1
    for start, stop in stretches:
        first = bisect_right(starts, start) - 1
        last = bisect_right(starts, max(start, stop - 1)) - 1
        if last > first:
            broken |= {order[n] for n in range(first, last + 1)}
    if broken:
        secrets.update(hidden)


_LEANS = re.compile(
    r"(?:and|but|so|then|also|or)?\s*(?:he|she|they|it|this|these|those|that|them|such|his"
    r"|her|their|its)\b",
    re.I,
)


def _cut(text: str, stretches: Sequence[tuple[int, int]]) -> tuple[str, int]:
    """``text`` without the sentences that the stretches touch, nor those that lean on one that
    went; and how many went. A line loses its mark and its label with its last sentence."""
    parts = sentences(text)
    starts = [part.start for part in parts]
    gone: set[int] = set()
    for start, stop in stretches:
        i = max(0, bisect_right(starts, start) - 1)
        touched = set()
        while i < len(parts) and parts[i].start < stop:
            if parts[i].stop > start:
                touched.add(i)
            i += 1
        if not touched or (i and parts[min(touched)].line <= start < parts[min(touched)].start):
            # In a mark or a label: it stands for all the line.
            line = parts[min(bisect_right(starts, start), len(parts) - 1)].line if parts else 0
            touched |= {n for n, part in enumerate(parts) if part.line == line}
        gone |= touched
    for i in range(1, len(parts)):
        same = parts[i].line == parts[i - 1].line
        if same and i - 1 in gone and _LEANS.match(text, parts[i].start):
            gone.add(i)
    return _without(text, parts, gone), max(1, len(gone))


def _without(text: str, parts: Sequence[Sentence], gone: set[int]) -> str:
    if len(gone) == len(parts):
        return ""
    alive = {part.line for i, part in enumerate(parts) if i not in gone}
    pieces = []
    at = 0
    for i, part in enumerate(parts):
        if i not in gone:
            continue
        whole = part.line not in alive
        start = part.line if whole else part.start
        stop = len(text)
        if i + 1 < len(parts):
            following = parts[i + 1]
            stop = following.start if following.line == part.line else following.line
        if (
            not whole
            and stop > part.stop
            and (i + 1 == len(parts) or parts[i + 1].line != part.line)
        ):
            stop = part.stop
            start -= len(text[at:start]) - len(text[at:start].rstrip())
        pieces.append(text[at : max(at, start)])
        at = max(at, stop)
    pieces.append(text[at:])
    return "".join(pieces).rstrip()
