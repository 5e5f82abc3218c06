"""Reads of the truth at one moment: what a snapshot shows is what exactly the commits before it
left, whatever is written meanwhile.

A snapshot is a read transaction of SQLite on a connection of its own. Connections are pooled,
since what they have prepared is worth keeping.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from isovist.storage import schema, texts
from isovist.storage.changes import NEVER
from isovist.storage.chunks import Span
from isovist.syscalls.records import Partition, Unit

Half = NDArray[np.float16]
Rows = NDArray[np.int64]

_pack = msgspec.json.Encoder().encode
_LISTED = "IN (SELECT value FROM json_each(?))"
"""A list of any length is one value of a statement that is prepared once."""
_meta = msgspec.msgpack.Decoder(dict[str, str]).decode

_UNIT = (
    "uid, pid, seq, born_at, hash, id, version, text, kind, agent, user, stream, said_at,"
    " stored_at, session, round, expires_at, supersedes, meta, handle,"
    " wrote"
)


class Held(msgspec.Struct, frozen=True):
    """A unit as the store holds it. ``unit`` is whole: it names the owner's user whoever that is,
    and its scope is that of its partition."""

    uid: int
    unit: Unit
    pid: int
    seq: int
    born_at: int
    """When version 1 was stored, or when it came into this partition."""
    hash: str
    spans: tuple[Span, ...]
    wrote: int
    """The number of the last write of its text."""


class Line(NamedTuple):
    """What a page needs of a unit to find its place; ``size`` is its text's in bytes (UTF-8)."""

    seq: int
    born_at: int
    uid: int
    size: int


class Stretch(NamedTuple):
    """What reading a stretch of rounds needs of a unit to find its place."""

    uid: int
    pid: int
    round: int
    seq: int
    born_at: int


class Readers:
    """The connections of a store's snapshots. Any thread may open one.

    Invariant: ``out`` counts the snapshots that were opened and not yet released.
    """

    def __init__(self, path: Path, partitions: Mapping[int, Partition], dim: int) -> None:
        self._path = path
        self._partitions = partitions
        self._dim = dim
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self.out = 0

    def open(self) -> Snapshot:
        """A snapshot of what is committed now. Raises :class:`sqlite3.Error`."""
        with self._lock:
            db = self._idle.pop() if self._idle else None
        if db is None:
            db = schema.connect(self._path, read_only=True)
        try:
            snapshot = Snapshot(db, self)
        except BaseException:
            db.close()
            raise
        with self._lock:
            self.out += 1
        return snapshot

    def take_back(self, db: sqlite3.Connection) -> None:
        with self._lock:
            self.out -= 1
            if not self._closed:
                self._idle.append(db)
                return
        db.close()

    def close(self) -> None:
        """Close what is idle; a snapshot that is still out is closed at its release."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    @property
    def dim(self) -> int:
        return self._dim

    def count(self) -> int:
        """How many partitions there are."""
        return len(self._partitions)

    def partition(self, pid: int) -> Partition:
        return self._partitions[pid]


class Snapshot:
    """A moment of the store. One thread at a time; all methods raise :class:`sqlite3.Error` where
    the disk fails."""

    def __init__(self, db: sqlite3.Connection, readers: Readers) -> None:
        self.db = db
        """For reads that nobody else has; the store's own alone."""
        self._readers = readers
        self._begin()

    def _begin(self) -> None:
        self.db.execute("BEGIN")
        # The first read is what fixes the moment.
        self.db.execute("SELECT 1 FROM meta LIMIT 1").fetchone()

    def renew(self) -> None:
        """Move on to what is committed now. After a complete checkpoint this leaves the log to
        the writer, who can then begin it anew."""
        self.db.execute("ROLLBACK")
        self._begin()

    def release(self) -> None:
        """End it; it must not be used again."""
        self.db.execute("ROLLBACK")
        self._readers.take_back(self.db)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # -- the lexical leg

    def tids(self, terms: Sequence[str]) -> dict[str, int]:
        """The numbers of those terms that the store knows."""
        return dict(self._among("SELECT term, tid FROM terms WHERE term", terms))

    def words(self, tids: Iterable[int]) -> dict[int, str]:
        """The terms of these numbers."""
        return dict(self._among("SELECT tid, term FROM terms WHERE tid", tids))

    def frequencies(self, tids: Sequence[int], pids: Sequence[int]) -> dict[int, int]:
        """In how many chunks of the partitions ``pids`` each term stands; none: not in it."""
        # Few of the partitions: a look for each. Many: each term's line of partitions is read.
        many = "+" if 3 * len(pids) > self._readers.count() else ""
        return dict(
            self.db.execute(
                f"SELECT tid, sum(n) FROM frequencies WHERE tid {_LISTED} AND {many}pid {_LISTED}"
                " GROUP BY tid",
                (_list(tids), _list(pids)),
            ).fetchall()
        )

    def forward(self, rows: Sequence[int]) -> list[bytes]:
        """The forward vectors of these chunks, in the order asked. Raises :class:`KeyError` for a
        row that is none."""
        blobs = dict(self._among("SELECT row, terms FROM chunks WHERE row", rows))
        return [blobs[row] for row in rows]

    def known_forward(self, rows: Sequence[int]) -> dict[int, bytes]:
        """The forward vectors of those of these chunks that there are, by row."""
        return dict(self._among("SELECT row, terms FROM chunks WHERE row", rows))

    def chunks(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Every chunk of the store: row, pid, when it was said (ns), forward vector."""
        yield from self.db.execute(
            "SELECT row, pid, said_at, terms FROM chunks JOIN units USING (uid) ORDER BY row"
        )

    def forward_of(self, pid: int) -> tuple[Rows, list[bytes]]:
        """All rows of a partition, ascending, and their forward vectors."""
        found = self.db.execute(
            "SELECT row, terms FROM units JOIN chunks USING (uid) WHERE pid = ? ORDER BY row",
            (pid,),
        ).fetchall()
        return _numbers([row for row, _ in found]), [terms for _, terms in found]

    # -- the dense leg

    def vectors(self, rows: Sequence[int]) -> tuple[Half, NDArray[np.bool_]]:
        """The vectors of these chunks, shape (n, dim), in the order asked, and which there are;
        zeros stand for the others."""
        blobs = dict(self._among("SELECT row, vector FROM vectors WHERE row", rows))
        zero = bytes(2 * self._readers.dim)
        present = np.fromiter((row in blobs for row in rows), np.bool_, len(rows))
        return self._half([blobs.get(row, zero) for row in rows]), present

    def vectors_of(self, pid: int) -> tuple[Rows, Half]:
        """The rows of a partition that have a vector, ascending, and these, shape (n, dim)."""
        found = self.db.execute(
            "SELECT row, vector FROM units JOIN chunks USING (uid) JOIN vectors USING (row)"
            " WHERE pid = ? ORDER BY row",
            (pid,),
        ).fetchall()
        return _numbers([row for row, _ in found]), self._half([vector for _, vector in found])

    def _half(self, vectors: list[bytes]) -> Half:
        return np.frombuffer(b"".join(vectors), dtype="<f2").reshape(-1, self._readers.dim)

    # -- units

    def units(self, uids: Sequence[int]) -> dict[int, Held]:
        """Those of these units that there are, by uid."""
        spans: dict[int, list[Span]] = {}
        for uid, _, *span in sorted(
            self._among("SELECT uid, number, head, start, stop FROM chunks WHERE uid", uids)
        ):
            spans.setdefault(uid, []).append(Span(*span))
        rows = self._among(f"SELECT {_UNIT} FROM units WHERE uid", uids)
        return {row[0]: self._held(row, tuple(spans.get(row[0], ()))) for row in rows}

    def _held(self, row: tuple[Any, ...], spans: tuple[Span, ...]) -> Held:
        (uid, pid, seq, born_at, hash_, id_, version, text, kind, agent, user, stream, said_at,
         stored_at, session, round_, expires_at, supersedes, meta, handle, wrote) = row  # fmt: skip
        unit = Unit(
            id=id_,
            version=version,
            text=texts.unpack(text),
            kind=kind,
            scope=self._readers.partition(pid).scope,
            agent=agent,
            user=user,
            stream=stream,
            said_at=said_at,
            stored_at=stored_at,
            session=session,
            round=round_,
            expires_at=expires_at,
            supersedes=supersedes,
            meta=_meta(meta),
            handle=handle,
        )
        return Held(uid, unit, pid, seq, born_at, hash_.hex(), spans, wrote)

    def find(self, id_: str) -> tuple[int, int] | None:
        """(uid, pid) of a unit."""
        found: tuple[int, int] | None = self.db.execute(
            "SELECT uid, pid FROM units WHERE id = ?", (id_,)
        ).fetchone()
        return found

    def rows_of(self, uid: int) -> list[int]:
        """The rows of a unit's chunks, in the order of the text."""
        found = self.db.execute("SELECT row FROM chunks WHERE uid = ? ORDER BY number", (uid,))
        return [row for (row,) in found]

    def newest(self, pid: int) -> int:
        """The highest sequence number of a unit in the partition; 0 where none is."""
        (seq,) = self.db.execute("SELECT max(seq) FROM units WHERE pid = ?", (pid,)).fetchone()
        return seq or 0

    def page(
        self, pid: int, down_from: int, now: int, kinds: Sequence[str], limit: int
    ) -> list[Line]:
        """The ``limit`` newest units numbered ``down_from`` or less, newest first, that live at
        ``now`` (ns) and are of ``kinds`` (empty: any)."""
        among = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        rows = self.db.execute(
            f"SELECT seq, born_at, uid, {texts.SIZE} FROM units WHERE pid = ?"
            f" AND seq <= ? AND (expires_at IS NULL OR expires_at > ?){among}"
            " ORDER BY seq DESC LIMIT ?",
            (pid, down_from, now, *kinds, limit),
        )
        return [Line(*row) for row in rows]

    def rounds(self, handle: str, low: int, high: int, now: int) -> list[Stretch]:
        """The units of a session that live at ``now``, in the rounds ``low`` to ``high``, both
        inclusive, of every partition: the caller keeps those of its view. By round, then by the
        time of storing, then by uid."""
        rows = self.db.execute(
            "SELECT uid, pid, round, seq, born_at FROM units WHERE handle = ? AND handle <> ''"
            " AND round BETWEEN ? AND ? AND (expires_at IS NULL OR expires_at > ?)"
            " ORDER BY round, born_at, uid",
            (handle, low, high, now),
        )
        return [Stretch(*row) for row in rows]

    def counts(self, pid: int, now: int, kinds: Sequence[str]) -> int:
        """How many units of ``kinds`` (empty: any) live at ``now`` in the partition."""
        among = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        (count,) = self.db.execute(
            "SELECT count(*) FROM units WHERE pid = ?"
            f" AND coalesce(expires_at, {NEVER}) > ?{among}",
            (pid, now, *kinds),
        ).fetchone()
        return int(count)

    def _among(self, statement: str, values: Iterable[Any]) -> list[Any]:
        """The rows of ``statement``, which ends with what is to be one of ``values``."""
        return self.db.execute(f"{statement} {_LISTED}", (_list(values),)).fetchall()


def _list(values: Iterable[Any]) -> str:
    return _pack(list(values)).decode()


def _numbers(values: list[int]) -> Rows:
    return np.array(values, dtype=np.int64)
