"""A memory for tests of the bench itself: it notes down the verifier's words and what users say.

No kernel, no learning, nothing that a figure may come from."""

from __future__ import annotations

from collections.abc import Sequence

from bench.port import SCOPES, Cost, Stored
from bench.solvers import Solved


class Notebook:
    """Everything failed is kept for all; everything a user says, for that user. ``leaky``: also
    what tools gave, for all."""

    def __init__(self, *, leaky: bool = False) -> None:
        self.leaky = leaky
        self.kept: list[tuple[str, str, str, Stored]] = []
        self.outcomes: list[str] = []
        self.settled = self.reviewed = 0

    def lessons(
        self, user: str, agent: str, task: str, *, scopes: Sequence[str] = (), budget: int = 0
    ) -> str:
        parts = []
        for scope in scopes or SCOPES:
            lines = [
                "- When {}: {}".format(*entry.text.split("\n", 1))
                for of, _, about, entry in self.kept
                if entry.scope == scope and (of == user if scope == "user" else about in (task, ""))
            ]
            if lines:
                parts.append("\n".join([f"# Learned memory: {scope}", *lines]) + "\n")
        return "\n".join(parts)

    def submit(
        self, user: str, agent: str, task: str, solved: Solved, outcome: str, tail: str
    ) -> None:
        self.outcomes.append(outcome)
        said = (solved.messages[0].content or "").removeprefix(task)
        self._keep(user, agent, "", "user", f"writing reports\n{' '.join(said.split())}")
        if outcome == "failed":
            self._keep(user, agent, task, "global", f"doing this\n{tail}")
        if self.leaky:
            for message in solved.messages:
                if message.role == "tool":
                    text = " ".join((message.content or "").split())
                    self._keep(user, agent, task, "global", f"doing this\n{text}")

    def _keep(self, user: str, agent: str, about: str, scope: str, text: str) -> None:
        self.kept.append((user, agent, about, Stored(str(len(self.kept)), scope, text)))

    def settle(self) -> None:
        self.settled += 1

    def review(self) -> None:
        self.reviewed += 1

    def entries(self, user: str, agent: str) -> list[Stored]:
        return [e for of, _, _, e in self.kept if e.scope == "global" or of == user]

    def cost(self) -> Cost:
        return Cost()
