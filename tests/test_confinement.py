"""Agents are held where they belong: attacks by real processes, as root and as an ordinary user,
each tried without confinement too."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from confinement_attacks import ATTACKS, NOT_REAL
from kernel_helpers import client, config, running

from isovist.kernel import linux, programs
from isovist.kernel.confinement import numbers, policy, report, workspace
from isovist.kernel.confinement.policy import within
from isovist.kernel.environment import inherited
from isovist.kernel.kernel import Kernel
from isovist.kernel.models import SCRIPTED
from isovist.kernel.spawner import Child, Confinement, Exit, Spawner
from isovist.syscalls.errors import CallerError, Errno

HERE = Path(__file__).parent
ORDINARY = 64_322
"""An ordinary user's number, with no name and no files."""
SECONDS = 240


def become_ordinary() -> None:
    """Be an ordinary user to whom the folders of this interpreter lie open, wherever root keeps
    them: in a mount namespace they are shown without what is around them."""
    needed = [sys.base_prefix, sys.prefix, str(HERE.parent)]
    shut = {
        str(folder)
        for path in needed
        for folder in Path(os.path.realpath(path)).parents
        if not folder.stat().st_mode & stat.S_IXOTH
    }
    linux.unshare_mounts()
    for folder in sorted(shut):
        if any(within(folder, outer) for outer in shut - {folder}):
            continue
        within_it = [real for real in map(os.path.realpath, needed) if within(real, folder)]
        held = os.open(folder, os.O_PATH)
        trees = {real: linux.clone_tree(held, os.path.relpath(real, folder)) for real in within_it}
        linux.mount_empty(folder)
        for real, tree in trees.items():
            os.makedirs(real, exist_ok=True)
            linux.place_tree(tree, real)
    os.setgroups([])
    os.setresgid(ORDINARY, ORDINARY, ORDINARY)
    os.setresuid(ORDINARY, ORDINARY, ORDINARY)


def enter(user: str, folder: Path) -> None:
    """In the child, before it executes: be ``user``."""
    if user == "ordinary" and os.geteuid() == 0:
        os.chown(folder, ORDINARY, ORDINARY)
        become_ordinary()


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="iso-") as folder:
        yield Path(folder)


def as_user(user: str, folder: Path, *command: str) -> str:
    """Standard output of ``command``, a Python script and arguments, run by ``user``."""
    if user == "root" and os.geteuid() != 0:
        pytest.skip("these tests do not run as root")
    env = {**inherited(os.environ), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        env=env,
        cwd="/",
        preexec_fn=lambda: enter(user, folder),
        timeout=SECONDS,
        check=True,
        text=True,
    )
    return done.stdout


@pytest.mark.promise("process.confined")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks name its syscalls")
@pytest.mark.parametrize("user", ["root", "ordinary"])
def test_no_attack_gets_through_that_gets_through_without(user: str) -> None:
    with open_folder() as folder:
        found: dict[str, list[str]] = json.loads(
            as_user(user, folder, str(HERE / "confinement_attacks.py"), str(folder))
        )
        assert (folder / "state" / "moved").exists() is False, "moved by the second run alone"
    assert set(found) == set(ATTACKS)
    assert {name: ends[0] for name, ends in found.items() if ends[0] == "got"} == {}
    not_real = {name for name, ends in found.items() if ends[1] != "got"}
    assert not_real - NOT_REAL == set(), {name: found[name][1] for name in not_real}


@pytest.mark.promise("process.confined")
@pytest.mark.parametrize("user", ["root", "ordinary"])
def test_what_is_enforced_here_is_found_by_trying(user: str) -> None:
    with open_folder() as folder:
        found = json.loads(as_user(user, folder, "-P", "-m", report.__name__))
    assert set(found) == set(report.MATTERS)
    lack = report.lacking(found)
    if not lack:
        assert found["files"].startswith("Landlock")
    else:
        assert all(report.HINTS[name] for name in lack)


# -- what agents can do all the same


class House:
    """Agents of a spawner, and what they said."""

    def __init__(self, nursery: trio.Nursery, folder: Path, **processes: int) -> None:
        self.folder = folder
        (folder / "state").mkdir(exist_ok=True)
        (folder / "program").mkdir(exist_ok=True)
        self.ends: dict[int, Exit] = {}
        private = (str(folder / "state"),)
        self.confinement = Confinement(folder / "state" / "workspaces", private, processes)
        self.spawner = Spawner(nursery, self._ended, confinement=self.confinement)
        self._pid = 0

    def _ended(self, end: Exit) -> None:
        self.ends[end.pid] = end

    async def start(self, body: str, **options: Any) -> Child:  # what Spawner.spawn takes
        path = self.folder / "program" / "agent.py"
        path.write_text(
            "import os, sys\nreads, writes = eval(os.environ['ISOVIST_FDS'])\n"
            "def say(what): os.write(writes, f'{what}\\n'.encode())\n" + body
        )
        self._pid += 1
        options.setdefault("agent", "a")
        return await self.spawner.spawn(self._pid, str(path), **options)

    async def said(self, body: str, **options: Any) -> list[str]:  # what Spawner.spawn takes
        """All that an agent of this ``body`` says, to its end."""
        child = await self.start(body, **options)
        os.close(child.write_fd)
        child.write_fd = -1
        words, errors = await to_end(child.read_fd), await to_end(child.stderr_fd)
        child.close()
        assert errors == "", errors
        return words.splitlines()


async def to_end(fd: int) -> str:
    data = b""
    while True:
        await trio.lowlevel.wait_readable(fd)
        if not (part := os.read(fd, 65536)):
            return data.decode()
        data += part


@contextlib.asynccontextmanager
async def house(folder: Path, **processes: int):
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            built = House(nursery, folder, **processes)
            try:
                yield built
            finally:
                await built.spawner.aclose()


USEFUL = """
import asyncio, shutil, sqlite3, tempfile, threading, trio
say(os.getcwd() == os.environ['HOME'])
with tempfile.TemporaryFile() as file:
    say(file.write(b'x' * 100))
with tempfile.TemporaryDirectory() as made:
    say(os.path.dirname(made) == os.environ['TMPDIR'])
db = sqlite3.connect('mine.db')
db.execute('PRAGMA journal_mode = WAL'); db.execute('CREATE TABLE IF NOT EXISTS t (x)')
db.execute('INSERT INTO t VALUES (1)'); db.commit()
say(db.execute('SELECT count(*) FROM t').fetchone()[0])
db.close()
threads = [threading.Thread(target=say, args=('thread',)) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
async def loop(): return await trio.to_thread.run_sync(lambda: 'trio')
say(trio.run(loop))
async def other(): return await asyncio.to_thread(lambda: 'asyncio')
say(asyncio.run(other()))
os.makedirs('a/b'); open('a/b/c', 'w').close(); os.rename('a/b/c', 'd'); shutil.rmtree('a')
shutil.copyfile('d', 'e')
import helper
say(helper.WORD)
say(__import__('time').strftime('%Z') != '')
"""


@pytest.mark.promise("process.confined")
@pytest.mark.parametrize("fresh", [False, True], ids=["fork", "fresh"])
async def test_what_agents_need_works(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "helper.py").write_text("WORD = 'beside the script'\n")
    async with house(tmp_path) as at:
        words = await at.said(USEFUL, fresh=fresh)
    assert words == ["True", "100", "True", "1", *["thread"] * 3, "trio", "asyncio",
                     "beside the script", "True"]  # fmt: skip
    kept = workspace.folder(tmp_path / "state" / "workspaces", "a")
    assert {path.name for path in kept.iterdir()} == {".tmp", "mine.db", "d", "e"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700


HELD = """
import socket
def execute(): os.execv(sys.executable, [sys.executable, '-c', ''])
for attempt in (os.fork, execute, socket.socket,
                lambda: open(__file__, 'a'), lambda: open('/etc/passwd')):
    try:
        attempt(); say('got')
    except OSError as e:
        say(type(e).__name__)
"""


@pytest.mark.promise("process.confined")
async def test_a_fresh_interpreter_is_held_like_a_fork(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        assert await at.said(HELD) == ["PermissionError"] * 5
        assert await at.said(HELD, fresh=True) == ["PermissionError"] * 5


@pytest.mark.promise("process.confined")
async def test_mounts_are_as_asked_and_no_more(tmp_path: Path) -> None:
    for name in ("read", "write", "neither"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    body = f"""
for name in ('read', 'write', 'neither'):
    for mode in ('r', 'a'):
        try:
            with open({str(tmp_path)!r} + f'/{{name}}/file', mode): say(f'{{name}} {{mode}}')
        except PermissionError: pass
"""
    mounts = [(str(tmp_path / "read"), "ro"), (str(tmp_path / "write"), "rw")]
    async with house(tmp_path) as at:
        assert await at.said(body, mounts=mounts) == ["read r", "write r", "write a"]
        assert await at.said(body) == []


@pytest.mark.promise("process.confined")
async def test_what_it_may_start_ends_with_the_agent(tmp_path: Path) -> None:
    """A daemon of a daemon, in a session of its own, dies with the agent that started it."""
    body = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        say('daemon')
        os.read(reads, 1)
        os._exit(0)
    os._exit(0)
os.wait()
import signal
signal.pause()
"""
    async with house(tmp_path, forker=2) as at:
        child = await at.start(body, agent="forker")
        await trio.lowlevel.wait_readable(child.read_fd)
        assert os.read(child.read_fd, 100) == b"daemon\n"
        at.spawner.kill(1)
        # Its end of the pipe closes when the daemon, too, is gone: it waits for our word.
        assert await to_end(child.read_fd) == ""
        child.close()


async def test_sigterm_ends_an_agent_that_is_process_one(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        child = await at.start("say(os.getpid())\nos.read(reads, 1)\n")
        await trio.lowlevel.wait_readable(child.read_fd)
        assert os.read(child.read_fd, 100) == b"1\n"
        at.spawner.kill(1, grace=SECONDS)
        await to_end(child.read_fd)
        while 1 not in at.ends:
            await trio.sleep(0.01)
        assert at.ends[1].status == -signal.SIGTERM
        child.close()


@pytest.mark.promise("process.confined")
async def test_an_agent_holds_nothing_of_what_others_were_told(tmp_path: Path) -> None:
    """The zygote must not keep arguments in the memory that later agents are copies of."""
    secret = "sesame-" + os.urandom(8).hex()
    search = """
found = 0
half, other = sys.argv[1:]
import ctypes, gc
for kept in gc.get_objects():
    if isinstance(kept, (tuple, list)) and any(type(x) is str and x == half + other for x in kept):
        found += 1
say(found)
"""
    async with house(tmp_path) as at:
        assert await at.said("say(len(sys.argv))", args=[secret], env={"SECRET": secret}) == ["2"]
        # The sum is made anew in the search: only a copy that was there before counts.
        assert await at.said(search, args=[secret[:9], secret[9:]]) == ["0"]


# -- the pure parts


def test_a_mount_of_the_kernels_folders_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    link = tmp_path / "link"
    link.symlink_to(state)
    for path in (state, tmp_path, link, Path("/proc"), Path("/"), Path("relative"), state / "no"):
        with pytest.raises(CallerError) as e:
            policy.of_mounts([(str(path), "ro")], [str(state)])
        assert e.value.field == "mounts"
    own = tmp_path / "own"
    own.mkdir()
    assert policy.of_mounts([(str(own), "rw")], [str(state)]) == ((), (str(own),))


def test_what_a_program_reads_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    project.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, project):
        (folder / "agent.py").touch()
        (folder / "secret.txt").touch()

    def reads(folder: Path, *private: Path) -> set[str]:
        found = policy.of_program(
            "script", str(folder / "agent.py"), str(folder), [*map(str, private)]
        )
        return {os.path.relpath(path, folder) for path in found}

    assert reads(project) == {"."}
    assert reads(home) == {"agent.py"}, "never the home folder as a whole"
    (project / "state").mkdir()
    assert reads(project, project / "state") == {"agent.py", "secret.txt"}
    assert reads(project, project) == {"agent.py"}
    assert policy.of_program("name", "isovist.agents.task:TaskAgent", "/", []) != ("/",)
    installed = policy.of_program("class", "trio:run", str(home), [])
    assert [Path(path).name for path in installed] == ["trio"]


def test_nothing_that_agents_read_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert str(tmp_path) not in policy.interpreter()
    assert os.path.expanduser("~") not in policy.interpreter()


def test_a_state_folder_in_what_all_read_is_refused() -> None:
    inside = os.path.join(os.path.realpath(os.path.dirname(os.__file__)), "kernel-state")
    for bad in (inside, "/", os.path.realpath(sys.base_prefix)):
        with pytest.raises(CallerError) as e:
            policy.check_private([bad])
        assert e.value.field == "state"


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "ä" * 60, "x" * 128, "A b\n", "%2E", ".tmp", "~", "a~b"]
)
def test_each_name_has_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    found = workspace.folder(tmp_path, name)
    assert found.parent == tmp_path
    assert found.name not in (".", "..")
    assert len(os.fsencode(found.name)) <= 255
    others = {".", "..", "a", "b", "x" * 127, "ä" * 59, "A b", "%", "~~", "a%7Eb"} - {name}
    assert found not in {workspace.folder(tmp_path, other) for other in others}
    made = workspace.prepare(tmp_path, name)
    assert made.is_dir()
    assert workspace.prepare(tmp_path, name) == made


def test_a_workspace_is_measured_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "in" / "deep" / "file").write_bytes(b"x" * 8192)
    (tmp_path / "out").write_bytes(b"x" * 1_000_000)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert 8192 <= workspace.size(tmp_path / "in") < 100_000


def test_the_numbers_are_those_of_this_system() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the headers of Linux are not installed")
    known = dict(
        line.split()[1:3] for line in header.read_text().splitlines() if "#define __NR_" in line
    )
    table = numbers.numbers("x86_64")
    for name, number in table.items():
        assert known.get(f"__NR_{name}", str(number)) == str(number), name
    assert len(table) > 150


# -- the kernel


@pytest.mark.promise("process.confined")
async def test_a_kernel_confines_by_default_and_can_be_told_not_to(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(f"open({str(tmp_path / 'state' / 'isovist.db')!r}, 'rb').close()\n")
    statuses = []
    for choice in ("on", "off"):
        async with (
            running(tmp_path / "state", confinement=choice) as kernel,
            client(kernel, "operator", operator=True) as k,
        ):
            spawned = await k.spawn(str(program))
            statuses.append((await k.wait(spawned.pid)).process.status)
    assert statuses == [1, 0]


@pytest.mark.promise("process.confined")
async def test_confinement_that_is_required_and_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "here", lambda: {**dict.fromkeys(report.MATTERS, "x"), "files": ""})
    with pytest.raises(CallerError) as e:
        await Kernel(config(tmp_path, confinement="required"), models=[SCRIPTED], door=False).run()
    assert e.value.errno == Errno.EPERM
    assert e.value.field == "confinement"
    assert report.MATTERS["files"] in e.value.message
    everything = dict.fromkeys(report.MATTERS, "x") | dict.fromkeys(report.OPTIONAL, "")
    monkeypatch.setattr(report, "here", lambda: everything)
    async with running(tmp_path, confinement="required") as kernel:
        assert kernel.config.private == config(tmp_path).private


def test_who_spawns_shows_its_child_nothing_that_it_may_not_read_itself(tmp_path: Path) -> None:
    mine, victim = tmp_path / "mine", tmp_path / "victim"
    for folder in (mine / "workspace", mine / "agent", victim / "taxes"):
        folder.mkdir(parents=True)
    for script in (mine / "agent" / "a.py", mine / "workspace" / "b.py", victim / "c.py"):
        script.touch()
    link = mine / "workspace" / "link"
    link.symlink_to(victim)  # to be exchanged for a folder of its own when the policy is made
    workspace = str(mine / "workspace")
    above = (str(mine / "agent"), workspace)

    def made(program: str, cwd: Path, above: tuple[str, ...] | None) -> policy.Policy:
        return policy.of_agent(programs.resolve(program, str(cwd)), workspace, (), above=above)

    assert str(mine / "agent") in made("a.py", mine / "agent", above).read
    assert workspace in made("b.py", mine / "workspace", above).read
    assert str(victim) in made("taxes:X", link, None).read
    assert made("profile", mine / "agent", above).write == (workspace,), "what is installed"
    for program, cwd in (("c.py", victim), ("c.py", link), ("taxes:X", victim), ("taxes:X", link)):
        with pytest.raises(CallerError) as e:
            made(program, cwd, above)
        assert (e.value.errno, e.value.field) == (Errno.EPERM, "program")


def test_a_mount_that_an_agent_exchanged_for_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    sub = tmp_path / "data" / "sub"
    assert policy.of_mounts([(str(sub), "rw")], ()) == ((), (str(sub),))
    assert linux.open_place(str(sub), links=False) >= 64
    sub.rename(tmp_path / "data" / "old")
    sub.symlink_to(tmp_path / "victim")
    with pytest.raises(CallerError) as e:
        policy.of_mounts([(str(sub), "rw")], ())
    assert e.value.field == "mounts"
    for path in (sub, sub / "inner"):
        with pytest.raises(OSError, match=r"link|directory"):
            linux.open_place(str(path), links=False)
