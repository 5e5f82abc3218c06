"""Which results of a search say nothing that a better one does not say word for word."""

from __future__ import annotations

from collections.abc import Sequence

import regex  # type: ignore[import-untyped] # the package ships no stubs

_WORD = regex.compile(
    r"(?V1)[\p{Han}\p{Hiragana}\p{Katakana}]|[[\p{L}\p{N}\p{M}]--[\p{Han}\p{Hiragana}\p{Katakana}]]++"
)
_ARTICLES = frozenset(("a", "an", "the"))
_SLACK = 9
"""Tokens that a repetition may hold beyond the text it repeats: articles, and words that stand
beside other punctuation there."""


def without_repeats(texts: Sequence[str], whole: Sequence[bool]) -> list[int]:
    """Those of ``texts`` (chunks, best first) that are no repetition, as indices.
    Only one that is the ``whole`` of its unit can be one: a longer unit says more.

    A text is a repetition iff its words stand, in their order and with none between them, in a
    text kept before it, and at most nine of its tokens (by spaces) are not among that text's;
    letter case, punctuation, spaces and English articles are no words. Nothing looser is safe:
    texts that share nine words of ten differ in the number, the name or the ``not``.
    """
    kept: list[int] = []
    words: dict[int, str] = {}
    tokens: list[set[str]] = []

    def said(i: int) -> str:
        if i not in words:
            words[i] = _words(texts[i])
        return words[i]

    for i, text in enumerate(texts):
        tokens.append(set(text.casefold().split()))
        # The first test is cheap and spares most of the second.
        if not whole[i] or not any(
            len(tokens[i] - tokens[j]) <= _SLACK and said(i) in said(j) for j in kept
        ):
            kept.append(i)
    return kept


def _words(text: str) -> str:
    """The words of ``text``, a space around each. A text without words is itself: it is a
    repetition of none but its equal."""
    found = [word for word in _WORD.findall(text.casefold()) if word not in _ARTICLES]
    return f" {' '.join(found)} " if found else f"\0{text}\0"
