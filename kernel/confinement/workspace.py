"""An agent's own folder in the file system: the one place where it may write by itself."""

from __future__ import annotations

import os
from pathlib import Path

from isovist.syscalls.files import file_name

TEMPORARY = ".tmp"
"""In the workspace: where temporary files go."""


def folder(root: Path, agent: str) -> Path:
    """The workspace of ``agent`` under ``root``: one folder a name, whatever is in the name."""
    return root / file_name(agent)


def prepare(root: Path, agent: str) -> Path:
    """:func:`folder`, made if it is not there; for this user's eyes only. Raises
    :class:`OSError`."""
    found = folder(root, agent)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found.mkdir(mode=0o700, exist_ok=True)
    temporary = found / TEMPORARY
    try:
        temporary.mkdir(mode=0o700)
    except FileExistsError:
        if temporary.is_symlink() or not temporary.is_dir():
            # The agent's doing. Its temporary files go nowhere, which harms it alone.
            pass
    return found


def environment(found: Path) -> dict[str, str]:
    """What an agent with this workspace has in its environment."""
    return {"HOME": str(found), "TMPDIR": str(found / TEMPORARY), "PWD": str(found)}


def size(found: Path) -> int:
    """Bytes that the files in the workspace take on the disk. Follows no link."""
    total = 0
    stack = [str(found)]
    while stack:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # gone in the meantime
    return total
