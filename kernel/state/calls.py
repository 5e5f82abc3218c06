"""Outstanding calls: where each one stands, and the story it tells when it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from isovist.kernel.state.users import Resolved
from isovist.syscalls.errors import KernelError
from isovist.syscalls.messages import NAMES, Request
from isovist.syscalls.operations import Candidate, Put, Selection
from isovist.syscalls.records import (
    Barrier,
    Injected,
    Leg,
    Logprob,
    Message,
    Partition,
    Timings,
    ToolCall,
    ToolMade,
    View,
)

READY = Barrier(state="ready")
NOTHING = Selection()
STORY = 32
"""Steps that a story keeps."""


class Step(Enum):
    """Where a call waits. A call that is answered at once is never in the table at all."""

    NEW = auto()
    BARRIER = auto()
    LOCATE = auto()
    RETRIEVE = auto()
    RENDER = auto()
    QUEUE = auto()
    DECODE = auto()
    COMMIT = auto()
    KEEP = auto()
    SPAWN = auto()
    EXIT = auto()
    LOOKUP = auto()
    SAVE = auto()
    WARM = auto()
    LEDGER = auto()
    """The store decides on an effect, a message or a timer."""
    BOX = auto()
    """There is no mail, or no room for it."""
    TOOLS = auto()


_NEXT: dict[Step, frozenset[Step]] = {
    Step.NEW: frozenset(Step) - {Step.NEW, Step.DECODE, Step.KEEP, Step.WARM},
    # What tools there are is known; or what they have answered, and the model is asked again.
    Step.TOOLS: frozenset({Step.BARRIER, Step.RETRIEVE, Step.RENDER}),
    Step.BARRIER: frozenset({Step.RETRIEVE}),
    Step.LOCATE: frozenset({Step.COMMIT}),
    Step.RETRIEVE: frozenset({Step.RENDER, Step.COMMIT}),
    # A forgotten unit is gone; then what comes from it is looked for.
    Step.COMMIT: frozenset({Step.RETRIEVE, Step.LOOKUP}),
    # The text of a context is durable, or found; then its model writes its state, or takes it in.
    Step.SAVE: frozenset({Step.WARM}),
    # An import has units, and groups and grants, to be made durable.
    Step.LOOKUP: frozenset({Step.COMMIT, Step.RETRIEVE, Step.WARM}),
    Step.LEDGER: frozenset({Step.BOX}),
    Step.BOX: frozenset({Step.LEDGER}),
    Step.RENDER: frozenset({Step.QUEUE}),
    # Another model is asked with a prompt of its own, when one is down.
    Step.QUEUE: frozenset({Step.DECODE, Step.RENDER}),
    # Back to the queue when paused, or when a driver dies before its first token was passed on.
    Step.DECODE: frozenset({Step.KEEP, Step.QUEUE, Step.RENDER, Step.TOOLS}),
}
"""The only steps that may follow; from everywhere a call may also end."""


@dataclass(slots=True)
class Call:
    """One outstanding request. ``key`` is the kernel's own number for it, ``call`` its caller's."""

    key: int
    channel: int
    call: int
    request: Request
    agent: str
    at: int
    id: str = ""
    resolved: Resolved | None = None
    view: View | None = None
    part: View | None = None
    """The part of its view that the next question is put to (``None``: all of it)."""
    legs: tuple[Leg, ...] = ()
    """The legs that the barrier waits for."""
    barrier: Barrier = READY
    sequences: tuple[tuple[str, int], ...] = ()
    selection: Selection = NOTHING
    turn: int = 0
    """Retrievals that were asked for so far: an answer to an earlier one is late."""
    found: list[Candidate] = field(default_factory=list)
    """What earlier retrievals of this call gave."""
    cut: set[str] = field(default_factory=set)
    """Scopes of which not all fits the reply."""
    step: Step = Step.NEW
    entered: dict[Step, int] = field(default_factory=dict)
    spent: dict[Step, int] = field(default_factory=dict)
    story: list[tuple[int, str]] = field(default_factory=list)
    generation: Generation | None = None
    put: Put | None = None
    receipt: str = ""
    drops: dict[tuple[Partition, int], int | None] = field(default_factory=dict)
    """By number: what became of each unit that this call forgets (``None``: not known yet)."""
    work: object = None
    """What the module that serves this syscall alone knows of it."""
    note: str = ""

    @property
    def name(self) -> str:
        return NAMES[type(self.request)]

    @property
    def owner(self) -> str:
        """As whom drivers know the pair of this call. No agent's name holds a ``/``."""
        return f"{self.agent}/{self.resolved.user if self.resolved else ''}"

    def to(self, step: Step, now: int, word: str = "") -> None:
        """Move to ``step``. Raises :class:`KernelError` where it may not follow."""
        if step not in _NEXT.get(self.step, frozenset()):
            raise KernelError(
                f"{self.name}: no way from {self.step.name} to {step.name}", story=self.told()
            )
        self.leave(now)
        self.step = step
        self.entered[step] = now
        self.tell(now, f"{step.name.lower()} {word}" if word else step.name.lower())

    def leave(self, now: int) -> None:
        """Book the time of the present step."""
        since = self.entered.pop(self.step, None)
        if since is not None:
            self.spent[self.step] = self.spent.get(self.step, 0) + now - since

    def tell(self, now: int, word: str) -> None:
        if len(self.story) < STORY:
            self.story.append((now, word))

    def told(self) -> tuple[str, ...]:
        """The story so far, as lines: milliseconds since arrival and what happened."""
        return tuple(f"+{(at - self.at) / 1e6:.3f} ms {word}" for at, word in self.story)

    def timings(self, now: int) -> Timings:
        def ms(*steps: Step) -> float:
            return sum(self.spent.get(step, 0) for step in steps) / 1e6

        return Timings(
            barrier=ms(Step.BARRIER),
            retrieval=ms(Step.RETRIEVE, Step.LOCATE),
            render=ms(Step.RENDER),
            queue=ms(Step.QUEUE),
            model=ms(Step.DECODE),
            total=(now - self.at) / 1e6,
            prefill=self.generation.prefill_ns / 1e6 if self.generation else 0.0,
            decode=self.generation.decode_ns / 1e6 if self.generation else 0.0,
        )


@dataclass(slots=True)
class Loop:
    """What a chat adds whose tools the kernel calls: ``names`` are those tools by the names that
    the model knows them by. Tokens and ns are those of the rounds before this one."""

    names: dict[str, str] = field(default_factory=dict)
    round: int = 0
    made: list[ToolMade] = field(default_factory=list)
    turns: list[Message] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    """What the model has said in earlier rounds and was streamed."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0


@dataclass(slots=True)
class Generation:
    """What a chat call adds: its model, its prompt, and the text so far.

    ``asked`` is the model that was asked for, ``tried`` those that have failed it.

    Invariant: ``passed_on`` iff a part of the text has left for the caller, so that the call can
    no longer be given to another driver.
    """

    model: str
    budget: int
    prompt: object = None
    prompt_tokens: int = 0
    injected: tuple[Injected, ...] = ()
    injected_tokens: int = 0
    counter: str = ""
    tries: int = 0
    text: list[str] = field(default_factory=list)
    charged: int = 0
    """Tokens of the answer so far, of this try."""
    tokens: int = 0
    cached: int = 0
    """Tokens of the prompt that the driver need not compute."""
    prefill_ns: int = 0
    decode_ns: int = 0
    finish: str = "stop"
    passed_on: bool = False
    asked: str = ""
    tried: set[str] = field(default_factory=set)
    calls: tuple[ToolCall, ...] = ()
    logprobs: list[Logprob] = field(default_factory=list)
    loop: Loop | None = None
    told: int = 0
    """Of ``tokens``, those of earlier rounds, of which the quota knows already."""

    def anew(self) -> None:
        """Forget what a try has made of the answer: another one begins."""
        self.text.clear()
        self.logprobs.clear()
        self.calls = ()
        self.charged = 0
