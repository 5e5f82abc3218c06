"""The load generator: agents that each send a request, wait for its reply, and send the next.

One process holds the agents' ends of all lanes and is as lean as a client can be: an epoll, the
project's own framing and codec, nothing else. Kernel and raw loop get the same load from it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec

from bench.lanes import Lane
from bench.report import CannotRun, percentile
from isovist.syscalls.codec import decode_reply, encode
from isovist.syscalls.framing import Framer, pack
from isovist.syscalls.messages import ABI_VERSION, AnyReply, Failed, Hello, Request

STALL_SECONDS = 60.0
"""A load that gets no reply for so long is given up."""
READ_BYTES = 64 * 1024


class Sample(msgspec.Struct):
    """Latencies in µs, from before a request was encoded to after its reply was decoded, and the
    seconds that all took together. Samples of several rounds add up."""

    latencies: list[float] = []
    seconds: float = 0.0

    def add(self, other: Sample) -> None:
        self.latencies += other.latencies
        self.seconds += other.seconds

    @property
    def p50(self) -> float:
        return percentile(self.latencies, 0.50)

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 0.99)

    @property
    def rate(self) -> float:
        """Calls a second, of all agents together."""
        return len(self.latencies) / self.seconds


def drive(
    lanes: Sequence[Lane],
    request: Callable[[Lane], Request],
    calls: int,
    *,
    reply: Callable[[AnyReply, float], None] | None = None,
    until: Callable[[], bool] | None = None,
) -> Sample:
    """``calls`` calls, one outstanding on each of ``lanes`` at any time.

    ``reply`` gets each reply with its latency in µs; ``until`` may end the load early. Raises
    :class:`CannotRun` where a call fails or nothing comes back.
    """
    sample = Sample()
    framers = {lane.reader: Framer() for lane in lanes}
    of = {lane.reader: lane for lane in lanes}
    sent: dict[int, int] = {}
    left = calls
    clock, read, write = time.perf_counter_ns, os.read, os.write

    def send(lane: Lane) -> None:
        nonlocal left
        left -= 1
        sent[lane.reader] = clock()
        write(lane.writer, pack(1, encode(request(lane))))

    with closing(select.epoll()) as epoll:
        for lane in lanes:
            epoll.register(lane.reader, select.EPOLLIN)
        began = clock()
        for lane in lanes[:calls]:
            send(lane)
        while sent:
            ready = epoll.poll(STALL_SECONDS)
            if not ready:
                raise CannotRun(f"no reply for {STALL_SECONDS:.0f} s")
            for fd, _ in ready:
                data = read(fd, READ_BYTES)
                if not data:
                    raise CannotRun(f"the channel of {of[fd].agent} was closed")
                for _, body in framers[fd].feed(data):
                    answer = decode_reply(body)
                    took = (clock() - sent.pop(fd)) / 1e3
                    if type(answer) is Failed:
                        raise CannotRun(f"a call failed: {answer.message}")
                    sample.latencies.append(took)
                    if reply is not None:
                        reply(answer, took)
                    if left > 0 and not (until and until()):
                        send(of[fd])
        sample.seconds = (clock() - began) / 1e9
    return sample


def greet(lanes: Sequence[Lane]) -> None:
    """The handshake, on all lanes."""
    drive(lanes, lambda lane: Hello(version=ABI_VERSION), len(lanes))
