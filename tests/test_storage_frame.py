"""A view's frame is kept while nothing that it shows changes, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_helpers import DIM, EMBEDDER, embedded, put, search, view, write

from isovist.storage import frame as module
from isovist.storage.indexed import IndexedEngine, Tuning
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.operations import Drop, Expire, Op

ANA = view("ana", "p")


class Pair:
    """An indexed store and its oracle."""

    def __init__(self, path: Path, tuning: Tuning) -> None:
        self.store = Store.open(path / "isovist.db", EMBEDDER.name, DIM, tuning=tuning)
        self.oracle = MemoryStore(EMBEDDER.name, DIM)
        self.store.restore()

    def write(self, *ops: Op) -> None:
        write(self.store, *ops)
        write(self.oracle, *ops)

    def agree(self) -> None:
        """Often enough for whole columns to be put together, and to be used again."""
        for text in ("tea", "tea with ana", "coffee", "tea", "ana"):
            for mode in ("hybrid", "bm25", "dense", "rrf"):
                asked = search(text, mode=mode)
                found = self.store.select(ANA, asked, embedded(text))
                assert found == self.oracle.select(ANA, asked, embedded(text))

    @property
    def kept(self) -> list[module.Frame]:
        engine = self.store._engine
        assert isinstance(engine, IndexedEngine)
        return [frame for _, frame in engine._frames._kept.values()]


@pytest.fixture(params=[Tuning(), Tuning(narrow=0, delta=1, crossover=0)], ids=["narrow", "wide"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    pair = Pair(tmp_path, request.param)
    scopes = ("pair", "user", "agent", "global")
    pair.write(*(put(1, f"ana has tea {scope}", scope=scope) for scope in scopes))
    pair.write(put(1, "bob has tea", user="bob"))
    pair.agree()
    return pair


def test_it_stays_while_others_write(pair: Pair) -> None:
    kept = pair.kept
    assert len(kept) == 1
    assert kept[0].settled
    pair.write(put(2, "bob has more tea", user="bob"))
    pair.agree()
    assert pair.kept[0] is kept[0]
    pair.store.close()


@pytest.mark.parametrize("scope", ["pair", "user", "agent", "global"])
def test_it_goes_with_a_write_of_its_own(pair: Pair, scope: str) -> None:
    pair.write(put(2, "coffee for ana", scope=scope))
    assert pair.kept == []
    pair.agree()
    partition = put(1, "", scope=scope).partition
    pair.write(
        Expire(
            partition=partition, seq=4, id=f"{scope}-ana-p-2", version=1, expires_at=1, stored_at=2
        )
    )
    pair.agree()
    pair.write(Drop(partition=partition, seq=5, id=f"{scope}-ana-p-1"))
    pair.agree()
    pair.store.close()


def test_a_link_between_partitions_reaches_it(pair: Pair) -> None:
    newer = put(2, "ana drinks coffee", scope="user", supersedes="global-ana-p-1")
    pair.write(newer)
    pair.agree()
    pair.write(Drop(partition=newer.partition, seq=4, id=newer.id))
    pair.agree()
    pair.store.close()


def test_only_so_many_are_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    for agent in "pqrs":
        pair.store.select(view("ana", agent), search("tea"), embedded("tea"))
        assert len(pair.kept) <= 2
    monkeypatch.setattr(module, "SLOTS", 1)
    pair.store.select(view("ana", "t"), search("tea"), embedded("tea"))
    assert len(pair.kept) == 1
    pair.agree()
    pair.store.close()
