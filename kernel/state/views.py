"""The one module that mints views (promise ``view.choke``).

The seal is taken here at import and leaves this module never, so no other code, in the kernel
or outside, can make a ``View`` with an audience of its own choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from isovist.syscalls.records import ALL, Axis, Partition, Reader, Seal, View

_SEAL = Seal()


class Membership(NamedTuple):
    """The groups of users that a reader's user is in, and the groups of agents that its agent is
    in. Both sorted."""

    users: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()


ALONE = Membership()
"""In no group."""


def audience(reader: Reader, groups: Membership = ALONE) -> tuple[Partition, ...]:
    """All and only the partitions whose both axes admit the reader, narrow to wide [S 3.2].

    Each axis is *own, a group of the reader's, or open*. The list is made of names alone, whether
    or not anything is stored there: its length tells of the reader's groups and of nothing else.
    """
    return tuple(
        Partition(users, agents)
        for users in _axes(reader.user, groups.users)
        for agents in _axes(reader.agent, groups.agents)
    )


def _axes(own: str, groups: tuple[str, ...]) -> tuple[Axis, ...]:
    return (Axis("one", own), *(Axis("group", name) for name in groups), ALL)


def whole(partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """Every partition that is given: an operator may see the store, and a pair find its own."""
    return tuple(partitions)


def view_of(reader: Reader, groups: Membership = ALONE) -> View:
    """The view of a reader who is in ``groups``: the only constructor of a reader's ``View``."""
    return View(_SEAL, reader, audience(reader, groups))


def whereabouts(reader: Reader, grouped: Iterable[Partition]) -> View:
    """Where the reader's own units may be, beside its view: those of the ``grouped`` partitions
    (whose audience a group takes part in) that could ever have been its to publish to, whether or
    not it is in the group. For finding a unit that is to be changed, never for a reply: whoever
    asks through this throws away what is not the reader's own."""

    def may(axis: Axis, own: str) -> bool:
        return axis.kind != "one" or axis.name == own

    found = (p for p in grouped if may(p.users, reader.user) and may(p.agents, reader.agent))
    return View(_SEAL, reader, whole(found))


def everything(partitions: Iterable[Partition]) -> View:
    """The view of the whole store, for what the operator asks of it (export, import, what was
    learned) and for reviews. Its reader is nobody, so that it never passes for one whose units
    these are."""
    return View(_SEAL, Reader("", ""), whole(partitions))


def belonging(user: str, partitions: Iterable[Partition]) -> View:
    """What ``user`` alone may read, through whichever agents: for what a person is told of oneself,
    and for the learner's check that none of it leaves. Its reader is nobody."""
    return View(_SEAL, Reader("", ""), whole(p for p in partitions if p.users == Axis("one", user)))


def part_of(view: View, partitions: Iterable[Partition]) -> View:
    """``view`` narrowed to those of its partitions that are among these."""
    wanted = frozenset(partitions)
    return View(_SEAL, view.reader, tuple(p for p in view.partitions if p in wanted))
