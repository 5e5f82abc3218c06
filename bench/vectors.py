"""Vectors kept between runs: an embedder's own bits, by the hash of the text and the model's id.

Derived data of public texts, outside the project: a lost file costs time alone.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import numpy as np

from isovist.storage.dense import Vector
from isovist.storage.embedder import Embedder


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "isovist-bench"


class CachedEmbedder:
    """An embedder that embeds each text once for all runs."""

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._embedder = embedder
        self.name, self.dim = embedder.name, embedder.dim
        self.made = 0
        """Texts that were embedded anew."""
        self._file = sqlite3.connect(
            folder / f"{embedder.name}.vectors", timeout=60, isolation_level=None
        )
        # Two runs at a time may share the file: no transaction lasts longer than a write.
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=OFF")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS vectors(key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID"
        )

    def embed(self, text: str) -> Vector:
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        row = self._file.execute("SELECT vector FROM vectors WHERE key=?", (key,)).fetchone()
        if row is not None:
            return np.frombuffer(row[0], dtype="<f4")
        vector = self._embedder.embed(text)
        self._file.execute(
            "INSERT OR IGNORE INTO vectors VALUES(?, ?)", (key, vector.astype("<f4").tobytes())
        )
        self.made += 1
        return vector

    def close(self) -> None:
        self._file.close()
