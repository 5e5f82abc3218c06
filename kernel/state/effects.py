"""Effects: what changes the world happens once under a key, or is said to be unknown.

The record is durable as *started* before the effect begins, and as *done* or *failed* before the
caller hears of it. What a crash finds started is *unknown*, and is never repeated by the kernel: it
waits for the word of its agent or of a person, unless it was declared idempotent; then it may begin
again under its key. Keys are those of a pair of agent and user.

Whoever carries out effects for a call (tools, files) uses three words:

    def act(begun: Begun) -> None:
        if begun.refused is not None:
            self._state.fail(call, begun.refused)
        elif not begun.fresh:
            answer_from(begun.effect)          # it was done, or has failed, before
        else:
            emit(Run(...))                     # now, once; later, when it has ended:

    effects.begin(call, key=request.key, kind="tool", subject="mail.send", arguments=json,
                  idempotent=False, then=act)
    effects.done(id, result, then=lambda: self._state.finish(call, reply))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.ledger import expect
from isovist.kernel.state.users import OPERATOR
from isovist.syscalls.abi import effects as abi
from isovist.syscalls.abi.base import Call as Request
from isovist.syscalls.abi.effects import Body, Effect
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.ledger import (
    MAX_ARGUMENTS,
    MAX_KEY,
    MAX_SUBJECT,
    Begin,
    End,
    Entry,
    FindEffects,
    Resolve,
    Withdraw,
)
from isovist.syscalls.ledger import Begun as Recorded
from isovist.syscalls.names import MAX_TEXT, check_name

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

SECOND = 1_000_000_000
AGAIN, LATEST = SECOND, 60 * SECOND
"""Nanoseconds until the disk is asked again that refused an end; doubled each time up to the
second."""
MAX_STEP = 4 * MAX_TEXT
"""Bytes of the inputs, or of the result, of an agent's step."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What became of :meth:`Effects.begin`. Exactly one holds: it was ``refused``; it is ``fresh``
    and to be carried out now; or ``effect`` says how it had ended before."""

    effect: Effect | None = None
    fresh: bool = False
    refused: IsovistError | None = None


class Effects:
    """Invariants: ``_steps`` has all and only the agents' steps under way that this life knows of,
    with their channels; what stands in ``_owed`` was refused by the disk and is tried again."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._made = 0
        self._steps: dict[str, int] = {}
        self._owed: list[tuple[Entry, Callable[[], None] | None]] = []
        self._pause = AGAIN

    def syscalls(self) -> dict[type[Request], Callable[[Channel, int, Any], None]]:
        return {
            abi.EffectBegin: self._begin,
            abi.EffectEnd: self._end,
            abi.EffectList: self._list,
            abi.EffectResolve: self._resolve,
        }

    # -- for whoever carries out effects

    def begin(
        self,
        call: Call,
        *,
        key: str,
        kind: str,
        subject: str,
        arguments: str,
        idempotent: bool,
        then: Callable[[Begun], None],
    ) -> None:
        """Record that an effect of ``call`` begins; ``then`` is called when that is durable.

        ``key`` may be empty: then it is one of the kernel's own. ``subject`` holds names alone; it
        stands in the chronicle. Where the call has ended meanwhile, ``then`` is not called, and the
        record is withdrawn: nothing has begun. Raises ``EINVAL`` for a key that cannot be one.
        """
        effect = self.new(call, key, kind, subject, arguments, idempotent)

        def answered(answer: object, refused: IsovistError | None) -> None:
            waits = self._state.calls.get(call.key) is call
            if refused is not None:
                begun = Begun(refused=refused)
            else:
                recorded = expect(Recorded, answer)
                if recorded.fresh and not waits:
                    self._insist(Withdraw(id=recorded.effect.id), None)
                begun = self._verdict(recorded)
            if waits:
                then(begun)

        self._state.ledger.enter(Begin(effect=effect), answered)

    def done(self, id: str, result: str = "", then: Callable[[], None] | None = None) -> None:
        """Effect ``id`` has happened. ``then`` is called when that is durable: time to answer."""
        self._ended(id, "done", result=result, then=then)

    def failed(
        self, id: str, errno: int, message: str, then: Callable[[], None] | None = None
    ) -> None:
        """Effect ``id`` has not happened, and whoever carried it out knows that."""
        self._ended(id, "failed", errno=errno, message=message, then=then)

    def lost(self, id: str, why: str, then: Callable[[], None] | None = None) -> None:
        """Nobody knows whether effect ``id`` has happened: it hangs, or died in the middle."""
        self._ended(id, "unknown", errno=int(Errno.ESTALE), message=why, then=then)

    def new(
        self, call: Call, key: str, kind: str, subject: str, arguments: str, idempotent: bool
    ) -> Effect:
        """The record of an effect that begins now. Raises ``EINVAL`` and ``EMSGSIZE``."""
        if call.resolved is None:
            raise KernelError("an effect of nobody", story=call.told())
        self._made += 1
        id_ = self._state.opaque("e", self._state.boot, "effect", self._made)
        return Effect(
            id=id_,
            key=check_key(key) if key else id_,
            kind=kind,
            subject=sized(subject, "subject", MAX_SUBJECT),
            state="started",
            agent=call.agent,
            user=call.resolved.user,
            started_at=self._state.calendar(),
            arguments=body_of(arguments, MAX_ARGUMENTS),
            idempotent=idempotent,
        )

    def _verdict(self, recorded: Recorded) -> Begun:
        effect = recorded.effect
        if recorded.fresh:
            return Begun(effect=effect, fresh=True)
        if effect.state == "started":
            soon = self._state.calendar() + SECOND
            why = f"the effect of this key is under way, as {effect.id}"
            return Begun(refused=error(Errno.EAGAIN, why, "key", retry_at=soon))
        if effect.state == "unknown":
            why = f"nobody knows whether this was done: resolve effect {effect.id}"
            return Begun(refused=error(Errno.ESTALE, why, "key"))
        return Begun(effect=effect)

    def _ended(
        self,
        id_: str,
        state: abi.Phase,
        *,
        then: Callable[[], None] | None,
        result: str = "",
        errno: int = 0,
        message: str = "",
    ) -> None:
        at = self._state.calendar()
        self._insist(
            End(id=id_, state=state, at=at, result=result, errno=errno, message=message), then
        )

    # -- a disk that refuses takes no end away

    def _insist(self, entry: End | Withdraw, then: Callable[[], None] | None) -> None:
        """Have it entered, however long that takes. Where the record has gone with its user, or
        somebody has resolved it, there is nothing to say any more."""

        def answered(answer: object, refused: IsovistError | None) -> None:
            if refused is not None and refused.errno not in (Errno.ENOENT, Errno.ESTALE):
                self._owed.append((entry, then))
                self._state.timer(self._state.now + self._pause, 0, "effects")
                self._pause = min(2 * self._pause, LATEST)
                return
            self._pause = AGAIN
            if isinstance(answer, Effect) and answer.kind == "tool":
                note = self._state.chronicle.note
                note("effect", answer.agent, answer.subject, effect=answer.id, state=answer.state)
            if then is not None:
                then()

        self._state.ledger.enter(entry, answered)

    def woken(self) -> None:
        owed, self._owed = self._owed, []
        for entry, then in owed:
            if isinstance(entry, End | Withdraw):
                self._insist(entry, then)

    # -- an agent's own steps

    def _begin(self, channel: Channel, frame: int, request: abi.EffectBegin) -> None:
        if not request.subject.strip():
            raise CallerError("subject is empty", field="subject")
        sized(request.arguments, "arguments", MAX_STEP)
        call = self._open(channel, frame, request)
        number = channel.number

        def act(begun: Begun) -> None:
            if begun.refused is not None or begun.effect is None:
                self._state.fail(call, begun.refused or KernelError("an effect without a record"))
                return
            if begun.fresh:
                self._steps[begun.effect.id] = number
            self._state.finish(call, abi.EffectShown(effect=begun.effect, fresh=begun.fresh))

        self.begin(
            call,
            key=request.key,
            kind="step",
            subject=request.subject,
            arguments=request.arguments,
            idempotent=request.idempotent,
            then=act,
        )

    def _end(self, channel: Channel, frame: int, request: abi.EffectEnd) -> None:
        check_name(request.id, "id")
        sized(request.result, "result", MAX_STEP)
        sized(request.message, "message", MAX_ARGUMENTS)
        call = self._open(channel, frame, request)
        entry = End(
            id=request.id,
            state=request.state,
            at=self._state.calendar(),
            result=request.result,
            errno=int(Errno.EIO) if request.state == "failed" else 0,
            message=request.message,
            user=call.resolved.user if call.resolved else "",
            agent=call.agent,
            kind="step",
        )

        def ended(answer: object, refused: IsovistError | None) -> None:
            if refused is None:
                self._steps.pop(request.id, None)
            self._shown(call)(answer, refused)

        self._state.ledger.enter(entry, ended)

    def detached(self, channel: int) -> None:
        """Whoever was at work there has said its last word."""
        for id_ in [id_ for id_, whose in self._steps.items() if whose == channel]:
            del self._steps[id_]
            self.lost(id_, "its agent ended before it said what became of it")

    # -- who asks, and who says

    def _list(self, channel: Channel, frame: int, request: abi.EffectList) -> None:
        if not 1 <= request.limit <= 200:
            raise CallerError("limit must be 1 to 200", field="limit")
        everything = channel.who.operator and request.user is None
        if request.agent and not everything and request.agent != channel.who.agent:
            raise CallerError(
                "only the operator sees another agent's effects", errno=Errno.EPERM, field="agent"
            )
        call = self._open(channel, frame, request, everything)
        one = bool(request.id or request.key)
        question = FindEffects(
            user=call.resolved.user if call.resolved else "",
            agent=request.agent if everything else call.agent,
            id=request.id,
            key=request.key,
            states=request.states,
            kinds=request.kinds,
            limit=request.limit,
            texts=not everything and (one or request.limit == 1),
        )

        def found(effects: tuple[Effect, ...]) -> None:
            if one and not effects:
                field = "id" if request.id else "key"
                why = "no effect of that id or key"
                self._state.fail(call, CallerError(why, errno=Errno.ENOENT, field=field))
            else:
                self._state.finish(call, abi.Effects(effects=effects))

        self._state.ledger.ask(question, self._state.ledger.for_call(call, tuple, found))

    def _resolve(self, channel: Channel, frame: int, request: abi.EffectResolve) -> None:
        check_name(request.id, "id")
        sized(request.result, "result", MAX_STEP)
        everything = channel.who.operator and request.user is None
        call = self._open(channel, frame, request, everything)
        entry = Resolve(
            id=request.id,
            outcome=request.outcome,
            result=request.result,
            at=self._state.calendar(),
            user=call.resolved.user if call.resolved else "",
            agent="" if everything else call.agent,
        )
        actor = OPERATOR if channel.who.operator else call.agent

        def resolved(answer: object, refused: IsovistError | None) -> None:
            if refused is None:
                self._steps.pop(request.id, None)
                effect = expect(Effect, answer)
                note = self._state.chronicle.note
                note("effect.resolved", actor, effect.subject, effect=effect.id, to=effect.state)
            self._shown(call)(answer, refused)

        self._state.ledger.enter(entry, resolved)

    def _open(
        self, channel: Channel, frame: int, request: abi.Request, everything: bool = False
    ) -> Call:
        users = self._state.users
        resolved = None if everything else users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)
        return call

    def _shown(self, call: Call) -> Callable[[object, IsovistError | None], None]:
        return self._state.ledger.for_call(
            call,
            Effect,
            lambda effect: self._state.finish(call, abi.EffectShown(effect=effect)),
        )

    def validate(self) -> None:
        for channel in self._steps.values():
            assert channel in self._state.channels, "a step under way has its channel"


def body_of(text: str, limit: int) -> Body:
    """``text`` by reference; what the store keeps of it passes the guard there."""
    raw = text.encode()
    kept = text if len(raw) <= limit else None
    return Body(hash=hashlib.sha256(raw).hexdigest(), size=len(raw), text=kept)


def check_key(key: str, field: str = "key") -> str:
    sized(key, field, MAX_KEY)
    if not key.isprintable():
        raise CallerError(f"{field} must hold printable characters alone", field=field)
    return key


def sized(text: str, field: str, most: int) -> str:
    """``text`` itself, if it has at most ``most`` bytes. Raises ``EMSGSIZE``."""
    size = len(text.encode(errors="replace"))
    if size > most:
        raise CallerError(
            f"{field} has {size} bytes, the limit is {most}", errno=Errno.EMSGSIZE, field=field
        )
    return text
