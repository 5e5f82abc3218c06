"""What the kernel and its shell say of tools: what one is, and how a call of one ended."""

from __future__ import annotations

import msgspec

from isovist.syscalls.errors import IsovistError


class MountedTool(msgspec.Struct, frozen=True):
    """A tool as its server describes it; ``parameters`` is a JSON schema, as text."""

    name: str
    description: str = ""
    parameters: str = "{}"
    read_only: bool = False
    idempotent: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. ``lost``: nobody knows whether it was carried out."""

    text: str = ""
    failed: bool = False
    characters: int = 0
    output: str = ""
    errno: int = 0
    message: str = ""
    retry_at: int = 0
    lost: bool = False


def failure(e: IsovistError, *, lost: bool = False) -> Answer:
    return Answer(errno=int(e.errno), message=e.message, retry_at=e.retry_at, lost=lost)
