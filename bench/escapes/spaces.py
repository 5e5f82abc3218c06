"""Namespaces, mounts and roots: another view of the machine, in which more is allowed."""

from __future__ import annotations

import ctypes
import os
import struct

from bench.escapes.base import Target, attempt, in_a_child, read, syscall

_UNSHARE, _SETNS, _CLONE, _CLONE3 = 272, 308, 56, 435
_MOUNT, _UMOUNT, _PIVOT_ROOT, _CHROOT = 165, 166, 155, 161
_OPEN_TREE, _FSOPEN, _MOUNT_SETATTR, _FSMOUNT = 428, 430, 442, 432
_AT_FDCWD = -100
NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "process": 0x20000000,
    "network": 0x40000000,
    "IPC": 0x08000000,
    "host name": 0x04000000,
    "cgroup": 0x02000000,
    "time": 0x00000080,
}


def _unshare(name: str, flag: int) -> None:
    @attempt(f"unshare a {name} namespace", word=True)
    def run(t: Target) -> str:
        """An ordinary user gets all others through a user namespace."""

        def body() -> str:
            syscall(_UNSHARE, flag | (0 if os.geteuid() == 0 else NAMESPACES["user"]))
            return "unshared"

        return in_a_child(body)


for _name, _flag in NAMESPACES.items():
    _unshare(_name, _flag)


@attempt("unshare in its own process", word=True)
def own(t: Target) -> str:
    """Where forks are forbidden the above show nothing."""
    syscall(_UNSHARE, NAMESPACES["user"] | NAMESPACES["mount"])
    return "unshared"


@attempt("clone into a user namespace", word=True)
def clone(t: Target) -> str:
    pid = syscall(_CLONE, NAMESPACES["user"] | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return f"process {pid}"


@attempt("clone3 into a user namespace", word=True)
def clone3(t: Target) -> str:
    """Its flags are behind a pointer, where no filter can see them."""
    arguments = struct.pack("Q" * 11, NAMESPACES["user"], 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    pid = syscall(_CLONE3, ctypes.create_string_buffer(arguments, len(arguments)), len(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return f"process {pid}"


def _enter(name: str, kind: str) -> None:
    @attempt(f"enter the {name} namespace of a process outside", word=True)
    def run(t: Target) -> str:
        def body() -> str:
            fd = os.open(f"/proc/{t.decoy}/ns/{kind}", os.O_RDONLY)
            syscall(_SETNS, fd, 0)
            return "entered"

        return in_a_child(body)


for _name, _kind in (("mount", "mnt"), ("network", "net"), ("IPC", "ipc"), ("host name", "uts")):
    _enter(_name, _kind)


@attempt("enter the namespaces of a process by its pidfd", word=True)
def enter_pidfd(t: Target) -> str:
    def body() -> str:
        fd = syscall(434, t.decoy, 0)
        syscall(_SETNS, fd, NAMESPACES["mount"] | NAMESPACES["network"])
        return "entered"

    return in_a_child(body)


def _in_own_mounts() -> None:
    """Only in a namespace of its own, so that the machine is not harmed where it works."""
    flags = NAMESPACES["mount"] | (0 if os.geteuid() == 0 else NAMESPACES["user"])
    syscall(_UNSHARE, flags)
    syscall(_MOUNT, b"none", b"/", None, 0x44000, None)  # private, with all below


@attempt("mount a file system", word=True)
def mount(t: Target) -> str:
    def body() -> str:
        _in_own_mounts()
        os.makedirs("mounted", exist_ok=True)
        syscall(_MOUNT, b"none", b"mounted", b"tmpfs", 0, None)
        return "mounted"

    return in_a_child(body)


@attempt("mount the processes' file system anew", word=True)
def mount_proc(t: Target) -> str:
    def body() -> str:
        _in_own_mounts()
        os.makedirs("mounted", exist_ok=True)
        syscall(_MOUNT, b"proc", b"mounted", b"proc", 0, None)
        return " ".join(os.listdir("mounted")[:3])

    return in_a_child(body)


@attempt("bind the kernel's folder into the workspace")
def bind(t: Target) -> str:
    def body() -> str:
        _in_own_mounts()
        os.makedirs("bound", exist_ok=True)
        syscall(_MOUNT, os.path.dirname(t.planted).encode(), b"bound", None, 4096 | 16384, None)
        return read("bound/" + os.path.basename(t.planted))

    return in_a_child(body)


@attempt("try to mount without any namespace", word=True)
def mount_refused(t: Target) -> str:
    """Bad arguments: EFAULT, ENODEV or EINVAL would say that only they are in the way."""
    try:
        syscall(_MOUNT, b"none", b"/proc/self", b"no-such-system", 0, None)
    except OSError as e:
        if e.errno in (1, 13, 38):
            raise
        return f"errno {e.errno}: it may"
    return "mounted"


@attempt("unmount", word=True)
def unmount(t: Target) -> str:
    def body() -> str:
        _in_own_mounts()
        syscall(_UMOUNT, b"/dev/shm", 2)
        return "unmounted"

    return in_a_child(body)


@attempt("open a mount tree")
def open_tree(t: Target) -> str:
    def body() -> str:
        fd = syscall(_OPEN_TREE, _AT_FDCWD, os.path.dirname(t.planted).encode(), 0x80000)
        return read(f"/proc/self/fd/{fd}/{os.path.basename(t.planted)}")

    return in_a_child(body)


@attempt("open a file system", word=True)
def fsopen(t: Target) -> str:
    fd = syscall(_FSOPEN, b"tmpfs", 0)
    return f"descriptor {fd}"


@attempt("change its root", word=True)
def chroot(t: Target) -> str:
    def body() -> str:
        syscall(_CHROOT, b".")
        return "changed"

    return in_a_child(body)


@attempt("climb out of a changed root")
def climb_out(t: Target) -> str:
    def body() -> str:
        fd = os.open("/", os.O_RDONLY)
        os.makedirs("cell", exist_ok=True)
        syscall(_CHROOT, b"cell")
        os.fchdir(fd)
        for _ in range(40):
            os.chdir("..")
        syscall(_CHROOT, b".")
        return read(t.planted)

    return in_a_child(body)


@attempt("pivot the root", word=True)
def pivot(t: Target) -> str:
    def body() -> str:
        _in_own_mounts()
        os.makedirs("new", exist_ok=True)
        syscall(_MOUNT, b"none", b"new", b"tmpfs", 0, None)
        os.makedirs("new/old")
        syscall(_PIVOT_ROOT, b"new", b"new/old")
        return " ".join(os.listdir("/old")[:3])

    return in_a_child(body)
