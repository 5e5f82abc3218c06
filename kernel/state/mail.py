"""Boxes: durable messages between agents, delivered at least once, each under one id.

A box is that of a pair of agent and user; only the pair reads it. Who sends needs the operator's
grant of mail to that agent, and for the box of another user than the one served the right to act
for that user too. Who a message is from is said by the channel, never by the message, and the
kernel acts on no word in it.

What is in a box is the store's to say. Here stands who was given what: a *lease*, until the
message is acknowledged. It ends with its time, or with the channel; then the message comes again.
Leases do not outlive the kernel: after a restart all that was not acknowledged comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.effects import body_of, sized
from isovist.kernel.state.ledger import expect
from isovist.kernel.state.users import own_user
from isovist.syscalls.abi import mail as abi
from isovist.syscalls.abi.base import Call as Request
from isovist.syscalls.abi.mail import Mail
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, error
from isovist.syscalls.ledger import Ack, FindBoxes, FindMail, MailFound, Send, Sent
from isovist.syscalls.names import MAX_NAME, check_name, check_text

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MS, SECOND = 1_000_000, 1_000_000_000
LEASES = 256
"""Messages of one box that may be out at once."""
PAGE = 512 * 1024
"""Bytes of texts in one reply, but for a single message that is longer."""
PATIENCE = 120_000
"""Milliseconds that a call without a deadline of its own may take."""
NEVER = (1 << 63) - 1
Pair = tuple[str, str]
"""Agent, user."""


@dataclass(slots=True)
class Box:
    """What this life knows of one box. ``leases``: by id the channel, and until when (virtual ns).
    ``seen`` were delivered before, ``leaving`` are on their way out, ``left`` have gone since the
    store was asked. ``receivers`` and ``senders``
    wait, in order, by the keys of their calls; ``looking``: the store has been asked, and
    ``stale`` that it is to be asked again."""

    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    receivers: list[int] = field(default_factory=list)
    senders: list[int] = field(default_factory=list)
    looking: bool = False
    stale: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.leases or self.seen or self.leaving or self.receivers or self.senders
            or self.looking
        )  # fmt: skip


@dataclass(slots=True)
class Waiting:
    """A receive, and until when it waits (virtual ns)."""

    pair: Pair
    until: int


class Boxes:
    """Invariants: a call stands among a box's receivers from when it was accepted to its end, among
    its senders iff it is in step ``BOX``; a box of which nothing is known has no entry; at most
    ``LEASES`` messages of a box are out."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._boxes: dict[Pair, Box] = {}
        self._sent = 0
        self._armed = NEVER
        """When the earliest timer that was set fires (virtual ns)."""

    def syscalls(self) -> dict[type[Request], Callable[[Channel, int, Any], None]]:
        return {
            abi.MailSend: self._send,
            abi.MailReceive: self._receive,
            abi.MailAck: self._ack,
            abi.MailList: self._list,
        }

    # -- sending

    def _send(self, channel: Channel, frame: int, request: abi.MailSend) -> None:
        who, users = channel.who, self._state.users
        check_name(request.to, "to")
        text = check_text(request.text)
        sized(request.about, "about", MAX_NAME)
        resolved = users.resolve(who, request.user)
        user = request.to_user
        if not user:
            itself = resolved.user == own_user(who.agent)
            user = own_user(request.to) if itself else resolved.user
        elif user != resolved.user and not users.may_serve(who, user):
            why = f"agent {who.agent!r} may not act for the user that it writes to"
            raise CallerError(why, errno=Errno.EPERM, field="to_user")
        if not users.may_mail(who, request.to):
            why = f"agent {who.agent!r} holds no grant of mail to {request.to!r}"
            raise CallerError(why, errno=Errno.EPERM, field="to")
        pair = request.to, user
        waiting = self._boxes.get(pair)
        if waiting is not None and waiting.senders and not request.wait:
            raise self._full("others wait for room in the box")
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)
        self._sent += 1
        now = self._state.calendar()
        letter = Mail(
            id=self._state.opaque("m", self._state.boot, "mail", self._sent),
            kind="mail",
            from_agent=who.agent,
            from_user=resolved.user,
            at=now,
            text=text,
            about=request.about,
        )
        # The words themselves stand in the box alone, and go with it.
        words = msgspec.json.encode((request.to, user, text, request.about)).decode()
        effect = self._state.effects.new(
            call, request.key, "mail", f"mail to {request.to}", "", idempotent=True
        )
        effect = msgspec.structs.replace(
            effect,
            state="done",
            ended_at=now,
            arguments=body_of(words, 0),
            result=body_of(letter.id, MAX_NAME),
        )
        call.work = Send(mail=letter, agent=request.to, user=user, effect=effect)
        if waiting is not None and waiting.senders:
            self._park(call, pair)
        else:
            self._enter(call)

    def _enter(self, call: Call) -> None:
        entry = expect(Send, call.work)
        pair = entry.agent, entry.user

        def sent(answer: object, refused: IsovistError | None) -> None:
            if refused is None and expect(Sent, answer).fresh:
                self.arrived(pair)
            if self._state.calls.get(call.key) is call:
                self._answered(call, entry, answer, refused)
            if refused is None or refused.errno != Errno.EAGAIN:
                self._room(pair)

        self._state.ledger.enter(entry, sent)

    def _answered(
        self, call: Call, entry: Send, answer: object, refused: IsovistError | None
    ) -> None:
        request = call.request
        if not isinstance(request, abi.MailSend) or call.resolved is None:
            raise KernelError("mail of nobody", story=call.told())
        if refused is not None and refused.errno == Errno.EAGAIN:
            if request.wait:
                self._park(call, (entry.agent, entry.user), first=True)
            else:
                self._state.fail(call, self._full(refused.message))
        elif refused is not None:
            self._state.fail(call, refused)
        else:
            sent = expect(Sent, answer)
            reply = abi.MailSent(
                id=sent.id,
                key=entry.effect.key,
                fresh=sent.fresh,
                user=call.resolved.user,
                rule=call.resolved.rule,
                secrets=sent.secrets,
            )
            self._state.finish(call, reply)

    def _park(self, call: Call, pair: Pair, first: bool = False) -> None:
        call.to(Step.BOX, self._state.now, "full")
        senders = self._box(pair).senders
        senders.insert(0 if first else len(senders), call.key)

    def _room(self, pair: Pair) -> None:
        """There may be room: whoever has waited longest tries again."""
        box = self._boxes.get(pair)
        if box is None or not box.senders:
            return
        call = self._state.calls[box.senders.pop(0)]
        self._tidy(pair)
        call.to(Step.LEDGER, self._state.now)
        self._enter(call)

    def _full(self, why: str) -> IsovistError:
        return error(Errno.EAGAIN, why, "to", retry_at=self._state.calendar() + SECOND)

    # -- receiving

    def _receive(self, channel: Channel, frame: int, request: abi.MailReceive) -> None:
        for name, low, value, high in (
            ("limit", 1, request.limit, 64),
            ("wait_ms", 0, request.wait_ms, 3_600_000),
            ("lease_ms", 1000, request.lease_ms, 3_600_000),
        ):
            if not low <= value <= high:
                raise CallerError(f"{name} must be {low} to {high}", field=name)
        resolved = self._state.users.resolve(channel.who, request.user)
        pair = channel.who.agent, resolved.user
        known = self._boxes.get(pair)
        if known is not None and len(known.leases) >= LEASES:
            why = f"{LEASES} messages of this box are out; acknowledge some first"
            raise CallerError(why, errno=Errno.EAGAIN)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.BOX, self._state.now)
        # The last moment of the call is for its answer.
        wait = min(request.wait_ms, (request.deadline_ms or PATIENCE) - 1)
        until = self._state.now + wait * MS
        call.work = Waiting(pair, until)
        if request.wait_ms:
            self._state.timer(until, call.key, "mail")
        self._box(pair).receivers.append(call.key)
        self._look(pair)

    def _look(self, pair: Pair) -> None:
        """Ask the store for the first of those that wait. One question of a box at a time: so no
        two are given the same."""
        box = self._boxes.get(pair)
        if box is None or not box.receivers:
            return
        if box.looking:
            box.stale = True
            return
        box.looking, box.stale = True, False
        first = self._state.calls[box.receivers[0]].request
        limit = first.limit if isinstance(first, abi.MailReceive) else 1
        out = (*box.leases, *sorted(box.leaving - box.leases.keys()))
        question = FindMail(
            agent=pair[0], user=pair[1], limit=min(limit, LEASES - len(box.leases)), but=out
        )
        self._state.ledger.ask(question, lambda found, e: self._found(pair, found, e))

    def _found(self, pair: Pair, answer: object, refused: IsovistError | None) -> None:
        box = self._box(pair)
        box.looking, gone = False, box.leaving | box.left
        box.left.clear()
        if refused is not None:
            for key in list(box.receivers):
                self._state.fail(self._state.calls[key], refused)
        elif box.receivers:
            found = expect(MailFound, answer)
            # What has left meanwhile is not handed out any more.
            mails = tuple(one for one in found.mails if one.id not in gone)
            if mails:
                self._give(pair, self._state.calls[box.receivers[0]], mails, found.left)
                box.stale = box.stale or bool(box.receivers)
            else:
                for key in list(box.receivers):
                    self._nothing(self._state.calls[key])
        if box.stale:
            self._look(pair)
        self._tidy(pair)

    def _give(self, pair: Pair, call: Call, mails: tuple[Mail, ...], left: int) -> None:
        box, request = self._box(pair), call.request
        if not isinstance(request, abi.MailReceive) or call.resolved is None:
            raise KernelError("mail for nobody", story=call.told())
        until = self._state.now + request.lease_ms * MS
        given: list[Mail] = []
        size = 0
        for one in mails:
            size += len(one.text.encode())
            if given and (size > PAGE or len(given) >= request.limit):
                break
            given.append(msgspec.structs.replace(one, again=one.id in box.seen))
            box.leases[one.id] = call.channel, until
            box.seen.add(one.id)
        self._arm(until)
        self._state.finish(
            call,
            abi.Mails(
                mails=tuple(given),
                user=call.resolved.user,
                rule=call.resolved.rule,
                left=left + len(mails) - len(given),
            ),
        )

    def _nothing(self, call: Call) -> None:
        """There is no mail: the call ends, or waits on."""
        waiting = call.work
        if call.resolved is None or not isinstance(waiting, Waiting):
            raise KernelError("nobody waits for mail", story=call.told())
        if waiting.until <= self._state.now:
            reply = abi.Mails(mails=(), user=call.resolved.user, rule=call.resolved.rule)
            self._state.finish(call, reply)

    def waited(self, call: Call) -> None:
        """Its time is up. If the store is just being asked, that answer ends the call."""
        if isinstance(call.work, Waiting) and not self._box(call.work.pair).looking:
            self._nothing(call)

    def _ack(self, channel: Channel, frame: int, request: abi.MailAck) -> None:
        if not 1 <= len(request.ids) <= LEASES:
            raise CallerError(f"ids must hold 1 to {LEASES}", field="ids")
        for id_ in request.ids:
            check_name(id_, "ids")
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)
        pair, ids = (call.agent, resolved.user), request.ids
        box = self._box(pair)
        box.leaving.update(ids)
        tell = self._state.ledger.for_call(call, int, lambda _: self._tell_box(call))

        def gone(answer: object, refused: IsovistError | None) -> None:
            box = self._box(pair)
            box.leaving.difference_update(ids)
            if refused is None:
                box.left.update(ids if box.looking else ())
                box.seen.difference_update(ids)
                for id_ in ids:
                    box.leases.pop(id_, None)
            tell(answer, refused)
            if answer:
                self._room(pair)
            if refused is None:
                self._look(pair)  # others wait who may have been given nothing: all was out
            self._tidy(pair)

        self._state.ledger.enter(Ack(agent=pair[0], user=pair[1], ids=ids), gone)

    # -- looking

    def _list(self, channel: Channel, frame: int, request: abi.MailList) -> None:
        everything = channel.who.operator and request.user is None
        users = self._state.users
        resolved = None if everything else users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LEDGER, self._state.now)
        self._tell_box(call)

    def _tell_box(self, call: Call) -> None:
        question = FindBoxes()
        if call.resolved is not None:
            question = FindBoxes(agent=call.agent, user=call.resolved.user)
        self._state.ledger.ask(
            question,
            self._state.ledger.for_call(
                call, tuple, lambda boxes: self._state.finish(call, abi.MailBoxes(boxes=boxes))
            ),
        )

    # -- what changes beside

    def arrived(self, pair: Pair) -> None:
        """A message came, or one is free again."""
        self._look(pair)

    def woken(self) -> None:
        """Leases have run out."""
        now = self._state.now
        if self._armed <= now:
            self._armed = NEVER
        for pair, box in list(self._boxes.items()):
            over = [id_ for id_, (_, until) in box.leases.items() if until <= now]
            for id_ in over:
                del box.leases[id_]
            if over:
                self._look(pair)
        ends = (until for box in self._boxes.values() for _, until in box.leases.values())
        self._arm(min(ends, default=NEVER))

    def _arm(self, at: int) -> None:
        if at < self._armed:
            self._armed = at
            self._state.timer(at, 0, "mail")

    def detached(self, channel: int) -> None:
        """What it was given and has not acknowledged is anybody's of the pair again."""
        for pair, box in list(self._boxes.items()):
            freed = [id_ for id_, (whose, _) in box.leases.items() if whose == channel]
            for id_ in freed:
                del box.leases[id_]
            if freed:
                self._look(pair)

    def closed(self, call: Call) -> None:
        """Whoever waited does so no more."""
        if isinstance(call.work, Waiting):
            pair = call.work.pair
        elif isinstance(call.work, Send):
            pair = call.work.agent, call.work.user
        else:
            return
        box = self._boxes.get(pair)
        if box is not None:
            for waiting in (box.receivers, box.senders):
                if call.key in waiting:
                    waiting.remove(call.key)
            self._tidy(pair)

    def forget(self, user: str) -> None:
        """The user's boxes are gone, and nothing more is put there for those who waited."""
        for pair, box in list(self._boxes.items()):
            parked = [self._state.calls[key] for key in box.senders]
            for call in parked:
                if user in (pair[1], call.resolved.user if call.resolved else ""):
                    why = "the user is forgotten"
                    self._state.fail(call, CallerError(why, errno=Errno.ENOENT, field="to_user"))
            if pair[1] == user:
                box.leases.clear()
                box.seen.clear()
                self._tidy(pair)
            else:
                self._room(pair)

    def _box(self, pair: Pair) -> Box:
        return self._boxes.setdefault(pair, Box())

    def _tidy(self, pair: Pair) -> None:
        if pair in self._boxes and not self._boxes[pair]:
            del self._boxes[pair]

    def __len__(self) -> int:
        """Calls that wait at a box."""
        return sum(len(box.receivers) + len(box.senders) for box in self._boxes.values())

    def validate(self) -> None:
        receivers = [key for box in self._boxes.values() for key in box.receivers]
        senders = [key for box in self._boxes.values() for key in box.senders]
        at_boxes = {call.key for call in self._state.calls.values() if call.step is Step.BOX}
        assert sorted(receivers + senders) == sorted(at_boxes), "who waits stands at one box"
        for box in self._boxes.values():
            assert box, "a box of which nothing is known"
            assert len(box.leases) <= LEASES
            assert box.leases.keys() <= box.seen, "what is out was delivered"
