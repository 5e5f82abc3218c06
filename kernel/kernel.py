"""The shell around the pure kernel: it feeds events in and carries instructions out.

One trio task runs rounds: whoever is ready is served, then one piece of work (a retrieval, a
committed write) is done, then replies leave. Syscalls that need no waiting are answered inline.
The store is searched here too, once between two rounds, so that nobody's search delays another's
syscall by more than itself (:mod:`isovist.kernel.memory`).
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
import trio

from isovist.kernel.admin import Admin
from isovist.kernel.audit import Records
from isovist.kernel.calendar import next_time
from isovist.kernel.channels import Channel, Pipes, Socket
from isovist.kernel.chronicle import Chronicle
from isovist.kernel.config import Config, Settings
from isovist.kernel.confinement import report
from isovist.kernel.contents import prepare
from isovist.kernel.contexts import Contexts, sweep
from isovist.kernel.door import Door
from isovist.kernel.embedding import Embedding
from isovist.kernel.files import Files
from isovist.kernel.forgetting import Forgetting
from isovist.kernel.hub import QUIET, Hub
from isovist.kernel.learning.choice import judging_for, roles_for
from isovist.kernel.learning.loopback import Loopback
from isovist.kernel.learning.pipeline import Learner, Roles
from isovist.kernel.learning.reviewer import Judging, Reviewer
from isovist.kernel.ledger import Ledger
from isovist.kernel.llm import Models, check_named
from isovist.kernel.lock import Lock
from isovist.kernel.log import where
from isovist.kernel.memory import Memory
from isovist.kernel.models import ModelSpec, available
from isovist.kernel.processes import Processes
from isovist.kernel.questions import Questions
from isovist.kernel.rendering import Rendering
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.core import State
from isovist.kernel.state.lessons import LEARNER
from isovist.kernel.tools.mounts import ToolMounts
from isovist.kernel.tools.outputs import Outputs
from isovist.kernel.upkeep import Upkeep
from isovist.kernel.usage import Usage
from isovist.kernel.work import Piece, Work
from isovist.kernel.writer import Writer
from isovist.storage import chronicle
from isovist.storage.backend import Owed
from isovist.storage.indexed import Tuning
from isovist.storage.store import Store
from isovist.syscalls.codec import decode_request, failed
from isovist.syscalls.errors import IsovistError, KernelError
from isovist.syscalls.ledger import Recover
from isovist.syscalls.operations import Outcome, Restored

log = structlog.get_logger()

SLICE = 1_000_000
"""Nanoseconds of rounds after which other trio tasks get their turn."""
SWITCH = 0.0005
"""Seconds after which a thread that computes must hand over the interpreter lock."""
GRACE = 1.0
"""Seconds that agents get to end by themselves when the kernel stops."""
STRANGERS = 64
"""Connections that have yet to say hello; of more, those that have waited longest go."""


class Kernel:
    """One kernel over one store: ``await run()`` until :meth:`stop`.

    ``models`` replaces the installed ones; without ``door`` nobody can attach from outside;
    ``roles`` and ``judging`` replace those who split, write and judge for the learner.
    """

    def __init__(
        self,
        config: Config,
        *,
        models: list[ModelSpec] | None = None,
        door: bool = True,
        roles: Roles | None = None,
        judging: Judging | None = None,
    ) -> None:
        self.config = config
        self._specs = models
        self._roles, self._judging = roles, judging
        self._wants_door = door
        self._door: Door | None = None
        self._stopping = False
        self._inbox: deque[ev.Event] = deque()
        self._draining = False
        self._in_turn = False
        self._work: Work[Piece] = Work()
        self._wake = -1
        self._wake_at = 0
        self._do: dict[type[ins.Instruction], Callable[[Any], None]] = {
            ins.Reply: lambda i: self.hub.reply(i.channel, i.call, i.message),
            ins.Disconnect: self._disconnect,
            ins.StartDriver: lambda i: self.models.start(i),
            ins.StopDriver: lambda i: self.models.stop(i),
            ins.Decode: lambda i: self.models.decode(i),
            ins.Abort: lambda i: self.models.abort(i),
            ins.Pause: lambda i: self.models.pause(i),
            ins.Resume: lambda i: self.models.resume(i),
            ins.StartProcess: lambda i: self.processes.begin(i),
            ins.KillProcess: lambda i: self.processes.kill(i.pid, i.why),
            ins.SignalProcess: lambda i: self.processes.signal(i),
            ins.NiceProcess: lambda i: self.spawner.renice(i.pid, i.nice),
            ins.GaugeProcesses: lambda i: self.processes.gauge(i),
            ins.WakeAt: self._set_wake,
            ins.Audit: lambda i: self.records.add(i.record, self.now()),
            ins.Lookup: self._lookup,
            ins.Report: lambda i: log.error("broken rule", rule=i.message, story=i.story),
            ins.Chain: lambda i: self.chronicle.add(i),
            ins.Postponed: lambda i: log.warning("learning waits", submission=i.id, why=i.why),
        }

    # -- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until :meth:`stop`. Raises a typed error where it cannot start: the store is
        another kernel's, of a newer version, or made with another embedder, or a folder cannot be
        used."""
        # The loop must not wait 5 ms, the default, for the interpreter lock of a busy thread.
        sys.setswitchinterval(SWITCH)
        if self.config.settings.confinement == "required":
            await trio.to_thread.run_sync(report.require)
        with Lock(self.config.lock, self.config.database) as lock:
            self.embedding = await Embedding.load(
                self.config.settings.embedder,
                lambda op: self.writer.commit(op),
                self._unembedded,
            )
            self.store = Store.open(
                self.config.database,
                self.embedding.name,
                self.embedding.dim,
                tuning=_tuning(self.config.settings),
            )
            lock.hold_database()
            self.hub = Hub(self._request, self._ended)
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.hub.watch(self._wake, lambda: os.eventfd_read(self._wake))
            self.questions = Questions(self.embedding.query)
            self.hub.watch(self.questions.wake_fd, self.questions.collect)
            self.writer = Writer(self.store)
            self.hub.watch(self.writer.wake_fd, lambda: self.memory.collect())
            self.records = Records(self.store, self.writer)
            try:
                # What may fail comes before the nursery, which would wrap it in a group.
                restored = self.store.restore()
                if restored:
                    gc.collect()
                    gc.freeze()
                file = chronicle.Chronicle(self.config.chronicle, self.store)
                amiss = file.open()
                sweep(self.config.snapshots, self.store.context_ids())
                self.outputs = Outputs(self.config.outputs)
                self.outputs.clean()
                prepare(self.config.files, self.store.file_blobs())
                specs = self._specs if self._specs is not None else available(self.config)
                check_named(specs, _named(self.config.settings))
                if self._wants_door:
                    self._door = Door(self.config)
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self.chronicle = Chronicle(file, self.writer, nursery)
                    self._boot(restored, specs)
                    if amiss:
                        log.error("the chronicle is not as it was left", **amiss)
                        at, detail = time.time_ns(), tuple(sorted(amiss.items()))
                        self.chronicle.add(
                            ins.Chain("recovered", "kernel", "chronicle", at, (), detail)
                        )
                    task_status.started()
                    try:
                        await self._loop()
                    finally:
                        await self._shut_down()
                        nursery.cancel_scope.cancel()
            finally:
                if self._door is not None:
                    self._door.close()
                self.records.flush()
                self.hub.unwatch(self.questions.wake_fd)
                self.questions.close()
                self.hub.unwatch(self.writer.wake_fd)
                self.writer.close()
                self.store.close()
                os.close(self._wake)
                self._wake = -1
                self.hub.close()

    def _boot(self, restored: Sequence[Restored], specs: Sequence[ModelSpec]) -> None:
        self.models = Models(
            specs,
            self.config.settings.model,
            self._nursery,
            self.dispatch,
            self.now,
            defaults=self.config.settings.defaults,
            fallbacks=self.config.settings.fallbacks,
            snapshots=self.config.settings.states > 0,
        )
        self.processes = Processes(self, self._nursery)
        self.spawner = self.processes.spawner
        self.upkeep = Upkeep(self.store)
        self.memory = Memory(
            self.store,
            self.writer,
            self.embedding,
            self.questions,
            self.upkeep,
            self.hub,
            self._work,
            self._nursery,
            calls=lambda key: self.state.calls.get(key),
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
        )
        self.rendering = Rendering(
            self.models,
            self._nursery,
            outstanding=lambda: self.state.calls,
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
        )
        contexts = Contexts(
            self.store,
            self.writer,
            self._nursery,
            self.models,
            self.config.snapshots,
            self.config.settings.states,
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
        )
        ledger = Ledger(self.store, self.writer, now=self.now, dispatch=self.dispatch)
        files = Files(
            self.store,
            self.writer,
            self._nursery,
            self.config.files,
            self.config.workspaces,
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
            first=self._do_first,
            show=self.memory.show,
        )
        loopback = Loopback(
            lambda pipes: self.attach(pipes, LEARNER, operator=True),
            self._nursery,
            self.config.settings.learn.model,
            lambda name: self.state.drivers.find(name).context,
        )
        learner = Learner(
            self.store,
            self.writer,
            self.questions,
            self._nursery,
            self._roles or roles_for(self.config.settings.learn),
            loopback.model,
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
        )
        reviewer = Reviewer(
            self.store,
            self.writer,
            self._nursery,
            self._judging or judging_for(self.config.settings.learn, loopback.model),
            learner,
            now=self.now,
            dispatch=self.dispatch,
        )

        self.mounts = ToolMounts(
            self.config.settings.tools,
            self.outputs,
            self._nursery,
            root=self.config.state / "tools",
            private=[
                str(folder.resolve())
                for folder in (self.config.state, self.config.runtime, self.config.models)
            ],
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
        )

        async def settled(user: str) -> None:
            self.outputs.forget(user)
            await contexts.settled(user)
            await files.settled(user)
            await learner.settled(user)

        async def scrub(now: int, owed: Owed | None) -> None:
            learner.protected.forget()
            await files.sweep()
            await self.upkeep.scrub(now, owed)

        forgetting = Forgetting(
            self.store,
            self.writer,
            self._nursery,
            caches=self.models,
            snapshots=self.config.snapshots,
            scrub=scrub,
            dispatch=self.dispatch,
            fail=self._fail_work,
            first=self._do_first,
            flush=self.records.flush,
            settled=settled,
        )
        admin = Admin(
            self.store,
            self.writer,
            self._nursery,
            figures=self.statistics,
            now=self.now,
            dispatch=self.dispatch,
            fail=self._fail_work,
            flush=self.records.flush,
            first=self.chronicle.flush,
        )
        self._do |= self.memory.instructions()
        self._do |= self.rendering.instructions()
        self._do |= forgetting.instructions()
        self._do |= contexts.instructions()
        self._do |= ledger.instructions()
        self._do |= files.instructions()
        self._do |= learner.instructions()
        self._do |= reviewer.instructions()
        self._do |= admin.instructions()
        self._do |= self.mounts.instructions()
        wall = time.time_ns()
        self.store.enter([Recover(at=wall)])
        self.state = State(
            secret=self.store.key,
            boot=_word_of_this_life(),
            wall=wall - self.now(),
            models=self.models.configs(),
            restored=restored,
            grants=self.store.grants(),
            permissions=self.store.permissions(),
            approvals=self.store.approvals(),
            distrusted=self.store.distrusted(),
            groups=self.store.groups(),
            scheduling=self.config.settings.scheduling,
            learning=self.config.settings.learn,
            unlearned=self.store.unlearned(),
            consents=self.store.consents(),
            timers=self.store.timers(),
            next_time=next_time,
            tool_servers=[tool.server(name) for name, tool in self.config.settings.tools.items()],
            held=self.store.holdings(),
            limits_chosen=self.store.limits(),
            unreviewed=self.store.statistics()["entries_fresh"],
            files=self.config.settings.files,
        )
        usage = Usage(
            self.spawner,
            self.config.state / "workspaces",
            running=lambda: [e.pid for e in self.state.processes.entries() if e.state == "running"],
            watched=lambda: self.state.quotas.watched(),
            kept=lambda agent: self.store.file_bytes(agent=agent),
            now=self.now,
            dispatch=self.dispatch,
        )
        self._nursery.start_soon(usage.run)
        forgetting.begin()
        self._nursery.start_soon(self.embedding.run)
        self._nursery.start_soon(self.upkeep.run)
        for r in restored:
            for seq, unit, version, chunks in r.lacking:
                self.embedding.submit(r.partition, seq, unit, version, chunks)
        self.dispatch(ev.LearnerUp(now=self.now()))
        self.dispatch(ev.DistrustUp(now=self.now()))
        self._nursery.start_soon(self._start_spawner)
        if self._door is not None:
            self.hub.watch(self._door.fileno(), self._accept)
        log.info(
            "kernel up",
            name=self.config.name,
            state=str(self.config.state),
            models=[s.name for s in specs],
        )

    async def _start_spawner(self) -> None:
        """Have the zygote ready before the first spawn asks for it, and say what holds agents."""
        try:
            isolation = await self.spawner.start()
            enforced = await self.spawner.enforced()
        except IsovistError as e:
            log.error("no agent can be spawned", why=str(e))
        else:
            log.info("spawner up", isolation=isolation, confined=enforced)
            if self.config.settings.confinement == "off":
                log.warning("agents are not confined", why="config.toml says so")
                return
            for matter in report.MATTERS:
                if not enforced.get(matter):
                    log.warning(
                        "not enforced", what=report.MATTERS[matter], hint=report.HINTS[matter]
                    )

    async def _shut_down(self) -> None:
        """Agents first, children before those that spawned them, then their channels; drivers go
        with the nursery, when nobody can ask for them any more. What was acknowledged is durable
        already."""
        with trio.CancelScope(shield=True):
            ended, killed = await self.processes.stop(self.state.processes.generations(), GRACE)
            await self.spawner.aclose(grace=GRACE)
        log.info("agents stopped", ended=ended, killed=killed)
        for channel in self.hub.channels():
            self.hub.end(channel, "the kernel stops")
        # Who waits for a thread of upkeep cannot be cancelled: the thread is.
        self.store.stop_upkeep()
        log.info("kernel down", name=self.config.name)

    def stop(self) -> None:
        """End :meth:`run`, or keep it from beginning; may be called from any task of this
        thread."""
        self._stopping = True
        if self._wake >= 0:
            self._rouse()

    def now(self) -> int:
        """Virtual nanoseconds: trio's clock, so that tests can move it."""
        return int(trio.current_time() * 1e9)

    def statistics(self) -> dict[str, int]:
        """Figures of everything, for the operator alone."""
        return {
            **self.hub.statistics(),
            "calls": len(self.state.calls),
            "work_waiting": len(self._work),
            "prompts_waiting": len(self.rendering),
            "writes_waiting": len(self.writer),
            "embeddings_waiting": len(self.embedding),
            **{f"store_{name}": figure for name, figure in self.store.statistics().items()},
        }

    # -- the loop

    async def _loop(self) -> None:
        while not self._stopping:
            if self._work or self.hub.busy:
                await trio.lowlevel.checkpoint()
            else:
                ends = (self._wake_at or float("inf"), self.hub.deadline(), self.records.due)
                await self.hub.wait(min(ends) / 1e9)
            self._turn()

    def _turn(self) -> None:
        """Rounds until all is quiet or a slice of time is used up."""
        self._in_turn = True
        now = self.now()
        end = now + SLICE
        while True:
            if self._wake_at and now >= self._wake_at:
                self._wake_at = 0
                self.dispatch(ev.Tick(now=now, wall=time.time_ns()))
            ready = self.hub.round(now)
            # One piece a round; what needs no doing any more costs no round.
            while self._work and not self._one_piece():
                pass
            self.hub.flush(now)
            now = self.now()
            if not (ready or self._work or self.hub.busy) or now >= end:
                break
        self.hub.check_patience(now)
        if now >= self.records.due:
            self.records.flush()
        self._in_turn = False

    def _one_piece(self) -> bool:
        try:
            return self._work.pop()()
        except Exception as e:
            log.error("broken rule", rule="a piece of work", why=where(e))
            return True

    def _do_first(self, piece: Piece) -> None:
        """Queue what another task found to be done, behind the writes that are durable already."""
        self._work.first(piece)
        self._rouse()

    def _rouse(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _set_wake(self, i: ins.WakeAt) -> None:
        self._wake_at = i.ns

    def dispatch(self, event: ev.Event) -> None:
        """Give one event to the pure kernel and carry out what it says. An event that an
        instruction causes at once waits until that instruction's own list is done."""
        self._inbox.append(event)
        if self._draining:
            return
        self._draining = True
        try:
            while self._inbox:
                for instruction in self.state.handle(self._inbox.popleft()):
                    try:
                        self._do[type(instruction)](instruction)
                    except Exception as e:
                        self._broken(instruction, e)
        finally:
            self._draining = False
        if not self._in_turn:
            # Another task speaks: let replies out now and the loop see the rest.
            self.hub.flush(self.now())
            self._rouse()

    def _broken(self, instruction: ins.Instruction, e: Exception) -> None:
        """A bug of ours ends the call that met it, never everybody's kernel."""
        log.error("broken rule", rule=type(instruction).__name__, why=where(e))
        key = getattr(instruction, "key", 0)
        if key:
            self._fail_work(key, KernelError(f"the kernel broke: {type(e).__name__}"))

    # -- channels

    def attach(
        self, transport: Pipes | Socket, agent: str, *, pid: int = 0, operator: bool = False
    ) -> Channel:
        """Open a channel for ``agent``, as which everything that comes through it is taken."""
        channel = self.hub.open(transport, self.now(), pid)
        channel.attached = True
        self.dispatch(
            ev.Attached(
                now=self.now(), channel=channel.number, agent=agent, pid=pid, operator=operator
            )
        )
        return channel

    def _accept(self) -> None:
        if self._door is not None:
            for sock in self._door.accept():
                self.hub.open(sock, self.now())
            strangers = [c for c in self.hub.channels() if not c.attached]
            # Who means well says hello at once, so who has waited longest means it least.
            for channel in strangers[:-STRANGERS]:
                self.hub.end(channel, "did not say hello before many others came")

    def _request(self, channel: Channel, call: int, body: bytes) -> None:
        now = self.now()
        try:
            request = decode_request(body)
            if not channel.attached:
                if self._door is None:
                    return
                agent = self._door.admit(request)
                channel.attached = True
                self.dispatch(
                    ev.Attached(now=now, channel=channel.number, agent=agent, operator=True)
                )
        except IsovistError as e:
            if channel.attached:
                self.dispatch(
                    ev.Malformed(
                        now=now,
                        channel=channel.number,
                        call=call,
                        errno=int(e.errno),
                        message=e.message,
                        field=e.field,
                    )
                )
            else:
                self.hub.reply(channel.number, call, failed(e))
                channel.last_word = f"refused at the door: {e.message}"
            return
        self.dispatch(ev.Arrived(now=now, channel=channel.number, call=call, request=request))

    def _disconnect(self, i: ins.Disconnect) -> None:
        channel = self.hub.channel(i.channel)
        if channel is not None:
            # Its last replies still leave, then the reason stands in its process's exit.
            channel.last_word = i.why

    def _ended(self, channel: Channel, why: str) -> None:
        log.debug("channel ended", channel=channel.number, pid=channel.pid, why=why)
        self.dispatch(ev.Detached(now=self.now(), channel=channel.number, why=why))
        # Closing its channel is an agent's right; whom the kernel closes, it ends.
        if channel.pid and why not in QUIET:
            self.processes.kill(channel.pid, why)

    # -- work that others do for a call

    def _unembedded(self, outcome: Outcome) -> None:
        self.dispatch(ev.WriteFailed(now=self.now(), outcome=outcome))

    def _fail_work(self, key: int, e: Exception) -> None:
        if not isinstance(e, IsovistError):
            # A bug ends the call that met it. Its text may quote memory, so it goes to nobody.
            log.error("broken rule", rule="memory raises typed errors only", why=where(e))
            e = KernelError(f"retrieval broke: {type(e).__name__}")
        self.dispatch(
            ev.WorkFailed(
                now=self.now(), key=key, errno=int(e.errno), message=e.message, field=e.field
            )
        )

    def _lookup(self, i: ins.Lookup) -> None:
        try:
            record = self.records.find(i.call)
        except IsovistError as e:
            self._fail_work(i.key, e)
        else:
            self.dispatch(ev.LookedUp(now=self.now(), key=i.key, record=record))


def _tuning(settings: Settings) -> Tuning:
    tuning = Tuning(room=settings.room)
    return tuning if settings.graphs else msgspec.structs.replace(tuning, crossover=0)


def _named(settings: Settings) -> list[str]:
    """All models that are asked because the settings name them."""
    fallbacks = settings.fallbacks
    others = [name for named in fallbacks.values() for name in named]
    return [*settings.defaults.values(), *fallbacks, *others, settings.learn.model]


def _word_of_this_life() -> bytes:
    """What tells the ids of this life of the kernel from those of any other."""
    return os.urandom(8)
