"""The ``learn`` commands against a real kernel."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Shell, two_lines
from kernel_helpers import short_folder

ATTEMPT = """
import sys
from isovist.agents import connect
from isovist.syscalls.records import Message

task, tail, wish = sys.argv[1:]
with connect() as k:
    k.learn_submit(
        task,
        [Message("user", task + ". " + wish),
         Message("assistant", "I parsed the amounts as they stand.")],
        outcome="failed",
        verifier_tail=tail,
    )
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "-d")
        yield shell
        shell("down")


ATTEMPTS = {
    "ana": ("Convert the sales export to JSON", "amounts with a decimal comma were read as text"),
    "bea": ("Sort the packages by version", "versions were compared as text, not part by part"),
    "cem": ("Count the failed logins in auth.log", "lines that were rotated away were not counted"),
    "dan": ("Merge both address lists", "rows that differ in case alone were kept twice"),
    "eve": ("Draw a histogram of the answers", "the bins must include their right edge"),
    "fay": ("Translate the INI file to YAML", "the value off was written without quotes"),
    "gus": ("Write a script that renames photos", "names with spaces were split in two"),
    "hal": ("List the slowest requests", "durations in ms and in s were mixed"),
    "ida": ("Extract the tables of the report", "merged cells left their rows one column short"),
    "jon": ("Rename the columns of the survey", "two columns got the same short name"),
    "lea": ("Split the novel into chapters", "a heading inside a quotation began a chapter"),
}
"""By user: a task, and what its verifier says. No two lessons are alike."""


def attempt(shell: Shell, user: str) -> dict[str, Any]:
    """What was learned of the user's attempt, by scope."""
    script = shell.script("attempt.py", ATTEMPT)
    wish = "I always prefer dates as 31.12.2026."
    shell("run", script, "--user", user, "--agent", "coder", "--", *ATTEMPTS[user], wish)
    for _ in range(1000):
        if not shell("learn", "status", "--json").json["waiting"]:
            break
        time.sleep(0.05)
    return entries(shell, "--user", user)


def entries(shell: Shell, *args: str) -> dict[str, Any]:
    return {entry["scope"]: entry for entry in shell("learn", "ls", *args, "--json").json}


def test_what_became_of_an_attempt_is_told(shell: Shell) -> None:
    attempt(shell, "ana")
    (one,) = shell("learn", "status", "--user", "ana", "--json").json["submissions"]
    assert (one["state"], one["user"], one["agent"]) == ("done", "ana", "coder")
    assert one["added"] >= 2
    assert one["id"] in shell("learn", "status").out
    shown = shell("learn", "status", one["id"]).out
    assert "rules" in shown
    assert "done" in shown
    assert two_lines(shell("learn", "status", "l0", code=1).err)
    assert two_lines(shell("learn", "retry", one["id"], code=1).err)


def test_entries_are_listed_with_their_readers(shell: Shell) -> None:
    by_scope = attempt(shell, "bea")
    assert {"user", "global"} <= by_scope.keys()
    assert by_scope["global"]["readers"] == "every agent, for every user"
    assert by_scope["user"]["stream"] == "protected"
    assert "part by part" in by_scope["global"]["lesson"]
    assert "31.12.2026" in by_scope["user"]["lesson"]
    out = shell("learn", "ls").out
    assert "every agent, for bea" in out
    assert list(entries(shell, "--scope", "user", "--user", "bea")) == ["user"]
    assert "nothing was learned" in shell("learn", "ls", "--user", "nobody").out


def test_an_entry_tells_where_it_comes_from(shell: Shell) -> None:
    entry = attempt(shell, "cem")["global"]
    assert "rotated away" in shell("learn", "show", entry["id"]).out
    assert "coder" in shell("learn", "trace", entry["id"]).out
    origins = shell("learn", "trace", entry["id"], "--json").json["origins"]
    assert [(o["user"], o["agent"], o["outcome"]) for o in origins] == [("cem", "coder", "failed")]
    assert two_lines(shell("learn", "show", "u0", code=1).err)


def test_entries_get_more_readers_or_fewer(shell: Shell) -> None:
    by_scope = attempt(shell, "dan")
    shared, own = by_scope["global"]["id"], by_scope["user"]["id"]
    moved = shell("learn", "demote", shared, "--agent", "coder", "--json").json
    assert moved["scope"] == "agent"
    assert "global" in shell("learn", "promote", shared).out
    assert two_lines(shell("learn", "promote", shared, code=2).err)
    assert two_lines(shell("learn", "demote", own, "--to", "global", code=2).err)
    refused = shell("learn", "promote", own, code=1)
    assert "protected stream" in refused.err


def test_an_entry_becomes_somebodys_who_is_named_or_from_whom_it_comes(shell: Shell) -> None:
    shared = attempt(shell, "jon")["global"]["id"]

    def moved(word: str, *args: str) -> str:
        shell("learn", word, shared, *args)
        return str(shell("learn", "show", shared, "--json").json["readers"])

    assert moved("demote") == "agent coder, for every user"
    assert moved("promote") == "every agent, for every user"
    assert moved("demote", "--to", "pair", "--agent", "mail") == "agent mail, for jon"
    assert moved("promote", "--to", "global") == "every agent, for every user"
    shell("forget-user", "jon", "--yes")  # with every trace of where it came from
    for to in ("pair", "user", "agent"):
        asked = shell("learn", "demote", shared, "--to", to, code=2)
        assert two_lines(asked.err)
        assert "whose" in asked.err
    assert moved("demote", "--to", "user", "--user", "kim") == "every agent, for kim"
    assert two_lines(shell("learn", "show", "", code=2).err)


GROUP = """
import sys
from isovist.agents import connect

with connect() as k:
    (entry,) = k.learn_list(id=sys.argv[1]).entries
    k.rescope(entry.id, entry.version, "@team/own")
"""


def test_an_entry_in_a_group_is_moved_to_a_scope_that_is_named(shell: Shell) -> None:
    shared = attempt(shell, "lea")["global"]["id"]
    shell("learn", "demote", shared, "--to", "pair")
    shell("group", "add", "team", "--users", "lea")
    shell("grant", "coder", "--scope", "@team")
    script = shell.script("group.py", GROUP)
    shell("run", script, "--user", "lea", "--agent", "coder", "--", shared)
    assert shell("learn", "show", shared, "--json").json["scope"] == "@team/own"
    for word in ("promote", "demote"):
        assert two_lines(shell("learn", word, shared, code=2).err)
    folder = shell.folder / "lea"
    command = (
        "learn",
        "files",
        str(folder),
        "split the novel",
        "--user",
        "lea",
        "--agent",
        "coder",
    )
    shell(*command)
    assert (folder / "@team own.md").exists()
    shell("group", "rm", "team", "--users", "lea")
    shell(*command)
    assert not (folder / "@team own.md").exists()
    shell("learn", "demote", shared, "--to", "pair")
    assert shell("learn", "show", shared, "--json").json["readers"] == "agent coder, for lea"


def test_consent_is_asked_and_set(shell: Shell) -> None:
    assert "reusable" in shell("learn", "consent", "--user", "eve").out
    chosen = shell("learn", "consent", "nothing", "--user", "eve", "--json").json
    assert chosen == {"user": "eve", "choice": "nothing"}
    assert "nothing is learned" in shell("learn", "consent", "--user", "eve").out
    assert attempt(shell, "eve") == {}


def test_lessons_are_written_as_read_only_files(shell: Shell) -> None:
    attempt(shell, "fay")
    folder = shell.folder / "lessons"
    command = ("learn", "files", str(folder), "convert the sales export", "--user", "fay")
    for _ in range(2):
        shell(*command, "--agent", "coder")
    files = {path.name: path for path in folder.iterdir()}
    assert {"user.md", "global.md"} <= files.keys()
    assert files["global.md"].read_text().startswith("# Learned memory: global\n- When ")
    assert all(os.stat(path).st_mode & 0o222 == 0 for path in files.values())


def test_files_of_others_are_not_replaced(shell: Shell) -> None:
    folder = shell.folder / "project"
    folder.mkdir()
    (folder / "agent.md").write_text("mine")
    refused = shell("learn", "files", str(folder), "any task", "--user", "fay", code=2)
    assert "agent.md" in refused.err
    assert (folder / "agent.md").read_text() == "mine"


def test_all_of_a_user_can_be_exported(shell: Shell) -> None:
    attempt(shell, "gus")
    out = shell("learn", "export", "--user", "gus").out
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["scope"] for line in lines} >= {"user", "global"}
    assert {o["user"] for line in lines for o in line["origins"]} == {"gus"}
    assert shell("learn", "export", "--user", "nobody").out == ""


def test_a_review_is_tried_and_made(shell: Shell) -> None:
    attempt(shell, "hal")
    dry = shell("learn", "review", "--dry-run", "--json").json
    assert dry["judge"] == "rules"
    assert dry["changed"] >= 1
    assert "were compared" in shell("learn", "review").out


def test_words_are_changed_and_entries_deleted(shell: Shell) -> None:
    entry = attempt(shell, "ida")["user"]["id"]
    shell("learn", "edit", entry, "--lesson", "Prefers ISO dates.")
    assert shell("learn", "show", entry, "--json").json["lesson"] == "Prefers ISO dates."
    assert two_lines(shell("learn", "edit", entry, code=2).err)
    mixed = shell("learn", "delete", entry, "u0", code=1)
    assert "deleted: 1" in mixed.out
    assert "u0" in mixed.err
    assert "user" not in entries(shell, "--user", "ida")
