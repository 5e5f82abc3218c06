"""Supervision over real processes: stopped by the host, patient channels, restarts, ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kernel_helpers import client, running

from isovist.kernel import linux
from isovist.kernel.channels import OUT_LIMIT, UNREAD_NS, Channel, Ended, Pipes
from isovist.kernel.kernel import Kernel
from isovist.syscalls import messages as m
from isovist.syscalls.manifest import Manifest, Restart

PATIENT = """\
import sys, time
from isovist.agents import connect
with connect() as k:
    k.remember(f"{k.whoami().pid} runs {sys.argv[1:]}")
    while True:
        time.sleep(0.01)
"""
SPAWNS = """\
from isovist.agents import connect
with connect() as k:
    child = k.spawn("patient.py", cwd=CWD)
    print("spawned", child.pid, flush=True)
    k.wait(child.pid)
"""
HANGS = """\
from isovist.agents import connect
with connect() as k:
    k.remember(f"life {k.whoami().pid}")
    k.heartbeat()
    while True:
        pass
"""


def program(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text.replace("CWD", repr(str(folder))))
    return name


def state_of(kernel: Kernel, pid: int) -> str:
    """The host's letter for a process: T is stopped."""
    host = linux.host_pid(kernel.processes.spawner._agents[pid].pidfd)
    return Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[0]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.01)


def test_a_paused_channel_is_blamed_for_nothing_and_has_its_time_anew() -> None:
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK), os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    channel = Channel(1, Pipes(ours[0], theirs[1]), 0, pid=1)
    channel.attached = True
    try:
        while not channel.full:
            channel.reply(1, m.Pong(payload="x" * 60_000))
            channel.flush(1)
        assert channel.backlog >= OUT_LIMIT
        assert channel.patience() == 1 + UNREAD_NS
        channel.pause(True, 2)
        assert channel.patience() is None
        channel.check(100 * UNREAD_NS)
        later = 200 * UNREAD_NS
        channel.pause(False, later)
        assert channel.patience() == later + UNREAD_NS
        channel.check(later + UNREAD_NS - 1)
        with pytest.raises(Ended):
            channel.check(later + UNREAD_NS)
    finally:
        channel.close()
        os.close(ours[1])
        os.close(theirs[0])


async def test_a_process_is_stopped_goes_on_and_says_what_it_takes(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as kernel, client(kernel, "operator", operator=True) as k:
        name = program(tmp_path, "patient.py", PATIENT)
        pid = (await k.spawn(name, cwd=str(tmp_path))).pid
        assert (await k.pause(pid)).process.state == "paused"
        await until(lambda: state_of(kernel, pid) == "T")
        assert (await k.resume(pid)).process.state == "running"
        await until(lambda: state_of(kernel, pid) != "T")
        (shown,) = (await k.processes(usage=True)).processes
        assert shown.memory is not None
        assert shown.memory > 0
        assert shown.seconds is not None
        # One that is stopped ends all the same, and at once.
        await k.pause(pid)
        gone = (await k.terminate(pid, grace_ms=60_000)).process
        assert (gone.state, gone.reason) == ("exited", "terminated by operator")


async def test_a_tree_is_ended_and_told(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as kernel, client(kernel, "operator", operator=True) as k:
        program(tmp_path, "patient.py", PATIENT)
        top = (await k.spawn(program(tmp_path, "spawns.py", SPAWNS), cwd=str(tmp_path))).pid
        await until(lambda: len(kernel.state.processes.generations()) == 2)
        (child,), _ = kernel.state.processes.generations()
        await until(lambda: kernel.state.processes.entries()[-1].state == "running")
        reply = await k.kill(top, tree=True)
        assert (reply.ended, reply.left) == ((top, child), ())


async def test_who_hangs_is_killed_for_its_heartbeat_and_started_anew(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as kernel, client(kernel, "operator", operator=True) as k:
        program(tmp_path, "hangs.py", HANGS)
        manifest = Manifest(
            entry=str(tmp_path / "hangs.py"), name="hangs", heartbeat=1.0,
            restart=Restart(policy="on-failure", most=1, pause=0.01),
        )  # fmt: skip
        (held,) = (await k.agent_approve(manifest, str(tmp_path))).agents
        pid = (await k.spawn("hangs", agent="hangs", manifest=held.digest)).pid
        with trio.fail_after(60):
            first = (await k.wait(pid)).process
            second = (await k.wait(first.next)).process
        assert first.reason == "no heartbeat for 1 s"
        assert first.lineage == second.lineage
        assert second.reason.startswith("no heartbeat for 1 s; given up")


async def test_a_kernel_that_stops_ends_children_first(tmp_path: Path) -> None:
    ended: list[int] = []
    async with running(tmp_path / "s") as kernel, client(kernel, "operator", operator=True) as k:
        program(tmp_path, "patient.py", PATIENT)
        await k.spawn(program(tmp_path, "spawns.py", SPAWNS), cwd=str(tmp_path))
        await until(lambda: len(kernel.state.processes.generations()) == 2)
        await until(lambda: kernel.state.processes.entries()[-1].state == "running")
        child, top = (pids[0] for pids in kernel.state.processes.generations())
        gone = kernel.processes._gone

        def note(exit_: object) -> None:
            ended.append(exit_.pid)  # type: ignore[attr-defined] # the spawner's word on an end
            gone(exit_)  # type: ignore[arg-type] # the same

        kernel.processes.spawner._on_exit = note
    assert ended == [child, top]


async def test_a_kill_meets_a_process_whose_start_has_not_begun(tmp_path: Path) -> None:
    """Asked for in one turn with the spawn, before its task ran: it was lost, and hung for ever."""
    async with running(tmp_path / "s") as kernel, client(kernel, "operator", operator=True) as k:
        name = program(tmp_path, "patient.py", PATIENT)
        spawn = await k.submit(m.Spawn(program=name, cwd=str(tmp_path)))
        kill = await k.submit(m.Kill(pid=1))
        with trio.fail_after(30):
            await spawn.result()
            exited = await kill.result()
        assert isinstance(exited, m.Exited)
        assert exited.ended == (1,)
        assert exited.process.state == "exited"
