"""Supervision in the pure kernel: pauses, kills of trees, restarts, heartbeats, priorities."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, SECOND, Desk, chat
from test_state_agents import asks, started
from test_state_processes import spawn

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.scheduling import Scheduling
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import Errno
from isovist.syscalls.manifest import Restart
from isovist.syscalls.records import Process


def shown(desk: Desk, pid: int) -> Process:
    (found,) = [p for p in desk.ask(OPERATOR, m.ListProcesses(all=True)).processes if p.pid == pid]
    return found


def dies(desk: Desk, pid: int, status: int = 1) -> Process:
    desk.tell(ev.Detached, channel=100 + pid, why="its process ended")
    desk.tell(ev.Exited, pid=pid, status=status)
    return shown(desk, pid)


def begun(desk: Desk) -> int:
    """The process that has just been started, running; its channel is 100 + its pid."""
    start = desk.one(ins.StartProcess)
    desk.attach(100 + start.pid, start.agent, pid=start.pid)
    desk.tell(ev.Spawned, pid=start.pid)
    return start.pid


# -- pause and continue


def test_pause_stops_and_continue_goes_on_once_each() -> None:
    desk = Desk()
    pid = spawn(desk)
    assert desk.ask(OPERATOR, abi.Pause(pid=pid)).process.state == "paused"
    assert desk.one(ins.SignalProcess) == ins.SignalProcess(pid, "stop")
    desk.ask(OPERATOR, abi.Pause(pid=pid))
    assert not desk.all(ins.SignalProcess)
    assert desk.ask(OPERATOR, abi.Continue(pid=pid)).process.state == "running"
    assert desk.one(ins.SignalProcess) == ins.SignalProcess(pid, "continue")
    desk.ask(OPERATOR, abi.Continue(pid=pid))
    assert not desk.all(ins.SignalProcess)


@pytest.mark.parametrize("kind", [abi.Pause, abi.Continue, abi.Priority])
def test_an_agent_manages_its_descendants_alone(kind: Any) -> None:
    desk = Desk()
    mine = spawn(desk, MAIL, user="ana")
    child = spawn(desk, 100 + mine)
    grandchild = spawn(desk, 100 + child)
    assert isinstance(desk.ask(100 + mine, kind(pid=grandchild)), abi.Managed)
    for pid in (spawn(desk), 999):
        assert desk.ask(100 + mine, kind(pid=pid)).errno == Errno.ESRCH
    assert desk.ask(100 + child, kind(pid=mine)).errno == Errno.ESRCH
    assert desk.ask(100 + mine, kind(pid=mine)).errno == Errno.ESRCH
    dies(desk, mine)
    assert desk.ask(OPERATOR, kind(pid=mine)).errno == Errno.ESRCH


# -- priority


def test_a_priority_counts_at_the_queue_and_only_the_operator_raises_it() -> None:
    desk = Desk(scheduling=Scheduling(policy="priority"))
    slow, fast = spawn(desk, agent="slow"), spawn(desk, agent="fast")
    running = desk.decoding(MAIL, user="ana")
    assert desk.ask(OPERATOR, abi.Priority(pid=fast, level=5)).process.priority == 5
    for pid in (slow, fast):
        desk.ask(100 + pid, chat(memory=False))
        desk.render()
    desk.done(running)
    first = desk.one(ins.Decode)
    assert desk.state.calls[first.key].agent == "fast", "it came later"
    child = spawn(desk, 100 + fast)
    assert desk.ask(100 + fast, abi.Priority(pid=child, level=1)).field == "level"
    assert desk.ask(100 + fast, abi.Priority(pid=child, level=0)).process.priority == 0
    for field, value in (("level", 10), ("level", -1), ("nice", 20), ("nice", -1)):
        failed = desk.ask(OPERATOR, abi.Priority(pid=fast, **{field: value}))
        assert (failed.errno, failed.field) == (Errno.EINVAL, field)


def test_nice_goes_to_the_host_and_is_lowered_by_the_operator_alone() -> None:
    desk = Desk()
    parent = spawn(desk)
    child = spawn(desk, 100 + parent)
    assert desk.ask(100 + parent, abi.Priority(pid=child, nice=7)).process.nice == 7
    assert desk.one(ins.NiceProcess) == ins.NiceProcess(child, 7)
    assert desk.ask(100 + parent, abi.Priority(pid=child, nice=3)).errno == Errno.EPERM
    assert desk.ask(OPERATOR, abi.Priority(pid=child, nice=3)).process.nice == 3


# -- kill


def test_a_kill_says_what_it_ended_and_what_it_left() -> None:
    desk = Desk()
    top = spawn(desk)
    child = spawn(desk, 100 + top)
    grandchild = spawn(desk, 100 + child)
    desk.ask(OPERATOR, m.Kill(pid=top))
    frame = desk.frame
    assert [k.pid for k in desk.all(ins.KillProcess)] == [top]
    desk.tell(ev.Exited, pid=top, status=-9)
    reply = desk.reply(frame)
    assert (reply.process.pid, reply.ended, reply.left) == (top, (top,), (child, grandchild))
    desk.ask(OPERATOR, m.Kill(pid=child, tree=True))
    frame = desk.frame
    assert [k.pid for k in desk.all(ins.KillProcess)] == [grandchild, child]
    desk.tell(ev.Exited, pid=child, status=-9)
    assert desk.reply(frame) is None, "not before the last is gone"
    desk.tell(ev.Exited, pid=grandchild, status=-9)
    reply = desk.reply(frame)
    assert (reply.process.pid, reply.ended, reply.left) == (child, (child, grandchild), ())


def test_a_kill_is_told_to_the_chronicle() -> None:
    desk = Desk()
    pid = spawn(desk, agent="mail")
    desk.ask(OPERATOR, m.Kill(pid=pid))
    (line,) = [c for c in desk.all(ins.Chain) if c.kind == "kill"]
    assert (line.actor, line.subject, dict(line.detail)["pid"]) == ("operator", "mail", str(pid))


def test_a_kill_that_is_given_up_leaves_nobody_waiting() -> None:
    desk = Desk()
    pid = spawn(desk)
    spawn(desk, 100 + pid)
    desk.ask(OPERATOR, m.Kill(pid=pid, tree=True, deadline_ms=1000))
    frame = desk.frame
    desk.sleep(SECOND)
    assert desk.reply(frame).errno == Errno.ETIMEDOUT
    desk.tell(ev.Exited, pid=pid, status=-9)
    assert not desk.all(ins.Reply)


def test_terminate_asks_first_and_kills_after_the_grace() -> None:
    desk = Desk()
    pid = spawn(desk)
    desk.ask(OPERATOR, abi.Pause(pid=pid))
    desk.ask(OPERATOR, m.Kill(pid=pid, grace_ms=2000))
    assert desk.one(ins.SignalProcess) == ins.SignalProcess(pid, "terminate")
    assert not desk.all(ins.KillProcess)
    desk.sleep(2 * SECOND)
    assert desk.one(ins.KillProcess).pid == pid
    gone = dies(desk, pid, -9)
    assert gone.reason == "terminated by operator"
    # One that went in time is not killed any more.
    pid = spawn(desk)
    desk.ask(OPERATOR, m.Kill(pid=pid, grace_ms=2000))
    frame = desk.frame
    desk.tell(ev.Exited, pid=pid, status=0)
    assert desk.reply(frame).process.status == 0
    desk.sleep(3 * SECOND)
    assert not desk.all(ins.KillProcess)
    assert desk.ask(OPERATOR, m.Kill(pid=pid, grace_ms=60_001)).field == "grace_ms"


# -- restarts


def test_who_asks_for_it_is_started_anew_with_what_it_had() -> None:
    desk = Desk()
    restart = Restart(policy="on-failure", pause=1.0)
    pid = started(desk, asks(users=("ana",), restart=restart, children=1), user="ana", args=("a",))
    lineage = shown(desk, pid).lineage
    gone = dies(desk, pid)
    assert (gone.state, gone.status, gone.next > pid) == ("exited", 1, True)
    waiting = shown(desk, gone.next)
    assert (waiting.state, waiting.lineage, waiting.restarts) == ("restarting", lineage, 1)
    assert not desk.all(ins.StartProcess)
    desk.sleep(SECOND)
    start = desk.one(ins.StartProcess)
    assert (start.pid, start.agent, start.user, start.args) == (gone.next, "lead", "ana", ("a",))
    assert start.lineage == lineage
    again = begun(desk)
    identity = desk.ask(100 + again, m.Whoami())
    assert (identity.agent, identity.user, identity.users) == ("lead", "ana", ("ana",))
    # A success is no failure.
    assert dies(desk, again, 0).next == 0


def test_always_means_after_success_too_and_never_is_never() -> None:
    desk = Desk()
    pid = started(desk, asks(restart=Restart(policy="always")))
    assert dies(desk, pid, 0).next
    pid = started(desk, asks("other"))
    assert dies(desk, pid, 1).next == 0
    assert dies(desk, spawn(desk), 1).next == 0


def test_pauses_double_to_the_longest_and_in_the_end_it_is_given_up() -> None:
    desk = Desk()
    restart = Restart(policy="on-failure", most=4, within=60.0, pause=1.0, longest=3.0)
    pid = started(desk, asks(restart=restart))
    for seconds in (1, 2, 3, 3):
        desk.now += 1
        gone = dies(desk, pid)
        desk.sleep(seconds * SECOND - 1000)
        assert not desk.all(ins.StartProcess)
        desk.sleep(1000)
        pid = begun(desk)
        assert pid == gone.next
    desk.tell(ev.Exited, pid=pid, status=1, reason="")
    lines = [c.kind for c in desk.all(ins.Chain)]
    gone = shown(desk, pid)
    assert (gone.next, gone.restarts) == (0, 4)
    assert "given up: started anew 4 times within 60 s" in gone.reason
    assert lines == ["given up"]


def test_who_ran_well_for_long_begins_anew_with_the_shortest_pause() -> None:
    desk = Desk()
    restart = Restart(policy="on-failure", most=1, within=10.0, pause=1.0)
    pid = started(desk, asks(restart=restart))
    for _ in range(3):
        dies(desk, pid)
        desk.sleep(SECOND)
        pid = begun(desk)
        desk.sleep(10 * SECOND)


def test_whom_somebody_ended_is_not_started_anew_nor_who_waits_to_be() -> None:
    desk = Desk()
    restart = Restart(policy="always", pause=1.0)
    pid = started(desk, asks(restart=restart))
    desk.ask(OPERATOR, m.Kill(pid=pid))
    assert dies(desk, pid, -9).next == 0
    pid = started(desk, asks(restart=restart))
    waiting = dies(desk, pid).next
    reply = desk.ask(OPERATOR, m.Kill(pid=waiting))
    assert (reply.process.state, reply.process.reason) == ("exited", "killed by operator")
    desk.sleep(2 * SECOND)
    assert not desk.all(ins.StartProcess)


def test_who_may_not_serve_its_user_any_more_is_not_started_anew() -> None:
    desk = Desk()
    pid = started(desk, asks(users=("ana",), restart=Restart(policy="always")), user="ana")
    desk.ask(OPERATOR, m.Grant(agent="lead", users=("ana",), revoke=True))
    gone = dies(desk, pid)
    assert (gone.next, "may not serve its user" in gone.reason) == (0, True)


def test_a_spawn_that_fails_is_told_and_a_restart_that_fails_is_tried_again() -> None:
    desk = Desk()
    restart = Restart(policy="on-failure", pause=1.0)
    pid = started(desk, asks(restart=restart))
    waiting = dies(desk, pid).next
    desk.sleep(SECOND)
    desk.tell(ev.SpawnFailed, pid=waiting, errno=Errno.EAGAIN, message="no descriptors")
    assert shown(desk, waiting).next > waiting
    (lead,) = desk.ask(OPERATOR, abi.AgentList(agent="lead")).agents
    request = m.Spawn(program="x", agent="lead", manifest=lead.digest)
    desk.ask(OPERATOR, request)
    pid, frame = desk.one(ins.StartProcess).pid, desk.frame
    desk.tell(ev.SpawnFailed, pid=pid, errno=Errno.ENOENT, message="no program")
    assert desk.reply(frame).errno == Errno.ENOENT
    assert shown(desk, pid).next == 0


def test_a_lineage_is_one_living_process_at_a_time() -> None:
    desk = Desk()
    spawn(desk, MAIL, user="ana", lineage="daily")
    failed = desk.ask(MAIL, m.Spawn(program="x.py", user="ana", lineage="daily"))
    assert (failed.errno, failed.field) == (Errno.EEXIST, "lineage")
    # Another user's, and another agent's, is another.
    spawn(desk, MAIL, user="bob", lineage="daily")
    pid = spawn(desk, agent="other", user="ana", lineage="daily")
    assert shown(desk, pid).lineage == "daily"
    assert shown(desk, spawn(desk)).lineage != shown(desk, spawn(desk)).lineage


# -- heartbeats


def test_who_misses_its_heartbeat_is_killed_and_started_anew() -> None:
    desk = Desk()
    restart = Restart(policy="on-failure", pause=1.0)
    pid = started(desk, asks(heartbeat=2.0, restart=restart))
    for _ in range(4):
        desk.sleep(1 * SECOND)
        assert isinstance(desk.ask(100 + pid, abi.Heartbeat()), m.Done)
        assert not desk.all(ins.KillProcess)
    desk.sleep(2 * SECOND)
    assert desk.one(ins.KillProcess) == ins.KillProcess(pid, "no heartbeat for 2 s")
    gone = dies(desk, pid, -9)
    assert (gone.reason, gone.next > 0) == ("no heartbeat for 2 s", True)


def test_a_paused_agent_owes_no_heartbeat() -> None:
    desk = Desk()
    pid = started(desk, asks(heartbeat=2.0))
    desk.ask(OPERATOR, abi.Pause(pid=pid))
    for _ in range(5):
        desk.sleep(2 * SECOND)
        assert not desk.all(ins.KillProcess)
    desk.ask(OPERATOR, abi.Continue(pid=pid))
    desk.sleep(SECOND)
    assert not desk.all(ins.KillProcess), "it has its time anew"
    desk.sleep(SECOND)
    assert desk.one(ins.KillProcess).pid == pid


def test_who_does_not_ask_for_heartbeats_owes_none() -> None:
    desk = Desk()
    pid = started(desk, asks())
    assert isinstance(desk.ask(100 + pid, abi.Heartbeat()), m.Done)
    desk.sleep(3600 * SECOND)
    assert not desk.all(ins.KillProcess)


# -- the tree


def test_a_list_tells_children_and_what_the_host_says() -> None:
    desk = Desk()
    top = spawn(desk)
    child = spawn(desk, 100 + top)
    spawn(desk, 100 + top)
    assert (shown(desk, top).children, shown(desk, child).children) == (2, 0)
    assert desk.ask(OPERATOR, m.ListProcesses(usage=True)) is None
    frame = desk.frame
    asked = desk.one(ins.GaugeProcesses)
    desk.tell(ev.ProcessesGauged, key=asked.key, usage={top: (1.5, 4096)})
    found = {p.pid: (p.seconds, p.memory) for p in desk.reply(frame).processes}
    assert (found[top], found[child]) == ((1.5, 4096), (None, None))


def test_children_end_before_those_that_spawned_them() -> None:
    desk = Desk()
    top, other = spawn(desk), spawn(desk)
    child = spawn(desk, 100 + top)
    grandchild = spawn(desk, 100 + child)
    assert desk.state.processes.generations() == [[grandchild], [child], [top, other]]


def test_a_kill_is_answered_though_its_target_ended_long_before_others() -> None:
    desk = Desk()
    top = spawn(desk)
    child = spawn(desk, 100 + top)
    dies(desk, top, 0)
    desk.ask(OPERATOR, m.Kill(pid=top, tree=True))
    frame = desk.frame
    for _ in range(desk.state.limits.exited + 2):
        dies(desk, spawn(desk), 0)
    desk.tell(ev.Exited, pid=child, status=-9)
    assert desk.reply(frame).ended == (child,)
