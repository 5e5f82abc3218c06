"""The queue before a model: policies, pauses, quotas, and the operator's hand on them."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, MS, OPERATOR, PLAN, SECOND, Desk, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.state.scheduling import Scheduling
from isovist.scheduler.quota import Limit
from isovist.syscalls import messages as m
from isovist.syscalls.codec import decode_reply, encode, failed
from isovist.syscalls.errors import Errno, WorldError
from isovist.syscalls.session import Exchange

ONE = (ModelConfig("small", "scripted", 2048),)
PAUSING = (ModelConfig("small", "scripted", 2048, slots=1, pausable=2),)


def desk(models: tuple[ModelConfig, ...] = ONE, **scheduling: Any) -> Desk:
    return Desk(models=models, scheduling=Scheduling(**scheduling))


def waiting(at: Desk, channel: int, frame: int, **fields: Any) -> int:
    """A rendered chat; returns its key."""
    at.ask(channel, chat(memory=False, **fields), frame=frame)
    key = at.one(ins.Render).key
    at.render()
    return key


def served(at: Desk, decode: ins.Decode) -> ins.Decode | None:
    """Let a decode end; returns the one that follows."""
    at.token(decode, "x")
    at.done(decode, output_tokens=1)
    nexts = at.all(ins.Decode)
    return nexts[0] if nexts else None


def order(at: Desk, first: ins.Decode) -> list[int]:
    keys, decode = [first.key], served(at, first)
    while decode is not None:
        keys.append(decode.key)
        decode = served(at, decode)
    return keys


def filled(at: Desk) -> tuple[ins.Decode, list[int], list[int]]:
    """One decodes; then four of MAIL's wait, then four of PLAN's."""
    first = at.decoding(MAIL)
    mail = [waiting(at, MAIL, 10 + n) for n in range(4)]
    plan = [waiting(at, PLAN, 10 + n) for n in range(4)]
    return first, mail, plan


# -- policies


@pytest.mark.promise("fair.progress")
def test_agents_take_turns_where_it_is_fair_and_wait_in_line_where_it_is_not() -> None:
    at = desk(policy="fair")
    first, mail, plan = filled(at)
    fair = order(at, first)
    assert [key in mail for key in fair[1:]] != [True] * 4 + [False] * 4
    for n in range(2, 9, 2):
        assert (
            abs(sum(key in mail for key in fair[1:n]) - sum(key in plan for key in fair[1:n])) < 2
        )
    at = desk(policy="fifo")
    first, mail, plan = filled(at)
    assert order(at, first)[1:] == mail + plan


def test_a_weight_of_three_gets_three_calls_for_one() -> None:
    at = desk(weights={"agent": {"plan": 3.0}})
    first, _, plan = filled(at)
    keys = order(at, first)[1:5]
    assert sum(key in plan for key in keys) == 3


def test_shares_may_be_those_of_users() -> None:
    """Two agents for one user share what one for another user gets."""
    at = desk(clients="user")
    first = at.decoding(PLAN, user="ana")
    ana = [waiting(at, PLAN, 20 + n, user="ana") for n in range(2)]
    ana += [waiting(at, MAIL, 20 + n, user="ana") for n in range(2)]
    bob = [waiting(at, MAIL, 30 + n, user="bob") for n in range(4)]
    keys = order(at, first)[1:5]
    assert sum(key in bob for key in keys) >= sum(key in ana for key in keys)


def test_a_priority_goes_first() -> None:
    at = desk(policy="priority", priorities={"agent": {"plan": 9}})
    first, mail, plan = filled(at)
    assert order(at, first)[1:] == plan + mail


def test_the_deadline_of_a_call_is_its_hint() -> None:
    at = desk(policy="deadline")
    first = at.decoding(MAIL)
    calm = waiting(at, MAIL, 10)
    urgent = waiting(at, MAIL, 11, deadline_ms=5000)
    assert order(at, first)[1:] == [urgent, calm]


# -- the operator's hand


@pytest.mark.parametrize("new", ["fifo", "round_robin", "priority", "fair", "deadline"])
def test_a_policy_changes_while_calls_wait_and_run(new: str) -> None:
    at = desk()
    first, mail, plan = filled(at)
    (queue,) = at.ask(OPERATOR, m.Schedule(policy=new)).queues
    assert (queue.policy, queue.waiting, queue.running) == (new, 8, 1)
    assert {c.name: (c.waiting, c.running) for c in queue.clients} == {
        "mail": (4, 1),
        "plan": (4, 0),
    }
    assert sorted(order(at, first)) == sorted([first.key, *mail, *plan])
    (queue,) = at.ask(OPERATOR, m.Schedule()).queues
    assert (queue.policy, queue.waiting, queue.running) == (new, 0, 0)
    assert queue.output_tokens == 9


def test_one_model_alone_may_change() -> None:
    at = Desk()
    (queue,) = at.ask(OPERATOR, m.Schedule(model="wide", policy="fifo")).queues
    assert (queue.model, queue.policy, queue.slots) == ("wide", "fifo", 2)
    policies = {q.model: q.policy for q in at.ask(OPERATOR, m.Schedule()).queues}
    assert policies == {"small": "fair", "wide": "fifo"}


def test_who_may_not_and_what_there_is_not() -> None:
    at = Desk()
    assert at.ask(MAIL, m.Schedule()).errno == Errno.EPERM
    refusal = at.ask(OPERATOR, m.Schedule(policy="lottery"))
    assert (refusal.errno, refusal.field) == (Errno.EINVAL, "policy")
    assert at.ask(OPERATOR, m.Schedule(model="huge", policy="fifo")).errno == Errno.ENOENT
    assert {q.policy for q in at.ask(OPERATOR, m.Schedule()).queues} == {"fair"}


# -- pauses


def paused(at: Desk, **fields: Any) -> tuple[ins.Decode, ins.Decode]:
    """MAIL's call, which was paused for PLAN's, and that one."""
    long = at.decoding(MAIL, max_tokens=2000, **fields)
    at.token(long, "one ")
    at.ask(PLAN, chat(memory=False), frame=5)
    at.render()
    assert at.one(ins.Pause).key == long.key
    return long, at.one(ins.Decode)


@pytest.mark.promise("fair.progress")
def test_a_short_question_pauses_a_long_text_which_then_goes_on() -> None:
    at = desk(PAUSING)
    long, short = paused(at)
    (queue,) = at.ask(OPERATOR, m.Schedule()).queues
    assert (queue.paused, queue.waiting, queue.running) == (1, 1, 1)
    at.token(long, "two ")  # was on its way
    at.token(short, "yes")
    at.done(short, output_tokens=1)
    assert at.reply(5).text == "yes"
    assert at.one(ins.Resume).key == long.key
    assert at.all(ins.Decode) == []
    at.token(long, "three")
    at.done(long, output_tokens=3)
    assert at.reply(long_frame(at)).text == "one two three"


def long_frame(at: Desk) -> int:
    """The frame of the only reply in ``out``."""
    return at.one(ins.Reply).call


def test_where_nothing_can_be_paused_nothing_is() -> None:
    at = desk(ONE)
    long = at.decoding(MAIL)
    at.token(long, "one ")
    waiting(at, PLAN, 5)
    for _ in range(200):
        at.token(long, "w ")
        assert at.all(ins.Pause) == []


def test_no_more_are_paused_than_the_driver_keeps() -> None:
    """Only these hold memory; all others wait before their first token."""
    at = desk((ModelConfig("small", "scripted", 2048, pausable=1),))
    _, short = paused(at)
    at.token(short, "a ")
    at.attach(9, "third")
    waiting(at, 9, 1)
    for _ in range(100):
        at.token(short, "a ")
        kept = at.state.drivers.schedule("", "")[0].paused
        assert kept <= 1


def test_a_paused_call_that_had_ended_already_is_answered() -> None:
    at = desk(PAUSING)
    long, short = paused(at)
    at.done(long, output_tokens=1)
    assert at.reply(long_frame(at)).text == "one "
    at.token(short, "yes")
    at.done(short, output_tokens=1)
    assert at.reply(5).text == "yes"
    assert at.all(ins.Resume) == []


def test_a_paused_call_that_is_cancelled_is_aborted() -> None:
    at = desk(PAUSING)
    long, short = paused(at)
    frame = next(iter(at.state.channels[MAIL].calls))
    at.ask(MAIL, m.Cancel(call=frame))
    assert at.one(ins.Abort).key == long.key
    assert at.state.drivers.schedule("", "")[0].paused == 1  # until the driver says so
    at.done(long, finish="cancelled")
    assert at.state.drivers.schedule("", "")[0].paused == 0
    at.done(short)
    assert at.reply(5).text == ""


def test_a_driver_that_does_not_abort_a_paused_call_is_stopped() -> None:
    at = desk(PAUSING)
    paused(at)
    at.ask(MAIL, m.Cancel(call=next(iter(at.state.channels[MAIL].calls))))
    at.sleep(11 * SECOND)
    at.one(ins.StopDriver)


@pytest.mark.parametrize("stream", [True, False])
def test_a_driver_dies_with_a_paused_call(stream: bool) -> None:
    """What has begun to leave fails, the rest is tried again from its start."""
    at = desk(PAUSING)
    long, short = paused(at, stream=stream)
    at.die()
    errors = [r.message.errno for r in at.all(ins.Reply) if isinstance(r.message, m.Failed)]
    assert errors == ([Errno.EIO] if stream else [])
    at.sleep(SECOND)
    at.up(gen=2)
    again = at.one(ins.Decode)
    at.done(again)
    keys = [again.key, *(decode.key for decode in at.all(ins.Decode))]
    assert sorted(keys) == sorted([short.key] if stream else [long.key, short.key])


# -- quotas


def limits(**limit: int) -> dict[str, dict[str, Limit]]:
    return {"agent": {"mail": Limit(**limit)}}


@pytest.mark.promise("fair.progress")
def test_the_time_to_try_again_is_exact() -> None:
    at = desk(quotas=limits(tokens=600))
    at.ask(MAIL, chat(memory=False, max_tokens=600))
    refusal = at.ask(MAIL, chat(memory=False, max_tokens=60))
    assert refusal.errno == Errno.EAGAIN
    assert "600 tokens a minute" in refusal.message
    wait = refusal.retry_at - at.state.calendar()
    # The call before arrived one event earlier, and 60 tokens come in 6 s.
    assert wait == 6 * SECOND - 1
    at.now = refusal.retry_at - 1 - at.state.wall - 1
    assert at.ask(MAIL, chat(memory=False, max_tokens=60)).errno == Errno.EAGAIN
    assert at.ask(MAIL, chat(memory=False, max_tokens=60)) is None
    assert at.now + at.state.wall == refusal.retry_at


def test_too_many_at_once_may_try_again_when_one_has_ended() -> None:
    at = desk(quotas=limits(calls=2))
    first = at.decoding(MAIL)
    waiting(at, MAIL, 10)
    refusal = at.ask(MAIL, chat(memory=False))
    assert (refusal.errno, refusal.retry_at) == (Errno.EAGAIN, 0)
    assert at.ask(PLAN, chat(memory=False)) is None  # nobody else is touched
    at.done(first)
    assert at.ask(MAIL, chat(memory=False)) is None


def test_the_queue_has_a_limit_of_its_own() -> None:
    at = desk(quotas={"model": {"small": Limit(queue=2)}})
    first = at.decoding(MAIL)
    waiting(at, MAIL, 10)
    waiting(at, PLAN, 11)
    assert at.ask(PLAN, chat(memory=False)).errno == Errno.EAGAIN
    at.done(first)
    assert at.ask(PLAN, chat(memory=False)) is None


@pytest.mark.parametrize("end", ["cancel", "deadline", "detach", "death", "refused"])
def test_however_a_call_ends_its_place_is_free(end: str) -> None:
    at = desk(quotas=limits(calls=1))
    if end == "refused":
        at.ask(MAIL, chat(memory=False))
        at.tell(ev.WorkFailed, key=at.one(ins.Render).key, errno=5, message="no")
    else:
        at.ask(MAIL, chat(memory=False, deadline_ms=1000), frame=7)
        at.render()
    if end == "cancel":
        at.ask(MAIL, m.Cancel(call=7))
    elif end == "deadline":
        at.sleep(1000 * MS)
    elif end == "detach":
        at.tell(ev.Detached, channel=MAIL, why="gone")
        at.attach(MAIL, "mail")
    elif end == "death":
        at.die(fatal=True)
    assert at.ask(MAIL, chat(memory=False)) is None


def test_unused_tokens_come_back_and_prompts_count() -> None:
    at = desk(quotas={"user": {"*": Limit(tokens=1000)}})
    decode = at.decoding(MAIL, user="ana", max_tokens=1000)  # its prompt has 9
    at.token(decode, "a")
    at.done(decode, output_tokens=91)
    assert at.ask(MAIL, chat(memory=False, user="ana", max_tokens=901)).errno == Errno.EAGAIN
    assert at.ask(MAIL, chat(memory=False, user="bob", max_tokens=901)) is None
    assert at.ask(MAIL, chat(memory=False, user="ana", max_tokens=900)) is None


def test_what_no_time_allows_is_the_callers_fault() -> None:
    at = desk(quotas=limits(tokens=100))
    refusal = at.ask(MAIL, chat(memory=False, max_tokens=101))
    assert (refusal.errno, refusal.field) == (Errno.EINVAL, "max_tokens")


def test_the_time_crosses_the_wire() -> None:
    sent = WorldError("enough for now", errno=Errno.EAGAIN, retry_at=1_700_000_000_000_000_001)
    exchange = Exchange(1, m.Ping())
    exchange.outcome = decode_reply(encode(failed(sent)))
    with pytest.raises(WorldError) as e:
        exchange.result()
    assert (e.value.errno, e.value.retry_at) == (Errno.EAGAIN, sent.retry_at)


def test_slots_and_tokens_are_what_the_driver_says() -> None:
    at = desk(ONE)
    at.ask(MAIL, chat(memory=False))
    at.render()
    waiting(at, PLAN, 5)
    at.tell(ev.DriverUp, model="small", gen=1, context=2048, slots=2)
    first, _ = at.all(ins.Decode)
    at.tell(ev.Token, model="small", gen=1, key=first.key, text="a b c", tokens=3)
    (queue,) = at.ask(OPERATOR, m.Schedule()).queues
    assert (queue.slots, queue.running, queue.output_tokens) == (2, 2, 3)
    at.done(first, output_tokens=5)
    (queue,) = at.ask(OPERATOR, m.Schedule()).queues
    assert queue.output_tokens == 5
