"""The operator's work in the shell: grants and groups made durable, backups of the running store,
statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.writer import Writer
from isovist.storage.backend import Backend
from isovist.syscalls.errors import Errno, IsovistError


class Admin:
    """Carries out ``SaveGrant``, ``SaveApproval``, ``SaveGroup``, ``SaveLimits``, ``Measure``,
    ``Meter`` and ``Backup``;
    ``fail(key, error)`` ends a call whose work failed, ``flush`` hands the waiting audit records to
    the writer. ``first`` is done in the writer's thread before anything is saved, and nothing is
    where that fails: no grant without its line in the chronicle."""

    def __init__(
        self,
        store: Backend,
        writer: Writer,
        nursery: trio.Nursery,
        *,
        figures: Callable[[], dict[str, int]],
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
        flush: Callable[[], None],
        first: Callable[[], None],
    ) -> None:
        self._store, self._writer, self._nursery = store, writer, nursery
        self._figures, self._flush, self._first = figures, flush, first
        self._now, self._dispatch, self._fail = now, dispatch, fail

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.SaveGrant: lambda i: self._save(i.key, partial(self._store.save_grant, *_held(i))),
            ins.SaveApproval: lambda i: self._save(
                i.key,
                partial(self._store.save_approval, i.grant.agent, i.approval, *_held(i.grant)[1:]),
            ),
            ins.SaveDistrust: lambda i: self._save(
                i.key, partial(self._store.save_distrust, i.agent, i.on)
            ),
            ins.FindPublished: lambda i: self._nursery.start_soon(self._find_published, i),
            ins.SaveGroup: lambda i: self._save(
                i.key, partial(self._store.save_group, i.of, i.name, i.members)
            ),
            ins.SaveLimits: lambda i: self._save(
                i.key, partial(self._store.save_limits, i.axis, i.name, i.figures)
            ),
            ins.Measure: self._measure,
            ins.Meter: lambda i: self._nursery.start_soon(self._meter, i),
            ins.Backup: lambda i: self._nursery.start_soon(self._backup, i),
        }

    def _save(self, key: int, work: Callable[[], None]) -> None:
        def both() -> None:
            self._first()
            work()

        def then(e: Exception | None) -> None:
            if e is None:
                self._dispatch(ev.Saved(now=self._now(), key=key))
            else:
                self._fail(key, e)

        self._writer.run(both, then)

    async def _find_published(self, i: ins.FindPublished) -> None:
        """In a thread, as it looks at every unit; behind the writes that are on their way."""
        written = trio.Event()
        self._writer.run(lambda: None, lambda e: written.set())
        await written.wait()
        work = partial(self._store.published, i.agent, i.hidden, i.limit, i.skip)
        try:
            units = await trio.to_thread.run_sync(work)
        except Exception as e:
            self._dispatch(
                ev.PublishedFound(
                    now=self._now(),
                    agent=i.agent,
                    errno=int(e.errno if isinstance(e, IsovistError) else Errno.EIO),
                    message="the store could not be searched for what it published",
                )
            )
        else:
            self._dispatch(ev.PublishedFound(now=self._now(), agent=i.agent, units=units))

    def _measure(self, i: ins.Measure) -> None:
        self._dispatch(ev.Measured(now=self._now(), key=i.key, figures=self._figures()))

    async def _meter(self, i: ins.Meter) -> None:
        """Behind the records that still wait for company: every call that has been answered counts.
        Beside the writer, as it may take long."""
        self._flush()
        written = trio.Event()
        self._writer.run(lambda: None, lambda e: written.set())
        await written.wait()
        try:
            work = partial(self._store.usage, i.by, i.since, i.until)
            usage = await trio.to_thread.run_sync(work)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.Metered(now=self._now(), key=i.key, usage=usage))

    async def _backup(self, i: ins.Backup) -> None:
        """In a thread of its own, with connections of its own: writers and readers go on. A
        kernel that stops waits for it, since a thread cannot be stopped."""
        try:
            size = await trio.to_thread.run_sync(self._store.backup, i.path)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.Saved(now=self._now(), key=i.key, bytes=size))


def _held(grant: ins.SaveGrant) -> tuple[Any, ...]:
    return grant.agent, grant.users, grant.scopes, grant.mail, grant.tools
