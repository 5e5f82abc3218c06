"""Reviews of what was learned: one at a time, asked for by the operator or due by themselves.

The shell finds what has changed and has a judge propose; here each proposal is held against the
rules and carried out as compare-and-swap: what was changed meanwhile stays as it is, and is looked
at again by the next review. Of a merge the entry in whose place it stands changes first, and only
then the others go: whatever breaks off in between, nothing that was learned is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.lessons import (
    LEARNER,
    Part,
    Proposed,
    entry_text,
    owner_of,
    review_refusal,
)
from isovist.kernel.state.views import everything
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.operations import Drop, Learned, Move, Op, Outcome, Replace
from isovist.syscalls.records import Axis, Change, Partition

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

OWN = 0
"""As the key of a call: the kernel reviews by itself."""


@dataclass(slots=True)
class Running:
    """The review that runs, for call ``key`` (``OWN``: for none). ``pending``: changes handed out
    and not yet answered; ``changes``: what is told of each proposal; ``refused``: entries for which
    was proposed what cannot be, however often a review looks at them as they are."""

    key: int
    dry: bool
    pending: set[tuple[Partition, int]] = field(default_factory=set)
    made: ev.ReviewMade | None = None
    changes: list[Change] = field(default_factory=list)
    refused: list[Part] = field(default_factory=list)


class Reviewing:
    """Invariant: a review runs iff ``_running`` is not ``None``."""

    def __init__(self, state: State, changed: int) -> None:
        self._state = state
        self._running: Running | None = None
        self._changed = changed
        """Entries that were written since the last review began."""

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.LearnReview: self._asked}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.ReviewMade: self._made, ev.ReviewKept: self._kept}

    # -- when

    def _asked(self, channel: Channel, frame: int, request: m.LearnReview) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator reviews what was learned", errno=Errno.EPERM)
        if self._running is not None:
            raise CallerError("a review is running", errno=Errno.EAGAIN)
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._begin(call.key, request.dry_run)

    def note(self, entries: int) -> None:
        """So many entries were written: a review may be due."""
        self._changed += entries
        due = self._state.lessons.settings.review_after
        if due and self._changed >= due and self._running is None:
            self._begin(OWN, dry=False)

    def _begin(self, key: int, dry: bool) -> None:
        if not dry:
            self._changed = 0
        self._running = Running(key, dry)
        self._state.emit(ins.Review(everything(self._state.barrier.partitions())))

    # -- what

    def _made(self, event: ev.ReviewMade) -> None:
        running = self._running
        if running is None or running.made is not None:
            return
        running.made = event
        if event.errno:
            self._end(running)
            return
        ops: list[tuple[Op, Callable[[Outcome], None]]] = []
        for proposed in event.proposals:
            why = review_refusal(proposed) or self._unwanted(proposed)
            place = len(running.changes)
            running.changes.append(_told(proposed, why))
            if why:
                running.refused += proposed.parts
            elif not running.dry:
                ops.append(self._first(place, proposed))
        for op, then in ops:
            self._hand_out(running, op, then)
        if not ops:
            self._settle(running)

    def _unwanted(self, proposed: Proposed) -> str:
        """Why it is not wanted: by the settings, or by its user, who is learned from for own use
        alone and shares nothing; empty: it is."""
        if proposed.to is None:
            return ""
        lessons, axis = self._state.lessons, proposed.parts[0].partition.users
        if proposed.to.scope not in lessons.settings.scopes:
            return f"lessons may go to {', '.join(lessons.settings.scopes)} alone"
        for part in proposed.parts:
            pair, whose = part.partition, part.partition.agents
            hidden = pair.users.kind == "one" and whose == Axis("one", LEARNER)
            if hidden or (whose.kind == "one" and self._state.distrust.of(whose.name)):
                return "it comes from an agent that is distrusted"
        opens = axis.kind == "one" and proposed.to.users.kind != "one"
        if opens and not lessons.shares(axis.name):
            return "its user shares nothing with others"
        return ""

    def _first(self, place: int, proposed: Proposed) -> tuple[Op, Callable[[Outcome], None]]:
        accept, now = self._state.barrier.accept, self._state.calendar()
        part = proposed.parts[0]
        if proposed.to is not None:
            move = Move(
                partition=part.partition,
                seq=accept(part.partition),
                id=part.id,
                version=part.version,
                to=proposed.to,
                to_seq=accept(proposed.to),
                stored_at=now,
                owner=owner_of(proposed.to),
            )
            return move, partial(self._done, place, ())
        judge = self._running.made.judge if self._running and self._running.made else ""
        merged = Replace(
            partition=part.partition,
            seq=accept(part.partition),
            id=part.id,
            version=part.version,
            text=entry_text(proposed.situation, proposed.lesson),
            stored_at=now,
            learned=Learned(writer=judge, parts=tuple(p.id for p in proposed.parts[1:])),
        )
        return merged, partial(self._done, place, proposed.parts[1:])

    def _hand_out(self, running: Running, op: Op, then: Callable[[Outcome], None]) -> None:
        running.pending.add((op.partition, op.seq))
        self._state.memory.hand_out_own(op, then)

    def _done(self, place: int, others: tuple[Part, ...], outcome: Outcome) -> None:
        """The first change of a proposal has come to its end; if it took effect, the others go."""
        running = self._answered(outcome)
        change = running.changes[place]
        if outcome.errno:
            why = "it was changed meanwhile" if outcome.errno == Errno.ESTALE else outcome.message
            running.changes[place] = _with(change, done=False, why=why)
            if outcome.errno == Errno.EEXIST and running.made is not None:
                running.refused += running.made.proposals[place].parts
        else:
            running.changes[place] = _with(change, done=True)
            for part in others:
                drop = Drop(
                    partition=part.partition,
                    seq=self._state.barrier.accept(part.partition),
                    id=part.id,
                    version=part.version,
                    stored_at=self._state.calendar(),
                )
                self._hand_out(running, drop, self._dropped)
        if not running.pending:
            self._settle(running)

    def _dropped(self, outcome: Outcome) -> None:
        """A part that was changed meanwhile stays an entry of its own."""
        running = self._answered(outcome)
        if not outcome.errno:
            self._state.forgetting.left((outcome.op.id,))
        if not running.pending:
            self._settle(running)

    def _answered(self, outcome: Outcome) -> Running:
        if self._running is None:
            raise KernelError("a change of no review")
        self._running.pending.discard((outcome.op.partition, outcome.op.seq))
        return self._running

    # -- the end

    def _settle(self, running: Running) -> None:
        """All is done: what was looked at and has not changed need not be looked at again."""
        if running.dry or running.made is None:
            self._end(running)
        else:
            refused = ((part.id, part.version) for part in running.refused)
            self._state.emit(ins.KeepReview((*running.made.looked_at, *refused)))

    def _kept(self, event: ev.ReviewKept) -> None:
        running = self._running
        # Else it is about an earlier one.
        if running is not None and running.made is not None and not running.pending:
            self._end(running)

    def _end(self, running: Running) -> None:
        self._running = None
        made = running.made
        call = self._state.calls.get(running.key)
        if call is None or call.step is not Step.LOOKUP or made is None:
            return
        if made.errno:
            self._fail(call, made)
            return
        self._state.finish(
            call,
            m.Reviewed(
                changed=made.changed,
                looked_at=made.shown,
                batches=made.batches,
                changes=tuple(running.changes),
                judge=made.judge,
                tokens=made.tokens,
            ),
        )

    def _fail(self, call: Call, made: ev.ReviewMade) -> None:
        self._state.fail(call, CallerError(made.message, errno=Errno(made.errno)))

    def validate(self) -> None:
        running = self._running
        assert running is None or running.made is not None or not running.pending


def _told(proposed: Proposed, why: str) -> Change:
    scope = proposed.to.scope if proposed.to is not None else ""
    if proposed.parts and not scope:
        scope = proposed.parts[0].partition.scope
    return Change(
        what="rescope" if proposed.to is not None else "merge",
        entries=tuple(part.id for part in proposed.parts),
        scope=scope,
        situation=proposed.situation,
        lesson=proposed.lesson,
        why=why,
    )


def _with(change: Change, *, done: bool, why: str = "") -> Change:
    return Change(
        what=change.what,
        entries=change.entries,
        scope=change.scope,
        situation=change.situation,
        lesson=change.lesson,
        done=done,
        why=why,
    )
