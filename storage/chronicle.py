"""The chronicle: a file of lines, each of which holds the hash of the one before.

The file is only ever appended to. The store keeps *heads*, the hash of the last line of each
append, so that neither can be cut short or exchanged without the other telling. Users stand in it
under names that were drawn at random; which is whose is told by a table of the store alone, and is
forgotten with the user, which leaves the chain as it is.

An append is on disk before its head: after a crash the file may be some lines ahead, or end in a
piece of a line that nobody was told of. :meth:`Chronicle.open` takes in the former and cuts off the
latter.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from isovist.syscalls.errors import Errno, WorldError

FIRST = "0" * 64
"""What the first line of all follows."""
NAMELESS = ("", "*")
"""What stands for no user, or for all, and is not replaced."""
LONGEST = 1 << 20
"""Bytes of a line, at most; the kernel writes none that comes near."""

_encode = msgspec.json.Encoder().encode


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """``actor`` (an agent, or ``operator``) did ``kind`` to ``subject`` ``at`` a time (ns since
    1970 UTC), which concerns ``users``. ``hash`` is that of the line as JSON with an empty
    ``hash``; ``before`` is the hash of the line before."""

    number: int
    at: int
    kind: str
    actor: str
    subject: str
    users: tuple[str, ...]
    detail: dict[str, str]
    before: str
    hash: str = ""


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What a line is made of; ``users`` under their own names."""

    at: int
    kind: str
    actor: str
    subject: str
    users: tuple[str, ...] = ()
    detail: dict[str, str] = {}


class Head(msgspec.Struct, frozen=True):
    """The last line of an append: its number, its hash, and where in the file it ends."""

    number: int
    hash: str
    end: int


NO_HEAD = Head(0, FIRST, 0)


class Keeper(Protocol):
    """What the store keeps of the chronicle. ``save_head`` may come to disk with a later write."""

    def head(self) -> Head: ...
    def save_head(self, head: Head) -> None: ...
    def pseudonyms(self, users: Collection[str]) -> Mapping[str, str]: ...


def seal(noted: Noted, number: int, before: str, names: Mapping[str, str]) -> Line:
    users = tuple(names.get(user, user) for user in noted.users)
    line = Line(
        number=number,
        at=noted.at,
        kind=noted.kind,
        actor=noted.actor,
        subject=noted.subject,
        users=users,
        detail=noted.detail,
        before=before,
    )
    return msgspec.structs.replace(line, hash=_hash(line))


def _hash(line: Line) -> str:
    return sha256(_encode(msgspec.structs.replace(line, hash=""))).hexdigest()


def parsed(raw: bytes) -> Line | None:
    """The line that ``raw`` (without its newline) is, if not a byte of it was changed."""
    try:
        line = msgspec.json.decode(raw, type=Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return line if _encode(line) == raw and _hash(line) == line.hash else None


# -- the file


class Chronicle:
    """The file at ``path``, for the one kernel that writes to it. Not for two threads at once."""

    def __init__(self, path: Path, keeper: Keeper) -> None:
        self._path, self._keeper = path, keeper
        self._head = NO_HEAD

    def open(self) -> dict[str, str]:
        """Find where the chain goes on; once, before the first :meth:`append`. Gives what was
        amiss, empty where nothing was: what was cut off (``torn``: bytes), which lines are
        missing (``missing``), do not follow from those before (``broken``), or had not reached the
        store (``unknown``)."""
        known = self._keeper.head()
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            if size < known.end:
                self._head = Head(known.number, known.hash, size)
                last = self._last()
                if size and not self._path.read_bytes().endswith(b"\n"):
                    self._write(b"\n")  # or the next line would be one with what is left
                return {"missing": f"{last.number + 1 if last else 1} to {known.number}"}
            return self._take_in(known, size)
        except OSError as e:
            raise _worldly(self._path, e) from e

    def _take_in(self, known: Head, size: int) -> dict[str, str]:
        """Go on behind the lines that the store does not know of yet."""
        amiss: dict[str, str] = {}
        head, end = known, known.end
        if known.number:
            last = self._last(known.end)
            if last is None or (last.number, last.hash) != (known.number, known.hash):
                amiss["broken"] = str(known.number)
        with self._path.open("rb") if size else open(os.devnull, "rb") as file:
            file.seek(known.end)
            for raw in file:
                if not raw.endswith(b"\n"):
                    amiss["torn"] = str(len(raw))
                    os.truncate(self._path, end)
                    break
                end += len(raw)
                line = parsed(raw[:-1])
                follows = line is not None and line.before == head.hash
                if line is None or not follows or line.number != head.number + 1:
                    amiss.setdefault("broken", str(head.number + 1))
                if line is not None and line.number > head.number:
                    head = Head(line.number, line.hash, end)
        if head.number > known.number:
            # The store hears of a line a moment after it is written; whoever knows of no crash
            # just then should look at these.
            amiss["unknown"] = f"{known.number + 1} to {head.number}"
        self._head = Head(head.number, head.hash, end)
        return amiss

    def _last(self, end: int | None = None) -> Line | None:
        """The whole line that ends at ``end`` (``None``: the last of all)."""
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) if end is None else end
            start = max(0, size - LONGEST)
            file.seek(start)
            tail = file.read(size - start)
        whole, _, torn = tail.rpartition(b"\n")
        return None if torn and end is not None else parsed(whole.rpartition(b"\n")[2])

    def append(self, noted: Sequence[Noted]) -> None:
        """Make lines durable, all of them or none. Raises :class:`WorldError`."""
        wanted = {user for one in noted for user in one.users if user not in NAMELESS}
        names = self._keeper.pseudonyms(wanted) if wanted else {}
        head, data = self._head, bytearray()
        number, before = head.number, head.hash
        for one in noted:
            number += 1
            line = seal(one, number, before, names)
            before = line.hash
            data += _encode(line) + b"\n"
        try:
            end = self._write(data)
        except OSError as e:
            raise _worldly(self._path, e) from e
        # Written: whatever becomes of the head, these numbers are taken.
        self._head = Head(number, before, end)
        self._keeper.save_head(self._head)

    def _write(self, data: bytes | bytearray) -> int:
        new = not self._path.exists()
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(fd, left) :]
                os.fsync(fd)
            except OSError:
                # Nobody was told of any of them, so none may stand there.
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        if new:
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return size + len(data)


def _worldly(path: Path, e: OSError) -> WorldError:
    errno = Errno.ENOSPC if e.errno in (Errno.ENOSPC, Errno.EDQUOT) else Errno.EIO
    return WorldError(f"{path}: the chronicle cannot be written: {e.strerror}", errno=errno)


def read(path: Path) -> Iterator[tuple[int, bytes, Line | None]]:
    """Each line of the file: its place from 1, its bytes, and what it says (``None``: it was
    changed, or is torn)."""
    if not path.exists():
        return
    with path.open("rb") as file:
        place = 0
        while raw := file.readline(LONGEST):
            place += 1
            whole = raw.endswith(b"\n")
            yield place, raw, parsed(raw[:-1]) if whole else None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``lines`` that are there, the hash of the last one, and ``faults`` in words, by line.
    ``ahead``: lines at the end that the store does not know of; ``torn``: bytes of a last line that
    was never finished. A crash, or a store put back from a backup, leaves either."""

    lines: int
    head: str
    faults: tuple[str, ...]
    ahead: int = 0
    torn: int = 0


def verify(
    lines: Iterable[tuple[int, bytes, Line | None]],
    heads: Mapping[int, str],
    head: str = "",
    *,
    part: bool = False,
) -> Verdict:
    """Whether not a line was changed, dropped, inserted, moved or cut off.

    ``heads`` are those that the store keeps (read before the file was), by number; ``head`` is
    the hash of some line that a person noted elsewhere, and that must be among them. A ``part``
    may begin with any line.
    """
    faults: list[str] = []
    number, before, place, torn, noted = 0, FIRST, 0, 0, not head
    known = max(heads, default=0)
    matched = 0
    for place, raw, line in lines:
        number += 1
        if not raw.endswith(b"\n"):
            torn, place, number = len(raw), place - 1, number - 1
            break
        if line is None:
            faults.append(f"line {place}: was changed")
            before = ""
            continue
        if part and place == 1:
            number, before = line.number, line.before
        if line.number > number:
            gap = f"{number}" if line.number == number + 1 else f"{number} to {line.number - 1}"
            faults.append(f"line {place}: has number {line.number}, and {gap} is missing before it")
        elif line.number < number:
            faults.append(f"line {place}: has number {line.number}, and stands after {number - 1}")
            number -= 1
            continue
        elif before and line.before != before:
            faults.append(f"line {place}: does not follow from line {place - 1}")
        if heads.get(line.number, line.hash) != line.hash:
            faults.append(
                f"line {place}: is not the line {line.number} that the store knows; "
                f"exchanged after number {matched}"
            )
        elif line.number in heads:
            matched = line.number
        noted = noted or line.hash == head
        number, before = line.number, line.hash
    if number < known:
        gap = f"{known} is" if number + 1 == known else f"{number + 1} to {known} are"
        faults.append(f"line {place + 1}: number {gap} missing at the end")
    if not noted:
        faults.append(f"line {place + 1}: no line has the hash {head}, so some are missing")
    ahead = max(0, number - known)
    return Verdict(lines=place, head=before, faults=tuple(faults), ahead=ahead, torn=torn)


# -- the store's tables


def head(db: sqlite3.Connection) -> Head:
    row = db.execute("SELECT number, hash, end FROM heads ORDER BY number DESC LIMIT 1").fetchone()
    return Head(row[0], row[1].hex(), row[2]) if row else NO_HEAD


def heads(db: sqlite3.Connection) -> dict[int, str]:
    return {number: hash_.hex() for number, hash_ in db.execute("SELECT number, hash FROM heads")}


def save_head(db: sqlite3.Connection, head: Head) -> None:
    db.execute(
        "INSERT OR REPLACE INTO heads (number, hash, end) VALUES (?, ?, ?)",
        (head.number, bytes.fromhex(head.hash), head.end),
    )


class TablesOnly:
    """A :class:`Keeper` over a store that no kernel has open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def head(self) -> Head:
        return head(self._db)

    def save_head(self, head: Head) -> None:
        save_head(self._db, head)

    def pseudonyms(self, users: Collection[str]) -> Mapping[str, str]:
        return pseudonyms(self._db, users)

    def begin_anew(self) -> None:
        """Of a file that is not here nothing is known any more."""
        self._db.execute("DELETE FROM heads")


def pseudonyms(db: sqlite3.Connection, users: Collection[str]) -> dict[str, str]:
    """The name under which each user stands in the chronicle, drawn where there is none yet."""
    db.executemany(
        "INSERT OR IGNORE INTO pseudonyms (user, name) VALUES (?, ?)",
        [(user, f"user-{os.urandom(8).hex()}") for user in sorted(users)],
    )
    known = "SELECT name FROM pseudonyms WHERE user = ?"
    return {user: db.execute(known, (user,)).fetchone()[0] for user in users}


def names(db: sqlite3.Connection) -> dict[str, str]:
    """Users by the name under which they stand in the chronicle; who was forgotten is in none."""
    return dict(db.execute("SELECT name, user FROM pseudonyms"))


def forget_user(db: sqlite3.Connection, user: str) -> None:
    db.execute("DELETE FROM pseudonyms WHERE user = ?", (user,))
