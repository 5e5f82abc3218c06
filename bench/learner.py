"""A kernel that learns, as a bench uses it: attempts in, lessons out, through its syscalls alone.

Lessons and entries are asked for as the agent at hand asks for them, for the user at hand, so they
pass the same view and the same guard as everybody's.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec

from bench.crowd import AGENTS
from bench.host import Host
from bench.port import Cost, Stored
from bench.report import CannotRun
from bench.solvers import Solved
from isovist.kernel.state.learning import Learning
from isovist.syscalls.client import Client
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.records import Message

MOST_TAIL = 2_000
"""Characters of a verifier's words that are handed in, the last ones."""
MOST_TRAJECTORY = 400_000
"""Bytes; of a longer one the longest messages are cut."""
POLL = 0.02
DEADLINE_MS = 600_000
PAGE = 100
Verdict = Literal["passed", "failed", "error", "timeout", "unknown"]


@dataclass(frozen=True)
class Setup:
    """A condition's kernel. ``budget``: characters a scope."""

    folder: Path
    scopes: tuple[str, ...]
    split: bool
    writer: str
    model: str
    budget: int
    embedder: str


@contextmanager
def learner(setup: Setup) -> Iterator[Learner]:
    settings = msgspec.convert(
        {
            "writer": setup.writer,
            "model": setup.model,
            "scopes": setup.scopes,
            "review_after": 0,
        },
        Learning,
    )
    with ExitStack() as stack:
        host = stack.enter_context(
            Host(
                setup.folder,
                model=setup.model or "scripted",
                embedder=setup.embedder,
                learn=settings,
                split=setup.split,
            )
        )
        clients = {agent: stack.enter_context(host.connect(agent)) for agent in AGENTS}
        operator = stack.enter_context(host.connect())
        yield Learner(host, operator, clients, setup.budget)


class Learner:
    """:class:`bench.port.Memory` of a running kernel."""

    def __init__(
        self, host: Host, operator: Client, clients: dict[str, Client], budget: int
    ) -> None:
        self._host, self._operator, self._clients = host, operator, clients
        self._budget = budget
        self._submitted: list[tuple[str, str, str]] = []

    def lessons(
        self, user: str, agent: str, task: str, *, scopes: Sequence[str] = (), budget: int = 0
    ) -> str:
        found = self._clients[agent].learn_lessons(
            task, user=user, budget=budget or self._budget, scopes=tuple(scopes)
        )
        if found.barrier.state != "ready":
            raise CannotRun("the kernel did not catch up with its own writes")
        return found.text

    def submit(
        self, user: str, agent: str, task: str, solved: Solved, outcome: str, tail: str
    ) -> None:
        while True:
            try:
                reply = self._clients[agent].learn_submit(
                    task,
                    _bounded(solved.messages),
                    outcome=cast(Verdict, outcome),
                    verifier_tail=tail[-MOST_TAIL:],
                    claim=solved.claim,
                    user=user,
                )
            except IsovistError as e:
                # Too many of this pair wait.
                if e.errno != Errno.EAGAIN:
                    raise
                time.sleep(POLL)
                continue
            self._submitted.append((user, agent, reply.submissions[0].id))
            return

    def settle(self) -> None:
        while self._operator.learn_status(limit=1).waiting:
            time.sleep(POLL)

    def review(self) -> None:
        self._operator.learn_review(deadline_ms=DEADLINE_MS)

    def entries(self, user: str, agent: str) -> list[Stored]:
        found: list[Stored] = []
        after = ""
        while True:
            page = self._clients[agent].learn_list(user=user, limit=PAGE, after=after)
            found += [Stored(e.id, e.scope, f"{e.situation}\n{e.lesson}") for e in page.entries]
            after = page.next
            if not after:
                return found

    def cost(self) -> Cost:
        """Of all so far."""
        ended = Counter(
            self._operator.learn_status(id=id_).submissions[0].state
            for _, _, id_ in self._submitted
        )
        usage = self._operator.metering("model")
        return Cost(
            seconds=_processor_seconds(self._host.pid),
            tokens=sum(u.prompt_tokens + u.output_tokens for u in usage),
            ended=tuple(sorted(ended.items())),
        )


def _bounded(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What a submission may hold: of an attempt that read whole books, their beginnings."""
    kept = list(messages)
    room = MOST_TRAJECTORY
    while len(msgspec.msgpack.encode(kept)) > room:
        n = max(range(len(kept)), key=lambda n: len(kept[n].content or ""))
        text = kept[n].content or ""
        if len(text) < 1000:
            raise CannotRun("an attempt is too long to be handed in")
        kept[n] = msgspec.structs.replace(kept[n], content=text[: len(text) // 2])
    return tuple(kept)


def _processor_seconds(pid: int) -> float:
    """Of a process and those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
