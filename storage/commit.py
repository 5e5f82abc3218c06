"""One group of operations on its way into the file: a transaction, and in it a savepoint for
each operation, so that what is refused leaves nothing and harms no other.

A partition's counter of numbers moves for refused operations too: their numbers are void and are
never issued again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from isovist.storage import agents, forward, holdings, learning, life, texts
from isovist.storage.changes import NEVER, Change, Piece
from isovist.storage.chunks import Span, dated
from isovist.storage.guard import clean_op
from isovist.storage.prepared import Prepared, prepare
from isovist.storage.rules import (
    Refused,
    check,
    check_vectors,
    covers,
    failed,
    gone,
    moved,
    no_older,
    not_expired,
    nowhere,
    outdated,
    ring,
    rival,
    round_after,
    stale,
    twin,
)
from isovist.storage.tally import Draft, Tally, number
from isovist.syscalls.errors import Errno, KernelError
from isovist.syscalls.operations import (
    NEXT_ROUND,
    Drop,
    Expire,
    Held,
    Move,
    Op,
    Outcome,
    Put,
    Replace,
    Vectors,
)
from isovist.syscalls.records import Axis, Partition

_pack = msgspec.msgpack.Encoder().encode

_OF_ITS_VALUES = (sqlite3.IntegrityError, sqlite3.DataError)
"""Errors of SQLite where the tables refuse a value: its operation's own fault."""
_OF_ONE = (*_OF_ITS_VALUES, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""Those that leave the transaction sound; the last two are a bug in how one operation is put."""

_UNIT = (
    "INSERT INTO units (pid, agent, user, hash, kind, session, round, twin, id, seq,"
    " wrote, version, text, stream, said_at, born_at, stored_at, expires_at, supersedes,"
    " meta, handle) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (pid, agent, user, hash, kind, session, round) WHERE twin = 1 DO NOTHING"
    " ON CONFLICT (id) DO NOTHING"
)
"""A new unit; no row where the text has a twin, or the id is taken."""
_PIECES = "SELECT row, length, terms FROM chunks WHERE uid = ? ORDER BY number"


class Commit:
    """Runs in a transaction that its caller begins and ends. What it has learned of numbers
    (``pids``, ``tally.tids``) holds iff that transaction is committed."""

    def __init__(
        self,
        db: sqlite3.Connection,
        space: tuple[str, int],
        pids: Mapping[Partition, int],
        tids: Mapping[str, int],
    ) -> None:
        """``space``: the model of the store's vectors and their length. ``pids``, ``tids``:
        numbers known to be in the file."""
        self._db = db
        self._space = space
        self._known_pids = pids
        self._known_tids = tids
        self.pids: dict[Partition, int] = {}
        self.tally = Tally()
        self.changes: list[Change] = []
        """What took effect, in order."""

    def run(self, ops: Sequence[Op]) -> list[Outcome]:
        """One outcome an operation. Raises :class:`sqlite3.Error` where the whole group fails."""
        outcomes = [self._one(op) for op in ops]
        self._count(ops)
        self.tally.flush(self._db)
        holdings.add(self._db, (held for change in self.changes for held in change.outcome.held))
        return outcomes

    def _one(self, op: Op) -> Outcome:
        db = self._db
        db.execute("SAVEPOINT op")
        draft = Draft()
        secrets: dict[str, int] = {}
        try:
            check(op)
            op, secrets = clean_op(op)
            change = self._do(op, self._pid(op.partition), draft)
            outcome = change.outcome
            if secrets:
                outcome = msgspec.structs.replace(outcome, secrets=secrets)
                change = msgspec.structs.replace(change, outcome=outcome)
            if not outcome.duplicate:
                self.tally.take(draft)
                self.changes.append(change)
            return outcome
        except Exception as e:
            if isinstance(e, sqlite3.Error) and not isinstance(e, _OF_ONE):
                raise
            db.execute("ROLLBACK TO op")
            if isinstance(e, _OF_ITS_VALUES):
                e = Refused(Errno.EINVAL, f"cannot be stored: {e}")
            return msgspec.structs.replace(failed(op, e), secrets=secrets)
        finally:
            if db.in_transaction:
                db.execute("RELEASE op")

    def _do(self, op: Op, pid: int, draft: Draft) -> Change:
        if isinstance(op, Put):
            return self._put(op, pid, draft)
        row = self._db.execute(
            "SELECT uid, version, wrote, said_at, agent, user FROM units WHERE id = ? AND pid = ?",
            (op.id, pid),
        ).fetchone()
        if row is None:
            there = self._db.execute("SELECT 1 FROM units WHERE id = ?", (op.id,)).fetchone()
            raise moved() if there else gone()
        uid, version, wrote, said_at, *owner = row
        if isinstance(op, Drop):
            if op.version not in (0, version):
                raise stale(op.version, version)
            return self._drop(op, pid, uid, version, owner, draft)
        if isinstance(op, Vectors):
            if outdated(op, version, wrote):
                raise stale(op.version, version)
            return self._vectors(op, pid, uid, version)
        if op.version != version:
            raise stale(op.version, version)
        if isinstance(op, Replace):
            return self._replace(op, pid, uid, said_at, owner, draft)
        if isinstance(op, Move):
            return self._move(op, pid, uid, owner, draft)
        return self._expire(op, pid, uid)

    def _put(self, op: Put, pid: int, draft: Draft) -> Change:
        db = self._db
        if op.round == NEXT_ROUND:
            op = self._numbered(op)
        older, imported = 0, bool(op.born_at)
        if op.supersedes:
            at = -NEVER if imported else op.stored_at  # what has expired since counts there too
            older = self._yields(op.supersedes, op.agent, op.user, op.partition, at)
            if not older and not imported:
                raise no_older(op.supersedes)
        # A twin answers for this write only where it does all that this one asks for: one that has
        # expired gives way, one that supersedes something else, one with other labels; and any to
        # a unit from an export, which is one of its own.
        ready = prepare(op.text, op.said_at)
        meta = _pack(op.meta)
        twins = (pid, op.agent, op.user, bytes.fromhex(ready.hash), op.kind, op.session, op.round)
        row = (
            *twins, op.id, op.seq, op.seq, op.version, texts.pack(op.text), op.stream, op.said_at,
            op.born_at or op.stored_at, op.stored_at, op.expires_at, op.supersedes, meta, op.handle,
        )  # fmt: skip
        new = db.execute(_UNIT, row)
        if not new.rowcount:
            freed = db.execute(
                "UPDATE units SET twin = NULL WHERE (pid, agent, user, hash, kind, session, round)"
                " = (?, ?, ?, ?, ?, ?, ?) AND twin = 1 AND (? OR expires_at <= ?"
                " OR ? NOT IN ('', supersedes) OR stream IS NOT ? OR expires_at IS NOT ?"
                " OR meta IS NOT ?)",
                (*twins, imported, op.stored_at, op.supersedes, op.stream, op.expires_at, meta),
            )
            if freed.rowcount:
                new = db.execute(_UNIT, row)
        if not new.rowcount:
            known = db.execute(
                "SELECT id, version FROM units WHERE (pid, agent, user, hash, kind, session,"
                " round) = (?, ?, ?, ?, ?, ?, ?) AND twin = 1",
                twins,
            ).fetchone()
            if known is None:
                raise Refused(Errno.EEXIST, "a unit of that id is already stored")
            db.execute("ROLLBACK TO op")
            if op.learned is not None:  # the same was learned once more
                learning.enter(db, known[0], op.learned)
            outcome = Outcome(op=op, id=known[0], version=known[1], duplicate=True)
            return Change(outcome=outcome, pid=pid, uid=0)
        uid = _made(new)
        if op.learned is not None:
            learning.enter(db, op.id, op.learned)
        if older and not imported:
            self._check_rivals(op, pid, uid)
        newer = self._newer(op)
        if newer and op.supersedes:
            self._check_ring(op)
        if imported and any(covers(partition, op.partition) for _, partition in newer):
            db.execute("UPDATE units SET twin = NULL WHERE uid = ?", (uid,))
        return Change(
            outcome=Outcome(
                op=op,
                id=op.id,
                version=op.version,
                chunks=ready.chunks,
                held=(Held(op.agent, op.user, 1, len(op.text.encode())),),
            ),
            pid=pid,
            uid=uid,
            pieces=self._index(pid, uid, ready, draft),
            hash=ready.hash,
            kind=op.kind,
            said_at=op.said_at,
            expires_at=op.expires_at,
            older=older,
            newer=tuple(one for one, _ in newer),
            prepared=ready,
        )

    def _replace(
        self, op: Replace, pid: int, uid: int, said_at: int, owner: list[str], draft: Draft
    ) -> Change:
        db = self._db
        more = len(op.text.encode()) - self._size(uid)
        ready = prepare(op.text, said_at)
        hash_ = bytes.fromhex(ready.hash)
        self._free_expired(uid, pid, hash_, op.stored_at)
        try:
            db.execute(
                "UPDATE units SET version = version + 1, text = ?, hash = ?, stored_at = ?,"
                " wrote = ? WHERE uid = ?",
                (texts.pack(op.text), hash_, op.stored_at, op.seq, uid),
            )
        except sqlite3.IntegrityError:
            raise twin() from None
        if op.learned is not None:
            learning.enter(db, op.id, op.learned)
        else:
            learning.touch(db, op.id)
        before = self._pieces(uid)
        draft.add(pid, before, -1)
        db.execute("DELETE FROM chunks WHERE uid = ?", (uid,))
        return Change(
            outcome=Outcome(
                op=op,
                id=op.id,
                version=op.version + 1,
                chunks=ready.chunks,
                held=(Held(owner[0], owner[1], 0, more),),
            ),
            pid=pid,
            uid=uid,
            rows=_rows(before),
            pieces=self._index(pid, uid, ready, draft),
            hash=ready.hash,
            prepared=ready,
        )

    def _expire(self, op: Expire, pid: int, uid: int) -> Change:
        # ``wrote`` stays: vectors that are on their way still fit the text.
        self._db.execute(
            "UPDATE units SET version = version + 1, expires_at = ?, stored_at = ? WHERE uid = ?",
            (op.expires_at, op.stored_at, uid),
        )
        outcome = Outcome(op=op, id=op.id, version=op.version + 1)
        return Change(
            outcome=outcome,
            pid=pid,
            uid=uid,
            rows=self._rows_of(uid),
            expires_at=op.expires_at,
        )

    def _move(self, op: Move, pid: int, uid: int, owner: list[str], draft: Draft) -> Change:
        db = self._db
        held: tuple[Held, ...] = ()
        if op.owner is not None:
            user, agent = op.owner
            size = self._size(uid)
            held = Held(owner[0], owner[1], -1, -size), Held(agent, user, 1, size)
        to_pid = self._pid(op.to)
        if to_pid == pid:
            raise nowhere()
        hash_, text, kind, said_at, expires_at = db.execute(
            "SELECT hash, text, kind, said_at, expires_at FROM units WHERE uid = ?", (uid,)
        ).fetchone()
        self._free_expired(uid, to_pid, hash_, op.stored_at)
        new = op.owner or (None, None)
        try:
            db.execute(
                "UPDATE units SET pid = ?, seq = ?, wrote = ?, version = version + 1, born_at = ?,"
                " stored_at = ?, user = coalesce(?, user), agent = coalesce(?, agent),"
                " twin = CASE WHEN ? THEN NULL ELSE twin END WHERE uid = ?",
                (
                    to_pid,
                    op.to_seq,
                    op.to_seq,
                    op.stored_at,
                    op.stored_at,
                    *new,
                    bool(op.hidden),
                    uid,
                ),
            )
        except sqlite3.IntegrityError:
            raise twin() from None
        learning.touch(db, op.id)
        agents.moved(db, op)
        before = self._pieces(uid)
        vectors, spans = self._renumber(uid)
        pieces = self._pieces(uid)
        draft.add(pid, before, -1)
        draft.add(to_pid, pieces)
        lacking: tuple[str, ...] = ()
        if len(vectors) < len(pieces):
            vectors = ()
            whole = texts.unpack(text)
            lacking = tuple(dated(span.cut(whole), said_at) for span in spans)
        return Change(
            outcome=Outcome(op=op, id=op.id, version=op.version + 1, chunks=lacking, held=held),
            pid=pid,
            uid=uid,
            to_pid=to_pid,
            rows=_rows(before),
            pieces=pieces,
            hash=hash_.hex(),
            kind=kind,
            said_at=said_at,
            expires_at=expires_at,
            vectors=vectors,
        )

    def _drop(
        self, op: Drop, pid: int, uid: int, version: int, owner: list[str], draft: Draft
    ) -> Change:
        db = self._db
        if op.expired:
            lives = "SELECT 1 FROM units WHERE uid = ? AND coalesce(expires_at > ?, 1)"
            if db.execute(lives, (uid, op.stored_at)).fetchone():
                raise not_expired()
        held = (Held(owner[0], owner[1], -1, -self._size(uid)),)
        older, heirs = self._hand_down(uid)
        pieces = self._pieces(uid)
        draft.add(pid, pieces, -1)
        db.execute("DELETE FROM units WHERE uid = ?", (uid,))
        learning.leave(db, op.id)
        agents.left(db, op.id)
        if op.receipt:
            life.ask(db, op.receipt, op.stored_at)
            life.add(db, op.receipt, op.id)
        gone = tuple(heirs.values())
        outcome = Outcome(op=op, id=op.id, version=version, heirs=gone, held=held)
        return Change(
            outcome=outcome,
            pid=pid,
            uid=uid,
            rows=_rows(pieces),
            older=older,
            newer=tuple(heirs),
        )

    def _vectors(self, op: Vectors, pid: int, uid: int, version: int) -> Change:
        rows = self._rows_of(uid)
        check_vectors(op, *self._space, len(rows))
        self._db.executemany(
            "INSERT OR REPLACE INTO vectors (row, vector) VALUES (?, ?)",
            list(zip(rows, op.vectors, strict=True)),
        )
        outcome = Outcome(op=op, id=op.id, version=version)
        return Change(outcome=outcome, pid=pid, uid=uid, rows=rows)

    # -- what several of them need

    def _size(self, uid: int) -> int:
        """Bytes of the text that is stored."""
        row = self._db.execute(f"SELECT {texts.SIZE} FROM units WHERE uid = ?", (uid,)).fetchone()
        return int(row[0])

    def _numbered(self, op: Put) -> Put:
        """``op`` as the next round of its session; without a session there is but round 0."""
        if not op.handle:
            return msgspec.structs.replace(op, round=0)
        (highest,) = self._db.execute(
            "SELECT max(round) FROM units WHERE handle = ? AND handle <> ''", (op.handle,)
        ).fetchone()
        return msgspec.structs.replace(op, round=round_after(highest))

    def _yields(self, id_: str, agent: str, user: str, to: Partition, now: int) -> int:
        """The uid of the living unit that a unit in ``to`` supersedes; 0: there is none. It stops
        standing for its text: should the same be said again later, that is a new unit and not
        this hidden one."""
        found = self._db.execute(
            "SELECT uid, users_kind, users_name, agents_kind, agents_name FROM units JOIN"
            " partitions USING (pid) WHERE id = ? AND agent = ? AND user = ?"
            " AND (expires_at IS NULL OR expires_at > ?)",
            (id_, agent, user, now),
        ).fetchone()
        if found is None:
            return 0
        uid, *axes = found
        if covers(to, Partition(Axis(*axes[:2]), Axis(*axes[2:]))):
            self._db.execute("UPDATE units SET twin = NULL WHERE uid = ?", (uid,))
        return int(uid)

    def _newer(self, op: Put) -> list[tuple[int, Partition]]:
        """Which units of the same owner say that they supersede this one, and where they are."""
        rows = self._db.execute(
            "SELECT uid, users_kind, users_name, agents_kind, agents_name FROM units"
            " INDEXED BY units_by_older JOIN partitions USING (pid) WHERE supersedes = ?"
            " AND supersedes <> '' AND agent = ? AND user = ? ORDER BY uid",
            (op.id, op.agent, op.user),
        )
        return [(uid, Partition(Axis(*axes[:2]), Axis(*axes[2:]))) for uid, *axes in rows]

    def _check_ring(self, op: Put) -> None:
        """Raise where what ``op`` supersedes comes, link by link, back to ``op``, which others name
        already. Every new unit is looked at, so no other ring is there to be caught in, but one
        that an earlier version took in."""
        at, seen = op.supersedes, set[str]()
        while at and at not in seen:
            if at == op.id:
                raise ring(op.supersedes)
            seen.add(at)
            found = self._db.execute(
                "SELECT supersedes FROM units WHERE id = ? AND agent = ? AND user = ?",
                (at, op.agent, op.user),
            ).fetchone()
            at = found[0] if found else ""

    def _check_rivals(self, op: Put, pid: int, uid: int) -> None:
        """Raise where another living unit of the pair, in this same partition, supersedes already
        what the new unit ``uid`` does. By now a twin has been told from a rival."""
        found = self._db.execute(
            "SELECT id FROM units INDEXED BY units_by_older WHERE supersedes = ?"
            " AND supersedes <> '' AND pid = ? AND agent = ? AND user = ? AND uid <> ?"
            " AND (expires_at IS NULL OR expires_at > ?) ORDER BY id LIMIT 1",
            (op.supersedes, pid, op.agent, op.user, uid, op.stored_at),
        ).fetchone()
        if found is not None:
            raise rival(op.supersedes, found[0])

    def _hand_down(self, uid: int) -> tuple[int, dict[int, str]]:
        """Pass what ``uid``, which goes, supersedes to its heirs; gives the older unit's uid (0:
        it is here no more) and the ids of the heirs by uid.

        Heirs are the units of the same pair *and partition* that supersede ``uid``: nothing new
        shows to whoever sees one, since it saw ``uid`` and what that superseded as well. A unit
        elsewhere inherits nothing: a reader of it who never saw ``uid`` would miss the older one
        from now on, and learn of a unit outside its view. Nor does the older unit itself (in a
        ring that an earlier version took in): it would hide itself.
        """
        db = self._db
        id_, pid, agent, user, older = db.execute(
            "SELECT id, pid, agent, user, supersedes FROM units WHERE uid = ?", (uid,)
        ).fetchone()
        if not older:
            return 0, {}
        heirs = dict(
            db.execute(
                "SELECT uid, id FROM units INDEXED BY units_by_older WHERE supersedes = ?"
                " AND supersedes <> '' AND pid = ? AND agent = ? AND user = ? AND id <> ?"
                " ORDER BY id",
                (id_, pid, agent, user, older),
            ).fetchall()
        )
        if not heirs:
            return 0, {}
        db.executemany(
            "UPDATE units SET supersedes = ? WHERE uid = ?", [(older, heir) for heir in heirs]
        )
        found = db.execute(
            "SELECT uid FROM units WHERE id = ? AND agent = ? AND user = ?", (older, agent, user)
        ).fetchone()
        return (found[0] if found else 0), heirs

    def _renumber(self, uid: int) -> tuple[tuple[bytes, ...], list[Span]]:
        """Give a unit's chunks new rows, as if they were new; their vectors come along. Gives
        those, and where the chunks stand in the text.

        Rows then ascend in the order in which chunks came to their partition, and tell nothing of
        how old one was that came from another."""
        db = self._db
        chunks = db.execute(
            "SELECT head, start, stop, number, length, terms, vectors.vector, next_vectors.vector"
            " FROM chunks LEFT JOIN vectors USING (row) LEFT JOIN next_vectors USING (row)"
            " WHERE uid = ? ORDER BY number",
            (uid,),
        ).fetchall()
        db.execute("DELETE FROM chunks WHERE uid = ?", (uid,))
        for *chunk, vector, later in chunks:
            row = _made(
                db.execute(
                    "INSERT INTO chunks (uid, head, start, stop, number, length, terms)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (uid, *chunk),
                )
            )
            for table, one in (("vectors", vector), ("next_vectors", later)):
                if one is not None:
                    db.execute(f"INSERT INTO {table} (row, vector) VALUES (?, ?)", (row, one))
        vectors = tuple(vector for *_, vector, _ in chunks if vector is not None)
        return vectors, [Span(*chunk[:3]) for chunk in chunks]

    def _free_expired(self, uid: int, pid: int, hash_: bytes, now: int) -> None:
        """What unit ``uid`` would be a twin of in ``pid``, were its text of this hash, gives way
        where it has expired."""
        self._db.execute(
            "UPDATE units SET twin = NULL WHERE twin = 1 AND expires_at <= ? AND uid <> ?"
            " AND pid = ? AND hash = ? AND (agent, user, kind, session, round) ="
            " (SELECT agent, user, kind, session, round FROM units WHERE uid = ? AND twin = 1)",
            (now, uid, pid, hash_, uid),
        )

    def _index(self, pid: int, uid: int, ready: Prepared, draft: Draft) -> tuple[Piece, ...]:
        """Enter the chunks of a text."""
        distinct = {term for counts in ready.terms for term in counts}
        tids = number(self._db, distinct, draft.tids, self._known_tids, self.tally.tids)
        pieces: list[Piece] = []
        for place, (span, words) in enumerate(zip(ready.spans, ready.terms, strict=True)):
            counts = {tids[word]: n for word, n in words.items()}
            length = sum(words.values())
            new = self._db.execute(
                "INSERT INTO chunks (uid, number, head, start, stop, length, terms)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (uid, place, span.head, span.start, span.stop, length, forward.pack(counts)),
            )
            pieces.append(Piece(_made(new), length, counts))
        draft.add(pid, pieces)
        return tuple(pieces)

    def _pieces(self, uid: int) -> tuple[Piece, ...]:
        rows = self._db.execute(_PIECES, (uid,)).fetchall()
        return tuple(Piece(row, length, forward.unpack(terms)) for row, length, terms in rows)

    def _rows_of(self, uid: int) -> tuple[int, ...]:
        found = self._db.execute("SELECT row FROM chunks WHERE uid = ? ORDER BY number", (uid,))
        return tuple(row for (row,) in found)

    def _pid(self, partition: Partition) -> int:
        pid = self._known_pids.get(partition)
        if pid is None:
            users, agents = partition.users, partition.agents
            axes = (users.kind, users.name, agents.kind, agents.name)
            self._db.execute(
                "INSERT INTO partitions (users_kind, users_name, agents_kind, agents_name)"
                " VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                axes,
            )
            (pid,) = self._db.execute(
                "SELECT pid FROM partitions WHERE (users_kind, users_name, agents_kind,"
                " agents_name) = (?, ?, ?, ?)",
                axes,
            ).fetchone()
        return int(pid)

    def _count(self, ops: Sequence[Op]) -> None:
        """Note the highest number of each partition."""
        highest: dict[Partition, int] = {}
        for op in ops:
            highest[op.partition] = max(op.seq, highest.get(op.partition, 0))
            if isinstance(op, Move):
                highest[op.to] = max(op.to_seq, highest.get(op.to, 0))
        for partition, seq in highest.items():
            try:
                pid = self._pid(partition)
                self._db.execute(
                    "UPDATE partitions SET accepted = max(accepted, ?) WHERE pid = ?", (seq, pid)
                )
                self.pids[partition] = pid
            except (UnicodeEncodeError, OverflowError):
                continue  # cannot be stored: that operation was refused too


def _rows(pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(piece.row for piece in pieces)


def _made(cursor: sqlite3.Cursor) -> int:
    """The number that SQLite gave the new row."""
    if cursor.lastrowid is None:
        raise KernelError("an insert without a row")
    return cursor.lastrowid
