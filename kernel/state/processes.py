"""The table of processes: spawn, wait, kill, exit, list.

What a spawned process may be and do is settled in :mod:`isovist.kernel.state.spawning`, what is
done for a running one in :mod:`isovist.kernel.state.supervision`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.process import STDERR, Care, Entry
from isovist.kernel.state.spawning import plan
from isovist.kernel.state.users import Principal
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, error
from isovist.syscalls.records import Process

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MS = 1_000_000
LINGERED = "did not end after its exit"
EXIT_GRACE = 5_000_000_000
"""Nanoseconds that a process may live on after it has said exit."""
MAX_PROCESSES, MAX_OF_AGENT = 1024, 64
"""Living processes in all, and of those that descend from instances of one agent; the operator may
use the last 64 places when agents have used up the others."""


def _above(entry: Entry) -> Iterator[Principal]:
    """Those that a process descends from."""
    return islice(entry.who.line(), 1, None)


class Processes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._table: dict[int, Entry] = {}
        self._exited: list[int] = []
        self._killing: dict[int, dict[int, bool]] = {}
        """By kill: the processes that it aims at, and whether each is gone."""
        self._last_pid = 0

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.Spawn: self._spawn,
            m.WaitPid: self._wait,
            m.Kill: self._kill,
            m.Exit: self._exit,
            m.ListProcesses: self._list,
        }

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.Spawned: self._spawned,
            ev.SpawnFailed: self._spawn_failed,
            ev.Exited: self._exited_event,
            ev.Stderr: self._stderr,
            ev.ProcessesGauged: self._gauged,
        }

    # -- life

    def _spawn(self, channel: Channel, frame: int, request: m.Spawn) -> None:
        made = plan(self._state, channel, request)
        self._check_room(channel.who)
        self._state.quotas.check_spawn(made.who, made.user)
        key = (made.who.agent, made.user, request.lineage)
        if request.lineage and any((e.agent, e.user, e.who.lineage) == key for e in self._living()):
            raise CallerError(
                "a living process does the work of that lineage",
                errno=Errno.EEXIST,
                field="lineage",
            )
        call = self._state.open(channel, frame, request, made.resolved)
        entry = self.enter(
            Entry(
                0,
                made.who,
                made.user,
                channel.pid,
                made.program,
                request.args,
                made.cwd,
                request.fresh,
                made.care,
                spawner=call.key,
            )
        )
        call.to(Step.SPAWN, self._state.now, made.program)
        self.start(entry, channel.number if request.stdio else 0)

    def enter(self, entry: Entry) -> Entry:
        """Give a new process its number."""
        self._last_pid += 1
        entry.pid = entry.who.pid = self._last_pid
        entry.who.lineage = entry.who.lineage or self._state.opaque(
            "p", self._state.boot, entry.pid
        )
        self._table[entry.pid] = entry
        return entry

    def start(self, entry: Entry, stdio_of: int = 0) -> None:
        above = entry.who.above
        self._state.emit(
            ins.StartProcess(
                entry.pid,
                entry.agent,
                entry.program,
                entry.args,
                entry.fresh,
                entry.cwd,
                stdio_of,
                entry.user,
                entry.who.lineage,
                entry.care.mounts,
                self._state.quotas.of_process(entry.who, entry.user),
                # Of another agent runs what a person approved.
                above.pid if above is not None and above.agent == entry.agent else 0,
            )
        )

    def _living(self) -> list[Entry]:
        return [entry for entry in self._table.values() if entry.state != "exited"]

    def _check_room(self, who: Principal) -> None:
        """Raise ``EAGAIN`` where one more process would be too many."""
        living = self._living()
        limit, have = MAX_PROCESSES, len(living)
        if not who.operator:
            above = [{(one.pid, one.agent) for one in _above(entry)} for entry in living]
            own = sum(any(agent == who.agent for _, agent in line) for line in above)
            if own >= MAX_OF_AGENT:
                limit, have = MAX_OF_AGENT, own
            else:
                limit = MAX_PROCESSES - MAX_OF_AGENT
            for one in who.line():
                if one.children is not None:
                    has = sum((one.pid, one.agent) in line for line in above)
                    if has >= one.children:
                        raise CallerError(
                            f"{has} processes descend from process {one.pid}, the limit of its "
                            "manifest",
                            errno=Errno.EAGAIN,
                        )
        if have >= limit:
            raise CallerError(f"{have} processes run, the limit", errno=Errno.EAGAIN)

    # -- what others ask

    def entries(self) -> list[Entry]:
        """All that are remembered, by number."""
        return list(self._table.values())

    def entry(self, pid: int) -> Entry | None:
        return self._table.get(pid)

    def care(self, pid: int) -> Care:
        """What is seen to for process ``pid``; of one that there is not, nothing."""
        entry = self._table.get(pid)
        return entry.care if entry else Care()

    def principal(self, event: ev.Attached) -> Principal:
        """Who a channel is that has just opened."""
        entry = self._table.get(event.pid)
        if entry is None or event.operator or entry.agent != event.agent:
            return Principal(event.agent, operator=event.operator, pid=event.pid)
        return entry.who

    def generations(self) -> list[list[int]]:
        """The living processes, those whom others spawned before these: in this order they end
        with the kernel."""
        found: dict[int, list[int]] = {}
        for entry in self._living():
            found.setdefault(sum(1 for _ in entry.who.line()), []).append(entry.pid)
        return [found[depth] for depth in sorted(found, reverse=True)]

    def attached(self, pid: int, channel: int) -> None:
        if pid in self._table:
            self._table[pid].channel = channel

    def _spawned(self, event: ev.Spawned) -> None:
        entry = self._table.get(event.pid)
        if entry is None or entry.state != "starting":
            return
        entry.state = "running"
        self._state.supervision.running(entry)
        call = self._state.calls.get(entry.spawner)
        if call is not None:
            who = call.resolved
            self._state.finish(
                call,
                m.Spawned(
                    pid=entry.pid, user=entry.user, rule=who.rule if who and entry.user else ""
                ),
            )
        elif entry.spawner:
            # Nobody has its number, so nobody could ever end it.
            entry.by_hand = True
            self.kill(entry, "its spawner gave up")

    def _spawn_failed(self, event: ev.SpawnFailed) -> None:
        entry = self._table.get(event.pid)
        if entry is None or entry.state != "starting":
            return
        call = self._state.calls.get(entry.spawner)
        # Whom its spawner is told of is not started anew: it may mend what is wrong.
        entry.by_hand = entry.by_hand or call is not None
        self.end(entry, 127, event.message)
        if call is not None:
            self._state.fail(call, error(event.errno, event.message, event.field))

    def _exited_event(self, event: ev.Exited) -> None:
        entry = self._table.get(event.pid)
        if entry is None or entry.state == "exited":
            return
        if event.stderr and not entry.stderr:
            entry.stderr = "\n".join(event.stderr)[-STDERR:]
        spawner = self._state.calls.get(entry.spawner)
        entry.by_hand = entry.by_hand or spawner is not None
        # What it said counts where it then ended in peace, or was ended for lingering.
        lingered = entry.ended_by == LINGERED
        said = entry.said if event.status == 0 or lingered else None
        status = event.status if said is None else said
        self.end(entry, status, entry.ended_by or event.reason)
        if spawner is not None:
            self._state.fail(spawner, error(Errno.ENOEXEC, "the process ended while starting"))

    def end(self, entry: Entry, status: int, reason: str) -> None:
        entry.state, entry.status, entry.reason = "exited", status, reason
        entry.paused = False
        self._state.quotas.exited(entry)
        self._state.supervision.ended(entry)
        waiters, entry.waiters = sorted(entry.waiters), set()
        entry.followers.clear()
        for key in waiters:
            call = self._state.calls[key]
            if isinstance(call.request, m.Kill):
                self._killed(call, entry)
            else:
                self._state.finish(call, m.Exited(process=self.record(entry)))
        self._exited.append(entry.pid)
        while len(self._exited) > self._state.limits.exited:
            # Whose end a kill is still to tell stays, or that would wait for ever.
            told = {c.request.pid for c in map(self._state.calls.get, self._killing)
                    if c is not None and isinstance(c.request, m.Kill)}  # fmt: skip
            oldest = next((pid for pid in self._exited if pid not in told), 0)
            if not oldest:
                break
            self._exited.remove(oldest)
            forgotten = self._table.pop(oldest)
            # Its children stay within reach of whoever could reach it.
            for other in self._table.values():
                if other.parent == forgotten.pid:
                    other.parent = forgotten.parent

    def _stderr(self, event: ev.Stderr) -> None:
        entry = self._table.get(event.pid)
        if entry is None:
            return
        entry.stderr = (entry.stderr + event.text)[-STDERR:]
        for key in sorted(entry.followers):
            self._state.part(self._state.calls[key], event.text)

    # -- wait, kill, exit, list

    def reachable(self, channel: Channel, pid: int) -> Entry:
        """Process ``pid`` if the caller may know of it: the operator all, others descendants."""
        entry = self._table.get(pid)
        if entry is None or not (channel.who.operator or self._descends(entry, channel.pid)):
            raise CallerError(f"no process {pid} of yours", errno=Errno.ESRCH, field="pid")
        return entry

    def _descends(self, entry: Entry, ancestor: int) -> bool:
        seen: Entry | None = entry
        while seen is not None and ancestor:
            if seen.parent == ancestor:
                return True
            seen = self._table.get(seen.parent)
        return False

    def _wait(self, channel: Channel, frame: int, request: m.WaitPid) -> None:
        entry = self.reachable(channel, request.pid)
        call = self._state.open(channel, frame, request)
        call.to(Step.EXIT, self._state.now, f"process {entry.pid}")
        if request.follow and entry.stderr:
            self._state.part(call, entry.stderr)
        self._await_exit(call, entry, request.follow)

    def _kill(self, channel: Channel, frame: int, request: m.Kill) -> None:
        if not 0 <= request.grace_ms <= 60_000:
            raise CallerError("grace_ms must be 0 to 60000", field="grace_ms")
        entry = self.reachable(channel, request.pid)
        call = self._state.open(channel, frame, request)
        call.to(Step.EXIT, self._state.now, f"process {entry.pid}")
        aims = [entry, *(self.descendants(entry) if request.tree else ())]
        aims = [one for one in aims if one.state != "exited"]
        if not aims:
            self._state.finish(call, m.Exited(process=self.record(entry)))
            return
        self._killing[call.key] = {one.pid: False for one in aims}
        for one in aims:
            one.waiters.add(call.key)
        by = channel.who.agent
        # The youngest first: a parent must not take the end of its child for a failure.
        for one in reversed(aims):
            self._state.chronicle.note("kill", by, one.agent, pid=one.pid, grace=request.grace_ms)
            self._state.supervision.stop(one, by, request.grace_ms * MS)

    def _killed(self, call: Call, entry: Entry) -> None:
        """One of those that a kill aims at is gone; it is answered with the last."""
        aims = self._killing[call.key]
        aims[entry.pid] = True
        first = self._table.get(call.request.pid) if isinstance(call.request, m.Kill) else None
        if all(aims.values()) and first is not None:
            left = tuple(e.pid for e in self.descendants(first) if e.state != "exited")
            shown = m.Exited(process=self.record(first), ended=tuple(sorted(aims)), left=left)
            self._state.finish(call, shown)

    def descendants(self, entry: Entry) -> list[Entry]:
        """Those that it spawned, and that these spawned, by number."""
        return [e for e in self._table.values() if self._descends(e, entry.pid)]

    def _await_exit(self, call: Call, entry: Entry, follow: bool) -> None:
        if entry.state == "exited":
            self._state.finish(call, m.Exited(process=self.record(entry)))
            return
        entry.waiters.add(call.key)
        if follow:
            entry.followers.add(call.key)

    def _exit(self, channel: Channel, frame: int, request: m.Exit) -> None:
        if not 0 <= request.status <= 255:
            raise CallerError("status must be 0 to 255", field="status")
        self._state.reply(channel, frame, m.Done())
        channel.closing = True
        entry = self._table.get(channel.pid)
        if entry is not None:
            entry.said = request.status
            self._state.timer(self._state.now + EXIT_GRACE, 0, f"lingers {channel.pid}")

    def lingers(self, pid: int) -> None:
        """A process that said exit has had its time."""
        entry = self._table.get(pid)
        if entry is not None and entry.state != "exited":
            self.kill(entry, LINGERED)

    def kill(self, entry: Entry, why: str) -> None:
        """The kernel itself ends a process."""
        entry.ended_by = why
        self._state.chronicle.note("kill", "kernel", entry.agent, pid=entry.pid, why=why)
        self._state.emit(ins.KillProcess(entry.pid, why))

    # -- list

    def record(self, entry: Entry) -> Process:
        children = sum(e.parent == entry.pid for e in self._living())
        return entry.record(children)

    def _list(self, channel: Channel, frame: int, request: m.ListProcesses) -> None:
        if not request.usage:
            self._state.reply(channel, frame, self._listed(channel, request, {}))
            return
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.GaugeProcesses(call.key))

    def _gauged(self, event: ev.ProcessesGauged) -> None:
        call = self._state.calls.get(event.key)
        if call is not None and isinstance(call.request, m.ListProcesses):
            channel = self._state.channels[call.channel]
            self._state.finish(call, self._listed(channel, call.request, event.usage))

    def _listed(
        self, channel: Channel, request: m.ListProcesses, usage: dict[int, tuple[float, int]]
    ) -> m.Processes:
        children = Counter(entry.parent for entry in self._living())
        shown = [
            entry.record(children[entry.pid], usage.get(entry.pid, (None, None)))
            for entry in self._table.values()
            if (request.all or entry.state != "exited")
            and (
                channel.who.operator
                or entry.pid == channel.pid
                or self._descends(entry, channel.pid)
            )
        ]
        return m.Processes(processes=tuple(shown))

    def followers(self, pid: int) -> list[int]:
        """The channels to which the standard error of process ``pid`` is streamed."""
        entry = self._table.get(pid)
        return [self._state.calls[key].channel for key in entry.followers] if entry else []

    def served(self, pid: int) -> None:
        """Count a request of process ``pid``."""
        entry = self._table.get(pid)
        if entry is not None:
            entry.calls += 1

    def closed(self, call: Call) -> None:
        """A waiting call ends before the process does."""
        aims = self._killing.pop(call.key, ())
        pids = {call.request.pid} if isinstance(call.request, m.WaitPid) else set(aims)
        for pid in pids:
            entry = self._table.get(pid)
            if entry is not None:
                entry.waiters.discard(call.key)
                entry.followers.discard(call.key)

    def validate(self) -> None:
        for entry in self._table.values():
            assert (entry.status is not None) == (entry.state == "exited"), entry
            assert not (entry.waiters and entry.state == "exited"), entry
            assert entry.followers <= entry.waiters, entry
            assert len(entry.stderr) <= STDERR
            assert not entry.paused or entry.state == "running", entry
            for key in entry.waiters:
                assert self._state.calls[key].step is Step.EXIT
        assert self._killing.keys() <= self._state.calls.keys(), "a kill that nobody waits for"
        assert len(self._exited) <= self._state.limits.exited + len(self._killing)
