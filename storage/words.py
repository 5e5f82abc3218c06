"""From text to terms: the same rules for what is indexed and for what is asked.

Any input is data. No character is syntax, none is an error: what is no word (control characters,
lone surrogates, punctuation) yields no term.

Rules, chosen by the text itself, mixed scripts included:

- Unicode form NFKC, case folded, accents of Latin letters dropped; Latin words English-stemmed.
- Scripts written without spaces (Chinese, Japanese, Korean, Thai and their kin): each run gives
  its single characters and its pairs of neighbours.
- Identifiers, paths, addresses, dates and times (``api-v2_final``, ``src/x.py``, ``10:30``):
  whole, and split into their parts (``camelCase`` too), each part a word.
- An emoji or another symbol is a word. One made of several (a family, a skin tone) is met whole
  and by its parts (skin tones aside); a flag whole alone. Variation selectors make no difference.
  Bullets, lines and boxes are punctuation.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from threading import Lock

import regex  # type: ignore[import-untyped] # the package ships no stubs
import Stemmer  # type: ignore[import-not-found] # a compiled module without stubs

RULES = 2
"""Version of these rules. A store whose terms were made by other rules re-indexes at open."""

MAX_TERM = 64
"""Characters of a term; a longer one (a hash, base64) is cut, alike in texts and queries."""

_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\u30FC\p{Hangul}\p{Bopomofo}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_LETTER = rf"[[\p{{L}}\p{{N}}_]--[{_UNSPACED}]]"
_WITHIN = rf"[[\p{{L}}\p{{N}}\p{{M}}_]--[{_UNSPACED}]]"
_WORD = rf"{_LETTER}{_WITHIN}*+(?:'\p{{L}}++)*+"
# Emoji and what else stands for a thing; of the category So all but what draws lines, marks items
# and degrees, or stands for a lost character. A skin tone is met with what it colours.
_SYMBOL = (
    r"[[\p{So}\p{Extended_Pictographic}\p{Emoji_Presentation}]"
    r"--[\p{RI}\U0001F3FB-\U0001F3FF\u3030\u00A6\u00B0\u2500-\u25FF\uFFFC\uFFFD]||[\u25B6\u25C0\u25FB-\u25FE]]"
)
_TONE = r"[\U0001F3FB-\U0001F3FF]"
# UTS 51: a flag, the flag of a region, or symbols that a joiner makes one. Keycaps are words.
_EMOJI = (
    rf"\p{{RI}}{{2}}|\U0001F3F4[\U000E0020-\U000E007F]++|[\#*]\u20E3"
    rf"|{_SYMBOL}{_TONE}?+(?:\u200D{_SYMBOL}{_TONE}?+)*+"
)
# A token is a run of an unspaced script, an emoji, or words joined by up to three joiners; "c++"
# too.
_TOKEN = regex.compile(
    rf"(?V1)[{_UNSPACED}]++|{_WORD}(?:[-./\\:@+\#=&%~]{{1,3}}{_WORD})*+(?:\+\+|\#(?![\p{{L}}\p{{N}}]))?"
    rf"|{_EMOJI}"
)
# The same for a text of ASCII alone, which the plain module finds six times as fast.
_ASCII_WORD = r"[A-Za-z0-9_]++(?:'[A-Za-z]++)*+"
_ASCII_TOKEN = re.compile(
    rf"{_ASCII_WORD}(?:[-./\\:@+#=&%~]{{1,3}}{_ASCII_WORD})*+(?:\+\+|#(?![A-Za-z0-9]))?"
)
_UNSPACED_RUN = regex.compile(rf"(?V1)[{_UNSPACED}]")
_EMOJI_TOKEN = regex.compile(rf"(?V1){_EMOJI}")
_SYMBOLS = regex.compile(rf"(?V1){_SYMBOL}")
_SELECTORS = regex.compile(r"[\uFE00-\uFE0F\U000E0100-\U000E01EF]")
_PART = regex.compile(
    r"(?V1)\p{Lu}?(?:\p{Ll}\p{M}*+|')++[\p{N}]*+|\p{Lu}++(?!\p{Ll})[\p{N}]*+"
    r"|[\p{L}\p{M}\p{N}']++"
)
_INSIDE = regex.compile(rf"(?V1)(?<={_WITHIN}){_WITHIN}")
_PLAIN = re.compile(r"[A-Za-z][a-z]*+|[A-Z]++")
_MARKS = regex.compile(r"\p{M}+")
_LATIN = regex.compile(r"\p{Latin}")

# English words that a question is built from; they say nothing about what is asked.
_STOP = frozenset(
    """
    a about above after again all also am an and any are as at be because been before being
    below between both but by can cannot could did do does doing don't down during each else
    ever few for from further get got had has have having he her here hers herself him himself
    his how i if in into is isn't it it's its itself just let like me might more most much
    must my myself no nor not of off on once one only or other our ours ourselves out over own
    please same shall she should so some such tell than that that's the their theirs them
    themselves then there there's these they this those through to too under until up upon us
    very was wasn't we were what what's when where which while who who's whom whose why will
    with would you your yours yourself yourselves
    """.split()  # noqa: SIM905 # a list of words reads better as words
)

_stem = Stemmer.Stemmer("english", 0).stemWord  # without a memory: `_terms` has one
_stem_lock = Lock()  # a Stemmer may serve one thread at a time


def index_terms(text: str) -> dict[str, int]:
    """Each term of ``text`` with its count; the sum of the counts is the text's length."""
    tokens = _tokens(text)
    split = _terms if len(max(tokens, key=len, default="")) <= MAX_TERM else _terms_of
    return dict(Counter(chain.from_iterable(map(split, tokens))))


def query_terms(text: str) -> list[str]:
    """The distinct terms of a query in sorted order, English question and stop words dropped
    unless nothing would be left."""
    kept, stops = _asked(text)
    return sorted(kept or stops)


def content_terms(text: str) -> set[str]:
    """The terms of what is no question or stop word in ``text``; there may be none."""
    return _asked(text)[0]


def inside_word(text: str, at: int) -> bool:
    """Whether a cut of ``text`` before the character ``at`` would go through a word."""
    return _INSIDE.match(text, at) is not None


def _asked(text: str) -> tuple[set[str], set[str]]:
    """The terms of content words, and those of stop words."""
    kept: set[str] = set()
    stops: set[str] = set()
    for token in _tokens(text):
        terms = _terms_of(token)
        (stops if token.lower() in _STOP else kept).update(terms)
    return kept, stops


def _tokens(text: str) -> list[str]:
    if not text.isascii():
        text = _SELECTORS.sub("", text.replace("\u00ad", "").replace("’", "'"))
        text = unicodedata.normalize("NFKC", text)
    pattern = _ASCII_TOKEN if text.isascii() else _TOKEN
    tokens: list[str] = pattern.findall(text)
    return tokens


@lru_cache(maxsize=1 << 15)
def _terms(token: str) -> tuple[str, ...]:
    """``_split``, remembered: a pure function of the token, so what is kept shows in time alone."""
    return tuple(_split(token))


def _terms_of(token: str) -> Sequence[str]:
    return _terms(token) if len(token) <= MAX_TERM else _split(token)


def forget() -> None:
    """Let go of every token that was met."""
    _terms.cache_clear()


def _split(token: str) -> list[str]:
    if _PLAIN.fullmatch(token):  # one word of one part: most tokens are
        return [_word(token)]
    if _UNSPACED_RUN.match(token):
        token = token.casefold()
        return [*token, *(token[i : i + 2] for i in range(len(token) - 1))]
    if _EMOJI_TOKEN.match(token):
        alone = len(token) == 1 or token[-1] >= "\U000e0020"
        return [token[:MAX_TERM], *([] if alone else _SYMBOLS.findall(token))]
    parts = [part for part in _PART.findall(token) if part != "'"]
    if parts == [token]:
        return [_word(token)]
    # "getUserName" is also met as a plain word, so its whole is stemmed as one.
    whole = _word(token) if token.isalnum() else _fold(token)[:MAX_TERM]
    return [whole, *map(_word, parts)] if parts else []


def _word(word: str) -> str:
    """One word's term: folded, stemmed where its letters are Latin and it holds no digit."""
    word = _fold(word)[:MAX_TERM]
    if word.isascii() and (word.isalpha() or not any(c.isdigit() for c in word)):
        with _stem_lock:
            return _stem(word) or word
    return word


def _fold(word: str) -> str:
    if word.isascii():
        return word.lower()
    word = word.casefold()
    if _LATIN.search(word):
        word = _MARKS.sub("", unicodedata.normalize("NFKD", word))
    return unicodedata.normalize("NFKC", word)
