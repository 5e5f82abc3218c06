"""Answers over HTTP, from a server on this machine that fails as a test wants it to."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from driver_helpers import user
from endpoint_helpers import (
    Completions,
    Turn,
    breaks,
    completions,
    delta,
    drops,
    event,
    holds,
    refuses,
    says,
    streams,
    usage,
)

from isovist.kernel.drivers.completions import Answer, Dialect, body, spoken
from isovist.kernel.drivers.protocol import Generate, Token
from isovist.kernel.drivers.remote import (
    PATIENCE_S,
    Address,
    Remote,
    Times,
    is_local,
    retry_after,
)
from isovist.kernel.drivers.sse import EVENT_BYTES, Events
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError
from isovist.syscalls.records import Message, Tool, ToolCall

KEY = "sk-quite-a-secret-0123456789"
ASKED = Generate(1, user("when?"), 32)


class Asked:
    """A request that was sent until it had its end."""

    def __init__(self, remote: Remote, request: Generate) -> None:
        self.tokens: list[Token] = []
        self.times = Times()
        self.answer: Answer | None = None
        self.error: IsovistError | None = None
        self._remote, self._request = remote, request

    async def run(self) -> Asked:
        try:
            self.answer = await self._remote.answer(self._request, self.tokens.append, self.times)
        except IsovistError as e:
            self.error = e
        return self

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


async def ask(server: Completions, request: Generate = ASKED, **more: Any) -> Asked:
    fields = {"key": KEY, "variable": "THE_KEY", "backoff_s": 0.001, "silence_s": 30.0, **more}
    remote = Remote(Address(server.url, "m", **fields), random.Random(1))
    try:
        return await Asked(remote, request).run()
    finally:
        await remote.aclose()


# -- what is sent


async def test_a_request_in_the_endpoints_form() -> None:
    request = Generate(
        1, user("when?"), 9, temperature=0.5, seed=7, stop=("A", "B", "C", "D", "E"), logprobs=2
    )
    with completions() as server:
        done = await ask(server, request)
    assert done.text == "word0 word1"
    (sent,), (key,) = server.seen, server.keys
    assert sent == {
        "path": "/v1/chat/completions",
        "model": "m",
        "messages": [{"role": "user", "content": "when?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 7,
        "stop": ["A", "B", "C", "D"],
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert key == f"Bearer {KEY}"


OTHER = Dialect(
    omit=("temperature", "stream_options"), length="max_completion_tokens", form="json_object"
)


def test_fields_that_an_endpoint_does_not_take_are_left_out() -> None:
    sent = json.loads(body(ASKED, "m", OTHER))
    assert sent.keys() == {"model", "messages", "stream", "max_completion_tokens"}


def test_schemas_and_tools_are_sent() -> None:
    schema = json.loads(
        body(Generate(1, user("x"), 9, schema='{"type": "object"}'), "m", Dialect())
    )
    assert schema["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": {"type": "object"}},
    }
    other = json.loads(body(Generate(1, user("x"), 9, schema='{"type": "object"}'), "m", OTHER))
    assert other["response_format"] == {"type": "json_object", "schema": {"type": "object"}}
    tools = (Tool("book", "books", '{"type": "object"}'),)
    sent = json.loads(body(Generate(1, user("x"), 9, tools=tools, choice="book"), "m", Dialect()))
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "book"}}
    assert sent["tools"][0]["function"] == {
        "name": "book", "description": "books", "parameters": {"type": "object"},
    }  # fmt: skip
    for wrong in (
        Generate(1, user("x"), 9, tools=tools, choice="other"),
        Generate(1, user("x"), 9, schema="[]"),
        Generate(1, user("x"), 9, tools=(Tool("t", "", "{"),)),
    ):
        with pytest.raises(CallerError):
            body(wrong, "m", Dialect())


def test_a_result_answers_the_call_before_it_and_is_said_by_the_user_without_one() -> None:
    call = '{"name": "book", "arguments": {"day": 2}}'
    said = spoken(
        (Message("user", "book it"), Message("assistant", call), Message("tool", "done"),
         Message("assistant", "I have."), Message("tool", "stray"))
    )  # fmt: skip
    assert said[1]["tool_calls"][0]["function"] == {"name": "book", "arguments": '{"day": 2}'}
    assert said[2] == {
        "role": "tool", "tool_call_id": said[1]["tool_calls"][0]["id"], "content": "done",
    }  # fmt: skip
    assert said[4] == {"role": "user", "content": "Result of a tool:\nstray"}


# -- what is answered


async def test_an_answer_with_what_it_cost() -> None:
    with completions(says("on", " Tuesday", finish="length")) as server:
        done = await ask(server)
    assert done.answer is not None
    assert [token.text for token in done.tokens] == ["on", " Tuesday"]
    assert done.answer.finish == "length"
    assert (done.answer.prompt_tokens, done.answer.cached_tokens) == (11, 3)
    assert done.answer.output_tokens == 2
    assert done.times.tries == 1
    assert done.times.start <= done.times.first


async def test_a_connection_is_used_again() -> None:
    with completions() as server:
        remote = Remote(Address(server.url, "m"))
        for _ in range(3):
            assert (await Asked(remote, ASKED).run()).text == "word0 word1"
        await remote.aclose()
    assert len(server.seen) == 3
    assert len(server.connections) == 1


async def test_a_call_of_a_tool_comes_in_fragments() -> None:
    def part(**function: str) -> bytes:
        return event(**delta(tool_calls=[{"index": 0, "function": function}]))

    turn = streams(
        part(name="book", arguments=""), part(arguments='{"day"'), part(arguments=": 2}"),
        event(**delta("tool_calls")), b"data: [DONE]\n\n",
    )  # fmt: skip
    request = Generate(1, user("x"), 9, tools=(Tool("book"),))
    with completions(turn) as server:
        done = await ask(server, request)
    assert done.answer is not None
    assert done.answer.calls() == (ToolCall("book", '{"day": 2}'),)
    assert not done.tokens


async def test_a_call_of_nothing_that_was_offered_is_tried_again_then_an_error() -> None:
    call = [{"index": 0, "function": {"name": "rm", "arguments": "{}"}}]
    turn = streams(event(**delta("tool_calls", tool_calls=call)))
    request = Generate(1, user("x"), 9, tools=(Tool("book"),))
    with completions(turn, turn) as server:
        done = await ask(server, request, tries=2)
    assert done.error is not None
    assert done.error.errno is Errno.EIO
    assert len(server.seen) == 2


async def test_logprobs_go_with_their_text() -> None:
    chosen = {
        "token": "é", "logprob": -0.5, "bytes": [195, 169],
        "top_logprobs": [{"token": "e", "logprob": -1.5}],
    }  # fmt: skip
    chunk = delta("stop", content="é")
    chunk["choices"][0]["logprobs"] = {"content": [chosen]}
    with completions(streams(event(**chunk))) as server:
        done = await ask(server, Generate(1, user("x"), 9, logprobs=1))
    (logprob,) = done.tokens[0].logprobs
    assert (logprob.token, logprob.logprob, logprob.top) == ("é".encode(), -0.5, ((b"e", -1.5),))


async def test_an_answer_ends_before_a_stop_string_that_no_server_looked_for() -> None:
    stops = ("1", "2", "3", "4", "END")
    with completions(holds("on Tues", "day E", "ND and more")) as server:
        done = await ask(server, Generate(1, user("x"), 32, stop=stops))
    assert done.text == "on Tuesday "
    assert done.answer is not None
    assert done.answer.finish == "stop"


async def test_a_server_that_never_stops_is_left() -> None:
    with completions(holds(*"abcdefghijklmnopq")) as server:
        done = await ask(server, Generate(1, user("x"), 2))
        assert server.gone.wait(10)
    assert done.text == "abcdefghijklmnop"
    assert done.answer is not None
    assert done.answer.finish == "length"


async def test_the_last_word_ends_an_answer_that_gives_no_reason() -> None:
    with completions(streams(event(**delta(content="on")), b"data: [DONE]\n\n")) as server:
        done = await ask(server)
    assert done.text == "on"
    assert done.answer is not None
    assert done.answer.finish == "stop"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    whole = {
        "choices": [{"message": {"content": "on Tuesday"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3},
    }

    def turn(it: Any) -> None:
        it.begin(200, "application/json")
        it.piece(json.dumps(whole).encode())
        it.end()

    with completions(turn) as server:
        done = await ask(server)
    assert done.text == "on Tuesday"
    assert done.answer is not None
    assert done.answer.output_tokens == 3


async def test_an_answer_that_is_no_json_breaks_its_schema() -> None:
    with completions(says("of course!")) as server:
        done = await ask(server, Generate(1, user("x"), 9, schema="{}"))
    assert done.error is not None
    assert "schema" in done.error.message
    with completions(says("nu", "ll")) as server:
        done = await ask(server, Generate(1, user("x"), 9, schema="{}"))
    assert done.error is None


# -- what is tried again

PASSING: list[tuple[str, Turn]] = [
    ("429", refuses(429)),
    ("500", refuses(500)),
    ("503 with words", refuses(503, b"<html>")),
    ("no answer", drops),
    ("broken before the first token", breaks()),
    ("ended before the first token", streams(event(**delta(role="assistant")))),
    ("no JSON", streams(b"data: {broken\n\n")),
    ("an endless event", streams(b"data: " + b"x" * (EVENT_BYTES + 1))),
    ("an error in the stream", streams(event(error={"code": 500, "message": "oh"}))),
    ("an error as a word", streams(event(error="oh"))),
]


@pytest.mark.parametrize("turn", [turn for _, turn in PASSING], ids=[name for name, _ in PASSING])
async def test_what_may_pass_is_tried_again(turn: Turn) -> None:
    with completions(turn, turn) as server:
        done = await ask(server)
    assert done.error is None
    assert done.text == "word0 word1"
    assert done.times.tries == len(server.seen) == 3


@pytest.mark.parametrize(
    ("status", "errno"),
    [(500, Errno.EIO), (502, Errno.EIO), (503, Errno.EAGAIN), (429, Errno.EAGAIN)],
)
async def test_tries_come_to_an_end(status: int, errno: Errno) -> None:
    with completions() as server:
        server.then = refuses(status)
        done = await ask(server, tries=3)
    assert isinstance(done.error, WorldError)
    assert done.error.errno is errno
    assert str(status) in done.error.message
    assert len(server.seen) == 3


@pytest.mark.parametrize("turn", [breaks("on"), streams(event(**delta(content="on")))])
async def test_a_stream_cut_after_its_first_token_is_not_begun_again(turn: Turn) -> None:
    with completions(turn) as server:
        done = await ask(server)
    assert done.text == "on"
    assert done.error is not None
    assert done.error.errno is Errno.EIO
    assert len(server.seen) == 1


@pytest.mark.parametrize("turn", [breaks("EN"), streams(event(**delta(content="EN")))])
async def test_text_that_was_held_back_may_still_be_begun_again(turn: Turn) -> None:
    """Nobody has seen the beginning of what may be a stop string."""
    with completions(turn, says("fine")) as server:
        done = await ask(server, Generate(1, user("x"), 9, stop=("END",)))
    assert done.text == "fine"


@pytest.mark.parametrize("words", [(), ("on",)])
async def test_a_slow_server_is_left(words: tuple[str, ...]) -> None:
    with completions() as server:
        server.then = holds(*words)
        done = await ask(server, silence_s=0.3, tries=2)
        assert server.gone.wait(10)
    assert done.error is not None
    assert done.error.errno is Errno.ETIMEDOUT
    assert len(server.seen) == (1 if words else 2)


async def test_an_address_where_nobody_listens() -> None:
    with completions() as server:
        pass
    done = await ask(server, tries=2)
    assert done.error is not None
    assert done.error.errno is Errno.EIO
    assert done.times.tries == 2


# -- Retry-After


async def test_a_pause_that_is_asked_for_is_made() -> None:
    with completions(refuses(429, Retry_After="0.05")) as server:
        done = await ask(server)
    assert done.error is None
    assert done.times.tries == 2


async def test_a_long_pause_is_the_callers_to_make_and_holds_for_all() -> None:
    with completions(refuses(429, Retry_After="900")) as server:
        remote = Remote(Address(server.url, "m"))
        first = await Asked(remote, ASKED).run()
        second = await Asked(remote, ASKED).run()
        await remote.aclose()
    for failed in (first, second):
        assert failed.error is not None
        assert failed.error.errno is Errno.EAGAIN
        assert PATIENCE_S * 1e9 < failed.error.retry_at <= 900e9
    assert len(server.seen) == 1, "it was asked again before its time"


NOW, LATER = "Mon, 30 Nov 2026 08:00:00 GMT", "Mon, 30 Nov 2026 08:01:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": LATER, "date": NOW}, 90.0),
        ({"retry-after": NOW, "date": LATER}, 0.0),
        ({"retry-after": "Mon, 30 Nov 2020 08:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "9" * 400}, None),
    ],
)
def test_the_pause_is_a_number_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


async def test_an_empty_account_is_not_asked_again() -> None:
    with completions(refuses(429, b'{"error": {"code": "insufficient_quota"}}')) as server:
        done = await ask(server)
    assert done.error is not None
    assert done.error.errno is Errno.EAGAIN
    assert len(server.seen) == 1


# -- who is at fault

LONG = b'{"error": {"code": "context_length_exceeded", "message": "too long"}}'


@pytest.mark.parametrize(
    ("status", "said", "branch", "errno"),
    [
        (400, b"{}", CallerError, Errno.EINVAL),
        (422, b'{"detail": []}', CallerError, Errno.EINVAL),
        (400, LONG, CallerError, Errno.EMSGSIZE),
        (413, b"", CallerError, Errno.EMSGSIZE),
        (401, b"{}", WorldError, Errno.EACCES),
        (403, b"{}", WorldError, Errno.EACCES),
        (404, b"{}", WorldError, Errno.EIO),
        (302, b"", WorldError, Errno.EIO),
    ],
)
async def test_a_refusal_is_by_whose_fault_it_is(
    status: int, said: bytes, branch: type[IsovistError], errno: Errno
) -> None:
    with completions(refuses(status, said, Location="http://127.0.0.1:1/v1")) as server:
        done = await ask(server)
    assert isinstance(done.error, branch)
    assert done.error.errno is errno
    assert len(server.seen) == 1, "it fails the same way again"
    assert ("THE_KEY" in done.error.message) == (errno is Errno.EACCES)


async def test_a_filtered_answer_is_an_error() -> None:
    with completions(says("well", finish="content_filter")) as server:
        done = await ask(server)
    assert done.error is not None
    assert "filter" in done.error.message


@pytest.mark.parametrize(
    "turn",
    [
        refuses(401, json.dumps({"error": {"message": f"bad key {KEY}", "code": KEY}}).encode()),
        refuses(400, json.dumps({"error": {"type": KEY, "param": KEY.lower()[3:20]}}).encode()),
        refuses(500, KEY.encode()),
        streams(event(error={"message": KEY, "code": KEY})),
        streams(b"data: " + KEY.encode() + b"\n\n"),
        drops,
    ],
)
async def test_the_key_is_in_no_error(turn: Turn) -> None:
    with completions() as server:
        server.then = turn
        done = await ask(server, tries=1)
    assert done.error is not None
    assert server.keys == [f"Bearer {KEY}"]
    assert "quite-a-secret" not in f"{done.error!r} {done.error} {done.error.__cause__!r}"
    assert "quite-a-secret" not in repr(Address("u", "m", KEY))


# -- parts


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_the_same_wherever_they_are_cut(end: bytes) -> None:
    lines = [
        b"data: a",
        b"data:b",
        b"",
        b": comment",
        b"event: x",
        b"data: \xe2\x80\xa8c",
        b"",
        b"",
    ]
    stream = end.join([*lines, b"data: half"])
    for size in range(1, len(stream) + 1):
        events = Events()
        found = [
            e for at in range(0, len(stream), size) for e in events.feed(stream[at : at + size])
        ]
        assert found == [b"a\nb", b"\xe2\x80\xa8c"], size


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True),
     ("10.0.0.1", False), ("localhost.example.org", False), ("api.openai.com", False)],
)  # fmt: skip
def test_which_hosts_are_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_an_answer_without_a_count_has_as_many_tokens_as_pieces() -> None:
    from isovist.kernel.drivers.completions import read_chunk

    answer = Answer(ASKED)
    for word in ("a", "b", ""):
        answer.feed(read_chunk(json.dumps(delta(content=word)).encode()))
    assert answer.output_tokens == 2
    answer.feed(read_chunk(json.dumps(usage(1, 9)).encode()))
    assert answer.output_tokens == 9
