"""Which policy keeps whom waiting, and does each keep its bound? In virtual time, no model runs.

Every policy serves the same seeded traces on the same cost model (:mod:`isovist.scheduler`):

- *poisson*: ``--agents`` agents that call at random moments, at nine tenths of what can be served;
- *bursts*: the same load, but one agent in ten makes its ten calls at one moment;
- *beside*: one interactive agent with a short question every 2 s beside eight that ask for one
  long text after the other, four slots, once with a driver that can pause and once without;
- *weights*: eight agents that all ask for more than can be served, half of them with weight 2;
- *bounds*: as many small traces of every kind as ``--seeds`` says, each under every policy, with
  and without pauses; the worst difference of service and the longest wait, measured by an account
  of its own, as a share of what the policy's docstring allows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from bench.host import scratch
from bench.machine import machine
from bench.report import Figure, Progress, Report, figure, percentile
from isovist.scheduler import traces
from isovist.scheduler.bounds import excess
from isovist.scheduler.choice import POLICIES
from isovist.scheduler.policy import Policy
from isovist.scheduler.simulation import Served, Simulation, simulate
from isovist.scheduler.traces import SECOND, Arrival

SLOTS, FEW_SLOTS = 16, 4
RATE = 3.0
"""Calls a second in all: about nine tenths of what 16 slots serve at the default cost."""
SECONDS = 120
"""Virtual seconds of *beside*."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=int, help="agents of the open traces (default 10,000)")
    parser.add_argument("--seeds", type=int, help="traces that the bounds are tried on (1,000)")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    agents = options.agents or (100 if options.quick else 10_000)
    seeds = options.seeds or (10 if options.quick else 1000)
    seed: int = options.seed
    figures: list[Figure] = []
    for name, trace in (
        ("poisson", traces.poisson(Random(seed), agents, rate=RATE, each=1)),
        ("bursts", traces.bursts(Random(seed), agents, rate=RATE, each=1)),
    ):
        figures += _open(name, trace, progress)
    figures += _beside(seed, progress)
    figures += _weights(seed, progress)
    figures += _bounds(seed, seeds, progress)
    with scratch() as folder:
        facts = machine(Path(folder))
    return Report(
        bench="schedule",
        machine=facts,
        config={"seed": seed, "agents": agents, "seeds": seeds, "slots": SLOTS, "rate": RATE},
        figures=figures,
    )


def _waits(served: Sequence[Served], client: str = "") -> list[float]:
    """Seconds to the first token."""
    return [
        (s.first - s.offered) / SECOND
        for s in served
        if s.first and client in ("", s.arrival.client)
    ]


def _open(name: str, trace: list[Arrival], progress: Progress) -> list[Figure]:
    """No bar: the figures are for those who choose a policy. ``calm`` are the agents that make no
    burst, ``hurried`` those that have a priority and a deadline."""
    figures: list[Figure] = []
    counts: dict[str, int] = {}
    for arrival in trace:
        counts[arrival.client] = counts.get(arrival.client, 0) + 1
    for at, (policy, make) in enumerate(POLICIES.items()):
        progress(name, at, len(POLICIES))
        served = simulate(make, trace, slots=SLOTS)
        waits = _waits(served)
        for share in (50, 95, 99):
            value = percentile(waits, share / 100)
            figures.append(figure(f"{name}.{policy}.ttft.p{share}", value, "s"))
        calm = [(s.first - s.offered) / SECOND for s in served if counts[s.arrival.client] < 10]
        hurried = [(s.first - s.offered) / SECOND for s in served if s.arrival.patience]
        if hurried:
            value = percentile(hurried, 0.95)
            figures.append(figure(f"{name}.{policy}.hurried.ttft.p95", value, "s"))
        figures.append(figure(f"{name}.{policy}.calm.ttft.p95", percentile(calm, 0.95), "s"))
    return figures


def _beside(seed: int, progress: Progress) -> list[Figure]:
    progress("beside")
    trace = traces.beside(Random(seed), seconds=SECONDS)
    figures: list[Figure] = []
    for how, pauses in (("pausing", True), ("unpaused", False)):
        p95 = {
            policy: percentile(
                _waits(
                    simulate(make, trace, slots=FEW_SLOTS, pauses=pauses, until=SECONDS * SECOND),
                    "interactive",
                ),
                0.95,
            )
            for policy, make in POLICIES.items()
        }
        for policy, value in p95.items():
            figures.append(
                figure(
                    f"beside.{how}.{policy}.ttft.p95",
                    value,
                    "s",
                    reference=("fifo", p95["fifo"]),
                    bar="ratio <= 0.25" if pauses and policy == "fair" else None,
                )
            )
    return figures


def _weights(seed: int, progress: Progress) -> list[Figure]:
    """Tokens of weight 2 by those of weight 1, as long as all of them have something to ask."""
    progress("weights")
    trace = traces.weighted(Random(seed))
    figures: list[Figure] = []
    for policy in ("fair", "round_robin", "deadline"):
        totals = {1: 0, 2: 0}

        def watch(run: Simulation, totals: dict[int, int] = totals) -> None:
            if all(run.waits[client] for client in run.service):
                for weight in totals:
                    mine = (n for c, n in run.service.items() if c.startswith(f"w{weight}."))
                    totals[weight] = sum(mine)

        simulate(POLICIES[policy], trace, slots=FEW_SLOTS, watch=watch)
        figures.append(
            figure(
                f"weights.{policy}.off_two",
                abs(totals[2] / totals[1] - 2) if totals[1] else 2.0,
                "ratio",
                bar="<= 0.1",
            )
        )
    return figures


def _bounds(seed: int, seeds: int, progress: Progress) -> list[Figure]:
    worst = dict.fromkeys(POLICIES, 0.0)
    for n in range(seeds):
        progress("bounds", n, seeds)
        rng = Random(f"{seed} {n}")
        trace, slots = traces.mixed(rng), rng.choice((1, 2, 4, 8))
        for policy, make in POLICIES.items():
            worst[policy] = max(worst[policy], *_both(make, trace, slots))
    return [
        figure(f"bounds.{policy}.worst", value, "of the bound", bar="<= 1")
        for policy, value in worst.items()
    ]


def _both(make: Callable[[], Policy], trace: list[Arrival], slots: int) -> list[float]:
    return [excess(make, trace, slots=slots, pauses=pauses) for pauses in (True, False)]
