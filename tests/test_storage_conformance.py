"""Random histories of every operation: each store answers as the one that is all in memory does,
after every commit, and after it is closed and opened again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_helpers import DIM, EMBEDDER, T0, embedded, put, search, view

from isovist.kernel.state.views import Membership, view_of
from isovist.storage.backend import Backend
from isovist.storage.embedder import stored
from isovist.storage.indexed import Tuning
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import (
    CountQuery,
    Drop,
    Expire,
    ListQuery,
    MatchQuery,
    Move,
    Op,
    Outcome,
    Put,
    Query,
    ReadQuery,
    Replace,
    RoundsQuery,
    Vectors,
)
from isovist.syscalls.records import Partition, Reader, View, audience_of

EngineName = Literal["indexed", "memory"]
ENGINES: list[EngineName] = ["memory", "indexed"]

USERS, AGENTS = ("ana", "bob"), ("p", "q")
READERS = [
    *(view(user, agent) for user in USERS for agent in AGENTS),
    view_of(Reader("ana", "p"), Membership(("team",), ("desk",))),
    view_of(Reader("bob", "q"), Membership(("club", "team"), ("desk",))),
]
SCOPES = ["pair", "user", "agent", "global", "pair", "user", "agent", "global", "@team/own",
          "@team/all", "own/@desk", "@team/@desk", "@club/@desk", "all/@desk"]  # fmt: skip
WORDS = ["tea", "deploys", "tuesday", "ana", "部署", "api-v2", "coffee"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
LONG = "Ana deploys the release on a Tuesday. " * 60

STEP = st.fixed_dictionaries(
    {
        "what": st.sampled_from(
            ["put", "put", "put", "again", "supersede", "supersede", "replace", "expire", "move",
             "drop", "sweep", "vectors", "vectors", "import"]
        ),
        "text": st.one_of(TEXTS, TEXTS, TEXTS, st.just("long")),
        "scope": st.sampled_from(SCOPES),
        "user": st.sampled_from(USERS),
        "agent": st.sampled_from(AGENTS),
        "pick": st.integers(0, 1000),
        "kind": st.sampled_from(["note", "profile"]),
        "expires": st.sampled_from([None, None, None, 3, 40, 10**15]),
        "stale": st.integers(0, 9).map(lambda n: n == 9),
        "ends": st.booleans(),  # the last one of its group
        "upkeep": st.sampled_from(["", "", "", "job", "job", "jobs", "scrub"]),  # after it
    }
)  # fmt: skip
Step = dict[str, Any]


TUNINGS = st.builds(
    Tuning,
    crossover=st.sampled_from([0, 3, 5, 32]),
    room=st.sampled_from([0, 5_000, 1 << 20]),
    narrow=st.sampled_from([0, 20, 16_384]),
    delta=st.sampled_from([1, 3, 512]),
)


def place_of(scope: str, user: str, agent: str) -> Partition:
    partition = audience_of(scope, user, agent)
    assert partition is not None, scope
    return partition


class History:
    """Turns steps into operations that fit what the oracle holds (or, now and then, do not)."""

    def __init__(self, oracle: MemoryStore) -> None:
        self.oracle = oracle
        self.time = 0
        self._seqs: dict[Partition, int] = {}
        self.ids: list[str] = []
        """Of every unit there ever was."""
        self._puts: dict[str, Put] = {}

    def seq(self, partition: Partition) -> int:
        self._seqs[partition] = self._seqs.get(partition, 0) + 1
        return self._seqs[partition]

    def op(self, step: Step) -> Op:
        self.time += 1
        now = T0 + self.time
        rows = self.oracle._rows
        ids = [id_ for id_ in self.ids if id_ in rows] or self.ids
        old = ids[step["pick"] % len(ids)] if ids else ""
        gone = [id_ for id_ in self.ids if id_ not in rows]
        expires = None if step["expires"] is None else now + step["expires"]
        what = step["what"]
        if step["text"] == "long":
            step = {**step, "text": LONG}
        if not old or what in ("put", "again", "supersede") or (what == "import" and not gone):
            return self._put(step, old, now, expires)
        if what == "import":
            back = self._puts[gone[step["pick"] % len(gone)]]
            partition = place_of(step["scope"], back.user, back.agent)
            return msgspec.structs.replace(back, partition=partition, seq=self.seq(partition),
                                           stored_at=now, version=2 + step["pick"] % 3)  # fmt: skip
        row = rows.get(old)
        put_ = row.put if row else self._puts[old]
        version = (row.version if row else 1) + step["stale"]
        common: dict[str, Any] = {"partition": put_.partition, "id": old}
        if what == "vectors":
            chunks = row.prepared.chunks if row else ("gone",)
            made = tuple(stored(EMBEDDER.embed(chunk)) for chunk in chunks)
            return Vectors(
                **common,
                seq=row.wrote if row else 1,
                version=max(1, version - step["pick"] % 2),
                model=EMBEDDER.name,
                vectors=made,
            )
        common["seq"] = self.seq(put_.partition)
        if what == "drop":
            return Drop(**common, receipt=f"r{step['pick'] % 3}", stored_at=now)
        if what == "sweep":
            return Drop(**common, stored_at=now, expired=True)
        common["version"], common["stored_at"] = version, now
        if what == "replace":
            return Replace(**common, text=step["text"])
        if what == "expire":
            return Expire(**common, expires_at=expires)
        to = place_of(step["scope"], put_.user, put_.agent)
        return Move(**common, to=to, to_seq=self.seq(to))

    def _put(self, step: Step, old: str, now: int, expires: int | None) -> Put:
        fields: dict[str, Any] = {
            "user": step["user"], "agent": step["agent"], "scope": step["scope"],
            "expires_at": expires, "stored_at": now, "kind": step["kind"],
            "round": step["pick"] % 4, "handle": f"h{step['pick'] % 3}" if step["ends"] else "",
        }  # fmt: skip
        text = step["text"]
        if old and step["what"] != "put":
            known = self._puts[old]
            fields.update(user=known.user, agent=known.agent)
            if step["what"] == "supersede":
                fields["supersedes"] = old
            else:
                text = known.text
                fields.update(scope=known.partition.scope, kind=known.kind, round=known.round)
        partition = place_of(fields["scope"], fields["user"], fields["agent"])
        seq = self.seq(partition)
        made = put(seq, text, id=f"{partition}/{seq}", **fields)
        self.ids.append(made.id)
        self._puts[made.id] = made
        return made


def queries(history: History) -> list[Query]:
    now = T0 + history.time
    found: list[Query] = [
        search("ana deploys tea", mode=mode, k=5, now=now)
        for mode in ("bm25", "dense", "rrf", "hybrid")
    ]
    found += [
        search("coffee 部署", now=now, kinds=("profile",)),
        search("tuesday", now=now, since=T0 + 3, until=T0 + 10**9, lexical_only=True),
        ListQuery(limit=50, now=now),
        ListQuery(limit=3, now=now, kinds=("note",)),
        CountQuery(now=now),
        CountQuery(now=now + 20, kinds=("note",)),
        RoundsQuery(wanted=(("h1", 0, 2), ("h0", 0, 9), ("h1", 1, 3), ("", 0, 9)), now=now),
        RoundsQuery(wanted=(("h2", 0, 9),), now=now, limit=2),
        MatchQuery(text="tea", limit=3, now=now),
        MatchQuery(text='deploys "api-v2"', limit=50, now=now, since=T0 + 3, kinds=("note",)),
    ]
    return found + [ReadQuery(id=id_, now=now) for id_ in history.ids[-6:]]


def answers(store: Backend, reader: View, asked: list[Query]) -> list[bytes]:
    replies = []
    for query in asked:
        vector = embedded(query.text) if hasattr(query, "text") else None
        reply = store.select(reader, query, vector)
        replies.append(msgspec.msgpack.encode(reply))
        while isinstance(query, ListQuery | MatchQuery) and reply.next:
            query = msgspec.structs.replace(query, after=reply.next)
            reply = store.select(reader, query)
            replies.append(msgspec.msgpack.encode(reply))
    return replies


def check(oracle: MemoryStore, store: Store, history: History) -> None:
    asked = queries(history)
    for reader in READERS:
        for query, ours, theirs in zip(
            asked, answers(store, reader, asked), answers(oracle, reader, asked), strict=False
        ):
            assert ours == theirs, (reader.reader, query)
        assert answers(store, reader, asked) == answers(oracle, reader, asked)
    assert store.holdings() == oracle.holdings()
    for limit in (0, 2, 100):
        now = T0 + history.time
        assert store.expired(now, limit) == oracle.expired(now, limit)


def commit(stores: list[Backend], ops: list[Op]) -> None:
    outcomes: list[list[Outcome]] = [store.commit(ops) for store in stores]
    assert outcomes[1] == outcomes[0]
    assert not any(outcome.errno == Errno.EKERNEL for outcome in outcomes[0]), outcomes[0]
    for store, mine in zip(stores, outcomes, strict=True):
        store.apply(mine)


def keep_up(store: Store, what: str, now: int) -> None:
    """A job, all jobs, or all that a scrub takes."""
    while not (what == "scrub" and store.scrub(now)):
        job = store.job()
        if job is None:
            assert what != "scrub", "a scrub waits for jobs, and there is none"
            return
        store.run(job)
        store.finish(job)
        if what == "job":
            return


def check_restored(oracle: MemoryStore, store: Store) -> None:
    restored = store.restore()
    lacking = {(seq, id_, version, chunks)
               for one in restored for seq, id_, version, chunks in one.lacking}  # fmt: skip
    assert lacking == {
        (row.wrote, id_, row.version, row.prepared.chunks)
        for id_, row in oracle._rows.items()
        if not row.embedded
    }


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, max_size=40), reopens=st.sets(st.integers(0, 40), max_size=2),
       purged=st.sampled_from(["", "", "ana"]), tuning=TUNINGS)  # fmt: skip
def test_a_store_answers_as_the_one_in_memory(
    engine: EngineName, steps: list[Step], reopens: set[int], purged: str, tuning: Tuning
) -> None:
    oracle = MemoryStore(EMBEDDER.name, DIM)
    history = History(oracle)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "isovist.db"
        store = Store.open(path, EMBEDDER.name, DIM, engine=engine, tuning=tuning)
        try:
            store.restore()
            group: list[Op] = []
            for number, step in enumerate(steps):
                group.append(history.op(step))
                if not step["ends"]:
                    continue
                commit([oracle, store], group)
                group = []
                check(oracle, store, history)
                if step["upkeep"]:
                    keep_up(store, step["upkeep"], T0 + history.time)
                    if step["upkeep"] == "scrub":
                        oracle.scrub(T0 + history.time)
                    check(oracle, store, history)
                if number in reopens:
                    assert store.verify() == []
                    store.close()
                    store = Store.open(path, EMBEDDER.name, DIM, engine=engine, tuning=tuning)
                    check_restored(oracle, store)
                    check(oracle, store, history)
            if purged:
                assert store.owned(purged) == oracle.owned(purged)
                for one in (oracle, store):
                    one.apply(one.purge(purged, "all of her", T0 + history.time))
                    assert one.owned(purged) == ()
            assert store.verify() == []
            keep_up(store, "scrub", T0 + 77)
            oracle.scrub(T0 + 77)
            for receipt in ("r0", "r1", "r2", "all of her"):
                assert store.receipt(receipt) == oracle.receipt(receipt)
            check(oracle, store, history)
            assert store.verify() == []
            store.close()
            store = Store.open(path, EMBEDDER.name, DIM, engine=engine, tuning=tuning)
            check_restored(oracle, store)
            check(oracle, store, history)
        finally:
            store.close()


@pytest.mark.promise("view.noninterference")
@pytest.mark.parametrize("tuning", [Tuning(narrow=0, delta=1, crossover=3), Tuning()])
@pytest.mark.parametrize("state", ["never used", "new", "just emptied", "one unit"])
def test_a_partition_that_holds_little_lets_nothing_foreign_in(
    state: str, tuning: Tuning, tmp_path: Path
) -> None:
    """A filter that is left out where there is nothing to find finds what others hold."""
    oracle = MemoryStore(EMBEDDER.name, DIM)
    store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM, tuning=tuning)
    stores: list[Backend] = [oracle, store]
    history = History(oracle)
    try:
        store.restore()
        foreign = [put(n, f"tea deploys {n}", user="bob", agent="q") for n in range(1, 6)]
        mine = put(1, "ana deploys tea")
        commit(stores, [*foreign])
        if state == "new":  # it is known, and its number is taken, by a write that failed
            commit(stores, [Drop(partition=mine.partition, seq=1, id="none")])
        elif state != "never used":
            commit(stores, [mine])
        for op in (*foreign, mine):
            if op.id in oracle._rows:
                made = tuple(stored(EMBEDDER.embed(c)) for c in oracle._rows[op.id].prepared.chunks)
                commit(stores, [Vectors(partition=op.partition, seq=op.seq, id=op.id, version=1,
                                        model=EMBEDDER.name, vectors=made)])  # fmt: skip
        keep_up(store, "jobs", T0)
        if state == "just emptied":
            commit(stores, [Drop(partition=mine.partition, seq=2, id=mine.id)])
        history.ids = [mine.id, foreign[0].id]
        for round_ in ("before upkeep", "after it", "opened anew"):
            check(oracle, store, history)
            found = [store.select(READERS[0], query, embedded("tea")).units()
                     for query in queries(history)[:4]]  # fmt: skip
            ids = {unit.id for units in found for unit in units}
            assert ids == ({mine.id} if state == "one unit" else set()), round_
            keep_up(store, "scrub", T0)
            if round_ == "after it":
                store.close()
                store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM, tuning=tuning)
                seqs = {one.partition: one.accepted for one in store.restore()}
                taken = {"never used": 0, "just emptied": 2}.get(state, 1)
                assert seqs.get(mine.partition, 0) == taken
    finally:
        store.close()
