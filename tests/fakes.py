"""A kernel's end of a channel, for tests of the clients: it says what a test has it say."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from isovist.syscalls import messages as m
from isovist.syscalls.codec import decode_request, encode
from isovist.syscalls.framing import Framer, pack
from isovist.syscalls.locate import Line
from isovist.syscalls.records import Barrier, Process, Timings, Unit

PATIENCE = 20.0
"""Seconds after which a test that waits has failed."""

KINDS = ("pipe", "socket")


class Peer:
    """The kernel's end. Iterating gives (frame id, request) until the client has gone."""

    def __init__(self, reader: int, writer: int, door: socket.socket | None = None) -> None:
        self.reader, self.writer, self.door = reader, writer, door
        self._framer = Framer()
        self._frames: list[tuple[int, bytes]] = []
        self._closed = False

    def __iter__(self) -> Iterator[tuple[int, m.Request]]:
        while True:
            try:
                yield self.next()
            except EOFError:
                return

    def next(self) -> tuple[int, m.Request]:
        """The next request; ``EOFError`` when the client has gone."""
        while not self._frames:
            if not select.select([self.reader], [], [], PATIENCE)[0]:
                raise TimeoutError("the client sends nothing")
            try:
                data = os.read(self.reader, 1 << 16)
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self._frames += self._framer.feed(data)
        call, body = self._frames.pop(0)
        return call, decode_request(body)

    def expect(self, kind: type[m.Call]) -> tuple[int, Any]:
        """The next request, which must be of this kind."""
        call, request = self.next()
        assert isinstance(request, kind), request
        return call, request

    def reply(self, call: int, *replies: m.Reply) -> None:
        self.write(b"".join(pack(call, encode(reply)) for reply in replies))

    def write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while data:
                data = data[os.write(self.writer, data) :]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.door is not None:
            self.door.close()
        else:
            os.close(self.reader)
            os.close(self.writer)


Script = Callable[[Peer], object]


def line(kind: str) -> tuple[Line, Peer]:
    """Both ends of a new channel."""
    if kind == "pipe":
        client_reads, peer_writes = os.pipe()
        peer_reads, client_writes = os.pipe()
        return Line(client_reads, client_writes), Peer(peer_reads, peer_writes)
    ours, theirs = socket.socketpair()
    return (
        Line(ours.fileno(), ours.fileno(), "sesame", ours),
        Peer(theirs.fileno(), theirs.fileno(), theirs),
    )


@contextlib.contextmanager
def kernel(kind: str, script: Script) -> Iterator[Line]:
    """``script`` plays the kernel in a thread; what it raises fails the test."""
    ours, peer = line(kind)
    failures: list[BaseException] = []

    def play() -> None:
        try:
            script(peer)
        except EOFError:
            pass
        except BaseException as e:
            failures.append(e)
        finally:
            peer.close()

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the kernel's script is stuck"
        if failures:
            raise failures[0]


def answer(request: m.Request) -> m.Reply:
    """What a kernel that knows nothing would say to a well-behaved agent."""
    match request:
        case m.Hello():
            return WELCOME
        case m.Ping():
            return m.Pong(payload=request.payload)
        case m.Remember():
            return m.Stored(
                id=f"u-{request.text[:8]}",
                version=1,
                scope=request.scope or "pair",
                user=request.user or "ana",
                rule="request" if request.user else "agent",
            )
        case m.Chat():
            return chatted(f"echo {request.messages[-1].content}")
        case m.Cancel():
            return m.Done()
    return m.Failed(errno=38, message="the fake does not do that")


def serve(peer: Peer) -> None:
    """Answer everything at once and in order; a cancelled call was answered before."""
    for call, request in peer:
        peer.reply(call, answer(request))


WELCOME = m.Welcome(
    version=1, features=("cancel",), agent="fake", pid=7, max_frame=1 << 20, max_calls=256
)


def chatted(text: str) -> m.Chatted:
    return m.Chatted(
        text=text,
        call="c1",
        model="fake",
        user="ana",
        rule="session",
        finish="stop",
        injected=(),
        budget=0,
        counter="fake",
        barrier=Barrier(state="ready"),
        timings=Timings(),
        prompt_tokens=1,
        output_tokens=1,
        injected_tokens=0,
    )


def units(*texts: str, next: str = "") -> m.Units:
    return m.Units(
        units=tuple(
            Unit(
                id=text,
                version=1,
                text=text,
                kind="note",
                scope="pair",
                agent="fake",
                user="ana",
                stream="protected",
                said_at=0,
                stored_at=0,
            )
            for text in texts
        ),
        user="ana",
        rule="session",
        barrier=Barrier(state="ready"),
        next=next,
    )


def exited(pid: int) -> m.Exited:
    return m.Exited(process=Process(pid=pid, agent="fake", user="ana", state="exited", status=0))
