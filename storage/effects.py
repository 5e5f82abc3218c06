"""Effects in the store: one row a key of a pair, from its beginning to what became of it.

Rows hold words of callers for long, so these pass the secrets guard (promise ``secrets.never``).
Whether a key stands for the same thing is decided by the hash of what was handed over.
"""

from __future__ import annotations

import hashlib
import sqlite3

import msgspec

from isovist.storage.guard import clean
from isovist.syscalls.abi.effects import Body, Effect
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.ledger import (
    MAX_ARGUMENTS,
    MAX_ENDED,
    MAX_OPEN,
    MAX_RESULT,
    Begin,
    Begun,
    End,
    FindEffects,
    Resolve,
)

_pack = msgspec.msgpack.Encoder().encode
_effect = msgspec.msgpack.Decoder(Effect).decode
ENDED = ("done", "failed")


def body_of(text: str, limit: int) -> Body:
    """``text`` by reference, with what may be kept of it."""
    raw = text.encode()
    kept = clean(text).text if len(raw) <= limit else None
    return Body(hash=hashlib.sha256(raw).hexdigest(), size=len(raw), text=kept)


def begin(db: sqlite3.Connection, entry: Begin) -> Begun:
    """See :class:`~isovist.syscalls.ledger.Begin`."""
    effect = _cleaned(entry.effect)
    known = by_key(db, effect)
    if known is None:
        _check_room(db, effect)
        _write(db, effect)
        return Begun(effect=effect, fresh=True)
    check_same(known, effect)
    again = known.state == "retry" or (
        known.state == "unknown" and known.idempotent and effect.idempotent
    )
    if not again:
        return Begun(effect=known, fresh=False)
    tries, at = known.tries + 1, effect.started_at
    effect = msgspec.structs.replace(effect, id=known.id, tries=tries, started_at=at)
    _write(db, effect)
    return Begun(effect=effect, fresh=True)


def by_key(db: sqlite3.Connection, effect: Effect) -> Effect | None:
    row = db.execute(
        "SELECT body FROM effects WHERE user = ? AND agent = ? AND key = ?",
        (effect.user, effect.agent, effect.key),
    ).fetchone()
    return None if row is None else _effect(row[0])


def check_same(known: Effect, effect: Effect) -> None:
    """Raises ``EINVAL`` where the key of ``known`` was for something else."""
    if (known.kind, known.subject, known.arguments.hash) != (
        effect.kind,
        effect.subject,
        effect.arguments.hash,
    ):
        raise CallerError("key was used for another effect, or for other arguments", field="key")


def put_done(db: sqlite3.Connection, effect: Effect) -> None:
    """An effect that happens in this very transaction."""
    _write(db, _cleaned(effect))
    _prune(db, effect.user, effect.agent)


def end(db: sqlite3.Connection, entry: End) -> Effect:
    """See :class:`~isovist.syscalls.ledger.End`. What was said to be unknown may still turn out,
    while nobody has resolved it."""
    effect = _of(db, entry.id, entry.user, entry.agent)
    if entry.kind and effect.kind != entry.kind:
        raise CallerError(f"id is no {entry.kind}: the kernel itself ends it", field="id")
    if effect.state not in ("started", "unknown"):
        raise WorldError(f"the effect is {effect.state} already", errno=Errno.ESTALE, field="id")
    return _ended(db, effect, entry)


def resolve(db: sqlite3.Connection, entry: Resolve) -> Effect:
    """See :class:`~isovist.syscalls.ledger.Resolve`."""
    effect = _of(db, entry.id, entry.user, entry.agent)
    if effect.state != "unknown" and not (effect.state, entry.outcome) == ("failed", "retry"):
        raise WorldError(
            f"the effect is {effect.state}: there is nothing to say", errno=Errno.ESTALE, field="id"
        )
    if entry.outcome == "retry":
        return _write(db, msgspec.structs.replace(effect, state="retry", ended_at=0))
    failed = entry.outcome == "failed"
    said = End(
        id=entry.id,
        state=entry.outcome,
        at=entry.at,
        result="" if failed else entry.result,
        errno=Errno.ECANCELED if failed else 0,
        message=entry.result if failed else "",
    )
    return _ended(db, effect, said)


def withdraw(db: sqlite3.Connection, id_: str) -> None:
    """See :class:`~isovist.syscalls.ledger.Withdraw`."""
    effect = find_id(db, id_)
    if effect is None or effect.state != "started":
        return
    if effect.tries == 1:
        db.execute("DELETE FROM effects WHERE id = ?", (id_,))
    else:
        _write(db, msgspec.structs.replace(effect, state="retry"))


def recover(db: sqlite3.Connection, at: int) -> int:
    """See :class:`~isovist.syscalls.ledger.Recover`."""
    rows = db.execute("SELECT body FROM effects WHERE state = 'started' ORDER BY touched")
    started = [_effect(body) for (body,) in rows]
    for effect in started:
        why = "the kernel ended before the outcome was recorded"
        _write(db, msgspec.structs.replace(effect, state="unknown", ended_at=at, message=why))
    return len(started)


def find(db: sqlite3.Connection, q: FindEffects) -> tuple[Effect, ...]:
    where, values = ["1"], list[object]()
    for column, value in (("user", q.user), ("agent", q.agent), ("id", q.id), ("key", q.key)):
        if value:
            where.append(f"{column} = ?")
            values.append(value)
    for column, among in (("state", q.states), ("kind", q.kinds)):
        if among:
            where.append(f"{column} IN ({', '.join('?' * len(among))})")
            values += among
    rows = db.execute(
        f"SELECT body FROM effects WHERE {' AND '.join(where)} ORDER BY touched DESC LIMIT ?",
        (*values, q.limit),
    )
    found = tuple(_effect(body) for (body,) in rows)
    return found if q.texts else tuple(_without_texts(effect) for effect in found)


def find_id(db: sqlite3.Connection, id_: str) -> Effect | None:
    row = db.execute("SELECT body FROM effects WHERE id = ?", (id_,)).fetchone()
    return None if row is None else _effect(row[0])


def forget_user(db: sqlite3.Connection, user: str) -> None:
    db.execute("DELETE FROM effects WHERE user = ?", (user,))


def _of(db: sqlite3.Connection, id_: str, user: str, agent: str) -> Effect:
    effect = find_id(db, id_)
    if effect is None or user not in ("", effect.user) or agent not in ("", effect.agent):
        raise CallerError("no effect of that id", errno=Errno.ENOENT, field="id")
    return effect


def _ended(db: sqlite3.Connection, effect: Effect, said: End) -> Effect:
    after = msgspec.structs.replace(
        effect,
        state=said.state,
        ended_at=said.at,
        result=body_of(said.result, MAX_RESULT),
        errno=said.errno,
        message=clean(said.message[:MAX_ARGUMENTS]).text,
    )
    _write(db, after)
    if said.state in ENDED:
        _prune(db, effect.user, effect.agent)
    return after


def _write(db: sqlite3.Connection, effect: Effect) -> Effect:
    """As the latest of all."""
    db.execute("DELETE FROM effects WHERE id = ?", (effect.id,))
    db.execute(
        "INSERT INTO effects (id, user, agent, key, kind, state, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            effect.id,
            effect.user,
            effect.agent,
            effect.key,
            effect.kind,
            effect.state,
            _pack(effect),
        ),
    )
    return effect


def _check_room(db: sqlite3.Connection, effect: Effect) -> None:
    (count,) = db.execute(
        "SELECT count(*) FROM effects WHERE user = ? AND agent = ?"
        " AND state IN ('started', 'unknown', 'retry')",
        (effect.user, effect.agent),
    ).fetchone()
    if count >= MAX_OPEN:
        raise CallerError(
            f"{count} effects of this user and agent are under way or unknown, the limit; resolve "
            "some first",
            errno=Errno.EDQUOT,
            field="key",
        )


def _prune(db: sqlite3.Connection, user: str, agent: str) -> None:
    db.execute(
        "DELETE FROM effects WHERE touched IN (SELECT touched FROM effects WHERE user = ?"
        " AND agent = ? AND state IN ('done', 'failed') ORDER BY touched DESC LIMIT -1 OFFSET ?)",
        (user, agent, MAX_ENDED),
    )


def _cleaned(effect: Effect) -> Effect:
    """Raises ``EINVAL`` for a key that holds a secret: replaced, it would not be that key."""
    if clean(effect.key).text != effect.key:
        raise CallerError("key holds what looks like a secret", field="key")
    text = effect.arguments.text
    if text is not None:
        text = clean(text).text if effect.arguments.size <= MAX_ARGUMENTS else None
    arguments = msgspec.structs.replace(effect.arguments, text=text)
    subject = clean(effect.subject).text
    return msgspec.structs.replace(effect, subject=subject, arguments=arguments)


def _without_texts(effect: Effect) -> Effect:
    return msgspec.structs.replace(
        effect,
        arguments=msgspec.structs.replace(effect.arguments, text=None),
        result=effect.result and msgspec.structs.replace(effect.result, text=None),
    )
