"""The benches themselves: what they report, what they draw, and that they run."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import msgspec
import numpy as np
import pytest
from bench import __main__ as command
from bench.answers import Ledger, Owner
from bench.corpora import LOADERS, Question
from bench.facts import DECOYS, FACTS_EACH, KINDS, Drawer, holds_word
from bench.lanes import environment
from bench.population import Population
from bench.recall import METRICS, Hit, highest
from bench.report import (
    CannotRun,
    Progress,
    Report,
    as_json,
    as_table,
    figure,
    percentile,
)
from bench.text import Writer
from bench.views import SHARES, recall

from isovist.storage.chunks import dated
from isovist.storage.words import index_terms, query_terms
from isovist.syscalls.records import partition_of


def a_report(*figures: object) -> Report:
    return msgspec.convert(
        {
            "bench": "x",
            "machine": {"cores": 2},
            "config": {"seed": 1},
            "figures": [msgspec.to_builtins(f) for f in figures],
        },
        Report,
    )


# -- reports


def test_a_bar_is_about_the_value_or_the_ratio() -> None:
    assert figure("a", 46, "of 48", bar=">= 46").holds is True
    assert figure("a", 45, "of 48", bar=">= 46").holds is False
    assert figure("a", 30, "µs", reference=("raw", 8), bar="ratio <= 4").holds is True
    assert figure("a", 33, "µs", reference=("raw", 8), bar="ratio <= 4").holds is False
    assert figure("a", 0, "units", bar="== 0").holds is True


def test_a_verdict_is_taken_before_rounding() -> None:
    missed = figure("a", 2.000001, "ms", bar="<= 2")
    assert (missed.value, missed.holds) == (2.0, False)


def test_a_ratio_without_a_reference_is_missed_and_is_null() -> None:
    for reference in (None, ("oracle", 0.0)):
        missed = figure("a", 1, "answers", reference=reference, bar="ratio >= 0.9")
        assert missed.ratio is None
        assert missed.holds is False


@pytest.mark.parametrize("bar", ["46", "=> 46", "ratio 4", ">= many", "share >= 0.5", ""])
def test_a_bar_that_is_none_is_an_error(bar: str) -> None:
    with pytest.raises(ValueError, match="not a bar"):
        figure("a", 1, "ms", bar=bar)


def test_the_json_object_has_all_keys_also_where_null() -> None:
    plain, barred = figure("a", 1, "ms"), figure("b", 2, "ms", reference=("raw", 1), bar="> 1")
    found = json.loads(as_json(a_report(plain, barred)))
    assert list(found) == ["bench", "machine", "config", "figures"]
    nothing = {"reference": None, "ratio": None, "bar": None, "holds": None}
    assert found["figures"][0] == {"id": "a", "value": 1.0, "unit": "ms", **nothing}
    assert found["figures"][1]["reference"] == {"name": "raw", "value": 1.0}
    assert found["figures"][1]["ratio"] == 2.0


def test_the_table_says_what_was_missed() -> None:
    held, missed = figure("good", 1, "ms", bar="<= 2"), figure("bad", 3, "ms", bar="<= 2")
    text = as_table(a_report(held, missed, figure("free", 5, "ms")))
    (line,) = [line for line in text.splitlines() if line.startswith("bad")]
    assert line.endswith("MISSED")
    assert text.endswith("1 of 2 bars missed")
    assert as_table(a_report(held)).endswith("all 1 bars hold")


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile(range(1, 101), 1.0) == 100
    assert percentile([7], 0.5) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_progress_tells_each_stage_once_and_its_end() -> None:
    out = io.StringIO()
    progress = Progress("x", out)
    for done in range(4):
        progress("write", done, 3)
    progress("ask")
    progress("ask")
    assert [line.partition("] ")[2] for line in out.getvalue().splitlines()] == [
        "write 0/3",
        "write 3/3",
        "ask",
    ]


# -- exit codes


class FakeBench:
    def __init__(self, outcome: Report | Exception) -> None:
        self.outcome = outcome
        self.options: argparse.Namespace | None = None

    @staticmethod
    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--extra", type=int, default=7)

    def run(self, options: argparse.Namespace, progress: Progress) -> Report:
        self.options = options
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


Install = Callable[[Report | Exception], FakeBench]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(outcome: Report | Exception) -> FakeBench:
        made = FakeBench(outcome)
        monkeypatch.setitem(command.BENCHES, "fake", "for this test")
        monkeypatch.setitem(sys.modules, "bench.fake", made)  # type: ignore[arg-type] # a double
        return made

    return install


def test_exit_codes_tell_held_missed_and_failed_apart(
    fake: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(a_report(figure("a", 1, "ms", bar="<= 2")))
    assert command.main(["fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"][0]["holds"] is True
    fake(a_report(figure("a", 3, "ms", bar="<= 2")))
    assert command.main(["fake"]) == 1
    assert "MISSED" in capsys.readouterr().out
    fake(CannotRun("no model"))
    assert command.main(["fake", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no model" in err
    fake(RuntimeError("a bug"))
    assert command.main(["fake"]) == 2
    assert "a bug" in capsys.readouterr().err


def test_options_reach_the_bench(fake: Install, tmp_path: Path) -> None:
    made = fake(a_report())
    command.main(["fake", "--seed", "5", "--quick", "--data", str(tmp_path), "--extra", "9"])
    assert made.options is not None
    assert vars(made.options) == {
        "json": False, "data": tmp_path, "seed": 5, "quick": True, "extra": 9
    }  # fmt: skip


def test_an_unknown_bench_is_named_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nonsense"]) == 2
    assert ", ".join(command.BENCHES) in capsys.readouterr().err
    assert command.main(["--help"]) == 0
    assert command.main([]) == 2


# -- what is drawn


def test_facts_are_the_seeds_and_eight_kinds_each() -> None:
    users = ["u1", "u2", "u3"]
    facts = Drawer(3).facts(users)
    assert facts == Drawer(3).facts(users)
    assert facts != Drawer(4).facts(users)
    for user in users:
        own = [f for f in facts if f.user == user]
        assert len({f.kind for f in own}) == FACTS_EACH
        assert sorted(f.listener for f in own) == ["profile"] * 4 + ["task"] * 4
    assert all(holds_word(f.says, f.value) and not holds_word(f.question, f.value) for f in facts)


def test_there_are_many_kinds_each_with_a_sentence_and_a_question_of_its_own() -> None:
    assert len({k.says for k in KINDS}) == len({k.question for k in KINDS}) == len(KINDS) >= 16
    assert all(k.says.count("{}") == 1 for k in KINDS)


@pytest.mark.parametrize("seed", range(5))
def test_no_value_stands_in_a_decoy_or_in_another_fact(seed: int) -> None:
    drawer = Drawer(seed)
    facts, decoys = drawer.facts([f"u{i}" for i in range(6)]), drawer.decoys(500)
    assert len(set(decoys)) == 500
    said = [f.says for f in facts] + [k.question for k in KINDS]
    for fact in facts:
        assert sum(holds_word(text, fact.value) for text in said) == 1
        assert not any(holds_word(text, fact.value) for text in decoys)


def test_decoys_use_each_template_about_as_often() -> None:
    decoys = Drawer(0).decoys(len(DECOYS) * 2)
    starts = [template.partition("{")[0] for template in DECOYS]
    assert all(sum(d.startswith(start) for d in decoys) >= 2 for start in starts if start)


def test_a_value_counts_as_a_whole_word_in_any_case() -> None:
    assert holds_word("It is called BRONTH.", "Bronth")
    assert not holds_word("It is called Bronthal.", "Bronth")
    assert not holds_word("number 12345", "1234")


def test_the_ledger_allows_own_and_open_units_alone() -> None:
    ledger = Ledger(
        {
            "open": Owner("ana", "notes", "user"),
            "own": Owner("ana", "assistant", "pair"),
            "private": Owner("ana", "diary", "pair"),
            "foreign": Owner("bo", "notes", "user"),
        }
    )
    names = [*ledger.owners, "unknown"]
    assert [u for u in names if ledger.allows(u, "ana", "assistant")] == ["open", "own"]


def test_text_is_the_seeds_and_questions_differ() -> None:
    one, two = Writer(1), Writer(1)
    assert [one.note() for _ in range(20)] == [two.note() for _ in range(20)]
    assert len({one.question() for _ in range(2_000)}) == 2_000


# -- conversations with known evidence


def written(folder: Path) -> Path:
    """A data set of each kind, in its own form: two users each, all of it made up here."""
    talks = []
    for name, pet in (("c1", "a heron"), ("c2", "an otter")):
        turns = [
            {"speaker": "Ida", "dia_id": "D1:1", "text": "What did you see at the pond?"},
            {"speaker": "Olav", "dia_id": "D1:2", "text": f"I saw {pet}.", "blip_caption": "reeds"},
            {"speaker": "Ida", "dia_id": "D1:3", "text": "Lovely. I baked rye bread."},
        ]
        asked = [
            {"question": "What did Olav see?", "evidence": ["D1:2; D1:9"], "category": 4},
            {"question": "What was never said?", "evidence": ["D1:1"], "category": 5},
            {"question": "Nothing named?", "evidence": [], "category": 1},
        ]
        talk = {"session_1": turns, "session_1_date_time": "1:56 pm on 8 May, 2031"}
        talks.append({"sample_id": name, "conversation": talk, "qa": asked})
    chats = [
        {
            "question_id": name,
            "question": "Which bread did I bake?",
            "question_type": "single",
            "answer_session_ids": ["s2"],
            "haystack_session_ids": ["s1", "s2", "s1"],
            "haystack_dates": ["2031/05/20 (Tue) 02:21"] * 3,
            "haystack_sessions": [
                [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"}],
                [{"role": "user", "content": f"I baked {bread} bread."}],
                [{"role": "user", "content": "It rains."}, {"role": "user", "content": ""}],
            ],
        }
        for name, bread in (("q1", "rye"), ("q2", "barley"))
    ]
    days = {
        "2031-05-01": [{"query": "我今天在湖边看见了苍鹭", "response": "真好"}],
        "2031-05-02": [{"query": "我烤了黑麦面包", "response": None}],
    }
    asked_of = ["5月2号我做了什么？", "我在湖边看见了什么？", "你好吗？", "6月1日呢？"]
    files: dict[str, list[Any]] = {
        "locomo/talks.json": [talks],
        "longmemeval/longmemeval_s_tiny.jsonl": chats,
        "memorybank/memory_bank_cn.json": [{u: {"history": days} for u in ("甲", "乙")}],
        "memorybank/probing_questions_cn.jsonl": [{"甲": asked_of}, {"乙": asked_of[:2]}],
    }
    for path, lines in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        (folder / path).write_text(text, "utf-8")
    return folder


def test_evidence_is_what_a_data_set_names_and_what_exists(tmp_path: Path) -> None:
    sets = {name: load(written(tmp_path)) for name, load in LOADERS.items()}
    turns = sets["locomo"]
    assert [(q.user, q.gold) for q in turns.questions] == [
        ("c1", frozenset({"c1/D1:2"})),
        ("c2", frozenset({"c2/D1:2"})),
    ]
    assert [(u.number, len(u.labels)) for u in turns.histories[0].rounds] == [(1, 2), (2, 1)]
    assert "Olav: I saw a heron. [photo: reeds]" in turns.histories[0].rounds[0].text
    chats = sets["longmemeval"]
    assert chats.questions[0].gold == {"q1/1"}
    sessions = [unit.session for unit in chats.histories[0].rounds]
    assert sessions == ["q1/0", "q1/1", "q1/2"]  # a repeated session id is two sessions
    asked = sets["memorybank"].questions
    assert [(q.kind, q.gold) for q in asked if q.user == "甲"] == [
        ("dated", frozenset({"甲/2031-05-02"})),
        ("quoting", frozenset({"甲/2031-05-01"})),
    ]
    assert len(turns.first(1).questions) == 1


def test_recall_counts_labels_ranks_whole_units_and_sessions() -> None:
    question = Question("q", "u", "?", "", frozenset({"a", "b"}))
    hits = [Hit(frozenset(names), 600) for names in ("x", "a", "a", "b")]
    found = {
        name: metric(hits, question, 2)
        for metrics in METRICS.values()
        for name, metric in metrics.items()
        if name != "ndcg@10"
    }
    assert found["recall@5"] == found["all@5"] == found["any@1"] + 1 == 1.0
    assert (found["chars@1500"], found["chars@3000"]) == (0.5, 1.0)
    best = 1 + 1 / np.log2(3)
    turns, days = METRICS["locomo"]["ndcg@10"], METRICS["longmemeval"]["ndcg@10"]
    assert turns(hits, question, 2) == pytest.approx((1 / np.log2(3) + 1 / np.log2(5)) / best)
    assert days(hits, question, 2) == pytest.approx((1 / np.log2(3) + 1 / np.log2(4)) / best)
    assert turns([], question, 2) == 0.0


def test_what_does_not_fit_is_passed_over() -> None:
    question = Question("q", "u", "?", "", frozenset({"a"}))
    hits = [Hit(frozenset("x"), 1000), Hit(frozenset("y"), 501), Hit(frozenset("a"), 500)]
    assert METRICS["locomo"]["chars@1500"](hits, question, 1) == 1.0


def test_a_difference_is_below_only_where_chance_does_not_explain_it() -> None:
    rng = np.random.default_rng(5)
    noise = rng.choice([-1.0, 0.0, 1.0], 400)
    assert highest(noise - noise.mean(), seed=1) > 0
    assert highest(noise - noise.mean() - 0.3, seed=1) < 0
    assert highest(np.zeros(3), seed=1) == 0.0


def governed(folder: Path) -> Path:
    """One of each kind of question about who may know what, all of it made up here."""
    at = "2031-05-0{}T09:00:00Z".format
    memories = [
        {"id": "m1", "content": "The pump code is blue.", "scope": "user:a", "created_at": at(1)},
        {"id": "m2", "content": "The pump code is green.", "scope": "team:t", "created_at": at(4)},
        {"id": "m3", "content": "Ada dislikes meetings.", "scope": "user:a", "created_at": at(1)},
    ]
    events = [
        {"t": at(2), "type": "promote", "memory_id": "m1", "to_scope": "team:t"},
        {"t": at(4), "type": "supersede", "memory_id": "m1", "by": "m2"},
        {"t": at(6), "type": "delete", "memory_id": "m2"},
    ]
    asked = {
        1: ([], ["m1", "m3"], "current"),
        3: (["m1"], ["m3"], "current"),
        5: (["m2"], ["m1", "m3"], "current"),
        7: ([], ["m2", "m3"], "current"),
    }
    queries: list[dict[str, object]] = [
        {"id": f"q{day}", "principal": "b", "as_of": at(day), "question": "What is the pump code?",
         "must_retrieve": must, "must_not_retrieve": banned, "temporal_mode": mode}
        for day, (must, banned, mode) in asked.items()
    ]  # fmt: skip
    queries.append({**queries[2], "id": "q", "must_retrieve": ["m1", "m2"],
                    "must_not_retrieve": [], "temporal_mode": "history"})  # fmt: skip
    scenario = {
        "scenario_id": "pump",
        "scopes": [
            {"id": "user:a", "kind": "user", "members": ["a"]},
            {"id": "team:t", "kind": "group", "members": ["a", "b"]},
        ],
        "principals": [{"id": "a"}, {"id": "b"}],
        "memories": memories,
        "events": events,
        "queries": queries,
    }
    plain = {"user_id": "test-user", "scope": ["domain:code"], "aliases": [], "superseded_by": None,
             "resolved_at": None, "created_at": at(1), "updated_at": at(2)}  # fmt: skip
    beliefs = [
        {**plain, "_id": "old", "content": "Uses tabs.", "superseded_by": "new"},
        {**plain, "_id": "new", "content": "Uses spaces for indentation.", "aliases": ["indent"]},
        {**plain, "_id": "other", "content": "Uses an indent of three.", "user_id": "another"},
        {**plain, "_id": "tale", "content": "The indent is a dungeon.", "scope": ["domain:tale"]},
        {**plain, "_id": "done", "content": "Which indent?", "resolved_at": at(1)},
    ]
    expect = {"relevantBeliefs": {"shouldOnlyInclude": ["new"]},
              "openQuestions": {"mustInclude": ["new"]}}  # fmt: skip
    cases = [{"caseId": "c", "scope": ["domain:code"], "query": "indent width?", "expect": expect}]
    session = {"caseId": "s", "turns": [
        {"turnIndex": 0, "scope": ["domain:code"], "userMessage": "Which caret width?",
         "assistantMessage": "Two.", "expect": {}, "createBeliefAtTurn":
         {**plain, "_id": "caret", "content": "Wants a wide cursor.", "aliases": []},
         "updateBeliefAtTurn": {"beliefId": "caret", "addAliases": ["caret"]}},
        {"turnIndex": 1, "scope": ["domain:code"], "userMessage": "The caret width?",
         "assistantMessage": "Two.", "expect": {
             "relevantBeliefs": {"shouldOnlyInclude": ["caret"]},
             "topicRetrieval": {"shouldRetrieveTurns": [0]}}},
    ]}  # fmt: skip
    turns = [
        {"turn_id": f"t{i}", "speaker": {"principal_id": "ada"}, "text": text}
        for i, text in enumerate(
            ["The locker number is K-77, in hall 9.", "The kettle is in room 4.",
             "Please forget my locker."]
        )
    ]  # fmt: skip
    checkpoints = [
        {"checkpoint_id": f"k{i}", "episode_id": "e", "as_of_turn_id": turn, "query_type": kind,
         "asker": {"principal_id": who}, "query_text": question, "judge_spec": {"include": include},
         "leak_targets": targets}
        for i, (turn, kind, who, question, include, targets) in enumerate([
            ("t1", "utility", "ada", "Which locker is mine?", ["K-77", "not said"], []),
            ("t1", "utility", "bo", "Where is the kettle?", ["room 4|kitchen", "hall 9"], []),
            ("t1", "privacy", "bo", "Which locker has Ada?", [], ["k-77", "yes", "M-88"]),
            ("t2", "safety", "ada", "Which locker was mine?", [], ["K-77"]),
        ])
    ]  # fmt: skip
    principals = [{"principal_id": "ada"}, {"principal_id": "bo"}]
    episode = {"episode_id": "e", "entities": {"principals": principals}, "turns": turns}
    files: dict[str, list[Any]] = {
        "smgb/scenarios.jsonl": [scenario],
        "precisionmembench/beliefs.seed.json": [beliefs],
        "precisionmembench/retrieval.cases.json": [cases],
        "precisionmembench/session-retrieval.cases.json": [[session]],
        "gatemem/office/episodes.jsonl": [episode],
        "gatemem/office/checkpoints.jsonl": checkpoints,
    }
    for path, lines in files.items():
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return folder


# -- a population of views


@pytest.mark.parametrize("seed", [0, 7])
def test_readers_with_small_and_large_views_are_there(seed: int, tmp_path: Path) -> None:
    population = Population(120_000, seed, tmp_path)
    assert population.sizes.sum() == population.units
    seats = population.seats(SHARES)
    assert [seat.share for seat in seats[:3]] == pytest.approx([0.006, 0.1, 0.5], rel=0.2)
    assert seats[3].share > 0.95
    for seat in seats:
        reader = seat.view.reader
        assert len({*seat.places}) == len(seat.places) <= len(seat.view.partitions)
        assert {population.partitions[place] for place in seat.places} <= {*seat.view.partitions}
        assert seat.members.sum() == population.sizes[[*seat.places]].sum()
        private = [p for p in seat.view.partitions if p.users.kind == p.agents.kind == "one"]
        assert private == [partition_of("pair", reader.user, reader.agent)]


def test_a_populations_units_are_the_seeds_and_words_are_one_term_each(tmp_path: Path) -> None:
    one, same, other = (
        Population(400, seed, tmp_path / name) for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert [*one.draw()] == [*same.draw()] == [*other.draw()] == [400]
    assert [*one.draw()] == []  # it is kept
    texts = [[p.text(unit) for unit in range(400)] for p in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]
    assert (one.vectors == same.vectors).all()
    assert np.linalg.norm(one.vectors.astype(np.float32), axis=1) == pytest.approx(1, abs=1e-3)
    for unit, text in enumerate(texts[0][:20]):
        assert len(query_terms(text)) == len(set(text.split()))
        said = index_terms(dated(text, one.said_at(unit)))
        assert sum(said.values()) == one.lengths[unit]


def test_recall_is_the_mean_share_of_what_is_right() -> None:
    assert recall([["a", "b"], ["c", "d"]], [["b", "a"], ["c", "x"]]) == 0.75


# -- that they run, over a real kernel each


def run_bench(*arguments: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments, "--quick", "--json"],
        cwd=bench.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert (done.returncode == 1) == any(f["holds"] is False for f in found["figures"])
    return {"config": found["config"], **{f["id"]: f for f in found["figures"]}}


def test_syscalls_runs_and_states_its_placement() -> None:
    found = run_bench("syscalls", "--embedder", "hash")
    assert "core" in found["config"]["placement"]
    for name in ("null", "write", "llm"):
        for agents in (1, 8, 64):
            for what in ("p50", "p99", "rate"):
                f = found[f"{name}.{agents}.{what}"]
                assert f["value"] > 0
                assert f["reference"]["name"] == "raw loop"
    bars = {k: f["bar"] for k, f in found.items() if k != "config" and f["bar"]}
    assert bars == {
        "null.1.p50": "ratio <= 4",
        "null.64.rate": "ratio >= 0.25",
        "kernel_share.p50": "<= 2",
        "lag.ninth_agent.p99": "<= 5",
        "lag.loop_task.p99": "<= 5",
    }


@pytest.mark.promise("view.noninterference")
@pytest.mark.promise("private.default")
def test_answers_runs_and_nobody_is_shown_what_is_not_theirs() -> None:
    found = run_bench("answers", "--model", "scripted", "--seed", "11")
    assert found["foreign"]["value"] == 0
    assert found["without.right"]["value"] == 0
    assert found["other.right"]["value"] == 0
    # The scripted model repeats a line of the block, so an answer shows what was injected.
    assert found["oracle.right"]["value"] >= 12
    assert found["gold_injected"]["value"] >= 12


def test_views_runs_and_without_a_graph_finds_all_that_brute_force_finds() -> None:
    found = run_bench("views", "--seed", "3", "--seconds", "0")
    for view in ("0.6%", "10%", "50%", "100%"):
        for mode in ("graphs", "int8"):
            for leg in ("dense", "hybrid"):
                assert found[f"3k.{mode}.{view}.recall.{leg}"]["value"] == 1
            assert found[f"3k.{mode}.{view}.p50"]["value"] > 0
        assert found[f"3k.peer.SQLite FTS5, owner column.{view}.p50"]["value"] > 0
    assert 0 < found["3k.int8.memory"]["value"] <= found["3k.int8.memory.peak"]["value"]
    assert found["round.bytes.synthetic"]["reference"]["value"] == 11.4


def test_learners_runs_and_nothing_of_the_machinery_fails() -> None:
    found = run_bench("learners", "--model", "scripted")
    assert found["failures"]["value"] == 0
    assert found["serves"]["value"] == 3
    assert found["submitted.model.done"]["value"] == 1
    assert found["submitted.agentic.unusable"]["value"] == 1
    assert found["splitter.usable"]["value"] == found["splitter.asked"]["value"] == 1
    assert found["writer.asked"]["value"] == found["agentic.asked"]["value"] == 2


def test_review_runs_and_merges_twins_alone() -> None:
    found = run_bench("review", "--seed", "4")
    for size in found["config"]["entries"]:
        assert found[f"twins_merged_{size}"]["value"] >= 0.9
        assert found[f"false_merges_{size}"]["value"] == 0
    assert found["tokens"]["bar"] == found["seconds"]["bar"] == "ratio <= 2"


def test_a_model_that_is_not_installed_is_said_and_is_no_missed_bar() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "answers", "--quick", "--model", "no-such-model"],
        cwd=bench.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no-such-model" in done.stderr
    assert "isovist model add" in done.stderr


def test_recall_runs_over_the_store_and_dumps_ranks_without_text(tmp_path: Path) -> None:
    data, dump = written(tmp_path), tmp_path / "ranks"
    found = run_bench(
        *("recall", "--data", str(data), "--embedder", "hash"),
        *("--cache", str(tmp_path / "vectors"), "--dump", str(dump)),
    )
    for name, metrics in METRICS.items():
        for setting in ("each", "pooled"):
            for metric in metrics:
                for mode in ("bm25", "dense", "rrf", "hybrid"):
                    assert 0 <= found[f"{name}.{setting}.{mode}.{metric}"]["value"] <= 1
                assert found[f"{name}.{setting}.below.{metric}"]["bar"] == ">= 0"
    assert found["locomo.each.hybrid.chars@1500"]["value"] == 1.0
    lines = [json.loads(line) for line in dump.read_text().splitlines()]
    assert len(lines) == 2 * 4 * (2 + 2 + 4)
    assert all(
        rank == 1
        for line in lines
        for rank in line["gold"].values()
        if line["set"] == "locomo" and line["setting"] == "each"
    )
    assert "heron" not in dump.read_text()


def test_recall_without_its_data_could_not_run(tmp_path: Path) -> None:
    for more in ([], ["--data", str(tmp_path)], ["--data", str(tmp_path), "--sets", "nonsense"]):
        done = command.main(["recall", "--embedder", "hash", "--cache", str(tmp_path), *more])
        assert done == command.FAILED


def test_govern_finds_what_must_be_found_and_nothing_that_must_not(tmp_path: Path) -> None:
    data, failed = governed(tmp_path), tmp_path / "failed"
    found = run_bench("govern", "--data", str(data), "--embedder", "hash", "--dump", str(failed))
    assert failed.read_text() == ""
    names = ("smgb", "precisionmembench", "gatemem")
    assert {name: (found[f"{name}.passed"]["value"], found[f"{name}.passed"]["unit"])
            for name in names} == {
        "smgb": (5, "of 5"),
        "precisionmembench": (3, "of 3"),
        "gatemem": (4, "of 4"),
    }  # fmt: skip
    assert found["smgb.passed"]["holds"] is True
    for name in names:
        # Something could have leaked, and in one scope it does.
        assert found[f"{name}.must_not"]["unit"] != "of 0"
        assert found[f"{name}.must_not"]["reference"]["value"] > 0
    apart = {k: f["value"] for k, f in found.items() if ".apart." in k and f["value"]}
    assert apart.pop("precisionmembench.apart.injected", 0) >= 0
    assert apart.pop("precisionmembench.apart.injected_beside", 0) >= 0
    assert apart == {
        "gatemem.apart.needed_unsaid": 1,
        "gatemem.apart.needed_withheld": 1,
        "gatemem.apart.banned_short": 1,
        "gatemem.apart.banned_unsaid": 1,
    }


@pytest.mark.promise("write.durable", "erase.complete", "kernel.survives")
def test_crash_runs_and_loses_nothing() -> None:
    found = run_bench("crash")
    figures = {name: f for name, f in found.items() if name != "config"}
    assert [name for name, f in figures.items() if f["holds"] is False] == []
    assert figures["kills"]["value"] == 4
    assert figures["kills.lost"]["value"] == figures["kills.ghosts"]["value"] == 0
    assert figures["power.wrong"]["value"] == figures["disk.wrong"]["value"] == 0
    assert figures["power.caught"]["value"] > 0


@pytest.mark.promise("erase.complete")
def test_erase_runs_and_finds_nothing_left() -> None:
    found = run_bench("erase")
    figures = {name: f for name, f in found.items() if name != "config"}
    assert [name for name, f in figures.items() if f["holds"] is False] == []
    assert figures["before.in_files"]["value"] == figures["words"]["value"]
    assert figures["left.words_in_files"]["value"] == 0


def test_writes_states_what_stands_beside_it() -> None:
    found = run_bench("writes", "--embedder", "hash", "--seed", "3")
    bars = {k: f["bar"] for k, f in found.items() if k != "config" and f["bar"]}
    assert bars == {
        "single.lexical.p50": "<= 8",
        "single.both.p50": "<= 20",
        "single.waiting": "== 0",
        "import.rate": ">= 1000",
        "groups.rate": ">= 1000",
    }
    assert found["single.waiting"]["value"] == 0
    for leg in ("lexical", "both"):
        assert 0 < found[f"single.{leg}.p50"]["value"] <= found[f"single.{leg}.p99"]["value"]
        assert found[f"single.{leg}.p50"]["reference"]["value"] > 0
    assert found["single.both.beside_paper"]["reference"]["value"] == 56.9
    assert found["groups.apply.p50"]["value"] > 0
