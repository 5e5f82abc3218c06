"""The simulated load: who attaches, and what they ask for, sound and unsound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from isovist.kernel.state.sim_study import BAD as BAD_STUDY
from isovist.kernel.state.sim_study import Study
from isovist.kernel.state.sim_world import Chance
from isovist.scheduler.choice import POLICIES
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.exchange import Line, write_grant, write_group
from isovist.syscalls.records import ALL, Axis, Message, Partition, Tool, ToolCall

PEOPLE = ("ana", "bob", "a", "a_b", "zoë")
AGENTS: tuple[str, ...] = ("mail", "plan", "ana", "a_b", "a", "b")
"""Names that people and agents share are meant: they must never meet."""
SERVES: dict[str, str] = dict(zip(AGENTS, ("ana", "bob", "ana", "a_b", "a", "zoë"), strict=True))
"""The user whom each agent mostly names."""
BAD_NAMES = ("", "x/y", "tab\t", "n" * 129, "agent/mail", "e\u0301")
KINDS = ("note", "profile", "task_context", "lesson")
SCOPES = (
    None, "pair", "user", "agent", "global", "team", "", "own/own", "own/@bots", "@team/own",
    "@team/all", "@team/@bots", "@crew/all", "all/@bots", "all/all", "@nobody/own", "own/@nobody",
    "own", "x/all", "@/own",
)  # fmt: skip
GROUPS: dict[tuple[str, str], tuple[str, ...]] = {
    ("users", "team"): ("ana", "bob"),
    ("users", "crew"): ("a", "ana"),
    ("agents", "bots"): ("mail", "plan"),
}
"""At the start; the operator changes them as a run goes on."""
NAMES = ("trip", "ana", "work")
"""Of contexts, which all pairs have in common."""
TEXTS = tuple(f"fact {n}" for n in range(12))

Wait = Literal["both", "lexical", "none"]
WAITS: tuple[Wait, ...] = ("both", "both", "lexical", "none")


@dataclass(slots=True)
class Peer:
    """The far end of a channel: it counts its frames and may have said hello."""

    channel: int
    agent: str
    operator: bool = False
    pid: int = 0
    frame: int = 0
    greeted: bool = False


def _user(text: str = "ana") -> dict[str, Any]:
    return {"messages": (Message("user", text),)}


BAD: tuple[tuple[type[m.Call], dict[str, Any], str], ...] = (
    (m.Ping, {"payload": "x" * (64 * 1024 + 1)}, "payload"),
    (m.Ping, {"deadline_ms": 0}, "deadline_ms"),
    (m.Ping, {"deadline_ms": 3_600_001}, "deadline_ms"),
    (m.Remember, {"text": " \0"}, "text"),
    (m.Remember, {"text": "x" * (64 * 1024 + 1)}, "text"),
    (m.Remember, {"text": "x", "kind": "secret"}, "kind"),
    (m.Remember, {"text": "x", "round": -1}, "round"),
    (m.Remember, {"text": "x", "session": "a/b"}, "session"),
    (m.Remember, {"text": "x", "said_at": "2026-01-31T09:00"}, "said_at"),
    (m.Remember, {"text": "x", "expires_at": "soon"}, "expires_at"),
    (m.Remember, {"text": "x", "supersedes": "u/1"}, "supersedes"),
    (m.Remember, {"text": "x", "meta": {"Owner": "bob"}}, "meta"),
    (m.Search, {"query": ""}, "query"),
    (m.Search, {"query": "x" * 8193}, "query"),
    (m.Search, {"query": "x", "k": 0}, "k"),
    (m.Search, {"query": "x", "k": 101}, "k"),
    (m.Search, {"query": "x", "kinds": ("all",)}, "kinds"),
    (m.Search, {"query": "x", "barrier_ms": 60_001}, "barrier_ms"),
    (m.Search, {"query": "x", "since": "2026-01-02T00:00Z", "until": "2026-01-01T00:00Z"}, "since"),
    (m.Read, {"id": "u1", "barrier_ms": -1}, "barrier_ms"),
    (m.MemoryList, {"limit": 0}, "limit"),
    (m.MemoryList, {"kinds": ("x",)}, "kinds"),
    (m.MemorySearch, {"query": " "}, "query"),
    (m.MemorySearch, {"query": "x", "k": 51}, "k"),
    (m.MemorySearch, {"query": "x", "since": "2026-01-31T09:00"}, "since"),
    (m.MemoryRead, {"session": "a/b", "round": 0}, "session"),
    (m.MemoryRead, {"session": "s1", "round": -1}, "round"),
    (m.MemoryRead, {"session": "s1", "round": 0, "window": 11}, "window"),
    (m.SessionSearch, {"query": "x", "k": 21}, "k"),
    (m.FullContext, {"limit": 0}, "limit"),
    (m.MemoryFiles, {"limit": 200_001}, "limit"),
    (m.Prefetch, {"query": "x", "budget": 1 << 20}, "budget"),
    (m.Prefetch, {"query": "x", "units": 65}, "units"),
    (m.Prefetch, {"query": "x", "model": "nobody"}, "model"),
    (m.ForgetMatching, {"query": ""}, "query"),
    (m.ForgetMatching, {"query": "x", "limit": 101}, "limit"),
    (m.ForgetMatching, {"query": "x", "confirm": "a/b"}, "confirm"),
    (m.ReceiptOf, {"receipt": ""}, "receipt"),
    (m.Update, {"id": "u1", "version": 0, "text": "x"}, "version"),
    (m.Update, {"id": "u1", "version": 1, "text": ""}, "text"),
    (m.Chat, {"messages": ()}, "messages"),
    (m.Chat, {"messages": (Message("user", None),)}, "messages"),
    (m.Chat, {**_user(), "model": "nobody"}, "model"),
    (m.Chat, {**_user(), "max_tokens": 0}, "max_tokens"),
    (m.Chat, {**_user(), "max_tokens": 1 << 20}, "max_tokens"),
    (m.Chat, {**_user(), "temperature": float("nan")}, "temperature"),
    (m.Chat, {**_user(), "temperature": 2.1}, "temperature"),
    (m.Chat, {**_user(), "seed": -1}, "seed"),
    (m.Chat, {**_user(), "stop": ("",)}, "stop"),
    (m.Chat, {**_user(), "stop": ("x",) * 9}, "stop"),
    (m.Chat, {**_user(), "budget": -1}, "budget"),
    (m.Chat, {**_user(), "budget": 1 << 20}, "budget"),
    (m.Chat, {**_user(), "units": 65}, "units"),
    (m.Chat, {**_user(), "session": "a/b"}, "session"),
    (m.Chat, {**_user(), "kinds": ("x",)}, "kinds"),
    (m.Chat, {**_user(), "barrier_ms": 60_001}, "barrier_ms"),
    (m.Chat, {**_user(), "tools": (Tool("a b"),)}, "tools"),
    (m.Chat, {**_user(), "tools": (Tool("look"), Tool("look"))}, "tools"),
    (m.Chat, {**_user(), "tools": (Tool("look", "", "[]"),)}, "tools"),
    (m.Chat, {**_user(), "tools": (Tool("look"),), "choice": "find"}, "choice"),
    (m.Chat, {**_user(), "choice": "required"}, "choice"),
    (m.Chat, {**_user(), "schema": "{"}, "schema"),
    (m.Chat, {**_user(), "schema": "{}", "tools": (Tool("look"),)}, "schema"),
    (m.Chat, {**_user(), "logprobs": 21}, "logprobs"),
    (m.Chat, {"messages": (Message("user", "x", call="c1"),)}, "messages"),
    (
        m.Chat,
        {"messages": (Message("assistant", "x", (ToolCall("look", "{}", "c1"),)),)},
        "messages",
    ),
    (m.SessionOpen, {}, "user"),
    (m.Spawn, {"program": ""}, "program"),
    (m.Spawn, {"program": "a\0b"}, "program"),
    (m.Spawn, {"program": "x.py", "args": ("x",) * 257}, "args"),
    (m.WaitPid, {"pid": 1 << 30}, "pid"),
    (m.Kill, {"pid": 1 << 30}, "pid"),
    (m.Exit, {"status": 256}, "status"),
    (m.Why, {"call": "a/b"}, "call"),
    (m.Expire, {"id": "u1", "version": 0}, "version"),
    (m.Expire, {"id": "u1", "version": 1, "at": "2026-01-31T09:00"}, "at"),
    (m.Rescope, {"id": "u1", "version": 0, "scope": "pair"}, "version"),
    (m.ViewOf, {"barrier_ms": 60_001}, "barrier_ms"),
    (m.ContextSave, {"name": "a/b", **_user()}, "name"),
    (m.ContextSave, {"name": "x", "messages": ()}, "messages"),
    (m.ContextSave, {"name": "x", **_user(), "model": "nobody"}, "model"),
    (m.ContextLoad, {"name": ""}, "name"),
    (m.ContextDrop, {"name": "tab\t"}, "name"),
    *BAD_STUDY,
)
"""(syscall, fields, the field at fault): each ends at once in an error that names the field."""


ANSWERS: tuple[dict[str, Any], ...] = (
    {}, {}, {"schema": '{"type": "object"}'}, {"tools": (Tool("look"), Tool("find"))},
    {"tools": (Tool("look"),), "choice": "look"},
)  # fmt: skip
"""What chats ask of their answers."""


class Load:
    """Draws requests. ``units`` and ``calls`` list ids that replies or the world have shown, so
    that other people's ids are tried as well as own ones."""

    def __init__(self, rng: Chance, models: tuple[str, ...]) -> None:
        self.rng = rng
        self.models = models
        self.units: list[str] = []
        self.calls: list[str] = []
        self.pids: list[int] = []
        self.said = 0
        """Contexts that were asked to be saved so far."""
        self.sessions: list[str] = []
        """Opaque names, which readers may name."""
        self.receipts: list[str] = []
        self.agreed: list[tuple[int, m.Request]] = []
        """(channel, request) of what was shown to be forgotten, now with its word."""
        self.study = Study(self)
        makers: dict[Callable[[Peer], m.Request], float] = {
            self._remember: 20, self._search: 12, self._read: 4, self._list: 3, self._update: 5,
            self._forget: 8, self._chat: 24, self._why: 3, self._cancel: 6, self._session: 4,
            self._whoami: 3, self._spawn: 8, self._wait: 2, self._kill: 2, self._exit: 0.3,
            self._processes: 1, self._ping: 2, self._listing: 1, self._grant: 8,
            self._memory_search: 3, self._memory_read: 3, self._session_search: 2,
            self._full_context: 1, self._files: 1, self._prefetch: 3, self._forget_matching: 2,
            self._agree: 5, self._forget_user: 3, self._receipt: 5,
            self._hello_again: 0.5, self._expire: 3, self._rescope: 8, self._view: 3,
            self._group: 6, self._groups: 1, self._export: 1, self._import: 1, self._backup: 0.5,
            self._statistics: 0.5, self._schedule: 2, self._metering: 1,
            self._context_save: 6, self._context_load: 5, self._contexts: 1, self._context_drop: 2,
            self._manage: 4,
            **self.study.makers(),
        }  # fmt: skip
        self._makers = tuple(makers)
        self._offices = (
            self._forget_user, self._agree, self._agree, self._grant, self._group,
            self.study.review, self.study.consent,
        )  # fmt: skip
        # Each seed has its own taste.
        self._weights = [weight * rng.choice((0.3, 1, 1, 3)) for weight in makers.values()]

    def request(self, peer: Peer) -> m.Request:
        """A request that may be refused for who asks, never for its shape."""
        if peer.operator and self.rng.random() < 0.25:
            # It does what nobody else may, and says the word to what it was shown.
            return self.rng.choice(self._offices)(peer)
        (make,) = self.rng.choices(self._makers, self._weights)
        return make(peer)

    def bad(self) -> tuple[m.Request, str]:
        """A request whose shape is at fault, and the field that an answer must name."""
        kind, fields, name = self.rng.choice(BAD)
        request: m.Request = kind(**fields)  # type: ignore[assignment] # all of BAD are requests
        return request, name

    def hello(self) -> m.Hello:
        low, high = self.rng.choice(((1, 1), (1, 1), (1, 1), (1, 9), (2, 9), (1, 0), (3, 2)))
        return m.Hello(version=high, low=low, features=("cancel", "telepathy"))

    # -- fields

    def who(self, peer: Peer) -> dict[str, Any]:
        """The fields that all requests have."""
        fields: dict[str, Any] = {}
        chance = self.rng.random()
        if chance < 0.5:
            fields["user"] = SERVES.get(peer.agent, "ana")
        elif chance < 0.6:
            fields["user"] = self.rng.choice((*PEOPLE, *PEOPLE, *BAD_NAMES))
        if self.rng.random() < 0.3:
            fields["deadline_ms"] = int(5000 ** self.rng.random())
        return fields

    def _how(self) -> dict[str, Any]:
        """The fields of a reading request that waits at the barrier."""
        return {
            "wait": self.rng.choice(WAITS),
            "barrier_ms": self.rng.choice((0, 1, 20, 2000, 60_000)),
            "on_stale": self.rng.choice(("reply", "reply", "error")),
        }

    def unit(self) -> str:
        return self.rng.choice(self.units) if self.units and self.rng.random() < 0.9 else "u0"

    def _expiry(self) -> str:
        """Past, soon in a run (its calendar begins in 1970), or at its very end."""
        soon = f"1970-01-01T00:{self.rng.randrange(60):02}:{60 ** self.rng.random() - 1:09.6f}Z"
        return self.rng.choice(
            ("1969-01-01T00:00Z", "1970-01-01T00:00:01Z", soon, soon, "2200-01-01T00:00Z")
        )

    # -- requests

    def _remember(self, peer: Peer) -> m.Request:
        return m.Remember(
            text=self.rng.choice(TEXTS),
            kind=self.rng.choice(KINDS),
            scope=self.rng.choice(SCOPES),
            stream=self.rng.choice(("reusable", "protected")),
            session=self.rng.choice(("", "s1", "s2")),
            round=self.rng.randrange(4),
            meta={"source": self.unit()} if self.rng.random() < 0.1 else {},
            expires_at=self._expiry() if self.rng.random() < 0.3 else None,
            **self.who(peer),
        )

    def _search(self, peer: Peer) -> m.Request:
        mode: Any = self.rng.choice(("hybrid", "bm25", "dense", "rrf"))
        return m.Search(query=self.rng.choice(TEXTS), mode=mode, **self._how(), **self.who(peer))

    def _read(self, peer: Peer) -> m.Request:
        return m.Read(id=self.unit(), **self.who(peer))

    def _list(self, peer: Peer) -> m.Request:
        return m.MemoryList(limit=self.rng.randrange(1, 500), **self.who(peer))

    def _update(self, peer: Peer) -> m.Request:
        version, text = self.rng.choice((1, 1, 2, 3)), self.rng.choice(TEXTS)
        return m.Update(id=self.unit(), version=version, text=text, **self.who(peer))

    def _forget(self, peer: Peer) -> m.Request:
        return m.Forget(id=self.unit(), **self.who(peer))

    def _patience(self) -> dict[str, Any]:
        return {"barrier_ms": self.rng.choice((0, 20, 2000, 60_000))}

    def _memory_search(self, peer: Peer) -> m.Request:
        k, query = self.rng.choice((1, 8, 50)), self.rng.choice(TEXTS)
        return m.MemorySearch(query=query, k=k, **self._patience(), **self.who(peer))

    def _memory_read(self, peer: Peer) -> m.Request:
        session = self.rng.choice(self.sessions) if self.sessions else "s0"
        return m.MemoryRead(
            session=session if self.rng.random() < 0.8 else self.unit(),
            round=self.rng.randrange(4),
            window=self.rng.randrange(3),
            **self._patience(),
            **self.who(peer),
        )

    def _session_search(self, peer: Peer) -> m.Request:
        compact, query = self.rng.random() < 0.5, self.rng.choice(TEXTS)
        return m.SessionSearch(query=query, compact=compact, **self._patience(), **self.who(peer))

    def _full_context(self, peer: Peer) -> m.Request:
        return m.FullContext(limit=self.rng.choice((1, 20, 100_000)), **self.who(peer))

    def _files(self, peer: Peer) -> m.Request:
        return m.MemoryFiles(limit=self.rng.choice((1, 120, 40_000)), **self.who(peer))

    def _prefetch(self, peer: Peer) -> m.Request:
        return m.Prefetch(
            query=self.rng.choice(TEXTS),
            model=self.rng.choice(("", *self.models)),
            budget=self.rng.choice((None, 0, 3)),
            wait=self.rng.choice(WAITS),
            **self._patience(),
            **self.who(peer),
        )

    def _forget_matching(self, peer: Peer) -> m.Request:
        return m.ForgetMatching(
            query=self.rng.choice(TEXTS),
            limit=self.rng.choice((1, 20)),
            offset=self.rng.choice((0, 0, 1)),
            confirm=self.rng.choice(("", "", "", "w0")),
            **self._patience(),
            **self.who(peer),
        )

    def _agree(self, peer: Peer) -> m.Request:
        """Say the word to what was shown, mostly to oneself."""
        words = [request for channel, request in self.agreed if channel == peer.channel]
        if self.agreed and self.rng.random() < 0.05:
            return self.rng.choice(self.agreed)[1]
        return self.rng.choice(words[-3:]) if words else self._forget_matching(peer)

    def _forget_user(self, peer: Peer) -> m.Request:
        return m.ForgetUser(name=self.rng.choice((*PEOPLE, "agent/mail")))

    def _receipt(self, peer: Peer) -> m.Request:
        receipt = self.rng.choice(self.receipts) if self.receipts else "r0"
        return m.ReceiptOf(receipt=receipt, wait=self.rng.random() < 0.5)

    def _chat(self, peer: Peer) -> m.Request:
        said = self.rng.choice((*TEXTS[:3], " ", None))
        return m.Chat(
            messages=(Message("system", "be brief"), Message("user", said)),
            model=self.rng.choice(("", *self.models)),
            max_tokens=self.rng.choice((1, 8, 256)),
            stream=self.rng.random() < 0.5,
            memory=self.rng.random() < 0.8,
            budget=self.rng.choice((None, None, 0, 3)),
            units=self.rng.choice((0, 1, 4)),
            keep=self.rng.random() < 0.4,
            session=self.rng.choice(("", "s1")),
            logprobs=self.rng.choice((-1, -1, 0, 2)),
            **self.rng.choice(ANSWERS),
            **self._how(),
            **self.who(peer),
        )

    def _context_save(self, peer: Peer) -> m.Request:
        # No two say the same, so that what is loaded tells who has saved it.
        self.said += 1
        return m.ContextSave(
            name=self.rng.choice(NAMES),
            messages=(Message("user", f"{peer.agent} says {self.said}"),),
            model=self.rng.choice(("", *self.models)),
            **self.who(peer),
        )

    def _context_load(self, peer: Peer) -> m.Request:
        warm = self.rng.random() < 0.8
        return m.ContextLoad(name=self.rng.choice(NAMES), warm=warm, **self.who(peer))

    def _contexts(self, peer: Peer) -> m.Request:
        return m.ContextList(**self.who(peer))

    def _context_drop(self, peer: Peer) -> m.Request:
        return m.ContextDrop(name=self.rng.choice(NAMES), **self.who(peer))

    def _why(self, peer: Peer) -> m.Request:
        return m.Why(call=self.rng.choice(self.calls) if self.calls else "c0")

    def _cancel(self, peer: Peer) -> m.Request:
        return m.Cancel(call=max(0, peer.frame - self.rng.randrange(6)))

    def _session(self, peer: Peer) -> m.Request:
        user = self.rng.choice((SERVES.get(peer.agent, "ana"), *PEOPLE[:2]))
        return m.SessionOpen(user=user, replace=self.rng.random() < 0.4)

    def _whoami(self, peer: Peer) -> m.Request:
        return m.Whoami(**self.who(peer))

    def _spawn(self, peer: Peer) -> m.Request:
        agent = self.rng.choice(("", "", peer.agent, *AGENTS[:2]))
        stdio = self.rng.random() < 0.1
        return m.Spawn(program=self.rng.choice(AGENTS), agent=agent, stdio=stdio, **self.who(peer))

    def _pid(self) -> int:
        return self.rng.choice(self.pids) if self.pids else 1

    def _wait(self, peer: Peer) -> m.Request:
        return m.WaitPid(pid=self._pid(), follow=self.rng.random() < 0.5)

    def _kill(self, peer: Peer) -> m.Request:
        grace = self.rng.choice((0, 0, 5, 3000))
        return m.Kill(pid=self._pid(), grace_ms=grace, tree=self.rng.random() < 0.3)

    def _manage(self, peer: Peer) -> m.Request:
        """Supervision; what it grants and hides has worlds of its own."""
        pid, level = self._pid(), self.rng.randrange(10)
        asked: tuple[m.Request, ...] = (
            abi.Pause(pid=pid),
            abi.Pause(pid=pid),
            abi.Continue(pid=pid),
            abi.Heartbeat(),
            abi.Priority(pid=pid, level=level, nice=level),
            abi.AgentList(agent=self.rng.choice(("", peer.agent))),
            abi.Distrust(),
        )
        return self.rng.choice(asked)

    def _exit(self, peer: Peer) -> m.Request:
        return m.Exit(status=0)

    def _processes(self, peer: Peer) -> m.Request:
        return m.ListProcesses(all=self.rng.random() < 0.5, usage=self.rng.random() < 0.3)

    def _ping(self, peer: Peer) -> m.Request:
        return m.Ping(payload="x")

    def _listing(self, peer: Peer) -> m.Request:
        return m.Models()

    def _grant(self, peer: Peer) -> m.Request:
        agent = self.rng.choice(AGENTS)
        if self.rng.random() < 0.2:
            return m.Grant(agent=agent, users=(SERVES[agent],), revoke=True)
        return m.Grant(
            agent=agent,
            users=tuple(self.rng.sample((*PEOPLE, "*"), self.rng.randrange(3))),
            scopes=self.rng.choice((("agent", "global"), ("global", "@team"), ("@crew",), ())),
            revoke=self.rng.random() < 0.3,
        )

    def _expire(self, peer: Peer) -> m.Request:
        at = self._expiry() if self.rng.random() < 0.7 else None
        version = self.rng.choice((1, 1, 2, 3))
        return m.Expire(id=self.unit(), version=version, at=at, **self.who(peer))

    def _rescope(self, peer: Peer) -> m.Request:
        version, scope = self.rng.choice((1, 1, 2, 3)), self.rng.choice(SCOPES[7:]) or "pair"
        return m.Rescope(id=self.unit(), version=version, scope=scope, **self.who(peer))

    def _view(self, peer: Peer) -> m.Request:
        return m.ViewOf(barrier_ms=self.rng.choice((0, 20, 2000)), **self.who(peer))

    def _group(self, peer: Peer) -> m.Request:
        of, name = self.rng.choice((*GROUPS, ("users", "new")))
        names = PEOPLE if of == "users" else AGENTS
        some = self.rng.sample(names, self.rng.randrange(3))
        leave = self.rng.random() < 0.5
        add, remove = ((), tuple(some)) if leave else (tuple(some), ())
        axis: Any = of
        return m.GroupChange(name=name, of=axis, add=add, remove=remove)

    def _groups(self, peer: Peer) -> m.Request:
        return m.Groups(of=self.rng.choice(("", "users", "agents")))

    def _export(self, peer: Peer) -> m.Request:
        return m.Export(name=self.rng.choice(("", *PEOPLE)))

    def _import(self, peer: Peer) -> m.Request:
        lines = [self._line() for _ in range(self.rng.randrange(1, 4))]
        if self.rng.random() < 0.3:
            of, name = self.rng.choice(tuple(GROUPS))
            axis: Any = of
            member = self.rng.choice(PEOPLE if of == "users" else AGENTS)
            lines += write_group(axis, name, (member,))
        if self.rng.random() < 0.3:
            user, scope = self.rng.choice(PEOPLE), self.rng.choice(("@team", "global", "@nobody"))
            lines += write_grant(self.rng.choice(AGENTS), (user,), (scope,))
        lines = lines[::-1] if self.rng.random() < 0.5 else lines
        return m.Import(lines=(*lines, *self.rng.choice(((), ("{}",)))))

    def _line(self) -> str:
        user, agent = self.rng.choice(PEOPLE), self.rng.choice(AGENTS)
        partition = self.rng.choice((
            Partition(Axis("one", user), Axis("one", agent)), Partition(ALL, ALL),
            Partition(Axis("group", "team"), ALL), Partition(Axis("group", "nobody"), ALL),
        ))  # fmt: skip
        line = Line(
            format=1, id=self.rng.choice((self.unit(), f"u{self.rng.randrange(1 << 30)}")),
            version=self.rng.choice((1, 2)), users=partition.users, agents=partition.agents,
            user=user, agent=agent, text=self.rng.choice(TEXTS), kind="note", stream="reusable",
            said_at=0, stored_at=0, supersedes=self.rng.choice(("", "", self.unit())),
        )  # fmt: skip
        return msgspec.json.encode(line).decode()

    def _backup(self, peer: Peer) -> m.Request:
        return m.Backup(path="/backup")

    def _statistics(self, peer: Peer) -> m.Request:
        return m.Statistics()

    def _metering(self, peer: Peer) -> m.Request:
        since = self.rng.choice((None, "1970-01-01T00:00Z"))
        return m.Metering(by=self.rng.choice(("agent", "user", "model")), since=since)

    def _schedule(self, peer: Peer) -> m.Request:
        return m.Schedule(policy=self.rng.choice(("", "lottery", *POLICIES)))

    def _hello_again(self, peer: Peer) -> m.Request:
        return self.hello()
