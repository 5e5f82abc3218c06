"""What calls cost, at the pure kernel's door: by agent, user and model, and how busy models are."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, MS, OPERATOR, PLAN, SECOND, Desk, candidate, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state import metering
from isovist.kernel.state.drivers import ModelConfig
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.records import ModelLoad, Usage


def usage(desk: Desk, by: str = "agent") -> dict[str, Usage]:
    reply = desk.ask(OPERATOR, m.Metering(by=by))  # type: ignore[arg-type] # a test's own axis
    assert reply.at == desk.state.calendar()
    return {row.name: row for row in reply.usage}


def done(desk: Desk, decode: ins.Decode, **more: Any) -> Any:
    fields = {
        "prompt_tokens": 12, "cached_tokens": 8, "output_tokens": 3,
        "prefill_ns": 20 * MS, "decode_ns": 30 * MS,
    }  # fmt: skip
    desk.done(decode, **{**fields, **more})
    return desk.reply(desk.frame)


def test_a_reply_and_its_record_tell_tokens_and_times() -> None:
    desk = Desk()
    unit = desk.stored(MAIL, user="ana")
    desk.ask(MAIL, chat(user="ana", wait="none"))
    desk.select(unit)
    desk.render(shown=((candidate(unit), 4),), injected_tokens=4)
    desk.sleep(SECOND)
    desk.up()
    decode = desk.one(ins.Decode)
    desk.now += 60 * MS
    reply = done(desk, decode)
    record = desk.one(ins.Audit).record
    for told in (reply, record):
        assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (12, 8, 3)
        assert told.injected_tokens == 4
        assert (told.timings.prefill, told.timings.decode) == (20, 30)
        assert told.timings.queue >= 1000
        assert 60 <= told.timings.model < 100


@pytest.mark.promise("view.noninterference")
def test_what_a_driver_keeps_is_for_one_agent_and_one_user() -> None:
    desk = Desk(models=(ModelConfig("small", "x", 2048, 9),))
    owners = [
        desk.decoding(channel, user=user).owner
        for channel, user in ((MAIL, "ana"), (MAIL, "bob"), (PLAN, "ana"), (MAIL, "ana"))
    ]
    assert len(set(owners)) == 3
    assert owners[0] == owners[3]
    assert all(owners)


def test_calls_are_counted_by_agent_user_and_model_while_they_run_too() -> None:
    desk = Desk()
    first = desk.decoding(MAIL, user="ana")
    desk.token(first, "one")
    desk.ask(MAIL, chat(memory=False, user="bob"))
    desk.render()
    now = usage(desk)["mail"]
    assert (now.calls, now.running, now.waiting) == (0, 1, 1)
    assert (now.prompt_tokens, now.output_tokens) == (9, 1)
    desk.done(first, output_tokens=3, prompt_tokens=12, cached_tokens=8)
    second = desk.one(ins.Decode)
    desk.done(second, errno=int(Errno.EIO), message="no")
    ended = usage(desk)
    assert ended == {"mail": ended["mail"]}  # nobody else has called
    row = ended["mail"]
    assert (row.calls, row.failed, row.running, row.waiting) == (2, 1, 0, 0)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (12 + 9, 8, 3)
    assert {name: (u.calls, u.failed) for name, u in usage(desk, "user").items()} == {
        "ana": (1, 0), "bob": (1, 1),
    }  # fmt: skip
    assert usage(desk, "model")["small"].calls == 2


def test_names_without_end_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "NAMES", 1)
    desk = Desk()
    for channel in (MAIL, PLAN, MAIL):
        desk.ask(channel, chat(user="ana", wait="none"))
        desk.ask(channel, m.Cancel(call=desk.frame))
    assert {name: u.calls for name, u in usage(desk).items()} == {"mail": 2, "*": 1}


@pytest.mark.promise("erase.complete")
def test_of_a_forgotten_user_nothing_is_counted_any_more() -> None:
    desk = Desk()
    desk.done(desk.decoding(MAIL, user="ana"))
    assert list(usage(desk, "user")) == ["ana"]
    desk.ask(OPERATOR, m.ForgetUser(name="ana"))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=())
    desk.ask(OPERATOR, m.ForgetUser(name="ana", confirm=desk.reply().confirm))
    desk.tell(ev.Owned, key=desk.one(ins.Owned).key, units=())
    desk.tell(ev.Purged, key=desk.one(ins.Purge).key, user="ana", outcomes=())
    assert usage(desk, "user") == {}


def test_what_came_before_is_added_up_from_the_records() -> None:
    desk = Desk()
    request = m.Metering(by="user", since="1970-01-01T00:00:01Z", until="1970-01-01T00:00:02Z")
    assert desk.ask(OPERATOR, request) is None
    asked = desk.one(ins.Meter)
    assert (asked.by, asked.since, asked.until) == ("user", SECOND, 2 * SECOND)
    rows = (Usage(name="ana", calls=3),)
    desk.tell(ev.Metered, key=asked.key, usage=rows)
    assert desk.reply().usage == rows
    assert desk.tell(ev.Metered, key=asked.key, usage=rows) == []


def test_only_the_operator_sees_what_all_cost_and_how_busy_models_are() -> None:
    desk = Desk()
    assert desk.ask(MAIL, m.Metering()).errno == Errno.EPERM
    assert desk.ask(OPERATOR, m.Metering(since="yesterday")).errno == Errno.EINVAL
    assert desk.ask(OPERATOR, m.Metering(until="2026-01-01T00:00Z")).errno == Errno.EINVAL
    assert {model.load for model in desk.ask(MAIL, m.Models()).models} == {None}


def test_models_tell_how_far_they_are_loaded_and_what_they_hold() -> None:
    desk = Desk(models=(ModelConfig("small", "x", 2048, 4),))

    def load() -> ModelLoad:
        (model,) = desk.ask(OPERATOR, m.Models()).models
        assert model.load is not None
        return model.load

    desk.ask(MAIL, chat(memory=False, user="ana"))
    desk.render()
    assert (load().loaded, load().waiting, load().slots) == (0.0, 1, 4)
    half = ModelLoad(slots=0, loaded=0.5)
    desk.tell(ev.DriverLoad, model="small", gen=1, load=half)
    assert load().loaded == 0.5
    desk.tell(ev.DriverUp, model="small", gen=1, context=2048, slots=3)
    busy = ModelLoad(slots=3, cells=100, cells_total=6144, host_bytes=7, host_total=70)
    desk.tell(ev.DriverLoad, model="small", gen=1, load=busy)
    now = load()
    assert (now.slots, now.running, now.waiting, now.loaded) == (3, 1, 0, 1.0)
    assert (now.cells, now.cells_total, now.host_bytes, now.host_total) == (100, 6144, 7, 70)
    desk.die()
    desk.tell(ev.DriverLoad, model="small", gen=1, load=busy)  # a late word
    assert load().cells == 0
