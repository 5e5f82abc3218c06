"""Do lessons reach whom they help, and nobody whom they expose?

Our own rebuild of [M]'s method, small enough for a processor. A crowd of users and agents works on
tasks in rounds; what is learned from each attempt is shown to whom its scope admits in later ones.
The same attempts, with the same draws, are made under each condition: no memory, one scope alone,
all four, one left out, without the review, without the split. Solvers are scripted: they go by the
words that they are shown, nothing else, and everything that is learned goes through a real kernel.

- *gain*: percentage points of passed attempts after the first round above no memory, over all and
  by who has tried the task before; with the exact p-value of McNemar's test.
- *retention*: the share of a user's wishes for documents that are kept without being said again,
  by a store that is frozen; beside an empty one, another user's, and wishes said again.
- *leaks*: private planted facts found where the boundary matrix forbids them (``bench/probes.py``).
- *exposure*: how often a solver opens a planted file; without it no leak could happen.

Tasks stand in ``bench/errands.py``, the solver in ``bench/solvers.py``, the crowd in
``bench/crowd.py``; ``--tasks`` and ``--solver`` take others (``docs/crosslearn.md``).
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from bench import assignment, crossfigures, crowd, errands, foreign, probes, solvers
from bench.assignment import Turn
from bench.host import check_model
from bench.learner import Setup, learner
from bench.machine import machine
from bench.noninterference import memory_folder
from bench.port import SCOPES, Memory
from bench.report import CannotRun, Figure, Progress, Report
from bench.rounds import Results, World, frozen, learn

BUDGET = 4_000
"""Characters a scope. A run's store is small; so is this, or every budget would hold all of it."""
PLANS = ("scheduled", "random", "crowds")
SWEEP = (1_000, 2_000, 4_000, 10_000, 40_000)


@dataclass(frozen=True)
class Size:
    """``each``: attempts a round after the first, in which each pair has one; ``held``: attempts
    of a frozen arm; ``crowds``: other numbers of users, with their rounds and attempts."""

    users: int = 20
    variants: int = 4
    rounds: int = 5
    each: int = 60
    held: int = 120
    crowds: tuple[tuple[int, int, int], ...] = ((5, 5, 15), (100, 3, 100))


QUICK = Size(users=4, variants=1, rounds=3, each=10, held=6, crowds=())


@dataclass(frozen=True)
class Condition:
    """``scopes`` that learning may use; none: no memory at all."""

    name: str
    scopes: tuple[str, ...] = SCOPES
    split: bool = True
    review: bool = True
    writer: str = ""
    """Empty: that of the run."""


NONE, FOUR = Condition("none", ()), Condition("four")
SINGLE = tuple(Condition(scope, (scope,)) for scope in SCOPES)
GLOBAL = SINGLE[-1]
LEFT_OUT = tuple(
    Condition(f"without {scope}", tuple(s for s in SCOPES if s != scope)) for scope in SCOPES
)
VARIED = (Condition("unreviewed", review=False), Condition("unsplit", split=False))
ASKED = (Condition("by model", writer="model"), Condition("by agentic", writer="agentic"))
FEW = (NONE, GLOBAL, FOUR)
Open = Callable[[Condition], AbstractContextManager[Memory | None]]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks", type=Path, metavar="DIR", help="tasks from there (docs/crosslearn.md)"
    )
    parser.add_argument(
        "--solver", default="", metavar="MODULE", help="another solver: a module's name or file"
    )
    parser.add_argument("--writer", choices=("rules", "model", "agentic"), default="rules")
    parser.add_argument(
        "--model", default="", help="for the writers that ask one; adds their conditions"
    )
    parser.add_argument("--embedder", default="universal", help="default universal")
    parser.add_argument(
        "--budget", type=int, default=BUDGET, help=f"characters a scope (default {BUDGET:,})"
    )
    parser.add_argument(
        "--conditions", nargs="+", metavar="NAME", help="only these, beside none, global and four"
    )
    parser.add_argument(
        "--plans", nargs="+", choices=PLANS, default=PLANS, help="of the attempts (default all)"
    )
    parser.add_argument("--users", type=int, help="in the crowd")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--jobs", type=int, help="conditions at a time (default 2; 1 with another solver)"
    )
    parser.add_argument("--leaks", type=Path, help="write what the leak probes found to this file")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    size = QUICK if options.quick else Size()
    size = replace(size, users=options.users or size.users, rounds=options.rounds or size.rounds)
    if options.writer != "rules" or options.model:
        if not options.model:
            raise CannotRun(f"--writer {options.writer} needs --model")
        check_model(options.model)
    tasks: Sequence[foreign.Task] = (
        foreign.tasks(options.tasks) if options.tasks else errands.draw(options.seed, size.variants)
    )
    solver = foreign.solver(options.solver) if options.solver else solvers.solve
    with tempfile.TemporaryDirectory(prefix="isovist-bench-", dir=memory_folder()) as folder:
        bench = _Bench(options, progress, size, tasks, solver, Path(folder))
        figures = bench.figures()
        facts = machine(Path(folder))
    if options.leaks:
        options.leaks.write_text("".join(f"{line}\n" for line in bench.examples), "utf-8")
    return Report(
        bench="crosslearn",
        machine=facts,
        config={
            "seed": options.seed,
            "quick": options.quick,
            "users": size.users,
            "pairs": len(bench.world.crowd.pairs),
            "agents": crowd.AGENTS,
            "rounds": size.rounds,
            "attempts a round": size.each,
            "tasks": f"{len(tasks)} of {len({t.family for t in tasks})} families"
            + (f" from {options.tasks}" if options.tasks else ""),
            "solver": options.solver or "scripted",
            "writer": options.writer,
            "model": options.model or "none",
            "embedder": options.embedder,
            "budget": f"{options.budget} characters a scope",
            **bench.counted,
        },
        figures=figures,
    )


@dataclass(frozen=True)
class _Job:
    """A condition under a plan. ``also``: the arms and budgets that its store is frozen for."""

    plan: str
    world: World
    turns: list[Turn]
    condition: Condition
    also: bool = False


class _Bench:
    def __init__(
        self,
        options: argparse.Namespace,
        progress: Progress,
        size: Size,
        tasks: Sequence[foreign.Task],
        solver: foreign.Solver,
        folder: Path,
    ) -> None:
        self.options, self.size, self.folder = options, size, folder
        self.world = World(
            options.seed, crowd.draw(options.seed, size.users), tasks, solver, str(folder)
        )
        self.counted: dict[str, object] = {}
        self.examples: list[str] = []
        self._said = _Said(progress)
        self._stores = itertools.count()

    def figures(self) -> list[Figure]:
        jobs = list(self._jobs())
        at_once = self.options.jobs or (1 if self.options.solver else 2)
        with ThreadPoolExecutor(at_once) as pool:
            outcomes = list(pool.map(self._do, jobs))
        gains: list[Figure] = []
        others: list[Figure] = []
        for plan in dict.fromkeys(job.plan for job in jobs):
            found = {
                job.condition.name: results
                for job, (results, _) in zip(jobs, outcomes, strict=True)
                if job.plan == plan
            }
            gains += crossfigures.gains(plan, found, bars=plan in ("scheduled", "random"))
        for _, figures in outcomes:
            others += figures
        return gains + others

    # -- what is run

    def _jobs(self) -> Iterator[_Job]:
        rounds, each, plans = self.size.rounds, self.size.each, self.options.plans
        if "scheduled" in plans:
            turns = self._plan(self.world, assignment.scheduled, rounds, each)
            self.counted["scheduled"] = assignment.counted(turns)
            for condition in self._conditions():
                also = condition in (GLOBAL, FOUR)
                yield _Job("scheduled", self.world, turns, condition, also)
        if "random" in plans:
            turns = self._plan(self.world, assignment.at_random, rounds, each)
            self.counted["random"] = assignment.counted(turns)
            yield from (_Job("random", self.world, turns, condition) for condition in FEW)
        for users, rounds, each in self.size.crowds if "crowds" in plans else ():
            world = replace(self.world, crowd=crowd.draw(self.options.seed, users))
            turns = self._plan(world, assignment.scheduled, rounds, each)
            yield from (_Job(f"users_{users}", world, turns, condition) for condition in FEW)

    def _conditions(self) -> list[Condition]:
        """The longest first."""
        if self.options.quick:
            return list(FEW)
        every = [FOUR, GLOBAL, NONE, *VARIED, *SINGLE[:-1], *LEFT_OUT]
        if self.options.model and self.options.writer == "rules":
            every += ASKED
        wanted = self.options.conditions
        if wanted is None:
            return every
        known = {condition.name for condition in every}
        if wrong := set(wanted) - known:
            named = ", ".join(sorted(known))
            raise CannotRun(f"no condition {', '.join(sorted(wrong))}; there are: {named}")
        return [c for c in every if c in FEW or c.name in wanted]

    def _plan(
        self, world: World, assign: Callable[..., list[Turn]], rounds: int, each: int
    ) -> list[Turn]:
        pairs = [(user.id, agent) for user, agent in world.crowd.pairs]
        rng = random.Random(f"{assign.__name__} {world.seed} {len(pairs)}")
        return assign(rng, pairs, len(world.tasks), rounds, each)

    def _do(self, job: _Job) -> tuple[Results, list[Figure]]:
        condition, stage = job.condition, f"{job.plan}, {job.condition.name}"
        with self._open(condition) as memory:
            results = learn(
                job.world,
                job.turns,
                memory,
                review=condition.review,
                said=lambda done, of: self._said(stage, done, of),
            )
            name = condition.name.replace(" ", "_")
            figures: list[Figure] = []
            if job.plan == "scheduled":
                figures += crossfigures.attempts(name, results)
                if condition == FOUR:
                    figures += crossfigures.exposed(results)
            if memory and job.plan != "random":
                named = name if job.plan == "scheduled" else f"{job.plan}.{name}"
                figures += self._stored(named, job, results)
                figures += crossfigures.costs(named, memory.cost(), len(results.done))
            if job.also:
                figures += self._sweep(condition, memory)
            if job.also and condition == FOUR:
                figures += self._arms(memory)
        return results, figures

    def _open(self, condition: Condition) -> AbstractContextManager[Memory | None]:
        if not condition.scopes:
            return nullcontext(None)
        store = self.folder / f"store{next(self._stores)}"
        store.mkdir()
        return learner(
            Setup(
                folder=store,
                scopes=condition.scopes,
                split=condition.split,
                writer=condition.writer or self.options.writer,
                model=self.options.model,
                budget=self.options.budget,
                embedder=self.options.embedder,
            )
        )

    # -- what comes of one store

    def _stored(self, name: str, job: _Job, results: Results) -> Iterable[Figure]:
        people, memories, condition = job.world.crowd, results.memories, job.condition
        self._said(f"{job.plan}, {condition.name}: probes")
        leaks = probes.facts(people, memories)
        self.examples += [f"{name}: {line}" for line in leaks.examples]
        yield from crossfigures.leaked(name, leaks, enough=job.plan == "scheduled")
        wishes = probes.others_wishes(people, memories)
        yield crossfigures.strayed_wishes(name, wishes, bar=condition.split)
        if condition == FOUR:
            yield from crossfigures.scope_probes(
                name, probes.pair_work(people, memories), probes.agent_crowd(memories)
            )
        yield from crossfigures.entries(name, results)

    def _held(self) -> list[Turn]:
        """The attempts of a frozen arm: any pair, any task."""
        rng = random.Random(f"held {self.world.seed}")
        pairs, tasks = self.world.crowd.pairs, len(self.world.tasks)
        drawn = [(rng.choice(pairs), rng.randrange(tasks)) for _ in range(self.size.held)]
        return [Turn(99, user.id, agent, task, "nobody") for (user, agent), task in drawn]

    def _sweep(self, condition: Condition, memory: Memory | None) -> Iterator[Figure]:
        turns = self._held()
        for budget in SWEEP[::4] if self.options.quick else SWEEP:
            self._said(f"{condition.name}, budget {budget}")
            results = frozen(self.world, turns, memory, budget=budget)
            yield from crossfigures.swept(f"{condition.name}.budget_{budget}", results)

    def _arms(self, memory: Memory | None) -> list[Figure]:
        turns, found = self._held(), dict[str, Results]()
        for scope in ("none", *SCOPES, "all", "shuffled", "restated"):
            self._said(f"frozen, {scope}")
            found[scope] = frozen(
                self.world,
                turns,
                None if scope == "none" else memory,
                scopes=(scope,) if scope in SCOPES else (),
                shuffled=scope == "shuffled",
                restated=scope == "restated",
            )
        return list(crossfigures.arms(found))


class _Said:
    """Progress of jobs that run side by side: each tells of itself every few seconds."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._last: dict[str, float] = {}

    def __call__(self, stage: str, done: int = 0, of: int = 0) -> None:
        with self._lock:
            now = time.monotonic()
            if done == of or now - self._last.get(stage, -1e9) >= Progress.EVERY:
                self._last[stage] = now
                self._progress(stage, done, of)
