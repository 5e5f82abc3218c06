"""The ABI: one Struct a syscall, one Struct a kind of reply.

Every message is a MessagePack array whose first element is its tag. Fields are only ever
appended and new fields always have a default, so an older peer reads what it knows. ``Call``
is the one base class; it is frozen for ever, since a field appended to it would shift all
others. Requests have tags below 100, replies from 100.
"""

from __future__ import annotations

from typing import Literal

from isovist.syscalls.abi import effects, files, mail, quotas, supervision, timers, tools
from isovist.syscalls.abi.base import Call as Call
from isovist.syscalls.abi.base import Reply as Reply
from isovist.syscalls.records import (
    Barrier,
    Change,
    Entry,
    Group,
    Hit,
    Injected,
    Logprob,
    MemoryFile,
    Message,
    Mode,
    Model,
    ModelQueue,
    Process,
    Round,
    SavedContext,
    Seen,
    Stream,
    Submission,
    Timings,
    Tool,
    ToolCall,
    ToolMade,
    ToolRule,
    Unit,
    Usage,
)

ABI_VERSION = 1
FEATURES: tuple[str, ...] = ("cancel", "deadline", "stream")

Wait = Literal["both", "lexical", "none"]
OnStale = Literal["reply", "error"]


class Hello(Call, frozen=True, array_like=True, kw_only=True, tag=1):
    """First message of a channel: offers ABI versions ``low`` to ``version`` and features.

    ``token`` opens the socket door. ``agent`` is honoured for the operator alone: everybody else
    is who its channel says.
    """

    version: int
    low: int = 1
    features: tuple[str, ...] = ()
    token: str = ""
    agent: str = ""


class Ping(Call, frozen=True, array_like=True, kw_only=True, tag=2):
    """Echo ``payload`` (at most 64 KiB)."""

    payload: str = ""


class Whoami(Call, frozen=True, array_like=True, kw_only=True, tag=3):
    """Who the kernel takes this channel for, which user it would serve now, and why."""


class SessionOpen(Call, frozen=True, array_like=True, kw_only=True, tag=4):
    """Register that this channel now serves ``user`` (needs a grant for that user).

    While exactly one session is live, requests that name no user serve its user. With
    ``replace`` the channel's other sessions end.
    """

    replace: bool = False


class Grant(Call, frozen=True, array_like=True, kw_only=True, tag=5):
    """Operator only: let ``agent`` act for ``users``, publish to ``scopes``, send mail to the
    agents ``mail`` and call ``tools``.

    ``"*"`` in ``users`` means every user. A scope is ``user``, ``agent``, ``global``, or
    ``@NAME``: units for the members of that group of users. ``mail`` names agents that it may send
    mail to (``"*"``: all), ``tools`` what it may call. With ``revoke`` the named rights are
    taken away (of ``tools``, every rule of that name). Takes effect at once for running instances
    and is durable.
    """

    agent: str
    users: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    revoke: bool = False
    mail: tuple[str, ...] = ()
    tools: tuple[ToolRule, ...] = ()


class Spawn(Call, frozen=True, array_like=True, kw_only=True, tag=6):
    """Start an agent process: a script's path, ``module:Class``, or an installed agent's name.

    What an agent spawns is an instance of that agent and serves the agent's resolved user. With
    the name of another ``agent`` it is that one, which must be approved, and runs as it was
    approved (``program`` is then its name or its entry); the spawner must have a manifest that
    allows ``children``. The operator may start any program as any ``agent`` (default: the
    program's own name) for any ``user`` (default: none, the agent serves itself). ``fresh`` takes
    a new interpreter instead of a fork. ``stdio`` hands over the three descriptors that were sent
    with the request (socket door only).

    Rights only narrow: a process never has more than each of its ancestors has at that moment,
    nor than ``users``, ``scopes``, ``mail``, ``tools`` and ``quotas`` say here (``None``: no
    narrower). ``manifest`` is the digest of the approved manifest under which the operator starts
    an agent; one that is not approved is ``EPERM``. ``lineage`` names the work that it does, where
    it goes on with an earlier process's; no two living processes of an agent for a user have the
    same.
    """

    program: str
    args: tuple[str, ...] = ()
    agent: str = ""
    fresh: bool = False
    stdio: bool = False
    cwd: str = ""
    """Where a relative program, and the process itself, starts."""
    users: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    mail: tuple[str, ...] | None = None
    tools: tuple[ToolRule, ...] | None = None
    quotas: dict[str, int] = {}
    manifest: str = ""
    lineage: str = ""


class WaitPid(Call, frozen=True, array_like=True, kw_only=True, tag=7):
    """Reply when process ``pid`` has exited; with ``follow``, stream its stderr until then."""

    pid: int
    follow: bool = False


class Kill(Call, frozen=True, array_like=True, kw_only=True, tag=8):
    """End process ``pid`` (own descendants; the operator: any) and reply when it is gone. With
    ``grace_ms`` (0 to 60,000) it is asked to end (SIGTERM) and has so long before it is killed.
    With ``tree`` all that descends from it is ended too. It is not started anew, whatever its
    manifest says."""

    pid: int
    grace_ms: int = 0
    tree: bool = False


class Exit(Call, frozen=True, array_like=True, kw_only=True, tag=9):
    """This process is done; ``status`` 0 to 255 becomes its exit status, unless it then dies of
    something else. No request is served after it; within 5 s it must have ended."""

    status: int = 0


class ListProcesses(Call, frozen=True, array_like=True, kw_only=True, tag=10):
    """The caller and its descendants (the operator: all); with ``all`` the exited ones too. With
    ``usage`` the host is asked what processor and memory they take."""

    all: bool = False
    usage: bool = False


class Remember(Call, frozen=True, array_like=True, kw_only=True, tag=11):
    """Store one unit and reply when it is durable and lexically searchable.

    ``scope`` is ``pair``, ``user``, ``agent``, ``global``, or two axes, users and agents, each
    ``own``, ``all`` or a group: ``@team/own``, ``own/@writers``. One that is missing, unknown or
    not granted stores the unit as private (pair), and the reply's ``note`` says so.
    ``supersedes`` names an own unit that this one replaces in ranking; where another living unit
    of the same audience does so already, that is ``ESTALE`` and names it. When ``expires_at`` (ISO
    8601 with a zone) has passed the unit is gone for good: see ``expire``. Times are kept to the
    microsecond; NUL in ``text`` is dropped, and ``note`` says how often.
    """

    text: str
    kind: str = "note"
    scope: str | None = None
    stream: Stream = "protected"
    session: str = ""
    round: int = 0
    said_at: str | None = None
    expires_at: str | None = None
    supersedes: str = ""
    meta: dict[str, str] = {}


class Search(Call, frozen=True, array_like=True, kw_only=True, tag=12):
    """The ``k`` (1 to 100) best units for ``query`` inside the reader's view.

    ``mode``: ``bm25``, ``dense``, ``hybrid`` (convex blend, the default) or ``rrf``. ``since``
    and ``until`` bound ``said_at`` (ISO 8601 with a zone, inclusive, exclusive). ``wait`` says
    which legs the barrier waits for, ``barrier_ms`` how long (0 to 60,000), ``on_stale`` whether
    a barrier that times out is a reply marked ``timed_out`` or ``ETIMEDOUT``.
    """

    query: str
    k: int = 8
    mode: Mode = "hybrid"
    since: str | None = None
    until: str | None = None
    kinds: tuple[str, ...] = ()
    wait: Wait = "both"
    barrier_ms: int = 2000
    on_stale: OnStale = "reply"


class Read(Call, frozen=True, array_like=True, kw_only=True, tag=13):
    """One unit of the view by id, whole."""

    id: str
    barrier_ms: int = 2000


class MemoryList(Call, frozen=True, array_like=True, kw_only=True, tag=14):
    """The view's units, newest first.

    At most ``limit`` (1 to 500) a page, fewer where texts are long. ``after`` is the last page's
    ``next``, an opaque cursor that stays good whatever is forgotten meanwhile (anything else:
    ``EINVAL``). Where the reader's groups have changed since, it is of another view: ``ESTALE``,
    and the list must begin again.
    """

    limit: int = 50
    after: str = ""
    kinds: tuple[str, ...] = ()
    barrier_ms: int = 2000


class Update(Call, frozen=True, array_like=True, kw_only=True, tag=15):
    """Replace the text of an own unit iff its version is still ``version`` (else ``ESTALE``)."""

    id: str
    version: int
    text: str


class Forget(Call, frozen=True, array_like=True, kw_only=True, tag=16):
    """Remove an own unit from every view; durable when the reply comes. What the unit superseded
    stays behind those of the same audience that superseded it."""

    id: str


class Chat(Call, frozen=True, array_like=True, kw_only=True, tag=17):
    """Ask a model. The kernel injects what is in view (design §7) unless ``memory`` is false.

    ``budget`` is the ceiling of injected tokens (default: 15 % of the model's context, at most
    1,500), ``units`` the ceiling of injected units. With ``stream`` the text comes in parts
    before the final reply, which holds all of it. With ``keep`` the exchange is stored as a
    private conversation unit under ``session``.

    With ``tools`` (at most 64, each with a name of its own) the model may answer with calls, which
    come with the final reply alone; what is offered counts as part of the prompt. ``choice`` is
    ``auto`` (a text or calls), ``none`` (a text), ``required`` (calls) or the name of the tool to
    be called. ``schema`` is a JSON schema (an object, as text of at most 64 KiB) that the whole
    answer matches unless it is cut for length; there are no tools beside it. ``logprobs`` (0 to
    20; -1: none) asks for each output token's log probability, with so many alternatives: 32,768
    at most in an answer of ``max_tokens``, the tokens themselves counted in.

    ``tools_of`` offers tools that the kernel can call as well: those that the caller may call and
    whose names fit one of the patterns. The kernel calls them itself, each under the caller's
    rights, and asks the model again with the results, in at most ``loop`` rounds (0 to 32); then
    the model has to answer with a text. With ``loop`` 0, and where a turn calls a tool out of
    ``tools``, the calls of that turn are handed back.
    """

    messages: tuple[Message, ...]
    model: str = ""
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stream: bool = False
    memory: bool = True
    budget: int | None = None
    units: int = 4
    kinds: tuple[str, ...] = ()
    wait: Wait = "both"
    barrier_ms: int = 2000
    on_stale: OnStale = "reply"
    keep: bool = False
    session: str = ""
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    schema: str = ""
    logprobs: int = -1
    tools_of: tuple[str, ...] = ()
    loop: int = 10


class Models(Call, frozen=True, array_like=True, kw_only=True, tag=18):
    """The models that this kernel can reach."""


class Why(Call, frozen=True, array_like=True, kw_only=True, tag=19):
    """The audit record of an own search or chat call (the operator: any)."""

    call: str


class Cancel(Call, frozen=True, array_like=True, kw_only=True, tag=20):
    """End the outstanding request with frame id ``call`` of this channel with ``ECANCELED``."""

    call: int


class Expire(Call, frozen=True, array_like=True, kw_only=True, tag=21):
    """Let an own unit expire ``at`` (ISO 8601 with a zone; in the past: at once; ``None``: never)
    iff its version is still ``version`` (else ``ESTALE``).

    What has expired answers nothing from that moment on, and no later time brings it back. The
    kernel soon removes it as if it were forgotten, without a receipt; only then do the statistics
    behind other units' scores no longer count it.
    """

    id: str
    version: int
    at: str | None = None


class Rescope(Call, frozen=True, array_like=True, kw_only=True, tag=22):
    """Give an own unit another audience iff its version is still ``version`` (else ``ESTALE``).

    ``scope`` as in ``remember``. Its owner may narrow it at any time; to reach more users takes
    a grant and the reusable stream, and into a group only members publish (``EPERM``); the
    operator that acts as itself holds every grant. The id stays.
    """

    id: str
    version: int
    scope: str


class Groups(Call, frozen=True, array_like=True, kw_only=True, tag=23):
    """Operator only: the groups with their members; ``of`` keeps those of one axis."""

    of: Literal["", "users", "agents"] = ""


class GroupChange(Call, frozen=True, array_like=True, kw_only=True, tag=24):
    """Operator only: let ``add`` join and ``remove`` leave the group ``name`` of users or of
    agents; it is made when it is first named, and never unmade: without members it opens to
    nobody. In force at once, and durable when the reply comes."""

    name: str
    of: Literal["users", "agents"]
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class ViewOf(Call, frozen=True, array_like=True, kw_only=True, tag=25):
    """The reader's own view explained: which partitions, why, how many units. What lies outside
    is not even counted."""

    barrier_ms: int = 2000


class MemorySearch(Call, frozen=True, array_like=True, kw_only=True, tag=26):
    """The ``k`` (1 to 50) best rounds for ``query``, one compact result a round [S 3.3]."""

    query: str
    k: int = 8
    since: str | None = None
    until: str | None = None
    barrier_ms: int = 2000


class MemoryRead(Call, frozen=True, array_like=True, kw_only=True, tag=27):
    """Whole rounds of ``session`` (the opaque name that a search gave): ``round`` and ``window``
    (0 to 10) rounds on either side, at most 4,000 characters of a message [S 3.3]. Longer messages
    go on in ``part`` (0 to 100) 1, 2 and so on; the reply says how many there are."""

    session: str
    round: int
    window: int = 1
    barrier_ms: int = 2000
    part: int = 0


class SessionSearch(Call, frozen=True, array_like=True, kw_only=True, tag=28):
    """The ``k`` (1 to 20) best sessions for ``query``: messages are ranked, grouped by session
    (best message first), and each session given whole; ``compact``: its found messages alone
    [S 3.3, for comparison]."""

    query: str
    k: int = 3
    compact: bool = False
    barrier_ms: int = 2000


class FullContext(Call, frozen=True, array_like=True, kw_only=True, tag=29):
    """All that is in view, oldest first, up to ``limit`` characters (1 to 500,000), the newest
    kept where not all fits [S 3.3, for comparison]."""

    limit: int = 100_000
    barrier_ms: int = 2000


class MemoryFiles(Call, frozen=True, array_like=True, kw_only=True, tag=30):
    """The view as text files, one a scope, each at most ``limit`` characters (1 to 200,000), the
    newest kept where not all fits [M 3.4]."""

    limit: int = 40_000
    barrier_ms: int = 2000


class Prefetch(Call, frozen=True, array_like=True, kw_only=True, tag=31):
    """What ``chat`` would inject for ``query``: the fenced block, without asking the model."""

    query: str
    model: str = ""
    budget: int | None = None
    units: int = 4
    kinds: tuple[str, ...] = ()
    wait: Wait = "both"
    barrier_ms: int = 2000


class ForgetMatching(Call, frozen=True, array_like=True, kw_only=True, tag=32):
    """Forget own units by query, in two steps. Without ``confirm``: a dry run that names them and
    gives a word. With that word as ``confirm``, on the same channel: all and only the named ones
    go, a changed one excepted; ``ESTALE`` where the word is of none of the last dry runs there.

    A unit in view fits iff its text holds every content word of ``query`` (stems; stop words count
    for nothing) and every phrase that stands in double quotes. ``EINVAL`` where ``query`` holds no
    content word. The dry run shows ``limit`` (1 to 100) of the named units, newest first, from
    ``offset`` (0 to 1,000) on.
    """

    query: str
    limit: int = 20
    since: str | None = None
    until: str | None = None
    kinds: tuple[str, ...] = ()
    confirm: str = ""
    barrier_ms: int = 2000
    offset: int = 0


class ForgetUser(Call, frozen=True, array_like=True, kw_only=True, tag=33):
    """Operator only: forget all units of the user ``name``, in every scope, its memberships, and
    what it was granted; in two steps like ``forget.matching``. The dry run counts the units by
    scope and shows none. There is a word for a name with 0 units as well, as it may still be a
    member of groups and hold grants."""

    name: str
    confirm: str = ""


class ReceiptOf(Call, frozen=True, array_like=True, kw_only=True, tag=34):
    """Whether the forgotten has left every file of the store; ``wait``: reply when it has. A
    receipt is read by agents that act for the user whom it is about, and by the operator; to
    others there is none (``ENOENT``)."""

    receipt: str
    wait: bool = False


class Export(Call, frozen=True, array_like=True, kw_only=True, tag=35):
    """Operator only: the store's living units, then its grants and groups, as JSON lines, a page
    at a time, to be read in again from the last to the first; with ``name`` the units of one user,
    and the groups that they name, of whose members only this user and its units' agents are told.
    ``after`` is the last page's ``next``; ``ESTALE`` where the walk must begin again."""

    name: str = ""
    after: str = ""


class Import(Call, frozen=True, array_like=True, kw_only=True, tag=36):
    """Operator only: take in lines of an export, with their ids and versions. What is there
    already and the same is counted as known; a unit that is there otherwise is left as it is, and
    told. Who is in a group, or holds a grant, by a line, is or does so then; nobody loses any."""

    lines: tuple[str, ...]


class Backup(Call, frozen=True, array_like=True, kw_only=True, tag=37):
    """Operator only: copy the store, while it works, to a new file at the absolute ``path``."""

    path: str


class Statistics(Call, frozen=True, array_like=True, kw_only=True, tag=38):
    """Operator only: how much there is of what, in the kernel and its store."""


class Schedule(Call, frozen=True, array_like=True, kw_only=True, tag=39):
    """Operator only: the queue before each model, or before ``model`` alone. With ``policy`` that
    queue is first put under the policy of this name; nothing that waits or runs is lost."""

    policy: str = ""
    model: str = ""


class Metering(Call, frozen=True, array_like=True, kw_only=True, tag=40):
    """Operator only: what chat calls cost, ``by`` agent, user or model. Without ``since`` it is
    what this life of the kernel has seen, up to this moment, running calls included; with it, what
    the records of calls tell that ended from ``since`` on and before ``until`` (ISO 8601 with a
    zone), in earlier lives too. A user who was forgotten since is there without a name."""

    by: Literal["agent", "user", "model"] = "agent"
    since: str | None = None
    until: str | None = None


class ContextSave(Call, frozen=True, array_like=True, kw_only=True, tag=41):
    """Keep a conversation of this agent with this user under ``name``, in place of what had that
    name. The reply comes when its text is durable; secrets in it are replaced, as in memories.

    What ``model`` (default: the agent's own) holds computed of these very messages is kept as well
    where its driver can; without it the conversation is computed again from the text. At most
    512 KiB a context (``EMSGSIZE``), 64 contexts and 8 MiB a pair (``EDQUOT``). One save or drop of
    a name at a time (``EAGAIN``).

    ``tools`` and ``choice`` are those that it was chatted with, and goes on with: the model's state
    begins with them. They are not kept themselves; hand them to the next chat again.
    """

    name: str
    messages: tuple[Message, ...]
    model: str = ""
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"


class ContextLoad(Call, frozen=True, array_like=True, kw_only=True, tag=42):
    """The conversation that is kept under ``name`` (``ENOENT``: none of this pair is). Unless
    ``warm`` is false, what is kept of its model's state is given back to the model first, which is
    started for that; the text comes without where that takes longer than 30 s or fails."""

    name: str
    warm: bool = True


class ContextList(Call, frozen=True, array_like=True, kw_only=True, tag=43):
    """The contexts of this agent with this user, by name."""


class ContextDrop(Call, frozen=True, array_like=True, kw_only=True, tag=44):
    """Remove the context ``name``, its text and its model's state (``ENOENT``: there is none). It
    is durable when the reply comes, and soon nothing of it is left in any file of the store."""

    name: str


class LearnSubmit(Call, frozen=True, array_like=True, kw_only=True, tag=45):
    """Hand in a finished attempt of ``task``, to be learned from [M]. The reply comes when it is
    durable, with its secrets replaced; learning goes on behind, one attempt at a time.

    ``outcome`` is the verdict that a verifier has recorded, ``verifier_tail`` its last words;
    ``claim`` is what the agent itself thinks came of it, which a verdict overrides. A second
    submission of this pair with the same ``key`` (128 bytes at most; empty: none) is the first one,
    and not learned from again. ``task``, ``verifier_tail`` and ``claim`` take 8 KiB each, the
    trajectory 512 KiB of MessagePack (``EMSGSIZE``); at most 64 of a pair may wait, and 4 of a
    channel for the disk (``EAGAIN``).
    """

    task: str
    trajectory: tuple[Message, ...]
    outcome: Literal["passed", "failed", "error", "timeout", "unknown"] = "unknown"
    verifier_tail: str = ""
    claim: str = ""
    key: str = ""


class LearnStatus(Call, frozen=True, array_like=True, kw_only=True, tag=46):
    """What became of submission ``id`` of this pair (``ENOENT``), or of its ``limit`` latest ones,
    newest first. The operator may name nobody's ``id`` and sees those of all pairs; with ``retry``
    (the operator, or the pair itself) a parked one is tried again."""

    id: str = ""
    limit: int = 20
    retry: bool = False


class LearnLessons(Call, frozen=True, array_like=True, kw_only=True, tag=47):
    """The entries in view whose situation is nearest to ``task``, for each scope (of ``scopes``, or
    all) as many whole ones as ``budget`` characters hold (100 to 200,000) [M 3.4]."""

    task: str
    budget: int = 20_000
    scopes: tuple[str, ...] = ()
    barrier_ms: int = 2000


class LearnList(Call, frozen=True, array_like=True, kw_only=True, tag=48):
    """What was learned, newest first, from where the page before ended. An agent is shown what is
    in its view; the operator that names a ``user`` what only that user's agents may read, and what
    comes from that user; the operator that names nobody, all. ``id`` asks for one alone."""

    id: str = ""
    limit: int = 100
    after: str = ""


class LearnEdit(Call, frozen=True, array_like=True, kw_only=True, tag=49):
    """Change an entry of ``version``: other words (an empty part stays), or another ``scope``
    (``pair``, ``user``, ``agent``, ``global``; empty: it stays). An agent may change what its own
    user alone can read; whatever other users can read, now or then, is the operator's to change.
    To widen a scope to other users takes the reusable stream, and of an agent a grant (``EPERM``).
    Along an axis that an entry leaves open it becomes the caller's; for the operator the request's
    ``user``'s, and that of the ``agent`` that it names."""

    id: str
    version: int
    situation: str = ""
    lesson: str = ""
    scope: str = ""
    agent: str = ""


class LearnDelete(Call, frozen=True, array_like=True, kw_only=True, tag=50):
    """Remove an entry, under the rights of ``learn.edit``. Reply as of ``forget``."""

    id: str


class LearnConsent(Call, frozen=True, array_like=True, kw_only=True, tag=51):
    """What may be learned from this user's attempts: ``nothing``, what serves this user alone
    (``own``), or also reusable lessons for others (``share``). Without ``choice`` it is only told.
    An agent may narrow it, the operator alone widen it (``EPERM``). It holds for what is learned
    and for what reviews share from now on, attempts that wait included."""

    choice: Literal["", "nothing", "own", "share"] = ""


class LearnReview(Call, frozen=True, array_like=True, kw_only=True, tag=52):
    """Operator only: review what was learned or changed since the last review. With ``dry_run``
    nothing is changed, and the next review looks at the same again."""

    dry_run: bool = False


Request = (
    Hello | Ping | Whoami | SessionOpen | Grant | Spawn | WaitPid | Kill | Exit | ListProcesses
    | Remember | Search | Read | MemoryList | Update | Forget | Chat | Models | Why | Cancel
    | Expire | Rescope | Groups | GroupChange | ViewOf | MemorySearch | MemoryRead
    | SessionSearch | FullContext | MemoryFiles | Prefetch | ForgetMatching | ForgetUser
    | ReceiptOf | Export | Import | Backup | Statistics | Schedule | Metering
    | ContextSave | ContextLoad | ContextList | ContextDrop
    | LearnSubmit | LearnStatus | LearnLessons | LearnList | LearnEdit | LearnDelete
    | LearnConsent | LearnReview
    | mail.Request | effects.Request | timers.Request | quotas.Request
    | supervision.Request
    | tools.Request
    | files.Request
)  # fmt: skip


class Failed(Reply, frozen=True, array_like=True, kw_only=True, tag=101):
    """The typed end of a call: error number, message, the field at fault, the call's story."""

    errno: int
    message: str
    field: str = ""
    story: tuple[str, ...] = ()
    retry_at: int = 0
    """When the same request may succeed (ns since 1970 UTC); 0: not known, or never."""


class Part(Reply, frozen=True, array_like=True, kw_only=True, tag=102):
    """A piece of a streamed reply; more follows."""

    text: str


class Done(Reply, frozen=True, array_like=True, kw_only=True, tag=103):
    """It is done, and there is nothing to say."""


class Welcome(Reply, frozen=True, array_like=True, kw_only=True, tag=104):
    """The agreed ABI version, the features of both sides, and who the channel is."""

    version: int
    features: tuple[str, ...]
    agent: str
    pid: int
    max_frame: int
    max_calls: int


class Pong(Reply, frozen=True, array_like=True, kw_only=True, tag=105):
    payload: str


class Identity(Reply, frozen=True, array_like=True, kw_only=True, tag=106):
    """``rule`` is which rule chose ``user``: request, session, registry or agent [K 3.1]."""

    agent: str
    user: str
    rule: str
    pid: int
    operator: bool
    users: tuple[str, ...]
    scopes: tuple[str, ...]


class SessionOpened(Reply, frozen=True, array_like=True, kw_only=True, tag=107):
    user: str
    rule: str


class Spawned(Reply, frozen=True, array_like=True, kw_only=True, tag=108):
    """``user`` is whom the process serves; empty: itself."""

    pid: int
    user: str
    rule: str


class Exited(Reply, frozen=True, array_like=True, kw_only=True, tag=109):
    """Of a ``kill``: ``ended`` names the processes that it ended, ``left`` those that descend from
    them and live on."""

    process: Process
    ended: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class Processes(Reply, frozen=True, array_like=True, kw_only=True, tag=110):
    processes: tuple[Process, ...]


class Stored(Reply, frozen=True, array_like=True, kw_only=True, tag=111):
    """``duplicate``: the same pair had already stored the same text there, under the same labels;
    ``id`` is that unit. ``note`` says why a unit is narrower than was asked, and
    how many NUL characters were dropped."""

    id: str
    version: int
    scope: str
    user: str
    rule: str
    duplicate: bool = False
    note: str = ""
    secrets: dict[str, int] = {}
    """What the secrets guard replaced before anything was stored: how many of each type."""


class Found(Reply, frozen=True, array_like=True, kw_only=True, tag=112):
    hits: tuple[Hit, ...]
    call: str
    user: str
    rule: str
    barrier: Barrier
    timings: Timings


class Units(Reply, frozen=True, array_like=True, kw_only=True, tag=113):
    """``next`` continues a list; empty on the last page."""

    units: tuple[Unit, ...]
    user: str
    rule: str
    barrier: Barrier
    next: str = ""


class Chatted(Reply, frozen=True, array_like=True, kw_only=True, tag=114):
    """The answer, and what the kernel did for it.

    ``finish``: stop, length or cancelled. ``counter`` names the tokenizer that counted the
    budget. ``kept`` is the id of the stored exchange, where asked for; ``secrets`` says what the
    secrets guard replaced in it, how many of each type. ``cached_tokens`` of the prompt's were
    there already and were not computed again. ``calls`` are the calls of tools that the model
    wants made, in its order, beside or in place of a text. ``logprobs`` are, where asked for, of
    all output tokens in order, those of a call included; an endpoint may leave some out.

    ``made`` are the calls of tools that the kernel has made, in order, and ``turns`` the turns
    that they added, after which the conversation goes on. Tokens and times are then those of all
    rounds.
    """

    text: str
    call: str
    model: str
    user: str
    rule: str
    finish: str
    injected: tuple[Injected, ...]
    budget: int
    counter: str
    barrier: Barrier
    timings: Timings
    prompt_tokens: int
    output_tokens: int
    injected_tokens: int
    kept: str = ""
    secrets: dict[str, int] = {}
    cached_tokens: int = 0
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    made: tuple[ToolMade, ...] = ()
    turns: tuple[Message, ...] = ()


class ModelList(Reply, frozen=True, array_like=True, kw_only=True, tag=115):
    models: tuple[Model, ...]


class Record(Reply, frozen=True, array_like=True, kw_only=True, tag=116):
    """The audit record of a search or chat: which units, at which sequences, and why.

    ``sequences`` holds (scope, accepted) of each partition of the view, narrow to wide. It
    names units by id, version and hash and holds no text of any.
    """

    call: str
    syscall: str
    agent: str
    user: str
    rule: str
    at: int
    barrier: Barrier
    sequences: tuple[tuple[str, int], ...] = ()
    units: tuple[Injected, ...] = ()
    model: str = ""
    budget: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    injected_tokens: int = 0
    timings: Timings = Timings()
    errno: int = 0
    query_hash: str = ""
    forgotten: bool = False
    """Its user was forgotten since: of the user, the question and the units nothing is left. A
    forgotten user's unit in another's record is there without its id and hash."""
    cached_tokens: int = 0


class Forgotten(Reply, frozen=True, array_like=True, kw_only=True, tag=117):
    """The unit is in no view any more. ``receipt`` names the demand that it leave every file;
    ``derived`` lists units in view that say they come from it."""

    id: str
    user: str
    rule: str
    receipt: str = ""
    derived: tuple[str, ...] = ()


class GroupList(Reply, frozen=True, array_like=True, kw_only=True, tag=118):
    groups: tuple[Group, ...]


class ViewShown(Reply, frozen=True, array_like=True, kw_only=True, tag=119):
    """The partitions of the view of (``user``, ``agent``), narrow to wide."""

    agent: str
    user: str
    rule: str
    seen: tuple[Seen, ...]
    barrier: Barrier


class Rounds(Reply, frozen=True, array_like=True, kw_only=True, tag=120):
    """``truncated``: more was in view than is shown. ``parts`` is above 1 iff messages were cut:
    ``memory.read`` gives all of them in so many parts."""

    rounds: tuple[Round, ...]
    call: str
    user: str
    rule: str
    barrier: Barrier
    truncated: bool = False
    parts: int = 1


class Files(Reply, frozen=True, array_like=True, kw_only=True, tag=121):
    files: tuple[MemoryFile, ...]
    user: str
    rule: str
    barrier: Barrier


class Prefetched(Reply, frozen=True, array_like=True, kw_only=True, tag=122):
    """``text`` is the fenced block, empty where nothing in view is near enough."""

    text: str
    call: str
    model: str
    user: str
    rule: str
    injected: tuple[Injected, ...]
    budget: int
    counter: str
    injected_tokens: int
    barrier: Barrier
    timings: Timings


class Matched(Reply, frozen=True, array_like=True, kw_only=True, tag=123):
    """First step: ``count`` units are named, of which ``units`` shows a page; ``confirm`` is the
    word for the second step (empty: nothing is named); ``more``: further ones fit than one demand
    takes. Second step: ``count`` are forgotten, and ``receipt`` names the demand (empty: none
    was); ``skipped`` were named, and have been changed, moved or forgotten since. ``scopes``: of
    a user who is to be forgotten, how many of the units are in each scope."""

    units: tuple[Unit, ...]
    count: int
    confirm: str
    receipt: str = ""
    more: bool = False
    skipped: int = 0
    scopes: dict[str, int] = {}


class ReceiptShown(Reply, frozen=True, array_like=True, kw_only=True, tag=124):
    """``issued_at`` (ns since 1970 UTC) is 0 until nothing of ``units`` is left in any file."""

    receipt: str
    asked_at: int
    issued_at: int
    units: tuple[str, ...]


class Exported(Reply, frozen=True, array_like=True, kw_only=True, tag=125):
    """``next`` continues; empty on the last page."""

    lines: tuple[str, ...]
    next: str = ""


class Imported(Reply, frozen=True, array_like=True, kw_only=True, tag=126):
    """``failed`` says of each line that was not taken which (from 0) and why, ``secrets`` what the
    secrets guard replaced, how many of each type."""

    stored: int
    known: int
    failed: tuple[str, ...] = ()
    secrets: dict[str, int] = {}


class BackedUp(Reply, frozen=True, array_like=True, kw_only=True, tag=127):
    path: str
    bytes: int


class Figures(Reply, frozen=True, array_like=True, kw_only=True, tag=128):
    """``figures`` by name; those of the store begin with ``store_``."""

    figures: dict[str, int]


class Queues(Reply, frozen=True, array_like=True, kw_only=True, tag=129):
    """The queues that were asked for, as they now stand."""

    queues: tuple[ModelQueue, ...]


class Metered(Reply, frozen=True, array_like=True, kw_only=True, tag=130):
    """What was asked for, by name. ``at`` (ns since 1970 UTC) is when it was so."""

    at: int
    usage: tuple[Usage, ...]


class ContextSaved(Reply, frozen=True, array_like=True, kw_only=True, tag=131):
    """The text is durable. ``bytes`` are those of its messages (as MessagePack), ``replaced``
    says that the name had another, ``secrets`` what the secrets guard replaced, how many of each
    type. ``tokens`` of it are kept as the state of ``model`` (0: none is)."""

    name: str
    model: str
    user: str
    rule: str
    bytes: int
    replaced: bool = False
    tokens: int = 0
    secrets: dict[str, int] = {}


class ContextLoaded(Reply, frozen=True, array_like=True, kw_only=True, tag=132):
    """The conversation as it is kept. ``tokens`` of it are warm: ``model`` holds them and need not
    compute them for the pair's next chat that begins so (0: it computes all from the text)."""

    name: str
    model: str
    user: str
    rule: str
    messages: tuple[Message, ...]
    saved_at: int
    tokens: int = 0


class Contexts(Reply, frozen=True, array_like=True, kw_only=True, tag=133):
    contexts: tuple[SavedContext, ...]
    user: str
    rule: str


class Submissions(Reply, frozen=True, array_like=True, kw_only=True, tag=134):
    """``known``: of ``learn.submit``, that this very submission was there already. ``waiting``
    counts the submissions of this pair that are not at their end; for the operator those of the
    user that it names, or of all."""

    submissions: tuple[Submission, ...]
    user: str = ""
    rule: str = ""
    known: bool = False
    waiting: int = 0


class Lessons(Reply, frozen=True, array_like=True, kw_only=True, tag=135):
    """``text`` is ready to be put before a model: a header a scope (``# Learned memory: user``),
    and under it a line an entry, nearest first. ``files`` holds the same, one a scope."""

    text: str
    entries: tuple[Entry, ...]
    files: tuple[MemoryFile, ...]
    call: str
    user: str
    rule: str
    barrier: Barrier


class Entries(Reply, frozen=True, array_like=True, kw_only=True, tag=136):
    """``next`` continues; empty on the last page."""

    entries: tuple[Entry, ...]
    next: str = ""


class Consent(Reply, frozen=True, array_like=True, kw_only=True, tag=137):
    user: str
    choice: str


class Reviewed(Reply, frozen=True, array_like=True, kw_only=True, tag=138):
    """``changed`` entries were new or other than at the last review, ``looked_at`` entries were
    compared in ``batches``, and the model (if one judged) was asked with ``tokens`` in all."""

    changed: int
    looked_at: int
    batches: int
    changes: tuple[Change, ...]
    judge: str
    tokens: int = 0


AnyReply = (
    Failed | Part | Done | Welcome | Pong | Identity | SessionOpened | Spawned | Exited
    | Processes | Stored | Found | Units | Chatted | ModelList | Record | Forgotten
    | GroupList | ViewShown | Rounds | Files | Prefetched | Matched | ReceiptShown | Exported
    | Imported | BackedUp | Figures | Queues | Metered | ContextSaved | ContextLoaded | Contexts
    | Submissions | Lessons | Entries | Consent | Reviewed
    | mail.AnyReply | effects.AnyReply | timers.AnyReply | quotas.AnyReply
    | supervision.AnyReply
    | tools.AnyReply
    | files.AnyReply
)  # fmt: skip

REPLY_OF: dict[type[Call], type[Reply]] = {
    Hello: Welcome,
    Ping: Pong,
    Whoami: Identity,
    SessionOpen: SessionOpened,
    Grant: Done,
    Spawn: Spawned,
    WaitPid: Exited,
    Kill: Exited,
    Exit: Done,
    ListProcesses: Processes,
    Remember: Stored,
    Search: Found,
    Read: Units,
    MemoryList: Units,
    Update: Stored,
    Forget: Forgotten,
    Chat: Chatted,
    Models: ModelList,
    Why: Record,
    Cancel: Done,
    Expire: Stored,
    Rescope: Stored,
    Groups: GroupList,
    GroupChange: GroupList,
    ViewOf: ViewShown,
    MemorySearch: Rounds,
    MemoryRead: Rounds,
    SessionSearch: Rounds,
    FullContext: Rounds,
    MemoryFiles: Files,
    Prefetch: Prefetched,
    ForgetMatching: Matched,
    ForgetUser: Matched,
    ReceiptOf: ReceiptShown,
    Export: Exported,
    Import: Imported,
    Backup: BackedUp,
    Statistics: Figures,
    Schedule: Queues,
    Metering: Metered,
    ContextSave: ContextSaved,
    ContextLoad: ContextLoaded,
    ContextList: Contexts,
    ContextDrop: Done,
    LearnSubmit: Submissions,
    LearnStatus: Submissions,
    LearnLessons: Lessons,
    LearnList: Entries,
    LearnEdit: Stored,
    LearnDelete: Forgotten,
    LearnConsent: Consent,
    LearnReview: Reviewed,
    **mail.REPLY_OF,
    **effects.REPLY_OF,
    **timers.REPLY_OF,
    **quotas.REPLY_OF,
    **supervision.REPLY_OF,
    supervision.Heartbeat: Done,
    **tools.REPLY_OF,
    **files.REPLY_OF,
}
"""What each syscall answers with where it does not answer :class:`Failed`."""

NAMES: dict[type[Call], str] = {
    Hello: "hello",
    Ping: "ping",
    Whoami: "whoami",
    SessionOpen: "session.open",
    Grant: "grant",
    Spawn: "spawn",
    WaitPid: "wait",
    Kill: "kill",
    Exit: "exit",
    ListProcesses: "list",
    Remember: "remember",
    Search: "search",
    Read: "read",
    MemoryList: "memory.list",
    Update: "update",
    Forget: "forget",
    Chat: "chat",
    Models: "models",
    Why: "why",
    Cancel: "cancel",
    Expire: "expire",
    Rescope: "rescope",
    Groups: "groups",
    GroupChange: "group.change",
    ViewOf: "memory.view",
    MemorySearch: "memory.search",
    MemoryRead: "memory.read",
    SessionSearch: "session.search",
    FullContext: "memory.all",
    MemoryFiles: "memory.files",
    Prefetch: "prefetch",
    ForgetMatching: "forget.matching",
    ForgetUser: "forget.user",
    ReceiptOf: "receipt",
    Export: "export",
    Import: "import",
    Backup: "backup",
    Statistics: "statistics",
    Schedule: "schedule",
    Metering: "metering",
    ContextSave: "context.save",
    ContextLoad: "context.load",
    ContextList: "context.list",
    ContextDrop: "context.drop",
    LearnSubmit: "learn.submit",
    LearnStatus: "learn.status",
    LearnLessons: "learn.lessons",
    LearnList: "learn.list",
    LearnEdit: "learn.edit",
    LearnDelete: "learn.delete",
    LearnConsent: "learn.consent",
    LearnReview: "learn.review",
    **mail.NAMES,
    **effects.NAMES,
    **timers.NAMES,
    **quotas.NAMES,
    **supervision.NAMES,
    **tools.NAMES,
    **files.NAMES,
}
"""The name of each syscall, as documents, logs and audit records write it."""
