"""How units are put into rounds, and in which words a reader gets them [S 3.3, M 3.4]."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby

from isovist.syscalls.fence import escape
from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Unit

MESSAGE = 4000
"""Characters of one message in a round that is read [S 3.3]."""
CUT = " […]"
PART = MESSAGE - 2 * len(CUT)
"""Characters of a longer message in one part of it, without the marks of where it goes on."""

_MESSAGE = re.compile(r"\n(?=(?:User|Assistant): )")
"""Where a stored exchange goes on with the next message."""

Key = tuple[str, int]
"""Session and round."""


def key_of(unit: Unit) -> Key:
    """Session and round as a reader may name them; a unit without a session is round 0 of its
    own."""
    return (unit.handle, unit.round) if unit.handle else (unit.id, 0)


def rounds_of(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Neighbours of one round together."""
    return [list(group) for _, group in groupby(candidates, key=lambda c: key_of(c.hit.unit))]


def cut(text: str, part: int = 0) -> str:
    """``text`` with each of its messages at most ``MESSAGE`` characters long. ``part`` (from 0)
    says which stretch of a longer message; after part 0 those alone that are as long are there."""
    pieces = (_piece(message, part) for message in _MESSAGE.split(text))
    return "\n".join(piece for piece in pieces if piece or not part)


def parts_of(text: str) -> int:
    """In how many parts all of ``text`` can be read."""
    longest = max(map(len, _MESSAGE.split(text)))
    return 1 if longest <= MESSAGE else -(-longest // PART)


def _piece(message: str, part: int) -> str:
    if len(message) <= MESSAGE:
        return "" if part else message
    start, stop = part * PART, (part + 1) * PART
    if start >= len(message):
        return ""
    before, after = CUT.strip() + " " if part else "", CUT if stop < len(message) else ""
    return f"{before}{message[start:stop]}{after}"


def date_of(unit: Unit) -> str:
    """When it was said: ISO 8601, UTC, to the second."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unit.said_at // 1000)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def heading(scope: str) -> str:
    return f"# Learned memory: {scope}\n\n"


def entry(candidate: Candidate) -> str:
    """A unit as an item of its scope's file: nothing in it can pass for another item, or for the
    end of a fence around the file."""
    unit = candidate.hit.unit
    text = "\n  ".join(escape(unit.text.strip()).splitlines())
    return f"- {date_of(unit)} ({unit.kind}, {unit.agent}): {text}\n"
