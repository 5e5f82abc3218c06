"""``distrust AGENT``: all that an agent published is hidden from everybody else, and listed.

To hide a unit is to move it into the pair of its owner, with the scope that it had noted beside it
in the same transaction. So no view, list, count or word statistic but the owner's own pair knows of
it any more, by the rules that hold for every unit; and to bring it back is to move it back. While
an agent is distrusted it publishes nothing: what it stores is its pair's.

A call is answered when all is hidden. What a crash interrupts goes on at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Step
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import Move, Outcome, Published

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

BATCH = 2048
"""Units that are moved at a time."""
LISTED = 2048
"""Units that a reply lists; it counts all."""


@dataclass(slots=True)
class Running:
    """What is under way for one agent. ``key`` is the call that asked, 0: nobody waits."""

    key: int
    undo: bool
    pending: int = 0
    done: list[abi.Hidden] = field(default_factory=list)
    kept: dict[tuple[str, int], abi.Hidden] = field(default_factory=dict)
    """By id and version: what could not be moved, and is not tried again as it stands."""


class Distrust:
    def __init__(self, state: State, agents: Iterable[str]) -> None:
        self._state = state
        self._agents = set(agents)
        self._running: dict[str, Running] = {}
        self._saving: dict[int, str] = {}
        """By call, which may have ended meanwhile: whom it is about."""

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {abi.Distrust: self._distrust}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.DistrustUp: lambda event: self.begin(), ev.PublishedFound: self._found}

    def of(self, agent: str) -> bool:
        return agent in self._agents

    def begin(self) -> None:
        """Go on with what an earlier life of the kernel may not have finished."""
        for agent in sorted(self._agents):
            self.look(agent)

    def look(self, agent: str) -> None:
        """Something may have been published in the name of ``agent`` meanwhile."""
        if agent in self._agents and agent not in self._running:
            self._running[agent] = Running(0, undo=False)
            self._find(agent)

    # -- the syscall

    def _distrust(self, channel: Channel, frame: int, request: abi.Distrust) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator distrusts agents", errno=Errno.EPERM)
        if not request.agent:
            shown = abi.Distrusted(agents=tuple(sorted(self._agents)))
            self._state.reply(channel, frame, shown)
            return
        agent = check_name(request.agent, "agent")
        if request.undo and agent not in self._agents:
            raise CallerError(
                f"agent {agent!r} is not distrusted", errno=Errno.ENOENT, field="agent"
            )
        if agent in self._running:
            raise CallerError(f"units of {agent!r} are on their way", errno=Errno.EAGAIN)
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._running[agent] = Running(call.key, request.undo)
        self._saving[call.key] = agent
        # From now on it publishes nothing, and what it has published before is before this line in
        # the writer's order: so the store finds all of it.
        (self._agents.discard if request.undo else self._agents.add)(agent)
        self._state.chronicle.note(
            "trust" if request.undo else "distrust", channel.who.agent, agent
        )
        self._state.emit(ins.SaveDistrust(call.key, agent, not request.undo))

    def saved(self, key: int) -> None:
        """It is durable that an agent is distrusted, or is no more."""
        if agent := self._saving.pop(key, ""):
            self._find(agent)

    def failed(self, key: int) -> None:
        """It could not be made durable: nothing has changed."""
        if agent := self._saving.pop(key, ""):
            undo = self._running.pop(agent).undo
            (self._agents.add if undo else self._agents.discard)(agent)

    # -- what it published

    def _find(self, agent: str) -> None:
        running = self._running[agent]
        skip = tuple(sorted(running.kept))
        self._state.emit(ins.FindPublished(agent, running.undo, BATCH, skip))

    def _found(self, event: ev.PublishedFound) -> None:
        running = self._running.get(event.agent)
        if running is None or running.pending:
            return
        if event.errno or not event.units:
            self._end(event.agent, running, event)
            return
        running.pending = len(event.units)
        accept = self._state.barrier.accept
        for unit in event.units:
            move = Move(
                partition=unit.partition,
                seq=accept(unit.partition),
                id=unit.id,
                version=unit.version,
                to=unit.to,
                to_seq=accept(unit.to),
                stored_at=self._state.calendar(),
                hidden="back" if running.undo else "away",
            )
            self._state.memory.hand_out_own(move, partial(self._moved, event.agent, unit))

    def _moved(self, agent: str, unit: Published, outcome: Outcome) -> None:
        running = self._running[agent]
        running.pending -= 1
        wide = unit.to if running.undo else unit.partition
        told = abi.Hidden(id=unit.id, user=unit.user, scope=wide.scope)
        if not outcome.errno:
            running.done.append(told)
        elif outcome.errno not in (Errno.ESTALE, Errno.ENOENT):
            # Whatever was changed meanwhile is found anew, or is there no more.
            running.kept[unit.id, unit.version] = told
        if not running.pending:
            self._find(agent)

    def _end(self, agent: str, running: Running, event: ev.PublishedFound) -> None:
        del self._running[agent]
        call = self._state.calls.get(running.key)
        if call is None:
            return
        if event.errno:
            self._state.fail(call, WorldError(event.message, errno=Errno(event.errno)))
            return
        self._state.finish(
            call,
            abi.Distrusted(
                agents=tuple(sorted(self._agents)),
                units=tuple(running.done[:LISTED]),
                kept=tuple(running.kept.values())[:LISTED],
                count=len(running.done),
            ),
        )

    def validate(self) -> None:
        for agent, running in self._running.items():
            assert running.undo or agent in self._agents, agent
            assert running.pending >= 0
