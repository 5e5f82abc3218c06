"""What a process may use up, and the privileges that it loses."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import struct

from isovist.kernel import linux

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_SECUREBITS = 0b11101111
"""NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and the locks of all four; KEEP_CAPS is off."""
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64

MAPPED = 1 << 30
"""Bytes of address space beside the memory: libraries, shared mappings."""


def take_no_new_privileges() -> None:
    """No exec gives more than this process has: set-user-ID and file capabilities are void."""
    linux.prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """No core dump, and no other process of this user may trace this one or read its memory
    through ``/proc`` (until it executes something)."""
    linux.prctl(_PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Leave none in any set, for good, so that root is but the owner of root's files."""
    # Up to the last one; or to the first, where we have no right to lower the bound, which then
    # does not matter: without privileges to begin with, no_new_privs keeps it so.
    with contextlib.suppress(OSError):
        for number in range(_CAPABILITIES):
            linux.prctl(_PR_CAPBSET_DROP, number)
    with contextlib.suppress(OSError):
        linux.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    with contextlib.suppress(OSError):
        linux.prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0))
    nothing = ctypes.create_string_buffer(24)
    linux.capset(ctypes.addressof(header), ctypes.addressof(nothing))


def limit(*, memory: int, mapped: bool, files: int, file_size: int, tasks: int) -> None:
    """``memory``: bytes of private memory; with ``mapped`` its whole address space too is bound,
    to :data:`MAPPED` more. ``files``: descriptors; ``file_size``: bytes of one file; ``tasks``:
    processes and threads of this user (does not bind root)."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_DATA, memory)
    if mapped:
        _lower(resource.RLIMIT_AS, memory + MAPPED)
    _lower(resource.RLIMIT_NOFILE, files)
    _lower(resource.RLIMIT_FSIZE, file_size)
    _lower(resource.RLIMIT_NPROC, tasks)
    _lower(resource.RLIMIT_MEMLOCK, 1 << 20)
    _lower(resource.RLIMIT_MSGQUEUE, 0)
    _lower(resource.RLIMIT_SIGPENDING, 1024)
    _lower(resource.RLIMIT_RTPRIO, 0)
    _lower(resource.RLIMIT_NICE, 0)


def _lower(which: int, most: int) -> None:
    """A limit is never raised."""
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))
