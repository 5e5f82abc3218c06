"""The simulated ledger: dicts with the semantics of the store's tables, judged against these.

What is entered is durable; a crash loses what was still on its way. A test runs the simulator over
this and over the real tables (:mod:`isovist.storage.ledger`): both give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from isovist.kernel.state.effects import body_of
from isovist.syscalls import ledger as led
from isovist.syscalls.abi.effects import Effect
from isovist.syscalls.abi.mail import Mail, MailBox
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.errors import Errno, IsovistError, error

OPEN, ENDED = ("started", "unknown", "retry"), ("done", "failed")


class Ledger:
    def __init__(self) -> None:
        self.effects: dict[str, Effect] = {}
        """By id, those that changed last at the end."""
        self.boxes: dict[tuple[str, str], list[Mail]] = {}
        """By agent and user, in order of arrival."""
        self.held: dict[str, Timer] = {}
        self._hands: dict[type[led.Entry], Callable[[Any], object]] = {
            led.Begin: self._begin,
            led.Withdraw: self._withdraw,
            led.End: self._end,
            led.Resolve: self._resolve,
            led.Send: self._send,
            led.Ack: self._ack,
            led.SetTimer: self._set_timer,
            led.DropTimer: self._drop_timer,
            led.Fire: self._fire,
            led.Recover: self._recover,
        }
        self._answers: dict[type[led.Question], Callable[[Any], object]] = {
            led.FindEffects: self._find_effects,
            led.FindMail: self._find_mail,
            led.FindBoxes: self._find_boxes,
            led.FindTimers: lambda q: self.timers(q.user, q.agent),
        }

    def enter(self, entries: Sequence[led.Entry]) -> list[object]:
        answers: list[object] = []
        for entry in entries:
            try:
                answers.append(self._hands[type(entry)](entry))
            except IsovistError as e:
                answers.append(e)
        return answers

    def ask(self, question: led.Question) -> object:
        return self._answers[type(question)](question)

    def timers(self, user: str = "", agent: str = "") -> tuple[Timer, ...]:
        mine = [t for t in self.held.values() if user in ("", t.user) and agent in ("", t.agent)]
        return tuple(sorted(mine, key=lambda timer: (timer.next_at, timer.id)))

    def forget(self, user: str) -> None:
        self.effects = {i: e for i, e in self.effects.items() if e.user != user}
        self.held = {i: t for i, t in self.held.items() if t.user != user}
        boxes = self.boxes.items()
        self.boxes = {
            pair: [one for one in mails if one.from_user != user]
            for pair, mails in boxes
            if pair[1] != user
        }

    # -- effects

    def _by_key(self, effect: Effect) -> Effect | None:
        whose = effect.user, effect.agent, effect.key
        return next((e for e in self.effects.values() if (e.user, e.agent, e.key) == whose), None)

    def _write(self, effect: Effect) -> Effect:
        self.effects.pop(effect.id, None)
        self.effects[effect.id] = effect
        return effect

    def _same(self, known: Effect, effect: Effect) -> None:
        if (known.kind, known.subject, known.arguments.hash) != (
            effect.kind,
            effect.subject,
            effect.arguments.hash,
        ):
            raise error(Errno.EINVAL, "key was used for something else", "key")

    def _begin(self, entry: led.Begin) -> led.Begun:
        effect = entry.effect
        known = self._by_key(effect)
        if known is None:
            whose = effect.user, effect.agent
            mine = [e for e in self.effects.values() if (e.user, e.agent) == whose]
            if sum(e.state in OPEN for e in mine) >= led.MAX_OPEN:
                raise error(Errno.EDQUOT, "too many are open", "key")
            return led.Begun(effect=self._write(effect), fresh=True)
        self._same(known, effect)
        both = known.idempotent and effect.idempotent
        if known.state == "retry" or (known.state == "unknown" and both):
            again = msgspec.structs.replace(effect, id=known.id, tries=known.tries + 1)
            return led.Begun(effect=self._write(again), fresh=True)
        return led.Begun(effect=known, fresh=False)

    def _withdraw(self, entry: led.Withdraw) -> None:
        effect = self.effects.get(entry.id)
        if effect is None or effect.state != "started":
            return
        if effect.tries == 1:
            del self.effects[entry.id]
        else:
            self._write(msgspec.structs.replace(effect, state="retry"))

    def _of(self, id_: str, user: str, agent: str) -> Effect:
        effect = self.effects.get(id_)
        if effect is None or user not in ("", effect.user) or agent not in ("", effect.agent):
            raise error(Errno.ENOENT, "no effect of that id", "id")
        return effect

    def _end(self, entry: led.End) -> Effect:
        effect = self._of(entry.id, entry.user, entry.agent)
        if entry.kind and effect.kind != entry.kind:
            raise error(Errno.EINVAL, "another kind", "id")
        if effect.state not in ("started", "unknown"):
            raise error(Errno.ESTALE, f"the effect is {effect.state} already", "id")
        return self._ended(effect, entry)

    def _ended(self, effect: Effect, said: led.End) -> Effect:
        after = msgspec.structs.replace(
            effect,
            state=said.state,
            ended_at=said.at,
            result=body_of(said.result, led.MAX_RESULT),
            errno=said.errno,
            message=said.message,
        )
        self._write(after)
        self._prune(effect)
        return after

    def _prune(self, effect: Effect) -> None:
        whose = effect.user, effect.agent
        mine = [e for e in self.effects.values() if (e.user, e.agent) == whose and e.state in ENDED]
        for old in mine[: max(0, len(mine) - led.MAX_ENDED)]:
            del self.effects[old.id]

    def _resolve(self, entry: led.Resolve) -> Effect:
        effect = self._of(entry.id, entry.user, entry.agent)
        if effect.state != "unknown" and (effect.state, entry.outcome) != ("failed", "retry"):
            raise error(Errno.ESTALE, f"the effect is {effect.state}", "id")
        if entry.outcome == "retry":
            return self._write(msgspec.structs.replace(effect, state="retry", ended_at=0))
        failed = entry.outcome == "failed"
        said = led.End(
            id=entry.id,
            state=entry.outcome,
            at=entry.at,
            result="" if failed else entry.result,
            errno=int(Errno.ECANCELED) if failed else 0,
            message=entry.result if failed else "",
        )
        return self._ended(effect, said)

    def _recover(self, entry: led.Recover) -> int:
        started = [e for e in self.effects.values() if e.state == "started"]
        for effect in started:
            why = "the kernel ended before the outcome was recorded"
            self._write(
                msgspec.structs.replace(effect, state="unknown", ended_at=entry.at, message=why)
            )
        return len(started)

    def _find_effects(self, q: led.FindEffects) -> tuple[Effect, ...]:
        found = [
            e
            for e in reversed(self.effects.values())
            if q.user in ("", e.user)
            and q.agent in ("", e.agent)
            and q.id in ("", e.id)
            and q.key in ("", e.key)
            and (not q.states or e.state in q.states)
            and (not q.kinds or e.kind in q.kinds)
        ][: q.limit]
        return tuple(found if q.texts else map(_without_texts, found))

    # -- mail

    def _send(self, entry: led.Send) -> led.Sent:
        known = self._by_key(entry.effect)
        if known is not None:
            self._same(known, entry.effect)
            return led.Sent(id=(known.result.text or "") if known.result else "", fresh=False)
        self._put((entry.agent, entry.user), [entry.mail])
        self._write(entry.effect)
        self._prune(entry.effect)
        return led.Sent(id=entry.mail.id, fresh=True)

    def _put(self, pair: tuple[str, str], mails: Iterable[Mail]) -> None:
        box = list(self.boxes.get(pair, ()))
        for one in mails:
            held = sum(len(other.text.encode()) for other in box)
            if len(box) >= led.MAX_MAIL or held + len(one.text.encode()) > led.MAX_MAIL_BYTES:
                raise error(Errno.EAGAIN, "the box is full", "to")
            if all(one.id != other.id for other in box):
                box.append(one)
        self.boxes[pair] = box

    def _ack(self, entry: led.Ack) -> int:
        box = self.boxes.get((entry.agent, entry.user), [])
        kept = [one for one in box if one.id not in entry.ids]
        self.boxes[entry.agent, entry.user] = kept
        return len(box) - len(kept)

    def _find_mail(self, q: led.FindMail) -> led.MailFound:
        free = [one for one in self.boxes.get((q.agent, q.user), ()) if one.id not in q.but]
        return led.MailFound(mails=tuple(free[: q.limit]), left=max(0, len(free) - q.limit))

    def _find_boxes(self, q: led.FindBoxes) -> tuple[MailBox, ...]:
        return tuple(
            MailBox(
                agent=agent, user=user, messages=len(box), oldest_at=min(one.at for one in box),
                bytes=sum(len(one.text.encode()) for one in box),
                most=led.MAX_MAIL, most_bytes=led.MAX_MAIL_BYTES,
            )
            for (agent, user), box in sorted(self.boxes.items())
            if box and q.agent in ("", agent) and q.user in ("", user)
        )  # fmt: skip

    # -- timers

    def _set_timer(self, entry: led.SetTimer) -> Timer:
        timer = entry.timer
        others = [t for t in self.timers(timer.user, timer.agent) if t.id != timer.id]
        if len(others) >= led.MAX_TIMERS:
            raise error(Errno.EDQUOT, "too many timers", "name")
        self.held[timer.id] = timer
        return timer

    def _drop_timer(self, entry: led.DropTimer) -> Timer:
        timer = self.held.get(entry.id)
        if timer is None or (timer.agent, timer.user) != (entry.agent, entry.user):
            raise error(Errno.ENOENT, "no timer of that id", "id")
        return self.held.pop(entry.id)

    def _fire(self, entry: led.Fire) -> None:
        timer = self.held.get(entry.id)
        if timer is None or timer.next_at != entry.due:
            raise error(Errno.ENOENT, "the timer is gone, or has fired", "id")
        self._put((timer.agent, timer.user), entry.mails)
        if entry.next_at:
            sent = timer.sent + len(entry.mails)
            self.held[timer.id] = msgspec.structs.replace(timer, next_at=entry.next_at, sent=sent)
        else:
            del self.held[timer.id]


def _without_texts(effect: Effect) -> Effect:
    return msgspec.structs.replace(
        effect,
        arguments=msgspec.structs.replace(effect.arguments, text=None),
        result=effect.result and msgspec.structs.replace(effect.result, text=None),
    )
