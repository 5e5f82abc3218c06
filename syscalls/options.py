"""The keyword options of the convenience methods, written once for both clients.

Each is the optional part of a request Struct of :mod:`isovist.syscalls.messages`, where meanings,
units and ranges are stated; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from isovist.syscalls.abi.effects import Phase
from isovist.syscalls.abi.timers import Missed
from isovist.syscalls.errors import CallerError
from isovist.syscalls.messages import OnStale, Wait
from isovist.syscalls.records import Message, Mode, Stream, Tool, ToolRule


class CallOptions(TypedDict, total=False):
    """What every call takes."""

    user: str | None
    deadline_ms: int | None


class SpawnOptions(CallOptions, total=False):
    args: tuple[str, ...]
    agent: str
    fresh: bool
    cwd: str
    users: tuple[str, ...] | None
    scopes: tuple[str, ...] | None
    mail: tuple[str, ...] | None
    tools: tuple[ToolRule, ...] | None
    quotas: dict[str, int]
    manifest: str
    lineage: str


class KillOptions(CallOptions, total=False):
    grace_ms: int
    tree: bool


class GrantOptions(CallOptions, total=False):
    mail: tuple[str, ...]
    tools: tuple[ToolRule, ...]


class RememberOptions(CallOptions, total=False):
    kind: str
    scope: str | None
    stream: Stream
    session: str
    round: int
    said_at: str | None
    expires_at: str | None
    supersedes: str
    meta: dict[str, str]


class ReadOptions(CallOptions, total=False):
    barrier_ms: int


class SearchOptions(ReadOptions, total=False):
    k: int
    mode: Mode
    since: str | None
    until: str | None
    kinds: tuple[str, ...]
    wait: Wait
    on_stale: OnStale


class ListOptions(ReadOptions, total=False):
    limit: int
    after: str
    kinds: tuple[str, ...]


class MemorySearchOptions(ReadOptions, total=False):
    k: int
    since: str | None
    until: str | None


class MemoryReadOptions(ReadOptions, total=False):
    window: int
    part: int


class SessionSearchOptions(ReadOptions, total=False):
    k: int
    compact: bool


class LimitOptions(ReadOptions, total=False):
    limit: int


class PrefetchOptions(ReadOptions, total=False):
    model: str
    budget: int | None
    units: int
    kinds: tuple[str, ...]
    wait: Wait


class MatchOptions(ReadOptions, total=False):
    limit: int
    offset: int
    since: str | None
    until: str | None
    kinds: tuple[str, ...]
    confirm: str


class SubmitOptions(CallOptions, total=False):
    outcome: Literal["passed", "failed", "error", "timeout", "unknown"]
    verifier_tail: str
    claim: str
    key: str


class LessonOptions(ReadOptions, total=False):
    budget: int
    scopes: tuple[str, ...]


class LearnListOptions(CallOptions, total=False):
    id: str
    limit: int
    after: str


class SendOptions(CallOptions, total=False):
    to_user: str
    key: str
    about: str
    wait: bool


class ReceiveOptions(CallOptions, total=False):
    lease_ms: int


class TimerOptions(CallOptions, total=False):
    missed: Missed
    name: str


class EffectOptions(CallOptions, total=False):
    key: str
    idempotent: bool


class EffectsOptions(CallOptions, total=False):
    id: str
    key: str
    states: tuple[Phase, ...]
    kinds: tuple[str, ...]
    limit: int
    agent: str


class ChatOptions(ReadOptions, total=False):
    model: str
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...]
    memory: bool
    budget: int | None
    units: int
    kinds: tuple[str, ...]
    wait: Wait
    on_stale: OnStale
    keep: bool
    session: str
    tools: tuple[Tool, ...]
    choice: str
    schema: str
    logprobs: int
    tools_of: tuple[str, ...]
    loop: int


class FileWriteOptions(CallOptions, total=False):
    scope: str | None
    expect: int | None
    reason: str
    stream: Stream
    writable: bool | None
    key: str


class FileOptions(CallOptions, total=False):
    scope: str


class FileReadOptions(FileOptions, total=False):
    version: int
    offset: int
    limit: int


class FileListOptions(FileOptions, total=False):
    prefix: str
    limit: int
    after: str


class FileRollbackOptions(FileOptions, total=False):
    expect: int | None
    reason: str
    key: str


class FileMoveOptions(FileOptions, total=False):
    to_path: str
    to_scope: str
    writable: bool | None
    expect: int | None


class FileFetchOptions(FileOptions, total=False):
    version: int
    target: str
    replace: bool


class FileSearchOptions(ReadOptions, total=False):
    k: int
    mode: Mode


def conversation(prompt: str | Sequence[Message]) -> tuple[Message, ...]:
    """The messages of a chat: a plain text is one turn of the user's.

    Raises ``EINVAL`` where an item is no :class:`Message`.
    """
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    for at, message in enumerate(prompt):
        if not isinstance(message, Message):
            raise CallerError(
                f"messages[{at}] must be a Message, is a {type(message).__name__}",
                field="messages",
            )
    return tuple(prompt)
