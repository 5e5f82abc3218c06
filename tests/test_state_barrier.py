"""The write barrier: watermarks, waiting, void numbers, lost vectors, and its heaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_helpers import MAIL, MS, PLAN, Desk, chat, pair

from isovist.kernel.state import instructions as ins
from isovist.kernel.state.barrier import Barrier, Watermark
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Restored
from isovist.syscalls.records import LEGS

P, Q = pair("ana", "mail"), pair("bob", "mail")


@given(st.permutations(range(1, 12)), st.lists(st.integers(1, 12)))
def test_a_watermark_rises_over_whole_runs_only(order: list[int], again: list[int]) -> None:
    mark, seen = Watermark(), set[int]()
    for number in [*order, *again]:
        mark.add(number)
        seen.add(number)
        missing = next(n for n in range(1, 14) if n not in seen)
        assert mark.value == missing - 1
        assert mark.early == {n for n in seen if n > mark.value}


def test_a_call_waits_for_each_leg_of_each_partition_asked() -> None:
    barrier = Barrier()
    first, other = barrier.accept(P), barrier.accept(Q)
    assert barrier.wait(1, (P, Q), LEGS)
    assert barrier.wait(2, (P,), ("lexical",))
    assert not barrier.wait(3, (pair("zoe", "mail"),), LEGS)
    assert barrier.show(P, first, ("lexical",)) == [2]
    assert barrier.show(P, first, ("dense",)) == []
    assert barrier.show(Q, other, LEGS) == [1]
    assert barrier.waiting() == frozenset()
    barrier.validate()


def test_later_writes_hold_nobody_who_came_before() -> None:
    barrier = Barrier()
    first = barrier.accept(P)
    assert barrier.wait(1, (P,), LEGS)
    barrier.accept(P)
    assert barrier.show(P, first, LEGS) == [1]


def test_dead_waiters_do_not_pile_up() -> None:
    barrier = Barrier()
    barrier.accept(P)
    for key in range(500):
        barrier.wait(key, (P,), LEGS)
        if key >= 10:
            barrier.leave(key)
            barrier.validate()
    waiters = barrier._partitions[P].waiters
    assert all(len(heap) <= 10 + 64 for heap in waiters.values())
    assert barrier.show(P, 1, LEGS) == list(range(10))
    assert all(not heap for heap in waiters.values())


def test_dead_waiters_do_not_outlive_the_living() -> None:
    barrier = Barrier()
    for first in (0, 1000):
        barrier.accept(P)
        for key in range(first, first + 70):
            barrier.wait(key, (P,), ("lexical",))
    for key in range(1000, 1070):
        barrier.leave(key)
    assert len(barrier.show(P, 1, ("lexical",))) == 70
    barrier.validate()
    assert barrier._partitions[P].waiters["lexical"] == []


def test_what_is_found_on_disk_lags_where_vectors_lack() -> None:
    barrier = Barrier()
    barrier.restore(P, 5, [(3, "u3"), (5, "u5")])
    assert barrier.accepted(P) == 5
    assert barrier.behind(LEGS, [(P, 2)]) == ()
    assert barrier.behind(LEGS, [(P, 4)]) == ("dense",)
    assert not barrier.wait(1, (P,), ("lexical",))
    assert barrier.wait(2, (P,), LEGS)
    barrier.show(P, 5, ("dense",))
    assert barrier.show(P, 3, ("dense",)) == [2]


def test_a_restored_kernel_goes_on_counting() -> None:
    desk = Desk(restored=[Restored(partition=P, accepted=7, lacking=((7, "u7", 1, ("x",)),))])
    assert desk.remember(MAIL, user="ana").seq == 8
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    assert desk.all(ins.Retrieve) == []


# -- through the door


@pytest.mark.promise("barrier.order")
def test_an_older_unit_of_the_owner_does_not_stand_in() -> None:
    desk = Desk()
    desk.stored(MAIL, user="ana", text="old")
    new = desk.remember(MAIL, user="ana", text="new")
    assert desk.ask(MAIL, m.Search(query="new", user="ana")) is None
    assert desk.all(ins.Retrieve) == []
    desk.commit(new)
    assert desk.all(ins.Retrieve) == []
    desk.embed(new)
    desk.select(new)
    found = desk.reply()
    assert found.barrier.state == "ready"
    assert found.barrier.waited_ms > 0


@pytest.mark.promise("barrier.order")
@pytest.mark.parametrize("scope", ["pair", "user", "agent", "global"])
def test_writes_of_others_in_view_are_waited_for(scope: str) -> None:
    """PLAN writes, and MAIL reads iff the audience admits it."""
    desk = Desk()
    op = desk.remember(PLAN, user="ana", scope=scope, stream="reusable")
    assert op.partition.scope == scope
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    waits = not desk.all(ins.Retrieve)
    assert waits == (scope in ("user", "global"))


@pytest.mark.promise("barrier.order")
def test_a_lost_write_voids_its_number() -> None:
    desk = Desk()
    lost = desk.remember(MAIL, user="ana")
    frame = desk.frame
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    assert desk.all(ins.Retrieve) == []
    desk.refuse(lost)
    assert desk.reply(frame).errno == Errno.ENOSPC
    desk.select()
    assert desk.reply().barrier.state == "ready"
    # Nor does it hold those that come later.
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    assert desk.one(ins.Retrieve)


@pytest.mark.promise("barrier.order")
@pytest.mark.parametrize("request_", [m.Search(query="x", user="ana"), chat(user="ana")])
def test_a_barrier_that_times_out_says_so(request_: m.Search | m.Chat) -> None:
    desk = Desk()
    op = desk.remember(MAIL, user="ana")
    desk.commit(op)
    desk.ask(MAIL, request_)
    desk.sleep(1999 * MS)
    assert desk.all(ins.Retrieve) == []
    desk.sleep(2 * MS)
    desk.select(op)
    if isinstance(request_, m.Chat):
        desk.render()
        desk.up()
        desk.done(desk.one(ins.Decode))
    barrier = desk.reply().barrier
    assert (barrier.state, barrier.lagging) == ("timed_out", ("dense",))
    assert barrier.waited_ms > 2000
    assert desk.one(ins.Audit).record.barrier == barrier


def test_a_stale_answer_is_an_error_where_the_caller_wants_it() -> None:
    desk = Desk()
    desk.remember(MAIL, user="ana")
    desk.ask(MAIL, m.Search(query="x", user="ana", on_stale="error", barrier_ms=5))
    desk.sleep(6 * MS)
    failed = desk.reply()
    assert failed.errno == Errno.ETIMEDOUT
    assert "lexical, dense" in failed.message
    assert desk.one(ins.Audit).record.barrier.lagging == ("lexical", "dense")


@pytest.mark.promise("barrier.order")
def test_a_leg_not_waited_for_is_named_and_is_no_timeout() -> None:
    desk = Desk()
    op = desk.remember(MAIL, user="ana")
    desk.commit(op)
    desk.ask(MAIL, m.Search(query="x", user="ana", wait="lexical", on_stale="error"))
    desk.select(op, lagging=("dense",))
    barrier = desk.reply().barrier
    assert (barrier.state, barrier.lagging) == ("ready", ("dense",))


@pytest.mark.promise("barrier.order")
def test_a_lost_vector_blocks_nobody_and_is_not_hidden() -> None:
    desk = Desk()
    op = desk.remember(MAIL, user="ana")
    desk.commit(op)
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    desk.embed(op, failed=True)
    desk.select(op)
    assert desk.reply().barrier.lagging == ("dense",)
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    desk.select(op)
    assert desk.reply().barrier.state == "timed_out"
    # The same text again is the same unit, and mends nothing ...
    desk.commit(desk.remember(MAIL, user="ana"), id=op.id, chunks=(), duplicate=True)
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    desk.select(op)
    assert desk.reply().barrier.state == "timed_out"
    # ... forgetting it does.
    desk.ask(MAIL, m.Forget(id=op.id, user="ana"))
    desk.select(op)
    desk.commit(desk.one(ins.Commit).op)
    desk.ask(MAIL, m.Search(query="x", user="ana"))
    desk.select()
    assert desk.reply().barrier.state == "ready"


def test_a_partition_given_up_sets_free_once() -> None:
    barrier = Barrier()
    first, other = barrier.accept(P), barrier.accept(Q)
    assert barrier.wait(1, (P, Q), ("lexical",))
    assert barrier.wait(2, (P,), ("lexical",))
    assert not barrier.give_up(1, (P,))
    # What it has given up comes all the same, while it waits for the other.
    assert barrier.show(P, first, LEGS) == [2]
    barrier.validate()
    assert barrier.show(Q, other, LEGS) == [1]
    barrier.validate()


def test_vectors_of_a_unit_that_was_written_anew_mend_nothing() -> None:
    barrier = Barrier()
    first, second = barrier.accept(P), barrier.accept(P)
    barrier.written(P, "u", first, lacks=True)
    barrier.written(P, "u", second, lacks=True)
    barrier.show(P, first, LEGS)
    barrier.show(P, second, LEGS)
    barrier.embedded(P, "u", second, failed=True)
    barrier.embedded(P, "u", first, failed=False)
    assert barrier.behind(LEGS, [(P, 2)]) == ("dense",)
    assert barrier.behind(LEGS, [(P, 1)]) == ()


def test_a_chat_that_looks_nothing_up_waits_for_nothing() -> None:
    desk = Desk()
    desk.remember(MAIL, user="ana")
    for request in (
        chat(user="ana", memory=False), chat(user="ana", units=0), chat(user="ana", budget=0),
        m.Chat(messages=(*chat("x").messages[:0], m.Message("system", "go")), user="ana"),
    ):  # fmt: skip
        desk.ask(MAIL, request)
        assert desk.one(ins.Render).selection.candidates == ()
