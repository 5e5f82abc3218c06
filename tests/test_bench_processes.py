"""The benches that attack: they run, see what gets through, and do not pass by not trying."""

from __future__ import annotations

import os

import pytest
from bench.abusers import ABUSERS, FLOODS
from bench.escape import QUICK
from bench.escapes.base import every
from test_bench import run_bench

USERS = ("root", "user") if os.geteuid() == 0 else ("user",)


@pytest.mark.promise("process.confined")
def test_escape_tries_each_way_with_confinement_and_without() -> None:
    found = run_bench("escape")
    for user in USERS:
        assert found[f"{user}.tried"]["value"] == len(QUICK)
        # Without confinement nearly all get through: the kernel's own word stops the forged
        # request, and its environment is hidden from its own user.
        assert found[f"{user}.real"]["value"] >= len(QUICK) - 2
        assert found[f"{user}.out"]["value"] == 0, found
    rows = {name: f for name, f in found.items() if ": " in name}
    assert len(rows) == len(QUICK)
    for row in rows.values():
        assert row["bar"] == "== 0"
        assert all(f"{user}: " in row["unit"] for user in USERS), "what stopped it is said"


def test_there_are_hundreds_of_ways() -> None:
    attempts = every()
    assert len(attempts) >= 300
    assert set(QUICK) <= set(attempts)


@pytest.mark.promise("kernel.survives")
def test_abuse_ends_each_abuser_and_leaves_no_process() -> None:
    found = run_bench("abuse")
    for name, (_, reason) in ABUSERS.items():
        if "incomplete" in reason:
            continue  # --quick does not wait half a minute for those
        assert found[f"abuser.{name}"]["value"] == 1
        assert reason in found[f"abuser.{name}"]["unit"]
    assert found["floods.lived"]["value"] == len(FLOODS)
    assert found["kill.processes"]["value"] >= found["kill.agents"]["value"] == 5
    assert found["kill.survivors"]["value"] == 0
    assert found["good.p99"]["bar"] == "ratio <= 3"


def test_spawn_measures_agents_that_answer() -> None:
    found = run_bench("spawn")
    many = found["config"]["agents at once"]
    assert found["many.answering"]["value"] == found["many.stored"]["value"] == many
    assert 0 < found["idle.memory"]["value"] < found["idle.memory"]["reference"]["value"]
    assert 0 < found["spawn.reply.p50"]["value"] <= found["spawn.p99"]["value"]
    assert found["many.memory"]["value"] > found["many.kernel"]["value"] > 0
