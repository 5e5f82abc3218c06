"""What indexing a text takes: made once, in the writer's thread, where the text is stored."""

from __future__ import annotations

import hashlib

import msgspec

from isovist.storage.chunks import Span, dated, spans
from isovist.storage.words import index_terms


class Prepared(msgspec.Struct, frozen=True):
    """A text as it is indexed."""

    hash: str
    spans: tuple[Span, ...]
    terms: list[dict[str, int]]
    chunks: tuple[str, ...]
    """What the dense leg embeds: each chunk with its date."""


def prepare(text: str, said_at: int) -> Prepared:
    cuts = spans(text)
    chunks = tuple(dated(span.cut(text), said_at) for span in cuts)
    return Prepared(text_hash(text), cuts, [index_terms(chunk) for chunk in chunks], chunks)


def text_hash(text: str) -> str:
    """SHA-256 of a unit's text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
