"""The shell's part of learning: submissions in and out of the store, and one of them thought about.

Thinking is splitter, scan, two writers, scan. What the splitter made is durable before a writer
begins. Writers run one after the other, each made anew and told one stream alone, so neither can
know what the other was shown. Nothing here decides what is kept: that is the pure kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
import trio

from isovist.kernel.learning.protected import Protected
from isovist.kernel.learning.roles import Model, Splitter, Unusable, Writer
from isovist.kernel.learning.scan import Facts, scan, scan_operations
from isovist.kernel.log import where
from isovist.kernel.questions import Questions
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.lessons import (
    STREAMS,
    Attempt,
    Brief,
    Held,
    Known,
    Operation,
    Planned,
    Streams,
    Verdict,
    cleared,
    held_of,
    known_of,
)
from isovist.kernel.writer import Writer as Thread
from isovist.storage.backend import Backend
from isovist.storage.dense import Vector
from isovist.storage.learning import Filed, Work, file
from isovist.syscalls.errors import Errno, IsovistError, WorldError
from isovist.syscalls.operations import ListQuery, SearchQuery
from isovist.syscalls.records import Stream, Submission, View

log = structlog.get_logger()
T = TypeVar("T")

PATIENCE_S = 900.0
"""Seconds that a splitter or a writer may take in all; a model's answer has its own deadline."""
QUERY = 2000
"""Characters of a task and a stream by which entries near to them are looked for."""
NEAR, SHOWN = 64, 12
"""Entries that are looked for, and of one stream shown to its writer."""
AGAIN_S = 1.0
"""Seconds until the disk is asked again to keep a submission's end."""

_pack = msgspec.msgpack.Encoder().encode
_streams = msgspec.msgpack.Decoder(Streams).decode
_plan = msgspec.msgpack.Decoder(tuple[Planned, ...]).decode


@dataclass(frozen=True)
class Roles:
    """Who splits and who writes, each made anew for each use. ``by``: who they are, as reports say
    it; empty: the model's name, when it has answered.

    ``trusting`` takes what the splitter calls reusable as it is, without the kernel's scan: for
    measuring what the scan and the split are worth, and never set by a configuration.
    """

    splitter: Callable[[Model], Splitter]
    writer: Callable[[Model], Writer]
    by: str = ""
    trusting: bool = False


class Learner:
    """Carries out the instructions of learning. ``model(user)`` is who is asked for that user."""

    def __init__(
        self,
        store: Backend,
        writer: Thread,
        questions: Questions,
        nursery: trio.Nursery,
        roles: Roles,
        model: Callable[[str], Model],
        *,
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._store, self._writer, self._questions = store, writer, questions
        self._nursery, self._roles, self._model = nursery, roles, model
        self._now, self._dispatch, self._fail = now, dispatch, fail
        # The guard and the scan compute: beside the loop and the writer, one text at a time.
        self._guard = trio.CapacityLimiter(1)
        self.protected = Protected(store, self._guard)
        self._cleaning: dict[int, tuple[str, trio.Event]] = {}
        """Submissions that do not stand in the writer's queue yet: their user, and when they do."""

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.FileSubmission: self._begin,
            ins.FindSubmissions: self._find,
            ins.FindSources: self._find_sources,
            ins.SaveConsent: self._save_consent,
            ins.Learn: lambda i: self._nursery.start_soon(self._learn, i),
            ins.KeepPlan: lambda i: self._nursery.start_soon(self._keep_plan, i),
            ins.Conclude: lambda i: self._nursery.start_soon(self._conclude, i),
        }

    # -- the store

    async def settled(self, user: str) -> None:
        """Wait until all submissions for ``user`` that came before are queued, or have failed: one
        that the guard still reads would come after what forgets the user."""
        for whose, queued in list(self._cleaning.values()):
            if whose == user:
                await queued.wait()

    def _begin(self, i: ins.FileSubmission) -> None:
        self._cleaning[i.key] = i.submission.user, trio.Event()
        self._nursery.start_soon(self._file, i)

    async def _file(self, i: ins.FileSubmission) -> None:
        request = i.request
        work = Work(
            task=request.task,
            trajectory=request.trajectory,
            verifier_tail=request.verifier_tail,
            claim=request.claim,
        )
        try:
            filed = await trio.to_thread.run_sync(
                file, i.submission, request.key, work, limiter=self._guard
            )
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._queue(i, filed)
        finally:
            _, queued = self._cleaning.pop(i.key)
            queued.set()

    def _queue(self, i: ins.FileSubmission, filed: Filed) -> None:
        kept: list[tuple[Submission, bool]] = []

        def then(e: Exception | None) -> None:
            if e is not None:
                self._fail(i.key, e)
                return
            one, known = kept[0]
            self._dispatch(
                ev.SubmissionFiled(now=self._now(), key=i.key, submission=one, known=known)
            )

        self._writer.run(lambda: kept.append(self._store.submit(filed, i.most)), then)

    def _find(self, i: ins.FindSubmissions) -> None:
        try:
            if i.id:
                one = self._store.submission(i.id)
                found: tuple[Submission, ...] = (one[0],) if one else ()
            else:
                found = self._store.submissions(i.user, i.agent, i.limit)
        except Exception as e:
            self._fail(i.key, e)
        else:
            self._dispatch(ev.SubmissionsFound(now=self._now(), key=i.key, submissions=found))

    def _find_sources(self, i: ins.FindSources) -> None:
        try:
            found = self._store.sources(i.units)
        except Exception as e:
            self._fail(i.key, e)
        else:
            sources = {unit: (source.writer, source.origins) for unit, source in found.items()}
            event = ev.SourcesFound(now=self._now(), key=i.key, turn=i.turn, sources=sources)
            self._dispatch(event)

    def _save_consent(self, i: ins.SaveConsent) -> None:
        def then(e: Exception | None) -> None:
            if e is not None:
                self._fail(i.key, e)
            else:
                self._dispatch(ev.Saved(now=self._now(), key=i.key))

        self._writer.run(partial(self._store.save_consent, i.user, i.choice), then)

    async def _keep_plan(self, i: ins.KeepPlan) -> None:
        try:
            found = self._store.submission(i.id)
            if found is None or found[1] is None:
                self._dispatch(ev.Stuck(now=self._now(), id=i.id))
                return
            work = msgspec.structs.replace(found[1], plan=_pack(i.plan))
            await self._write(partial(self._store.save_step, i.report, work))
        except Exception as e:
            self._stuck(i.id, i.report, e)
        else:
            kept = ev.PlanKept(now=self._now(), id=i.id, plan=i.plan, report=i.report)
            self._dispatch(kept)

    async def _conclude(self, i: ins.Conclude) -> None:
        while True:
            try:
                await self._write(partial(self._store.conclude, i.report))
                break
            except WorldError as e:
                # What it came to is stored already; its end is kept as soon as the disk takes it.
                log.warning("a submission's end is not kept yet", why=str(e))
                await trio.sleep(AGAIN_S)
        self._dispatch(ev.Concluded(now=self._now(), id=i.report.id))

    async def _write(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the writer's thread, in its place among the writes."""
        done, results, errors = trio.Event(), list[T](), list[Exception]()

        def then(e: Exception | None) -> None:
            if e is not None:
                errors.append(e)
            done.set()

        self._writer.run(lambda: results.append(work()), then)
        await done.wait()
        if errors:
            raise errors[0]
        return results[0]

    # -- thinking

    async def _learn(self, i: ins.Learn) -> None:
        report: Submission | None = None
        try:
            found = self._store.submission(i.id)
            if found is None or found[1] is None:
                self._dispatch(ev.Stuck(now=self._now(), id=i.id))
                return
            report, work = found[0], found[1]
            if work.plan:
                plan = _plan(work.plan)
                event = ev.PlanKept(now=self._now(), id=i.id, plan=plan, report=report)
                self._dispatch(event)
                return
            thought = await self._think(i, report, work)
        except Exception as e:
            self._stuck(i.id, report, e)
        else:
            self._dispatch(thought)

    def _stuck(self, id_: str, report: Submission | None, e: Exception) -> None:
        """Say why a submission cannot be learned from. Words of a model or of a bug may quote what
        they were given, so they are told to nobody."""
        errno, lasting = int(Errno.EKERNEL), True
        if isinstance(e, IsovistError):
            errno, message, lasting = int(e.errno), e.message, not isinstance(e, WorldError)
        elif isinstance(e, Unusable):
            errno, message = int(Errno.EINVAL), str(e)
        elif isinstance(e, trio.TooSlowError):
            errno, message = int(Errno.ETIMEDOUT), f"no end after {PATIENCE_S:.0f} s"
        else:
            log.error("broken rule", rule="learning raises typed errors only", why=where(e))
            message = f"learning broke: {type(e).__name__}"
        self._dispatch(
            ev.Stuck(
                now=self._now(),
                id=id_,
                errno=errno,
                message=message,
                lasting=lasting,
                report=report,
            )
        )

    async def _think(self, i: ins.Learn, report: Submission, work: Work) -> ev.Thought:
        operations: dict[Stream, tuple[Operation, ...]] = {}
        shown: dict[Stream, tuple[Known, ...]] = {}
        by, cut, secrets = self._roles.by, 0, dict[str, int]()
        if any(i.scopes.values()):
            attempt = Attempt(
                submission=report.id,
                user=report.user,
                agent=report.agent,
                task=work.task,
                trajectory=work.trajectory,
                outcome=msgspec.convert(report.outcome, Verdict),
                tail=work.verifier_tail,
                claim=work.claim,
            )
            known = await self._known(report.user, i.own)
            if work.streams:
                streams = _streams(work.streams)
            else:
                streams = await self._split(attempt, known)
                work = msgspec.structs.replace(work, streams=_pack(streams))
                await self._write(partial(self._store.save_step, report, work))
            by = by or streams.by
            cut, secrets = streams.cut, dict(streams.secrets)
            facts = await self._facts(known, streams.protected)
            for stream in STREAMS:
                text = streams.reusable if stream == "reusable" else streams.protected
                if not (i.scopes[stream] and text.strip()):
                    continue
                held = await self._near(i.view, stream, f"{work.task}\n{text}"[:QUERY])
                brief = Brief(
                    stream=stream,
                    text=text,
                    entries=tuple(one for one, _ in held),
                    scopes=i.scopes[stream],
                    outcome=attempt.outcome,
                    agent=report.agent,
                )
                with trio.fail_after(PATIENCE_S):
                    asked = await self._roles.writer(self._model(report.user)).write(brief)
                scanned = await self._in_thread(
                    scan_operations,
                    tuple(map(cleared, asked)),
                    facts if stream == "reusable" else Facts.of(()),
                )
                operations[stream] = scanned.operations
                shown[stream] = tuple(one for _, one in held)
                cut += scanned.cut
                for type_, count in scanned.secrets.items():
                    secrets[type_] = secrets.get(type_, 0) + count
        return ev.Thought(
            now=self._now(),
            id=i.id,
            report=report,
            writer=by,
            operations=operations,
            shown=shown,
            cut=cut,
            secrets=secrets,
        )

    async def _split(self, attempt: Attempt, known: Facts) -> Streams:
        with trio.fail_after(PATIENCE_S):
            streams = await self._roles.splitter(self._model(attempt.user)).split(attempt)
        facts = await self._facts(known, streams.protected)
        reusable = await self._in_thread(scan, streams.reusable, facts)
        protected = await self._in_thread(scan, streams.protected, Facts.of(()))
        secrets = dict(reusable.secrets)
        for type_, count in protected.secrets.items():
            secrets[type_] = secrets.get(type_, 0) + count
        return msgspec.structs.replace(
            streams,
            reusable=reusable.text,
            protected=protected.text,
            cut=reusable.cut,
            secrets=secrets,
        )

    async def _known(self, user: str, own: View) -> Facts:
        return Facts.of(()) if self._roles.trusting else await self.protected.facts(user, own)

    async def _facts(self, known: Facts, protected: str) -> Facts:
        """What must stand in nothing reusable: what is known, and this attempt's own."""
        if self._roles.trusting:
            return known
        return known | await self._in_thread(Facts.of, (protected,))

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await trio.to_thread.run_sync(partial(work, *args), limiter=self._guard)

    async def _near(self, view: View, stream: Stream, text: str) -> list[tuple[Held, Known]]:
        """Of the entries of ``stream`` that the pair may read those nearest to ``text``, filled up
        with the newest: what was learned a moment ago may have no vector yet."""
        vector = await self.embed(text)
        search = SearchQuery(
            text=text,
            k=NEAR,
            mode="hybrid",
            now=time.time_ns(),
            kinds=("lesson",),
            lexical_only=vector is None,
        )
        newest = ListQuery(limit=NEAR, now=time.time_ns(), kinds=("lesson",))
        candidates = {
            candidate.hit.unit.id: candidate
            for query in (search, newest)
            for candidate in self._store.select(view, query, vector).candidates
            if candidate.hit.unit.stream == stream
        }
        entries = self._store.sources(candidates)
        shown = [candidate for id_, candidate in candidates.items() if id_ in entries][:SHOWN]
        return [(held_of(c), known_of(c)) for c in shown]

    async def embed(self, text: str) -> Vector | None:
        """The vector of a text, in its turn; ``None`` where it has none."""
        done, found = trio.Event(), list[Vector | Exception]()

        def then(vector: Vector | Exception) -> None:
            found.append(vector)
            done.set()

        self._questions.ask(0, text, wanted=lambda: True, then=then)
        await done.wait()
        return None if isinstance(found[0], Exception) else found[0]
