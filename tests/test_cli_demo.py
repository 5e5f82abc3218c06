"""``isovist demo``: three agents, two users, one question, over the scripted model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import SECONDS, Shell, two_lines
from kernel_helpers import short_folder

from isovist.kernel.cli.demo import ASKER, OTHER, QUESTION, TOLD
from isovist.kernel.lock import holder


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell.env["TMPDIR"] = folder
        yield shell


@pytest.mark.promise("view.noninterference")
@pytest.mark.promise("barrier.order")
@pytest.mark.promise("budget.tokens")
def test_the_demo_shows_each_user_what_is_that_users(shell: Shell) -> None:
    report = shell("demo", "--model", "scripted", "--json").json
    assert report.keys() >= {
        "answer_without", "answer_with", "injected", "timings_ms", "model", "barrier", "extractors",
        "other_user",
    }  # fmt: skip
    said = {user: "\n".join(s for (u, _), ss in TOLD.items() if u == user for s in ss)
            for user in (ASKER, OTHER)}  # fmt: skip
    assert (report["question"], report["user"], report["model"]) == (QUESTION, ASKER, "scripted")
    assert report["answer_without"] not in said[ASKER]
    assert report["answer_with"] in said[ASKER]
    assert report["barrier"]["state"] == "ready"
    assert {u["owner"] for u in report["injected"]} == {"profile", "task"}
    for unit in report["injected"]:
        assert unit["unit"]
        assert (unit["scope"], unit["text"] in said[ASKER]) == ("user", True)
        assert 0 < unit["tokens"] <= report["tokens"]["injected"]
    assert report["tokens"]["injected"] <= report["tokens"]["budget"]
    assert set(report["timings_ms"]) >= {"barrier", "retrieval", "model", "total"}
    assert sum(report["extractors"].values()) == sum(map(len, TOLD.values()))

    other = report["other_user"]
    assert (other["user"], other["foreign"]) == (OTHER, 0)
    assert other["answer"] not in said[ASKER]
    assert all(unit["text"] in said[OTHER] for unit in other["injected"])
    for view in report["views"]:
        assert len(view["units"]) == said[view["user"]].count("\n") + 1


def test_the_demo_can_be_read_by_people_and_leaves_nothing(shell: Shell) -> None:
    out = shell("demo", "--model", "scripted").out
    assert f"{ASKER} asks assistant: {QUESTION}" in out
    assert "without memory" in out
    assert "0 of what only" in out
    assert not list(shell.folder.glob("isovist-*"))


def test_the_demo_needs_a_model(shell: Shell) -> None:
    ran = shell("demo", code=1)
    assert two_lines(ran.err), ran
    assert "model add smollm2" in ran.err
    assert "ENOENT" in shell("demo", "--model", "no-such-model", code=1).err


def test_a_tied_kernel_ends_with_the_process_that_started_it(shell: Shell) -> None:
    starts = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"
    starter = subprocess.Popen(
        [sys.executable, "-c", starts, *shell.command("up", "--tied", "--json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=shell.env,
    )
    assert starter.stdout is not None
    assert json.loads(starter.stdout.readline())["pid"] == holder(shell.state / "kernel.lock")
    starter.kill()
    # The kernel holds the other end of this pipe for as long as it lives.
    starter.communicate(timeout=SECONDS)
    assert holder(shell.state / "kernel.lock") == 0
