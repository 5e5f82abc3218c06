"""Where the kernel is: descriptors given by it, or the socket door and its token (design §3.2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket as sockets
from pathlib import Path

from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.names import check_name

CONNECT_SECONDS = 10.0
"""How long a kernel may take to accept a connection."""


class Line:
    """A byte stream to the kernel: two descriptors, non-blocking and closed on exec.

    ``reader`` and ``writer`` are one descriptor where it is a ``socket`` (which alone can hand
    over descriptors). ``token`` goes into the handshake.
    """

    _claimed: set[int] = set()  # noqa: RUF012 # one set for the process is the point

    def __init__(
        self, reader: int, writer: int, token: str = "", socket: sockets.socket | None = None
    ) -> None:
        # A socket's descriptor is new; inherited ones may already be a client's.
        inherited = set() if socket is not None else {reader, writer}
        if inherited & Line._claimed:
            raise CallerError(
                f"descriptors {reader},{writer} already belong to a client of this process; "
                "share that client"
            )
        self.reader, self.writer, self.token, self.socket = reader, writer, token, socket
        for fd in (reader, writer):
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)
        Line._claimed |= inherited
        self.closed = False

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.socket is not None:
            self.socket.close()
            return
        Line._claimed -= {self.reader, self.writer}
        for fd in {self.reader, self.writer}:
            with contextlib.suppress(OSError):
                os.close(fd)


def locate(socket: str | os.PathLike[str] | None = None, token: str | None = None) -> Line:
    """Open the line to the kernel.

    In this order: the ``socket`` named here; ``ISOVIST_FDS=r,w`` (this process is an agent that
    the kernel spawned); ``ISOVIST_SOCKET`` with ``ISOVIST_TOKEN``; the default places of the
    kernel called ``ISOVIST_KERNEL`` (``default``). A ``token`` that is not given is read from
    the file ``token`` beside the socket.

    Raises ``EPIPE`` with a hint where no kernel listens, ``EINVAL`` for a malformed setting.
    """
    if socket is not None:
        return _dial(Path(socket), token)
    if given := os.environ.get("ISOVIST_FDS"):
        return _inherit(given)
    if named := os.environ.get("ISOVIST_SOCKET"):
        return _dial(Path(named), token if token is not None else os.environ.get("ISOVIST_TOKEN"))
    places = directories(os.environ.get("ISOVIST_KERNEL") or "default")
    found = next((p for p in places if (p / "socket").exists()), places[0])
    return _dial(found / "socket", token)


def directories(name: str) -> list[Path]:
    """Where the kernel called ``name`` may keep ``socket`` and ``token``, the likeliest first."""
    check_name(name, "ISOVIST_KERNEL")
    if name in (".", ".."):
        raise CallerError("ISOVIST_KERNEL must be a name, not a path", field="ISOVIST_KERNEL")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    roots = [os.environ.get("XDG_RUNTIME_DIR"), state]
    return [Path(root) / "isovist" / name for root in roots if root]


def _inherit(given: str) -> Line:
    try:
        reader, writer = (int(fd) for fd in given.split(","))
    except ValueError:
        raise CallerError(
            f"ISOVIST_FDS must be two descriptors as in 3,4, is {given!r}", field="ISOVIST_FDS"
        ) from None
    for fd in (reader, writer):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except (OSError, OverflowError, ValueError):
            raise WorldError(
                f"descriptor {fd} of ISOVIST_FDS is closed: an agent has one channel to its "
                "kernel for its whole life",
                errno=Errno.EPIPE,
            ) from None
    return Line(reader, writer)


def _dial(path: Path, token: str | None) -> Line:
    door = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        if token is None:
            with contextlib.suppress(OSError):
                token = (path.parent / "token").read_text().strip()
        door.settimeout(CONNECT_SECONDS)
        door.connect(str(path))
        return Line(door.fileno(), door.fileno(), token or "", door)
    except BaseException as e:
        door.close()
        if isinstance(e, TimeoutError):
            raise WorldError(
                f"the kernel at {path} accepts no connection", errno=Errno.ETIMEDOUT
            ) from None
        if isinstance(e, OSError) and e.errno is not None:
            raise WorldError(
                f"no kernel at {path} ({os.strerror(e.errno)}); start one with: isovist up",
                errno=Errno.EPIPE,
            ) from None
        if isinstance(e, OSError):
            raise CallerError(f"socket {path}: {e}", field="socket") from None
        raise
