"""``group``: the named sets of users and of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import emit, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.records import Group

Of = Literal["users", "agents"]


def ls(common: Common, *, of: Literal["", "users", "agents"]) -> int:
    with attach(common) as kernel:
        groups = kernel.groups(of).groups
    if common.json:
        emit(groups)
    elif groups:
        table(("GROUP", "OF", "MEMBERS"), ((g.name, g.of, ", ".join(g.members)) for g in groups))
    else:
        say("there are no groups yet")
    return 0


def change(
    common: Common, name: str, *, users: tuple[str, ...], agents: tuple[str, ...], leave: bool
) -> int:
    """Let users or agents join the group ``name``, or with ``leave`` leave it."""
    if bool(users) == bool(agents):
        word = "rm" if leave else "add"
        raise Problem(
            f"group {word} needs users or agents, one of the two",
            f"isovist group {word} NAME --users USER…",
            status=2,
        )
    of: Of = "users" if users else "agents"
    members = users or agents
    with attach(common) as kernel:
        if leave:
            _check_members(kernel.groups(of).groups, of, name, members)
        add, remove = ((), members) if leave else (members, ())
        group = kernel.group_change(name, of, add, remove).groups[0]
    if common.json:
        emit(group)
    else:
        who = ", ".join(map(safe, group.members)) or "nobody"
        say(f"in group {safe(name)} of {of}: {who}")
    return 0


def _check_members(groups: tuple[Group, ...], of: Of, name: str, leavers: tuple[str, ...]) -> None:
    """A name that is mistyped must not pass for one that has left."""
    members = next((g.members for g in groups if g.name == name), None)
    if members is None:
        raise Problem(f"there is no group {safe(name)!r} of {of}", "isovist group ls shows them")
    absent = [leaver for leaver in leavers if leaver not in members]
    if absent:
        raise Problem(
            f"not in group {safe(name)!r} of {of}: {', '.join(map(safe, absent))}",
            "isovist group ls shows who is",
        )
