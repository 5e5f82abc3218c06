"""What chat calls cost, by agent, user and model: the metering syscall, for the operator.

Two sources answer it. What this life of the kernel has seen is counted here, running calls
included, so that whoever asks twice sees the pace. What came before is in the records of calls,
which the shell adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_time
from isovist.syscalls.records import Usage

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

AXES = ("agent", "user", "model")
NAMES = 4096
"""Names of one axis that are counted; those that come later are counted together, as ``*``."""


class Metering:
    """Invariant: ``_totals`` hold all chats that have ended and reached a model's queue, and no
    user who was forgotten since."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._totals: dict[str, dict[str, Usage]] = {axis: {} for axis in AXES}

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.Metering: self._metering}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.Metered: self._metered}

    def _metering(self, channel: Channel, frame: int, request: m.Metering) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator sees what all cost", errno=Errno.EPERM)
        since, until = check_time(request.since, "since"), check_time(request.until, "until")
        if since is None:
            if until is not None:
                raise CallerError("until goes with since", field="until")
            reply = m.Metered(at=self._state.calendar(), usage=self.live(request.by))
            self._state.reply(channel, frame, reply)
            return
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.Meter(call.key, request.by, since, until))

    def _metered(self, event: ev.Metered) -> None:
        call = self._state.calls.get(event.key)
        if call is not None and isinstance(call.request, m.Metering):
            reply = m.Metered(at=self._state.calendar(), usage=event.usage)
            self._state.finish(call, reply)

    def live(self, axis: str) -> tuple[Usage, ...]:
        """What this life of the kernel has seen, by name."""
        now = dict(self._totals[axis])
        for call in self._state.calls.values():
            if (usage := self._of(call)) is not None:
                _add(now, self._name(call, axis), usage)
        return tuple(now[name] for name in sorted(now))

    def closed(self, call: Call, failed: bool) -> None:
        """A call ends."""
        usage = self._of(call)
        if usage is None:
            return
        usage = msgspec.structs.replace(usage, running=0, waiting=0, calls=1, failed=int(failed))
        for axis in AXES:
            _add(self._totals[axis], self._name(call, axis), usage)

    def forget(self, user: str) -> None:
        """Nothing is left of ``user``."""
        self._totals["user"].pop(user, None)

    def _of(self, call: Call) -> Usage | None:
        """What a chat has cost so far; ``None`` for any other call."""
        generation = call.generation
        if generation is None or not isinstance(call.request, m.Chat):
            return None
        begun = generation.tries > 0
        timings = call.timings(self._state.now)
        return Usage(
            name="",
            running=int(call.step is Step.DECODE),
            waiting=int(call.step is Step.QUEUE),
            prompt_tokens=generation.prompt_tokens if begun else 0,
            cached_tokens=generation.cached,
            output_tokens=max(generation.tokens, generation.charged),
            injected_tokens=generation.injected_tokens if begun else 0,
            queue=timings.queue,
            barrier=timings.barrier,
            retrieval=timings.retrieval,
            prefill=timings.prefill,
            decode=timings.decode,
        )

    @staticmethod
    def _name(call: Call, axis: str) -> str:
        if axis == "model":
            return call.generation.model if call.generation else ""
        if axis == "user":
            return call.resolved.user if call.resolved else ""
        return call.agent


def _add(totals: dict[str, Usage], name: str, more: Usage) -> None:
    if name not in totals and len(totals) >= NAMES:
        name = "*"
    totals[name] = plus(totals.get(name, Usage(name=name)), more)


def plus(one: Usage, more: Usage) -> Usage:
    """Both together, under the name of the one."""
    sums = {
        field: getattr(one, field) + getattr(more, field)
        for field in Usage.__struct_fields__
        if field != "name"
    }
    return Usage(name=one.name, **sums)
