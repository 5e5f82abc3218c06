"""A desk at the pure kernel's door: ask, let the world answer, look at what came out."""

from __future__ import annotations

from typing import Any, TypeVar

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.core import State
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.state.toolservers import ServerConfig
from isovist.syscalls import messages as m
from isovist.syscalls.operations import (
    Candidate,
    Drop,
    Outcome,
    Put,
    Replace,
    Selection,
    Vectors,
)
from isovist.syscalls.records import Hit, Message, Partition, Unit, partition_of

I = TypeVar("I", bound=ins.Instruction)  # noqa: E741 # an instruction, in one place only
MS, SECOND = 1_000_000, 1_000_000_000
GRANTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mail": (("ana", "bob"), ()),
    "plan": (("ana",), ("agent", "global")),
}
OPERATOR, MAIL, PLAN = 1, 2, 3
"""Channels that are open, greeted, and have the frame ids 1 to 999 free for a test to choose."""


class Desk:
    """Validates the state after every event. ``out`` is what the last one gave."""

    def __init__(self, **more: Any) -> None:
        fields: dict[str, Any] = {
            "secret": b"secret",
            "grants": GRANTS,
            "models": (
                ModelConfig("small", "scripted", 2048),
                ModelConfig("wide", "x", 1024, 2, snapshots=True),
            ),
            "tool_servers": (ServerConfig("slow"),),
        }
        self.state = State(**{**fields, **more})
        self.now = 1
        self.frame = 1000
        self.out: list[ins.Instruction] = []
        for channel, agent in ((OPERATOR, "operator"), (MAIL, "mail"), (PLAN, "plan")):
            self.attach(channel, agent, operator=channel == OPERATOR)

    def tell(self, event: type[ev.Event], **fields: Any) -> list[ins.Instruction]:
        self.now += 1
        self.out = self.state.handle(event(now=self.now, **fields))
        self.state.validate()
        return self.out

    def attach(self, channel: int, agent: str, *, hello: bool = True, **more: Any) -> None:
        self.tell(ev.Attached, channel=channel, agent=agent, **more)
        if hello:
            self.ask(channel, m.Hello(version=1), frame=0)

    def ask(self, channel: int, request: m.Request, frame: int | None = None) -> Any:
        """The reply, where there is one at once."""
        if frame is None:
            self.frame += 1
            frame = self.frame
        self.tell(ev.Arrived, channel=channel, call=frame, request=request)
        return self.reply(frame)

    def reply(self, frame: int | None = None) -> Any:
        """The last word on ``frame`` (default: the newest) in ``out``, or ``None``."""
        frame = self.frame if frame is None else frame
        words = [r.message for r in self.all(ins.Reply) if r.call == frame]
        last = [word for word in words if not isinstance(word, m.Part)]
        assert len(last) <= 1
        return last[0] if last else None

    def all(self, kind: type[I]) -> list[I]:
        return [i for i in self.out if isinstance(i, kind)]

    def one(self, kind: type[I]) -> I:
        found = self.all(kind)
        assert len(found) == 1, self.out
        return found[0]

    def sleep(self, ns: int) -> list[ins.Instruction]:
        """Let time pass, and the kernel know."""
        self.now += ns
        return self.tell(ev.Tick)

    # -- the store

    def commit(self, op: Any, **more: Any) -> list[ins.Instruction]:
        chunks = (op.text,) if isinstance(op, Put | Replace) else ()
        fields = {"id": op.id, "version": 1, "chunks": chunks, **more}
        return self.tell(ev.Committed, outcome=Outcome(op=op, **fields))

    def refuse(self, op: Any, errno: int = 28) -> list[ins.Instruction]:
        outcome = Outcome(op=op, errno=errno, message="full")
        return self.tell(ev.WriteFailed, outcome=outcome)

    def embed(self, op: Put | Replace, failed: bool = False) -> list[ins.Instruction]:
        vectors = Vectors(
            partition=op.partition, seq=op.seq, id=op.id, version=1, model="x", vectors=(b"",)
        )
        return self.refuse(vectors, 5) if failed else self.commit(vectors)

    def remember(self, channel: int, **fields: Any) -> Put:
        """Accepted and handed to the store, not yet committed."""
        assert self.ask(channel, m.Remember(**{"text": "a fact", **fields})) is None
        op = self.one(ins.Commit).op
        assert isinstance(op, Put)
        return op

    def stored(self, channel: int, **fields: Any) -> Put:
        """Committed, embedded and acknowledged."""
        op = self.remember(channel, **fields)
        self.commit(op)
        self.embed(op)
        return op

    def select(self, *units: Put, **more: Any) -> list[ins.Instruction]:
        """Answer the newest retrieval with ``units``."""
        asked = self.one(ins.Retrieve)
        found = tuple(candidate(unit) for unit in units)
        selection = Selection(candidates=found, next=more.pop("next", ""))
        fields = {"key": asked.key, "turn": asked.turn, "selection": selection, **more}
        return self.tell(ev.Retrieved, **fields)

    # -- a chat

    def render(self, **more: Any) -> list[ins.Instruction]:
        fields: dict[str, Any] = {
            "prompt": "prompt", "prompt_tokens": 9, "shown": (), "injected_tokens": 0,
            "counter": "exact", **more,
        }  # fmt: skip
        return self.tell(ev.Rendered, key=self.one(ins.Render).key, **fields)

    def up(self, model: str = "small", gen: int = 1) -> list[ins.Instruction]:
        return self.tell(ev.DriverUp, model=model, gen=gen, context=2048)

    def decoding(self, channel: int, **fields: Any) -> ins.Decode:
        """A chat that has come as far as the driver, which is started where it must be."""
        self.ask(channel, chat(**{"memory": False, **fields}))
        starts = self.all(ins.StartDriver)
        self.render()
        for start in starts:
            self.up(start.model, start.gen)
        return self.one(ins.Decode)

    def token(self, decode: ins.Decode, text: str) -> list[ins.Instruction]:
        return self.tell(ev.Token, model=decode.model, gen=decode.gen, key=decode.key, text=text)

    def done(self, decode: ins.Decode, **more: Any) -> list[ins.Instruction]:
        return self.tell(ev.DriverDone, model=decode.model, gen=decode.gen, key=decode.key, **more)

    def die(self, model: str = "small", gen: int = 1, **more: Any) -> list[ins.Instruction]:
        return self.tell(ev.DriverDied, model=model, gen=gen, reason="killed", **more)


def chat(text: str = "when?", **fields: Any) -> m.Chat:
    return m.Chat(**{"messages": (Message("user", text),), **fields})


def candidate(put: Put, version: int = 1) -> Candidate:
    unit = Unit(
        id=put.id, version=version, text=put.text, kind=put.kind, scope=put.partition.scope,
        agent=put.agent, user=put.user, stream=put.stream, said_at=put.said_at,
        stored_at=put.stored_at, session=put.session, round=put.round, meta=put.meta,
        supersedes=put.supersedes, handle=put.handle, expires_at=put.expires_at,
    )  # fmt: skip
    return Candidate(
        hit=Hit(unit=unit, chunk=put.text, score=1.0), partition=put.partition,
        owner_agent=put.agent, owner_user=put.user, cosine=1.0, coverage=1.0, hash="h",
    )  # fmt: skip


def pair(user: str, agent: str) -> Partition:
    return partition_of("pair", user, agent)


__all__ = ["Desk", "Drop", "candidate", "chat", "pair"]
