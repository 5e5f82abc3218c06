"""Forgetting at the pure kernel's door: one unit, by query, a user, and the receipts."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, SECOND, Desk, candidate, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.core import Limits
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.state.forgetting import PAGES, PATIENCE
from isovist.kernel.state.matching import KEPT
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, ListQuery, MatchQuery, Outcome, Put, Receipt


def forget(desk: Desk, unit: Put) -> Drop:
    """Forget ``unit``, and have the store do it."""
    desk.ask(MAIL, m.Forget(id=unit.id, user="ana"))
    desk.select(unit)
    op = desk.one(ins.Commit).op
    assert isinstance(op, Drop)
    desk.commit(op)
    return op


def matching(desk: Desk, *units: Put, channel: int = MAIL, **fields: Any) -> Any:
    """Ask what fits, which ``units`` do; the reply, where there is one. With a word no unit is
    looked for."""
    desk.ask(channel, m.ForgetMatching(**{"query": "a fact", "user": "ana", **fields}))
    if desk.all(ins.Retrieve):
        desk.select(*units)
    return desk.reply()


def drops(desk: Desk) -> list[Drop]:
    ops = [i.op for i in desk.all(ins.Commit)]
    assert all(isinstance(op, Drop) for op in ops)
    return ops  # type: ignore[return-value] # just checked


# -- one unit


@pytest.mark.promise("erase.complete")
def test_a_forgotten_unit_gets_a_receipt_and_asks_for_a_scrub() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    op = forget(desk, unit)
    assert (op.receipt[0], len(op.receipt), op.stored_at > 0) == ("r", 41, True)
    assert desk.all(ins.Scrub) == [ins.Scrub()]
    desk.select()
    reply = desk.reply()
    assert (reply.id, reply.receipt, reply.derived) == (unit.id, op.receipt, ())


@pytest.mark.promise("erase.complete")
def test_what_comes_from_a_forgotten_unit_is_listed() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    newer = desk.stored(MAIL, user="ana", supersedes=unit.id)
    made = desk.stored(PLAN, user="ana", scope="user", meta={"source": unit.id})
    other = desk.stored(MAIL, user="ana", meta={"source": newer.id, "from": unit.id})
    forget(desk, unit)
    assert isinstance(desk.one(ins.Retrieve).query, ListQuery)
    desk.select(other, made, next="page 2")
    assert desk.one(ins.Retrieve).query.after == "page 2"
    desk.select(newer)
    assert desk.reply().derived == (made.id, newer.id)


def test_the_search_for_what_comes_from_it_ends() -> None:
    desk = Desk()
    forget(desk, desk.stored(MAIL, user="ana"))
    for _ in range(PAGES):
        assert desk.reply() is None
        desk.select(next="more")
    assert desk.reply().derived == ()


@pytest.mark.promise("erase.complete")
@pytest.mark.parametrize("how", ["fails", "is late", "ends with a group"])
def test_what_is_gone_is_said_to_be_gone_whatever_else_fails(how: str) -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.GroupChange(name="team", of="users", add=("ana",)))
    unit = desk.stored(MAIL, user="ana")
    made = desk.stored(MAIL, user="ana", meta={"source": unit.id})
    op = forget(desk, unit)
    frame = desk.frame
    desk.select(made, next="more")
    if how == "fails":
        key = desk.one(ins.Retrieve).key
        desk.tell(ev.WorkFailed, key=key, errno=Errno.EIO, message="disk")
    elif how == "is late":
        desk.sleep(120 * SECOND)
    else:
        desk.ask(OPERATOR, m.GroupChange(name="team", of="users", remove=("ana",)))
    reply = desk.reply(frame)
    assert (reply.receipt, reply.derived) == (op.receipt, (made.id,))


def test_a_removal_that_fails_says_why() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, m.Forget(id=unit.id, user="ana"))
    desk.select(unit)
    desk.refuse(desk.one(ins.Commit).op, Errno.EIO)
    assert desk.reply().errno == Errno.EIO
    assert desk.all(ins.Scrub) == []


# -- by query


def test_a_dry_run_names_what_the_store_finds_and_removes_none() -> None:
    desk = Desk()
    own = desk.stored(MAIL, user="ana")
    since, kinds = "2026-01-01T00:00Z", ("note",)
    desk.ask(MAIL, m.ForgetMatching(query="a fact", user="ana", since=since, kinds=kinds))
    asked = desk.one(ins.Retrieve)
    assert isinstance(asked.query, MatchQuery)
    assert (asked.query.text, asked.query.kinds, asked.query.until) == ("a fact", kinds, None)
    assert asked.query.since is not None
    assert (asked.view.reader.user, asked.view.reader.agent) == ("ana", "mail")
    desk.select(own)
    shown = desk.reply()
    assert desk.all(ins.Commit) == []
    assert ([u.id for u in shown.units], shown.count, shown.receipt) == ([own.id], 1, "")
    assert (bool(shown.confirm), shown.more, shown.skipped) == (True, False, 0)
    nothing = matching(desk)
    assert (nothing.count, nothing.confirm) == (0, "")


def test_a_dry_run_looks_at_every_page_and_shows_one_of_its_own() -> None:
    desk = Desk()
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(5)]
    words = set()
    for offset, shown in ((0, units[:2]), (2, units[2:4]), (4, units[4:]), (5, [])):
        desk.ask(MAIL, m.ForgetMatching(query="fact", user="ana", limit=2, offset=offset))
        for page in (units[:3], [], units[3:]):
            assert desk.reply() is None
            desk.select(*page, next="" if units[4] in page else "on")
        reply = desk.reply()
        assert [u.id for u in reply.units] == [unit.id for unit in shown]
        assert (reply.count, reply.more) == (5, False)
        words.add(reply.confirm)
    assert len(words) == 1
    matching(desk, confirm=words.pop(), query="fact", limit=2)
    assert [op.id for op in drops(desk)] == [unit.id for unit in units]


def test_a_dry_run_names_no_more_than_one_demand_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isovist.kernel.state.matching.MOST", 2)
    desk = Desk()
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(3)]
    desk.ask(MAIL, m.ForgetMatching(query="fact", user="ana"))
    desk.select(*units, next="on")
    shown = desk.reply()
    assert (shown.count, shown.more, len(shown.units)) == (2, True, 2)
    exactly = matching(desk, *units[:2])
    assert (exactly.count, exactly.more) == (2, False)


@pytest.mark.promise("erase.complete")
def test_with_its_word_all_and_only_what_was_named_goes() -> None:
    desk = Desk()
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(3)]
    word = matching(desk, *units).confirm
    # Whatever would fit by now: the store is not asked again.
    desk.ask(MAIL, m.ForgetMatching(query="a fact", user="ana", confirm=word))
    assert desk.all(ins.Retrieve) == []
    ops = drops(desk)
    assert [(op.id, op.version) for op in ops] == [(unit.id, 1) for unit in units]
    assert len({op.receipt for op in ops}) == 1
    for op in ops[:-1]:
        desk.commit(op)
        assert desk.reply() is None
    desk.commit(ops[-1])
    gone, record = desk.reply(), desk.one(ins.Audit).record
    assert (gone.count, gone.skipped, gone.receipt, gone.confirm) == (3, 0, ops[0].receipt, "")
    assert {shown.unit for shown in record.units} == {unit.id for unit in units}
    assert desk.all(ins.Scrub) == [ins.Scrub()]


@pytest.mark.parametrize("errno", [Errno.ENOENT, Errno.ESTALE])
def test_what_was_changed_or_is_gone_is_left_alone_and_counted(errno: Errno) -> None:
    desk = Desk()
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(2)]
    matching(desk, confirm=matching(desk, *units).confirm)
    first, second = drops(desk)
    desk.refuse(first, errno)
    desk.commit(second)
    reply = desk.reply()
    assert (reply.count, reply.skipped, reply.receipt) == (1, 1, second.receipt)
    assert [shown.unit for shown in desk.one(ins.Audit).record.units] == [second.id]
    # Where nothing went there is no receipt to wait for.
    unit = desk.stored(MAIL, user="ana", text="fact 3")
    matching(desk, confirm=matching(desk, unit).confirm)
    desk.refuse(desk.one(ins.Commit).op, errno)
    assert (desk.reply().count, desk.reply().skipped, desk.reply().receipt) == (0, 1, "")


def test_what_could_not_be_removed_is_an_error() -> None:
    desk = Desk()
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(2)]
    matching(desk, confirm=matching(desk, *units).confirm)
    first, second = drops(desk)
    desk.refuse(first, Errno.ENOSPC)
    desk.commit(second)
    assert desk.reply().errno == Errno.ENOSPC
    assert "1 of 2" in desk.reply().message
    assert desk.one(ins.Audit).record.errno == Errno.ENOSPC


def test_a_word_serves_once_its_own_demand_on_its_own_channel() -> None:
    desk = Desk()
    unit, bob = desk.stored(MAIL, user="ana"), desk.stored(MAIL, user="bob")
    word = matching(desk, unit).confirm
    others: list[dict[str, Any]] = [
        {"confirm": "w0"}, {"query": "fact"}, {"user": "bob"}, {"channel": OPERATOR},
        {"kinds": ("note",)}, {"since": "2026-01-01T00:00Z"},
    ]  # fmt: skip
    for fields in others:
        failed = matching(desk, bob, **{"confirm": word, **fields})
        assert (failed.errno, failed.field) == (Errno.ESTALE, "confirm"), fields
        assert desk.all(ins.Commit) == []
    assert matching(desk, confirm=word) is None
    desk.commit(desk.one(ins.Commit).op)
    assert desk.reply().count == 1
    assert matching(desk, confirm=word).errno == Errno.ESTALE


def test_a_channel_remembers_its_last_dry_runs() -> None:
    desk = Desk()
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(KEPT + 1)]
    words = [matching(desk, unit).confirm for unit in units]
    assert matching(desk, confirm=words[0]).errno == Errno.ESTALE
    for word in words[1:]:
        assert matching(desk, confirm=word) is None
        desk.commit(desk.one(ins.Commit).op)


def test_removals_count_as_writes_that_wait_for_the_disk() -> None:
    desk = Desk(limits=Limits(calls=2))
    units = [desk.stored(MAIL, user="ana", text=f"fact {n}") for n in range(3)]
    word = matching(desk, units[0]).confirm
    matching(desk, confirm=matching(desk, *units).confirm)
    refused = desk.ask(MAIL, m.ForgetMatching(query="a fact", user="ana", confirm=word))
    assert isinstance(refused, m.Failed)
    assert refused.errno == Errno.EAGAIN


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": "\0"}, "query"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"offset": -1}, "offset"),
        ({"offset": 1001}, "offset"),
        ({"kinds": ("x",)}, "kinds"),
        ({"since": "now"}, "since"),
        ({"confirm": "a/b"}, "confirm"),
        ({"barrier_ms": -1}, "barrier_ms"),
    ],
)
def test_a_bad_demand_is_refused_by_its_field(fields: Any, field: str) -> None:
    failed = Desk().ask(MAIL, m.ForgetMatching(**{"query": "x", "user": "ana", **fields}))
    assert failed.field == field


# -- a user


def purge(desk: Desk, *units: Put, name: str = "ana") -> Any:
    """Forget a user who owns ``units``; the reply."""
    owned = tuple(sorted((unit.id, 1, unit.partition.scope) for unit in units))
    desk.ask(OPERATOR, m.ForgetUser(name=name))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=owned)
    shown = desk.reply()
    assert (shown.count, shown.units, shown.receipt) == (len(units), (), "")
    desk.ask(OPERATOR, m.ForgetUser(name=name, confirm=shown.confirm))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=owned)
    asked = desk.one(ins.Purge)
    assert asked.user == name
    gone = tuple(
        Outcome(op=Drop(partition=u.partition, seq=0, id=u.id, receipt=asked.receipt), id=u.id)
        for u in units
    )
    desk.tell(ev.Purged, key=asked.key, user=name, outcomes=gone)
    return desk.reply()


@pytest.mark.promise("erase.complete")
def test_the_operator_forgets_a_user() -> None:
    desk = Desk()
    units = [desk.stored(MAIL, user="ana"), desk.stored(PLAN, user="ana", scope="user")]
    gone = purge(desk, *units)
    assert (gone.count, gone.confirm) == (2, "")
    assert gone.receipt.startswith("r")
    assert desk.all(ins.Scrub) == [ins.Scrub()]


def test_before_a_user_is_forgotten_its_units_are_counted_by_scope() -> None:
    desk = Desk()
    for units, scopes in (
        ((("u1", 1, "user"), ("u2", 1, "pair"), ("u3", 4, "user")), {"pair": 1, "user": 2}),
        ((), {}),
    ):
        desk.ask(OPERATOR, m.ForgetUser(name="ana"))
        desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=units)
        shown = desk.reply()
        assert (shown.count, shown.scopes, bool(shown.confirm)) == (len(units), scopes, True)


@pytest.mark.promise("identity.bound")
def test_a_forgotten_user_is_served_by_nobody_any_more() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.GroupChange(name="team", of="users", add=("ana", "bob")))
    desk.ask(OPERATOR, m.Spawn(program="helper.py", user="ana"))
    desk.attach(9, "helper", pid=desk.one(ins.StartProcess).pid)
    desk.stored(9, text="bound")
    desk.stored(MAIL, user="ana")
    purge(desk)
    for channel in (MAIL, 9):
        named = desk.ask(channel, m.Remember(text="x", user="ana"))
        unnamed = desk.ask(channel, m.Remember(text="x"))
        assert named.errno == unnamed.errno == Errno.EPERM
    assert desk.remember(MAIL, user="bob").user == "bob"
    groups = desk.ask(OPERATOR, m.Groups()).groups
    assert [group.members for group in groups] == [("bob",)]


def test_a_user_whose_units_have_changed_is_not_forgotten() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.ForgetUser(name="ana"))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=(("u1", 1, "pair"),))
    word = desk.reply().confirm
    for name, units in (("ana", (("u1", 2, "pair"),)), ("ana", ()), ("bob", (("u1", 1, "pair"),))):
        desk.ask(OPERATOR, m.ForgetUser(name=name, confirm=word))
        desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=units)
        assert desk.reply().errno == Errno.ESTALE
        assert desk.all(ins.Purge) == []


@pytest.mark.promise("erase.complete")
def test_a_purge_outlives_its_call_which_names_its_receipt() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    owned = ((unit.id, 1, "pair"),)
    desk.ask(OPERATOR, m.ForgetUser(name="ana"))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=owned)
    desk.ask(OPERATOR, m.ForgetUser(name="ana", confirm=desk.reply().confirm, deadline_ms=1000))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=owned)
    asked = desk.one(ins.Purge)
    desk.sleep(2 * SECOND)
    end = desk.reply()
    assert end.errno == Errno.ETIMEDOUT
    assert asked.receipt in end.message
    assert any(asked.receipt in line for line in end.story)
    gone = Outcome(op=Drop(partition=unit.partition, seq=0, id=unit.id), id=unit.id)
    desk.tell(ev.Purged, key=asked.key, user="ana", outcomes=(gone,))
    assert desk.all(ins.Scrub) == [ins.Scrub()]
    desk.ask(OPERATOR, m.ReceiptOf(receipt=asked.receipt))
    assert desk.one(ins.FindReceipt).receipt == asked.receipt


@pytest.mark.promise("erase.complete")
def test_a_cancelled_forget_names_its_receipt() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, m.Forget(id=unit.id, user="ana"))
    desk.select(unit)
    receipt = desk.one(ins.Commit).op.receipt
    frame = desk.frame
    desk.ask(MAIL, m.Cancel(call=frame))
    end = desk.reply(frame)
    assert end.errno == Errno.ECANCELED
    assert any(receipt in line for line in end.story)


@pytest.mark.promise("erase.complete")
def test_a_forget_that_was_cancelled_is_scrubbed_all_the_same() -> None:
    """Its unit goes, so a prompt that holds it keeps the receipt back."""
    desk = Desk()
    unit = desk.stored(MAIL, user="ana", scope="user")
    desk.ask(PLAN, chat(user="ana", wait="none"))
    desk.select(unit)
    desk.render()
    chatting = desk.frame
    desk.ask(MAIL, m.Forget(id=unit.id, user="ana"))
    desk.select(unit)
    op = desk.one(ins.Commit).op
    desk.ask(MAIL, m.Cancel(call=desk.frame))
    desk.commit(op)
    assert desk.all(ins.Scrub) == [ins.Scrub()]
    desk.tell(ev.Scrubbing)
    assert desk.all(ins.Flush) == []
    desk.ask(PLAN, m.Cancel(call=chatting))
    assert desk.all(ins.Flush) == [ins.Flush()]


def test_only_the_operator_forgets_a_user() -> None:
    desk = Desk()
    assert desk.ask(MAIL, m.ForgetUser(name="ana")).errno == Errno.EPERM
    assert desk.all(ins.Owned) == []
    assert desk.ask(OPERATOR, m.ForgetUser(name="a/b")).field == "name"
    # An agent is a user of its own.
    assert desk.ask(OPERATOR, m.ForgetUser(name="agent/mail")) is None


def test_a_purge_leaves_no_vector_to_be_missed() -> None:
    """The vectors of a purged unit come to nothing, which is no loss to anybody."""
    desk = Desk()
    unit = desk.remember(MAIL, user="ana", scope="user")
    desk.commit(unit)
    purge(desk, unit)
    desk.embed(unit, failed=True)
    desk.ask(OPERATOR, m.Search(query="x", user="ana"))
    desk.select()
    assert (desk.reply().barrier.state, desk.reply().barrier.lagging) == ("ready", ())


def test_a_purge_that_nobody_waits_for_any_more_still_counts() -> None:
    desk = Desk()
    desk.tell(ev.Purged, key=999, user="ana", outcomes=())
    assert desk.ask(MAIL, m.Remember(text="x", user="ana")).errno == Errno.EPERM
    assert desk.all(ins.Reply)


def test_a_purge_that_fails_says_why() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.ForgetUser(name="ana"))
    key = desk.one(ins.Owned).key
    desk.tell(ev.WorkFailed, key=key, errno=Errno.EIO, message="disk")
    assert desk.reply().errno == Errno.EIO
    assert desk.tell(ev.Owned, key=key, units=()) == []


# -- receipts


def receipt(issued_at: int = 0) -> Receipt:
    return Receipt(id="r1", asked_at=5, issued_at=issued_at, units=("u1",))


@pytest.mark.promise("erase.complete")
def test_a_receipt_says_whether_it_is_issued() -> None:
    desk = Desk()
    for issued_at in (0, 7):
        desk.ask(OPERATOR, m.ReceiptOf(receipt="r1"))
        asked = desk.one(ins.FindReceipt)
        assert asked.receipt == "r1"
        desk.tell(ev.ReceiptFound, key=asked.key, receipt=receipt(issued_at))
        reply = desk.reply()
        assert (reply.asked_at, reply.issued_at, reply.units) == (5, issued_at, ("u1",))


@pytest.mark.promise("erase.complete")
def test_who_waits_for_a_receipt_has_the_store_scrubbed() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.ReceiptOf(receipt="r1", wait=True))
    frame, key = desk.frame, desk.one(ins.FindReceipt).key
    desk.tell(ev.ReceiptFound, key=key, receipt=receipt())
    assert desk.out == [ins.Scrub(soon=True)]
    desk.tell(ev.ReceiptsIssued)
    # Asked for after that scrub began: then another one.
    desk.tell(ev.ReceiptFound, key=desk.one(ins.FindReceipt).key, receipt=receipt())
    assert desk.out == [ins.Scrub(soon=True)]
    desk.tell(ev.ReceiptsIssued)
    desk.tell(ev.ReceiptFound, key=desk.one(ins.FindReceipt).key, receipt=receipt(9))
    assert desk.reply(frame).issued_at == 9
    assert desk.tell(ev.ReceiptsIssued) == []


def test_an_unknown_receipt_is_an_error() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.ReceiptOf(receipt="r0", wait=True))
    desk.tell(ev.ReceiptFound, key=desk.one(ins.FindReceipt).key, receipt=None)
    assert (desk.reply().errno, desk.reply().field) == (Errno.ENOENT, "receipt")
    assert desk.ask(OPERATOR, m.ReceiptOf(receipt="")).field == "receipt"


@pytest.mark.promise("view.noninterference")
def test_a_receipt_is_read_for_the_user_whom_it_is_about_and_by_the_operator() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, m.Forget(id=unit.id, user="ana"))
    desk.select(unit)
    name = desk.one(ins.Commit).op.receipt

    def reads(channel: int, receipt: str, user: str | None = None) -> tuple[int, str]:
        failed = desk.ask(channel, m.ReceiptOf(receipt=receipt, user=user, wait=True))
        if failed is None:
            assert desk.one(ins.FindReceipt).receipt == receipt
            return 0, ""
        assert not desk.all(ins.FindReceipt)
        return failed.errno, failed.message

    # Any agent that acts for her; the operator.
    for channel, user in ((MAIL, "ana"), (MAIL, None), (PLAN, "ana"), (OPERATOR, None)):
        assert reads(channel, name, user) == (0, ""), (channel, user)
    desk.attach(7, "rogue")
    none = reads(7, "r0")
    assert none == (Errno.ENOENT, "no such receipt")
    assert reads(7, name) == none
    assert reads(MAIL, name, "bob") == none
    assert reads(MAIL, name[:-1] + ("0" if name[-1] != "0" else "1"), "ana") == none
    assert reads(7, name, "ana")[0] == Errno.EPERM


# -- what models were given


def given(desk: Desk, *units: Put) -> ins.Decode:
    """A chat of ana's that is decoded, with ``units`` in its prompt."""
    desk.ask(MAIL, chat(user="ana", wait="none"))
    starts = desk.all(ins.StartDriver)
    desk.select(*units)
    desk.render(shown=tuple((candidate(unit), 1) for unit in units), injected_tokens=len(units))
    for start in starts:
        desk.up(start.model, start.gen)
    return desk.one(ins.Decode)


@pytest.mark.promise("erase.complete")
def test_a_scrub_waits_for_the_prompts_that_hold_what_is_forgotten_and_for_no_other() -> None:
    desk = Desk(models=(ModelConfig("small", "x", 2048, 4),))
    unit, other = desk.stored(MAIL, user="ana"), desk.stored(MAIL, user="ana")
    holds, holds_not = given(desk, unit), given(desk, other)
    forget(desk, unit)
    desk.tell(ev.Scrubbing)
    assert desk.all(ins.Flush) == []
    later = given(desk, other)
    desk.done(holds)
    assert desk.all(ins.Flush) == [ins.Flush()]
    for still in (holds_not, later):
        desk.done(still)
        assert desk.all(ins.Flush) == []
    desk.tell(ev.Scrubbing)  # nothing is stale any more
    assert desk.out == [ins.Flush()]


@pytest.mark.promise("erase.complete")
def test_a_scrub_ends_the_prompts_that_keep_it_waiting() -> None:
    desk = Desk(limits=Limits(deadline=4 * PATIENCE))
    unit = desk.stored(MAIL, user="ana")
    holds = given(desk, unit)
    frame = desk.frame
    forget(desk, unit)
    desk.tell(ev.Scrubbing)
    desk.sleep(PATIENCE - SECOND)
    assert desk.all(ins.Flush) == []
    desk.sleep(SECOND)
    assert desk.reply(frame).errno == Errno.ESTALE
    abort = ins.Abort(holds.model, holds.gen, holds.key)
    # The driver hears of the end first, so nothing of it is there when it is told to flush.
    assert [i for i in desk.out if isinstance(i, ins.Abort | ins.Flush)] == [abort, ins.Flush()]


@pytest.mark.promise("erase.complete")
def test_each_scrub_has_a_patience_of_its_own() -> None:
    desk = Desk(limits=Limits(deadline=4 * PATIENCE))
    one, two = desk.stored(MAIL, user="ana"), desk.stored(MAIL, user="ana")
    first = given(desk, one)
    forget(desk, one)
    desk.tell(ev.Scrubbing)
    desk.done(first)
    second = given(desk, two)
    forget(desk, two)
    desk.sleep(PATIENCE // 2)
    desk.tell(ev.Scrubbing)
    desk.sleep(PATIENCE // 2)
    assert desk.all(ins.Abort) == []
    desk.done(second)
    assert desk.all(ins.Flush) == [ins.Flush()]
