"""The half that both clients share: frame ids, replies in any order, streams, cancels.

Sans-I/O: the client moves bytes, the session gives them meaning. It is **resumable**: a signal
handler may raise at any call inside it (Ctrl-C does), and the next :meth:`Session.advance` goes
on where the last one was broken off. What makes that so:

- bytes that were read or written are recorded by the very call that moved them
  (``inbox.extend(map(os.read, …))``: no handler can run in between);
- each change of what is pending is the store of one tuple;
- giving out a frame a second time changes nothing.
"""

from __future__ import annotations

import itertools
import socket
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from isovist.syscalls.codec import decode_reply, encode
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError, error
from isovist.syscalls.framing import MAX_ID, FrameError, Framer, pack
from isovist.syscalls.messages import (
    ABI_VERSION,
    FEATURES,
    REPLY_OF,
    AnyReply,
    Cancel,
    Chat,
    Failed,
    Hello,
    Part,
    Request,
    WaitPid,
    Welcome,
)

LOWEST_ABI = 1
"""The oldest ABI version that this client speaks."""


class Exchange:
    """One request under way, and what has come for it.

    Invariant: ``outcome`` is set once, by the last word of the kernel or by the end of the
    channel or by a drop; after that the exchange never changes but for parts taken out.
    """

    __slots__ = ("call", "lot", "outcome", "parts", "request")

    def __init__(self, call: int, request: Request) -> None:
        self.call = call
        self.request = request
        self.parts: dict[int, str] = {}
        self.outcome: AnyReply | IsovistError | None = None
        self.lot: object = None
        """For the client's own use: who waits here."""

    @property
    def streams(self) -> bool:
        """Whether its reply may come in parts."""
        request = self.request
        return (isinstance(request, Chat) and request.stream) or (
            isinstance(request, WaitPid) and request.follow
        )

    def take(self) -> str | None:
        """The next part, if one is there."""
        for serial in self.parts:
            return self.parts.pop(serial)
        return None

    def result(self) -> AnyReply:
        """The reply. Raises what the kernel answered with, anew each time."""
        outcome = self.outcome
        if isinstance(outcome, Failed):
            raise _raised(outcome)
        if isinstance(outcome, IsovistError):
            raise _again(outcome)
        if outcome is None:
            raise CallerError("the call has not ended yet")
        return outcome


class Session:
    """One channel's calls. Not thread-safe: a client that has threads holds a lock around it.

    Invariants: an id is not issued again before the kernel has said its last word on it, though
    its caller may have dropped it long before; a reply to no outstanding id is ignored.
    """

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        """Whom calls serve that name nobody; ``None`` leaves it to the kernel."""
        self.ended: IsovistError | None = None
        self._last = 0
        self._open: dict[int, Exchange] = {}
        self._serials = itertools.count()
        # Pending input: the start of an incomplete frame, frames not yet given out, bytes as
        # they were read. Replaced as a whole, see the head of this module.
        self._input: tuple[bytes, deque[tuple[int, int, bytes]], list[bytes]] = (b"", deque(), [])

    def __len__(self) -> int:
        """Calls that the kernel has yet to answer, dropped ones included."""
        return len(self._open)

    @property
    def inbox(self) -> list[bytes]:
        """Where what is read goes, in order; empty bytes are the end of the stream."""
        return self._input[2]

    def issue(self, request: Request) -> tuple[Exchange, bytes]:
        """A new exchange, and the frame to send for it.

        Raises ``EPIPE`` where the channel has ended, ``EINVAL`` or ``EMSGSIZE`` where the
        request cannot be sent; nothing is then outstanding.
        """
        if self.ended is not None:
            raise _again(self.ended)
        if type(request) not in REPLY_OF:
            raise CallerError(f"a {type(request).__name__} is no request")
        names_nobody = request.user is None and not isinstance(request, (Hello, Cancel))
        if self.user is not None and names_nobody:
            request = msgspec.structs.replace(request, user=self.user)
        body = encode(request)
        call = self._last % MAX_ID + 1
        while call in self._open:
            call = call % MAX_ID + 1
        frame = pack(call, body)
        exchange = Exchange(call, request)
        self._last = call
        self._open[call] = exchange
        return exchange, frame

    def drop(self, exchange: Exchange) -> bytes | None:
        """End ``exchange`` with ``ECANCELED`` for its caller, and return the frame that cancels
        it in the kernel; ``None`` if it had ended. Whatever still comes for it is ignored."""
        if exchange.outcome is not None:
            return None
        exchange.outcome = WorldError("cancelled by its caller", errno=Errno.ECANCELED)
        exchange.parts.clear()
        if self.ended is not None:
            return None
        return self.issue(Cancel(call=exchange.call))[1]

    def receive(self, data: bytes) -> list[Exchange]:
        """Take in what was read (nothing: the stream has ended); see :meth:`advance`."""
        self.inbox.append(data)
        return self.advance()

    def advance(self) -> list[Exchange]:
        """Give out what is in the inbox; returns the exchanges for which something came."""
        news: list[Exchange] = []
        if self._input[2]:
            self._split()
        elif not self._input[1]:
            return news
        frames = self._input[1]
        while frames:
            if exchange := self._give(*frames[0]):
                news.append(exchange)
            frames.popleft()
        inbox = self._input[2]
        if inbox and not inbox[-1]:
            news += self.end(gone())
        return news

    def end(self, reason: IsovistError) -> list[Exchange]:
        """The channel is over: every outstanding call ends with ``reason``, and so will later
        ones. The first reason stays. Returns the exchanges that ended so."""
        if self.ended is None:
            self.ended = reason
        ended = list(self._open.values())
        for exchange in ended:
            if exchange.outcome is None:
                exchange.outcome = self.ended
        self._open.clear()
        return ended

    def _split(self) -> None:
        rest, frames, inbox = self._input
        data = rest + b"".join(inbox)
        try:
            whole = Framer().feed(data)
        except FrameError as e:
            self.end(e)
            self._input = (b"", deque(), [])
            return
        used = sum(8 + len(body) for _, body in whole)
        tail = [b""] if not inbox[-1] else []  # the end of the stream must stay seen
        numbered = ((next(self._serials), call, body) for call, body in whole)
        self._input = (data[used:], deque([*frames, *numbered]), tail)

    def _give(self, serial: int, call: int, body: bytes) -> Exchange | None:
        """Hand one frame to its exchange. Doing so twice changes nothing."""
        exchange = self._open.get(call)
        if exchange is None:
            if call == 0:
                self._last_word(body)
            return None
        try:
            reply: AnyReply | IsovistError = _fitting(exchange, decode_reply(body))
        except IsovistError as e:
            reply = e
        if isinstance(reply, Part):
            if exchange.outcome is None:
                exchange.parts[serial] = reply.text
            return exchange
        if exchange.outcome is None:
            exchange.outcome = reply
        self._open.pop(call, None)
        return exchange

    def _last_word(self, body: bytes) -> None:
        """No call has id 0: a failure there says why the kernel ends the channel."""
        try:
            reply = decode_reply(body)
        except IsovistError:
            return
        if isinstance(reply, Failed):
            self.end(_raised(reply))


Rights = list[tuple[int, int, bytes]]
"""Ancillary data of ``sendmsg``."""


class Outbox:
    """Bytes that must go out, in order, some of which may have gone. Resumable like the session.

    ``write`` and ``sendmsg`` return how many bytes they took, and are built-in functions, so
    that what they took is recorded in the same step. ``sendmsg`` is ``None`` on a pipe.

    Invariant: descriptors go along with the first byte of their frame, once.
    """

    def __init__(
        self,
        write: Callable[[bytes], int],
        sendmsg: Callable[[list[bytes], Rights], int] | None = None,
    ) -> None:
        self._write = write
        self._sendmsg = sendmsg
        # What is left, what each write took of it, frames behind it, what goes along with it.
        self._state: tuple[bytes, list[int], list[bytes], Rights] = (b"", [], [], [])

    def __len__(self) -> int:
        """Bytes still to go."""
        left, sent, behind, _ = self._state
        return len(left) - sum(sent) + sum(map(len, behind))

    def put(self, frame: bytes) -> None:
        self._state[2].append(frame)

    def put_with(self, frame: bytes, descriptors: tuple[int, ...]) -> None:
        """Queue a frame that hands over descriptors. The outbox must be empty."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors).tobytes())
        self._state = (frame, [], [], [rights])

    def clear(self) -> None:
        self._state = (b"", [], [], [])

    def flush(self) -> bool:
        """Write until all has gone (``True``) or the peer takes no more for now.

        Raises ``OSError`` where the peer is gone.
        """
        while True:
            left, sent, behind, rights = self._state
            if sent:
                left, rights = left[sum(sent) :], []
            left, sent = left + b"".join(behind), []
            self._state = (left, sent, [], rights)
            if not left:
                return True
            try:
                if rights and self._sendmsg is not None:
                    sent.extend(map(self._sendmsg, ([left],), (rights,)))
                else:
                    sent.extend(map(self._write, (left,)))
            except BlockingIOError:
                return False


def hello(token: str, agent: str) -> Hello:
    """The handshake's first half."""
    return Hello(version=ABI_VERSION, low=LOWEST_ABI, features=FEATURES, token=token, agent=agent)


def agreed(welcome: AnyReply) -> Welcome:
    """The handshake's second half. Raises ``EPROTO`` where the versions don't meet."""
    if not isinstance(welcome, Welcome) or not LOWEST_ABI <= welcome.version <= ABI_VERSION:
        theirs = getattr(welcome, "version", "unknown")
        raise IsovistError(
            f"ABI mismatch: the kernel speaks version {theirs}, this client "
            f"{LOWEST_ABI} to {ABI_VERSION}; update the older of the two",
            errno=Errno.EPROTO,
        )
    return welcome


def gone() -> WorldError:
    """The other end of the channel is closed."""
    return WorldError("the kernel closed the channel or has died", errno=Errno.EPIPE)


def closed() -> WorldError:
    """This end of the channel is closed."""
    return WorldError("the client is closed", errno=Errno.EPIPE)


def _fitting(exchange: Exchange, reply: AnyReply) -> AnyReply:
    """``reply`` itself, if it is of a kind that the request can have."""
    request = exchange.request
    if isinstance(reply, (REPLY_OF[type(request)], Failed)):
        return reply
    if isinstance(reply, Part) and exchange.streams:
        return reply
    raise IsovistError(
        f"a {type(reply).__name__} is no reply to {type(request).__name__}", errno=Errno.EPROTO
    )


def _again(e: IsovistError) -> IsovistError:
    """A copy to raise: one exception raised in two threads would mix their tracebacks."""
    return type(e)(e.message, errno=e.errno, field=e.field, story=e.story, retry_at=e.retry_at)


def _raised(reply: Failed) -> IsovistError:
    return error(reply.errno, reply.message, reply.field, reply.story, reply.retry_at)
