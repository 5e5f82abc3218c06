"""The reference: a bare epoll loop that decodes each request and encodes a reply, with no kernel.

``python -m bench.raw CORE R,W…`` is the other process of a two-process ping-pong over pipes with
the project's own frames and codec. It answers each kind of request with a reply of the size that
a kernel's has, so the ratio says what the kernel adds and not what MessagePack costs.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from bench import ROOT
from bench.lanes import Lane, LanePairs, environment
from bench.machine import pin
from isovist.syscalls.codec import decode_request, encode
from isovist.syscalls.framing import Framer, pack
from isovist.syscalls.messages import (
    Chat,
    Chatted,
    Hello,
    Ping,
    Pong,
    Remember,
    Reply,
    Request,
    Stored,
    Welcome,
)
from isovist.syscalls.records import Barrier, Injected, Timings

_UNIT = Injected(
    unit="u0123456789abcdef0123",
    version=1,
    owner="load0",
    scope="user",
    kind="note",
    tokens=24,
    score=0.5,
    hash="0123456789abcdef0123456789abcdef",
)
_CHATTED = Chatted(
    text="I do not know.",
    call="c0123456789abcdef0123",
    model="scripted",
    user="ana",
    rule="request",
    finish="stop",
    injected=(_UNIT,) * 4,
    budget=307,
    counter="scripted/words",
    barrier=Barrier(state="ready"),
    timings=Timings(retrieval=1.0, render=0.1, model=0.1, total=1.2),
    prompt_tokens=150,
    output_tokens=5,
    injected_tokens=120,
)
_STORED = Stored(
    id="u0123456789abcdef0123", version=1, scope="pair", user="agent/load0", rule="agent"
)
_WELCOME = Welcome(version=1, features=(), agent="load0", pid=0, max_frame=1 << 20, max_calls=256)


def answer(request: Request) -> Reply:
    match request:
        case Ping():
            return Pong(payload=request.payload)
        case Remember():
            return _STORED
        case Chat():
            return _CHATTED
        case Hello():
            return _WELCOME
    raise ValueError(f"the raw loop knows no {type(request).__name__}")


class RawLoop:
    """A context: the process, and ``lanes`` to it."""

    def __init__(self, core: int, lanes: int) -> None:
        self._pairs = LanePairs([f"load{i}" for i in range(lanes)])
        ends = [f"{reader},{writer}" for _, reader, writer in self._pairs.theirs]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.raw", str(core), *ends],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=self._pairs.fds(),
            cwd=ROOT,
            env=environment(),
        )
        self._pairs.hand_over()

    @property
    def lanes(self) -> list[Lane]:
        return self._pairs.ours

    def __enter__(self) -> RawLoop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It ends by itself when its last lane is closed.
        self._pairs.close()
        self._process.wait()


def serve(pairs: Sequence[tuple[int, int]]) -> None:
    """Answer until every peer is gone."""
    writer_of = dict(pairs)
    framers = {reader: Framer() for reader in writer_of}
    read, write = os.read, os.write
    with select.epoll() as epoll:
        for reader in writer_of:
            epoll.register(reader, select.EPOLLIN)
        while framers:
            for fd, _ in epoll.poll():
                data = read(fd, 64 * 1024)
                if not data:
                    epoll.unregister(fd)
                    del framers[fd]
                    continue
                replies = [
                    pack(call, encode(answer(decode_request(body))))
                    for call, body in framers[fd].feed(data)
                ]
                write(writer_of[fd], b"".join(replies))


if __name__ == "__main__":
    pin(int(sys.argv[1]))
    serve([(int(r), int(w)) for r, w in (pair.split(",") for pair in sys.argv[2:])])
