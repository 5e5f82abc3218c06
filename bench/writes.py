"""``bench writes``: how soon a durable write can be searched, and how fast many are taken in.

**Single writes.** A kernel in a process of its own over ``units`` units; one client sends a write
and, in the same breath, two searches for it: one that waits for the lexical leg, one for both.
The kernel says how long its barrier held each of them, which is the time from a write's acceptance
until it is searchable; what the client sees (the search included) stands beside it. Every search
must find the write, else the bench could not be run.

Beside it, in turn on the same disk: a lexical index of the same units that commits each write by
itself (the same library, the same schema, one thread), from before the write until it is found.

**Bulk.** The lines of an export through the import syscall of a kernel that embeds nothing
meanwhile, as ``isovist memory import`` sends them; and groups of writes straight into a store.
Texts have the length of conversation rounds: 500 to 1,000 characters.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.host import Command, Host, scratch
from bench.machine import flush_ms, machine
from bench.report import CannotRun, Figure, Progress, Report, figure, percentile
from bench.text import Writer
from isovist.kernel.cli.archive import BATCH, imported
from isovist.kernel.writer import GROUP
from isovist.storage.inverted import Entry, Inverted
from isovist.storage.prepared import prepare
from isovist.storage.store import Store
from isovist.syscalls import messages as m
from isovist.syscalls.client import Client
from isovist.syscalls.exchange import FORMAT, Line
from isovist.syscalls.operations import Op, Put
from isovist.syscalls.records import Axis, Partition

SHORTEST, LONGEST = 500, 1000
"""Characters of a text."""
USERS = 50
BEGAN = 1_700_000_000_000_000_000
"""When the first unit was said (ns); the others follow a second apart."""
SECOND = 1_000_000_000
PAPER = ("[S], its hybrid index, quoted, not run here", 56.9)


class Size(msgspec.Struct, frozen=True):
    """``units`` in the store before single writes, ``single`` of them, units of a ``bulk``."""

    units: int
    single: int
    bulk: int


FULL = Size(units=2000, single=200, bulk=10_000)
QUICK = Size(units=64, single=8, bulk=128)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--embedder", default="universal", help="universal (default) or hash")
    parser.add_argument("--units", type=int, help="in the store before single writes")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    size = QUICK if options.quick else FULL
    if options.units:
        size = msgspec.structs.replace(size, units=options.units)
    texts = Texts(options.seed)
    with scratch() as folder:
        facts = machine(Path(folder))
        figures = _single(Path(folder), options.embedder, size, texts, progress)
        figures += _by_import(Path(folder), size, texts, progress)
        figures += _by_groups(Path(folder), size, texts, progress)
        figures.append(figure("disk.flush.after", flush_ms(Path(folder)), "ms"))
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "embedder": options.embedder,
        "units_before_single_writes": size.units,
        "single_writes": size.single,
        "bulk_units": size.bulk,
        "characters": f"{SHORTEST} to {LONGEST}",
        "partitions": f"{USERS} users of one agent, sizes by a power law",
        "group": GROUP,
        "lines_an_import": BATCH,
        "placement": "kernel, its embedder and the client on any core",
    }
    return Report(bench="writes", machine=facts, config=config, figures=figures)


class Texts:
    """Seeded texts as long as rounds, no two alike, each with the user it belongs to."""

    def __init__(self, seed: int) -> None:
        self._writer = Writer(seed)
        self._random = random.Random(f"rounds {seed}")
        self.made = 0

    def one(self) -> str:
        size = self._random.randint(SHORTEST, LONGEST)
        self.made += 1
        text = f"Round {self.made}."
        while len(text) < size:
            text += " " + self._writer.note()
        return text[:size].rstrip()

    def user(self) -> str:
        return f"user{min(int(self._random.paretovariate(0.8)), USERS)}"


# -- single writes


def _single(
    folder: Path, embedder: str, size: Size, texts: Texts, progress: Progress
) -> list[Figure]:
    state = folder / "single"
    state.mkdir()
    known = [texts.one() for _ in range(size.units)]
    with Host(state, embedder=embedder) as host:
        with host.connect() as operator:
            took = _import(operator, _lines(known, texts), progress, "units before single writes")
            before = time.perf_counter()
            host.settle(progress)
            filled = took + time.perf_counter() - before
        reference = _Alone(folder / "alone", known)
        with host.connect("agent", "ana") as client:
            probe = _Probe(client)
            probe.write(texts.one())  # what is loaded at first use is loaded now
            single: list[_Seen] = []
            alone: list[float] = []
            for number in range(size.single):
                progress("single writes", number, size.single)
                text = texts.one()
                alone.append(reference.write(text))
                single.append(probe.write(text))
        statistics = host.ask(Command(do="statistics")).statistics
    reference.close()
    beside = (
        "a lexical index that commits each write by itself, before it is durable elsewhere",
        percentile(alone, 0.5),
    )
    bars = {"lexical": "<= 8", "both": "<= 20"}
    figures = [
        figure("single.durable.p50", percentile([s.stored for s in single], 0.5), "ms"),
        figure("single.durable.p99", percentile([s.stored for s in single], 0.99), "ms"),
    ]
    for leg in ("lexical", "both"):
        held = [getattr(s, leg) for s in single]
        seen = [getattr(s, f"{leg}_seen") for s in single]
        figures += [
            figure(
                f"single.{leg}.p50", percentile(held, 0.5), "ms", reference=beside, bar=bars[leg]
            ),
            figure(f"single.{leg}.p99", percentile(held, 0.99), "ms"),
            figure(f"single.{leg}.seen.p50", percentile(seen, 0.5), "ms, its search included"),
        ]
    both = percentile([s.both for s in single], 0.5)
    return [
        *figures,
        figure("single.both.beside_paper", both, "ms", reference=PAPER),
        figure("embedded.rate", size.units / filled, "units/s, import and embedding"),
        figure("single.bytes", _bytes(state) / (size.units + size.single + 1), "bytes a unit"),
        figure("single.waiting", statistics["embeddings_waiting"], "units", bar="== 0"),
    ]


class _Seen(msgspec.Struct, frozen=True):
    """Milliseconds: until the write's reply came; how long the barrier held a search for it, by
    leg; until that search's reply came."""

    stored: float
    lexical: float
    both: float
    lexical_seen: float
    both_seen: float


class _Probe:
    """Writes units and looks for each at once."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, text: str) -> _Seen:
        query = text[:80]
        began = time.perf_counter()
        write = self._client.submit(m.Remember(text=text))
        words = self._client.submit(
            m.Search(query=query, mode="bm25", wait="lexical", k=1, barrier_ms=60_000)
        )
        both = self._client.submit(
            m.Search(query=query, mode="hybrid", wait="both", k=1, barrier_ms=60_000)
        )
        stored = write.result()
        stored_ms = (time.perf_counter() - began) * 1e3
        assert isinstance(stored, m.Stored)
        seen: list[tuple[float, float]] = []
        for pending in (words, both):
            found = pending.result()
            took = (time.perf_counter() - began) * 1e3
            assert isinstance(found, m.Found)
            if found.barrier.state != "ready":
                raise CannotRun("a write was not searchable within a minute")
            if [hit.unit.id for hit in found.hits] != [stored.id]:
                raise CannotRun("a search that waited for a write did not find it")
            seen.append((found.barrier.waited_ms, took))
        (lexical, lexical_seen), (whole, whole_seen) = seen
        return _Seen(stored_ms, lexical, whole, lexical_seen, whole_seen)


class _Alone:
    """A lexical index that commits each write by itself, over the same texts."""

    def __init__(self, folder: Path, known: list[str]) -> None:
        folder.mkdir()
        self._index, _ = Inverted.open(folder, b"bench")
        self._tids: dict[str, int] = {}
        self._row = 0
        self._index.write([self._entry(text) for text in known], (), 1)
        self._index.refresh()

    def _entry(self, text: str) -> Entry:
        self._row += 1
        terms = prepare(text, BEGAN).terms[0]
        tids = {self._tids.setdefault(t, len(self._tids) + 1): n for t, n in terms.items()}
        return Entry(self._row, 1, BEGAN, tids)

    def write(self, text: str) -> float:
        """Milliseconds until the text is found."""
        began = time.perf_counter()
        entry = self._entry(text)
        self._index.write([entry], (), self._index.generation + 1)
        self._index.refresh()
        found = self._index.candidates(
            [1], [(tid, 1.0) for tid in entry.terms], average=100.0, count=1
        )
        took = (time.perf_counter() - began) * 1e3
        if found.rows.tolist() != [entry.row]:
            raise CannotRun("the index beside it did not find its write")
        return took

    def close(self) -> None:
        self._index.close()


# -- many writes


def _by_import(folder: Path, size: Size, texts: Texts, progress: Progress) -> list[Figure]:
    state = folder / "import"
    state.mkdir()
    lines = list(_lines((texts.one() for _ in range(size.bulk)), texts))
    with Host(state, embedder="hash") as host:
        host.ask(Command(do="embed off"))
        with host.connect() as operator:
            took = _import(operator, iter(lines), progress, "units by import")
    return [
        figure("import.rate", size.bulk / took, "units/s, not embedded", bar=">= 1000"),
        figure("import.bytes", _bytes(state) / size.bulk, "bytes a unit, without its vector"),
    ]


def _import(operator: Client, lines: Iterator[str], progress: Progress, stage: str) -> float:
    """Seconds that taking in ``lines`` took."""
    whole = list(lines)
    began = time.perf_counter()
    numbered = list(enumerate(whole))
    batches = (numbered[at : at + BATCH] for at in range(0, len(numbered), BATCH))
    for some, done in imported(operator, batches):
        progress(stage, some[0][0], len(whole))
        if done.failed or done.stored != len(some):
            raise CannotRun(f"an import stored {done.stored} of {len(some)}: {done.failed[:1]}")
    return time.perf_counter() - began


def _by_groups(folder: Path, size: Size, texts: Texts, progress: Progress) -> list[Figure]:
    ops: list[Op] = [
        _put(_partition(texts.user()), number, texts.one()) for number in range(size.bulk)
    ]
    store = Store.open(folder / "groups.db", "bench", 256)
    commits: list[float] = []
    applies: list[float] = []
    try:
        store.restore()
        for at in range(0, len(ops), GROUP):
            progress("units by groups", at, len(ops))
            began = time.perf_counter()
            outcomes = store.commit(ops[at : at + GROUP])
            committed = time.perf_counter()
            store.apply(outcomes)
            applies.append((time.perf_counter() - committed) * 1e3)
            commits.append((committed - began) * 1e3)
            if any(o.errno or o.duplicate for o in outcomes):
                raise CannotRun("the store refused a unit of a group")
    finally:
        store.close()
    rate = len(ops) / (sum(commits) + sum(applies)) * 1e3
    return [
        figure("groups.rate", rate, "units/s", bar=">= 1000"),
        figure("groups.commit.p50", percentile(commits, 0.5), f"ms a group of {GROUP}"),
        figure("groups.commit.p99", percentile(commits, 0.99), f"ms a group of {GROUP}"),
        figure("groups.apply.p50", percentile(applies, 0.5), f"ms a group of {GROUP}"),
        figure("groups.apply.p99", percentile(applies, 0.99), f"ms a group of {GROUP}"),
    ]


def _partition(user: str) -> Partition:
    return Partition(Axis("one", user), Axis("one", "agent"))


def _put(partition: Partition, number: int, text: str) -> Put:
    said = BEGAN + number * SECOND
    return Put(
        partition=partition,
        seq=number + 1,
        id=f"group{number}",
        text=text,
        kind="note",
        agent="agent",
        user=partition.users.name,
        stream="protected",
        said_at=said,
        stored_at=said,
    )


def _lines(known: Iterator[str] | list[str], texts: Texts) -> Iterator[str]:
    """The lines of an export of such units."""
    for number, text in enumerate(known):
        partition = _partition(texts.user())
        said = BEGAN + number * SECOND
        line = Line(
            format=FORMAT,
            id=f"import{number}",
            version=1,
            users=partition.users,
            agents=partition.agents,
            user=partition.users.name,
            agent="agent",
            text=text,
            kind="note",
            stream="protected",
            said_at=said,
            stored_at=said,
        )
        yield msgspec.json.encode(line).decode()


def _bytes(state: Path) -> int:
    """What a store takes on disk, its derived files and its log included."""
    return sum(path.stat().st_size for path in state.rglob("*.db*") if path.is_file()) + sum(
        path.stat().st_size for path in state.rglob("*.index/**/*") if path.is_file()
    )
