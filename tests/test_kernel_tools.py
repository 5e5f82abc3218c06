"""Tools, schemas and log probabilities through the whole kernel; a round trip on each driver."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from driver_helpers import real_model
from endpoint_helpers import completions, delta, event, refuses, says, streams, usage
from kernel_helpers import client, config, running, short_folder
from msgspec.structs import replace

from isovist.kernel.endpoints import Endpoint
from isovist.kernel.models import SCRIPTED, ModelSpec, available
from isovist.kernel.tokens import BoundCounter, EstimateCounter
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.messages import Chatted, MemorySearch
from isovist.syscalls.records import Message, Tool, ToolCall
from isovist.syscalls.tools import offer, render, request_of

HANGS_S = 300
CITY = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
WEATHER, TRAFFIC = Tool("weather", "The weather of a city.", CITY), Tool("traffic", "", CITY)
ASKED = Message("user", "weather and traffic?")


@asynccontextmanager
async def chats(**more: Any) -> AsyncIterator[AsyncClient]:
    with short_folder() as folder, trio.fail_after(HANGS_S):
        async with (
            running(Path(folder), **more) as kernel,
            client(kernel, "one", operator=True, user="ana") as k,
        ):
            yield k


def results(reply: Chatted, *texts: str) -> tuple[Message, ...]:
    """The turn of a reply, then the results of its calls, the last call's first."""
    told = zip(reply.calls, texts, strict=True)
    answers = [Message("tool", text, call=call.id) for call, text in told]
    return (Message("assistant", reply.text, reply.calls), *reversed(answers))


async def test_several_calls_of_a_turn_and_the_answer_to_their_results() -> None:
    async with chats() as k:
        reply = await k.chat((ASKED,), tools=(WEATHER, TRAFFIC))
        assert (reply.text, reply.finish) == ("", "stop")
        assert [(c.name, json.loads(c.arguments)) for c in reply.calls] == [
            ("weather", {"city": ASKED.content}), ("traffic", {"city": ASKED.content})
        ]  # fmt: skip
        assert reply.output_tokens > 0
        turns = (ASKED, *results(reply, "rain", "jam"))
        answer = await k.chat(turns, tools=(WEATHER, TRAFFIC))
        assert (answer.text, answer.calls) == ("jam\nrain", ())
        with pytest.raises(CallerError) as e:
            await k.chat(turns[:-1], tools=(WEATHER, TRAFFIC))
        assert e.value.field == "messages"
        assert reply.calls[0].id in e.value.message


async def silent(k: AsyncClient, prompt: Any, **more: Any) -> Chatted:
    """The reply of a streamed chat that streams nothing."""
    stream = await k.stream(prompt, **more)
    assert [part async for part in stream] == []
    return stream.reply


async def test_a_streamed_call_comes_with_the_final_reply_alone() -> None:
    async with chats() as k:
        reply = await silent(k, (ASKED,), tools=(WEATHER,), logprobs=0)
        assert [call.name for call in reply.calls] == ["weather"]
        # Many of them go ahead of the end, and no text with them.
        assert len(reply.logprobs) == reply.output_tokens
        long = Tool("traffic", "", CITY.replace('"string"', '"string", "minLength": 800'))
        reply = await silent(k, "traffic " * 90, tools=(long,), logprobs=1, max_tokens=200)
        assert len(reply.logprobs) == reply.output_tokens > 64
        text = b"".join(one.token for one in reply.logprobs).decode()
        assert json.loads(text)["name"] == "traffic"
        # A call that is cut off is a text.
        reply = await k.chat((ASKED,), tools=(WEATHER,), max_tokens=5)
        assert (reply.finish, reply.calls) == ("length", ())
        assert reply.text.startswith('{"name')


async def test_a_schema_binds_the_answer_and_a_bad_one_is_named() -> None:
    async with chats() as k:
        reply = await k.chat("Rome", schema=CITY)
        assert json.loads(reply.text) == {"city": "Rome"}
        for schema in ("{", '{"type": "string", "pattern": "a+"}'):
            with pytest.raises(CallerError) as e:
                await k.chat("Rome", schema=schema)
            assert (e.value.errno, e.value.field) == (Errno.EINVAL, "schema")
        bad = Tool("weather", "", '{"required": ["a"], "additionalProperties": false}')
        with pytest.raises(CallerError) as e:
            await k.chat("Rome", tools=(bad,), choice="weather")
        assert (e.value.errno, e.value.field) == (Errno.EINVAL, "tools")
        # Counting reads the tools first, and may be the one to refuse them.
        strange = Tool("weather", "", '{"$ref": "http://example.org"}')
        with pytest.raises(CallerError) as e:
            await k.chat("Rome", tools=(strange,))
        assert (e.value.errno, e.value.field) == (Errno.EINVAL, "tools")


async def test_log_probabilities_are_of_all_tokens_in_order() -> None:
    async with chats() as k:
        reply = await k.chat("!script text=on Tuesday, at nine", logprobs=2)
        assert b"".join(one.token for one in reply.logprobs).decode() == reply.text
        assert len(reply.logprobs) == reply.output_tokens
        assert all(one.logprob == 0 and one.top == ((one.token, 0.0),) for one in reply.logprobs)
        assert (await k.chat("!script text=on Tuesday")).logprobs == ()


@pytest.mark.promise("budget.tokens")
async def test_tools_count_before_the_prompt_is_sent() -> None:
    long = Tool("weather", "word " * 120, CITY)
    async with chats(models=[replace(SCRIPTED, context=256)]) as k:
        await k.remember("The weather in Rome is mild. " + "It is mild there. " * 4)
        asked = "How mild is the weather in Rome?"
        plain = await k.chat(asked, max_tokens=16, budget=100)
        assert plain.injected
        offered = await k.chat(asked, max_tokens=16, budget=100, tools=(long,))
        assert offered.prompt_tokens > 150
        assert offered.prompt_tokens + 16 <= 256
        assert not offered.injected, "memory makes room for the tools"
        with pytest.raises(CallerError) as e:
            await k.chat("weather?", tools=(long,), max_tokens=100)
        assert (e.value.errno, e.value.field) == (Errno.EMSGSIZE, "messages")
        reply = await k.chat("weather?", tools=(long,), choice="none", max_tokens=100)
        assert reply.prompt_tokens < 100


async def test_a_kept_exchange_with_calls_reads_as_words() -> None:
    async with chats() as k:
        asked = "What is the weather?"
        reply = await k.chat(asked, tools=(WEATHER,), keep=True, session="s")
        unit = (await k.read(reply.kept)).units[0]
        said = f"weather({reply.calls[0].arguments})"
        assert unit.text == f"User: {asked}\nAssistant: {said}"
        record = await k.why(reply.call)
        assert record.prompt_tokens == reply.prompt_tokens
        assert "None" not in unit.text


async def test_memory_can_be_a_models_own_tool() -> None:
    async with chats() as k:
        await k.remember("The locker has number 4417.")
        tools = offer()
        asked = Message("user", "Which locker?")
        reply = await k.chat((asked,), tools=tools, choice="required", memory=False)
        (call,) = reply.calls
        request = request_of(call.name, call.arguments)
        assert request == MemorySearch(query="Which locker?")
        text = render(await k.call(request))
        turns = (asked, *results(reply, text))
        assert "4417" in (await k.chat(turns, tools=tools, memory=False)).text


# -- llama


async def test_a_round_trip_with_a_real_model() -> None:
    path = real_model()
    spec = ModelSpec(name="real", driver="llama", path=path, context=1024)
    where = '{"properties": {"city": {"enum": ["Rome"]}}, "required": ["city"], ' \
            '"additionalProperties": false}'  # fmt: skip
    weather = Tool("weather", "The weather of a city.", where)
    async with chats(models=[spec, SCRIPTED], model="real") as k:
        asked = Message("user", "How is the weather in Rome?")
        reply = await k.chat(
            (asked,), tools=(weather,), choice="required", max_tokens=60, logprobs=2
        )
        (call,) = reply.calls
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})
        assert reply.text == ""
        assert len(reply.logprobs) == reply.output_tokens
        assert json.loads(b"".join(one.token for one in reply.logprobs))["name"] == "weather"
        assert all(len(one.top) == 2 for one in reply.logprobs)

        turns = (asked, *results(reply, "It rains, 21 degrees."))
        answer = await k.chat(turns, tools=(weather,), choice="none", max_tokens=24)
        assert answer.text
        again = await k.chat(turns, tools=(weather,), max_tokens=24, choice="weather")
        # The turn that made the call is not computed again.
        assert again.cached_tokens > reply.prompt_tokens

        two = (call, ToolCall("weather", call.arguments, "second"))
        many = (
            asked,
            Message("assistant", None, two),
            Message("tool", "It rains.", call="second"),
            Message("tool", "It is dry.", call=call.id),
        )
        reply = await k.chat(many, tools=(weather,), max_tokens=24, choice="none")
        assert reply.text
        assert reply.prompt_tokens > answer.prompt_tokens

        text = (await k.chat("A number.", schema='{"type": "integer"}', max_tokens=8)).text
        assert isinstance(json.loads(text), int)
        with pytest.raises(CallerError) as e:
            await k.chat("hi", schema='{"type": "no such type"}', max_tokens=4)
        assert (e.value.errno, e.value.field) == (Errno.EINVAL, "schema")
        with pytest.raises(CallerError) as e:
            await k.chat("hi", tools=(Tool("t", "", '{"type": "object", "$ref": "x"}'),))
        assert (e.value.errno, e.value.field) == (Errno.EINVAL, "tools")


# -- an endpoint


@asynccontextmanager
async def far(url: str, **more: Any) -> AsyncIterator[AsyncClient]:
    with short_folder() as folder:
        endpoint = Endpoint(url=url, model="m", tries=1)
        specs = available(config(Path(folder), endpoints={"far": endpoint}))
        async with chats(models=specs, model="far", **more) as k:
            yield k


def calls(*made: tuple[str, str], said: str = "") -> Any:
    """An answer that calls tools, as endpoints stream it; with ids of its own."""
    pieces = [
        event(**delta(tool_calls=[{"index": at, "id": f"theirs_{at}", "function": {"name": name}}]))
        for at, (name, _) in enumerate(made)
    ]
    pieces += [
        event(**delta(tool_calls=[{"index": at, "function": {"arguments": arguments}}]))
        for at, (_, arguments) in enumerate(made)
    ]
    said_first = [event(**delta(content=said))] if said else []
    end = [event(**delta("tool_calls")), event(**usage(11, 7)), b"data: [DONE]\n\n"]
    return streams(*said_first, *pieces, *end)


async def test_a_round_trip_with_an_endpoint() -> None:
    with completions(
        calls(("weather", '{"city": "Rome"}'), ("traffic", "{}"), said="I look."), says("jam")
    ) as server:
        async with far(server.url) as k:
            reply = await k.chat((ASKED,), tools=(WEATHER, TRAFFIC), choice="required")
            assert reply.text == "I look."
            assert [(c.name, c.arguments) for c in reply.calls] == [
                ("weather", '{"city": "Rome"}'), ("traffic", "{}")
            ]  # fmt: skip
            turns = (ASKED, *results(reply, "rain", "jam"))
            assert (await k.chat(turns, tools=(WEATHER, TRAFFIC))).text == "jam"
        first, second = server.seen
    assert first["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in first["tools"]] == ["weather", "traffic"]
    one, two = reply.calls
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": call.arguments}}
                for call in (one, two)
            ],
        },
        {"role": "tool", "tool_call_id": two.id, "content": "jam"},
        {"role": "tool", "tool_call_id": one.id, "content": "rain"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("turn", "choice"),
    [(calls(("search", "{}")), "auto"), (calls(("traffic", "{}")), "weather"),
     (calls(("weather", "{}")), "none"), (calls(("weather", "[]")), "auto"),
     (says("sunny"), "required"), (calls(*[("weather", "{}")] * 65), "auto"),
     (calls(("weather", "x" * (1 << 17))), "auto")],
)  # fmt: skip
async def test_a_call_that_was_not_asked_for_is_the_endpoints_failure(
    turn: Any, choice: str
) -> None:
    with completions(turn) as server:
        async with far(server.url) as k:
            with pytest.raises(WorldError) as e:
                await k.chat((ASKED,), tools=(WEATHER, TRAFFIC), choice=choice)
    assert e.value.errno is Errno.EIO


async def test_an_endpoint_that_fails_gives_its_tools_to_the_next() -> None:
    with completions(refuses(503)) as server:
        async with far(server.url, fallbacks={"far": ("scripted",)}) as k:
            reply = await k.chat((ASKED,), tools=(WEATHER,), logprobs=0)
    assert reply.model == "scripted"
    assert [call.name for call in reply.calls] == ["weather"]
    assert len(reply.logprobs) == reply.output_tokens


def logged(word: str, top: int) -> dict[str, Any]:
    chosen = {"token": word, "logprob": -0.5}
    return {"content": [{**chosen, "top_logprobs": [chosen] * top}]}


async def test_log_probabilities_of_an_endpoint_are_no_more_than_was_asked_for() -> None:
    def answer(many: int, *texts: str) -> Any:
        pieces = [delta(content=text) for text in texts] or [delta() for _ in range(many)]
        for piece in pieces:
            piece["choices"][0]["logprobs"] = logged("x" * 300, 9)
        return streams(*(event(**piece) for piece in pieces), event(**delta("stop")))

    with completions(answer(0, "a", "b"), answer(0, "a"), answer(100), answer(9 * 8)) as server:
        async with far(server.url) as k:
            reply = await k.chat((ASKED,), logprobs=2)
            assert [(len(one.token), len(one.top)) for one in reply.logprobs] == [(256, 2)] * 2
            assert (await k.chat((ASKED,))).logprobs == ()
            assert len((await k.chat((ASKED,), logprobs=0)).logprobs) == 100
            with pytest.raises(WorldError):
                await k.chat((ASKED,), logprobs=0, max_tokens=8)


async def test_the_bound_holds_calls_and_tools() -> None:
    said = (ASKED, Message("assistant", None, (ToolCall("weather", "{}", "c1"),)))
    bound, estimate = BoundCounter(), EstimateCounter()
    words = len(ASKED.content or "")
    assert await bound.prompt(said) == 64 + 16 + words + 16 + 11 + 16
    tool = Tool("weather", "wéather", "{}")
    assert await bound.prompt(said, (tool,), "none") - await bound.prompt(said) == 256 + 32 + 17
    assert await estimate.prompt(said, (tool,)) - await estimate.prompt(said) == 256 + 32 + 6
