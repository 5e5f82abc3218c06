"""The memory syscalls of the pure kernel: audience, ownership, order and errors."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, Desk, candidate

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.core import Limits
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Replace, Selection

PRIVATE = [
    # What is asked for, by an agent without grants to publish.
    (None, "reusable", ""),
    ("pair", "reusable", ""),
    ("team", "reusable", "unknown scope"),
    ("", "reusable", "unknown scope"),
    ("Global", "reusable", "unknown scope"),
    ("agent", "reusable", "no grant"),
    ("global", "reusable", "no grant"),
    ("global", "protected", "no grant"),
]


@pytest.mark.promise("private.default")
@pytest.mark.parametrize(("scope", "stream", "note"), PRIVATE)
def test_what_is_not_granted_is_private_and_said(scope: str | None, stream: Any, note: str) -> None:
    desk = Desk()
    op = desk.remember(MAIL, user="ana", scope=scope, stream=stream)
    assert op.partition.scope == "pair"
    desk.commit(op)
    assert desk.reply().scope == "pair"
    assert desk.reply().note.startswith(note)
    assert bool(desk.reply().note) == bool(note)


@pytest.mark.promise("private.default")
@pytest.mark.promise("author.true")
@pytest.mark.parametrize("scope", ["user", "agent", "global"])
def test_what_is_granted_is_published_in_the_writers_name(scope: str) -> None:
    desk = Desk()
    op = desk.remember(PLAN, user="ana", scope=scope, stream="reusable")
    assert (op.partition.scope, op.user, op.agent) == (scope, "ana", "plan")
    desk.commit(op)
    assert (desk.reply().scope, desk.reply().note) == (scope, "")


@pytest.mark.promise("private.default")
@pytest.mark.parametrize(
    ("scope", "lands"), [("user", "user"), ("agent", "pair"), ("global", "pair")]
)
def test_the_protected_stream_reaches_no_other_user(scope: str, lands: str) -> None:
    desk = Desk()
    op = desk.remember(PLAN, user="ana", scope=scope, stream="protected")
    assert op.partition.scope == lands
    desk.commit(op)
    assert ("protected stream" in desk.reply().note) == (lands == "pair")


def test_a_grant_to_publish_counts_from_now_until_revoked() -> None:
    desk = Desk()
    fields: dict[str, Any] = {"user": "ana", "scope": "global", "stream": "reusable"}
    desk.ask(OPERATOR, m.Grant(agent="mail", scopes=("global",)))
    assert desk.remember(MAIL, **fields).partition.scope == "global"
    desk.ask(OPERATOR, m.Grant(agent="mail", scopes=("global",), revoke=True))
    assert desk.remember(MAIL, **fields).partition.scope == "pair"


@pytest.mark.promise("author.true")
@pytest.mark.parametrize("key", ["owner", "Agent", "user", "scope", "stream", "VISIBILITY"])
def test_metadata_names_no_owner_and_no_audience(key: str) -> None:
    desk = Desk()
    failed = desk.ask(MAIL, m.Remember(text="x", user="ana", meta={key: "bob"}))
    assert (failed.errno, failed.field) == (Errno.EPERM, "meta")
    assert desk.all(ins.Commit) == []


@pytest.mark.parametrize(
    ("errno", "field", "fields"),
    [
        (Errno.EINVAL, "text", {"text": " \0 "}),
        (Errno.EMSGSIZE, "text", {"text": "ü" * 32_769}),
        (Errno.EINVAL, "kind", {"kind": "secret"}),
        (Errno.EINVAL, "round", {"round": -1}),
        (Errno.EINVAL, "round", {"round": 1 << 31}),
        (Errno.EINVAL, "session", {"session": "a/b"}),
        (Errno.EINVAL, "supersedes", {"supersedes": "u" * 129}),
        (Errno.EINVAL, "said_at", {"said_at": "2026-01-31T09:00"}),
        (Errno.EINVAL, "expires_at", {"expires_at": "tomorrow"}),
        (Errno.EINVAL, "meta", {"meta": {"": "x"}}),
        (Errno.EINVAL, "meta", {"meta": {"k": "x" * 1025}}),
        (Errno.EINVAL, "meta", {"meta": {str(n): "" for n in range(33)}}),
    ],
)
def test_a_bad_unit_is_refused_by_its_field(errno: Errno, field: str, fields: Any) -> None:
    desk = Desk()
    failed = desk.ask(MAIL, m.Remember(**{"text": "x", "user": "ana", **fields}))
    assert (failed.errno, failed.field) == (errno, field)
    assert failed.story
    assert desk.all(ins.Commit) == []


def test_a_write_is_acknowledged_when_it_is_stored() -> None:
    desk = Desk(wall=1_000)
    op = desk.remember(MAIL, user="ana", text="a\0b", said_at="1970-01-01T00:00:01Z")
    assert (op.text, op.said_at, op.seq) == ("ab", 1_000_000_000, 1)
    assert op.stored_at == 1_000 + desk.now
    desk.commit(op)
    stored = desk.reply()
    assert (stored.id, stored.user, stored.rule) == (op.id, "ana", "request")
    # Told twice, it is answered once.
    assert desk.commit(op) == []


def test_ids_are_opaque_and_never_twice_the_same() -> None:
    desk = Desk()
    ids = {desk.remember(MAIL, user=user).id for user in ("ana", "ana", "bob")}
    assert len(ids) == 3
    assert all(len(id_) == 21 and id_[0] == "u" for id_ in ids)
    assert Desk(secret=b"other").remember(MAIL, user="ana").id not in ids


def test_a_number_that_is_given_out_again_after_a_restore_makes_another_id() -> None:
    """A backup put back gives numbers out again; an import may bring what had them."""
    first, later = (Desk(boot=boot).remember(MAIL, user="ana") for boot in (b"1", b"2"))
    assert (first.seq, first.partition) == (later.seq, later.partition)
    assert first.id != later.id


@pytest.mark.parametrize("errno", [Errno.ENOSPC, Errno.EIO])
def test_a_write_that_fails_says_why(errno: Errno) -> None:
    desk = Desk()
    desk.refuse(desk.remember(MAIL, user="ana"), errno)
    assert desk.reply().errno == errno
    assert desk.reply().story[-1].endswith(f"failed {errno.name}")


# -- update, forget, read: whose unit it is

CHANGES = [
    m.Update(id="", version=1, text="new", user="ana"),
    m.Forget(id="", user="ana"),
]


def _of(request: m.Request, unit: str) -> Any:
    if isinstance(request, m.Update):
        return m.Update(id=unit, version=request.version, text=request.text, user="ana")
    return type(request)(id=unit, user="ana")  # type: ignore[call-arg] # forget and read have an id


@pytest.mark.promise("author.true")
@pytest.mark.parametrize("request_", CHANGES)
def test_an_own_unit_is_changed(request_: m.Request) -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    assert desk.ask(MAIL, _of(request_, unit.id)) is None
    desk.select(unit)
    op = desk.one(ins.Commit).op
    assert isinstance(op, Replace | Drop)
    assert (op.partition, op.seq, op.id) == (unit.partition, 2, unit.id)
    desk.commit(op, version=2)
    if isinstance(request_, m.Forget):
        # What comes from it is looked for.
        desk.select()
    assert isinstance(desk.reply(), m.REPLY_OF[type(request_)])


@pytest.mark.promise("author.true")
@pytest.mark.parametrize("request_", CHANGES)
def test_a_visible_unit_of_another_is_not_changed(request_: m.Request) -> None:
    desk = Desk()
    unit = desk.stored(PLAN, user="ana", scope="user")
    desk.ask(MAIL, _of(request_, unit.id))
    desk.select(unit)
    assert desk.reply().errno == Errno.EPERM
    assert desk.all(ins.Commit) == []


@pytest.mark.parametrize("request_", [*CHANGES, m.Read(id="", user="ana")])
def test_out_of_view_and_never_there_are_told_in_the_same_words(request_: m.Request) -> None:
    """The world answers a retrieval from the view alone, so a foreign unit comes back as none."""
    answers = []
    for unit in ("u-never", ""):
        desk = Desk()
        foreign = desk.stored(PLAN, user="ana")
        desk.ask(MAIL, _of(request_, unit or foreign.id))
        assert foreign.partition not in desk.one(ins.Retrieve).view.partitions
        desk.select()
        answers.append(desk.reply())
    assert answers[0].errno == Errno.ENOENT
    assert answers[0] == answers[1]


def test_an_update_of_a_newer_version_is_stale() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, _of(CHANGES[0], unit.id))
    desk.select(unit)
    desk.refuse(desk.one(ins.Commit).op, Errno.ESTALE)
    assert desk.reply().errno == Errno.ESTALE


def test_a_list_goes_on_where_it_ended() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, m.MemoryList(user="ana", limit=1))
    key, page = desk.one(ins.Retrieve).key, Selection(candidates=(candidate(unit),), next=unit.id)
    desk.tell(ev.Retrieved, key=key, selection=page)
    assert desk.reply().next == unit.id
    assert [u.id for u in desk.reply().units] == [unit.id]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (m.Search(query=""), "query"),
        (m.Search(query="x" * 8193), "query"),
        (m.Search(query="x", k=0), "k"),
        (m.Search(query="x", k=101), "k"),
        (m.Search(query="x", kinds=("x",)), "kinds"),
        (m.Search(query="x", since="now"), "since"),
        (m.Search(query="x", until="2026-01-01T00:00"), "until"),
        (m.Search(query="x", since="2026-01-01T00:00Z", until="2026-01-01T00:00Z"), "since"),
        (m.Search(query="x", barrier_ms=60_001), "barrier_ms"),
        (m.Read(id="u", barrier_ms=-1), "barrier_ms"),
        (m.MemoryList(limit=0), "limit"),
        (m.MemoryList(limit=501), "limit"),
        (m.MemoryList(kinds=("x",)), "kinds"),
        (m.Update(id="u", version=0, text="x"), "version"),
        (m.Update(id="u", version=1, text="\0"), "text"),
    ],
)
def test_a_bad_question_is_refused_by_its_field(request_: m.Request, field: str) -> None:
    failed = Desk().ask(MAIL, request_)
    assert failed.errno in (Errno.EINVAL, Errno.EMSGSIZE)
    assert failed.field == field
    assert failed.story


def test_a_search_is_answered_with_its_record() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, m.Search(query="a fact", user="ana", k=3))
    query: Any = desk.one(ins.Retrieve).query
    assert (query.text, query.k) == ("a fact", 3)
    desk.select(unit)
    found, record = desk.reply(), desk.one(ins.Audit).record
    assert [hit.unit.id for hit in found.hits] == [unit.id] == [u.unit for u in record.units]
    assert record.call == found.call
    assert record.sequences == (("pair", 1), ("user", 0), ("agent", 0), ("global", 0))
    assert "a fact" not in repr(record)


def test_a_retrieval_that_fails_ends_its_call() -> None:
    desk = Desk()
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    key = desk.one(ins.Retrieve).key
    desk.tell(ev.WorkFailed, key=key, errno=Errno.EIO, message="disk")
    assert desk.reply().errno == Errno.EIO
    assert desk.one(ins.Audit).record.errno == Errno.EIO
    assert desk.tell(ev.WorkFailed, key=key, errno=Errno.EIO, message="disk") == []


def test_no_call_is_entered_over_the_limit() -> None:
    desk = Desk(limits=Limits(calls=1))
    desk.remember(MAIL, user="ana")
    assert desk.ask(MAIL, m.Remember(text="y", user="ana")).errno == Errno.EAGAIN
    assert desk.all(ins.Commit) == []
    assert desk.ask(MAIL, m.Ping()) == m.Pong(payload="")
