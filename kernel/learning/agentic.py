"""A writer that works in several turns with tools: it looks at the entries, changes, takes back,
and says when it is done. What comes of it are operations like any writer's [M].

The tools touch nothing but a desk: the brief, and the changes that are wanted so far. Turns, calls
and all that a model writes are bounded, so whatever it does has an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import msgspec

from isovist.kernel.learning import answers, fitting, prompts
from isovist.kernel.learning.answers import Unreadable
from isovist.kernel.learning.asked import Asking, nothing_to_learn
from isovist.kernel.learning.prompts import TEXT, one_of
from isovist.kernel.learning.roles import Model, Unusable
from isovist.kernel.state.lessons import MAX_OPERATIONS, Brief, Operation
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Tool, ToolCall

TURNS = 12
CALLS = 16
"""Calls of one turn."""
OUTPUT = 64 * 1024
"""Characters of all turns together."""
REPLY_SHARE = 8
"""A turn is a call or a few: one part in so many of the context."""


class AgenticWriter:
    """Writes by calls of tools that ``model`` makes, in at most ``TURNS`` turns."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def write(self, brief: Brief) -> tuple[Operation, ...]:
        """Raises :class:`Unusable` where the model never finishes or three of its turns could not
        be read; and what the model raises."""
        return () if nothing_to_learn(brief) else await Work(self._model, brief).done()


class Work:
    """One brief being worked on."""

    def __init__(self, model: Model, brief: Brief) -> None:
        self._brief, self._desk = brief, Desk(brief)
        self._tools = tools(brief)
        instructions = len(prompts.work(brief, (), 0)[0].content or "")
        offer = sum(len(t.name) + len(t.description) + len(t.parameters) for t in self._tools)
        self._asking = Asking(model, instructions + offer, REPLY_SHARE)
        self._turns: list[tuple[Message, ...]] = []
        """Turns that were read: each the calls and their results."""
        self._idle: list[tuple[str, str]] = []
        """The calls of the last turn, if they changed nothing."""

    async def done(self) -> tuple[Operation, ...]:
        written = 0
        for _ in range(TURNS):
            try:
                reply = await self._asking.fitting(self._prompt, self._tools)
                written += len(reply.text) + sum(len(call.arguments) for call in reply.calls)
                if written > OUTPUT:
                    raise Unusable(f"nothing could be used: over {OUTPUT} characters were written")
                if not reply.calls and self._turns and reply.finish != "length":
                    return self._desk.operations
                self._turn(reply)
            except Unreadable as e:
                self._asking.again(e)
            if self._desk.finished:
                return self._desk.operations
        raise Unusable(f"nothing could be used: {TURNS} turns have brought no end")

    def _turn(self, reply: Chatted) -> None:
        """Carry out the calls of a turn: all of them, or none where one cannot be read."""
        if not reply.calls:
            raise Unreadable("it calls no tool")
        if len(reply.calls) > CALLS:
            raise Unreadable(f"it makes more than {CALLS} calls")
        steps = [self._desk.step(call) for call in reply.calls]
        asked = [(call.name, call.arguments) for call in reply.calls]
        if asked == self._idle:
            raise Unreadable("it does what the turn before it has done, which changed nothing")
        before = self._desk.operations
        # Ids of our own: what goes back must be told apart, whoever made the calls.
        first = sum(len(turn) for turn in self._turns)
        calls = tuple(
            ToolCall(call.name, call.arguments, f"step{first + at:05}")
            for at, call in enumerate(reply.calls)
        )
        results = [
            Message("tool", step(), call=call.id) for step, call in zip(steps, calls, strict=True)
        ]
        self._turns.append((Message("assistant", None, calls), *results))
        self._idle = asked if self._desk.operations == before else []

    def _prompt(self, room: int) -> tuple[Sequence[Message], str]:
        """The brief, the changes so far, and of the turns the last ones that fit."""
        asked = list(prompts.work(self._brief, self._desk.changes(), room))
        left = room - sum(len(message.content or "") for message in asked[1:])
        kept: list[tuple[Message, ...]] = []
        for turn in reversed(self._turns):
            cut = tuple(_cut(message, room // 4) for message in turn)
            left -= sum(len(m.content or "") + sum(len(c.arguments) for c in m.calls) for m in cut)
            if left < 0:
                break
            kept.append(cut)
        return [*asked, *(message for turn in reversed(kept) for message in turn)], ""


def _cut(message: Message, room: int) -> Message:
    return msgspec.structs.replace(message, content=fitting.ends(message.content or "", room))


# -- the desk and its tools


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Which(msgspec.Struct, forbid_unknown_fields=True):
    entry: str


class _New(msgspec.Struct, forbid_unknown_fields=True):
    situation: str
    lesson: str
    scope: str


class _Revised(msgspec.Struct, forbid_unknown_fields=True):
    entry: str
    situation: str
    lesson: str
    scope: str


class _Ended(msgspec.Struct, forbid_unknown_fields=True):
    entry: str
    reason: str


class Desk:
    """The entries of a brief under short names, and the changes that are wanted, in order.

    Invariant: at most ``MAX_OPERATIONS`` changes, at most one of each entry, each within the
    brief's scopes and of an entry of the brief's.
    """

    def __init__(self, brief: Brief) -> None:
        self._entries = {f"e{at}": held for at, held in enumerate(brief.entries, 1)}
        self._names = {name: held.id for name, held in self._entries.items()}
        self._scopes = brief.scopes
        self._past: list[tuple[Operation, ...]] = []
        self.operations: tuple[Operation, ...] = ()
        self.finished = False

    def changes(self) -> list[str]:
        """The changes so far, a line each, in short names."""
        short = {id_: name for name, id_ in self._names.items()}
        return [
            f"{at}. delete {short[wanted.delete]}"
            if wanted.delete
            else f"{at}. {f'revise {short[wanted.revises]}' if wanted.revises else 'add'}: "
            f"When {wanted.situation}: {wanted.lesson}"
            for at, wanted in enumerate(self.operations, 1)
        ]

    def step(self, call: ToolCall) -> Callable[[], str]:
        """What the call does, to be done: it returns what the model is told. Raises
        :class:`Unreadable` where there is no such tool or its arguments have not its form."""
        match call.name:
            case "list_entries":
                answers.read_json(call.arguments, _Nothing)
                return self._list
            case "read_entry":
                which = answers.read_json(call.arguments, _Which)
                return lambda: self._read(which.entry)
            case "add_entry":
                new = answers.read_json(call.arguments, _New)
                return lambda: self._write("", new.situation, new.lesson, new.scope)
            case "revise_entry":
                one = answers.read_json(call.arguments, _Revised)
                return lambda: self._write(one.entry, one.situation, one.lesson, one.scope)
            case "delete_entry":
                ended = answers.read_json(call.arguments, _Ended)
                return lambda: self._delete(ended.entry, ended.reason)
            case "undo":
                answers.read_json(call.arguments, _Nothing)
                return self._undo
            case "finish":
                answers.read_json(call.arguments, _Nothing)
                return self._finish
            case _:
                raise Unreadable("there is no such tool")

    def _list(self) -> str:
        lines = [f"{n} ({e.scope}) When {e.situation}" for n, e in self._entries.items()]
        return "\n".join(lines) or "There are no entries."

    def _read(self, name: str) -> str:
        if name not in self._entries:
            return "There is no such entry."
        held = self._entries[name]
        return f"{name} ({held.scope}) When {held.situation}: {held.lesson}"

    def _write(self, name: str, situation: str, lesson: str, scope: str) -> str:
        if name and name not in self._entries:
            return "Not done: there is no such entry."
        if scope not in self._scopes:
            return f"Not done: the scope must be one of {', '.join(self._scopes)}."
        try:
            return self._want(answers.entry(situation, lesson, scope, name, self._names))
        except Unreadable as e:
            return f"Not done: {e}."

    def _delete(self, name: str, reason: str) -> str:
        if name not in self._entries:
            return "Not done: there is no such entry."
        try:
            return self._want(answers.deletion(name, reason, self._names))
        except Unreadable as e:
            return f"Not done: {e}."

    def _want(self, wanted: Operation) -> str:
        if wanted in self.operations:
            return "That is done already."
        others, about = self.operations, wanted.delete or wanted.revises
        if about:  # the last word on an entry counts
            others = tuple(o for o in others if about not in (o.delete, o.revises))
        if len(others) >= MAX_OPERATIONS:
            return f"Not done: there are {MAX_OPERATIONS} changes already."
        self._past.append(self.operations)
        self.operations = (*others, wanted)
        return "Done."

    def _undo(self) -> str:
        if not self._past:
            return "There is nothing to undo."
        self.operations = self._past.pop()
        return "The last change is taken back."

    def _finish(self) -> str:
        self.finished = True
        return "Finished."


def tools(brief: Brief) -> tuple[Tool, ...]:
    """What a writer of ``brief`` may call. Where there are no entries, nothing is offered that
    needs one."""
    names = [f"e{at}" for at in range(1, len(brief.entries) + 1)]
    new = {"situation": TEXT, "lesson": TEXT, "scope": one_of(brief.scopes)}
    which = {"entry": one_of(names)}
    with_entries = [
        _tool("list_entries", "All entries, nearest first.", {}),
        _tool("read_entry", "An entry with its lesson.", which),
        _tool("revise_entry", "Put this in the place of an entry.", {**which, **new}),
        _tool("delete_entry", "Remove a wrong entry.", {**which, "reason": TEXT}),
    ]
    return (
        *(with_entries if names else ()),
        _tool("add_entry", "A new entry.", new),
        _tool("undo", "Take back the last change.", {}),
        _tool("finish", "All is written.", {}),
    )


def _tool(name: str, description: str, properties: dict[str, dict[str, object]]) -> Tool:
    # Without a word of further fields, which no tool takes: the offer is a part of each prompt.
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, description, json.dumps(schema))
