"""Agents as real processes: spawned, fed, watched, ended, and gone with their kernel."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from isovist.kernel import linux
from isovist.kernel.spawner import Child, Exit, Spawner, inherited
from isovist.syscalls.errors import CallerError, Errno

SECONDS = 30  # far more than any of this takes: only a hang gets there
BOTH = pytest.mark.parametrize("namespaces", [True, False], ids=["namespace", "group"])


class House:
    """A spawner, and the exits that it reported."""

    def __init__(self, nursery: trio.Nursery, namespaces: bool = True) -> None:
        self.exits: dict[int, Exit] = {}
        self._changed = trio.Event()
        self.spawner = Spawner(nursery, self._ended, namespaces=namespaces)

    def _ended(self, end: Exit) -> None:
        assert end.pid not in self.exits
        self.exits[end.pid] = end
        self._changed.set()
        self._changed = trio.Event()

    async def exit(self, child: Child) -> Exit:
        while child.pid not in self.exits:
            await self._changed.wait()
        return self.exits[child.pid]

    async def finish(self, child: Child) -> tuple[Exit, str]:
        """The exit, and all of standard error; closes the child's pipes."""
        end = await self.exit(child)
        text = (await read_to_end(child.stderr_fd)).decode()
        child.close()
        return end, text


@asynccontextmanager
async def house(namespaces: bool = True) -> AsyncIterator[House]:
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            built = House(nursery, namespaces)
            await built.spawner.start()
            try:
                yield built
            finally:
                await built.spawner.aclose()


async def read_some(fd: int) -> bytes:
    await trio.lowlevel.wait_readable(fd)
    return os.read(fd, 65536)


async def read_to_end(fd: int) -> bytes:
    data = b""
    while part := await read_some(fd):
        data += part
    return data


def script(folder: Path, body: str, name: str = "agent.py") -> str:
    """A script that has ``reads`` and ``writes``, its channel."""
    path = folder / name
    path.write_text(f"import os, sys\nreads, writes = eval(os.environ['ISOVIST_FDS'])\n{body}\n")
    return str(path)


async def test_a_script_gets_arguments_cwd_environment_and_a_channel(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "facts = [__name__, sys.argv, os.getcwd(), os.environ['GREETING'], sys.path[0]]\n"
        "os.write(writes, repr(facts).encode())\n"
        "os.write(writes, os.read(reads, 100))",
    )
    (elsewhere := tmp_path / "elsewhere").mkdir()
    async with house() as h:
        child = await h.spawner.spawn(
            7, "../agent.py", ["a", "b c"], cwd=str(elsewhere), env={"GREETING": "hello"}
        )
        assert linux.host_pid(child.pidfd) > 0
        facts = await read_some(child.read_fd)
        assert eval(facts) == [
            "__main__",
            [program, "a", "b c"],
            str(elsewhere),
            "hello",
            str(tmp_path),
        ]
        os.write(child.write_fd, b"over to you")
        assert await read_some(child.read_fd) == b"over to you"
        end, stderr = await h.finish(child)
    assert (end, stderr) == (Exit(7, 0), "")


@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh"])
async def test_the_three_forms_of_a_program(
    tmp_path: Path, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lib := tmp_path / "lib").mkdir()
    agent = (
        "class Agent:\n"
        "    @classmethod\n"
        "    def launch(cls, args):\n"
        "        return 40 + len(args)\n"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "inner.py").write_text(agent)
    (lib / "installed.py").write_text(agent)
    # Only for what is given by path or class does the working directory hold modules.
    (tmp_path / "installed.py").write_text("raise SystemExit(99)")
    (info := lib / "thing-1.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[isovist.agents]\nthingy = installed:Agent\n")
    monkeypatch.setenv("PYTHONPATH", str(lib))
    monkeypatch.syspath_prepend(lib)
    path = script(tmp_path, "sys.exit(len(sys.argv))")
    async with house() as h:
        ends = []
        for pid, program in enumerate((path, "mine.inner:Agent", "thingy")):
            child = await h.spawner.spawn(pid, program, ["x", "y"], cwd=str(tmp_path), fresh=fresh)
            ends.append(await h.finish(child))
    assert ends == [(Exit(0, 3), ""), (Exit(1, 42), ""), (Exit(2, 42), "")]


async def test_stdio_goes_to_the_agent_and_stderr_to_the_kernel(tmp_path: Path) -> None:
    program = script(tmp_path, "print(sys.stdin.read().upper())\nprint('trouble', file=sys.stderr)")
    async with house() as h:
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        child = await h.spawner.spawn(1, program, stdio=(in_read, out_write, 2))
        os.close(in_read)
        os.close(out_write)
        os.write(in_write, b"words")
        os.close(in_write)
        assert await read_to_end(out_read) == b"WORDS\n"
        os.close(out_read)
        assert await h.finish(child) == (Exit(1, 0), "trouble\n")


async def test_standard_input_is_empty_where_none_is_given(tmp_path: Path) -> None:
    program = script(tmp_path, "print('lost')\nsys.exit(len(sys.stdin.read()) + 5)")
    async with house() as h:
        assert await h.finish(await h.spawner.spawn(1, program)) == (Exit(1, 5), "")


@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh"])
@pytest.mark.promise("process.confined")
async def test_a_child_holds_its_five_descriptors_and_no_secret(
    tmp_path: Path, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-1234")
    program = script(
        tmp_path,
        "import signal\n"
        "path = '/proc/self/fd/'\n"
        "open_now = [n for n in os.listdir(path) if os.path.exists(path + n)]\n"
        "fds = {int(n): os.readlink(path + n) for n in open_now}\n"
        "inherit = [fd for fd in fds if os.get_inheritable(fd)]\n"
        "default = [signal.getsignal(n) is signal.SIG_DFL for n in (15, 17)]\n"
        "masked = list(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "alone = os.getpgid(0) == os.getpid()\n"
        "os.write(writes, repr((fds, inherit, default, masked, alone)).encode())\n"
        "os.write(writes, repr('SOME_API_KEY' in os.environ).encode())",
    )
    async with house() as h:
        # An earlier agent's descriptors must not reach a later one.
        idle = await h.spawner.spawn(1, script(tmp_path, "os.read(reads, 1)", "idle.py"))
        child = await h.spawner.spawn(2, program, fresh=fresh)
        data = await read_to_end(child.read_fd)
        assert data.endswith(b"False")
        fds, inherit, default, masked, alone = eval(data.removesuffix(b"False"))
        assert sorted(fds) == [0, 1, 2, 3, 4]
        assert fds[0] == fds[1] == "/dev/null"
        assert len({fds[2], fds[3], fds[4]}) == 3
        assert all(fds[fd].startswith("pipe:") for fd in (2, 3, 4))
        assert inherit == [0, 1, 2]
        assert (default, masked, alone) == ([True, True], [], True)
        await h.finish(child)
        idle.close()  # its channel ends, so it does
        assert (await h.exit(idle)).status == 0


@pytest.mark.parametrize(
    ("body", "status", "stderr"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('sorry')", 1, "sorry\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("os._exit(200)", 200, ""),
        ("sys.stdout.close()", 0, ""),
        ("sys.stdout = open('/dev/full', 'w'); print('lost')", 120, ""),
        ("os.kill(os.getpid(), 9)", -9, ""),
        ("os.kill(os.getpid(), 15)", -15, ""),
        ("os.abort()", -6, None),
        ("import atexit; atexit.register(print, 'bye', file=sys.stderr)", 0, "bye\n"),
        (
            "import threading\ndef late():\n    threading.main_thread().join()\n"
            "    sys.stderr.write(word)\n"
            "threading.Thread(target=late).start()\nword = 'joined'",
            0,
            "joined",
        ),
    ],
)
async def test_how_a_process_ends(
    tmp_path: Path, body: str, status: int, stderr: str | None
) -> None:
    async with house() as h:
        end, text = await h.finish(await h.spawner.spawn(1, script(tmp_path, body)))
    assert end == Exit(1, status)
    if stderr is not None:
        assert text == stderr


async def test_an_exception_leaves_the_traceback_of_the_program_alone(tmp_path: Path) -> None:
    program = script(tmp_path, "def f():\n    raise ValueError('no')\nf()")
    async with house() as h:
        end, text = await h.finish(await h.spawner.spawn(1, program))
    assert end == Exit(1, 1)
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    assert text.splitlines()[-1] == "ValueError: no"
    assert "kernel" not in text


@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh"])
async def test_a_program_that_cannot_be_loaded_exits_126(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "bad.py").write_text("import no_such_module_anywhere\nclass A: ...\n")
    (tmp_path / "plain.py").write_text("class A: ...\nvalue = 1\n")
    (tmp_path / "syntax.py").write_text("def (:\n")
    async with house() as h:
        for pid, (program, last) in enumerate(
            {
                "bad:A": "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
                "plain:A": "TypeError: plain:A is not an Agent subclass: it has no launch()",
                "plain:value": "TypeError: plain:value is not an Agent subclass: "
                "it has no launch()",
                "plain:B": "AttributeError: module 'plain' has no attribute 'B'",
                "syntax.py": "SyntaxError: invalid syntax",
            }.items()
        ):
            child = await h.spawner.spawn(pid, program, cwd=str(tmp_path), fresh=fresh)
            end, text = await h.finish(child)
            assert end == Exit(pid, 126)
            assert text.splitlines()[-1] == last


async def test_what_cannot_be_spawned_costs_no_process(tmp_path: Path) -> None:
    program = script(tmp_path, "")
    async with house() as h:
        before = os.listdir("/proc/self/fd")
        for arguments, errno, field in (
            (("no_such.py",), Errno.ENOENT, "program"),
            (("nobody",), Errno.ENOENT, "program"),
            ((program, ["a\0b"]), Errno.EINVAL, "args"),
            ((program, ["\ud800"]), Errno.EINVAL, "args"),
            ((program, ["x" * 200_000]), Errno.EMSGSIZE, "args"),
        ):
            with pytest.raises(CallerError) as caught:
                await h.spawner.spawn(1, *arguments)
            assert (caught.value.errno, caught.value.field) == (errno, field)
        assert os.listdir("/proc/self/fd") == before
        assert h.spawner.statistics()["spawned"] == 0
        child = await h.spawner.spawn(1, program)
        with pytest.raises(CallerError, match="EEXIST"):
            await h.spawner.spawn(1, program)
        await h.finish(child)


async def test_kill_is_sigkill_or_sigterm_with_grace(tmp_path: Path) -> None:
    polite = script(tmp_path, "os.write(writes, b'.'); os.read(reads, 1)", "polite.py")
    deaf = script(
        tmp_path,
        "import signal; signal.signal(15, signal.SIG_IGN)\n"
        "os.write(writes, b'.')\nwhile True: signal.pause()",
        "deaf.py",
    )
    async with house() as h:
        ends = []
        for pid, (program, grace) in enumerate([(polite, 0), (polite, 20), (deaf, 0.01)]):
            child = await h.spawner.spawn(pid, program)
            assert await read_some(child.read_fd) == b"."
            h.spawner.kill(pid, grace=grace)
            ends.append((await h.finish(child))[0].status)
        h.spawner.kill(0)  # long gone: harmless
    assert ends == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL]


@BOTH
async def test_the_process_group_ends_with_its_agent(tmp_path: Path, namespaces: bool) -> None:
    program = script(
        tmp_path,
        "import signal\n"
        "if os.fork() == 0:\n    os.write(1, b'.')\n    while True: signal.pause()\n"
        "os.read(reads, 1)",
    )
    async with house(namespaces) as h:
        out_read, out_write = os.pipe()
        child = await h.spawner.spawn(1, program, stdio=(0, out_write, 2))
        os.close(out_write)
        assert await read_some(out_read) == b"."
        child.close()
        assert (await h.exit(child)).status == 0
        assert await read_to_end(out_read) == b""  # only the grandchild held it still
        os.close(out_read)


async def test_fifty_at_once_leave_no_descriptor_and_no_zombie(tmp_path: Path) -> None:
    program = script(tmp_path, "os.write(writes, sys.argv[1].encode())\nsys.exit(9)")
    async with house() as h:
        seen: set[int] = set()

        async def one(pid: int) -> None:
            child = await h.spawner.spawn(pid, program, [str(pid)])
            assert await read_to_end(child.read_fd) == str(pid).encode()
            assert await h.finish(child) == (Exit(pid, 9), "")
            seen.add(pid)

        await one(0)
        before = len(os.listdir("/proc/self/fd"))
        for batch in (range(1, 51), range(51, 101)):
            async with trio.open_nursery() as nursery:
                for pid in batch:
                    nursery.start_soon(one, pid)
        assert seen == set(range(101))
        assert len(os.listdir("/proc/self/fd")) == before
        statistics = h.spawner.statistics()
        assert (statistics["agents"], statistics["spawned"]) == (0, 101)
        assert children_of(int(statistics["zygote_pid"])) == []


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


@BOTH
async def test_a_killed_zygote_takes_its_agents_and_is_replaced(
    tmp_path: Path, namespaces: bool
) -> None:
    program = script(tmp_path, DAEMONS)
    before = set(children_of(os.getpid()))
    async with house(namespaces) as h:
        out_read, out_write = os.pipe()
        children = [await h.spawner.spawn(n, program, stdio=(0, out_write, 2)) for n in (1, 2)]
        os.close(out_write)
        await count_to(out_read, 2 * 4)
        os.kill(int(h.spawner.statistics()["zygote_pid"]), signal.SIGKILL)
        for child in children:
            end, _ = await h.finish(child)
            assert end == Exit(child.pid, None, "the zygote ended")
        assert await read_to_end(out_read) == b""
        os.close(out_read)
        child = await h.spawner.spawn(3, script(tmp_path, "sys.exit(5)", "next.py"))
        assert await h.finish(child) == (Exit(3, 5), "")
        assert h.spawner.statistics()["zygotes"] == 2
    assert set(children_of(os.getpid())) <= before


async def test_a_cancelled_spawn_leaves_no_process(tmp_path: Path) -> None:
    out_read, out_write = os.pipe()
    program = script(tmp_path, "import signal\nwhile True: signal.pause()")
    async with house() as h:
        zygote = int(h.spawner.statistics()["zygote_pid"])
        os.kill(zygote, signal.SIGSTOP)
        before = len(os.listdir("/proc/self/fd"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: h.spawner.spawn(1, program, stdio=(0, out_write, 2)))
            # Until the job has been sent.
            while not h.spawner.statistics()["asked"]:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        os.close(out_write)
        os.kill(zygote, signal.SIGCONT)
        assert await read_to_end(out_read) == b""
        os.close(out_read)
        child = await h.spawner.spawn(2, script(tmp_path, "", "next.py"))
        await h.finish(child)
        assert len(os.listdir("/proc/self/fd")) == before - 2
    assert list(h.exits) == [2]


async def test_a_process_can_be_killed_while_it_is_being_spawned(tmp_path: Path) -> None:
    program = script(tmp_path, "os.read(reads, 1)")
    async with house() as h, trio.open_nursery() as nursery:

        async def one() -> None:
            child = await h.spawner.spawn(1, program)
            assert await h.finish(child) == (Exit(1, -signal.SIGKILL), "")

        nursery.start_soon(one)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()  # each runs every task once: it has begun
        h.spawner.kill(1)
    assert h.spawner.statistics()["zygote_pid"] == -1


async def test_big_jobs_queue_for_the_control_socket(tmp_path: Path) -> None:
    program = script(tmp_path, "sys.exit(sum(map(len, sys.argv[1:])) // 1000)")
    async with house() as h:

        async def one(pid: int) -> None:
            child = await h.spawner.spawn(pid, program, ["x" * 50_000, "y" * 50_000])
            assert await h.finish(child) == (Exit(pid, 100), "")

        async with trio.open_nursery() as nursery:
            for pid in range(8):
                nursery.start_soon(one, pid)
    assert len(h.exits) == 8


async def test_a_cancelled_nursery_takes_everything_along(tmp_path: Path) -> None:
    out_read, out_write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    children = set(children_of(os.getpid()))
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            h = House(nursery)
            child = await h.spawner.spawn(1, script(tmp_path, DAEMONS), stdio=(0, out_write, 2))
            await count_to(out_read, 4)
            nursery.cancel_scope.cancel()
        child.close()
        os.close(out_write)
        assert await read_to_end(out_read) == b""
    os.close(out_read)
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert set(children_of(os.getpid())) <= children


# An agent with a child in its group, one in a session of its own, and a twice-forked daemon that
# ignores every signal it can. Each says so on standard output, which all of them keep open.
DAEMONS = """
import signal
def stay():
    for n in (1, 2, 3, 15):
        signal.signal(n, signal.SIG_IGN)
    os.write(1, b".")
    while True:
        signal.pause()
if os.fork() == 0:
    stay()
if os.fork() == 0:
    os.setsid()
    stay()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay()
    os._exit(0)
stay()
"""

# The kernel's side, to be killed: spawns what it is told, forked and fresh.
KERNEL = """
import sys, trio
from isovist.kernel.spawner import Spawner
async def main():
    async with trio.open_nursery() as nursery:
        spawner = Spawner(nursery, print, namespaces=sys.argv[1] == "True")
        for pid in range(4):
            await spawner.spawn(pid, sys.argv[2], fresh=pid % 2 == 1, stdio=(0, 1, 2))
        await trio.sleep_forever()
trio.run(main)
"""


async def count_to(fd: int, dots: int) -> None:
    """Wait for so many of :data:`DAEMONS`' dots."""
    while dots > 0:
        part = await read_some(fd)
        assert part.strip(b".") == b""
        assert part
        dots -= len(part)


@BOTH
@pytest.mark.promise("process.confined")
async def test_nothing_outlives_a_killed_kernel(tmp_path: Path, namespaces: bool) -> None:
    out_read, out_write = os.pipe()
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, str(namespaces), script(tmp_path, DAEMONS)],
        stdin=subprocess.DEVNULL,
        stdout=out_write,
        env=inherited(os.environ),
    )
    os.close(out_write)
    try:
        with trio.fail_after(SECONDS):
            await count_to(out_read, 4 * 4)
            kernel.kill()
            # The end of the file: not one process is left that could write to it.
            assert await read_to_end(out_read) == b""
    finally:
        kernel.kill()
        kernel.wait()
        os.close(out_read)


@pytest.mark.promise("process.confined")
async def test_nothing_outlives_the_guard(tmp_path: Path) -> None:
    """In a namespace not even the guard's own death matters; without one it is what holds them,
    so there only the agents themselves are sure to go."""
    before = set(children_of(os.getpid()))
    async with house() as h:
        held = await h.spawner.start() == "pid-namespace"
        body = DAEMONS if held else "os.write(1, b'....')\nos.read(reads, 1)"
        out_read, out_write = os.pipe()
        child = await h.spawner.spawn(1, script(tmp_path, body), stdio=(0, out_write, 2))
        os.close(out_write)
        await count_to(out_read, 4)
        (guard,) = set(children_of(os.getpid())) - before
        os.kill(guard, signal.SIGKILL)
        assert await read_to_end(out_read) == b""
        os.close(out_read)
        assert (await h.finish(child))[0].reason == "the zygote ended"


async def test_isolation_is_reported_and_the_fallback_can_be_chosen() -> None:
    async with house(namespaces=False) as h:
        assert await h.spawner.start() == "process-group"
        assert h.spawner.statistics()["zygotes"] == 1
    probe = subprocess.run(
        [sys.executable, "-c", "from isovist.kernel import linux; linux.unshare_pids()"],
        env=inherited(os.environ),
        stderr=subprocess.DEVNULL,
    )
    async with house() as h:
        expected = "pid-namespace" if probe.returncode == 0 else "process-group"
        assert await h.spawner.start() == expected


def test_a_message_cut_short_leaks_no_descriptor() -> None:
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        for data, fds in ((b"x" * 100, [0]), (b"x", [0] * 3)):
            linux.send_message(ours, data, fds)
            with pytest.raises(OSError, match="longer than") as caught:
                linux.receive_message(theirs, 10, 1)
            assert caught.value.errno == Errno.EMSGSIZE
            assert len(os.listdir("/proc/self/fd")) == before
        linux.send_message(ours, b"whole", [ours.fileno()])
        data, fds = linux.receive_message(theirs, 10, 1)
        assert (data, len(fds), os.get_inheritable(fds[0])) == (b"whole", 1, False)
        os.close(fds[0])


def test_a_pidfd_knows_its_host_pid_until_the_process_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    assert linux.host_pid(pidfd) == process.pid
    assert linux.send_signal(pidfd, signal.SIGTERM)
    assert select.select([pidfd], [], [], SECONDS)[0] == [pidfd]
    process.communicate()
    assert linux.host_pid(pidfd) == -1
    assert not linux.send_signal(pidfd, signal.SIGTERM)
    os.close(pidfd)
