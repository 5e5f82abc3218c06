"""The ``quota`` syscalls: what agents and users may have, and what they have."""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.base import Call, Reply

Axis = Literal["agent", "user", "model", "process"]


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent, user, model or process may have at most, and has: ``syscalls`` a second,
    ``tokens`` a minute, ``calls`` at once, ``queue`` of these that wait, stored ``units`` and their
    ``bytes``, bytes of ``workspace``, ``seconds`` of processor a day (of a process: in its life),
    bytes of ``memory`` a process. ``limits`` holds those that there are, ``used`` what is counted;
    ``chosen`` names the limits that were set while a kernel ran. A process is named by its number;
    what it uses is what it and all that descend from it use."""

    axis: Axis
    name: str
    limits: dict[str, int]
    used: dict[str, int]
    chosen: tuple[str, ...] = ()


class QuotaList(Call, frozen=True, array_like=True, kw_only=True, tag=88):
    """Limits and use. To an agent: its own, those of the user that it serves, and of its process
    and its ancestors. To the operator that names no user: of all, or of one ``axis``, or of one
    ``name`` on it (``ENOENT`` where nothing is known of it)."""

    axis: Literal["", "agent", "user", "model", "process"] = ""
    name: str = ""


class QuotaSet(Call, frozen=True, array_like=True, kw_only=True, tag=89):
    """Operator only: set limits of ``name`` (``*``: of each that has none of its own), durable and
    in force at once; 0 is no limit. They go before those of the settings. ``reset`` takes back
    what was set before. What is over a new limit stays, but nothing comes to it."""

    axis: Literal["agent", "user", "model"]
    name: str
    limits: dict[str, int] = {}
    reset: bool = False


class Quotas(Reply, frozen=True, array_like=True, kw_only=True, tag=163):
    """By axis, then by name."""

    quotas: tuple[Quota, ...]


class QuotaShown(Reply, frozen=True, array_like=True, kw_only=True, tag=164):
    """As it now stands."""

    quota: Quota


Request = QuotaList | QuotaSet
AnyReply = Quotas | QuotaShown
REPLY_OF: dict[type[Call], type[Reply]] = {QuotaList: Quotas, QuotaSet: QuotaShown}
NAMES: dict[type[Call], str] = {QuotaList: "quota.list", QuotaSet: "quota.set"}
