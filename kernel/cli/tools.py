"""``tool`` and ``approve``: what the kernel can call for agents, and a person's word on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from isovist.kernel.cli.common import Common, Problem, attach

if TYPE_CHECKING:
    from isovist.syscalls.abi.tools import Approval, ToolInfo
    from isovist.syscalls.client import Client
    from isovist.syscalls.records import ToolRule

COMMANDS = frozenset({"tool", "tool ls", "tool show", "tool call", "tool servers", "approve"})
DEFAULTS = Common()
Flag = Parameter(negative="", show_default=False)

tool = App(name="tool", help="The tools that the kernel can call for agents.")


@tool.command(name="ls")
def ls(
    *names: str,
    agent: Annotated[str, Parameter(show_default=False)] = "operator",
    common: Common = DEFAULTS,
) -> int:
    """List the tools that an agent may call, of all that are mounted.

    Parameters
    ----------
    names
        Patterns over SERVER.TOOL.
    agent
        Whose rights count. Default: the operator's, who may call all.
    """
    from isovist.kernel.cli.show import emit, note, safe, say, table

    with attach(common, agent) as kernel:
        listed = kernel.tools_list(*names)
    if common.json:
        emit(listed)
        return 0
    if listed.tools:
        table(
            ("TOOL", "WHAT IT DOES", "IT", "CALLS"),
            ((t.name, _first(t.description), _kind(t), _rules(t)) for t in listed.tools),
        )
    else:
        say(f"{safe(agent)} may call none of these tools")
    for server, why in listed.missing.items():
        note(f"server {server} is not up: {safe(why)}")
    return 0


@tool.command(name="show")
def show(
    name: str,
    /,
    *,
    agent: Annotated[str, Parameter(show_default=False)] = "operator",
    common: Common = DEFAULTS,
) -> int:
    """Show one tool with the schema of its arguments.

    Parameters
    ----------
    name
        SERVER.TOOL.
    agent
        Whose rights count.
    """
    from isovist.kernel.cli.show import emit, fields, say

    with attach(common, agent) as kernel:
        found = next((t for t in kernel.tools_list().tools if t.name == name), None)
    if found is None:
        raise Problem(f"there is no tool {name}", "isovist tool ls lists them", errno="ENOENT")
    if common.json:
        emit(found)
        return 0
    fields(
        [
            ("tool", found.name),
            ("for models", found.offered),
            ("what it does", found.description),
            ("it", _kind(found)),
            ("calls", _rules(found)),
            ("time", f"{found.timeout_ms / 1000:g} s" if found.timeout_ms else ""),
        ]
    )
    say(json.dumps(json.loads(found.parameters), indent=2))
    return 0


@tool.command(name="call")
def call(
    name: str,
    arguments: str = "{}",
    /,
    *,
    agent: Annotated[str, Parameter(show_default=False)] = "operator",
    user: Annotated[str | None, Parameter(show_default=False)] = None,
    key: Annotated[str, Parameter(show_default=False)] = "",
    common: Common = DEFAULTS,
) -> int:
    """Call a tool and print what it answers, all of it.

    Parameters
    ----------
    name
        SERVER.TOOL.
    arguments
        A JSON object.
    agent
        As which agent, under whose rights. Default: the operator, who may call all.
    user
        For whom.
    key
        Of its effect: under one key it happens once.
    """
    import sys

    from isovist.kernel.cli.show import emit, safe, say

    with attach(common, agent, user) as kernel:
        result = kernel.tool_call(name, arguments, key)
        text = _whole(kernel, result.text, result.output, result.characters)
    if common.json:
        emit({**json.loads(_encoded(result)), "text": text})
    elif sys.stdout.isatty():
        say(safe(text, lines=True))
    else:
        sys.stdout.write(text + ("" if text.endswith("\n") else "\n"))
    return 1 if result.failed else 0


@tool.command(name="servers")
def servers(*, common: Common = DEFAULTS) -> int:
    """List the mounted servers, and how they are."""
    from isovist.kernel.cli.show import brief, emit, say, table

    with attach(common) as kernel:
        mounted = kernel.tools_servers().servers
    if common.json:
        emit(mounted)
    elif mounted:
        table(
            ("SERVER", "KIND", "STATE", ">TOOLS", ">RUNNING", ">WAITING", ">STARTS", "LAST END"),
            (
                (s.name, s.kind, s.state, s.tools, s.running, s.waiting, s.starts, brief(s.error))
                for s in mounted
            ),
        )
    else:
        say("no tool server is configured: [tools.NAME] of config.toml, see docs/tools.md")
    return 0


def approve(
    id: str = "",
    /,
    *,
    deny: Annotated[bool, Flag] = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"]), Flag] = False,
    common: Common = DEFAULTS,
) -> int:
    """Show the calls of tools that wait for a person, or answer one.

    Parameters
    ----------
    id
        Which call; without one, all that wait are listed.
    deny
        Say no.
    yes
        Do not ask again before a yes.
    """
    from isovist.kernel.cli.show import emit, say

    with attach(common) as kernel:
        waiting = kernel.tools_approvals().approvals
        if not id:
            if common.json:
                emit(waiting)
            else:
                _show(waiting)
            return 0
        one = next((a for a in waiting if a.id == id), None)
        if one is None:
            raise Problem(
                "no call waits under this id: it was answered, has ended or was never there",
                "isovist approve lists those that wait",
                errno="ENOENT",
            )
        if not (deny or yes or common.json):
            _show((one,))
            if input("Let it be called? [y/N] ").strip().lower() not in ("y", "yes"):
                say("it waits on; isovist approve --deny says no")
                return 1
        # The digest binds the answer to what was shown.
        kernel.tools_answer(one.id, not deny, one.digest)
    if common.json:
        emit({"id": one.id, "name": one.name, "approved": not deny})
    else:
        say(f"{one.name} for {one.agent}: {'denied' if deny else 'approved, this once'}")
    return 0


def _show(waiting: tuple[Approval, ...]) -> None:
    from isovist.kernel.cli.show import fields, moment, say

    if not waiting:
        say("nothing waits for a person")
    for one in waiting:
        fields(
            [
                ("id", one.id),
                ("tool", one.name),
                ("agent", one.agent),
                ("for", one.user),
                ("arguments", one.arguments),
                ("asked", moment(one.asked_at)),
                ("denied by itself", moment(one.until)),
            ]
        )
        say()


def rule(text: str) -> ToolRule:
    """What ``SERVER.TOOL(ARGUMENT=PATTERN, …)`` allows. Raises a :class:`Problem`."""
    from isovist.syscalls.records import ToolRule

    name, bracket, rest = text.partition("(")
    pairs = [pair.partition("=") for pair in rest.removesuffix(")").split(",") if pair.strip()]
    if (bracket and not rest.endswith(")")) or not all(middle for _, middle, _ in pairs):
        raise Problem(
            f"--tool: {text!r} is no rule",
            "it is written SERVER.TOOL or 'SERVER.TOOL(ARGUMENT=PATTERN, …)'",
            status=2,
        )
    return ToolRule(name.strip(), {key.strip(): value.strip() for key, _, value in pairs})


def _whole(kernel: Client, text: str, output: str, characters: int) -> str:
    while output and len(text) < characters:
        text += kernel.tools_output(output, len(text)).text
    return text


def _encoded(value: object) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def _first(text: str) -> str:
    from isovist.kernel.cli.show import brief

    return brief(next(iter(text.splitlines()), ""))


def _kind(info: ToolInfo) -> str:
    if info.read_only:
        return "only reads"
    return "is idempotent" if info.idempotent else "changes things"


def _rules(info: ToolInfo) -> str:
    asks = ["after a person's word"] if info.approval else []
    return ", ".join([*asks, *([info.conflict] if info.conflict != "shared" else [])])
