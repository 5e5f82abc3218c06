"""The review: its plan, its gates, who is compared with whom, and the judge by rules."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_helpers import T0, embedded, fill, put, view

from isovist.kernel.learning.clusters import packed, seriated
from isovist.kernel.learning.judging import RuleJudge, belongs, step_toward
from isovist.kernel.learning.nearest import nearest
from isovist.kernel.learning.review import (
    STEPS,
    Batch,
    Changed,
    Judge,
    Merge,
    Proposal,
    Rescope,
    Review,
    Said,
    Spent,
    Step,
    Union,
    Widen,
    review,
    step_allowed,
)
from isovist.kernel.state.lessons import CAP, MAX_LESSON, MAX_SITUATION, STREAMS, Held
from isovist.storage.engine import MemoryEngine
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import Stream, Unit


def held(
    id: str,
    situation: str = "exporting a CSV file",
    lesson: str = "Quote every field.",
    *,
    scope: str = "global",
    stream: Stream = "reusable",
    version: int = 1,
) -> Held:
    return Held(
        id=id, version=version, situation=situation, lesson=lesson, scope=scope, stream=stream
    )


def changed(*entries: Held, destination: Hashable = 0) -> list[Changed]:
    return [Changed(held=entry, destination=destination) for entry in entries]


class Shelf:
    """Entries by destination; the nearest are those that stand first."""

    def __init__(self, *entries: Held, elsewhere: Sequence[Held] = ()) -> None:
        self._entries = {0: entries, 1: tuple(elsewhere)}
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, held: Held, destination: Hashable, k: int) -> Sequence[Held]:
        assert isinstance(destination, int)
        self.asked.append((held.id, k))
        return self._entries[destination][:k]


class Proposing:
    """A judge that says the same of every batch; what it was shown stays in ``batches``."""

    def __init__(self, *, steps: Sequence[Step] = (), unions: Sequence[Union] = ()) -> None:
        self.spent = Spent()
        self._steps, self._unions = steps, unions
        self.batches: list[Batch] = []

    async def steps(self, batch: Batch) -> Sequence[Step]:
        self.batches.append(batch)
        return self._steps

    async def unions(self, batch: Batch) -> Sequence[Union]:
        self.batches.append(batch)
        return self._unions


def named(proposals: Sequence[Proposal]) -> list[str]:
    """The ids that proposals are about."""
    return [
        part
        for one in proposals
        for part in ([one.id] if isinstance(one, Rescope) else [part for part, _ in one.parts])
    ]


# -- stage 1


@pytest.mark.parametrize("stream", STREAMS)
def test_a_step_opens_or_closes_one_axis_under_the_cap(stream: Stream) -> None:
    axes = {"pair": (0, 0), "user": (0, 1), "agent": (1, 0), "global": (1, 1)}
    for scope, (users, agents) in axes.items():
        for to, (other_users, other_agents) in axes.items():
            one = abs(users - other_users) + abs(agents - other_agents) == 1
            assert step_allowed(stream, scope, to) == (one and to in CAP[stream])


@pytest.mark.parametrize(
    ("widen", "witnessed", "goes"),
    [
        ("pairs", False, False),
        ("pairs", True, True),
        ("person", False, False),
        ("person", True, False),
    ],
)
async def test_a_step_to_other_users_needs_a_witness_and_that_no_person_is_asked_for(
    widen: Widen, witnessed: bool, goes: bool
) -> None:
    for scope, to in (("user", "global"), ("pair", "agent")):
        entry = held("one", scope=scope)
        change = Changed(held=entry, destination=0, witnessed=witnessed)
        judge = Proposing(steps=[Step(0, to)])
        found = await review([change], Shelf(entry), judge, widen=widen)
        expected = (Rescope(id="one", version=1, to_scope=to),) if goes else ()
        assert found.proposals == expected
        assert found.reviewed.withheld == (not goes)


async def test_a_step_to_other_agents_of_the_same_users_needs_none() -> None:
    for scope, to in (("pair", "user"), ("agent", "global"), ("user", "pair")):
        entry = held("one", scope=scope, version=4)
        found = await review(changed(entry), Shelf(entry), Proposing(steps=[Step(0, to)]))
        assert found.proposals == (Rescope(id="one", version=4, to_scope=to),)


async def test_a_step_that_a_judge_is_not_sure_of_needs_a_witness() -> None:
    for witnessed in (False, True):
        change = Changed(held=held("one", scope="pair"), destination=0, witnessed=witnessed)
        judge = Proposing(steps=[Step(0, "user", sure=False)])
        found = await review([change], Shelf(), judge, widen="person")
        assert len(found.proposals) == witnessed


async def test_rules_widen_nothing_that_one_pair_alone_wrote() -> None:
    for scope in STEPS:
        for stream in STREAMS:
            if scope in CAP[stream]:
                entry = held("one", scope=scope, stream=stream)
                found = await review(changed(entry), Shelf(entry), RuleJudge())
                assert found.proposals == ()


async def test_what_two_pairs_wrote_is_not_taken_from_one_of_them() -> None:
    for scope, to in (("global", "user"), ("agent", "pair"), ("global", "agent"), ("user", "pair")):
        for witnessed in (False, True):
            change = Changed(held=held("one", scope=scope), destination=0, witnessed=witnessed)
            found = await review([change], Shelf(), Proposing(steps=[Step(0, to)]))
            assert len(found.proposals) == (not witnessed)


@pytest.mark.promise("protected.stays")
async def test_no_judge_widens_a_protected_entry_beyond_its_user() -> None:
    for scope in CAP["protected"]:
        for to in ("agent", "global"):
            change = Changed(
                held=held("one", scope=scope, stream="protected"),
                destination=0,
                witnessed=True,
            )
            found = await review([change], Shelf(), Proposing(steps=[Step(0, to)]))
            assert found.proposals == ()
            assert found.reviewed.refused == 1


@pytest.mark.parametrize(
    ("entry", "to"),
    [(0, "global"), (0, "pair"), (0, "everybody"), (0, ""), (1, "user"), (-1, "user")],
)
async def test_a_step_that_is_none_is_refused(entry: int, to: str) -> None:
    step = Step(entry, to)
    change = Changed(held=held("one", scope="pair"), destination=0, witnessed=True)
    found = await review([change], Shelf(), Proposing(steps=[step]))
    assert (found.proposals, found.reviewed.refused) == ((), 1)


async def test_a_judge_is_told_texts_and_a_scope_and_nothing_else() -> None:
    assert Said.__struct_fields__ == ("situation", "lesson")
    assert Batch.__struct_fields__ == ("stream", "scope", "entries")
    seen = []
    for known in (False, True):
        judge = Proposing()
        entries = [held(f"e{n}", lesson=f"Quote {n}.", version=1 + 7 * known) for n in range(3)]
        changes = [Changed(held=entry, destination=0, witnessed=known) for entry in entries]
        await review(changes, Shelf(*entries), judge)
        seen.append(judge.batches)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("The user signed off with the date first.", "user"),
        ("Ask the user before deleting.", "global"),
        ("Prefer two columns.", "global"),
        ("She prefers short answers.", "user"),
        ("Quote the fields.", "global"),
        ("A list of users is sorted by id.", "global"),
        ("This agent's shell has no colours.", "agent"),
        ("The user wants this agent to answer in French.", "pair"),
    ],
)
def test_rules_tell_whom_an_entry_is_about(text: str, scope: str) -> None:
    assert belongs(text) == scope


def test_who_speaks_of_oneself_is_the_person_or_the_agent() -> None:
    text = "My editor tool drops the last line end."
    assert belongs(text, "protected") == "user"
    assert belongs(text, "reusable") == "agent"


def test_rules_go_step_by_step_and_to_other_users_last() -> None:
    assert step_toward("pair", "global", "reusable") == "user"
    assert step_toward("user", "global", "reusable") == "global"
    assert step_toward("user", "global", "protected") == ""
    assert step_toward("global", "pair", "reusable") == "user"
    assert step_toward("agent", "user", "reusable") == "pair"
    for stream in STREAMS:
        for scope in CAP[stream]:
            for to in STEPS:
                step = step_toward(scope, to, stream)
                assert step == "" or step_allowed(stream, scope, step)
                assert (step == "") or scope != to


# -- stage 2

QUOTE = ("exporting a CSV file", "Quote every field that holds a comma.")
QUOTED = ("a CSV file is exported", "Every field holding a comma must be quoted.")


async def test_twins_become_one_and_the_parts_are_named_with_their_versions() -> None:
    old, new = held("old", *QUOTE, version=3), held("new", *QUOTED)
    found = await review(changed(new), Shelf(old, new), RuleJudge())
    (merge,) = found.proposals
    assert isinstance(merge, Merge)
    assert set(merge.parts) == {("old", 3), ("new", 1)}
    assert (merge.situation, merge.lesson) in {QUOTE, QUOTED}
    assert (found.reviewed.merges, found.reviewed.merged) == (1, 2)


async def test_three_that_say_the_same_become_one() -> None:
    twins = [held("a", *QUOTE), held("b", *QUOTED), held("c", *QUOTE)]
    other = held("d", QUOTE[0], "Do not quote a field that holds a comma.")
    found = await review(changed(*twins), Shelf(*twins, other), RuleJudge())
    (merge,) = found.proposals
    assert isinstance(merge, Merge)
    assert {part for part, _ in merge.parts} == {"a", "b", "c"}


async def test_twins_in_two_destinations_or_streams_stay_apart() -> None:
    new, same = held("new", *QUOTE, scope="user"), held("same", *QUOTED, scope="user")
    elsewhere = Shelf(new, elsewhere=[same])
    found = await review([*changed(new), *changed(same, destination=1)], elsewhere, RuleJudge())
    assert found.proposals == ()
    protected = held("same", *QUOTED, scope="user", stream="protected")
    found = await review(changed(new, protected), Shelf(new, protected), RuleJudge())
    assert found.proposals == ()


async def test_no_batch_holds_both_streams_or_two_destinations() -> None:
    entries = [
        held(f"{stream}{n}", lesson=f"Quote {stream} {n}.", scope="user", stream=stream)
        for n in range(5)
        for stream in STREAMS
    ]
    shelf = Shelf(*entries[:6], elsewhere=entries[6:])
    judge = Proposing()
    changes = [*changed(*entries[:6]), *changed(*entries[6:], destination=1)]
    await review(changes, shelf, judge)
    assert judge.batches
    for batch in judge.batches:
        said = {one.lesson for one in batch.entries}
        assert all(batch.stream in lesson for lesson in said)
        assert said <= {e.lesson for e in entries[:6]} or said <= {e.lesson for e in entries[6:]}


async def test_what_is_shared_with_a_group_is_merged_there_and_moves_nowhere() -> None:
    old, new = held("old", *QUOTE, scope="@team/all"), held("new", *QUOTED, scope="@team/all")
    changes = [Changed(held=new, destination=0, witnessed=True)]
    found = await review(changes, Shelf(old, new), RuleJudge())
    assert sorted(named(found.proposals)) == ["new", "old"]
    found = await review(changes, Shelf(), Proposing(steps=[Step(0, "global")]))
    assert (found.proposals, found.reviewed.refused) == ((), 1)


async def test_an_entry_that_moves_is_merged_in_its_new_place_another_time() -> None:
    old, new = held("old", *QUOTE, scope="agent"), held("new", *QUOTED, scope="agent")
    changes = [Changed(held=one, destination=0, witnessed=True) for one in (old, new)]
    found = await review(changes, Shelf(old, new), RuleJudge())
    assert {type(one) for one in found.proposals} == {Rescope}
    assert sorted(named(found.proposals)) == ["new", "old"]


PARTS = (
    held("a", "exporting a CSV file", "Quote a field when it holds 3 commas. Do not trim it."),
    held("b", "exporting a CSV file", "When a field holds 3 commas, quote it. Do not trim it."),
    held("c", "exporting a CSV file", "When a field holds 3 commas, quote it and trim its ends."),
)


CSV, THREE = "exporting a CSV file", "Quote a field when it holds 3 commas."


@pytest.mark.parametrize(
    ("entries", "situation", "lesson"),
    [
        ((0,), CSV, PARTS[0].lesson),
        ((), CSV, PARTS[0].lesson),
        ((0, 0), CSV, PARTS[0].lesson),
        ((0, 7), CSV, PARTS[0].lesson),
        ((-1, 0), CSV, PARTS[0].lesson),
        ((0, 1), "", PARTS[0].lesson),
        ((0, 1), CSV, ""),
        ((0, 1), "exporting\na CSV file", PARTS[0].lesson),
        ((0, 1), f"{CSV} " * MAX_SITUATION, PARTS[0].lesson),
        ((0, 1), CSV, PARTS[0].lesson * MAX_LESSON),
        ((0, 2), CSV, PARTS[0].lesson),
        ((0, 1), CSV, "Quote a field when it holds 4 commas. Do not trim it."),
        ((0, 1), CSV, "Quote a field when it holds commas. Do not trim it."),
        ((0, 1), CSV, f"{THREE} Trim it."),
        ((0, 1), CSV, "Quote a field. Do not trim it. 3 commas."),
        ((0, 1), CSV, f"Perhaps do so: {THREE} Do not trim it."),
        ((0, 1), CSV, f"{THREE} Do not trim it unless asked."),
        ((0, 1), CSV, f"{THREE} Do not trim it. Ask Hans."),
        ((0, 1), CSV, f"{THREE} Do not trim it, ${{TOKEN}}."),
        ((0, 1), CSV, "Quote a field when Sunday has 3 rainy hours. Do not swim it."),
        ((0, 1), "a full moon", PARTS[0].lesson),
    ],
    ids=lambda value: value[:80] if isinstance(value, str) else None,
)
async def test_a_union_against_the_rules_is_refused(
    entries: tuple[int, ...], situation: str, lesson: str
) -> None:
    union = Union(entries, situation, lesson)
    assert seriated(PARTS) == list(PARTS)  # so that the numbers are those of the table
    found = await review(changed(*PARTS), Shelf(*PARTS), Proposing(unions=[union]))
    assert (found.proposals, found.reviewed.refused) == ((), 1)


async def test_a_union_in_new_words_that_keeps_all_is_taken() -> None:
    lesson = "When 3 commas are held by a field, quote it; do not trim."
    union = Union((0, 1), "CSV files are exported", lesson)
    found = await review(changed(*PARTS), Shelf(*PARTS), Proposing(unions=[union]))
    assert found.reviewed.refused == 0
    assert len(named(found.proposals)) == 2


async def test_no_entry_is_in_two_proposals() -> None:
    unions = [Union(pair, QUOTE[0], QUOTE[1]) for pair in ((0, 1), (1, 2), (0, 2), (2, 3))]
    entries = [held(name, *QUOTE) for name in "abcdef"]
    found = await review(changed(*entries), Shelf(*entries), Proposing(unions=unions))
    ids = named(found.proposals)
    assert ids
    assert len(ids) == len(set(ids))


# -- the plan


def library(size: int) -> list[Held]:
    things = [f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}word" for n in range(size)]
    return [
        held(f"{n}", f"handling {thing}", f"Sort the {thing} {n % 7} times.")
        for n, thing in enumerate(things)
    ]


async def test_the_result_does_not_depend_on_the_order_of_what_changed() -> None:
    entries = [*library(60), *(held(f"t{n}", *QUOTE) for n in range(3)), held("u", *QUOTED)]
    found: list[Review] = []
    for seed in range(3):
        mixed = random.Random(seed).sample(changed(*entries), len(entries))
        found.append(await review(mixed, Shelf(*entries[-8:]), RuleJudge()))
    assert found[0] == found[1] == found[2]
    assert len(found[0].proposals) == 1


async def test_a_review_asks_for_the_neighbours_of_what_changed_alone() -> None:
    shown = []
    for size in (200, 600):
        entries = library(size)
        shelf = Shelf(*entries)
        found = await review(changed(*entries[:20]), shelf, RuleJudge(), nearest=4, batch=10)
        assert sorted(asked for asked, _ in shelf.asked) == sorted(
            entry.id for entry in entries[:20]
        )
        shown.append(found.reviewed.shown)
        assert found.reviewed.changed == 20
    assert shown[0] == shown[1]


async def test_nothing_changed_costs_nothing() -> None:
    shelf, judge = Shelf(*library(20)), Proposing()
    found = await review([], shelf, judge)
    assert (found.proposals, shelf.asked, judge.batches) == ((), [], [])


async def test_what_a_judge_has_spent_is_told_for_this_review_alone() -> None:
    judge: Judge = RuleJudge()
    judge.spent.prompt_tokens = 500
    judge.spent.unusable = 2
    found = await review(changed(held("a")), Shelf(), judge)
    assert (found.reviewed.prompt_tokens, found.reviewed.unusable) == (0, 0)


async def test_more_neighbours_than_a_batch_holds_are_no_setting() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        await review([], Shelf(), RuleJudge(), nearest=30)


@given(st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=30), st.integers(6, 30))
def test_each_entry_is_in_one_batch_with_all_its_neighbours(
    near: list[list[int]], size: int
) -> None:
    entries = [held(f"{n}") for n in range(41)]
    found = [
        (entries[n], [entries[other] for other in dict.fromkeys(others) if other != n])
        for n, others in enumerate(near)
    ]
    batches = list(packed(found, size))
    ids = [[one.id for one in batch] for batch in batches]
    assert all(2 <= len(batch) <= size and len(set(batch)) == len(batch) for batch in ids)
    for entry, others in found:
        together = {entry.id, *(other.id for other in others)}
        assert not others or any(together <= set(batch) for batch in ids)


def test_a_batch_is_ordered_by_likeness() -> None:
    entries = [
        held("1", "baking bread", "Weigh the flour."),
        held("2", "exporting a CSV", "Quote the fields."),
        held("3", "baking bread", "Weigh the salt."),
        held("4", "exporting a CSV", "Quote the header."),
    ]
    for seed in range(4):
        mixed = random.Random(seed).sample(entries, 4)
        assert [one.id for one in seriated(mixed)] in (["1", "3", "2", "4"], ["3", "1", "2", "4"])
        assert seriated(mixed) == seriated(entries)


# -- neighbours, by the store's search


async def test_equal_texts_are_neighbours_though_a_search_shows_one_of_them() -> None:
    engine = MemoryEngine(32)
    texts = ["exporting a CSV file\nQuote every field.", "baking bread\nWeigh the salt."]
    for number, (text, agent) in enumerate([(texts[0], "p"), (texts[1], "p"), (texts[0], "q"),
                                            (texts[0], "r")], 1):  # fmt: skip
        fill(engine, put(number, text, scope="global", agent=agent, kind="lesson"))
    fill(engine, put(5, texts[0], scope="global", kind="lesson", stream="protected"))
    fill(engine, put(6, texts[0] + " Always.", scope="global"))  # no lesson

    async def search(query: SearchQuery) -> Sequence[Unit]:
        vector = None if query.lexical_only else embedded(query.text)
        return engine.select(view("ana", "p"), query, vector).units()

    units = [f"global-ana-{agent}-{n}" for n, agent in ((1, "p"), (3, "q"), (4, "r"))]
    for unit in units:
        found = await nearest(search, held(unit, *texts[0].split("\n")), 5, T0 * 2)
        ids = [one.id for one in found]
        assert unit not in ids
        assert set(ids) & set(units)
        assert ids[0] in units
        assert all(one.stream == "reusable" and one.scope == "global" for one in found)
        assert len(set(ids)) == len(ids)
    found = await nearest(search, held(units[0], *texts[0].split("\n")), 1, T0 * 2)
    assert len(found) == 1
