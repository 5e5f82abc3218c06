"""The shared lexical index: its bound, its filter, its generations, and what it forgets."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import tantivy
from hypothesis import given, settings
from hypothesis import strategies as st

from isovist.storage import inverted
from isovist.storage.inverted import Candidates, Entry, Inverted
from isovist.syscalls.errors import Errno, WorldError

NAME = b"store 1, rules 1"
ALL = (None, None)


class Reference:
    """The chunks that are in, scored one by one under a view."""

    def __init__(self) -> None:
        self.chunks: dict[int, Entry] = {}

    def view(
        self, pids: Iterable[int], tids: Iterable[int]
    ) -> tuple[list[tuple[int, float]], float]:
        """The terms with their idf under the view, and its average length."""
        inside = [c for c in self.chunks.values() if c.pid in set(pids)]
        n = len(inside)
        terms = []
        for tid in tids:
            df = sum(tid in c.terms for c in inside)
            terms.append((tid, math.log(1 + (n - df + 0.5) / (df + 0.5))))
        return terms, sum(length(c) for c in inside) / n if n else 0.0

    def scores(
        self,
        pids: Iterable[int],
        terms: list[tuple[int, float]],
        average: float,
        said: tuple[int | None, int | None] = ALL,
    ) -> dict[int, float]:
        """By row the exact score of each chunk of the view and the time that holds a term."""
        since, until = said
        return {
            c.row: sum(
                idf * 2.2 * c.terms[t] / (c.terms[t] + 0.3 + 0.9 * length(c) / average)
                for t, idf in terms
                if t in c.terms
            )
            for c in self.chunks.values()
            if c.pid in set(pids)
            and (since is None or c.said >= since)
            and (until is None or c.said < until)
            and any(t in c.terms for t, _ in terms)
        }


def length(entry: Entry) -> int:
    return sum(entry.terms.values())


def rows(found: Candidates) -> list[int]:
    return found.rows.tolist()


def check(found: Candidates, exact: dict[int, float], count: int) -> None:
    """All and only chunks of the view, the best first, and none unseen above the ceiling."""
    got = rows(found)
    assert len(set(got)) == len(got) == len(found.scores) == len(found.pids) <= count
    assert set(got) <= set(exact)
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    unseen = {row: score for row, score in exact.items() if row not in set(got)}
    assert all(score <= found.ceiling for score in unseen.values())
    if len(got) < count:
        assert not unseen
        assert found.ceiling == 0


TERMS = st.dictionaries(
    st.integers(0, 12), st.one_of(st.integers(1, 4), st.integers(1, 90)), min_size=1, max_size=8
)
COMMIT = st.tuples(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 20), TERMS), max_size=12),
    st.sets(st.integers(1, 60), max_size=8),
)


@settings(max_examples=60, deadline=None)
@given(
    commits=st.lists(COMMIT, min_size=1, max_size=6),
    pids=st.sets(st.integers(1, 7), max_size=6),
    tids=st.sets(st.integers(0, 15), max_size=6),
    count=st.integers(1, 12),
    said=st.tuples(st.none() | st.integers(-3, 20), st.none() | st.integers(-3, 20)),
)
def test_no_unseen_chunk_scores_above_the_ceiling(
    commits: list[tuple[list[tuple[int, int, dict[int, int]]], set[int]]],
    pids: set[int],
    tids: set[int],
    count: int,
    said: tuple[int | None, int | None],
) -> None:
    """Partitions 6 and 7 are always empty; deletions may empty others and whole segments."""
    reference = Reference()
    index, _ = Inverted.open(None, NAME)
    row = 0
    for generation, (adds, drops) in enumerate(commits, 1):
        entries = []
        for pid, at, terms in adds:
            row += 1
            entries.append(Entry(row, pid, at, terms))
        for drop in drops:
            reference.chunks.pop(drop, None)
        reference.chunks |= {e.row: e for e in entries if e.row not in reference.chunks}
        index.write(entries, drops, generation)
    index.refresh()
    terms, average = reference.view(pids, sorted(tids))
    found = index.candidates(sorted(pids), terms, average=average, count=count, said=said)
    exact = reference.scores(pids, terms, average, said)
    check(found, exact, count)
    assert all(reference.chunks[r].pid == p for r, p in zip(rows(found), found.pids, strict=True))
    # Filtered after the search: fewer or more may come, the ceiling holds all the same.
    for held in (1, max(row // 2, 1), max(row, 1)):
        later = index.candidates(sorted(pids), terms, average=average, count=count, held=held)
        exact = reference.scores(pids, terms, average)
        assert set(rows(later)) <= set(exact)
        unseen = [score for own, score in exact.items() if own not in set(rows(later))]
        assert all(score <= later.ceiling for score in unseen)


@pytest.fixture(scope="module")
def town() -> tuple[Inverted, Reference]:
    """Three segments of several hundred chunks and 100 partitions, whose chunks are short, long
    and very long, with deletions in each: where block maxima of one segment mislead."""
    rng = random.Random(11)
    reference = Reference()
    index, _ = Inverted.open(None, NAME)
    for generation, size in enumerate((3, 30, 150), 1):
        entries = []
        for _ in range(700):
            terms: dict[int, int] = {}
            for _ in range(rng.randint(1, 2 * size)):
                tid = min(int(rng.paretovariate(0.6)), 400)
                terms[tid] = terms.get(tid, 0) + 1
            row = len(reference.chunks) + len(entries) + 1
            entries.append(Entry(row, rng.randint(1, 100), row, terms))
        index.write(entries, [], generation)
        reference.chunks |= {e.row: e for e in entries}
    gone = rng.sample(sorted(reference.chunks), 200)
    index.write([], gone, 4)
    for row in gone:
        del reference.chunks[row]
    index.refresh()
    return index, reference


VIEWS = {
    "one": [17],
    "few": [3, 50, 51, 99],
    "many": [pid for pid in range(1, 101) if pid % 5],
    "whole": list(range(1, 101)),
    "row": list(range(10, 90)),
}


@pytest.mark.parametrize("pids", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("tids", [(1,), (1, 2), (1, 5, 9, 30, 77), (40,), (300, 2)], ids=str)
def test_the_best_are_the_best_over_segments_of_unlike_lengths(
    town: tuple[Inverted, Reference], pids: list[int], tids: tuple[int, ...]
) -> None:
    index, reference = town
    terms, average = reference.view(pids, tids)
    exact = reference.scores(pids, terms, average)
    every = index.candidates(pids, terms, average=average, count=5000)
    check(every, exact, 5000)
    for count in (1, 2, 10, 100):
        found = index.candidates(pids, terms, average=average, count=count)
        check(found, exact, count)
        assert found.scores.tolist() == every.scores[:count].tolist()


@pytest.mark.parametrize("pids", [[1, 2, 3], [1], list(range(1, 90)), list(range(1, 200, 2))])
def test_scores_are_the_views_own_where_all_chunks_are_as_long(pids: list[int]) -> None:
    """Then both averages are the same, whatever is deleted, and rounding alone is left: so N,
    document frequencies and the filter's share (none) are right, and equal chunks need the
    bound's room for rounding."""
    reference = Reference()
    index, _ = Inverted.open(None, NAME)
    for start in (1, 401):
        chunks = [
            Entry(row, row % 3 + 1, 0, {row % 7: 1, 10 + row % 5: 2, 20: 3, 30 + row % 11: 7})
            for row in range(start, start + 400)
        ]
        index.write(chunks, [], start)
        reference.chunks |= {e.row: e for e in chunks}
    gone = [row for row in reference.chunks if row % 9 < 6]
    index.write([], gone, 500)
    index.refresh()
    for row in gone:
        del reference.chunks[row]
    for tids in [(t,) for t in range(45)] + [(1, 12), (3, 20, 33), (0, 10, 20, 30)]:
        terms, average = reference.view(pids, tids)
        exact = reference.scores(pids, terms, average)
        every = index.candidates(pids, terms, average=average, count=5000)
        check(every, exact, 5000)
        assert every.scores.tolist() == pytest.approx([exact[row] for row in rows(every)], 4e-6)
        check(index.candidates(pids, terms, average=average, count=1), exact, 1)


def test_the_bound_holds_where_tantivys_idf_has_no_digits_left(
    town: tuple[Inverted, Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is from 8 million chunks on, when all hold the term."""
    index, reference = town
    monkeypatch.setattr(inverted, "_idf", lambda frequency, chunks: 0.0)
    terms, average = reference.view(VIEWS["many"], (1, 3))
    exact = reference.scores(VIEWS["many"], terms, average)
    for count in (1, 20, 5000):
        found = index.candidates(VIEWS["many"], terms, average=average, count=count)
        check(found, exact, count)
        assert len(rows(found)) == min(count, len(exact))


def test_idf_is_computed_in_tantivys_own_steps() -> None:
    assert inverted._idf(1, 2) == pytest.approx(math.log(2), rel=1e-7)
    assert inverted._idf(120_000, 120_000) != pytest.approx(math.log1p(0.5 / 120_000.5), rel=1e-3)
    assert inverted._idf(10_000_000, 10_000_000) == 0


def entry(row: int, pid: int = 1, *tids: int, said: int = 0) -> Entry:
    return Entry(row, pid, said, dict.fromkeys(tids or (7,), 1))


def found(index: Inverted, *pids: int, tid: int = 7) -> list[int]:
    return sorted(rows(index.candidates(pids, [(tid, 1.0)], average=1.0, count=100)))


def test_a_foreign_chunk_never_comes_back() -> None:
    """However many partitions a view has: none, empty ones, more than the store knows."""
    index, _ = Inverted.open(None, NAME)
    index.write([entry(1, 1), entry(2, 2), entry(3, 3)], [], 1)
    index.refresh()
    assert found(index) == []
    assert found(index, 4, 5, 6) == []
    assert found(index, 1, 4, 5) == [1]
    assert found(index, *range(4, 100)) == []
    assert found(index, 1, *range(4, 100)) == [1]
    assert found(index, 2, 2, 3) == [2, 3]
    index.write([], [1], 2)
    index.refresh()
    assert found(index, 1) == []
    assert found(index, 1, 2, 3) == [2, 3]
    for pids in ([1, 4], [2], [1, 3, 9]):
        whole = index.candidates(pids, [(7, 1.0)], average=1.0, count=100, held=2)
        assert set(whole.pids.tolist()) <= {2, 3} & set(pids)
        assert whole.ceiling == 0


def test_without_a_term_there_is_no_answer() -> None:
    index, _ = Inverted.open(None, NAME)
    assert found(index, 1) == []
    index.write([entry(1)], [], 1)
    index.refresh()
    assert rows(index.candidates([1], [], average=1.0, count=9)) == []
    assert found(index, 1, tid=8) == []
    both = index.candidates([1], [(8, 1.0), (7, 1.0)], average=1.0, count=9)
    assert rows(both) == [1]


def test_time_starts_inclusive_and_ends_exclusive() -> None:
    index, _ = Inverted.open(None, NAME)
    late = 1_796_000_000_000_000_000
    index.write([entry(i, 1, 7, said=late + i) for i in range(1, 6)], [], 1)
    index.refresh()

    def within(since: int | None, until: int | None) -> list[int]:
        asked = index.candidates([1], [(7, 1.0)], average=1.0, count=9, said=(since, until))
        assert asked.ceiling == 0
        return sorted(rows(asked))

    assert within(late + 2, late + 4) == [2, 3]
    assert within(late + 4, None) == [4, 5]
    assert within(None, late + 2) == [1]
    assert within(late + 3, late + 3) == []


def test_a_commit_is_seen_from_the_next_refresh_on() -> None:
    index, _ = Inverted.open(None, NAME)
    index.write([entry(1)], [], 1)
    index.refresh()
    index.write([entry(2)], [1], 2)
    assert found(index, 1) == [1]
    assert index.generation == 2
    index.refresh()
    assert found(index, 1) == [2]


def test_a_row_that_moves_is_dropped_and_added_in_one_write() -> None:
    index, _ = Inverted.open(None, NAME)
    index.write([entry(1, 1)], [], 1)
    index.write([entry(1, 2)], [1], 2)
    index.refresh()
    assert found(index, 1) == []
    assert found(index, 2) == [1]


def test_more_drops_than_one_delete_takes() -> None:
    index, _ = Inverted.open(None, NAME)
    many = inverted.BATCH + 10
    index.write((entry(i) for i in range(1, many + 2)), [], 1)
    index.write([], range(1, many + 1), 2)
    index.refresh()
    assert found(index, 1) == [many + 1]


# -- errors


class _Broken(Exception):
    pass


def test_an_error_of_the_entries_passes_and_loses_nothing_after_it(tmp_path: Path) -> None:
    def broken() -> Iterator[Entry]:
        yield entry(2)
        raise _Broken

    index, _ = Inverted.open(tmp_path / "i", NAME)
    index.write([entry(1)], [], 1)
    with pytest.raises(_Broken):
        index.write(broken(), [1], 2)
    assert index.generation == 1
    index.write([entry(3)], [], 3)
    index.refresh()
    assert found(index, 1) == [1, 3]


def test_a_value_that_tantivy_refuses_loses_nothing_after_it(tmp_path: Path) -> None:
    index, _ = Inverted.open(tmp_path / "i", NAME)
    index.write([entry(1)], [], 1)
    with pytest.raises((WorldError, OverflowError)):
        index.write([entry(2), entry(1 << 70)], [], 2)
    index.write([entry(3)], [], 3)
    index.refresh()
    assert found(index, 1) == [1, 3]


def test_a_full_disk_is_an_error_of_the_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index, _ = Inverted.open(tmp_path / "i", NAME)
    index.write([entry(1)], [], 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WorldError) as caught:
            index.write([entry(2)], [], 2)
    assert caught.value.errno is Errno.ENOSPC
    assert index.generation == 1
    index.write([entry(3)], [], 3)
    index.refresh()
    assert found(index, 1) == [1, 3]


def test_a_commit_that_lands_and_then_fails_is_known_to_have_landed(tmp_path: Path) -> None:
    index, _ = Inverted.open(tmp_path / "i", NAME)
    index.write([entry(1)], [], 1)
    writer = index._writer
    assert writer is not None

    class Late:
        def __getattr__(self, name: str) -> object:
            return getattr(writer, name)

        def commit(self) -> None:
            writer.commit()
            raise OSError(errno.EIO, "late")

    index._writer = Late()  # type: ignore[assignment]  # a writer that fails too late
    with pytest.raises(WorldError):
        index.write([entry(2)], [], 2)
    assert index.generation == 2


# -- what the next process finds


def test_an_index_is_found_again(tmp_path: Path) -> None:
    index, full = Inverted.open(tmp_path / "a" / "i", NAME)
    assert not full
    index.write([entry(1)], [], 1)
    index.write([], [], 5)
    index.close()
    again, full = Inverted.open(tmp_path / "a" / "i", NAME, 5)
    assert full
    assert again.generation == 5
    assert found(again, 1) == [1]
    again.write([entry(2)], [1], 6)
    again.close()
    third, full = Inverted.open(tmp_path / "a" / "i", NAME)
    assert full
    assert third.generation == 6
    assert found(third, 1) == [2]
    third.write([], [], 7)
    third.close()
    assert Inverted.open(tmp_path / "a" / "i", NAME)[0].generation == 7


def _filled(path: Path) -> None:
    """One segment with a deleted chunk."""
    index, _ = Inverted.open(path, NAME)
    index.write([entry(i, 1, 7, i) for i in range(1, 30)], [], 1)
    index.write([], [5], 2)
    index.close()


def _is_made_anew(path: Path, name: bytes = NAME, expected: int | None = None) -> None:
    index, full = Inverted.open(path, name, expected)
    assert not full
    assert index.generation == 0
    assert found(index, 1) == []
    index.write([entry(1)], [], 3)
    index.refresh()
    assert found(index, 1) == [1]
    index.close()


def test_another_name_or_generation_is_made_anew(tmp_path: Path) -> None:
    _filled(tmp_path / "i")
    _is_made_anew(tmp_path / "i", b"store 2")
    _is_made_anew(tmp_path / "i", b"store 2", 4)


def test_half_a_filling_is_made_anew(tmp_path: Path) -> None:
    index, _ = Inverted.open(tmp_path / "i", NAME)
    index.write([entry(1)], [], 0)
    index.close()
    _is_made_anew(tmp_path / "i")


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    """One byte flipped, the second half lost, all but a few bytes lost, the file empty or gone: of
    every file."""
    whole = tmp_path / "whole"
    _filled(whole)
    names = [p.name for p in whole.iterdir() if not p.name.startswith(".")]
    kinds = {"fast", "fieldnorm", "idx", "pos", "store", "term", "del", "json", "generation"}
    assert {name.split(".")[-1] for name in names} == kinds
    for name in names:
        body = (whole / name).read_bytes()
        flipped = bytearray(body)
        flipped[len(body) // 3] ^= 0x10
        for bad in (bytes(flipped), body[: len(body) // 2], body[:5], b"", None):
            if name == "meta.json" and bad == flipped:
                continue  # it has no checksum
            path = tmp_path / "damaged"
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(whole, path)
            if bad is None:
                (path / name).unlink()
            else:
                (path / name).write_bytes(bad)
            index, full = Inverted.open(path, NAME)
            assert not full, name
            assert index.statistics()["chunks"] == 0
            index.close()
    _is_made_anew(path)


CHILD = """
import os, signal, sys
from pathlib import Path
from isovist.storage.inverted import Entry, Inverted

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def adds():
    yield Entry(2, 1, 0, {7: 1})
    if sys.argv[2] == "adds":
        die()

index, _ = Inverted.open(Path(sys.argv[1]), b"store 1, rules 1")
index.write([Entry(1, 1, 0, {7: 1})], [], 1)
if sys.argv[2] == "note":
    note = index._note
    index._note = lambda begun: (note(begun), die())
index.write(adds(), [1], 2)
die()
"""


@pytest.mark.parametrize(
    ("point", "generation", "left"), [("adds", 1, [1]), ("note", 1, [1]), ("commit", 2, [2])]
)
def test_a_killed_process_leaves_its_last_commit(
    tmp_path: Path, point: str, generation: int, left: list[int]
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "i"), point],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    index, full = Inverted.open(tmp_path / "i", NAME)
    assert full
    assert index.generation == generation
    assert found(index, 1) == left
    index.write([entry(3)], [], 9)
    index.refresh()
    assert found(index, 1) == [*left, 3]
    index.close()


# -- forgetting


def _bodies(path: Path) -> list[bytes]:
    """The files of all segments, by their kind. Names, which are random, do not count."""
    found = [p for p in path.iterdir() if not p.name.startswith((".", "meta", "generation"))]
    return [p.read_bytes() for p in sorted(found, key=lambda p: p.suffix)]


def test_a_scrubbed_index_holds_the_bytes_of_one_that_never_had_the_dropped(
    tmp_path: Path,
) -> None:
    """Stronger than a search for the terms: a dictionary is a packed automaton, and numbers are
    packed in bits, so neither shows as text even while it is there."""
    kept = [entry(i, i % 5 + 1, 7, 1000 + i) for i in range(1, 41)]
    canaries = [Entry(77_000 + i, 9, 88_000 + i, {99_000 + i: 3, 7: 1}) for i in range(20)]
    path = tmp_path / "i"
    index, _ = Inverted.open(path, NAME)
    for generation, i in enumerate(range(0, 40, 4), 1):
        index.write([*kept[i : i + 4], *canaries[i // 2 : i // 2 + 2]], [], generation)
    index.refresh()
    index.write([], [c.row for c in canaries], 11)
    index.refresh()
    assert index._reading.frequency(99_000) == 1, "deleted is not erased"

    assert index.scrub(kept, 11)
    index.refresh()
    index.sweep()
    assert found(index, *range(1, 10)) == [e.row for e in kept]
    assert index.statistics()["chunks"] == 40
    assert all(index._reading.frequency(tid) == 0 for c in canaries for tid in c.terms if tid > 7)

    fresh, _ = Inverted.open(tmp_path / "fresh", NAME)
    fresh.write(kept, [], 1)
    assert _bodies(path) == _bodies(tmp_path / "fresh")
    words = tantivy.Index.open(str(path)).searcher().terms_with_prefix("terms", "", limit=1000)
    assert {w for w, _ in words} == {str(t) for e in kept for t in e.terms}
    index.close()
    again, full = Inverted.open(path, NAME, 11)
    assert full
    assert not again.scrub(kept, 11), "nothing left to do"


def test_a_scrub_after_merges_leaves_no_deleted_chunk(tmp_path: Path) -> None:
    """Forty commits set off merges, which carry some of the deleted along."""
    path = tmp_path / "i"
    index, _ = Inverted.open(path, NAME)
    for i in range(1, 41):
        index.write([entry(i, 1, 7, 500 + i)], [i - 1] if i % 2 else [], i)
    kept = [entry(i, 1, 7, 500 + i) for i in range(1, 41) if i % 2 or i == 40]
    index.scrub(kept, 40)
    index.refresh()
    index.sweep()
    assert not any(s["deletes"] for s in inverted._meta(path)["segments"])
    assert found(index, 1) == [e.row for e in kept]
    assert not any(index._reading.frequency(500 + i) for i in range(2, 40, 2))


def test_in_memory_a_scrub_rewrites_all() -> None:
    index, _ = Inverted.open(None, NAME)
    index.write([entry(1), entry(2, 1, 7, 99)], [], 1)
    index.write([], [2], 2)
    assert index.scrub([entry(1)], 2)
    index.refresh()
    assert index._reading.frequency(99) == 0
    assert found(index, 1) == [1]
    assert index.statistics() == {"chunks": 1, "segments": 1, "bytes": 0, "generation": 2}
