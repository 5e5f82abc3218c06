"""What a submission comes to, as changes of the store: planned first, durably, then carried out.

A plan names the ids of what is new, which come from the submission, and the versions of what it
changes. So a plan that is carried out twice, by two lives of the kernel, is carried out once.
"""

from __future__ import annotations

from collections.abc import Callable

from isovist.kernel.state.lessons import Known, Operation, Planned, entry_text, owner_of
from isovist.syscalls.operations import Drop, Learned, Move, Op, Put, Replace
from isovist.syscalls.records import Partition, Reader, Stream, partition_of


def planned_for(
    operation: Operation, stream: Stream, known: Known | None, new: str, pair: Reader
) -> Planned:
    """An operation that the rules allow, as a change: of the entry ``known``, or of a new one that
    will have the id ``new``. The scope is as seen from ``pair``."""
    text = entry_text(operation.situation, operation.lesson)
    if known is not None and operation.delete:
        return Planned(
            what="delete",
            id=known.id,
            stream=stream,
            partition=known.partition,
            version=known.version,
        )
    to = partition_of(operation.scope, pair.user, pair.agent)
    if known is None:
        return Planned(what="add", id=new, stream=stream, partition=to, to=to, text=text)
    return Planned(
        what="revise",
        id=known.id,
        stream=stream,
        partition=known.partition,
        version=known.version,
        text=text,
        to=to if to != known.partition else None,
    )


def kinds_of(planned: Planned) -> tuple[type[Op], ...]:
    """The changes, one after the other, that carry out ``planned``."""
    if planned.what == "revise":
        return (Replace,) if planned.to is None else (Replace, Move)
    return (Put,) if planned.what == "add" else (Drop,)


def shares(planned: Planned) -> bool:
    """Whether it changes what other users read."""
    return (planned.to or planned.partition).users.kind != "one"


def op_for(
    planned: Planned,
    kind: type[Op],
    accept: Callable[[Partition], int],
    now: int,
    learned: Learned,
) -> Op:
    """The write of this ``kind`` that ``planned`` takes, with numbers of its partitions that
    ``accept`` issues. ``now`` in ns since 1970 UTC."""
    if kind is Drop:
        return Drop(
            partition=planned.partition,
            seq=accept(planned.partition),
            id=planned.id,
            version=planned.version,
            stored_at=now,
        )
    if kind is Put:
        user, agent = owner_of(planned.partition)
        return Put(
            partition=planned.partition,
            seq=accept(planned.partition),
            id=planned.id,
            text=planned.text,
            kind="lesson",
            agent=agent,
            user=user,
            stream=planned.stream,
            said_at=now,
            stored_at=now,
            learned=learned,
        )
    if kind is Move and planned.to is not None:
        return Move(
            partition=planned.partition,
            seq=accept(planned.partition),
            id=planned.id,
            version=planned.version + 1,
            to=planned.to,
            to_seq=accept(planned.to),
            stored_at=now,
            owner=owner_of(planned.to),
        )
    return Replace(
        partition=planned.partition,
        seq=accept(planned.partition),
        id=planned.id,
        version=planned.version,
        text=planned.text,
        stored_at=now,
        learned=learned,
    )
