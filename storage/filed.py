"""The part of a backend that keeps files: the same tables, on disk and in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager

from isovist.storage import files
from isovist.syscalls.abi.files import FileInfo, FileVersion
from isovist.syscalls.errors import error
from isovist.syscalls.file_operations import HeldFile
from isovist.syscalls.operations import Outcome
from isovist.syscalls.records import Partition, View


class KeepsFiles:
    """What :class:`~isovist.storage.backend.Backend` says of reading files, over the tables of
    :data:`isovist.storage.schema.FILES`."""

    def _learning(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        """The connection that holds the tables; see :mod:`isovist.storage.learned`."""
        raise NotImplementedError

    def file(self, view: View, space: Partition, path: str, version: int = 0) -> HeldFile | None:
        with self._learning(write=False) as db:
            return files.find(db, view, space, path, version)

    def file_log(
        self, view: View, space: Partition, path: str
    ) -> tuple[FileInfo, tuple[FileVersion, ...]] | None:
        with self._learning(write=False) as db:
            return files.log(db, view, space, path)

    def files(
        self,
        view: View,
        spaces: Sequence[Partition],
        prefix: str,
        after: tuple[Partition, str] | None,
        limit: int,
    ) -> tuple[tuple[FileInfo, ...], tuple[Partition, str] | None]:
        with self._learning(write=False) as db:
            return files.listing(db, view, spaces, prefix, after, limit)

    def file_bytes(self, agent: str = "", user: str = "") -> int:
        with self._learning(write=False) as db:
            return files.bytes_of(db, agent, user)

    def file_blobs(self) -> frozenset[str]:
        with self._learning(write=False) as db:
            return files.blobs(db)


def check_all(outcomes: Sequence[Outcome]) -> None:
    """Raises the first refusal: a file and the units by which it is found go together."""
    for outcome in outcomes:
        if outcome.errno:
            raise error(outcome.errno, outcome.message, outcome.field)
