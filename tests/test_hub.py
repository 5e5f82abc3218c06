"""The hub by itself: whose turn it is, and channels that end while they are served."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from isovist.kernel.channels import TURN, Channel, Pipes
from isovist.kernel.hub import Hub
from isovist.syscalls.codec import encode
from isovist.syscalls.framing import pack
from isovist.syscalls.messages import Ping, Pong

FLOODS, MANY = 10, 600
PING = encode(Ping())


class Desk:
    """A hub over real pipes that answers every request, and notes of which channel it was."""

    def __init__(self, stack: ExitStack) -> None:
        self.served: list[int] = []
        self.fatal: set[int] = set()
        self.hub = Hub(self._request, lambda channel, why: None)
        self._stack = stack
        stack.callback(self.hub.close)

    def _request(self, channel: Channel, call: int, body: bytes) -> None:
        self.served.append(channel.number)
        if channel.number in self.fatal:
            self.hub.end(channel, "it broke the rules")
        else:
            self.hub.reply(channel.number, call, Pong(payload=""))

    def open(self) -> tuple[Channel, int]:
        """A channel, and the descriptor on which its peer writes."""
        requests, replies = os.pipe(), os.pipe()
        for fd in (requests[0], replies[1]):
            os.set_blocking(fd, False)
        self._stack.callback(os.close, requests[1])
        self._stack.callback(os.close, replies[0])
        channel = self.hub.open(Pipes(requests[0], replies[1]), 0)
        channel.attached = True
        self._stack.callback(channel.close)
        return channel, requests[1]


@pytest.fixture
def desk() -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(stack)


@pytest.mark.promise("fair.progress")
async def test_who_asks_little_waits_for_one_turn_of_others_however_many_ask_much(
    desk: Desk,
) -> None:
    good, writer = desk.open()
    for _ in range(FLOODS):
        os.write(desk.open()[1], pack(1, PING) * MANY)
    waited = []
    while True:
        os.write(writer, pack(1, PING))
        before = len(desk.served)
        while good.number not in desk.served[before:]:
            desk.hub.round(0)
        waited.append(desk.served[before:].index(good.number))
        if not desk.hub.busy:
            break
    # The floods went on meanwhile, to their end.
    assert len(desk.served) == FLOODS * MANY + len(waited)
    assert max(waited) <= TURN


async def test_who_asks_much_has_its_turns_in_order(desk: Desk) -> None:
    one, two = desk.open(), desk.open()
    for _, writer in (one, two):
        os.write(writer, pack(1, PING) * TURN * 3)
    while len(desk.served) < TURN * 6:
        desk.hub.round(0)
    turns = [set(desk.served[i : i + TURN]) for i in range(0, TURN * 6, TURN)]
    assert turns == [{one[0].number}, {two[0].number}] * 3


@pytest.mark.promise("kernel.survives")
@pytest.mark.parametrize("more", [0, 1])
async def test_a_dead_process_whose_last_words_broke_the_rules_ends_alone(
    desk: Desk, more: int
) -> None:
    """Its channel ends while what it left is served; its descriptors are then somebody else's."""
    dead, writer = desk.open()
    desk.fatal.add(dead.number)
    os.write(writer, pack(1, PING) * (1 + more))
    desk.hub.drain(dead, 0)
    assert dead.closed
    assert desk.served == [dead.number]
