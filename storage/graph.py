"""One partition's vectors as a graph of near neighbours [Malkov and Yashunin 2018] (hnswlib).

Above a size a walk over a graph beats a scan of all rows. The graph is of one partition alone, so
nothing outside it can move its answers. It is built by one thread in the order of rows with a
fixed seed: the same rows give the same graph. It never changes afterwards; who holds newer rows
scans those beside it and builds another when they are many.

A walk finds most of the nearest, how many depends on the vectors. So each graph is asked when it
is built (:mod:`isovist.storage.reach`), walks as wide as its own vectors need, and says in
:attr:`Graph.recall` what it reached; nodes to which no link leads are looked at one by one.

Rows with the same vector share one node. Otherwise a node's links would all go to its own copies
and the rest become hard to reach: among 12,000 vectors of which 3,000 were one text said again
and again, half of the 50 nearest were missed.

hnswlib is an extra (``ann``): without it :func:`available` is false and a scan serves.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from isovist.storage import reach
from isovist.storage.dense import Vector, exact

CROSSOVER = 32_768
"""Rows from which a graph is worth its memory: 1.9 KB a row, five times that of codes.

Milliseconds of one core for the 50 best of 384 dimensions by exact score (median of 300 questions
on a busy machine): a scan of codes, its shortlist and the exact rows of it, beside a walk for 64
and the exact rows of those.

====== ===== ===== ===== ===== ====== ======
rows   1,000 2,000 4,000 8,000 16,000 32,000
====== ===== ===== ===== ===== ====== ======
scan    0.29  0.37  0.45  0.50   0.89   1.47
graph   0.55  0.72  1.09  0.99   1.30   1.07
====== ===== ===== ===== ===== ====== ======
"""

_LINKS = 16
_BREADTH = 100
"""``M`` and ``ef_construction``. Twice the breadth built in 1.6 to 2.7 times the time and found
at most 0.002 more of the 50 nearest at the same ``ef``."""
_SEED = 100
_BLOCK = 256
"""Rows between two looks at ``cancelled``: a fifth of a second at 100,000 rows."""

ENOUGH = 0.995
"""Of the ten nearest, what a graph must find to be of use."""
_WIDER = (1, 2, 4)
"""How many times as wide a walk is tried; wider than that a scan is faster."""
_WHOLE = 1_024
"""Nodes up to which a walk keeps all: there it costs nothing."""
_EF = ((8_192, 100), (32_768, 160), (65_536, 220), (131_072, 300), (524_288, 500))
"""Candidates a walk keeps (``ef``) at first, up to a size; 800 above all.

For 0.995 of the 10 nearest and 0.98 of the 50. Measured on clustered vectors of 384 dimensions,
400 queries, recall of the 10 and of the 50 nearest:

======= ============= ============= ============= =============
nodes   ef 100        ef 150        ef 200        ef 300
======= ============= ============= ============= =============
5,000   1.000  .998   1.000  .999   1.000 1.000   1.000 1.000
20,000  1.000  .989   1.000  .993   1.000  .996   1.000  .998
100,000  .996  .969    .999  .979    .999  .983    .999  .988
======= ============= ============= ============= =============

On vectors of real sentences 250,000 needed 400 and a million 800 for the same.
"""
_NEAREST = 50
"""Neighbours asked for in that table; who asks for more gets a walk as much wider."""

_MAGIC = b"isovist graph 2\n"
_HASHED = len(_MAGIC) + 32
"""A file: magic, digest of all that follows, stamp, header's length (uint32), header, sections.
The vectors stand in it as float16 and once, so it weighs half of what hnswlib itself writes."""


class _Header(msgspec.Struct):
    rows: int
    nodes: int
    dim: int
    upper: int
    """Bytes of the links above the lowest layer."""
    ef: int
    recall: float
    numbers: dict[str, bool | int | float | str]
    """hnswlib's own, as it gives them."""


def available() -> bool:
    """Whether hnswlib is installed."""
    return importlib.util.find_spec("hnswlib") is not None


def stamp_of(rows: NDArray[np.int64], vectors: bytes) -> bytes:
    """What a graph was built of and how: 32 bytes, other for any other content.

    ``vectors``: what tells the vectors of these rows from others, such as a hash of them; or the
    model's name, where a row's vector never changes under one model.
    """
    version = importlib.metadata.version("hnswlib") if available() else ""
    recipe = f"{version} {_LINKS} {_BREADTH} {_SEED} {len(rows)} {len(vectors)} "
    digest = blake2b(recipe.encode(), digest_size=32)
    digest.update(vectors)
    digest.update(rows.astype("<i8").tobytes())
    return digest.digest()


def ef_of(nodes: int) -> int:
    """At first: see :meth:`Graph.build`."""
    if nodes <= _WHOLE:
        return max(nodes, _NEAREST)
    return next((ef for size, ef in _EF if nodes <= size), 800)


class Graph:
    """An immutable graph by inner product. Its labels are rows of chunks.

    Invariants: ``rows`` ascends strictly; ``_node[i]`` is the node of ``rows[i]``, and two rows
    share a node iff their vectors are equal to the bit; nodes count in order of their first row.
    ``_strays`` are the nodes that no walk comes to. ``ef`` is set before anyone asks, so
    :meth:`nearest` may run in any thread, also while other graphs are built, loaded or saved.
    """

    __slots__ = (
        "_index", "_mapped", "_members", "_node", "_starts", "_strays", "_vectors", "dim", "ef",
        "recall", "rows",
    )  # fmt: skip

    def __init__(
        self,
        index: Any,
        rows: NDArray[np.int64],
        node: NDArray[np.int32],
        vectors: NDArray[np.float16],
        strays: NDArray[np.int32],
        *,
        mapped: bool,
    ) -> None:
        self.dim = vectors.shape[1]
        self.rows = rows
        self._index = index
        self._node = node
        self._vectors = vectors
        self._mapped = mapped
        self._members = np.argsort(node, kind="stable").astype(np.int32)
        self._starts = np.zeros(len(vectors) + 1, dtype=np.int32)
        np.cumsum(np.bincount(node, minlength=len(vectors)), out=self._starts[1:])
        self._strays = strays
        self.ef = 0
        self.recall = 0.0
        """The share of the ten nearest that it found when it was asked."""

    def _set(self, ef: int, recall: float) -> Graph:
        self.ef, self.recall = ef, recall
        self._index.set_ef(ef)
        return self

    def _measure(self) -> Graph:
        """Walk as wide as is needed to find enough, or as is of use."""
        probes = reach.questions(self._vectors)
        cuts = reach.best(self._vectors, probes)

        def walk(query: Vector) -> Vector:
            return self._walk(query, reach.NEAREST)[1]

        for times in _WIDER:
            self._set(ef_of(len(self._vectors)) * times, 0.0)
            self.recall = reach.recall(walk, probes, cuts, len(self._vectors))
            if self.recall >= ENOUGH:
                break
        return self

    @property
    def size(self) -> int:
        """Rows it holds."""
        return len(self.rows)

    @property
    def memory(self) -> int:
        """Bytes of anonymous memory, as measured: a node's vector, links, lock and label."""
        nodes = len(self._vectors)
        own = self.rows.nbytes + self._node.nbytes + self._members.nbytes + self._starts.nbytes
        kept = 0 if self._mapped else self._vectors.nbytes
        hnswlib = nodes * (4 * self.dim + 8 * _LINKS + 130) + 65_536 * 40  # the latter: locks
        return int(hnswlib + own + kept)

    @classmethod
    def build(
        cls,
        rows: NDArray[np.int64],
        vectors: NDArray[np.float16],
        *,
        cancelled: Callable[[], bool],
    ) -> Graph | None:
        """A graph of ``vectors``, one a row, ``rows`` ascending and at least one; ``None`` if
        ``cancelled`` said so meanwhile. Of one thread; the interpreter is free most of the time.
        Where its ``recall`` is below :data:`ENOUGH`, a scan is to be preferred.
        The arrays must not change afterwards. Raises ``ValueError`` for rows that do not ascend.
        """
        if not len(rows) or len(rows) != len(vectors) or not (rows[1:] > rows[:-1]).all():
            raise ValueError("rows must ascend strictly and be as many as the vectors, not none")
        vectors = np.ascontiguousarray(vectors)
        node = np.empty(len(rows), dtype=np.int32)
        known: dict[bytes, int] = {}
        first: list[int] = []
        for start, block in _blocks(vectors):
            if cancelled():
                return None
            for i, vector in enumerate(block, start):
                key = blake2b(vector, digest_size=16).digest()
                node[i] = number = known.setdefault(key, len(first))
                if number == len(first):
                    first.append(i)
        del known
        nodes = vectors if len(first) == len(vectors) else vectors[first]
        index = importlib.import_module("hnswlib").Index("ip", nodes.shape[1])
        index.init_index(len(nodes), M=_LINKS, ef_construction=_BREADTH, random_seed=_SEED)
        for start, block in _blocks(nodes):
            if cancelled():
                return None
            labels = np.arange(start, start + len(block))
            index.add_items(block.astype(np.float32), labels, num_threads=1)
        strays = reach.unreached(index.__getstate__()[0])
        return cls(index, rows.astype(np.int64), node, nodes, strays, mapped=False)._measure()

    def nearest(self, query: Vector, k: int) -> tuple[NDArray[np.int64], Vector]:
        """About the ``k`` best rows (``k`` at least 1; all, if there are fewer) with their inner
        products to within 1e-6: best first, by row where equal. A function of graph and query.
        """
        k = min(k, self.size)
        found, scores = self._walk(query, k)
        lengths = self._starts[found + 1] - self._starts[found]
        first = np.repeat(self._starts[found] - (np.cumsum(lengths) - lengths), lengths)
        members = self._members[first + np.arange(len(first))]
        rows, approx = self.rows[members], np.repeat(scores, lengths)
        order = np.lexsort((rows, -approx))[:k]
        return rows[order], approx[order]

    def _walk(self, query: Vector, k: int) -> tuple[NDArray[np.intp], Vector]:
        """About the ``k`` best nodes, and perhaps more, in no order; their inner products."""
        nodes, strays = len(self._vectors), self._strays
        # hnswlib walks with the wider of ``ef`` and what is asked for.
        wide = max(k, math.ceil(self.ef * k / _NEAREST)) if k > _NEAREST else k
        with suppress(RuntimeError):  # so it says that fewer nodes than that can be reached
            wide = max(min(wide, nodes - len(strays)), 1)
            labels, distances = self._index.knn_query(query, k=wide, num_threads=1)
            found, scores = labels[0].astype(np.intp), np.float32(1) - distances[0]
            if len(strays):
                met = ~np.isin(found, strays)  # from another entry than the topmost perhaps
                theirs = exact(self._vectors[strays].astype(np.float32), query)
                found = np.concatenate((found[met], strays.astype(np.intp)))
                scores = np.concatenate((scores[met], theirs))
            if len(found) >= min(k, nodes):
                return found, scores
        parts = [exact(b.astype(np.float32), query) for _, b in _blocks(self._vectors)]
        return np.arange(nodes), np.concatenate(parts)

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of ``rows`` it holds."""
        at = np.minimum(np.searchsorted(self.rows, rows), self.size - 1)
        held: NDArray[np.bool_] = self.rows[at] == rows
        return held

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """The vectors of ``rows``, bit for bit as they were put in. Raises ``KeyError`` for a row
        that is not there."""
        at = np.minimum(np.searchsorted(self.rows, rows), self.size - 1)
        if not (self.rows[at] == rows).all():
            raise KeyError("a row is not in the graph")
        return self._vectors[self._node[at]]

    def save(self, path: Path, stamp: bytes) -> None:
        """Write the graph to ``path``: beside it first, then in its place. From then on the
        vectors are read from the file and no longer kept in memory a second time.

        hnswlib holds the interpreter while it copies its state out (1.5 µs a node). Raises
        ``OSError``; at ``path`` is then still what was there, or all of the new, and nothing
        beside it. A killed process may leave ``path`` + ``.new``, which the next call overwrites.
        """
        state = self._index.__getstate__()[0]
        numbers = {k: v for k, v in state.items() if not isinstance(v, np.ndarray)}
        lowest = state["data_level0"].reshape(len(self._vectors), -1)
        upper = state["link_lists"].tobytes()
        header = msgspec.json.encode(
            _Header(
                rows=self.size,
                nodes=len(self._vectors),
                dim=self.dim,
                upper=len(upper),
                ef=self.ef,
                recall=self.recall,
                numbers=numbers,
            )
        )
        header = header.ljust(-(-(len(header) + 4) // 8) * 8 - 4)

        def sections() -> Iterator[Any]:
            yield stamp + len(header).to_bytes(4, "little") + header
            yield self.rows.astype("<i8", copy=False)
            yield self._node.astype("<i4", copy=False)
            yield state["element_levels"]
            for _, block in _blocks(self._vectors):
                yield block
            for _, block in _blocks(lowest):
                yield block[:, : state["offset_data"]].copy()
            yield upper

        beside = path.with_name(path.name + ".new")
        digest = blake2b(digest_size=32)
        try:
            with open(os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600), "w+b") as file:
                file.write(bytes(_HASHED))
                for section in sections():
                    digest.update(section)
                    file.write(section)
                file.seek(0)
                file.write(_MAGIC + digest.digest())
                file.flush()
                os.fsync(file.fileno())
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            os.replace(beside, path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._vectors = _sections(content)[1].vectors
        self._mapped = True

    @classmethod
    def load(cls, path: Path, stamp: bytes, dim: int) -> Graph | None:
        """The graph saved at ``path`` with this ``stamp``; ``None`` for a file that is missing,
        cannot be read, is of another stamp, dimension or format, or differs in a single bit from
        what was written; and where hnswlib is not installed."""
        if not available():
            return None
        digest = blake2b(digest_size=32)
        try:
            with open(path, "rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    return None
                written, marked = file.read(32), file.read(len(stamp))
                if marked != stamp:
                    return None
                # Read, not mapped: a sector that cannot be read is then an error, not a signal.
                digest.update(marked)
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                if digest.digest() != written:
                    return None
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:
            return None
        header, parts = _sections(content)  # the file is what `save` wrote
        if header.dim != dim:
            return None
        numbers = header.numbers
        width, vector, label = (
            int(numbers[name]) for name in ("size_data_per_element", "offset_data", "label_offset")
        )
        lowest = np.empty((header.nodes, width), dtype=np.int8)
        for start, block in _blocks(parts.vectors):
            part = lowest[start : start + len(block)]
            labels = np.arange(start, start + len(block), dtype=np.uint64)
            part[:, :vector] = parts.links[start : start + len(block)]
            part[:, vector:label] = block.astype(np.float32).view(np.int8)
            part[:, label:] = labels[:, None].view(np.int8)
        state = {
            **numbers,
            "data_level0": lowest.reshape(-1),
            "element_levels": parts.levels,
            "link_lists": parts.upper,
            "label_lookup_external": np.arange(header.nodes, dtype=np.uint64),
            "label_lookup_internal": np.arange(header.nodes, dtype=np.uint32),
        }
        kind = importlib.import_module("hnswlib").Index
        index = kind.__new__(kind)
        index.__setstate__((state,))
        found = cls(
            index, parts.rows, parts.node, parts.vectors, reach.unreached(state), mapped=True
        )
        return found._set(header.ef, header.recall)


class _Sections(NamedTuple):
    rows: NDArray[np.int64]
    node: NDArray[np.int32]
    levels: NDArray[np.int32]
    vectors: NDArray[np.float16]
    links: NDArray[np.int8]
    upper: NDArray[np.int8]


def _sections(content: mmap.mmap) -> tuple[_Header, _Sections]:
    """The parts of a sound file, none of them copied."""
    at = _HASHED + 32
    start = at + 4 + int.from_bytes(content[at : at + 4], "little")
    header = msgspec.json.decode(content[at + 4 : start], type=_Header)
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("<i8", (header.rows,)),
        ("<i4", (header.rows,)),
        ("<i4", (header.nodes,)),
        ("<f2", (header.nodes, header.dim)),
        ("i1", (header.nodes, int(header.numbers["offset_data"]))),
        ("i1", (header.upper,)),
    ]
    parts: list[Any] = []
    for kind, shape in shapes:
        count = math.prod(shape)
        parts.append(np.frombuffer(content, kind, count, start).reshape(shape))
        start += parts[-1].nbytes
    return header, _Sections(*parts)


def _blocks(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    for start in range(0, len(array), _BLOCK):
        yield start, array[start : start + _BLOCK]
