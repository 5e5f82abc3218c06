"""Vectors: a document's in a process of its own; a question's here, where the embedder is quick (a
few milliseconds), or in a third one.

A stalled or dying document embedder delays the dense leg and nothing else; the barrier tells
readers so. Whatever had not come back is sent again to the next process.

Partitions take turns, so that who stores much makes nobody else wait: what a newcomer finds
ahead of it is at most ``WINDOW`` chunks in the process and one turn of each other partition.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec
import numpy as np
import structlog
import trio
from numpy.typing import NDArray

from isovist.kernel.asking import Asker, fits, keys_of, learn
from isovist.kernel.drivers import protocol as p
from isovist.kernel.drivers.supervisor import DriverProcess
from isovist.storage.embedder import QUICK, make_embedder
from isovist.syscalls.errors import Errno
from isovist.syscalls.operations import Outcome, Vectors
from isovist.syscalls.records import Partition

log = structlog.get_logger()

WINDOW = 16
"""Chunks that the process is given ahead, so that it never waits for the kernel."""
TURN = 8
"""Chunks of one unit that are sent in one turn of its partition; a longer unit takes several."""
TRIES = 3
"""Lives of the process that one unit may see: a text that kills its embedder is given up."""
PATIENCE_S = 30.0
"""A process that has work and answers nothing for so long hangs, and is killed."""
QUERY_CHARS = 200
"""Characters of a question that are embedded: half from its beginning, half from its end."""


class _Job:
    """A unit that waits for its vectors. Answers come in the order of sending."""

    __slots__ = ("chunks", "op", "over", "sent", "tries", "vectors")

    def __init__(self, op: Vectors, chunks: tuple[str, ...]) -> None:
        self.op, self.chunks = op, chunks
        self.sent = 0
        """How many of the chunks this life of the process has been given, or an earlier one
        has embedded."""
        self.vectors: list[bytes] = []
        self.tries = 0
        self.over = False


class Embedding:
    """``done`` gets a ``Vectors`` operation to be committed; ``lost`` one that came to nothing.

    Invariants: a job stands in the queue of its partition, at its place in the order of
    submission, iff it has chunks to send; no queue is empty.
    """

    def __init__(
        self,
        kind: str,
        done: Callable[[Vectors], None],
        lost: Callable[[Outcome], None],
        asker: Asker | None = None,
    ) -> None:
        self._kind = kind
        self._asker = asker
        if asker is None:
            quick = make_embedder(kind)
            self._query = quick.embed_query
            space = quick.name, quick.dim
        else:
            self._query = asker.query
            space = asker.name, asker.dim
        self.name, self.dim = space
        """The id that is stored with every vector, and how many values one has."""
        self._done, self._lost = done, lost
        self._queues: OrderedDict[Partition, deque[_Job]] = OrderedDict()
        self._sent: OrderedDict[int, tuple[_Job, int]] = OrderedDict()
        """By number of the request, oldest first: whose it is, of how many chunks."""
        self._units = 0
        self._process: DriverProcess | None = None
        self._patience = trio.CancelScope()
        self._up = False
        self._last = 0

    @classmethod
    async def load(
        cls, kind: str, done: Callable[[Vectors], None], lost: Callable[[Outcome], None]
    ) -> Embedding:
        """An embedding by ``kind``. All but the quick ones never enter this process; another
        process says what they are. Raises a typed error for one that cannot be used."""
        asker = None if kind in QUICK else Asker(kind, *await learn(kind))
        return cls(kind, done, lost, asker)

    @property
    def process(self) -> DriverProcess | None:
        return self._process

    @property
    def up(self) -> bool:
        """Whether a process takes work now."""
        return self._up

    def query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question, shape (dim,), length 1.

        This runs in the one thread of questions, where others wait for it, and takes time by the
        length of the text. So of a long one only the beginning and the end are embedded, which is
        where people put what they ask; the lexical leg looks for all of its words all the same.
        """
        if len(text) > QUERY_CHARS:
            half = QUERY_CHARS // 2
            text = f"{text[:half]} {text[-half:]}"
        return self._query(text)

    def submit(
        self, partition: Partition, seq: int, unit: str, version: int, chunks: tuple[str, ...]
    ) -> None:
        op = Vectors(
            partition=partition, seq=seq, id=unit, version=version, model=self.name, vectors=()
        )
        self._queues.setdefault(partition, deque()).append(_Job(op, chunks))
        self._units += 1
        self._feed()

    def __len__(self) -> int:
        """Units that have no vectors yet."""
        return self._units

    async def run(self) -> None:
        """Keep the processes alive for as long as this runs; restarts back off from 0.1 to 5 s."""
        async with trio.open_nursery() as nursery:
            if self._asker is not None:
                nursery.start_soon(self._asker.run)
            await self._live()

    async def _live(self) -> None:
        pause = 0.1
        while True:
            process = self._process = DriverProcess(
                "embed", "--embedder", self._kind, keep=keys_of(self._kind)
            )
            self._patience = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, process)
                death = await process.run(self._receive)
                nursery.cancel_scope.cancel()
            pause = 0.1 if self._up else min(pause * 2, 5.0)
            self._up = False
            log.warning("embedder gone", reason=death.reason)
            log.debug("embedder's last lines", stderr=death.stderr[-3:])  # may quote memory
            self._take_back(death.reason)
            await trio.sleep(pause)

    async def _watch(self, process: DriverProcess) -> None:
        """Kill a process that hangs. The deadline moves on with each answer, and is never while
        nothing is outstanding."""
        with self._patience:
            await trio.sleep_forever()
        log.warning("embedder hangs", pid=process.pid, seconds=PATIENCE_S)
        process.kill()

    def _take_back(self, why: str) -> None:
        """What a dead process was sent goes to the head of its queue again. It worked in order:
        only the oldest request can have killed it, and where there was none, nothing has."""
        sent = list(dict.fromkeys(job for job, _ in self._sent.values() if not job.over))
        self._sent.clear()
        for job in reversed(sent):
            job.sent = len(job.vectors)
            queue = self._queues.setdefault(job.op.partition, deque())
            if not queue or queue[0] is not job:
                queue.appendleft(job)
        if sent:
            suspect = sent[0]
            suspect.tries += 1
            if suspect.tries >= TRIES:
                self._give_up(suspect, f"its embedder died: {why}")

    def _feed(self) -> None:
        process = self._process
        ahead = sum(count for _, count in self._sent.values())
        # A process may be known to be dead before its last words are read: the next one is fed.
        while self._up and process and process.alive and self._queues:
            partition, queue = next(iter(self._queues.items()))
            job = queue[0]
            chunks = job.chunks[job.sent : job.sent + TURN]
            if ahead + len(chunks) > WINDOW:
                return
            job.sent += len(chunks)
            if job.sent == len(job.chunks):
                queue.popleft()
            if queue:
                self._queues.move_to_end(partition)
            else:
                del self._queues[partition]
            if not self._sent:
                self._patience.deadline = trio.current_time() + PATIENCE_S
            ahead += len(chunks)
            self._last += 1
            self._sent[self._last] = (job, len(chunks))
            process.send(p.Embed(self._last, chunks))

    def _receive(self, message: p.FromProcess) -> None:
        match message:
            case p.Up():
                self._up = fits(message, self.name, self.dim)
                if self._up:
                    log.info("embedder up", name=self.name, pid=self._process and self._process.pid)
                elif self._process is not None:
                    self._process.kill()
            case p.Embedded():
                job, count = self._sent.pop(message.id)
                if not job.over:
                    self._embedded(job, count, message.vectors)
            case p.RequestFailed():
                job, _ = self._sent.pop(message.key)
                if not job.over:
                    self._give_up(job, message.message)
            case _:
                pass
        self._patience.deadline = trio.current_time() + PATIENCE_S if self._sent else math.inf
        self._feed()

    def _embedded(self, job: _Job, count: int, vectors: tuple[bytes, ...]) -> None:
        if len(vectors) != count:
            self._give_up(job, f"{len(vectors)} vectors came for {count} chunks")
            return
        job.vectors += vectors
        if len(job.vectors) == len(job.chunks):
            self._end(job)
            self._done(msgspec.structs.replace(job.op, vectors=tuple(job.vectors)))

    def _give_up(self, job: _Job, why: str) -> None:
        log.error("a unit has no vector", unit=job.op.id, why=why)
        self._end(job)
        self._lost(Outcome(op=job.op, errno=int(Errno.EIO), message=why))

    def _end(self, job: _Job) -> None:
        """Nothing more is sent of ``job``, and what still comes of it is let go."""
        job.over = True
        self._units -= 1
        queue = self._queues.get(job.op.partition)
        if queue and queue[0] is job:
            queue.popleft()
            if not queue:
                del self._queues[job.op.partition]
