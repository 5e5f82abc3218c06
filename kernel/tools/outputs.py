"""Answers of tools that are too long for a reply: a file each, for as long as the kernel runs.

A file has four bytes a character, so that any part of it can be read at once. Its name tells
nothing, and who may read it is known here alone.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from weakref import WeakSet

import structlog

from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.tools import RESULT

log = structlog.get_logger()

ROOM = 256 << 20
"""Bytes of all files: the oldest go first."""
CHARACTER = "utf-32-le"
WIDTH = 4


@dataclass(slots=True)
class Kept:
    owner: str
    bytes: int


class Outputs:
    """Invariant: ``_kept`` names the finished files of the folder, oldest first."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self._folder, self._room = folder, room
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._begun: WeakSet[Output] = WeakSet()

    def clean(self) -> None:
        """Make the folder, without what an earlier life has left. Raises :class:`WorldError`."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.iterdir():
                path.unlink()
        except OSError as e:
            raise WorldError(f"{e.filename or self._folder}: {e.strerror}") from None

    def begin(self, owner: str) -> Output:
        """A new answer for ``owner`` (``AGENT/USER``)."""
        output = Output(self._folder / f"o{os.urandom(10).hex()}", owner)
        self._begun.add(output)
        return output

    def keep(self, output: Output) -> str:
        """The name under which the whole of a finished answer can be read; empty where all of it
        is in its ``text``, or the disk would not have it."""
        path = output.close()
        if path is None:
            return ""
        self._kept[path.name] = Kept(output.owner, output.characters * WIDTH)
        while sum(kept.bytes for kept in self._kept.values()) > self._room:
            self._remove(next(iter(self._kept)))
        return path.name if path.name in self._kept else ""

    def read(self, name: str, owner: str, offset: int) -> tuple[str, int]:
        """At most ``RESULT`` characters from ``offset`` on, and how many there are in all. Raises
        ``ENOENT`` for what is not there or is another's."""
        kept = self._kept.get(name)
        if kept is None or kept.owner != owner:
            raise CallerError("no such output of yours", errno=Errno.ENOENT, field="id")
        try:
            with open(self._folder / name, "rb") as file:
                file.seek(offset * WIDTH)
                text = file.read(RESULT * WIDTH).decode(CHARACTER)
        except OSError as e:
            raise WorldError(f"the output cannot be read: {e.strerror}") from None
        return text, kept.bytes // WIDTH

    def forget(self, user: str) -> None:
        """Remove what was answered to calls for ``user``."""
        for name, kept in list(self._kept.items()):
            if kept.owner.partition("/")[2] == user:
                self._remove(name)
        for output in list(self._begun):
            if output.owner.partition("/")[2] == user:
                output.drop()

    def _remove(self, name: str) -> None:
        del self._kept[name]
        (self._folder / name).unlink(missing_ok=True)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Output:
    """An answer on its way: ``text`` is its first ``RESULT`` characters; a longer one goes to a
    file, whole."""

    path: Path
    owner: str
    text: str = ""
    characters: int = 0
    file: BinaryIO | None = None
    full: bool = field(default=False)

    def add(self, piece: str) -> None:
        before = self.text
        self.characters += len(piece)
        self.text = (before + piece)[:RESULT] if len(before) < RESULT else before
        if self.characters <= RESULT or self.full:
            return
        try:
            if self.file is None:
                self.file = open(self.path, "xb", opener=_private)  # noqa: SIM115 # closed by close()
                piece = before + piece
            self.file.write(piece.encode(CHARACTER))
        except OSError as e:
            log.warning("an output is not kept", why=e.strerror)
            self.full = True

    def close(self) -> Path | None:
        """The path of the whole; ``None``: there is none."""
        if self.file is None:
            return None
        try:
            self.file.close()
        except OSError:
            self.full = True
        self.file = None
        if self.full:
            self.path.unlink(missing_ok=True)
            return None
        return self.path

    def drop(self) -> None:
        """Nobody wants it: nothing is left of it."""
        self.full = True
        self.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
