"""The ``mail`` syscalls: durable messages between agents, each delivered at least once."""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.base import Call, Reply


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """A message. All but ``text`` and ``about`` is set by the kernel: ``from_agent`` and
    ``from_user`` are who sent it, ``at`` is when (ns since 1970 UTC), ``kind`` is ``mail``, or
    ``timer`` for one that the pair itself has ordered. ``id`` stays the same however often it is
    delivered, so that a receiver can drop doubles; ``again`` says that it was delivered before, as
    far as this life of the kernel knows. ``about`` is the id of the message or timer that it is
    about, if the sender named one."""

    id: str
    kind: Literal["mail", "timer"]
    from_agent: str
    from_user: str
    at: int
    text: str
    about: str = ""
    again: bool = False


class MailSend(Call, frozen=True, array_like=True, kw_only=True, tag=60):
    """Put a message into the box of agent ``to``, under the operator's grant of mail to it.

    The box is that of the pair of ``to`` and ``to_user``: by default of the user served, for whom
    else the sender must be allowed to act; what an agent sends for itself goes to the other agent
    itself. The reply says that it is durable. ``key`` (at most 256 bytes): the same message again
    under one key is one message; other words under it are ``EINVAL``. A box that is full is
    ``EAGAIN`` with a time to try again, or is waited for until the call's deadline with ``wait``.
    ``text`` has at most 65,536 bytes, ``about`` at most 128.
    """

    to: str
    text: str
    to_user: str = ""
    key: str = ""
    about: str = ""
    wait: bool = False


class MailReceive(Call, frozen=True, array_like=True, kw_only=True, tag=61):
    """At most ``limit`` (1 to 64) messages of this pair's box, oldest first.

    Each is this channel's for ``lease_ms`` (1,000 to 3,600,000): until then no other receive gets
    it. One that is not acknowledged by then, or when the channel ends, comes again under the same
    id. ``wait_ms`` (0 to 3,600,000) waits for a message where there is none; the call's own
    deadline should be later.
    """

    limit: int = 16
    wait_ms: int = 0
    lease_ms: int = 60_000


class MailAck(Call, frozen=True, array_like=True, kw_only=True, tag=62):
    """Remove messages of this pair's box for good. Of ``ids`` (at most 256) those that are there no
    more count as removed by somebody before. The reply is what is left of the box."""

    ids: tuple[str, ...]


class MailList(Call, frozen=True, array_like=True, kw_only=True, tag=63):
    """What is in this pair's box, without its texts and without taking any of it; the operator that
    names no user sees the boxes of all pairs."""


class MailBox(msgspec.Struct, frozen=True, kw_only=True):
    """The box of a pair: how many messages it holds, the ``bytes`` of their texts, when the oldest
    was sent (ns since 1970 UTC), and the most that it may hold of both."""

    agent: str
    user: str
    messages: int
    bytes: int
    oldest_at: int
    most: int
    most_bytes: int


class MailSent(Reply, frozen=True, array_like=True, kw_only=True, tag=144):
    """``id`` is the message's; ``fresh`` is false where it had been sent before under this key.
    ``secrets`` were replaced in it, by type."""

    id: str
    key: str
    fresh: bool
    user: str
    rule: str
    secrets: dict[str, int] = {}


class Mails(Reply, frozen=True, array_like=True, kw_only=True, tag=145):
    """``left``: messages in the box besides these that nobody holds a lease on."""

    mails: tuple[Mail, ...]
    user: str
    rule: str
    left: int = 0


class MailBoxes(Reply, frozen=True, array_like=True, kw_only=True, tag=146):
    """Boxes that hold something."""

    boxes: tuple[MailBox, ...]


Request = MailSend | MailReceive | MailAck | MailList
AnyReply = MailSent | Mails | MailBoxes
REPLY_OF: dict[type[Call], type[Reply]] = {
    MailSend: MailSent,
    MailReceive: Mails,
    MailAck: MailBoxes,
    MailList: MailBoxes,
}
NAMES: dict[type[Call], str] = {
    MailSend: "mail.send",
    MailReceive: "mail.receive",
    MailAck: "mail.ack",
    MailList: "mail.list",
}
