"""What all commands share: which kernel, how to reach it, and how a failure is told."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from isovist.syscalls.errors import Errno, IsovistError

if TYPE_CHECKING:
    from isovist.kernel.config import Config
    from isovist.syscalls.client import Client

GROUP = "Which kernel, and how to speak"


class Problem(Exception):
    """A failure as the user is told it: one line, a hint, and the exit code."""

    def __init__(self, message: str, hint: str, *, status: int = 1, errno: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.status, self.errno = message, hint, status, errno


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """The options that every command takes."""

    name: Annotated[str, Parameter(group=GROUP, show_default=False)] = ""
    """The kernel's name. Default: $ISOVIST_KERNEL, else "default"."""
    state: Annotated[Path | None, Parameter(group=GROUP)] = None
    """Its state folder, where that is not the usual one."""
    json: Annotated[bool, Parameter(group=GROUP, negative="", show_default=False)] = False
    """Print one JSON value on standard output, and nothing else there."""
    debug: Annotated[bool, Parameter(group=GROUP, negative="", show_default=False)] = False
    """Show tracebacks; a kernel logs more."""

    @cached_property
    def config(self) -> Config:
        from isovist.kernel.config import load

        return load(self.name, self.state)

    @property
    def flags(self) -> list[str]:
        """The options that name the same kernel again, from any folder."""
        name = ["--name", self.name] if self.name else []
        return [*name, "--state", str(self.state.resolve())] if self.state else name


def suggest(common: Common, *words: str) -> str:
    """A command for the hint line, with the options that name this kernel."""
    return shlex.join(["isovist", *words, *common.flags])


def no_kernel(common: Common) -> Problem:
    return Problem(
        f"no kernel answers at {common.config.socket}",
        f"start one with: {suggest(common, 'up', '-d')}",
        status=3,
        errno=Errno.EPIPE.name,
    )


def attach(common: Common, agent: str = "", user: str | None = None) -> Client:
    """A connection to the kernel as the operator, acting as ``agent`` for ``user``.

    Raises a :class:`Problem` of exit code 3 where no kernel answers.
    """
    from isovist.syscalls.client import connect

    try:
        return connect(agent or None, user, socket=common.config.socket)
    except IsovistError as e:
        if e.errno is Errno.EPIPE:
            raise no_kernel(common) from e
        raise


def problem_of(e: Exception, common: Common) -> Problem | None:
    """How to tell ``e``; ``None`` for what nobody has foreseen."""
    if isinstance(e, Problem):
        return e
    if isinstance(e, IsovistError):
        if e.errno is Errno.EPIPE:
            return Problem(
                f"the kernel went away: {e.message}",
                f"isovist log shows why; start it again with: {suggest(common, 'up', '-d')}",
                status=3,
                errno=e.errno.name,
            )
        hint = FIELDS.get(e.field) or HINTS.get(e.errno) or _doctor(common)
        return Problem(str(e), hint, errno=e.errno.name)
    if isinstance(e, OSError):
        where = f"{e.filename}: " if e.filename else ""
        return Problem(f"{where}{e.strerror or e}", _doctor(common))
    return None


def _doctor(common: Common) -> str:
    return f"{suggest(common, 'doctor')} checks the set-up"


HINTS = {
    Errno.EPERM: "isovist grant AGENT --user USER --scope SCOPE gives an agent rights",
    Errno.ENOENT: "what lies outside the view of --user and --agent counts as absent",
    Errno.ESRCH: "isovist ps -a lists the processes",
    Errno.ENOEXEC: "isovist ps -a shows the last lines that the program wrote",
    Errno.EINVAL: "--help shows what the command takes",
    Errno.EAGAIN: "too much is going on; try again in a moment",
    Errno.ETIMEDOUT: "the kernel is busy or stalled; isovist log shows what it does",
    Errno.ENOSPC: "make room on the disk that holds the state folder",
    Errno.ESTALE: "it was changed meanwhile; look again",
    Errno.EKERNEL: "this is a bug of Isovist; please report it with what isovist log shows",
}
"""What to do about an error, where the command knows nothing better."""

FIELDS = {
    "program": "a program is a script's path, module:Class, or the name of an installed agent",
    "model": "isovist model list shows what is installed",
    "embedder": "isovist doctor --embedder NAME tries one; --embedder or config.toml chooses it",
    "manifest": "isovist agent inspect PATH shows what it asks for",
    "config": "mend or remove that file",
}
"""The same, where the field at fault says more than the error number."""
