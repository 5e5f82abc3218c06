"""The ledger of a store: effects, mail and timers, an entry at a time, a group in a transaction.

See :mod:`isovist.syscalls.ledger` for what each entry decides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager

from isovist.storage import effects, mail
from isovist.syscalls import ledger as led
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.errors import IsovistError, KernelError


def enter(db: sqlite3.Connection, entry: led.Entry) -> object:
    """Make one entry, in a transaction of the caller's. Raises typed errors, after which it must
    not be kept."""
    match entry:
        case led.Begin():
            return effects.begin(db, entry)
        case led.End():
            return effects.end(db, entry)
        case led.Resolve():
            return effects.resolve(db, entry)
        case led.Withdraw():
            effects.withdraw(db, entry.id)
            return None
        case led.Recover():
            return effects.recover(db, entry.at)
        case led.Send():
            return mail.send(db, entry)
        case led.Ack():
            return mail.ack(db, entry)
        case led.SetTimer():
            return mail.set_timer(db, entry)
        case led.DropTimer():
            return mail.drop_timer(db, entry)
        case led.Fire():
            mail.fire(db, entry)
            return None
        case _:
            raise KernelError(f"no such entry: {type(entry).__name__}")


def enter_all(db: sqlite3.Connection, entries: Sequence[led.Entry]) -> list[object]:
    """Make a group in order, in a transaction of the caller's; one that is refused leaves nothing
    behind, and its answer is the error. A bug met by one harms none of the others."""
    answers: list[object] = []
    for entry in entries:
        db.execute("SAVEPOINT entry")
        try:
            answers.append(enter(db, entry))
        except sqlite3.Error:
            raise  # the disk: then nothing of the group is kept
        except Exception as e:
            db.execute("ROLLBACK TO entry")
            broke = KernelError(f"the ledger broke: {type(e).__name__}")
            answers.append(e if isinstance(e, IsovistError) else broke)
        db.execute("RELEASE entry")
    return answers


def ask(db: sqlite3.Connection, question: led.Question) -> object:
    match question:
        case led.FindEffects():
            return effects.find(db, question)
        case led.FindMail():
            return mail.find(db, question)
        case led.FindBoxes():
            return mail.boxes(db, question)
        case led.FindTimers():
            return mail.timers(db, question)
        case _:
            raise KernelError(f"no such question: {type(question).__name__}")


def forget_user(db: sqlite3.Connection, user: str) -> None:
    effects.forget_user(db, user)
    mail.forget_user(db, user)


def sizes(db: sqlite3.Connection) -> dict[str, int]:
    """How much there is of each, of all pairs together."""
    (open_, known), (mails, held), (timers,) = (
        db.execute(statement).fetchone()
        for statement in (
            "SELECT count(*) FILTER (WHERE state IN ('started', 'unknown', 'retry')), count(*)"
            " FROM effects",
            "SELECT count(*), coalesce(sum(bytes), 0) FROM mail",
            "SELECT count(*) FROM timers",
        )
    )
    return {
        "effects": known,
        "effects_open": open_,
        "mail": mails,
        "mail_bytes": held,
        "timers": timers,
    }


class KeepsLedger:
    """What :class:`~isovist.storage.backend.Backend` says of the ledger, over the tables of
    :data:`isovist.storage.schema.LEDGER`."""

    def _learning(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        """The connection that holds the tables; see :class:`isovist.storage.learned.KeepsLearning`,
        with which they are shared."""
        raise NotImplementedError

    def enter(self, entries: Sequence[led.Entry]) -> list[object]:
        with self._learning(write=True) as db:
            return enter_all(db, entries)

    def ask(self, question: led.Question) -> object:
        with self._learning(write=False) as db:
            return ask(db, question)

    def timers(self) -> tuple[Timer, ...]:
        with self._learning(write=False) as db:
            return mail.timers(db, led.FindTimers())
