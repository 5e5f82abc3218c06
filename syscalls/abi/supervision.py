"""Supervision: pause, continue, priority, heartbeats; what agents ask for and hold; distrust.

``kill`` and ``list`` are older and stand in :mod:`isovist.syscalls.messages`.
"""

from __future__ import annotations

import msgspec

from isovist.syscalls.abi.base import Call, Reply
from isovist.syscalls.manifest import Manifest
from isovist.syscalls.records import Process


class Pause(Call, frozen=True, array_like=True, kw_only=True, tag=53):
    """Stop process ``pid`` where it stands (own descendants; the operator: any). What it has asked
    for goes on; it is not blamed for replies that it leaves unread, nor for missed heartbeats."""

    pid: int


class Continue(Call, frozen=True, array_like=True, kw_only=True, tag=54):
    """Let a paused process go on."""

    pid: int


class Priority(Call, frozen=True, array_like=True, kw_only=True, tag=55):
    """Set how urgent process ``pid`` is (own descendants; the operator: any). ``level`` (0 to 9)
    is added to its agent's at queues before models that go by priority; above 0 it is the
    operator's to give. ``nice`` (0 to 19) is the host's: the higher, the less processor it gets
    beside others. What is ``None`` stays; without the host's leave ``nice`` can only rise."""

    pid: int
    level: int | None = None
    nice: int | None = None


class Heartbeat(Call, frozen=True, array_like=True, kw_only=True, tag=56):
    """Say that this process is well. Whose manifest names a ``heartbeat`` must say so at least
    that often, or is taken for hung and killed. The reply is ``Done``."""


class Distrust(Call, frozen=True, array_like=True, kw_only=True, tag=57):
    """Hide all that ``agent`` published, by taking each unit back to the pair of its owner, and
    let it publish nothing more; the operator's alone. With ``undo`` each goes back to where it
    was. Without an ``agent``, list those who are distrusted."""

    agent: str = ""
    undo: bool = False


class AgentApprove(Call, frozen=True, array_like=True, kw_only=True, tag=58):
    """Grant an agent what its ``manifest`` asks for, and keep the manifest as approved; the
    operator's alone. ``cwd`` is where it starts. With ``revoke`` (and no manifest) take back the
    approval of ``agent`` and what it granted."""

    manifest: Manifest | None = None
    cwd: str = ""
    agent: str = ""
    revoke: bool = False


class AgentList(Call, frozen=True, array_like=True, kw_only=True, tag=59):
    """What agents are approved and granted; the operator's alone. At most 256 by name, those
    ``after`` a name, with 16 names of each kind and no manifest; with ``agent``, of this one all.
    """

    agent: str = ""
    after: str = ""


class Managed(Reply, frozen=True, array_like=True, kw_only=True, tag=139):
    """The process as it now stands."""

    process: Process


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of a distrusted agent, and the ``scope`` that it had."""

    id: str
    user: str
    scope: str


class Distrusted(Reply, frozen=True, array_like=True, kw_only=True, tag=140):
    """``units``, ``count`` in all (at most 2,048 are listed), were hidden (with ``undo``: brought
    back); ``agents`` are distrusted now. ``kept`` could not be moved: the disk refused them."""

    agents: tuple[str, ...]
    units: tuple[Hidden, ...] = ()
    kept: tuple[Hidden, ...] = ()
    count: int = 0


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent holds. ``users`` and ``scopes``, ``mail`` and ``tools`` are its grants;
    ``digest`` tells its approved ``manifest`` from any other (empty and ``None``: it has none)."""

    agent: str
    users: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    mail: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    digest: str = ""
    manifest: Manifest | None = None
    cwd: str = ""
    approved_at: int = 0


class Agents(Reply, frozen=True, array_like=True, kw_only=True, tag=141):
    agents: tuple[Installed, ...]


Request = Pause | Continue | Priority | Heartbeat | Distrust | AgentApprove | AgentList

AnyReply = Managed | Distrusted | Agents

REPLY_OF: dict[type[Call], type[Reply]] = {
    Pause: Managed,
    Continue: Managed,
    Priority: Managed,
    Distrust: Distrusted,
    AgentApprove: Agents,
    AgentList: Agents,
}

NAMES: dict[type[Call], str] = {
    Pause: "pause",
    Continue: "continue",
    Priority: "priority",
    Heartbeat: "heartbeat",
    Distrust: "distrust",
    AgentApprove: "agent.approve",
    AgentList: "agent.list",
}
