"""Nothing outside a reader's view shows in a reply: random histories in one store with all
principals and in twins without what the reader cannot see; and engines that are broken on purpose,
each of which must be found out."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.noninterference import leaking
from bench.trials import Tally, Trial, short_walks
from hypothesis import given, settings
from hypothesis import strategies as st

from isovist.storage import graph, lookup
from isovist.storage.changes import Change
from isovist.storage.columns import Part
from isovist.storage.commit import Commit
from isovist.storage.jobs import BuildGraph
from isovist.storage.part_field import PartField
from isovist.storage.parts import Parts
from isovist.storage.prepared import text_hash
from isovist.storage.snapshot import Snapshot
from isovist.syscalls.operations import Candidate, Outcome, Put, RoundsQuery, Selection
from isovist.syscalls.records import View

MOST = 150
"""Histories within which a broken engine is found out."""
needs_graphs = pytest.mark.skipif(not graph.available(), reason="without hnswlib nothing walks")


def play(seed: str, *, short: bool, steps: int = 24) -> Tally:
    with (
        tempfile.TemporaryDirectory() as folder,
        short_walks() if short else contextlib.nullcontext(),
    ):
        return Trial(seed, Path(folder), steps=steps).run()


@pytest.mark.promise("view.noninterference")
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**9), short=st.booleans())
def test_no_reply_tells_of_what_is_outside_the_view(seed: int, short: bool) -> None:
    tally = play(str(seed), short=short)
    assert tally.counts["replies"]
    assert not tally.counts["differences"], tally.differences[0]


@needs_graphs
def test_the_histories_are_worth_playing() -> None:
    """They meet graphs, cross the edge of the view both ways, and hold much that is outside."""
    tally = Tally()
    for number in range(12):
        tally.add(play(f"worth {number}", short=bool(number % 2)))
    counts = tally.counts
    assert not counts["differences"], tally.differences[0]
    assert counts["graph"] >= 0.3 * counts["searches"]
    assert counts["found"] >= 0.5 * counts["searches"]
    assert counts["inside"] <= 0.9 * counts["units"]
    for event in ("moves in", "moves out", "restarts", "scrubs", "CommitDelta", "Pack"):
        assert counts[event], event


# -- engines that are broken on purpose

Break = Callable[[pytest.MonkeyPatch], None]


def whole_store_where_a_partition_is_empty(patch: pytest.MonkeyPatch) -> None:
    """The filter is left out where one of the view's partitions holds nothing."""
    own = Parts.of

    def of(self: Parts, view: View) -> list[Part]:
        found = own(self, view)
        every = len(found) == len(view.partitions)
        return found if every else [part for part in self if part.count]

    patch.setattr(Parts, "of", of)


def one_graph_for_all(patch: pytest.MonkeyPatch) -> None:
    """A graph holds the vectors of all partitions, and foreign ones are filtered out afterwards."""
    init, finish = BuildGraph.__init__, BuildGraph.finish

    def make(self: Any, parts: Parts, part: Part, *rest: Any, **more: Any) -> None:
        init(self, parts, part, *rest, **more)
        rows = [other.row[: other.n][other.alive[: other.n]] for other in parts]
        self._rows = np.sort(np.concatenate(rows))

    def end(self: Any, snapshot: Snapshot) -> None:
        finish(self, snapshot)
        self._part.lost, self._part.tainted = 0, False  # or it would be made anew for ever

    patch.setattr(BuildGraph, "__init__", make)
    patch.setattr(BuildGraph, "finish", end)


def ties_by_row(patch: pytest.MonkeyPatch) -> None:
    """What scores the same comes in the order in which the store numbered it."""

    def order(self: PartField, slots: Any, scores: Any) -> list[int]:
        slots = np.asarray(slots, np.intp)
        by_score = np.lexsort((self.gather("row", slots) % 7, -np.asarray(scores)))
        return [int(slot) for slot in slots[by_score]]

    patch.setattr(PartField, "order", order)


def one_text_in_all_partitions(patch: pytest.MonkeyPatch) -> None:
    """A text that its pair has stored anywhere is a duplicate."""
    own = Commit._put

    def put(self: Any, op: Put, pid: int, *rest: Any) -> Change:
        known = self._db.execute(
            "SELECT id, version FROM units WHERE hash = ? AND agent = ? AND user = ? AND pid <> ?",
            (bytes.fromhex(text_hash(op.text)), op.agent, op.user, pid),
        ).fetchone()
        if known is None or op.supersedes:
            return own(self, op, pid, *rest)
        outcome = Outcome(op=op, id=known[0], version=known[1], duplicate=True)
        return Change(outcome=outcome, pid=pid, uid=0)

    patch.setattr(Commit, "_put", put)


def rounds_of_all(patch: pytest.MonkeyPatch) -> None:
    """Who knows the handle of a session gets all of it."""

    def rounds(
        view: View, query: RoundsQuery, snapshot: Snapshot, places: Sequence[int | None]
    ) -> Selection:
        found: list[Candidate] = []
        for handle, low, high in query.wanted:
            for one in snapshot.rounds(handle, low, high, query.now):
                held = snapshot.units([one.uid])[one.uid]
                found.append(lookup._candidate(view, snapshot._readers.partition(one.pid), held))
        return Selection(candidates=tuple(found))

    patch.setattr(lookup, "_rounds", rounds)


@needs_graphs
@pytest.mark.parametrize(
    "broken",
    [
        whole_store_where_a_partition_is_empty,
        one_graph_for_all,
        ties_by_row,
        one_text_in_all_partitions,
        rounds_of_all,
    ],
)
def test_a_broken_engine_is_found_out(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert any(play(f"broken {number}", short=True).counts["differences"] for number in range(MOST))


def test_words_weighed_by_the_whole_store_are_found_out() -> None:
    with leaking():
        assert any(play(f"words {n}", short=False).counts["differences"] for n in range(MOST))
