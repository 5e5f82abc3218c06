"""An endpoint over HTTP: one request, tried until it begins to answer.

A try that fails before anything of its answer was passed on is repeated, as nobody has seen it:
after 408, 425, 429 and 5xx, a connection that fails, a stream that breaks off, silence. What was
passed on cannot be taken back, so a later failure is the request's own.

Nothing that the endpoint says in words comes into an error, and no header: the key goes into one
header of each request, nowhere else.
"""

from __future__ import annotations

import ipaddress
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import httpx
import msgspec
import trio

from isovist.kernel.drivers.completions import (
    Answer,
    Chunk,
    Dialect,
    Malformed,
    Problem,
    body,
    read_chunk,
)
from isovist.kernel.drivers.protocol import Generate, Token
from isovist.kernel.drivers.sse import Events
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError

BACKOFF_CAP_S = 8.0
"""The longest pause before another try that the endpoint has not asked for."""
PATIENCE_S = 20.0
"""An endpoint that asks for a longer pause is not waited for: the request fails with ``EAGAIN``
and the time, and another model may answer it."""
BODY_BYTES = 4 << 20
"""Of an answer that is not streamed, or of an error."""
CONNECT_S = 10.0
LINGER_S = 0.2
"""How long a finished answer may take to end its connection's turn."""

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_LOAD = frozenset({429, 503, 529})
"""The statuses of a server that has too much to do."""
_WORD = re.compile(r"[a-z][a-z0-9_.\-\[\]]{2,63}\Z")


class Failure(Exception):
    """A try has failed. ``again``: another may succeed; ``after_s``: not before so long, as the
    endpoint itself says (``None``: it says nothing)."""

    def __init__(self, error: IsovistError, again: bool, after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error, self.again, self.after_s = error, again, after_s


@dataclass
class Times:
    """Of one answer, in ns of the monotonic clock: its last try's start and first token."""

    start: int = 0
    first: int = 0
    tries: int = 0


@dataclass(frozen=True)
class Address:
    """``key`` is the secret itself (empty: none), ``variable`` where it was found. ``silence_s``:
    how long the endpoint may say nothing; ``tries``: how often a request is sent at most;
    ``backoff_s``: the mean pause before the second try, doubled before each further one."""

    url: str
    model: str
    key: str = field(default="", repr=False)
    variable: str = ""
    dialect: Dialect = field(default_factory=Dialect)
    tries: int = 4
    silence_s: float = 120.0
    backoff_s: float = 0.5


class Remote:
    """Requests to one endpoint; any number at a time. Closed by :meth:`aclose`."""

    def __init__(self, address: Address, rng: random.Random | None = None) -> None:
        self._address = address
        self._random = rng or random.Random()
        self._not_before = 0.0
        """By trio's clock: what the endpoint has asked of one request holds for all of them."""
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if address.key:
            headers["Authorization"] = f"Bearer {address.key}"
        url = httpx.URL(address.url.rstrip("/") + "/chat/completions")
        self._url = url
        self._client = httpx.AsyncClient(
            headers=headers,
            # Silence is measured here, from event to event.
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            # The driver's slots are the bound.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            # A key follows no redirection.
            follow_redirects=False,
            # This machine is reached without the proxies that the environment names.
            trust_env=not is_local(url.host),
            verify=httpx.create_ssl_context() if url.scheme == "https" else False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def answer(
        self, request: Generate, send: Callable[[Token], None], times: Times
    ) -> Answer:
        """The whole answer, after its pieces went to ``send``. Raises its typed failure:
        ``EINVAL`` and ``EMSGSIZE`` of the request; ``EAGAIN`` with ``retry_at`` (in ns from now,
        0: not known) of an endpoint that has too much to do; ``EACCES`` of a key; ``ETIMEDOUT`` of
        silence; ``EIO`` of all else."""
        where = self._address
        asked = body(request, where.model, where.dialect)
        while True:
            await self._turn()
            times.tries += 1
            times.start = time.monotonic_ns()
            answer = Answer(request)
            try:
                await self._try(asked, answer, send, times)
                return answer
            except Failure as e:
                if answer.passed or not e.again or times.tries >= where.tries:
                    raise _with_time(e) from None
                if e.after_s is None:
                    await trio.sleep(self._backoff(times.tries))
                elif e.after_s > PATIENCE_S:
                    self._wait_until(e.after_s)
                    raise _with_time(e) from None
                else:
                    # All who wait would come back at the same instant.
                    self._wait_until(e.after_s)
                    await trio.sleep(e.after_s + self._random.uniform(0, where.backoff_s))

    def _backoff(self, tries: int) -> float:
        """Seconds before try ``tries + 1``: evenly from 0 to a bound that doubles."""
        bound = min(BACKOFF_CAP_S, self._address.backoff_s * 2.0**tries)
        return self._random.uniform(0, bound)

    def _wait_until(self, after_s: float) -> None:
        self._not_before = max(self._not_before, trio.current_time() + after_s)

    async def _turn(self) -> None:
        """Until the endpoint wants to be asked again. Raises ``EAGAIN`` where that is far off."""
        while (left := self._not_before - trio.current_time()) > 0:
            if left > PATIENCE_S:
                raise _with_time(Failure(_busy(429), True, left))
            await trio.sleep(left)

    async def _try(
        self, asked: bytes, answer: Answer, send: Callable[[Token], None], times: Times
    ) -> None:
        silence = self._address.silence_s

        def passed(tokens: list[Token]) -> None:
            for token in tokens:
                times.first = times.first or time.monotonic_ns()
                send(token)

        with trio.move_on_after(silence) as patience:
            try:
                async with self._client.stream("POST", self._url, content=asked) as response:
                    if response.status_code != 200:
                        raise self._refusal(response, await _body(response))
                    async with aclosing(_chunks(response)) as chunks:
                        async for chunk in chunks:
                            patience.deadline = trio.current_time() + silence
                            if chunk is None:
                                answer.finish = answer.finish or "stop"
                                continue
                            if chunk.error is not None:
                                raise self._fault(chunk.error)
                            passed(answer.feed(chunk))
                            if answer.over:
                                break
                if answer.filtered:
                    why = "the endpoint withheld its answer (content filter)"
                    raise Failure(WorldError(why), False)
                if answer.finish is None and not answer.over:
                    why = f"the endpoint broke off its answer after {answer.pieces} pieces"
                    raise Failure(WorldError(why), True)
                passed(answer.end())
                answer.calls()
            except httpx.ConnectTimeout:
                why = f"the endpoint cannot be reached within {CONNECT_S:g} s"
                raise Failure(WorldError(why, errno=Errno.ETIMEDOUT), True) from None
            except httpx.ConnectError:
                raise Failure(WorldError("the endpoint cannot be reached"), True) from None
            except (httpx.HTTPError, httpx.StreamError) as e:
                why = f"the connection to the endpoint broke: {type(e).__name__}"
                raise Failure(WorldError(why), True) from None
            except Malformed as e:
                why = f"the endpoint's answer cannot be read: {e}"
                raise Failure(WorldError(why), True) from None
        if patience.cancelled_caught:
            why = f"the endpoint said nothing for {silence:g} s"
            raise Failure(WorldError(why, errno=Errno.ETIMEDOUT), True)

    # -- by who must act

    def _refusal(self, response: httpx.Response, said: bytes) -> Failure:
        status = response.status_code
        problem = _problem(said)
        words = self._words(problem)
        after = retry_after(response.headers)
        if status in (401, 403):
            variable = self._address.variable
            whose = f"the key in {variable}" if variable else "a request without a key"
            why = f"the endpoint refuses {whose} (HTTP {status}{words})"
            return Failure(WorldError(why, errno=Errno.EACCES), False)
        if status == 413 or "context_length_exceeded" in words:
            why = f"the request is longer than the endpoint takes (HTTP {status}{words})"
            return Failure(CallerError(why, errno=Errno.EMSGSIZE, field="messages"), False)
        if status in (400, 422):
            return Failure(
                CallerError(f"the endpoint refuses the request (HTTP {status}{words})"), False
            )
        if status == 404:
            why = f"the endpoint knows no such model or address (HTTP 404{words})"
            return Failure(WorldError(why), False)
        if status in _LOAD:
            # Nobody's pause fills an empty account.
            return Failure(_busy(status, words), "insufficient_quota" not in words, after)
        return Failure(
            WorldError(f"the endpoint answers HTTP {status}{words}"), status in _AGAIN, after
        )

    def _fault(self, problem: Problem | str) -> Failure:
        """An error in the midst of a stream."""
        if isinstance(problem, str):
            return Failure(WorldError("the endpoint's stream ended with an error"), True)
        why = f"the endpoint's stream ended with an error{self._words(problem, ': ')}"
        code = problem.code
        if code in _LOAD or code == "rate_limit_exceeded":
            return Failure(WorldError(why, errno=Errno.EAGAIN), True)
        return Failure(WorldError(why), not (isinstance(code, int) and 400 <= code < 500))

    def _words(self, problem: Problem, before: str = ", ") -> str:
        """What an error says for machines, if it is a plain word and nothing of the key."""
        key = self._address.key.lower()
        told = [
            word
            for word in (problem.code, problem.type, problem.param)
            if isinstance(word, str)
            and _WORD.match(word)
            and not (key and (word in key or key in word))
        ]
        return before + " ".join(dict.fromkeys(told)) if told else ""


async def _chunks(response: httpx.Response) -> AsyncGenerator[Chunk | None]:
    """The events of a stream, ``None`` for the word that ends it; or the whole answer, where the
    server does not stream."""
    if "text/event-stream" not in response.headers.get("content-type", "text/event-stream"):
        yield read_chunk(await _body(response))
        return
    events = Events()
    async with _raw(response) as pieces:
        async for piece in pieces:
            try:
                found = events.feed(piece)
            except ValueError as e:
                raise Malformed(str(e)) from None
            for data in found:
                if data.strip() == b"[DONE]":
                    yield None
                    # A connection is kept for the next request where its answer was read out.
                    with trio.move_on_after(LINGER_S):
                        async for _ in pieces:
                            pass
                    return
                yield read_chunk(data)


async def _body(response: httpx.Response) -> bytes:
    """Raises :class:`Malformed` above :data:`BODY_BYTES`."""
    data = bytearray()
    async with _raw(response) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) > BODY_BYTES:
                raise Malformed("it is too long")
    return bytes(data)


@asynccontextmanager
async def _raw(response: httpx.Response) -> AsyncGenerator[AsyncIterator[bytes]]:
    """The body's bytes, which may be left before their end: a generator of httpx holds others,
    that nothing closes but an exception from the innermost, as a cancelled read is."""
    pieces = response.aiter_raw()
    try:
        yield pieces
    finally:
        with trio.CancelScope() as left, suppress(httpx.HTTPError, httpx.StreamError):
            left.cancel()
            async for _ in pieces:
                pass


def _problem(said: bytes) -> Problem:
    """What an error's body says, in one of the two common forms."""
    with suppress(msgspec.DecodeError, RecursionError):
        chunk = msgspec.json.decode(said, type=Chunk)
        if isinstance(chunk.error, Problem):
            return chunk.error
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(said, type=Problem)
    return Problem()


def _busy(status: int, words: str = "") -> WorldError:
    why = f"the endpoint has too much to do (HTTP {status}{words})"
    return WorldError(why, errno=Errno.EAGAIN)


def _with_time(failure: Failure) -> IsovistError:
    """The error of a failure, with the pause that the endpoint asks for."""
    error = failure.error
    if failure.after_s is not None and error.errno is Errno.EAGAIN:
        error.retry_at = int(failure.after_s * 1e9)
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds (from 0) that ``Retry-After`` asks for, as a number or as an HTTP date; ``None``
    where it asks for none. A date is measured by the server's own clock, where that is told."""
    value = headers.get("retry-after", "").strip()
    try:
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value):
            return float(value)
        now = headers.get("date", "")
        since = parsedate_to_datetime(now).timestamp() if now else time.time()
        return max(0.0, parsedate_to_datetime(value).timestamp() - since)
    except (ValueError, OverflowError):
        return None


def is_local(host: str) -> bool:
    """``host`` is this machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
