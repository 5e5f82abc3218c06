"""The process that agents are forked from.

``python -m isovist.kernel.zygote FD [group] [confined] [cgroup=FOLDER…] [cover=FOLDER…]``

Two processes, so that nothing outlives the kernel, not even after ``kill -9`` of it::

    kernel ── guard ── zygote (process 1 of a PID namespace) ── agents ── their children …
                                         each confined agent: process 1 of one below that

``pid-namespace``: the guard dies with the kernel and the zygote with the guard (death signals);
Linux then kills whatever is left in the namespace, daemons included. ``process-group``: where
the host forbids namespaces, the guard takes in all orphans, and when the zygote or the kernel
is gone it kills child after child until it has none.

With ``confined`` an agent whose job has a policy is confined (:mod:`isovist.kernel.confinement`)
before any of its own code runs.

The zygote has imported what agents need and does nothing but fork. It is single-threaded, runs
no event loop, holds no secret (the spawner hands it a filtered environment), and ends when its
control socket does. As the parent of all orphans it reaps them. The control socket is
SEQPACKET: one message a datagram, descriptors beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import pkgutil
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from isovist.kernel import linux, programs
from isovist.kernel.confinement import cgroups, policy, report
from isovist.kernel.confinement.apply import Fence, bound_tasks
from isovist.kernel.confinement.cover import Cover
from isovist.kernel.confinement.policy import Policy
from isovist.syscalls.errors import Errno

Isolation = Literal["pid-namespace", "process-group"]

MAX_JOB = 128 * 1024
"""Bytes in one job: the arguments and environment of one agent."""

GROUPLESS = 3
"""Exit status of a zygote that cannot be where its agents' resources are bounded."""
AGENT_FDS = (3, 4)
"""Where an agent finds its channel: it reads replies on the first, writes requests on the second.
Beside these and 0, 1, 2 it has no descriptor."""


HEAD = struct.Struct("=Q?")
"""Before the encoded job: its ``pid``, and whether it has a policy. It is all that the zygote
reads: what an agent is told must not lie in the memory that later agents are copies of."""


class Job(msgspec.Struct, frozen=True, tag=True):
    """Fork an agent. With it come the agent's ends of its channel (read, write) and of its
    standard error and, with ``stdio``, its standard input and output (else ``/dev/null``).

    ``pid`` is the kernel's own number, ``env`` is added to the zygote's environment, ``fresh``
    executes a new interpreter after the fork. With a ``policy`` it is confined, and works in the
    folder ``home``; without, in its program's.
    """

    pid: int
    program: programs.Resolved
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    fresh: bool = False
    stdio: bool = False
    policy: Policy | None = None
    home: str = ""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """First message; with it comes the zygote's pidfd. ``enforced``: what a policy's agents are
    held by (:mod:`isovist.kernel.confinement.report`)."""

    isolation: Isolation
    enforced: dict[str, str] = {}


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The agent runs; with this comes its pidfd."""

    pid: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """There is no such process."""

    pid: int
    errno: int
    message: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """``status``: exit code, or minus the number of the signal that killed it."""

    pid: int
    status: int


Answer = Ready | Forked | Refused | Ended

_encode = msgspec.msgpack.Encoder().encode
_jobs = msgspec.msgpack.Decoder(Job)


class Zygote:
    """Serves one control socket. With a ``namespace``, agents with a policy get their own."""

    def __init__(self, control: socket.socket, namespace: linux.Namespace | None) -> None:
        self._control = control
        self._namespace = namespace
        self._agents: dict[int, int] = {}  # our number of each living agent -> the kernel's

    def serve(self, isolation: Isolation, enforced: dict[str, str]) -> tuple[Job, list[int]] | None:
        """Fork an agent for each job. Returns ``None`` when the kernel is gone; returns in
        **each forked child** too, with its job and descriptors."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the pipe is written
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._send(Ready(isolation, enforced), os.pidfd_open(os.getpid()))
        message = bytearray(MAX_JOB)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 512)
                    self._reap()
                    continue
                length, fds = linux.receive_into(self._control, message, 8)
                if not length:
                    return None
                if self._fork(*HEAD.unpack_from(message)):
                    return _jobs.decode(memoryview(message)[HEAD.size : length]), fds
                message[:length] = bytes(length)
                for fd in fds:
                    os.close(fd)

    def _fork(self, pid: int, confined: bool) -> bool:
        """True in the child."""
        if (threads := linux.thread_count()) != 1:
            # Another thread may hold a lock that nobody in the child would ever release.
            self._send(Refused(pid, Errno.EKERNEL, f"the zygote has {threads} threads"))
            return False
        own = self._namespace if confined else None
        why: str | None = ""
        try:
            if own is not None:
                own.leave()
            number = os.fork()
        except OSError as e:
            number, why = -1, e.strerror
        if number == 0:
            return True
        if own is not None:
            # Where there is no way back the zygote ends: each later fork would fail.
            own.back()
        if number < 0:
            self._send(Refused(pid, Errno.EAGAIN, f"fork: {why}"))
            return False
        self._agents[number] = pid
        # Only _reap() waits for children, so the number is still this child's.
        self._send(Forked(pid), os.pidfd_open(number))
        return False

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                pid = self._agents.pop(found.si_pid, None)
                if pid is not None:
                    # Not yet waited for, so the number is still that of its process group.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(found.si_pid, signal.SIGKILL)
                _, status = os.waitpid(found.si_pid, 0)
                if pid is not None:
                    self._send(Ended(pid, self._ending(status)))

    def _ending(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        # Process 1 of a namespace cannot die by SIGTERM, and says that it would have.
        return -signal.SIGTERM if self._namespace and code == programs.TERMINATED else code

    def _send(self, answer: Answer, fd: int | None = None) -> None:
        """Blocks while the kernel is slow. If it is gone, so are we."""
        try:
            linux.send_message(self._control, _encode(answer), [] if fd is None else [fd])
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        finally:
            if fd is not None:
                os.close(fd)


def become(
    job: Job, fds: list[int], isolation: Isolation, fence: Fence | None, cover: Cover | None
) -> None:
    """In the child: take the descriptors that come with ``job``, drop all else of the zygote, and
    be confined where the job says so."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    programs.mind_termination()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # A session of its own: no terminal's signals, and a group to end what it leaves behind.
    os.setsid()
    if isolation == "process-group":
        linux.set_death_signal(signal.SIGKILL)
    reads, writes, stderr, *stdio = fds
    if not job.stdio:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stdio = [null, null]
    wanted = [*stdio, stderr, reads, writes]
    # First above all targets, then down: a target may be another's present place.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, len(wanted)) for fd in wanted]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=target < 3 or job.fresh)
    if fence is not None and job.policy is not None:
        bound_tasks(job.policy.tasks)
        if cover is not None:
            cover.reveal((*job.policy.read, *job.policy.write, *job.policy.run))
    os.chdir(job.home or job.program.cwd)
    if fence is not None and job.policy is not None:
        fence.files(job.policy, replace=job.fresh)
    os.closerange(len(wanted), os.sysconf("SC_OPEN_MAX"))
    os.environ.update(job.env)
    os.environ[programs.CHANNEL] = ",".join(map(str, AGENT_FDS))
    if fence is not None and job.policy is not None:
        fence.rest(job.policy, replace=job.fresh)
        if job.fresh and job.policy.processes == 0:
            os.environ[programs.SEALED] = "1"
    if job.fresh:
        program = job.program
        runner = ["-P", "-m", programs.__name__, program.kind, program.target, program.cwd]
        os.execv(sys.executable, [sys.executable, *runner, *job.args])
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]  # a text stream here


def preload() -> None:
    """Import what agents import (trio and msgspec come with it), and put it out of the
    collector's reach, so that the pages stay shared after a fork. No more than that: each
    megabyte costs every fork. A module that fails here fails again, visibly, in its agent."""
    for name in ("isovist.syscalls", "isovist.agents"):
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, name + "."):
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def guard(zygote: int, isolation: Isolation) -> NoReturn:
    """Stand between kernel and zygote until one of them is gone, then leave nothing behind."""
    if isolation == "pid-namespace":
        linux.set_death_signal(signal.SIGKILL)
    else:
        signal.signal(signal.SIGTERM, lambda *_: _sweep())
        linux.set_death_signal(signal.SIGTERM)
    while os.wait()[0] != zygote:
        pass  # an orphan
    _sweep()


def _sweep() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    linux.kill_children()
    os._exit(0)


def isolate(allowed: bool) -> Isolation:
    """Arrange that the next child holds all of its descendants; says how."""
    if allowed:
        with contextlib.suppress(OSError):
            linux.unshare_pids()
            return "pid-namespace"
    linux.set_subreaper()
    return "process-group"


def main(argv: Sequence[str]) -> None:
    # An error below here is ours, and the kernel's log has it; one in a child is the agent's.
    control = socket.socket(fileno=int(argv[0]))
    confined = "confined" in argv[1:]
    for option in argv[1:]:
        if option.startswith("cgroup="):
            try:
                cgroups.join(option.removeprefix("cgroup="))
            except OSError:
                sys.exit(GROUPLESS)  # the kernel stops, and has removed it; else it tries anew
    isolation = isolate(allowed="group" not in argv[1:])
    if (child := os.fork()) != 0:
        control.close()
        guard(child, isolation)
    linux.set_death_signal(signal.SIGKILL)
    preload()
    fence = Fence(policy.shared(), policy.executables()) if confined else None
    namespace = linux.Namespace() if confined and isolation == "pid-namespace" else None
    cover: Cover | None = None
    if namespace is not None:
        with contextlib.suppress(OSError):
            cover = Cover([o.removeprefix("cover=") for o in argv[1:] if o.startswith("cover=")])
    enforced = report.survey(fence, namespace, cover) if fence is not None else {}
    forked = Zygote(control, namespace).serve(isolation, enforced)
    if forked is None:
        os._exit(0)
    control.detach()  # the child closes it by number
    job, fds = forked
    try:
        become(job, fds, isolation, fence, cover)
    except OSError as e:
        print(f"{job.program.target} could not be started: {e}", file=sys.stderr)
        sys.exit(programs.UNLOADABLE)
    programs.run(job.program, job.args)


if __name__ == "__main__":
    main(sys.argv[1:])
