"""Looking through its own memory, which a fork shares with whoever forked it.

A module of its own, as small as can be: each import would overwrite what lies about there.
"""

from __future__ import annotations

import ctypes
import gc
import os

from bench.escapes.base import Target, attempt, planted, syscall

_WRITE = 1
MOST_PAGES = 60_000
"""240 MiB: more than an agent has."""


@attempt("find a secret in its own memory")
def own_memory(t: Target) -> str:
    """What a fork of the zygote has inherited, wherever it lies. No ``/proc`` is needed: a write
    to a pipe tells which pages are there, and takes them out."""
    reader, writer = os.pipe()
    pages = {id(thing) >> 12 for thing in gc.get_objects()}
    pages |= {
        ctypes.addressof(ctypes.create_string_buffer(size)) >> 12 for size in range(1, 4096, 64)
    }
    seen: set[int] = set()
    found: set[str] = set()
    for start in sorted(pages):
        for step in (1, -1):
            page, before = start, b""
            while page not in seen and len(seen) < MOST_PAGES:
                seen.add(page)
                try:
                    syscall(_WRITE, writer, page << 12, 4096)
                except OSError:
                    break
                data = os.read(reader, 4096)
                # A secret may lie across two pages.
                found |= set(
                    planted(before[-128:] + data if step == 1 else data + before[:128]).split()
                )
                page, before = page + step, data
            seen.discard(start)
        seen.add(start)
    return " ".join(sorted(found)) or f"{len(seen)} pages without one"


@attempt("find a secret by the map of its own memory")
def own_map(t: Target) -> str:
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "r" not in rights or "[v" in line:
                continue
            start, end = (int(x, 16) for x in span.split("-"))
            try:
                memory.seek(start)
                data = memory.read(min(end - start, 64 << 20))
            except (OSError, ValueError, OverflowError):
                continue
            found |= set(planted(data).split())
    return " ".join(sorted(found))
