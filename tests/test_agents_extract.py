"""What counts as a fact, and what does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isovist.agents.extract import EXAMPLES, accept, messages, sentences, states
from isovist.syscalls.fence import spoken


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("My cat is Miso. My dog is Udon!", ["My cat is Miso.", "My dog is Udon!"]),
        ("I see Dr. Ito on Fridays. He is kind.", ["I see Dr. Ito on Fridays.", "He is kind."]),
        ("It costs 3.50 crowns. I paid.", ["It costs 3.50 crowns.", "I paid."]),
        ("Ask J. Smith. He knows.", ["Ask J. Smith.", "He knows."]),
        ("We chose plan B. It is cheap.", ["We chose plan B.", "It is cheap."]),
        ("My room is no. 12. It is big.", ["My room is no. 12.", "It is big."]),
        ("Is it so? No. It is not.", ["Is it so?", "No.", "It is not."]),
        ("i live here. my cat too", ["i live here.", "my cat too"]),
        ('She said "I quit." Then she left.', ['She said "I quit."', "Then she left."]),
        ("- one thing is blue\n- another is red", ["one thing is blue", "another is red"]),
        ("我住在北京。我的猫叫米索！真的？", ["我住在北京。", "我的猫叫米索！", "真的？"]),
        ("The host is db.example.org and works.", ["The host is db.example.org and works."]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


@given(st.text(alphabet="ab .!?\nDr。", max_size=60))
def test_no_letter_is_lost_between_sentences(text):
    kept = "".join(sentences(text))
    assert [c for c in kept if c.isalnum()] == [c for c in text if c.isalnum()]


@pytest.mark.parametrize(
    "sentence",
    [
        "My cat is called Miso.",
        "I live in Kestrel Street, above the pharmacy.",
        "The draft of the annual report is in the folder Zebu.",
        "Our contact at the insurance company is Mr Okoro.",
        "Hi, my name is Ana.",
        "Please remember that my locker is number 4417.",
        "Remember: the code is Heron.",
        "Don't forget I am allergic to nuts.",
        "Note that the review moved to room 5.",
        "By the way, I work at night.",
        "Thanks, I already have a bicycle.",
        "When I travel, I take the train.",
        "What I like best is tea.",
        "Show jumping is my hobby.",
        "Book club is on Tuesday.",
        "Will is my brother.",
        "I'm vegan.",
        "Ana deploys on Tuesdays",
        "我的猫叫米索。",
    ],
)
def test_statements(sentence):
    assert states(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "What is my cat called?",
        "what is my cat called",
        "How many crowns was it",
        "Where's my locker",
        "Is the draft done",
        "Could you help me?",
        "Do you know Ana",
        "And what about my cat?",
        "Tell me what my deadline is.",
        "Please write a poem about Ana.",
        "Remind me to call Ana.",
        "Hello!",
        "Hi there!",
        "Good morning.",
        "Thanks a lot!",
        "Thank you very much.",
        "Sounds good.",
        "See you on Monday.",
        "OK.",
        "Yes.",
        "42",
        "...",
        "",
        "我的猫叫什么？",
    ],
)
def test_no_statements(sentence):
    assert not states(sentence)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[memory]secret[/memory]hello", "hello"),
        ("before [memory scope='user']secret[/memory] after", "before \n after"),
        ("a [ / MEMORY ] b", " b"),
        ("a [memory]x[memory]y[/memory]z[/memory] b", "a \n b"),
        ("a [memory] never closed", "a "),
        ("a [memory never ended", "a "),
        ("stray[/memory] said", " said"),
        ("one[/memory]two[/memory]three", "three"),
        ("I have a [memoryless] process", "I have a [memoryless] process"),
        ("no fence", "no fence"),
    ],
)
def test_injected_memory_is_cut_out(text, expected):
    assert spoken(text).strip("\n") == expected


@given(st.text(alphabet="ab[]/ ", max_size=20), st.text(alphabet="ab[]/ ", max_size=20))
def test_nothing_inside_a_fence_is_ever_heard(before, after):
    assert "SECRET" not in spoken(f"{before}[memory]SECRET[/memory]{after}")


SAID = "The leak in the pump is tracked in ticket 4417."


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("ticket of the leak", "4417"),
        ("tracks", "ticket 4417"),
        ("ticket", "ticket 4417"),
        ("leak", "in the pump"),
        ("pump leak", "4417."),
    ],
)
def test_a_proposal_holds(attribute, value):
    text = "Sure! " + json.dumps({"attribute": attribute, "value": value}) + "\nSentence: more"
    fact = accept(text, SAID)
    assert fact is not None
    assert (fact.attribute, fact.extractor) == (attribute, "model")
    assert fact.value in SAID
    assert SAID in fact.text
    assert fact.attribute in fact.text


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("ticket", "4418"),  # not said
        ("ticket", "441"),  # not a whole word
        ("ticket", "TICKET 4417"),  # not verbatim
        ("attribute", "4417"),
        ("values", "4417"),
        ("fact in the sentence", "4417"),
        ("instrument of my sister", "4417"),  # an example
        ("ticket of my sister", "4417"),  # half of one
        ("amount", "4417"),  # not said
        ("of the", "4417"),  # says nothing
        ("ticket 4417", "4417"),
        ("ticket", "The"),  # says nothing
        ("ticket", "in the"),
        ("ticket", ""),
        ("", "4417"),
        ("42", "4417"),
        ("ticket", SAID),  # nothing was read in it
        ("ticket", "ticket"),
        ("x" * 49, "4417"),
        (None, "4417"),
        ("ticket", 4417),
        ("ticket", ["4417"]),
    ],
)
def test_a_proposal_does_not_hold(attribute, value):
    assert accept(json.dumps({"attribute": attribute, "value": value}), SAID) is None


@pytest.mark.parametrize(
    "text",
    ["", "no", "{", '{"attribute": "ticket"', "[]", "{}", '{"attribute": "a b"}', "{" * 100_000],
)
def test_what_is_no_proposal(text):
    assert accept(text, SAID) is None


@given(st.text(), st.text(max_size=30), st.text(max_size=30))
def test_whatever_is_accepted_was_said(sentence, attribute, value):
    fact = accept(json.dumps({"attribute": attribute, "value": value}), sentence)
    assert fact is None or fact.value in sentence


def test_a_word_of_the_schema_is_no_attribute_even_where_it_was_said():
    assert accept('{"attribute": "value", "value": "5"}', "The value is 5 now.") is None
    assert accept('{"attribute": "facts", "value": "5"}', "The facts are 5 now.") is None
    assert accept('{"attribute": "value of x", "value": "5"}', "The value of x is 5.") is not None


def test_chinese_values_need_no_gaps():
    fact = accept('{"attribute": "猫", "value": "米索"}', "我的猫叫米索。")
    assert fact is not None
    assert fact.value == "米索"


def test_the_examples_would_be_accepted_or_teach_the_wrong_thing():
    for said, noted in EXAMPLES:
        given = json.loads(noted)
        assert given["value"] in said
        assert states(said)


def test_the_model_is_asked_with_the_sentence_as_it_is():
    asked = messages("{x} %s \\1")
    assert asked[-1].content == "{x} %s \\1"
    assert [m.role for m in asked] == ["system", *["user", "assistant"] * len(EXAMPLES), "user"]
