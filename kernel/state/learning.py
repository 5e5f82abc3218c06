"""Learning: submissions on their way through splitter, writers and rules into entries [M].

One submission is worked on at a time, in steps that the shell makes durable: it is filed, thought
about (split, written by two writers, scanned), planned, carried out, concluded. A kernel that dies
goes on with the last durable step, and what a plan changes names the very version that it was made
for and ids that come from the submission; so whatever happens, each submission ends once.

What the writers ask for is a proposal. What becomes of it is decided here, by the rules of
:mod:`isovist.kernel.state.lessons`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.lessons import (
    MAX_OPERATIONS,
    STREAMS,
    VERDICTS,
    Planned,
    Verdict,
    refusal,
    scopes_for,
)
from isovist.kernel.state.plans import kinds_of, op_for, planned_for, shares
from isovist.kernel.state.sharing import acts_as_itself
from isovist.kernel.state.views import belonging
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.names import check_name, check_text
from isovist.syscalls.operations import Drop, Learned, Move, Op, Outcome, Put, Replace
from isovist.syscalls.records import (
    SCOPES,
    Partition,
    Reader,
    Stream,
    Submission,
)

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MAX_TASK = 8 * 1024
"""Bytes of a task, of a verifier's last words, of a claim."""
MOST = 64
"""Submissions of a pair that may wait."""
FILING = 4
"""Submissions of one channel that may wait for the disk; each may hold half a megabyte."""
TRIES = 5
"""Tries at a submission before it is parked, where the world is at fault."""
AGAIN, LATEST = 1_000_000_000, 60_000_000_000
"""Nanoseconds until such a try is made again, doubled each time up to the second."""
CHOICES: tuple[str, ...] = ("nothing", "own", "share")
"""What a user may consent to, narrow to wide."""


class Learning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this kernel learns; the table ``[learn]`` of ``config.toml``.

    ``writer``: ``rules`` (no model is asked), ``model`` (one answer a stream), ``agentic`` (several
    turns), ``off`` (nothing is learned). ``model``: who is asked; empty: the default model.
    ``scopes``: where lessons may go. ``consent``: of users who have not chosen. ``widen``: what
    lets a review open a lesson to other users beside its stream: that a second user's pair has
    learned the same (``pairs``), or nothing but a person's hand (``person``). ``review_after``:
    changed entries after which the kernel reviews by itself; 0: on demand alone.
    """

    writer: Literal["rules", "model", "agentic", "off"] = "rules"
    model: str = ""
    scopes: tuple[str, ...] = SCOPES
    consent: Literal["nothing", "own", "share"] = "share"
    widen: Literal["pairs", "person"] = "pairs"
    review_after: int = 200


class Phase(Enum):
    """What is waited for: ``Thought``, ``PlanKept``, the last of its changes, ``Concluded``. Words
    of an earlier phase come too late, and change nothing."""

    THINK = auto()
    KEEP = auto()
    DO = auto()
    END = auto()


Change = tuple[str, type[Op]]
"""The entry that is changed, and how."""


@dataclass(slots=True)
class Job:
    """The submission that is worked on. ``pending``: the changes handed out and not yet answered.
    ``settled``: those of its plan that are answered for good, in this try or before; ``refused``:
    entries of which the disk has refused one in this try; ``moves``: by entry, what is to be moved
    once it is revised, and only then. ``gone``: its user was forgotten
    meanwhile, so nothing more comes of it."""

    id: str
    user: str
    agent: str
    tries: int = 0
    phase: Phase = Phase.THINK
    report: Submission | None = None
    pending: set[tuple[Partition, int]] = field(default_factory=set)
    settled: set[Change] = field(default_factory=set)
    moves: dict[str, Planned] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    gone: bool = False


class Lessons:
    """Invariants: ``_queue`` holds all and only the submissions that wait, each once, without the
    one of ``_job``; ``_filing`` has the submissions handed to the disk and not yet answered, by key
    of their call, ended calls included; ``_begun`` has what was done of those that are to be tried
    again, and ``_reviving`` those of which that is not durable yet."""

    def __init__(
        self,
        state: State,
        settings: Learning,
        waiting: Iterable[tuple[str, str, str]],
        consents: Mapping[str, str],
    ) -> None:
        self._state = state
        self.settings = settings
        self._queue: deque[tuple[str, str, str]] = deque(waiting)
        self._consents = dict(consents)
        self._filing: dict[int, int] = {}
        self._job: Job | None = None
        self._up = False
        self._begun: dict[str, Job] = {}
        self._reviving: dict[str, tuple[str, str, str]] = {}
        self._newest: dict[str, int] = {}
        self._chosen: dict[int, tuple[str, str]] = {}
        """By user: the key of the call that was the last one to choose."""
        self._not_before = 0

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.LearnSubmit: self._submit,
            m.LearnStatus: self._status,
            m.LearnConsent: self._consent,
        }

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.LearnerUp: self._began,
            ev.SubmissionFiled: self._filed,
            ev.SubmissionsFound: self._found,
            ev.Thought: self._thought,
            ev.PlanKept: self._kept,
            ev.Stuck: self._stuck,
            ev.Concluded: self._concluded,
        }

    def waiting(self, user: str = "", agent: str = "") -> int:
        """Submissions that are not at their end, of a pair; an empty name stands for all."""
        job = [(self._job.id, self._job.user, self._job.agent)] if self._job else []
        waiting = (*job, *self._queue, *self._reviving.values())
        return sum(user in ("", whose) and agent in ("", by) for _, whose, by in waiting)

    # -- requests

    def _submit(self, channel: Channel, frame: int, request: m.LearnSubmit) -> None:
        check_text(request.task, "task", MAX_TASK)
        for name in ("verifier_tail", "claim"):
            if getattr(request, name):
                check_text(getattr(request, name), name, MAX_TASK)
        if not request.trajectory:
            raise CallerError("trajectory is empty", field="trajectory")
        if request.key:
            check_name(request.key, "key")
        if self.settings.writer == "off":
            raise CallerError("this kernel does not learn", errno=Errno.ENOSYS)
        resolved = self._state.users.resolve(channel.who, request.user)
        if sum(number == channel.number for number in self._filing.values()) >= FILING:
            raise CallerError(
                f"{FILING} submissions wait for the disk, the limit", errno=Errno.EAGAIN
            )
        call = self._state.open(channel, frame, request, resolved)
        refused = self._choice(resolved.user) == "nothing"
        submission = Submission(
            id=self._state.opaque("l", self._state.boot, call.key),
            user=resolved.user,
            agent=call.agent,
            state="refused" if refused else "queued",
            outcome=request.outcome,
            submitted_at=self._state.calendar(),
        )
        if refused:
            self._reply(call, (submission,))
            return
        call.to(Step.SAVE, self._state.now)
        self._filing[call.key] = channel.number
        self._state.emit(ins.FileSubmission(call.key, submission, request, MOST))

    def _status(self, channel: Channel, frame: int, request: m.LearnStatus) -> None:
        if not 1 <= request.limit <= 500:
            raise CallerError("limit must be 1 to 500", field="limit")
        if request.retry and not request.id:
            raise CallerError("retry needs the id of a submission", field="id")
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        user, agent = self._whose(call)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.FindSubmissions(call.key, request.id, user, agent, request.limit))

    def _consent(self, channel: Channel, frame: int, request: m.LearnConsent) -> None:
        resolved = self._state.users.resolve(channel.who, request.user)
        user, now = resolved.user, self._choice(resolved.user)
        if not request.choice:
            self._state.reply(channel, frame, m.Consent(user=user, choice=now))
            return
        if not channel.who.operator and CHOICES.index(request.choice) > CHOICES.index(now):
            raise CallerError(
                "an agent may narrow what its user consents to; the operator may widen it",
                errno=Errno.EPERM,
                field="choice",
            )
        call = self._state.open(channel, frame, request, resolved)
        self._newest[user] = call.key
        self._chosen[call.key] = user, request.choice
        # What is narrower holds from now on, whatever becomes of the disk.
        if CHOICES.index(request.choice) < CHOICES.index(now):
            self._consents[user] = request.choice
        call.to(Step.LOOKUP, self._state.now)
        self._state.chronicle.note(
            "learn.consent", call.agent, request.choice, users=(user,), before=now
        )
        self._state.emit(ins.SaveConsent(call.key, user, request.choice))

    def saved(self, key: int) -> None:
        """A choice is durable, whether or not its call waits for that; it holds unless there is a
        newer one."""
        user, choice = self._chosen.pop(key, ("", ""))
        if user and self._newest.get(user) == key:
            self._consents[user] = choice
            del self._newest[user]

    @staticmethod
    def consented(call: Call) -> m.AnyReply:
        """What the call that made a choice is told."""
        if call.resolved is None or not isinstance(call.request, m.LearnConsent):
            raise KernelError("a consent of nobody", story=call.told())
        return m.Consent(user=call.resolved.user, choice=call.request.choice)

    def shares(self, user: str) -> bool:
        """Whether other users may be told, from now on, what is learned from this one."""
        return self._choice(user) == "share"

    def _choice(self, user: str) -> str:
        return self._consents.get(user, self.settings.consent)

    # -- what is told of submissions

    def answered(self, key: int) -> None:
        """The store has taken, or refused, the submission of call ``key``."""
        self._filing.pop(key, None)
        self._chosen.pop(key, None)

    def _filed(self, event: ev.SubmissionFiled) -> None:
        if self._filing.pop(event.key, None) is None:
            return
        one = event.submission
        if not event.known:
            self._queue.append((one.id, one.user, one.agent))
        call = self._state.calls.get(event.key)
        if call is not None and call.step is Step.SAVE:
            self._reply(call, (one,), known=event.known)
        self._next()

    def _found(self, event: ev.SubmissionsFound) -> None:
        call = self._state.calls.get(event.key)
        if call is None or call.step is not Step.LOOKUP:
            return
        request = call.request
        if not isinstance(request, m.LearnStatus):
            raise KernelError("submissions for nobody", story=call.told())
        found = event.submissions
        if request.id:
            found = tuple(one for one in found if self._may_see(call, one))
            if not found:
                why = "no submission of that id"
                self._state.fail(call, CallerError(why, errno=Errno.ENOENT, field="id"))
                return
        if request.retry:
            one = found[0]
            if one.state != "parked" or self._waits(one.id):
                now = "queued" if one.state == "parked" else one.state
                why = f"the submission is {now}, not parked"
                self._state.fail(call, CallerError(why, field="id"))
                return
            if not one.kept:
                why = "the submission's text is kept no more"
                self._state.fail(call, CallerError(why, errno=Errno.ENOENT, field="id"))
                return
            # It waits again when that is durable: else the word of it would end its next try.
            found = (replace(one, state="queued", error="", ended_at=0),)
            self._reviving[one.id] = one.id, one.user, one.agent
            self._state.emit(ins.Conclude(found[0]))
        self._reply(call, found)

    def _waits(self, id_: str) -> bool:
        """Whether a submission is worked on or will be, whatever the store still says of it."""
        waiting = any(one[0] == id_ for one in self._queue)
        return waiting or id_ in self._reviving or (self._job is not None and self._job.id == id_)

    def _whose(self, call: Call) -> tuple[str, str]:
        """(user, agent) of whose submissions the caller may hear; an empty name stands for all. How
        much others hand in is no agent's to know."""
        if acts_as_itself(self._state.channels[call.channel].who):
            return call.request.user or "", ""
        return call.resolved.user if call.resolved else "", call.agent

    def _may_see(self, call: Call, one: Submission) -> bool:
        user, agent = self._whose(call)
        return user in ("", one.user) and agent in ("", one.agent)

    def _reply(self, call: Call, found: tuple[Submission, ...], known: bool = False) -> None:
        job = self._job.id if self._job else ""
        user, agent = self._whose(call)
        self._state.finish(
            call,
            m.Submissions(
                submissions=tuple(
                    replace(one, state="learning") if one.id == job and one.state == "queued"
                    else one
                    for one in found
                ),
                user=call.resolved.user if call.resolved else "",
                rule=call.resolved.rule if call.resolved else "",
                known=known,
                waiting=self.waiting(user, agent),
            ),
        )  # fmt: skip

    # -- one submission after the other

    def _began(self, event: ev.LearnerUp) -> None:
        # A kernel that does not learn leaves what waits for one that does.
        self._up = self.settings.writer != "off"
        self._next()

    def woken(self) -> None:
        self._next()

    def _next(self) -> None:
        if not self._up or self._job is not None or not self._queue:
            return
        if self._not_before > self._state.now:
            self._state.timer(self._not_before, 0, "learn")
            return
        id_, user, agent = self._queue.popleft()
        job = self._job = self._begun.pop(id_, None) or Job(id_, user, agent)
        job.tries, job.phase = job.tries + 1, Phase.THINK
        job.refused.clear()
        choice = self._choice(user)
        scopes: dict[Stream, tuple[str, ...]] = {
            stream: () if choice == "nothing" else self._scopes(stream, choice, agent)
            for stream in STREAMS
        }
        view = self._state.groups.view(Reader(user, agent))
        own = belonging(user, self._state.barrier.partitions())
        self._state.emit(ins.Learn(id_, view, own, scopes))

    def _scopes(self, stream: Stream, choice: str, agent: str) -> tuple[str, ...]:
        scopes = scopes_for(stream, self.settings.scopes, choice)
        # What nobody should believe is learned for its own pair alone.
        return tuple(s for s in scopes if s == "pair" or not self._state.distrust.of(agent))

    def _mine(self, id_: str, *phases: Phase) -> Job | None:
        """The job, if the event is about it and not late. One whose user was forgotten ends
        here."""
        job = self._job
        if job is None or job.id != id_ or job.phase not in phases:
            return None
        if job.gone:
            self._end()
            return None
        return job

    def _thought(self, event: ev.Thought) -> None:
        """Hold what the writers ask for against the rules, and make a plan of what is left."""
        job = self._mine(event.id, Phase.THINK)
        if job is None:
            return
        choice = self._choice(job.user)
        report = event.report
        if choice == "nothing":
            self._conclude(job, replace(report, state="refused"))
            return
        seen = frozenset(self._state.groups.view(Reader(job.user, job.agent)).partitions)
        plan: list[Planned] = []
        reasons: list[str] = []
        touched: set[str] = set()
        for stream in STREAMS:
            asked = event.operations.get(stream, ())
            if len(asked) > MAX_OPERATIONS:
                many = f"a writer may ask for {MAX_OPERATIONS} operations at most"
                reasons += [many] * (len(asked) - MAX_OPERATIONS)
            shown = {k.id: k for k in event.shown.get(stream, ()) if k.partition in seen}
            scopes = self._scopes(stream, choice, job.agent)
            for place, operation in enumerate(asked[:MAX_OPERATIONS]):
                why = refusal(operation, stream, scopes, shown, _verdict(report))
                named = operation.delete or operation.revises
                if not why and named in touched:
                    why = "the entry is changed already"
                if why:
                    reasons.append(why)
                    continue
                if named:
                    touched.add(named)
                id_ = self._state.opaque("u", "learned", job.id, stream, place)
                pair = Reader(job.user, job.agent)
                plan.append(planned_for(operation, stream, shown.get(named), id_, pair))
        report = replace(
            report,
            writer=event.writer,
            cut=event.cut,
            secrets=_sum(report.secrets, event.secrets),
            denied=len(reasons),
            reasons=tuple(dict.fromkeys(reasons)),
        )
        job.phase = Phase.KEEP
        self._state.emit(ins.KeepPlan(job.id, tuple(plan), report))

    def _kept(self, event: ev.PlanKept) -> None:
        """Carry the plan out. Each change is numbered, and readers wait for it, like any write.
        What its user has come to refuse since it was made is left out."""
        job = self._mine(event.id, Phase.THINK, Phase.KEEP)
        if job is None:
            return
        choice, plan = self._choice(job.user), event.plan
        if choice == "nothing":
            self._conclude(job, replace(job.report or event.report, state="refused"))
            return
        if choice == "own":
            plan = tuple(planned for planned in plan if not shares(planned))
        if job.report is None:
            report = replace(event.report, entries=(), added=0, revised=0, deleted=0)
            job.report = _denied(report, len(event.plan) - len(plan), "its user shares no more")
        job.phase = Phase.DO
        learned = Learned(writer=job.report.writer, submission=job.id)
        accept, now = self._state.barrier.accept, self._state.calendar()
        job.moves = {}
        ops: list[Op] = []
        for planned in plan:
            left = [kind for kind in kinds_of(planned) if (planned.id, kind) not in job.settled]
            ops += [op_for(planned, kind, accept, now, learned) for kind in left[:1]]
            if len(left) > 1:
                job.moves[planned.id] = planned
        job.pending = {(op.partition, op.seq) for op in ops}
        for op in ops:
            self._state.memory.hand_out_own(op, self._done)
        if not ops:
            self._conclude(job, replace(job.report, state="done"))

    def _done(self, outcome: Outcome) -> None:
        """One change has come to its end; the last one of a plan ends its submission."""
        job, op = self._job, outcome.op
        if job is None or job.report is None:
            raise KernelError("a change of no submission")
        job.pending.discard((op.partition, op.seq))
        if outcome.errno in (Errno.ENOSPC, Errno.EIO):
            job.refused.add(op.id)
        else:
            job.settled.add((op.id, type(op)))
            job.report = self._counted(job.report, outcome)
            self._move(job, op, revised=not outcome.errno)
        if job.pending:
            return
        if job.gone:
            self._end()
        elif job.refused:
            self._again(job, "the disk refused it")
        else:
            self._state.reviewing.note(job.report.added + job.report.revised)
            self._conclude(job, replace(job.report, state="done"))

    def _move(self, job: Job, op: Op, revised: bool) -> None:
        """An entry that was revised goes where it is to be. One that was not stays as it is, and
        where it is: its words may be another's by now, and no scan has seen them."""
        planned = job.moves.pop(op.id, None)
        if planned is None or job.report is None or job.gone:
            return
        kept_back = shares(planned) and not self.shares(job.user)
        if not revised or kept_back:
            job.settled.add((op.id, Move))
            job.report = _denied(job.report, int(kept_back and revised), "its user shares no more")
            return
        learned = Learned(writer=job.report.writer, submission=job.id)
        accept, now = self._state.barrier.accept, self._state.calendar()
        op = op_for(planned, Move, accept, now, learned)
        job.pending.add((op.partition, op.seq))
        self._state.memory.hand_out_own(op, self._done)

    def _counted(self, report: Submission, outcome: Outcome) -> Submission:
        """The report, with what became of one change in it."""
        op = outcome.op
        # An earlier life of this plan may have stored it, under the same id.
        there = outcome.errno == Errno.EEXIST and isinstance(op, Put)
        if outcome.errno and not there:
            return _denied(report, 1, "the entry has changed since")
        if isinstance(op, Put):
            # Not new where the same had been learned before, and now has one origin more.
            new = outcome.id in ("", op.id)
            entries = (*report.entries, outcome.id or op.id)
            return replace(report, added=report.added + new, entries=entries)
        if isinstance(op, Replace):
            entries = (*report.entries, op.id)
            return replace(report, revised=report.revised + 1, entries=entries)
        if isinstance(op, Drop):
            self._state.forgetting.left((op.id,))
            return replace(report, deleted=report.deleted + 1)
        return report

    def _stuck(self, event: ev.Stuck) -> None:
        job = self._mine(event.id, Phase.THINK, Phase.KEEP)
        if job is None:
            return
        if not event.errno:
            self._end()
        elif event.lasting and event.report is None:
            # It cannot even be read: it must not stand before all others.
            self._state.emit(ins.Postponed(job.id, event.message))
            self._end()
        elif (event.lasting or job.tries >= TRIES) and event.report is not None:
            if job.settled:
                job.tries = 0
                self._begun[job.id] = job
            self._conclude(job, replace(event.report, state="parked", error=event.message))
        else:
            self._again(job, event.message)

    def _again(self, job: Job, why: str) -> None:
        """The world was at fault: this one once more, and after a while; before all others, until
        it has had its tries."""
        self._begun[job.id] = job
        again = self._queue.appendleft if job.tries < TRIES else self._queue.append
        again((job.id, job.user, job.agent))
        pause = min(AGAIN * 2 ** min(job.tries - 1, 10), LATEST)
        self._not_before = self._state.now + pause
        self._state.emit(ins.Postponed(job.id, why))
        self._end()

    def _conclude(self, job: Job, report: Submission) -> None:
        job.phase = Phase.END
        self._state.emit(ins.Conclude(replace(report, ended_at=self._state.calendar())))

    def _concluded(self, event: ev.Concluded) -> None:
        job = self._job
        if job is not None and job.id == event.id and job.phase is Phase.END:
            self._end()
        elif event.id in self._reviving:
            self._queue.append(self._reviving.pop(event.id))
            self._next()

    def _end(self) -> None:
        # What was planned before its agent was distrusted is hidden after all.
        if self._job is not None:
            self._state.distrust.look(self._job.agent)
        self._job = None
        self._next()

    # -- a user who is forgotten

    def forget(self, user: str) -> None:
        """What waits for the user is gone from the store, and must not come back."""
        self._queue = deque(one for one in self._queue if one[1] != user)
        self._reviving = {id_: one for id_, one in self._reviving.items() if one[1] != user}
        self._begun = {id_: job for id_, job in self._begun.items() if job.user != user}
        self._consents.pop(user, None)
        self._newest.pop(user, None)
        self._chosen = {key: one for key, one in self._chosen.items() if one[0] != user}
        if self._job is not None and self._job.user == user:
            self._job.gone = True

    def validate(self) -> None:
        ids = [id_ for id_, *_ in self._queue]
        assert len(set(ids)) == len(ids), "a submission waits twice"
        assert self._job is None or self._job.id not in ids, "it waits and is worked on"
        assert self._reviving.keys().isdisjoint(ids), "it waits before that is durable"
        assert self._job is None or bool(self._job.pending) == (self._job.phase is Phase.DO)
        assert not self._queue or not self._up or self._job or self._not_before > 0, "idle"
        for call in self._state.calls.values():
            if isinstance(call.request, m.LearnSubmit):
                assert (call.step is Step.SAVE) == (call.key in self._filing), call


def _verdict(report: Submission) -> Verdict:
    return next(verdict for verdict in VERDICTS if verdict == report.outcome)


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in sorted(one.keys() | other.keys())}


def _denied(report: Submission, more: int, why: str) -> Submission:
    """The report, where ``more`` operations are denied for one reason."""
    if not more:
        return report
    reasons = tuple(dict.fromkeys((*report.reasons, why)))
    return replace(report, denied=report.denied + more, reasons=reasons)
