"""Quotas: who is refused, and that the time named for the next try is exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isovist.scheduler.quota import MINUTE, Allowances, Bucket, Limit, Quotas, Refusal

A = ("agent", "a")


def refused(quotas: Quotas, tokens: int, now: int, *names: tuple[str, str]) -> Refusal:
    refusal = quotas.refusal(names or (A,), tokens, now)
    assert refusal is not None
    return refusal


def admitted(quotas: Quotas, key: int, tokens: int, now: int, *names: tuple[str, str]) -> bool:
    """Try; true iff it was admitted."""
    if quotas.refusal(names or (A,), tokens, now) is not None:
        return False
    quotas.admit(key, names or (A,), tokens, now)
    return True


@given(
    rate=st.integers(1, 10**7),
    taken=st.lists(st.tuples(st.integers(0, 3 * MINUTE), st.integers(1, 10**7)), max_size=8),
    share=st.floats(0.001, 1.0),
)
def test_the_retry_instant_is_exact(rate: int, taken: list[tuple[int, int]], share: float) -> None:
    """At that instant there is enough, one nanosecond before there is not."""
    bucket, now, tokens = Bucket(rate, 0), 0, max(1, int(rate * share))
    for gap, wanted in taken:
        now += gap
        bucket.take(wanted, now)
    at = bucket.when(tokens, now)
    assert at >= now
    if at > now:
        assert bucket.when(tokens, at - 1) == at
    assert bucket.when(tokens, at) == at


@given(
    rate=st.integers(1, 1000),
    tries=st.lists(st.tuples(st.integers(0, MINUTE), st.integers(1, 1000)), max_size=40),
)
def test_no_window_takes_more_than_its_worth(rate: int, tries: list[tuple[int, int]]) -> None:
    bucket, now, granted = Bucket(rate, 0), 0, list[tuple[int, int]]()
    for gap, tokens in tries:
        now += gap
        if tokens <= rate and bucket.when(tokens, now) == now:
            bucket.take(tokens, now)
            granted.append((now, tokens))
    for i, (start, _) in enumerate(granted):
        for j in range(i, len(granted)):
            end = granted[j][0]
            taken = sum(tokens for _, tokens in granted[i : j + 1])
            assert taken * MINUTE <= rate * (MINUTE + end - start)


def test_a_call_is_admitted_at_the_instant_it_was_told() -> None:
    quotas = Quotas(Allowances({"agent": {"a": Limit(tokens=600)}}))
    assert admitted(quotas, 1, 600, 5)
    at = refused(quotas, 100, 5).at
    assert at == 5 + 10_000_000_000
    assert refused(quotas, 100, at - 1).at == at
    assert admitted(quotas, 2, 100, at)


def test_what_was_not_used_is_given_back_and_prompts_are_paid_for() -> None:
    quotas = Quotas(Allowances({"agent": {"a": Limit(tokens=600)}}))
    assert admitted(quotas, 1, 600, 0)
    quotas.take(1, 50, 0)
    quotas.end(1, 30, 0)
    assert admitted(quotas, 2, 520, 0)
    assert refused(quotas, 1, 0).at == MINUTE // 600
    quotas.end(1, 30, 0)  # ended already: no effect
    assert refused(quotas, 1, 0).at == MINUTE // 600
    quotas.validate()


def test_calls_and_queue_are_counted_apart() -> None:
    quotas = Quotas(Allowances({"agent": {"a": Limit(calls=3, queue=2)}}))
    assert admitted(quotas, 1, 9, 0)
    assert admitted(quotas, 2, 9, 0)
    assert "waiting" in refused(quotas, 9, 0).why
    quotas.begin(1)
    quotas.begin(1)  # again, after its driver died
    assert admitted(quotas, 3, 9, 0)
    quotas.begin(2)
    refusal = refused(quotas, 9, 0)
    assert (refusal.at, refusal.never) == (None, False)
    assert "outstanding" in refusal.why
    quotas.end(3, 0, 0)
    assert admitted(quotas, 4, 9, 0)
    quotas.validate()


def test_all_gates_or_none() -> None:
    """Who is refused at one gate has taken nothing at the others; the latest time counts."""
    quotas = Quotas(
        Allowances(
            {
                "agent": {"a": Limit(tokens=60)},
                "user": {"*": Limit(tokens=30)},
                "model": {"m": Limit(calls=1)},
            }
        )
    )
    one, other, model = ("user", "ana"), ("user", "bob"), ("model", "m")
    assert admitted(quotas, 1, 30, 0, A, one)
    assert refused(quotas, 30, 0, A, one).at == MINUTE
    assert admitted(quotas, 3, 30, 0, A, other, model)
    assert refused(quotas, 30, 0, A, other).at == MINUTE
    assert refused(quotas, 30, 0, A, other, model).at is None
    quotas.validate()


def test_what_can_never_be_is_said() -> None:
    quotas = Quotas(Allowances({"agent": {"*": Limit(tokens=100)}}))
    refusal = refused(quotas, 101, 0)
    assert refusal.never
    assert "100 tokens a minute" in refusal.why
    assert "101" in refusal.why


def test_a_name_of_its_own_goes_before_everybody() -> None:
    quotas = Quotas(Allowances({"agent": {"*": Limit(calls=1), "a": Limit()}}))
    assert all(admitted(quotas, key, 9, 0) for key in range(5))
    assert admitted(quotas, 9, 9, 0, ("agent", "b"))
    refused(quotas, 9, 0, ("agent", "b"))
    assert admitted(quotas, 11, 9, 0, ("agent", "c"))


def test_names_that_are_quiet_again_are_forgotten() -> None:
    quotas = Quotas(Allowances({"agent": {"*": Limit(tokens=60, calls=1)}}))
    for key in range(3000):
        now = key * MINUTE
        assert admitted(quotas, key, 60, now, ("agent", f"a{key}"))
        quotas.end(key, 60, now)
    assert len(vars(quotas)["_gates"]) <= 200
