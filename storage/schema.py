"""The file: its tables, its settings, and who may open it.

One SQLite file is the system of record. A unit, its forward index, its vectors, its partition's
counters and the frequencies of its terms change in one transaction, so a crash leaves no half of
a write. All else that answers queries is made of this file and can be made again.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from isovist.syscalls.errors import WorldError

APPLICATION = 0x49534F56
"""``ISOV``: says in the file's header whose file it is."""
VERSION = 6
"""The schema's version. An older file is brought up to date at open, a newer one refused."""
PAGE = 4096
"""Bytes of a page of a new file. A write touches some 35 pages, most of them of frequencies: small
pages make a short log, at the price of a quarter more for vectors of 1,024 bytes."""

META = """CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID"""

RECORDS = """CREATE TABLE records (
    call TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID"""

GRANTS = """CREATE TABLE grants (
    agent  TEXT PRIMARY KEY,
    users  BLOB NOT NULL,
    scopes BLOB NOT NULL
) WITHOUT ROWID"""

# Of agents, beside users and scopes: whom it may write mail to and which tools it may call, and
# the manifest that a person has approved.
AGENTS = (
    """CREATE TABLE permissions (
    agent TEXT PRIMARY KEY,
    mail  BLOB NOT NULL,
    tools BLOB NOT NULL
) WITHOUT ROWID""",
    """CREATE TABLE approvals (
    agent TEXT PRIMARY KEY,
    body  BLOB NOT NULL
) WITHOUT ROWID""",
    "CREATE TABLE distrusted (agent TEXT PRIMARY KEY) WITHOUT ROWID",
    # Units that were hidden because of an agent, each with the audience that it had.
    """CREATE TABLE hidden (
    unit        TEXT PRIMARY KEY,
    users_kind  TEXT NOT NULL,
    users_name  TEXT NOT NULL,
    agents_kind TEXT NOT NULL,
    agents_name TEXT NOT NULL
) WITHOUT ROWID""",
)

# A conversation of a pair, under a name. id names the file of what its model holds of it.
CONTEXTS = """CREATE TABLE contexts (
    user     TEXT NOT NULL,
    agent    TEXT NOT NULL,
    name     TEXT NOT NULL,
    id       TEXT NOT NULL,
    model    TEXT NOT NULL,
    saved_at INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (user, agent, name)
)"""

LEARNING = (
    # A finished attempt on its way through learning. body holds what its next step needs, and is
    # empty at its end; report is what is told of it.
    """CREATE TABLE submissions (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    user         TEXT NOT NULL,
    agent        TEXT NOT NULL,
    key          TEXT NOT NULL,
    state        TEXT NOT NULL,
    outcome      TEXT NOT NULL,
    submitted_at INTEGER NOT NULL,
    report       BLOB NOT NULL,
    body         BLOB NOT NULL
)""",
    "CREATE UNIQUE INDEX submissions_by_key ON submissions (user, agent, key) WHERE key <> ''",
    "CREATE INDEX submissions_by_pair ON submissions (user, agent, number)",
    "CREATE INDEX submissions_open ON submissions (number) WHERE state = 'queued'",
    # All and only the units that were learned, each with who wrote it last; fresh is 1 until a
    # review has looked at it.
    """CREATE TABLE entries (
    unit   TEXT PRIMARY KEY,
    writer TEXT NOT NULL,
    fresh  INTEGER NOT NULL
)""",
    "CREATE INDEX entries_fresh ON entries (unit) WHERE fresh = 1",
    """CREATE TABLE origins (
    unit       TEXT NOT NULL,
    submission TEXT NOT NULL,
    user       TEXT NOT NULL,
    agent      TEXT NOT NULL,
    outcome    TEXT NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (unit, submission)
)""",
    "CREATE INDEX origins_by_user ON origins (user)",
    """CREATE TABLE consents (
    user   TEXT PRIMARY KEY,
    choice TEXT NOT NULL
)""",
)

LEDGER = (
    # What changes the world, by the key of its pair. touched orders by the last change.
    """CREATE TABLE effects (
    touched    INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    user       TEXT NOT NULL,
    agent      TEXT NOT NULL,
    key        TEXT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL,
    body       BLOB NOT NULL,
    UNIQUE (user, agent, key)
)""",
    "CREATE INDEX effects_by_state ON effects (user, agent, state, touched)",
    "CREATE INDEX effects_open ON effects (touched) WHERE state = 'started'",
    # The box of the pair (agent, user); number is the order of arrival.
    """CREATE TABLE mail (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL UNIQUE,
    user      TEXT NOT NULL,
    agent     TEXT NOT NULL,
    from_user TEXT NOT NULL,
    sent_at   INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    body      BLOB NOT NULL
)""",
    "CREATE INDEX mail_by_box ON mail (user, agent, number, id, bytes, sent_at)",
    "CREATE INDEX mail_by_sender ON mail (from_user)",
    """CREATE TABLE timers (
    id      TEXT PRIMARY KEY,
    user    TEXT NOT NULL,
    agent   TEXT NOT NULL,
    next_at INTEGER NOT NULL,
    body    BLOB NOT NULL
)""",
    "CREATE INDEX timers_by_pair ON timers (user, agent)",
)

CHRONICLE = (
    # What the store knows of the file of the chronicle: the last line of each append, and where it
    # ends.
    """CREATE TABLE heads (
    number INTEGER PRIMARY KEY,
    hash   BLOB NOT NULL,
    end    INTEGER NOT NULL
)""",
    # Under which name a user stands in it. Without its line nobody can tell who that is.
    """CREATE TABLE pseudonyms (
    user TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) WITHOUT ROWID""",
)

HOLDINGS = (
    # How many units a pair has, and the bytes of their texts; no row is of none.
    """CREATE TABLE holdings (
    user  TEXT NOT NULL,
    agent TEXT NOT NULL,
    units INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (user, agent)
) WITHOUT ROWID""",
    # Limits that the operator has set while a kernel ran.
    """CREATE TABLE quotas (
    axis    TEXT NOT NULL,
    name    TEXT NOT NULL,
    figures BLOB NOT NULL,
    PRIMARY KEY (axis, name)
) WITHOUT ROWID""",
)

FILES = (
    # space is the key of its audience (MessagePack of two axes, never joined). version is the
    # current one; bytes are those of all versions that are kept.
    """CREATE TABLE files (
    fid      INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    space    BLOB NOT NULL,
    path     TEXT NOT NULL,
    user     TEXT NOT NULL,
    agent    TEXT NOT NULL,
    stream   TEXT NOT NULL,
    writable INTEGER NOT NULL,
    version  INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
)""",
    "CREATE UNIQUE INDEX files_by_path ON files (space, path)",
    "CREATE INDEX files_by_owner ON files (user, agent, bytes)",
    # What makes a version stands in body, or in a file of the content store that is named blob.
    """CREATE TABLE versions (
    fid     INTEGER NOT NULL REFERENCES files (fid),
    version INTEGER NOT NULL,
    action  TEXT NOT NULL,
    source  INTEGER NOT NULL,
    agent   TEXT NOT NULL,
    user    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    reason  TEXT NOT NULL,
    key     TEXT NOT NULL,
    hash    BLOB NOT NULL,
    size    INTEGER NOT NULL,
    text    INTEGER NOT NULL,
    blob    TEXT NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (fid, version)
)""",
    "CREATE UNIQUE INDEX versions_by_key ON versions (user, agent, key) WHERE key <> ''",
    "CREATE INDEX versions_by_blob ON versions (blob) WHERE blob <> ''",
    # The units by which the current version is found.
    """CREATE TABLE file_units (
    unit TEXT PRIMARY KEY,
    fid  INTEGER NOT NULL REFERENCES files (fid)
) WITHOUT ROWID""",
    "CREATE INDEX file_units_by_file ON file_units (fid)",
)

# Numbers that other files may hold (uid, row, tid) are never used again: AUTOINCREMENT.
MEMORY = (
    # A partition is a key of two axes, in columns of their own and never joined, so that the
    # users a_b and a cannot meet. accepted: the last sequence number known to be issued. chunks
    # and total: how many chunks are in it, and the sum of their lengths in terms.
    """CREATE TABLE partitions (
    pid         INTEGER PRIMARY KEY,
    users_kind  TEXT NOT NULL,
    users_name  TEXT NOT NULL,
    agents_kind TEXT NOT NULL,
    agents_name TEXT NOT NULL,
    accepted    INTEGER NOT NULL DEFAULT 0,
    chunks      INTEGER NOT NULL DEFAULT 0,
    total       INTEGER NOT NULL DEFAULT 0,
    UNIQUE (users_kind, users_name, agents_kind, agents_name)
)""",
    # seq is the number of its birth in the partition, wrote that of the last write of its text.
    # twin is 1 while a second write of the same thing must come to this unit; NULL once it is
    # superseded, has expired, or the same was said again to supersede another unit. What a start
    # reads of every unit stands before what is long.
    """CREATE TABLE units (
    uid        INTEGER PRIMARY KEY AUTOINCREMENT,
    pid        INTEGER NOT NULL REFERENCES partitions (pid),
    seq        INTEGER NOT NULL,
    said_at    INTEGER NOT NULL,
    expires_at INTEGER,
    kind       TEXT NOT NULL,
    hash       BLOB NOT NULL,
    id         TEXT NOT NULL UNIQUE,
    version    INTEGER NOT NULL,
    wrote      INTEGER NOT NULL,
    born_at    INTEGER NOT NULL,
    stored_at  INTEGER NOT NULL,
    agent      TEXT NOT NULL,
    user       TEXT NOT NULL,
    stream     TEXT NOT NULL,
    session    TEXT NOT NULL,
    round      INTEGER NOT NULL,
    handle     TEXT NOT NULL,
    supersedes TEXT NOT NULL,
    twin       INTEGER,
    meta       BLOB NOT NULL,
    text       TEXT NOT NULL
)""",
    "CREATE INDEX units_by_seq ON units (pid, seq)",
    "CREATE UNIQUE INDEX units_by_text ON units (pid, agent, user, hash, kind, session, round)"
    " WHERE twin = 1",
    "CREATE INDEX units_by_handle ON units (handle, round) WHERE handle <> ''",
    "CREATE INDEX units_by_older ON units (supersedes) WHERE supersedes <> ''",
    "CREATE INDEX units_by_user ON units (user)",
    "CREATE INDEX units_by_expiry ON units (expires_at) WHERE expires_at IS NOT NULL",
    # The forward index: a chunk by its places in the text, and its terms with their counts.
    """CREATE TABLE chunks (
    row    INTEGER PRIMARY KEY AUTOINCREMENT,
    uid    INTEGER NOT NULL REFERENCES units (uid) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    head   INTEGER NOT NULL,
    start  INTEGER NOT NULL,
    stop   INTEGER NOT NULL,
    length INTEGER NOT NULL,
    terms  BLOB NOT NULL,
    UNIQUE (uid, number)
)""",
    """CREATE TABLE vectors (
    row    INTEGER PRIMARY KEY REFERENCES chunks (row) ON DELETE CASCADE,
    vector BLOB NOT NULL
)""",
    # While vectors of another model are made, they gather here.
    """CREATE TABLE next_vectors (
    row    INTEGER PRIMARY KEY REFERENCES chunks (row) ON DELETE CASCADE,
    vector BLOB NOT NULL
)""",
    """CREATE TABLE terms (
    tid  INTEGER PRIMARY KEY AUTOINCREMENT,
    term TEXT NOT NULL UNIQUE
)""",
    # In how many chunks of a partition a term stands; never 0.
    """CREATE TABLE frequencies (
    tid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    n   INTEGER NOT NULL,
    PRIMARY KEY (tid, pid)
) WITHOUT ROWID""",
    """CREATE TABLE groups (
    axis   TEXT NOT NULL,
    name   TEXT NOT NULL,
    member TEXT NOT NULL,
    PRIMARY KEY (axis, name, member)
) WITHOUT ROWID""",
    # issued_at is 0 until nothing of what was forgotten is left in any file.
    """CREATE TABLE receipts (
    id        TEXT PRIMARY KEY,
    asked_at  INTEGER NOT NULL,
    issued_at INTEGER NOT NULL DEFAULT 0
)""",
    """CREATE TABLE forgotten (
    number  INTEGER PRIMARY KEY,
    receipt TEXT NOT NULL REFERENCES receipts (id),
    unit    TEXT NOT NULL
)""",
    "CREATE INDEX forgotten_by_receipt ON forgotten (receipt)",
)
"""What holds units and what is told of them."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the store's settings, usable from any one thread at a time.

    FULL: a commit returns when the log is flushed, so what is acknowledged outlives a power cut
    (but see :meth:`~isovist.storage.store.Store.commit` on vectors).
    ``secure_delete``: what is deleted is overwritten. Transactions are begun and ended by hand.
    """
    db = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=256
    )
    try:
        if read_only:
            # A commit empties a reader's cache; the mapped file keeps what it read.
            db.execute("PRAGMA query_only = ON")
            db.execute("PRAGMA mmap_size = 68719476736")
            return db
        db.execute("PRAGMA secure_delete = ON")
        if not path.stat().st_size:  # only then does it cost no write
            db.execute(f"PRAGMA page_size = {PAGE}")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA cache_size = -32768")
    except BaseException:
        db.close()
        raise
    return db


def open_file(path: Path) -> sqlite3.Connection:
    """Open or create the store's file, readable by its owner alone; bring an older one up to date.

    Raises :class:`WorldError` where it is no store, is of a newer schema, or cannot be opened.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = connect(path)
    except (OSError, sqlite3.Error) as e:
        raise WorldError(f"{path}: the store cannot be opened: {e}") from e
    try:
        _prepare(db, path)
    except sqlite3.Error as e:
        db.close()
        raise WorldError(f"{path}: the store cannot be opened: {e}") from e
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION:
        raise WorldError(f"{path}: this is not a store of Isovist")
    if version > VERSION:
        raise WorldError(
            f"{path}: the store has schema {version}, this Isovist knows up to {VERSION}; "
            "use the newer Isovist that wrote it"
        )
    if not tables:
        create(db)
    elif version < VERSION:
        from isovist.storage import migration  # it knows all older tables, and few files need it

        migration.to_newest(db, version)
    (vacuum,) = db.execute("PRAGMA auto_vacuum").fetchone()
    if vacuum != _INCREMENTAL:  # a migrated file, perhaps of a process that died before this
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("VACUUM")


_INCREMENTAL = 2


def create(db: sqlite3.Connection) -> None:
    """Make all tables of an empty file, in one transaction. Two processes may meet here: the
    second finds them made."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            for statement in (META, RECORDS, GRANTS, CONTEXTS):
                db.execute(statement)
            for family in (AGENTS, LEARNING, LEDGER, CHRONICLE, FILES, HOLDINGS, MEMORY):
                for statement in family:
                    db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
