"""A peer of the kernel that keeps no rules: raw bytes over real pipes and sockets."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from kernel_helpers import pipes

from isovist.kernel.channels import PEER_CLOSED
from isovist.kernel.kernel import Kernel
from isovist.syscalls import messages as m
from isovist.syscalls.codec import decode_reply, encode
from isovist.syscalls.framing import Framer, pack

SECONDS = 20
"""Far more than any test takes: only a hang gets there."""

HELLO = m.Hello(version=1)


def lazy_spawner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel start its zygote at the first spawn: most tests never need it."""

    async def later(kernel: Kernel) -> None:
        pass

    monkeypatch.setattr(Kernel, "_start_spawner", later)


def frame(call: int, request: m.Request) -> bytes:
    return pack(call, encode(request))


class Raw:
    """Bytes out, frames in. ``reader`` and ``writer`` belong to it from here on."""

    def __init__(self, reader: int, writer: int) -> None:
        self._in = trio.lowlevel.FdStream(reader)
        self._out = trio.lowlevel.FdStream(writer)
        self._framer = Framer()
        self._frames: list[tuple[int, m.AnyReply]] = []
        self.told = ""
        """Why the kernel ended the channel, in its own last word."""

    async def send(self, data: bytes) -> bool:
        """Write all of it; false where the kernel reads no more."""
        try:
            await self._out.send_all(data)
        except trio.BrokenResourceError:
            return False
        return True

    async def next(self) -> tuple[int, m.AnyReply] | None:
        """The next reply and the frame id that it answers; ``None`` at the end."""
        while True:
            if self._frames:
                call, reply = self._frames.pop(0)
                if call != 0:
                    return call, reply
                # No call has id 0: a failure there says why the channel ends.
                assert isinstance(reply, m.Failed)
                self.told = reply.message
            try:
                data = await self._in.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._frames += [(call, decode_reply(body)) for call, body in self._framer.feed(data)]

    async def reply(self) -> m.AnyReply:
        got = await self.next()
        assert got is not None, "the channel has ended"
        return got[1]

    async def ask(self, call: int, request: m.Request) -> m.AnyReply:
        await self.send(frame(call, request))
        return await self.reply()

    async def to_end(self) -> list[m.AnyReply]:
        """All replies until the kernel closes the channel."""
        replies = []
        while (got := await self.next()) is not None:
            replies.append(got[1])
        return replies

    async def aclose(self) -> None:
        await self._in.aclose()
        await self._out.aclose()


@asynccontextmanager
async def raw(
    kernel: Kernel, agent: str = "abuser", *, greet: bool = True, operator: bool = False
) -> AsyncIterator[Raw]:
    """A raw peer on a pipe pair; it has said hello unless told not to."""
    peer = Raw(*pipes(kernel, agent, operator=operator))
    try:
        if greet:
            assert isinstance(await peer.ask(1, HELLO), m.Welcome)
        yield peer
    finally:
        await peer.aclose()


@asynccontextmanager
async def knock(kernel: Kernel) -> AsyncIterator[Raw]:
    """A raw connection to the socket door."""
    sock = dial(kernel)
    peer = Raw(sock.fileno(), os.dup(sock.fileno()))
    sock.detach()
    try:
        yield peer
    finally:
        await peer.aclose()


def dial(kernel: Kernel) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(kernel.config.socket))
    return sock


def send_descriptors(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])


def whys(logs: Sequence[MutableMapping[str, Any]]) -> list[str]:
    """Why the kernel ended channels, out of what ``structlog.testing.capture_logs`` caught."""
    ends = [entry["why"] for entry in logs if entry["event"] == "channel ended"]
    return [why for why in ends if why != PEER_CLOSED]
