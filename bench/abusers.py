"""Agents that keep no rules, one to a name, and floods that keep all: ``main(NAME)`` runs one.

They write raw bytes to their channel. What ends an abuser is told in :data:`ABUSERS`; the floods
read what they are sent and may go on for as long as they like.
"""

from __future__ import annotations

import os
import random
import select
import struct
from collections.abc import Callable
from typing import NoReturn

from isovist.syscalls.codec import encode
from isovist.syscalls.framing import pack
from isovist.syscalls.messages import (
    ABI_VERSION,
    Chat,
    Hello,
    ListProcesses,
    Ping,
    Remember,
    Request,
)
from isovist.syscalls.records import Message

BIG = Ping(payload="x" * 20_000)
FLOOD = Remember(text="flood " * 20)
HANG = Chat(messages=(Message("user", "!script hang"),), memory=False)


class Channel:
    def __init__(self) -> None:
        self.reads, self.writes = map(int, os.environ["ISOVIST_FDS"].split(","))
        os.set_blocking(self.reads, True)
        os.set_blocking(self.writes, True)
        self.say(frame(1, Hello(version=ABI_VERSION)))

    def say(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.writes, data) :]

    def hear_for_ever(self) -> None:
        while os.read(self.reads, 65536):
            pass

    def hear(self, seconds: float) -> bool:
        """Read what has come, waiting for it at most so long; false at the end."""
        if select.select([self.reads], [], [], seconds)[0]:
            return bool(os.read(self.reads, 65536))
        return True


def frame(call: int, request: Request) -> bytes:
    return pack(call, encode(request))


def garbage(c: Channel) -> None:
    c.say(pack(2, b"\xc1") * 8)
    c.hear_for_ever()


def oversize(c: Channel) -> None:
    c.say(struct.pack("<II", 1 << 30, 2))
    c.hear_for_ever()


def stalled(c: Channel) -> None:
    c.say(frame(2, BIG)[:-1])
    c.hear_for_ever()


def dribbler(c: Channel) -> None:
    c.say(struct.pack("<II", 1 << 20, 2))
    while c.hear(0.01):
        c.say(b"x")


def deaf(c: Channel) -> None:
    while True:
        c.say(frame(2, BIG))


def lister(c: Channel) -> None:
    many = frame(2, ListProcesses(all=True)) * 1000
    while True:
        c.say(many)


def writer(c: Channel) -> None:
    for call in range(2, 1 << 30):
        c.say(frame(call, FLOOD))


def asker(c: Channel) -> None:
    for call in range(2, 1 << 30):
        c.say(frame(call, HANG))


def noise(c: Channel) -> None:
    rng = random.Random(7)
    while True:
        c.say(rng.randbytes(65536))


def mute(c: Channel) -> None:
    os.close(c.reads)
    while True:
        c.say(frame(2, BIG))


def _flood(c: Channel, request: Request) -> None:
    """As many calls as may be outstanding, for ever, each reply read."""
    breath = b"".join(frame(call, request) for call in range(2, 200))
    os.set_blocking(c.writes, False)
    left = breath
    while True:
        readable, writable, _ = select.select([c.reads], [c.writes], [])
        if readable and not os.read(c.reads, 1 << 18):
            return
        if writable:
            left = left[os.write(c.writes, left) :] or breath


def pings(c: Channel) -> None:
    _flood(c, Ping())


def notes(c: Channel) -> None:
    _flood(c, Remember(text="The tide is high at noon."))


Program = Callable[[Channel], None]
ABUSERS: dict[str, tuple[Program, str]] = {
    "garbage": (garbage, "8 malformed requests"),
    "oversize": (oversize, "the limit is"),
    "stalled": (stalled, "stayed incomplete"),
    "dribbler": (dribbler, "stayed incomplete"),
    "deaf": (deaf, "never reads"),
    "lister": (lister, "never reads"),
    "writer": (writer, "never reads"),
    "asker": (asker, "never reads"),
    "noise": (noise, "EMSGSIZE"),
    "mute": (mute, ""),
}
"""By name: the program, and words of the reason for which the kernel ends it. Nobody ends the mute
one: a write to a closed pipe ends its channel."""
FLOODS: dict[str, Program] = {"pings": pings, "notes": notes}


def main(name: str) -> NoReturn:
    program = FLOODS[name] if name in FLOODS else ABUSERS[name][0]
    program(Channel())
    raise SystemExit(0)
