"""The end of a unit: what is a user's, the receipts, and how the file forgets."""

from __future__ import annotations

import sqlite3

from isovist.storage import holdings
from isovist.storage.tally import recount
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.operations import Drop, Lapsed, Receipt
from isovist.syscalls.records import Axis, Partition

_OWNED = (
    " FROM units JOIN partitions USING (pid) WHERE user = ?1"
    " OR pid IN (SELECT pid FROM partitions WHERE users_kind = 'one' AND users_name = ?1)"
    " ORDER BY id"
)


def owned(db: sqlite3.Connection, user: str) -> tuple[tuple[str, int, str], ...]:
    """(id, version, scope) of each unit that goes with ``user``."""
    rows = db.execute(
        "SELECT id, version, users_kind, users_name, agents_kind, agents_name" + _OWNED, (user,)
    )
    return tuple(
        (id_, version, Partition(Axis(*axes[:2]), Axis(*axes[2:])).scope)
        for id_, version, *axes in rows
    )


def drops(db: sqlite3.Connection, user: str, receipt: str, now: int) -> list[Drop]:
    """The operations that remove these. No number was issued for them."""
    rows = db.execute(
        "SELECT id, users_kind, users_name, agents_kind, agents_name" + _OWNED, (user,)
    )
    return [
        Drop(
            partition=Partition(Axis(*axes[:2]), Axis(*axes[2:])),
            seq=0,
            id=id_,
            receipt=receipt,
            stored_at=now,
        )
        for id_, *axes in rows
    ]


def expired(db: sqlite3.Connection, now: int, limit: int) -> tuple[tuple[Lapsed, ...], int | None]:
    """See :meth:`isovist.storage.backend.Backend.expired`."""
    rows = db.execute(
        "SELECT expires_at, id, version, agent, kind, users_kind, users_name, agents_kind,"
        " agents_name FROM units INDEXED BY units_by_expiry JOIN partitions USING (pid)"
        " WHERE expires_at IS NOT NULL ORDER BY expires_at, uid LIMIT ?",
        (limit + 1,),
    ).fetchall()
    found = [row for row in rows[:limit] if row[0] <= now]
    lapsed = tuple(
        Lapsed(
            partition=Partition(Axis(*axes[:2]), Axis(*axes[2:])),
            id=id_,
            version=version,
            agent=agent,
            kind=kind,
        )
        for _, id_, version, agent, kind, *axes in found
    )
    return lapsed, rows[len(found)][0] if len(rows) > len(found) else None


# -- receipts


def ask(db: sqlite3.Connection, id_: str, now: int) -> None:
    """A receipt is asked for; once more, if it was issued before."""
    db.execute(
        "INSERT INTO receipts (id, asked_at) VALUES (?, ?)"
        " ON CONFLICT (id) DO UPDATE SET issued_at = 0",
        (id_, now),
    )


def add(db: sqlite3.Connection, id_: str, unit: str) -> None:
    db.execute("INSERT INTO forgotten (receipt, unit) VALUES (?, ?)", (id_, unit))


def receipt(db: sqlite3.Connection, id_: str) -> Receipt | None:
    found = db.execute("SELECT asked_at, issued_at FROM receipts WHERE id = ?", (id_,)).fetchone()
    if found is None:
        return None
    units = db.execute("SELECT unit FROM forgotten WHERE receipt = ? ORDER BY number", (id_,))
    return Receipt(
        id=id_, asked_at=found[0], issued_at=found[1], units=tuple(unit for (unit,) in units)
    )


def waiting(db: sqlite3.Connection) -> list[str]:
    """Receipts that were asked for and not issued."""
    return [id_ for (id_,) in db.execute("SELECT id FROM receipts WHERE issued_at = 0")]


def issue(db: sqlite3.Connection, ids: list[str], now: int) -> None:
    db.executemany("UPDATE receipts SET issued_at = ? WHERE id = ?", [(now, id_) for id_ in ids])


# -- the file


def drop_noted(db: sqlite3.Connection) -> None:
    """Something was dropped: until :func:`scrubbed`, a scrub has work to do."""
    db.execute(
        "INSERT INTO meta (name, value) VALUES ('dropped', 1)"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1"
    )


def dropped(db: sqlite3.Connection) -> int:
    """How often something was dropped since the last scrub, in this life or an earlier one."""
    found = db.execute("SELECT value FROM meta WHERE name = 'dropped'").fetchone()
    return int(found[0]) if found else 0


def scrubbed(db: sqlite3.Connection, count: int) -> None:
    """Nothing is left of what was dropped, unless more was than ``count`` tells."""
    db.execute("DELETE FROM meta WHERE name = 'dropped' AND value = ?", (count,))


def shed_noted(db: sqlite3.Connection) -> None:
    """Text went that no unit and no model's cache holds (a context's): a scrub has work to do."""
    db.execute(
        "INSERT INTO meta (name, value) VALUES ('shed', 1)"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1"
    )


def shed(db: sqlite3.Connection) -> int:
    """How often that was since the last scrub."""
    found = db.execute("SELECT value FROM meta WHERE name = 'shed'").fetchone()
    return int(found[0]) if found else 0


def shed_scrubbed(db: sqlite3.Connection, count: int) -> None:
    db.execute("DELETE FROM meta WHERE name = 'shed' AND value = ?", (count,))


def shrink(db: sqlite3.Connection) -> None:
    """Words that no chunk holds go, and freed pages leave the file. Outside a transaction."""
    db.execute("DELETE FROM terms WHERE tid NOT IN (SELECT tid FROM frequencies)")
    # One page a step: ``execute`` would take but the first, a script takes all.
    db.executescript("PRAGMA incremental_vacuum")


def check_free(db: sqlite3.Connection) -> None:
    """Raises :class:`WorldError` where the file still has free pages."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    if free:
        raise WorldError(f"the store still has {free} free pages", errno=Errno.EIO)


def differences(db: sqlite3.Connection) -> list[str]:
    """What the tables say of statistics, where a recount says otherwise; empty: all is well."""
    told: list[str] = []
    frequencies, sizes = recount(db)
    stored = {(tid, pid): n for tid, pid, n in db.execute("SELECT tid, pid, n FROM frequencies")}
    if stored != frequencies:
        off = {key for key in stored.keys() | frequencies.keys()
               if stored.get(key) != frequencies.get(key)}  # fmt: skip
        told.append(f"frequencies: {len(off)} of {len(stored)} differ, the first at {min(off)}")
    for pid, *size in db.execute("SELECT pid, chunks, total FROM partitions"):
        if tuple(size) != sizes.get(pid, (0, 0)):
            told.append(f"partition {pid}: size {tuple(size)}, not {sizes.get(pid, (0, 0))}")
    told += holdings.differences(db)
    for what, statement in _NONE.items():
        (count,) = db.execute(statement).fetchone()
        if count:
            told.append(f"{count} {what}")
    told += [f"integrity: {line}" for (line,) in db.execute("PRAGMA integrity_check")
             if line != "ok"]  # fmt: skip
    told += [f"foreign key: {row}" for row in db.execute("PRAGMA foreign_key_check")]
    return told


_NONE = {
    "units without a chunk": "SELECT count(*) FROM units WHERE uid NOT IN (SELECT uid FROM chunks)",
    "units with some vectors and not all": "SELECT count(*) FROM (SELECT uid FROM chunks LEFT JOIN"
    " vectors USING (row) GROUP BY uid HAVING count(vector) NOT IN (0, count(*)))",
    "terms in use that have no word": "SELECT count(DISTINCT tid) FROM frequencies WHERE tid NOT IN"
    " (SELECT tid FROM terms)",
    "chunks whose number is a gap": "SELECT count(*) FROM (SELECT uid FROM chunks GROUP BY uid"
    " HAVING max(number) <> count(*) - 1)",
    "units numbered above what their partition accepted": "SELECT count(*) FROM units JOIN"
    " partitions USING (pid) WHERE seq > accepted OR wrote > accepted",
}
