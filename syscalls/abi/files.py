"""Files with versions. A *space* holds files by path; there is one for each audience that a unit
may have, named by its scope, and by default the pair's own."""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.base import Call, Reply
from isovist.syscalls.records import Barrier, Mode, Stream

MAX_CONTENT = 256 * 1024
"""Bytes that one call writes or reads; what is longer goes by ``file.put`` and ``file.fetch``."""
MAX_FILE = 256 * 1024 * 1024
"""Bytes of one version."""
MAX_REASON = 500
"""Bytes of a reason."""

Action = Literal["write", "put", "rollback"]


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the view as it stands: ``version`` is its current one, of which there are
    ``versions`` kept. ``agent`` and ``user`` own it; ``user`` is empty where it is another than the
    reader. ``hash`` is the SHA-256 of its bytes, in hex. ``writable``: other agents may write it
    for the same user. ``text``: it is searched by its words, else by its name alone."""

    path: str
    scope: str
    version: int
    size: int
    hash: str
    text: bool
    agent: str
    user: str
    stream: str
    writable: bool
    versions: int
    written_at: int


class FileVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version: who made it when (ns since 1970 UTC), by what, and the ``reason`` given.
    ``source`` is the version whose bytes a rollback brought back, else 0."""

    version: int
    size: int
    hash: str
    agent: str
    user: str
    at: int
    reason: str
    action: Action
    source: int = 0


class FileHit(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was found, by its best place: ``chunk`` has at most 1,000 characters, after the
    path. ``unit`` is the unit that holds it."""

    path: str
    scope: str
    version: int
    chunk: str
    score: float
    unit: str


class FileWrite(Call, frozen=True, array_like=True, kw_only=True, tag=71):
    """Write a new version of a file, or a new file, of at most 256 KiB; answered when it is
    durable and found by its name and words.

    ``scope`` is as with ``remember``: where it is missing, unknown or not granted the file goes to
    the pair's own space, and the reply's ``note`` says so. ``expect`` is the version that the file
    must have (0: there must be none), else ``ESTALE`` or ``EEXIST``. ``reason`` (at most 500 bytes)
    is kept with the version. ``writable`` lets other agents write the file for the same user, if
    it says so; only the owner's word counts. ``stream`` is ``protected`` for ever once a version
    was. With ``key`` a call that is sent again is done once, for as long as its version is kept.
    """

    path: str
    body: bytes
    scope: str | None = None
    expect: int | None = None
    reason: str = ""
    stream: Stream = "protected"
    writable: bool | None = None
    key: str = ""


class FileRead(Call, frozen=True, array_like=True, kw_only=True, tag=72):
    """At most ``limit`` (1 to 262,144) bytes of a version, from byte ``offset`` on. ``version`` 0
    is the current one."""

    path: str
    scope: str = "pair"
    version: int = 0
    offset: int = 0
    limit: int = MAX_CONTENT


class FileListing(Call, frozen=True, array_like=True, kw_only=True, tag=73):
    """A page of the files in view, by space and path. ``scope`` names one space (empty: all),
    ``prefix`` a folder. ``limit`` is 1 to 500; ``after`` is the ``next`` of the page before."""

    scope: str = ""
    prefix: str = ""
    limit: int = 100
    after: str = ""


class FileLog(Call, frozen=True, array_like=True, kw_only=True, tag=74):
    """The versions of a file that are kept, newest first."""

    path: str
    scope: str = "pair"


class FileRollback(Call, frozen=True, array_like=True, kw_only=True, tag=75):
    """Make a new version with the bytes of ``version``. ``expect``, ``reason`` and ``key`` are as
    with ``file.write``."""

    path: str
    version: int
    scope: str = "pair"
    expect: int | None = None
    reason: str = ""
    key: str = ""


class FileMove(Call, frozen=True, array_like=True, kw_only=True, tag=76):
    """Give an own file another path (``to_path``), another audience (``to_scope``), or other
    writers (``writable``); empty fields leave what is. All versions go along, so to reach more
    takes the same grants, and the reusable stream, as to publish a unit. A file that stands there
    is ``EEXIST``. ``expect`` is as with ``file.write``."""

    path: str
    scope: str = "pair"
    to_path: str = ""
    to_scope: str = ""
    writable: bool | None = None
    expect: int | None = None


class FileDelete(Call, frozen=True, array_like=True, kw_only=True, tag=77):
    """Delete an own file with all its versions: it is in no view when the reply comes, and when
    its ``receipt`` is issued nothing of it is in any file of the store."""

    path: str
    scope: str = "pair"
    expect: int | None = None


class FilePut(Call, frozen=True, array_like=True, kw_only=True, tag=78):
    """Write a version from a file that lies in the agent's workspace folder under ``source``
    (empty: ``path``): a regular file of at most 256 MiB with one name, reached through no link. The
    kernel copies it; the reply says the bytes and the hash of what was copied. The rest is as with
    ``file.write``."""

    path: str
    source: str = ""
    scope: str | None = None
    expect: int | None = None
    reason: str = ""
    stream: Stream = "protected"
    writable: bool | None = None
    key: str = ""


class FileFetch(Call, frozen=True, array_like=True, kw_only=True, tag=79):
    """Write a version (0: the current one) into the agent's workspace folder under ``target``
    (empty: ``path``), whole or not at all, never through a link. With ``replace`` what lies there
    under that name is replaced, else ``EEXIST``."""

    path: str
    scope: str = "pair"
    version: int = 0
    target: str = ""
    replace: bool = False


class FileSearch(Call, frozen=True, array_like=True, kw_only=True, tag=80):
    """The ``k`` (1 to 50) best files in view for ``query``, by names, words and meaning of their
    current versions. ``mode`` and ``barrier_ms`` are as with ``search``."""

    query: str
    k: int = 8
    mode: Mode = "hybrid"
    barrier_ms: int = 2000


class FileStored(Reply, frozen=True, array_like=True, kw_only=True, tag=152):
    """What the kernel has stored, moved or written out: version, ``size`` (bytes) and SHA-256
    ``hash`` are its own count. ``scope`` says where the file is, and ``note`` why it is
    narrower than asked for.
    ``versions`` are kept; ``dropped`` older ones had to go. ``indexed`` bytes of its text are found
    by their words (0: by its name alone). ``repeated``: this ``key`` had done it before."""

    path: str
    scope: str
    version: int
    size: int
    hash: str
    user: str
    rule: str
    note: str = ""
    versions: int = 1
    dropped: int = 0
    indexed: int = 0
    repeated: bool = False


class FileData(Reply, frozen=True, array_like=True, kw_only=True, tag=153):
    """``body`` is what of the version begins at ``offset``; ``size`` and ``hash`` are of all of
    it."""

    file: FileInfo
    version: int
    size: int
    hash: str
    offset: int
    body: bytes
    user: str
    rule: str


class FileList(Reply, frozen=True, array_like=True, kw_only=True, tag=154):
    """``next`` is empty on the last page."""

    files: tuple[FileInfo, ...]
    next: str
    user: str
    rule: str


class FileVersions(Reply, frozen=True, array_like=True, kw_only=True, tag=155):
    file: FileInfo
    versions: tuple[FileVersion, ...]
    user: str
    rule: str


class FileDeleted(Reply, frozen=True, array_like=True, kw_only=True, tag=156):
    """``versions`` of ``size`` bytes in all are gone."""

    versions: int
    size: int
    receipt: str
    user: str
    rule: str


class FileHits(Reply, frozen=True, array_like=True, kw_only=True, tag=157):
    files: tuple[FileHit, ...]
    call: str
    user: str
    rule: str
    barrier: Barrier


Request = (
    FileWrite | FileRead | FileListing | FileLog | FileRollback | FileMove | FileDelete | FilePut
    | FileFetch | FileSearch
)  # fmt: skip

AnyReply = FileStored | FileData | FileList | FileVersions | FileDeleted | FileHits

REPLY_OF: dict[type[Call], type[Reply]] = {
    FileWrite: FileStored,
    FileRead: FileData,
    FileListing: FileList,
    FileLog: FileVersions,
    FileRollback: FileStored,
    FileMove: FileStored,
    FileDelete: FileDeleted,
    FilePut: FileStored,
    FileFetch: FileStored,
    FileSearch: FileHits,
}

NAMES: dict[type[Call], str] = {
    FileWrite: "file.write",
    FileRead: "file.read",
    FileListing: "file.list",
    FileLog: "file.log",
    FileRollback: "file.rollback",
    FileMove: "file.move",
    FileDelete: "file.delete",
    FilePut: "file.put",
    FileFetch: "file.fetch",
    FileSearch: "file.search",
}
