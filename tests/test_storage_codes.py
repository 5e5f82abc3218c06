"""int8 codes: exact whole-number products, bits that nothing else moves, a sound shortlist."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from isovist.storage import codes as module
from isovist.storage.codes import PIECE, Abreast, Codes, Query, shortlist
from isovist.storage.dense import Vector, exact, widened


def units(n: int, dim: int, seed: int = 0) -> NDArray[np.float16]:
    rows = np.random.default_rng(seed).standard_normal((n, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def query(dim: int, seed: int = 99) -> Vector:
    q = np.random.default_rng(seed).standard_normal(dim).astype(np.float32)
    return q / np.linalg.norm(q)


def slots(*numbers: int) -> NDArray[np.intp]:
    return np.array(numbers, dtype=np.intp)


def scan(codes: Codes, q: Vector, n: int, start: int = 0) -> Vector:
    out = np.full(n, np.nan, dtype=np.float32)
    codes.scan(Query(q), start, out)
    return out


def by_hand(row: NDArray[np.float16], q: Vector) -> np.float32:
    """The definition, for one row, in whole numbers."""
    parts = []
    for vector in (row.astype(np.float32), q):
        scale = np.abs(vector).max() / np.float32(127)
        parts.append((np.rint(vector / scale).astype(np.int64), scale))
    (a, row_scale), (b, query_scale) = parts
    return np.float32(np.float32(a @ b) * row_scale * query_scale)


@pytest.mark.parametrize("dim", [1, 3, 16, 31, 384, 1024, 3072])
def test_a_scan_is_the_definition_to_the_bit(dim: int) -> None:
    rows, q = units(37, dim), query(dim)
    codes = Codes(dim)
    codes.put(np.arange(37), rows)
    assert scan(codes, q, 37).tolist() == [by_hand(row, q) for row in rows]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows(n: int) -> None:
    codes = Codes(8)
    codes.put(np.arange(n), units(n, 8))
    assert scan(codes, query(8), n).tolist() == [by_hand(r, query(8)) for r in units(n, 8)]


def test_an_approximation_is_close() -> None:
    rows, q = units(500, 384), query(384)
    codes = Codes(384)
    codes.put(np.arange(500), rows)
    assert np.abs(scan(codes, q, 500) - rows.astype(np.float32) @ q).max() < 0.005


def test_nothing_stored() -> None:
    codes = Codes(8)
    codes.put(slots(), units(0, 8))
    assert codes.count == 0
    assert scan(codes, query(8), 3).tolist() == [-np.inf] * 3
    assert len(scan(codes, query(8), 0)) == 0


def test_holes_and_what_lies_beyond_have_no_score() -> None:
    codes = Codes(8)
    codes.put(slots(5, 2), units(2, 8))
    out = scan(codes, query(8), 200)
    assert np.flatnonzero(out > -np.inf).tolist() == [2, 5]
    assert out[5] == by_hand(units(2, 8)[0], query(8))
    assert codes.count == 2


def test_a_window_of_the_slots() -> None:
    codes = Codes(8)
    codes.put(np.arange(50), units(50, 8))
    whole = scan(codes, query(8), 50)
    for start, n in ((0, 7), (13, 20), (49, 1), (50, 0)):
        assert scan(codes, query(8), n, start).tolist() == whole[start : start + n].tolist()
    assert scan(codes, query(8), 4, 1000).tolist() == [-np.inf] * 4


def test_a_cleared_slot_keeps_no_code() -> None:
    codes = Codes(8)
    codes.put(np.arange(4), units(4, 8))
    codes.clear(2)
    codes.clear(2)
    codes.clear(900)
    assert codes.count == 3
    assert codes.present[:4].tolist() == [True, True, False, True]
    assert scan(codes, query(8), 4)[2] == -np.inf
    assert not codes._blocks[0][2].any()
    codes.put(slots(2), units(4, 8)[2:3])
    assert scan(codes, query(8), 4)[2] == by_hand(units(4, 8)[2], query(8))
    assert codes.count == 4


def test_a_slot_put_again_counts_once() -> None:
    codes = Codes(8)
    codes.put(slots(0, 1), units(2, 8))
    codes.put(slots(1, 2), units(2, 8, seed=5))
    assert codes.count == 3
    assert scan(codes, query(8), 3)[1] == by_hand(units(2, 8, seed=5)[0], query(8))


def test_a_zero_vector_scores_zero() -> None:
    codes = Codes(8)
    codes.put(slots(0), np.zeros((1, 8), dtype=np.float16))
    assert scan(codes, query(8), 1).tolist() == [0.0]


def test_the_kernels_leave_the_rounding_of_all_else_alone() -> None:
    """Some builds of numkong make the processor take numbers below 1e-38 for zero."""
    codes = Codes(8)
    codes.put(np.arange(3), units(3, 8))
    scan(codes, query(8), 3)
    tiny = np.full(16, 1e-40, dtype=np.float32)
    assert (tiny * np.float32(0.5) > 0).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bits_depend_on_the_row_alone(data: st.DataObject) -> None:
    """Whatever order, batches, neighbours, block size and strides the rows came with."""
    n, dim = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([5, 32, 48]))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rows, q = units(n, dim, seed), query(dim, seed)
    places = data.draw(st.permutations(range(3 * n)))[:n]
    cuts = sorted(data.draw(st.sets(st.integers(0, n), max_size=4)) | {0, n})
    wide = np.zeros((n, 2 * dim), dtype=np.float16)
    wide[:, ::2] = rows
    given_rows = data.draw(st.sampled_from([rows, np.asfortranarray(rows), wide[:, ::2]]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", data.draw(st.sampled_from([4, 16, 65_536])))
        patch.setattr(module, "_BATCH", data.draw(st.sampled_from([3, 4096])))
        codes = Codes(dim)
        for a, b in pairwise(cuts):
            codes.put(slots(*places[a:b]), given_rows[a:b])
        start = data.draw(st.integers(0, 3 * n))
        out = scan(codes, q, 3 * n + 2, start)
    expected = np.full(6 * n + 2, -np.inf, dtype=np.float32)
    expected[places] = [by_hand(row, q) for row in rows]
    assert out.tolist() == expected[start : start + 3 * n + 2].tolist()
    assert codes.count == n == int(codes.present.sum())


def test_room_grows_in_proportion_and_then_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 64)
    codes = Codes(4)
    sizes = set()
    for slot in range(300):
        codes.put(slots(slot), units(1, 4, seed=slot))
        size = len(codes.present)
        assert slot < size <= max(1.5 * (slot + 1), slot + 64)
        sizes.add(size)
    assert len(sizes) < 20
    assert {len(block) for block in codes._blocks} == {64}
    got = scan(codes, query(4), 300)
    assert got.tolist() == [by_hand(units(1, 4, seed=s)[0], query(4)) for s in range(300)]


values = st.lists(
    st.sampled_from([-np.inf, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(-1, 1, width=32),
    max_size=700,
)


@given(values=values, count=st.integers(1, 40), margin=st.sampled_from([0.0, 0.25]))
def test_a_shortlist_is_its_definition(values: list[float], count: int, margin: float) -> None:
    approx = np.array(values, dtype=np.float32)
    found = sorted((v for v in approx.tolist() if v > -np.inf), reverse=True)
    cut = found[count - 1] if count <= len(found) else -np.inf
    floor = float(np.float32(cut) - np.float32(margin))
    expected = [i for i, v in enumerate(approx.tolist()) if v > -np.inf and v >= floor]
    assert shortlist(approx, count, margin).tolist() == expected


def test_a_long_shortlist_is_its_definition() -> None:
    approx = np.round(np.random.default_rng(4).random(20_011), 3).astype(np.float32)
    for count in (1, 50, 150, 200, 5000, 20_011):
        cut = np.sort(approx)[-count]
        assert shortlist(approx, count).tolist() == np.flatnonzero(approx >= cut).tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.001, 0.02, 1.0]))
def test_a_shortlist_with_the_margin_holds_the_best_by_exact_score(
    seed: int, spread: float
) -> None:
    """Also where the vectors lie so close together that codes cannot tell them apart."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal(48) + spread * rng.standard_normal((400, 48))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    q = rows[0].astype(np.float32) + np.float32(spread / 20) * rng.standard_normal(48)
    q = (q / np.linalg.norm(q)).astype(np.float32)
    codes = Codes(48)
    codes.put(np.arange(400), rows)
    scores = exact(rows.astype(np.float32), q)
    best = np.flatnonzero(scores >= np.sort(scores)[-10])
    margin = codes.margin(Query(q))
    assert np.isin(best, shortlist(scan(codes, q, 400), 10, margin)).all()
    assert np.abs(scan(codes, q, 400) - scores).max() <= margin / 2


def test_side_by_side_they_are_what_each_is_alone() -> None:
    sizes = [1, 40, PIECE + 3, 7]
    each = [Codes(8) for _ in sizes]
    for n, (one, size) in enumerate(zip(each, sizes, strict=True)):
        one.put(np.arange(size), units(size, 8, seed=n))
    each[1].clear(3)
    asked, abreast = Query(query(8)), Abreast(each, sizes)
    for _ in range(2):  # its array is used again
        for task in reversed(abreast.tasks(asked)):
            task()
        expected = [scan(one, query(8), size) for one, size in zip(each, sizes, strict=True)]
        assert abreast.finish(asked).tolist() == np.concatenate(expected).tolist()
    assert abreast.margin(asked, 8) == max(one.margin(asked) for one in each)
    assert len(Abreast([], []).finish(asked)) == 0


def test_halves_are_widened_to_the_bit() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    assert widened(finite).tobytes() == finite.astype(np.float32).tobytes()
