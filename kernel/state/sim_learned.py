"""What the simulated store keeps of learning: submissions and their plans, which units are entries,
and whose attempts those come from.

A dict for each table of :mod:`isovist.storage.learning`, with the same semantics: what names a
submission that is there no more is refused, and a user who is forgotten leaves no origin behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isovist.kernel.state.lessons import Planned
from isovist.syscalls.operations import Drop, Op, Put, Replace
from isovist.syscalls.records import Origin, Submission

ENDED = ("done", "refused")
"""States from which there is no way back."""


@dataclass(slots=True)
class Filed:
    """A submission as its row has it; ``plan``: what it comes to, once that is durable."""

    submission: Submission
    key: str
    plan: tuple[Planned, ...] | None = None


class Learned:
    def __init__(self) -> None:
        self.submissions: dict[str, Filed] = {}
        self.ever: set[str] = set()
        """Submissions that were kept once, those that are gone with their user included."""
        self.entries: dict[str, str] = {}
        """Who wrote each unit that is an entry."""
        self.origins: dict[str, dict[str, Origin]] = {}
        """By unit and submission."""

    def file(self, one: Submission, key: str, most: int) -> tuple[Submission, bool] | None:
        """The submission that is kept, and whether it was known; ``None``: too many wait."""
        pair = (one.user, one.agent)
        mine = [f for f in self.submissions.values()
                if (f.submission.user, f.submission.agent) == pair]  # fmt: skip
        known = next((f for f in mine if key and f.key == key), None)
        if known is not None:
            return known.submission, True
        if sum(f.submission.state == "queued" for f in mine) >= most:
            return None
        self.submissions[one.id] = Filed(one, key)
        self.ever.add(one.id)
        return one, False

    def find(self, id_: str, user: str, agent: str, limit: int) -> tuple[Submission, ...]:
        if id_:
            return tuple(f.submission for f in self.submissions.values() if f.submission.id == id_)
        found = [f.submission for f in self.submissions.values()
                 if f.submission.user == (user or f.submission.user)
                 and f.submission.agent == (agent or f.submission.agent)]  # fmt: skip
        return tuple(found[::-1][:limit])

    def open(self, id_: str) -> Filed | None:
        """A submission that has not ended for good."""
        filed = self.submissions.get(id_)
        return None if filed is None or filed.submission.state in ENDED else filed

    def takes(self, op: Op) -> bool:
        """False where ``op`` comes from a submission that is there no more."""
        learned = op.learned if isinstance(op, Put | Replace) else None
        return learned is None or learned.submission in ("", *self.submissions)

    def wrote(self, op: Op, unit: str) -> None:
        """``op`` took effect, on ``unit``."""
        if isinstance(op, Drop):
            self.leave(unit)
        elif isinstance(op, Put | Replace) and op.learned is not None:
            self.entries[unit] = op.learned.writer
            origins = self.origins.setdefault(unit, {})
            if op.learned.submission:
                one = self.submissions[op.learned.submission].submission
                origins[one.id] = Origin(
                    submission=one.id, user=one.user, agent=one.agent, outcome=one.outcome,
                    at=one.submitted_at,
                )  # fmt: skip
            for part in op.learned.parts:
                origins.update(self.origins.get(part, {}))

    def leave(self, unit: str) -> None:
        self.entries.pop(unit, None)
        self.origins.pop(unit, None)

    def forget(self, user: str) -> None:
        self.submissions = {
            id_: filed for id_, filed in self.submissions.items() if filed.submission.user != user
        }
        for unit, origins in self.origins.items():
            self.origins[unit] = {id_: o for id_, o in origins.items() if o.user != user}

    def sources(self, units: Iterable[str]) -> dict[str, tuple[str, tuple[Origin, ...]]]:
        return {
            unit: (self.entries[unit], tuple(self.origins[unit].values()))
            for unit in units
            if unit in self.entries
        }
