"""Export, import and backup: the operator's doors, at the pure kernel and as lines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_helpers import MAIL, OPERATOR, Desk, candidate

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls import exchange
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import (
    Candidate,
    ListQuery,
    Outcome,
    Put,
    ReadQuery,
    Selection,
)
from isovist.syscalls.records import ALL, Axis, Hit, Partition, Reader, Unit

LINE = exchange.Line(
    format=1, id="u1", version=3, users=Axis("one", "ana"), agents=ALL, user="ana", agent="mail",
    text="a fact", kind="note", stream="protected", said_at=5, stored_at=7,
)  # fmt: skip


def line(**fields: Any) -> str:
    return msgspec.json.encode(msgspec.structs.replace(LINE, **fields)).decode()


def desk(**more: Any) -> Desk:
    return Desk(groups={("users", "team"): ("ana",)}, boot=b"\1", **more)


def answer(at: Desk, *found: Candidate, **more: Any) -> Any:
    look = at.one(ins.Retrieve)
    selection = Selection(candidates=found, **more)
    at.tell(ev.Retrieved, key=look.key, turn=look.turn, selection=selection)
    return at.reply()


# -- lines

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=9)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
times = st.integers(0, (1 << 63) - 1)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip)


@given(
    names, names, names, words, numbers, times, times, st.none() | numbers, st.integers(1, 9),
    st.dictionaries(names.map("k_{}".format), st.text(st.characters(codec="utf-8"))), st.booleans(),
)  # fmt: skip
def test_a_line_loses_nothing(
    id_: str, user: str, agent: str, text: str, said: int, stored: int, expires: int,
    maybe: int | None, version: int, meta: dict[str, str], wide: bool,
) -> None:  # fmt: skip
    partition = Partition(Axis("group", "team") if wide else Axis("one", user), Axis("one", agent))
    unit = Unit(
        id=id_, version=version, text=text, kind="lesson", scope=partition.scope, agent=agent,
        user="", stream="reusable", said_at=said, stored_at=stored, session="s", round=4,
        expires_at=expires if maybe is None else maybe, supersedes="u0", meta=meta,
    )  # fmt: skip
    found = Candidate(
        hit=Hit(unit=unit, chunk="", score=0.0), partition=partition, owner_agent=agent,
        owner_user=user, cosine=0.0, coverage=0.0, hash="",
    )  # fmt: skip
    written = exchange.write(found)
    assert "\n" not in written
    read = exchange.read(written)
    assert read.partition == partition
    assert (read.user, read.agent) == (user, agent)
    for field in ("id", "version", "text", "kind", "stream", "said_at", "stored_at", "session",
                  "round", "expires_at", "supersedes", "meta"):  # fmt: skip
        assert getattr(read, field) == getattr(unit, field), field


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": 2}, "format"),
        ({"format": 0}, "format"),
        ({"id": "a/b"}, "id"),
        ({"user": "b/c", "users": ALL, "stream": "reusable"}, "user"),
        ({"agent": ""}, "agent"),
        ({"users": Axis("one", "bob")}, "users"),
        ({"agents": Axis("one", "plan")}, "agents"),
        ({"users": Axis("all", "ana")}, "users"),
        ({"agents": Axis("group", "")}, "agents"),
        ({"users": ALL}, "protected"),
        ({"users": Axis("group", "team")}, "protected"),
        ({"text": "\0"}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"kind": "secret"}, "kind"),
        ({"stream": "open"}, "stream"),
        ({"version": 0}, "version"),
        ({"round": -1}, "round"),
        ({"stored_at": -1}, "stored_at"),
        ({"said_at": 1 << 63}, "said_at"),
        ({"session": "a/b"}, "session"),
        ({"supersedes": "a/b"}, "supersedes"),
        ({"meta": {"owner": "bob"}}, "owner"),
    ],
)
def test_a_line_that_breaks_a_rule_says_which(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(CallerError, match=says):
        exchange.read(line(**fields))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{", '{"format":1}', '"\ud800"'])
def test_what_is_no_line_is_a_typed_error(text: str) -> None:
    with pytest.raises(CallerError):
        exchange.read(text)


def test_a_field_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CallerError, match="colour"):
        exchange.read(line()[:-1] + ',"colour":"red"}')


# -- export


@pytest.mark.parametrize(
    "request_", [m.Export(), m.Import(lines=(line(),)), m.Backup(path="/tmp/b"), m.Statistics()]
)
def test_the_whole_store_is_the_operators(request_: m.Request) -> None:
    at = desk()
    assert at.ask(MAIL, request_).errno == Errno.EPERM
    assert at.all(ins.Retrieve) == at.all(ins.Commit) == at.all(ins.Backup) == []


@pytest.mark.promise("view.choke")
def test_an_export_reads_through_a_view_of_all_that_there_is() -> None:
    at = desk()
    units = [at.stored(MAIL, user=user, scope=scope) for user, scope in (
        ("ana", None), ("bob", None), ("ana", "user"), ("bob", "user"),
    )]  # fmt: skip
    at.ask(OPERATOR, m.Export())
    look = at.one(ins.Retrieve)
    assert look.view.partitions == tuple(unit.partition for unit in units)
    assert look.view.reader == Reader("", "")
    reply = answer(at, *map(candidate, units))
    assert reply.next == ""
    assert [exchange.read(text).id for text in reply.lines] == [unit.id for unit in units]


def test_an_export_of_one_user_holds_what_that_user_owns_wherever_it_is() -> None:
    at = desk()
    ana, bob = at.stored(MAIL, user="ana"), at.stored(MAIL, user="bob")
    shared = at.stored(2, user="bob", scope="user")
    at.ask(OPERATOR, m.Export(name="ana"))
    partitions = at.one(ins.Retrieve).view.partitions
    assert partitions == (ana.partition,)
    reply = answer(at, candidate(ana), candidate(bob), candidate(shared))
    assert [exchange.read(text).user for text in reply.lines] == ["ana"]


def test_an_export_goes_on_where_its_page_ended_over_what_there_was_then() -> None:
    at = desk()
    unit = at.stored(MAIL, user="ana")
    at.ask(OPERATOR, m.Export())
    page = answer(at, candidate(unit), next="cursor.1")
    at.stored(MAIL, user="bob")
    at.ask(OPERATOR, m.Export(after=page.next))
    look = at.one(ins.Retrieve)
    assert isinstance(look.query, ListQuery)
    assert look.query.after == "cursor.1"
    assert look.view.partitions == (unit.partition,)
    later = desk()
    later.state.boot = b"\2"
    assert later.ask(OPERATOR, m.Export(after=page.next)).errno == Errno.ESTALE
    for wrong in ("x", "..", "01.9.", "01.x.y"):
        assert at.ask(OPERATOR, m.Export(after=wrong)).field == "after"
    assert at.ask(OPERATOR, m.Export(name="a/b")).field == "name"


def test_a_page_that_would_not_fit_a_frame_is_asked_for_again_with_fewer() -> None:
    at = desk()
    big = at.stored(MAIL, user="ana", text="\1" * 60_000)
    at.ask(OPERATOR, m.Export())
    assert answer(at, *[candidate(big)] * 4) is None
    look = at.one(ins.Retrieve)
    assert isinstance(look.query, ListQuery)
    assert look.query.limit == 2
    assert len(answer(at, *[candidate(big)] * 2, next="c").lines) == 2


# -- import


def commits(at: Desk) -> list[Put]:
    return [c.op for c in at.all(ins.Commit) if isinstance(c.op, Put)]


@pytest.mark.promise("author.true")
def test_an_import_brings_id_version_and_owner_along() -> None:
    at = desk()
    lines = (line(session="s"), line(id="u2", text="b"), line(id="u3", agents=Axis("one", "mail")))
    assert at.ask(OPERATOR, m.Import(lines=lines)) is None
    puts = commits(at)
    assert [(p.id, p.version, p.user, p.agent) for p in puts] == [
        (f"u{n}", 3, "ana", "mail") for n in (1, 2, 3)
    ]
    assert [p.seq for p in puts] == [1, 2, 1], "in the order of the lines"
    assert [bool(p.handle) for p in puts] == [True, False, False]
    assert (puts[0].said_at, puts[0].stored_at) == (5, 7)
    for put in puts[:2]:
        at.commit(put, version=3)
        assert at.reply() is None
    at.commit(puts[2], id="u0", duplicate=True, chunks=())
    assert at.reply() == m.Imported(stored=2, known=1)


def test_a_line_that_breaks_a_rule_is_told_and_the_others_are_taken() -> None:
    at = desk()
    lines = ("{", line(id="u2"), line(id="u3", agents=Axis("group", "crew")), line(id="u4"))
    at.ask(OPERATOR, m.Import(lines=lines))
    stored, full = commits(at)
    at.commit(stored)
    at.refuse(full, Errno.ENOSPC)
    reply = at.reply()
    assert (reply.stored, reply.known) == (1, 0)
    assert [why.split(":")[0] for why in reply.failed] == ["line 0", "line 2", "line 3"]
    assert "no group 'crew' of agents" in reply.failed[1]
    assert at.ask(OPERATOR, m.Import(lines=("{",))).failed
    for count in (0, 1001):
        assert at.ask(OPERATOR, m.Import(lines=("{",) * count)).field == "lines"


def test_a_unit_whose_predecessor_is_gone_is_taken_without_it() -> None:
    at = desk()
    at.ask(OPERATOR, m.Import(lines=(line(supersedes="u0"),)))
    (put,) = commits(at)
    at.refuse(put, Errno.ENOENT)
    (again,) = commits(at)
    assert (again.supersedes, again.id, again.seq) == ("", put.id, 2)
    at.commit(again)
    assert at.reply() == m.Imported(stored=1, known=0)


@pytest.mark.parametrize(("text", "known"), [("a fact", 1), ("other words", 0), (None, 0)])
def test_an_id_that_is_there_is_known_iff_the_words_are_the_same(
    text: str | None, known: int
) -> None:
    at = desk()
    other = at.stored(MAIL, user="ana", text=text or "x")
    at.ask(OPERATOR, m.Import(lines=(line(), line(id="u2", text="b"))))
    first, second = commits(at)
    at.tell(
        ev.WriteFailed, outcome=Outcome(op=first, errno=Errno.EEXIST, message="is there already")
    )
    at.commit(second)
    look = at.one(ins.Retrieve)
    assert isinstance(look.query, ReadQuery)
    assert look.query.id == "u1"
    reply = answer(at, *([candidate(other)] if text else []))
    assert (reply.stored, reply.known, len(reply.failed)) == (1, known, 1 - known)


# -- backup


def test_a_backup_is_told_when_it_is_there() -> None:
    at = desk()
    assert at.ask(OPERATOR, m.Backup(path="/var/b.db")) is None
    save = at.one(ins.Backup)
    at.tell(ev.Saved, key=save.key, bytes=4096)
    assert at.reply() == m.BackedUp(path="/var/b.db", bytes=4096)
    for path in ("", "b.db", "/a\0b", "/" * 5000):
        assert at.ask(OPERATOR, m.Backup(path=path)).field == "path"


def test_statistics_are_the_operator_s() -> None:
    at = Desk()
    at.ask(OPERATOR, m.Statistics())
    at.tell(ev.Measured, key=at.one(ins.Measure).key, figures={"calls": 1})
    assert at.reply() == m.Figures(figures={"calls": 1})
