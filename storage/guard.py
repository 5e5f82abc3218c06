"""The secrets guard at the one write door (promise ``secrets.never``).

Credentials and identity numbers give way to a placeholder that names their type
(``[secret:aws-key]``, ``[id:us-ssn]``). What was replaced is counted by type and never kept. All
else of the text stays, byte for byte.

- A number or a key is found whatever separators, full-width digits or invisible characters it is
  written with: detectors read a folded text (:mod:`isovist.storage.folding`).
- A placeholder is no secret: cleaning a clean text changes and counts nothing.
- Time is linear in the length of the text, for any text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from isovist.storage import assignments, credentials, identities
from isovist.storage.folding import Folded, Found, fold
from isovist.syscalls.operations import Op, Put, Replace

SECRETS = credentials.TYPES | assignments.TYPES | identities.SECRETS
"""Types written ``[secret:TYPE]``."""

IDENTITIES = identities.TYPES
"""Types written ``[id:TYPE]``: issued by governments and insurers."""

_PLACEHOLDER = re.compile(
    rf"\[(?:secret:(?:{'|'.join(sorted(SECRETS))})|id:(?:{'|'.join(sorted(IDENTITIES))}))\]"
)
_ROUNDS = 8
_VAGUE = frozenset({"password", "api-key", "bearer-token"})


class Cleaned(msgspec.Struct, frozen=True):
    """``counts``: type → how many stretches were replaced; empty iff ``text`` is unchanged."""

    text: str
    counts: dict[str, int]


def clean(text: str) -> Cleaned:
    """``text`` with a placeholder for each secret. Raises nothing, for any string."""
    counts: Counter[str] = Counter()
    # A replaced stretch ends what stood before it, so that its neighbour may show as a secret
    # of its own only now. Later rounds take whole words, so this ends soon.
    for number in range(_ROUNDS):
        found = find(text, whole=number >= 3)
        if not found:
            break
        pieces, at = [], 0
        for start, stop, type_ in found:
            pieces += [text[at:start], placeholder(type_)]
            at = stop
            counts[type_] += 1
        text = "".join([*pieces, text[at:]])
    return Cleaned(text, dict(counts))


def placeholder(type_: str) -> str:
    """What stands in a text for a secret of this type."""
    return f"[{'id' if type_ in IDENTITIES else 'secret'}:{type_}]"


def clean_op(op: Op) -> tuple[Op, dict[str, int]]:
    """``op`` with all its free text cleaned, and what was replaced, by type.

    Free text is the text, and keys and values of ``meta``; a value is judged as bound to its key
    (``{"password": …}``). Names (agent, user, session) stay: they are addresses, not content.
    """
    if isinstance(op, Replace):
        cleaned = clean(op.text)
        return (
            (msgspec.structs.replace(op, text=cleaned.text), cleaned.counts)
            if (cleaned.counts)
            else (op, {})
        )
    if not isinstance(op, Put):
        return op, {}
    cleaned = clean(op.text)
    counts = Counter(cleaned.counts)
    meta: dict[str, str] = {}
    for key, value in op.meta.items():
        name, held = clean(key), _bound(key, value)
        counts.update(name.counts)
        counts.update(held.counts)
        unique = name.text
        while unique in meta:  # two keys that were secrets of one type
            unique += "+"
        meta[unique] = held.text
    if not counts:
        return op, {}
    return msgspec.structs.replace(op, text=cleaned.text, meta=meta), dict(counts)


def _bound(key: str, value: str) -> Cleaned:
    """``value`` cleaned as it stands, and as what ``key`` is bound to."""
    alone = clean(value)
    head = f"{key}="
    both = clean(head + alone.text)
    if not both.counts or not both.text.startswith(head):
        return alone
    return Cleaned(both.text[len(head) :], dict(Counter(alone.counts) + Counter(both.counts)))


def find(text: str, *, whole: bool = False) -> list[Found]:
    """The stretches of ``text`` to replace, in order, disjoint."""
    masked = text
    if "[secret:" in text or "[id:" in text:
        # Ends of lines, as no pattern's value holds one.
        masked = _PLACEHOLDER.sub(lambda m: "\n" * len(m[0]), text)
    folded = fold(masked)
    raw = sorted(_detect(folded), key=lambda f: (f.start, -f.stop))
    if not raw:
        return []
    merged: list[Found] = []
    for found in raw:
        if whole:
            found = _widened(folded.text, found)
        if merged and found.start < merged[-1].stop:
            last = merged[-1]
            type_ = found.type if last.type in _VAGUE and found.type not in _VAGUE else last.type
            merged[-1] = Found(last.start, max(last.stop, found.stop), type_)
        else:
            merged.append(found)
    return [folded.back(found) for found in merged]


def _detect(folded: Folded) -> Iterator[Found]:
    yield from credentials.credentials(folded)
    yield from assignments.assignments(folded)
    yield from identities.identities(folded)


def _widened(text: str, found: Found) -> Found:
    start, stop = found.start, found.stop
    while start and not text[start - 1].isspace():
        start -= 1
    while stop < len(text) and not text[stop].isspace():
        stop += 1
    return Found(start, stop, found.type)
