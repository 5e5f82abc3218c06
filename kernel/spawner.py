"""The kernel's side of processes: asks the zygote for agents and learns of their ends.

An agent is dead when its pidfd says so, never because a pipe of its closed. How it died comes
from the zygote, which is its parent; where that word does not come in time the status is
``None``. When a zygote dies all of its agents die, and the next spawn starts a new zygote.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from isovist.kernel import linux, programs, zygote
from isovist.kernel.confinement import cgroups, policy, workspace
from isovist.kernel.environment import inherited
from isovist.kernel.zygote_client import END_SECONDS, Agent, ZygoteClient, encode
from isovist.syscalls.errors import CallerError, Errno, WorldError

START_SECONDS = 30.0
"""How long a new zygote may take until it is ready."""
STATUS_SECONDS = 1.0
"""How long after a death the zygote's word on it is waited for."""

RESERVE = 128
"""Descriptors that no spawn may use up: without any, the kernel could not even take in the pidfd
of an agent that has just been forked."""


@dataclass(frozen=True)
class Confinement:
    """Agents are confined: each has a workspace in the folder ``workspaces``, and none can reach
    the folders ``private`` (resolved), the kernel's own. ``processes``: how many an agent may have
    beside itself, by agent; ``*``: each other; else none."""

    workspaces: Path
    private: tuple[str, ...]
    processes: Mapping[str, int] = field(default_factory=dict)

    def of(self, agent: str) -> int:
        return self.processes.get(agent, self.processes.get("*", 0))


@dataclass(frozen=True)
class Exit:
    """``status``: exit code, minus a signal's number, or ``None`` where nobody can know.
    ``reason`` is empty where the process ended by itself or by :meth:`Spawner.kill`."""

    pid: int
    status: int | None
    reason: str = ""


@dataclass
class Child:
    """A running agent; ``pid`` is the kernel's number for it.

    The three pipe ends are the kernel's, non-blocking, and the caller's to close. The spawner
    watches ``pidfd`` with trio and closes it once the exit has been reported; until then the
    caller may watch it too, with an epoll of its own.
    """

    pid: int
    pidfd: int
    read_fd: int
    write_fd: int
    stderr_fd: int

    def close(self) -> None:
        """Close the pipe ends; harmless the second time."""
        for name in ("read_fd", "write_fd", "stderr_fd"):
            if (fd := getattr(self, name)) >= 0:
                setattr(self, name, -1)
                os.close(fd)


class Spawner:
    """Starts, watches and ends agents. All of it runs in one trio thread, the kernel's main one.

    ``on_exit`` is called once for each :class:`Child`, in a task of ``nursery``, after
    :meth:`spawn` has returned it. ``environ`` is what agents inherit (default: the
    :func:`inherited` part of ours). Without ``namespaces`` none is tried; without a
    ``confinement`` agents can do all that this user can.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        on_exit: Callable[[Exit], None],
        *,
        environ: Mapping[str, str] | None = None,
        namespaces: bool = True,
        confinement: Confinement | None = None,
    ) -> None:
        self._confinement = confinement
        self._group: cgroups.Group | None = None
        self._nursery = nursery
        self._on_exit = on_exit
        self._environ = inherited(os.environ) if environ is None else dict(environ)
        self._namespaces = namespaces
        self._starting = trio.Lock()
        self._zygote: ZygoteClient | None = None
        self._agents: dict[int, Agent] = {}
        self._spawning: dict[int, bool] = {}  # whether it was to be killed in the meantime
        self._policies: dict[int, policy.Policy] = {}
        self._spawned = 0
        self._zygotes = 0

    async def start(self) -> zygote.Isolation:
        """Have a zygote ready; says how it holds its agents. Raises ``EIO`` if none starts."""
        return (await self._living()).isolation

    async def enforced(self) -> dict[str, str]:
        """What agents are held by here (:data:`isovist.kernel.confinement.report.MATTERS`); empty
        without a confinement. Raises ``EIO`` if no zygote starts."""
        enforced = dict((await self._living()).enforced)
        for matter in self._group.holds if self._group is not None else ():
            enforced[matter] = ", ".join(
                filter(None, (enforced.get(matter), "a cgroup of all agents"))
            )
        return enforced

    async def spawn(
        self,
        pid: int,
        program: str,
        args: Sequence[str] = (),
        *,
        cwd: str = "",
        fresh: bool = False,
        stdio: tuple[int, int, int] | None = None,
        env: Mapping[str, str] | None = None,
        agent: str = "",
        mounts: Sequence[tuple[str, policy.Mode]] = (),
        memory: int = policy.MEMORY,
        by: int = 0,
    ) -> Child:
        """Run ``program`` as process ``pid``, a number never used before.

        Where agents are confined it works in the workspace of ``agent``, with ``mounts`` (host
        paths) beside it and ``memory`` bytes; elsewhere in ``cwd``. ``by``: the process that chose
        the program, which must lie in what that one may read itself (else ``EPERM``).

        ``stdio``'s first two descriptors become the agent's standard input and output (default
        ``/dev/null``); standard error always comes through the kernel. The caller's descriptors
        stay open. Raises what :func:`programs.resolve` and :func:`policy.of_mounts` raise,
        ``EMSGSIZE`` or ``EINVAL`` for arguments, ``EAGAIN`` where the host has no more processes
        or descriptors, ``EIO`` where the zygote failed.
        """
        if pid in self._agents or pid in self._spawning:
            raise CallerError(f"process {pid} exists", errno=Errno.EEXIST, field="pid")
        self._spawning[pid] = False
        try:
            # Off the loop: a path may lie on a slow disk, a name is looked for in many files.
            resolved = await trio.to_thread.run_sync(programs.resolve, program, cwd)
            job = zygote.Job(pid, resolved, tuple(args), dict(env or {}), fresh, stdio is not None)
            if self._confinement is not None:
                above = self._readable(by) if by else None
                job = await trio.to_thread.run_sync(
                    _confined, job, self._confinement, agent, mounts, memory, above
                )
            forked, pipes = await self._fork(job, stdio)
        finally:
            killed = self._spawning.pop(pid)
        self._spawned += 1
        self._agents[pid] = forked
        if job.policy is not None:
            self._policies[pid] = job.policy
        if killed:
            linux.send_signal(forked.pidfd, signal.SIGKILL)
        # No checkpoint from here on: the caller has its child before anyone learns of its end.
        self._nursery.start_soon(self._watch, forked)
        return Child(pid, forked.pidfd, *pipes)

    def _readable(self, pid: int) -> tuple[str, ...]:
        found = self._policies.get(pid)
        return (*found.read, *found.write) if found is not None else ()

    def kill(self, pid: int, *, grace: float = 0.0) -> None:
        """End process ``pid`` and its process group: SIGKILL, ``grace`` seconds after a SIGTERM.

        What has left that group (a daemon's own session) lives on until the zygote ends.
        Returns at once; ``on_exit`` tells when it is done. A process that is being spawned is
        killed as soon as it is there. Harmless for one that is gone.
        """
        if pid in self._spawning:
            self._spawning[pid] = True
        elif (agent := self._agents.get(pid)) is None:
            return
        elif grace > 0:
            linux.send_signal(agent.pidfd, signal.SIGTERM)
            self._nursery.start_soon(self._kill_later, agent, grace)
        else:
            linux.send_signal(agent.pidfd, signal.SIGKILL)

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to process ``pid`` and its process group. Harmless for one that is gone."""
        if (agent := self._agents.get(pid)) is not None:
            linux.signal_group(agent.pidfd, number)

    def renice(self, pid: int, nice: int) -> None:
        """Set the nice value (0 to 19) of process ``pid`` and its group, as far as the host lets
        us: to lower it takes a right."""
        agent = self._agents.get(pid)
        host = linux.host_pid(agent.pidfd) if agent is not None else -1
        if host > 0:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, host, nice)

    def usage(self, pid: int) -> tuple[float, int] | None:
        """(seconds of processor, resident bytes) of process ``pid``; ``None`` where the host does
        not tell, or it is gone."""
        agent = self._agents.get(pid)
        host = linux.host_pid(agent.pidfd) if agent is not None else -1
        return linux.usage(host) if host > 0 else None

    async def gone(self, pid: int) -> None:
        """Return when process ``pid`` is no more, or at once."""
        if (agent := self._agents.get(pid)) is not None:
            await agent.gone.wait()

    async def aclose(self, *, grace: float = 0.0) -> None:
        """End all agents, report their exits, end the zygote. A later spawn starts a new one."""
        with trio.CancelScope(shield=True):
            agents = list(self._agents.values())
            for agent in agents:
                self.kill(agent.pid, grace=grace)
            with trio.move_on_after(grace + END_SECONDS):
                for agent in agents:
                    await agent.gone.wait()
            if (client := self._zygote) is not None:
                client.end()
                with trio.move_on_after(END_SECONDS):
                    await client.ended.wait()
                client.kill()
                await client.ended.wait()
            if self._group is not None:
                self._group.remove()
                self._group = None

    def statistics(self) -> dict[str, int | str]:
        """``isolation`` and ``zygote_pid`` (the host's number) are empty and -1 while there is no
        zygote; ``asked``: not yet answered by it; ``agents``: now alive; ``spawned`` and
        ``zygotes``: since the start."""
        client = self._zygote if self._zygote is not None and self._zygote.alive else None
        return {
            "isolation": client.isolation if client else "",
            "zygote_pid": linux.host_pid(client.pidfd) if client else -1,
            "asked": len(client.requests) if client else 0,
            "agents": len(self._agents),
            "spawned": self._spawned,
            "zygotes": self._zygotes,
        }

    async def _living(self) -> ZygoteClient:
        async with self._starting:
            if self._zygote is None or not self._zygote.alive:
                try:
                    client = ZygoteClient.begin(self._environ, self._options())
                except OSError as e:
                    raise WorldError(f"no zygote: {e.strerror}", errno=Errno.EAGAIN) from None
                self._zygotes += 1
                try:
                    with trio.fail_after(START_SECONDS):
                        await self._nursery.start(client.serve)
                except (RuntimeError, trio.TooSlowError):
                    raise WorldError("the zygote did not start") from None
                self._zygote = client
            return self._zygote

    def _options(self) -> list[str]:
        options = [] if self._namespaces else ["group"]
        if self._confinement is not None:
            if self._group is None:
                self._group = cgroups.create()
            options += ["confined", *(f"cgroup={folder}" for folder in self._group.folders)]
            options += [f"cover={folder}" for folder in self._confinement.private]
        return options

    async def _fork(
        self, job: zygote.Job, stdio: tuple[int, int, int] | None
    ) -> tuple[Agent, tuple[int, int, int]]:
        """The agent and the kernel's ends of its pipes."""
        data = _checked(job)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            try:
                _check_descriptors()
                read_fd, writes = _pipe(ours, theirs)
                reads, write_fd = _pipe(theirs, ours)
                stderr_fd, stderr = _pipe(ours, theirs)
            except OSError as e:
                raise WorldError(f"descriptors: {e.strerror}", errno=Errno.EAGAIN) from None
            pipes = (read_fd, write_fd, stderr_fd)
            for fd in pipes:
                os.set_blocking(fd, False)
            fds = [reads, writes, stderr, *(stdio[:2] if stdio else ())]
            client = await self._living()
            while (request := await client.ask(job, data, fds)) is None:
                # It died a moment ago, and its socket is closed as soon as the loop knows.
                await client.ended.wait()
                client = await self._living()
            theirs.close()
            agent = await client.result(job, request)
            ours.pop_all()
        return agent, pipes

    async def _watch(self, agent: Agent) -> None:
        try:
            await trio.lowlevel.wait_readable(agent.pidfd)
            with trio.move_on_after(STATUS_SECONDS):
                await agent.known.wait()
            reason = agent.reason or ("" if agent.known.is_set() else "its status did not arrive")
            self._forget(agent)
            self._on_exit(Exit(agent.pid, agent.status, reason))
        finally:
            self._forget(agent)
            os.close(agent.pidfd)
            agent.gone.set()

    def _forget(self, agent: Agent) -> None:
        self._agents.pop(agent.pid, None)
        self._policies.pop(agent.pid, None)
        if self._zygote is not None:
            self._zygote.agents.pop(agent.pid, None)

    async def _kill_later(self, agent: Agent, grace: float) -> None:
        with trio.move_on_after(grace):
            await agent.gone.wait()
        if not agent.gone.is_set():
            linux.send_signal(agent.pidfd, signal.SIGKILL)


def _confined(
    job: zygote.Job,
    confinement: Confinement,
    agent: str,
    mounts: Sequence[tuple[str, policy.Mode]],
    memory: int,
    above: Sequence[str] | None,
) -> zygote.Job:
    """``job`` with a policy and a workspace. Reads and writes the disk."""
    try:
        home = workspace.prepare(confinement.workspaces, agent or "unnamed")
    except OSError as e:
        raise WorldError(f"no workspace for {agent!r}: {e.strerror}") from None
    return msgspec.structs.replace(
        job,
        home=str(home),
        env={**job.env, **workspace.environment(home)},
        policy=policy.of_agent(
            job.program,
            str(home),
            confinement.private,
            mounts=mounts,
            memory=memory,
            processes=confinement.of(agent),
            above=above,
        ),
    )


def _check_descriptors() -> None:
    """Raise ``EMFILE`` where fewer than ``RESERVE`` descriptors are left. The system gives out
    the lowest free number, so the number itself tells."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest)
    if soft != resource.RLIM_INFINITY and lowest >= soft - RESERVE:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _checked(job: zygote.Job) -> bytes:
    """The job's bytes. Raises ``EINVAL`` or ``EMSGSIZE``."""
    if any("\0" in text for text in (*job.args, *job.env, *job.env.values())):
        raise CallerError("args must hold no NUL", field="args")
    try:
        data = encode(job)
    except UnicodeEncodeError:
        raise CallerError("args hold a lone surrogate", field="args") from None
    if len(data) > zygote.MAX_JOB:
        raise CallerError(
            f"program, arguments and environment take {len(data)} bytes,"
            f" the limit is {zygote.MAX_JOB}",
            errno=Errno.EMSGSIZE,
            field="args",
        )
    return data


def _pipe(read_owner: contextlib.ExitStack, write_owner: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    read_owner.callback(os.close, read)
    write_owner.callback(os.close, write)
    return read, write
