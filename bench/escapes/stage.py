"""``python -m bench.escapes.stage SPEC``: all attempts against one world, as this very user.

Prints a line of JSON an attempt. ``bench.escape`` starts it, as root and as an ordinary user.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.escapes.agent import BEGUN, REPORT, TARGET
from bench.escapes.base import Attempt, every
from bench.escapes.world import World, survivors
from bench.report import CannotRun
from isovist.syscalls import messages as m
from isovist.syscalls.client import connect
from isovist.syscalls.errors import IsovistError

ATTEMPT_SECONDS = 60.0
STARVED_MS = 1000.0
"""Half of a good agent's calls taking longer than this is starving."""
GROWTH = 64 << 20
"""Bytes that the kernel may grow by one attempt: what floods cost it is bounded."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """``folder`` is empty and this user's. ``names``: which attempts; none: all."""

    folder: str
    confined: bool
    names: tuple[str, ...] = ()
    setuid: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """``gained`` is empty where it was stopped, and ``stopped`` says by what."""

    topic: str
    name: str
    gained: str = ""
    stopped: str = ""


class Bystander(threading.Thread):
    """A good agent that asks the kernel for nothing, again and again; and a process of the same
    user that needs a pipe of the usual size."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._over = threading.Event()
        self.waits: list[float] = []
        self.narrow = 0

    def run(self) -> None:
        import fcntl

        with (
            suppress(IsovistError, OSError),
            connect("good", socket=self._world.state / "socket") as k,
        ):
            while not self._over.wait(0.02):
                began = time.monotonic()
                k.ping()
                self.waits.append((time.monotonic() - began) * 1e3)
                with suppress(OSError):
                    reader, writer = os.pipe()
                    if fcntl.fcntl(writer, 1032) < 65536:  # F_GETPIPE_SZ
                        self.narrow += 1
                    os.close(reader)
                    os.close(writer)

    def end(self) -> str:
        """What it suffered; empty: nothing."""
        self._over.set()
        self.join(10)
        if len(self.waits) >= 5 and sorted(self.waits)[len(self.waits) // 2] > STARVED_MS:
            return f"others waited {sorted(self.waits)[len(self.waits) // 2]:.0f} ms"
        if self.narrow > 2:
            return "others' pipes were made narrow"
        return ""


def attack(world: World, attempt: Attempt) -> Result:
    nonce = f"esc-{secrets.token_hex(5)}"
    before, memory = world.scene(), rss(world.kernel.pid)
    bystander = Bystander(world)
    bystander.start()
    said, reason = _run(world, attempt, nonce)
    suffered = bystander.end()
    left = survivors(nonce)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gained, stopped = said.get("gained", ""), said.get("stopped", "") or reason
    grown = rss(world.kernel.pid) - memory
    # Whoever says that something was done may be right: servers and signals take a moment.
    harm = world.harm(before, nonce, patience=1.0 if gained and not attempt.word else 0.0)
    if not harm and left:
        harm = f"{len(left)} processes outlived it"
    if not harm and grown > GROWTH:
        harm = f"the kernel grew by {grown >> 20} MiB"
    harm = harm or suffered
    place = world.secret_in(gained)
    if place:
        gained = f"the secret of {place}"
    elif harm:
        gained = harm
    elif gained and attempt.word:
        gained = gained[:120]
    else:
        stopped = stopped or (
            f"it gained nothing: {gained[:100]}" if gained else "nothing was gained"
        )
        gained = ""
    return Result(
        topic=attempt.topic, name=attempt.name, gained=gained, stopped="" if gained else stopped
    )


def _run(world: World, attempt: Attempt, nonce: str) -> tuple[dict[str, str], str]:
    """What the attacker reports, and how it ended."""
    # Not among its arguments: a long request would overwrite what a short one left in memory.
    (world.program / TARGET).write_text(json.dumps(msgspec.to_builtins(world.target(nonce))))
    script = world.program / "hostile.py"
    try:
        spawned = world.client.spawn(
            str(script),
            args=(attempt.topic, attempt.name),
            agent="hostile",
            cwd=world.cwd(script),
        )
        pending = world.client.submit(m.WaitPid(pid=spawned.pid))
        try:
            ended = pending.result(ATTEMPT_SECONDS)
        except IsovistError:
            ended = world.client.kill(spawned.pid)
    except (IsovistError, OSError) as e:
        if world.kernel.poll() is None:
            raise CannotRun(f"{attempt.name}: the attacker was not started: {e}") from e
        return {}, "the kernel ended"
    assert isinstance(ended, m.Exited)
    process = ended.process
    if BEGUN not in process.stderr and "flood" not in attempt.name:
        raise CannotRun(f"{attempt.name}: the attacker ended before it began: {process.stderr}")
    for line in reversed(process.stderr):
        if line.startswith(REPORT):
            return json.loads(line[len(REPORT) :]), ""
    how = process.reason or f"status {process.status}"
    if process.status is not None and process.status < 0:
        how = f"{signal.Signals(-process.status).name}, {how}"
    last = process.stderr[-1] if process.stderr else ""
    return {}, f"ended by {how} {last[:120]}"


def rss(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def main(text: str) -> int:
    spec = msgspec.json.decode(text, type=Spec)
    attempts = every()
    os.umask(0o077)
    try:
        world = World(Path(spec.folder), spec.confined, spec.setuid)
    except CannotRun as e:
        print(e, file=sys.stderr)
        return 1
    try:
        for name in spec.names or attempts:
            result = attack(world, attempts[name])
            sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
            sys.stdout.buffer.flush()
    except CannotRun as e:
        print(e, file=sys.stderr)
        return 1
    finally:
        world.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
