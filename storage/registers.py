"""What the kernel keeps beside units: audit records, grants, groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from isovist.storage import agents
from isovist.storage.backend import Grants, Groups
from isovist.storage.rules import without
from isovist.syscalls.messages import Record
from isovist.syscalls.records import Injected, Usage

_pack = msgspec.msgpack.Encoder().encode
_names = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_record = msgspec.msgpack.Decoder(Record).decode

_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "injected_tokens")
_TIMES = ("queue", "barrier", "retrieval", "prefill", "decode")
_SUMMED = ("calls", "failed", *_COUNTS, *_TIMES)

# All writes run in a transaction of the caller's.


def save_records(db: sqlite3.Connection, records: Sequence[Record]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO records (call, body) VALUES (?, ?)",
        [(record.call, _pack(record)) for record in records],
    )


def record(db: sqlite3.Connection, call: str) -> Record | None:
    found = db.execute("SELECT body FROM records WHERE call = ?", (call,)).fetchone()
    return _record(found[0]) if found else None


def all_records(db: sqlite3.Connection) -> Iterator[Record]:
    return (_record(body) for (body,) in db.execute("SELECT body FROM records"))


def usage(records: Iterable[Record], by: str, since: int, until: int | None) -> tuple[Usage, ...]:
    """The chats among ``records`` that ended in time, added up by the field ``by``."""
    sums: dict[str, dict[str, float]] = {}
    for record in records:
        late = until is not None and record.at >= until
        if record.syscall != "chat" or record.at < since or late:
            continue
        total = sums.setdefault(getattr(record, by), dict.fromkeys(_SUMMED, 0))
        total["calls"] += 1
        total["failed"] += record.errno != 0
        for field in _COUNTS:
            total[field] += getattr(record, field)
        for field in _TIMES:
            total[field] += getattr(record.timings, field)
    return tuple(
        msgspec.convert({"name": name, **sums[name]}, Usage, strict=False) for name in sorted(sums)
    )


def save_grant(
    db: sqlite3.Connection, agent: str, users: Sequence[str], scopes: Sequence[str]
) -> None:
    if users or scopes:
        db.execute(
            "INSERT OR REPLACE INTO grants (agent, users, scopes) VALUES (?, ?, ?)",
            (agent, _pack(tuple(users)), _pack(tuple(scopes))),
        )
    else:
        db.execute("DELETE FROM grants WHERE agent = ?", (agent,))


def grants(db: sqlite3.Connection) -> Grants:
    rows = db.execute("SELECT agent, users, scopes FROM grants ORDER BY agent")
    return {agent: (_names(users), _names(scopes)) for agent, users, scopes in rows}


def save_group(db: sqlite3.Connection, of: str, name: str, members: Sequence[str]) -> None:
    """A line without a member says that the group is known."""
    db.execute("DELETE FROM groups WHERE axis = ? AND name = ?", (of, name))
    db.executemany(
        "INSERT INTO groups (axis, name, member) VALUES (?, ?, ?)",
        [(of, name, member) for member in {"", *members}],
    )


def groups(db: sqlite3.Connection) -> Groups:
    found: dict[tuple[str, str], list[str]] = {}
    for of, name, member in db.execute("SELECT axis, name, member FROM groups ORDER BY 1, 2, 3"):
        members = found.setdefault((of, name), [])
        if member:
            members.append(member)
    return {key: tuple(members) for key, members in found.items()}


def without_user(record: Record, user: str, gone: Collection[str]) -> Record | None:
    """What a record says when ``user`` and the units ``gone`` are forgotten; ``None``: the same."""
    if record.user == user:
        return msgspec.structs.replace(
            record, user="", sequences=(), units=(), query_hash="", forgotten=True
        )
    if not any(shown.unit in gone for shown in record.units):
        return None
    return msgspec.structs.replace(
        record, units=tuple(_nameless(u) if u.unit in gone else u for u in record.units)
    )


def _nameless(shown: Injected) -> Injected:
    return msgspec.structs.replace(shown, unit="", version=0, hash="")


def forget_user(db: sqlite3.Connection, user: str, gone: Collection[str]) -> None:
    """Out of all groups, grants and records, where its units ``gone`` stand too."""
    changed = [
        (_pack(left), call)
        for call, body in db.execute("SELECT call, body FROM records")
        if (left := without_user(_record(body), user, gone)) is not None
    ]
    db.executemany("UPDATE records SET body = ? WHERE call = ?", changed)
    db.execute("DELETE FROM groups WHERE axis = 'users' AND member = ? AND member <> ''", (user,))
    for agent, (users, scopes) in grants(db).items():
        if user in users:
            save_grant(db, agent, without(user, users), scopes)
    agents.forget_user(db, user)
