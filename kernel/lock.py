"""One kernel a store: an exclusive lock on a file that also names its holder, and one on the
database itself, which may be reached by another path."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from isovist.syscalls.errors import Errno, WorldError

LOOKERS = 100
"""Times in a row that somebody may be looking (:func:`holder`) just when the lock is asked for."""


class Lock:
    """Held from ``__enter__`` to ``__exit__``, or to the end of the process, however it ends: the
    system lets go of a dead holder's lock, so there is no stale one to break."""

    def __init__(self, path: Path, database: Path | None = None) -> None:
        """``database``: the file that is locked too, where it is there."""
        self._path, self._database = path, database
        self._fd = self._data = -1

    def __enter__(self) -> Lock:
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise WorldError(f"the state folder {folder} cannot be used: {e.strerror}") from e
        who = 0
        for _ in range(LOOKERS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Whoever only looks holds it for a moment too, and is no kernel.
                if who := holder(self._path):
                    break
            else:
                try:
                    self.hold_database()
                except BaseException:
                    os.close(self._fd)
                    raise
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
                return self
        os.close(self._fd)
        raise WorldError(
            f"the store {folder} belongs to a running kernel"
            + (f" (process {who})" if who else ""),
            errno=Errno.EEXIST,
        )

    def hold_database(self) -> None:
        """Lock the database's file, whatever the path to it; once it has been made, if it was not
        there before. ``flock`` and the byte ranges that
        SQLite locks know nothing of each other. The descriptor is closed last of all: to close any
        of a file's would let go of the ranges."""
        if self._data >= 0 or self._database is None or not self._database.exists():
            return
        fd = os.open(self._database, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink > 1:
                # By its other name SQLite would not find the log that belongs to it.
                raise WorldError(
                    f"{self._database}: the file has a second name (a hard link), under which its "
                    "log would be lost; remove that one, or copy the file"
                )
        except BlockingIOError:
            os.close(fd)
            raise WorldError(
                f"the store {self._database} belongs to a running kernel, by another path",
                errno=Errno.EEXIST,
            ) from None
        except BaseException:
            os.close(fd)
            raise
        self._data = fd

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._data >= 0:
            os.close(self._data)
            self._data = -1
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(path: Path) -> int:
    """The host's process number of the kernel that holds the lock now; 0 where none does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)
    return 0
