"""The chronicle of a whole kernel: what gets a line, when it is durable, and who reads it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from cli_helpers import Shell, two_lines
from kernel_helpers import client, running, short_folder
from kernel_process import KernelProcess

from isovist.storage import chronicle, schema
from isovist.storage.chronicle import Line, Verdict, read
from isovist.syscalls.errors import Errno, IsovistError, WorldError

OPERATOR = "operator"


def lines(state: Path) -> list[Line]:
    """All lines as they are on disk, each of them sound, with users under their own names."""
    found = [line for _, _, line in read(state / "chronicle.log")]
    assert None not in found
    with closing(schema.connect(state / "isovist.db", read_only=True)) as db:
        names = chronicle.names(db)
    return [
        Line(**{field: getattr(line, field) for field in Line.__struct_fields__}
             | {"users": tuple(names.get(user, user) for user in line.users)})
        for line in found if line is not None
    ]  # fmt: skip


def verdict(state: Path) -> Verdict:
    with closing(schema.connect(state / "isovist.db", read_only=True)) as db:
        heads = chronicle.heads(db)
    return chronicle.verify(read(state / "chronicle.log"), heads)


def told(line: Line) -> tuple[Any, ...]:
    return line.kind, line.actor, line.subject, line.users, line.detail


async def test_grants_widening_and_forgets_have_a_line_before_they_are_acknowledged() -> None:
    with short_folder() as folder:
        state = Path(folder)
        async with (
            running(state) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):

            def last() -> tuple[Any, ...]:
                return told(lines(state)[-1])

            async def until(holds: Callable[[], bool]) -> None:
                with trio.fail_after(30):
                    while not holds():
                        await trio.sleep(0.01)

            await boss.grant("mail", ("ana", "bob"), ("global",))
            detail: dict[str, str] = {"scopes": "global"}
            assert last() == ("grant", OPERATOR, "mail", ("ana", "bob"), detail)
            await boss.grant("mail", ("bob",), revoke=True)
            assert last() == ("revoke", OPERATOR, "mail", ("bob",), {})
            await boss.group_change("team", "users", add=("ana", "zoe"))
            assert last() == ("group.join", OPERATOR, "@team of users", ("ana", "zoe"), {})
            await boss.group_change("team", "users", remove=("zoe",))
            assert last() == ("group.leave", OPERATOR, "@team of users", ("zoe",), {})
            await boss.group_change("crew", "agents", add=("mail",))
            assert last() == ("group.join", OPERATOR, "@crew of agents", (), {"agents": "mail"})
            await boss.learn_consent("nothing", user="ana")
            assert last() == ("learn.consent", OPERATOR, "nothing", ("ana",), {"before": "share"})

            count = len(lines(state))
            own = await mail.remember("the door code is blue", user="ana", stream="reusable")
            await mail.rescope(own.id, own.version, "user", user="ana")
            assert len(lines(state)) == count, "nobody else was shown anything"
            await mail.rescope(own.id, own.version + 1, "global", user="ana")
            scopes = {"before": "user", "to": "global"}
            assert last() == ("widen", "mail", own.id, ("ana",), scopes)
            shared = await mail.remember("a red roof", user="ana", stream="reusable",
                                         scope="global")  # fmt: skip
            assert last() == ("publish", "mail", shared.id, ("ana",), {"to": "global"})
            gone = await mail.forget(shared.id, user="ana")
            assert last() == ("forget", "mail", shared.id, ("ana",), {"receipt": gone.receipt})
            shown = await mail.forget_matching("door code", user="ana")
            count = len(lines(state))
            all_gone = await mail.forget_matching("door code", user="ana", confirm=shown.confirm)
            assert len(lines(state)) == count + 1
            detail = {"receipt": all_gone.receipt, "units": "1"}
            assert last() == ("forget.matching", "mail", "memory", ("ana",), detail)
            # What changes nothing for anybody has its line a moment later.
            moved = [line async for line in boss.export()]
            await until(lambda: last()[:3] == ("export", OPERATOR, "memory"))
            await boss.import_(moved)
            await until(lambda: lines(state)[-1].kind == "import")
            await boss.backup(str(state / "copy.db"))
        assert lines(state)[-1].kind == "backup"
        assert verdict(state).faults == ()


async def test_a_forgotten_user_is_in_the_chronicle_under_no_name() -> None:
    with short_folder() as folder:
        state = Path(folder)
        async with (
            running(state) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            await boss.grant("mail", ("anastasia", "bob"))
            await boss.group_change("team", "users", add=("anastasia",))
            word = (await boss.forget_user("anastasia")).confirm
            gone = await boss.forget_user("anastasia", word)
            await boss.receipt(gone.receipt, wait=True)
            last = lines(state)[-1]
            assert told(last)[:3] == ("forget.user", OPERATOR, "user")
            assert last.users[0].startswith("user-")
            # Which lines are about one and the same user can be seen for ever, but not who it was.
            first = lines(state)[0]
            assert first.users == (last.users[0], "bob")
            for file in state.rglob("*"):
                if file.is_file():
                    assert b"anastasia" not in file.read_bytes(), file
        assert verdict(state).faults == ()


async def test_no_grant_without_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "no space left")

    with short_folder() as folder:
        state = Path(folder)
        async with (
            running(state) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            await boss.grant("mail", ("ana",))
            with monkeypatch.context() as broken:
                broken.setattr(chronicle.Chronicle, "_write", full)
                with pytest.raises(IsovistError) as refused:
                    await boss.grant("mail", ("bob",))
                assert refused.value.errno is Errno.ENOSPC
                assert kernel.store.grants() == {"mail": (("ana",), ())}
            # The line of what was asked for comes with the next one.
            await boss.grant("mail", ("zoe",))
        assert [line.users for line in lines(state)] == [("ana",), ("bob",), ("zoe",)]
        assert verdict(state).faults == ()


async def test_lines_for_which_there_is_no_room_are_counted_and_grant_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "no space left")

    with short_folder() as folder:
        state = Path(folder)
        async with (
            running(state) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            monkeypatch.setattr("isovist.kernel.chronicle.MOST", 1)
            with monkeypatch.context() as broken:
                broken.setattr(chronicle.Chronicle, "_write", full)
                for user in ("ana", "bob"):
                    with pytest.raises(IsovistError):
                        await boss.grant("mail", (user,))
            for _ in range(2):  # one of them may meet the lines that were lost
                with suppress(WorldError):
                    await boss.grant("mail", ("zoe",))
            assert kernel.store.grants() == {"mail": (("ana", "bob", "zoe"), ())}
        told_ = [(line.kind, line.users) for line in lines(state)]
        assert told_[:1] == [("grant", ("ana",))]
        assert ("lost", ()) in told_
        assert told_[-1] == ("grant", ("zoe",))
        assert verdict(state).faults == ()


async def test_a_kernel_says_in_the_chronicle_what_was_done_to_it() -> None:
    with short_folder() as folder:
        state = Path(folder)
        async with running(state) as kernel, client(kernel, OPERATOR, operator=True) as boss:
            for user in ("ana", "bob", "zoe"):
                await boss.grant("mail", (user,))
        file = state / "chronicle.log"
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:1]))
        assert len(verdict(state).faults) == 1
        async with running(state) as kernel, client(kernel, OPERATOR, operator=True) as boss:
            await boss.grant("mail", ("eve",))
        assert told(lines(state)[1])[:3] == ("recovered", "kernel", "chronicle")
        assert lines(state)[1].detail == {"missing": "2 to 3"}
        assert verdict(state).faults == ("line 2: has number 4, and 2 to 3 is missing before it",)


def test_a_kernel_killed_in_mid_write_leaves_a_sound_chain() -> None:
    """Ten lives end by kill -9 while lines are written: every one that was acknowledged is there,
    and the chain is sound."""
    rng = random.Random(6)
    with short_folder() as folder, KernelProcess(Path(folder)) as host:
        acknowledged: list[str] = []
        for life in range(10):
            with host.attach(OPERATOR) as boss:
                pending = []
                for n in range(40):
                    agent = f"agent{life}x{n}"
                    pending.append((agent, boss.submit(grant(agent))))
                for agent, reply in pending[: rng.randrange(40)]:
                    reply.result()
                    acknowledged.append(agent)
                host.kill()
            assert verdict(host.state).faults == ()
            host.start()
        assert verdict(host.state).faults == ()
        subjects = [line.subject for line in lines(host.state)]
        assert len(subjects) == len(set(subjects))
        assert set(acknowledged) <= set(subjects)


def grant(agent: str) -> Any:
    from isovist.syscalls.messages import Grant

    return Grant(agent=agent, users=("ana",))


# -- the commands


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "-d")
        shell("grant", "mail", "--user", "ana")
        shell("group", "add", "team", "--users", "ana", "bob")
        yield shell
        shell("down")


def test_the_log_is_listed_verified_and_exported(shell: Shell) -> None:
    listed = shell("audit", "ls").out
    assert "grant" in listed
    assert "@team of users" in listed
    assert "ana bob" in listed
    only = shell("audit", "ls", "--kind", "grant", "--json").json
    assert [line["kind"] for line in only] == ["grant"]
    assert shell("audit", "ls", "--since", "2100-01-01T00:00Z", "--json").json == []
    ran = shell("audit", "verify")
    assert "2 lines, none was changed" in ran.out
    exported = shell("audit", "export").out
    assert [json.loads(line)["number"] for line in exported.splitlines()] == [1, 2]
    assert "ana" not in exported
    (shell.folder / "copy.log").write_text(exported)
    head = json.loads(exported.splitlines()[0])["hash"]
    assert shell("audit", "verify", "--file", "copy.log", "--head", head).code == 0
    (shell.folder / "copy.log").write_text(exported.replace("team", "tram"))
    ran = shell("audit", "verify", "--file", "copy.log", code=1)
    assert "line 2: was changed" in ran.out
    assert two_lines(shell("audit", "verify", "--file", "none.log", code=1).err)


def test_a_store_put_back_goes_on_with_the_log_that_is_there() -> None:
    with short_folder() as folder:
        shell = Shell(Path(folder))
        shell("up", "-d")
        shell("grant", "mail", "--user", "ana")
        shell("backup", "old.db")
        shell("grant", "mail", "--user", "bob")
        shell("down")
        for file in shell.state.glob("isovist.db*"):
            if file.is_file():
                file.unlink()
        shell("restore", "old.db")
        kinds = [line.kind for line in lines(shell.state)]
        assert kinds == ["grant", "backup", "grant", "restore"]
        assert "4 lines, none was changed" in shell("audit", "verify").out
        # Where the log is not there it begins anew, and says so.
        (shell.folder / "s2").mkdir()
        shell.state = shell.folder / "s2"
        shell("restore", "old.db")
        (line,) = lines(shell.state)
        # The copy may have been made a moment before the line that tells of it.
        assert line.kind == "restore"
        assert line.detail["lines"] in ("1", "2")
        assert "1 lines, none was changed" in shell("audit", "verify").out
