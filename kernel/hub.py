"""The hub: one level-triggered epoll over all channels and other descriptors of the kernel.

trio waits on the epoll's own descriptor (a task and a stream an agent cost three times as much:
findings 2.1). The hub moves bytes and frames and knows their bounds; what a request means is
asked of ``request``, and that a channel has ended is told to ``ended``.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import trio

from isovist.kernel.channels import (
    LITTLE,
    PEER_CLOSED,
    PROCESS_GONE,
    TURN,
    Channel,
    Ended,
    Transport,
)
from isovist.syscalls.errors import Errno
from isovist.syscalls.messages import AnyReply, Failed

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


QUIET = frozenset({PEER_CLOSED, PROCESS_GONE})
"""Ends after which nobody is left who could read why."""


class Hub:
    """Invariants: a channel's read end is watched iff it wants input; its write end iff replies
    are left over; ``_busy`` holds all and only channels that want service, in order of their turns.

    Who asks little is served at once. Who has asked much in one breath waits for a turn, and of
    those there is one a round: so whoever asks little waits for one turn of one other, however
    many they are."""

    def __init__(
        self,
        request: Callable[[Channel, int, bytes], None],
        ended: Callable[[Channel, str], None],
    ) -> None:
        self._request = request
        self._ended = ended
        self._epoll = select.epoll()
        self._sources: dict[int, Callable[[], object]] = {}
        self._channels: dict[int, Channel] = {}
        self._reading: set[int] = set()
        self._writing: set[int] = set()
        self._busy: dict[int, None] = {}
        self._dirty: set[int] = set()
        self._impatient: set[int] = set()
        self._last = 0

    @property
    def busy(self) -> bool:
        return bool(self._busy)

    def statistics(self) -> dict[str, int]:
        return {
            "channels": len(self._channels),
            "backlog_bytes": sum(c.backlog for c in self._channels.values()),
        }

    # -- any descriptor

    def watch(self, fd: int, ready: Callable[[], object], mask: int = _IN) -> None:
        """Call ``ready`` in each round in which ``fd`` is ready."""
        self._sources[fd] = ready
        self._epoll.register(fd, mask)

    def unwatch(self, fd: int) -> None:
        if self._sources.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def wait(self, until: float) -> None:
        """Sleep until a descriptor is ready or trio's clock shows ``until`` (seconds)."""
        with trio.move_on_at(until):
            await trio.lowlevel.wait_readable(self._epoll.fileno())

    def close(self) -> None:
        self._epoll.close()

    # -- channels

    def open(self, transport: Transport, now: int, pid: int = 0) -> Channel:
        """A channel over ``transport``, served from now on."""
        self._last += 1
        channel = Channel(self._last, transport, now, pid)
        self._channels[channel.number] = channel
        self._settle(channel)
        return channel

    def channel(self, number: int) -> Channel | None:
        return self._channels.get(number)

    def channels(self) -> list[Channel]:
        return list(self._channels.values())

    def end(self, channel: Channel, why: str) -> None:
        """Close a channel and say so, once."""
        number = channel.number
        if self._channels.pop(number, None) is None:
            return
        for kind in (self._reading, self._writing):
            if number in kind:
                kind.discard(number)
                fd = channel.transport.read_fd
                self.unwatch(fd if kind is self._reading else channel.transport.write_fd)
        self._busy.pop(number, None)
        self._dirty.discard(number)
        self._impatient.discard(number)
        if why not in QUIET:
            # The last word, under no call's id; a peer that reads no more misses it.
            channel.reply(0, Failed(errno=int(Errno.EPIPE), message=why))
            with suppress(Ended):
                channel.flush(self._now())
        # Told first: whoever is to be killed for it shall not see its pipe close and end by itself.
        self._ended(channel, why)
        channel.close()
        self._release(channel)

    def reply(self, number: int, call: int, message: AnyReply) -> None:
        """Queue a reply; it leaves with the next :meth:`flush`."""
        channel = self._channels.get(number)
        if channel is not None:
            channel.reply(call, message)
            self._dirty.add(number)

    def hold(self, number: int, then: Callable[[], object]) -> bool:
        """True iff the channel is full: what was to be done for it waits, and ``then`` is called
        when it is full no more or has ended."""
        channel = self._channels.get(number)
        if channel is None or not channel.full:
            return False
        channel.held.append(then)
        return True

    @staticmethod
    def _release(channel: Channel) -> None:
        held, channel.held = channel.held, []
        for then in held:
            then()

    # -- rounds

    def round(self, now: int) -> bool:
        """Serve whoever asks little, and one who asks much for one turn; true iff anybody was
        ready."""
        ready = self._epoll.poll(0)
        for fd, _ in ready:
            source = self._sources.get(fd)
            if source is not None:
                source()
        if self._busy:
            number = next(iter(self._busy))
            del self._busy[number]
            self._serve(self._channels.get(number))
        for number in list(self._dirty):
            self._flush(self._channels.get(number), now)
        return bool(ready)

    def flush(self, now: int) -> None:
        for number in list(self._dirty):
            self._flush(self._channels.get(number), now)

    def drain(self, channel: Channel, now: int) -> None:
        """Serve what a process wrote before it ended (at most the pipe's capacity)."""
        for _ in range(1024):
            if not channel.closed:
                self._serve(channel)
            # To serve it may end it.
            if channel.closed:
                return
            if channel.ready and not channel.wants_service:
                return
            if not channel.ready and not self._receive(channel, now):
                return

    def _receive(self, channel: Channel, now: int) -> bool:
        try:
            found = channel.receive(now)
        except Ended as e:
            self.end(channel, e.message if e.errno is Errno.EPIPE else str(e))
            return False
        return found

    def _readable(self, channel: Channel) -> None:
        if not channel.closed and self._receive(channel, self._now()):
            if len(channel.ready) <= LITTLE:
                self._serve(channel)
            else:
                self._settle(channel)

    @staticmethod
    def _now() -> int:
        return int(trio.current_time() * 1e9)

    def _serve(self, channel: Channel | None) -> None:
        """Serve at most a turn's requests, then settle what the channel waits for."""
        if channel is None:
            return
        for call, body in list(islice(channel.ready, TURN)):
            if not channel.wants_service:
                break
            channel.ready.popleft()
            self._request(channel, call, body)
        if not channel.closed:
            self._settle(channel)

    def _flush(self, channel: Channel | None, now: int) -> None:
        if channel is None:
            return
        self._dirty.discard(channel.number)
        try:
            empty = channel.flush(now)
        except Ended as e:
            self.end(channel, e.message if e.errno is Errno.EPIPE else str(e))
            return
        if empty and channel.last_word:
            self.end(channel, channel.last_word)
            return
        self._settle(channel)

    def _settle(self, channel: Channel) -> None:
        """Make the class's invariants true again for one channel."""
        number, transport = channel.number, channel.transport
        if channel.held and not channel.full:
            self._release(channel)
        if channel.wants_service:
            self._busy.setdefault(number)
        else:
            self._busy.pop(number, None)
        if channel.wants_input != (number in self._reading):
            if channel.wants_input:
                self._reading.add(number)
                self.watch(transport.read_fd, lambda: self._readable(channel))
            else:
                self._reading.discard(number)
                self.unwatch(transport.read_fd)
        pending = channel.backlog > 0 and number not in self._dirty
        if pending != (number in self._writing):
            if pending:
                self._writing.add(number)
                self.watch(transport.write_fd, lambda: self._flush(channel, self._now()), _OUT)
            else:
                self._writing.discard(number)
                self.unwatch(transport.write_fd)
        if channel.patience() is None:
            self._impatient.discard(number)
        else:
            self._impatient.add(number)

    # -- patience

    def pause(self, channel: Channel, on: bool) -> None:
        """Its process cannot read or write now: its patience begins anew when it can again."""
        channel.pause(on, self._now())
        if not channel.closed:
            self._settle(channel)

    def deadline(self) -> float:
        """When the first patience ends (virtual ns)."""
        ends = (self._channels[number].patience() for number in self._impatient)
        return min((end for end in ends if end is not None), default=float("inf"))

    def check_patience(self, now: int) -> None:
        for number in list(self._impatient):
            channel = self._channels[number]
            try:
                channel.check(now)
            except Ended as e:
                self.end(channel, e.message if e.errno is Errno.EPIPE else str(e))
