"""A world of agents that spawn, share, open sessions and are granted and revoked rights at random,
beside books of its own of who may do what: nobody ever does what an ancestor lacks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from state_helpers import OPERATOR, Desk

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.manifest import Manifest, Mount, Restart
from isovist.syscalls.records import ToolRule

AGENTS = ("lead", "helper", "scribe", "spy")
USERS = ("ana", "bob", "zoe")
SCOPES = ("agent", "global", "@team")
TOOLS = ("files.read", "files.write", "web.get")
MOUNTS = ("/data", "/data/in", "/keys")


@dataclass
class Held:
    """What one agent is granted, as these books have it."""

    users: set[str] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)
    mail: set[str] = field(default_factory=set)
    tools: set[str] = field(default_factory=set)


@dataclass
class Known:
    """One process, as these books have it: its line is its parents', ended or not."""

    pid: int
    agent: str
    user: str
    parent: Known | None
    asked: m.Spawn
    manifest: Manifest | None
    quotas: dict[str, int]
    mounts: tuple[tuple[str, str], ...]
    bound: bool = True
    alive: bool = True

    def line(self) -> list[Known]:
        return [self, *(self.parent.line() if self.parent else [])]


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.desk = Desk(grants={})
        self.held = {agent: Held() for agent in AGENTS}
        self.approved: dict[str, tuple[str, Manifest]] = {}
        self.processes: dict[int, Known] = {}
        self.team = {"users": set[str](), "agents": set[str]()}
        self.seen = {"users": 0, "scopes": 0, "tools": 0, "mail": 0, "children": 0, "others": 0}
        """How often a child was seen to hold a right: a world in which nobody may do anything
        would prove nothing."""
        for of in ("users", "agents"):
            self.desk.ask(OPERATOR, m.GroupChange(name="team", of=of, add=()))
            self.desk.tell(ev.Saved, key=self.desk.one(ins.SaveGroup).key)

    # -- what happens

    def step(self) -> None:
        self.rng.choice(
            (self.grant, self.grant, self.approve, self.approve, self.begin, self.begin,
             self.spawn, self.spawn, self.spawn, self.spawn, self.session, self.join, self.end)
        )()  # fmt: skip

    def some(self, names: tuple[str, ...], most: int = 2) -> tuple[str, ...]:
        return tuple(sorted(self.rng.sample(names, self.rng.randint(0, min(most, len(names))))))

    def grant(self) -> None:
        agent, revoke = self.rng.choice(AGENTS), self.rng.random() < 0.4
        users = self.some((*USERS, "*"))
        request = m.Grant(
            agent=agent, users=users, scopes=self.some(SCOPES), revoke=revoke,
            mail=self.some((*AGENTS, "*")), tools=tuple(map(ToolRule, self.some(TOOLS))),
        )  # fmt: skip
        self.desk.ask(OPERATOR, request)
        frame = self.desk.frame
        saved = self.desk.all(ins.SaveGrant)
        if not saved:
            assert self.desk.reply(frame).errno, "refused, or saved"
            return
        self.desk.tell(ev.Saved, key=saved[0].key)
        self._book(agent, request, revoke)

    def _book(self, agent: str, request: m.Grant, revoke: bool) -> None:
        held, tools = self.held[agent], {rule.name for rule in request.tools}
        if not revoke:
            held.users |= set(request.users)
            held.scopes |= set(request.scopes)
            held.mail |= set(request.mail)
            held.tools |= tools
            return
        held.users = set() if "*" in request.users else held.users - set(request.users)
        held.scopes -= set(request.scopes)
        held.mail -= set(request.mail)
        held.tools -= tools
        for process in self.processes.values():
            if process.agent == agent and {process.user, "*"} & set(request.users):
                process.bound = False

    def approve(self) -> None:
        agent = self.rng.choice(AGENTS)
        if agent in self.approved and self.rng.random() < 0.2:
            self.desk.ask(OPERATOR, abi.AgentApprove(agent=agent, revoke=True))
            self.desk.tell(ev.Saved, key=self.desk.one(ins.SaveApproval).key)
            gone = self.approved.pop(agent)[1]
            users = gone.users
            if "*" in self.held[agent].users and "*" not in users:
                users = ()
            self._book(agent, _grant(gone, users), revoke=True)
            return
        manifest = Manifest(
            entry=f"/agents/{agent}.py", name=agent, users=self.some((*USERS, "*")),
            scope=self.rng.choice(("pair", "user", "agent", "global")),
            publish=self.some(SCOPES), mail=self.some((*AGENTS, "*")),
            tools=tuple(map(ToolRule, self.some((*TOOLS, "files.*")))),
            mounts=tuple(Mount(path=path, mode=self.rng.choice(("ro", "rw")))
                         for path in self.some(MOUNTS)),
            quotas={name: self.rng.randint(0, 9) for name in self.some(("units", "tokens"))},
            children=self.rng.randint(0, 6),
            restart=Restart(policy=self.rng.choice(("never", "on-failure", "always")), pause=0.01),
        )  # fmt: skip
        self.desk.ask(OPERATOR, abi.AgentApprove(manifest=manifest, cwd="/agents"))
        self.desk.tell(ev.Saved, key=self.desk.one(ins.SaveApproval).key)
        (shown,) = self.desk.reply(self.desk.frame).agents
        self.approved[agent] = shown.digest, manifest
        self._book(agent, _grant(manifest, manifest.users), revoke=False)

    def begin(self) -> None:
        """The operator starts an agent, under its manifest or without one."""
        agent = self.rng.choice(AGENTS)
        digest, manifest = self.approved.get(agent, ("", None))
        if self.rng.random() < 0.3:
            digest, manifest = "", None
        request = m.Spawn(
            program=f"{agent}.py", agent=agent, user=self.rng.choice((None, *USERS)),
            manifest=digest, users=self._narrow(USERS), scopes=self._narrow(SCOPES),
        )  # fmt: skip
        self._started(OPERATOR, None, request, manifest)

    def _narrow(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        return self.some(names, 3) if self.rng.random() < 0.3 else None

    def spawn(self) -> None:
        living = [p for p in self.processes.values() if p.alive]
        if not living:
            return
        parent, agent = self.rng.choice(living), self.rng.choice(("", *AGENTS))
        other = agent not in ("", parent.agent)
        tools = self._narrow(TOOLS)
        request = m.Spawn(
            program=self.rng.choice((agent, f"/agents/{agent}.py")) if other else "x.py",
            agent=agent, user=self.rng.choice((None, None, *USERS)),
            users=self._narrow(USERS), scopes=self._narrow(SCOPES), mail=self._narrow(AGENTS),
            tools=None if tools is None else tuple(map(ToolRule, tools)),
            quotas={"units": self.rng.randint(0, 9)} if self.rng.random() < 0.3 else {},
        )  # fmt: skip
        manifest = self.approved[agent][1] if other and agent in self.approved else None
        self._started(100 + parent.pid, parent, request, manifest)

    def _started(
        self, channel: int, parent: Known | None, request: m.Spawn, manifest: Manifest | None
    ) -> None:
        self.desk.ask(channel, request)
        starts, frame = self.desk.all(ins.StartProcess), self.desk.frame
        if not starts:
            assert self.desk.reply(frame).errno, "refused, or started"
            return
        (start,) = starts
        known = Known(
            start.pid, start.agent, start.user, parent, request, manifest, start.quotas,
            start.mounts,
        )  # fmt: skip
        if parent is not None:
            other = start.agent != parent.agent
            assert not other or manifest is not None, "another agent that nobody approved"
            assert not other or start.program == f"/agents/{start.agent}.py", "a program of its own"
            self.seen["others"] += other
        self.processes[start.pid] = known
        self._runs(start)

    def _runs(self, start: ins.StartProcess) -> None:
        self.desk.attach(100 + start.pid, start.agent, pid=start.pid)
        self.desk.tell(ev.Spawned, pid=start.pid)

    def session(self) -> None:
        living = [p for p in self.processes.values() if p.alive]
        if living:
            who = self.rng.choice(living)
            replace = self.rng.random() < 0.5
            self.desk.ask(
                100 + who.pid, m.SessionOpen(user=self.rng.choice(USERS), replace=replace)
            )

    def join(self) -> None:
        of, names = self.rng.choice((("users", USERS), ("agents", AGENTS)))
        add = set(self.some(names))
        remove = set(self.some(names)) - add
        self.desk.ask(
            OPERATOR,
            m.GroupChange(name="team", of=of, add=tuple(add), remove=tuple(remove)),  # type: ignore[arg-type] # one of its two words
        )
        self.desk.tell(ev.Saved, key=self.desk.one(ins.SaveGroup).key)
        self.team[of] = (self.team[of] | add) - remove

    def end(self) -> None:
        living = [p for p in self.processes.values() if p.alive]
        if not living:
            return
        gone = self.rng.choice(living)
        gone.alive = False
        self.desk.tell(ev.Detached, channel=100 + gone.pid, why="gone")
        self.desk.tell(ev.Exited, pid=gone.pid, status=self.rng.choice((0, 1)))
        for start in self._wake():
            self.processes[start.pid] = Known(
                start.pid, start.agent, start.user, gone.parent, gone.asked, gone.manifest,
                start.quotas, start.mounts, gone.bound,
            )  # fmt: skip
            self._runs(start)

    def _wake(self) -> list[ins.StartProcess]:
        self.desk.sleep(20_000_000)
        return self.desk.all(ins.StartProcess)

    # -- what must hold

    def check(self) -> None:
        for process in self.processes.values():
            if process.alive:
                self._check_users(process)
                self._check_scopes(process)
                self._check_rest(process)

    def _serves(self, one: Known, user: str) -> bool:
        held = self.held[one.agent].users
        named = user in held or "*" in held or (one.bound and user == one.user)
        own = f"agent/{one.agent}"
        asked, manifest = one.asked.users, one.manifest
        return (
            (named or user == own)
            and (asked is None or user in asked)
            and (manifest is None or not manifest.users or user == own
                 or bool({user, "*"} & set(manifest.users)))
        )  # fmt: skip

    def _check_users(self, process: Known) -> None:
        for user in (*USERS, *(f"agent/{agent}" for agent in AGENTS)):
            reply = self.desk.ask(100 + process.pid, m.Whoami(user=user))
            if isinstance(reply, m.Identity):
                lacking = [one.agent for one in process.line() if not self._serves(one, user)]
                assert not lacking, f"{process.agent} serves {user}, {lacking} may not"
                self.seen["users"] += process.parent is not None
        reply = self.desk.ask(100 + process.pid, m.Whoami())
        if isinstance(reply, m.Identity):
            lacking = [one.agent for one in process.line() if not self._serves(one, reply.user)]
            assert not lacking, f"{process.agent} serves {reply.user} by {reply.rule}: {lacking}"
            for user in set(reply.users) - {"*"}:
                assert all(self._serves(one, user) for one in process.line()), f"told of {user}"

    def _check_scopes(self, process: Known) -> None:
        for scope in (None, "agent", "global", "@team/own", "@team/all"):
            request = m.Remember(text=f"{process.pid} {scope}", scope=scope, stream="reusable")
            self.desk.ask(100 + process.pid, request)
            commits = self.desk.all(ins.Commit)
            if not commits:
                continue
            op = commits[0].op
            self.desk.commit(op)
            self.desk.embed(op)  # type: ignore[arg-type] # a new unit
            users = op.partition.users
            if users.kind == "one":
                continue
            pair = op.partition.agents.kind == "one"
            needed = "@team" if users.kind == "group" else "agent" if pair else "global"
            for one in process.line():
                asked, manifest = one.asked.scopes, one.manifest
                assert needed in self.held[one.agent].scopes, f"{needed}: {one.agent} lacks it"
                assert asked is None or needed in asked, f"{needed}: not asked for"
                assert manifest is None or needed in manifest.publish, f"{needed}: no manifest"
            self.seen["scopes"] += process.parent is not None

    def _check_rest(self, process: Known) -> None:
        users, who = self.desk.state.users, self.desk.state.channels[100 + process.pid].who
        for tool in TOOLS:
            if users.may_call(who, tool, {}):
                for one in process.line():
                    held = self.held[one.agent].tools
                    assert {tool, tool.split(".")[0] + ".*"} & held, f"{tool}: {one.agent} lacks it"
                self.seen["tools"] += process.parent is not None
        for agent in AGENTS:
            if users.may_mail(who, agent):
                for one in process.line():
                    named = {agent, "*"} & self.held[one.agent].mail
                    assert named or agent == one.agent, f"mail to {agent}: {one.agent} may not"
                self.seen["mail"] += process.parent is not None
        for one in process.line()[1:]:
            self.seen["children"] += 1
            for name, figure in one.quotas.items():
                assert process.quotas.get(name, figure + 1) <= figure, f"quota {name} is wider"
            for path, mode in process.mounts:
                assert any(
                    (path + "/").startswith(folder + "/") and mode in ("ro", of)
                    for folder, of in one.mounts
                ), f"{path} is mounted, {one.agent} has not got it"


def _grant(manifest: Manifest, users: tuple[str, ...]) -> m.Grant:
    return m.Grant(
        agent=manifest.name, users=users, scopes=manifest.publish, mail=manifest.mail,
        tools=manifest.tools,
    )  # fmt: skip


def run(seed: int, steps: int = 60) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
        world.check()
    return world
