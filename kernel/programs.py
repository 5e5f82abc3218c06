"""What a program string means, and how a process becomes that program.

========================  ================================================================
``PATH`` (``/`` or .py)   a script, run as ``__main__`` as ``python PATH`` would
``module:Class``          an ``Agent`` subclass, through its ``launch(args)``
``NAME``                  a built-in agent, or an entry point of group ``isovist.agents``
========================  ================================================================

Exit codes of the process: the program's own where it has one (``SystemExit``, or what
``launch`` returns); 1 for an exception that nobody caught; 120 where its last output could not
be written; 126 for a program that could not be loaded (a syntax error, a module that fails at
import, a class that is no agent); 130 for ``KeyboardInterrupt``. What cannot be found is told
before there is a process: ``ENOENT``.

``python -m isovist.kernel.programs KIND TARGET CWD [ARG…]`` does in a fresh interpreter what a
fork of the zygote does.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

import msgspec

from isovist.syscalls.errors import CallerError, Errno

GROUP = "isovist.agents"
"""The entry point group in which other distributions offer agents by name."""

BUILT_IN = {
    "profile": "isovist.agents.profile:ProfileAgent",
    "task": "isovist.agents.task:TaskAgent",
    "assistant": "isovist.agents.assistant:AssistantAgent",
}
"""Our own agents. They come before entry points: no other distribution can take their names,
and they are there in a bare checkout too."""

SEALED = "ISOVIST_SEAL"
"""Environment variable of a fresh interpreter that is confined, and yet has to take its right to
execute from itself."""

CHANNEL = "ISOVIST_FDS"
"""Environment variable: ``r,w``, the descriptors on which the agent reads and writes."""

UNLOADABLE = 126
TERMINATED = 128 + signal.SIGTERM
"""How process 1 of a namespace ends by SIGTERM: Linux would ignore the signal."""
INTERRUPTED = 130
LOST_OUTPUT = 120
MAX_PROGRAM = 4096
"""Bytes in a program string."""


class Resolved(msgspec.Struct, frozen=True):
    """A program that was found. ``target`` is an absolute path or ``module:Class``; ``cwd`` is
    absolute. Modules are looked for in ``cwd`` too where the program was given as a class; an
    agent given by name is an installed one, and what lies about in ``cwd`` must not change it."""

    kind: Literal["script", "class", "name"]
    target: str
    cwd: str


def resolve(program: str, cwd: str = "") -> Resolved:
    """Find ``program`` as seen from ``cwd`` (absolute; empty: this process's own).

    Runs none of the program's code. Raises ``ENOENT`` for what does not exist, ``ENOEXEC`` for
    what exists and is no agent program, ``EINVAL`` for what is neither path nor name. A module
    inside a package is not looked for: only the package's own code knows where it would be.
    May read the disk: not for a loop that must not wait.
    """
    _check_string(program, "program")
    _check_string(cwd or "/", "cwd")
    if cwd and not os.path.isabs(cwd):
        raise CallerError("cwd must be an absolute path", field="cwd")
    cwd = cwd or os.getcwd()
    if not os.path.isdir(cwd):
        raise CallerError(f"no directory {cwd!r}", errno=Errno.ENOENT, field="cwd")
    form = _form(program)
    if form == "script":
        return Resolved("script", _find_script(program, cwd), cwd)
    target = program if form == "class" else _find_name(program)
    _check_class(target, cwd if form == "class" else None)
    return Resolved(form, target, cwd)


def run(resolved: Resolved, args: Sequence[str]) -> NoReturn:
    """Become the program, run it to its end, and end the process with its exit code."""
    mind_termination()
    failed = UNLOADABLE
    try:
        load = _load_script if resolved.kind == "script" else _load_class
        program = load(resolved, args)
        failed = 1
        status: object = program()
    except SystemExit as e:
        status = e.code
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as e:
        _report(e)
        status = failed
    _end(status)


def mind_termination() -> None:
    """Let SIGTERM end process 1 of a namespace too, unless the program says otherwise."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))


def _end(status: object) -> NoReturn:
    """End as the interpreter does (threads joined, exit handlers run, output flushed), except
    that it does not take itself apart: that took 25 ms and touched every page it shares."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # multiprocessing ends its forks so
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except OSError:
        status = status or LOST_OUTPUT
    os._exit((status or 0) & 0xFF)


def _form(program: str) -> Literal["script", "class", "name"]:
    if "/" in program or program.endswith(".py"):
        return "script"
    return "class" if ":" in program else "name"


def _check_string(value: str, field: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise CallerError(f"{field} holds a lone surrogate", field=field) from None
    if not 1 <= size <= MAX_PROGRAM:
        raise CallerError(f"{field} must have 1 to {MAX_PROGRAM} bytes, has {size}", field=field)
    if "\0" in value:
        raise CallerError(f"{field} must hold no NUL", field=field)


def _find_script(program: str, cwd: str) -> str:
    path = os.path.normpath(os.path.join(cwd, program))
    if not os.path.exists(path):
        raise CallerError(f"no program {program!r}", errno=Errno.ENOENT, field="program")
    if not (os.path.isfile(path) and path.endswith(".py")):
        raise CallerError(
            f"{program!r} is no Python script (a file NAME.py)",
            errno=Errno.ENOEXEC,
            field="program",
        )
    if not os.access(path, os.R_OK):
        raise CallerError(f"{program!r} is unreadable", errno=Errno.ENOEXEC, field="program")
    return path


def _find_name(name: str) -> str:
    if name in BUILT_IN:
        return BUILT_IN[name]
    # Reads the metadata of every distribution, so only when a name asks for it.
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        return point.value
    raise CallerError(
        f"no agent {name!r}: neither built in ({', '.join(BUILT_IN)}) nor an entry point"
        f" in {GROUP}; a script's path ends in .py",
        errno=Errno.ENOENT,
        field="program",
    )


def _check_class(target: str, cwd: str | None) -> None:
    module, _, attribute = target.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise CallerError(f"{target!r} is not module:Class", field="program")
    if cwd is not None:
        top = os.path.join(cwd, parts[0])
        suffixes = importlib.machinery.all_suffixes()
        if os.path.isdir(top) or any(os.path.isfile(top + suffix) for suffix in suffixes):
            return
    try:
        found = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise CallerError(f"no module {parts[0]!r}", errno=Errno.ENOENT, field="program")


def _load_script(resolved: Resolved, args: Sequence[str]) -> Callable[[], int]:
    path = resolved.target
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    # For good, not for the time of the call: exit handlers and threads look here later.
    sys.modules["__main__"] = main
    sys.path.insert(0, os.path.dirname(path))
    sys.argv = [path, *args]

    def program() -> int:
        exec(code, main.__dict__)
        return 0

    return program


def _load_class(resolved: Resolved, args: Sequence[str]) -> Callable[[], int]:
    module, _, attribute = resolved.target.partition(":")
    if resolved.kind == "class":
        sys.path.insert(0, resolved.cwd)
    sys.argv = [resolved.target, *args]
    importlib.invalidate_caches()
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    launch = getattr(found, "launch", None)
    if not (isinstance(found, type) and callable(launch)):
        raise TypeError(f"{resolved.target} is not an Agent subclass: it has no launch()")

    def program() -> int:
        return int(launch(list(args)) or 0)

    return program


def _report(e: Exception) -> None:
    """The traceback as the program's author expects it: without ours and the import's frames."""
    frame = e.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        frame = frame.tb_next
    sys.excepthook(type(e), e.with_traceback(frame), frame)


def main(argv: Sequence[str]) -> NoReturn:
    """The fresh interpreter's side of a spawn."""
    kind, target, cwd, *args = argv
    for fd in os.environ.get(CHANNEL, "").split(","):
        if fd.isdecimal():
            os.set_inheritable(int(fd), False)
    if os.environ.pop(SEALED, ""):
        from isovist.kernel.confinement import seccomp

        seccomp.seal()
    run(msgspec.convert({"kind": kind, "target": target, "cwd": cwd}, Resolved), args)


if __name__ == "__main__":
    main(sys.argv[1:])
