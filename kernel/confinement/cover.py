"""Covers over folders, so that agents cannot even tell what is in them.

Landlock keeps files shut, yet their names, sizes and times can be asked for by path, and from the
size of a store much can be told. So the zygote has a mount namespace in which nothing lies in the
kernel's folders, and each agent one below it, in which of all that only its own places are there,
and no ``/proc``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress

from isovist.kernel import linux
from isovist.kernel.confinement.policy import within


class Cover:
    """Covers ``folders`` (resolved; those that exist) for this process and its children. Raises
    :class:`OSError` where the host lets nobody mount; nothing is covered then."""

    def __init__(self, folders: Sequence[str]) -> None:
        # First: only what is mounted in our own namespace can be mounted elsewhere in it.
        linux.unshare_mounts()
        self._under: dict[str, int] = {}
        for folder in sorted({*folders}):
            # One inside another is covered with it.
            if os.path.isdir(folder) and not any(within(folder, outer) for outer in self._under):
                self._under[folder] = linux.open_place(folder)
        for folder in self._under:
            linux.mount_empty(folder)

    def reveal(self, paths: Iterable[str]) -> None:
        """In a child: of what is covered make ``paths`` (resolved) be there, for it alone, and
        cover ``/proc``. Raises :class:`OSError`."""
        trees: dict[str, tuple[int, str]] = {}
        for path in sorted({*paths}):
            for folder, fd in self._under.items():
                if path == folder or not within(path, folder):
                    continue
                if not any(within(path, outer) for outer in trees):
                    trees[path] = linux.clone_tree(fd, path[len(folder) + 1 :]), folder
        linux.unshare_mounts()
        for folder in (*{folder for _, folder in trees.values()}, "/proc"):
            linux.mount_empty(folder)
        for path, (tree, folder) in trees.items():
            _make(path, len(folder) + 1, folder=stat.S_ISDIR(os.fstat(tree).st_mode))
            linux.place_tree(tree, path)
            os.close(tree)


def _make(path: str, start: int, *, folder: bool) -> None:
    """An empty folder or file at ``path``, with the folders above it from ``start`` on. Not
    ``os.makedirs``: each function that a fork runs first costs it memory."""
    at = path.find("/", start)
    while at > 0:
        with suppress(FileExistsError):
            os.mkdir(path[:at])
        at = path.find("/", at + 1)
    if folder:
        with suppress(FileExistsError):
            os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
