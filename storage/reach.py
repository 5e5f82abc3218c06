"""What a walk over a graph of neighbours finds: which nodes it can come to at all, and how many of
the nearest it meets.

Neither is given. A node's links are pruned in favour of better ones, until perhaps none leads to
it any more; and where vectors have little in common (those of hashed words, say) a few nodes lie
near everything and the rest are hard to come by: of 8,700 such, a walk that kept 100 missed one
text in six that was asked for by its own words, and the nearest of all at that. Vectors of
sentences are kinder: of 40,000, one in four thousand was missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isovist.storage.dense import Vector

PROBES, NEAREST = 128, 10
"""Questions that a graph is asked, and how many of their nearest are looked for."""
_BLUR = 1.0
"""Length of what is added to a node's vector for a question: it is then 45 degrees away."""
_SEED = 100
_BLOCK = 4_096


def unreached(state: dict[str, Any]) -> NDArray[np.int32]:
    """The nodes, ascending, that no walk along the lowest layer of hnswlib's ``state`` comes to."""
    nodes, width = int(state["cur_element_count"]), int(state["size_data_per_element"])
    lowest = state["data_level0"].reshape(-1, width)[:nodes]
    links = lowest[:, : int(state["offset_data"])].view(np.uint32)
    counts = (links[:, 0] & 0xFFFF).astype(np.intp)
    seen = np.zeros(nodes, dtype=np.bool_)
    front = np.array([int(state["enterpoint_node"])], dtype=np.intp)
    while len(front):
        seen[front] = True
        some = links[front, 1:]
        there = some[np.arange(some.shape[1]) < counts[front, None]]
        front = np.unique(there[~seen[there]]).astype(np.intp)
    return np.flatnonzero(~seen).astype(np.int32)


def questions(vectors: NDArray[np.float16]) -> Vector:
    """Unit vectors from all over ``vectors`` (at least one, of unit length): some of these, each
    turned in a direction of its own. A function of ``vectors`` alone."""
    some = np.linspace(0, len(vectors) - 1, min(PROBES, len(vectors))).astype(np.intp)
    probes = vectors[some].astype(np.float32)
    dim = probes.shape[1]
    blur = np.random.default_rng(_SEED).standard_normal(probes.shape, dtype=np.float32)
    probes += blur * np.float32(_BLUR / dim**0.5)
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    return probes


def best(vectors: NDArray[np.float16], probes: Vector) -> Vector:
    """The inner product of each probe's ``NEAREST``-th nearest (the last one's, of fewer)."""
    k = min(NEAREST, len(vectors))
    kept = np.full((len(probes), 0), -np.inf, dtype=np.float32)
    for start in range(0, len(vectors), _BLOCK):
        scores = probes @ vectors[start : start + _BLOCK].astype(np.float32).T
        kept = np.concatenate((kept, scores), axis=1)
        if kept.shape[1] > k:
            kept = np.partition(kept, kept.shape[1] - k, axis=1)[:, -k:]
    return np.asarray(kept.min(axis=1), dtype=np.float32)


def recall(walk: Callable[[Vector], Vector], probes: Vector, cuts: Vector, nodes: int) -> float:
    """The mean share of the nearest that ``walk`` finds among ``nodes``: it gives the inner
    products of those that it takes for them, perhaps of more; ``cuts`` are from :func:`best`."""
    k = min(NEAREST, nodes)
    found = [int((walk(q) >= cut - 1e-5).sum()) for q, cut in zip(probes, cuts, strict=True)]
    return sum(min(n, k) for n in found) / (k * len(found))
