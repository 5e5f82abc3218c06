"""Taking what others need: memory, descriptors, disk, processes, the processor.

All bounded, so that a machine without confinement outlives it; each counts as gained from a size on
that no agent needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

from bench.escapes.base import Stopped, Target, attempt, denied, syscall

MEMORY = 3 << 30
"""Bytes of memory that no agent needs."""
_SHMGET, _SHMAT, _SHMCTL, _MEMFD = 29, 30, 31, 319
_CHUNK = 64 << 20


def _touch(area: mmap.mmap, size: int) -> None:
    for offset in range(0, size, 4096):
        area[offset] = 1


@attempt("reserve 64 GiB of memory", word=True)
def reserve(t: Target) -> str:
    """Not touched."""
    with mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000):
        return "reserved"


@attempt("touch 3 GiB of memory", word=True)
def touch(t: Target) -> str:
    areas = []
    for _ in range(MEMORY // _CHUNK):
        area = mmap.mmap(-1, _CHUNK)
        _touch(area, _CHUNK)
        areas.append(area)
    return f"{len(areas) * _CHUNK >> 20} MiB"


@attempt("touch 3 GiB in children", word=True)
def touch_children(t: Target) -> str:
    """Each below a limit of its own."""
    children, ready = [], []
    try:
        for _ in range(MEMORY // (256 << 20)):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                area = mmap.mmap(-1, 256 << 20)
                _touch(area, 256 << 20)
                os.write(writer, b"+")
                time.sleep(10)
                os._exit(0)
            os.close(writer)
            children.append(pid)
            ready.append(reader)
        if any(os.read(fd, 1) != b"+" for fd in ready):
            raise denied(12)
        return f"{len(children)} children of 256 MiB"
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@attempt("fill 2 GiB of memory files", word=True)
def memory_files(t: Target) -> str:
    """What is written there is in no process's own memory."""
    fd = syscall(_MEMFD, b"fill", 0)
    block = bytes(1 << 20)
    for _ in range(2048):
        os.write(fd, block)
    return "2 GiB"


@attempt("fill 1 GiB of System V shared memory", word=True)
def system_v(t: Target) -> str:
    number = syscall(_SHMGET, 0, 1 << 30, 0o1600)
    try:
        address = syscall(_SHMAT, number, 0, 0) & (1 << 64) - 1
        ctypes.memset(address, 1, 1 << 30)
    finally:
        syscall(_SHMCTL, number, 0, None)
    return "1 GiB"


@attempt("fill 512 MiB of pipes", word=True)
def pipes(t: Target) -> str:
    held = 0
    block = bytes(1 << 20)
    kept = []
    for _ in range(2000):
        reader, writer = os.pipe()
        kept.append((reader, writer))
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, 1031, 1 << 20)  # F_SETPIPE_SZ
        os.set_blocking(writer, False)
        held += os.write(writer, block)
        if held >= 512 << 20:
            return f"{held >> 20} MiB in {len(kept)} pipes"
    raise Stopped(f"{held >> 20} MiB in {len(kept)} pipes, too little")


@attempt("fill 256 MiB of socket pairs", word=True)
def pairs(t: Target) -> str:
    held, kept = 0, []
    block = bytes(1 << 16)
    while held < 256 << 20:
        one, two = socket.socketpair()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        one.setblocking(False)
        kept.append((one, two))
        try:
            while True:
                held += one.send(block)
        except BlockingIOError:
            pass
    return f"{held >> 20} MiB in {len(kept)} pairs"


@attempt("lock 64 MiB in memory", word=True)
def lock(t: Target) -> str:
    area = mmap.mmap(-1, 64 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    syscall(149, address, 64 << 20)
    return "locked"


@attempt("open 60,000 descriptors", word=True)
def descriptors(t: Target) -> str:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[int] = []
    try:
        while len(held) < 60_000:
            held.append(os.dup(0))
    except OSError:
        if len(held) < 8192:
            raise
    return f"{len(held)} descriptors"


@attempt("start 400 processes", word=True)
def fork_bomb(t: Target) -> str:
    children = []
    try:
        for _ in range(400):
            pid = os.fork()
            if pid == 0:
                time.sleep(20)
                os._exit(0)
            children.append(pid)
        return f"{len(children)} processes"
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@attempt("start 3,000 threads", word=True)
def threads(t: Target) -> str:
    threading.stack_size(65536)
    stop = threading.Event()
    started = []
    try:
        for _ in range(3000):
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
            started.append(thread)
        return f"{len(started)} threads"
    except RuntimeError:
        raise Stopped(f"{len(started)} threads were let run") from None
    finally:
        stop.set()


@attempt("make a file of 64 GiB", word=True)
def sparse(t: Target) -> str:
    """Sparse: its size is a promise that the disk may not be able to keep."""
    fd = os.open("huge", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os.ftruncate(fd, 64 << 30)
        return "64 GiB"
    finally:
        os.unlink("huge")


@attempt("reserve 8 GiB of disk", word=True)
def reserved(t: Target) -> str:
    fd = os.open("huge", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os.posix_fallocate(fd, 0, 8 << 30)
        return "8 GiB"
    finally:
        os.unlink("huge")


@attempt("reserve 8 GiB of disk in many files", word=True)
def many_large(t: Target) -> str:
    """Each below a limit of one file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    taken = 0
    names: list[str] = []
    try:
        while taken < 8 << 30:
            name = f"part{len(names)}"
            fd = os.open(name, os.O_CREAT | os.O_RDWR, 0o600)
            names.append(name)
            os.posix_fallocate(fd, 0, 64 << 20)
            os.close(fd)
            taken += 64 << 20
            # A watcher needs a moment; a disk that is really written to gives it one.
            time.sleep(0.02)
        return f"{taken >> 20} MiB in {len(names)} files"
    finally:
        for name in names:
            os.unlink(name)


@attempt("make 100,000 files", word=True)
def many_files(t: Target) -> str:
    os.makedirs("crowd", exist_ok=True)
    made = 0
    try:
        for made in range(100_000):
            os.close(os.open(f"crowd/{made}", os.O_CREAT | os.O_WRONLY, 0o600))
        return f"{made + 1} files"
    finally:
        for number in range(made + 1):
            try:
                os.unlink(f"crowd/{number}")
            except OSError:
                continue
        os.rmdir("crowd")


@attempt("raise its own priority", word=True)
def priority(t: Target) -> str:
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    return "nice -20"


@attempt("run in real time", word=True)
def real_time(t: Target) -> str:
    """It would be served before the kernel, for ever."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return "SCHED_FIFO"


@attempt("run with a deadline", word=True)
def deadline(t: Target) -> str:
    attributes = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10_000_000, 30_000_000, 30_000_000)
    syscall(314, 0, ctypes.create_string_buffer(attributes, 48), 0)
    return "SCHED_DEADLINE"


@attempt("take the first input and output class", word=True)
def io_class(t: Target) -> str:
    syscall(251, 1, 0, 1 << 13)
    return "real time"


@attempt("spin on every core", word=True)
def spin(t: Target) -> str:
    """Starved others would be the gain; a witness asks the kernel meanwhile (see the runner)."""
    end = time.monotonic() + 2.5
    children = []
    try:
        for _ in range(16):
            pid = os.fork()
            if pid == 0:
                while time.monotonic() < end:
                    pass
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    while time.monotonic() < end:
        pass
    for pid in children:
        os.waitpid(pid, 0)
    raise Stopped("others were served meanwhile")


@attempt("flood its standard error", word=True)
def flood(t: Target) -> str:
    """The kernel keeps the last of it alone; its memory is what a witness looks at."""
    block = b"x" * 65535 + b"\n"
    for _ in range(4096):
        sys.stderr.buffer.write(block)
    raise Stopped("all was taken, and the last of it kept")


@attempt("queue 100,000 signals to itself", word=True)
def signals(t: Target) -> str:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    info = ctypes.create_string_buffer(
        struct.pack("iii", int(signal.SIGRTMIN), 0, -1).ljust(128, b"\0")
    )
    for _ in range(100_000):
        syscall(129, os.getpid(), int(signal.SIGRTMIN), info)
    return "queued"


@attempt("take all instances of inotify", word=True)
def watches(t: Target) -> str:
    """Instances are counted for the whole user: others of it then get none."""
    held = [syscall(294, 0) for _ in range(200)]
    return f"{len(held)} inotify instances"
