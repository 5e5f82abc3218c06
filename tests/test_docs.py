"""What README.md and docs/tools.md show is what happens: programs are run, and so are commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import SECONDS, Shell
from kernel_helpers import short_folder

from isovist.kernel.manifest import load

ROOT = Path(__file__).parent.parent
README, TOOLS = ROOT / "README.md", ROOT / "docs" / "tools.md"
LEARNING = ROOT / "docs" / "learning.md"
FILES = ROOT / "docs" / "files.md"
AGENTS = ROOT / "docs" / "agents.md"
MAIL = ROOT / "docs" / "mail.md"
SHOWN_ELSEWHERE = {
    "desk_tools.py",
    "files_agent.py",
    "learning_agent.py",
    "note_to_self.py",
    "pay_once.py",
    "remind.py",
}
"""Examples that take other words than a question, and are run by a test of their page."""


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def run_as_shown(commands: str) -> str:
    """What a page's commands say, where none of them fails."""
    with short_folder() as folder:
        shell = Shell(Path(folder))
        tool = shell.folder / "bin" / "isovist"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m isovist.kernel "$@"\n')
        tool.chmod(0o755)
        env = {**shell.env, "PATH": f"{tool.parent}:{shell.env['PATH']}"}
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert ran.returncode == 0, ran
    return ran.stdout


def test_the_first_agent_is_the_example_and_short() -> None:
    (program,) = blocks("python")
    where, _, text = program.partition("\n")
    file = ROOT / where.removeprefix("# ")
    assert text == file.read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 20


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", blocks("sh")[0], re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command


def test_the_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "PROMISES.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists() or "://" in target, f"{page.name}: {target}"


def test_the_commands_of_the_first_agent_work_as_shown() -> None:
    said = run_as_shown(blocks("sh")[1])
    assert "My locker is number 4417." in said
    assert "first_agent" in said


def test_the_page_on_tools_works_as_shown() -> None:
    example, snippet, desk, loop = blocks("python", TOOLS)
    for shown in (example, desk):
        where, _, text = shown.partition("\n")
        assert text == (ROOT / where.removeprefix("# ")).read_text()
    commands, mounted = blocks("sh", TOOLS)
    assert "4417" in run_as_shown(commands)
    with short_folder() as folder:
        program = Path(folder) / "loop.py"
        program.write_text(loop)
        said = run_as_shown(mounted.replace("loop.py", str(program)))
    assert said.count("13.2\n") == 2
    assert "['desk.convert']\n15.0 False\n[(1, 'desk.convert')] " in said
    with short_folder() as folder:
        shell = Shell(Path(folder))
        program = Path(folder) / "snippet.py"
        program.write_text(snippet)
        shell("up", "-d", "--json")
        try:
            call, city, *tokens = shell("run", str(program), "--user", "ana").out.splitlines()
        finally:
            shell("down")
    assert re.fullmatch(r"[0-9a-z]{9} weather Is it raining in Rome\?", call)
    assert "Rome" in city
    assert len(tokens) == 1


def test_the_page_on_learning_works_as_shown() -> None:
    (example,) = blocks("python", LEARNING)
    where, _, text = example.partition("\n")
    assert text == (ROOT / where.removeprefix("# ")).read_text()
    (commands,) = blocks("sh", LEARNING)
    said = run_as_shown(commands)
    before, _, after = said.partition("# Learned memory: ")
    assert "nothing is known yet" in before
    assert "decimal comma" in after
    assert "2026-11-30" in after


def test_the_page_on_files_works_as_shown() -> None:
    (example,) = blocks("python", FILES)
    where, _, text = example.partition("\n")
    assert text == (ROOT / where.removeprefix("# ")).read_text()
    (commands,) = blocks("sh", FILES)
    said = run_as_shown(commands)
    assert "[('notes/plan.md', 2)]" in said
    assert "The locker is number 4417.\n3 rollback it it was right\n2 write it" in said
    assert "rollback of 2" in said
    assert "deleted: 4 versions" in said


def test_the_page_on_agents_works_as_shown(tmp_path: Path) -> None:
    (manifest,) = blocks("toml", AGENTS)
    (tmp_path / "manifest.toml").write_text(manifest)
    asked = load(tmp_path / "manifest.toml").manifest
    assert (asked.name, asked.children, asked.restart.policy) == ("writer", 2, "on-failure")
    runs, distrusts = blocks("sh", AGENTS)
    said = run_as_shown(runs)
    assert "acts for    ana\n" in said
    assert "acts for    ana (granted)" in said
    assert "('ana',)" in said
    assert "writer is approved no more" in said
    assert "distrusted: gossip" in run_as_shown(distrusts)


def test_the_page_on_mail_works_as_shown() -> None:
    for example in blocks("python", MAIL):
        where, _, text = example.partition("\n")
        assert text == (ROOT / where.removeprefix("# ")).read_text()
    said = run_as_shown("".join(blocks("sh", MAIL)))
    assert "paid\nalready done: receipt 7\n" in said
    assert "pay the baker" in said
    assert "one message\ncook: the oven is on\n" in said
    assert "timer: look at the oven\n" in said
    assert "30 9 * * MON Europe/Berlin\n" in said


@pytest.mark.parametrize("page", ["audit.md", "quotas.md"])
def test_the_commands_of_a_page_work_as_shown(page: str, tmp_path: Path) -> None:
    (commands,) = blocks("sh", ROOT / "docs" / page)
    said = run_as_shown(f"export TMPDIR={tmp_path}\n{commands}")
    assert {"audit.md": "none was changed", "quotas.md": "units 0 of 5,000"}[page] in said


@pytest.mark.parametrize(
    "example",
    sorted({p.name for p in (ROOT / "examples").glob("*.py")} - SHOWN_ELSEWHERE),
)
def test_every_example_runs(example: str) -> None:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "-d", "--json")
        try:
            as_it = ("--user", "ana", "--agent", "it")
            first, path = (
                str(ROOT / "examples" / "first_agent.py"),
                str(ROOT / "examples" / example),
            )
            shell("run", first, *as_it, stdin="My locker is number 4417.\n")
            asked = "Which locker is mine?"
            ran = shell("run", path, *as_it, "--", asked, stdin=asked)
            assert "4417" in ran.out
            assert {p["status"] for p in json.loads(shell("ps", "-a", "--json").out)} == {0}
        finally:
            shell("down")
