"""The chronicle on its way to disk: in the writer's thread, in its place among the writes.

A line is durable before whatever it tells of: what was noted before a write was handed over is
written before it. Many lines share a flush where they come faster than the disk.
"""

from __future__ import annotations

import threading

import structlog
import trio

from isovist.kernel.state import instructions as ins
from isovist.kernel.writer import Writer
from isovist.storage import chronicle
from isovist.storage.chronicle import Noted
from isovist.syscalls.errors import WorldError

log = structlog.get_logger()

MOST = 1_000
"""Lines that wait for a disk which takes none; further ones are counted, and that is noted."""
AGAIN_S = 1.0
"""Seconds until lines that the disk refused are offered to it again."""


class Chronicle:
    """Carries out ``Chain``.

    Invariant: while lines wait, a job of the writer's is queued for them or a timer runs.
    """

    def __init__(
        self,
        file: chronicle.Chronicle,
        writer: Writer,
        nursery: trio.Nursery,
    ) -> None:
        self._file, self._writer, self._nursery = file, writer, nursery
        self._lock = threading.Lock()  # of the two below, which both threads touch
        self._waiting: list[Noted] = []
        self._lost = 0
        self._queued = False

    def add(self, i: ins.Chain) -> None:
        noted = Noted(
            at=i.at,
            kind=i.kind,
            actor=i.actor,
            subject=i.subject,
            users=i.users,
            detail=dict(i.detail),
        )
        with self._lock:
            if len(self._waiting) < MOST:
                self._waiting.append(noted)
            else:
                self._lost += 1
        self._queue()

    def __len__(self) -> int:
        return len(self._waiting)

    def _queue(self) -> None:
        """One job takes all lines that wait when it runs, so one is enough."""
        with self._lock:
            if self._queued:
                return
            self._queued = True
        self._writer.run(self.flush, self._flushed)

    def _flushed(self, e: Exception | None) -> None:
        if e is not None:
            log.error("the chronicle waits", lines=len(self._waiting), why=str(e))
            self._nursery.start_soon(self._later)

    async def _later(self) -> None:
        await trio.sleep(AGAIN_S)
        self._queue()

    def flush(self) -> None:
        """In the writer's thread: make durable what waits. Raises :class:`WorldError`, also where
        some could not wait any more: how many is then written."""
        with self._lock:
            self._queued = False
            lines, lost = list(self._waiting), self._lost
        if lost:
            lines.append(Noted(at=lines[-1].at, kind="lost", actor="kernel", subject="chronicle",
                               detail={"lines": str(lost)}))  # fmt: skip
        if not lines:
            return
        self._file.append(lines)
        with self._lock:
            del self._waiting[: len(lines) - bool(lost)]
            self._lost -= lost
        if lost:
            # Whoever waits for its line to be durable may be among those that lost it.
            raise WorldError(f"{lost} lines of the chronicle were lost; try again")
