"""The command line's looking back and forgetting, over a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Shell, two_lines
from kernel_helpers import short_folder

TELLER = """
import sys
from isovist.syscalls.client import connect

with connect() as k:
    for n, line in enumerate(sys.stdin):
        k.remember(line.strip(), scope="user", session="trip", round=n)
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell.script("teller.py", TELLER)
        shell("up", "-d")
        yield shell
        shell("down")


def tell(shell: Shell, user: str, *facts: str) -> tuple[str, ...]:
    """Have facts remembered; the options that name their owner."""
    shell("run", "teller.py", "--user", user, stdin="\n".join(facts))
    return ("--user", user, "--agent", "teller")


def test_a_round_is_found_and_read(shell: Shell) -> None:
    mine = tell(shell, "ana", "the kiln is hot", "the kiln is cold", "the oven is off")
    found = shell("memory", "recall", "kiln cold", "-k", "1", *mine, "--json").json
    (best,) = found["rounds"]
    assert (best["round"], best["text"]) == (1, "the kiln is cold")
    shown = shell("memory", "recall", "kiln", *mine).out
    assert best["session"] in shown
    assert "SESSION" in shown
    read = shell("memory", "round", best["session"], "1", *mine, "--json").json
    assert [r["round"] for r in read["rounds"]] == [0, 1, 2]
    alone = shell("memory", "round", best["session"], "1", "--window", "0", *mine).out
    assert "kiln is cold" in alone
    assert "kiln is hot" not in alone
    ran = shell("memory", "round", "s0", "1", *mine, code=1)
    assert two_lines(ran.err)
    assert "ENOENT" in ran.err
    assert "nothing found" in shell("memory", "recall", "kiln", "--user", "nobody").out


def test_a_view_is_written_as_files(shell: Shell) -> None:
    mine = tell(shell, "ole", "the boat is blue")
    folder = shell.folder / "files"
    written = shell("memory", "files", str(folder), *mine, "--json").json["files"]
    assert written == [str(folder / "user.md")]
    assert "the boat is blue" in (folder / "user.md").read_text()
    assert "user.md" in shell("memory", "files", str(folder), *mine).out
    empty = shell.folder / "empty"
    assert "nothing is in view" in shell("memory", "files", str(empty), "--user", "nobody").out
    assert list(empty.iterdir()) == []


@pytest.mark.promise("erase.complete")
def test_units_are_forgotten_by_query(shell: Shell) -> None:
    mine = tell(shell, "eva", "the parrot sings", "the parrot sleeps", "the zebra sings")
    query = ("memory", "forget", "--query", "parrot", *mine)
    ran = shell(*query, code=2)
    assert two_lines(ran.err)
    assert "parrot sings" in ran.out
    dry = shell(*query, "--dry-run")
    assert "parrot sleeps" in dry.out
    assert "nothing was forgotten" in dry.err
    assert shell(*query, "--dry-run", "--json").json["forgotten"] == 0
    gone = shell(*query, "--yes", "--json").json
    assert {u["text"] for u in gone["named"]} == {"the parrot sings", "the parrot sleeps"}
    assert (gone["forgotten"], gone["skipped"], gone["more"]) == (2, 0, False)
    left = shell("memory", "ls", *mine, "--json").json
    assert [u["text"] for u in left] == ["the zebra sings"]
    receipt = shell("memory", "receipt", gone["receipt"], "--wait", "--json").json
    assert receipt["issued_at"] >= receipt["asked_at"] > 0
    assert set(receipt["units"]) == {u["id"] for u in gone["named"]}
    assert "issued" in shell("memory", "receipt", gone["receipt"]).out
    none = shell(*query, "--yes", "--json").json
    assert none == {"named": [], "forgotten": 0, "skipped": 0, "more": False, "receipt": ""}
    assert "nothing of this pair" in shell(*query).out
    ran = shell("memory", "forget", "--query", "what is it?", *mine, "--yes", code=1)
    assert two_lines(ran.err)


def test_forget_takes_ids_or_a_query(shell: Shell) -> None:
    for more in ([], ["u1", "--query", "x"], ["u1", "--dry-run"]):
        ran = shell("memory", "forget", *more, "--user", "ana", code=2)
        assert two_lines(ran.err), ran


@pytest.mark.promise("erase.complete")
def test_a_forgotten_unit_has_a_receipt(shell: Shell) -> None:
    mine = tell(shell, "jan", "the canary sings")
    (unit,) = shell("memory", "ls", *mine, "--json").json
    ran = shell("memory", "forget", unit["id"], *mine, "--yes")
    receipt = ran.err.split("receipt ")[1].split(":")[0]
    assert shell("memory", "receipt", receipt, "--json").json["units"] == [unit["id"]]


@pytest.mark.promise("erase.complete")
def test_a_user_is_forgotten(shell: Shell) -> None:
    mine = tell(shell, "kim", "one", "two", "three")
    ran = shell("forget-user", "kim", code=2)
    assert "3 units: 3 user" in ran.out
    assert two_lines(ran.err)
    shown = shell("forget-user", "kim", "--dry-run", "--json").json
    assert (shown["units"], shown["scopes"], shown["forgotten"]) == (3, {"user": 3}, 0)
    assert len(shell("memory", "ls", *mine, "--json").json) == 3
    gone = shell("forget-user", "kim", "--yes", "--json").json
    assert (gone["user"], gone["forgotten"]) == ("kim", 3)
    assert shell("memory", "ls", *mine, "--json").json == []
    assert "forgotten: 0" in shell("forget-user", "kim", "--yes").out
    ran = shell("forget-user", "nobody", "--dry-run")
    assert "nobody has 0 units" in ran.out
    assert "nothing is stored of that name" in ran.err
