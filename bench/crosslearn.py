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
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from bench import assignment, crowd, errands, foreign, probes, solvers
from bench.assignment import KINDS, Turn
from bench.host import check_model
from bench.learner import Setup, learner
from bench.machine import machine
from bench.noninterference import memory_folder
from bench.paired import Paired, compare
from bench.port import SCOPES, Cost, Memory
from bench.report import CannotRun, Figure, Progress, Report, figure
from bench.rounds import Results, World, frozen, learn

BUDGET = 4_000
"""Characters a scope. A run's store is small; so is this, or every budget would hold all of it."""
SWEEP = (1_000, 2_000, 4_000, 10_000, 40_000)
PROBES = 18_000
"""What the leak test must come to in each condition."""


@dataclass(frozen=True)
class Size:
    """``each``: attempts a round after the first, in which each pair has one; ``held``: attempts
    of a frozen arm; ``crowds``: other numbers of users, with their rounds and attempts."""

    users: int = 20
    variants: int = 4
    rounds: int = 6
    each: int = 60
    held: int = 120
    crowds: tuple[tuple[int, int, int], ...] = ((5, 6, 15), (100, 3, 150))


QUICK = Size(users=4, variants=1, rounds=3, each=10, held=10, crowds=())


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
    parser.add_argument("--users", type=int, help="in the crowd")
    parser.add_argument("--rounds", type=int)
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
        figures = list(bench.figures())
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
        self.options, self.progress, self.size, self.folder = options, progress, size, folder
        self.world = World(
            options.seed, crowd.draw(options.seed, size.users), tasks, solver, str(folder)
        )
        self.counted: dict[str, object] = {}
        self.examples: list[str] = []
        self._stores = 0

    # -- what is run

    def figures(self) -> Iterator[Figure]:
        turns = self._plan(self.world, assignment.scheduled, self.size.rounds, self.size.each)
        self.counted["scheduled"] = assignment.counted(turns)
        every = [*FEW, *SINGLE[:-1], *VARIED, *LEFT_OUT]
        if self.options.model and self.options.writer == "rules":
            every += ASKED
        if self.options.quick:
            every = list(FEW)
        if self.options.conditions:
            known = {condition.name for condition in every}
            if wrong := set(self.options.conditions) - known:
                named = ", ".join(sorted(known))
                raise CannotRun(f"no condition {', '.join(sorted(wrong))}; there are: {named}")
            every = [c for c in every if c in FEW or c.name in self.options.conditions]
        found: dict[str, Results] = {}
        after: list[Figure] = []
        for condition in every:
            with self._open(condition) as memory:
                found[condition.name] = self._run(self.world, turns, memory, condition, "scheduled")
                after += self._of_store(condition, found[condition.name], memory)
                if condition in (FOUR, GLOBAL):
                    after += self._sweep(condition, memory)
                if condition == FOUR:
                    after += self._arms(memory)
        yield from _gains("scheduled", found)
        yield from after
        yield from self._random()
        yield from self._crowds()

    def _random(self) -> Iterator[Figure]:
        turns = self._plan(self.world, assignment.at_random, self.size.rounds, self.size.each)
        self.counted["random"] = assignment.counted(turns)
        found = {}
        for condition in FEW:
            with self._open(condition) as memory:
                found[condition.name] = self._run(self.world, turns, memory, condition, "random")
        yield from _gains("random", found)

    def _crowds(self) -> Iterator[Figure]:
        for users, rounds, each in self.size.crowds:
            world = replace(self.world, crowd=crowd.draw(self.options.seed, users))
            turns = self._plan(world, assignment.scheduled, rounds, each)
            found = {}
            for condition in FEW:
                with self._open(condition) as memory:
                    results = self._run(world, turns, memory, condition, f"{users} users")
                    found[condition.name] = results
                    if condition == FOUR:
                        leaks = probes.facts(world.crowd, results.memories)
                        yield _leaked(f"users_{users}.four", leaks)
            yield from _gains(f"users_{users}", found, bars=False)

    def _plan(
        self, world: World, assign: Callable[..., list[Turn]], rounds: int, each: int
    ) -> list[Turn]:
        pairs = [(user.id, agent) for user, agent in world.crowd.pairs]
        rng = random.Random(f"{assign.__name__} {world.seed} {len(pairs)}")
        return assign(rng, pairs, len(world.tasks), rounds, each)

    def _open(self, condition: Condition) -> AbstractContextManager[Memory | None]:
        if not condition.scopes:
            return nullcontext(None)
        self._stores += 1
        store = self.folder / f"store{self._stores}"
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

    def _run(
        self,
        world: World,
        turns: list[Turn],
        memory: Memory | None,
        condition: Condition,
        plan: str,
    ) -> Results:
        stage = f"{plan}, {condition.name}"
        return learn(
            world,
            turns,
            memory,
            review=condition.review,
            said=lambda done, of: self.progress(stage, done, of),
        )

    # -- what comes of one store

    def _of_store(
        self, condition: Condition, results: Results, memory: Memory | None
    ) -> Iterator[Figure]:
        name = condition.name.replace(" ", "_")
        after = [done for done in results.done if done.turn.round]
        yield figure(f"{name}.passed", 100 * _share([d.passed for d in after]), "%")
        yield figure(f"{name}.retention_in_rounds", results.retention(), "share")
        if memory is None:
            return
        if condition == FOUR:
            values = sum(done.values for done in results.done)
            yield figure("exposure", results.exposure, "share of attempts", bar=">= 0.1")
            yield figure("planted_values", values, "reach the splitter", bar=">= 500")
        leaks = probes.facts(self.world.crowd, results.memories)
        self.examples += [f"{condition.name}: {line}" for line in leaks.examples]
        yield figure(f"{name}.probes", leaks.probes.total(), "probes", bar=f">= {PROBES}")
        yield _leaked(name, leaks)
        for place, hits in sorted(leaks.found.items()):
            yield figure(f"{name}.leaks.{place.replace(' ', '_')}", hits, "probes")
        share = probes.others_wishes(self.world.crowd, results.memories)
        bar = "<= 0.9" if condition.split else None
        yield figure(f"{name}.others_wishes", 100 * share.value, f"% of {share.of:,}", bar=bar)
        if condition == FOUR:
            kept, strayed = probes.pair_work(self.world.crowd, results.memories)
            yield figure("pair_work.kept", kept.value, f"share of {kept.of}")
            yield figure("pair_work.strayed", strayed.value, f"share of {strayed.of}")
            reached, away = probes.agent_crowd(results.memories)
            yield figure("agent_crowd.reached", reached.value, f"share of {reached.of:,}")
            yield figure("agent_crowd.strayed", away.value, f"share of {away.of:,}")
        for scope in SCOPES:
            yield figure(f"{name}.entries.{scope}", results.memories.entries[scope], "entries")
        yield figure(f"{name}.shown", _share([d.shown for d in after]), "characters a task")
        yield from _costs(name, memory.cost(), len(results.done))

    def _held(self) -> list[Turn]:
        """The attempts of a frozen arm: any pair, any task."""
        rng = random.Random(f"held {self.world.seed}")
        pairs = self.world.crowd.pairs
        drawn = [
            (rng.choice(pairs), rng.randrange(len(self.world.tasks))) for _ in range(self.size.held)
        ]
        return [Turn(99, user.id, agent, task, "nobody") for (user, agent), task in drawn]

    def _sweep(self, condition: Condition, memory: Memory | None) -> Iterator[Figure]:
        turns = self._held()
        for budget in SWEEP[::4] if self.options.quick else SWEEP:
            self.progress(f"{condition.name}, budget {budget}")
            results = frozen(self.world, turns, memory, budget=budget)
            yield figure(
                f"{condition.name}.budget_{budget}.passed", 100 * _share(results.passed), "%"
            )
            shown = _share([done.shown for done in results.done])
            yield figure(f"{condition.name}.budget_{budget}.shown", shown, "characters a task")

    def _arms(self, memory: Memory | None) -> Iterator[Figure]:
        turns, world = self._held(), self.world
        arms: dict[str, Callable[[], Results]] = {
            "none": lambda: frozen(world, turns, None),
            **{
                scope: lambda scope=scope: frozen(world, turns, memory, scopes=(scope,))  # type: ignore[misc] # mypy knows no default of a lambda
                for scope in SCOPES
            },
            "all": lambda: frozen(world, turns, memory),
            "shuffled": lambda: frozen(world, turns, memory, shuffled=True),
            "restated": lambda: frozen(world, turns, memory, restated=True),
        }
        bars = {"none": "<= 0.15", "all": ">= 0.9", "shuffled": "<= 0.4", "restated": ">= 0.97"}
        found = {}
        for name, arm in arms.items():
            self.progress(f"frozen, {name}")
            found[name] = arm()
            kept = [k for done in found[name].done for k in done.kept.values()]
            yield figure(f"frozen.{name}.retention", _share(kept), "share", bar=bars.get(name))
        for name, results in found.items():
            if name != "none":
                gain = compare(results.passed, found["none"].passed)
                yield from _paired(f"frozen.{name}", gain)


def _share(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _leaked(name: str, leaks: probes.Leaks) -> Figure:
    return figure(
        f"{name}.leaks", leaks.found.total(), f"of {leaks.probes.total():,} probes", bar="== 0"
    )


def _costs(name: str, cost: Cost, attempts: int) -> Iterator[Figure]:
    yield figure(f"{name}.kernel", cost.seconds / attempts * 1e3, "ms of processor an attempt")
    yield figure(f"{name}.tokens", cost.tokens / attempts, "tokens an attempt")
    for state, count in cost.ended:
        yield figure(f"{name}.ended.{state}", count, "submissions")


def _paired(name: str, paired: Paired, bar: str | None = None) -> Iterator[Figure]:
    yield figure(f"{name}.gain", paired.gain, f"points, {paired.attempts} attempts", bar=bar)
    yield figure(f"{name}.p", paired.p, f"McNemar, {paired.won} to {paired.lost}")


def _gains(plan: str, found: dict[str, Results], *, bars: bool = True) -> Iterator[Figure]:
    """What each condition gains over no memory, after the first round."""
    none, everywhere = found["none"], found["global"]
    after = [n for n, done in enumerate(none.done) if done.turn.round]

    def gain(here: Results, there: Results, among: Sequence[int]) -> Paired:
        passed = [results.passed for results in (here, there)]
        return compare(*([p[n] for n in among] for p in passed))

    for name, results in found.items():
        if name != "none":
            bar = ">= 13" if bars and name == "four" else None
            yield from _paired(f"{plan}.{name.replace(' ', '_')}", gain(results, none, after), bar)
    over = gain(found["four"], everywhere, after)
    yield from _paired(f"{plan}.four_over_global", over, ">= 4" if bars else None)
    for kind in KINDS:
        among = [n for n in after if none.done[n].turn.before == kind]
        if not among:
            continue
        four, alone = (gain(found[name], none, among) for name in ("four", "global"))
        wanted = {"nobody": "ratio >= 1.5", "strangers": "ratio >= 1.2"} if bars else {}
        yield figure(
            f"{plan}.four.{kind.replace(' ', '_')}.gain",
            four.gain,
            f"points, {len(among)} attempts",
            reference=("global only", alone.gain),
            bar=wanted.get(kind),
        )
