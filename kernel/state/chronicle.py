"""What the hash-chained log is told: grants, widening, kills, approvals, forgets, effects.

A line has names and numbers, never text of memory, of a tool's arguments or of a message: it is
kept for ever and is shown to whoever verifies the chain. It is durable before whatever is handed to
the store after it was noted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from isovist.kernel.state import instructions as ins

if TYPE_CHECKING:
    from isovist.kernel.state.core import State

LISTED = 64
"""Names of one list that a line holds; of more it says how many there are."""


class Chronicle:
    def __init__(self, state: State) -> None:
        self._state = state

    def note(
        self,
        kind: str,
        actor: str,
        subject: str,
        *,
        users: Iterable[str] = (),
        **detail: str | int | Iterable[str],
    ) -> None:
        """Have a line added: ``actor`` (an agent, or ``operator``) did ``kind`` to ``subject``.

        Names of users stand in ``users`` alone: there they are replaced by names that are
        forgotten with them. A detail that is empty is left out.
        """
        named = tuple(users)
        if len(named) > LISTED:
            detail["users"] = len(named)
        told = tuple(
            (name, said) for name, value in sorted(detail.items()) if (said := _told(value))
        )
        at = self._state.calendar()
        self._state.emit(ins.Chain(kind, actor, subject, at, named[:LISTED], told))


def _told(value: str | int | Iterable[str]) -> str:
    if isinstance(value, str | int):
        return str(value)
    named = list(value)
    more = len(named) - LISTED
    return " ".join(named[:LISTED]) + (f" and {more} more" if more > 0 else "")
