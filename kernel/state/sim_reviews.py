"""The judge's books on reviews: one at a time, each change as it was proposed and as the rules
allow, and of a merge nothing goes before the words that stand for it are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.lessons import Proposed
from isovist.syscalls import messages as m
from isovist.syscalls.operations import Drop, Move, Op, Replace
from isovist.syscalls.records import Partition

if TYPE_CHECKING:
    from isovist.kernel.state.sim_world import Store

Number = tuple[Partition, int]


@dataclass(eq=False)
class Running:
    """A review: who asked for it (``None``: the kernel), what was proposed, what is under way, and
    what became of the first change of each proposal, by its place."""

    asked: object
    dry: bool
    made: ev.ReviewMade | None = None
    left: dict[Number, tuple[int, Op]] = field(default_factory=dict)
    began: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    dropped: set[tuple[int, str]] = field(default_factory=set)
    keeping: bool = False


class ReviewBooks:
    """Each method gives the rule that is broken, or an empty text."""

    def __init__(
        self,
        store: Store,
        settings: Learning,
        accepted: Mapping[Partition, int],
        choice: Callable[[str], str],
    ) -> None:
        self._store, self._settings, self._accepted = store, settings, accepted
        self._choice = choice
        self.running: Running | None = None
        self._ended: Running | None = None
        """The one that the event at hand has ended."""
        self._asks: object = None
        self._dry = False
        self._first: int | None = None
        """The proposal whose first change has just taken effect."""

    def watches(self) -> dict[type[ins.Instruction], Callable[[Any], str]]:
        return {ins.Review: self._begins, ins.KeepReview: self._keeps}

    def asked(self, asked: object, request: object) -> None:
        """Who makes the request at hand (``None``: there is none)."""
        self._asks = asked if isinstance(request, m.LearnReview) else None
        self._dry = isinstance(request, m.LearnReview) and request.dry_run

    def before(self, event: ev.Event) -> None:
        self._first, self._asks, self._ended = None, None, None
        running = self.running
        if running is None:
            return
        if isinstance(event, ev.ReviewMade) and running.made is None:
            running.made = event
            if event.errno or running.dry:
                self._end()
        elif isinstance(event, ev.ReviewKept) and running.keeping:
            self._end()
        elif isinstance(event, ev.Committed | ev.WriteFailed):
            op = event.outcome.op
            place, _ = running.left.pop((op.partition, op.seq), (None, None))
            if place is not None and not isinstance(op, Drop) and not event.outcome.errno:
                running.done.add(place)
                self._first = place

    def _end(self) -> None:
        self.running, self._ended = None, self.running

    def after(self, event: ev.Event, out: list[ins.Instruction]) -> str:
        running = self.running
        if running is None or running.made is None or running.keeping:
            return ""
        return "" if running.left else "a review whose changes are done does not end"

    def _begins(self, i: ins.Review) -> str:
        if self.running is not None:
            return "a review beside another"
        if self._asks is None and not self._settings.review_after:
            return "a review that nobody asked for"
        self.running = Running(self._asks, self._dry and self._asks is not None)
        reader = (i.view.reader.user, i.view.reader.agent)
        whole = {partition for partition, number in self._accepted.items() if number}
        fits = reader == ("", "") and set(i.view.partitions) == whole
        return "" if fits else f"a review of {i.view}"

    def _keeps(self, i: ins.KeepReview) -> str:
        running = self.running
        if running is None or running.made is None or running.left or running.dry:
            return "a review is kept that is not at its end"
        running.keeping = True
        seen = len(running.made.looked_at)
        idle = {
            (part.id, part.version)
            for place, proposed in enumerate(running.made.proposals)
            for part in proposed.parts
            if place not in running.done
        }
        fits = i.entries[:seen] == running.made.looked_at and idle.issuperset(i.entries[seen:])
        return "" if fits else "it keeps what it has not looked at"

    def change(self, op: Op) -> str:
        """A change that no call and no submission asks for."""
        running = self.running
        if running is None or running.made is None or running.dry or running.keeping:
            return f"{op} that nobody asked for"
        if isinstance(op, Drop):
            return self._goes(running, running.made, op)
        why = f"{op} that no review proposed"
        for place, proposed in enumerate(running.made.proposals):
            if place not in running.began and _fits(proposed, op):
                why = _broken(proposed) or self._unwanted(op)
                if not why:
                    running.began.add(place)
                    running.left[op.partition, op.seq] = place, op
                    break
        return why

    def _unwanted(self, op: Op) -> str:
        users = op.partition.users
        if not isinstance(op, Move) or users.kind != "one" or op.to.users.kind == "one":
            return ""
        choice = self._choice(users.name)
        return "" if choice == "share" else f"{op} opens what its user wants for {choice}"

    def _goes(self, running: Running, made: ev.ReviewMade, op: Drop) -> str:
        place = self._first
        if place is None or op.receipt:
            return f"{op} before what stands for it is stored"
        parts = made.proposals[place].parts[1:]
        fits = any((p.id, p.version, p.partition) == (op.id, op.version, op.partition)
                   for p in parts)  # fmt: skip
        if not fits or (place, op.id) in running.dropped:
            return f"{op} is no part of the merge"
        running.dropped.add((place, op.id))
        running.left[op.partition, op.seq] = place, op
        return ""

    def replied(self, asked: object, reply: m.Reviewed) -> str:
        running = self._ended
        if running is None or running.asked is not asked or running.made is None:
            return f"{reply} of no review"
        if len(reply.changes) != len(running.made.proposals):
            return f"{reply} is silent on some changes"
        told = {place for place, change in enumerate(reply.changes) if change.done}
        return "" if told == running.done else f"{reply}, and {running.done} were done"


def _fits(proposed: Proposed, op: Op) -> bool:
    if not proposed.parts:
        return False
    part = proposed.parts[0]
    if not isinstance(op, Move | Replace):
        return False
    if (op.id, op.version, op.partition) != (part.id, part.version, part.partition):
        return False
    if isinstance(op, Move):
        return op.to == proposed.to
    learned = op.learned
    others = tuple(one.id for one in proposed.parts[1:])
    words = f"{proposed.situation}\n{proposed.lesson}"
    return proposed.to is None and op.text == words and bool(learned and learned.parts == others)


def _broken(proposed: Proposed) -> str:
    first, to = proposed.parts[0], proposed.to
    if to is not None:
        if len(proposed.parts) > 1:
            return f"{proposed} moves several"
        if first.stream == "protected" and to.users.kind != "one":
            return f"{proposed} opens what is protected"
        owners = {p.users.name for p in (first.partition, to) if p.users.kind == "one"}
        return f"{proposed} gives it to another user" if len(owners) > 1 else ""
    if any((p.partition, p.stream) != (first.partition, first.stream) for p in proposed.parts):
        return f"{proposed} merges across audiences or streams"
    if len({part.id for part in proposed.parts}) != len(proposed.parts) or len(proposed.parts) < 2:
        return f"{proposed} merges an entry with itself"
    return "" if proposed.situation and proposed.lesson else f"{proposed} says nothing"
