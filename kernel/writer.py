"""The writer thread: group commit. Whatever waits when a commit begins shares its one flush."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from isovist.kernel.log import where
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno, IsovistError, KernelError
from isovist.syscalls.ledger import Entry
from isovist.syscalls.operations import Op, Outcome

log = structlog.get_logger()

GROUP = 64
"""Writes that share one commit at most: they become visible together, in one turn of the loop."""


class Writer:
    """Takes operations in order, commits them in groups, hands the outcomes back in order.

    ``wake_fd`` becomes readable when there is something to :meth:`collect`. Entries of the ledger
    go through :meth:`enter`, in groups of their own; other durable work (grants, audit records)
    through :meth:`run`; all in their place among the operations.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: deque[Op | _Made | _Job] = deque()
        self._filled = threading.Condition()
        self._done: deque[list[Outcome] | list[_Made] | _Job] = deque()
        self._closing = False
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="isovist-writer", daemon=True)
        self._thread.start()

    def commit(self, op: Op) -> None:
        with self._filled:
            self._queue.append(op)
            self._filled.notify()

    def enter(self, entry: Entry, then: Callable[[object], None]) -> None:
        """Make an entry in the ledger; ``then`` is called by :meth:`collect` with its answer, or
        with the :class:`IsovistError` that stood against it."""
        with self._filled:
            self._queue.append(_Made(entry, then))
            self._filled.notify()

    def run(self, work: Callable[[], object], then: Callable[[Exception | None], None]) -> None:
        """Do ``work`` in the thread; ``then`` is called by :meth:`collect` with its failure."""
        with self._filled:
            self._queue.append(_Job(work, then))
            self._filled.notify()

    def collect(self) -> Iterator[list[Outcome]]:
        """The outcomes of each commit, in order; in their place among the commits the ``then`` of
        finished jobs is called, so take in each commit before asking for the next."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return
        while self._done:
            done = self._done.popleft()
            if isinstance(done, _Job):
                done.then(done.error)
                continue
            outcomes: list[Outcome] = []
            for one in done:
                if isinstance(one, _Made):
                    one.then(one.answer)
                else:
                    outcomes.append(one)
            if outcomes:
                yield outcomes

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
                group = self._take()
            if isinstance(group[0], _Job):
                self._do(group[0])
                self._done.append(group[0])
            elif isinstance(group[0], _Made):
                made = [one for one in group if isinstance(one, _Made)]
                self._enter(made)
                self._done.append(made)
            else:
                self._done.append(self._commit([op for op in group if isinstance(op, Op)]))
            os.eventfd_write(self.wake_fd, 1)

    def _take(self) -> list[Op | _Made | _Job]:
        """What shares the next flush: all of one kind. A job has its own."""
        group = [self._queue.popleft()]
        kind = _kind(group[0])
        while self._queue and kind is not _Job and len(group) < GROUP:
            if _kind(self._queue[0]) is not kind:
                break
            group.append(self._queue.popleft())
        return group

    @staticmethod
    def _do(job: _Job) -> None:
        try:
            job.work()
        except Exception as e:  # the failure is handed to whoever asked
            job.error = e

    def _enter(self, made: list[_Made]) -> None:
        answers: list[object]
        try:
            answers = self._store.enter([one.entry for one in made])
        except IsovistError as e:
            answers = [e] * len(made)
        except Exception as e:
            log.error("broken rule", rule="the ledger raises typed errors only", why=where(e))
            answers = [KernelError(f"the ledger broke: {type(e).__name__}")] * len(made)
        for one, answer in zip(made, answers, strict=True):
            one.answer = answer

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


class _Made:
    """An entry of the ledger, and what the ledger answered."""

    __slots__ = ("answer", "entry", "then")

    def __init__(self, entry: Entry, then: Callable[[object], None]) -> None:
        self.entry, self.then = entry, then
        self.answer: object = None


def _kind(one: Op | _Made | _Job) -> object:
    return type(one) if isinstance(one, _Made | _Job) else Op
