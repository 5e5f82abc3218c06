"""The shell's part of files: bytes from and to disk in threads, changes in the writer's place.

Bytes are copied and hashed beside the loop, two at a time of one agent; then the change stands in
the writer's queue among all other writes, and becomes visible as they do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog
import trio

from isovist.kernel import beneath, contents
from isovist.kernel.confinement.workspace import prepare
from isovist.kernel.log import where
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.work import Piece
from isovist.kernel.writer import Writer
from isovist.storage.backend import Backend
from isovist.syscalls.abi.files import MAX_FILE
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, WorldError
from isovist.syscalls.file_operations import Changed, Content, HeldFile
from isovist.syscalls.operations import Outcome

log = structlog.get_logger()

T = TypeVar("T")
AT_ONCE, OF_ONE = 8, 2
"""Threads that copy at once, and those of one agent: a large file of one keeps nobody waiting."""
_FULL = (Errno.ENOSPC, Errno.EDQUOT)


class Files:
    """Carries out ``GetContent`` to ``LogFile``.

    ``store_folder`` is the content store, ``workspaces`` holds a folder an agent. ``show`` makes
    what changed in units visible; ``first`` queues a piece of work behind the writes that are
    durable already. Invariant: ``_making`` names all files of the content store that are written,
    or whose row is on its way.
    """

    def __init__(
        self,
        store: Backend,
        writer: Writer,
        nursery: trio.Nursery,
        store_folder: Path,
        workspaces: Path,
        *,
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
        first: Callable[[Piece], None],
        show: Callable[[Sequence[Outcome]], None],
    ) -> None:
        self._store, self._writer, self._nursery = store, writer, nursery
        self._folder, self._workspaces = store_folder, workspaces
        self._now, self._dispatch, self._fail = now, dispatch, fail
        self._first, self._show = first, show
        self._making: dict[int, str] = {}
        self._getting: dict[int, tuple[str, trio.Event]] = {}
        """Changes that do not stand in the writer's queue yet: their user, and when they do."""
        self._all = trio.CapacityLimiter(AT_ONCE)
        self._of: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.GetContent: self._begin,
            ins.DropContent: lambda i: self._discard(i.number),
            ins.ChangeFile: self._change,
            ins.ReadFile: lambda i: self._start(i.key, self._read, i),
            ins.FetchFile: lambda i: self._start(i.key, self._fetch, i),
            ins.ListFiles: self._list,
            ins.LogFile: self._log,
        }

    async def settled(self, user: str) -> None:
        """Wait until all changes for ``user`` that were asked for before are queued, or have
        failed: one that is still read would come after what forgets the user."""
        for whose, queued in list(self._getting.values()):
            if whose == user:
                await queued.wait()

    async def sweep(self) -> None:
        """Remove all files of the content store that no row names any more."""
        there = await trio.to_thread.run_sync(contents.names, self._folder)
        # What is made from here on was not there; what was made before stands in a row, or here.
        making = set(self._making.values())
        known = self._store.file_blobs()
        left = [name for name in there if name not in making and name not in known]
        await trio.to_thread.run_sync(contents.remove, self._folder, left)

    # -- changes

    def _begin(self, i: ins.GetContent) -> None:
        self._getting[i.number] = i.user, trio.Event()
        self._nursery.start_soon(self._get, i)

    async def _get(self, i: ins.GetContent) -> None:
        try:
            ready = await self._content(i)
        except Exception as e:
            self._discard(i.number)
            self._failed(i.number, e)
        else:
            self._dispatch(ready)
        finally:
            _, queued = self._getting.pop(i.number)
            queued.set()

    async def _content(self, i: ins.GetContent) -> ev.ContentReady:
        seen = None
        if i.kept is not None and i.view is not None:
            held = self._store.file(i.view, *i.kept)
            if held is None:
                what = "no file of that path in view, or no such version"
                raise CallerError(
                    what, errno=Errno.ENOENT, field="version" if i.kept[2] else "path"
                )
            seen, content = (held.id, held.version.version), held.content
            reread = partial(contents.reread, self._folder, content, i.path)
            texts, indexed = await self._thread(i.agent, reread)
        else:
            name = self._making[i.number] = os.urandom(16).hex()
            take = partial(self._take, i, name)
            content, texts, indexed = await self._thread(i.agent, take)
        return ev.ContentReady(
            now=self._now(),
            number=i.number,
            content=content,
            texts=texts,
            indexed=indexed,
            seen=seen,
        )

    def _take(self, i: ins.GetContent, name: str) -> tuple[Content, tuple[str, ...], int]:
        if i.body is not None:
            return contents.take_in(self._folder, name, (i.body,), i.path, "body")
        with beneath.reading(self._workspace(i.agent), i.file, "source", MAX_FILE) as fd:
            pieces = contents.pieces(fd)
            return contents.take_in(self._folder, name, pieces, i.file, "source")

    def _change(self, i: ins.ChangeFile) -> None:
        done: list[Changed] = []

        def then(e: Exception | None) -> None:
            if e is not None:
                self._discard(i.number)
                self._failed(i.number, e)
            else:
                # Writes that became durable before are queued by now, and are applied before.
                self._first(partial(self._apply, i.number, done[0]))

        self._writer.run(lambda: done.append(self._store.change_file(i.change)), then)

    def _apply(self, number: int, changed: Changed) -> bool:
        self._making.pop(number, None)  # its row names it, or it is among those that go
        if changed.blobs:
            self._nursery.start_soon(self._remove, changed.blobs)
        try:
            self._show(changed.outcomes)
        except Exception as e:
            # Durable, and searchable after the next start; until then nobody may wait for it.
            log.error("broken rule", rule="what is durable can be searched", why=where(e))
            self._failed(number, KernelError("not indexed"))
        else:
            self._dispatch(ev.FileChanged(now=self._now(), number=number, changed=changed))
        return True

    def _discard(self, number: int) -> None:
        """Nothing will come of these bytes."""
        if name := self._making.pop(number, ""):
            self._nursery.start_soon(self._remove, (name,))

    async def _remove(self, blobs: tuple[str, ...]) -> None:
        try:
            await trio.to_thread.run_sync(contents.remove, self._folder, blobs)
        except WorldError as e:
            log.error("bytes of a file cannot be removed", why=str(e), again="at the next scrub")

    def _failed(self, number: int, e: Exception) -> None:
        e = _typed(e)
        self._dispatch(
            ev.FileFailed(
                now=self._now(),
                number=number,
                errno=int(e.errno),
                message=e.message,
                field=e.field,
            )
        )

    # -- reads

    def _start(self, key: int, read: Callable[[Any], Any], i: ins.ReadFile | ins.FetchFile) -> None:
        async def run() -> None:
            try:
                held, body = await read(i)
            except Exception as e:
                self._fail(key, _typed(e))
            else:
                self._dispatch(ev.FileFound(now=self._now(), key=key, held=held, body=body))

        self._nursery.start_soon(run)

    def _held(self, i: ins.ReadFile | ins.FetchFile) -> HeldFile | None:
        return self._store.file(i.view, i.space, i.path, i.version)

    async def _read(self, i: ins.ReadFile) -> tuple[HeldFile | None, bytes]:
        return await self._with(
            i, lambda held: contents.part_of(self._folder, held.content, i.offset, i.limit)
        )

    async def _fetch(self, i: ins.FetchFile) -> tuple[HeldFile | None, bytes]:
        def write(held: HeldFile) -> bytes:
            pieces = contents.pieces_of(self._folder, held.content)
            root = self._workspace(i.agent)
            beneath.write(root, i.target, "target", pieces, replace=i.replace)
            return b""

        return await self._with(i, write)

    async def _with(
        self, i: ins.ReadFile | ins.FetchFile, do: Callable[[HeldFile], bytes]
    ) -> tuple[HeldFile | None, bytes]:
        """Do something with the bytes of a version, in a thread. Between finding it and opening it
        it may have had to go: then it is looked for once more."""
        held = self._held(i)
        if held is None:
            return None, b""
        try:
            return held, await self._thread(i.agent, partial(do, held))
        except FileNotFoundError:
            again = self._held(i)
            if again is None:
                return None, b""
            if again.content.blob == held.content.blob:
                raise WorldError("the bytes of this version are missing on disk") from None
            return again, await self._thread(i.agent, partial(do, again))

    def _list(self, i: ins.ListFiles) -> None:
        try:
            files, last = self._store.files(i.view, i.spaces, i.prefix, i.after, i.limit)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.FilesListed(now=self._now(), key=i.key, files=files, last=last))

    def _log(self, i: ins.LogFile) -> None:
        try:
            found = self._store.file_log(i.view, i.space, i.path)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.FileLogged(now=self._now(), key=i.key, found=found))

    # -- threads and folders

    async def _thread(self, agent: str, work: Callable[[], T]) -> T:
        own = self._of.setdefault(agent, trio.CapacityLimiter(OF_ONE))
        async with own, self._all:
            return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))

    def _workspace(self, agent: str) -> Path:
        return prepare(self._workspaces, agent)


def _typed(e: Exception) -> IsovistError:
    if isinstance(e, IsovistError):
        return e
    if isinstance(e, OSError):
        full = e.errno in _FULL
        why = "the disk is full" if full else f"a file failed: {e.strerror}"
        return WorldError(why, errno=Errno.ENOSPC if full else Errno.EIO)
    log.error("broken rule", rule="files raise typed errors only", why=where(e))
    return KernelError(f"the kernel broke: {type(e).__name__}")
