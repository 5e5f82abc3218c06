"""What an index must know of a committed operation, and of a partition found on disk.

The store fills these in when it commits (it alone knows the numbers that SQLite gave out), the
engine takes them in when they are applied. Numbers in here never show in an answer.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from isovist.storage.prepared import Prepared
from isovist.syscalls.operations import Outcome
from isovist.syscalls.records import Partition

NEVER = (1 << 63) - 1
"""When what does not expire expires."""


class Piece(msgspec.Struct, frozen=True):
    """One chunk: its row in the store, its length in terms, and its terms (tid → count)."""

    row: int
    length: int
    terms: dict[int, int]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that took effect. What is not of its kind is empty.

    ``Put``: ``pid``, ``uid``, ``pieces``, ``hash``, and ``older`` where it supersedes a unit.
    ``Replace``: ``pid``, ``uid``, ``rows`` (of before), ``pieces`` (all new rows), ``hash``.
    ``Expire``, ``Vectors``: ``pid``, ``uid``, ``rows``.
    ``Drop``: the same, and ``newer`` where units inherit what it superseded, ``older``.
    ``Move``: ``pid`` (from), ``to_pid``, ``uid``, ``rows`` (those before), ``pieces`` (new rows),
    ``hash``, ``kind``, ``said_at``, ``expires_at``, and ``vectors`` where they moved along.
    """

    outcome: Outcome
    pid: int
    uid: int
    to_pid: int = 0
    pieces: tuple[Piece, ...] = ()
    rows: tuple[int, ...] = ()
    hash: str = ""
    kind: str = ""
    said_at: int = 0
    expires_at: int | None = None
    older: int = 0
    """The uid of the superseded unit; 0: none."""
    newer: tuple[int, ...] = ()
    """``Put``: uids of the same pair that name this id as superseded already; it was forgotten or
    exported, and is back. ``Drop``: uids that supersede ``older`` from now on."""
    vectors: tuple[bytes, ...] = ()
    prepared: Prepared | None = None
    """The text with its words, for an engine that keeps words itself."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A partition at start: one entry a chunk, in ascending ``row``."""

    pid: int
    partition: Partition
    row: NDArray[np.int64]
    uid: NDArray[np.int64]
    seq: NDArray[np.int64]
    number: NDArray[np.int64]
    said: NDArray[np.int64]
    expires: NDArray[np.int64]
    """``NEVER`` where it does not."""
    kind: NDArray[np.int64]
    """Place in ``KINDS``."""
    hash: NDArray[np.int64]
    """:func:`short_hash` of the unit's text hash."""
    length: NDArray[np.int64]
    handle: NDArray[np.int64]
    """:func:`short_name` of the unit's session."""
    round: NDArray[np.int64]
    embedded: NDArray[np.bool_]
    """Whether the chunk has its vector."""


class Link(msgspec.Struct, frozen=True):
    """Unit ``newer`` supersedes unit ``older`` (uids); both of the same pair."""

    newer: int
    older: int


def short_hash(hash_: str) -> int:
    """The first 64 bits of a SHA-256 in hexadecimal, signed: what duplicates are told by."""
    return int.from_bytes(bytes.fromhex(hash_[:16]), "little", signed=True)


@lru_cache(maxsize=1 << 14)
def short_name(handle: str) -> int:
    """A session's name in 64 bits, signed; 0 for none."""
    if not handle:
        return 0
    return int.from_bytes(blake2b(handle.encode(), digest_size=8).digest(), "little", signed=True)
