"""Which files a process may touch, and whom it may reach: Landlock, by the Linux that runs.

A *ruleset* denies all that it handles and no rule allows. It holds for the process that restricts
itself, for its threads and children, over exec, and can only be narrowed.

=======  =====  ==============================================================
version  Linux  adds
=======  =====  ==============================================================
1        5.13   reading, writing, executing, making and removing by path
2        5.19   linking and renaming between folders
3        6.2    truncating
4        6.7    binding and connecting TCP ports
5        6.10   ioctl on devices
6        6.12   abstract unix sockets and signals out of the domain
=======  =====  ==============================================================
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from isovist.kernel import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines
_RULE_PATH_BENEATH = 1
_VERSION_FLAG = 1

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
WRITE = (
    READ | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER
)
"""No devices, FIFOs or sockets: others open what lies in a workspace too."""

_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""All other rights are of folders; a rule on a file must not name them."""

_NET = 0b11  # BIND_TCP | CONNECT_TCP
_SCOPES = 0b11  # ABSTRACT_UNIX_SOCKET | SIGNAL


def version() -> int:
    """What the running Linux offers; 0: nothing."""
    try:
        return linux.syscall(_CREATE_RULESET, 0, 0, _VERSION_FLAG, call="landlock")
    except OSError:
        return 0


def handled(abi: int) -> int:
    """All file rights that ``abi`` knows."""
    last = REFER if abi == 2 else TRUNCATE if abi in (3, 4) else IOCTL_DEV if abi >= 5 else MAKE_SYM
    return last * 2 - 1


class Place:
    """A file or a folder that rules are about: held open, so that no later rename changes which
    it is. What does not exist has no rules."""

    def __init__(self, path: str, rights: int, *, links: bool = True) -> None:
        self.fd = linux.open_place(path, links=links)
        folder = stat.S_ISDIR(os.fstat(self.fd).st_mode)
        self.rights = rights if folder else rights & _OF_FILES

    def close(self) -> None:
        os.close(self.fd)


def places(paths: Iterable[str], rights: int, *, links: bool = True) -> list[Place]:
    """Those of ``paths`` that exist (without ``links``: at the end of no link)."""
    found: list[Place] = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(Place(path, rights, links=links))
    return found


def restrict(allowed: Iterable[Place], *, network: bool, abi: int | None = None) -> None:
    """Deny this thread (the process's only one) all but ``allowed``. Needs no_new_privs. Raises
    :class:`OSError` where there is no Landlock."""
    abi = version() if abi is None else abi
    rights = handled(abi)
    attributes = struct.pack(
        "=QQQ", rights, _NET if abi >= 4 and not network else 0, _SCOPES if abi >= 6 else 0
    )
    # An older Linux takes the larger structure as long as what it does not know is zero.
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = linux.syscall(
        _CREATE_RULESET, ctypes.addressof(buffer), len(attributes), 0, call="landlock"
    )
    try:
        for place in allowed:
            rule = ctypes.create_string_buffer(struct.pack("=Qi", place.rights & rights, place.fd))
            linux.syscall(
                _ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.addressof(rule), 0, call="landlock"
            )
        linux.syscall(_RESTRICT_SELF, ruleset, 0, call="landlock")
    finally:
        os.close(ruleset)
