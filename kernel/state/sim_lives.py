"""A simulator of lives: agents send, receive and change the world; the kernel is killed at any
moment, and the next life goes on over what was durable.

Beside agents' own steps there is a *tool*, which the kernel carries out by the three words of
:class:`~isovist.kernel.state.effects.Effects`, as it does its real ones: a ``ping`` calls it.
Pure like all of this floor: all chance is from the generator that it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Step
from isovist.kernel.state.core import Channel, State
from isovist.kernel.state.effects import Begun
from isovist.kernel.state.sim_effects import Durable, EffectBooks, MailBooks
from isovist.kernel.state.sim_judge import Violation
from isovist.kernel.state.sim_ledger import Ledger
from isovist.kernel.state.sim_world import MS, SECOND, Chance
from isovist.kernel.state.users import OPERATOR
from isovist.syscalls import ledger as led
from isovist.syscalls import messages as m
from isovist.syscalls.abi import effects, mail, timers
from isovist.syscalls.errors import Errno, IsovistError

WALL = 1_800_000_000 * SECOND
GRANTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "plan": (("ana", "bob"), ()),
    "post": (("ana", "bob"), ()),
}
MAIL: dict[str, tuple[tuple[str, ...], tuple[()]]] = {"plan": (("post",), ()), "post": ((), ())}
"""Who may write to whom; each may write to itself."""
PAIRS = (("plan", "ana"), ("plan", "bob"), ("post", "ana"), ("post", "bob"))
KEYS = ("", "k1", "k2", "k3", "k4")
STEPS = 60
MISSED: tuple[timers.Missed, ...] = ("skip", "once", "all")
OUTCOMES: tuple[Literal["done", "failed", "retry"], ...] = ("done", "failed", "retry")


class Run(ins.Instruction, frozen=True, gc=False):
    """Have the tool change the world for effect ``id``; send ``Ran``."""

    id: str


class Ran(ev.Event, frozen=True, kw_only=True, gc=False):
    id: str
    outcome: str


class Tool:
    """A tool of the kernel's, in one life: a ``ping`` calls it, under the payload as key."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._calls: dict[str, int] = {}
        state._syscalls[m.Ping] = self.call
        state._events[Ran] = self.ran

    def call(self, channel: Channel, frame: int, request: m.Ping) -> None:
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)

        def act(begun: Begun) -> None:
            if begun.refused is not None or begun.effect is None:
                self._state.fail(call, begun.refused or IsovistError("no effect"))
            elif begun.fresh:
                self._calls[begun.effect.id] = call.key
                self._state.emit(Run(begun.effect.id))
            else:
                self._state.finish(call, m.Pong(payload=begun.effect.state))

        self._state.effects.begin(
            call, key=f"tool {request.payload}", kind="tool", subject="tool.act",
            arguments=request.payload, idempotent=request.payload == "k4", then=act,
        )  # fmt: skip

    def ran(self, event: Ran) -> None:
        call = self._state.calls.get(self._calls.pop(event.id, 0))

        def answer() -> None:
            if call is not None and self._state.calls.get(call.key) is call:
                self._state.finish(call, m.Pong(payload=event.outcome))

        if event.outcome == "done":
            self._state.effects.done(event.id, "it was done", answer)
        elif event.outcome == "failed":
            self._state.effects.failed(event.id, Errno.EIO, "it was not", answer)
        else:
            self._state.effects.lost(event.id, "the tool hangs", answer)


@dataclass(slots=True)
class Peer:
    """A program: it lives as long as its channel. ``asked`` is what it waits for, by frame."""

    channel: int
    agent: str
    user: str
    frame: int = 0
    asked: dict[int, Any] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)


class Lives:
    """One run. ``ledger`` is what survives (default: a simulated one); ``trace`` is given each
    event and instruction as a line."""

    def __init__(
        self,
        rng: Chance,
        ledger: Durable | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.rng, self.now, self.life = rng, 0, 0
        self.ledger: Durable = Ledger() if ledger is None else ledger
        self.effects, self.mail = EffectBooks(self.ledger), MailBooks()
        self.counts: Counter[str] = Counter()
        self._trace = trace
        self._digest = blake2b(digest_size=16)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._words = count()
        self._timers: list[str] = []
        self._cruelty = rng.choice((0.0, 0.05, 0.2))
        self._crashes = rng.choice((0.0, 0.002, 0.01, 0.05))
        self._begin()

    @property
    def digest(self) -> str:
        """That of all instructions of all lives."""
        return self._digest.hexdigest()

    def run(self, steps: int = STEPS) -> None:
        """Raises :class:`Violation` where a promise was broken."""
        for _ in range(steps):
            due = self.now + int(self.rng.choice((MS, 20 * MS, SECOND)) * 2 * self.rng.random())
            while self._heap and self._heap[0][0] <= due:
                self._next()
            self.now = max(self.now + 1, due)
            self._step()
        self._cruelty = self._crashes = 0.0
        while self._lane:
            self._next()
        for timer in self.ledger.timers():
            if timer.kind != "at":  # else there would be no end
                drop = led.DropTimer(id=timer.id, agent=timer.agent, user=timer.user)
                self.ledger.enter([drop])
        self._calm()
        for peer in list(self.peers):
            self._leave(peer)
        self._calm()
        self.effects.over()
        self._crash()
        for peer in self.peers[1 : 1 + len(PAIRS)]:
            self._drain(peer)
        self._calm()
        for peer in list(self.peers):
            self._leave(peer)
        self._calm()
        self.mail.over(self.now)
        if len(self.state.ledger) or len(self.state.mail) or self.state.calls:
            raise Violation("left over after all has ended")

    # -- time and lives

    def _begin(self) -> None:
        """The next life, over what is durable; programs come back."""
        self.life += 1
        self._born = self.now
        self._heap.clear()
        self._lane: list[ins.Enter] = []
        self._channels = 0
        self._woken = 0
        self.peers: list[Peer] = []
        self.ledger.enter([led.Recover(at=WALL + self.now)])
        self.state = State(
            secret=b"simulated",
            boot=f"life {self.life}".encode(),
            wall=WALL + self.now,
            grants=GRANTS,
            permissions=MAIL,
            timers=self.ledger.timers(),
            next_time=lambda expression, zone, after: after + 7 * SECOND,
        )
        Tool(self.state)
        self._attach(OPERATOR, "", operator=True)
        for agent, user in (*PAIRS, ("post", "ana")):
            self._attach(agent, user)

    def _crash(self) -> None:
        """kill -9: what was not entered is lost, and so is every word on its way."""
        self.counts["crashes"] += 1
        self.mail.crashed()
        self._begin()

    def _after(self, ns: int, action: Callable[[], None]) -> None:
        heappush(self._heap, (self.now + ns, next(self._order), action))

    def _next(self) -> None:
        at, _, action = heappop(self._heap)
        self.now = max(self.now + 1, at)
        action()

    def _calm(self) -> None:
        for _ in range(20_000):
            if not self._heap:
                return
            self._next()
        raise Violation("the kernel never comes to rest")

    def _delay(self) -> int:
        slow = self.rng.random() < self._cruelty
        return int((30 * SECOND if slow else 5 * MS) * self.rng.random())

    # -- the kernel

    def _tell(self, event: type[ev.Event], **fields: Any) -> None:
        said = event(now=self.now - self._born, **fields)
        if self._trace is not None:
            self._trace(f"{self.life}: {self.now / SECOND:12.6f} > {said}"[:400])
        out = self.state.handle(said)
        self.state.validate()
        life = self.life
        for instruction in out:
            self._digest.update(type(instruction).__name__.encode())
            self._digest.update(msgspec.json.encode(instruction))
            if self._trace is not None:
                self._trace(f"{'':15} < {instruction}"[:400])
            if self.rng.random() < self._crashes / 4:
                self._crash()
            if self.life != life:
                return
            self._carry_out(instruction)

    def _carry_out(self, i: ins.Instruction) -> None:
        if isinstance(i, ins.Enter):
            self._lane.append(i)
            if len(self._lane) == 1:
                self._after(self._delay(), self._commit)
        elif isinstance(i, ins.Ask):
            answer = self.ledger.ask(i.question)
            self._after(self.rng.randrange(MS), lambda: self._answer(i.number, answer))
        elif isinstance(i, ins.Reply):
            self._hear(i)
        elif isinstance(i, ins.WakeAt):
            self._woken += 1
            wish = self._woken
            wait = max(0, i.ns - (self.now - self._born))
            self._after(wait + self.rng.randrange(MS), lambda: self._wake(wish))
        elif isinstance(i, Run):
            self._after(self._delay(), lambda: self._run(i.id))
        elif isinstance(i, ins.Report):
            raise Violation(f"a broken rule: {i.message}")

    def _commit(self) -> None:
        """A group becomes durable; its answers come a little later, in order."""
        group = self._lane[: self.rng.randrange(1, 5)]
        answers: list[tuple[ins.Enter, object]] = []
        fails = self.rng.random() < self._cruelty
        for i in group:
            if fails:
                answers.append((i, IsovistError("simulated", errno=Errno.ENOSPC)))
                continue
            (answer,) = self.ledger.enter([i.entry])
            self.effects.entered(i.entry, answer)
            answers.append((i, answer))
        self._after(self.rng.randrange(2 * MS), lambda: self._told(answers))

    def _told(self, answers: list[tuple[ins.Enter, object]]) -> None:
        life = self.life
        for i, answer in answers:
            self._answer(i.number, answer)
            if self.life != life:
                return
        del self._lane[: len(answers)]
        if self._lane:
            self._after(self._delay(), self._commit)

    def _answer(self, number: int, answer: object) -> None:
        if isinstance(answer, IsovistError):
            self._tell(ev.NotEntered, number=number, errno=int(answer.errno), message="simulated",
                       field=answer.field)  # fmt: skip
        else:
            self._tell(ev.Entered, number=number, answer=answer)

    def _wake(self, wish: int) -> None:
        if wish == self._woken:
            self._tell(ev.Tick)

    def _run(self, id_: str) -> None:
        """The tool is at work, fails, or hangs before or after it has done it."""
        outcome = self.rng.choices(("done", "failed", "lost", "late"), (8, 1, 1, 1))
        if outcome[0] in ("done", "late") or (self.rng.random() < 0.5 and outcome[0] == "lost"):
            self._act(id_)
        said = "lost" if outcome[0] == "late" else outcome[0]
        self._after(self._delay(), lambda: self._tell(Ran, id=id_, outcome=said))

    def _act(self, id_: str) -> None:
        self.counts["acts"] += 1
        self.effects.acted(id_)

    # -- programs

    def _attach(self, agent: str, user: str, operator: bool = False) -> Peer:
        self._channels += 1
        peer = Peer(self._channels, agent, user)
        self.peers.append(peer)
        self._tell(ev.Attached, channel=peer.channel, agent=agent, operator=operator)
        self._ask(peer, m.Hello(version=1))
        return peer

    def _leave(self, peer: Peer) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
            self.mail.detached(peer.channel)
            self._tell(ev.Detached, channel=peer.channel, why="gone")

    def _ask(self, peer: Peer, request: Any) -> None:
        if peer not in self.peers:
            return
        peer.frame += 1
        peer.asked[peer.frame] = request
        if isinstance(request, mail.MailAck):
            self.mail.leaving(request.ids)
        self.now += 1
        self._tell(ev.Arrived, channel=peer.channel, call=peer.frame, request=request)

    def _step(self) -> None:
        chance = self.rng.random()
        peer = self.rng.choice(self.peers)
        if chance < self._crashes:
            self._crash()
        elif chance < 0.06 and peer.agent != OPERATOR:
            self._leave(peer)
            self._attach(peer.agent, peer.user)
        elif chance < 0.08:
            self.now += int(self.rng.random() * 120 * SECOND)
        else:
            self._ask(peer, self._request(peer))

    def _request(self, peer: Peer) -> Any:
        rng, user = self.rng, peer.user or None
        key = rng.choice(KEYS)
        if peer.agent == OPERATOR:
            return rng.choice((effects.EffectList(), mail.MailList(), timers.TimerList()))
        kind = rng.choices(
            ("send", "receive", "begin", "tool", "list", "timer", "ack", "cancel"),
            (6, 6, 6, 4, 2, 1, 2, 1),
        )[0]
        if kind == "send":
            words = key or f"word {next(self._words)}"
            other = rng.random() < 0.05
            return mail.MailSend(
                to=rng.choice(("post", "post", peer.agent, "plan")), user=user, key=key,
                to_user=rng.choice(("", "", "bob")), wait=rng.random() < 0.3,
                text=f"{peer.agent}|{peer.user}|{words}{'!' if other else ''}",
            )  # fmt: skip
        if kind == "receive":
            return mail.MailReceive(
                user=user, limit=rng.choice((1, 3, 64)), wait_ms=rng.choice((0, 0, 5000)),
                lease_ms=rng.choice((1000, 10_000)),
            )  # fmt: skip
        if kind == "begin":
            return effects.EffectBegin(
                subject="step", key=key, user=user, arguments=rng.choice((key, key, key, "other")),
                idempotent=key == "k4",
            )  # fmt: skip
        if kind == "tool":
            return m.Ping(payload=key or f"word {next(self._words)}", user=user)
        if kind == "list":
            return effects.EffectList(
                user=user, states=rng.choice(((), ("unknown",), ("failed",))), limit=200
            )
        if kind == "timer":
            return self._timer(user)
        if kind == "ack" and peer.held:
            return mail.MailAck(user=user, ids=(rng.choice(peer.held),))
        if kind == "cancel":
            return m.Cancel(call=max(1, peer.frame - rng.randrange(3)))
        if kind == "list" or rng.random() < 0.5:
            return timers.TimerList(user=user)
        return timers.TimerCancel(id=rng.choice(self._timers or ["none"]), user=user)

    def _timer(self, user: str | None) -> timers.TimerSet:
        missed = self.rng.choice(MISSED)
        kind = self.rng.choice(("at", "every", "cron"))
        if kind == "at":
            at = (WALL + self.now) // SECOND + self.rng.randrange(1, 60)
            said = datetime.fromtimestamp(at, UTC).isoformat()
            return timers.TimerSet(text="tick", user=user, at=said)
        return timers.TimerSet(
            text="tick", user=user, name=kind, missed=missed,
            every=5 * (kind == "every"), cron="*" * (kind == "cron"),
        )  # fmt: skip

    def _drain(self, peer: Peer) -> None:
        """Take what is in the box until there is nothing, and nothing will come."""
        self._ask(peer, mail.MailReceive(user=peer.user, limit=64, lease_ms=10_000))

        def again() -> None:
            pair = led.FindBoxes(agent=peer.agent, user=peer.user)
            mine = [one for one in self.ledger.timers()
                    if (one.agent, one.user) == (peer.agent, peer.user)]  # fmt: skip
            if self.ledger.ask(pair) or mine:
                self._drain(peer)

        self._after(20 * SECOND, again)

    # -- what they hear

    def _hear(self, i: ins.Reply) -> None:
        peer = next((p for p in self.peers if p.channel == i.channel), None)
        if peer is None:
            return
        request, reply = peer.asked.pop(i.call, None), i.message
        self.counts[type(reply).__name__] += 1
        if isinstance(reply, m.Failed):
            self.counts[Errno(reply.errno).name] += 1
        elif isinstance(request, effects.EffectBegin) and isinstance(reply, effects.EffectShown):
            self.effects.begun(request, reply.effect, reply.fresh)
            if reply.fresh:
                self._after(self._delay(), lambda: self._work(peer, reply.effect.id))
        elif isinstance(reply, effects.EffectShown):
            self.effects.shown(reply.effect)
        elif isinstance(reply, effects.Effects):
            self._resolve(peer, reply.effects)
        elif isinstance(request, mail.MailSend) and isinstance(reply, mail.MailSent):
            if request.to != peer.agent and request.to not in MAIL[peer.agent][0]:
                raise Violation(f"{peer.agent} writes to {request.to} without a grant")
            self.mail.sent((peer.agent, peer.user), request, reply)
        elif isinstance(request, mail.MailReceive) and isinstance(reply, mail.Mails):
            self._took(peer, request, reply)
        elif isinstance(request, mail.MailAck):
            self.mail.acknowledged(request.ids)
            peer.held = [id_ for id_ in peer.held if id_ not in request.ids]
        elif isinstance(reply, timers.TimerShown):
            timer = reply.timer
            self._timers.append(timer.id)
            if isinstance(request, timers.TimerCancel):
                self.mail.cancelled(timer)
            if isinstance(request, timers.TimerSet) and timer.kind == "at":
                self.mail.timer(timer)

    def _work(self, peer: Peer, id_: str) -> None:
        """A program does its step, if it lives: and says so, or dies before."""
        if peer not in self.peers:
            return
        how = self.rng.choices(("done", "failed", "dies", "dies later"), (7, 1, 1, 1))[0]
        if how in ("done", "dies later"):
            self._act(id_)
        if how.startswith("dies"):
            self._leave(peer)
            self._attach(peer.agent, peer.user)
            return
        end = effects.EffectEnd(id=id_, user=peer.user, state="done" if how == "done" else "failed")
        self._after(self._delay(), lambda: self._ask(peer, end))

    def _resolve(self, peer: Peer, found: tuple[effects.Effect, ...]) -> None:
        for effect in found[:3]:
            if effect.state in ("unknown", "failed") and peer.agent == effect.agent:
                outcome = self.rng.choice(OUTCOMES)
                resolve = effects.EffectResolve(id=effect.id, outcome=outcome, user=peer.user)
                self._after(self._delay(), partial(self._ask, peer, resolve))

    def _took(self, peer: Peer, request: mail.MailReceive, reply: mail.Mails) -> None:
        until = self.now + request.lease_ms * MS
        for one in reply.mails:
            self.mail.given((peer.agent, peer.user), peer.channel, one, self.now, until)
            peer.held.append(one.id)
        if reply.mails and self.rng.random() < 0.8 + (not self._crashes):
            ack = mail.MailAck(user=peer.user, ids=tuple(one.id for one in reply.mails))
            self._after(self._delay(), lambda: self._ask(peer, ack))
