"""PrecisionMemBench: what must not come back (``precisionmembench/``).

A belief's domain is a group of agents, and the belief goes to ``own/@DOMAIN``; ``user:universal``
is the user scope; another user's belief is that user's. A case is asked by an agent that is in the
groups of the case's domains. All beliefs are in the protected stream, so none can reach another
user. Aliases are part of a belief's text (``update`` adds those that come later), a superseded
belief is stored before the one that supersedes it, a resolved one is expired.

*Must*: what search among the first 8 (``relevantBeliefs``) or a list of the view (pinned facts,
open questions) has to show, where it is in force. The turns of a session are asked one after the
other and then kept as rounds; rounds that a turn must recall (``topicRetrieval``) are looked for by
search as well. *Must not*: beliefs that are superseded or resolved, another user's, or of no domain
of the case, at any door.

Apart, since no scope decides it: which of the beliefs in force a prompt has room for and in which
section (``budget``, ``personaPrelude``, a ``mustExclude`` of what may be known), and relevance
alone (``noiseCheck``). ``apart.noise`` counts beliefs of a noise check that a chat would have been
given, ``apart.injected_beside`` those that it would have been given and no case names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.ground import FIRST, Ground, Kept, OneScope, instant
from bench.report import Progress
from bench.store import BenchStore
from bench.tally import Count, Score, some, whole

USER, WRITER, UNIVERSAL = "test-user", "beliefs", "user:universal"
SECTIONS = ("pinnedFacts", "openQuestions")
BELIEF, ROUND = "note", "conversation"


def measure(
    data: Path, ground: Ground, store: BenchStore, quick: bool, progress: Progress
) -> Count:
    folder = data / "precisionmembench"
    beliefs = {belief["_id"]: belief for belief in whole(folder / "beliefs.seed.json")}
    bench = Beliefs(ground, OneScope(store, "precisionmembench"))
    for name in _oldest_first(beliefs):
        older = [n for n, b in beliefs.items() if b["superseded_by"] == name]
        bench.add(beliefs[name], older[0] if older else "")
    count = Count()
    for case in some(whole(folder / "retrieval.cases.json"), quick):
        progress("precisionmembench: cases", count.questions)
        user = case.get("userId") or USER
        bench.ask(case["caseId"], user, case["scope"], case["query"], case["expect"], count)
    sessions = folder / "session-retrieval.cases.json"
    for session in some(whole(sessions) if sessions.exists() else [], quick):
        progress("precisionmembench: session")
        for turn in session["turns"]:
            bench.say(session["caseId"], turn, count)
    return count


class Beliefs:
    def __init__(self, ground: Ground, one: OneScope) -> None:
        self._ground, self._one = ground, one
        self._all: dict[str, dict[str, Any]] = {}
        self._held: dict[str, Kept] = {}
        self._rounds: dict[str, dict[int, str]] = {}
        """By session: the units of its rounds."""
        ground.allow(WRITER, "user")

    def add(self, belief: dict[str, Any], older: str = "") -> None:
        name, (scope,) = belief["_id"], belief["scope"]
        if scope != UNIVERSAL:
            self._ground.group(scope, "agents", (WRITER,))
        self._held[name] = self._ground.put(
            WRITER,
            belief["user_id"],
            _text(belief),
            "user" if scope == UNIVERSAL else f"own/@{scope}",
            kind=BELIEF,
            said_at=instant(belief["created_at"]),
            supersedes=self._held[older].id if older else "",
        )
        self._one.put(name, _text(belief), older)
        self._all[name] = belief
        if belief["resolved_at"]:
            self._held[name] = self._ground.expire(self._held[name])
            self._one.drop(name)

    def say(self, session: str, turn: dict[str, Any], count: Count) -> None:
        """Ask with a turn's words, let it change what is believed, and keep it as a round."""
        scopes, query, expect = turn["scope"], turn["userMessage"], turn["expect"]
        at, agent = turn["turnIndex"], self._agent(scopes)
        rounds = self._rounds.setdefault(session, {})
        sought = (expect.get("topicRetrieval") or {}).get("shouldRetrieveTurns") or ()
        kept = [rounds[number] for number in sought if number in rounds]
        self.ask(f"{session} {at}", USER, scopes, query, expect, count, agent, kept)
        if new := turn.get("createBeliefAtTurn"):
            self.add(new)
        if change := turn.get("updateBeliefAtTurn"):
            name = change["beliefId"]
            belief = self._all[name]
            belief["aliases"] = [*belief["aliases"], *change.get("addAliases", ())]
            self._held[name] = self._ground.update(self._held[name], _text(belief))
            self._one.drop(name)
            self._one.put(name, _text(belief))
        said = f"User: {query}\nAssistant: {turn['assistantMessage']}"
        put = self._ground.put(agent, USER, said, "pair", kind=ROUND, session=session, round=at)
        rounds[at] = put.id

    def ask(
        self,
        name: str,
        user: str,
        scopes: Sequence[str],
        query: str,
        expect: dict[str, Any],
        count: Count,
        agent: str = "",
        rounds: Sequence[str] = (),
    ) -> None:
        agent = agent or self._agent(scopes)
        seen = self._ground.look(agent, user, query, (BELIEF,))
        listed, deep = {unit.id for unit in seen.listed}, {unit.id for unit in seen.found}
        in_force = {n for n, b in self._all.items() if _in_force(b, user, scopes)}
        relevant: set[str] = set(
            (expect.get("relevantBeliefs") or {}).get("shouldOnlyInclude") or ()
        )
        standing: set[str] = {
            belief
            for section in SECTIONS
            for belief in (expect.get(section) or {}).get("mustInclude") or ()
        }
        count.apart["not_in_force"] += len((relevant | standing) - in_force)
        relevant, standing = relevant & in_force, standing & in_force
        banned = set(self._all) - in_force
        found = len(self._ids(standing) & listed)
        recalled = 0
        if rounds:
            recalled = len(set(rounds) & self._ground.look(agent, user, query, (ROUND,)).first)
        there = self._one.search(query)
        count.question(
            name,
            must=len(relevant) + len(standing) + len(rounds),
            banned=len(banned),
            here=Score(
                found + len(self._ids(relevant) & seen.first) + recalled,
                len(self._ids(banned) & seen.back),
            ),
            # A list of all holds whatever stands, and rounds are the asker's own.
            there=Score(
                len(standing) + len(relevant & set(there[:FIRST])) + len(rounds),
                len(banned & set(there)),
            ),
            deep=found + len(self._ids(relevant) & deep) + recalled,
        )
        noise: set[str] = set((expect.get("noiseCheck") or {}).get("mustNotSurface") or ())
        count.apart["noise"] += len(self._ids(noise & in_force) & seen.injected)
        named = self._ids(relevant | standing)
        count.apart["injected"] += len(seen.injected)
        count.apart["injected_beside"] += len(seen.injected - named)

    def _agent(self, scopes: Sequence[str]) -> str:
        """The agent that is in the groups of all and only these domains."""
        domains = sorted(set(scopes) - {UNIVERSAL})
        agent = "agent for " + " and ".join(domains)
        for domain in domains:
            self._ground.group(domain, "agents", (agent,))
        return agent

    def _ids(self, names: set[str]) -> set[str]:
        return {self._held[name].id for name in names if name in self._held}


def _text(belief: dict[str, Any]) -> str:
    aliases = ", ".join(belief["aliases"])
    return f"{belief['content']} ({aliases})" if aliases else str(belief["content"])


def _oldest_first(beliefs: dict[str, Any]) -> Iterator[str]:
    """Each belief after those that it supersedes."""
    done: set[str] = set()
    while len(done) < len(beliefs):
        for name in beliefs:
            older = {n for n, b in beliefs.items() if b["superseded_by"] == name}
            if name not in done and older <= done:
                done.add(name)
                yield name


def _in_force(belief: dict[str, Any], user: str, scopes: Sequence[str]) -> bool:
    return (
        belief["user_id"] == user
        and not belief["superseded_by"]
        and not belief["resolved_at"]
        and belief["scope"][0] in (UNIVERSAL, *scopes)
    )
