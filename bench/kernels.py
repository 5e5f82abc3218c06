"""Kernels that can be killed, one after the other over one store.

``python -m bench.kernels STATE EMBEDDER MODEL`` is the process that they are forked from: imports
take longer than a kernel takes to start. What each runs is what ``isovist up`` runs, with limits so
low that it commits its shared index, builds graphs and scrubs within moments.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import msgspec

from bench import ROOT
from bench.lanes import environment
from bench.report import CannotRun
from isovist.storage.indexed import Tuning
from isovist.syscalls.client import Client, connect
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.file_operations import Bounds

SECONDS = 60
"""Far more than an answer takes: only a hang gets there."""
TUNING = Tuning(crossover=64, delta=24, narrow=64, room=1 << 20)
BOUNDS = Bounds(versions=6)
QUIET_S, LONGEST_S = 0.05, 0.2
"""Seconds after which the store is scrubbed; see :mod:`isovist.kernel.forgetting`."""


class Kernels:
    """A context: kernels over the store in ``state``, one after the other."""

    def __init__(self, state: Path, embedder: str = "hash", model: str = "scripted") -> None:
        self.state = state
        self.pid = 0
        self._log = open(state / "stderr", "ab")  # noqa: SIM115 # closed at exit
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "bench.kernels", str(state), embedder, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**environment(), "XDG_CONFIG_HOME": str(state)},
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self._said = b""

    def begin(self) -> None:
        """Start one, and wait for nothing."""
        self._stdin.write(b"start\n")
        self._stdin.flush()
        word, number = self._line().split()
        assert word == "forked"
        self.pid = int(number)

    def start(self) -> None:
        """Start one, and wait until it serves."""
        self.begin()
        word, *_ = self._line().split()
        if word != "ready":
            self.pid = 0
            raise CannotRun(f"the kernel does not start; it last said:\n{self.log()}")

    def kill(self) -> None:
        """Kill it, in the midst of its start or later, and wait until it has gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0
        while self._line().split()[0] != "gone":
            pass

    def log(self) -> str:
        said = (self.state / "stderr").read_text(errors="replace").splitlines()
        return "\n".join(said[-12:])

    def attach(self, agent: str = "", user: str | None = None) -> Client:
        return connect(agent or None, user, socket=self.state / "socket")

    def _line(self) -> str:
        while b"\n" not in self._said:
            ready = select.select([self._stdout], [], [], SECONDS)[0]
            data = os.read(self._stdout.fileno(), 4096) if ready else b""
            if not data:
                raise CannotRun(f"the kernel says nothing; it last said:\n{self.log()}")
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._stdin.close()
        self._popen.wait(SECONDS)
        self._stdout.close()
        self._log.close()


# -- the process that kernels are forked from


def main(state: str, embedder: str, model: str) -> int:
    from isovist.kernel import config, kernel
    from isovist.kernel.cli import serve

    loaded = config.load("", Path(state))
    settings = msgspec.structs.replace(
        loaded.settings, embedder=embedder, model=model, files=BOUNDS
    )
    loaded = msgspec.structs.replace(loaded, settings=settings)
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            with (
                mock.patch.object(kernel, "_tuning", return_value=TUNING),
                mock.patch("isovist.kernel.forgetting.QUIET_S", QUIET_S),
                mock.patch("isovist.kernel.forgetting.LONGEST_S", LONGEST_S),
            ):
                try:
                    serve.serve(loaded, "info", lambda: print("ready", os.getpid(), flush=True))
                except IsovistError as e:
                    print(e, file=sys.stderr, flush=True)
            os._exit(0)
        print("forked", pid, flush=True)
        print("gone", os.waitpid(pid, 0)[1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
