"""Whether two entries say the same thing: by rules alone, and when in doubt they do not.

Two entries are the same iff the same words stand in their situations and in their lessons
(inflection, function words and the order of clauses aside), nothing turns one of them round that
does not turn the other (a negation, a condition, a bound, a hedge, a value), and no two words
stand in each other's place (``copy a to b``, ``copy b to a``).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, islice

import msgspec

from isovist.kernel.learning.wording import (
    COMPOUNDS,
    DROPPED,
    IRREGULAR,
    NUMBERS,
    PHRASES,
    PLACING,
    SAME,
    UNITS,
)
from isovist.storage.words import index_terms

BREAK, PAUSE, AND, OF = "|", ",", "&", "@of"
"""Between words: the end of a clause; what may be one, or may part the items of a list; what joins
two words. Other words of place stand as ``@to``: they count for what stands beside them."""
BOUND = frozenset({"+unless", "+except", "+even", "+before", "+after", "+until", "+only", "+or",
                   "+than", "+else", "+<=", "+>=", "+>", "+<"})  # fmt: skip
"""Marks that both of two entries hold, or neither. ``+not`` counts by what it denies, ``+if`` only
where its condition is not the situation's own."""
BINDING = frozenset({"+if", "+unless", "+except", "+even", "+before", "+after", "+until", "+than"})
"""Marks that a clause follows. Of the clauses of one mark in two entries, one holds all words of
the other: a word may be an ``it`` in one of them, but another clause is another condition."""
POINTED = frozenset({"+not", "+only"})
"""Marks that count together with the word that they stand before."""

_QUOTED = re.compile(r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|(?<!\w)'([^'\n]{1,200})'(?!\w)")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*(?:-[^\W\d_]+)*")
_NUMBER = re.compile(r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:-?(%|°?[A-Za-z]{1,12}))?")
_CAMEL = re.compile(r"[a-z][A-Z]")
_PUNCTUATION = re.compile("([、。，！？；：])")
_STRAIGHT = str.maketrans({**dict.fromkeys("‘’‚", "'"), **dict.fromkeys("“”„«»", '"')})
_LONGEST = max(len(phrase.split()) for phrase in PHRASES)
_IZE = re.compile(r"(?<=\w{3})is(?=(?:e[drs]?|ing|ation|ations|er|ers)$)")
_EXCHANGED = 2
_REACH = 2
"""Tokens on either side that a word is known by when its place is looked at."""


Places = dict[str, frozenset[str]]
Lists = frozenset[frozenset[str]]


class Features(msgspec.Struct, frozen=True):
    """What one entry says. Sets of tokens: words by their stems, ``=`` before an exact value.

    ``marks`` of situation and lesson, each with ``s`` or ``l`` before it; ``pointed`` counts marks
    with their words, and ``clauses`` has the words that follow each binding one. Of situation and
    lesson, ``places`` says beside what each word stands that stands there once, and ``lists`` which
    words are items of one list.
    """

    situation: frozenset[str]
    lesson: frozenset[str]
    marks: frozenset[str]
    hedges: frozenset[str]
    pointed: frozenset[tuple[str, str, int]]
    clauses: dict[str, frozenset[str]]
    places: tuple[Places, Places]
    lists: tuple[Lists, Lists]

    @property
    def words(self) -> frozenset[str]:
        return self.situation | self.lesson

    @property
    def values(self) -> frozenset[str]:
        """Numbers, code, options, quoted symbols: what is right to the letter or wrong."""
        return frozenset(word for word in self.words if word[0] == "=")


def features(situation: str, lesson: str) -> Features:
    """What an entry says, for comparison."""
    # A situation is a condition as it stands: "when exporting" and "exporting" are one.
    at = [token for token in tokens(situation) if token != "+if"]
    to = tokens(lesson)
    where, what = _words(at), _words(to)
    marks = {f"s{token}" for token in at if token in BOUND}
    marks |= {f"l{token}" for token in to if token in BOUND}
    clauses = {f"s{mark}": clause for mark, clause in _clauses(at).items()}
    clauses |= {f"l{mark}": clause for mark, clause in _clauses(to).items()}
    if clauses.get("l+if", where) - {"%all"} <= where:
        clauses.pop("l+if", None)  # the situation says so already
    else:
        marks.add("l+if")
    pointed = Counter(f"s{mark}" for mark in _pointed(at))
    pointed.update(f"l{mark}" for mark in _pointed(to))
    return Features(
        situation=where,
        lesson=what,
        marks=frozenset(marks),
        hedges=frozenset(token for token in (*at, *to) if token[0] == "~"),
        pointed=frozenset((mark[0], mark[1:], count) for mark, count in pointed.items()),
        clauses=clauses,
        places=(_places(at), _places(to)),
        lists=(frozenset(_lists(at)), frozenset(_lists(to))),
    )


def likeness(a: Features, b: Features) -> float:
    """The share of their words that two entries have in common, 0 to 1."""
    either = len(a.words | b.words)
    return len(a.words & b.words) / either if either else 0.0


def same(a: Features, b: Features) -> bool:
    """Whether the two say the same thing. Symmetric; in doubt false."""
    if not a.lesson or conflict(a, b) or a.pointed != b.pointed:
        return False
    denies = any(mark.startswith("+not") for _, mark, _ in a.pointed)
    slack = frozenset() if denies else frozenset({"%all"})  # "all" matters where it is denied
    return (
        a.situation ^ b.situation <= slack
        and a.lesson ^ b.lesson <= slack | a.situation & b.situation
        and all(
            clause <= b.clauses[mark] or b.clauses[mark] <= clause
            for mark, clause in a.clauses.items()
            if mark in b.clauses
        )
        and not _swapped(a, b)
    )


def conflict(a: Features, b: Features) -> str:
    """Why the two can never be one, whoever asks; empty where no rule forbids it. Both must hold
    the same values, deny something or nothing, be bound by the same kinds of condition, and be
    equally sure."""
    if a.values != b.values:
        return "values"
    if _denies(a) != _denies(b):
        return "negation"
    if a.hedges != b.hedges:
        return "hedge"
    if a.marks != b.marks:
        return "condition"
    return ""


def _denies(a: Features) -> frozenset[str]:
    return frozenset(part for part, mark, _ in a.pointed if mark.startswith("+not"))


# -- from text to tokens


def tokens(text: str) -> list[str]:
    """``text`` in order: stems, values (``=`` before them), marks (``+``), hedges (``~``), and
    breaks. Any text will do."""
    text = unicodedata.normalize("NFKC", text.translate(_STRAIGHT))
    found: list[str] = []
    start = 0
    for quoted in _QUOTED.finditer(text):
        found += _plain(text[start : quoted.start()])
        for piece in quoted.group(quoted.lastindex or 0).split():
            found += _stems(piece) if piece.isalpha() and piece.islower() else [f"={piece}"]
        start = quoted.end()
    found += _plain(text[start:])
    return _evened(found)


def _evened(found: list[str]) -> list[str]:
    """``name of file`` as ``file name``; no pause before ``then``."""
    plain: list[str] = []
    for at, token in enumerate(found):
        if token == PAUSE and found[at + 1 : at + 2] == ["+then"]:
            continue
        if token != OF:
            plain.append(token)
        elif plain and _is_word(plain[-1]) and at + 1 < len(found) and _is_word(found[at + 1]):
            found[at + 1], plain[-1] = plain[-1], found[at + 1]
    return plain


def _plain(text: str) -> list[str]:
    """The tokens of a text in which nothing is quoted."""
    raw: list[str] = []
    for chunk in _PUNCTUATION.sub(r" \1 ", text).split():
        raw += _pieces(chunk)
    return _said(_counted(raw))


def _pieces(chunk: str) -> list[str]:
    """What stands between two spaces: breaks, and words (as they are) or one value between."""
    core = chunk.lstrip("([{\"'")
    before = [BREAK] * (core != chunk and chunk[0] == "(")
    stripped = core.rstrip(",.;:!?\"'")
    while stripped[-1:] in (")", "]", "}") and "([{"[")]}".index(stripped[-1])] not in stripped:
        stripped = stripped[:-1].rstrip(",.;:!?\"'")
    tail = core[len(stripped) :]
    after = [BREAK] if set(tail) & set(".;:!?)") else [PAUSE] * ("," in tail)
    if not stripped or stripped in ("-", "–", "—", "…", "--"):
        return [*before, *after] or [BREAK]
    core = stripped.removesuffix("'s")
    if core.lower() in PHRASES:
        return [*before, core.lower(), *after]
    if _WORD.fullmatch(core) and not _CAMEL.search(core):
        parts = core.split("-")
        if min(map(len, parts)) < 3 and parts[0].lower() != "non":  # e-mail, re-run
            parts = ["".join(parts)]
        return [*before, *parts, *after]
    if core == AND:
        return [*before, AND, *after]
    return [*before, f"={core}", *after]


def _counted(raw: list[str]) -> list[str]:
    """Numbers in one form, with their units."""
    found: list[str] = []
    at = 0
    while at < len(raw):
        piece = raw[at]
        written = NUMBERS.get(piece.lower(), piece[1:] if piece[0] == "=" else "")
        match = _NUMBER.fullmatch(written)
        if match is None:
            found.append(piece)
        else:
            digits, unit = match[1].replace(",", ""), match[2] or ""
            if found and found[-1].lower() in ("about", "around"):
                found[-1] = "roughly"
            if not unit and at + 1 < len(raw) and raw[at + 1].lower() in UNITS:
                at += 1
                unit = raw[at]
            found.append(f"={digits} {UNITS.get(unit.lower(), unit)}".rstrip())
        at += 1
    return found


def _said(raw: list[str]) -> list[str]:
    """Phrases replaced, words stemmed, what says nothing left out."""
    found: list[str] = []
    at = 0
    while at < len(raw):
        piece = raw[at]
        if piece[0] == "=" or piece in (BREAK, PAUSE, AND):
            found.append(piece)
            at += 1
            continue
        for length in range(min(_LONGEST, len(raw) - at), 0, -1):
            meant = PHRASES.get(" ".join(raw[at : at + length]).lower())
            if meant is not None:
                for word in meant.split():
                    found += [word] if word[0] in "+~%@&" else _stems(word)
                at += length
                break
        else:
            begins = not found or found[-1] in (BREAK, PAUSE)
            found += _one(piece, raw[at + 1 : at + 2], begins)
            at += 1
    return found


_FOLLOWED = frozenset(
    ("the", "a", "an", "all", "it", "this", "that", "they", "you", "its", "your", "every", "each")
)
"""What stands behind a ``once`` that means ``after``."""


def _one(word: str, following: list[str], begins: bool) -> list[str]:
    """The tokens of a word that stands in no phrase."""
    low = word.lower()
    if low.endswith("n't"):
        return ["+not"]
    if low == "once" and (begins or (following and following[0].lower() in _FOLLOWED)):
        return ["+after"]
    if low == "and":
        return [AND]
    if low in PLACING:
        return [f"@{PLACING[low]}"]
    if low in DROPPED and not (word == "A" and not begins):
        return []
    if low in COMPOUNDS:
        return [stem for part in COMPOUNDS[low] for stem in _stems(part)]
    return _stems(word)


def _stems(word: str) -> list[str]:
    low = word.lower()
    low = IRREGULAR.get(low, low)
    low = _IZE.sub("iz", low)
    return [_KIN.get(term, term) for term in index_terms(low)] or ([f"={word}"] if word else [])


_KIN = {
    term: first
    for word, head in SAME.items()
    for term, first in zip(index_terms(word), index_terms(head), strict=False)
}
"""By stem: the stem that stands for it."""


# -- from tokens to features


def _is_word(token: str) -> bool:
    return token not in (BREAK, PAUSE, AND) and token[0] not in "+~@"


def _words(found: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(_is_word, found))


def _clauses(found: Sequence[str]) -> dict[str, frozenset[str]]:
    """By binding mark: the words from there to the end of the clause."""
    clauses: dict[str, set[str]] = {}
    mark = ""
    for token in found:
        if token in BINDING:
            mark = token
            clauses.setdefault(mark, set())
        elif token in (BREAK, PAUSE, "+then"):
            mark = ""
        elif mark and _is_word(token):
            clauses[mark].add(token)
    return {mark: frozenset(clause) for mark, clause in clauses.items()}


def _pointed(found: Sequence[str]) -> Iterable[str]:
    for at, token in enumerate(found):
        if token in POINTED:
            target = next((word for word in found[at + 1 :] if _is_word(word)), "")
            yield f"{token} {target}"


def _places(found: Sequence[str]) -> Places:
    """By word that stands here once: what stands beside it, left (``<``) and right (``>``), up to
    the end of its clause. Of a list, each item stands beside what the whole list does."""
    counts = Counter(filter(_is_word, found))
    listed = {item: items for items in _lists(found) for item in items}
    places: Places = {}
    for at, token in enumerate(found):
        if not _is_word(token) or counts[token] > 1:
            continue
        own = listed.get(token)
        ends = {BREAK} if own else {BREAK, PAUSE, AND}
        others = own | {PAUSE, AND, "+or"} if own else frozenset()
        beside: list[str] = []
        for side, way in (("<", reversed(found[:at])), (">", found[at + 1 :])):
            near = (other for other in way if other not in others)
            for other in islice(near, _REACH):
                if other in ends:
                    break
                beside.append(side + other)
                if _is_word(other):
                    break
        places[token] = frozenset(beside)
    return places


def _lists(found: Sequence[str]) -> list[frozenset[str]]:
    """Single words that ``and`` or ``or`` joins, and those before them that pauses part."""
    lists: list[frozenset[str]] = []
    for at, token in enumerate(found):
        if token not in (AND, "+or") or at + 1 == len(found) or not _is_word(found[at + 1]):
            continue
        items = {found[at + 1]}
        last = at - 1 - (found[at - 1] == PAUSE)
        while last >= 0 and _is_word(found[last]):
            first = last
            while first and found[first - 1] not in (BREAK, PAUSE, AND):
                first -= 1
            parted = first > 0 and found[first - 1] == PAUSE
            if first < last and parted and len(items) == 1:
                break  # "last name, first name and age": items of more than a word
            items.add(found[last])
            if not parted:
                break
            last = first - 2
        if len(items) > 1:
            lists.append(frozenset(items))
    return lists


def _swapped(a: Features, b: Features) -> bool:
    """Whether two words stand in each other's place: each beside what the other one is beside
    there, and more so than beside what it is beside there itself."""
    return any(map(_exchanged, a.places, b.places, a.lists, b.lists))


def _exchanged(a: Places, b: Places, lists: Lists, others: Lists) -> bool:
    both = lists & others
    for x, y in combinations(sorted(a.keys() & b.keys()), 2):
        if a[x] == b[x] or a[y] == b[y] or any(x in items and y in items for items in both):
            continue
        # What they are to each other says nothing: "export of CSV" is "CSV export".
        pair = {side + word for side in "<>" for word in (x, y)}
        ax, ay, bx, by = a[x] - pair, a[y] - pair, b[x] - pair, b[y] - pair
        # One thing alone may be the trace of a word that is an "it" in one of them.
        if len(ax & by) + len(ay & bx) >= len(ax & bx) + len(ay & by) + _EXCHANGED:
            return True
    return False
