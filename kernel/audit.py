"""Audit records on their way to disk: committed in groups, within half a second (promise
``audit.replay``), in the writer's thread."""

from __future__ import annotations

import structlog

from isovist.kernel.writer import Writer
from isovist.storage.store import Store
from isovist.syscalls.messages import Record

log = structlog.get_logger()

DELAY = 500_000_000
"""Nanoseconds that a record may wait for company."""
GROUP = 1024
"""Records after which nobody waits longer."""


class Records:
    """Invariant: a record can be found from the moment it was added, on disk or here."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._waiting: dict[str, Record] = {}
        self._flying: dict[str, Record] = {}
        self.due: float = float("inf")
        """When the waiting records must be handed over (virtual ns)."""

    def add(self, record: Record, now: int) -> None:
        self._waiting[record.call] = record
        if len(self._waiting) >= GROUP:
            self.flush()
        elif self.due == float("inf"):
            self.due = now + DELAY

    def flush(self) -> None:
        """Hand what waits to the writer."""
        self.due = float("inf")
        group, self._waiting = self._waiting, {}
        if not group:
            return
        self._flying.update(group)

        def then(e: Exception | None) -> None:
            for call in group:
                self._flying.pop(call, None)
            if e is not None:
                log.error("audit records lost", count=len(group), why=str(e))

        self._writer.run(lambda: self._store.save_records(list(group.values())), then)

    def find(self, call: str) -> Record | None:
        return self._waiting.get(call) or self._flying.get(call) or self._store.record(call)
