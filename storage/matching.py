"""Which texts a demand to forget fits: a rule that a person can foresee, and no ranking.

A text fits iff it holds every content word of the query, after the same analysis as the lexical
leg's (stems, characters and pairs of unspaced scripts; stop words count for nothing), and every
phrase that stands in double quotes, as it is written there: case, width and the kind of white
space aside, and not as a part of a longer word. The text alone counts: no date, no metadata.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

import msgspec
import regex  # type: ignore[import-untyped] # the package ships no stubs

from isovist.storage.words import content_terms, index_terms, inside_word
from isovist.syscalls.errors import CallerError
from isovist.syscalls.operations import Candidate, MatchQuery
from isovist.syscalls.records import Reader

_QUOTED = regex.compile(r'"([^"]*)"|“([^“”]*)”')


class Pattern(msgspec.Struct, frozen=True):
    """What a text must hold, all of it. Invariant: there is a content word in it."""

    terms: frozenset[str]
    phrases: tuple[str, ...]

    def fits(self, text: str) -> bool:
        if self.phrases:
            plain = _plain(text)
            if not all(_holds(plain, phrase) for phrase in self.phrases):
                return False
        return not self.terms or self.terms <= index_terms(text).keys()


def pattern(query: str) -> Pattern:
    """Raises ``EINVAL`` where ``query`` holds no content word: it would fit nearly everything."""
    phrases = [one or other for one, other in _QUOTED.findall(query)]
    terms = content_terms(_QUOTED.sub("\n", query))
    if not terms and not any(map(content_terms, phrases)):
        raise CallerError("query holds no word that says what to forget", field="query")
    return Pattern(frozenset(terms), tuple(filter(None, map(_plain, phrases))))


def matches(
    query: MatchQuery, reader: Reader, candidates: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Those of ``candidates`` (a page of a list) that are the reader's own and fit ``query``."""
    wanted = pattern(query.text)
    since, until = query.since, query.until
    for candidate in candidates:
        unit = candidate.hit.unit
        if (
            (candidate.owner_user, candidate.owner_agent) == (reader.user, reader.agent)
            and (since is None or since <= unit.said_at)
            and (until is None or unit.said_at < until)
            and wanted.fits(unit.text)
        ):
            yield candidate


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _holds(text: str, phrase: str) -> bool:
    at = text.find(phrase)
    while at >= 0:
        stop = at + len(phrase)
        if not (inside_word(text, at) or inside_word(text, stop)):
            return True
        at = text.find(phrase, at + 1)
    return False
