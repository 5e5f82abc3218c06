"""Does what is in view reach the model, and nothing else?

Six users tell eight facts each to ProfileAgent and TaskAgent, which run as processes over one
kernel and one store; 500 decoys lie in it as well. Then each question is asked as AssistantAgent
asks it, by four arms over the same real model at temperature 0:

- *memory*: the user asks, the kernel injects;
- *oracle*: the unit that holds the fact, alone, placed by the kernel's own injection code;
- *without*: the user asks, injection is off;
- *other*: another user asks the same question, the kernel injects what that one may see.

An answer is right if the fact's value stands in it as a whole word. A unit is *foreign* where the
ledger, kept from what each write was asked to be, says that the asker may not read it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.facts import FACTS_EACH, KINDS, Drawer, Fact, Listener, holds_word
from bench.host import Host, scratch
from bench.machine import machine
from bench.report import CannotRun, Figure, Progress, Report, figure
from isovist.agents.assistant import AssistantAgent
from isovist.kernel import injection
from isovist.syscalls.client import Client
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Unit

ASSISTANT = "assistant"
USERS: tuple[str, ...] = ("ana", "bo", "chen", "dora", "emil", "fatima")
STRANGERS = 20
DECOYS = 500
PRIVATE = 10
"""Decoys of each of the six users that only the agent which wrote them may read."""
GOLD_BAR, RIGHT_BAR, CHANCE_BAR = 46, 0.9, 1
"""Of 48; a share of the oracle's; of 48."""


@dataclass(frozen=True)
class Owner:
    user: str
    agent: str
    scope: str


@dataclass
class Ledger:
    """Who may read which unit, by id, as its write was asked to be."""

    owners: dict[str, Owner] = field(default_factory=dict)

    def allows(self, unit: str, user: str, agent: str) -> bool:
        owner = self.owners.get(unit)
        if owner is None or owner.user != user:
            return False
        return owner.scope == "user" or (owner.scope == "pair" and owner.agent == agent)


@dataclass
class Arm:
    """What the answers of one arm came to."""

    right: int = 0
    gold: int = 0
    foreign: int = 0
    replies: list[Chatted] = field(default_factory=list)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="an installed model (default smollm2)")
    parser.add_argument("--details", type=Path, help="write a line of JSON a question to this file")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    users = list(USERS[:2] if options.quick else USERS)
    decoys = 60 if options.quick else DECOYS
    with scratch() as folder:
        facts = machine(Path(folder))
        with Host(Path(folder), model=options.model) as host, host.connect() as operator:
            bench = _Bench(host, operator, users, Drawer(options.seed), progress)
            bench.tell(decoys)
            figures = bench.ask()
    if options.details:
        options.details.write_bytes(b"".join(msgspec.json.encode(d) + b"\n" for d in bench.details))
    config = {
        "seed": options.seed,
        "quick": options.quick,
        "model": options.model,
        "temperature": 0,
        "embedder": "universal",
        "users": len(users),
        "facts": len(users) * FACTS_EACH,
        "kinds_of_fact": len(KINDS),
        "decoys": decoys,
        "told_to": "ProfileAgent and TaskAgent, four facts of each user each",
        "asked_as": "AssistantAgent",
    }
    return Report(bench="answers", machine=facts, config=config, figures=figures)


class _Bench:
    def __init__(
        self,
        host: Host,
        operator: Client,
        users: list[str],
        drawer: Drawer,
        progress: Progress,
    ) -> None:
        self._host, self._operator, self._progress = host, operator, progress
        self._users = users
        self._facts = drawer.facts(users)
        self._drawer = drawer
        self._ledger = Ledger()
        self._extractors = {"model": 0, "rules": 0}
        self._golds: dict[Fact, list[Unit]] = {}
        self._texts: dict[str, str] = {}
        self.details: list[dict[str, object]] = []

    # -- the store is filled

    def tell(self, decoys: int) -> None:
        """Half of the decoys, all facts, the other half: gold is neither the oldest nor the
        newest. Returns when both legs hold everything."""
        texts = self._drawer.decoys(decoys)
        self._spread(texts[: decoys // 2])
        for user in self._users:
            for listener in ("profile", "task"):
                self._progress("users told", self._users.index(user), len(self._users))
                self._listen(user, listener)
        self._spread(texts[decoys // 2 :])
        self._host.settle(self._progress)
        self._find_gold()

    def _spread(self, texts: list[str]) -> None:
        """By turns: to the users in user scope, to strangers in user scope; and of every ten one
        to a user in pair scope, by an agent that keeps it to itself."""
        strangers = [f"stranger{i}" for i in range(STRANGERS)]
        with self._host.connect("notes") as notes, self._host.connect("diary") as diary:
            for at, text in enumerate(texts):
                self._progress("decoys stored", at, len(texts))
                private = at % 10 == 0
                people = strangers if at % 2 and not private else self._users
                user = people[at // 2 % len(people)]
                scope = "pair" if private else "user"
                stored = (diary if private else notes).remember(text, user=user, scope=scope)
                if stored.note or stored.duplicate:
                    raise CannotRun(f"a decoy was not stored as asked: {stored}")
                self._texts[stored.id] = text
                self._ledger.owners[stored.id] = Owner(user, "diary" if private else "notes", scope)

    def _listen(self, user: str, listener: Listener) -> None:
        """Spawn the agent for ``user`` and let it read what the user says to it, a line each."""
        said = "".join(
            f.says + "\n" for f in self._facts if (f.user, f.listener) == (user, listener)
        )
        with tempfile.TemporaryFile() as words, tempfile.TemporaryFile() as out:
            words.write(said.encode())
            words.seek(0)
            fds = (words.fileno(), out.fileno(), out.fileno())
            pid = self._operator.spawn(listener, user=user, stdio=fds).pid
            process = self._operator.wait(pid).process
            if process.status != 0:
                out.seek(0)
                last = out.read().decode(errors="replace").strip().splitlines()[-5:]
                raise CannotRun(
                    f"agent {listener} ended with {process.status} {process.reason}: {last}"
                )

    def _find_gold(self) -> None:
        """What the agents have stored: into the ledger, and beside the facts."""
        self._golds = {fact: [] for fact in self._facts}
        for user in self._users:
            for agent in ("profile", "task"):
                with self._host.connect(agent, user) as client:
                    own = [u for u in client.memories(limit=500) if u.agent == agent]
                for unit in own:
                    self._texts[unit.id] = unit.text
                    self._ledger.owners[unit.id] = Owner(user, agent, unit.scope)
                    extractor = unit.meta.get("extractor", "")
                    self._extractors[extractor] = self._extractors.get(extractor, 0) + 1
                    for fact in self._facts:
                        if fact.user == user and holds_word(unit.text, fact.value):
                            self._golds[fact].append(unit)

    # -- the questions

    def ask(self) -> list[Figure]:
        with self._host.connect(ASSISTANT) as client:
            assistant = AssistantAgent(client)
            without = AssistantAgent(client, memory=False)
            arms = {
                "memory": self._arm("memory", lambda f: assistant.ask(f.question, f.user)),
                "oracle": self._arm("oracle", lambda f: self._ask_oracle(client, f)),
                "without": self._arm("without", lambda f: without.ask(f.question, f.user)),
                "other": self._arm("other", lambda f: assistant.ask(f.question, self._another(f))),
            }
        memory, oracle, facts = arms["memory"], arms["oracle"], len(self._facts)
        of = f"of {facts}"
        gold_bar = round(facts * GOLD_BAR / 48)
        replies = memory.replies
        return [
            figure("stored", sum(map(bool, self._golds.values())), of),
            figure("gold_injected", memory.gold, of, bar=f">= {gold_bar}"),
            figure(
                "memory.right",
                memory.right,
                of,
                reference=("oracle: the right unit alone", oracle.right),
                bar=f"ratio >= {RIGHT_BAR}",
            ),
            figure("oracle.right", oracle.right, of),
            figure("without.right", arms["without"].right, of, bar=f"<= {CHANCE_BAR}"),
            figure("other.right", arms["other"].right, of, bar=f"<= {CHANCE_BAR}"),
            figure("foreign", sum(arm.foreign for arm in arms.values()), "units", bar="== 0"),
            *(
                figure(f"extracted.{extractor or 'unnamed'}", count, "units")
                for extractor, count in self._extractors.items()
            ),
            figure("injected.units", _mean(len(r.injected) for r in replies), "units, mean"),
            figure("injected.tokens", _mean(r.injected_tokens for r in replies), "tokens, mean"),
            *(
                figure(f"ms.{stage}", _mean(getattr(r.timings, stage) for r in replies), "ms, mean")
                for stage in ("barrier", "retrieval", "render", "queue", "model", "total")
            ),
        ]

    def _arm(self, name: str, ask: Callable[[Fact], Chatted]) -> Arm:
        arm = Arm()
        for at, fact in enumerate(self._facts):
            self._progress(f"asked, arm {name}", at, len(self._facts))
            reply = ask(fact)
            right = holds_word(reply.text, fact.value)
            shown = [unit.unit for unit in reply.injected]
            arm.replies.append(reply)
            arm.right += right
            arm.gold += any(unit.id in shown for unit in self._golds[fact])
            arm.foreign += sum(not self._ledger.allows(u, reply.user, ASSISTANT) for u in shown)
            self.details.append(
                {
                    "arm": name,
                    "user": reply.user,
                    "question": fact.question,
                    "value": fact.value,
                    "answer": reply.text,
                    "right": right,
                    "shown": [self._texts.get(unit, "?") for unit in shown],
                }
            )
        return arm

    def _ask_oracle(self, client: Client, fact: Fact) -> Chatted:
        """The assistant's question with the unit alone, where the kernel would put it, by the
        kernel's own code."""
        gold = self._golds[fact]
        text = gold[0].text if gold else fact.says
        block = injection.block([injection.line(text)])
        asked = injection.place((Message("user", fact.question),), block)
        max_tokens = AssistantAgent(client).max_tokens
        return client.chat(asked, memory=False, max_tokens=max_tokens, user=fact.user)

    def _another(self, fact: Fact) -> str:
        """Another user, if possible one who has a fact of the same kind."""
        at = self._users.index(fact.user)
        others = self._users[at + 1 :] + self._users[:at]
        same = [f.user for f in self._facts if f.kind == fact.kind and f.user != fact.user]
        return next((user for user in others if user in same), others[0])


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
