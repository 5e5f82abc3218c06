"""The ``tools`` syscalls of both clients: tools that the kernel calls, and a person's word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi import tools as abi
from isovist.syscalls.abi.tools import ToolResult, ToolUse
from isovist.syscalls.errors import error
from isovist.syscalls.options import CallOptions

R = TypeVar("R", bound=m.Reply)


def use(name: str, arguments: Mapping[str, Any] | str | None = None, key: str = "") -> ToolUse:
    """One call of a tool; ``arguments`` are a mapping, or JSON as a model wrote it."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}))
    return ToolUse(name, text or "{}", key)


def answered(results: tuple[ToolResult, ...]) -> ToolResult:
    """The one result. Raises where the call came to no answer."""
    (result,) = results
    if result.errno:
        raise error(result.errno, result.message, "name", retry_at=result.retry_at)
    return result


class MountedCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def tools_list(self, *names: str, **options: Unpack[CallOptions]) -> abi.ToolList:
        """The tools that may be called, of all names or those that fit a pattern."""
        return self._ask(abi.ToolsList(names=names, **options), abi.ToolList)

    def tool_call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        key: str = "",
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """Call one tool. Raises where it came to no answer; ``failed`` of an answer says that it
        is an error of the tool's own."""
        return answered(self.tools_call([use(name, arguments, key)], **options).results)

    def tools_call(
        self, calls: Sequence[ToolUse], **options: Unpack[CallOptions]
    ) -> abi.ToolResults:
        """Call several tools, side by side where they allow it; each has a result of its own."""
        return self._ask(abi.ToolsCall(calls=tuple(calls), **options), abi.ToolResults)

    def tools_output(
        self, id: str, offset: int = 0, **options: Unpack[CallOptions]
    ) -> abi.ToolOutput:
        """Read on in a long answer."""
        return self._ask(abi.ToolsOutput(id=id, offset=offset, **options), abi.ToolOutput)

    def tools_approvals(self, **options: Unpack[CallOptions]) -> abi.Approvals:
        """Operator only: the calls that wait for a person."""
        return self._ask(abi.ToolsApprovals(**options), abi.Approvals)

    def tools_answer(
        self, id: str, approve: bool, digest: str = "", **options: Unpack[CallOptions]
    ) -> abi.Approvals:
        """Operator only: let a call that waits go on, or deny it."""
        request = abi.ToolsAnswer(id=id, approve=approve, digest=digest, **options)
        return self._ask(request, abi.Approvals)

    def tools_servers(self, **options: Unpack[CallOptions]) -> abi.ToolServers:
        """Operator only: the mounted servers and how they are."""
        return self._ask(abi.ToolsServers(**options), abi.ToolServers)


class AsyncMountedCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def tools_list(self, *names: str, **options: Unpack[CallOptions]) -> abi.ToolList:
        """The tools that may be called, of all names or those that fit a pattern."""
        return await self._ask(abi.ToolsList(names=names, **options), abi.ToolList)

    async def tool_call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        key: str = "",
        **options: Unpack[CallOptions],
    ) -> ToolResult:
        """Call one tool. Raises where it came to no answer; ``failed`` of an answer says that it
        is an error of the tool's own."""
        return answered((await self.tools_call([use(name, arguments, key)], **options)).results)

    async def tools_call(
        self, calls: Sequence[ToolUse], **options: Unpack[CallOptions]
    ) -> abi.ToolResults:
        """Call several tools, side by side where they allow it; each has a result of its own."""
        return await self._ask(abi.ToolsCall(calls=tuple(calls), **options), abi.ToolResults)

    async def tools_output(
        self, id: str, offset: int = 0, **options: Unpack[CallOptions]
    ) -> abi.ToolOutput:
        """Read on in a long answer."""
        return await self._ask(abi.ToolsOutput(id=id, offset=offset, **options), abi.ToolOutput)

    async def tools_approvals(self, **options: Unpack[CallOptions]) -> abi.Approvals:
        """Operator only: the calls that wait for a person."""
        return await self._ask(abi.ToolsApprovals(**options), abi.Approvals)

    async def tools_answer(
        self, id: str, approve: bool, digest: str = "", **options: Unpack[CallOptions]
    ) -> abi.Approvals:
        """Operator only: let a call that waits go on, or deny it."""
        request = abi.ToolsAnswer(id=id, approve=approve, digest=digest, **options)
        return await self._ask(request, abi.Approvals)

    async def tools_servers(self, **options: Unpack[CallOptions]) -> abi.ToolServers:
        """Operator only: the mounted servers and how they are."""
        return await self._ask(abi.ToolsServers(**options), abi.ToolServers)
