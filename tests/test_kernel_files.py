"""Files through a whole kernel: versions, rights, search, and what others see of it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel import contents
from isovist.kernel.confinement.workspace import prepare as workspace
from isovist.kernel.kernel import Kernel
from isovist.kernel.state.files import AT_ONCE
from isovist.storage.backup import backup
from isovist.syscalls import messages as m
from isovist.syscalls.abi import files as f
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError

LISTS = ("files", "hits", "rounds")
"""The fields in which a reply shows what it found."""
REUSABLE: Any = {"stream": "reusable"}


async def granted(kernel: Kernel) -> None:
    async with client(kernel, "operator", operator=True) as k:
        for agent in ("mail", "plan"):
            await k.grant(agent, users=["ana", "bob"], scopes=["user", "agent", "global"])


async def refused(call: Awaitable[Any], *errnos: Errno) -> IsovistError:
    with pytest.raises(IsovistError) as caught:
        await call
    assert caught.value.errno in errnos, caught.value
    return caught.value


def bytes_in(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())


async def paths(k: AsyncClient, query: str) -> list[tuple[str, str, int]]:
    hits = await k.file_search(query, mode="bm25")
    assert hits.barrier.state == "ready"
    return [(hit.path, hit.scope, hit.version) for hit in hits.files]


@pytest.mark.promise("barrier.order")
async def test_versions_are_written_read_found_and_rolled_back() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                one = await k.file_write("notes/plan.md", "the locker is 4417", reason="first")
                two = await k.file_write("notes/plan.md", "the locker is 5000", expect=1)
                assert (one.version, two.version, two.versions, two.size) == (1, 2, 2, 18)
                assert await paths(k, "5000") == [("notes/plan.md", "pair", 2)]
                assert await paths(k, "4417") == []
                back = await k.file_rollback("notes/plan.md", 1, expect=2, reason="it was right")
                # Bytes and search are those of the first version again.
                assert (back.version, back.hash) == (3, one.hash)
                assert (await k.file_read("notes/plan.md")).body == b"the locker is 4417"
                assert await paths(k, "4417") == [("notes/plan.md", "pair", 3)]
                assert await paths(k, "5000") == []
                log = await k.file_log("notes/plan.md")
                assert [(v.version, v.action, v.source, v.reason) for v in log.versions] == [
                    (3, "rollback", 1, "it was right"),
                    (2, "write", 0, ""),
                    (1, "write", 0, "first"),
                ]
                assert {(v.agent, v.user) for v in log.versions} == {("mail", "ana")}
                part = await k.file_read("notes/plan.md", version=2, offset=14, limit=3)
                assert (part.body, part.size, part.version) == (b"500", 18, 2)
                await refused(k.file_write("notes/plan.md", "x", expect=2), Errno.ESTALE)
                await refused(k.file_write("notes/plan.md", "x", expect=0), Errno.EEXIST)
                await refused(k.file_write("new", "x", expect=1), Errno.ENOENT)
                await refused(k.file_read("notes/plan.md", version=9), Errno.ENOENT)
                await refused(k.file_rollback("notes/plan.md", 9), Errno.ENOENT)


async def test_a_name_is_found_also_of_what_is_no_text_and_by_meaning() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                stored = await k.file_write("photos/harbour.png", b"\x89PNG\0\xff")
                assert stored.indexed == 0
                assert await paths(k, "harbour") == [("photos/harbour.png", "pair", 1)]
                hits = await k.file_search("harbour", mode="hybrid")
                assert hits.files[0].path == "photos/harbour.png"
                moved = await k.file_move("photos/harbour.png", to_path="photos/quay.png")
                assert (moved.path, moved.version) == ("photos/quay.png", 1)
                assert await paths(k, "harbour") == []
                assert await paths(k, "quay") == [("photos/quay.png", "pair", 1)]
                # A long text has several units, of which the file is one hit.
                lines = b"".join(b"line %d of the long story\n" % n for n in range(9000))
                root = workspace(kernel.config.workspaces, "mail")
                (root / "story.txt").write_bytes(lines)
                put = await k.file_put("story.txt")
                assert (put.size, put.indexed) == (len(lines), len(lines))
                units = [u async for u in k.memories(kinds=("file",))]
                assert len([u for u in units if u.meta["path"] == "story.txt"]) >= 4
                assert await paths(k, "8999 story") == [("story.txt", "pair", 1)]
                assert kernel.store.verify() == []


async def test_who_may_write_share_and_delete() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with (
                client(kernel, "mail", user="ana") as mail,
                client(kernel, "plan", user="ana") as plan,
                client(kernel, "plan", user="bob") as bob,
                client(kernel, "lone") as lone,
            ):
                await mail.file_write("a", "for ana's agents", scope="user")
                assert (await plan.file_read("a", scope="user")).body == b"for ana's agents"
                await refused(bob.file_read("a", scope="user"), Errno.ENOENT)
                # Its owner alone, until it is opened; then for the same user.
                await refused(plan.file_write("a", "mine now", scope="user"), Errno.EPERM)
                await refused(plan.file_rollback("a", 1, scope="user"), Errno.EPERM)
                await refused(plan.file_move("a", scope="user", to_path="b"), Errno.EPERM)
                await refused(plan.file_delete("a", scope="user"), Errno.EPERM)
                await mail.file_move("a", scope="user", writable=True)
                wrote = await plan.file_write("a", "by plan", scope="user", writable=False)
                assert wrote.version == 2
                log = await mail.file_log("a", scope="user")
                assert [v.agent for v in log.versions] == ["plan", "mail"]
                assert (log.file.writable, log.file.agent) == (True, "mail")
                await refused(plan.file_delete("a", scope="user"), Errno.EPERM)
                # The protected stream stays, also in an older version.
                await refused(mail.file_share("a", "global", "user"), Errno.EPERM)
                await mail.file_write("news", "for all", scope="global", **REUSABLE)
                found = await bob.file_read("news", scope="global")
                assert (found.body, found.file.user, found.file.agent) == (b"for all", "", "mail")
                await refused(bob.file_write("news", "x", scope="global", **REUSABLE), Errno.EPERM)
                await mail.file_write("draft", "a", **REUSABLE)
                await mail.file_write("draft", "b")
                await refused(mail.file_share("draft", "global"), Errno.EPERM)
                # To widen takes a grant, to narrow none.
                await lone.file_write("mine", "x", **REUSABLE)
                failure = await refused(lone.file_share("mine", "agent"), Errno.EPERM)
                assert "no grant" in failure.message
                back = await mail.file_share("news", "pair", "global")
                assert back.scope == "pair"
                await refused(bob.file_read("news", scope="global"), Errno.ENOENT)


@pytest.mark.promise("private.default")
async def test_a_scope_that_is_not_granted_is_private() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "lone") as k, client(kernel, "other") as other:
                for at, scope in enumerate(("global", "agent", "@team/own", "no such", None)):
                    stored = await k.file_write(f"f{at}", "x", scope=scope, **REUSABLE)
                    assert stored.scope == "pair", scope
                    assert bool(stored.note) == (scope is not None)
                assert (await other.file_list()).files == ()
                # A scope that is granted, and a stream that may not go there.
                async with client(kernel, "mail", user="ana") as mail:
                    stored = await mail.file_write("f", "x", scope="global")
                    assert (stored.scope, "protected" in stored.note) == ("pair", True)


@pytest.mark.promise("view.noninterference")
@pytest.mark.promise("view.choke")
async def test_another_view_shows_nothing_and_says_the_same_of_nothing() -> None:
    """One store with decoys of the same names and words: every door answers a stranger as if there
    were none."""
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with (
                client(kernel, "mail", user="ana") as ana,
                client(kernel, "mail", user="bob") as bob,
                client(kernel, "lone") as lone,
            ):
                doors: list[Callable[[AsyncClient], Awaitable[Any]]] = [
                    *(lambda k, s=s: k.file_read("secret.md", scope=s)
                      for s in ("pair", "user", "agent", "global", "@team/all")),
                    lambda k: k.file_read("secret.md", version=1),
                    lambda k: k.file_log("secret.md"),
                    lambda k: k.file_log("secret.md", scope="user"),
                    lambda k: k.file_rollback("secret.md", 1),
                    lambda k: k.file_move("secret.md", to_path="stolen.md"),
                    lambda k: k.file_share("secret.md", "user"),
                    lambda k: k.file_delete("secret.md"),
                    lambda k: k.file_delete("secret.md", scope="user"),
                    lambda k: k.file_fetch("secret.md", target="out.md"),
                    lambda k: k.file_list(),
                    lambda k: k.file_list(prefix="secret.md"),
                    lambda k: k.file_search("parrot secret"),
                    lambda k: k.search("parrot secret", kinds=("file",)),
                    lambda k: k.full_context(),
                    lambda k: k.memory_search("parrot"),
                ]  # fmt: skip

                async def answers() -> list[Any]:
                    told = []
                    for k in (bob, lone):
                        for door in doors:
                            try:
                                said = await door(k)
                                shown = [
                                    getattr(said, name, ()) for name in ("files", "hits", "rounds")
                                ]
                                told.append(tuple(map(tuple, shown)))
                            except IsovistError as e:
                                told.append((e.errno, e.message, e.field))
                    return told

                before = await answers()
                for scope in ("pair", "user"):
                    for n in range(3):
                        await ana.file_write("secret.md", f"the parrot {n}", scope=scope)
                assert await answers() == before
                assert (await ana.file_read("secret.md")).body == b"the parrot 2"
                # A new file of the same name is as the first one ever.
                stored = await bob.file_write("secret.md", "of bob", expect=0)
                assert (stored.version, stored.versions) == (1, 1)
                assert not list(kernel.config.workspaces.glob("*/out.md"))


@pytest.mark.promise("view.choke")
async def test_a_deny_all_view_opens_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that reads or changes a file, out of the ABI: with a view of nothing it finds
    nothing, also of what is the caller's own."""
    from isovist.kernel.state import groups, views

    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                await k.file_write("a", "the parrot")
                real = groups.Groups.view
                monkeypatch.setattr(
                    groups.Groups,
                    "view",
                    lambda self, reader: views.part_of(real(self, reader), ()),
                )
                # A write names its own space; all else must find the file first.
                values: dict[str, Any] = {
                    "path": "a", "query": "parrot", "version": 1, "to_path": "b",
                }  # fmt: skip
                told: dict[str, Any] = {}
                for kind, name in f.NAMES.items():
                    if kind in (f.FileWrite, f.FilePut):
                        continue
                    names = kind.__struct_fields__
                    request = kind(**{n: v for n, v in values.items() if n in names})
                    try:
                        reply: Any = await k.call(request)  # type: ignore[arg-type] # one of them
                        told[name] = reply.files
                    except CallerError as e:
                        told[name] = e.errno
                found = {name for name, said in told.items() if said not in ((), Errno.ENOENT)}
                assert found == set()
                monkeypatch.undo()
                assert (await k.file_read("a")).version == 1


async def test_memory_syscalls_leave_a_files_units_alone() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                await k.file_write("a", "the parrot sleeps")
                (unit,) = [u async for u in k.memories(kinds=("file",))]
                for change in (
                    k.update(unit.id, unit.version, "another"),
                    k.forget(unit.id),
                    k.rescope(unit.id, unit.version, "user"),
                    k.expire(unit.id, unit.version, "2027-01-01T00:00Z"),
                    k.remember("forged", kind="file"),
                ):
                    await refused(change, Errno.EINVAL)
                assert (await k.forget_matching("parrot")).count == 0
            async with client(kernel, "operator", operator=True) as k:
                assert not [line async for line in k.export() if "parrot" in line]
                line = (
                    '{"format": 1, "id": "u1", "version": 1, "text": "x", "kind": "file",'
                    ' "scope": "pair", "agent": "mail", "user": "ana", "stream": "protected",'
                    ' "said_at": 1, "stored_at": 1, "meta": {"file": "f1"}}'
                )
                assert (await k.call(m.Import(lines=(line,)))).stored == 0  # type: ignore[union-attr] # an Imported


async def test_a_key_is_done_once_also_after_a_restart() -> None:
    with short_folder() as folder:
        for life in range(2):
            async with running(Path(folder)) as kernel:
                await granted(kernel)
                async with client(kernel, "mail", user="ana") as k:
                    for _ in range(2):
                        stored = await k.file_write("a", b"x" * 100_000, key="once")
                        assert stored.version == 1
                    assert stored.repeated
                    other = k.file_write("a", "other", key="once")
                    await refused(other, Errno.EEXIST)
                    if not life:
                        await k.file_write("a", "two")
                    assert (await k.file_log("a")).file.version == 2
                # Of what was copied in vain nothing stays.
                with trio.fail_after(5):
                    while len(os.listdir(kernel.config.files)) > 1:
                        await trio.sleep(0.01)


@pytest.mark.promise("erase.complete")
async def test_a_receipt_says_that_nothing_of_a_file_is_left() -> None:
    word = b"quetzalcoatlus"
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                await k.file_write("a", b"one " + word)
                await k.file_write("a", (word + b" ") * 8000)
                assert word in bytes_in(kernel.config.files)
                deleted = await k.file_delete("a")
                assert (deleted.versions, deleted.size) == (2, 4 + len(word) + 8000 * 15)
                await refused(k.file_read("a"), Errno.ENOENT)
                assert (await k.receipt(deleted.receipt, wait=True)).issued_at
                assert word not in bytes_in(Path(folder))
                # A user goes with all files, those in shared spaces too.
                await k.file_write("b", (word + b" ") * 8000, scope="global", **REUSABLE)
                await k.file_write("c", word, scope="user")
            async with client(kernel, "operator", operator=True) as k:
                counted = await k.forget_user("ana")
                assert counted.count >= 2
                gone = await k.forget_user("ana", confirm=counted.confirm)
                assert (await k.receipt(gone.receipt, wait=True)).issued_at
            assert word not in bytes_in(Path(folder))
            assert kernel.store.file_bytes() == 0 == kernel.store.file_bytes(user="ana")
            assert kernel.store.verify() == []


@pytest.mark.promise("write.durable")
async def test_a_long_version_outlives_a_restart_and_orphans_do_not() -> None:
    data = os.urandom(contents.INLINE + 5)
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                await k.file_write("a", data)
        files = Path(folder) / "isovist.db.files"
        (kept,) = os.listdir(files)
        (files / ("0" * 32)).write_bytes(b"an orphan")
        async with running(Path(folder)) as kernel:
            assert os.listdir(files) == [kept]
            async with client(kernel, "mail", user="ana") as k:
                assert (await k.file_read("a")).body == data
                (files / kept).write_bytes(bytes(len(data)))
                failure = await refused(k.file_fetch("a"), Errno.EIO)
                assert "damaged" in failure.message
                (files / kept).unlink()
                assert isinstance(await refused(k.file_read("a"), Errno.EIO), WorldError)


async def test_a_list_has_pages_and_folders() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                for path in ("b/2", "a", "b/1", "b-c", "b/3/x"):
                    await k.file_write(path, path)
                await k.file_write("a", "shared", scope="user")
                seen, after = [], ""
                while True:
                    page = await k.file_list(limit=2, after=after)
                    seen += [(file.scope, file.path) for file in page.files]
                    after = page.next
                    if not after:
                        break
                assert seen == [
                    *(("pair", p) for p in ("a", "b-c", "b/1", "b/2", "b/3/x")), ("user", "a"),
                ]  # fmt: skip
                beneath = (await k.file_list(prefix="b")).files
                assert [file.path for file in beneath] == ["b/1", "b/2", "b/3/x"]
                assert [x.scope for x in (await k.file_list(scope="user")).files] == ["user"]
                # What is a file is no folder, and the other way round.
                await refused(k.file_write("a/b", "x"), Errno.EEXIST)
                await refused(k.file_write("b", "x"), Errno.EEXIST)
                await refused(k.file_move("a", to_path="b/1"), Errno.EEXIST)
                await refused(k.file_list(after="pair"), Errno.EINVAL)


async def test_who_asks_too_much_at_once_is_told() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                many = [
                    await k.submit(f.FileWrite(path=f"f{n}", body=b"x")) for n in range(3 * AT_ONCE)
                ]
                ends, refusals = [], set()
                for pending in many:
                    try:
                        ends.append(await pending.result())
                    except WorldError as e:
                        refusals.add(e.errno)
                assert len(ends) >= AT_ONCE
                assert refusals <= {Errno.EAGAIN}
                await refused(k.file_write("f", bytes(f.MAX_CONTENT + 1)), Errno.EMSGSIZE)


async def test_a_backup_holds_files_and_all_their_versions() -> None:
    long = os.urandom(contents.INLINE + 1)
    with short_folder() as folder:
        copy = Path(folder) / "copy.db"
        async with running(Path(folder) / "one") as kernel:
            await granted(kernel)
            async with client(kernel, "mail", user="ana") as k:
                await k.file_write("a", long)
                await k.file_write("a", "the parrot")
            async with client(kernel, "operator", operator=True) as k:
                done = await k.backup(str(copy))
                assert done.bytes > copy.stat().st_size + len(long) - 1
                await refused(k.backup(str(copy)), Errno.EEXIST)
            async with client(kernel, "mail", user="ana") as k:
                await k.file_delete("a")
        (Path(folder) / "two").mkdir()
        assert backup(copy, Path(folder) / "two" / "isovist.db") == done.bytes
        async with (
            running(Path(folder) / "two") as kernel,
            client(kernel, "mail", user="ana") as k,
        ):
            assert (await k.file_read("a", version=1)).body == long
            assert await paths(k, "parrot") == [("a", "pair", 2)]
