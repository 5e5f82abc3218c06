"""The kernel side of a process that works for it: start, talk, notice its death.

Restarting is the caller's business: one :class:`ChildProcess` is one life of one process. Drivers,
counters and embedders are :class:`DriverProcess`; tool servers have another protocol.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import site
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec
import trio

import isovist
from isovist.kernel.drivers.protocol import (
    Fatal,
    Finished,
    FromProcess,
    Generate,
    Pause,
    RequestFailed,
    Resume,
    ToProcess,
    decode_from_process,
    frame,
)
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.framing import FrameError, Framer

READ_BYTES = 64 * 1024
OUTBOX_BYTES = 4 << 20
"""Most bytes that wait to be written to a process before :meth:`DriverProcess.send` refuses."""
STDERR_BYTES = 16 * 1024
"""Most bytes kept of what a process last wrote to its standard error (and output)."""
PATIENCE_S = 120.0
"""A driver that has work and says nothing for so long hangs: busy ones tell every second that
they live, and this is above what one step takes on a slow machine."""
GRACE_S = 1.0
"""How long a process may outlive its pipe, and a pipe its process, before it is cut off."""

_PASSING = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Reasons why a start fails now and may succeed later."""

_ENVIRONMENT = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHONHOME", "XDG_CACHE_HOME",
)  # fmt: skip
_ENVIRONMENT_PREFIXES = ("OMP_", "GOMP_", "GGML_", "LLAMA_", "CUDA_", "HIP_", "ROCR_")


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. ``status``: exit code, or minus the signal's number.

    ``fatal``: it said that it cannot work (or could not be started); another start would end
    the same way. ``stderr``: its last lines, at most 16 KiB.
    """

    status: int
    reason: str
    fatal: bool = False
    stderr: tuple[str, ...] = ()


NOTHING: Mapping[str, str] = MappingProxyType({})
To = TypeVar("To")
From = TypeVar("From")


class ChildProcess(Generic[To, From]):
    """One life of ``python -m MODULE ARGS… R W``, which is given the environment's variables in
    ``keep`` besides what every process needs. ``frame`` makes a frame of a message to it,
    ``decode`` a message of the body of a frame from it; a :class:`Fatal` is its last word. ``wrap``
    gives the command that runs another confined, ``set_`` variables of its own.

    Start :meth:`run` in a nursery, once; talk by :meth:`send`. Must be started from the kernel's
    own thread: Linux ties ``PR_SET_PDEATHSIG`` to the thread that made the process, so a worker
    thread that retires would take the process along.
    """

    def __init__(
        self,
        module: str,
        *args: str,
        frame: Callable[[To], bytes],
        decode: Callable[[bytes], From | Fatal],
        keep: Sequence[str] = (),
        wrap: Callable[[list[str]], list[str]] | None = None,
        set_: Mapping[str, str] = NOTHING,
        cwd: str | None = None,
    ) -> None:
        self.pid = 0
        """The host's number of the process; 0 before it runs."""
        self.alive = True
        """False once the process is known to be gone; :meth:`send` then raises ``EPIPE``."""
        self._command = [sys.executable, "-P", "-m", module, *args]
        self._frame, self._decode = frame, decode
        self._keep, self._set, self._wrap, self._cwd = keep, set_, wrap, cwd
        self._popen: subprocess.Popen[bytes] | None = None
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._outbox_filled = trio.Event()
        self._stderr = bytearray()
        self._fatal = ""
        self._fault = ""
        self._oom_kills = 0

    def send(self, message: To) -> None:
        """Queue a message; returns at once. What was queued for a process that dies is lost.

        Raises ``EAGAIN`` where more than 4 MiB would wait, ``EPIPE`` after the process's death,
        ``EMSGSIZE`` and ``EINVAL`` for a message that cannot be framed.
        """
        if not self.alive:
            raise WorldError("the process is gone", errno=Errno.EPIPE)
        data = self._frame(message)
        if self._outbox_bytes + len(data) > OUTBOX_BYTES:
            raise WorldError("the process does not read what it is sent", errno=Errno.EAGAIN)
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._outbox_filled.set()

    def kill(self, why: str = "") -> None:
        """End the process at once; :meth:`run` then returns its death, with ``why`` as its
        reason."""
        self._fault = self._fault or why
        if self._popen is not None and self.alive:
            self._popen.kill()

    async def run(
        self,
        receive: Callable[[From], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> Death:
        """Start the process, hand each of its messages to ``receive``, and return its death.

        Every message that the process sent whole is handed over before the death is returned.
        ``receive`` may not block; what it raises ends the process and comes out of here.
        Cancelling kills and reaps the process.
        """
        fds: list[int] = []
        try:
            for _ in range(3):
                fds += os.pipe2(os.O_CLOEXEC)
            child_in, our_out, our_in, child_out, our_err, child_err = fds
            popen, pidfd = self._start(child_in, child_out, child_err)
        except OSError as e:
            for fd in fds:
                os.close(fd)
            self.alive = False
            task_status.started()
            return Death(
                status=-1,
                reason=f"cannot be started: {e.strerror}",
                fatal=e.errno not in _PASSING,
            )
        for fd in (child_in, child_out, child_err):
            os.close(fd)
        self._popen, self.pid = popen, popen.pid
        self._oom_kills = _oom_kills()
        task_status.started()
        gone = trio.Event()
        try:
            async with (
                trio.lowlevel.FdStream(our_out) as to_process,
                trio.lowlevel.FdStream(our_in) as from_process,
                trio.lowlevel.FdStream(our_err) as errors,
                trio.open_nursery() as nursery,
            ):
                read, said = trio.Event(), trio.Event()
                nursery.start_soon(self._write, to_process)
                nursery.start_soon(self._read, from_process, receive, gone, read)
                nursery.start_soon(self._listen, errors, said)
                nursery.start_soon(self._watch)
                await trio.lowlevel.wait_readable(pidfd)
                self.alive = False
                gone.set()
                with trio.move_on_after(GRACE_S):
                    await read.wait()
                    await said.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.alive = False
            popen.kill()  # does nothing once the process has been reaped
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(pidfd)
            os.close(pidfd)
            status = popen.wait()
        return self._death(status)

    def _heard(self, message: From) -> None:
        """It has said something."""

    async def _watch(self) -> None:
        """What is done beside talking, for as long as it lives."""

    def _start(
        self, read_fd: int, write_fd: int, stderr: int
    ) -> tuple[subprocess.Popen[bytes], int]:
        """The process and its pidfd; both or, with :class:`OSError`, neither."""
        command = [*self._command, str(read_fd), str(write_fd)]
        popen = subprocess.Popen(
            command if self._wrap is None else self._wrap(command),
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            pass_fds=(read_fd, write_fd),
            env={**_environment(self._keep), **self._set},
            cwd=self._cwd,
            start_new_session=True,  # Ctrl-C in a terminal is the kernel's to handle
        )
        try:
            return popen, os.pidfd_open(popen.pid)
        except OSError:
            popen.kill()
            popen.wait()
            raise

    async def _write(self, stream: trio.lowlevel.FdStream) -> None:
        while True:
            while self._outbox:
                data = self._outbox.popleft()
                self._outbox_bytes -= len(data)
                try:
                    await stream.send_all(data)
                except trio.BrokenResourceError:
                    return  # its death will tell
            self._outbox_filled = trio.Event()
            await self._outbox_filled.wait()

    async def _read(
        self,
        stream: trio.lowlevel.FdStream,
        receive: Callable[[From], None],
        gone: trio.Event,
        done: trio.Event,
    ) -> None:
        framer = Framer()
        try:
            while data := await stream.receive_some(READ_BYTES):
                for _, body in framer.feed(data):
                    message = self._decode(body)
                    if isinstance(message, Fatal):
                        self._fatal = message.message
                        continue
                    self._heard(message)
                    receive(message)
        except (FrameError, msgspec.DecodeError) as e:
            self._fault = f"sent what is no message: {e}"
            self.kill()
        done.set()
        # A closed pipe is not yet a death, and a process without its pipe is of no use.
        with trio.move_on_after(GRACE_S):
            await gone.wait()
        self.kill()

    async def _listen(self, stream: trio.lowlevel.FdStream, done: trio.Event) -> None:
        while data := await stream.receive_some(READ_BYTES):
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]
        done.set()

    def _death(self, status: int) -> Death:
        lines = tuple(self._stderr.decode(errors="replace").splitlines())
        if self._fatal:
            reason = self._fatal
        elif self._fault:
            reason = self._fault
        elif status == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            reason = "killed by SIGKILL, for want of memory: the system has just ended processes"
        elif status < 0:
            reason = f"killed by {_signal_name(-status)}"
        else:
            reason = f"exited with status {status}"
        return Death(status=status, reason=reason, fatal=bool(self._fatal), stderr=lines)


class DriverProcess(ChildProcess[ToProcess, FromProcess]):
    """One life of ``python -m isovist.kernel.drivers.MODULE ARGS… R W``. It is killed where it has
    requests to work on and says nothing for ``patience_s`` seconds."""

    def __init__(
        self,
        module: str,
        *args: str,
        keep: Sequence[str] = (),
        patience_s: float = math.inf,
    ) -> None:
        module = f"isovist.kernel.drivers.{module}"
        super().__init__(module, *args, frame=frame, decode=decode_from_process, keep=keep)
        self._patience_s = patience_s
        self._patience = trio.CancelScope()
        self._working: set[int] = set()
        self._paused: set[int] = set()

    def send(self, message: ToProcess) -> None:
        super().send(message)
        match message:
            case Generate():
                self._working.add(message.key)
            case Pause() if message.key in self._working:
                self._working.remove(message.key)
                self._paused.add(message.key)
            case Resume() if message.key in self._paused:
                self._paused.remove(message.key)
                self._working.add(message.key)
            case _:
                return
        # Only what sets it to work starts the clock, and only where it does not tick yet.
        if not self._working or self._patience.deadline == math.inf:
            self._have_patience()

    def _heard(self, message: FromProcess) -> None:
        if isinstance(message, Finished | RequestFailed):
            self._working.discard(message.key)
            self._paused.discard(message.key)
        self._have_patience()

    def _have_patience(self) -> None:
        """It has just given a sign of life, or got work or lost it."""
        if self._popen is None:
            return  # the clock starts with the process
        at = trio.current_time() + self._patience_s if self._working else math.inf
        self._patience.deadline = at

    async def _watch(self) -> None:
        self._have_patience()
        with self._patience:
            await trio.sleep_forever()
        self.kill(f"hangs: it has work and said nothing for {self._patience_s:g} s")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_kills() -> int:
    """How many processes the system has killed for want of memory since it started."""
    try:
        with open("/proc/vmstat") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, ValueError):
        return 0


def _environment(keep: Sequence[str] = ()) -> dict[str, str]:
    """What a process needs to run, and nothing that it has no business to know."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT or name in keep or name.startswith(_ENVIRONMENT_PREFIXES)
    }
    # A second linear algebra thread would spin on the core that the kernel needs.
    environment["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS", "1")
    # Threads of one matrix product wait for each other, in a loop at first and then asleep. A long
    # loop wastes the core that a neighbour's work would let the other thread have, to sleep at once
    # costs a wake-up each time. Measured, tokens of prompts a second beside an idle core and a
    # busy one: asleep at once 307, 203; 20,000 turns (about a millisecond) 382, 172; 100,000 turns
    # 396, 140.
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "20000")
    # On an assert llama.cpp would attach a debugger to itself, where one is installed.
    environment["GGML_NO_BACKTRACE"] = "1"
    # The process runs the code that the kernel runs, wherever that was imported from; what is
    # installed is found without help.
    installed = {os.path.realpath(path) for path in site.getsitepackages()}
    roots = [os.path.dirname(os.path.abspath(path)) for path in isovist.__path__]
    if extra := [root for root in roots if os.path.realpath(root) not in installed]:
        environment["PYTHONPATH"] = os.pathsep.join(extra)
    return environment
