"""A sentence without what identifies: ``<path>/run.sh``, ``<name>``, ``<number>``."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from isovist.kernel.learning.facts import plain, words_of
from isovist.kernel.learning.lexicon import COMMON, FUNCTION, TERMS, stems
from isovist.kernel.learning.values import Value, values

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
_KINDS = {
    "url": "<url>", "email": "<email>", "date": "<date>", "ip": "<ip>", "host": "<host>",
    "handle": "<name>", "number": "<number>", "id": "<id>",
}  # fmt: skip


class General(NamedTuple):
    """A sentence without identifying detail. ``unknown`` are the stems in it of words that are
    neither ordinary nor allowed; ``terms`` counts technical ones."""

    text: str
    unknown: frozenset[str]
    terms: int


def generalise(
    sentence: str, allowed: Set[str] = frozenset(), tainted: Set[str] = frozenset()
) -> General:
    """``sentence`` with a placeholder for each value, quotation and name that is not ordinary.
    Stems in ``allowed`` are as good as ordinary ones, those in ``tainted`` never are."""
    pieces = []
    at = 0
    for value in values(sentence):
        pieces += [sentence[at : value.start], _general(value, allowed, tainted)]
        at = value.stop
    text = "".join([*pieces, sentence[at:]])
    text = _QUOTED.sub(lambda m: _unquoted(m, allowed, tainted), text)
    text = _CAPITAL.sub(lambda m: _named(m, text, allowed, tainted), text)
    text = re.sub(r"<name>(?:\s+<name>)+", "<name>", text)
    bare = PLACEHOLDER.sub(" ", text)
    bare = re.sub(
        r"(?<!\w)(?:-{1,2}[a-z][\w-]*|[A-Za-z_]\w*(?:Error|Exception|Warning))", " error ", bare
    )
    words = words_of(bare)
    unknown, terms = set(), 0
    for word, stem in zip(words, stems(words), strict=True):
        if word in FUNCTION or len(word) < 2 or word.isdigit():
            continue
        if stem in TERMS:
            terms += 1
        if stem in tainted or not (stem in COMMON or stem in allowed):
            unknown.add(stem)
    return General(" ".join(text.split()), frozenset(unknown), terms)


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


def _unquoted(m: re.Match[str], allowed: Set[str], tainted: Set[str]) -> str:
    inner = m[m.lastindex or 0]
    if PLACEHOLDER.search(inner):
        return m[0]
    if _CODE.fullmatch(inner.strip()) or ordinary(inner, allowed, tainted):
        return m[0]
    return f"{m[0][0]}<name>{m[0][-1]}"


def _named(m: re.Match[str], text: str, allowed: Set[str], tainted: Set[str]) -> str:
    words = m[0].split()
    if ordinary(m[0], allowed, tainted) or (len(words) == 1 and _CODE.fullmatch(words[0])):
        return m[0]
    before = text[: m.start()].rstrip()
    if not before or before[-1] in ".:!?":
        # A sentence begins with a capital of its own: the first word is a name only with others.
        if len(words) == 1:
            return m[0]
        if ordinary(words[0], allowed, tainted):
            return f"{words[0]} {_rest(m[0].split(None, 1)[1], allowed, tainted)}"
    return "<name>"


def _rest(text: str, allowed: Set[str], tainted: Set[str]) -> str:
    return text if ordinary(text, allowed, tainted) else "<name>"


def content(text: str) -> set[str]:
    """The stems of the words of ``text`` that are not ordinary."""
    words = words_of(plain(text))
    return {
        stem
        for word, stem in zip(words, stems(words), strict=True)
        if len(word) > 1 and word not in FUNCTION and stem not in COMMON and not word.isdigit()
    }
