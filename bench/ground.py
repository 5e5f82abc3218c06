"""Where a set about who may know what is played: a real kernel, and one scope beside it.

:class:`Ground` asks a running kernel as agents do, over channels, for any user: its doors are the
syscalls. :class:`OneScope` is the reference: BM25 over all that was stored, with what was
superseded, expired or forgotten left out as well, but without scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

from bench.host import Host
from bench.report import CannotRun
from bench.store import BenchStore
from isovist.kernel.state.views import view_of
from isovist.syscalls import messages as m
from isovist.syscalls.client import Client
from isovist.syscalls.records import Reader, Unit, partition_of

FIRST, DEEP = 8, 50
"""Where *must* is looked for, and where *must not* is."""
PAGE = 500
PATIENCE = 60_000
"""Milliseconds that a question waits for what was written before it: a stale answer is none."""
TOGETHER = 100
"""Writes under way at a time."""
PAST = "2000-01-01T00:00Z"


@dataclass(frozen=True)
class Kept:
    """A unit as it stands in the kernel, and whose it is."""

    id: str
    version: int
    user: str
    agent: str
    guarded: bool = False
    """The secrets guard has replaced something in it."""


@dataclass(frozen=True)
class Seen:
    """What one reader met at every door: ``found`` by search, best first; ``listed``;
    ``injected``, ids of the units that a chat would have held; ``context``, of those that the full
    context holds; ``texts`` of everything."""

    found: tuple[Unit, ...]
    listed: tuple[Unit, ...]
    injected: frozenset[str]
    context: frozenset[str]
    texts: tuple[str, ...]

    @property
    def back(self) -> set[str]:
        """Ids of all that came back. Where a list shows what supersedes a unit beside it, the
        older one is marked as superseded there and does not count."""
        older = {unit.supersedes for unit in self.listed}
        listed = {unit.id for unit in self.listed} | self.context
        return {unit.id for unit in self.found} | (listed - older) | self.injected

    @property
    def first(self) -> set[str]:
        return {unit.id for unit in self.found[:FIRST]}


class Ground:
    """A kernel with all principals of all sets in its one store. Names hold no ``/``."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._clients: dict[str, Client] = {}
        self._operator = host.connect()

    def close(self) -> None:
        for client in (*self._clients.values(), self._operator):
            client.close()

    def client(self, agent: str) -> Client:
        if agent not in self._clients:
            self._clients[agent] = self._host.connect(agent)
        return self._clients[agent]

    # -- who may

    def group(self, name: str, of: Literal["users", "agents"], members: Iterable[str]) -> None:
        self._operator.group_change(name, of, add=tuple(members))

    def allow(self, agent: str, scope: str) -> None:
        """Let ``agent`` publish to ``scope`` for whomever it serves."""
        self._operator.grant(agent, users=("*",), scopes=(scope,))

    # -- what happens

    def put(self, agent: str, user: str, text: str, scope: str, **fields: Any) -> Kept:
        (kept,) = self.put_all(agent, user, scope, [fields | {"text": text}])
        return kept

    def put_all(
        self, agent: str, user: str, scope: str, fields: Sequence[dict[str, Any]]
    ) -> list[Kept]:
        """Store units in their order, in the same audience, several on their way at a time."""
        client = self.client(agent)
        kept: list[Kept] = []
        for start in range(0, len(fields), TOGETHER):
            pending = [
                client.submit(m.Remember(user=user, scope=scope, **some))
                for some in fields[start : start + TOGETHER]
            ]
            for call in pending:
                stored = cast(m.Stored, call.result())
                if stored.note:
                    raise CannotRun(f"a unit was not stored as asked: {stored.note}")
                guarded = bool(stored.secrets)
                kept.append(Kept(stored.id, stored.version, user, agent, guarded))
        return kept

    def rescope(self, unit: Kept, scope: str) -> Kept:
        done = self.client(unit.agent).rescope(unit.id, unit.version, scope, user=unit.user)
        return Kept(unit.id, done.version, unit.user, unit.agent, unit.guarded)

    def update(self, unit: Kept, text: str) -> Kept:
        done = self.client(unit.agent).update(unit.id, unit.version, text, user=unit.user)
        return Kept(unit.id, done.version, unit.user, unit.agent, bool(done.secrets))

    def expire(self, unit: Kept) -> Kept:
        done = self.client(unit.agent).expire(unit.id, unit.version, PAST, user=unit.user)
        return Kept(unit.id, done.version, unit.user, unit.agent, unit.guarded)

    def forget(self, unit: Kept) -> None:
        self.client(unit.agent).forget(unit.id, user=unit.user)

    # -- what is seen

    def read(self, agent: str, user: str, unit: str) -> Unit:
        return self.client(agent).read(unit, user=user, barrier_ms=PATIENCE).units[0]

    def look(self, agent: str, user: str, question: str, kinds: tuple[str, ...] = ()) -> Seen:
        """Ask at every door as ``agent`` for ``user``. A question without a word is no search:
        then the list and the whole context alone are looked at."""
        client = self.client(agent)
        found: tuple[Unit, ...] = ()
        block, injected = "", frozenset[str]()
        if question.strip():
            hits = client.search(
                question, k=DEEP, kinds=kinds, user=user, barrier_ms=PATIENCE, on_stale="error"
            ).hits
            found = tuple(hit.unit for hit in hits)
            fetched = client.prefetch(question, kinds=kinds, user=user, barrier_ms=PATIENCE)
            block, injected = fetched.text, frozenset(u.unit for u in fetched.injected)
        listed = tuple(client.memories(limit=PAGE, kinds=kinds, user=user, barrier_ms=PATIENCE))
        rounds = client.full_context(user=user, barrier_ms=PATIENCE).rounds
        texts = [unit.text for unit in (*found, *listed)] + [r.text for r in rounds]
        context = frozenset(r.unit for r in rounds)
        return Seen(found, listed, injected, context, (block, *texts))


class OneScope:
    """One set's units, by label, in one scope, ranked by BM25 alone."""

    def __init__(self, store: BenchStore, name: str) -> None:
        self._store = store
        self._partition = partition_of("pair", "everybody", name)
        self._view = view_of(Reader("everybody", name))
        self._ids: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def put(self, label: str, text: str, supersedes: str = "") -> None:
        self._store.now += 1
        self._ids[label], self._texts[label] = self._store.put(
            self._partition,
            text,
            user="everybody",
            agent=self._partition.agents.name,
            said_at=self._store.now,
            supersedes=self._ids.get(supersedes, ""),
        )

    def drop(self, label: str) -> None:
        unit = self._ids.pop(label)
        # Two labels of one text are one unit.
        if unit not in self._ids.values():
            self._store.drop(unit, self._partition)

    def search(self, question: str) -> list[str]:
        """The labels of the ``DEEP`` best, best first."""
        if not question.strip():
            return []
        hits = self._store.search(self._view, question, DEEP, "bm25").units()
        places = {unit.id: at for at, unit in enumerate(hits)}
        found = [(places[unit], label) for label, unit in self._ids.items() if unit in places]
        return [label for _, label in sorted(found)]


def instant(text: str) -> str:
    """ISO 8601 with a zone: a set's time without one is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def nanoseconds(text: str) -> int:
    return int(datetime.fromisoformat(instant(text)).timestamp()) * 10**9
