"""The line format of exports: one unit as one JSON object, without loss.

A line says all that a unit is: its words and labels, whose it is and whom it is for, its id and
version. What an index can make anew (vectors, terms, the name of a session's handle) is not in
it. Times are nanoseconds since 1970 UTC; an axis is ``["one", NAME]``, ``["group", NAME]`` or
``["all", ""]``.
"""

from __future__ import annotations

import msgspec

from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_kinds, check_meta, check_name, check_text
from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Axis, Partition, Stream

FORMAT = 1
"""Of a line; a reader refuses what is newer than itself."""


class Line(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One unit. ``user`` and ``agent`` own it, ``users`` and ``agents`` are its audience.

    Invariant (of a line that :func:`read` gave): an axis that admits one, admits the owner.
    """

    format: int
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

    @property
    def partition(self) -> Partition:
        return Partition(self.users, self.agents)


class _Head(msgspec.Struct):
    format: int = 0


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
        session=unit.session,
        round=unit.round,
        expires_at=unit.expires_at,
        supersedes=unit.supersedes,
        meta=unit.meta,
    )
    return msgspec.json.encode(line).decode()


def read(text: str) -> Line:
    """The unit of a line. Raises :class:`CallerError` that names the field and its rule."""
    try:
        head = msgspec.json.decode(text, type=_Head)
        if not 1 <= head.format <= FORMAT:
            raise CallerError(f"format {head.format}, this Isovist reads 1 to {FORMAT}")
        line = msgspec.json.decode(text, type=Line)
    except (msgspec.MsgspecError, UnicodeError) as e:
        raise CallerError(f"not a line of an export: {e}") from None
    _check(line)
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
    for field, number, least in (
        ("version", line.version, 1),
        ("round", line.round, 0),
        ("stored_at", line.stored_at, 0),
        ("said_at", line.said_at, -(1 << 63)),
        ("expires_at", line.expires_at or 0, -(1 << 63)),
    ):
        if not least <= number < (1 << 31 if field == "round" else 1 << 63):
            raise CallerError(f"{field} is out of range", field=field)
