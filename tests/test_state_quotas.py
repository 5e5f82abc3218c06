"""Quotas: who is over a limit is told when or how much, and what is counted is exact."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, SECOND, Desk, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.quotas import PATIENCE
from isovist.kernel.state.rights import Rights
from isovist.kernel.state.scheduling import Scheduling
from isovist.kernel.state.users import Principal
from isovist.scheduler.quota import Limit
from isovist.syscalls import messages as m
from isovist.syscalls.abi import quotas as abi
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Held, Outcome, Put


def desk(**limits: dict[str, Limit]) -> Desk:
    return Desk(scheduling=Scheduling(quotas=limits))


def failed(reply: object, errno: Errno) -> m.Failed:
    assert isinstance(reply, m.Failed), reply
    assert reply.errno == errno, reply
    return reply


def keep(at: Desk, op: Put) -> None:
    """The store has taken it, and says what there is more."""
    at.commit(op, held=(Held(op.agent, op.user, 1, len(op.text.encode())),))


def figures(at: Desk, axis: Any, name: str) -> abi.Quota:
    reply = at.ask(OPERATOR, abi.QuotaList(axis=axis, name=name))
    assert isinstance(reply, abi.Quotas)
    return reply.quotas[0]


# -- syscalls a second


def test_the_instant_that_is_told_is_the_first_at_which_it_is_let_in() -> None:
    at = desk(agent={"mail": Limit(syscalls=10)})
    at.sleep(SECOND)
    replies = [at.ask(MAIL, m.Ping()) for _ in range(12)]
    assert [isinstance(r, m.Pong) for r in replies] == [True] * 10 + [False] * 2
    told = failed(replies[-1], Errno.EAGAIN)
    assert "10 syscalls a second" in told.message
    assert told.retry_at is not None
    wait = told.retry_at - at.state.calendar()
    assert 0 < wait <= SECOND // 10
    at.sleep(wait - 3)  # a desk lets a nanosecond pass with each event
    failed(at.ask(MAIL, m.Ping()), Errno.EAGAIN)
    at.sleep(3)
    assert isinstance(at.ask(MAIL, m.Ping()), m.Pong)
    # Nobody else is held up by it.
    assert isinstance(at.ask(PLAN, m.Ping()), m.Pong)


def test_whoever_does_not_heed_its_limit_is_ended_with_a_reason() -> None:
    at = desk(agent={"mail": Limit(syscalls=1)})
    for _ in range(PATIENCE):  # hello was the first
        at.ask(MAIL, m.Ping())
    assert "over the limit of 1 a second" in at.one(ins.Disconnect).why
    line = at.one(ins.Chain)
    assert (line.kind, line.subject) == ("disconnect", "mail")
    failed(at.ask(MAIL, m.Ping()), Errno.EPIPE)


def test_a_cancel_of_what_is_outstanding_is_no_syscall_too_many() -> None:
    at = desk(agent={"mail": Limit(syscalls=2)})
    at.sleep(SECOND)
    at.remember(MAIL, user="ana")
    outstanding = at.frame
    at.ask(MAIL, m.Ping())
    failed(at.ask(MAIL, m.Ping()), Errno.EAGAIN)
    assert isinstance(at.ask(MAIL, m.Cancel(call=outstanding)), m.Done)
    failed(at.ask(MAIL, m.Cancel(call=outstanding)), Errno.EAGAIN)


def test_a_user_has_a_pace_of_its_own_through_all_agents() -> None:
    at = desk(user={"ana": Limit(syscalls=2)})
    at.remember(MAIL, user="ana", text="one")
    at.remember(PLAN, user="ana", text="two")
    told = failed(at.ask(MAIL, m.Remember(text="three", user="ana")), Errno.EAGAIN)
    assert told.retry_at is not None
    assert at.remember(MAIL, user="bob")


# -- stored units and bytes


def test_stored_units_are_bounded_exactly_and_given_back() -> None:
    at = desk(agent={"mail": Limit(units=2)})
    first = at.remember(MAIL, user="ana", text="one")
    second = at.remember(MAIL, user="bob", text="two")  # on its way, and counted
    told = failed(at.ask(MAIL, m.Remember(text="three", user="ana")), Errno.EDQUOT)
    assert told.message == "agent mail has 2 units stored; 1 more are over the limit of 2"
    assert told.field == "text"
    assert not at.all(ins.Commit), "no number was issued"
    at.refuse(second)  # the disk did not take it
    third = at.remember(MAIL, user="ana", text="three")
    keep(at, first)
    keep(at, third)
    failed(at.ask(MAIL, m.Remember(text="four", user="ana")), Errno.EDQUOT)
    assert figures(at, "agent", "mail").used["units"] == 2
    assert at.remember(PLAN, user="ana"), "another agent has its own"
    gone = Outcome(op=Drop(partition=first.partition, seq=0, id=first.id), id=first.id,
                   held=(Held("mail", "ana", -1, -3),))  # fmt: skip
    for _ in range(2):  # told twice it counts once
        at.tell(ev.Purged, key=77, user="ana", outcomes=(gone,))
    assert figures(at, "agent", "mail").used["units"] == 1
    assert at.remember(MAIL, user="bob", text="four")


def test_bytes_are_those_of_the_texts_in_utf_8() -> None:
    at = desk(user={"ana": Limit(bytes=10)})
    keep(at, at.remember(MAIL, user="ana", text="zwölf"))  # six bytes
    told = failed(at.ask(PLAN, m.Remember(text="fünf", user="ana")), Errno.EDQUOT)
    assert "user ana has 6 bytes stored; 5 more are over the limit of 10" in told.message
    keep(at, at.remember(PLAN, user="ana", text="vier"))
    assert figures(at, "user", "ana").used["bytes"] == 10


def test_a_start_knows_what_there_is() -> None:
    at = Desk(
        scheduling=Scheduling(quotas={"user": {"*": Limit(units=3)}}),
        held=(Held("mail", "ana", 2, 50), Held("plan", "ana", 1, 5)),
    )
    failed(at.ask(MAIL, m.Remember(text="one more", user="ana")), Errno.EDQUOT)
    assert figures(at, "user", "ana").used["bytes"] == 55
    assert at.remember(MAIL, user="bob")


# -- a process and what descends from it


def spawned(at: Desk, channel: int, pid: int, above: Principal | None, **quotas: int) -> Principal:
    """A channel of a process with limits of its own, spawned by ``above``."""
    agent = f"a{pid}"
    rights = Rights(quotas=MappingProxyType(quotas))
    who = Principal(agent, bound="ana", pid=pid, above=above,
                    rights=above.rights.meet(rights) if above else rights)  # fmt: skip
    at.attach(channel, agent, hello=False)
    entry = at.state.channels[channel]
    entry.who = who
    at.state.quotas.attached(entry)
    at.ask(channel, m.Hello(version=1), frame=0)
    return who


def test_no_chain_of_spawns_gets_more_syscalls_than_its_first() -> None:
    at = Desk()
    top = spawned(at, 10, 1, None, syscalls=11)
    middle = spawned(at, 11, 2, top)
    spawned(at, 12, 3, middle, syscalls=1000)
    at.sleep(SECOND)
    done = [at.ask(channel, m.Ping()) for _ in range(5) for channel in (10, 11, 12)]
    assert sum(isinstance(reply, m.Pong) for reply in done) == 11


def test_no_chain_of_spawns_stores_more_than_its_first() -> None:
    at = Desk()
    top = spawned(at, 10, 1, None, units=3)
    spawned(at, 11, 2, top)
    spawned(at, 12, 3, top, units=100)
    keep(at, at.remember(11, user="ana", text="one"))
    keep(at, at.remember(12, user="ana", text="two"))
    keep(at, at.remember(10, user="ana", text="three"))
    for channel in (10, 11, 12):
        told = failed(at.ask(channel, m.Remember(text="four", user="ana")), Errno.EDQUOT)
        assert "process 1 with its descendants has 3 units" in told.message


# -- set by hand


def test_limits_are_set_while_a_kernel_runs_and_hold_once_they_are_durable() -> None:
    at = desk(agent={"*": Limit(syscalls=50)})
    request = abi.QuotaSet(axis="agent", name="mail", limits={"syscalls": 1, "units": 0})
    assert at.ask(OPERATOR, request) is None
    save = at.one(ins.SaveLimits)
    assert save.figures == {"syscalls": 1, "units": 0}
    assert at.out.index(at.one(ins.Chain)) < at.out.index(save)
    frame = at.frame
    assert isinstance(at.ask(MAIL, m.Ping()), m.Pong)
    assert isinstance(at.ask(MAIL, m.Ping()), m.Pong), "not before"
    at.tell(ev.Saved, key=save.key)
    shown = at.reply(frame)
    assert isinstance(shown, abi.QuotaShown)
    assert shown.quota.limits == {"syscalls": 1}
    assert shown.quota.chosen == ("syscalls", "units")
    at.ask(MAIL, m.Ping())
    failed(at.ask(MAIL, m.Ping()), Errno.EAGAIN)
    at.ask(OPERATOR, abi.QuotaSet(axis="agent", name="mail", reset=True))
    at.tell(ev.Saved, key=at.one(ins.SaveLimits).key)
    assert all(isinstance(at.ask(MAIL, m.Ping()), m.Pong) for _ in range(9))


def test_tokens_are_bound_by_what_was_set_as_by_the_settings() -> None:
    at = Desk(limits_chosen={("agent", "mail"): {"tokens": 100}})
    told = at.ask(MAIL, chat(user="ana", max_tokens=101, memory=False))
    assert "100 tokens a minute" in failed(told, Errno.EINVAL).message


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (abi.QuotaSet(axis="agent", name="mail", limits={"unit": 1}), "limits"),
        (abi.QuotaSet(axis="agent", name="mail", limits={"units": -1}), "limits"),
        (abi.QuotaSet(axis="model", name="small", limits={"units": 1}), "limits"),
        (abi.QuotaSet(axis="agent", name="a/b", limits={"units": 1}), "name"),
        (abi.QuotaSet(axis="agent", name="mail"), "limits"),
        (abi.QuotaList(name="mail"), "axis"),
    ],
)
def test_what_is_wrong_is_named(request_: m.Request, field: str) -> None:
    assert failed(Desk().ask(OPERATOR, request_), Errno.EINVAL).field == field


def test_an_agent_sees_its_own_and_sets_none() -> None:
    at = desk(agent={"mail": Limit(units=5)}, user={"ana": Limit(bytes=9)})
    keep(at, at.remember(PLAN, user="ana"))
    shown = at.ask(MAIL, abi.QuotaList(user="ana"))
    assert [(q.axis, q.name, q.limits) for q in shown.quotas] == [
        ("agent", "mail", {"units": 5}), ("user", "ana", {"bytes": 9}),
    ]  # fmt: skip
    failed(at.ask(MAIL, abi.QuotaList(user="zoe")), Errno.EPERM)
    request = abi.QuotaSet(axis="agent", name="mail", limits={"units": 0})
    failed(at.ask(MAIL, request), Errno.EPERM)
    failed(at.ask(OPERATOR, abi.QuotaList(axis="agent", name="nobody")), Errno.ENOENT)
