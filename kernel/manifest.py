"""``manifest.toml`` beside an agent: what it asks for. Its first run needs a person's word.

A manifest *asks*; it grants nothing. What it asks for bounds the process
(:mod:`isovist.kernel.state.rights`), and is granted where the operator says so
(``isovist agent inspect``, then ``isovist agent approve``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.kernel.state.rights import ToolRule


class Mount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder or a file of the host, as the agent sees it under its own path."""

    path: str
    mode: Literal["ro", "rw"] = "ro"


class Restart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``never``, ``on-failure`` (an exit status other than 0, or a signal) or ``always``; after
    ``most`` restarts ``within`` seconds it is given up. The pause before a restart doubles from
    ``pause`` seconds to at most ``longest``."""

    policy: Literal["never", "on-failure", "always"] = "never"
    most: int = 5
    within: float = 60.0
    pause: float = 0.5
    longest: float = 30.0


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See ``docs/agents.md``. Paths are relative to the manifest's own folder."""

    entry: str
    """A script, or ``module:Class``."""
    name: str = ""
    """The agent's name; empty: the folder's."""
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
    ``seconds`` (of processor), ``tokens`` (a minute), ``memory`` (bytes)."""
    children: int = 0
    """Processes that it may have spawned at once."""
    restart: Restart = Restart()
    heartbeat: float = 0.0
    """Seconds after which an agent that has not said ``heartbeat`` is taken for hung; 0: never."""
