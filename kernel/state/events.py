"""What can happen to the kernel. Every event carries ``now``: virtual nanoseconds, monotonic.

``key`` is the number of a call, issued by the state; ``gen`` the number of a driver's life, so
that a late word of a dead driver is known as such.
"""

from __future__ import annotations

import msgspec

from isovist.kernel.state.lessons import Known, Operation, Planned, Proposed
from isovist.kernel.state.toolwords import Answer, MountedTool
from isovist.syscalls import operations as ops
from isovist.syscalls.abi.files import FileInfo, FileVersion
from isovist.syscalls.file_operations import Changed, Content, HeldFile
from isovist.syscalls.messages import Record, Request
from isovist.syscalls.operations import Candidate, Context, Outcome, Receipt, Selection
from isovist.syscalls.records import (
    Logprob,
    ModelLoad,
    Origin,
    Partition,
    SavedContext,
    Stream,
    Submission,
    ToolCall,
    Usage,
)


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    now: int


class Attached(Event, frozen=True, kw_only=True, gc=False):
    """A channel is open. ``pid`` is 0 for a program that came through the socket door."""

    channel: int
    agent: str
    pid: int = 0
    operator: bool = False


class Detached(Event, frozen=True, kw_only=True, gc=False):
    channel: int
    why: str


class Arrived(Event, frozen=True, kw_only=True, gc=False):
    """A well-formed request; ``call`` is the caller's frame id."""

    channel: int
    call: int
    request: Request


class Malformed(Event, frozen=True, kw_only=True, gc=False):
    """A frame whose body is no request."""

    channel: int
    call: int
    errno: int
    message: str
    field: str = ""


class Tick(Event, frozen=True, kw_only=True, gc=False):
    """Time has passed. ``wall`` (ns since 1970 UTC; 0: unchanged) re-aligns the calendar."""

    wall: int = 0


class Committed(Event, frozen=True, kw_only=True, gc=False):
    """Durable and searchable lexically (``Put``, ``Replace``, ``Drop``) or densely
    (``Vectors``)."""

    outcome: Outcome


class WriteFailed(Event, frozen=True, kw_only=True, gc=False):
    """``outcome.errno`` is not 0: nothing of the write is kept, and its number becomes void."""

    outcome: Outcome


class Retrieved(Event, frozen=True, kw_only=True, gc=False):
    """``lagging`` names the legs that could not take part (an embedder that does not answer)."""

    key: int
    selection: Selection
    lagging: tuple[str, ...] = ()
    turn: int = 1


class Rendered(Event, frozen=True, kw_only=True, gc=False):
    """``prompt`` is opaque here: what the driver is to be given. ``shown`` are the units in it,
    each with its tokens, ``block`` the text that holds them."""

    key: int
    prompt: object
    prompt_tokens: int
    shown: tuple[tuple[Candidate, int], ...]
    injected_tokens: int
    counter: str
    block: str = ""


class WorkFailed(Event, frozen=True, kw_only=True, gc=False):
    """A ``Retrieve``, ``Render`` or ``Lookup`` of call ``key`` failed."""

    key: int
    errno: int
    message: str
    field: str = ""


class LookedUp(Event, frozen=True, kw_only=True, gc=False):
    """The audit record asked for, or ``None``."""

    key: int
    record: Record | None


class Saved(Event, frozen=True, kw_only=True, gc=False):
    """The ``SaveGrant`` or ``SaveGroup`` of call ``key`` is durable, or its ``Backup``, which
    has ``bytes``."""

    key: int
    bytes: int = 0


class Sampled(Event, frozen=True, kw_only=True, gc=False):
    """What running processes have used (nanoseconds of processor so far, bytes of memory), and the
    bytes in workspaces, by agent, that were to be measured."""

    usage: dict[int, tuple[int, int]]
    workspaces: dict[str, int]


class Measured(Event, frozen=True, kw_only=True, gc=False):
    """What there is of each kind."""

    key: int
    figures: dict[str, int]


class Metered(Event, frozen=True, kw_only=True, gc=False):
    """What the records tell, by name."""

    key: int
    usage: tuple[Usage, ...]


class Owned(Event, frozen=True, kw_only=True, gc=False):
    """(id, version, scope) of every unit of the user that was asked for, in order of id."""

    key: int
    units: tuple[tuple[str, int, str], ...]


class Purged(Event, frozen=True, kw_only=True, gc=False):
    """All that belonged to ``user`` is gone, for good and from every view."""

    key: int
    user: str
    outcomes: tuple[Outcome, ...]


class ReceiptFound(Event, frozen=True, kw_only=True, gc=False):
    """The receipt asked for, or ``None``."""

    key: int
    receipt: Receipt | None


class Scrubbing(Event, frozen=True, kw_only=True, gc=False):
    """A scrub begins; it goes on when it is told to flush."""


class ReceiptsIssued(Event, frozen=True, kw_only=True, gc=False):
    """Whatever was forgotten before the last scrub began is in no file any more."""


class Lapsed(Event, frozen=True, kw_only=True, gc=False):
    """The answer to ``FindLapsed`` of this ``look``: units that have expired, and when (ns since
    1970 UTC) the next of all others expires (``None``: none does). A start tells the latter with
    ``look`` 0."""

    soonest: int | None
    units: tuple[ops.Lapsed, ...] = ()
    look: int = 0


class ContextSaved(Event, frozen=True, kw_only=True, gc=False):
    """``context`` is durable, with ``secrets`` (by type) replaced in it. ``bytes`` of messages."""

    key: int
    context: Context
    bytes: int
    replaced: bool = False
    secrets: dict[str, int] = {}


class ContextFound(Event, frozen=True, kw_only=True, gc=False):
    """The context asked for, or ``None``; ``state``: a file of its model's state is there."""

    key: int
    context: Context | None
    state: bool = False


class ContextsListed(Event, frozen=True, kw_only=True, gc=False):
    key: int
    contexts: tuple[SavedContext, ...]


class ContextDropped(Event, frozen=True, kw_only=True, gc=False):
    """It is gone, durably; not ``found``: there was none."""

    key: int
    found: bool


class ContextKept(Event, frozen=True, kw_only=True, gc=False):
    """So many ``tokens`` of a context were written to its file, or taken in from it."""

    key: int
    tokens: int


class ContentReady(Event, frozen=True, kw_only=True, gc=False):
    """The bytes of a version are at hand, durable where they stand in a file of their own.
    ``texts`` are those by which it is to be found, of ``indexed`` bytes of its text. ``seen`` is
    the file (id, version) that they were read from, where they were, and ``source`` their own
    version."""

    number: int
    content: Content
    texts: tuple[str, ...]
    indexed: int
    seen: tuple[str, int] | None = None


class FileChanged(Event, frozen=True, kw_only=True, gc=False):
    """A change of a file is durable, and what it did to units can be searched."""

    number: int
    changed: Changed


class FileFailed(Event, frozen=True, kw_only=True, gc=False):
    """A change of a file came to nothing."""

    number: int
    errno: int
    message: str
    field: str = ""


class FileFound(Event, frozen=True, kw_only=True, gc=False):
    """A version, or ``None``: its bytes from the asked one on are in ``body``, or it was written
    out."""

    key: int
    held: HeldFile | None
    body: bytes = b""


class FilesListed(Event, frozen=True, kw_only=True, gc=False):
    """A page of files; ``last`` is the last one where more come."""

    key: int
    files: tuple[FileInfo, ...]
    last: tuple[Partition, str] | None


class FileLogged(Event, frozen=True, kw_only=True, gc=False):
    """A file and its versions, or ``None``."""

    key: int
    found: tuple[FileInfo, tuple[FileVersion, ...]] | None


class LearnerUp(Event, frozen=True, kw_only=True, gc=False):
    """The learner can be given work."""


class SubmissionFiled(Event, frozen=True, kw_only=True, gc=False):
    """A submission is durable; ``known``: it was there already, under its key."""

    key: int
    submission: Submission
    known: bool = False


class SubmissionsFound(Event, frozen=True, kw_only=True, gc=False):
    """The answer to ``FindSubmissions``."""

    key: int
    submissions: tuple[Submission, ...]


class Thought(Event, frozen=True, kw_only=True, gc=False):
    """The writers are done with a submission: what each asks for, what it was shown, and what of
    its words the kernel's scan has taken out. ``writer`` says who they were."""

    id: str
    writer: str
    report: Submission
    operations: dict[Stream, tuple[Operation, ...]]
    shown: dict[Stream, tuple[Known, ...]]
    cut: int = 0
    secrets: dict[str, int] = {}


class PlanKept(Event, frozen=True, kw_only=True, gc=False):
    """What a submission comes to is durable (or was, from an earlier life), and is now to be done.
    ``report`` is what is told of it so far."""

    id: str
    plan: tuple[Planned, ...]
    report: Submission


class Stuck(Event, frozen=True, kw_only=True, gc=False):
    """A submission could not be learned from; ``lasting``: nor will another try help. Without an
    ``errno`` it is there no more."""

    id: str
    errno: int = 0
    message: str = ""
    lasting: bool = False
    report: Submission | None = None


class Concluded(Event, frozen=True, kw_only=True, gc=False):
    """The end of a submission is durable."""

    id: str


class SourcesFound(Event, frozen=True, kw_only=True, gc=False):
    """Where those of the asked units come from that are entries: (writer, origins) by unit."""

    key: int
    turn: int
    sources: dict[str, tuple[str, tuple[Origin, ...]]]


class ReviewMade(Event, frozen=True, kw_only=True, gc=False):
    """What a review proposes. ``changed`` entries were new or other, ``shown`` looked at in
    ``batches``; ``looked_at`` are (id, version) of those that need no look any more."""

    proposals: tuple[Proposed, ...] = ()
    looked_at: tuple[tuple[str, int], ...] = ()
    changed: int = 0
    shown: int = 0
    batches: int = 0
    judge: str = ""
    tokens: int = 0
    errno: int = 0
    message: str = ""


class ReviewKept(Event, frozen=True, kw_only=True, gc=False):
    """That a review has looked at what it has is durable, or cannot be made so."""


class DriverUp(Event, frozen=True, kw_only=True, gc=False):
    model: str
    gen: int
    context: int
    tokenizer: str = ""
    slots: int = 0
    """Requests that it decodes at a time; 0: as configured."""


class DriverLoad(Event, frozen=True, kw_only=True, gc=False):
    """How busy the driver says it is, or how much of its model is loaded."""

    model: str
    gen: int
    load: ModelLoad


class Token(Event, frozen=True, kw_only=True, gc=False):
    """A piece of the answer, and how many tokens were made for it."""

    model: str
    gen: int
    key: int
    text: str
    tokens: int = 1
    logprobs: tuple[Logprob, ...] = ()


class DriverDone(Event, frozen=True, kw_only=True, gc=False):
    """``errno`` 0: finished with ``finish``; else this one request failed and the driver lives."""

    model: str
    gen: int
    key: int
    finish: str = "stop"
    output_tokens: int = 0
    prompt_tokens: int = 0
    """As the driver counted them; 0: it does not say."""
    cached_tokens: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    errno: int = 0
    message: str = ""
    retry_ns: int = 0
    """It may succeed after so long (0: not known)."""
    field: str = ""
    """The request's field at fault (empty: none)."""
    calls: tuple[ToolCall, ...] = ()
    """Of tools; without ids."""
    logprobs: tuple[Logprob, ...] = ()
    """Of tokens that no :class:`Token` told."""


class DriverDied(Event, frozen=True, kw_only=True, gc=False):
    """The driver's process is gone, or could not start (``fatal``: no use to try again)."""

    model: str
    gen: int
    reason: str
    fatal: bool = False


class ToolsUp(Event, frozen=True, kw_only=True, gc=False):
    """A tool server is up with these tools, or has others than before."""

    server: str
    gen: int
    tools: tuple[MountedTool, ...]


class ToolDone(Event, frozen=True, kw_only=True, gc=False):
    """Call ``run`` of a tool has ended."""

    server: str
    gen: int
    run: int
    answer: Answer


class ToolServerDied(Event, frozen=True, kw_only=True, gc=False):
    """A tool server's process is gone, or could not start (``fatal``: another start would end the
    same way)."""

    server: str
    gen: int
    reason: str
    fatal: bool = False


class OutputRead(Event, frozen=True, kw_only=True, gc=False):
    """The part of a long answer that was asked for; ``characters`` counts the whole."""

    key: int
    text: str
    characters: int


class Spawned(Event, frozen=True, kw_only=True, gc=False):
    """Process ``pid`` runs; its channel was attached before."""

    pid: int


class SpawnFailed(Event, frozen=True, kw_only=True, gc=False):
    pid: int
    errno: int
    message: str
    field: str = "program"


class Exited(Event, frozen=True, kw_only=True, gc=False):
    """``status``: exit code, or minus the signal's number. ``stderr``: the last lines."""

    pid: int
    status: int
    reason: str = ""
    stderr: tuple[str, ...] = ()


class Stderr(Event, frozen=True, kw_only=True, gc=False):
    """New text on a process's standard error."""

    pid: int
    text: str


class Entered(Event, frozen=True, kw_only=True, gc=False):
    """What the ledger answers to an ``Enter`` or an ``Ask``: see the entry or question."""

    number: int
    answer: object


class NotEntered(Event, frozen=True, kw_only=True, gc=False):
    """The ledger refused, or the disk did; nothing has changed."""

    number: int
    errno: int
    message: str
    field: str = ""


class DistrustUp(Event, frozen=True, kw_only=True, gc=False):
    """The store can be asked what distrusted agents published."""


class PublishedFound(Event, frozen=True, kw_only=True, gc=False):
    """What ``agent`` published (or what of it was hidden); none, with an ``errno``, where the store
    could not say."""

    agent: str
    units: tuple[ops.Published, ...] = ()
    errno: int = 0
    message: str = ""


class ProcessesGauged(Event, frozen=True, kw_only=True, gc=False):
    """(seconds of processor, bytes of memory) of each process that the host could be asked of."""

    key: int
    usage: dict[int, tuple[float, int]]
