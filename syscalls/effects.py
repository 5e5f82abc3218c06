"""The ``effect`` syscalls of both clients: steps that change the world, done once under a key."""

from __future__ import annotations

from typing import Literal, TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi import effects as abi
from isovist.syscalls.options import CallOptions, EffectOptions, EffectsOptions

R = TypeVar("R", bound=m.Reply)


class EffectCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def effect_begin(
        self, subject: str, arguments: str = "", **options: Unpack[EffectOptions]
    ) -> abi.EffectShown:
        """Record that a step begins which changes the world; do it iff the reply is ``fresh``."""
        request = abi.EffectBegin(subject=subject, arguments=arguments, **options)
        return self._ask(request, abi.EffectShown)

    def effect_done(
        self, id: str, result: str = "", **options: Unpack[CallOptions]
    ) -> abi.EffectShown:
        """Step ``id`` has happened, with ``result``."""
        request = abi.EffectEnd(id=id, state="done", result=result, **options)
        return self._ask(request, abi.EffectShown)

    def effect_failed(
        self, id: str, message: str, **options: Unpack[CallOptions]
    ) -> abi.EffectShown:
        """Step ``id`` has not happened, because of ``message``."""
        request = abi.EffectEnd(id=id, state="failed", message=message, **options)
        return self._ask(request, abi.EffectShown)

    def effects(self, **options: Unpack[EffectsOptions]) -> tuple[abi.Effect, ...]:
        """Effects of this pair, those that changed last first."""
        request = abi.EffectList(**options)
        return self._ask(request, abi.Effects).effects

    def last_step(self, **options: Unpack[CallOptions]) -> abi.Effect | None:
        """The step that was done last, with its inputs and its result as far as they are kept."""
        request = abi.EffectList(states=("done",), kinds=("step",), limit=1, **options)
        found = self._ask(request, abi.Effects).effects
        return found[0] if found else None

    def effect_resolve(
        self,
        id: str,
        outcome: Literal["done", "failed", "retry"],
        result: str = "",
        **options: Unpack[CallOptions],
    ) -> abi.EffectShown:
        """Say what became of an effect whose outcome is unknown."""
        request = abi.EffectResolve(id=id, outcome=outcome, result=result, **options)
        return self._ask(request, abi.EffectShown)


class AsyncEffectCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def effect_begin(
        self, subject: str, arguments: str = "", **options: Unpack[EffectOptions]
    ) -> abi.EffectShown:
        """Record that a step begins which changes the world; do it iff the reply is ``fresh``."""
        request = abi.EffectBegin(subject=subject, arguments=arguments, **options)
        return await self._ask(request, abi.EffectShown)

    async def effect_done(
        self, id: str, result: str = "", **options: Unpack[CallOptions]
    ) -> abi.EffectShown:
        """Step ``id`` has happened, with ``result``."""
        request = abi.EffectEnd(id=id, state="done", result=result, **options)
        return await self._ask(request, abi.EffectShown)

    async def effect_failed(
        self, id: str, message: str, **options: Unpack[CallOptions]
    ) -> abi.EffectShown:
        """Step ``id`` has not happened, because of ``message``."""
        request = abi.EffectEnd(id=id, state="failed", message=message, **options)
        return await self._ask(request, abi.EffectShown)

    async def effects(self, **options: Unpack[EffectsOptions]) -> tuple[abi.Effect, ...]:
        """Effects of this pair, those that changed last first."""
        request = abi.EffectList(**options)
        return (await self._ask(request, abi.Effects)).effects

    async def last_step(self, **options: Unpack[CallOptions]) -> abi.Effect | None:
        """The step that was done last, with its inputs and its result as far as they are kept."""
        request = abi.EffectList(states=("done",), kinds=("step",), limit=1, **options)
        found = (await self._ask(request, abi.Effects)).effects
        return found[0] if found else None

    async def effect_resolve(
        self,
        id: str,
        outcome: Literal["done", "failed", "retry"],
        result: str = "",
        **options: Unpack[CallOptions],
    ) -> abi.EffectShown:
        """Say what became of an effect whose outcome is unknown."""
        request = abi.EffectResolve(id=id, outcome=outcome, result=result, **options)
        return await self._ask(request, abi.EffectShown)
