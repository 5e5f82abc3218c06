"""The ``effect`` syscalls of both clients: steps that change the world, done once under a key."""

from __future__ import annotations

from typing import Literal, TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi.effects import Effect
from isovist.syscalls.options import CallOptions, EffectOptions, EffectsOptions

R = TypeVar("R", bound=m.Reply)


class EffectCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def effect_begin(
        self, subject: str, arguments: str = "", **options: Unpack[EffectOptions]
    ) -> m.effects.EffectShown:
        """Record that a step begins which changes the world; do it iff the reply is ``fresh``."""
        request = m.effects.EffectBegin(subject=subject, arguments=arguments, **options)
        return self._ask(request, m.effects.EffectShown)

    def effect_done(
        self, id: str, result: str = "", **options: Unpack[CallOptions]
    ) -> m.effects.EffectShown:
        """Step ``id`` has happened, with ``result``."""
        request = m.effects.EffectEnd(id=id, state="done", result=result, **options)
        return self._ask(request, m.effects.EffectShown)

    def effect_failed(
        self, id: str, message: str, **options: Unpack[CallOptions]
    ) -> m.effects.EffectShown:
        """Step ``id`` has not happened, because of ``message``."""
        request = m.effects.EffectEnd(id=id, state="failed", message=message, **options)
        return self._ask(request, m.effects.EffectShown)

    def effects(self, **options: Unpack[EffectsOptions]) -> tuple[Effect, ...]:
        """Effects of this pair, those that changed last first."""
        request = m.effects.EffectList(**options)
        return self._ask(request, m.effects.Effects).effects

    def last_step(self, **options: Unpack[CallOptions]) -> Effect | None:
        """The step that was done last, with its inputs and its result as far as they are kept."""
        request = m.effects.EffectList(states=("done",), kinds=("step",), limit=1, **options)
        found = self._ask(request, m.effects.Effects).effects
        return found[0] if found else None

    def effect_resolve(
        self,
        id: str,
        outcome: Literal["done", "failed", "retry"],
        result: str = "",
        **options: Unpack[CallOptions],
    ) -> m.effects.EffectShown:
        """Say what became of an effect whose outcome is unknown."""
        request = m.effects.EffectResolve(id=id, outcome=outcome, result=result, **options)
        return self._ask(request, m.effects.EffectShown)


class AsyncEffectCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def effect_begin(
        self, subject: str, arguments: str = "", **options: Unpack[EffectOptions]
    ) -> m.effects.EffectShown:
        """Record that a step begins which changes the world; do it iff the reply is ``fresh``."""
        request = m.effects.EffectBegin(subject=subject, arguments=arguments, **options)
        return await self._ask(request, m.effects.EffectShown)

    async def effect_done(
        self, id: str, result: str = "", **options: Unpack[CallOptions]
    ) -> m.effects.EffectShown:
        """Step ``id`` has happened, with ``result``."""
        request = m.effects.EffectEnd(id=id, state="done", result=result, **options)
        return await self._ask(request, m.effects.EffectShown)

    async def effect_failed(
        self, id: str, message: str, **options: Unpack[CallOptions]
    ) -> m.effects.EffectShown:
        """Step ``id`` has not happened, because of ``message``."""
        request = m.effects.EffectEnd(id=id, state="failed", message=message, **options)
        return await self._ask(request, m.effects.EffectShown)

    async def effects(self, **options: Unpack[EffectsOptions]) -> tuple[Effect, ...]:
        """Effects of this pair, those that changed last first."""
        request = m.effects.EffectList(**options)
        return (await self._ask(request, m.effects.Effects)).effects

    async def last_step(self, **options: Unpack[CallOptions]) -> Effect | None:
        """The step that was done last, with its inputs and its result as far as they are kept."""
        request = m.effects.EffectList(states=("done",), kinds=("step",), limit=1, **options)
        found = (await self._ask(request, m.effects.Effects)).effects
        return found[0] if found else None

    async def effect_resolve(
        self,
        id: str,
        outcome: Literal["done", "failed", "retry"],
        result: str = "",
        **options: Unpack[CallOptions],
    ) -> m.effects.EffectShown:
        """Say what became of an effect whose outcome is unknown."""
        request = m.effects.EffectResolve(id=id, outcome=outcome, result=result, **options)
        return await self._ask(request, m.effects.EffectShown)
