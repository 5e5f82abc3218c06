"""MCP servers that behave badly: ``mcp_servers.py`` over pipes, or ``http FD`` over a socket.

Run as a program by tests; each tool does one thing that a server should not."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("bad")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(annotations=READS)
def big(characters: int) -> str:
    """A long text."""
    return "0123456789" * (characters // 10)


@server.tool()
def crash() -> str:
    """End the whole server."""
    os._exit(3)


@server.tool(annotations=READS)
async def wait() -> str:
    """Never answer, but take a cancel."""
    await anyio.sleep_forever()
    return ""


@server.tool(annotations=READS)
async def hang() -> str:
    """Block the whole server for ever."""
    threading.Event().wait()
    return ""


@server.tool()
def write(path: str, text: str) -> str:
    """Append to a file."""
    with open(path, "a") as file:
        file.write(text)
    return path


@server.tool(annotations=READS)
def reach(path: str) -> str:
    """Try to read a file of somebody else's, and to reach the network."""
    said = []
    try:
        Path(path).read_bytes()
        said.append("read it")
    except OSError as e:
        said.append(type(e).__name__)
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=5)
        said.append("connected")
    except ConnectionRefusedError:
        said.append("the network is there")
    except OSError as e:
        said.append(type(e).__name__)
    return ", ".join([*said, *sorted(name for name in os.environ if name.startswith("ISO"))])


@server.tool(annotations=READS)
def fails() -> str:
    """Raise an error."""
    raise RuntimeError("it is broken")


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        import uvicorn

        app = server.streamable_http_app()
        uvicorn.run(app, fd=int(sys.argv[2]), log_level="error")
    else:
        server.run()
