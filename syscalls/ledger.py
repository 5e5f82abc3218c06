"""What the kernel has entered in the store's ledger: effects, mail, timers.

Each entry is one atomic change that the store decides on what it holds, and the answer says what
it decided; entries that wait together share one flush. So what must happen once happens in one
transaction: a message and the record of its key, a timer's message and its next time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.effects import Effect, Phase
from isovist.syscalls.abi.mail import Mail, MailBox
from isovist.syscalls.abi.timers import Timer

MAX_KEY = 256
"""Bytes of a key."""
MAX_SUBJECT = 1024
MAX_ARGUMENTS, MAX_RESULT = 4096, 16_384
"""Bytes of a body that is kept as text; a longer one is kept as its hash and size."""
MAX_OPEN, MAX_ENDED = 256, 1000
"""Effects of one pair that have not ended, or are unknown; and of those that have, the latest."""
MAX_MAIL, MAX_MAIL_BYTES = 1000, 4 << 20
"""What a box holds at most: messages, and bytes of their texts."""
MAX_TIMERS = 64
"""Timers of one pair."""
MAX_TIMER_TEXT = 4096


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all entries."""


class Begin(Entry, frozen=True, kw_only=True):
    """Begin ``effect``, unless its key knows better. Raises ``EINVAL`` where the key stands for
    something else, ``EDQUOT`` where too much of the pair is open. Answers :class:`Begun`."""

    effect: Effect


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The record as it stands; ``fresh`` iff the effect is to be carried out now."""

    effect: Effect
    fresh: bool


class Withdraw(Entry, frozen=True, kw_only=True):
    """Effect ``id`` was begun and never carried out: nothing is known of its key any more, or only
    what was known before it was begun again. Answers ``None``."""

    id: str


class End(Entry, frozen=True, kw_only=True):
    """Effect ``id`` came to ``state``. Raises ``ENOENT``, and ``ESTALE`` where it has ended
    otherwise. ``user``, ``agent`` and ``kind`` narrow, where they are not empty, whose and what it
    may be. Answers the :class:`Effect`."""

    id: str
    state: Phase
    at: int
    result: str = ""
    errno: int = 0
    message: str = ""
    user: str = ""
    agent: str = ""
    kind: str = ""


class Resolve(Entry, frozen=True, kw_only=True):
    """Somebody says what became of effect ``id`` of the pair (empty names: of any). Raises
    ``ENOENT``, and ``ESTALE`` where nothing is to be said. Answers the :class:`Effect`."""

    id: str
    outcome: Literal["done", "failed", "retry"]
    result: str
    at: int
    user: str = ""
    agent: str = ""


class Send(Entry, frozen=True, kw_only=True):
    """Put ``mail`` into the box of the pair (``agent``, ``user``), and ``effect`` down as done with
    the message's id, both or neither. Raises ``EINVAL`` as :class:`Begin`, ``EAGAIN`` where the box
    is full. Answers :class:`Sent`."""

    mail: Mail
    agent: str
    user: str
    effect: Effect


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fresh: bool
    secrets: dict[str, int] = {}


class Ack(Entry, frozen=True, kw_only=True):
    """Remove these of the pair's box. Answers how many were there."""

    agent: str
    user: str
    ids: tuple[str, ...]


class SetTimer(Entry, frozen=True, kw_only=True):
    """Keep ``timer``, in place of one of its id. Raises ``EDQUOT``. Answers the :class:`Timer`."""

    timer: Timer


class DropTimer(Entry, frozen=True, kw_only=True):
    """End a timer of the pair. Raises ``ENOENT``. Answers the :class:`Timer`."""

    id: str
    agent: str
    user: str


class Fire(Entry, frozen=True, kw_only=True):
    """Timer ``id``, which was due at ``due``, gives ``mails`` into its pair's box and is due next
    at ``next_at`` (0: never, it ends). Raises ``EAGAIN`` where the box is full, ``ENOENT`` where it
    is gone, is another by now, or has fired. Answers ``None``."""

    id: str
    due: int
    mails: tuple[Mail, ...]
    next_at: int


class Recover(Entry, frozen=True, kw_only=True):
    """A life of the kernel begins: what is ``started`` is ``unknown`` from here on, and so stays
    for whoever is asked. Answers how many there were."""

    at: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all questions to the ledger; they change nothing."""


class FindEffects(Question, frozen=True, kw_only=True):
    """Effects, those that changed last first; an empty name or choice stands for all. Answers a
    tuple of :class:`Effect`, with texts iff ``texts``."""

    user: str = ""
    agent: str = ""
    id: str = ""
    key: str = ""
    states: tuple[Phase, ...] = ()
    kinds: tuple[str, ...] = ()
    limit: int = 20
    texts: bool = False


class FindMail(Question, frozen=True, kw_only=True):
    """The oldest ``limit`` messages of a box that are not ``but`` these. Answers
    :class:`MailFound`."""

    agent: str
    user: str
    limit: int
    but: tuple[str, ...] = ()


class MailFound(msgspec.Struct, frozen=True, kw_only=True):
    mails: tuple[Mail, ...]
    left: int


class FindBoxes(Question, frozen=True, kw_only=True):
    """Boxes that hold something; an empty name stands for all. Answers a tuple of
    :class:`MailBox`."""

    user: str = ""
    agent: str = ""


class FindTimers(Question, frozen=True, kw_only=True):
    """Timers, next first; an empty name stands for all. Answers a tuple of :class:`Timer`."""

    user: str = ""
    agent: str = ""


__all__ = [
    "Ack", "Begin", "Begun", "DropTimer", "End", "Entry", "FindBoxes", "FindEffects", "FindMail",
    "FindTimers", "Fire", "MailBox", "MailFound", "Question", "Recover", "Resolve", "Send", "Sent",
    "SetTimer", "Withdraw",
]  # fmt: skip
