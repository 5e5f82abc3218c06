"""Many requests on one engine: each step computes what all of them need next.

A request waits for a slot, then its prompt is read, then its answer is written, a token a step; it
may rest in between. A request whose beginning another one is just reading waits for that one and
takes a copy. Nothing here knows of pipes: what is to be said goes to ``say``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from isovist.kernel.drivers import grammar, sampling
from isovist.kernel.drivers.batch import SHORT, WHOLE, Pace, Reading, Row, chunks
from isovist.kernel.drivers.cells import REUSE, Cells, Holder, Wanted, shared
from isovist.kernel.drivers.outflow import Outflow
from isovist.kernel.drivers.protocol import (
    LOGPROBS,
    NO_LOGPROBS,
    Finish,
    Finished,
    FromProcess,
    Generate,
    Load,
    Read,
    RequestFailed,
    Token,
    check_fit,
    check_request,
)
from isovist.kernel.drivers.sampling import Constraint, Logits
from isovist.syscalls.errors import CallerError, IsovistError
from isovist.syscalls.records import Logprob, Message, ToolCall


class Words(Protocol):
    """The model's vocabulary: :class:`~isovist.kernel.drivers.gguf.Model`, or a fake."""

    vocab: Any

    def prompt(self, messages: Sequence[Message], *, spoken: bool = ...) -> list[int]: ...
    def head(self, messages: Sequence[Message], tokens: Sequence[int]) -> int: ...
    def remember(self, text: str, tokens: list[int]) -> None: ...
    def forget(self) -> None: ...
    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Machine(Holder, Protocol):
    """What computes: :class:`~isovist.kernel.drivers.engine.Engine`, or a fake."""

    context: int
    sequences: int
    room: int

    def decode(self, rows: list[Row]) -> dict[int, Logits]: ...


class Job(msgspec.Struct, eq=False, kw_only=True):
    """A request at work.

    Invariants: ``tokens`` are its prompt and what it has chosen so far; the last of them is never
    computed yet. It has a sequence iff it runs, or rests without having been evicted.
    """

    request: Generate
    tokens: list[int]
    prompt: int
    head: int
    outflow: Outflow
    constraint: Constraint | None
    arrived: int
    left: int = 0
    """When it was last paused while it ran."""
    reading_rest: int = 0
    writing_rest: int = 0
    """How long it rested before and after its first token."""
    state: Literal["waiting", "running", "paused"] = "waiting"
    sequence: int | None = None
    cached: int = 0
    started: int = 0
    first: int = 0
    pieces: list[bytes] = []
    held: str = ""
    """Text that is not sent, as it may be a call of a tool."""
    unsent: int = 0
    logprobs: list[Logprob] = []
    passing: bool = False
    """Nothing of it is kept when it has ended."""
    alike: dict[int, int] = {}
    """By key of another request: how many tokens both prompts begin with alike."""

    @property
    def made(self) -> int:
        return len(self.tokens) - self.prompt


class Serving:
    """Up to ``slots`` requests at a time, on as many sequences or more."""

    def __init__(
        self,
        machine: Machine,
        words: Words,
        say: Callable[[FromProcess], None],
        clock: Callable[[], int],
        slots: int,
        host_bytes: int,
    ) -> None:
        self.slots = min(slots, machine.sequences)
        self.cells = Cells(machine, machine.sequences, host_bytes, clock)
        self._machine, self._words, self._say, self._clock = machine, words, say, clock
        self._jobs: dict[int, Job] = {}
        """In order of arrival."""
        self._pace = Pace(machine.room)
        self._steps = self._read = self._written = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return any(job.state != "paused" for job in self._jobs.values())

    def submit(self, request: Generate) -> None:
        """Take a request in; one that cannot be served is answered at once."""
        try:
            self._jobs[request.key] = self._job(request)
        except IsovistError as e:
            self._say(RequestFailed(request.key, int(e.errno), e.message, field=e.field))

    def abort(self, key: int) -> None:
        if (job := self._jobs.get(key)) is not None:
            self._end(job, "cancelled")

    def pause(self, key: int) -> None:
        job = self._jobs.get(key)
        if job is None or job.state == "paused":
            return
        if job.state == "running" and job.sequence is not None:
            self.cells.pause(job.sequence)  # one that waits to go on rests there already
            job.left = self._clock()
        job.state = "paused"

    def resume(self, key: int) -> None:
        job = self._jobs.get(key)
        if job is not None and job.state == "paused":
            job.state = "waiting"

    def flush(self) -> None:
        """Keep nothing of what was sent so far longer than it is worked on."""
        self.cells.flush()
        self._words.forget()
        for job in self._jobs.values():
            job.passing = True

    def load(self) -> Load:
        states = [job.state for job in self._jobs.values()]
        machine, cells = self._machine, self.cells
        return Load(
            slots=self.slots,
            running=states.count("running"),
            waiting=states.count("waiting"),
            paused=states.count("paused"),
            cells=cells.count,
            cells_total=machine.context * machine.sequences,
            host_bytes=cells.host_bytes,
            host_total=cells.host_total,
            steps=self._steps,
            read=self._read,
            written=self._written,
            swapped=cells.swapped,
            swap_ns=cells.swap_ns,
        )

    def step(self) -> None:
        """Let those in that have a slot, and compute the next tokens of all that run."""
        self._admit()
        running = [job for job in self._jobs.values() if job.state == "running"]
        writing = [job for job in running if self._left(job) == 1 and job.made]
        reading = [job for job in running if job not in writing]
        taken = dict(
            chunks(
                [Reading(job.request.key, self._left(job)) for job in reading],
                self._pace.room(len(writing), len(reading)),
                self._machine.room,
            )
        )
        rows: dict[int, tuple[Job, Row]] = {}
        for job in running:
            size = 1 if job in writing else taken.get(job.request.key, 0)
            if size and job.sequence is not None:
                rows[job.sequence] = (job, self._row(job, job.sequence, size))
        if not rows:
            return
        start = self._clock()
        try:
            logits = self._machine.decode([row for _, row in rows.values()])
        except IsovistError as e:
            for job, _ in rows.values():
                self._fail(job, e, clear=True)
            return
        took = self._clock() - start
        read = sum(taken.values())
        self._steps += 1
        self._read += read
        self._pace.took(read, len(writing), took / 1e9)
        if read and not writing:
            self.cells.costs.took("read", read, took)
        for sequence, (job, row) in rows.items():
            self.cells.grow(sequence, row.tokens)
            if not job.made:
                done = row.start + len(row.tokens)
                self._say(Read(job.request.key, done, job.prompt, job.cached))
            if row.choose:
                self._choose(job, logits[sequence])

    # -- taking in

    def _job(self, request: Generate) -> Job:
        check_request(request)
        if request.key in self._jobs:
            raise CallerError(f"request {request.key} is already worked on", field="key")
        messages = grammar.with_tools(request.messages, request.tools, request.choice)
        tokens = self._words.prompt(messages, spoken=True)
        if len(tokens) + request.max_tokens > self._machine.context:
            # Answers as they were written can be longer than the same text tokenised anew.
            tokens = self._words.prompt(messages, spoken=False)
        check_fit(len(tokens), request.max_tokens, self._machine.context)
        field = "schema" if request.schema else "tools"
        if request.schema:
            rules = grammar.of_schema(request.schema)
        else:
            rules = grammar.of_tools(request.tools, request.choice)
        return Job(
            request=request,
            tokens=tokens,
            prompt=len(tokens),
            head=self._words.head(messages, tokens),
            outflow=Outflow(request.stop),
            constraint=Constraint(self._words.vocab, rules, field) if rules else None,
            arrived=self._clock(),
        )

    def _admit(self) -> None:
        """Sequences for the waiting, in order of arrival, as far as there are slots."""
        running = [job for job in self._jobs.values() if job.state == "running"]
        for job in list(self._jobs.values()):
            if len(running) >= self.slots:
                return
            if job.state != "waiting" or self._should_wait(job, running):
                continue
            if job.sequence is not None:
                self.cells.resume(job.sequence)
            else:
                job.sequence = self.cells.take(job.tokens, job.request.owner, job.head)
                if job.sequence is None:
                    return
                self._robbed(job)
                self._step_back(job)
                self.cells[job.sequence].passing = job.passing
            if job.left:
                self._rested(job)
            if not job.started:
                job.started = self._clock()
                job.cached = len(self.cells[job.sequence].tokens)
            job.state = "running"
            running.append(job)

    def _step_back(self, job: Job) -> None:
        """Compute a little of what is held again where that takes less time than to leave it."""
        assert job.sequence is not None
        lacking = len(job.tokens) - len(self.cells[job.sequence].tokens)
        if self._machine.partial and SHORT <= lacking < WHOLE <= len(job.tokens):
            self.cells.cut(job.sequence, len(job.tokens) - WHOLE)

    def _rested(self, job: Job) -> None:
        """It goes on, or ends, after a pause."""
        rest, job.left = self._clock() - job.left, 0
        if job.first:
            job.writing_rest += rest
        else:
            job.reading_rest += rest

    def _should_wait(self, job: Job, running: list[Job]) -> bool:
        """Whether a running request is about to have computed what this one begins with."""
        if job.made:
            return False
        best = 0
        for other in running:
            key = other.request.key
            if key not in job.alike:
                job.alike[key] = shared(_wanted(job), _wanted(other))
            # Its own prompt may end before what is alike; the last token is computed last.
            alike = min(job.alike[key], other.prompt - 1, job.prompt - 1)
            if other.sequence is not None and len(self.cells[other.sequence].tokens) < alike:
                best = max(best, alike)
        known = self.cells.reusable(*_wanted(job))
        return best >= REUSE and best >= known + REUSE

    def _robbed(self, winner: Job) -> None:
        """A resting request whose sequence was taken has none any more."""
        for job in self._jobs.values():
            if job is not winner and job.sequence == winner.sequence:
                job.sequence = None

    def _left(self, job: Job) -> int:
        """Tokens of the job that are not computed."""
        assert job.sequence is not None
        return len(job.tokens) - len(self.cells[job.sequence].tokens)

    def _row(self, job: Job, sequence: int, size: int) -> Row:
        start = len(self.cells[sequence].tokens)
        end = start + size
        return Row(sequence, start, job.tokens[start:end], choose=end == len(job.tokens))

    # -- writing

    def _choose(self, job: Job, logits: Logits) -> None:
        request = job.request
        if not job.first:
            job.first = self._clock()
        picker: Any = job.constraint or sampling
        try:
            token = picker.choose(logits, request.temperature, request.seed, job.made)
        except IsovistError as e:
            self._fail(job, e)
            return
        if self._words.is_end(token):
            self._end(job, "stop")
            return
        job.tokens.append(token)
        job.unsent += 1
        self._written += 1
        piece = self._words.piece(token)
        job.pieces.append(piece)
        if request.logprobs != NO_LOGPROBS:
            said = sampling.logprob_of(logits, token, request.logprobs, self._words.piece)
            job.logprobs.append(said)
            if len(job.logprobs) == LOGPROBS:
                self._say(Token(request.key, "", 0, tuple(job.logprobs)))
                job.logprobs = []
        self._emit(job, job.outflow.feed(piece))
        if job.outflow.stopped:
            self._end(job, "stop")
        elif job.made == request.max_tokens:
            self._end(job, "length")

    def _emit(self, job: Job, text: str) -> None:
        if job.constraint is not None and job.request.tools and (job.held or text[:1] == "{"):
            first = job.made == job.unsent  # nothing has been sent
            if job.held or first:
                job.held += text
                return
        if text:
            self._say(Token(job.request.key, text, job.unsent, tuple(job.logprobs)))
            job.unsent = 0
            job.logprobs = []

    def _end(self, job: Job, finish: Finish) -> None:
        self._emit(job, job.outflow.finish())
        calls: tuple[ToolCall, ...] = ()
        if job.held:
            call = grammar.read_call(job.held, job.request.tools) if finish != "cancelled" else None
            if call is not None:
                calls = (call,)
            else:
                self._say(Token(job.request.key, job.held, job.unsent, tuple(job.logprobs)))
                job.logprobs = []
        if job.left:
            self._rested(job)
        now = self._clock()
        started, first = job.started or now, job.first or now
        self._say(
            Finished(
                key=job.request.key,
                finish=finish,
                output_tokens=job.made,
                prompt_tokens=job.prompt,
                cached_tokens=job.cached,
                queue_ns=started - job.arrived + job.reading_rest + job.writing_rest,
                prefill_ns=first - started - job.reading_rest,
                decode_ns=now - first - job.writing_rest,
                calls=calls,
                logprobs=tuple(job.logprobs),
            )
        )
        # The next prompt repeats this answer: by the tokens that were chosen, not by those that
        # its text would be cut into, as the cells are theirs.
        if not job.passing:
            self._words.remember(
                b"".join(job.pieces).decode(errors="replace"), job.tokens[job.prompt :]
            )
        self._leave(job)

    def _fail(self, job: Job, error: IsovistError, clear: bool = False) -> None:
        request = job.request
        self._say(RequestFailed(request.key, int(error.errno), error.message, field=error.field))
        if clear and job.sequence is not None:
            self.cells.clear(job.sequence)
            job.sequence = None
        self._leave(job)

    def _leave(self, job: Job) -> None:
        if job.constraint is not None:
            job.constraint.close()
        if job.sequence is not None:
            self.cells.release(job.sequence)
        del self._jobs[job.request.key]


def _wanted(job: Job) -> Wanted:
    """Its prompt, without what it has chosen."""
    return Wanted(job.tokens[: job.prompt], job.request.owner, job.head)
