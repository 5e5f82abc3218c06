"""Who takes part in learning: a model to ask, a splitter, writers, a judge for reviews.

Each is told all that it may know in its one argument and keeps nothing between two calls, so two
writers never share a context [M]. None of them is trusted: what they answer is checked by the
kernel (:mod:`isovist.kernel.state.lessons`, :mod:`isovist.kernel.learning.scan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isovist.kernel.state.lessons import Attempt, Brief, Operation, Streams
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Tool


class Model(Protocol):
    """A model that is asked on behalf of one user, through the kernel's own chat syscall without
    memory. ``name`` is empty until it has answered once."""

    @property
    def name(self) -> str: ...

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together."""
        ...

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
    ) -> Chatted:
        """``choice`` is the chat syscall's: whether one of the tools has to be called. Raises
        :class:`IsovistError`: the world's where another try may help, the caller's where the
        prompt is too long."""
        ...


class Splitter(Protocol):
    async def split(self, attempt: Attempt) -> Streams:
        """Raises :class:`Unusable` where no answer could be made use of."""
        ...


class Writer(Protocol):
    async def write(self, brief: Brief) -> tuple[Operation, ...]:
        """What to keep; nothing is a good answer. Raises :class:`Unusable`."""
        ...


class Unusable(Exception):
    """Three tries gave nothing that can be read; the text says what was wrong with the last, and
    quotes nothing of it."""
