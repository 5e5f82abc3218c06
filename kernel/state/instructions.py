"""What the pure kernel asks of the shell. Order matters: they are carried out as listed."""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.kernel.state.lessons import Planned
from isovist.syscalls.file_operations import FileChange
from isovist.syscalls.ledger import Entry, Question
from isovist.syscalls.manifest import Approval
from isovist.syscalls.messages import AnyReply, LearnSubmit, Record
from isovist.syscalls.operations import Context, Op, Query, Selection
from isovist.syscalls.records import Message, Partition, Stream, Submission, Tool, ToolRule, View


class Instruction(msgspec.Struct, frozen=True, gc=False):
    pass


class Reply(Instruction, frozen=True, gc=False):
    """The last word on a call, or with ``Part`` one piece of it."""

    channel: int
    call: int
    message: AnyReply


class Disconnect(Instruction, frozen=True, gc=False):
    """End a channel (its process too, where it has one); ``why`` becomes the exit's reason."""

    channel: int
    why: str


class Commit(Instruction, frozen=True, gc=False):
    op: Op


class Retrieve(Instruction, frozen=True, gc=False):
    """Answer ``query`` from ``view``, then send ``Retrieved`` with the same ``turn``."""

    key: int
    view: View
    query: Query
    turn: int = 1


class Render(Instruction, frozen=True, gc=False):
    """Fit ``selection`` into ``budget`` tokens, place it, count the prompt; send ``Rendered``.

    The prompt, with the ``tools`` that it offers, and ``max_tokens`` together may not exceed
    ``context``. Without ``messages`` the block alone is made.
    """

    key: int
    model: str
    messages: tuple[Message, ...]
    selection: Selection
    budget: int
    units: int
    max_tokens: int
    context: int
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"


class StartDriver(Instruction, frozen=True, gc=False):
    model: str
    gen: int


class StopDriver(Instruction, frozen=True, gc=False):
    """Kill a driver that does not answer; ``DriverDied`` follows."""

    model: str
    gen: int


class Decode(Instruction, frozen=True, gc=False):
    model: str
    gen: int
    key: int
    prompt: object
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...]
    owner: str = ""
    """Whose conversation it is: what the driver keeps of it is for this owner alone."""
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    schema: str = ""
    logprobs: int = -1


class Abort(Instruction, frozen=True, gc=False):
    model: str
    gen: int
    key: int


class Pause(Instruction, frozen=True, gc=False):
    """Stop decoding request ``key`` but keep what it has; its slot goes to another at once."""

    model: str
    gen: int
    key: int


class Resume(Instruction, frozen=True, gc=False):
    """Go on with a paused request."""

    model: str
    gen: int
    key: int


class StartToolServer(Instruction, frozen=True, gc=False):
    """Start it; send ``ToolsUp`` when it has said what tools it has, and again when they change."""

    server: str
    gen: int


class StopToolServer(Instruction, frozen=True, gc=False):
    """Kill a tool server that does not answer; ``ToolServerDied`` follows."""

    server: str
    gen: int
    why: str


class CallTool(Instruction, frozen=True, gc=False):
    """Call a tool with ``arguments``, a JSON object; send ``ToolDone``. ``owner`` is the pair that
    may read the whole of a long answer."""

    server: str
    gen: int
    run: int
    tool: str
    arguments: str
    owner: str


class CancelTool(Instruction, frozen=True, gc=False):
    """End call ``run`` as soon as can be; ``ToolDone`` follows."""

    server: str
    gen: int
    run: int


class ReadOutput(Instruction, frozen=True, gc=False):
    """Read a part of the long answer ``id`` of ``owner``; send ``OutputRead``."""

    key: int
    id: str
    offset: int
    owner: str


class StartProcess(Instruction, frozen=True, gc=False):
    """Start process ``pid``; attach its channel, then send ``Spawned`` or ``SpawnFailed``."""

    pid: int
    agent: str
    program: str
    args: tuple[str, ...]
    fresh: bool
    cwd: str
    stdio_of: int
    """The channel whose handed-over descriptors become its standard streams; 0: none."""
    user: str = ""
    lineage: str = ""
    mounts: tuple[tuple[str, str], ...] = ()
    """(absolute path, ``ro`` or ``rw``) of what it may see of the host beside its workspace."""
    quotas: dict[str, int] = {}
    by: int = 0
    """The process that chose the program, which may lie nowhere but where that one may read; 0: a
    person did."""


class KillProcess(Instruction, frozen=True, gc=False):
    pid: int
    why: str


class SignalProcess(Instruction, frozen=True, gc=False):
    """Stop it where it stands and let its channel be patient, let it go on, or ask it to end (one
    that is stopped then goes on, since it could not end otherwise)."""

    pid: int
    what: Literal["stop", "continue", "terminate"]


class NiceProcess(Instruction, frozen=True, gc=False):
    """Set what the host gives it beside others: 0, the most, to 19."""

    pid: int
    nice: int


class GaugeProcesses(Instruction, frozen=True, gc=False):
    """Ask the host what each living process takes; send ``ProcessesGauged``."""

    key: int


class WakeAt(Instruction, frozen=True, gc=False):
    """Send ``Tick`` no later than ``ns``."""

    ns: int


class Audit(Instruction, frozen=True, gc=False):
    """Make the record durable within a second."""

    record: Record


class Chain(Instruction, frozen=True, gc=False):
    """Add one line to the hash-chained log, before whatever is made durable after it. ``users`` are
    replaced by names that can be forgotten; ``at`` is in ns since 1970 UTC."""

    kind: str
    actor: str
    subject: str
    at: int
    users: tuple[str, ...] = ()
    detail: tuple[tuple[str, str], ...] = ()


class Report(Instruction, frozen=True, gc=False):
    """A broken rule of the kernel itself was met: to be logged as a bug, with its story."""

    message: str
    story: tuple[str, ...]


class Lookup(Instruction, frozen=True, gc=False):
    """Find the audit record of ``call``; send ``LookedUp``."""

    key: int
    call: str


class SaveGrant(Instruction, frozen=True, gc=False):
    """Make an agent's grants durable, as they now stand, then send ``Saved`` for ``key``."""

    key: int
    agent: str
    users: tuple[str, ...]
    scopes: tuple[str, ...]
    mail: tuple[str, ...] = ()
    tools: tuple[ToolRule, ...] = ()


class SaveApproval(Instruction, frozen=True, gc=False):
    """Make durable, together, an agent's approval (``None``: it has none) and its grants as they
    now stand, then send ``Saved`` for the ``key`` of ``grant``."""

    grant: SaveGrant
    approval: Approval | None

    @property
    def key(self) -> int:
        return self.grant.key


class SaveDistrust(Instruction, frozen=True, gc=False):
    """Make durable that an agent is distrusted, or is no more; then send ``Saved``."""

    key: int
    agent: str
    on: bool


class FindPublished(Instruction, frozen=True, gc=False):
    """Find at most ``limit`` units that ``agent`` published (``hidden``: those that were hidden)
    but for these (id, version); send ``PublishedFound``."""

    agent: str
    hidden: bool
    limit: int
    skip: tuple[tuple[str, int], ...]


class Owned(Instruction, frozen=True, gc=False):
    """Find what belongs to ``user``; send ``Owned``."""

    key: int
    user: str


class Purge(Instruction, frozen=True, gc=False):
    """Remove all that belongs to ``user``; send ``Purged`` when it is durable and in no view."""

    key: int
    user: str
    receipt: str
    at: int
    """Now (ns since 1970 UTC)."""


class FindReceipt(Instruction, frozen=True, gc=False):
    """Find what became of a demand to forget; send ``ReceiptFound``."""

    key: int
    receipt: str


class Scrub(Instruction, frozen=True, gc=False):
    """Something was forgotten: erase it from every file before long, ``soon`` where somebody
    waits for that. Send ``Scrubbing``, wait for ``Flush``, and send ``ReceiptsIssued``."""

    soon: bool = False


class Flush(Instruction, frozen=True, gc=False):
    """What was forgotten is in no living prompt any more: have the models drop what they keep of
    earlier ones, then scrub the store."""


class FindLapsed(Instruction, frozen=True, gc=False):
    """Find at most ``limit`` units that have expired by ``at`` (ns since 1970 UTC); send
    ``Lapsed`` with the same ``look``."""

    look: int
    at: int
    limit: int


class Swept(Instruction, frozen=True, gc=False):
    """So many ``units`` that had expired are gone; to be logged, with the ``call`` under which
    their record is found: nobody else was given it."""

    call: str
    units: int


class SaveGroup(Instruction, frozen=True, gc=False):
    """Make the members of a group durable, as they now stand, then send ``Saved`` for ``key``.
    ``of`` is its axis: ``users`` or ``agents``."""

    key: int
    of: str
    name: str
    members: tuple[str, ...]


class Meter(Instruction, frozen=True, gc=False):
    """Add up the records of chats that ended from ``since`` on and before ``until`` (ns since 1970
    UTC) ``by`` agent, user or model; send ``Metered`` for ``key``."""

    key: int
    by: str
    since: int
    until: int | None


class Measure(Instruction, frozen=True, gc=False):
    """Count what there is; send ``Measured`` for ``key``."""

    key: int


class SaveLimits(Instruction, frozen=True, gc=False):
    """Make durable what the operator has set for a name, as it now stands; then send ``Saved``."""

    key: int
    axis: str
    name: str
    figures: dict[str, int]


class Backup(Instruction, frozen=True, gc=False):
    """Copy the store to a new file at ``path``, then send ``Saved`` for ``key``."""

    key: int
    path: str


class SaveContext(Instruction, frozen=True, gc=False):
    """Make a context durable under its pair's limits: at most ``most``, and ``most_bytes`` of
    messages; send ``ContextSaved``."""

    key: int
    context: Context
    most: int
    most_bytes: int


class FindContext(Instruction, frozen=True, gc=False):
    """Find the context of a pair by its name; send ``ContextFound``."""

    key: int
    user: str
    agent: str
    name: str


class ListContexts(Instruction, frozen=True, gc=False):
    """Find what a pair keeps; send ``ContextsListed``."""

    key: int
    user: str
    agent: str


class DropContext(Instruction, frozen=True, gc=False):
    """Remove a context and the state kept with it; send ``ContextDropped``."""

    key: int
    user: str
    agent: str
    name: str


class Snapshot(Instruction, frozen=True, gc=False):
    """Have ``model`` write what it holds of its ``owner``'s conversation ``context`` to the file of
    that context; send ``ContextKept``, with 0 tokens where that fails."""

    key: int
    model: str
    context: Context
    owner: str


class Restore(Instruction, frozen=True, gc=False):
    """Have ``model`` take in the file of ``context`` for ``owner``; send ``ContextKept``, with 0
    tokens where that fails."""

    key: int
    model: str
    context: Context
    owner: str


class GetContent(Instruction, frozen=True, gc=False):
    """Have the bytes of a new version at hand, for change ``number``: ``body``; or what lies in the
    workspace folder of ``agent`` under ``file``; or a version of a file of the ``view``, (space,
    path, version), which stand as they are. Send ``ContentReady`` or ``FileFailed``."""

    number: int
    agent: str
    user: str
    path: str
    body: bytes | None = None
    file: str = ""
    view: View | None = None
    kept: tuple[Partition, str, int] | None = None


class DropContent(Instruction, frozen=True, gc=False):
    """Nobody waits any more for the bytes of change ``number``."""

    number: int


class ChangeFile(Instruction, frozen=True, gc=False):
    """Make a change of a file durable; send ``FileChanged`` or ``FileFailed``."""

    number: int
    change: FileChange


class ReadFile(Instruction, frozen=True, gc=False):
    """Read at most ``limit`` bytes of a version, ``offset`` bytes in; send ``FileFound``."""

    key: int
    agent: str
    view: View
    space: Partition
    path: str
    version: int
    offset: int
    limit: int


class FetchFile(Instruction, frozen=True, gc=False):
    """Write a version out into the workspace folder of ``agent``, as ``target``; send
    ``FileFound``."""

    key: int
    agent: str
    view: View
    space: Partition
    path: str
    version: int
    target: str
    replace: bool


class ListFiles(Instruction, frozen=True, gc=False):
    """Find a page of files of these spaces of the view; send ``FilesListed``."""

    key: int
    view: View
    spaces: tuple[Partition, ...]
    prefix: str
    after: tuple[Partition, str] | None
    limit: int


class LogFile(Instruction, frozen=True, gc=False):
    """Find a file of the view and its versions; send ``FileLogged``."""

    key: int
    view: View
    space: Partition
    path: str


class FileSubmission(Instruction, frozen=True, gc=False):
    """Make a submission durable, past the secrets guard, where at most ``most`` of its pair wait;
    send ``SubmissionFiled``."""

    key: int
    submission: Submission
    request: LearnSubmit
    most: int


class FindSubmissions(Instruction, frozen=True, gc=False):
    """Find one by its ``id``, or the latest of a pair (an empty name stands for all); send
    ``SubmissionsFound``."""

    key: int
    id: str
    user: str
    agent: str
    limit: int


class Learn(Instruction, frozen=True, gc=False):
    """Go on with a submission where it stands: split it, have both streams written, scan all; send
    ``Thought``, or ``PlanKept`` where that was done in an earlier life, or ``Stuck``.

    Writers are shown entries out of ``view``, the pair's; what stands in ``own``, which the user
    alone may read, must stand in nothing reusable. ``scopes`` are those that each stream may use.
    """

    id: str
    view: View
    own: View
    scopes: dict[Stream, tuple[str, ...]]


class KeepPlan(Instruction, frozen=True, gc=False):
    """Make durable what a submission comes to; send ``PlanKept``, or ``Stuck``."""

    id: str
    plan: tuple[Planned, ...]
    report: Submission


class Conclude(Instruction, frozen=True, gc=False):
    """Make the end of a submission durable; send ``Concluded``."""

    report: Submission


class Postponed(Instruction, frozen=True, gc=False):
    """A submission waits to be learned from, since the world was at fault; to be logged."""

    id: str
    why: str


class SaveConsent(Instruction, frozen=True, gc=False):
    """Make a choice durable; send ``Saved``."""

    key: int
    user: str
    choice: str


class FindSources(Instruction, frozen=True, gc=False):
    """Say where ``units`` come from, which were selected for this call; send ``SourcesFound``."""

    key: int
    units: tuple[str, ...]
    turn: int


class Review(Instruction, frozen=True, gc=False):
    """Find what has changed, out of ``view``, and have it judged; send ``ReviewMade``."""

    view: View


class KeepReview(Instruction, frozen=True, gc=False):
    """Make durable that these (id, version) were looked at; send ``ReviewKept``."""

    entries: tuple[tuple[str, int], ...]


class Enter(Instruction, frozen=True, gc=False):
    """Have ``entry`` made in the ledger; send ``Entered`` with the same ``number``, or
    ``NotEntered``. Entries are decided in the order of these instructions."""

    number: int
    entry: Entry


class Ask(Instruction, frozen=True, gc=False):
    """Have ``question`` answered from the ledger as it is durable now; send ``Entered`` with the
    same ``number``, or ``NotEntered``."""

    number: int
    question: Question
