"""What the kernel knows as protected of each user, as the facts that a scan looks for.

It is read out of the store for every attempt, but worked out anew only for what has changed: a
person may have thousands of protected units. It is kept in memory alone, for few users, and goes
with the next scrub, so that no forgotten word stays here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partial

import trio

from isovist.kernel.learning.scan import Facts
from isovist.storage.backend import Backend
from isovist.syscalls.operations import ListQuery
from isovist.syscalls.records import View

PAGE = 100
"""Units that are read between two turns of the loop."""
USERS = 16
"""Users whose facts are kept, those asked for last."""
Versions = dict[str, int]


class Protected:
    """``limiter`` bounds how many texts are worked on at a time, beside the loop."""

    def __init__(self, store: Backend, limiter: trio.CapacityLimiter) -> None:
        self._store, self._limiter = store, limiter
        self._forgot = 0
        self._kept: OrderedDict[str, tuple[Versions, Facts]] = OrderedDict()

    async def facts(self, user: str, own: View) -> Facts:
        """The facts of all protected units in ``own``, which ``user`` alone may read."""
        texts: dict[str, str] = {}
        versions: Versions = {}
        known, facts = self._kept.pop(user, ({}, Facts.of(())))
        forgot = self._forgot
        after = ""
        while True:
            query = ListQuery(limit=PAGE, now=time.time_ns(), after=after)
            selection = self._store.select(own, query)
            for unit in selection.units():
                if unit.stream == "protected":
                    versions[unit.id] = unit.version
                    if known.get(unit.id) != unit.version:
                        texts[unit.id] = unit.text
            after = selection.next
            if not after:
                break
            await trio.lowlevel.checkpoint()
        if any(versions.get(unit) != version for unit, version in known.items()):
            # What is gone, or has other words, was mixed with the rest.
            self._kept.pop(user, None)
            return await self.facts(user, own)
        if texts:
            new = await trio.to_thread.run_sync(
                partial(Facts.of, tuple(texts.values())), limiter=self._limiter
            )
            facts = facts | new
        if forgot == self._forgot:
            self._kept[user] = versions, facts
        while len(self._kept) > USERS:
            self._kept.popitem(last=False)
        return facts

    def forget(self) -> None:
        """Keep nothing, nor what is being worked out."""
        self._forgot += 1
        self._kept.clear()
