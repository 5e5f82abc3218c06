"""What the kernel asks of a store: writes that carry their sequence, reads that carry a view.

These values cross no pipe today; they are plain Structs so that a store can move to a process
of its own. A write is an ``Op``: the kernel has already issued its sequence number in its
partition. A read is a ``Query``, and goes together with a sealed ``View``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.records import Hit, Message, Mode, Partition, Tool, Unit

NEXT_ROUND = -1
"""As ``Put.round``: one more than the highest round of its session that is stored (1 in a new
one). The store finds it where it commits, so no two writes get the same; ``Outcome.op`` says which
it was."""


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the unit of a ``Put`` or ``Replace`` an entry, in the same transaction: ``writer`` has
    written it, it comes from ``submission`` (empty: from none; one that is not stored any more is
    ``ENOENT``, since its user was forgotten), and from all that the entries ``parts`` come from."""

    writer: str
    submission: str = ""
    parts: tuple[str, ...] = ()


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """Store a new unit. ``id`` is the opaque id made from ``partition`` and ``seq``.

    Where the same pair already holds, in force in this partition, the same text of the same kind,
    session and round with the same stream, expiry and metadata, the store keeps the old unit and
    says so (``Outcome.duplicate``); not so where this one supersedes what the old one does not.

    What it supersedes must be a living unit of the same pair (else ``ENOENT``) that no other
    living unit of that pair in ``partition`` supersedes yet (else ``ESTALE``, which names it).
    """

    partition: Partition
    seq: int
    id: str
    text: str
    kind: str
    agent: str
    user: str
    stream: str
    said_at: int
    stored_at: int
    session: str = ""
    round: int = 0
    expires_at: int | None = None
    supersedes: str = ""
    meta: dict[str, str] = {}
    handle: str = ""
    """The opaque name of the owner's session; empty without one."""
    version: int = 1
    """Above 1 only for a unit that comes from an export."""
    born_at: int = 0
    """Above 0 only for a unit that comes from an export: when it came into its partition. Such a
    unit is itself and no other's twin or rival, and may supersede what is gone, or comes later."""
    learned: Learned | None = None


class Replace(msgspec.Struct, frozen=True, kw_only=True):
    """Give unit ``id`` a new text iff its version is ``version``; the new version is one more."""

    partition: Partition
    seq: int
    id: str
    version: int
    text: str
    stored_at: int
    learned: Learned | None = None


class Expire(msgspec.Struct, frozen=True, kw_only=True):
    """Let unit ``id`` expire at ``expires_at`` (ns; ``None``: never) iff its version is
    ``version``; the new version is one more. Its text and vectors stay."""

    partition: Partition
    seq: int
    id: str
    version: int
    expires_at: int | None
    stored_at: int


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Re-scope: take unit ``id`` out of ``partition`` (where ``seq`` counts) into ``to`` (where
    ``to_seq`` counts) iff its version is ``version``; the new version is one more.

    The id stays. In ``to`` the unit is new: its place in lists is that of ``to_seq`` and
    ``stored_at``. A twin there is ``EEXIST``. Vectors that are there move along; where they are
    lacking, ``Outcome.chunks`` asks for them anew, under ``to`` and ``to_seq``.
    """

    partition: Partition
    seq: int
    id: str
    version: int
    to: Partition
    to_seq: int
    stored_at: int
    owner: tuple[str, str] | None = None
    """(user, agent) that own the unit from now on; ``None``: as before."""
    hidden: Literal["", "away", "back"] = ""
    """``away``: the audience that it leaves is noted, until it goes ``back``; either way a twin in
    ``to`` is no hindrance."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of ``user`` that reaches others than its owner's pair, and where ``to`` move it: into
    that pair. Of one that was hidden: from there ``to`` where it was."""

    id: str
    version: int
    user: str
    partition: Partition
    to: Partition


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """Remove unit ``id``, with ``version`` above 0 iff it has that version. ``receipt`` (if any)
    is entered as asked for in the same transaction.

    What it supersedes passes to the units of its own partition and pair that supersede it
    (``Outcome.heirs``): what stood behind it must not come to light while they stand.
    """

    partition: Partition
    seq: int
    id: str
    receipt: str = ""
    stored_at: int = 0
    version: int = 0
    expired: bool = False
    """Only where it has expired by ``stored_at``, else ``ESTALE``: it was given more time."""


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    """The dense leg of an earlier write: one float16 vector a chunk, as bytes, in chunk order.

    Has no effect where the unit has since gone or has another version.
    """

    partition: Partition
    seq: int
    id: str
    version: int
    model: str
    vectors: tuple[bytes, ...]


Op = Put | Replace | Expire | Move | Drop | Vectors


class Held(msgspec.Struct, frozen=True):
    """What a pair has stored, or how that changes: units, and the bytes of their texts."""

    agent: str
    user: str
    units: int
    bytes: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ``Op``, durable when it is given out. ``errno`` 0 iff it took effect.

    ``chunks`` are the texts that the dense leg still needs vectors for (empty for ``Drop``,
    ``Expire``, ``Vectors``, duplicates, and a ``Move`` whose vectors moved along). ``op`` holds
    what was stored: secrets are replaced in it, and ``secrets`` counts them by type.
    """

    op: Op
    errno: int = 0
    message: str = ""
    id: str = ""
    version: int = 0
    duplicate: bool = False
    chunks: tuple[str, ...] = ()
    secrets: dict[str, int] = {}
    field: str = ""
    """The field of the request that a refusal is about; empty: none of them alone."""
    heirs: tuple[str, ...] = ()
    """``Drop``: ids, in order, of the units that now supersede what the dropped one did."""
    held: tuple[Held, ...] = ()
    """By how much there is more, and of whom."""


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The ``k`` best units for ``text``. ``now`` hides what has expired; times in ns, UTC.

    ``lexical_only`` leaves the dense leg out (an embedder that does not answer).
    """

    text: str
    k: int
    mode: Mode
    now: int
    since: int | None = None
    until: int | None = None
    kinds: tuple[str, ...] = ()
    lexical_only: bool = False


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The unit with this id, if the view holds it; ``expired``: also where it has expired and is
    not swept yet."""

    id: str
    now: int
    expired: bool = False


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """``limit`` units, newest first, from where the page before ended: ``after`` is its
    ``Selection.next`` (empty: from the start; anything else is ``EINVAL``)."""

    limit: int
    now: int
    after: str = ""
    kinds: tuple[str, ...] = ()


class MatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A ``ListQuery`` that gives, of the ``limit`` units of its page, those alone that are the
    reader's own, said within [``since``, ``until``), and fit ``text``: see
    :mod:`isovist.storage.matching`, by which a ``text`` that names nothing is ``EINVAL``. What has
    expired and is not swept yet is among them: it is asked what is to be forgotten.

    A page may be empty and yet have a ``Selection.next``.
    """

    text: str
    limit: int
    now: int
    after: str = ""
    since: int | None = None
    until: int | None = None
    kinds: tuple[str, ...] = ()


class RoundsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The living units of the view in these stretches of sessions.

    ``wanted`` holds (handle, first round, last round), both inclusive. The answer has the
    stretches in the order asked, each by round, then by order of storing; no unit twice, at most
    ``limit`` units, and no more text than a page of a list holds. ``Selection.next`` is not empty
    iff some were left out; it continues nothing.
    """

    wanted: tuple[tuple[str, int, int], ...]
    now: int
    limit: int = 500


class CountQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How many living units each partition of the view holds: ``Selection.counts``."""

    now: int
    kinds: tuple[str, ...] = ()


Query = SearchQuery | ReadQuery | ListQuery | MatchQuery | RoundsQuery | CountQuery


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A hit with what ranking and rendering need beside what a reply shows.

    ``partition`` and ``owner_*`` are the unit's own (a reply hides another user's names).
    ``cosine`` in [-1, 1] (0 where the dense leg was left out); ``coverage`` in [0, 1] is the
    share of the query's idf mass that the unit's best chunk holds. Both are absolute, so a floor
    of relevance can be set on them; ``hash`` is the text's.
    """

    hit: Hit
    partition: Partition
    owner_agent: str
    owner_user: str
    cosine: float
    coverage: float
    hash: str
    owner_session: str = ""
    """What the owner calls the session."""
    born_at: int = 0
    """When the unit came into its partition (ns): no update changes that."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query, best first (search) or newest first (list).

    ``next`` is an opaque cursor to the page that follows, empty on the last one. It depends on
    the view alone and names no unit: forgetting or expiring one breaks no walk.
    """

    candidates: tuple[Candidate, ...] = ()
    next: str = ""
    counts: tuple[int, ...] = ()
    """One number a partition of the view, in its order (``CountQuery`` alone)."""

    def units(self) -> tuple[Unit, ...]:
        return tuple(c.hit.unit for c in self.candidates)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a demand to forget: asked for at ``asked_at``; ``issued_at`` (0: not yet)
    is when nothing of it was left in any file of the store. ``units`` are the forgotten ids."""

    id: str
    asked_at: int
    issued_at: int
    units: tuple[str, ...]


class Lapsed(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that has expired and is still stored: where, which, and whose (agent)."""

    partition: Partition
    id: str
    version: int
    agent: str
    kind: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as found at start: the last sequence issued, and what lacks its vectors."""

    partition: Partition
    accepted: int
    lacking: tuple[tuple[int, str, int, tuple[str, ...]], ...] = ()
    """(seq, unit id, version, chunk texts) of each unit without vectors."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of the pair (``user``, ``agent``) that is kept under ``name``. ``id`` is
    opaque and of this one save alone: what a model holds of it lies in a file of that name.
    ``tools`` and ``choice`` are what the model looks for that with; no store keeps them."""

    user: str
    agent: str
    name: str
    id: str
    model: str
    messages: tuple[Message, ...]
    saved_at: int
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
