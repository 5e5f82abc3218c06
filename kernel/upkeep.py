"""The store's upkeep, beside the loop: one job at a time in a thread, taken and finished between
two turns of the loop."""

from __future__ import annotations

from typing import Any, Protocol

import structlog
import trio

from isovist.kernel.log import where
from isovist.storage.backend import Owed

log = structlog.get_logger()

PAUSE_S = 0.5
"""Seconds between two looks for work that is due: a look walks all partitions."""
READS_S = 10.0
"""Seconds after which a look is due where there were reads alone: they decide what is kept in
memory, and nothing else."""
AGAIN_S = 30.0
"""Seconds until upkeep that failed is tried again: a full disk does not empty at once."""


class Kept(Protocol):
    """A store with upkeep; see :class:`isovist.storage.store.Store`."""

    def job(self) -> Any: ...

    def run(self, job: Any) -> None: ...

    def finish(self, job: Any) -> None: ...

    def scrub(self, now: int, owed: Owed | None = None) -> bool: ...


class Upkeep:
    """Invariants: at most one job or scrub is under way; a look is due, at ``_at``, iff something
    was applied or read since the last one began."""

    def __init__(self, store: Kept) -> None:
        self._store = store
        self._turn = trio.Lock()
        self._at = trio.current_time()  # what a start left to be done
        self._sooner = trio.Event()

    def note(self) -> None:
        """Something was applied: there may be work soon."""
        self._due(PAUSE_S)

    def note_read(self) -> None:
        self._due(READS_S)

    def _due(self, within: float) -> None:
        at = trio.current_time() + within
        if at < self._at:
            self._at = at
            self._sooner.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while trio.current_time() < self._at:
                self._sooner = trio.Event()
                with trio.move_on_at(self._at):
                    await self._sooner.wait()
            self._at = float("inf")
            try:
                while await self.once():
                    pass
            except Exception as e:
                log.error("upkeep failed", why=where(e))
                await trio.sleep(AGAIN_S)
                self._at = trio.current_time()
            else:
                await trio.sleep(PAUSE_S)

    async def once(self) -> bool:
        """Do one job if one is due; false if none was."""
        async with self._turn:
            return await self._once()

    async def _once(self) -> bool:
        job = self._store.job()
        if job is None:
            return False
        try:
            await trio.to_thread.run_sync(self._store.run, job)
        finally:
            # After a run that failed this undoes what taking the job had done.
            self._store.finish(job)
        return True

    async def scrub(self, now: int, owed: Owed | None = None) -> None:
        """Erase what was forgotten from every file; no job runs meanwhile. Raises
        :class:`WorldError`."""
        async with self._turn:
            while not await trio.to_thread.run_sync(self._store.scrub, now, owed):
                # A graph holds what was dropped: it is made anew first.
                while await self._once():
                    pass
