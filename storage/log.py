"""The write-ahead log, kept short although some snapshot is always open.

SQLite begins its log anew only when no reader needs it. A reader that begins where all of the log
is in the file already reads the file alone. So: copy the log into the file (a checkpoint), let the
engine's snapshot begin again, cut the log. The caller sees to the order.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from isovist.syscalls.errors import Errno, WorldError

LIMIT = 32 << 20
"""Bytes of the log at which it is copied and cut."""
_PATIENCE = 1.0
_DEADLINE = 30.0
"""Seconds that a scrub waits for snapshots of others to end."""


class Log:
    """The log of the store at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path}-wal")
        self.limit = LIMIT
        self._next = 0

    def size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def due(self) -> bool:
        """Whether it is long enough to be copied (again: the last time a reader was in the way)."""
        return self.size() > max(self._next, self.limit)

    def patience(self) -> float:
        """Seconds that a writer may wait for its earlier commits to be applied: none while the
        log is not long beyond measure."""
        return _PATIENCE if self.size() > 2 * self.limit else 0.0

    def check(self, db: sqlite3.Connection) -> None:
        """Copy into the file what no open snapshot forbids."""
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._next = self.size() + self.limit // 4

    def cut(self, db: sqlite3.Connection) -> bool:
        """Copy the rest and make the log empty; false where a snapshot still needs it."""
        db.execute("PRAGMA busy_timeout = 0")
        try:
            (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            db.execute("PRAGMA busy_timeout = 5000")
        if not busy:
            self._next = 0
        return not busy and self.size() == 0

    def empty(
        self,
        db: sqlite3.Connection,
        settled: Callable[[float], bool],
        renew: Callable[[], None],
    ) -> None:
        """Wait until it can be cut. ``settled``: all is applied, after waiting so long at most;
        ``renew``: move the engine's snapshot on. Raises :class:`WorldError` (``EAGAIN``)."""
        end = time.monotonic() + _DEADLINE
        while True:
            if settled(max(0.0, end - time.monotonic())):
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                renew()
                if self.cut(db):
                    return
            if time.monotonic() >= end:
                raise WorldError(
                    "the store's log is in use and cannot be emptied", errno=Errno.EAGAIN
                )
            time.sleep(0.02)
