"""The few Linux calls that the standard library does not wrap, or wraps too loosely for us.

Nothing here decides anything. Every failure is an :class:`OSError` with Linux's own number.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_SLAVE = 1 << 14, 1 << 19
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on all machines
_OPEN_TREE_CLONE, _AT_RECURSIVE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 0x8000, 4
_CLONE_NEWNET = 0x40000000
_CLONE_NEWIPC = 0x08000000


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def prctl(option: int, value: int) -> None:
    """``prctl(option, value, 0, 0, 0)``."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), "prctl")


def syscall(number: int, *arguments: int, call: str) -> int:
    """Syscall ``number``; ``call`` names it in the error."""
    result: int = _syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, f"{call}: {os.strerror(failed)}")
    return result


def capget(header: int, sets: int) -> None:
    """``capget`` with the addresses of its two structures."""
    _check(_libc.capget(ctypes.c_void_p(header), ctypes.c_void_p(sets)), "capget")


def capset(header: int, sets: int) -> None:
    """``capset`` with the addresses of its two structures."""
    _check(_libc.capset(ctypes.c_void_p(header), ctypes.c_void_p(sets)), "capset")


def set_death_signal(number: signal.Signals) -> None:
    """Send this process ``number`` when the *thread* that forked it ends.

    A parent that is already gone sends nothing: whoever calls this must notice that otherwise.
    """
    prctl(_PR_SET_PDEATHSIG, number)


def set_subreaper() -> None:
    """Make this process the parent of all orphans among its descendants."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def unshare_pids() -> None:
    """Give the next child a PID namespace, of which it is then process 1.

    Where this user may not, a user namespace of our own gives the right to; in it the user and
    the group stay who they are. Raises :class:`OSError` (nothing has changed) where the host
    forbids both.
    """
    _unshare(_CLONE_NEWPID)


def unshare_all(*, network: bool) -> None:
    """:func:`unshare_pids`, and our own System V memory and message queues; with ``network`` a
    network of our own too, which has no way out."""
    _unshare(_CLONE_NEWPID | _CLONE_NEWIPC | (_CLONE_NEWNET if network else 0))


def _unshare(flags: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(flags) == 0:
        return
    _check(_libc.unshare(_CLONE_NEWUSER | flags), "unshare")
    # An unmapped user only *looks* like nobody; its rights are the same. So this may fail.
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")


def open_place(path: str, *, links: bool = True) -> int:
    """A descriptor that stands for the file or folder at ``path`` and opens nothing; of a high
    number, so that those that a child is given at low ones do not replace it. Without ``links``
    none is followed on the way: ``ENOTDIR`` or ``ELOOP``."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC) if links else _open_without_links(path)
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)
    finally:
        os.close(fd)


def _open_without_links(path: str) -> int:
    *above, last = path.split("/")[1:]
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name, kind in (*((name, os.O_DIRECTORY) for name in above), (last or ".", 0)):
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    if stat.S_ISLNK(os.fstat(at).st_mode):  # O_PATH opens a link itself
        os.close(at)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return at


def unshare_mounts() -> None:
    """Give this process a mount namespace of its own: what is mounted here is seen nowhere else."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(b"none", b"/", b"", _MS_REC | _MS_SLAVE, b"")


def mount_empty(folder: str) -> None:
    """Cover ``folder`` with an empty one, in memory, that is this user's."""
    options = b"size=64k,nr_inodes=1k,mode=755"
    _mount(b"none", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options)


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), options), "mount")


def clone_tree(folder: int, path: str) -> int:
    """A descriptor of what lies at ``path`` below the open ``folder``, with all that is mounted in
    it, to be placed elsewhere."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    name = ctypes.create_string_buffer(os.fsencode(path))
    return syscall(_OPEN_TREE, folder, ctypes.addressof(name), flags, call="open_tree")


def place_tree(tree: int, target: str) -> None:
    """Mount what :func:`clone_tree` gave on ``target``."""
    name, empty = ctypes.create_string_buffer(os.fsencode(target)), ctypes.create_string_buffer(1)
    syscall(
        _MOVE_MOUNT, tree, ctypes.addressof(empty), -100, ctypes.addressof(name),
        _MOVE_MOUNT_F_EMPTY_PATH, call="move_mount",
    )  # fmt: skip


class Namespace:
    """This process's own PID namespace, in which a child may get one of its own."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def leave(self) -> None:
        """The next child is process 1 of a new namespace below this one. Raises
        :class:`OSError` where that is forbidden, or too many are there."""
        _check(_libc.unshare(_CLONE_NEWPID), "unshare")

    def back(self) -> None:
        """Later children are of this namespace again."""
        _check(_libc.setns(self._fd, _CLONE_NEWPID), "setns")


def host_pid(pidfd: int) -> int:
    """The process's number as this process's ``/proc`` shows it; -1 once it has been reaped."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line[4:])
    raise OSError(f"descriptor {pidfd} is no pidfd")


def send_signal(pidfd: int, number: signal.Signals) -> bool:
    """Signal the very process that ``pidfd`` stands for; false if it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


_PROCESS_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP of Linux 6.9."""


def signal_group(pidfd: int, number: signal.Signals) -> bool:
    """Signal the process group that ``pidfd``'s process leads; that process alone where the system
    cannot, or where it does not lead one yet. False if it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, number, None, _PROCESS_GROUP)
    except OSError:
        return send_signal(pidfd, number)
    return True


def usage(pid: int) -> tuple[float, int] | None:
    """(seconds of processor, resident bytes) of process ``pid``, its children that it has waited
    for included in the first; ``None`` if it is gone."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
    except OSError:
        return None
    words = rest.split()
    # After the name: state is field 3 of proc(5); times are 14 to 17, resident pages 24.
    ticks = sum(int(word) for word in words[11:15])
    return ticks / os.sysconf("SC_CLK_TCK"), int(words[21]) * os.sysconf("SC_PAGE_SIZE")


def thread_count() -> int:
    """How many threads this process has, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def children() -> list[int]:
    """This process's direct children, zombies included.

    Until we reap one its number cannot be reused, so signalling it by number is safe.
    """
    mine = os.getpid()
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                # The name in brackets may hold anything; state and parent follow the last ")".
                _, _, rest = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")
                if int(rest.split()[1]) == mine:
                    found.append(int(name))
    return found


def kill_children() -> None:
    """Kill and reap children, and the orphans that this makes our children, until none is left
    (:func:`set_subreaper`)."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            os.wait()


def send_message(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """One datagram and, with it, copies of ``fds``. ``EMSGSIZE`` if the socket can't hold it."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


def receive_message(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """One datagram of at most ``size`` bytes with at most ``most`` descriptors (close-on-exec).

    Empty bytes mean that the peer is gone. A datagram that was cut short is ``EMSGSIZE``, and
    none of its descriptors stays open.
    """
    buffer = bytearray(size)
    length, fds = receive_into(sock, buffer, most)
    return bytes(buffer[:length]), fds


def receive_into(sock: socket.socket, buffer: bytearray, most: int) -> tuple[int, list[int]]:
    """:func:`receive_message` into ``buffer``, and nowhere else in memory; its length."""
    width = array.array("i").itemsize
    length, ancillary, flags, _ = sock.recvmsg_into(
        [buffer], socket.CMSG_SPACE(most * width), socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) // width * width])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise OSError(90, f"message longer than {len(buffer)} bytes or {most} descriptors")
    return length, list(fds)
