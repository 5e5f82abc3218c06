"""What the llama driver decides, over a machine that only counts: chunks, cells, order."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from driver_helpers import needs_llama, user
from hypothesis import given, settings
from hypothesis import strategies as st

from isovist.kernel.drivers import sampling
from isovist.kernel.drivers.batch import LEAST, PACE_S, WHOLE, Pace, Reading, Row, chunks
from isovist.kernel.drivers.cells import REUSE, Cells, common
from isovist.kernel.drivers.grammar import of_schema, of_tools, read_call, with_tools
from isovist.kernel.drivers.protocol import (
    Finished,
    FromProcess,
    Generate,
    Read,
    RequestFailed,
    Token,
)
from isovist.kernel.drivers.serving import Serving
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.records import Message, Tool, ToolCall

VOCABULARY = 64
END = 63
CONTEXT = 256


class Machine:
    """Its next token is a function of all tokens before it, and it notices any cell that is not
    what the caller believes."""

    context, room, partial = CONTEXT, 64, True

    def __init__(self, sequences: int, partial: bool = True) -> None:
        self.sequences, self.partial = sequences, partial
        self.held: list[list[int]] = [[] for _ in range(sequences)]
        self.now = 0
        self.steps: list[dict[int, int]] = []
        self.failing = False
        self.loads = 0

    def clock(self) -> int:
        self.now += 1
        return self.now

    def decode(self, rows: list[Row]) -> dict[int, sampling.Logits]:
        self.now += 1_000_000
        if self.failing:
            raise WorldError("no")
        assert len({row.sequence for row in rows}) == len(rows)
        assert sum(len(row.tokens) for row in rows) <= self.room + self.sequences
        self.steps.append({row.sequence: len(row.tokens) for row in rows})
        logits = {}
        for row in rows:
            held = self.held[row.sequence]
            assert row.start == len(held)
            held += row.tokens
            if row.choose:
                logits[row.sequence] = np.zeros(VOCABULARY, np.float32)
                logits[row.sequence][following(held)] = 1.0
        return logits

    def cut(self, sequence: int, keep: int) -> int:
        if not self.partial and keep < len(self.held[sequence]):
            keep = 0
        del self.held[sequence][keep:]
        return keep

    def save(self, sequence: int) -> bytearray:
        self.now += 10
        return bytearray(self.held[sequence])

    def spare(self, state: bytearray) -> None:
        state[:] = b"\xff" * len(state)  # whoever uses it all the same will see

    def flush(self) -> None:
        pass

    def load(self, sequence: int, state: bytearray) -> bool:
        self.now += 10
        self.loads += 1
        self.held[sequence] = list(state)
        return True


def following(tokens: Sequence[int]) -> int:
    return (sum((i + 1) * t for i, t in enumerate(tokens)) * 31 + len(tokens)) % 61


class Words:
    vocab = None

    def __init__(self) -> None:
        self.spoken: dict[str, list[int]] = {}

    def prompt(self, messages: Sequence[Message], *, spoken: bool = False) -> list[int]:
        return [ord(c) % 61 for m in messages for c in (m.content or "")] + [0]

    def head(self, messages: Sequence[Message], tokens: Sequence[int]) -> int:
        return sum(len(m.content or "") for m in messages if m.role == "system")

    def remember(self, text: str, tokens: list[int]) -> None:
        self.spoken[text] = tokens

    def forget(self) -> None:
        self.spoken.clear()

    def piece(self, token: int) -> bytes:
        return bytes([48 + token])

    def is_end(self, token: int) -> bool:
        return token == END


class Desk:
    def __init__(self, slots: int = 4, sequences: int = 4, host: int = 0, partial: bool = True):
        self.machine = Machine(sequences, partial)
        self.said: list[FromProcess] = []
        self.words = Words()
        self.serving = Serving(
            self.machine, self.words, self.said.append, self.machine.clock, slots, host
        )

    def ask(
        self,
        key: int,
        text: str,
        tokens: int = 8,
        owner: str = "",
        stop: tuple[str, ...] = (),
        system: str = "",
    ) -> None:
        messages = ((Message("system", system),) if system else ()) + user(text)
        self.serving.submit(Generate(key, messages, tokens, owner=owner, stop=stop))

    def run(self) -> None:
        for _ in range(10_000):
            if not self.serving.busy:
                return
            self.serving.step()
            self.serving.cells.validate()
        raise AssertionError("it does not come to an end")

    def text(self, key: int) -> str:
        return "".join(m.text for m in self.said if isinstance(m, Token) and m.key == key)

    def end(self, key: int) -> Finished:
        (end,) = [m for m in self.said if isinstance(m, Finished) and m.key == key]
        return end


def alone(text: str, tokens: int) -> str:
    """What the machine writes after ``text``."""
    held = Words().prompt(user(text))
    made = []
    for _ in range(tokens):
        made.append(following(held))
        held.append(made[-1])
    return "".join(chr(48 + token) for token in made)


# Chunks


@given(st.lists(st.integers(1, 300), max_size=12), st.integers(1, 200), st.integers(0, 400))
def test_a_chunk_fills_its_room_in_order_and_cuts_the_last_alone(
    left: list[int], room: int, more: int
) -> None:
    reading = [Reading(i, size) for i, size in enumerate(left)]
    taken = chunks(reading, room, room + more)
    assert [key for key, _ in taken] == list(range(len(taken)))
    assert all(size == left[key] for key, size in taken[:-1])
    assert sum(size for _, size in taken) <= room + more
    assert sum(size for _, size in taken[1:]) <= room
    if sum(size for _, size in taken) > room:
        assert taken == [(0, left[0])]
        assert left[0] < room + WHOLE, "the end of a prompt, and no more"
    assert bool(taken) == bool(left)
    for key, size in taken[1:]:
        rest = left[key] - size
        assert size >= min(WHOLE, left[key])
        assert rest == 0 or rest >= WHOLE or left[key] < 2 * WHOLE


def test_pieces_that_are_slow_to_compute_are_not_left_over() -> None:
    assert chunks([Reading(1, 266)], 256, 512) == [(1, 266)]
    assert chunks([Reading(1, 266)], 256, 256) == [(1, 266 - WHOLE)]
    assert chunks([Reading(1, 100), Reading(2, 266)], 200, 512) == [(1, 100), (2, 100)]
    assert chunks([Reading(1, 100), Reading(2, 266)], 320, 512) == [(1, 100), (2, 266 - WHOLE)]
    assert chunks([Reading(1, 100), Reading(2, 266)], 150, 512) == [(1, 100)]


def test_the_pace_gives_prompts_the_time_that_writing_leaves() -> None:
    pace = Pace(512)
    assert pace.room(4) == 512  # nothing is known yet
    pace.took(100, 0, 0.1)  # 1 ms a token
    pace.took(0, 4, 0.05)
    assert pace.room(0) == 512
    room = pace.room(4)
    assert room % WHOLE == 0
    assert 0.05 + room * 0.001 <= PACE_S < 0.05 + (room + WHOLE) * 0.001 + 1e-9
    assert pace.room(4, 4) == room < pace.room(4, 6) < pace.room(4, 40) == 512
    slow = Pace(512)
    slow.took(100, 0, 0.1)
    slow.took(0, 4, 0.45)
    assert 0.001 * slow.room(4) >= 0.45 - 0.001 * WHOLE  # as much time as writing takes
    for _ in range(50):
        pace.took(100, 4, 60.0)
    assert pace.room(4) == LEAST  # however slow, prompts get on


def test_what_writing_costs_is_not_laid_to_the_prompts_that_are_read_beside_it() -> None:
    """It once was: pieces grew smaller, the cost of each token in them higher, and so on."""
    pace = Pace(512)
    read, rooms = 266, []
    for writing in [0, *range(1, 41)]:
        pace.took(read, writing, 0.0005 * read + (0.06 + 0.001 * writing if writing else 0.0))
        rooms.append(read := pace.room(writing))
    assert min(rooms) >= 384


# Serving: the text never depends on what runs beside it


@st.composite
def plots(draw: st.DrawFn) -> tuple[list[tuple[str, int, str]], list[tuple[str, int]]]:
    begins = ["s" * 40, "s" * 30 + "t" * 20, "", "u" * 90]
    requests = draw(
        st.lists(
            st.tuples(
                st.builds(
                    lambda a, b: a + b, st.sampled_from(begins), st.text("abcdef", min_size=1)
                ).map(lambda t: t[:140]),
                st.integers(1, 20),
                st.sampled_from(["ana", "bo", ""]),
            ),
            min_size=1,
            max_size=9,
        )
    )
    acts = st.tuples(
        st.sampled_from(["step", "step", "step", "submit", "pause", "resume", "abort", "flush"]),
        st.integers(0, len(requests) - 1),
    )
    return requests, draw(st.lists(acts, max_size=60))


@settings(max_examples=150, deadline=None)
@given(
    plots(), st.integers(1, 4), st.integers(1, 5), st.sampled_from([0, 200, 10_000]), st.booleans()
)
def test_whatever_happens_beside_it_an_answer_is_the_one_it_gets_alone(
    plot: tuple[list[tuple[str, int, str]], list[tuple[str, int]]],
    slots: int,
    sequences: int,
    host: int,
    partial: bool,
) -> None:
    requests, acts = plot
    desk = Desk(slots, sequences, host, partial)
    serving = desk.serving
    submitted: set[int] = set()
    aborted: set[int] = set()
    for act, at in [*acts, *(("submit", i) for i in range(len(requests)))]:
        match act:
            case "submit" if at not in submitted:
                submitted.add(at)
                text, tokens, owner = requests[at]
                desk.ask(at, text, tokens, owner)
            case "pause":
                serving.pause(at)
            case "resume":
                serving.resume(at)
            case "abort" if at in submitted:
                aborted.add(at)
                serving.abort(at)
            case "flush":
                serving.flush()
            case _:
                serving.step()
        serving.cells.validate()
        assert serving.load().running <= serving.slots
    for at in range(len(requests)):
        serving.resume(at)
    desk.run()
    for at, (text, tokens, _) in enumerate(requests):
        whole = alone(text, tokens)
        if desk.end(at).finish == "cancelled":
            assert at in aborted
            assert whole.startswith(desk.text(at))
        else:
            assert desk.text(at) == whole
        spoken = sum(m.tokens for m in desk.said if isinstance(m, Token) and m.key == at)
        assert spoken == desk.end(at).output_tokens


def test_a_shared_beginning_is_computed_once_and_later_turns_compute_what_is_new() -> None:
    desk = Desk()
    begin = "a system prompt that they all share, word for word. "
    for key in range(4):
        desk.ask(key, "wxyz"[key] * 20, owner=str(key), system=begin)
    desk.run()
    read = sum(n for step in desk.machine.steps for n in step.values())
    made = sum(desk.end(key).output_tokens - 1 for key in range(4))
    assert read - made == len(begin) + 4 * 21
    assert [desk.end(key).cached_tokens for key in range(4)] == [0] + [len(begin)] * 3
    again = begin + "w" * 20
    held = Words().prompt(user(again))[:-1]
    desk.ask(9, "w" * 20 + "more", owner="0", system=begin)
    desk.run()
    assert desk.end(9).cached_tokens == len(held)


@pytest.mark.promise("erase.complete")
@given(
    st.integers(1, 3), st.sampled_from([0, 10_000]),
    st.lists(st.sampled_from(["step", "pause", "resume"]), max_size=20),
)  # fmt: skip
def test_of_what_came_before_a_flush_nothing_is_left_when_it_has_ended(
    sequences: int, host: int, acts: list[str]
) -> None:
    desk = Desk(sequences, sequences, host)
    serving, texts = desk.serving, [letter * 40 for letter in "abcd"]
    for key, text in enumerate(texts):
        desk.ask(key, text, owner=str(key))

    def play() -> None:
        for n, act in enumerate(acts):
            if act == "step":
                serving.step()
            else:
                getattr(serving, act)(n % len(texts))

    play()
    serving.flush()
    play()
    for key in range(len(texts)):
        serving.resume(key)
    desk.run()
    assert desk.words.spoken == {}
    assert serving.load().cells == serving.load().host_bytes == 0
    assert not any(desk.machine.held)
    desk.ask(9, texts[0], owner="0")
    desk.run()
    assert desk.end(9).cached_tokens == 0
    assert serving.load().cells > 0  # what comes later is kept


def test_one_that_has_not_gone_on_yet_can_be_paused_again() -> None:
    desk = Desk(slots=1)
    desk.ask(1, "s" * 20)
    desk.serving.step()
    for _ in range(2):
        desk.serving.pause(1)
        desk.serving.resume(1)
    desk.run()
    assert desk.text(1) == alone("s" * 20, 8)


def test_the_one_that_waits_for_a_beginning_goes_on_when_its_reader_is_gone() -> None:
    desk = Desk()
    desk.ask(1, "s" * 150)
    desk.ask(2, "s" * 150 + "t")
    desk.serving.step()
    assert desk.serving.load().waiting == 1
    desk.serving.abort(1)
    desk.run()
    assert desk.text(2) == alone("s" * 150 + "t", 8)


def test_writing_goes_on_in_each_step_while_a_long_prompt_is_read() -> None:
    desk = Desk()
    desk.ask(1, "short", 30)
    desk.serving.step()
    desk.ask(2, "l" * 220, 2)
    before = len(desk.machine.steps)
    while not any(isinstance(m, Token) and m.key == 2 for m in desk.said):
        desk.serving.step()
    steps = desk.machine.steps[before:]
    assert len(steps) > 3
    assert all(len(step) == 2 and min(step.values()) == 1 for step in steps[:-1])
    reads = [m.read for m in desk.said if isinstance(m, Read) and m.key == 2]
    assert reads == sorted(reads)
    assert reads[-1] == 221
    assert all(b - a <= desk.machine.room for a, b in pairwise(reads))


def test_stop_strings_and_abort_and_failure_end_their_own_request_alone() -> None:
    desk = Desk()
    whole = alone("one", 12)
    desk.ask(1, "one", 12, stop=(whole[3:5],))
    desk.ask(2, "two", 12)
    desk.run()
    assert desk.text(1) == whole[: whole.index(whole[3:5])]
    assert desk.end(1).finish == "stop"
    assert desk.text(2) == alone("two", 12)
    desk.ask(3, "x" * 300)
    (failed,) = [m for m in desk.said if isinstance(m, RequestFailed)]
    assert (failed.key, failed.errno) == (3, Errno.EMSGSIZE)
    assert "301" in failed.message
    assert str(CONTEXT) in failed.message


def test_a_step_that_fails_ends_its_requests_and_leaves_no_cell_behind() -> None:
    desk = Desk()
    desk.ask(1, "one" * 20)
    desk.serving.step()
    desk.machine.failing = True
    desk.serving.step()
    assert [m.errno for m in desk.said if isinstance(m, RequestFailed)] == [Errno.EIO]
    desk.machine.failing = False
    desk.ask(2, "one" * 20)
    desk.run()
    assert desk.end(2).cached_tokens == 0
    assert desk.text(2) == alone("one" * 20, 8)


# Cells


def filled(host: int = 10_000, sequences: int = 3) -> tuple[Cells, Machine]:
    machine = Machine(sequences)
    return Cells(machine, sequences, host, machine.clock), machine


def occupy(cells: Cells, machine: Machine, tokens: list[int], owner: str = "") -> int:
    number = cells.take([*tokens, 0], owner)
    assert number is not None
    new = tokens[len(cells[number].tokens) :]
    machine.held[number] += new
    cells.grow(number, new)
    return number


def test_the_order_of_eviction() -> None:
    cells, machine = filled(host=0)
    a, b, c = (occupy(cells, machine, [n] * 30, str(n)) for n in (1, 2, 3))
    assert cells.take([9, 9]) is None  # running ones are never taken
    cells.pause(b)
    cells.release(c)
    cells.release(a)
    assert cells.take([9, 9]) == c  # idle before paused, the least recently used first
    assert cells.take([8, 8]) == a
    assert cells.take([7, 7]) == b
    assert cells.take([6, 6]) is None


def test_what_is_held_twice_goes_first() -> None:
    cells, machine = filled(host=0)
    a = occupy(cells, machine, [1] * 30, "a")
    b = occupy(cells, machine, [2] * 30, "b")
    cells.release(a)
    twin = occupy(cells, machine, [2] * 30, "b")
    cells.release(twin)
    assert twin not in (a, b)
    assert cells.take([9, 9]) == twin


def test_a_state_given_back_twice_takes_the_room_of_one() -> None:
    cells, machine = filled(host=100, sequences=1)
    number = occupy(cells, machine, [1] * 30, "a")
    cells.release(number)
    state = machine.save(number)
    assert cells.keep([2] * 30, state, "b")
    for owner in ("a", "a", "c", "a"):
        assert cells.keep([1] * 30, state, owner)
        cells.validate()
    assert cells.host_bytes == 3 * len(state)
    assert cells.reusable([2] * 30 + [0], "b") == 30


def test_what_was_saved_comes_back_and_the_host_has_a_limit() -> None:
    cells, machine = filled(host=70, sequences=1)
    for n in (1, 2, 3):
        cells.release(occupy(cells, machine, [n] * 30, str(n)))
    cells.validate()
    assert cells.host_bytes == 60  # 1 and 2; 3 is in the model
    assert cells.reusable([1] * 31, "1") == 30
    cells.release(occupy(cells, machine, [4] * 30, "4"))
    assert cells.reusable([1] * 31, "1") == 0  # the oldest made room
    assert cells.reusable([2] * 31, "2") == 30
    number = cells.take([*([2] * 30), 5], "2")
    assert number is not None
    assert machine.held[number] == [2] * 30
    cells.flush()
    assert cells.host_bytes == 0
    assert cells.reusable([3] * 31, "3") == 0


@pytest.mark.promise("view.noninterference")
@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.text("xy", max_size=30)), max_size=6),
    st.text("xy", min_size=1, max_size=30), st.sampled_from(["", "s" * 20, "s" * 24]),
    st.integers(1, 3), st.sampled_from([0, 10_000]),
)  # fmt: skip
def test_what_was_cached_tells_nobody_what_another_has_said(
    told: list[tuple[str, str]], guess: str, system: str, sequences: int, host: int
) -> None:
    """What c hears is the same whatever a and b have said, if only the system prompts are."""

    def cached(words: list[tuple[str, str]]) -> int:
        desk = Desk(sequences, sequences, host)
        for key, (owner, text) in enumerate(words):
            desk.ask(key, text, owner=owner, system="s" * 20)
            desk.run()
        desk.ask(99, guess, owner="c", system=system)
        desk.run()
        return desk.end(99).cached_tokens

    silent = [(owner, "") for owner, _ in told]
    assert cached(told) == cached(silent)
    assert cached([("a", guess)]) == (20 if len(system) == 20 else 0)


def test_times_of_an_answer_leave_its_pauses_to_the_queue() -> None:
    desk = Desk(slots=1)
    desk.ask(1, "s" * 100)
    desk.serving.step()
    desk.serving.pause(1)
    desk.machine.now += 5_000_000_000
    desk.serving.resume(1)
    while not desk.text(1):
        desk.serving.step()
    desk.serving.pause(1)
    desk.machine.now += 7_000_000_000
    desk.serving.resume(1)
    desk.run()
    end = desk.end(1)
    assert 12 <= end.queue_ns / 1e9 < 13
    assert 0 < end.prefill_ns < 1e9
    assert 0 < end.decode_ns < 1e9


def test_costs_decide_between_saving_and_computing_again() -> None:
    for read, worth in ((1, False), (100, True)):
        cells, machine = filled(sequences=1)
        for what in ("save", "load"):
            cells.costs.took(what, 10, 100)  # type: ignore[arg-type] # one of the literals
        cells.costs.took("read", 10, 10 * read)
        cells.release(occupy(cells, machine, [1] * 30))
        cells.release(occupy(cells, machine, [2] * 30))
        assert (cells.host_bytes > 0) is worth


def test_a_recurrent_state_is_reused_whole_or_not_at_all() -> None:
    machine = Machine(2, partial=False)
    cells = Cells(machine, 2, 0, machine.clock)
    number = occupy(cells, machine, [1] * 30)
    cells.release(number)
    assert cells.reusable([1] * 40) == 30
    assert cells.reusable([1] * 29 + [2] * 9) == 0


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_the_common_beginning(a: list[int], b: list[int]) -> None:
    size = common(a, b)
    assert a[:size] == b[:size]
    assert size == min(len(a), len(b)) or a[size] != b[size]


# Sampling


def test_choices_depend_on_logits_seed_and_place_alone_and_follow_the_weights() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert sampling.choose(logits, 0.0, 1, 1) == 0
    drawn = [sampling.choose(logits, 1.0, 7, place) for place in range(4000)]
    assert drawn == [sampling.choose(logits, 1.0, 7, place) for place in range(4000)]
    assert drawn != [sampling.choose(logits, 1.0, 8, place) for place in range(4000)]
    # The last is cut: those before it hold 95 %.
    for token, share in ((0, 0.5 / 0.95), (1, 0.3 / 0.95), (2, 0.15 / 0.95), (3, 0.0)):
        assert math.isclose(drawn.count(token) / 4000, share, abs_tol=0.03)
    flat = np.zeros(VOCABULARY, np.float32)
    assert len({sampling.choose(flat, 1.0, 7, place) for place in range(2000)}) <= sampling.TOP_K


def test_logprobs_are_of_the_whole_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32)) + 3
    said = sampling.logprob_of(logits, 1, 2, lambda token: bytes([65 + token]))
    assert (said.token, [token for token, _ in said.top]) == (b"B", [b"A", b"B"])
    assert math.isclose(said.logprob, math.log(0.25), abs_tol=1e-6)
    assert math.isclose(said.top[0][1], math.log(0.5), abs_tol=1e-6)


# Schemas and tools

WEATHER = Tool("weather", "How it is", '{"properties": {"city": {"$ref": "#/$defs/city"}}, '
               '"required": ["city"], "$defs": {"city": {"type": "string"}}}')  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "not a JSON schema"),
        ("[1]", "must be an object"),
        ('{"$ref": "https://example.com/x"}', "refer to itself"),
        ('{"$ref": "#/nowhere"}', "cannot be made a grammar"),
        ('{"type": "array", "items": {}, "maxItems": 100000}', "maxItems"),
        ("[" * 5000 + "]" * 5000, "JSON schema"),
        # Written out they would take the model minutes and gigabytes.
        ('{"type": "string", "pattern": "^a{1001}$"}', "repeat 1000 times"),
        ('{"type": "string", "pattern": "^(a{1,2}){0, 9_9_9_9}$"}', "repeat 1000 times"),
        ('{"type": "string", "pattern": "^a{' + "9" * 5000 + '}$"}', "repeat 1000 times"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: str, why: str) -> None:
    needs_llama()
    with pytest.raises(CallerError, match=why) as e:
        of_schema(schema)
    assert e.value.field == "schema"


def test_tools_become_a_grammar_and_words_of_the_prompt() -> None:
    needs_llama()
    assert of_tools((WEATHER,), "none") == of_tools((), "auto") == ""
    assert "weather" in of_tools((WEATHER,), "required")
    assert of_tools((WEATHER,), "auto").splitlines()[0].endswith(" | [^{] .*")
    with pytest.raises(CallerError, match="no tool is called"):
        of_tools((WEATHER,), "traffic")
    said = with_tools(user("hi"), (WEATHER,), "auto")
    assert said[0].role == "system"
    assert json.dumps(WEATHER.description) in (said[0].content or "")
    assert with_tools(user("hi"), (WEATHER,), "none") == user("hi")
    called = read_call('{"name": "weather", "arguments": {"city": "Löv"}}', (WEATHER,))
    assert called == ToolCall("weather", '{"city": "Löv"}')
    assert read_call('{"name": "rain", "arguments": {}}', (WEATHER,)) is None
    assert read_call("{", (WEATHER,)) is None
    assert read_call('{"name": "weather", "arguments": {"city": 1e999}}', (WEATHER,)) is None
    # A model may write half a pair of UTF-16, which no frame takes.
    half = read_call('{"name": "weather", "arguments": {"city": "\\ud800"}}', (WEATHER,))
    assert half == ToolCall("weather", '{"city": "?"}')


assert REUSE < 30, "the sizes of these tests"


# What is kept of a conversation in a file


@pytest.mark.parametrize("where", ["idle", "running", "in host memory"])
def test_what_is_found_of_a_conversation_is_its_beginning_and_nothing_more(where: str) -> None:
    desk = Desk(slots=2, sequences=2, host=10_000)
    cells = desk.serving.cells
    desk.ask(1, "a" * 40, tokens=30, owner="ana")
    if where == "running":
        while not desk.text(1):
            desk.serving.step()
    else:
        desk.run()
    if where == "in host memory":
        for key, text in ((2, "b" * 40), (3, "c" * 40)):
            desk.ask(key, text, owner="bob")
        desk.run()
        assert not any(held[:20] == desk.words.prompt(user("a" * 20))[:20]
                       for held in desk.machine.held)  # fmt: skip
    before = [list(held) for held in desk.machine.held]
    saved = cells.host_bytes
    prompt = desk.words.prompt(user("a" * 25 + "d" * 9))
    found = cells.find(prompt, "ana")
    assert found is not None
    tokens, state = found
    assert tokens == prompt[:25] == list(state)
    # Whoever lent a sequence for that holds what it held.
    assert desk.machine.held == before
    assert cells.host_bytes == saved
    cells.validate()
    assert cells.find(prompt, "bob") is None
    desk.run()
    assert desk.text(1) == alone("a" * 40, 30)


def test_nothing_is_found_where_no_sequence_is_free_to_cut_it_on() -> None:
    desk = Desk(slots=2, sequences=2)
    for key, text in ((1, "a" * 40), (2, "b" * 40)):
        desk.ask(key, text, tokens=30, owner="ana")
    while not (desk.text(1) and desk.text(2)):
        desk.serving.step()
    assert desk.serving.cells.find(desk.words.prompt(user("a" * 25)), "ana") is None
    desk.run()
    assert desk.text(1) == alone("a" * 40, 30)


def test_of_a_state_that_cannot_be_cut_the_whole_is_found_or_nothing() -> None:
    desk = Desk(slots=1, sequences=1, partial=False)
    desk.ask(1, "a" * 40, tokens=5, owner="ana")
    desk.run()
    (held,) = desk.machine.held
    whole = list(held)
    assert desk.serving.cells.find([*whole, 7], "ana") == (whole, bytes(whole))
    assert desk.serving.cells.find(whole[:30], "ana") is None
    assert desk.machine.held == [whole]
