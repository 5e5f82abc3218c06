"""What is kept of agents beside their grants of users and scopes: mail, tools, approvals."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from isovist.syscalls.manifest import Approval
from isovist.syscalls.records import ToolRule

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


def forget_user(db: sqlite3.Connection, user: str) -> None:
    """A manifest that names a forgotten user is approved no more."""
    for agent, approval in approvals(db).items():
        if user in approval.manifest.users:
            save_approval(db, agent, None)
