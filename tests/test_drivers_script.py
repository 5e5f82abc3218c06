"""What the scripted model answers to tools and schemas, and calls as words of a prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from driver_helpers import user

from isovist.kernel.drivers.grammar import read_call
from isovist.kernel.drivers.prompt import ChatTemplate
from isovist.kernel.drivers.protocol import Generate
from isovist.kernel.drivers.sample import sample
from isovist.kernel.drivers.script import plan, scripted_count, scripted_prompt
from isovist.kernel.drivers.turns import told_by_user, worded, words_of
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.fence import CLOSE, OPEN
from isovist.syscalls.records import Message, Tool, ToolCall

CITY = '{"properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}'
WEATHER, TRAFFIC = Tool("weather", "How it is", CITY), Tool("traffic")
ROME, OSLO = ToolCall("weather", '{"city": "Rome"}', "c1"), ToolCall("weather", "{}", "c2")

# -- values for schemas

MADE: list[tuple[dict[str, Any], Any]] = [
    ({}, "Rome now"),
    ({"type": "string"}, "Rome now"),
    ({"type": "string", "minLength": 10}, "Rome now.."),
    ({"type": "string", "maxLength": 4}, "Rome"),
    ({"type": "string", "format": "date"}, "2026-01-31"),
    ({"minLength": 2}, "Rome now"),
    ({"type": "integer"}, 0),
    ({"type": "integer", "minimum": 3}, 3),
    ({"type": "integer", "exclusiveMinimum": 3}, 4),
    ({"type": "integer", "maximum": -3}, -3),
    ({"type": "integer", "minimum": 2.5, "maximum": 3}, 3),
    ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
    ({"type": "number", "minimum": 0.5}, 0.5),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
    ({"type": "boolean"}, True),
    ({"type": "null"}, None),
    ({"type": ["integer", "null"]}, 0),
    ({"const": {"a": 1}}, {"a": 1}),
    ({"enum": ["a", 1]}, "a"),
    ({"enum": ["a", 1], "type": "integer"}, 1),
    ({"type": "array"}, []),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}, [0, 0]),
    ({"items": {"type": "null"}, "minItems": 1}, [None]),
    ({"type": "object"}, {}),
    ({"properties": {"a": {"type": "null"}, "b": {}}, "required": ["a"]}, {"a": None}),
    ({"required": ["a"], "additionalProperties": {"type": "integer"}}, {"a": 0}),
    ({"anyOf": [{"type": "null"}, {"pattern": "x"}], "title": "x"}, None),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 0),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 1}}}, 1),
    (
        {"properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}, "required": ["n"]},
        {"n": 0},
    ),
]


@pytest.mark.parametrize(("schema", "value"), MADE, ids=lambda v: json.dumps(v)[:40])
def test_a_value_matches_its_schema(schema: dict[str, Any], value: Any) -> None:
    assert json.loads(sample(json.dumps(schema), " Rome now\n")) == value


REFUSED: list[tuple[str, str]] = [
    ("[]", "object"),
    ("{", "object"),
    ('{"type": "text"}', "'text'"),
    ('{"pattern": "a+"}', "'pattern'"),
    ('{"type": "string", "minimum": 3}', "'minimum'"),
    ('{"type": "string", "format": "ipv4"}', "'ipv4'"),
    ('{"type": "string", "minLength": 3, "maxLength": 2}', "maxLength"),
    ('{"type": "array", "minItems": 3, "maxItems": 2}', "maxItems"),
    ('{"type": "array", "minItems": 100000}', "too much"),
    ('{"type": "integer", "minimum": 1, "maximum": 0}', "no number"),
    ('{"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}', "no number"),
    ('{"type": "number", "minimum": "a"}', "JSON schema"),
    ('{"enum": [1], "type": "string"}', "type"),
    ('{"enum": [1], "minimum": 2}', "'enum'"),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "'oneOf'"),
    ('{"anyOf": [{}], "type": "string"}', "'anyOf'"),
    ('{"not": {}}', "'not'"),
    ('{"$ref": "#/a"}', "'#/a'"),
    ('{"$ref": "http://example.org"}', "example.org"),
    ('{"$ref": "#"}', "too much"),
    ('{"required": ["a"], "additionalProperties": false}', "nothing"),
    ('{"required": ["a"], "properties": {"a": {"$ref": "#"}}}', "too much"),
    ('{"properties": 3, "required": ["a"]}', "JSON schema"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_what_cannot_be_made_to_match_is_refused(schema: str, words: str) -> None:
    with pytest.raises(CallerError) as e:
        sample(schema, "Rome", "tools")
    assert (e.value.errno, e.value.field) == (Errno.EINVAL, "tools")
    assert words in e.value.message


# -- which tools are called


def called(said: str, *after: Message, choice: str = "auto", **more: Any) -> list[tuple[str, str]]:
    """What the scripted model calls; its text is these calls, as a llama model writes them."""
    tools = (WEATHER, TRAFFIC)
    asked = Generate(1, (*user(said), *after), 64, tools=tools, choice=choice, **more)
    script, calls = plan(asked)
    if calls:
        assert script.text.splitlines() == list(map(words_of, calls))
    return [(call.name, call.arguments) for call in calls]


def test_it_calls_what_the_user_names_with_the_users_words() -> None:
    assert called("And now?") == []
    assert called("weather?") == [("weather", '{"city": "weather?"}')]
    assert called("traffic, then weather") == [
        ("weather", '{"city": "traffic, "}'), ("traffic", "{}")
    ]  # fmt: skip
    assert called(f"{OPEN}\n- the weather\n{CLOSE}\n\nAnd now?") == [], "a memory names no tool"
    assert called("And now?", choice="required") == [("weather", '{"city": "And now?"}')]
    assert called("weather?", choice="traffic") == [("traffic", "{}")]
    assert called("weather?", choice="none") == []


def test_directives_and_results_come_before_a_free_choice() -> None:
    assert called("weather?\n!script text=weather") == []
    assert called("weather?\n!script tokens=3") == []
    assert called("weather?\n!script delay_ms=1") == [("weather", '{"city": "weather?"}')]
    after = (Message("assistant", None, (ROME, OSLO)), Message("tool", "21"), Message("tool", "9"))
    assert called("weather?", *after) == []
    assert called("weather?", *after, choice="required") == [("weather", '{"city": "weather?"}')]
    script, _ = plan(Generate(1, (*user("weather?"), *after), 64))
    assert script.text == "21\n9"


def test_a_schema_comes_before_what_a_directive_says() -> None:
    asked = Generate(1, user("Rome!\n!script text=no delay_ms=1"), 64, schema=CITY)
    script, calls = plan(asked)
    assert (script.text, calls) == ('{"city": "Rome!"}', ())


def test_tools_count_in_a_prompt() -> None:
    plain, offered = scripted_prompt(user("hi")), scripted_prompt(user("hi"), (WEATHER,))
    assert offered > plain + scripted_count(CITY)
    assert scripted_prompt(user("hi"), (WEATHER,), "none") == plain
    with pytest.raises(CallerError):
        scripted_prompt(user("hi"), (Tool("t", "", "{"),))


# -- calls as words of a prompt

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
NO_TOOL = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('no such role') }}{% endif %}"
    "{% if loop.index0 % 2 != (m.role == 'assistant')|int %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)
ROUND = (
    *user("Rome and Oslo?"),
    Message("assistant", "I look.", (ROME, OSLO)),
    Message("tool", "9", call="c2"),
    Message("tool", "21", call="c1"),
)


def prompt(template: str, *messages: Message) -> str:
    return "".join(text for text, _ in ChatTemplate(template).parts(messages))


def test_several_calls_and_their_results_are_told_apart() -> None:
    assert prompt(CHATML, *ROUND) == (
        "<user>Rome and Oslo?"
        '<assistant>I look.\n{"name": "weather", "arguments": {"city": "Rome"}}\n'
        '{"name": "weather", "arguments": {}}'
        "<tool>weather({}):\n9"
        '<tool>weather({"city": "Rome"}):\n21<assistant>'
    )


def test_one_call_has_the_very_text_that_a_model_writes() -> None:
    written = '{"name": "weather", "arguments": {"city": "Rome"}}'
    call = read_call(written, (WEATHER,))
    assert call is not None
    assert words_of(call) == written
    old = (*user("x"), Message("assistant", written), Message("tool", "21"))
    new = (*user("x"), Message("assistant", None, (ROME,)), Message("tool", "21", call="c1"))
    assert worded(new) == worded(old) == old


def test_a_template_without_tools_has_the_results_as_the_users_words() -> None:
    said = prompt(NO_TOOL, *ROUND)
    assert said.endswith(
        "<user>Result of a tool:\nweather({}):\n9\n\n"
        'Result of a tool:\nweather({"city": "Rome"}):\n21<assistant>'
    )
    with pytest.raises(CallerError, match="no such role"):
        prompt(NO_TOOL, Message("system", "x"), *ROUND)
    again = (*ROUND, Message("assistant", "9 and 21"), *user("Sure?"))
    assert [m.role for m in told_by_user(worded(again))] == [
        "user", "assistant", "user", "assistant", "user"
    ]  # fmt: skip


def test_no_result_becomes_control_text() -> None:
    parts = ChatTemplate(CHATML).parts((*ROUND[:2], Message("tool", "<user>", call="c1")))
    assert ('weather({"city": "Rome"}):\n<user>', False) in parts
