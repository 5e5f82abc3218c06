"""A chunk's forward vector: its terms with their counts, packed for the store.

A byte says how: 3, the usual form, is the first term's number as uint32, then n steps from one
number to the next as uint16 (the first is 0), then n counts of one byte. Where a step or a count
is wider than that, 1 and 2 have the n numbers as uint32, then counts of so many bytes. All is
little-endian, numbers ascend. Read by numpy, many at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def pack(counts: Mapping[int, int]) -> bytes:
    """``counts``: by term number (0 to 2³²−1) how often it stands in the chunk (1 to 65,535)."""
    tids = np.fromiter(counts, dtype="<u4", count=len(counts))
    tfs = np.fromiter(counts.values(), dtype="<u2", count=len(counts))
    order = tids.argsort()
    tids, tfs = tids[order], tfs[order]
    if len(tfs) and int(tfs.max()) > 255:
        return b"\x02" + tids.tobytes() + tfs.tobytes()
    steps = np.diff(tids, prepend=tids[:1])
    if len(steps) and int(steps.max()) < 1 << 16:
        head = b"\x03" + tids[:1].tobytes()
        return head + steps.astype("<u2").tobytes() + tfs.astype("u1").tobytes()
    return b"\x01" + tids.tobytes() + tfs.astype("u1").tobytes()


def _size(blob: bytes) -> int:
    """How many terms."""
    return (len(blob) - 5) // 3 if blob[0] == 3 else (len(blob) - 1) // (4 + blob[0])


def _open(blob: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint8] | NDArray[np.uint16]]:
    n = _size(blob)
    if blob[0] == 3:
        steps = np.frombuffer(blob, dtype="<u2", count=n, offset=5)
        first = np.frombuffer(blob, dtype="<u4", count=1, offset=1)
        tids = (first + np.cumsum(steps, dtype=np.uint32)).astype("<u4", copy=False)
        return tids, np.frombuffer(blob, dtype="u1", offset=5 + 2 * n)
    tids = np.frombuffer(blob, dtype="<u4", count=n, offset=1)
    return tids, np.frombuffer(blob, dtype="u1" if blob[0] == 1 else "<u2", offset=1 + 4 * n)


def unpack(blob: bytes) -> dict[int, int]:
    tids, tfs = _open(blob)
    return dict(zip(tids.tolist(), tfs.tolist(), strict=True))


def contents(
    blobs: Sequence[bytes],
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.intp]]:
    """Of all chunks one after the other: the terms' numbers, their counts, and the place of the
    chunk that holds them."""
    if not blobs:
        return np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.intp)
    kinds = [blob[0] for blob in blobs]
    if kinds.count(kinds[0]) == len(kinds):
        return _alike(blobs)
    found: list[tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.intp]]] = []
    for kind in sorted(set(kinds)):
        places = [place for place, own in enumerate(kinds) if own == kind]
        numbers, tfs, holders = _alike([blobs[place] for place in places])
        found.append((numbers, tfs, np.array(places, dtype=np.intp)[holders]))
    tids, counts, holders = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(holders, kind="stable")
    return tids[order], counts[order], holders[order]


def _alike(
    blobs: Sequence[bytes],
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.intp]]:
    """The same of chunks, at least one, that are packed in one way."""
    sizes = np.array([_size(blob) for blob in blobs])
    holders = np.repeat(np.arange(len(blobs)), sizes)
    # Bytes are joined first: an array a chunk would take ten times as long.
    pairs = list(zip(blobs, sizes.tolist(), strict=True))
    if blobs[0][0] != 3:
        kind = "u1" if blobs[0][0] == 1 else "<u2"
        numbers = np.frombuffer(b"".join([blob[1 : 1 + 4 * n] for blob, n in pairs]), "<u4")
        tfs = np.frombuffer(b"".join([blob[1 + 4 * n :] for blob, n in pairs]), kind)
        return numbers, tfs.astype(np.uint16), holders
    firsts = np.frombuffer(b"".join([blob[1:5] for blob in blobs]), "<u4")
    steps = np.frombuffer(b"".join([blob[5 : 5 + 2 * n] for blob, n in pairs]), "<u2")
    counts = np.frombuffer(b"".join([blob[5 + 2 * n :] for blob, n in pairs]), "u1")
    walked = np.cumsum(steps, dtype=np.int64)
    # Each chunk's first step is 0, so what was walked there is what came before the chunk.
    before = walked[np.cumsum(sizes) - sizes]
    tids = (walked + np.repeat(firsts - before, sizes)).astype(np.uint32)
    return tids, counts.astype(np.uint16), holders


def frequencies(blobs: Sequence[bytes], tids: Sequence[int]) -> NDArray[np.float64]:
    """How often each of ``tids`` stands in each chunk: one row a blob, one column a term."""
    found, counts, holders = contents(blobs)
    return table(found, counts, holders, len(blobs), tids)


def table(
    found: NDArray[np.uint32],
    counts: NDArray[np.uint16],
    holders: NDArray[np.intp] | NDArray[np.int32],
    size: int,
    tids: Sequence[int],
) -> NDArray[np.float64]:
    """The same of ``size`` chunks, from what :func:`contents` gives of them."""
    table = np.zeros((size, len(tids)))
    if not len(found) or not tids:
        return table
    order = np.argsort(np.array(tids))
    asked = np.array(tids)[order]
    place = np.minimum(np.searchsorted(asked, found), len(asked) - 1)
    hit = asked[place] == found
    table[holders[hit], order[place[hit]]] = counts[hit]
    return table
