"""What can still be proved of a recorded call: that each unit it was shown was what the record says
and lay in the reader's view. Read from the file alone; no kernel is asked."""

from __future__ import annotations

import sqlite3
from hashlib import blake2b
from typing import Literal

import msgspec

from isovist.syscalls.messages import Record
from isovist.syscalls.records import Axis, Injected, Partition

State = Literal["as recorded", "changed since", "erased since", "wrong"]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a unit that a call was shown. ``wrong``: it contradicts its record, ``why``
    says how. What has another version or audience by now is ``changed``, what is gone ``erased``:
    of these the record's word is all there is."""

    unit: str
    version: int
    scope: str
    state: State
    why: str = ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """``question``: whether the question that was given is the one recorded (``None``: none was
    given)."""

    call: str
    syscall: str
    agent: str
    user: str
    at: int
    units: tuple[Shown, ...]
    question: bool | None = None

    @property
    def holds(self) -> bool:
        return self.question is not False and all(one.state != "wrong" for one in self.units)


def keyed(text: str, key: bytes) -> str:
    """As records hold hashes; see :mod:`isovist.kernel.state.audit`."""
    return blake2b(text.encode(errors="replace"), key=key, digest_size=16).hexdigest()


def replay(
    db: sqlite3.Connection, record: Record, key: bytes, question: str | None = None
) -> Replayed:
    """``question`` in the words in which it was asked; no record holds them."""
    return Replayed(
        call=record.call,
        syscall=record.syscall,
        agent=record.agent,
        user=record.user,
        at=record.at,
        units=tuple(_shown(db, record, one, key) for one in record.units),
        question=None if question is None else keyed(question, key) == record.query_hash,
    )


def _shown(db: sqlite3.Connection, record: Record, one: Injected, key: bytes) -> Shown:
    def told(state: State, why: str = "") -> Shown:
        return Shown(unit=one.unit, version=one.version, scope=one.scope, state=state, why=why)

    if not one.unit:
        return told("erased since", "its user was forgotten")
    row = db.execute(
        "SELECT version, hash, stored_at, agent, users_kind, users_name, agents_kind, agents_name"
        " FROM units JOIN partitions USING (pid) WHERE id = ?",
        (one.unit,),
    ).fetchone()
    if row is None:
        return told("erased since")
    version, hash_, stored_at, owner, *axes = row
    if version < one.version:
        return told("wrong", f"it has version {version} only")
    if version > one.version:
        return told("changed since", f"it has version {version} now")
    partition = Partition(Axis(*axes[:2]), Axis(*axes[2:]))
    if keyed(hash_.hex(), key) != one.hash:
        return told("wrong", "another text has this id and version")
    if owner != one.owner:
        return told("wrong", f"its owner is {owner}, not {one.owner}")
    if partition.scope != one.scope:
        return told("wrong", f"its scope is {partition.scope}")
    if stored_at > record.at:
        return told("wrong", "it was stored after the call")
    if why := _outside(partition, record):
        return told("wrong", why)
    return told("as recorded")


def _outside(partition: Partition, record: Record) -> str:
    """Why a partition is none of the view that a record tells of; empty: it is one."""
    if partition.users.kind == "one" and partition.users.name != record.user:
        return "it is another user's"
    if partition.agents.kind == "one" and partition.agents.name != record.agent:
        return "it is another agent's"
    if partition.scope not in dict(record.sequences):
        return f"{partition.scope} was not in the view"
    return ""
