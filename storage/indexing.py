"""The forward index made anew from the texts: where the rules for words have changed, or the file
comes from a schema that kept it otherwise."""

from __future__ import annotations

import os
import sqlite3

import msgspec

from isovist.storage import forward, texts, words
from isovist.storage.changes import Piece
from isovist.storage.chunks import Span, dated
from isovist.storage.tally import Tally, number

_BATCH = 1000
_pack = msgspec.msgpack.Encoder().encode

RULES = "words"
GENERATION = "generation"
"""Names in ``meta``. The rules that the terms were made by, and random bytes that change when
terms or vectors are made anew: what is derived from the file bears those that it was made from."""


def keep_up(db: sqlite3.Connection, *, renewed: bool) -> bytes:
    """Make the terms those of today's rules; gives the generation of what the file holds, a new
    one if ``renewed``. In a transaction of the caller's."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    rules = _pack(words.RULES)
    stale = meta.get(RULES, rules) != rules
    if stale:
        index_again(db)
    generation: bytes = meta.get(GENERATION) or b""
    if stale or renewed or not generation:
        generation = os.urandom(16)
    db.executemany(
        "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
        [(RULES, rules), (GENERATION, generation)],
    )
    return generation


def index_again(db: sqlite3.Connection) -> None:
    """Terms, frequencies and sizes of all chunks by today's rules, in the caller's transaction."""
    db.execute("DELETE FROM frequencies")
    db.execute("DELETE FROM terms")
    db.execute("UPDATE partitions SET chunks = 0, total = 0")
    tally = Tally()
    last = 0
    while True:
        chunks = db.execute(
            "SELECT row, pid, text, said_at, head, start, stop FROM chunks JOIN units USING (uid)"
            " WHERE row > ? ORDER BY row LIMIT ?",
            (last, _BATCH),
        ).fetchall()
        if not chunks:
            break
        for row, pid, text, said_at, *span in chunks:
            terms = words.index_terms(dated(Span(*span).cut(texts.unpack(text)), said_at))
            tids = number(db, set(terms), tally.tids)
            piece = Piece(row, sum(terms.values()), {tids[term]: n for term, n in terms.items()})
            db.execute(
                "UPDATE chunks SET terms = ?, length = ? WHERE row = ?",
                (forward.pack(piece.terms), piece.length, row),
            )
            tally.add(pid, [piece])
        last = chunks[-1][0]
    tally.flush(db)
