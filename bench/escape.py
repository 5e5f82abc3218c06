"""Whether a hostile agent gets out: a few hundred ways are tried, with confinement and without.

A real kernel in a folder of its own spawns the attacker afresh for each attempt. The attacker is
told where everything is, which it could hardly know. Secrets are planted in the store, in the
kernel's files, memory and environment, with another agent, in a process outside and in what the
system shares between processes of a user; what an attempt gained is read off these, off what has
changed outside, who has died, which server was reached, who still lives when the agent has gone,
and how long others waited. Some prove themselves (a descriptor that is held).

The second run has no confinement at all, not even the namespace of process numbers. What does not
succeed there either is what this machine, or the kernel's own judgement, forbids anyway; it is
listed and not counted as *real*. Started as root, all is done as root and as an ordinary user.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench import ROOT
from bench.escapes.base import every
from bench.escapes.stage import Result, Spec
from bench.host import scratch
from bench.lanes import environment
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure

ORDINARY = 64_321
"""An ordinary user's number, with no name and no files."""
REAL = 60
QUICK = (
    "read store by path", "read by a symbolic link", "read the environment of the kernel",
    "process_vm_readv of the decoy", "kill a process outside", "signal by the owner of a pipe",
    "reach a TCP server on this machine", "open a TCP socket", "unshare a mount namespace",
    "set up an io_uring", "read by an interrupt of 32 bits", "read a message queue outside",
    "run a shell", "write to another's workspace", "chmod outside", "outlive its end as a daemon",
    "open 60,000 descriptors", "read another user's unit",
)  # fmt: skip
LAYERS = {
    "EPERM": "filter of system calls, or a capability that it lacks",
    "ENOSYS": "filter of system calls",
    "EACCES": "Landlock, or the file's mode",
    "EXDEV": "Landlock",
    "ESRCH": "namespace of process numbers",
    "ENOENT": "not in its view",
    "ENOTDIR": "not in its view",
    "EMFILE": "limit of descriptors",
    "ENOMEM": "limit of memory",
    "EFBIG": "limit of a file's size",
    "EAGAIN": "limit of processes",
    "EDQUOT": "quota",
    "ENOSPC": "quota",
}
"""What answers with such a number, where the host alone would have let it pass."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as", dest="users", nargs="+", choices=("root", "user"), help="default: both that can be"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of attempts, default: all")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    root = os.geteuid() == 0
    users = options.users or (["root", "user"] if root else ["user"])
    if "root" in users and not root:
        raise CannotRun("only root can attack as root; --as user runs as whoever you are")
    names = tuple(options.only or (QUICK if options.quick else every()))
    if unknown := set(names) - set(every()):
        raise CannotRun(f"no such attempt: {', '.join(sorted(unknown))}")
    enough = REAL if not (options.only or options.quick) else len(names) // 2
    figures: list[Figure] = []
    outcomes: dict[str, tuple[list[Result], list[Result]]] = {}
    with scratch() as folder:
        facts = machine(Path(folder))
        Path(folder).chmod(0o711)
        for user in users:
            outcomes[user] = (
                list(_stage(Path(folder), user, True, names, progress)),
                list(_stage(Path(folder), user, False, names, progress)),
            )
    for user, (confined, loose) in outcomes.items():
        real = {r.name for r in loose if r.gained}
        out = [r for r in confined if r.gained]
        figures += [
            figure(f"{user}.tried", len(confined), "ways out"),
            figure(f"{user}.real", len(real), "succeed without confinement", bar=f">= {enough}"),
            figure(f"{user}.out", len(out), "succeed with it", bar="== 0"),
        ]
    figures += _listed(names, outcomes)
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "users": ", ".join(users),
        "ordinary user": ORDINARY if root else os.geteuid(),
        "agent": "spawned afresh for each attempt; told where everything is",
        "without confinement": "settings off, and no namespace of process numbers",
    }  # fmt: skip
    return Report(bench="escape", machine=facts, config=config, figures=figures)


def _listed(
    names: tuple[str, ...], outcomes: dict[str, tuple[list[Result], list[Result]]]
) -> Iterator[Figure]:
    """A row an attempt: as how many users it succeeded, and what stopped it or what it gained."""
    for name in names:
        said, out, loose = [], 0, 0
        for user, runs in outcomes.items():
            confined, without = (next(r for r in results if r.name == name) for results in runs)
            out += bool(confined.gained)
            loose += bool(without.gained)
            said.append(f"{user}: {_told(confined, real=bool(without.gained))}")
        yield figure(
            f"{every()[name].topic}: {name}",
            out,
            "; ".join(said),
            reference=("without confinement", loose),
            bar="== 0",
        )


def _told(result: Result, *, real: bool) -> str:
    if result.gained:
        return f"GOT {result.gained[:100]}"
    first = "ENOSYS" if "SIGSYS" in result.stopped else result.stopped.partition(" ")[0]
    layer = LAYERS.get(first, "")
    if layer and real:
        return f"{result.stopped} ({layer})"
    return result.stopped[:100] + ("" if real else " (without confinement too)")


def _stage(
    folder: Path, user: str, confined: bool, names: tuple[str, ...], progress: Progress
) -> Iterator[Result]:
    """One run over all attempts, in a process of that user."""
    place = folder / f"{user[0]}{'c' if confined else 'o'}"
    place.mkdir()
    lowered = user == "user" and os.geteuid() == 0
    command = [sys.executable, "-m", "bench.escapes.stage"]
    setuid = ""
    if lowered:
        os.chown(place, ORDINARY, ORDINARY)
        setuid = _setuid(folder)
        command = [sys.executable, "-m", "bench.escapes.lower", str(ORDINARY), *command]
    spec = Spec(folder=str(place), confined=confined, names=names, setuid=setuid)
    process = subprocess.Popen(
        [*command, msgspec.json.encode(spec).decode()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(place), "HOME": str(place)},
    )
    assert process.stdout is not None
    stage = f"as {user}, {'confined' if confined else 'without confinement'}"
    with process.stdout as lines:
        for done, line in enumerate(lines, 1):
            progress(stage, done, len(names))
            yield msgspec.json.decode(line, type=Result)
    if process.wait():
        raise CannotRun(f"{stage}: the attempts broke off, see above")


def _setuid(folder: Path) -> str:
    """A program that root owns and that runs with root's rights: it tells its user's number."""
    path = folder / "number"
    if not path.exists():
        shutil.copy("/usr/bin/id", path)
        path.chmod(0o4755)
    return str(path)
