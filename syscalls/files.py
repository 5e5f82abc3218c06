"""A view as read-only files, for programs that read files [M 3.4]."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.records import MemoryFile

LONGEST = 200
"""Bytes of a file's name; file systems take 255."""


def file_name(name: str) -> str:
    """``name`` as the name of a file: no two names share one, and none leads out of its folder."""
    safe = quote(name, safe="@ ")
    if len(safe) > LONGEST:
        safe = safe[: LONGEST - 17] + "~" + blake2b(name.encode(), digest_size=8).hexdigest()
    return "%2E" + safe[1:] if safe.startswith(".") else safe


def write_files(files: Iterable[MemoryFile], folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``files`` into ``folder`` (made where it is missing), readable by their owner alone
    and writable by nobody; returns their paths.

    Each appears whole or not at all, in place of an older one. A file that this view does not
    have any more is left as it is. Raises ``ENOSPC`` or ``EIO``.
    """
    written: list[Path] = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            path = Path(folder) / file_name(file.name)
            handle, part = tempfile.mkstemp(prefix=".part-", dir=folder)
            try:
                with open(handle, "w", encoding="utf-8", newline="") as out:
                    out.write(file.text)
                os.chmod(part, 0o400)
                os.replace(part, path)
            except BaseException:
                os.unlink(part)
                raise
            written.append(path)
    except OSError as e:
        errno = Errno.ENOSPC if e.errno == Errno.ENOSPC else Errno.EIO
        raise WorldError(f"{e.filename or folder}: {e.strerror}", errno=errno) from e
    return written
