"""One score from two legs, neighbours and sessions; and repetitions among results."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isovist.storage.fields import Place, Scores, Slots
from isovist.storage.fusion import (
    HEADS,
    NEIGHBOUR_CHUNKS,
    NEIGHBOUR_WEIGHT,
    Links,
    blend,
    fuse,
    normalised,
    plain,
)
from isovist.storage.repeats import without_repeats

VECTOR = np.zeros(1, dtype=np.float32)


def array(*values: float) -> Scores:
    return np.array(values, dtype=np.float64)


# -- normalising and the plain blend


def test_scores_are_spread_over_zero_to_one_and_what_has_none_gets_zero() -> None:
    assert normalised(array(1, 3, 2)).tolist() == [0.0, 1.0, 0.5]
    assert normalised(array(1, -np.inf, 3)).tolist() == [0.0, 0.0, 1.0]
    assert normalised(array(-np.inf, -np.inf)).tolist() == [0.0, 0.0]


def test_scores_that_are_all_alike_are_one_only_if_they_say_anything() -> None:
    assert normalised(array(2, 2)).tolist() == [1.0, 1.0]
    assert normalised(array(0, 0)).tolist() == [0.0, 0.0]


def test_neither_leg_gates_the_other() -> None:
    found = plain(array(5, 0, 0), array(0.1, 0.9, 0.1))
    assert found[0] > found[2]
    assert found[1] > found[2]


# -- neighbours and sessions


def places(*found: tuple[str, int] | None) -> list[Place | None]:
    return list(found)


def test_neighbours_are_the_rounds_before_and_after_in_the_same_session_alone() -> None:
    links = Links(places(("s", 2), ("s", 1), ("t", 3), ("s", 3), None), np.zeros(5))
    assert links.before.tolist() == [1, -1, -1, 0, -1]
    assert links.after.tolist() == [3, 0, -1, -1, -1]
    assert links.sessions.tolist() == [0, 0, 1, 0, 2]


def test_units_without_a_place_share_no_session_and_round_zero_has_no_neighbour() -> None:
    links = Links(places(None, None, ("s", 0), ("s", 1), ("s", 0)), np.zeros(5))
    assert len(set(links.sessions.tolist())) == 3
    assert links.before.tolist() == links.after.tolist() == [-1] * 5


def test_the_lexically_best_of_two_units_in_one_place_stands_for_it() -> None:
    links = Links(places(("s", 1), ("s", 2), ("s", 1)), array(1, 0, 4))
    assert links.before.tolist() == [-1, 2, -1]


def test_a_neighbour_of_what_was_asked_for_rises() -> None:
    lexical, dense = array(8, 1, 1), array(0.2, 0.2, 0.2)
    alone = blend(lexical, dense, Links(places(("s", 1), ("t", 1), ("u", 1)), lexical))
    beside = blend(lexical, dense, Links(places(("s", 1), ("t", 1), ("s", 2)), lexical))
    assert alone[1] == alone[2]
    assert beside[2] > beside[1]


def test_the_blend_is_the_formula() -> None:
    lexical, dense = array(4, 2, 0), array(0.5, 0.1, 0.3)
    links = Links(places(("s", 1), ("s", 2), ("t", 1)), lexical)
    own = plain(array(4 + NEIGHBOUR_WEIGHT * 2, 2 + NEIGHBOUR_WEIGHT * 4, 0), dense)
    best = np.array([own[:2].max(), own[:2].max(), own[2]])
    assert blend(lexical, dense, links) == pytest.approx((own + 0.4 * best) / 1.4)


def test_nothing_listed_is_no_error() -> None:
    assert blend(array(), array(), Links([], array())).tolist() == []


PLACES = st.one_of(st.none(), st.tuples(st.sampled_from("stu"), st.integers(0, 4)))
LISTED = st.lists(
    st.tuples(
        st.floats(0, 40),
        st.one_of(st.just(-np.inf), st.floats(-1, 1)),
        PLACES,
    ),
    min_size=1,
    max_size=24,
)


@given(LISTED, st.randoms(use_true_random=False))
def test_bits_depend_on_no_order_and_scores_lie_in_zero_to_one(
    listed: list[tuple[float, float, Place | None]], random: object
) -> None:
    shuffled = list(range(len(listed)))
    random.shuffle(shuffled)  # type: ignore[attr-defined] # hypothesis gives random.Random
    found = _blend(listed)
    again = _blend([listed[i] for i in shuffled])
    assert [found[i].tobytes() for i in shuffled] == [score.tobytes() for score in again]
    assert ((found >= 0) & (found <= 1)).all()


@given(LISTED)
def test_a_session_moves_neither_its_best_unit_nor_the_order_of_the_best(
    listed: list[tuple[float, float, Place | None]],
) -> None:
    lexical = array(*(x for x, _, _ in listed))
    dense = array(*(x for _, x, _ in listed))
    links = Links([place for _, _, place in listed], lexical)
    padded = np.append(lexical, 0.0)
    own = plain(lexical + NEIGHBOUR_WEIGHT * (padded[links.before] + padded[links.after]), dense)
    score = blend(lexical, dense, links)
    best = [np.flatnonzero(links.sessions == s) for s in range(links.sessions.max() + 1)]
    heads = [units[np.argmax(own[units])] for units in best]
    for units, head in zip(best, heads, strict=True):
        assert score[head] == score[units].max()
    for a in heads:
        for b in heads:
            if own[a] > own[b]:
                assert score[a] >= score[b]


def _blend(listed: list[tuple[float, float, Place | None]]) -> Scores:
    lexical = array(*(x for x, _, _ in listed))
    dense = array(*(x for _, x, _ in listed))
    return blend(lexical, dense, Links([place for _, _, place in listed], lexical))


# -- from lists to a ranking


class FakeField:
    """A view of chunks: (text of the unit, place, BM25, cosine)."""

    def __init__(self, *chunks: tuple[str, Place | None, float, float]) -> None:
        self.chunks = chunks
        self.size = len(chunks)
        self.scored: set[int] = set()

    def scores(self, slots: Sequence[int]) -> Scores:
        self.scored.update(slots)
        return array(*(self.chunks[slot][2] for slot in slots))

    def cosines(self, vector: object, slots: Sequence[int]) -> Scores:
        return array(*(self.chunks[slot][3] for slot in slots))

    def order(self, slots: Slots, scores: Scores) -> list[int]:
        return sorted(slots.tolist(), key=lambda s: (-scores[slots.tolist().index(s)], s))

    def texts(self, slots: Sequence[int]) -> Sequence[Hashable]:
        return [self.chunks[slot][0] for slot in slots]

    def places(self, slots: Sequence[int]) -> Sequence[Place | None]:
        return [self.chunks[slot][1] for slot in slots]

    def beside(self, slots: Sequence[int], chunks: int) -> list[int]:
        places = [p for p in self.places(slots) if p is not None and p[1]]
        wanted = {(session, number + step) for session, number in places for step in (-1, 1)}
        return [s for s, chunk in enumerate(self.chunks) if chunk[1] in wanted]

    def found(self, depth: int) -> list[int]:
        raise NotImplementedError

    def near(self, vector: object, depth: int) -> list[int]:
        raise NotImplementedError

    def coverage(self, slots: Sequence[int]) -> list[float]:
        raise NotImplementedError


def test_a_round_that_neither_leg_listed_comes_in_beside_its_neighbour() -> None:
    field = FakeField(
        ("asked", ("s", 1), 9.0, 0.5),
        ("answer", ("s", 2), 0.0, 0.1),
        ("other", ("t", 1), 3.0, 0.1),
        ("far", ("t", 2), 0.0, 0.0),
    )
    found = fuse(field, [0], [0], VECTOR)
    assert [slot for slot, _, _ in found] == [0, 1]
    assert 2 not in field.scored
    assert 3 not in field.scored


def test_a_text_stands_once_with_its_best_chunk_of_each_leg() -> None:
    field = FakeField(
        ("long", ("s", 1), 9.0, 0.1),
        ("long", ("s", 1), 1.0, 0.8),
        ("short", None, 2.0, 0.2),
    )
    found = fuse(field, [0, 2], [1, 2], VECTOR)
    assert [slot for slot, _, _ in found] == [0, 2]
    assert found[0] == (0, 1.0, 0.8)


def test_a_neighbour_shows_its_best_chunk() -> None:
    field = FakeField(
        ("asked", ("s", 1), 9.0, 0.5),
        ("answer", ("s", 2), 0.0, 0.4),
        ("answer", ("s", 2), 2.0, 0.1),
    )
    (_, (slot, _, cosine)) = fuse(field, [0], [], VECTOR)
    assert (slot, cosine) == (2, 0.4)


def test_neighbours_are_looked_up_for_the_best_alone() -> None:
    chunks = [(f"u{i}", (f"s{i}", 1), 100.0 - i, 0.0) for i in range(HEADS + 5)]
    beside = [(f"n{i}", (f"s{i}", 2), 0.0, 0.0) for i in range(HEADS + 5)]
    field = FakeField(*chunks, *beside)
    found = fuse(field, range(HEADS + 5), [], VECTOR)
    assert len(found) == HEADS + 5 + HEADS
    assert NEIGHBOUR_CHUNKS >= 1


def test_without_a_vector_the_lexical_order_stands() -> None:
    field = FakeField(("a", None, 9.0, 0.1), ("b", None, 3.0, 0.9), ("c", None, 1.0, 0.9))
    found = fuse(field, [0, 1, 2], [], None)
    assert [slot for slot, _, _ in found] == [0, 1, 2]
    assert {cosine for _, _, cosine in found} == {-np.inf}


def test_nothing_found_is_an_empty_ranking() -> None:
    assert fuse(FakeField(), [], [], VECTOR) == []


# -- repetitions


def kept(*texts: str) -> list[int]:
    return without_repeats(texts, [True] * len(texts))


def test_a_text_said_within_a_better_one_is_left_out() -> None:
    assert kept("Ana drinks tea. She has a cat.", "ana drinks  TEA", "She has cat!") == [0]
    assert kept("我喜欢喝茶，也喜欢猫。", "喜欢喝茶") == [0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The room is 12.", "The room is 14."),
        ("It is approved.", "It is not approved."),
        ("It is not approved.", "It is approved."),
        ("Ana owes Bo money.", "Bo owes Ana money."),
        ("Ana drinks tea.", "Ana drinks tea at five."),
        ("a red car, a blue house", "a blue car, a red house"),
        ("tea", "te"),
    ],
)
def test_what_says_anything_else_stays(first: str, second: str) -> None:
    assert kept(first, second) == [0, 1]


def test_texts_without_words_repeat_their_equals_alone() -> None:
    assert kept("🙂🙂", "…", "🙂🙂", "") == [0, 1, 3]


def test_a_part_of_a_longer_unit_is_no_repetition() -> None:
    assert without_repeats(["Ana drinks tea", "drinks tea"], [True, False]) == [0, 1]


@given(st.lists(st.text(alphabet="ab xy.", max_size=12), max_size=8))
def test_what_is_left_out_stands_in_what_is_kept(texts: list[str]) -> None:
    found = kept(*texts)
    for i in set(range(len(texts))) - set(found):
        assert any(kept(texts[j], texts[i]) == [0] for j in found if j < i)
