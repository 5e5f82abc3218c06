"""Forgetting: one unit, units by query, a user; and the receipts for it (promise
``erase.complete``).

What is forgotten is in no view when the reply comes. Its receipt is issued later, when no file of
the store holds anything of it. What is to go by user is counted first and gets a word, a keyed hash
over ids, versions and scopes; with that word all and only those go. By query: :mod:`.matching`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state import receipts
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.matching import Matching
from isovist.kernel.state.memory import Reading
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import (
    Candidate,
    Drop,
    ListQuery,
    Outcome,
    Query,
)

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

SOURCE = "source"
"""The key of metadata under which a unit names the one that it comes from."""
PAGE, PAGES = 500, 8
"""Units on a page, and pages, of the search for what comes from a forgotten unit: it is stored
later, so it is among the newest."""
MOST_DERIVED = 1000
PATIENCE = 60_000_000_000
"""Nanoseconds that a scrub waits for calls that were given what is forgotten."""


class Forgetting:
    """Invariant: ``call.drops`` holds all and only the removals of units that the call asked for,
    each ``None`` until its outcome is known. ``_stale`` holds all and only the outstanding calls
    for a model that were given a unit which was forgotten since; ``_awaited`` those among them that
    a scrub waits for, and is not empty while none does."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._stale: set[int] = set()
        self._awaited: set[int] = set()
        self._until = 0
        """When the scrub's patience ends."""
        self._matching = Matching(state, self.drop)

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.ForgetMatching: self._matching.arrived,
            m.ForgetUser: self._user,
            m.ReceiptOf: self._receipt_of,
        }

    def readings(self) -> dict[type[m.Call], Reading]:
        return {m.ForgetMatching: self._matching, m.Forget: self}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.Owned: self._owned,
            ev.Purged: self._purged,
            ev.ReceiptFound: self._receipt_found,
            ev.Scrubbing: self._scrubbing,
            ev.ReceiptsIssued: self._receipts_issued,
        }

    # -- one unit after another

    def drop(self, call: Call, found: Candidate, seq: int) -> Drop:
        """The removal of ``found``, under number ``seq`` of its partition. All removals of a call
        share one receipt."""
        if not call.receipt:
            self._promise(call)
        if not isinstance(call.request, m.ForgetMatching):  # which has a line for all
            self._note(call, found.hit.unit.id)
        call.drops[found.partition, seq] = None
        return Drop(
            partition=found.partition,
            seq=seq,
            id=found.hit.unit.id,
            receipt=call.receipt,
            stored_at=self._state.calendar(),
        )

    def _note(self, call: Call, subject: str, **detail: int) -> None:
        user = call.resolved.user if call.resolved else ""
        if isinstance(call.request, m.ForgetUser):
            user = call.request.name
        self._state.chronicle.note(
            call.name, call.agent, subject, users=(user,), receipt=call.receipt, **detail
        )

    def matched(self, call: Call, count: int) -> None:
        """So many units that were shown go."""
        self._note(call, "memory", units=count)

    def dropped(self, call: Call, outcome: Outcome) -> None:
        """One removal of ``call`` has come to its end; with the last one the call goes on."""
        op = outcome.op
        call.drops[op.partition, op.seq] = outcome.errno
        if None in call.drops.values():
            return
        if isinstance(call.request, m.ForgetMatching):
            self._matching.dropped(call, outcome)
        elif isinstance(call.request, m.LearnDelete):
            self._state.entries.dropped(call, outcome)
        elif outcome.errno:
            self._state.fail(call, error(outcome.errno, outcome.message, outcome.field))
        else:
            # They superseded it; now they say that they supersede what it did.
            call.work = outcome.heirs
            call.to(Step.RETRIEVE, self._state.now, "derived")
            self._state.memory.ask(call, self.query(call, self._state.calendar()))

    def _end(self, user: str) -> None:
        """What models and tools are asked for the user ends: what they answered would be kept."""
        self._state.tools.forget(user)
        for call in list(self._state.calls.values()):
            whose = call.resolved.user if call.resolved else ""
            if call.generation is not None and whose == user and call.key in self._state.calls:
                why = "the user is forgotten"
                self._state.fail(call, CallerError(why, errno=Errno.ENOENT, field="user"))

    def failed(self, key: int) -> None:
        """What the call asked for could not be done: its user stays."""
        self._state.users.leaving.pop(key, None)

    def is_done(self, call: Call) -> bool:
        """True iff what ``call`` asks for is done and only its answer is being completed: then
        neither a slow nor a broken store takes the answer away."""
        return isinstance(call.request, m.Forget) and call.step is Step.RETRIEVE

    def answer(self, call: Call) -> None:
        """Say that the unit is gone, and what is known to come from it."""
        request, resolved, heirs = call.request, call.resolved, call.work
        if not isinstance(request, m.Forget) or resolved is None or not isinstance(heirs, tuple):
            raise KernelError("forgotten for nobody", story=call.told())
        derived = dict.fromkeys((*heirs, *(c.hit.unit.id for c in call.found)))
        self._state.finish(
            call,
            m.Forgotten(
                id=request.id,
                user=resolved.user,
                rule=resolved.rule,
                receipt=call.receipt,
                derived=tuple(derived),
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

    def query(self, call: Call, now: int) -> Query:
        return ListQuery(limit=PAGE, now=now, after=call.selection.next)

    def took(self, call: Call) -> None:
        if not isinstance(call.request, m.Forget):
            raise KernelError(f"{call.name} forgets nothing", story=call.told())
        self._derived(call, call.request)

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
            scopes = Counter(sorted(scope for _, _, scope in event.units))
            self._state.finish(
                call,
                m.Matched(units=(), count=len(event.units), confirm=word, scopes=dict(scopes)),
            )
        elif call.request.confirm != word:
            self._state.fail(call, changed())
        else:
            # Whatever came from here on would come after what forgets the user.
            self._state.users.leaving[call.key] = name
            self._end(name)
            self._promise(call)
            call.tell(self._state.now, f"purge of {len(event.units)} units")
            self._note(call, "user", units=len(event.units))
            at = self._state.calendar()
            self._state.emit(ins.Purge(call.key, name, call.receipt, at))

    def _purged(self, event: ev.Purged) -> None:
        """The user is unknown from here on, whether or not somebody still waits to hear it."""
        for outcome in event.outcomes:
            # Vectors that were still to come will come to nothing, and that is no loss.
            self._state.barrier.removed(outcome.op.partition, outcome.id)
        self._state.quotas.purged(event.key, event.outcomes, event.user)
        self._state.users.leaving.pop(event.key, None)
        self._state.users.forget(event.user)
        self._end(event.user)
        self._state.metering.forget(event.user)
        self._state.contexts.forget(event.user)
        self._state.timers.forget(event.user)
        self._state.mail.forget(event.user)
        self._state.lessons.forget(event.user)
        self._state.groups.forget(event.user)
        self._state.identities.unbind(event.user)
        self._state.agents.forget(event.user)
        self._state.groups.forget(event.user)
        self._state.groups.narrow()
        self.left(outcome.id for outcome in event.outcomes)
        call = self._state.calls.get(event.key)
        if call is not None and isinstance(call.request, m.ForgetUser):
            count = len(event.outcomes)
            self._state.finish(
                call, m.Matched(units=(), count=count, confirm="", receipt=call.receipt)
            )

    # -- what models were given

    def left(self, units: Iterable[str]) -> None:
        """These units are gone from the store. A prompt that holds one is on its way all the same:
        no receipt is issued before it has ended."""
        gone = set(units)
        for call in self._state.calls.values():
            if call.generation is not None and call.selection.candidates:
                given = {candidate.hit.unit.id for candidate in call.selection.candidates}
                if not gone.isdisjoint(given):
                    self._stale.add(call.key)
        self._state.emit(ins.Scrub())

    def _scrubbing(self, event: ev.Scrubbing) -> None:
        if not self._stale:
            self._state.emit(ins.Flush())
            return
        if not self._awaited:
            self._until = self._state.now + PATIENCE
            self._state.timer(self._until, 0, "flush")
        self._awaited |= self._stale

    def closed(self, call: Call) -> None:
        """A call has ended, and its request to the driver is aborted if it still ran."""
        self._stale.discard(call.key)
        if call.key in self._awaited:
            self._awaited.remove(call.key)
            if not self._awaited:
                self._state.emit(ins.Flush())

    def woken(self) -> None:
        """Calls that a scrub has waited for are ended, lest a long one keep a receipt back."""
        if self._state.now < self._until:
            return  # of an earlier scrub
        for key in sorted(self._awaited):
            call = self._state.calls[key]
            if call.step is Step.KEEP:
                self._state.chats.kept(call)  # the model has answered
            else:
                why = "it was given memory that is forgotten since"
                self._state.fail(call, error(Errno.ESTALE, why))

    # -- receipts

    def _receipt_of(self, channel: Channel, frame: int, request: m.ReceiptOf) -> None:
        check_name(request.receipt, "receipt")
        if not receipts.may_read(self._state, channel.who, request.user, request.receipt):
            raise no_receipt()
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.FindReceipt(call.key, request.receipt))

    def _receipt_found(self, event: ev.ReceiptFound) -> None:
        call, receipt = self._state.calls.get(event.key), event.receipt
        if call is None or not isinstance(call.request, m.ReceiptOf):
            return
        if receipt is None:
            self._state.fail(call, no_receipt())
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
        self._matching.validate()
        assert self._awaited <= self._stale <= self._state.calls.keys(), "an ended call is stale"
        for call in self._state.calls.values():
            assert None not in call.drops.values() or call.step is Step.COMMIT, call

    # -- words

    def _promise(self, call: Call) -> None:
        """Make out the call's receipt: opaque, so whoever was not given it cannot ask for it.
        Forgetting goes on where its call ends early, so the story of that end names it too."""
        request = call.request
        user = call.resolved.user if call.resolved else ""
        user = request.name if isinstance(request, m.ForgetUser) else user
        call.receipt = receipts.name_of(self._state, call.key, user)
        call.tell(self._state.now, f"receipt {call.receipt}")

    def _word(self, units: Iterable[tuple[str, int, str]], *whose: str) -> str:
        return self._state.opaque("w", whose, tuple(sorted(units)))


def no_receipt() -> CallerError:
    """The same words whether there is none, or it is about another user's memories."""
    return CallerError("no such receipt", errno=Errno.ENOENT, field="receipt")


def changed() -> IsovistError:
    return error(Errno.ESTALE, "what matches has changed since it was shown", "confirm")
