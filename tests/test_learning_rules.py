"""The floor of learning: what goes to which stream by rules, and what is written of it."""

from __future__ import annotations

from isovist.kernel.learning.rules import RuleSplitter, RuleWriter
from isovist.kernel.state.lessons import Attempt, Brief
from isovist.syscalls.records import Message

TASK = "Convert the CSV export data/sales.csv with amounts to JSON."


def attempt(*said: str, outcome: str = "passed", tail: str = "", user: str = "") -> Attempt:
    return Attempt(
        submission="s1",
        user="ana",
        agent="codex",
        task=TASK,
        trajectory=(
            Message("user", f"{TASK} {user}"),
            Message("tool", "name: Anna Schmidt\npassport: C01X00T47\ndiagnosis: diabetes"),
            *(Message("assistant", text) for text in said),
        ),
        outcome=outcome,  # type: ignore[arg-type] # the tests' own words
        tail=tail,
    )


async def test_a_lesson_is_reusable_and_a_person_is_not() -> None:
    streams = await RuleSplitter().split(
        attempt(
            "I found that the amounts use a decimal comma. Replace it with a dot before parsing. "
            "The form is from Anna Schmidt, who is diabetic.",
            user="I prefer dates as DD.MM.YYYY.",
        )
    )
    assert streams.by == "rules"
    assert "decimal comma" in streams.reusable
    assert not {"Anna", "Schmidt", "diabet"} & set(streams.reusable.replace(",", " ").split())
    assert "Prefers dates as DD.MM.YYYY." in streams.protected
    operations = await RuleWriter().write(
        Brief(
            stream="reusable",
            text=streams.reusable,
            entries=(),
            scopes=("pair", "user", "agent", "global"),
            outcome="passed",
        )
    )
    assert [o.scope for o in operations] == ["global"]
    assert "CSV export" in operations[0].situation
    assert "decimal comma" in operations[0].lesson
