"""Channels: bytes from and to agents, within bounds whatever the other side does.

A channel costs the kernel at most one incomplete frame and one read of input, and ``OUT_LIMIT``
and one reply of output: a *full* channel is served no further until its peer reads. It ends,
with a reason, on an oversize frame, on a frame that stays incomplete, and where the peer never
reads its replies (findings 2.5).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from isovist.syscalls.codec import encode
from isovist.syscalls.errors import Errno, IsovistError, WorldError
from isovist.syscalls.framing import FrameError, Framer, pack
from isovist.syscalls.messages import AnyReply, Failed

READ = 64 * 1024
LITTLE = 4
"""Requests that a channel may have sent in one breath and be served at once all the same."""
TURN = 8
"""Requests that a channel which has sent more is served in its turn."""
OUT_LIMIT = 256 * 1024
"""Bytes of unread replies from which on nothing more is done for the peer."""
UNREAD_NS = 3_000_000_000
"""How long a peer may leave a full reply queue, or the last replies of all, untouched."""
HELLO_NS = 10_000_000_000
"""How long a socket's peer may take to say who it is."""
PARTIAL_NS = 30_000_000_000
"""How long a frame may stay incomplete."""


PEER_CLOSED, PROCESS_GONE = "closed by its peer", "its process ended"


class Ended(WorldError):
    """The channel can serve no longer; the message says why."""


class Transport(Protocol):
    """Non-blocking bytes. ``read`` gives ``b""`` at the end, ``None`` where there is nothing."""

    read_fd: int
    write_fd: int

    def read(self) -> bytes | None: ...
    def write(self, data: memoryview) -> int: ...
    def close(self) -> None: ...
    def take_descriptors(self) -> tuple[int, ...]: ...


class Pipes:
    """The pipe pair of an agent that the kernel spawned."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd

    def read(self) -> bytes | None:
        try:
            return os.read(self.read_fd, READ)
        except BlockingIOError:
            return None

    def write(self, data: memoryview) -> int:
        return os.write(self.write_fd, data)

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)

    def take_descriptors(self) -> tuple[int, ...]:
        return ()


class Socket:
    """A program that came through the socket door; it may hand over descriptors (for stdio)."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._descriptors: list[int] = []
        self.read_fd = sock.fileno()
        # A second number, so that reading and writing are watched apart from each other.
        self.write_fd = os.dup(self.read_fd)

    def read(self) -> bytes | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, READ, 3, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""
        if descriptors:
            self._drop()
            self._descriptors = descriptors
        return data

    def write(self, data: memoryview) -> int:
        return self._sock.send(data, socket.MSG_NOSIGNAL)

    def close(self) -> None:
        self._drop()
        os.close(self.write_fd)
        self._sock.close()

    def take_descriptors(self) -> tuple[int, ...]:
        taken, self._descriptors = tuple(self._descriptors), []
        return taken

    def _drop(self) -> None:
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []


class Channel:
    """One channel's buffers. ``ready`` holds requests read and not yet served."""

    def __init__(self, number: int, transport: Transport, now: int, pid: int = 0) -> None:
        self.number = number
        self.transport = transport
        self.pid = pid
        self.attached = False
        """True once the kernel knows who it is; a socket's peer must say hello first."""
        self.ready: deque[tuple[int, bytes]] = deque()
        self.closed = False
        self.last_word = ""
        """Why the channel is to close as soon as its last reply is written; empty: it stays."""
        self.held: list[Callable[[], object]] = []
        """What goes on when the channel is full no more, or has ended."""
        self.paused = False
        """True while the kernel itself keeps its process from reading and writing."""
        self._opened = now
        self._framer = Framer()
        self._out = bytearray()
        self._partial_since = 0
        self._unread_since = 0

    @property
    def backlog(self) -> int:
        """Bytes of replies that the peer has not read."""
        return len(self._out)

    @property
    def full(self) -> bool:
        """Its peer must read before anything more is done for it."""
        return len(self._out) >= OUT_LIMIT

    @property
    def wants_service(self) -> bool:
        return bool(self.ready) and not (self.closed or self.last_word or self.full)

    @property
    def wants_input(self) -> bool:
        return not (self.ready or self.closed or self.last_word or self.full)

    def receive(self, now: int) -> bool:
        """Read once and fill ``ready``; false where nothing was there.

        Raises :class:`Ended` at the end of the stream and on a frame that cannot be.
        """
        data = self.transport.read()
        if data is None:
            return False
        if not data:
            raise Ended(PEER_CLOSED, errno=Errno.EPIPE)
        try:
            self.ready.extend(self._framer.feed(data))
        except FrameError as e:
            raise Ended(e.message, errno=e.errno) from None
        if not len(self._framer):
            self._partial_since = 0
        elif not self._partial_since or self.ready:
            self._partial_since = now
        return True

    def reply(self, call: int, message: AnyReply) -> None:
        """Queue a reply. One that is too long becomes an error that says so."""
        try:
            frame = pack(call, encode(message))
        except IsovistError as e:
            frame = pack(call, encode(Failed(errno=int(e.errno), message=e.message)))
        self._out += frame

    def flush(self, now: int) -> bool:
        """Write what the peer takes; true iff nothing is left. Raises :class:`Ended`."""
        out = self._out
        if not out:
            return True
        try:
            with memoryview(out) as view:
                written = self.transport.write(view)
        except BlockingIOError:
            written = 0
        except OSError as e:
            raise Ended(PEER_CLOSED, errno=Errno.EPIPE) from e
        if written:
            del out[:written]
            self._unread_since = 0
        if out and not self._unread_since:
            self._unread_since = now
        return not out

    def pause(self, on: bool, now: int) -> None:
        self.paused = on
        # Once it goes on, it has as long as anybody else.
        self._partial_since = self._partial_since and now
        self._unread_since = self._unread_since and now

    def patience(self) -> int | None:
        """When this channel's patience ends, if something is overdue (virtual ns)."""
        if self.paused:
            return None
        ends = [] if self.attached else [self._opened + HELLO_NS]
        # Whom the kernel itself does not read cannot be blamed for an incomplete frame.
        if self._partial_since and self.wants_input:
            ends.append(self._partial_since + PARTIAL_NS)
        if self._unread_since and (self.full or self.last_word):
            ends.append(self._unread_since + UNREAD_NS)
        return min(ends, default=None)

    def check(self, now: int) -> None:
        """Raise :class:`Ended` where patience is at its end."""
        if (end := self.patience()) is None or now < end:
            return
        if not self.attached:
            raise Ended("did not say hello", errno=Errno.EPROTO)
        if self.last_word:
            raise Ended(self.last_word, errno=Errno.EPIPE)
        if self.full:
            raise Ended("never reads its replies", errno=Errno.ENOBUFS)
        raise Ended("a frame stayed incomplete for 30 s", errno=Errno.EPROTO)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.ready.clear()
            self._out.clear()
            with contextlib.suppress(OSError):
                self.transport.close()
