"""Who answers a chat in the pure kernel: defaults, fallbacks, rest."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, MS, OPERATOR, PLAN, SECOND, Desk, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.state.routing import LONGEST_REST, REST, RESTING, Health
from isovist.kernel.state.scheduling import Scheduling
from isovist.scheduler.quota import Limit
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno

FIRST = ModelConfig(
    "first",
    "openai",
    2048,
    default=True,
    fallbacks=("narrow", "second"),
    agents=frozenset({"nobody"}),
)
SECOND_MODEL = ModelConfig("second", "x", 1024, agents=frozenset({"plan"}))
NARROW = ModelConfig("narrow", "x", 16)
"""Too narrow for the answer that a chat asks for."""


def desk(**more: Any) -> Desk:
    return Desk(models=(FIRST, NARROW, SECOND_MODEL), **more)


def refusal(errno: Errno = Errno.EAGAIN, **more: Any) -> dict[str, Any]:
    return {"errno": int(errno), "message": "too much to do", **more}


def model(at: Desk, name: str) -> Any:
    return next(one for one in at.ask(OPERATOR, m.Models()).models if one.name == name)


def test_an_agent_has_a_default_of_its_own() -> None:
    at = desk()
    at.ask(PLAN, chat(memory=False, user="ana"))
    assert at.one(ins.Render).model == "second"
    at.ask(MAIL, chat(memory=False, user="ana"))
    assert at.one(ins.Render).model == "first"
    at.ask(PLAN, chat(memory=False, user="ana", model="first"))
    assert at.one(ins.Render).model == "first"


@pytest.mark.parametrize("errno", sorted(RESTING))
def test_a_model_that_cannot_answer_gives_way_to_the_next_that_can(errno: Errno) -> None:
    at = desk()
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.done(decode, **refusal(errno))
    assert at.reply() is None
    again = at.one(ins.Render)
    assert (again.model, again.context) == ("second", 1024)
    at.render(prompt="another")
    at.up("second")
    decode = at.one(ins.Decode)
    assert (decode.model, decode.prompt) == ("second", "another")
    at.token(decode, "on Tuesday")
    at.done(decode, output_tokens=3)
    assert (at.reply().text, at.reply().model) == ("on Tuesday", "second")


def test_the_budget_is_that_of_the_model_which_answers() -> None:
    at = desk()
    at.ask(MAIL, chat(user="ana"))
    at.select()
    assert at.one(ins.Render).budget == 307
    at.render()
    at.up("first")
    at.done(at.one(ins.Decode), **refusal())
    assert at.one(ins.Render).budget == 153


def test_a_callers_fault_is_nobody_elses() -> None:
    at = desk()
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.done(decode, errno=int(Errno.EINVAL), message="no")
    assert at.reply().errno == Errno.EINVAL
    assert model(at, "first").rest_ms == 0


def test_after_its_first_word_an_answer_stays_where_it_is() -> None:
    at = desk()
    decode = at.decoding(MAIL, user="ana", max_tokens=32, stream=True)
    at.token(decode, "on")
    at.done(decode, **refusal(Errno.EIO))
    assert at.reply().errno == Errno.EIO


def test_words_that_nobody_has_seen_are_not_in_the_answer() -> None:
    at = desk()
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.token(decode, "never")
    at.done(decode, **refusal(Errno.EIO))
    at.render()
    at.up("second")
    decode = at.one(ins.Decode)
    at.token(decode, "mind")
    at.done(decode)
    assert at.reply().text == "mind"


def test_when_all_have_failed_the_last_says_why_and_when_to_come_again() -> None:
    at = desk(wall=1_000 * SECOND)
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.done(decode, **refusal())
    at.render()
    at.up("second")
    at.done(at.one(ins.Decode), **refusal(retry_ns=90 * SECOND))
    reply = at.reply()
    assert reply.errno == Errno.EAGAIN
    assert reply.retry_at == at.state.calendar() + 90 * SECOND
    assert not at.state.calls


def test_a_model_that_rests_is_passed_over_until_its_time() -> None:
    at = desk()
    at.done(at.decoding(MAIL, user="ana", max_tokens=32), **refusal(retry_ns=5 * SECOND))
    shown = model(at, "first")
    assert 4_900 < shown.rest_ms <= 5_000
    assert (shown.error, shown.fallbacks) == ("too much to do", ("narrow", "second"))
    at.ask(MAIL, chat(memory=False, user="ana", max_tokens=32))
    assert at.one(ins.Render).model == "second"
    at.sleep(5 * SECOND)
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    assert decode.model == "first"
    at.done(decode)
    shown = model(at, "first")
    assert (shown.rest_ms, shown.error) == (0, "")


def test_a_rest_alone_refuses_nobody() -> None:
    at = desk()
    for name in ("first", "second"):
        decode = at.decoding(
            MAIL, user="ana", model=name, max_tokens=2000 if name == "first" else 32
        )
        at.done(decode, **refusal(retry_ns=50 * SECOND))
    at.ask(MAIL, chat(memory=False, user="ana", max_tokens=32))
    assert at.one(ins.Render).model == "first", "nobody else can, so it is asked all the same"


def test_a_driver_that_cannot_run_gives_all_that_wait_to_the_next() -> None:
    at = desk()
    frames = []
    for _ in range(3):
        at.ask(MAIL, chat(memory=False, user="ana", max_tokens=32))
        frames.append(at.frame)
        at.render()
    at.die("first", fatal=True)
    assert [i.model for i in at.all(ins.Render)] == ["second"] * 3
    for render in at.all(ins.Render):
        at.tell(
            ev.Rendered, key=render.key, prompt="p", prompt_tokens=9, shown=(), injected_tokens=0,
            counter="c",
        )  # fmt: skip
    at.up("second")
    for frame in frames:
        at.done(at.one(ins.Decode))
        assert at.reply(frame).model == "second"


def test_a_driver_that_dies_under_a_call_twice_gives_it_to_the_next() -> None:
    at = desk()
    at.decoding(MAIL, user="ana", max_tokens=32)
    at.die("first")
    at.sleep(SECOND)
    at.up("first", 2)
    at.die("first", 2)
    assert at.one(ins.Render).model == "second"
    assert at.reply() is None


def test_the_quota_of_a_fallback_is_kept() -> None:
    quotas = {"model": {"second": Limit(calls=1)}}
    at = desk(scheduling=Scheduling(quotas=quotas))
    held = at.decoding(PLAN, user="ana", max_tokens=32)
    assert held.model == "second"
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.done(decode, **refusal())
    assert at.reply().errno == Errno.EAGAIN, "the only fallback is full"
    at.done(held)
    at.sleep(LONGEST_REST)
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.done(decode, **refusal())
    assert at.one(ins.Render).model == "second"
    at.ask(PLAN, chat(memory=False, user="ana", max_tokens=32))
    assert at.reply().errno == Errno.EAGAIN, "the moved call counts there"


@pytest.mark.parametrize(("end", "left"), [("refused", 900), ("died", 901)])
def test_what_a_failed_try_has_cost_is_given_back(end: str, left: int) -> None:
    """The answer and one prompt (of 9 tokens) count, whether another model or another life of the
    same driver gives it."""
    at = desk(scheduling=Scheduling(quotas={"user": {"ana": Limit(tokens=1000)}}))
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.token(decode, "unseen")
    if end == "refused":
        at.done(decode, **refusal())
        at.render()
        at.up("second")
    else:
        at.die("first")
        at.sleep(101 * MS)  # in which a token is refilled
        at.up("first", 2)
    at.done(at.one(ins.Decode), output_tokens=91)
    ask = {"memory": False, "user": "ana", "model": "second"}
    assert at.ask(PLAN, chat(**ask, max_tokens=left + 1)).errno == Errno.EAGAIN
    assert at.ask(PLAN, chat(**ask, max_tokens=left)) is None


def test_a_fallback_that_is_full_leaves_the_quota_as_it_was() -> None:
    quotas = {"model": {"second": Limit(calls=1)}, "agent": {"mail": Limit(tokens=1000)}}
    at = desk(scheduling=Scheduling(quotas=quotas))
    held = at.decoding(PLAN, user="ana", max_tokens=32)
    decode = at.decoding(MAIL, user="ana", max_tokens=32)
    at.token(decode, "unseen")
    at.done(decode, **refusal())
    assert at.reply().errno == Errno.EAGAIN
    at.done(held)
    # One prompt of 9 tokens, and one word.
    assert at.ask(MAIL, chat(memory=False, user="ana", max_tokens=991)).errno == Errno.EAGAIN
    assert at.ask(MAIL, chat(memory=False, user="ana", max_tokens=990)) is None


def test_rests_double_up_to_a_bound_and_end_with_an_answer() -> None:
    health, rests = Health(), []
    for _ in range(12):
        health.until = 0
        health.failed(100)
        rests.append(health.until - 100)
    assert rests[:3] == [REST, 2 * REST, 4 * REST]
    assert rests[-1] == LONGEST_REST
    assert health.rests(100 + LONGEST_REST - 1)
    assert not health.rests(100 + LONGEST_REST)
    health.answered()
    assert not health.rests(0)
    health.failed(100, 300 * SECOND)
    assert health.until == 100 + 300 * SECOND
