"""What a kernel exports, an empty one imports, and is the same kernel then: the pure kernel over a
store in memory, and one on disk, with random histories made by syscalls alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from state_helpers import MAIL, OPERATOR, PLAN, Desk
from storage_helpers import DIM, EMBEDDER

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.storage.backend import Backend
from isovist.storage.embedder import stored
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Move, SearchQuery, Vectors

CREW = 4
CHANNELS = {MAIL: "mail", PLAN: "plan", CREW: "crew"}
USERS = ("ana", "bob")
WALL = 1_700_000_000 * 10**9


class World(Desk):
    """A desk whose store is a real one, and answers at once."""

    def __init__(self, store: Backend, secret: bytes) -> None:
        self.store = store
        self.asked = 0
        super().__init__(secret=secret, boot=b"\1", wall=WALL, grants={}, models=())
        self.attach(CREW, "crew")

    def call(self, channel: int, request: m.Request) -> Any:
        """The reply."""
        self.frame += 1
        frame = self.frame
        replies: list[Any] = []
        todo = list(self.tell(ev.Arrived, channel=channel, call=frame, request=request))
        while todo:
            todo += self.do(todo.pop(0), frame, replies)
        (reply,) = replies
        return reply

    def do(self, i: ins.Instruction, frame: int, replies: list[Any]) -> list[ins.Instruction]:
        if isinstance(i, ins.Reply):
            replies += [i.message] * (i.call == frame)
        elif isinstance(i, ins.SaveGroup | ins.SaveGrant):
            return list(self.tell(ev.Saved, key=i.key))
        elif isinstance(i, ins.Commit):
            return self.write(i.op)
        elif isinstance(i, ins.Retrieve):
            query = i.query
            vector = EMBEDDER.embed(query.text) if isinstance(query, SearchQuery) else None
            found = self.store.select(i.view, query, vector)
            return list(self.tell(ev.Retrieved, key=i.key, turn=i.turn, selection=found))
        return []

    def write(self, op: Any) -> list[ins.Instruction]:
        (outcome,) = self.store.commit([op])
        self.store.apply([outcome])
        event = ev.WriteFailed if outcome.errno else ev.Committed
        told = list(self.tell(event, outcome=outcome))
        if not outcome.errno and outcome.chunks and not isinstance(op, Drop):
            to, seq = (op.to, op.to_seq) if isinstance(op, Move) else (op.partition, op.seq)
            vectors = tuple(stored(EMBEDDER.embed(chunk)) for chunk in outcome.chunks)
            made = Vectors(partition=to, seq=seq, id=outcome.id, version=outcome.version,
                           model=EMBEDDER.name, vectors=vectors)  # fmt: skip
            told += self.write(made)
        return told

    def exported(self, name: str = "") -> list[str]:
        """An export, oldest first."""
        lines: list[str] = []
        after = ""
        while True:
            page = self.call(OPERATOR, m.Export(name=name, after=after))
            assert isinstance(page, m.Exported), page
            lines += page.lines
            after = page.next
            if not after:
                return lines[::-1]

    def imported(self, lines: list[str]) -> m.Imported:
        reply = self.call(OPERATOR, m.Import(lines=tuple(lines)))
        assert isinstance(reply, m.Imported), reply
        return reply

    def searches(self) -> list[Any]:
        """What every reader finds, in every mode, without the names that are this store's own."""
        found: list[Any] = []
        for channel in CHANNELS:
            for user in USERS:
                for mode in ("bm25", "dense", "hybrid", "rrf"):
                    reply = self.call(
                        channel, m.Search(query="tea on a tuesday", user=user, mode=mode, k=50)
                    )
                    assert isinstance(reply, m.Found), reply
                    found.append([
                        (h.unit.id, h.unit.version, h.unit.text, h.unit.session, h.chunk, h.score)
                        for h in reply.hits
                    ])  # fmt: skip
                listed = self.call(channel, m.MemoryList(user=user, limit=500))
                found.append([(u.id, u.scope, u.expires_at) for u in listed.units])
                seen = self.call(channel, m.ViewOf(user=user)).seen
                found.append([(one.scope, one.why, one.units) for one in seen])
        return found


def memory(folder: Path) -> Backend:
    return MemoryStore(EMBEDDER.name, DIM)


def disk(folder: Path) -> Backend:
    store = Store.open(folder / "s.db", EMBEDDER.name, DIM)
    store.restore()
    return store


STEP = st.fixed_dictionaries({
    "what": st.sampled_from(
        ["put", "put", "put", "supersede", "update", "expire", "move", "forget", "group", "grant"]
    ),
    "text": st.lists(
        st.sampled_from(["tea", "on", "tuesday", "部署", "api-v2"]), min_size=1, max_size=3
    ).map(" ".join),
    "scope": st.sampled_from(
        ["pair", "user", "agent", "global", "@team/own", "@team/all", "own/@bots", "@team/@bots"]
    ),
    "user": st.sampled_from(USERS),
    "channel": st.sampled_from(list(CHANNELS)),
    "pick": st.integers(0, 999),
    "session": st.sampled_from(["", "s", "t"]),
    # What has expired is in no export, and counts in statistics until it is swept.
    "expires": st.sampled_from([None, "2200-01-01T00:00Z"]),
    "meta": st.sampled_from([{}, {}, {"a": "b"}]),
    "ended": st.booleans(),
})  # fmt: skip


def live(world: World, steps: list[dict[str, Any]]) -> None:
    """Whatever the kernel refuses is part of the history too."""
    for name, of, add in (("team", "users", USERS), ("bots", "agents", ("mail", "plan"))):
        world.call(OPERATOR, m.GroupChange(name=name, of=of, add=add))
    for agent in CHANNELS.values():
        world.call(OPERATOR, m.Grant(agent=agent, users=USERS, scopes=("@team", "agent", "global")))
    known: list[tuple[int, str, str]] = []
    for step in steps:
        what, channel, user = step["what"], step["channel"], step["user"]
        mine = known[step["pick"] % len(known)] if known else None
        if what == "group":
            of, names = ("users", USERS) if step["ended"] else ("agents", tuple(CHANNELS.values()))
            some = (names[step["pick"] % len(names)],)
            side: Any = {"remove" if step["pick"] % 2 else "add": some}
            name = ("team" if of == "users" else "bots") if step["pick"] % 3 else "new"
            world.call(OPERATOR, m.GroupChange(name=name, of=of, **side))
        elif what == "grant":
            world.call(
                OPERATOR,
                m.Grant(agent=CHANNELS[channel], scopes=("global",), revoke=step["ended"]),
            )
        elif what in ("put", "supersede") or mine is None:
            if what == "supersede" and mine is not None:
                channel, user, older = mine
            else:
                older = ""
            reply = world.call(
                channel,
                m.Remember(
                    text=step["text"], scope=step["scope"], user=user, stream="reusable",
                    session=step["session"], round=bool(step["session"]) * (step["pick"] % 4),
                    expires_at=step["expires"] if step["ended"] else None, meta=step["meta"],
                    supersedes=older,
                ),
            )  # fmt: skip
            if isinstance(reply, m.Stored):
                known.append((channel, user, reply.id))
        else:
            channel, user, id_ = mine
            found = world.call(channel, m.Read(id=id_, user=user))
            version = found.units[0].version if isinstance(found, m.Units) else 1
            change: dict[str, m.Request] = {
                "update": m.Update(id=id_, version=version, text=step["text"], user=user),
                "expire": m.Expire(id=id_, version=version, at=step["expires"], user=user),
                "move": m.Rescope(id=id_, version=version, scope=step["scope"], user=user),
                "forget": m.Forget(id=id_, user=user),
            }
            world.call(channel, change[what])


@settings(deadline=None, max_examples=25)
@given(st.lists(STEP, max_size=25), st.integers(0, 40))
def test_an_export_comes_back_to_the_byte(steps: list[Any], cut: int) -> None:
    comes_back(memory, steps, cut)


@settings(deadline=None, max_examples=5)
@given(st.lists(STEP, max_size=10), st.integers(0, 15))
def test_an_export_comes_back_to_a_file_too(steps: list[Any], cut: int) -> None:
    comes_back(disk, steps, cut)


def comes_back(make: Callable[[Path], Backend], steps: list[Any], cut: int) -> None:
    """Taken in by an empty kernel in two pieces, it gives the same export and the same answers."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        first = World(make(Path(one)), b"first")
        live(first, steps)
        lines, before = first.exported(), first.searches()
        of_ana = first.exported("ana")
        first.store.close()
        second = World(make(Path(two)), b"second")
        for channel in CHANNELS:
            assert second.call(channel, m.Import(lines=("{}",))).errno == Errno.EPERM
        for some in filter(None, (lines[:cut], lines[cut:])):
            done = second.imported(some)
            assert (done.stored, done.known, done.failed) == (len(some), 0, ())
        assert second.exported() == lines
        assert second.exported("ana") == of_ana
        assert second.searches() == before
        again = second.imported(lines)
        assert (again.stored, again.known, again.failed) == (0, len(lines), ())
        assert second.exported() == lines
        second.store.close()


@settings(deadline=None, max_examples=25)
@given(st.lists(STEP, max_size=20))
def test_what_a_user_takes_along_is_taken_in_by_an_empty_kernel(steps: list[Any]) -> None:
    first = World(MemoryStore(EMBEDDER.name, DIM), b"first")
    live(first, steps)
    lines = first.exported("ana")
    assert not any('"bob"' in line for line in lines)
    if lines:
        second = World(MemoryStore(EMBEDDER.name, DIM), b"second")
        done = second.imported(lines)
        assert done.failed == ()
        assert sorted(set(second.exported("ana"))) == sorted(set(lines))
