"""``distrust AGENT``: what an agent published leaves every view but its own pairs', at once and for
good, and comes back when it is trusted again; over a whole kernel, and both backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernel_helpers import client, running
from state_helpers import MAIL, OPERATOR, PLAN, Desk

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.storage.backend import Backend
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import Drop, Move, Published, Put
from isovist.syscalls.records import Unit, partition_of

LIE, TRUTH = "The moon is made of green cheese", "The moon is made of rock"


async def found(kernel: Any, agent: str, user: str) -> list[str]:
    async with client(kernel, agent, user=user) as k:
        return sorted(hit.unit.text for hit in (await k.search("moon made of", mode="bm25")).hits)


async def scores(kernel: Any, agent: str, user: str) -> list[float]:
    async with client(kernel, agent, user=user) as k:
        return [hit.score for hit in (await k.search("moon made of rock", mode="bm25")).hits]


@pytest.mark.promise("author.true")
@pytest.mark.promise("view.noninterference")
async def test_all_that_an_agent_published_is_hidden_listed_and_brought_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as kernel:
        async with client(kernel, "operator", operator=True) as k:
            for agent in ("liar", "honest"):
                await k.grant(agent, users=["ana", "bob"], scopes=["agent", "global"])
        async with client(kernel, "honest", user="ana") as k:
            await k.remember(TRUTH, scope="global", stream="reusable")
        before = await scores(kernel, "honest", "bob")
        kept: dict[str, Unit] = {}
        async with client(kernel, "liar", user="ana") as k:
            for scope in ("pair", "user", "agent", "global"):
                stored = await k.remember(f"{LIE}: {scope}", scope=scope, stream="reusable")
                kept[scope] = (await k.read(stored.id)).units[0]
        assert len(await found(kernel, "honest", "ana")) == 3
        assert len(await found(kernel, "liar", "bob")) == 3

        async with client(kernel, "operator", operator=True) as k:
            reply = await k.distrust("liar")
        assert reply.agents == ("liar",)
        assert reply.count == 3
        assert {(u.id, u.user, u.scope) for u in reply.units} == {
            (kept[s].id, "ana", s) for s in ("user", "agent", "global")
        }
        for agent, user in (("honest", "ana"), ("honest", "bob"), ("liar", "bob")):
            assert await found(kernel, agent, user) == [TRUTH]
        # Not even the statistics of words know of it.
        assert await scores(kernel, "honest", "bob") == before
        assert len(await found(kernel, "liar", "ana")) == 5, "its own pair keeps its memory"
        async with client(kernel, "liar", user="ana") as k:
            stored = await k.remember("news", scope="global", stream="reusable")
            assert (stored.scope, "distrusted" in stored.note) == ("pair", True)
            unit = (await k.read(kept["agent"].id)).units[0]
            with pytest.raises(CallerError) as caught:
                await k.rescope(unit.id, unit.version, "user")
            assert caught.value.errno == Errno.EPERM

    # It holds after a restart, and until it is taken back.
    async with running(tmp_path) as kernel:
        assert await found(kernel, "honest", "ana") == [TRUTH]
        async with client(kernel, "operator", operator=True) as k:
            assert (await k.distrust()).agents == ("liar",)
            back = await k.distrust("liar", undo=True)
            assert (back.agents, back.count) == ((), 3)
        assert len(await found(kernel, "honest", "ana")) == 3
        assert len(await found(kernel, "liar", "bob")) == 3
        async with client(kernel, "honest", user="bob") as k:
            scopes = {u.text: u.scope async for u in k.memories()}
        assert scopes == {TRUTH: "global", f"{LIE}: global": "global"}


@pytest.mark.promise("author.true")
async def test_what_its_pair_holds_already_is_hidden_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as kernel:
        async with client(kernel, "operator", operator=True) as k:
            await k.grant("liar", users=["ana"], scopes=["global"])
            await k.grant("honest", users=["ana"])
        async with client(kernel, "liar", user="ana") as k:
            await k.remember(LIE)
            await k.remember(LIE, scope="user")
            await k.remember(LIE, scope="global", stream="reusable")
        async with client(kernel, "operator", operator=True) as k:
            assert (await k.distrust("liar")).count == 2
        assert await found(kernel, "honest", "ana") == []
        async with client(kernel, "operator", operator=True) as k:
            assert (await k.distrust("liar", undo=True)).count == 2
        assert await found(kernel, "honest", "ana") == [LIE]


def memory_store(folder: Path) -> Backend:
    return MemoryStore("e", 2)


def file_store(folder: Path) -> Backend:
    return Store.open(folder / "s.db", "e", 2)


@pytest.mark.parametrize("make", [memory_store, file_store])
def test_a_store_tells_what_was_published_and_where_it_was(
    tmp_path: Path, make: Callable[[Path], Backend]
) -> None:
    store = make(tmp_path)
    wide, pair = partition_of("global", "ana", "liar"), partition_of("pair", "ana", "liar")
    put = Put(
        partition=wide, seq=1, id="u1", text="text", kind="note", agent="liar", user="ana",
        stream="reusable", said_at=1, stored_at=1,
    )  # fmt: skip
    store.apply(store.commit([put]))
    (shown,) = store.published("liar", False, 9)
    assert (shown.id, shown.partition, shown.to, shown.user) == ("u1", wide, pair, "ana")
    assert store.published("liar", False, 9, [("u1", 1)]) == ()
    assert store.published("honest", False, 9) == ()
    away = Move(
        partition=wide, seq=2, id="u1", version=1, to=pair, to_seq=1, stored_at=2, hidden="away"
    )
    store.apply(store.commit([away]))
    assert store.published("liar", False, 9) == ()
    (shown,) = store.published("liar", True, 9)
    assert (shown.partition, shown.to, shown.version) == (pair, wide, 2)
    gone = Drop(partition=pair, seq=2, id="u1", version=2, stored_at=3)
    store.apply(store.commit([gone]))
    assert store.published("liar", True, 9) == ()
    store.save_distrust("liar", True)
    store.save_distrust("spy", True)
    store.save_distrust("spy", False)
    assert store.distrusted() == ("liar",)
    store.close()


# -- in the pure kernel


def test_only_the_operator_distrusts() -> None:
    desk = Desk()
    assert desk.ask(MAIL, abi.Distrust(agent="plan")).errno == Errno.EPERM
    assert desk.ask(OPERATOR, abi.Distrust(agent="a/b")).field == "agent"
    assert desk.ask(OPERATOR, abi.Distrust(agent="plan", undo=True)).errno == Errno.ENOENT


def test_from_its_arrival_on_nothing_is_published_even_if_the_caller_leaves() -> None:
    desk = Desk()
    unit = desk.stored(PLAN, scope="global", stream="reusable", user="ana")
    desk.ask(OPERATOR, abi.Distrust(agent="plan", deadline_ms=1))
    save = desk.one(ins.SaveDistrust)
    put = desk.remember(PLAN, scope="global", stream="reusable", user="ana", text="more")
    assert put.partition.scope == "pair"
    assert desk.ask(OPERATOR, abi.Distrust(agent="plan")).errno == Errno.EAGAIN
    desk.sleep(10_000_000)
    desk.tell(ev.Saved, key=save.key)
    assert desk.one(ins.FindPublished).agent == "plan"
    shown = _published(unit)
    desk.tell(ev.PublishedFound, agent="plan", units=(shown,))
    move = desk.one(ins.Commit).op
    assert (move.id, move.to.scope, move.hidden) == (unit.id, "pair", "away")
    desk.commit(move)
    desk.tell(ev.PublishedFound, agent="plan")
    assert desk.ask(OPERATOR, abi.Distrust(agent="plan", undo=True)) is None


def test_what_cannot_be_made_durable_has_not_happened() -> None:
    desk = Desk()
    desk.ask(OPERATOR, abi.Distrust(agent="plan"))
    desk.tell(ev.WorkFailed, key=desk.one(ins.SaveDistrust).key, errno=Errno.ENOSPC, message="full")
    assert desk.reply().errno == Errno.ENOSPC
    assert desk.ask(OPERATOR, abi.Distrust()).agents == ()
    put = desk.remember(PLAN, scope="global", stream="reusable", user="ana")
    assert put.partition.scope == "global"


def test_what_is_changed_meanwhile_is_found_anew_and_what_cannot_be_moved_is_told() -> None:
    desk = Desk()
    unit = desk.stored(PLAN, scope="global", stream="reusable", user="ana")
    desk.ask(OPERATOR, abi.Distrust(agent="plan"))
    frame = desk.frame
    desk.tell(ev.Saved, key=desk.one(ins.SaveDistrust).key)
    desk.tell(ev.PublishedFound, agent="plan", units=(_published(unit),))
    desk.refuse(desk.one(ins.Commit).op, Errno.ESTALE)
    assert desk.one(ins.FindPublished).skip == ()
    desk.tell(ev.PublishedFound, agent="plan", units=(_published(unit, version=2),))
    desk.refuse(desk.one(ins.Commit).op, Errno.ENOSPC)
    assert desk.one(ins.FindPublished).skip == ((unit.id, 2),)
    desk.tell(ev.PublishedFound, agent="plan")
    reply = desk.reply(frame)
    assert (reply.units, [u.id for u in reply.kept]) == ((), [unit.id])


def test_a_start_goes_on_with_what_a_crash_has_interrupted() -> None:
    desk = Desk(distrusted=("plan",))
    desk.tell(ev.DistrustUp)
    assert desk.one(ins.FindPublished).agent == "plan"
    desk.tell(ev.PublishedFound, agent="plan")
    put = desk.remember(PLAN, scope="user", user="ana")
    assert put.partition.scope == "pair"


def _published(put: Put, version: int = 1) -> Published:
    pair = partition_of("pair", put.user, put.agent)
    return Published(id=put.id, version=version, user=put.user, partition=put.partition, to=pair)
