"""A writer by rules: typed lines of one stream become entries by templates."""

from __future__ import annotations

import re
from typing import NamedTuple

import trio

from isovist.kernel.learning.facts import words_of
from isovist.kernel.learning.lexicon import FUNCTION, stems
from isovist.kernel.learning.rules.wishes import topic
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

ANY = "doing any task or writing any document for this person"
"""The situation of what holds for a person whatever the task is."""
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
    r"^(task|lesson|own|tried|perhaps|check said|preference|here|context|remark): (.+)$"
)


class RuleWriter:
    """:class:`isovist.kernel.learning.roles.Writer` by rules; its work is done in a thread."""

    async def write(self, brief: Brief) -> tuple[Operation, ...]:
        return await trio.to_thread.run_sync(write, brief)


class _New(NamedTuple):
    situation: str
    lesson: str
    scope: str


def write(brief: Brief) -> tuple[Operation, ...]:
    """The operations that the rules find in ``brief``. Deterministic; raises nothing."""
    found = _reusable(brief) if brief.stream == "reusable" else _protected(brief)
    made: list[Operation] = []
    taken: set[str] = set()
    for new in found:
        filed = _filed(new, brief)
        if filed is None:
            continue
        operation = _against(filed, brief, taken)
        if operation is not None:
            made.append(operation)
            taken.add(operation.revises)
    return tuple(made[:MAX_OPERATIONS])


def _lines(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if m := _LINE.match(line.strip()):
            found.setdefault(m[1], []).append(m[2].strip())
    return found


def _reusable(brief: Brief) -> list[_New]:
    lines = _lines(brief.text)
    task = " ".join(lines.get("task", []))
    if not task:
        return []
    situation = _cut(f"the task is like: {task}", MAX_SITUATION)
    found = []
    if brief.outcome in ESTABLISHED:
        said = [] if brief.outcome == "passed" else lines.get("check said", [])
        learnt = lines.get("lesson", []) if brief.outcome == "passed" else []
        if said:
            found.append(_New(situation, "A check rejected an attempt: " + _text(said), "global"))
        if learnt:
            found.append(_New(situation, _text(learnt), "global"))
        if brief.outcome == "passed" and lines.get("own"):
            found.append(_New(situation, _text(lines["own"]), "agent"))
    elif brief.outcome == "unknown" and lines.get("perhaps"):
        found.append(_New(situation, "Unverified: " + _text(lines["perhaps"]), "global"))
    return found


def _protected(brief: Brief) -> list[_New]:
    lines = _lines(brief.text)
    found = [_New(ANY, line, "user") for line in lines.get("preference", [])]
    found += [_New(ANY, line, "pair") for line in lines.get("here", [])]
    if lines.get("context"):
        found.append(
            _New("knowing this person's circumstances helps", _text(lines["context"]), "user")
        )
    if lines.get("remark") and brief.outcome in ESTABLISHED:
        found.append(_New("working on this person's files", _text(lines["remark"]), "user"))
    return found


def _text(lines: list[str]) -> str:
    return _cut(" ".join(line if line[-1] in ".!?…" else f"{line}." for line in lines), 800)


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
        return _New(situation, _cut(new.lesson, MAX_LESSON), scope)
    return None


def _against(new: _New, brief: Brief, taken: set[str]) -> Operation | None:
    """``new`` as an operation, seen beside the entries there are; ``None`` where one says it."""
    revises = ""
    for entry in brief.entries:
        if entry.id in taken or entry.stream != brief.stream:
            continue
        if not _alike(entry.situation, new.situation, 0.6):
            continue
        if _alike(entry.lesson, new.lesson, 0.85):
            return None
        if not revises and entry.scope == new.scope and _same_matter(entry, new, brief):
            revises = entry.id
    return Operation(situation=new.situation, lesson=new.lesson, scope=new.scope, revises=revises)


def _same_matter(entry: Held, new: _New, brief: Brief) -> bool:
    if brief.stream == "protected":
        about = topic(new.lesson)
        return bool(about) and about == topic(entry.lesson)
    return _alike(entry.lesson, new.lesson, 0.6)


def _alike(one: str, other: str, least: float) -> bool:
    """Whether the two share at least this part of all their content words (Jaccard)."""
    a, b = _content(one), _content(other)
    return bool(a | b) and len(a & b) / len(a | b) >= least


def _content(text: str) -> set[str]:
    return set(stems([word for word in words_of(text) if word not in FUNCTION]))
