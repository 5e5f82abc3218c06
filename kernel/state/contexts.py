"""Saved contexts: conversations that a pair keeps under names, with what its model holds of them.

The text is the truth. It is durable before anything else happens, and no state of a model, or the
want of one, takes it away: whatever fails there, the call is answered with ``tokens`` 0. A state is
asked for when the text is durable, of the text as it was stored, and given back to the same pair
alone (a driver keeps it under the same owner as its chats). A load starts a model that is not up,
if there is a state to give back: after a start of the kernel no model is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.answers import check_tools
from isovist.kernel.state.calls import Call, Step
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import Context

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State
    from isovist.kernel.state.drivers import Driver

MOST, MOST_BYTES = 64, 8 << 20
"""Contexts that a pair keeps at most, and the bytes of their messages."""
WRITES = 8
"""Saves and drops of one channel that may wait for the disk; a save may hold half a megabyte."""
PATIENCE = 30_000_000_000
"""Nanoseconds that a call waits for a model's state; then it goes without."""
Key = tuple[str, str, str]
"""User, agent, name."""


@dataclass(slots=True)
class Warming:
    """A context whose state is written or given back. ``asked``: the driver has been told to.
    ``saved`` is what the reply to a save says besides."""

    context: Context
    saved: ev.ContextSaved | None = None
    asked: bool = False


class Contexts:
    """Invariants: ``_writes`` has all and only the saves and drops that are handed out and not yet
    answered by the store, ended calls included, by key of their call: (name, channel). No name is
    there twice, no channel more than ``WRITES`` times."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._writes: dict[int, tuple[Key, int]] = {}

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {
            m.ContextSave: self._save,
            m.ContextLoad: self._load,
            m.ContextList: self._list,
            m.ContextDrop: self._drop,
        }

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.ContextSaved: self._saved,
            ev.ContextFound: self._found,
            ev.ContextsListed: self._listed,
            ev.ContextDropped: self._dropped,
            ev.ContextKept: self._kept,
        }

    # -- requests

    def _save(self, channel: Channel, frame: int, request: m.ContextSave) -> None:
        check_name(request.name, "name")
        if not request.messages:
            raise CallerError("messages is empty", field="messages")
        check_tools(request.tools, request.choice)
        model = self._state.drivers.find(request.model, channel.who.agent).config.name
        call, (user, agent, name) = self._write(channel, frame, request)
        context = Context(
            user=user,
            agent=agent,
            name=name,
            id=self._state.opaque("x", self._state.boot, call.key),
            model=model,
            messages=request.messages,
            saved_at=self._state.calendar(),
            tools=request.tools,
            choice=request.choice,
        )
        self._state.emit(ins.SaveContext(call.key, context, MOST, MOST_BYTES))

    def _drop(self, channel: Channel, frame: int, request: m.ContextDrop) -> None:
        check_name(request.name, "name")
        call, key = self._write(channel, frame, request)
        self._state.emit(ins.DropContext(call.key, *key))

    def _load(self, channel: Channel, frame: int, request: m.ContextLoad) -> None:
        check_name(request.name, "name")
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.FindContext(call.key, resolved.user, call.agent, request.name))

    def _list(self, channel: Channel, frame: int, request: m.ContextList) -> None:
        resolved = self._state.users.resolve(channel.who, request.user)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.LOOKUP, self._state.now)
        self._state.emit(ins.ListContexts(call.key, resolved.user, call.agent))

    def _write(
        self, channel: Channel, frame: int, request: m.ContextSave | m.ContextDrop
    ) -> tuple[Call, Key]:
        """Accept a save or a drop. Two of one name at a time would have no order that either caller
        knows of. One that was cancelled counts until it is on disk. Raises ``EAGAIN``."""
        resolved = self._state.users.resolve(channel.who, request.user)
        key = resolved.user, channel.who.agent, request.name
        if any(key == other for other, _ in self._writes.values()):
            why = "a save or drop of this name is under way"
            raise CallerError(why, errno=Errno.EAGAIN, field="name")
        if sum(number == channel.number for _, number in self._writes.values()) >= WRITES:
            why = f"{WRITES} saves and drops of contexts wait for the disk, the limit"
            raise CallerError(why, errno=Errno.EAGAIN)
        call = self._state.open(channel, frame, request, resolved)
        call.to(Step.SAVE, self._state.now)
        self._writes[call.key] = key, channel.number
        return call, key

    # -- what the store answers

    def answered(self, key: int) -> None:
        """The store has done, or refused, what call ``key`` asked for."""
        self._writes.pop(key, None)

    def _at(self, key: int, step: Step) -> Call | None:
        """The outstanding call ``key``, if it stands there; late and doubled words are for none."""
        call = self._state.calls.get(key)
        return call if call is not None and call.step is step else None

    def _saved(self, event: ev.ContextSaved) -> None:
        self.answered(event.key)
        call = self._at(event.key, Step.SAVE)
        if call is None or not isinstance(call.request, m.ContextSave):
            return
        warming = Warming(event.context, event)
        driver = self._keeper(event.context.model)
        if driver is None or driver.state != "up":
            self._answer(call, warming, 0)
            return
        self._wait(call, warming)
        self._ask(call, driver)

    def _found(self, event: ev.ContextFound) -> None:
        call = self._at(event.key, Step.LOOKUP)
        if call is None or not isinstance(call.request, m.ContextLoad):
            return
        if event.context is None:
            self._state.fail(call, no_context())
            return
        warming = Warming(event.context)
        driver = self._keeper(event.context.model)
        if not (call.request.warm and event.state) or driver is None or driver.state == "failed":
            self._answer(call, warming, 0)
            return
        self._wait(call, warming)
        if driver.state == "up":
            self._ask(call, driver)
        elif driver.state == "idle":
            self._state.drivers.ensure(driver)

    def _listed(self, event: ev.ContextsListed) -> None:
        call = self._at(event.key, Step.LOOKUP)
        if call is None or not isinstance(call.request, m.ContextList):
            return
        user, rule = whom(call)
        reply = m.Contexts(contexts=event.contexts, user=user, rule=rule)
        self._state.finish(call, reply)

    def _dropped(self, event: ev.ContextDropped) -> None:
        self.answered(event.key)
        if event.found:
            self._state.emit(ins.Scrub())
        call = self._at(event.key, Step.SAVE)
        if call is None or not isinstance(call.request, m.ContextDrop):
            return
        if event.found:
            self._state.finish(call, m.Done())
        else:
            self._state.fail(call, no_context())

    # -- what models hold

    def _keeper(self, model: str) -> Driver | None:
        """The model's driver, if it is there still and can keep states."""
        try:
            driver = self._state.drivers.find(model)
        except CallerError:
            return None
        return driver if driver.config.snapshots else None

    def _wait(self, call: Call, warming: Warming) -> None:
        call.work = warming
        call.to(Step.WARM, self._state.now, warming.context.model)
        self._state.timer(self._state.now + PATIENCE, call.key, "warm")

    def _ask(self, call: Call, driver: Driver) -> None:
        warming = _warming(call)
        if warming.asked:
            return
        warming.asked = True
        what = ins.Restore if warming.saved is None else ins.Snapshot
        self._state.emit(what(call.key, driver.config.name, warming.context, call.owner))

    def _kept(self, event: ev.ContextKept) -> None:
        call = self._at(event.key, Step.WARM)
        if call is not None:
            self._answer(call, _warming(call), event.tokens)

    def cold(self, call: Call) -> None:
        """Its model takes too long, or is gone: the text alone."""
        if call.step is Step.WARM:
            self._answer(call, _warming(call), 0)

    def up(self, driver: Driver) -> None:
        """The driver can take in states that calls wait to give back."""
        for call in self._warming(driver):
            self._ask(call, driver)

    def died(self, driver: Driver) -> None:
        for call in self._warming(driver):
            self.cold(call)

    def forget(self, user: str) -> None:
        """The user is forgotten: what was loaded is not told any more."""
        for call in list(self._state.calls.values()):
            if call.step is Step.WARM and call.resolved and call.resolved.user == user:
                self._state.fail(call, no_context())

    def _warming(self, driver: Driver) -> list[Call]:
        return [
            call
            for call in self._state.calls.values()
            if call.step is Step.WARM and _warming(call).context.model == driver.config.name
        ]

    # -- answers

    def _answer(self, call: Call, warming: Warming, tokens: int) -> None:
        context, saved = warming.context, warming.saved
        user, rule = whom(call)
        reply: m.AnyReply
        if saved is None:
            reply = m.ContextLoaded(
                name=context.name,
                model=context.model,
                user=user,
                rule=rule,
                messages=context.messages,
                saved_at=context.saved_at,
                tokens=tokens,
            )
        else:
            reply = m.ContextSaved(
                name=context.name,
                model=context.model,
                user=user,
                rule=rule,
                bytes=saved.bytes,
                replaced=saved.replaced,
                tokens=tokens,
                secrets=saved.secrets,
            )
        self._state.finish(call, reply)

    def validate(self) -> None:
        names = [key for key, _ in self._writes.values()]
        assert len(set(names)) == len(names), "two writes of one context"
        assert all(n <= WRITES for n in Counter(c for _, c in self._writes.values()).values())
        for call in self._state.calls.values():
            if isinstance(call.request, m.ContextSave | m.ContextDrop):
                assert (call.step is Step.SAVE) == (call.key in self._writes), call
            assert call.step is not Step.WARM or isinstance(call.work, Warming), call


def _warming(call: Call) -> Warming:
    if not isinstance(call.work, Warming):
        raise KernelError("no context is given to a model here", story=call.told())
    return call.work


def whom(call: Call) -> tuple[str, str]:
    if call.resolved is None:
        raise KernelError("a context of nobody", story=call.told())
    return call.resolved.user, call.resolved.rule


def no_context() -> CallerError:
    return CallerError("no context of that name", errno=Errno.ENOENT, field="name")
