"""What learning hands from step to step, and the rules that every step is held to [M].

An attempt of a task becomes two streams; each stream's writer says, as operations, what to keep of
it; the kernel takes those that follow the rules. The rules stand here, where no writer, model or
setting can reach them: a protected entry stays with its user (promise ``protected.stays``), and a
writer touches only what it was shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Message, Partition, Stream

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
LEARNER = "kernel/learner"
"""Who owns what all may read. No name of a person or an agent holds a ``/``."""
MAX_SITUATION, MAX_LESSON = 500, 2000
"""Characters of an entry's parts."""
MAX_OPERATIONS = 16
"""Operations that one writer may ask for after one attempt."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
"""Control characters; tags, which spell ASCII and are not drawn; and the selectors of variants that
can stand for any byte."""


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
    read those of the same stream alone, nearest first. ``scopes`` are those that it may use."""

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


# -- the rules


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a writer was shown, as the kernel knows it: where it is, and of what stream."""

    id: str
    version: int
    partition: Partition
    stream: Stream


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the store that a submission comes to, in the words of the kernel. ``id`` is of
    the entry that is there, or of the new one; ``version`` is 0 for a new one. ``to`` is where a
    new one goes, or where one goes that is there (``None``: it stays, or goes away)."""

    what: Literal["add", "revise", "delete"]
    id: str
    stream: Stream
    partition: Partition
    version: int = 0
    text: str = ""
    to: Partition | None = None


def scopes_for(stream: Stream, allowed: Iterable[str], consent: str) -> tuple[str, ...]:
    """The scopes that a writer of ``stream`` may use where the settings allow ``allowed``, narrow
    to wide. Whoever wants to be learned from for own use alone shares nothing with others."""
    cap = CAP["protected"] if consent == "own" else CAP[stream]
    wanted = set(allowed)
    return tuple(scope for scope in cap if scope in wanted)


def refusal(
    operation: Operation,
    stream: Stream,
    scopes: Collection[str],
    shown: Mapping[str, Known],
    outcome: Verdict,
) -> str:
    """Why the kernel does not take an operation; empty: it does. The words quote nothing.

    What is kept was established by a verdict, or is the person's own; an entry that was not shown
    to this writer does not exist for it; and what other users read stays where they read it: to
    re-scope that is a review's.
    """
    if stream == "reusable" and outcome not in ESTABLISHED and outcome != "unknown":
        return f"an attempt that ended in {outcome} establishes nothing"
    named = operation.delete or operation.revises
    known = shown.get(named) if named else None
    if named and known is None:
        return "no entry of that id was shown to this writer"
    if known is not None and known.stream != stream:
        return "the entry is of the other stream"
    shared = known is not None and known.partition.users.kind != "one"
    if shared and outcome not in ESTABLISHED:
        return "what others read is changed by a recorded verdict alone"
    if operation.delete:
        if not operation.reason.strip():
            return "a deletion needs a reason"
        if operation.revises or operation.situation or operation.lesson:
            return "an operation either deletes or writes"
        if shared and known is not None and known.partition.scope not in scopes:
            return "what others read is not this writer's to delete"
        return ""
    situation, lesson = one_line(operation.situation), operation.lesson.strip()
    if not situation:
        return "no lesson without a situation"
    if not lesson:
        return "the lesson is empty"
    if len(situation) > MAX_SITUATION:
        return f"the situation has over {MAX_SITUATION} characters"
    if len(lesson) > MAX_LESSON:
        return f"the lesson has over {MAX_LESSON} characters"
    if operation.scope not in scopes:
        # Words of a writer are not quoted, not even as the name of a scope.
        return f"the scope is not one of {', '.join(scopes) or 'none'}, the cap of this stream"
    if shared and known is not None and operation.scope != known.partition.scope:
        return "what others read is re-scoped by a review alone"
    return ""


def visible(text: str) -> str:
    """``text`` without control characters other than tabs and the ends of lines, and without the
    characters that spell a text of their own which nobody sees (tags, selectors of variants beyond
    the first sixteen): what one user's attempt has printed is not to steer the terminals of all
    who read the lesson, nor to speak to their models alone."""
    return _UNSEEN.sub("", text)


def cleared(operation: Operation) -> Operation:
    """An operation with :func:`visible` words. It comes before every look for what may not stand
    in them: nothing is to come together afterwards."""
    return msgspec.structs.replace(
        operation,
        situation=visible(operation.situation),
        lesson=visible(operation.lesson),
        reason=visible(operation.reason),
    )


def one_line(text: str) -> str:
    return " ".join(text.split())


def entry_text(situation: str, lesson: str) -> str:
    """The text of an entry's unit: its situation is the first line, its lesson all else."""
    return f"{one_line(situation)}\n{lesson.strip()}"


def parts_of(text: str) -> tuple[str, str]:
    """Situation and lesson of an entry's text."""
    situation, _, lesson = text.partition("\n")
    return situation, lesson


def line_of(situation: str, lesson: str) -> str:
    """An entry as a reader is shown it. Further lines of the lesson are indented, so that none can
    pass for another entry or a header; nor can one of the situation, which is any text where an
    agent has remembered a lesson of its own."""
    return f"- When {one_line(situation)}: " + "\n  ".join(lesson.splitlines())


def owner_of(partition: Partition) -> tuple[str, str]:
    """(user, agent) that own an entry in ``partition``: along an axis that is open, the kernel's
    learner, so that an entry which others read is no single user's to take along."""
    return partition.users.name or LEARNER, partition.agents.name or LEARNER


def stream_of(candidate: Candidate) -> Stream:
    return "reusable" if candidate.hit.unit.stream == "reusable" else "protected"


def held_of(candidate: Candidate) -> Held:
    """An entry that was found, as a writer or a review is shown it."""
    situation, lesson = parts_of(candidate.hit.unit.text)
    return Held(
        id=candidate.hit.unit.id,
        version=candidate.hit.unit.version,
        situation=situation,
        lesson=lesson,
        scope=candidate.partition.scope,
        stream=stream_of(candidate),
    )


def known_of(candidate: Candidate) -> Known:
    return Known(
        id=candidate.hit.unit.id,
        version=candidate.hit.unit.version,
        partition=candidate.partition,
        stream=stream_of(candidate),
    )


# -- reviews


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a review is about, as it was when the review looked at it."""

    id: str
    version: int
    partition: Partition
    stream: Stream


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """What a review asks for: one entry in another audience (``to``), or several in one partition
    as one, in the place of the first and in these words."""

    parts: tuple[Part, ...]
    to: Partition | None = None
    situation: str = ""
    lesson: str = ""


def review_refusal(proposed: Proposed) -> str:
    """Why the kernel does not take what a review proposes; empty: it does."""
    if not proposed.parts:
        return "no entry is named"
    first = proposed.parts[0]
    if proposed.to is not None:
        if len(proposed.parts) > 1:
            return "one entry is re-scoped at a time"
        if first.stream == "protected" and proposed.to.users.kind != "one":
            return "the protected stream cannot reach other users"
        both = first.partition.users.kind == proposed.to.users.kind == "one"
        if both and first.partition.users != proposed.to.users:
            return "an entry cannot become another user's"
        return "" if proposed.to != first.partition else "the entry is there already"
    if len({(part.partition, part.stream) for part in proposed.parts}) > 1:
        return "entries are merged inside one audience and one stream"
    if len({part.id for part in proposed.parts}) < max(2, len(proposed.parts)):
        return "two entries at least are merged, each once"
    situation, lesson = one_line(proposed.situation), proposed.lesson.strip()
    if not situation or not lesson:
        return "no lesson without a situation"
    if len(situation) > MAX_SITUATION or len(lesson) > MAX_LESSON:
        return "the merged entry is too long"
    return ""
