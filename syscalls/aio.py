"""The trio client: the methods of :class:`isovist.syscalls.client.Client`, to be awaited.

One task reads and one writes what a call could not write at once. A cancelled scope sends
``Cancel`` and leaves the client sound: its frame has been queued whole or not at all, and what
still comes for it is ignored.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Generic, Literal, TypeVar, Unpack, cast

import trio

from isovist.syscalls import messages as m
from isovist.syscalls.client import HANDSHAKE_SECONDS, READ_BYTES
from isovist.syscalls.effects import AsyncEffectCalls
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.filing import AsyncFileCalls
from isovist.syscalls.learn import AsyncLearnCalls
from isovist.syscalls.locate import Line, locate
from isovist.syscalls.mail import AsyncMailCalls
from isovist.syscalls.mounted import AsyncMountedCalls
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
from isovist.syscalls.quotas import AsyncQuotaCalls
from isovist.syscalls.records import Message, ModelQueue, SavedContext, Tool, Unit, Usage
from isovist.syscalls.session import Exchange, Outbox, Session, agreed, closed, gone, hello
from isovist.syscalls.supervision import AsyncSupervisionCalls

HIGH_WATER = 64 * 1024
"""Bytes waiting to go out above which a call waits before it adds more."""

R = TypeVar("R", bound=m.Reply)


@asynccontextmanager
async def open_client(
    agent: str | None = None,
    user: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    token: str | None = None,
) -> AsyncIterator[AsyncClient]:
    """Connect and shake hands, as :func:`isovist.syscalls.client.connect` does; closed on exit."""
    if agent is not None:
        check_name(agent, "agent")
    line = await trio.to_thread.run_sync(locate, socket, token)
    async with serve(line, user) as client:
        await client.shake_hands(agent or "")
        yield client


@asynccontextmanager
async def serve(line: Line, user: str | None = None) -> AsyncIterator[AsyncClient]:
    """A client on an open line, before its handshake."""
    client = AsyncClient(line, user)
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client._reader)
            nursery.start_soon(client._writer)
            try:
                yield client
            except (Exception, KeyboardInterrupt) as e:
                # Goes on outside, so that the nursery does not wrap it in a group.
                failure = e
            finally:
                client._end(closed())
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        line.close()


class AsyncClient(
    AsyncLearnCalls,
    AsyncSupervisionCalls,
    AsyncEffectCalls,
    AsyncMailCalls,
    AsyncMountedCalls,
    AsyncFileCalls,
    AsyncQuotaCalls,
):
    """A channel to the kernel for the tasks of one trio run; made by :func:`open_client`.

    Every call is a checkpoint, takes ``user`` and ``deadline_ms`` as keywords, returns the reply
    Struct of its syscall, and raises an :class:`isovist.syscalls.errors.IsovistError`; ``EPIPE``
    once the kernel is gone.
    """

    welcome: m.Welcome
    """What the handshake agreed on: version, features, agent and process number."""

    def __init__(self, line: Line, user: str | None = None) -> None:
        self._line = line
        self._session = Session(user)
        sendmsg = line.socket.sendmsg if line.socket is not None else None
        self._outbox = Outbox(partial(os.write, line.writer), sendmsg)
        self._more = trio.Event()
        self._drained = trio.lowlevel.ParkingLot()

    # -- any request ------------------------------------------------------------------------

    async def submit(
        self, request: m.Request, stdio: tuple[int, int, int] | None = None
    ) -> AsyncPending:
        """Send a request; returns when its bytes are gone or queued."""
        exchange = await self._send(request, stdio)
        return AsyncPending(self, exchange)

    async def call(self, request: m.Request) -> m.AnyReply:
        """Send a request and wait for its reply."""
        return await self._result(await self._send(request))

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        # The session has checked that the reply is of the kind that belongs to the request.
        return cast(R, await self._result(await self._send(request)))

    # -- one method a syscall ---------------------------------------------------------------

    async def ping(self, payload: str = "", **options: Unpack[CallOptions]) -> m.Pong:
        return await self._ask(m.Ping(payload=payload, **options), m.Pong)

    async def whoami(self, **options: Unpack[CallOptions]) -> m.Identity:
        """Who the kernel takes this client for, and whom it would serve now."""
        return await self._ask(m.Whoami(**options), m.Identity)

    async def session_open(
        self, user: str, replace: bool = False, *, deadline_ms: int | None = None
    ) -> m.SessionOpened:
        """From now on this channel serves ``user``."""
        request = m.SessionOpen(user=user, replace=replace, deadline_ms=deadline_ms)
        return await self._ask(request, m.SessionOpened)

    async def grant(
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
        return await self._ask(request, m.Done)

    async def spawn(
        self,
        program: str,
        *,
        stdio: tuple[int, int, int] | None = None,
        **options: Unpack[SpawnOptions],
    ) -> m.Spawned:
        """Start an agent process. ``stdio``: descriptors of this process that become its standard
        streams (over the socket door only)."""
        request = m.Spawn(program=program, stdio=stdio is not None, **options)
        return cast(m.Spawned, await self._result(await self._send(request, stdio)))

    async def wait(self, pid: int, **options: Unpack[CallOptions]) -> m.Exited:
        """Wait until process ``pid`` has exited."""
        return await self._ask(m.WaitPid(pid=pid, **options), m.Exited)

    async def follow(self, pid: int, **options: Unpack[CallOptions]) -> AsyncStream[m.Exited]:
        """Like :meth:`wait`, giving its standard error as it comes."""
        return AsyncStream(await self.submit(m.WaitPid(pid=pid, follow=True, **options)))

    async def kill(self, pid: int, **options: Unpack[KillOptions]) -> m.Exited:
        return await self._ask(m.Kill(pid=pid, **options), m.Exited)

    async def exit(self, status: int = 0, **options: Unpack[CallOptions]) -> m.Done:
        """Tell the kernel that this process is done; later calls are refused."""
        return await self._ask(m.Exit(status=status, **options), m.Done)

    async def processes(
        self, all: bool = False, usage: bool = False, **options: Unpack[CallOptions]
    ) -> m.Processes:
        return await self._ask(m.ListProcesses(all=all, usage=usage, **options), m.Processes)

    async def remember(self, text: str, **options: Unpack[RememberOptions]) -> m.Stored:
        """Store one unit; returns when it is durable. Private unless ``scope`` says otherwise."""
        return await self._ask(m.Remember(text=text, **options), m.Stored)

    async def search(self, query: str, **options: Unpack[SearchOptions]) -> m.Found:
        return await self._ask(m.Search(query=query, **options), m.Found)

    async def read(self, id: str, **options: Unpack[ReadOptions]) -> m.Units:
        """One unit, in ``units[0]``."""
        return await self._ask(m.Read(id=id, **options), m.Units)

    async def memories(self, **options: Unpack[ListOptions]) -> AsyncIterator[Unit]:
        """All units of the view, newest first, fetched by pages of ``limit`` as needed."""
        while True:
            page = await self._ask(m.MemoryList(**options), m.Units)
            for unit in page.units:
                yield unit
            if not page.next:
                return
            options = {**options, "after": page.next}

    async def update(
        self, id: str, version: int, text: str, **options: Unpack[CallOptions]
    ) -> m.Stored:
        """Replace the text of an own unit iff it is still at ``version`` (else ``ESTALE``)."""
        request = m.Update(id=id, version=version, text=text, **options)
        return await self._ask(request, m.Stored)

    async def forget(self, id: str, **options: Unpack[CallOptions]) -> m.Forgotten:
        return await self._ask(m.Forget(id=id, **options), m.Forgotten)

    async def memory_search(self, query: str, **options: Unpack[MemorySearchOptions]) -> m.Rounds:
        """The best rounds for ``query``, one compact result a round, best first."""
        return await self._ask(m.MemorySearch(query=query, **options), m.Rounds)

    async def memory_read(
        self, session: str, round: int, **options: Unpack[MemoryReadOptions]
    ) -> m.Rounds:
        """Whole rounds of a session that a search named, and their neighbours."""
        return await self._ask(m.MemoryRead(session=session, round=round, **options), m.Rounds)

    async def session_search(self, query: str, **options: Unpack[SessionSearchOptions]) -> m.Rounds:
        """The best sessions for ``query``, whole, or with ``compact`` what was found of them."""
        return await self._ask(m.SessionSearch(query=query, **options), m.Rounds)

    async def full_context(self, **options: Unpack[LimitOptions]) -> m.Rounds:
        """All that is in view, oldest first, the newest kept where not all fits."""
        return await self._ask(m.FullContext(**options), m.Rounds)

    async def memory_files(self, **options: Unpack[LimitOptions]) -> m.Files:
        """The view as texts, one a scope (:func:`isovist.syscalls.files.write_files` writes
        them)."""
        return await self._ask(m.MemoryFiles(**options), m.Files)

    async def prefetch(self, query: str, **options: Unpack[PrefetchOptions]) -> m.Prefetched:
        """The block that :meth:`chat` would put before ``query``, without asking the model."""
        return await self._ask(m.Prefetch(query=query, **options), m.Prefetched)

    async def forget_matching(self, query: str, **options: Unpack[MatchOptions]) -> m.Matched:
        """Which of one's own units hold all words of ``query``, and a word; with it as ``confirm``
        all and only those are forgotten."""
        return await self._ask(m.ForgetMatching(query=query, **options), m.Matched)

    async def forget_user(
        self, name: str, confirm: str = "", **options: Unpack[CallOptions]
    ) -> m.Matched:
        """Operator only: how many units the user has, and a word; with it the user is forgotten."""
        return await self._ask(m.ForgetUser(name=name, confirm=confirm, **options), m.Matched)

    async def receipt(
        self, receipt: str, wait: bool = False, **options: Unpack[CallOptions]
    ) -> m.ReceiptShown:
        """Whether what was forgotten has left every file; with ``wait``, when it has."""
        return await self._ask(m.ReceiptOf(receipt=receipt, wait=wait, **options), m.ReceiptShown)

    async def expire(
        self, id: str, version: int, at: str | None = None, **options: Unpack[CallOptions]
    ) -> m.Stored:
        """Let an own unit expire at ``at`` iff it is still at ``version`` (else ``ESTALE``)."""
        request = m.Expire(id=id, version=version, at=at, **options)
        return await self._ask(request, m.Stored)

    async def rescope(
        self, id: str, version: int, scope: str, **options: Unpack[CallOptions]
    ) -> m.Stored:
        """Give an own unit another audience iff it is still at ``version`` (else ``ESTALE``)."""
        request = m.Rescope(id=id, version=version, scope=scope, **options)
        return await self._ask(request, m.Stored)

    async def view(self, **options: Unpack[ReadOptions]) -> m.ViewShown:
        """What this reader sees and why: the partitions of its view, with how many units."""
        return await self._ask(m.ViewOf(**options), m.ViewShown)

    async def groups(
        self, of: Literal["", "users", "agents"] = "", **options: Unpack[CallOptions]
    ) -> m.GroupList:
        """Operator only: the groups and who is in them."""
        return await self._ask(m.Groups(of=of, **options), m.GroupList)

    async def group_change(
        self,
        name: str,
        of: Literal["users", "agents"],
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        **options: Unpack[CallOptions],
    ) -> m.GroupList:
        """Operator only: let members join and leave a group; the reply shows it as it now is."""
        request = m.GroupChange(name=name, of=of, add=tuple(add), remove=tuple(remove), **options)
        return await self._ask(request, m.GroupList)

    async def export(
        self, name: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncIterator[str]:
        """Operator only: the store's living units, or those of the user ``name``, as JSON lines,
        newest first; ``ENOENT`` where that user has none."""
        if name is not None:
            check_name(name.removeprefix("agent/"), "name")
        after, told = "", False
        while True:
            page = await self._ask(m.Export(name=name or "", after=after, **options), m.Exported)
            told = told or bool(page.lines)
            for line in page.lines:
                yield line
            if not page.next:
                break
            after = page.next
        if name is not None and not told:
            raise CallerError(f"no units of the user {name!r}", errno=Errno.ENOENT, field="name")

    async def import_(self, lines: Sequence[str], **options: Unpack[CallOptions]) -> m.Imported:
        """Operator only: take in 1 to 1,000 lines of an export, oldest first."""
        return await self._ask(m.Import(lines=tuple(lines), **options), m.Imported)

    async def backup(self, path: str, **options: Unpack[CallOptions]) -> m.BackedUp:
        """Operator only: copy the store, while it works, to a new file at the absolute ``path``."""
        return await self._ask(m.Backup(path=path, **options), m.BackedUp)

    async def statistics(self, **options: Unpack[CallOptions]) -> dict[str, int]:
        """Operator only: how much there is of what, in the kernel and its store."""
        reply = await self._ask(m.Statistics(**options), m.Figures)
        return reply.figures

    async def schedule(
        self, policy: str = "", model: str = "", **options: Unpack[CallOptions]
    ) -> tuple[ModelQueue, ...]:
        """Operator only: the queue before each model, or before ``model``; with ``policy`` first
        put under the policy of this name."""
        request = m.Schedule(policy=policy, model=model, **options)
        return (await self._ask(request, m.Queues)).queues

    async def metering(
        self,
        by: Literal["agent", "user", "model"] = "agent",
        since: str | None = None,
        until: str | None = None,
        **options: Unpack[CallOptions],
    ) -> tuple[Usage, ...]:
        """Operator only: what chat calls cost, by name; see :class:`~.messages.Metering`."""
        request = m.Metering(by=by, since=since, until=until, **options)
        return (await self._ask(request, m.Metered)).usage

    async def chat(
        self, prompt: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> m.Chatted:
        """Ask a model; the kernel injects what is in view unless ``memory=False``."""
        return await self._ask(m.Chat(messages=conversation(prompt), **options), m.Chatted)

    async def stream(
        self, prompt: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AsyncStream[m.Chatted]:
        """Like :meth:`chat`, giving the text as it is made."""
        request = m.Chat(messages=conversation(prompt), stream=True, **options)
        return AsyncStream(await self.submit(request))

    async def context_save(
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
        return await self._ask(request, m.ContextSaved)

    async def context_load(
        self, name: str, warm: bool = True, **options: Unpack[CallOptions]
    ) -> m.ContextLoaded:
        """The conversation of that name; with ``warm`` its model gets its state back."""
        request = m.ContextLoad(name=name, warm=warm, **options)
        return await self._ask(request, m.ContextLoaded)

    async def contexts(self, **options: Unpack[CallOptions]) -> tuple[SavedContext, ...]:
        """What this agent keeps with this user, by name."""
        reply = await self._ask(m.ContextList(**options), m.Contexts)
        return reply.contexts

    async def context_drop(self, name: str, **options: Unpack[CallOptions]) -> m.Done:
        """Remove a context, its text and its model's state."""
        return await self._ask(m.ContextDrop(name=name, **options), m.Done)

    async def models(self, **options: Unpack[CallOptions]) -> m.ModelList:
        return await self._ask(m.Models(**options), m.ModelList)

    async def why(self, call: str, **options: Unpack[CallOptions]) -> m.Record:
        """The audit record of a search or chat (``reply.call`` names it)."""
        return await self._ask(m.Why(call=call, **options), m.Record)

    async def cancel(self, call: int, **options: Unpack[CallOptions]) -> m.Done:
        """End the outstanding request with frame id ``call`` (``AsyncPending.call``)."""
        return await self._ask(m.Cancel(call=call, **options), m.Done)

    async def shake_hands(self, agent: str = "") -> None:
        """First thing on a new channel; :func:`open_client` does it."""
        with trio.move_on_after(HANDSHAKE_SECONDS):
            self.welcome = agreed(await self.call(hello(self._line.token, agent)))
            return
        raise WorldError("the kernel does not answer", errno=Errno.ETIMEDOUT)

    # -- sending and waiting ----------------------------------------------------------------

    async def _send(
        self, request: m.Request, stdio: tuple[int, int, int] | None = None
    ) -> Exchange:
        if stdio is not None and self._line.socket is None:
            raise CallerError("stdio needs the socket door, this is a pipe", field="stdio")
        await trio.lowlevel.checkpoint_if_cancelled()
        # Descriptors go with the first byte of their frame, so nothing may be before it.
        while len(self._outbox) > (HIGH_WATER if stdio is None else 0):
            await self._drained.park()
        return self._issue(request, stdio)

    @trio.lowlevel.enable_ki_protection
    def _issue(self, request: m.Request, stdio: tuple[int, int, int] | None) -> Exchange:
        exchange, frame = self._session.issue(request)
        exchange.lot = trio.lowlevel.ParkingLot()
        if stdio is None:
            self._outbox.put(frame)
        else:
            self._outbox.put_with(frame, stdio)
        self._flush()
        return exchange

    async def _result(self, exchange: Exchange) -> m.AnyReply:
        await self._until(exchange, parts=False)
        return exchange.result()

    async def _until(self, exchange: Exchange, parts: bool) -> None:
        """Wait for the end, or with ``parts`` for a part; a cancelled wait cancels the call."""
        lot = cast(trio.lowlevel.ParkingLot, exchange.lot)
        try:
            if exchange.outcome is not None or (parts and exchange.parts):
                await trio.lowlevel.checkpoint()
            while exchange.outcome is None and not (parts and exchange.parts):
                await lot.park()
        except BaseException:
            self._drop(exchange)
            raise

    @trio.lowlevel.enable_ki_protection
    def _drop(self, exchange: Exchange) -> None:
        """Cancel here and, as soon as bytes can go out, in the kernel."""
        frame = self._session.drop(exchange)
        if frame is not None:
            self._outbox.put(frame)
            self._flush()
        self._wake([exchange])

    def _flush(self) -> bool:
        try:
            if self._outbox.flush():
                self._drained.unpark_all()
                return True
        except OSError:
            # The kernel reads no more; the reader finds out whether it still had something to say.
            self._outbox.clear()
            self._drained.unpark_all()
            return True
        self._more.set()
        return False

    def _wake(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            if isinstance(exchange.lot, trio.lowlevel.ParkingLot):  # for a cancel nobody waits
                exchange.lot.unpark_all()

    def _end(self, reason: WorldError) -> None:
        self._outbox.clear()
        self._drained.unpark_all()
        self._wake(self._session.end(reason))

    # A Ctrl-C inside these two would end the channel, not the caller.
    @trio.lowlevel.enable_ki_protection
    async def _reader(self) -> None:
        reader = self._line.reader
        while self._session.ended is None:
            await trio.lowlevel.wait_readable(reader)
            try:
                data = os.read(reader, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            self._wake(self._session.receive(data))
        self._end(gone())

    @trio.lowlevel.enable_ki_protection
    async def _writer(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while not self._flush():
                await trio.lowlevel.wait_writable(self._line.writer)


class AsyncPending:
    """A request under way, as :meth:`AsyncClient.submit` returns it."""

    def __init__(self, client: AsyncClient, exchange: Exchange) -> None:
        self._client = client
        self._exchange = exchange

    @property
    def call(self) -> int:
        """Its frame id, as ``Cancel`` names it."""
        return self._exchange.call

    @property
    def done(self) -> bool:
        return self._exchange.outcome is not None

    async def result(self) -> m.AnyReply:
        """Wait for the reply. A scope that is cancelled meanwhile cancels the request."""
        return await self._client._result(self._exchange)

    async def parts(self) -> AsyncIterator[str]:
        """The texts of a streamed reply, until the last. Raises as :meth:`result` does."""
        exchange = self._exchange
        while True:
            await self._client._until(exchange, parts=True)
            part = exchange.take()
            if part is not None:
                yield part
            elif exchange.outcome is not None:
                exchange.result()
                return

    def cancel(self) -> None:
        """End it here with ``ECANCELED`` and tell the kernel; nothing if it has ended."""
        self._client._drop(self._exchange)


class AsyncStream(Generic[R]):
    """The text of a reply, part by part; afterwards the reply itself in :attr:`reply`.

    As an async context manager it cancels the call where the body leaves early.
    """

    def __init__(self, pending: AsyncPending) -> None:
        self._pending = pending
        self._parts = pending.parts()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._parts

    async def __aenter__(self) -> AsyncStream[R]:
        return self

    async def __aexit__(
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
