"""``run``, ``ps``, ``kill`` and ``grant``."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import brief, emit, note, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.client import Client
    from isovist.syscalls.records import Process


def run(
    common: Common, program: str, args: tuple[str, ...], *, user: str, agent: str, fresh: bool
) -> int:
    """Start an agent, lend it this terminal, and end as it ends.

    Its standard error comes through the kernel, which keeps the last of it. With ``--json`` its
    standard output goes to our standard error, since ours holds the record of its exit.
    """
    with attach(common) as kernel:
        pid = kernel.spawn(
            program,
            args=args,
            agent=agent,
            user=user or None,
            fresh=fresh,
            cwd=os.getcwd(),
            stdio=(0, 2, 2) if common.json else (0, 1, 2),
        ).pid
        process = _follow(kernel, pid)
    if process.reason:
        note(f"isovist: process {pid} ended: {safe(process.reason)}")
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


def ps(common: Common, *, all: bool) -> int:
    with attach(common) as kernel:
        found = kernel.processes(all).processes
    if common.json:
        emit(found)
        return 0
    if not found:
        say("no processes" if all else "no running processes (-a shows the ended ones)")
        return 0
    heads = [">PID", "AGENT", "USER", "STATE", ">CALLS", "PROGRAM"]
    rows = [[p.pid, p.agent, p.user or "-", _state(p), p.calls, p.program] for p in found]
    if any(last := [_last_words(p) for p in found]):
        heads.append("LAST WORDS")
        rows = [[*row, words] for row, words in zip(rows, last, strict=True)]
    table(heads, rows)
    return 0


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


def kill(common: Common, pid: int) -> int:
    with attach(common) as kernel:
        process = kernel.kill(pid).process
    if common.json:
        emit(process)
    else:
        say(f"process {process.pid} ({safe(process.agent)}) is gone: {_state(process)}")
    return 0


def grant(
    common: Common, agent: str, users: tuple[str, ...], scopes: tuple[str, ...], *, revoke: bool
) -> int:
    if not (users or scopes):
        raise Problem(
            "grant needs a user or a scope",
            "isovist grant AGENT --user USER --scope user|agent|global|@GROUP",
            status=2,
        )
    for scope in scopes:
        if scope not in ("user", "agent", "global") and not scope.startswith("@"):
            raise Problem(
                f"--scope: {safe(scope)!r} is no scope",
                "isovist grant --help shows which there are",
                status=2,
            )
    with attach(common) as kernel:
        kernel.grant(agent, users, scopes, revoke)
        held = _rights(kernel, common, agent)
    if common.json:
        emit({"agent": agent, **held})
    else:
        say(f"{safe(agent)} may act for: {', '.join(held['users']) or 'nobody else'}")
        say(f"{safe(agent)} may publish to: {', '.join(held['scopes'])}")
    return 0


def _rights(kernel: Client, common: Common, agent: str) -> dict[str, tuple[str, ...]]:
    """What ``agent`` holds now, asked as that agent."""
    with attach(common, agent) as same:
        identity = same.whoami()
    return {"users": identity.users, "scopes": identity.scopes}
