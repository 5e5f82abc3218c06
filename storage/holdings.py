"""What each pair of agent and user has stored, kept with every commit; and limits set by hand.

The figures change in the transaction of the units that they count, so a start reads them instead
of counting, and they are exact after any crash.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

import msgspec

from isovist.storage.texts import SIZE
from isovist.syscalls.operations import Held

SetLimits = dict[tuple[str, str], dict[str, int]]
"""By axis (``agent`` or ``user``) and name: figures that the operator has set."""

_pack = msgspec.msgpack.Encoder().encode
_figures = msgspec.msgpack.Decoder(dict[str, int]).decode
_COUNTED = f"SELECT user, agent, count(*), sum({SIZE}) FROM units GROUP BY user, agent"


def summed(changes: Iterable[Held]) -> list[Held]:
    """One for each pair, without those that come to nothing."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for change in changes:
        key = change.agent, change.user
        units, size = sums.get(key, (0, 0))
        sums[key] = units + change.units, size + change.bytes
    return [Held(*key, *both) for key, both in sums.items() if any(both)]


def add(db: sqlite3.Connection, changes: Iterable[Held]) -> None:
    """Of a pair that has nothing any more nothing is kept."""
    for change in summed(changes):
        db.execute(
            "INSERT INTO holdings (user, agent, units, bytes) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (user, agent) DO UPDATE SET units = units + excluded.units,"
            " bytes = bytes + excluded.bytes",
            (change.user, change.agent, change.units, change.bytes),
        )
        if change.units < 0:
            db.execute(
                "DELETE FROM holdings WHERE user = ? AND agent = ? AND units = 0",
                (change.user, change.agent),
            )


def held(db: sqlite3.Connection) -> tuple[Held, ...]:
    rows = db.execute("SELECT agent, user, units, bytes FROM holdings ORDER BY user, agent")
    return tuple(Held(*row) for row in rows)


def count(db: sqlite3.Connection) -> None:
    """Fill the table of a file that had none."""
    db.execute("INSERT INTO holdings (user, agent, units, bytes) " + _COUNTED)


def differences(db: sqlite3.Connection) -> list[str]:
    """Where the table says otherwise than a recount; empty: nowhere."""
    told = {(user, agent): (units, size) for agent, user, units, size in
            ((h.agent, h.user, h.units, h.bytes) for h in held(db))}  # fmt: skip
    found = {(user, agent): (units, size) for user, agent, units, size in db.execute(_COUNTED)}
    off = sorted(key for key in told.keys() | found.keys() if told.get(key) != found.get(key))
    return [f"holdings of {len(off)} pairs differ, the first of {off[0]}"] if off else []


# -- limits set by hand


def save_limits(db: sqlite3.Connection, axis: str, name: str, figures: Mapping[str, int]) -> None:
    """What is set for a name from now on; nothing removes it."""
    db.execute("DELETE FROM quotas WHERE axis = ? AND name = ?", (axis, name))
    if figures:
        db.execute(
            "INSERT INTO quotas (axis, name, figures) VALUES (?, ?, ?)",
            (axis, name, _pack(dict(figures))),
        )


def limits(db: sqlite3.Connection) -> SetLimits:
    rows = db.execute("SELECT axis, name, figures FROM quotas ORDER BY axis, name")
    return {(axis, name): _figures(figures) for axis, name, figures in rows}


def forget_user(db: sqlite3.Connection, user: str) -> None:
    """Its holdings go with its units; what was set for it goes here."""
    db.execute("DELETE FROM quotas WHERE axis = 'user' AND name = ?", (user,))
