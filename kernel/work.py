"""What the kernel does between two rounds of I/O, one piece at a time, and whose turn it is."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Piece = Callable[[], bool]
"""A piece of work; false where there was nothing left to do, which costs nobody a turn."""


class Work(Generic[T]):
    """What others wait for first (committed writes); then one of each channel in turn, so that
    whoever asks much stands before nobody but itself.

    Invariant: ``_turns`` holds no empty queue.
    """

    def __init__(self) -> None:
        self._first: deque[T] = deque()
        self._turns: OrderedDict[int, deque[T]] = OrderedDict()

    def first(self, piece: T) -> None:
        self._first.append(piece)

    def add(self, channel: int, piece: T) -> None:
        self._turns.setdefault(channel, deque()).append(piece)

    def pop(self) -> T:
        """The next piece. Raises :class:`IndexError` where there is none."""
        if self._first:
            return self._first.popleft()
        if not self._turns:
            raise IndexError("no work")
        channel, queue = self._turns.popitem(last=False)
        piece = queue.popleft()
        if queue:
            self._turns[channel] = queue
        return piece

    def __len__(self) -> int:
        return len(self._first) + sum(map(len, self._turns.values()))

    def __bool__(self) -> bool:
        return bool(self._first or self._turns)
