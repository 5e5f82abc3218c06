"""Many agents on one local model: beside calls one at a time through a lock, in the same run.

All rows have one configuration of the driver. The model is a Q4_0 copy of the installed file, made
here; all sides read the same copy. xllamacpp's server stands beside where it is installed.
Throughput is of the driver process over its pipes, and once through the whole kernel; what concerns
waiting, weights, latency and deaths goes through the
kernel. Prompts are drawn from the seed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import trio

from bench.host import Host, scratch
from bench.locked import Conversation, Outcome, Plan, ask
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure, percentile
from bench.served import installed
from isovist.kernel.drivers import protocol as p
from isovist.kernel.drivers.supervisor import DriverProcess
from isovist.kernel.models import REGISTRY, ModelSpec, find
from isovist.syscalls.client import Client
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.records import Message

AGENTS, PROMPT, TOKENS, SYSTEM, TURNS, TURN_TOKENS = 16, 265, 64, 208, 4, 32
CONTEXT = 512
LONG = 2048
_SAID = (
    "river stone lamp quiet harbour copper meadow winter letter garden engine silver paper market "
    "window forest signal bridge candle orchard valley mirror thunder basket cotton pepper saddle "
    "anchor violin pocket ribbon teacher island castle ladder marble falcon tunnel butter kitchen"
)
WORDS = tuple(_SAID.split())
Q4_0 = 2


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="an installed model (default smollm2)")
    parser.add_argument("--only", default="", help="parts to run, by comma (default: all)")


class Texts:
    """Prompts of so many tokens, by the model's own template and tokenizer."""

    def __init__(self, model: str, seed: int) -> None:
        try:
            from isovist.kernel.drivers.gguf import Model
        except ImportError:
            raise CannotRun("it needs the extra: pip install 'isovist[llama]'") from None
        self._model = Model(model, vocab_only=True)
        self._random = random.Random(seed)

    def distinct(self, size: int) -> Conversation:
        """A question whose whole prompt has about ``size`` tokens (within 3)."""
        return self._filled((), size, "Write a long story in which these occur: ")

    def shared(self, size: int) -> Message:
        """A system message that takes about ``size`` tokens."""
        (message,) = self._filled((), size, "You tell stories about: ", "system")
        return message

    def after(self, system: Message, size: int) -> Conversation:
        """``system`` and a question, ``size`` tokens in all."""
        return self._filled((system,), size, "Write a story about ")

    def _filled(
        self, before: Conversation, size: int, head: str, role: str = "user"
    ) -> Conversation:
        text = head
        while True:
            longer = f"{text} {self._random.choice(WORDS)}"
            messages = (*before, msgspec.convert({"role": role, "content": longer}, Message))
            if len(self._model.prompt(messages)) > size:
                return messages
            text = longer


class Desk:
    """A driver process of its own: ask many at a time over its pipes, and tell what came of it."""

    def __init__(self, model: str, *sizes: str) -> None:
        self.process = DriverProcess("llama", "--model", model, *sizes)
        self.load: p.Load | None = None
        self.up = trio.Event()
        self._heard: dict[int, Callable[[p.FromProcess], None]] = {}
        self._key = 0

    def receive(self, message: p.FromProcess) -> None:
        if isinstance(message, p.Up):
            self.up.set()
        elif isinstance(message, p.Load):
            self.load = message
        elif isinstance(message, p.Token | p.Finished | p.RequestFailed):
            self._heard[message.key](message)

    def start(
        self, messages: Conversation, tokens: int, owner: str, hear: Callable[[p.FromProcess], None]
    ) -> int:
        self._key += 1
        self._heard[self._key] = hear
        self.process.send(p.Generate(self._key, messages, tokens, owner=owner))
        return self._key

    async def ask(
        self, messages: Conversation, tokens: int, owner: str, outcome: Outcome | None = None
    ) -> tuple[str, p.Finished]:
        started, ended, text = time.perf_counter(), trio.Event(), ""
        first = 0.0
        end: list[p.FromProcess] = []

        def hear(message: p.FromProcess) -> None:
            nonlocal text, first
            if isinstance(message, p.Token):
                first = first or time.perf_counter() - started
                text += message.text
            else:
                end.append(message)
                ended.set()

        self.start(messages, tokens, owner, hear)
        await ended.wait()
        (last,) = end
        if not isinstance(last, p.Finished):
            raise CannotRun(f"the driver refused: {last}")
        if outcome is not None:
            outcome.output.append(last.output_tokens)
            outcome.first.append(first)
            outcome.prompt.append(last.prompt_tokens)
        return text, last


async def at_once(desk: Desk, agents: tuple[tuple[Conversation, ...], ...], tokens: int) -> Outcome:
    """Each agent takes its turns; the answer of one joins the messages of the next."""
    outcome = Outcome(seconds=0.0)

    async def agent(name: str, turns: tuple[Conversation, ...]) -> None:
        said: Conversation = ()
        before = 0
        for turn in turns:
            said = (*said, *turn)
            text, end = await desk.ask(said, tokens, name, outcome)
            said = (*said, Message("assistant", text))
            if before:
                outcome.kept = min(outcome.kept, end.cached_tokens / before)
            before = end.prompt_tokens + end.output_tokens

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for at, turns in enumerate(agents):
            nursery.start_soon(agent, f"agent{at}", turns)
    outcome.seconds = time.perf_counter() - start
    return outcome


class _Bench:
    def __init__(self, options: argparse.Namespace, folder: Path, progress: Progress) -> None:
        self.progress, self.folder = progress, folder
        self.quick: bool = options.quick
        self.only = set(filter(None, options.only.split(",")))
        self.agents = 4 if self.quick else AGENTS
        self.tokens = 8 if self.quick else TOKENS
        self.peer = installed()
        progress("model file")
        self.model = quantised(find(options.model).path, folder / "model.gguf")
        self.texts = Texts(self.model, options.seed)
        self.figures: list[Figure] = []

    def wants(self, part: str) -> bool:
        return not self.only or part in self.only

    # -- throughput

    def throughput(self) -> None:
        rows: dict[str, tuple[tuple[tuple[Conversation, ...], ...], int]] = {}
        if self.wants("distinct"):
            turns = tuple((self.texts.distinct(PROMPT),) for _ in range(self.agents))
            rows["distinct"] = turns, self.tokens
        if self.wants("shared"):
            system = self.texts.shared(SYSTEM)
            turns = tuple((self.texts.after(system, PROMPT),) for _ in range(self.agents))
            rows["shared"] = turns, self.tokens
        if self.wants("turns"):
            talk = tuple(
                (self.texts.distinct(120), *(self.texts.distinct(60) for _ in range(TURNS - 1)))
                for _ in range(self.agents)
            )
            rows["turns"] = talk, self.tokens // 2 if self.quick else TURN_TOKENS
        bars = {"distinct": 1.8, "shared": 2.7, "turns": 3.0}
        peers = {"distinct": 1.6, "shared": 2.5}
        for name, (agents, tokens) in rows.items():
            self.progress(f"{name}: through a lock")
            plan = Plan(model=self.model, context=CONTEXT, tokens=tokens, agents=agents)
            locked = ask(plan)
            self.progress(f"{name}: the driver")
            ours = trio.run(self._driver, agents, tokens)
            reference = ("one at a time through a lock", locked.rate)
            self.figures.append(
                figure(f"serve.{name}.rate", ours.rate, "tokens/s", reference=reference,
                       bar=None if self.quick else f"ratio >= {bars[name]}")
            )  # fmt: skip
            self.figures.append(
                figure(f"serve.{name}.first", ours.mean_first, "s, mean to first token",
                       reference=("one at a time through a lock", locked.mean_first),
                       bar="ratio <= 0.5" if name == "distinct" and not self.quick else None)
            )  # fmt: skip
            if name in peers and self.peer:
                self.progress(f"{name}: xllamacpp's server")
                served = ask(plan, "bench.served")
                self.figures.append(
                    figure(f"serve.{name}.peer", ours.rate, "tokens/s",
                           reference=("xllamacpp's server over HTTP", served.rate),
                           bar=None if self.quick else f"ratio >= {peers[name]}")
                )  # fmt: skip
            if name == "turns":
                self.figures.append(
                    figure("serve.turns.cached", ours.kept, "of what was said before, least",
                           bar=">= 0.9")
                )  # fmt: skip

    async def _driver(self, agents: tuple[tuple[Conversation, ...], ...], tokens: int) -> Outcome:
        desk = Desk(self.model, "--context", str(CONTEXT), "--slots", str(AGENTS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.process.run, desk.receive)
            await desk.up.wait()
            outcome = await at_once(desk, agents, tokens)
            nursery.cancel_scope.cancel()
        return outcome

    def kernel(self) -> None:
        """The distinct row once more, through the kernel: its share is the difference."""
        prompts = [self.texts.distinct(PROMPT) for _ in range(self.agents)]
        talk: tuple[tuple[Conversation, ...], ...] = tuple((prompt,) for prompt in prompts)
        self.progress("kernel: the driver alone")
        alone = trio.run(self._driver, talk, self.tokens)
        with self._host("fifo", AGENTS) as host:
            warm(host)
            self.progress("kernel: through it")
            outcome = Outcome(seconds=0.0)
            start = time.perf_counter()
            together([
                partial(timed, host, f"agent{at}", prompt, self.tokens, outcome)
                for at, prompt in enumerate(prompts)
            ])  # fmt: skip
            outcome.seconds = time.perf_counter() - start
        self.figures.append(
            figure("serve.kernel.rate", outcome.rate, "tokens/s",
                   reference=("the driver alone", alone.rate), bar="ratio >= 0.9")
        )  # fmt: skip

    # -- swapping

    def swap(self) -> None:
        """A conversation of 2,000 tokens leaves the only sequence for another, and comes back: the
        best of three, as the first touches memory that the system has to find first."""
        size = 300 if self.quick else 2_000
        self.progress("swap")
        story = self.texts.distinct(size)
        took, moved, same = trio.run(self._swap, story)
        self.figures += [
            figure("serve.swap", took, f"ms, {moved} tokens out and in", bar="<= 15"),
            figure("serve.swap.same", same, "same text as uninterrupted", bar="== 1"),
        ]

    async def _swap(self, story: Conversation) -> tuple[float, int, float]:
        desk = Desk(self.model, "--context", str(LONG + CONTEXT), "--slots", "1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.process.run, desk.receive)
            await desk.up.wait()
            tokens = 24
            await desk.ask(story, tokens, "long")
            # Once more: from here on all but the prompt's last token is known each time.
            whole, _ = await desk.ask(story, tokens, "long")
            best = 1e9
            moved, same = 0, True
            for _ in range(3):
                said: list[str] = []
                begun, ended = trio.Event(), trio.Event()

                def hear(
                    message: p.FromProcess,
                    said: list[str] = said,
                    begun: trio.Event = begun,
                    ended: trio.Event = ended,
                ) -> None:
                    if isinstance(message, p.Token):
                        said.append(message.text)
                        begun.set()
                    else:
                        ended.set()

                key = desk.start(story, tokens, "long", hear)
                await begun.wait()
                before = desk.load
                desk.process.send(p.Pause(key))
                await desk.ask((Message("user", "Say one word."),), 2, "short")
                desk.process.send(p.Resume(key))
                await ended.wait()
                await trio.sleep(0.3)  # its load is told when it idles
                after = desk.load
                same = same and "".join(said) == whole
                if before is not None and after is not None:
                    # Out for the short one, which is put aside as well, and in again.
                    moved = (after.swapped - before.swapped) // 2
                    best = min(best, (after.swap_ns - before.swap_ns) / 1e6)
            nursery.cancel_scope.cancel()
        return best, moved, float(same)

    # -- through the kernel

    def _host(
        self,
        scheduler: str,
        slots: int,
        *,
        context: int = CONTEXT,
        weights: dict[str, float] | None = None,
    ) -> Host:
        models = Path(tempfile.mkdtemp(dir=self.folder))
        spec = ModelSpec(
            name="bench", driver="llama", path=self.model, context=context, slots=slots
        )
        (models / REGISTRY).write_bytes(msgspec.json.encode([spec]))
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return Host(folder, model="bench", models=models, scheduler=scheduler, weights=weights)

    def fairness(self) -> None:
        """One agent asks short questions while eight write long texts, on four slots."""
        firsts = {name: self._beside(name) for name in ("fifo", "fair")}
        reference = ("the same under fifo", percentile(firsts["fifo"], 0.95))
        self.figures.append(
            figure("serve.interactive.first_p95", percentile(firsts["fair"], 0.95),
                   "s to first token", reference=reference, bar="ratio <= 0.25")
        )  # fmt: skip

    def _beside(self, scheduler: str) -> list[float]:
        self.progress(f"one beside eight: {scheduler}")
        outcome = Outcome(seconds=0.0)
        questions = 3 if self.quick else 12
        over = threading.Event()
        with self._host(scheduler, 4) as host:
            warm(host)

            def writer(name: str) -> None:
                while not over.is_set():
                    prompt = (Message("user", f"{name}: write a very long story."),)
                    timed(host, name, prompt, 256, Outcome(seconds=0.0), over)

            def asker() -> None:
                time.sleep(4.0)  # until the writers fill the queue
                for at in range(questions):
                    due = time.monotonic() + 2.0
                    timed(host, "asker", (Message("user", f"What is {at} + 1?"),), 8, outcome)
                    time.sleep(max(0.0, due - time.monotonic()))
                over.set()

            together([asker, *(partial(writer, f"writer{i}") for i in range(8))])
        return outcome.first

    def weights(self) -> None:
        """Two agents with a backlog, one of weight 2: the tokens that each is served."""
        self.progress("weights")
        made = {"one": 0, "two": 0}
        over = threading.Event()
        seconds = 10.0 if self.quick else 40.0
        with self._host("fair", 4, weights={"two": 2.0}) as host:
            warm(host)

            def writer(name: str, at: int) -> None:
                outcome = Outcome(seconds=0.0)
                while not over.is_set():
                    prompt = (Message("user", f"{name}{at}: write a story."),)
                    timed(host, name, prompt, 32, outcome, over)
                    if not over.is_set():
                        made[name] += outcome.output[-1] * 2 + outcome.prompt[-1]

            timer = threading.Timer(seconds, over.set)
            timer.start()
            together([
                partial(writer, name, i) for name in made for i in range(8)
            ])  # fmt: skip
        self.figures.append(
            figure("serve.weight", made["two"], "weighted tokens of weight 2",
                   reference=("of weight 1", made["one"]), bar=None)
        )  # fmt: skip
        ratio = made["two"] / max(1, made["one"])
        self.figures.append(
            figure("serve.weight.error", abs(ratio - 2.0), "from twice", bar="<= 0.1")
        )

    def latency(self) -> None:
        """A null syscall and a search beside an idle model and beside one at full load."""
        times: dict[str, dict[str, list[float]]] = {}
        with self._host("fair", 4) as host:
            warm(host)
            with host.connect("asker", "ana") as client:
                for at in range(50):
                    client.remember(f"Note {at}: {self.texts.distinct(40)[0].content}")
                host.settle(self.progress)
                for state in ("idle", "busy"):
                    self.progress(f"latency: {state}")
                    over = threading.Event()
                    writers = []
                    if state == "busy":
                        writers = [
                            threading.Thread(target=self._write, args=(host, f"w{i}", over))
                            for i in range(8)
                        ]
                        for thread in writers:
                            thread.start()
                        time.sleep(2.0)
                    times[state] = self._ask(client)
                    over.set()
                    for thread in writers:
                        thread.join()
        self.figures += [
            figure("serve.null_p99", percentile(times["busy"]["null"], 0.99), "ms",
                   reference=("beside an idle model", percentile(times["idle"]["null"], 0.99)),
                   bar="<= 5"),
            figure("serve.search_p50", statistics.median(times["busy"]["search"]), "ms",
                   reference=("beside an idle model", statistics.median(times["idle"]["search"])),
                   bar="ratio <= 3"),
        ]  # fmt: skip

    def _write(self, host: Host, name: str, over: threading.Event) -> None:
        while not over.is_set():
            prompt = (Message("user", f"{name}: write a long story."),)
            timed(host, name, prompt, 128, Outcome(seconds=0.0), over)

    def _ask(self, client: Client) -> dict[str, list[float]]:
        count = 100 if self.quick else 1000
        times: dict[str, list[float]] = {"null": [], "search": []}
        for at in range(count):
            start = time.perf_counter()
            client.whoami()
            times["null"].append((time.perf_counter() - start) * 1e3)
            if at % 10 == 0:
                start = time.perf_counter()
                client.search(WORDS[at % len(WORDS)])
                times["search"].append((time.perf_counter() - start) * 1e3)
            time.sleep(0.002)
        return times

    def kills(self) -> None:
        """The driver is killed in mid-generation, again and again."""
        kills = 3 if self.quick else 50
        answered = failed = hanging = 0
        with self._host("fair", 4) as host:
            warm(host)
            before = resident(host.pid)
            for at in range(kills):
                self.progress("drivers killed", at, kills)
                ends: list[str] = []
                threads = [
                    threading.Thread(target=ending, args=(host, f"agent{i}", at, ends), daemon=True)
                    for i in range(6)
                ]
                for thread in threads:
                    thread.start()
                time.sleep(0.3 + 0.02 * (at % 20))
                kill_driver(host.pid)
                for thread in threads:
                    thread.join(120.0)
                answered += ends.count("answer")
                failed += ends.count("error")
                hanging += len(threads) - len(ends)
            warm(host)  # it still answers
            grown = resident(host.pid) - before
        self.figures += [
            figure("serve.kills.hanging", hanging, "requests without an end", bar="== 0"),
            figure("serve.kills.answered", answered, f"answers beside {failed} typed errors"),
            figure("serve.kills.grown", grown, "MiB more in the kernel", bar="<= 16"),
        ]


def timed(
    host: Host,
    agent: str,
    prompt: Conversation,
    tokens: int,
    outcome: Outcome,
    over: threading.Event | None = None,
) -> None:
    """Ask through the kernel, as a stream; left early where ``over`` is set."""
    with host.connect(agent, "ana") as client:
        start, first = time.perf_counter(), 0.0
        with client.stream(prompt, max_tokens=tokens, memory=False, deadline_ms=600_000) as stream:
            for _ in stream:
                first = first or time.perf_counter() - start
                if over is not None and over.is_set():
                    return
            reply = stream.reply
        outcome.output.append(reply.output_tokens)
        outcome.prompt.append(reply.prompt_tokens)
        outcome.first.append(first or time.perf_counter() - start)


def warm(host: Host) -> None:
    """Return when the model is loaded."""
    timed(host, "warmer", (Message("user", "Hello."),), 2, Outcome(seconds=0.0))


def ending(host: Host, agent: str, at: int, ends: list[str]) -> None:
    """How a request of ``agent`` ends."""
    prompt = (Message("user", f"{agent}, {at}: write a story about the sea."),)
    try:
        timed(host, agent, prompt, 64, Outcome(seconds=0.0))
    except IsovistError:
        ends.append("error")
    else:
        ends.append("answer")


def together(jobs: list[Callable[[], None]]) -> None:
    """Each in a thread of its own, until all have ended; raises what the first of them raised."""
    raised: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as e:  # to be raised where somebody sees it
            raised.append(e)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def kill_driver(kernel: int) -> None:
    """Kill the llama driver that is a child of ``kernel``, if it lives."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if parent == kernel and b"isovist.kernel.drivers.llama" in command:
            os.kill(int(entry.name), signal.SIGKILL)


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def quantised(source: str, target: Path) -> str:
    """A Q4_0 copy of a model file."""
    try:
        from isovist.kernel.drivers.gguf import Model, lib
    except ImportError:
        raise CannotRun("it needs the extra: pip install 'isovist[llama]'") from None
    Model(source, vocab_only=True)  # llama.cpp is silent from here on
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize, parameters.nthread = Q4_0, True, 2
    status = lib.llama_model_quantize(
        os.fsencode(source), os.fsencode(target), ctypes.byref(parameters)
    )
    if status:
        raise CannotRun(f"{source} cannot be made Q4_0 ({status})")
    return str(target)


PARTS = ("distinct", "shared", "turns", "kernel", "swap", "fairness", "weights", "latency", "kills")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    unknown = set(filter(None, options.only.split(","))) - set(PARTS)
    if unknown:
        raise CannotRun(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    with scratch() as folder:
        facts = machine(Path(folder))
        bench = _Bench(options, Path(folder), progress)
        bench.throughput()
        for part in ("kernel", "swap", "fairness", "weights", "latency", "kills"):
            if bench.wants(part):
                getattr(bench, part)()
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "parts": options.only or "all",
        "model": f"{options.model}, made Q4_0",
        "agents": bench.agents,
        "prompt_tokens": PROMPT,
        "output_tokens": bench.tokens,
        "shared_tokens": SYSTEM,
        "turns": f"{TURNS} of {TURN_TOKENS} tokens",
        "peer": "xllamacpp" if bench.peer else "not installed: pip install xllamacpp",
        "driver": f"{AGENTS} slots of {CONTEXT} tokens, split cells, f16",
        "load_after": round(os.getloadavg()[0], 2),
    }
    return Report(bench="serve", machine=facts, config=config, figures=bench.figures)
