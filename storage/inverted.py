"""The shared lexical index: candidates for a view's BM25, with a bound on what it left out.

One tantivy index holds the committed chunks of a whole store. It never decides a score: it
proposes chunks, the caller scores them exactly, in float64 and with the view's own statistics
[S Prop. 1], and stops as soon as :attr:`Candidates.ceiling` says that no other chunk can reach
its list. Text never comes here: a chunk is its row, its partition, its time and its term numbers.

**The bound.** For a view with average chunk length A, the caller's score of a chunk of length L
is a sum, over the terms asked for, of

    e(t) = idf_view(t) · 2.2·tf / (tf + 0.3 + 0.9·L/A)

and tantivy's, every term boosted by idf_view(t) / idf_tantivy(t), a sum of

    s(t) = idf_view(t) · 2.2·tf / (tf + 0.3 + 0.9·F/B)

where B is tantivy's average length and F ≤ L the length as it keeps it, rounded down to one byte
(L at least the number of tokens given to it). Then, for each t,

    e/s = (tf + 0.3 + 0.9·F/B) / (tf + 0.3 + 0.9·L/A) ≤ (tf + 0.3 + 0.9·L/B) / (tf + 0.3 + 0.9·L/A)
        ≤ max(1, A/B)

for (c + x)/(c + y) lies between 1 and x/y. So exact ≤ max(1, A/B) · tantivy's score, chunk by
chunk, and a chunk that is not among the best M has at most the M-th score. Three things have to
hold for it, and are seen to here:

- *Idf and B are tantivy's own.* Its N, document frequencies and B are sums over all segments of
  the searcher and count deleted chunks; B is estimated anew when segments with deleted chunks are
  merged. Counting beside it can prove none of this, so N and B are read out of
  ``Query.explain``, once a searcher. idf_tantivy is float32 and ln(1 + x) loses all its digits
  where a term stands in nearly every chunk (1.4 % at 120,000, infinite at 10⁷), so it is
  computed here in the same steps. Where it is 0 the term counts as the constant
  2.2·idf_view(t) ≥ e(t). N is exact up to 2²⁴ chunks, all that float32 can tell apart.
- *Rounding.* A term's score takes about ten float32 steps of 2⁻²⁴ each, a sum of n of them n − 1
  more: the factor 1 + 10⁻⁵ + n·2⁻²³ is above both.
- *The best M are the best M.* tantivy's block-max pruning relies on block maxima that were chosen
  with the average length of one segment, so over several segments it is not exact. It prunes
  unions and intersections of bare terms only, never a conjunction with a constant-score filter
  or an exclusion, one of which each query here is.

All and only chunks of the partitions asked for are returned: the filter is in every query, or is
put to all that it finds, however many partitions there are, and no partition or no term means no
answer, not no filter.

**On disk** the index is derived data. Beside tantivy's files lies ``generation``: whose index it
is, and the generations of the last commit and of the one begun. It is written before a commit,
with the operation stamp that tantivy's ``meta.json`` holds at that time; a commit changes that
stamp, atomically with itself, so the stamp tells which of the two generations is there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tantivy
from numpy.typing import NDArray
from tantivy import FieldType, Occur, Query

from isovist.syscalls.errors import Errno, IsovistError, KernelError, WorldError

HEAP = 50_000_000
"""Bytes that a writer gathers at most before it cuts a segment: about 60,000 chunks. tantivy's
minimum of 15 MB cuts five times as many, which slows a filling and each search after it."""

BATCH = 4096
"""Rows to be dropped in one delete query."""

FEW = 64
"""Up to so many partitions a union of postings is faster than a set, which walks a dictionary."""

_MAGIC = 1337
_KINDS = ("fast", "fieldnorm", "idx", "pos", "store", "term")
_STATE = "generation"
_META = "meta.json"
_NOBODY = -1
"""A row that no chunk has: deleting it changes nothing but the operation stamp."""


def _schema() -> tantivy.Schema:
    """Signed integers only: tantivy-py makes its delete terms and its documents' numbers signed,
    and a mismatch is silent at a delete and loses the writer at an add. Nothing is stored."""
    schema = tantivy.SchemaBuilder()
    schema.add_integer_field("row", indexed=True, fast=True)
    schema.add_integer_field("pid", indexed=True, fast=True)
    schema.add_integer_field("said", fast=True)
    schema.add_text_field("terms", tokenizer_name="whitespace", index_option="freq")
    return schema.build()


SCHEMA = _schema()

MUCH = 0.4
"""The share of the index from which it is faster to filter what is found. Milliseconds of ten
terms among 120,000 chunks: 50 %: 1.4 beside 2.7, 96 %: 1.8 beside 4.3."""

_NOWHERE = Query.term_query(SCHEMA, "pid", -1)
"""What no chunk matches."""


class Entry(msgspec.Struct, frozen=True):
    """One chunk: its row (from 1), its partition's number, when it was said (ns since 1970) and
    by term number how often the term stands in it (from 1)."""

    row: int
    pid: int
    said: int
    terms: dict[int, int]


class Candidates(msgspec.Struct, frozen=True):
    """Chunks that may score high: ``rows`` and ``pids`` (int64), tantivy's ``scores`` (float64
    of float32 values), best first. ``ceiling`` is not below the exact score under the view of
    any chunk of the partitions and the time asked for that is in the index and not in ``rows``;
    it is 0 when all that match were returned (what does not match scores 0)."""

    rows: NDArray[np.int64]
    pids: NDArray[np.int64]
    scores: NDArray[np.float64]
    ceiling: float


_NONE = Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), 0.0)


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose index it is; the stamp and the generation of its last commit; the generation of
    the commit begun after that (the same if none was)."""

    fingerprint: str
    stamp: int
    generation: int
    begun: int


class _Reading:
    """One searcher, with tantivy's statistics for it as they are asked for."""

    def __init__(self, index: tantivy.Index) -> None:
        self.searcher = index.searcher()
        self._frequencies: dict[int, int] = {}
        self._shape: tuple[int, float] | None = None

    def frequency(self, tid: int) -> int:
        """In how many chunks the term stands, deleted ones included."""
        found = self._frequencies.get(tid)
        if found is None:
            found = self._frequencies[tid] = self.searcher.doc_freq("terms", str(tid))
        return found

    def shape(self, tids: Iterable[int]) -> tuple[int, float] | None:
        """Chunks (deleted ones included) and their average length; ``None`` if none of ``tids``
        stands in a chunk that is not deleted."""
        for tid in tids if self._shape is None else ():
            query = _term(tid)
            hits = self.searcher.search(query, 1, count=False).hits
            if hits:
                told = dict(_leaves(json.loads(query.explain(self.searcher, hits[0][1]).to_json())))
                try:
                    self._shape = round(told["N"]), told["avgdl"]
                except KeyError as e:
                    raise KernelError(f"tantivy explains a score without {e}") from e
                break
        return self._shape


def _leaves(explained: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The symbols of a score's explanation ("N, total number of docs") with their values."""
    yield explained["description"].split(",")[0], explained["value"]
    for detail in explained.get("details") or ():
        yield from _leaves(detail)


def _term(tid: int) -> Query:
    return Query.term_query(SCHEMA, "terms", str(tid), index_option="freq")


def _idf(frequency: int, chunks: int) -> float:
    """tantivy's idf: its float32 steps up to the logarithm, whose own rounding is 2⁻²⁴ of it."""
    f32 = np.float32
    x = (f32(chunks - frequency) + f32(0.5)) / (f32(frequency) + f32(0.5))
    return math.log(float(f32(1) + x))


def _among(pids: tuple[int, ...]) -> Query:
    """All and only chunks of these partitions, in the form that is fastest for them."""
    if len(pids) <= FEW:
        each = [(Occur.Should, Query.term_query(SCHEMA, "pid", pid)) for pid in pids]
        return Query.boolean_query(each)
    low, high = min(pids), max(pids)
    if len(set(pids)) == high - low + 1:  # no number between them is left out
        return Query.range_query(SCHEMA, "pid", FieldType.Integer, low, high)
    return Query.term_set_query(SCHEMA, "pid", pids)


def _filter(query: Query) -> Query:
    """Match without a share in the score."""
    return Query.const_score_query(query, 0.0)


class Inverted:
    """One shared index of all committed chunks of a store, as a generator of lexical candidates.

    :meth:`write` and :meth:`scrub` belong to one worker thread, all else to the loop's thread,
    which sees a commit only from its next :meth:`refresh` on. ``generation`` is that of the last
    commit; 0 is that of an index that is not complete.
    """

    def __init__(self, path: Path | None, fingerprint: bytes) -> None:
        self._path = path
        self._fingerprint = fingerprint.hex()
        self._index = tantivy.Index(SCHEMA, None if path is None else str(path))
        self._index.config_reader("manual")
        self._writer: tantivy.IndexWriter | None = None
        self._reading = _Reading(self._index)
        self._last: tuple[tuple[int, ...], Query] | None = None
        self.generation = 0

    @classmethod
    def open(
        cls, path: Path | None, fingerprint: bytes, expected: int | None = None
    ) -> tuple[Inverted, bool]:
        """The index in the folder ``path``, which it has for itself, or one in memory (``None``).

        ``fingerprint`` names the store and the rules by which its chunks and terms are made. An
        index that is missing, damaged, incomplete, of another fingerprint or of a generation
        other than ``expected`` is wiped; the second value is then false and the caller fills it
        again. Every file's checksum is read (tantivy itself does not), about 0.1 s a 100 MB.
        Raises :class:`WorldError` where the folder cannot be used.
        """
        if path is None:
            return cls(None, fingerprint), False
        with _worldly(path):
            with contextlib.suppress(OSError, ValueError, KeyError, msgspec.MsgspecError):
                kept = cls._kept(path, fingerprint)
                if kept is not None and expected in (None, kept.generation):
                    return kept, True
            _wipe(path)
            path.mkdir(mode=0o700, parents=True)
            made = cls(path, fingerprint)
            made._note(0)
            return made, False

    @classmethod
    def _kept(cls, path: Path, fingerprint: bytes) -> Inverted | None:
        """The index as the last process left it, if it is sound, complete and of this name."""
        state = _read_state(path)
        if state.fingerprint != fingerprint.hex() or not _sound(path):
            return None
        index = cls(path, fingerprint)
        index.generation = index._settled()
        return index if index.generation else None

    def write(self, adds: Iterable[Entry], drops: Iterable[int], generation: int) -> None:
        """Delete the chunks of the rows ``drops``, then add ``adds``, and commit, durably.

        A row may stand in both; ``adds`` holds no row that is in the index otherwise.
        ``generation`` is the number of the store's state that the index then holds; a filling in
        several writes gives 0 until its last, so that half a one is not taken for a whole one.
        Raises :class:`WorldError` when it fails; then the index holds all of it or nothing,
        as ``generation`` says, and the next write may follow. Errors of ``adds`` pass through.
        """
        self._commit(adds, drops, generation)

    def _commit(self, adds: Iterable[Entry], drops: Iterable[int] | None, generation: int) -> None:
        """``drops`` of ``None`` are all chunks of before."""
        writer, self._writer = self._writer, None
        try:
            with _worldly(self._path):
                if writer is None:
                    writer = self._index.writer(HEAP, 1)
                writer.delete_documents_by_term("row", _NOBODY)
                if drops is None:
                    writer.delete_documents_by_query(Query.all_query())
                else:
                    rest = iter(drops)
                    while batch := list(islice(rest, BATCH)):
                        gone = Query.term_set_query(SCHEMA, "row", batch)
                        writer.delete_documents_by_query(gone)
                for entry in adds:
                    writer.add_document(_document(entry))
                self._note(generation)
                writer.commit()
        except BaseException:
            # A writer that met an error loses all later adds without a word. It holds the lock
            # until it is gone, and the traceback would keep it for as long as the error lives.
            del writer
            with contextlib.suppress(OSError, ValueError, KeyError, msgspec.MsgspecError):
                self.generation = self._settled()
            raise
        self._writer = writer
        self.generation = generation

    def refresh(self) -> None:
        """From now on search the newest commit."""
        with _worldly(self._path):
            self._index.reload()
            self._reading = _Reading(self._index)

    def candidates(
        self,
        pids: Sequence[int],
        terms: Sequence[tuple[int, float]],
        *,
        average: float,
        count: int,
        said: tuple[int | None, int | None] = (None, None),
        held: int = 0,
    ) -> Candidates:
        """The best ``count`` (at least 1) chunks of the partitions ``pids``.

        ``terms`` are the numbers of the terms asked for, each once, with their idf under the
        view (above 0); ``average`` is the view's average chunk length (terms). ``said`` is a
        stretch of time (ns), its start inclusive, its end exclusive, ``None`` for no limit.
        ``held`` is about how many chunks the partitions hold: where that is much of the index,
        it is faster to filter what comes than what is searched, and fewer may come than asked.
        Raises :class:`WorldError` where the index cannot be read.
        """
        return self.ask(pids, terms, average=average, count=count, said=said, held=held)()

    def ask(
        self,
        pids: Sequence[int],
        terms: Sequence[tuple[int, float]],
        *,
        average: float,
        count: int,
        said: tuple[int | None, int | None] = (None, None),
        held: int = 0,
    ) -> Callable[[], Candidates]:
        """The same, to be called: in any thread, which then hardly needs the interpreter."""
        with _worldly(self._path):
            reading = self._reading
            known = [(tid, idf) for tid, idf in terms if reading.frequency(tid)] if pids else []
            shape = reading.shape(tid for tid, _ in known)
            if not known or shape is None:
                return lambda: _NONE
            chunks, mean = shape
            scored: list[tuple[Occur, Query]] = []
            for tid, idf in known:
                own = _idf(reading.frequency(tid), chunks)
                query = (
                    Query.boost_query(_term(tid), idf / own)
                    if own
                    else Query.const_score_query(_term(tid), 2.2 * idf)
                )
                scored.append((Occur.Should, query))
            ratio = max(1.0, average / mean) * (1 + 1e-5 + len(known) * 2.0**-23)
            union = (Occur.Must, Query.boolean_query(scored))
            among: frozenset[int] | None = None
            if held >= MUCH * chunks and said == (None, None):
                among = frozenset(pids)
                count = math.ceil(count * max(chunks / held, 1.0))
                query = Query.boolean_query([(Occur.MustNot, _NOWHERE), union])
            else:
                must = [(Occur.Must, query) for query in (self._among(pids), *_within(said))]
                query = Query.boolean_query([*must, union])
        return partial(self._look, reading.searcher, query, count, ratio, among)

    def _look(
        self,
        searcher: tantivy.Searcher,
        query: Query,
        count: int,
        ratio: float,
        among: frozenset[int] | None,
    ) -> Candidates:
        """The best ``count`` that match, of which those of other partitions are left out: of the
        partitions ``among``, or of all, where the query has seen to it."""
        with _worldly(self._path):
            hits = searcher.search(query, count, count=False).hits
            at = [address for _, address in hits]
            scores = np.array([score for score, _ in hits], np.float64)
            rows = np.array(searcher.fast_field_values("row", at), np.int64)
            pids = np.array(searcher.fast_field_values("pid", at), np.int64)
            ceiling = float(scores[-1]) * ratio if len(hits) == count else 0.0
            if among is not None:
                own = np.array([pid in among for pid in pids.tolist()], np.bool_)
                rows, pids, scores = rows[own], pids[own], scores[own]
            return Candidates(rows=rows, pids=pids, scores=scores, ceiling=ceiling)

    def _among(self, pids: Sequence[int]) -> Query:
        """The filter on partitions; the last one is kept, since widening asks again."""
        key = tuple(pids)
        if self._last is None or self._last[0] != key:
            self._last = key, _filter(_among(key))
        return self._last[1]

    def scrub(self, entries: Iterable[Entry], generation: int, *, awaited: bool = False) -> bool:
        """See to it that no deleted chunk's term, posting or number remains in a live segment.

        tantivy merges at its own pleasure and has no call for it. But a segment without a live
        chunk is dropped whole: so, if any chunk of any segment is deleted, all ``entries`` (the
        chunks of the store at ``generation``) are written anew and all that was there is
        deleted, in one commit. ``awaited``: so too where drops wait that this was not told of.
        Returns whether that was needed. The files go with
        :meth:`sweep`, once :meth:`refresh` has let go of them. Raises as :meth:`write` does.
        """
        with _worldly(self._path):
            # A merge under way would carry the deleted into a new segment. Waiting for it costs
            # the writer.
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.wait_merging_threads()
            del writer
            if (
                not awaited
                and self._path is not None
                and not any(segment["deletes"] for segment in _meta(self._path)["segments"])
            ):
                return False
        self._commit(entries, None, generation)
        return True

    def sweep(self) -> None:
        """Remove the files of no live segment, those of a killed process included. On the
        worker's thread, and after a refresh: a searched segment counts as live."""
        with _worldly(self._path):
            if self._writer is None:
                self._writer = self._index.writer(HEAP, 1)
            self._writer.garbage_collect_files()

    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of all chunks that are searched and not deleted, and their pids."""
        with _worldly(self._path):
            searcher = self._reading.searcher
            count = searcher.num_docs
            hits = searcher.search(Query.all_query(), count, count=False).hits if count else []
            at = [address for _, address in hits]
            return (
                np.array(searcher.fast_field_values("row", at), np.int64),
                np.array(searcher.fast_field_values("pid", at), np.int64),
            )

    def statistics(self) -> dict[str, int]:
        """Of the index as it is searched: ``chunks`` that are not deleted and ``segments``; of
        its folder: ``bytes`` (0 in memory); and the ``generation`` of the last commit."""
        size = 0
        for file in self._path.iterdir() if self._path is not None else ():
            with contextlib.suppress(FileNotFoundError):  # a merge may take it away
                size += file.stat().st_size
        searcher = self._reading.searcher
        return {
            "chunks": searcher.num_docs,
            "segments": searcher.num_segments,
            "bytes": size,
            "generation": self.generation,
        }

    def close(self) -> None:
        """Give up the writer and with it the folder's lock; merges under way are abandoned."""
        self._writer = None

    def _note(self, begun: int) -> None:
        """Write down, durably, that the next commit brings the generation ``begun``."""
        path = self._path
        if path is None:
            return
        stamp = _meta(path)["opstamp"]
        state = _State(self._fingerprint, stamp, self.generation, begun)
        body = msgspec.json.encode(state)
        part = path / f"{_STATE}.part"
        with part.open("wb") as out:
            out.write(body + b"\n%08x\n" % zlib.crc32(body))
            out.flush()
            os.fsync(out.fileno())
        part.replace(path / _STATE)
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _settled(self) -> int:
        """The generation that is on disk: the one begun iff a commit followed the note."""
        if self._path is None:
            return self.generation
        state = _read_state(self._path)
        return state.generation if _meta(self._path)["opstamp"] == state.stamp else state.begun


def _document(entry: Entry) -> tantivy.Document:
    document = tantivy.Document()
    document.add_integer("row", entry.row)
    document.add_integer("pid", entry.pid)
    document.add_integer("said", entry.said)
    tokens: list[str] = []
    for tid, tf in entry.terms.items():
        tokens += [str(tid)] * tf
    document.add_text("terms", " ".join(tokens))
    return document


def _within(said: tuple[int | None, int | None]) -> list[Query]:
    since, until = said
    if since is None and until is None:
        return []
    # tantivy refuses an open end that is called exclusive.
    span = Query.range_query(
        SCHEMA, "said", FieldType.Integer, since, until, include_upper=until is None
    )
    return [_filter(span)]


def _meta(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / _META).read_bytes())
    return found


def _wipe(path: Path) -> None:
    """Remove the folder, if it is there. tantivy's watcher of an index that was just looked at may
    still lay down its lock file in it for a moment: then again."""
    for _ in range(100):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if not path.exists():
                return
        except OSError as e:
            if e.errno != errno.ENOTEMPTY:
                raise
        else:
            return
    shutil.rmtree(path)


def _read_state(path: Path) -> _State:
    body, check, _ = (path / _STATE).read_bytes().split(b"\n")
    if int(check, 16) != zlib.crc32(body):
        raise ValueError("the note of the generation is damaged")
    return msgspec.json.decode(body, type=_State)


def _sound(path: Path) -> bool:
    """Whether all files of the live segments are there, each with the checksum that its footer
    states. A footer is JSON, its length and a magic number (both uint32, little-endian) at the
    end of the file. tantivy itself checks neither the bytes nor that all files are there."""
    for segment in _meta(path)["segments"]:
        kinds: list[str] = [*_KINDS]
        if segment["deletes"]:
            kinds.append(f"{segment['deletes']['opstamp']}.del")
        stem = segment["segment_id"].replace("-", "")
        if not all(_whole(path / f"{stem}.{kind}") for kind in kinds):
            return False
    return True


def _whole(file: Path) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as data:
        if len(data) < 8:
            return False
        length, magic = struct.unpack("<II", data[-8:])
        end = len(data) - 8 - length
        if magic != _MAGIC or end < 0:
            return False
        with memoryview(data) as view, view[:end] as body:
            return bool(zlib.crc32(body) == json.loads(data[end:-8])["crc"])


@contextlib.contextmanager
def _worldly(path: Path | None) -> Iterator[None]:
    """Errors of the disk and of tantivy, its panics included, become a :class:`WorldError`."""
    try:
        yield
    except IsovistError:
        raise
    except BaseException as e:
        panic = type(e).__name__ == "PanicException"  # no Exception, and not importable
        if not (panic or isinstance(e, (OSError, ValueError))):
            raise
        full = isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT)
        full = full or "No space left" in str(e)
        raise WorldError(
            f"{path or 'memory'}: the lexical index failed: {e}",
            errno=Errno.ENOSPC if full else Errno.EIO,
        ) from e
