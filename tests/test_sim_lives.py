"""Effects, mail and timers under the seeded simulator of lives, and its own ability to fail."""

from __future__ import annotations

import pytest
from ledger_helpers import Tables
from sim_broken_effects import BROKEN

from isovist.kernel.state.simulator import Violation, live, main
from isovist.syscalls.abi import effects, mail, timers

SEEDS, BLOCK = 1_000, 100


@pytest.mark.promise("kernel.survives")
@pytest.mark.promise("write.durable")
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_repeats_an_effect_or_loses_mail(first: int) -> None:
    for seed in range(first, first + BLOCK):
        live(seed)


def test_the_seeds_reach_all_that_can_happen() -> None:
    counts: dict[str, int] = {}
    for seed in range(100):
        for name, count in live(seed).counts.items():
            counts[name] = counts.get(name, 0) + count
    replies = {reply.__name__ for abi in (effects, mail, timers) for reply in abi.REPLY_OF.values()}
    wanted = {*replies, "EAGAIN", "EINVAL", "EPERM", "ESTALE", "ENOSPC", "crashes", "acts"}
    assert wanted - counts.keys() == set()
    assert counts["lives"] > 200


def test_the_simulated_ledger_is_the_real_one() -> None:
    """The same run, over the tables of the store."""
    for seed in range(60):
        tables = Tables()
        try:
            assert live(seed, ledger=tables).digest == live(seed).digest
        finally:
            tables.close()


def test_a_seed_is_replayed_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lives", "--seed", "3", "--steps", "9", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "> Attached(" in out
    assert out.strip().endswith(live(3, 9).digest)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_kernel_is_caught(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, method, instead, wraps = BROKEN[how]
    made = instead(getattr(kind, method)) if wraps else instead
    monkeypatch.setattr(kind, method, made)
    with pytest.raises(Violation, match="replay"):
        _first(200)


def _first(seeds: int) -> None:
    for seed in range(seeds):
        live(seed)
