"""What a fork of the zygote has inherited, and should not have."""

from __future__ import annotations

from bench.escapes import lean
from bench.escapes.base import Target, attempt, planted


@attempt("find a secret in its own memory")
def own_memory(t: Target) -> str:
    """Found already: see :mod:`bench.escapes.lean`."""
    return planted(b" ".join(lean.found)) or f"{lean.looked} pages without one"


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
