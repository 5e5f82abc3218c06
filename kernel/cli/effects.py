"""``effects``, ``mail`` and ``timer``: what changed the world, and what waits for a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from isovist.kernel.cli.common import Common

if TYPE_CHECKING:
    from isovist.syscalls.abi.effects import Effect

DEFAULTS = Common()
Many = Parameter(consume_multiple=True, negative="", show_default=False)
Limit = Annotated[int, Parameter(validator=Number(gte=1, lte=200))]
Name = Annotated[str, Parameter(show_default=False)]

effects = App(name="effects", help="What tools and agents did to the world, and what is unknown.")
mail = App(name="mail", help="The boxes of messages between agents.")
timer = App(name="timer", help="The messages that agents have ordered for later.")
COMMANDS = frozenset(
    {"effects", "effects ls", "effects show", "effects resolve", "mail", "mail ls", "timer",
     "timer ls"}
)  # fmt: skip


@effects.command(name="ls")
def ls(
    *,
    phase: Annotated[
        tuple[Literal["started", "done", "failed", "unknown", "retry"], ...], Many
    ] = (),
    agent: Name = "",
    limit: Limit = 50,
    common: Common = DEFAULTS,
) -> int:
    """List effects, those that changed last first. What is "unknown" was cut off by an end of the
    kernel, or of its agent: it waits until somebody says what became of it.

    Parameters
    ----------
    phase
        Only those that are so.
    agent
        Only those of this agent.
    limit
        At most so many.
    """
    from isovist.kernel.cli.common import attach
    from isovist.kernel.cli.show import emit, moment, say, table

    with attach(common) as kernel:
        found = kernel.effects(states=phase, agent=agent, limit=limit)
    if common.json:
        emit(found)
    elif found:
        table(
            ("EFFECT", "STATE", "KIND", "AGENT", "USER", "SUBJECT", "STARTED"),
            (
                (e.id, e.state, e.kind, e.agent, e.user, e.subject, moment(e.started_at))
                for e in found
            ),
        )
    else:
        say("no effects")
    return 0


@effects.command(name="show")
def show(effect: str, *, common: Common = DEFAULTS) -> int:
    """Show one effect: under which key, how often begun, what became of it. Its texts are its
    pair's, and are not shown.

    Parameters
    ----------
    effect
        Its id.
    """
    from isovist.kernel.cli.common import attach
    from isovist.kernel.cli.show import emit

    with attach(common) as kernel:
        (found,) = kernel.effects(id=effect)
    if common.json:
        emit(found)
    else:
        _tell(found)
    return 0


@effects.command(name="resolve")
def resolve(
    effect: str,
    outcome: Literal["done", "failed", "retry"],
    *,
    result: Name = "",
    common: Common = DEFAULTS,
) -> int:
    """Say what became of an effect that is unknown: it was done, it has failed, or it may be done
    again.

    Parameters
    ----------
    effect
        Its id.
    outcome
        What became of it. After "retry", whoever asks for it under its key does it once more.
    result
        What is answered to whoever asks for it under its key.
    """
    from isovist.kernel.cli.common import attach
    from isovist.kernel.cli.show import emit

    with attach(common) as kernel:
        said = kernel.effect_resolve(effect, outcome, result).effect
    if common.json:
        emit(said)
    else:
        _tell(said)
    return 0


def _tell(effect: Effect) -> None:
    from isovist.kernel.cli.show import moment, safe, say

    say(f"{effect.id} is {effect.state}: {safe(effect.subject)} ({effect.kind})")
    say(f"of {safe(effect.agent)} for {safe(effect.user)}, under the key {safe(effect.key)}")
    ended = f", ended {moment(effect.ended_at)}" if effect.ended_at else ""
    say(f"begun {effect.tries} times, last {moment(effect.started_at)}{ended}")
    if effect.message:
        say(safe(effect.message))


@mail.command(name="ls")
def boxes(*, common: Common = DEFAULTS) -> int:
    """List the boxes that hold anything, without a word of it."""
    from isovist.kernel.cli.common import attach
    from isovist.kernel.cli.show import emit, moment, say, table

    with attach(common) as kernel:
        found = kernel.boxes()
    if common.json:
        emit(found)
    elif found:
        table(
            ("AGENT", "USER", ">MESSAGES", ">BYTES", "OLDEST"),
            (
                (box.agent, box.user, str(box.messages), str(box.bytes), moment(box.oldest_at))
                for box in found
            ),
        )
    else:
        say("no mail")
    return 0


@timer.command(name="ls")
def timers(*, common: Common = DEFAULTS) -> int:
    """List the timers of all agents, next first, without their texts."""
    from isovist.kernel.cli.common import attach
    from isovist.kernel.cli.show import emit, moment, say, table

    with attach(common) as kernel:
        found = kernel.timers()
    if common.json:
        emit(found)
    elif found:
        table(
            ("TIMER", "AGENT", "USER", "WHEN", "ZONE", "NEXT", ">SENT"),
            (
                (t.id, t.agent, t.user, t.when, t.zone, moment(t.next_at), str(t.sent))
                for t in found
            ),
        )
    else:
        say("no timers")
    return 0
