"""The part of a backend that keeps learning: the same tables, on disk and in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from isovist.storage import learning
from isovist.storage.learning import Filed, Source, Work
from isovist.syscalls.records import Submission


class KeepsLearning:
    """What :class:`~isovist.storage.backend.Backend` says of learning, over the tables of
    :data:`isovist.storage.schema.LEARNING`."""

    def _learning(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        """The connection that holds the tables: to write in a transaction (any one thread at a
        time), or to read (the loop's thread)."""
        raise NotImplementedError

    def _version_of(self, unit: str) -> int:
        """The unit's version, in the transaction that writes; 0: there is none."""
        raise NotImplementedError

    def submit(self, filed: Filed, most: int) -> tuple[Submission, bool]:
        with self._learning(write=True) as db:
            return learning.submit(db, filed, most)

    def save_step(self, report: Submission, work: Work) -> bool:
        with self._learning(write=True) as db:
            return learning.step(db, report, work)

    def conclude(self, report: Submission) -> bool:
        with self._learning(write=True) as db:
            return learning.conclude(db, report)

    def submission(self, id: str) -> tuple[Submission, Work | None] | None:
        with self._learning(write=False) as db:
            return learning.find(db, id)

    def submissions(self, user: str, agent: str, limit: int) -> tuple[Submission, ...]:
        with self._learning(write=False) as db:
            return learning.latest(db, user, agent, limit)

    def unlearned(self) -> tuple[tuple[str, str, str], ...]:
        with self._learning(write=False) as db:
            return learning.waiting(db)

    def sources(self, units: Collection[str]) -> dict[str, Source]:
        with self._learning(write=False) as db:
            return learning.sources(db, units)

    def from_user(self, user: str) -> frozenset[str]:
        with self._learning(write=False) as db:
            return learning.from_user(db, user)

    def fresh_entries(self, limit: int) -> tuple[str, ...]:
        with self._learning(write=False) as db:
            return learning.fresh(db, limit)

    def entries_looked_at(self, entries: Sequence[tuple[str, int]]) -> None:
        with self._learning(write=True) as db:
            seen = [unit for unit, version in entries if self._version_of(unit) == version]
            learning.looked_at(db, seen)

    def save_consent(self, user: str, choice: str) -> None:
        with self._learning(write=True) as db:
            learning.save_consent(db, user, choice)

    def consents(self) -> dict[str, str]:
        with self._learning(write=False) as db:
            return learning.consents(db)
