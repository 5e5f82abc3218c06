"""What a store asks of the engine that answers for it, and the exhaustive engine in that place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from isovist.storage.changes import Change, Found, Link
from isovist.storage.dense import Vector
from isovist.storage.engine import MemoryEngine
from isovist.storage.forward import unpack
from isovist.storage.partitions import Stored
from isovist.storage.snapshot import Snapshot
from isovist.syscalls.operations import Query, Selection
from isovist.syscalls.records import View


class Job(Protocol):
    """Upkeep that an engine hands out: ``run`` in a worker's thread touches nothing of the engine,
    and what it made is taken in by :meth:`Engine.finish`."""

    def run(self, reader: Callable[[], Snapshot]) -> None:
        """``reader`` opens a snapshot of now; who opens one releases it."""
        ...


class Engine(Protocol):
    """Derived from the truth, and made again from it at any start. All on the loop's thread."""

    def load(self, found: Iterable[Found], links: Iterable[Link], snapshot: Snapshot) -> None:
        """Take in what is on disk, once, before all else. ``snapshot`` stays until the first
        :meth:`apply`."""
        ...

    def apply(self, changes: Sequence[Change], snapshot: Snapshot) -> None:
        """Take in one commit. ``snapshot`` is the state right after it; the one before is released
        when this returns."""
        ...

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection: ...

    def statistics(self) -> dict[str, int]: ...

    def job(self) -> Job | None:
        """Upkeep that is due, if any."""
        ...

    def finish(self, job: Job) -> None: ...

    def scrub(self, reader: Callable[[], Snapshot]) -> bool:
        """Leave nothing of what was dropped in any file, in any one thread, while the loop goes
        on reading. False where jobs are due first: then it is to be called again. Raises
        :class:`WorldError`."""
        ...

    def stop(self) -> None:
        """Have a job and a scrub under way end soon, undone; from any thread."""
        ...

    def close(self) -> None: ...


class WholeEngine:
    """:class:`MemoryEngine` in a store's service: everything in memory, nothing to keep up."""

    def __init__(self, dim: int) -> None:
        self._engine = MemoryEngine(dim)

    def load(self, found: Iterable[Found], links: Iterable[Link], snapshot: Snapshot) -> None:
        """The links are in the units."""
        for part in found:
            self._engine.load(part.partition, _units(part, snapshot))

    def apply(self, changes: Sequence[Change], snapshot: Snapshot) -> None:
        for change in changes:
            self._engine.apply(change.outcome.op, change.outcome, change.prepared)

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        return self._engine.select(view, query, vector)

    def statistics(self) -> dict[str, int]:
        return self._engine.statistics()

    def job(self) -> Job | None:
        return None

    def finish(self, job: Job) -> None: ...

    def scrub(self, reader: Callable[[], Snapshot]) -> bool:
        return True

    def stop(self) -> None: ...

    def close(self) -> None: ...


def _units(
    part: Found, snapshot: Snapshot
) -> Iterator[tuple[Stored, list[dict[str, int]], list[bytes]]]:
    """A partition's units by sequence, with the terms of each chunk and, if all have one, their
    vectors."""
    rows: dict[int, list[int]] = {}
    for row, uid in zip(part.row.tolist(), part.uid.tolist(), strict=True):
        rows.setdefault(uid, []).append(row)
    all_rows, blobs = snapshot.forward_of(part.pid)
    counts = {row: unpack(blob) for row, blob in zip(all_rows.tolist(), blobs, strict=True)}
    words = snapshot.words(sorted({tid for one in counts.values() for tid in one}))
    embedded, matrix = snapshot.vectors_of(part.pid)
    vectors = {row: one.tobytes() for row, one in zip(embedded.tolist(), matrix, strict=True)}
    for held in sorted(snapshot.units(list(rows)).values(), key=lambda one: (one.seq, one.uid)):
        stored = Stored(held.unit, held.seq, held.born_at, held.hash, held.spans)
        mine = rows[held.uid]
        terms = [{words[tid]: n for tid, n in counts[row].items()} for row in mine]
        there = [vectors[row] for row in mine if row in vectors]
        yield stored, terms, there if len(there) == len(mine) else []
