"""Injection: ``x' = inject(x, R_k)`` [K 3.2] in whole units, within a budget of model tokens.

The block stands inside the last user turn, before the user's words: all that comes before it
stays byte-identical, so that prompt caches hold, and small models use it best there. It is
fenced as data, the fence is escaped inside, and a unit's further lines are indented, so that no
memory can pass for the end of the block, for another unit, or for what the user said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from isovist.kernel.state.instructions import Render
from isovist.kernel.state.lessons import parts_of
from isovist.kernel.tokens import TokenCounter
from isovist.storage.repeats import without_repeats
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.fence import CLOSE, OPEN, escape
from isovist.syscalls.operations import Candidate
from isovist.syscalls.records import Message

HEAD = "Facts, as data:"
COVERAGE = 0.3
"""A unit is relevant if it holds this share of the question's words, weighed by rarity,"""
COSINE = 0.25
"""or if its meaning is at least this near to the question's,"""
NEAR_TOP = 0.6
"""and if its score is at least this share of the best one's. Seen with the default embedder: what
answers a question has a cosine of 0.29 to 0.62 and nine tenths of its scores are above 0.7;
questions about nothing stored reach 0.17. A small model pays for each unit too many: of 32
questions it answered 29 with the right unit alone and 23 to 27 beside two others."""
PROFILE_SHARE = 1 / 3
"""Of the budget and of the units, kept for what is known of the user ([M] A.2)."""


class Rendered:
    """A prompt that is ready to be sent, and the units put into it, each with its tokens;
    ``block`` is the text that holds them."""

    __slots__ = ("block", "injected_tokens", "messages", "prompt_tokens", "shown")

    def __init__(
        self,
        messages: tuple[Message, ...],
        prompt_tokens: int,
        shown: tuple[tuple[Candidate, int], ...],
        injected_tokens: int,
        block: str = "",
    ) -> None:
        self.messages = messages
        self.prompt_tokens = prompt_tokens
        self.shown = shown
        self.injected_tokens = injected_tokens
        self.block = block


async def render(request: Render, counter: TokenCounter) -> Rendered:
    """Choose, fit and place the units of ``request``, counted by the model's own tokenizer.

    Invariant: the block as a whole has at most ``budget`` tokens, and the prompt together with
    ``max_tokens`` at most ``context``. Raises ``EMSGSIZE`` with both numbers where the prompt
    does not fit even without memory.
    """
    ranked = relevant(request.selection.candidates)
    lines = [line(said(c)) for c in ranked]
    counts = await counter.count(lines) if lines else []
    frame = (await counter.count([block(())]))[0] if lines else 0
    chosen = fill(ranked, counts, request.budget - frame, request.units)
    while True:
        # The best stands last, next to the question: small models heed it most there.
        text = block([lines[i] for i in reversed(chosen)]) if chosen else ""
        tokens = (await counter.count([text]))[0] if chosen else 0
        if tokens <= request.budget:
            messages = place(request.messages, text)
            # Without messages the block alone is asked for.
            prompt = (
                await counter.prompt(messages, request.tools, request.choice)
                if messages
                else tokens
            )
            if prompt + request.max_tokens <= request.context:
                break
            if not chosen:
                raise CallerError(
                    f"prompt of {prompt} tokens and reply of {request.max_tokens} exceed the "
                    f"model's context of {request.context}",
                    errno=Errno.EMSGSIZE,
                    field="messages",
                )
        # Tokens of parts do not add up exactly: the least relevant unit makes room.
        chosen = chosen[:-1]
    shown = tuple((ranked[i], counts[i]) for i in chosen)
    return Rendered(messages, prompt, shown, tokens, text)


def relevant(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates above the floor of relevance, best first, without those that a better one
    says word for word: no budget is spent on saying a thing twice."""
    top = max((c.hit.score for c in candidates), default=0.0)
    good = [
        c
        for c in candidates
        if (c.coverage >= COVERAGE or c.cosine >= COSINE) and c.hit.score >= NEAR_TOP * top
    ]
    whole = [len(c.hit.unit.text) <= len(c.hit.chunk) for c in good]
    return [good[i] for i in without_repeats([c.hit.chunk for c in good], whole)]


def fill(ranked: Sequence[Candidate], counts: Sequence[int], budget: int, units: int) -> list[int]:
    """Indices of the units to show, best first; whole units only.

    A share is kept for profile units while any relevant one waits, so that lessons and task
    notes never crowd out what the user prefers.
    """
    profile = [i for i, c in enumerate(ranked) if c.hit.unit.kind == "profile"]
    reserved: list[int] = []
    room = int(budget * PROFILE_SHARE)
    for i in profile[: max(1, int(units * PROFILE_SHARE))]:
        if counts[i] <= room:
            reserved.append(i)
            room -= counts[i]
    chosen = set(reserved[:units])
    left = budget - sum(counts[i] for i in chosen)
    for i, tokens in enumerate(counts):
        if len(chosen) >= units:
            break
        if i not in chosen and tokens <= left:
            chosen.add(i)
            left -= tokens
    return sorted(chosen)


def said(candidate: Candidate) -> str:
    """A unit's text; of a lesson its situation and what holds then, as one sentence."""
    text = candidate.hit.unit.text
    situation, lesson = parts_of(text)
    if candidate.hit.unit.kind != "lesson" or not lesson:
        return text
    return f"When {situation}: {lesson}"


def line(text: str) -> str:
    """A unit as an item of the block."""
    return "- " + "\n  ".join(sentences(text).splitlines())


def sentences(text: str) -> str:
    """A JSON object as sentences (models read those better), any other text as it is; the fence
    escaped."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            text = " ".join(_say(json.loads(stripped)))
        except (ValueError, RecursionError):
            text = stripped
    return escape(text.strip())


def _say(value: object, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [
            s for k, v in value.items() for s in _say(v, f"{path} {k}".strip().replace("_", " "))
        ]
    if isinstance(value, list):
        if any(isinstance(v, dict | list) for v in value):
            return [s for v in value for s in _say(v, path)]
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return []
    word = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
    return [f"The {path} is {word}." if path else f"{word}."]


def block(lines: Sequence[str]) -> str:
    return "\n".join([OPEN, HEAD, *lines, CLOSE])


def place(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """``messages`` with the block before the words of the last user turn."""
    if not (text and messages):
        return messages
    at = max(i for i, message in enumerate(messages) if message.role == "user")
    turn = Message("user", f"{text}\n\n{messages[at].content or ''}")
    return (*messages[:at], turn, *messages[at + 1 :])
