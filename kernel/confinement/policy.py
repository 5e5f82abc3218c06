"""What a confined process may have; all else it has not.

Paths are absolute; links in them are followed once, when the process is confined. A folder stands
for all that is in it. What does not exist then is not there later either.

An agent gets its *workspace* (all but devices), its *mounts*, and for reading what its interpreter
needs (:func:`interpreter`, :data:`SYSTEM`) and its own program (:func:`of_program`). None of it is
derived from ``sys.path``, which holds what somebody's environment put there. The kernel's own
folders are *private*: no mount may hold or lie in one, and a program's folder that holds one is
granted entry by entry, without it.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from isovist.kernel.programs import Resolved
from isovist.syscalls.errors import CallerError, Errno

Mode = Literal["ro", "rw"]

MEMORY = 1 << 30
FILES = 512
FILE_SIZE = 256 << 20
TASKS = 512
USER_TASKS = 4096
"""Threads and processes of this user that a confined process may bring the system to; where a
user namespace holds them, those in it. Linux does not hold root to it."""

ENTRIES = 256
"""Entries of a program's folder that are granted one by one where the whole cannot be."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``read``, ``write`` (reading too) and ``run`` (reading and executing) are paths.

    ``network``: internet sockets (TCP and UDP, both ways; never unix sockets). ``processes``: how
    many it may have beside itself, 0: it can neither fork nor execute. ``memory``: bytes of
    private memory a process. ``files``: descriptors. ``file_size``: bytes of one file.
    ``tasks``: threads and processes together, where nothing finer is enforced. Without ``links``
    ``read`` and ``write`` are resolved, and a link that stands there now is not followed: an agent
    may have put it there since.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    network: bool = False
    processes: int = 0
    memory: int = MEMORY
    files: int = FILES
    file_size: int = FILE_SIZE
    tasks: int = TASKS
    links: bool = True


SYSTEM = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib",
    "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/usr/share/locale",
    "/dev/zero", "/dev/random", "/dev/urandom",
    "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible",
)  # fmt: skip
"""Shared libraries, time zones, chance, and how many processors there are. Nothing of ``/proc``:
all that a process may know of itself there it can ask by syscall."""

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""Where the system's programs lie: readable and executable for who may execute."""

NULL = ("/dev/null", "/dev/full")
"""Also for writing."""


def interpreter() -> tuple[str, ...]:
    """What this interpreter reads: the standard library, installed packages, its shared library,
    and this very copy of isovist."""
    found = {
        path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))
    }
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    found |= {os.path.join(prefix, "pyvenv.cfg") for prefix in (sys.prefix, sys.exec_prefix)}
    found.add(os.path.join(sys.base_exec_prefix, "lib"))
    found |= _isovist()
    return tuple(sorted(path for path in found if os.path.exists(path)))


def shared() -> tuple[str, ...]:
    """What every agent may read."""
    return (*SYSTEM, *interpreter())


def _isovist() -> set[str]:
    """Where this copy lies. In a checkout the packages are links out of ``src/isovist``."""
    root = Path(__file__).absolute().parent.parent.parent
    if root == Path(sysconfig.get_path("purelib")) / "isovist":
        return set()
    return {str(root.parent), *(str(package.resolve()) for package in root.iterdir())}


def executables() -> tuple[str, ...]:
    """What must be executable for a new interpreter: its binary, behind all links, and the
    program loader."""
    loaders = [
        str(path) for folder in ("/lib64", "/lib") for path in Path(folder).glob("ld-linux*")
    ]
    return (os.path.realpath(sys.executable), *loaders)


def of_program(
    kind: Literal["script", "class", "name"], target: str, cwd: str, private: Sequence[str]
) -> tuple[str, ...]:
    """What the program of an agent reads of its own.

    A script: its folder. A class: the folder that it lies in, or its installed package. Of a
    folder that is not one program's (the home folder, a temporary folder, a root) only the script
    itself, or the module or package that is named.
    """
    if kind == "script":
        return _of_folder(os.path.dirname(target), (target,), private)
    name = _top(target)
    top = os.path.join(cwd, name)
    if kind == "class" and (os.path.isdir(top) or os.path.isfile(top + ".py")):
        return _of_folder(cwd, (top, top + ".py"), private)
    return _installed(name)


def _top(target: str) -> str:
    """The first name of ``module:Class``."""
    return target.partition(":")[0].partition(".")[0]


def _installed(name: str) -> tuple[str, ...]:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ()
    if found is None:
        return ()
    return tuple(found.submodule_search_locations or ((found.origin,) if found.origin else ()))


def _of_folder(folder: str, own: tuple[str, ...], private: Sequence[str]) -> tuple[str, ...]:
    folder = os.path.realpath(folder)
    if _common(folder):
        return own
    if not any(within(path, folder) for path in private):
        return (folder,)
    entries = sorted(os.scandir(folder), key=lambda entry: not entry.name.endswith(".py"))
    safe = [
        entry.path
        for entry in entries
        if not any(overlap(os.path.realpath(entry.path), path) for path in private)
    ]
    return (*own, *safe[:ENTRIES])


def of_agent(
    program: Resolved,
    workspace: str,
    private: Sequence[str],
    *,
    mounts: Iterable[tuple[str, Mode]] = (),
    memory: int = MEMORY,
    processes: int = 0,
    above: Sequence[str] | None = None,
) -> Policy:
    """The policy of an agent: its workspace, its program, its ``mounts`` (see
    :func:`of_mounts`). With ``processes`` it may execute the system's programs.

    ``above``: what the agent that chose the program may read (``None``: no agent did). A program
    elsewhere gives its folder to nobody: else whoever may spawn could read any folder that holds
    one. Links were followed here, so that none can be exchanged later.
    """
    read, write = of_mounts(mounts, private)
    found = of_program(program.kind, program.target, program.cwd, private)
    own = tuple(map(os.path.realpath, found))
    # What is installed the kernel has found by itself; nobody's path led there.
    installed = program.kind != "script" and found == _installed(_top(program.target))
    if above is not None and not installed:
        kept = (*map(os.path.realpath, (*above, *shared(), workspace)),)
        if not all(any(within(path, folder) for folder in kept) for path in own):
            raise CallerError(
                "an agent spawns only a program that it may read itself, with its folder",
                errno=Errno.EPERM,
                field="program",
            )
    return Policy(
        read=(*own, *read),
        write=(os.path.realpath(workspace), *write),
        links=False,
        run=PROGRAMS if processes else (),
        processes=processes,
        memory=memory,
    )


def of_mounts(
    mounts: Iterable[tuple[str, Mode]], private: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths to read and those to write. Raises ``EINVAL`` (``mounts``) for one that is not
    absolute, is not there, holds or lies in a folder of the kernel's, is ``/proc``, ``/sys`` or
    ``/dev``, or leads over a link: a person approved the path without it, and an agent that may
    write above it can exchange it."""
    split: dict[Mode, list[str]] = {"ro": [], "rw": []}
    for path, mode in mounts:
        if not os.path.isabs(path):
            raise CallerError(f"mount {path!r} must be absolute", field="mounts")
        real = os.path.realpath(path)
        if not os.path.exists(real):
            raise CallerError(f"mount {path!r} does not exist", field="mounts")
        if real != os.path.normpath(path):
            raise CallerError(f"mount {path!r} leads to {real!r}: approve that", field="mounts")
        for other in (*private, "/proc", "/sys", "/dev"):
            if overlap(real, other):
                raise CallerError(f"mount {path!r} holds or lies in {other}", field="mounts")
        split[mode].append(real)
    return tuple(split["ro"]), tuple(split["rw"])


def check_private(private: Sequence[str]) -> None:
    """Raise ``EINVAL`` where a folder of the kernel's holds or lies in what every agent reads."""
    for path in private:
        for read in shared():
            if overlap(path, os.path.realpath(read)):
                raise CallerError(
                    f"{path} and {read}, which every agent reads, overlap: choose another folder",
                    field="state",
                )


def within(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or lies in it; both resolved."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def overlap(a: str, b: str) -> bool:
    return within(a, b) or within(b, a)


_SHARED = (
    "/", "/boot", "/dev", "/etc", "/media", "/mnt", "/opt", "/proc", "/run", "/srv", "/sys",
    "/tmp", "/usr", "/var", "/var/tmp",
)  # fmt: skip


def _common(folder: str) -> bool:
    """Whether many unrelated things lie in ``folder``: a root, the home folder or one above it,
    a temporary folder, or one that is nobody's in particular."""
    homes = {os.path.realpath(os.path.expanduser("~")), "/root", "/home"}
    shared = {*_SHARED, os.path.realpath(tempfile.gettempdir())}
    return (
        folder in shared
        or any(within(home, folder) for home in homes)
        or any(within(folder, system) for system in ("/proc", "/sys", "/dev"))
    )
