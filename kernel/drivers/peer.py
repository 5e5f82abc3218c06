"""The process side: a blocking peer of the kernel, and the frame around a process's work.

A process exits when its pipe closes, and the host kills it when the kernel dies
(``PR_SET_PDEATHSIG``), so that no driver outlives its kernel even while it computes.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from isovist.kernel.drivers.protocol import (
    Fatal,
    FromProcess,
    RequestFailed,
    ToProcess,
    decode_to_process,
    frame,
)
from isovist.kernel.linux import set_death_signal
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.framing import FrameError, Framer

READ_BYTES = 64 * 1024
INBOX = 256
"""Messages held while one is worked on. Above it the pipe is left unread, so that the kernel's
writes wait: the process never holds more than this, plus what one read brings."""


class Closed(Exception):
    """The kernel's end of the pipe is gone; the process has nothing left to do."""


class Unusable(Exception):
    """The process cannot work at all (no such model, a missing extra); the text says why."""


class Peer:
    """Messages from and to the kernel over a pipe pair.

    Single-threaded. A process that works looks at the pipe between its steps.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._framer = Framer()
        self._inbox: deque[ToProcess] = deque()
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)

    def fileno(self) -> int:
        """What is readable when something has come, for a process that waits for other things
        as well."""
        return self._read_fd

    def receive(self) -> ToProcess:
        """The next message, waiting for it. Raises :class:`Closed` when there will be none."""
        while not self._inbox:
            self._read()
        return self._inbox.popleft()

    def received(self) -> list[ToProcess]:
        """All that has come, without waiting; at most about :data:`INBOX` messages."""
        while len(self._inbox) < INBOX and self._poll.poll(0):
            self._read()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def wait(self, seconds: float) -> None:
        """Until something has come, or for so long."""
        if not self._inbox:
            self._poll.poll(max(0.0, seconds) * 1000)

    def send(self, message: FromProcess) -> None:
        """Write one message, waiting while the kernel is slow to read."""
        data = memoryview(frame(message))
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except BrokenPipeError:
            raise Closed from None

    def fail(self, key: int, error: IsovistError) -> None:
        """``retry_at`` of the error is taken from now: a process knows nothing of the calendar."""
        self.send(RequestFailed(key, int(error.errno), error.message, error.retry_at, error.field))

    def hang(self) -> None:
        """Answer nothing any more, until the kernel is gone: what a stuck model looks like."""
        self._poll.modify(self._read_fd, 0)  # reports the hang-up alone
        self._poll.poll()
        raise Closed

    def _read(self) -> None:
        data = os.read(self._read_fd, READ_BYTES)
        if not data:
            raise Closed
        for _, body in self._framer.feed(data):
            self._inbox.append(decode_to_process(body))


def serve(
    work: Callable[[Peer, argparse.Namespace], None],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
) -> int:
    """Run ``work`` between the descriptors that ``argv`` ends with; returns the exit status.

    0: the kernel closed the pipe. 1: the process could not work, and has said why in ``Fatal``.
    Any other exception is a bug and ends the process with its traceback on stderr.
    """
    parser.add_argument("read_fd", type=int)
    parser.add_argument("write_fd", type=int)
    arguments = parser.parse_args(argv)
    # The pipe closes as well when the kernel dies, but a process that computes reads no pipe.
    set_death_signal(signal.SIGKILL)
    peer = Peer(arguments.read_fd, arguments.write_fd)
    try:
        work(peer, arguments)
    except Closed:
        return 0
    except Unusable as e:
        peer.send(Fatal(str(e)))
        return 1
    except (FrameError, msgspec.DecodeError) as e:
        print(f"the kernel sent what is no message: {e}", file=sys.stderr)
        return 1
    return 0
