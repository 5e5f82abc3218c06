"""The command line over real kernels: round trips, exit codes, JSON."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Ran, Shell, end, two_lines
from kernel_helpers import short_folder

from isovist.kernel.cli import main
from isovist.kernel.cli.app import COMMANDS
from isovist.kernel.lock import holder

TELLER = """
import sys
from isovist.syscalls.client import connect

with connect() as k:
    who = k.whoami()
    for line in sys.stdin:
        k.remember(line.strip(), scope="user")
    if len(sys.argv) > 2:
        found = k.search(sys.argv[2], wait="lexical")
        answer = k.chat(sys.argv[2], wait="lexical")
        print(who.agent, who.user, found.call, answer.call, answer.text, sep="|")
    print("told", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
SLEEPER = """
import signal, sys
from isovist.syscalls.client import connect

with connect():
    print("here", file=sys.stderr, flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A shell with a running kernel, which all tests of this module share."""
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell.script("teller.py", TELLER)
        shell.script("sleeper.py", SLEEPER)
        started = shell("up", "-d", "--json").json
        assert started["state"] == str(shell.state)
        assert started["pid"] != os.getpid()
        yield shell
        shell("down")


@pytest.fixture
def quiet() -> Iterator[Shell]:
    """A shell whose kernel does not run."""
    with short_folder() as folder:
        yield Shell(Path(folder))


def tell(shell: Shell, user: str, *facts: str, ask: str = "", agent: str = "teller") -> Ran:
    words = ["--", "0", *([ask] if ask else [])]
    args = ("run", "teller.py", "--user", user, "--agent", agent, *words)
    return shell(*args, stdin="\n".join(facts))


# -- a kernel's life


def test_a_kernel_comes_up_in_the_background_and_goes_down(quiet: Shell) -> None:
    pid = quiet("up", "-d", "--json").json["pid"]
    assert quiet("ps", "--json").json == []
    assert quiet("down", "--json").json == {"stopped": pid}
    assert holder(quiet.state / "kernel.lock") == 0
    assert two_lines(quiet("down", code=3).err)
    assert two_lines(quiet("ps", code=3).err)


def test_a_kernel_in_the_foreground_stops_in_order_on_sigterm(quiet: Shell) -> None:
    kernel = quiet.start("up", "--json")
    assert kernel.stdout is not None
    assert f'"pid":{kernel.pid}' in kernel.stdout.readline()
    kernel.send_signal(signal.SIGTERM)
    ran = end(kernel)
    assert ran.code == 0, ran
    assert ran.out == ""
    assert '"kernel down"' in ran.err.splitlines()[-1]
    assert not (quiet.state / "socket").exists()


def test_a_second_kernel_is_refused(shell: Shell) -> None:
    for how in (["up", "-d"], ["up"]):
        ran = shell(*how, code=1)
        assert two_lines(ran.err), ran
        assert "running" in ran.err


def test_a_kernel_refuses_a_model_that_is_not_installed(quiet: Shell) -> None:
    for how in (["up"], ["up", "-d"]):
        ran = quiet(*how, "--model", "oracle", code=1)
        assert two_lines(ran.err), ran
        assert "'oracle'" in ran.err


def test_a_kernel_that_cannot_start_says_why(quiet: Shell) -> None:
    quiet.state.mkdir()
    (quiet.state / "isovist.db").write_text("this is no store")
    ran = quiet("up", "-d", "--json", code=1)
    assert two_lines(ran.err), ran
    assert "isovist.db" in ran.json["error"]["message"]
    assert quiet("ps", code=3)


def test_a_kernel_that_dies_while_it_starts_is_told_as_such(quiet: Shell) -> None:
    quiet.env["PYTHONDONTWRITEBYTECODE"] = "1"
    broken = quiet.folder / "broken" / "trio"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os\nos._exit(9)\n")
    quiet.env["PYTHONPATH"] = f"{broken.parent}:{quiet.env['PYTHONPATH']}"
    ran = quiet("up", "-d", code=1)
    assert two_lines(ran.err), ran
    assert "exit status 9" in ran.err
    assert "kernel.log" in ran.err


def test_the_store_outlives_the_kernel(quiet: Shell) -> None:
    quiet.script("teller.py", TELLER)
    quiet("up", "-d")
    tell(quiet, "ana", "The kiln is called Bertha")
    quiet("down")
    quiet("up", "-d")
    assert [u["text"] for u in quiet("memory", "ls", "--user", "ana", "--json").json] == [
        "The kiln is called Bertha"
    ]
    quiet("down")


# -- agents


def test_an_agent_has_the_terminal_and_its_status_is_ours(shell: Shell) -> None:
    ran = shell(
        "run", "teller.py", "--user", "rosa", "--", "7", "Where?", code=7, stdin="It is here"
    )
    agent, user, *_, text = ran.out.strip().split("|")
    assert (agent, user, text) == ("teller", "rosa", "I do not know.")
    assert ran.err == "told\n"


def test_with_json_the_record_of_the_exit_has_standard_output_to_itself(shell: Shell) -> None:
    ran = shell(
        "run", "teller.py", "--user", "rita", "--json", "--fresh", "--", "3", "Where?", code=3
    )
    assert (ran.json["state"], ran.json["status"], ran.json["user"]) == ("exited", 3, "rita")
    assert "I do not know." in ran.err


def test_ps_shows_the_living_and_with_a_the_dead(shell: Shell) -> None:
    done = shell("run", "teller.py", "--agent", "early", "--json", "--", "4", code=4).json["pid"]
    sleeper = shell.start("run", "sleeper.py", "--user", "sam")
    assert sleeper.stderr is not None
    assert sleeper.stderr.readline() == "here\n"
    living = {p["pid"]: p for p in shell("ps", "--json").json}
    assert done not in living
    dead = {p["pid"]: p for p in shell("ps", "-a", "--json").json}[done]
    assert (dead["agent"], dead["status"], dead["stderr"]) == ("early", 4, ["told"])
    (pid,) = [p["pid"] for p in living.values() if p["user"] == "sam"]
    table = shell("ps", "-a").out
    assert "exited 4" in table
    assert "sleeper.py" in table

    gone = shell("kill", str(pid), "--json").json
    assert (gone["state"], gone["status"]) == ("exited", -signal.SIGKILL)
    ran = end(sleeper)
    assert ran.code == 128 + signal.SIGKILL
    assert "killed by operator" in ran.err
    assert "SIGKILL" in shell("ps", "-a").out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_kills_the_agent(shell: Shell, number: signal.Signals) -> None:
    user = f"cora-{number.name}"
    sleeper = shell.start("run", "sleeper.py", "--user", user)
    assert sleeper.stderr is not None
    assert sleeper.stderr.readline() == "here\n"
    sleeper.send_signal(number)
    assert end(sleeper).code == 128 + signal.SIGKILL
    assert user not in shell("ps", "--json").out


def test_a_program_that_is_not_there(shell: Shell) -> None:
    ran = shell("run", "nowhere.py", code=1)
    assert two_lines(ran.err), ran
    assert "nowhere.py" in ran.err
    assert "path" in ran.err.splitlines()[1]


def test_a_kernel_that_dies_under_its_client_counts_as_none(quiet: Shell) -> None:
    quiet.script("sleeper.py", SLEEPER)
    pid = quiet("up", "-d", "--json").json["pid"]
    sleeper = quiet.start("run", "sleeper.py")
    assert sleeper.stderr is not None
    assert sleeper.stderr.readline() == "here\n"
    os.kill(pid, signal.SIGKILL)
    ran = end(sleeper)
    assert ran.code == 3, ran
    assert two_lines(ran.err)


# -- memory and records


def test_memory_is_listed_found_shown_and_forgotten(shell: Shell) -> None:
    tell(shell, "mia", "Mia's locker is number 4471", "Mia plays the viola")
    here = ("--user", "mia", "--json")
    listed = shell("memory", "ls", *here).json
    assert [u["text"] for u in listed] == ["Mia plays the viola", "Mia's locker is number 4471"]
    assert len(shell("memory", "ls", "--limit", "1", *here).json) == 1
    assert shell("memory", "ls", "--kind", "profile", *here).json == []
    assert shell("memory", "ls", "--user", "noa", "--json").json == []

    found = shell("memory", "search", "which locker", "-k", "1", *here).json
    (hit,) = found["hits"]
    assert "4471" in hit["chunk"]
    unit = hit["unit"]["id"]
    assert shell("memory", "show", unit, *here).json["text"] == "Mia's locker is number 4471"
    assert "4471" in shell("memory", "show", unit, "--user", "mia").out
    assert "4471" in shell("memory", "ls", "--user", "mia").out
    assert two_lines(shell("memory", "show", unit, "--user", "noa", code=1).err)

    mine = ("--user", "mia", "--agent", "teller")
    ran = shell("memory", "forget", unit, *mine, code=2)
    assert "4471" in ran.out
    assert "--yes" in ran.err
    assert shell("memory", "show", unit, *here)
    gone = shell("memory", "forget", unit, *mine, "--yes", "--json").json["forgotten"]
    assert [u["id"] for u in gone] == [unit]
    assert shell("memory", "show", unit, *here, code=1).json["error"]["errno"] == "ENOENT"


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 1)])
def test_a_terminal_is_asked_before_anything_is_forgotten(
    shell: Shell, answer: str, code: int, left: int
) -> None:
    user = f"pia-{answer}"
    tell(shell, user, "Pia's bell has a crack")
    (unit,) = shell("memory", "ls", "--user", user, "--json").json
    screen, terminal = os.openpty()
    os.write(screen, f"{answer}\n".encode())
    ran = shell(
        "memory", "forget", unit["id"], "--user", user, "--agent", "teller",
        code=code, stdin=terminal,
    )  # fmt: skip
    os.close(terminal)
    os.close(screen)
    assert "crack" in ran.out
    assert "[y/N]" in ran.err
    assert len(shell("memory", "ls", "--user", user, "--json").json) == left


def test_only_an_owner_forgets(shell: Shell) -> None:
    tell(shell, "ole", "Ole keeps bees")
    (unit,) = shell("memory", "ls", "--user", "ole", "--json").json
    ran = shell("memory", "forget", unit["id"], "--user", "ole", "--yes", "--json", code=1)
    assert ran.json["error"]["errno"] == "EPERM"
    assert len(shell("memory", "ls", "--user", "ole", "--json").json) == 1


def test_why_tells_what_a_call_was_shown(shell: Shell) -> None:
    ran = tell(shell, "eva", "Eva's boat is called Nimbus", ask="What is Eva's boat called?")
    agent, user, search, chat, text = ran.out.strip().split("|")
    assert text == "Eva's boat is called Nimbus"
    record = shell("why", chat, "--json").json
    assert (record["agent"], record["user"], record["rule"]) == (agent, user, "session")
    assert record["sequences"][1] == ["user", 1]
    assert record["barrier"]["state"] == "ready"
    (shown,) = record["units"]
    assert (shown["owner"], shown["scope"]) == ("teller", "user")
    assert (shown["now"], record["model"]) == ("Eva's boat is called Nimbus", "scripted")
    assert 0 < shown["tokens"] <= record["injected_tokens"] <= record["budget"]
    assert record["timings"]["total"] > 0
    for call in (search, chat):
        out = shell("why", call).out
        assert "Eva's boat is called Nimbus" in out
        assert "user up to 1" in out
    assert shell("why", "c00", "--json", code=1).json["error"]["errno"] == "ENOENT"

    (unit,) = shell("memory", "ls", "--user", "eva", "--json").json
    shell("memory", "forget", unit["id"], "--user", "eva", "--agent", "teller", "--yes")
    assert shell("why", chat, "--json").json["units"][0]["now"] == "(no longer in view)"


def test_grants_are_given_and_taken(shell: Shell) -> None:
    given = shell("grant", "clerk", "--user", "uma", "vera", "--scope", "agent", "--json").json
    assert (given["agent"], given["users"]) == ("clerk", ["uma", "vera"])
    assert "agent" in given["scopes"]
    left = shell("grant", "clerk", "--user", "uma", "--revoke", "--json").json
    assert left["users"] == ["vera"]
    assert "vera" in shell("grant", "clerk", "--user", "vera").out
    assert two_lines(shell("grant", "clerk", code=2).err)


def test_models_are_listed_with_their_state(shell: Shell) -> None:
    (model,) = shell("model", "list", "--json").json
    assert (model["name"], model["default"]) == ("scripted", True)
    assert shell("model", "add", "scripted", "--json").json["driver"] == "scripted"
    assert "scripted (default)" in shell("model", "list").out
    assert two_lines(shell("model", "add", "no-such-model", code=1).err)


def test_what_calls_cost_is_shown(shell: Shell) -> None:
    tell(shell, "uma", "a fact", ask="Which?")
    by_user = {row["name"]: row for row in shell("log", "--usage", "--by", "user", "--json").json}
    assert by_user["uma"]["calls"] >= 1
    assert by_user["uma"]["output_tokens"] > 0
    assert "uma" in shell("log", "--usage", "--by", "user").out
    assert shell("log", "--usage", "--since", "2200-01-01T00:00Z", "--json").json == []
    assert two_lines(shell("log", "--usage", "--since", "yesterday", code=1).err)
    assert two_lines(shell("log", "--since", "2200-01-01T00:00Z", code=2).err)
    top = shell("top", "--json", "--interval", "0.1").json
    assert [m["name"] for m in top["models"]] == ["scripted"]
    assert top["models"][0]["load"]["slots"] == 1
    assert any(a["output_tokens"] > 0 for a in top["agents"])
    assert top["seconds"] >= 0.1
    assert "scripted" in shell("top", "--once", "--interval", "0.1").out
    assert two_lines(shell("top", "--interval", "0", code=2).err)
    (model,) = shell("model", "ls", "--json").json
    assert (model["load"]["running"], model["load"]["waiting"]) == (0, 0)
    assert "0/1" in shell("model", "ls").out


def test_the_policy_is_shown_and_changed(shell: Shell) -> None:
    assert [q["policy"] for q in shell("schedule", "--json").json] == ["fair"]
    assert "fifo" in shell("schedule", "fifo").out
    assert [q["policy"] for q in shell("schedule", "--model", "scripted", "--json").json] == [
        "fifo"
    ]
    assert two_lines(shell("schedule", "lottery", code=1).err)
    assert shell("schedule", "fair", "--json").json[0]["slots"] == 1


def test_the_log_of_a_detached_kernel(shell: Shell) -> None:
    entries = shell("log", "--lines", "0", "--json").json
    assert "kernel up" in [entry["event"] for entry in entries]
    assert '"kernel up"' in shell("log", "-n", "0").out


# -- usage


@pytest.mark.parametrize(
    "words",
    [
        "nonsense", "ps --nonsense", "kill", "kill one", "run", "run x.py --flag", "memory ls",
        "memory search --user ana", "memory nonsense", "grant a --scope everything", "why",
        "log --lines many", "memory ls --user ana --kind secret",
    ],
)  # fmt: skip
def test_wrong_usage_is_told_in_two_lines_and_exits_with_2(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert two_lines(err), err
    assert "--help" in err


@pytest.mark.parametrize(
    "words",
    [
        "down", "ps", "kill 1", "run x.py", "why c1", "memory ls --user ana",
        "memory show u1 --user ana", "memory search q --user ana",
        "memory forget u1 --user ana --yes", "grant a --user ana", "forget-user ana --yes",
        "memory recall q --user ana", "memory round s1 0 --user ana", "memory receipt r1",
        "memory files f --user ana", "memory forget --query q --user ana --yes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("json", [False, True])
def test_without_a_kernel_the_exit_code_is_3(
    words: str, json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--state", str(tmp_path), *(["--json"] if json else [])]
    assert main([*words.split(), *flags]) == 3
    out, err = capsys.readouterr()
    assert two_lines(err), err
    assert "isovist up -d" in err
    assert ('"error"' in out) == json
    assert out or not json


GROUPS = {
    "memory", "model", "group", "context", "learn", "agent", "audit", "effects", "files", "mail",
    "quota", "timer", "tool",
}  # fmt: skip
"""Those that only hold further commands."""


@pytest.mark.parametrize("command", sorted(COMMANDS - GROUPS))
def test_every_command_explains_itself_and_takes_the_common_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--json", "--name", "--state", "--debug"):
        assert option in out
    assert f"Usage: isovist {command}" in out


def test_tracebacks_come_with_debug_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, shown in (([], False), (["--debug"], True)):
        assert main(["ps", "--state", str(tmp_path), *flags]) == 3
        assert ("Traceback" in capsys.readouterr().err) == shown


def test_a_broken_configuration_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "isovist" / "config.toml"
    file.parent.mkdir()
    file.write_text("colour = 1\n")
    assert main(["ps", "--state", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert two_lines(err), err
    assert str(file) in err
    assert "colour" in err


def test_the_client_commands_load_neither_numpy_nor_trio(quiet: Shell) -> None:
    quiet.env["PYTHONPROFILEIMPORTTIME"] = "1"
    err = quiet("ps", code=3).err
    loaded = {line.rpartition("|")[2].strip() for line in err.splitlines() if "|" in line}
    assert "isovist.syscalls.client" in loaded
    assert not loaded & {"numpy", "trio", "structlog", "isovist.kernel.kernel"}


# -- what is half done, outside the view, or empty


def test_forget_does_what_it_can_and_names_the_rest(shell: Shell) -> None:
    tell(shell, "ida", "Ida's first kite", "Ida's second kite")
    one, two = (u["id"] for u in shell("memory", "ls", "--user", "ida", "--json").json)
    mine = ("--user", "ida", "--agent", "teller", "--yes")
    ran = shell("memory", "forget", one, "nobody1", *mine, "--json", code=1).json
    assert list(ran["by_id"]) == [one]
    assert list(ran["by_id"].values()) == ran["receipts"]
    assert "ENOENT" in ran["failed"]["nobody1"]
    told = shell("memory", "forget", "nobody1", two, *mine, code=1)
    assert "forgotten: 1, not forgotten: 1" in told.out
    assert "not forgotten: nobody1" in told.err
    assert "receipt r" in told.err
    assert shell("memory", "ls", "--user", "ida", "--json").json == []


def test_an_owner_changes_units_that_it_sees_no_more(shell: Shell) -> None:
    shell("group", "add", "crew", "--users", "lea", "max")
    tell(shell, "lea", "Lea's boat leaks", "Lea's boat sails")
    mine = ("--user", "lea", "--agent", "operator")
    shell("grant", "teller", "--scope", "@crew")
    line = {
        "type": "unit", "format": 2, "id": "crew1", "version": 3, "users": ["group", "crew"],
        "agents": ["one", "operator"], "user": "lea", "agent": "operator", "text": "the mast",
        "kind": "note", "stream": "reusable", "said_at": 1, "stored_at": 1,
    }  # fmt: skip
    shell("memory", "import", stdin=json.dumps(line))
    shell("group", "rm", "crew", "--users", "lea")
    ran = shell("memory", "expire", "crew1", *mine, "--at", "2200-01-01T00:00Z", code=1)
    assert "--version" in ran.err
    at = ("--at", "2200-01-01T00:00Z", "--version", "3")
    assert shell("memory", "expire", "crew1", *mine, *at, "--json").json["version"] == 4
    shell("memory", "rescope", "crew1", "pair", *mine, "--version", "4")
    assert shell("memory", "show", "crew1", *mine, "--json").json["scope"] == "pair"
    line["id"] = "crew2"
    shell("memory", "import", stdin=json.dumps(line))
    assert shell("memory", "forget", "crew2", *mine, "--yes", "--json").json["by_id"]["crew2"]


@pytest.mark.parametrize(
    "words",
    [
        ("memory", "export", "--user", ""), ("memory", "ls", "--user", "ana", "--agent", ""),
        ("memory", "ls", "--user", ""), ("memory", "ls", "--user", "ana", "--limit", "-1"),
        ("grant", "a", "--user", ""), ("group", "add", "g", "--users", "ana", ""),
        ("backup", ""), ("restore", ""), ("forget-user", ""), ("run", "--agent", "", "x.py"),
        ("memory", "expire", "u1", "--user", "ana", "--at", ""), ("log", "-n", "-1"),
    ],
)  # fmt: skip
def test_an_empty_name_or_a_negative_count_is_no_default(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert two_lines(err := capsys.readouterr().err)
    assert "empty" in err or ">= 0" in err


def test_an_export_of_nobody_says_so(shell: Shell) -> None:
    ran = shell("memory", "export", "--user", "nobody-at-all", "--json", code=1)
    assert json.loads(ran.out)["error"]["errno"] == "ENOENT"


def test_down_finds_a_kernel_whose_lock_was_removed(quiet: Shell) -> None:
    pid = quiet("up", "-d", "--json").json["pid"]
    (quiet.state / "kernel.lock").unlink()
    assert quiet("down", "--json").json == {"stopped": pid}
