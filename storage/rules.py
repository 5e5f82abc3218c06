"""The rules of a write that every store keeps, and how an operation that breaks one ends."""

from __future__ import annotations

import msgspec
import numpy as np

from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Op, Outcome, Vectors


class Refused(Exception):
    """One operation does not take effect; the others of its group do."""

    def __init__(self, errno: Errno, message: str) -> None:
        super().__init__(message)
        self.errno = errno
        self.message = message


def failed(op: Op, e: Exception) -> Outcome:
    """How ``op`` ends where ``e`` stopped it. What is not :class:`Refused` is a bug of ours: its
    type is told and not its words, which may quote memory."""
    if isinstance(e, Refused):
        return Outcome(op=op, errno=int(e.errno), message=e.message)
    return Outcome(op=op, errno=int(Errno.EKERNEL), message=f"a bug: {type(e).__name__}")


def gone() -> Refused:
    return Refused(Errno.ENOENT, "no such unit")


def stale(asked: int, found: int) -> Refused:
    return Refused(Errno.ESTALE, f"version {asked} was named, the unit has version {found}")


def no_older(id_: str) -> Refused:
    return Refused(Errno.ENOENT, f"supersedes: no living unit {id_!r} of this user and agent")


def twin() -> Refused:
    return Refused(Errno.EEXIST, "another unit of this user and agent already has this text")


def check(op: Op) -> None:
    """What no store can keep is refused: lone surrogates, numbers beyond 64 bits."""
    try:
        msgspec.msgpack.encode(op)
    except (UnicodeEncodeError, OverflowError) as e:
        raise Refused(Errno.EINVAL, f"a value cannot be stored: {e}") from None
    for name in op.__struct_fields__:
        value = getattr(op, name)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise Refused(Errno.EINVAL, f"{name} does not fit 64 bits")


def check_vectors(op: Vectors, name: str, dim: int, chunks: int) -> None:
    """The vectors must be of the store's model, one a chunk, each ``dim`` floats of unit length
    (the bound on rounding in the dense leg rests on that)."""
    if op.model != name:
        raise Refused(Errno.EINVAL, f"model is {op.model!r}, the store's is {name!r}")
    if len(op.vectors) != chunks:
        raise Refused(Errno.EINVAL, f"vectors: {len(op.vectors)} for {chunks} chunks")
    for vector in op.vectors:
        if len(vector) != 4 * dim:
            raise Refused(Errno.EINVAL, f"vectors: each must have {4 * dim} bytes")
        row = np.frombuffer(vector, "<f4")
        if not abs(float((row * row).sum()) - 1.0) < 1e-3:
            raise Refused(Errno.EINVAL, "vectors: each must have unit length")
