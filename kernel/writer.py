"""The writer thread: group commit. Whatever waits when a commit begins shares its one flush."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from isovist.kernel.log import where
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Op, Outcome

log = structlog.get_logger()

GROUP = 64
"""Writes that share one commit at most: they become visible together, in one turn of the loop."""


class Writer:
    """Takes operations in order, commits them in groups, hands the outcomes back in order.

    ``wake_fd`` becomes readable when there is something to :meth:`collect`. Other durable work
    (grants, audit records) goes through :meth:`run`, in its place among the operations.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: deque[Op | _Job] = deque()
        self._filled = threading.Condition()
        self._done: deque[list[Outcome] | _Job] = deque()
        self._closing = False
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="isovist-writer", daemon=True)
        self._thread.start()

    def commit(self, op: Op) -> None:
        with self._filled:
            self._queue.append(op)
            self._filled.notify()

    def run(self, work: Callable[[], object], then: Callable[[Exception | None], None]) -> None:
        """Do ``work`` in the thread; ``then`` is called by :meth:`collect` with its failure."""
        with self._filled:
            self._queue.append(_Job(work, then))
            self._filled.notify()

    def collect(self) -> list[list[Outcome]]:
        """The outcomes of each commit, in order; in their place among the commits the ``then`` of
        finished jobs is called."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return []
        commits: list[list[Outcome]] = []
        while self._done:
            done = self._done.popleft()
            if isinstance(done, _Job):
                done.then(done.error)
            else:
                commits.append(done)
        return commits

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._filled:
            self._closing = True
            self._filled.notify()
        self._thread.join()
        os.close(self.wake_fd)

    def __len__(self) -> int:
        return len(self._queue)

    def _work(self) -> None:
        while True:
            with self._filled:
                while not self._queue and not self._closing:
                    self._filled.wait()
                if not self._queue:
                    return
                group: list[Op] = []
                job: _Job | None = None
                while self._queue and len(group) < GROUP:
                    head = self._queue[0]
                    if isinstance(head, _Job):
                        if not group:
                            job = head
                            self._queue.popleft()
                        break
                    group.append(head)
                    self._queue.popleft()
            if job is not None:
                try:
                    job.work()
                except Exception as e:  # the failure is handed to whoever asked
                    job.error = e
                self._done.append(job)
            else:
                self._done.append(self._commit(group))
            os.eventfd_write(self.wake_fd, 1)

    def _commit(self, group: list[Op]) -> list[Outcome]:
        try:
            return self._store.commit(group)
        except Exception as e:
            # A bug ends the writes that met it, never the thread that all others need.
            log.error("broken rule", rule="the store raises typed errors only", why=where(e))
            message = f"the store broke: {type(e).__name__}"
            return [Outcome(op=op, errno=int(Errno.EKERNEL), message=message) for op in group]


class _Job:
    __slots__ = ("error", "then", "work")

    def __init__(self, work: Callable[[], Any], then: Callable[[Exception | None], None]) -> None:
        self.work, self.then = work, then
        self.error: Exception | None = None
