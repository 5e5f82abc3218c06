"""The ``tools`` syscalls: functions that the kernel itself can call for an agent.

A tool is named ``SERVER.TOOL``, after the server that the kernel has mounted and the tool's own
name there; tools of the kernel's own (``memory_search``) have no server.
"""

from __future__ import annotations

import msgspec

from isovist.syscalls.abi.base import Call, Reply


class ToolUse(msgspec.Struct, frozen=True):
    """One call of a tool, by its name or the one that models know it by. ``arguments`` is a JSON
    object as text. ``key`` names the effect: under one key it happens once at most, however often
    it is asked for; empty: the kernel makes one."""

    name: str
    arguments: str = "{}"
    key: str = ""


class ToolInfo(msgspec.Struct, frozen=True):
    """A tool that the caller may call. ``offered`` is its name for a model, ``parameters`` the
    JSON schema of its arguments, as text. What it says of itself: ``read_only`` (it changes
    nothing), ``idempotent`` (once or twice is the same). What the operator says: ``approval`` (a
    person is asked each time), ``conflict`` (``shared``, ``exclusive``, ``key:ARGUMENT``),
    ``timeout_ms`` of a call."""

    name: str
    offered: str
    description: str = ""
    parameters: str = "{}"
    read_only: bool = False
    idempotent: bool = False
    approval: bool = False
    conflict: str = "shared"
    timeout_ms: int = 0


class ToolResult(msgspec.Struct, frozen=True):
    """What came of one call. ``errno`` is 0 where the tool answered: ``text`` is its answer, at
    most 30,000 characters of it, and ``failed`` says that the answer is an error of the tool's
    own. ``characters`` counts the whole answer; where it is longer than ``text``, all of it can be
    read under the name ``output``. ``effect`` is the record of what it did, where it may have
    changed something."""

    name: str
    text: str = ""
    failed: bool = False
    errno: int = 0
    message: str = ""
    characters: int = 0
    output: str = ""
    effect: str = ""
    retry_at: int = 0


class Approval(msgspec.Struct, frozen=True):
    """A call that waits for a person. ``arguments`` are made fit for a terminal, and cut at 4,096
    characters; ``digest`` (SHA-256) is that of the tool, the pair and all of the arguments."""

    id: str
    name: str
    agent: str
    user: str
    arguments: str
    digest: str
    asked_at: int
    until: int


class ToolServer(msgspec.Struct, frozen=True):
    """A mounted server. ``state``: idle (no call has needed it yet), starting, up, waiting (for
    its next start), failed (it is left alone for a while). ``starts`` counts its lives, ``error``
    says how the last one ended."""

    name: str
    kind: str
    state: str
    tools: int = 0
    running: int = 0
    waiting: int = 0
    starts: int = 0
    error: str = ""


class ToolsList(Call, frozen=True, array_like=True, kw_only=True, tag=81):
    """The tools that the caller may call, by name; others are not listed. ``names`` keeps those
    that fit one of the patterns (``*``, ``?``, ``[…]``). Servers that nobody has needed yet are
    started for it, and waited for."""

    names: tuple[str, ...] = ()


class ToolsCall(Call, frozen=True, array_like=True, kw_only=True, tag=82):
    """Make ``calls`` (1 to 64), side by side where the tools allow it; replies when each has
    ended, in whatever way. One that fails harms no other."""

    calls: tuple[ToolUse, ...]


class ToolsOutput(Call, frozen=True, array_like=True, kw_only=True, tag=83):
    """Read on in an answer that was cut: at most 30,000 characters from ``offset`` on. ``id`` is
    the ``output`` of its result, and is known to the pair that got it. Kept until the kernel
    stops, or until newer ones need the room."""

    id: str
    offset: int = 0


class ToolsApprovals(Call, frozen=True, array_like=True, kw_only=True, tag=84):
    """Operator only: the calls that wait for a person, oldest first."""


class ToolsAnswer(Call, frozen=True, array_like=True, kw_only=True, tag=85):
    """Operator only: let the call that waits under ``id`` go on, or deny it; replies with those
    that wait on. An answer is for that one call alone; ``digest``, where given, must be that of
    the call (else ``ESTALE``)."""

    id: str
    approve: bool
    digest: str = ""


class ToolsServers(Call, frozen=True, array_like=True, kw_only=True, tag=86):
    """Operator only: the mounted servers and how they are."""


class ToolList(Reply, frozen=True, array_like=True, kw_only=True, tag=158):
    """``missing`` says of each server that could not be asked why."""

    tools: tuple[ToolInfo, ...]
    missing: dict[str, str] = {}


class ToolResults(Reply, frozen=True, array_like=True, kw_only=True, tag=159):
    """One result a call, in the order of the calls."""

    results: tuple[ToolResult, ...]
    user: str
    rule: str


class ToolOutput(Reply, frozen=True, array_like=True, kw_only=True, tag=160):
    """``text`` begins at ``offset``; ``characters`` counts the whole."""

    text: str
    offset: int
    characters: int


class Approvals(Reply, frozen=True, array_like=True, kw_only=True, tag=161):
    approvals: tuple[Approval, ...]


class ToolServers(Reply, frozen=True, array_like=True, kw_only=True, tag=162):
    servers: tuple[ToolServer, ...]


Request = ToolsList | ToolsCall | ToolsOutput | ToolsApprovals | ToolsAnswer | ToolsServers
AnyReply = ToolList | ToolResults | ToolOutput | Approvals | ToolServers
REPLY_OF: dict[type[Call], type[Reply]] = {
    ToolsList: ToolList,
    ToolsCall: ToolResults,
    ToolsOutput: ToolOutput,
    ToolsApprovals: Approvals,
    ToolsAnswer: Approvals,
    ToolsServers: ToolServers,
}
NAMES: dict[type[Call], str] = {
    ToolsList: "tools.list",
    ToolsCall: "tools.call",
    ToolsOutput: "tools.output",
    ToolsApprovals: "tools.approvals",
    ToolsAnswer: "tools.answer",
    ToolsServers: "tools.servers",
}
