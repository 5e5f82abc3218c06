"""The review of what was learned: what changed is judged again, and twins become one [M].

Stage 1 re-scopes entries, one step at a time; stage 2 merges those that share situation *and*
behaviour, inside one destination and one stream. Both look at what has changed since the last
review and at its nearest neighbours, so that a review costs what changed and not what is stored.

A :class:`Judge` proposes, and is told texts alone: no counts, no outcomes, no origins. What it says
is held to the rules here, whoever it is. What comes out are proposals, each with the versions that
it was made from; the store takes one only if those still stand (compare-and-swap).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from typing import Any, Literal, Protocol

import msgspec
import trio

from isovist.kernel.learning import clusters
from isovist.kernel.learning.likeness import covers, features
from isovist.kernel.state.lessons import CAP, MAX_LESSON, MAX_SITUATION, Held
from isovist.syscalls.records import Stream

BATCH = 30
"""Entries that a judge is shown at a time [M]."""
NEAREST = 9
"""Neighbours of a changed entry that are looked at."""

STEPS: dict[str, tuple[str, ...]] = {
    "pair": ("user", "agent"),
    "user": ("pair", "global"),
    "agent": ("pair", "global"),
    "global": ("user", "agent"),
}
"""Scopes one step away: each step opens or closes one axis of the product users × agents."""
WIDER = {"pair": ("user", "agent"), "user": ("global",), "agent": ("global",), "global": ()}
"""Those of them that open an axis."""
OPEN_TO_USERS = frozenset({"agent", "global"})
"""Scopes that reach other users than the one who an entry comes from."""

Widen = Literal["pairs", "person"]
"""What a step to other users needs beside a reusable stream: a second, independent pair that wrote
the same thing, or a person, who moves it by hand: then no review does."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is new or has another version since the last review.

    ``destination`` is where it is kept (opaque; entries of two are never compared). ``witnessed``:
    two independent pairs at least wrote it, which is for the gate here and no judge sees.
    """

    held: Held
    destination: Any
    witnessed: bool = False


class Near(Protocol):
    async def __call__(self, held: Held, destination: Hashable, k: int) -> Sequence[Held]:
        """At most ``k`` entries of this destination and of the stream of ``held``, nearest first
        by both legs. ``held`` itself may be among them."""
        ...


class Said(msgspec.Struct, frozen=True):
    """All that a judge is shown of an entry."""

    situation: str
    lesson: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """At most :data:`BATCH` entries of one destination and stream, neighbours side by side."""

    stream: Stream
    scope: str
    entries: tuple[Said, ...]


class Step(msgspec.Struct, frozen=True):
    """That entry number ``entry`` (from 0) of a batch belongs to ``to``; where the judge is not
    ``sure``, only if a second pair wrote the same, whatever axis it opens."""

    entry: int
    to: str
    sure: bool = True


class Union(msgspec.Struct, frozen=True):
    """That these entries of a batch (numbers from 0) say the same thing, and how to say it."""

    entries: tuple[int, ...]
    situation: str
    lesson: str


class Spent(msgspec.Struct):
    """What a judge has spent so far: questions to its model, of which no answer could be used, and
    tokens."""

    questions: int = 0
    unusable: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Judge(Protocol):
    """Says what it can; of entries about which it has no answer, nothing."""

    @property
    def spent(self) -> Spent: ...

    async def steps(self, batch: Batch) -> Sequence[Step]:
        """Which entries belong to a scope one step away."""
        ...

    async def unions(self, batch: Batch) -> Sequence[Union]:
        """Which entries are one."""
        ...


class Rescope(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    id: str
    version: int
    to_scope: str


class Merge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One entry in place of ``parts`` (id, version). The store gives it their origins, and as its
    boundary the meet of theirs."""

    parts: tuple[tuple[str, int], ...]
    situation: str
    lesson: str


Proposal = Rescope | Merge


class Reviewed(msgspec.Struct, kw_only=True):
    """What a review did. ``changed`` entries were to be reviewed, ``shown`` were looked at (their
    neighbours too) in ``batches``. ``withheld``: steps that the gate stopped;
    ``refused``: what a judge proposed against the rules. ``unusable`` of a model's ``questions``
    had no answer of use: what they were about stays as it is."""

    changed: int = 0
    shown: int = 0
    batches: int = 0
    rescopes: int = 0
    merges: int = 0
    merged: int = 0
    withheld: int = 0
    refused: int = 0
    questions: int = 0
    unusable: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals, no entry in two of them, and a summary."""

    proposals: tuple[Proposal, ...]
    reviewed: Reviewed


async def review(
    changed: Iterable[Changed],
    near: Near,
    judge: Judge,
    *,
    widen: Widen = "pairs",
    nearest: int = NEAREST,
    batch: int = BATCH,
) -> Review:
    """Review what changed. Order and result are functions of the entries and of what ``near`` and
    ``judge`` say; ``nearest`` is less than ``batch``."""
    if not 0 < nearest < batch:
        raise ValueError(f"{nearest} neighbours and the entry itself do not fit into {batch}")
    before = copy(judge.spent)
    run = _Run(near, judge, widen, nearest, batch)
    for group in _groups(changed):
        await run.rescope(group)
        await run.merge(group)
    for field in Spent.__struct_fields__:
        setattr(run.reviewed, field, getattr(judge.spent, field) - getattr(before, field))
    return Review(proposals=tuple(run.proposals), reviewed=run.reviewed)


def step_allowed(stream: Stream, scope: str, to: str) -> bool:
    """Whether an entry of ``stream`` and ``scope`` may ever be moved to ``to`` in one step."""
    return to in STEPS.get(scope, ()) and to in CAP[stream]


def _groups(changed: Iterable[Changed]) -> list[list[Changed]]:
    """By destination, scope and stream, each in an order that the texts make."""
    latest = {entry.held.id: entry for entry in changed}
    groups: dict[object, list[Changed]] = {}
    for entry in sorted(latest.values(), key=lambda entry: _key(entry.held)):
        place = (entry.destination, entry.held.scope, entry.held.stream)
        groups.setdefault(place, []).append(entry)
    return list(groups.values())


def _key(held: Held) -> tuple[str, ...]:
    return held.scope, held.stream, held.situation, held.lesson, held.id


class _Run:
    """One review. ``_taken`` are the entries that a proposal is about: no other may be."""

    def __init__(self, near: Near, judge: Judge, widen: Widen, nearest: int, batch: int) -> None:
        self._near, self._judge, self._widen = near, judge, widen
        self._nearest, self._batch = nearest, batch
        self._taken: set[str] = set()
        self.proposals: list[Proposal] = []
        self.reviewed = Reviewed()

    # -- stage 1

    async def rescope(self, group: list[Changed]) -> None:
        self.reviewed.changed += len(group)
        for start in range(0, len(group), self._batch):
            part = group[start : start + self._batch]
            said = self._shown([entry.held for entry in part])
            for step in await self._judge.steps(said):
                self._step(part, step)

    def _step(self, part: list[Changed], step: Step) -> None:
        if not 0 <= step.entry < len(part):
            self.reviewed.refused += 1
            return
        entry = part[step.entry]
        held = entry.held
        if held.id in self._taken or not step_allowed(held.stream, held.scope, step.to):
            self.reviewed.refused += 1
        elif not self._may(entry, step):
            self.reviewed.withheld += 1
        else:
            self._taken.add(held.id)
            self.proposals.append(Rescope(id=held.id, version=held.version, to_scope=step.to))
            self.reviewed.rescopes += 1

    def _may(self, entry: Changed, step: Step) -> bool:
        """The gate: opening the user axis exposes an entry to others, and closing an axis takes it
        from another pair that wrote it too."""
        was, to = entry.held.scope, step.to
        if to in OPEN_TO_USERS and was not in OPEN_TO_USERS:
            return self._widen == "pairs" and entry.witnessed
        if to in WIDER[was]:
            return step.sure or entry.witnessed
        return not entry.witnessed

    # -- stage 2

    async def merge(self, group: list[Changed]) -> None:
        found: list[tuple[Held, tuple[Held, ...]]] = []
        for entry in group:
            held = entry.held
            if held.id in self._taken:
                continue
            nearest = await self._near(held, entry.destination, self._nearest + 1)
            fit = (
                other
                for other in nearest
                if other.id not in (held.id, *self._taken)
                and (other.scope, other.stream) == (held.scope, held.stream)
            )
            found.append((held, tuple(fit)[: self._nearest]))
        for entries in await clusters.batches(found, self._batch):
            left = [held for held in entries if held.id not in self._taken]
            if len(left) < 2:
                continue
            unions = await self._judge.unions(self._shown(left))
            allowed = await trio.to_thread.run_sync(_allowed, left, unions)
            self.reviewed.refused += len(unions) - len(allowed)
            for union in allowed:
                self._union([left[number] for number in union.entries], union)

    def _union(self, parts: list[Held], union: Union) -> None:
        if any(part.id in self._taken for part in parts):
            self.reviewed.refused += 1
            return
        self._taken.update(part.id for part in parts)
        self.proposals.append(
            Merge(
                parts=tuple((part.id, part.version) for part in parts),
                situation=union.situation,
                lesson=union.lesson,
            )
        )
        self.reviewed.merges += 1
        self.reviewed.merged += len(parts)

    def _shown(self, entries: Sequence[Held]) -> Batch:
        self.reviewed.batches += 1
        self.reviewed.shown += len(entries)
        first = entries[0]
        said = tuple(Said(held.situation, held.lesson) for held in entries)
        return Batch(stream=first.stream, scope=first.scope, entries=said)


def _allowed(entries: Sequence[Held], unions: Sequence[Union]) -> list[Union]:
    return [union for union in unions if _valid(entries, union)]


def _valid(entries: Sequence[Held], union: Union) -> bool:
    """Whether the rules allow a union: of entries of the batch, each once, two at least, whose
    parts all :func:`stand <isovist.kernel.learning.likeness.covers>` in the new text."""
    numbers = union.entries
    if len(numbers) < 2 or len(set(numbers)) < len(numbers):
        return False
    if not all(0 <= number < len(entries) for number in numbers):
        return False
    if not 0 < len(union.situation) <= MAX_SITUATION or "\n" in union.situation:
        return False
    if not 0 < len(union.lesson) <= MAX_LESSON:
        return False
    parts = [features(entries[number].situation, entries[number].lesson) for number in numbers]
    return covers(features(union.situation, union.lesson), parts)
