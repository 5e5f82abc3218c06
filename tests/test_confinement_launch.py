"""Programs that are executed are confined too, with bubblewrap and without."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isovist.kernel.confinement.launch import UNSTARTABLE, command
from isovist.kernel.confinement.policy import Policy

SECONDS = 120
HOW = pytest.mark.parametrize(
    "bubblewrap",
    [
        pytest.param(
            True,
            marks=pytest.mark.skipif(not shutil.which("bwrap"), reason="bwrap is not installed"),
        ),
        False,
    ],
    ids=["bubblewrap", "own"],
)
TRY = """
import os, socket
def attempt(name, do):
    try:
        do()
        print(name, flush=True)
    except OSError:
        pass
attempt('read the store', lambda: open(SECRET))
attempt('list the outside', lambda: os.listdir(OUTSIDE))
attempt('write to the program', lambda: open('/usr/isovist-test', 'w'))
attempt('write here', lambda: open('here', 'w'))
attempt('read the mount', lambda: open(MOUNT))
attempt('write to the mount', lambda: open(MOUNT, 'a'))
attempt('a socket', lambda: socket.socket().close())
attempt('a unix socket', lambda: socket.socket(socket.AF_UNIX).close())
attempt('a namespace', unshare)
attempt('a child', lambda: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0))
"""


def unshare() -> str:
    return (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def unshare():\n    if libc.unshare(0x10000000): raise OSError(ctypes.get_errno(), 'x')\n"
    )


def run(
    folder: Path, policy: Policy, *argv: str, bubblewrap: bool
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(argv, policy, bubblewrap=bubblewrap),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("own", "mount", "outside")}
    for place in found.values():
        place.mkdir()
        (place / "file").write_text("x")
    return found


@pytest.mark.promise("process.confined")
@HOW
@pytest.mark.parametrize("network", [False, True])
def test_a_program_has_what_its_policy_lists(
    places: dict[str, Path], network: bool, bubblewrap: bool
) -> None:
    policy = Policy(
        read=(str(places["mount"]),), write=(str(places["own"]),), network=network, processes=8
    )
    values = {
        "SECRET": places["outside"] / "file", "OUTSIDE": places["outside"],
        "MOUNT": places["mount"] / "file",
    }  # fmt: skip
    code = "".join(f"{name} = {str(value)!r}\n" for name, value in values.items()) + unshare() + TRY
    confined = run(places["own"], policy, sys.executable, "-c", code, bubblewrap=bubblewrap)
    assert confined.stderr == ""
    socket = ["a socket"] if network else []
    assert confined.stdout.splitlines() == ["write here", "read the mount", *socket, "a child"]
    free = subprocess.run(
        [sys.executable, "-c", code.replace("/usr/isovist-test", str(places["outside"] / "new"))],
        cwd=places["own"], capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    real = ["read the store", "list the outside", "write to the program", "a unix socket"]
    assert set(real) <= set(free.stdout.splitlines())


@HOW
def test_streams_and_status_pass_through(places: dict[str, Path], bubblewrap: bool) -> None:
    def status(code: str) -> int:
        policy = Policy(write=(str(places["own"]),))
        argv = (sys.executable, "-c", code)
        return run(places["own"], policy, *argv, bubblewrap=bubblewrap).returncode

    done = subprocess.run(
        command(["cat"], Policy(write=(str(places["own"]),)), bubblewrap=bubblewrap),
        cwd=places["own"], input=b"in and out", stdout=subprocess.PIPE, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout == b"in and out"
    assert status("raise SystemExit(7)") == 7
    assert status("import os; os.kill(os.getpid(), 9)") == 128 + signal.SIGKILL


def test_a_program_that_is_not_there_says_so(places: dict[str, Path]) -> None:
    done = run(places["own"], Policy(), "/no/such/program", bubblewrap=False)
    assert done.returncode == UNSTARTABLE
    assert "/no/such/program" in done.stderr


DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    os.write(1, b'up')
    signal.pause()
signal.pause()
"""


@pytest.mark.promise("process.confined")
@HOW
@pytest.mark.parametrize("whom", ["launcher", "parent"])
def test_all_that_a_program_started_ends(
    places: dict[str, Path], whom: str, bubblewrap: bool
) -> None:
    """The end of its pipe says that all who held it are gone."""
    policy = Policy(write=(str(places["own"]),), processes=8)
    parent = (
        "import subprocess, sys\n"
        "from isovist.kernel.confinement.launch import command\n"
        "from isovist.kernel.confinement.policy import Policy\n"
        f"policy = Policy(write=({str(places['own'])!r},), processes=8)\n"
        f"argv = command([sys.executable, '-c', {DAEMON!r}], policy, bubblewrap={bubblewrap})\n"
        "subprocess.run(argv)\n"
    )
    argv = (
        command([sys.executable, "-c", DAEMON], policy, bubblewrap=bubblewrap)
        if whom == "launcher"
        else [sys.executable, "-c", parent]
    )
    with subprocess.Popen(argv, cwd=places["own"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 2) == b"up"
        process.kill()
        assert process.stdout.read() == b""
