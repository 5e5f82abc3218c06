"""The door itself: handshake, frames, limits, cancel, deadlines, ends of channels, stories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from state_helpers import MAIL, MS, OPERATOR, SECOND, Desk, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Step
from isovist.kernel.state.core import Limits, State
from isovist.syscalls import messages as m
from isovist.syscalls.abi import effects, mail
from isovist.syscalls.abi.tools import ToolsCall, ToolUse
from isovist.syscalls.errors import Errno, KernelError
from isovist.syscalls.records import Message, ToolRule

# -- ways to bring a call of MAIL to each step


def _at_barrier(desk: Desk) -> None:
    desk.remember(MAIL, user="ana")
    desk.ask(MAIL, m.Search(query="x", user="ana", barrier_ms=60_000, deadline_ms=3000))


def _ask(request: m.Request) -> Callable[[Desk], None]:
    return lambda desk: desk.ask(MAIL, request)


def _committing(desk: Desk) -> None:
    desk.remember(MAIL, user="ana", deadline_ms=3000)


def _rendering(desk: Desk) -> None:
    desk.ask(MAIL, chat(user="ana", memory=False, deadline_ms=3000))


def _queued(desk: Desk) -> None:
    _rendering(desk)
    desk.render()


def _decoding(desk: Desk) -> None:
    desk.decoding(MAIL, user="ana", deadline_ms=3000)


def _keeping(desk: Desk) -> None:
    decode = desk.decoding(MAIL, user="ana", deadline_ms=3000, keep=True)
    desk.token(decode, "Tuesday")
    desk.done(decode)


def _waiting(desk: Desk) -> None:
    desk.attach(9, "mail", pid=0)
    desk.ask(OPERATOR, m.Spawn(program="x.py"))
    desk.tell(ev.Spawned, pid=1)
    desk.ask(OPERATOR, m.WaitPid(pid=1, deadline_ms=3000))


def _warming(desk: Desk) -> None:
    desk.done(desk.decoding(MAIL, user="ana", model="wide"))
    said = (Message("user", "hi"),)
    desk.ask(MAIL, m.ContextSave(name="a", messages=said, user="ana", model="wide",
                                 deadline_ms=3000))  # fmt: skip
    context = desk.one(ins.SaveContext).context
    desk.tell(ev.ContextSaved, key=desk.one(ins.SaveContext).key, context=context, bytes=9)


def _boxed(desk: Desk) -> None:
    desk.ask(MAIL, mail.MailSend(to="mail", text="x", user="ana", wait=True, deadline_ms=3000))
    entered = desk.one(ins.Enter).number
    desk.tell(ev.NotEntered, number=entered, errno=Errno.EAGAIN, message="the box is full")


def _calling(desk: Desk) -> None:
    desk.state.users.grant("mail", set(), set(), tools=[ToolRule("slow.*")])
    desk.ask(MAIL, ToolsCall(calls=(ToolUse("slow.tool"),), user="ana", deadline_ms=3000))


STEPS: dict[Step, Callable[[Desk], None]] = {
    Step.BARRIER: _at_barrier,
    Step.LOCATE: _ask(m.Forget(id="u", user="ana", deadline_ms=3000)),
    Step.RETRIEVE: _ask(m.Search(query="x", user="ana", deadline_ms=3000)),
    Step.RENDER: _rendering,
    Step.QUEUE: _queued,
    Step.DECODE: _decoding,
    Step.COMMIT: _committing,
    Step.KEEP: _keeping,
    Step.SPAWN: _ask(m.Spawn(program="x.py", deadline_ms=3000)),
    Step.EXIT: _waiting,
    Step.LOOKUP: _ask(m.Why(call="c1", deadline_ms=3000)),
    Step.SAVE: _ask(m.ContextDrop(name="a", user="ana", deadline_ms=3000)),
    Step.WARM: _warming,
    Step.LEDGER: _ask(effects.EffectBegin(subject="x", user="ana", deadline_ms=3000)),
    Step.BOX: _boxed,
    Step.TOOLS: _calling,
}


def _standing(desk: Desk, step: Step) -> Any:
    """The newest call, which stands at ``step``."""
    STEPS[step](desk)
    call = list(desk.state.calls.values())[-1]
    assert call.step is step
    return call


def _late(desk: Desk, call: Any) -> None:
    """Everything that could still be said of a call that has ended: nobody hears it."""
    for event, fields in (
        (ev.Retrieved, {"key": call.key, "selection": call.selection}),
        (ev.Rendered, {"key": call.key, "prompt": "", "prompt_tokens": 1, "shown": (),
                       "injected_tokens": 0, "counter": ""}),
        (ev.LookedUp, {"key": call.key, "record": None}),
        (ev.WorkFailed, {"key": call.key, "errno": 5, "message": ""}),
        (ev.Token, {"model": "small", "gen": 1, "key": call.key, "text": "x"}),
    ):  # fmt: skip
        assert desk.tell(event, **fields) == []  # type: ignore[arg-type] # each event has its fields


def test_every_step_is_tried() -> None:
    assert set(STEPS) == set(Step) - {Step.NEW}


@pytest.mark.promise("kernel.survives")
@pytest.mark.parametrize("step", STEPS)
def test_a_cancel_ends_a_call_at_every_step(step: Step) -> None:
    desk = Desk()
    call = _standing(desk, step)
    assert isinstance(desk.ask(call.channel, m.Cancel(call=call.call)), m.Done)
    failed = desk.reply(call.call)
    assert failed.errno == Errno.ECANCELED
    assert failed.story[-1].endswith("failed ECANCELED")
    assert bool(desk.all(ins.Abort)) == (step is Step.DECODE)
    assert bool(desk.all(ins.Audit)) == isinstance(call.request, m.Search | m.Chat)
    _late(desk, call)


@pytest.mark.promise("kernel.survives")
@pytest.mark.parametrize("step", STEPS)
def test_a_deadline_ends_a_call_at_every_step(step: Step) -> None:
    desk = Desk()
    call = _standing(desk, step)
    desk.sleep(2990 * MS)
    assert desk.reply(call.call) is None
    desk.sleep(20 * MS)
    ended = desk.reply(call.call)
    if step is Step.WARM:
        # The text is durable; that a model takes its time with its state takes nothing away.
        assert ended.bytes == 9
    elif step is Step.KEEP:
        # The model has answered; that the exchange could not be kept takes nothing away.
        assert ended.text
        assert ended.kept == ""
    else:
        assert ended.errno == Errno.ETIMEDOUT
        assert step.name in ended.message
    _late(desk, call)


@pytest.mark.promise("kernel.survives")
@pytest.mark.parametrize("step", STEPS)
def test_a_channel_may_end_at_every_step(step: Step) -> None:
    desk = Desk()
    call = _standing(desk, step)
    desk.tell(ev.Detached, channel=call.channel, why="gone")
    assert desk.all(ins.Reply) == []
    assert not [c for c in desk.state.calls.values() if c.channel == call.channel]
    assert bool(desk.all(ins.Audit)) >= isinstance(call.request, m.Search | m.Chat)
    _late(desk, call)
    assert desk.tell(ev.Detached, channel=call.channel, why="gone") == []


def test_a_write_whose_caller_gave_up_still_counts_for_readers() -> None:
    desk = Desk()
    op = desk.remember(MAIL, user="ana")
    desk.ask(MAIL, m.Cancel(call=desk.frame))
    desk.ask(MAIL, m.Search(query="x", user="ana", wait="lexical"))
    assert desk.all(ins.Retrieve) == []
    desk.commit(op)
    assert desk.one(ins.Retrieve)


def test_a_cancel_of_nothing_is_done_with() -> None:
    desk = Desk()
    assert isinstance(desk.ask(MAIL, m.Cancel(call=4711)), m.Done)
    assert isinstance(desk.ask(MAIL, m.Cancel(call=5), frame=5), m.Done)


def test_a_channel_cancels_its_own_calls_only() -> None:
    desk = Desk()
    desk.remember(MAIL, user="ana")
    assert isinstance(desk.ask(OPERATOR, m.Cancel(call=desk.frame)), m.Done)
    assert len(desk.state.calls) == 1


@pytest.mark.promise("kernel.survives")
def test_over_256_calls_are_refused_and_a_cancel_still_gets_through() -> None:
    desk = Desk()
    for n in range(256):
        assert desk.ask(MAIL, m.Search(query="x", user="ana"), frame=n + 1) is None
    refused = desk.ask(MAIL, m.Search(query="x", user="ana"))
    assert refused.errno == Errno.EAGAIN
    assert refused.story
    # The others feel nothing of it.
    assert desk.ask(OPERATOR, m.Search(query="x")) is None
    assert isinstance(desk.ask(MAIL, m.Cancel(call=7)), m.Done)
    assert desk.reply(7).errno == Errno.ECANCELED
    assert desk.ask(MAIL, m.Search(query="x", user="ana")) is None


def test_a_frame_id_that_is_outstanding_is_not_taken_twice() -> None:
    desk = Desk()
    op = desk.remember(MAIL, user="ana")
    assert desk.ask(MAIL, m.Ping(), frame=desk.frame).errno == Errno.EEXIST
    desk.commit(op)
    assert isinstance(desk.reply(), m.Stored)
    assert isinstance(desk.ask(MAIL, m.Ping(), frame=desk.frame), m.Pong)


# -- time


@pytest.mark.parametrize("deadline", [0, -1, 3_600_001])
def test_a_deadline_has_its_range(deadline: int) -> None:
    failed = Desk().ask(MAIL, m.Models(deadline_ms=deadline))
    assert (failed.errno, failed.field) == (Errno.EINVAL, "deadline_ms")


def test_a_call_without_deadline_ends_after_two_minutes() -> None:
    desk = Desk()
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    desk.sleep(119 * SECOND)
    assert desk.reply() is None
    desk.sleep(2 * SECOND)
    assert desk.reply().errno == Errno.ETIMEDOUT


def test_each_change_of_the_next_time_limit_is_announced() -> None:
    desk = Desk()
    desk.ask(MAIL, m.Search(query="x", user="ana", deadline_ms=1000))
    first = desk.one(ins.WakeAt).ns
    desk.ask(MAIL, m.Search(query="x", user="ana", deadline_ms=2000))
    assert desk.all(ins.WakeAt) == []
    desk.ask(MAIL, m.Search(query="x", user="ana", deadline_ms=500))
    assert desk.one(ins.WakeAt).ns < first
    # A tick that comes too early is answered by the same wish.
    desk.sleep(MS)
    again = desk.one(ins.WakeAt).ns
    desk.now = again
    desk.tell(ev.Tick)
    assert desk.reply().errno == Errno.ETIMEDOUT
    assert desk.one(ins.WakeAt).ns == first


def test_limits_of_ended_calls_do_not_pile_up() -> None:
    desk = Desk()
    for _ in range(5000):
        op = desk.remember(MAIL, user="ana")
        desk.commit(op)
    assert len(desk.state._timers) <= 1025


def test_a_broken_rule_in_a_tick_leaves_the_next_limit_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    for frame in (1, 2):
        desk.state.handle(
            ev.Arrived(now=desk.now, channel=MAIL, call=frame, request=m.Why(call="c"))
        )
    broken = [KernelError("broken on purpose")]
    fail = State.fail

    def failing(self: State, call: Any, e: Any) -> None:
        if broken:
            raise broken.pop()
        fail(self, call, e)

    monkeypatch.setattr(State, "fail", failing)
    desk.sleep(121 * SECOND)
    assert desk.one(ins.Report).message == "broken on purpose"
    desk.now = max(desk.now, desk.one(ins.WakeAt).ns)
    desk.tell(ev.Tick)
    assert desk.reply(2).errno == Errno.ETIMEDOUT


def test_time_does_not_run_backwards_and_the_calendar_is_set() -> None:
    desk = Desk()
    desk.now = 100
    desk.tell(ev.Tick, wall=5_000)
    assert desk.state.calendar() == 5_000
    desk.state.handle(ev.Tick(now=50))
    assert desk.state.now == 101
    desk.state.handle(ev.Tick(now=50, wall=9_000))
    assert desk.state.calendar() == 9_000


# -- handshake and malformed bodies


@pytest.mark.parametrize(
    ("low", "high", "agreed"),
    [(1, 1, 1), (1, 9, 1), (2, 9, 0), (1, 0, 0), (3, 2, 0)],
)
def test_a_handshake_finds_a_common_version(low: int, high: int, agreed: int) -> None:
    desk = Desk()
    desk.attach(9, "mail", hello=False)
    reply = desk.ask(9, m.Hello(version=high, low=low, features=("cancel", "telepathy")))
    if agreed:
        assert (reply.version, reply.features, reply.agent) == (agreed, ("cancel",), "mail")
        assert reply.max_calls == 256
    else:
        assert (reply.errno, reply.field) == (Errno.EPROTO, "version")
        # It may offer others.
        assert desk.ask(9, m.Ping()).errno == Errno.EPROTO
        assert desk.ask(9, m.Hello(version=1)).version == 1


def test_hello_comes_first_and_once() -> None:
    desk = Desk()
    desk.attach(9, "mail", hello=False)
    assert desk.ask(9, m.Ping()).errno == Errno.EPROTO
    assert isinstance(desk.ask(9, m.Hello(version=1)), m.Welcome)
    assert desk.ask(9, m.Hello(version=1)).errno == Errno.EPROTO
    assert isinstance(desk.ask(9, m.Ping()), m.Pong)


@pytest.mark.promise("kernel.survives")
def test_eight_malformed_bodies_end_the_channel_once() -> None:
    desk = Desk()
    for n in range(1, 11):
        desk.tell(ev.Malformed, channel=MAIL, call=n, errno=Errno.EPROTO, message="?", field="$")
        assert desk.reply(n).errno == Errno.EPROTO
        assert bool(desk.all(ins.Disconnect)) == (n == 8)
    assert desk.ask(MAIL, m.Ping()).errno == Errno.EPIPE
    assert isinstance(desk.ask(OPERATOR, m.Ping()), m.Pong)


def test_questions_of_a_newer_peer_are_no_noise() -> None:
    desk = Desk()
    for n in range(20):
        desk.tell(ev.Malformed, channel=MAIL, call=n, errno=Errno.ENOSYS, message="?")
        assert desk.all(ins.Disconnect) == []
    assert isinstance(desk.ask(MAIL, m.Ping()), m.Pong)


def test_an_overlong_ping_is_refused() -> None:
    failed = Desk().ask(MAIL, m.Ping(payload="x" * (64 * 1024 + 1)))
    assert (failed.errno, failed.field) == (Errno.EMSGSIZE, "payload")


@pytest.mark.parametrize(
    "request_",
    [
        m.Exit(status=256), m.Kill(pid=1), m.WaitPid(pid=1), m.Spawn(program=""),
        m.SessionOpen(), m.Grant(agent="x"), m.Whoami(user="zoe"), m.Hello(version=1),
        m.Remember(text=""), m.Search(query=""), m.MemoryList(limit=0), m.Chat(messages=()),
        m.Update(id="u", version=0, text="x"), m.Forget(id="u", user="zoe"), m.Why(call=""),
    ],
)  # fmt: skip
def test_every_error_carries_a_story(request_: m.Request) -> None:
    failed = Desk().ask(MAIL, request_)
    assert isinstance(failed, m.Failed)
    assert m.NAMES[type(request_)] in failed.story[0]
    assert Errno(failed.errno).name in failed.story[-1]


def test_events_for_channels_that_are_gone_change_nothing() -> None:
    desk = Desk()
    assert desk.tell(ev.Arrived, channel=77, call=1, request=m.Ping()) == []
    assert desk.tell(ev.Malformed, channel=77, call=1, errno=22, message="?") == []


def test_validate_notices_a_call_that_nobody_knows() -> None:
    desk = Desk()
    desk.remember(MAIL, user="ana")
    desk.state.channels[MAIL].calls.clear()
    with pytest.raises(KernelError, match="broken invariant"):
        desk.state.validate()


def test_a_broken_rule_ends_its_call_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(limits=Limits(calls=4))
    desk.remember(MAIL, user="ana")
    desk.ask(MAIL, chat(user="ana", memory=False))
    desk.render(injected_tokens=5)
    assert desk.reply().errno == Errno.EKERNEL
    assert "budget" in desk.one(ins.Report).message
    assert len(desk.state.calls) == 1
