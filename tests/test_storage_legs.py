"""Both legs against plain brute force, bit for bit."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_helpers import DIM as DIMENSIONS
from storage_helpers import EMBEDDER, Drop, embedded, fill, put, search, view

from isovist.storage.chunks import dated
from isovist.storage.embedder import stored
from isovist.storage.engine import MemoryEngine
from isovist.storage.lexical import Delta
from isovist.storage.words import index_terms, query_terms
from isovist.syscalls.operations import Put, Selection
from isovist.syscalls.records import View

WORDS = "tea deploys tuesday ana bob release the is 部署 api-v2 coffee run running".split()  # noqa: SIM905 # a list of words reads better so
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)
scopes = st.sampled_from(["pair", "user", "agent", "global"])
# Two users and two agents in one store: most partitions of a view stay small or empty.
writes = st.lists(
    st.tuples(texts, scopes, st.sampled_from(["ana", "bob"]), st.sampled_from(["p", "q"])),
    max_size=25,
)


def visible(puts: list[Put], reader: View) -> list[Put]:
    return [p for p in puts if p.partition in reader.partitions]


def order(reader: View, p: Put) -> tuple[int, int]:
    return reader.partitions.index(p.partition), -p.seq


def brute_bm25(puts: list[Put], reader: View, query: str) -> list[tuple[str, float]]:
    """BM25 over the units of the view alone, as the formula is written, in plain floats."""
    mine = visible(puts, reader)
    docs = {p.id: index_terms(dated(p.text, p.said_at)) for p in mine}
    n = len(docs)
    if not n:
        return []
    average = sum(sum(d.values()) for d in docs.values()) / n
    scores: dict[str, float] = {}
    for term in query_terms(query):
        df = sum(term in d for d in docs.values())
        idf = math.log(1.0 + (n - df + 0.5) / (df + 0.5))
        for id_, d in docs.items():
            if term in d:
                tf = float(d[term])
                below = sum(d.values()) * (0.9 / average) + 0.3 + tf
                scores[id_] = scores.get(id_, 0.0) + 2.2 * tf / below * idf
    ranked = sorted(
        (p for p in mine if p.id in scores), key=lambda p: (-scores[p.id], *order(reader, p))
    )
    return firsts(ranked, scores)


def brute_dense(puts: list[Put], reader: View, query: str) -> list[tuple[str, float]]:
    q = embedded(query)
    mine = visible(puts, reader)
    scores = {}
    for p in mine:
        vector = stored(EMBEDDER.embed(dated(p.text, p.said_at)))
        scores[p.id] = float((np.frombuffer(vector, "<f2").astype(np.float32) * q).sum())
    return firsts(sorted(mine, key=lambda p: (-scores[p.id], *order(reader, p))), scores)


def firsts(ranked: list[Put], scores: dict[str, float]) -> list[tuple[str, float]]:
    """The first of each text."""
    seen: dict[str, Put] = {}
    for p in ranked:
        seen.setdefault(p.text, p)
    return [(p.id, scores[p.id]) for p in seen.values()]


def got(selection: Selection) -> list[tuple[str, float]]:
    return [(c.hit.unit.id, c.hit.score) for c in selection.candidates]


def build(history: list[tuple[str, str, str, str]]) -> list[Put]:
    """One sequence for all is as good as one a partition; the days differ."""
    return [
        put(i + 1, text, scope=scope, user=user, agent=agent, said_at=i % 3 * 86_400_000_000_000)
        for i, (text, scope, user, agent) in enumerate(history)
    ]


@settings(max_examples=150, deadline=None)
@given(writes, texts, st.data())
def test_both_legs_equal_brute_force_to_the_bit(
    history: list[tuple[str, str, str, str]], query: str, data: st.DataObject
) -> None:
    puts = build(history)
    engine = MemoryEngine(DIMENSIONS)
    fill(engine, *puts)
    gone = data.draw(st.sets(st.sampled_from(range(len(puts))))) if puts else set()
    for i in gone:
        fill(engine, Drop(partition=puts[i].partition, seq=100 + i, id=puts[i].id))
    left = [p for i, p in enumerate(puts) if i not in gone]
    again = [put(200 + i, p.text, scope="user", said_at=p.said_at) for i, p in enumerate(left[:3])]
    fill(engine, *again)  # into the slots set free
    left += again
    for reader in (view("ana", "p"), view("bob", "q"), view("new", "new")):
        lexical = engine.select(reader, search(query, k=100, mode="bm25"), None)
        assert got(lexical) == brute_bm25(left, reader, query)
        dense = engine.select(reader, search(query, k=100, mode="dense"), embedded(query))
        assert got(dense) == brute_dense(left, reader, query)


def test_a_view_that_was_just_emptied_and_one_of_a_single_unit() -> None:
    engine = MemoryEngine(DIMENSIONS)
    one = put(1, "Ana drinks tea")
    reader = view("ana", "p")
    fill(engine, one)
    assert got(engine.select(reader, search("tea", mode="bm25"))) == brute_bm25(
        [one], reader, "tea"
    )
    fill(engine, Drop(partition=one.partition, seq=2, id=one.id))
    assert engine.select(reader, search("tea"), embedded("tea")) == Selection()
    assert engine.statistics() == {
        "partitions": 1, "units": 0, "chunks": 0, "vectors": 0, "terms": 0,
    }  # fmt: skip


def test_a_shortlist_of_thousands_equals_brute_force() -> None:
    rng = np.random.default_rng(7)
    engine = MemoryEngine(DIMENSIONS)
    puts = [
        put(i + 1, f"{' '.join(rng.choice(WORDS, 6))} n{i}", scope=["pair", "user"][i % 2])
        for i in range(1500)
    ]
    fill(engine, *puts)
    reader = view("ana", "p")
    query = "Ana runs tea 部署"
    dense = engine.select(reader, search(query, k=50, mode="dense"), embedded(query))
    assert got(dense) == brute_dense(puts, reader, query)[:50]
    lexical = engine.select(reader, search(query, k=50, mode="bm25"))
    assert got(lexical) == brute_bm25(puts, reader, query)[:50]


def test_rare_texts_are_found_behind_any_number_of_copies() -> None:
    engine = MemoryEngine(DIMENSIONS)
    copies = [put(i + 1, "tea tea tea", session=f"s{i}") for i in range(300)]
    rare = put(400, "tea is served with many other things and words of no weight at all")
    fill(engine, rare, *copies)
    for mode in ("bm25", "dense", "rrf", "hybrid"):
        found = engine.select(view("ana", "p"), search("tea", mode=mode), embedded("tea"))
        assert [c.hit.unit.id for c in found.candidates] == [copies[-1].id, rare.id], mode


@given(st.lists(st.integers(0, 5), max_size=200))
def test_a_delta_holds_the_terms_of_what_is_in_and_of_nothing_else(steps: list[int]) -> None:
    delta, model = Delta(), dict[int, dict[int, int]]()
    for slot, step in enumerate(steps):
        if step < 3 and model:
            gone = sorted(model)[step % len(model)]
            delta.remove(gone)
            del model[gone]
        else:
            terms = {step + 1: 1 + slot % 3, 100 + slot: 2}
            delta.add(slot, terms)
            model[slot] = terms
    held: dict[int, dict[int, int]] = {}
    for tid, count, place in zip(*(column.tolist() for column in delta.entries()), strict=True):
        if count:
            held.setdefault(delta.slots[place], {})[tid] = count
    assert held == model
    assert sorted(delta.living()) == sorted(model)
    assert all(slot in delta for slot in model)
    assert len(delta.slots) <= max(64, 2 * len(model) + 1)
