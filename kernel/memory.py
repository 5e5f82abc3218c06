"""The shell's part of memory: writes on their way into the store and out of it, and questions.

A write is made durable in the writer's thread, becomes searchable on the loop, and only then is an
event. A question is put to the store on the loop, in its channel's turn; what it means is worked
out in a thread before.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
import trio

from isovist.kernel.embedding import Embedding
from isovist.kernel.hub import Hub
from isovist.kernel.log import where
from isovist.kernel.questions import Questions
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.upkeep import Upkeep
from isovist.kernel.work import Piece, Work
from isovist.kernel.writer import Writer
from isovist.storage.dense import Vector
from isovist.storage.store import Store
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Move, Outcome, Query, SearchQuery, Vectors

log = structlog.get_logger()

SET_ASIDE = 1000
"""Writes after which the garbage collector is told that what is there will stay: units live long,
and walking ten thousand of them in vain stops the loop for a tenth of a second."""
TOLD = 8
"""Outcomes of writes that become events in one piece of work."""
AGAIN = 1.0
"""Seconds until vectors that the disk refused are offered to it again."""
WORLDLY = frozenset({Errno.EIO, Errno.ENOSPC, Errno.EKERNEL})
"""Failures of a write that are not its caller's doing."""


class Memory:
    """Carries out ``Commit`` and ``Retrieve``.

    ``calls`` are the outstanding ones, ``fail`` ends one. :meth:`collect` is to be called when
    ``writer.wake_fd`` is readable.
    """

    def __init__(
        self,
        store: Store,
        writer: Writer,
        embedding: Embedding,
        questions: Questions,
        upkeep: Upkeep,
        hub: Hub,
        work: Work[Piece],
        nursery: trio.Nursery,
        *,
        calls: Callable[[int], Call | None],
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._store, self._writer, self._upkeep = store, writer, upkeep
        self._embedding, self._questions = embedding, questions
        self._hub, self._work, self._nursery = hub, work, nursery
        self._call, self._now, self._dispatch, self._fail = calls, now, dispatch, fail
        self._taken_in = 0
        self._untold: deque[Outcome] = deque()
        """Searchable, and not yet an event; as long as there is one, a piece of work is queued."""

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {ins.Commit: lambda i: self._writer.commit(i.op), ins.Retrieve: self._look_up}

    # -- writes

    def collect(self) -> None:
        for outcomes in self._writer.collect():
            self._work.first(partial(self._take_in, outcomes))

    def _take_in(self, outcomes: Sequence[Outcome]) -> bool:
        """The writes of one commit become searchable, together, and only then are events."""
        try:
            self._store.apply(outcomes)
        except Exception as e:
            # Durable, and searchable after the next start; until then nobody may wait for it.
            log.error("broken rule", rule="what is durable can be searched", why=where(e))
            lost = {"errno": int(Errno.EKERNEL), "message": "not indexed"}
            outcomes = [o if o.errno else msgspec.structs.replace(o, **lost) for o in outcomes]
        self._upkeep.note()
        self._taken_in += len(outcomes)
        if self._taken_in >= SET_ASIDE:
            self._taken_in = 0
            gc.collect(1)
            gc.freeze()
        if not self._untold:
            self._work.first(self._tell_some)
        self._untold.extend(outcomes)
        return True

    def _tell_some(self) -> bool:
        """All events of a group in one piece would be felt by whoever waits for something else."""
        try:
            for _ in range(min(TOLD, len(self._untold))):
                self._tell(self._untold.popleft())
        finally:
            if self._untold:
                self._work.first(self._tell_some)
        return True

    def show(self, outcomes: Sequence[Outcome]) -> None:
        """Make writes visible that were committed together with something else; what becomes of
        them is told by whoever had them made."""
        self._store.apply(outcomes)
        self._upkeep.note()
        for outcome in outcomes:
            self._owe(outcome)

    def _tell(self, outcome: Outcome) -> None:
        op = outcome.op
        if isinstance(op, Vectors) and outcome.errno in WORLDLY:
            # Nobody else would bring these vectors again, and the disk may have room later.
            self._nursery.start_soon(self._commit_later, op)
            return
        if outcome.errno:
            if outcome.errno in WORLDLY:
                log.warning("write failed", errno=outcome.errno, why=outcome.message)
            self._dispatch(ev.WriteFailed(now=self._now(), outcome=outcome))
            return
        self._owe(outcome)
        self._dispatch(ev.Committed(now=self._now(), outcome=outcome))

    def _owe(self, outcome: Outcome) -> None:
        """Have the vectors made that a write lacks."""
        op = outcome.op
        if outcome.chunks:
            # What a moved unit lacks is owed where it now is.
            where_to = (op.to, op.to_seq) if isinstance(op, Move) else (op.partition, op.seq)
            self._embedding.submit(*where_to, outcome.id, outcome.version, outcome.chunks)

    async def _commit_later(self, op: Vectors) -> None:
        await trio.sleep(AGAIN)
        self._writer.commit(op)

    # -- questions

    def _look_up(self, i: ins.Retrieve) -> None:
        """Look into memory for a call: in its channel's turn, and first of all, where that is
        asked for, in the meaning of its question."""
        call = self._call(i.key)
        if call is None:
            return
        if call.step is Step.LOCATE:
            self._select(i, i.query)
        elif isinstance(i.query, SearchQuery) and i.query.mode != "bm25":
            channel, query = call.channel, i.query
            self._questions.ask(
                channel,
                query.text,
                wanted=lambda: self._call(i.key) is not None,
                then=lambda vector: self._work.add(
                    channel, partial(self._select, i, query, vector)
                ),
            )
        else:
            self._work.add(call.channel, partial(self._select, i, i.query))

    def _select(
        self, i: ins.Retrieve, query: Query, vector: Vector | Exception | None = None
    ) -> bool:
        """Answer a query; false where its call is over, or must wait for its caller to read
        earlier replies."""
        call = self._call(i.key)
        if call is None:
            return False
        again = partial(self._select, i, query, vector)
        if self._hub.hold(call.channel, lambda: self._work.add(call.channel, again)):
            return False
        lagging: tuple[str, ...] = ()
        if isinstance(vector, Exception) and isinstance(query, SearchQuery):
            log.error("a question has no vector", why=where(vector))
            query, lagging = msgspec.structs.replace(query, lexical_only=True), ("dense",)
        try:
            known = None if isinstance(vector, Exception) else vector
            selection = self._store.select(i.view, query, known)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._upkeep.note_read()
            self._dispatch(
                ev.Retrieved(
                    now=self._now(), key=i.key, turn=i.turn, selection=selection, lagging=lagging
                )
            )
        return True
