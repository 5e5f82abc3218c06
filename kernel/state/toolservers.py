"""Tool servers: the lives of their processes, the queue of each, and which calls may run at once.

Each server has a queue of its own, so one that hangs or crashes delays nobody but those that call
it. A server is started by the first call that needs it. Each life has a number (``gen``); words of
an earlier life are dropped. A call that is under way when its server dies has failed, and nobody
knows whether it was carried out; those that wait are given to the next life.

Two calls of one server *conflict* where either is of an exclusive tool, or where both are keyed
and have the same value of their key. A call starts when it conflicts with none that runs and with
none that came before it and still waits: so none is overtaken for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.toolwords import Answer, MountedTool, failure
from isovist.syscalls.abi.tools import ToolServer
from isovist.syscalls.errors import CallerError, Errno, WorldError, error

if TYPE_CHECKING:
    from isovist.kernel.state.core import State

MS = 1_000_000
START_GRACE = 60_000 * MS
"""A server that is not up within this is stopped."""
CANCEL_GRACE = 5_000 * MS
"""A server that has not ended a cancelled call within this is stopped, with all that it does."""
FIRST_PAUSE, LONGEST_PAUSE = 100 * MS, 60_000 * MS
"""Before the next start of a server that has died: the first, doubled with each death in a row."""
DEATHS = 3
"""Deaths in a row after which waiting calls fail, and new ones do until the pause is over."""
WAITING, OF_AGENT = 256, 64
"""Calls that may wait for or run at one server, in all and of one agent."""

SHARED, EXCLUSIVE = "", "*"
"""Locks: of a call that conflicts with exclusive ones alone, and of one that does with all."""


@dataclass(frozen=True)
class ServerConfig:
    """A server as configured. ``timeout`` of a call and ``approval`` (how long a person is waited
    for) in ns; ``slots`` calls at a time. ``approve`` are patterns over its tools' names,
    ``conflicts`` rules by such patterns, the first that fits counts: ``shared``, ``exclusive`` or
    ``key:ARGUMENT``."""

    name: str
    kind: str = "stdio"
    timeout: int = 60_000 * MS
    slots: int = 8
    approve: tuple[str, ...] = ()
    approval: int = 300_000 * MS
    conflicts: tuple[tuple[str, str], ...] = ()

    def approval_of(self, tool: str) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in self.approve)

    def conflict_of(self, tool: str) -> str:
        return next((rule for p, rule in self.conflicts if fnmatchcase(tool, p)), "shared")


@dataclass(slots=True, eq=False)
class Run:
    """One call of one tool at a server. ``lock`` is what it conflicts by, ``then`` is told once
    how it ended.

    Invariant: ``told`` iff ``then`` was called. A call that was told may still be running: it was
    given up, and keeps its lock until its server is done with it, or dead.
    """

    number: int
    agent: str
    user: str
    server: str
    tool: str
    arguments: str
    lock: str
    then: Callable[[Answer], None]
    held: bool = False
    """It keeps its place in the queue, and may not start yet."""
    running: bool = False
    told: bool = False
    ended: Callable[[Answer], None] | None = None
    """Told how it really ended, where it was given up before."""

    def tell(self, answer: Answer) -> None:
        if not self.told:
            self.told = True
            self.then(answer)
        elif self.ended is not None:
            then, self.ended = self.ended, None
            then(answer)


@dataclass(slots=True)
class Server:
    """One server. ``running`` holds the calls that its process works on, in the order of their
    start; ``queue`` those that wait, in the order of their coming.

    Invariant: no two of ``running`` conflict; it is empty unless the state is ``up``, and never
    holds more than ``slots``.
    """

    config: ServerConfig
    state: Literal["idle", "starting", "up", "waiting", "failed"] = "idle"
    gen: int = 0
    deaths: int = 0
    until: int = 0
    """When it may be started again (virtual ns)."""
    error: str = ""
    tools: dict[str, MountedTool] = field(default_factory=dict)
    running: dict[int, Run] = field(default_factory=dict)
    queue: dict[int, Run] = field(default_factory=dict)

    def runs(self) -> list[Run]:
        return [*self.running.values(), *self.queue.values()]


def lock_of(rule: str, arguments: Mapping[str, object]) -> str:
    """What a call conflicts by, under a rule of :class:`ServerConfig`. One that lacks the argument
    that it is keyed by may touch whatever the tool takes for granted: it is taken as exclusive."""
    if rule == "exclusive":
        return EXCLUSIVE
    if not rule.startswith("key:"):
        return SHARED
    key = rule.removeprefix("key:")
    if key not in arguments:
        return EXCLUSIVE
    return f"{key}={msgspec.json.encode(arguments[key], order='sorted').decode()}"


def conflict(a: str, b: str) -> bool:
    return EXCLUSIVE in (a, b) or (a == b != SHARED)


class ToolServers:
    def __init__(self, state: State, configs: Iterable[ServerConfig]) -> None:
        self._state = state
        self._named = {config.name: Server(config) for config in configs}
        self._last = 0
        self.changed: Callable[[], None] = lambda: None
        """Called when a server has come up or has failed to."""
        self.wanted: Callable[[Server], bool] = lambda server: False
        """Whether somebody waits for a server to be up, beside those in its queue."""

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.ToolsUp: self._up,
            ev.ToolDone: self._done,
            ev.ToolServerDied: self._died,
        }

    def all(self) -> list[Server]:
        return list(self._named.values())

    def find(self, name: str) -> Server | None:
        return self._named.get(name)

    def shown(self) -> tuple[ToolServer, ...]:
        return tuple(
            ToolServer(
                name=s.config.name,
                kind=s.config.kind,
                state=s.state,
                tools=len(s.tools),
                running=len(s.running),
                waiting=len(s.queue),
                starts=s.gen,
                error=s.error,
            )
            for s in self._named.values()
        )

    # -- lives

    def ensure(self, server: Server) -> None:
        """Start it if nobody has. Raises ``EAGAIN`` while it is left alone."""
        if server.state == "failed" and self._state.now < server.until:
            raise WorldError(
                f"tool server {server.config.name!r} cannot run: {server.error}",
                errno=Errno.EAGAIN,
                retry_at=self._state.calendar() + server.until - self._state.now,
            )
        if server.state in ("idle", "failed"):
            self._start(server)

    def _start(self, server: Server) -> None:
        server.gen += 1
        server.state = "starting"
        self._state.emit(ins.StartToolServer(server.config.name, server.gen))
        self._timer(server, START_GRACE, f"start {server.gen}")

    def _timer(self, server: Server, after: int, what: str) -> None:
        self._state.timer(self._state.now + after, 0, f"tool server {server.config.name} {what}")

    def _speaker(self, event: Any) -> Server | None:
        server = self._named.get(event.server)
        if server is None or server.gen != event.gen or server.state not in ("starting", "up"):
            return None
        return server

    def _up(self, event: ev.ToolsUp) -> None:
        """It is up, or its tools are others than before."""
        server = self._speaker(event)
        if server is None:
            return
        server.tools = {tool.name: tool for tool in event.tools}
        if server.state == "starting":
            server.state, server.error = "up", ""
        self.changed()
        self._pump(server)

    def _died(self, event: ev.ToolServerDied) -> None:
        server = self._speaker(event)
        if server is None:
            return
        server.error = event.reason
        server.deaths = DEATHS if event.fatal else server.deaths + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE << min(server.deaths - 1, 16))
        server.until = self._state.now + pause
        hopeless = server.deaths >= DEATHS
        server.state = "failed" if hopeless else "waiting"
        under_way, server.running = list(server.running.values()), {}
        waiting: list[Run] = []
        if hopeless:
            waiting, server.queue = list(server.queue.values()), {}
        else:
            self._timer(server, pause, f"again {server.gen}")
        died = f"tool server {server.config.name!r} died: {event.reason}"
        for run in under_way:
            why = f"{died}; nobody knows whether the call was carried out"
            run.tell(failure(WorldError(why), lost=True))
        at = self._state.calendar() + pause
        for run in waiting:
            run.tell(failure(WorldError(died, errno=Errno.EAGAIN, retry_at=at)))
        self.changed()

    def woken(self, name: str, what: str, number: int) -> None:
        """A timer of server ``name`` has run out."""
        server = self._named[name]
        if what == "start" and server.gen == number and server.state == "starting":
            self._stop(server, "it did not come up in time")
        elif what == "again" and server.gen == number and server.state == "waiting":
            server.state = "idle"
            if server.queue or self.wanted(server):
                self._start(server)
        elif what == "timeout" and number in server.running:
            run = server.running[number]
            seconds = server.config.timeout / 1e9
            why = f"{name}.{run.tool} gave no answer within {seconds:g} s, and was cancelled"
            self.cancel(run, failure(error(Errno.ETIMEDOUT, why), lost=True))
        elif what == "cancel" and number in server.running:
            self._stop(server, "it did not end a call that was cancelled")

    def _stop(self, server: Server, why: str) -> None:
        self._state.emit(ins.StopToolServer(server.config.name, server.gen, why))

    # -- calls

    def check_room(self, server: Server, agent: str, more: int = 1) -> None:
        """Raise ``EAGAIN`` where ``more`` calls of an agent would be too many."""
        runs = server.runs()
        for limit, have, whose in (
            (OF_AGENT, sum(run.agent == agent for run in runs), f"agent {agent!r}"),
            (WAITING, len(runs), "all agents"),
        ):
            if have + more > limit:
                raise CallerError(
                    f"{have} calls of {whose} wait at tool server {server.config.name!r}, the "
                    f"limit is {limit}",
                    errno=Errno.EAGAIN,
                )

    def offer(
        self,
        server: Server,
        tool: str,
        arguments: str,
        lock: str,
        agent: str,
        user: str,
        then: Callable[[Answer], None],
        *,
        held: bool = False,
    ) -> Run:
        """Queue a call; one that is ``held`` starts after :meth:`release`. Raises ``EAGAIN``, and
        ``then`` is never told."""
        self.check_room(server, agent)
        self.ensure(server)
        self._last += 1
        run = Run(self._last, agent, user, server.config.name, tool, arguments, lock, then, held)
        server.queue[run.number] = run
        self._pump(server)
        return run

    def release(self, run: Run) -> None:
        """A call that was held may start."""
        run.held = False
        self._pump(self._named[run.server])

    def withdraw(self, run: Run) -> None:
        """A call that waits is not to be made, and nobody is told."""
        server = self._named[run.server]
        run.told = True
        server.queue.pop(run.number, None)
        self._pump(server)

    def cancel(
        self, run: Run, answer: Answer, ended: Callable[[Answer], None] | None = None
    ) -> None:
        """Give a call up, with ``answer`` as its end; ``ended`` is told how it really ended where
        it was under way, which may be much later."""
        server = self._named[run.server]
        if run.told:
            return
        run.ended = ended if run.running else None
        if run.running:
            self._state.emit(ins.CancelTool(run.server, server.gen, run.number))
            self._timer(server, CANCEL_GRACE, f"cancel {run.number}")
        else:
            server.queue.pop(run.number, None)
        run.tell(answer)
        self._pump(server)

    def _pump(self, server: Server) -> None:
        if server.state != "up":
            return
        ahead = [run.lock for run in server.running.values()]
        for run in list(server.queue.values()):
            if len(server.running) >= server.config.slots:
                return
            if not run.held and not any(conflict(run.lock, lock) for lock in ahead):
                del server.queue[run.number]
                run.running = True
                server.running[run.number] = run
                self._state.emit(
                    ins.CallTool(
                        run.server,
                        server.gen,
                        run.number,
                        run.tool,
                        run.arguments,
                        f"{run.agent}/{run.user}",
                    )
                )
                self._timer(server, server.config.timeout, f"timeout {run.number}")
            ahead.append(run.lock)

    def _done(self, event: ev.ToolDone) -> None:
        server = self._speaker(event)
        if server is None:
            return
        run = server.running.pop(event.run, None)
        if run is None:
            return
        server.deaths = 0
        run.tell(event.answer)
        self._pump(server)

    def validate(self) -> None:
        for server in self._named.values():
            running = list(server.running.values())
            assert server.state == "up" or not running
            assert len(running) <= server.config.slots
            assert not server.queue or server.state in ("starting", "up", "waiting"), server.state
            for at, run in enumerate(running):
                assert run.running
                assert not any(conflict(run.lock, other.lock) for other in running[:at])
            assert not any(run.running or run.told for run in server.queue.values())
            idle = server.state == "up" and not running
            held = any(run.held for run in server.queue.values())
            assert held or not (idle and server.queue), "a call waits at an idle server"
