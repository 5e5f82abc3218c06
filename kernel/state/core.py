"""The door of the pure kernel: ``State.handle(event) -> list[Instruction]``.

This module owns channels, outstanding calls, time limits and replies; what the syscalls mean
stands in ``processes`` (whoami to list), ``memory`` (remember to forget) and ``chat``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.agents import Agents
from isovist.kernel.state.audit import Audits
from isovist.kernel.state.barrier import Barrier
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.changes import Changes
from isovist.kernel.state.chat import Chats
from isovist.kernel.state.chronicle import Chronicle
from isovist.kernel.state.contexts import Contexts
from isovist.kernel.state.distrust import Distrust
from isovist.kernel.state.drivers import Drivers, ModelConfig
from isovist.kernel.state.effects import Effects
from isovist.kernel.state.entries import Entries
from isovist.kernel.state.exports import Exports
from isovist.kernel.state.files import Files
from isovist.kernel.state.forgetting import Forgetting
from isovist.kernel.state.groups import Groups
from isovist.kernel.state.identities import Identities
from isovist.kernel.state.learning import Learning, Lessons
from isovist.kernel.state.ledger import Ledger
from isovist.kernel.state.mail import Boxes
from isovist.kernel.state.matching import Named
from isovist.kernel.state.memory import Memory
from isovist.kernel.state.metering import Metering
from isovist.kernel.state.processes import Processes
from isovist.kernel.state.quotas import Quotas
from isovist.kernel.state.recall import Recall
from isovist.kernel.state.reviewing import Reviewing
from isovist.kernel.state.routing import Routing
from isovist.kernel.state.scheduling import Admission, Scheduling
from isovist.kernel.state.sharing import Sharing
from isovist.kernel.state.supervision import Supervision
from isovist.kernel.state.sweeping import Sweeping
from isovist.kernel.state.timers import NextTime, Timers, no_cron
from isovist.kernel.state.toolcalls import Tools
from isovist.kernel.state.toolloop import ToolLoops
from isovist.kernel.state.toolservers import ServerConfig
from isovist.kernel.state.users import Principal, Resolved, Users
from isovist.scheduler.quota import Allowances, Bucket
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision
from isovist.syscalls.abi.quotas import QuotaSet
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.abi.tools import ToolsCall
from isovist.syscalls.codec import failed
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.file_operations import USUAL, Bounds
from isovist.syscalls.manifest import Approval
from isovist.syscalls.names import MAX_FRAME, MAX_TEXT
from isovist.syscalls.operations import Held, Put, Restored
from isovist.syscalls.records import ToolRule

SECOND = 1_000_000_000
INNER = 1 << 40
"""From here on frame ids are of syscalls that the kernel makes for a channel itself; a caller's
have 32 bits."""


@dataclass(frozen=True)
class Limits:
    """Bounds that keep one agent from costing another anything (design §3.2)."""

    calls: int = 256
    """Outstanding calls of one channel; one more is ``EAGAIN``. A cancel always gets through."""
    malformed: int = 8
    """Bodies in a row that are no request; with this many the channel ends."""
    deadline: int = 120 * SECOND
    """Of a call that names none (``wait`` and ``kill`` have none)."""
    exited: int = 256
    """Exited processes that are remembered."""


@dataclass(slots=True)
class Channel:
    """One open channel. ``calls`` maps its frame ids to keys of outstanding calls."""

    number: int
    who: Principal
    pid: int
    greeted: bool = False
    closing: bool = False
    malformed: int = 0
    calls: dict[int, int] = field(default_factory=dict)
    pace: tuple[Bucket, ...] = ()
    """What its syscalls are drawn from, where their number in a second is bounded."""
    refused: int = 0
    """Syscalls in a row that were over that."""
    named: dict[str, Named] = field(default_factory=dict)
    """By word: what was shown on this channel before it is forgotten, the latest last."""


class State:
    """All state of the kernel.

    ``secret`` keys the opaque ids; ``boot`` makes call ids of two lives of a kernel differ;
    ``wall`` is the calendar time (ns since 1970 UTC) at virtual time 0. Same constructor
    arguments and same events give the same instructions.
    """

    def __init__(
        self,
        *,
        secret: bytes,
        boot: bytes = b"",
        wall: int = 0,
        models: Iterable[ModelConfig] = (),
        restored: Iterable[Restored] = (),
        grants: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] | None = None,
        groups: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
        limits: Limits = Limits(),
        scheduling: Scheduling | None = None,
        learning: Learning | None = None,
        unlearned: Iterable[tuple[str, str, str]] = (),
        consents: Mapping[str, str] | None = None,
        timers: Iterable[Timer] = (),
        next_time: NextTime = no_cron,
        held: Iterable[Held] = (),
        limits_chosen: Mapping[tuple[str, str], Mapping[str, int]] | None = None,
        unreviewed: int = 0,
        permissions: Mapping[str, tuple[tuple[str, ...], tuple[ToolRule, ...]]] | None = None,
        approvals: Mapping[str, Approval] | None = None,
        tool_servers: Sequence[ServerConfig] = (),
        files: Bounds = USUAL,
        distrusted: Iterable[str] = (),
    ) -> None:
        self.secret = secret
        self.boot = boot
        self.wall = wall
        self.now = 0
        self.limits = limits
        self.channels: dict[int, Channel] = {}
        self.calls: dict[int, Call] = {}
        self.users = Users()
        for agent, (users, scopes) in (grants or {}).items():
            self.users.grant(agent, set(users), set(scopes))
        for agent, (mail, rules) in (permissions or {}).items():
            self.users.grant(agent, set(), set(), mail=mail, tools=rules)
        self.barrier = Barrier()
        for r in restored:
            self.barrier.restore(r.partition, r.accepted, ((n, unit) for n, unit, *_ in r.lacking))
        self.chronicle = Chronicle(self)
        self.identities = Identities(self)
        self.agents = Agents(self, approvals or {})
        self.processes = Processes(self)
        self.supervision = Supervision(self)
        self.distrust = Distrust(self, distrusted)
        self.groups = Groups(self, groups or {})
        self.sharing = Sharing(self)
        self.memory = Memory(self)
        self.changes = Changes(self)
        self.exports = Exports(self)
        self.recall = Recall(self)
        self.forgetting = Forgetting(self)
        self.sweeping = Sweeping(self)
        self.ledger = Ledger(self)
        self.effects = Effects(self)
        self.mail = Boxes(self)
        self.timers = Timers(self, timers, next_time)
        self.lessons = Lessons(self, learning or Learning(), unlearned, consents or {})
        self.entries = Entries(self)
        self.reviewing = Reviewing(self, unreviewed)
        self.files = Files(self, files)
        self.memory.readings |= {
            **self.files.readings(),
            **self.entries.readings(),
            **self.recall.readings(),
            **self.forgetting.readings(),
            **self.groups.readings(),
            **self.exports.readings(),
        }
        self.tools = Tools(self, tool_servers)
        self.loops = ToolLoops(self)
        self.chats = Chats(self)
        self.contexts = Contexts(self)
        self.metering = Metering(self)
        self.audits = Audits(self)
        scheduling = scheduling or Scheduling()
        allowed = Allowances(scheduling.quotas, limits_chosen)
        self.quotas = Quotas(self, allowed, held)
        self.admission = Admission(self, allowed)
        self.drivers = Drivers(self, models, scheduling)
        self.routing = Routing(self)
        self._last_key = 0
        self._inner: dict[tuple[int, int], Callable[[m.AnyReply], None]] = {}
        self._last_inner = INNER
        self._timers: list[tuple[int, int, str]] = []
        self._announced = 0
        self._out: list[ins.Instruction] = []
        self.timers.begin()
        self._syscalls: dict[type[m.Call], Callable[[Channel, int, Any], None]] = {
            m.Hello: self._hello,
            m.Ping: self._ping,
            m.Cancel: self._cancel,
            **self.identities.syscalls(),
            **self.agents.syscalls(),
            **self.processes.syscalls(),
            **self.supervision.syscalls(),
            **self.distrust.syscalls(),
            **self.memory.syscalls(),
            **self.changes.syscalls(),
            **self.groups.syscalls(),
            **self.exports.syscalls(),
            **self.recall.syscalls(),
            **self.forgetting.syscalls(),
            **self.tools.syscalls(),
            **self.chats.syscalls(),
            **self.contexts.syscalls(),
            **self.effects.syscalls(),
            **self.mail.syscalls(),
            **self.timers.syscalls(),
            **self.files.syscalls(),
            **self.lessons.syscalls(),
            **self.entries.syscalls(),
            **self.reviewing.syscalls(),
            **self.audits.syscalls(),
            **self.admission.syscalls(),
            **self.quotas.syscalls(),
            **self.metering.syscalls(),
        }
        self._events: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.Arrived: self._arrived,
            ev.Malformed: self._malformed,
            ev.Attached: self._attached,
            ev.Detached: self._detached,
            ev.Tick: self._tick,
            ev.WorkFailed: self._work_failed,
            ev.Saved: self._saved,
            **self.processes.events(),
            **self.distrust.events(),
            **self.memory.events(),
            **self.forgetting.events(),
            **self.sweeping.events(),
            **self.exports.events(),
            **self.tools.events(),
            **self.chats.events(),
            **self.contexts.events(),
            **self.ledger.events(),
            **self.files.events(),
            **self.lessons.events(),
            **self.entries.events(),
            **self.reviewing.events(),
            **self.audits.events(),
            **self.drivers.events(),
            **self.quotas.events(),
            **self.metering.events(),
        }

    # -- the door

    def handle(self, event: ev.Event) -> list[ins.Instruction]:
        """Take in one event; returns what is to be done, in order.

        Late and doubled events (of calls, drivers or processes that are gone) change nothing.
        """
        self.now = max(self.now, event.now)
        out: list[ins.Instruction] = []
        self._out = out
        try:
            self._events[type(event)](event)
        except Exception as e:  # a bug of ours may end one call, never everybody's kernel
            self._broken(event, e)
        if self._timers and self._timers[0][0] != self._announced:
            self._announced = self._timers[0][0]
            out.append(ins.WakeAt(self._announced))
        return out

    def _broken(self, event: ev.Event, e: Exception) -> None:
        """A broken rule ends the call that met it, is reported, and harms no other call."""
        if not isinstance(e, KernelError):
            where = traceback.format_tb(e.__traceback__)
            e = KernelError(f"{type(event).__name__}: {type(e).__name__}", story=tuple(where))
        self.emit(ins.Report(e.message, e.story))
        call = self.calls.get(getattr(event, "key", 0))
        if call is None and isinstance(event, ev.Arrived):
            channel = self.channels.get(event.channel)
            call = self.calls.get(channel.calls.get(event.call, 0)) if channel else None
        if call is not None:
            e.story = call.told()
            self.fail(call, e)
        elif isinstance(event, ev.Arrived) and event.channel in self.channels:
            self.reply(self.channels[event.channel], event.call, failed(e))

    # -- what the syscall modules use

    def emit(self, instruction: ins.Instruction) -> None:
        self._out.append(instruction)

    def reply(self, channel: Channel, call: int, message: m.AnyReply) -> None:
        """Answer a request that never became an outstanding call."""
        self._answer(channel.number, call, message)

    def _answer(self, channel: int, call: int, message: m.AnyReply) -> None:
        """The last word on a request, to whoever made it."""
        if call < INNER:
            self.emit(ins.Reply(channel, call, message))
        elif then := self._inner.pop((channel, call), None):
            then(message)

    def ask(self, channel: Channel, request: m.Request, then: Callable[[m.AnyReply], None]) -> int:
        """Make a syscall for a channel, as if it had asked; its last word goes to ``then``. The
        number that it gives is for :meth:`drop`."""
        self._last_inner += 1
        frame = self._last_inner
        self._inner[channel.number, frame] = then
        try:
            self._syscalls[type(request)](channel, frame, request)
        except IsovistError as e:
            key = channel.calls.get(frame)
            if key is not None:
                self.fail(self.calls[key], e)
            else:
                self.reply(channel, frame, failed(e))
        return frame

    def drop(self, channel: int, frame: int) -> None:
        """End a syscall that was made by :meth:`ask`; nobody wants its last word any more."""
        self._inner.pop((channel, frame), None)
        found = self.channels.get(channel)
        key = found.calls.get(frame) if found else None
        if key is not None:
            self._close(self.calls[key])

    def calendar(self) -> int:
        """Now, in nanoseconds since 1970 UTC."""
        return self.wall + self.now

    def opaque(self, prefix: str, *parts: object) -> str:
        """An id that tells nothing: a keyed hash of ``parts`` (their reprs cannot collide)."""
        digest = blake2b(repr(parts).encode(), key=self.secret, digest_size=10).hexdigest()
        return prefix + digest

    def open(
        self, channel: Channel, call: int, request: m.Request, resolved: Resolved | None = None
    ) -> Call:
        """Enter an outstanding call, with its deadline; it is now accepted, so the channel's
        registry sees its user. Raises ``EAGAIN`` over the limit."""
        if len(channel.calls) >= self.limits.calls:
            raise CallerError(
                f"{self.limits.calls} calls are outstanding, the limit", errno=Errno.EAGAIN
            )
        if resolved is not None:
            self.quotas.step_for(resolved.user)
        self._last_key += 1
        opened = Call(self._last_key, channel.number, call, request, channel.who.agent, self.now)
        opened.tell(self.now, f"arrived {opened.name}")
        if resolved is not None:
            opened.resolved = resolved
            if call < INNER:
                self.users.saw(channel.who, resolved)
        self.calls[opened.key] = opened
        channel.calls[call] = opened.key
        if request.deadline_ms is not None:
            self.timer(self.now + request.deadline_ms * 1_000_000, opened.key, "deadline")
        elif not isinstance(request, m.WaitPid | m.Kill | ToolsCall):
            self.timer(self.now + self.limits.deadline, opened.key, "deadline")
        return opened

    def timer(self, at: int, key: int, what: str) -> None:
        heappush(self._timers, (at, key, what))
        # Calls mostly end long before their deadline: drop the dead when they are the bulk.
        if len(self._timers) > 1024 and len(self._timers) > 4 * (len(self.calls) + 64):
            self._timers = [t for t in self._timers if t[1] <= 0 or t[1] in self.calls]
            heapify(self._timers)

    def part(self, call: Call, text: str) -> None:
        """A piece of a streamed reply."""
        self.emit(ins.Reply(call.channel, call.call, m.Part(text=text)))

    def finish(self, call: Call, message: m.AnyReply) -> None:
        """End a call with its last word; everything that it held is given back."""
        self._close(call, failed=isinstance(message, m.Failed))
        self._answer(call.channel, call.call, message)

    def fail(self, call: Call, e: IsovistError) -> None:
        """End a call with an error that carries its story."""
        call.tell(self.now, f"failed {e.errno.name}")
        self.audits.failure(call, e.errno)
        e.story = e.story or call.told()
        self.finish(call, failed(e))

    def _close(self, call: Call, failed: bool = True) -> None:
        call.leave(self.now)
        self.metering.closed(call, failed)
        self.calls.pop(call.key, None)
        channel = self.channels.get(call.channel)
        if channel is not None:
            channel.calls.pop(call.call, None)
        if call.step is Step.BARRIER:
            self.barrier.leave(call.key)
        self.drivers.closed(call)
        self.forgetting.closed(call)
        self.mail.closed(call)
        self.processes.closed(call)
        self.tools.closed(call)

    # -- channels and requests

    def _attached(self, event: ev.Attached) -> None:
        who = self.processes.principal(event)
        channel = self.channels[event.channel] = Channel(event.channel, who, event.pid)
        self.quotas.attached(channel)
        self.processes.attached(event.pid, event.channel)

    def _detached(self, event: ev.Detached) -> None:
        channel = self.channels.pop(event.channel, None)
        if channel is None:
            return
        self._inner = {at: then for at, then in self._inner.items() if at[0] != event.channel}
        for key in list(channel.calls.values()):
            call = self.calls.get(key)
            if call is not None:  # else it went with another
                self.audits.failure(call, Errno.EPIPE)
                self._close(call)
        self.effects.detached(event.channel)
        self.mail.detached(event.channel)

    def _arrived(self, event: ev.Arrived) -> None:
        channel = self.channels.get(event.channel)
        if channel is None:
            return
        request = event.request
        before = channel.calls.get(event.call)
        self.processes.served(channel.pid)
        channel.malformed = 0
        try:
            if channel.closing:
                raise CallerError("this channel is at its end", errno=Errno.EPIPE)
            if event.call in channel.calls:
                raise CallerError(
                    f"frame id {event.call} is still outstanding", errno=Errno.EEXIST, field="id"
                )
            if not channel.greeted and type(request) is not m.Hello:
                raise CallerError("hello comes first", errno=Errno.EPROTO)
            if channel.pace and self._paced(channel, event):
                self.quotas.step(channel)
            deadline = request.deadline_ms
            if deadline is not None and not 1 <= deadline <= 3_600_000:
                raise CallerError("deadline_ms must be 1 to 3600000", field="deadline_ms")
            self._syscalls[type(request)](channel, event.call, request)
        except IsovistError as e:
            if isinstance(e, KernelError):
                self.emit(ins.Report(e.message, e.story))
            key = channel.calls.get(event.call)
            call = self.calls.get(key) if key is not None and key != before else None
            if call is not None:
                self.fail(call, e)
            else:
                e.story = e.story or (f"arrived {m.NAMES[type(request)]}", f"failed {e.errno.name}")
                self.reply(channel, event.call, failed(e))

    @staticmethod
    def _paced(channel: Channel, event: ev.Arrived) -> bool:
        """Whether a request counts where syscalls are counted: all but the kernel's own, and a
        cancel, which ends what was counted."""
        request = event.request
        cancels = isinstance(request, m.Cancel) and request.call in channel.calls
        return event.call < INNER and not cancels

    def _malformed(self, event: ev.Malformed) -> None:
        channel = self.channels.get(event.channel)
        if channel is None:
            return
        self.reply(
            channel,
            event.call,
            m.Failed(errno=event.errno, message=event.message, field=event.field),
        )
        # An unknown syscall is an honest question of a newer peer, everything else is noise.
        if event.errno != Errno.ENOSYS:
            channel.malformed += 1
            if channel.malformed >= self.limits.malformed and not channel.closing:
                channel.closing = True
                why = f"{channel.malformed} malformed requests"
                self.chronicle.note("disconnect", "kernel", channel.who.agent, why=why)
                self.emit(ins.Disconnect(channel.number, why))

    def _hello(self, channel: Channel, call: int, request: m.Hello) -> None:
        if channel.greeted:
            raise CallerError("hello comes once", errno=Errno.EPROTO)
        if request.low > m.ABI_VERSION or request.version < 1 or request.version < request.low:
            raise CallerError(
                f"no common ABI version: offered {request.low} to {request.version}, "
                f"here 1 to {m.ABI_VERSION}",
                errno=Errno.EPROTO,
                field="version",
            )
        channel.greeted = True
        self.reply(
            channel,
            call,
            m.Welcome(
                version=min(request.version, m.ABI_VERSION),
                features=tuple(f for f in m.FEATURES if f in request.features),
                agent=channel.who.agent,
                pid=channel.pid,
                max_frame=MAX_FRAME,
                max_calls=self.limits.calls,
            ),
        )

    def _ping(self, channel: Channel, call: int, request: m.Ping) -> None:
        size = len(request.payload.encode())
        if size > MAX_TEXT:
            raise CallerError(
                f"payload has {size} bytes, the limit is {MAX_TEXT}",
                errno=Errno.EMSGSIZE,
                field="payload",
            )
        self.reply(channel, call, m.Pong(payload=request.payload))

    def _cancel(self, channel: Channel, call: int, request: m.Cancel) -> None:
        key = channel.calls.get(request.call)
        if key is not None:
            self.fail(self.calls[key], error(Errno.ECANCELED, "cancelled by its caller"))
        self.reply(channel, call, m.Done())

    # -- time

    def _tick(self, event: ev.Tick) -> None:
        # Whatever comes of the timers that are due, the next one is announced afresh.
        self._announced = 0
        if event.wall:
            self.wall = event.wall - self.now
            self.sweeping.clock_set()
            self.timers.arm()
        while self._timers and self._timers[0][0] <= self.now:
            _, key, what = heappop(self._timers)
            if key < 0:
                self.drivers.woken(-1 - key, what)
                continue
            if key == 0 and what == "sweep":
                self.sweeping.woken()
                continue
            if key == 0 and what == "effects":
                self.effects.woken()
                continue
            if key == 0 and what == "mail":
                self.mail.woken()
                continue
            if key == 0 and what == "timers":
                self.timers.woken()
                continue
            if key == 0 and what == "learn":
                self.lessons.woken()
                continue
            if key == 0 and what.startswith("tool "):
                self.tools.woken(what.removeprefix("tool "))
                continue
            if key == 0 and what == "flush":
                self.forgetting.woken()
                continue
            if key == 0:
                self.supervision.woken(what)
                continue
            call = self.calls.get(key)
            if call is None:
                continue
            if what == "deadline" and call.step is Step.KEEP:
                # The model has answered: a slow disk does not take the answer away.
                self.chats.kept(call)
            elif call.step is Step.WARM or what == "warm":
                # Nor does a slow model keep a text back.
                self.contexts.cold(call)
            elif what == "deadline" and self.forgetting.is_done(call):
                self.forgetting.answer(call)
            elif what == "deadline":
                message = f"deadline passed in {call.step.name}"
                if call.receipt:
                    message += f"; forgetting goes on, under receipt {call.receipt}"
                self.fail(call, error(Errno.ETIMEDOUT, message))
            elif what == "mail":
                self.mail.waited(call)
            elif what == "barrier":
                self.memory.barrier_timed_out(call)

    def _work_failed(self, event: ev.WorkFailed) -> None:
        self.contexts.answered(event.key)
        self.files.answered(event.key)
        self.lessons.answered(event.key)
        self.distrust.failed(event.key)
        self.quotas.failed(event.key)
        self.forgetting.failed(event.key)
        call = self.calls.get(event.key)
        if call is not None and self.forgetting.is_done(call):
            self.forgetting.answer(call)
        elif call is not None:
            self.fail(call, error(event.errno, event.message, event.field))

    def _saved(self, event: ev.Saved) -> None:
        """What a call wanted made durable is."""
        self.lessons.saved(event.key)
        self.distrust.saved(event.key)
        self.quotas.saved(event.key)
        call = self.calls.get(event.key)
        if call is not None and isinstance(call.request, m.Import):
            self.exports.saved(call)
        if call is None or call.step is not Step.LOOKUP:
            return
        if isinstance(call.request, m.Grant):
            self.finish(call, m.Done())
        elif isinstance(call.request, supervision.AgentApprove):
            self.finish(call, self.agents.saved(call))
        elif isinstance(call.request, m.GroupChange):
            self.finish(call, self.groups.saved(call))
        elif isinstance(call.request, QuotaSet):
            self.finish(call, self.quotas.set(call))
        elif isinstance(call.request, m.LearnConsent):
            self.finish(call, self.lessons.consented(call))
        elif isinstance(call.request, m.Backup):
            self.finish(call, m.BackedUp(path=call.request.path, bytes=event.bytes))

    # -- for tests

    def validate(self) -> None:
        """Raise :class:`KernelError` where an invariant is broken. Run after every test."""
        try:
            self.barrier.validate()
            waiting = {c.key for c in self.calls.values() if c.step is Step.BARRIER}
            assert waiting == self.barrier.waiting(), "waits at the barrier iff in that step"
            outstanding = {
                (channel.number, call): key
                for channel in self.channels.values()
                for call, key in channel.calls.items()
            }
            assert outstanding == {(c.channel, c.call): c.key for c in self.calls.values()}
            assert all(c.step is not Step.NEW for c in self.calls.values()), "nobody is lost"
            for channel in self.channels.values():
                assert len(channel.calls) <= self.limits.calls
            for call in self.calls.values():
                assert call.put is None or call.put.id
                assert call.put is None or isinstance(call.put, Put)
            self.processes.validate()
            self.supervision.validate()
            self.distrust.validate()
            self.groups.validate()
            self.memory.validate()
            self.forgetting.validate()
            self.sweeping.validate()
            self.contexts.validate()
            self.effects.validate()
            self.mail.validate()
            self.timers.validate()
            self.files.validate()
            self.lessons.validate()
            self.reviewing.validate()
            self.drivers.validate()
            self.admission.validate()
            self.tools.validate()
            self.quotas.validate()
        except AssertionError as e:
            raise KernelError(f"broken invariant: {e}") from e
