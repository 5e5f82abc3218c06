"""Changes of a stored unit: update, forget, expire, rescope.

All begin alike: find the unit inside the reader's view, then see whose it is (promise
``author.true``). A unit stays its owner's where the owner sees it no more, published to a group:
so what is not in the view is looked for there. The shell answers each ``Retrieve`` at once, before
it takes the next request, so that the change has its number, and readers wait for it, as soon as
its request was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.views import whereabouts
from isovist.syscalls import messages as m
from isovist.syscalls import operations as ops
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError
from isovist.syscalls.file_operations import file_of
from isovist.syscalls.names import LAST_VERSION, check_text, check_time, dropped
from isovist.syscalls.operations import Candidate, Op, ReadQuery
from isovist.syscalls.records import Reader

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

Change = m.Update | m.Forget | m.Expire | m.Rescope


class Changes:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return dict.fromkeys((m.Update, m.Forget, m.Expire, m.Rescope), self._change)

    def _change(self, channel: Channel, frame: int, request: Change) -> None:
        if isinstance(request, m.Update):
            check_text(request.text)
        elif isinstance(request, m.Expire):
            check_time(request.at, "at")
        if not isinstance(request, m.Forget) and not 1 <= request.version <= LAST_VERSION:
            raise CallerError("version must be 1 to 2^62", field="version")
        resolved = self._state.users.resolve(channel.who, request.user)
        if isinstance(request, m.Rescope):
            who = channel.who
            self._state.sharing.target(who, request.scope, resolved.user, who.agent)
        self._state.memory.check_room(channel)
        call = self._state.open(channel, frame, request, resolved)
        call.view = self._state.groups.view(Reader(resolved.user, call.agent))
        call.to(Step.LOCATE, self._state.now)
        self._state.memory.ask(call, self._query(call))

    def _query(self, call: Call) -> ReadQuery:
        if not isinstance(call.request, Change):
            raise KernelError("a change of no unit", story=call.told())
        # What has expired is its owner's to forget until the kernel has swept it.
        expired = isinstance(call.request, m.Forget)
        return ReadQuery(id=call.request.id, now=self._state.calendar(), expired=expired)

    def located(self, call: Call, event: ev.Retrieved) -> None:
        """The unit is found, or not: check whose it is, and hand the change to the store."""
        candidates = event.selection.candidates
        if not candidates and call.turn == 1 and call.view is not None:
            # The same is done whether or not there is such a unit anywhere.
            elsewhere = whereabouts(call.view.reader, self._state.barrier.grouped)
            if elsewhere.partitions:
                self._state.memory.ask(call, self._query(call), elsewhere)
                return
        try:
            op = self._op(call, self._own(call, candidates))
        except IsovistError as e:
            self._state.fail(call, e)
            return
        call.to(Step.COMMIT, self._state.now, op.partition.scope)
        self._state.memory.hand_out(call, op)

    def _own(self, call: Call, candidates: tuple[Candidate, ...]) -> Candidate:
        if call.resolved is None or call.view is None:
            raise KernelError("located for nobody", story=call.told())
        if not candidates:
            raise not_found()
        found = candidates[0]
        if (found.owner_user, found.owner_agent) == (call.resolved.user, call.agent):
            if file_of(found.hit.unit):
                why = "the unit is a file's: file.write, file.move and file.delete change it"
                raise CallerError(why, field="id")
            return found
        # Whoever has left a group since the question was asked sees nothing of it any more, and
        # nobody but its owner anything of what has expired.
        expires = found.hit.unit.expires_at
        over = expires is not None and expires <= self._state.calendar()
        if over or found.partition not in self._state.groups.view(call.view.reader).partitions:
            raise not_found()
        raise CallerError(
            "the unit belongs to another user or agent", errno=Errno.EPERM, field="id"
        )

    def _op(self, call: Call, found: Candidate) -> Op:
        """The change as the store takes it. Every check comes before the first number is
        issued: a number is for a write that is handed out."""
        request, now = call.request, self._state.calendar()
        who = self._state.channels[call.channel].who
        accept, sharing = self._state.barrier.accept, self._state.sharing
        if isinstance(request, m.Update):
            sharing.check_still(who, found)
            call.note, text = dropped(request.text), check_text(request.text)
            more = len(text.encode()) - len(found.hit.unit.text.encode())
            self._state.quotas.check(who, found.owner_user, {"bytes": more})
            op = ops.Replace(
                partition=found.partition,
                seq=accept(found.partition),
                id=request.id,
                version=request.version,
                text=text,
                stored_at=now,
            )
            self._state.quotas.reserve(who, found.owner_user, op, 0, max(0, more))
            return op
        if isinstance(request, m.Expire):
            at, old = check_time(request.at, "at"), found.hit.unit.expires_at
            if old is not None and (at is None or at > old):
                # To show it for longer is to publish it for longer.
                sharing.check_still(who, found)
            return ops.Expire(
                partition=found.partition,
                seq=accept(found.partition),
                id=request.id,
                version=request.version,
                expires_at=at,
                stored_at=now,
            )
        if isinstance(request, m.Rescope):
            to = sharing.target(who, request.scope, found.owner_user, found.owner_agent)
            sharing.check_move(who, found, to)
            return ops.Move(
                partition=found.partition,
                seq=accept(found.partition),
                id=request.id,
                version=request.version,
                to=to,
                to_seq=accept(to),
                stored_at=now,
            )
        return self._state.forgetting.drop(call, found, accept(found.partition))


def not_found() -> CallerError:
    """The same words whether the unit never was, is gone, or lies outside the view."""
    return CallerError("no unit of that id in view", errno=Errno.ENOENT, field="id")
