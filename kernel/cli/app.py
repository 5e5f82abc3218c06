"""The commands and their options; what each does stands in the module that it imports."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from isovist.kernel.cli.common import Common

Flag = Parameter(negative="", show_default=False)
Many = Parameter(consume_multiple=True, negative="", show_default=False)

DEFAULTS = Common()

KindName = Literal["profile", "task_context", "conversation", "lesson", "note", "file"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("isovist")
    except PackageNotFoundError:
        return "(a bare checkout)"


app = App(
    name="isovist",
    help="An agent operating-system kernel: every agent sees all and only what lies in its view.",
    version=_version,
    help_format="plaintext",
)
memory = App(name="memory", help="What a user and an agent may see, and what they may remove.")
model = App(name="model", help="The local models.")
app.command(memory)
app.command(model)

COMMANDS = frozenset(
    {"up", "down", "run", "ps", "kill", "log", "why", "memory", "memory ls", "memory show",
     "memory search", "memory forget", "model", "model add", "model list", "grant", "doctor",
     "demo"}
)  # fmt: skip
"""The names of all commands, for the hints of wrong usage."""


@app.command
def up(
    *,
    detach: Annotated[bool, Parameter(name=["--detach", "-d"]), Flag] = False,
    model: Annotated[str, Parameter(show_default=False)] = "",
    ready_fd: Annotated[int, Parameter(show=False)] = -1,
    tied: Annotated[bool, Parameter(show=False)] = False,
    common: Common = DEFAULTS,
) -> int:
    """Start a kernel. It serves until SIGTERM or Ctrl-C.

    Parameters
    ----------
    detach
        Leave it running in the background, with its log in kernel.log; return when it answers.
    model
        The default model for this life of the kernel.
    """
    from isovist.kernel.cli import serve

    return serve.up(common, detach=detach, model=model, ready_fd=ready_fd, tied=tied)


@app.command
def down(*, common: Common = DEFAULTS) -> int:
    """Stop the kernel, and return when it is gone."""
    from isovist.kernel.cli import serve

    return serve.down(common)


@app.command
def run(
    program: str,
    /,
    *args: str,
    user: Annotated[str, Parameter(show_default=False)] = "",
    agent: Annotated[str, Parameter(show_default=False)] = "",
    fresh: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Run a program as an agent, attached to this terminal; exit as it exits.

    Ctrl-C kills it; a second Ctrl-C leaves at once.

    Parameters
    ----------
    program
        A script's path, module:Class, or the name of an installed agent.
    args
        The program's arguments; those that begin with a dash come after --.
    user
        The user for whom it acts.
    agent
        As which agent it runs. Default: the program's own name.
    fresh
        Give it a new interpreter instead of a fork.
    """
    from isovist.kernel.cli import processes

    return processes.run(common, program, args, user=user, agent=agent, fresh=fresh)


@app.command
def ps(
    *,
    all: Annotated[bool, Parameter(name=["--all", "-a"]), Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """List the agent processes.

    Parameters
    ----------
    all
        Also those that have exited, with how they ended.
    """
    from isovist.kernel.cli import processes

    return processes.ps(common, all=all)


@app.command
def kill(pid: int, /, *, common: Common = DEFAULTS) -> int:
    """End an agent process.

    Parameters
    ----------
    pid
        The kernel's number of it, as ps shows.
    """
    from isovist.kernel.cli import processes

    return processes.kill(common, pid)


@app.command
def log(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"]), Flag] = False,
    lines: Annotated[int, Parameter(name=["--lines", "-n"])] = 100,
    common: Common = DEFAULTS,
) -> int:
    """Show the log of a detached kernel.

    Parameters
    ----------
    follow
        Go on with what it writes next, until Ctrl-C. With --json, one object a line.
    lines
        How many of the last lines; 0 for all.
    """
    from isovist.kernel.cli import logs

    return logs.log(common, follow=follow, lines=max(0, lines))


@app.command
def why(call: str, /, *, common: Common = DEFAULTS) -> int:
    """Show what a search or chat call was given, and why.

    Parameters
    ----------
    call
        Its id, as the reply names it.
    """
    from isovist.kernel.cli import record

    return record.why(common, call)


@memory.command
def ls(
    *,
    user: str,
    agent: str = "operator",
    kind: Annotated[tuple[KindName, ...], Many] = (),
    limit: int = 50,
    common: Common = DEFAULTS,
) -> int:
    """List the units in view, newest first.

    Parameters
    ----------
    user
        Whose view.
    agent
        Through which agent.
    kind
        Only units of these kinds.
    limit
        At most so many; 0 for all.
    """
    from isovist.kernel.cli import memory as commands

    return commands.ls(common, user=user, agent=agent, kinds=kind, limit=max(0, limit))


@memory.command
def show(id: str, /, *, user: str, agent: str = "operator", common: Common = DEFAULTS) -> int:
    """Show one unit, whole.

    Parameters
    ----------
    user
        Whose view.
    agent
        Through which agent.
    """
    from isovist.kernel.cli import memory as commands

    return commands.show(common, id, user=user, agent=agent)


@memory.command
def search(
    query: str,
    /,
    *,
    user: str,
    agent: str = "operator",
    kind: Annotated[tuple[KindName, ...], Many] = (),
    k: Annotated[int, Parameter(name="-k")] = 8,
    mode: Literal["hybrid", "bm25", "dense", "rrf"] = "hybrid",
    common: Common = DEFAULTS,
) -> int:
    """Find the units that fit a question.

    Parameters
    ----------
    user
        Whose view.
    agent
        Through which agent.
    kind
        Only units of these kinds.
    k
        At most so many, 1 to 100.
    mode
        How to rank.
    """
    from isovist.kernel.cli import memory as commands

    return commands.search(common, query, user=user, agent=agent, kinds=kind, k=k, mode=mode)


@memory.command
def forget(
    id: str,
    /,
    *more: str,
    user: str,
    agent: str = "operator",
    yes: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Remove units for good. Shows them first, and asks.

    Parameters
    ----------
    user
        Whose units.
    agent
        Which agent's; only an owner can remove.
    yes
        Do not ask.
    """
    from isovist.kernel.cli import memory as commands

    return commands.forget(common, (id, *more), user=user, agent=agent, yes=yes)


@model.command(name="add")
def model_add(name_or_path: str, /, *, common: Common = DEFAULTS) -> int:
    """Install a model: smollm2 by name, or any GGUF file by its path."""
    from isovist.kernel.cli import models

    return models.add(common, name_or_path)


@model.command(name="list")
def model_list(*, common: Common = DEFAULTS) -> int:
    """List the installed models."""
    from isovist.kernel.cli import models

    return models.list_models(common)


@app.command
def grant(
    agent: str,
    /,
    *,
    user: Annotated[tuple[str, ...], Many] = (),
    scope: Annotated[tuple[Literal["user", "agent", "global"], ...], Many] = (),
    revoke: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Let an agent act for users and publish to scopes, now and later.

    Parameters
    ----------
    user
        Users for whom it may act; * for every user.
    scope
        Scopes to which it may publish.
    revoke
        Take these rights away instead.
    """
    from isovist.kernel.cli import processes

    return processes.grant(common, agent, user, scope, revoke=revoke)


@app.command
def doctor(*, common: Common = DEFAULTS) -> int:
    """Check what Isovist needs on this machine; exits with 1 if something fails."""
    from isovist.kernel.cli import doctor as checks

    return checks.doctor(common)


@app.command
def demo(
    *,
    model: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Show it at work: two users, three agents, one question, without memory and with it.

    Parameters
    ----------
    model
        The model that answers. Default: smollm2, or another local model that is installed.
    """
    from isovist.kernel.cli import demo as show

    return show.demo(common, model=model)
