"""What learning hands from step to step, and the rules that every step is held to [M].

An attempt of a task becomes two streams; each stream's writer says, as operations, what to keep of
it; the kernel takes those that follow the rules. The rules stand here, where no writer, model or
setting can reach them: a protected entry stays with its user (promise ``protected.stays``), and a
writer touches only what it was shown.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.records import Message, Stream

Verdict = Literal["passed", "failed", "error", "timeout", "unknown"]
"""What a verifier has recorded of an attempt; ``unknown``: nobody has judged it."""
VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "error", "timeout", "unknown")
ESTABLISHED: frozenset[Verdict] = frozenset({"passed", "failed"})
"""Verdicts that establish something about what was tried; an error or a time-out does not."""
CAP: dict[Stream, tuple[str, ...]] = {
    "reusable": ("pair", "user", "agent", "global"),
    "protected": ("pair", "user"),
}
"""The scopes that an entry of each stream may ever have: its audience lies inside its disclosure
boundary."""
STREAMS: tuple[Stream, ...] = ("reusable", "protected")
MAX_SITUATION, MAX_LESSON = 500, 2000
"""Characters of an entry's parts."""
MAX_OPERATIONS = 16
"""Operations that one writer may ask for after one attempt."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A finished attempt of ``task`` by the pair (``user``, ``agent``), as its submission keeps it:
    past the secrets guard. ``outcome`` is the recorded verdict, with the verifier's last words in
    ``tail``; ``claim`` is what the agent itself says of it, which a verdict overrides."""

    submission: str
    user: str
    agent: str
    task: str
    trajectory: tuple[Message, ...]
    outcome: Verdict = "unknown"
    tail: str = ""
    claim: str = ""


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """What a splitter makes of an attempt: always both texts, either of which may be empty.

    ``by`` says who split it: ``rules``, or a model's name. ``cut`` counts what the kernel took out
    of the reusable text after the splitter, ``secrets`` what the guard replaced in either, by type.
    """

    reusable: str
    protected: str
    by: str
    cut: int = 0
    secrets: dict[str, int] = {}


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as a writer or a review is shown it."""

    id: str
    version: int
    situation: str
    lesson: str
    scope: str
    stream: Stream


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """All that one writer is shown: the text of one stream, and of the entries that its pair may
    read those of the same stream alone, nearest first. ``scopes`` are those that it may use.
    ``agent`` made the attempt: a condition may name it where its own scope may not be used."""

    stream: Stream
    text: str
    entries: tuple[Held, ...]
    scopes: tuple[str, ...]
    outcome: Verdict = "unknown"
    agent: str = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a writer asks for: a new entry; one that takes the place of entry ``revises``; or, with
    ``delete`` naming an entry and a ``reason``, its end. Nothing else is set in that case."""

    situation: str = ""
    lesson: str = ""
    scope: str = ""
    revises: str = ""
    delete: str = ""
    reason: str = ""
