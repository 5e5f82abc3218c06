"""Records that several floors share: partitions, views, units, and what a reply shows of them.

Sources: [K] kernel-managed shared memory, [S] memory as a shared space, [M] MixUA.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isovist.syscalls.errors import KernelError

Kind = Literal["profile", "task_context", "conversation", "lesson", "note", "file"]
ScopeName = Literal["pair", "user", "agent", "global"]
Stream = Literal["reusable", "protected"]
Mode = Literal["bm25", "dense", "hybrid", "rrf"]
Leg = Literal["lexical", "dense"]
LEGS: tuple[Leg, Leg] = ("lexical", "dense")

KINDS: tuple[str, ...] = ("profile", "task_context", "conversation", "lesson", "note", "file")
SCOPES: tuple[str, ...] = ("pair", "user", "agent", "global")


class Axis(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Who is admitted along one axis: one name, the members of a group, or all.

    Invariant: ``name`` is empty iff ``kind`` is ``"all"``.
    """

    kind: Literal["one", "group", "all"]
    name: str = ""

    def __str__(self) -> str:
        """As an audience writes it, seen from its owner: ``own``, ``@group`` or ``all``."""
        return {"one": "own", "group": f"@{self.name}", "all": "all"}[self.kind]

    def admits(self, name: str, groups: frozenset[str] = frozenset()) -> bool:
        """True iff somebody called ``name``, a member of ``groups``, is admitted."""
        if self.kind == "one":
            return self.name == name
        return self.kind == "all" or self.name in groups


ALL = Axis("all")


class Partition(msgspec.Struct, frozen=True, array_like=True, order=True):
    """All units with one audience: the product of a user axis and an agent axis.

    A key of two axes and never a joined string, so that users ``a_b`` and ``a`` cannot meet.
    """

    users: Axis
    agents: Axis

    @property
    def scope(self) -> str:
        """The name of this audience's shape: pair, user, agent or global; where a group is in it,
        both axes as :func:`audience_of` reads them (``@team/own``)."""
        if "group" in (self.users.kind, self.agents.kind):
            return f"{self.users}/{self.agents}"
        return {
            ("one", "one"): "pair",
            ("one", "all"): "user",
            ("all", "one"): "agent",
            ("all", "all"): "global",
        }[self.users.kind, self.agents.kind]


def partition_of(scope: str, user: str, agent: str) -> Partition:
    """The partition of a named scope as seen from the pair (user, agent)."""
    users = Axis("one", user) if scope in ("pair", "user") else ALL
    agents = Axis("one", agent) if scope in ("pair", "agent") else ALL
    return Partition(users, agents)


def audience_of(scope: str, user: str, agent: str) -> Partition | None:
    """The partition that ``scope`` names as seen from the pair: a named scope, or two axes as in
    ``own/@writers``, ``@team/own``, ``@team/all``. ``None`` where it names none."""
    if scope in SCOPES:
        return partition_of(scope, user, agent)
    users, slash, agents = scope.partition("/")
    first, second = _axis(users, user), _axis(agents, agent)
    return Partition(first, second) if slash and first and second else None


def _axis(text: str, own: str) -> Axis | None:
    if text == "own":
        return Axis("one", own)
    if text == "all":
        return ALL
    return Axis("group", text[1:]) if len(text) > 1 and text[0] == "@" else None


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """The pair that asks, after user resolution (design: identity order [K 3.1])."""

    user: str
    agent: str


class Seal:
    """The right to mint a :class:`View`. Exists once; ``kernel/state`` takes it at import."""

    _taken = False

    def __init__(self) -> None:
        if Seal._taken:
            raise KernelError("the seal for views is taken: views are minted in one module only")
        Seal._taken = True


class View:
    """The partitions that a reader may see; storage reads nothing without one.

    Immutable. ``partitions`` is ordered (narrow to wide), has no duplicates, and holds all and
    only the partitions whose both axes admit the reader. Only the holder of the :class:`Seal`
    can make one, so a function that takes a ``View`` cannot be reached with a made-up audience.
    """

    __slots__ = ("partitions", "reader")

    reader: Reader
    partitions: tuple[Partition, ...]

    def __init__(self, seal: Seal, reader: Reader, partitions: tuple[Partition, ...]) -> None:
        if not isinstance(seal, Seal):
            raise KernelError("a view needs the kernel's seal")
        object.__setattr__(self, "reader", reader)
        object.__setattr__(self, "partitions", partitions)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a view is immutable")

    def __repr__(self) -> str:
        return f"View({self.reader}, {len(self.partitions)} partitions)"


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One stored memory as a reader sees it.

    ``id`` is opaque: it says nothing about how many units exist and orders nothing. ``user`` is
    empty where the owner is another user than the reader. Times are nanoseconds since 1970 UTC.
    ``version`` counts updates from 1.
    """

    id: str
    version: int
    text: str
    kind: str
    scope: str
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
    """Opaque name of the owner's session, by which its rounds can be read; empty without one."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One search result: a unit, its best chunk (at most 1,000 characters) and its score.
    ``unit.text`` is whole where the unit is one chunk, else that chunk: ``read`` gives the rest.

    ``score`` orders the results of one search; it depends on the reader's view alone.
    """

    unit: Unit
    chunk: str
    score: float


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """What the barrier found [K 3.4, eq. 3].

    ``state`` is ``ready`` iff each asked leg holds every write accepted, in any partition of the
    view, before the syscall arrived; else ``timed_out``, and ``lagging`` names the legs.
    """

    state: Literal["ready", "timed_out"]
    waited_ms: float = 0.0
    lagging: tuple[str, ...] = ()


class Injected(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was shown: which, whose, how wide, how long (in the model's tokens), and why.

    ``score`` ordered the units of this one call; ``coverage`` (share of the question's words,
    weighed by rarity) and ``cosine`` (nearness of meaning) are what the floor of relevance was set
    on. ``hash`` is a keyed hash of the text: equal texts have equal ones, in this store alone.
    """

    unit: str
    version: int
    owner: str
    scope: str
    kind: str
    tokens: int
    score: float
    hash: str
    coverage: float = 0.0
    cosine: float = 0.0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of users or of agents: ``of`` says which. Members are sorted."""

    name: str
    of: Literal["users", "agents"]
    members: tuple[str, ...]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a view: its audience, why it is in the view, how many living units it
    holds, and the last sequence number accepted in it."""

    scope: str
    users: str
    agents: str
    why: str
    units: int
    accepted: int


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round as memory tools show it [S 3.3].

    ``session`` is opaque (a unit without one has its own id there); ``owner`` is the agent where
    it is not the reader's; ``date`` is ISO 8601, UTC. ``text`` is the best chunk (search, at most
    1,000 characters) or the whole round (read, each message cut at 4,000 characters).
    """

    session: str
    round: int
    date: str
    text: str
    unit: str
    owner: str = ""
    score: float = 0.0


class MemoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """The view of one scope as a file [M 3.4]; ``truncated`` where more units than fit."""

    name: str
    text: str
    units: int
    truncated: bool = False


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a call spent in each stage. ``model`` is all the time with the driver, of
    which it computed for the prompt in ``prefill`` and for the answer in ``decode``; while a call
    is paused it is in the ``queue``."""

    barrier: float = 0.0
    retrieval: float = 0.0
    render: float = 0.0
    queue: float = 0.0
    model: float = 0.0
    total: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One agent process. ``pid`` is the kernel's own number, not the host's.

    ``lineage`` is the name of its work: a process that is started anew after its end has that of
    the one before, whose record names it as ``next`` (0: none was or will be started), after so
    many ``restarts``. ``children`` counts those that it spawned and that live. ``priority`` (0 to
    9) is added to its agent's at the models; ``nice`` (0 to 19) is the host's. ``seconds`` of
    processor and bytes of ``memory`` are told where the host was asked.
    """

    pid: int
    agent: str
    user: str
    state: Literal["starting", "running", "exited", "paused", "restarting"]
    parent: int = 0
    program: str = ""
    status: int | None = None
    reason: str = ""
    stderr: tuple[str, ...] = ()
    calls: int = 0
    lineage: str = ""
    next: int = 0
    restarts: int = 0
    children: int = 0
    priority: int = 0
    nice: int = 0
    seconds: float | None = None
    memory: int | None = None


class ToolRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools that may be called. ``name`` is a pattern (``*``, ``?``, ``[…]``) over ``SERVER.TOOL``.
    Each of ``arguments`` is a pattern that the argument of that name must fit (one that is no text
    is compared as JSON; one that is absent does not fit)."""

    name: str
    arguments: dict[str, str] = {}


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may call.

    ``name`` has 1 to 64 letters (A to Z, a to z), digits, ``_`` and ``-``. ``description`` tells
    the model what it is for, in at most 4,096 characters. ``parameters`` is the JSON schema of its
    argument object, as text of at most 64 KiB; what is no object's schema is taken as one.
    """

    name: str
    description: str = ""
    parameters: str = "{}"


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool that a model has written. ``arguments`` is a JSON object, as text: what a
    model writes may break the tool's schema where an endpoint does not see to it. ``id`` (9
    letters and digits where the kernel made it) is what the message with its result names."""

    name: str
    arguments: str
    id: str = ""


class ToolMade(msgspec.Struct, frozen=True):
    """A call that the kernel made in a chat: in which ``round`` (from 1), of which tool, with what
    (at most 4,096 characters are shown), and how it ended: ``errno`` and ``message``, or
    ``characters`` of an answer, which ``failed`` says was an error of the tool's own. ``output``
    and ``effect`` as in ``tools.call``."""

    round: int
    name: str
    arguments: str
    errno: int = 0
    message: str = ""
    failed: bool = False
    characters: int = 0
    output: str = ""
    effect: str = ""
    ms: int = 0


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """One token of an answer. ``token`` is bytes, as it may be a part of a character. ``logprob``
    is the natural logarithm of its probability (0 at most), in the model's own distribution, at
    temperature 1. ``top`` are the likeliest tokens in its place, likeliest first, itself among
    them where it is one; fewer than were asked for where there are no more."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation. ``content`` may be ``None`` (an empty turn).

    ``calls`` are those that this assistant's turn has made, each with an id of its own (1 to 64
    letters, digits, ``_`` and ``-``); right after it comes a ``tool`` message for each, in any
    order. ``call`` is the id of the call that this ``tool`` message answers; empty where the call
    stands as JSON (``{"name": …, "arguments": {…}}``) in the content of the turn before it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call: str = ""


class ModelLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a model is. ``loaded`` is the share of it that is read from disk, 0 to 1.

    ``running`` and ``waiting`` are calls before it and in its ``slots``; ``cells`` of
    ``cells_total`` tokens are held in the model, and ``host_bytes`` of ``host_total`` bytes of
    conversations in host memory (all 0 where the driver does not say).
    """

    slots: int
    running: int = 0
    waiting: int = 0
    paused: int = 0
    loaded: float = 1.0
    cells: int = 0
    cells_total: int = 0
    host_bytes: int = 0
    host_total: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the chat calls of one agent, user or model (``name``) cost: how many there were, of
    which ``failed``; tokens; and ms in each stage, all calls together. ``running`` and ``waiting``
    are there now. ``cached_tokens`` of the prompt's, and ``injected_tokens``, are among them."""

    name: str
    calls: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    injected_tokens: int = 0
    queue: float = 0.0
    barrier: float = 0.0
    retrieval: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the kernel can reach; ``context`` in tokens, 0 where not yet known. It is
    passed over for its ``fallbacks`` for another ``rest_ms`` ms after it has failed; ``error``
    says how."""

    name: str
    driver: str
    state: Literal["idle", "loading", "up", "failed"]
    context: int = 0
    tokenizer: str = ""
    error: str = ""
    default: bool = False
    rest_ms: int = 0
    fallbacks: tuple[str, ...] = ()
    load: ModelLoad | None = None
    """For the operator alone."""


class ModelClient(msgspec.Struct, frozen=True, kw_only=True):
    """Who shares a model: its calls, and by how many weighted tokens (a prompt's token counts 1, an
    answer's 2) it is ahead of the client that is next, where the policy counts them."""

    name: str
    waiting: int
    running: int
    ahead: float = 0.0


class ModelQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue before a model: its policy, how many calls wait (``paused`` ones among them) and
    run, the tokens served so far, and the clients that have a call here."""

    model: str
    policy: str
    slots: int
    waiting: int
    running: int
    paused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    clients: tuple[ModelClient, ...] = ()


class SavedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that is kept under a name: for which model, how many messages, their bytes
    (as MessagePack), and since when (ns since 1970 UTC)."""

    name: str
    model: str
    messages: int
    bytes: int
    saved_at: int


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an entry comes from: one finished attempt of a task by a pair, and its verdict. Times
    are nanoseconds since 1970 UTC."""

    submission: str
    user: str
    agent: str
    outcome: str
    at: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned: in which ``situation`` which ``lesson`` holds, for whom, and from where.

    ``id`` and ``version`` are its unit's. ``readers`` says in words who may read it. ``origins``
    are those of the reader's own user (all of them for the operator), oldest first; ``writer`` is
    ``rules``, a model's name, or ``person`` where a person has changed it last.
    """

    id: str
    version: int
    situation: str
    lesson: str
    scope: str
    stream: Stream
    agent: str
    user: str
    stored_at: int
    readers: str = ""
    writer: str = ""
    origins: tuple[Origin, ...] = ()


LearnState = Literal["queued", "learning", "done", "parked", "refused"]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A finished attempt that was handed in, and what has been learned from it.

    ``parked``: it could not be learned from, and ``error`` says why. While its text is ``kept`` it
    can be tried again: that of the 16 latest of a pair is, unless its user wants nothing learned.
    ``refused``: its user wants nothing learned, and nothing of it was kept. ``cut`` counts what the
    kernel took out of the reusable stream, ``denied`` the operations of writers that broke a rule
    (``reasons`` says which rules), ``secrets`` what the guard replaced, by type. ``writer`` is
    ``rules`` or the name of the model.
    """

    id: str
    user: str
    agent: str
    state: LearnState
    outcome: str
    submitted_at: int
    ended_at: int = 0
    added: int = 0
    revised: int = 0
    deleted: int = 0
    denied: int = 0
    cut: int = 0
    reasons: tuple[str, ...] = ()
    secrets: dict[str, int] = {}
    writer: str = ""
    error: str = ""
    entries: tuple[str, ...] = ()
    kept: bool = True


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a review changes, or (a dry run) would: ``rescope`` of one entry to ``scope``, or
    ``merge`` of several into the first of them."""

    what: Literal["rescope", "merge"]
    entries: tuple[str, ...]
    scope: str
    situation: str = ""
    lesson: str = ""
    done: bool = False
    why: str = ""
