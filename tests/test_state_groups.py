"""Groups of users and of agents: what they open, and what a leave takes away at once."""

from __future__ import annotations

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, Desk, candidate, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.groups import MAX_MEMBERSHIPS
from isovist.kernel.state.views import Membership, audience, everything, view_of
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import CountQuery, Put, Selection
from isovist.syscalls.records import ALL, Axis, Group, Partition, Reader

TEAM = {("users", "team"): ("ana", "bob"), ("agents", "bots"): ("mail",)}
GRANTS = {
    "mail": (("ana", "bob"), ("@team",)),
    "plan": (("ana",), ("agent", "global", "@team")),
}


def desk(**more: object) -> Desk:
    return Desk(**{"groups": TEAM, "grants": GRANTS, **more})


def leave(at: Desk, *members: str, name: str = "team", of: str = "users") -> m.GroupChange:
    change = m.GroupChange(name=name, of=of, remove=members)  # type: ignore[arg-type] # one of two
    at.ask(OPERATOR, change)
    return change


def scopes(at: Desk) -> list[str]:
    return [p.scope for p in at.one(ins.Retrieve).view.partitions]


# -- what a view is


@pytest.mark.promise("view.choke")
def test_a_view_is_the_product_of_both_axes_narrow_to_wide() -> None:
    view = view_of(Reader("ana", "mail"), Membership(("crew", "team"), ("bots",)))
    users = [Axis("one", "ana"), Axis("group", "crew"), Axis("group", "team"), ALL]
    agents = [Axis("one", "mail"), Axis("group", "bots"), ALL]
    assert list(view.partitions) == [Partition(u, a) for u in users for a in agents]
    assert len(set(view.partitions)) == len(view.partitions)


@pytest.mark.promise("view.noninterference")
def test_all_and_only_the_partitions_that_admit_the_reader_are_in_its_view() -> None:
    at = desk()
    names = [Axis("one", "ana"), Axis("one", "mail"), Axis("one", "team"), Axis("one", "bots"),
             Axis("group", "team"), Axis("group", "bots"), Axis("group", "ana"), ALL]  # fmt: skip
    every = {Partition(u, a) for u in names for a in names}
    for user, agent in (("ana", "mail"), ("team", "mail"), ("mail", "ana"), ("zoe", "plan")):
        reader = Reader(user, agent)
        of_users = frozenset(g for (of, g), who in TEAM.items() if of == "users" and user in who)
        of_agents = frozenset(g for (of, g), who in TEAM.items() if of == "agents" and agent in who)
        admitted = {
            p for p in every if p.users.admits(user, of_users) and p.agents.admits(agent, of_agents)
        }
        assert set(at.state.groups.view(reader).partitions) & every == admitted


def test_the_view_of_everything_is_of_nobody() -> None:
    partitions = audience(Reader("ana", "mail"))
    view = everything(partitions)
    assert view.partitions == partitions
    assert view.reader == Reader("", "")


# -- who may manage them


@pytest.mark.parametrize("request_", [m.Groups(), m.GroupChange(name="team", of="users")])
def test_the_operator_alone_manages_groups(request_: m.Request) -> None:
    assert desk().ask(MAIL, request_).errno == Errno.EPERM


def test_a_group_is_made_when_it_is_first_named_and_durable_when_the_reply_comes() -> None:
    at = desk()
    change = m.GroupChange(name="crew", of="users", add=("bob", "ana"))
    assert at.ask(OPERATOR, change) is None
    save = at.one(ins.SaveGroup)
    assert (save.of, save.name, save.members) == ("users", "crew", ("ana", "bob"))
    at.tell(ev.Saved, key=save.key)
    assert at.reply().groups == (Group(name="crew", of="users", members=("ana", "bob")),)
    at.ask(MAIL, m.Search(query="x", user="ana", mode="bm25"))
    assert "@crew/all" in scopes(at)
    listed = at.ask(OPERATOR, m.Groups(of="users")).groups
    assert [g.name for g in listed] == ["crew", "team"]
    assert [g.name for g in at.ask(OPERATOR, m.Groups()).groups] == ["bots", "crew", "team"]


def test_a_change_that_cannot_be_saved_says_so() -> None:
    at = desk()
    leave(at, "ana")
    at.tell(ev.WorkFailed, key=at.one(ins.SaveGroup).key, errno=Errno.ENOSPC, message="full")
    assert at.reply().errno == Errno.ENOSPC


def test_a_group_without_members_stays_known_and_opens_to_nobody() -> None:
    at = desk()
    leave(at, "ana", "bob")
    assert at.one(ins.SaveGroup).members == ()
    at.commit(at.remember(MAIL, user="ana", scope="@team/own", stream="reusable"))
    assert "only members publish to @team" in at.reply().note
    at.ask(MAIL, m.Search(query="x", user="ana", mode="bm25", wait="lexical"))
    assert not any("@team" in scope for scope in scopes(at))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "."}, "name"),
        ({"name": ".."}, "name"),
        ({"name": " "}, "name"),
        ({"name": "team "}, "name"),
        ({"name": "@team"}, "name"),
        ({"name": "*"}, "name"),
        ({"name": "team", "add": ("*",)}, "add"),
        ({"name": "team", "add": ("x/y",)}, "add"),
        ({"name": "team", "add": ("agent/",)}, "add"),
        ({"name": "team", "remove": ("",)}, "remove"),
        ({"name": "team", "add": ("ana",), "remove": ("ana",)}, "remove"),
        ({"name": "bots", "of": "agents", "add": ("agent/mail",)}, "add"),
    ],
)
def test_a_malformed_change_names_its_field(fields: dict[str, object], field: str) -> None:
    failed = desk().ask(OPERATOR, m.GroupChange(**{"of": "users", **fields}))  # type: ignore[arg-type] # as given
    assert (failed.errno, failed.field) == (Errno.EINVAL, field)


def test_an_agent_may_be_a_member_as_a_user_of_its_own() -> None:
    at = desk()
    at.ask(OPERATOR, m.GroupChange(name="team", of="users", add=("agent/plan",)))
    at.ask(PLAN, m.Search(query="x", mode="bm25"))
    assert "@team/own" in scopes(at)


def test_a_view_stays_bounded() -> None:
    at = desk()
    for n in range(MAX_MEMBERSHIPS - 1):
        at.ask(OPERATOR, m.GroupChange(name=f"g{n}", of="users", add=("ana",)))
        assert at.all(ins.SaveGroup)
    failed = at.ask(OPERATOR, m.GroupChange(name="more", of="users", add=("ana",)))
    assert (failed.errno, failed.field) == (Errno.EINVAL, "add")
    again = m.GroupChange(name="team", of="users", add=("ana",))
    assert at.ask(OPERATOR, again) is None


# -- joining and leaving are in force at once


@pytest.mark.promise("view.noninterference")
def test_a_call_at_the_barrier_loses_what_its_reader_leaves() -> None:
    at = desk()
    private = at.remember(MAIL, user="ana")
    shared = at.remember(PLAN, user="ana", scope="@team/all", stream="reusable")
    at.ask(MAIL, m.Search(query="x", user="ana", mode="bm25"), frame=7)
    assert not at.all(ins.Retrieve)
    leave(at, "ana")
    assert not at.all(ins.Retrieve), "its own write is still to come"
    at.commit(private)
    at.embed(private)
    assert scopes(at) == ["pair", "own/@bots", "user", "agent", "all/@bots", "global"]
    at.select()
    assert at.reply(7).barrier.state == "ready"
    at.commit(shared)


@pytest.mark.promise("view.noninterference")
def test_a_call_that_waits_for_the_group_alone_goes_on_when_its_reader_leaves() -> None:
    at = desk()
    at.remember(PLAN, user="ana", scope="@team/all", stream="reusable")
    at.ask(MAIL, m.MemoryList(user="ana"), frame=7)
    assert not at.all(ins.Retrieve)
    leave(at, "ana")
    assert "@team/all" not in scopes(at)
    at.select()
    assert at.reply(7).barrier.state == "ready"


@pytest.mark.promise("view.noninterference")
@pytest.mark.parametrize(
    "request_",
    [
        m.Search(query="x", user="ana", mode="bm25"),
        m.MemoryList(user="ana"),
        m.Read(id="u1", user="ana"),
        m.ViewOf(user="ana"),
    ],
)
def test_what_was_looked_up_before_a_leave_is_not_told_after_it(request_: m.Request) -> None:
    at = desk()
    unit = at.stored(PLAN, user="ana", scope="@team/all", stream="reusable")
    at.ask(MAIL, request_, frame=7)
    look = at.one(ins.Retrieve)
    leave(at, "ana")
    failed = at.reply(7)
    assert failed.errno == Errno.EAGAIN
    assert unit.id not in str(failed)
    at.tell(ev.Retrieved, key=look.key, turn=look.turn, selection=Selection())
    assert at.all(ins.Reply) == []


@pytest.mark.promise("view.noninterference")
def test_a_chat_whose_prompt_holds_the_group_is_not_answered_after_a_leave() -> None:
    at = desk()
    unit = at.stored(PLAN, user="ana", scope="@team/all", stream="reusable")
    at.ask(MAIL, chat(user="ana"), frame=7)
    starts = at.all(ins.StartDriver)
    at.select(unit)
    at.render()
    for start in starts:
        at.up(start.model, start.gen)
    leave(at, "bob")
    assert at.reply(7) is None, "another's leave is nothing to it"
    leave(at, "ana")
    assert at.reply(7).errno == Errno.EAGAIN


def test_a_reply_that_has_begun_goes_on_and_so_does_a_chat_that_looked_at_nothing() -> None:
    at = desk()
    at.ask(MAIL, chat(user="ana", stream=True), frame=7)
    starts = at.all(ins.StartDriver)
    at.select()
    at.render()
    for start in starts:
        at.up(start.model, start.gen)
    first = at.one(ins.Decode)
    at.token(first, "a")
    at.ask(MAIL, chat(user="ana", memory=False, model="wide"), frame=8)
    leave(at, "ana")
    assert at.reply(7) is None
    assert at.reply(8) is None
    at.done(first)
    assert at.reply(7).text == "a"


# -- own units stay one's own


def change(unit: Put, kind: str) -> m.Call:
    return {
        "update": m.Update(id=unit.id, version=1, text="new", user="ana"),
        "expire": m.Expire(id=unit.id, version=1, at="2200-01-01T00:00Z", user="ana"),
        "rescope": m.Rescope(id=unit.id, version=1, scope="pair", user="ana"),
        "forget": m.Forget(id=unit.id, user="ana"),
    }[kind]


CHANGES = ("update", "expire", "rescope", "forget")


@pytest.mark.promise("author.true")
@pytest.mark.parametrize("kind", CHANGES)
def test_an_owner_changes_its_unit_in_a_group_that_it_has_left(kind: str) -> None:
    at = desk(groups={**TEAM, ("agents", "bots"): ("mail", "plan")})
    unit = at.stored(PLAN, user="ana", scope="own/@bots")
    assert unit.partition.scope == "own/@bots"
    leave(at, "plan", name="bots", of="agents")
    at.ask(PLAN, change(unit, kind))
    first = at.one(ins.Retrieve)
    assert unit.partition not in first.view.partitions
    at.select()
    second = at.one(ins.Retrieve)
    assert (second.view.reader, second.view.partitions) == (
        Reader("ana", "plan"),
        (unit.partition,),
    )
    at.select(unit)
    changed(at, unit, kind)


def changed(at: Desk, unit: Put, kind: str, frame: int | None = None) -> None:
    """Whoever has left a group takes back what it said there, and says nothing new."""
    if kind == "update":
        assert at.reply(frame).errno == Errno.EPERM
        assert "only members publish" in at.reply(frame).message
    else:
        assert at.one(ins.Commit).op.id == unit.id


@pytest.mark.promise("author.true")
@pytest.mark.parametrize("kind", CHANGES)
def test_whose_agent_has_left_meanwhile_changes_its_own_all_the_same(kind: str) -> None:
    at = desk()
    unit = at.stored(MAIL, user="ana", scope="own/@bots")
    at.ask(MAIL, change(unit, kind), frame=7)
    look = at.one(ins.Retrieve)
    leave(at, "mail", name="bots", of="agents")
    found = Selection(candidates=(candidate(unit),))
    at.tell(ev.Retrieved, key=look.key, turn=look.turn, selection=found)
    changed(at, unit, kind, 7)


@pytest.mark.promise("view.noninterference")
@pytest.mark.parametrize("kind", CHANGES)
def test_whether_a_foreign_unit_exists_outside_the_view_is_not_told(kind: str) -> None:
    at = desk()
    # Published to the group by an agent that it is open to, and by the same user.
    foreign = at.stored(MAIL, user="ana", scope="own/@bots")
    replies = []
    for there in (True, False):
        at.ask(PLAN, change(foreign, kind))
        at.select()
        at.select(*[foreign] * there)
        assert not at.all(ins.Commit)
        replies.append((at.reply().errno, at.reply().message, at.reply().field))
    assert replies[0] == replies[1]
    assert replies[0][0] == Errno.ENOENT


@pytest.mark.parametrize("kind", CHANGES)
def test_a_foreign_unit_in_view_is_another_s(kind: str) -> None:
    at = desk()
    foreign = at.stored(MAIL, user="ana", scope="user")
    at.ask(PLAN, change(foreign, kind))
    at.select(foreign)
    assert at.reply().errno == Errno.EPERM


def test_a_forgotten_user_is_in_no_group() -> None:
    at = desk()
    at.state.groups.forget("ana")
    at.state.validate()
    groups = at.ask(OPERATOR, m.Groups(of="users")).groups
    assert groups == (Group(name="team", of="users", members=("bob",)),)


# -- a view explained


def test_a_view_is_explained_in_plain_words() -> None:
    at = desk()
    at.stored(MAIL, user="ana")
    at.stored(MAIL, user="ana", scope="@team/own", stream="reusable")
    at.ask(MAIL, m.ViewOf(user="ana"))
    look = at.one(ins.Retrieve)
    assert isinstance(look.query, CountQuery)
    counts = tuple(range(len(look.view.partitions)))
    at.tell(ev.Retrieved, key=look.key, turn=look.turn, selection=Selection(counts=counts))
    shown = at.reply()
    assert (shown.user, shown.agent, shown.barrier.state) == ("ana", "mail", "ready")
    assert [(s.scope, s.users, s.agents, s.why) for s in shown.seen] == [
        ("pair", "ana", "mail", "your own"),
        ("own/@bots", "ana", "@bots", "your user's, group bots of agents, which this agent is in"),
        ("user", "ana", "all", "your user's, any agent"),
        ("@team/own", "@team", "mail", "group team of users, which you are in, this agent"),
        ("@team/@bots", "@team", "@bots", "group team of users, which you are in, "
         "group bots of agents, which this agent is in"),
        ("@team/all", "@team", "all", "group team of users, which you are in, any agent"),
        ("agent", "all", "mail", "every user's, this agent"),
        ("all/@bots", "all", "@bots",
         "every user's, group bots of agents, which this agent is in"),
        ("global", "all", "all", "open to all"),
    ]  # fmt: skip
    assert [s.units for s in shown.seen] == list(counts)
    assert [s.accepted for s in shown.seen] == [1, 0, 0, 1, 0, 0, 0, 0, 0]
