"""Timers: mail for later; none twice, none lost, and those that were missed as each one says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from ledger_helpers import LedgerDesk, Tables
from state_helpers import MAIL, OPERATOR, PLAN, SECOND

from isovist.kernel.calendar import next_time
from isovist.kernel.state import events as ev
from isovist.kernel.state.timers import MOST
from isovist.syscalls import messages as m
from isovist.syscalls.abi import mail, timers
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.ledger import MAX_MAIL, MAX_TIMERS

START = 1_800_000_000 * SECOND
"""Some moment in January 2027, on a whole minute of every zone."""
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


@pytest.fixture
def tables() -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.close()


@pytest.fixture
def desk(tables: Tables) -> LedgerDesk:
    return started(tables)


def started(tables: Tables, wall: int = START) -> LedgerDesk:
    """A life of the kernel over what the tables hold."""
    desk = LedgerDesk(tables, wall=wall, timers=tables.timers(), next_time=next_time)
    desk.now = desk.state.now = 1
    return desk


def at(ns: int) -> str:
    return datetime.fromtimestamp(ns // SECOND, UTC).isoformat()


def set_timer(desk: LedgerDesk, channel: int = PLAN, **fields: Any) -> Any:
    return desk.call(channel, timers.TimerSet(**{"text": "look", "user": "ana", **fields}))


def mails(desk: LedgerDesk) -> list[mail.Mail]:
    """What the box of (plan, ana) gives now; it is acknowledged."""
    got: list[mail.Mail] = []
    while page := desk.call(PLAN, mail.MailReceive(user="ana", limit=64)).mails:
        got += page
        desk.call(PLAN, mail.MailAck(user="ana", ids=tuple(one.id for one in page)))
    return got


def test_a_time_comes_once(desk: LedgerDesk) -> None:
    timer = set_timer(desk, at=at(START + HOUR)).timer
    assert timer.next_at == START + HOUR
    desk.sleep(HOUR - MINUTE)
    assert mails(desk) == []
    desk.sleep(2 * MINUTE)
    (one,) = mails(desk)
    assert (one.kind, one.from_agent, one.text, one.about, one.at) == (
        "timer", "plan", "look", timer.id, START + HOUR
    )  # fmt: skip
    desk.sleep(24 * HOUR)
    assert mails(desk) == []
    assert len(desk.state.timers) == 0


def test_the_kernel_asks_to_be_woken_in_time(desk: LedgerDesk) -> None:
    set_timer(desk, at=at(START + HOUR))
    (wake,) = [i.ns for i in desk.said if type(i).__name__ == "WakeAt"][-1:]
    assert wake <= HOUR + SECOND


def test_every_so_many_seconds(desk: LedgerDesk) -> None:
    set_timer(desk, every=600)
    due = []
    for _ in range(6):
        desk.sleep(10 * MINUTE + 1)
        due += [one.at for one in mails(desk)]
    first = due[0]
    assert due == [first + n * 10 * MINUTE for n in range(6)]


def test_a_cron_expression_in_its_zone(desk: LedgerDesk) -> None:
    timer = set_timer(desk, cron="30 9 * * *", zone="Europe/Berlin").timer
    local = datetime.fromtimestamp(timer.next_at // SECOND, UTC)
    assert (local.hour, local.minute) == (8, 30)  # an hour behind Berlin in winter
    desk.sleep(timer.next_at - desk.state.calendar() + 1)
    assert [one.at for one in mails(desk)] == [timer.next_at]
    (after,) = desk.call(PLAN, timers.TimerList(user="ana")).timers
    assert (after.next_at, after.sent) == (timer.next_at + 24 * HOUR, 1)


@pytest.mark.parametrize(
    ("zone", "expression", "after", "due"),
    [
        ("Europe/Berlin", "30 2 * * *", "2027-03-27T12:00Z", ["2027-03-28T01:00Z",
         "2027-03-29T00:30Z"]),
        ("Europe/Berlin", "30 2 * * *", "2027-10-30T12:00Z", ["2027-10-31T00:30Z",
         "2027-11-01T01:30Z"]),
        ("UTC", "0 0 29 2 *", "2027-01-01T00:00Z", ["2028-02-29T00:00Z"]),
        ("Asia/Kolkata", "0 9 * * MON", "2027-01-01T00:00Z", ["2027-01-04T03:30Z"]),
    ],
)  # fmt: skip
def test_clocks_that_skip_or_repeat_an_hour(
    zone: str, expression: str, after: str, due: list[str]
) -> None:
    now = int(datetime.fromisoformat(after).timestamp()) * SECOND
    for expected in due:
        now = next_time(expression, zone, now)
        assert at(now) == datetime.fromisoformat(expected).isoformat()


@pytest.mark.parametrize(
    ("expression", "zone", "field"),
    [("x", "UTC", "cron"), ("0 0 30 2 *", "UTC", "cron"), ("* * * * *", "No/Where", "zone"),
     ("* * * * *", "../../etc/passwd", "zone"), ("* * * * *", "", "zone")],
)  # fmt: skip
def test_what_is_no_time_is_named(expression: str, zone: str, field: str) -> None:
    with pytest.raises(CallerError) as caught:
        next_time(expression, zone, START)
    assert caught.value.field == field


@pytest.mark.parametrize(("missed", "given"), [("skip", 0), ("once", 1), ("all", 3)])
def test_what_was_missed_while_the_kernel_was_down(tables: Tables, missed: str, given: int) -> None:
    set_timer(started(tables), every=3600, missed=missed)
    desk = started(tables, START + 3 * HOUR + 30 * MINUTE)
    desk.tell(ev.Tick)
    desk.sleep(SECOND)
    got = mails(desk)
    assert len(got) == given
    assert [one.at for one in got] == sorted({one.at for one in got})
    desk.sleep(30 * MINUTE)
    assert len(mails(desk)) == 1  # the next one comes in time


def test_what_is_hardly_late_is_not_missed(tables: Tables) -> None:
    set_timer(started(tables), every=3600, missed="skip")
    desk = started(tables, START + HOUR + 30 * SECOND)
    desk.sleep(SECOND)
    assert len(mails(desk)) == 1


def test_all_that_were_missed_are_the_latest_hundred(tables: Tables) -> None:
    before = started(tables)
    for fields in ({"every": 60}, {"cron": "* * * * *"}):
        set_timer(before, missed="all", **fields)
    later = START + 24 * HOUR
    desk = started(tables, later)
    desk.sleep(SECOND)
    got = mails(desk)
    assert len(got) == 2 * MOST
    assert min(one.at for one in got) > later - 10 * HOUR
    assert all(timer.next_at > later for timer in desk.state.timers._table.values())


def test_a_message_that_was_given_is_not_given_again_by_the_next_life(tables: Tables) -> None:
    desk = started(tables)
    set_timer(desk, every=3600)
    desk.sleep(HOUR + SECOND)
    again = started(tables, desk.state.calendar())
    again.sleep(SECOND)
    got = mails(again)
    assert len({one.id for one in got}) == len(got) == 1


def test_the_calendar_may_be_set_past_a_time_and_back(desk: LedgerDesk) -> None:
    set_timer(desk, every=3600, missed="once")
    desk.tell(ev.Tick, wall=START + 5 * HOUR + MINUTE)
    assert len(mails(desk)) == 1
    desk.tell(ev.Tick, wall=START)
    desk.sleep(HOUR)
    assert mails(desk) == []  # these times have been
    desk.tell(ev.Tick, wall=START + 5 * HOUR + 59 * MINUTE)
    desk.sleep(2 * MINUTE)
    assert len(mails(desk)) == 1


def test_a_box_that_is_full_holds_a_timer_back(desk: LedgerDesk) -> None:
    for _ in range(MAX_MAIL):
        desk.call(PLAN, mail.MailSend(to="plan", text="x", user="ana"))
    set_timer(desk, at=at(START + HOUR))
    desk.sleep(HOUR + SECOND)
    assert all(one.kind == "mail" for one in mails(desk))
    desk.sleep(2 * MINUTE)
    assert [one.kind for one in mails(desk)] == ["timer"]


def test_a_name_replaces_its_timer(desk: LedgerDesk) -> None:
    first = set_timer(desk, every=60, name="poll").timer
    second = set_timer(desk, every=600, name="poll").timer
    other = set_timer(desk, MAIL, every=60, name="poll").timer
    assert first.id == second.id != other.id
    (one,) = desk.call(PLAN, timers.TimerList(user="ana")).timers
    assert one.every == 600


def test_a_timer_is_cancelled_by_its_pair_alone(desk: LedgerDesk) -> None:
    timer = set_timer(desk, every=60).timer
    assert desk.call(MAIL, timers.TimerCancel(id=timer.id, user="ana")).errno == Errno.ENOENT
    assert desk.call(PLAN, timers.TimerCancel(id=timer.id, user="ana")).timer == timer
    desk.sleep(HOUR)
    assert mails(desk) == []


def test_timers_of_a_pair_are_bounded(desk: LedgerDesk, tables: Tables) -> None:
    for _ in range(MAX_TIMERS):
        set_timer(desk, every=60)
    assert set_timer(desk, every=60).errno == Errno.EDQUOT
    assert set_timer(desk, MAIL, every=60).timer


def test_the_operator_sees_all_without_texts(desk: LedgerDesk) -> None:
    set_timer(desk, every=60)
    set_timer(desk, MAIL, every=60)
    seen = desk.call(OPERATOR, timers.TimerList()).timers
    assert [(one.agent, one.text) for one in seen] == [("plan", ""), ("mail", "")]
    assert len(desk.call(PLAN, timers.TimerList(user="ana")).timers) == 1


def test_a_forgotten_users_timers_are_gone(desk: LedgerDesk) -> None:
    set_timer(desk, every=60)
    desk.tell(ev.Purged, key=0, user="ana", outcomes=())
    assert len(desk.state.timers) == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "at"), ({"every": 60, "cron": "* * * * *"}, "at"), ({"at": "2020-01-01T00:00Z"}, "at"),
        ({"at": "2030-01-01T00:00"}, "at"), ({"every": -1}, "every"), ({"every": 1 << 40}, "every"),
        ({"cron": "never"}, "cron"), ({"cron": "* * * * *", "zone": "x"}, "zone"),
        ({"cron": "* " * 200}, "cron"), ({"every": 60, "text": "x" * 5000}, "text"),
        ({"every": 60, "name": "n" * 200}, "name"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(desk: LedgerDesk, fields: dict[str, Any], field: str) -> None:
    refused = set_timer(desk, **fields)
    assert isinstance(refused, m.Failed)
    assert refused.field == field
