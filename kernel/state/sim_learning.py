"""The judge's books on learning: what may come of a submission, in its own words.

Each submission is worked on alone, comes to one end, and changes what its plan says, once. A plan
holds only what a writer of that stream asked for, of entries that were shown to it, in scopes that
its stream, the settings and its user allow. What is protected reaches no other user, whoever
asks; what others read is changed by a recorded verdict; and of a user who wants nothing learned,
or was forgotten, nothing more comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.lessons import Operation, Planned
from isovist.kernel.state.sim_reviews import ReviewBooks
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Move, Op, Put, Replace
from isovist.syscalls.records import Axis, Partition

if TYPE_CHECKING:
    from isovist.kernel.state.sim_world import Store

OWN, ALL = ("pair", "user"), ("pair", "user", "agent", "global")
CHOICES = ("nothing", "own", "share")
TRIES, OPERATIONS, FILING = 5, 16, 4
ENDS = ("done", "refused", "parked")
DISK = (Errno.EIO, Errno.ENOSPC)
LEARNER = "kernel/learner"


@dataclass(eq=False)
class Way:
    """One submission. ``state``: filing, queued, learning, planned, doing, ending, reviving, or the
    end it came to; ``gone``: its user was forgotten. ``left``: its changes under way; ``took``: the
    new entries that it has made."""

    id: str
    user: str
    agent: str
    outcome: str
    state: str = "filing"
    gone: bool = False
    tries: int = 0
    left: set[tuple[Partition, int]] = field(default_factory=set)
    settled: set[tuple[str, str]] = field(default_factory=set)
    """Those that have come to an end, so that they are not made again."""
    failed: set[str] = field(default_factory=set)
    """Entries of which the disk has refused a change, in this try."""
    wanted: set[tuple[str, str]] = field(default_factory=set)
    """(entry, kind of change) that are left of its plan."""
    took: dict[str, bool] = field(default_factory=dict)
    end: str = ""
    plan: tuple[Planned, ...] = ()

    @property
    def busy(self) -> bool:
        return self.state in ("learning", "planned", "doing", "ending") and not self.gone


class LearningBooks:
    """Each method gives the rule that is broken, or an empty text. ``view(user, agent)``: what a
    pair sees now; ``accepted``: how many writes each partition has taken."""

    def __init__(
        self,
        store: Store,
        settings: Learning,
        view: Callable[[str, str], Iterable[Partition]],
        accepted: Mapping[Partition, int],
    ) -> None:
        self._store, self._settings, self._view, self._accepted = store, settings, view, accepted
        self._ways = {
            one.id: Way(one.id, one.user, one.agent, one.outcome, "queued")
            for one in (filed.submission for filed in store.learned.submissions.values())
        }
        self._filing: dict[int, tuple[str, int]] = {}
        """By call: the submission that the disk has yet to take, and the channel."""
        self._consents: dict[str, str] = {}
        self._newest: dict[str, object] = {}
        self._revised: tuple[Way, str] | None = None
        """By user: the request that was the last one to choose."""
        self._writes: dict[tuple[Partition, int], Way] = {}
        self._event: ev.Event = ev.Tick(now=0)
        self._done: Way | None = None
        self.reviews = ReviewBooks(store, settings, accepted, self.choice)

    def watches(self) -> dict[type[ins.Instruction], Callable[[Any], str]]:
        return {
            ins.Learn: self._learn,
            ins.KeepPlan: self._plan,
            ins.Conclude: self._conclude,
            **self.reviews.watches(),
        }

    def choice(self, user: str) -> str:
        return self._consents.get(user, self._settings.consent)

    def _scopes(self, stream: str, user: str) -> tuple[str, ...]:
        cap = OWN if stream == "protected" or self.choice(user) == "own" else ALL
        return tuple(scope for scope in cap if scope in self._settings.scopes)

    # -- what happens

    def before(self, event: ev.Event) -> None:
        self._event, self._done, self._revised = event, None, None
        self.reviews.before(event)
        if isinstance(event, ev.Purged):
            self._consents.pop(event.user, None)
            self._newest.pop(event.user, None)
            for way in self._ways.values():
                # One that the kernel has yet to hear of is gone from the store, which says so.
                way.gone |= way.user == event.user and way.state != "filing"
        elif isinstance(event, ev.SubmissionFiled):
            id_, _ = self._filing.pop(event.key, ("", 0))
            if id_ and event.known:
                del self._ways[id_]
            elif id_:
                self._ways[id_].state = "queued"
        elif isinstance(event, ev.WorkFailed):
            id_, _ = self._filing.pop(event.key, ("", 0))
            self._ways.pop(id_, None)
        elif isinstance(event, ev.Concluded):
            way = self._ways[event.id]
            if way.state == "ending":
                way.state = way.end
            elif way.state == "reviving":
                way.state = "queued"
        elif isinstance(event, ev.Stuck) and event.lasting and event.report is None:
            # It cannot be read, and is left to the next start.
            if self._ways[event.id].state in ("learning", "planned"):
                self._ways[event.id].state = "lost"
        elif isinstance(event, ev.Stuck) and not event.errno:
            # Its user is forgotten, of which the kernel is told in a moment.
            self._ways[event.id].state = "lost"
        elif isinstance(event, ev.Committed | ev.WriteFailed):
            self._settle(event)

    def _settle(self, event: ev.Committed | ev.WriteFailed) -> None:
        outcome, op = event.outcome, event.outcome.op
        way = self._writes.pop((op.partition, op.seq), None)
        if way is None:
            return
        way.left.discard((op.partition, op.seq))
        if isinstance(op, Put) and outcome.errno in (0, Errno.EEXIST):
            # It exists: an earlier life has stored it.
            way.took[op.id] = outcome.id in ("", op.id)
        if outcome.errno in DISK:
            way.failed.add(op.id)
        elif op.id not in way.failed:
            way.settled.add((op.id, type(op).__name__))
            way.wanted.discard((op.id, type(op).__name__))
            if isinstance(op, Replace) and outcome.errno:
                # What is another's by now is moved by nobody.
                way.settled.add((op.id, "Move"))
                way.wanted.discard((op.id, "Move"))
            elif (op.id, "Move") in way.wanted:
                planned = next(p for p in way.plan if p.id == op.id)
                if _shares(planned) and self.choice(way.user) != "share":
                    way.settled.add((op.id, "Move"))
                    way.wanted.discard((op.id, "Move"))
                else:
                    self._revised = way, op.id
        self._done = None if way.left else way

    def after(self, event: ev.Event, out: list[ins.Instruction]) -> str:
        """Once all that came of an event is judged: who goes back to the queue?"""
        ended = any(isinstance(i, ins.Conclude) for i in out)
        if isinstance(event, ev.Stuck) and not ended:
            way = self._ways[event.id]
            way.state = "queued" if way.state in ("learning", "planned") else way.state
        done = self._done
        if done is not None and done.state == "doing":
            if not done.wanted and not done.gone:
                return f"all of {done.id} is done, and it does not end"
            done.state = "queued"
        return self.reviews.after(event, out)

    def filed(self, i: ins.FileSubmission, channel: int) -> str:
        """A submission goes to the disk."""
        one = i.submission
        if self.choice(one.user) == "nothing":
            return f"{one.user} wants nothing learned, and {one.id} is kept"
        if one.id in self._ways or one.state != "queued":
            return f"{one} is no new submission"
        self._ways[one.id] = Way(one.id, one.user, one.agent, one.outcome)
        self._filing[i.key] = one.id, channel
        return ""

    # -- one after the other

    def _learn(self, i: ins.Learn) -> str:
        way = self._ways[i.id]
        if way.state != "queued" or way.gone:
            return f"{i.id} is learned from, and it is {way.state}"
        if self._settings.writer == "off":
            return "a kernel that does not learn has learned"
        busy = [other.id for other in self._ways.values() if other.busy]
        if busy:
            return f"{i.id} is learned from beside {busy}"
        way.state, way.tries = "learning", way.tries + 1
        reader = (i.view.reader.user, i.view.reader.agent)
        if reader != (way.user, way.agent) or set(i.view.partitions) != set(self._seen(way)):
            return f"{i.id} is learned from with a view of {reader}"
        own = {p for p, n in self._accepted.items() if n and p.users == Axis("one", way.user)}
        if set(i.own.partitions) != own:
            return f"{i.own.partitions} is not what {way.user} alone may read"
        nothing = self.choice(way.user) == "nothing"
        for stream, scopes in i.scopes.items():
            if set(scopes) != set(() if nothing else self._scopes(stream, way.user)):
                return f"{stream} of {i.id} is given {scopes}"
        return ""

    def _seen(self, way: Way) -> Iterable[Partition]:
        return self._view(way.user, way.agent)

    def _plan(self, i: ins.KeepPlan) -> str:
        """A plan: all and only what was asked for and is allowed."""
        event, way = self._event, self._ways[i.id]
        if not isinstance(event, ev.Thought) or event.id != i.id or way.gone:
            return f"a plan for {i.id} that nobody has thought of"
        if way.state != "learning":
            return f"a plan for {i.id}, which is {way.state}"
        way.state = "planned"
        if self.choice(way.user) == "nothing":
            return f"{way.user} wants nothing learned, and {i.id} is planned"
        asked = sum(len(operations) for operations in event.operations.values())
        if len(i.plan) + i.report.denied != asked:
            return f"{asked} operations, {len(i.plan)} planned and {i.report.denied} denied"
        if len({planned.id for planned in i.plan}) != len(i.plan):
            return f"{i.plan} changes an entry twice"
        for planned in i.plan:
            broken = self._planned(way, event, planned)
            if broken:
                return f"{broken}: {planned} of {way}"
        return ""

    def _planned(self, way: Way, event: ev.Thought, planned: Planned) -> str:
        stream = planned.stream
        scopes = self._scopes(stream, way.user)
        asked = event.operations.get(stream, ())[:OPERATIONS]
        if stream == "reusable" and way.outcome in ("error", "timeout"):
            return "an attempt that establishes nothing"
        if planned.what == "add":
            fits = any(
                not (o.revises or o.delete) and _says(o, planned.text) and o.scope in scopes
                and _where(o.scope, way) == planned.partition == planned.to
                for o in asked
            )  # fmt: skip
            return "" if fits else "no writer asked for it"
        known = next((k for k in event.shown.get(stream, ()) if k.id == planned.id), None)
        if known is None or known.partition not in self._seen(way):
            return "the writer was not shown it"
        if known.stream != stream:
            return "it is of the other stream"
        if (known.partition, known.version) != (planned.partition, planned.version):
            return "it was shown as another"
        shared = known.partition.users.kind != "one"
        if shared and (way.outcome not in ("passed", "failed") or planned.to is not None):
            return "what others read is changed without a verdict, or moved"
        if planned.what == "delete":
            fits = any(o.delete == planned.id and o.reason.strip() for o in asked)
        else:
            to = planned.to or planned.partition
            fits = any(
                o.revises == planned.id and not o.delete and _says(o, planned.text)
                and o.scope in scopes and _where(o.scope, way) == to
                for o in asked
            )  # fmt: skip
        return "" if fits else "no writer asked for it"

    # -- what is changed

    def change(self, op: Op) -> str:
        """A change that no call asks for."""
        event = self._event
        if isinstance(op, Move) and self._revised is not None and self._revised[1] == op.id:
            (way, _), self._revised, self._done = self._revised, None, None
            if (op.id, "Move") not in way.wanted:
                return f"{op} of {way}, which is not to be moved"
            self._writes[op.partition, op.seq] = way
            way.left.add((op.partition, op.seq))
            broken = self._of_plan(way, way.plan, op) or self.reaches(op)
            return broken and f"{broken}: {op} of {way}"
        if not isinstance(event, ev.PlanKept):
            return self.reviews.change(op)
        way = self._ways[event.id]
        way.plan = event.plan
        if way.gone or self.choice(way.user) == "nothing":
            return f"{op} for {way.user}, who is forgotten or wants nothing learned"
        if way.state in ("learning", "planned"):
            way.state = "doing"
            way.wanted = self._wanted(way, event.plan)
            way.failed.clear()
        elif way.state != "doing" or not way.left:
            return f"{op} of {way.id}, which is {way.state}"
        broken = self._of_plan(way, event.plan, op) or self.reaches(op)
        self._writes[op.partition, op.seq] = way
        way.left.add((op.partition, op.seq))
        return broken and f"{broken}: {op} of {way}"

    def _wanted(self, way: Way, plan: tuple[Planned, ...]) -> set[tuple[str, str]]:
        """(entry, kind of change) of what a plan comes to, and has not come to before."""
        kinds = {"add": ("Put",), "revise": ("Replace", "Move"), "delete": ("Drop",)}
        return {
            (planned.id, kind)
            for planned in plan
            if self.choice(way.user) == "share" or not _shares(planned)
            for kind in kinds[planned.what]
            if kind != "Move" or planned.to is not None
        } - way.settled

    def _of_plan(self, way: Way, plan: tuple[Planned, ...], op: Op) -> str:
        planned = next((p for p in plan if p.id == op.id), None)
        if planned is None or planned.partition != op.partition:
            return "it is not planned"
        if isinstance(op, Put | Replace):
            learned = op.learned
            if learned is None or learned.submission != way.id or op.text != planned.text:
                return "it does not say where it comes from"
        to = op.to if isinstance(op, Move) else op.partition
        if self.choice(way.user) == "own" and _shares(planned):
            return f"{way.user} shares nothing"
        if (op.id, type(op).__name__) not in way.wanted:
            return "it is done already"
        if isinstance(op, Put):
            owner = (to.users.name or LEARNER, to.agents.name or LEARNER)
            fits = planned.what == "add" and (op.user, op.agent) == owner
            return "" if fits and (op.stream, op.kind) == (planned.stream, "lesson") else "not so"
        if isinstance(op, Replace):
            fits = planned.what == "revise" and op.version == planned.version
        elif isinstance(op, Move):
            fits = planned.what == "revise" and op.to == planned.to
            fits = fits and op.version == planned.version + 1
        else:
            fits = isinstance(op, Drop) and planned.what == "delete" and not op.receipt
            fits = fits and isinstance(op, Drop) and op.version == planned.version > 0
        return "" if fits else "it is planned otherwise"

    def reaches(self, op: Op) -> str:
        """Nothing of the protected stream is put, or moved, to where other users read."""
        to = op.to if isinstance(op, Move) else op.partition
        held = self._store.units.get(op.partition, {}).get(op.id)
        stream = op.stream if isinstance(op, Put) else held.stream if held else "reusable"
        out = isinstance(op, Put | Move) and stream == "protected" and to.users.kind != "one"
        return "what is protected reaches other users" if out else ""

    def _conclude(self, i: ins.Conclude) -> str:
        report, event = i.report, self._event
        way = self._ways[report.id]
        state, way.state = way.state, "ending"
        way.end = report.state
        what = f"{report.id} ends {report.state} out of {state} at {type(event).__name__}"
        if report.state == "queued":
            way.state, way.tries = "reviving", 0
            return "" if state == "parked" and isinstance(event, ev.SubmissionsFound) else what
        if way.gone:
            return f"{what}, and its user is forgotten"
        if report.state == "refused":
            return "" if self.choice(way.user) == "nothing" else what
        if report.state == "parked":
            fits = isinstance(event, ev.Stuck) and event.errno and state in ("learning", "planned")
            hopeless = isinstance(event, ev.Stuck) and (event.lasting or way.tries >= TRIES)
            return "" if fits and hopeless else what
        if report.state != "done":
            return what
        if isinstance(event, ev.PlanKept):
            left = state not in ("learning", "planned") or bool(self._wanted(way, event.plan))
        else:
            left = state != "doing" or bool(way.wanted)
        if left or way.left:
            return f"{what}, and {way.wanted} is left"
        if report.added != sum(way.took.values()):
            return f"{what} with {report.added} entries, and {way.took}"
        return ""

    # -- by hand

    def chose(self, user: str, choice: str, asked: object) -> None:
        """Somebody's choice was taken in; what is narrower holds from now on."""
        self._newest[user] = asked
        if CHOICES.index(choice) < CHOICES.index(self.choice(user)):
            self._consents[user] = choice

    def chosen(self, user: str, choice: str, asked: object) -> None:
        """That choice is durable, and holds unless there is a newer one."""
        if self._newest.get(user) is asked:
            self._consents[user] = choice

    def widens(self, user: str, request: object) -> bool:
        """Whether a request would have more learned of ``user`` than now."""
        choice = request.choice if isinstance(request, m.LearnConsent) else ""
        return bool(choice) and CHOICES.index(choice) > CHOICES.index(self.choice(user))

    def full(self, request: object, channel: int) -> bool:
        """Whether nothing more of that kind is taken in now."""
        if isinstance(request, m.LearnReview):
            return self.reviews.running is not None
        waiting = sum(number == channel for _, number in self._filing.values())
        return isinstance(request, m.LearnSubmit) and waiting >= FILING

    def drained(self) -> str:
        """Nothing more happens by itself: all that was handed in has come to an end."""
        if self._settings.writer == "off":
            return ""
        open_ = [w.id for w in self._ways.values() if w.state not in (*ENDS, "lost") and not w.gone]
        return f"{open_} never end" if open_ else ""

    def places(self, unit: str) -> set[Partition]:
        """Every partition that an entry was ever in."""
        return self._store.places.get(unit, set())

    def kept(self, id_: str) -> bool:
        """Whether a submission is durable, or was before its user was forgotten."""
        return id_ in self._store.learned.ever


def _where(scope: str, way: Way) -> Partition:
    users = Axis("one", way.user) if scope in OWN else Axis("all")
    agents = Axis("one", way.agent) if scope in ("pair", "agent") else Axis("all")
    return Partition(users, agents)


def _says(operation: Operation, text: str) -> bool:
    situation, _, lesson = text.partition("\n")
    words = " ".join(operation.situation.split()), operation.lesson.strip()
    return words == (situation, lesson) and all(words)


def _shares(planned: Planned) -> bool:
    """Whether others read what comes of it."""
    return planned.what != "delete" and (planned.to or planned.partition).users.kind != "one"
