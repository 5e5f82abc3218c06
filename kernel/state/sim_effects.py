"""The judge's books on effects, mail and timers over all lives of a kernel.

What was durable is asked of the ledger; what happened in the world is told by whoever did it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from isovist.kernel.state.sim_judge import Violation
from isovist.syscalls import ledger as led
from isovist.syscalls.abi import effects, mail, timers
from isovist.syscalls.abi.effects import PHASES, Effect
from isovist.syscalls.abi.mail import Mail
from isovist.syscalls.abi.timers import Timer

Key = tuple[str, str, str]
"""Agent, user, key of an effect."""


class Durable(Protocol):
    """What survives a crash; see :class:`isovist.kernel.state.sim_ledger.Ledger`."""

    def enter(self, entries: list[led.Entry]) -> list[object]: ...
    def ask(self, question: led.Question) -> object: ...
    def timers(self) -> tuple[Timer, ...]: ...


class EffectBooks:
    """No effect happens twice under one key, nor before its record is durable; what is told of it
    is what is durable; and in the end none is left *started*."""

    def __init__(self, ledger: Durable) -> None:
        self._ledger = ledger
        self._acts: Counter[Key] = Counter()
        self._retries: Counter[Key] = Counter()
        self._idempotent: set[Key] = set()

    def find(self, id_: str) -> Effect | None:
        found = self._ledger.ask(led.FindEffects(id=id_, texts=True))
        return found[0] if isinstance(found, tuple) and found else None

    def entered(self, entry: led.Entry, answer: object) -> None:
        """The ledger has made an entry."""
        if isinstance(answer, Effect) and isinstance(entry, led.Resolve):
            self._retries[answer.agent, answer.user, answer.key] += entry.outcome == "retry"
        if isinstance(answer, led.Begun) and answer.fresh and answer.effect.idempotent:
            self._idempotent.add((answer.effect.agent, answer.effect.user, answer.effect.key))

    def acted(self, id_: str) -> None:
        """The world was changed by whoever was told to do effect ``id_``."""
        effect = self.find(id_)
        if effect is None or effect.state != "started":
            state = effect.state if effect else "nowhere"
            raise Violation(f"effect {id_} happens, and its record is {state}")
        key = effect.agent, effect.user, effect.key
        self._acts[key] += 1
        if self._acts[key] > 1 + self._retries[key] and key not in self._idempotent:
            raise Violation(f"{key} happens {self._acts[key]} times")

    def begun(self, request: effects.EffectBegin, effect: Effect, fresh: bool) -> None:
        """A begin was answered."""
        said = hashlib.sha256(request.arguments.encode()).hexdigest()
        if (effect.subject, effect.arguments.hash) != (request.subject, said):
            raise Violation(f"{effect.key} stands for something else")
        self._told(effect)
        if fresh != (effect.state == "started"):
            raise Violation(f"{effect.key} is {effect.state}, and fresh: {fresh}")

    def shown(self, effect: Effect) -> None:
        """An end, or a resolution, was answered."""
        self._told(effect)

    def _told(self, effect: Effect) -> None:
        """What is said was durable at some time: it, or what came after it, is in the ledger."""
        kept = self.find(effect.id)
        if kept is None or (kept.tries, kept.state) not in self._after(effect):
            state = kept.state if kept else "nowhere"
            raise Violation(f"{effect.id} is said to be {effect.state}, and is {state}")

    @staticmethod
    def _after(effect: Effect) -> list[tuple[int, str]]:
        """What may have become of it meanwhile, at once or by a try more."""
        after: dict[str, tuple[str, ...]] = {
            "started": ("done", "failed", "unknown"),
            "unknown": ("done", "failed", "retry"),
            "failed": ("retry",),
            "done": (),
            "retry": (),
        }
        reached: set[str] = {effect.state}
        while more := {state for one in reached for state in after[one]} - reached:
            reached |= more
        found: list[tuple[int, str]] = [(effect.tries, state) for state in sorted(reached)]
        if reached & {"retry", "unknown"}:
            found += [(tries, state) for tries in range(effect.tries + 1, 99) for state in PHASES]
        return found

    def over(self) -> None:
        """All has ended, and nobody is at work."""
        left = self._ledger.ask(led.FindEffects(states=("started",), limit=10))
        if left:
            raise Violation(f"left as if under way: {left}")


class MailBooks:
    """What was acknowledged to its sender reaches its pair, and nobody else, under one id; what was
    acknowledged by its receiver never comes again; no two hold it at a time."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[str, str]] = {}
        """By id of what was acknowledged to its sender: the pair."""
        self._ids: dict[object, str] = {}
        """By who sent what under which key: the id."""
        self._gone: set[str] = set()
        self._out: dict[str, tuple[int, int]] = {}
        self._again: set[str] = set()
        self._leaving: set[str] = set()
        self._given: dict[str, tuple[str, str]] = {}
        """Pairs that were given each."""
        self._timers: dict[str, timers.Timer] = {}
        self._ticked: set[str] = set()

    def sent(self, whose: tuple[str, str], request: mail.MailSend, reply: mail.MailSent) -> None:
        user = request.to_user or whose[1]
        self._due[reply.id] = request.to, user
        if request.key:
            self._one((*whose, request.key), reply.id)

    def given(self, pair: tuple[str, str], channel: int, one: Mail, now: int, until: int) -> None:
        if one.id in self._gone:
            raise Violation(f"{one.id} comes again after it was acknowledged")
        holder, end = self._out.get(one.id, (0, 0))
        if holder and end > now:
            raise Violation(f"{one.id} is out with channel {holder}, and goes to {channel}")
        if self._given.setdefault(one.id, pair) != pair:
            raise Violation(f"{one.id} goes to {pair} and to {self._given[one.id]}")
        if one.again != (one.id in self._again):
            raise Violation(f"{one.id} is said to come for the first time: {not one.again}")
        self._again.add(one.id)
        self._one((one.from_agent, one.from_user, one.text, one.at, one.about), one.id)
        self._out[one.id] = channel, until
        if one.kind == "timer":
            self._ticked.add(one.about)
            if (one.from_agent, one.from_user) != pair:
                raise Violation(f"a timer of {one.from_agent} writes to {pair}")
        elif one.text.split("|")[:2] != [one.from_agent, one.from_user]:
            raise Violation(f"{one.text} is said to be from {one.from_agent} for {one.from_user}")

    def leaving(self, ids: Collection[str]) -> None:
        """A receiver has asked to have these removed."""
        self._leaving.update(ids)

    def acknowledged(self, ids: Collection[str]) -> None:
        self._gone.update(ids)
        for id_ in ids:
            self._out.pop(id_, None)

    def detached(self, channel: int) -> None:
        self._out = {id_: out for id_, out in self._out.items() if out[0] != channel}

    def crashed(self) -> None:
        self._out.clear()
        self._again.clear()

    def timer(self, timer: timers.Timer) -> None:
        self._timers[timer.id] = timer

    def cancelled(self, timer: timers.Timer) -> None:
        self._timers.pop(timer.id, None)

    def _one(self, what: object, id_: str) -> None:
        if self._ids.setdefault(what, id_) != id_:
            raise Violation(f"{what} has the ids {self._ids[what]} and {id_}")

    def over(self, now: int) -> None:
        """Every box was emptied, by those who acknowledged all."""
        lost = [id_ for id_, pair in self._due.items() if self._given.get(id_) != pair]
        if lost := [*lost, *(self._due.keys() - self._leaving)]:
            raise Violation(f"mail that its sender knows to be safe, and is lost: {sorted(lost)}")
        due = [timer.id for timer in self._timers.values() if timer.next_at < now]
        silent = [id_ for id_ in due if id_ not in self._ticked]
        if silent:
            raise Violation(f"timers that gave nothing: {silent}")
