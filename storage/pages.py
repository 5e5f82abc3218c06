"""A view's units by pages, newest first.

Within a partition the order is that of the sequence; partitions are merged by the time of
storing, then by their place in the view. No update moves a unit.

A page ends with a cursor that says where each partition of the view goes on. It names no unit,
so whatever is forgotten or expires between two pages breaks no walk: a unit that stood when the
walk began and still stands when its turn comes is given exactly once, a newer one never.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from heapq import merge

import msgspec

from isovist.storage.partitions import NEVER, Shelf, Stored
from isovist.syscalls.errors import CallerError
from isovist.syscalls.operations import ListQuery

PAGE_BYTES = 512 * 1024
"""Text on one page, so that its reply fits a frame however long the units are."""


class _Cursor(msgspec.Struct, array_like=True):
    """Where a walk stands: a function of the walk and of the view alone.

    ``time`` is that of the last unit passed, in ns; ``down_from`` has one number a partition, in
    the view's order: the walk goes on with what has this number or a lower one.
    """

    time: int
    down_from: list[int]

    def write(self) -> str:
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def _read(after: str, partitions: int) -> _Cursor:
    try:
        data = urlsafe_b64decode(after + "=" * (-len(after) % 4))
        cursor = msgspec.msgpack.decode(data, type=_Cursor)
    except (ValueError, msgspec.MsgspecError):
        cursor = None
    if cursor is None or len(cursor.down_from) != partitions or cursor.write() != after:
        raise CallerError("after must be the `next` of an earlier page", field="after")
    return cursor


def page(
    shelves: Sequence[Shelf | None], query: ListQuery
) -> tuple[list[tuple[Shelf, Stored]], str]:
    """The asked page of a view, and the cursor of the next one (empty: there is none).

    ``shelves``: one a partition of the view, ``None`` where nothing was ever stored. Raises
    ``EINVAL`` for a malformed ``after``.
    """
    if query.after:
        cursor = _read(query.after, len(shelves))
    else:
        cursor = _Cursor(NEVER, [0 if shelf is None else shelf.newest() for shelf in shelves])
    found: list[tuple[Shelf, Stored]] = []
    room = PAGE_BYTES
    walks = [
        _walk(place, shelf, cursor.down_from[place], cursor.time, query.now)
        for place, shelf in enumerate(shelves)
        if shelf is not None
    ]
    for age, place, _, shelf, stored in merge(*walks):
        asked = not query.kinds or stored.unit.kind in query.kinds
        size = len(stored.unit.text.encode()) if asked else 0
        if asked and found and (len(found) == query.limit or room < size):
            return found, cursor.write()
        room -= size
        cursor.time, cursor.down_from[place] = -age, stored.seq - 1
        if asked:
            found.append((shelf, stored))
    return found, ""


def _walk(
    place: int, shelf: Shelf, seq: int, time: int, now: int
) -> Iterator[tuple[int, int, int, Shelf, Stored]]:
    """A shelf's living units from ``seq`` down, with their key of order. A clock that stepped
    back must not break the order by sequence, so the time used is the least met so far; what is
    left of other partitions is no newer than that either, so one time serves all."""
    for stored in shelf.down_from(seq):
        if stored.lives(now):
            time = min(time, stored.born)
            yield -time, place, -stored.seq, shelf, stored
