"""What every message is made of. Frozen for ever: see :mod:`isovist.syscalls.messages`."""

from __future__ import annotations

import msgspec


class Call(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=0):
    """What every request carries.

    ``user`` names the user served; the kernel accepts it only under a grant of the channel, and
    resolves the user itself where it is ``None``. ``deadline_ms`` ends the call with
    ``ETIMEDOUT`` when so many milliseconds have passed since its arrival (1 to 3,600,000).
    """

    user: str | None = None
    deadline_ms: int | None = None


class Reply(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=100):
    """Base of all replies; has no fields, for ever."""
