"""What an agent asks for, as its ``manifest.toml`` says it and as the kernel keeps it approved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal

import msgspec

from isovist.syscalls.errors import CallerError
from isovist.syscalls.names import check_name
from isovist.syscalls.records import ToolRule

QUOTAS = frozenset(
    {"syscalls", "units", "bytes", "workspace", "seconds", "tokens", "memory", "processes"}
)
MAX_FIGURE = 1 << 53
MAX_LIST = 256
SECONDS = 86_400.0
"""Most seconds of anything that is timed here."""


class Mount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder or a file of the host, as the agent sees it under its own path."""

    path: str
    mode: Literal["ro", "rw"] = "ro"


class Restart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``policy`` is ``never``, ``on-failure`` (an exit status other than 0, a signal, a missed
    heartbeat) or ``always``. After ``most`` restarts ``within`` seconds it is given up. The
    ``pause`` before a restart doubles, from so many seconds to at most ``longest``."""

    policy: Literal["never", "on-failure", "always"] = "never"
    most: int = 5
    within: float = 60.0
    pause: float = 0.5
    longest: float = 30.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See ``docs/agents.md``. In the file, paths are relative to its folder; here absolute."""

    entry: str
    """A script, or ``module:Class``."""
    name: str = ""
    """The agent's name; in the file, empty: the folder's."""
    users: tuple[str, ...] = ()
    """Whom it may act for; ``*``: everybody. Empty: whomever it is spawned for, and itself."""
    scope: str = "pair"
    """The default scope of what it remembers."""
    publish: tuple[str, ...] = ()
    """Scopes that it asks to publish to: ``agent``, ``global``, ``@GROUP``."""
    mounts: tuple[Mount, ...] = ()
    """What it may read (or write) beside its workspace."""
    tools: tuple[ToolRule, ...] = ()
    """Tools that it asks to call."""
    mail: tuple[str, ...] = ()
    """Agents that it asks to send mail to; ``*``: all."""
    quotas: dict[str, int] = {}
    """Limits by name: ``syscalls`` (a second), ``units``, ``bytes``, ``workspace`` (bytes),
    ``seconds`` (of processor), ``tokens`` (a minute), ``memory`` (bytes), ``processes``
    (of the host; without, it can start none)."""
    children: int = 0
    """Processes that it may have spawned at once, with theirs."""
    restart: Restart = Restart()
    heartbeat: float = 0.0
    """Seconds after which an agent that has not said ``heartbeat`` is taken for hung; 0: never."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """What a person agreed to: ``manifest``, to be run in the folder ``cwd``, at a time (ns since
    1970 UTC)."""

    manifest: Manifest
    cwd: str
    at: int

    @property
    def agent(self) -> str:
        return self.manifest.name

    @property
    def digest(self) -> str:
        return digest(self.manifest, self.cwd)


def digest(manifest: Manifest, cwd: str) -> str:
    """What a person approved, as 32 hex digits: two agents have the same iff they ask for the same
    and run the same entry in the same folder."""
    said = msgspec.json.encode((manifest, cwd), order="sorted")
    return blake2b(said, digest_size=16).hexdigest()


def check(manifest: Manifest) -> None:
    """Raise ``EINVAL`` for what no manifest may ask for, naming the key."""
    _demand(1 <= len(manifest.entry.encode()) <= 4096, "entry", "1 to 4096 bytes")
    _demand("\0" not in manifest.entry, "entry", "no NUL")
    check_name(manifest.name, "name")
    _demand(manifest.name != "operator", "name", "another: that is the operator's")
    for key in ("users", "publish", "mounts", "tools", "mail"):
        _demand(len(getattr(manifest, key)) <= MAX_LIST, key, f"at most {MAX_LIST} items")
    for key in ("users", "mail"):
        for name in getattr(manifest, key):
            if name != "*":
                check_name(name, key)
    scope = manifest.scope
    known = scope in ("pair", "user", "agent", "global")
    _demand(known or scope.startswith("@"), "scope", "pair, user, agent, global or @GROUP/own")
    for scope in manifest.publish:
        _demand(scope in ("agent", "global") or scope.startswith("@"), "publish",
                "agent, global or @GROUP of users")  # fmt: skip
        if scope.startswith("@"):
            check_name(scope[1:], "publish")
    for at, mount in enumerate(manifest.mounts):
        key = f"mounts[{at}].path"
        _demand(os.path.isabs(mount.path) and "\0" not in mount.path, key, "a path")
        _demand(mount.path not in ("/", "/proc", "/sys", "/dev"), key, "a folder of one's own")
    for at, rule in enumerate(manifest.tools):
        _demand(1 <= len(rule.name.encode()) <= 256, f"tools[{at}].name", "1 to 256 bytes")
        _demand(len(rule.arguments) <= 32, f"tools[{at}].arguments", "at most 32 patterns")
    check_quotas(manifest.quotas)
    _demand(0 <= manifest.children <= 64, "children", "0 to 64")
    restart = manifest.restart
    _demand(0 <= restart.most <= 1000, "restart.most", "0 to 1000")
    for key in ("within", "pause", "longest"):
        seconds = getattr(restart, key)
        _demand(0.001 <= seconds <= SECONDS, f"restart.{key}", "0.001 to 86400 seconds")
    _demand(restart.pause <= restart.longest, "restart.longest", "no less than restart.pause")
    beat = manifest.heartbeat
    _demand(beat == 0 or 0.1 <= beat <= SECONDS, "heartbeat", "0, or 0.1 to 86400 seconds")


def check_quotas(quotas: Mapping[str, int]) -> None:
    """Raise ``EINVAL`` that names the limit which is none, or whose figure is out of range."""
    for name, figure in quotas.items():
        _demand(name in QUOTAS, f"quotas.{name}", f"one of {', '.join(sorted(QUOTAS))}")
        _demand(0 <= figure <= MAX_FIGURE, f"quotas.{name}", f"0 to {MAX_FIGURE}")


def _demand(holds: bool, key: str, rule: str) -> None:
    if not holds:
        raise CallerError(f"{key} must be {rule}", field=key)
