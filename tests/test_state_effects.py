"""Effects: one key, one effect; what nobody knows is said to be unknown, and waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ledger_helpers import LedgerDesk, Tables
from state_helpers import MAIL, OPERATOR, PLAN, SECOND

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.effects import Begun
from isovist.syscalls import messages as m
from isovist.syscalls.abi import effects as abi
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.ledger import MAX_ENDED, MAX_OPEN, FindEffects, Recover


@pytest.fixture
def tables() -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.close()


@pytest.fixture
def desk(tables: Tables) -> LedgerDesk:
    return LedgerDesk(tables)


def begin(desk: LedgerDesk, channel: int = PLAN, **fields: Any) -> Any:
    return desk.call(channel, abi.EffectBegin(**{"subject": "pay", "user": "ana", **fields}))


def end(desk: LedgerDesk, id_: str, channel: int = PLAN, **fields: Any) -> Any:
    return desk.call(channel, abi.EffectEnd(**{"id": id_, "user": "ana", **fields}))


def listed(desk: LedgerDesk, channel: int = PLAN, **fields: Any) -> Any:
    return desk.call(channel, abi.EffectList(**{"user": "ana", **fields}))


def test_a_step_goes_from_started_to_done_and_is_done_once(desk: LedgerDesk) -> None:
    begun = begin(desk, key="k", arguments="5 coins")
    assert begun.fresh
    assert begun.effect.state == "started"
    ended = end(desk, begun.effect.id, result="receipt 7")
    assert ended.effect.state == "done"
    assert not ended.fresh
    again = begin(desk, key="k", arguments="5 coins")
    assert not again.fresh
    assert again.effect.id == begun.effect.id
    assert again.effect.result.text == "receipt 7"
    assert again.effect.arguments.text == "5 coins"


def test_the_reply_waits_for_the_record(desk: LedgerDesk) -> None:
    desk.hold = True
    assert begin(desk, key="k") is None
    desk.settle()
    assert desk.word().fresh


def test_a_key_under_way_is_eagain_with_a_time(desk: LedgerDesk) -> None:
    begin(desk, key="k")
    refused = begin(desk, key="k")
    assert (refused.errno, refused.field) == (Errno.EAGAIN, "key")
    assert refused.retry_at > desk.state.calendar()


@pytest.mark.parametrize("other", [{"arguments": "6"}, {"subject": "get"}])
def test_other_arguments_under_a_key_are_an_error(desk: LedgerDesk, other: dict[str, str]) -> None:
    begun = begin(desk, key="k", arguments="5")
    end(desk, begun.effect.id)
    refused = begin(desk, **{"key": "k", "arguments": "5", **other})
    assert (refused.errno, refused.field) == (Errno.EINVAL, "key")


def test_keys_are_those_of_a_pair(desk: LedgerDesk) -> None:
    assert begin(desk, key="k").fresh
    assert begin(desk, key="k", channel=MAIL).fresh
    assert begin(desk, key="k", channel=MAIL, user="bob").fresh


def test_without_a_key_each_is_an_effect_of_its_own(desk: LedgerDesk) -> None:
    first, second = begin(desk), begin(desk)
    assert first.fresh
    assert second.fresh
    assert first.effect.key != second.effect.key


def test_a_failure_is_recorded_and_not_repeated_until_somebody_says_so(desk: LedgerDesk) -> None:
    begun = begin(desk, key="k")
    end(desk, begun.effect.id, state="failed", message="no money")
    again = begin(desk, key="k")
    assert (again.fresh, again.effect.state, again.effect.message) == (False, "failed", "no money")
    said = desk.call(PLAN, abi.EffectResolve(id=begun.effect.id, outcome="retry", user="ana"))
    assert said.effect.state == "retry"
    third = begin(desk, key="k")
    assert third.fresh
    assert third.effect.tries == 2
    assert third.effect.id == begun.effect.id


def test_what_a_crash_found_started_is_unknown_and_waits(tables: Tables) -> None:
    begun = begin(LedgerDesk(tables), key="k", arguments="5")
    tables.one(Recover(at=99))
    desk = LedgerDesk(tables)
    refused = begin(desk, key="k", arguments="5")
    assert (refused.errno, refused.field) == (Errno.ESTALE, "key")
    assert begun.effect.id in refused.message
    (unknown,) = listed(desk, states=("unknown",)).effects
    assert unknown.id == begun.effect.id
    assert unknown.ended_at == 99
    said = desk.call(
        PLAN, abi.EffectResolve(id=unknown.id, outcome="done", result="it was", user="ana")
    )
    assert said.effect.state == "done"
    assert begin(desk, key="k", arguments="5").effect.result.text == "it was"


def test_what_is_idempotent_begins_again_after_a_crash(tables: Tables) -> None:
    begin(LedgerDesk(tables), key="k", idempotent=True)
    tables.one(Recover(at=1))
    again = begin(LedgerDesk(tables), key="k", idempotent=True)
    assert again.fresh
    assert again.effect.tries == 2


def test_that_it_is_idempotent_must_have_been_said_at_first(tables: Tables) -> None:
    begin(LedgerDesk(tables), key="k")
    tables.one(Recover(at=1))
    assert begin(LedgerDesk(tables), key="k", idempotent=True).errno == Errno.ESTALE


def test_a_step_whose_agent_is_gone_is_unknown(desk: LedgerDesk) -> None:
    begun = begin(desk, key="k")
    desk.tell(ev.Detached, channel=PLAN, why="gone")
    desk.attach(9, "plan")
    (unknown,) = listed(desk, 9, key="k").effects
    assert unknown.state == "unknown"
    assert unknown.id == begun.effect.id
    assert "agent ended" in unknown.message


def test_a_begin_that_nobody_waits_for_is_withdrawn(desk: LedgerDesk) -> None:
    desk.hold = True
    begin(desk, key="k")
    desk.tell(ev.Detached, channel=PLAN, why="gone")
    desk.settle()
    desk.attach(9, "plan")
    assert begin(desk, 9, key="k", arguments="others").fresh


def test_an_end_is_entered_however_often_the_disk_refuses(desk: LedgerDesk, tables: Tables) -> None:
    begun = begin(desk, key="k")
    told: list[str] = []
    tables.broken = True
    effects = desk.state.effects
    desk.within(lambda: effects.done(begun.effect.id, "7", then=lambda: told.append("now")))
    desk.sleep(2 * SECOND)
    assert not told
    assert len(effects._owed) == 1
    tables.broken = False
    desk.sleep(60 * SECOND)
    assert told == ["now"]
    assert begin(desk, key="k").effect.state == "done"


def test_an_operator_resolves_anybodys_and_the_chronicle_says_so(desk: LedgerDesk) -> None:
    begun = begin(desk, key="k")
    desk.tell(ev.Detached, channel=PLAN, why="gone")
    said = desk.call(OPERATOR, abi.EffectResolve(id=begun.effect.id, outcome="failed", result="no"))
    assert (said.effect.state, said.effect.message) == ("failed", "no")
    (line,) = [i for i in desk.said if isinstance(i, ins.Chain)]
    assert (line.kind, line.actor, line.subject) == ("effect.resolved", "operator", "pay")


def test_nobody_resolves_or_ends_anothers(desk: LedgerDesk) -> None:
    begun = begin(desk, key="k")
    for request in (
        abi.EffectResolve(id=begun.effect.id, outcome="done", user="ana"),
        abi.EffectEnd(id=begun.effect.id, user="ana"),
    ):
        assert desk.call(MAIL, request).errno == Errno.ENOENT
    assert listed(desk, MAIL, id=begun.effect.id).errno == Errno.ENOENT
    assert listed(desk, MAIL).effects == ()


def test_what_is_done_is_neither_ended_nor_resolved_again(desk: LedgerDesk) -> None:
    begun = begin(desk)
    end(desk, begun.effect.id)
    assert end(desk, begun.effect.id, state="failed").errno == Errno.ESTALE
    resolve = abi.EffectResolve(id=begun.effect.id, outcome="retry", user="ana")
    assert desk.call(PLAN, resolve).errno == Errno.ESTALE


def test_an_agent_finds_its_last_finished_step_and_its_inputs(desk: LedgerDesk) -> None:
    for number in range(3):
        begun = begin(desk, key=f"step {number}", arguments=f"in {number}")
        if number < 2:
            end(desk, begun.effect.id, result=f"out {number}")
    (last,) = listed(desk, states=("done",), kinds=("step",), limit=1).effects
    assert (last.key, last.arguments.text, last.result.text) == ("step 1", "in 1", "out 1")
    many = listed(desk).effects
    assert [one.key for one in many] == ["step 2", "step 1", "step 0"]
    assert all(one.arguments.text is None for one in many)


def test_long_bodies_are_kept_by_hash_and_size(desk: LedgerDesk) -> None:
    begun = begin(desk, arguments="a" * 5000)
    assert begun.effect.arguments.text is None
    assert begun.effect.arguments.size == 5000
    ended = end(desk, begun.effect.id, result="b" * 20_000)
    assert ended.effect.result.text is None
    assert ended.effect.result.size == 20_000


def test_secrets_are_not_kept(desk: LedgerDesk, tables: Tables) -> None:
    secret = "4111 1111 1111 1111"
    begun = begin(desk, key="k", arguments=f"card {secret}")
    end(desk, begun.effect.id, result=f"charged {secret}")
    (kept,) = tables.ask(FindEffects(texts=True))  # type: ignore[misc] # a tuple of effects
    assert secret not in str(kept)
    assert kept.arguments.text.startswith("card ")
    assert begin(desk, key="k", arguments=f"card {secret}").fresh is False
    assert begin(desk, key=f"card {secret}").field == "key"


def test_the_operator_sees_all_without_texts(desk: LedgerDesk) -> None:
    begin(desk, arguments="mine")
    begin(desk, MAIL, arguments="its")
    seen = desk.call(OPERATOR, abi.EffectList()).effects
    assert {one.agent for one in seen} == {"plan", "mail"}
    assert all(one.arguments.text is None for one in seen)
    assert len(desk.call(OPERATOR, abi.EffectList(agent="mail")).effects) == 1
    assert listed(desk, agent="mail").errno == Errno.EPERM


def test_what_is_open_is_bounded_and_what_has_ended_goes(desk: LedgerDesk, tables: Tables) -> None:
    for _ in range(MAX_OPEN):
        last = begin(desk)
    refused = begin(desk)
    assert refused.errno == Errno.EDQUOT
    for one in listed(desk, limit=200).effects:
        end(desk, one.id)
    for _ in range(MAX_ENDED):
        end(desk, begin(desk).effect.id)
    kept = tables.ask(FindEffects(states=("done", "failed"), limit=5000))
    assert isinstance(kept, tuple)
    assert len(kept) == MAX_ENDED
    assert last.effect.id not in {one.id for one in kept}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": "k" * 257}, "key"), ({"key": "a\nb"}, "key"), ({"subject": " "}, "subject"),
        ({"subject": "s" * 1025}, "subject"), ({"arguments": "a" * 300_000}, "arguments"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(desk: LedgerDesk, fields: dict[str, str], field: str) -> None:
    assert begin(desk, **fields).field == field


def test_others_carry_out_effects_by_three_words(desk: LedgerDesk) -> None:
    """As tools and files do: for a call that is outstanding."""
    desk.hold = True
    begin(desk)
    (call,) = desk.state.calls.values()
    told: list[Begun] = []
    fields: dict[str, Any] = {"kind": "tool", "subject": "a.b", "arguments": "{}",
                              "idempotent": False, "then": told.append}  # fmt: skip
    effects = desk.state.effects
    with pytest.raises(CallerError, match="key"):
        effects.begin(call, key="k" * 300, **fields)
    desk.within(lambda: effects.begin(call, key="t", **fields))
    desk.held = desk.held[1:]
    desk.settle()
    effect = told[0].effect
    assert told[0].fresh
    assert effect is not None
    assert effect.kind == "tool"
    assert end(desk, effect.id).errno == Errno.EINVAL  # a tool's, not the agent's own
    desk.within(lambda: effects.lost(effect.id, "it hangs"))
    (unknown,) = listed(desk, states=("unknown",)).effects
    assert unknown.message == "it hangs"
    desk.within(lambda: effects.done(effect.id, "late"))
    assert [i.kind for i in desk.said if isinstance(i, ins.Chain)] == ["effect"]
    (done,) = listed(desk, states=("done",), limit=1).effects
    assert done.result.text == "late"


def test_late_words_of_the_ledger_change_nothing(desk: LedgerDesk) -> None:
    begin(desk)
    (entered,) = [i for i in desk.said if isinstance(i, ins.Enter)]
    desk.tell(ev.Entered, number=entered.number, answer="nonsense")
    assert desk.out == []
    assert isinstance(desk.call(PLAN, m.Ping(payload="x")), m.Pong)
