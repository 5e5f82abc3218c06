"""The way to the store's ledger: what was asked of it, and who goes on with the answer.

Effects, mail and timers hand in an entry (or a question) and a continuation; the continuation is
called once, in a later event, with the answer or with the error that stood against it. Entries are
decided by the store in the order in which they were handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls.errors import IsovistError, KernelError, error
from isovist.syscalls.ledger import Entry, Question

if TYPE_CHECKING:
    from isovist.kernel.state.calls import Call
    from isovist.kernel.state.core import State

T = TypeVar("T")
Then = Callable[[Any, IsovistError | None], None]
"""Given the answer, or ``None`` and the error."""


class Ledger:
    """Invariant: ``_asked`` has all and only what is not yet answered, by number."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._last = 0
        self._asked: dict[int, Then] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.Entered: self._entered, ev.NotEntered: self._refused}

    def enter(self, entry: Entry, then: Then) -> None:
        self._state.emit(ins.Enter(self._number(then), entry))

    def ask(self, question: Question, then: Then) -> None:
        self._state.emit(ins.Ask(self._number(then), question))

    def for_call(self, call: Call, kind: type[T], then: Callable[[T], None]) -> Then:
        """A continuation that ends ``call`` with the error, or is given the answer; nothing where
        the call has ended meanwhile."""

        def go_on(answer: object, refused: IsovistError | None) -> None:
            if self._state.calls.get(call.key) is not call:
                return
            if refused is not None:
                self._state.fail(call, refused)
            else:
                then(expect(kind, answer))

        return go_on

    def _number(self, then: Then) -> int:
        self._last += 1
        self._asked[self._last] = then
        return self._last

    def _entered(self, event: ev.Entered) -> None:
        then = self._asked.pop(event.number, None)
        if then is not None:
            then(event.answer, None)

    def _refused(self, event: ev.NotEntered) -> None:
        then = self._asked.pop(event.number, None)
        if then is not None:
            then(None, error(event.errno, event.message, event.field))


def expect(kind: type[T], answer: object) -> T:
    if not isinstance(answer, kind):
        raise KernelError(f"the ledger answered {type(answer).__name__}, not {kind.__name__}")
    return answer
