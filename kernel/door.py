"""The socket door: programs of the kernel's own user attach here with the token.

The peer's user must be the kernel's, and its first message a hello with the token; it is then
the operator, and may say as which agent it acts. Others are sent away before anything is read of
them but that hello.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import socket
import struct
from pathlib import Path

from isovist.kernel.channels import Socket
from isovist.kernel.config import Config
from isovist.kernel.state.users import OPERATOR
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.messages import Hello, Request
from isovist.syscalls.names import check_name

BACKLOG = 64
ACCEPT = 16
"""Connections taken in one round."""
MAX_PATH = 107
"""Bytes in a socket's path: a limit of the system."""


class Door:
    """A listening socket and its token file, both of mode 0600."""

    def __init__(self, config: Config) -> None:
        self._socket_path, self._token_path = config.socket, config.token
        if len(os.fsencode(self._socket_path)) > MAX_PATH:
            raise WorldError(
                f"the socket's path has more than {MAX_PATH} bytes: {self._socket_path}; "
                "choose a shorter state folder"
            )
        if _answers(self._socket_path):
            # Another store's: ours is locked by us. An old socket that is dead is taken over.
            raise WorldError(
                f"another kernel answers at {self._socket_path}; give this one another name",
                errno=Errno.EEXIST,
            )
        self._token = secrets.token_hex(32)
        try:
            config.runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_private(self._token_path, self._token)
            self._socket_path.unlink(missing_ok=True)
        except OSError as e:
            raise WorldError(f"the folder {config.runtime} cannot be used: {e.strerror}") from e
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        mask = os.umask(0o177)
        try:
            self._listener.bind(os.fspath(self._socket_path))
        except OSError as e:
            self._listener.close()
            raise WorldError(f"cannot listen at {self._socket_path}: {e.strerror}") from None
        finally:
            os.umask(mask)
        self._listener.listen(BACKLOG)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> list[Socket]:
        """The connections that wait, of our own user only."""
        taken: list[Socket] = []
        for _ in range(ACCEPT):
            try:
                sock, _ = self._listener.accept()
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                break
            try:
                if _peer_uid(sock) in (os.getuid(), 0):
                    taken.append(Socket(sock))
                    continue
            except OSError:
                pass  # no descriptor left for its second half
            sock.close()
        return taken

    def _turn_away(self) -> None:
        """Out of descriptors: who was left in the queue would wake the kernel's loop for ever."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def admit(self, request: Request) -> str:
        """The agent as which the sender of a first message acts. Raises ``EPERM``."""
        if not isinstance(request, Hello):
            raise CallerError("hello comes first", errno=Errno.EPROTO)
        if not hmac.compare_digest(request.token.encode(errors="replace"), self._token.encode()):
            raise CallerError("the token is not this kernel's", errno=Errno.EPERM, field="token")
        return check_name(request.agent, "agent") if request.agent else OPERATOR

    def close(self) -> None:
        self._listener.close()
        if self._spare >= 0:
            os.close(self._spare)
        for path in (self._socket_path, self._token_path):
            with contextlib.suppress(OSError):
                path.unlink()


def _peer_uid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(os.fspath(path)) == 0


def _write_private(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(text)
    beside.replace(path)
