"""One process as the pure kernel keeps it: who it is, where it stands, what is seen to for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from unicodedata import normalize

from isovist.kernel.state.users import Principal
from isovist.syscalls.manifest import Restart
from isovist.syscalls.records import Process

STDERR = 16 * 1024
"""Characters of standard error that are kept of each process."""
LAST_WORDS, LINES = 1024, 20
"""Characters and lines of it that a record shows."""

NEVER = Restart()

Mounts = tuple[tuple[str, str], ...]
"""(absolute path, ``ro`` or ``rw``) of what a process may see of the host."""


@dataclass(slots=True)
class Care:
    """What is seen to for a lineage: all processes that are started in each other's place share
    it. ``heartbeat`` is in nanoseconds, 0: none is asked for."""

    restart: Restart = NEVER
    heartbeat: int = 0
    mounts: Mounts = ()
    digest: str = ""
    """Of the manifest that all this is from; empty: none."""
    begun: list[int] = field(default_factory=list)
    """When it was started anew, within the last ``restart.within`` seconds."""
    restarts: int = 0


@dataclass(slots=True)
class Entry:
    """One process, from its request to its exit and for some time after.

    Invariants: ``status`` is set iff ``state`` is ``exited``; ``paused`` only while it is
    ``running``.
    """

    pid: int
    who: Principal
    user: str
    """For whom it was spawned; ``who.bound`` says whether it still may."""
    parent: int
    program: str
    args: tuple[str, ...] = ()
    cwd: str = ""
    fresh: bool = False
    care: Care = field(default_factory=Care)
    state: str = "starting"
    channel: int = 0
    status: int | None = None
    said: int | None = None
    """The status that it gave with ``exit``."""
    reason: str = ""
    ended_by: str = ""
    by_hand: bool = False
    """True once somebody asked for its end: it is not started anew."""
    paused: bool = False
    nice: int = 0
    beat: int = 0
    """When it last said that it is well."""
    watched: bool = False
    """True while a timer looks after its heartbeat."""
    next: int = 0
    stderr: str = ""
    calls: int = 0
    spawner: int = 0
    waiters: set[int] = field(default_factory=set)
    followers: set[int] = field(default_factory=set)

    @property
    def agent(self) -> str:
        return self.who.agent

    def record(
        self, children: int = 0, usage: tuple[float, int] | tuple[None, None] = (None, None)
    ) -> Process:
        seconds, memory = usage
        return Process(
            pid=self.pid,
            agent=self.agent,
            user=self.user,
            state="paused" if self.paused else self.state,  # type: ignore[arg-type] # one of the record's words
            parent=self.parent,
            program=self.program,
            status=self.status,
            reason=self.reason,
            stderr=self.last_words() if self.state == "exited" else (),
            calls=self.calls,
            lineage=self.who.lineage,
            next=self.next,
            restarts=self.care.restarts,
            children=children,
            priority=self.who.priority,
            nice=self.nice,
            seconds=seconds,
            memory=memory,
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
