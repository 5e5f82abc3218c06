"""Changing what lies outside. What is changed was planted for it; a witness compares afterwards."""

from __future__ import annotations

import os
import stat
import struct

from bench.escapes.base import Target, attempt, syscall

_RENAMEAT2, _FCHMODAT2, _FALLOCATE, _TRUNCATE, _LINKAT = 316, 452, 285, 76, 265
_AT_FDCWD = -100


@attempt("write a file of the kernel")
def write(t: Target) -> str:
    fd = os.open(t.planted, os.O_WRONLY)
    return f"{os.write(fd, t.nonce.encode())} bytes"


@attempt("append to a file outside")
def append(t: Target) -> str:
    fd = os.open(t.places["folder outside"], os.O_WRONLY | os.O_APPEND)
    return f"{os.write(fd, t.nonce.encode())} bytes"


@attempt("write to another's workspace")
def neighbour(t: Target) -> str:
    with open(os.path.join(t.neighbour, t.nonce), "w") as file:
        return f"{file.write('was here')} bytes"


@attempt("overwrite a file of another's workspace")
def overwrite(t: Target) -> str:
    with open(t.places["another's workspace"], "a") as file:
        return f"{file.write('was here')} bytes"


@attempt("open the store for writing", word=True)
def store(t: Target) -> str:
    fd = os.open(t.places["store"], os.O_RDWR)
    return f"descriptor {fd}"


@attempt("truncate by path")
def truncate(t: Target) -> str:
    syscall(_TRUNCATE, t.planted.encode(), 3)
    return "truncated"


@attempt("truncate when opening")
def truncate_open(t: Target) -> str:
    os.close(os.open(t.planted, os.O_RDWR | os.O_TRUNC))
    return "truncated"


@attempt("create in the kernel's folder")
def create(t: Target) -> str:
    os.close(os.open(os.path.join(t.state, t.nonce), os.O_CREAT | os.O_WRONLY, 0o600))
    return "created"


@attempt("create an unnamed file outside and link it")
def unnamed(t: Target) -> str:
    fd = os.open(t.outside, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"was here")
    new = os.path.join(t.outside, t.nonce).encode()
    syscall(_LINKAT, _AT_FDCWD, f"/proc/self/fd/{fd}".encode(), _AT_FDCWD, new, 0x400)
    return "created"


@attempt("create in /tmp")
def temporary(t: Target) -> str:
    os.close(os.open(f"/tmp/{t.nonce}", os.O_CREAT | os.O_WRONLY, 0o600))
    return "created"


@attempt("create in /dev/shm")
def shared_memory(t: Target) -> str:
    os.close(os.open(f"/dev/shm/{t.nonce}", os.O_CREAT | os.O_WRONLY, 0o600))
    return "created"


@attempt("create in the home folder")
def home(t: Target) -> str:
    os.close(os.open(os.path.join(t.home, t.nonce), os.O_CREAT | os.O_WRONLY, 0o600))
    return "created"


@attempt("make a folder outside")
def folder(t: Target) -> str:
    os.mkdir(os.path.join(t.outside, t.nonce))
    return "made"


@attempt("make a symbolic link outside")
def link(t: Target) -> str:
    os.symlink("/etc/passwd", os.path.join(t.outside, t.nonce))
    return "made"


@attempt("make a pipe outside")
def pipe(t: Target) -> str:
    os.mkfifo(os.path.join(t.outside, t.nonce))
    return "made"


@attempt("bind a socket outside")
def bound(t: Target) -> str:
    import socket

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.join(t.outside, t.nonce))
    return "bound"


@attempt("remove a file of the kernel")
def remove(t: Target) -> str:
    os.unlink(t.planted)
    return "removed"


@attempt("remove a folder outside")
def remove_folder(t: Target) -> str:
    os.rmdir(os.path.join(t.outside, "empty"))
    return "removed"


@attempt("rename over a file of the kernel")
def rename_over(t: Target) -> str:
    with open("mine", "w") as file:
        file.write("was here")
    os.rename("mine", t.planted)
    return "replaced"


@attempt("rename a file of the kernel into the workspace")
def rename_in(t: Target) -> str:
    os.rename(t.planted, "theirs")
    with open("theirs") as file:
        return file.read()


@attempt("rename out of the workspace")
def rename_out(t: Target) -> str:
    with open("mine", "w") as file:
        file.write("was here")
    os.rename("mine", os.path.join(t.outside, t.nonce))
    return "moved"


@attempt("exchange two files by renameat2")
def exchange(t: Target) -> str:
    with open("mine", "w") as file:
        file.write("was here")
    syscall(_RENAMEAT2, _AT_FDCWD, b"mine", _AT_FDCWD, t.planted.encode(), 2)
    return "exchanged"


@attempt("link the workspace's file outside")
def link_out(t: Target) -> str:
    with open("mine", "w") as file:
        file.write("was here")
    os.link("mine", os.path.join(t.outside, t.nonce))
    return "linked"


@attempt("chmod outside")
def chmod(t: Target) -> str:
    os.chmod(t.planted, 0o666)
    return "opened to all"


@attempt("chmod outside by fchmodat2")
def chmod2(t: Target) -> str:
    syscall(_FCHMODAT2, _AT_FDCWD, t.planted.encode(), 0o644, 0)
    return "opened to all"


@attempt("chmod outside by a path descriptor")
def chmod_fd(t: Target) -> str:
    fd = os.open(t.planted, os.O_PATH)
    os.chmod(f"/proc/self/fd/{fd}", 0o660)
    return "opened to a group"


@attempt("chown outside")
def chown(t: Target) -> str:
    """Root gives it away; another user can give it to a group of its own, which changes the time
    at which it was changed."""
    if os.geteuid() == 0:
        os.chown(t.planted, 12345, -1)
    else:
        os.chown(t.planted, -1, os.getegid())
    return "changed"


@attempt("set times outside")
def times(t: Target) -> str:
    os.utime(t.planted, (1, 1))
    return "set"


@attempt("set an extended attribute outside")
def attribute(t: Target) -> str:
    os.setxattr(t.planted, "user.mark", t.nonce.encode())
    return "set"


@attempt("remove an extended attribute outside")
def no_attribute(t: Target) -> str:
    os.removexattr(t.planted, "user.mark")
    return "removed"


@attempt("set flags of a file outside", word=True)
def flags(t: Target) -> str:
    """No-dump, which every owner may set; the same call makes a file immutable."""
    import fcntl

    fd = os.open(t.planted, os.O_RDONLY)
    number = bytearray(8)
    fcntl.ioctl(fd, 0x80086601, number)
    (found,) = struct.unpack("q", number)
    fcntl.ioctl(fd, 0x40086602, struct.pack("q", found | 0x40))
    fcntl.ioctl(fd, 0x40086602, struct.pack("q", found))
    return f"flags {found:#x}"


@attempt("reserve room in a file outside")
def reserve(t: Target) -> str:
    fd = os.open(t.places["folder outside"], os.O_RDWR)
    syscall(_FALLOCATE, fd, 0, 0, 1 << 20)
    return "1 MiB"


@attempt("leave a setuid program in the workspace", word=True)
def setuid(t: Target) -> str:
    """Another user who runs it would act as the kernel's."""
    os.close(os.open("tool", os.O_CREAT | os.O_WRONLY, 0o700))
    os.chmod("tool", 0o4755)
    mode = os.stat("tool").st_mode
    os.unlink("tool")
    if not mode & stat.S_ISUID:
        raise PermissionError(1, "the bit was dropped")
    return f"mode {mode:o}"


@attempt("make a device in the workspace", word=True)
def device(t: Target) -> str:
    """The disk itself, 254:0 or whatever holds the workspace."""
    os.mknod("disk", stat.S_IFBLK | 0o600, os.stat(".").st_dev)
    try:
        fd = os.open("disk", os.O_RDONLY)
        return f"descriptor {fd}, {len(os.read(fd, 512))} bytes"
    finally:
        os.unlink("disk")


@attempt("watch who writes, by a lease", word=True)
def lease(t: Target) -> str:
    import fcntl

    fd = os.open(t.planted, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return f"descriptor {fd}"


@attempt("copy into a file outside by copy_file_range")
def copy_range(t: Target) -> str:
    with open("mine", "w+b") as mine:
        mine.write(b"was here")
        mine.flush()
        fd = os.open(t.places["folder outside"], os.O_WRONLY)
        os.copy_file_range(mine.fileno(), fd, 8, 0, 0)
    return "8 bytes"
