"""What the CrossLearn bench reports, from what its runs came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.assignment import KINDS
from bench.paired import Paired, compare
from bench.port import SCOPES, Cost
from bench.probes import Leaks, Share
from bench.report import Figure, figure
from bench.rounds import Results

PROBES = 18_000
"""What the leak test must come to in each condition."""
RETAINED = {"none": "<= 0.15", "all": ">= 0.9", "shuffled": "<= 0.4", "restated": ">= 0.97"}
"""Bars on retention, by frozen arm."""
RATIOS = {"nobody": "ratio >= 1.5", "strangers": "ratio >= 1.2"}
"""Bars on the gain beside global-only's, by who has tried the task before."""


def _share(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _paired(name: str, paired: Paired, bar: str | None = None) -> Iterator[Figure]:
    yield figure(f"{name}.gain", paired.gain, f"points, {paired.attempts} attempts", bar=bar)
    yield figure(f"{name}.p", paired.p, f"McNemar, {paired.won} to {paired.lost}")


def gains(plan: str, found: Mapping[str, Results], *, bars: bool) -> Iterator[Figure]:
    """What each condition gains over no memory, after the first round."""
    none, everywhere = found["none"], found["global"]
    after = [n for n, done in enumerate(none.done) if done.turn.round]

    def gain(here: Results, there: Results, among: Sequence[int]) -> Paired:
        one, two = here.passed, there.passed
        return compare([one[n] for n in among], [two[n] for n in among])

    for name, results in found.items():
        if results is not none:
            bar = ">= 13" if bars and name == "four" else None
            yield from _paired(f"{plan}.{name.replace(' ', '_')}", gain(results, none, after), bar)
    over = gain(found["four"], everywhere, after)
    yield from _paired(f"{plan}.four_over_global", over, ">= 4" if bars else None)
    for kind in KINDS:
        among = [n for n in after if none.done[n].turn.before == kind]
        if among:
            yield figure(
                f"{plan}.four.{kind.replace(' ', '_')}.gain",
                gain(found["four"], none, among).gain,
                f"points, {len(among)} attempts",
                reference=("global only", gain(everywhere, none, among).gain),
                bar=RATIOS.get(kind) if bars else None,
            )


def attempts(name: str, results: Results) -> Iterator[Figure]:
    after = [done for done in results.done if done.turn.round]
    yield figure(f"{name}.passed", 100 * _share([done.passed for done in after]), "%")
    yield figure(f"{name}.retention_in_rounds", results.retention(), "share")
    yield figure(f"{name}.shown", _share([done.shown for done in after]), "characters a task")


def exposed(results: Results) -> Iterator[Figure]:
    values = sum(done.values for done in results.done)
    yield figure("exposure", results.exposure, "share of attempts", bar=">= 0.1")
    yield figure("planted_values", values, "reach the splitter", bar=">= 500")


def leaked(name: str, leaks: Leaks, *, enough: bool) -> Iterator[Figure]:
    """``enough``: the probes must come to a number too."""
    probes = leaks.probes.total()
    yield figure(f"{name}.probes", probes, "probes", bar=f">= {PROBES}" if enough else None)
    yield figure(f"{name}.leaks", leaks.found.total(), f"of {probes:,} probes", bar="== 0")
    for place, hits in sorted(leaks.found.items()):
        yield figure(f"{name}.leaks.{place.replace(' ', '_')}", hits, "probes")


def strayed_wishes(name: str, wishes: Share, *, bar: bool) -> Figure:
    return figure(
        f"{name}.others_wishes",
        100 * wishes.value,
        f"% of {wishes.of:,} probes",
        bar="<= 0.9" if bar else None,
    )


def scope_probes(
    name: str, pair_work: tuple[Share, Share], agent_crowd: tuple[Share, Share]
) -> Iterator[Figure]:
    kept, strayed = pair_work
    yield figure(f"{name}.pair_work.kept", kept.value, f"share of {kept.of}")
    yield figure(f"{name}.pair_work.strayed", strayed.value, f"share of {strayed.of}")
    reached, away = agent_crowd
    yield figure(f"{name}.agent_crowd.reached", reached.value, f"share of {reached.of:,}")
    yield figure(f"{name}.agent_crowd.strayed", away.value, f"share of {away.of:,}")


def entries(name: str, results: Results) -> Iterator[Figure]:
    for scope in SCOPES:
        yield figure(f"{name}.entries.{scope}", results.memories.entries[scope], "entries")


def costs(name: str, cost: Cost, attempts: int) -> Iterator[Figure]:
    yield figure(f"{name}.kernel", cost.seconds / attempts * 1e3, "ms of processor an attempt")
    yield figure(f"{name}.tokens", cost.tokens / attempts, "tokens an attempt")
    for state, count in cost.ended:
        yield figure(f"{name}.ended.{state}", count, "submissions")


def swept(name: str, results: Results) -> Iterator[Figure]:
    yield figure(f"{name}.passed", 100 * _share(results.passed), "%")
    yield figure(
        f"{name}.shown", _share([done.shown for done in results.done]), "characters a task"
    )


def arms(found: Mapping[str, Results]) -> Iterator[Figure]:
    """Frozen ones: the wishes kept, and the gain over no memory."""
    for name, results in found.items():
        kept = [kept for done in results.done for kept in done.kept.values()]
        yield figure(f"frozen.{name}.retention", _share(kept), "share", bar=RETAINED.get(name))
    for name, results in found.items():
        if name != "none":
            gain = compare(results.passed, found["none"].passed)
            yield from _paired(f"frozen.{name}", gain)
