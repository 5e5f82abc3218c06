"""Files with versions, in spaces by scope: who may write, read and share them.

A change takes two steps outside. First its bytes are made ready (copied, hashed, read as text),
which may take long and is nobody's business yet. Then it is accepted: it gets its numbers in the
barrier, so that readers wait for it, and the store carries out all of it or nothing. What may be
published is asked when it is accepted, not when it was begun.

A file is one user's: other agents may write it for the same user where its owner lets them. So
whatever a user leaves behind in files goes with the user (:mod:`isovist.storage.files`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state import receipts
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.memory import MAX_QUERY, Reading
from isovist.kernel.state.users import Principal, Resolved
from isovist.syscalls import messages as m
from isovist.syscalls.abi import files as f
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.file_operations import Bounds, Changed, FileChange, file_of
from isovist.syscalls.names import LAST_VERSION, check_barrier, check_name, check_text
from isovist.syscalls.operations import Candidate, Put, Query, SearchQuery
from isovist.syscalls.paths import check_path, check_prefix
from isovist.syscalls.records import LEGS, Partition, Reader, View, partition_of

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

AT_ONCE = 8
"""Changes of files, and as many reads, of one channel that may be under way."""
WIDEN, MOST_UNITS = 4, 200
"""A search for k files takes so many times as many units, since a long file has several."""
Then = Callable[[f.FileStored | IsovistError], None]


@dataclass(slots=True)
class _Work:
    """A change under way. ``change`` is as it was asked for, without bytes and numbers; ``to`` is
    where its units will be. ``numbers`` are those that were issued for it, in ``change.space`` and
    ``to``; ``then`` is told what came of a change that no call waits for."""

    key: int
    channel: int
    who: Principal
    change: FileChange
    resolved: Resolved
    note: str = ""
    indexed: int = 0
    numbers: list[tuple[Partition, int]] = field(default_factory=list)
    then: Then | None = None

    @property
    def to(self) -> Partition:
        return self.change.to or self.change.space


class Files:
    """Invariant: ``_works`` has all and only the changes that are handed out and not yet answered,
    those of ended calls included; ``_reads`` the reads, by key of their call: their channel."""

    def __init__(self, state: State, bounds: Bounds) -> None:
        self._state = state
        self.bounds = bounds
        self._works: dict[int, _Work] = {}
        self._reads: dict[int, int] = {}
        self._last = 0

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            f.FileWrite: self._write,
            f.FilePut: self._write,
            f.FileRollback: self._rollback,
            f.FileMove: self._move,
            f.FileDelete: self._delete,
            f.FileRead: self._read,
            f.FileFetch: self._fetch,
            f.FileListing: self._list,
            f.FileLog: self._log,
            f.FileSearch: self._search,
        }

    def readings(self) -> dict[type[m.Call], Reading]:
        return {f.FileSearch: self}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.ContentReady: self._ready,
            ev.FileChanged: self._changed,
            ev.FileFailed: self._failed,
            ev.FileFound: self._found,
            ev.FilesListed: self._listed,
            ev.FileLogged: self._logged,
        }

    # -- changes

    def _write(self, channel: Channel, frame: int, request: f.FileWrite | f.FilePut) -> None:
        check_path(request.path)
        _check_change(request.expect, request.reason, request.key)
        put = isinstance(request, f.FilePut)
        if isinstance(request, f.FilePut):
            check_path(request.source or request.path, "source" if request.source else "path")
        elif len(request.body) > f.MAX_CONTENT:
            raise _too_long(len(request.body))
        resolved = self._state.users.resolve(channel.who, request.user)
        who, user, agent = channel.who, resolved.user, channel.who.agent
        space, note = self._state.sharing.audience(who, request.scope, user, agent, request.stream)
        # What is put is measured when it is there: here whoever is over its limit already stops.
        size = 1 if isinstance(request, f.FilePut) else len(request.body)
        self._state.quotas.charge(who, user, size, "path" if put else "body")
        call = self._open(channel, frame, request, resolved)
        work = self._work(
            call,
            who,
            FileChange(
                what="write",
                action="put" if put else "write",
                space=space,
                seq=0,
                path=request.path,
                user=user,
                agent=agent,
                at=self._state.calendar(),
                expect=request.expect,
                stream=request.stream,
                writable=request.writable,
                reason=request.reason,
                key=request.key,
            ),
            note,
        )
        body = request.body if isinstance(request, f.FileWrite) else None
        file = (request.source or request.path) if isinstance(request, f.FilePut) else ""
        self._state.emit(ins.GetContent(work, agent, user, request.path, body, file))

    def _rollback(self, channel: Channel, frame: int, request: f.FileRollback) -> None:
        _check_version(request.version, 1)
        _check_change(request.expect, request.reason, request.key)
        call, view, space = self._locate(channel, frame, request, change=True)
        user, agent = whom(call)[0], call.agent
        work = self._work(
            call,
            channel.who,
            FileChange(
                what="write",
                action="rollback",
                space=space,
                seq=0,
                path=request.path,
                user=user,
                agent=agent,
                at=self._state.calendar(),
                expect=request.expect,
                stream="reusable",  # no more protected than the file is
                reason=request.reason,
                key=request.key,
                source=request.version,
            ),
        )
        kept = space, request.path, request.version
        self._state.emit(ins.GetContent(work, agent, user, request.path, view=view, kept=kept))

    def _move(self, channel: Channel, frame: int, request: f.FileMove) -> None:
        path = check_path(request.to_path, "to_path") if request.to_path else request.path
        _check_expect(request.expect)
        resolved = self._state.users.resolve(channel.who, request.user)
        to = None
        if request.to_scope:
            scope, user, agent = request.to_scope, resolved.user, channel.who.agent
            to = self._state.sharing.target(channel.who, scope, user, agent)
        call, view, space = self._locate(channel, frame, request, change=True)
        work = self._work(
            call,
            channel.who,
            FileChange(
                what="move",
                space=space,
                seq=0,
                path=request.path,
                user=resolved.user,
                agent=call.agent,
                at=self._state.calendar(),
                expect=request.expect,
                writable=request.writable,
                to=to or space,
                to_path=path,
            ),
        )
        if (to or space, path) == (space, request.path):
            self._hand_out(work, self._works[work].change)  # nothing of it is read
            return
        kept = space, request.path, 0
        self._state.emit(
            ins.GetContent(work, call.agent, resolved.user, path, view=view, kept=kept)
        )

    def _delete(self, channel: Channel, frame: int, request: f.FileDelete) -> None:
        _check_expect(request.expect)
        call, _, space = self._locate(channel, frame, request, change=True)
        call.receipt = receipts.name_of(self._state, call.key, whom(call)[0])
        call.tell(self._state.now, f"receipt {call.receipt}")
        change = FileChange(
            what="delete",
            space=space,
            seq=0,
            path=request.path,
            user=whom(call)[0],
            agent=call.agent,
            at=self._state.calendar(),
            expect=request.expect,
            receipt=call.receipt,
        )
        self._hand_out(self._work(call, channel.who, change), change)

    def keep(
        self, channel: int, agent: str, user: str, path: str, body: bytes, reason: str, then: Then
    ) -> None:
        """Write ``body`` to the pair's own space for the kernel itself; ``then`` is told what came
        of it. Raises :class:`CallerError` for a bad path, or too many bytes."""
        check_path(path)
        if len(body) > f.MAX_CONTENT:
            raise _too_long(len(body))
        change = FileChange(
            what="write",
            space=partition_of("pair", user, agent),
            seq=0,
            path=path,
            user=user,
            agent=agent,
            at=self._state.calendar(),
            reason=reason,
        )
        self._last += 1
        work = _Work(0, channel, Principal(agent), change, Resolved(user, "request"), then=then)
        self._works[self._last] = work
        self._state.emit(ins.GetContent(self._last, agent, user, path, body))

    def _open(self, channel: Channel, frame: int, request: m.Request, resolved: Resolved) -> Call:
        """Accept a change. One that was cancelled counts until it is on disk: else a slow disk and
        an agent that cancels would fill the memory. Raises ``EAGAIN``."""
        busy = sum(work.channel == channel.number for work in self._works.values())
        if busy >= AT_ONCE:
            why = f"{busy} changes of files wait for the disk, the limit"
            raise CallerError(why, errno=Errno.EAGAIN)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.SAVE, self._state.now)
        return call

    def _work(self, call: Call, who: Principal, change: FileChange, note: str = "") -> int:
        """Note a change of ``call``; its number."""
        if call.resolved is None:
            raise KernelError("a file of nobody", story=call.told())
        self._last += 1
        change = msgspec.structs.replace(change, bounds=self.bounds)
        self._works[self._last] = _Work(call.key, call.channel, who, change, call.resolved, note)
        return self._last

    def _locate(
        self, channel: Channel, frame: int, request: Any, *, change: bool = False
    ) -> tuple[Call, View, Partition]:
        """The call for a file that is there, its view, and the space that it names. What is not in
        the view is not there: the store says so."""
        check_path(request.path)
        resolved = self._state.users.resolve(channel.who, request.user)
        who = channel.who
        space = self._state.sharing.target(who, request.scope, resolved.user, who.agent)
        if change:
            call = self._open(channel, frame, request, resolved)
        else:
            call = self._look(channel, frame, request, resolved)
        view = self._state.groups.view(Reader(resolved.user, who.agent))
        if change and space not in view.partitions:
            raise no_file()
        return call, view, space

    def _ready(self, event: ev.ContentReady) -> None:
        """The bytes are at hand: accept the change, if anybody still waits for it."""
        work = self._works.get(event.number)
        if work is None:
            return
        if work.key and work.key not in self._state.calls:
            del self._works[event.number]
            self._state.emit(ins.DropContent(event.number))
            return
        change = work.change
        work.indexed = event.indexed
        self._hand_out(
            event.number,
            msgspec.structs.replace(
                change,
                content=event.content,
                seen=event.seen,
                refused={} if work.then else self._refused(work),
            ),
            event.texts,
        )

    def _refused(self, work: _Work) -> dict[str, str]:
        """By stream: why the author may not let the file stand where it will."""
        change, groups = work.change, self._state.groups
        narrows = change.what == "move" and all(
            groups.within(axis, getattr(work.to, axis), getattr(change.space, axis))
            for axis in ("users", "agents")
        )
        refusal = self._state.sharing.refusal
        return {
            stream: why
            for stream in ("reusable", "protected")
            if (why := refusal(work.who, work.to, change.user, stream, narrows=narrows))
        }

    def _hand_out(self, number: int, change: FileChange, texts: tuple[str, ...] = ()) -> None:
        """Issue the numbers of a change and have it made: from here on readers wait for it."""
        work = self._works[number]
        accept = self._state.barrier.accept
        seq = accept(change.space)
        work.numbers.append((change.space, seq))
        parts = []
        for text in texts:
            part = accept(work.to)
            work.numbers.append((work.to, part))
            parts.append(self._put(work.to, part, text, change))
        change = msgspec.structs.replace(
            change,
            seq=seq,
            id=self._state.opaque("f", self._state.boot, change.space, seq),
            parts=tuple(parts),
        )
        work.change = change
        if change.what == "delete" or work.to != change.space:
            # Before it is done. A path may be anybody's words, so the line has none.
            kind = "file.delete" if change.what == "delete" else "file.share"
            self._state.chronicle.note(
                kind,
                change.agent,
                f"{change.space.scope}#{seq}",
                users=(change.user,),
                to="" if change.what == "delete" else work.to.scope,
            )
        self._state.emit(ins.ChangeFile(number, change))

    def _put(self, to: Partition, seq: int, text: str, change: FileChange) -> Put:
        return Put(
            partition=to,
            seq=seq,
            id=self._state.opaque("u", self._state.boot, to, seq),
            text=text,
            kind="file",
            agent=change.agent,
            user=change.user,
            stream=change.stream,
            said_at=change.at,
            stored_at=change.at,
        )

    # -- what came of a change

    def _changed(self, event: ev.FileChanged) -> None:
        work = self._works.pop(event.number, None)
        if work is None:
            return
        changed, change = event.changed, work.change
        self._state.memory.take(changed.outcomes)
        lacking = {
            (o.op.partition, o.op.seq)
            for o in changed.outcomes
            if isinstance(o.op, Put) and o.chunks
        }
        # Visible first, then acknowledged: whoever hears of the write can already find it.
        for number in work.numbers:
            self._state.memory.show(*number, ("lexical",) if number in lacking else LEGS)
        if change.what == "delete":
            self._state.forgetting.left(o.id for o in changed.outcomes)
        if work.then is not None:
            work.then(_stored(work, changed))
            return
        call = self._state.calls.get(work.key)
        if call is None:
            return
        if change.what == "delete":
            user, rule = whom(call)
            self._state.finish(
                call,
                f.FileDeleted(
                    versions=changed.versions,
                    size=changed.size,
                    receipt=change.receipt,
                    user=user,
                    rule=rule,
                ),
            )
        else:
            self._state.finish(call, _stored(work, changed))

    def _failed(self, event: ev.FileFailed) -> None:
        work = self._works.pop(event.number, None)
        if work is None:
            return
        # The numbers are void: they are visible as nothing, so nobody waits for them.
        for number in work.numbers:
            self._state.memory.show(*number, LEGS)
        failure = error(event.errno, event.message, event.field)
        if work.then is not None:
            work.then(failure)
        elif (call := self._state.calls.get(work.key)) is not None:
            self._state.fail(call, failure)

    # -- reads

    def _look(self, channel: Channel, frame: int, request: m.Request, resolved: Resolved) -> Call:
        busy = sum(number == channel.number for number in self._reads.values())
        if busy >= AT_ONCE:
            why = f"{busy} reads of files are under way, the limit"
            raise CallerError(why, errno=Errno.EAGAIN)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LOOKUP, self._state.now)
        self._reads[call.key] = channel.number
        return call

    def _read(self, channel: Channel, frame: int, request: f.FileRead) -> None:
        _check_version(request.version)
        if not 0 <= request.offset <= LAST_VERSION:
            raise CallerError("offset must be 0 to 2^62", field="offset")
        if not 1 <= request.limit <= f.MAX_CONTENT:
            raise CallerError(f"limit must be 1 to {f.MAX_CONTENT}", field="limit")
        call, view, space = self._locate(channel, frame, request)
        asked = space, request.path, request.version, request.offset, request.limit
        self._state.emit(ins.ReadFile(call.key, call.agent, view, *asked))

    def _fetch(self, channel: Channel, frame: int, request: f.FileFetch) -> None:
        _check_version(request.version)
        target = check_path(request.target, "target") if request.target else request.path
        call, view, space = self._locate(channel, frame, request)
        asked = space, request.path, request.version, target, request.replace
        self._state.emit(ins.FetchFile(call.key, call.agent, view, *asked))

    def _log(self, channel: Channel, frame: int, request: f.FileLog) -> None:
        call, view, space = self._locate(channel, frame, request)
        self._state.emit(ins.LogFile(call.key, view, space, request.path))

    def _list(self, channel: Channel, frame: int, request: f.FileListing) -> None:
        check_prefix(request.prefix)
        if not 1 <= request.limit <= 500:
            raise CallerError("limit must be 1 to 500", field="limit")
        resolved, who = self._state.users.resolve(channel.who, request.user), channel.who
        view = self._state.groups.view(Reader(resolved.user, who.agent))
        spaces = view.partitions
        if request.scope:
            named = self._state.sharing.target(who, request.scope, resolved.user, who.agent)
            spaces = tuple(p for p in spaces if p == named)
        after = _cursor(request.after, spaces) if request.after else None
        call = self._look(channel, frame, request, resolved)
        asked = spaces, request.prefix, after, request.limit
        self._state.emit(ins.ListFiles(call.key, view, *asked))

    def answered(self, key: int) -> None:
        """What call ``key`` asked to read is read, or could not be."""
        self._reads.pop(key, None)

    def _found(self, event: ev.FileFound) -> None:
        call, held = self._at(event.key), event.held
        if call is None:
            return
        if held is None:
            self._state.fail(call, no_file())
            return
        request, (user, rule) = call.request, whom(call)
        version = held.version
        if isinstance(request, f.FileRead):
            self._state.finish(
                call,
                f.FileData(
                    file=held.info,
                    version=version.version,
                    size=version.size,
                    hash=version.hash,
                    offset=request.offset,
                    body=event.body,
                    user=user,
                    rule=rule,
                ),
            )
        elif isinstance(request, f.FileFetch):
            self._state.finish(
                call,
                f.FileStored(
                    path=request.target or request.path,
                    scope=held.info.scope,
                    version=version.version,
                    size=version.size,
                    hash=version.hash,
                    user=user,
                    rule=rule,
                    versions=held.info.versions,
                ),
            )

    def _listed(self, event: ev.FilesListed) -> None:
        call = self._at(event.key)
        if call is not None:
            user, rule = whom(call)
            following = f"{event.last[0].scope}\n{event.last[1]}" if event.last else ""
            self._state.finish(
                call, f.FileList(files=event.files, next=following, user=user, rule=rule)
            )

    def _logged(self, event: ev.FileLogged) -> None:
        call = self._at(event.key)
        if call is None:
            return
        if event.found is None:
            self._state.fail(call, no_file())
            return
        (file, versions), (user, rule) = event.found, whom(call)
        self._state.finish(call, f.FileVersions(file=file, versions=versions, user=user, rule=rule))

    def _at(self, key: int) -> Call | None:
        self.answered(key)
        return self._state.calls.get(key)

    # -- search

    def _search(self, channel: Channel, frame: int, request: f.FileSearch) -> None:
        check_text(request.query, "query", MAX_QUERY)
        if not 1 <= request.k <= 50:
            raise CallerError("k must be 1 to 50", field="k")
        check_barrier(request.barrier_ms)
        memory = self._state.memory
        wait: m.Wait = "lexical" if request.mode == "bm25" else "both"
        memory.hold(memory.enter(channel, frame, request), wait, request.barrier_ms)

    def query(self, call: Call, now: int) -> Query:
        request = call.request
        if not isinstance(request, f.FileSearch):
            raise KernelError(f"{call.name} searches no files", story=call.told())
        return SearchQuery(
            text=check_text(request.query, "query", MAX_QUERY),
            k=min(MOST_UNITS, request.k * WIDEN),
            mode=request.mode,
            now=now,
            kinds=("file",),
        )

    def took(self, call: Call) -> None:
        """The best unit of each file, best first."""
        request = call.request
        if not isinstance(request, f.FileSearch):
            raise KernelError(f"{call.name} searches no files", story=call.told())
        best: dict[str, Candidate] = {}
        for candidate in call.selection.candidates:
            if file := file_of(candidate.hit.unit):
                best.setdefault(file, candidate)
        shown = list(best.values())[: request.k]
        audits, (user, rule) = self._state.audits, whom(call)
        call.leave(self._state.now)
        audits.record(call, tuple(map(audits.shown, shown)))
        self._state.finish(
            call,
            f.FileHits(
                files=tuple(map(_hit, shown)),
                call=call.id,
                user=user,
                rule=rule,
                barrier=call.barrier,
            ),
        )

    def validate(self) -> None:
        busy = Counter(work.channel for work in self._works.values() if work.then is None)
        assert all(count <= AT_ONCE for count in busy.values()), busy
        assert all(count <= AT_ONCE for count in Counter(self._reads.values()).values())
        waiting = {work.key for work in self._works.values()}
        for call in self._state.calls.values():
            if isinstance(call.request, _CHANGES):
                assert call.key in waiting, call
            elif isinstance(call.request, _READS):
                assert call.key in self._reads, call


_CHANGES = f.FileWrite | f.FilePut | f.FileRollback | f.FileMove | f.FileDelete
_READS = f.FileRead | f.FileFetch | f.FileListing | f.FileLog


def whom(call: Call) -> tuple[str, str]:
    if call.resolved is None:
        raise KernelError("a file of nobody", story=call.told())
    return call.resolved.user, call.resolved.rule


def no_file() -> CallerError:
    """The same words whether there is none, or it lies outside the view."""
    return CallerError("no file of that path in view", errno=Errno.ENOENT, field="path")


def _stored(work: _Work, changed: Changed) -> f.FileStored:
    return f.FileStored(
        path=work.change.to_path or work.change.path,
        scope=work.to.scope,
        version=changed.version,
        size=changed.size,
        hash=changed.hash,
        user=work.resolved.user,
        rule=work.resolved.rule,
        note=work.note,
        versions=changed.versions,
        dropped=changed.dropped,
        indexed=work.indexed,
        repeated=changed.repeated,
    )


def _hit(candidate: Candidate) -> f.FileHit:
    hit = candidate.hit
    return f.FileHit(
        path=hit.unit.meta["path"],
        scope=hit.unit.scope,
        version=int(hit.unit.meta["version"]),
        chunk=hit.chunk,
        score=hit.score,
        unit=hit.unit.id,
    )


def _cursor(after: str, spaces: tuple[Partition, ...]) -> tuple[Partition, str]:
    scope, _, path = after.partition("\n")
    for space in spaces:
        if space.scope == scope and path:
            return space, path
    raise CallerError("after must be the `next` of an earlier page", field="after")


def _check_change(expect: int | None, reason: str, key: str) -> None:
    _check_expect(expect)
    if reason:
        check_text(reason, "reason", f.MAX_REASON)
    if key:
        check_name(key, "key")


def _check_expect(expect: int | None) -> None:
    if expect is not None:
        _check_version(expect, field="expect")


def _check_version(version: int, least: int = 0, field: str = "version") -> None:
    if not least <= version <= LAST_VERSION:
        raise CallerError(f"{field} must be {least} to 2^62", field=field)


def _too_long(size: int) -> CallerError:
    return CallerError(
        f"body has {size} bytes, the limit is {f.MAX_CONTENT}: file.put takes longer ones",
        errno=Errno.EMSGSIZE,
        field="body",
    )
