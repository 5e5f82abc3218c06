"""The line format of exports: one unit, group or grant as one JSON object, without loss.

``type`` says which; a file has groups and grants first, then units, oldest first. The line of a
unit says all that it is: its words and labels, whose it is and whom it is for, its id and version.
What an index can make anew (vectors, terms, the name of a session's handle) is not in it. Times
are nanoseconds since 1970 UTC; an axis is ``["one", NAME]``, ``["group", NAME]`` or
``["all", ""]``.

Format 2 has groups, grants, and ``born_at``; a line of format 1 is a unit.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import (
    LAST_TIME,
    LAST_VERSION,
    check_group,
    check_kinds,
    check_meta,
    check_name,
    check_text,
)
from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Axis, Partition, Stream

FORMAT = 2
"""Of a line; a reader refuses what is newer than itself."""
NAMES = 500
"""Members on a line of a group, and users on one of a grant: larger ones take several lines."""


class _Line(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    format: int


class Line(_Line, frozen=True, kw_only=True, tag="unit"):
    """One unit. ``user`` and ``agent`` own it, ``users`` and ``agents`` are its audience.
    ``born_at`` is when it came to this audience, where that is not ``stored_at``.

    Invariant (of a line that :func:`read` gave): an axis that admits one, admits the owner.
    """

    id: str
    version: int
    users: Axis
    agents: Axis
    user: str
    agent: str
    text: str
    kind: str
    stream: Stream
    said_at: int
    stored_at: int
    session: str = ""
    round: int = 0
    expires_at: int | None = None
    supersedes: str = ""
    meta: dict[str, str] = {}
    born_at: int = 0

    @property
    def partition(self) -> Partition:
        return Partition(self.users, self.agents)


class GroupLine(_Line, frozen=True, kw_only=True, tag="group"):
    """Who is in a group, or (up to :data:`NAMES`) some of them."""

    of: Literal["users", "agents"]
    name: str
    members: tuple[str, ...] = ()


class GrantLine(_Line, frozen=True, kw_only=True, tag="grant"):
    """What an agent holds: users that it may act for, scopes that it may publish to."""

    agent: str
    users: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class _Head(msgspec.Struct):
    format: int = 0
    type: str = "unit"


_TYPES: dict[str, type[Line | GroupLine | GrantLine]] = {
    "unit": Line,
    "group": GroupLine,
    "grant": GrantLine,
}


def write(candidate: Candidate) -> str:
    """The line of a unit as a store gave it."""
    unit = candidate.hit.unit
    line = Line(
        format=FORMAT,
        id=unit.id,
        version=unit.version,
        users=candidate.partition.users,
        agents=candidate.partition.agents,
        user=candidate.owner_user,
        agent=candidate.owner_agent,
        text=unit.text,
        kind=unit.kind,
        stream="reusable" if unit.stream == "reusable" else "protected",
        said_at=unit.said_at,
        stored_at=unit.stored_at,
        session=candidate.owner_session,
        round=unit.round,
        expires_at=unit.expires_at,
        supersedes=unit.supersedes,
        meta=unit.meta,
        born_at=candidate.born_at if candidate.born_at != unit.stored_at else 0,
    )
    return _text(line)


def write_group(of: Literal["users", "agents"], name: str, members: tuple[str, ...]) -> list[str]:
    """The lines of a group."""
    return [
        _text(GroupLine(format=FORMAT, of=of, name=name, members=some)) for some in _cut(members)
    ]


def write_grant(agent: str, users: tuple[str, ...], scopes: tuple[str, ...]) -> list[str]:
    """The lines of what an agent holds."""
    return [
        _text(GrantLine(format=FORMAT, agent=agent, users=some, scopes=() if place else scopes))
        for place, some in enumerate(_cut(users))
    ]


def _cut(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [names[at : at + NAMES] for at in range(0, max(1, len(names)), NAMES)]


def _text(line: _Line) -> str:
    return msgspec.json.encode(line).decode()


def read(text: str) -> Line | GroupLine | GrantLine:
    """What a line says. Raises :class:`CallerError` that names the field and its rule."""
    try:
        head = msgspec.json.decode(text, type=_Head)
        if not 1 <= head.format <= FORMAT:
            raise CallerError(f"format {head.format}, this Isovist reads 1 to {FORMAT}")
        kind = _TYPES.get(head.type)
        if kind is None:
            raise CallerError(f"type {head.type!r} is none of {', '.join(_TYPES)}", field="type")
        line = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as e:
        raise CallerError(f"not a line of an export: {e}") from None
    if isinstance(line, Line):
        _check(line)
    elif isinstance(line, GroupLine):
        check_group(line.name, "name")
    else:
        check_name(line.agent, "agent")
    return line


def _check(line: Line) -> None:
    check_name(line.id, "id")
    check_name(line.agent, "agent")
    if line.user != f"agent/{line.agent}":
        check_name(line.user, "user")
    for field, axis, owner in (
        ("users", line.users, line.user),
        ("agents", line.agents, line.agent),
    ):
        if axis.kind == "group":
            check_name(axis.name, field)
        elif axis.name != (owner if axis.kind == "one" else ""):
            raise CallerError(f"{field} must admit the owner, a group, or all", field=field)
    if line.users.kind != "one" and line.stream != "reusable":
        raise CallerError(
            "stream: the protected stream cannot reach other users",
            errno=Errno.EPERM,
            field="stream",
        )
    if check_text(line.text) != line.text:
        raise CallerError("text holds NUL or a lone surrogate", field="text")
    check_kinds((line.kind,), "kind")
    check_meta(line.meta)
    for field, name in (("session", line.session), ("supersedes", line.supersedes)):
        if name:
            check_name(name, field)
    if line.supersedes == line.id:
        raise CallerError("supersedes: a unit cannot supersede itself", field="supersedes")
    for field, number, least, most in (
        ("version", line.version, 1, LAST_VERSION),
        ("round", line.round, 0, (1 << 31) - 1),
    ):
        if not least <= number <= most:
            raise CallerError(f"{field} must be {least} to {most}", field=field)
    for field, when, year in (
        ("said_at", line.said_at, 1678),
        ("expires_at", line.expires_at or 0, 1678),
        ("stored_at", line.stored_at, 1970),
        ("born_at", line.born_at, 1970),
    ):
        if not (0 if year == 1970 else -LAST_TIME) <= when <= LAST_TIME:
            raise CallerError(f"{field} must lie between the years {year} and 2262", field=field)
