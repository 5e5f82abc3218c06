"""Forward vectors: what is packed is what is unpacked, one at a time and many at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isovist.storage.forward import contents, frequencies, pack, unpack

TIDS = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(0, (1 << 32) - 1))
COUNTS = st.one_of(st.integers(1, 3), st.integers(1, 3), st.integers(200, 300), st.just(65_535))
CHUNK = st.dictionaries(TIDS, COUNTS, max_size=12)
USUAL = st.dictionaries(st.integers(0, 900), st.integers(1, 9), min_size=1, max_size=12)


@given(CHUNK)
def test_a_chunk_comes_back_as_it_went_in(counts: dict[int, int]) -> None:
    assert unpack(pack(counts)) == counts


@given(st.one_of(st.lists(CHUNK, max_size=6), st.lists(USUAL, max_size=6)))
def test_many_are_read_as_one_by_one(chunks: list[dict[int, int]]) -> None:
    tids, counts, holders = contents([pack(chunk) for chunk in chunks])
    found = [dict[int, int]() for _ in chunks]
    for tid, count, holder in zip(tids.tolist(), counts.tolist(), holders.tolist(), strict=True):
        found[holder][tid] = count
    assert found == chunks


@given(st.lists(CHUNK, max_size=6), st.lists(TIDS, max_size=6, unique=True))
def test_frequencies_are_looked_up_in_the_order_asked(
    chunks: list[dict[int, int]], asked: list[int]
) -> None:
    table = frequencies([pack(chunk) for chunk in chunks], asked)
    expected = [[chunk.get(tid, 0) for tid in asked] for chunk in chunks]
    assert np.array_equal(table, np.array(expected).reshape(len(chunks), len(asked)))


def test_the_usual_chunk_takes_three_bytes_a_term() -> None:
    assert len(pack({1000 + 40 * n: 1 for n in range(100)})) == 5 + 300
