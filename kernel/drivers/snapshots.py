"""What a model holds of a conversation, in a file: it outlives the process that computed it.

A file is good for the same model file alone, and for the same llama-cpp-python. It holds what the
conversation held, and is readable by its owner alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from isovist.syscalls.errors import CallerError, Errno, WorldError

_MAGIC = b"isovist state 1\n"
_SAMPLE = 1 << 20


class _Head(msgspec.Struct):
    model: str
    tokens: list[int]
    size: int
    digest: bytes


def fingerprint(model: str) -> str:
    """Names a model file by its size, its beginning and its end, and by what reads it."""
    with open(model, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(file.read(_SAMPLE))
        file.seek(max(0, size - _SAMPLE))
        digest.update(file.read())
    version = importlib.metadata.version("llama-cpp-python")
    return f"{size}-{digest.hexdigest()}-{version}"


def write(path: str, model: str, tokens: list[int], state: NDArray[np.uint8]) -> None:
    """The whole file or none, flushed to disk. Raises ``EIO`` or ``ENOSPC``."""
    head = msgspec.msgpack.encode(
        _Head(model, tokens, len(state), hashlib.sha256(state.data).digest())
    )
    part = f"{path}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(_MAGIC + len(head).to_bytes(4, "little") + head)
            file.write(state.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as e:
        Path(part).unlink(missing_ok=True)
        full = e.errno == Errno.ENOSPC
        raise WorldError(
            f"{path}: {e.strerror}", errno=Errno.ENOSPC if full else Errno.EIO
        ) from None


def read(path: str, model: str) -> tuple[list[int], NDArray[np.uint8]]:
    """The tokens and the state. Raises ``ENOENT``; ``ESTALE`` for a file of another model; ``EIO``
    for one that is damaged."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise CallerError(f"no snapshot at {path}", errno=Errno.ENOENT, field="path") from None
    except OSError as e:
        raise WorldError(f"{path}: {e.strerror}") from None
    try:
        at = len(_MAGIC) + 4
        if not data.startswith(_MAGIC):
            raise ValueError("it is no snapshot of this version")
        end = at + int.from_bytes(data[at - 4 : at], "little")
        head = msgspec.msgpack.decode(data[at:end], type=_Head)
    except (msgspec.DecodeError, ValueError) as e:
        raise WorldError(f"{path} cannot be read: {e}") from None
    if head.model != model:
        raise CallerError(
            f"{path} was made with another model file or version",
            errno=Errno.ESTALE,
            field="path",
        )
    state = np.frombuffer(data, np.uint8)[end:].copy()  # of its own memory, aligned
    if len(state) != head.size or hashlib.sha256(state.data).digest() != head.digest:
        raise WorldError(f"{path} is damaged")
    return head.tokens, state
