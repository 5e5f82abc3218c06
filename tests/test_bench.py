"""The benches themselves: what they report, what they draw, and that they run."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import msgspec
import pytest
from bench import __main__ as command
from bench.answers import Ledger, Owner
from bench.facts import DECOYS, FACTS_EACH, KINDS, Drawer, holds_word
from bench.lanes import environment
from bench.report import (
    CannotRun,
    Progress,
    Report,
    as_json,
    as_table,
    figure,
    percentile,
)
from bench.text import Writer


def a_report(*figures: object) -> Report:
    return msgspec.convert(
        {
            "bench": "x",
            "machine": {"cores": 2},
            "config": {"seed": 1},
            "figures": [msgspec.to_builtins(f) for f in figures],
        },
        Report,
    )


# -- reports


def test_a_bar_is_about_the_value_or_the_ratio() -> None:
    assert figure("a", 46, "of 48", bar=">= 46").holds is True
    assert figure("a", 45, "of 48", bar=">= 46").holds is False
    assert figure("a", 30, "µs", reference=("raw", 8), bar="ratio <= 4").holds is True
    assert figure("a", 33, "µs", reference=("raw", 8), bar="ratio <= 4").holds is False
    assert figure("a", 0, "units", bar="== 0").holds is True


def test_a_verdict_is_taken_before_rounding() -> None:
    missed = figure("a", 2.000001, "ms", bar="<= 2")
    assert (missed.value, missed.holds) == (2.0, False)


def test_a_ratio_without_a_reference_is_missed_and_is_null() -> None:
    for reference in (None, ("oracle", 0.0)):
        missed = figure("a", 1, "answers", reference=reference, bar="ratio >= 0.9")
        assert missed.ratio is None
        assert missed.holds is False


@pytest.mark.parametrize("bar", ["46", "=> 46", "ratio 4", ">= many", "share >= 0.5", ""])
def test_a_bar_that_is_none_is_an_error(bar: str) -> None:
    with pytest.raises(ValueError, match="not a bar"):
        figure("a", 1, "ms", bar=bar)


def test_the_json_object_has_all_keys_also_where_null() -> None:
    plain, barred = figure("a", 1, "ms"), figure("b", 2, "ms", reference=("raw", 1), bar="> 1")
    found = json.loads(as_json(a_report(plain, barred)))
    assert list(found) == ["bench", "machine", "config", "figures"]
    nothing = {"reference": None, "ratio": None, "bar": None, "holds": None}
    assert found["figures"][0] == {"id": "a", "value": 1.0, "unit": "ms", **nothing}
    assert found["figures"][1]["reference"] == {"name": "raw", "value": 1.0}
    assert found["figures"][1]["ratio"] == 2.0


def test_the_table_says_what_was_missed() -> None:
    held, missed = figure("good", 1, "ms", bar="<= 2"), figure("bad", 3, "ms", bar="<= 2")
    text = as_table(a_report(held, missed, figure("free", 5, "ms")))
    (line,) = [line for line in text.splitlines() if line.startswith("bad")]
    assert line.endswith("MISSED")
    assert text.endswith("1 of 2 bars missed")
    assert as_table(a_report(held)).endswith("all 1 bars hold")


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile(range(1, 101), 1.0) == 100
    assert percentile([7], 0.5) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_progress_tells_each_stage_once_and_its_end() -> None:
    out = io.StringIO()
    progress = Progress("x", out)
    for done in range(4):
        progress("write", done, 3)
    progress("ask")
    progress("ask")
    assert [line.partition("] ")[2] for line in out.getvalue().splitlines()] == [
        "write 0/3",
        "write 3/3",
        "ask",
    ]


# -- exit codes


class FakeBench:
    def __init__(self, outcome: Report | Exception) -> None:
        self.outcome = outcome
        self.options: argparse.Namespace | None = None

    @staticmethod
    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--extra", type=int, default=7)

    def run(self, options: argparse.Namespace, progress: Progress) -> Report:
        self.options = options
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


Install = Callable[[Report | Exception], FakeBench]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(outcome: Report | Exception) -> FakeBench:
        made = FakeBench(outcome)
        monkeypatch.setitem(command.BENCHES, "fake", "for this test")
        monkeypatch.setitem(sys.modules, "bench.fake", made)  # type: ignore[arg-type] # a double
        return made

    return install


def test_exit_codes_tell_held_missed_and_failed_apart(
    fake: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(a_report(figure("a", 1, "ms", bar="<= 2")))
    assert command.main(["fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"][0]["holds"] is True
    fake(a_report(figure("a", 3, "ms", bar="<= 2")))
    assert command.main(["fake"]) == 1
    assert "MISSED" in capsys.readouterr().out
    fake(CannotRun("no model"))
    assert command.main(["fake", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no model" in err
    fake(RuntimeError("a bug"))
    assert command.main(["fake"]) == 2
    assert "a bug" in capsys.readouterr().err


def test_options_reach_the_bench(fake: Install, tmp_path: Path) -> None:
    made = fake(a_report())
    command.main(["fake", "--seed", "5", "--quick", "--data", str(tmp_path), "--extra", "9"])
    assert made.options is not None
    assert vars(made.options) == {
        "json": False, "data": tmp_path, "seed": 5, "quick": True, "extra": 9
    }  # fmt: skip


def test_an_unknown_bench_is_named_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nonsense"]) == 2
    assert "answers, syscalls" in capsys.readouterr().err
    assert command.main(["--help"]) == 0
    assert command.main([]) == 2


# -- what is drawn


def test_facts_are_the_seeds_and_eight_kinds_each() -> None:
    users = ["u1", "u2", "u3"]
    facts = Drawer(3).facts(users)
    assert facts == Drawer(3).facts(users)
    assert facts != Drawer(4).facts(users)
    for user in users:
        own = [f for f in facts if f.user == user]
        assert len({f.kind for f in own}) == FACTS_EACH
        assert sorted(f.listener for f in own) == ["profile"] * 4 + ["task"] * 4
    assert all(holds_word(f.says, f.value) and not holds_word(f.question, f.value) for f in facts)


def test_there_are_many_kinds_each_with_a_sentence_and_a_question_of_its_own() -> None:
    assert len({k.says for k in KINDS}) == len({k.question for k in KINDS}) == len(KINDS) >= 16
    assert all(k.says.count("{}") == 1 for k in KINDS)


@pytest.mark.parametrize("seed", range(5))
def test_no_value_stands_in_a_decoy_or_in_another_fact(seed: int) -> None:
    drawer = Drawer(seed)
    facts, decoys = drawer.facts([f"u{i}" for i in range(6)]), drawer.decoys(500)
    assert len(set(decoys)) == 500
    said = [f.says for f in facts] + [k.question for k in KINDS]
    for fact in facts:
        assert sum(holds_word(text, fact.value) for text in said) == 1
        assert not any(holds_word(text, fact.value) for text in decoys)


def test_decoys_use_each_template_about_as_often() -> None:
    decoys = Drawer(0).decoys(len(DECOYS) * 2)
    starts = [template.partition("{")[0] for template in DECOYS]
    assert all(sum(d.startswith(start) for d in decoys) >= 2 for start in starts if start)


def test_a_value_counts_as_a_whole_word_in_any_case() -> None:
    assert holds_word("It is called BRONTH.", "Bronth")
    assert not holds_word("It is called Bronthal.", "Bronth")
    assert not holds_word("number 12345", "1234")


def test_the_ledger_allows_own_and_open_units_alone() -> None:
    ledger = Ledger(
        {
            "open": Owner("ana", "notes", "user"),
            "own": Owner("ana", "assistant", "pair"),
            "private": Owner("ana", "diary", "pair"),
            "foreign": Owner("bo", "notes", "user"),
        }
    )
    names = [*ledger.owners, "unknown"]
    assert [u for u in names if ledger.allows(u, "ana", "assistant")] == ["open", "own"]


def test_text_is_the_seeds_and_questions_differ() -> None:
    one, two = Writer(1), Writer(1)
    assert [one.note() for _ in range(20)] == [two.note() for _ in range(20)]
    assert len({one.question() for _ in range(2_000)}) == 2_000


# -- that they run, over a real kernel each


def run_bench(*arguments: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments, "--quick", "--json"],
        cwd=bench.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert (done.returncode == 1) == any(f["holds"] is False for f in found["figures"])
    return {"config": found["config"], **{f["id"]: f for f in found["figures"]}}


def test_syscalls_runs_and_states_its_placement() -> None:
    found = run_bench("syscalls", "--embedder", "hash")
    assert "core" in found["config"]["placement"]
    for name in ("null", "write", "llm"):
        for agents in (1, 8, 64):
            for what in ("p50", "p99", "rate"):
                f = found[f"{name}.{agents}.{what}"]
                assert f["value"] > 0
                assert f["reference"]["name"] == "raw loop"
    bars = {k: f["bar"] for k, f in found.items() if k != "config" and f["bar"]}
    assert bars == {
        "null.1.p50": "ratio <= 4",
        "null.64.rate": "ratio >= 0.25",
        "kernel_share.p50": "<= 2",
        "lag.ninth_agent.p99": "<= 5",
        "lag.loop_task.p99": "<= 5",
    }


@pytest.mark.promise("view.noninterference")
@pytest.mark.promise("private.default")
def test_answers_runs_and_nobody_is_shown_what_is_not_theirs() -> None:
    found = run_bench("answers", "--model", "scripted", "--seed", "11")
    assert found["foreign"]["value"] == 0
    assert found["without.right"]["value"] == 0
    assert found["other.right"]["value"] == 0
    # The scripted model repeats a line of the block, so an answer shows what was injected.
    assert found["oracle.right"]["value"] >= 12
    assert found["gold_injected"]["value"] >= 12


def test_a_model_that_is_not_installed_is_said_and_is_no_missed_bar() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "answers", "--quick", "--model", "no-such-model"],
        cwd=bench.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no-such-model" in done.stderr
    assert "isovist model add" in done.stderr
