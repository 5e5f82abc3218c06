"""Groups, scopes, exports and backups over a whole kernel and its store on disk."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from pathlib import Path

import pytest
from kernel_helpers import client, running, short_folder

from isovist.kernel.lock import Lock
from isovist.syscalls import exchange
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import Errno, IsovistError, WorldError

OPERATOR = "operator"


async def refused(errno: Errno, call: Awaitable[object]) -> IsovistError:
    with pytest.raises(IsovistError) as caught:
        await call
    assert caught.value.errno is errno, caught.value
    return caught.value


async def texts(k: AsyncClient, user: str) -> list[str]:
    return [unit.text async for unit in k.memories(user=user)]


async def lines(k: AsyncClient, name: str | None = None) -> list[str]:
    return [line async for line in k.export(name or None)][::-1]


@pytest.mark.promise("view.noninterference")
@pytest.mark.promise("private.default")
async def test_a_group_opens_to_its_members_and_closes_when_they_leave() -> None:
    with short_folder() as folder:
        async with (
            running(Path(folder)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            await boss.group_change("team", "users", add=("ana", "bob"))
            await boss.grant("mail", ("ana", "bob", "zoe"))
            refusal = await mail.remember("on call: 7", scope="@team/own", user="ana",
                                          stream="reusable")  # fmt: skip
            assert refusal.scope == "pair"
            assert "no grant" in refusal.note
            await boss.grant("mail", scopes=("@team",))
            shared = await mail.remember(
                "the door code is blue", scope="@team/own", user="ana", stream="reusable"
            )
            assert (shared.scope, shared.note) == ("@team/own", "")
            for reader, sees in (("bob", True), ("zoe", False)):
                found = await mail.search("door code", user=reader)
                assert [h.unit.id for h in found.hits] == [shared.id] * sees
            shown = await mail.view(user="bob")
            assert [(s.scope, s.units) for s in shown.seen if s.units] == [("@team/own", 1)]
            group = (await boss.group_change("team", "users", remove=("bob",))).groups[0]
            assert group.members == ("ana",)
            assert await texts(mail, "bob") == []
            await refused(Errno.ENOENT, mail.read(shared.id, user="bob"))
        # Membership, grants and what was shared outlive the kernel.
        async with (
            running(Path(folder)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            assert (await boss.groups("users")).groups[0].members == ("ana",)
            assert await texts(mail, "bob") == []
            await boss.group_change("team", "users", add=("bob",))
            assert await texts(mail, "bob") == ["the door code is blue"]


async def test_a_unit_is_widened_narrowed_and_expires_under_its_id() -> None:
    with short_folder() as folder:
        async with (
            running(Path(folder)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "one") as one,
            client(kernel, "two") as two,
        ):
            await boss.grant("one", ("ana",))
            await boss.grant("two", ("ana",))
            unit = await one.remember("the parrot is called Kiki", user="ana")
            await refused(Errno.ENOENT, two.read(unit.id, user="ana"))
            wide = await one.rescope(unit.id, 1, "user", user="ana")
            assert (wide.id, wide.version, wide.scope) == (unit.id, 2, "user")
            found = await two.search("parrot Kiki", user="ana", barrier_ms=60_000)
            assert [h.unit.id for h in found.hits] == [unit.id]
            assert found.barrier.state == "ready"
            await refused(Errno.ESTALE, one.rescope(unit.id, 1, "pair", user="ana"))
            await refused(Errno.EPERM, one.rescope(unit.id, 2, "global", user="ana"))
            await refused(Errno.EPERM, two.rescope(unit.id, 2, "pair", user="ana"))
            await one.rescope(unit.id, 2, "pair", user="ana")
            await refused(Errno.ENOENT, two.read(unit.id, user="ana"))
            later = await one.expire(unit.id, 3, "2200-01-01T00:00Z", user="ana")
            assert (await one.read(unit.id, user="ana")).units[0].expires_at
            never = await one.expire(unit.id, later.version, None, user="ana")
            assert (await one.read(unit.id, user="ana")).units[0].expires_at is None
            await one.expire(unit.id, never.version, "1999-01-01T00:00Z", user="ana")
            await refused(Errno.ENOENT, one.read(unit.id, user="ana"))
            assert (await one.search("parrot Kiki", user="ana")).hits == ()


async def test_an_export_comes_back_without_loss() -> None:
    with short_folder() as first, short_folder() as second:
        async with (
            running(Path(first)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            await boss.group_change("team", "users", add=("ana",))
            await boss.grant("mail", ("ana", "bob"), ("@team", "global"))
            old = await mail.remember("Ana's desk is 4", user="ana", session="s", round=1)
            await mail.remember("Ana's desk is 5", user="ana", supersedes=old.id, meta={"a": "b"})
            changed = await mail.remember("a draft", user="bob", kind="lesson")
            await mail.update(changed.id, 1, "a lesson\nof two lines", user="bob")
            await mail.remember("for the team", user="ana", scope="@team/all", stream="reusable")
            await mail.remember(
                "for all", user="bob", scope="global", stream="reusable",
                expires_at="2200-01-01T00:00Z", said_at="1999-01-01T00:00Z",
            )  # fmt: skip
            exported = await lines(boss)
            assert [json.loads(line)["type"] for line in exported] == [
                "group", "grant", *["unit"] * 5
            ]  # fmt: skip
            of_ana = [exchange.read(line) for line in await lines(boss, "ana")]
            assert [one.user for one in of_ana if isinstance(one, exchange.Line)] == ["ana"] * 3
            again = await boss.import_(exported)
            assert (again.stored, again.known, again.failed) == (0, 7, ())
            before = [await texts(mail, user) for user in ("ana", "bob")]
            found = [await hits(mail, user) for user in ("ana", "bob")]
            await refused(Errno.EPERM, lines(mail))
            await refused(Errno.EPERM, mail.import_(exported))
        async with (
            running(Path(second)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            taken = await boss.import_(exported)
            assert (taken.stored, taken.known, taken.failed) == (7, 0, ())
            assert await lines(boss) == exported
            assert [await texts(mail, user) for user in ("ana", "bob")] == before
            assert [await hits(mail, user) for user in ("ana", "bob")] == found
            assert found[0][0][0] == "Ana's desk is 5"
        # All of it is durable.
        async with (
            running(Path(second)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            assert await lines(boss) == exported


async def hits(k: AsyncClient, user: str) -> list[tuple[str, float]]:
    found = await k.search("desk draft", user=user, barrier_ms=60_000)
    return [(h.unit.text, h.score) for h in found.hits]


@pytest.mark.promise("erase.complete")
async def test_the_records_of_a_forgotten_user_name_nothing_of_it() -> None:
    with short_folder() as folder:
        async with (
            running(Path(folder)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            await boss.grant("mail", ("ana", "bob"), ("global",))
            await boss.remember("a private desk", user="ana")
            await mail.remember("Ana's desk is 4", user="ana", scope="global", stream="reusable")
            await mail.remember("Bob's desk is 5", user="bob")
            hers = await mail.search("desk", user="ana", barrier_ms=60_000)
            his = await mail.search("desk", user="bob", barrier_ms=60_000)
            assert len(his.hits) == 2
            word = await boss.forget_user("ana")
            await boss.forget_user("ana", word.confirm)
            left = await boss.why(hers.call)
            assert (left.user, left.units, left.query_hash) == ("", (), "")
            assert left.forgotten
            other = await boss.why(his.call)
            assert (other.user, other.forgotten) == ("bob", False)
            nameless = [shown for shown in other.units if not shown.unit]
            assert [(shown.hash, shown.owner) for shown in nameless] == [("", "mail")]
            assert len(other.units) == 2


async def test_a_backup_of_a_running_store_is_a_store() -> None:
    with short_folder() as first, short_folder() as second:
        async with (
            running(Path(first)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            await boss.remember("kept", user="ana")
            target = str(Path(second) / "isovist.db")
            done = await boss.backup(target)
            assert done.bytes == Path(target).stat().st_size
            await boss.remember("too late", user="ana")
            await refused(Errno.EEXIST, boss.backup(target))
            await refused(Errno.ENOENT, boss.backup("/nowhere/at/all.db"))
        async with (
            running(Path(second)) as kernel,
            client(kernel, OPERATOR, operator=True) as boss,
        ):
            assert await texts(boss, "ana") == ["kept"]


async def test_a_kernel_holds_its_database_by_whatever_path() -> None:
    with short_folder() as first, short_folder() as second:
        async with running(Path(first)):
            alias = Path(second) / "isovist.db"
            alias.symlink_to(Path(first) / "isovist.db")
            with (
                pytest.raises(WorldError, match="by another path"),
                Lock(Path(second) / "kernel.lock", alias),
            ):
                pass
