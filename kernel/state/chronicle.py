"""What the hash-chained log is told: grants, widening, kills, approvals, forgets, effects.

A line has names and numbers, never text of memory, of a tool's arguments or of a message: it is
kept for ever and is shown to whoever verifies the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isovist.kernel.state import instructions as ins

if TYPE_CHECKING:
    from isovist.kernel.state.core import State


class Chronicle:
    def __init__(self, state: State) -> None:
        self._state = state

    def note(self, kind: str, actor: str, subject: str, **detail: str | int) -> None:
        """Have a line added: ``actor`` (an agent, or ``operator``) did ``kind`` to ``subject``."""
        self._state.emit(
            ins.Chain(kind, actor, subject, tuple((k, str(v)) for k, v in sorted(detail.items())))
        )
