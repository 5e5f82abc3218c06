"""``context``: the names under which a pair of user and agent keeps conversations, and their end.
Their text is no concern of the operator's, and is not shown."""

from __future__ import annotations

from isovist.kernel.cli.common import Common, attach
from isovist.kernel.cli.show import emit, moment, safe, say, table


def ls(common: Common, *, user: str, agent: str) -> int:
    with attach(common, agent, user) as kernel:
        kept = kernel.contexts()
    if common.json:
        emit(kept)
    elif kept:
        table(
            ("CONTEXT", "MODEL", ">MESSAGES", ">BYTES", "SAVED"),
            (
                (one.name, one.model, str(one.messages), str(one.bytes), moment(one.saved_at))
                for one in kept
            ),
        )
    else:
        say(f"{safe(user)} and {safe(agent)} keep no context")
    return 0


def drop(common: Common, name: str, *, user: str, agent: str) -> int:
    with attach(common, agent, user) as kernel:
        kernel.context_drop(name)
    if common.json:
        emit({"dropped": name})
    else:
        say(f"dropped: {safe(name)}")
    return 0
