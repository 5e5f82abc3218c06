"""``pause``, ``continue``, ``terminate``, ``priority``, ``distrust``, and the tree of ``ps``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import emit, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.records import Process


def pause(common: Common, pid: int, *, on: bool) -> int:
    with attach(common) as kernel:
        process = (kernel.pause(pid) if on else kernel.resume(pid)).process
    if common.json:
        emit(process)
    else:
        say(f"process {pid} ({safe(process.agent)}) is {process.state}")
    return 0


def priority(common: Common, pid: int, level: int | None, nice: int | None) -> int:
    if level is None and nice is None:
        raise Problem("priority needs a level or --nice", "isovist priority PID 5", status=2)
    with attach(common) as kernel:
        process = kernel.priority(pid, level, nice).process
    if common.json:
        emit(process)
    else:
        say(f"process {pid} ({safe(process.agent)}): level {process.priority}, nice {process.nice}")
    return 0


def distrust(common: Common, agent: str, *, undo: bool) -> int:
    with attach(common) as kernel:
        reply = kernel.distrust(agent, undo)
    if common.json:
        emit(reply)
        return 0
    if not agent:
        say("distrusted: " + (", ".join(map(safe, reply.agents)) or "nobody"))
        return 0
    word = "brought back" if undo else "hidden"
    say(f"{len(reply.units)} units of {safe(agent)} were {word}")
    if reply.units or reply.kept:
        rows = [(u.id, u.user or "-", u.scope, word) for u in reply.units]
        rows += [(u.id, u.user or "-", u.scope, "stays where it is") for u in reply.kept]
        table(("ID", "USER", "SCOPE", "NOW"), rows)
    return 0


def in_tree(found: Sequence[Process]) -> Iterator[tuple[Process, str]]:
    """Each process below the one that spawned it, with the lines that lead to its name."""
    pids = {process.pid for process in found}
    below: dict[int, list[Process]] = {}
    for process in found:
        below.setdefault(process.parent if process.parent in pids else 0, []).append(process)

    def walk(parent: int, lead: str) -> Iterator[tuple[Process, str]]:
        children = below.get(parent, [])
        for at, process in enumerate(children):
            last = at == len(children) - 1
            yield process, lead + ("" if not parent else "└─ " if last else "├─ ")
            deeper = lead + ("" if not parent else "   " if last else "│  ")
            yield from walk(process.pid, deeper)

    return walk(0, "")
