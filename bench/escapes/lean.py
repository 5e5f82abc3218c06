"""Looking through its own memory, which a fork shares with whoever forked it, at the very first.

Each import would overwrite what lies about there, so this has next to none; its finds wait for
:mod:`bench.escapes.memory`. No ``/proc`` is needed: a write to a pipe tells which pages are there,
and takes their bytes out.
"""

import ctypes
import os

MOST_PAGES = 60_000
"""240 MiB: more than an agent has."""
MARK = b"isovist-" + b"secret-"

found: list[bytes] = []
looked = 0


def look() -> None:
    global looked
    reader, writer = os.pipe()
    write = ctypes.CDLL(None).write
    write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    # One address of each kind of memory: objects, what malloc gives, large and small.
    starts = {id(object()) >> 12, id(ctypes) >> 12, id([0] * 5000) >> 12}
    for size in (16, 256, 4000, 60_000):
        buffer = ctypes.create_string_buffer(size)
        starts.add(ctypes.addressof(buffer) >> 12)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    for size in (24, 500, 5000, 100_000):
        starts.add(libc.malloc(size) >> 12)
    things: tuple[object, ...] = (b"x" * 3000, "y" * 700, {}, os)
    for thing in things:
        starts.add(id(thing) >> 12)
    seen: set[int] = set()
    for start in starts:
        for step in (1, -1):
            page = start if step == 1 else start - 1
            while page not in seen and looked < MOST_PAGES:
                if write(writer, page << 12, 4096) != 4096:
                    break
                seen.add(page)
                looked += 1
                data = os.read(reader, 4096)
                if MARK in data:
                    found.append(data)
                page += step


look()
