"""A kernel in a process of its own, for benches: started, asked, and ended from outside.

The kernel is the real one over a fresh store, with its door open. Lanes that are handed to it it
takes for the channels of agents, as it takes those of the agents that it spawns.

``python -m bench.host SPEC`` is the process; it speaks lines of JSON on its standard streams
(commands in, one answer each out) and ends when its input does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import trio

from bench import ROOT
from bench.lanes import Lane, LanePairs, environment
from bench.report import CannotRun, Progress
from isovist.kernel import log
from isovist.kernel.channels import Pipes
from isovist.kernel.config import Config, Settings, default_models
from isovist.kernel.kernel import Kernel
from isovist.kernel.learning.pipeline import Roles
from isovist.kernel.learning.rules import RuleSplitter, RuleWriter
from isovist.kernel.models import installed
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.lessons import Attempt, Streams
from isovist.syscalls.client import Client, connect

LAG_PERIOD = 0.002
"""Seconds that the task which measures loop lag sleeps each time."""
END_SECONDS = 20.0


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told when it starts. ``lanes`` are (agent, read fd, write fd).
    ``models``: the folder of models, the user's own where it is empty; ``weights`` of agents.
    Without ``split`` all that a splitter finds goes to one writer, as reusable, and unscanned."""

    state: str
    model: str
    embedder: str
    models: str = ""
    scheduler: str = ""
    weights: dict[str, float] = {}
    learn: Learning = Learning()
    split: bool = True
    lanes: tuple[tuple[str, int, int], ...] = ()


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """``pin`` the loop's thread to ``core``, start or stop the ``lag`` task, ``statistics``, or
    ``embed off``: from now on no new unit is given to the embedder."""

    do: str
    core: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``lag``: milliseconds by which each wake-up came late."""

    statistics: dict[str, int] = {}
    lag: list[float] = []


class Host:
    """A context: a running kernel over a store in ``folder``."""

    def __init__(
        self,
        folder: Path,
        *,
        model: str = "scripted",
        embedder: str = "universal",
        agents: Sequence[str] = (),
        models: Path | None = None,
        scheduler: str = "",
        weights: dict[str, float] | None = None,
        learn: Learning | None = None,
        split: bool = True,
    ) -> None:
        check_model(model, models)
        self.folder = folder
        self._log = folder / "kernel.log"
        self._pairs = LanePairs(agents)
        spec = Spec(
            state=str(folder),
            model=model,
            embedder=embedder,
            models=str(models or ""),
            scheduler=scheduler,
            weights=weights or {},
            learn=learn or Learning(),
            split=split,
            lanes=tuple(self._pairs.theirs),
        )
        with open(self._log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.host", msgspec.json.encode(spec).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=self._pairs.fds(),
                cwd=ROOT,
                env=environment(),
            )
        self._pairs.hand_over()

    @property
    def lanes(self) -> list[Lane]:
        return self._pairs.ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Host:
        try:
            self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def connect(self, agent: str = "", user: str | None = None) -> Client:
        """A client of the operator's, acting as ``agent``."""
        return connect(agent or None, user, socket=self.folder / "socket")

    def ask(self, command: Command) -> Answer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CannotRun(self._epitaph()) from None
        return self._answer()

    def settle(self, progress: Progress) -> None:
        """Return when both legs hold all that has been written."""
        most = 0
        while waiting := self.ask(Command(do="statistics")).statistics["embeddings_waiting"]:
            most = max(most, waiting)
            progress("units embedded", most - waiting, most)
            time.sleep(0.1)

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise CannotRun(self._epitaph())
        return msgspec.json.decode(line, type=Answer)

    def _epitaph(self) -> str:
        last = self._log.read_text(errors="replace").strip().splitlines()[-12:]
        return "the kernel ended; it last said:\n" + "\n".join(last)

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._pairs.close()


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for one run's store, on the disk of ``$TMPDIR``."""
    return tempfile.TemporaryDirectory(prefix="isovist-bench-")


def check_model(name: str, folder: Path | None = None) -> None:
    """Raise :class:`CannotRun` where there is no such model, or its file has gone."""
    for spec in installed(folder):
        if spec.name == name and (not spec.path or Path(spec.path).is_file()):
            return
    raise CannotRun(
        f"no model {name!r} is installed; `isovist model add {name}` gets it, "
        "`--model scripted` runs without one"
    )


# -- the process


async def _serve(spec: Spec) -> None:
    state = Path(spec.state)
    settings = Settings(
        model=spec.model,
        embedder=spec.embedder,
        weights={"agent": spec.weights},
        learn=spec.learn,
    )
    if spec.scheduler:
        settings = msgspec.structs.replace(settings, scheduler=spec.scheduler)
    models = Path(spec.models) if spec.models else default_models()
    kernel = Kernel(
        Config(name="bench", state=state, runtime=state, models=models, settings=settings),
        roles=None if spec.split else _UNSPLIT,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run)
        for agent, reader, writer in spec.lanes:
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
            kernel.attach(Pipes(reader, writer), agent)
        _say(Answer())
        await _obey(kernel, nursery)
        kernel.stop()


class _Unsplit:
    """Without the split there is one stream."""

    async def split(self, attempt: Attempt) -> Streams:
        found = await RuleSplitter().split(attempt)
        together = "\n".join(filter(None, (found.reusable, found.protected)))
        return msgspec.structs.replace(found, reusable=together, protected="")


_UNSPLIT = Roles(
    splitter=lambda _: _Unsplit(), writer=lambda _: RuleWriter(), by="rules", trusting=True
)


async def _obey(kernel: Kernel, nursery: trio.Nursery) -> None:
    lag: list[float] = []
    measuring = trio.CancelScope()
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                command = msgspec.json.decode(line, type=Command)
                answer = Answer()
                if command.do == "pin":
                    os.sched_setaffinity(0, {command.core})
                elif command.do == "statistics":
                    answer = Answer(statistics=kernel.statistics())
                elif command.do == "embed off":
                    setattr(kernel.embedding, "submit", lambda *_: None)  # noqa: B010 # a bench's
                elif command.do == "lag on":
                    lag, measuring = [], trio.CancelScope()
                    nursery.start_soon(_measure, lag, measuring)
                elif command.do == "lag off":
                    measuring.cancel()
                    answer = Answer(lag=lag)
                _say(answer)
    measuring.cancel()


async def _measure(lag: list[float], scope: trio.CancelScope) -> None:
    """How late is a task of this loop that wants to run now?"""
    with scope:
        while True:
            due = trio.current_time() + LAG_PERIOD
            await trio.sleep_until(due)
            lag.append((trio.current_time() - due) * 1e3)


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main(spec: str) -> int:
    log.configure(sys.stderr)
    trio.run(_serve, msgspec.json.decode(spec, type=Spec))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
