"""Saved contexts in the pure kernel: the pair's own, durable first, warm if a model can."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, SECOND, Desk

from isovist.kernel.state import contexts
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Context
from isovist.syscalls.records import Message, SavedContext

SAID = (Message("user", "where to?"), Message("assistant", "Rome"))


@pytest.fixture
def at() -> Desk:
    return Desk(
        models=(
            ModelConfig("small", "llama", 2048, default=True, snapshots=True),
            ModelConfig("far", "openai", 2048),
        )
    )


def save(at: Desk, channel: int = MAIL, name: str = "trip", **more: Any) -> ins.SaveContext:
    request = m.ContextSave(**{"name": name, "messages": SAID, "user": "ana", **more})
    assert at.ask(channel, request) is None
    return at.one(ins.SaveContext)


def saved(at: Desk, asked: ins.SaveContext, **more: Any) -> list[ins.Instruction]:
    fields = {"key": asked.key, "context": asked.context, "bytes": 40, **more}
    return at.tell(ev.ContextSaved, **fields)


def load(at: Desk, channel: int = MAIL, **more: Any) -> ins.FindContext:
    assert at.ask(channel, m.ContextLoad(**{"name": "trip", "user": "ana", **more})) is None
    return at.one(ins.FindContext)


def found(at: Desk, asked: ins.FindContext, **more: Any) -> list[ins.Instruction]:
    context = Context(
        user=asked.user, agent=asked.agent, name=asked.name, id="x1", messages=SAID, saved_at=5,
        model=more.pop("model", "small"),
    )  # fmt: skip
    fields = {"key": asked.key, "context": context, "state": True, **more}
    return at.tell(ev.ContextFound, **fields)


def up(at: Desk) -> None:
    """Have a chat bring the model up, and be answered."""
    at.done(at.decoding(PLAN))


# -- saving


@pytest.mark.promise("write.durable")
def test_a_save_is_answered_when_the_store_has_it_and_not_before(at: Desk) -> None:
    asked = save(at)
    assert (asked.context.user, asked.context.agent, asked.context.name) == ("ana", "mail", "trip")
    assert (asked.context.messages, asked.context.model) == (SAID, "small")
    assert (asked.most, asked.most_bytes) == (contexts.MOST, contexts.MOST_BYTES)
    saved(at, asked, replaced=True, secrets={"aws-key": 1})
    reply = at.reply()
    assert (reply.name, reply.model, reply.user, reply.rule) == ("trip", "small", "ana", "request")
    assert (reply.bytes, reply.replaced, reply.secrets) == (40, True, {"aws-key": 1})
    # The model is not up: it holds nothing, and is not started for that.
    assert reply.tokens == 0
    assert not at.all(ins.StartDriver)


def test_a_model_that_is_up_is_asked_for_the_state_of_the_text_as_it_was_stored(at: Desk) -> None:
    up(at)
    asked = save(at)
    clean = Context(
        **{f: getattr(asked.context, f) for f in ("user", "agent", "name", "id", "model")},
        saved_at=1,
        messages=(Message("user", "[secret:aws-key]"),),
    )
    assert saved(at, asked, context=clean)
    assert at.reply() is None
    snapshot = at.one(ins.Snapshot)
    assert snapshot.context == clean
    # The owner is that of the pair's chats.
    assert (snapshot.model, snapshot.owner) == ("small", "mail/ana")
    at.tell(ev.ContextKept, key=asked.key, tokens=17)
    assert at.reply().tokens == 17
    assert not at.tell(ev.ContextKept, key=asked.key, tokens=17)


def test_the_owner_of_a_state_is_the_owner_of_the_chats(at: Desk) -> None:
    decode = at.decoding(MAIL, user="ana")
    at.done(decode)
    saved(at, save(at))
    assert at.one(ins.Snapshot).owner == decode.owner


@pytest.mark.parametrize("end", ["driver dies", "deadline", "patience"])
def test_a_text_that_is_durable_is_acknowledged_whatever_befalls_its_state(
    at: Desk, end: str
) -> None:
    up(at)
    asked = save(at, deadline_ms=60_000)
    saved(at, asked)
    if end == "driver dies":
        at.die()
    else:
        at.sleep(60 * SECOND if end == "deadline" else contexts.PATIENCE)
    reply = at.reply()
    assert isinstance(reply, m.ContextSaved)
    assert reply.tokens == 0
    assert not at.tell(ev.ContextKept, key=asked.key, tokens=17)


def test_models_that_keep_no_state_are_not_asked_for_one(at: Desk) -> None:
    at.done(at.decoding(MAIL, model="far"))
    saved(at, save(at, model="far"))
    assert (at.reply().model, at.reply().tokens) == ("far", 0)
    assert not at.all(ins.Snapshot)


def test_a_store_that_refuses_ends_the_call_and_frees_the_name(at: Desk) -> None:
    asked = save(at)
    at.tell(ev.WorkFailed, key=asked.key, errno=Errno.EDQUOT, message="64", field="name")
    assert (at.reply().errno, at.reply().field) == (Errno.EDQUOT, "name")
    save(at)


def test_one_write_of_a_name_at_a_time_whoever_still_waits_for_it(at: Desk) -> None:
    first = save(at)
    frame = at.frame
    for request in (m.ContextSave(name="trip", messages=SAID), m.ContextDrop(name="trip")):
        assert at.ask(MAIL, request).errno == Errno.EAGAIN
    save(at, user="bob")
    save(at, PLAN)
    at.ask(MAIL, m.Cancel(call=frame))
    assert at.ask(MAIL, m.ContextDrop(name="trip", user="ana")).errno == Errno.EAGAIN
    # It was stored all the same; nobody is told, and no state is kept.
    assert not saved(at, first)
    save(at)


def test_a_channel_cannot_fill_the_memory_with_saves_that_it_cancels(at: Desk) -> None:
    for n in range(contexts.WRITES):
        save(at, name=f"n{n}")
        at.ask(MAIL, m.Cancel(call=at.frame))
    refused = at.ask(MAIL, m.ContextSave(name="more", messages=SAID, user="ana"))
    assert refused.errno == Errno.EAGAIN
    save(at, PLAN)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "n" * 129}, "name"),
        ({"messages": ()}, "messages"),
        ({"model": "nobody"}, "model"),
    ],
)
def test_what_is_wrong_is_named(at: Desk, fields: dict[str, Any], field: str) -> None:
    request = m.ContextSave(**{"name": "trip", "messages": SAID, **fields})
    assert at.ask(MAIL, request).field == field
    if field == "name":
        assert at.ask(MAIL, m.ContextLoad(name=fields["name"])).field == field
        assert at.ask(MAIL, m.ContextDrop(name=fields["name"])).field == field


# -- whose


@pytest.mark.promise("identity.bound")
def test_every_context_is_of_the_pair_that_the_channel_is(at: Desk) -> None:
    assert at.ask(PLAN, m.ContextLoad(name="trip", user="bob")).errno == Errno.EPERM
    assert at.ask(PLAN, m.ContextList(user="bob")).errno == Errno.EPERM
    assert at.ask(PLAN, m.ContextDrop(name="trip", user="bob")).errno == Errno.EPERM
    assert at.ask(PLAN, m.ContextSave(name="trip", messages=SAID, user="bob")).errno == Errno.EPERM
    for channel, user, pair in (
        (MAIL, "bob", ("bob", "mail")),
        (PLAN, "ana", ("ana", "plan")),
        (OPERATOR, "bob", ("bob", "operator")),
    ):
        at.ask(channel, m.ContextLoad(name="trip", user=user))
        asked = at.one(ins.FindContext)
        assert (asked.user, asked.agent) == pair
        at.ask(channel, m.ContextList(user=user))
        listed = at.one(ins.ListContexts)
        assert (listed.user, listed.agent) == pair
        at.ask(channel, m.ContextDrop(name="trip", user=user))
        dropped = at.one(ins.DropContext)
        assert (dropped.user, dropped.agent) == pair


def test_what_is_kept_is_listed(at: Desk) -> None:
    at.ask(MAIL, m.ContextList(user="ana"))
    kept = (SavedContext(name="trip", model="small", messages=2, bytes=40, saved_at=5),)
    at.tell(ev.ContextsListed, key=at.one(ins.ListContexts).key, contexts=kept)
    assert (at.reply().contexts, at.reply().user) == (kept, "ana")


# -- loading


def test_a_load_gives_the_text_and_warms_a_model_that_is_up(at: Desk) -> None:
    up(at)
    asked = load(at)
    found(at, asked)
    restore = at.one(ins.Restore)
    assert (restore.model, restore.owner, restore.context.id) == ("small", "mail/ana", "x1")
    at.tell(ev.ContextKept, key=asked.key, tokens=17)
    reply = at.reply()
    assert (reply.messages, reply.model, reply.saved_at, reply.tokens) == (SAID, "small", 5, 17)


def test_a_load_starts_a_model_that_is_not_up_if_there_is_a_state(at: Desk) -> None:
    found(at, load(at), state=False)
    assert at.reply().tokens == 0
    assert not at.all(ins.StartDriver)
    found(at, load(at, warm=False))
    assert at.reply().tokens == 0
    assert not at.all(ins.StartDriver)
    asked = load(at)
    found(at, asked)
    assert at.one(ins.StartDriver).model == "small"
    assert at.reply() is None
    at.up()
    assert at.one(ins.Restore).key == asked.key
    at.up()
    assert not at.all(ins.Restore)  # told twice that it is up, it is asked once
    at.tell(ev.ContextKept, key=asked.key, tokens=17)
    assert at.reply().tokens == 17


def test_what_was_loaded_is_given_back_before_the_chats_that_wait(at: Desk) -> None:
    at.ask(MAIL, m.Chat(messages=SAID, user="ana", memory=False))
    at.render()
    asked = load(at)
    found(at, asked)
    at.up()
    order = [type(i) for i in at.out if isinstance(i, ins.Restore | ins.Decode)]
    assert order == [ins.Restore, ins.Decode]


@pytest.mark.parametrize("end", ["driver dies", "patience", "deadline"])
def test_a_load_gives_the_text_alone_where_its_model_does_not_come_up(at: Desk, end: str) -> None:
    asked = load(at, deadline_ms=40_000 if end == "patience" else 10_000)
    found(at, asked)
    if end == "driver dies":
        at.die()
    else:
        at.sleep(contexts.PATIENCE if end == "patience" else 10 * SECOND)
    assert (at.reply().messages, at.reply().tokens) == (SAID, 0)


def test_a_model_that_failed_or_is_gone_warms_nothing(at: Desk) -> None:
    found(at, load(at), model="sold")
    assert (at.reply().model, at.reply().tokens) == ("sold", 0)
    at.ask(PLAN, m.Chat(messages=SAID, memory=False))
    at.die(fatal=True)
    found(at, load(at))
    assert at.reply().tokens == 0
    assert not at.all(ins.StartDriver)


def test_a_name_without_a_context_is_enoent_for_load_and_drop(at: Desk) -> None:
    asked = load(at)
    at.tell(ev.ContextFound, key=asked.key, context=None)
    assert (at.reply().errno, at.reply().field) == (Errno.ENOENT, "name")
    at.ask(MAIL, m.ContextDrop(name="trip", user="ana"))
    at.tell(ev.ContextDropped, key=at.one(ins.DropContext).key, found=False)
    assert (at.reply().errno, at.reply().field) == (Errno.ENOENT, "name")
    assert not at.all(ins.Scrub)


@pytest.mark.promise("erase.complete")
def test_a_drop_has_the_store_scrubbed_and_its_caller_told(at: Desk) -> None:
    at.ask(MAIL, m.ContextDrop(name="trip", user="ana"))
    at.tell(ev.ContextDropped, key=at.one(ins.DropContext).key, found=True)
    assert at.reply() == m.Done()
    assert at.one(ins.Scrub) == ins.Scrub()


@pytest.mark.promise("erase.complete")
def test_of_a_user_who_is_forgotten_nothing_is_told_that_was_loaded_before(at: Desk) -> None:
    found(at, load(at))
    frame = at.frame
    found(at, load(at, user="bob"))
    others = at.frame
    at.tell(ev.Purged, key=0, user="ana", outcomes=())
    assert at.reply(frame).errno == Errno.ENOENT
    assert at.reply(others) is None
