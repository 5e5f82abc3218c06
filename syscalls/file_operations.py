"""What the kernel asks of a store about files. Plain values, as :mod:`.operations` has them.

A change of a file is one ``FileChange``: the store carries out all of it, rows of versions and the
units by which the file is found, in one transaction, or nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.files import Action, FileInfo, FileVersion
from isovist.syscalls.operations import Outcome, Put
from isovist.syscalls.records import Partition, Unit


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a version: in ``body``, or in the file ``blob`` of the content store (empty:
    none). ``hash`` is their SHA-256 in hex; ``text``: they are UTF-8 without NUL."""

    hash: str
    size: int
    text: bool
    body: bytes = b""
    blob: str = ""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept: versions of a file; bytes of all versions of a space, and of the files of
    an owner; files of a space."""

    versions: int = 64
    space: int = 4 << 30
    owner: int = 1 << 30
    files: int = 10_000


USUAL = Bounds()


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change, by (``user``, ``agent``), of the file ``path`` in ``space``.

    ``seq`` is its number there: under it the units of the version before leave. ``parts`` are the
    units of what is current afterwards, in order, each with a number of its own; the store enters
    in them whose they are and of which version. ``refused`` says by stream why the author may not
    let the file stand where it comes to stand (a stream that is not in it may).

    ``seen`` is the file (id, version) that ``content`` was read from, where it was read from one:
    the same must be there still. ``key``: see ``file.write``.
    """

    what: Literal["write", "move", "delete"]
    space: Partition
    seq: int
    path: str
    user: str
    agent: str
    at: int
    bounds: Bounds = USUAL
    action: Action = "write"
    expect: int | None = None
    seen: tuple[str, int] | None = None
    refused: dict[str, str] = {}
    id: str = ""
    content: Content | None = None
    parts: tuple[Put, ...] = ()
    stream: str = "protected"
    writable: bool | None = None
    reason: str = ""
    key: str = ""
    source: int = 0
    to: Partition | None = None
    to_path: str = ""
    receipt: str = ""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a ``FileChange``: durable. ``outcomes`` are those of the units that left and
    came, to be applied; ``blobs`` are files of the content store that nothing refers to any more.
    """

    outcomes: tuple[Outcome, ...] = ()
    blobs: tuple[str, ...] = ()
    id: str = ""
    version: int = 0
    size: int = 0
    hash: str = ""
    versions: int = 0
    dropped: int = 0
    repeated: bool = False


class HeldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was found, with its bytes, and the file that it is of."""

    id: str
    info: FileInfo
    version: FileVersion
    content: Content


def file_of(unit: Unit | Put) -> str:
    """The id of the file that a unit belongs to; empty: to none."""
    return unit.meta.get("file", "") if unit.kind == "file" else ""
