"""From one embedder to another: vectors of two models never meet in one space.

The next model's vectors gather in a table of their own, beside a kernel that serves with the old
ones, and take their place in one transaction. Whoever is killed meanwhile loses a batch at most.

Invariants: ``next_vectors`` holds vectors of the model that ``meta.next`` names, all and only of
chunks that live; it is empty iff nothing is under way or nothing is embedded yet.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from isovist.storage import schema, texts
from isovist.storage.chunks import Span, dated
from isovist.storage.embedder import Embedder, stored
from isovist.storage.indexing import GENERATION
from isovist.syscalls.errors import Errno, WorldError

BATCH = 32
"""Chunks whose vectors are committed at once: the most that a kill costs."""
_REMOVED = 1024
"""Rows of an abandoned model that are removed in one transaction: a kernel that writes beside it
waits no longer."""

_pack = msgspec.msgpack.Encoder().encode
_space = msgspec.msgpack.Decoder(tuple[str, int]).decode


class Progress(msgspec.Struct, frozen=True):
    """Of ``total`` chunks, ``done`` have a vector of the next model."""

    done: int
    total: int


def settle_space(db: sqlite3.Connection, name: str, dim: int) -> bool:
    """Make ``meta.embedder`` (name, dim), at the opening of a store; true iff vectors were
    swapped, so that what is derived from the old ones is of no use any more.

    Where ``meta.next`` is what is asked for, its vectors replace the old ones; a chunk without one
    simply lacks it. Where the vectors are what is asked for already, nothing happens, and a change
    to another model goes on later. Runs in the caller's transaction, or in one of its own.

    Raises :class:`WorldError` that names both models where vectors of another one are
    stored and nothing replaces them.
    """
    with _transaction(db):
        meta: dict[str, bytes] = dict(
            db.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'next')")
        )
        asked = (name, dim)
        current = _space(meta["embedder"]) if "embedder" in meta else None
        if current == asked:
            return False
        swap = "next" in meta and _space(meta["next"]) == asked
        if swap:
            db.execute("DELETE FROM vectors")
            db.execute(
                "INSERT INTO vectors (row, vector) SELECT row, vector FROM next_vectors"
                " WHERE row IN (SELECT row FROM chunks) ORDER BY row"
            )
            db.execute("DELETE FROM next_vectors")
            # Whatever was derived from the old ones is of no generation any more, whoever swaps.
            db.execute("DELETE FROM meta WHERE name IN ('next', ?)", (GENERATION,))
        elif current and db.execute("SELECT 1 FROM vectors LIMIT 1").fetchone():
            raise WorldError(
                f"the store's vectors are of embedder {current[0]!r} ({current[1]} dimensions),"
                f" not of {name!r} ({dim}): isovist memory reembed makes them anew",
                field="embedder",
            )
        db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('embedder', ?)",
                   (_pack(asked),))  # fmt: skip
        return swap


def reembed(
    path: Path, embedder: Embedder, show: Callable[[Progress], None] = lambda progress: None
) -> Progress:
    """Give every chunk of the store at ``path`` a vector of ``embedder`` in ``next_vectors``.

    Runs beside a kernel that serves the store, in short transactions. Takes up what an earlier run
    for the same model left; what one for another model left is removed. Chunks that are written
    while it runs are embedded too, up to the moment when none is lacking.

    Raises :class:`WorldError` where the store cannot be used or another run took over, and what
    the embedder raises.
    """
    db = schema.open_file(path)
    try:
        space = (embedder.name, embedder.dim)
        _begin(db, space)
        # Counting reads whole tables: at the beginning and at the end alone.
        progress = _progress(db)
        show(progress)
        after = 0
        while batch := _lacking(db, after):
            made = [(row, stored(embedder.embed(text))) for row, text in batch]
            done = progress.done + _keep(db, space, made)
            progress = Progress(done, max(progress.total, done))
            show(progress)
            after = batch[-1][0]
        return _progress(db)
    except sqlite3.Error as e:
        errno = Errno.EIO
        if getattr(e, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            errno = Errno.ENOSPC
        raise WorldError(f"{path}: the store failed: {e}", errno=errno) from e
    finally:
        db.close()


def current_space(path: Path) -> tuple[str, int] | None:
    """The model and dimension of the vectors in the store at ``path``, where it names one."""
    db = schema.open_file(path)
    try:
        found = db.execute("SELECT value FROM meta WHERE name = 'embedder'").fetchone()
    finally:
        db.close()
    return _space(found[0]) if found else None


def _begin(db: sqlite3.Connection, space: tuple[str, int]) -> None:
    """Note the next model; what was gathered for another one goes first."""
    while True:
        with _transaction(db):
            found = db.execute("SELECT value FROM meta WHERE name = 'next'").fetchone()
            if found and _space(found[0]) == space:
                return
            gone = db.execute(
                "DELETE FROM next_vectors WHERE row IN (SELECT row FROM next_vectors LIMIT ?)",
                (_REMOVED,),
            )
            if gone.rowcount == 0:
                db.execute(
                    "INSERT OR REPLACE INTO meta (name, value) VALUES ('next', ?)", (_pack(space),)
                )
                return
            # Half of them gone, they are nobody's any more.
            db.execute("DELETE FROM meta WHERE name = 'next'")


def _lacking(db: sqlite3.Connection, after: int) -> list[tuple[int, str]]:
    """The next chunks without a vector of the next model, each as it is indexed. Rows are issued
    in ascending order and never again, so none comes up behind ``after``."""
    rows = db.execute(
        "SELECT row, head, start, stop, text, said_at FROM chunks JOIN units USING (uid)"
        " WHERE row > ? AND NOT EXISTS"
        " (SELECT 1 FROM next_vectors WHERE next_vectors.row = chunks.row) ORDER BY row LIMIT ?",
        (after, BATCH),
    ).fetchall()
    return [
        (row, dated(Span(head, start, stop).cut(texts.unpack(text)), said_at))
        for row, head, start, stop, text, said_at in rows
    ]


def _keep(db: sqlite3.Connection, space: tuple[str, int], made: list[tuple[int, bytes]]) -> int:
    """Commit a batch, of chunks that still live; how many those are."""
    with _transaction(db):
        found = db.execute("SELECT value FROM meta WHERE name = 'next'").fetchone()
        if not found or _space(found[0]) != space:
            raise WorldError("another run took over, or a kernel began to use the new vectors")
        return db.executemany(
            "INSERT OR REPLACE INTO next_vectors (row, vector)"
            " SELECT row, ? FROM chunks WHERE row = ?",
            [(vector, row) for row, vector in made],
        ).rowcount


def _progress(db: sqlite3.Connection) -> Progress:
    (done,) = db.execute("SELECT count(*) FROM next_vectors").fetchone()
    (total,) = db.execute("SELECT count(*) FROM chunks").fetchone()
    return Progress(done, total)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what stands below it; part of the caller's where one is under way."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
