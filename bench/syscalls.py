"""What a syscall costs: ping, remember and chat by 1, 8 and 64 agents, beside a raw loop.

One kernel runs in a process of its own, with the scripted model; the load comes from this process,
which holds the agents' ends of all channels (pipe pairs, as spawned agents have). The kernel's
loop is pinned to one core. A single agent runs on that same core: across cores the wake-up of a
sleeping core (45 µs here) would hide what is measured. 8 and 64 agents run on another one.

The raw loop (``raw.py``) gets the same frames from the same load on the same cores, in rounds
that alternate with the kernel's, so that what the machine does meanwhile strikes both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec

from bench.host import Command, Host, scratch
from bench.lanes import Lane
from bench.load import Sample, drive, greet
from bench.machine import cores, machine, pinned
from bench.raw import RawLoop
from bench.report import CannotRun, Figure, Progress, Report, figure, percentile
from bench.text import Writer
from isovist.syscalls.messages import (
    AnyReply,
    Chat,
    Chatted,
    Ping,
    Read,
    Remember,
    Request,
    Search,
    Stored,
)
from isovist.syscalls.records import Message, Timings

AGENTS = (1, 8, 64)
USER = "ana"
ROUNDS = 5
"""Rounds of each measurement, the raw loop's in turn with the kernel's."""
SEARCHERS = 8

AIOS = "AIOS, quoted, not run here"
"""As measured beforehand on a machine of this class: a memory read over its door; an LLM call with
an instant model, its batching interval at 0 (1,108 ms at its default); 32 agents."""
AIOS_READ_MS, AIOS_LLM_MS, AIOS_RATE = 4.0, 101.0, 5.4


class Size(msgspec.Struct, frozen=True):
    """How much work: calls a round by number of agents, units in view, seconds of search."""

    null: dict[int, int]
    llm: dict[int, int]
    write: dict[int, int]
    share: int
    units: int
    lag: float


FULL = Size(
    null={1: 4000, 8: 8000, 64: 20000},
    llm={1: 60, 8: 120, 64: 320},
    write={1: 60, 8: 240, 64: 960},
    share=500,
    units=10_000,
    lag=10.0,
)
QUICK = Size(
    null={1: 200, 8: 400, 64: 640},
    llm={1: 10, 8: 16, 64: 64},
    write={1: 10, 8: 16, 64: 64},
    share=40,
    units=200,
    lag=1.0,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--embedder", default="universal", help="universal (default) or hash")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    size = QUICK if options.quick else FULL
    usable = cores()
    with scratch() as folder:
        facts = machine(Path(folder))
        names = [f"load{i}" for i in range(max(AGENTS) + 1)]
        with (
            Host(Path(folder), embedder=options.embedder, agents=names) as host,
            RawLoop(usable[0], max(AGENTS)) as raw,
        ):
            bench = _Bench(host, raw, size, Writer(options.seed), usable, progress)
            figures = bench.run()
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "model": "scripted (answers at once)",
        "embedder": (
            f"{options.embedder}; each question is another one and is embedded in the kernel "
            "(rows of word pieces that come back are kept)"
        ),
        "units_in_view": size.units,
        "audit": "group commit within 0.5 s",
        "agents": "channels (pipe pairs) held by one load generator process",
        "placement": (
            f"kernel loop and raw loop on core {usable[0]}; 1 agent on core {usable[0]}; "
            f"8 and 64 agents on core {usable[-1]}; the kernel's writer thread, embedder and "
            "model driver anywhere"
        ),
        "rounds": ROUNDS,
    }
    return Report(bench="syscalls", machine=facts, config=config, figures=figures)


class _Bench:
    def __init__(
        self,
        host: Host,
        raw: RawLoop,
        size: Size,
        writer: Writer,
        usable: list[int],
        progress: Progress,
    ) -> None:
        self._host, self._raw, self._size = host, raw, size
        self._writer, self._progress = writer, progress
        self._kernel_core, self._load_core = usable[0], usable[-1]
        *self._lanes, self._ninth = host.lanes
        self._stored = ""
        self._raw_null = 0.0
        """µs: how fast this machine is at the least that there is to do."""

    def run(self) -> list[Figure]:
        self._prepare()
        figures = self._null()
        self._fill()
        figures += self._llm()
        figures += self._kernel_share()
        figures += self._lag()
        figures += self._read()
        # Last, since the embedder works through a backlog of new units afterwards.
        figures += self._write()
        return figures

    def _prepare(self) -> None:
        """Greetings, grants, a first answer; then the loop's thread is pinned, and not the
        processes that it has started by then."""
        greet(self._host.lanes)
        greet(self._raw.lanes)
        with self._host.connect() as operator:
            for lane in self._host.lanes:
                operator.grant(lane.agent, users=(USER,), scopes=("global",))
            operator.chat("Are you there?", user=USER)
        self._host.ask(Command(do="pin", core=self._kernel_core))

    # -- the three syscalls

    def _null(self) -> list[Figure]:
        ping = Ping()
        bars = {"null.1.p50": "ratio <= 4", "null.64.rate": "ratio >= 0.25"}
        figures = self._beside("null", self._size.null, lambda lane: ping, bars)
        (alone,) = (f.reference for f in figures if f.id == "null.1.p50")
        assert alone is not None
        self._raw_null = alone.value
        return figures

    def _write(self) -> list[Figure]:
        return self._beside(
            "write", self._size.write, lambda lane: Remember(text=self._writer.note()), {}
        )

    def _llm(self) -> list[Figure]:
        figures = self._beside("llm", self._size.llm, lambda lane: self._chat(), {})
        (many,) = (f.value for f in figures if f.id == "llm.64.rate")
        beside = figure("llm_beside_aios.rate", many, "calls/s", reference=(AIOS, AIOS_RATE))
        return [*figures, beside]

    def _chat(self) -> Chat:
        return Chat(user=USER, messages=(Message("user", self._writer.question()),), max_tokens=64)

    def _beside(
        self,
        name: str,
        calls: dict[int, int],
        request: Callable[[Lane], Request],
        bars: dict[str, str],
    ) -> list[Figure]:
        """One syscall by 1, 8 and 64 agents: p50, p99 and calls a second beside the raw loop's."""
        figures: list[Figure] = []
        for agents in AGENTS:
            ours, theirs = Sample(), Sample()
            core = self._kernel_core if agents == 1 else self._load_core
            with pinned(core):
                for turn in range(ROUNDS):
                    self._progress(f"{name}, {agents} agents", turn, ROUNDS)
                    theirs.add(drive(self._raw.lanes[:agents], request, calls[agents]))
                    ours.add(drive(self._lanes[:agents], request, calls[agents]))
            for what, unit in (("p50", "µs"), ("p99", "µs"), ("rate", "calls/s")):
                beside = ("raw loop", getattr(theirs, what))
                key = f"{name}.{agents}.{what}"
                figures.append(
                    figure(key, getattr(ours, what), unit, reference=beside, bar=bars.get(key))
                )
        return figures

    # -- with many units in view

    def _fill(self) -> None:
        """Write the units by ordinary syscalls, four of five for the user, one for everybody, and
        wait until both legs hold them all."""
        count = self._size.units
        numbers = iter(range(count))

        def request(lane: Lane) -> Request:
            number = next(numbers)
            self._progress("units written", number, count)
            wide = number % 5 == 0
            return Remember(
                user=USER,
                text=f"{self._writer.note()} ({number})",
                scope="global" if wide else "user",
                stream="reusable" if wide else "protected",
            )

        def reply(stored: AnyReply, _: float) -> None:
            assert isinstance(stored, Stored)
            if stored.note or stored.duplicate:
                raise CannotRun(f"a unit was not stored as asked: {stored.note or 'duplicate'}")
            self._stored = stored.id

        drive(self._lanes, request, count, reply=reply)
        self._host.settle(self._progress)

    def _kernel_share(self) -> list[Figure]:
        """Of an LLM syscall, all but the model: what the agent waits, less the model's time."""
        waits: list[float] = []
        timings: list[Timings] = []
        injected: list[int] = []

        def reply(chatted: AnyReply, took: float) -> None:
            assert isinstance(chatted, Chatted)
            if chatted.barrier.state != "ready":
                raise CannotRun("the barrier timed out with nothing to wait for")
            waits.append(took / 1e3 - chatted.timings.model)
            timings.append(chatted.timings)
            injected.append(len(chatted.injected))

        with pinned(self._kernel_core):
            self._progress("kernel's share of an LLM syscall")
            sample = drive(
                self._lanes[:1], lambda lane: self._chat(), self._size.share, reply=reply
            )
        own = [t.total - t.model for t in timings]
        return [
            figure(
                "kernel_share.p50",
                percentile(waits, 0.5),
                "ms",
                reference=("the raw loop's null call", self._raw_null / 1e3),
                bar="<= 2",
            ),
            figure("kernel_share.p99", percentile(waits, 0.99), "ms"),
            figure("kernel_share.by_its_own_clock.p50", percentile(own, 0.5), "ms"),
            figure("kernel_share.barrier", _mean(t.barrier for t in timings), "ms, mean"),
            figure("kernel_share.retrieval", _mean(t.retrieval for t in timings), "ms, mean"),
            figure("kernel_share.render", _mean(t.render for t in timings), "ms, mean"),
            figure("kernel_share.queue", _mean(t.queue for t in timings), "ms, mean"),
            figure("kernel_share.injected", _mean(map(float, injected)), "units, mean"),
            figure("llm_beside_aios.1.p50", sample.p50 / 1e3, "ms", reference=(AIOS, AIOS_LLM_MS)),
        ]

    def _lag(self) -> list[Figure]:
        """How long others wait while 8 agents search without pause.

        Twice measured: the null syscall of a ninth agent (on the load's core, so a wake-up across
        cores is in it), and how late a task of the kernel's own loop wakes up.
        """
        self._progress(f"loop lag while {SEARCHERS} agents search")
        fork = multiprocessing.get_context("fork")
        done = fork.Event()
        ours, theirs = fork.Pipe(duplex=False)
        searchers = fork.Process(target=self._search, args=(done, theirs), daemon=True)
        with pinned(self._load_core):
            searchers.start()
            theirs.close()
            ours.recv()
            self._host.ask(Command(do="lag on"))
            end = time.monotonic() + self._size.lag
            ninth = drive(
                [self._ninth], lambda lane: Ping(), 10**9, until=lambda: time.monotonic() >= end
            )
            lag = self._host.ask(Command(do="lag off")).lag
            done.set()
            try:
                rate, p50 = ours.recv()
            except EOFError:
                raise CannotRun("the searching agents failed") from None
            finally:
                searchers.join()
        return [
            figure("lag.ninth_agent.p99", ninth.p99 / 1e3, "ms", bar="<= 5"),
            figure("lag.ninth_agent.p50", ninth.p50 / 1e3, "ms"),
            figure("lag.loop_task.p99", percentile(lag, 0.99), "ms", bar="<= 5"),
            figure("lag.loop_task.p50", percentile(lag, 0.5), "ms"),
            figure("lag.searches", rate, "calls/s"),
            figure("lag.search.p50", p50 / 1e3, "ms"),
        ]

    def _search(self, done: Event, out: Connection) -> None:
        """In a process of its own: eight agents, each always with a search under way."""
        lanes = self._lanes[:SEARCHERS]

        def request(lane: Lane) -> Request:
            return Search(user=USER, query=self._writer.question())

        drive(lanes, request, SEARCHERS)
        out.send(None)
        sample = drive(lanes, request, 10**9, until=done.is_set)
        out.send((sample.rate, sample.p50))

    def _read(self) -> list[Figure]:
        with pinned(self._kernel_core):
            self._progress("memory read")
            sample = drive(
                self._lanes[:1], lambda lane: Read(user=USER, id=self._stored), self._size.share
            )
        return [
            figure("read.1.p50", sample.p50 / 1e3, "ms", reference=(AIOS, AIOS_READ_MS)),
            figure("read.1.p99", sample.p99 / 1e3, "ms"),
        ]


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
