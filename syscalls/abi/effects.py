"""The ``effect`` syscalls: what changes the world is done once under a key, or is unknown."""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.abi.base import Call, Reply

Phase = Literal["started", "done", "failed", "unknown", "retry"]
PHASES: tuple[Phase, ...] = ("started", "done", "failed", "unknown", "retry")


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A text by reference: ``hash`` is the SHA-256 (hex) of what was handed over, ``size`` its
    bytes of UTF-8. ``text`` is what is kept of it, past the secrets guard; absent where it is
    longer than is kept, or where a list leaves it out."""

    hash: str
    size: int
    text: str | None = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the world, under the ``key`` of a pair.

    ``kind`` says who carries it out: ``tool``, ``file`` and ``mail`` the kernel, ``step`` the agent
    itself. ``subject`` names what is done. ``state`` goes from ``started`` to ``done`` or
    ``failed``; it is ``unknown`` where its kernel, or its agent, ended before the outcome was
    recorded, and ``retry`` once somebody has said that it may be begun again. ``tries`` counts
    beginnings. Times are nanoseconds since 1970 UTC; ``ended_at`` is 0 until it has ended.
    ``errno`` and ``message`` say why it failed, or is unknown.
    """

    id: str
    key: str
    kind: str
    subject: str
    state: Phase
    agent: str
    user: str
    started_at: int
    arguments: Body
    ended_at: int = 0
    idempotent: bool = False
    tries: int = 1
    result: Body | None = None
    errno: int = 0
    message: str = ""


class EffectBegin(Call, frozen=True, array_like=True, kw_only=True, tag=64):
    """Record that a step begins which changes the world; the reply says that the record is durable.

    Where the reply's ``fresh`` is false, the step was done or has failed before, and is not to be
    done again. ``key`` (at most 256 bytes) is this step's for this pair; without one the kernel
    makes one. The same key with another ``subject`` or other ``arguments`` is ``EINVAL``; while the
    step is under way it is ``EAGAIN``; where its outcome is unknown ``ESTALE``, unless the step is
    ``idempotent``: then it begins again. ``subject`` has at most 1,024 bytes. ``arguments`` are its
    inputs, or say where they are.
    """

    subject: str
    key: str = ""
    arguments: str = ""
    idempotent: bool = False


class EffectEnd(Call, frozen=True, array_like=True, kw_only=True, tag=65):
    """Record how step ``id`` of this pair ended: it was ``done`` with ``result``, or has ``failed``
    because of ``message``, or its outcome is ``unknown``. One that has ended is ``ESTALE``."""

    id: str
    state: Literal["done", "failed", "unknown"] = "done"
    result: str = ""
    message: str = ""


class EffectList(Call, frozen=True, array_like=True, kw_only=True, tag=66):
    """Effects of this pair, those that changed last first, at most ``limit`` (1 to 200) of them.

    With ``id`` or ``key`` that one alone, with what is kept of its texts (``ENOENT``); a list of
    one has them too. ``states`` and ``kinds`` choose among them. The operator that names no user
    sees those of all pairs, of ``agent`` alone where it is named, without texts.
    """

    id: str = ""
    key: str = ""
    states: tuple[Phase, ...] = ()
    kinds: tuple[str, ...] = ()
    limit: int = 20
    agent: str = ""


class EffectResolve(Call, frozen=True, array_like=True, kw_only=True, tag=67):
    """Say what became of an effect whose outcome is unknown: it was ``done`` with ``result``, has
    ``failed`` because of it, or may be begun again under its key (``retry``; also of one that has
    failed). Of this pair, or of any for the operator; one in no such state is ``ESTALE``."""

    id: str
    outcome: Literal["done", "failed", "retry"]
    result: str = ""


class EffectShown(Reply, frozen=True, array_like=True, kw_only=True, tag=147):
    """``fresh``: it is to be done now, by whoever is told so."""

    effect: Effect
    fresh: bool = False


class Effects(Reply, frozen=True, array_like=True, kw_only=True, tag=148):
    effects: tuple[Effect, ...]


Request = EffectBegin | EffectEnd | EffectList | EffectResolve
AnyReply = EffectShown | Effects
REPLY_OF: dict[type[Call], type[Reply]] = {
    EffectBegin: EffectShown,
    EffectEnd: EffectShown,
    EffectList: Effects,
    EffectResolve: EffectShown,
}
NAMES: dict[type[Call], str] = {
    EffectBegin: "effect.begin",
    EffectEnd: "effect.end",
    EffectList: "effect.list",
    EffectResolve: "effect.resolve",
}
