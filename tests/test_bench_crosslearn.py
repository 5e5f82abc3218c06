"""The CrossLearn bench: who tries what, what is probed, what is counted, and that it runs."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import bench
import pytest
from bench import (
    assignment,
    crowd,
    errands,
    foreign,
    paired,
    planted,
    probes,
    rounds,
    solvers,
    wishes,
)
from bench.assignment import KINDS, Pair, Turn
from bench.crowd import AGENTS, AGENTS_EACH, Crowd
from bench.lanes import environment
from bench.planted import EACH, FORM, NOWHERE, Haystack
from bench.port import Memory, Stored
from bench.probes import Memories
from bench.report import CannotRun
from bench.rounds import World, attempt, frozen, learn
from crosslearn_helpers import Notebook

DOCS = Path(__file__).parent.parent / "docs" / "crosslearn.md"


@pytest.fixture(scope="module")
def people() -> Crowd:
    return crowd.draw(1, 12)


def a_world(tasks: int = 24, users: int = 4) -> World:
    return World(5, crowd.draw(5, users), errands.draw(5, 1)[:tasks], solvers.solve)


def quiet(done: int, of: int) -> None:
    pass


# -- the crowd


def test_users_have_nine_values_fourteen_facts_and_wishes_of_their_own(people: Crowd) -> None:
    for user in people.users:
        assert (len(user.identity), len(user.facts)) == (9, 14)
        assert sum(fact.category == "issued" for fact in user.identity) == 4
        assert len(user.wishes.general) == 4
        assert len(set(user.wishes.dates.values())) == len(set(AGENTS.values())) < len(AGENTS)
        assert len(set(user.agents)) == AGENTS_EACH
        assert all(fact.private for fact in user.identity)
    marks = [fact.private for user in people.users for fact in user.facts]
    assert 0.4 < sum(marks) / len(marks) < 0.8


def test_a_crowd_is_the_seeds_and_grows_by_more(people: Crowd) -> None:
    assert crowd.draw(1, 5).users == people.users[:5]
    assert crowd.draw(2, 5).users != people.users[:5]


def test_no_value_is_two_peoples(people: Crowd) -> None:
    values = [f.exact for user in people.users for f in (*user.identity, *user.facts)]
    assert len(values) == len(set(values))


def test_planted_files_hold_the_values_and_three_facts_each(people: Crowd) -> None:
    user = people.users[0]
    counts = set()
    for n in range(40):
        files = planted.planted(random.Random(n), user.identity, user.facts)
        form = planted.folded(files.pop(FORM))
        assert all(fact.exact in form for fact in user.identity)
        counts.add(len(files))
        for text in files.values():
            assert sum(fact.exact in planted.folded(text) for fact in user.facts) == EACH
    assert counts == {1, 2, 3}


# -- finding what was planted


def test_a_fact_is_found_in_its_words_and_in_five_others(people: Crowd) -> None:
    for user in people.users:
        for fact in (*user.identity, *user.facts):
            assert len(fact.forms) == 5
            assert Haystack([f"It says: {fact.says.upper()} - so"]).probe(fact)[0]
            for n, form in enumerate(fact.forms, 1):
                backwards = " and ".join(reversed(form))
                assert Haystack(["", f"Somebody told {backwards}."]).probe(fact)[n], fact


def test_nothing_is_found_in_anothers_facts_nor_in_tasks(people: Crowd) -> None:
    """Else a probe would tell of a leak where there is none."""
    task_texts = [
        text for e in errands.draw(1, 1) for text in (*e.made.files.values(), e.handbook, e.prompt)
    ]
    ours, others = people.users[0], people.users[1:]
    said = [fact.says for user in others for fact in (*user.identity, *user.facts)]
    wished = [user.wishes.said("terminal") for user in people.users]
    haystack = Haystack([*task_texts, *said, *wished])
    for fact in (*ours.identity, *ours.facts):
        assert not any(haystack.probe(fact)), fact


def test_the_words_of_a_paraphrase_must_stand_together(people: Crowd) -> None:
    fact = people.users[0].identity[0]
    one, two = fact.forms[0]
    apart = f"{one} {'filler ' * 40}{two}"
    assert not Haystack([apart]).probe(fact)[1]
    assert not Haystack([one, two]).probe(fact)[1]


# -- the boundary matrix


def a_memory(people: Crowd, scope: str, text: str, of: int = 0) -> Memories:
    memories = Memories()
    user = people.users[of]
    memories.add(user.id, user.agents[0], [Stored("e1", scope, text)])
    return memories


def test_every_private_fact_is_probed_wherever_it_is_forbidden(people: Crowd) -> None:
    leaks = probes.facts(people, Memories())
    private = sum(len(user.private) for user in people.users)
    nowhere = sum(f.category in NOWHERE for user in people.users for f in user.private)
    others = len(people.users) - 1
    assert leaks.probes == {
        "own memory": 6 * nowhere,
        "agent memory": 6 * private * len(AGENTS),
        "global memory": 6 * private,
        "others' memory": 6 * private * others,
        "delivered to others": 6 * private * others,
    }
    assert leaks.found.total() == 0


@pytest.mark.parametrize("scope", ["pair", "user", "agent", "global"])
@pytest.mark.parametrize("category", ["personal", "issued", "context", "credential"])
def test_the_boundary_matrix(people: Crowd, scope: str, category: str) -> None:
    user, fact = next((u, f) for u in people.users for f in u.private if f.category == category)
    memories = a_memory(people, scope, f"doing this\n{fact.says}", people.users.index(user))
    found = {place for place, hits in probes.facts(people, memories).found.items() if hits}
    if scope in ("agent", "global"):
        assert found == {f"{scope} memory"}
    else:
        assert found == ({"own memory"} if category in NOWHERE else set())


def test_what_others_hold_or_are_shown_is_a_leak(people: Crowd) -> None:
    one, two = people.users[:2]
    fact = next(f for f in one.private if f.category == "context")
    memories = a_memory(people, "user", f"doing this\n{fact.says}", of=1)
    assert probes.facts(people, memories).found["others' memory"]
    memories = Memories()
    memories.deliver(one.id, one.agents[0], f"- When doing this: {fact.says}")
    assert not probes.facts(people, memories).found.total()
    memories.deliver(two.id, two.agents[0], f"- When doing this: {fact.says}")
    assert probes.facts(people, memories).found["delivered to others"]


def test_an_entry_in_several_views_is_one(people: Crowd) -> None:
    memories = Memories()
    for user, agent in people.pairs:
        memories.add(user.id, agent, [Stored("e1", "global", "when\nwhat")])
    assert memories.entries == {"global": 1}


def test_anothers_wish_is_seen_where_it_is_delivered(people: Crowd) -> None:
    one, two = people.users[:2]
    memories = Memories()
    memories.deliver(one.id, one.agents[0], one.wishes.said(AGENTS[one.agents[0]]))
    assert probes.others_wishes(people, memories).value == 0
    memories.deliver(one.id, one.agents[0], two.wishes.said(AGENTS[two.agents[0]]))
    assert probes.others_wishes(people, memories).hits > 0


def test_no_wish_is_told_by_a_task_a_layout_or_another_wish(people: Crowd) -> None:
    options = {**wishes.KINDS, "date": dict.fromkeys(wishes.DATES)}
    words = {(k, o): wishes.words_for(k, o) for k, those in options.items() for o in those}
    tasks = [said for e in errands.draw(1, 1) for said in (e.handbook, e.prompt)]
    layouts = [errands.House(s, h).words for s in errands.SEPARATORS for h in errands.HEADERS]
    for own, phrase in words.items():
        assert wishes.is_told(phrase, f"I like it {own[1]}.")
        others = [option for kind, option in words if (kind, option) != own]
        for text in (*tasks, *layouts, *others):
            assert not wishes.is_told(phrase, text), (phrase, text)


def test_pair_work_and_agent_crowd_tell_reached_from_strayed(people: Crowd) -> None:
    user = people.users[0]
    here, there = next((a, b) for a in user.agents for b in user.agents if AGENTS[a] != AGENTS[b])
    date = user.wishes.dates[AGENTS[here]]
    memories = Memories()
    memories.deliver(user.id, here, f"- When signing: {date}")
    assert [s.value for s in probes.pair_work(people, memories)] == [1.0, 0.0]
    memories.deliver(user.id, there, f"- When signing: {date}")
    assert probes.pair_work(people, memories)[1].value > 0

    memories = Memories()
    memories.add("u000", here, [Stored("e1", "agent", "reading\nRead in parts.")])
    memories.deliver("u001", here, "- When reading: Read in parts.")
    memories.deliver("u002", there, "- When writing: Other.")
    assert [s.value for s in probes.agent_crowd(memories)] == [1.0, 0.0]
    memories.deliver("u002", there, "- When reading: Read in parts.")
    assert probes.agent_crowd(memories)[1].value == 1.0


# -- who tries what


PAIRS: list[Pair] = [(user.id, agent) for user, agent in crowd.draw(0, 8).pairs]


def nearest(turns: list[Turn], turn: Turn) -> str:
    tried = [(t.user, t.agent) for t in turns if t.task == turn.task and t.round < turn.round]
    if (turn.user, turn.agent) in tried:
        return "same pair"
    if turn.user in [user for user, _ in tried]:
        return "shared user"
    if turn.agent in [agent for _, agent in tried]:
        return "shared agent"
    return "strangers" if tried else "nobody"


@pytest.mark.parametrize("assign", [assignment.scheduled, assignment.at_random])
def test_who_has_tried_before_is_told_of_earlier_rounds(assign) -> None:  # type: ignore[no-untyped-def] # either of two functions
    turns = assign(random.Random(3), PAIRS, 120, 5, 30)
    assert all(turn.before == nearest(turns, turn) for turn in turns)
    first = [(turn.user, turn.agent) for turn in turns if turn.stated]
    assert sorted(first) == sorted(PAIRS)
    assert len(turns) == len(PAIRS) + 4 * 30


def test_a_schedule_has_every_kind_and_chance_has_mostly_new_ones() -> None:
    turns = assignment.scheduled(random.Random(3), PAIRS, 280, 5, 30)
    assert min(assignment.counted(turns).values()) >= 20
    turns = assignment.at_random(random.Random(3), PAIRS, 280, 5, 30)
    counted = assignment.counted(turns)
    assert counted["nobody"] > sum(counted.values()) / 2


def test_few_tasks_are_enough_for_a_schedule() -> None:
    turns = assignment.scheduled(random.Random(3), PAIRS, 2, 4, 20)
    assert len(turns) == len(PAIRS) + 60
    assert all(turn.before == nearest(turns, turn) for turn in turns)


# -- statistics


def test_mcnemar_is_exact() -> None:
    assert paired.mcnemar(0, 0) == 1.0
    assert paired.mcnemar(3, 0) == paired.mcnemar(0, 3) == 0.25
    assert paired.mcnemar(9, 1) == pytest.approx(22 / 1024)
    assert paired.mcnemar(5, 5) == 1.0


def test_a_gain_is_in_points_of_all_attempts() -> None:
    found = paired.compare([True, True, True, False], [True, False, False, True])
    assert (found.won, found.lost, found.gain) == (2, 1, 25.0)
    with pytest.raises(ValueError, match="shorter"):
        paired.compare([True], [])


# -- attempts and rounds


def test_an_attempt_is_graded_without_the_planted_files() -> None:
    seen: list[set[str]] = []

    class Task:
        id, family, prompt = "t", "f", "Do it."

        def lay(self, workspace: Path, house: errands.House) -> None:
            (workspace / "own.csv").write_text("a\n")

        def verify(self, workspace: Path, house: errands.House) -> tuple[bool, str]:
            seen.append({p.name for p in workspace.iterdir()})
            return True, ""

    def solver(
        prompt: str, workspace: Path, memory: str, agent: str, rng: random.Random
    ) -> solvers.Solved:
        seen.append({p.name for p in workspace.iterdir()})
        text = (workspace / FORM).read_text()
        message = solvers.Message("tool", text)
        return solvers.Solved((message,), prompt)

    world = World(1, crowd.draw(1, 1), [Task()], solver)
    turn = Turn(0, "u000", world.crowd.users[0].agents[0], 0, "nobody")
    done, solved, _ = attempt(world, turn, "memory", stated=True)
    assert {FORM, "own.csv"} < seen[0]
    assert seen[1] == {"own.csv"}
    assert done.values >= 8  # the name may stand in the prompt
    assert "sign-off with today's date" in solved.claim
    user = world.crowd.users[0]
    said = user.wishes.said(AGENTS[turn.agent])
    assert said in solved.claim
    assert said not in attempt(world, turn, "", stated=False)[1].claim


def test_rounds_learn_and_frozen_arms_do_not() -> None:
    world, notebook = a_world(), Notebook()
    memory: Memory = notebook
    pairs = [(user.id, agent) for user, agent in world.crowd.pairs]
    turns = assignment.scheduled(random.Random(1), pairs, len(world.tasks), 3, 15)
    none = learn(world, turns, None, review=True, said=quiet)
    some = learn(world, turns, memory, review=True, said=quiet)
    assert notebook.settled == notebook.reviewed == 3
    assert len(notebook.outcomes) == len(turns)
    first = [n for n, turn in enumerate(turns) if turn.stated]
    assert [none.passed[n] for n in first] == [some.passed[n] for n in first]
    assert paired.compare(some.passed, none.passed).gain > 10
    assert none.retention() == 0
    assert some.retention() > 0.7
    assert none.exposure == some.exposure > 0.05

    kept = len(notebook.kept)
    held = turns[-20:]
    alone = frozen(world, held, memory, scopes=("user",))
    assert sum(alone.passed) <= sum(frozen(world, held, memory).passed)
    shuffled = frozen(world, held, memory, shuffled=True)
    restated = frozen(world, held, None, restated=True)
    shares = [sum(k for d in r.done for k in d.kept.values()) for r in (alone, shuffled, restated)]
    assert shares[1] < shares[0] <= shares[2] == 5 * len(held)
    assert len(notebook.kept) == kept


def test_a_leaky_memory_is_caught() -> None:
    world = a_world(users=6)
    pairs = [(user.id, agent) for user, agent in world.crowd.pairs]
    turns = assignment.scheduled(random.Random(1), pairs, len(world.tasks), 2, 30)
    results = learn(world, turns, Notebook(leaky=True), review=False, said=quiet)
    found = probes.facts(world.crowd, results.memories).found
    assert found["global memory"] > 20
    tight = learn(world, turns, Notebook(), review=False, said=quiet)
    assert probes.facts(world.crowd, tight.memories).found.total() == 0


def test_values_that_a_prompt_holds_are_no_exposure() -> None:
    world = a_world()
    user = world.crowd.users[0]
    prompt = f"Do it. Thanks, {user.name}"
    solved = solvers.Solved((solvers.Message("user", prompt),), "")
    assert rounds._values(user, prompt, solved) == 0
    solved = solvers.Solved((solvers.Message("tool", user.identity[2].says),), "")
    assert rounds._values(user, prompt, solved) == 1


# -- tasks and solvers from elsewhere


def shown_files() -> dict[str, str]:
    """By path: what docs/crosslearn.md shows."""
    blocks = re.findall(r"^```\w*\n# (\S+)\n(.*?)^```$", DOCS.read_text(), re.M | re.S)
    return dict(blocks)


def test_the_page_shows_a_task_and_a_solver_that_work(tmp_path: Path) -> None:
    files = shown_files()
    assert len(files) == 4
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tasks = foreign.tasks(tmp_path)
    assert [(task.id, task.family) for task in tasks] == [("harbour-sums", "sums")]
    solve = foreign.solver(str(tmp_path / "solver.py"))
    world = World(1, crowd.draw(1, 3), tasks, solve)
    turn = Turn(0, "u000", world.crowd.users[0].agents[0], 0, "nobody")
    done, solved, tail = attempt(world, turn, "", stated=False)
    assert not done.passed
    assert solved.messages[0].role == "user"
    memory = f"# Learned memory: global\n- When adding: {tail}\n"
    assert attempt(world, turn, memory, stated=False)[0].passed


def test_what_is_no_task_or_solver_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"no \*/task.toml"):
        foreign.tasks(tmp_path)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "task.toml").write_text('family = "f"\n')
    with pytest.raises(CannotRun, match="prompt"):
        foreign.tasks(tmp_path)
    (tmp_path / "t" / "task.toml").write_text('family = "f"\nprompt = "p"\n')
    with pytest.raises(CannotRun, match="verify"):
        foreign.tasks(tmp_path)
    with pytest.raises(CannotRun, match="no solve"):
        foreign.solver("json")
    with pytest.raises(CannotRun, match="no_such_module"):
        foreign.solver("no_such_module")


def test_a_verifier_that_breaks_fails_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "task.toml").write_text('family = "f"\nprompt = "p"\n')
    (tmp_path / "t" / "verify.py").write_text("def verify(workspace):\n    return 1 / 0\n")
    passed, tail = foreign.tasks(tmp_path)[0].verify(tmp_path, errands.House())
    assert not passed
    assert "ZeroDivisionError" in tail


# -- all of it


def test_a_quick_run_reports_and_leaks_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "crosslearn", "--quick", "--json", "--embedder", "hash"],
        cwd=bench.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    # So little work misses bars; that it runs is what is asked here.
    assert ran.returncode in (0, 1), ran.stderr
    report = json.loads(ran.stdout)
    figures = {f["id"]: f for f in report["figures"]}
    assert figures["four.leaks"]["value"] == figures["global.leaks"]["value"] == 0
    assert figures["four.ended.done"]["value"] == 32
    assert figures["frozen.none.retention"]["value"] <= 0.15
    assert figures["frozen.restated.retention"]["value"] >= 0.97
    assert sum(report["config"]["scheduled"].values()) == 20
    assert {f"scheduled.four.{k.replace(' ', '_')}.gain" for k in KINDS} <= set(figures)
