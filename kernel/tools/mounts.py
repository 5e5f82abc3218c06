"""Tool servers as the shell sees them: a host process each, and what their calls answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from isovist.kernel.confinement.launch import command
from isovist.kernel.confinement.policy import Policy
from isovist.kernel.drivers.supervisor import NOTHING, ChildProcess
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.answers import check_object
from isovist.kernel.state.toolwords import Answer, MountedTool
from isovist.kernel.tools import protocol as p
from isovist.kernel.tools.config import ToolSettings
from isovist.kernel.tools.outputs import Output, Outputs
from isovist.kernel.tools.place import Place, environment, prepare
from isovist.syscalls.errors import Errno, IsovistError

log = structlog.get_logger()

NAME = 128
"""Characters of a tool's own name."""
HOST = "isovist.kernel.tools.host"
PROXIES = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


class Life:
    """One life of one server's host, and the answers that are on their way from it.

    A host that speaks MCP is one of ours, and confines what it starts; one that runs functions of
    somebody's is confined itself.
    """

    def __init__(self, server: str, gen: int, settings: ToolSettings, place: Place) -> None:
        self.server, self.gen = server, gen
        keep = (*settings.env, *((settings.key, *PROXIES) if settings.url else ()))
        native = bool(settings.python)
        policy = place.policy
        self.process: ChildProcess[p.ToHost, p.FromHost] = ChildProcess(
            HOST,
            frame=p.frame,
            decode=p.decode_from_host,
            keep=tuple(filter(None, keep)),
            wrap=partial(_confined, policy) if native and policy is not None else None,
            set_=environment(place) if native else NOTHING,
            cwd=place.folder if native else None,
        )
        self.answers: dict[int, Output] = {}


def _sound(tool: MountedTool) -> bool:
    """A model can be offered it: one that cannot would spoil the whole offer."""
    try:
        check_object(tool.parameters, "parameters", "tools")
    except IsovistError:
        return False
    return 1 <= len(tool.name) <= NAME and tool.name.isprintable()


def _confined(policy: Policy, argv: list[str]) -> list[str]:
    return command(argv, policy)


class ToolMounts:
    """Carries out ``StartToolServer`` to ``ReadOutput``. Servers that name no folder have one each
    under ``root``; what lies in the ``private`` ones is the kernel's, and mounted for nobody.

    Invariant: at most one host a server lives at a time; an event carries the number of the life
    that it comes from.
    """

    def __init__(
        self,
        servers: Mapping[str, ToolSettings],
        outputs: Outputs,
        nursery: trio.Nursery,
        *,
        root: Path,
        private: Sequence[str],
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._servers, self._outputs, self._nursery = servers, outputs, nursery
        self._root, self._private = root, private
        self._now, self._dispatch, self._fail = now, dispatch, fail
        self._lives: dict[str, Life] = {}

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.StartToolServer: lambda i: self._nursery.start_soon(self._live, i),
            ins.StopToolServer: self._stop,
            ins.CallTool: self._call,
            ins.CancelTool: self._cancel,
            ins.ReadOutput: self._read,
        }

    async def _live(self, i: ins.StartToolServer) -> None:
        settings = self._servers[i.server]
        try:
            place = await trio.to_thread.run_sync(
                prepare, i.server, settings, self._root, self._private
            )
        except IsovistError as e:
            self._died(i, e.message, fatal=True)
            return
        life = self._lives[i.server] = Life(i.server, i.gen, settings, place)
        life.process.send(
            p.Mount(
                name=i.server,
                command=settings.command,
                url=settings.url,
                python=settings.python,
                env=settings.env,
                key=settings.key,
                place=place,
            )
        )
        death = await life.process.run(lambda message: self._heard(life, message))
        del self._lives[i.server]
        for output in life.answers.values():
            output.drop()
        reason = death.reason
        if not death.fatal and death.stderr:
            reason = f"{reason}: {death.stderr[-1][:500]}"
        self._died(i, reason, death.fatal)

    def _died(self, i: ins.StartToolServer, reason: str, fatal: bool) -> None:
        log.warning("tool server ended", server=i.server, why=reason)
        self._dispatch(
            ev.ToolServerDied(
                now=self._now(), server=i.server, gen=i.gen, reason=reason, fatal=fatal
            )
        )

    def _heard(self, life: Life, message: p.FromHost) -> None:
        match message:
            case p.Mounted():
                tools = tuple(tool for tool in message.tools[: p.TOOLS] if _sound(tool))
                if len(tools) < len(message.tools):
                    log.warning("tools left out", server=life.server, tools=len(tools))
                self._dispatch(
                    ev.ToolsUp(now=self._now(), server=life.server, gen=life.gen, tools=tools)
                )
            case p.Piece() if message.run in life.answers:
                output = life.answers[message.run]
                if output.characters + len(message.text) > p.LONGEST:
                    life.process.kill("it said more than an answer may have")
                    return
                output.add(message.text)
            case p.Ended() if message.run in life.answers:
                self._ended(life, message)
            case _:
                pass  # of a call that nobody waits for

    def _ended(self, life: Life, message: p.Ended) -> None:
        output = life.answers.pop(message.run)
        if message.errno:
            output.drop()
            answer = Answer(errno=message.errno, message=message.message, lost=message.lost)
        else:
            name = self._outputs.keep(output)
            answer = Answer(
                text=output.text,
                failed=message.failed,
                characters=output.characters,
                output=name,
            )
        self._done(life.server, life.gen, message.run, answer)

    def _done(self, server: str, gen: int, run: int, answer: Answer) -> None:
        event = ev.ToolDone(now=self._now(), server=server, gen=gen, run=run, answer=answer)
        self._dispatch(event)

    def _call(self, i: ins.CallTool) -> None:
        life = self._lives[i.server]
        life.answers[i.run] = self._outputs.begin(i.owner)
        try:
            life.process.send(p.Use(i.run, i.tool, i.arguments))
        except IsovistError as e:
            if e.errno is not Errno.EPIPE:  # its death is an event of its own, for all its calls
                del life.answers[i.run]
                answer = Answer(errno=int(e.errno), message=e.message)
                self._done(i.server, i.gen, i.run, answer)

    def _cancel(self, i: ins.CancelTool) -> None:
        life = self._lives.get(i.server)
        if life is not None and life.gen == i.gen:
            try:
                life.process.send(p.Stop(i.run))
            except IsovistError:
                life.process.kill("it reads nothing any more")

    def _stop(self, i: ins.StopToolServer) -> None:
        life = self._lives.get(i.server)
        if life is not None and life.gen == i.gen:
            life.process.kill(i.why)

    def _read(self, i: ins.ReadOutput) -> None:
        try:
            text, characters = self._outputs.read(i.id, i.owner, i.offset)
        except IsovistError as e:
            self._fail(i.key, e)
        else:
            self._dispatch(
                ev.OutputRead(now=self._now(), key=i.key, text=text, characters=characters)
            )
