"""What an agent costs: until it runs, in memory, and five hundred of them at once.

A spawn is timed by whoever asks for it, until the new agent's first line of code has run, which is
after it was confined; its output is a pipe that the asker holds. Beside it, in turn: a fresh
interpreter that imports what every agent has imported. Memory is proportional (PSS): what
processes share is divided among them. The five hundred stay; each makes a null call and a write.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.abuse import marked, program
from bench.host import Host, scratch
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure, percentile
from isovist.syscalls.client import Client, Pending
from isovist.syscalls.messages import Spawn

IMPORTS = "import trio, msgspec, structlog"
REFERENCE = f'python -c "{IMPORTS}"'
SPAWNS, QUICK_SPAWNS = 200, 5
MANY, QUICK_MANY = 500, 10
IDLE = 50
"""Agents among which an idle one's memory is measured, before there are many."""
CALLS = 2
"""Of each agent: its ping and its write."""
OUTSTANDING = 200
SECONDS = 120.0
"""Longer than all takes: only a hang gets there."""
ROOM = 3 << 30


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--many", type=int, default=0, help=f"agents at once (default {MANY})")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    many = options.many or (QUICK_MANY if options.quick else MANY)
    spawns = QUICK_SPAWNS if options.quick else SPAWNS
    with scratch() as scratched:
        folder = Path(scratched)
        facts = machine(folder)
        script = program(folder, "idle")
        with Host(folder, embedder="hash") as host, host.connect() as operator:
            bench = _Bench(host, operator, script, progress)
            figures = [*bench.latency(spawns), *bench.memory(min(IDLE, many)), *bench.many(many)]
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "spawns": spawns,
        "agents at once": many,
        "agent": "a script; a ping, a write, then it waits",
        "embedder": "hash",
        "model": "scripted",
    }
    return Report(bench="spawn", machine=facts, config=config, figures=figures)


class _Bench:
    def __init__(self, host: Host, operator: Client, script: str, progress: Progress) -> None:
        self._host, self._operator, self._script = host, operator, script
        self._progress = progress
        self._marker = f"idle-{secrets.token_hex(4)}"
        self._number = 0

    def latency(self, spawns: int) -> list[Figure]:
        self._end(self._timed()[2])
        replied, ran, fresh = [], [], []
        for turn in range(spawns):
            self._progress("spawns", turn, spawns)
            reply, run, pid = self._timed()
            replied.append(reply)
            ran.append(run)
            self._end(pid)
            if turn % 4 == 0:
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", IMPORTS], check=True)
                fresh.append((time.perf_counter() - began) * 1e3)
        beside = (REFERENCE, percentile(fresh, 0.5))
        return [
            figure("spawn.p50", percentile(ran, 0.5), "ms", reference=beside, bar="<= 5"),
            figure("spawn.p99", percentile(ran, 0.99), "ms"),
            figure("spawn.reply.p50", percentile(replied, 0.5), "ms until the asker knows"),
        ]

    def _timed(self) -> tuple[float, float, int]:
        """Milliseconds until the reply, and until the agent's first line has run; its number."""
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            began = time.perf_counter()
            pending = self._ask((null, writer, writer))
            pid = _spawned(pending)
            replied = time.perf_counter()
            os.close(writer)
            writer = -1
            if os.read(reader, 1) != b"!":
                raise CannotRun("an agent ended before it ran")
            return (replied - began) * 1e3, (time.perf_counter() - began) * 1e3, pid
        finally:
            for fd in (reader, writer, null):
                if fd >= 0:
                    os.close(fd)

    def _ask(self, stdio: tuple[int, int, int] | None = None) -> Pending:
        self._number += 1
        arguments = (self._marker, str(self._number))
        request = Spawn(
            program=self._script,
            args=arguments,
            agent=f"idle{self._number}",
            stdio=stdio is not None,
        )
        return self._operator.submit(request, stdio)

    def _spawn(self, count: int) -> list[int]:
        """As many at once as one channel may ask for."""
        pids: list[int] = []
        while len(pids) < count:
            asked = [self._ask() for _ in range(min(OUTSTANDING, count - len(pids)))]
            pids += [_spawned(pending) for pending in asked]
        return pids

    def _end(self, pid: int) -> None:
        self._operator.kill(pid)

    # -- memory

    def memory(self, count: int) -> list[Figure]:
        """Idle agents' memory beside that of a fresh interpreter with the same imports."""
        self._progress("idle agents")
        pids = self._spawn(count)
        self._answering(pids)
        shares = [pss(pid) for pid in self._agents()]
        with subprocess.Popen(
            [sys.executable, "-c", f"{IMPORTS}, sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as fresh:
            assert fresh.stdout is not None
            fresh.stdout.readline()
            beside = (REFERENCE, pss(fresh.pid))
        for pid in pids:
            self._end(pid)
        return [
            figure("idle.memory", sum(shares) / len(shares), "MiB an agent, proportional",
                   reference=beside, bar="<= 4"),
            figure("idle.memory.most", max(shares), "MiB"),
        ]  # fmt: skip

    def many(self, count: int) -> list[Figure]:
        began = time.perf_counter()
        first = self._number + 1
        pids = self._spawn(count)
        forked = time.perf_counter() - began
        answering = self._answering(pids)
        stored = self._stored(first)
        took = time.perf_counter() - began
        self._progress("memory of all")
        family = [self._host.pid, *self._family()]
        whole = sum(pss(pid) for pid in family)
        kernel = pss(self._host.pid)
        began = time.perf_counter()
        self._operator.ping()
        alive = time.perf_counter() - began
        return [
            figure("many.answering", answering, f"of {count}, a ping and a write each",
                   bar=f"== {count}"),
            figure("many.stored", stored, "of their writes found", bar=f"== {count}"),
            figure("many.memory", whole, "MiB in all, kernel included", bar=f"<= {ROOM >> 20}"),
            figure("many.kernel", kernel, "MiB, the kernel alone"),
            figure("many.forked", forked, "s until all were forked"),
            figure("many.seconds", took, "s until all had answered"),
            figure("many.ping", alive * 1e3, "ms, a ping beside them"),
        ]  # fmt: skip

    def _stored(self, first: int) -> int:
        """How many of the writes of agents from number ``first`` on are there, when all are or
        time is up: a call counts as an agent's from when it is asked."""
        wrote = {f"I am number {n} of many." for n in range(first, self._number + 1)}
        end = time.monotonic() + SECONDS
        while True:
            lines = [json.loads(line) for line in self._operator.export()]
            stored = len(wrote & {line.get("text") for line in lines})
            if stored == len(wrote) or time.monotonic() > end:
                return stored
            time.sleep(0.1)

    def _answering(self, pids: list[int]) -> int:
        """How many of ``pids`` have had all their calls answered, when all have or time is up."""
        end = time.monotonic() + SECONDS
        while True:
            seen = {p.pid: p for p in self._operator.processes(all=True).processes}
            done = sum(seen[pid].calls >= CALLS and seen[pid].state != "exited" for pid in pids)
            if ended := [seen[pid] for pid in pids if seen[pid].state == "exited"]:
                raise CannotRun(f"{len(ended)} agents ended, one said: {ended[0]}")
            self._progress("agents that have answered", done, len(pids))
            if done == len(pids) or time.monotonic() > end:
                return done
            time.sleep(0.1)

    def _agents(self) -> list[int]:
        return [pid for pid in marked(self._marker) if pid != self._host.pid]

    def _family(self) -> list[int]:
        """All that the kernel has started: agents, zygote and guard, drivers."""
        return sorted({*self._agents(), *_children(self._host.pid)})


def _spawned(pending: Pending) -> int:
    reply = pending.result(SECONDS)
    return int(getattr(reply, "pid", 0))


def _children(ancestor: int) -> set[int]:
    parents = {}
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            _, _, rest = Path(f"/proc/{int(name)}/stat").read_bytes().rpartition(b")")
            parents[int(name)] = int(rest.split()[1])
    found, grown = {ancestor}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown, found = bool(more), found | more
    return found - {ancestor}


def pss(pid: int) -> float:
    """MiB of memory in proportion. Raises :class:`CannotRun` where it may not be looked at."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except PermissionError:
        raise CannotRun("an agent's memory is hidden from its own user: run this as root") from None
    except OSError:
        pass
    return 0.0
