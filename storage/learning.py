"""What the store keeps of learning: submissions on their way, which units were learned and from
whom, and what users consent to.

A submission is worked on in steps, each of which is durable before the next begins, so that a
kernel that dies goes on where it was. Its text goes when it has ended. An entry is a unit like any
other, and is read like any other; here stands only where it comes from. A user who is forgotten
takes submissions and consent along, and every trace of having been an origin.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from isovist.storage.contexts import cleaned
from isovist.storage.guard import clean
from isovist.storage.rules import Refused
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import Learned
from isovist.syscalls.records import Message, Origin, Submission

_pack = msgspec.msgpack.Encoder().encode
_report = msgspec.msgpack.Decoder(Submission).decode
MAX_TRAJECTORY = 512 * 1024
"""Bytes of MessagePack that the messages of one submission take."""
PARKED = 16
"""Parked submissions of a pair whose text is kept, the latest ones."""
ENDED = ("done", "refused")
"""States in which nothing of a submission's text is left."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the next step of a submission needs, past the secrets guard.

    ``streams`` is there from the first step on and ``plan`` from the second, each as the kernel
    packed it.
    """

    task: str
    trajectory: tuple[Message, ...]
    verifier_tail: str = ""
    claim: str = ""
    streams: bytes = b""
    plan: bytes = b""


_work = msgspec.msgpack.Decoder(Work).decode


class Filed(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that may be stored: cleaned, and as its row holds it. ``key`` is the digest of
    the one that was given, or empty."""

    submission: Submission
    key: str
    body: bytes


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote an entry last, and where it comes from, oldest first."""

    writer: str
    origins: tuple[Origin, ...]


def file(submission: Submission, key: str, work: Work) -> Filed:
    """Replace secrets and deflate. In any thread: it takes a second for half a megabyte. Raises
    ``EMSGSIZE`` where the messages take more than ``MAX_TRAJECTORY`` bytes."""
    size = len(_pack(work.trajectory))
    if size > MAX_TRAJECTORY:
        raise CallerError(
            f"trajectory has {size} bytes, the limit is {MAX_TRAJECTORY}",
            errno=Errno.EMSGSIZE,
            field="trajectory",
        )
    secrets: Counter[str] = Counter()

    def clear(text: str) -> str:
        found = clean(text)
        secrets.update(found.counts)
        return found.text

    work = msgspec.structs.replace(
        work,
        task=clear(work.task),
        trajectory=tuple(cleaned(message, secrets) for message in work.trajectory),
        verifier_tail=clear(work.verifier_tail),
        claim=clear(work.claim),
    )
    submission = msgspec.structs.replace(submission, secrets=dict(secrets))
    # A key is compared and never shown, and whoever chose it may have put a secret into it.
    key = key and hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return Filed(submission=submission, key=key, body=_deflate(work))


# Writes run in a transaction of the caller's.


def submit(db: sqlite3.Connection, filed: Filed, most: int) -> tuple[Submission, bool]:
    """See :meth:`isovist.storage.backend.Backend.submit`."""
    one = filed.submission
    if filed.key:
        known = db.execute(
            "SELECT report FROM submissions WHERE user = ? AND agent = ? AND key = ? AND key <> ''",
            (one.user, one.agent, filed.key),
        ).fetchone()
        if known is not None:
            return _report(known[0]), True
    (waiting,) = db.execute(
        "SELECT count(*) FROM submissions INDEXED BY submissions_open"
        " WHERE state = 'queued' AND user = ? AND agent = ?",
        (one.user, one.agent),
    ).fetchone()
    if waiting >= most:
        raise CallerError(
            f"{waiting} submissions of this user and agent wait to be learned from, the limit",
            errno=Errno.EAGAIN,
        )
    db.execute(
        "INSERT INTO submissions (id, user, agent, key, state, outcome, submitted_at, report, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (one.id, one.user, one.agent, filed.key, one.state, one.outcome, one.submitted_at,
         _pack(one), filed.body),
    )  # fmt: skip
    return one, False


def step(db: sqlite3.Connection, report: Submission, work: Work) -> bool:
    """The submission has come a step further; false where it is there no more."""
    done = db.execute(
        "UPDATE submissions SET report = ?, body = ? WHERE id = ?"
        " AND state NOT IN ('done', 'refused')",
        (_pack(report), _deflate(work), report.id),
    )
    return bool(done.rowcount)


def conclude(db: sqlite3.Connection, report: Submission) -> bool:
    """The submission has come to its end, or (``queued``) to a new beginning. Its text goes, unless
    it is parked or begins anew. False where it is there no more."""
    keeps = report.state not in ENDED
    done = db.execute(
        "UPDATE submissions SET state = ?, report = ?, body = iif(?, body, x'')"
        " WHERE id = ? AND state NOT IN ('done', 'refused')"
        # What has lost its text meanwhile cannot begin anew.
        " AND (? <> 'queued' OR body <> x'')",
        (report.state, _pack(report), keeps, report.id, report.state),
    )
    if report.state == "parked":
        older = "user = ? AND agent = ? ORDER BY number DESC LIMIT -1 OFFSET ?"
        _shed(db, older, (report.user, report.agent, PARKED))
    return bool(done.rowcount)


def _shed(db: sqlite3.Connection, which: str, values: tuple[object, ...]) -> None:
    """The text of ``which`` parked submissions goes; they cannot be tried again."""
    rows = db.execute(
        f"SELECT report FROM submissions WHERE state = 'parked' AND body <> x'' AND {which}", values
    ).fetchall()
    for (packed,) in rows:
        report = msgspec.structs.replace(_report(packed), kept=False)
        db.execute(
            "UPDATE submissions SET report = ?, body = x'' WHERE id = ?",
            (_pack(report), report.id),
        )


def enter(db: sqlite3.Connection, unit: str, learned: Learned) -> None:
    """Unit ``unit`` is an entry from now on, or a changed one. Raises :class:`Refused` where its
    submission is there no more."""
    db.execute(
        "INSERT INTO entries (unit, writer, fresh) VALUES (?, ?, 1)"
        " ON CONFLICT (unit) DO UPDATE SET writer = excluded.writer, fresh = 1",
        (unit, learned.writer),
    )
    if learned.submission:
        made = db.execute(
            "INSERT INTO origins (unit, submission, user, agent, outcome, at)"
            " SELECT ?, id, user, agent, outcome, submitted_at FROM submissions WHERE id = ?"
            " ON CONFLICT DO UPDATE SET at = at",
            (unit, learned.submission),
        )
        if not made.rowcount:
            raise Refused(Errno.ENOENT, "the submission is there no more")
    for part in learned.parts:
        db.execute(
            "INSERT OR IGNORE INTO origins (unit, submission, user, agent, outcome, at)"
            " SELECT ?, submission, user, agent, outcome, at FROM origins WHERE unit = ?",
            (unit, part),
        )


def touch(db: sqlite3.Connection, unit: str) -> None:
    """If the unit is an entry, it is another one than the last review saw."""
    db.execute("UPDATE entries SET fresh = 1 WHERE unit = ?", (unit,))


def leave(db: sqlite3.Connection, unit: str) -> None:
    """The unit is gone, and with it where it came from."""
    if db.execute("DELETE FROM entries WHERE unit = ?", (unit,)).rowcount:
        db.execute("DELETE FROM origins WHERE unit = ?", (unit,))


def looked_at(db: sqlite3.Connection, units: Iterable[str]) -> None:
    """A review has seen these entries as they are."""
    db.executemany("UPDATE entries SET fresh = 0 WHERE unit = ?", [(unit,) for unit in units])


def save_consent(db: sqlite3.Connection, user: str, choice: str) -> None:
    db.execute(
        "INSERT INTO consents (user, choice) VALUES (?, ?)"
        " ON CONFLICT (user) DO UPDATE SET choice = excluded.choice",
        (user, choice),
    )
    if choice == "nothing":
        _shed(db, "user = ?", (user,))


def forget_user(db: sqlite3.Connection, user: str) -> None:
    for table in ("submissions", "origins", "consents"):
        db.execute(f"DELETE FROM {table} WHERE user = ?", (user,))


# -- reads


def find(db: sqlite3.Connection, id_: str) -> tuple[Submission, Work | None] | None:
    """A submission, and what its next step needs (``None``: it has ended)."""
    row = db.execute("SELECT report, body FROM submissions WHERE id = ?", (id_,)).fetchone()
    if row is None:
        return None
    report, body = row
    return _report(report), _work(zlib.decompress(body)) if body else None


def latest(db: sqlite3.Connection, user: str, agent: str, limit: int) -> tuple[Submission, ...]:
    """The latest submissions of a pair, newest first; an empty ``agent``: of all the user's agents,
    an empty ``user`` besides: of all."""
    rows = db.execute(
        "SELECT report FROM submissions WHERE (?1 = '' OR user = ?1) AND (?2 = '' OR agent = ?2)"
        " ORDER BY number DESC LIMIT ?3",
        (user, agent, limit),
    )
    return tuple(_report(report) for (report,) in rows)


def waiting(db: sqlite3.Connection) -> tuple[tuple[str, str, str], ...]:
    """(id, user, agent) of each submission that is not at its end, in order of arrival."""
    return tuple(
        db.execute(
            "SELECT id, user, agent FROM submissions INDEXED BY submissions_open"
            " WHERE state = 'queued' ORDER BY number"
        ).fetchall()
    )


def sources(db: sqlite3.Connection, units: Collection[str]) -> dict[str, Source]:
    """Where each of these units comes from that is an entry."""
    found: dict[str, Source] = {}
    for unit in units:
        row = db.execute("SELECT writer FROM entries WHERE unit = ?", (unit,)).fetchone()
        if row is not None:
            origins = db.execute(
                "SELECT submission, user, agent, outcome, at FROM origins WHERE unit = ?"
                " ORDER BY at, submission",
                (unit,),
            )
            found[unit] = Source(
                writer=row[0],
                origins=tuple(
                    Origin(submission=submission, user=user, agent=agent, outcome=outcome, at=at)
                    for submission, user, agent, outcome, at in origins
                ),
            )
    return found


def from_user(db: sqlite3.Connection, user: str) -> frozenset[str]:
    """The entries that come from attempts of ``user``, among others' perhaps."""
    rows = db.execute("SELECT DISTINCT unit FROM origins WHERE user = ?", (user,))
    return frozenset(unit for (unit,) in rows)


def fresh(db: sqlite3.Connection, limit: int) -> tuple[str, ...]:
    """The entries that no review has seen as they are."""
    rows = db.execute(
        "SELECT unit FROM entries INDEXED BY entries_fresh WHERE fresh = 1 ORDER BY unit LIMIT ?",
        (limit,),
    )
    return tuple(unit for (unit,) in rows)


def consents(db: sqlite3.Connection) -> dict[str, str]:
    return dict(db.execute("SELECT user, choice FROM consents ORDER BY user").fetchall())


def sizes(db: sqlite3.Connection) -> dict[str, int]:
    entries, fresh_ones = db.execute(
        "SELECT count(*), coalesce(sum(fresh), 0) FROM entries"
    ).fetchone()
    (submitted,) = db.execute("SELECT count(*) FROM submissions").fetchone()
    return {"entries": entries, "entries_fresh": fresh_ones, "submissions": submitted}


def _deflate(work: Work) -> bytes:
    return zlib.compress(_pack(work), 6)
