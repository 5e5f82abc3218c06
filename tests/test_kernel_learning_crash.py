"""``kill -9`` in each step of learning: the next kernel goes on, and each submission ends once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kernel_helpers import short_folder

import isovist
from isovist.syscalls.client import Client, connect
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.records import Message, Submission

SECONDS = 60
"""Far more than a start takes: only a hang gets there."""
RUNNER = """
import os, signal, sys
from pathlib import Path
import trio
from isovist.kernel.config import load
from isovist.kernel.kernel import Kernel
from isovist.kernel.learning.pipeline import Roles
from isovist.kernel.log import configure
from isovist.kernel.state.lessons import Operation, Streams
from isovist.storage.store import Store
from isovist.syscalls.operations import Put

configure(sys.stderr)
state, step = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(name, call, after=False, when=lambda *args: True):
    # Die at the call'th time that a method of the store is used.
    method, count = getattr(Store, name), [0]
    def used(self, *args):
        if not when(*args):
            return method(self, *args)
        count[0] += 1
        if count[0] == call and not after:
            die()
        result = method(self, *args)
        if count[0] == call:
            die()
        return result
    setattr(Store, name, used)

def learns(ops):
    return any(isinstance(op, Put) and op.learned is not None for op in ops)

class Splits:
    async def split(self, attempt):
        if step == "splitting":
            die()
        return Streams(reusable="r", protected="p", by="test")

class Writes:
    async def write(self, brief):
        if step == "writing " + brief.stream:
            die()
        scope = {"reusable": "global", "protected": "user"}[brief.stream]
        return tuple(
            Operation(situation="any", lesson=f"{brief.text} {n}", scope=scope) for n in range(3)
        )

match step.split():
    case [("before" | "after") as when, "filing"]:
        dying("submit", 1, when == "after")
    case [("before" | "after") as when, "streams"]:
        dying("save_step", 1, when == "after")
    case [("before" | "after") as when, "plan"]:
        dying("save_step", 2, when == "after")
    case [("before" | "after") as when, "entries"]:
        dying("commit", 1, when == "after", learns)
    case [("before" | "after") as when, "end"]:
        dying("conclude", 1, when == "after")
    case _:
        assert step in ("none", "splitting", "writing reusable", "writing protected")

async def main():
    roles = Roles(splitter=lambda _: Splits(), writer=lambda _: Writes(), by="test")
    async with trio.open_nursery() as nursery:
        await nursery.start(Kernel(load("", Path(state)), roles=roles).run)
        print("ready", flush=True)

trio.run(main)
"""
STEPS = (
    "before filing", "after filing", "splitting", "before streams", "after streams",
    "writing reusable", "writing protected", "before plan", "after plan", "before entries",
    "after entries", "before end", "after end",
)  # fmt: skip


class Host:
    """Kernels over one store, each of which dies in the step that it is told."""

    def __init__(self, state: Path) -> None:
        self.state = state
        config = state / "isovist" / "config.toml"
        config.parent.mkdir()
        config.write_text(f'embedder = "hash"\nmodels = "{state}"\n')

    @contextmanager
    def kernel(self, step: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(self.state), step],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "XDG_CONFIG_HOME": str(self.state),
                "PYTHONPATH": os.pathsep.join(os.path.dirname(p) for p in isovist.__path__),
            },
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.wait(SECONDS)
            process.stdout.close()

    def attach(self) -> Client:
        return connect("coder", "ana", socket=self.state / "socket")


def ended(k: Client) -> tuple[Submission, ...]:
    """All submissions, when nothing waits any more."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = k.learn_status()
        if not found.waiting:
            return found.submissions
        time.sleep(0.02)
    raise AssertionError("a submission never ends")


@pytest.mark.promise("write.durable", "kernel.survives")
def test_each_submission_ends_once_whenever_its_kernel_is_killed() -> None:
    with short_folder() as folder:
        host = Host(Path(folder))
        for number, step in enumerate(STEPS):
            with host.kernel(step) as process, host.attach() as k:
                with suppress(IsovistError):
                    k.learn_submit(
                        "convert", [Message("user", "now")], outcome="failed", key=f"key {number}"
                    )
                process.wait(SECONDS)
                assert process.returncode == -signal.SIGKILL, step
            with host.kernel("none") as process, host.attach() as k:
                # Whoever heard nothing asks again under the same key.
                k.learn_submit(
                    "convert", [Message("user", "now")], outcome="failed", key=f"key {number}"
                )
                submissions = ended(k)
                assert [s.state for s in submissions] == ["done"] * (number + 1), step
                assert len({s.id for s in submissions}) == number + 1
                entries = k.learn_list().entries
                # The same six lessons each time, and one origin more.
                assert sorted(e.lesson for e in entries) == [
                    "p 0", "p 1", "p 2", "r 0", "r 1", "r 2"
                ], step  # fmt: skip
                assert {len(e.origins) for e in entries} == {number + 1}, step
                process.terminate()
                process.wait(SECONDS)
