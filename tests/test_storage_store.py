"""One suite over both stores, then what only a file can promise."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from storage_helpers import DIM, EMBEDDER, T0, embedded, put, search, vectors, view, write

from isovist.storage import engine, forward, prepared, schema, words
from isovist.storage.backend import Backend
from isovist.storage.embedder import stored
from isovist.storage.indexed import Tuning
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    Drop,
    ListQuery,
    Outcome,
    Put,
    ReadQuery,
    Replace,
    Restored,
    Vectors,
)
from isovist.syscalls.records import Barrier, View

ANA = view("ana", "p")


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made: Backend
    if request.param == "memory":
        made = MemoryStore(EMBEDDER.name, DIM)
    else:
        made = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
    assert made.restore() == ()
    yield made
    made.close()


def texts(store: Backend, reader: View = ANA) -> list[str]:
    return [u.text for u in store.select(reader, ListQuery(limit=500, now=0)).units()]


def answers(store: Backend, *readers: View) -> bytes:
    """All that readers can be told, as bytes."""
    return msgspec.msgpack.encode(
        [
            store.select(reader, query, embedded(query.text) if hasattr(query, "text") else None)
            for reader in readers
            for query in (
                *(search("Ana drinks tea", mode=mode) for mode in ("bm25", "dense", "rrf")),
                search("unit"),
                ListQuery(limit=500, now=0),
            )
        ]
    )


# -- both stores


def test_a_write_is_visible_when_it_is_applied_and_not_before(store: Backend) -> None:
    outcomes = store.commit([put(1, "tea")])
    assert texts(store) == []
    store.apply(outcomes)
    assert texts(store) == ["tea"]
    assert outcomes[0].id == "pair-ana-p-1"
    assert outcomes[0].version == 1
    assert outcomes[0].chunks == (f"[{outcomes[0].chunks[0].split('] ')[0][1:]}] tea",)


def test_the_same_write_twice_is_one_unit(store: Backend) -> None:
    first, second = write(store, put(1, "tea"), put(2, "tea"))
    assert (second.id, second.version, second.duplicate) == (first.id, 1, True)
    assert second.chunks == ()
    (third,) = write(store, put(3, "tea"))
    assert third.duplicate
    assert texts(store) == ["tea"]


@pytest.mark.parametrize(
    "other",
    [
        put(2, "tea", session="s"),
        put(2, "tea", round=1),
        put(2, "tea", kind="profile"),
        put(2, "tea", scope="user"),
        put(2, "tea", scope="global", user="bob"),
    ],
)
def test_what_differs_in_anything_is_no_duplicate(store: Backend, other: Put) -> None:
    scope = other.partition.scope if other.user == "bob" else "pair"
    outcomes = write(store, put(1, "tea", scope=scope), other)
    assert [o.duplicate for o in outcomes] == [False, False]


def test_a_duplicate_of_what_expired_or_gave_way_is_new(store: Backend) -> None:
    old = put(1, "Ana deploys on Tuesday")
    write(store, old, put(2, "Ana deploys on Friday", supersedes=old.id))
    (again,) = write(store, put(3, "Ana deploys on Tuesday", supersedes="pair-ana-p-2"))
    assert not again.duplicate
    found = store.select(ANA, search("Ana deploys"), embedded("Ana deploys"))
    assert [c.hit.unit.id for c in found.candidates] == [again.id]
    write(store, put(4, "soon gone", expires_at=T0 + 5))
    (later,) = write(store, put(5, "soon gone", stored_at=T0 + 5))
    assert not later.duplicate


def test_a_twin_that_does_not_supersede_is_no_duplicate_of_one_that_does(store: Backend) -> None:
    old, same = put(1, "Ana deploys on Tuesday"), put(2, "Ana deploys on Friday")
    write(store, old, same)
    newer = put(3, "Ana deploys on Friday", supersedes=old.id)
    (outcome,) = write(store, newer)
    assert (outcome.id, outcome.duplicate) == (newer.id, False)
    found = store.select(ANA, search("Ana deploys"), embedded("Ana deploys"))
    assert old.id not in [c.hit.unit.id for c in found.candidates]
    # The same again is a duplicate of that one, whether or not it supersedes.
    for again in (put(4, newer.text, supersedes=old.id), put(5, newer.text)):
        (outcome,) = write(store, again)
        assert (outcome.id, outcome.duplicate) == (newer.id, True)
    # A refused write frees nothing.
    (taken,) = write(store, put(6, newer.text, supersedes=same.id, id=old.id))
    assert taken.errno == Errno.EEXIST
    assert write(store, put(7, newer.text))[0].duplicate
    assert texts(store) == [newer.text, same.text, old.text]


def test_a_bug_met_by_one_write_ends_that_one_alone(
    store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(text: str, said_at: int) -> prepared.Prepared:
        if "heliotrope" in text:
            raise ZeroDivisionError(text)
        return prepared.prepare(text, said_at)

    for module in ("memory", "commit"):
        monkeypatch.setattr(f"isovist.storage.{module}.prepare", prepare)
    one = put(1, "tea")
    outcomes = write(
        store,
        one,
        put(2, "the hint is heliotrope", supersedes=one.id),
        Replace(partition=one.partition, seq=3, id=one.id, version=1, text="heliotrope",
                stored_at=T0),
        put(4, "coffee"),
    )  # fmt: skip
    assert [o.errno for o in outcomes] == [0, Errno.EKERNEL, Errno.EKERNEL, 0]
    for outcome in outcomes[1:3]:
        assert "ZeroDivisionError" in outcome.message
        assert "heliotrope" not in outcome.message
    assert texts(store) == ["coffee", "tea"]
    # Nothing of the failed ones is left: the first still stands for its text.
    assert write(store, put(5, "tea"))[0].duplicate


def test_what_is_committed_is_applied_without_reading_a_text(
    store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applying is the loop's work; all that costs time by the text is the writer's."""

    def never(*_: object) -> NoReturn:
        raise AssertionError("a text was read on the loop")

    one = put(1, "Ana drinks tea. " * 300)
    other = put(2, "Ana drinks coffee")
    write(store, other)
    swap = Replace(partition=one.partition, seq=3, id=one.id, version=1,
                   text="green tea " * 400, stored_at=T0)  # fmt: skip
    for op in (one, swap, Drop(partition=one.partition, seq=4, id=one.id)):
        outcomes = store.commit([op])
        with monkeypatch.context() as patch:
            for module, name in ((engine, "prepare"), (prepared, "index_terms"),
                                 (prepared, "spans"), (words, "index_terms"),
                                 (prepared, "text_hash")):  # fmt: skip
                patch.setattr(module, name, never)
            store.apply(outcomes)
    assert texts(store) == [other.text]
    # And nothing of what went is left in the index.
    alone = MemoryStore(EMBEDDER.name, DIM)
    write(alone, other)
    assert store.statistics()["chunks"] == alone.statistics()["chunks"]
    assert answers(store, ANA) == answers(alone, ANA)


def test_replace_is_compare_and_swap(store: Backend) -> None:
    one = put(1, "tea")
    write(store, one)
    swap = Replace(partition=one.partition, seq=2, id=one.id, version=1, text="coffee",
                   stored_at=T0)  # fmt: skip
    done, late = write(store, swap, msgspec.structs.replace(swap, seq=3, text="milk"))
    assert (done.errno, done.version) == (0, 2)
    assert late.errno == Errno.ESTALE
    assert "version 1" in late.message
    assert "version 2" in late.message
    assert texts(store) == ["coffee"]
    found = store.select(ANA, search("coffee"), embedded("coffee")).candidates
    assert found[0].hit.unit.version == 2
    assert store.select(ANA, search("tea", mode="bm25")).candidates == ()


def test_a_text_may_not_be_replaced_by_its_twin(store: Backend) -> None:
    one, two = put(1, "tea"), put(2, "coffee")
    write(store, one, two)
    (outcome,) = write(store, Replace(partition=one.partition, seq=3, id=two.id, version=1,
                                      text="tea", stored_at=T0))  # fmt: skip
    assert outcome.errno == Errno.EEXIST
    assert texts(store) == ["coffee", "tea"]


def test_what_is_gone_is_gone(store: Backend) -> None:
    one = put(1, "tea")
    write(store, one)
    drop = Drop(partition=one.partition, seq=2, id=one.id)
    outcomes = write(
        store,
        drop,
        drop,
        Replace(partition=one.partition, seq=3, id=one.id, version=1, text="x", stored_at=T0),
        Vectors(partition=one.partition, seq=1, id=one.id, version=1, model=EMBEDDER.name,
                vectors=(stored(embedded("tea")),)),
    )  # fmt: skip
    assert [o.errno for o in outcomes] == [0, Errno.ENOENT, Errno.ENOENT, Errno.ENOENT]
    assert texts(store) == []
    assert store.select(ANA, ReadQuery(id=one.id, now=0)).candidates == ()
    assert store.statistics()["chunks"] == 0


def test_a_unit_that_is_in_another_partition_by_now_is_not_touched(store: Backend) -> None:
    one = put(1, "tea", user="bob")
    write(store, one)
    mine = put(9, "x").partition
    (outcome,) = write(store, Drop(partition=mine, seq=1, id=one.id))
    assert outcome.errno == Errno.ESTALE
    assert texts(store, view("bob", "p")) == ["tea"]


def test_supersedes_names_a_living_unit_of_the_same_pair(store: Backend) -> None:
    one = put(1, "tea", expires_at=T0 + 10_000)
    write(store, one, put(1, "bob's", user="bob"))
    outcomes = write(
        store,
        put(2, "a", supersedes="never was"),
        put(3, "b", supersedes="pair-bob-p-1"),
        put(4, "c", supersedes=one.id, stored_at=T0 + 10_000),
        put(5, "d", supersedes=one.id),
    )
    assert [o.errno for o in outcomes] == [Errno.ENOENT, Errno.ENOENT, Errno.ENOENT, 0]
    assert "supersedes" in outcomes[0].message


def test_a_bad_operation_harms_no_other_of_its_group(store: Backend) -> None:
    outcomes = write(
        store,
        put(1, "good"),
        put(2, "bad \ud800"),
        put(3, "big", round=1 << 70),
        put(4, "too big", said_at=(1 << 63) + 5),
        put(5, "taken", id="pair-ana-p-1"),
        put(6, "good too"),
    )
    assert [o.errno for o in outcomes] == [
        0, Errno.EINVAL, Errno.EINVAL, Errno.EINVAL, Errno.EEXIST, 0,
    ]  # fmt: skip
    assert texts(store) == ["good too", "good"]


def test_vectors_must_fit(store: Backend) -> None:
    one = put(1, "tea")
    write(store, one, embed=False)
    good = vectors(one, store.commit([put(2, "tea")])[0])
    good = msgspec.structs.replace(good, seq=1, vectors=(stored(embedded("tea")),))
    nan = (b"\xff" * 2 * DIM,)
    for bad, errno in (
        ({"model": "other"}, Errno.EINVAL),
        ({"vectors": ()}, Errno.EINVAL),
        ({"vectors": (b"1234",)}, Errno.EINVAL),
        ({"vectors": nan}, Errno.EINVAL),
        ({"version": 2}, Errno.ESTALE),
    ):
        (outcome,) = store.commit([msgspec.structs.replace(good, **bad)])
        assert outcome.errno == errno, bad
        store.apply([outcome])
    assert store.statistics()["vectors"] == 0
    store.apply(store.commit([good]))
    assert store.statistics()["vectors"] == 1


def test_duplicates_race_to_one_unit(store: Backend) -> None:
    outcomes: list[Outcome] = []
    gate = threading.Barrier(8)

    def race(number: int) -> None:
        gate.wait(timeout=10)
        outcomes.extend(store.commit([put(number, "the same")]))

    threads = [threading.Thread(target=race, args=(i + 1,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len({o.id for o in outcomes}) == 1
    assert sorted(o.duplicate for o in outcomes) == [False] + [True] * 7
    store.apply(sorted(outcomes, key=lambda o: o.duplicate))
    assert texts(store) == ["the same"]


def test_records_and_grants(store: Backend) -> None:
    record = Record(call="c1", syscall="search", agent="p", user="ana", rule="request", at=5,
                    barrier=Barrier(state="ready"), sequences=(("pair", 3),))  # fmt: skip
    store.save_records([record])
    assert store.record("c1") == record
    assert store.record("c2") is None
    store.save_grant("p", ("ana", "*"), ("user",))
    store.save_grant("q", (), ("global",))
    assert store.grants() == {"p": (("ana", "*"), ("user",)), "q": ((), ("global",))}
    store.save_grant("p", (), ())
    assert store.grants() == {"q": ((), ("global",))}
    assert len(store.key) == 16


def test_both_stores_answer_alike(tmp_path: Path) -> None:
    memory = MemoryStore(EMBEDDER.name, DIM)
    file = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
    told = [_fill(made) for made in (memory, file)]
    assert told[0] == told[1]
    readers = (ANA, view("ana", "q"), view("bob", "p"))
    assert answers(memory, *readers) == answers(file, *readers)
    file.close()


def _fill(store: Backend) -> bytes:
    outcomes = write(
        store,
        put(1, "Ana drinks tea", scope="user"),
        put(1, "long " * 700, scope="pair", said_at=0, meta={"k": "v"}),
        put(2, "unit two", session="s", round=3, expires_at=T0 * 2),
        put(3, "unit three", supersedes="pair-ana-p-2"),
        put(1, "Bob drinks tea", scope="global", user="bob"),
        put(2, "Ana drinks tea", scope="user"),
    )
    outcomes += write(store, Replace(partition=put(1, "x", scope="user").partition, seq=3,
                      id="user-ana-p-1", version=1, text="Ana drinks green tea", stored_at=T0),
                      Drop(partition=put(1, "x").partition, seq=4, id="gone"))  # fmt: skip
    return msgspec.msgpack.encode(outcomes)


# -- the file


@pytest.mark.promise("write.durable")
def test_after_a_restart_every_answer_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    readers = (ANA, view("ana", "q"), view("bob", "p"), view("bob", "q"))
    store = Store.open(path, EMBEDDER.name, DIM)
    _fill(store)
    write(store, put(9, "unit without its vectors"), embed=False)
    before, key = answers(store, *readers), store.key
    store.close()
    store = Store.open(path, EMBEDDER.name, DIM)
    restored = {r.partition: r for r in store.restore()}
    assert answers(store, *readers) == before
    assert store.key == key
    pair = restored[put(1, "x").partition]
    assert pair.accepted == 9
    ((seq, id_, version, chunks),) = pair.lacking
    assert (seq, id_, version) == (9, "pair-ana-p-9", 1)
    assert chunks[0].endswith("] unit without its vectors")
    assert restored[put(1, "x", scope="user").partition].accepted == 3
    # The duplicate rule holds across the restart, and what was lacking can still come.
    assert store.commit([put(10, "unit three")])[0].duplicate
    late = Vectors(partition=pair.partition, seq=9, id=id_, version=1, model=EMBEDDER.name,
                   vectors=tuple(stored(EMBEDDER.embed(chunk)) for chunk in chunks))  # fmt: skip
    store.apply(store.commit([late]))
    store.close()
    store = Store.open(path, EMBEDDER.name, DIM)
    assert all(not r.lacking for r in store.restore())
    store.close()


def test_void_numbers_are_never_issued_again(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    store = Store.open(path, EMBEDDER.name, DIM)
    write(store, put(7, "refused", supersedes="never was"))
    store.close()
    store = Store.open(path, EMBEDDER.name, DIM)
    assert store.restore() == (Restored(partition=put(7, "x").partition, accepted=7),)
    store.close()


_CHILD = """
import os, signal, sys
from isovist.storage.store import Store
from storage_helpers import DIM, EMBEDDER, put
store = Store.open(sys.argv[1], EMBEDDER.name, DIM)
store.restore()
first = int(sys.argv[2])
for group in range(1000):
    # Each group is all or nothing: a long unit of many chunks, and its neighbour.
    numbers = (first + 2 * group, first + 2 * group + 1)
    ops = [put(n, f"unit {n} " + "word " * 400 + f"end {n}") for n in numbers]
    if sys.argv[3] == "exit" and group == 5:
        store._db.set_trace_callback(
            lambda sql: os._exit(9) if sql.startswith("INSERT INTO chunks") else None
        )
    outcomes = store.commit(ops)
    assert not any(o.errno for o in outcomes), outcomes
    print(*numbers, flush=True)
"""


def _crash(path: Path, first: int, how: str) -> list[int]:
    """Let a child write until it dies; the numbers that it was told are durable."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path), str(first), how],
        stdout=subprocess.PIPE, text=True, env=environment,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        acknowledged: list[int] = []
        for line in child.stdout:
            acknowledged += map(int, line.split())
            if how == "kill" and len(acknowledged) >= 12:
                child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
    assert child.returncode == (9 if how == "exit" else -signal.SIGKILL)
    return acknowledged


@pytest.mark.promise("write.durable")
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_crash_loses_nothing_acknowledged_and_leaves_no_half(tmp_path: Path, how: str) -> None:
    path = tmp_path / "isovist.db"
    told: list[int] = []
    for life in range(3):
        told += _crash(path, 1 + life * 10_000, how)
    assert len(told) >= 30
    store = Store.open(path, EMBEDDER.name, DIM)
    (restored,) = store.restore()
    units = store.select(ANA, ListQuery(limit=500, now=0)).units()
    numbers = {int(unit.text.split()[1]) for unit in units}
    assert set(told) <= numbers
    assert restored.accepted == max(numbers)
    for unit in units:
        number = int(unit.text.split()[1])
        assert unit.text.endswith(f"end {number}")
        assert number + 1 in numbers or number - 1 in numbers, "half a group"
        found = store.select(ANA, search(f"end {number}", mode="bm25", k=1)).candidates
        assert found, "a unit without its terms"
    assert len(restored.lacking) == len(units)
    store.close()


def test_a_full_disk_is_said_and_keeps_nothing_of_the_group(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
    store.restore()
    write(store, put(1, "kept"))
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    outcomes = write(store, put(2, "small"), put(3, "".join(map(chr, range(0x4E00, 0x9F00)))))
    assert [o.errno for o in outcomes] == [Errno.ENOSPC, Errno.ENOSPC]
    assert texts(store) == ["kept"]
    with pytest.raises(WorldError) as caught:
        store.save_grant("p", ["u" * 100 + str(i) for i in range(2000)], ())
    assert caught.value.errno is Errno.ENOSPC
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert [o.errno for o in write(store, put(4, "room again"))] == [0]
    assert texts(store) == ["room again", "kept"]
    store.close()


def test_a_failing_store_is_said(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
    store.restore()
    store._db.execute("PRAGMA query_only = ON")
    (outcome,) = store.commit([put(1, "tea")])
    assert outcome.errno == Errno.EIO
    store.close()
    assert store.commit([put(1, "tea")])[0].errno == Errno.EIO


def test_another_embedder_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    Store.open(path, "first", DIM).close()
    store = Store.open(path, EMBEDDER.name, DIM)  # no vectors yet: the change is free
    write(store, put(1, "tea"))
    store.close()
    for name, dim in (("second", DIM), (EMBEDDER.name, 64)):
        with pytest.raises(WorldError) as caught:
            Store.open(path, name, dim)
        assert repr(EMBEDDER.name) in caught.value.message
        assert repr(name) in caught.value.message


def test_a_newer_schema_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    Store.open(path, EMBEDDER.name, DIM).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    with pytest.raises(WorldError, match=f"schema {schema.VERSION + 1}"):
        Store.open(path, EMBEDDER.name, DIM)
    foreign = tmp_path / "foreign.db"
    db = sqlite3.connect(foreign)
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(WorldError, match="not a store"):
        Store.open(foreign, EMBEDDER.name, DIM)
    (tmp_path / "text.db").write_text("no database at all, but long enough to be read" * 50)
    with pytest.raises(WorldError, match="cannot be opened"):
        Store.open(tmp_path / "text.db", EMBEDDER.name, DIM)
    with pytest.raises(WorldError, match="cannot be opened"):
        Store.open(tmp_path / "no" / "folder.db", EMBEDDER.name, DIM)


def test_new_rules_for_words_index_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "isovist.db"
    store = Store.open(path, EMBEDDER.name, DIM)
    _fill(store)
    before = answers(store, ANA)
    store.close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE chunks SET terms = ?", (forward.pack({77: 1}),))
    db.execute("UPDATE frequencies SET n = n + 1")
    db.close()
    monkeypatch.setattr(words, "RULES", words.RULES + 1)
    store = Store.open(path, EMBEDDER.name, DIM)
    store.restore()
    assert answers(store, ANA) == before
    assert store.verify() == []
    store.close()


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
    write(store, put(1, "tea"))
    assert all(p.stat().st_mode & 0o077 == 0 for p in tmp_path.iterdir())
    store.close()


@pytest.mark.promise("view.noninterference")
def test_the_file_keeps_names_that_join_alike_apart(tmp_path: Path) -> None:
    path = tmp_path / "isovist.db"
    store = Store.open(path, EMBEDDER.name, DIM)
    write(store, put(1, "of a_b", user="a_b", agent="c"), put(1, "of a", user="a", agent="b_c"))
    store.close()
    store = Store.open(path, EMBEDDER.name, DIM)
    store.restore()
    assert texts(store, view("a_b", "c")) == ["of a_b"]
    assert texts(store, view("a", "b_c")) == ["of a"]
    assert texts(store, view("a", "c")) == []
    store.close()


def test_upkeep_comes_to_rest_where_not_all_fit_into_memory(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM, tuning=Tuning(room=300))
    store.restore()
    readers = [view(f"u{number}", "p") for number in range(8)]
    for number in range(8):
        write(store, put(1, f"tea for u{number}", user=f"u{number}"))
    for _ in range(3):
        for reader in readers:
            assert store.select(reader, search("tea"), embedded("tea")).candidates
        jobs = 0
        while (job := store.job()) is not None:
            store.run(job)
            store.finish(job)
            jobs += 1
            assert jobs < 40
    assert 0 < store.statistics()["resident"] < 8
    store.close()
