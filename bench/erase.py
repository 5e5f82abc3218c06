"""Has what was forgotten left every file and index?

Canaries are units with words of their own in text, metadata and session, in every scope, under a
running kernel: some are updated, moved, superseded, set to expire, put into chats and kept there.
All of it is searched for, listed, read and injected, so that every cache and record meets it, and
stored so long that graphs and the shared index hold it. Then all are forgotten: one by one, by
query, and with their user. When all receipts are issued every file is taken as it stands, under
the running kernel, and opened:

- *bytes*: no file (database, log, indexes, the kernel's own log) holds a canary's word in any
  encoding, nor eight bytes in a row of a canary's vector that no other vector has;
- *SQLite*: no free page; no row, term, frequency or forward index of a canary;
- *shared index*: no file beside the live segments, no deleted document, nothing stored, no
  dictionary entry of a canary's row or term;
- *graphs*: no row of a canary, no file left half-way;
- *answers*: no canary by reading, listing or searching, before and after a restart.

*memory* is what the running kernel and its drivers still hold of the words: figures without a bar,
since an allocator does not overwrite what it gives back. They end with the processes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tantivy

from bench.host import check_model, scratch
from bench.kernels import SECONDS, Kernels
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure
from bench.traces import (
    Numbers,
    count_pieces,
    graph_rows,
    in_graphs,
    in_index,
    in_sqlite,
    pieces_of,
    pieces_of_texts,
    processes,
    words_in,
    words_in_memory,
)
from isovist.storage.inverted import SCHEMA
from isovist.storage.words import index_terms
from isovist.syscalls.client import Client
from isovist.syscalls.errors import IsovistError

USERS, LEAVING = ("ana", "ben", "chen"), "eve"
AGENTS = ("planner", "writer")
SCOPES = ("pair", "user", "agent", "global", "@team/own")
PATIENCE = 120.0
"""Seconds for upkeep to build what is due, and for a receipt."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--canaries", type=int, default=1000, help="default 1000")
    parser.add_argument("--embedder", default="universal", help="default universal")
    parser.add_argument("--model", default="scripted", help="an installed model (default scripted)")
    parser.add_argument("--show", action="store_true", help="print every trace that is found")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    check_model(options.model)
    count = 40 if options.quick else options.canaries
    with scratch() as name:
        folder = Path(name)
        facts = machine(folder)
        bench = _Bench(folder, options, count, progress)
        figures = bench.run()
    if options.show or any(f.holds is False for f in figures):
        for line in bench.traces if options.show else bench.traces[:20]:
            print(line, file=sys.stderr)
    config: dict[str, object] = {
        "seed": options.seed, "quick": options.quick, "canaries": count,
        "embedder": options.embedder, "model": options.model,
    }  # fmt: skip
    return Report(bench="erase", machine=facts, config=config, figures=figures)


@dataclass
class Canary:
    id: str
    version: int
    user: str
    agent: str
    words: set[str] = field(default_factory=set)


class _Bench:
    def __init__(
        self, folder: Path, options: argparse.Namespace, count: int, progress: Progress
    ) -> None:
        self._folder = folder
        self._state = folder / "state"
        self._state.mkdir()
        self._options = options
        self._count = count
        self._progress = progress
        self._rng = random.Random(f"erase {options.seed}")
        self._canaries: dict[str, Canary] = {}
        self._words: set[str] = set()
        self.traces: list[str] = []

    def run(self) -> list[Figure]:
        with Kernels(self._state, self._options.embedder, self._options.model) as kernels:
            kernels.start()
            self._fill(kernels)
            self._use(kernels)
            self._await_upkeep(kernels)
            numbers = self._numbers()
            met = self._found_in_files(self._state)
            vectors = self._pieces_in_files(self._state, numbers)
            derived = self._derived_hold(numbers)
            receipts = self._forget(kernels)
            figures = [
                figure("canaries", len(self._canaries), "units", bar=f">= {self._count}"),
                figure("words", len(self._words), "words of theirs"),
                figure("before.in_files", len(met), "words found in files before", bar="> 0"),
                figure("before.vectors", vectors, "pieces of 8 bytes before", bar="> 0"),
                figure("before.index", derived[0], "rows in the shared index before", bar="> 0"),
                figure(
                    "before.graphs",
                    derived[1],
                    "rows in graphs before",
                    bar=None if self._options.quick else "> 0",
                ),
                figure("receipts", receipts, "issued", bar="> 0"),
            ]
            copy = self._folder / "copy"
            # Taken as it is, under the running kernel: nothing may depend on its end.
            shutil.copytree(self._state, copy, ignore=shutil.ignore_patterns("socket"))
            figures += self._files(copy, numbers)
            figures += self._answers(kernels, "after")
            figures += self._memory(kernels)
            kernels.kill()
            kernels.start()
            figures += self._answers(kernels, "restarted")
        return figures

    # -- canaries come

    def _word(self) -> str:
        while True:
            word = "zq" + "".join(self._rng.choices("bcdfghjklmnp", k=12))
            if word not in self._words and index_terms(word) == {word: 1}:
                self._words.add(word)
                return word

    def _text(self, *words: str) -> str:
        count = self._rng.choice((4, 8, 8, 8, 250))
        common = [f"{self._rng.choice(_COMMON)}" for _ in range(count)]
        common.insert(self._rng.randrange(len(common)), " ".join(words))
        return " ".join(common)

    def _fill(self, kernels: Kernels) -> None:
        people = (*USERS, LEAVING)
        with kernels.attach() as k:
            k.group_change("team", "users", add=people)
            for agent in AGENTS:
                k.grant(agent, users=people, scopes=("user", "agent", "global", "@team"))
        clients = {agent: kernels.attach(agent) for agent in AGENTS}
        try:
            for number in range(self._count):
                self._progress("canaries stored", number, self._count)
                agent = self._rng.choice(AGENTS)
                self._store(clients[agent], agent, number)
        finally:
            for client in clients.values():
                client.close()

    def _store(self, k: Client, agent: str, number: int) -> None:
        """A unit that stays and a canary; every few canaries something befalls it."""
        rng = self._rng
        user = LEAVING if number % 3 == 2 else rng.choice(USERS)
        scope = SCOPES[number % len(SCOPES)]
        stays = f"{self._text()} stays{number}"
        k.remember(stays, user=rng.choice(USERS), scope=scope, stream="reusable")
        words = {self._word() for _ in range(3)}
        in_text, in_meta, in_session = sorted(words)
        stored = k.remember(
            self._text(in_text), user=user, scope=scope, stream="reusable", session=in_session,
            round=number, meta={"mark": in_meta},
        )  # fmt: skip
        if stored.note or stored.duplicate:
            raise CannotRun(f"a canary was not stored as asked: {stored}")
        canary = Canary(stored.id, stored.version, user, agent, words)
        self._canaries[stored.id] = canary
        befalls = number % 10
        if befalls in (1, 6):
            word = self._word()
            canary.words.add(word)
            changed = k.update(canary.id, canary.version, self._text(word), user=user)
            canary.version = changed.version
        elif befalls in (2, 7):
            to = "user" if scope == "pair" else "pair"
            canary.version = k.rescope(canary.id, canary.version, to, user=user).version
        elif befalls == 3:
            word = self._word()
            newer = k.remember(
                self._text(word), user=user, scope=scope, stream="reusable", supersedes=canary.id
            )
            self._canaries[newer.id] = Canary(newer.id, newer.version, user, agent, {word})
        elif befalls == 4:
            at = "2199-01-01T00:00:00Z"
            canary.version = k.expire(canary.id, canary.version, at, user=user).version

    def _use(self, kernels: Kernels) -> None:
        """Let every reader, cache and record meet them."""
        for number, canary in enumerate(list(self._canaries.values())):
            if number % 4:
                continue
            self._progress("canaries used", number, len(self._canaries))
            word = sorted(canary.words)[0]
            with kernels.attach(canary.agent, canary.user) as k:
                k.search(f"what of {word}", mode="bm25")
                k.search(f"what of {word}")
                k.read(canary.id)
                k.memory_search(word)
                if number % 8 == 0:
                    k.chat(f"Tell me of {word}", max_tokens=8)
                    k.prefetch(f"Tell me of {word}")
                if number % 40 == 0:
                    k.full_context()
                    k.memory_files()
                    kept = k.chat(f"Keep in mind {word}", max_tokens=8, keep=True).kept
                    self._canaries[kept] = Canary(kept, 1, canary.user, canary.agent, {word})

    def _await_upkeep(self, kernels: Kernels) -> None:
        """Until vectors, graphs and the shared index are made."""
        for agent in AGENTS:
            for user in (*USERS, LEAVING):
                with kernels.attach(agent, user) as k:
                    self._progress(f"vectors of {agent} and {user} awaited")
                    found = k.search("garden", mode="dense", barrier_ms=SECONDS * 1000)
                    if found.barrier.state != "ready":
                        raise CannotRun("the vectors are not there in time")
        self._progress("upkeep awaited")
        end = time.monotonic() + PATIENCE
        state, since = self._derived_state(), time.monotonic()
        while time.monotonic() < min(end, since + 4.0):
            time.sleep(0.2)
            now = self._derived_state()
            if now != state:
                state, since = now, time.monotonic()

    def _derived_state(self) -> list[tuple[str, int]]:
        with suppress(OSError):  # one of them just went
            paths = (self._state / "isovist.db.index").rglob("*")
            return sorted((str(path), path.stat().st_mtime_ns) for path in paths)
        return []

    def _numbers(self) -> Numbers:
        self._progress("the file read before")
        path = self._state / "isovist.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT tid, term FROM terms").fetchall()
            tids = {tid for tid, term in found if term in self._words}
            units = dict(db.execute("SELECT id, uid FROM units"))
            uids = {units[id_] for id_ in self._canaries}
            chunks = db.execute("SELECT row, uid FROM chunks").fetchall()
            rows = {row for row, uid in chunks if uid in uids}
            theirs: list[bytes] = []
            others: list[bytes] = []
            for row, vector in db.execute("SELECT row, vector FROM vectors"):
                (theirs if row in rows else others).append(vector)
            deflated: tuple[list[bytes], list[bytes]] = [], []
            for uid, text in db.execute("SELECT uid, text FROM units"):
                if isinstance(text, bytes):
                    deflated[uid not in uids].append(text)
        if not tids or not theirs or not deflated[0]:
            raise CannotRun("the canaries left nothing to look for")
        pieces = (
            np.setdiff1d(pieces_of(theirs), pieces_of(others)),
            np.setdiff1d(pieces_of_texts(deflated[0]), pieces_of_texts(deflated[1])),
        )
        return Numbers(tids, uids, rows, np.unique(np.concatenate(pieces)))

    # -- and go

    def _forget(self, kernels: Kernels) -> int:
        """All of them, in three ways; returns how many receipts were issued."""
        receipts: list[str] = []
        left = [canary for canary in self._canaries.values() if canary.user != LEAVING]
        for number, canary in enumerate(left):
            self._progress("canaries forgotten", number, len(left))
            with kernels.attach(canary.agent, canary.user) as k:
                if number % 2:
                    query = " ".join(sorted(canary.words))
                    shown = k.forget_matching(query)
                    if [unit.id for unit in shown.units] == [canary.id]:
                        done = k.forget_matching(query, confirm=shown.confirm)
                        receipts.append(done.receipt)
                        continue
                receipts.append(k.forget(canary.id).receipt)
        with kernels.attach() as k:
            shown = k.forget_user(LEAVING)
            receipts.append(k.forget_user(LEAVING, confirm=shown.confirm).receipt)
            self._progress("receipts awaited")
            k.receipt(receipts[-1], wait=True, deadline_ms=int(PATIENCE * 1000))
            issued = [k.receipt(receipt) for receipt in receipts]
        if missing := sum(not receipt.issued_at for receipt in issued):
            self.traces.append(f"receipts: {missing} not issued with the last")
        named = {unit for receipt in issued for unit in receipt.units}
        if unnamed := self._canaries.keys() - named:
            self.traces.append(f"receipts: {len(unnamed)} canaries in none, as {min(unnamed)}")
        return len(issued)

    # -- what is left

    def _files(self, copy: Path, numbers: Numbers) -> list[Figure]:
        words = self._found_in_files(copy)
        for word, path in words.items():
            self.traces.append(f"bytes: {word} in {path}")
        pieces = self._pieces_in_files(copy, numbers)
        if pieces:
            self.traces.append(f"bytes: {pieces} pieces of vectors or deflated texts")
        counts = {
            "sqlite": self._note("sqlite", in_sqlite(copy / "isovist.db", numbers)),
            "index": self._note(
                "index", in_index(copy / "isovist.db.index" / "words", numbers)
            ),
            "graphs": self._note(
                "graphs", in_graphs(copy / "isovist.db.index" / "graphs", numbers)
            ),
        }  # fmt: skip
        return [
            figure("left.words_in_files", len(words), "words", bar="== 0"),
            figure("left.vectors_in_files", pieces, "pieces of 8 bytes", bar="== 0"),
            *(figure(f"left.{name}", n, "traces", bar="== 0") for name, n in counts.items()),
            figure("left.receipts", sum(t.startswith("receipts") for t in self.traces), "problems",
                   bar="== 0"),
        ]  # fmt: skip

    def _note(self, where: str, traces: Iterable[str]) -> int:
        found = list(traces)
        self.traces += [f"{where}: {trace}" for trace in found]
        return len(found)

    def _found_in_files(self, folder: Path) -> dict[str, str]:
        """Words of canaries in any file, each with one that holds it."""
        found: dict[str, str] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                for word in words_in(path.read_bytes()):
                    if word in self._words:
                        found.setdefault(word, str(path.relative_to(folder)))
        return found

    def _pieces_in_files(self, folder: Path, numbers: Numbers) -> int:
        self._progress("files searched for vectors and deflated texts")
        files = (path for path in folder.rglob("*") if path.is_file())
        return sum(count_pieces(path.read_bytes(), numbers.pieces) for path in files)

    def _derived_hold(self, numbers: Numbers) -> tuple[int, int]:
        """Rows of canaries in the shared index and in graphs; so many are to go."""
        derived = self._state / "isovist.db.index"
        copy = self._folder / "before"
        shutil.copytree(derived, copy)
        index = tantivy.Index(SCHEMA, str(copy / "words"))
        searcher = index.searcher()
        rows = sum(searcher.doc_freq("row", row) > 0 for row in numbers.rows)
        nodes = sum(len(numbers.rows & held) for _, held in graph_rows(copy / "graphs"))
        shutil.rmtree(copy)
        return rows, nodes

    def _answers(self, kernels: Kernels, when: str) -> list[Figure]:
        found = 0
        sample = sorted(self._canaries)[:: max(1, len(self._canaries) // 60)]
        for number, id_ in enumerate(sample):
            self._progress(f"answers, {when}", number, len(sample))
            canary = self._canaries[id_]
            with kernels.attach(canary.agent, canary.user) as k:
                word = min(canary.words)
                hits = [*k.search(word, mode="bm25").hits, *k.search(word, mode="dense", k=20).hits]
                found += sum(hit.unit.id in self._canaries for hit in hits)
                with suppress(IsovistError):
                    k.read(id_)
                    found += 1
        for agent in AGENTS:
            for user in USERS:
                with kernels.attach(agent, user) as k:
                    listed = [u.id for u in k.memories(limit=500) if u.id in self._canaries]
                    found += len(listed)
        if found:
            self.traces.append(f"answers: {found} canaries {when}")
        return [figure(f"answers.{when}", found, "canaries", bar="== 0")]

    def _memory(self, kernels: Kernels) -> list[Figure]:
        """Words in the memory of the kernel and of all its processes."""
        by_name: dict[str, set[str]] = {}
        for name, pid in processes(kernels.pid):
            self._progress(f"memory of {name} searched")
            try:
                found = {word for word in words_in_memory(pid) if word in self._words}
            except PermissionError:
                raise CannotRun(f"the memory of process {pid} may not be read") from None
            by_name.setdefault(name, set()).update(found)
        unit = f"words of {len(self._words)}"
        return [figure(f"memory.{name}", len(words), unit) for name, words in by_name.items()]


_COMMON = [
    "garden", "kettle", "river", "lantern", "window", "harbour", "meadow", "copper", "violin",
    "thunder", "orchard", "pebble", "saddle", "marble", "candle", "feather", "anchor", "blossom",
    "hammer", "willow", "canyon", "ribbon", "velvet", "timber",
]  # fmt: skip
