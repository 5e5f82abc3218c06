"""Chats and drivers in the pure kernel: fields, budgets, queues, deaths, keeping, records."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, MS, OPERATOR, PLAN, SECOND, Desk, candidate, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import NEXT_ROUND
from isovist.syscalls.records import Message

BAD: list[tuple[str, Errno, dict[str, Any]]] = [
    ("messages", Errno.EINVAL, {"messages": ()}),
    ("messages", Errno.EINVAL, {"messages": (Message("user", None), Message("system", ""))}),
    ("model", Errno.ENOENT, {"model": "nobody"}),
    ("max_tokens", Errno.EINVAL, {"max_tokens": 0}),
    ("max_tokens", Errno.EINVAL, {"max_tokens": 2049}),
    ("max_tokens", Errno.EINVAL, {"max_tokens": 1025, "model": "wide"}),
    ("temperature", Errno.EINVAL, {"temperature": -0.1}),
    ("temperature", Errno.EINVAL, {"temperature": 2.1}),
    ("temperature", Errno.EINVAL, {"temperature": float("nan")}),
    ("seed", Errno.EINVAL, {"seed": -1}),
    ("seed", Errno.EINVAL, {"seed": 1 << 32}),
    ("stop", Errno.EINVAL, {"stop": ("",)}),
    ("stop", Errno.EINVAL, {"stop": ("x" * 129,)}),
    ("stop", Errno.EINVAL, {"stop": ("x",) * 9}),
    ("budget", Errno.EINVAL, {"budget": -1}),
    ("budget", Errno.EINVAL, {"budget": 2049}),
    ("units", Errno.EINVAL, {"units": -1}),
    ("units", Errno.EINVAL, {"units": 65}),
    ("session", Errno.EINVAL, {"session": "a/b"}),
    ("kinds", Errno.EINVAL, {"kinds": ("secret",)}),
    ("barrier_ms", Errno.EINVAL, {"barrier_ms": -1}),
    ("barrier_ms", Errno.EINVAL, {"barrier_ms": 60_001}),
    ("user", Errno.EPERM, {"user": "zoe"}),
    ("deadline_ms", Errno.EINVAL, {"deadline_ms": 0}),
]


@pytest.mark.parametrize(("field", "errno", "fields"), BAD)
def test_a_bad_field_is_named(field: str, errno: Errno, fields: dict[str, Any]) -> None:
    desk = Desk()
    failed = desk.ask(MAIL, chat(**{"user": "ana", **fields}))
    assert (failed.field, failed.errno) == (field, errno)
    assert failed.story
    assert not desk.all(ins.StartDriver)
    assert not desk.state.calls


def test_a_kernel_without_models_says_so() -> None:
    failed = Desk(models=()).ask(MAIL, chat(user="ana"))
    assert (failed.errno, failed.field) == (Errno.ENOENT, "model")


@pytest.mark.parametrize(
    ("fields", "budget"),
    [({}, 307), ({"model": "wide"}, 153), ({"budget": 5}, 5), ({"budget": 0}, 0),
     ({"memory": False, "budget": 9}, 0), ({"units": 0}, 0)],
)  # fmt: skip
def test_the_budget_is_a_share_of_the_context_or_as_asked(fields: Any, budget: int) -> None:
    desk = Desk()
    desk.ask(MAIL, chat(user="ana", **fields))
    if budget:
        desk.select()
    assert desk.one(ins.Render).budget == budget


def test_an_answer_tells_what_was_shown_and_for_whom() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, chat("deploy?", user="ana"))
    query: Any = desk.one(ins.Retrieve).query
    assert query.text == "deploy?"
    desk.select(unit)
    assert desk.one(ins.Render).selection.units()[0].id == unit.id
    desk.render(shown=((candidate(unit), 4),), injected_tokens=4)
    desk.up()
    decode = desk.one(ins.Decode)
    desk.token(decode, "on ")
    desk.token(decode, "Tuesday")
    desk.done(decode, output_tokens=2)
    reply, record = desk.reply(), desk.one(ins.Audit).record
    assert (reply.text, reply.user, reply.rule, reply.model) == (
        "on Tuesday", "ana", "request", "small",
    )  # fmt: skip
    assert reply.injected == record.units
    (shown,) = record.units
    assert (shown.unit, shown.owner, shown.scope, shown.tokens) == (unit.id, "mail", "pair", 4)
    assert shown.hash != candidate(unit).hash, "a hash of the text alone could be guessed"
    assert (record.injected_tokens, record.output_tokens, record.errno) == (4, 2, 0)
    assert "deploy" not in repr(record)


def test_parts_come_before_the_whole() -> None:
    desk = Desk()
    decode = desk.decoding(MAIL, user="ana", stream=True)
    desk.token(decode, "a")
    assert [r.message for r in desk.all(ins.Reply)] == [m.Part(text="a")]
    assert desk.token(decode, "") == []
    desk.token(decode, "b")
    desk.done(decode)
    assert desk.reply().text == "ab"


@pytest.mark.promise("private.default")
def test_a_kept_exchange_is_private_to_its_pair() -> None:
    desk = Desk()
    decode = desk.decoding(PLAN, user="ana", keep=True, session="s1")
    desk.token(decode, "Tuesday")
    desk.done(decode)
    op: Any = desk.one(ins.Commit).op
    assert (op.partition.scope, op.user, op.agent) == ("pair", "ana", "plan")
    assert (op.kind, op.stream, op.session) == ("conversation", "protected", "s1")
    assert op.round == NEXT_ROUND
    assert op.text == "User: when?\nAssistant: Tuesday"
    assert desk.reply() is None
    desk.commit(op, secrets={"aws-key": 1})
    assert desk.reply().kept == op.id
    assert desk.reply().secrets == {"aws-key": 1}


def test_a_store_that_fails_takes_no_answer_away() -> None:
    desk = Desk()
    decode = desk.decoding(PLAN, user="ana", keep=True)
    desk.token(decode, "Tues\ud800day")
    desk.done(decode)
    desk.refuse(desk.one(ins.Commit).op)
    assert desk.reply().kept == ""
    assert desk.reply().text == "Tues\ud800day"


def test_nothing_said_is_nothing_kept() -> None:
    desk = Desk()
    desk.done(desk.decoding(PLAN, user="ana", keep=True))
    assert not desk.all(ins.Commit)
    assert desk.reply().text == ""


# -- the queue and the slots


def test_no_more_run_at_once_than_there_are_slots() -> None:
    desk = Desk()
    first = desk.decoding(MAIL, user="ana", model="wide")
    second = desk.decoding(MAIL, user="bob", model="wide")
    desk.ask(PLAN, chat(user="ana", model="wide", memory=False))
    desk.render()
    assert not desk.all(ins.Decode)
    # A cancelled request keeps its slot until the driver says that it is free.
    desk.ask(MAIL, m.Cancel(call=desk.frame - 2))
    assert desk.one(ins.Abort).key == first.key
    assert not desk.all(ins.Decode)
    desk.done(first, finish="cancelled")
    assert desk.one(ins.Decode).key > second.key


def test_a_driver_is_started_once_and_models_say_how_it_is() -> None:
    desk = Desk()

    def states() -> list[str]:
        return [model.state for model in desk.ask(MAIL, m.Models()).models]

    assert states() == ["idle", "idle"]
    desk.ask(MAIL, chat(user="ana", memory=False))
    assert desk.one(ins.StartDriver).gen == 1
    desk.ask(MAIL, chat(user="ana", memory=False))
    assert not desk.all(ins.StartDriver)
    assert states() == ["loading", "idle"]
    desk.up()
    assert states() == ["up", "idle"]
    desk.die(fatal=True)
    assert states() == ["failed", "idle"]
    assert desk.ask(MAIL, m.Models()).models[0].error == "killed"


# -- deaths


@pytest.mark.promise("kernel.survives")
def test_a_chat_is_tried_again_on_the_next_life() -> None:
    desk = Desk()
    decode = desk.decoding(MAIL, user="ana")
    desk.token(decode, "half")
    desk.die()
    assert desk.reply() is None
    # The dead say nothing more.
    assert desk.token(decode, "late") == []
    assert desk.done(decode) == []
    assert desk.die() == []
    desk.sleep(101 * MS)
    assert desk.one(ins.StartDriver).gen == 2
    assert desk.up(gen=1) == []
    desk.up(gen=2)
    again = desk.one(ins.Decode)
    assert (again.key, again.gen) == (decode.key, 2)
    assert desk.done(decode) == []
    desk.token(again, "whole")
    desk.done(again)
    assert desk.reply().text == "whole"


@pytest.mark.promise("kernel.survives")
def test_a_chat_sees_two_lives_at_most() -> None:
    desk = Desk()
    desk.decoding(MAIL, user="ana")
    desk.die()
    desk.sleep(101 * MS)
    desk.up(gen=2)
    desk.die(gen=2)
    failed = desk.reply()
    assert failed.errno == Errno.EIO
    assert sum("decode" in line for line in failed.story) == 2


@pytest.mark.promise("kernel.survives")
def test_a_text_that_has_begun_to_leave_fails_with_its_driver() -> None:
    desk = Desk()
    decode = desk.decoding(MAIL, user="ana", stream=True)
    desk.token(decode, "half")
    desk.die()
    assert desk.reply().errno == Errno.EIO
    assert "died" in desk.reply().message


@pytest.mark.promise("kernel.survives")
def test_a_driver_that_cannot_run_fails_who_waits_and_starts_anew_for_the_next() -> None:
    desk = Desk()
    desk.ask(MAIL, chat(user="ana", memory=False))
    desk.render()
    pauses = []
    for gen in (1, 2, 3):
        died = desk.now + 1
        desk.die(gen=gen)
        assert desk.reply() is None
        while not desk.all(ins.StartDriver):
            desk.sleep(10 * MS)
        pauses.append(round((desk.now - died) / (100 * MS)))
    assert pauses == [1, 2, 4]
    desk.die(gen=4)
    assert desk.reply().errno == Errno.EIO
    desk.ask(MAIL, chat(user="ana", memory=False))
    assert desk.one(ins.StartDriver).gen == 5


def test_a_request_may_fail_and_leave_its_driver_alive() -> None:
    desk = Desk()
    desk.done(desk.decoding(MAIL, user="ana"), errno=Errno.EMSGSIZE, message="too long")
    assert desk.reply().errno == Errno.EMSGSIZE
    assert desk.decoding(MAIL, user="ana").gen == 1


def test_a_driver_that_ignores_an_abort_is_stopped() -> None:
    desk = Desk()
    desk.decoding(MAIL, user="ana", deadline_ms=1000)
    desk.sleep(SECOND)
    assert desk.one(ins.Abort)
    desk.sleep(11 * SECOND)
    assert desk.one(ins.StopDriver).gen == 1


def test_a_driver_that_never_comes_up_is_stopped() -> None:
    desk = Desk()
    desk.ask(MAIL, chat(user="ana", memory=False))
    desk.sleep(299 * SECOND)
    assert not desk.all(ins.StopDriver)
    desk.sleep(2 * SECOND)
    assert desk.one(ins.StopDriver).gen == 1
    # One that did come up is left alone.
    desk = Desk()
    desk.done(desk.decoding(MAIL, user="ana"))
    desk.sleep(301 * SECOND)
    assert not desk.all(ins.StopDriver)


def test_a_driver_may_have_less_context_than_configured() -> None:
    desk = Desk()
    desk.ask(MAIL, chat(user="ana", memory=False))
    desk.tell(ev.DriverUp, model="small", gen=1, context=512)
    assert desk.ask(MAIL, chat(user="ana", max_tokens=513)).field == "max_tokens"


# -- why


def _asked(desk: Desk, channel: int, call: str) -> int:
    assert desk.ask(channel, m.Why(call=call)) is None
    return desk.one(ins.Lookup).key


def test_why_is_for_whose_call_it_was() -> None:
    desk = Desk()
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    desk.select()
    record = desk.one(ins.Audit).record
    desk.tell(ev.LookedUp, key=_asked(desk, MAIL, record.call), record=record)
    assert desk.reply() == record
    desk.tell(ev.LookedUp, key=_asked(desk, OPERATOR, record.call), record=record)
    assert desk.reply() == record
    desk.tell(ev.LookedUp, key=_asked(desk, PLAN, record.call), record=record)
    foreign = desk.reply()
    desk.tell(ev.LookedUp, key=_asked(desk, PLAN, record.call), record=None)
    assert foreign == desk.reply()
    assert foreign.errno == Errno.ENOENT
    # The right to serve the user is part of it, as it stands now.
    desk.ask(OPERATOR, m.Grant(agent="mail", users=("ana",), revoke=True))
    desk.tell(ev.LookedUp, key=_asked(desk, MAIL, record.call), record=record)
    assert desk.reply().errno == Errno.ENOENT
