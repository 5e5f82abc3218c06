"""Agents: programs that speak to the kernel through syscalls alone.

A plain script needs :func:`connect` (or, under trio, :func:`open_client`); an agent that others
can run by name, import and subclass derives from :class:`Agent`.
"""

from typing import TYPE_CHECKING

from isovist.agents.base import Agent, Said
from isovist.syscalls.client import connect

if TYPE_CHECKING:
    from isovist.syscalls.aio import open_client

__all__ = ["Agent", "Said", "connect", "open_client"]


def __getattr__(name: str) -> object:
    # A blocking agent does without trio.
    if name == "open_client":
        from isovist.syscalls.aio import open_client

        return open_client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
