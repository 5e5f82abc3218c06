"""``python -m bench.escapes.lower UID COMMAND…``: run a command as an ordinary user (for root).

In mounts of its own, folders on the way to the interpreter and to this checkout that only root
may enter are covered by empty ones, with just what is needed bound into them. Nothing outside
changes.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys

from bench import ROOT, SOURCE

_NEW_MOUNTS = 0x00020000
_BIND, _PRIVATE = 0x1000, 0x44000
_libc = ctypes.CDLL(None, use_errno=True)


def main(uid: int, command: list[str]) -> None:
    _check(_libc.unshare(_NEW_MOUNTS), "unshare")
    _mount(b"none", b"/", None, _PRIVATE)
    needed = {os.path.realpath(p) for p in (sys.base_prefix, sys.prefix, str(ROOT), str(SOURCE))}
    for closed in sorted({c for p in needed if (c := _closed(p))}):
        inside = [p for p in sorted(needed) if p.startswith(closed + "/")]
        held = [os.open(p, os.O_PATH) for p in inside]
        _mount(b"none", closed.encode(), b"tmpfs", 0)
        for path, fd in zip(inside, held, strict=True):
            os.makedirs(path, mode=0o755)
            _mount(f"/proc/self/fd/{fd}".encode(), path.encode(), None, _BIND)
            os.close(fd)
        os.chmod(closed, 0o755)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.execvp(command[0], command)


def _closed(path: str) -> str:
    """The topmost folder on the way to ``path`` that others may not enter; empty: none."""
    parts = path.split("/")
    for end in range(2, len(parts) + 1):
        folder = "/".join(parts[:end])
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            return folder
    return ""


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), None), "mount")


def _check(result: int, call: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
