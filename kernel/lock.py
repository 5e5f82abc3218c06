"""One kernel a store: an exclusive lock on a file that also names its holder."""

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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

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
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
                return self
        os.close(self._fd)
        raise WorldError(
            f"the store {folder} belongs to a running kernel"
            + (f" (process {who})" if who else ""),
            errno=Errno.EEXIST,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
