"""The kernel removes what has expired: when it looks, what it removes, and whom it tells."""

from __future__ import annotations

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, SECOND, Desk, candidate

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.sweeping import AGAIN, BATCH
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Expire, Lapsed, Outcome, Put, Selection

SOON = "1970-01-01T00:00:05Z"
"""Five seconds from a desk's first event."""


def lapsed(unit: Put) -> Lapsed:
    return Lapsed(partition=unit.partition, id=unit.id, version=1, agent=unit.agent, kind=unit.kind)


def looks(desk: Desk) -> ins.FindLapsed:
    return desk.one(ins.FindLapsed)


def found(desk: Desk, *units: Put, soonest: int | None = None) -> list[Drop]:
    """The store's answer to the look under way, and the removals that it leads to."""
    look = looks(desk).look
    desk.tell(ev.Lapsed, look=look, units=tuple(map(lapsed, units)), soonest=soonest)
    drops = [i.op for i in desk.all(ins.Commit)]
    assert all(isinstance(op, Drop) and op.expired and not op.receipt for op in drops)
    return [op for op in drops if isinstance(op, Drop)]


def swept(desk: Desk) -> tuple[Put, Drop]:
    """A unit that has expired, and its removal."""
    unit = desk.stored(MAIL, expires_at=SOON)
    desk.sleep(6 * SECOND)
    (drop,) = found(desk, unit)
    return unit, drop


def test_a_unit_goes_when_it_expires_and_no_sooner() -> None:
    desk = Desk()
    unit = desk.remember(MAIL, expires_at=SOON)
    desk.commit(unit)
    assert abs(desk.one(ins.WakeAt).ns - 5 * SECOND) < SECOND
    assert not desk.all(ins.FindLapsed)
    desk.sleep(4 * SECOND)
    assert not desk.all(ins.FindLapsed)
    desk.sleep(SECOND)
    look = looks(desk)
    assert look.limit == BATCH
    assert look.at >= 5 * SECOND
    (drop,) = found(desk, unit)
    assert (drop.partition, drop.id, drop.seq) == (unit.partition, unit.id, unit.seq + 1)
    assert drop.stored_at >= 5 * SECOND
    desk.commit(drop)
    desk.one(ins.Scrub)
    record = desk.one(ins.Audit).record
    assert (record.syscall, record.user, record.agent) == ("expired", "", "")
    assert [(u.unit, u.version) for u in record.units] == [(unit.id, 1)]
    assert desk.one(ins.Swept) == ins.Swept(record.call, 1)
    assert not desk.all(ins.FindLapsed)


def test_what_has_expired_already_goes_at_once() -> None:
    desk = Desk()
    unit = desk.remember(MAIL, expires_at="1969-01-01T00:00Z")
    desk.commit(unit)
    assert found(desk, unit)


def test_an_expiry_set_later_counts() -> None:
    desk = Desk()
    unit = desk.stored(MAIL)
    desk.ask(MAIL, m.Expire(id=unit.id, version=1, at=SOON))
    desk.select(unit)
    op = desk.one(ins.Commit).op
    assert isinstance(op, Expire)
    desk.commit(op, version=2)
    desk.sleep(6 * SECOND)
    looks(desk)


def test_a_start_sweeps_what_expired_while_no_kernel_was_up() -> None:
    desk = Desk(wall=100 * SECOND)
    desk.tell(ev.Lapsed, soonest=7 * SECOND)
    looks(desk)


def test_a_start_waits_for_what_is_yet_to_expire() -> None:
    desk = Desk()
    desk.tell(ev.Lapsed, soonest=60 * SECOND)
    assert not desk.all(ins.FindLapsed)
    desk.sleep(61 * SECOND)
    looks(desk)


def test_a_calendar_that_is_set_forwards_is_heeded() -> None:
    desk = Desk()
    desk.tell(ev.Lapsed, soonest=3_600 * SECOND)
    desk.tell(ev.Tick, wall=4_000 * SECOND)
    assert looks(desk).at >= 4_000 * SECOND


def test_batches_come_one_after_another() -> None:
    desk = Desk()
    units = [desk.stored(MAIL, text=f"fact {n}", expires_at=SOON) for n in range(3)]
    desk.sleep(6 * SECOND)
    first = found(desk, *units[:2], soonest=5 * SECOND)
    assert [drop.id for drop in first] == [unit.id for unit in units[:2]]
    desk.commit(first[0])
    assert not desk.all(ins.FindLapsed), "one batch at a time"
    desk.commit(first[1])
    assert [drop.id for drop in found(desk, units[2])] == [units[2].id]


def test_a_reader_waits_for_a_removal_as_for_any_write() -> None:
    desk = Desk()
    _, drop = swept(desk)
    assert desk.ask(MAIL, m.Search(query="fact")) is None
    assert not desk.all(ins.Retrieve)
    desk.commit(drop)
    desk.one(ins.Retrieve)


def test_a_disk_that_refuses_is_asked_again_later_and_later() -> None:
    desk = Desk()
    unit, drop = swept(desk)
    for pause in (AGAIN, 2 * AGAIN):
        desk.refuse(drop, Errno.ENOSPC)
        assert not desk.all(ins.FindLapsed)
        assert not desk.all(ins.Scrub)
        desk.sleep(pause // 2)
        assert not desk.all(ins.FindLapsed)
        desk.sleep(pause)
        (drop,) = found(desk, unit)
    desk.commit(drop)
    desk.one(ins.Swept)


@pytest.mark.parametrize(("errno", "again"), [(Errno.ESTALE, True), (Errno.ENOENT, False)])
def test_what_moved_or_is_gone_meanwhile_is_no_failure(errno: Errno, again: bool) -> None:
    desk = Desk()
    _, drop = swept(desk)
    desk.refuse(drop, errno)
    assert bool(desk.all(ins.FindLapsed)) == again
    assert not desk.all(ins.Swept)


def test_a_late_or_doubled_answer_changes_nothing() -> None:
    desk = Desk()
    unit, drop = swept(desk)
    desk.tell(ev.Lapsed, look=1, units=(lapsed(unit),), soonest=None)
    assert not desk.all(ins.Commit)
    desk.commit(drop)
    desk.tell(ev.Lapsed, look=1, units=(lapsed(unit),), soonest=None)
    assert desk.out == []


@pytest.mark.promise("erase.complete")
def test_its_owner_can_forget_what_is_not_swept_yet_and_nobody_else_learns_of_it() -> None:
    desk = Desk()
    unit = desk.stored(PLAN, user="ana", scope="agent", stream="reusable", expires_at=SOON)
    desk.sleep(6 * SECOND)
    assert desk.ask(PLAN, m.Forget(id=unit.id, user="ana")) is None
    assert desk.one(ins.Retrieve).query.expired  # type: ignore[union-attr] # a ReadQuery
    desk.select(unit)
    op = desk.one(ins.Commit).op
    assert isinstance(op, Drop)
    assert (op.id, op.expired) == (unit.id, False)
    assert op.receipt
    # Another in whose view it is: in the same words as one that never was.
    desk.ask(OPERATOR, m.Grant(agent="plan", users=("bob",)))
    desk.tell(ev.Saved, key=desk.one(ins.SaveGrant).key)
    assert desk.ask(PLAN, m.Forget(id=unit.id, user="bob")) is None
    over = candidate(unit)
    asked = desk.one(ins.Retrieve)
    desk.tell(ev.Retrieved, key=asked.key, turn=asked.turn, selection=Selection(candidates=(over,)))
    assert desk.reply().errno == Errno.ENOENT


def test_units_that_inherit_are_listed_as_coming_from_what_is_forgotten() -> None:
    desk = Desk()
    unit = desk.stored(MAIL)
    desk.ask(MAIL, m.Forget(id=unit.id))
    desk.select(unit)
    op = desk.one(ins.Commit).op
    desk.commit(op, heirs=("u1", "u2"))
    desk.select()
    assert desk.reply().derived == ("u1", "u2")


def test_a_rival_is_told_by_the_field_and_the_unit_that_came_first() -> None:
    desk = Desk()
    op = desk.remember(MAIL, supersedes="u0")
    said = "supersedes: 'u0' is superseded already, by 'u1'"
    refused = ev.WriteFailed(
        now=desk.now + 1,
        outcome=Outcome(op=op, errno=Errno.ESTALE, message=said, field="supersedes"),
    )
    desk.out = desk.state.handle(refused)
    failed = desk.reply()
    assert (failed.errno, failed.field) == (Errno.ESTALE, "supersedes")
    assert "'u1'" in failed.message
