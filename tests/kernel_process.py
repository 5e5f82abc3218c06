"""A kernel as a process of its own, that can be killed and measured."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import isovist
from isovist.syscalls.client import Client, connect

SECONDS = 60
"""Far more than a start takes: only a hang gets there."""

RUNNER = """
import os, sys
from pathlib import Path
import trio
from isovist.kernel import channels
from isovist.kernel.config import load
from isovist.kernel.kernel import Kernel
from isovist.kernel.log import configure

configure(sys.stderr)
for setting in sys.argv[2:]:
    name, value = setting.split("=")
    assert hasattr(channels, name)
    setattr(channels, name, int(value))

async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(Kernel(load("", Path(sys.argv[1]))).run)
        print("ready", os.getpid(), flush=True)

# One line asks for one kernel, the next one when it is gone: imports take longer than a kernel
# takes to start.
for _ in sys.stdin:
    pid = os.fork()
    if not pid:
        trio.run(main)
        os._exit(0)
    print("gone", os.waitpid(pid, 0)[1], flush=True)
"""


class KernelProcess:
    """Kernels over the store in ``state``, one after the other; config and log are there too.

    ``limits`` are constants of ``kernel.channels`` (nanoseconds, bytes) to be set before they
    run. As a context manager it starts one, and kills the last one at the end of the block.
    """

    def __init__(self, state: Path, **limits: int) -> None:
        self.state = state
        self.pid = 0
        config = state / "isovist" / "config.toml"
        config.parent.mkdir(exist_ok=True, parents=True)
        config.write_text(f'embedder = "hash"\nmodels = "{state}"\n')
        self._log = open(state / "stderr", "ab")  # noqa: SIM115 # closed at exit
        settings = [f"{name}={value}" for name, value in limits.items()]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(state), *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                "XDG_CONFIG_HOME": str(state),
                "PYTHONPATH": os.pathsep.join(os.path.dirname(p) for p in isovist.__path__),
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self._said = b""

    @property
    def log(self) -> str:
        return (self.state / "stderr").read_text()

    def start(self) -> None:
        """Start a kernel and wait until it serves."""
        self._stdin.write(b"start\n")
        self._stdin.flush()
        word, number = self._line().split()
        assert word == "ready", self.log
        self.pid = int(number)

    def _line(self) -> str:
        """The runner's next line."""
        while b"\n" not in self._said:
            assert select.select([self._stdout], [], [], SECONDS)[0], self.log
            self._said += (data := os.read(self._stdout.fileno(), 4096))
            assert data, self.log
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def kill(self) -> None:
        """``kill -9`` of the kernel; returns when it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0
        assert self._line() == f"gone {int(signal.SIGKILL)}"

    def attach(self, agent: str = "", user: str | None = None) -> Client:
        return connect(agent or None, user, socket=self.state / "socket")

    def memory(self, field: str) -> int:
        """Bytes of a field of ``/proc/PID/status``: ``VmRSS`` now, ``VmHWM`` at most so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(field)

    def __enter__(self) -> KernelProcess:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._stdin.close()
        self._popen.wait(SECONDS)
        self._stdout.close()
        self._log.close()
