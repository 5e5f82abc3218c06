"""The content store: the bytes of versions, and what of them is read as text.

A short version stands in its row of the store, a longer one in a file of its own in a folder of the
kernel's, under a random name. Equal bytes of two versions are two files: if they shared one, who
writes could tell by time or room that somebody else has the same. Only a rollback shares, within
one file. A file here means nothing unless a row names it: it is flushed before its row is written,
and removed after its row has gone.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from isovist.kernel.beneath import put, sync, too_long
from isovist.syscalls.abi.files import MAX_FILE
from isovist.syscalls.errors import WorldError
from isovist.syscalls.file_operations import Content
from isovist.syscalls.names import MAX_TEXT

INLINE = 64 * 1024
"""Bytes of a version that stands in its row."""
INDEXED = 256 * 1024
"""Bytes of text by which a file is found; what comes after is not searched."""
PIECE = MAX_TEXT - 2048
"""Bytes of text in one unit, beside the file's path."""
STEP = 1 << 20


class Reading:
    """Takes bytes in once, piece by piece: counts and hashes them, and reads them as text as long
    as they are UTF-8 without NUL."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = sha256()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._head: list[str] = []
        self._room = INDEXED
        self.text = True

    def feed(self, piece: bytes, *, last: bool = False) -> None:
        self.size += len(piece)
        self._hash.update(piece)
        if not self.text:
            return
        try:
            text = self._decoder.decode(piece, last)
        except UnicodeDecodeError:
            self.text = False
            return
        self.text = "\0" not in text
        if self._room > 0:
            self._head.append(text[: self._room])
            self._room -= len(text.encode())

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()

    def texts(self, path: str) -> tuple[tuple[str, ...], int]:
        """The texts of the units by which the file is found, each after its path, and how many
        bytes of its own text are in them."""
        pieces = list(_cut("".join(self._head))) if self.text else []
        indexed = sum(len(piece.encode()) for piece in pieces)
        return tuple(f"{path}\n\n{piece}" for piece in pieces) or (path,), indexed


def _cut(text: str) -> Iterator[str]:
    """``text`` up to ``INDEXED`` bytes, in pieces of up to ``PIECE`` bytes that end with a line or
    a word where they can."""
    rest = text.encode()[:INDEXED]
    while rest.strip():
        piece = rest[:PIECE]
        if len(rest) > PIECE:
            end = max(piece.rfind(b"\n"), piece.rfind(b" ")) + 1
            piece = piece[: end if end > PIECE // 2 else PIECE]
        shown = piece.decode(errors="ignore")  # a character that was cut goes to the next piece
        whole = len(shown.encode())
        if not whole:
            return
        if shown.strip():
            yield shown
        rest = rest[whole:]


def take_in(
    folder: Path, name: str, pieces: Iterable[bytes], path: str, field: str
) -> tuple[Content, tuple[str, ...], int]:
    """A version of all these bytes, however many come: what is hashed is what is stored. The file
    ``name`` in ``folder`` is durable where the version needs one. Raises ``EMSGSIZE`` above
    ``MAX_FILE`` bytes; then, as with any error, no file is left."""
    read, kept, out = Reading(), bytearray(), -1
    try:
        for piece in pieces:
            read.feed(piece)
            if read.size > MAX_FILE:
                raise too_long(field, path, read.size, MAX_FILE)
            if out < 0 and read.size <= INLINE:
                kept += piece
                continue
            if out < 0:
                out = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                put(out, bytes(kept))
            put(out, piece)
        read.feed(b"", last=True)
        content = Content(hash=read.hash, size=read.size, text=read.text, body=bytes(kept))
        if out >= 0:
            os.fsync(out)
            _flush(folder)
            content = Content(hash=read.hash, size=read.size, text=read.text, blob=name)
    except BaseException:
        if out >= 0:
            (folder / name).unlink(missing_ok=True)
        raise
    finally:
        if out >= 0:
            os.close(out)
    return content, *read.texts(path)


def reread(folder: Path, content: Content, path: str) -> tuple[tuple[str, ...], int]:
    """The texts of a version that is stored, as those of the file ``path``."""
    read = Reading()
    if content.text:
        room = INDEXED
        for piece in pieces_of(folder, content):
            read.feed(piece[:room])
            room -= len(piece)
            if room <= 0:
                break
    read.text = content.text
    return read.texts(path)


def pieces_of(folder: Path, content: Content) -> Iterator[bytes]:
    """All bytes of a version. Raises ``EIO`` where they are not what was stored."""
    if not content.blob:
        yield content.body
        return
    seen = sha256()
    with opened(folder, content) as fd:
        for piece in pieces(fd):
            seen.update(piece)
            yield piece
    if seen.hexdigest() != content.hash:
        raise WorldError("the bytes of this version are damaged on disk")


def pieces(fd: int) -> Iterator[bytes]:
    """All bytes behind a descriptor, from the beginning."""
    offset = 0
    while piece := os.pread(fd, STEP, offset):
        offset += len(piece)
        yield piece


def part_of(folder: Path, content: Content, offset: int, limit: int) -> bytes:
    """At most ``limit`` bytes of a version from ``offset`` on."""
    if not content.blob:
        return content.body[offset : offset + limit]
    with opened(folder, content) as fd:
        return os.pread(fd, limit, offset) if offset < content.size else b""


@contextmanager
def opened(folder: Path, content: Content) -> Iterator[int]:
    fd = os.open(folder / content.blob, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def prepare(folder: Path, known: Collection[str]) -> None:
    """Make the folder, and remove what an earlier life left there that no row names. Raises
    :class:`WorldError`."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        raise WorldError(f"{folder}: {e.strerror}") from None
    remove(folder, [name for name in names(folder) if name not in known])


def names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as e:
        raise WorldError(f"{folder}: {e.strerror}") from None


def remove(folder: Path, blobs: Collection[str]) -> None:
    """Remove files of the content store, durably. Raises :class:`WorldError`."""
    try:
        for name in blobs:
            with suppress(FileNotFoundError):
                (folder / name).unlink()
        if blobs:
            _flush(folder)
    except OSError as e:
        raise WorldError(f"{folder}: {e.strerror}") from None


def _flush(folder: Path) -> None:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
