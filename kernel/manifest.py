"""``manifest.toml`` beside an agent: what it asks for. Its first run needs a person's word.

A manifest *asks*; it grants nothing. What it asks for bounds the process
(:mod:`isovist.kernel.state.rights`), and is granted where the operator says so
(``isovist agent inspect``, then ``isovist agent approve``).
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec

from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.manifest import Manifest, Mount, Restart, check, digest

__all__ = ["FILE", "Asked", "Manifest", "Mount", "Restart", "check", "find", "load"]

FILE = "manifest.toml"
MAX_FILE = 64 * 1024
"""Bytes of a manifest."""


class Asked(msgspec.Struct, frozen=True):
    """A manifest that was found: its file, and what it asks for, with its name and all paths
    absolute. ``cwd`` is the file's folder, where the agent starts."""

    file: str
    manifest: Manifest
    cwd: str

    @property
    def digest(self) -> str:
        return digest(self.manifest, self.cwd)


def find(program: str, cwd: str) -> Asked | None:
    """The manifest of what ``isovist run`` was given, as seen from ``cwd``: a folder must have one,
    a script and a class may, beside them. It counts for a script or class only where that is its
    entry. Raises what :func:`load` raises, and ``ENOENT`` for a folder without one."""
    at = Path(os.path.normpath(os.path.join(cwd, program)))
    if at.is_dir():
        if not (at / FILE).exists():
            raise CallerError(f"no {FILE} in {at}", errno=Errno.ENOENT, field="program")
        return load(at / FILE)
    script = program.endswith(".py") or "/" in program
    if not script and ":" not in program:
        return None  # the name of an installed agent
    folder = at.parent if script else Path(cwd)
    if not (folder / FILE).is_file():
        return None
    asked = load(folder / FILE)
    return asked if asked.manifest.entry == (str(at) if script else program) else None


def load(file: Path) -> Asked:
    """Read and check a manifest. Raises ``EINVAL`` (``ENOENT``, ``EACCES``) that names the file,
    the key and the rule; ``field`` is the key."""
    folder = file.absolute().parent
    try:
        with open(file, "rb") as source:
            data = source.read(MAX_FILE + 1)
    except OSError as e:
        raise CallerError(
            f"{file}: {e.strerror}",
            errno=Errno.ENOENT if isinstance(e, FileNotFoundError) else Errno.EACCES,
            field="manifest",
        ) from None
    try:
        if len(data) > MAX_FILE:
            raise CallerError(f"more than {MAX_FILE} bytes", field="manifest")
        found = msgspec.convert(tomllib.loads(data.decode()), Manifest, str_keys=True)
        found = _absolute(found, folder)
        check(found)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise CallerError(f"{file}: no TOML: {e}", field="manifest") from None
    except msgspec.ValidationError as e:
        rule, _, path = str(e).partition(" - at ")
        key = path.strip("`").removeprefix("$.").removeprefix("$") or "manifest"
        if rule.startswith("Object contains unknown field"):
            unknown = rule.partition("`")[2].partition("`")[0]
            key = f"{key}.{unknown}" if key != "manifest" else unknown
            rule = "there is no such key"
        elif rule.startswith("Object missing required field"):
            key, rule = rule.partition("`")[2].partition("`")[0], "is missing"
        raise CallerError(f"{file}: {key}: {rule}", field=key) from None
    except CallerError as e:
        raise CallerError(f"{file}: {e.message}", errno=e.errno, field=e.field) from None
    return Asked(str(file.absolute()), found, str(folder))


def _absolute(manifest: Manifest, folder: Path) -> Manifest:
    """The same with the folder's name where none is given, and with absolute paths."""

    def whole(path: str) -> str:
        return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))

    entry = manifest.entry
    return msgspec.structs.replace(
        manifest,
        name=manifest.name or folder.name,
        entry=whole(entry) if entry.endswith(".py") or "/" in entry else entry,
        mounts=tuple(
            # What a person approves is where it leads.
            msgspec.structs.replace(mount, path=os.path.realpath(whole(mount.path)))
            if mount.path
            else mount
            for mount in manifest.mounts
        ),
    )
