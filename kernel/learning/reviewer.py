"""The shell's part of a review: what has changed, what is near to it, and who judges.

A review reads the store through the view of everything, which no agent ever has; what it makes goes
back as proposals, which the pure kernel holds against the rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
import trio

from isovist.kernel.learning.likeness import features, same
from isovist.kernel.learning.nearest import nearest
from isovist.kernel.learning.protected import Protected
from isovist.kernel.learning.review import Changed, Judge, Merge, Rescope, Review, Widen, review
from isovist.kernel.learning.scan import scan
from isovist.kernel.log import where
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.lessons import Held, Part, Proposed, held_of, parts_of, stream_of
from isovist.kernel.state.views import part_of
from isovist.kernel.writer import Writer as Thread
from isovist.storage.backend import Backend
from isovist.storage.dense import Vector
from isovist.storage.learning import Source
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.operations import Candidate, ReadQuery, SearchQuery
from isovist.syscalls.records import Axis, Partition, Unit, View, partition_of

log = structlog.get_logger()

MOST = 1000
"""Changed entries that one review looks at; more are left to the next."""
WITNESSES = 12
"""Entries near to one by which a second user is looked for who has learned the same."""


class Judging(msgspec.Struct, frozen=True):
    """Who judges: made anew for each review. ``name`` is how reports call it."""

    judge: Callable[[], Judge]
    name: str
    widen: Widen = "pairs"


class Library(Protocol):
    """What of the learner a review needs; see :class:`isovist.kernel.learning.pipeline.Learner`."""

    @property
    def protected(self) -> Protected: ...
    async def embed(self, text: str) -> Vector | None: ...


class Reviewer:
    """Carries out ``Review`` and ``KeepReview``."""

    def __init__(
        self,
        store: Backend,
        writer: Thread,
        nursery: trio.Nursery,
        judging: Judging,
        library: Library,
        *,
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
    ) -> None:
        self._store, self._writer, self._nursery = store, writer, nursery
        self._judging, self._library = judging, library
        self._now, self._dispatch = now, dispatch

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.Review: lambda i: self._nursery.start_soon(self._review, i),
            ins.KeepReview: self._keep,
        }

    def _keep(self, i: ins.KeepReview) -> None:
        def then(e: Exception | None) -> None:
            if e is not None:
                log.warning("a review will look at the same again", why=str(e))
            self._dispatch(ev.ReviewKept(now=self._now()))

        self._writer.run(partial(self._store.entries_looked_at, i.entries), then)

    async def _review(self, i: ins.Review) -> None:
        try:
            made = await self._made(i.view)
        except Exception as e:
            errno, message = int(Errno.EKERNEL), f"the review broke: {type(e).__name__}"
            if isinstance(e, IsovistError):
                errno, message = int(e.errno), e.message
            else:
                log.error("broken rule", rule="reviews raise typed errors only", why=where(e))
            made = ev.ReviewMade(now=self._now(), errno=errno, message=message)
        self._dispatch(made)

    async def _made(self, view: View) -> ev.ReviewMade:
        found: dict[str, Candidate] = {}
        changed: list[Changed] = []
        for unit in self._store.fresh_entries(MOST):
            query = ReadQuery(id=unit, now=time.time_ns())
            for candidate in self._store.select(view, query).candidates:
                found[unit] = candidate
                held = held_of(candidate)
                changed.append(
                    Changed(
                        held=held,
                        destination=candidate.partition,
                        witnessed=await self._witnessed(view, candidate, held),
                    )
                )
            await trio.lowlevel.checkpoint()

        async def near(held: Held, destination: Hashable, k: int) -> Sequence[Held]:
            if not isinstance(destination, Partition):
                return ()
            others = await self._near(part_of(view, (destination,)), held, k)
            found.update((c.hit.unit.id, c) for c in others)
            return [held_of(c) for c in others]

        judge = self._judging.judge()
        result = await review(changed, near, judge, widen=self._judging.widen)
        proposals = await self._proposals(view, result, found)
        touched = {part.id for one in proposals for part in one.parts}
        told = result.reviewed
        return ev.ReviewMade(
            now=self._now(),
            proposals=proposals,
            looked_at=tuple(
                (c.held.id, c.held.version) for c in changed if c.held.id not in touched
            ),
            changed=len(changed),
            shown=told.shown,
            batches=told.batches,
            judge=self._judging.name,
            tokens=told.prompt_tokens + told.output_tokens,
        )

    async def _proposals(
        self, view: View, result: Review, found: dict[str, Candidate]
    ) -> tuple[Proposed, ...]:
        proposals: list[Proposed] = []
        for proposal in result.proposals:
            if isinstance(proposal, Rescope):
                candidate = found[proposal.id]
                to = self._target(candidate, proposal.to_scope)
                if to is not None and not await self._tells(view, candidate, to):
                    part = _part(candidate, proposal.version)
                    proposals.append(Proposed(parts=(part,), to=to))
            elif isinstance(proposal, Merge):
                parts = tuple(_part(found[id_], version) for id_, version in proposal.parts)
                proposals.append(
                    Proposed(parts=parts, situation=proposal.situation, lesson=proposal.lesson)
                )
        return tuple(proposals)

    async def _tells(self, view: View, candidate: Candidate, to: Partition) -> bool:
        """Whether an entry that is to be opened to other users holds what is protected of one whom
        it comes from: more may be known as protected today than when it was written."""
        if to.users.kind == "one" or candidate.partition.users.kind != "one":
            return False
        for user in {candidate.partition.users.name, *self._users(candidate)}:
            own = (p for p in view.partitions if p.users == Axis("one", user))
            facts = await self._library.protected.facts(user, part_of(view, own))
            if (await trio.to_thread.run_sync(scan, candidate.hit.unit.text, facts)).cut:
                return True
        return False

    def _target(self, candidate: Candidate, scope: str) -> Partition | None:
        """Where an entry goes. Along an axis that it leaves open and closes now it becomes that of
        its only origin; where there are several, or none is known, it stays."""
        source = candidate.partition
        origins = self._sources(candidate).origins
        users, agents = {o.user for o in origins}, {o.agent for o in origins}
        user = source.users.name or (users.pop() if len(users) == 1 else "")
        agent = source.agents.name or (agents.pop() if len(agents) == 1 else "")
        if (scope in ("pair", "user") and not user) or (scope in ("pair", "agent") and not agent):
            return None
        return partition_of(scope, user, agent)

    # -- what is near

    async def _near(self, view: View, held: Held, k: int) -> list[Candidate]:
        """Other entries of the same stream, nearest first."""
        found: dict[str, Candidate] = {}

        async def search(query: SearchQuery) -> list[Unit]:
            vector = None if query.lexical_only else await self._library.embed(query.text)
            query = msgspec.structs.replace(query, lexical_only=vector is None)
            candidates = self._store.select(view, query, vector).candidates
            entries = self._store.sources([c.hit.unit.id for c in candidates])
            found.update((c.hit.unit.id, c) for c in candidates if c.hit.unit.id in entries)
            return [c.hit.unit for c in candidates if c.hit.unit.id in entries]

        return [found[one.id] for one in await nearest(search, held, k, time.time_ns())]

    async def _witnessed(self, view: View, candidate: Candidate, held: Held) -> bool:
        """Whether a second user's pair has learned the same: this very entry, or, as long as it is
        kept for one user alone, one of another user that says the same."""
        users = self._users(candidate)
        if len(users) > 1:
            return True
        if held.stream == "protected" or candidate.partition.users.kind != "one":
            return False
        mine = features(held.situation, held.lesson)
        for other in await self._near(view, held, WITNESSES):
            theirs = self._users(other)
            if theirs - users and same(mine, features(*parts_of(other.hit.unit.text))):
                return True
        return False

    def _users(self, candidate: Candidate) -> set[str]:
        return {origin.user for origin in self._sources(candidate).origins}

    def _sources(self, candidate: Candidate) -> Source:
        unit = candidate.hit.unit.id
        return self._store.sources((unit,)).get(unit) or Source(writer="", origins=())


def _part(candidate: Candidate, version: int) -> Part:
    return Part(
        id=candidate.hit.unit.id,
        version=version,
        partition=candidate.partition,
        stream=stream_of(candidate),
    )
