"""``audit replay``: hold records of calls against the store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from isovist.kernel.cli.common import Common, Problem
from isovist.kernel.cli.show import emit, moment, say, table
from isovist.storage import registers, schema
from isovist.storage.replay import Replayed, replay
from isovist.syscalls.messages import Record
from isovist.syscalls.names import check_time


def run(common: Common, call: str, *, since: str, query: str | None) -> int:
    """0 where nothing contradicts a record, else 1."""
    if query is not None and not call:
        raise Problem("--query goes with one call", "isovist audit replay CALL --query …", status=2)
    start = check_time(since or None, "since") or 0
    database = common.config.database
    if not database.is_file():
        raise Problem(f"{database}: there is no store", "--state names the folder", errno="ENOENT")
    try:
        with closing(schema.connect(database, read_only=True)) as db:
            (key,) = db.execute("SELECT value FROM meta WHERE name = 'key'").fetchone()
            replayed = [replay(db, record, key, query) for record in _records(db, call, start)]
    except sqlite3.Error as e:
        raise Problem(f"{database}: cannot be read: {e}", "isovist doctor checks it") from e
    if call and not replayed:
        raise Problem(f"no call {call!r} is on record", "the reply of a search or chat names its "
                      "call; its record is on disk within a second", errno="ENOENT")  # fmt: skip
    if common.json:
        emit(replayed)
    elif call:
        _show(replayed[0])
    else:
        _sum(replayed)
    return 0 if all(one.holds for one in replayed) else 1


def _records(db: sqlite3.Connection, call: str, since: int) -> Iterator[Record]:
    if call:
        found = registers.record(db, call)
        yield from [found] if found is not None else []
    else:
        yield from (record for record in registers.all_records(db) if record.at >= since)


def _show(one: Replayed) -> None:
    say(f"{one.syscall} of {one.agent} for {one.user or '(forgotten)'} at {moment(one.at)}")
    if one.question is not None:
        said = "that was the question" if one.question else "that was not the question"
        say(said)
    if one.units:
        table(
            ("UNIT", ">VERSION", "SCOPE", "", ""),
            ((u.unit or "-", u.version, u.scope, u.state, u.why) for u in one.units),
        )
    else:
        say("it was shown no unit")


def _sum(replayed: list[Replayed]) -> None:
    states = Counter(unit.state for one in replayed for unit in one.units)
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    say(f"{len(replayed)} calls, units shown: {told or 'none'}")
    for one in replayed:
        for unit in one.units:
            if unit.state == "wrong":
                say(f"{one.call}: unit {unit.unit}: {unit.why}")
