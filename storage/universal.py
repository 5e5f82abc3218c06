"""The sentence encoder's forward pass for one text: a question in a third of its package's time, a
chunk in two thirds.

A question's time is everybody's who asks, a chunk's is when a write can be found. The encoder is a
convolution over word pieces: of the five products that a piece takes part in, three (projection
and the first layer of each window) are linear in the piece's own vector. They are computed a
piece at a time and kept, for the same pieces come back in text after text; what is left
for each text is the second layer and the sum.

Invariant: a text's vector is a function of the text. A piece's row is computed by itself, in one
shape, so that it has the same bits whether it was kept or is computed anew; what is kept changes
times, never vectors. The result is the package's own up to float32 rounding (a test compares).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from isovist.storage.dense import Vector

KEPT = 2048
"""Pieces whose rows are kept, the most recently used ones: 15 KiB each."""
_EMBEDDING, _WINDOW = 512, 256
_WINDOWS = ((2, 0), (3, 1), (5, 2))
"""Of each branch: pieces in its window, and how many of them stand before the middle one."""
_PROJECTED = _EMBEDDING + len(_WINDOWS) * _WINDOW
_ROW = _PROJECTED + sum(size for size, _ in _WINDOWS) * _WINDOW


class Pieces:
    """``weights`` is the package's numpy backend, whose arrays are shared, not copied.

    Raises ``AttributeError`` or ``ValueError`` where it is not built as expected.
    """

    def __init__(self, weights: Any) -> None:
        self._w = weights
        self._rows: dict[int, Vector] = {}
        # A window's first layer, its places side by side: one product gives what a piece adds to
        # every window that it stands in.
        self._first = [
            np.ascontiguousarray(
                w.reshape(size, _WINDOW, _WINDOW).transpose(1, 0, 2).reshape(_WINDOW, -1)
            )
            for (size, _), w in zip(_WINDOWS, weights.w1, strict=True)
        ]

    def embed(self, text: str) -> Vector:
        """The vector of ``text``, float32, of about unit length."""
        w = self._w
        pieces = w.sp.encode(text, out_type=int, add_bos=True, add_eos=True)
        count = len(pieces)
        rows = np.empty((count, _ROW), dtype=np.float32)
        for at, piece in enumerate(pieces):
            rows[at] = self._row(piece)
        features = np.empty((count, _PROJECTED), dtype=np.float32)
        features[:, :_EMBEDDING] = rows[:, :_EMBEDDING]
        at = _PROJECTED
        for branch, (size, before) in enumerate(_WINDOWS):
            own = slice(_EMBEDDING + branch * _WINDOW, _EMBEDDING + (branch + 1) * _WINDOW)
            # Zero rows before and after stand for what lies outside the text.
            padded = np.zeros((count + size - 1, _WINDOW), dtype=np.float32)
            hidden = padded[before : before + count]
            hidden += w.b1[branch]
            for place in range(size):
                shift = place - before
                share = rows[:, at + place * _WINDOW : at + (place + 1) * _WINDOW]
                if shift >= 0:
                    hidden[: max(0, count - shift)] += share[shift:]
                else:
                    hidden[-shift:] += share[:shift]
            np.maximum(hidden, 0.0, out=hidden)
            hidden += rows[:, own]
            # Consecutive rows lie side by side in memory: each window is a view.
            stride = padded.strides[0]
            windows = as_strided(padded, (count, size * _WINDOW), (stride, padded.itemsize))
            second = windows @ w.w2[branch]
            second += w.b2[branch]
            np.maximum(second, 0.0, out=second)
            np.add(second, hidden, out=features[:, own])
            at += size * _WINDOW
        return self._head(features)

    def _row(self, piece: int) -> Vector:
        """Embedding, projection and first-layer shares of one piece, end to end."""
        row = self._rows.pop(piece, None)
        if row is None:
            row = self._compute(piece)
            if len(self._rows) >= KEPT:
                del self._rows[next(iter(self._rows))]
        self._rows[piece] = row
        return row

    def _compute(self, piece: int) -> Vector:
        w = self._w
        block = piece % len(w.scale)
        row = np.empty(_ROW, dtype=np.float32)
        embedding = w.table[piece].astype(np.float32) * w.scale[block] + w.lo[block]
        projected = embedding @ w.proj_W + w.proj_b
        projected -= projected.mean()
        projected /= np.sqrt((projected * projected).mean() + w.eps)
        row[:_EMBEDDING] = embedding
        row[_EMBEDDING:_PROJECTED] = projected * w.ln_g_all + w.ln_b_all
        at = _PROJECTED
        for branch, first in enumerate(self._first):
            own = slice(_EMBEDDING + branch * _WINDOW, _EMBEDDING + (branch + 1) * _WINDOW)
            row[at : at + first.shape[1]] = row[own] @ first
            at += first.shape[1]
        return row

    def _head(self, features: Vector) -> Vector:
        """From the features of all pieces to the text's vector."""
        w, count = self._w, len(features)
        features -= features.mean(axis=1, keepdims=True)
        spread = np.einsum("ij,ij->i", features, features) / features.shape[1]
        features *= (1.0 / np.sqrt(spread + w.eps))[:, None]
        # Gain and offset are the same for every piece, so they may follow the sum.
        total = (features.sum(axis=0) * w.ln_g + count * w.ln_b) @ w.cnn_W + count * w.cnn_b
        total *= np.float32(count**-0.5)
        y = total @ w.p1 + np.maximum(total @ w.d0, 0.0) @ w.d1
        np.maximum(y, 0.0, out=y)
        out = np.tanh(y @ w.p3 + np.maximum(y @ w.d2, 0.0) @ w.d3)
        unit: Vector = out / np.sqrt((out * out).sum())
        return unit
