"""Whether agents that keep no rules harm those that do, and whether anything outlives the kernel.

*Abuse*: ten abusers and two floods, real agents of one real kernel, all at once; a good agent calls
the kernel without pause, first alone, then beside them for as long as the last abuser lives, then
alone again. *Kill*: fifty agents, each with a child, a grandchild and a daemon where it may fork;
the kernel is killed, and whatever carries their mark is looked for in ``/proc``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

from bench.abusers import ABUSERS, FLOODS
from bench.host import Host, scratch
from bench.lanes import Lane
from bench.load import Sample, drive, greet
from bench.machine import machine
from bench.report import Figure, Progress, Report, figure
from isovist.syscalls.client import Client
from isovist.syscalls.messages import Ping
from isovist.syscalls.records import Process

CALLS = 4000
"""Calls of a round of the good agent."""
LONGEST = 60.0
"""Seconds that an abuser may live; a frame may stay incomplete for 30."""
HERD, QUICK_HERD = 50, 5
GONE_SECONDS = 2.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=("abuse", "kill"), default=("abuse", "kill"))


def run(options: argparse.Namespace, progress: Progress) -> Report:
    figures: list[Figure] = []
    with scratch() as folder:
        facts = machine(Path(folder))
        if "abuse" in options.parts:
            figures += _abuse(Path(folder) / "a", options.quick, progress)
        if "kill" in options.parts:
            figures += _kill(Path(folder) / "k", options.quick, progress)
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "abusers": ", ".join(ABUSERS),
        "floods": ", ".join(FLOODS),
        "good agent": "a channel held by this process, one call outstanding at any time",
        "model": "scripted",
        "embedder": "hash",
    }
    return Report(bench="abuse", machine=facts, config=config, figures=figures)


def program(folder: Path, module: str) -> str:
    """A script that runs ``main`` of a module here, in a folder of its own beside a copy of what
    it needs: an agent sees its program's folder, not ours."""
    package = folder / module / "bench"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    source = Path(__file__).with_name(f"{module}.py")
    (package / source.name).write_text(source.read_text())
    script = folder / module / "agent.py"
    script.write_text(f"import sys\nfrom bench.{module} import main\nmain(*sys.argv[1:])\n")
    return str(script)


# -- abuse


def _abuse(folder: Path, quick: bool, progress: Progress) -> list[Figure]:
    folder.mkdir()
    script = program(folder, "abusers")
    calls = CALLS // 10 if quick else CALLS
    # Those that stall a frame are let live for half a minute.
    names = [name for name in ABUSERS if not quick or "incomplete" not in ABUSERS[name][1]]
    with (
        Host(folder, embedder="hash", agents=["good"]) as host,
        host.connect() as operator,
    ):
        (good,) = host.lanes
        greet([good])
        _warm(operator, good, script)
        alone = _round(good, calls)
        before = _memory(host.pid)
        progress("abusers")
        pids = {name: operator.spawn(script, args=(name,), agent=name).pid for name in names}
        floods = {name: operator.spawn(script, args=(name,), agent=name).pid for name in FLOODS}
        beside, left = Sample(), set(names)
        end = time.monotonic() + LONGEST
        ended: dict[str, Process] = {}
        while left and time.monotonic() < end:
            beside.add(_round(good, calls))
            listed = {p.pid: p for p in operator.processes(all=True).processes}
            ended |= {n: listed[pids[n]] for n in left if listed[pids[n]].state == "exited"}
            left -= set(ended)
            progress("abusers ended", len(ended), len(names))
        flooding = sum(
            p.state == "running" for p in operator.processes(all=True).processes
            if p.pid in floods.values()
        )  # fmt: skip
        grown = _memory(host.pid) - before
        for pid in floods.values():
            operator.kill(pid)
        alone.add(_round(good, calls))
    reasoned = [n for n in names if n in ended and ABUSERS[n][1] in ended[n].reason]
    figures = [
        figure("good.p99", beside.p99, "µs", reference=("alone", alone.p99), bar="ratio <= 3"),
        figure("good.p50", beside.p50, "µs", reference=("alone", alone.p50)),
        figure("good.rate", beside.rate, "calls/s", reference=("alone", alone.rate)),
        figure("kernel.growth", grown / (1 << 20), "MiB at most", bar="<= 16"),
        figure("abusers.ended", len(reasoned), f"of {len(names)} with their reason",
               bar=f"== {len(names)}"),
        figure("floods.lived", flooding, f"of {len(FLOODS)}: they keep the rules"),
    ]  # fmt: skip
    for name in names:
        said = ended[name].reason if name in ended else "NOT ENDED"
        figures.append(figure(f"abuser.{name}", float(name in ended), f"ended: {said[:90]}"))
    return figures


def _warm(operator: Client, good: Lane, script: str) -> None:
    """All that a kernel starts when first asked for: the model, the embedder, the zygote."""
    operator.chat("Are you there?")
    operator.remember("The bench begins.")
    operator.wait(operator.spawn(script, args=("garbage",), agent="first").pid)
    drive([good], lambda _: Ping(), 500)


def _round(good: Lane, calls: int) -> Sample:
    return drive([good], lambda _: Ping(), calls)


def _memory(pid: int) -> int:
    """The most that was resident, in bytes, since the last look."""
    peak = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            peak = int(line.split()[1]) * 1024
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak


# -- kill


def _kill(folder: Path, quick: bool, progress: Progress) -> list[Figure]:
    folder.mkdir()
    script = program(folder, "herd")
    count = QUICK_HERD if quick else HERD
    marker = f"herd-{secrets.token_hex(4)}"
    os.environ[(variable := "LC_ISOVIST_HERD")] = marker
    try:
        host = Host(folder, embedder="hash")
    finally:
        del os.environ[variable]
    with host:
        with host.connect() as operator:
            progress("agents with families")
            for number in range(count):
                operator.spawn(script, args=(marker,), agent=f"head{number}")
            # Each says so when its family stands.
            end = time.monotonic() + LONGEST
            while _standing(operator) < count and time.monotonic() < end:
                time.sleep(0.05)
        # The host itself carries the mark in its environment: the kernel is not counted.
        alive = [pid for pid in marked(marker) if pid != host.pid]
        progress("kill")
        os.kill(host.pid, signal.SIGKILL)
        began = time.monotonic()
        left = alive
        while left and time.monotonic() - began < GONE_SECONDS:
            left = [pid for pid in marked(marker) if pid != host.pid]
        took = time.monotonic() - began
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [
        figure("kill.agents", count, "agents"),
        figure("kill.processes", len(alive), "processes of theirs", bar=f">= {count}"),
        figure("kill.survivors", len(left), f"after {GONE_SECONDS:.0f} s", bar="== 0"),
        figure("kill.seconds", took, "s until none was left"),
    ]


def _standing(operator: Client) -> int:
    return sum(p.calls >= 2 for p in operator.processes().processes)


def marked(marker: str) -> list[int]:
    """Processes that live and hold ``marker`` in name, command line or environment."""
    found, wanted = [], marker.encode()
    for pid in os.listdir("/proc"):
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            if state not in (b"Z", b"X") and any(
                wanted in Path(f"/proc/{pid}/{kind}").read_bytes()
                for kind in ("comm", "cmdline", "environ")
            ):
                found.append(int(pid))
    return found
