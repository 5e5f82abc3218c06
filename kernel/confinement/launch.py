"""Run any program confined: a tool server, an interpreter of another language, a shell.

::

    kernel ── launcher ── process 1 of a PID namespace ── the program ── its children …

:func:`command` gives what to execute in the program's place. Standard streams, environment and
working folder pass through, SIGTERM and SIGINT are passed on, and the exit status is the
program's (128 + the signal's number where one killed it). The launcher ends the program when
whoever started the launcher is gone, and Linux ends all of the namespace when the launcher is.

Where bubblewrap is installed it builds a root of its own for the program, with nothing in it but
what the policy lists; where not, Landlock denies the rest. Either way seccomp filters its
syscalls, and where the policy gives no network the program has a network namespace without any.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from isovist.kernel import linux
from isovist.kernel.confinement import limits, policy, seccomp
from isovist.kernel.confinement.apply import Fence, bound_tasks
from isovist.kernel.confinement.policy import Policy

UNSTARTABLE = 126
"""Exit status where the program could not be confined or executed."""

CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in ("ld.so.cache", "localtime", "nsswitch.conf", "hosts", "resolv.conf", "passwd",
                 "group", "services", "protocols", "mime.types", "ssl", "pki", "alternatives",
                 "ca-certificates", "gai.conf")
)  # fmt: skip
"""What programs of the system read of ``/etc``."""

_BOOT = (
    f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import main; main(sys.argv[2:])"
)


def command(argv: Sequence[str], wanted: Policy, *, bubblewrap: bool = True) -> list[str]:
    """What to execute, as a child of this process, so that ``argv`` runs under ``wanted``.

    To what the policy lists this adds :data:`policy.PROGRAMS`, :data:`CONFIGURATION`, this
    interpreter with its packages, and the program's own file. ``bubblewrap`` is used where it is
    installed unless that is false. A policy of no ``processes`` is given one: the program itself.
    """
    root = str(Path(__file__).absolute().parent.parent.parent.parent)
    order = _Order(
        policy=msgspec.structs.replace(wanted, processes=max(wanted.processes, 1)),
        parent=os.getpid(),
        bubblewrap=(shutil.which("bwrap") or "") if bubblewrap else "",
    )
    encoded = msgspec.json.encode(order).decode()
    return [sys.executable, "-I", "-c", _BOOT, root, encoded, *argv]


class _Order(msgspec.Struct, frozen=True):
    policy: Policy
    parent: int
    bubblewrap: str = ""
    """Its path; empty: without."""


def main(argv: Sequence[str]) -> NoReturn:
    """``ORDER PROGRAM [ARG…]``: be the launcher."""
    order = msgspec.json.decode(argv[0], type=_Order)
    try:
        parent = os.pidfd_open(order.parent)
        if os.getppid() != order.parent:
            os._exit(UNSTARTABLE)  # it has gone already, and nobody waits for us
        wanted = _completed(order.policy, argv[1])
        if order.bubblewrap:
            held, child = True, _bubblewrap(order.bubblewrap, wanted, argv[1:])
        else:
            held, child = _namespace(wanted, argv[1:])
        _guard(parent, child, held)
    except OSError as e:
        print(f"{argv[1]} could not be confined: {e}", file=sys.stderr)
        os._exit(UNSTARTABLE)


def _completed(wanted: Policy, program: str) -> Policy:
    found = shutil.which(program)
    run = {
        *wanted.run,
        *policy.PROGRAMS,
        *policy.interpreter(),
        *policy.executables(),
        *(os.path.join(prefix, "bin") for prefix in (sys.prefix, sys.base_prefix)),
        *((found, os.path.realpath(found)) if found else ()),
    }
    read = {*wanted.read, *policy.SYSTEM, *CONFIGURATION}
    return msgspec.structs.replace(wanted, run=tuple(sorted(run)), read=tuple(sorted(read)))


def _guard(parent: int, child: int, held: bool) -> NoReturn:
    """Wait until the program or our parent ends. ``held``: with the child all else ends."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    ending = os.pidfd_open(child)
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(ending, select.POLLIN)
    if parent in (ready := {fd for fd, _ in poll.poll()}) and ending not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not held:
        linux.kill_children()
    os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _namespace(wanted: Policy, argv: Sequence[str]) -> tuple[bool, int]:
    """Start the program by our own means: whether a namespace holds it, and whom to wait for."""
    held = True
    try:
        linux.unshare_all(network=not wanted.network)
    except OSError:
        linux.set_subreaper()
        held = False
    if (child := os.fork()) == 0:
        linux.set_death_signal(signal.SIGKILL)
        if held:
            bound_tasks(wanted.tasks)
            if (program := os.fork()) != 0:
                _be_first(program)
        fence = Fence((), ())
        fence.files(wanted)
        fence.rest(wanted)
        _execute(argv)
    return held, child


def _be_first(program: int) -> NoReturn:
    """As process 1: take in orphans and end with the program. Signals sent to us are for it."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    # Its pipes end when the program ends, not when we do.
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        ended, status = os.wait()
        if ended == program:
            os._exit(_exit_code(status))


def _bubblewrap(path: str, wanted: Policy, argv: Sequence[str]) -> int:
    if (child := os.fork()) == 0:
        filter_, writes = os.pipe()
        os.write(writes, seccomp.program(pid=0, children=True, network=wanted.network))
        os.close(writes)
        os.set_inheritable(filter_, True)
        linux.set_death_signal(signal.SIGKILL)
        limits.limit(
            memory=wanted.memory,
            mapped=False,
            files=wanted.files,
            file_size=wanted.file_size,
            tasks=policy.USER_TASKS,
        )
        _execute([path, *_options(wanted, filter_), "--", *argv])
    return child


def _options(wanted: Policy, filter_: int) -> list[str]:
    """Of bubblewrap. Later mounts lie on earlier ones, so outer folders come first."""
    binds = dict.fromkeys((*wanted.read, *wanted.run), "--ro-bind-try")
    binds |= dict.fromkeys(wanted.write, "--bind-try")
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--share-net"] if wanted.network else []
    options += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    done: dict[str, str] = {"/dev": ""}
    for place in sorted(binds, key=lambda place: place.count("/")):
        # The nearest folder around it that is there already.
        outer = max((other for other in done if policy.within(place, other)), key=len, default="/")
        if outer != "/dev" and done.get(outer) != binds[place]:
            options += [binds[place], place, place]
            done[place] = binds[place]
    return [*options, "--seccomp", str(filter_), "--chdir", os.getcwd()]


def _execute(argv: Sequence[str]) -> NoReturn:
    try:
        os.execvp(argv[0], [*argv])
    except OSError as e:
        print(f"{argv[0]} could not be executed: {e.strerror}", file=sys.stderr)
        os._exit(UNSTARTABLE)
