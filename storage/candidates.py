"""What a reader is shown of a stored unit, the same from every engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from isovist.storage.chunks import Span
from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Hit, Partition, Reader, Unit


def candidate(
    reader: Reader,
    partition: Partition,
    unit: Unit,
    spans: Sequence[Span],
    hash_: str,
    *,
    born_at: int = 0,
    number: int = 0,
    score: float = 0.0,
    cosine: float = 0.0,
    coverage: float = 0.0,
) -> Candidate:
    """``unit`` is whole and names its owner; of another user neither the name is shown nor what
    that user's session is called. ``number`` is the chunk that was found."""
    shown = unit
    if unit.user != reader.user:
        shown = msgspec.structs.replace(unit, user="", session="")
    return Candidate(
        hit=Hit(unit=shown, chunk=spans[number].cut(unit.text), score=score),
        partition=partition,
        owner_agent=unit.agent,
        owner_user=unit.user,
        cosine=cosine,
        coverage=coverage,
        hash=hash_,
        owner_session=unit.session,
        born_at=born_at,
    )
