"""``isovist tool``, ``isovist approve`` and rules for tools in ``isovist grant``."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import SECONDS, Shell, end, two_lines
from kernel_helpers import short_folder

from isovist.kernel.cli.common import Problem
from isovist.kernel.cli.tools import rule
from isovist.syscalls.records import ToolRule

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        tools = shell.folder / "tools"
        tools.mkdir()
        shutil.copy(TESTS / "native_tools.py", tools)
        config = shell.folder / "config" / "isovist" / "config.toml"
        with config.open("a") as file:
            file.write(
                f'[tools.py]\npython = "native_tools"\nfolder = "{tools}"\napprove = ["fail"]\n'
                'conflicts = { count = "exclusive" }\n'
            )
        shell("up", "-d", "--json")
        try:
            yield shell
        finally:
            shell("down")


def test_tools_are_listed_shown_and_called(shell: Shell) -> None:
    listed = shell("tool", "ls", "py.*").out
    assert "py.add" in listed
    assert "only reads" in listed
    shown = shell("tool", "show", "py.count").out
    assert "is idempotent" in shown
    assert "exclusive" in shown
    assert shell("tool", "call", "py.add", '{"a": 40, "b": 2}').out == "42\n"
    whole = shell("tool", "call", "py.big", '{"characters": 70000}').out
    assert len(whole) == 70_001
    result = shell("tool", "call", "py.add", '{"a": 1}', "--json").json
    assert (result["text"], result["failed"]) == ("2", False)
    wrong = shell("tool", "call", "py.add", '{"a": "x"}', code=1)
    assert "$.a" in wrong.out
    (server,) = shell("tool", "servers", "--json").json
    assert (server["name"], server["state"], server["starts"]) == ("py", "up", 1)
    assert "up" in shell("tool", "servers").out
    assert two_lines(shell("tool", "show", "py.none", code=1).err)


def test_a_grant_names_tools_and_their_arguments(shell: Shell) -> None:
    denied = shell("tool", "call", "py.add", '{"a": 1}', "--agent", "clerk", code=1)
    assert "EPERM" in denied.err
    assert "py.add" in denied.err
    assert "may call: py.add(a=4*)" in shell("grant", "clerk", "--tool", "py.add(a=4*)").out
    assert shell("tool", "call", "py.add", '{"a": 41}', "--agent", "clerk").out == "42\n"
    shell("tool", "call", "py.add", '{"a": 1}', "--agent", "clerk", code=1)
    listed = shell("tool", "ls", "--agent", "clerk", "--json").json["tools"]
    assert [t["name"] for t in listed if "." in t["name"]] == ["py.add"]
    shell("grant", "clerk", "--tool", "py.add", "--revoke")
    shell("tool", "call", "py.add", '{"a": 41}', "--agent", "clerk", code=1)
    assert two_lines(shell("grant", "clerk", "--tool", "py.add(a", code=2).err)
    assert two_lines(shell("grant", "clerk", "--tool", "add", code=1).err)


@pytest.mark.parametrize("word", ["yes", "no"])
def test_a_person_answers(shell: Shell, word: str) -> None:
    call = shell.start("tool", "call", "py.fail", '{"why": "\\u001b[2J"}')
    until = time.monotonic() + SECONDS
    while not (waiting := shell("approve", "--json").json):
        assert time.monotonic() < until
    (one,) = waiting
    shown = shell("approve").out
    assert one["id"] in shown
    assert "\\u001b[2J" in shown
    if word == "yes":
        assert "waits on" in shell("approve", one["id"], stdin="\n", code=1).out
        shell("approve", one["id"], stdin="y\n")
        ran = end(call)
        assert (ran.code, "ValueError" in ran.out) == (1, True)
    else:
        shell("approve", one["id"], "--deny")
        ran = end(call)
        assert (ran.code, "EPERM" in ran.err) == (1, True)
    assert "nothing waits" in shell("approve").out
    assert two_lines(shell("approve", one["id"], "--yes", code=1).err)
    lines = [json.dumps(line) for line in shell("audit", "ls", "--json").json]
    assert sum("approv" in line and one["id"] in line for line in lines) == 2
    assert not any("2J" in line for line in lines)


def test_the_text_of_a_rule() -> None:
    assert rule("fs.read") == ToolRule("fs.read")
    assert rule("fs.*(path=/data/*, mode = r)") == ToolRule(
        "fs.*", {"path": "/data/*", "mode": "r"}
    )
    for text in ("fs.read(", "fs.read(x)", "fs.read(a=b"):
        with pytest.raises(Problem):
            rule(text)
