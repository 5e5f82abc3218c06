"""``audit``: the commands by which people read the chronicle and check that nobody changed it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from isovist.kernel.cli.common import Common

DEFAULTS = Common()
Many = Parameter(consume_multiple=True, negative="", show_default=False)
FROM_0 = Number(gte=0)
Since = Annotated[str, Parameter(show_default=False)]

audit = App(name="audit", help="The hash-chained log of grants, kills, forgets and tool effects.")
COMMANDS = frozenset({"audit", "audit ls", "audit verify", "audit export", "audit replay"})


@audit.command(name="ls")
def ls(
    *,
    kind: Annotated[tuple[str, ...], Many] = (),
    since: Since = "",
    limit: Annotated[int, Parameter(validator=FROM_0)] = 50,
    common: Common = DEFAULTS,
) -> int:
    """List the last lines of the log, oldest first. No kernel has to run.

    Parameters
    ----------
    kind
        Only lines of these kinds: grant, revoke, kill, forget.user…
    since
        Only what was done then or later: ISO 8601 with a zone.
    limit
        At most so many; 0 for all.
    """
    from isovist.kernel.cli import chronicle

    return chronicle.ls(common, kinds=kind, since=since, limit=limit)


@audit.command(name="verify")
def verify(
    *,
    file: Annotated[Path | None, Parameter(show_default=False)] = None,
    head: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Find out whether a line of the log was changed, dropped, inserted, moved or cut off; exits
    with 1 if so. It reads the files itself, and asks no kernel.

    Parameters
    ----------
    file
        An export, instead of the log of the kernel: whether it is a chain from the first line on.
    head
        The hash of a line that was noted elsewhere, which must still be there.
    """
    from isovist.kernel.cli import chronicle

    return chronicle.verify(common, file=file, head=head)


@audit.command(name="export")
def export(*, since: Since = "", common: Common = DEFAULTS) -> int:
    """Write the lines of the log to standard output as they are: JSON, each with its hash.

    Parameters
    ----------
    since
        Only what was done then or later: ISO 8601 with a zone.
    """
    from isovist.kernel.cli import chronicle

    return chronicle.export(common, since=since)


@audit.command(name="replay")
def replay(
    call: str = "",
    /,
    *,
    since: Since = "",
    query: Annotated[str | None, Parameter(show_default=False)] = None,
    common: Common = DEFAULTS,
) -> int:
    """Hold the records of searches and chats against the store: was each unit that a call was shown
    what its record says, and in the view of whom it served? Exits with 1 if one was not.

    Parameters
    ----------
    call
        One call, as its reply names it. Default: all on record.
    since
        Only calls that ended then or later: ISO 8601 with a zone.
    query
        The question, to see whether it is the one recorded; of a chat, the last words of its user.
    """
    from isovist.kernel.cli import replay as replays

    return replays.run(common, call, since=since, query=query)
