"""Audit: the record that each search, chat and recall leaves, and the syscall that asks for one.

A record names units by id, version and a keyed hash, and the question by a keyed hash alone, so
that it betrays neither, forgotten units included.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.syscalls import messages as m
from isovist.syscalls.abi.files import FileSearch
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Injected

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State


AUDITED = (
    m.Search | m.Chat | m.MemorySearch | m.MemoryRead | m.SessionSearch | m.FullContext
    | m.MemoryFiles | m.Prefetch | m.ForgetMatching | m.LearnLessons | FileSearch
)  # fmt: skip
"""Syscalls that leave a record."""


class Audits:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.Why: self._why}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.LookedUp: self._looked_up}

    def shown(self, candidate: Candidate, tokens: int = 0) -> Injected:
        """What a reply and a record tell of a unit that was shown, and why it was."""
        unit = candidate.hit.unit
        return Injected(
            unit=unit.id,
            version=unit.version,
            owner=candidate.owner_agent,
            scope=unit.scope,
            kind=unit.kind,
            tokens=tokens,
            score=candidate.hit.score,
            hash=self._keyed(candidate.hash),
            coverage=candidate.coverage,
            cosine=candidate.cosine,
        )

    def record(self, call: Call, units: tuple[Injected, ...], errno: int = 0) -> None:
        """Leave the record of an :data:`AUDITED` call that ends; other calls leave none."""
        request, generation = call.request, call.generation
        if not isinstance(request, AUDITED) or call.resolved is None:
            return
        query = last_user_turn(request) if isinstance(request, m.Chat) else asked(request)
        self._state.emit(
            ins.Audit(
                m.Record(
                    call=call.id,
                    syscall=call.name,
                    agent=call.agent,
                    user=call.resolved.user,
                    rule=call.resolved.rule,
                    at=self._state.calendar(),
                    barrier=call.barrier,
                    sequences=call.sequences,
                    units=units,
                    model=generation.model if generation else "",
                    budget=generation.budget if generation else 0,
                    prompt_tokens=generation.prompt_tokens if generation else 0,
                    output_tokens=generation.tokens if generation else 0,
                    injected_tokens=generation.injected_tokens if generation else 0,
                    timings=call.timings(self._state.now),
                    errno=errno,
                    query_hash=self._keyed(query),
                    cached_tokens=generation.cached if generation else 0,
                )
            )
        )

    def failure(self, call: Call, errno: Errno) -> None:
        self.record(call, call.generation.injected if call.generation else (), int(errno))

    def _keyed(self, text: str) -> str:
        data = text.encode(errors="replace")
        return blake2b(data, key=self._state.secret, digest_size=16).hexdigest()

    def _why(self, channel: Channel, frame: int, request: m.Why) -> None:
        check_name(request.call, "call")
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.Lookup(call.key, request.call))

    def _looked_up(self, event: ev.LookedUp) -> None:
        call = self._state.calls.get(event.key)
        if call is None or call.step is not Step.LOOKUP:
            return
        record = event.record
        who = self._state.channels[call.channel].who
        # Another's record answers like none at all.
        if record is None or not (
            who.operator
            or (record.agent == who.agent and self._state.users.may_serve(who, record.user))
        ):
            e = CallerError("no such call of yours", errno=Errno.ENOENT, field="call")
            self._state.fail(call, e)
        else:
            self._state.finish(call, record)


def asked(request: m.Request) -> str:
    """The question of a request; empty where it has none."""
    query = request.task if isinstance(request, m.LearnLessons) else getattr(request, "query", "")
    return query if isinstance(query, str) else ""


def last_user_turn(request: m.Chat) -> str:
    """What the user said last; empty where no turn is the user's."""
    for message in reversed(request.messages):
        if message.role == "user":
            return message.content or ""
    return ""
