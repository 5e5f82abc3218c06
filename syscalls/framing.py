"""Frames on a byte stream: ``u32 length | u32 id | body``, little endian.

``length`` counts the body. The id stands outside the body, so that a body which cannot be
decoded can still be answered, and replies may come out of order. Sans-I/O: bytes in, frames out.
"""

from __future__ import annotations

import struct

from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.names import MAX_FRAME

HEADER = struct.Struct("<II")
MAX_ID = 0xFFFFFFFF


class FrameError(WorldError):
    """The stream can no longer be framed; the channel must end."""

    errno = Errno.EPROTO


def pack(call: int, body: bytes) -> bytes:
    """One frame. Raises ``EMSGSIZE``, at its caller's fault, where ``body`` is over the limit; the
    stream stays sound."""
    if len(body) > MAX_FRAME:
        raise CallerError(
            f"a message of {len(body)} bytes, the limit of a frame is {MAX_FRAME}",
            errno=Errno.EMSGSIZE,
        )
    return HEADER.pack(len(body), call) + body


class Framer:
    """Splits a stream into frames.

    Invariant: holds at most one incomplete frame, so at most ``limit`` + 8 bytes after
    :meth:`frames` has been drained, whatever the peer sends.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Bytes received and not yet given out."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """All frames completed by ``data``, in order. Raises :class:`FrameError` on an oversize
        frame as soon as its header is read, before any of its body is kept."""
        buffer = self._buffer
        if not buffer and len(data) >= 8:
            # The common case: whole frames in one read, no copy through the buffer.
            source: bytes | bytearray = data
        else:
            buffer += data
            source = buffer
        frames: list[tuple[int, bytes]] = []
        at, end = 0, len(source)
        while end - at >= 8:
            size, call = HEADER.unpack_from(source, at)
            if size > self.limit:
                raise FrameError(
                    f"frame of {size} bytes, the limit is {self.limit}", errno=Errno.EMSGSIZE
                )
            if end - at - 8 < size:
                break
            frames.append((call, bytes(source[at + 8 : at + 8 + size])))
            at += 8 + size
        if source is buffer:
            del buffer[:at]
        else:
            buffer += data[at:]
        return frames
