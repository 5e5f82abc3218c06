"""The judge of the simulator: says in its own words what the kernel promises, and watches.

It sees events and instructions alone and keeps its own books; of the state it asks only which
number a call has been given. What it demands is written a second time here on purpose, not
shared with the code that it judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.sim_world import MS, SECOND, Store
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Op, Put, Replace, Vectors
from isovist.syscalls.records import LEGS, Axis, Leg, Partition

LIVES = 2
"""Lives of a driver that one chat may see."""
READERS = (m.Search, m.Read, m.MemoryList, m.Chat)
SERVED = (*READERS, m.Remember, m.Update, m.Forget)
"""Requests that are for a user."""


class Violation(AssertionError):
    """The kernel broke a promise."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


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
    stale: tuple[Leg, ...] = ()
    lagging: tuple[str, ...] = ()
    commit: Op | None = None
    parts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    lives: int = 0


@dataclass
class Life:
    """A driver's life as told to the kernel."""

    up: bool = False
    dead: bool = False
    busy: set[int] = field(default_factory=set)


def own(agent: str) -> str:
    return f"agent/{agent}"


def four(user: str, agent: str) -> tuple[Partition, ...]:
    """What a reader may see, narrow to wide: own or open on each axis."""
    everybody = Axis("all")
    mine, here = Axis("one", user), Axis("one", agent)
    return tuple(Partition(u, a) for u in (mine, everybody) for a in (here, everybody))


class Judge:
    """``slots`` of each model; ``limit`` of a channel's calls; ``grants`` (users, scopes) of
    each agent at the start."""

    def __init__(
        self,
        store: Store,
        slots: dict[str, int],
        limit: int,
        grants: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
    ) -> None:
        self.store, self.slots, self.limit = store, slots, limit
        self.counts: Counter[str] = Counter()
        self.clock = 0
        self.channels: dict[int, Who] = {}
        self.asked: dict[tuple[int, int], list[Asked]] = defaultdict(list)
        self.keys: dict[int, Asked] = {}
        self._granted = {
            agent: (set(users), set(scopes)) for agent, (users, scopes) in grants.items()
        }
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
        self._deadlines: list[tuple[int, int, Asked]] = []
        self._audited: set[str] = set()
        self._to_audit = 0
        self._audit: m.Record | None = None
        self._now: Asked | None = None
        """Whose call the event at hand is about."""
        self._watch: dict[type[ins.Instruction], Callable[[Any], None]] = {
            ins.Reply: self._reply,
            ins.Commit: self._commit,
            ins.Retrieve: self._retrieve,
            ins.Render: self._render,
            ins.Decode: self._decode,
            ins.Audit: self._audit_record,
            ins.SaveGrant: self._save_grant,
            ins.StartProcess: self._start_process,
            ins.Disconnect: self._disconnect,
            ins.Report: self._report,
        }

    # -- one event and what came of it

    def before(self, event: ev.Event, fault: str) -> None:
        self._now, self._audit, self.clock = None, None, event.now
        if isinstance(event, ev.Attached):
            _, user, revoked = self._bound.get(event.pid, ("", "", False))
            bound = "" if revoked else user
            who = Who(event.agent, event.operator, event.pid, bound, [user] if user else [])
            self.channels[event.channel] = who
        elif isinstance(event, ev.Arrived | ev.Malformed) and event.channel in self.channels:
            self._now = self._ask(event, fault)
        elif isinstance(event, ev.Exited | ev.SpawnFailed):
            self._exited.add(event.pid)
            self._bound.pop(event.pid, None)

    def after(self, event: ev.Event, out: list[ins.Instruction], key: int) -> None:
        """``key``: the number under which an arrived request is outstanding, 0 if it is not."""
        if isinstance(event, ev.Arrived) and key and key not in self.keys:
            self._open(key)
        elif isinstance(event, ev.Retrieved | ev.Rendered | ev.DriverDone):
            self._now = self.keys.get(event.key)
        elif isinstance(event, ev.Committed | ev.WriteFailed):
            op = event.outcome.op
            if not isinstance(op, Vectors):
                self._now = self._writers.pop((op.partition, op.seq), None)
                if self._now is not None:
                    self._now.who.writes -= 1
            self._settled(event)
        if isinstance(event, ev.Retrieved) and self._now and not self._now.lagging:
            self._now.lagging = event.lagging
        if isinstance(event, ev.Token | ev.DriverUp | ev.DriverDone):
            self._driver_speaks(event)
        dying = self._driver_dies(event) if isinstance(event, ev.DriverDied) else []
        if isinstance(event, ev.Detached):
            self._gone(event.channel)
        for instruction in out:
            watch = self._watch.get(type(instruction))
            if watch is not None:
                watch(instruction)
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
        return asked

    def identify(self, who: Who, named: str | None) -> tuple[str, str] | None:
        """The user served and why; None where the request must be refused."""
        users, _ = self._granted.get(who.agent, (set(), set()))
        own_name = own(who.agent)

        def granted(user: str) -> bool:
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
        return own_name, "agent"

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
        if isinstance(request, READERS):
            self._hold(asked, request)

    def _accept(self, asked: Asked) -> None:
        """A request is accepted: its user is known to the channel, and it will leave a record."""
        request, who = asked.request, asked.who
        spawned = isinstance(request, m.Spawn) and not who.operator
        if isinstance(request, SERVED) or spawned:
            demand(asked.user is not None, f"{_name(asked)} was accepted for nobody")
            if asked.rule == "request" and asked.user and asked.user not in who.seen:
                who.seen.append(asked.user)
        self._to_audit += isinstance(request, m.Search | m.Chat)

    def _hold(self, asked: Asked, request: m.Search | m.Read | m.MemoryList | m.Chat) -> None:
        """Note what a reader must see: all that was accepted in its view before it came."""
        wait = request.wait if isinstance(request, m.Search | m.Chat) else "lexical"
        if isinstance(request, m.Chat):
            said = next((t.content for t in reversed(request.messages) if t.role == "user"), None)
            silent = not (said or "").strip() or not request.memory
            if silent or request.units == 0 or request.budget == 0:
                wait = "none"
        asked.legs = LEGS if wait == "both" else ("lexical",) if wait == "lexical" else ()
        for partition in four(asked.user or "", asked.who.agent):
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
            writes = isinstance(request, m.Remember | m.Update | m.Forget)
            full = who.open >= self.limit or (writes and who.writes >= self.limit)
            demand(full, "EAGAIN below the limit")
        elif errno == Errno.EPERM and answer.field == "user":
            demand(asked.user is None, f"{_name(asked)} was refused a user that it may serve")
        elif errno == Errno.EPERM and isinstance(request, m.Grant):
            demand(not who.operator, "the operator may grant")
        elif errno == Errno.EPERM:
            demand(isinstance(request, m.Spawn), f"{_name(asked)}: {answer.message}")

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
        if isinstance(asked.request, m.Search | m.Chat) and (was_open or self._audit):
            if not was_open:
                # It came and failed at once: the dense leg has lost a vector for good.
                self._accept(asked)
            self._audited_as(asked, message)

    def _sound(self, asked: Asked, reply: m.AnyReply) -> None:
        request = asked.request
        if request is None:
            raise Violation(f"{reply} to what is no request")
        demand(isinstance(reply, m.REPLY_OF[type(request)]), f"{reply} to {_name(asked)}")
        if isinstance(reply, m.Stored | m.Found | m.Units | m.Chatted | m.Identity):
            demand(
                (reply.user, reply.rule) == (asked.user, asked.rule), f"{reply} for the wrong user"
            )
        if isinstance(reply, m.Found | m.Units | m.Chatted):
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
        elif isinstance(request, m.Remember | m.Update | m.Forget):
            self._acknowledged(asked, reply)
        elif isinstance(reply, m.Chatted):
            demand(reply.text == "".join(asked.words), "a text that no driver wrote")
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
            demand((reply.id, reply.version) == result, f"{reply} of another unit")
            demand(reply.scope == op.partition.scope, f"{reply} with another scope")
            wished = asked.request.scope if isinstance(asked.request, m.Remember) else None
            narrowed = wished is not None and wished != reply.scope
            demand(bool(reply.note) == narrowed, f"{reply} is silent on its scope")

    def _fresh(self, asked: Asked, state: str, lagging: tuple[str, ...]) -> None:
        """An answer is fresh in each leg asked for, or says which is not."""
        demand(set(asked.stale) <= set(lagging), f"{_name(asked)} is silent on {asked.stale}")
        if state == "ready":
            demand(not set(lagging) & set(asked.legs), f"ready, and {lagging} lag")
            demand(not asked.early, f"{_name(asked)} is called ready and did not wait")
        else:
            lost = any(p in self._vectorless for p in asked.accepted)
            demand(lagging, "a barrier timed out and names no leg")
            demand(asked.early or asked.lagging or lost, "a barrier that timed out for nothing")

    # -- memory

    def _commit(self, i: ins.Commit) -> None:
        op, asked = i.op, self._now
        if asked is None or asked.request is None or isinstance(op, Vectors):
            raise Violation(f"{op} that nobody asked for")
        asked.commit = op
        self._writers[op.partition, op.seq] = asked
        asked.who.writes += 1
        if isinstance(asked.request, m.Remember):
            demand(asked.who.writes <= self.limit, "more writes under way than the limit")
        pair = (asked.user, asked.who.agent)
        if isinstance(op, Replace | Drop):
            demand(self.store.owners[op.id] == pair, f"{_name(asked)} changes what is not its own")
            demand(isinstance(asked.request, m.Update | m.Forget), "a change that nobody asked for")
        elif isinstance(op, Put):
            demand((op.user, op.agent) == pair, f"{op} in another's name")
            demand(op.partition == self._audience(asked), f"{op} in the wrong scope")
        partition = op.partition
        self._accepted[partition] += 1
        demand(op.seq == self._accepted[partition], "numbers are issued one by one")
        self._unseen[partition].append(op.seq)
        for leg in LEGS:
            self._awaited[partition, leg].add(op.seq)

    def _audience(self, asked: Asked) -> Partition:
        """Private, unless the writer may and wished otherwise."""
        pair, user, agent, everybody = four(asked.user or "", asked.who.agent)
        request = asked.request
        if not isinstance(request, m.Remember):
            return pair
        _, scopes = self._granted.get(asked.who.agent, (set(), set()))
        if request.scope == "user":
            return user
        if request.scope in scopes and request.stream == "reusable":
            return agent if request.scope == "agent" else everybody
        return pair

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
        for leg in legs:
            self._awaited[op.partition, leg].discard(op.seq)
            for asked in self._held:
                asked.needs.discard((op.partition, leg, op.seq))

    def _release(self, asked: Asked) -> None:
        asked.released, asked.early = True, bool(asked.needs)
        self._held.discard(asked)
        if asked.early and isinstance(asked.request, READERS):
            waited = self.clock - asked.at
            demand(waited >= asked.request.barrier_ms * MS, f"{_name(asked)} went on early")

    def _retrieve(self, i: ins.Retrieve) -> None:
        asked = self.keys[i.key]
        demand(not asked.answer and not asked.who.gone, "retrieval for a call that has ended")
        view = four(asked.user or "", asked.who.agent)
        demand(i.view.partitions == view, f"{_name(asked)} is given {i.view.partitions}")
        demand((i.view.reader.user, i.view.reader.agent) == (asked.user, asked.who.agent), "reader")
        if isinstance(asked.request, READERS):
            self._release(asked)
            asked.stale = tuple(leg for leg in self._legs(asked) if self._stale(asked, leg))

    def _legs(self, asked: Asked) -> Iterator[Leg]:
        """The legs of which an answer speaks: both for a search, which may use both."""
        yield "lexical"
        if isinstance(asked.request, m.Search | m.Chat):
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
        if not asked.released:
            self._release(asked)

    def _decode(self, i: ins.Decode) -> None:
        asked, life = self.keys[i.key], self._lives[i.model, i.gen]
        demand(life.up and not life.dead, "decoding on a driver that is not up")
        life.busy.add(i.key)
        demand(len(life.busy) <= self.slots[i.model], "more requests than the driver has slots")
        demand(not asked.answer and not asked.who.gone, "decoding for a call that has ended")
        asked.lives += 1
        demand(asked.lives <= LIVES, "a chat was tried too often")
        asked.words = []

    def _driver_speaks(self, event: ev.Token | ev.DriverUp | ev.DriverDone) -> None:
        life = self._lives[event.model, event.gen]
        if life.dead:
            return
        if isinstance(event, ev.DriverUp):
            life.up = True
        elif event.key in life.busy:
            asked = self.keys[event.key]
            if isinstance(event, ev.Token):
                asked.words.append(event.text)
            else:
                life.busy.remove(event.key)
                self._deaths[event.model] = 0

    def _driver_dies(self, event: ev.DriverDied) -> list[Asked]:
        life = self._lives[event.model, event.gen]
        if life.dead:
            return []
        life.dead = True
        self._deaths[event.model] += 1
        dying = [self.keys[key] for key in sorted(life.busy)]
        life.busy.clear()
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
        self._audited.add(i.record.call)
        self._audit = i.record

    def _audited_as(self, asked: Asked, answer: m.AnyReply) -> None:
        record, self._audit = self._audit, None
        if record is None:
            raise Violation(f"{_name(asked)} left no record")
        demand((record.user, record.agent) == (asked.user, asked.who.agent), "another's record")
        errno = answer.errno if isinstance(answer, m.Failed) else 0
        demand(record.errno == errno, f"recorded as {record.errno}: {answer}")
        if asked.released:
            self._fresh(asked, record.barrier.state, record.barrier.lagging)
        else:
            demand(record.barrier.state == "timed_out", "ready, and it never passed the barrier")

    def _save_grant(self, i: ins.SaveGrant) -> None:
        asked = self._now
        if asked is None or not isinstance(asked.request, m.Grant) or not asked.who.operator:
            raise Violation("a grant that no operator made")
        request = asked.request
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


def _name(asked: Asked) -> str:
    return (
        f"{asked.request or 'malformed'} of {asked.who.agent}, frame {asked.channel}/{asked.frame}"
    )
