"""The next token from the model's logits.

At temperature 0 it is the likeliest, the lowest id where several are. Above, the choice is cut to
the :data:`TOP_K` likeliest, then to the fewest of them that hold :data:`TOP_P` of the probability,
then to those at least :data:`MIN_P` times as probable as the likeliest; then a number in [0, 1)
decides that depends on the request's seed and the token's place in the answer alone. So there is no
generator whose state a pause, a restart or a neighbour could change: same logits, same text.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isovist.syscalls.errors import CallerError
from isovist.syscalls.records import Logprob

TOP_K, TOP_P, MIN_P = 40, 0.95, 0.05

Logits = NDArray[np.float32]
"""Shape (vocabulary,)."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def chance(seed: int, place: int) -> float:
    """A number in [0, 1), evenly spread: SplitMix64 of the seed, at ``place`` (from 0)."""
    z = _mixed(seed & _MASK)
    z = _mixed((z + (place + 1) * _GOLDEN) & _MASK)
    return (z >> 11) / (1 << 53)


def _mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def choose(logits: Logits, temperature: float, seed: int, place: int) -> int:
    """The token at ``place`` of the answer. Logits of minus infinity are never chosen, unless all
    are."""
    if temperature == 0.0:
        return int(logits.argmax())
    size = min(TOP_K, len(logits))
    best = np.argpartition(logits, -size)[-size:]
    # Ties by id: partition leaves the order to chance.
    best = best[np.lexsort((best, -logits[best]))]
    kept = logits[best].astype(np.float64)
    shares = np.exp(kept - kept[0])
    shares /= shares.sum()
    # The first tokens whose sum reaches TOP_P: a token stays iff those before it fall short.
    short = np.cumsum(shares) - shares < TOP_P
    keep = int(np.count_nonzero(short & (shares >= MIN_P * shares[0])))
    weights = np.exp((kept[:keep] - kept[0]) / temperature)
    sums = np.cumsum(weights)
    at = int(np.searchsorted(sums, chance(seed, place) * sums[-1], side="right"))
    return int(best[min(at, keep - 1)])


def logprob_of(logits: Logits, token: int, top: int, piece: Any) -> Logprob:
    """The natural logarithms of the probabilities of ``token`` and of the ``top`` likeliest, by
    the whole distribution at temperature 1. ``piece`` gives a token's bytes."""
    values = logits.astype(np.float64)
    highest = values.max()
    total = highest + math.log(np.exp(values - highest).sum())
    likeliest: tuple[tuple[bytes, float], ...] = ()
    if top:
        best = np.argpartition(logits, -top)[-top:]
        best = best[np.lexsort((best, -logits[best]))]
        likeliest = tuple((piece(int(i)), float(values[i] - total)) for i in best)
    return Logprob(piece(token), float(values[token] - total), likeliest)


class Constraint:
    """A grammar, and how far an answer has come in it.

    Asking it about all tokens is dear (4 ms for 49,000), about one cheap. So the choice is made
    without it, and made again among what it allows only where it refuses. Raises ``EINVAL`` where
    llama.cpp cannot read the grammar; ``field`` is what it was made of. To be freed by
    :meth:`close`.
    """

    def __init__(self, vocab: Any, grammar: str, field: str = "schema") -> None:
        from isovist.kernel.drivers.gguf import lib

        self._lib, self._field = lib, field
        self._sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        if not self._sampler:
            raise CallerError("llama.cpp cannot use the grammar of this schema", field=field)

    def choose(self, logits: Logits, temperature: float, seed: int, place: int) -> int:
        """The token at ``place``, of those that the grammar allows; it has then come by that
        token."""
        token = choose(logits, temperature, seed, place)
        if not self._allows(token):
            allowed = self._filtered(logits)
            token = choose(allowed, temperature, seed, place)
            if allowed[token] == -np.inf:
                why = "the schema leaves the model nothing to write"
                raise CallerError(why, field=self._field)
        self._lib.llama_sampler_accept(self._sampler, token)
        return token

    def close(self) -> None:
        if self._sampler:
            self._lib.llama_sampler_free(self._sampler)
            self._sampler = None

    def _allows(self, token: int) -> bool:
        one = self._lib.llama_token_data(token, 1.0, 0.0)
        array = self._lib.llama_token_data_array(ctypes.pointer(one), 1, -1, False)
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return bool(one.logit != -math.inf)

    def _filtered(self, logits: Logits) -> Logits:
        size = len(logits)
        data = np.zeros(size, np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")]))
        data["id"] = np.arange(size)
        data["logit"] = logits
        pointer = ctypes.cast(data.ctypes.data, self._lib.llama_token_data_p)
        array = self._lib.llama_token_data_array(pointer, size, -1, False)
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed: Logits = np.empty(size, np.float32)
        allowed[data["id"]] = data["logit"]
        return allowed
