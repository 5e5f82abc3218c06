"""Policies by name, and the settings that make them."""

from __future__ import annotations

from collections.abc import Callable

from isovist.scheduler.policy import Policy
from isovist.scheduler.ranked import Fifo, Priority
from isovist.scheduler.shared import Deadline, FairShare, RoundRobin
from isovist.syscalls.errors import CallerError

POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "round_robin": RoundRobin,
    "priority": Priority,
    "fair": FairShare,
    "deadline": Deadline,
}
"""Each with the settings that its module states."""
DEFAULT = "fair"


def make_policy(name: str) -> Policy:
    """An empty policy. Raises ``EINVAL`` for a name that is none."""
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise CallerError(f"no policy {name!r}; there are: {known}", field="policy")
    return POLICIES[name]()


def changed(policy: Policy, name: str) -> Policy:
    """A policy called ``name`` that holds all that ``policy`` holds."""
    new = make_policy(name)
    new.take_over(policy)
    return new
