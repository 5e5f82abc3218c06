"""What a user writes to choose an embedder, and what every embedder does to texts and vectors.

``KIND[:TARGET][?option=value&…][#model]``. The options: ``query`` and ``passage``, words put before
a question or a stored text (models that were trained with such need them), ``pooling`` (``mean``,
``cls``, ``last``, ``sentence``) and ``tokens``, the most of a text that is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from isovist.storage.dense import Vector
from isovist.syscalls.errors import CallerError, Errno, WorldError

POOLING = ("", "mean", "cls", "last", "sentence")
TOKENS = 512
"""Tokens of a text that are read where the choice says nothing: a chunk has 200 to 500."""
_MOST_TOKENS = 8192
_MARK = 12
"""Hexadecimal digits of a file's SHA-256 in the name of its model."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One embedder as chosen; ``target`` is a path or an address."""

    kind: str
    target: str = ""
    model: str = ""
    query: str = ""
    passage: str = ""
    pooling: str = ""
    tokens: int = TOKENS

    def named(self, base: str) -> str:
        """The model's id: ``base``, with a mark of the options where they change vectors."""
        options = (self.query, self.passage, self.pooling, self.tokens)
        if options == ("", "", "", TOKENS):
            return base
        digest = hashlib.sha256(msgspec.msgpack.encode(options)).hexdigest()
        return f"{base}+{digest[:8]}"


def parse(text: str) -> Choice:
    """Raises ``EINVAL`` that names the option and its rule."""
    head, mark, words = text.rpartition("?")
    if not mark:
        head, words = text, ""
    # An address's model stands last; a file's name may hold the sign.
    last, model = words or head, ""
    if text.startswith("openai:"):
        last, _, model = last.partition("#")
        head, words = (head, last) if mark else (last, "")
    kind, _, target = head.partition(":")
    try:
        options = dict(parse_qsl(words, strict_parsing=True)) if words else {}
    except ValueError:
        raise _wrong(text, "options are written ?name=value&name=value") from None
    if unknown := options.keys() - {"query", "passage", "pooling", "tokens"}:
        raise _wrong(text, f"there is no option {min(unknown)!r}")
    if options.get("pooling", "") not in POOLING:
        raise _wrong(text, f"pooling is one of {', '.join(POOLING[1:])}")
    tokens = options.pop("tokens", str(TOKENS))
    if not tokens.isdecimal() or not 8 <= int(tokens) <= _MOST_TOKENS:
        raise _wrong(text, f"tokens must be 8 to {_MOST_TOKENS}")
    return Choice(kind=kind, target=target, model=model, tokens=int(tokens), **options)


def _wrong(text: str, rule: str) -> CallerError:
    return CallerError(f"embedder {text!r}: {rule}", field="embedder")


def lacking(extra: str, e: ImportError) -> WorldError:
    """An embedder's package is not installed."""
    return WorldError(
        f"this embedder needs the extra [{extra}]: pip install 'isovist[{extra}]' ({e})",
        field="embedder",
    )


def fingerprint(paths: Iterable[Path]) -> str:
    """The first digits of the SHA-256 over the files' contents, so that two models never share a
    name and one keeps its name wherever it lies. Raises :class:`WorldError`."""
    whole = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as e:
            raise WorldError(f"{path}: {e.strerror}", field="embedder") from None
    return whole.hexdigest()[:_MARK]


def clean(text: str) -> str:
    """``text`` without what no model reads: lone surrogates and NUL, where C would end it."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def unit(values: Any) -> Vector:
    """``values`` as float32 of length 1. Raises ``EIO`` where they have no direction."""
    vector = np.asarray(values, np.float32).reshape(-1)
    exact = vector.astype(np.float64)
    length = float(np.sqrt((exact**2).sum()))
    if not 0.0 < length < np.inf:
        raise WorldError("the model gave no vector", errno=Errno.EIO)
    if length < np.finfo(np.float32).tiny:  # float32 knows such a length to a digit or none
        vector, length = (exact / length).astype(np.float32), 1.0
    whole: Vector = vector / np.float32(length)
    return whole
