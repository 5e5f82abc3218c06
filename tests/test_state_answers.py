"""Tools, schemas and log probabilities in the pure kernel: rules, ways there and back, retries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from state_helpers import MAIL, PLAN, Desk, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.records import Logprob, Message, Tool, ToolCall

LOOK, FIND = Tool("look", "looks", '{"type": "object"}'), Tool("find")
ASKED, ONE, TWO = (
    Message("user", "when?"),
    ToolCall("look", "{}", "c1"),
    ToolCall("look", "{}", "c2"),
)
ODD = ToolCall("look", "1", "c1")
NESTED = '{"a":' * 64 + "{}" + "}" * 64


def turns(*after: Message) -> dict[str, Any]:
    return {"messages": (ASKED, *after)}


def calling(*calls: ToolCall) -> Message:
    return Message("assistant", None, calls)


def result(call: str) -> Message:
    return Message("tool", "21", call=call)


BAD: list[tuple[str, Errno, str, dict[str, Any]]] = [
    ("tools", Errno.EMSGSIZE, "65", {"tools": tuple(Tool(f"t{i}") for i in range(65))}),
    ("tools", Errno.EINVAL, "twice", {"tools": (LOOK, FIND, LOOK)}),
    ("tools", Errno.EINVAL, "[1].name", {"tools": (LOOK, Tool("a b"))}),
    ("tools", Errno.EINVAL, "letters", {"tools": (Tool(""),)}),
    ("tools", Errno.EINVAL, "letters", {"tools": (Tool("n" * 65),)}),
    ("tools", Errno.EINVAL, "letters", {"tools": (Tool("look\n"),)}),
    ("tools", Errno.EINVAL, "choice", {"tools": (Tool("auto"),)}),
    ("tools", Errno.EMSGSIZE, "4097", {"tools": (Tool("look", "x" * 4097),)}),
    ("tools", Errno.EINVAL, "parameters", {"tools": (Tool("look", "", "{"),)}),
    ("tools", Errno.EINVAL, "parameters", {"tools": (Tool("look", "", "[]"),)}),
    ("tools", Errno.EINVAL, "parameters", {"tools": (Tool("look", "", '{"a": "\\ud800"}'),)}),
    ("tools", Errno.EINVAL, "deep", {"tools": (Tool("look", "", NESTED),)}),
    ("choice", Errno.EINVAL, "names no tool", {"choice": "look"}),
    ("choice", Errno.EINVAL, "names no tool", {"choice": "required"}),
    ("choice", Errno.EINVAL, "auto, none, required, look", {"tools": (LOOK,), "choice": "find"}),
    ("choice", Errno.EINVAL, "names no tool", {"tools": (LOOK,), "choice": ""}),
    ("schema", Errno.EINVAL, "JSON object", {"schema": "{"}),
    ("schema", Errno.EINVAL, "JSON object", {"schema": "true"}),
    ("schema", Errno.EINVAL, "JSON object", {"schema": '{"a": NaN}'}),
    ("schema", Errno.EINVAL, "deep", {"schema": NESTED}),
    ("schema", Errno.EMSGSIZE, "65538", {"schema": '{"a":"' + "é" * 32_765 + '"}'}),
    ("schema", Errno.EINVAL, "not both", {"schema": "{}", "tools": (LOOK,)}),
    ("logprobs", Errno.EINVAL, "-1 to 20", {"logprobs": -2}),
    ("logprobs", Errno.EINVAL, "-1 to 20", {"logprobs": 21}),
    ("logprobs", Errno.EMSGSIZE, "32768", {"logprobs": 20, "max_tokens": 1561}),
    ("messages", Errno.EMSGSIZE, "characters", {"tools": (Tool("look", "", " " * 65_530 + "{}"),)}),
    ("messages", Errno.EINVAL, "makes no calls", turns(Message("user", "x", (ONE,)))),
    ("messages", Errno.EINVAL, "answers no call", turns(Message("user", "x", call="c1"))),
    ("messages", Errno.EINVAL, "'c1' is no open", turns(result("c1"))),
    ("messages", Errno.EINVAL, "messages[1]: call 'c1' has no", turns(calling(ONE))),
    ("messages", Errno.EINVAL, "'c2' has no", turns(calling(ONE, TWO), result("c1"))),
    ("messages", Errno.EINVAL, "'c2' has no", turns(calling(ONE, TWO), result("c1"), ASKED)),
    ("messages", Errno.EINVAL, "messages[3]", turns(calling(ONE), result("c1"), result("c1"))),
    ("messages", Errno.EINVAL, "'' is no open", turns(calling(ONE), result(""))),
    ("messages", Errno.EINVAL, "twice", turns(calling(ONE, ONE), result("c1"), result("c1"))),
    ("messages", Errno.EINVAL, ".id", turns(calling(ToolCall("look", "{}")), result(""))),
    ("messages", Errno.EINVAL, ".name", turns(calling(ToolCall("a b", "{}", "c1")), result("c1"))),
    ("messages", Errno.EINVAL, ".arguments", turns(calling(ODD), result("c1"))),
    ("messages", Errno.EINVAL, "65 calls",
     turns(calling(*(ToolCall("a", "{}", f"c{i}") for i in range(65))))),
]  # fmt: skip


@pytest.mark.parametrize(("field", "errno", "words", "fields"), BAD)
def test_a_broken_rule_is_named(field: str, errno: Errno, words: str, fields: Any) -> None:
    desk = Desk()
    failed = desk.ask(MAIL, chat(**{"user": "ana", **fields}))
    assert isinstance(failed, m.Failed), failed
    assert (failed.field, failed.errno) == (field, errno), failed
    assert words in failed.message
    assert len(failed.message) < 300
    assert not desk.state.calls


@pytest.mark.parametrize(
    "fields",
    [{"tools": (LOOK, FIND), "choice": "find"}, {"tools": (LOOK,), "choice": "required"},
     {"choice": "none"}, {"logprobs": 20, "max_tokens": 1560}, {"schema": "{}", "logprobs": 0},
     {"tools": (Tool("look", "x" * 4096, ""),), "choice": "none"},
     turns(calling(ONE, TWO), result("c2"), result("c1"), ASKED),
     turns(Message("assistant", '{"name": "look"}'), result(""), result(""))],
)  # fmt: skip
def test_what_keeps_to_the_rules_is_asked_as_it_stands(fields: Any) -> None:
    desk = Desk()
    request = chat(user="ana", memory=False, **fields)
    desk.ask(MAIL, request)
    render = desk.one(ins.Render)
    assert (render.messages, render.tools, render.choice) == (
        request.messages, request.tools, request.choice
    )  # fmt: skip
    desk.render()
    desk.up()
    decode = desk.one(ins.Decode)
    for field in ("tools", "choice", "schema", "logprobs"):
        assert getattr(decode, field) == getattr(request, field)


def logged(word: str) -> tuple[Logprob, ...]:
    return (Logprob(word.encode(), -0.5),)


def test_calls_come_with_the_reply_alone_and_log_probabilities_in_order() -> None:
    desk = Desk()
    decode = desk.decoding(MAIL, user="ana", tools=(LOOK, FIND), logprobs=0, stream=True)
    about = {"model": decode.model, "gen": decode.gen, "key": decode.key}
    desk.tell(ev.Token, **about, text="I ", logprobs=logged("I "))
    assert [r.message for r in desk.all(ins.Reply)] == [m.Part(text="I ")]
    desk.tell(ev.Token, **about, text="", tokens=0, logprobs=logged("{"))
    assert not desk.all(ins.Reply)
    made = (ToolCall("look", "{}"), ToolCall("find", '{"a": 1}'), ToolCall("look", "{}"))
    desk.done(decode, calls=made, logprobs=logged("}"), output_tokens=3)
    reply = desk.reply()
    assert [one.token for one in reply.logprobs] == [b"I ", b"{", b"}"]
    assert [(c.name, c.arguments) for c in reply.calls] == [
        ("look", "{}"), ("find", '{"a": 1}'), ("look", "{}")
    ]  # fmt: skip
    ids = [call.id for call in reply.calls]
    assert len(set(ids)) == 3
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    # They go back as they came.
    after = (Message("assistant", reply.text, reply.calls), *map(result, reversed(ids)))
    desk.ask(MAIL, chat(user="ana", memory=False, **turns(*after)))
    assert desk.one(ins.Render).messages[1:] == after


def test_ids_are_made_by_the_call_alone() -> None:
    def ids() -> list[str]:
        desk = Desk()
        decode = desk.decoding(MAIL, user="ana", tools=(LOOK,))
        desk.done(decode, calls=(ToolCall("look", "{}", "theirs"),) * 2)
        return [call.id for call in desk.reply().calls]

    assert ids() == ids()


def test_a_second_try_begins_anew() -> None:
    desk = Desk()
    decode = desk.decoding(MAIL, user="ana", tools=(LOOK,), logprobs=0)
    desk.tell(ev.Token, model="small", gen=1, key=decode.key, text="a", logprobs=logged("a"))
    desk.die()
    desk.sleep(1_000_000_000)
    desk.up(gen=2)
    again = desk.one(ins.Decode)
    assert (again.gen, again.tools, again.logprobs) == (2, (LOOK,), 0)
    desk.tell(ev.Token, model="small", gen=2, key=again.key, text="b", logprobs=logged("b"))
    desk.done(again, calls=(ToolCall("look", "{}"),), logprobs=logged("c"))
    reply = desk.reply()
    assert reply.text == "b"
    assert [one.token for one in reply.logprobs] == [b"b", b"c"]
    assert len(reply.calls) == 1


def test_a_fallback_begins_anew_with_the_same_tools() -> None:
    models = (ModelConfig("far", "x", 2048, fallbacks=("near",)), ModelConfig("near", "x", 2048))
    desk = Desk(models=models)
    decode = desk.decoding(MAIL, user="ana", tools=(LOOK,), logprobs=0)
    desk.tell(ev.Token, model="far", gen=1, key=decode.key, text="a", logprobs=logged("a"))
    desk.done(decode, errno=Errno.EIO, message="gone", logprobs=logged("x"))
    assert desk.one(ins.Render).tools == (LOOK,)
    desk.render()
    desk.up("near", 1)
    again = desk.one(ins.Decode)
    assert (again.model, again.tools) == ("near", (LOOK,))
    desk.done(again, logprobs=logged("b"))
    assert [one.token for one in desk.reply().logprobs] == [b"b"]
    assert desk.reply().calls == ()


def test_a_schema_that_only_the_driver_can_refuse_is_named() -> None:
    desk = Desk()
    decode = desk.decoding(MAIL, user="ana", schema='{"pattern": "("}')
    desk.done(decode, errno=Errno.EINVAL, message="no grammar", field="schema")
    failed = desk.reply()
    assert (failed.errno, failed.field, failed.message) == (Errno.EINVAL, "schema", "no grammar")


@pytest.mark.parametrize(("text", "kept"), [("", ""), ("I look.", "I look.\n")])
def test_a_kept_turn_with_calls_is_its_words(text: str, kept: str) -> None:
    desk = Desk()
    decode = desk.decoding(PLAN, user="ana", keep=True, tools=(LOOK,))
    desk.token(decode, text)
    arguments = json.dumps({"city": "Rome"})
    desk.done(decode, calls=(ToolCall("look", arguments), ToolCall("look", "{}")))
    op: Any = desk.one(ins.Commit).op
    assert op.text == f'User: when?\nAssistant: {kept}look({{"city": "Rome"}})\nlook({{}})'
    desk.commit(op)
    assert desk.reply().kept == op.id
    assert len(desk.reply().calls) == 2
