"""What models answer, read strictly: it has the form that was asked for, or it is unreadable.

Nothing here trusts an answer: each reader is total (it returns, or raises :class:`Unreadable`),
takes time and memory in proportion to :data:`LONGEST`, and says what was wrong without quoting any
of it, as that text comes into errors and logs.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from isovist.kernel.state.lessons import (
    MAX_LESSON,
    MAX_OPERATIONS,
    MAX_SITUATION,
    Operation,
)
from isovist.syscalls.records import Stream

LONGEST = 256 * 1024
"""Characters of an answer that is looked at: what the rules allow fits it, escapes and all."""
MARKERS: dict[Stream, str] = {"reusable": "=== REUSABLE ===", "protected": "=== PROTECTED ==="}
_LONGEST_MARKER = 60
_FRAME = "#*=_-~<>[](){}`:.|\"' \t"
_EMPTY = frozenset({"", "none", "nothing", "n/a", "empty", "null", "reusable", "protected"})
"""What a stream says that has nothing to say."""
MAX_NAME, MAX_REASON = 128, 500
"""Characters of the name of an entry or a scope, and of a deletion's reason."""
_THINKS, _HAS_THOUGHT = "<think>", "</think>"
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n```", re.DOTALL | re.IGNORECASE)

T = TypeVar("T")


class Unreadable(ValueError):
    """An answer that cannot be used. The text says why, and quotes nothing of it."""


# -- the two streams


def marker_of(line: str) -> Stream | None:
    """The stream whose marker ``line`` is: its name alone, framed by whatever signs, in any case
    and any form of its letters; ``None`` where it is none."""
    if len(line) > _LONGEST_MARKER:
        return None
    word = unicodedata.normalize("NFKC", line).strip(_FRAME).casefold()
    for ending in (" text", " stream"):
        word = word.removesuffix(ending)
    return "reusable" if word == "reusable" else "protected" if word == "protected" else None


def streams(answer: str) -> tuple[str, str]:
    """The reusable and the protected text under their markers, in whichever order. What stands
    before the first marker belongs to neither.

    A marker that comes twice is no marker any more: what of it is whose cannot be told.
    """
    texts: dict[Stream, list[str]] = {}
    here: list[str] = []
    for line in _spoken(answer).splitlines():
        stream = marker_of(line)
        if stream is None:
            here.append(line)
        elif stream in texts:
            raise Unreadable(f"the marker {MARKERS[stream]} is there twice")
        else:
            here = texts[stream] = []
    for stream, marker in MARKERS.items():
        if stream not in texts:
            raise Unreadable(f"the marker {marker} is missing")
    return _text(texts["reusable"]), _text(texts["protected"])


class _Streams(msgspec.Struct, forbid_unknown_fields=True):
    reusable: str
    protected: str


def streams_of_json(answer: str) -> tuple[str, str]:
    """The two texts, from a model that was asked by schema."""
    both = read_json(bare(answer), _Streams)
    return _text(both.reusable.splitlines()), _text(both.protected.splitlines())


def _text(lines: list[str]) -> str:
    text = clean("\n".join(lines), "a stream")
    return "" if text.strip("().-*_ ").casefold() in _EMPTY else text


# -- operations


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """An operation as a model writes it; fields that say nothing may be ``null``."""

    situation: str | None = None
    lesson: str | None = None
    scope: str | None = None
    revises: str | None = None
    delete: str | None = None
    reason: str | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    operations: list[_Wanted]


def operations(answer: str, names: Mapping[str, str]) -> tuple[Operation, ...]:
    """The operations of a writer's answer; ``names`` are those under which entries were shown,
    with their ids. A name that was not shown stays as it is: the kernel knows no such entry."""
    wanted = read_json(bare(answer), _Answer).operations
    # A small model says a thing twice, or until it is stopped.
    found = tuple(dict.fromkeys(_operation(one, names) for one in wanted))
    if len(found) > MAX_OPERATIONS:
        raise Unreadable(f"it has more than {MAX_OPERATIONS} operations")
    return found


def whole(answer: str) -> str:
    """What stands whole of an answer by :func:`operations`' schema that its model could not end,
    as it had used up its tokens."""
    return answer[: answer.rfind("}") + 1] + "]}"


def _operation(wanted: _Wanted, names: Mapping[str, str]) -> Operation:
    if wanted.delete:
        if wanted.situation or wanted.lesson or wanted.scope or wanted.revises:
            raise Unreadable("a deletion has a reason and nothing else")
        return deletion(wanted.delete, wanted.reason or "", names)
    if wanted.reason:
        raise Unreadable("a reason belongs to a deletion")
    return entry(
        wanted.situation or "",
        wanted.lesson or "",
        wanted.scope or "",
        wanted.revises or "",
        names,
    )


def entry(
    situation: str, lesson: str, scope: str, revises: str, names: Mapping[str, str]
) -> Operation:
    """A new entry, or a revision of the one called ``revises``."""
    situation = " ".join(clean(situation, "a situation").split())
    lesson = clean(lesson, "a lesson")
    if not _says_something(situation):
        raise Unreadable("there is no lesson without a situation")
    if not _says_something(lesson) or lesson == situation:
        raise Unreadable("a lesson says what to do, and not its situation alone")
    if not scope:
        raise Unreadable("an entry has no scope")
    _bounded("a situation", situation, MAX_SITUATION)
    _bounded("a lesson", lesson, MAX_LESSON)
    return Operation(
        situation=situation,
        lesson=lesson,
        scope=_named(scope, "a scope"),
        revises=names.get(revises) or _named(revises, "an entry"),
    )


def deletion(delete: str, reason: str, names: Mapping[str, str]) -> Operation:
    """The end of the entry called ``delete``."""
    reason = " ".join(clean(reason, "a reason").split())
    # One word is a name or a field said again; where words are not told apart it may be all.
    if not _says_something(reason) or (len(reason.split()) == 1 and reason.isascii()):
        raise Unreadable("a deletion has no reason")
    _bounded("a reason", reason, MAX_REASON)
    return Operation(delete=names.get(delete) or _named(delete, "an entry"), reason=reason)


def _named(name: str, what: str) -> str:
    _bounded(f"the name of {what}", name, MAX_NAME)
    return clean(name, f"the name of {what}")


# -- any answer


def clean(text: str, what: str) -> str:
    """``text`` without space around it. Unreadable where it has control characters or halves of
    characters: nobody would see what is stored."""
    for c in text:
        category = unicodedata.category(c)
        if category == "Cs" or (category == "Cc" and c not in "\n\r\t"):
            raise Unreadable(f"{what} has control characters")
    return text.strip()


def read_json(answer: str, form: type[T]) -> T:
    """``answer`` as a value of ``form``: one JSON value by the rules of JSON, alone."""
    try:
        value = msgspec.json.decode(_sized(answer).encode(), type=form)
        # The form is flat, so Python's own reader, which calls itself, does not get deep.
        json.loads(answer, object_pairs_hook=_once)
    except UnicodeEncodeError:
        raise Unreadable("it has halves of characters") from None
    except msgspec.ValidationError as e:
        raise Unreadable(f"it has not the form asked for{_where(e)}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        if isinstance(e, Unreadable):
            raise
        raise Unreadable("it is not JSON alone") from None
    return value


def bare(answer: str) -> str:
    """``answer`` without a code fence around all of it, which many a model cannot do without."""
    answer = _spoken(answer)
    fenced = _FENCED.fullmatch(answer.strip())
    return fenced[1] if fenced else answer


def _spoken(answer: str) -> str:
    """``answer`` without the thoughts before it, which some models do not keep to themselves."""
    answer = _sized(answer)
    if answer.lstrip().startswith(_THINKS):
        return answer.partition(_HAS_THOUGHT)[2]
    return answer


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("a field is there twice")
    return found


def _where(e: msgspec.ValidationError) -> str:
    """The path to what was wrong; not the message, which may name a field of the answer's."""
    _, at, path = str(e).rpartition(" - at `$")
    return f" at {path.rstrip('`')}" if at and re.fullmatch(r"[.\w\[\]]{1,60}`", path) else ""


def _sized(answer: str) -> str:
    if len(answer) > LONGEST:
        raise Unreadable(f"it has more than {LONGEST} characters")
    return answer


def _says_something(text: str) -> bool:
    return any(c.isalnum() for c in text)


def _bounded(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise Unreadable(f"{what} has more than {most} characters")
