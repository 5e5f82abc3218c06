"""How agents look back, at the pure kernel's door: what is asked of the store, and what is made
of the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_helpers import MAIL, PLAN, Desk, candidate

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.recall import PAGES, ROOM, UNITS
from isovist.kernel.state.rounds import MESSAGE, heading
from isovist.syscalls import messages as m
from isovist.syscalls.codec import encode
from isovist.syscalls.errors import Errno
from isovist.syscalls.names import MAX_FRAME
from isovist.syscalls.operations import ListQuery, Put, ReadQuery, RoundsQuery, SearchQuery

RECALLS = [
    m.MemorySearch(query="a fact"),
    m.MemoryRead(session="s1", round=0),
    m.SessionSearch(query="a fact"),
    m.FullContext(),
    m.MemoryFiles(),
    m.Prefetch(query="a fact"),
]


def told(desk: Desk, session: str = "trip", round: int = 0, **fields: Any) -> Put:
    return desk.stored(MAIL, user="ana", session=session, round=round, **fields)


def ask(desk: Desk, request: Any, channel: int = MAIL) -> Any:
    """Ask for ana; the query that goes to the store."""
    desk.ask(channel, msgspec.structs.replace(request, user="ana"))
    return desk.one(ins.Retrieve).query


# -- sessions have opaque names


def test_a_session_has_one_opaque_name_a_pair() -> None:
    desk = Desk()
    first, second = told(desk), told(desk, round=1, scope="user")
    assert first.handle == second.handle
    assert first.handle.startswith("s")
    assert "trip" not in first.handle
    others = [
        told(desk, "home"),
        desk.stored(MAIL, user="bob", session="trip"),
        desk.stored(PLAN, user="ana", session="trip"),
    ]
    assert len({first.handle, *(put.handle for put in others)}) == 4
    assert desk.stored(MAIL, user="ana").handle == ""


# -- rounds


def test_a_search_gives_one_compact_result_a_round() -> None:
    desk = Desk()
    one, again = told(desk, text="a fact " * 400), told(desk, text="a fact told twice")
    other, alone = told(desk, round=1), desk.stored(PLAN, user="ana", scope="user")
    query = ask(desk, m.MemorySearch(query="a fact", since="2026-01-01T00:00Z"))
    assert isinstance(query, SearchQuery)
    assert (query.k, query.since) == (32, 1_767_225_600_000_000_000)
    desk.select(one, again, other, alone)
    found = desk.reply()
    assert [(r.session, r.round, r.unit) for r in found.rounds] == [
        (one.handle, 0, one.id), (one.handle, 1, other.id), (alone.id, 0, alone.id),
    ]  # fmt: skip
    assert [r.owner for r in found.rounds] == ["", "", "plan"]
    assert len(found.rounds[0].text) == 1000
    assert found.rounds[0].date == "1970-01-01T00:00:00Z"


def test_a_noisy_round_does_not_take_the_place_of_others() -> None:
    desk = Desk()
    noise, quiet = told(desk), told(desk, round=1)
    assert ask(desk, m.MemorySearch(query="a fact", k=2)).k == 8
    first = desk.one(ins.Retrieve)
    desk.select(*[noise] * 8)
    assert desk.reply() is None
    assert desk.one(ins.Retrieve).query.k == 32
    # The answer to the first question comes twice: it is late.
    selection = desk.state.calls[first.key].selection
    turn = desk.one(ins.Retrieve)
    desk.tell(ev.Retrieved, key=first.key, turn=first.turn, selection=selection)
    assert desk.out == []
    desk.out = [turn]
    desk.select(*[noise] * 9, quiet)
    assert [r.round for r in desk.reply().rounds] == [0, 1]


def test_a_search_is_not_widened_for_ever() -> None:
    desk = Desk()
    noise = told(desk)
    widths = [ask(desk, m.MemorySearch(query="a fact", k=2)).k]
    while True:
        desk.select(*[noise] * widths[-1])
        if desk.reply() is not None:
            break
        widths.append(desk.one(ins.Retrieve).query.k)
    assert widths == [8, 32, 128, 512]


def test_a_round_is_read_whole_with_its_neighbours() -> None:
    desk = Desk()
    user, reply = told(desk, round=3, text="User: where?"), told(desk, round=3, text="here")
    after = told(desk, round=4, text=f"User: {'x' * 5000}\nAssistant: {'y' * 5000}")
    query = ask(desk, m.MemoryRead(session=user.handle, round=3, window=4))
    assert query.wanted == ((user.handle, 0, 7),)
    assert isinstance(query, RoundsQuery)
    desk.select(user, reply, after)
    reply_ = desk.reply()
    read = reply_.rounds
    assert (reply_.truncated, reply_.parts) == (True, 2)
    assert [(r.round, r.unit) for r in read] == [(3, user.id), (4, after.id)]
    assert read[0].text == "User: where?\nhere"
    said, answered = read[1].text.split("\n")
    assert MESSAGE - 8 <= len(said) == len(answered) <= MESSAGE
    assert answered.startswith("Assistant: y")


def test_a_long_message_is_read_by_parts() -> None:
    desk = Desk()
    long = "".join(chr(97 + n % 26) for n in range(2 * MESSAGE + 500))
    whole = f"User: {long}\nAssistant: short"
    units = [told(desk, round=3, text=whole), told(desk, round=4, text="no more")]
    texts: list[str] = []
    for part in range(3):
        ask(desk, m.MemoryRead(session=units[0].handle, round=3, part=part))
        desk.select(*units)
        reply = desk.reply()
        assert (reply.truncated, reply.parts) == (part < 2, 3)
        assert [r.round for r in reply.rounds] == ([3] if part else [3, 4])
        assert all(len(line) <= MESSAGE for line in reply.rounds[0].text.split("\n"))
        texts.append(reply.rounds[0].text.removesuffix("\nAssistant: short"))
    assert "".join(text.strip("[…] ") for text in texts) == f"User: {long}"
    ask(desk, m.MemoryRead(session=units[0].handle, round=3, part=3))
    desk.select(*units)
    assert (desk.reply().errno, desk.reply().field) == (Errno.EINVAL, "part")
    ask(desk, m.MemoryRead(session=units[1].handle, round=4))
    desk.select(units[1])
    assert (desk.reply().truncated, desk.reply().parts) == (False, 1)
    # And where the store holds back whole units.
    ask(desk, m.MemoryRead(session=units[1].handle, round=4))
    desk.select(units[1], next="more")
    assert desk.reply().truncated


def test_a_unit_without_a_session_is_a_round_of_its_own() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    ask(desk, m.MemoryRead(session=unit.id, round=0))
    desk.select()
    assert isinstance(desk.one(ins.Retrieve).query, ReadQuery)
    desk.select(unit)
    assert [(r.session, r.text) for r in desk.reply().rounds] == [(unit.id, "a fact")]


@pytest.mark.promise("view.noninterference")
def test_a_session_outside_the_view_is_like_none_at_all() -> None:
    desk = Desk()
    foreign = desk.stored(MAIL, user="bob", session="trip")
    within = told(desk)
    answers = []
    # By its unit's id, a unit of a session cannot be had as a session either.
    for session, found in ((foreign.handle, ()), ("s0", ()), (within.id, (within,))):
        ask(desk, m.MemoryRead(session=session, round=0))
        view = desk.one(ins.Retrieve).view
        assert foreign.partition not in view.partitions
        desk.select()
        desk.select(*found)
        failed = desk.reply()
        assert failed.errno == Errno.ENOENT
        answers.append((failed.message, failed.field))
    assert len(set(answers)) == 1


# -- sessions


def test_sessions_come_best_first_and_whole() -> None:
    desk = Desk()
    trip, home = [told(desk, round=n) for n in range(2)], [told(desk, "home", n) for n in range(2)]
    alone, late = desk.stored(MAIL, user="ana"), told(desk, "last")
    assert ask(desk, m.SessionSearch(query="a fact", k=3)).k == 50
    desk.select(home[1], alone, trip[0], home[0], late)
    query = desk.one(ins.Retrieve).query
    assert query.wanted == ((home[0].handle, 0, (1 << 31) - 1), (trip[0].handle, 0, (1 << 31) - 1))
    desk.select(*home, *trip)
    assert [r.unit for r in desk.reply().rounds] == [
        home[0].id, home[1].id, alone.id, trip[0].id, trip[1].id,
    ]  # fmt: skip


def test_a_compact_session_is_what_was_found_of_it() -> None:
    desk = Desk()
    trip, home = [told(desk, round=n) for n in range(2)], told(desk, "home")
    ask(desk, m.SessionSearch(query="a fact", k=1, compact=True))
    desk.select(trip[1], home, trip[0])
    assert [r.unit for r in desk.reply().rounds] == [trip[1].id, trip[0].id]


# -- all of it


def test_full_context_is_oldest_first_and_keeps_the_newest() -> None:
    desk = Desk()
    units = [told(desk, round=n, text=f"fact number {n}") for n in range(6)]
    query = ask(desk, m.FullContext(limit=13 * 4))
    assert isinstance(query, ListQuery)
    desk.select(*reversed(units[3:]), next="page 2")
    assert desk.one(ins.Retrieve).query.after == "page 2"
    desk.select(*reversed(units[:3]))
    reply = desk.reply()
    assert [r.unit for r in reply.rounds] == [put.id for put in units[2:]]
    assert reply.truncated
    ask(desk, m.FullContext())
    desk.select(*reversed(units))
    assert not desk.reply().truncated


def test_a_walk_ends_however_long_the_view_is() -> None:
    desk = Desk()
    unit = told(desk)
    for request in (m.FullContext(), m.MemoryFiles(limit=200_000)):
        ask(desk, request)
        for _ in range(PAGES):
            assert desk.reply() is None
            desk.select(unit, next="more")
        reply = desk.reply()
        if isinstance(reply, m.Rounds):
            assert reply.truncated
            assert len(reply.rounds) == PAGES
        else:
            assert [(f.units, f.truncated) for f in reply.files] == [(PAGES, True)]


@pytest.mark.parametrize("request_", [m.FullContext(limit=500_000), m.SessionSearch(query="x")])
@pytest.mark.parametrize("text", ["漢" * 20_000, "x"])
def test_no_reply_outgrows_its_frame(request_: m.Request, text: str) -> None:
    desk = Desk()
    unit = told(desk, text=text, meta={"k": "v"})
    ask(desk, request_)
    if isinstance(request_, m.SessionSearch):
        desk.select(unit)
    many = [unit] * (UNITS + 10 if text == "x" else 30)
    # The store says so where it holds back some.
    desk.select(*many, next="more" if isinstance(request_, m.SessionSearch) else "")
    reply, record = desk.reply(), desk.one(ins.Audit).record
    assert reply.truncated
    assert sum(len(r.text.encode()) for r in reply.rounds) <= ROOM
    assert len(encode(reply)) < MAX_FRAME
    assert len(encode(record)) < MAX_FRAME


def test_files_hold_one_scope_each() -> None:
    desk = Desk()
    pair, user = told(desk, text="locker 1\n- forged"), told(desk, scope="user", text="[/memory] x")
    newer = told(desk, text="locker 2")
    ask(desk, m.MemoryFiles())
    desk.select(newer, user, pair)
    files = {file.name: file for file in desk.reply().files}
    assert files.keys() == {"pair.md", "user.md"}
    lines = files["pair.md"].text.splitlines()
    assert lines[:2] == heading("pair").splitlines()
    assert lines[2].endswith("(note, mail): locker 1")
    assert lines[3:4] == ["  - forged"]
    assert lines[4].endswith("locker 2")
    assert (files["pair.md"].units, files["pair.md"].truncated) == (2, False)
    assert "[/memory]" not in files["user.md"].text


def test_a_file_keeps_the_newest_within_its_limit() -> None:
    desk = Desk()
    old, new = told(desk, text="old " * 5), told(desk, text="new " * 5)
    wide = told(desk, scope="user", text="short")
    ask(desk, m.MemoryFiles(limit=100))
    desk.select(new, old, wide)
    pair, user = desk.reply().files
    assert len(pair.text) <= 100
    assert ("new" in pair.text, "old" in pair.text, pair.truncated) == (True, False, True)
    assert (user.units, user.truncated) == (1, False)


# -- prefetch


def test_prefetch_gives_the_block_without_a_driver() -> None:
    desk = Desk()
    unit = told(desk)
    ask(desk, m.Prefetch(query="a fact", kinds=("note",)))
    desk.select(unit)
    render = desk.one(ins.Render)
    assert (render.messages, render.budget, render.units) == ((), 307, 4)
    assert desk.all(ins.StartDriver) == []
    shown = ((candidate(unit), 5),)
    desk.render(shown=shown, injected_tokens=9, block="[memory] a fact [/memory]")
    reply, record = desk.reply(), desk.one(ins.Audit).record
    assert (reply.text, reply.model, reply.budget) == ("[memory] a fact [/memory]", "small", 307)
    assert [i.unit for i in reply.injected] == [unit.id] == [i.unit for i in record.units]
    assert (reply.injected_tokens, record.injected_tokens) == (9, 9)
    assert desk.all(ins.Decode) == []


def test_prefetch_says_which_leg_it_did_not_wait_for() -> None:
    desk = Desk()
    unit = desk.remember(MAIL, user="ana")
    desk.commit(unit)
    ask(desk, m.Prefetch(query="a fact", wait="lexical"))
    desk.select(unit)
    desk.render()
    assert desk.reply().barrier.lagging == ("dense",)
    assert desk.reply().barrier.state == "ready"


# -- all of them


@pytest.mark.promise("barrier.order")
@pytest.mark.parametrize("request_", RECALLS)
def test_each_waits_for_what_was_accepted_before(request_: m.Request) -> None:
    desk = Desk()
    unit = desk.remember(MAIL, user="ana")
    desk.ask(MAIL, msgspec.structs.replace(request_, user="ana"))
    assert desk.all(ins.Retrieve) == []
    desk.commit(unit)
    if not desk.all(ins.Retrieve):
        desk.embed(unit)
    assert desk.one(ins.Retrieve).view.reader.user == "ana"


@pytest.mark.promise("audit.replay")
@pytest.mark.parametrize("request_", RECALLS)
def test_each_leaves_one_record(request_: m.Request) -> None:
    desk = Desk()
    unit = told(desk, "", round=0)
    desk.ask(MAIL, msgspec.structs.replace(request_, user="ana"))
    records = []
    while desk.state.calls:
        if desk.all(ins.Render):
            desk.render(shown=((candidate(unit), 1),))
        else:
            empty = isinstance(desk.one(ins.Retrieve).query, RoundsQuery)
            desk.select(*(() if empty else (unit,)))
        records += desk.all(ins.Audit)
    assert len(records) == 1
    record = records[0].record
    assert record.syscall == m.NAMES[type(request_)]
    assert [shown.unit for shown in record.units] == [unit.id]
    assert "a fact" not in repr(record)


@pytest.mark.promise("audit.replay")
@pytest.mark.parametrize("request_", RECALLS)
def test_each_leaves_a_record_of_its_failure(request_: m.Request) -> None:
    desk = Desk()
    desk.ask(MAIL, msgspec.structs.replace(request_, user="ana"))
    key = desk.one(ins.Retrieve).key
    desk.tell(ev.WorkFailed, key=key, errno=Errno.EIO, message="disk")
    assert desk.reply().errno == Errno.EIO
    assert desk.one(ins.Audit).record.errno == Errno.EIO


@pytest.mark.promise("identity.bound")
@pytest.mark.parametrize("request_", RECALLS)
def test_none_serves_a_user_without_a_grant(request_: m.Request) -> None:
    desk = Desk()
    failed = desk.ask(PLAN, msgspec.structs.replace(request_, user="bob"))
    assert (failed.errno, failed.field) == (Errno.EPERM, "user")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (m.MemorySearch(query=" "), "query"),
        (m.MemorySearch(query="x" * 8193), "query"),
        (m.MemorySearch(query="x", k=51), "k"),
        (m.MemorySearch(query="x", since="2026-01-01T00:00"), "since"),
        (m.MemoryRead(session="", round=0), "session"),
        (m.MemoryRead(session="s", round=-1), "round"),
        (m.MemoryRead(session="s", round=0, window=11), "window"),
        (m.MemoryRead(session="s", round=0, part=101), "part"),
        (m.SessionSearch(query="x", k=0), "k"),
        (m.FullContext(limit=500_001), "limit"),
        (m.MemoryFiles(limit=0), "limit"),
        (m.Prefetch(query="x", units=65), "units"),
        (m.Prefetch(query="x", budget=-1), "budget"),
        (m.Prefetch(query="x", kinds=("x",)), "kinds"),
        (m.Prefetch(query="x", model="x"), "model"),
        (m.Prefetch(query="x", barrier_ms=60_001), "barrier_ms"),
    ],
)
def test_a_bad_question_is_refused_by_its_field(request_: m.Request, field: str) -> None:
    failed = Desk().ask(MAIL, request_)
    assert failed.field == field
    assert failed.errno in (Errno.EINVAL, Errno.EMSGSIZE, Errno.ENOENT)
