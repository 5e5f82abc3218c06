"""Who shares a model with whom, and who may have how much: settings, quotas, the schedule syscall.

The queue before each model is a policy of :mod:`isovist.scheduler`; its clients are agents, users
or pairs, as configured. A chat passes the gates of its agent, its user and its model when it
arrives; one that may not pass is refused with ``EAGAIN`` and the time at which it may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from isovist.kernel.state.calls import Call
from isovist.kernel.state.users import Principal
from isovist.scheduler.choice import DEFAULT
from isovist.scheduler.quota import Allowances, Limit, Quotas
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, WorldError

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

Clients = Literal["agent", "user", "pair"]


@dataclass(frozen=True)
class Scheduling:
    """Settings. ``weights`` (above 0, default 1), ``priorities`` (0 to 9, default 0) and
    ``quotas`` are by axis (``agent``, ``user``, of quotas ``model`` as well) and name; the quota
    of the name ``*`` is that of each who has none of its own. Of a pair, weights are multiplied
    and priorities added (9 at most)."""

    policy: str = DEFAULT
    clients: Clients = "agent"
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    priorities: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    quotas: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)

    def client(self, agent: str, user: str) -> str:
        if self.clients == "pair":
            return f"{agent}/{user}"  # no agent's name holds a /
        return user if self.clients == "user" else agent

    def weight(self, agent: str, user: str) -> float:
        """Of the client, so it hangs on nothing else than what names the client."""
        weight = 1.0
        if self.clients != "user":
            weight *= self.weights.get("agent", {}).get(agent, 1.0)
        if self.clients != "agent":
            weight *= self.weights.get("user", {}).get(user, 1.0)
        return weight

    def priority(self, agent: str, user: str) -> int:
        by_agent = self.priorities.get("agent", {}).get(agent, 0)
        return min(9, by_agent + self.priorities.get("user", {}).get(user, 0))


class Admission:
    """Invariant: a chat that passed a gate is counted there until it ends, however it ends."""

    def __init__(self, state: State, limits: Allowances) -> None:
        self._state = state
        self._limits = limits
        self._quotas = Quotas(limits)

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.Schedule: self._schedule}

    def _schedule(self, channel: Channel, frame: int, request: m.Schedule) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator sees and changes queues", errno=Errno.EPERM)
        queues = self._state.drivers.schedule(request.model, request.policy)
        self._state.reply(channel, frame, m.Queues(queues=queues))

    def check(self, who: Principal, request: m.Chat, model: str) -> None:
        """Raises ``EAGAIN`` with the time of the next try, or ``EINVAL`` where none can help."""
        names = self._gates(who, self._state.users.resolve(who, request.user).user, model)
        if not self._quotas:
            return
        now = self._state.now
        refusal = self._quotas.refusal(names, request.max_tokens, now)
        if refusal is None:
            return
        if refusal.never:
            raise CallerError(refusal.why, field="max_tokens")
        at = 0 if refusal.at is None else self._state.calendar() + refusal.at - now
        raise WorldError(refusal.why, errno=Errno.EAGAIN, retry_at=at)

    def admit(self, call: Call, model: str, max_tokens: int) -> None:
        """A chat that was checked is now outstanding."""
        if self._quotas and call.resolved is not None:
            names = self._gates_of(call, call.resolved.user, model)
            self._quotas.admit(call.key, names, max_tokens, self._state.now)

    def move(self, call: Call, model: str, max_tokens: int) -> bool:
        """Count a call at another model from now on, and give back what its failed try has cost:
        prompt and words that nobody has seen. False where that model's gate or another refuses
        it, and it is counted where it was."""
        if not self._quotas or call.resolved is None:
            return True
        names = self._gates_of(call, call.resolved.user, model)
        return self._quotas.move(call.key, names, max_tokens, self._state.now)

    def rendered(self, call: Call, prompt_tokens: int) -> None:
        self._quotas.take(call.key, prompt_tokens, self._state.now)

    def spent(self, call: Call, output_tokens: int) -> None:
        """A round of a call that goes on has made so many; only its last is what it reserved."""
        self._quotas.take(call.key, output_tokens, self._state.now)

    def begun(self, call: Call) -> None:
        self._quotas.begin(call.key)

    def ended(self, call: Call, output_tokens: int) -> None:
        self._quotas.end(call.key, output_tokens, self._state.now)

    def changed(self, axis: str, name: str) -> None:
        """Other limits hold for a name."""
        self._quotas.changed(axis, name, self._state.now)

    def used(self, axis: str, name: str) -> dict[str, int]:
        """Tokens of the last minute and calls that are admitted, where they are counted."""
        return self._quotas.used(axis, name, self._state.now)

    def _gates_of(self, call: Call, user: str, model: str) -> Iterable[tuple[str, str]]:
        return self._gates(self._state.channels[call.channel].who, user, model)

    def _gates(self, who: Principal, user: str, model: str) -> Iterable[tuple[str, str]]:
        """Which gates a chat passes: a process whose rights bound its tokens has one of its own,
        for itself and its descendants."""
        names = [("agent", who.agent), ("user", user), ("model", model)]
        for one in who.line():
            tokens = one.rights.quotas.get("tokens")
            if tokens is not None:
                names.append(("process", str(one.pid)))
                self._quotas.enter(*names[-1], Limit(tokens=max(1, tokens)), self._state.now)
        return names

    def validate(self) -> None:
        self._quotas.validate()
        assert self._quotas.keys() <= self._state.calls.keys(), "an ended call is counted on"
