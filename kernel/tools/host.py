"""``python -m isovist.kernel.tools.host R W``: the process between the kernel and one tool server.

It alone reads what the server says, so nothing that a server does (a flood, nonsense, silence) can
reach the kernel but as messages of :mod:`isovist.kernel.tools.protocol`. When it cannot go on it
ends, and the kernel starts another.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import msgspec

from isovist.kernel.drivers.protocol import Fatal
from isovist.kernel.linux import set_death_signal
from isovist.kernel.tools.protocol import FromHost, Mount, ToHost, decode_to_host, frame
from isovist.syscalls.framing import FrameError, Framer

READ_BYTES = 64 * 1024


class Closed(Exception):
    """The kernel's end of the pipe is gone."""


class Unusable(Exception):
    """This server can never run as it is configured; the text says why."""


class Line:
    """Messages from and to the kernel; blocking."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._framer = Framer()

    def read(self) -> list[ToHost]:
        """Read once, and give the messages that are whole. Raises :class:`Closed`."""
        data = os.read(self.read_fd, READ_BYTES)
        if not data:
            raise Closed
        return [decode_to_host(body) for _, body in self._framer.feed(data)]

    def close(self) -> None:
        """Of a fork: what a tool does must not speak to the kernel in its host's name."""
        for fd in (self.read_fd, self._write_fd):
            os.close(fd)

    def send(self, message: FromHost | Fatal) -> None:
        """Write one message; waits while the kernel is slow to read."""
        data = memoryview(frame(message))
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except BrokenPipeError:
            raise Closed from None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("read_fd", type=int)
    parser.add_argument("write_fd", type=int)
    arguments = parser.parse_args()
    set_death_signal(signal.SIGKILL)
    for fd in (arguments.read_fd, arguments.write_fd):
        os.set_inheritable(fd, False)
    line = Line(arguments.read_fd, arguments.write_fd)
    try:
        first: list[ToHost] = []
        while not first:
            first = line.read()
        mount, *_ = first
        if not isinstance(mount, Mount):
            print("the kernel did not begin with a server to mount", file=sys.stderr)
            return 1
        if mount.python:
            from isovist.kernel.tools import native

            native.serve(line, mount)
        else:
            try:
                from isovist.kernel.tools import mcp
            except ImportError as e:
                raise Unusable(
                    f"MCP servers need the extra: pip install 'isovist[mcp]' ({e})"
                ) from None
            mcp.serve(line, mount)
    except Closed:
        return 0
    except Unusable as e:
        line.send(Fatal(str(e)))
        return 1
    except (FrameError, msgspec.DecodeError) as e:
        print(f"the kernel sent what is no message: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
