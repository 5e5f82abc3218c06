"""Timers: mail that a pair has ordered for later, once or again and again.

A timer's message and its next time are one entry of the ledger, so none is given twice and none is
lost, whenever the kernel ends; one that was due while the kernel was down, or that the calendar was
set past, is treated as the timer says. When a cron expression is due next is told by a function of
the shell: it knows the zones of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state.calls import Step
from isovist.kernel.state.effects import sized
from isovist.syscalls.abi import timers as abi
from isovist.syscalls.abi.base import Call as Request
from isovist.syscalls.abi.mail import Mail
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.errors import CallerError, Errno, IsovistError
from isovist.syscalls.ledger import MAX_TIMER_TEXT, DropTimer, Fire, SetTimer
from isovist.syscalls.names import MAX_NAME, check_name, check_text, check_time

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

SECOND = 1_000_000_000
NEVER = (1 << 63) - 1
YEAR = 31_536_000
"""Seconds."""
GRACE = 60 * SECOND
"""A time that is further back has been missed."""
MOST = 100
"""Messages for missed times that one firing gives."""
STEPS = 1000
"""Times of a cron expression that are gone through, one by one, to find those that were missed."""
AGAIN = 60 * SECOND
"""Nanoseconds until a firing is tried again that the box or the disk refused."""
NextTime = Callable[[str, str, int], int]
"""When ``(expression, zone)`` is due first after a time (both ns since 1970 UTC). Raises
:class:`CallerError` naming ``cron`` or ``zone``."""


def no_cron(expression: str, zone: str, after: int) -> int:
    raise CallerError("this kernel knows no cron expressions", errno=Errno.ENOSYS, field="cron")


class Timers:
    """Invariants: ``_table`` holds all and only the timers that are durable, by id; those in
    ``_firing`` await the ledger's word; whenever one is due that is neither firing nor held back, a
    timer of the kernel is set for it or for earlier."""

    def __init__(self, state: State, timers: Iterable[Timer], next_time: NextTime) -> None:
        self._state = state
        self._next_time = next_time
        self._table = {timer.id: timer for timer in timers}
        self._firing: set[str] = set()
        self._held: dict[str, int] = {}
        """Until when (virtual ns) a timer is not tried again."""
        self._armed = NEVER
        self._made = 0

    def syscalls(self) -> dict[type[Request], Callable[[Channel, int, Any], None]]:
        return {abi.TimerSet: self._set, abi.TimerList: self._list, abi.TimerCancel: self._cancel}

    # -- requests

    def _set(self, channel: Channel, frame: int, request: abi.TimerSet) -> None:
        text = check_text(request.text, "text", MAX_TIMER_TEXT)
        sized(request.name, "name", MAX_NAME)
        resolved = self._state.users.resolve(channel.who, request.user)
        kind, when, next_at = self._when(request)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)
        self._made += 1
        pair = channel.who.agent, resolved.user
        which = ("named", request.name) if request.name else (self._state.boot, self._made)
        timer = Timer(
            id=self._state.opaque("t", *pair, *which),
            agent=pair[0],
            user=pair[1],
            kind=kind,
            when=when,
            text=text,
            missed=request.missed,
            next_at=next_at,
            set_at=self._state.calendar(),
            zone=request.zone if kind == "cron" else "",
            every=request.every,
        )
        tell = self._state.ledger.for_call(
            call, Timer, lambda kept: self._state.finish(call, abi.TimerShown(timer=kept))
        )

        def kept(answer: object, refused: IsovistError | None) -> None:
            if isinstance(answer, Timer):
                self._table[answer.id] = answer
                self._held.pop(answer.id, None)
                self.arm()
            tell(answer, refused)

        self._state.ledger.enter(SetTimer(timer=timer), kept)

    def _when(self, request: abi.TimerSet) -> tuple[Any, str, int]:
        """Kind, words and first time. Raises ``EINVAL``."""
        said = [bool(request.at), request.every != 0, bool(request.cron)]
        if sum(said) != 1:
            raise CallerError("exactly one of at, every and cron says when", field="at")
        now = self._state.calendar()
        if request.at:
            at = check_time(request.at, "at")
            if at is None or at <= now:
                raise CallerError("at has passed", field="at")
            return "at", request.at, at
        if request.every:
            if not 1 <= request.every <= YEAR:
                raise CallerError(f"every must be 1 to {YEAR}", field="every")
            return "every", f"every {request.every} s", now + request.every * SECOND
        sized(request.cron, "cron", MAX_NAME)
        sized(request.zone, "zone", MAX_NAME)
        return "cron", request.cron, self._next_time(request.cron, request.zone, now)

    def _list(self, channel: Channel, frame: int, request: abi.TimerList) -> None:
        everything = channel.who.operator and request.user is None
        found = sorted(self._table.values(), key=lambda timer: (timer.next_at, timer.id))
        if everything:
            found = [msgspec.structs.replace(timer, text="") for timer in found][:1000]
        else:
            user = self._state.users.resolve(channel.who, request.user).user
            pair = channel.who.agent, user
            found = [timer for timer in found if (timer.agent, timer.user) == pair]
        self._state.reply(channel, frame, abi.Timers(timers=tuple(found)))

    def _cancel(self, channel: Channel, frame: int, request: abi.TimerCancel) -> None:
        check_name(request.id, "id")
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)
        tell = self._state.ledger.for_call(
            call, Timer, lambda timer: self._state.finish(call, abi.TimerShown(timer=timer))
        )

        def dropped(answer: object, refused: IsovistError | None) -> None:
            if refused is None:
                self._table.pop(request.id, None)
                self._held.pop(request.id, None)
            tell(answer, refused)

        entry = DropTimer(id=request.id, agent=channel.who.agent, user=resolved.user)
        self._state.ledger.enter(entry, dropped)

    # -- time

    def arm(self) -> None:
        """Have the kernel woken for whatever is due first, or give it now if it is due."""
        now, calendar = self._state.now, self._state.calendar()
        soonest = NEVER
        for timer in list(self._table.values()):
            if timer.id in self._firing:
                continue
            at = max(now + timer.next_at - calendar, self._held.get(timer.id, 0))
            if at <= now:
                self._fire(timer, calendar)
            else:
                soonest = min(soonest, at)
        if soonest < self._armed:
            self._armed = soonest
            self._state.timer(soonest, 0, "timers")

    def begin(self) -> None:
        """A life begins: look at what it was left as soon as it wakes."""
        if self._table:
            self._armed = self._state.now + 1
            self._state.timer(self._armed, 0, "timers")

    def woken(self) -> None:
        if self._armed <= self._state.now:
            self._armed = NEVER
        self.arm()

    def _fire(self, timer: Timer, calendar: int) -> None:
        due, next_at = self._due(timer, calendar)
        if timer.missed != "all":
            due = due[-1:]
        if timer.missed == "skip":
            due = [at for at in due if calendar - at <= GRACE]
        mails = tuple(self._mail(timer, at) for at in due[-MOST:])
        self._firing.add(timer.id)

        def fired(answer: object, refused: IsovistError | None) -> None:
            self._firing.discard(timer.id)
            self._held.pop(timer.id, None)
            known = self._table.get(timer.id)
            if known is not None and known.next_at == timer.next_at:
                if refused is not None and refused.errno != Errno.ENOENT:
                    self._held[timer.id] = self._state.now + AGAIN
                elif refused is not None or not next_at:
                    del self._table[timer.id]
                else:
                    sent = known.sent + len(mails)
                    after = msgspec.structs.replace(known, next_at=next_at, sent=sent)
                    self._table[timer.id] = after
            if refused is None and mails:
                self._state.mail.arrived((timer.agent, timer.user))
            self.arm()

        entry = Fire(id=timer.id, due=timer.next_at, mails=mails, next_at=next_at)
        self._state.ledger.enter(entry, fired)

    def _due(self, timer: Timer, calendar: int) -> tuple[list[int], int]:
        """The latest times that have come by now, oldest first, and the next one (0: none)."""
        if timer.kind == "at":
            return [timer.next_at], 0
        if timer.kind == "every":
            step = timer.every * SECOND
            count = (calendar - timer.next_at) // step + 1
            first = max(0, count - MOST)
            return [timer.next_at + n * step for n in range(first, count)], (
                timer.next_at + count * step
            )
        due: list[int] = []
        at = timer.next_at
        while at <= calendar and len(due) < STEPS:
            due.append(at)
            at = self._next_time(timer.when, timer.zone, at)
        if at <= calendar:
            at = self._next_time(timer.when, timer.zone, calendar)
        return due, at

    def _mail(self, timer: Timer, at: int) -> Mail:
        return Mail(
            id=self._state.opaque("m", timer.id, timer.set_at, at),
            kind="timer",
            from_agent=timer.agent,
            from_user=timer.user,
            at=at,
            text=timer.text,
            about=timer.id,
        )

    def forget(self, user: str) -> None:
        self._table = {id_: one for id_, one in self._table.items() if one.user != user}
        self._held = {id_: at for id_, at in self._held.items() if id_ in self._table}

    def __len__(self) -> int:
        return len(self._table)

    def validate(self) -> None:
        assert self._held.keys() <= self._table.keys(), "what is held back is there"
        for id_, timer in self._table.items():
            assert timer.id == id_
