"""``quota``: what agents, users and models may have, and what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from isovist.kernel.cli.common import Common, Problem, attach

if TYPE_CHECKING:
    from isovist.syscalls.abi.quotas import Quota

DEFAULTS = Common()
Flag = Parameter(negative="", show_default=False)
Axis = Literal["agent", "user", "model"]
HELP = "syscalls, tokens, calls, queue, units, bytes, workspace, seconds or memory"

quota = App(name="quota", help="What agents and users may have, and what they have.")
COMMANDS = frozenset({"quota", "quota ls", "quota show", "quota set"})


@quota.command(name="ls")
def ls(
    axis: Literal["", "agent", "user", "model", "process"] = "",
    /,
    *,
    common: Common = DEFAULTS,
) -> int:
    """List who has stored or used something, or has a limit.

    Parameters
    ----------
    axis
        Only agents, users, models, or processes with limits of their own.
    """
    from isovist.kernel.cli.show import emit, say, table

    with attach(common) as kernel:
        quotas = kernel.quotas(axis)
    if common.json:
        emit(quotas)
    elif quotas:
        table(("OF", "NAME", "USED OF LIMIT"), ((q.axis, q.name, _line(q)) for q in quotas))
    else:
        say("nothing is stored, and nobody has a limit")
    return 0


@quota.command(name="show")
def show(
    axis: Literal["agent", "user", "model", "process"],
    name: str,
    /,
    *,
    common: Common = DEFAULTS,
) -> int:
    """Show what one agent, user, model or process has, and may have at most."""
    with attach(common) as kernel:
        found = kernel.quotas(axis, name)[0]
    _show(common, found)
    return 0


@quota.command(name="set")
def set_(
    axis: Axis,
    name: str,
    /,
    *limits: str,
    reset: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Set limits, in force at once and kept, as in: quota set agent mail syscalls=100 units=5000

    Parameters
    ----------
    name
        Whose; * for each that has no limits of its own.
    limits
        syscalls (a second), tokens (a minute), calls, queue, units, bytes, workspace (bytes),
        seconds (of processor a day) or memory (bytes a process), each with a figure; 0 is no limit.
    reset
        Take back what was set before: config.toml holds again.
    """
    figures: dict[str, int] = {}
    for limit in limits:
        what, _, figure = limit.partition("=")
        if not (figure.isascii() and figure.isdigit()):
            raise Problem(f"{limit!r} is no limit", f"as in units=5000; there are {HELP}", status=2)
        figures[what] = int(figure)
    if not (figures or reset):
        raise Problem("quota set sets nothing", "give a limit as in units=5000", status=2)
    with attach(common) as kernel:
        found = kernel.quota_set(axis, name, figures, reset)
    _show(common, found)
    return 0


def _show(common: Common, quota: Quota) -> None:
    from isovist.kernel.cli.show import emit, say, table

    if common.json:
        emit(quota)
        return
    rows = [
        (
            what,
            f"{quota.used[what]:,}" if what in quota.used else "-",
            f"{quota.limits[what]:,}" if what in quota.limits else "none",
            "set" if what in quota.chosen else "",
        )
        for what in sorted({*quota.used, *quota.limits, *quota.chosen})
    ]
    if rows:
        table(("LIMIT", ">USED", ">AT MOST", "BY HAND"), rows)
    else:
        say("no limit")


def _line(quota: Quota) -> str:
    shown = sorted(what for what in {*quota.used, *quota.limits}
                   if quota.used.get(what) or what in quota.limits)  # fmt: skip
    return ", ".join(
        f"{what} {quota.used.get(what, 0):,}"
        + (f" of {quota.limits[what]:,}" if what in quota.limits else "")
        for what in shown
    )
