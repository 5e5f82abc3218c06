"""The parts of the indexed engine, kept in step with the store's commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from isovist.storage.changes import NEVER, Change, Found, Link, short_hash, short_name
from isovist.storage.columns import Ledger, Part, Traits
from isovist.storage.links import Links
from isovist.storage.scanned import Scanned
from isovist.storage.snapshot import Snapshot
from isovist.syscalls.errors import KernelError
from isovist.syscalls.operations import Drop, Expire, Move, Put, Replace, Vectors
from isovist.syscalls.records import KINDS, Partition, View


class Parts:
    """All partitions of a store by their number. ``dim`` is the vectors' length.

    Invariant: parts and links stand at the commit that was applied last.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.links = Links()
        self.drops: set[int] = set()
        """Rows that the shared index is to forget at its next commit."""
        self.ledger = Ledger()
        self._parts: dict[int, Part] = {}
        self._pids: dict[Partition, int] = {}
        self._missing: list[tuple[Part, NDArray[np.intp]]] = []

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts.values())

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, pid: int) -> bool:
        return pid in self._parts

    def __getitem__(self, pid: int) -> Part:
        return self._parts[pid]

    @property
    def pids(self) -> Mapping[Partition, int]:
        return self._pids

    def of(self, view: View) -> list[Part]:
        """The view's parts that hold anything, in its order."""
        found = (self._parts.get(self._pids.get(key, 0)) for key in view.partitions)
        return [part for part in found if part is not None and part.count]

    def load(
        self,
        found: Iterable[Found],
        links: Iterable[Link],
        indexed: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Take in a store found on disk, once, before anything else. ``indexed``: the rows that
        the shared index holds, and their pids. It may hold more than the store (that becomes
        drops) or less: see :meth:`missing`."""
        held = _by_partition(*indexed)
        linked = np.array(sorted(self.links.load(links)), dtype=np.int64)
        for f in found:
            part = self._parts[f.pid] = Part(f.pid, f.partition, f, self.ledger)
            self._pids[f.partition] = f.pid
            known = held.pop(f.pid, np.zeros(0, np.int64))
            own = part.row[: part.n]
            if not np.array_equal(known, own):
                self.drops.update(known[~np.isin(known, own)].tolist())
                self._missing.append((part, np.flatnonzero(~np.isin(own, known))))
            self._enter_links(part, linked)
        for rows in held.values():
            self.drops.update(rows.tolist())
        for uid in linked.tolist():
            self.links.settle(uid)

    def missing(self) -> list[tuple[Part, NDArray[np.intp]]]:
        """After :meth:`load`, once: the slots that the shared index lacks, by part. They are to be
        put into the delta, or into the index."""
        missing, self._missing = self._missing, []
        return [(part, slots) for part, slots in missing if len(slots)]

    def _enter_links(self, part: Part, linked: NDArray[np.int64]) -> None:
        if len(linked):
            slots = np.flatnonzero(np.isin(part.uid[: part.n], linked))
            order = np.lexsort((part.number[slots], part.uid[slots]))
            for uid, own in groupby(slots[order].tolist(), lambda slot: int(part.uid[slot])):
                self.links.enter(uid, part, list(own))

    def apply(self, changes: Sequence[Change], snapshot: Snapshot) -> None:
        """Take in all operations of one commit, in order; ``snapshot`` shows all and only what
        was committed up to it."""
        for vectors, run in groupby(changes, lambda c: isinstance(c.outcome.op, Vectors)):
            if vectors:
                self._embed_all(run)
            else:
                for change in run:
                    self._apply(change, snapshot)

    def _embed_all(self, changes: Iterable[Change]) -> None:
        """Vectors of many units, one step a part."""
        gathered: dict[int, dict[int, bytes]] = {}
        for change in changes:
            op = change.outcome.op
            assert isinstance(op, Vectors)
            vectors = gathered.setdefault(change.pid, {})
            vectors.update(zip(change.rows, op.vectors, strict=True))
        for pid, vectors in gathered.items():
            part = self._parts[pid]
            self._embed(part, _slots(part, list(vectors)), list(vectors.values()))

    def _apply(self, change: Change, snapshot: Snapshot) -> None:
        op, uid = change.outcome.op, change.uid
        part = self._part(change.pid, op.partition)
        if isinstance(op, Put):
            traits = Traits(
                uid=uid,
                seq=op.seq,
                said=op.said_at,
                expires=NEVER if op.expires_at is None else op.expires_at,
                hash=short_hash(change.hash),
                handle=short_name(op.handle),
                round=op.round,
                kind=KINDS.index(op.kind),
            )
            slots = _place(part, change, traits)
            if change.older:
                self.links.add(uid, change.older)
                self._watch(change.older, snapshot)
            for newer in change.newer:
                self.links.add(newer, uid)
                self._watch(newer, snapshot)
            self._relink(uid, part, slots)
        elif isinstance(op, Replace):
            traits = part.traits(_slots(part, change.rows)[0])
            self._clear(part, change)
            slots = _place(part, change, traits._replace(hash=short_hash(change.hash)))
            self._relink(uid, part, slots)
        elif isinstance(op, Expire):
            slots = _slots(part, change.rows)
            part.expires[slots] = NEVER if op.expires_at is None else op.expires_at
            part.soonest = min(part.soonest, int(part.expires[slots[0]]))
            self.links.settle(uid)
        elif isinstance(op, Drop):
            self._clear(part, change, leaves=True)
            for heir in change.newer:
                self.links.inherit(heir, change.older)
            if self.links.linked(uid):
                self.links.drop(uid)
        elif isinstance(op, Move):
            self._move(part, op, change)

    def _move(self, part: Part, op: Move, change: Change) -> None:
        traits = part.traits(_slots(part, change.rows)[0])
        self._clear(part, change, leaves=True)
        if self.links.linked(change.uid):
            self.links.leave(change.uid)
        to = self._part(change.to_pid, op.to)
        slots = _place(to, change, traits._replace(seq=op.to_seq))
        if change.vectors:
            self._embed(to, slots, change.vectors)
        self._relink(change.uid, to, slots)

    def _watch(self, uid: int, snapshot: Snapshot) -> None:
        """A unit that is here has a link from now on. ``snapshot`` tells where it will be at the
        end of the commit, which a later operation of the commit may yet bring about."""
        if self.links.watched(uid):
            return
        held = snapshot.units([uid]).get(uid)
        likely = [self._parts[held.pid]] if held and held.pid in self._parts else []
        rows = np.array(snapshot.rows_of(uid), dtype=np.int64)
        for part in likely:
            slots = part.find(rows).tolist()
            if slots and min(slots) >= 0:
                self.links.enter(uid, part, slots)
                return
        # It is rare that the same commit rewrites or moves it.
        for part in self._parts.values():
            if slots := part.slots_of(uid):
                self.links.enter(uid, part, slots)
                return

    def _relink(self, uid: int, part: Part, slots: Sequence[int]) -> None:
        if self.links.linked(uid):
            self.links.enter(uid, part, slots)
            self.links.settle(uid)

    def _part(self, pid: int, partition: Partition) -> Part:
        part = self._parts.get(pid)
        if part is None:
            part = self._parts[pid] = Part(pid, partition, ledger=self.ledger)
            part.scanned = Scanned(self.dim, exact=True)
            self._pids[partition] = pid
        return part

    def _clear(self, part: Part, change: Change, *, leaves: bool = False) -> None:
        """``leaves``: the unit is in this part no more, with all texts that it ever had here."""
        for slot in _slots(part, change.rows):
            self.drops.add(int(part.row[slot]))
            part.kill(slot)
        if leaves:
            part.tainted = part.lost > 0

    def _embed(self, part: Part, slots: Sequence[int], vectors: Sequence[bytes]) -> None:
        self.ledger.changed.add(part.pid)
        part.vectors += len(slots) - int(part.embedded[slots].sum())
        part.embedded[slots] = True
        if part.scanned is not None:
            rows = np.frombuffer(b"".join(vectors), dtype="<f2").reshape(len(slots), self.dim)
            part.scanned.put(np.array(slots, dtype=np.intp), rows)

    def read_vectors(self, part: Part, snapshot: Snapshot) -> None:
        """Have the codes of a part that came from disk; a graph's own vectors are in the graph."""
        if part.scanned is not None:
            return
        self.ledger.version += 1
        scanned = Scanned(self.dim, exact=False)
        rows, vectors = snapshot.vectors_of(part.pid)
        slots = part.find(rows)
        mine = slots >= 0
        if part.graph is not None:
            mine &= ~np.isin(rows, part.graph.rows)
        scanned.put(slots[mine], vectors[mine])
        part.scanned = scanned


def _slots(part: Part, rows: Sequence[int]) -> list[int]:
    """Where the chunks are that a change is about."""
    slots: list[int] = part.find(np.array(rows, dtype=np.int64)).tolist()
    if min(slots) < 0:
        raise KernelError("a change of chunks that are not where it says")
    return slots


def _place(part: Part, change: Change, traits: Traits) -> list[int]:
    return [part.append(piece, number, traits) for number, piece in enumerate(change.pieces)]


def _by_partition(rows: NDArray[np.int64], pids: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    if not len(rows):
        return {}
    order = np.lexsort((rows, pids))
    known, starts = np.unique(pids[order], return_index=True)
    return dict(zip(known.tolist(), np.split(rows[order], starts[1:]), strict=True))
