"""The ``mail`` and ``timer`` syscalls of both clients: messages between agents, and for later."""

from __future__ import annotations

from typing import TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi import mail as abi
from isovist.syscalls.abi import timers as timing
from isovist.syscalls.abi.mail import Mail, MailBox
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.options import CallOptions, ReceiveOptions, SendOptions, TimerOptions

R = TypeVar("R", bound=m.Reply)


class MailCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def send(self, to: str, text: str, **options: Unpack[SendOptions]) -> abi.MailSent:
        """Put a message into the box of agent ``to``; the reply says that it is durable."""
        request = abi.MailSend(to=to, text=text, **options)
        return self._ask(request, abi.MailSent)

    def receive(
        self, limit: int = 16, wait: float = 0.0, **options: Unpack[ReceiveOptions]
    ) -> tuple[Mail, ...]:
        """Messages of this pair's box; where there is none, ``wait`` so many seconds for one.
        Acknowledge each with :meth:`ack`, or it comes again under the same id."""
        wait_ms = int(wait * 1000)
        if wait_ms and options.get("deadline_ms") is None:
            options["deadline_ms"] = min(wait_ms + 30_000, 3_600_000)
        request = abi.MailReceive(limit=limit, wait_ms=wait_ms, **options)
        return self._ask(request, abi.Mails).mails

    def ack(self, *mails: Mail | str, **options: Unpack[CallOptions]) -> None:
        """Remove messages, named by themselves or by their ids, for good."""
        ids = tuple(one if isinstance(one, str) else one.id for one in mails)
        self._ask(abi.MailAck(ids=ids, **options), abi.MailBoxes)

    def boxes(self, **options: Unpack[CallOptions]) -> tuple[MailBox, ...]:
        """The box of this pair, if it holds anything."""
        return self._ask(abi.MailList(**options), abi.MailBoxes).boxes

    def timer_at(self, at: str, text: str, **options: Unpack[TimerOptions]) -> Timer:
        """Order a message for an ISO 8601 time with a zone."""
        request = timing.TimerSet(text=text, at=at, **options)
        return self._ask(request, timing.TimerShown).timer

    def timer_every(self, seconds: int, text: str, **options: Unpack[TimerOptions]) -> Timer:
        """Order a message every so many ``seconds`` from now on."""
        request = timing.TimerSet(text=text, every=seconds, **options)
        return self._ask(request, timing.TimerShown).timer

    def timer_cron(
        self, cron: str, text: str, zone: str = "UTC", **options: Unpack[TimerOptions]
    ) -> Timer:
        """Order a message by a cron expression in the time zone ``zone``."""
        request = timing.TimerSet(text=text, cron=cron, zone=zone, **options)
        return self._ask(request, timing.TimerShown).timer

    def timers(self, **options: Unpack[CallOptions]) -> tuple[Timer, ...]:
        """The timers of this pair, next first."""
        return self._ask(timing.TimerList(**options), timing.Timers).timers

    def timer_cancel(self, id: str, **options: Unpack[CallOptions]) -> Timer:
        """End a timer; the reply is the timer as it was."""
        request = timing.TimerCancel(id=id, **options)
        return self._ask(request, timing.TimerShown).timer


class AsyncMailCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def send(self, to: str, text: str, **options: Unpack[SendOptions]) -> abi.MailSent:
        """Put a message into the box of agent ``to``; the reply says that it is durable."""
        request = abi.MailSend(to=to, text=text, **options)
        return await self._ask(request, abi.MailSent)

    async def receive(
        self, limit: int = 16, wait: float = 0.0, **options: Unpack[ReceiveOptions]
    ) -> tuple[Mail, ...]:
        """Messages of this pair's box; where there is none, ``wait`` so many seconds for one.
        Acknowledge each with :meth:`ack`, or it comes again under the same id."""
        wait_ms = int(wait * 1000)
        if wait_ms and options.get("deadline_ms") is None:
            options["deadline_ms"] = min(wait_ms + 30_000, 3_600_000)
        request = abi.MailReceive(limit=limit, wait_ms=wait_ms, **options)
        return (await self._ask(request, abi.Mails)).mails

    async def ack(self, *mails: Mail | str, **options: Unpack[CallOptions]) -> None:
        """Remove messages, named by themselves or by their ids, for good."""
        ids = tuple(one if isinstance(one, str) else one.id for one in mails)
        await self._ask(abi.MailAck(ids=ids, **options), abi.MailBoxes)

    async def boxes(self, **options: Unpack[CallOptions]) -> tuple[MailBox, ...]:
        """The box of this pair, if it holds anything."""
        return (await self._ask(abi.MailList(**options), abi.MailBoxes)).boxes

    async def timer_at(self, at: str, text: str, **options: Unpack[TimerOptions]) -> Timer:
        """Order a message for an ISO 8601 time with a zone."""
        request = timing.TimerSet(text=text, at=at, **options)
        return (await self._ask(request, timing.TimerShown)).timer

    async def timer_every(self, seconds: int, text: str, **options: Unpack[TimerOptions]) -> Timer:
        """Order a message every so many ``seconds`` from now on."""
        request = timing.TimerSet(text=text, every=seconds, **options)
        return (await self._ask(request, timing.TimerShown)).timer

    async def timer_cron(
        self, cron: str, text: str, zone: str = "UTC", **options: Unpack[TimerOptions]
    ) -> Timer:
        """Order a message by a cron expression in the time zone ``zone``."""
        request = timing.TimerSet(text=text, cron=cron, zone=zone, **options)
        return (await self._ask(request, timing.TimerShown)).timer

    async def timers(self, **options: Unpack[CallOptions]) -> tuple[Timer, ...]:
        """The timers of this pair, next first."""
        return (await self._ask(timing.TimerList(**options), timing.Timers)).timers

    async def timer_cancel(self, id: str, **options: Unpack[CallOptions]) -> Timer:
        """End a timer; the reply is the timer as it was."""
        request = timing.TimerCancel(id=id, **options)
        return (await self._ask(request, timing.TimerShown)).timer
