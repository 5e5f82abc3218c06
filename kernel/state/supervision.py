"""Supervision of running processes: pause, continue, priority, heartbeats, ends, restarts.

Time comes with events; what is due is a timer of the core, named by a word and a pid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import instructions as ins
from isovist.kernel.state.process import Entry
from isovist.kernel.state.users import Principal
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import CallerError, Errno

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

SECOND = 1_000_000_000
KILLED = -9
"""The status of a process that was ended before it began: as if SIGKILL had met it."""


class Supervision:
    """Invariant: a running process whose manifest asks for heartbeats is ``watched`` (a timer looks
    after it) unless it is paused."""

    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            abi.Pause: self._pause,
            abi.Continue: self._continue,
            abi.Priority: self._priority,
            abi.Heartbeat: self._heartbeat,
        }

    def woken(self, what: str) -> None:
        """A timer is due."""
        word, _, pid = what.partition(" ")
        if word == "lingers":
            self._state.processes.lingers(int(pid))
            return
        entry = self._state.processes.entry(int(pid))
        if entry is None or entry.state == "exited":
            return
        if word == "begin" and entry.state == "restarting":
            entry.state = "starting"
            self._state.processes.start(entry)
        elif word == "grace":
            self._state.emit(ins.KillProcess(entry.pid, entry.ended_by))
        elif word == "beat":
            entry.watched = False
            self._look(entry)

    # -- pause, continue, priority

    def _running(self, channel: Channel, pid: int) -> Entry:
        entry = self._state.processes.reachable(channel, pid)
        if entry.state != "running":
            raise CallerError(
                f"process {pid} is {entry.state}, not running", errno=Errno.ESRCH, field="pid"
            )
        return entry

    def _pause(self, channel: Channel, frame: int, request: abi.Pause) -> None:
        entry = self._running(channel, request.pid)
        if not entry.paused:
            entry.paused = True
            self._state.emit(ins.SignalProcess(entry.pid, "stop"))
        self._shown(channel, frame, entry)

    def _continue(self, channel: Channel, frame: int, request: abi.Continue) -> None:
        entry = self._running(channel, request.pid)
        if entry.paused:
            self._go_on(entry)
            self._state.emit(ins.SignalProcess(entry.pid, "continue"))
        self._shown(channel, frame, entry)

    def _go_on(self, entry: Entry) -> None:
        entry.paused = False
        self.running(entry)

    def _priority(self, channel: Channel, frame: int, request: abi.Priority) -> None:
        entry = self._running(channel, request.pid)
        level, nice = request.level, request.nice
        mine = channel.who.operator
        if level is not None and not 0 <= level <= 9:
            raise CallerError("level must be 0 to 9", field="level")
        if nice is not None and not 0 <= nice <= 19:
            raise CallerError("nice must be 0 to 19", field="nice")
        if level is not None and level > entry.who.priority and not mine:
            raise CallerError("only the operator raises it", errno=Errno.EPERM, field="level")
        if nice is not None and nice < entry.nice and not mine:
            raise CallerError("only the operator lowers it", errno=Errno.EPERM, field="nice")
        if level is not None:
            entry.who.priority = level
        if nice is not None:
            entry.nice = nice
            self._state.emit(ins.NiceProcess(entry.pid, nice))
        self._shown(channel, frame, entry)

    def _shown(self, channel: Channel, frame: int, entry: Entry) -> None:
        self._state.reply(channel, frame, abi.Managed(process=self._state.processes.record(entry)))

    # -- heartbeats

    def _heartbeat(self, channel: Channel, frame: int, request: abi.Heartbeat) -> None:
        entry = self._state.processes.entry(channel.pid)
        if entry is not None:
            entry.beat = self._state.now
        self._state.reply(channel, frame, m.Done())

    def running(self, entry: Entry) -> None:
        """It runs, or runs again: from now on it must say that it is well."""
        entry.beat = self._state.now
        self._look(entry)

    def _look(self, entry: Entry) -> None:
        period = entry.care.heartbeat
        if not period or entry.watched or entry.paused or entry.state != "running":
            return
        if self._state.now >= entry.beat + period:
            entry.ended_by = f"no heartbeat for {period / SECOND:g} s"
            self._state.chronicle.note("hung", "kernel", entry.agent, pid=entry.pid)
            self._state.emit(ins.KillProcess(entry.pid, entry.ended_by))
            return
        entry.watched = True
        self._state.timer(entry.beat + period, 0, f"beat {entry.pid}")

    # -- ends

    def stop(self, entry: Entry, by: str, grace: int) -> None:
        """End a process because ``by`` asks for it: after ``grace`` nanoseconds where it does not
        end by itself."""
        entry.by_hand = True
        if entry.state == "restarting":
            self._state.processes.end(entry, KILLED, f"killed by {by}")
        elif grace and entry.state == "running":
            entry.ended_by = f"terminated by {by}"
            if entry.paused:
                self._go_on(entry)
            self._state.emit(ins.SignalProcess(entry.pid, "terminate"))
            self._state.timer(self._state.now + grace, 0, f"grace {entry.pid}")
        else:
            entry.ended_by = f"killed by {by}"
            self._state.emit(ins.KillProcess(entry.pid, entry.ended_by))

    def ended(self, entry: Entry) -> None:
        """It has exited: start another in its place where its manifest says so."""
        restart, care = entry.care.restart, entry.care
        failed = entry.status != 0
        if entry.by_hand or restart.policy == "never" or (
            restart.policy == "on-failure" and not failed
        ):  # fmt: skip
            return
        now = self._state.now
        since = now - round(restart.within * SECOND)
        care.begun = [at for at in care.begun if at > since]
        if why := self._no_more(entry):
            entry.reason = "; ".join(filter(None, (entry.reason, f"given up: {why}")))
            self._state.chronicle.note(
                "given up", "kernel", entry.agent, pid=entry.pid, restarts=care.restarts
            )
            return
        pause = min(restart.longest, restart.pause * 2 ** min(len(care.begun), 64))
        at = now + round(pause * SECOND)
        care.begun.append(at)
        care.restarts += 1
        old = entry.who
        who = Principal(
            old.agent,
            bound=old.bound,
            sessions=[old.bound] if old.bound else [],
            rights=old.rights,
            above=old.above,
            scope=old.scope,
            lineage=old.lineage,
            children=old.children,
            priority=old.priority,
        )
        following = Entry(
            0, who, entry.user, entry.parent, entry.program, entry.args, entry.cwd, entry.fresh,
            care, state="restarting", nice=0,
        )  # fmt: skip
        entry.next = self._state.processes.enter(following).pid
        self._state.timer(at, 0, f"begin {entry.next}")

    def _no_more(self, entry: Entry) -> str:
        """Why it is not started anew; empty: it is."""
        restart, care = entry.care.restart, entry.care
        if len(care.begun) >= restart.most:
            return f"started anew {len(care.begun)} times within {restart.within:g} s"
        if care.digest and self._state.agents.digest(entry.agent) != care.digest:
            return "its manifest is not approved any more"
        if entry.user and not entry.who.bound:
            return "it may not serve its user any more"
        return ""

    def validate(self) -> None:
        for entry in self._state.processes.entries():
            if entry.care.heartbeat and entry.state == "running":
                assert entry.watched or entry.paused or entry.ended_by, entry
