"""Who may publish to whom: new units, updates, re-scoping, expiry, grants."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_helpers import MAIL, OPERATOR, PLAN, Desk, candidate, chat

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Expire, Move, Outcome, Put, Selection, Vectors
from isovist.syscalls.records import LEGS, audience_of

GROUPS = {
    ("users", "team"): ("ana", "bob"),
    ("users", "crew"): ("ana",),
    ("agents", "bots"): ("mail", "plan"),
}
GRANTS = {
    "mail": (("ana", "bob"), ()),
    "plan": (("ana",), ("agent", "global", "@team")),
    "half": (("ana",), ("agent", "@crew")),
}
HALF = 9


def desk() -> Desk:
    at = Desk(groups=GROUPS, grants=GRANTS)
    at.attach(HALF, "half")
    return at


def located(at: Desk, put: Put, request: m.Request, channel: int = MAIL, **more: Any) -> Any:
    """Ask for a change of ``put``, and let the store find it; the reply, if there is one."""
    failed = at.ask(channel, request)
    if failed is not None:
        return failed
    look = at.one(ins.Retrieve)
    found = candidate(put)
    unit = msgspec.structs.replace(found.hit.unit, **more)
    found = msgspec.structs.replace(found, hit=msgspec.structs.replace(found.hit, unit=unit))
    selection = Selection(candidates=(found,))
    at.tell(ev.Retrieved, key=look.key, turn=look.turn, selection=selection)
    return at.reply()


# -- a new unit


@pytest.mark.promise("private.default")
@pytest.mark.parametrize("stream", ["reusable", "protected"])
@pytest.mark.parametrize(
    ("channel", "scope", "became"),
    [
        (MAIL, None, "pair"),
        (MAIL, "pair", "pair"),
        (MAIL, "own/own", "pair"),
        (MAIL, "user", "user"),
        (MAIL, "own/all", "user"),
        (MAIL, "own/@bots", "own/@bots"),
        (MAIL, "agent", None),
        (MAIL, "all/own", None),
        (MAIL, "global", None),
        (MAIL, "@team/own", None),
        (MAIL, "all/@bots", None),
        (PLAN, "own/@bots", "own/@bots"),
        (PLAN, "agent", "agent"),
        (PLAN, "all/own", "agent"),
        (PLAN, "global", "global"),
        (PLAN, "all/all", "global"),
        (PLAN, "all/@bots", "all/@bots"),
        (PLAN, "@team/own", "@team/own"),
        (PLAN, "@team/@bots", "@team/@bots"),
        (PLAN, "@team/all", "@team/all"),
        (PLAN, "@crew/all", None),
        (HALF, "@crew/all", "@crew/all"),
        (HALF, "@team/all", None),
        (HALF, "agent", "agent"),
        (HALF, "global", None),
        (HALF, "all/@bots", None),
        (PLAN, "@nobody/own", None),
        (PLAN, "own/@nobody", None),
        (PLAN, "@bots/own", None),
        (PLAN, "own/@team", None),
        (PLAN, "@", None),
        (PLAN, "@/all", None),
        (PLAN, "", None),
        (PLAN, "own", None),
        (PLAN, "all", None),
        (PLAN, "/", None),
        (PLAN, "own/", None),
        (PLAN, "own/own/own", None),
        (PLAN, "ana/plan", None),
        (PLAN, "Global", None),
        (PLAN, "@team/own/all", None),
    ],
)
def test_a_unit_goes_where_it_may_or_is_private(
    channel: int, scope: str | None, became: str | None, stream: str
) -> None:
    at = desk()
    put = at.remember(channel, user="ana", scope=scope, stream=stream)
    free = became in ("pair", "user", "own/@bots")
    private = became is None or (stream == "protected" and not free)
    owners = ("ana", put.agent)
    wanted = audience_of("pair" if private else str(became), *owners)
    assert put.partition == wanted
    at.commit(put)
    asked_for_more = scope is not None and private and became != "pair"
    assert bool(at.reply().note) == asked_for_more
    assert at.reply().scope == put.partition.scope


@pytest.mark.promise("private.default")
def test_a_note_says_why_a_unit_is_private() -> None:
    for channel, scope, stream, note in (
        (MAIL, "@team/own", "reusable", "no grant to publish to @team scope, stored as private"),
        (MAIL, "all/@bots", "reusable", "no grant to publish to global scope, stored as private"),
        (PLAN, "@team/all", "protected",
         "the protected stream cannot reach @team scope, stored as private"),
        (PLAN, "@nobody/all", "reusable",
         "no grant to publish to @nobody scope, stored as private"),
        (PLAN, "own/@nobody", "protected", "only members publish to @nobody: 'plan' is not in that"
         " group of agents, stored as private"),
        (PLAN, "@team", "reusable",
         "unknown scope (write @team/own or @team/all), stored as private"),
        (OPERATOR, "@nobody/all", "reusable",
         "there is no group 'nobody' of users, stored as private"),
        (PLAN, "team", "reusable", "unknown scope, stored as private"),
    ):  # fmt: skip
        at = desk()
        at.commit(at.remember(channel, user="ana", scope=scope, stream=stream))
        assert at.reply().note == note


@pytest.mark.promise("private.default")
def test_a_kept_exchange_is_private_whatever_its_agent_may() -> None:
    at = desk()
    decode = at.decoding(PLAN, user="ana", keep=True)
    at.token(decode, "yes")
    at.done(decode)
    put = at.one(ins.Commit).op
    assert isinstance(put, Put)
    assert (put.partition.scope, put.stream) == ("pair", "protected")
    assert chat().keep is False


def test_secrets_that_were_replaced_are_counted_in_the_reply() -> None:
    at = desk()
    at.commit(at.remember(MAIL, user="ana"), secrets={"aws-key": 2})
    assert at.reply().secrets == {"aws-key": 2}


# -- grants


@pytest.mark.parametrize(
    ("scope", "revoke", "holds"),
    [
        ("agent", False, True),
        ("@team", False, True),
        ("@nobody", False, False),
        ("@nobody", True, True),
        ("@bots", False, False),
        ("@", False, False),
        ("@a/b", True, False),
        ("pair", False, False),
        ("@team/own", False, False),
        ("everything", True, False),
    ],
)
def test_a_grant_names_scopes_that_there_are(scope: str, revoke: bool, holds: bool) -> None:
    at = desk()
    answer = at.ask(OPERATOR, m.Grant(agent="mail", scopes=(scope,), revoke=revoke))
    if holds:
        assert at.one(ins.SaveGrant).agent == "mail"
    else:
        assert (answer.errno, answer.field) == (Errno.EINVAL, "scopes")


@pytest.mark.promise("author.true")
@pytest.mark.parametrize("scope", ["@team/all", "agent", "all/@bots"])
def test_a_grant_that_is_taken_away_ends_what_it_allowed(scope: str) -> None:
    at = desk()
    unit = at.stored(PLAN, user="ana", scope=scope, stream="reusable")
    at.ask(OPERATOR, m.Grant(agent="plan", scopes=("@team", "agent", "global"), revoke=True))
    update = m.Update(id=unit.id, version=1, text="new", user="ana")
    failed = located(at, unit, update, PLAN)
    assert (failed.errno, failed.field) == (Errno.EPERM, "id")
    assert "no grant" in failed.message
    # Nor may it be shown for longer; for less long it may.
    long, short = "2200-01-01T00:00Z", "1999-01-01T00:00Z"
    for at_, errno in ((None, Errno.EPERM), (long, Errno.EPERM), (short, 0)):
        request = m.Expire(id=unit.id, version=1, at=at_, user="ana")
        answer = located(at, unit, request, PLAN, expires_at=4_000_000_000 * 10**9)
        assert (answer.errno if answer else 0) == errno
    assert (
        located(at, unit, m.Rescope(id=unit.id, version=1, scope="pair", user="ana"), PLAN) is None
    )


# -- rescope


@pytest.mark.promise("author.true")
@pytest.mark.parametrize(
    ("channel", "source", "target", "errno"),
    [
        # The owner narrows at any time.
        (PLAN, "global", "pair", 0),
        (PLAN, "global", "all/@bots", 0),
        (PLAN, "@team/all", "@team/own", 0),
        (PLAN, "@team/all", "user", 0),
        # Within the own user, agents are the owner's to choose.
        (MAIL, "pair", "user", 0),
        (MAIL, "pair", "own/@bots", 0),
        (MAIL, "user", "own/@bots", 0),
        # More users take a grant.
        (MAIL, "pair", "global", Errno.EPERM),
        (MAIL, "user", "@team/own", Errno.EPERM),
        (PLAN, "pair", "global", 0),
        (PLAN, "pair", "@team/own", 0),
        (PLAN, "@team/own", "@crew/own", Errno.EPERM),
        (PLAN, "@team/own", "global", 0),
        (HALF, "pair", "agent", 0),
        (HALF, "@crew/own", "@team/own", Errno.EPERM),
        # By an open user axis, more agents are more readers, too.
        (HALF, "agent", "global", Errno.EPERM),
        (HALF, "agent", "all/@bots", Errno.EPERM),
        (HALF, "@crew/own", "@crew/all", 0),
        # What there is not, and where it is already.
        (PLAN, "pair", "own/own", Errno.EINVAL),
        (PLAN, "user", "user", Errno.EINVAL),
        (PLAN, "pair", "@nobody/own", Errno.EPERM),
        (PLAN, "global", "@nobody/own", Errno.EPERM),
        (PLAN, "user", "own/@nobody", Errno.EPERM),
        (PLAN, "pair", "@team", Errno.EINVAL),
        (HALF, "user", "own/@bots", Errno.EPERM),
        (OPERATOR, "pair", "@nobody/own", Errno.EINVAL),
        (OPERATOR, "pair", "@crew/own", 0),
        (OPERATOR, "pair", "own/@bots", 0),
        (OPERATOR, "pair", "global", 0),
        (PLAN, "pair", "team", Errno.EINVAL),
        (PLAN, "pair", "", Errno.EINVAL),
    ],
)
def test_who_may_give_a_unit_another_audience(
    channel: int, source: str, target: str, errno: int
) -> None:
    at = desk()
    unit = at.stored(channel, user="ana", scope=source, stream="reusable")
    assert unit.partition == audience_of(source, "ana", unit.agent)
    request = m.Rescope(id=unit.id, version=1, scope=target, user="ana")
    failed = located(at, unit, request, channel)
    if errno:
        assert (failed.errno, failed.field) == (errno, "scope")
        assert at.all(ins.Commit) == []
        return
    op = at.one(ins.Commit).op
    assert isinstance(op, Move)
    assert (op.partition, op.id, op.version) == (unit.partition, unit.id, 1)
    assert op.to == audience_of(target, "ana", unit.agent)


@pytest.mark.promise("author.true")
def test_a_protected_unit_reaches_no_other_user_even_by_a_grant() -> None:
    at = desk()
    unit = at.stored(PLAN, user="ana")
    failed = located(at, unit, m.Rescope(id=unit.id, version=1, scope="global", user="ana"), PLAN)
    assert (failed.errno, failed.field) == (Errno.EPERM, "scope")
    assert "protected" in failed.message


@pytest.mark.promise("author.true")
@pytest.mark.parametrize(
    "request_",
    [
        m.Rescope(id="u", version=1, scope="pair", user="ana"),
        m.Expire(id="u", version=1, user="ana"),
    ],
)
def test_only_the_owner_changes_a_units_audience_or_end(request_: m.Request) -> None:
    at = desk()
    unit = at.stored(PLAN, user="ana", scope="user")
    failed = located(at, unit, request_, MAIL)
    assert (failed.errno, failed.field) == (Errno.EPERM, "id")
    at.ask(MAIL, request_)
    at.tell(ev.Retrieved, key=at.one(ins.Retrieve).key, selection=Selection())
    assert at.reply().errno == Errno.ENOENT


def asked_for(at: Desk, channel: int, scope: str, user: str) -> tuple[str, str]:
    """What a new unit, and one that is to be moved, are told of a scope that they may not have."""
    new = at.stored(channel, user=user, scope=scope, stream="reusable", text=f"new {scope}")
    old = at.stored(channel, user=user, stream="reusable", text=f"old {scope}")
    assert new.partition.scope == "pair"
    moving = m.Rescope(id=old.id, version=1, scope=scope, user=user)
    failed = located(at, old, moving, channel)
    assert (failed.errno, failed.field) == (Errno.EPERM, "scope")
    note = at.state.sharing.audience(
        at.state.channels[channel].who, scope, user, new.agent, "reusable"
    )[1]
    return note, failed.message


@pytest.mark.promise("author.true")
@pytest.mark.promise("private.default")
@pytest.mark.parametrize(
    ("channel", "user", "scope"),
    [
        (PLAN, "bob", "@crew/own"),
        (MAIL, "ana", "@team/all"),
        (MAIL, "ana", "global"),
        (HALF, "ana", "own/@bots"),
        (HALF, "bob", "@crew/all"),
    ],
)
def test_a_new_unit_and_one_that_moves_meet_the_same_rule(
    channel: int, user: str, scope: str
) -> None:
    grants = {**GRANTS, "plan": (("ana", "bob"), ("@crew",)), "half": (("ana", "bob"), ("@crew",))}
    at = Desk(groups=GROUPS, grants=grants)
    at.attach(HALF, "half")
    note, message = asked_for(at, channel, scope, user)
    assert note == message.removeprefix("scope: ") + ", stored as private"


@pytest.mark.promise("view.noninterference")
@pytest.mark.parametrize("shape", ["@{}/own", "@{}/all", "own/@{}", "all/@{}", "@{}/@{}"])
def test_an_agent_is_not_told_whether_there_is_a_group(shape: str) -> None:
    groups = {("users", "dark"): ("bob",), ("agents", "dark"): ("half",)}
    told = []
    for name in ("dark", "none"):
        at = Desk(groups=groups, grants=GRANTS)
        words = asked_for(at, PLAN, shape.replace("{}", name), "ana")
        told.append([text.replace(name, "?") for text in words])
    assert told[0] == told[1]


@pytest.mark.promise("author.true")
def test_only_members_publish_to_a_group_new_words_included() -> None:
    at = desk()
    unit = at.stored(PLAN, user="ana", scope="@team/all", stream="reusable")
    at.ask(OPERATOR, m.GroupChange(name="team", of="users", remove=("ana",)))
    new = at.remember(PLAN, user="ana", scope="@team/all", stream="reusable", text="more")
    assert new.partition.scope == "pair"
    failed = located(at, unit, m.Update(id=unit.id, version=1, text="new", user="ana"), PLAN)
    assert failed.errno == Errno.EPERM
    assert "only members publish to @team: 'ana'" in failed.message
    back = m.Rescope(id=unit.id, version=1, scope="pair", user="ana")
    assert located(at, unit, back, PLAN) is None


@pytest.mark.promise("author.true")
def test_the_operator_has_an_agent_s_rights_where_it_acts_as_that_agent() -> None:
    at = desk()
    at.attach(8, "mail", operator=True)
    new = at.remember(8, user="ana", scope="global", stream="reusable")
    assert new.partition.scope == "pair"
    own = at.remember(OPERATOR, user="ana", scope="global", stream="reusable")
    assert own.partition.scope == "global"
    assert at.remember(OPERATOR, user="ana", scope="global").partition.scope == "pair"


def moved(at: Desk) -> tuple[Put, Move]:
    unit = at.stored(MAIL, user="ana")
    located(at, unit, m.Rescope(id=unit.id, version=1, scope="user", user="ana"))
    op = at.one(ins.Commit).op
    assert isinstance(op, Move)
    return unit, op


@pytest.mark.promise("barrier.order")
def test_a_move_has_a_number_on_either_side_and_readers_of_both_wait() -> None:
    at = desk()
    unit, op = moved(at)
    assert (op.seq, op.to_seq) == (2, 1)
    at.ask(MAIL, m.MemoryList(user="ana"), frame=7)
    at.ask(PLAN, m.MemoryList(user="ana"), frame=8)
    assert not at.all(ins.Retrieve)
    at.tell(ev.Committed, outcome=Outcome(op=op, id=unit.id, version=2))
    stored = at.reply(at.frame)
    assert (stored.id, stored.version, stored.scope) == (unit.id, 2, "user")
    assert len(at.all(ins.Retrieve)) == 2
    assert at.state.barrier.behind(LEGS, [(op.partition, 2), (op.to, 1)]) == ()


@pytest.mark.promise("barrier.order")
def test_vectors_that_a_moved_unit_lacks_are_owed_where_it_is_now() -> None:
    at = desk()
    unit = at.remember(MAIL, user="ana")
    at.commit(unit)
    located(at, unit, m.Rescope(id=unit.id, version=1, scope="user", user="ana"))
    op = at.one(ins.Commit).op
    assert isinstance(op, Move)
    at.tell(ev.Committed, outcome=Outcome(op=op, id=unit.id, version=2, chunks=(unit.text,)))
    behind = at.state.barrier.behind
    assert behind(LEGS, [(op.to, 1)]) == ("dense",)
    # Those for where it was come to nothing, and nobody misses them there.
    at.embed(unit, failed=True)
    assert behind(LEGS, [(op.partition, 2)]) == ()
    at.commit(
        Vectors(partition=op.to, seq=1, id=unit.id, version=2, model="x", vectors=(b"",)), version=2
    )
    assert behind(LEGS, [(op.to, 1)]) == ()


def test_a_move_that_fails_leaves_void_numbers_and_says_why() -> None:
    at = desk()
    _, op = moved(at)
    at.refuse(op, Errno.EEXIST)
    assert at.reply().errno == Errno.EEXIST
    assert at.state.barrier.behind(LEGS, [(op.partition, 2), (op.to, 1)]) == ()


# -- expire


def test_a_unit_expires_by_compare_and_swap() -> None:
    at = desk()
    unit = at.stored(MAIL, user="ana")
    request = m.Expire(id=unit.id, version=1, at="2026-01-31T09:00Z", user="ana")
    assert located(at, unit, request) is None
    op = at.one(ins.Commit).op
    assert isinstance(op, Expire)
    assert (op.version, op.expires_at) == (1, 1_769_850_000 * 10**9)
    at.tell(ev.Committed, outcome=Outcome(op=op, id=unit.id, version=2))
    assert at.reply().version == 2


@pytest.mark.promise("barrier.order")
def test_vectors_that_are_on_their_way_are_still_owed_after_an_expire() -> None:
    at = desk()
    unit = at.remember(MAIL, user="ana")
    at.commit(unit)
    located(at, unit, m.Expire(id=unit.id, version=1, user="ana"))
    at.commit(at.one(ins.Commit).op, version=2)
    assert at.state.barrier.behind(LEGS, [(unit.partition, 2)]) == ("dense",)
    at.embed(unit)
    assert at.state.barrier.behind(LEGS, [(unit.partition, 2)]) == ()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (m.Expire(id="u", version=0), "version"),
        (m.Expire(id="u", version=1, at="2026-01-31T09:00"), "at"),
        (m.Expire(id="u", version=1, at="soon"), "at"),
        (m.Rescope(id="u", version=0, scope="pair"), "version"),
    ],
)
def test_a_malformed_change_names_its_field(request_: m.Request, field: str) -> None:
    failed = desk().ask(MAIL, request_)
    assert (failed.errno, failed.field) == (Errno.EINVAL, field)
