"""Quotas: what an agent, a user or all callers of a model may have at once and in a time.

A call is admitted by all gates that it passes (its agent's, its user's, its model's) or by none,
and every refusal says when it is worth trying again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
NEVER = 1 << 62
"""An instant that does not come."""
EVERYBODY = "*"
"""The limit of all who have none of their own: each has a gate of its own under it."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each figure from 0; 0 is no limit."""

    tokens: int = 0
    """A minute, prompt and answer alike. One minute's worth may be saved up."""
    calls: int = 0
    """That are admitted and have not ended."""
    queue: int = 0
    """That are admitted and have not begun to run."""
    syscalls: int = 0
    """A second. One second's worth may be saved up."""
    units: int = 0
    """That are stored."""
    bytes: int = 0
    """Of the texts of these."""
    workspace: int = 0
    """Bytes in the workspace, and of the versions of files that are kept."""
    seconds: int = 0
    """Of processor, a day (UTC), of all processes together."""
    memory: int = 0
    """Bytes, of each process."""


FIGURES = Limit.__struct_fields__
"""The names of all limits."""
OF_MODELS = ("tokens", "calls", "queue")
"""Those that a model has as well."""


class Allowances:
    """Which limits hold for whom: those of the settings, where the operator has set none since.

    A name that stands for itself in the settings has these limits and none of ``EVERYBODY``; what
    was set goes before both, figure by figure.
    """

    def __init__(
        self,
        settings: Mapping[str, Mapping[str, Limit]],
        chosen: Mapping[tuple[str, str], Mapping[str, int]] | None = None,
    ) -> None:
        self._settings = settings
        self._chosen = {key: dict(figures) for key, figures in (chosen or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._settings or self._chosen)

    def of(self, axis: str, name: str) -> Limit | None:
        """``None``: there is none at all."""
        named = self._settings.get(axis, {})
        found = named.get(name)
        if found is None:
            found = self._with(named.get(EVERYBODY), axis, EVERYBODY)
        return found if name == EVERYBODY else self._with(found, axis, name)

    def _with(self, limit: Limit | None, axis: str, name: str) -> Limit | None:
        chosen = self._chosen.get((axis, name))
        return limit if not chosen else msgspec.structs.replace(limit or Limit(), **chosen)

    def chosen(self, axis: str, name: str) -> dict[str, int]:
        return dict(self._chosen.get((axis, name), {}))

    def choose(self, axis: str, name: str, figures: Mapping[str, int]) -> None:
        """All that is set for a name from now on."""
        if figures:
            self._chosen[axis, name] = dict(figures)
        else:
            self._chosen.pop((axis, name), None)

    def named(self) -> set[tuple[str, str]]:
        """Every axis and name that a limit is set for."""
        in_settings = {(axis, name) for axis, named in self._settings.items() for name in named}
        return in_settings | set(self._chosen)

    def any(self, axis: str, *figures: str) -> bool:
        """Whether anybody on an axis has one of these limits."""
        limits = (self.of(a, name) for a, name in self.named() if a == axis)
        return any(limit and any(getattr(limit, f) for f in figures) for limit in limits)


class Refusal(msgspec.Struct, frozen=True):
    """``at``: the first instant (virtual ns) at which the same call is admitted, if nothing else
    happens meanwhile; ``None`` where only the end of another call can help, ``never`` where no
    time does."""

    why: str
    at: int | None = None
    never: bool = False


class Bucket:
    """A token bucket that holds ``rate`` tokens and is filled with as many in a ``period`` (ns).

    In whole numbers, so that the instant at which it holds enough is exact: the level is kept in
    tokens times the period, and rises by ``rate`` in each nanosecond. ``take`` may overdraw it.

    Bound: over any t periods at most (1 + t) ``rate`` tokens are taken, and what is overdrawn.
    """

    __slots__ = ("_at", "_full", "_level", "_period", "rate")

    def __init__(self, rate: int, now: int, period: int = MINUTE) -> None:
        self.rate = rate
        self._period = period
        self._full = self._level = rate * period
        self._at = now

    def _fill(self, now: int) -> None:
        risen = self._level + self.rate * max(0, now - self._at)
        self._level = min(self._full, risen)
        self._at = max(self._at, now)

    def draw(self, now: int) -> int:
        """Take one token; 0 where there was one, else the first instant at which there is."""
        level = self._level + self.rate * (now - self._at)
        self._at = now
        if level > self._full:
            level = self._full
        if level < self._period:
            self._level = level
            return now - (level - self._period) // self.rate if self.rate else NEVER
        self._level = level - self._period
        return 0

    def when(self, tokens: int, now: int) -> int:
        """The first instant from ``now`` on that finds ``tokens`` (at most ``rate``) in it."""
        self._fill(now)
        lacking = tokens * self._period - self._level
        return now + max(0, -(-lacking // self.rate))

    def take(self, tokens: int, now: int) -> None:
        """Negative ``tokens`` are given back."""
        self._fill(now)
        self._level = min(self._full, self._level - tokens * self._period)

    def level(self, now: int) -> int:
        """What :meth:`restore` takes back at the same instant."""
        self._fill(now)
        return self._level

    def restore(self, level: int) -> None:
        self._level = level

    def left(self, now: int) -> int:
        """Tokens that are in it; below 0 where it is overdrawn."""
        self._fill(now)
        return self._level // self._period

    def full(self, now: int) -> bool:
        self._fill(now)
        return self._level == self._full


class Gate:
    """One limit at work. Invariant: ``waiting`` <= ``calls``, and both count admitted calls."""

    def __init__(self, limit: Limit, now: int) -> None:
        self.limit = limit
        self.calls = self.waiting = 0
        self.changed = False
        self.bucket = Bucket(limit.tokens, now) if limit.tokens else None

    def become(self, limit: Limit, now: int) -> None:
        """Another limit holds from now on: of its tokens there are as many as there were left."""
        if limit.tokens != self.limit.tokens:
            before = self.bucket
            self.bucket = Bucket(limit.tokens, now) if limit.tokens else None
            if before is not None and self.bucket is not None:
                self.bucket.restore(min(self.bucket.level(now), before.level(now)))
        self.limit, self.changed = limit, True

    def refusal(self, name: str, tokens: int, now: int) -> Refusal | None:
        limit = self.limit
        if limit.tokens and tokens > limit.tokens:
            why = f"{name} may use {limit.tokens} tokens a minute, this call asks for {tokens}"
            return Refusal(why, never=True)
        if limit.calls and self.calls >= limit.calls:
            return Refusal(f"{name} has {self.calls} calls outstanding, the limit")
        if limit.queue and self.waiting >= limit.queue:
            return Refusal(f"{name} has {self.waiting} calls waiting, the limit")
        if self.bucket is not None:
            at = self.bucket.when(tokens, now)
            if at > now:
                return Refusal(f"{name} has used its {limit.tokens} tokens a minute", at)
        return None


class _Admitted(msgspec.Struct):
    gates: tuple[Gate, ...]
    reserved: int
    begun: bool = False
    prompt: int = 0


class Quotas:
    """All gates, by axis (as ``agent``) and name.

    A call reserves the longest answer that it may get when it is admitted; its prompt is taken
    when its length is known, which may overdraw the bucket; what it did not use is given back at
    its end. So no number of calls at once takes more than is there, prompts apart. One that moves
    on, since where it was nobody answers, has all given back and begins anew.
    """

    def __init__(self, limits: Allowances) -> None:
        self._limits = limits
        self._gates: dict[tuple[str, str], Gate] = {}
        self._calls: dict[int, _Admitted] = {}
        self._sweep_at = 64

    def refusal(self, names: Iterable[tuple[str, str]], tokens: int, now: int) -> Refusal | None:
        """Why a call that may get ``tokens`` is not admitted through the gates of these axes and
        names, of several reasons the one that lasts longest; ``None``: it is."""
        refusals: list[Refusal] = []
        for axis, name in names:
            gate = self._gate(axis, name, now)
            refusal = gate.refusal(f"{axis} {name}", tokens, now) if gate is not None else None
            if refusal is not None:
                refusals.append(refusal)
        return max(refusals, key=lambda r: (r.never, r.at is None, r.at or 0), default=None)

    def admit(self, key: int, names: Iterable[tuple[str, str]], tokens: int, now: int) -> None:
        """Count call ``key``, which was not refused just now."""
        found = [self._gate(axis, name, now) for axis, name in names]
        gates = tuple(gate for gate in found if gate is not None)
        if not gates:
            return
        call = self._calls[key] = _Admitted(gates, tokens)
        _count(call, 1)
        _take(call, tokens, now)

    def move(self, key: int, names: Iterable[tuple[str, str]], tokens: int, now: int) -> bool:
        """Count call ``key`` at the gates of ``names`` instead, as if it came only now; false
        where one refuses it, and nothing has changed then."""
        names, call = tuple(names), self._calls.get(key)
        buckets = [g.bucket for g in (call.gates if call else ()) if g.bucket is not None]
        levels = [bucket.level(now) for bucket in buckets]
        if call is not None:
            # What it holds itself must not stand in its way.
            _count(call, -1)
            _take(call, -call.reserved - call.prompt, now)
        if self.refusal(names, tokens, now) is None:
            self._calls.pop(key, None)
            self.admit(key, names, tokens, now)
            return True
        if call is not None:
            _count(call, 1)
        # Not taken again: what was given back may have been more than a bucket holds.
        for bucket, level in zip(buckets, levels, strict=True):
            bucket.restore(level)
        return False

    def begin(self, key: int) -> None:
        """The call runs, for the first time or again."""
        call = self._calls.get(key)
        if call is not None and not call.begun:
            call.begun = True
            for gate in call.gates:
                gate.waiting -= 1

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return bool(self._limits or self._gates)

    def enter(self, axis: str, name: str, limit: Limit, now: int) -> None:
        """Have a gate for a name that the limits do not know: one process's."""
        if (axis, name) not in self._gates:
            self._gates[axis, name] = Gate(limit, now)

    def changed(self, axis: str, name: str, now: int) -> None:
        """Other limits hold for a name (``EVERYBODY``: for all that have none of their own)."""
        for (a, one), gate in list(self._gates.items()):
            if a == axis and name in (EVERYBODY, one):
                # Without any it still counts those that it has let in.
                gate.become(self._limits.of(a, one) or Limit(), now)

    def used(self, axis: str, name: str, now: int) -> dict[str, int]:
        """By the names of limits; empty where nobody has asked for long."""
        gate = self._gates.get((axis, name))
        if gate is None:
            return {}
        used = {"calls": gate.calls, "queue": gate.waiting}
        if gate.bucket is not None:
            used["tokens"] = gate.bucket.rate - gate.bucket.left(now)
        return used

    def take(self, key: int, tokens: int, now: int) -> None:
        """The call's prompt has ``tokens``."""
        call = self._calls.get(key)
        if call is not None:
            call.prompt += tokens
            _take(call, tokens, now)

    def end(self, key: int, output: int, now: int) -> None:
        """The call has ended; its answer had ``output`` tokens. No effect on one not admitted."""
        call = self._calls.pop(key, None)
        if call is not None:
            _count(call, -1)
            _take(call, output - call.reserved, now)
        if len(self._gates) > self._sweep_at:
            self._forget(now)

    def _gate(self, axis: str, name: str, now: int) -> Gate | None:
        gate = self._gates.get((axis, name))
        if gate is None:
            limit = self._limits.of(axis, name)
            if limit is None:
                return None
            gate = self._gates[axis, name] = Gate(limit, now)
        return gate

    def _forget(self, now: int) -> None:
        """Gates as good as new need not be kept."""
        for name, gate in list(self._gates.items()):
            if not gate.calls and (gate.bucket is None or gate.bucket.full(now)):
                del self._gates[name]
        self._sweep_at = max(64, 2 * len(self._gates))

    def keys(self) -> set[int]:
        """The calls that are admitted, pass a gate, and have not ended."""
        return set(self._calls)

    def validate(self) -> None:
        for gate in self._gates.values():
            own = [c for c in self._calls.values() if gate in c.gates]
            assert gate.calls == len(own), "each gate counts its calls"
            assert gate.waiting == sum(not c.begun for c in own), "and those that wait"
            if not gate.changed:  # else it may have let in more before
                assert not gate.limit.calls or gate.calls <= gate.limit.calls
                assert not gate.limit.queue or gate.waiting <= gate.limit.queue


def _count(call: _Admitted, by: int) -> None:
    for gate in call.gates:
        gate.calls += by
        gate.waiting += 0 if call.begun else by


def _take(call: _Admitted, tokens: int, now: int) -> None:
    for gate in call.gates:
        if gate.bucket is not None:
            gate.bucket.take(tokens, now)
