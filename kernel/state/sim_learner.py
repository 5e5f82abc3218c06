"""The simulated learner: splitter, writers and judges of reviews that are up to no good.

What they ask for is mostly against some rule: scopes beyond the cap, entries that they were not
shown, of the other stream or of nobody's view, proposals for what has changed since. All that holds
them is the pure kernel; and what it decides is kept late, twice, or not at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.lessons import (
    MAX_LESSON,
    STREAMS,
    Known,
    Operation,
    Part,
    Planned,
    Proposed,
    Verdict,
    entry_text,
)
from isovist.syscalls.errors import Errno
from isovist.syscalls.records import Partition, Stream, Submission, partition_of

if TYPE_CHECKING:
    from isovist.kernel.state.sim_world import Held, World

VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "error", "timeout", "unknown")
ASKED = ("pair", "user", "agent", "global", "global", "", "everyone", "own/own", "@team/all")
"""Scopes that a writer names, allowed or not."""
PEOPLE, AGENTS = ("ana", "bob", "a"), ("mail", "plan", "a")
"""For whom a review would have an entry."""

NOBODY = Known(id="u0", version=1, partition=partition_of("user", "ana", ""), stream="reusable")
"""An entry that there is not."""


class Learner:
    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.rng
        self._kept = world.store.learned
        self._said = 0

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.FileSubmission: self._file,
            ins.FindSubmissions: self._find,
            ins.FindSources: self._find_sources,
            ins.SaveConsent: self._world.save,
            ins.Learn: lambda i: self._later(lambda: self._learn(i)),
            ins.KeepPlan: lambda i: self._later(lambda: self._keep_plan(i)),
            ins.Conclude: lambda i: self._later(lambda: self._conclude(i)),
            ins.Review: lambda i: self._later(lambda: self._review(i)),
            ins.KeepReview: lambda i: self._world.soon(ev.ReviewKept),
        }

    def begin(self) -> tuple[tuple[str, str, str], ...]:
        """Come up before long; returns what an earlier life has left, some of it planned."""
        self._world.soon(ev.LearnerUp)
        for n in range(self._rng.choice((0, 0, 1, 3))):
            user, agent = self._rng.choice((("ana", "mail"), ("bob", "plan"), ("a_b", "a_b")))
            one = Submission(
                id=f"l{n}", user=user, agent=agent, state="queued",
                outcome=self._rng.choice(VERDICTS), submitted_at=0,
            )  # fmt: skip
            plan = self._planned(one) if self._rng.random() < 0.5 else None
            self._kept.file(one, "", 9)
            self._kept.submissions[one.id].plan = plan
        left = (filed.submission for filed in self._kept.submissions.values())
        return tuple((one.id, one.user, one.agent) for one in left)

    def _planned(self, one: Submission) -> tuple[Planned, ...]:
        plan: list[Planned] = []
        for n in range(self._rng.randrange(3)):
            stream = self._rng.choice(STREAMS)
            to = partition_of("user" if stream == "protected" else "global", one.user, one.agent)
            text = entry_text("before", f"{stream} {one.id} {n}")
            plan.append(
                Planned(
                    what="add", id=f"u{one.id}{n}", stream=stream, partition=to, to=to, text=text
                )
            )
        return tuple(plan)

    def _later(self, act: Callable[[], None]) -> None:
        self._world.after(self._world.delay(), act)

    def _fails(self, rate: float) -> Errno | None:
        if not self._world.chance(rate):
            return None
        return self._rng.choice((Errno.EIO, Errno.ENOSPC))

    # -- submissions

    def _file(self, i: ins.FileSubmission) -> None:
        errno = self._fails(self._world.faults.write)
        kept = None if errno else self._kept.file(i.submission, i.request.key, i.most)
        if kept is None:
            errno = errno or Errno.EAGAIN
            self._world.soon(ev.WorkFailed, key=i.key, errno=errno, message="simulated")
        else:
            one, known = kept
            self._world.soon(ev.SubmissionFiled, key=i.key, submission=one, known=known)

    def _find(self, i: ins.FindSubmissions) -> None:
        early = self._kept.find(i.id, i.user, i.agent, i.limit)
        self._answer(i.key, ev.SubmissionsFound, lambda now: {
            "submissions": self._kept.find(i.id, i.user, i.agent, i.limit) if now else early
        })  # fmt: skip

    def _find_sources(self, i: ins.FindSources) -> None:
        early = self._kept.sources(i.units)
        self._answer(i.key, ev.SourcesFound, lambda now: {
            "turn": i.turn, "sources": self._kept.sources(i.units) if now else early
        })  # fmt: skip

    def _answer(
        self, key: int, event: type[ev.Event], found: Callable[[bool], dict[str, Any]]
    ) -> None:
        """Say what was found, when it was asked for or when it is told; or fail."""
        errno = self._fails(self._world.faults.retrieve)
        if errno:
            self._world.soon(ev.WorkFailed, key=key, errno=errno, message="simulated")
            return
        late = self._rng.random() < 0.5
        self._later(lambda: self._world.say(event, key=key, **found(late)))

    def _learn(self, i: ins.Learn) -> None:
        filed = self._kept.open(i.id)
        if filed is None:
            self._world.say(ev.Stuck, id=i.id)
        elif filed.plan is not None:
            self._world.say(ev.PlanKept, id=i.id, plan=filed.plan, report=filed.submission)
        elif self._world.chance(self._world.faults.request):
            self._world.say(
                ev.Stuck,
                id=i.id,
                errno=self._rng.choice((Errno.EIO, Errno.EINVAL, Errno.ETIMEDOUT)),
                message="simulated",
                lasting=self._rng.random() < 0.3,
                report=self._rng.choice((filed.submission, filed.submission, None)),
            )
        else:
            self._think(i, filed.submission)

    def _think(self, i: ins.Learn, report: Submission) -> None:
        shown: dict[Stream, tuple[Known, ...]] = {
            stream: self._shown(i, stream) for stream in STREAMS
        }
        operations: dict[Stream, tuple[Operation, ...]] = {}
        for stream in STREAMS:
            # Mostly what it may, of what it was shown.
            others = [known for one in STREAMS for known in shown[one]] + [NOBODY]
            known = [*shown[stream], *shown[stream], *shown[stream], *others]
            many = self._rng.choice((0, 1, 1, 2, 4, 20))
            operations[stream] = tuple(
                self._operation(stream, i.scopes[stream], self._rng.choice(known))
                for _ in range(many)
            )
        self._world.say(
            ev.Thought, id=i.id, writer="simulated", report=report, operations=operations,
            shown=shown, cut=1, secrets={"token": 1},
        )  # fmt: skip

    def _shown(self, i: ins.Learn, stream: Stream) -> tuple[Known, ...]:
        """Entries of the view and the stream, mostly: the view may have narrowed since, too."""
        careless = self._rng.random() < 0.3
        found = [
            Known(
                id=unit,
                version=held.version,
                partition=partition,
                stream=held.stream,
            )
            for partition, unit, held in self._entries()
            if careless or (partition in i.view.partitions and held.stream == stream)
        ]
        return tuple(self._rng.sample(found, min(len(found), 6)))

    def _entries(self) -> list[tuple[Partition, str, Held]]:
        return [
            (partition, unit, held)
            for partition, units in self._world.store.units.items()
            for unit, held in units.items()
            if unit in self._kept.entries
        ]

    def _operation(self, stream: Stream, scopes: tuple[str, ...], known: Known) -> Operation:
        chance = self._rng.random()
        if chance < 0.15:
            words = "and more" if self._rng.random() < 0.1 else ""
            reason = self._rng.choice(("it failed", "it failed", " "))
            return Operation(delete=known.id, reason=reason, lesson=words)
        scope = self._rng.choice((*scopes, *scopes, *scopes, *ASKED))
        if chance < 0.3:
            scope = known.partition.scope
        return Operation(
            situation=self._rng.choice(("any", "any", "any", "some\nlines", " ")),
            lesson=self._words(stream),
            scope=scope,
            revises=known.id if chance < 0.5 else "",
        )

    def _words(self, stream: Stream) -> str:
        """Now and then the same as somebody else's, or too many."""
        self._said += 1
        if self._rng.random() < 0.05:
            return "x" * (MAX_LESSON + 1)
        return f"{stream} {self._rng.choice((self._said, self._said, self._rng.randrange(3)))}"

    def _keep_plan(self, i: ins.KeepPlan) -> None:
        filed = self._kept.open(i.id)
        errno = self._fails(self._world.faults.write)
        if filed is None:
            self._world.say(ev.Stuck, id=i.id)
        elif errno:
            self._world.say(ev.Stuck, id=i.id, errno=errno, message="simulated", report=i.report)
        else:
            filed.plan, filed.submission = i.plan, i.report
            self._world.say(ev.PlanKept, id=i.id, plan=i.plan, report=i.report)

    def _conclude(self, i: ins.Conclude) -> None:
        """The end of a submission is kept, as soon as the disk takes it."""
        if self._world.chance(self._world.faults.write):
            self._later(lambda: self._conclude(i))
            return
        filed = self._kept.open(i.report.id)
        if filed is not None:
            filed.submission = i.report
        self._world.say(ev.Concluded, id=i.report.id)

    # -- reviews

    def _review(self, i: ins.Review) -> None:
        errno = self._fails(self._world.faults.request)
        if errno:
            self._world.say(ev.ReviewMade, errno=errno, message="simulated")
            return
        parts = [
            Part(
                id=unit,
                version=max(1, held.version - self._rng.choice((0, 0, 0, 1))),
                partition=partition,
                stream=held.stream,
            )
            for partition, unit, held in self._entries()
            if partition in i.view.partitions
        ]
        many = self._rng.randrange(6) if parts else 0
        self._world.say(
            ev.ReviewMade,
            proposals=tuple(self._proposed(parts) for _ in range(many)),
            looked_at=tuple((part.id, part.version) for part in parts[:9]),
            changed=len(parts),
            shown=len(parts),
            judge="simulated",
        )

    def _proposed(self, parts: list[Part]) -> Proposed:
        if self._rng.random() < 0.4:
            to = partition_of(
                self._rng.choice(ASKED[:4]), self._rng.choice(PEOPLE), self._rng.choice(AGENTS)
            )
            many = self._rng.choice((1, 1, 1, 1, 0, 2))
            return Proposed(parts=tuple(self._rng.choice(parts) for _ in range(many)), to=to)
        first = self._rng.choice(parts)
        near = [p for p in parts if (p.partition, p.stream) == (first.partition, first.stream)]
        others = self._rng.choice((near, near, parts))
        some = tuple(self._rng.choice(others) for _ in range(self._rng.choice((0, 1, 1, 2))))
        return Proposed(
            parts=(first, *some),
            situation=self._rng.choice(("merged", "merged", "merged", "")),
            lesson=self._words(first.stream),
        )
