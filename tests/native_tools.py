"""Functions that tests mount as tools."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Annotated

import msgspec

from isovist.syscalls.tools import tool

calls = 0


class Point(msgspec.Struct):
    x: int
    y: int = 0


@tool(read_only=True)
def add(a: int, b: Annotated[int, msgspec.Meta(ge=0)] = 1) -> int:
    """The sum of two numbers."""
    return a + b


@tool(read_only=True)
async def length(points: list[Point], name: str = "path") -> dict[str, object]:
    return {"name": name, "points": len(points), "x": [point.x for point in points]}


@tool(idempotent=True)
def count() -> int:
    """How often this process was called."""
    global calls  # what a call leaves here must not reach the next one
    calls += 1
    return calls


def fail(why: str) -> str:
    raise ValueError(why)


def crash() -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def hang(leave: str) -> str:
    """Start a child that outlives nobody, and never answer."""
    subprocess.Popen(["sh", "-c", f"echo $$ > {leave}; exec cat /dev/zero > /dev/null"])
    signal.pause()
    return ""


def big(characters: int) -> str:
    return "x" * characters


def reaches() -> list[str]:
    """What else this process could write to."""
    found = []
    for fd in range(3, 64):
        try:
            os.write(fd, b"")
        except OSError:
            continue
        found.append(str(fd))
    return found


def greedy() -> int:
    return len(bytearray(1 << 34))


def _private() -> None:
    """No tool."""
