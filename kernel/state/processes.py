"""Processes and principals: whoami, sessions, grants, spawn, wait, kill, exit, list.

Rights only narrow: a process that an agent spawns is an instance of that same agent and serves
the user that the agent serves; only the operator starts programs as other agents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.users import EVERY, OPERATOR, Principal
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, error
from isovist.syscalls.names import check_name
from isovist.syscalls.records import Process

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

STDERR = 16 * 1024
"""Characters of standard error that are kept of each process."""
LAST_WORDS, LINES = 1024, 20
"""Characters and lines of it that a record shows."""
LINGERED = "did not end after its exit"
EXIT_GRACE = 5_000_000_000
"""Nanoseconds that a process may live on after it has said exit."""
MAX_PROCESSES, MAX_OF_AGENT = 1024, 64
"""Living processes in all, and of what one agent has spawned; the operator may use the last 64
places when agents have used up the others."""


@dataclass(slots=True)
class Entry:
    """One process, from its request to its exit and for some time after.

    Invariant: ``status`` is set iff ``state`` is ``exited``.
    """

    pid: int
    agent: str
    user: str
    parent: int
    program: str
    state: str = "starting"
    channel: int = 0
    status: int | None = None
    revoked: bool = False
    """True once ``user`` was taken from its agent before its channel was there."""
    said: int | None = None
    """The status that it gave with ``exit``."""
    reason: str = ""
    ended_by: str = ""
    stderr: str = ""
    calls: int = 0
    spawner: int = 0
    waiters: set[int] = field(default_factory=set)
    followers: set[int] = field(default_factory=set)

    def record(self) -> Process:
        return Process(
            pid=self.pid,
            agent=self.agent,
            user=self.user,
            state=self.state,  # type: ignore[arg-type] # one of the record's three words
            parent=self.parent,
            program=self.program,
            status=self.status,
            reason=self.reason,
            stderr=self.last_words() if self.state == "exited" else (),
            calls=self.calls,
        )

    def last_words(self) -> tuple[str, ...]:
        """The end of its standard error, short enough that a thousand of them fit one reply."""
        lines = self.stderr[-LAST_WORDS:].splitlines()[-LINES:]
        return tuple(printable(line) for line in lines)


def printable(line: str) -> str:
    """``line`` fit for a terminal: control characters, which could move its cursor or change its
    title, become U+FFFD."""
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line)


def agent_name(program: str) -> str:
    """The default agent name of a program: a script's stem, a class's name, or the name itself,
    in Unicode form NFC (file systems hold others)."""
    if program.endswith(".py") or "/" in program:
        name = program.rpartition("/")[2].removesuffix(".py")
    else:
        name = program.rpartition(":")[2]
    return normalize("NFC", name)


class Processes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._table: dict[int, Entry] = {}
        self._exited: list[int] = []
        self._last_pid = 0

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.Whoami: self._whoami,
            m.SessionOpen: self._session_open,
            m.Grant: self._grant,
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
        }

    # -- who

    def _whoami(self, channel: Channel, frame: int, request: m.Whoami) -> None:
        who, users = channel.who, self._state.users
        resolved = users.resolve(who, request.user)
        grants = users.grants(who.agent)
        self._state.reply(
            channel,
            frame,
            m.Identity(
                agent=who.agent,
                user=resolved.user,
                rule=resolved.rule,
                pid=channel.pid,
                operator=who.operator,
                users=tuple(sorted({*grants.users, *([who.bound] if who.bound else [])})),
                scopes=tuple(sorted({"pair", "user", *grants.scopes})),
            ),
        )

    def _session_open(self, channel: Channel, frame: int, request: m.SessionOpen) -> None:
        if request.user is None:
            raise CallerError("user is missing", field="user")
        resolved = self._state.users.resolve(channel.who, request.user)
        sessions = channel.who.sessions
        if request.replace:
            sessions.clear()
        if resolved.user not in sessions:
            if len(sessions) >= 1024:
                raise CallerError("1024 sessions are open, the limit", errno=Errno.EAGAIN)
            sessions.append(resolved.user)
        self._state.reply(channel, frame, m.SessionOpened(user=resolved.user, rule=resolved.rule))

    def _grant(self, channel: Channel, frame: int, request: m.Grant) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator grants", errno=Errno.EPERM)
        self._check_grant(request)
        call = self._state.open(channel, frame, request)
        users, scopes = self.grant(request)
        if request.revoke:
            self._unbind(request.agent, set(request.users))
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.SaveGrant(call.key, request.agent, users, scopes))

    def _check_grant(self, request: m.Grant) -> None:
        check_name(request.agent, "agent")
        for user in request.users:
            if user != EVERY:
                check_name(user, "users")
        self._state.sharing.check_grant(request.scopes, request.revoke)

    def grant(self, request: m.Grant) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Grant or revoke, where that may be; gives the users and scopes that the agent then
        holds."""
        self._check_grant(request)
        held = self._state.users.grant(
            request.agent, set(request.users), set(request.scopes), request.revoke
        )
        return tuple(sorted(held.users)), tuple(sorted(held.scopes))

    def _unbind(self, agent: str, users: set[str]) -> None:
        """A revoked user is lost to running instances too, where they were spawned for it."""
        for channel in self._state.channels.values():
            who = channel.who
            if who.agent == agent and (who.bound in users or EVERY in users):
                who.bound = ""
        for entry in self._table.values():
            starting = entry.agent == agent and entry.state == "starting"
            if starting and (entry.user in users or EVERY in users):
                entry.revoked = True

    def unbind(self, user: str) -> None:
        """A forgotten user is lost to every running instance. Sessions and sightings stay: where
        they named the user alone, a request must now name whom it is for, and what was meant for
        one passes to nobody else."""
        for agent in {c.who.agent for c in self._state.channels.values()} | {
            entry.agent for entry in self._table.values()
        }:
            self._unbind(agent, {user})

    # -- life

    def _spawn(self, channel: Channel, frame: int, request: m.Spawn) -> None:
        who, resolved = channel.who, None
        name = request.agent or agent_name(request.program)
        if not request.program or "\0" in request.program or len(request.program) > 4096:
            raise CallerError("program must have 1 to 4096 characters", field="program")
        if len(request.args) > 256 or any("\0" in a or len(a) > 65536 for a in request.args):
            raise CallerError("args takes at most 256 strings without NUL", field="args")
        if who.operator:
            check_name(name, "agent")
            if name == OPERATOR:
                raise CallerError(
                    f"{OPERATOR!r} is nobody's name but the operator's; give another",
                    field="agent",
                )
            user = request.user or ""
            if request.user is not None:
                check_name(user, "user")
        else:
            if request.agent not in ("", who.agent):
                raise CallerError(
                    "an agent spawns instances of itself only", errno=Errno.EPERM, field="agent"
                )
            name = who.agent
            resolved = self._state.users.resolve(who, request.user)
            user = resolved.user
        if request.stdio and channel.pid:
            raise CallerError(
                "stdio can be handed over at the socket door only",
                errno=Errno.EPERM,
                field="stdio",
            )
        self._check_room(who)
        call = self._state.open(channel, frame, request, resolved)
        self._last_pid += 1
        entry = Entry(self._last_pid, name, user, channel.pid, request.program)
        entry.spawner = call.key
        self._table[entry.pid] = entry
        call.to(Step.SPAWN, self._state.now, request.program)
        self._state.emit(
            ins.StartProcess(
                entry.pid,
                name,
                request.program,
                request.args,
                request.fresh,
                request.cwd,
                channel.number if request.stdio else 0,
            )
        )

    def _check_room(self, who: Principal) -> None:
        """Raise ``EAGAIN`` where one more process would be too many."""
        living = [entry for entry in self._table.values() if entry.state != "exited"]
        limit, have = MAX_PROCESSES, len(living)
        if not who.operator:
            own = sum(entry.agent == who.agent and entry.parent != 0 for entry in living)
            if own >= MAX_OF_AGENT:
                limit, have = MAX_OF_AGENT, own
            else:
                limit = MAX_PROCESSES - MAX_OF_AGENT
        if have >= limit:
            raise CallerError(f"{have} processes run, the limit", errno=Errno.EAGAIN)

    def bound_user(self, pid: int) -> tuple[str, bool]:
        """The user that process ``pid`` was spawned for, and whether that was revoked since."""
        entry = self._table.get(pid)
        return (entry.user, entry.revoked) if entry else ("", False)

    def attached(self, pid: int, channel: int) -> None:
        if pid in self._table:
            self._table[pid].channel = channel

    def _spawned(self, event: ev.Spawned) -> None:
        entry = self._table.get(event.pid)
        if entry is None or entry.state != "starting":
            return
        entry.state = "running"
        call = self._state.calls.get(entry.spawner)
        if call is not None:
            who = call.resolved
            self._state.finish(
                call,
                m.Spawned(
                    pid=entry.pid, user=entry.user, rule=who.rule if who and entry.user else ""
                ),
            )
        else:
            # Nobody has its number, so nobody could ever end it.
            entry.ended_by = "its spawner gave up"
            self._state.emit(ins.KillProcess(entry.pid, entry.ended_by))

    def _spawn_failed(self, event: ev.SpawnFailed) -> None:
        entry = self._table.get(event.pid)
        if entry is None or entry.state != "starting":
            return
        call = self._state.calls.get(entry.spawner)
        self._end(entry, 127, event.message)
        if call is not None:
            self._state.fail(call, error(event.errno, event.message, event.field))

    def _exited_event(self, event: ev.Exited) -> None:
        entry = self._table.get(event.pid)
        if entry is None or entry.state == "exited":
            return
        if event.stderr and not entry.stderr:
            entry.stderr = "\n".join(event.stderr)[-STDERR:]
        spawner = self._state.calls.get(entry.spawner)
        # What it said counts where it then ended in peace, or was ended for lingering.
        lingered = entry.ended_by == LINGERED
        said = entry.said if event.status == 0 or lingered else None
        status = event.status if said is None else said
        self._end(entry, status, entry.ended_by or event.reason)
        if spawner is not None:
            self._state.fail(spawner, error(Errno.ENOEXEC, "the process ended while starting"))

    def _end(self, entry: Entry, status: int, reason: str) -> None:
        entry.state, entry.status, entry.reason = "exited", status, reason
        waiters, entry.waiters = sorted(entry.waiters), set()
        entry.followers.clear()
        for key in waiters:
            self._state.finish(self._state.calls[key], m.Exited(process=entry.record()))
        self._exited.append(entry.pid)
        while len(self._exited) > self._state.limits.exited:
            forgotten = self._table.pop(self._exited.pop(0))
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

    def _reachable(self, channel: Channel, pid: int) -> Entry:
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
        entry = self._reachable(channel, request.pid)
        call = self._state.open(channel, frame, request)
        call.to(Step.EXIT, self._state.now, f"process {entry.pid}")
        if request.follow and entry.stderr:
            self._state.part(call, entry.stderr)
        self._await_exit(call, entry, request.follow)

    def _kill(self, channel: Channel, frame: int, request: m.Kill) -> None:
        entry = self._reachable(channel, request.pid)
        call = self._state.open(channel, frame, request)
        call.to(Step.EXIT, self._state.now, f"process {entry.pid}")
        if entry.state != "exited":
            entry.ended_by = f"killed by {channel.who.agent}"
            self._state.emit(ins.KillProcess(entry.pid, entry.ended_by))
        self._await_exit(call, entry, False)

    def _await_exit(self, call: Call, entry: Entry, follow: bool) -> None:
        if entry.state == "exited":
            self._state.finish(call, m.Exited(process=entry.record()))
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
            self._state.timer(self._state.now + EXIT_GRACE, 0, str(channel.pid))

    def woken(self, pid: str) -> None:
        """A process that said exit has had its time."""
        entry = self._table.get(int(pid))
        if entry is not None and entry.state != "exited":
            entry.ended_by = LINGERED
            self._state.emit(ins.KillProcess(entry.pid, entry.ended_by))

    def _list(self, channel: Channel, frame: int, request: m.ListProcesses) -> None:
        shown = [
            entry.record()
            for entry in self._table.values()
            if (request.all or entry.state != "exited")
            and (
                channel.who.operator
                or entry.pid == channel.pid
                or self._descends(entry, channel.pid)
            )
        ]
        self._state.reply(channel, frame, m.Processes(processes=tuple(shown)))

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
        if isinstance(call.request, m.WaitPid | m.Kill):
            entry = self._table.get(call.request.pid)
            if entry is not None:
                entry.waiters.discard(call.key)
                entry.followers.discard(call.key)

    def validate(self) -> None:
        for entry in self._table.values():
            assert (entry.status is not None) == (entry.state == "exited"), entry
            assert not (entry.waiters and entry.state == "exited"), entry
            assert entry.followers <= entry.waiters, entry
            assert len(entry.stderr) <= STDERR
            for key in entry.waiters:
                assert self._state.calls[key].step is Step.EXIT
        assert len(self._exited) <= self._state.limits.exited
