"""The rules of a write that every store keeps, and how an operation that breaks one ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from isovist.syscalls.errors import Errno
from isovist.syscalls.names import LAST_VERSION
from isovist.syscalls.operations import Op, Outcome, Put, Vectors
from isovist.syscalls.records import ALL, KINDS, Axis, Partition

LAST_ROUND = (1 << 31) - 1
"""The highest number of a round."""


class Refused(Exception):
    """One operation does not take effect; the others of its group do."""

    def __init__(self, errno: Errno, message: str, field: str = "") -> None:
        super().__init__(message)
        self.errno = errno
        self.message = message
        self.field = field


def failed(op: Op, e: Exception) -> Outcome:
    """How ``op`` ends where ``e`` stopped it. What is not :class:`Refused` is a bug of ours: its
    type is told and not its words, which may quote memory."""
    if isinstance(e, Refused):
        return Outcome(op=op, errno=int(e.errno), message=e.message, field=e.field)
    return Outcome(op=op, errno=int(Errno.EKERNEL), message=f"a bug: {type(e).__name__}")


def gone() -> Refused:
    return Refused(Errno.ENOENT, "no such unit", "id")


def moved() -> Refused:
    """Found by its owner and moved before the change came to be: it is there still, and what was
    to be forgotten must not pass for gone."""
    return Refused(Errno.ESTALE, "the unit has another audience since it was looked up", "id")


def stale(asked: int, found: int) -> Refused:
    return Refused(
        Errno.ESTALE, f"version {asked} was named, the unit has version {found}", "version"
    )


def no_older(id_: str) -> Refused:
    what = f"supersedes: no living unit {id_!r} of this user and agent"
    return Refused(Errno.ENOENT, what, "supersedes")


def ring(id_: str) -> Refused:
    """A unit that superseded itself, over whatever others, would hide itself and all of them."""
    what = f"supersedes: {id_!r} already supersedes this unit, itself or by others"
    return Refused(Errno.EINVAL, what, "supersedes")


def rival(id_: str, newer: str) -> Refused:
    """Two corrections of one unit made beside each other: the later one must look at the earlier.
    Units of the same pair and partition alone are rivals, so the writer may see the one that is
    named; of those elsewhere it must not even learn that they are."""
    what = f"supersedes: {id_!r} is superseded already, by {newer!r}"
    return Refused(Errno.ESTALE, what, "supersedes")


def not_expired() -> Refused:
    return Refused(Errno.ESTALE, "the unit has not expired")


def twin() -> Refused:
    return Refused(Errno.EEXIST, "another unit of this user and agent already has this text", "id")


def nowhere() -> Refused:
    return Refused(Errno.EINVAL, "scope: the unit is there already", "scope")


def round_after(highest: int | None) -> int:
    """The round that follows in a session whose highest one is this (``None``: it is new)."""
    return min((highest or 0) + 1, LAST_ROUND)


def owned_by(user: str, owner: str, partition: Partition) -> bool:
    """Whether forgetting ``user`` takes a unit along: the user owns it, or nobody else was ever
    meant to see it."""
    return owner == user or partition.users == Axis("one", user)


def without(name: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)


def covers(wide: Partition, narrow: Partition) -> bool:
    """Whether every view that holds ``narrow`` holds ``wide`` too, whoever is in which group.

    A unit that is superseded stops standing for its text only then: else a reader who does not
    see the newer unit would learn of it, since the same text, said once more, would be stored
    beside the older one.
    """
    return wide.users in (ALL, narrow.users) and wide.agents in (ALL, narrow.agents)


def outdated(op: Vectors, version: int, wrote: int) -> bool:
    """Whether the vectors are of another text than that of the unit, which has this version and
    got its text with sequence number ``wrote``: a new expiry is a new version of the same text."""
    return op.version > version or (op.version < version and op.seq != wrote)


def check(op: Op) -> None:
    """What no store can keep is refused: lone surrogates, numbers beyond 64 bits, kinds that are
    none."""
    try:
        msgspec.msgpack.encode(op)
    except (UnicodeEncodeError, OverflowError) as e:
        raise Refused(Errno.EINVAL, f"a value cannot be stored: {e}") from None
    for name in op.__struct_fields__:
        value = getattr(op, name)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise Refused(Errno.EINVAL, f"{name} does not fit 64 bits")
    if op.version > LAST_VERSION:
        raise Refused(Errno.EINVAL, f"version must be at most {LAST_VERSION}", "version")
    if isinstance(op, Put) and op.supersedes == op.id:
        raise ring(op.id)
    if isinstance(op, Put) and op.kind not in KINDS:
        raise Refused(Errno.EINVAL, "kind: not one of " + ", ".join(KINDS))


def check_vectors(op: Vectors, name: str, dim: int, chunks: int) -> None:
    """The vectors must be of the store's model, one a chunk, each ``dim`` little-endian float16
    values of unit length (the bound on rounding in the dense leg rests on that)."""
    if op.model != name:
        raise Refused(Errno.EINVAL, f"model is {op.model!r}, the store's is {name!r}")
    if len(op.vectors) != chunks:
        raise Refused(Errno.EINVAL, f"vectors: {len(op.vectors)} for {chunks} chunks")
    for vector in op.vectors:
        if len(vector) != 2 * dim:
            raise Refused(Errno.EINVAL, f"vectors: each must have {2 * dim} bytes")
        row = np.frombuffer(vector, "<f2").astype(np.float32)
        if not abs(float((row * row).sum()) - 1.0) < 1e-3:
            raise Refused(Errno.EINVAL, "vectors: each must have unit length")
