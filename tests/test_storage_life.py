"""Changes of a unit's life, its end, and what is then left in the file: nothing."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from storage_helpers import (
    DIM,
    EMBEDDER,
    T0,
    embedded,
    put,
    search,
    vectors,
    view,
    write,
)

from isovist.storage import gaps, life, log, schema
from isovist.storage.backend import Backend
from isovist.storage.engines import WholeEngine
from isovist.storage.memory import MemoryStore
from isovist.storage.snapshot import Snapshot
from isovist.storage.store import Store
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.operations import (
    NEXT_ROUND,
    CountQuery,
    Drop,
    Expire,
    ListQuery,
    MatchQuery,
    Move,
    Put,
    ReadQuery,
    Receipt,
    RoundsQuery,
)
from isovist.syscalls.records import Mode, View, partition_of

ANA = view("ana", "p")
OTHER = view("ana", "q")


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made: Backend
    if request.param == "memory":
        made = MemoryStore(EMBEDDER.name, DIM)
    else:
        made = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM, engine="memory")
    made.restore()
    yield made
    if isinstance(made, Store):
        assert made.verify() == []
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM, engine="memory")
    made.restore()
    yield made
    made.close()


def texts(store: Backend, reader: View = ANA) -> list[str]:
    return [u.text for u in store.select(reader, ListQuery(limit=500, now=T0)).units()]


def move(unit: Put, scope: str, to_seq: int, version: int = 1, at: int = T0 + 50) -> Move:
    return Move(partition=unit.partition, seq=90, id=unit.id, version=version, to_seq=to_seq,
                to=partition_of(scope, unit.user, unit.agent), stored_at=at)  # fmt: skip


# -- expiry


def test_an_expiry_is_a_new_version_of_the_same_text(store: Backend) -> None:
    one = put(1, "tea")
    (stored,) = write(store, one, embed=False)
    expire = Expire(partition=one.partition, seq=2, id=one.id, version=1, expires_at=T0 + 100,
                    stored_at=T0 + 9)  # fmt: skip
    done, late = write(store, expire, expire)
    assert (done.errno, done.version, done.chunks) == (0, 2, ())
    assert late.errno == Errno.ESTALE
    for now, there in ((T0 + 99, True), (T0 + 100, False)):
        found = store.select(ANA, ReadQuery(id=one.id, now=now)).units()
        assert bool(found) is there
    assert found == ()
    # Vectors that were on their way are still of this text.
    (came,) = store.commit([vectors(one, stored)])
    store.apply([came])
    assert came.errno == 0
    near = store.select(ANA, search("tea", mode="dense", now=T0), embedded("tea"))
    assert [u.version for u in near.units()] == [2]


# -- moving


def test_a_moved_unit_is_new_where_it_comes_and_gone_where_it_was(store: Backend) -> None:
    one, two = put(1, "tea"), put(7, "coffee", scope="user")
    write(store, one, two)
    (done,) = write(store, move(one, "user", 8))
    assert (done.errno, done.id, done.version, done.chunks) == (0, one.id, 2, ())
    assert texts(store, OTHER) == ["tea", "coffee"]
    (unit,) = store.select(OTHER, ReadQuery(id=one.id, now=T0)).units()
    assert (unit.scope, unit.version, unit.stored_at) == ("user", 2, T0 + 50)
    for mode in ("bm25", "dense"):
        found = store.select(OTHER, search("tea", mode=mode, k=1, now=T0), embedded("tea"))
        assert found.units() == (unit,)
    assert store.select(ANA, CountQuery(now=T0)).counts[:2] == (0, 2)
    # Whoever looks for it where it was is told that it is elsewhere, and not that it is gone.
    (missed,) = write(store, Drop(partition=one.partition, seq=9, id=one.id))
    assert missed.errno == Errno.ESTALE
    assert store.select(OTHER, ReadQuery(id=one.id, now=T0)).units() == (unit,)


def test_a_move_without_vectors_asks_for_them(store: Backend) -> None:
    one = put(1, "tea")
    (stored,) = write(store, one, embed=False)
    (done,) = write(store, move(one, "user", 3), embed=False)
    assert done.chunks == stored.chunks
    (late,) = store.commit([vectors(one, stored)])
    assert late.errno == Errno.ESTALE


def test_a_move_is_refused_where_a_twin_is_and_where_it_is_already(store: Backend) -> None:
    one, twin = put(1, "tea"), put(1, "tea", scope="user")
    write(store, one, twin)
    clash, stay, stale = write(
        store, move(one, "user", 2), move(one, "pair", 3), move(one, "agent", 2, version=5)
    )
    assert [o.errno for o in (clash, stay, stale)] == [Errno.EEXIST, Errno.EINVAL, Errno.ESTALE]
    assert store.select(ANA, CountQuery(now=T0)).counts[:2] == (1, 1)
    brief = put(5, "milk", scope="user", expires_at=T0 + 10)
    write(store, brief, put(6, "milk"))
    (done,) = write(store, move(put(6, "milk"), "user", 9))
    assert done.errno == 0, "a twin that has expired gives way"


def test_what_supersedes_goes_on_doing_so_when_either_moves(store: Backend) -> None:
    old = put(1, "Ana deploys on Tuesday")
    new = put(2, "Ana deploys on Friday", supersedes=old.id)
    write(store, old, new)

    def found(reader: View) -> list[str]:
        asked = search("Ana deploys", now=T0)
        return [u.id for u in store.select(reader, asked, embedded("Ana deploys")).units()]

    write(store, move(old, "user", 1))
    assert found(ANA) == [new.id]
    assert found(OTHER) == [old.id], "its reader cannot see the newer one"
    write(store, move(new, "user", 2))
    assert found(OTHER) == [new.id]


# -- rounds


def test_stretches_of_rounds_come_in_order_and_no_unit_twice(store: Backend) -> None:
    for n in range(1, 7):
        write(store, put(n, f"round {n}", handle="h", round=n))
    write(store, put(1, "also 3", handle="h", round=3, scope="user", stored_at=T0 + 10**6))
    write(store, put(9, "other session", handle="g", round=1), put(10, "none", round=1))
    write(store, put(1, "not for Ana", handle="h", round=2, user="bob"))
    query = RoundsQuery(wanted=(("g", 0, 9), ("h", 3, 4), ("h", 2, 3)), now=T0)
    told = [u.text for u in store.select(ANA, query).units()]
    assert told == ["other session", "round 3", "also 3", "round 4", "round 2"]
    few = store.select(ANA, msgspec.structs.replace(query, limit=2)).units()
    assert [u.text for u in few] == told[:2]
    assert store.select(ANA, RoundsQuery(wanted=(("", 0, 9),), now=T0)).units() == ()
    assert [u.text for u in store.select(OTHER, query).units()] == ["also 3"]


# -- secrets


@pytest.mark.promise("secrets.never")
def test_a_secret_is_replaced_before_anything_is_kept(store: Backend) -> None:
    secret = "AKIA" + "IOSFODNN7EXAMPLF"
    first, second = write(store, put(1, f"the key is {secret}, {secret}"), put(2, f"by {secret}"))
    assert sum(first.secrets.values()) == 2
    assert sum(second.secrets.values()) == 1
    assert secret not in str((first, second))
    assert not any(secret in text for text in texts(store))
    assert store.select(ANA, search(secret, mode="bm25", now=T0)).units() == ()


# -- groups


def test_groups_are_kept(store: Backend) -> None:
    store.save_group("users", "team", ["bob", "ana"])
    store.save_group("agents", "team", ["p"])
    store.save_group("users", "empty", [])
    assert store.groups() == {
        ("agents", "team"): ("p",), ("users", "empty"): (), ("users", "team"): ("ana", "bob"),
    }  # fmt: skip
    store.save_group("users", "team", ["bob"])
    assert store.groups()["users", "team"] == ("bob",)


# -- the end


def test_forgetting_a_user_takes_all_that_is_hers(store: Backend) -> None:
    mine = [put(1, "tea"), put(1, "for all", scope="global"), put(1, "by p", scope="agent")]
    of_others = put(1, "kept for Ana by Bob's agent", user="bob", scope="agent", agent="q")
    write(store, *mine, of_others)
    store.save_group("users", "team", ["ana", "bob"])
    store.save_grant("p", ("ana", "bob"), ())
    store.save_grant("q", ("ana",), ())
    assert store.owned("ana") == tuple(sorted((unit.id, 1, unit.partition.scope) for unit in mine))
    outcomes = store.purge("ana", "receipt", T0)
    store.apply(outcomes)
    assert store.owned("ana") == ()
    assert texts(store) == []
    assert texts(store, view("bob", "q")) == [of_others.text]
    assert store.groups() == {("users", "team"): ("bob",)}
    assert store.grants() == {"p": (("bob",), ())}
    ids = tuple(sorted(unit.id for unit in mine))
    assert store.receipt("receipt") == Receipt(id="receipt", asked_at=T0, issued_at=0, units=ids)
    store.scrub(T0 + 5)
    found = store.receipt("receipt")
    assert found is not None
    assert found.issued_at == T0 + 5
    assert store.receipt("other") is None


def test_the_next_round_follows_the_highest_of_its_session(store: Backend) -> None:
    def said(n: int, round_: int, handle: str = "s1") -> int:
        unit = put(n, f"turn {n}", session="x" if handle else "", handle=handle, round=round_)
        (outcome,) = write(store, unit)
        assert isinstance(outcome.op, Put)
        found = store.select(ANA, ReadQuery(id=unit.id, now=T0)).units()[0]
        assert found.round == outcome.op.round
        return found.round

    assert [said(1, NEXT_ROUND), said(2, NEXT_ROUND)] == [1, 2]
    assert [said(3, 7), said(4, NEXT_ROUND)] == [7, 8]
    assert [said(5, NEXT_ROUND, "s2"), said(6, NEXT_ROUND, "")] == [1, 0]
    # Two in one commit, of the same words: each is a round of its own.
    same = [
        put(n, "again", session="x", handle="s1", round=NEXT_ROUND, id=f"same{n}") for n in (7, 8)
    ]
    outcomes = write(store, *same)
    assert [o.op.round for o in outcomes if isinstance(o.op, Put)] == [9, 10]
    assert not any(o.duplicate for o in outcomes)
    assert [said(9, (1 << 31) - 1), said(10, NEXT_ROUND)] == [(1 << 31) - 1] * 2


def test_a_store_backs_itself_up_where_it_has_a_file(store: Backend, tmp_path: Path) -> None:
    write(store, put(1, "tea"))
    copy = tmp_path / "copy.db"
    if isinstance(store, MemoryStore):
        with pytest.raises(CallerError) as caught:
            store.backup(str(copy))
        assert caught.value.errno is Errno.ENOSYS
        assert not copy.exists()
        return
    assert store.backup(str(copy)) == copy.stat().st_size
    with closing(Store.open(copy, EMBEDDER.name, DIM)) as other:
        other.restore()
        assert texts(other) == ["tea"]


def test_the_next_round_survives_a_restart(tmp_path: Path) -> None:
    for n in (1, 2):
        with closing(Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)) as store:
            store.restore()
            (outcome,) = write(
                store, put(n, f"turn {n}", session="x", handle="s1", round=NEXT_ROUND)
            )
            assert isinstance(outcome.op, Put)
            assert outcome.op.round == n


def test_a_refused_drop_enters_no_receipt(store: Backend) -> None:
    one = put(1, "tea")
    (outcome,) = write(store, Drop(partition=one.partition, seq=1, id=one.id, receipt="r"))
    assert outcome.errno == Errno.ENOENT
    assert store.receipt("r") is None
    write(store, one, Drop(partition=one.partition, seq=2, id=one.id, receipt="r", stored_at=T0))
    store.scrub(T0 + 1)
    two = put(3, "coffee")
    write(store, two, Drop(partition=one.partition, seq=4, id=two.id, receipt="r", stored_at=T0))
    found = store.receipt("r")
    assert found == Receipt(id="r", asked_at=T0, issued_at=0, units=(one.id, two.id))


def _held(folder: Path, *needles: bytes) -> set[bytes]:
    """Which of ``needles`` stand in any file."""
    whole = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return {needle for needle in needles if needle in whole}


def test_after_a_scrub_no_byte_of_what_was_forgotten_is_in_the_file(
    file: Store, tmp_path: Path
) -> None:
    canaries, vanished = [], []
    for n in range(0, 400, 8):
        group = []
        for i in range(n, n + 8):
            word = f"qx{i:03d}zvkw"
            text = f"canary {word} " + f"and some padding about {i} things " * (1 + i % 9 * 7)
            group.append(put(i + 1, text, meta={"tag": f"meta{word}"}, session=f"s{word}"))
            canaries.append(word.encode())
        write(file, *group)
    for i in range(0, 400, 3):
        unit = put(i + 1, "")
        write(file, Drop(partition=unit.partition, seq=1000 + i, id=unit.id))
        vanished.append(canaries[i])
    kept = set(canaries) - set(vanished)
    file.scrub(T0)
    assert _held(tmp_path, *canaries) == kept
    # The log holds the note that all is done, and nothing before it.
    assert (tmp_path / "isovist.db-wal").stat().st_size < 2 * schema.PAGE
    assert file._db.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert file.verify() == []


def test_a_scrub_empties_the_gaps_that_sqlite_leaves(file: Store, tmp_path: Path) -> None:
    def filled() -> int:
        path = tmp_path / "isovist.db"
        handle = os.open(path, os.O_RDONLY)  # kept open: closing it would end the store's locks
        count = 0
        for number in gaps._tree_pages(handle, schema.PAGE, path.stat().st_size // schema.PAGE):
            page = os.pread(handle, schema.PAGE, (number - 1) * schema.PAGE)
            low, high = gaps._gap(page, number)
            assert low, f"page {number} is none of a tree"
            count += any(page[low:high])
        return count

    for group in range(40):
        write(file, *(put(1 + 8 * group + i, f"word{group}x{i} " * 9) for i in range(8)))
    for n in range(1, 300, 2):
        write(file, Drop(partition=put(1, "").partition, seq=1000 + n, id=put(n, "").id))
    file._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert filled() > 0, "SQLite leaves none: this module can go"
    file.scrub(T0)
    assert filled() == 0
    # What was in the writer's cache does not come back.
    write(file, *(put(5000 + i, f"new word{i}") for i in range(8)))
    write(file, Drop(partition=put(1, "").partition, seq=5008, id=put(5000, "").id))
    file.scrub(T0)
    assert filled() == 0
    assert file.verify() == []
    assert len(texts(file)) == 177


def test_a_scrub_works_only_where_something_was_dropped_in_whatever_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[None] = []
    shrink = life.shrink
    monkeypatch.setattr(life, "shrink", lambda db: (began.append(None), shrink(db)))
    one, two = put(1, "tea"), put(2, "coffee")
    path = tmp_path / "isovist.db"
    with closing(Store.open(path, EMBEDDER.name, DIM)) as store:
        store.restore()
        write(store, one, two)
        assert store.scrub(T0)
        assert not began
        write(store, Drop(partition=one.partition, seq=3, id=one.id))
    with closing(Store.open(path, EMBEDDER.name, DIM)) as store:
        store.restore()
        assert store.scrub(T0)
        assert store.scrub(T0)
        assert len(began) == 1


def test_a_scrub_ends_where_the_store_is_about_to_be_closed(file: Store) -> None:
    one = put(1, "tea")
    write(file, one)
    # Committed and never applied: a scrub waits for that.
    file.commit([Drop(partition=one.partition, seq=2, id=one.id, receipt="r")])
    errors: list[WorldError] = []

    def scrub() -> None:
        try:
            file.scrub(T0)
        except WorldError as e:
            errors.append(e)

    thread = threading.Thread(target=scrub)
    thread.start()
    file.stop_upkeep()
    thread.join(timeout=20)
    assert [e.errno for e in errors] == [Errno.ECANCELED]
    found = file.receipt("r")
    assert found is not None
    assert found.issued_at == 0


def test_a_scrub_waits_for_readers_and_says_so_when_they_stay(
    file: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = put(1, "tea")
    write(file, one)
    reader = file._readers.open()
    write(file, Drop(partition=one.partition, seq=2, id=one.id, receipt="r"))
    monkeypatch.setattr(log, "_DEADLINE", 0.05)
    with pytest.raises(WorldError) as caught:
        file.scrub(T0)
    assert caught.value.errno is Errno.EAGAIN
    found = file.receipt("r")
    assert found is not None
    assert found.issued_at == 0
    monkeypatch.undo()
    thread = threading.Thread(target=file.scrub, args=(T0 + 3,))
    thread.start()
    reader.release()
    thread.join(timeout=60)
    found = file.receipt("r")
    assert found is not None
    assert found.issued_at == T0 + 3


# -- snapshots and the log


def test_a_snapshot_stands_still(file: Store) -> None:
    one = put(1, "tea")
    write(file, one)
    with file._readers.open() as before:
        outcomes = file.commit([put(2, "coffee")])
        assert before.newest(1) == 1
        assert file._snapshot.newest(1) == 1, "committed, not applied"
        file.apply(outcomes)
        assert before.newest(1) == 1
        assert file._snapshot.newest(1) == 2
    assert file._readers.out == 1


def test_a_snapshot_reads_in_the_order_asked(file: Store) -> None:
    write(file, put(1, "tea tea ana"), put(2, "coffee ana " * 300, scope="user"))
    write(file, put(3, "ana"), embed=False)
    with file._readers.open() as now:
        tids = now.tids(["tea", "coffe", "ana", "never"])
        assert set(tids) == {"tea", "coffe", "ana"}
        assert now.words(tids.values()) == {tid: term for term, tid in tids.items()}
        uid, pid = now.find("user-ana-p-2") or (0, 0)
        rows = now.rows_of(uid)
        assert len(rows) > 2
        (single,) = now.rows_of((now.find("pair-ana-p-1") or (0, 0))[0])
        (bare,) = now.rows_of((now.find("pair-ana-p-3") or (0, 0))[0])
        asked = [rows[1], bare, single, rows[0]]
        table = [file._db.execute("SELECT terms FROM chunks WHERE row = ?", (row,)).fetchone()[0]
                 for row in asked]  # fmt: skip
        assert now.forward(asked) == table
        matrix, present = now.vectors(asked)
        assert present.tolist() == [True, False, True, True]
        assert matrix.shape == (4, DIM)
        assert not matrix[1].any()
        found, of_user = now.vectors_of(pid)
        assert found.tolist() == rows
        assert (of_user[:2] == matrix[[3, 0]]).all()
        both = [1, pid]
        for some in (both, [1], [pid], []):
            expected = sum({1: 2, pid: len(rows)}[p] for p in some)
            assert now.frequencies([tids["ana"]], some).get(tids["ana"], 0) == expected
        with pytest.raises(KeyError):
            now.forward([10**6])


def test_the_log_stays_short_although_a_snapshot_is_always_open(file: Store) -> None:
    file._log.limit = 200_000
    longest = 0
    for group in range(150):
        write(file, *(put(1 + 8 * group + i, f"unit {group} {i}") for i in range(8)))
        longest = max(longest, file._log.size())
    assert longest < 4 * file._log.limit
    assert len(texts(file)) == 500
    assert file.verify() == []


def test_a_reader_in_the_way_costs_length_and_nothing_else(file: Store) -> None:
    file._log.limit = 50_000
    write(file, put(1, "first"))
    with file._readers.open() as reader:
        for n in range(2, 60):
            write(file, put(n, f"unit {n}"))
        assert file._log.size() > file._log.limit
        assert reader.newest(1) == 1
    for n in range(60, 90):
        write(file, put(n, f"unit {n}"))
    assert file._log.size() <= 2 * file._log.limit
    assert len(texts(file)) == 89


def test_work_beside_the_loop_reads_a_snapshot_of_its_own(file: Store) -> None:
    write(file, put(1, "tea"))

    class Counting:
        found = 0

        def run(self, reader: Callable[[], Snapshot]) -> None:
            with reader() as now:
                self.found = now.counts(1, T0, ())

    job = Counting()
    thread = threading.Thread(target=file.run, args=(job,))
    thread.start()
    thread.join(timeout=30)
    file.finish(job)
    assert job.found == 1
    assert isinstance(file._engine, WholeEngine)


def test_a_recount_finds_what_is_wrong(file: Store, tmp_path: Path) -> None:
    write(file, put(1, "tea and coffee"), put(2, "tea"))
    assert file.verify() == []
    harm = [
        "UPDATE frequencies SET n = n + 1 WHERE tid = 1",
        "UPDATE partitions SET chunks = 9",
        "UPDATE partitions SET accepted = 1",
        "DELETE FROM terms WHERE tid = 1",
        "DELETE FROM chunks WHERE uid = 1",
    ]
    for statement in harm:
        db = file._db
        db.execute("BEGIN")
        db.execute(statement)
        with pytest.raises(sqlite3.OperationalError):
            db.execute("BEGIN")
        assert file.verify() != [], statement
        db.execute("ROLLBACK")
    assert file.verify() == []


def test_what_was_superseded_stands_again_though_it_supersedes_another(store: Backend) -> None:
    oldest = put(1, "tea at one", scope="user")
    older = put(1, "tea at two", supersedes=oldest.id)
    newest = put(2, "tea at three", supersedes=older.id)
    write(store, oldest, older, newest)
    found = store.select(ANA, search("tea", mode="bm25")).units()
    assert [unit.text for unit in found] == [newest.text]
    write(store, Drop(partition=newest.partition, seq=3, id=newest.id))
    found = store.select(ANA, search("tea", mode="bm25")).units()
    assert [unit.text for unit in found] == [older.text]


# -- what has expired


def lapsed(store: Backend, now: int) -> list[Drop]:
    """The removals by which the kernel sweeps."""
    return [
        Drop(partition=one.partition, seq=60 + at, id=one.id, stored_at=now, expired=True)
        for at, one in enumerate(store.expired(now, 100)[0])
    ]


def hits(store: Backend, text: str, now: int, mode: Mode = "bm25") -> list[tuple[str, float]]:
    found = store.select(ANA, search(text, mode=mode, now=now, k=20), embedded(text))
    return [(c.hit.unit.text, c.hit.score) for c in found.candidates]


def test_the_expired_are_told_oldest_first_and_when_the_next_one_is_due(store: Backend) -> None:
    ends = {1: T0 + 30, 2: None, 3: T0 + 10, 4: T0 + 20}
    write(store, *(put(n, f"tea {n}", expires_at=at) for n, at in ends.items()))

    def told(now: int, limit: int) -> tuple[list[str], int | None]:
        units, soonest = store.expired(now, limit)
        return [unit.id[-1] for unit in units], soonest

    assert told(T0 + 9, 9) == ([], T0 + 10)
    assert told(T0 + 10, 0) == ([], T0 + 10)
    assert told(T0 + 25, 9) == (["3", "4"], T0 + 30)
    assert told(T0 + 40, 2) == (["3", "4"], T0 + 30)
    assert told(T0 + 40, 3) == (["3", "4", "1"], None)


@pytest.mark.promise("view.noninterference")
@pytest.mark.parametrize("mode", ["bm25", "dense", "rrf", "hybrid"])
def test_after_a_sweep_scores_are_those_of_the_living_alone(
    store: Backend, mode: Mode, tmp_path: Path
) -> None:
    lives = [put(n, f"lemon tart {'sugar ' * n}") for n in range(1, 5)]
    alone = Store.open(tmp_path / "alone.db", EMBEDDER.name, DIM)
    alone.restore()
    write(alone, *lives)
    expected = hits(alone, "lemon tart", T0 + 200, mode)
    alone.close()
    ends = [put(10 + n, f"lemon tart ghost {n}", expires_at=T0 + 100 + n) for n in range(9)]
    write(store, *lives, *ends)
    write(store, *lapsed(store, T0 + 200))
    assert hits(store, "lemon tart", T0 + 200, mode) == expected
    assert store.expired(T0 + 200, 9) == ((), None)


def test_a_sweep_spares_what_was_given_more_time(store: Backend) -> None:
    unit = put(1, "tea at one", expires_at=T0 + 10)
    write(store, unit)
    (swept,) = lapsed(store, T0 + 20)
    write(store, Expire(partition=unit.partition, seq=2, id=unit.id, version=1, expires_at=None,
                        stored_at=T0 + 5))  # fmt: skip
    (refused,) = write(store, swept)
    assert refused.errno == Errno.ESTALE
    assert texts(store) == ["tea at one"]


@pytest.mark.promise("erase.complete")
def test_no_byte_of_what_was_swept_is_left_and_nobody_holds_a_receipt(tmp_path: Path) -> None:
    file = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
    file.restore()
    write(file, put(1, "tea"), put(2, "the canary quagglemire", expires_at=T0 + 10))
    write(file, *lapsed(file, T0 + 20))
    while not file.scrub(T0 + 30):
        job = file.job()
        assert job is not None
        file.run(job)
        file.finish(job)
    file.close()
    held = [p for p in tmp_path.rglob("*") if p.is_file() and b"quaggl" in p.read_bytes().lower()]
    assert held == []
    with closing(sqlite3.connect(tmp_path / "isovist.db")) as db:
        assert db.execute("SELECT count(*) FROM receipts").fetchone() == (0,)


def test_what_has_expired_is_found_to_be_forgotten_and_for_nothing_else(store: Backend) -> None:
    unit = put(1, "tea at one", expires_at=T0 + 10)
    write(store, unit)
    now = T0 + 20
    assert store.select(ANA, ReadQuery(id=unit.id, now=now)).units() == ()
    assert len(store.select(ANA, ReadQuery(id=unit.id, now=now, expired=True)).units()) == 1
    assert len(store.select(ANA, MatchQuery(text="tea", limit=9, now=now)).units()) == 1
    for query in (ListQuery(limit=9, now=now), search("tea", mode="bm25", now=now)):
        assert store.select(ANA, query).units() == ()


# -- what supersedes what


def opened(kind: str, folder: Path) -> Backend:
    if kind == "memory":
        return MemoryStore(EMBEDDER.name, DIM)
    engine: Literal["indexed", "memory"] = "indexed" if kind == "indexed" else "memory"
    made = Store.open(folder / "isovist.db", EMBEDDER.name, DIM, engine=engine)
    made.restore()
    return made


KINDS_OF_STORE = pytest.mark.parametrize("kind", ["memory", "whole", "indexed"])


@KINDS_OF_STORE
@pytest.mark.parametrize("end", ["forgotten", "swept"])
@pytest.mark.parametrize("scope", ["pair", "user"])  # of the oldest
def test_what_stood_behind_a_unit_that_goes_stays_behind_the_one_before_it(
    kind: str, end: str, scope: str, tmp_path: Path
) -> None:
    store = opened(kind, tmp_path)
    oldest = put(1, "tea at one", scope=scope)
    middle = put(2, "tea at two", supersedes=oldest.id, expires_at=T0 + 9_000)
    newest = put(3, "tea at three", supersedes=middle.id)
    write(store, oldest, middle, newest)
    now = T0 + (10_000 if end == "swept" else 8_000)

    def found() -> list[str]:
        return [text for text, _ in hits(store, "tea", now)]

    assert found() == ["tea at three"], "an expired one that is superseded hides until it is swept"
    (outcome,) = write(
        store,
        Drop(
            partition=middle.partition, seq=4, id=middle.id, stored_at=now, expired=end == "swept"
        ),
    )
    assert outcome.heirs == (newest.id,)
    for again in (False, True):
        assert found() == ["tea at three"], again
        unit = store.select(ANA, ReadQuery(id=newest.id, now=now)).units()[0]
        assert (unit.supersedes, unit.version) == (oldest.id, 1)
        if isinstance(store, Store):
            assert store.verify() == []
            store.close()
            store = opened(kind, tmp_path)
    write(store, Drop(partition=newest.partition, seq=5, id=newest.id, stored_at=now))
    assert found() == ["tea at one"], "nothing stands before it any more"
    store.close()


@KINDS_OF_STORE
def test_a_unit_elsewhere_inherits_nothing(kind: str, tmp_path: Path) -> None:
    """Whoever sees ``newest`` and not ``middle`` must go on seeing ``oldest``."""
    store = opened(kind, tmp_path)
    oldest = put(1, "tea at one", scope="user")
    middle = put(2, "tea at two", supersedes=oldest.id)
    newest = put(3, "tea at three", scope="user", supersedes=middle.id)
    write(store, oldest, middle, newest)
    (outcome,) = write(store, Drop(partition=middle.partition, seq=4, id=middle.id))
    assert outcome.heirs == ()
    for reader in (ANA, OTHER):
        found = store.select(reader, search("tea", mode="bm25")).units()
        assert {unit.text for unit in found} == {"tea at one", "tea at three"}
    store.close()


@KINDS_OF_STORE
def test_a_line_of_an_import_that_would_close_a_ring_is_refused(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    one = put(1, "tea at one")
    two = put(2, "tea at two", supersedes=one.id)
    write(store, one, two, Drop(partition=one.partition, seq=3, id=one.id))
    back = msgspec.structs.replace(one, seq=4, born_at=T0, supersedes=two.id)
    itself = msgspec.structs.replace(put(5, "tea at six"), born_at=T0)
    itself = msgspec.structs.replace(itself, supersedes=itself.id)
    for line in (back, itself):
        (outcome,) = write(store, line, embed=False)
        assert (outcome.errno, outcome.field) == (Errno.EINVAL, "supersedes")
    assert [text for text, _ in hits(store, "tea", T0 + 50)] == ["tea at two"]
    store.close()


def test_of_two_who_supersede_a_unit_at_once_the_second_is_told_of_the_first(
    store: Backend,
) -> None:
    old = put(1, "tea at one")
    write(store, old)
    first, second = (put(n, f"tea at {n}", supersedes=old.id) for n in (2, 3))
    told = write(store, first, second)
    assert [one.errno for one in told] == [0, Errno.ESTALE]
    assert told[1].field == "supersedes"
    assert first.id in told[1].message
    assert sorted(texts(store)) == ["tea at 2", "tea at one"]
    # The very same once more is no rival of itself.
    again = put(4, first.text, supersedes=old.id)
    assert write(store, again)[0].duplicate
    # Other labels make it another unit, so a rival.
    other = put(5, first.text, supersedes=old.id, meta={"k": "v"})
    assert write(store, other)[0].errno == Errno.ESTALE


def test_rivals_are_units_of_one_partition_that_live(store: Backend) -> None:
    old = put(1, "tea at one", scope="user")
    ended = put(2, "tea at two", scope="user", supersedes=old.id, expires_at=T0 + 2_500)
    write(store, old, ended)
    elsewhere = put(3, "tea at three", supersedes=old.id)
    after = put(4, "tea at four", scope="user", supersedes=old.id)
    imported = put(5, "tea at five", scope="user", supersedes=old.id, born_at=T0)
    assert [one.errno for one in write(store, elsewhere, after, imported)] == [0, 0, 0]


@pytest.mark.promise("erase.complete")
def test_a_scrub_issues_what_was_owed_before_and_nothing_later(store: Backend) -> None:
    def forgotten(number: int) -> None:
        one = put(2 * number, "tea")
        drop = Drop(partition=one.partition, seq=2 * number + 1, id=one.id, receipt=f"r{number}")
        write(store, one, drop)

    def issued() -> list[int]:
        found = [store.receipt(f"r{number}") for number in (1, 2)]
        return [receipt.issued_at for receipt in found if receipt is not None]

    assert store.owed() is None
    forgotten(1)
    owed = store.owed()
    assert owed is not None
    assert owed[0] == ["r1"]
    forgotten(2)
    assert store.scrub(T0 + 5, owed)
    assert issued() == [T0 + 5, 0]
    left = store.owed()
    assert left is not None
    assert left[0] == ["r2"]
    assert store.scrub(T0 + 6, left)
    assert issued() == [T0 + 5, T0 + 6]
    assert store.owed() is None
