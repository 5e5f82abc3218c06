"""Tool servers as configured: ``[tools.NAME]`` of ``config.toml``.

A secret is named by the environment variable that holds it; no file of ours ever holds one.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from isovist.kernel.state.toolservers import ServerConfig
from isovist.syscalls.errors import CallerError

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?\Z|[A-Za-z0-9_-]+\Z")
_RULE = re.compile(r"shared\Z|exclusive\Z|key:.{1,128}\Z")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Mounted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder or a file of the host that a server may read, or (``rw``) write."""

    path: str
    mode: Literal["ro", "rw"] = "ro"


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of ``command`` (a program that speaks MCP over its pipes, with its arguments), ``url``
    (a server that speaks it over HTTP) and ``python`` (a module, ``module:function``, or an entry
    point of the group ``isovist.tools``)."""

    command: tuple[str, ...] = ()
    url: str = ""
    python: str = ""
    key: str = ""
    """The variable with the bearer token that ``url`` is sent; empty: none is."""
    env: tuple[str, ...] = ()
    """Variables of the kernel's own environment that the server is given."""
    folder: str = ""
    """Where it works, an absolute path; it may read and write there, and Python modules are found
    there. Empty: a folder of its own that is empty at its start."""
    mounts: tuple[Mounted, ...] = ()
    """What else it may read or write."""
    network: bool = False
    """Whether a ``command`` or ``python`` may use the network."""
    confined: bool = True
    """False: with all rights of the kernel's own user."""
    memory: int = 1 << 30
    """Bytes that each of its processes may have."""
    timeout: float = 60.0
    """Seconds that one call may take."""
    slots: int = 8
    """Calls that it is given at a time."""
    approve: tuple[str, ...] = ()
    """Patterns over its tools' names: a person is asked before each call of these."""
    approval: float = 300.0
    """Seconds that a person is waited for; then the call is denied."""
    conflicts: dict[str, str] = {}
    """By patterns over its tools' names, the first that fits: ``shared`` (beside any),
    ``exclusive`` (beside no other call of this server), ``key:ARGUMENT`` (not beside one with the
    same value)."""

    @property
    def kind(self) -> str:
        return "stdio" if self.command else "http" if self.url else "python"

    def server(self, name: str) -> ServerConfig:
        """What the pure kernel is told of it."""
        return ServerConfig(
            name=name,
            kind=self.kind,
            timeout=int(self.timeout * 1e9),
            slots=self.slots,
            approve=self.approve,
            approval=int(self.approval * 1e9),
            conflicts=tuple(self.conflicts.items()),
        )


def check(name: str, settings: ToolSettings) -> None:
    """Raises ``EINVAL`` that names the field and its rule; it quotes no value, as one may be a
    secret."""

    def refuse(field: str, rule: str) -> CallerError:
        return CallerError(f"tools.{name}.{field} {rule}", field="tools")

    if not _NAME.match(name):
        raise CallerError(
            f"tools.{name}: a server's name has 1 to 32 letters a to z, digits and '-'",
            field="tools",
        )
    if sum(map(bool, (settings.command, settings.url, settings.python))) != 1:
        raise CallerError(
            f"tools.{name} needs one of command, url and python, and no other", field="tools"
        )
    if any("\0" in word for word in settings.command) or settings.command[:1] == ("",):
        raise refuse("command", "is a program and its arguments, a list of texts")
    if settings.url:
        _check_url(settings, refuse)
    elif settings.key:
        raise refuse("key", "is for a url alone")
    if settings.python and not _MODULE.match(settings.python):
        raise refuse("python", "is a module, module:function, or the name of an entry point")
    for variable in (*settings.env, *([settings.key] if settings.key else [])):
        if not _VARIABLE.match(variable):
            raise refuse("env", "holds names of environment variables, never their values")
    for path in (settings.folder, *(mount.path for mount in settings.mounts)):
        if path and (not path.startswith("/") or "\0" in path):
            raise refuse("mounts" if path != settings.folder else "folder", "is an absolute path")
    for field, value, low, high in (
        ("timeout", settings.timeout, 0.1, 3600.0),
        ("approval", settings.approval, 0.1, 7 * 86400.0),
        ("slots", settings.slots, 1, 64),
        ("memory", settings.memory, 1 << 24, 1 << 40),
    ):
        if not low <= value <= high:
            raise refuse(field, f"must be {low:g} to {high:g}")
    for pattern, rule in settings.conflicts.items():
        if not pattern or not _RULE.match(rule):
            raise refuse("conflicts", "gives each pattern shared, exclusive or key:ARGUMENT")
    if "" in settings.approve:
        raise refuse("approve", "holds patterns over the names of its tools")


def _check_url(settings: ToolSettings, refuse: object) -> None:
    assert callable(refuse)
    try:
        address = urlsplit(settings.url)
        host, _ = address.hostname or "", address.port
    except ValueError:
        raise refuse("url", "is no address") from None
    if address.scheme not in ("http", "https") or not host or "@" in address.netloc:
        raise refuse("url", "is written https://host/mcp, without a user")
    if settings.key and address.scheme == "http" and host not in _LOCAL:
        raise refuse("key", "goes over https, or to this machine alone")
