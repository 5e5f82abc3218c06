"""The shell's part of saved contexts: the store's rows, and the files of models' states.

A file is derived: it is named by the id of its context, and means nothing once no context has that
id. So it goes with its context, an erasure may take all files, and a start removes those that an
earlier life left without one. A driver writes only what the text of the context holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import structlog
import trio

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.writer import Writer
from isovist.storage.backend import Backend
from isovist.storage.contexts import Ready, prepare
from isovist.syscalls.errors import Errno, IsovistError, WorldError
from isovist.syscalls.operations import Context

log = structlog.get_logger()

USELESS = (Errno.ESTALE, Errno.EIO, Errno.EMSGSIZE)
"""What a driver says of a file that it will never take in: another model's, or damaged."""


class Keepers(Protocol):
    """What drivers do with states; see :class:`isovist.kernel.llm.Models`."""

    async def snapshot(self, model: str, context: Context, path: str, owner: str) -> int: ...
    async def restore(self, model: str, path: str, owner: str) -> int: ...


class Contexts:
    """Carries out ``SaveContext`` to ``Restore``. The files in ``folder`` take ``room`` bytes
    together at most: those used least recently go first."""

    def __init__(
        self,
        store: Backend,
        writer: Writer,
        nursery: trio.Nursery,
        models: Keepers,
        folder: Path,
        room: int,
        *,
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._store, self._writer, self._nursery = store, writer, nursery
        self._models, self._folder, self._room = models, folder, room
        self._now, self._dispatch, self._fail = now, dispatch, fail
        # The guard computes: beside the loop and the writer, one text at a time.
        self._guard = trio.CapacityLimiter(1)
        self._cleaning: dict[int, tuple[str, trio.Event]] = {}
        """Saves that do not stand in the writer's queue yet: their user, and when they do."""

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.SaveContext: self._begin,
            ins.FindContext: self._find,
            ins.ListContexts: self._list,
            ins.DropContext: self._drop,
            ins.Snapshot: lambda i: self._nursery.start_soon(self._snapshot, i),
            ins.Restore: lambda i: self._nursery.start_soon(self._restore, i),
        }

    # -- the store

    async def settled(self, user: str) -> None:
        """Wait until all saves for ``user`` that were asked for before are queued, or have failed:
        one that the guard still reads would come after what forgets the user."""
        for whose, queued in list(self._cleaning.values()):
            if whose == user:
                await queued.wait()

    def _begin(self, i: ins.SaveContext) -> None:
        self._cleaning[i.key] = i.context.user, trio.Event()
        self._nursery.start_soon(self._save, i)

    async def _save(self, i: ins.SaveContext) -> None:
        try:
            ready = await trio.to_thread.run_sync(prepare, i.context, limiter=self._guard)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._queue(i, ready)
        finally:
            _, queued = self._cleaning.pop(i.key)
            queued.set()

    def _queue(self, i: ins.SaveContext, ready: Ready) -> None:
        replaced: list[str] = []

        def work() -> None:
            replaced.append(self._store.save_context(ready, i.most, i.most_bytes))

        def then(e: Exception | None) -> None:
            if e is not None:
                self._fail(i.key, e)
                return
            self._remove(replaced[0])
            self._dispatch(
                ev.ContextSaved(
                    now=self._now(),
                    key=i.key,
                    context=ready.context,
                    bytes=ready.bytes,
                    replaced=bool(replaced[0]),
                    secrets=ready.secrets,
                )
            )

        self._writer.run(work, then)

    def _drop(self, i: ins.DropContext) -> None:
        dropped: list[str] = []

        def then(e: Exception | None) -> None:
            if e is not None:
                self._fail(i.key, e)
                return
            self._remove(dropped[0])
            found = bool(dropped[0])
            self._dispatch(ev.ContextDropped(now=self._now(), key=i.key, found=found))

        self._writer.run(
            lambda: dropped.append(self._store.drop_context(i.user, i.agent, i.name)), then
        )

    def _find(self, i: ins.FindContext) -> None:
        try:
            found = self._store.context(i.user, i.agent, i.name)
            state = found is not None and self._path(found).exists()
        except Exception as e:
            self._fail(i.key, e)
        else:
            event = ev.ContextFound(now=self._now(), key=i.key, context=found, state=state)
            self._dispatch(event)

    def _list(self, i: ins.ListContexts) -> None:
        try:
            kept = self._store.contexts(i.user, i.agent)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.ContextsListed(now=self._now(), key=i.key, contexts=kept))

    # -- states

    async def _snapshot(self, i: ins.Snapshot) -> None:
        """Whatever fails, the text is there: the call hears of 0 tokens."""
        tokens, path = 0, self._path(i.context)
        try:
            tokens = await self._models.snapshot(i.model, i.context, str(path), i.owner)
            if tokens and self._holds(i.context):
                await trio.to_thread.run_sync(_make_room, self._folder, self._room)
            else:
                # It was dropped or replaced while the driver wrote: whoever did that found no file.
                self._remove(i.context.id)
            tokens = tokens if path.exists() else 0
        except (IsovistError, OSError) as e:
            log.warning("a state was not kept", model=i.model, why=str(e))
            tokens = 0
            self._remove(i.context.id)
        self._dispatch(ev.ContextKept(now=self._now(), key=i.key, tokens=tokens))

    async def _restore(self, i: ins.Restore) -> None:
        tokens, path = 0, self._path(i.context)
        try:
            tokens = await self._models.restore(i.model, str(path), i.owner)
            os.utime(path)  # the least recently used goes first
        except FileNotFoundError:
            pass  # an erasure has just taken it
        except (IsovistError, OSError) as e:
            log.info("a state is of no use", model=i.model, why=str(e))
            if isinstance(e, IsovistError) and e.errno in USELESS:
                self._remove(i.context.id)
        self._dispatch(ev.ContextKept(now=self._now(), key=i.key, tokens=tokens))

    def _holds(self, context: Context) -> bool:
        found = self._store.context(context.user, context.agent, context.name)
        return found is not None and found.id == context.id

    def _path(self, context: Context) -> Path:
        return self._folder / context.id

    def _remove(self, id_: str) -> None:
        """Have the state of a context removed, if it has one; a large file takes its time."""
        if id_:
            self._nursery.start_soon(trio.to_thread.run_sync, _unlink, self._folder / id_)


def sweep(folder: Path, known: Collection[str]) -> None:
    """Make the folder, and remove what an earlier life left there that is the state of none of the
    ``known`` contexts. Raises :class:`WorldError`."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in folder.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)
    except OSError as e:
        raise WorldError(f"{e.filename or folder}: {e.strerror}") from None


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.part").unlink(missing_ok=True)
    except OSError as e:
        log.error("a state cannot be removed", why=e.strerror)


def _make_room(folder: Path, room: int) -> None:
    """Remove the files used least recently until all take ``room`` bytes at most."""
    files = sorted((s.st_mtime_ns, s.st_size, p) for p in folder.iterdir() if (s := p.stat()))
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= room:
            return
        path.unlink(missing_ok=True)
        total -= size
