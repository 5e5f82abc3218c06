"""What is kept of agents beside their grants of users and scopes: mail, tools, approvals."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

import msgspec

from isovist.syscalls.manifest import Approval
from isovist.syscalls.operations import Move, Published
from isovist.syscalls.records import Axis, Partition, ToolRule, partition_of

Permissions = dict[str, tuple[tuple[str, ...], tuple[ToolRule, ...]]]
"""By agent: the agents that it may send mail to, and the tools that it may call."""

_pack = msgspec.msgpack.Encoder().encode
_names = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_rules = msgspec.msgpack.Decoder(tuple[ToolRule, ...]).decode
_approval = msgspec.msgpack.Decoder(Approval).decode

# All writes run in a transaction of the caller's.


def save_permissions(
    db: sqlite3.Connection, agent: str, mail: Sequence[str], tools: Sequence[ToolRule]
) -> None:
    if mail or tools:
        db.execute(
            "INSERT OR REPLACE INTO permissions (agent, mail, tools) VALUES (?, ?, ?)",
            (agent, _pack(tuple(mail)), _pack(tuple(tools))),
        )
    else:
        db.execute("DELETE FROM permissions WHERE agent = ?", (agent,))


def permissions(db: sqlite3.Connection) -> Permissions:
    rows = db.execute("SELECT agent, mail, tools FROM permissions ORDER BY agent")
    return {agent: (_names(mail), _rules(tools)) for agent, mail, tools in rows}


def save_approval(db: sqlite3.Connection, agent: str, approval: Approval | None) -> None:
    if approval is None:
        db.execute("DELETE FROM approvals WHERE agent = ?", (agent,))
    else:
        db.execute(
            "INSERT OR REPLACE INTO approvals (agent, body) VALUES (?, ?)",
            (agent, _pack(approval)),
        )


def approvals(db: sqlite3.Connection) -> dict[str, Approval]:
    rows = db.execute("SELECT agent, body FROM approvals ORDER BY agent")
    return {agent: _approval(body) for agent, body in rows}


# -- distrust


def save_distrust(db: sqlite3.Connection, agent: str, on: bool) -> None:
    if on:
        db.execute("INSERT OR IGNORE INTO distrusted (agent) VALUES (?)", (agent,))
    else:
        db.execute("DELETE FROM distrusted WHERE agent = ?", (agent,))


def distrusted(db: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(agent for (agent,) in db.execute("SELECT agent FROM distrusted ORDER BY agent"))


def moved(db: sqlite3.Connection, op: Move) -> None:
    """A unit has another audience: note the one that it had, if it is being hidden."""
    left(db, op.id)
    if op.hidden == "away":
        users, agents = op.partition.users, op.partition.agents
        db.execute(
            "INSERT INTO hidden VALUES (?, ?, ?, ?, ?)",
            (op.id, users.kind, users.name, agents.kind, agents.name),
        )


def left(db: sqlite3.Connection, unit: str) -> None:
    """A unit is gone, or nobody hides it any more."""
    db.execute("DELETE FROM hidden WHERE unit = ?", (unit,))


def hidden(db: sqlite3.Connection, unit: str) -> Partition | None:
    """The audience that a hidden unit had."""
    row = db.execute(
        "SELECT users_kind, users_name, agents_kind, agents_name FROM hidden WHERE unit = ?",
        (unit,),
    ).fetchone()
    return Partition(Axis(*row[:2]), Axis(*row[2:])) if row else None


def published_by(db: sqlite3.Connection, agent: str) -> set[str]:
    """Ids of the entries that were learned from nobody but ``agent``: by whomever they are kept,
    it is their author."""
    return {
        unit
        for (unit,) in db.execute(
            "SELECT unit FROM origins GROUP BY unit HAVING min(agent) = ?1 AND max(agent) = ?1",
            (agent,),
        )
    }


def published(
    db: sqlite3.Connection, agent: str, back: bool, limit: int, skip: Collection[tuple[str, int]]
) -> tuple[Published, ...]:
    """See :meth:`isovist.storage.backend.Backend.published`."""
    learned = published_by(db, agent)
    rows = db.execute(
        "SELECT id, version, user, agent, users_kind, users_name, agents_kind, agents_name"
        " FROM units JOIN partitions USING (pid) ORDER BY uid"
    )
    found: list[Published] = []
    for id_, version, user, owner, *axes in rows:
        if owner != agent and id_ not in learned:
            continue
        partition = Partition(Axis(*axes[:2]), Axis(*axes[2:]))
        to = hidden(db, id_) if back else partition_of("pair", user, owner)
        if to is None or to == partition or (id_, version) in skip:
            continue
        found.append(Published(id=id_, version=version, user=user, partition=partition, to=to))
        if len(found) == limit:
            break
    return tuple(found)


def forget_user(db: sqlite3.Connection, user: str) -> None:
    """A manifest that names a forgotten user is approved no more."""
    for agent, approval in approvals(db).items():
        if user in approval.manifest.users:
            save_approval(db, agent, None)
