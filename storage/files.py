"""Files with versions: their rows, and the rules that a change of one keeps.

A change is planned first: what it asks for is looked up and checked, and the operations on units
that go with it are made out. Then all of it is carried out in one transaction. Only one thread
changes files, so nothing comes between. A read needs the sealed view, as a read of units does
(promise ``view.choke``): of a space that is not in it there are no files.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from isovist.storage.guard import clean
from isovist.syscalls.abi.files import FileInfo, FileVersion
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.file_operations import Bounds, Changed, Content, FileChange, HeldFile
from isovist.syscalls.operations import Drop, Op, Put
from isovist.syscalls.records import Partition, Reader, View

_pack = msgspec.msgpack.Encoder().encode

_FILE = "fid, id, user, agent, stream, writable, version, bytes"


class _File(NamedTuple):
    fid: int
    id: str
    user: str
    agent: str
    stream: str
    writable: int
    version: int
    bytes: int


class Plan(NamedTuple):
    """``ops`` on units, and what is done to the rows of files in the same transaction."""

    ops: list[Op]
    carry_out: Callable[[], Changed]


def plan(db: sqlite3.Connection, change: FileChange, held: Callable[[str], bool]) -> Plan | Changed:
    """What ``change`` takes; or what it came to when it was made before, under its key. ``held``
    says whether the store holds a unit. Raises :class:`IsovistError` where it may not be."""
    file = _at(db, change.space, change.path)
    if change.key and (before := _repeated(db, change, file)) is not None:
        return before
    _check_version(change, file)
    if change.what == "write":
        return _write(db, change, file, held)
    if file is None:
        raise no_file()
    if (file.user, file.agent) != (change.user, change.agent):
        raise _others(f"only its owner may {change.what} it")
    return (_move if change.what == "move" else _delete)(db, change, file, held)


# -- changes


def _write(
    db: sqlite3.Connection, change: FileChange, file: _File | None, held: Callable[[str], bool]
) -> Plan:
    content = _content(change)
    if change.action == "rollback":
        _check_source(db, change, file)
    stream, owner, id_ = change.stream, (change.user, change.agent), change.id
    if file is not None:
        # One user's file: others' words in it would have to go with them, and it stay.
        own = (file.user, file.agent) == owner
        if not own and not (file.writable and file.user == change.user):
            raise _others("its owner has not opened it to this agent")
        stream = "protected" if "protected" in (file.stream, stream) else "reusable"
        owner, id_ = (file.user, file.agent), file.id
    _check_stream(change, stream)
    if content.size > change.bounds.owner:
        raise _too_much(content.size, change.bounds.owner, "this version")
    if file is None:
        _check_room(db, change.space, change.path, change.bounds)
    version = file.version + 1 if file else 1
    puts = _parts(change, owner, stream, id_, change.path, version)
    drops = _drops(db, change, file.fid, held) if file else []

    def carry_out() -> Changed:
        fid = _keep(db, change, file, owner, stream, id_)
        db.execute(
            "INSERT INTO versions (fid, version, action, source, agent, user, at, reason, key,"
            " hash, size, text, blob, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (fid, version, change.action, change.source, change.agent, change.user, change.at,
             clean(change.reason).text, change.key, bytes.fromhex(content.hash), content.size,
             content.text, content.blob, content.body),
        )  # fmt: skip
        db.execute(
            "UPDATE files SET version = ?, bytes = bytes + ? WHERE fid = ?",
            (version, content.size, fid),
        )
        _index(db, fid, puts)
        dropped, blobs = _trim(db, fid, owner, change.space, change.bounds)
        return _changed(db, fid, dropped, blobs)

    return Plan([*drops, *puts], carry_out)


def _keep(
    db: sqlite3.Connection,
    change: FileChange,
    file: _File | None,
    owner: tuple[str, str],
    stream: str,
    id_: str,
) -> int:
    """The file's row, made where there is none; its number."""
    if file is None:
        made = db.execute(
            "INSERT INTO files (id, space, path, user, agent, stream, writable, version, bytes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
            (id_, _pack(change.space), change.path, *owner, stream, bool(change.writable)),
        ).lastrowid
        if made is None:
            raise KernelError("an insert without a row")
        return made
    writable = file.writable
    if change.writable is not None and owner == (change.user, change.agent):
        writable = change.writable
    db.execute(
        "UPDATE files SET stream = ?, writable = ? WHERE fid = ?", (stream, writable, file.fid)
    )
    return file.fid


def _move(
    db: sqlite3.Connection, change: FileChange, file: _File, held: Callable[[str], bool]
) -> Plan:
    to, path = change.to or change.space, change.to_path or change.path
    stays = (to, path) == (change.space, change.path)
    if stays and change.writable in (None, bool(file.writable)):
        raise CallerError("the file has that path, scope and writers already", field="to_path")
    if not stays:
        if change.seen != (file.id, file.version):
            raise _meanwhile()
        _check_stream(change, file.stream)
        _check_room(db, to, path, change.bounds, file, new=to != change.space)
    owner = file.user, file.agent
    puts = [] if stays else _parts(change, owner, file.stream, file.id, path, file.version)
    drops = [] if stays else _drops(db, change, file.fid, held)

    def carry_out() -> Changed:
        db.execute(
            "UPDATE files SET space = ?, path = ?, writable = coalesce(?, writable) WHERE fid = ?",
            (_pack(to), path, change.writable, file.fid),
        )
        if stays:
            return _changed(db, file.fid, 0, [])
        _index(db, file.fid, puts)
        dropped, blobs = _trim(db, file.fid, owner, to, change.bounds)
        return _changed(db, file.fid, dropped, blobs)

    return Plan([*drops, *puts], carry_out)


def _delete(
    db: sqlite3.Connection, change: FileChange, file: _File, held: Callable[[str], bool]
) -> Plan:
    def carry_out() -> Changed:
        blobs = _blobs_of(db, "fid = ?", (file.fid,))
        (versions,) = db.execute(
            "SELECT count(*) FROM versions WHERE fid = ?", (file.fid,)
        ).fetchone()
        _remove(db, "fid = ?", (file.fid,))
        return Changed(blobs=tuple(blobs), id=file.id, size=file.bytes, versions=versions)

    return Plan([*_drops(db, change, file.fid, held)], carry_out)


def forget_user(db: sqlite3.Connection, user: str) -> None:
    """Remove all files of ``user``: no version of anybody else's is by that user."""
    _remove(db, "user = ?", (user,))


# -- what a change must keep


def _check_version(change: FileChange, file: _File | None) -> None:
    if change.expect is None:
        return
    if file is None:
        if change.expect:
            raise no_file()
    elif not change.expect:
        raise CallerError("there is a file of that path", errno=Errno.EEXIST, field="expect")
    elif change.expect != file.version:
        raise _stale(
            f"version {change.expect} was expected, the file has version {file.version}", "expect"
        )


def _check_source(db: sqlite3.Connection, change: FileChange, file: _File | None) -> None:
    """Its bytes may stand in a file of the version itself: that must be there still."""
    if file is None or change.seen is None or change.seen[0] != file.id:
        raise _meanwhile()
    there = "SELECT 1 FROM versions WHERE fid = ? AND version = ?"
    if db.execute(there, (file.fid, change.source)).fetchone() is None:
        raise _meanwhile()


def _check_stream(change: FileChange, stream: str) -> None:
    if why := change.refused.get(stream):
        raise CallerError(f"scope: {why}", errno=Errno.EPERM, field="scope")


def _check_room(
    db: sqlite3.Connection,
    space: Partition,
    path: str,
    bounds: Bounds,
    moved: _File | None = None,
    *,
    new: bool = True,
) -> None:
    """A path is free where no file has it, none stands where it needs a folder, and none beneath
    it; so a space can be written out on a disk."""
    key, but = _pack(space), moved.fid if moved else 0
    names = path.split("/")
    above = ["/".join(names[:n]) for n in range(1, len(names) + 1)]
    marks = ", ".join("?" * len(above))
    taken = db.execute(
        f"SELECT path FROM files WHERE space = ? AND fid <> ? AND (path IN ({marks})"
        " OR path > ? AND path < ?) LIMIT 1",
        (key, but, *above, f"{path}/", f"{path}0"),
    ).fetchone()
    if taken is not None:
        raise CallerError(f"there is a file {taken[0]!r}", errno=Errno.EEXIST, field="path")
    (count,) = db.execute("SELECT count(*) FROM files WHERE space = ?", (key,)).fetchone()
    if new and count >= bounds.files:
        raise CallerError(
            f"the space holds {count} files, the limit; delete one first",
            errno=Errno.EDQUOT,
            field="path",
        )


def _trim(
    db: sqlite3.Connection, fid: int, owner: tuple[str, str], space: Partition, bounds: Bounds
) -> tuple[int, list[str]]:
    """Let older versions go until all is within bounds: of this file those beyond its number, then
    of the owner's files the oldest of all, never a current one, and none of another owner's.
    Returns how many went, and the blobs that nothing refers to now. Raises ``EDQUOT``."""
    blobs: list[str] = []
    beyond = db.execute(
        "SELECT version FROM versions WHERE fid = ? ORDER BY version DESC LIMIT -1 OFFSET ?",
        (fid, bounds.versions),
    ).fetchall()
    for (version,) in beyond:
        blobs += _drop_version(db, fid, version)[1]
    dropped, key = len(beyond), _pack(space)
    mine = bytes_of(db, owner[1], owner[0])
    (all_,) = db.execute(
        "SELECT coalesce(sum(bytes), 0) FROM files WHERE space = ?", (key,)
    ).fetchone()
    while mine > bounds.owner or all_ > bounds.space:
        anywhere = mine > bounds.owner
        oldest = db.execute(
            "SELECT fid, versions.version, space FROM versions JOIN files USING (fid)"
            " WHERE files.user = ? AND files.agent = ? AND versions.version < files.version"
            " AND (? OR space = ?) ORDER BY at, fid, versions.version LIMIT 1",
            (*owner, anywhere, key),
        ).fetchone()
        if oldest is None:
            if anywhere:
                raise _too_much(mine, bounds.owner, "the files of this user and agent")
            raise _too_much(all_, bounds.space, "the files of this space")
        size, gone = _drop_version(db, *oldest[:2])
        dropped, mine = dropped + 1, mine - size
        all_ -= size if oldest[2] == key else 0
        blobs += gone
    return dropped, blobs


def _drop_version(db: sqlite3.Connection, fid: int, version: int) -> tuple[int, list[str]]:
    (size, blob) = db.execute(
        "DELETE FROM versions WHERE fid = ? AND version = ? RETURNING size, blob", (fid, version)
    ).fetchone()
    db.execute("UPDATE files SET bytes = bytes - ? WHERE fid = ?", (size, fid))
    if not blob or db.execute("SELECT 1 FROM versions WHERE blob = ?", (blob,)).fetchone():
        return size, []
    return size, [blob]


def _repeated(db: sqlite3.Connection, change: FileChange, file: _File | None) -> Changed | None:
    """What came of the call that had this key before."""
    row = db.execute(
        "SELECT fid, version, hash, size, source FROM versions WHERE user = ? AND agent = ?"
        " AND key = ? AND key <> ''",
        (change.user, change.agent, change.key),
    ).fetchone()
    if row is None:
        return None
    fid, version, hash_, size, source = row
    content = _content(change)
    if file is None or file.fid != fid or (hash_.hex(), source) != (content.hash, change.source):
        why = f"key {change.key!r} was given to another write"
        raise CallerError(why, errno=Errno.EEXIST, field="key")
    done = _changed(db, fid, 0, [])
    # A rollback's blob is the file's own; what was copied once more is of no use.
    blobs = (content.blob,) if content.blob and change.action != "rollback" else ()
    return msgspec.structs.replace(
        done, version=version, size=size, hash=hash_.hex(), repeated=True, blobs=blobs
    )


# -- units


def _parts(
    change: FileChange, owner: tuple[str, str], stream: str, id_: str, path: str, version: int
) -> list[Put]:
    user, agent = owner
    return [
        msgspec.structs.replace(
            part,
            user=user,
            agent=agent,
            stream=stream,
            session=id_,
            round=number,
            meta={"file": id_, "path": path, "version": str(version)},
        )
        for number, part in enumerate(change.parts)
    ]


def _drops(
    db: sqlite3.Connection, change: FileChange, fid: int, held: Callable[[str], bool]
) -> list[Drop]:
    """The removal of the units by which a file is found."""
    units = db.execute("SELECT unit FROM file_units WHERE fid = ? ORDER BY unit", (fid,))
    return [
        Drop(
            partition=change.space,
            seq=change.seq,
            id=unit,
            receipt=change.receipt,
            stored_at=change.at,
        )
        for (unit,) in units.fetchall()
        if held(unit)
    ]


def _index(db: sqlite3.Connection, fid: int, puts: Sequence[Put]) -> None:
    db.execute("DELETE FROM file_units WHERE fid = ?", (fid,))
    db.executemany(
        "INSERT INTO file_units (unit, fid) VALUES (?, ?)", [(put.id, fid) for put in puts]
    )


# -- reads


def find(
    db: sqlite3.Connection, view: View, space: Partition, path: str, version: int = 0
) -> HeldFile | None:
    """A version of a file of the view (0: the current one), with the bytes that stand in its row;
    ``None`` where there is none, whether or not another view has one."""
    if space not in _spaces(view):
        return None
    file = _at(db, space, path)
    if file is None:
        return None
    row = db.execute(
        f"SELECT {_VERSION}, text, blob, body FROM versions WHERE fid = ? AND version = ?",
        (file.fid, version or file.version),
    ).fetchone()
    if row is None:
        return None
    *shown, text, blob, body = row
    found = _version(view.reader, shown)
    content = Content(hash=found.hash, size=found.size, text=bool(text), body=body, blob=blob)
    info = next(_infos(db, view.reader, space, "files.fid = ?", (file.fid,), 1))
    return HeldFile(id=file.id, info=info, version=found, content=content)


def log(
    db: sqlite3.Connection, view: View, space: Partition, path: str
) -> tuple[FileInfo, tuple[FileVersion, ...]] | None:
    """A file of the view and its versions, newest first."""
    file = _at(db, space, path) if space in _spaces(view) else None
    if file is None:
        return None
    rows = db.execute(
        f"SELECT {_VERSION} FROM versions WHERE fid = ? ORDER BY version DESC", (file.fid,)
    )
    info = next(_infos(db, view.reader, space, "files.fid = ?", (file.fid,), 1))
    return info, tuple(_version(view.reader, row) for row in rows)


def listing(
    db: sqlite3.Connection,
    view: View,
    spaces: Sequence[Partition],
    prefix: str,
    after: tuple[Partition, str] | None,
    limit: int,
) -> tuple[tuple[FileInfo, ...], tuple[Partition, str] | None]:
    """At most ``limit`` files of these spaces of the view, by space in the view's order and path,
    and the last of them, where more come ``after`` it."""
    wanted = [space for space in _spaces(view) if space in spaces]
    found: list[tuple[Partition, FileInfo]] = []
    if after is not None:
        wanted = wanted[wanted.index(after[0]) :] if after[0] in wanted else []
    for space in wanted:
        start = after[1] if after is not None and after[0] == space else ""
        where, values = "path > ?", [start]
        if prefix:
            where += " AND (path = ? OR path > ? AND path < ?)"
            values += [prefix, f"{prefix}/", f"{prefix}0"]
        room = limit + 1 - len(found)
        infos = _infos(db, view.reader, space, where, (*values,), room)
        found += [(space, info) for info in infos]
        if len(found) > limit:
            break
    files = tuple(info for _, info in found[:limit])
    last = (found[limit - 1][0], files[-1].path) if len(found) > limit else None
    return files, last


def bytes_of(db: sqlite3.Connection, agent: str = "", user: str = "") -> int:
    """Bytes of all versions of the files that they own; an empty name stands for all."""
    (total,) = db.execute(
        "SELECT coalesce(sum(bytes), 0) FROM files WHERE (?1 = '' OR user = ?1)"
        " AND (?2 = '' OR agent = ?2)",
        (user, agent),
    ).fetchone()
    return int(total)


def blobs(db: sqlite3.Connection) -> frozenset[str]:
    """All files of the content store that a version refers to."""
    return frozenset(_blobs_of(db, "1", ()))


def sizes(db: sqlite3.Connection) -> dict[str, int]:
    files, total = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM files").fetchone()
    return {"files": int(files), "file_bytes": int(total)}


_VERSION = "version, size, hash, agent, user, at, reason, action, source"


def _version(reader: Reader, row: Sequence[object]) -> FileVersion:
    """Of another user the name is not shown."""
    version, size, hash_, agent, user, at, reason, action, source = row
    return msgspec.convert(
        {
            "version": version,
            "size": size,
            "hash": hash_.hex() if isinstance(hash_, bytes) else "",
            "agent": agent,
            "user": user if user == reader.user else "",
            "at": at,
            "reason": reason,
            "action": action,
            "source": source,
        },
        FileVersion,
    )


def _infos(
    db: sqlite3.Connection,
    reader: Reader,
    space: Partition,
    where: str,
    values: tuple[object, ...],
    limit: int,
) -> Iterator[FileInfo]:
    rows = db.execute(
        "SELECT path, files.version, size, hash, text, files.agent, files.user, stream, writable,"
        " at, (SELECT count(*) FROM versions AS v WHERE v.fid = files.fid) FROM files"
        " JOIN versions ON versions.fid = files.fid AND versions.version = files.version"
        f" WHERE space = ? AND {where} ORDER BY path LIMIT ?",
        (_pack(space), *values, limit),
    )
    for path, version, size, hash_, text, agent, user, stream, writable, at, versions in rows:
        yield FileInfo(
            path=path,
            scope=space.scope,
            version=version,
            size=size,
            hash=hash_.hex(),
            text=bool(text),
            agent=agent,
            user=user if user == reader.user else "",
            stream=stream,
            writable=bool(writable),
            versions=versions,
            written_at=at,
        )


def _spaces(view: View) -> tuple[Partition, ...]:
    if not isinstance(view, View):
        raise KernelError("files are read through a view")
    return view.partitions


def _at(db: sqlite3.Connection, space: Partition, path: str) -> _File | None:
    row = db.execute(
        f"SELECT {_FILE} FROM files WHERE space = ? AND path = ?", (_pack(space), path)
    ).fetchone()
    return _File(*row) if row else None


def _changed(db: sqlite3.Connection, fid: int, dropped: int, gone: list[str]) -> Changed:
    id_, version, size, hash_, versions = db.execute(
        "SELECT id, version, size, hash, (SELECT count(*) FROM versions AS v WHERE v.fid = f.fid)"
        " FROM files AS f JOIN versions USING (fid, version) WHERE fid = ?",
        (fid,),
    ).fetchone()
    return Changed(
        blobs=tuple(gone), id=id_, version=version, size=size, hash=hash_.hex(),
        versions=versions, dropped=dropped,
    )  # fmt: skip


def _blobs_of(db: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[str]:
    rows = db.execute(f"SELECT DISTINCT blob FROM versions WHERE blob <> '' AND {where}", values)
    return [blob for (blob,) in rows]


def _remove(db: sqlite3.Connection, where: str, values: tuple[object, ...]) -> None:
    for table in ("file_units", "versions"):
        db.execute(
            f"DELETE FROM {table} WHERE fid IN (SELECT fid FROM files WHERE {where})", values
        )
    db.execute(f"DELETE FROM files WHERE {where}", values)


def _content(change: FileChange) -> Content:
    if change.content is None:
        raise KernelError(f"a {change.action} without bytes")
    return change.content


# -- refusals


def no_file() -> CallerError:
    """The same words whether there is none, or it lies outside the view."""
    return CallerError("no file of that path in view", errno=Errno.ENOENT, field="path")


def _others(why: str) -> CallerError:
    what = f"the file belongs to another user or agent: {why}"
    return CallerError(what, errno=Errno.EPERM, field="path")


def _stale(message: str, field: str) -> IsovistError:
    return error(Errno.ESTALE, message, field)


def _meanwhile() -> IsovistError:
    return _stale("the file was changed meanwhile", "path")


def _too_much(size: int, limit: int, what: str) -> CallerError:
    return CallerError(
        f"{what} would take {size} bytes, the limit is {limit}: {size - limit} too many",
        errno=Errno.EDQUOT,
        field="body",
    )
