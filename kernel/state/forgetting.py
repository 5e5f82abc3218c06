"""Forgetting: one unit, units by query, a user; and the receipts for it (promise
``erase.complete``).

What is forgotten is in no view when the reply comes. Its receipt is issued later, when no file of
the store holds anything of it. What is to go by query or by user is shown first and gets a word,
a keyed hash over ids and versions; with that word all and only those go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.memory import MAX_QUERY, Reading, check_span, compact
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.names import check_kinds, check_name, check_text, check_time
from isovist.syscalls.operations import (
    Candidate,
    Drop,
    ListQuery,
    Outcome,
    Query,
    SearchQuery,
)

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

SOURCE = "source"
"""The key of metadata under which a unit names the one that it comes from."""
PAGE, PAGES = 500, 8
"""Units on a page, and pages, of the search for what comes from a forgotten unit: it is stored
later, so it is among the newest."""
MOST_DERIVED = 1000
GONE = (0, Errno.ENOENT)
"""Outcomes after which a unit is gone, by this call's doing or by another's."""


class Forgetting:
    """Invariant: ``call.drops`` holds all and only the removals of units that the call asked for,
    each ``None`` until its outcome is known."""

    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.ForgetMatching: self._matching,
            m.ForgetUser: self._user,
            m.ReceiptOf: self._receipt_of,
        }

    def readings(self) -> dict[type[m.Call], Reading]:
        return {m.ForgetMatching: self, m.Forget: self}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.Owned: self._owned,
            ev.Purged: self._purged,
            ev.ReceiptFound: self._receipt_found,
            ev.ReceiptsIssued: self._receipts_issued,
        }

    # -- one unit after another

    def drop(self, call: Call, found: Candidate, seq: int) -> Drop:
        """The removal of ``found``, under number ``seq`` of its partition. All removals of a call
        share one receipt."""
        if not call.receipt:
            self._promise(call)
        call.drops[found.partition, seq] = None
        return Drop(
            partition=found.partition,
            seq=seq,
            id=found.hit.unit.id,
            receipt=call.receipt,
            stored_at=self._state.calendar(),
        )

    def dropped(self, call: Call, outcome: Outcome) -> None:
        """One removal of ``call`` has come to its end; with the last one the call goes on."""
        op = outcome.op
        call.drops[op.partition, op.seq] = outcome.errno
        if not outcome.errno:
            self._state.emit(ins.Scrub())
        if None in call.drops.values():
            return
        if isinstance(call.request, m.ForgetMatching):
            self._matching_dropped(call, outcome)
        elif outcome.errno:
            self._state.fail(call, error(outcome.errno, outcome.message))
        else:
            call.to(Step.RETRIEVE, self._state.now, "derived")
            self._state.memory.ask(call, self.query(call, self._state.calendar()))

    def is_done(self, call: Call) -> bool:
        """True iff what ``call`` asks for is done and only its answer is being completed: then
        neither a slow nor a broken store takes the answer away."""
        return isinstance(call.request, m.Forget) and call.step is Step.RETRIEVE

    def answer(self, call: Call) -> None:
        """Say that the unit is gone, and what is known to come from it."""
        request, resolved = call.request, call.resolved
        if not isinstance(request, m.Forget) or resolved is None:
            raise KernelError("forgotten for nobody", story=call.told())
        self._state.finish(
            call,
            m.Forgotten(
                id=request.id,
                user=resolved.user,
                rule=resolved.rule,
                receipt=call.receipt,
                derived=tuple(c.hit.unit.id for c in call.found),
            ),
        )

    def _derived(self, call: Call, request: m.Forget) -> None:
        """Note what says that it comes from the forgotten unit; go on with the next page."""
        call.found += [
            c
            for c in call.selection.candidates
            if request.id in (c.hit.unit.supersedes, c.hit.unit.meta.get(SOURCE))
        ]
        # An earlier retrieval found the unit itself.
        pages = call.turn - 1
        if call.selection.next and pages < PAGES and len(call.found) < MOST_DERIVED:
            self._state.memory.ask(call, self.query(call, self._state.calendar()))
        else:
            del call.found[MOST_DERIVED:]
            self.answer(call)

    # -- by query

    def _matching(self, channel: Channel, frame: int, request: m.ForgetMatching) -> None:
        check_text(request.query, "query", MAX_QUERY)
        if not 1 <= request.k <= 100:
            raise CallerError("k must be 1 to 100", field="k")
        check_kinds(request.kinds)
        check_span(request.since, request.until)
        if request.confirm:
            check_name(request.confirm, "confirm")
        self._state.memory.check_room(channel)
        call = self._state.memory.enter(channel, frame, request)
        self._state.memory.hold(call, "both", request.barrier_ms)

    def query(self, call: Call, now: int) -> Query:
        request = call.request
        if isinstance(request, m.ForgetMatching):
            return SearchQuery(
                text=check_text(request.query, "query", MAX_QUERY),
                k=request.k,
                mode="hybrid",
                now=now,
                since=check_time(request.since, "since"),
                until=check_time(request.until, "until"),
                kinds=request.kinds,
            )
        return ListQuery(limit=PAGE, now=now, after=call.selection.next)

    def took(self, call: Call) -> None:
        if isinstance(call.request, m.Forget):
            self._derived(call, call.request)
        elif isinstance(call.request, m.ForgetMatching):
            self._matched(call, call.request)
        else:
            raise KernelError(f"{call.name} forgets nothing", story=call.told())

    def _matched(self, call: Call, request: m.ForgetMatching) -> None:
        """The dry run shows the own units among the matches; with their word they go."""
        if call.resolved is None:
            raise KernelError("matched for nobody", story=call.told())
        pair = call.resolved.user, call.agent
        own = [c for c in call.selection.candidates if (c.owner_user, c.owner_agent) == pair]
        word = self._word(((c.hit.unit.id, c.hit.unit.version) for c in own), *pair) if own else ""
        if request.confirm:
            if word != request.confirm or self._being_written(own):
                self._state.fail(call, changed())
            else:
                self._drop_all(call, own)
            return
        call.leave(self._state.now)
        audits = self._state.audits
        audits.record(call, tuple(map(audits.shown, own)))
        units = tuple(compact(c.hit).unit for c in own)
        self._state.finish(call, m.Matched(units=units, count=len(own), confirm=word))

    def _being_written(self, own: Iterable[Candidate]) -> bool:
        """Whether a write is under way where these units are: it may be a newer version of one,
        and a removal takes whatever is there."""
        accepted = self._state.barrier.accepted
        snapshot = [(p, accepted(p)) for p in {c.partition: None for c in own}]
        return bool(self._state.barrier.behind(("lexical",), snapshot))

    def _drop_all(self, call: Call, own: list[Candidate]) -> None:
        self._state.memory.check_room(self._state.channels[call.channel])
        call.found = own
        ops = [self.drop(call, c, self._state.barrier.accept(c.partition)) for c in own]
        call.to(Step.COMMIT, self._state.now, f"{len(ops)} units")
        for op in ops:
            self._state.memory.hand_out(call, op)

    def _matching_dropped(self, call: Call, last: Outcome) -> None:
        failures = [errno for errno in call.drops.values() if errno not in GONE]
        if failures:
            left = f"{len(failures)} of {len(call.drops)} units are still there"
            message = f"{last.message}: {left}" if last.message else left
            self._state.fail(call, error(failures[0] or Errno.EIO, message))
            return
        call.leave(self._state.now)
        audits = self._state.audits
        audits.record(call, tuple(map(audits.shown, call.found)))
        count = len(call.drops)
        self._state.finish(call, m.Matched(units=(), count=count, confirm="", receipt=call.receipt))

    # -- a user

    def _user(self, channel: Channel, frame: int, request: m.ForgetUser) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator forgets a user", errno=Errno.EPERM)
        # An agent is a user of its own, and may be forgotten as one.
        check_name(request.name.removeprefix("agent/"), "name")
        if request.confirm:
            check_name(request.confirm, "confirm")
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.Owned(call.key, request.name))

    def _owned(self, event: ev.Owned) -> None:
        call = self._state.calls.get(event.key)
        if call is None or not isinstance(call.request, m.ForgetUser) or call.receipt:
            return
        name = call.request.name
        # A user without units may still have memberships and grants, so there is a word for none.
        word = self._word(event.units, "user", name)
        if not call.request.confirm:
            count = len(event.units)
            self._state.finish(call, m.Matched(units=(), count=count, confirm=word))
        elif call.request.confirm != word:
            self._state.fail(call, changed())
        else:
            self._promise(call)
            call.tell(self._state.now, f"purge of {len(event.units)} units")
            at = self._state.calendar()
            self._state.emit(ins.Purge(call.key, name, call.receipt, at))

    def _purged(self, event: ev.Purged) -> None:
        """The user is unknown from here on, whether or not somebody still waits to hear it."""
        for outcome in event.outcomes:
            # Vectors that were still to come will come to nothing, and that is no loss.
            self._state.barrier.removed(outcome.op.partition, outcome.id)
        self._state.users.forget(event.user)
        self._state.groups.forget(event.user)
        self._state.processes.unbind(event.user)
        self._state.groups.forget(event.user)
        self._state.groups.narrow()
        self._state.emit(ins.Scrub())
        call = self._state.calls.get(event.key)
        if call is not None and isinstance(call.request, m.ForgetUser):
            count = len(event.outcomes)
            self._state.finish(
                call, m.Matched(units=(), count=count, confirm="", receipt=call.receipt)
            )

    # -- receipts

    def _receipt_of(self, channel: Channel, frame: int, request: m.ReceiptOf) -> None:
        check_name(request.receipt, "receipt")
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.FindReceipt(call.key, request.receipt))

    def _receipt_found(self, event: ev.ReceiptFound) -> None:
        call, receipt = self._state.calls.get(event.key), event.receipt
        if call is None or not isinstance(call.request, m.ReceiptOf):
            return
        if receipt is None:
            e = CallerError("no such receipt", errno=Errno.ENOENT, field="receipt")
            self._state.fail(call, e)
        elif receipt.issued_at or not call.request.wait:
            self._state.finish(
                call,
                m.ReceiptShown(
                    receipt=receipt.id,
                    asked_at=receipt.asked_at,
                    issued_at=receipt.issued_at,
                    units=receipt.units,
                ),
            )
        else:
            self._state.emit(ins.Scrub(soon=True))

    def _receipts_issued(self, event: ev.ReceiptsIssued) -> None:
        for call in self._state.calls.values():
            if isinstance(call.request, m.ReceiptOf):
                self._state.emit(ins.FindReceipt(call.key, call.request.receipt))

    def validate(self) -> None:
        for call in self._state.calls.values():
            assert None not in call.drops.values() or call.step is Step.COMMIT, call

    # -- words

    def _promise(self, call: Call) -> None:
        """Make out the call's receipt: opaque, so whoever was not given it cannot ask for it.
        Forgetting goes on where its call ends early, so the story of that end names it too."""
        call.receipt = self._state.opaque("r", self._state.boot, call.key)
        call.tell(self._state.now, f"receipt {call.receipt}")

    def _word(self, units: Iterable[tuple[str, int]], *whose: str) -> str:
        return self._state.opaque("w", whose, tuple(sorted(units)))


def changed() -> IsovistError:
    return error(Errno.ESTALE, "what matches has changed since it was shown", "confirm")
