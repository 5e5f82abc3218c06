"""What a demand to forget fits: every content word, every phrase, and nothing by likeness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from storage_helpers import DIM, EMBEDDER, T0, put, view, write

from isovist.storage.backend import Backend
from isovist.storage.matching import pattern
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import Drop, MatchQuery, Replace

KINDS: list[Literal["indexed", "memory"]] = ["indexed", "memory"]


@pytest.mark.parametrize(
    ("query", "text", "fits"),
    [
        ("parrot", "The parrot sings", True),
        ("Parrots", "the PARROT sings", True),
        ("the parrot's songs", "A parrot's song", True),
        ("parrot cage", "The cage of the parrot", True),
        ("parrot cage", "The parrot sings", False),
        ("parrot cage", "The bird's cage", False),
        ("what did I say about the parrot?", "The parrot sings", False),
        ("where is the parrot", "The parrot sings", True),
        ("parrot", "The parakeet sings", False),
        ("api-v2_final", "deploy api-v2_final now", True),
        ("api-v2_final", "the final api is v2", False),
        ("final api", "deploy api-v2_final now", True),
        ("密码", "我的密码是鹦鹉", True),
        ("密码 鹦鹉", "我的密码是鹦鹉", True),
        ("码密", "我的密码是鹦鹉", False),
        ("café", "the cafe opens", True),
        ("🎉", "party 🎉🎉", True),
        ("🎉", "party", False),
        ("👍", "fine 👍🏽", True),
        ("👍🏽", "fine 👍", False),
        ('"the parrot sings"', "So THE  parrot\nsings.", True),
        ('"the parrot sings"', "The parrot never sings", False),
        ('"parrot sing"', "The parrot sings", False),
        ('"arrot"', "The parrot sings", False),
        ('"to be or not to be, parrot"', "to be or not to be, parrot!", True),
        ('"parrot" cage', "the parrot has a cage", True),
        ('"parrot" cage', "the parrot sings", False),
        ("“parrot sings”", "the parrot sings", True),
        ('5" parrot', "a parrot of 5", True),
        ('"码是"', "我的密码是鹦鹉", True),
        ('"" parrot', "a parrot", True),
        ('"-x" parrot', "run -x for the parrot", True),
        ("parrot OR zebra", "the parrot sings", False),
        ("parr*", "the parrot sings", False),
    ],
)
def test_a_text_fits_iff_it_holds_all(query: str, text: str, fits: bool) -> None:
    assert pattern(query).fits(text) is fits


@pytest.mark.parametrize(
    "query", ["", "what is it?", "?!", '""', '"the"', '"who is" the', "\u200d"]
)
def test_a_query_that_names_nothing_is_refused(query: str) -> None:
    with pytest.raises(CallerError) as e:
        pattern(query)
    assert (e.value.errno, e.value.field) == (Errno.EINVAL, "query")


@pytest.fixture(params=KINDS)
def store(request: Any, tmp_path: Path) -> Iterator[Backend]:
    store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM, engine=request.param)
    store.restore()
    yield store
    store.close()


def matched(
    store: Backend, text: str, user: str = "ana", agent: str = "p", **more: Any
) -> set[str]:
    """The units that match, over all pages."""
    fields = {"limit": 2, "now": T0 + 10**9, **more}
    found: list[str] = []
    after = ""
    while True:
        page = store.select(view(user, agent), MatchQuery(text=text, after=after, **fields))
        found += [c.hit.unit.id for c in page.candidates]
        if not page.next:
            assert len(set(found)) == len(found)
            return set(found)
        after = page.next


def test_a_match_is_the_readers_own_and_is_in_its_view(store: Backend) -> None:
    mine = [
        put(1, "the parrot sings"),
        put(2, "a parrot", scope="user"),
        put(3, "parrots", kind="lesson", expires_at=T0 + 10**8),  # not swept yet
    ]
    decoys = [
        put(4, "the zebra sings"),
        put(1, "a parrot", user="bob"),
        put(1, "a parrot", agent="q"),
        put(3, "a parrot of q's", scope="user", agent="q"),
        put(1, "a parrot of bob's", scope="global", user="bob"),
    ]
    write(store, *mine, *decoys)
    assert matched(store, "parrot") == {op.id for op in mine}
    assert matched(store, "parrot", kinds=("lesson",)) == {mine[2].id}
    assert matched(store, "parrot", since=mine[1].said_at) == {op.id for op in mine[1:]}
    assert matched(store, "parrot", until=mine[1].said_at) == {mine[0].id}
    assert matched(store, "parrot sings") == {mine[0].id}
    # The date that is indexed with a text is none of its words.
    assert matched(store, "2026") == set()


def test_a_word_is_found_wherever_a_long_text_is_cut(store: Backend) -> None:
    filler = "plain words of no account. " * 45
    write(store, put(1, f"the parrot. {filler} the {'x' * 900} zebra"), put(2, filler))
    for query in ("parrot zebra", f'"{"x" * 900} zebra"', "x" * 900):
        assert matched(store, query) == {"pair-ana-p-1"}, query[:30]


def test_a_query_that_names_nothing_is_refused_by_an_empty_store_too(store: Backend) -> None:
    for _ in range(2):
        with pytest.raises(CallerError):
            store.select(view("ana", "p"), MatchQuery(text="the", limit=2, now=T0))
        write(store, put(1, "the parrot"))


@pytest.mark.promise("erase.complete")
@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_a_unit_of_another_version_is_not_dropped(kind: str, tmp_path: Path) -> None:
    store: Backend = MemoryStore(EMBEDDER.name, DIM)
    if kind == "sqlite":
        store = Store.open(tmp_path / "isovist.db", EMBEDDER.name, DIM)
        store.restore()
    unit = put(1, "the parrot sings")
    place: dict[str, Any] = {"partition": unit.partition, "id": unit.id, "stored_at": T0}
    write(store, unit, Replace(**place, seq=2, version=1, text="the parrot sleeps"))
    (stale,) = store.commit([Drop(**place, seq=3, version=1, receipt="r1")])
    assert stale.errno == Errno.ESTALE
    assert store.receipt("r1") is None
    (gone,) = write(store, Drop(**place, seq=4, version=2, receipt="r1"))
    assert gone.errno == 0
    store.close()
