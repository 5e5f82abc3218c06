"""What else answers under a filter: the same vectors and texts in other stores, asked the same.

Each peer is asked as its documentation says that one asks under a filter, and each with its own
file in ``folder``, made once. They are dense legs or a lexical leg alone; the store that they
stand beside does both in its time.
"""

from __future__ import annotations

import importlib
import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.population import DIM, Population, Question, Seat
from bench.report import CannotRun

BATCH = 2_000
BREADTH = 200
"""hnswlib's ``ef``, at least: what its users take for recall at 10 of 0.99 without a filter."""
WIDEST = 2_000
"""Neighbours that a post-filter asks for at most."""


class Peer(Protocol):
    """``leg`` is what its answers are compared with. ``make`` fills it and says how many units
    are in; ``ask`` gives the ``k`` best units of ``seat``."""

    name: str
    leg: str

    def make(self) -> Iterator[int]: ...

    def ask(self, seat: Seat, question: Question, k: int) -> list[int]: ...

    def close(self) -> None: ...


class SqliteVec:
    """sqlite-vec: a virtual table with the partition as a metadata column, filtered by ``IN``."""

    name, leg = "sqlite-vec, metadata filter", "dense"

    def __init__(self, population: Population, folder: Path) -> None:
        self._population = population
        apsw, vec = _needed("apsw"), _needed("sqlite_vec")
        self._path = folder / "sqlite-vec.db"
        self._db: Any = apsw.Connection(str(self._path))
        self._db.enable_load_extension(True)
        self._db.load_extension(vec.loadable_path())

    def make(self) -> Iterator[int]:
        db, population = self._db, self._population
        db.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE IF NOT EXISTS done(n)")
        if db.execute("SELECT count(*) FROM done").fetchone()[0]:
            return
        db.execute("DROP TABLE IF EXISTS facts")
        db.execute(f"CREATE VIRTUAL TABLE facts USING vec0(embedding float[{DIM}], place integer)")
        for start, stop in _batches(population.units):
            rows = population.vectors[start:stop].astype(np.float32)
            with db:
                db.executemany(
                    "INSERT INTO facts(rowid, embedding, place) VALUES (?, ?, ?)",
                    [
                        (unit, row.tobytes(), int(population.place[unit]))
                        for unit, row in enumerate(rows, start)
                    ],
                )
            yield stop
        db.execute("INSERT INTO done VALUES (1)")

    def ask(self, seat: Seat, question: Question, k: int) -> list[int]:
        places = ", ".join(map(str, seat.places))
        found = self._db.execute(
            "SELECT rowid FROM facts WHERE embedding MATCH ? AND k = ?"
            f" AND place IN ({places}) ORDER BY distance",
            (question.vector.tobytes(), k),
        )
        return [unit for (unit,) in found]

    def close(self) -> None:
        self._db.close()


class Graph:
    """One hnswlib index of all units, which all readers share: its own filter callback."""

    name, leg = "hnswlib shared, filter callback", "dense"

    def __init__(self, population: Population, folder: Path) -> None:
        self._population = population
        hnswlib = _needed("hnswlib")
        self._path = folder / "shared.hnsw"
        self._index: Any = hnswlib.Index("ip", DIM)

    def make(self) -> Iterator[int]:
        units = self._population.units
        if self._path.exists():
            self._index.load_index(str(self._path), max_elements=units)
        else:
            self._index.init_index(units, M=16, ef_construction=100, random_seed=100)
            for start, stop in _batches(units):
                rows = self._population.vectors[start:stop].astype(np.float32)
                self._index.add_items(rows, np.arange(start, stop))
                yield stop
            self._index.save_index(str(self._path))
        self._index.set_num_threads(1)
        self._index.set_ef(BREADTH)

    def ask(self, seat: Seat, question: Question, k: int) -> list[int]:
        members = seat.members
        try:
            labels, _ = self._index.knn_query(
                question.vector, k=k, filter=lambda unit: bool(members[unit])
            )
        except RuntimeError:  # fewer than k met the filter: it gives none of them
            return []
        found: list[int] = labels[0].tolist()
        return found

    def close(self) -> None: ...


class FilteredAfter(Graph):
    """The same index, asked for as many as should hold ``k`` of the view, then filtered."""

    name = "hnswlib shared, post-filter"

    def ask(self, seat: Seat, question: Question, k: int) -> list[int]:
        wide = min(WIDEST, self._population.units, math.ceil(4 * k / seat.share))
        labels, _ = self._index.knn_query(question.vector, k=wide)
        found: list[int] = labels[0][seat.members[labels[0]]][:k].tolist()
        return found


class FullText:
    """SQLite FTS5 with the partition as an unindexed column. Its statistics are the table's, so
    what is outside the view moves its order: the comparison with the view's own says how much."""

    name, leg = "SQLite FTS5, owner column", "lexical"

    def __init__(self, population: Population, folder: Path) -> None:
        self._population = population
        self._db = sqlite3.connect(folder / "fts5.db", isolation_level=None)

    def make(self) -> Iterator[int]:
        db, population = self._db, self._population
        db.execute("PRAGMA synchronous = OFF")
        db.execute("CREATE TABLE IF NOT EXISTS done(n)")
        if db.execute("SELECT count(*) FROM done").fetchone()[0]:
            return
        db.execute("DROP TABLE IF EXISTS facts")
        db.execute("CREATE VIRTUAL TABLE facts USING fts5(text, place UNINDEXED)")
        for start, stop in _batches(population.units):
            db.execute("BEGIN")
            db.executemany(
                "INSERT INTO facts(rowid, text, place) VALUES (?, ?, ?)",
                [(n, population.text(n), int(population.place[n])) for n in range(start, stop)],
            )
            db.execute("COMMIT")
            yield stop
        db.execute("INSERT INTO done VALUES (1)")

    def ask(self, seat: Seat, question: Question, k: int) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in question.text.split())
        places = ", ".join(map(str, seat.places))
        found = self._db.execute(
            f"SELECT rowid FROM facts WHERE facts MATCH ? AND place IN ({places})"
            " ORDER BY bm25(facts) LIMIT ?",
            (words, k),
        )
        return [unit for (unit,) in found]

    def close(self) -> None:
        self._db.close()


PEERS: tuple[type[SqliteVec] | type[Graph] | type[FullText], ...] = (
    SqliteVec,
    Graph,
    FilteredAfter,
    FullText,
)


def timed(
    peer: Peer, seat: Seat, questions: Sequence[Question], k: int, seconds: float
) -> tuple[list[list[str]], list[float]]:
    """Answers (ids) and times (ms) of the first questions: all of them, or ten and as many more
    as fit into ``seconds``. The first two are asked twice, to warm up."""
    for question in questions[:2]:
        peer.ask(seat, question, k)
    answers, took = [], []
    began = time.monotonic()
    for number, question in enumerate(questions):
        if number >= 10 and time.monotonic() - began > seconds:
            break
        start = time.perf_counter()
        found = peer.ask(seat, question, k)
        took.append((time.perf_counter() - start) * 1e3)
        answers.append([f"u{unit}" for unit in found])
    return answers, took


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CannotRun(f"{module} is not installed") from None


def _batches(units: int) -> Iterator[tuple[int, int]]:
    for start in range(0, units, BATCH):
        yield start, min(start + BATCH, units)
