"""``up`` and ``down``: the life of a kernel process."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from isovist.kernel import linux
from isovist.kernel.cli.common import Common, Problem, no_kernel, problem_of, suggest
from isovist.kernel.cli.show import emit, note, say
from isovist.kernel.lock import holder
from isovist.syscalls.errors import Errno

if TYPE_CHECKING:
    from isovist.kernel.config import Config

READY = b"ready"
STOP_SECONDS = 30.0
"""How long a kernel may take to end in order."""


def up(
    common: Common,
    *,
    detach: bool,
    model: str,
    embedder: str,
    require_confinement: bool,
    ready_fd: int,
    tied: bool,
) -> int:
    """Serve in this process, or ``detach`` a process that does and wait until its door answers."""
    config = common.config
    confinement = "required" if require_confinement else ""
    asked = {"model": model, "embedder": embedder, "confinement": confinement}
    settings = msgspec.structs.replace(config.settings, **{k: v for k, v in asked.items() if v})
    config = msgspec.structs.replace(config, settings=settings)
    if config.settings.model:
        from isovist.kernel import models

        if config.settings.model not in config.settings.endpoints:
            models.find(config.settings.model, config.models)
    if detach:
        pid = start(common, config)
        if common.json:
            emit(_facts(config, pid))
        else:
            say(f"kernel {config.name!r} is up (process {pid}), log in {config.log}")
        return 0
    if tied:
        linux.set_death_signal(signal.SIGTERM)
    if ready_fd >= 0:
        return _serve_detached(common, config, ready_fd)

    def announce() -> None:
        if common.json:
            emit(_facts(config, os.getpid()))

    serve(config, "debug" if common.debug else "info", announce)
    return 0


def down(common: Common) -> int:
    """Ask the kernel to end, and return when it has."""
    pid = stop(common)
    if common.json:
        emit({"stopped": pid})
    else:
        say(f"kernel {common.config.name!r} is down")
    return 0


def serve(config: Config, level: str, announce: Callable[[], None]) -> None:
    """Run a kernel until SIGTERM or SIGINT. Logs to standard error. Raises what it cannot start
    for."""
    # One thread a product: two would fight the kernel's own loop for its core, and change a
    # score's last bits. Must stand before numpy is imported for the first time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import trio

    from isovist.kernel.confinement import limits
    from isovist.kernel.kernel import Kernel
    from isovist.kernel.log import configure

    configure(sys.stderr, level)
    # Agents run as the same user. Nothing of it may read the token or a memory out of this one.
    limits.hide_memory()
    # Each agent takes four descriptors; the usual soft limit of 1,024 is for programs with select.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kernel = Kernel(config)

    async def body() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:

                async def life(*, task_status: trio.TaskStatus[None]) -> None:
                    await kernel.run(task_status=task_status)
                    nursery.cancel_scope.cancel()

                await nursery.start(life)
                announce()
                # Signals that came while it started are still here.
                async for _ in signals:
                    kernel.stop()

    try:
        trio.run(body)
    except BaseExceptionGroup as group:
        raise _cause(group) from group


def start(common: Common, config: Config, *, tied: bool = False) -> int:
    """Start a kernel in a session of its own; returns its process number when its door answers.

    A ``tied`` one ends when this process does, however that ends.
    """
    from isovist.kernel.log import rotate

    if pid := holder(config.lock):
        raise Problem(
            f"kernel {config.name!r} is already running (process {pid})",
            f"stop it with: {suggest(common, 'down')}",
            errno=Errno.EEXIST.name,
        )
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    rotate(config.log)
    choices = ["--model", config.settings.model] if config.settings.model else []
    choices += ["--embedder", config.settings.embedder]
    if config.settings.confinement == "required":
        choices.append("--require-confinement")
    flags = [*(["--debug"] if common.debug else []), *(["--tied"] if tied else [])]
    reader, writer = os.pipe()
    log = os.open(config.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(reader, "rb") as words:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "isovist.kernel", "up", *common.flags, *choices,
                 *flags, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                pass_fds=(writer,),
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writer)
            os.close(log)
        try:
            word = words.read()
        except BaseException:
            process.terminate()
            raise
    if word == READY:
        return process.pid
    process.wait()
    with suppress(msgspec.DecodeError):
        message, hint, errno = msgspec.json.decode(word, type=tuple[str, str, str])
        raise Problem(message, hint, errno=errno)
    raise Problem(
        f"the kernel ended while it started (exit status {process.returncode})",
        f"the end of {config.log} says why",
    )


def stop(common: Common) -> int:
    """End the kernel in order; returns what its process number was."""
    pid = _running(common.config)
    if not pid:
        raise no_kernel(common)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise no_kernel(common) from None
    try:
        # The number may have passed on between the two looks; what is still held has not.
        if _running(common.config) != pid:
            raise no_kernel(common)
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(STOP_SECONDS * 1000):
            raise Problem(
                f"the kernel (process {pid}) did not end within {STOP_SECONDS:.0f} s",
                f"kill -9 {pid} loses nothing that was acknowledged",
                errno=Errno.ETIMEDOUT.name,
            )
    finally:
        os.close(pidfd)
    return pid


def _running(config: Config) -> int:
    """The kernel's process number; 0 where none runs. Where somebody has removed the lock's file,
    the socket still says who listens there."""
    return holder(config.lock) or _listener(config)


def _listener(config: Config) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(config.socket))
        except OSError:
            return 0
        raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return int(pid) if uid == os.getuid() else 0


def _serve_detached(common: Common, config: Config, ready_fd: int) -> int:
    """The other side of :func:`start`: how it went is told through ``ready_fd``."""
    os.set_inheritable(ready_fd, False)
    told = False

    def tell(word: bytes) -> None:
        nonlocal told
        if not told:
            told = True
            with open(ready_fd, "wb") as out, suppress(BrokenPipeError):
                out.write(word)

    try:
        serve(config, "debug" if common.debug else "info", lambda: tell(READY))
    except Exception as e:
        problem = problem_of(e, common)
        if problem is None:
            raise
        tell(msgspec.json.encode((problem.message, problem.hint, problem.errno)))
        note(f"{problem.message}; {problem.hint}")
        return problem.status
    return 0


def _facts(config: Config, pid: int) -> dict[str, object]:
    return {
        "name": config.name,
        "pid": pid,
        "state": str(config.state),
        "socket": str(config.socket),
    }


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception in a group of groups: the others followed from it."""
    first = group.exceptions[0]
    return _cause(first) if isinstance(first, BaseExceptionGroup) else first
