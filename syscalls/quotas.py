"""The ``quota`` syscalls of both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.abi import quotas as abi
from isovist.syscalls.options import CallOptions

R = TypeVar("R", bound=m.Reply)


class QuotaCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def quotas(
        self,
        axis: Literal["", "agent", "user", "model", "process"] = "",
        name: str = "",
        **options: Unpack[CallOptions],
    ) -> tuple[abi.Quota, ...]:
        """What this agent, its user and its process may have and have; to the operator, all."""
        request = abi.QuotaList(axis=axis, name=name, **options)
        return self._ask(request, abi.Quotas).quotas

    def quota_set(
        self,
        axis: Literal["agent", "user", "model"],
        name: str,
        limits: Mapping[str, int] | None = None,
        reset: bool = False,
        **options: Unpack[CallOptions],
    ) -> abi.Quota:
        """Operator only: set limits of an agent, a user or a model; 0 is none."""
        request = abi.QuotaSet(
            axis=axis, name=name, limits=dict(limits or {}), reset=reset, **options
        )
        return self._ask(request, abi.QuotaShown).quota


class AsyncQuotaCalls:
    """The same for a client that waits."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def quotas(
        self,
        axis: Literal["", "agent", "user", "model", "process"] = "",
        name: str = "",
        **options: Unpack[CallOptions],
    ) -> tuple[abi.Quota, ...]:
        """What this agent, its user and its process may have and have; to the operator, all."""
        request = abi.QuotaList(axis=axis, name=name, **options)
        return (await self._ask(request, abi.Quotas)).quotas

    async def quota_set(
        self,
        axis: Literal["agent", "user", "model"],
        name: str,
        limits: Mapping[str, int] | None = None,
        reset: bool = False,
        **options: Unpack[CallOptions],
    ) -> abi.Quota:
        """Operator only: set limits of an agent, a user or a model; 0 is none."""
        request = abi.QuotaSet(
            axis=axis, name=name, limits=dict(limits or {}), reset=reset, **options
        )
        return (await self._ask(request, abi.QuotaShown)).quota
