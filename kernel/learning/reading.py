"""From a text to tokens that a rule can compare.

A token is a stem, or one of a few kinds that its first character tells: ``=`` an exact value (a
number with its unit, code, an option, a quoted symbol), ``+`` a mark that turns a sentence round or
binds it to a condition, ``~`` a hedge, ``@`` a word of place, ``%all`` a whole. Any text will do;
what the tables of :mod:`isovist.kernel.learning.wording` do not know is a word as it stands.
"""

from __future__ import annotations

import re
import unicodedata

from isovist.kernel.learning.wording import (
    AFTER_NAME,
    BEFORE_NUMBER,
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
two words."""
ENDS = frozenset({BREAK, PAUSE, "+then"})
"""What ends the clause of a mark, beside the next mark."""

_QUOTED = re.compile(r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|(?<!\w)'([^'\n]{1,200})'(?!\w)")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*(?:-[^\W\d_]+)*")
_NUMBER = re.compile(r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?:-?(%|°?[A-Za-z]{1,12}))?")
_CAMEL = re.compile(r"[a-z][A-Z]")
_PLAIN = str.maketrans(
    {**dict.fromkeys("‘’‚", "'"), **dict.fromkeys("“”„«»", '"')}
    | {"、": ", ", "，": ", ", "。": ". ", "；": "; ", "：": ": ", "！": "! ", "？": "? "}
)
_NAME = re.compile(r"(?<=[\w,'\"(-] )(?!I\b)[A-Z][^\W\d_]+")
_LONGEST: dict[str, int] = {}
"""By its first word: words of the longest phrase that begins so."""
for _phrase in PHRASES:
    _first, *_more = _phrase.split()
    _LONGEST[_first] = max(_LONGEST.get(_first, 0), 1 + len(_more))
_IZE = re.compile(r"(?<=\w{3})is(?=(?:e[drs]?|ing|ation|ations|er|ers)$)")


def tokens(text: str) -> list[str]:
    """``text`` in order: stems, values (``=`` before them), marks (``+``), hedges (``~``), and
    breaks. Any text will do."""
    text = unicodedata.normalize("NFKC", text.translate(_PLAIN))
    found: list[str] = []
    start = 0
    for quoted in _QUOTED.finditer(text):
        found += _plain(text[start : quoted.start()])
        for piece in quoted.group(quoted.lastindex or 0).split():
            found += _stems(piece) if piece.isalpha() and piece.islower() else [f"={piece}"]
        start = quoted.end()
    found += _plain(text[start:])
    return _evened(found)


def names(text: str) -> set[str]:
    """The stems of words that are written large within a sentence."""
    text = unicodedata.normalize("NFKC", text.translate(_PLAIN))
    return {stem for name in _NAME.finditer(text) for stem in _stems(name.group())}


def _evened(found: list[str]) -> list[str]:
    """What is said in two ways that a table of words cannot hold, in one: ``name of file`` as
    ``file name``, ``if it is not`` as ``unless it is``, no pause before ``then``."""
    plain: list[str] = []
    for at, token in enumerate(found):
        if token == PAUSE and found[at + 1 : at + 2] == ["+then"]:
            continue
        if token == OF and plain and is_word(plain[-1]) and is_word("".join(found[at + 1 :][:1])):
            found[at + 1], plain[-1] = plain[-1], found[at + 1]
            continue
        plain.append(token)
    for at, token in enumerate(plain):
        if token == "+if":
            end = next((n for n in range(at + 1, len(plain)) if plain[n] in ENDS), len(plain))
            clause = plain[at + 1 : end]
            if clause.count("+not") == 1 and not {AND, "+or"}.intersection(clause):
                plain[at] = "+unless"
                plain.pop(plain.index("+not", at))
    return plain


def _plain(text: str) -> list[str]:
    """The tokens of a text in which nothing is quoted."""
    raw: list[str] = []
    for chunk in text.split():
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
            for words, meant in BEFORE_NUMBER.items():
                if [word.lower() for word in found[-len(words) :]] == list(words):
                    found[-len(words) :] = meant
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
        longest = min(_LONGEST.get(piece.lower(), 0), len(raw) - at)
        for length in range(longest, 0, -1):
            meant = PHRASES.get(" ".join(raw[at : at + length]).lower())
            if meant is not None:
                for word in meant.split():
                    found += [word] if word[0] in "+~%@&," else _stems(word)
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
    if low in ("and", "but"):
        return [AND if low == "and" else PAUSE]
    if low in PLACING:
        return [f"@{PLACING[low]}"]
    if low == "a" and (_named(following) or (word == "A" and not begins)):
        return ["a"]
    if low in DROPPED:
        return []
    if low in COMPOUNDS:
        return [stem for part in COMPOUNDS[low] for stem in _stems(part)]
    return _stems(word)


def _named(following: list[str]) -> bool:
    """Whether an ``a`` is a name: what follows is not what an article stands before."""
    if not following or following[0] in (BREAK, PAUSE, AND):
        return True
    return following[0].lower() in AFTER_NAME


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


def is_word(token: str) -> bool:
    return token not in ("", BREAK, PAUSE, AND) and token[0] not in "+~@"
