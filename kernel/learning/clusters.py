"""Who is compared with whom: batches in which each entry lies beside those that are like it.

A changed entry is always in one batch with all of its neighbours, so a twin among them is seen.
Batches hold as many as they may, those first that share neighbours: fewer calls of a judge. The
result depends on the entries and their neighbours alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from isovist.kernel.learning.likeness import Features, features, likeness
from isovist.kernel.state.lessons import Held

Found = Sequence[tuple[Held, Sequence[Held]]]
"""Entries, each with its neighbours, nearest first."""


async def batches(found: Found, size: int) -> list[list[Held]]:
    """Batches of at most ``size``, in which each entry of ``found`` stands with its neighbours
    (fewer than ``size``), ordered by likeness. Entries without a neighbour are in none. The work
    is done in a thread of its own."""
    return await trio.to_thread.run_sync(_batches, found, size)


def _batches(found: Found, size: int) -> list[list[Held]]:
    return [seriated(batch) for batch in packed(found, size)]


def packed(found: Found, size: int) -> Iterator[list[Held]]:
    batch: dict[str, Held] = {}
    for held, near in _walk(found):
        if not near or all(one.id in batch for one in (held, *near)):
            continue
        joined = batch | {one.id: one for one in (held, *near)}
        if len(joined) > size:
            yield list(batch.values())
            joined = {one.id: one for one in (held, *near)}
        batch = joined
    if batch:
        yield list(batch.values())


def _walk(found: Found) -> Iterator[tuple[Held, Sequence[Held]]]:
    """Every entry once, from each on to those that it shares neighbours with, nearest first."""
    by_id = {held.id: (held, near) for held, near in found}
    beside: dict[str, list[str]] = {}
    for held, near in found:
        for one in (held, *near):
            beside.setdefault(one.id, []).append(held.id)
    seen: set[str] = set()
    for held, _ in found:
        stack = [held.id]
        while stack:
            following = stack.pop()
            if following in seen:
                continue
            seen.add(following)
            entry, near = by_id[following]
            yield entry, near
            ahead = [other for one in (entry, *near) for other in beside[one.id]]
            stack += reversed([other for other in ahead if other not in seen])


def seriated(batch: Sequence[Held]) -> list[Held]:
    """The entries in an order in which each is followed by the one most like it of those left;
    ties go by text."""
    left = sorted(batch, key=lambda held: (held.situation, held.lesson, held.id))
    known: dict[str, Features] = {held.id: features(held.situation, held.lesson) for held in left}
    chain = left[:1]
    left = left[1:]
    while left:
        last = known[chain[-1].id]
        best = max(range(len(left)), key=lambda at: (likeness(last, known[left[at].id]), -at))
        chain.append(left.pop(best))
    return chain
