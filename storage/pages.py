"""A view's units by pages, newest first.

Within a partition the order is that of the sequence; partitions are merged by the time of
storing, then by their place in the view. No update moves a unit.

A page ends with a cursor that says where each partition of the view goes on. It names no unit,
so whatever is forgotten or expires between two pages breaks no walk: a unit that stood when the
walk began and still stands when its turn comes is given exactly once, a newer one never.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

import msgspec

from isovist.storage.changes import NEVER
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import ListQuery, MatchQuery
from isovist.syscalls.records import Partition

PAGE_BYTES = 512 * 1024
"""Text on one page, so that its reply fits a frame however long the units are."""


Item = TypeVar("Item")


class Entry(NamedTuple, Generic[Item]):
    """A unit on its way to a page: its sequence, when it came into its partition (ns), the bytes
    of its text, and what stands for it."""

    seq: int
    born: int
    size: int
    item: Item


class Listing(Protocol[Item]):
    """A partition that can be walked."""

    def newest(self) -> int:
        """The highest sequence number of a unit that is held; 0 where none is."""
        ...

    def down_from(self, seq: int, now: int, kinds: Sequence[str]) -> Iterator[Entry[Item]]:
        """Units numbered ``seq`` or less that live at ``now`` and are of ``kinds`` (none: any),
        newest first."""
        ...


class _Cursor(msgspec.Struct, array_like=True):
    """Where a walk stands: a function of the walk and of the view alone.

    ``view`` is a check sum of the view's partitions: in another view the numbers mean others.
    ``time`` is that of the last unit passed, in ns; ``down_from`` has one number a partition, in
    the view's order: the walk goes on with what has this number or a lower one.
    """

    view: int
    time: int
    down_from: list[int]

    def write(self) -> str:
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def _read(after: str, view: int, partitions: int) -> _Cursor:
    try:
        data = urlsafe_b64decode(after + "=" * (-len(after) % 4))
        cursor = msgspec.msgpack.decode(data, type=_Cursor)
    except (ValueError, msgspec.MsgspecError):
        cursor = None
    if cursor is None or cursor.write() != after:
        raise CallerError("after must be the `next` of an earlier page", field="after")
    if cursor.view != view or len(cursor.down_from) != partitions:
        raise CallerError(
            "the view has changed since that page (who is in which group); begin the list again",
            errno=Errno.ESTALE,
            field="after",
        )
    return cursor


def page(
    partitions: Sequence[Partition],
    listings: Sequence[Listing[Item] | None],
    query: ListQuery | MatchQuery,
) -> tuple[list[tuple[int, Item]], str]:
    """The asked page of a view, each unit with the place of its partition, and the cursor of the
    next one (empty: there is none). What is to be forgotten is matched even where it has expired
    and is not swept yet.

    ``listings``: one for each of the view's ``partitions``, ``None`` where nothing was ever
    stored. Raises ``EINVAL`` for a malformed ``after``, ``ESTALE`` for one of another view.
    """
    view = crc32(msgspec.msgpack.encode(partitions))
    if query.after:
        cursor = _read(query.after, view, len(listings))
    else:
        newest = [0 if listing is None else listing.newest() for listing in listings]
        cursor = _Cursor(view, NEVER, newest)
    found: list[tuple[int, Item]] = []
    room = PAGE_BYTES
    walks = [
        _walk(place, listing, cursor.down_from[place], cursor.time, query)
        for place, listing in enumerate(listings)
        if listing is not None
    ]
    for age, place, _, entry in merge(*walks, key=lambda step: step[:3]):
        if found and (len(found) == query.limit or room < entry.size):
            return found, cursor.write()
        room -= entry.size
        cursor.time, cursor.down_from[place] = -age, entry.seq - 1
        found.append((place, entry.item))
    return found, ""


def _walk(
    place: int, listing: Listing[Item], seq: int, time: int, query: ListQuery | MatchQuery
) -> Iterator[tuple[int, int, int, Entry[Item]]]:
    """A listing's units from ``seq`` down, with their key of order. A clock that stepped back
    must not break the order by sequence, so the time used is the least met so far; what is left
    of other partitions is no newer than that either, so one time serves all."""
    now = query.now if isinstance(query, ListQuery) else -NEVER
    for entry in listing.down_from(seq, now, query.kinds):
        time = min(time, entry.born)
        yield -time, place, -entry.seq, entry


CUT = "more"
"""``Selection.next`` of rounds of which not all are given."""


def bounded(entries: Iterable[tuple[int, Item]], limit: int) -> tuple[list[Item], str]:
    """The first of ``entries`` (the bytes of a text, and what stands for it): at most ``limit``,
    no more text than a page holds, and one at least where there is one; and ``CUT`` iff some are
    left out."""
    found: list[Item] = []
    room = PAGE_BYTES
    for size, item in entries:
        if found and (len(found) == limit or room < size):
            return found, CUT
        room -= size
        found.append(item)
    return found, ""
