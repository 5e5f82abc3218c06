"""The commands for groups, views, audiences, exports and backups, against a real kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Shell, two_lines
from kernel_helpers import short_folder


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A home with a kernel in it that serves all tests of this file."""
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "-d")
        yield shell
        shell("down")


def remember(shell: Shell, text: str, user: str, scope: str = "", stream: str = "protected") -> str:
    """The id of a unit that the agent ``operator`` stores for ``user``."""
    script = shell.script(
        "remember.py",
        "import sys\n"
        "from isovist.syscalls.client import connect\n"
        "text, user, scope, stream = sys.argv[1:]\n"
        "with connect() as k:\n"
        "    s = k.remember(text, user=user, scope=scope or None, stream=stream)\n"
        "    print(s.id, s.scope)\n",
    )
    ran = shell("run", script, "--agent", "writer", "--", text, user, scope, stream)
    return ran.out.split()[0]


@pytest.fixture(scope="module", autouse=True)
def _granted(shell: Shell) -> None:
    shell("group", "add", "team", "--users", "ana", "bob")
    shell("grant", "writer", "--user", "ana", "bob", "--scope", "@team")


def test_groups_are_made_listed_and_left(shell: Shell) -> None:
    made = shell("group", "add", "crew", "--agents", "mail", "plan", "--json").json
    assert made == {"name": "crew", "of": "agents", "members": ["mail", "plan"]}
    assert "crew" in shell("group", "ls").out
    listed = shell("group", "ls", "--of", "agents", "--json").json
    assert listed == [made]
    assert "plan" in shell("group", "rm", "crew", "--agents", "mail").out
    assert shell("group", "rm", "crew", "--agents", "plan", "--json").json["members"] == []


def test_mistyped_groups_and_members_are_told(shell: Shell) -> None:
    for words in (("rm", "tame", "--users", "ana"), ("rm", "team", "--users", "anna")):
        ran = shell("group", *words, code=1)
        assert two_lines(ran.err), ran
    assert two_lines(shell("group", "add", "team", code=2).err)
    both = ("--users", "ana", "--agents", "mail")
    assert two_lines(shell("group", "add", "team", *both, code=2).err)
    assert two_lines(shell("grant", "writer", "--scope", "@tame", code=1).err)


def test_a_view_is_explained(shell: Shell) -> None:
    remember(shell, "the kettle is new", "ana", "@team/all", "reusable")
    shown = shell("memory", "view", "--user", "bob", "--agent", "reader", "--json").json
    assert (shown["user"], shown["agent"]) == ("bob", "reader")
    units = {seen["scope"]: seen["units"] for seen in shown["seen"]}
    assert list(units) == ["pair", "user", "@team/own", "@team/all", "agent", "global"]
    assert units["@team/all"] >= 1
    assert (
        "group team of users, which you are in, any agent"
        in shell("memory", "view", "--user", "bob").out
    )
    assert "team" not in shell("memory", "view", "--user", "zoe").out


def test_a_unit_changes_its_audience_and_expires(shell: Shell) -> None:
    unit = remember(shell, "the plant needs water", "ana")
    owner = ("--user", "ana", "--agent", "writer")
    moved = shell("memory", "rescope", unit, "user", *owner, "--json").json
    assert (moved["id"], moved["version"], moved["scope"]) == (unit, 2, "user")
    assert "its scope is pair" in shell("memory", "rescope", unit, "pair", *owner).out
    assert two_lines(shell("memory", "rescope", unit, "global", *owner, code=1).err)
    shell("memory", "expire", unit, *owner, "--at", "2200-01-01T00:00Z")
    assert shell("memory", "show", unit, *owner, "--json").json["expires_at"] > 0
    shell("memory", "expire", unit, *owner, "--never")
    assert shell("memory", "show", unit, *owner, "--json").json["expires_at"] is None
    both = ("--never", "--at", "2200-01-01T00:00Z")
    assert two_lines(shell("memory", "expire", unit, *owner, *both, code=2).err)
    assert "now" in shell("memory", "expire", unit, *owner).out
    assert two_lines(shell("memory", "show", unit, *owner, code=1).err)


def test_an_export_is_lines_and_an_import_takes_them(shell: Shell, tmp_path: Path) -> None:
    first = remember(shell, "export me first", "bob")
    second = remember(shell, "export me second", "bob")
    ran = shell("memory", "export", "--user", "bob")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert {line["user"] for line in lines} == {"bob"}
    ids = [line["id"] for line in lines]
    assert ids.index(first) < ids.index(second), "oldest first"
    file = tmp_path / "units.jsonl"
    file.write_text("\n" + ran.out + "not a line\n")
    told = shell("memory", "import", str(file), "--json", code=1).json
    assert (told["stored"], told["known"]) == (0, len(lines))
    assert [why.split(":")[0] for why in told["failed"]] == [f"line {len(lines) + 2}"]
    assert "known already" in shell("memory", "import", stdin=ran.out).out
    assert two_lines(shell("memory", "import", str(tmp_path / "none"), code=1).err)


def test_an_import_tells_which_lines_are_no_text_and_takes_the_others(
    shell: Shell, tmp_path: Path
) -> None:
    unit = remember(shell, "a line like any other", "ana")
    ran = shell("memory", "export", "--user", "ana")
    good = next(line for line in ran.out.splitlines() if unit in line).encode()
    lines = {
        1: b"\xef\xbb\xbf" + good, 2: b"\xff\xfe{", 3: b"x" * 2_000_000, 4: good, 5: b"",
        6: good.replace(b'"format":2', b'"format":9'), 7: good[:-9],
    }  # fmt: skip
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(b"\n".join(lines.values()))
    with file.open("rb") as source:
        told = shell("memory", "import", "--json", stdin=source.fileno(), code=1).json
    assert (told["stored"], told["known"]) == (0, 2)
    failed = [why.partition(": ") for why in told["failed"]]
    assert [line for line, _, _ in failed] == ["line 2", "line 3", "line 6", "line 7"]
    for (_, _, why), says in zip(failed, ("not UTF-8: byte 0xff", "longer than", "format 9",
                                          "truncated"), strict=True):  # fmt: skip
        assert says in why
    file.write_bytes(good + b"\n\xe9\n")
    assert "line 2: not UTF-8" in shell("memory", "import", str(file), code=1).err


def test_a_backup_is_made_and_put_back_where_nothing_is_replaced(
    shell: Shell, tmp_path: Path
) -> None:
    unit = remember(shell, "in the backup", "ana")
    target = tmp_path / "b.db"
    made = shell("backup", str(target), "--json").json
    assert made == {"path": str(target), "bytes": target.stat().st_size}
    assert two_lines(shell("backup", str(target), code=1).err)
    assert two_lines(shell("restore", str(target), code=1).err)
    with short_folder() as folder:
        other = Shell(Path(folder))
        assert two_lines(other("restore", str(tmp_path / "none"), code=1).err)
        assert "restored" in other("restore", str(target)).out
        assert two_lines(other("restore", str(target), code=1).err)
        other("up", "-d")
        owner = ("--user", "ana", "--agent", "writer")
        assert other("memory", "show", unit, *owner, "--json").json["text"] == "in the backup"
        other("down")


def test_contexts_are_listed_without_their_text_and_dropped(shell: Shell) -> None:
    script = shell.script(
        "save.py",
        "from isovist.syscalls.client import connect\n"
        "from isovist.syscalls.records import Message\n"
        "with connect() as k:\n"
        "    k.context_save('trip', [Message('user', 'the canary sings')], user='ana')\n",
    )
    shell("run", script, "--agent", "writer")
    pair = ("--user", "ana", "--agent", "writer")
    listed = shell("context", "ls", *pair)
    assert "trip" in listed.out
    (kept,) = shell("context", "ls", *pair, "--json").json
    assert (kept["name"], kept["model"], kept["messages"]) == ("trip", "scripted", 1)
    assert "canary" not in listed.out + str(kept)
    assert "keep no context" in shell("context", "ls", "--user", "ana").out
    assert two_lines(shell("context", "drop", "trip", "--user", "bob", code=1).err)
    assert "dropped: trip" in shell("context", "drop", "trip", *pair).out
    assert shell("context", "ls", *pair, "--json").json == []
