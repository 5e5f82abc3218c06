"""Texts cut to the room that there is, so that what matters most of an attempt stays and the cut
can be seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isovist.kernel.state.answers import in_words
from isovist.syscalls.fence import spoken
from isovist.syscalls.records import Message

LEAST = 80
"""Characters below which a turn is left out rather than cut."""
_GAP = 40
"""Characters at most of the words that stand for what was left out."""


def tail(text: str, room: int) -> str:
    """The end of ``text``, in ``room`` characters at most (0 or less: nothing)."""
    if len(text) <= room:
        return text
    kept = room - _GAP
    return f"{_left_out(len(text) - kept)} {text[-kept:]}" if kept > 0 else ""


def ends(text: str, room: int) -> str:
    """The beginning and the end of ``text``, in ``room`` characters at most."""
    if len(text) <= room:
        return text
    kept = room - _GAP
    if kept <= 1:
        return ""
    first, last = kept - kept // 2, kept // 2
    return f"{text[:first]} {_left_out(len(text) - kept)} {text[-last:]}"


def _left_out(characters: int) -> str:
    return f"[{characters} characters left out]"


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """How much of ``room`` each gets: no more than its size, and of what is short the same."""
    given = [0] * len(sizes)
    left = len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: sizes[at]):
        given[at] = min(sizes[at], max(room, 0) // left)
        room -= given[at]
        left -= 1
    return given


def transcript(turns: Sequence[Message], room: int) -> str:
    """The turns, each with its role, in ``room`` characters or little more. Where they don't fit,
    what a person said has a half of it before all else, and of other turns the ends stay, as there
    stands what came of them. Injected memory is left out: nobody said it."""
    said = [(turn.role, _words(turn)) for turn in turns]
    said = [(role, text) for role, text in said if text]
    if sum(len(role) + len(text) + 4 for role, text in said) <= room:
        return "\n".join(f"[{role}] {text}" for role, text in said)
    people = [at for at, (role, _) in enumerate(said) if role == "user"]
    others = [at for at, (role, _) in enumerate(said) if role != "user"]
    kept = _cut(said, people, room // 2 if others else room)
    kept |= _cut(said, others, room - sum(map(len, kept.values())))
    return "\n".join(_with_gaps(kept, len(said)))


def _words(turn: Message) -> str:
    text = turn.content or ""
    if turn.role in ("user", "system"):
        text = spoken(text)
    return in_words(text.strip(), turn.calls)


def _cut(said: Sequence[tuple[str, str]], which: Sequence[int], room: int) -> dict[int, str]:
    """The turns ``which`` in ``room``: the first and the last of them where there are too many."""
    most = max(room // LEAST, 0)
    if len(which) > most:
        which = [*which[: most // 2], *which[len(which) - (most - most // 2) :]]
    sizes = [len(said[at][0]) + len(said[at][1]) + 4 for at in which]
    kept: dict[int, str] = {}
    for at, share in zip(which, shares(sizes, room), strict=True):
        role, text = said[at]
        cut = ends if role == "user" else tail
        kept[at] = f"[{role}] {cut(text, share - len(role) - 4)}"
    return kept


def _with_gaps(kept: dict[int, str], total: int) -> Iterable[str]:
    before = 0
    for at in sorted(kept):
        if at > before:
            yield f"[{at - before} turns left out]"
        yield kept[at]
        before = at + 1
    if total > before:
        yield f"[{total - before} turns left out]"
