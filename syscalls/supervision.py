"""The syscalls of supervision of both clients: processes, what agents hold, distrust."""

from __future__ import annotations

from typing import TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.manifest import Manifest
from isovist.syscalls.options import CallOptions

R = TypeVar("R", bound=m.Reply)


class SupervisionCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def pause(self, pid: int, **options: Unpack[CallOptions]) -> abi.Managed:
        """Stop process ``pid`` where it stands."""
        return self._ask(abi.Pause(pid=pid, **options), abi.Managed)

    def resume(self, pid: int, **options: Unpack[CallOptions]) -> abi.Managed:
        """Let a paused process go on (syscall ``continue``)."""
        return self._ask(abi.Continue(pid=pid, **options), abi.Managed)

    def terminate(
        self, pid: int, grace_ms: int = 5000, tree: bool = False, **options: Unpack[CallOptions]
    ) -> m.Exited:
        """Ask process ``pid`` to end, and kill it where it has not after ``grace_ms``."""
        request = m.Kill(pid=pid, grace_ms=grace_ms, tree=tree, **options)
        return self._ask(request, m.Exited)

    def priority(
        self,
        pid: int,
        level: int | None = None,
        nice: int | None = None,
        **options: Unpack[CallOptions],
    ) -> abi.Managed:
        """Say how urgent process ``pid`` is at the models (``level``) and on the host."""
        request = abi.Priority(pid=pid, level=level, nice=nice, **options)
        return self._ask(request, abi.Managed)

    def heartbeat(self, **options: Unpack[CallOptions]) -> m.Done:
        """Say that this process is well."""
        return self._ask(abi.Heartbeat(**options), m.Done)

    def distrust(
        self, agent: str = "", undo: bool = False, **options: Unpack[CallOptions]
    ) -> abi.Distrusted:
        """Operator only: hide all that ``agent`` published, and list it; ``undo`` brings it
        back."""
        request = abi.Distrust(agent=agent, undo=undo, **options)
        return self._ask(request, abi.Distrusted)

    def agent_approve(
        self, manifest: Manifest, cwd: str, **options: Unpack[CallOptions]
    ) -> abi.Agents:
        """Operator only: grant an agent what its manifest asks for."""
        request = abi.AgentApprove(manifest=manifest, cwd=cwd, **options)
        return self._ask(request, abi.Agents)

    def agent_revoke(self, agent: str, **options: Unpack[CallOptions]) -> abi.Agents:
        """Operator only: take back an approval, and what it granted."""
        request = abi.AgentApprove(agent=agent, revoke=True, **options)
        return self._ask(request, abi.Agents)

    def agents(
        self, agent: str = "", after: str = "", **options: Unpack[CallOptions]
    ) -> abi.Agents:
        """Operator only: what agents hold, those ``after`` a name; or all that ``agent`` does."""
        request = abi.AgentList(agent=agent, after=after, **options)
        return self._ask(request, abi.Agents)


class AsyncSupervisionCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def pause(self, pid: int, **options: Unpack[CallOptions]) -> abi.Managed:
        """Stop process ``pid`` where it stands."""
        return await self._ask(abi.Pause(pid=pid, **options), abi.Managed)

    async def resume(self, pid: int, **options: Unpack[CallOptions]) -> abi.Managed:
        """Let a paused process go on (syscall ``continue``)."""
        return await self._ask(abi.Continue(pid=pid, **options), abi.Managed)

    async def terminate(
        self, pid: int, grace_ms: int = 5000, tree: bool = False, **options: Unpack[CallOptions]
    ) -> m.Exited:
        """Ask process ``pid`` to end, and kill it where it has not after ``grace_ms``."""
        request = m.Kill(pid=pid, grace_ms=grace_ms, tree=tree, **options)
        return await self._ask(request, m.Exited)

    async def priority(
        self,
        pid: int,
        level: int | None = None,
        nice: int | None = None,
        **options: Unpack[CallOptions],
    ) -> abi.Managed:
        """Say how urgent process ``pid`` is at the models (``level``) and on the host."""
        request = abi.Priority(pid=pid, level=level, nice=nice, **options)
        return await self._ask(request, abi.Managed)

    async def heartbeat(self, **options: Unpack[CallOptions]) -> m.Done:
        """Say that this process is well."""
        return await self._ask(abi.Heartbeat(**options), m.Done)

    async def distrust(
        self, agent: str = "", undo: bool = False, **options: Unpack[CallOptions]
    ) -> abi.Distrusted:
        """Operator only: hide all that ``agent`` published, and list it; ``undo`` brings it
        back."""
        request = abi.Distrust(agent=agent, undo=undo, **options)
        return await self._ask(request, abi.Distrusted)

    async def agent_approve(
        self, manifest: Manifest, cwd: str, **options: Unpack[CallOptions]
    ) -> abi.Agents:
        """Operator only: grant an agent what its manifest asks for."""
        request = abi.AgentApprove(manifest=manifest, cwd=cwd, **options)
        return await self._ask(request, abi.Agents)

    async def agent_revoke(self, agent: str, **options: Unpack[CallOptions]) -> abi.Agents:
        """Operator only: take back an approval, and what it granted."""
        request = abi.AgentApprove(agent=agent, revoke=True, **options)
        return await self._ask(request, abi.Agents)

    async def agents(
        self, agent: str = "", after: str = "", **options: Unpack[CallOptions]
    ) -> abi.Agents:
        """Operator only: what agents hold, those ``after`` a name; or all that ``agent`` does."""
        request = abi.AgentList(agent=agent, after=after, **options)
        return await self._ask(request, abi.Agents)
