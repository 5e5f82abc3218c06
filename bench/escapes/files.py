"""Reading what lies outside: by path, by link, by descriptor, by handle, by hearsay."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import struct

from bench.escapes.base import Target, attempt, in_a_child, read, secrets_in, syscall

_OPEN_BY_HANDLE_AT = 304
_OPENAT2 = 437
_INOTIFY_INIT, _INOTIFY_ADD_WATCH = 294, 254
_FANOTIFY_INIT, _FANOTIFY_MARK = 300, 301
_AT_FDCWD = -100


def _by_path(place: str) -> None:
    @attempt(
        f"read {place} by path", word=place in ("shared memory file", "lock", "system's shadow")
    )
    def run(t: Target) -> str:
        return read(t.places[place])


for _place in (
    "store", "write-ahead log", "shared memory file", "index", "token", "log", "lock", "models",
    "config", "snapshots", "ssh key", "folder outside", "another's workspace", "system's shadow",
):  # fmt: skip
    _by_path(_place)


@attempt("read by ..")
def climb(t: Target) -> str:
    return read(os.path.relpath(t.planted, os.getcwd()))


@attempt("read by a symbolic link")
def symbolic(t: Target) -> str:
    os.symlink(t.planted, "link")
    try:
        return read("link")
    finally:
        os.unlink("link")


@attempt("read by a hard link")
def hard(t: Target) -> str:
    os.link(t.planted, "hard")
    try:
        return read("hard")
    finally:
        os.unlink("hard")


@attempt("read by a link's folder")
def folder_link(t: Target) -> str:
    os.symlink(os.path.dirname(t.planted), "folder")
    try:
        return read("folder/" + os.path.basename(t.planted))
    finally:
        os.unlink("folder")


@attempt("read through /proc/self/root")
def own_root(t: Target) -> str:
    return read("/proc/self/root" + t.planted)


@attempt("read through /proc/self/cwd/..")
def own_cwd(t: Target) -> str:
    return read("/proc/self/cwd/" + os.path.relpath(t.planted, os.getcwd()))


@attempt("read through /proc/thread-self/root")
def thread_root(t: Target) -> str:
    return read("/proc/thread-self/root" + t.planted)


@attempt("read after chdir")
def after_chdir(t: Target) -> str:
    os.chdir(os.path.dirname(t.planted))
    return read(os.path.basename(t.planted))


@attempt("read by a path descriptor reopened")
def path_descriptor(t: Target) -> str:
    fd = os.open(t.planted, os.O_PATH)
    return read(f"/proc/self/fd/{fd}")


@attempt("read by openat2")
def by_openat2(t: Target) -> str:
    how = ctypes.create_string_buffer(struct.pack("QQQ", os.O_RDONLY, 0, 0))
    fd = syscall(_OPENAT2, _AT_FDCWD, t.planted.encode(), how, 24)
    return secrets_in(os.read(fd, 4096))


@attempt("read by a mapping")
def mapped(t: Target) -> str:
    fd = os.open(t.planted, os.O_RDONLY)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as area:
        return secrets_in(area[:])


@attempt("copy by sendfile")
def sendfile(t: Target) -> str:
    source = os.open(t.planted, os.O_RDONLY)
    reader, writer = os.pipe()
    os.sendfile(writer, source, 0, 4096)
    return secrets_in(os.read(reader, 4096))


@attempt("read by a file handle")
def by_handle(t: Target) -> str:
    """``handle`` is what name_to_handle_at gave the runner; with the right capability it opens any
    file of the disk, whatever its path."""
    kind, _, body = t.handle.partition(":")
    raw = bytes.fromhex(body)
    handle = ctypes.create_string_buffer(struct.pack("Ii", len(raw), int(kind)) + raw)
    mount = os.open(".", os.O_RDONLY)
    fd = syscall(_OPEN_BY_HANDLE_AT, mount, handle, os.O_RDONLY)
    return secrets_in(os.read(fd, 4096))


@attempt("open the store with SQLite")
def sqlite(t: Target) -> str:
    import sqlite3

    try:
        with sqlite3.connect(f"file:{t.places['store']}?mode=ro", uri=True, timeout=1) as db:
            tables = [row[0] for row in db.execute("select name from sqlite_master")]
            found = b""
            for table in tables:
                with contextlib.suppress(sqlite3.OperationalError):
                    for row in db.execute(f'select * from "{table}" limit 500'):
                        found += repr(row).encode()
            return secrets_in(found)
    except sqlite3.OperationalError as e:
        raise PermissionError(13, str(e)) from None


@attempt("list the kernel's folder", word=True)
def listed(t: Target) -> str:
    return " ".join(sorted(os.listdir(t.state))[:5])


@attempt("list another's workspace", word=True)
def neighbours(t: Target) -> str:
    return " ".join(sorted(os.listdir(t.neighbour))[:5])


@attempt("learn the store's size by stat", word=True)
def size(t: Target) -> str:
    found = os.stat(t.places["write-ahead log"])
    return f"{found.st_size} bytes, changed at {found.st_mtime_ns}"


@attempt("learn by access whether a file is there", word=True)
def accessed(t: Target) -> str:
    if not os.access(t.planted, os.F_OK):
        raise FileNotFoundError(2, "it looks absent")
    return "it is there"


@attempt("learn by readlink where the kernel's folder is", word=True)
def linked(t: Target) -> str:
    return os.readlink(f"/proc/{t.kernel}/cwd")


@attempt("watch the kernel's folder with inotify", word=True)
def watched(t: Target) -> str:
    fd = syscall(_INOTIFY_INIT, 0)
    return f"watch {syscall(_INOTIFY_ADD_WATCH, fd, t.state.encode(), 0xFFF)}"


@attempt("watch the disk with fanotify", word=True)
def fan(t: Target) -> str:
    fd = syscall(_FANOTIFY_INIT, 0x200, 0)
    syscall(_FANOTIFY_MARK, fd, 1, 0x2, _AT_FDCWD, t.state.encode())
    return f"descriptor {fd}"


@attempt("read extended attributes outside", word=True)
def attributes(t: Target) -> str:
    return f"{os.getxattr(t.planted, 'user.mark')!r}"


@attempt("lock a file outside", word=True)
def locked(t: Target) -> str:
    import fcntl

    fd = os.open(t.planted, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return f"descriptor {fd}"


@attempt("find a secret behind an inherited descriptor")
def inherited(t: Target) -> str:
    """Descriptors 0 to 1023: what each is, and what can be read from it or beside it."""
    found = []
    for fd in range(1024):
        try:
            where = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            try:
                where = f"mode {os.fstat(fd).st_mode:o}"
            except OSError:
                continue
        secret = ""
        if where.startswith("/"):
            try:
                secret = secrets_in(os.pread(fd, 65536, 0))
            except OSError:
                secret = "unreadable"
            if os.path.isdir(f"/proc/self/fd/{fd}"):
                secret = f"folder of {len(os.listdir(fd))}"
        found.append(f"{fd}={where} {secret}")
    return "; ".join(found)


@attempt("hold an inherited descriptor that is none of an agent's", word=True)
def extra(t: Target) -> str:
    """Beside the standard ones and its channel an agent has none."""
    mine = {0, 1, 2, *map(int, os.environ["ISOVIST_FDS"].split(","))}
    spare = []
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        if fd not in mine:
            spare.append(fd)
    if not spare:
        raise OSError(9, "there is none")
    return f"descriptors {spare}"


@attempt("find a secret in its own environment")
def own_environment(t: Target) -> str:
    said = secrets_in(repr(dict(os.environ)).encode())
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        said += secrets_in(file.read())
    return said


@attempt("find a secret in its standard input")
def own_input(t: Target) -> str:
    if not select.select([0], [], [], 0)[0]:
        return ""
    return secrets_in(os.read(0, 65536))


@attempt("read as a child with another root")
def chrooted(t: Target) -> str:
    def body() -> str:
        os.chroot(os.path.dirname(t.planted))
        return read("/" + os.path.basename(t.planted))

    return in_a_child(body)
