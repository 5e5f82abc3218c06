"""The CrossLearn bench's tasks, verifiers and scripted solver: what is plain fails, what was
learned passes, and only words change what the solver does."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from bench import errands, wishes
from bench.advice import Style, entries, take
from bench.crowd import AGENTS, HARNESSES
from bench.errands import Errand, House
from bench.solvers import HARNESS, QUIRK, WHERE, Solved, solve
from bench.toolbox import SWITCHES, switches

DAY = datetime.date(2026, 3, 5)
HOUSE = House(";", "capitals")
SEEDS = (0, 1, 2)


class Dull(random.Random):
    """Draws nothing that has a chance below one half: no second look, no curiosity."""

    def random(self) -> float:
        return 0.99


class Keen(random.Random):
    """The opposite."""

    def random(self) -> float:
        return 0.0


def shown(*lessons: str, scope: str = "global", situation: str = "doing this") -> str:
    items = "".join(f"- When {situation}: {lesson}\n" for lesson in lessons)
    return f"# Learned memory: {scope}\n{items}" if lessons else ""


def attempt(
    errand: Errand,
    folder: Path,
    memory: str = "",
    agent: str = "nobody",
    rng: random.Random | None = None,
    said: str = "",
) -> tuple[bool, str, Solved]:
    workspace = folder / f"w{len(list(folder.iterdir()))}"
    workspace.mkdir()
    errand.lay(workspace, HOUSE)
    prompt = f"{errand.prompt} {wishes.request(DAY)} {said}"
    solved = solve(prompt, workspace, memory, agent, rng or Dull(1))
    passed, tail = errand.verify(workspace, HOUSE)
    return passed, tail, solved


def lessons(errand: Errand) -> tuple[str, ...]:
    layout = f"In this user's tables {HOUSE.words}."
    return (errand.trap, layout) if errand.housed else (errand.trap,)


# -- tasks


def test_there_are_enough_families_templates_and_traps() -> None:
    every = errands.templates()
    families = Counter(template.family for template in every)
    assert len(every) >= 60
    assert len(families) >= 5
    assert min(families.values()) >= 10
    assert len({t.trap for t in every}) == len({t.subject for t in every}) == len(every)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_task_fails_plainly_and_passes_with_its_lesson(seed: int, tmp_path: Path) -> None:
    for errand in errands.draw(seed, 1):
        passed, tail, _ = attempt(errand, tmp_path)
        assert not passed, errand.id
        assert errand.trap in tail, errand.id
        passed, tail, _ = attempt(errand, tmp_path, shown(*lessons(errand)))
        assert passed, (errand.id, tail)


def test_no_prompt_tells_its_trap() -> None:
    for errand in errands.draw(0, 1):
        assert not switches(errand.prompt), errand.id


def test_tasks_are_the_seeds(tmp_path: Path) -> None:
    one, again, other = errands.draw(3, 2), errands.draw(3, 2), errands.draw(4, 2)
    assert one == again
    assert {e.id: e.made.files for e in one} != {e.id: e.made.files for e in other}


def test_another_subjects_lessons_are_not_followed(tmp_path: Path) -> None:
    every = errands.draw(0, 1)
    for errand in every[:20]:
        others = [e.trap for e in every if e is not errand]
        passed, _, _ = attempt(errand, tmp_path, shown(*others))
        assert not passed, errand.id


def test_the_house_has_its_say_only_where_it_is_asked(tmp_path: Path) -> None:
    housed = next(e for e in errands.draw(0, 1) if e.housed)
    passed, tail, _ = attempt(housed, tmp_path, shown(housed.trap))
    assert not passed
    assert "in this user's tables columns are separated by semicolons" in tail
    wrong = "In this user's tables columns are separated by tabs."
    assert not attempt(housed, tmp_path, shown(housed.trap, wrong))[0]
    free = next(e for e in errands.draw(0, 1) if not e.housed)
    assert attempt(free, tmp_path, shown(free.trap, wrong))[0]


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agents_quirk_costs_a_task_until_it_is_known(agent: str, tmp_path: Path) -> None:
    quirk, tool, does = QUIRK[HARNESS[agent]]
    said = WHERE[0].format(tool=tool, harness=HARNESS[agent], does=does)
    hit = 0
    for errand in errands.draw(0, 1):
        known = shown(*lessons(errand))
        passed, _, _ = attempt(errand, tmp_path, known, agent)
        hit += not passed
        if not passed:
            assert errand.long if quirk == "parts" else errand.strict
        passed, tail, _ = attempt(errand, tmp_path, known + shown(said, scope="agent"), agent)
        assert passed, (errand.id, tail)
    assert hit >= 8


def test_words_about_other_agents_are_left_alone(tmp_path: Path) -> None:
    mine, theirs = {"merlin", "console"}, {"kestrel", "terminal", "heron", "notebook"}
    said = f"read_file of the terminal {QUIRK['terminal'][2]}."
    assert take(shown(said), "", mine, theirs)[0].quirks == set()
    assert take(shown(said), "", theirs, mine)[0].quirks == {"parts"}
    situation = "working as kestrel"
    assert take(shown("read in parts", situation=situation), "", mine, theirs)[0].quirks == set()


def test_a_second_look_finds_the_trap_and_says_so(tmp_path: Path) -> None:
    for errand in errands.draw(0, 1)[:20]:
        passed, tail, solved = attempt(errand, tmp_path, rng=Keen(1))
        assert passed, (errand.id, tail)
        assert switches(errand.trap) & switches(solved.messages[-1].content or "")


def test_what_is_shown_shifts_no_draw(tmp_path: Path) -> None:
    """Attempts of two conditions are paired: the same looks are taken in both."""
    errand = next(e for e in errands.draw(0, 1) if not e.housed)
    found = []
    for memory in ("", shown("Nothing of use.")):
        solved = attempt(errand, tmp_path, memory, "merlin", random.Random(5))[2]
        found.append([m.content for m in solved.messages])
    assert found[0] == found[1]


def test_a_lesson_that_names_nothing_any_more_is_followed_where_the_situation_is_the_same() -> None:
    prompt = "For the mill branch we have the till export in till.csv. Add up the column amount."
    told = "the <name> export writes amounts with a decimal comma"
    same = "adding up: Add up the column amount. We have the <name> export in <name>.csv"
    for situation, followed in ((same, True), ("sorting the lines of a file by size", False)):
        advice, _ = take(shown(told, situation=situation), prompt, {"merlin"}, {"heron"})
        assert ("decimal comma" in advice.on) == followed


def test_every_switch_has_words_of_its_own() -> None:
    for switch, (_, said) in SWITCHES.items():
        assert switch in switches(said), switch


def test_every_switch_is_spoken_for_by_a_trap() -> None:
    traps = [switches(template.trap) for template in errands.templates()]
    assert frozenset().union(*traps) == frozenset(SWITCHES)


def test_a_trajectory_is_a_conversation_with_tools(tmp_path: Path) -> None:
    solved = attempt(errands.draw(0, 1)[0], tmp_path, rng=random.Random(2))[2]
    assert solved.messages[0].role == "user"
    assert solved.messages[-1].role == "assistant"
    waiting: list[str] = []
    for message in solved.messages:
        assert bool(waiting) == (message.role == "tool")
        if message.role == "tool":
            assert message.call == waiting.pop()
        for call in message.calls:
            json.loads(call.arguments)
            waiting.append(call.id)


# -- wishes


@pytest.fixture
def drawn() -> list[wishes.Wishes]:
    rng = random.Random(1)
    return [wishes.draw(rng, HARNESSES) for _ in range(60)]


def test_stated_wishes_are_kept_and_unstated_ones_are_not(
    drawn: list[wishes.Wishes], tmp_path: Path
) -> None:
    errand = errands.draw(0, 1)[0]
    for n, wish in enumerate(drawn):
        harness = HARNESSES[n % len(HARNESSES)]
        agent = next(a for a, h in AGENTS.items() if h == harness)
        for said, memory, kept in (
            (wish.said(harness), "", 5),
            ("", shown(*wish.said(harness).split(". "), scope="user"), 5),
            ("", shown(wish.said(harness), scope="pair"), 5),
            ("", "", 0),
        ):
            attempt(errand, tmp_path, memory, agent, said=said)
            report = (tmp_path / f"w{len(list(tmp_path.iterdir())) - 1}" / "report.md").read_text()
            assert sum(wish.kept(report, harness, DAY).values()) == kept, (wish, report)


def test_a_date_form_is_told_from_those_that_hold_it(drawn: list[wishes.Wishes]) -> None:
    for form, style in wishes.DATES.items():
        line = f"Signed off: {DAY.strftime(style)}\n"
        kept = []
        for other in wishes.DATES:
            wish = wishes.Wishes({}, {"terminal": other}, 0)
            if wish.kept(line, "terminal", DAY)["date"]:
                kept.append(other)
        assert kept == [form]
    wish = wishes.Wishes({}, {"terminal": next(iter(wishes.DATES))}, 0)
    assert not wish.kept("Signed off: 2026-03-05\n", "terminal", DAY)["date"]


def test_memory_is_read_entry_by_entry() -> None:
    text = shown("One.", scope="user") + shown("Two: it.", "Three", scope="pair")
    found = [(e.scope, e.text, list(e.situations())) for e in entries(text + "  and more\n")]
    assert found == [
        ("user", "doing this: One.", ["doing this"]),
        ("pair", "doing this: Two: it.", ["doing this", "doing this: Two"]),
        ("pair", "doing this: Three\nand more", ["doing this"]),
    ]


def test_the_first_wish_shown_holds() -> None:
    style = Style()
    style.read("I prefer plus signs for the bullet points.\nUse arrows for bullet points.")
    assert style.bullets == "+ "
