"""The host of Python functions. Each call is a fork of this process, which has them imported.

So a call starts in some milliseconds, a function that hangs, crashes or eats its memory harms no
other call, and to cancel one is to kill its process, with all that it has started. What a function
leaves in its module is gone with its process.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from isovist.kernel.linux import set_death_signal
from isovist.kernel.tools.host import Line, Unusable
from isovist.kernel.tools.protocol import (
    LONGEST,
    PIECE,
    Ended,
    Mount,
    Mounted,
    Piece,
    Stop,
    ToHost,
    Use,
)
from isovist.kernel.tools.schema import Function, functions
from isovist.syscalls.errors import Errno

ANSWERED, RAISED = b"a", b"r"
"""The first byte of what a call writes: its function returned a text, or raised an error."""


@dataclass(slots=True)
class Child:
    """The process of a call. ``pidfd`` tells of its end; what it has written by then is all that
    counts, whoever else still holds its ``pipe``."""

    run: int
    pid: int
    pidfd: int
    pipe: int
    said: bytearray = field(default_factory=bytearray)
    stopped: bool = False


def serve(line: Line, mount: Mount) -> None:
    """Serve until the kernel closes the pipe. Raises :class:`Unusable` where there are no such
    functions, :class:`~isovist.kernel.tools.host.Closed` at the end."""
    sys.path.insert(0, mount.place.folder)
    try:
        found = functions(mount.python)
    except Exception as e:
        why = f"{mount.python}: {type(e).__name__}: {e}"
        raise Unusable(why) from e
    if not found:
        raise Unusable(f"{mount.python} has no function that could be a tool")
    line.send(Mounted(tuple(function.tool for function in found.values())))
    Native(line, found).run()


class Native:
    def __init__(self, line: Line, found: dict[str, Function]) -> None:
        self._line, self._functions = line, found
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(line.read_fd, selectors.EVENT_READ)

    def run(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                child: Child | None = key.data
                if child is None:
                    for message in self._line.read():
                        self._take(message)
                elif self._children.get(child.run) is not child:
                    pass  # it has ended in this very round
                elif key.fd == child.pidfd:
                    self._end(child)
                elif not self._hear(child):
                    self._selector.unregister(child.pipe)

    def _take(self, message: ToHost) -> None:
        match message:
            case Use():
                self._begin(message)
            case Stop() if message.run in self._children:
                self._kill(self._children[message.run])
            case _:
                pass

    def _begin(self, use: Use) -> None:
        function = self._functions.get(use.tool)
        if function is None:
            said = f"there is no function {use.tool!r}"
            self._line.send(Ended(use.run, errno=int(Errno.ENOENT), message=said))
            return
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            self._line.close()
            _work(function, use.arguments, writer, parent)
        os.close(writer)
        child = self._children[use.run] = Child(use.run, pid, os.pidfd_open(pid), reader)
        self._selector.register(child.pipe, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    @staticmethod
    def _kill(child: Child) -> None:
        child.stopped = True
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)

    def _hear(self, child: Child) -> bool:
        """Take in what a call has written so far; false where nothing more is there."""
        try:
            data = os.read(child.pipe, PIECE)
        except BlockingIOError:
            return False
        child.said += data[: max(0, LONGEST - len(child.said))]
        return bool(data)

    def _end(self, child: Child) -> None:
        """Its process has ended; what it has started ends too, before its number is free again."""
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        while self._hear(child):
            pass
        for fd in (child.pipe, child.pidfd):
            with suppress(KeyError):
                self._selector.unregister(fd)
            os.close(fd)
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.run]
        self._tell(child, os.waitstatus_to_exitcode(status))

    def _tell(self, child: Child, code: int) -> None:
        run, first = child.run, bytes(child.said[:1])
        if child.stopped:
            said = "cancelled; the function may have done something"
            self._line.send(Ended(run, errno=int(Errno.ECANCELED), message=said, lost=True))
            return
        if first not in (ANSWERED, RAISED) or code != 0:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            )
            said = f"the function's process {how}"
            self._line.send(Ended(run, errno=int(Errno.EIO), message=said, lost=True))
            return
        text = child.said[1:].decode(errors="replace")
        for at in range(0, len(text), PIECE):
            self._line.send(Piece(run, text[at : at + PIECE]))
        self._line.send(Ended(run, failed=first == RAISED))


def _work(function: Function, arguments: str, pipe: int, parent: int) -> NoReturn:
    """In the process of a call: never returns."""
    try:
        os.setsid()
        set_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        kind, text = _called(function, arguments)
        data = memoryview(kind + text.encode(errors="replace"))
        while data:
            data = data[os.write(pipe, data) :]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _called(function: Function, arguments: str) -> tuple[bytes, str]:
    try:
        return ANSWERED, function.call(arguments)
    except msgspec.ValidationError as e:
        return RAISED, f"arguments: {e}"
    except Exception as e:
        return RAISED, f"{type(e).__name__}: {e}"
