"""``memory``: rounds, files, and what is forgotten by query, by user, and when it has left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.memory import agreed, row
from isovist.kernel.cli.show import brief, emit, fields, moment, note, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.messages import Matched, Rounds
    from isovist.syscalls.records import Unit

UNITS = ("UNIT", "KIND", "SCOPE", "AGENT", "USER", "SAID", "TEXT")


def recall(
    common: Common,
    query: str,
    *,
    user: str,
    agent: str,
    k: int,
    since: str | None,
    until: str | None,
) -> int:
    with attach(common, agent, user) as kernel:
        found = kernel.memory_search(query, k=k, since=since, until=until)
    if common.json:
        emit(found)
    elif found.rounds:
        rows = [(f"{r.score:.3f}", r.session, r.round, r.date, r.owner or agent, brief(r.text))
                for r in found.rounds]  # fmt: skip
        table((">SCORE", "SESSION", ">ROUND", "SAID", "AGENT", "TEXT"), rows)
    else:
        say(f"nothing found in view of {safe(user)} and {safe(agent)}")
    return 0


def round_(
    common: Common,
    session: str,
    number: int,
    *,
    user: str,
    agent: str,
    window: int,
    part: int,
) -> int:
    with attach(common, agent, user) as kernel:
        found = kernel.memory_read(session, number, window=window, part=part)
    if common.json:
        emit(found)
    else:
        _show(found, agent)
    return 0


def _show(found: Rounds, agent: str) -> None:
    for shown in found.rounds:
        fields(
            [
                ("round", f"{shown.round} of {shown.session}"),
                ("said", shown.date),
                ("owner", shown.owner or agent),
                ("text", shown.text),
            ]
        )
    if found.truncated and found.parts > 1:
        note(f"messages go on where […] stands: --part, 0 to {found.parts - 1}")
    elif found.truncated:
        note("more is in view than fits")


def files(common: Common, folder: str, *, user: str, agent: str, limit: int) -> int:
    """Write the view as files; what ``folder`` holds beside them stays."""
    from isovist.syscalls.files import write_files

    with attach(common, agent, user) as kernel:
        found = kernel.memory_files(limit=limit)
    paths = write_files(found.files, folder)
    if common.json:
        emit({"files": [str(path) for path in paths]})
        return 0
    rows = [(path, file.units, "yes" if file.truncated else "")
            for path, file in zip(paths, found.files, strict=True)]  # fmt: skip
    if rows:
        table(("FILE", ">UNITS", "CUT"), rows)
    else:
        say(f"nothing is in view of {safe(user)} and {safe(agent)}")
    return 0


def forget_matching(
    common: Common, query: str, *, user: str, agent: str, yes: bool, dry_run: bool
) -> int:
    """Show which of the pair's own units fit, all of them, ask, and remove all and only those."""
    with attach(common, agent, user) as kernel:
        found = kernel.forget_matching(query, limit=100)
        units = list(found.units)
        while len(units) < found.count:
            page = kernel.forget_matching(query, limit=100, offset=len(units))
            if page.confirm != found.confirm:
                raise Problem("what fits changes just now", "ask again; nothing was forgotten")
            units += page.units
        if not common.json:
            table(UNITS, map(row, units))
            if found.more:
                note(f"more fit: {found.count} go at a time, so ask again after these")
        if dry_run or not found.count:
            return _fitting(common, found, units)
        if not (yes or agreed(found.count, shown=not common.json)):
            note("nothing was forgotten")
            return 1
        gone = kernel.forget_matching(query, confirm=found.confirm)
    if common.json:
        emit({"named": units, "forgotten": gone.count, "skipped": gone.skipped,
              "more": found.more, "receipt": gone.receipt})  # fmt: skip
        return 0
    if gone.skipped:
        note(f"left alone, as they were changed since they were shown: {gone.skipped}")
    return _told(common, gone)


def _fitting(common: Common, found: Matched, units: list[Unit]) -> int:
    if common.json:
        emit({"named": units, "forgotten": 0, "skipped": 0, "more": found.more, "receipt": ""})
    elif units:
        note(f"these {found.count} fit; nothing was forgotten")
    else:
        say("nothing of this pair fits")
    return 0


def forget_user(common: Common, name: str, *, yes: bool, dry_run: bool) -> int:
    """Say how much is known of a user, ask, and remove it all."""
    with attach(common) as kernel:
        found = kernel.forget_user(name)
        if not common.json and (dry_run or not yes):
            _known(name, found)
        if dry_run:
            if common.json:
                emit({"user": name, "units": found.count, "scopes": found.scopes,
                      "forgotten": 0, "receipt": ""})  # fmt: skip
            return 0
        if not yes:
            _agreed_user(name, shown=not common.json)
        gone = kernel.forget_user(name, confirm=found.confirm)
    if common.json:
        emit({"user": name, "units": found.count, "scopes": found.scopes,
              "forgotten": gone.count, "receipt": gone.receipt})  # fmt: skip
        return 0
    return _told(common, gone)


def _known(name: str, found: Matched) -> None:
    by = ", ".join(f"{count} {safe(scope)}" for scope, count in found.scopes.items())
    say(f"{safe(name)} has {found.count} units" + (f": {by}" if by else ""))
    if not found.count:
        note(
            "nothing is stored of that name; memberships and grants, if any, would go all the same"
        )


def _agreed_user(name: str, *, shown: bool) -> None:
    """Have the name typed once more, since all that belongs to it goes."""
    if not (shown and sys.stdin.isatty()):
        raise Problem(
            "forget-user asks first, and here it cannot",
            "add --yes to remove without asking",
            status=2,
        )
    sys.stderr.write("Type the name again to forget all of it: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != name:
        raise Problem("nothing was forgotten", "the names differ")


def _told(common: Common, gone: Matched) -> int:
    if common.json:
        emit({"forgotten": (), "receipt": gone.receipt})
    else:
        say(f"forgotten: {gone.count}")
        if gone.receipt:
            note(f"receipt {gone.receipt}: isovist memory receipt {gone.receipt} --wait")
    return 0


def receipt(common: Common, name: str, *, wait: bool) -> int:
    with attach(common) as kernel:
        shown = kernel.receipt(name, wait=wait)
    if common.json:
        emit(shown)
        return 0
    issued = moment(shown.issued_at) if shown.issued_at else "not yet"
    fields(
        [
            ("receipt", shown.receipt),
            ("asked", moment(shown.asked_at)),
            ("issued", issued),
            ("units", "\n".join(shown.units)),
        ]
    )
    return 0
