"""What was forgotten leaves every file of a store, its index and its graphs.

``python -m bench erase`` does the same at length, over a running kernel.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from bench.scripted import upkeep
from bench.traces import Numbers, count_pieces, in_graphs, in_index, in_sqlite, pieces_of
from storage_helpers import DIM, T0, put, vectors

from isovist.storage import graph, texts, words
from isovist.storage.embedder import stored
from isovist.storage.indexed import IndexedEngine, Tuning
from isovist.storage.store import Store
from isovist.syscalls.operations import Drop, Op, Put, Replace

TUNING = Tuning(crossover=12, delta=8, narrow=4, room=1 << 20)
CANARIES = 60
COMMON = ["garden", "kettle", "river", "lantern", "window", "harbour", "meadow", "copper"]


def canary(rng: random.Random) -> str:
    return "zq" + "".join(rng.choices("bcdfghjklmnp", k=12))


def commit(store: Store, *ops: Op) -> None:
    outcomes = store.commit(ops)
    assert not any(outcome.errno for outcome in outcomes)
    store.apply(outcomes)
    later = [
        msgspec.structs.replace(
            vectors(o.op, o), model="dense", vectors=tuple(dense(chunk) for chunk in o.chunks)
        )
        for o in outcomes
        if isinstance(o.op, Put | Replace)
    ]
    store.apply(store.commit(later))


def packed(text: str) -> bytes:
    """Some of what stands for a long text in its row, after what many texts have in common."""
    held = texts.pack(text)
    return held[60:160] if isinstance(held, bytes) else b""


def dense(text: str) -> bytes:
    """A vector of a text that has hardly a value of 0, and hardly four in common with another's."""
    vector = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM)
    return stored((vector / np.linalg.norm(vector)).astype(np.float32))


def scrubbed(store: Store) -> None:
    while not store.scrub(T0 + 9):
        upkeep(store)


def numbers(path: Path, names: set[str], ids: set[str]) -> Numbers:
    with closing(sqlite3.connect(path)) as db:
        tids = {tid for tid, term in db.execute("SELECT tid, term FROM terms") if term in names}
        units = dict(db.execute("SELECT uid, id FROM units"))
        uids = {uid for uid, id_ in units.items() if id_ in ids}
        rows = {row for row, uid in db.execute("SELECT row, uid FROM chunks") if uid in uids}
        theirs, others = [], []
        for row, vector in db.execute("SELECT row, vector FROM vectors"):
            (theirs if row in rows else others).append(vector)
    kept = set(pieces_of(others).tolist())
    pieces = pieces_of(theirs)
    return Numbers(tids, uids, rows, pieces[[p not in kept for p in pieces.tolist()]])


@pytest.mark.promise("erase.complete")
@pytest.mark.parametrize("later", [TUNING, Tuning(crossover=0, delta=1000)])
def test_after_a_scrub_no_file_and_no_index_holds_what_was_dropped(
    tmp_path: Path, later: Tuning
) -> None:
    """``later``: with many jobs at the time of forgetting, and with none: then the shared index
    has not been told of a drop when the scrub comes."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "isovist.db"
    store = Store.open(path, "dense", DIM, tuning=TUNING)
    store.restore()
    names: set[str] = set()
    canaries: dict[str, Put] = {}
    deflated: dict[str, bytes] = {}
    seq = 0
    for _ in range(CANARIES):
        scope, user = rng.choice(("pair", "user", "global")), rng.choice(("ana", "ben"))
        text = " ".join(rng.choices(COMMON, k=rng.choice((3, 9, 300))))
        mine = [canary(rng) for _ in range(3)]
        names.update(mine)
        unit = put(seq + 1, f"{mine[0]} {text}", scope=scope, user=user, id=mine[1] + "id",
                   session=mine[2], meta={"mark": mine[1]})  # fmt: skip
        stays = put(seq + 2, f"stays{seq} {text}", scope=scope, user=user)
        commit(store, unit, stays)
        canaries[unit.id] = unit
        deflated[unit.id] = packed(unit.text)
        if rng.random() < 0.4:
            mine.append(canary(rng))
            names.add(mine[-1])
            deflated[unit.id] = packed(f"{mine[-1]} {text}")
            commit(store, Replace(partition=unit.partition, seq=seq + 3, id=unit.id, version=1,
                                  text=f"{mine[-1]} {text}", stored_at=T0))  # fmt: skip
        seq += 3
        if rng.random() < 0.2:
            upkeep(store)
    upkeep(store)
    store.close()
    before = numbers(path, names, set(canaries))
    held = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    # Were they not seen where they are, not to see them later would say nothing.
    assert sum(name.encode() in held for name in names) == len(names)
    assert count_pieces(held, before.pieces)
    streams = [stream for stream in deflated.values() if stream]
    assert sum(stream in held for stream in streams) > 5
    derived = tmp_path / "isovist.db.index"
    assert list(in_index(derived / "words", before))
    assert list(in_graphs(derived / "graphs", before))
    assert list(in_sqlite(path, before))

    store = Store.open(path, "dense", DIM, tuning=later)
    store.restore()
    drops = [Drop(partition=unit.partition, seq=seq + i, id=id_, receipt=f"r{i}", stored_at=T0)
             for i, (id_, unit) in enumerate(canaries.items(), 1)]  # fmt: skip
    store.apply(store.commit(drops))
    scrubbed(store)
    receipt = store.receipt("r1")
    assert receipt is not None
    assert receipt.issued_at
    assert words._terms.cache_info().currsize == 0
    # As the files are while the store is open. Opened here they would lose their locks.
    copied = tmp_path / "copy"
    store.close()
    shutil.copytree(derived, copied / "isovist.db.index")
    shutil.copy(path, copied)
    left = b"".join(p.read_bytes() for p in copied.rglob("*") if p.is_file())
    # An id is a name without a meaning: a receipt lists it. Here it was made of a word.
    ids = {id_.removesuffix("id") for id_ in canaries}
    assert [name for name in names - ids if name.encode() in left] == []
    assert [id_ for id_ in ids if left.count(id_.encode()) > 1] == []
    assert count_pieces(left, before.pieces) == 0
    assert not any(stream in left for stream in streams)
    assert list(in_sqlite(copied / "isovist.db", before)) == []
    assert list(in_index(copied / "isovist.db.index" / "words", before)) == []
    assert list(in_graphs(copied / "isovist.db.index" / "graphs", before)) == []


@pytest.mark.promise("view.noninterference")
@pytest.mark.skipif(not graph.available(), reason="without hnswlib there is no graph to make anew")
def test_a_graph_is_made_anew_when_its_own_unit_leaves_and_not_when_another_does(
    tmp_path: Path,
) -> None:
    """A graph made anew finds other neighbours: a foreign forget would show through."""
    store = Store.open(tmp_path / "isovist.db", "dense", DIM, tuning=TUNING)
    store.restore()
    mine = [put(n, f"lamp {n} in the hall") for n in range(1, 31)]
    foreign = put(1, "a kettle", user="ben")
    commit(store, *mine, foreign)
    upkeep(store)
    engine = store._engine
    assert isinstance(engine, IndexedEngine)
    part = engine.parts[engine.parts.pids[mine[0].partition]]
    made = part.graph
    assert made is not None
    commit(store, Replace(partition=mine[3].partition, seq=40, id=mine[3].id, version=1,
                          text="a lantern", stored_at=T0))  # fmt: skip
    commit_drop(store, foreign, 2)
    scrubbed(store)
    assert (part.lost, part.graph) == (1, made), "a rewritten text may wait for the next graph"
    commit_drop(store, mine[9], 41)
    scrubbed(store)
    assert part.graph is not made
    assert part.lost == 0
    store.close()


def commit_drop(store: Store, unit: Put, seq: int) -> None:
    commit(store, Drop(partition=unit.partition, seq=seq, id=unit.id, stored_at=T0))
