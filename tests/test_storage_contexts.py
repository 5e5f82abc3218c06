"""Saved contexts in every store: a pair's own, replaced, bounded, cleaned, gone when dropped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from storage_helpers import DIM, EMBEDDER, T0, put, write

from isovist.storage import schema
from isovist.storage.backend import Backend
from isovist.storage.contexts import prepare
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import MAX_CONTEXT
from isovist.syscalls.operations import Context
from isovist.syscalls.records import Message, SavedContext, ToolCall

MOST, MOST_BYTES = 3, 4000
AWS = "AKIA" + "IOSFODNN7EXAMPLE"  # in two, so that no scanner takes it for one of ours


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    in_memory = request.param == "memory"
    made: Backend = MemoryStore(EMBEDDER.name, DIM) if in_memory else opened(tmp_path)
    made.restore()
    yield made
    made.close()


def opened(folder: Path) -> Store:
    return Store.open(folder / "isovist.db", EMBEDDER.name, DIM, engine="memory")


def context(
    name: str, *said: str | None, user: str = "ana", agent: str = "p", id: str = ""
) -> Context:
    return Context(
        user=user,
        agent=agent,
        name=name,
        id=id or f"x-{user}-{agent}-{name}",
        model="small",
        messages=tuple(Message("user", text) for text in said),
        saved_at=T0,
    )


def save(store: Backend, one: Context) -> str:
    return store.save_context(prepare(one), MOST, MOST_BYTES)


@pytest.mark.promise("view.noninterference")
def test_a_context_is_read_by_its_own_pair_alone(store: Backend) -> None:
    mine = context("trip", "ana and p", None, "部署")
    others = [
        context("trip", "bob and p", user="bob"),
        context("trip", "ana and q", agent="q"),
        # Names that would meet if anything joined them.
        context("trip", "a_b and c", user="a_b", agent="c"),
        context("trip", "a and b_c", user="a", agent="b_c"),
    ]
    for one in (mine, *others):
        assert save(store, one) == ""
    for one in (mine, *others):
        assert store.context(one.user, one.agent, "trip") == one
        assert [kept.messages for kept in store.contexts(one.user, one.agent)] == [
            len(one.messages)
        ]
    assert store.context("p", "ana", "trip") is None
    assert store.contexts("bob", "q") == ()
    # What others keep counts for nothing here.
    save(store, context("a", "x"))
    save(store, context("b", "x"))


def test_a_name_is_replaced_and_lists_are_by_name(store: Backend) -> None:
    save(store, context("zebra", "one", id="x1"))
    save(store, context("ant", "two"))
    assert save(store, context("zebra", "one", "two", id="x2")) == "x1"
    kept = store.contexts("ana", "p")
    assert [(one.name, one.model, one.messages, one.saved_at) for one in kept] == [
        ("ant", "small", 1, T0), ("zebra", "small", 2, T0)
    ]  # fmt: skip
    found = store.context("ana", "p", "zebra")
    assert found is not None
    assert [message.content for message in found.messages] == ["one", "two"]
    assert store.context_ids() == {"x2", "x-ana-p-ant"}
    figures = store.statistics()
    assert figures["contexts"] == 2
    assert figures["context_bytes"] == sum(one.bytes for one in kept)


def test_a_pair_keeps_no_more_than_its_share(store: Backend) -> None:
    for name in ("a", "b", "c"):
        save(store, context(name, name))
    with pytest.raises(CallerError, match="3 contexts are kept") as caught:
        save(store, context("d", "one more"))
    assert (caught.value.errno, caught.value.field) == (Errno.EDQUOT, "name")
    save(store, context("c", "in its place"))  # the same name is no further one
    with pytest.raises(CallerError, match=r"would take \d+, the limit is 4000") as caught:
        save(store, context("c", "x" * MOST_BYTES))
    assert (caught.value.errno, caught.value.field) == (Errno.EDQUOT, "messages")
    found = store.context("ana", "p", "c")
    assert found is not None
    assert found.messages[0].content == "in its place"
    save(store, context("d", "of another", agent="q"))
    assert store.drop_context("ana", "p", "a") == "x-ana-p-a"
    save(store, context("d", "there is room"))
    assert store.drop_context("ana", "p", "a") == ""


def test_one_context_has_a_limit_in_bytes() -> None:
    with pytest.raises(CallerError) as caught:
        prepare(context("long", "x" * MAX_CONTEXT))
    assert (caught.value.errno, caught.value.field) == (Errno.EMSGSIZE, "messages")
    assert prepare(context("long", "x" * (MAX_CONTEXT - 100))).bytes <= MAX_CONTEXT


@pytest.mark.promise("secrets.never")
def test_a_secret_is_replaced_before_anything_is_kept(store: Backend) -> None:
    ready = prepare(context("keys", f"my key is {AWS}", "and nothing else", None))
    assert sum(ready.secrets.values()) == 1
    assert AWS.encode() not in ready.body
    store.save_context(ready, MOST, MOST_BYTES)
    found = store.context("ana", "p", "keys")
    assert found == ready.context
    assert found is not None
    assert AWS not in str(found)
    assert found.messages[1:] == context("", "and nothing else", None).messages
    assert prepare(found).secrets == {}


@pytest.mark.promise("erase.complete")
def test_forgetting_a_user_takes_her_contexts_and_no_others(store: Backend) -> None:
    for one in (context("a", "x"), context("b", "x", agent="q"), context("a", "x", user="bob")):
        save(store, one)
    store.apply(store.purge("ana", "r1", T0))
    assert store.context_ids() == {"x-bob-p-a"}


@pytest.mark.promise("write.durable")
def test_contexts_outlive_the_process_and_stand_in_a_backup(tmp_path: Path) -> None:
    mine = context("trip", "to Rome", "by train")
    with closing(opened(tmp_path)) as store:
        store.restore()
        save(store, mine)
        store.backup(str(tmp_path / "copy.db"))
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    (tmp_path / "copy.db").rename(copy / "isovist.db")
    for folder in (tmp_path, copy):
        with closing(opened(folder)) as store:
            store.restore()
            assert store.context("ana", "p", "trip") == mine


def in_files(folder: Path, needle: bytes) -> bool:
    return any(needle in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.promise("erase.complete")
@pytest.mark.parametrize("end", ["drop", "replace"])
def test_after_a_scrub_no_byte_of_a_context_that_went_is_left(tmp_path: Path, end: str) -> None:
    mine = context("qxcanary", *(f"word {n * n * 7919 % 9973}" for n in range(900)))
    ready = prepare(mine)
    # Taken where what follows is of this text alone.
    traces = [ready.body[at : at + 24] for at in range(100, len(ready.body) - 100, 997)]
    with closing(opened(tmp_path)) as store:
        store.restore()
        store.save_context(ready, MOST, 1 << 20)
        assert all(in_files(tmp_path, trace) for trace in traces)
        assert store.scrub(T0)
        assert all(in_files(tmp_path, trace) for trace in traces)
        if end == "drop":
            assert store.drop_context("ana", "p", "qxcanary")
        else:
            assert store.save_context(prepare(context("qxcanary", "short")), MOST, 1 << 20)
        # No unit was dropped: no model has anything to flush.
        assert store.owed() == ([], 0)
        assert store.scrub(T0, store.owed())
        assert store.owed() is None
        assert not any(in_files(tmp_path, trace) for trace in traces)
        assert in_files(tmp_path, b"qxcanary") == (end == "replace")
        assert store.verify() == []


def test_a_scrub_goes_on_owing_what_went_meanwhile(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as store:
        store.restore()
        save(store, context("a", "x"))
        save(store, context("b", "x"))
        store.drop_context("ana", "p", "a")
        finish = store._engine.scrub

        def meanwhile(open_: object) -> bool:
            store.drop_context("ana", "p", "b")
            return finish(open_)  # type: ignore[arg-type] # passed on as it came

        store._engine.scrub = meanwhile  # type: ignore[method-assign] # one store, this test's
        assert store.scrub(T0)
        assert store.owed() == ([], 0)


def test_arguments_are_an_object_still_when_a_number_in_them_was_a_secret(store: Backend) -> None:
    said = (
        Message("assistant", None, (ToolCall("pay", '{"card": 4111111111111111}', "c1"),)),
        Message("tool", '{"card": 4111111111111111}', call="c1"),
    )
    ready = prepare(msgspec.structs.replace(context("card"), messages=said))
    assert ready.secrets == {"card": 2}
    made, result = ready.context.messages
    assert json.loads(made.calls[0].arguments) == {"text": '{"card": [secret:card]}'}
    assert result.content == '{"card": [secret:card]}'


def test_a_file_of_schema_3_gets_its_contexts(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as store:
        store.restore()
        write(store, put(1, "Ana drinks tea"))
    db = sqlite3.connect(tmp_path / "isovist.db")
    known = " ".join((schema.META, schema.RECORDS, schema.GRANTS, *schema.MEMORY))
    tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if f"CREATE TABLE {table} " not in known and not table.startswith("sqlite_"):
            db.execute(f"DROP TABLE {table}")
    db.execute("PRAGMA user_version = 3")
    db.commit()
    db.close()
    with closing(opened(tmp_path)) as store:
        store.restore()
        save(store, context("trip", "to Rome"))
        assert store.contexts("ana", "p") == (
            SavedContext(name="trip", model="small", messages=1, bytes=41, saved_at=T0),
        )
        assert store.owned("ana") == (("pair-ana-p-1", 1, "pair"),)
        assert store.verify() == []
    db = sqlite3.connect(tmp_path / "isovist.db")
    assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    db.close()
