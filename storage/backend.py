"""What a store of units must do. One conformance suite runs over all that do it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from isovist.storage.agents import Permissions
from isovist.storage.chronicle import Head
from isovist.storage.contexts import Ready
from isovist.storage.dense import Vector
from isovist.storage.holdings import SetLimits
from isovist.storage.learning import Filed, Source, Work
from isovist.syscalls.abi.files import FileInfo, FileVersion
from isovist.syscalls.abi.timers import Timer
from isovist.syscalls.file_operations import Changed, FileChange, HeldFile
from isovist.syscalls.ledger import Entry, Question
from isovist.syscalls.manifest import Approval
from isovist.syscalls.messages import Record
from isovist.syscalls.operations import (
    Context,
    Held,
    Lapsed,
    Op,
    Outcome,
    Published,
    Query,
    Receipt,
    Restored,
    Selection,
)
from isovist.syscalls.records import (
    Partition,
    SavedContext,
    Submission,
    ToolRule,
    Usage,
    View,
)

Grants = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""By agent: the users it may serve, the scopes it may publish to."""
Groups = dict[tuple[str, str], tuple[str, ...]]
"""By axis (``users`` or ``agents``) and name: the members, sorted."""
Owed = tuple[list[str], int]
"""What a scrub owes: receipts that were asked for, and how often a unit was dropped. Where it is
neither, what is to be erased was in no unit, so the kernel gave it to no model."""


class Backend(Protocol):
    """A store of units.

    ``commit``, ``save_*``, ``drop_*`` and ``purge`` may be called in any one thread at a time (the
    writer's), ``scrub`` and ``backup`` in any; everything else belongs to the loop's thread.
    """

    @property
    def key(self) -> bytes:
        """16 random bytes, drawn once in the store's life: the kernel makes opaque ids of them."""
        ...

    def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        """Make a group durable in one transaction; one outcome an operation, in order. Never
        raises for what befalls the disk: then all outcomes carry ``ENOSPC`` or ``EIO`` and
        nothing of the group is kept. An operation that meets a bug of the store carries
        ``EKERNEL`` and no word of what it held; the others of its group take effect. Nothing is
        visible before :meth:`apply`."""
        ...

    def apply(self, outcomes: Sequence[Outcome]) -> None:
        """Make what was committed visible to :meth:`select`, in the order of commit."""
        ...

    def select(self, view: View, query: Query, vector: Vector | None = None) -> Selection:
        """The only read of units. Raises :class:`KernelError` without a ``View``."""
        ...

    def restore(self) -> tuple[Restored, ...]:
        """Make everything found at start visible; once, before the first :meth:`select`."""
        ...

    def save_records(self, records: Sequence[Record]) -> None: ...

    def record(self, call: str) -> Record | None: ...

    def usage(self, by: str, since: int, until: int | None) -> tuple[Usage, ...]:
        """The records of chats that ended from ``since`` on and before ``until`` (ns since 1970
        UTC), added up ``by`` agent, user or model, in order of name. In any thread."""
        ...

    def save_grant(
        self,
        agent: str,
        users: Sequence[str],
        scopes: Sequence[str],
        mail: Sequence[str] = (),
        tools: Sequence[ToolRule] = (),
    ) -> None:
        """What ``agent`` holds from now on; nothing of all removes it."""
        ...

    def grants(self) -> Grants:
        """Users and scopes, by agent."""
        ...

    def permissions(self) -> Permissions: ...

    def save_approval(
        self,
        agent: str,
        approval: Approval | None,
        users: Sequence[str],
        scopes: Sequence[str],
        mail: Sequence[str],
        tools: Sequence[ToolRule],
    ) -> None:
        """What of ``agent`` is approved from now on (``None``: nothing), and, with it, what it
        holds."""
        ...

    def save_distrust(self, agent: str, on: bool) -> None:
        """Whether ``agent`` is distrusted from now on."""
        ...

    def distrusted(self) -> tuple[str, ...]: ...

    def published(
        self, agent: str, hidden: bool, limit: int, skip: Collection[tuple[str, int]] = ()
    ) -> tuple[Published, ...]:
        """At most ``limit`` of the units that ``agent`` published and that reach others than their
        owner's pair, but for these (id, version); ``hidden``: of those that were hidden. Looks at
        every unit. In any thread."""
        ...

    def approvals(self) -> dict[str, Approval]: ...

    def save_group(self, of: str, name: str, members: Sequence[str]) -> None:
        """Who is in a group from now on; one without members stays known by its name."""
        ...

    def groups(self) -> Groups: ...

    # -- quotas

    def holdings(self) -> tuple[Held, ...]:
        """What each pair has stored."""
        ...

    def save_limits(self, axis: str, name: str, figures: Mapping[str, int]) -> None:
        """Limits that are set for an agent or a user from now on; nothing removes them."""
        ...

    def limits(self) -> SetLimits: ...

    # -- the chronicle

    def head(self) -> Head:
        """The last line of the chronicle that the store knows of."""
        ...

    def save_head(self, head: Head) -> None:
        """A line is in the chronicle; may come to disk with a later write alone."""
        ...

    def pseudonyms(self, users: Collection[str]) -> dict[str, str]:
        """Under which names these users stand in the chronicle; drawn where there is none, and
        gone with :meth:`purge`."""
        ...

    # -- contexts

    def save_context(self, ready: Ready, most: int, most_bytes: int) -> str:
        """Make a context durable, in place of what its pair kept under its name, of which this is
        the id (empty: nothing). Raises ``EDQUOT`` where the pair would keep more than ``most``, or
        more than ``most_bytes`` of messages; and :class:`WorldError`."""
        ...

    def context(self, user: str, agent: str, name: str) -> Context | None:
        """The only read of a context's text, by the pair that keeps it."""
        ...

    def contexts(self, user: str, agent: str) -> tuple[SavedContext, ...]:
        """What the pair keeps, by name."""
        ...

    def drop_context(self, user: str, agent: str, name: str) -> str:
        """Remove it, durably; its id (empty: there was none). Raises :class:`WorldError`."""
        ...

    def context_ids(self) -> frozenset[str]:
        """The ids of all contexts: which files of models' states mean anything."""
        ...

    # -- learning

    def submit(self, filed: Filed, most: int) -> tuple[Submission, bool]:
        """Make a submission durable; or find that its pair has one of this key (true). Raises
        ``EAGAIN`` where ``most`` of the pair wait already; and :class:`WorldError`."""
        ...

    def save_step(self, report: Submission, work: Work) -> bool:
        """What is told of a submission so far, and what its next step needs; false where it is
        there no more. Raises :class:`WorldError`."""
        ...

    def conclude(self, report: Submission) -> bool:
        """What is told of the submission from now on; its text goes with its end. False where it
        is there no more. Raises :class:`WorldError`."""
        ...

    def submission(self, id: str) -> tuple[Submission, Work | None] | None:
        """A submission, and what its next step needs (``None``: it has ended). For the learner,
        and for whoever may be told of it."""
        ...

    def submissions(self, user: str, agent: str, limit: int) -> tuple[Submission, ...]:
        """The latest of a pair, newest first; an empty name stands for all."""
        ...

    def unlearned(self) -> tuple[tuple[str, str, str], ...]:
        """(id, user, agent) of all that wait, in order of arrival."""
        ...

    def sources(self, units: Collection[str]) -> dict[str, Source]:
        """Where those of these units come from that are entries. For units that were selected."""
        ...

    def from_user(self, user: str) -> frozenset[str]:
        """Ids of the entries that come from the user's attempts."""
        ...

    def fresh_entries(self, limit: int) -> tuple[str, ...]:
        """Ids of entries that no review has seen as they are."""
        ...

    def entries_looked_at(self, entries: Sequence[tuple[str, int]]) -> None:
        """A review has seen these (id, version)."""
        ...

    def save_consent(self, user: str, choice: str) -> None: ...

    def consents(self) -> dict[str, str]:
        """What users have chosen, by user."""
        ...

    # -- the ledger

    def enter(self, entries: Sequence[Entry]) -> list[object]:
        """Make a group of entries durable in one transaction, in order; for each its answer, or
        the typed error that refused it, which leaves nothing of it behind. Raises
        :class:`WorldError` for what befalls the disk: then nothing of the group is kept."""
        ...

    def ask(self, question: Question) -> object:
        """See :mod:`isovist.syscalls.ledger`."""
        ...

    def timers(self) -> tuple[Timer, ...]:
        """All of them, next first: what a start arms."""
        ...

    # -- files

    def change_file(self, change: FileChange) -> Changed:
        """Make a change of a file durable, with the units by which it is found: all or nothing, in
        the writer's thread. The outcomes are to be applied. Raises :class:`IsovistError`."""
        ...

    def file(self, view: View, space: Partition, path: str, version: int = 0) -> HeldFile | None:
        """A version (0: the current one) of a file of the view, with its bytes."""
        ...

    def file_log(
        self, view: View, space: Partition, path: str
    ) -> tuple[FileInfo, tuple[FileVersion, ...]] | None:
        """A file of the view, and its versions, newest first."""
        ...

    def files(
        self,
        view: View,
        spaces: Sequence[Partition],
        prefix: str,
        after: tuple[Partition, str] | None,
        limit: int,
    ) -> tuple[tuple[FileInfo, ...], tuple[Partition, str] | None]:
        """A page of files of these spaces of the view, and where the next one begins."""
        ...

    def file_bytes(self, agent: str = "", user: str = "") -> int:
        """Bytes of all versions of the files that they own; an empty name stands for all."""
        ...

    def file_blobs(self) -> frozenset[str]:
        """Which files of the content store mean anything."""
        ...

    # -- the end of a unit

    def owned(self, user: str) -> tuple[tuple[str, int, str], ...]:
        """(id, version, scope) of every unit owned by ``user`` or kept in a partition of that user
        alone, in order of id. For the operator's demand to forget a user alone."""
        ...

    def purge(self, user: str, receipt: str, now: int) -> list[Outcome]:
        """Remove all that :meth:`owned` names, the user's contexts, files, mail, effects, timers,
        memberships and grants, in one transaction; the outcomes of the ``Drop`` of each, to be
        applied. Raises
        :class:`WorldError`."""
        ...

    def expired(self, now: int, limit: int) -> tuple[tuple[Lapsed, ...], int | None]:
        """Of the units that have expired by ``now`` (ns) the ``limit`` that did so first, oldest
        expiry first; and when the next one of all that are left expires, which may be past
        (``None``: none does). For the kernel's sweep alone. Raises :class:`WorldError`."""
        ...

    def receipt(self, id: str) -> Receipt | None: ...

    def owed(self) -> Owed | None:
        """What was forgotten so far and not erased by a scrub; ``None``: nothing was."""
        ...

    def scrub(self, now: int, owed: Owed | None = None) -> bool:
        """Erase what was forgotten from every file: freed pages, the log, dead terms, dropped
        postings, dead graph nodes, in any one thread beside the loop's. Every receipt asked for
        before it began (or before ``owed`` was told) is issued when it ends. False, and none is
        issued, where jobs of upkeep are due first. Raises :class:`WorldError`, and then issues
        none."""
        ...

    def backup(self, path: str) -> int:
        """Copy the store, as it is at one moment, to the new file ``path``; returns its bytes. In
        any thread, while others write. Raises ``EEXIST``, :class:`WorldError`, or ``ENOSYS`` for
        a store without a file."""
        ...

    def statistics(self) -> dict[str, int]: ...

    def close(self) -> None: ...
