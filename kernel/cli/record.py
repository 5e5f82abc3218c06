"""``why``: the audit record of a call, with the first words of what it was shown.

The record itself holds no text. The words are read through the view of the very pair that the
call served, by a channel that acts as its agent, and so by the same rules as the call's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import brief, emit, fields, moment, ms, plain, say, table
from isovist.syscalls.errors import Errno, IsovistError

if TYPE_CHECKING:
    from isovist.syscalls.client import Client
    from isovist.syscalls.messages import Record
    from isovist.syscalls.records import Barrier, Injected, Timings

RULES = {
    "request": "the request named it, under a grant",
    "session": "the one session of the channel",
    "registry": "the one user seen on the channel before",
    "agent": "nobody was named: the agent as a user of its own",
}
"""What each rule of user resolution means (design §5)."""


def why(common: Common, call: str) -> int:
    try:
        with attach(common) as kernel:
            record = kernel.why(call)
    except IsovistError as e:
        if e.errno is not Errno.ENOENT:
            raise
        raise Problem(
            f"no call {call!r} is on record",
            "the reply of a search or chat names its call",
            errno=e.errno.name,
        ) from e
    units = []
    if record.units:
        with attach(common, record.agent, record.user) as reader:
            units = [{**plain(shown), "now": words(reader, shown)} for shown in record.units]
    if common.json:
        emit({**plain(record), "units": units})
    else:
        _print(record, units)
    return 0


def words(reader: Client, shown: Injected) -> str:
    """How the unit begins, as its reader sees it today."""
    if not shown.unit:
        return "(forgotten with its user)"
    try:
        unit = reader.read(shown.unit).units[0]
    except IsovistError as e:
        if e.errno is not Errno.ENOENT:
            raise
        return "(no longer in view)"
    changed = f"(now version {unit.version}) " if unit.version != shown.version else ""
    return changed + brief(unit.text)


def barrier_line(barrier: Barrier) -> str:
    lag = f", the {' and '.join(barrier.lagging)} leg lagged" if barrier.lagging else ""
    return f"{barrier.state.replace('_', ' ')} after {ms(barrier.waited_ms)}{lag}"


def timings_line(t: Timings) -> str:
    stages = ("barrier", "retrieval", "render", "queue", "model", "total")
    return ", ".join(f"{stage} {ms(getattr(t, stage))}" for stage in stages)


def _print(record: Record, units: list[dict[str, Any]]) -> None:
    outcome = "" if not record.errno else _errno_name(record.errno)
    view = ", ".join(f"{scope} up to {seq}" for scope, seq in record.sequences)
    chat = record.syscall == "chat"
    who = "one who was forgotten" if record.forgotten else record.user
    tokens = f"prompt {record.prompt_tokens}, output {record.output_tokens}, "
    tokens += f"injected {record.injected_tokens} of a budget of {record.budget}"
    fields(
        [
            ("call", f"{record.call} ({record.syscall})"),
            ("at", moment(record.at)),
            ("asked by", record.agent),
            ("for user", f"{who} ({RULES.get(record.rule, record.rule)})"),
            ("ended with", outcome),
            ("barrier", barrier_line(record.barrier)),
            ("view", view or ("" if record.forgotten else "empty")),
            ("model", record.model),
            ("tokens", tokens if chat else ""),
            ("time", timings_line(record.timings)),
            ("query hash", record.query_hash),
        ]
    )
    say()
    if not units:
        none = "no unit was shown" if chat else "no unit was found"
        say("what was shown was forgotten with its user" if record.forgotten else none)
        return
    columns = {
        "UNIT": [u["unit"] for u in units],
        "SCOPE": [u["scope"] for u in units],
        "OWNER": [u["owner"] for u in units],
        "KIND": [u["kind"] for u in units],
        ">TOKENS": [u["tokens"] for u in units],
        ">SCORE": [f"{u['score']:.3f}" for u in units],
        "BEGINS": [u["now"] for u in units],
    }
    if not chat:
        # A search hands its units to its caller; no model's tokenizer has counted them.
        del columns[">TOKENS"]
    table(list(columns), zip(*columns.values(), strict=True))


def _errno_name(number: int) -> str:
    try:
        return Errno(number).name
    except ValueError:
        return f"error {number}"
