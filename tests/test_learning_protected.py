"""What the kernel knows as protected of a user: all of it, anew only where it has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio
from storage_helpers import DIM, EMBEDDER, T0, Drop, put, write

from isovist.kernel.learning import protected
from isovist.kernel.learning.protected import USERS, Protected
from isovist.kernel.learning.scan import Facts, scan
from isovist.kernel.state.views import belonging
from isovist.storage.memory import MemoryStore
from isovist.syscalls.operations import Replace
from isovist.syscalls.records import partition_of

PAIR = partition_of("pair", "ana", "p")


class Desk:
    """A store, and how many texts facts were made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore(EMBEDDER.name, DIM)
        self.store.restore()
        self.known = Protected(self.store, trio.CapacityLimiter(1))
        self.read: list[str] = []
        made = Facts.of

        def of(texts: Iterable[str], **more: Any) -> Facts:
            texts = tuple(texts)
            self.read += texts
            return made(texts, **more)

        monkeypatch.setattr(protected.Facts, "of", of)

    async def cut(self, text: str, user: str = "ana") -> int:
        own = belonging(user, [partition_of(s, user, "p") for s in ("pair", "user")])
        return scan(text, await self.known.facts(user, own)).cut


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


@pytest.mark.promise("protected.stays")
async def test_all_that_a_user_alone_may_read_is_known(desk: Desk) -> None:
    write(
        desk.store, *(put(n, f"case number {70000 + n}", stream="protected") for n in range(1, 250))
    )
    write(desk.store, put(1, "badge 512345", scope="user", stream="protected"))
    write(desk.store, put(2, "port 80818", scope="user", stream="reusable"))
    for known in ("70001", "70249", "512345"):
        assert await desk.cut(f"Use {known} here.") == 1, known
    assert await desk.cut("Use 80818 here.") == 0
    assert await desk.cut("Use 70001 here.", user="bo") == 0


async def test_only_what_has_changed_is_worked_out_anew(desk: Desk) -> None:
    write(desk.store, put(1, "badge 512345", stream="protected"))
    write(desk.store, put(2, "badge 612345", stream="protected"))
    assert await desk.cut("512345") == 1
    assert len(desk.read) == 2
    write(desk.store, put(3, "badge 712345", stream="protected"))
    assert await desk.cut("712345") == 1
    assert desk.read[2:] == ["badge 712345"]
    change = Replace(
        partition=PAIR, seq=4, id="pair-ana-p-1", version=1, text="badge 812345", stored_at=T0
    )
    write(desk.store, change, Drop(partition=PAIR, seq=5, id="pair-ana-p-2"))
    assert await desk.cut("812345") == 1
    for gone in ("512345", "612345"):
        assert await desk.cut(gone) == 0, gone


@pytest.mark.promise("erase.complete")
async def test_what_is_kept_goes_when_it_is_told_to(desk: Desk) -> None:
    write(desk.store, put(1, "badge 512345", stream="protected"))
    await desk.cut("x")
    assert "512345" in repr(desk.known._kept)
    desk.known.forget()
    assert "512345" not in repr(desk.known._kept)
    assert await desk.cut("512345") == 1


async def test_few_users_are_kept(desk: Desk) -> None:
    for n in range(USERS + 5):
        await desk.cut("x", user=f"user{n}")
    assert len(desk.known._kept) == USERS
