"""Quotas over a whole kernel: kept through restarts, measured on real processes, set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Shell, two_lines
from kernel_helpers import client, running, short_folder

from isovist.kernel import usage
from isovist.kernel.confinement.workspace import folder
from isovist.scheduler.quota import Limit
from isovist.syscalls.errors import Errno, IsovistError

OPERATOR = "operator"


async def test_what_is_stored_and_what_was_set_outlive_the_kernel() -> None:
    with short_folder() as place:
        state = Path(place)
        async with (
            running(state) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            await boss.grant("mail", ("ana", "bob"))
            kept = [await mail.remember(f"fact {n}", user="ana") for n in range(3)]
            await mail.remember("fact 0", user="ana")  # the same once more: nothing new
            await mail.update(kept[0].id, 1, "a longer fact", user="ana")
            await mail.forget(kept[1].id, user="ana")
            await mail.remember("gone soon", user="bob", expires_at="1999-01-01T00:00Z")
            await boss.quota_set("user", "ana", {"units": 3})
        async with (
            running(state) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            (ana,) = await boss.quotas("user", "ana")
            assert (ana.used["units"], ana.used["bytes"]) == (2, len("a longer fact" + "fact 2"))
            assert (ana.limits, ana.chosen) == ({"units": 3}, ("units",))
            await mail.remember("the third", user="ana")
            with pytest.raises(IsovistError) as over:
                await mail.remember("the fourth", user="ana")
            assert over.value.errno is Errno.EDQUOT
            assert "user ana has 3 units stored" in over.value.message
            # What the sweep removed is counted no more, whenever it comes.
            while any(q.used["units"] for q in await boss.quotas("user") if q.name == "bob"):
                await mail.ping()
            word = (await boss.forget_user("ana")).confirm
            await boss.forget_user("ana", word)
            assert not [q for q in await boss.quotas() if q.name == "ana"]
            assert kernel.store.limits() == {}
            assert kernel.store.verify() == []


BURN = "while True:\n    pass\n"
REST = "import time\nwhile True:\n    time.sleep(3600)\n"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "PAUSE_S", 0.2)


async def test_a_process_that_burns_the_processor_is_ended_with_a_reason(often: None) -> None:
    with short_folder() as place:
        state = Path(place)
        program = state / "burner.py"
        program.write_text(BURN)
        limits = {"agent": {"burner": Limit(seconds=1)}}
        async with (
            running(state, quotas=limits) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            child = await boss.spawn(str(program))
            ended = (await boss.wait(child.pid)).process
            assert "over 1 seconds of processor a day, agent burner's limit" in ended.reason
            with pytest.raises(IsovistError) as later:
                await boss.spawn(str(program))
            assert later.value.errno is Errno.EAGAIN
            tomorrow = 86_400_000_000_000
            assert later.value.retry_at % tomorrow == 0
            (burner,) = await boss.quotas("agent", "burner")
            assert burner.used["seconds"] >= 1


async def test_a_workspace_far_over_its_limit_ends_its_agent(often: None) -> None:
    with short_folder() as place:
        state = Path(place)
        program = state / "hoarder.py"
        program.write_text(REST)
        limits = {"agent": {"hoarder": Limit(workspace=1 << 20)}}
        async with (
            running(state, quotas=limits) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            child = await boss.spawn(str(program))
            workspace = folder(state / "workspaces", "hoarder")
            workspace.mkdir(parents=True, exist_ok=True)
            (workspace / "much").write_bytes(b"x" * (3 << 20))
            ended = (await boss.wait(child.pid)).process
            assert "its workspace holds" in ended.reason
            assert "over the limit of 1,048,576" in ended.reason


async def test_files_over_the_limit_of_a_workspace_are_refused(often: None) -> None:
    with short_folder() as place:
        limits = {"agent": {"mail": Limit(workspace=100_000)}}
        async with running(Path(place), quotas=limits) as kernel, client(kernel, "mail") as mail:
            await mail.file_write("a", b"x" * 60_000)
            while not (await mail.quotas("agent"))[0].used["workspace"]:
                await mail.ping()  # until it was measured
            with pytest.raises(IsovistError) as over:
                await mail.file_write("b", b"y" * 60_000)
            assert over.value.errno is Errno.EDQUOT
            assert "agent mail has 60,000 bytes in its workspace" in over.value.message
            assert over.value.field == "body"


def test_a_workspace_is_measured_by_blocks_and_not_through_links(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(10):
        (tmp_path / "in" / str(n)).touch()
    (tmp_path / "link").symlink_to("/usr")
    assert usage.size(tmp_path, 1 << 30) == 12 * usage.BLOCK
    assert usage.size(tmp_path, 3 * usage.BLOCK) == 4 * usage.BLOCK, "no longer than it takes"
    assert usage.size(tmp_path / "absent", 1) == 0


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as place:
        shell = Shell(Path(place))
        shell("up", "-d")
        yield shell
        shell("down")


def test_limits_are_shown_and_set_from_the_command_line(shell: Shell) -> None:
    assert "nobody has a limit" in shell("quota", "ls").out
    ran = shell("quota", "set", "agent", "mail", "syscalls=100", "units=5000", "--json").json
    assert ran["limits"] == {"syscalls": 100, "units": 5000}
    assert "5,000" in shell("quota", "show", "agent", "mail").out
    assert "units 0 of 5,000" in shell("quota", "ls", "agent").out
    assert shell("quota", "set", "agent", "mail", "--reset", "--json").json["limits"] == {}
    assert two_lines(shell("quota", "set", "agent", "mail", "units", code=2).err)
    assert two_lines(shell("quota", "set", "agent", "mail", "unit=1", code=1).err)
    assert two_lines(shell("quota", "show", "agent", "nobody", code=1).err)
    assert [line["kind"] for line in shell("audit", "ls", "--json").json] == ["quota", "quota"]
