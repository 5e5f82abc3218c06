"""Boxes of mail, and timers, in the store. Texts pass the secrets guard (``secrets.never``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from isovist.storage import effects
from isovist.storage.guard import clean
from isovist.syscalls.abi.mail import Mail, MailBox
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.ledger import (
    MAX_MAIL,
    MAX_MAIL_BYTES,
    MAX_TIMERS,
    Ack,
    DropTimer,
    FindBoxes,
    FindMail,
    FindTimers,
    Fire,
    MailFound,
    Send,
    Sent,
    SetTimer,
)

_pack = msgspec.msgpack.Encoder().encode
_mail = msgspec.msgpack.Decoder(Mail).decode
_timer = msgspec.msgpack.Decoder(Timer).decode


def send(db: sqlite3.Connection, entry: Send) -> Sent:
    """See :class:`~isovist.syscalls.ledger.Send`."""
    known = effects.by_key(db, entry.effect)
    if known is not None:
        effects.check_same(known, entry.effect)
        return Sent(id=known.result.text or "" if known.result else "", fresh=False)
    found = clean(entry.mail.text)
    _put(db, entry.agent, entry.user, [msgspec.structs.replace(entry.mail, text=found.text)])
    effects.put_done(db, entry.effect)
    return Sent(id=entry.mail.id, fresh=True, secrets=dict(found.counts))


def _put(db: sqlite3.Connection, agent: str, user: str, mails: Iterable[Mail]) -> None:
    """Into the box, all or (where one does not fit) none. Raises ``EAGAIN``."""
    count, held, _ = _measure(db, agent, user)
    for mail in mails:
        size = len(mail.text.encode())
        if count + 1 > MAX_MAIL or held + size > MAX_MAIL_BYTES:
            raise WorldError(
                f"the box holds {count} messages of {held} bytes, and takes {MAX_MAIL} of "
                f"{MAX_MAIL_BYTES}",
                errno=Errno.EAGAIN,
                field="to",
            )
        done = db.execute(
            "INSERT INTO mail (id, user, agent, from_user, sent_at, bytes, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            (mail.id, user, agent, mail.from_user, mail.at, size, _pack(mail)),
        )
        count, held = count + done.rowcount, held + size * done.rowcount


def ack(db: sqlite3.Connection, entry: Ack) -> int:
    """See :class:`~isovist.syscalls.ledger.Ack`."""
    gone = 0
    for id_ in entry.ids:
        gone += db.execute(
            "DELETE FROM mail WHERE id = ? AND user = ? AND agent = ?",
            (id_, entry.user, entry.agent),
        ).rowcount
    return gone


def find(db: sqlite3.Connection, q: FindMail) -> MailFound:
    """See :class:`~isovist.syscalls.ledger.FindMail`."""
    but = frozenset(q.but)
    rows = db.execute(
        "SELECT id FROM mail WHERE user = ? AND agent = ? ORDER BY number", (q.user, q.agent)
    )
    free = [id_ for (id_,) in rows if id_ not in but]
    mails = [
        _mail(body)
        for id_ in free[: q.limit]
        for (body,) in db.execute("SELECT body FROM mail WHERE id = ?", (id_,))
    ]
    return MailFound(mails=tuple(mails), left=len(free) - len(mails))


def boxes(db: sqlite3.Connection, q: FindBoxes) -> tuple[MailBox, ...]:
    rows = db.execute(
        "SELECT agent, user, count(*), sum(bytes), min(sent_at) FROM mail"
        " WHERE ? IN ('', user) AND ? IN ('', agent) GROUP BY user, agent ORDER BY agent, user",
        (q.user, q.agent),
    )
    return tuple(
        MailBox(
            agent=agent, user=user, messages=count, bytes=held, oldest_at=oldest,
            most=MAX_MAIL, most_bytes=MAX_MAIL_BYTES,
        )
        for agent, user, count, held, oldest in rows
    )  # fmt: skip


def _measure(db: sqlite3.Connection, agent: str, user: str) -> tuple[int, int, int]:
    count, held, oldest = db.execute(
        "SELECT count(*), coalesce(sum(bytes), 0), coalesce(min(sent_at), 0) FROM mail"
        " WHERE user = ? AND agent = ?",
        (user, agent),
    ).fetchone()
    return int(count), int(held), int(oldest)


# -- timers


def set_timer(db: sqlite3.Connection, entry: SetTimer) -> Timer:
    """See :class:`~isovist.syscalls.ledger.SetTimer`."""
    timer = msgspec.structs.replace(entry.timer, text=clean(entry.timer.text).text)
    (count,) = db.execute(
        "SELECT count(*) FROM timers WHERE user = ? AND agent = ? AND id <> ?",
        (timer.user, timer.agent, timer.id),
    ).fetchone()
    if count >= MAX_TIMERS:
        raise CallerError(
            f"{count} timers are set for this user and agent, the limit; cancel one first",
            errno=Errno.EDQUOT,
            field="name",
        )
    return _keep(db, timer)


def drop_timer(db: sqlite3.Connection, entry: DropTimer) -> Timer:
    timer = _find_timer(db, entry.id)
    if timer is None or (timer.agent, timer.user) != (entry.agent, entry.user):
        raise CallerError("no timer of that id", errno=Errno.ENOENT, field="id")
    db.execute("DELETE FROM timers WHERE id = ?", (entry.id,))
    return timer


def fire(db: sqlite3.Connection, entry: Fire) -> None:
    """See :class:`~isovist.syscalls.ledger.Fire`."""
    timer = _find_timer(db, entry.id)
    if timer is None or timer.next_at != entry.due:
        raise CallerError("the timer is gone, or has fired", errno=Errno.ENOENT, field="id")
    _put(db, timer.agent, timer.user, entry.mails)
    if entry.next_at:
        sent = timer.sent + len(entry.mails)
        _keep(db, msgspec.structs.replace(timer, next_at=entry.next_at, sent=sent))
    else:
        db.execute("DELETE FROM timers WHERE id = ?", (entry.id,))


def timers(db: sqlite3.Connection, q: FindTimers) -> tuple[Timer, ...]:
    rows = db.execute(
        "SELECT body FROM timers WHERE ? IN ('', user) AND ? IN ('', agent) ORDER BY next_at, id",
        (q.user, q.agent),
    )
    return tuple(_timer(body) for (body,) in rows)


def _find_timer(db: sqlite3.Connection, id_: str) -> Timer | None:
    row = db.execute("SELECT body FROM timers WHERE id = ?", (id_,)).fetchone()
    return None if row is None else _timer(row[0])


def _keep(db: sqlite3.Connection, timer: Timer) -> Timer:
    db.execute(
        "INSERT OR REPLACE INTO timers (id, user, agent, next_at, body) VALUES (?, ?, ?, ?, ?)",
        (timer.id, timer.user, timer.agent, timer.next_at, _pack(timer)),
    )
    return timer


# -- the end of a user


def forget_user(db: sqlite3.Connection, user: str) -> None:
    """What was sent to pairs of the user or for the user, and what these pairs have ordered."""
    db.execute("DELETE FROM mail WHERE user = ? OR from_user = ?", (user, user))
    db.execute("DELETE FROM timers WHERE user = ?", (user,))
