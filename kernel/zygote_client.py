"""One zygote as the kernel sees it, from its start to its end.

Used by the spawner alone. Everything runs in one trio thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import trio

from isovist.kernel import linux, zygote
from isovist.syscalls.errors import Errno, IsovistError, WorldError, error

SPAWN_SECONDS = 10.0
"""How long it may be silent while it is asked to fork; then it is stuck and is killed."""
END_SECONDS = 5.0
"""How long a zygote and what it guards may take to go."""

LOST = "the zygote ended"

_encode = msgspec.msgpack.Encoder().encode
_answers: msgspec.msgpack.Decoder[zygote.Answer] = msgspec.msgpack.Decoder(zygote.Answer)


@dataclass(eq=False)
class Agent:
    """One fork. ``known`` is set when no more will be learned of how it ended, ``gone`` (by the
    spawner) when its exit has been reported."""

    pid: int
    pidfd: int
    status: int | None = None
    reason: str = ""
    known: trio.Event = field(default_factory=trio.Event)
    gone: trio.Event = field(default_factory=trio.Event)


@dataclass(eq=False)
class Request:
    """A job on its way, and then an agent or why there is none."""

    answered: trio.Event = field(default_factory=trio.Event)
    answer: Agent | IsovistError | None = None

    def settle(self, answer: Agent | IsovistError) -> None:
        self.answer = answer
        self.answered.set()


class ZygoteClient:
    """``isolation`` and ``pidfd`` hold once :meth:`serve` has started; ``ended`` is set when
    nothing of the zygote and its agents is left."""

    def __init__(self, control: socket.socket, guard: subprocess.Popen[bytes]) -> None:
        self._control = control
        self._guard = guard
        self._sending = trio.Lock()
        self.isolation: zygote.Isolation = "process-group"
        self.enforced: dict[str, str] = {}
        self.pidfd = -1
        self.ended = trio.Event()
        self.agents: dict[int, Agent] = {}
        self.requests: dict[int, Request] = {}
        self._heard = -math.inf
        """When it last said anything (trio's clock)."""

    @classmethod
    def begin(cls, environ: Mapping[str, str], options: Sequence[str]) -> ZygoteClient:
        """Execute guard and zygote with ``options``. Not from a helper thread: they die with the
        thread that starts them. Raises :class:`OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            number = theirs.fileno()
            command = [sys.executable, "-P", "-m", zygote.__name__, str(number)]
            guard = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(number,),
                env=environ,
                cwd="/",
                start_new_session=True,
            )
            ours.setblocking(False)
            undo.pop_all()
        return cls(ours, guard)

    @property
    def alive(self) -> bool:
        """Whether it is worth asking. It may have died a moment ago all the same."""
        return self._control.fileno() >= 0

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Take in the zygote's messages until there are no more; started when it is ready."""
        try:
            while received := await self._receive():
                answer, fds = received
                if isinstance(answer, zygote.Ready):
                    self.isolation, (self.pidfd,) = answer.isolation, fds
                    self.enforced = answer.enforced
                    task_status.started()
                else:
                    self._take(answer, fds)
        finally:
            self._lose()
            with trio.CancelScope(shield=True):
                await self._bury()
            self.ended.set()

    async def ask(self, job: zygote.Job, data: bytes, fds: Sequence[int]) -> Request | None:
        """Send ``job`` (encoded: ``data``); ``None`` if the zygote is gone. When this returns
        the descriptors may be closed. Raises ``EIO`` if the zygote cannot be told."""
        async with self._sending:
            if not await self._send(data, fds):
                return None
            # No checkpoint since it was sent: its answer cannot have come yet.
            request = self.requests[job.pid] = Request()
        return request

    async def result(self, job: zygote.Job, request: Request) -> Agent:
        """The agent. Raises ``EAGAIN`` or ``EIO``. A caller who stops waiting has the agent
        killed if it comes after all."""
        asked = trio.current_time()
        try:
            while not request.answered.is_set():
                # It forks one after the other: whoever waits behind many is not stuck.
                until = max(asked, self._heard) + SPAWN_SECONDS
                if trio.current_time() >= until:
                    self.kill()
                    raise WorldError(f"the zygote has not answered for {SPAWN_SECONDS:.0f} s")
                with trio.move_on_at(until):
                    await request.answered.wait()
        finally:
            self.requests.pop(job.pid, None)
        match request.answer:
            case Agent() as agent:
                return agent
            case IsovistError() as e:
                raise e
        raise WorldError(LOST)

    def end(self) -> None:
        """Let the zygote see the end of its control socket, as if the kernel were gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the zygote; the guard sees to the rest."""
        if self.pidfd >= 0:
            linux.send_signal(self.pidfd, signal.SIGKILL)

    async def _send(self, data: bytes, fds: Sequence[int]) -> bool:
        try:
            while True:
                try:
                    linux.send_message(self._control, data, fds)
                    return True
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._control)
        except (BrokenPipeError, ConnectionResetError, trio.ClosedResourceError):
            return False
        except OSError as e:
            if not self.alive:
                return False
            raise WorldError(f"the zygote cannot be asked: {e.strerror}") from None

    async def _receive(self) -> tuple[zygote.Answer, list[int]] | None:
        while True:
            await trio.lowlevel.wait_readable(self._control)
            try:
                data, fds = linux.receive_message(self._control, zygote.MAX_JOB, 1)
            except BlockingIOError:
                continue
            except OSError:
                # Reset; or no descriptor is free for a pidfd, and an agent that we cannot hold
                # must not run. Only the end of all is sure then.
                return None
            return (_answers.decode(data), fds) if data else None

    def _take(self, answer: zygote.Forked | zygote.Refused | zygote.Ended, fds: list[int]) -> None:
        self._heard = trio.current_time()
        request = None if isinstance(answer, zygote.Ended) else self.requests.pop(answer.pid, None)
        match answer:
            case zygote.Forked(pid=pid):
                agent = Agent(pid, fds[0])
                if request is None:
                    # Whoever asked has gone away in the meantime.
                    linux.send_signal(agent.pidfd, signal.SIGKILL)
                    os.close(agent.pidfd)
                else:
                    self.agents[pid] = agent
                    request.settle(agent)
            case zygote.Refused(errno=errno, message=message):
                if request is not None:
                    request.settle(error(errno, message))
            case zygote.Ended(pid=pid, status=status):
                if (found := self.agents.get(pid)) is not None:
                    found.status = status
                    found.known.set()

    def _lose(self) -> None:
        """The zygote is gone, and with it every agent whose end is not known yet."""
        trio.lowlevel.notify_closing(self._control)
        self._control.close()
        for agent in self.agents.values():
            if not agent.known.is_set():
                agent.reason = LOST
                linux.send_signal(agent.pidfd, signal.SIGKILL)
                agent.known.set()
        for request in self.requests.values():
            request.settle(WorldError(LOST, errno=Errno.EIO))
        self.requests.clear()

    async def _bury(self) -> None:
        """Wait for the guard, which ends when nothing is left to guard."""
        pidfd = os.pidfd_open(self._guard.pid)  # not waited for yet, so the number is its own
        with trio.move_on_after(END_SECONDS) as late:
            await trio.lowlevel.wait_readable(pidfd)
        if late.cancelled_caught:
            self._guard.kill()
        os.close(pidfd)
        self._guard.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def encode(job: zygote.Job) -> bytes:
    """Raises :class:`UnicodeEncodeError` for a lone surrogate."""
    data: bytes = zygote.HEAD.pack(job.pid, job.policy is not None) + _encode(job)
    return data
