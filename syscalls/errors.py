"""Error numbers and the exceptions that carry them.

One root, :class:`IsovistError`, and three branches by who is at fault, so that a program can
decide with one ``except`` whether to mend its request (:class:`CallerError`), to wait or to
look around (:class:`WorldError`), or to report a bug of ours (:class:`KernelError`).
"""

from __future__ import annotations

from enum import IntEnum


class Errno(IntEnum):
    """Why a syscall failed. The values are Linux's own, so that they print familiarly."""

    EPERM = 1
    """The channel holds no right to do this, or to do it for that user."""
    ENOENT = 2
    """Nothing of that id in the view. What lies outside the view answers the same."""
    ESRCH = 3
    """No such process."""
    EIO = 5
    """The store, a driver or a file failed; the request itself was sound."""
    ENOEXEC = 8
    """What was named is no program: no script, no class of agents."""
    EAGAIN = 11
    """Too much outstanding; the same request may succeed later."""
    EACCES = 13
    """An endpoint refuses the kernel's key: its operator must act, not the caller."""
    EEXIST = 17
    """The name is taken."""
    EINVAL = 22
    """A field breaks its rule; the message names both."""
    ENOSPC = 28
    """The disk that holds the store is full."""
    EPIPE = 32
    """The other end of the channel is gone."""
    ENOSYS = 38
    """No such syscall in this ABI version."""
    EDQUOT = 122
    """What may be kept of this kind is kept; the same request may succeed when some is dropped."""
    ESTALE = 116
    """A compare-and-swap met a newer version."""
    EPROTO = 71
    """Bytes that are not a frame or not a message."""
    EMSGSIZE = 90
    """Longer than a limit; the message holds both numbers."""
    ENOBUFS = 105
    """The peer never reads its replies."""
    ETIMEDOUT = 110
    """The deadline or the barrier's timeout passed first."""
    ECANCELED = 125
    """Cancelled by its caller, or ended with its process."""
    EKERNEL = 255
    """A broken rule inside the kernel: a bug of ours."""


_WORLD = frozenset(
    {
        Errno.EACCES,
        Errno.EIO,
        Errno.EAGAIN,
        Errno.ENOSPC,
        Errno.EPIPE,
        Errno.ENOBUFS,
        Errno.ETIMEDOUT,
        Errno.ECANCELED,
        Errno.ESTALE,
    }
)


class IsovistError(Exception):
    """Root of everything that Isovist raises.

    ``errno`` says what happened, ``field`` (may be empty) which field of the request broke its
    rule, ``story`` (may be empty) the ordered steps of the call up to the failure, ``retry_at``
    (0: not known) when the same request may succeed, in ns since 1970 UTC.
    """

    errno: Errno = Errno.EKERNEL

    def __init__(
        self,
        message: str,
        *,
        errno: Errno | None = None,
        field: str = "",
        story: tuple[str, ...] = (),
        retry_at: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        if errno is not None:
            self.errno = errno
        self.field = field
        self.story = story
        self.retry_at = retry_at

    def __str__(self) -> str:
        return f"{self.errno.name}: {self.message}"


class CallerError(IsovistError):
    """The request is at fault; sending it again unchanged fails again."""

    errno = Errno.EINVAL


class WorldError(IsovistError):
    """Neither side is at fault: a disk, a driver, a peer, the time."""

    errno = Errno.EIO


class KernelError(IsovistError):
    """A broken invariant of the kernel. Please report it with its story."""


def error(
    errno: int, message: str, field: str = "", story: tuple[str, ...] = (), retry_at: int = 0
) -> IsovistError:
    """The exception for an error number, on the branch of whoever is at fault.

    A number that this version does not know becomes a :class:`WorldError` that says so, since
    a newer kernel may append numbers.
    """
    try:
        known = Errno(errno)
    except ValueError:
        return WorldError(f"error {errno}: {message}", field=field, story=story, retry_at=retry_at)
    branch: type[IsovistError]
    if known is Errno.EKERNEL:
        branch = KernelError
    elif known in _WORLD:
        branch = WorldError
    else:
        branch = CallerError
    return branch(message, errno=known, field=field, story=story, retry_at=retry_at)
