"""The commands and their options; what each does stands in the module that it imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from isovist.kernel.cli.agent import COMMANDS as AGENT_COMMANDS
from isovist.kernel.cli.agent import agent as agents
from isovist.kernel.cli.audit import COMMANDS as AUDIT_COMMANDS
from isovist.kernel.cli.audit import audit
from isovist.kernel.cli.common import Common, Problem
from isovist.kernel.cli.effects import COMMANDS as EFFECT_COMMANDS
from isovist.kernel.cli.effects import effects, mail, timer
from isovist.kernel.cli.files import COMMANDS as FILE_COMMANDS
from isovist.kernel.cli.files import files
from isovist.kernel.cli.learn import COMMANDS as LEARN_COMMANDS
from isovist.kernel.cli.learn import learn
from isovist.kernel.cli.quotas import COMMANDS as QUOTA_COMMANDS
from isovist.kernel.cli.quotas import quota
from isovist.kernel.cli.tools import COMMANDS as TOOL_COMMANDS
from isovist.kernel.cli.tools import approve, tool

Flag = Parameter(negative="", show_default=False)
Many = Parameter(consume_multiple=True, negative="", show_default=False)

FROM_0 = Number(gte=0)


def _filled(_: object, value: str | None) -> None:
    """An empty name or path is no wish for the default (``None``): it is a variable that nobody has
    set, and must not widen what a command does."""
    if value == "":
        raise ValueError("EINVAL: it must not be empty.")


Name = Annotated[str, Parameter(validator=_filled)]

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
group = App(name="group", help="Named sets of users and of agents, to share memories with.")
app.command(memory)
app.command(group)
context = App(name="context", help="The conversations that a user and an agent keep by name.")
app.command(model)
app.command(context)
app.command(learn)
app.command(files)
app.command(tool)
app.command(approve)
app.command(audit)
app.command(effects)
app.command(mail)
app.command(timer)
app.command(agents)
app.command(quota)

COMMANDS = frozenset(
    {"up", "down", "run", "ps", "kill", "log", "why", "memory", "memory ls", "memory show",
     "memory search", "memory forget", "memory recall", "memory round", "memory files",
     "memory receipt", "forget-user", "memory reembed", "model", "model add", "model list",
     "grant", "doctor", "demo", "memory view", "memory expire", "memory rescope",
     "memory export", "memory import", "group", "group ls", "group add", "group rm", "backup",
     "restore", "model ls", "top", "schedule", "context", "context ls", "context drop"}
    | {"pause", "continue", "terminate", "priority", "distrust"}
    | AGENT_COMMANDS
    | FILE_COMMANDS
    | AUDIT_COMMANDS
    | EFFECT_COMMANDS
    | LEARN_COMMANDS
    | TOOL_COMMANDS
    | QUOTA_COMMANDS
)  # fmt: skip
"""The names of all commands, for the hints of wrong usage."""


@app.command
def up(
    *,
    detach: Annotated[bool, Parameter(name=["--detach", "-d"]), Flag] = False,
    model: Annotated[str, Parameter(show_default=False)] = "",
    embedder: Annotated[str, Parameter(show_default=False)] = "",
    require_confinement: Annotated[bool, Flag] = False,
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
    embedder
        What makes the vectors, in this life of the kernel: universal, e5, gguf:FILE, onnx:FOLDER
        or openai:ADDRESS#MODEL. Default: as config.toml says, else universal.
    require_confinement
        Do not start where this system cannot confine agents; doctor says what it cannot.
    """
    from isovist.kernel.cli import serve

    return serve.up(
        common,
        detach=detach,
        model=model,
        embedder=embedder,
        require_confinement=require_confinement,
        ready_fd=ready_fd,
        tied=tied,
    )


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
    user: Annotated[str | None, Parameter(validator=_filled, show_default=False)] = None,
    agent: Annotated[str | None, Parameter(validator=_filled, show_default=False)] = None,
    fresh: Annotated[bool, Flag] = False,
    lineage: Annotated[str | None, Parameter(validator=_filled, show_default=False)] = None,
    yes: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Run a program as an agent, attached to this terminal; exit as it exits.

    Ctrl-C kills it; a second Ctrl-C leaves at once. A program with a manifest runs under it, once a
    person has approved it.

    Parameters
    ----------
    program
        A folder with a manifest.toml, a script's path, module:Class, or the name of an installed
        agent.
    args
        The program's arguments; those that begin with a dash come after --.
    user
        The user for whom it acts.
    agent
        As which agent it runs. Default: the program's own name.
    fresh
        Give it a new interpreter instead of a fork.
    lineage
        The name of the work that it goes on with.
    yes
        Approve its manifest without asking.
    """
    from isovist.kernel.cli import processes

    return processes.run(
        common, program, args, user=user or "", agent=agent or "", fresh=fresh,
        lineage=lineage or "", yes=yes,
    )  # fmt: skip


@app.command
def ps(
    *,
    all: Annotated[bool, Parameter(name=["--all", "-a"]), Flag] = False,
    tree: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """List the agent processes.

    Parameters
    ----------
    all
        Also those that have exited, with how they ended.
    tree
        Each below the one that spawned it, with processor and memory.
    """
    from isovist.kernel.cli import processes

    return processes.ps(common, all=all, tree=tree)


@app.command
def kill(pid: int, /, *, tree: Annotated[bool, Flag] = False, common: Common = DEFAULTS) -> int:
    """End an agent process, and say what was ended and what was not.

    Parameters
    ----------
    pid
        The kernel's number of it, as ps shows.
    tree
        With all that descend from it.
    """
    from isovist.kernel.cli import processes

    return processes.kill(common, pid, grace=0.0, tree=tree)


@app.command
def terminate(
    pid: int,
    /,
    *,
    grace: float = 5.0,
    tree: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Ask an agent process to end, and kill it where it has not in time.

    Parameters
    ----------
    pid
        The kernel's number of it, as ps shows.
    grace
        Seconds that it has, 0.001 to 60.
    tree
        With all that descend from it.
    """
    from isovist.kernel.cli import processes

    if not 0.001 <= grace <= 60:
        raise Problem("--grace must be 0.001 to 60 seconds", "5 is the default", status=2)
    return processes.kill(common, pid, grace=grace, tree=tree)


@app.command
def pause(pid: int, /, *, common: Common = DEFAULTS) -> int:
    """Stop an agent process where it stands.

    Parameters
    ----------
    pid
        The kernel's number of it, as ps shows.
    """
    from isovist.kernel.cli import supervise

    return supervise.pause(common, pid, on=True)


@app.command(name="continue")
def continue_(pid: int, /, *, common: Common = DEFAULTS) -> int:
    """Let a paused agent process go on.

    Parameters
    ----------
    pid
        The kernel's number of it, as ps shows.
    """
    from isovist.kernel.cli import supervise

    return supervise.pause(common, pid, on=False)


@app.command
def priority(
    pid: int,
    level: Annotated[int | None, Parameter(show_default=False)] = None,
    /,
    *,
    nice: Annotated[int | None, Parameter(show_default=False)] = None,
    common: Common = DEFAULTS,
) -> int:
    """Say how urgent an agent process is.

    Parameters
    ----------
    pid
        The kernel's number of it, as ps shows.
    level
        0 to 9, added to its agent's where a model's queue goes by priority.
    nice
        0 to 19: how much it steps back on the host's processor.
    """
    from isovist.kernel.cli import supervise

    return supervise.priority(common, pid, level, nice)


@app.command
def distrust(
    agent: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    undo: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Hide all that an agent published, at once and for good, and list it.

    Parameters
    ----------
    agent
        Whom nobody should believe. Default: show who is distrusted.
    undo
        Trust it again, and bring back what was hidden.
    """
    from isovist.kernel.cli import supervise

    return supervise.distrust(common, agent, undo=undo)


@app.command
def log(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"]), Flag] = False,
    lines: Annotated[int, Parameter(name=["--lines", "-n"], validator=FROM_0)] = 100,
    usage: Annotated[bool, Flag] = False,
    by: Literal["user", "agent", "model"] = "agent",
    since: Annotated[str, Parameter(show_default=False)] = "",
    until: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Show the log of a detached kernel, or what all chat calls cost.

    Parameters
    ----------
    follow
        Go on with what it writes next, until Ctrl-C. With --json, one object a line.
    lines
        How many of the last lines; 0 for all.
    usage
        Add up the tokens and times of all chat calls on record instead.
    by
        With --usage: whose.
    since
        With --usage: only calls that ended then or later: ISO 8601 with a zone.
    until
        With --usage: only calls that ended before then.
    """
    if usage:
        from isovist.kernel.cli import metering

        return metering.usage(common, by, since or None, until or None)
    if since or until:
        raise Problem("--since and --until go with --usage", "add --usage", status=2)
    from isovist.kernel.cli import logs

    return logs.log(common, follow=follow, lines=lines)


@app.command
def top(
    *,
    once: Annotated[bool, Flag] = False,
    interval: float = 1.0,
    common: Common = DEFAULTS,
) -> int:
    """Show who uses the models, how fast they are served, who waits, and what each process takes,
    until Ctrl-C.

    Parameters
    ----------
    once
        Show one interval and end; --json does so, too.
    interval
        Seconds between two looks, 0.1 to 60.
    """
    from isovist.kernel.cli import metering

    if not 0.1 <= interval <= 60:
        raise Problem("--interval must be 0.1 to 60 seconds", "1 is the default", status=2)
    return metering.top(common, once=once, interval=interval)


@app.command
def schedule(
    policy: str = "",
    /,
    *,
    model: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Show in which order calls are served, or change that while the kernel runs.

    Parameters
    ----------
    policy
        fifo, round_robin, priority, fair or deadline; nothing that waits is lost. Default: show
        the present one.
    model
        Only the queue before this model.
    """
    from isovist.kernel.cli import metering

    return metering.schedule(common, policy, model)


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
    user: Name,
    agent: Name = "operator",
    kind: Annotated[tuple[KindName, ...], Many] = (),
    limit: Annotated[int, Parameter(validator=FROM_0)] = 50,
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

    return commands.ls(common, user=user, agent=agent, kinds=kind, limit=limit)


@memory.command
def show(id: str, /, *, user: Name, agent: Name = "operator", common: Common = DEFAULTS) -> int:
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
    user: Name,
    agent: Name = "operator",
    kind: Annotated[tuple[KindName, ...], Many] = (),
    k: Annotated[int, Parameter(name="-k")] = 8,
    mode: Literal["hybrid", "bm25", "dense", "rrf"] = "hybrid",
    since: Annotated[str, Parameter(show_default=False)] = "",
    until: Annotated[str, Parameter(show_default=False)] = "",
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
    since
        Only what was said then or later: ISO 8601 with a zone, as in 2026-01-31T09:00Z.
    until
        Only what was said before then.
    """
    from isovist.kernel.cli import memory as commands

    return commands.search(
        common, query, user=user, agent=agent, kinds=kind, k=k, mode=mode,
        since=since or None, until=until or None,
    )  # fmt: skip


@memory.command
def forget(
    *ids: str,
    user: Name,
    agent: Name = "operator",
    query: Annotated[str, Parameter(show_default=False)] = "",
    dry_run: Annotated[bool, Flag] = False,
    yes: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Remove units for good, by their ids or by their words. Shows them first, and asks.

    Parameters
    ----------
    user
        Whose units.
    agent
        Which agent's; only an owner can remove.
    query
        Remove, instead of ids, the pair's own units that hold every one of these words, in any
        form and order, and every phrase in double quotes as it stands.
    dry_run
        With --query: show what would go, all of it, and remove nothing.
    yes
        Do not ask.
    """
    if bool(ids) == bool(query):
        raise Problem("forget takes ids or --query", "give one of the two", status=2)
    if dry_run and not query:
        raise Problem("--dry-run goes with --query", "ids name what goes already", status=2)
    if query:
        from isovist.kernel.cli import recall

        return recall.forget_matching(
            common, query, user=user, agent=agent, yes=yes, dry_run=dry_run
        )
    from isovist.kernel.cli import memory as commands

    return commands.forget(common, ids, user=user, agent=agent, yes=yes)


@memory.command(name="recall")
def memory_recall(
    query: str,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    k: Annotated[int, Parameter(name="-k")] = 8,
    since: Annotated[str, Parameter(show_default=False)] = "",
    until: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Find the rounds of conversation that fit a question, one result a round.

    Parameters
    ----------
    user
        Whose view.
    agent
        Through which agent.
    k
        At most so many, 1 to 50.
    since
        Only what was said then or later: ISO 8601 with a zone, as in 2026-01-31T09:00Z.
    until
        Only what was said before then.
    """
    from isovist.kernel.cli import recall

    return recall.recall(
        common, query, user=user, agent=agent, k=k, since=since or None, until=until or None
    )


@memory.command(name="round")
def memory_round(
    session: str,
    number: int,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    window: int = 1,
    part: int = 0,
    common: Common = DEFAULTS,
) -> int:
    """Show a round of a session whole, with its neighbours.

    Parameters
    ----------
    session
        The session, as recall names it.
    number
        The round.
    user
        Whose view.
    agent
        Through which agent.
    window
        So many rounds on either side, 0 to 10.
    part
        Of messages longer than 4,000 characters this part; 0 is their beginning.
    """
    from isovist.kernel.cli import recall

    return recall.round_(common, session, number, user=user, agent=agent, window=window, part=part)


@memory.command(name="files")
def memory_files(
    folder: Name,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    limit: int = 40_000,
    common: Common = DEFAULTS,
) -> int:
    """Write what is in view as read-only files, one a scope.

    Parameters
    ----------
    folder
        Where; it is made if it is missing.
    user
        Whose view.
    agent
        Through which agent.
    limit
        At most so many characters a file, 1 to 200000.
    """
    from isovist.kernel.cli import recall

    return recall.files(common, folder, user=user, agent=agent, limit=limit)


@memory.command(name="receipt")
def memory_receipt(
    receipt: str,
    /,
    *,
    wait: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Show whether what was forgotten has left every file of the store.

    Parameters
    ----------
    receipt
        The receipt, as forget names it.
    wait
        Wait until it has.
    """
    from isovist.kernel.cli import recall

    return recall.receipt(common, receipt, wait=wait)


@app.command(name="forget-user")
def forget_user(
    name: Name,
    /,
    *,
    yes: Annotated[bool, Flag] = False,
    dry_run: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Remove all units of a user, its memberships and its grants. Counts first, and asks.

    Parameters
    ----------
    name
        The user.
    yes
        Do not ask.
    dry_run
        Count its units by scope, and remove nothing.
    """
    from isovist.kernel.cli import recall

    return recall.forget_user(common, name, yes=yes, dry_run=dry_run)


@memory.command
def reembed(
    *,
    embedder: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Make all vectors anew with another embedder, beside a running kernel.

    It may be stopped at any time, and goes on where it was when it is run again.

    Parameters
    ----------
    embedder
        universal, e5, gguf:FILE, onnx:FOLDER or openai:ADDRESS#MODEL. Default: as config.toml says.
    """
    from isovist.kernel.cli import reembed as commands

    return commands.reembed(common, embedder)


@memory.command(name="view")
def memory_view(*, user: Name, agent: Name = "operator", common: Common = DEFAULTS) -> int:
    """Explain a view: which audiences are in it, why, and how many units each holds.

    Parameters
    ----------
    user
        Whose view.
    agent
        Through which agent.
    """
    from isovist.kernel.cli import memory as commands

    return commands.view(common, user=user, agent=agent)


@memory.command(name="expire")
def memory_expire(
    id: str,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    at: Annotated[str | None, Parameter(validator=_filled, show_default=False)] = None,
    never: Annotated[bool, Flag] = False,
    version: Annotated[int, Parameter(validator=FROM_0, show_default=False)] = 0,
    common: Common = DEFAULTS,
) -> int:
    """Let a unit expire: at once, at a time, or never.

    Parameters
    ----------
    user
        Whose unit.
    agent
        Which agent's; only an owner can change it.
    at
        When: ISO 8601 with a zone, as in 2026-01-31T09:00Z. Default: at once.
    never
        Take its time of expiry away.
    version
        Which version it must be. Default: the one in view; an own unit outside it needs one.
    """
    from isovist.kernel.cli import memory as commands

    if at and never:
        raise Problem("expire takes --at or --never", "give one of the two", status=2)
    return commands.expire(
        common, id, user=user, agent=agent, at=at or "", never=never, version=version
    )


@memory.command(name="rescope")
def memory_rescope(
    id: str,
    scope: str,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    version: Annotated[int, Parameter(validator=FROM_0, show_default=False)] = 0,
    common: Common = DEFAULTS,
) -> int:
    """Give a unit another audience.

    Parameters
    ----------
    scope
        pair, user, agent, global, or two axes, users and agents, each own, all or @GROUP:
        @team/own, own/@writers.
    user
        Whose unit.
    agent
        Which agent's; only an owner can change it.
    version
        Which version it must be. Default: the one in view; an own unit outside it needs one.
    """
    from isovist.kernel.cli import memory as commands

    return commands.rescope(common, id, scope, user=user, agent=agent, version=version)


@memory.command(name="export")
def memory_export(
    *,
    user: Annotated[str | None, Parameter(validator=_filled, show_default=False)] = None,
    common: Common = DEFAULTS,
) -> int:
    """Write all groups, grants and living units to standard output, one JSON object a line, units
    oldest first.

    Parameters
    ----------
    user
        Only the units of this user, and of the groups that they name this user alone.
    """
    from isovist.kernel.cli import archive

    return archive.export(common, user=user or "")


@memory.command(name="import")
def memory_import(
    file: Annotated[str | None, Parameter(validator=_filled, show_default=False)] = None,
    /,
    *,
    common: Common = DEFAULTS,
) -> int:
    """Take in the lines of an export. Exits with 1 if some were not taken, and says why.

    Who was in a group, or held a grant, is or does so again; nobody loses any.

    Parameters
    ----------
    file
        The file. Default: standard input.
    """
    from isovist.kernel.cli import archive

    return archive.import_(common, file or "")


@group.command(name="ls")
def group_ls(
    *,
    of: Annotated[Literal["", "users", "agents"], Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """List the groups and who is in them.

    Parameters
    ----------
    of
        Only those of this axis.
    """
    from isovist.kernel.cli import groups

    return groups.ls(common, of=of)


@group.command(name="add")
def group_add(
    name: str,
    /,
    *,
    users: Annotated[tuple[Name, ...], Many] = (),
    agents: Annotated[tuple[Name, ...], Many] = (),
    common: Common = DEFAULTS,
) -> int:
    """Let users, or agents, join a group; it is made when it is first named.

    Parameters
    ----------
    users
        Users who join the group of users.
    agents
        Agents that join the group of agents.
    """
    from isovist.kernel.cli import groups

    return groups.change(common, name, users=users, agents=agents, leave=False)


@group.command(name="rm")
def group_rm(
    name: str,
    /,
    *,
    users: Annotated[tuple[Name, ...], Many] = (),
    agents: Annotated[tuple[Name, ...], Many] = (),
    common: Common = DEFAULTS,
) -> int:
    """Let users, or agents, leave a group.

    Parameters
    ----------
    users
        Users who leave the group of users.
    agents
        Agents that leave the group of agents.
    """
    from isovist.kernel.cli import groups

    return groups.change(common, name, users=users, agents=agents, leave=True)


@context.command(name="ls")
def context_ls(*, user: Name, agent: Name = "operator", common: Common = DEFAULTS) -> int:
    """List saved contexts by name, without their text.

    Parameters
    ----------
    user
        Whose conversations.
    agent
        With which agent.
    """
    from isovist.kernel.cli import contexts

    return contexts.ls(common, user=user, agent=agent)


@context.command(name="drop")
def context_drop(
    name: str, /, *, user: Name, agent: Name = "operator", common: Common = DEFAULTS
) -> int:
    """Remove a saved context and its model's state.

    Parameters
    ----------
    user
        Whose conversation.
    agent
        With which agent.
    """
    from isovist.kernel.cli import contexts

    return contexts.drop(common, name, user=user, agent=agent)


@app.command
def backup(path: Name, /, *, common: Common = DEFAULTS) -> int:
    """Copy the store of a running kernel to a new file.

    Parameters
    ----------
    path
        The file; it must not be there yet.
    """
    from isovist.kernel.cli import archive

    return archive.backup(common, Path(path))


@app.command
def restore(path: Name, /, *, common: Common = DEFAULTS) -> int:
    """Put a backup into a state folder that has no store yet. No kernel may run there.

    Parameters
    ----------
    path
        The backup.
    """
    from isovist.kernel.cli import archive

    return archive.restore(common, Path(path))


@model.command(name="add")
def model_add(name_or_path: str, /, *, common: Common = DEFAULTS) -> int:
    """Install a model: smollm2 by name, or any GGUF file by its path."""
    from isovist.kernel.cli import models

    return models.add(common, name_or_path)


@model.command(name=["list", "ls"])
def model_list(*, common: Common = DEFAULTS) -> int:
    """List the installed models; where a kernel runs, with their load, slots and KV use."""
    from isovist.kernel.cli import models

    return models.list_models(common)


@app.command
def grant(
    agent: Name,
    /,
    *,
    user: Annotated[tuple[Name, ...], Many] = (),
    scope: Annotated[tuple[str, ...], Many] = (),
    mail: Annotated[tuple[Name, ...], Many] = (),
    tool: Annotated[tuple[str, ...], Many] = (),
    revoke: Annotated[bool, Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Let an agent act for users, publish to scopes, write to agents and call tools, now and later.

    Parameters
    ----------
    user
        Users for whom it may act; * for every user.
    scope
        Scopes to which it may publish: agent, global, or @GROUP of users; user, which needs no
        grant, may stand there too.
    mail
        Agents to which it may send mail; * for every agent.
    tool
        Tools that it may call: SERVER.TOOL, a pattern, or 'SERVER.TOOL(ARGUMENT=PATTERN, …)' for
        calls whose arguments fit.
    revoke
        Take these rights away instead.
    """
    from isovist.kernel.cli import processes

    return processes.grant(common, agent, user, scope, mail, tool, revoke=revoke)


@app.command
def doctor(
    *,
    embedder: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Check what Isovist needs on this machine; exits with 1 if something fails.

    Parameters
    ----------
    embedder
        Try this embedder instead of the one in config.toml.
    """
    from isovist.kernel.cli import doctor as checks

    return checks.doctor(common, embedder)


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
