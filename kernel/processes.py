"""Agents' processes as the shell sees them: started, listened to, ended, and told of."""

from __future__ import annotations

import codecs
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from isovist.kernel.channels import PROCESS_GONE, Channel, Pipes
from isovist.kernel.confinement import policy
from isovist.kernel.log import where
from isovist.kernel.spawner import Child, Confinement, Exit, Spawner
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls.errors import Errno, IsovistError, KernelError

log = structlog.get_logger()

if TYPE_CHECKING:
    from isovist.kernel.config import Config
    from isovist.kernel.kernel import Kernel

STDERR = 16 * 1024
"""Bytes of standard error that are read at a time."""


class Processes:
    """Invariant: a pid is in ``_children``, ``_channels`` and ``_decoders`` from its ``Attached``
    to its ``Exited``."""

    def __init__(self, kernel: Kernel, nursery: trio.Nursery) -> None:
        self.spawner = Spawner(nursery, self._gone, confinement=_confinement(kernel.config))
        self._kernel = kernel
        self._nursery = nursery
        self._children: dict[int, Child] = {}
        self._channels: dict[int, Channel] = {}
        self._reasons: dict[int, str] = {}
        self._awaited: dict[int, bool] = {}
        """Those whose task has not begun, and whether each was to be killed in the meantime."""
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}

    def begin(self, i: ins.StartProcess) -> None:
        # Now, since the channel's next request may bring others.
        handed = self._kernel.hub.channel(i.stdio_of) if i.stdio_of else None
        stdio = handed.transport.take_descriptors() if handed is not None else ()
        self._awaited[i.pid] = False
        self._nursery.start_soon(self._start, i, stdio)

    async def _start(self, i: ins.StartProcess, stdio: tuple[int, ...]) -> None:
        killed = self._awaited.pop(i.pid)
        try:
            if i.stdio_of and len(stdio) != 3:
                raise IsovistError(
                    "three descriptors must come with the request",
                    errno=Errno.EINVAL,
                    field="stdio",
                )
            child = await self.spawner.spawn(
                i.pid,
                i.program,
                i.args,
                cwd=i.cwd,
                fresh=i.fresh,
                stdio=(stdio[0], stdio[1], stdio[2]) if stdio else None,
                agent=i.agent,
                mounts=[(path, "rw" if mode == "rw" else "ro") for path, mode in i.mounts],
                memory=i.quotas.get("memory", policy.MEMORY),
                by=i.by,
            )
        except Exception as failed:
            e = failed
            if not isinstance(e, IsovistError):
                # A bug ends the spawn that met it, never the kernel.
                log.error("broken rule", rule="a spawn fails by typed errors only", why=where(e))
                e = KernelError(f"the spawn broke: {type(e).__name__}")
            self._kernel.dispatch(
                ev.SpawnFailed(
                    now=self._kernel.now(),
                    pid=i.pid,
                    errno=int(e.errno),
                    message=e.message,
                    field=e.field or "program",
                )
            )
            return
        finally:
            for fd in stdio:
                os.close(fd)
        self._children[i.pid] = child
        self._decoders[i.pid] = codecs.getincrementaldecoder("utf-8")("replace")
        self._listen(child)
        pipes = Pipes(child.read_fd, child.write_fd)
        # The pipes are the channel's from here on.
        child.read_fd = child.write_fd = -1
        self._channels[i.pid] = self._kernel.attach(pipes, i.agent, pid=i.pid)
        self._kernel.dispatch(ev.Spawned(now=self._kernel.now(), pid=i.pid))
        if killed:
            self.spawner.kill(i.pid)

    def _listen(self, child: Child) -> None:
        """Take what the process writes to its standard error as fast as who follows it reads."""

        def ready() -> None:
            for follower in self._kernel.state.processes.followers(child.pid):
                if self._kernel.hub.hold(follower, partial(self._listen, child)):
                    self._kernel.hub.unwatch(child.stderr_fd)
                    return
            self._read_stderr(child)

        if child.stderr_fd >= 0:
            self._kernel.hub.watch(child.stderr_fd, ready)

    def _read_stderr(self, child: Child) -> bool:
        """Take what the process wrote to its standard error; false at its end."""
        if child.stderr_fd < 0:
            return False
        try:
            data = os.read(child.stderr_fd, STDERR)
        except BlockingIOError:
            return False
        if not data:
            self._kernel.hub.unwatch(child.stderr_fd)
            os.close(child.stderr_fd)
            child.stderr_fd = -1
        text = self._decoders[child.pid].decode(data, final=not data)
        if text:
            self._kernel.dispatch(ev.Stderr(now=self._kernel.now(), pid=child.pid, text=text))
        return bool(data)

    def kill(self, pid: int, why: str) -> None:
        self._reasons.setdefault(pid, why)
        if pid in self._awaited:
            self._awaited[pid] = True
        self.spawner.kill(pid)

    def signal(self, i: ins.SignalProcess) -> None:
        """Stop, continue or ask to end; one that is stopped is not blamed for what it leaves
        unread."""
        channel = self._channels.get(i.pid)
        if channel is not None and i.what != "terminate":
            self._kernel.hub.pause(channel, i.what == "stop")
        if i.what == "stop":
            self.spawner.send(i.pid, signal.SIGSTOP)
        elif i.what == "continue":
            self.spawner.send(i.pid, signal.SIGCONT)
        else:
            if channel is not None:
                self._kernel.hub.pause(channel, False)
            self.spawner.send(i.pid, signal.SIGTERM)
            self.spawner.send(i.pid, signal.SIGCONT)

    def gauge(self, i: ins.GaugeProcesses) -> None:
        usage = {pid: found for pid in self._children if (found := self.spawner.usage(pid))}
        self._kernel.dispatch(ev.ProcessesGauged(now=self._kernel.now(), key=i.key, usage=usage))

    async def stop(self, generations: list[list[int]], grace: float) -> tuple[int, int]:
        """End all agents, children before those that spawned them: SIGTERM, then after ``grace``
        seconds SIGKILL. Says how many ended by themselves, and how many were killed."""
        asked = killed = 0
        for pids in generations:
            ends = [pid for pid in pids if pid in self._children]
            for pid in ends:
                self.signal(ins.SignalProcess(pid, "terminate"))
            with trio.move_on_after(grace):
                for pid in ends:
                    await self.spawner.gone(pid)
            left = [pid for pid in ends if pid in self._children]
            for pid in left:
                self.kill(pid, "the kernel stops")
            asked, killed = asked + len(ends) - len(left), killed + len(left)
        return asked, killed

    def _gone(self, gone: Exit) -> None:
        """First what it still said, then its end."""
        channel = self._channels.pop(gone.pid, None)
        child = self._children.pop(gone.pid)
        if channel is not None:
            self._kernel.hub.drain(channel, self._kernel.now())
            self._kernel.hub.end(channel, PROCESS_GONE)
        for _ in range(64):
            if not self._read_stderr(child):
                break
        if child.stderr_fd >= 0:
            self._kernel.hub.unwatch(child.stderr_fd)
        child.close()
        del self._decoders[gone.pid]
        self._kernel.dispatch(
            ev.Exited(
                now=self._kernel.now(),
                pid=gone.pid,
                status=-1 if gone.status is None else gone.status,
                reason=self._reasons.pop(gone.pid, gone.reason),
            )
        )


def _confinement(config: Config) -> Confinement | None:
    """How agents are confined by ``config``; ``None``: not at all. Raises ``EINVAL`` where agents
    could read one of the kernel's folders all the same."""
    if config.settings.confinement == "off":
        return None
    policy.check_private(config.private)
    return Confinement(config.workspaces, config.private, config.settings.processes)
