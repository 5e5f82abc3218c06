"""One random history from its first write to the reader's last question, in all stores at once."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from bench.histories import History
from bench.twins import Played, Twin, outcome_seen
from isovist.storage import graph, ranking
from isovist.syscalls.operations import Move, Op, Outcome, SearchQuery, Selection
from isovist.syscalls.records import View

_NOTHING = msgspec.msgpack.encode(Selection())


@dataclass
class Tally:
    """What a run came to. ``differences`` says where the first few were."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.differences += other.differences


class Trial:
    """One history, from its first write to its last question. ``folder`` is empty."""

    def __init__(self, seed: str, folder: Path, *, steps: int = 24) -> None:
        self.seed = seed
        self.tally = Tally()
        self._rng = random.Random(seed)
        self._folder = folder
        self._steps = steps
        self._history = History(random.Random(f"{seed} drawn"))
        self._full = Played(folder / "full.db", random.Random(f"{seed} full"))
        distinct = {view.partitions: view for view in self._history.views}
        self._twins = [
            Twin(folder / f"twin{n}.db", random.Random(f"{seed} twin {n}"), view)
            for n, view in enumerate(distinct.values())
        ]
        self._current = 0

    def run(self) -> Tally:
        try:
            self._write(self._history.bulk())
            self._settle()
            for _ in range(self._steps):
                self._step()
            self._check()
        finally:
            for played in (self._full, *self._twins):
                self.tally.counts.update(played.tally)
                played.store.close()
        self.tally.counts["histories"] += 1
        return self.tally

    def _step(self) -> None:
        draw = self._rng.random()
        self._write(self._history.group())
        for played in (self._full, *self._twins):
            played.upkeep()
        if draw < 0.12:
            self._settle()
        elif draw < 0.15:
            self._scrub()
        elif draw < 0.19:
            self._reopen()
        elif draw < 0.25:
            # The reader joins a group, or leaves one.
            self._current = self._rng.randrange(len(self._history.views))
            self.tally.counts["membership changes"] += 1
        elif draw < 0.26:
            self._purge()
        elif draw < 0.31:
            self._check()

    def _write(self, ops: list[Op]) -> None:
        if not ops:
            return
        frees = isinstance(ops[0], Move) and self._gave_way(ops[0].id)
        outcomes = self._full.commit(ops)
        self._mirror(outcomes, frees)
        vectors = self._history.vectors(outcomes)
        self._mirror(self._full.commit(vectors), False)

    def _mirror(self, outcomes: list[Outcome], frees: bool) -> None:
        events = self._history.record(outcomes)
        for twin in self._twins:
            for theirs, ours in twin.play(events, frees):
                self._compare(twin, [event.op for event in events], theirs, ours)
        for event in events:
            op = event.op
            if isinstance(op, Move) and not event.outcome.errno:
                within = self._twins[0].within
                crossing = (op.partition in within) - (op.to in within)
                self.tally.counts[("moves in", "moves beside", "moves out")[1 + crossing]] += 1
            self.tally.counts["duplicates"] += event.outcome.duplicate

    def _gave_way(self, id_: str) -> bool:
        with closing(sqlite3.connect(self._folder / "full.db")) as db:
            found = db.execute("SELECT twin FROM units WHERE id = ?", (id_,)).fetchone()
        return found is not None and found[0] is None

    def _settle(self) -> None:
        self._bystanders()
        for played in (self._full, *self._twins):
            played.settle()

    def _scrub(self) -> None:
        self.tally.counts["scrubs"] += 1
        for played in (self._full, *self._twins):
            played.scrub(self._history.now)

    def _reopen(self) -> None:
        self.tally.counts["restarts"] += 1
        for twin in self._twins:
            theirs, ours = self._full.reopen(twin.within), twin.reopen(twin.within)
            self._compare(twin, "what a restart found", theirs, ours)

    def _purge(self) -> None:
        """All that one user owns is forgotten."""
        user = self._rng.choice(("ana_b", "cleo"))
        outcomes = self._full.store.purge(user, "all", self._history.now)
        self._full.store.apply(outcomes)
        self._history.record(outcomes)
        self.tally.counts["purges"] += 1
        for twin in self._twins:
            mine = twin.store.purge(user, "all", self._history.now)
            twin.store.apply(mine)
            seen = [one for one in outcomes if one.op.partition in twin.within]
            self._compare(
                twin, "a purge", tuple(map(outcome_seen, seen)), tuple(map(outcome_seen, mine))
            )

    def _bystanders(self) -> None:
        """Others ask too, in the store where there are others."""
        rng = self._rng
        for view in rng.sample(self._history.views, 1):
            others = History(random.Random(rng.random())).views[0]
            for query in rng.sample(self._history.queries(view), 3):
                list(self._full.answers(others, [query]))

    def _check(self) -> None:
        view = self._history.views[self._current]
        twin = next(t for t in self._twins if t.view.partitions == view.partitions)
        asked = self._history.queries(view)
        counts = self.tally.counts
        for (query, theirs), (_, ours) in zip_longest(
            self._full.answers(view, asked), twin.answers(view, asked), fillvalue=("", b"")
        ):
            counts["replies"] += 1
            counts["found"] += isinstance(query, SearchQuery) and theirs != _NOTHING
            self._compare(twin, query, theirs, ours)
        graphs = self._graphs(view)
        for query in asked:
            if isinstance(query, SearchQuery):
                counts["searches"] += 1
                counts["graph"] += graphs and query.mode != "bm25" and not query.lexical_only
        units = self._history.units.values()
        counts["inside"] += sum(known.put.partition in twin.within for known in units)
        counts["units"] += len(units)
        self._bystanders()

    def _graphs(self, view: View) -> bool:
        engine: Any = self._full.store._engine  # no reply tells of graphs
        return any(part.graph is not None for part in engine.parts.of(view))

    def _compare(self, twin: Twin, what: object, theirs: object, ours: object) -> None:
        if theirs != ours:
            self.tally.counts["differences"] += 1
            if len(self.tally.differences) < 3:
                self.tally.differences.append(
                    f"history {self.seed!r}, {twin.view.reader}: {_brief(what)}:\n"
                    f"  with all: {_brief(theirs)}\n  without:  {_brief(ours)}"
                )


def _brief(value: object) -> str:
    """Of a reply its units and scores, of writes what they are about, for people."""
    if isinstance(value, list):
        return ", ".join(f"{type(op).__name__} {op.id}" for op in value)
    if isinstance(value, bytes):
        with contextlib.suppress(msgspec.ValidationError):
            reply = msgspec.msgpack.decode(value, type=Selection)
            shown = [(c.hit.unit.id, c.hit.unit.version, c.hit.score) for c in reply.candidates]
            return f"{shown} {reply.next} {reply.counts}"
    return repr(value)


@contextmanager
def short_walks() -> Iterator[None]:
    """Graphs with few links, walked briefly, and few texts a leg: what is found then depends on
    how the graph came to be. With the usual settings a small graph finds all, and would hide it."""
    names = {"_LINKS": 2, "_BREADTH": 3, "_EF": ((1 << 40, 3),)}
    before = {name: getattr(graph, name) for name in names}
    depth = ranking.DEPTH
    try:
        for name, value in names.items():
            setattr(graph, name, value)
        ranking.DEPTH = 3
        yield
    finally:
        for name, value in before.items():
            setattr(graph, name, value)
        ranking.DEPTH = depth
