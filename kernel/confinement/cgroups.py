"""One control group for all agents of a kernel: what they use together stays below the host's.

The zygote joins it once and its forks are in it: moving each agent into a group of its own would
cost more than all else of a spawn. What one agent may use is bound by its resource limits and its
PID namespace; this bounds the sum, and gives the kernel the processor first.

Where: below this process's own group, if that is ours to divide (version 2: a delegated scope, as
``systemd-run --user --scope -p Delegate=yes`` makes; version 1: the hierarchies in which we are
in the root group, or in one that belongs to this user). Nothing above it is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TASKS = 16384
"""Threads and processes of all agents together."""
SHARE = 0.75
"""Of the host's memory, for all agents together."""

_MATTER = {"memory": "memory", "pids": "tasks", "cpu": "processor"}
"""Controller -> what of :data:`isovist.kernel.confinement.report.MATTERS` it bounds."""
_PREFIX = "isovist-"
_made = itertools.count(1)


@dataclass(frozen=True)
class Group:
    """``folders`` are what a process joins; ``holds`` names what they bound."""

    folders: tuple[Path, ...] = ()
    holds: tuple[str, ...] = field(default=())

    def remove(self) -> None:
        """Once it is empty. What is not is left to a later kernel's :func:`create`."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def join(folder: str) -> None:
    """Move this process, and with it its later children, there. Raises :class:`OSError`."""
    Path(folder, "cgroup.procs").write_text("0")


def create(proc: Path = Path("/proc/self")) -> Group:
    """A group for the agents of one kernel, as far as this system lets us; ``folders`` is empty
    where it does not at all."""
    name = f"{_PREFIX}{os.getpid()}-{next(_made)}"
    try:
        own = _own(proc)
    except OSError:
        return Group()
    held: dict[Path, list[str]] = {}
    if (unified := own.get("")) is not None:
        _sweep(unified)
        for controller in _divided(unified):
            held.setdefault(unified / name, []).append(controller)
    for controller in _MATTER:
        if (base := own.get(controller)) is not None and _ours(base):
            _sweep(base)
            held.setdefault(base / name, []).append(controller)
    made: dict[Path, list[str]] = {}
    for folder, controllers in held.items():
        with contextlib.suppress(OSError):
            folder.mkdir()
            made[folder] = [c for c in controllers if _bounded(folder, c)]
    return Group(tuple(made), tuple(_MATTER[c] for found in made.values() for c in found))


def _bounded(folder: Path, controller: str) -> bool:
    memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * SHARE)
    figures: dict[str, Mapping[str, int]] = {
        "memory": {"memory.max": memory, "memory.limit_in_bytes": memory},
        "pids": {"pids.max": TASKS},
        # Half of what a group gets by default.
        "cpu": {"cpu.weight": 50, "cpu.shares": 512},
    }
    done = False
    for name, figure in figures[controller].items():
        if (file := folder / name).exists():
            with contextlib.suppress(OSError):
                file.write_text(str(figure))
                done = True
    return done


def _own(proc: Path) -> dict[str, Path]:
    """Controller (version 2: empty) -> the folder of this process's own group."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(maxsplit=2)
        if kind == "cgroup2":
            mounts.setdefault("", (root, point))
        elif kind == "cgroup":
            for option in options.split(","):
                if option in _MATTER:
                    mounts.setdefault(option, (root, point))
    found: dict[str, Path] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            root, point = mounts.get(controller, ("", ""))
            above = root.rstrip("/")
            if point and (path + "/").startswith(above + "/"):
                found[controller] = Path(point + path[len(above) :])
    return found


def _ours(folder: Path) -> bool:
    """Whether we may make groups in ``folder`` without dividing what somebody else manages: a
    hierarchy's root (a container's too), a folder that is this user's own and no mere right of
    root's, or one that systemd has marked as delegated."""
    if not os.access(folder, os.W_OK):
        return False
    delegated = b""
    with contextlib.suppress(OSError):
        delegated = os.getxattr(folder, "trusted.delegate")
    return os.path.ismount(folder) or folder.stat().st_uid == os.geteuid() != 0 or delegated == b"1"


def _divided(folder: Path) -> list[str]:
    """Version 2: the controllers that groups in ``folder`` have, once we asked for them."""
    try:
        there = (folder / "cgroup.controllers").read_text().split()
        if not _ours(folder):
            return []
        wanted = [controller for controller in _MATTER if controller in there]
        given: list[str] = []
        for attempt in range(2):
            for controller in wanted:
                with contextlib.suppress(OSError):
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
            given = (folder / "cgroup.subtree_control").read_text().split()
            if attempt or not wanted or set(wanted) <= set(given) or not _alone(folder):
                break
            # A group with processes of its own cannot be divided: we move into one below it.
            leaf = folder / f"{_PREFIX}kernel"
            leaf.mkdir(exist_ok=True)
            join(str(leaf))
        return [controller for controller in wanted if controller in given]
    except OSError:
        return []


def _alone(folder: Path) -> bool:
    return (folder / "cgroup.procs").read_text().split() == [str(os.getpid())]


def _sweep(folder: Path) -> None:
    """Remove what kernels left that were killed."""
    for left in _left(folder):
        with contextlib.suppress(OSError):
            left.rmdir()


def _left(folder: Path) -> Iterator[Path]:
    for found in folder.glob(f"{_PREFIX}*-*"):
        pid = found.name[len(_PREFIX) :].partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            yield found
