"""SQLite's disk, overheard and made to fail: a VFS around the one that this process uses.

The standard library's ``sqlite3`` and this module call into the same shared library, so a VFS that
is registered here as the default serves every connection opened meanwhile; the store's own code
runs unchanged over it. All calls go on to the VFS that was the default before. What the store
writes beside SQLite (gaps of pages) passes through ``os.pwrite`` and ``os.fsync``, which are
overheard too.

Formats of the structures: https://www.sqlite.org/c3ref/vfs.html, /io_methods.html.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

from bench.report import CannotRun

Kind = Literal["write", "truncate", "sync", "delete"]

OK, IOERR, FULL = 0, 10, 13
IOERR_WRITE, IOERR_FSYNC, IOERR_TRUNCATE = (IOERR | n << 8 for n in (3, 4, 6))
"""SQLite's result codes."""


class Call(NamedTuple):
    """One change of a file. ``offset``: where it is written, or the length it is cut to."""

    kind: Kind
    path: str
    offset: int = 0
    data: bytes = b""


Judge = Callable[[Call], int]
"""Told of each call before it is done: 0 lets it pass, another code is returned in its stead."""

# Names pass as addresses: SQLite keeps them, and reads on behind their end.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


class _Vfs(Structure):
    pass


_Vfs._fields_ = [
    ("version", c_int),
    ("file_size", c_int),
    ("longest_path", c_int),
    ("next", POINTER(_Vfs)),
    ("name", c_char_p),
    ("data", c_void_p),
    ("open", _OPEN),
    ("delete", _DELETE),
    ("others", c_void_p * 13),
]
"""``others``: xAccess to xNextSystemCall, in version 3."""


class _Methods(Structure):
    _fields_ = [
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("others", c_void_p * 13),
    ]


class _File(Structure):
    _fields_ = [("methods", POINTER(_Methods))]


class Disk:
    """A context: while it is open, every change that SQLite makes to a file named ``name`` or
    ``name``-something in any folder goes to ``judge``, also those of threads.

    Raises :class:`CannotRun` where the library's functions cannot be reached. One at a time.
    """

    def __init__(self, name: str, judge: Judge) -> None:
        self._watched = name
        self._judge = judge
        self._library = _library()
        self._paths: dict[int, str] = {}
        self._methods: dict[int, _Methods] = {}

    def __enter__(self) -> Disk:
        find = self._library.sqlite3_vfs_find
        find.restype, find.argtypes = POINTER(_Vfs), [c_char_p]
        self._plain = find(None)
        if self._plain.contents.version < 3:
            raise CannotRun("this SQLite's default VFS is older than its version 3")
        vfs = _Vfs.from_buffer_copy(self._plain.contents)
        vfs.name = b"overheard"
        vfs.open, vfs.delete = _OPEN(self._open), _DELETE(self._delete)
        self._vfs = vfs
        self._library.sqlite3_vfs_register(ctypes.byref(vfs), 1)
        self._aside = self._around()
        self._aside.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._aside.__exit__(None, None, None)
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
        self._library.sqlite3_vfs_register(self._plain, 1)
        # Connections that are still open go on using them.
        _immortal.append((self._vfs, self._methods, self._paths))

    def _told(self, call: Call) -> int:
        name = os.path.basename(call.path)
        if name != self._watched and not name.startswith(self._watched + "-"):
            return OK
        return self._judge(call)

    # -- SQLite's own

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        plain = self._plain
        code = int(plain.contents.open(_address(plain), name, file, flags, out))
        if code == OK and name is not None:  # without one it is SQLite's own, for a moment
            handle = _File.from_address(file)
            self._paths[file] = _text(name)
            handle.methods = ctypes.pointer(self._wrapped(handle.methods))
        return code

    def _wrapped(self, own: Any) -> _Methods:
        """A table that differs from ``own`` in three entries; one for each table there is."""
        address = _address(own)
        found = self._methods.get(address)
        if found is not None:
            return found
        plain = own.contents
        made = _Methods.from_buffer_copy(plain)

        def write(file: int, data: int, size: int, offset: int) -> int:
            content = ctypes.string_at(data, size)
            code = self._told(Call("write", self._paths[file], offset, content))
            if code == FULL:  # as a disk does it: what had room is there
                plain.write(file, data, size // 2, offset)
            return code or int(plain.write(file, data, size, offset))

        def truncate(file: int, size: int) -> int:
            code = self._told(Call("truncate", self._paths[file], size))
            return code or int(plain.truncate(file, size))

        def sync(file: int, flags: int) -> int:
            code = int(plain.sync(file, flags))
            return self._told(Call("sync", self._paths[file])) or code

        made.write, made.truncate, made.sync = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
        self._methods[address] = made
        return made

    def _delete(self, vfs: int, name: int, folder_too: int) -> int:
        code = self._told(Call("delete", _text(name), folder_too))
        plain = self._plain
        return code or int(plain.contents.delete(_address(plain), name, folder_too))

    # -- beside it

    @contextmanager
    def _around(self) -> Iterator[None]:
        pwrite, fsync = os.pwrite, os.fsync

        def path(fd: int) -> str:
            return os.readlink(f"/proc/self/fd/{fd}")

        def overheard(fd: int, data: Any, offset: int) -> int:
            _raise(self._told(Call("write", path(fd), offset, bytes(data))))
            return pwrite(fd, data, offset)

        def flushed(fd: int) -> None:
            fsync(fd)
            _raise(self._told(Call("sync", path(fd))))

        with mock.patch("os.pwrite", overheard), mock.patch("os.fsync", flushed):
            yield


_immortal: list[Any] = []
"""What C may still point to."""


def _raise(code: int) -> None:
    if code:
        number = errno.ENOSPC if code == FULL else errno.EIO
        raise OSError(number, os.strerror(number))


def _text(name: int) -> str:
    return os.fsdecode(ctypes.string_at(name))


def _address(pointer: Any) -> int:
    return int(ctypes.cast(pointer, c_void_p).value or 0)


def _library() -> Any:
    """The library that the standard library's ``sqlite3`` calls: found through that module, which
    is linked with it, whether it stands alone or in the interpreter."""
    for path in (getattr(_sqlite3, "__file__", None), None):
        library = ctypes.CDLL(path)
        if hasattr(library, "sqlite3_vfs_find") and hasattr(library, "sqlite3_vfs_register"):
            return library
    raise CannotRun(
        "the functions of SQLite cannot be reached in this build of Python: they are hidden in it"
    )


def scratch_folder() -> Path | None:
    """Memory, where a folder in it is to be had: thousands of small stores are opened."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None
