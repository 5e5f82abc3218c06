"""Reads that rank nothing, from a snapshot: lists, single units, rounds of a session, counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from isovist.storage.candidates import candidate
from isovist.storage.matching import matches
from isovist.storage.pages import Entry, bounded, page
from isovist.storage.snapshot import Held, Line, Snapshot, Stretch
from isovist.syscalls.errors import KernelError
from isovist.syscalls.operations import (
    Candidate,
    CountQuery,
    ListQuery,
    MatchQuery,
    Query,
    ReadQuery,
    RoundsQuery,
    Selection,
)
from isovist.syscalls.records import Partition, View

_BATCH = 64
"""Units that a walk fetches at once."""


class _Walked:
    """A partition as :func:`page` walks it."""

    def __init__(self, snapshot: Snapshot, pid: int) -> None:
        self._snapshot = snapshot
        self._pid = pid

    def newest(self) -> int:
        return self._snapshot.newest(self._pid)

    def down_from(self, seq: int, now: int, kinds: Sequence[str]) -> Iterator[Entry[Line]]:
        while lines := self._snapshot.page(self._pid, seq, now, kinds, _BATCH):
            for line in lines:
                yield Entry(line.seq, line.born_at, line.size, line)
            seq = lines[-1].seq - 1


def look_up(
    view: View, query: Query, snapshot: Snapshot, pids: Mapping[Partition, int]
) -> Selection:
    """The answer to a query that is no search. ``pids``: the partitions that the store knows."""
    places = [pids.get(partition) for partition in view.partitions]
    if isinstance(query, CountQuery):
        counts = (
            0 if pid is None else snapshot.counts(pid, query.now, query.kinds) for pid in places
        )
        return Selection(counts=tuple(counts))
    if isinstance(query, ReadQuery):
        return Selection(candidates=tuple(_read(view, query, snapshot, places)))
    if isinstance(query, ListQuery | MatchQuery):
        walks = [None if pid is None else _Walked(snapshot, pid) for pid in places]
        found, later = page(view.partitions, walks, query)
        held = snapshot.units([line.uid for _, line in found])
        lines = tuple(
            _candidate(view, view.partitions[place], held[line.uid]) for place, line in found
        )
        if isinstance(query, MatchQuery):
            lines = tuple(matches(query, view.reader, lines))
        return Selection(candidates=lines, next=later)
    if isinstance(query, RoundsQuery):
        return _rounds(view, query, snapshot, places)
    raise KernelError(f"a {type(query).__name__} is no look-up")


def _read(
    view: View, query: ReadQuery, snapshot: Snapshot, places: Sequence[int | None]
) -> Iterator[Candidate]:
    found = snapshot.find(query.id)
    if found is None or found[1] not in places:
        return
    uid, pid = found
    held = snapshot.units([uid])[uid]
    expires = held.unit.expires_at
    if query.expired or expires is None or expires > query.now:
        yield _candidate(view, view.partitions[places.index(pid)], held)


def _rounds(
    view: View, query: RoundsQuery, snapshot: Snapshot, places: Sequence[int | None]
) -> Selection:
    wanted: dict[int, Stretch] = {}
    for handle, low, high in query.wanted:
        stretch = [
            one for one in snapshot.rounds(handle, low, high, query.now) if one.pid in places
        ]
        stretch.sort(key=lambda one: (one.round, one.born_at, places.index(one.pid), one.seq))
        for one in stretch:
            wanted.setdefault(one.uid, one)
    some = list(wanted.values())[: query.limit + 1]
    held = snapshot.units([one.uid for one in some])
    entries = ((len(held[one.uid].unit.text.encode()), one) for one in some)
    found, cut = bounded(entries, query.limit)
    return Selection(
        candidates=tuple(
            _candidate(view, view.partitions[places.index(one.pid)], held[one.uid]) for one in found
        ),
        next=cut,
    )


def _candidate(view: View, partition: Partition, held: Held) -> Candidate:
    return candidate(view.reader, partition, held.unit, held.spans, held.hash, born_at=held.born_at)
