"""Processes in the pure kernel: who may spawn, see, wait for and kill what, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, Desk

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.core import Limits
from isovist.kernel.state.process import LAST_WORDS, STDERR, agent_name
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno


def spawn(desk: Desk, channel: int = OPERATOR, **fields: Any) -> int:
    """A running process; its channel is 100 + its pid."""
    desk.ask(channel, m.Spawn(**{"program": "note.py", **fields}))
    start = desk.one(ins.StartProcess)
    frame = desk.frame
    desk.attach(100 + start.pid, start.agent, pid=start.pid)
    desk.tell(ev.Spawned, pid=start.pid)
    assert desk.reply(frame).pid == start.pid
    return start.pid


def pids(desk: Desk, channel: int, **fields: Any) -> list[int]:
    return [p.pid for p in desk.ask(channel, m.ListProcesses(**fields)).processes]


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("dir/my_agent.py", "my_agent"),
        ("x.py", "x"),
        ("pkg.mod:Class", "Class"),
        ("mail", "mail"),
        ("./cafe\u0301.py", "caf\u00e9"),
    ],
)
def test_a_program_names_its_agent(program: str, name: str) -> None:
    assert agent_name(program) == name


@pytest.mark.promise("identity.bound")
@pytest.mark.parametrize("agent", ["plan", "operator", "agent/mail"])
def test_an_agent_spawns_instances_of_itself_only(agent: str) -> None:
    desk = Desk()
    failed = desk.ask(MAIL, m.Spawn(program="plan.py", agent=agent, user="ana"))
    assert (failed.errno, failed.field) == (Errno.EPERM, "agent")
    assert not desk.all(ins.StartProcess)
    # Nor does the program's name make it another.
    desk.ask(MAIL, m.Spawn(program="plan.py", user="ana"))
    assert desk.one(ins.StartProcess).agent == "mail"


@pytest.mark.promise("identity.bound")
def test_a_child_serves_the_user_of_its_parent_and_no_other() -> None:
    desk = Desk()
    assert desk.ask(MAIL, m.Spawn(program="x.py", user="zoe")).errno == Errno.EPERM
    pid = spawn(desk, MAIL, user="bob")
    me = desk.ask(100 + pid, m.Whoami())
    assert (me.agent, me.user, me.rule, me.pid) == ("mail", "bob", "session", pid)
    grandchild = spawn(desk, 100 + pid)
    assert desk.ask(100 + grandchild, m.Whoami()).user == "bob"


def test_the_operator_spawns_anybody_for_anybody() -> None:
    desk = Desk()
    pid = spawn(desk, agent="mail", user="zoe")
    assert desk.ask(100 + pid, m.Whoami()).user == "zoe"
    # The right is this process's own, not its agent's.
    assert desk.ask(MAIL, m.Whoami(user="zoe")).errno == Errno.EPERM


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("program", {"program": ""}), ("program", {"program": "a\0b"}),
        ("program", {"program": "x" * 4097}), ("args", {"args": ("x",) * 257}),
        ("args", {"args": ("\0",)}), ("agent", {"agent": "a/b"}), ("user", {"user": "a/b"}),
    ],
)  # fmt: skip
def test_a_bad_program_is_refused_by_its_field(field: str, fields: Any) -> None:
    failed = Desk().ask(OPERATOR, m.Spawn(**{"program": "x.py", **fields}))
    assert (failed.errno, failed.field) == (Errno.EINVAL, field)


def test_descriptors_are_handed_over_at_the_socket_door_only() -> None:
    desk = Desk()
    pid = spawn(desk)
    failed = desk.ask(100 + pid, m.Spawn(program="x.py", stdio=True))
    assert (failed.errno, failed.field) == (Errno.EPERM, "stdio")
    desk.ask(MAIL, m.Spawn(program="x.py", stdio=True, user="ana"))
    assert desk.one(ins.StartProcess).stdio_of == MAIL


@pytest.mark.promise("kernel.survives")
def test_a_program_that_does_not_start() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.Spawn(program="nowhere.py"))
    desk.tell(ev.SpawnFailed, pid=1, errno=Errno.ENOEXEC, message="no such file")
    assert (desk.reply().errno, desk.reply().field) == (Errno.ENOEXEC, "program")
    assert desk.ask(OPERATOR, m.Spawn(program="x.py", user="")).field == "user"
    desk.ask(OPERATOR, m.Spawn(program="fails.py"))
    desk.tell(ev.Exited, pid=2, status=1, stderr=("ImportError",))
    assert desk.reply().errno == Errno.ENOEXEC
    gone = desk.ask(OPERATOR, m.WaitPid(pid=2)).process
    assert (gone.state, gone.status, gone.stderr) == ("exited", 1, ("ImportError",))
    desk.ask(OPERATOR, m.Spawn(program="x.py", cwd="rel"))
    desk.tell(ev.SpawnFailed, pid=3, errno=Errno.EINVAL, message="not absolute", field="cwd")
    assert desk.reply().field == "cwd"
    for late in (ev.Spawned, ev.Exited):
        fields = {"status": 0} if late is ev.Exited else {}
        assert desk.tell(late, pid=2, **fields) == []


def test_wait_answers_when_the_process_is_gone_and_follows_its_stderr() -> None:
    desk = Desk()
    pid = spawn(desk)
    desk.tell(ev.Stderr, pid=pid, text="one\n")
    desk.ask(OPERATOR, m.WaitPid(pid=pid, follow=True))
    assert [r.message for r in desk.all(ins.Reply)] == [m.Part(text="one\n")]
    desk.tell(ev.Stderr, pid=pid, text="two\n")
    assert [r.message for r in desk.all(ins.Reply)] == [m.Part(text="two\n")]
    desk.sleep(10**15)
    assert desk.reply() is None
    desk.tell(ev.Exited, pid=pid, status=-9, reason="out of memory")
    gone = desk.reply().process
    assert (gone.status, gone.reason, gone.stderr) == (-9, "out of memory", ("one", "two"))


def test_stderr_is_kept_within_its_bound() -> None:
    desk = Desk()
    pid = spawn(desk)
    for _ in range(5):
        desk.tell(ev.Stderr, pid=pid, text="x" * STDERR)
    desk.tell(ev.Exited, pid=pid, status=0)
    assert len(desk.ask(OPERATOR, m.WaitPid(pid=pid)).process.stderr[0]) == LAST_WORDS


def test_kill_reaches_descendants_and_says_who_did_it() -> None:
    desk = Desk()
    parent = spawn(desk, MAIL, user="ana")
    child = spawn(desk, 100 + parent)
    other = spawn(desk)
    for out_of_reach in (other, parent, 4711):
        assert desk.ask(100 + parent, m.Kill(pid=out_of_reach)).errno == Errno.ESRCH
        assert desk.ask(100 + child, m.WaitPid(pid=out_of_reach)).errno == Errno.ESRCH
    # What came through the socket has no descendants: it has no pid.
    assert desk.ask(MAIL, m.Kill(pid=parent)).errno == Errno.ESRCH
    assert desk.ask(100 + parent, m.Kill(pid=child)) is None
    assert desk.one(ins.KillProcess).pid == child
    desk.tell(ev.Exited, pid=child, status=-9, reason="signal 9")
    assert desk.reply().process.reason == "killed by mail"
    assert desk.ask(100 + parent, m.Kill(pid=child)).process.status == -9
    assert not desk.all(ins.KillProcess)


def test_a_list_shows_oneself_and_ones_own() -> None:
    desk = Desk()
    parent = spawn(desk)
    child = spawn(desk, 100 + parent)
    grandchild = spawn(desk, 100 + child)
    other = spawn(desk)
    assert pids(desk, OPERATOR) == [parent, child, grandchild, other]
    assert pids(desk, 100 + parent) == [parent, child, grandchild]
    assert pids(desk, 100 + grandchild) == [grandchild]
    assert pids(desk, MAIL) == []
    desk.tell(ev.Exited, pid=child, status=0)
    assert pids(desk, 100 + parent) == [parent, grandchild]
    assert pids(desk, 100 + parent, all=True) == [parent, child, grandchild]


def test_a_forgotten_parent_leaves_its_children_within_reach() -> None:
    desk = Desk(limits=Limits(exited=1))
    parent = spawn(desk)
    child = spawn(desk, 100 + parent)
    grandchild = spawn(desk, 100 + child)
    desk.tell(ev.Exited, pid=child, status=0)
    desk.tell(ev.Exited, pid=spawn(desk), status=0)
    assert desk.ask(OPERATOR, m.WaitPid(pid=child)).errno == Errno.ESRCH
    assert pids(desk, 100 + parent, all=True) == [parent, grandchild]
    assert desk.ask(100 + parent, m.Kill(pid=grandchild)) is None


def test_after_exit_nothing_is_served() -> None:
    desk = Desk()
    pid = spawn(desk)
    assert desk.ask(100 + pid, m.Exit(status=256)).field == "status"
    assert isinstance(desk.ask(100 + pid, m.Exit(status=3)), m.Done)
    for request in (m.Ping(), m.Exit(), m.Cancel(call=1), m.Hello(version=1)):
        assert desk.ask(100 + pid, request).errno == Errno.EPIPE


def test_requests_are_counted() -> None:
    desk = Desk()
    pid = spawn(desk)
    desk.ask(100 + pid, m.Ping())
    (process,) = desk.ask(100 + pid, m.ListProcesses()).processes
    assert process.calls == 3


def test_one_agent_cannot_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isovist.kernel.state.processes.MAX_OF_AGENT", 2)
    monkeypatch.setattr("isovist.kernel.state.processes.MAX_PROCESSES", 6)
    desk = Desk()
    parent = 100 + spawn(desk, agent="mail", user="ana")
    desk.ask(parent, m.Hello(version=1))
    spawn(desk, parent)
    spawn(desk, parent)
    assert desk.ask(parent, m.Spawn(program="x.py")).errno == Errno.EAGAIN
    other = 100 + spawn(desk, agent="plan", user="ana")
    desk.ask(other, m.Hello(version=1))
    assert desk.ask(other, m.Spawn(program="x.py")).errno == Errno.EAGAIN, "kept for the operator"
    spawn(desk)


@pytest.mark.parametrize(
    ("said", "real", "shown"), [(3, 0, 3), (3, -9, -9), (0, 5, 5), (None, 0, 0)]
)
def test_an_exit_status_is_kept(said: int | None, real: int, shown: int) -> None:
    desk = Desk()
    pid = spawn(desk, agent="mail", user="ana")
    desk.ask(100 + pid, m.Hello(version=1))
    if said is not None:
        desk.ask(100 + pid, m.Exit(status=said))
    desk.tell(ev.Exited, pid=pid, status=real)
    (process,) = desk.ask(OPERATOR, m.ListProcesses(all=True)).processes
    assert process.status == shown


def test_no_more_processes_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isovist.kernel.state.processes.MAX_PROCESSES", 1)
    desk = Desk()
    pid = spawn(desk)
    assert desk.ask(OPERATOR, m.Spawn(program="x.py")).errno == Errno.EAGAIN
    desk.tell(ev.Exited, pid=pid, status=0)
    assert desk.ask(OPERATOR, m.Spawn(program="x.py")) is None
