"""The review: its plan, its gates, and the judge by rules."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from isovist.kernel.learning.judging import RuleJudge
from isovist.kernel.learning.review import Changed, Merge, Rescope, review
from isovist.kernel.state.lessons import Held
from isovist.syscalls.records import Stream


def held(id: str, situation: str, lesson: str, *, scope: str = "global",
         stream: Stream = "reusable", version: int = 1) -> Held:  # fmt: skip
    return Held(
        id=id, version=version, situation=situation, lesson=lesson, scope=scope, stream=stream
    )


class Shelf:
    """Entries by destination; what is asked for is nearest in the order in which they stand."""

    def __init__(self, *entries: Held) -> None:
        self.entries = entries
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, held: Held, destination: Hashable, k: int) -> Sequence[Held]:
        self.asked.append((held.id, k))
        return [entry for entry in self.entries if entry.stream == held.stream][:k]


async def test_twins_become_one_and_the_parts_are_named_with_their_versions() -> None:
    old = held("old", "exporting a CSV file", "Quote every field that holds a comma.", version=3)
    new = held("new", "a CSV file is exported", "Every field holding a comma must be quoted.")
    found = await review([Changed(held=new, destination=0)], Shelf(old, new), RuleJudge())
    (merge,) = found.proposals
    assert isinstance(merge, Merge)
    assert set(merge.parts) == {("old", 3), ("new", 1)}
    assert (merge.situation, merge.lesson) in {(e.situation, e.lesson) for e in (old, new)}


async def test_a_step_to_other_users_needs_a_witness_or_an_approval() -> None:
    one = held("one", "exporting a CSV file", "Quote every field.", scope="user")
    for widen, witnessed, approved, goes in (
        ("pairs", False, False, False),
        ("pairs", True, False, True),
        ("pairs", False, True, True),
        ("person", True, False, False),
        ("person", False, True, True),
    ):
        entry = Changed(held=one, destination=0, witnessed=witnessed, approved=approved)
        found = await review([entry], Shelf(one), RuleJudge(), widen=widen)  # type: ignore[arg-type]
        expected = (Rescope(id="one", version=1, to_scope="global"),) if goes else ()
        assert found.proposals == expected
        assert found.reviewed.withheld == (not goes)
