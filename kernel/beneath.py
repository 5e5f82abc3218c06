"""Files beneath a folder that somebody else may write to, at any moment, with any malice.

A path is walked from a descriptor of the folder and never names anything above it: no link is
followed, no other file system entered, and what was opened is looked at through its descriptor, so
nothing can be changed between a check and its use. ``openat2`` does the walk in one call (Linux
5.6); where it is missing each name is opened on its own, with the same rules.

Only a regular file with one name is ever read: a second name may be a file of somebody else's, and
reading a pipe or a device may never end.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isovist.syscalls.errors import CallerError, Errno

_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_libc = ctypes.CDLL(None, use_errno=True)

_OUTSIDE = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR)
"""What a walk meets that is no folder, a link, or another file system."""


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(folder: int, path: str, flags: int) -> int:
    how = _How(flags | os.O_CLOEXEC, 0, _RESOLVE)
    at = ctypes.c_char_p(path.encode())
    size = ctypes.c_size_t(ctypes.sizeof(how))
    fd: int = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_int(folder), at, ctypes.byref(how), size
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


def _walk(folder: int, path: str, flags: int) -> int:
    """The same by a descriptor for each name."""
    *above, last = path.split("/")
    device = os.fstat(folder).st_dev
    at = os.dup(folder)
    try:
        for name in above:
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
            if os.fstat(at).st_dev != device:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        fd = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    status = os.fstat(fd)
    # O_PATH opens a link itself, and a mount can stand in the last place too.
    if status.st_dev != device or stat.S_ISLNK(status.st_mode):
        os.close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return fd


def _has_openat2() -> bool:
    try:
        os.close(_openat2(_CWD, ".", os.O_PATH | os.O_DIRECTORY))
    except OSError as e:
        return e.errno not in (errno.ENOSYS, errno.EPERM)
    return True


_CWD = -100
_open = _openat2 if _has_openat2() else _walk


@contextmanager
def opened(root: Path) -> Iterator[int]:
    """A descriptor of ``root``, which is the kernel's own to name."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def reading(root: Path, path: str, field: str, limit: int) -> Iterator[int]:
    """A descriptor of the regular file ``path`` beneath ``root``, at its beginning. ``path`` is
    one of :func:`isovist.syscalls.paths.check_path`.

    Raises ``ENOENT``, ``EMSGSIZE`` for a file of more than ``limit`` bytes, ``EAGAIN`` for one that
    its owner holds a lease of, else ``EINVAL``.
    """
    with opened(root) as folder:
        found = _found(folder, path, field, os.O_PATH)
    try:
        # Only now is it opened at all: to open a device or a pipe may do something.
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(field, path, "is no regular file")
        if status.st_nlink != 1:
            raise _refused(field, path, f"has {status.st_nlink} names, and may have one")
        if status.st_size > limit:
            raise too_long(field, path, status.st_size, limit)
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        what = f"{field}: {path!r} is held by a lease"
        raise CallerError(what, errno=Errno.EAGAIN, field=field) from None
    finally:
        os.close(found)
    try:
        yield fd
    finally:
        os.close(fd)


def write(root: Path, path: str, field: str, pieces: Iterable[bytes], *, replace: bool) -> None:
    """Write ``pieces`` to ``path`` beneath ``root``: whole, durable and readable by its owner
    alone, or not at all, also where the pieces end in an error; folders are made.

    A link that stands there is replaced itself, and never followed. Raises ``EEXIST`` without
    ``replace``, ``EINVAL`` where a name on the way is no folder.
    """
    *above, name = path.split("/")
    with opened(root) as folder:
        at = os.dup(folder)
        try:
            for depth in range(len(above)):
                at = _step(folder, at, "/".join(above[: depth + 1]), field)
            part = f".{os.urandom(6).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            out = os.open(part, flags, 0o600, dir_fd=at)
            try:
                for piece in pieces:
                    put(out, piece)
                os.fsync(out)
                _name(at, part, name, path, field, replace=replace)
            except BaseException:
                with suppress(OSError):
                    os.unlink(part, dir_fd=at)
                raise
            finally:
                os.close(out)
            with suppress(OSError):  # a folder that its owner has just removed
                sync(at)
        finally:
            os.close(at)


def put(out: int, piece: bytes) -> None:
    """Write all of ``piece``."""
    while piece:
        piece = piece[os.write(out, piece) :]


def sync(folder: int) -> None:
    """Flush a folder, which may be open as a mere path."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _step(folder: int, at: int, path: str, field: str) -> int:
    """The descriptor of the folder ``path``, made in ``at`` where it is missing; closes ``at``."""
    with suppress(FileExistsError):
        os.mkdir(path.rpartition("/")[2], 0o700, dir_fd=at)
    inner = _found(folder, path, field, os.O_PATH | os.O_DIRECTORY)
    os.close(at)
    return inner


def _found(folder: int, path: str, field: str, flags: int) -> int:
    try:
        return _open(folder, path, flags)
    except FileNotFoundError:
        what = f"{field}: nothing lies there in the workspace"
        raise CallerError(what, errno=Errno.ENOENT, field=field) from None
    except OSError as e:
        if e.errno in _OUTSIDE:
            raise _refused(field, path, "leads through a link, a mount or a file") from None
        raise


def _name(at: int, part: str, name: str, path: str, field: str, *, replace: bool) -> None:
    try:
        if replace:
            os.rename(part, name, src_dir_fd=at, dst_dir_fd=at)
        else:
            # A link refuses to replace what has come to stand there.
            os.link(part, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
            os.unlink(part, dir_fd=at)
    except FileExistsError:
        what = f"{field}: something lies there already"
        raise CallerError(what, errno=Errno.EEXIST, field=field) from None
    except (IsADirectoryError, NotADirectoryError):
        raise _refused(field, path, "is a folder") from None


def _refused(field: str, path: str, why: str) -> CallerError:
    return CallerError(f"{field}: {path!r} {why}", field=field)


def too_long(field: str, path: str, size: int, limit: int) -> CallerError:
    what = f"{field}: {path!r} has {size} bytes, the limit is {limit}"
    return CallerError(what, errno=Errno.EMSGSIZE, field=field)
