"""A sentence without what identifies: ``<path>/run.sh``, ``<name>``, ``<number>``."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from isovist.kernel.learning.facts import words_of
from isovist.kernel.learning.lexicon import COMMON, FUNCTION, TERMS, stems
from isovist.kernel.learning.values import Value, plain_number, values

PLACEHOLDER = re.compile(r"<(?:path|name|number|email|date|host|url|id|ip)>")
_QUOTED = re.compile(
    r"\"([^\"\n]{1,120})\"|“([^”\n]{1,120})”|`([^`\n]{1,120})`|«([^»\n]{1,120})»"
    r"|(?<![\w'])'([^'\n]{1,120})'(?![\w'])"
)
_CAPITAL = re.compile(
    r"(?<![<\w/.@#-])[A-Z][\w'’-]*+(?:\s+(?:(?:van|von|de|del|da|di|la|der"
    r"|bin)\s+){0,2}[A-Z][\w'’-]*+){0,4}+"
)
# What is written like a part of a program: an option, an error's name, a call, a pattern of a date.
_CODE = re.compile(
    r"-{1,2}[a-z][\w-]*(?:=\S*)?|[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt)"
    r"|[\w.]+\(.{0,60}\)|\.[a-z0-9]{1,5}"
    r"|[%YyMmDdHhSsTZ/:.,\- ]{2,20}|[^\w\s]{1,12}|\\[a-z0-9]{1,5}|[0-9]{1,3}|\w",
)
_PART = re.compile(
    r"(<(?:path|name|number|email|date|host|url|id|ip)>|(?<![\w-])--?[a-zA-Z][\w-]*"
    r"|`[^`\n]{1,120}`|\b[A-Z]{2,}[0-9]*(?:_[A-Z0-9]+)+\b|\.?\b[A-Za-z_][\w.]{0,60}\(|\b[a-z_]\w*=\w*"
    r"|&#?\w{2,8};|%[A-Za-z]|\\[a-z0-9]{1,4}\b"
    r"|\b[A-Za-z_]\w*(?:Error|Exception|Warning)\b|\b(?:utf|cp|iso|latin|sha)[-_]?[0-9]{1,5}"
    r"(?:[-_](?:[0-9]{1,2}|sig|le|be))?\b|\b[DdMmYyHhSs]{2,4}(?:[./:-][DdMmYyHhSs]{2,4})+\b)"
)
"""What is code in a generalised sentence, and placeholders."""
_WORD = re.compile(r"[^\W\d_](?:[\w'’-]*\w)?")
_SIGNS = re.compile(r"[_().=\[\]{}|$%\\-]")
_CONSTANT = re.compile(r"[A-Z]{2,}[0-9]*(?:_[A-Z0-9]+)+")
_REPEATED = re.compile(r"<name>(?:[\s,]+<name>)+")
_KINDS = {
    "url": "<url>", "email": "<email>", "date": "<date>", "ip": "<ip>", "host": "<host>",
    "handle": "<name>", "number": "<number>", "id": "<id>",
}  # fmt: skip


class General(NamedTuple):
    """A sentence without identifying detail. ``unknown`` are the stems in it of words that are
    neither ordinary nor allowed; ``terms`` counts what speaks for its being about the work."""

    text: str
    unknown: frozenset[str]
    terms: int


def generalise(
    sentence: str,
    allowed: Set[str] = frozenset(),
    tainted: Set[str] = frozenset(),
    *,
    blank: bool = False,
) -> General:
    """``sentence`` with a placeholder for each value, quotation and name that is not ordinary.
    Stems in ``allowed`` are as good as ordinary ones, those in ``tainted`` never are. ``blank``:
    unknown words give way to a placeholder as well."""
    pieces = []
    at = 0
    for value in values(sentence):
        pieces += [sentence[at : value.start], _general(value, allowed, tainted)]
        at = value.stop
    text = "".join([*pieces, sentence[at:]])
    text = _QUOTED.sub(lambda m: _unquoted(m, allowed, tainted), text)
    text = _CAPITAL.sub(lambda m: _named(m, text, allowed, tainted), text)
    kept, unknown, terms = [], set(), 0
    for part in _PART.split(text):
        if _PART.fullmatch(part):
            terms += not PLACEHOLDER.fullmatch(part)
            unknown |= content(part) & tainted
        else:
            found, odd, more = _words(part, allowed, tainted, blank)
            part = found
            unknown |= odd
            terms += more
        kept.append(part)
    text = _REPEATED.sub("<name>", " ".join("".join(kept).split()))
    return General(text, frozenset(unknown), terms)


def _words(
    text: str, allowed: Set[str], tainted: Set[str], blank: bool
) -> tuple[str, set[str], int]:
    """``text``, which is prose, its unknown words, and how many of its words are of the work."""
    unknown, terms = set(), 0
    found = list(_WORD.finditer(text))
    pieces = []
    at = 0
    for m in found:
        words = words_of(m[0])
        odd = False
        for word, stem in zip(words, stems(words), strict=True):
            if word in FUNCTION or len(word) < 2 or word.isdigit():
                continue
            terms += stem in TERMS
            if stem in tainted or not (stem in COMMON or stem in allowed):
                odd = True
                if not blank:
                    unknown.add(stem)
        if odd and blank:
            pieces += [text[at : m.start()], "<name>"]
            at = m.end()
    return "".join([*pieces, text[at:]]), unknown, terms


def ordinary(text: str, allowed: Set[str] = frozenset(), tainted: Set[str] = frozenset()) -> bool:
    """Whether all words of ``text`` are ordinary or allowed, and none is tainted."""
    words = words_of(text)
    return all(
        word in FUNCTION
        or len(word) < 2
        or (word.isdigit() and len(word) < 4)
        or ((stem in COMMON or stem in allowed) and stem not in tainted)
        for word, stem in zip(words, stems(words), strict=True)
    )


def _general(value: Value, allowed: Set[str], tainted: Set[str]) -> str:
    if value.kind == "number":
        return _number(value.text, tainted)
    if value.kind != "path":
        return _KINDS[value.kind]
    parts = [p for p in re.split(r"[/\\]", value.text) if p]
    absolute = value.text[:1] in "/~\\" or value.text[1:2] == ":" or len(parts) > 3
    if not absolute and all(ordinary(p, allowed, tainted) for p in parts):
        return value.text
    name = parts[-1] if parts else ""
    stem, dot, end = name.rpartition(".")
    if dot and ordinary(stem, allowed, tainted) and re.fullmatch(r"[A-Za-z0-9]{1,5}", end):
        return f"<path>/{name}"
    if dot and ordinary(end):
        return f"<path>/<name>.{end}"
    return "<path>"


def _number(text: str, tainted: Set[str]) -> str:
    """A number of up to four digits stays where nothing says that it is somebody's."""
    digits = re.findall(r"[0-9]+", text)
    if sum(map(len, digits)) > 4 or any(part in tainted for part in digits):
        return "<number>"
    return text


def _unquoted(m: re.Match[str], allowed: Set[str], tainted: Set[str]) -> str:
    inner = m[m.lastindex or 0]
    if PLACEHOLDER.search(inner):
        return m[0]
    if m[0][0] == "`" and _SIGNS.search(inner) and not content(inner) & tainted:
        return m[0]
    if _CODE.fullmatch(inner.strip()) or ordinary(inner, allowed, tainted):
        return m[0]
    return f"{m[0][0]}<name>{m[0][-1]}"


def _named(m: re.Match[str], text: str, allowed: Set[str], tainted: Set[str]) -> str:
    words = m[0].split()
    if ordinary(m[0], allowed, tainted) or (len(words) == 1 and _CODE.fullmatch(words[0])):
        return m[0]
    if _CONSTANT.fullmatch(m[0]) and not content(m[0]) & tainted:
        return m[0]
    before = text[max(0, m.start() - 8) : m.start()].rstrip()
    if not before or before[-1] in ".:!?":
        # A sentence begins with a capital of its own: the first word is a name only with others.
        if len(words) == 1:
            return m[0]
        if ordinary(words[0], allowed, tainted):
            return f"{words[0]} {_rest(' '.join(words[1:]), allowed, tainted)}"
    return "<name>"


def _rest(text: str, allowed: Set[str], tainted: Set[str]) -> str:
    code = _CONSTANT.fullmatch(text) and not content(text) & tainted
    return text if code or ordinary(text, allowed, tainted) else "<name>"


def content(text: str) -> set[str]:
    """The stems of the words of ``text`` that are not ordinary, and its longer numbers."""
    words = words_of(text)
    return {
        stem
        for word, stem in zip(words, stems(words), strict=True)
        if len(word) > 1
        and word not in FUNCTION
        and stem not in COMMON
        and (not word.isdigit() or not plain_number(word))
    }


_FOR = frozenset(["for", "named", "called", "by", "from", "dear", "to", "of", "with"])
_ALONE = re.compile(r"\s*(?:$|[.,;:!?)]|\b(?:and|or|in|on|with|at|who|whose)\b)")


def said_openly(text: str) -> set[str]:
    """The stems of words of a task, or of a verifier's words, that are not ordinary and yet no
    name: alone, in small letters, in no quotation and no value."""
    pieces = []
    at = 0
    for value in values(text):
        pieces.append(text[at : value.start])
        at = value.stop
    text = _QUOTED.sub(".", ".".join([*pieces, text[at:]]))
    found: set[str] = set()
    before, odd_before, end = "", False, 0
    last: set[str] = set()
    for m in _WORD.finditer(text):
        odd = content(m[0])
        near = not text[end : m.start()].strip()
        if odd and odd_before and near:
            found -= last  # two of them are a name
        elif (
            odd
            and m[0][0].islower()
            and not (before in _FOR and near and _ALONE.match(text, m.end()))
        ):
            last = odd - found
            found |= odd
        before, odd_before, end = m[0].lower(), bool(odd), m.end()
    return found
