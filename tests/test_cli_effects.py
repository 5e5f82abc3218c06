"""``effects``, ``mail`` and ``timer``, against a real kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Shell
from kernel_helpers import short_folder

ACT = """
from isovist.syscalls.client import connect
with connect() as k:
    print(k.effect_begin("pay the baker", "5 coins", key="bread").effect.id)
    k.send(k.whoami().agent, "a note to myself")
    k.timer_every(3600, "look again")
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "-d")
        script = shell.script("act.py", ACT)
        shell("run", script, "--agent", "buyer")
        yield shell
        shell("down")


def test_what_is_unknown_is_listed_shown_and_resolved(shell: Shell) -> None:
    # Its agent is gone: nobody has said what became of it.
    (unknown,) = shell("effects", "ls", "--phase", "unknown", "--json").json
    id_ = unknown["id"]
    assert (unknown["agent"], unknown["key"]) == ("buyer", "bread")
    assert unknown["arguments"]["text"] is None
    listed = shell("effects", "ls").out
    assert "pay the baker" in listed
    assert "5 coins" not in listed
    shown = shell("effects", "show", id_).out
    assert f"{id_} is unknown: pay the baker (step)" in shown
    assert "is done" in shell("effects", "resolve", id_, "done", "--result", "by hand").out
    assert shell("effects", "ls", "--phase", "unknown").out.strip() == "no effects"


def test_boxes_and_timers_are_listed_without_a_word_of_theirs(shell: Shell) -> None:
    (box,) = [b for b in shell("mail", "ls", "--json").json if b["agent"] == "buyer"]
    assert box["messages"] == 1
    assert "note" not in shell("mail", "ls").out
    out = shell("timer", "ls").out
    assert "every 3600 s" in out
    assert "look again" not in out
