"""The judge of the simulator: says in its own words what the kernel promises, and watches.

It sees events and instructions alone and keeps its own books; of the state it asks only which
number a call has been given. What it demands is written a second time here on purpose, not
shared with the code that it judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, TypeVar

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.sim_erasure import ErasureBooks
from isovist.kernel.state.sim_learning import LearningBooks
from isovist.kernel.state.sim_recall import RecallBooks
from isovist.kernel.state.sim_taught import LEARNED, by_hand, told
from isovist.kernel.state.sim_world import MS, SECOND, Store
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.exchange import GrantLine, GroupLine, read
from isovist.syscalls.operations import Drop, Move, Op, Put, ReadQuery, Vectors
from isovist.syscalls.records import LEGS, Axis, Leg, Logprob, Partition, ToolCall

LIVES = 2
"""Lives of a driver that one chat may see."""
SAVES = 8
"""Saves and drops of contexts that a channel may have under way."""
CHOOSY = (m.Search, m.Chat, m.Prefetch)
"""They say which legs to wait for."""
BOTH = (m.MemorySearch, m.SessionSearch, m.LearnLessons)
"""They wait for both."""
RECALL = (m.MemoryRead, m.FullContext, m.MemoryFiles, m.ForgetMatching)
AUDITED = (*CHOOSY, *BOTH, *RECALL)
"""Each of them leaves a record."""
READERS = (*AUDITED, m.Read, m.MemoryList, m.ViewOf, m.LearnList)
CHANGES = (m.Update, m.Forget, m.Expire, m.Rescope, m.ForgetMatching)
HANDS = (m.LearnEdit, m.LearnDelete)
"""Changes of entries by hand."""
CONTEXTS = (m.ContextSave, m.ContextLoad, m.ContextList, m.ContextDrop)
SERVED = (
    *READERS, *CHANGES, m.Remember, *CONTEXTS, *HANDS, m.LearnSubmit, m.LearnStatus, m.LearnConsent
)  # fmt: skip
"""Requests that are for a user."""
OPERATORS = (
    m.Grant, m.Groups, m.GroupChange, m.Export, m.Import, m.Backup, m.ForgetUser,
    m.Statistics, m.Schedule, m.Metering, m.LearnReview, abi.AgentList, abi.Distrust,
)  # fmt: skip
"""Requests that the operator alone may make."""
TELLING = (
    m.Found, m.Units, m.Chatted, m.ViewShown, m.Rounds, m.Files, m.Prefetched, m.Lessons
)  # fmt: skip
"""Replies that tell what is in a view."""


class Violation(AssertionError):
    """The kernel broke a promise."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


def keep(broken: str) -> None:
    """Books give the rule that is broken, or an empty text."""
    demand(not broken, broken)


@dataclass
class Who:
    """A channel as the judge knows it."""

    agent: str
    operator: bool
    pid: int
    bound: str
    sessions: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    greeted: bool = False
    ended: bool = False
    """Nothing more is served: it has exited, or the kernel ends it."""
    gone: bool = False
    noise: int = 0
    open: int = 0
    """Calls outstanding."""
    writes: int = 0
    """Writes handed to the store and not yet answered by it, whoever still waits for them."""


@dataclass(eq=False)
class Asked:
    """One request, from its arrival to its last word (``request`` is None where malformed)."""

    channel: int
    frame: int
    who: Who
    request: m.Request | None
    at: int
    fault: str = ""
    user: str | None = None
    rule: str = ""
    opened: bool = False
    answer: m.AnyReply | None = None
    deadline: int | None = None
    legs: tuple[Leg, ...] = ()
    accepted: dict[Partition, int] = field(default_factory=dict)
    needs: set[tuple[Partition, Leg, int]] = field(default_factory=set)
    released: bool = False
    early: bool = False
    """Went on before all that it waited for had come."""
    groups: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """Of users, of agents: those that its reader was in when it came, and has not left since."""
    looked: bool = False
    """It was given something out of its view."""
    left: bool = False
    """Its reader has left a group since, before any part of the reply was out."""
    lost: bool = False
    """Its view had lost a vector for good, before it narrowed."""
    stale: tuple[Leg, ...] = ()
    lagging: tuple[str, ...] = ()
    commit: Op | None = None
    parts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    calls: tuple[ToolCall, ...] = ()
    """What the driver has said in this try."""
    lives: int = 0


@dataclass
class Life:
    """A driver's life as told to the kernel."""

    up: bool = False
    dead: bool = False
    busy: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    """Some of the busy ones."""


def own(agent: str) -> str:
    return f"agent/{agent}"


def visible(asked: Asked) -> tuple[Partition, ...]:
    """What a reader may see, narrow to wide: own, a group or open on each axis."""
    names = zip((asked.user or "", asked.who.agent), asked.groups, strict=True)
    users, agents = (
        [Axis("one", own), *(Axis("group", name) for name in sorted(groups)), Axis("all")]
        for own, groups in names
    )
    return tuple(Partition(u, a) for u in users for a in agents)


def _may_hold_its_own(asked: Asked, partition: Partition) -> bool:
    """True iff a group has part in it and the asking pair could have published there."""
    axes = ((partition.users, asked.user), (partition.agents, asked.who.agent))
    grouped = any(a.kind == "group" for a, _ in axes)
    return grouped and all(a.kind != "one" or a.name == own for a, own in axes)


def axis(word: str, own: str) -> Axis | None:
    if word.startswith("@") and word != "@":
        return Axis("group", word[1:])
    return {"own": Axis("one", own), "all": Axis("all")}.get(word)


class Judge:
    """``slots`` of each model; ``limit`` of a channel's calls; ``grants`` (users, scopes) of
    each agent at the start, and ``groups`` with their members."""

    def __init__(
        self,
        store: Store,
        slots: dict[str, int],
        limit: int,
        grants: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
        groups: Mapping[tuple[str, str], tuple[str, ...]],
        learning: Learning,
        quotas: bool = False,
    ) -> None:
        self.store, self.slots, self.limit, self.quotas = store, slots, limit, quotas
        self.counts: Counter[str] = Counter()
        self.clock = 0
        self.channels: dict[int, Who] = {}
        self.asked: dict[tuple[int, int], list[Asked]] = defaultdict(list)
        self.keys: dict[int, Asked] = {}
        self._leaving: dict[int, str] = {}
        """By the call that forgets them: users who are being purged, and served no more."""
        self._granted = {
            agent: (set(users), set(scopes)) for agent, (users, scopes) in grants.items()
        }
        self._groups = {key: set(members) for key, members in groups.items()}
        self._recall = RecallBooks(store)
        self._erasure = ErasureBooks()
        self._said: dict[tuple[str | None, str, str], list[object]] = defaultdict(list)
        """What each pair had saved under each name, by user, agent and name."""
        self._saving: dict[int, tuple[tuple[str, str, str], int]] = {}
        """By call: the name and the channel of saves and drops that the store has yet to answer."""
        self._writers: dict[tuple[Partition, int], Asked] = {}
        self._bound: dict[int, tuple[str, str, bool]] = {}
        self._exited: set[int] = set()
        self._accepted: dict[Partition, int] = defaultdict(int)
        self._unseen: dict[Partition, list[int]] = defaultdict(list)
        self._awaited: dict[tuple[Partition, Leg], set[int]] = defaultdict(set)
        self._vectorless: set[Partition] = set()
        self._held: set[Asked] = set()
        self._lives: dict[tuple[str, int], Life] = defaultdict(Life)
        self._deaths: Counter[str] = Counter()
        self._learning = LearningBooks(store, learning, self._pair_sees, self._accepted)
        self._learns = self._learning.watches()
        self._deadlines: list[tuple[int, int, Asked]] = []
        self._audited: set[str] = set()
        self._to_audit = 0
        self._audit: m.Record | None = None
        self._wall = 0
        """The calendar at virtual time 0."""
        self._now: Asked | None = None
        """Whose call the event at hand is about."""
        self._watch: dict[type[ins.Instruction], Callable[[Any], None]] = {
            ins.Reply: self._reply,
            ins.Commit: self._commit,
            ins.Retrieve: self._retrieve,
            ins.Render: self._render,
            ins.Decode: self._decode,
            ins.Pause: self._pause,
            ins.Resume: self._resume,
            ins.Audit: self._audit_record,
            ins.SaveGrant: self._save_grant,
            ins.Purge: self._purge,
            ins.SaveGroup: self._save_group,
            ins.StartProcess: self._start_process,
            ins.SaveContext: lambda i: self._saves(
                i.key, (i.context.user, i.context.agent, i.context.name)
            ),
            ins.DropContext: lambda i: self._saves(i.key, (i.user, i.agent, i.name)),
            ins.FileSubmission: self._file,
            ins.Disconnect: self._disconnect,
            ins.Report: self._report,
        }

    # -- one event and what came of it

    def before(self, event: ev.Event, fault: str) -> None:
        self._now, self._audit, self.clock = None, None, event.now
        self._learning.before(event)
        if isinstance(event, ev.Attached):
            _, user, revoked = self._bound.get(event.pid, ("", "", False))
            bound = "" if revoked else user
            who = Who(event.agent, event.operator, event.pid, bound, [user] if user else [])
            self.channels[event.channel] = who
        elif isinstance(event, ev.Arrived | ev.Malformed) and event.channel in self.channels:
            self._now = self._ask(event, fault)
        elif isinstance(event, ev.Tick) and event.wall:
            self._wall = event.wall - event.now
        elif isinstance(event, ev.Purged):
            self._leaving.pop(event.key, None)
            self._purged(event.user)
        elif isinstance(event, ev.ContextSaved | ev.ContextDropped | ev.WorkFailed):
            self._saving.pop(event.key, None)
            if isinstance(event, ev.WorkFailed):
                self._leaving.pop(event.key, None)
        elif isinstance(event, ev.Saved) and (asked := self.keys.get(event.key)):
            ended = asked.answer or asked.who.gone
            if ended and isinstance(asked.request, m.LearnConsent) and asked.user:
                # Nobody is told so any more, but a choice that is durable holds.
                self._learning.chosen(asked.user, asked.request.choice, asked)
        elif isinstance(event, ev.Exited | ev.SpawnFailed):
            self._exited.add(event.pid)
            self._bound.pop(event.pid, None)

    def after(self, event: ev.Event, out: list[ins.Instruction], key: int) -> None:
        """``key``: the number under which an arrived request is outstanding, 0 if it is not."""
        if isinstance(event, ev.Arrived) and key and key not in self.keys:
            self._open(key)
        elif isinstance(
            event, ev.Retrieved | ev.Rendered | ev.DriverDone | ev.Owned | ev.SourcesFound
        ):
            self._now = self.keys.get(event.key)
        elif isinstance(event, ev.Committed | ev.WriteFailed):
            op = event.outcome.op
            if not isinstance(op, Vectors):
                self._now = self._writers.pop((op.partition, op.seq), None)
                if self._now is not None:
                    self._now.who.writes -= 1
            self._settled(event)
        if isinstance(event, ev.Retrieved) and self._now:
            self._now.lagging = self._now.lagging or event.lagging
            self._erasure.given(event.key, self._now, event)
        if isinstance(event, ev.Token | ev.DriverUp | ev.DriverDone):
            self._driver_speaks(event)
        dying = self._driver_dies(event) if isinstance(event, ev.DriverDied) else []
        if isinstance(event, ev.Detached):
            self._gone(event.channel)
        for instruction in out:
            watch = self._watch.get(type(instruction))
            if watch is not None:
                watch(instruction)
            if learns := self._learns.get(type(instruction)):
                keep(learns(instruction))
        keep(self._erasure.after(event, out))
        keep(self._learning.after(event, out))
        if isinstance(event, ev.DriverDied):
            hopeless = event.fatal or self._deaths[event.model] >= 4
            for asked in dying:
                self._after_death(asked, hopeless)
            if hopeless:
                self._deaths[event.model] = 0
        if isinstance(event, ev.Arrived | ev.Malformed) and self._now is not None:
            self._arrived(self._now)
        elif isinstance(event, ev.Tick):
            self._ticked(event.now)
        elif isinstance(event, ev.Committed | ev.WriteFailed):
            for asked in self._held:
                demand(asked.needs, f"{_name(asked)} waits for nothing")

    def drained(self) -> None:
        """Nothing more will happen by itself: nobody may still wait."""
        for waiting in self.asked.values():
            demand(not waiting, f"{_name(waiting[0])} hangs")
        demand(len(self._audited) == self._to_audit, "a search or chat without its record")
        broken = self._erasure.drained()
        demand(not broken, broken)
        keep(self._learning.drained())
        # Word statistics count what is stored, so what is stored must be what lives.
        now = self._wall + self.clock
        for partition, units in self.store.units.items():
            over = [u for u, h in units.items() if h.expires_at is not None and h.expires_at <= now]
            demand(not over, f"{over} have expired, and still count in {partition.scope}")

    # -- requests

    def _ask(self, event: ev.Arrived | ev.Malformed, fault: str) -> Asked:
        who = self.channels[event.channel]
        request = event.request if isinstance(event, ev.Arrived) else None
        asked = Asked(event.channel, event.call, who, request, event.now, fault)
        self.asked[event.channel, event.call].append(asked)
        if isinstance(event, ev.Malformed):
            who.noise += event.errno != Errno.ENOSYS
        else:
            who.noise = 0
        if request is not None:
            found = self.identify(who, request.user)
            asked.user, asked.rule = found or (None, "")
            asked.groups = (self._in("users", asked.user), self._in("agents", who.agent))
        return asked

    def identify(self, who: Who, named: str | None) -> tuple[str, str] | None:
        """The user served and why; None where the request must be refused."""
        users, _ = self._granted.get(who.agent, (set(), set()))
        own_name = own(who.agent)

        def granted(user: str) -> bool:
            if user in self._leaving.values():
                return False
            return who.operator or user in {own_name, who.bound} | users or "*" in users

        if named is not None:
            sound = named == own_name or (
                0 < len(named.encode()) <= 128 and named.isprintable() and "/" not in named
                and "\u0301" not in named
            )  # fmt: skip
            return (named, "request") if sound and granted(named) else None
        for rule, known in (("session", who.sessions), ("registry", who.seen)):
            if known:
                return (known[0], rule) if len(known) == 1 and granted(known[0]) else None
        return (own_name, "agent") if granted(own_name) else None

    def _open(self, key: int) -> None:
        asked = self._now
        if asked is None or asked.request is None:
            raise Violation("a call that nobody made")
        self.keys[key], asked.opened = asked, True
        asked.who.open += 1
        demand(asked.who.open <= self.limit, "more calls outstanding than the limit")
        self._accept(asked)
        request = asked.request
        if request.deadline_ms is not None:
            asked.deadline = asked.at + request.deadline_ms * MS
        elif not isinstance(request, m.WaitPid | m.Kill):
            asked.deadline = asked.at + 120 * SECOND
        if asked.deadline is not None:
            heappush(self._deadlines, (asked.deadline, key, asked))
        if isinstance(request, READERS) and not _says_yes(request) and not _operates(asked):
            self._hold(asked, request)
        elif isinstance(request, m.LearnReview):
            self._learning.reviews.asked(asked, request)
        elif isinstance(request, m.LearnConsent) and request.choice and asked.user:
            self._learning.chose(asked.user, request.choice, asked)

    def _accept(self, asked: Asked) -> None:
        """A request is accepted: its user is known to the channel, and it will leave a record."""
        request, who = asked.request, asked.who
        spawned = isinstance(request, m.Spawn) and not who.operator
        if isinstance(request, SERVED) or spawned:
            demand(asked.user is not None, f"{_name(asked)} was accepted for nobody")
            if asked.rule == "request" and asked.user and asked.user not in who.seen:
                who.seen.append(asked.user)
        self._to_audit += isinstance(request, AUDITED)
        if isinstance(request, m.ContextSave):
            self._said[asked.user, who.agent, request.name].append(request.messages)

    def _in(self, of: str, name: str | None) -> set[str]:
        return {group for (kind, group), members in self._groups.items()
                if kind == of and name in members}  # fmt: skip

    def _hold(self, asked: Asked, request: Any) -> None:
        """Note what a reader must see: all that was accepted in its view before it came."""
        wait = "both" if isinstance(request, BOTH) else "lexical"
        if isinstance(request, CHOOSY):
            wait = request.wait
        if isinstance(request, m.Chat):
            said = next((t.content for t in reversed(request.messages) if t.role == "user"), None)
            silent = not (said or "").strip() or not request.memory
            if silent or request.units == 0 or request.budget == 0:
                wait = "none"
        asked.legs = LEGS if wait == "both" else ("lexical",) if wait == "lexical" else ()
        for partition in visible(asked):
            asked.accepted[partition] = self._accepted[partition]
            for leg in asked.legs:
                awaited = self._awaited[partition, leg]
                asked.needs |= {(partition, leg, number) for number in awaited}
        self._held.add(asked)

    def _arrived(self, asked: Asked) -> None:
        """What must be true as soon as a request has been taken in."""
        request, answer, who = asked.request, asked.answer, asked.who
        refused = isinstance(answer, m.Failed)
        if asked.opened:
            demand(asked.needs or asked not in self._held, f"{_name(asked)} waits for nothing")
            return
        demand(answer, f"{_name(asked)} was neither answered nor entered")
        if request is None:
            demand(who.ended or who.noise < 8, "eight malformed requests, and the channel goes on")
            return
        if not who.greeted or who.ended:
            demand(refused, f"{_name(asked)} was served on a channel that may ask for nothing")
            return
        if asked.fault:
            demand(refused, f"{_name(asked)} was not refused for its {asked.fault}")
            if isinstance(answer, m.Failed) and answer.errno != Errno.EEXIST:
                demand(answer.field == asked.fault, f"{answer} does not name {asked.fault}")
        elif isinstance(answer, m.Failed):
            self._refusal(asked, answer)
        elif isinstance(request, m.Cancel):
            for target in self.asked.get((asked.channel, request.call), ()):
                demand(not target.opened, "a call outlived its cancel")
        elif isinstance(request, m.Exit):
            who.ended = True

    def _refusal(self, asked: Asked, answer: m.Failed) -> None:
        request, errno, who = asked.request, answer.errno, asked.who
        if errno == Errno.EAGAIN:
            writes = isinstance(request, (m.Remember, m.Import, *CHANGES, *HANDS))
            full = who.open >= self.limit or (writes and who.writes >= self.limit)
            full = full or (self.quotas and isinstance(request, m.Chat))
            full = full or (isinstance(request, CONTEXTS) and self._busy(asked, request))
            full = full or self._learning.full(request, asked.channel)
            demand(full, "EAGAIN below the limit")
        elif errno == Errno.EPERM and answer.field == "user":
            demand(asked.user is None, f"{_name(asked)} was refused a user that it may serve")
        elif errno == Errno.EPERM and isinstance(request, OPERATORS):
            demand(not who.operator, f"the operator may not {_name(asked)}")
        elif errno == Errno.EPERM:
            named = isinstance(request, m.LearnEdit) and request.agent and not _operates(asked)
            wider = not who.operator and self._learning.widens(asked.user or "", request)
            spawned = isinstance(request, m.Spawn | abi.Priority)
            demand(spawned or named or wider, f"{_name(asked)}: {answer.message}")

    def _gone(self, channel: int) -> None:
        who = self.channels.pop(channel, None)
        if who is None:
            return
        who.gone = True
        for frame in [f for c, f in self.asked if c == channel]:
            for asked in self.asked.pop((channel, frame)):
                self._held.discard(asked)
                asked.opened = False

    def _ticked(self, now: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, asked = heappop(self._deadlines)
            demand(asked.answer or asked.who.gone, f"{_name(asked)} outlived its deadline")

    # -- replies

    def _reply(self, i: ins.Reply) -> None:
        demand(i.channel in self.channels, f"{i.message} for a channel that is not attached")
        waiting = self.asked.get((i.channel, i.call), [])
        demand(waiting, f"{i.message} for a call that is answered or never was")
        message = i.message
        if isinstance(message, m.Part):
            demand(
                waiting[0].opened or waiting[0] is self._now,
                "a part for a call that is not outstanding",
            )
            waiting[0].parts.append(message.text)
            return
        # A frame id that is used twice: the one at hand is refused, else the older is answered.
        newest = waiting[-1] is self._now and not waiting[-1].opened
        asked = waiting.pop(-1 if newest else 0)
        if not waiting:
            del self.asked[i.channel, i.call]
        asked.answer = message
        self._held.discard(asked)
        was_open, asked.opened = asked.opened, False
        if was_open:
            asked.who.open -= 1
        self.counts[type(message).__name__] += 1
        if isinstance(message, m.Failed):
            self.counts[Errno(message.errno).name] += 1
            demand(message.errno != Errno.EKERNEL, f"a bug of the kernel: {message}")
            demand(message.story or asked.request is None, f"{message} without its story")
        else:
            self._sound(asked, message)
        if isinstance(asked.request, AUDITED) and (was_open or self._audit):
            if not was_open:
                # It came and failed at once: the dense leg has lost a vector for good.
                self._accept(asked)
            self._audited_as(asked, message)
        elif isinstance(message, m.Submissions) and not was_open:
            # Its user wants nothing learned, so there is nothing to wait for.
            self._accept(asked)

    def _sound(self, asked: Asked, reply: m.AnyReply) -> None:
        request = asked.request
        if request is None:
            raise Violation(f"{reply} to what is no request")
        demand(isinstance(reply, m.REPLY_OF[type(request)]), f"{reply} to {_name(asked)}")
        demand(
            not (asked.left and isinstance(reply, TELLING)),
            f"{_name(asked)} is answered out of a group that its reader has left",
        )
        allowed = asked.who.operator or not isinstance(request, OPERATORS)
        demand(allowed, f"{_name(asked)} is served, and nobody is the operator")
        owned = (m.Stored, m.Identity, m.Forgotten, m.ContextSaved, m.ContextLoaded, m.Contexts)
        if isinstance(reply, (*TELLING, *owned)):
            demand(
                (reply.user, reply.rule) == (asked.user, asked.rule), f"{reply} for the wrong user"
            )
        if isinstance(reply, TELLING):
            self._fresh(asked, reply.barrier.state, reply.barrier.lagging)
        if isinstance(reply, m.Welcome):
            asked.who.greeted = True
        elif isinstance(reply, m.SessionOpened):
            sessions = asked.who.sessions
            if isinstance(request, m.SessionOpen) and request.replace:
                sessions.clear()
            if reply.user not in sessions:
                sessions.append(reply.user)
        elif isinstance(reply, m.Exited) and isinstance(request, m.WaitPid | m.Kill):
            demand(reply.process.pid == request.pid, "the wrong process")
            demand(request.pid in self._exited, "a process that still runs")
        elif isinstance(reply, m.Rounds | m.Files | m.Prefetched):
            broken = self._recall.recalled(asked, reply, set(asked.accepted))
            demand(not broken, f"{_name(asked)}: {broken}")
        elif isinstance(reply, m.Matched):
            broken = self._recall.matched(asked, reply)
            demand(not broken, f"{_name(asked)}: {broken}")
        elif isinstance(reply, LEARNED):
            broken = told(self._learning, asked, reply)
            demand(not broken, f"{_name(asked)}: {broken}")
        elif isinstance(request, CONTEXTS):
            self._context(asked, reply)
        elif isinstance(reply, m.ReceiptShown):
            broken = self._recall.receipt(asked, reply)
            demand(not broken, f"{_name(asked)}: {broken}")
        elif isinstance(request, (m.Remember, *CHANGES, *HANDS)):
            self._acknowledged(asked, reply)
        elif isinstance(reply, m.Imported) and isinstance(request, m.Import):
            settled = reply.stored + reply.known + len(reply.failed)
            demand(settled == len(request.lines), f"{reply} to {len(request.lines)} lines")
        elif isinstance(reply, m.Chatted):
            demand(reply.text == "".join(asked.words), "a text that no driver wrote")
            demand(list(reply.logprobs) == asked.logprobs, "log probabilities of no such answer")
            made = [(call.name, call.arguments) for call in reply.calls]
            demand(made == [(c.name, c.arguments) for c in asked.calls], "calls that nobody made")
            names = {call.id for call in reply.calls}
            demand(len(names - {""}) == len(made), "calls that no result can tell apart")
            if isinstance(request, m.Chat) and request.stream:
                demand("".join(asked.parts) == reply.text, "the parts are not the whole")
            if reply.kept:
                self._acknowledged(asked, reply)

    def _acknowledged(self, asked: Asked, reply: m.AnyReply) -> None:
        op = asked.commit
        if op is None:
            raise Violation(f"{reply} without a write")
        demand(self.store.shows(op.partition, op.seq, "lexical"), f"{reply} before it is stored")
        result = self.store.results[op.partition, op.seq]
        demand(result is not None, f"{reply} of a write that failed")
        if isinstance(reply, m.Stored):
            demand((reply.id, reply.version) == (result or ())[:2], f"{reply} of another unit")
            to = op.to if isinstance(op, Move) else op.partition
            demand(reply.scope == to.scope, f"{reply} with another scope")
            wished = asked.request.scope if isinstance(asked.request, m.Remember) else None
            narrowed = wished is not None and self._named(asked, wished) != to
            demand(bool(reply.note) == narrowed, f"{reply} is silent on its scope")

    def _saves(self, key: int, name: tuple[str, str, str]) -> None:
        asked = self._now
        if asked is None or not isinstance(asked.request, m.ContextSave | m.ContextDrop):
            raise Violation("a context is written that nobody wrote")
        whose = asked.user, asked.who.agent, asked.request.name
        demand(name == whose, f"{_name(asked)} writes {name}")
        demand(not self._busy(asked, asked.request), "two writes of one context at once")
        self._saving[key] = name, asked.channel

    def _busy(self, asked: Asked, request: Any) -> bool:
        """Nothing more of that name, or of that channel, may be written now."""
        name = asked.user, asked.who.agent, getattr(request, "name", "")
        mine = [channel for _, channel in self._saving.values() if channel == asked.channel]
        return len(mine) >= SAVES or any(name == other for other, _ in self._saving.values())

    def _context(self, asked: Asked, reply: m.AnyReply) -> None:
        """A pair is told what it has saved itself, and a save is durable when it says so."""
        request, pair = asked.request, (asked.user, asked.who.agent)
        if isinstance(request, m.ContextSave):
            stored = request.messages in self.store.saved
            demand(stored, f"{_name(asked)} is told that it is saved, and it is not")
        elif isinstance(reply, m.ContextLoaded):
            mine = self._said[(*pair, reply.name)]
            demand(reply.messages in mine, f"{reply} is what another pair has saved")
        elif isinstance(reply, m.Contexts):
            named = {name for (*whose, name), said in self._said.items()
                     if tuple(whose) == pair and said}  # fmt: skip
            told = {one.name for one in reply.contexts}
            demand(told <= named, f"{_name(asked)} is told of {told - named}")

    def _fresh(self, asked: Asked, state: str, lagging: tuple[str, ...]) -> None:
        """An answer is fresh in each leg asked for, or says which is not."""
        demand(set(asked.stale) <= set(lagging), f"{_name(asked)} is silent on {asked.stale}")
        if state == "ready":
            demand(not set(lagging) & set(asked.legs), f"ready, and {lagging} lag")
            demand(not asked.early, f"{_name(asked)} is called ready and did not wait")
        else:
            lost = asked.lost or any(p in self._vectorless for p in asked.accepted)
            demand(lagging, "a barrier timed out and names no leg")
            demand(asked.early or asked.lagging or lost, "a barrier that timed out for nothing")

    # -- memory

    def _commit(self, i: ins.Commit) -> None:
        op, asked = i.op, self._now
        if isinstance(op, Drop) and op.expired:
            demand(op.id in self.store.lapsed, f"{op} of what has not expired")
            demand(not op.receipt, f"{op}: nobody asked for a receipt")
            self._number(op.partition, op.seq)
            return
        if asked is None and not isinstance(op, Vectors):
            keep(self._learning.change(op))
            self._number(op.partition, op.seq)
            if isinstance(op, Move):
                self._number(op.to, op.to_seq)
            return
        if asked is None or asked.request is None or isinstance(op, Vectors):
            raise Violation(f"{op} that nobody asked for")
        asked.commit = op
        self._writers[op.partition, op.seq] = asked
        asked.who.writes += 1
        if isinstance(asked.request, m.Remember):
            demand(asked.who.writes <= self.limit, "more writes under way than the limit")
        pair = (asked.user, asked.who.agent)
        if isinstance(op, Put) and isinstance(asked.request, m.Import):
            demand(asked.who.operator, "an import by an agent")
            demand(not self._strange(op.partition), f"{op} for a group that nobody made")
        elif isinstance(op, Put):
            demand((op.user, op.agent) == pair, f"{op} in another's name")
            demand(op.partition == self._audience(asked), f"{op} in the wrong scope")
        elif isinstance(asked.request, HANDS):
            self._by_hand(asked, op)
        else:
            # One that has left, and came back elsewhere by an import, is refused there.
            there = op.id in self.store.units.get(op.partition, {})
            own = self.store.owners[op.id] == pair
            demand(own or not there, f"{_name(asked)} changes what is not its own")
            demand(isinstance(asked.request, CHANGES), "a change that nobody asked for")
            if isinstance(op, Drop):
                broken = self._recall.drop(asked, op)
                demand(not broken, f"{_name(asked)}: {broken}")
        self._number(op.partition, op.seq)
        if isinstance(op, Move):
            self._number(op.to, op.to_seq)
            if not isinstance(asked.request, HANDS):
                self._moves(asked, op)

    def _by_hand(self, asked: Asked, op: Op) -> None:
        """Who changes an entry sees it, and it is the own user's alone, or the operator does it."""
        sees = _operates(asked) or op.partition in visible(asked)
        demand(sees, f"{_name(asked)} changes what it does not see")
        keep(by_hand(self._learning, asked, op))
        if isinstance(op, Drop):
            keep(self._recall.drop(asked, op))
        if isinstance(op, Move) and op.to.users.kind != "one":
            held = self.store.units.get(op.partition, {}).get(op.id)
            may = self._may(asked, op.to, held.put.stream if held else "reusable")
            demand(may, f"{op} without the right to")

    def _file(self, i: ins.FileSubmission) -> None:
        asked = self._now
        if asked is None or not isinstance(asked.request, m.LearnSubmit):
            raise Violation("a submission that nobody handed in")
        one = i.submission
        pair = (one.user, one.agent, one.outcome)
        demand(pair == (asked.user, asked.who.agent, asked.request.outcome), f"{i} for another")
        keep(self._learning.filed(i, asked.channel))

    def _pair_sees(self, user: str, agent: str) -> tuple[Partition, ...]:
        asked = Asked(0, 0, Who(agent, False, 0, ""), None, 0, user=user)
        asked.groups = (self._in("users", user), self._in("agents", agent))
        return visible(asked)

    def _number(self, partition: Partition, seq: int) -> None:
        self._accepted[partition] += 1
        demand(seq == self._accepted[partition], "numbers are issued one by one")
        self._unseen[partition].append(seq)
        for leg in LEGS:
            self._awaited[partition, leg].add(seq)

    def _moves(self, asked: Asked, op: Move) -> None:
        """Only a narrower audience, or one within the own user, is the owner's for nothing."""
        scope = asked.request.scope if isinstance(asked.request, m.Rescope) else ""
        demand(self._named(asked, scope) == op.to, f"{op} to where nobody wished")
        demand(op.to != op.partition and not self._strange(op.to), f"{op} to nowhere")
        demand(self._inside(asked, op.to), f"{op} into a group that its owner is not in")
        if op.to.users.kind == "one":
            return
        inside = True
        for of, small, big in (
            ("users", op.to.users, op.partition.users),
            ("agents", op.to.agents, op.partition.agents),
        ):
            member = big.kind == "group" and small.name in self._groups[of, big.name]
            inside &= big.kind == "all" or small == big or (small.kind == "one" and member)
        held = self.store.units.get(op.partition, {}).get(op.id)
        stream = held.put.stream if held else "reusable"
        demand(inside or self._may(asked, op.to, stream), f"{op} without the right to")

    def _named(self, asked: Asked, scope: str) -> Partition | None:
        """The audience of a scope, as its owner means it."""
        names = {"pair": "own/own", "user": "own/all", "agent": "all/own", "global": "all/all"}
        users, _, agents = names.get(scope, scope).partition("/")
        first, second = axis(users, asked.user or ""), axis(agents, asked.who.agent)
        return Partition(first, second) if first and second else None

    def _strange(self, partition: Partition) -> bool:
        """True iff a group in it is none that the operator made."""
        axes = (("users", partition.users), ("agents", partition.agents))
        return any(a.kind == "group" and (of, a.name) not in self._groups for of, a in axes)

    def _inside(self, asked: Asked, partition: Partition) -> bool:
        """True iff the owner is in every group of the audience; of the operator, who acts as
        itself, that is not asked."""
        who = asked.who
        return (who.operator and who.agent == "operator") or all(
            axis.kind != "group" or name in self._groups.get((of, axis.name), ())
            for of, axis, name in (
                ("users", partition.users, asked.user or ""),
                ("agents", partition.agents, who.agent),
            )
        )

    def _may(self, asked: Asked, partition: Partition, stream: str) -> bool:
        """True iff the agent may publish there: other users than its own are for the granted (the
        operator itself is), and a group is for its members."""
        users, agents = partition.users, partition.agents
        if not self._inside(asked, partition):
            return False
        if users.kind == "one":
            return True
        if asked.who.operator and asked.who.agent == "operator":
            return stream == "reusable"
        wider = "agent" if agents.kind == "one" else "global"
        needed = f"@{users.name}" if users.kind == "group" else wider
        _, scopes = self._granted.get(asked.who.agent, (set(), set()))
        return needed in scopes and stream == "reusable"

    def _audience(self, asked: Asked) -> Partition:
        """Private, unless the writer may and wished otherwise."""
        pair = Partition(Axis("one", asked.user or ""), Axis("one", asked.who.agent))
        request = asked.request
        if not isinstance(request, m.Remember):
            return pair
        wished = self._named(asked, request.scope or "")
        if wished is None or self._strange(wished):
            return pair
        return wished if self._may(asked, wished, request.stream) else pair

    def _settled(self, event: ev.Committed | ev.WriteFailed) -> None:
        """The kernel has been told what became of a write."""
        outcome = event.outcome
        op = outcome.op
        legs: tuple[Leg, ...] = LEGS
        if isinstance(op, Vectors):
            legs = ("dense",)
            if outcome.errno:
                self._vectorless.add(op.partition)
        elif outcome.chunks:
            legs = ("lexical",)
        if isinstance(op, Move):
            self._seen(op.to, op.to_seq, legs)
            legs = LEGS
        self._seen(op.partition, op.seq, legs)

    def _seen(self, partition: Partition, seq: int, legs: tuple[Leg, ...]) -> None:
        for leg in legs:
            self._awaited[partition, leg].discard(seq)
            for asked in self._held:
                asked.needs.discard((partition, leg, seq))

    def _release(self, asked: Asked) -> None:
        asked.released, asked.early = True, bool(asked.needs)
        self._held.discard(asked)
        if asked.early and isinstance(asked.request, READERS):
            waited = self.clock - asked.at
            patience = getattr(asked.request, "barrier_ms", 2000)
            demand(waited >= patience * MS, f"{_name(asked)} went on early")

    def _retrieve(self, i: ins.Retrieve) -> None:
        asked = self.keys[i.key]
        demand(not asked.answer and not asked.who.gone, "retrieval for a call that has ended")
        asked.looked = True
        reader = (i.view.reader.user, i.view.reader.agent)
        if isinstance(asked.request, m.Export | m.Import):
            demand(asked.who.operator and reader == ("", ""), "a view of the whole store")
            return
        if isinstance(asked.request, (m.LearnList, *HANDS)) and _operates(asked):
            whole = {partition for partition, number in self._accepted.items() if number}
            demand(set(i.view.partitions) <= whole and reader == ("", ""), "a view of everything")
            return
        if isinstance(asked.request, m.LearnLessons):
            # A scope at a time, so that none takes another's room.
            demand(set(i.view.partitions) <= set(visible(asked)), f"{_name(asked)} sees more")
        elif i.turn == 2 and isinstance(i.query, ReadQuery) and isinstance(asked.request, CHANGES):
            # Not in the view: then it is looked for in the groups, to be changed if it is its own.
            elsewhere = {p for p, n in self._accepted.items() if n and _may_hold_its_own(asked, p)}
            demand(set(i.view.partitions) == elsewhere, f"{_name(asked)} looks elsewhere")
        else:
            view = visible(asked)
            demand(i.view.partitions == view, f"{_name(asked)} is given {i.view.partitions}")
        demand(reader == (asked.user, asked.who.agent), "reader")
        if isinstance(asked.request, READERS) and not asked.released:
            self._release(asked)
            asked.stale = tuple(leg for leg in self._legs(asked) if self._stale(asked, leg))

    def _legs(self, asked: Asked) -> Iterator[Leg]:
        """The legs of which an answer speaks: both for a search, which may use both."""
        yield "lexical"
        if isinstance(asked.request, CHOOSY + BOTH):
            yield "dense"

    def _stale(self, asked: Asked, leg: Leg) -> bool:
        """True iff the store lacks in ``leg`` a write that was accepted before the call came."""
        for partition, accepted in asked.accepted.items():
            unseen = self._unseen[partition]
            unseen[:] = [n for n in unseen if not self._everywhere(partition, n)]
            if any(n <= accepted and not self.store.shows(partition, n, leg) for n in unseen):
                return True
        return False

    def _everywhere(self, partition: Partition, number: int) -> bool:
        shows = self.store.shows
        return shows(partition, number, "dense") and shows(partition, number, "lexical")

    # -- models

    def _render(self, i: ins.Render) -> None:
        asked = self.keys[i.key]
        demand(not asked.answer and not asked.who.gone, "rendering for a call that has ended")
        tools = asked.request.tools if isinstance(asked.request, m.Chat) else ()
        demand(i.tools == tools, "the prompt offers other tools than the chat")
        if not asked.released:
            self._release(asked)

    def _decode(self, i: ins.Decode) -> None:
        asked, life = self.keys[i.key], self._lives[i.model, i.gen]
        demand(life.up and not life.dead, "decoding on a driver that is not up")
        life.busy.add(i.key)
        self._fits(i.model, life)
        demand(not asked.answer and not asked.who.gone, "decoding for a call that has ended")
        asked.lives += 1
        demand(asked.lives <= LIVES, "a chat was tried too often")
        asked.words, asked.logprobs, asked.calls = [], [], ()
        demand(_answer(i) == _answer(asked.request), "another answer is asked for than the chat's")

    def _pause(self, i: ins.Pause) -> None:
        life = self._lives[i.model, i.gen]
        demand(i.key in life.busy - life.paused, "a pause of what does not run")
        life.paused.add(i.key)

    def _resume(self, i: ins.Resume) -> None:
        life = self._lives[i.model, i.gen]
        demand(i.key in life.paused, "going on with what was not paused")
        demand(not self.keys[i.key].answer, "going on with a call that has ended")
        life.paused.remove(i.key)
        self._fits(i.model, life)

    def _fits(self, model: str, life: Life) -> None:
        running = len(life.busy) - len(life.paused)
        demand(running <= self.slots[model], "more requests than the driver has slots")

    def _driver_speaks(self, event: ev.Token | ev.DriverUp | ev.DriverDone) -> None:
        life = self._lives[event.model, event.gen]
        if life.dead:
            return
        if isinstance(event, ev.DriverUp):
            life.up = True
        elif event.key in life.busy:
            asked = self.keys[event.key]
            asked.logprobs += event.logprobs
            if isinstance(event, ev.Token):
                asked.words.append(event.text)
            else:
                asked.calls = event.calls
                life.busy.remove(event.key)
                life.paused.discard(event.key)
                self._deaths[event.model] = 0

    def _driver_dies(self, event: ev.DriverDied) -> list[Asked]:
        life = self._lives[event.model, event.gen]
        if life.dead:
            return []
        life.dead = True
        self._deaths[event.model] += 1
        dying = [self.keys[key] for key in sorted(life.busy)]
        life.busy.clear()
        life.paused.clear()
        return [asked for asked in dying if not asked.answer and not asked.who.gone]

    @staticmethod
    def _after_death(asked: Asked, hopeless: bool) -> None:
        """A chat whose text has begun to leave fails; else it is tried again, but not for ever."""
        if hopeless or asked.parts or asked.lives >= LIVES:
            failed = isinstance(asked.answer, m.Failed) and asked.answer.errno == Errno.EIO
            demand(failed, f"{_name(asked)} goes on after its driver's death")
        else:
            demand(not asked.answer, f"{_name(asked)} is not tried again")

    # -- records, rights, ends

    def _audit_record(self, i: ins.Audit) -> None:
        demand(i.record.call not in self._audited, "two records of one call")
        if i.record.syscall == "expired":
            self._swept(i.record)
            return
        self._audited.add(i.record.call)
        self._audit = i.record

    def _swept(self, record: m.Record) -> None:
        """All and only what had expired is named, and it is gone."""
        demand((record.agent, record.user) == ("", ""), "a sweep in somebody's name")
        named = {unit.unit for unit in record.units}
        demand(named and named <= self.store.lapsed, f"{record} names what has not expired")
        left = {u for units in self.store.units.values() for u in named.intersection(units)}
        demand(left <= self.store.reborn, f"{record}, and {left} are still there")

    def _audited_as(self, asked: Asked, answer: m.AnyReply) -> None:
        record, self._audit = self._audit, None
        if record is None:
            raise Violation(f"{_name(asked)} left no record")
        demand((record.user, record.agent) == (asked.user, asked.who.agent), "another's record")
        errno = answer.errno if isinstance(answer, m.Failed) else 0
        demand(record.errno == errno, f"recorded as {record.errno}: {answer}")
        if asked.released:
            self._fresh(asked, record.barrier.state, record.barrier.lagging)
        elif not _says_yes(asked.request):
            demand(record.barrier.state == "timed_out", "ready, and it never passed the barrier")

    def _save_grant(self, i: ins.SaveGrant) -> None:
        asked = self._now
        if asked is None or not asked.who.operator:
            raise Violation("a grant that no operator made")
        request = asked.request
        if isinstance(request, m.Import):
            said = [one for one in _lines(request, GrantLine) if one.agent == i.agent]
            named = {user for one in said for user in one.users}
            filled = {scope for one in said for scope in one.scopes}
            held = self._granted.setdefault(i.agent, (set(), set()))
            for had, has, more in ((held[0], i.users, named), (held[1], i.scopes, filled)):
                demand(had <= set(has) <= had | more, f"{i} by an import")
                had.update(has)
            return
        if not isinstance(request, m.Grant):
            raise Violation("a grant that nobody asked for")
        users, scopes = self._granted.setdefault(request.agent, (set(), set()))
        if request.revoke:
            users.difference_update(users.copy() if "*" in request.users else request.users)
            scopes.difference_update(request.scopes)
            # Nor may a running instance, or one on its way, keep the user it was started for.
            for who in self.channels.values():
                if who.agent == request.agent and ({who.bound, "*"} & set(request.users)):
                    who.bound = ""
            for pid, (agent, user, _) in self._bound.items():
                if agent == request.agent and ({user, "*"} & set(request.users)):
                    self._bound[pid] = (agent, user, True)
        else:
            users.update(request.users)
            scopes.update(request.scopes)
        demand((i.agent, set(i.users), set(i.scopes)) == (request.agent, users, scopes), "grants")

    def _purge(self, i: ins.Purge) -> None:
        asked = self._now
        if asked is None or not isinstance(asked.request, m.ForgetUser):
            raise Violation("a purge that nobody asked for")
        demand(asked.who.operator and asked.request.name == i.user, "a purge of another user")
        demand(asked.request.confirm, "a purge that was not shown before")
        self._leaving[i.key] = i.user

    def _purged(self, user: str) -> None:
        """Nobody is granted, or bound to, who was forgotten; nor is it in any group."""
        for users, _ in self._granted.values():
            users.discard(user)
        for who in self.channels.values():
            who.bound = "" if who.bound == user else who.bound
        for pid, (agent, bound, revoked) in self._bound.items():
            self._bound[pid] = (agent, bound, revoked or bound == user)
        for (of, name), members in self._groups.items():
            if of == "users" and user in members:
                members.discard(user)
                self._all_leave(m.GroupChange(name=name, of="users", remove=(user,)))

    def _save_group(self, i: ins.SaveGroup) -> None:
        asked = self._now
        if asked is None or not asked.who.operator:
            raise Violation("a group that no operator changed")
        request = asked.request
        members = self._groups.setdefault((i.of, i.name), set())
        if isinstance(request, m.Import):
            said = _lines(request, GroupLine)
            here = [one.members for one in said if (one.of, one.name) == (i.of, i.name)]
            named = {member for some in here for member in some}
            demand(members <= set(i.members) <= members | named, f"{i} by an import")
            members.update(i.members)
            return
        if not isinstance(request, m.GroupChange) or (request.of, request.name) != (i.of, i.name):
            raise Violation("a group that nobody asked for")
        members |= set(request.add)
        members -= set(request.remove)
        demand((i.of, i.name, set(i.members)) == (request.of, request.name, members), "members")
        self._all_leave(request)

    def _all_leave(self, change: m.GroupChange) -> None:
        for frames in self.asked.values():
            for other in frames:
                self._leaves(other, change)

    def _leaves(self, asked: Asked, change: m.GroupChange) -> None:
        """Whoever has left is answered out of what is left to it, or not at all."""
        of, name = (0, asked.user) if change.of == "users" else (1, asked.who.agent)
        if name not in change.remove or change.name not in asked.groups[of]:
            return
        asked.groups[of].discard(change.name)
        asked.lost |= any(p in self._vectorless for p in asked.accepted)
        left = set(visible(asked))
        asked.accepted = {p: n for p, n in asked.accepted.items() if p in left}
        asked.needs = {need for need in asked.needs if need[0] in left}
        asked.left |= asked.looked and not asked.parts

    def _start_process(self, i: ins.StartProcess) -> None:
        asked = self._now
        if asked is None or not isinstance(asked.request, m.Spawn):
            raise Violation("a process that nobody asked for")
        if asked.who.operator:
            bound = asked.request.user or ""
        else:
            bound = asked.user or ""
            demand(i.agent == asked.who.agent, "an agent spawned another agent")
        demand(not asked.request.stdio or not asked.who.pid, "descriptors through a pipe")
        self._bound[i.pid] = (i.agent, bound, False)

    def _disconnect(self, i: ins.Disconnect) -> None:
        who = self.channels[i.channel]
        demand(not who.ended, "a channel is ended twice")
        who.ended = True

    def _report(self, i: ins.Report) -> None:
        raise Violation(f"the kernel reports a bug of its own: {i.message} {i.story}")


def _operates(asked: Asked) -> bool:
    """Whether the operator asks, as itself, for what it alone is told of all users."""
    mine = asked.who.operator and asked.who.agent == "operator"
    return mine and isinstance(asked.request, (m.LearnList, m.LearnStatus, *HANDS))


def _says_yes(request: object) -> bool:
    """What was named before is forgotten without another look, so it waits for no leg."""
    return isinstance(request, m.ForgetMatching) and bool(request.confirm)


def _answer(asks: Any) -> tuple[Any, ...]:
    """What answer a chat, or an instruction to decode one, asks for."""
    return asks.tools, asks.choice, asks.schema, asks.logprobs


def _name(asked: Asked) -> str:
    return (
        f"{asked.request or 'malformed'} of {asked.who.agent}, frame {asked.channel}/{asked.frame}"
    )


L = TypeVar("L", GroupLine, GrantLine)


def _lines(request: m.Import, kind: type[L]) -> list[L]:
    """The lines of an import of one kind."""
    found: list[L] = []
    for text in request.lines:
        with suppress(CallerError):
            line = read(text)
            if isinstance(line, kind):
                found.append(line)
    return found
