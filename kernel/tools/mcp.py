"""The host of an MCP server, by the official SDK: over the pipes of a process, or over HTTP.

A call that is stopped is cancelled as MCP says; a server that then says nothing at all any more
hangs, and this process ends with it. Nothing that a server asks of its client (sampling, roots,
questions to a person) is granted.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import trio
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from isovist.kernel.confinement.launch import command as confined
from isovist.kernel.state.answers import SCHEMA
from isovist.kernel.state.toolwords import MountedTool
from isovist.kernel.tools import leash
from isovist.kernel.tools.host import Closed, Line, Unusable
from isovist.kernel.tools.place import environment
from isovist.kernel.tools.protocol import (
    LONGEST,
    PIECE,
    TOOLS,
    Ended,
    Mount,
    Mounted,
    Piece,
    Stop,
    Use,
)
from isovist.syscalls.errors import Errno

PATIENCE_S = 3.0
"""A server that answers nothing for so long after a call was cancelled hangs."""
HTTP_S = 30.0
DESCRIPTION = 4096
LISTED = 512 * 1024
"""Characters of all descriptions and schemas of a server: they travel in one frame."""
_LOST = (Errno.ECANCELED, Errno.EIO)


def serve(line: Line, mount: Mount) -> None:
    """Serve until the kernel closes the pipe. Raises :class:`Unusable` or :class:`Closed`; ends
    the process where the server has ended."""
    try:
        trio.run(_serve, line, mount)
    except BaseExceptionGroup as group:
        raise _cause(group) from group


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _cause(first) if isinstance(first, BaseExceptionGroup) else first


class Gone(Exception):
    """The server has ended, or hangs: this life is over."""


async def _serve(line: Line, mount: Mount) -> None:
    gone = trio.Event()
    changed = trio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    transport = _watched(_transport(mount), gone)
    info = types.Implementation(name="isovist", version="1")
    try:
        async with Client(transport, message_handler=heard, client_info=info, cache=None) as client:
            host = Host(line, client)
            line.send(Mounted(await host.tools()))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.listen, nursery)
                nursery.start_soon(_ends, gone)
                while True:
                    await changed.wait()
                    changed = trio.Event()
                    line.send(Mounted(await host.tools()))
    except* Gone as e:
        raise SystemExit(str(_cause(e))) from None
    except* (MCPError, OSError, httpx2.HTTPError, anyio.BrokenResourceError) as e:
        raise SystemExit(f"the server cannot be reached: {_cause(e)}") from None


async def _ends(gone: trio.Event) -> None:
    await gone.wait()
    raise Gone("the server has ended")


def _transport(mount: Mount) -> AbstractAsyncContextManager[Any]:
    if mount.url:
        headers = {}
        if mount.key:
            headers["Authorization"] = f"Bearer {os.environ.get(mount.key, '')}"
        client = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(HTTP_S, read=None))
        return streamable_http_client(mount.url, http_client=client)
    program = shutil.which(mount.command[0])
    if program is None:
        raise Unusable(f"there is no program {mount.command[0]!r}")
    command = [program, *mount.command[1:]]
    place = mount.place
    if place.policy is not None:
        run = confined(command, place.policy)
    else:
        run = [sys.executable, "-I", "-S", str(Path(leash.__file__)), str(os.getpid()), *command]
    variables = {name: os.environ[name] for name in mount.env if name in os.environ}
    parameters = StdioServerParameters(
        command=run[0], args=run[1:], env={**environment(place), **variables}, cwd=place.folder
    )
    return stdio_client(parameters)


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], gone: trio.Event
) -> AsyncIterator[Any]:
    """The transport, with ``gone`` set when its server says nothing any more."""
    async with transport as (read, write):
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def pump() -> None:
            async with send:
                async for message in read:
                    await send.send(message)
            gone.set()

        async with anyio.create_task_group() as group, receive:
            group.start_soon(pump)
            yield receive, write
            group.cancel_scope.cancel()


class Host:
    """What the kernel asks of the server, call by call, each in a task of its own."""

    def __init__(self, line: Line, client: Client) -> None:
        self._line, self._client = line, client
        self._calls: dict[int, trio.CancelScope] = {}

    async def tools(self) -> tuple[MountedTool, ...]:
        """All that the server offers and that fits, page by page."""
        found: list[MountedTool] = []
        room, cursor = LISTED, None
        while len(found) < TOOLS:
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools:
                mounted = _mounted(tool)
                room -= len(mounted.parameters) + len(mounted.description)
                if room > 0 and len(mounted.parameters) <= SCHEMA:
                    found.append(mounted)
                else:
                    print(
                        f"tool {tool.name!r} is not taken: too much is said of it", file=sys.stderr
                    )
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(found[:TOOLS])

    async def listen(self, nursery: trio.Nursery) -> None:
        os.set_blocking(self._line.read_fd, False)
        while True:
            await trio.lowlevel.wait_readable(self._line.read_fd)
            try:
                messages = self._line.read()
            except BlockingIOError:
                continue
            for message in messages:
                match message:
                    case Use():
                        self._calls[message.run] = trio.CancelScope()
                        nursery.start_soon(self._call, message)
                    case Stop() if message.run in self._calls:
                        self._calls[message.run].cancel()
                    case _:
                        pass

    async def _call(self, use: Use) -> None:
        ended = Ended(
            use.run,
            errno=int(Errno.ECANCELED),
            message="cancelled; the server may have carried it out",
            lost=True,
        )
        with self._calls[use.run]:
            try:
                arguments = msgspec.json.decode(use.arguments)
                result = await self._client.call_tool(use.tool, arguments)
                for piece in _pieces(_text(result)):
                    self._line.send(Piece(use.run, piece))
                    await trio.lowlevel.checkpoint()
                ended = Ended(use.run, failed=result.is_error)
            except MCPError as e:
                lost = e.error.code == types.CONNECTION_CLOSED
                said = e.error.message[:PIECE]
                ended = Ended(use.run, errno=int(Errno.EIO), message=said, lost=lost)
                if e.error.code in (types.INVALID_PARAMS, types.METHOD_NOT_FOUND):
                    ended = Ended(use.run, errno=int(Errno.EINVAL), message=said)
            except (trio.BrokenResourceError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                ended = Ended(
                    use.run, errno=int(Errno.EIO), message="the server has ended", lost=True
                )
            except Closed:
                raise
            except Exception as e:  # a server that keeps to no protocol ends its own call alone
                said = f"what the server says is no answer: {type(e).__name__}"
                ended = Ended(use.run, errno=int(Errno.EIO), message=said, lost=True)
        cancelled = self._calls.pop(use.run).cancel_called
        self._line.send(ended)
        if cancelled:
            await self._breathes()

    async def _breathes(self) -> None:
        with trio.move_on_after(PATIENCE_S) as patience:
            with suppress(MCPError):  # an error is an answer
                await self._client.list_tools()
        if patience.cancelled_caught:
            raise Gone(f"the server hangs: it said nothing for {PATIENCE_S:g} s after a cancel")


def _mounted(tool: types.Tool) -> MountedTool:
    hints = tool.annotations or types.ToolAnnotations()
    read_only = bool(hints.read_only_hint)
    return MountedTool(
        name=tool.name[:128],
        description=(tool.description or tool.title or "")[:DESCRIPTION],
        parameters=msgspec.json.encode(tool.input_schema).decode(),
        read_only=read_only,
        idempotent=read_only or bool(hints.idempotent_hint),
    )


def _text(result: types.CallToolResult) -> str:
    """The answer as text; what is none is named."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return "\n".join(parts)[:LONGEST].encode(errors="replace").decode()


def _part(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case types.ResourceLink():
            return f"[resource {block.uri}]"
    return f"[{block.type}]"


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
