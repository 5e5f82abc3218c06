"""Postings in memory take in what came since somebody asked, a little at a time."""

from __future__ import annotations

import numpy as np

from isovist.storage.resident import AT_ONCE, Resident


def held(resident: Resident, slots: int) -> list[int]:
    asked = np.array([7], dtype=np.uint32)
    [(_, entries)] = resident.find_all([7], asked, np.ones(slots, np.bool_))
    return sorted((entries >> 16).tolist())


def test_what_came_since_is_found_once_it_is_ready() -> None:
    resident = Resident()
    resident.add(0, {7: 2, 9: 1})
    assert resident.ready()
    assert held(resident, 1) == [0]


def test_much_at_once_is_taken_in_by_several_looks() -> None:
    resident = Resident()
    count = 2 * AT_ONCE + 1
    for slot in range(count):
        resident.add(slot, {7: 1})
    assert [resident.ready() for _ in range(3)] == [False, False, True]
    assert held(resident, count) == list(range(count))


def test_what_dies_before_anybody_asks_was_never_there() -> None:
    resident = Resident()
    for slot in range(3):
        resident.add(slot, {7: 1})
    resident.remove(1)
    assert resident.ready()
    resident.remove(2)
    assert held(resident, 3) == [0]
    assert resident.dead == 0


def test_unread_chunks_count_towards_packing_anew() -> None:
    resident = Resident()
    for slot in range(1025):
        resident.add(slot, {7: 1})
    assert resident.stale
