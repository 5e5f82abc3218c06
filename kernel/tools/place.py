"""Where a tool server works, and what it may touch beside that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from isovist.kernel.confinement.policy import Policy, of_mounts
from isovist.kernel.tools.config import ToolSettings
from isovist.syscalls.errors import WorldError

PROCESSES = 64
"""Processes that a server may have beside itself."""


class Place(msgspec.Struct, frozen=True):
    """``folder`` is where it works and what it takes for its home. ``policy`` is what it may have;
    ``None``: all that the kernel's own user may."""

    folder: str
    policy: Policy | None


def prepare(name: str, settings: ToolSettings, root: Path, private: Sequence[str]) -> Place:
    """The place of server ``name``. One that names no folder gets an empty one under ``root``.

    Raises ``EINVAL`` where the settings name what is not there or is the kernel's own
    (``private``), :class:`WorldError` where the folder cannot be made. Waits for the disk.
    """
    folder = settings.folder
    if not folder:
        own = root / name
        shutil.rmtree(own, ignore_errors=True)
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise WorldError(f"{own}: {e.strerror}") from None
        folder = str(own)
    if not settings.confined:
        return Place(folder, None)
    mounts = [(mount.path, mount.mode) for mount in settings.mounts]
    if settings.folder:
        mounts.append((settings.folder, "rw"))
    read, write = of_mounts(mounts, private)
    return Place(
        os.path.realpath(folder),
        Policy(
            read=read,
            write=(*write, os.path.realpath(folder)),
            network=settings.network,
            processes=PROCESSES,
            memory=settings.memory,
        ),
    )


def environment(place: Place) -> dict[str, str]:
    """What a server takes for its home and for a place of passing files."""
    return {"HOME": place.folder, "TMPDIR": place.folder}
