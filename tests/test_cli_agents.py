"""Manifests and supervision on the command line, over a kernel of one's own."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import SECONDS, Shell
from kernel_helpers import short_folder

PROGRAM = """\
import sys
from isovist.agents import connect

with connect() as k:
    me = k.whoami()
    print(me.agent, me.user, ",".join(me.users), ",".join(me.scopes), *sys.argv[1:], flush=True)
    if "wait" in sys.argv:
        sys.stdin.read()
"""

FAILS = """\
import sys
from isovist.agents import connect

with connect() as k:
    print("life of", k.whoami().pid, file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "--detach")
        try:
            yield shell
        finally:
            shell("down")


def agent(shell: Shell, name: str, manifest: str, program: str = PROGRAM) -> Path:
    """An agent's folder: a program and what it asks for."""
    folder = shell.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "agent.py").write_text(program)
    (folder / "manifest.toml").write_text('entry = "agent.py"\n' + manifest)
    return folder


def poll(condition: Callable[[], Any]) -> Any:
    for _ in range(SECONDS * 20):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came to that")


def test_what_is_asked_is_shown_before_anything_is_granted_and_without_a_kernel(
    shell: Shell,
) -> None:
    folder = agent(
        shell,
        "shown",
        'users = ["ana", "*"]\npublish = ["agent"]\nmail = ["plan"]\nchildren = 2\n'
        'heartbeat = 3.0\n[restart]\npolicy = "on-failure"\n[[mounts]]\npath = "data"\n'
        '[[tools]]\nname = "files.read"\narguments = { path = "notes/*" }\n'
        "[quotas]\nunits = 5000\n",
    )
    said = shell("agent", "inspect", str(folder)).out
    for words in (
        "acts for    ana, everybody", "publishes   agent", "reads       " + str(folder / "data"),
        "calls       files.read where path fits notes/*", "mails       plan",
        "starts      at most 2 processes at once", "uses        units up to 5,000",
        "restarts    after a failure, at most 5 times within 60 s", "approved    no",
        "heartbeat   at least every 3 s",
    ):  # fmt: skip
        assert words in said
    assert "(granted)" not in said
    assert "shown" not in [one["agent"] for one in shell("agent", "ls", "--json").json]
    with short_folder() as other:
        assert "acts for    ana" in Shell(Path(other))("agent", "inspect", str(folder)).out


def test_nothing_runs_that_nobody_approved_and_a_change_asks_anew(shell: Shell) -> None:
    folder = agent(shell, "strict", 'users = ["ana"]\npublish = ["agent"]\n')
    refused = shell("run", str(folder), "--user", "ana", code=1)
    assert "EPERM: the manifest of agent 'strict' was never approved" in refused.err
    assert "agent inspect" in refused.err
    assert shell("agent", "approve", str(folder), "--json").json["users"] == ["ana"]
    assert "ana (granted)" in shell("agent", "inspect", str(folder)).out
    ran = shell("run", str(folder), "--user", "ana")
    assert ran.out == "strict ana ana agent,pair,user\n"
    # Through its script it is the same agent.
    assert shell("run", str(folder / "agent.py"), "--user", "ana", "x").out.endswith("user x\n")
    agent(shell, "strict", 'users = ["ana", "bob"]\n')
    changed = shell("run", str(folder), "--user", "ana", code=1)
    assert "has changed since it was approved" in changed.err
    assert "no: changed since" in shell("agent", "inspect", str(folder)).out
    assert shell("run", str(folder), "--user", "bob", "--yes").out.startswith("strict bob ana,bob")
    other = shell("run", str(folder), "--agent", "me", code=2)
    assert "its manifest names the agent 'strict'" in other.err


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_a_person_is_shown_and_asked(shell: Shell, answer: str) -> None:
    folder = agent(shell, f"asks-{answer}", 'users = ["ana"]\n')
    here, there = pty.openpty()
    ran = subprocess.Popen(
        shell.command("run", str(folder), "--user", "ana"), env=shell.env, cwd=shell.folder,
        stdin=there, stdout=there, stderr=there,
    )  # fmt: skip
    os.close(there)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(here, 4096)
    assert b"acts for    ana" in said
    os.write(here, answer.encode() + b"\n")
    code = ran.wait(SECONDS)
    os.close(here)
    assert code == (0 if answer == "y" else 1)
    listed = shell("agent", "ls", "--json").json
    held = next((a for a in listed if a["agent"] == f"asks-{answer}"), {"users": []})
    assert held["users"] == (["ana"] if answer == "y" else [])


def test_a_broken_manifest_is_told_by_its_file_and_key(shell: Shell) -> None:
    folder = agent(shell, "broken", "children = 900\n")
    for command in (("run", str(folder)), ("agent", "inspect", str(folder))):
        said = shell(*command, code=1).err
        assert f"EINVAL: {folder / 'manifest.toml'}: children must be 0 to 64" in said
    assert "no manifest.toml" in shell("agent", "inspect", str(shell.folder), code=1).err


def test_an_approval_is_taken_back_and_lives_through_a_restart(shell: Shell) -> None:
    folder = agent(shell, "gone", 'users = ["ana"]\nmail = ["plan"]\n')
    shell("agent", "approve", str(folder))
    shell("down")
    shell("up", "--detach")
    (held,) = [a for a in shell("agent", "ls", "--json").json if a["agent"] == "gone"]
    assert (held["users"], held["mail"], bool(held["digest"])) == (["ana"], ["plan"], True)
    assert shell("run", str(folder), "--user", "ana").code == 0
    shell("agent", "revoke", "gone")
    assert not [a for a in shell("agent", "ls", "--json").json if a["agent"] == "gone"]
    assert "EPERM" in shell("run", str(folder), "--user", "ana", code=1).err
    assert "ENOENT" in shell("agent", "revoke", "gone", code=1).err


def test_who_fails_is_started_anew_and_given_up_in_the_end(shell: Shell) -> None:
    folder = agent(
        shell, "fails", '[restart]\npolicy = "on-failure"\nmost = 2\npause = 0.01\n', FAILS
    )
    ran = shell("run", str(folder), "--yes", code=3)
    assert ran.err.count("life of") == 3
    assert ran.err.count("it goes on as process") == 2
    assert "given up: started anew 2 times within 60 s" in ran.err


def test_processes_are_paused_urged_and_ended_by_hand(shell: Shell) -> None:
    folder = agent(shell, "works", "")
    ran = subprocess.Popen(
        shell.command("run", str(folder), "wait", "--yes"), env=shell.env, cwd=shell.folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert ran.stdout is not None
    assert ran.stdout.readline().startswith("works")

    def works() -> dict[str, Any]:
        (found,) = [p for p in shell("ps", "--json").json if p["agent"] == "works"]
        assert isinstance(found, dict)
        return found

    pid = str(works()["pid"])
    assert "is paused" in shell("pause", pid).out
    assert works()["state"] == "paused"
    assert "is running" in shell("continue", pid).out
    assert "level 3, nice 5" in shell("priority", pid, "3", "--nice", "5").out
    tree = shell("ps", "--tree").out
    assert "CPU" in tree
    assert "MiB" in tree
    assert "works" in shell("top", "--once", "--interval", "0.1").out
    assert "is gone: exited" in shell("terminate", pid, "--grace", "30").out
    _, err = ran.communicate(timeout=SECONDS)
    assert ran.returncode != 0
    assert "terminated by operator" in err
    assert "ESRCH" in shell("pause", pid, code=1).err
    assert "needs a level" in shell("priority", pid, code=2).err
