"""Looking back and forgetting through the whole kernel: real store, one for all principals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel import forgetting
from isovist.kernel.kernel import Kernel
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.files import write_files
from isovist.syscalls.records import Message
from isovist.syscalls.tools import render, request_of


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    with short_folder() as folder:
        async with running(Path(folder)) as running_kernel:
            yield running_kernel


async def refused(errno: Errno, call: object) -> IsovistError:
    with pytest.raises(IsovistError) as e:
        await call  # type: ignore[misc] # any awaitable
    assert e.value.errno is errno, e.value
    return e.value


async def trip(k: AsyncClient, rounds: int = 5, session: str = "trip") -> None:
    for n in range(rounds):
        await k.remember(
            f"User: what of the locker, part {n}?\nAssistant: locker answer {n}",
            kind="conversation", session=session, round=n, said_at=f"2026-01-0{n + 1}T09:00Z",
        )  # fmt: skip


async def test_a_search_leads_to_the_round_and_its_neighbours(kernel: Kernel) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        await trip(k)
        found = await k.memory_search("locker part 3", k=3)
        assert len({(r.session, r.round) for r in found.rounds}) == 3
        best = found.rounds[0]
        assert (best.round, best.date, best.owner) == (3, "2026-01-04T09:00:00Z", "")
        assert "trip" not in best.session
        read = await k.memory_read(best.session, best.round)
        assert [r.round for r in read.rounds] == [2, 3, 4]
        assert "locker answer 3" in read.rounds[1].text
        early = await k.memory_search("locker", until="2026-01-03T00:00Z")
        assert {r.round for r in early.rounds} == {0, 1}
        assert (await k.why(found.call)).syscall == "memory.search"


async def test_one_noisy_round_leaves_room_for_the_others(kernel: Kernel) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        for n in range(30):
            await k.remember(f"the locker, the locker {n}", session="noise", round=7)
        await k.remember("the locker", session="calm", round=1)
        found = await k.memory_search("the locker", k=2)
    assert sorted(r.round for r in found.rounds) == [1, 7]


@pytest.mark.promise("view.noninterference", "view.choke")
async def test_anothers_session_is_like_none_at_all(kernel: Kernel) -> None:
    async with (
        client(kernel, "one", operator=True, user="ana") as one,
        client(kernel, "two", operator=True, user="ana") as two,
        client(kernel, "one", operator=True, user="ben") as ben,
    ):
        await trip(one)
        session = (await one.memory_search("locker")).rounds[0].session
        never = "s" + "0" * 20
        for other in (two, ben):
            seen = await refused(Errno.ENOENT, other.memory_read(session, 1))
            unseen = await refused(Errno.ENOENT, other.memory_read(never, 1))
            assert (seen.message, seen.field) == (unseen.message, unseen.field)
            assert (await other.memory_search("locker")).rounds == ()
            assert (await other.session_search("locker")).rounds == ()
            assert (await other.full_context()).rounds == ()
            assert (await other.memory_files()).files == ()
            assert (await other.prefetch("which locker?")).text == ""
        # What is shared of a session can be read, and nothing else of it.
        await one.remember("shared locker", session="trip", round=9, scope="user")
        shown = (await two.memory_search("locker")).rounds
        assert [(r.session, r.round, r.owner) for r in shown] == [(session, 9, "one")]
        assert [r.round for r in (await two.memory_read(session, 8, window=10)).rounds] == [9]


async def test_sessions_come_whole_or_compact(kernel: Kernel) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        await trip(k, 3)
        await k.remember("a note on the locker")
        whole = await k.session_search("locker part 1", k=1)
        assert [r.round for r in whole.rounds] == [0, 1, 2]
        compact = await k.session_search("locker part 1", k=1, compact=True)
        assert {r.session for r in compact.rounds} == {whole.rounds[0].session}
        assert compact.rounds[0].round == 1


async def test_all_in_view_in_one_reply_and_as_files(kernel: Kernel, tmp_path: Path) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        await trip(k, 3)
        await k.remember("for all my agents", scope="user")
        everything = await k.full_context()
        assert [r.round for r in everything.rounds] == [0, 1, 2, 0]
        assert not everything.truncated
        newest = await k.full_context(limit=20)
        assert ([r.text for r in newest.rounds], newest.truncated) == (["for all my agents"], True)
        files = (await k.memory_files()).files
        paths = write_files(files, tmp_path / "memory")
        again = write_files(files, tmp_path / "memory")
    assert paths == again
    assert {path.name: path.stat().st_mode & 0o777 for path in paths} == {
        "pair.md": 0o400, "user.md": 0o400
    }  # fmt: skip
    assert "for all my agents" in (tmp_path / "memory" / "user.md").read_text()


@pytest.mark.promise("budget.tokens")
async def test_prefetch_is_what_chat_injects(kernel: Kernel) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        for n in range(6):
            await k.remember(f"Ana's locker has number {n}{n}.")
        ahead = await k.prefetch("Which locker is Ana's?")
        assert ahead.injected_tokens <= ahead.budget
        # No driver was started for it.
        assert [model.state for model in (await k.models()).models] == ["idle"]
        reply = await k.chat([Message("user", "Which locker is Ana's?")])
        assert [i.unit for i in ahead.injected] == [i.unit for i in reply.injected] != []
        assert ahead.text.startswith("[memory]")
        assert ahead.injected_tokens == reply.injected_tokens
        assert (await k.prefetch("Which locker is Ana's?", budget=5)).text == ""


async def test_a_tool_call_is_a_syscall(kernel: Kernel) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        await trip(k)
        found = await k.call(request_of("memory_search", '{"query": "locker part 2", "k": 1}'))
        text = render(found)
        assert text.startswith("1. 2026-01-03T09:00:00Z, session s")
        session = text.split("session ")[1].split(",")[0]
        read = render(await k.call(request_of("memory_read", {"session": session, "round": 2})))
    assert "locker answer 1" in read
    assert "locker answer 3" in read


# -- forgetting


@pytest.mark.promise("erase.complete")
async def test_a_receipt_is_issued_when_nothing_is_left(kernel: Kernel) -> None:
    async with client(kernel, "one", operator=True, user="ana") as k:
        stored = await k.remember("the canary sings")
        derived = await k.remember("the canary sang", supersedes=stored.id)
        gone = await k.forget(stored.id)
        assert gone.derived == (derived.id,)
        early = await k.receipt(gone.receipt)
        assert (early.issued_at, early.units) == (0, (stored.id,))
        with trio.fail_after(60):
            late = await k.receipt(gone.receipt, wait=True)
        assert late.issued_at >= late.asked_at > 0
        await refused(Errno.ENOENT, k.receipt("r" + "0" * 20))


@pytest.mark.promise("erase.complete")
async def test_forgetting_by_query_takes_own_units_alone(kernel: Kernel) -> None:
    async with (
        client(kernel, "one", operator=True, user="ana") as one,
        client(kernel, "two", operator=True, user="ana") as two,
    ):
        await trip(one, 3)
        kept = (await two.remember("locker of another agent", scope="user")).id
        unlike = (await one.remember("the cupboard is green")).id
        shown = await one.forget_matching("lockers")
        assert shown.count == 3 == len(shown.units)
        # What comes later is not taken, nor what is changed.
        late = (await one.remember("one more locker")).id
        changed, *others = (u.id for u in shown.units)
        await one.update(changed, 1, "the locker is empty")
        gone = await one.forget_matching("lockers", confirm=shown.confirm)
        assert (gone.count, gone.skipped, gone.confirm) == (2, 1, "")
        left = {u.id async for u in one.memories()}
        assert left == {kept, unlike, late, changed}
        assert set((await one.receipt(gone.receipt)).units) == set(others)
        e = await refused(Errno.ESTALE, one.forget_matching("lockers", confirm=shown.confirm))
        assert e.field == "confirm"


async def test_a_query_that_names_nothing_forgets_nothing(kernel: Kernel) -> None:
    """A question of stop words once took whatever was nearest: the whole of a small store."""
    async with client(kernel, "one", operator=True, user="ana") as one:
        await one.remember("the cupboard is green")
        for query in ("what is it?", "?!", '"the"'):
            e = await refused(Errno.EINVAL, one.forget_matching(query))
            assert (e.field, "no word" in e.message) == ("query", True)
        for query in ("the blue cupboard", "armoire", "greenish", '"green cupboard"'):
            shown = await one.forget_matching(query)
            assert (shown.count, shown.confirm) == (0, ""), query


@pytest.mark.promise("erase.complete", "identity.bound")
async def test_a_user_is_forgotten_by_the_operator(kernel: Kernel) -> None:
    async with (
        client(kernel, "admin", operator=True) as admin,
        client(kernel, "one") as one,
    ):
        await admin.grant("one", users=("ana", "ben"), scopes=("global",))
        for scope in ("pair", "user", "global"):
            await one.remember(f"ana's {scope}", scope=scope, stream="reusable", user="ana")
        await one.remember("ben's", user="ben")
        await refused(Errno.EPERM, one.forget_user("ana"))
        shown = await admin.forget_user("ana")
        assert (shown.count, shown.scopes) == (3, {"pair": 1, "user": 1, "global": 1})
        await one.remember("late", user="ana")
        await refused(Errno.ESTALE, admin.forget_user("ana", shown.confirm))
        shown = await admin.forget_user("ana")
        gone = await admin.forget_user("ana", shown.confirm)
        assert gone.count == 4
        assert [u.text async for u in one.memories(user="ben")] == ["ben's"]
        await refused(Errno.EPERM, one.search("ana", user="ana"))
        with trio.fail_after(60):
            assert (await admin.receipt(gone.receipt, wait=True)).issued_at
    assert kernel.store.owned("ana") == ()
    assert all("ana" not in users for users, _ in kernel.store.grants().values())


async def test_receipts_outlive_the_kernel() -> None:
    with short_folder() as folder:
        async with (
            running(Path(folder)) as kernel,
            client(kernel, "one", operator=True, user="ana") as k,
        ):
            receipt = (await k.forget((await k.remember("canary")).id)).receipt
        async with (
            running(Path(folder)) as kernel,
            client(kernel, "one", operator=True, user="ana") as k,
        ):
            with trio.fail_after(60):
                assert (await k.receipt(receipt, wait=True)).issued_at


# -- when the store is scrubbed


class Scrubbed:
    """Stands for the store: notes when a scrub was asked for, and fails the first ones. Before
    each that owes something it was told to flush."""

    def __init__(self, failures: int = 0) -> None:
        self.at: list[float] = []
        self.failures = failures
        self.debt: tuple[list[str], int] | None = None
        self.flushed = 0

    def owed(self) -> tuple[list[str], int] | None:
        return self.debt

    async def flush(self) -> None:
        self.flushed += 1

    async def settled(self, user: str) -> None:
        """It has no contexts."""

    async def scrub(self, now: int, owed: object) -> None:
        assert owed == self.debt
        self.at.append(trio.current_time())
        if len(self.at) <= self.failures:
            raise IsovistError("disk", errno=Errno.EIO)


def shell(scrubbed: Scrubbed, nursery: trio.Nursery, events: list[object]) -> forgetting.Forgetting:
    return forgetting.Forgetting(
        scrubbed, scrubbed, nursery,  # type: ignore[arg-type] # a scrub needs no more of a store
        caches=scrubbed, snapshots=Path("/nowhere"), scrub=scrubbed.scrub,
        dispatch=events.append, fail=lambda key, e: None, first=lambda piece: None,
        flush=lambda: None, settled=scrubbed.settled,
    )  # fmt: skip


async def test_scrubs_wait_for_quiet_but_not_for_ever(autojump_clock: trio.abc.Clock) -> None:
    scrubbed = Scrubbed()
    events: list[object] = []
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        shelf = shell(scrubbed, nursery, events)
        # What an earlier life left.
        await trio.sleep(10)
        assert [at - begin for at in scrubbed.at] == [2]
        await trio.sleep(90)
        assert len(scrubbed.at) == 1
        first = trio.current_time()
        for _ in range(40):
            shelf.note()
            await trio.sleep(1)
        await trio.sleep(60)
        assert [round(at - first) for at in scrubbed.at[1:]] == [30, 41]
        shelf.note()
        shelf.note(soon=True)
        now = trio.current_time()
        await trio.sleep(60)
        assert [at - now for at in scrubbed.at[3:]] == [0]
        nursery.cancel_scope.cancel()
    assert len(events) == 4


async def test_a_scrub_that_fails_is_tried_again(autojump_clock: trio.abc.Clock) -> None:
    scrubbed = Scrubbed(failures=3)
    events: list[object] = []
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        shell(scrubbed, nursery, events)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert [at - begin for at in scrubbed.at] == [2, 3, 5, 9]
    assert len(events) == 1
