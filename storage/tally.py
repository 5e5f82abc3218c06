"""What the writes of one transaction move in the statistics of partitions, and the numbers of
terms that it gave out.

Statistics change in memory while a group is written, and go to the tables once, at its end: a
group has most of its words in common.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from isovist.storage import forward
from isovist.storage.changes import Piece

_list = msgspec.json.Encoder().encode


_STORED = "SELECT term, tid FROM terms WHERE term IN (SELECT value FROM json_each(?))"
_LAST = "SELECT seq FROM sqlite_sequence WHERE name = 'terms'"
"""The highest number ever given out: SQLite keeps it, and moves it on with what is inserted."""
_NEW = "INSERT INTO terms (term, tid) VALUES (?, ?)"


class Draft:
    """What one operation would move, until it is known to take effect."""

    __slots__ = ("moves", "tids")

    def __init__(self) -> None:
        self.moves: list[tuple[int, Iterable[Piece], int]] = []
        self.tids: dict[str, int] = {}

    def add(self, pid: int, pieces: Iterable[Piece], sign: int = 1) -> None:
        """Chunks come into a partition (``sign`` 1), or leave it (−1)."""
        self.moves.append((pid, pieces, sign))


class Tally:
    """The moves of a transaction."""

    def __init__(self) -> None:
        self.frequencies: dict[int, Counter[int]] = {}
        """By pid, then tid: how many chunks more or less hold the term."""
        self.sizes: dict[int, tuple[int, int]] = {}
        """By pid: chunks, and terms in them, more or less."""
        self.tids: dict[str, int] = {}
        """Numbers that were found or given out, and may be undone with the transaction."""

    def add(self, pid: int, pieces: Iterable[Piece], sign: int = 1) -> None:
        """Chunks come into a partition (``sign`` 1), or leave it (−1)."""
        moved = self.frequencies.get(pid)
        if moved is None:
            moved = self.frequencies[pid] = Counter()
        move = moved.update if sign > 0 else moved.subtract
        chunks, total = self.sizes.get(pid, (0, 0))
        for piece in pieces:
            chunks += sign
            total += sign * piece.length
            move(iter(piece.terms))  # each counts once, however often it stands there
        self.sizes[pid] = chunks, total

    def take(self, draft: Draft) -> None:
        """An operation has taken effect."""
        for pid, pieces, sign in draft.moves:
            self.add(pid, pieces, sign)
        self.tids.update(draft.tids)

    def flush(self, db: sqlite3.Connection) -> None:
        """Enter the moves. No frequency of 0 remains."""
        moved = sorted(
            (tid, pid, n)
            for pid, counts in self.frequencies.items()
            for tid, n in counts.items()
            if n
        )
        db.executemany(
            "INSERT INTO frequencies (tid, pid, n) VALUES (?, ?, ?)"
            " ON CONFLICT (tid, pid) DO UPDATE SET n = n + excluded.n",
            moved,
        )
        db.executemany(
            "DELETE FROM frequencies WHERE tid = ? AND pid = ? AND n = 0",
            [(tid, pid) for tid, pid, n in moved if n < 0],
        )
        db.executemany(
            "UPDATE partitions SET chunks = chunks + ?, total = total + ? WHERE pid = ?",
            [(*sizes, pid) for pid, sizes in self.sizes.items()],
        )


def number(
    db: sqlite3.Connection, terms: set[str], given: dict[str, int], *known: Mapping[str, int]
) -> dict[str, int]:
    """The number of each of ``terms``: one known already, else that of the table, else a new one;
    the latter two enter ``given``."""
    found: dict[str, int] = {}
    missing = terms
    for tids in (*known, given):
        found.update({term: tids[term] for term in missing if term in tids})
        missing = terms - found.keys()
        if not missing:
            return found
    listed = _list(sorted(missing)).decode()
    stored = dict(db.execute(_STORED, (listed,)).fetchall())
    if len(stored) < len(missing):
        (last,) = db.execute(_LAST).fetchone() or (0,)
        new = sorted(missing - stored.keys())
        numbers = dict(zip(new, range(last + 1, last + 1 + len(new)), strict=True))
        db.executemany(_NEW, numbers.items())
        stored |= numbers
    found.update(stored)
    given.update(stored)
    return found


def recount(
    db: sqlite3.Connection,
) -> tuple[dict[tuple[int, int], int], dict[int, tuple[int, int]]]:
    """The frequencies by (tid, pid) and the sizes by pid, counted anew from the chunks."""
    counted = Tally()
    for row, pid, terms in db.execute("SELECT row, pid, terms FROM chunks JOIN units USING (uid)"):
        counts = forward.unpack(terms)
        counted.add(pid, [Piece(row, sum(counts.values()), counts)])
    frequencies = {
        (tid, pid): n for pid, counts in counted.frequencies.items() for tid, n in counts.items()
    }
    return frequencies, counted.sizes
