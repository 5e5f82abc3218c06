"""Reading the chronicle: its file and the store's tables, so that no kernel's word is taken."""

from __future__ import annotations

import sqlite3
import sys
from collections import deque
from contextlib import closing
from pathlib import Path

from isovist.kernel.cli.common import Common, Problem
from isovist.kernel.cli.show import emit, moment, note, say, table
from isovist.storage import schema
from isovist.storage.chronicle import Line, heads, names, read
from isovist.storage.chronicle import verify as check
from isovist.syscalls.names import check_time

SHOWN = 20
"""Faults that are shown to people one by one."""


def ls(common: Common, *, kinds: tuple[str, ...], since: str, limit: int) -> int:
    users = _tables(common)[1]
    start = check_time(since or None, "since") or 0
    wanted: deque[tuple[int, Line]] = deque(maxlen=limit or None)
    changed = []
    for place, _, line in read(common.config.chronicle):
        if line is None:
            changed.append(place)
        elif line.at >= start and (not kinds or line.kind in kinds):
            wanted.append((place, line))
    if common.json:
        emit([line for _, line in wanted])
    elif wanted:
        table(
            (">NUMBER", "TIME", "KIND", "ACTOR", "SUBJECT", "USERS", "DETAIL"),
            (
                (
                    line.number,
                    moment(line.at),
                    line.kind,
                    line.actor,
                    line.subject,
                    " ".join(users.get(user, user) for user in line.users),
                    " ".join(f"{name}={value}" for name, value in line.detail.items()),
                )
                for _, line in wanted
            ),
        )
    else:
        say("no such line")
    if changed:
        note(f"not shown: {len(changed)} lines that were changed; isovist audit verify names them")
    return 0


def verify(common: Common, *, file: Path | None, head: str) -> int:
    """0 where all is as it was written, else 1."""
    if file is not None and not file.is_file():
        raise Problem(f"{file}: there is no such file", "isovist audit export writes one")
    # The store's heads first: the log may grow meanwhile, they must not be ahead of it.
    known = {} if file else _tables(common)[0]
    verdict = check(read(file or common.config.chronicle), known, head, part=bool(file))
    if common.json:
        emit(verdict)
        return 1 if verdict.faults else 0
    for fault in verdict.faults[:SHOWN]:
        say(fault)
    if len(verdict.faults) > SHOWN:
        say(f"and {len(verdict.faults) - SHOWN} more")
    if verdict.torn:
        say(f"the last line is torn after {verdict.torn} bytes: a crash, and nobody was told of it")
    if verdict.faults:
        say(f"{verdict.lines} lines, faults: {len(verdict.faults)}")
        return 1
    if verdict.ahead and file is None:
        say(f"the store does not know the last {verdict.ahead} lines: a crash, or an older store")
    say(f"{verdict.lines} lines, none was changed; the last one is {verdict.head}")
    return 0


def export(common: Common, *, since: str) -> int:
    start = check_time(since or None, "since") or 0
    for _, raw, line in read(common.config.chronicle):
        # What was changed is not left out: whoever verifies the export is to see it.
        if line is None or line.at >= start:
            sys.stdout.write(raw.decode(errors="replace"))
    return 0


def _tables(common: Common) -> tuple[dict[int, str], dict[str, str]]:
    """The heads that the store keeps, and who stands in the chronicle under which name."""
    database = common.config.database
    if not database.is_file():
        return {}, {}
    try:
        with closing(schema.connect(database, read_only=True)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            return (heads(db), names(db)) if version >= 6 else ({}, {})
    except sqlite3.Error as e:
        raise Problem(f"{database}: cannot be read: {e}", "isovist doctor checks it") from e
