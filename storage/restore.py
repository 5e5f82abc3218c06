"""From the file to an engine at start: every chunk's numbers as columns, and what the kernel must
know of each partition."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isovist.storage.changes import NEVER, Found, Link, short_name
from isovist.storage.chunks import dated
from isovist.storage.snapshot import Snapshot
from isovist.syscalls.operations import Restored
from isovist.syscalls.records import KINDS, Axis, Partition

_BATCH = 50_000
_COLUMNS = ("row", "uid", "pid", "seq", "number", "said", "expires", "kind", "length", "round")

Lacking = tuple[int, str, int, tuple[str, ...]]


class Whole(msgspec.Struct, frozen=True):
    """All that is on disk, at one moment."""

    found: list[Found]
    links: list[Link]
    restored: tuple[Restored, ...]


def partitions(db: sqlite3.Connection) -> dict[int, tuple[Partition, int]]:
    """By pid: the partition, and the last sequence number issued in it."""
    rows = db.execute(
        "SELECT pid, users_kind, users_name, agents_kind, agents_name, accepted FROM partitions"
        " ORDER BY pid"
    )
    return {pid: (Partition(Axis(*axes[:2]), Axis(*axes[2:4])), axes[4]) for pid, *axes in rows}


def read(snapshot: Snapshot) -> Whole:
    """The chunks by partition, those without any left out; the links; a :class:`Restored` for
    every partition."""
    known = partitions(snapshot.db)
    columns = _chunks(snapshot.db)
    order = np.argsort(columns["pid"], kind="stable")  # rows ascend already
    columns = {name: column[order] for name, column in columns.items()}
    pids, starts, counts = np.unique(columns.pop("pid"), return_index=True, return_counts=True)
    found = [
        Found(
            pid=pid,
            partition=known[pid][0],
            **{name: column[start : start + n] for name, column in columns.items()},
        )
        for pid, start, n in zip(pids.tolist(), starts.tolist(), counts.tolist(), strict=True)
    ]
    lacking = {
        part.pid: tuple(_lacking(part, snapshot)) for part in found if not part.embedded.all()
    }
    restored = tuple(
        Restored(partition=partition, accepted=accepted, lacking=lacking.get(pid, ()))
        for pid, (partition, accepted) in known.items()
    )
    return Whole(found, _links(snapshot.db), restored)


def _chunks(db: sqlite3.Connection) -> dict[str, NDArray[Any]]:
    """The columns of all chunks by row."""
    kinds = " ".join(f"WHEN '{kind}' THEN {number}" for number, kind in enumerate(KINDS))
    cursor = db.execute(
        f"SELECT row, uid, pid, seq, number, said_at, coalesce(expires_at, {NEVER}),"
        f" CASE kind {kinds} END, length, round, handle, substr(hash, 1, 8)"
        " FROM chunks JOIN units USING (uid) ORDER BY row"
    )
    batches: list[list[NDArray[np.int64]]] = []
    handles: list[NDArray[np.int64]] = []
    hashes: list[bytes] = []
    while rows := cursor.fetchmany(_BATCH):
        *numbers, sessions, texts = zip(*rows, strict=True)
        handles.append(np.array([short_name(handle) for handle in sessions], dtype=np.int64))
        batches.append([np.array(column, dtype=np.int64) for column in numbers])
        hashes.append(b"".join(texts))
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([np.zeros(0, np.int64), *(batch[place] for batch in batches)])
        for place, name in enumerate(_COLUMNS)
    }
    columns["handle"] = np.concatenate([np.zeros(0, np.int64), *handles])
    columns["hash"] = np.frombuffer(b"".join(hashes), dtype="<i8")
    with_vector = [row for (row,) in db.execute("SELECT row FROM vectors")]
    columns["embedded"] = np.isin(columns["row"], np.array(with_vector, dtype=np.int64))
    return columns


def _links(db: sqlite3.Connection) -> list[Link]:
    rows = db.execute(
        "SELECT newer.uid, older.uid FROM units newer INDEXED BY units_by_older JOIN units older"
        " ON older.id = newer.supersedes AND older.agent = newer.agent AND older.user = newer.user"
        " WHERE newer.supersedes <> '' ORDER BY 1"
    )
    return [Link(*row) for row in rows]


def _lacking(part: Found, snapshot: Snapshot) -> Iterator[Lacking]:
    """The units of a partition that lack a vector, by sequence: the number of the last write of
    their text, id, version, and the chunks to embed."""
    uids = np.unique(part.uid[~part.embedded]).tolist()
    for held in sorted(snapshot.units(uids).values(), key=lambda one: (one.seq, one.uid)):
        unit = held.unit
        texts = tuple(dated(span.cut(unit.text), unit.said_at) for span in held.spans)
        yield held.wrote, unit.id, unit.version, texts
