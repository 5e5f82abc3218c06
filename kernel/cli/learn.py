"""``learn``: the commands by which people see, correct and steer what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from isovist.kernel.cli.common import Common, Problem

Flag = Parameter(negative="", show_default=False)
DEFAULTS = Common()
Scope = Literal["pair", "user", "agent", "global"]
FROM_0 = Number(gte=0)


def _filled(_: object, value: str | None) -> None:
    """An empty name is a variable that nobody has set, and must not widen what a command does."""
    if value == "":
        raise ValueError("EINVAL: it must not be empty.")


Name = Annotated[str, Parameter(validator=_filled)]
Maybe = Annotated[str | None, Parameter(validator=_filled, show_default=False)]

learn = App(name="learn", help="What was learned from finished attempts, and who may read it.")
COMMANDS = frozenset(
    {"learn", "learn ls", "learn show", "learn trace", "learn edit", "learn delete",
     "learn promote", "learn demote", "learn export", "learn consent", "learn status",
     "learn retry", "learn review", "learn files"}
)  # fmt: skip


@learn.command(name="ls")
def ls(
    *,
    user: Maybe = None,
    scope: Annotated[Scope | None, Parameter(show_default=False)] = None,
    limit: Annotated[int, Parameter(validator=FROM_0)] = 50,
    common: Common = DEFAULTS,
) -> int:
    """List entries, newest first.

    Parameters
    ----------
    user
        Only what this user alone may read, and what comes from this user.
    scope
        Only entries of this scope.
    limit
        How many at most; 0: all.
    """
    from isovist.kernel.cli import lessons

    return lessons.ls(common, user=user, scope=scope or "", limit=limit)


@learn.command(name="show")
def show(id: str, /, *, common: Common = DEFAULTS) -> int:
    """Show an entry: its situation, its lesson, its scope and stream, and who may read it."""
    from isovist.kernel.cli import lessons

    return lessons.show(common, id, trace=False)


@learn.command(name="trace")
def trace(id: str, /, *, common: Common = DEFAULTS) -> int:
    """Show where an entry comes from: which attempts, whose, and how they ended."""
    from isovist.kernel.cli import lessons

    return lessons.show(common, id, trace=True)


@learn.command(name="edit")
def edit(
    id: str,
    /,
    *,
    situation: Maybe = None,
    lesson: Maybe = None,
    common: Common = DEFAULTS,
) -> int:
    """Give an entry other words.

    Parameters
    ----------
    situation
        When it holds.
    lesson
        What holds then.
    """
    from isovist.kernel.cli import lessons

    if not (situation or lesson):
        raise Problem("edit changes nothing", "give --situation, --lesson, or both", status=2)
    return lessons.edit(common, id, situation=situation or "", lesson=lesson or "")


@learn.command(name="delete")
def delete(id: str, /, *more: str, common: Common = DEFAULTS) -> int:
    """Remove entries."""
    from isovist.kernel.cli import lessons

    return lessons.delete(common, (id, *more))


@learn.command(name="promote")
def promote(
    id: str,
    /,
    *,
    to: Annotated[Scope | None, Parameter(show_default=False)] = None,
    user: Maybe = None,
    agent: Maybe = None,
    common: Common = DEFAULTS,
) -> int:
    """Let more read an entry. Only what is of the reusable stream can be opened to other users.

    Parameters
    ----------
    to
        The scope. Default: one step wider (pair to user, user and agent to global).
    user
        Whose it becomes, where the entry is no single user's and is to be one's. Default: the
        user's from whom alone it comes.
    agent
        Which agent's it becomes, where it is no single agent's and is to be one's. Default: as
        for the user.
    """
    from isovist.kernel.cli import lessons

    return lessons.move(common, id, to=to or "", wider=True, user=user, agent=agent)


@learn.command(name="demote")
def demote(
    id: str,
    /,
    *,
    to: Annotated[Scope | None, Parameter(show_default=False)] = None,
    user: Maybe = None,
    agent: Maybe = None,
    common: Common = DEFAULTS,
) -> int:
    """Let fewer read an entry.

    Parameters
    ----------
    to
        The scope. Default: one step narrower (global to agent, user and agent to pair).
    user
        Whose it becomes, where the entry is no single user's and is to be one's. Default: the
        user's from whom alone it comes.
    agent
        Which agent's it becomes, where it is no single agent's and is to be one's. Default: as
        for the user.
    """
    from isovist.kernel.cli import lessons

    return lessons.move(common, id, to=to or "", wider=False, user=user, agent=agent)


@learn.command(name="export")
def export(*, user: Maybe = None, common: Common = DEFAULTS) -> int:
    """Write entries with all that is known of them to standard output, one JSON object a line.

    Parameters
    ----------
    user
        Only what this user alone may read, and what comes from this user.
    """
    from isovist.kernel.cli import lessons

    return lessons.export(common, user=user)


@learn.command(name="consent")
def consent(
    choice: Annotated[Literal["", "nothing", "own", "share"], Parameter(show_default=False)] = "",
    /,
    *,
    user: Name,
    common: Common = DEFAULTS,
) -> int:
    """Say, or set, what may be learned from a user's attempts.

    Parameters
    ----------
    choice
        nothing; own (for this user alone); share (reusable lessons also for others).
    user
        The user.
    """
    from isovist.kernel.cli import lessons

    return lessons.consent(common, choice, user=user)


@learn.command(name="status")
def status(
    id: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    user: Maybe = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500))] = 20,
    common: Common = DEFAULTS,
) -> int:
    """Show what became of the attempts that were handed in last, or of one.

    Parameters
    ----------
    id
        Of one submission.
    user
        Only those of this user.
    limit
        How many at most.
    """
    from isovist.kernel.cli import lessons

    return lessons.status(common, id, user=user, limit=limit, retry=False)


@learn.command(name="retry")
def retry(id: str, /, *, common: Common = DEFAULTS) -> int:
    """Learn again from a submission that was parked."""
    from isovist.kernel.cli import lessons

    return lessons.status(common, id, user=None, limit=1, retry=True)


@learn.command(name="review")
def review(*, dry_run: Annotated[bool, Flag] = False, common: Common = DEFAULTS) -> int:
    """Review what is new since the last review: re-scope it, and merge what says the same.

    Parameters
    ----------
    dry_run
        Only show what would change.
    """
    from isovist.kernel.cli import lessons

    return lessons.review(common, dry_run=dry_run)


@learn.command(name="files")
def files(
    folder: Path,
    task: str,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    budget: Annotated[int, Parameter(validator=Number(gte=100, lte=200_000))] = 20_000,
    common: Common = DEFAULTS,
) -> int:
    """Write the lessons for a task into a folder: read-only files, one a scope.

    Parameters
    ----------
    folder
        Where they go; files of an earlier call are replaced.
    task
        What they are to be of use for.
    user
        Whose view.
    agent
        Through which agent.
    budget
        Characters a scope.
    """
    from isovist.kernel.cli import lessons

    return lessons.files(common, folder, task, user=user, agent=agent, budget=budget)
