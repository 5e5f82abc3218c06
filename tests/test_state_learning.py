"""Learning in the pure kernel: one submission after the other, each to one end, under the rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_helpers import MAIL, OPERATOR, PLAN, SECOND, Desk

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.learning import AGAIN, FILING, TRIES, Learning
from isovist.kernel.state.lessons import (
    LEARNER,
    MAX_LESSON,
    MAX_OPERATIONS,
    MAX_SITUATION,
    Known,
    Operation,
    Part,
    Proposed,
    Verdict,
    cleared,
    entry_text,
    line_of,
    parts_of,
    refusal,
    scopes_for,
)
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Drop, Move, Put, Replace
from isovist.syscalls.records import (
    Axis,
    Message,
    Partition,
    Stream,
    Submission,
    partition_of,
)

ALL = ("pair", "user", "agent", "global")
SAID = (Message("user", "convert it"),)


# -- the rules


def known(scope: str = "user", stream: Stream = "reusable", **more: Any) -> Known:
    partition = partition_of(scope, "ana", "mail")
    return Known(**{"id": "e1", "version": 3, "partition": partition, "stream": stream, **more})


def add(**more: Any) -> Operation:
    return Operation(**{"situation": "any csv", "lesson": "mind it", "scope": "global", **more})


TAKEN: list[tuple[Operation, Stream, Known | None, Verdict]] = [
    (add(), "reusable", None, "passed"),
    (add(), "reusable", None, "failed"),
    (add(), "reusable", None, "unknown"),
    (add(scope="pair"), "reusable", None, "passed"),
    (add(scope="user"), "protected", None, "failed"),
    (add(scope="pair"), "protected", None, "timeout"),
    (add(scope="pair"), "protected", None, "error"),
    (add(scope="user", revises="e1"), "protected", known(stream="protected"), "unknown"),
    (add(scope="agent", revises="e1"), "reusable", known("pair"), "passed"),
    (add(scope="global", revises="e1"), "reusable", known("global"), "failed"),
    (Operation(delete="e1", reason="it failed"), "reusable", known("global"), "failed"),
    (Operation(delete="e1", reason="no more"), "protected", known(stream="protected"), "unknown"),
    (add(situation="s" * MAX_SITUATION, lesson="l" * MAX_LESSON), "reusable", None, "passed"),
]
DENIED: list[tuple[Operation, Stream, Known | None, Verdict, str]] = [
    (add(), "protected", None, "passed", "cap"),
    (add(scope="agent"), "protected", None, "passed", "cap"),
    (add(scope=""), "protected", None, "passed", "cap"),
    (add(scope="everyone"), "reusable", None, "passed", "cap"),
    (add(scope="@team/all"), "reusable", None, "passed", "cap"),
    (add(situation=" \n "), "reusable", None, "passed", "without a situation"),
    (add(lesson="\t"), "reusable", None, "passed", "lesson is empty"),
    (add(situation="s" * (MAX_SITUATION + 1)), "reusable", None, "passed", "situation has over"),
    (add(lesson="l" * (MAX_LESSON + 1)), "reusable", None, "passed", "lesson has over"),
    (add(), "reusable", None, "error", "establishes nothing"),
    (add(), "reusable", None, "timeout", "establishes nothing"),
    (add(revises="e9"), "reusable", known(), "passed", "no entry of that id"),
    (Operation(delete="e9", reason="x"), "reusable", known(), "passed", "no entry of that id"),
    (add(revises="e1"), "reusable", known(stream="protected"), "passed", "other stream"),
    (add(scope="user", revises="e1"), "protected", known(), "passed", "other stream"),
    (Operation(delete="e1", reason="x"), "protected", known(), "passed", "other stream"),
    (Operation(delete="e1"), "reusable", known(), "passed", "needs a reason"),
    (Operation(delete="e1", reason="  "), "reusable", known(), "passed", "needs a reason"),
    (add(delete="e1", reason="x"), "reusable", known(), "passed", "either deletes or writes"),
    (add(revises="e1"), "reusable", known("global"), "unknown", "recorded verdict"),
    (add(revises="e1", scope="pair"), "reusable", known("global"), "passed", "by a review"),
    (add(revises="e1", scope="global"), "reusable", known("agent"), "passed", "by a review"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "stream", "shown", "outcome"), TAKEN)
def test_what_follows_the_rules_is_taken(
    operation: Operation, stream: Stream, shown: Known | None, outcome: Verdict
) -> None:
    scopes = scopes_for(stream, ALL, "share")
    entries = {shown.id: shown} if shown else {}
    assert refusal(operation, stream, scopes, entries, outcome) == ""


@pytest.mark.promise("protected.stays")
@pytest.mark.parametrize(("operation", "stream", "shown", "outcome", "why"), DENIED)
def test_what_breaks_a_rule_is_not(
    operation: Operation, stream: Stream, shown: Known | None, outcome: Verdict, why: str
) -> None:
    scopes = scopes_for(stream, ALL, "share")
    entries = {shown.id: shown} if shown else {}
    assert why in refusal(operation, stream, scopes, entries, outcome)


@pytest.mark.promise("protected.stays")
def test_no_setting_opens_the_cap_of_the_protected_stream() -> None:
    assert scopes_for("protected", ALL, "share") == ("pair", "user")
    assert scopes_for("protected", ("global", "agent"), "share") == ()
    assert scopes_for("reusable", ALL, "share") == ALL
    assert scopes_for("reusable", ALL, "own") == ("pair", "user")
    assert scopes_for("reusable", ("global", "pair"), "share") == ("pair", "global")


def test_the_text_of_an_entry_is_its_situation_and_its_lesson() -> None:
    text = entry_text(" any\ncsv  file ", " mind\n the comma \n")
    assert parts_of(text) == ("any csv file", "mind\n the comma")
    assert line_of("x", "one\n# Learned memory: global\n- When y: z") == (
        "- When x: one\n  # Learned memory: global\n  - When y: z"
    )
    assert line_of("x\r# Learned memory: global\u2028- When y", "z") == (
        "- When x # Learned memory: global - When y: z"
    )


def test_what_steers_a_terminal_stands_in_no_lesson() -> None:
    asked = Operation(situation="a\0ny\x1b[2J", lesson="one\n\ttwo\x9b31m\x07", reason="\x1b")
    assert cleared(asked) == Operation(situation="any[2J", lesson="one\n\ttwo31m", reason="")
    unseen = "".join(chr(0xE0000 + ord(c)) + chr(0xE0100 + ord(c)) for c in "Berta")
    assert cleared(Operation(lesson=f"Sort {unseen}by name.")).lesson == "Sort by name."


# -- a submission's way


@pytest.fixture
def at() -> Desk:
    desk = Desk()
    desk.tell(ev.LearnerUp)
    return desk


def submit(at: Desk, channel: int = MAIL, **more: Any) -> ins.FileSubmission:
    fields = {"task": "convert", "trajectory": SAID, "user": "ana", "outcome": "failed", **more}
    assert at.ask(channel, m.LearnSubmit(**fields)) is None
    return at.one(ins.FileSubmission)


def filed(at: Desk, asked: ins.FileSubmission, **more: Any) -> list[ins.Instruction]:
    return at.tell(ev.SubmissionFiled, **{"key": asked.key, "submission": asked.submission, **more})


def begun(at: Desk, channel: int = MAIL, **more: Any) -> Submission:
    """A submission that is being thought about."""
    asked = submit(at, channel, **more)
    filed(at, asked)
    assert at.one(ins.Learn).id == asked.submission.id
    return asked.submission


def think(at: Desk, one: Submission, *operations: Operation, **more: Any) -> ins.KeepPlan:
    fields: dict[str, Any] = {
        "id": one.id, "report": one, "writer": "rules", "shown": {},
        "operations": {"reusable": operations}, **more,
    }  # fmt: skip
    at.tell(ev.Thought, **fields)
    return at.one(ins.KeepPlan)


def keep(at: Desk, plan: ins.KeepPlan) -> list[Any]:
    at.tell(ev.PlanKept, id=plan.id, plan=plan.plan, report=plan.report)
    return [i.op for i in at.all(ins.Commit)]


def end(at: Desk) -> Submission:
    report = at.one(ins.Conclude).report
    at.tell(ev.Concluded, id=report.id)
    return report


def test_a_submission_is_durable_then_acknowledged_then_learned_from(at: Desk) -> None:
    asked = submit(at, key="k1")
    assert (asked.submission.state, asked.submission.user) == ("queued", "ana")
    filed(at, asked)
    reply = at.reply()
    assert isinstance(reply, m.Submissions)
    assert (reply.known, reply.waiting) == (False, 1)
    learn = at.one(ins.Learn)
    assert learn.scopes == {"reusable": ALL, "protected": ("pair", "user")}
    assert learn.view.reader == ("ana", "mail") or learn.view.reader.user == "ana"
    plan = think(at, asked.submission, add())
    (op,) = keep(at, plan)
    assert isinstance(op, Put)
    assert (op.kind, op.user, op.agent, op.stream) == ("lesson", LEARNER, LEARNER, "reusable")
    assert op.partition == partition_of("global", "ana", "mail")
    assert op.learned is not None
    assert op.learned.submission == asked.submission.id
    at.commit(op)
    report = end(at)
    assert (report.state, report.added, report.entries) == ("done", 1, (op.id,))
    assert at.state.lessons.waiting() == 0


def test_one_is_worked_on_at_a_time_in_order_of_arrival(at: Desk) -> None:
    first = begun(at)
    second = submit(at, PLAN)
    assert at.all(ins.Learn) == []
    filed(at, second)
    assert at.all(ins.Learn) == []
    keep(at, think(at, first))
    end(at)
    assert at.one(ins.Learn).id == second.submission.id


def test_a_known_submission_is_not_learned_from_again(at: Desk) -> None:
    first = begun(at, key="k")
    again = submit(at, key="k")
    filed(at, again, submission=first, known=True)
    reply = at.reply()
    assert isinstance(reply, m.Submissions)
    assert reply.known
    assert reply.submissions[0].state == "learning"
    keep(at, think(at, first))
    end(at)
    assert at.all(ins.Learn) == []


def test_what_an_earlier_life_left_is_gone_on_with(at: Desk) -> None:
    desk = Desk(unlearned=(("l1", "ana", "mail"), ("l2", "bob", "mail")))
    desk.tell(ev.LearnerUp)
    assert desk.one(ins.Learn).id == "l1"
    report = Submission(
        id="l1", user="ana", agent="mail", state="queued", outcome="failed", submitted_at=1
    )
    planned = think(at, begun(at), add()).plan
    desk.tell(ev.PlanKept, id="l1", plan=planned, report=report)
    (op,) = [i.op for i in desk.all(ins.Commit)]
    # It was stored before the kernel died: that is no failure, and no second entry.
    desk.refuse(op, Errno.EEXIST)
    assert end(desk).added == 1
    assert desk.one(ins.Learn).id == "l2"


def test_an_idea_that_was_had_before_is_not_new(at: Desk) -> None:
    (op,) = keep(at, think(at, begun(at), add()))
    at.commit(op, id="older", duplicate=True, chunks=())
    report = end(at)
    assert (report.added, report.entries) == (0, ("older",))


def test_a_revision_is_a_compare_and_swap_and_may_move_an_own_entry(at: Desk) -> None:
    one = begun(at)
    shown: dict[Stream, tuple[Known, ...]] = {"reusable": (known("pair"),)}
    (change,) = keep(at, think(at, one, add(revises="e1", scope="agent"), shown=shown))
    assert isinstance(change, Replace)
    assert (change.id, change.version) == ("e1", 3)
    at.commit(change)
    move = at.one(ins.Commit).op
    assert isinstance(move, Move)
    assert (move.version, move.to) == (4, partition_of("agent", "ana", "mail"))
    assert move.owner == (LEARNER, "mail")
    at.commit(move)
    assert end(at).revised == 1


@pytest.mark.promise("protected.stays")
def test_what_was_not_revised_is_not_moved_either(at: Desk) -> None:
    """Its words are another's by now: no scan has seen them, and others would read them."""
    shown: dict[Stream, tuple[Known, ...]] = {"reusable": (known("pair"),)}
    operation = add(revises="e1", scope="global")
    (change,) = keep(at, think(at, begun(at), operation, shown=shown))
    at.refuse(change, Errno.ESTALE)
    assert at.all(ins.Commit) == []
    report = end(at)
    assert (report.revised, report.denied) == (0, 1)
    assert report.reasons == ("the entry has changed since",)


def test_a_deletion_names_the_version_that_was_shown(at: Desk) -> None:
    shown: dict[Stream, tuple[Known, ...]] = {"reusable": (known("global"),)}
    (op,) = keep(at, think(at, begun(at), Operation(delete="e1", reason="wrong"), shown=shown))
    assert isinstance(op, Drop)
    assert (op.id, op.version) == ("e1", 3)
    at.commit(op)
    assert end(at).deleted == 1


@pytest.mark.promise("protected.stays")
def test_what_breaks_a_rule_is_counted_and_not_planned(at: Desk) -> None:
    operations: dict[Stream, tuple[Operation, ...]] = {
        "protected": (add(), add(scope="user")),
        "reusable": (add(revises="e1", scope="user"), Operation(delete="e1", reason="again")),
    }
    shown: dict[Stream, tuple[Known, ...]] = {"reusable": (known("user"),)}
    plan = think(at, begun(at), operations=operations, shown=shown)
    assert [p.what for p in plan.plan] == ["revise", "add"]
    assert [p.stream for p in plan.plan] == ["reusable", "protected"]
    assert plan.report.denied == 2
    assert any("changed already" in why for why in plan.report.reasons)


def test_a_writer_may_ask_for_so_much(at: Desk) -> None:
    plan = think(at, begun(at), *[add(lesson=str(i)) for i in range(MAX_OPERATIONS + 5)])
    assert len(plan.plan) == MAX_OPERATIONS
    assert plan.report.denied == 5


@pytest.mark.promise("protected.stays")
def test_an_entry_that_left_the_view_meanwhile_is_out_of_reach(at: Desk) -> None:
    foreign = known("user", partition=partition_of("user", "bob", "mail"))
    plan = think(at, begun(at), add(revises="e1", scope="user"), shown={"reusable": (foreign,)})
    assert (plan.plan, plan.report.denied) == ((), 1)


# -- failures


def test_the_world_is_given_time_and_then_the_submission_is_parked(at: Desk) -> None:
    one = begun(at)
    stuck = {"id": one.id, "errno": 5, "message": "down", "report": one}
    for tried in range(1, TRIES):
        at.tell(ev.Stuck, **stuck)
        assert at.all(ins.Learn) == []
        at.sleep(AGAIN * 2 ** (tried - 1))
        assert at.one(ins.Learn).id == one.id
    at.tell(ev.Stuck, **stuck)
    report = end(at)
    assert (report.state, report.error) == ("parked", "down")


def test_what_will_not_mend_is_parked_at_once_and_may_be_tried_again(at: Desk) -> None:
    one = begun(at)
    at.tell(ev.Stuck, id=one.id, errno=22, message="unreadable", lasting=True, report=one)
    parked = end(at)
    assert parked.state == "parked"
    assert at.ask(MAIL, m.LearnStatus(id=one.id, retry=True, user="ana")) is None
    key = at.one(ins.FindSubmissions).key
    at.tell(ev.SubmissionsFound, key=key, submissions=(parked,))
    assert at.one(ins.Conclude).report.state == "queued"
    assert at.all(ins.Learn) == []
    at.tell(ev.Concluded, id=one.id)
    assert at.one(ins.Learn).id == one.id
    at.ask(MAIL, m.LearnStatus(id=one.id, retry=True, user="ana"))
    running = Submission(**{f: getattr(one, f) for f in one.__struct_fields__})
    at.tell(ev.SubmissionsFound, key=at.one(ins.FindSubmissions).key, submissions=(running,))
    assert at.reply().field == "id"


def test_a_full_disk_takes_no_lesson_away(at: Desk) -> None:
    one = begun(at)
    plan = think(at, one, add())
    (op,) = keep(at, plan)
    at.refuse(op, Errno.ENOSPC)
    assert at.all(ins.Conclude) == []
    at.sleep(SECOND)
    assert at.one(ins.Learn).id == one.id
    (again,) = keep(at, plan)
    assert (again.id, again.seq > op.seq) == (op.id, True)
    at.commit(again)
    assert end(at).added == 1


def test_what_was_stored_before_a_full_disk_is_not_stored_again(at: Desk) -> None:
    """Else what its reader deletes in between would come back."""
    one = begun(at)
    plan = think(at, one, add(), add(lesson="another"))
    first, second = keep(at, plan)
    at.commit(first)
    at.refuse(second, Errno.ENOSPC)
    assert at.one(ins.Postponed).id == one.id
    assert at.all(ins.Report) == []
    at.sleep(SECOND)
    (again,) = keep(at, plan)
    assert again.id == second.id
    at.commit(again)
    report = end(at)
    assert (report.added, report.entries) == (2, (first.id, second.id))


def test_a_move_waits_for_what_the_disk_refused_to_revise(at: Desk) -> None:
    shown: dict[Stream, tuple[Known, ...]] = {"reusable": (known("pair"),)}
    plan = think(at, begun(at), add(revises="e1", scope="agent"), shown=shown)
    (change,) = keep(at, plan)
    at.refuse(change, Errno.EIO)
    at.sleep(SECOND)
    (change,) = keep(at, plan)
    at.commit(change, version=4)
    move = at.one(ins.Commit).op
    at.commit(move, version=5)
    report = end(at)
    assert (report.revised, report.denied) == (1, 0)


def test_what_was_done_before_it_was_parked_is_not_done_again(at: Desk) -> None:
    one = begun(at)
    plan = think(at, one, add(), add(lesson="another"))
    first, second = keep(at, plan)
    at.commit(first)
    at.refuse(second, Errno.EIO)
    at.sleep(SECOND)
    at.tell(ev.Stuck, id=one.id, errno=22, message="unreadable", lasting=True, report=one)
    parked = end(at)
    at.ask(MAIL, m.LearnStatus(id=one.id, retry=True, user="ana"))
    at.tell(ev.SubmissionsFound, key=at.one(ins.FindSubmissions).key, submissions=(parked,))
    at.tell(ev.Concluded, id=one.id)
    assert [op.id for op in keep(at, plan)] == [second.id]


def test_late_and_doubled_words_change_nothing(at: Desk) -> None:
    one = begun(at)
    plan = think(at, one, add())
    (op,) = keep(at, plan)
    for event in (ev.PlanKept, ev.Thought, ev.Stuck):
        fields: dict[str, Any] = {"id": one.id}
        if event is ev.PlanKept:
            fields |= {"plan": plan.plan, "report": one}
        elif event is ev.Thought:
            fields |= {"report": one, "writer": "x", "operations": {}, "shown": {}}
        assert at.tell(event, **fields) == []
    at.commit(op)
    # Nor when all is done and its end is not durable yet.
    for event in (ev.PlanKept, ev.Stuck):
        fields = {"id": one.id, "report": one}
        fields |= {"plan": plan.plan} if event is ev.PlanKept else {"errno": 5}
        assert at.tell(event, **fields) == []
    at.tell(ev.Concluded, id=one.id)
    assert at.tell(ev.Concluded, id=one.id) == []
    assert at.state.lessons.waiting() == 0


def test_a_plan_is_made_once(at: Desk) -> None:
    one = begun(at)
    think(at, one, add())
    operations: dict[Stream, tuple[Operation, ...]] = {"reusable": (add(),)}
    thought = {"id": one.id, "report": one, "writer": "x", "operations": operations, "shown": {}}
    assert at.tell(ev.Thought, **thought) == []


def test_a_submission_that_is_told_of_twice_waits_once(at: Desk) -> None:
    begun(at)
    asked = submit(at, PLAN)
    filed(at, asked)
    assert filed(at, asked) == []
    assert at.state.lessons.waiting() == 2


def test_a_parked_one_begins_again_once(at: Desk) -> None:
    """Two people may ask for that, and the end of the first try be told again."""
    one = begun(at)
    at.tell(ev.Stuck, id=one.id, errno=22, message="x", lasting=True, report=one)
    parked = end(at)
    keys = []
    for _ in range(2):
        at.ask(MAIL, m.LearnStatus(id=one.id, retry=True, user="ana"))
        keys.append(at.one(ins.FindSubmissions).key)
    at.tell(ev.SubmissionsFound, key=keys[0], submissions=(parked,))
    assert at.reply(at.frame - 1).submissions[0].state == "queued"
    at.tell(ev.SubmissionsFound, key=keys[1], submissions=(parked,))
    assert at.reply().field == "id"
    at.tell(ev.Concluded, id=one.id)
    assert at.one(ins.Learn).id == one.id
    at.tell(ev.Concluded, id=one.id)
    assert at.state.lessons.waiting() == 1
    keep(at, think(at, one))
    assert end(at).state == "done"


def test_what_waits_is_left_by_a_kernel_that_does_not_learn() -> None:
    desk = Desk(learning=Learning(writer="off"), unlearned=(("l1", "ana", "mail"),))
    assert desk.tell(ev.LearnerUp) == []
    assert desk.state.lessons.waiting() == 1


def test_a_submission_that_is_gone_ends_without_a_word(at: Desk) -> None:
    one = begun(at)
    assert at.tell(ev.Stuck, id=one.id) == []
    assert at.state.lessons.waiting() == 0


# -- persons


@pytest.mark.promise("erase.complete")
def test_nothing_more_comes_of_the_attempts_of_a_forgotten_user(at: Desk) -> None:
    one = begun(at)
    waiting = submit(at)
    filed(at, waiting)
    at.tell(ev.Purged, key=0, user="ana", outcomes=())
    assert at.state.lessons.waiting() == 1
    at.tell(ev.Thought, id=one.id, report=one, writer="x",
            operations={"reusable": (add(),)}, shown={})  # fmt: skip
    assert at.all(ins.KeepPlan) == []
    assert at.state.lessons.waiting() == 0


def test_who_wants_nothing_learned_has_nothing_kept(at: Desk) -> None:
    assert at.ask(MAIL, m.LearnConsent(user="ana")).choice == "share"
    waiting = begun(at)
    assert at.ask(MAIL, m.LearnConsent(choice="nothing", user="ana")) is None
    at.tell(ev.Saved, key=at.one(ins.SaveConsent).key)
    assert at.reply().choice == "nothing"
    at.tell(ev.Thought, id=waiting.id, report=waiting, writer="x",
            operations={"reusable": (add(),)}, shown={})  # fmt: skip
    assert end(at).state == "refused"
    reply = at.ask(MAIL, m.LearnSubmit(task="t", trajectory=SAID, user="ana"))
    assert reply.submissions[0].state == "refused"
    assert at.all(ins.FileSubmission) == []
    # What an agent narrowed the operator alone widens.
    refused = at.ask(MAIL, m.LearnConsent(choice="share", user="ana"))
    assert (refused.errno, refused.field) == (Errno.EPERM, "choice")
    assert at.ask(OPERATOR, m.LearnConsent(choice="own", user="ana")) is None
    at.tell(ev.Saved, key=at.one(ins.SaveConsent).key)
    filed(at, submit(at))
    assert at.one(ins.Learn).scopes["reusable"] == ("pair", "user")


def test_a_choice_holds_for_what_is_planned_already(at: Desk) -> None:
    one = begun(at)
    plan = think(at, one, add(), add(scope="user"))
    at.ask(MAIL, m.LearnConsent(choice="own", user="ana"))
    (op,) = keep(at, plan)
    assert op.partition == partition_of("user", "ana", "mail")
    at.commit(op)
    report = end(at)
    assert (report.added, report.denied) == (1, 1)
    assert any("shares no more" in why for why in report.reasons)
    plan = think(at, begun(at), add(scope="user"))
    at.ask(MAIL, m.LearnConsent(choice="nothing", user="ana"))
    assert keep(at, plan) == []
    assert end(at).state == "refused"


def test_the_newest_choice_holds_whatever_the_disk_tells_first(at: Desk) -> None:
    at.ask(MAIL, m.LearnConsent(choice="nothing", user="ana"))
    at.tell(ev.Saved, key=at.one(ins.SaveConsent).key)
    at.ask(OPERATOR, m.LearnConsent(choice="share", user="ana"))
    wider = at.one(ins.SaveConsent).key
    at.ask(MAIL, m.LearnConsent(choice="nothing", user="ana"))
    newest = at.one(ins.SaveConsent).key
    at.tell(ev.Saved, key=wider)
    assert at.ask(MAIL, m.LearnConsent(user="ana")).choice == "nothing"
    at.tell(ev.Saved, key=newest)
    assert at.ask(MAIL, m.LearnConsent(user="ana")).choice == "nothing"


# -- reviews


def part(id_: str = "e1", scope: str = "user", stream: Stream = "reusable") -> Part:
    return Part(id=id_, version=3, partition=partition_of(scope, "ana", "mail"), stream=stream)


def test_a_proposal_that_names_nothing_ends_no_review(at: Desk) -> None:
    assert at.ask(OPERATOR, m.LearnReview()) is None
    nothing = (Proposed(parts=(), to=partition_of("global", "", "")), Proposed(parts=()))
    at.tell(ev.ReviewMade, proposals=nothing, changed=1)
    assert at.all(ins.Report) == []
    at.tell(ev.ReviewKept)
    assert [change.why for change in at.reply().changes] == ["no entry is named"] * 2


def test_the_end_of_an_earlier_review_ends_no_other(at: Desk) -> None:
    assert at.ask(OPERATOR, m.LearnReview()) is None
    at.tell(ev.ReviewMade)
    at.tell(ev.ReviewKept)
    assert isinstance(at.reply(), m.Reviewed)
    assert at.ask(OPERATOR, m.LearnReview()) is None
    assert at.tell(ev.ReviewKept) == []
    proposed = Proposed(parts=(part(),), to=partition_of("global", "ana", "mail"))
    at.tell(ev.ReviewMade, proposals=(proposed,))
    assert isinstance(at.one(ins.Commit).op, Move)


def test_what_is_kept_no_more_cannot_be_tried_again(at: Desk) -> None:
    one = begun(at)
    at.tell(ev.Stuck, id=one.id, errno=22, message="unreadable", lasting=True, report=one)
    parked = end(at)
    at.ask(MAIL, m.LearnStatus(id=one.id, retry=True, user="ana"))
    found = msgspec.structs.replace(parked, kept=False)
    at.tell(ev.SubmissionsFound, key=at.one(ins.FindSubmissions).key, submissions=(found,))
    assert (at.reply().errno, at.reply().field) == (Errno.ENOENT, "id")


@pytest.mark.parametrize("choice", ["own", "nothing"])
def test_a_review_opens_nothing_of_who_shares_nothing(at: Desk, choice: Any) -> None:
    at.ask(MAIL, m.LearnConsent(choice=choice, user="ana"))
    assert at.ask(OPERATOR, m.LearnReview()) is None
    opened = Proposed(parts=(part(),), to=partition_of("global", "ana", "mail"))
    kept = Proposed(parts=(part("e2", "pair"),), to=partition_of("user", "ana", "mail"))
    at.tell(ev.ReviewMade, proposals=(opened, kept))
    op = at.one(ins.Commit).op
    assert op.id == "e2"
    at.commit(op)
    # Nor does the next one look at it again, as long as it is as it is.
    assert at.one(ins.KeepReview).entries == (("e1", 3),)
    at.tell(ev.ReviewKept)
    changes = at.reply().changes
    assert [change.done for change in changes] == [False, True]
    assert "shares nothing" in changes[0].why


@pytest.mark.parametrize(
    ("errno", "again"), [(Errno.EEXIST, False), (Errno.ESTALE, True), (Errno.ENOSPC, True)]
)
def test_what_is_there_already_is_not_proposed_for_ever(
    at: Desk, errno: Errno, again: bool
) -> None:
    assert at.ask(OPERATOR, m.LearnReview()) is None
    opened = Proposed(parts=(part(),), to=partition_of("global", "ana", "mail"))
    at.tell(ev.ReviewMade, proposals=(opened,), looked_at=(("e9", 1),))
    at.commit(at.one(ins.Commit).op, errno=errno)
    entries = at.one(ins.KeepReview).entries
    assert entries == ((("e9", 1),) if again else (("e9", 1), ("e1", 3)))


# -- what is read and changed by hand

TEAM = {("users", "team"): ("ana",), ("agents", "bots"): ("mail",)}


def lesson(partition: Partition, words: str = "mind it") -> Put:
    return Put(
        partition=partition, seq=1, id="e1", text=entry_text("any", words), kind="lesson",
        agent="mail", user="ana", stream="reusable", said_at=0, stored_at=0,
    )  # fmt: skip


def test_lessons_out_of_a_group_are_not_delivered_to_who_has_left() -> None:
    at = Desk(groups=TEAM)
    at.ask(MAIL, m.LearnLessons(task="t", user="ana"))
    frame = at.frame
    # All that the group opens is asked before what is open to all.
    while (place := at.one(ins.Retrieve).view.partitions[0]).users.kind != "all":
        at.select(*[lesson(place)] if place.users.kind == "group" else [])
    at.ask(OPERATOR, m.GroupChange(name="team", of="users", remove=("ana",)))
    assert at.reply(frame).errno == Errno.EAGAIN


def test_who_has_left_a_group_changes_nothing_there() -> None:
    at = Desk(groups=TEAM)
    at.ask(MAIL, m.LearnEdit(id="e1", version=1, lesson="other", user="ana"))
    frame, asked = at.frame, at.one(ins.Retrieve)
    at.select(lesson(Partition(Axis("one", "ana"), Axis("group", "bots"))))
    at.ask(OPERATOR, m.GroupChange(name="bots", of="agents", remove=("mail",)))
    at.tell(ev.SourcesFound, key=asked.key, turn=asked.turn, sources={"e1": ("rules", ())})
    assert at.reply(frame).errno == Errno.ENOENT


def test_a_delivery_keeps_to_its_budget() -> None:
    line = line_of("any", "w" * 120)
    exact = len(f"# Learned memory: pair\n{line}\n")
    for budget, many in ((exact, 1), (exact - 1, 0)):
        at = Desk()
        request = m.LearnLessons(task="t", user="ana", scopes=("pair",), budget=budget)
        at.ask(MAIL, request)
        at.select(lesson(partition_of("pair", "ana", "mail"), "w" * 120))
        assert [len(file.text) for file in at.reply().files] == [exact] * many


def test_only_the_pair_and_the_operator_hear_of_a_submission(at: Desk) -> None:
    one = begun(at)

    def told(channel: int, **more: Any) -> Any:
        at.ask(channel, m.LearnStatus(id=one.id, **more))
        found = {"key": at.one(ins.FindSubmissions).key, "submissions": (one,)}
        at.tell(ev.SubmissionsFound, **found)
        return at.reply()

    assert told(MAIL, user="ana").submissions[0].state == "learning"
    assert told(MAIL, user="bob").errno == Errno.ENOENT
    assert told(PLAN, user="ana").errno == Errno.ENOENT
    assert told(OPERATOR).submissions[0].id == one.id
    assert told(OPERATOR, user="ana").submissions[0].id == one.id
    assert told(OPERATOR, user="bob").errno == Errno.ENOENT


@pytest.mark.promise("view.noninterference")
def test_how_much_others_hand_in_is_no_agents_to_know(at: Desk) -> None:
    begun(at)
    filed(at, submit(at, user="bob"))
    for channel, who, count in (
        (MAIL, {"user": "ana"}, 1),
        (MAIL, {"user": "bob"}, 1),
        (PLAN, {"user": "ana"}, 0),
        (OPERATOR, {}, 2),
        (OPERATOR, {"user": "bob"}, 1),
    ):
        at.ask(channel, m.LearnStatus(**who))
        at.tell(ev.SubmissionsFound, key=at.one(ins.FindSubmissions).key, submissions=())
        assert at.reply().waiting == count, (channel, who)


# -- limits


@pytest.mark.parametrize(
    ("fields", "errno", "field"),
    [
        ({"task": ""}, Errno.EINVAL, "task"),
        ({"task": "x" * 8193}, Errno.EMSGSIZE, "task"),
        ({"trajectory": ()}, Errno.EINVAL, "trajectory"),
        ({"verifier_tail": "x" * 8193}, Errno.EMSGSIZE, "verifier_tail"),
        ({"claim": "x" * 8193}, Errno.EMSGSIZE, "claim"),
        ({"key": "a/b"}, Errno.EINVAL, "key"),
        ({"user": "cy"}, Errno.EPERM, "user"),
    ],
)
def test_what_is_wrong_is_named(at: Desk, fields: Any, errno: Errno, field: str) -> None:
    request = m.LearnSubmit(**{"task": "t", "trajectory": SAID, "user": "ana", **fields})
    failed = at.ask(MAIL, request)
    assert (failed.errno, failed.field) == (errno, field)


def test_a_kernel_may_learn_nothing() -> None:
    at = Desk(learning=Learning(writer="off"))
    failed = at.ask(MAIL, m.LearnSubmit(task="t", trajectory=SAID, user="ana"))
    assert failed.errno == Errno.ENOSYS


def test_a_channel_has_so_many_on_their_way_to_the_disk(at: Desk) -> None:
    for _ in range(FILING):
        submit(at)
    refused = at.ask(MAIL, m.LearnSubmit(task="t", trajectory=SAID, user="ana"))
    assert refused.errno == Errno.EAGAIN
    submit(at, PLAN)


def test_a_review_keeps_to_the_scopes_of_the_settings() -> None:
    at = Desk(learning=Learning(scopes=("pair", "global")))
    assert at.ask(OPERATOR, m.LearnReview()) is None
    away = Proposed(parts=(part("e1", "pair"),), to=partition_of("user", "ana", "mail"))
    at.tell(ev.ReviewMade, proposals=(away,))
    assert at.all(ins.Commit) == []
    at.tell(ev.ReviewKept)
    (change,) = at.reply().changes
    assert (change.done, change.why) == (False, "lessons may go to pair, global alone")


@pytest.mark.promise("protected.stays")
def test_who_shares_nothing_takes_nothing_from_others_either() -> None:
    scopes = scopes_for("reusable", ALL, "own")
    gone = Operation(delete="e1", reason="it failed")
    shown = {"e1": known("global")}
    assert "not this writer's" in refusal(gone, "reusable", scopes, shown, "failed")
    assert refusal(gone, "reusable", scopes_for("reusable", ALL, "share"), shown, "failed") == ""


def test_a_choice_holds_when_it_is_durable_whoever_waits_for_it(at: Desk) -> None:
    at.ask(OPERATOR, m.LearnConsent(choice="own", user="ana"))
    at.tell(ev.Saved, key=at.one(ins.SaveConsent).key)
    at.ask(OPERATOR, m.LearnConsent(choice="share", user="ana"), frame=77)
    saving = at.one(ins.SaveConsent)
    at.ask(OPERATOR, m.Cancel(call=77))
    assert at.ask(OPERATOR, m.LearnConsent(user="ana")).choice == "own"
    at.tell(ev.Saved, key=saving.key)
    assert at.ask(OPERATOR, m.LearnConsent(user="ana")).choice == "share"


def test_what_cannot_be_read_does_not_stand_before_others(at: Desk) -> None:
    first = begun(at)
    second = submit(at, PLAN)
    filed(at, second)
    at.tell(ev.Stuck, id=first.id, errno=255, message="learning broke", lasting=True)
    assert at.one(ins.Learn).id == second.submission.id


def test_after_its_tries_what_the_disk_refuses_lets_others_go_first(at: Desk) -> None:
    first = begun(at)
    plan = think(at, first, add())
    second = submit(at, PLAN)
    filed(at, second)
    for tried in range(1, TRIES + 1):
        (op,) = keep(at, plan)
        at.refuse(op, Errno.EIO)
        at.sleep(60 * SECOND)
        learn = at.one(ins.Learn)
        assert learn.id == (first.id if tried < TRIES else second.submission.id)
