"""What the kernel knows as protected, in the form in which it is looked for.

A fact is a value (an address, a number, a date, a name, something quoted), a word of a personal
statement that is not ordinary, or a run of words of such a statement. Facts are told by kind and by
rarity, so that a protected preference ("amounts with a decimal comma") takes no technical word
out of the reusable text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

import msgspec

from isovist.kernel.learning.disguise import ROT13
from isovist.kernel.learning.lexicon import COMMON, FUNCTION, stems
from isovist.kernel.learning.sentences import (
    looks_personal,
    sentences,
    speaks_of_person,
    states_wish,
)
from isovist.kernel.learning.values import days, plain_number, values
from isovist.storage.folding import fold

SHORTEST = 3
"""Letters or digits of the shortest fact."""
LONGEST = 48
"""Letters and digits of a fact that are looked at; of a longer one the first so many."""
RUN = 5
"""Words of a run by which a copied sentence is known, one of them a person or unusual."""
CLAUSE = 8
"""Words of a run of a personal sentence that need not be either."""
SHORT_SENTENCE = range(3, 8)
"""Words of a sentence that is looked for as a whole."""
TURNED = 5
"""Letters and digits of the shortest fact that is looked for backwards and in rot13."""
STEM = 10
"""Letters and digits by which a fact that is spread over several words is followed."""

# Other scripts' letters that are drawn as Latin ones, and Latin ones that do not fall apart.
_LOOKALIKE = str.maketrans(
    "аеорсухіјѕԁһвкмнтАВЕКМНОРСТУХІЈЅαβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧøØłŁđĐıſ",
    "aeopcyxijsdhbkmhtABEKMHOPCTYXIJSabeikvoptuxABEZHIKMNOPTYXoOlLdDis",
)


class _Plain(dict[int, int | None]):
    """For ``str.translate``: each letter without its accents; one character for one."""

    def __missing__(self, code: int) -> int | None:
        first = unicodedata.normalize("NFKD", chr(code))[0]
        self[code] = plain = _LOOKALIKE.get(ord(first), ord(first))
        return plain


_PLAIN = _Plain()
# One ideograph, a run of small letters with its capital, of capitals, of digits, of other letters.
_TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+"
    r"|[^\W\d_A-Za-z\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class Tokens(NamedTuple):
    """The words of a text, and the parts of longer ones, in small plain letters; where each stands
    in the text."""

    words: list[str]
    starts: list[int]
    stops: list[int]


def plain(text: str) -> str:
    """``text`` without accents and look-alikes; as many characters."""
    return text if text.isascii() else text.translate(_PLAIN)


def tokens(text: str) -> Tokens:
    """The tokens of a folded text."""
    found = list(_TOKEN.finditer(plain(text)))
    return Tokens(
        [m[0].lower() for m in found], [m.start() for m in found], [m.end() for m in found]
    )


def words_of(text: str) -> list[str]:
    """The tokens' words alone."""
    words: list[str] = _TOKEN.findall(plain(text))
    return [word.lower() for word in words]


def squeezed(text: str) -> str:
    """The letters and digits of a folded text, small and plain, at most :data:`LONGEST`."""
    return "".join(words_of(text[: 4 * LONGEST]))[:LONGEST]


_NAMING = re.compile(
    r"(?:\b(?:(?:my|full|first|last|sur|given|family|user|client|customer|contact|nick|maiden|"
    r"display)[- ]?names?(?:\s+(?:is|was)|\s*[:=])|name\s*[:=]|named|(?:is|am|'m|be"
    r"|being)\s+called|"
    r"call me|address me as|i am|i'm|this is|signed|regards|mr|mrs|ms|dr|prof|herr|frau|"
    r"ich heiße|mein name ist|je m'appelle|me llamo|mi chiamo|"
    r"(?:wife|husband|partner|son|daughter|mother|father|brother|sister|boss|doctor|friend|"
    r"colleague|neighbou?r|therapist|lawyer)(?:\s+is|\s+called|\s+named|,)?)[.,:]?"
    r"|我叫|姓名[:：]?|名字[是叫:：]?)[ \t]*"
    r"([\"'“]?[^\W\d_][\w'’-]*+(?:[ \t]+[^\W\d_][\w'’-]*+){0,2})",
    re.I,
)
_CAPITAL = re.compile(
    r"[A-Z][\w'-]*+(?:[ \t]+(?:(?:van|von|de|del|da|di|la|le|al|bin"
    r"|der)[ \t]+){0,2}[A-Z][\w'-]*+)*+"
)
_QUOTED = re.compile(
    r"\"([^\"\n]{3,80})\"|“([^”\n]{3,80})”|`([^`\n]{3,80})`|«([^»\n]{3,80})»"
    r"|(?<!\w)'([^'\n]{3,80})'(?!\w)"
)
_LABELLED = re.compile(r"^[ \t>*|-]*([A-Za-z][\w /-]{1,40}?)[ \t]*[:=|][ \t]+(\S.{0,120})$", re.M)
_ACTS = re.compile(r"['’]s\b|\s+(?:is|has|lives|works|likes|prefers|wants|was)\b")
_TASK = re.compile(r"\s*[-*]?\s*(?:task|about|situation|the task is like):", re.I)
"""What a protected text says of the task itself stands in the reusable one as well."""
_OF_STREAM = frozenset(
    [
        "task",
        "lesson",
        "preference",
        "context",
        "remark",
        "note",
        "here",
        "check",
        "check",
        "said",
        "perhaps",
        "tried",
        "situation",
    ]
)


class Facts(msgspec.Struct, frozen=True):
    """Facts to look for.

    ``keys`` are squeezed values and words, ``heads`` the beginnings of them at every length up to
    :data:`STEM`, ``long`` those that count inside a longer word too, by their first six
    characters.
    ``rare`` are stems of words; ``runs`` and ``whole`` hashes of runs of stems, which begin with
    one of ``first``; ``dates`` days. ``names`` are proper names, as written.
    """

    keys: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()
    long: dict[str, tuple[str, ...]] = {}
    rare: frozenset[str] = frozenset()
    runs: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    first: frozenset[str] = frozenset()
    dates: frozenset[tuple[int, int, int]] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Iterable[str], names: Iterable[str] = ()) -> Facts:
        """The facts of protected ``texts``, and ``names`` (the user's own, which is one too)."""
        gathered = _Gathered()
        for text in texts:
            gathered.take(text)
        for name in names:
            gathered.name(fold(name).text, alone=True)
        return gathered.facts()

    def __or__(self, other: Facts) -> Facts:
        """What either knows: a user's facts may be kept, and those of one submission be added."""
        long = dict(self.long)
        for head, those in other.long.items():
            long[head] = tuple(sorted({*long.get(head, ()), *those}))
        return Facts(
            self.keys | other.keys,
            self.heads | other.heads,
            long,
            self.rare | other.rare,
            self.runs | other.runs,
            self.whole | other.whole,
            self.first | other.first,
            self.dates | other.dates,
            self.names | other.names,
        )

    def __bool__(self) -> bool:
        return bool(self.keys or self.rare or self.runs or self.whole or self.dates)


class _Gathered:
    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.rare: set[str] = set()
        self.runs: set[int] = set()
        self.whole: set[int] = set()
        self.first: set[str] = set()
        self.dates: set[tuple[int, int, int]] = set()
        self.names: set[str] = set()

    def take(self, text: str) -> None:
        text = fold(text).text
        for value in values(text):
            self.value(value.kind, value.text)
        for m in _NAMING.finditer(text):
            self.name(m[1], alone=False)
        for m in _LABELLED.finditer(text):
            self.labelled(m[1], m[2])
        for sentence in sentences(text):
            if not _TASK.match(text, sentence.line):
                self.sentence(text[sentence.start : sentence.stop])

    def value(self, kind: str, text: str) -> None:
        if kind == "date":
            self.dates |= days(text)
        if kind == "path":
            for part in re.split(r"[/\\]", text):
                self.uncommon(part)
        if kind in ("email", "url", "host", "handle"):
            for part in re.split(r"[^\w-]+", text):
                self.uncommon(part)
        if kind == "number":
            for part in re.findall(r"[0-9]{4,}", text):
                if not plain_number(part):
                    self.key(part)
        self.uncommon(text)

    def uncommon(self, text: str) -> None:
        """``text`` is a key unless all its words are ordinary."""
        words = words_of(text)
        if all(w.isdigit() and len(w) < 3 for w in words):
            if sum(map(len, words)) >= 5:
                self.key(text)
        elif not all(
            w in FUNCTION or s in COMMON for w, s in zip(words, stems(words), strict=True)
        ):
            self.key(text)

    def key(self, text: str) -> None:
        key = squeezed(text)
        if len(key) >= SHORTEST or (len(key) == 2 and _IDEOGRAPH.match(key)):
            self.keys.add(key)

    def name(self, text: str, *, alone: bool) -> None:
        """A proper name, and each uncommon word of it. ``alone``: its words count however
        ordinary they are."""
        words = re.findall(r"[^\W\d_][\w'’-]*", text)[:4]
        if not alone:
            words = list(takewhile(lambda w: w[0].isupper() or not _common(w), words))
        kept = [w for w in words if alone or not _common(w)]
        if not kept:
            return
        if alone or kept[0][0].isupper():
            self.names.add(" ".join(words))
        for word in kept:
            self.key(word)
        if len(words) > 1:
            self.key(" ".join(words))

    def labelled(self, label: str, value: str) -> None:
        if label.lower().strip() in _OF_STREAM or not looks_personal(label):
            return
        self.uncommon(value)
        self.words(value)

    def sentence(self, text: str) -> None:
        for m in _CAPITAL.finditer(text):
            words = m[0].split()
            first = m.start() == 0 or text[: m.start()].rstrip()[-1:] in ("", ":", ".", "(", '"')
            if first and len(words) == 1 and not _ACTS.match(text, m.end()):
                continue
            if any(not _common(w) for w in words):
                self.name(m[0], alone=False)
        about = speaks_of_person(text)
        if about or looks_personal(text):
            for quoted in _QUOTED.finditer(text):
                self.uncommon(quoted[quoted.lastindex or 0])
        stemmed = stems(words_of(text))
        odd = [stem for stem in stemmed if stem not in COMMON and not stem.isdigit()]
        wish = states_wish(text)
        if not wish and (about or looks_personal(text) or len(odd) > 1):
            self.words(text)
        if about or wish or odd or looks_personal(text):
            if len(stemmed) in SHORT_SENTENCE:
                self.whole.add(hash(tuple(stemmed)))
                self.first.add(stemmed[0])
            kept = about or wish or len(odd) > 1
            for i in range(len(stemmed) - RUN + 1):
                run = tuple(stemmed[i : i + RUN])
                if any(s not in COMMON for s in run) or (kept and any(s in _TELLING for s in run)):
                    self.runs.add(hash(run))
                    self.first.add(run[0])
            if about or wish:
                for i in range(len(stemmed) - CLAUSE + 1):
                    self.runs.add(hash(tuple(stemmed[i : i + CLAUSE])))
                    self.first.add(stemmed[i])

    def words(self, text: str) -> None:
        words = words_of(text)
        for word, stem in zip(words, stems(words), strict=True):
            if len(word) >= 4 and not word.isdigit() and stem not in COMMON:
                self.rare.add(stem)
                self.key(word)

    def facts(self) -> Facts:
        turned = {
            other
            for key in self.keys
            if len(key) >= TURNED
            for other in (key[::-1], key.translate(ROT13))
            if not (other.isalpha() and _common(other))
        }
        keys = self.keys | turned
        heads = {key[:n] for key in keys for n in range(1, min(len(key), STEM) + 1)}
        long: dict[str, list[str]] = {}
        for key in keys:
            digits = sum(map(str.isdigit, key))
            if len(key) >= (7 if digits else 8):
                long.setdefault(key[:6], []).append(key)
        return Facts(
            frozenset(keys),
            frozenset(heads),
            {head: tuple(sorted(those)) for head, those in long.items()},
            frozenset(self.rare),
            frozenset(self.runs),
            frozenset(self.whole),
            frozenset(self.first),
            frozenset(self.dates),
            frozenset(self.names),
        )


_TELLING = frozenset(
    stems(
        [
            "i",
            "me",
            "my",
            "mine",
            "he",
            "she",
            "him",
            "his",
            "her",
            "user",
            "customer",
            "client",
            "person",
            "they",
            "their",
            "we",
            "our",
        ]
    )
)


def _common(word: str) -> bool:
    word = plain(word).lower().removesuffix("'s").strip("'’-")
    parts = [part for part in re.split(r"['’-]", word) if not part.isdigit()]
    return word in FUNCTION or all(stem in COMMON for stem in stems(parts))
