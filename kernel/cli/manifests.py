"""Manifests on the command line: shown in plain words, approved, asked about before a first run."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, attach, suggest
from isovist.kernel.cli.show import emit, moment, note, safe, say, table
from isovist.kernel.manifest import Asked, find
from isovist.syscalls.abi.supervision import Installed
from isovist.syscalls.errors import Errno
from isovist.syscalls.manifest import Manifest
from isovist.syscalls.records import ToolRule

if TYPE_CHECKING:
    from isovist.syscalls.client import Client


def inspect(common: Common, path: str) -> int:
    """What is granted is told where a kernel answers; what is asked for, anyhow."""
    asked = _found(path)
    held = None
    try:
        with attach(common) as kernel:
            held = _held(kernel, asked.manifest.name)
    except Problem as e:
        if e.status != 3:
            raise
    if common.json:
        emit({"file": asked.file, "digest": asked.digest, "asks": asked.manifest, "holds": held})
    else:
        for line in told(asked, held):
            say(line)
    return 0


def approve(common: Common, path: str) -> int:
    asked = _found(path)
    with attach(common) as kernel:
        (held,) = kernel.agent_approve(asked.manifest, asked.cwd).agents
    if common.json:
        emit(held)
        return 0
    for line in told(asked, held):
        say(line)
    return 0


def ls(common: Common) -> int:
    found: list[Installed] = []
    with attach(common) as kernel:
        while page := kernel.agents(after=found[-1].agent if found else "").agents:
            found += page
    if common.json:
        emit(found)
        return 0
    if not found:
        say("no agent is approved, and none holds a grant")
        return 0
    table(
        ("AGENT", "APPROVED", "USERS", "SCOPES", "MAIL", "TOOLS"),
        (
            (a.agent, moment(a.approved_at) if a.digest else "-", *map(_brief, (
                a.users, a.scopes, a.mail, a.tools)))
            for a in found
        ),
    )  # fmt: skip
    return 0


def _brief(names: Collection[str]) -> str:
    return ", ".join(names) or "-"


def revoke(common: Common, name: str) -> int:
    with attach(common) as kernel:
        (held,) = kernel.agent_revoke(name).agents
        living = [p.pid for p in kernel.processes().processes if p.agent == name]
    if common.json:
        emit(held)
        return 0
    say(f"{safe(name)} is approved no more")
    if living:
        say(f"it still runs, with what it has left: process {', '.join(map(str, living))}")
    return 0


# -- before a run


def settled(common: Common, kernel: Client, program: str, agent: str, *, yes: bool) -> Asked | None:
    """The manifest under which ``program`` is to run, approved by now; ``None``: it has none.

    Raises where it is not approved as it stands, and nobody here can or wants to approve it.
    """
    asked = find(program, os.getcwd())
    if asked is None:
        return None
    name = asked.manifest.name
    if agent not in ("", name):
        raise Problem(
            f"EINVAL: its manifest names the agent {safe(name)!r}",
            "--agent is for programs without a manifest",
            status=2,
        )
    held = _held(kernel, name)
    if held.digest == asked.digest:
        return asked
    if not yes:
        changed = "has changed since it was approved" if held.digest else "was never approved"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Problem(
                f"EPERM: the manifest of agent {safe(name)!r} {changed}",
                f"look at it with: {suggest(common, 'agent', 'inspect', program)}; --yes approves",
                errno=Errno.EPERM.name,
            )
        for line in told(asked, held):
            note(line)
        sys.stderr.write(f"The manifest of {safe(name)} {changed}. Approve it? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Problem("EPERM: not approved", "nothing was run", errno=Errno.EPERM.name)
    kernel.agent_approve(asked.manifest, asked.cwd)
    return asked


def _held(kernel: Client, name: str) -> Installed:
    (held,) = kernel.agents(name).agents
    return held


def _found(path: str) -> Asked:
    asked = find(path, os.getcwd())
    if asked is None:
        raise Problem(
            f"ENOENT: {safe(path)} has no manifest.toml beside it of which it is the entry",
            "docs/agents.md shows how to write one; a program without one asks for nothing",
            errno=Errno.ENOENT.name,
        )
    return asked


# -- in plain words


def told(asked: Asked, held: Installed | None) -> Iterator[str]:
    """What a manifest asks for, a line a matter. ``held`` marks what is granted; ``None``: nobody
    could be asked."""
    for head, text in _matters(asked.manifest, held):
        yield f"{head:<12}{safe(text)}"
    yield f"{'manifest':<12}{safe(asked.file)}"
    if held is not None:
        same = held.digest == asked.digest
        yield f"{'approved':<12}" + (
            f"yes, {moment(held.approved_at)}" if same
            else f"no: changed since {moment(held.approved_at)}" if held.digest
            else "no"
        )  # fmt: skip


def _matters(asks: Manifest, held: Installed | None) -> Iterator[tuple[str, str]]:
    def marked(names: Collection[str], granted: Collection[str], nothing: str) -> str:
        return ", ".join(
            f"{name} (granted)" if held is not None and name in granted else name for name in names
        ) or nothing  # fmt: skip

    yield "agent", asks.name
    yield "runs", asks.entry
    users = ["everybody" if user == "*" else user for user in asks.users]
    granted = ["everybody" if user == "*" else user for user in held.users] if held else []
    yield "acts for", marked(users, granted, "whomever it is started for, and itself")
    yield "remembers", f"in {asks.scope} scope, where it names none"
    yield "publishes", marked(asks.publish, held.scopes if held else (), "nothing to other users")
    for mode, head in (("ro", "reads"), ("rw", "writes")):
        paths = [mount.path for mount in asks.mounts if mount.mode == mode]
        yield head, ", ".join([*paths, *(["its workspace"] if mode == "rw" else [])]) or "no folder"
    tools = [_rule(rule) for rule in asks.tools]
    has = [_rule(rule) for rule in asks.tools if held is not None and rule.name in held.tools]
    yield "calls", marked(tools, has, "no tools")
    mail = ["every agent" if name == "*" else name for name in asks.mail]
    sends = ["every agent" if name == "*" else name for name in held.mail] if held else []
    yield "mails", marked(mail, sends, "nobody but itself")
    yield "starts", f"at most {asks.children} processes at once" if asks.children else "no process"
    yield "uses", ", ".join(
        f"{name} up to {figure:,}" for name, figure in sorted(asks.quotas.items())
    ) or "what every agent may"  # fmt: skip
    yield "restarts", _restarts(asks)
    if asks.heartbeat:
        yield "heartbeat", f"at least every {asks.heartbeat:g} s, else it is killed"


def _rule(rule: ToolRule) -> str:
    where = [f"{name} fits {pattern}" for name, pattern in sorted(rule.arguments.items())]
    return f"{rule.name} where {' and '.join(where)}" if where else rule.name


def _restarts(asks: Manifest) -> str:
    restart = asks.restart
    if restart.policy == "never":
        return "never"
    when = "after a failure" if restart.policy == "on-failure" else "always"
    return (
        f"{when}, at most {restart.most} times within {restart.within:g} s, after a pause of "
        f"{restart.pause:g} s that doubles up to {restart.longest:g} s"
    )
