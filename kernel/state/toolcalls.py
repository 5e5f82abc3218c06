"""The ``tools`` syscalls: who may call what, whom a person has to ask first, and what came of it.

A call of a tool goes through these gates in this order, whoever makes it (an agent by
``tools.call``, the kernel in the loop of a chat): it is permitted, by a grant of its agent *and* by
the rights of its process; its server is up; a person has agreed, where the operator wants that; its
effect is on record, unless the tool only reads; nothing runs that it conflicts with. Permission is
looked at again when a person has agreed, as that may take long. What a tool answers is data: it is
handed on, and nothing in it is obeyed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.answers import SCHEMA, check_object
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.effects import Begun
from isovist.kernel.state.rights import names
from isovist.kernel.state.toolservers import Run, Server, ServerConfig, ToolServers, lock_of
from isovist.kernel.state.toolwords import Answer, MountedTool, failure
from isovist.kernel.state.users import OPERATOR, Principal
from isovist.syscalls import messages as m
from isovist.syscalls.abi import tools as abi
from isovist.syscalls.abi.effects import Effect
from isovist.syscalls.abi.tools import Approval, ToolInfo, ToolResult, ToolUse
from isovist.syscalls.errors import CallerError, Errno, IsovistError, error
from isovist.syscalls.records import ToolRule
from isovist.syscalls.tools import TOOLS as OWN
from isovist.syscalls.tools import offer, render, request_of

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MOST = 64
"""Calls of one request."""
NAME, RULES = 256, 256
"""Characters of a tool's name or of a pattern; rules that one agent may be granted."""
SHOWN = 4096
"""Characters of its arguments that a person is shown, and that a chat's reply tells."""
KEPT = 8000
"""Characters of an answer that stay with the record of its effect."""
APPROVALS = 16
"""Calls of one agent that may wait for a person at once."""


@dataclass(slots=True, eq=False)
class Use:
    """One call of one tool on its way. ``then`` is told its result once, unless its request ended
    before. ``text`` are the arguments as the server gets them: one text for one meaning.

    Invariant: ``approval`` is set iff it waits for a person; ``run`` once it stands at its server.
    """

    call: Call
    who: Principal
    user: str
    name: str
    text: str
    key: str
    arguments: dict[str, object]
    then: Callable[[ToolResult], None]
    approval: str = ""
    asked_at: int = 0
    until: int = 0
    effect: str = ""
    run: Run | None = None
    inner: int = 0
    over: bool = False

    @property
    def digest(self) -> str:
        """Binds an approval to the tool, the arguments, the agent and the user."""
        bound = msgspec.json.encode([self.name, self.who.agent, self.user, self.text])
        return sha256(bound).hexdigest()


@dataclass(slots=True, eq=False)
class Waiter:
    """Something that goes on when none of ``servers`` is on its way up any more."""

    key: int
    servers: list[Server]
    then: Callable[[], None]


@dataclass(slots=True)
class Gathering:
    left: int
    results: list[ToolResult | None] = field(default_factory=list)


class Tools:
    def __init__(self, state: State, configs: Sequence[ServerConfig]) -> None:
        self._state = state
        self.servers = ToolServers(state, configs)
        self.servers.changed = self._changed
        self.servers.wanted = lambda server: any(server in w.servers for w in self._waiters)
        self._uses: dict[int, list[Use]] = {}
        """By call: those that are not over."""
        self._approvals: dict[str, Use] = {}
        self._waiters: list[Waiter] = []
        self._asked = 0

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            abi.ToolsList: self._list,
            abi.ToolsCall: self._call,
            abi.ToolsOutput: self._output,
            abi.ToolsApprovals: self._show_approvals,
            abi.ToolsAnswer: self._answer,
            abi.ToolsServers: self._show_servers,
        }

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {**self.servers.events(), ev.OutputRead: self._output_read}

    # -- permission

    def may_call(self, who: Principal, name: str, arguments: dict[str, object]) -> bool:
        """Grants and rights allow it. The kernel's own tools show the caller its own view, and are
        everybody's."""
        return name in OWN or self._state.users.may_call(who, name, arguments)

    def may_see(self, who: Principal, name: str) -> bool:
        """There may be arguments with which it may be called."""
        grants = self._state.users.grants
        return (
            name in OWN
            or _is_operator(who)
            or all(
                one.rights.lists(name) and any(names(r, name) for r in grants(one.agent).tools)
                for one in who.line()
            )
        )

    def _check(self, who: Principal, name: str, arguments: dict[str, object]) -> None:
        """Raise ``EPERM``. Of a tool that is not there it says the same: what others may call is
        not to be found out."""
        if not self.may_call(who, name, arguments):
            raise CallerError(
                f"agent {who.agent!r} may not call {name} with these arguments",
                errno=Errno.EPERM,
                field="name",
            )

    def _check_user(self, use: Use) -> None:
        """Raise ``EPERM`` where the user is served no more: the grant is gone, or the user is."""
        if use.user and not self._state.users.may_serve(use.who, use.user):
            why = f"agent {use.who.agent!r} may not act for this user any more"
            raise CallerError(why, errno=Errno.EPERM, field="user")

    # -- what there is

    def reach(self, who: Principal, patterns: Sequence[str]) -> list[Server]:
        """The servers that may have a tool that fits the patterns (none: any) and that ``who`` may
        call."""
        held = self._state.users.grants(who.agent).tools
        rules = [ToolRule("*")] if _is_operator(who) else held
        return [
            server
            for server in self.servers.all()
            if any(_reaches(rule.name, server.config.name) for rule in rules)
            and (not patterns or any(_reaches(p, server.config.name) for p in patterns))
        ]

    def listed(self, who: Principal, patterns: Sequence[str]) -> list[ToolInfo]:
        """The tools of servers that are up, and the kernel's own, that ``who`` may call."""
        found = [
            ToolInfo(t.name, t.name, t.description, t.parameters, read_only=True, idempotent=True)
            for t in offer()
        ]
        for server in self.servers.all():
            if server.state == "up":
                found += [_info(server.config, tool) for tool in server.tools.values()]
        return [
            info
            for info in found
            if self.may_see(who, info.name)
            and (not patterns or any(fnmatchcase(info.name, p) for p in patterns))
        ]

    def when_up(
        self, call: Call, servers: list[Server], then: Callable[[], None]
    ) -> dict[str, str]:
        """Have ``servers`` started, and go on ``then`` when each is up or has failed (at once, or
        later while the call lasts). Gives why some cannot be started now."""
        missing: dict[str, str] = {}
        for server in servers:
            try:
                self.servers.ensure(server)
            except IsovistError as e:
                missing[server.config.name] = e.message
        self._waiters.append(Waiter(call.key, servers, then))
        self._changed()
        return missing

    def _changed(self) -> None:
        for waiter in list(self._waiters):
            on_its_way = any(s.state in ("starting", "waiting") for s in waiter.servers)
            if waiter in self._waiters and not on_its_way:
                self._waiters.remove(waiter)
                waiter.then()

    def _list(self, channel: Channel, frame: int, request: abi.ToolsList) -> None:
        check_patterns(request.names, "names")
        resolved = self._state.users.resolve(channel.who, request.user)
        servers = self.reach(channel.who, request.names)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.TOOLS, self._state.now, "list")

        def then() -> None:
            down = {s.config.name: s.error for s in servers if s.state != "up"}
            tools = tuple(self.listed(channel.who, request.names))
            self._state.finish(call, abi.ToolList(tools=tools, missing=down))

        self.when_up(call, servers, then)

    def _show_servers(self, channel: Channel, frame: int, request: abi.ToolsServers) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator sees the tool servers", errno=Errno.EPERM)
        self._state.reply(channel, frame, abi.ToolServers(servers=self.servers.shown()))

    # -- calls

    def _call(self, channel: Channel, frame: int, request: abi.ToolsCall) -> None:
        if not 1 <= len(request.calls) <= MOST:
            raise CallerError(f"calls takes 1 to {MOST}", field="calls")
        checked = [check_use(use, f"calls[{at}]") for at, use in enumerate(request.calls)]
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.TOOLS, self._state.now, f"{len(checked)} calls")

        def then(results: tuple[ToolResult, ...]) -> None:
            reply = abi.ToolResults(results=results, user=resolved.user, rule=resolved.rule)
            self._state.finish(call, reply)

        self.gather(call, channel.who, request.calls, then)

    def gather(
        self,
        call: Call,
        who: Principal,
        uses: Sequence[ToolUse],
        then: Callable[[tuple[ToolResult, ...]], None],
    ) -> None:
        """Make all of ``uses`` for ``call``, and go on with their results when each has ended."""
        gathering = Gathering(len(uses), [None] * len(uses))

        def ended(at: int, result: ToolResult) -> None:
            gathering.results[at] = result
            gathering.left -= 1
            if not gathering.left:
                then(tuple(r for r in gathering.results if r is not None))

        for at, use in enumerate(uses):
            self._use(call, who, use, partial(ended, at))

    def _use(
        self, call: Call, who: Principal, asked: ToolUse, then: Callable[[ToolResult], None]
    ) -> None:
        user = call.resolved.user if call.resolved else ""
        arguments, text = check_use(asked, "calls")
        use = Use(call, who, user, self._named(asked.name), text, asked.key, arguments, then)
        self._uses.setdefault(call.key, []).append(use)
        try:
            self._check(who, use.name, arguments)
            self._check_user(use)
            if use.name in OWN:
                self._own(use)
                return
            name, _, _ = use.name.partition(".")
            server = self.servers.find(name)
            if server is None:
                raise _no_such(use.name)
            self.servers.ensure(server)
        except IsovistError as e:
            self._over(use, _failed(use, e))
            return
        self.when_up(call, [server], lambda: None if use.over else self._ask(use, server))

    def _named(self, name: str) -> str:
        """A tool's own name, where a call has the one that models know it by."""
        server = self.servers.find(name.partition("__")[0])  # whose name holds no _
        tools = server.tools if server is not None and "." not in name else ()
        mine = (f"{name.partition('__')[0]}.{t}" for t in tools if _is(name, t))
        return next(mine, name)

    def _own(self, use: Use) -> None:
        """One of the kernel's own tools: a syscall, for the same channel and the same user."""
        try:
            request = request_of(use.name, use.arguments)
        except CallerError as e:
            self._over(use, _failed(use, e))
            return
        request = msgspec.structs.replace(request, user=use.user)

        def then(reply: m.AnyReply) -> None:
            if use.over:
                return
            if isinstance(reply, m.Failed):
                found = error(reply.errno, reply.message, reply.field, retry_at=reply.retry_at)
                self._over(use, _failed(use, found))
            else:
                text = render(reply)
                self._over(use, ToolResult(use.name, text, characters=len(text)))

        channel = self._state.channels[use.call.channel]
        use.inner = self._state.ask(channel, request, then)

    def _ask(self, use: Use, server: Server) -> None:
        """Its server is up, or is not to be had. Have a person asked, where that is wanted."""
        tool = self._tool(use, server)
        if tool is None:
            return
        if not server.config.approval_of(tool.name):
            self._record(use, server)
            return
        agent = use.who.agent
        if sum(other.who.agent == agent for other in self._approvals.values()) >= APPROVALS:
            why = f"{APPROVALS} calls of agent {agent!r} wait for a person, the limit"
            self._over(use, _failed(use, CallerError(why, errno=Errno.EAGAIN)))
            return
        self._asked += 1
        use.approval = self._state.opaque("p", self._state.boot, "approval", self._asked)
        use.asked_at = self._state.calendar()
        use.until = use.asked_at + server.config.approval
        self._approvals[use.approval] = use
        use.call.tell(self._state.now, f"{use.name} waits for a person")
        at = self._state.now + server.config.approval
        self._state.timer(at, 0, f"tool approval {use.approval}")
        self._note(use, agent, "asked")

    def _tool(self, use: Use, server: Server) -> MountedTool | None:
        """The tool that is to be called; where it is not there its call is over."""
        if server.state != "up":
            why = f"tool server {server.config.name!r} cannot run: {server.error}"
            retry_at = self._state.calendar() + max(0, server.until - self._state.now)
            self._over(use, _failed(use, error(Errno.EAGAIN, why, retry_at=retry_at)))
            return None
        tool = server.tools.get(use.name.partition(".")[2])
        if tool is None:
            self._over(use, _failed(use, _no_such(use.name)))
        return tool

    def _record(self, use: Use, server: Server) -> None:
        """It may be called: have its effect on record first, where it may have one."""
        try:
            self._check(use.who, use.name, use.arguments)  # a person may have taken hours
            self._check_user(use)
            tool = self._tool(use, server)
            if tool is None:
                return
            lock = lock_of(server.config.conflict_of(tool.name), use.arguments)
            then = partial(self._answered, use)
            agent, held = use.who.agent, not tool.read_only
            use.run = self.servers.offer(
                server, tool.name, use.text, lock, agent, use.user, then, held=held
            )
            if held:
                self._begin(use, use.run, tool)
        except IsovistError as e:
            self._over(use, _failed(use, e))

    def _begin(self, use: Use, run: Run, tool: MountedTool) -> None:
        """It has its place in the queue, and waits there until its effect is on record."""
        try:
            self._state.effects.begin(
                use.call,
                key=use.key,
                kind="tool",
                subject=use.name,
                arguments=use.text,
                idempotent=tool.idempotent,
                then=partial(self._begun, use, run),
            )
        except IsovistError:
            self.servers.withdraw(run)
            use.run = None
            raise

    def _begun(self, use: Use, run: Run, begun: Begun) -> None:
        """Its effect is on record, or was before under this key; or may not begin."""
        effect = begun.effect
        if run.told:
            # Its server has failed meanwhile; nothing was carried out.
            if begun.fresh and effect is not None:
                why = "the tool's server was not to be had"
                self._state.effects.failed(effect.id, int(Errno.EAGAIN), why)
            return
        if begun.fresh and effect is not None:
            use.effect = effect.id
            self.servers.release(run)
            return
        self.servers.withdraw(run)
        use.run = None
        if effect is not None:
            self._over(use, _told_before(use.name, effect))
        elif begun.refused is not None:
            self._over(use, _failed(use, begun.refused))

    def _answered(self, use: Use, answer: Answer) -> None:
        if use.over:
            return
        result = ToolResult(
            name=use.name,
            text=answer.text,
            failed=answer.failed,
            errno=answer.errno,
            message=answer.message,
            characters=answer.characters,
            output=answer.output,
            effect=use.effect,
            retry_at=answer.retry_at,
        )
        use.run = None
        self._settle(use, answer, lambda: self._over(use, result))

    def _settle(self, use: Use, answer: Answer, then: Callable[[], None]) -> None:
        """It has ended: have on record what it came to, and go on."""
        effects = self._state.effects
        if not use.effect:
            then()
        elif answer.lost:
            effects.lost(use.effect, answer.message, then)
        elif answer.errno:
            effects.failed(use.effect, answer.errno, answer.message, then)
        else:
            kept = msgspec.structs.replace(answer, text=answer.text[:KEPT])
            effects.done(use.effect, msgspec.json.encode(kept).decode(), then)

    def _note(self, use: Use, actor: str, word: str) -> None:
        """Of the arguments the log has a keyed hash alone."""
        self._state.chronicle.note(
            "approval",
            actor,
            use.name,
            users=(use.user,),
            word=word,
            id=use.approval,
            agent=use.who.agent,
            arguments=self._state.opaque("", "arguments", use.text),
        )

    def _over(self, use: Use, result: ToolResult) -> None:
        if use.over:
            return
        use.over = True
        self._forget(use)
        use.then(result)

    def _forget(self, use: Use) -> None:
        self._approvals.pop(use.approval, None)
        use.approval = ""
        own = self._uses.get(use.call.key, [])
        if use in own:
            own.remove(use)
        if not own:
            self._uses.pop(use.call.key, None)

    def closed(self, call: Call) -> None:
        """A request ends: what it still waits for is given up. A call that is under way is
        cancelled, and what becomes of it is still put on record."""
        self._waiters = [w for w in self._waiters if w.key != call.key]
        for use in list(self._uses.get(call.key, ())):
            use.over = True
            self._forget(use)
            if use.inner:
                self._state.drop(call.channel, use.inner)
            if use.run is not None and not use.run.told:
                gone = failure(error(Errno.ECANCELED, "its request has ended"))
                if not use.run.running:
                    self._settle(use, gone, _nothing)
                self.servers.cancel(use.run, gone, partial(self._settle, use, then=_nothing))

    def forget(self, user: str) -> None:
        """The user goes: what is called for the user is given up, and nobody is asked for it."""
        gone = {key for key, uses in self._uses.items() if any(use.user == user for use in uses)}
        for key in sorted(gone & self._state.calls.keys()):
            why = "the user is forgotten"
            self._state.fail(
                self._state.calls[key], CallerError(why, errno=Errno.ENOENT, field="user")
            )

    # -- a person's word

    def _show_approvals(self, channel: Channel, frame: int, request: abi.ToolsApprovals) -> None:
        self._check_person(channel)
        self._state.reply(channel, frame, abi.Approvals(approvals=self._waiting()))

    def _answer(self, channel: Channel, frame: int, request: abi.ToolsAnswer) -> None:
        self._check_person(channel)
        use = self._approvals.get(request.id)
        if use is None:
            raise CallerError(
                "no call waits under this id: it was answered, has ended or was never there",
                errno=Errno.ENOENT,
                field="id",
            )
        if request.digest not in ("", use.digest):
            raise CallerError(
                "the call that waits under this id is another", errno=Errno.ESTALE, field="digest"
            )
        self._decide(use, "approved" if request.approve else "denied")
        self._state.reply(channel, frame, abi.Approvals(approvals=self._waiting()))

    @staticmethod
    def _check_person(channel: Channel) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator answers for a person", errno=Errno.EPERM)

    def _waiting(self) -> tuple[Approval, ...]:
        return tuple(
            Approval(
                id=use.approval,
                name=use.name,
                agent=use.who.agent,
                user=use.user,
                arguments=printable(use.text)[:SHOWN],
                digest=use.digest,
                asked_at=use.asked_at,
                until=use.until,
            )
            for use in self._approvals.values()
        )

    def _decide(self, use: Use, word: str) -> None:
        """Approved, denied, or timed out, which means no."""
        self._note(use, OPERATOR, word)
        del self._approvals[use.approval]
        use.approval = ""
        server = self.servers.find(use.name.partition(".")[0])
        if word == "approved" and server is not None:
            use.call.tell(self._state.now, f"{use.name} was approved")
            self.when_up(
                use.call, [server], lambda: None if use.over else self._record(use, server)
            )
            return
        why = f"{use.name}: a person has denied this call"
        if word == "timed out":
            why = f"{use.name}: nobody has approved this call in time, which means no"
        self._over(use, _failed(use, CallerError(why, errno=Errno.EPERM)))

    def woken(self, what: str) -> None:
        """A timer has run out: ``approval ID``, or ``server NAME WORD NUMBER``."""
        kind, name, *more = what.split(" ")
        if kind == "server":
            word, number = more
            self.servers.woken(name, word, int(number))
        elif name in self._approvals:
            self._decide(self._approvals[name], "timed out")

    # -- long answers

    def _output(self, channel: Channel, frame: int, request: abi.ToolsOutput) -> None:
        if not 0 <= request.offset < 1 << 31:
            raise CallerError("offset must be 0 to 2147483647", field="offset")
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.ReadOutput(call.key, request.id, request.offset, call.owner))

    def _output_read(self, event: ev.OutputRead) -> None:
        call = self._state.calls.get(event.key)
        if call is None or not isinstance(call.request, abi.ToolsOutput):
            return
        self._state.finish(
            call,
            abi.ToolOutput(
                text=event.text, offset=call.request.offset, characters=event.characters
            ),
        )

    def validate(self) -> None:
        self.servers.validate()
        for key, uses in self._uses.items():
            assert key in self._state.calls, "a call of a tool outlives its request"
            assert uses
            for use in uses:
                assert not use.over
                assert not use.approval or self._approvals.get(use.approval) is use
                assert use.run is None or not use.run.told
        for id_, use in self._approvals.items():
            assert use.approval == id_
            assert use.run is None, "called before a person has agreed"
        for waiter in self._waiters:
            assert any(s.state in ("starting", "waiting") for s in waiter.servers)


def _is_operator(who: Principal) -> bool:
    """The operator that acts as itself holds every grant."""
    return who.operator and who.agent == OPERATOR


def _reaches(pattern: str, server: str) -> bool:
    """A tool of ``server`` may fit ``pattern``, which stands for all where it has no dot."""
    head, dot, _ = pattern.partition(".")
    return fnmatchcase(server, head) if dot else pattern == "*"


def _info(config: ServerConfig, tool: MountedTool) -> ToolInfo:
    return ToolInfo(
        name=f"{config.name}.{tool.name}",
        offered=offered(config.name, tool.name),
        description=tool.description,
        parameters=tool.parameters,
        read_only=tool.read_only,
        idempotent=tool.idempotent,
        approval=config.approval_of(tool.name),
        conflict=config.conflict_of(tool.name),
        timeout_ms=config.timeout // 1_000_000,
    )


def offered(server: str, tool: str) -> str:
    """Its name for a model, which knows letters, digits, ``_`` and ``-``, 64 in all."""
    name = f"{server}__{tool}"
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)
    if plain == name and len(name) <= 64:
        return name
    return f"{plain[:55]}_{sha256(name.encode()).hexdigest()[:8]}"


def _is(name: str, tool: str) -> bool:
    return offered(name.partition("__")[0], tool) == name


def check_use(use: ToolUse, where: str) -> tuple[dict[str, object], str]:
    """The arguments of a call, and as one text for one meaning. Raises ``EINVAL`` or
    ``EMSGSIZE``."""
    if not 1 <= len(use.name) <= NAME or not use.name.isprintable():
        raise CallerError(f"{where}.name must have 1 to {NAME} characters", field=where)
    if len(use.key) > 128:
        raise CallerError(f"{where}.key has at most 128 characters", field=where)
    arguments: dict[str, object] = check_object(use.arguments or "{}", f"{where}.arguments", where)
    try:
        text = msgspec.json.encode(arguments, order="sorted").decode()
    except UnicodeEncodeError:
        raise CallerError(f"{where}.arguments hold a lone surrogate", field=where) from None
    if len(text) > SCHEMA:
        why = f"{where}.arguments have {len(text)} characters, the limit is {SCHEMA}"
        raise CallerError(why, errno=Errno.EMSGSIZE, field=where)
    return arguments, text


def check_patterns(patterns: Sequence[str], field: str) -> None:
    if len(patterns) > MOST:
        raise CallerError(f"{field} takes at most {MOST} patterns", field=field)
    for pattern in patterns:
        if not 1 <= len(pattern) <= NAME or not pattern.isprintable():
            raise CallerError(f"{field}: a pattern has 1 to {NAME} characters", field=field)


def check_rules(rules: Sequence[ToolRule]) -> None:
    """Raise ``EINVAL`` where a rule for tools is none that a grant may hold."""
    check_patterns([rule.name for rule in rules], "tools")
    for rule in rules:
        if rule.name != "*" and "." not in rule.name:
            raise CallerError(
                f"tools: {rule.name!r} names no tool; it is written SERVER.TOOL", field="tools"
            )
        if len(rule.arguments) > MOST:
            raise CallerError(f"tools: a rule has at most {MOST} arguments", field="tools")
        for name, pattern in rule.arguments.items():
            if not 1 <= len(name) <= NAME or len(pattern) > SHOWN:
                why = f"tools: an argument has 1 to {NAME} characters, its pattern {SHOWN}"
                raise CallerError(why, field="tools")


def printable(text: str) -> str:
    """JSON whose every character shows as what it is: nothing in it moves a cursor, turns the
    direction of the text, or cannot be seen."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _nothing() -> None:
    """Nobody waits for it any more."""


def _told_before(name: str, effect: Effect) -> ToolResult:
    """The result of a call that has ended before, under the same key."""
    answer = Answer()
    if effect.state != "done":
        answer = Answer(errno=effect.errno or int(Errno.EIO), message=effect.message)
    elif effect.result is not None and effect.result.text:
        try:
            answer = msgspec.json.decode(effect.result.text, type=Answer)
        except msgspec.DecodeError:  # what looked like a secret was replaced in it
            answer = Answer(text=effect.result.text[:KEPT], characters=effect.result.size)
    return ToolResult(
        name=name,
        text=answer.text,
        failed=answer.failed,
        errno=answer.errno,
        message=answer.message,
        characters=answer.characters,
        effect=effect.id,
    )


def _no_such(name: str) -> CallerError:
    return CallerError(f"there is no tool {name}", errno=Errno.ENOENT, field="name")


def _failed(use: Use, e: IsovistError) -> ToolResult:
    return ToolResult(
        name=use.name,
        errno=int(e.errno),
        message=e.message,
        effect=use.effect,
        retry_at=e.retry_at,
    )
