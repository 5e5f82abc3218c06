"""Calls of the system that an agent never needs, and through which systems have been broken."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct

from bench.escapes.base import (
    Stopped,
    Target,
    attempt,
    denied,
    machine_code,
    secrets_in,
    syscall,
)

_IO_URING_SETUP, _BPF, _PERF, _USERFAULTFD = 425, 321, 298, 323
_ADD_KEY, _REQUEST_KEY, _KEYCTL = 248, 249, 250
_SHMGET, _SHMAT, _SHMDT, _SHMCTL = 29, 30, 67, 31
_SEMGET, _SEMOP, _MSGGET, _MSGRCV, _MSGCTL = 64, 65, 68, 70, 71
_MQ_OPEN, _MQ_RECEIVE, _MQ_UNLINK = 240, 243, 241
_MEMFD, _PERSONALITY, _PRCTL = 319, 135, 157
_USER_KEYRING, _SESSION_KEYRING = -4, -3


@attempt("set up an io_uring", word=True)
def io_uring(t: Target) -> str:
    """Its requests are carried out by the system, past any filter of calls."""
    return f"descriptor {syscall(_IO_URING_SETUP, 4, ctypes.create_string_buffer(120))}"


@attempt("read by an io_uring")
def io_uring_read(t: Target) -> str:
    """An OPENAT and a READ in the ring; no ``open`` is ever called."""
    parameters = ctypes.create_string_buffer(120)
    ring = syscall(_IO_URING_SETUP, 4, parameters)
    at = struct.unpack_from("10I", parameters.raw, 40)
    done = struct.unpack_from("10I", parameters.raw, 80)
    size = struct.unpack_from("I", parameters.raw, 0)[0]
    submit = mmap.mmap(ring, max(at[6] + size * 4, done[5] + 2 * size * 16), offset=0)
    entries = mmap.mmap(ring, size * 64, offset=0x10000000)

    def one(code: int, fd: int, address: int, length: int, flags: int) -> int:
        entries[:64] = struct.pack("BBHiQQII", code, 0, 0, fd, 0, address, length, flags).ljust(
            64, b"\0"
        )
        tail = struct.unpack_from("I", submit, at[1])[0]
        struct.pack_into("I", submit, at[6] + 4 * (tail & (size - 1)), 0)
        struct.pack_into("I", submit, at[1], tail + 1)
        syscall(426, ring, 1, 1, 1, None, 0)
        head = struct.unpack_from("I", submit, done[0])[0]
        mask = struct.unpack_from("I", submit, done[2])[0]
        result = struct.unpack_from("i", submit, done[5] + 16 * (head & mask) + 8)[0]
        struct.pack_into("I", submit, done[0], head + 1)
        if result < 0:
            raise denied(-result)
        return int(result)

    path = ctypes.create_string_buffer(t.planted.encode())
    fd = one(18, -100, ctypes.addressof(path), 0, os.O_RDONLY)
    buffer = ctypes.create_string_buffer(4096)
    one(22, fd, ctypes.addressof(buffer), 4096, 0)
    return secrets_in(buffer.raw)


@attempt("load a BPF program", word=True)
def bpf(t: Target) -> str:
    """A map, the first step of all."""
    arguments = struct.pack("IIIII", 2, 4, 4, 1, 0).ljust(120, b"\0")
    return f"descriptor {syscall(_BPF, 0, ctypes.create_string_buffer(arguments, 120), 120)}"


@attempt("count events of a process outside", word=True)
def perf(t: Target) -> str:
    event = struct.pack("IIQQQQQ", 1, 128, 0, 0, 0, 0, 0b1100000).ljust(128, b"\0")
    fd = syscall(_PERF, ctypes.create_string_buffer(event, 128), t.decoy, -1, -1, 0)
    return f"descriptor {fd}"


@attempt("count events of its own", word=True)
def perf_own(t: Target) -> str:
    event = struct.pack("IIQQQQQ", 1, 128, 0, 0, 0, 0, 0b1100000).ljust(128, b"\0")
    return f"descriptor {syscall(_PERF, ctypes.create_string_buffer(event, 128), 0, -1, -1, 0)}"


@attempt("handle its own page faults", word=True)
def userfault(t: Target) -> str:
    """It makes races in the system's kernel easy to win."""
    return f"descriptor {syscall(_USERFAULTFD, 1)}"


@attempt("find a key of the user's")
def key(t: Target) -> str:
    found = syscall(_KEYCTL, 10, _USER_KEYRING, b"user", t.key.encode(), 0)
    buffer = ctypes.create_string_buffer(256)
    syscall(_KEYCTL, 11, found, buffer, 256)
    return secrets_in(buffer.raw)


@attempt("leave a key behind", word=True)
def leave_key(t: Target) -> str:
    """A store that every process of this user shares."""
    name = t.nonce.encode()
    found = syscall(_ADD_KEY, b"user", name, b"was here", 8, _USER_KEYRING)
    syscall(_KEYCTL, 9, found, _USER_KEYRING)
    return f"key {found}"


@attempt("ask for a key", word=True)
def request_key(t: Target) -> str:
    try:
        return f"key {syscall(_REQUEST_KEY, b'user', t.key.encode(), None, _USER_KEYRING)}"
    except OSError as e:
        if e.errno == 126:  # ENOKEY: it was looked for
            return "it may ask"
        raise


@attempt("read System V shared memory outside")
def shm(t: Target) -> str:
    number = syscall(_SHMGET, t.shared["key"], 0, 0)
    address = syscall(_SHMAT, number, 0, 0)
    return secrets_in(ctypes.string_at(address & (1 << 64) - 1, 128))


@attempt("take a System V message outside")
def message(t: Target) -> str:
    queue = syscall(_MSGGET, t.shared["key"], 0)
    buffer = ctypes.create_string_buffer(512)
    syscall(_MSGRCV, queue, buffer, 256, 0, 0x4000 | 0x800)  # a copy, without waiting
    return secrets_in(buffer.raw)


@attempt("turn a System V semaphore outside", word=True)
def semaphore(t: Target) -> str:
    found = syscall(_SEMGET, t.shared["key"], 0, 0)
    step = ctypes.create_string_buffer(struct.pack("Hhh", 0, 1, 0x800))
    syscall(_SEMOP, found, step, 1)
    return f"semaphore {found}"


@attempt("make System V shared memory", word=True)
def make_shm(t: Target) -> str:
    """It outlives its maker, and no limit of a process counts it."""
    number = syscall(_SHMGET, 0, 4096, 0o1600)
    syscall(_SHMCTL, number, 0, None)
    return f"segment {number}"


@attempt("read a message queue outside")
def queue(t: Target) -> str:
    fd = syscall(_MQ_OPEN, t.queue.encode(), os.O_RDWR | os.O_NONBLOCK, 0, None)
    buffer = ctypes.create_string_buffer(8192)
    syscall(_MQ_RECEIVE, fd, buffer, 8192, None, None)
    return secrets_in(buffer.raw)


@attempt("make a message queue", word=True)
def make_queue(t: Target) -> str:
    name = t.nonce.encode()
    fd = syscall(_MQ_OPEN, name, os.O_RDWR | os.O_CREAT, 0o600, None)
    syscall(_MQ_UNLINK, name)
    return f"descriptor {fd}"


@attempt("read by an interrupt of 32 bits")
def int80(t: Target) -> str:
    """The old gate: other numbers, another table. A filter must know both."""
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)
    page.write(t.planted.encode() + b"\0")
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if address >> 32:
        raise Stopped("no memory below 4 GiB")
    code = (
        b"\x53\xb8\x05\x00\x00\x00"  # push rbx; mov eax, 5 (open)
        + b"\xbb" + struct.pack("I", address)  # mov ebx, path
        + b"\x31\xc9\x31\xd2\xcd\x80\x5b\xc3"  # xor ecx, ecx; xor edx, edx; int 0x80; pop rbx; ret
    )  # fmt: skip
    return secrets_in(os.read(machine_code(code), 4096))


@attempt("make a socket by an interrupt of 32 bits", word=True)
def int80_socket(t: Target) -> str:
    code = (
        b"\x53\xb8\x67\x01\x00\x00"  # push rbx; mov eax, 359 (socket)
        b"\xbb\x02\x00\x00\x00\xb9\x01\x00\x00\x00"  # AF_INET, SOCK_STREAM
        b"\x31\xd2\xcd\x80\x5b\xc3"
    )
    return f"descriptor {machine_code(code)}"


@attempt("call by the x32 numbers", word=True)
def x32(t: Target) -> str:
    return f"descriptor {syscall(0x40000000 | 41, socket.AF_INET, socket.SOCK_STREAM, 0)}"


@attempt("make a socket by its own machine code", word=True)
def own_code(t: Target) -> str:
    """No library in between that could be bent."""
    code = (
        b"\xb8\x29\x00\x00\x00\xbf\x02\x00\x00\x00\xbe\x01\x00\x00\x00"
        b"\x31\xd2\x0f\x05\xc3"
    )  # fmt: skip
    return f"descriptor {machine_code(code)}"


@attempt("read by its own machine code")
def own_code_read(t: Target) -> str:
    path = ctypes.create_string_buffer(t.planted.encode())
    code = (
        b"\xb8\x02\x00\x00\x00\x48\xbf" + struct.pack("Q", ctypes.addressof(path))
        + b"\x31\xf6\x31\xd2\x0f\x05\xc3"
    )  # fmt: skip
    return secrets_in(os.read(machine_code(code), 4096))


@attempt("change its personality", word=True)
def personality(t: Target) -> str:
    """READ_IMPLIES_EXEC and no random addresses, as exploits like it."""
    before = syscall(_PERSONALITY, 0x0440000)
    syscall(_PERSONALITY, before)
    return f"was {before:#x}"


@attempt("regain privileges by prctl", word=True)
def no_new_privileges(t: Target) -> str:
    """Nothing may lift what was laid upon it; without no_new_privs nothing was."""
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    if status["NoNewPrivs"].strip() == "1":
        raise PermissionError(1, "no_new_privs is set for good")
    return "a setuid program would work"


@attempt("hold a capability", word=True)
def capabilities(t: Target) -> str:
    with open("/proc/self/status") as file:
        sets = {
            line.split(":\t")[0]: line.split(":\t")[1].strip() for line in file if "Cap" in line
        }
    if not any(int(sets[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")):
        raise PermissionError(1, "it has none")
    return f"effective {sets['CapEff']}"


@attempt("become another user", word=True)
def setuid(t: Target) -> str:
    os.setresuid(65533, 65533, 65533)
    return f"user {os.getuid()}"


@attempt("take a group more", word=True)
def groups(t: Target) -> str:
    os.setgroups([0, 6])
    return f"groups {os.getgroups()}"


@attempt("set the clock", word=True)
def clock(t: Target) -> str:
    """To the status that it has."""
    buffer = ctypes.create_string_buffer(208)
    syscall(159, buffer)
    status = struct.unpack_from("i", buffer.raw, 40)[0]
    change = bytearray(208)
    struct.pack_into("I", change, 0, 0x10)
    struct.pack_into("i", change, 40, status)
    syscall(159, ctypes.create_string_buffer(bytes(change), 208))
    return "set"


@attempt("change the host's name", word=True)
def host_name(t: Target) -> str:
    """To what it is."""
    name = os.uname().nodename.encode()
    syscall(170, name, len(name))
    return "set"


def _privileged(name: str, number: int, *arguments: int | bytes | None) -> None:
    @attempt(name, word=True)
    def run(t: Target) -> str:
        """With arguments that cannot work: any other refusal than for want of rights says that
        only they were in the way."""
        try:
            syscall(number, *arguments)
        except OSError as e:
            if e.errno in (1, 13, 38):
                raise
            return f"errno {e.errno}: it may"
        return "done"


_privileged("restart the machine", 169, 0, 0, 0, 0)
_privileged("start another system", 246, 0, 17, 0, 1 << 20)
_privileged("load a module", 175, b"none", 4, b"")
_privileged("load a module's file", 313, -1, b"", 0)
_privileged("remove a module", 176, b"no-such-module-here", 0x800)
_privileged("swap to a file", 167, b"/no/such/file", 0)
_privileged("reach the processor's ports", 172, 7)
_privileged("read the system's log", 103, 3, b"x" * 8, 8)
_privileged("set quotas of the disk", 179, 0x800008, b"/no/such", 0, None)
_privileged("set a limit of time for a real-time thread", 144, 0, 1, struct.pack("i", 1))
