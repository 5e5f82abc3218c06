"""What every store keeps of learning: submissions, entries and their origins, consent."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from storage_helpers import DIM, EMBEDDER, T0, Drop, put, write

from isovist.storage.backend import Backend
from isovist.storage.learning import MAX_TRAJECTORY, PARKED, Work, file
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import Learned, Move, Replace
from isovist.syscalls.records import Message, Submission, ToolCall, partition_of

AWS = "AKIA" + "IOSFODNN7EXAMPLE"  # in two, so that no scanner takes it for one of ours
TRAJECTORY = (Message("user", "convert it"), Message("assistant", "done"))


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made: Backend = (
        MemoryStore(EMBEDDER.name, DIM) if request.param == "memory" else opened(tmp_path)
    )
    made.restore()
    yield made
    made.close()


def opened(folder: Path) -> Store:
    return Store.open(folder / "isovist.db", EMBEDDER.name, DIM, engine="memory")


def submission(id: str, user: str = "ana", agent: str = "p", **more: Any) -> Submission:
    return Submission(
        **{"id": id, "user": user, "agent": agent, "state": "queued", "outcome": "failed",
           "submitted_at": T0, **more}
    )  # fmt: skip


def submit(
    store: Backend, one: Submission, key: str = "", most: int = 9
) -> tuple[Submission, bool]:
    work = Work(task="convert", trajectory=TRAJECTORY, verifier_tail="decimal comma")
    return store.submit(file(one, key, work), most)


def lesson(seq: int, text: str, learned: Learned | None, scope: str = "global", **more: Any) -> Any:
    return put(seq, text, scope=scope, kind="lesson", learned=learned, **more)


def by_rules(id: str = "", *parts: str) -> Learned:
    return Learned(writer="rules", submission=id, parts=parts)


# -- submissions


def test_a_key_stands_for_one_submission_of_its_pair(store: Backend) -> None:
    assert submit(store, submission("l1"), "k") == (submission("l1"), False)
    assert submit(store, submission("l2"), "k") == (submission("l1"), True)
    assert submit(store, submission("l3", user="bo"), "k")[1] is False
    assert submit(store, submission("l4", agent="q"), "k")[1] is False
    assert submit(store, submission("l5"))[1] is False
    assert submit(store, submission("l6"))[1] is False
    assert [one[0] for one in store.unlearned()] == ["l1", "l3", "l4", "l5", "l6"]


def test_a_pair_may_have_so_many_waiting(store: Backend) -> None:
    submit(store, submission("l1"), most=2)
    submit(store, submission("l2"), most=2)
    with pytest.raises(CallerError) as caught:
        submit(store, submission("l3"), most=2)
    assert caught.value.errno is Errno.EAGAIN
    assert submit(store, submission("l4", user="bo"), most=2)[1] is False
    store.conclude(submission("l1", state="done"))
    assert submit(store, submission("l5"), most=2)[1] is False


@pytest.mark.promise("secrets.never")
def test_secrets_of_an_attempt_are_replaced_before_it_is_stored(store: Backend) -> None:
    said = (
        Message("user", f"my key is {AWS}"),
        Message("assistant", None, calls=(ToolCall("run", f'{{"key": "{AWS}"}}', "c1"),)),
        Message("tool", f"AWS_ACCESS_KEY_ID={AWS}", call="c1"),
    )
    work = Work(task=f"use {AWS}", trajectory=said, verifier_tail=f"saw {AWS}", claim=AWS)
    one, known = store.submit(file(submission("l1"), "", work), 9)
    assert not known
    assert sum(one.secrets.values()) == 6
    kept = store.submission("l1")
    assert kept is not None
    assert AWS not in repr(kept)
    assert kept[1] is not None
    assert "[secret:" in kept[1].task


@pytest.mark.promise("secrets.never")
def test_secrets_in_the_names_of_calls_and_in_keys_are_not_stored() -> None:
    said = (
        Message("assistant", None, calls=(ToolCall(f"run {AWS}", "{}", AWS),)),
        Message("tool", "done", call=AWS),
    )
    filed = file(submission("l1"), AWS, Work(task="t", trajectory=said))
    assert sum(filed.submission.secrets.values()) == 3
    assert AWS not in repr(filed)
    assert AWS.encode() not in zlib.decompress(filed.body)
    again = file(submission("l2"), AWS, Work(task="t", trajectory=said))
    assert filed.key == again.key != file(submission("l3"), "k", Work(task="t", trajectory=())).key


def test_an_attempt_has_a_limit() -> None:
    long = Work(task="t", trajectory=(Message("user", "x" * (MAX_TRAJECTORY + 1)),))
    with pytest.raises(CallerError) as caught:
        file(submission("l1"), "", long)
    assert (caught.value.errno, caught.value.field) == (Errno.EMSGSIZE, "trajectory")


def test_the_steps_of_a_submission_are_kept_and_its_text_goes_with_its_end(store: Backend) -> None:
    submit(store, submission("l1"))
    found = store.submission("l1")
    assert found is not None
    assert found[1] is not None
    further = msgspec.structs.replace(found[1], streams=b"two", plan=b"a plan")
    report = submission("l1", cut=3)
    assert store.save_step(report, further)
    assert store.submission("l1") == (report, further)
    # Parked, it can be tried again from where it was.
    parked = submission("l1", state="parked", error="no answer")
    assert store.conclude(parked)
    assert store.submission("l1") == (parked, further)
    assert store.unlearned() == ()
    assert store.conclude(submission("l1"))
    assert [one[0] for one in store.unlearned()] == ["l1"]
    done = submission("l1", state="done", added=1)
    assert store.conclude(done)
    assert store.submission("l1") == (done, None)
    # What has ended stays so.
    assert not store.conclude(parked)
    assert not store.save_step(report, further)
    assert store.submission("l1") == (done, None)
    assert store.submission("l9") is None


def test_the_text_of_few_parked_submissions_is_kept(store: Backend) -> None:
    for n in range(PARKED + 2):
        submit(store, submission(f"l{n:02}"), most=99)
    submit(store, submission("other", user="bo"))
    for n in range(PARKED + 2):
        store.conclude(submission(f"l{n:02}", state="parked"))
    store.conclude(submission("other", user="bo", state="parked"))
    kept = {one.id: one.kept for one in store.submissions("", "", 99)}
    assert kept == {f"l{n:02}": n >= 2 for n in range(PARKED + 2)} | {"other": True}
    found = store.submission("l00")
    assert found is not None
    assert found[1] is None
    # Without its text none begins anew.
    assert not store.conclude(submission("l00"))
    assert "l00" not in {one[0] for one in store.unlearned()}
    # Who wants nothing learned has nothing of it kept.
    store.save_consent("ana", "nothing")
    assert not any(one.kept for one in store.submissions("ana", "", 99))
    assert all(one.kept for one in store.submissions("bo", "", 99))


def test_the_latest_come_first(store: Backend) -> None:
    for name, user, agent in (("l1", "ana", "p"), ("l2", "bo", "p"), ("l3", "ana", "q")):
        submit(store, submission(name, user, agent))

    def ids(user: str, agent: str, limit: int = 9) -> list[str]:
        return [one.id for one in store.submissions(user, agent, limit)]

    assert ids("ana", "p") == ["l1"]
    assert ids("ana", "") == ["l3", "l1"]
    assert ids("", "") == ["l3", "l2", "l1"]
    assert ids("", "", 1) == ["l3"]


# -- entries


def test_an_entry_knows_where_it_comes_from(store: Backend) -> None:
    submit(store, submission("l1"))
    submit(store, submission("l2", "bo", outcome="passed"))
    (first,) = write(store, lesson(1, "csv\nmind the comma", by_rules("l1")))
    write(store, put(2, "a note"))
    sources = store.sources([first.id, "global-ana-p-2", "nothing"])
    assert list(sources) == [first.id]
    assert sources[first.id].writer == "rules"
    assert [(o.submission, o.user, o.outcome) for o in sources[first.id].origins] == [
        ("l1", "ana", "failed")
    ]
    # The same once more: one entry, of two origins.
    (again,) = write(store, lesson(3, "csv\nmind the comma", by_rules("l2"), id="another"))
    assert again.duplicate
    assert again.id == first.id
    assert {o.user for o in store.sources([first.id])[first.id].origins} == {"ana", "bo"}


def test_nothing_is_learned_from_a_submission_that_is_there_no_more(store: Backend) -> None:
    submit(store, submission("l1"))
    (gone,) = write(store, lesson(1, "csv\nmind the comma", by_rules("l9")))
    assert gone.errno == Errno.ENOENT
    (kept,) = write(store, lesson(2, "csv\nmind the dot", by_rules("l1")))
    change = Replace(
        partition=kept.op.partition, seq=3, id=kept.id, version=1, text="csv\nnever mind",
        stored_at=T0, learned=by_rules("l9"),
    )  # fmt: skip
    (refused,) = write(store, change)
    assert refused.errno == Errno.ENOENT
    assert store.sources([gone.id]) == {}
    assert [o.submission for o in store.sources([kept.id])[kept.id].origins] == ["l1"]


def test_a_merged_entry_has_the_origins_of_its_parts(store: Backend) -> None:
    submit(store, submission("l1"))
    submit(store, submission("l2", "bo"))
    one, two = write(
        store,
        lesson(1, "csv\nmind the comma", by_rules("l1")),
        lesson(2, "a csv\nmind that comma", by_rules("l2")),
    )
    merged = Replace(
        partition=one.op.partition, seq=3, id=one.id, version=1, text="csv\nmind commas",
        stored_at=T0, learned=by_rules("", two.id),
    )  # fmt: skip
    dropped = Drop(partition=two.op.partition, seq=4, id=two.id, version=1)
    assert [o.errno for o in write(store, merged, dropped)] == [0, 0]
    assert [o.submission for o in store.sources([one.id])[one.id].origins] == ["l1", "l2"]
    assert store.sources([two.id]) == {}
    assert store.statistics()["entries"] == 1


def test_a_review_has_seen_what_has_not_changed_since(store: Backend) -> None:
    submit(store, submission("l1"))
    one, two = write(
        store,
        lesson(1, "csv\nmind the comma", by_rules("l1")),
        lesson(2, "xml\nmind the brackets", by_rules("l1")),
    )
    assert store.fresh_entries(9) == tuple(sorted((one.id, two.id)))
    assert len(store.fresh_entries(1)) == 1
    store.entries_looked_at([(one.id, 1), (two.id, 7)])
    assert store.fresh_entries(9) == (two.id,)
    store.entries_looked_at([(two.id, 1)])
    assert store.fresh_entries(9) == ()
    edit = Replace(
        partition=one.op.partition, seq=3, id=one.id, version=1, text="csv\nx", stored_at=T0
    )
    to = partition_of("agent", "ana", "p")
    move = Move(
        partition=two.op.partition, seq=4, id=two.id, version=1, to=to, to_seq=1, stored_at=T0,
        owner=("kernel/learner", "p"),
    )  # fmt: skip
    assert [o.errno for o in write(store, edit, move)] == [0, 0]
    assert store.fresh_entries(9) == tuple(sorted((one.id, two.id)))


# -- persons


def test_consent_is_kept(store: Backend) -> None:
    assert store.consents() == {}
    store.save_consent("ana", "own")
    store.save_consent("ana", "nothing")
    store.save_consent("bo", "share")
    assert store.consents() == {"ana": "nothing", "bo": "share"}


@pytest.mark.promise("erase.complete", "protected.stays")
def test_a_forgotten_user_takes_along_all_but_what_others_learned(store: Backend) -> None:
    submit(store, submission("l1"))
    submit(store, submission("l2", "bo"))
    store.save_consent("ana", "share")
    owner = {"user": "kernel/learner", "agent": "kernel/learner"}
    shared, both, own = write(
        store,
        lesson(1, "csv\nmind the comma", by_rules("l1"), **owner),
        lesson(2, "xml\nmind it", by_rules("l1"), **owner),
        lesson(3, "reports\nlikes ISO dates", by_rules("l1"), scope="user", stream="protected"),
    )
    write(store, lesson(4, "xml\nmind it", by_rules("l2"), id="twin", **owner))
    assert store.from_user("ana") == {shared.id, both.id, own.id}
    store.apply(store.purge("ana", "r1", T0))
    assert store.from_user("ana") == frozenset()
    sources = store.sources([shared.id, both.id, own.id])
    assert {unit: [o.user for o in source.origins] for unit, source in sources.items()} == {
        shared.id: [],
        both.id: ["bo"],
    }
    assert store.submissions("ana", "", 9) == ()
    assert store.consents() == {}
    assert store.submission("l1") is None


def test_learning_outlives_the_process(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.restore()
    submit(first, submission("l1"))
    write(first, lesson(1, "csv\nmind the comma", by_rules("l1")))
    first.close()
    second = opened(tmp_path)
    second.restore()
    assert [one[0] for one in second.unlearned()] == ["l1"]
    assert second.sources(["global-ana-p-1"])["global-ana-p-1"].origins[0].submission == "l1"
    second.close()


def test_a_moved_unit_has_the_owner_that_it_is_given(store: Backend) -> None:
    (one,) = write(store, put(1, "mine"))
    to = partition_of("global", "ana", "p")
    move = Move(
        partition=one.op.partition, seq=2, id=one.id, version=1, to=to, to_seq=1, stored_at=T0,
        owner=("kernel/learner", "kernel/learner"),
    )  # fmt: skip
    assert write(store, move)[0].errno == 0
    assert store.owned("ana") == ()
    assert [unit for unit, *_ in store.owned("kernel/learner")] == [one.id]
