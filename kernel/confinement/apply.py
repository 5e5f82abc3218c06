"""Confine this process for good. Each step takes something away that a later one does not need.

The order: namespace (made by whoever forked us), resources, no_new_privs, files (Landlock),
capabilities, syscalls (seccomp). Only from a process with one thread.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence

from isovist.kernel.confinement import landlock, limits, policy, seccomp
from isovist.kernel.confinement.policy import Policy

_PID_MAX = "/proc/sys/kernel/pid_max"
_LEAST_TASKS = 301
"""The smallest bound that Linux takes for the numbers of a namespace."""


class Fence:
    """What all confined processes of one parent share, made once: the version of Landlock, the
    places that everybody may read, and the filter. ``shared`` is read by all, ``run`` executed by
    those that may."""

    def __init__(self, shared: Sequence[str], run: Sequence[str]) -> None:
        self.abi = landlock.version()
        self.filtered = seccomp.supported()
        self._shared = [
            *landlock.places(shared, landlock.READ),
            *landlock.places(policy.NULL, landlock.READ | landlock.WRITE_FILE),
        ]
        self._run = landlock.places(run, landlock.RUN)
        if self.filtered:
            seccomp.program(pid=1, truncate=self.abi >= 3)

    def files(self, wanted: Policy, *, replace: bool = False) -> None:
        """First half: no privileges, and files by Landlock alone, where there is Landlock.
        ``replace``: another program is executed once."""
        limits.take_no_new_privileges()
        if self.abi == 0:
            return
        own = [
            *landlock.places(wanted.read, landlock.READ, links=wanted.links),
            *landlock.places(wanted.write, landlock.WRITE, links=wanted.links),
            *landlock.places(wanted.run, landlock.RUN),
        ]
        executes = replace or wanted.processes > 0
        try:
            landlock.restrict(
                [*self._shared, *own, *(self._run if executes else ())],
                network=wanted.network,
                abi=self.abi,
            )
        finally:
            for place in own:
                place.close()

    def rest(self, wanted: Policy, *, replace: bool = False) -> None:
        """Second half: resources, privileges, syscalls."""
        children = wanted.processes > 0
        limits.limit(
            memory=wanted.memory,
            # Other runtimes reserve far more addresses than they use.
            mapped=not children,
            files=wanted.files,
            file_size=wanted.file_size,
            tasks=policy.USER_TASKS,
        )
        limits.drop_capabilities()
        if self.filtered:
            seccomp.install(
                seccomp.program(
                    pid=os.getpid(),
                    children=children,
                    network=wanted.network,
                    replace=replace,
                    truncate=self.abi >= 3,
                )
            )


def bound_tasks(tasks: int) -> bool:
    """As process 1 of a PID namespace: let it hold no more than about ``tasks`` (at least 301)
    threads and processes. Whether that was possible: it is from Linux 6.14 on, and before that
    the number is the whole system's, not to be touched."""
    if os.getpid() != 1 or not _OWN_NUMBERS:
        return False
    with contextlib.suppress(OSError):
        fd = os.open(_PID_MAX, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % max(tasks, _LEAST_TASKS))
        finally:
            os.close(fd)
        return True
    return False


def numbers_are_of_namespaces() -> bool:
    major, _, rest = platform.release().partition(".")
    minor = "".join(c if c.isdecimal() else " " for c in rest).split()[:1]
    return major.isdecimal() and bool(minor) and (int(major), int(minor[0])) >= (6, 14)


# Once, before any fork: what a fork runs first costs it memory.
_OWN_NUMBERS = numbers_are_of_namespaces()
