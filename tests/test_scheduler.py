"""The policies: what each promises, on histories that nobody wrote by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random

import msgspec
import pytest
from bench import __main__ as command
from hypothesis import given, settings
from hypothesis import strategies as st

from isovist.scheduler import traces
from isovist.scheduler.bounds import Fairness, excess
from isovist.scheduler.choice import DEFAULT, POLICIES, changed, make_policy
from isovist.scheduler.policy import INPUT, OUTPUT, Job, Load, Policy
from isovist.scheduler.ranked import Fifo, Priority
from isovist.scheduler.shared import Deadline, FairShare, RoundRobin, Shared
from isovist.scheduler.simulation import Simulation, simulate
from isovist.scheduler.traces import SECOND, Arrival
from isovist.syscalls.errors import CallerError

ALL = list(POLICIES)
SHARING: list[type[Shared]] = [RoundRobin, FairShare, Deadline]


def job(key: int, client: str = "a", **more: float) -> Job:
    fields = {"prompt_tokens": 1, "max_tokens": 9, "at": key, **more}
    return msgspec.convert({"key": key, "client": client, **fields}, Job)


def drain(policy: Policy) -> list[int]:
    """Run all that waits, one after the other."""
    keys: list[int] = []
    while (picked := policy.pick(0)) is not None:
        keys.append(picked.key)
        policy.leave(picked.key)
    return keys


arrivals = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 20 * SECOND),
        client=st.sampled_from("abcd"),
        prompt=st.integers(1, 300),
        output=st.integers(1, 40),
        max_tokens=st.just(40),
        priority=st.integers(0, 9),
        patience=st.sampled_from([0, 0, SECOND, 30 * SECOND]),
        in_turn=st.booleans(),
    ),
    min_size=1,
    max_size=40,
).map(traces.in_order)
weights = st.fixed_dictionaries({c: st.sampled_from([0.5, 1.0, 2.0, 5.0]) for c in "abcd"})


def weighted(trace: list[Arrival], shares: dict[str, float]) -> list[Arrival]:
    return [msgspec.structs.replace(a, weight=shares[a.client]) for a in trace]


# -- bounds


@pytest.mark.promise("fair.progress")
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60, deadline=None)
@given(trace=arrivals, shares=weights, slots=st.integers(1, 5), pauses=st.booleans())
def test_every_policy_keeps_its_bound(
    name: str, trace: list[Arrival], shares: dict[str, float], slots: int, pauses: bool
) -> None:
    """No slot is free while a job waits, every job ends, and service differs by what it may."""
    assert excess(POLICIES[name], weighted(trace, shares), slots=slots, pauses=pauses) <= 1


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_on_mixed_traces(seed: int) -> None:
    rng = Random(seed)
    trace, slots = traces.mixed(rng), rng.choice((1, 2, 4, 8))
    for make in POLICIES.values():
        for pauses in (True, False):
            assert excess(make, trace, slots=slots, pauses=pauses) <= 1


@pytest.mark.parametrize("pauses", [True, False])
def test_the_watch_finds_a_policy_that_is_not_fair(pauses: bool) -> None:
    """Were its bound that of fair share, first come first served would break it."""

    class Claims(Fifo):
        def lead(self, load: Load, weight: float) -> float:
            return FairShare().lead(load, weight)

    trace = [Arrival(0, "greedy", 1, 9, 9) for _ in range(90)]
    trace += [Arrival(1, "late", 1, 9, 9) for _ in range(9)]
    watch = Fairness(Claims, trace, 2, pauses)
    simulate(Claims, trace, slots=2, pauses=pauses, watch=watch)
    assert max(watch.worst, watch.longest) > 1


@pytest.mark.parametrize("make", SHARING)
def test_what_was_served_while_nobody_waited_is_held_against_nobody(make: type[Shared]) -> None:
    """Long alone, then both want more than there is: it is not the newcomer's turn for long."""
    long = [Arrival(0, "alone", 1, 2000, 2000) for _ in range(4)]
    both = [Arrival(5 * SECOND, c, 1, 20, 2000) for _ in range(60) for c in ("alone", "new")]
    assert excess(make, traces.in_order(long + both), slots=4, pauses=True) <= 1


def test_bounds_do_not_grow_with_the_backlog() -> None:
    load = Load(prompt=100, output=50, slots=4, pauses=True)
    slow = msgspec.structs.replace(load, pauses=False)
    assert FairShare().lead(load, 1) == 100 * INPUT + 4 * OUTPUT
    assert FairShare().lead(slow, 1) == 100 * INPUT + 4 * 50 * OUTPUT
    assert FairShare().lead(load, 2) < FairShare().lead(load, 1)
    assert RoundRobin().lead(load, 1) == RoundRobin().quantum + 100 * INPUT + 4 * OUTPUT
    assert Deadline().lead(load, 1) == Deadline().slack + FairShare().lead(load, 1)
    assert Fifo().lead(load, 1) == Priority().lead(load, 1) == inf


# -- the order of the policies


@pytest.mark.promise("fair.progress")
@pytest.mark.parametrize("seed", range(3))
def test_a_short_question_does_not_wait_behind_long_texts(seed: int) -> None:
    trace = traces.beside(Random(seed), seconds=60)

    def p95(name: str) -> float:
        served = simulate(POLICIES[name], trace, slots=4, until=60 * SECOND)
        waits = sorted(
            s.first - s.offered for s in served if s.first and s.arrival.client == "interactive"
        )
        return waits[int(0.95 * len(waits))]

    fifo = p95("fifo")
    assert p95("fair") <= 0.25 * fifo
    assert p95("priority") <= 0.25 * fifo
    assert p95("deadline") <= 0.25 * fifo


@pytest.mark.parametrize("make", SHARING)
@pytest.mark.parametrize("pauses", [True, False])
def test_a_weight_of_two_gets_twice_the_tokens(make: type[Shared], pauses: bool) -> None:
    totals: Counter[str] = Counter()

    def watch(run: Simulation) -> None:
        if all(run.waits[client] for client in run.service):
            totals.clear()
            for client, service in run.service.items():
                totals[client[:2]] += service

    simulate(make, traces.weighted(Random(5)), slots=4, pauses=pauses, watch=watch)
    assert 1.9 <= totals["w2"] / totals["w1"] <= 2.1


# -- order


def test_fifo_serves_in_order() -> None:
    policy = Fifo()
    for key in (3, 1, 2):
        policy.offer(job(key, at=0))
    assert policy.preempt(0) is None
    assert drain(policy) == [1, 2, 3]  # at one instant, by key


def test_a_level_is_worth_its_age() -> None:
    policy = Priority(age=10)
    for key, (at, priority) in enumerate([(0, 0), (9, 1), (11, 1), (19, 2), (30, 2)]):
        policy.offer(job(key, at=at, priority=priority))
    assert drain(policy) == [1, 3, 0, 2, 4]


def test_priority_pauses_a_lower_level_only() -> None:
    policy = Priority()
    policy.offer(job(1, priority=3))
    policy.pick(0)
    policy.charge(1, 1)
    policy.offer(job(2, priority=3))
    assert policy.preempt(0) is None
    policy.offer(job(3, priority=4))
    assert policy.preempt(0) == 1


@pytest.mark.parametrize("make", SHARING)
def test_who_was_idle_has_saved_nothing_up(make: type[Shared]) -> None:
    """The counter lift: one that comes late gets no more than its share from then on."""
    policy = make()
    for key in range(1000):
        policy.offer(job(key, "busy", prompt_tokens=100))
    for _ in range(500):
        picked = policy.pick(0)
        assert picked is not None
        policy.leave(picked.key)
    for key in range(1000, 2000):
        policy.offer(job(key, "late", prompt_tokens=100))
    served = Counter("late" if key >= 1000 else "busy" for key in drain(policy)[:200])
    assert abs(served["late"] - served["busy"]) <= 2


@pytest.mark.parametrize("make", SHARING)
def test_debts_outlive_a_short_absence(make: type[Shared]) -> None:
    policy = make()
    policy.offer(job(1, "long", prompt_tokens=5000))
    policy.offer(job(2, "other", prompt_tokens=10))
    assert policy.pick(0) == job(1, "long", prompt_tokens=5000)
    policy.leave(1)
    policy.offer(job(3, "long"))
    for key in range(4, 40):
        policy.offer(job(key, "other", prompt_tokens=10))
    assert drain(policy)[-1] == 3


def test_the_paused_job_of_a_client_goes_on_before_its_others() -> None:
    policy = FairShare()
    for key in (1, 2, 3):
        policy.offer(job(key))
    policy.pick(0)
    policy.charge(1, 5)
    policy.pause(1)
    assert drain(policy) == [1, 2, 3]


def test_a_new_job_pauses_one_ahead_at_once_and_a_paused_one_after_a_quantum() -> None:
    policy = FairShare(quantum=20)
    policy.offer(job(1, "a"))
    policy.pick(0)
    policy.offer(job(2, "b"))
    assert policy.preempt(0) is None  # job 1 has not made a token
    policy.charge(1, 1)
    assert policy.preempt(0) == 1
    policy.pause(1)
    assert policy.pick(0) == job(2, "b")
    policy.charge(2, 11)  # b: 1 + 22, a: 1 + 2
    assert policy.preempt(0) is None
    policy.charge(2, 1)
    assert policy.preempt(0) == 2


def test_a_client_is_served_for_its_quantum_then_the_next() -> None:
    policy = RoundRobin(quantum=10)
    for key in range(12):
        policy.offer(job(key, "ab"[key % 2], prompt_tokens=5))
    served = ["ab"[key % 2] for key in drain(policy)]
    assert served == ["a", "a", "b", "b"] * 3


def test_a_deadline_brings_forward_within_the_slack_only() -> None:
    policy = Deadline(slack=50)
    for key in range(20):
        policy.offer(job(key, "calm", prompt_tokens=10))
        policy.offer(job(100 + key, "urgent", prompt_tokens=10, deadline=1))
    order = drain(policy)
    ahead = 0
    for key in order[:20]:
        ahead += 10 if key >= 100 else -10
        assert ahead <= 60, "the slack and one job"
    assert all(key >= 100 for key in order[:6])


def test_the_earliest_deadline_goes_first() -> None:
    policy = Deadline()
    for key, deadline in enumerate([0, 300, 100, 200]):
        policy.offer(job(key, "abcd"[key], deadline=deadline))
    assert drain(policy) == [2, 3, 1, 0]


# -- any policy


@pytest.mark.promise("fair.progress")
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nothing_is_lost_or_doubled_whatever_happens(name: str, data: st.DataObject) -> None:
    """Offers, picks, pauses, ends and changes of policy in any order, against plain sets."""
    policy, waiting, running, key = make_policy(name), set[int](), set[int](), 0
    for now in range(data.draw(st.integers(1, 60))):
        deed = data.draw(st.sampled_from(["offer", "offer", "pick", "charge", "end", "change"]))
        if deed == "offer":
            key += 1
            client, deadline = data.draw(st.sampled_from("abc")), data.draw(st.sampled_from([0, 9]))
            policy.offer(job(key, client, at=now, priority=key % 10, deadline=deadline))
            waiting.add(key)
        elif deed == "pick":
            picked = policy.pick(now)
            assert (picked is None) == (not waiting), "work-conserving"
            if picked is not None:
                waiting.remove(picked.key)
                running.add(picked.key)
        elif deed == "charge" and running:
            policy.charge(
                data.draw(st.sampled_from(sorted(running))), data.draw(st.integers(1, 99))
            )
            paused = policy.preempt(now)
            if paused is not None:
                policy.pause(paused)
                running.remove(paused)
                waiting.add(paused)
                picked = policy.pick(now)
                assert picked is not None
                assert picked.key != paused
                waiting.remove(picked.key)
                running.add(picked.key)
        elif deed == "end" and waiting | running:
            ended = data.draw(st.sampled_from(sorted(waiting | running)))
            assert policy.leave(ended) == (ended in waiting)
            waiting.discard(ended)
            running.discard(ended)
        elif deed == "change":
            before = policy.statistics()
            policy = changed(policy, data.draw(st.sampled_from(ALL)))
            after = policy.statistics()
            assert after.picked == before.picked
            assert after.output_tokens == before.output_tokens
        assert {j.key for j in policy.waiting()} == waiting
        assert {j.key for j in policy.running()} == running
        assert len(policy) == len(waiting)
    assert set(drain(policy)) == waiting
    assert not policy.leave(key + 1)


@pytest.mark.parametrize("old", ALL)
@pytest.mark.parametrize("new", ALL)
def test_a_policy_takes_over_what_another_holds(old: str, new: str) -> None:
    policy = make_policy(old)
    for key in range(9):
        policy.offer(job(key, "abc"[key % 3], prompt_tokens=7))
    for _ in range(3):
        policy.pick(0)
    for running in policy.running():
        policy.charge(running.key, 4)
    paused = policy.running()[0].key
    policy.pause(paused)
    held = {j.key for j in policy.waiting()}, {j.key for j in policy.running()}
    policy = changed(policy, new)
    assert policy.name == new
    assert ({j.key for j in policy.waiting()}, {j.key for j in policy.running()}) == held
    prompts = policy.statistics().prompt_tokens
    assert sorted(drain(policy)) == sorted(held[0])
    # The paused job had paid for its prompt: only those that begin now pay.
    assert policy.statistics().prompt_tokens - prompts == 7 * (len(held[0]) - 1)


@pytest.mark.parametrize("name", ALL)
def test_what_has_come_and_gone_is_forgotten(name: str) -> None:
    """Any number of clients that came leaves nothing behind."""
    policy = make_policy(name)
    policy.offer(job(0, "stays"))
    for key in range(1, 3000):
        policy.offer(job(key, f"c{key}", deadline=key))
        policy.leave(key)
    assert policy.statistics().clients.keys() == {"stays"}
    sizes = [len(v) for v in vars(policy).values() if hasattr(v, "__len__")]
    assert max(sizes) <= 200


@pytest.mark.parametrize("name", ALL)
def test_statistics_tell_who_waits(name: str) -> None:
    policy = make_policy(name)
    policy.offer(job(1, "a", prompt_tokens=5))
    policy.offer(job(2, "b"))
    policy.offer(job(3, "b"))
    policy.pick(0)
    policy.charge(1, 3)
    policy.charge(99, 3)  # not known
    s = policy.statistics()
    assert (s.waiting, s.running, s.offered, s.picked, s.paused) == (2, 1, 3, 1, 0)
    assert (s.prompt_tokens, s.output_tokens) == (5, 3)
    assert s.clients["b"].waiting == 2
    assert s.clients["a"].running == 1
    assert s.clients["a"].ahead == (11.0 if isinstance(policy, Shared) else 0.0)


def test_policies_go_by_name() -> None:
    assert all(make().name == name for name, make in POLICIES.items())
    assert DEFAULT in POLICIES
    with pytest.raises(CallerError, match="there are: fifo") as e:
        make_policy("lottery")
    assert e.value.field == "policy"


# -- the simulator


def test_a_seed_gives_the_same_trace_and_run() -> None:
    makers: list[Callable[[Random], list[Arrival]]] = [
        traces.mixed,
        traces.beside,
        traces.weighted,
        lambda rng: traces.poisson(rng, 30, rate=3),
        lambda rng: traces.bursts(rng, 30, rate=3),
    ]
    for make in makers:
        assert make(Random(1)) == make(Random(1))
        assert make(Random(1)) != make(Random(2))
    trace = traces.mixed(Random(1))
    assert simulate(FairShare, trace, slots=2) == simulate(FairShare, trace, slots=2)


def test_a_step_costs_what_the_model_says() -> None:
    """One call alone: one step reads its prompt and makes a token, each other makes one."""
    (served,) = simulate(Fifo, [Arrival(7, "a", 10, 3, 9)], slots=1)
    first = 4_200_000 + 10 * 750_000 + 1_450_000
    assert (served.picked, served.first) == (7, 7 + first)
    assert served.ended == served.first + 2 * (4_200_000 + 1_450_000)


def test_the_bench_holds_its_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["schedule", "--json", "--quick", "--agents", "40", "--seeds", "3"]) == 0
    figures = {f["id"]: f for f in msgspec.json.decode(capsys.readouterr().out)["figures"]}
    assert figures["beside.pausing.fair.ttft.p95"]["ratio"] <= 0.25
    assert {f"bounds.{name}.worst" for name in ALL} <= figures.keys()
