"""The blocking client: for a plain script, shared by as many threads as it likes.

There is no background thread. Of the threads that wait, one *leads*: it alone polls and reads,
and hands each reply to whoever waits for it; when it has its own, it hands the lead on. A thread
whose write would block waits in the same way, so replies are read meanwhile, and two peers
that both write never stall each other.

Ctrl-C may strike anywhere: the call that waits is cancelled and ``KeyboardInterrupt`` goes up;
the client stays usable, since session and outbox are resumable.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Generic, Literal, TypeVar, Unpack, cast

from isovist.syscalls import messages as m
from isovist.syscalls.effects import EffectCalls
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.filing import FileCalls
from isovist.syscalls.learn import LearnCalls
from isovist.syscalls.locate import Line, locate
from isovist.syscalls.mail import MailCalls
from isovist.syscalls.mounted import MountedCalls
from isovist.syscalls.names import check_name
from isovist.syscalls.options import (
    CallOptions,
    ChatOptions,
    GrantOptions,
    KillOptions,
    LimitOptions,
    ListOptions,
    MatchOptions,
    MemoryReadOptions,
    MemorySearchOptions,
    PrefetchOptions,
    ReadOptions,
    RememberOptions,
    SearchOptions,
    SessionSearchOptions,
    SpawnOptions,
    conversation,
)
from isovist.syscalls.quotas import QuotaCalls
from isovist.syscalls.records import Message, ModelQueue, SavedContext, Tool, Unit, Usage
from isovist.syscalls.session import (
    Exchange,
    Outbox,
    Session,
    agreed,
    closed,
    gone,
    hello,
)
from isovist.syscalls.supervision import SupervisionCalls

HANDSHAKE_SECONDS = 30.0
READ_BYTES = 64 * 1024

R = TypeVar("R", bound=m.Reply)
Ready = Callable[[], bool]


def connect(
    agent: str | None = None,
    user: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    token: str | None = None,
) -> Client:
    """Connect to the kernel and shake hands.

    An agent that the kernel spawned gives nothing: channel and identity come from the kernel.
    Others reach it by ``socket`` and ``token`` or by the places that
    :func:`isovist.syscalls.locate.locate` names; ``agent`` is honoured for the operator alone.
    ``user`` is whom calls serve that name nobody, under a grant.

    Raises ``EPIPE`` where no kernel listens, ``EPROTO`` where the ABI versions don't meet.
    """
    if agent is not None:
        check_name(agent, "agent")
    client = Client(locate(socket, token), user=user)
    try:
        client.shake_hands(agent or "")
    except BaseException:
        client.close()
        raise
    return client


class Client(
    LearnCalls,
    SupervisionCalls,
    EffectCalls,
    MailCalls,
    MountedCalls,
    FileCalls,
    QuotaCalls,
):
    """A channel to the kernel. All methods may be used from several threads at once.

    Each call takes ``user`` and ``deadline_ms`` as keywords (see :class:`messages.Call`),
    returns the reply Struct of its syscall, and raises an
    :class:`isovist.syscalls.errors.IsovistError`. When the kernel is gone every outstanding and
    later call raises ``EPIPE``.

    Use as a context manager, or :meth:`close` it.
    """

    welcome: m.Welcome
    """What the handshake agreed on: version, features, agent and process number."""

    def __init__(self, line: Line, user: str | None = None) -> None:
        self._line = line
        self._session = Session(user)
        self._read = partial(os.read, line.reader)
        sendmsg = line.socket.sendmsg if line.socket is not None else None
        self._outbox = Outbox(partial(os.write, line.writer), sendmsg)
        # Rung to make the leader look up: somebody has bytes to send, or closes the client.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._quiet = self._poller(writing=False)
        self._busy = self._poller(writing=True)
        # Guards all below, session and outbox. Held for no wait but that for itself.
        self._lock = threading.Lock()
        # The thread that leads (0: none), and the others' gates: locks, shut until opened.
        self._leader = 0
        self._followers: dict[threading.Lock, Ready] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; calls under way in other threads end with ``EPIPE``."""
        with self._lock:
            self._session.end(closed())
            self._outbox.clear()
            if self._line.closed:
                return
        self._ring()
        # Descriptors are closed by a leader, so that none is polled while its number is reused.
        self._until(lambda: False, leave=True)

    # -- any request ------------------------------------------------------------------------

    def submit(self, request: m.Request, stdio: tuple[int, int, int] | None = None) -> Pending:
        """Send a request and return at once, or as soon as the kernel takes its bytes."""
        begun: list[Exchange] = []
        try:
            return Pending(self, self._send(request, stdio, begun))
        except BaseException:
            self._drop(begun)
            raise

    def call(self, request: m.Request) -> m.AnyReply:
        """Send a request and wait for its reply."""
        return cast(m.AnyReply, self._ask(request, m.Reply))

    def _ask(
        self, request: m.Request, reply: type[R], stdio: tuple[int, int, int] | None = None
    ) -> R:
        begun: list[Exchange] = []
        try:
            exchange = self._send(request, stdio, begun)
            self._until(lambda: exchange.outcome is not None)
        except BaseException:
            self._drop(begun)
            raise
        # The session has checked that the reply is of the kind that belongs to the request.
        return cast(R, exchange.result())

    # -- one method a syscall ---------------------------------------------------------------

    def ping(self, payload: str = "", **options: Unpack[CallOptions]) -> m.Pong:
        return self._ask(m.Ping(payload=payload, **options), m.Pong)

    def whoami(self, **options: Unpack[CallOptions]) -> m.Identity:
        """Who the kernel takes this client for, and whom it would serve now."""
        return self._ask(m.Whoami(**options), m.Identity)

    def session_open(
        self, user: str, replace: bool = False, *, deadline_ms: int | None = None
    ) -> m.SessionOpened:
        """From now on this channel serves ``user``."""
        request = m.SessionOpen(user=user, replace=replace, deadline_ms=deadline_ms)
        return self._ask(request, m.SessionOpened)

    def grant(
        self,
        agent: str,
        users: Sequence[str] = (),
        scopes: Sequence[str] = (),
        revoke: bool = False,
        **options: Unpack[GrantOptions],
    ) -> m.Done:
        """Operator only: let ``agent`` act for ``users`` and publish to ``scopes``."""
        request = m.Grant(
            agent=agent,
            users=tuple(users),
            scopes=tuple(scopes),
            revoke=revoke,
            **options,
        )
        return self._ask(request, m.Done)

    def spawn(
        self,
        program: str,
        *,
        stdio: tuple[int, int, int] | None = None,
        **options: Unpack[SpawnOptions],
    ) -> m.Spawned:
        """Start an agent process. ``stdio``: descriptors of this process that become its standard
        streams (over the socket door only)."""
        request = m.Spawn(program=program, stdio=stdio is not None, **options)
        return self._ask(request, m.Spawned, stdio)

    def wait(self, pid: int, **options: Unpack[CallOptions]) -> m.Exited:
        """Wait until process ``pid`` has exited."""
        return self._ask(m.WaitPid(pid=pid, **options), m.Exited)

    def follow(self, pid: int, **options: Unpack[CallOptions]) -> Stream[m.Exited]:
        """Like :meth:`wait`, giving its standard error as it comes."""
        return Stream(self.submit(m.WaitPid(pid=pid, follow=True, **options)))

    def kill(self, pid: int, **options: Unpack[KillOptions]) -> m.Exited:
        return self._ask(m.Kill(pid=pid, **options), m.Exited)

    def exit(self, status: int = 0, **options: Unpack[CallOptions]) -> m.Done:
        """Tell the kernel that this process is done; later calls are refused."""
        return self._ask(m.Exit(status=status, **options), m.Done)

    def processes(
        self, all: bool = False, usage: bool = False, **options: Unpack[CallOptions]
    ) -> m.Processes:
        return self._ask(m.ListProcesses(all=all, usage=usage, **options), m.Processes)

    def remember(self, text: str, **options: Unpack[RememberOptions]) -> m.Stored:
        """Store one unit; returns when it is durable. Private unless ``scope`` says otherwise."""
        return self._ask(m.Remember(text=text, **options), m.Stored)

    def search(self, query: str, **options: Unpack[SearchOptions]) -> m.Found:
        return self._ask(m.Search(query=query, **options), m.Found)

    def read(self, id: str, **options: Unpack[ReadOptions]) -> m.Units:
        """One unit, in ``units[0]``."""
        return self._ask(m.Read(id=id, **options), m.Units)

    def memories(self, **options: Unpack[ListOptions]) -> Iterator[Unit]:
        """All units of the view, newest first, fetched by pages of ``limit`` as needed."""
        while True:
            page = self._ask(m.MemoryList(**options), m.Units)
            yield from page.units
            if not page.next:
                return
            options = {**options, "after": page.next}

    def update(self, id: str, version: int, text: str, **options: Unpack[CallOptions]) -> m.Stored:
        """Replace the text of an own unit iff it is still at ``version`` (else ``ESTALE``)."""
        return self._ask(m.Update(id=id, version=version, text=text, **options), m.Stored)

    def forget(self, id: str, **options: Unpack[CallOptions]) -> m.Forgotten:
        return self._ask(m.Forget(id=id, **options), m.Forgotten)

    def memory_search(self, query: str, **options: Unpack[MemorySearchOptions]) -> m.Rounds:
        """The best rounds for ``query``, one compact result a round, best first."""
        return self._ask(m.MemorySearch(query=query, **options), m.Rounds)

    def memory_read(
        self, session: str, round: int, **options: Unpack[MemoryReadOptions]
    ) -> m.Rounds:
        """Whole rounds of a session that a search named, and their neighbours."""
        return self._ask(m.MemoryRead(session=session, round=round, **options), m.Rounds)

    def session_search(self, query: str, **options: Unpack[SessionSearchOptions]) -> m.Rounds:
        """The best sessions for ``query``, whole, or with ``compact`` what was found of them."""
        return self._ask(m.SessionSearch(query=query, **options), m.Rounds)

    def full_context(self, **options: Unpack[LimitOptions]) -> m.Rounds:
        """All that is in view, oldest first, the newest kept where not all fits."""
        return self._ask(m.FullContext(**options), m.Rounds)

    def memory_files(self, **options: Unpack[LimitOptions]) -> m.Files:
        """The view as texts, one a scope (:func:`isovist.syscalls.files.write_files` writes
        them)."""
        return self._ask(m.MemoryFiles(**options), m.Files)

    def prefetch(self, query: str, **options: Unpack[PrefetchOptions]) -> m.Prefetched:
        """The block that :meth:`chat` would put before ``query``, without asking the model."""
        return self._ask(m.Prefetch(query=query, **options), m.Prefetched)

    def forget_matching(self, query: str, **options: Unpack[MatchOptions]) -> m.Matched:
        """Which of one's own units hold all words of ``query``, and a word; with it as ``confirm``
        all and only those are forgotten."""
        return self._ask(m.ForgetMatching(query=query, **options), m.Matched)

    def forget_user(
        self, name: str, confirm: str = "", **options: Unpack[CallOptions]
    ) -> m.Matched:
        """Operator only: how many units the user has, and a word; with it the user is forgotten."""
        return self._ask(m.ForgetUser(name=name, confirm=confirm, **options), m.Matched)

    def receipt(
        self, receipt: str, wait: bool = False, **options: Unpack[CallOptions]
    ) -> m.ReceiptShown:
        """Whether what was forgotten has left every file; with ``wait``, when it has."""
        return self._ask(m.ReceiptOf(receipt=receipt, wait=wait, **options), m.ReceiptShown)

    def expire(
        self, id: str, version: int, at: str | None = None, **options: Unpack[CallOptions]
    ) -> m.Stored:
        """Let an own unit expire at ``at`` iff it is still at ``version`` (else ``ESTALE``)."""
        request = m.Expire(id=id, version=version, at=at, **options)
        return self._ask(request, m.Stored)

    def rescope(
        self, id: str, version: int, scope: str, **options: Unpack[CallOptions]
    ) -> m.Stored:
        """Give an own unit another audience iff it is still at ``version`` (else ``ESTALE``)."""
        request = m.Rescope(id=id, version=version, scope=scope, **options)
        return self._ask(request, m.Stored)

    def view(self, **options: Unpack[ReadOptions]) -> m.ViewShown:
        """What this reader sees and why: the partitions of its view, with how many units."""
        return self._ask(m.ViewOf(**options), m.ViewShown)

    def groups(
        self, of: Literal["", "users", "agents"] = "", **options: Unpack[CallOptions]
    ) -> m.GroupList:
        """Operator only: the groups and who is in them."""
        return self._ask(m.Groups(of=of, **options), m.GroupList)

    def group_change(
        self,
        name: str,
        of: Literal["users", "agents"],
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        **options: Unpack[CallOptions],
    ) -> m.GroupList:
        """Operator only: let members join and leave a group; the reply shows it as it now is."""
        request = m.GroupChange(name=name, of=of, add=tuple(add), remove=tuple(remove), **options)
        return self._ask(request, m.GroupList)

    def export(self, name: str | None = None, **options: Unpack[CallOptions]) -> Iterator[str]:
        """Operator only: the store's living units, or those of the user ``name``, as JSON lines,
        newest first; ``ENOENT`` where that user has none."""
        if name is not None:
            check_name(name.removeprefix("agent/"), "name")
        after, told = "", False
        while True:
            page = self._ask(m.Export(name=name or "", after=after, **options), m.Exported)
            told = told or bool(page.lines)
            yield from page.lines
            if not page.next:
                break
            after = page.next
        if name is not None and not told:
            raise CallerError(f"no units of the user {name!r}", errno=Errno.ENOENT, field="name")

    def import_(self, lines: Sequence[str], **options: Unpack[CallOptions]) -> m.Imported:
        """Operator only: take in 1 to 1,000 lines of an export, oldest first."""
        return self._ask(m.Import(lines=tuple(lines), **options), m.Imported)

    def backup(self, path: str, **options: Unpack[CallOptions]) -> m.BackedUp:
        """Operator only: copy the store, while it works, to a new file at the absolute ``path``."""
        return self._ask(m.Backup(path=path, **options), m.BackedUp)

    def statistics(self, **options: Unpack[CallOptions]) -> dict[str, int]:
        """Operator only: how much there is of what, in the kernel and its store."""
        reply = self._ask(m.Statistics(**options), m.Figures)
        return reply.figures

    def schedule(
        self, policy: str = "", model: str = "", **options: Unpack[CallOptions]
    ) -> tuple[ModelQueue, ...]:
        """Operator only: the queue before each model, or before ``model``; with ``policy`` first
        put under the policy of this name."""
        return self._ask(m.Schedule(policy=policy, model=model, **options), m.Queues).queues

    def metering(
        self,
        by: Literal["agent", "user", "model"] = "agent",
        since: str | None = None,
        until: str | None = None,
        **options: Unpack[CallOptions],
    ) -> tuple[Usage, ...]:
        """Operator only: what chat calls cost, by name; see :class:`~.messages.Metering`."""
        request = m.Metering(by=by, since=since, until=until, **options)
        return self._ask(request, m.Metered).usage

    def chat(self, prompt: str | Sequence[Message], **options: Unpack[ChatOptions]) -> m.Chatted:
        """Ask a model; the kernel injects what is in view unless ``memory=False``."""
        return self._ask(m.Chat(messages=conversation(prompt), **options), m.Chatted)

    def stream(
        self, prompt: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Stream[m.Chatted]:
        """Like :meth:`chat`, giving the text as it is made."""
        request = m.Chat(messages=conversation(prompt), stream=True, **options)
        return Stream(self.submit(request))

    def context_save(
        self,
        name: str,
        messages: Sequence[Message],
        model: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
        **options: Unpack[CallOptions],
    ) -> m.ContextSaved:
        """Keep a conversation under ``name``, with what ``model`` holds computed of it as it is
        asked with ``tools`` and ``choice``, which the next chat hands on again."""
        said = conversation(messages)
        request = m.ContextSave(
            name=name,
            messages=said,
            model=model,
            tools=tuple(tools),
            choice=choice,
            **options,
        )
        return self._ask(request, m.ContextSaved)

    def context_load(
        self, name: str, warm: bool = True, **options: Unpack[CallOptions]
    ) -> m.ContextLoaded:
        """The conversation of that name; with ``warm`` its model gets its state back."""
        request = m.ContextLoad(name=name, warm=warm, **options)
        return self._ask(request, m.ContextLoaded)

    def contexts(self, **options: Unpack[CallOptions]) -> tuple[SavedContext, ...]:
        """What this agent keeps with this user, by name."""
        reply = self._ask(m.ContextList(**options), m.Contexts)
        return reply.contexts

    def context_drop(self, name: str, **options: Unpack[CallOptions]) -> m.Done:
        """Remove a context, its text and its model's state."""
        return self._ask(m.ContextDrop(name=name, **options), m.Done)

    def models(self, **options: Unpack[CallOptions]) -> m.ModelList:
        return self._ask(m.Models(**options), m.ModelList)

    def why(self, call: str, **options: Unpack[CallOptions]) -> m.Record:
        """The audit record of a search or chat (``reply.call`` names it)."""
        return self._ask(m.Why(call=call, **options), m.Record)

    def cancel(self, call: int, **options: Unpack[CallOptions]) -> m.Done:
        """End the outstanding request with frame id ``call`` (``Pending.call``)."""
        return self._ask(m.Cancel(call=call, **options), m.Done)

    def shake_hands(self, agent: str = "") -> None:
        """First thing on a new channel; :func:`connect` does it."""
        pending = self.submit(hello(self._line.token, agent))
        self.welcome = agreed(pending.result(HANDSHAKE_SECONDS))

    # -- sending and waiting ----------------------------------------------------------------

    def _send(
        self,
        request: m.Request,
        stdio: tuple[int, int, int] | None,
        begun: list[Exchange],
    ) -> Exchange:
        """Send a request; returns when its bytes are gone. ``begun`` holds the exchange before
        any byte can go, so that the caller can cancel it wherever an interrupt strikes."""
        if stdio is not None and self._line.socket is None:
            raise CallerError("stdio needs the socket door, this is a pipe", field="stdio")
        while True:
            with self._lock:
                # Descriptors go with the first byte of their frame, so nothing may be before it.
                if stdio is None or self._flush():
                    exchange, frame = self._session.issue(request)
                    begun.append(exchange)
                    if stdio is None:
                        self._outbox.put(frame)
                    else:
                        self._outbox.put_with(frame, stdio)
                    sent = self._flush()
                    break
            self._until(self._flush)
        if not sent:
            self._until(self._flush)
        return exchange

    def _drop(self, exchanges: list[Exchange]) -> None:
        """Cancel here and, as soon as bytes can go out, in the kernel."""
        with self._lock:
            for exchange in exchanges:
                if frame := self._session.drop(exchange):
                    self._outbox.put(frame)
                    self._flush()
            # An interrupt may have struck before others got what had come for them, or between
            # giving up the lead and handing it on.
            self._wake()
            if self._leader == 0:
                self._promote()

    def _until(self, ready: Ready, seconds: float | None = None, leave: bool = False) -> bool:
        """Wait until ``ready()``, which is asked under the lock; ``False`` if time ran out first.

        With ``leave``, wait to become the leader and close the channel.

        Invariant: whenever nobody leads, some follower's gate is open, if there are followers.
        """
        until = None if seconds is None else time.monotonic() + seconds
        me = threading.get_ident()
        gate = threading.Lock()
        gate.acquire()  # shut
        try:
            while True:
                with self._lock:
                    self._followers.pop(gate, None)
                    # A lead of mine from before: an interrupt kept me from giving it up.
                    leads = self._leader in (0, me)
                    if leads:
                        self._leader = me
                        self._advance()
                    if ready():
                        return True
                    if leads and leave:
                        self._close()
                        return True
                    if not leads:
                        self._followers[gate] = ready
                    writing = len(self._outbox) > 0
                left = None if until is None else max(0.0, until - time.monotonic())
                if leads:
                    went = self._turn(writing, left)
                else:
                    if writing:
                        self._ring()
                    went = gate.acquire(timeout=-1 if left is None else left)
                if not went:
                    with self._lock:
                        return ready()
        finally:
            # No call stands before the lead is given up: an interrupt cannot come between.
            with self._lock:
                if self._leader == me:
                    self._leader = 0
                self._followers.pop(gate, None)
                if self._leader == 0:
                    self._promote()

    def _turn(self, writing: bool, left: float | None) -> bool:
        """The leader's work: wait for the kernel once. ``False`` if nothing happened in time."""
        poller = self._busy if writing else self._quiet
        events = poller.poll(None if left is None else math.ceil(left * 1000))
        if not events:
            return False
        with self._lock:
            if any(fd == self._bell for fd, _ in events):
                os.eventfd_read(self._bell)
            if writing:
                self._flush()
            self._receive()
            self._wake()
        return True

    # -- under the lock ---------------------------------------------------------------------

    def _flush(self) -> bool:
        try:
            return self._outbox.flush()
        except OSError:
            # The kernel reads no more. What it said before that still counts.
            self._outbox.clear()
            while self._receive():
                pass
            self._session.end(gone())
            os.eventfd_write(self._bell, 1)
            return True

    def _receive(self) -> bool:
        """Read once; ``False`` if nothing was there or the channel is over."""
        if self._session.ended is not None:
            return False
        try:
            self._session.inbox.extend(map(self._read, (READ_BYTES,)))
        except BlockingIOError:
            return False
        except OSError:
            self._session.end(gone())
            return False
        self._advance()
        return self._session.ended is None

    def _advance(self) -> None:
        self._session.advance()
        if self._session.ended is not None:
            self._outbox.clear()

    def _wake(self) -> None:
        """Open the gates of all that have what they wait for."""
        for gate, ready in list(self._followers.items()):
            if ready() and gate.locked():
                gate.release()

    def _promote(self) -> None:
        """Open one gate; whoever is behind it takes the lead, or hands it on as it leaves."""
        for gate in list(self._followers)[:1]:
            if gate.locked():
                gate.release()

    def _close(self) -> None:
        if not self._line.closed:
            self._line.close()
            os.close(self._bell)
        self._wake()

    def _ring(self) -> None:
        with self._lock:
            if not self._line.closed:
                os.eventfd_write(self._bell, 1)

    def _poller(self, writing: bool) -> select.poll:
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        poller.register(self._line.reader, select.POLLIN)
        if writing:
            both = self._line.reader == self._line.writer
            events = select.POLLOUT | (select.POLLIN if both else 0)
            poller.register(self._line.writer, events)
        return poller


class Pending:
    """A request under way, as :meth:`Client.submit` returns it."""

    def __init__(self, client: Client, exchange: Exchange) -> None:
        self._client = client
        self._exchange = exchange

    @property
    def call(self) -> int:
        """Its frame id, as ``Cancel`` names it."""
        return self._exchange.call

    @property
    def done(self) -> bool:
        """Whether its last word has been read already; reads nothing itself."""
        return self._exchange.outcome is not None

    def result(self, timeout: float | None = None) -> m.AnyReply:
        """Wait for the reply, ``timeout`` seconds at most: then ``ETIMEDOUT``, and the request
        is still under way. An interrupt (Ctrl-C) cancels it."""
        exchange = self._exchange
        try:
            ready = self._client._until(lambda: exchange.outcome is not None, timeout)
        except BaseException:
            self.cancel()
            raise
        if not ready:
            raise WorldError(
                f"no reply within {timeout} s (the call goes on)", errno=Errno.ETIMEDOUT
            )
        return exchange.result()

    def parts(self) -> Iterator[str]:
        """The texts of a streamed reply, until the last. Raises as :meth:`result` does."""
        exchange = self._exchange
        while True:
            try:
                self._client._until(lambda: bool(exchange.parts) or exchange.outcome is not None)
                with self._client._lock:
                    part = exchange.take()
            except BaseException:
                self.cancel()
                raise
            if part is None:
                exchange.result()
                return
            yield part

    def cancel(self) -> None:
        """End it here with ``ECANCELED`` and tell the kernel; nothing if it has ended."""
        self._client._drop([self._exchange])


class Stream(Generic[R]):
    """The text of a reply, part by part; afterwards the reply itself in :attr:`reply`.

    As a context manager it cancels the call where the body leaves early.
    """

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._parts = pending.parts()

    def __iter__(self) -> Iterator[str]:
        return self._parts

    def __next__(self) -> str:
        return next(self._parts)

    def __enter__(self) -> Stream[R]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    @property
    def reply(self) -> R:
        """The whole reply. Raises ``EINVAL`` before the last part has come."""
        return cast(R, self._pending._exchange.result())

    def cancel(self) -> None:
        self._pending.cancel()
