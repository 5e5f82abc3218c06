"""SMGB: scopes, promotion, supersession, deletion, tenants, authors (``smgb/*.jsonl``).

A scope of kind *user* is the user scope of that principal. Any other scope (account, project,
group, organisation) is a group of users, its members, and its units go to ``@GROUP/all``. Tenants
are no boundary of their own: names bear the scenario's, and no group spans two tenants. A unit is
owned by its author's principal, or where that is none by the first member of its scope, and by the
one agent that serves everybody; the author stands in its metadata, and a unit whose author is not
the set's counts as not found.

*Promote* is ``rescope``, *delete* is ``forget``, *supersede* stores the newer one again, in the
name of the older one's owner, with ``supersedes``: only owners replace what they said. So a unit in
a principal's own scope cannot supersede another's; such an event is left out and counted apart.
Each query is asked when all that the set dates at or before it has happened. A *history* query also
reads, by id, what a found unit supersedes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.ground import FIRST, Ground, Kept, OneScope, instant, nanoseconds
from bench.report import CannotRun, Progress
from bench.store import BenchStore
from bench.tally import Count, Score, lines, some

AGENT = "assistant"


def measure(
    data: Path, ground: Ground, store: BenchStore, quick: bool, progress: Progress
) -> Count:
    count = Count()
    for scenario in some(lines(data / "smgb", "*.jsonl"), quick):
        progress(f"smgb: {scenario['scenario_id']}")
        Scenario(scenario, ground, store).play(count)
    return count


class Scenario:
    """One scenario, played in the order of its times."""

    def __init__(self, scenario: dict[str, Any], ground: Ground, store: BenchStore) -> None:
        self._scenario, self._ground = scenario, ground
        self._name = scenario["scenario_id"]
        self._one = OneScope(store, f"smgb:{self._name}")
        self._memories = {memory["id"]: memory for memory in scenario["memories"]}
        self._scopes = {scope["id"]: scope for scope in scenario["scopes"]}
        self._principals = [principal["id"] for principal in scenario["principals"]]
        self._held: dict[str, Kept] = {}
        """By memory: all and only those that are stored and not forgotten."""
        self._ever: dict[str, set[str]] = {}
        """By memory: the ids that it has had, forgotten ones too."""
        for scope in self._scopes.values():
            if scope["kind"] != "user":
                ground.group(self._of(scope["id"]), "users", map(self._of, scope["members"]))
                ground.allow(AGENT, f"@{self._of(scope['id'])}")
        ground.allow(AGENT, "user")

    def play(self, count: Count) -> None:
        steps: list[tuple[int, int, dict[str, Any]]] = [
            *((nanoseconds(m["created_at"]), 0, m) for m in self._memories.values()),
            *((nanoseconds(e["t"]), 1, e) for e in self._scenario["events"]),
            *((nanoseconds(q["as_of"]), 2, q) for q in self._scenario["queries"]),
        ]
        for _, what, step in sorted(steps, key=lambda entry: entry[:2]):
            if what == 0:
                self._put(step["id"], self._owner(step))
            elif what == 1:
                self._happen(step, count)
            else:
                self._ask(step, count)

    def _put(self, memory: str, owner: str, older: str = "") -> None:
        content = self._memories[memory]
        self._held[memory] = self._ground.put(
            AGENT,
            owner,
            content["content"],
            self._audience(content["scope"]),
            stream="reusable",
            said_at=instant(content["created_at"]),
            supersedes=self._held[older].id if older else "",
            meta={"author": _author(content)},
        )
        self._ever.setdefault(memory, set()).add(self._held[memory].id)
        self._one.put(memory, content["content"], older)

    def _happen(self, event: dict[str, Any], count: Count) -> None:
        memory = event["memory_id"]
        if event["type"] == "promote":
            scope = self._audience(event["to_scope"])
            self._held[memory] = self._ground.rescope(self._held[memory], scope)
        elif event["type"] == "delete":
            self._ground.forget(self._held.pop(memory))
            self._one.drop(memory)
        elif event["type"] == "supersede":
            newer = event["by"]
            owner, scope = self._held[memory].user, self._memories[newer]["scope"]
            if self._scopes[scope]["kind"] == "user" and owner != self._held[newer].user:
                count.apart["superseded_by_another_user"] += 1
                return
            self._ground.forget(self._held.pop(newer))
            self._one.drop(newer)
            self._put(newer, owner, memory)
        else:
            raise CannotRun(f"SMGB: no mapping for an event of type {event['type']!r}")

    def _ask(self, query: dict[str, Any], count: Count) -> None:
        user, question = self._of(query["principal"]), query["question"]
        seen = self._ground.look(AGENT, user, question)
        history = query.get("temporal_mode") == "history"
        authors = {unit.id: unit.meta.get("author") for unit in (*seen.found, *seen.listed)}
        first, deep = set(seen.first), {unit.id for unit in seen.found}
        for unit in seen.found:
            if history and unit.supersedes:
                older = self._ground.read(AGENT, user, unit.supersedes)
                authors[older.id] = older.meta.get("author")
                deep.add(older.id)
                first |= {older.id} if unit.id in seen.first else set()
        must, banned = query.get("must_retrieve") or (), query.get("must_not_retrieve") or ()
        held = {memory: unit.id for memory, unit in self._held.items()}

        def said(ids: set[str]) -> int:
            """How many of the must are among ``ids``, with their right authors."""
            return sum(
                held.get(memory) in ids and authors[held[memory]] == _author(self._memories[memory])
                for memory in must
            )

        there = self._one.search(question)
        count.question(
            f"{self._name} {query['id']}",
            must=len(must),
            banned=len(banned),
            here=Score(
                said(first),
                sum(not seen.back.isdisjoint(self._ever.get(memory, ())) for memory in banned),
            ),
            there=Score(
                len(set(must) & set(self._listed(there[:FIRST], history))),
                len(set(banned) & set(there)),
            ),
            deep=said(deep),
        )

    def _listed(self, labels: list[str], history: bool) -> list[str]:
        """With ``history``, what ``labels`` supersede as well."""
        events = self._scenario["events"] if history else ()
        return labels + [e["memory_id"] for e in events if e.get("by") in labels]

    def _owner(self, memory: dict[str, Any]) -> str:
        members = self._scopes[memory["scope"]]["members"]
        author = _author(memory).removesuffix("-agent")
        return self._of(author if author in members else members[0])

    def _audience(self, scope: str) -> str:
        return "user" if self._scopes[scope]["kind"] == "user" else f"@{self._of(scope)}/all"

    def _of(self, name: str) -> str:
        return f"{self._name}:{name}"


def _author(memory: dict[str, Any]) -> str:
    return str((memory.get("provenance") or {}).get("author", ""))
