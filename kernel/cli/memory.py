"""``memory``: what a pair of user and agent may see, and what it may remove."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import brief, emit, fields, moment, note, safe, say, table
from isovist.syscalls.errors import CallerError, Errno, IsovistError

if TYPE_CHECKING:
    from isovist.syscalls.client import Client
    from isovist.syscalls.messages import Forgotten, Found, ViewShown
    from isovist.syscalls.records import Mode, Unit

PAGE = 500
"""Units fetched at once; the most that a list takes."""


def ls(common: Common, *, user: str, agent: str, kinds: tuple[str, ...], limit: int) -> int:
    """The newest ``limit`` units of the view (0: all)."""
    with attach(common, agent, user) as kernel:
        page = min(limit, PAGE) or PAGE
        units = list(islice(kernel.memories(limit=page, kinds=kinds), limit or None))
    if common.json:
        emit(units)
    elif units:
        table(("UNIT", "KIND", "SCOPE", "AGENT", "USER", "SAID", "TEXT"), map(row, units))
    else:
        say(f"nothing is in view of {safe(user)} and {safe(agent)}")
    return 0


def show(common: Common, id: str, *, user: str, agent: str) -> int:
    with attach(common, agent, user) as kernel:
        unit = kernel.read(id).units[0]
    if common.json:
        emit(unit)
    else:
        _show(unit)
    return 0


def search(
    common: Common,
    query: str,
    *,
    user: str,
    agent: str,
    kinds: tuple[str, ...],
    k: int,
    mode: Mode,
    since: str | None,
    until: str | None,
) -> int:
    with attach(common, agent, user) as kernel:
        found = kernel.search(query, k=k, mode=mode, kinds=kinds, since=since, until=until)
    if common.json:
        emit(found)
        return 0
    if found.hits:
        rows = [(f"{h.score:.3f}", h.unit.id, h.unit.scope, h.unit.agent, brief(h.chunk))
                for h in found.hits]  # fmt: skip
        table((">SCORE", "UNIT", "SCOPE", "AGENT", "TEXT"), rows)
    else:
        say(f"nothing found in view of {safe(user)} and {safe(agent)}")
    _lagging(found)
    return 0


def _lagging(found: Found | ViewShown) -> None:
    if found.barrier.state != "ready":
        note(f"the {' and '.join(found.barrier.lagging)} leg lags: newest writes may be missing")


def forget(common: Common, ids: tuple[str, ...], *, user: str, agent: str, yes: bool) -> int:
    """Show what is to go, ask, and remove it. What fails stops nothing else: it is named, and
    ends with 1."""
    gone: dict[str, Forgotten] = {}
    failed: dict[str, IsovistError] = {}
    with attach(common, agent, user) as kernel:
        units = {name: _in_view(kernel, name) for name in dict.fromkeys(ids)}
        seen = [unit for unit in units.values() if unit is not None]
        if not common.json:
            if seen:
                table(("UNIT", "KIND", "SCOPE", "AGENT", "USER", "SAID", "TEXT"), map(row, seen))
            if len(seen) < len(units) and not yes:
                unseen = ", ".join(safe(name) for name, unit in units.items() if unit is None)
                note(f"not in view, and removed only if the pair owns it: {unseen}")
        if not (yes or agreed(len(units), shown=not common.json)):
            note("nothing was forgotten")
            return 1
        for name in units:
            try:
                gone[name] = one = kernel.forget(name)
            except IsovistError as e:
                failed[name] = e
                continue
            if not common.json:
                if one.derived:
                    note(f"{one.id} was the source of: {', '.join(one.derived)}")
                note(f"receipt {one.receipt}: isovist memory receipt {one.receipt} --wait")
    if failed and len(units) == 1:
        raise failed.popitem()[1]
    if common.json:
        emit(
            {
                "forgotten": [unit for unit in seen if unit.id in gone],
                "receipts": [one.receipt for one in gone.values()],
                "by_id": {name: one.receipt for name, one in gone.items()},
                "failed": {name: str(why) for name, why in failed.items()},
            }
        )
    else:
        say(f"forgotten: {len(gone)}" + (f", not forgotten: {len(failed)}" if failed else ""))
        for name, why in failed.items():
            note(f"not forgotten: {safe(name)}: {why}")
    return 1 if failed else 0


def _in_view(kernel: Client, id: str) -> Unit | None:
    """The unit; ``None`` where the pair does not see it, which it may own all the same: published
    to a group that the user has left."""
    try:
        return kernel.read(id).units[0]
    except CallerError as e:
        if e.errno is Errno.ENOENT:
            return None
        raise


def _version(kernel: Client, id: str, version: int) -> int:
    """``version`` where it is named (not 0), else that of the unit in view."""
    if version:
        return version
    if unit := _in_view(kernel, id):
        return unit.version
    raise Problem(
        f"ENOENT: no unit {safe(id)} in view",
        "an own unit outside the view is changed with --version N",
        errno=Errno.ENOENT.name,
    )


def agreed(count: int, *, shown: bool) -> bool:
    """A terminal's yes to what was ``shown``. Raises where nobody can be asked."""
    if not (shown and sys.stdin.isatty()):
        raise Problem(
            "forget asks first, and here it cannot",
            "add --yes to remove without asking",
            status=2,
        )
    sys.stderr.write(f"Forget {'this unit' if count == 1 else f'these {count} units'}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def row(unit: Unit) -> tuple[str, ...]:
    said, text = moment(unit.said_at), brief(unit.text)
    return unit.id, unit.kind, unit.scope, unit.agent, unit.user or "-", said, text


def view(common: Common, *, user: str, agent: str) -> int:
    """The partitions of a view, and why each is in it."""
    with attach(common, agent, user) as kernel:
        shown = kernel.view()
    if common.json:
        emit(shown)
    else:
        rows = ((s.scope, s.users, s.agents, s.units, s.why) for s in shown.seen)
        table(("SCOPE", "USERS", "AGENTS", ">UNITS", "WHY"), rows)
        _lagging(shown)
    return 0


def expire(
    common: Common, id: str, *, user: str, agent: str, at: str, never: bool, version: int
) -> int:
    with attach(common, agent, user) as kernel:
        when = None if never else at or datetime.now(UTC).isoformat()
        stored = kernel.expire(id, _version(kernel, id, version), when)
    if common.json:
        emit(stored)
    else:
        say(f"{stored.id} expires: {'never' if never else at or 'now'}")
    return 0


def rescope(common: Common, id: str, scope: str, *, user: str, agent: str, version: int) -> int:
    with attach(common, agent, user) as kernel:
        stored = kernel.rescope(id, _version(kernel, id, version), scope)
    if common.json:
        emit(stored)
    else:
        say(f"{stored.id}: its scope is {safe(stored.scope)}")
    return 0


def _show(unit: Unit) -> None:
    expires = moment(unit.expires_at) if unit.expires_at is not None else ""
    fields(
        [
            ("unit", f"{unit.id} (version {unit.version})"),
            ("kind", unit.kind),
            ("scope", unit.scope),
            ("owner", unit.agent),
            ("user", unit.user or "another user"),
            ("stream", unit.stream),
            ("session", f"{unit.session}, round {unit.round}" if unit.session else ""),
            ("said", moment(unit.said_at)),
            ("stored", moment(unit.stored_at)),
            ("expires", expires),
            ("supersedes", unit.supersedes),
            ("meta", "\n".join(f"{k}: {v}" for k, v in unit.meta.items())),
            ("text", unit.text),
        ]
    )
