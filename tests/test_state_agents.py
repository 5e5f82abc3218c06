"""Approvals in the pure kernel, and what an agent may do when it spawns under one."""

from __future__ import annotations

from typing import Any

import pytest
from state_helpers import MAIL, OPERATOR, Desk
from test_state_processes import spawn

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import Errno
from isovist.syscalls.manifest import Approval, Manifest, Mount, Restart
from isovist.syscalls.records import ToolRule


def asks(name: str = "lead", **fields: Any) -> Manifest:
    return Manifest(**{"entry": f"/agents/{name}.py", "name": name, **fields})


def approve(desk: Desk, manifest: Manifest) -> str:
    """The digest under which it may be started."""
    desk.ask(OPERATOR, abi.AgentApprove(manifest=manifest, cwd="/agents"))
    saved, frame = desk.one(ins.SaveApproval), desk.frame
    desk.tell(ev.Saved, key=saved.key)
    (shown,) = desk.reply(frame).agents
    assert shown.manifest == manifest
    return str(shown.digest)


def started(desk: Desk, manifest: Manifest, **fields: Any) -> int:
    return spawn(
        desk, program=manifest.entry, agent=manifest.name, manifest=approve(desk, manifest),
        **fields,
    )  # fmt: skip


def me(desk: Desk, pid: int, **fields: Any) -> m.Identity:
    identity = desk.ask(100 + pid, m.Whoami(**fields))
    assert isinstance(identity, m.Identity), identity
    return identity


def test_an_approval_grants_what_was_asked_and_is_durable_with_it() -> None:
    desk = Desk()
    rule = ToolRule("files.*")
    manifest = asks(users=("zoe",), publish=("agent",), mail=("plan",), tools=(rule,))
    desk.ask(OPERATOR, abi.AgentApprove(manifest=manifest, cwd="/agents"))
    saved = desk.one(ins.SaveApproval)
    held = saved.grant
    assert (held.agent, held.users, held.scopes, held.mail, held.tools) == (
        "lead", ("zoe",), ("agent",), ("plan",), (rule,),
    )  # fmt: skip
    assert saved.approval is not None
    assert saved.approval.manifest == manifest
    assert desk.reply() is None, "not before it is durable"
    # A kernel that starts with it knows it.
    again = Desk(
        approvals={"lead": saved.approval},
        grants={"lead": (held.users, held.scopes)},
        permissions={"lead": (held.mail, held.tools)},
    )
    (shown,) = again.ask(OPERATOR, abi.AgentList(agent="lead")).agents
    assert (shown.users, shown.mail, shown.tools) == (("zoe",), ("plan",), ("files.*",))
    assert shown.digest == saved.approval.digest


def test_only_the_operator_approves_and_lists() -> None:
    desk = Desk()
    for request in (abi.AgentApprove(manifest=asks(), cwd="/a"), abi.AgentList()):
        assert desk.ask(MAIL, request).errno == Errno.EPERM


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (abi.AgentApprove(cwd="/a"), "manifest"),
        (abi.AgentApprove(manifest=asks(), cwd="rel"), "cwd"),
        (abi.AgentApprove(manifest=asks(children=65), cwd="/a"), "children"),
        (abi.AgentApprove(manifest=asks(publish=("@nobody",)), cwd="/a"), "scopes"),
        (abi.AgentApprove(agent="lead", revoke=True), "agent"),
    ],
)
def test_what_cannot_be_approved_changes_nothing(request_: m.Request, field: str) -> None:
    desk = Desk()
    assert desk.ask(OPERATOR, request_).field == field
    assert desk.ask(OPERATOR, abi.AgentList(agent="lead")).agents == (abi.Installed(agent="lead"),)


def test_a_manifest_that_is_not_approved_as_it_stands_starts_nothing() -> None:
    desk = Desk()
    digest = approve(desk, asks())
    approve(desk, asks(users=("ana",)))
    failed = desk.ask(OPERATOR, m.Spawn(program="x.py", agent="lead", manifest=digest))
    assert (failed.errno, failed.field) == (Errno.EPERM, "manifest")
    failed = desk.ask(MAIL, m.Spawn(program="x.py", user="ana", manifest=digest))
    assert (failed.errno, failed.field) == (Errno.EPERM, "manifest")


@pytest.mark.promise("author.true")
def test_a_manifest_bounds_its_process_whatever_the_agent_was_granted_before() -> None:
    desk = Desk(grants={"lead": (("ana", "bob"), ("agent", "global"))})
    pid = started(desk, asks(users=("ana",), publish=("agent",)), user="ana")
    assert me(desk, pid).users == ("ana",)
    assert me(desk, pid).scopes == ("agent", "pair", "user")
    assert desk.ask(100 + pid, m.Whoami(user="bob")).errno == Errno.EPERM
    put = desk.remember(100 + pid, scope="global", stream="reusable")
    assert put.partition.scope == "pair"
    put = desk.remember(100 + pid, scope="agent", stream="reusable")
    assert put.partition.scope == "agent"


def test_who_asks_for_some_users_is_started_for_no_other() -> None:
    desk = Desk()
    digest = approve(desk, asks(users=("ana",)))
    spawned = m.Spawn(program="x.py", agent="lead", manifest=digest, user="bob")
    assert (desk.ask(OPERATOR, spawned).errno, desk.reply().field) == (Errno.EPERM, "user")


@pytest.mark.promise("private.default")
def test_the_default_scope_is_the_manifests_where_it_is_granted() -> None:
    desk = Desk()
    pid = started(desk, asks(scope="user", users=("ana",)), user="ana")
    assert desk.remember(100 + pid).partition.scope == "user"
    assert desk.remember(100 + pid, scope="pair", text="other").partition.scope == "pair"
    pid = started(desk, asks("other", scope="global"), user="ana")
    assert desk.remember(100 + pid, stream="reusable").partition.scope == "pair"


def test_what_runs_is_what_was_approved() -> None:
    desk = Desk()
    manifest = asks(mounts=(Mount(path="/data"),), quotas={"memory": 9})
    digest = approve(desk, manifest)
    desk.ask(OPERATOR, m.Spawn(program="evil.py", cwd="/evil", agent="lead", manifest=digest))
    start = desk.one(ins.StartProcess)
    assert (start.program, start.cwd) == ("/agents/lead.py", "/agents")
    assert (start.mounts, start.quotas) == ((("/data", "ro"),), {"memory": 9})


@pytest.mark.promise("author.true")
def test_another_agent_is_started_as_it_was_approved_and_has_what_its_spawner_has() -> None:
    desk = Desk()
    lead = started(
        desk, asks(users=("ana", "bob"), publish=("agent",), children=2), user="ana"
    )  # fmt: skip
    approve(desk, asks("helper", users=("*",), publish=("agent", "global"), children=9))
    pid = spawn(desk, 100 + lead, program="helper", agent="helper")
    who = me(desk, pid)
    assert (who.agent, who.user, who.rule) == ("helper", "ana", "session")
    assert who.users == ("ana", "bob")
    assert who.scopes == ("agent", "pair", "user")
    assert desk.ask(100 + pid, m.Whoami(user="zoe")).errno == Errno.EPERM
    # Nor for itself, whose memory its spawner does not hold.
    assert desk.ask(100 + pid, m.Whoami(user="agent/helper")).errno == Errno.EPERM


@pytest.mark.promise("identity.bound")
def test_nobody_becomes_another_agent_with_a_program_of_its_own() -> None:
    desk = Desk()
    lead = started(desk, asks(users=("ana",), children=2), user="ana")
    approve(desk, asks("helper"))
    failed = desk.ask(100 + lead, m.Spawn(program="evil.py", agent="helper"))
    assert (failed.errno, failed.field) == (Errno.EPERM, "program")
    # Without a manifest that allows children there is nothing to tell of who is approved.
    for name in ("helper", "nobody"):
        failed = desk.ask(MAIL, m.Spawn(program=name, agent=name, user="ana"))
        assert (failed.errno, failed.field) == (Errno.EPERM, "agent")


@pytest.mark.promise("author.true")
def test_a_spawn_may_narrow_and_never_widen() -> None:
    desk = Desk(grants={"mail": (("ana", "bob"), ("agent", "global"))})
    pid = spawn(desk, MAIL, user="ana", users=("ana", "zoe"), scopes=("agent", "@x"))
    assert me(desk, pid).users == ("ana",)
    assert me(desk, pid).scopes == ("agent", "pair", "user")
    child = spawn(desk, 100 + pid, users=None, scopes=None)
    assert me(desk, child).users == ("ana",)
    failed = desk.ask(MAIL, m.Spawn(program="x.py", user="ana", users=("bob",)))
    assert (failed.errno, failed.field) == (Errno.EPERM, "users")


@pytest.mark.promise("author.true")
def test_what_an_ancestor_loses_its_descendants_lose_even_when_it_has_ended() -> None:
    desk = Desk()
    lead = started(
        desk, asks(users=("ana", "bob"), publish=("global",), children=3), user="ana"
    )  # fmt: skip
    approve(desk, asks("helper", users=("*",), publish=("global",), children=3))
    pid = spawn(desk, 100 + lead, program="helper", agent="helper")
    desk.tell(ev.Detached, channel=100 + lead, why="gone")
    desk.tell(ev.Exited, pid=lead, status=0)
    assert me(desk, pid).users == ("ana", "bob")
    desk.ask(OPERATOR, m.Grant(agent="lead", users=("bob",), scopes=("global",), revoke=True))
    assert me(desk, pid).users == ("ana",)
    assert "global" not in me(desk, pid).scopes
    desk.ask(OPERATOR, m.Grant(agent="lead", users=("ana",), revoke=True))
    assert desk.ask(100 + pid, m.Whoami()).errno == Errno.EPERM
    assert desk.ask(100 + pid, m.Remember(text="x")).errno == Errno.EPERM


@pytest.mark.promise("author.true")
def test_mail_and_tools_are_held_by_the_whole_line() -> None:
    desk = Desk()
    anything, reads = ToolRule("files.*"), ToolRule("files.read", {"path": "notes/*"})
    lead = started(desk, asks(tools=(reads,), mail=("plan",), children=1), user="ana")
    approve(desk, asks("helper", tools=(anything,), mail=("*",)))
    pid = spawn(desk, 100 + lead, program="helper", agent="helper")
    users = desk.state.users
    who = desk.state.channels[100 + pid].who
    assert users.may_call(who, "files.read", {"path": "notes/a"})
    assert not users.may_call(who, "files.read", {"path": "secret"})
    assert not users.may_call(who, "files.write", {"path": "notes/a"})
    assert (users.may_mail(who, "plan"), users.may_mail(who, "mail")) == (True, False)
    desk.ask(OPERATOR, m.Grant(agent="lead", tools=(ToolRule("files.read"),), revoke=True))
    assert not users.may_call(who, "files.read", {"path": "notes/a"})
    # Without a grant there is neither, and none for who has no manifest.
    plain = desk.state.channels[MAIL].who
    assert not users.may_call(plain, "files.read", {})
    assert not users.may_mail(plain, "plan")
    desk.ask(OPERATOR, m.Grant(agent="mail", mail=("plan",)))
    assert users.may_mail(plain, "plan")


def test_mounts_of_a_child_lie_within_those_of_its_spawner() -> None:
    desk = Desk()
    mounts = (Mount(path="/data", mode="rw"), Mount(path="/read"))
    lead = started(desk, asks(mounts=mounts, children=1), user="ana")
    wide = (
        Mount(path="/data/in", mode="rw"), Mount(path="/read", mode="rw"),
        Mount(path="/database"), Mount(path="/etc"),
    )  # fmt: skip
    approve(desk, asks("helper", mounts=wide))
    desk.ask(100 + lead, m.Spawn(program="helper", agent="helper"))
    assert desk.one(ins.StartProcess).mounts == (("/data/in", "rw"), ("/read", "ro"))


def test_children_are_limited_with_theirs() -> None:
    desk = Desk()
    lead = started(desk, asks(children=2), user="ana")
    first = spawn(desk, 100 + lead)
    second = spawn(desk, 100 + first)
    for channel in (lead, first, second):
        assert desk.ask(100 + channel, m.Spawn(program="x.py")).errno == Errno.EAGAIN
    desk.tell(ev.Exited, pid=second, status=0)
    spawn(desk, 100 + lead)
    pid = started(desk, asks("alone"), user="ana")
    assert desk.ask(100 + pid, m.Spawn(program="x.py")).errno == Errno.EAGAIN


def test_generations_are_bounded() -> None:
    desk = Desk()
    channel = MAIL
    for _ in range(31):
        pid = spawn(desk, channel, user="ana")
        channel = 100 + pid
    failed = desk.ask(channel, m.Spawn(program="x.py"))
    assert (failed.errno, "generations" in failed.message) == (Errno.EAGAIN, True)


def test_an_approval_taken_back_takes_what_it_granted() -> None:
    desk = Desk()
    manifest = asks(users=("ana", "zoe"), publish=("agent",), restart=Restart(policy="always"))
    pid = started(desk, manifest, user="ana")
    desk.ask(OPERATOR, abi.AgentApprove(agent="lead", revoke=True))
    saved = desk.one(ins.SaveApproval)
    assert (saved.approval, saved.grant.users, saved.grant.scopes) == (None, (), ())
    assert desk.ask(100 + pid, m.Whoami()).errno == Errno.EPERM
    desk.tell(ev.Exited, pid=pid, status=1)
    gone = desk.ask(OPERATOR, m.WaitPid(pid=pid)).process
    assert gone.next == 0
    assert "not approved any more" in gone.reason


def test_a_forgotten_user_stands_in_no_approval() -> None:
    desk = Desk()
    approve(desk, asks(users=("zoe",)))
    approve(desk, asks("helper"))
    desk.tell(ev.Purged, key=0, user="zoe", outcomes=())
    (lead,) = desk.ask(OPERATOR, abi.AgentList(agent="lead")).agents
    assert (lead.digest, lead.manifest, lead.users) == ("", None, ())
    (helper,) = desk.ask(OPERATOR, abi.AgentList(agent="helper")).agents
    assert helper.digest


def test_a_list_shows_who_holds_anything_by_name() -> None:
    desk = Desk()
    approve(desk, asks("helper"))
    found = desk.ask(OPERATOR, abi.AgentList()).agents
    assert [a.agent for a in found] == ["helper", "mail", "plan"]
    assert all(a.manifest is None for a in found)
    assert [a.agent for a in desk.ask(OPERATOR, abi.AgentList(after="helper")).agents] == [
        "mail", "plan",
    ]  # fmt: skip


def test_an_approval_has_its_digest_from_what_it_holds() -> None:
    one = Approval(manifest=asks(), cwd="/a", at=1)
    assert one.digest == Approval(manifest=asks(), cwd="/a", at=2).digest
    assert one.digest != Approval(manifest=asks(), cwd="/b", at=1).digest
