"""Saved contexts: conversations that a pair of user and agent keeps under names.

A context is no unit: it is in no view, is found by no query, and is read by its pair alone, under
its name. Its text passes the same secrets guard (promise ``secrets.never``): :func:`prepare` makes
the only value that a store takes. What a model holds of a context is no business of the store; its
file is named by the context's ``id`` and means nothing without the row.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter
from typing import Any, TypeVar

import msgspec

from isovist.storage.guard import clean
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import MAX_CONTEXT
from isovist.syscalls.operations import Context
from isovist.syscalls.records import Message, SavedContext, Tool

_pack = msgspec.msgpack.Encoder().encode
_messages = msgspec.msgpack.Decoder(tuple[Message, ...]).decode
Said = TypeVar("Said", Message, Tool)
_PLAIN = frozenset({"role"})
"""Fields of them that are words of ours, and no text of anybody's."""
_JSON = frozenset({"arguments"})
"""Fields that hold a JSON object as text."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A context that may be stored: cleaned, and as its row holds it. ``bytes`` are those of its
    messages before they were deflated to ``body``; ``secrets`` were replaced, by type."""

    context: Context
    body: bytes
    bytes: int
    secrets: dict[str, int]


def prepare(context: Context) -> Ready:
    """Replace secrets and deflate. In any thread: it takes a second for half a megabyte.

    Tools are cleaned as well: a model's state holds them. Raises ``EMSGSIZE`` where the messages
    take more than ``MAX_CONTEXT`` bytes.
    """
    _check_size(len(_pack(context.messages)))
    secrets: Counter[str] = Counter()
    messages = tuple(cleaned(message, secrets) for message in context.messages)
    tools = tuple(cleaned(tool, secrets) for tool in context.tools)
    packed = _pack(messages)
    _check_size(len(packed))
    return Ready(
        context=msgspec.structs.replace(context, messages=messages, tools=tools),
        body=zlib.compress(packed, 6),
        bytes=len(packed),
        secrets=dict(secrets),
    )


def _check_size(size: int) -> None:
    if size > MAX_CONTEXT:
        raise CallerError(
            f"messages have {size} bytes, the limit of a context is {MAX_CONTEXT}",
            errno=Errno.EMSGSIZE,
            field="messages",
        )


def cleaned(said: Said, secrets: Counter[str]) -> Said:
    """Past the secrets guard in each of its texts; counted in ``secrets``."""
    plain = msgspec.to_builtins(said)
    clear = {
        name: value if name in _PLAIN else _clean(value, secrets) for name, value in plain.items()
    }
    return said if clear == plain else msgspec.convert(clear, type(said))


def _clean(value: Any, secrets: Counter[str]) -> Any:
    """Every text in ``value``, cleaned; counted in ``secrets``."""
    if isinstance(value, str):
        found = clean(value)
        secrets.update(found.counts)
        return found.text
    if isinstance(value, list | tuple):
        return [_clean(item, secrets) for item in value]
    if isinstance(value, dict):
        cleaned = {key: _clean(item, secrets) for key, item in value.items()}
        for key in _JSON & value.keys():
            # In place of a number a placeholder is no JSON, and no chat would take the turn back.
            if _is_object(value[key]) and not _is_object(cleaned[key]):
                cleaned[key] = msgspec.json.encode({"text": cleaned[key]}).decode()
        return cleaned
    return value


def _is_object(text: str) -> bool:
    try:
        return text[:1] == "{" and isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, RecursionError):
        return False


def check_room(count: int, total: int, size: int, most: int, most_bytes: int) -> None:
    """Raises ``EDQUOT`` where a pair that keeps ``count`` others of ``total`` bytes may not have
    one of ``size`` bytes more."""
    if count >= most:
        raise CallerError(
            f"{count} contexts are kept for this user and agent, the limit; drop one first",
            errno=Errno.EDQUOT,
            field="name",
        )
    if total + size > most_bytes:
        raise CallerError(
            f"messages: with these {size} bytes the contexts of this user and agent would take "
            f"{total + size}, the limit is {most_bytes}; drop one first",
            errno=Errno.EDQUOT,
            field="messages",
        )


# Writes run in a transaction of the caller's.


def save(db: sqlite3.Connection, ready: Ready, most: int, most_bytes: int) -> str:
    """See :meth:`isovist.storage.backend.Backend.save_context`."""
    context = ready.context
    pair, name = (context.user, context.agent), context.name
    count, total = db.execute(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM contexts"
        " WHERE user = ? AND agent = ? AND name <> ?",
        (*pair, name),
    ).fetchone()
    check_room(count, total, ready.bytes, most, most_bytes)
    replaced = drop(db, *pair, name)
    db.execute(
        "INSERT INTO contexts (user, agent, name, id, model, saved_at, messages, bytes, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*pair, name, context.id, context.model, context.saved_at, len(context.messages),
         ready.bytes, ready.body),
    )  # fmt: skip
    return replaced


def find(db: sqlite3.Connection, user: str, agent: str, name: str) -> Context | None:
    row = db.execute(
        "SELECT id, model, saved_at, body FROM contexts WHERE user = ? AND agent = ? AND name = ?",
        (user, agent, name),
    ).fetchone()
    if row is None:
        return None
    id_, model, saved_at, body = row
    return Context(
        user=user,
        agent=agent,
        name=name,
        id=id_,
        model=model,
        messages=_messages(zlib.decompress(body)),
        saved_at=saved_at,
    )


def kept(db: sqlite3.Connection, user: str, agent: str) -> tuple[SavedContext, ...]:
    rows = db.execute(
        "SELECT name, model, messages, bytes, saved_at FROM contexts"
        " WHERE user = ? AND agent = ? ORDER BY name",
        (user, agent),
    )
    return tuple(
        SavedContext(name=name, model=model, messages=messages, bytes=size, saved_at=saved_at)
        for name, model, messages, size, saved_at in rows
    )


def drop(db: sqlite3.Connection, user: str, agent: str, name: str) -> str:
    """The id of what was dropped; empty: nothing was there."""
    row = db.execute(
        "DELETE FROM contexts WHERE user = ? AND agent = ? AND name = ? RETURNING id",
        (user, agent, name),
    ).fetchone()
    return str(row[0]) if row else ""


def forget_user(db: sqlite3.Connection, user: str) -> None:
    db.execute("DELETE FROM contexts WHERE user = ?", (user,))


def ids(db: sqlite3.Connection) -> frozenset[str]:
    return frozenset(id_ for (id_,) in db.execute("SELECT id FROM contexts"))


def sizes(db: sqlite3.Connection) -> tuple[int, int]:
    """How many there are, and the bytes of their messages, of all pairs together."""
    count, total = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM contexts").fetchone()
    return int(count), int(total)
