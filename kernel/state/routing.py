"""Who answers a chat: the model asked for, or another in its place.

A model that fails a request for no fault of its caller's (it is down, refuses its key, has too
much to do, says nothing) rests: for as long as it asks for, else for a time that doubles with each
failure in a row. While it rests its fallbacks are asked, in their order; a chat whose model fails
before a word of the answer has left goes on to the next of them. A chat goes to each model once at
most, and stays with the first where none can take it: a rest alone refuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isovist.kernel.state.calls import Call
from isovist.kernel.state.chat import check_chat, default_budget
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno

if TYPE_CHECKING:
    from isovist.kernel.state.core import State
    from isovist.kernel.state.drivers import Driver

REST, LONGEST_REST = 1_000_000_000, 60_000_000_000
"""Nanoseconds that a model rests after its first failure, and at most where it asks for none."""
RESTING = frozenset({Errno.EAGAIN, Errno.EIO, Errno.EACCES, Errno.ETIMEDOUT, Errno.EPIPE})
"""Errors that are a model's own, not its caller's."""


@dataclass(slots=True)
class Health:
    """``failures`` in a row, 0 iff the last request was answered (or none was); the model rests
    before ``until`` (virtual ns)."""

    failures: int = 0
    until: int = 0

    def failed(self, now: int, after: int = 0) -> None:
        """It wants to be left alone for ``after`` ns (0: it does not say)."""
        rest = after or min(LONGEST_REST, REST << min(self.failures, 10))
        self.failures += 1
        self.until = max(self.until, now + rest)

    def answered(self) -> None:
        self.failures = self.until = 0

    def rests(self, now: int) -> bool:
        return now < self.until


class Routing:
    def __init__(self, state: State) -> None:
        self._state = state

    def route(self, agent: str, request: m.Chat) -> tuple[Driver, Driver]:
        """The model that ``agent`` asks for, and the one to ask now. Raises ``ENOENT``."""
        drivers = self._state.drivers
        asked = drivers.find(request.model, agent)
        chain = (asked, *map(drivers.find, asked.config.fallbacks))
        able = (d for d in chain if not d.health.rests(self._state.now))
        return asked, next((d for d in able if d is asked or fits(request, d)), asked)

    def elsewhere(self, call: Call) -> bool:
        """Give a call whose model has failed it to the next fallback; false where there is none,
        and nothing has changed then.

        It stands at no driver any more. Its prompt is made anew, as another model counts in its
        own way.
        """
        generation, request = call.generation, call.request
        if generation is None or not isinstance(request, m.Chat) or generation.passed_on:
            return False
        generation.tried.add(generation.model)
        drivers = self._state.drivers
        for name in drivers.find(generation.asked).config.fallbacks:
            driver = drivers.find(name)
            if name in generation.tried or driver.health.rests(self._state.now):
                continue
            if not fits(request, driver):
                continue
            if not self._state.admission.move(call, name, request.max_tokens):
                continue
            drivers.find(generation.model).policy.leave(call.key)
            call.tell(self._state.now, f"{generation.model} failed, {name} is asked")
            generation.model = name
            if generation.budget:
                generation.budget = default_budget(request.budget, driver.context)
            generation.anew()
            generation.tries = 0
            drivers.ensure(driver)
            self._state.chats.render(call)
            return True
        return False


def fits(request: m.Chat, driver: Driver) -> bool:
    """The request breaks no rule of this model's context."""
    try:
        check_chat(request, driver.context)
    except CallerError:
        return False
    return True
