"""The ``timer`` syscalls: mail that a pair orders for later, once or again and again."""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.base import Call, Reply

Missed = Literal["skip", "once", "all"]


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """``when`` is as it was asked for: an ISO 8601 time, ``every 60 s``, or a cron expression in
    ``zone``. ``next_at`` is when it is due next (ns since 1970 UTC), ``sent`` how many messages it
    has given."""

    id: str
    agent: str
    user: str
    kind: Literal["at", "every", "cron"]
    when: str
    text: str
    missed: Missed
    next_at: int
    set_at: int
    zone: str = ""
    sent: int = 0
    every: int = 0


class TimerSet(Call, frozen=True, array_like=True, kw_only=True, tag=68):
    """Order a message of kind ``timer`` into this pair's own box: ``at`` an ISO 8601 time with a
    zone, or ``every`` so many seconds (1 to 31,536,000) from now on, or by a ``cron`` expression of
    five or six fields in the time zone ``zone`` (an IANA name). Exactly one of the three.

    Durable: it survives a restart. ``missed`` says what becomes of times at which the kernel was
    down, or the calendar was set past them, by more than a minute: ``skip`` gives none of them,
    ``once`` one message for all, ``all`` one for each, of the last 100. ``name`` (at most 128
    bytes) replaces the timer of this name that the pair has. ``text`` has at most 4,096 bytes.
    """

    text: str
    at: str = ""
    every: int = 0
    cron: str = ""
    zone: str = "UTC"
    missed: Missed = "once"
    name: str = ""


class TimerList(Call, frozen=True, array_like=True, kw_only=True, tag=69):
    """The timers of this pair, next first; the operator that names no user sees all, without their
    texts."""


class TimerCancel(Call, frozen=True, array_like=True, kw_only=True, tag=70):
    """End timer ``id`` of this pair (``ENOENT``); messages that it has given stay. The reply holds
    the timer as it was."""

    id: str


class TimerShown(Reply, frozen=True, array_like=True, kw_only=True, tag=150):
    timer: Timer


class Timers(Reply, frozen=True, array_like=True, kw_only=True, tag=151):
    timers: tuple[Timer, ...]


Request = TimerSet | TimerList | TimerCancel
AnyReply = TimerShown | Timers
REPLY_OF: dict[type[Call], type[Reply]] = {
    TimerSet: TimerShown,
    TimerList: Timers,
    TimerCancel: TimerShown,
}
NAMES: dict[type[Call], str] = {
    TimerSet: "timer.set",
    TimerList: "timer.list",
    TimerCancel: "timer.cancel",
}
