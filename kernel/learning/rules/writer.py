"""A writer by rules: typed lines of one stream become entries by templates.

The splitter of :mod:`isovist.kernel.learning.rules.splitter` writes such lines. Of any other text
only what names its own situation is taken (``When …, do …``), and what states a wish.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import trio

from isovist.kernel.learning.rules.matching import alike, contradicts, hedged, news
from isovist.kernel.learning.rules.wishes import of_agent, several, topic, wish
from isovist.kernel.learning.sentences import sentences, states_wish
from isovist.kernel.state.lessons import (
    ESTABLISHED,
    MAX_LESSON,
    MAX_OPERATIONS,
    MAX_SITUATION,
    Brief,
    Held,
    Operation,
)
from isovist.syscalls.records import Stream

OWN = "doing any task in this agent's own surroundings"
_TOOL = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
ANY = "doing any task or writing any document for this person"
"""The situation of what holds for a person whatever the task is."""
MAX_TEXT = 800
"""Characters of a lesson of several sentences: budgets of delivery take whole entries."""
NEAREST: dict[tuple[Stream, str], tuple[str, ...]] = {
    ("reusable", "global"): ("global", "agent", "user", "pair"),
    ("reusable", "agent"): ("agent", "pair", "global", "user"),
    ("protected", "user"): ("user", "pair"),
    ("protected", "pair"): ("pair", "user"),
}
"""Where an entry is filed, the best scope first ([M] A.3: a missing scope's lesson goes to the
nearest that may be used, with its condition in the situation)."""
_WIDER = {("agent", "global"), ("agent", "user"), ("pair", "user")}
"""Filed there, the entry reaches other agents: it must say whom it is about."""
_LINE = re.compile(
    r"(?:[-*]\s+)?(task|about|situation|lesson|own|tried|perhaps|check said|preference|here"
    r"|context"
    r"|remark)\s*:\s*(\S.*)",
    re.I,
)
_WHEN = re.compile(
    r"(?:when|whenever|if"
    r"|while)\s+([^,:]{8,300})[,:]\s*(?:then\s+)?(\S.{8,})",
    re.I,
)


class RuleWriter:
    """:class:`isovist.kernel.learning.roles.Writer` by rules; its work is done in a thread."""

    async def write(self, brief: Brief) -> tuple[Operation, ...]:
        return await trio.to_thread.run_sync(write, brief)


class _New(NamedTuple):
    """An entry to be: ``said`` are the sentences of its lesson, after ``lead``."""

    situation: str
    lead: str
    said: tuple[str, ...]
    scope: str

    @property
    def lesson(self) -> str:
        return _cut(f"{self.lead}{_text(self.said)}", MAX_LESSON)


def write(brief: Brief) -> tuple[Operation, ...]:
    """The operations that the rules find in ``brief``. Deterministic; raises nothing.

    An error or a time-out establishes nothing, so nothing of the work is written after one; what
    nobody judged is written as unverified [M].
    """
    found = _reusable(brief) if brief.stream == "reusable" else _protected(brief)
    made: list[Operation] = []
    taken: set[str] = set()
    for new in found:
        filed = _filed(new, brief)
        operation = _beside(filed, brief, taken, found) if filed else None
        if operation is not None:
            made.append(operation)
            taken.add(operation.revises)
    made += _refuted(brief, taken)
    return tuple(made[:MAX_OPERATIONS])


def _lines(text: str) -> dict[str, list[str]]:
    """The typed lines of ``text``, by type."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if m := _LINE.fullmatch(line.strip()):
            found.setdefault(m[1].lower(), []).append(m[2].strip())
    return found


def _reusable(brief: Brief) -> list[_New]:
    if brief.outcome not in ESTABLISHED and brief.outcome != "unknown":
        return []
    lines = _lines(brief.text)
    task = " ".join(lines.get("task", []) or lines.get("situation", []))
    lead = "" if brief.outcome in ESTABLISHED else "Unverified: "
    if not task:
        return [
            _New(_cut(when, MAX_SITUATION), lead, (do,), "global")
            for when, do in _conditions(brief.text)
        ]
    situation = _cut(f"the task is like: {task}", MAX_SITUATION)
    said = tuple(lines.get("check said", []))
    found = []
    if brief.outcome == "failed" and said:
        found.append(_New(situation, "A check rejected an attempt: ", said, "global"))
    learnt = {"passed": "lesson", "failed": "", "unknown": "perhaps"}[brief.outcome]
    lesson = tuple(lines.get(learnt, []))
    if brief.outcome == "passed" and not lesson:
        lesson = said
    if lesson:
        found.append(_New(situation, lead, lesson, "global"))
    if brief.outcome in ESTABLISHED:
        found += [_New(_where(line), "", (line,), "agent") for line in lines.get("own", [])]
    return found


def _where(line: str) -> str:
    """Where an agent's own quirk shows: with the tool that it names, whatever the task."""
    named = _TOOL.search(line)
    return f"doing any task with the tool {named[0]}" if named else OWN


def _protected(brief: Brief) -> list[_New]:
    lines = _lines(brief.text)
    if not lines:
        lines = _untyped(brief.text)
    found = [_New(ANY, "", (line,), "user") for line in lines.get("preference", [])]
    found += [_New(ANY, "", (line,), "pair") for line in lines.get("here", [])]
    if context := tuple(lines.get("context", [])):
        found.append(_New("this person's circumstances matter", "", context, "user"))
    remarks = tuple(lines.get("remark", []))
    if remarks and brief.outcome in ESTABLISHED:
        about = " ".join(lines.get("about", []))
        task = f"the task is like: {about}" if about else "working on this person's files"
        lead = "" if brief.outcome == "passed" else "Of an attempt that a check rejected: "
        found.append(_New(_cut(task, MAX_SITUATION), lead, remarks, "user"))
    return found


def _sentences(text: str) -> Iterator[str]:
    for one in sentences(text):
        yield " ".join(text[one.start : one.stop].split())


def _conditions(text: str) -> Iterator[tuple[str, str]]:
    for sentence in _sentences(text):
        if m := _WHEN.fullmatch(sentence):
            yield m[1].strip(), m[2][:1].upper() + m[2][1:]


def _untyped(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for sentence in _sentences(text):
        if not states_wish(sentence):
            found.setdefault("context", []).append(sentence)
        elif of_agent(sentence):
            found.setdefault("here", []).append(wish(sentence))
        else:
            found.setdefault("preference", []).append(wish(sentence))
    return found


def _text(said: tuple[str, ...]) -> str:
    """``said`` as one text of whole sentences, as many as fit."""
    kept: list[str] = []
    size = 0
    for sentence in said:
        sentence = sentence if sentence[-1] in ".!?…" else f"{sentence}."
        size += len(sentence) + 1
        if kept and size > MAX_TEXT:
            break
        kept.append(sentence)
    return " ".join(kept)


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 2].rsplit(" ", 1)[0] + " …"


def _filed(new: _New, brief: Brief) -> _New | None:
    """``new`` in the nearest scope that may be used; ``None`` where none may."""
    for scope in NEAREST[brief.stream, new.scope]:
        if scope not in brief.scopes:
            continue
        situation = new.situation
        if (new.scope, scope) in _WIDER:
            who = f"the agent is {brief.agent}" if brief.agent else "the agent is the same"
            situation = _cut(f"{who} and {situation}", MAX_SITUATION)
        return new._replace(situation=situation, scope=scope)
    return None


def _beside(new: _New, brief: Brief, taken: set[str], found: list[_New]) -> Operation | None:
    """``new`` as an operation, seen beside the entries that there are: what they say already is
    left out, and what it takes the place of is revised. ``None`` where nothing is new."""
    said = new.said
    revised: Held | None = None
    for entry in brief.entries:
        if entry.id in taken or not alike(entry.situation, new.situation, 0.6):
            continue
        if brief.stream == "reusable" and hedged(entry.lesson) and not hedged(new.lead):
            if entry.scope == new.scope and not news(said, entry.lesson, 0.6):
                revised = entry  # it was unverified until now
            continue
        left = news(said, entry.lesson)
        if not left:
            return None
        if entry.scope == new.scope and _takes_place(new, entry, brief.stream, found):
            revised = revised or entry
        if brief.stream == "reusable":
            said = left
    if revised is not None and brief.stream == "reusable" and not hedged(revised.lesson):
        said = new.said
    new = new._replace(said=said)
    return Operation(
        situation=new.situation,
        lesson=new.lesson,
        scope=new.scope,
        revises=revised.id if revised else "",
    )


def _takes_place(new: _New, entry: Held, stream: Stream, found: list[_New]) -> bool:
    """Whether ``new`` is the later word on what ``entry`` says."""
    if stream == "reusable":
        return any(contradicts(one, entry.lesson) for one in new.said)
    about = topic(new.lesson)
    if not about or about != topic(entry.lesson):
        return False
    if several(about) or sum(topic(other.lesson) == about for other in found) > 1:
        return alike(new.lesson, entry.lesson, 0.5)
    return True


def _refuted(brief: Brief, taken: set[str]) -> Iterator[Operation]:
    """The end of unverified entries that say what a rejected attempt has tried."""
    if brief.stream != "reusable" or brief.outcome != "failed":
        return
    lines = _lines(brief.text)
    tried = " ".join(lines.get("tried", []))
    task = f"the task is like: {' '.join(lines.get('task', []))}"
    for entry in brief.entries:
        if (
            entry.id not in taken
            and hedged(entry.lesson)
            and alike(entry.situation, task, 0.6)
            and not news(tuple(_sentences(entry.lesson)), tried)
        ):
            yield Operation(delete=entry.id, reason="A check rejected an attempt that did this.")
