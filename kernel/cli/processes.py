"""``run``, ``ps``, ``kill`` and ``grant``."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.manifests import settled
from isovist.kernel.cli.show import brief, emit, note, safe, say, table
from isovist.kernel.cli.supervise import in_tree
from isovist.kernel.cli.tools import rule

if TYPE_CHECKING:
    from isovist.syscalls.client import Client
    from isovist.syscalls.records import Process


def run(
    common: Common,
    program: str,
    args: tuple[str, ...],
    *,
    user: str,
    agent: str,
    fresh: bool,
    lineage: str,
    yes: bool,
) -> int:
    """Start an agent, lend it this terminal, and end as it ends.

    Its standard error comes through the kernel, which keeps the last of it. With ``--json`` its
    standard output goes to our standard error, since ours holds the record of its exit. Whom the
    kernel starts anew is followed: only its standard error still comes here.
    """
    with attach(common) as kernel:
        asked = settled(common, kernel, program, agent, yes=yes)
        pid = kernel.spawn(
            asked.manifest.entry if asked else program,
            args=args,
            agent=asked.manifest.name if asked else agent,
            user=user or None,
            fresh=fresh,
            cwd=asked.cwd if asked else os.getcwd(),
            stdio=(0, 2, 2) if common.json else (0, 1, 2),
            manifest=asked.digest if asked else "",
            lineage=lineage,
        ).pid
        process = _follow(kernel, pid)
        while process.next:
            note(f"isovist: process {process.pid} ended ({_state(process)}); "
                 f"it goes on as process {process.next}")  # fmt: skip
            process = _follow(kernel, process.next)
    if process.reason:
        note(f"isovist: process {process.pid} ended: {safe(process.reason)}")
    if common.json:
        emit(process)
    return exit_code(process.status)


def exit_code(status: int | None) -> int:
    """A process's status as a shell writes it: 128 + n for signal n; 1 where nobody knows it."""
    if status is None:
        return 1
    return status if status >= 0 else 128 - status


def _follow(kernel: Client, pid: int) -> Process:
    """Pass on what ``pid`` writes to its standard error until it is gone.

    The first Ctrl-C (or SIGTERM, or a closed terminal) kills it, the second leaves it alone.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        stream = kernel.follow(pid)
        for text in stream:
            sys.stderr.write(text)
            sys.stderr.flush()
        return stream.reply.process
    except KeyboardInterrupt:
        with suppress(OSError):
            note("")
        return kernel.kill(pid).process


def ps(common: Common, *, all: bool, tree: bool) -> int:
    with attach(common) as kernel:
        found = kernel.processes(all, usage=tree).processes
    if common.json:
        emit(found)
        return 0
    if not found:
        say("no processes" if all else "no running processes (-a shows the ended ones)")
        return 0
    heads = [">PID", "AGENT", "USER", "STATE", ">CALLS", "PROGRAM"]
    shown = list(in_tree(found)) if tree else [(p, "") for p in found]
    rows = [
        [p.pid, lead + p.agent, p.user or "-", _state(p), p.calls, p.program] for p, lead in shown
    ]
    if tree:
        heads[5:5] = [">CHILDREN", ">RESTARTS", ">LEVEL", ">CPU", ">MEMORY"]
        rows = [[*row[:5], p.children, p.restarts, p.priority, *_usage(p), row[5]]
                for row, (p, _) in zip(rows, shown, strict=True)]  # fmt: skip
    if any(last := [_last_words(p) for p, _ in shown]):
        heads.append("LAST WORDS")
        rows = [[*row, words] for row, words in zip(rows, last, strict=True)]
    table(heads, rows)
    return 0


def _usage(process: Process) -> tuple[str, str]:
    """Processor and memory, as ``top`` and ``ps --tree`` show them."""
    if process.seconds is None or process.memory is None:
        return "-", "-"
    return f"{process.seconds:.1f} s", f"{process.memory / 2**20:.1f} MiB"


def _state(process: Process) -> str:
    if process.state != "exited":
        return process.state
    status = process.status or 0
    with suppress(ValueError):
        return f"exited {signal.Signals(-status).name}" if status < 0 else f"exited {status}"
    return f"exited {status}"


def _last_words(process: Process) -> str:
    """Why it ended, or else the end of what it wrote."""
    last = next((line for line in reversed(process.stderr) if line.strip()), "")
    return brief(process.reason or (last if process.state == "exited" else ""))


def kill(common: Common, pid: int, *, grace: float, tree: bool) -> int:
    with attach(common) as kernel:
        reply = kernel.kill(pid, grace_ms=round(grace * 1000), tree=tree)
    process = reply.process
    if common.json:
        emit(reply if tree else process)
        return 0
    say(f"process {process.pid} ({safe(process.agent)}) is gone: {_state(process)}")
    others = [other for other in reply.ended if other != process.pid]
    if others:
        say(f"with it ended: {', '.join(map(str, others))}")
    if reply.left:
        say(f"left running: {', '.join(map(str, reply.left))} (--tree ends them too)")
    return 0


def grant(
    common: Common,
    agent: str,
    users: tuple[str, ...],
    scopes: tuple[str, ...],
    mail: tuple[str, ...],
    tools: tuple[str, ...],
    *,
    revoke: bool,
) -> int:
    if not (users or scopes or mail or tools):
        raise Problem(
            "grant needs a user, a scope, an agent to write to, or a tool",
            "isovist grant AGENT --user USER --scope user|agent|global|@GROUP --tool SERVER.TOOL",
            status=2,
        )
    rules = tuple(rule(text) for text in tools)
    for scope in scopes:
        if scope not in ("user", "agent", "global") and not scope.startswith("@"):
            raise Problem(
                f"--scope: {safe(scope)!r} is no scope",
                "isovist grant --help shows which there are",
                status=2,
            )
    with attach(common) as kernel:
        kernel.grant(agent, users, scopes, revoke, mail=mail, tools=rules)
        held = _rights(kernel, common, agent)
    if common.json:
        emit({"agent": agent, **held})
    else:
        say(f"{safe(agent)} may act for: {', '.join(held['users']) or 'nobody else'}")
        say(f"{safe(agent)} may publish to: {', '.join(held['scopes'])}")
        for text in () if revoke else tools:
            say(f"{safe(agent)} may call: {safe(text)}")
    return 0


def _rights(kernel: Client, common: Common, agent: str) -> dict[str, tuple[str, ...]]:
    """What ``agent`` holds now, asked as that agent."""
    with attach(common, agent) as same:
        identity = same.whoami()
    return {"users": identity.users, "scopes": identity.scopes}
