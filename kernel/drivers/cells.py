"""What the model's sequences hold, who may have them next, and what is kept in host memory.

A sequence holds the cells of some tokens, in order from the first. A new prompt takes over the
longest beginning of it that it may have: in place, where its own last conversation lies; else as a
copy, so that what several agents share is computed once.

**Who may have what.** An owner may have all that was computed for it. Of another's it may have the
*head* (what stands before the first word of a conversation: the system prompt) if its own head is
the very same, and nothing else. Otherwise the time that a prompt takes, and how much of it was
cached, would tell whether another has begun with the same words, and by one more word at a time
what they are. Who hears that its head was known had the whole of it before.

**Eviction.** Where a prompt needs a sequence and none is empty, one is taken in this order: what
another sequence or the host holds as well (it costs nothing to rebuild), idle before paused, least
recently used, fewest tokens (cheapest to rebuild). A running one is never taken. What is evicted is
saved to host memory where measured costs say that saving and loading is cheaper than computing
again, and dropped otherwise. Host memory has a limit in bytes; there too the least recently used
goes first.

Pure: the model is behind :class:`Holder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

REUSE = 16
"""A common beginning that is shorter is not worth a copy."""


class Holder(Protocol):
    """Where sequences lie: :class:`~isovist.kernel.drivers.engine.Engine`, or a fake."""

    partial: bool

    def cut(self, sequence: int, keep: int) -> int: ...
    def save(self, sequence: int) -> Any: ...
    def load(self, sequence: int, state: Any) -> bool: ...
    def spare(self, state: Any) -> None:
        """Nobody needs the state any more."""

    def flush(self) -> None:
        """Hold nothing of states that nobody needs."""


class Clock(Protocol):
    def __call__(self) -> int: ...


class Held(msgspec.Struct):
    """A sequence of the model.

    Invariant: it holds cells for all and only ``tokens``, at positions from 0; ``empty`` iff there
    are none and nobody uses it.
    """

    number: int
    tokens: list[int] = []
    state: Literal["empty", "idle", "paused", "running"] = "empty"
    owner: str = ""
    head: int = 0
    """So many of its first tokens are what others with the same head may have."""
    used: int = 0
    passing: bool = False
    """What it holds goes when its request ends, and is saved nowhere."""


class Saved(msgspec.Struct):
    """A state in host memory."""

    tokens: list[int]
    state: Any
    owner: str
    head: int
    used: int

    @property
    def bytes(self) -> int:
        return len(self.state)


class Wanted(NamedTuple):
    """A prompt that looks for what is held of it."""

    tokens: Sequence[int]
    owner: str
    head: int


class Costs:
    """Measured ns a token of computing, saving and loading; moving counts as free until tried."""

    def __init__(self) -> None:
        self._ns: dict[str, float] = {}

    def took(self, what: Literal["read", "save", "load"], tokens: int, ns: int) -> None:
        if tokens > 0:
            old = self._ns.get(what, ns / tokens)
            self._ns[what] = old + 0.3 * (ns / tokens - old)

    def worth_saving(self) -> bool:
        """Is moving a token out and in again cheaper than computing it?"""
        move = self._ns.get("save", 0.0) + self._ns.get("load", 0.0)
        return "read" not in self._ns or move < self._ns["read"]


class Cells:
    """``host_bytes`` is the most that saved states take together."""

    def __init__(self, holder: Holder, sequences: int, host_bytes: int, clock: Clock) -> None:
        self.costs = Costs()
        self.host_total = host_bytes
        self.host_bytes = 0
        self.swapped = self.swap_ns = 0
        """Tokens moved between the model and host memory so far, and the time it took."""
        self._holder, self._clock = holder, clock
        self._held = [Held(i) for i in range(sequences)]
        self._saved: list[Saved] = []
        self._gone: Any = None
        """The largest of the states that nobody needs. One may be loaded yet when it is forgotten:
        so it is given back before the next is saved, and no sooner."""
        self._used = 0

    def __getitem__(self, sequence: int) -> Held:
        return self._held[sequence]

    @property
    def count(self) -> int:
        """Tokens held by all sequences together."""
        return sum(len(held.tokens) for held in self._held)

    def reusable(self, prompt: Sequence[int], owner: str = "", head: int = 0) -> int:
        """How many of the first tokens of ``prompt`` are held somewhere for ``owner``, all but the
        last one at most: that one's logits are what the first choice is made from."""
        wanted = Wanted(prompt, owner, head)
        every: list[Held | Saved] = [*self._held, *self._saved]
        return max((self._usable(one, wanted) for one in every), default=0)

    def take(self, prompt: Sequence[int], owner: str = "", head: int = 0) -> int | None:
        """A sequence to run ``prompt`` on, which then holds the longest beginning of it that its
        ``owner`` may have (``len(self[sequence].tokens)`` tokens); ``None`` where all are running.
        The first ``head`` tokens are the prompt's head."""
        wanted = Wanted(prompt, owner, head)
        place = self._place(wanted)
        if place is None:
            place = self._victim()
            if place is None:
                return None
            source = self._source(wanted)
            if source is not place:
                state = self._out(source) if isinstance(source, Held) else source
                self._evict(place)
                if state is not None:
                    self._in(place, state, wanted)
                if state is not source and state is not None:
                    self._spare(state.state)
            elif self._usable(place, wanted) < len(place.tokens):
                self._keep(place)  # its end would be lost
        self._cut(place, self._usable(place, wanted))
        place.state, place.passing = "running", False
        place.owner, place.head = owner, head
        self._touch(place)
        return place.number

    def _place(self, wanted: Wanted) -> Held | None:
        """The idle sequence that is the prompt's own: the one with the longest common beginning,
        if nothing but the end of the owner's own last conversation is lost by going on there, and
        nothing longer is held elsewhere."""
        idle = [h for h in self._held if h.state == "idle" and h.owner == wanted.owner]
        best = max(idle, key=lambda h: self._usable(h, wanted), default=None)
        if best is None:
            return None
        size = self._usable(best, wanted)
        if size < REUSE or size < self.reusable(*wanted):
            return None
        return best if wanted.owner or size >= len(best.tokens) - 1 else None

    def _source(self, wanted: Wanted) -> Held | Saved | None:
        """Where the longest beginning is held; ``None`` if it is worth no copy."""
        every: list[Held | Saved] = [*self._saved, *self._held]
        best = max(every, key=lambda one: self._usable(one, wanted), default=None)
        if best is None or self._usable(best, wanted) < REUSE:
            return None
        return best

    def _victim(self) -> Held | None:
        """An empty sequence, or the next in the order of eviction."""
        free = [held for held in self._held if held.state != "running"]
        # Beside the running ones: one product takes consecutive sequences alone.
        empty = [held for held in free if held.state == "empty"]
        if empty:
            return empty[0]
        return min(
            free,
            key=lambda h: (
                not (h.state == "idle" and self._elsewhere(h)),
                h.state == "paused",
                h.used,
                len(h.tokens),
            ),
            default=None,
        )

    def _elsewhere(self, held: Held) -> bool:
        size = len(held.tokens)
        every: list[Held | Saved] = [*self._held, *self._saved]
        return any(
            one is not held and one.owner == held.owner and one.tokens[:size] == held.tokens
            for one in every
        )

    def pause(self, sequence: int) -> None:
        held = self._held[sequence]
        assert held.state == "running"
        held.state = "paused"
        self._touch(held)

    def resume(self, sequence: int) -> None:
        """Go on in a paused sequence, which nobody else has taken."""
        held = self._held[sequence]
        assert held.state == "paused"
        held.state = "running"
        self._touch(held)

    def grow(self, sequence: int, tokens: Sequence[int]) -> None:
        """The model has computed ``tokens`` after what the sequence holds."""
        self._held[sequence].tokens += tokens

    def cut(self, sequence: int, keep: int) -> None:
        """Hold the first ``keep`` tokens alone."""
        self._cut(self._held[sequence], keep)

    def release(self, sequence: int) -> None:
        """Its request has ended; what it holds is kept until another needs the room, unless it is
        passing."""
        held = self._held[sequence]
        if held.passing:
            self.clear(sequence)
            return
        held.state = "idle" if held.tokens else "empty"
        self._touch(held)

    def clear(self, sequence: int) -> None:
        """What it holds is not to be trusted any more."""
        self._cut(self._held[sequence], 0)
        self._held[sequence].state, self._held[sequence].passing = "empty", False

    def find(self, prompt: Sequence[int], owner: str = "") -> tuple[list[int], Any] | None:
        """The longest beginning of ``prompt`` that is held of the owner's own, as tokens and their
        state: of what was computed after it, nothing. ``None``: it is not held, or not now."""
        wanted = Wanted(prompt, owner, 0)
        source = self._source(wanted)
        if source is None:
            return None
        size = self._usable(source, wanted)
        whole = size == len(source.tokens)
        state = self._state(source) if whole else self._beginning(source, size)
        return None if state is None else (list(source.tokens[:size]), state)

    def _state(self, source: Held | Saved) -> Any:
        return self._holder.save(source.number) if isinstance(source, Held) else source.state

    def _beginning(self, source: Held | Saved, size: int) -> Any:
        """The state of the first ``size`` tokens of ``source``; ``None`` where there is no sequence
        to cut it on. A sequence that is borrowed for that holds the same as before."""
        if isinstance(source, Held) and source.state != "running":
            place = source
        else:
            rest = [held for held in self._held if held.state != "running"]
            if not rest:
                return None
            place = min(rest, key=lambda held: len(held.tokens))
        number = place.number
        before = self._holder.save(number) if place.tokens else None
        try:
            there = place is source or self._holder.load(number, self._state(source))
            cut = there and self._holder.cut(number, size) == size
            return self._holder.save(number) if cut else None
        finally:
            if before is None:
                self._holder.cut(number, 0)
            elif not self._holder.load(number, before):
                self.clear(number)

    def keep(self, tokens: list[int], state: Any, owner: str = "", head: int = 0) -> bool:
        """Put a state into host memory, in place of one of the owner's for the same tokens; false
        where it is larger than all there is. Others make room in the order of their last use."""
        if len(state) > self.host_total:
            return False
        for one in [s for s in self._saved if s.owner == owner and s.tokens == tokens]:
            self._forget(one)
        self._used += 1
        while self.host_bytes + len(state) > self.host_total:
            self._forget(min(self._saved, key=lambda s: (s.used, len(s.tokens))))
        self._saved.append(Saved(tokens, state, owner, head, self._used))
        self.host_bytes += len(state)
        return True

    def flush(self) -> None:
        """Forget all that no request uses, in the model and in host memory, and the rest when its
        request ends. A paused request's saved state goes too: it is computed again."""
        for held in self._held:
            if held.state == "idle":
                self.clear(held.number)
            held.passing = held.state != "empty"
        while self._saved:
            self._forget(self._saved[0])
        self._gone = None
        self._holder.flush()

    # -- moving

    def _evict(self, held: Held) -> None:
        if held.tokens and not self._elsewhere(held):
            self._keep(held)
        self.clear(held.number)

    def _keep(self, held: Held) -> None:
        if held.passing:
            return
        if len(held.tokens) >= REUSE and self.costs.worth_saving() and self.host_total:
            saved = self._out(held)
            self.keep(saved.tokens, saved.state, saved.owner, saved.head)

    def _out(self, held: Held) -> Saved:
        start = self._clock()
        if self._gone is not None:
            self._holder.spare(self._gone)
            self._gone = None
        state = self._holder.save(held.number)
        self._moved("save", len(held.tokens), start)
        return Saved(list(held.tokens), state, held.owner, held.head, held.used)

    def _in(self, held: Held, saved: Saved, wanted: Wanted) -> None:
        start = self._clock()
        if not self._holder.load(held.number, saved.state):
            if any(saved is one for one in self._saved):
                self._forget(saved)
            return
        self._moved("load", len(saved.tokens), start)
        held.tokens, held.owner, held.head = list(saved.tokens), saved.owner, saved.head
        # A conversation that goes on moves; one that others begin with as well stays, too.
        if any(saved is one for one in self._saved):
            whole = self._usable(saved, wanted) >= len(saved.tokens) - 1
            if whole and saved.owner == wanted.owner:
                self._forget(saved)
            else:
                self._used += 1
                saved.used = self._used

    def _moved(self, what: Literal["save", "load"], tokens: int, start: int) -> None:
        took = self._clock() - start
        self.costs.took(what, tokens, took)
        self.swapped += tokens
        self.swap_ns += took

    def _cut(self, held: Held, keep: int) -> None:
        if keep < len(held.tokens) or keep == 0:
            del held.tokens[self._holder.cut(held.number, keep) :]

    def _forget(self, saved: Saved) -> None:
        # By identity: equality would compare the states.
        self._saved = [one for one in self._saved if one is not saved]
        self.host_bytes -= saved.bytes
        self._spare(saved.state)

    def _spare(self, state: Any) -> None:
        if self._gone is None or len(state) > len(self._gone):
            self._gone = state

    def _touch(self, held: Held) -> None:
        self._used += 1
        held.used = self._used

    def _usable(self, one: Held | Saved, wanted: Wanted) -> int:
        """How many tokens of what is held can begin the prompt, and may."""
        size = min(shared(one, wanted), len(wanted.tokens) - 1)
        return size if self._holder.partial or size == len(one.tokens) else 0

    def validate(self) -> None:
        assert self.host_bytes == sum(saved.bytes for saved in self._saved) <= self.host_total
        for held in self._held:
            assert held.state != "empty" or not held.tokens
            assert held.state != "idle" or held.tokens
            assert not held.passing or held.state in ("running", "paused")


def shared(one: Wanted | Held | Saved, other: Wanted | Held | Saved) -> int:
    """How many tokens the two begin with alike, as far as the one's owner may know."""
    size = common(one.tokens, other.tokens)
    if one.owner == other.owner:
        return size
    return one.head if one.head == other.head and size >= one.head else 0


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens the two begin with alike."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    low, high = 0, size  # the first `low` are alike, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
