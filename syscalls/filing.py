"""The ``file`` syscalls of both clients: files with versions, in spaces by scope."""

from __future__ import annotations

from typing import TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi import files as f
from isovist.syscalls.options import (
    CallOptions,
    FileFetchOptions,
    FileListOptions,
    FileMoveOptions,
    FileOptions,
    FileReadOptions,
    FileRollbackOptions,
    FileSearchOptions,
    FileWriteOptions,
)

R = TypeVar("R", bound=m.Reply)


class FileCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def file_write(
        self, path: str, body: bytes | str, **options: Unpack[FileWriteOptions]
    ) -> f.FileStored:
        """Write a version of at most 256 KiB; a text is stored as UTF-8."""
        data = body.encode() if isinstance(body, str) else body
        return self._ask(f.FileWrite(path=path, body=data, **options), f.FileStored)

    def file_read(self, path: str, **options: Unpack[FileReadOptions]) -> f.FileData:
        """At most 256 KiB of a version, from ``offset`` on."""
        return self._ask(f.FileRead(path=path, **options), f.FileData)

    def file_list(self, **options: Unpack[FileListOptions]) -> f.FileList:
        """A page of the files in view, by space and path."""
        return self._ask(f.FileListing(**options), f.FileList)

    def file_log(self, path: str, **options: Unpack[FileOptions]) -> f.FileVersions:
        """The versions of a file, newest first: who made them, when and why."""
        return self._ask(f.FileLog(path=path, **options), f.FileVersions)

    def file_rollback(
        self, path: str, version: int, **options: Unpack[FileRollbackOptions]
    ) -> f.FileStored:
        """A new version with the bytes of an older one."""
        request = f.FileRollback(path=path, version=version, **options)
        return self._ask(request, f.FileStored)

    def file_move(self, path: str, **options: Unpack[FileMoveOptions]) -> f.FileStored:
        """Another path, audience or writers for an own file."""
        return self._ask(f.FileMove(path=path, **options), f.FileStored)

    def file_share(
        self, path: str, to_scope: str, scope: str = "pair", **options: Unpack[CallOptions]
    ) -> f.FileStored:
        """Another audience for an own file, under the same path."""
        request = f.FileMove(path=path, scope=scope, to_scope=to_scope, **options)
        return self._ask(request, f.FileStored)

    def file_delete(
        self,
        path: str,
        scope: str = "pair",
        expect: int | None = None,
        **options: Unpack[CallOptions],
    ) -> f.FileDeleted:
        """Delete an own file with all its versions."""
        request = f.FileDelete(path=path, scope=scope, expect=expect, **options)
        return self._ask(request, f.FileDeleted)

    def file_put(
        self, path: str, source: str = "", **options: Unpack[FileWriteOptions]
    ) -> f.FileStored:
        """Write a version from a file in the agent's workspace folder."""
        request = f.FilePut(path=path, source=source, **options)
        return self._ask(request, f.FileStored)

    def file_fetch(self, path: str, **options: Unpack[FileFetchOptions]) -> f.FileStored:
        """Write a version out into the agent's workspace folder."""
        return self._ask(f.FileFetch(path=path, **options), f.FileStored)

    def file_search(self, query: str, **options: Unpack[FileSearchOptions]) -> f.FileHits:
        """Files in view by name, words and meaning."""
        return self._ask(f.FileSearch(query=query, **options), f.FileHits)


class AsyncFileCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def file_write(
        self, path: str, body: bytes | str, **options: Unpack[FileWriteOptions]
    ) -> f.FileStored:
        """Write a version of at most 256 KiB; a text is stored as UTF-8."""
        data = body.encode() if isinstance(body, str) else body
        return await self._ask(f.FileWrite(path=path, body=data, **options), f.FileStored)

    async def file_read(self, path: str, **options: Unpack[FileReadOptions]) -> f.FileData:
        """At most 256 KiB of a version, from ``offset`` on."""
        return await self._ask(f.FileRead(path=path, **options), f.FileData)

    async def file_list(self, **options: Unpack[FileListOptions]) -> f.FileList:
        """A page of the files in view, by space and path."""
        return await self._ask(f.FileListing(**options), f.FileList)

    async def file_log(self, path: str, **options: Unpack[FileOptions]) -> f.FileVersions:
        """The versions of a file, newest first: who made them, when and why."""
        return await self._ask(f.FileLog(path=path, **options), f.FileVersions)

    async def file_rollback(
        self, path: str, version: int, **options: Unpack[FileRollbackOptions]
    ) -> f.FileStored:
        """A new version with the bytes of an older one."""
        request = f.FileRollback(path=path, version=version, **options)
        return await self._ask(request, f.FileStored)

    async def file_move(self, path: str, **options: Unpack[FileMoveOptions]) -> f.FileStored:
        """Another path, audience or writers for an own file."""
        return await self._ask(f.FileMove(path=path, **options), f.FileStored)

    async def file_share(
        self, path: str, to_scope: str, scope: str = "pair", **options: Unpack[CallOptions]
    ) -> f.FileStored:
        """Another audience for an own file, under the same path."""
        request = f.FileMove(path=path, scope=scope, to_scope=to_scope, **options)
        return await self._ask(request, f.FileStored)

    async def file_delete(
        self,
        path: str,
        scope: str = "pair",
        expect: int | None = None,
        **options: Unpack[CallOptions],
    ) -> f.FileDeleted:
        """Delete an own file with all its versions."""
        request = f.FileDelete(path=path, scope=scope, expect=expect, **options)
        return await self._ask(request, f.FileDeleted)

    async def file_put(
        self, path: str, source: str = "", **options: Unpack[FileWriteOptions]
    ) -> f.FileStored:
        """Write a version from a file in the agent's workspace folder."""
        request = f.FilePut(path=path, source=source, **options)
        return await self._ask(request, f.FileStored)

    async def file_fetch(self, path: str, **options: Unpack[FileFetchOptions]) -> f.FileStored:
        """Write a version out into the agent's workspace folder."""
        return await self._ask(f.FileFetch(path=path, **options), f.FileStored)

    async def file_search(self, query: str, **options: Unpack[FileSearchOptions]) -> f.FileHits:
        """Files in view by name, words and meaning."""
        return await self._ask(f.FileSearch(query=query, **options), f.FileHits)
