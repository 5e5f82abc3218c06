"""One partition in the indexed engine: what filters, ties and legs need of each chunk, as columns.

Some sixty bytes a chunk, always in memory; texts stay in the store. A chunk has a *slot*, its
place in the columns: slots are only ever appended, a removed chunk leaves a dead one behind, and
:meth:`Part.compact` closes the gaps. No answer depends on a slot's number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isovist.storage.changes import NEVER, Found, Piece
from isovist.storage.graph import Graph
from isovist.storage.lexical import Delta
from isovist.storage.resident import Resident
from isovist.storage.scanned import Scanned
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import KINDS, Partition

_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("row", np.int64),
    ("uid", np.int64),
    ("seq", np.int64),
    ("said", np.int64),
    ("expires", np.int64),
    ("hash", np.int64),
    ("handle", np.int64),
    ("round", np.int32),
    ("length", np.uint16),
    ("number", np.uint8),
    ("kind", np.uint8),
    ("embedded", np.bool_),
    ("alive", np.bool_),
    ("hidden", np.bool_),
)
Mask = NDArray[np.bool_]


class Ledger:
    """What upkeep has to look at, so that it need not look at everything: ``waiting`` chunks in
    the deltas of all parts, and the parts (by pid) that ``changed`` or were asked since, in no
    order that matters."""

    __slots__ = ("changed", "version", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.changed: set[int] = set()
        self.version = 0
        """Moves on whenever what a query reads of any part may have changed."""


class Traits(NamedTuple):
    """What the chunks of a unit have in common: see :class:`~isovist.storage.changes.Found`."""

    uid: int
    seq: int
    said: int
    expires: int
    hash: int
    handle: int
    round: int
    kind: int


class Part:
    """The chunks of one partition, and the indexes over them that are in memory.

    Invariants: ``count`` and ``total`` are the number and the summed length of the living slots,
    ``vectors`` how many of these are ``embedded``, that is, have their vector in the store;
    ``hidden`` marks living slots of units that a unit of this same partition without expiry
    supersedes, ``hidden_count`` counts them; ``delta`` holds all and only the living slots that
    the shared inverted index does not; ``resident``, where it is there, holds all living slots.
    """

    __slots__ = (
        *(name for name, _ in _COLUMNS),
        "_ordered", "_sessions", "_sorted", "_sorter", "_top", "count", "declined", "delta",
        "graph", "hidden_count", "key", "ledger", "lost", "n", "pid", "resident", "scanned",
        "shape", "soonest", "tainted", "total", "used", "vectors", "wandering", "watched",
    )  # fmt: skip

    row: NDArray[np.int64]
    uid: NDArray[np.int64]
    seq: NDArray[np.int64]
    said: NDArray[np.int64]
    expires: NDArray[np.int64]
    hash: NDArray[np.int64]
    handle: NDArray[np.int64]
    round: NDArray[np.int32]
    length: NDArray[np.uint16]
    number: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    embedded: Mask
    alive: Mask
    hidden: Mask

    def __init__(
        self, pid: int, key: Partition, found: Found | None = None, ledger: Ledger | None = None
    ) -> None:
        self.ledger = ledger or Ledger()
        self.ledger.changed.add(pid)
        self.pid = pid
        self.key = key
        self.n = 0 if found is None else len(found.row)
        for name, dtype in _COLUMNS:
            column = np.zeros(max(self.n, 4), dtype=dtype)
            if found is not None and name not in ("alive", "hidden"):
                column[: self.n] = getattr(found, name)
            setattr(self, name, column)
        self.alive[: self.n] = True
        self.count = self.n
        self.total = 0 if found is None else int(found.length.sum())
        self.vectors = int(self.embedded[: self.n].sum())
        self.hidden_count = 0
        self.soonest = NEVER if found is None or not self.n else int(found.expires.min())
        """No unit of this partition expires before this."""
        self.wandering: set[int] = set()
        """Units (uids) here that supersede one that no ``hidden`` mark covers: it is in another
        partition, or the newer one may expire."""
        self.watched: dict[int, list[int]] = {}
        """The living slots of each unit here that supersedes or is superseded."""
        self.resident: Resident | None = None if found else Resident()
        self.delta: Delta | None = None
        self.scanned: Scanned | None = None
        """The vectors that the graph does not hold; ``None``: not read from the store yet."""
        self.graph: Graph | None = None
        self.declined = 0
        """Vectors that it had when a graph of them found too little: no other is tried before there
        are a quarter more."""
        self.lost = 0
        """Rows of the graph that live no more."""
        self.tainted = False
        """Whether the graph must be made anew: a unit has left this partition whose vectors may
        stand in it. Its own units alone decide that, never when something else is erased: a graph
        made anew finds other neighbours."""
        self.shape = 0
        """How often slots have been numbered anew."""
        self.used = 0
        """When it last answered: what of it is resident goes when others need the room."""
        self._ordered = 0
        """Rows from this slot on ascend and are above all before; those before it are in
        ``_sorted``, as long as they live, their slots in ``_sorter``. −1: to be sorted anew."""
        self._top = int(self.row[: self.n].max(initial=0))
        self._sorter = np.zeros(0, dtype=np.intp)
        self._sorted = np.zeros(0, dtype=np.int64)
        self._sessions: dict[int, array[int]] | None = None
        """By session: its slots, dead ones too; ``None`` until somebody asks."""

    def append(self, piece: Piece, number: int, traits: Traits) -> int:
        """Take in a chunk, the ``number``-th of its unit; gives its slot. It is in the delta, and
        has no vector yet."""
        slot = self.n
        if slot == len(self.row):
            self._grow()
        self.n += 1
        self.row[slot], self.length[slot], self.number[slot] = piece.row, piece.length, number
        for name, value in zip(Traits._fields, traits, strict=True):
            getattr(self, name)[slot] = value
        self.alive[slot], self.hidden[slot], self.embedded[slot] = True, False, False
        self.count += 1
        self.total += piece.length
        self.ledger.changed.add(self.pid)
        self.soonest = min(self.soonest, traits.expires)
        if piece.row > self._top:
            self._top = piece.row
        else:
            self._ordered = -1
        if self._sessions is not None and traits.handle and traits.round:
            self._sessions.setdefault(traits.handle, array("i")).append(slot)
        self.await_commit([(slot, piece.terms)])
        if self.resident is not None:
            self.resident.add(slot, piece.terms)
        return slot

    def await_commit(self, chunks: Iterable[tuple[int, Mapping[int, int]]]) -> None:
        """Have living slots, with their terms, in the delta until the shared index holds them."""
        if self.delta is None:
            self.delta = Delta()
        for slot, terms in chunks:
            self.delta.add(slot, terms)
            self.ledger.waiting += 1

    def committed(self, slots: Iterable[int]) -> None:
        """The shared index holds these slots; of those in the delta they are taken out."""
        delta = self.delta
        for slot in slots:
            if delta is not None and slot in delta:
                delta.remove(slot)
                self.ledger.waiting -= 1
        if delta is not None and not len(delta):
            self.delta = None

    def kill(self, slot: int) -> None:
        """Take a chunk out of everything but the shared index and the graph, whose answers are
        met with ``alive``."""
        self.alive[slot] = False
        self.count -= 1
        self.total -= int(self.length[slot])
        self.vectors -= int(self.embedded[slot])
        self.hidden_count -= int(self.hidden[slot])
        self.hidden[slot] = self.embedded[slot] = False
        self.ledger.changed.add(self.pid)
        self.committed((slot,))
        if self.resident is not None:
            self.resident.remove(slot)
        if self.scanned is not None:
            self.scanned.clear(slot)
        if self.graph is not None and _among(self.row[slot], self.graph.rows):
            self.lost += 1

    def traits(self, slot: int) -> Traits:
        return Traits(*(int(getattr(self, name)[slot]) for name in Traits._fields))

    def slots_of(self, uid: int) -> list[int]:
        """The living slots of a unit, in the order of its chunks."""
        slots: list[int] = np.flatnonzero(
            (self.uid[: self.n] == uid) & self.alive[: self.n]
        ).tolist()
        return sorted(slots, key=lambda slot: int(self.number[slot]))

    def beside(self, slots: NDArray[np.intp], chunks: int) -> NDArray[np.intp]:
        """The first ``chunks`` chunks of the living units a round before or after those of
        ``slots``, in the same session: ascending."""
        handles, rounds = self.handle[slots], self.round[slots]
        seated = (handles != 0) & (rounds != 0)
        if not seated.any():
            return np.zeros(0, np.intp)
        sessions = self._sessions if self._sessions is not None else self._seat()
        found: set[int] = set()
        for handle, number in zip(handles[seated].tolist(), rounds[seated].tolist(), strict=True):
            session = np.frombuffer(sessions[handle], dtype=np.int32)
            found.update(session[np.abs(self.round[session] - number) == 1].tolist())
        near = np.array(sorted(found), dtype=np.intp)
        return near[self.alive[near] & (self.number[near] < chunks)]

    def _seat(self) -> dict[int, array[int]]:
        """Sort the slots of sessions by session, once; from then on :meth:`append` keeps it up."""
        seated = np.flatnonzero((self.handle[: self.n] != 0) & (self.round[: self.n] != 0))
        order = seated[np.argsort(self.handle[seated], kind="stable")].astype(np.int32)
        handles, starts = np.unique(self.handle[order], return_index=True)
        ends = np.append(starts, len(order))[1:]
        self._sessions = {
            handle: array("i", order[start:end].tobytes())
            for handle, start, end in zip(
                handles.tolist(), starts.tolist(), ends.tolist(), strict=True
            )
        }
        return self._sessions

    def find(self, rows: NDArray[np.int64]) -> NDArray[np.intp]:
        """The slots of these rows, −1 for one that is not (or no more) alive here."""
        if not self.n:
            return np.full(len(rows), -1, dtype=np.intp)
        here = self.row[: self.n]
        if self._ordered < 0:
            self._order()
        tail = self._ordered
        slots = np.minimum(np.searchsorted(here[tail:], rows) + tail, self.n - 1)
        if len(self._sorted):
            place = np.minimum(np.searchsorted(self._sorted, rows), len(self._sorted) - 1)
            slots = np.where(self._sorted[place] == rows, self._sorter[place], slots)
        return np.where((here[slots] == rows) & self.alive[slots], slots, -1)

    def slot_of(self, row: int) -> int:
        """The same of one row."""
        if self._ordered != 0:
            return int(self.find(np.array([row], dtype=np.int64))[0])
        slot = int(self.row[: self.n].searchsorted(row))
        found = slot < self.n and self.row[slot] == row and self.alive[slot]
        return slot if found else -1

    def _order(self) -> None:
        """Sort the living rows: a moved unit brought an old one. Those that come will ascend."""
        here = self.row[: self.n]
        ascending = bool((here[1:] > here[:-1]).all())
        self._ordered = 0 if ascending else self.n
        living = np.flatnonzero(self.alive[: self.n] & (not ascending))
        self._sorter = living[np.argsort(here[living], kind="stable")]
        self._sorted = here[self._sorter]

    def filter(self, query: SearchQuery, superseded: Sequence[int] = ()) -> Mask | None:
        """Which slots may answer; ``None``: all that live. ``superseded`` are slots that another
        unit of the view hides."""
        n = self.n
        mask: Mask | None = None
        if self.soonest <= query.now:
            mask = self.expires[:n] > query.now
        if self.hidden_count:
            mask = _both(mask, ~self.hidden[:n])
        if query.since is not None:
            mask = _both(mask, self.said[:n] >= query.since)
        if query.until is not None:
            mask = _both(mask, self.said[:n] < query.until)
        if query.kinds:
            mask = _both(mask, np.isin(self.kind[:n], [KINDS.index(k) for k in query.kinds]))
        if superseded:
            mask = np.ones(n, np.bool_) if mask is None else mask
            mask[list(superseded)] = False
        return None if mask is None else mask & self.alive[:n]

    def mark(self, uid: int, hide: bool) -> None:
        """Set ``hidden`` on the chunks of a watched unit."""
        slots = self.watched[uid]
        self.hidden_count += len(slots) * hide - int(self.hidden[slots].sum())
        self.hidden[slots] = hide

    def compact(self) -> None:
        """Close the gaps that dead chunks leave. Only while the delta is empty; what is not here
        after it (codes, postings, exact vectors) is made anew from the store when it is needed."""
        keep = np.flatnonzero(self.alive[: self.n])
        moved = dict(zip(keep.tolist(), range(len(keep)), strict=True))
        for name, _ in _COLUMNS:
            setattr(self, name, getattr(self, name)[keep].copy())
        self.n = len(keep)
        if not self.n:
            for name, dtype in _COLUMNS:
                setattr(self, name, np.zeros(4, dtype=dtype))
        self.watched = {u: [moved[slot] for slot in slots] for u, slots in self.watched.items()}
        self.shape += 1
        self.scanned = self._sessions = None
        self._ordered = -1
        self.resident = None if self.n else Resident()

    def let_go(self) -> None:
        """Hold no postings and no exact vectors in memory."""
        self.ledger.version += 1
        self.resident = None
        if self.scanned is not None:
            self.scanned.let_go()

    def _grow(self) -> None:
        # A quarter more beyond some thousands: at a million chunks doubling wastes much.
        size = 2 * self.n if self.n < 1 << 14 else self.n + self.n // 4
        for name, dtype in _COLUMNS:
            column = np.zeros(size, dtype=dtype)
            column[: self.n] = getattr(self, name)[: self.n]
            setattr(self, name, column)


def _among(row: np.int64, ascending: NDArray[np.int64]) -> bool:
    at = int(np.searchsorted(ascending, row))
    return at < len(ascending) and bool(ascending[at] == row)


def _both(a: Mask | None, b: Mask) -> Mask:
    return b if a is None else a & b
