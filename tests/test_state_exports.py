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
from isovist.syscalls.names import LAST_TIME, LAST_VERSION
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
numbers = st.integers(-LAST_TIME, LAST_TIME)
times = st.integers(0, LAST_TIME)
births = st.integers(1, LAST_TIME)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip)


@given(
    names, names, names, words, numbers, times, births, times, st.none() | numbers,
    st.integers(1, 9),
    st.dictionaries(
        names.map("k_{}".format), st.text(st.characters(codec="utf-8")), max_size=32
    ),
    st.booleans(),
)  # fmt: skip
def test_a_line_loses_nothing(
    id_: str, user: str, agent: str, text: str, said: int, stored: int, born: int, expires: int,
    maybe: int | None, version: int, meta: dict[str, str], wide: bool,
) -> None:  # fmt: skip
    partition = Partition(Axis("group", "team") if wide else Axis("one", user), Axis("one", agent))
    unit = Unit(
        id=id_, version=version, text=text, kind="lesson", scope=partition.scope, agent=agent,
        user="", stream="reusable", said_at=said, stored_at=stored, round=4,
        expires_at=expires if maybe is None else maybe, supersedes="u0", meta=meta,
    )  # fmt: skip
    found = Candidate(
        hit=Hit(unit=unit, chunk="", score=0.0), partition=partition, owner_agent=agent,
        owner_user=user, cosine=0.0, coverage=0.0, hash="", owner_session="s", born_at=born,
    )  # fmt: skip
    written = exchange.write(found)
    assert "\n" not in written
    read = exchange.read(written)
    assert isinstance(read, exchange.Line)
    assert (read.session, read.born_at or stored) == ("s", born)
    assert read.partition == partition
    assert (read.user, read.agent) == (user, agent)
    for field in ("id", "version", "text", "kind", "stream", "said_at", "stored_at", "round",
                  "expires_at", "supersedes", "meta"):  # fmt: skip
        assert getattr(read, field) == getattr(unit, field), field


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": 3}, "format"),
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
        ({"version": LAST_VERSION + 1}, "version"),
        ({"supersedes": "u1"}, "supersede itself"),
        ({"said_at": LAST_TIME + 1}, "said_at"),
        ({"expires_at": LAST_TIME + 1}, "expires_at"),
        ({"expires_at": -LAST_TIME - 1}, "expires_at"),
        ({"born_at": LAST_TIME + 1}, "born_at"),
        ({"round": -1}, "round"),
        ({"stored_at": -1}, "stored_at"),
        ({"born_at": -1}, "born_at"),
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
    assert look.view.partitions == tuple(sorted(unit.partition for unit in units))
    assert look.view.reader == Reader("", "")
    reply = answer(at, *map(candidate, units))
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
    assert (puts[0].said_at, puts[0].stored_at, puts[0].born_at) == (5, 7, 7)
    for put in puts[:2]:
        at.commit(put, version=3)
        assert at.reply() is None
    at.commit(puts[2], version=3)
    assert at.reply() == m.Imported(stored=3, known=0)


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


def test_a_unit_keeps_the_name_of_a_predecessor_that_is_gone_or_comes_later() -> None:
    at = desk()
    at.ask(OPERATOR, m.Import(lines=(line(supersedes="u0", born_at=3),)))
    (put,) = commits(at)
    assert (put.supersedes, put.born_at) == ("u0", 3)
    at.commit(put)
    assert at.reply() == m.Imported(stored=1, known=0)


@pytest.mark.parametrize(
    ("stored", "differs"),
    [
        ({"text": "a fact", "version": 3}, ""),
        ({"text": "other words", "version": 3}, "text"),
        ({"text": "a fact", "version": 4}, "version"),
        ({"text": "a fact", "version": 3, "expires_at": 9}, "expiry"),
        ({"text": "a fact", "version": 3, "scope": None}, "scope"),
        (None, "owner"),
    ],
)
def test_an_id_that_is_there_is_known_iff_the_unit_is_the_same(
    stored: dict[str, Any] | None, differs: str
) -> None:
    at = desk()
    more = {"scope": "user", **(stored or {})}
    unit = at.stored(MAIL, user="ana", text=more.get("text", "x"), scope=more["scope"])
    found = candidate(unit, more.get("version", 1))
    shown = msgspec.structs.replace(found.hit.unit, expires_at=more.get("expires_at"))
    found = msgspec.structs.replace(found, hit=msgspec.structs.replace(found.hit, unit=shown))
    at.ask(OPERATOR, m.Import(lines=(line(), line(id="u2", text="b"))))
    first, second = commits(at)
    at.tell(
        ev.WriteFailed, outcome=Outcome(op=first, errno=Errno.EEXIST, message="is there already")
    )
    at.commit(second)
    look = at.one(ins.Retrieve)
    assert isinstance(look.query, ReadQuery)
    assert look.query.id == "u1"
    reply = answer(at, *([found] if stored else []))
    assert (reply.stored, reply.known, len(reply.failed)) == (1, not differs, bool(differs))
    assert not differs or reply.failed[0].endswith(f"with another {differs}")


# -- groups and grants


def registers(at: Desk, page: m.Exported) -> list[Any]:
    """What follows the units of ``page``, oldest first."""
    lines: list[str] = []
    while page.next:
        page = at.ask(OPERATOR, m.Export(after=page.next))
        lines += page.lines
    return [exchange.read(text) for text in reversed(lines)]


def test_a_whole_export_ends_with_all_grants_and_groups() -> None:
    many = tuple(f"user{n:04}" for n in range(1200))
    groups = {("users", "team"): ("ana",), ("users", "big"): many, ("agents", "bots"): ("mail",),
              ("users", "empty"): ()}  # fmt: skip
    at = Desk(groups=groups, boot=b"\1")
    unit = at.stored(MAIL, user="ana")
    at.ask(OPERATOR, m.Export())
    read = registers(at, answer(at, candidate(unit)))
    first = read.index(exchange.GrantLine(format=2, agent="mail", users=("ana", "bob")))
    assert not any(isinstance(one, exchange.GrantLine) for one in read[:first])
    members: dict[tuple[str, str], tuple[str, ...]] = {}
    for one in read[:first]:
        key = (one.of, one.name)
        members[key] = members.get(key, ()) + one.members
    assert members == groups
    assert read[first + 1 :] == [
        exchange.GrantLine(format=2, agent="plan", users=("ana",), scopes=("agent", "global"))
    ]


def test_an_export_whose_groups_change_between_two_pages_begins_again() -> None:
    at = desk()
    at.ask(OPERATOR, m.Export())
    page = answer(at)
    at.ask(OPERATOR, m.GroupChange(name="team", of="users", add=("bob",)))
    assert at.ask(OPERATOR, m.Export(after=page.next)).errno == Errno.ESTALE
    assert at.ask(MAIL, m.Export(after=page.next)).errno == Errno.EPERM


def test_an_export_of_one_user_names_nobody_else() -> None:
    groups = {("users", "team"): ("ana", "bob"), ("users", "dark"): ("bob",),
              ("agents", "bots"): ("mail", "plan")}  # fmt: skip
    at = Desk(groups=groups, grants={"mail": (("ana", "bob"), ("@team",))}, boot=b"\1")
    unit = at.stored(MAIL, user="ana", scope="@team/@bots", stream="reusable")
    other = at.stored(MAIL, user="bob", scope="@team/own", stream="reusable")
    at.ask(OPERATOR, m.Export(name="ana"))
    page = answer(at, candidate(other), candidate(unit))
    assert page.next == ""
    first, *rest = map(exchange.read, page.lines)
    assert isinstance(first, exchange.Line)
    assert first.id == unit.id
    assert rest == [
        exchange.GroupLine(format=2, of="users", name="team", members=("ana",)),
        exchange.GroupLine(format=2, of="agents", name="bots", members=("mail",)),
    ]


def test_an_import_makes_groups_and_grants_before_the_units_that_need_them() -> None:
    at = Desk(grants={})
    unit = line(users=Axis("group", "crew"), stream="reusable")
    group = exchange.write_group("users", "crew", ("ana", "bob"))
    grant = exchange.write_grant("mail", ("ana",), ("@crew",))
    assert at.ask(OPERATOR, m.Import(lines=(unit, *grant, *group))) is None
    saved, granted = at.one(ins.SaveGroup), at.one(ins.SaveGrant)
    assert (saved.of, saved.name, saved.members) == ("users", "crew", ("ana", "bob"))
    assert (granted.agent, granted.users, granted.scopes) == ("mail", ("ana",), ("@crew",))
    (put,) = commits(at)
    at.commit(put)
    assert at.reply() is None, "not before all of it is durable"
    at.tell(ev.Saved, key=saved.key)
    at.tell(ev.Saved, key=granted.key)
    assert at.reply() == m.Imported(stored=3, known=0)
    # Once more: nothing is left to do for them.
    at.ask(OPERATOR, m.Import(lines=(*grant, *group)))
    assert at.reply() == m.Imported(stored=0, known=2)


def test_who_left_after_an_export_joins_again_by_it_and_nobody_leaves() -> None:
    at = desk()
    at.ask(OPERATOR, m.Import(lines=tuple(exchange.write_group("users", "team", ("bob",)))))
    assert at.one(ins.SaveGroup).members == ("ana", "bob")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"type":"group","format":2,"of":"users","name":"@x"}', "name"),
        ('{"type":"group","format":2,"of":"people","name":"x"}', "of"),
        ('{"type":"group","format":2,"of":"users","name":"x","members":["a/b"]}', "add"),
        ('{"type":"grant","format":2,"agent":"mail","scopes":["@none"]}', "no group 'none'"),
        ('{"type":"grant","format":2,"agent":"a/b"}', "agent"),
        ('{"type":"secret","format":2}', "type"),
        ('{"type":"group","format":3}', "format"),
    ],
)
def test_a_group_or_grant_that_breaks_a_rule_is_told(text: str, says: str) -> None:
    at = desk()
    reply = at.ask(OPERATOR, m.Import(lines=(text,)))
    assert (reply.stored, reply.known) == (0, 0)
    assert says in reply.failed[0]
    assert at.all(ins.SaveGroup) == at.all(ins.SaveGrant) == []


def test_groups_that_cannot_be_saved_end_the_import() -> None:
    at = desk()
    at.ask(OPERATOR, m.Import(lines=tuple(exchange.write_group("users", "crew", ("bob",)))))
    at.tell(ev.WorkFailed, key=at.one(ins.SaveGroup).key, errno=Errno.ENOSPC, message="full")
    assert at.reply().errno == Errno.ENOSPC


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
