"""What a store of units must do. One conformance suite runs over all that do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isovist.storage.dense import Vector
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import Op, Outcome, Query, Restored, Selection
from isovist.syscalls.records import View

Grants = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""By agent: the users it may serve, the scopes it may publish to."""


class Backend(Protocol):
    """A store of units.

    ``commit``, ``save_records`` and ``save_grant`` may be called in any one thread at a time
    (the writer's); everything else belongs to the loop's thread.
    """

    @property
    def key(self) -> bytes:
        """16 random bytes, drawn once in the store's life: the kernel makes opaque ids of them."""
        ...

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        """Make a group durable in one transaction; one outcome an operation, in order. Never
        raises for what befalls the disk: then all outcomes carry ``ENOSPC`` or ``EIO`` and
        nothing of the group is kept. An operation that meets a bug of the store carries
        ``EKERNEL`` and no word of what it held; the others of its group take effect. Nothing is
        visible before :meth:`apply`."""
        ...

    def apply(self, outcomes: Sequence[Outcome]) -> None:
        """Make what was committed visible to :meth:`select`, in the order of commit."""
        ...

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        """The only read of units. Raises :class:`KernelError` without a ``View``."""
        ...

    def restore(self) -> tuple[Restored, ...]:
        """Make everything found at start visible; once, before the first :meth:`select`."""
        ...

    def save_records(self, records: Sequence[Record]) -> None: ...

    def record(self, call: str) -> Record | None: ...

    def save_grant(self, agent: str, users: Sequence[str], scopes: Sequence[str]) -> None:
        """What ``agent`` holds from now on; nothing of both removes it."""
        ...

    def grants(self) -> Grants: ...

    def statistics(self) -> dict[str, int]: ...

    def close(self) -> None: ...
