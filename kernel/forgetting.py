"""The shell's part of forgetting: a user's purge, receipts, what has expired, and when the store is
scrubbed.

Scrubbing rewrites files, so it is not done for each unit: it waits until nothing was forgotten for
``QUIET_S``, at most ``LONGEST_S``, and not at all where somebody waits for a receipt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
import trio

from isovist.kernel.log import where
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.work import Piece
from isovist.kernel.writer import Writer
from isovist.storage.backend import Backend, Owed
from isovist.syscalls.errors import IsovistError, WorldError
from isovist.syscalls.operations import Outcome

log = structlog.get_logger()

QUIET_S, LONGEST_S = 2.0, 30.0
"""Seconds since the last and since the first unit was forgotten after which the store is
scrubbed."""
AGAIN_S, LATEST_S = 1.0, 60.0
"""Seconds until a scrub that failed is tried again, doubled each time up to the second."""

CLOCK_S = 60.0
"""Seconds between two looks at the calendar, which may be set, or go on while the machine sleeps:
what expires meanwhile is swept no later."""
AT_START = 0
"""The ``look`` of a first word to a kernel that starts."""


class Caches(Protocol):
    """What models keep of prompts; see :class:`isovist.kernel.llm.Models`."""

    async def flush(self) -> None: ...


class Forgetting:
    """Carries out ``Owned``, ``Purge``, ``FindReceipt``, ``FindLapsed``, ``Scrub`` and ``Flush``.

    A scrub has three parts: no prompt that holds what was forgotten is worked on any more, models
    drop what they keep of others (they may hold anything that somebody said, too), and the store's
    files are rewritten. Only then receipts are issued.

    ``scrub(now, owed)`` does it, ``first`` queues a piece of work behind the writes that are
    durable already, ``flush`` hands the waiting audit records to the writer, ``fail`` ends a call,
    and ``settled(user)`` waits for the user's earlier saves of contexts.
    Invariant: while anything may be forgotten and not scrubbed, ``_since`` says since when.
    """

    def __init__(
        self,
        store: Backend,
        writer: Writer,
        nursery: trio.Nursery,
        *,
        caches: Caches,
        snapshots: Path,
        scrub: Callable[[int, Owed | None], Awaitable[None]],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
        first: Callable[[Piece], None],
        flush: Callable[[], None],
        settled: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store, self._writer, self._nursery = store, writer, nursery
        self._scrub, self._dispatch, self._fail, self._first = scrub, dispatch, fail, first
        self._flush, self._settled = flush, settled
        self._caches, self._snapshots = caches, snapshots
        self._may_flush = trio.Event()
        # What an earlier life left unscrubbed is scrubbed too; if it left nothing, that is quick.
        self._since: float | None = trio.current_time()
        self._last = trio.current_time()
        self._soon = False
        self._changed = trio.Event()
        nursery.start_soon(self._run)

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.Owned: self._owned,
            ins.Purge: lambda i: self._nursery.start_soon(self._purge, i),
            ins.FindReceipt: self._find,
            ins.FindLapsed: self._find_lapsed,
            ins.Swept: lambda i: log.info("expired units are gone", units=i.units, call=i.call),
            ins.Scrub: lambda i: self.note(soon=i.soon),
            ins.Flush: lambda i: self._may_flush.set(),
        }

    def begin(self) -> None:
        """The state is there: have it sweep what expired while no kernel was up, first of all."""
        self._find_lapsed(ins.FindLapsed(AT_START, time.time_ns(), 0))
        self._nursery.start_soon(self._watch_calendar)

    async def _watch_calendar(self) -> None:
        while True:
            await trio.sleep(CLOCK_S)
            self._dispatch(ev.Tick(now=_now(), wall=time.time_ns()))

    # -- what has expired

    def _find_lapsed(self, i: ins.FindLapsed) -> None:
        try:
            units, soonest = self._store.expired(i.at, i.limit)
        except Exception as e:
            why = str(e) if isinstance(e, IsovistError) else where(e)
            log.error("expired units cannot be found", why=why, again=LATEST_S)
            self._nursery.start_soon(self._find_lapsed_later, i)
        else:
            self._dispatch(ev.Lapsed(now=_now(), look=i.look, units=units, soonest=soonest))

    async def _find_lapsed_later(self, i: ins.FindLapsed) -> None:
        await trio.sleep(LATEST_S)
        self._find_lapsed(i)

    # -- scrubbing

    def note(self, *, soon: bool = False) -> None:
        """Something was forgotten, or (``soon``) somebody waits for its receipt."""
        self._last = trio.current_time()
        if self._since is None:
            self._since = self._last
        self._soon = self._soon or soon
        self._changed.set()
        self._changed = trio.Event()

    async def _run(self) -> None:
        pause = AGAIN_S
        while True:
            await self._due()
            since, self._since, self._soon = self._since, None, False
            try:
                # What is forgotten from here on has to wait for the next scrub.
                owed = self._store.owed()
                if owed is not None and any(owed):
                    # What was in no unit was given to no model by the kernel.
                    await self._flush_models()
                await self._scrub(time.time_ns(), owed)
            except Exception as e:
                why = str(e) if isinstance(e, IsovistError) else where(e)
                log.error("scrub failed", why=why, again=pause)
                await trio.sleep(pause)
                pause = min(2 * pause, LATEST_S)
                self._since, self._soon = since, True
            else:
                pause = AGAIN_S
                self._dispatch(ev.ReceiptsIssued(now=_now()))

    async def _flush_models(self) -> None:
        self._may_flush = trio.Event()
        self._dispatch(ev.Scrubbing(now=_now()))
        await self._may_flush.wait()
        await self._caches.flush()
        # Whatever was being written there has its name now.
        await trio.to_thread.run_sync(_empty, self._snapshots)

    async def _due(self) -> None:
        """Wait until the store must be scrubbed."""
        while True:
            at = float("inf")
            if self._since is not None:
                at = min(self._last + QUIET_S, self._since + LONGEST_S)
            if self._soon or trio.current_time() >= at:
                return
            with trio.move_on_at(at):
                await self._changed.wait()

    # -- a user, a receipt

    def _owned(self, i: ins.Owned) -> None:
        try:
            units = self._store.owned(i.user)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.Owned(now=_now(), key=i.key, units=units))

    async def _purge(self, i: ins.Purge) -> None:
        await self._settled(i.user)
        # The records that still wait for company name the user too.
        self._flush()
        done: list[list[Outcome]] = []

        def then(e: Exception | None) -> None:
            # In its place among the commits: the index takes them in the order of the store.
            if e is not None:
                self._fail(i.key, e)
            else:
                self._first(partial(self._apply, i, done[0]))

        self._writer.run(lambda: done.append(self._store.purge(i.user, i.receipt, i.at)), then)

    def _apply(self, i: ins.Purge, outcomes: list[Outcome]) -> bool:
        try:
            self._store.apply(outcomes)
        except Exception as e:
            log.error("broken rule", rule="what is purged leaves the index", why=where(e))
            self._fail(i.key, e)
        else:
            purged = ev.Purged(now=_now(), key=i.key, user=i.user, outcomes=tuple(outcomes))
            self._dispatch(purged)
        return True

    def _find(self, i: ins.FindReceipt) -> None:
        try:
            receipt = self._store.receipt(i.receipt)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.ReceiptFound(now=_now(), key=i.key, receipt=receipt))


def _empty(folder: Path) -> None:
    """Remove the files in ``folder``, durably. Raises :class:`WorldError`."""
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
        for path in files:
            path.unlink(missing_ok=True)
        if files:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except FileNotFoundError:
        return
    except OSError as e:
        raise WorldError(f"{folder}: {e.strerror}") from None


def _now() -> int:
    return int(trio.current_time() * 1e9)
