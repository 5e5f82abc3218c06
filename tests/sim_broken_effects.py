"""Kernels that repeat, lose or misdeliver, for the simulator of lives to find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from isovist.kernel.state import ledger
from isovist.kernel.state.effects import Begun, Effects
from isovist.kernel.state.mail import Boxes
from isovist.kernel.state.sim_ledger import Ledger
from isovist.kernel.state.timers import Timers
from isovist.kernel.state.users import Users
from isovist.syscalls import ledger as led


def _acts_before_the_disk(original: Any) -> Any:
    def begin(self: Effects, call: Any, *, then: Callable[[Begun], None], **fields: Any) -> None:
        original(self, call, then=lambda begun: None, **fields)
        entered: Any = self._state._out[-1]
        then(Begun(effect=entered.entry.effect, fresh=True))

    return begin


def _repeats_what_is_unknown(original: Any) -> Any:
    def verdict(self: Effects, recorded: led.Begun) -> Any:
        if recorded.effect.state == "unknown":
            return Begun(effect=recorded.effect, fresh=True)
        return original(self, recorded)

    return verdict


def _repeats_what_is_done(self: Effects, recorded: led.Begun) -> Begun:
    return Begun(effect=recorded.effect, fresh=True)


def _nobody_recovers(self: Ledger, entry: led.Recover) -> int:
    return 0


def _leaves_steps_of_the_dead(self: Effects, channel: int) -> None:
    for id_ in [id_ for id_, whose in self._steps.items() if whose == channel]:
        del self._steps[id_]


def _gives_up_where_the_disk_refuses(self: Effects, entry: Any, then: Any) -> None:
    self._state.ledger.enter(entry, lambda answer, refused: then and then())


def _withdraws_nothing(original: Any) -> Any:
    def insist(self: Effects, entry: Any, then: Any) -> None:
        if not isinstance(entry, led.Withdraw):
            original(self, entry, then)

    return insist


def _takes_a_key_for_anything(self: Ledger, known: Any, effect: Any) -> None:
    pass


def _before_the_disk(kind: type, answer: Callable[[Any], object]) -> Any:
    """An entry of this kind is said to be made at once."""

    def wrap(original: Any) -> Any:
        def enter(self: ledger.Ledger, entry: Any, then: Any) -> None:
            original(self, entry, (lambda *_: None) if isinstance(entry, kind) else then)
            if isinstance(entry, kind):
                then(answer(entry), None)

        return enter

    return wrap


_sends_before_the_disk = _before_the_disk(led.Send, lambda e: led.Sent(id=e.mail.id, fresh=True))
_acknowledges_before_the_disk = _before_the_disk(led.Ack, lambda e: len(e.ids))


def _gives_what_is_out(original: Any) -> Any:
    def look(self: Boxes, pair: Any) -> None:
        box = self._boxes.get(pair)
        if box is not None:
            box.leases.clear()
        original(self, pair)

    return look


def _names_anew(original: Any) -> Any:
    def give(self: Boxes, pair: Any, call: Any, mails: Any, left: int) -> None:
        self._sent += 1
        named = tuple(replace(one, id=f"{one.id}x{self._sent}") for one in mails)
        original(self, pair, call, named, left)

    return give


def _drops_what_a_dead_receiver_had(self: Boxes, channel: int) -> None:
    """As if it had been acknowledged."""
    for pair, box in list(self._boxes.items()):
        ids = tuple(id_ for id_, (whose, _) in box.leases.items() if whose == channel)
        if ids:
            entry = led.Ack(agent=pair[0], user=pair[1], ids=ids)
            self._state.ledger.enter(entry, lambda answer, refused: None)


def _writes_as_another(original: Any) -> Any:
    def enter(self: Boxes, call: Any) -> None:
        letter = replace(call.work.mail, from_agent="plan")
        call.work = replace(call.work, mail=letter)
        original(self, call)

    return enter


def _sends_to_anybody(self: Users, who: Any, agent: str) -> bool:
    return True


def _forgets_timers(self: Timers) -> None:
    self._table.clear()


BROKEN: dict[str, tuple[type, str, Any, bool]] = {
    "acts before the disk": (Effects, "begin", _acts_before_the_disk, True),
    "repeats what is unknown": (Effects, "_verdict", _repeats_what_is_unknown, True),
    "repeats what is done": (Effects, "_verdict", _repeats_what_is_done, False),
    "leaves steps of the dead": (Effects, "detached", _leaves_steps_of_the_dead, False),
    "gives up ends": (Effects, "_insist", _gives_up_where_the_disk_refuses, False),
    "withdraws nothing": (Effects, "_insist", _withdraws_nothing, True),
    "nobody recovers": (Ledger, "_recover", _nobody_recovers, False),
    "takes a key for anything": (Ledger, "_same", _takes_a_key_for_anything, False),
    "sends before the disk": (ledger.Ledger, "enter", _sends_before_the_disk, True),
    "acknowledges before the disk": (ledger.Ledger, "enter", _acknowledges_before_the_disk, True),
    "gives what is out": (Boxes, "_look", _gives_what_is_out, True),
    "names anew": (Boxes, "_give", _names_anew, True),
    "drops what the dead had": (Boxes, "detached", _drops_what_a_dead_receiver_had, False),
    "writes as another": (Boxes, "_enter", _writes_as_another, True),
    "sends to anybody": (Users, "may_mail", _sends_to_anybody, False),
    "forgets timers": (Timers, "begin", _forgets_timers, False),
}
"""Class, method, what takes its place, and whether that is made of the original."""
