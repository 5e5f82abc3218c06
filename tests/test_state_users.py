"""Whose request is it: the identity order of design §5, rule by rule."""

from __future__ import annotations

import pytest
from state_helpers import MAIL, OPERATOR, PLAN, Desk

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.users import Principal, Users, own_user
from isovist.kernel.state.views import audience, view_of
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.records import Reader, Seal, View, partition_of

pytestmark = pytest.mark.promise("identity.bound")


def users(*granted: str) -> Users:
    made = Users()
    made.grant("mail", set(granted), set())
    return made


@pytest.mark.parametrize(
    ("named", "bound", "sessions", "seen", "expected"),
    [
        ("ana", "", ["bob"], ["bob"], ("ana", "request")),
        (None, "", ["bob"], ["ana"], ("bob", "session")),
        (None, "", [], ["ana"], ("ana", "registry")),
        (None, "", [], [], ("agent/mail", "agent")),
        ("agent/mail", "", ["bob"], [], ("agent/mail", "request")),
        ("zoe", "zoe", [], [], ("zoe", "request")),
        # One that is granted no more lets nobody else step into its place.
        (None, "", ["zoe", "bob"], [], Errno.EPERM),
        (None, "", ["zoe"], ["ana"], Errno.EPERM),
        (None, "", [], ["zoe"], Errno.EPERM),
        # No guessing, and no fall-through.
        (None, "", ["ana", "bob"], [], Errno.EPERM),
        (None, "", [], ["ana", "bob"], Errno.EPERM),
        ("zoe", "", ["ana"], ["ana"], Errno.EPERM),
        ("agent/plan", "", ["ana"], [], Errno.EINVAL),
        ("", "", ["ana"], [], Errno.EINVAL),
        ("an/a", "", ["ana"], [], Errno.EINVAL),
        ("e\u0301", "", ["ana"], [], Errno.EINVAL),
        ("n" * 129, "", ["ana"], [], Errno.EINVAL),
    ],
)
def test_the_order_of_the_rules(
    named: str | None, bound: str, sessions: list[str], seen: list[str], expected: object
) -> None:
    who = Principal("mail", bound=bound, sessions=sessions, seen=seen)
    if isinstance(expected, Errno):
        with pytest.raises(CallerError) as caught:
            users("ana", "bob").resolve(who, named)
        assert (caught.value.errno, caught.value.field) == (expected, "user")
    else:
        found = users("ana", "bob").resolve(who, named)
        assert (found.user, found.rule) == expected


def test_a_grant_for_all_and_an_operator_reach_everybody() -> None:
    assert users("*").resolve(Principal("mail"), "zoe").user == "zoe"
    assert users().resolve(Principal("operator", operator=True), "zoe").user == "zoe"
    with pytest.raises(CallerError):
        users("*").resolve(Principal("plan"), "zoe")


def test_an_agent_called_ana_never_meets_the_person_ana() -> None:
    desk = Desk()
    desk.attach(9, "ana")
    written = desk.remember(9, scope="user")
    assert written.user == own_user("ana") == "agent/ana"
    person = desk.remember(MAIL, user="ana", scope="user")
    assert written.partition != person.partition
    assert desk.ask(9, m.Remember(text="x", user="ana")).errno == Errno.EPERM
    for named in ("agent/ana", "agent/plan"):
        assert desk.ask(MAIL, m.Remember(text="x", user=named)).errno == Errno.EINVAL


def test_users_whose_joined_names_are_equal_do_not_meet() -> None:
    assert partition_of("pair", "a_b", "c") != partition_of("pair", "a", "b_c")
    assert not set(audience(Reader("a_b", "c"))[:1]) & set(audience(Reader("a", "b_c")))


def test_only_accepted_requests_enter_the_registry() -> None:
    desk = Desk()
    assert desk.ask(MAIL, m.Whoami(user="bob")).rule == "request"
    assert desk.ask(MAIL, m.Search(query="", user="bob")).errno == Errno.EINVAL
    assert desk.ask(MAIL, m.Whoami()).user == "agent/mail"
    desk.stored(MAIL, user="bob")
    assert desk.ask(MAIL, m.Whoami()).user == "bob"
    assert desk.ask(MAIL, m.Whoami()).rule == "registry"


def test_several_sessions_and_a_replaced_one() -> None:
    desk = Desk()
    assert desk.ask(MAIL, m.SessionOpen(user="ana")).user == "ana"
    assert desk.ask(MAIL, m.Whoami()).rule == "session"
    desk.ask(MAIL, m.SessionOpen(user="bob"))
    failed = desk.ask(MAIL, m.Remember(text="x"))
    assert (failed.errno, failed.field) == (Errno.EPERM, "user")
    assert desk.remember(MAIL, user="ana").user == "ana"
    desk.ask(MAIL, m.SessionOpen(user="bob", replace=True))
    assert desk.ask(MAIL, m.Whoami()).user == "bob"
    assert desk.ask(MAIL, m.SessionOpen(user="zoe")).errno == Errno.EPERM
    assert desk.ask(MAIL, m.SessionOpen()).field == "user"


def test_a_revoked_grant_ends_at_once() -> None:
    desk = Desk()
    desk.ask(MAIL, m.SessionOpen(user="ana"))
    assert desk.ask(OPERATOR, m.Grant(agent="mail", users=("ana",), revoke=True)) is None
    assert desk.one(ins.SaveGrant).users == ("bob",)
    assert desk.ask(MAIL, m.Remember(text="x", user="ana")).errno == Errno.EPERM
    assert desk.ask(MAIL, m.Whoami()).errno == Errno.EPERM
    assert desk.ask(MAIL, m.SessionOpen(user="bob", replace=True)).user == "bob"
    assert desk.ask(MAIL, m.Whoami()).rule == "session"


def test_nobody_steps_into_the_place_of_a_revoked_user() -> None:
    """An agent that was spawned for ana and once named bob: what it then says unnamed, meant for
    ana, must not become bob's."""
    desk = Desk()
    desk.ask(OPERATOR, m.Grant(agent="note", users=("bob",)))
    desk.ask(OPERATOR, m.Spawn(program="note.py", user="ana"))
    desk.attach(9, "note", pid=1)
    desk.ask(9, m.Search(query="x", user="bob"))
    desk.ask(OPERATOR, m.Grant(agent="note", users=("ana",), revoke=True))
    failed = desk.ask(9, m.Remember(text="about ana", scope="user"))
    assert (failed.errno, failed.field) == (Errno.EPERM, "user")


def test_a_grant_for_every_user_is_revoked_as_a_whole() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.Grant(agent="note", users=("*", "bob")))
    failed = desk.ask(OPERATOR, m.Grant(agent="note", users=("bob",), revoke=True))
    assert (failed.errno, failed.field) == (Errno.EINVAL, "users")
    desk.ask(OPERATOR, m.Grant(agent="note", users=("*",), revoke=True))
    assert desk.one(ins.SaveGrant).users == ()


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("revoked", ["ana", "*"])
def test_a_process_loses_the_user_it_was_spawned_for(running: bool, revoked: str) -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.Spawn(program="note.py", user="ana"))
    if running:
        desk.attach(9, "note", pid=1)
        assert desk.ask(9, m.Whoami()).user == "ana"
    desk.ask(OPERATOR, m.Grant(agent="note", users=(revoked,), revoke=True))
    if not running:
        desk.attach(9, "note", pid=1)
    assert desk.ask(9, m.Whoami()).errno == Errno.EPERM
    assert desk.ask(9, m.Whoami(user="ana")).errno == Errno.EPERM


def test_only_the_operator_grants() -> None:
    desk = Desk()
    assert desk.ask(MAIL, m.Grant(agent="mail", users=("zoe",))).errno == Errno.EPERM
    assert desk.ask(OPERATOR, m.Grant(agent="mail", users=("x/y",))).field == "users"
    assert desk.ask(OPERATOR, m.Grant(agent="", users=())).field == "agent"
    desk.ask(OPERATOR, m.Grant(agent="mail", users=("zoe",), scopes=("agent",)))
    save = desk.one(ins.SaveGrant)
    assert (save.users, save.scopes) == (("ana", "bob", "zoe"), ("agent",))
    desk.tell(ev.Saved, key=save.key)
    assert isinstance(desk.reply(), m.Done)
    assert desk.ask(MAIL, m.Whoami(user="zoe")).scopes == ("agent", "pair", "user")


def test_a_grant_that_cannot_be_saved_says_so() -> None:
    desk = Desk()
    desk.ask(OPERATOR, m.Grant(agent="mail", users=("zoe",)))
    key = desk.one(ins.SaveGrant).key
    desk.tell(ev.WorkFailed, key=key, errno=Errno.ENOSPC, message="full")
    assert desk.reply().errno == Errno.ENOSPC


# -- views


@pytest.mark.promise("view.choke")
def test_a_view_is_the_readers_four_partitions() -> None:
    view = view_of(Reader("ana", "mail"))
    assert [p.scope for p in view.partitions] == ["pair", "user", "agent", "global"]
    for other in ("bob", "plan"):
        assert all(other not in repr(p) for p in view.partitions)
    for p in view.partitions:
        assert p.users.admits("ana")
        assert p.agents.admits("mail")


@pytest.mark.promise("view.choke")
def test_nobody_else_can_mint_a_view() -> None:
    with pytest.raises(KernelError):
        Seal()
    with pytest.raises(KernelError):
        View(object(), Reader("ana", "mail"), ())  # type: ignore[arg-type] # a forged seal
    view = view_of(Reader("ana", "mail"))
    with pytest.raises(AttributeError):
        view.partitions = ()


@pytest.mark.promise("view.choke")
@pytest.mark.parametrize(
    "request_",
    [
        m.Search(query="x", user="ana"),
        m.Read(id="u1", user="ana"),
        m.MemoryList(user="ana"),
        m.Update(id="u1", version=1, text="x", user="ana"),
        m.Forget(id="u1", user="ana"),
        m.Chat(messages=(m.Message("user", "x"),), user="ana"),
    ],
)
def test_every_reading_syscall_reads_through_the_view_of_its_reader(request_: m.Request) -> None:
    desk = Desk()
    desk.ask(PLAN, request_)
    view = desk.one(ins.Retrieve).view
    assert view.reader == Reader("ana", "plan")
    assert view.partitions == audience(view.reader)
