"""The engine's one read: what it shows, hides and never lets through."""

from __future__ import annotations

import inspect
from base64 import urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_helpers import DIM, T0, embedded, fill, put, search, view

from isovist.kernel.state.views import Membership, view_of
from isovist.storage.engine import MemoryEngine
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError
from isovist.syscalls.operations import (
    Drop,
    ListQuery,
    Op,
    Put,
    Query,
    ReadQuery,
    Replace,
    Selection,
)
from isovist.syscalls.records import Reader, View, partition_of

MODES = ("bm25", "dense", "rrf", "hybrid")


def engine_of(*ops: Op) -> MemoryEngine:
    engine = MemoryEngine(DIM)
    fill(engine, *ops)
    return engine


def ids(selection: Selection) -> list[str]:
    return [c.hit.unit.id for c in selection.candidates]


def ask(engine: MemoryEngine, reader: View, text: str, **fields: Any) -> Selection:
    return engine.select(reader, search(text, **fields), embedded(text))


# -- the choke point


@pytest.mark.promise("view.choke")
@pytest.mark.parametrize("query", [search("tea"), ReadQuery(id="x", now=0),
                                   ListQuery(limit=5, now=0)])  # fmt: skip
def test_no_view_no_read(query: Query) -> None:
    one = put(1, "Ana drinks tea")
    engine = engine_of(one)

    class Forged:
        reader = view("ana", "p").reader
        partitions = (one.partition,)

    for forged in (None, Forged(), (one.partition,), "ana", partition_of("pair", "ana", "p")):
        with pytest.raises(KernelError, match="without a view"):
            engine.select(forged, query)  # type: ignore[arg-type] # what the test is about


@pytest.mark.promise("view.choke")
@pytest.mark.parametrize("kind", [MemoryEngine, MemoryStore, Store])
def test_select_is_the_only_public_door_to_units(kind: type) -> None:
    doors = {name for name in vars(kind) if not name.startswith("_")}
    harmless = {"dim", "key", "open", "close", "statistics", "grants", "save_grant", "record",
                "save_records", "groups", "save_group"}  # fmt: skip
    harmless |= {"job", "run", "finish", "stop_upkeep"}  # upkeep, which answers nobody
    harmless |= {"backup"}  # copies the file for the operator, and reads no unit
    # Conversations that a pair keeps are no units, and are in no view.
    harmless |= {"save_context", "context", "contexts", "drop_context", "context_ids"}
    # Ids and counts alone.
    harmless |= {"owned", "owed", "purge", "receipt", "scrub", "usage", "verify", "expired"}
    # What agents are granted, limits, the heads of the hash-chained log; of units ids and counts.
    harmless |= {"approvals", "permissions", "save_approval", "distrusted", "save_distrust",
                 "limits", "save_limits", "head", "save_head", "pseudonyms",
                 "holdings", "published"}  # fmt: skip
    # A change of a file is a commit, with the units by which it is found.
    harmless |= {"change_file"}
    assert doors - harmless <= {"select", "commit", "apply", "load", "restore"}
    assert "view" in inspect.signature(kind.select).parameters


@pytest.mark.promise("view.choke")
def test_a_view_without_partitions_shows_nothing() -> None:
    engine = engine_of(put(1, "Ana drinks tea"), put(1, "Bob drinks tea", scope="global"))
    for query in (search("tea"), ListQuery(limit=5, now=0)):
        stranger = view("carl", "x")
        # What a stranger may see is the global partition alone.
        assert {c.partition.scope for c in engine.select(stranger, query).candidates} <= {"global"}


# -- non-interference

USERS, AGENTS = ["ana", "bob", "a_b", "a"], ["p", "q"]
WORDS = ["tea", "deploys", "tuesday", "ana", "部署", "api-v2", "coffee", "release"]
step = st.tuples(
    st.sampled_from(["put", "put", "put", "replace", "drop", "supersede"]),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join),
    st.sampled_from(["pair", "user", "agent", "global"]),
    st.sampled_from(USERS),
    st.sampled_from(AGENTS),
    st.integers(0, 30),
    st.booleans(),
)


def history(steps: list[tuple[Any, ...]]) -> list[Op]:
    """A valid history over all partitions; each partition numbers its own writes."""
    ops: list[Op] = []
    live: list[Put] = []
    versions: dict[str, int] = {}
    seqs: dict[Any, int] = {}
    for time, (what, text, scope, user, agent, pick, flag) in enumerate(steps):
        old = live[pick % len(live)] if live else None
        partition = partition_of(scope, user, agent) if what == "put" or not old else old.partition
        seq = seqs[partition] = seqs.get(partition, 0) + 1
        if what == "put" or old is None or what == "supersede":
            if old is not None and what == "supersede":
                user, agent = old.user, old.agent
            fields: dict[str, Any] = {"stored_at": T0 + time, "kind": "note" if flag else "profile"}
            if what == "supersede" and old is not None:
                fields["supersedes"] = old.id
                scope = old.partition.scope
            if pick % 7 == 0:
                fields["expires_at"] = T0 + (5 if flag else 10**18)
            # Ids are opaque in the kernel; here they must only be a partition's own affair.
            new = put(seq, text, scope=scope, user=user, agent=agent,
                      id=f"{partition}/{seq}", **fields)  # fmt: skip
            ops.append(new)
            live.append(new)
            versions[new.id] = 1
        elif what == "replace":
            ops.append(
                Replace(
                    partition=partition,
                    seq=seq,
                    id=old.id,
                    version=versions[old.id],
                    text=text,
                    stored_at=T0 + time,
                )
            )
            versions[old.id] += 1
        else:
            ops.append(Drop(partition=partition, seq=seq, id=old.id))
            live.remove(old)
    return ops


def walk(engine: MemoryEngine, reader: View, *, limit: int, **fields: Any) -> list[Selection]:
    """A list to its end, page by page."""
    pages = [engine.select(reader, ListQuery(limit=limit, now=0, **fields))]
    while pages[-1].next:
        query = ListQuery(limit=limit, now=0, after=pages[-1].next, **fields)
        pages.append(engine.select(reader, query))
    return pages


def answers(engine: MemoryEngine, reader: View, text: str, outside: list[str]) -> list[bytes]:
    """Every kind of reply, as bytes, errors with their words too."""
    queries: list[Query] = [search(text, mode=mode, k=5) for mode in MODES]
    queries += [search(text, kinds=("profile",)), search(text, until=T0 + 4000, lexical_only=True)]
    queries += [ListQuery(limit=3, now=T0 + 100), ListQuery(limit=500, now=0, kinds=("note",))]
    queries += [ReadQuery(id=id_, now=0) for id_ in [*outside, "never was"]]
    queries += [ListQuery(limit=3, now=0, after=id_) for id_ in [*outside, "never was"]]
    replies: list[bytes] = [msgspec.msgpack.encode(walk(engine, reader, limit=2))]
    for query in queries:
        try:
            reply: Any = engine.select(reader, query, embedded(text))
        except IsovistError as e:
            reply = [str(e), e.errno, e.field]
        replies.append(msgspec.msgpack.encode(reply))
    return replies


@pytest.mark.promise("view.noninterference")
@settings(max_examples=120, deadline=None)
@given(st.lists(step, max_size=40), st.sampled_from(USERS), st.sampled_from(AGENTS),
       st.sampled_from(WORDS))  # fmt: skip
def test_what_lies_outside_the_view_shows_in_no_byte(
    steps: list[tuple[Any, ...]], user: str, agent: str, text: str
) -> None:
    ops = history(steps)
    reader = view(user, agent)
    inside = [op for op in ops if op.partition in reader.partitions]
    outside = [op.id for op in ops if op.partition not in reader.partitions][:4]
    alone, among = engine_of(*inside), engine_of(*ops)
    assert answers(alone, reader, text, outside) == answers(among, reader, text, outside)


@pytest.mark.promise("view.noninterference")
def test_a_foreign_unit_is_as_one_that_never_was() -> None:
    secret = put(1, "Bob's secret", user="bob")
    engine = engine_of(put(1, "Ana drinks tea"), secret)
    reader = view("ana", "p")
    assert engine.select(reader, ReadQuery(id=secret.id, now=0)) == Selection()
    errors = []
    for after in (secret.id, "never was"):
        with pytest.raises(CallerError) as caught:
            engine.select(reader, ListQuery(limit=5, now=0, after=after))
        errors.append((caught.value.errno, caught.value.message, caught.value.field))
    assert errors[0] == errors[1]
    assert errors[0][0] is Errno.EINVAL


@pytest.mark.promise("view.noninterference")
def test_names_that_join_alike_are_different() -> None:
    """Users ``a_b`` and ``a`` with agents ``c`` and ``b_c`` share every joined string."""
    engine = engine_of(
        put(1, "tea of a_b", user="a_b", agent="c"), put(1, "tea of a", user="a", agent="b_c")
    )
    assert ids(ask(engine, view("a_b", "c"), "tea")) == ["pair-a_b-c-1"]
    assert ids(ask(engine, view("a", "b_c"), "tea")) == ["pair-a-b_c-1"]
    assert ids(ask(engine, view("a", "c"), "tea")) == []
    assert ids(ask(engine, view("a_b", "b_c"), "tea")) == []


@pytest.mark.promise("view.noninterference")
@pytest.mark.parametrize("mode", MODES)
def test_private_units_never_stand_in_front_of_a_shared_one(mode: str) -> None:
    private = [put(i, "the release is on Tuesday", session=str(i)) for i in range(2, 42)]
    shared = put(1, "a release needs a review, among many other things", scope="user")
    engine = engine_of(*private, shared)
    found = ask(engine, view("ana", "q"), "release on Tuesday", mode=mode, k=8)
    assert ids(found) == [shared.id]


def test_another_users_name_is_not_shown() -> None:
    engine = engine_of(put(1, "tea is served", scope="agent", user="bob"))
    (found,) = ask(engine, view("ana", "p"), "tea").candidates
    assert (found.hit.unit.user, found.hit.unit.agent) == ("", "p")
    assert (found.owner_user, found.owner_agent) == ("bob", "p")
    assert found.hit.unit.scope == "agent"
    (own,) = ask(engine, view("bob", "p"), "tea").candidates
    assert own.hit.unit.user == "bob"


# -- ranking


@pytest.mark.parametrize("mode", MODES)
def test_a_superseded_unit_gives_way(mode: str) -> None:
    old = put(1, "Ana deploys on Tuesday")
    new = put(2, "Ana deploys on Friday", supersedes=old.id)
    engine = engine_of(old, new)
    reader = view("ana", "p")
    assert ids(ask(engine, reader, "when does Ana deploy", mode=mode)) == [new.id]
    assert set(ids(engine.select(reader, ListQuery(limit=5, now=0)))) == {old.id, new.id}
    fill(engine, Drop(partition=new.partition, seq=3, id=new.id))
    assert ids(ask(engine, reader, "when does Ana deploy", mode=mode)) == [old.id]


def test_supersession_counts_where_the_newer_unit_is_visible() -> None:
    old = put(1, "Ana deploys on Tuesday", scope="user")
    new = put(1, "Ana deploys on Friday", supersedes=old.id)  # pair: agent q cannot see it
    engine = engine_of(old, new)
    assert ids(ask(engine, view("ana", "p"), "Ana deploys")) == [new.id]
    assert ids(ask(engine, view("ana", "q"), "Ana deploys")) == [old.id]


def test_only_the_same_pair_supersedes() -> None:
    old = put(1, "Ana deploys on Tuesday", scope="global")
    forged = put(2, "Ana deploys never", scope="global", user="bob", supersedes=old.id)
    assert set(ids(ask(engine_of(old, forged), view("ana", "p"), "Ana deploys"))) == {
        old.id, forged.id,
    }  # fmt: skip


def test_a_newer_unit_that_has_expired_supersedes_no_more() -> None:
    old = put(1, "Ana deploys on Tuesday")
    new = put(2, "Ana deploys on Friday", supersedes=old.id, expires_at=T0 + 100)
    engine = engine_of(old, new)
    reader = view("ana", "p")
    assert ids(ask(engine, reader, "Ana deploys", now=T0 + 99)) == [new.id]
    assert ids(ask(engine, reader, "Ana deploys", now=T0 + 100)) == [old.id]


def test_an_expired_unit_is_in_no_answer() -> None:
    one = put(1, "tea", expires_at=T0 + 100)
    engine = engine_of(one)
    reader = view("ana", "p")
    for now, expected in ((T0 + 99, [one.id]), (T0 + 100, [])):
        assert ids(ask(engine, reader, "tea", now=now)) == expected
        assert ids(engine.select(reader, ReadQuery(id=one.id, now=now))) == expected
        assert ids(engine.select(reader, ListQuery(limit=5, now=now))) == expected


@pytest.mark.parametrize("mode", MODES)
def test_hidden_units_take_no_place_of_the_best(mode: str) -> None:
    """k is filled although more units are hidden than a leg's list is long."""
    ops = [put(1, "tea tea")]
    for i in range(2, 130):
        ops.append(put(i, f"tea tea {i}", supersedes=ops[-1].id))
    ops = [put(i, "tea tea", expires_at=T0, session=str(i)) for i in range(200, 290)] + ops
    good = put(500, "a plain word about tea, said once in a longer sentence")
    found = ask(engine_of(*ops, good), view("ana", "p"), "tea", mode=mode, k=2, now=T0 + 1)
    assert set(ids(found)) == {"pair-ana-p-129", good.id}


def test_filters_on_time_and_kind() -> None:
    ops = [put(i, f"tea number {i}", said_at=i * 100, kind=("note", "profile")[i % 2])
           for i in range(1, 7)]  # fmt: skip
    engine, reader = engine_of(*ops), view("ana", "p")
    found = ask(engine, reader, "tea", since=200, until=500)
    assert sorted(ids(found)) == [ops[i].id for i in (1, 2, 3)]
    assert sorted(ids(ask(engine, reader, "tea", kinds=("profile",)))) == [
        ops[i].id for i in (0, 2, 4)
    ]
    assert ids(ask(engine, reader, "tea", kinds=("lesson",))) == []


def test_a_long_text_is_found_by_its_best_chunk() -> None:
    text = "Plain words without weight. " * 80 + "The password hint is heliotrope. " + "More. " * 90
    engine = engine_of(put(1, text), put(2, "something else"))
    found = ask(engine, view("ana", "p"), "heliotrope", mode="bm25").candidates
    assert len(found) == 1
    assert "heliotrope" in found[0].hit.chunk
    assert len(found[0].hit.chunk) <= 1000
    assert found[0].hit.unit.text == text


def test_coverage_and_cosine_are_absolute() -> None:
    engine = engine_of(put(1, "zebra"), put(2, "zebra yak"), put(3, "nothing of it"))
    found = {c.hit.unit.id: c for c in ask(engine, view("ana", "p"), "zebra yak").candidates}
    assert found["pair-ana-p-2"].coverage == 1.0
    assert 0.0 < found["pair-ana-p-1"].coverage < 1.0
    assert found["pair-ana-p-3"].coverage == 0.0
    assert all(-1.0 <= c.cosine <= 1.0 for c in found.values())
    lexical = ask(engine, view("ana", "p"), "zebra yak", lexical_only=True).candidates
    assert [c.cosine for c in lexical] == [0.0, 0.0]


def test_a_unit_without_its_vectors_is_found_lexically() -> None:
    engine = engine_of(put(1, "green tea"))
    fill(engine, put(2, "black tea"), embed=False)
    reader = view("ana", "p")
    assert set(ids(ask(engine, reader, "black tea"))) == {"pair-ana-p-1", "pair-ana-p-2"}
    assert ids(ask(engine, reader, "black tea", mode="dense")) == ["pair-ana-p-1"]


def test_an_emoji_question_is_no_error() -> None:
    engine, reader = engine_of(put(1, "tea")), view("ana", "p")
    assert ids(ask(engine, reader, "😀", mode="bm25")) == []
    assert ids(ask(engine, reader, "😀")) == ["pair-ana-p-1"]


# -- lists


def test_a_list_is_newest_first_and_pages_without_a_gap() -> None:
    ops = [put(i + 1, f"unit {i}", scope=("pair", "user", "global")[i % 3]) for i in range(20)]
    engine, reader = engine_of(*ops), view("ana", "p")
    pages = walk(engine, reader, limit=3)
    assert [id_ for page in pages for id_ in ids(page)] == [op.id for op in reversed(ops)]
    assert [len(page.candidates) for page in pages] == [3] * 6 + [2]


def test_forgetting_what_a_walk_has_passed_breaks_nothing() -> None:
    """Nor does what expires, or what is stored meanwhile, in partitions old and new."""
    ops = [put(i + 1, f"unit {i}", scope=("pair", "user")[i % 2],
               expires_at=None if i % 3 else T0 + 1000 + i) for i in range(12)]  # fmt: skip
    engine, reader = engine_of(*ops), view("ana", "p")
    seen: list[str] = []
    after, now = "", T0
    while True:
        page = engine.select(reader, ListQuery(limit=2, now=now, after=after))
        seen += ids(page)
        for unit in page.units():
            (gone,) = [op for op in ops if op.id == unit.id]
            fill(engine, Drop(partition=gone.partition, seq=100 + gone.seq, id=gone.id))
            fill(engine, put(200 + gone.seq, f"new {gone.seq}"),
                 put(gone.seq, "new", scope="global"))  # fmt: skip
        if not page.next:
            break
        after, now = page.next, T0 + 5000
    first, later = ops[::-1][:2], [op for op in ops[::-1][2:] if op.expires_at is None]
    assert seen == [op.id for op in first + later]


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_pages_are_the_cut_up_list(limit: int) -> None:
    """Where clocks step back and forth, times tie, and kinds are left out, too."""
    times = [50, 10, 10, 70, 30, 30, 90, 20, 60, 60, 5, 80]
    ops = [put(i + 1, f"unit {i}", scope=("pair", "user", "global")[i * i % 3],
               stored_at=T0 + time, kind=("note", "profile")[i % 4 == 0])
           for i, time in enumerate(times)]  # fmt: skip
    engine, reader = engine_of(*ops), view("ana", "p")
    for kinds in ((), ("note",), ("profile",), ("lesson",)):
        whole = engine.select(reader, ListQuery(limit=99, now=0, kinds=kinds))
        pages = walk(engine, reader, limit=limit, kinds=kinds)
        assert [id_ for page in pages for id_ in ids(page)] == ids(whole)
        assert all(page.candidates for page in pages[1:])


def test_what_is_no_cursor_is_refused_by_name() -> None:
    engine, reader = engine_of(*(put(i, f"unit {i}") for i in range(1, 5))), view("ana", "p")
    good = engine.select(reader, ListQuery(limit=1, now=0)).next
    short = urlsafe_b64encode(msgspec.msgpack.encode((5, [1]))).decode()
    words = urlsafe_b64encode(msgspec.msgpack.encode((5, 5, ["1"] * 4))).decode()
    for bad in (
        "pair-ana-p-4",
        "é",
        "\ud800",
        "=",
        good + "=",
        good + "!",
        good[:-2],
        short,
        words,
    ):
        with pytest.raises(CallerError) as caught:
            engine.select(reader, ListQuery(limit=1, now=0, after=bad))
        assert (caught.value.errno, caught.value.field) == (Errno.EINVAL, "after"), bad


@pytest.mark.promise("view.noninterference")
def test_a_cursor_of_another_view_shows_nothing_of_it() -> None:
    mine = [put(i, f"mine {i}") for i in range(1, 4)]
    engine = engine_of(*mine, *(put(i, f"theirs {i}", user="bob") for i in range(1, 9)))
    theirs = engine.select(view("bob", "p"), ListQuery(limit=4, now=0))
    with pytest.raises(CallerError) as caught:
        engine.select(view("ana", "p"), ListQuery(limit=9, now=0, after=theirs.next))
    assert (caught.value.errno, caught.value.field) == (Errno.ESTALE, "after")


def test_a_walk_says_so_where_the_view_has_changed_under_it() -> None:
    """Even to one of as many partitions, in which the numbers would mean others."""
    engine = engine_of(*(put(i, f"unit {i}") for i in range(1, 5)))
    before, other, wider = (
        view_of(Reader("ana", "p"), Membership(groups, ()))
        for groups in (("team",), ("club",), ("club", "team"))
    )
    page = engine.select(before, ListQuery(limit=2, now=0))
    assert len(engine.select(before, ListQuery(limit=2, now=0, after=page.next)).candidates) == 2
    for changed in (other, wider):
        with pytest.raises(CallerError, match="the view has changed") as caught:
            engine.select(changed, ListQuery(limit=2, now=0, after=page.next))
        assert caught.value.errno == Errno.ESTALE


def test_an_update_moves_no_unit_in_a_list() -> None:
    ops = [put(i, f"unit {i}") for i in range(1, 5)]
    engine, reader = engine_of(*ops), view("ana", "p")
    before = ids(engine.select(reader, ListQuery(limit=9, now=0)))
    fill(engine, Replace(partition=ops[0].partition, seq=9, id=ops[0].id, version=1,
                         text="changed", stored_at=T0 + 10**9))  # fmt: skip
    assert ids(engine.select(reader, ListQuery(limit=9, now=0))) == before
    (first,) = engine.select(reader, ReadQuery(id=ops[0].id, now=0)).units()
    assert (first.text, first.version) == ("changed", 2)
    assert ids(ask(engine, reader, "changed", mode="bm25")) == [ops[0].id]


def test_a_clock_that_steps_back_keeps_the_order_of_sequence() -> None:
    ops = [put(i, f"unit {i}", stored_at=T0 - i * 1000) for i in range(1, 6)]
    page = engine_of(*ops).select(view("ana", "p"), ListQuery(limit=9, now=0))
    assert ids(page) == [op.id for op in reversed(ops)]
