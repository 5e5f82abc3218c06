"""Models, the queue before each, and the lives of the drivers that decode.

A model's driver is started at the first call that needs it. Each life has a number (``gen``);
words of an earlier life are dropped. A request whose driver dies goes back into the queue if
nothing of its text has left yet, and fails otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Generation, Step
from isovist.kernel.state.routing import RESTING, Health
from isovist.kernel.state.scheduling import Scheduling
from isovist.scheduler.choice import changed, make_policy
from isovist.scheduler.policy import Job, Policy
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError, error
from isovist.syscalls.records import Model, ModelClient, ModelLoad, ModelQueue

if TYPE_CHECKING:
    from isovist.kernel.state.core import State

MS = 1_000_000
TRIES = 2
"""Lives of a driver that one request may see."""
DEATHS = 4
"""Deaths in a row after which a model's waiting calls fail instead of waiting on."""
LOAD_GRACE = 300_000 * MS
"""A driver that does not come up within this is stopped."""
ABORT_GRACE = 10_000 * MS
"""A driver that does not end an aborted request within this is stopped."""


@dataclass(frozen=True)
class ModelConfig:
    """A model as configured; ``context`` in tokens, ``slots`` requests decoded at a time.
    ``pausable``: how many more requests its driver keeps while they are paused; 0: it cannot.
    ``fallbacks``: the models that are asked, in this order, while it rests; ``agents``: whose
    default it is. ``snapshots``: its driver writes what it holds of a conversation to a file."""

    name: str
    driver: str
    context: int
    slots: int = 1
    default: bool = False
    pausable: int = 0
    fallbacks: tuple[str, ...] = ()
    agents: frozenset[str] = frozenset()
    snapshots: bool = False


@dataclass(slots=True)
class Driver:
    """One model. ``running`` are the requests that its driver still works on, ended calls
    included: a slot is free again only when the driver says so. ``paused`` are those that it
    keeps without a slot. ``slots`` is what the driver said last, else what is configured.

    Invariant: both are empty unless the state is ``up``, disjoint, and never exceed ``slots`` and
    ``pausable``.
    """

    index: int
    config: ModelConfig
    policy: Policy
    context: int
    slots: int
    state: Literal["idle", "loading", "up", "waiting", "failed"] = "idle"
    gen: int = 0
    deaths: int = 0
    error: str = ""
    tokenizer: str = ""
    health: Health = field(default_factory=Health)
    running: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    load: ModelLoad = field(default_factory=lambda: ModelLoad(slots=0))
    """What the driver said last, in this life."""


class Drivers:
    def __init__(self, state: State, models: Iterable[ModelConfig], scheduling: Scheduling) -> None:
        self._state = state
        self._scheduling = scheduling
        policy = scheduling.policy
        self._all = [
            Driver(i, c, make_policy(policy), c.context, c.slots) for i, c in enumerate(models)
        ]
        self._named = {d.config.name: d for d in self._all}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.DriverUp: self._up,
            ev.DriverLoad: self._load,
            ev.Token: self._token,
            ev.DriverDone: self._done,
            ev.DriverDied: self._died,
        }

    # -- models

    def find(self, name: str, agent: str = "") -> Driver:
        """The model called ``name``; where that is empty the default of ``agent``, else the
        default of all. Raises ``ENOENT``."""
        if not self._all:
            raise CallerError("this kernel has no model", errno=Errno.ENOENT, field="model")
        if not name:
            own = (d for d in self._all if agent in d.config.agents)
            every = (d for d in self._all if d.config.default)
            return next(own, None) or next(every, self._all[0])
        if name not in self._named:
            known = ", ".join(self._named)
            raise CallerError(
                f"no model called {name!r}; there are: {known}", errno=Errno.ENOENT, field="model"
            )
        return self._named[name]

    def models(self, loads: bool = False) -> tuple[Model, ...]:
        """All models. How busy they are (``loads``) tells of the calls of all."""
        default = self.find("") if self._all else None
        return tuple(
            Model(
                name=d.config.name,
                driver=d.config.driver,
                state="loading" if d.state == "waiting" else d.state,
                context=d.context,
                tokenizer=d.tokenizer,
                error=d.error,
                default=d is default,
                rest_ms=max(0, d.health.until - self._state.now) // MS,
                fallbacks=d.config.fallbacks,
                load=_load(d) if loads else None,
            )
            for d in self._all
        )

    def schedule(self, model: str, policy: str) -> tuple[ModelQueue, ...]:
        """The queue of ``model`` (empty: of each), first put under ``policy`` where one is named.
        Raises ``ENOENT`` or ``EINVAL``, and has changed nothing then."""
        drivers = [self.find(model)] if model else self._all
        if policy:
            make_policy(policy)
            for driver in drivers:
                driver.policy = changed(driver.policy, policy)
                self.pump(driver)
        return tuple(map(_queue, drivers))

    # -- queue

    def ensure(self, driver: Driver) -> None:
        """Start the driver if nobody has."""
        if driver.state in ("idle", "failed"):
            driver.gen += 1
            driver.load = ModelLoad(slots=0, loaded=0.0)
            driver.state, driver.error = "loading", ""
            self._state.emit(ins.StartDriver(driver.config.name, driver.gen))
            self._timer(driver, LOAD_GRACE, f"load {driver.gen} 0")

    def offer(self, call: Call, word: str = "") -> None:
        """Queue a rendered call for its model."""
        request, generation = _chat(call)
        driver = self._named[generation.model]
        call.to(Step.QUEUE, self._state.now, word or generation.model)
        user = call.resolved.user if call.resolved else ""
        deadline = request.deadline_ms
        channel = self._state.channels.get(call.channel)
        own = channel.who.priority if channel is not None else 0
        driver.policy.offer(
            Job(
                key=call.key,
                client=self._scheduling.client(call.agent, user),
                prompt_tokens=max(1, generation.prompt_tokens),
                max_tokens=request.max_tokens,
                at=call.at,
                weight=self._scheduling.weight(call.agent, user),
                priority=min(9, self._scheduling.priority(call.agent, user) + own),
                deadline=0 if deadline is None else call.at + deadline * MS,
            )
        )

    def pump(self, driver: Driver) -> None:
        """Fill the free slots, and let those make room whom the policy names. Work-conserving:
        a slot stays free only where nothing waits."""
        while driver.state == "up" and (
            len(driver.running) < driver.slots or self._make_room(driver)
        ):
            job = driver.policy.pick(self._state.now)
            if job is None:
                return
            call = self._state.calls[job.key]
            driver.running.add(call.key)
            if call.key in driver.paused:
                driver.paused.remove(call.key)
                call.to(Step.DECODE, self._state.now, "again")
                self._state.emit(ins.Resume(driver.config.name, driver.gen, call.key))
            else:
                call.to(Step.DECODE, self._state.now, f"driver {driver.gen}")
                self._decode(driver, call)

    def _make_room(self, driver: Driver) -> bool:
        """Pause a running call for one that waits, if the policy wants it and the driver can."""
        if len(driver.paused) >= driver.config.pausable:
            return False
        key = driver.policy.preempt(self._state.now)
        call = self._state.calls.get(key) if key is not None else None
        if call is None:
            return False  # one that has ended frees its slot by itself
        driver.policy.pause(call.key)
        driver.running.remove(call.key)
        driver.paused.add(call.key)
        call.to(Step.QUEUE, self._state.now, "paused")
        self._state.emit(ins.Pause(driver.config.name, driver.gen, call.key))
        return True

    def _decode(self, driver: Driver, call: Call) -> None:
        request, generation = _chat(call)
        generation.tries += 1
        generation.charged = 0
        self._state.admission.begun(call)
        self._state.emit(
            ins.Decode(
                driver.config.name,
                driver.gen,
                call.key,
                generation.prompt,
                request.max_tokens,
                request.temperature,
                request.seed,
                request.stop,
                call.owner,
                request.tools,
                request.choice,
                request.schema,
                request.logprobs,
            )
        )

    def closed(self, call: Call) -> None:
        """A call ends: it leaves the queue, or its decoding is aborted."""
        if call.generation is None:
            return
        driver = self._named[call.generation.model]
        made = max(call.generation.tokens - call.generation.told, call.generation.charged)
        self._state.admission.ended(call, made)
        if call.step is Step.QUEUE:
            driver.policy.leave(call.key)
        if call.key in driver.running or call.key in driver.paused:
            self._state.emit(ins.Abort(driver.config.name, driver.gen, call.key))
            self._timer(driver, ABORT_GRACE, f"abort {driver.gen} {call.key}")

    def woken(self, index: int, what: str) -> None:
        """A timer of model ``index`` has run out."""
        driver = self._all[index]
        if what == "driver":
            if driver.state == "waiting":
                driver.state = "idle"
                if len(driver.policy):
                    self.ensure(driver)
            return
        what, gen, key = what.split()
        kept = driver.running | driver.paused
        stuck = driver.state == "loading" if what == "load" else int(key) in kept
        if driver.gen == int(gen) and stuck:
            self._state.emit(ins.StopDriver(driver.config.name, driver.gen))

    def _timer(self, driver: Driver, after: int, what: str) -> None:
        self._state.timer(self._state.now + after, -1 - driver.index, what)

    # -- what a driver says

    def _speaker(self, event: Any) -> Driver | None:
        """The driver that speaks, unless it speaks from an earlier life."""
        driver = self._named.get(event.model)
        if driver is None or driver.gen != event.gen or driver.state not in ("loading", "up"):
            return None
        return driver

    def _up(self, event: ev.DriverUp) -> None:
        driver = self._speaker(event)
        if driver is None:
            return
        driver.state, driver.tokenizer = "up", event.tokenizer
        driver.load = ModelLoad(slots=0)
        driver.slots = event.slots or driver.config.slots
        driver.context = min(driver.config.context, event.context or driver.config.context)
        # A chat that comes after a load finds what that has given back.
        self._state.contexts.up(driver)
        self.pump(driver)

    def _load(self, event: ev.DriverLoad) -> None:
        driver = self._speaker(event)
        if driver is not None:
            driver.load = event.load

    def _decoding(self, driver: Driver | None, key: int) -> Call | None:
        """The call that the driver speaks of; a paused one may have words on their way."""
        call = self._state.calls.get(key)
        if driver is None or call is None:
            return None
        return call if key in driver.running or key in driver.paused else None

    def _token(self, event: ev.Token) -> None:
        driver = self._speaker(event)
        call = self._decoding(driver, event.key)
        if driver is None or call is None:
            return
        request, generation = _chat(call)
        generation.text.append(event.text)
        generation.logprobs += event.logprobs
        generation.charged += event.tokens
        driver.policy.charge(event.key, event.tokens)
        if request.stream and event.text:
            generation.passed_on = True
            self._state.part(call, event.text)
        if driver.config.pausable:
            self.pump(driver)

    def _done(self, event: ev.DriverDone) -> None:
        driver = self._speaker(event)
        if driver is None or event.key not in driver.running | driver.paused:
            return
        call = self._decoding(driver, event.key)
        driver.running.discard(event.key)
        driver.paused.discard(event.key)
        driver.deaths = 0
        if call is not None and call.generation is not None:
            # What came in fewer messages than tokens is charged now.
            driver.policy.charge(event.key, max(0, event.output_tokens - call.generation.charged))
        driver.policy.leave(event.key)
        if call is not None:
            if call.step is Step.QUEUE:
                call.to(Step.DECODE, self._state.now, "ended before its pause")
            if event.errno:
                self._failed(driver, call, event)
            else:
                if event.finish != "cancelled":
                    driver.health.answered()
                    driver.error = ""
                self._state.chats.decoded(call, event)
        self.pump(driver)

    def _failed(self, driver: Driver, call: Call, event: ev.DriverDone) -> None:
        """A driver that lives could not answer a request."""
        at = self._state.calendar() + event.retry_ns if event.retry_ns else 0
        failure = error(event.errno, event.message, event.field, retry_at=at)
        if failure.errno in RESTING:
            driver.error = failure.message
            driver.health.failed(self._state.now, event.retry_ns)
            if self._state.routing.elsewhere(call):
                return
        self._state.fail(call, failure)

    def _died(self, event: ev.DriverDied) -> None:
        driver = self._speaker(event)
        if driver is None:
            return
        driver.error = event.reason
        driver.deaths += 1
        hopeless = event.fatal or driver.deaths >= DEATHS
        driver.state = "failed" if hopeless else "idle"
        driver.load = ModelLoad(slots=0, loaded=0.0)
        if hopeless:
            driver.health.failed(self._state.now)
        self._state.contexts.died(driver)
        kept = sorted(driver.running | driver.paused)
        driver.running, driver.paused = set(), set()
        for key in kept:
            call = self._state.calls.get(key)
            driver.policy.leave(key)
            if call is None or call.generation is None:
                continue
            if call.step is Step.QUEUE:
                call.to(Step.DECODE, self._state.now, "paused when the driver died")
            if call.generation.passed_on or call.generation.tries >= TRIES or hopeless:
                if not self._state.routing.elsewhere(call):
                    why = f"the model's driver died: {event.reason}"
                    self._state.fail(call, error(Errno.EIO, why))
            else:
                call.generation.anew()
                self.offer(call, "again: the driver died")
        if hopeless:
            driver.deaths = 0
            why = f"the model's driver cannot run: {event.reason}"
            for job in driver.policy.waiting():
                call = self._state.calls[job.key]
                if not self._state.routing.elsewhere(call):
                    self._state.fail(call, error(Errno.EIO, why))
        elif len(driver.policy):
            driver.state = "waiting"
            # Back off 0.1, 0.2, 0.4 s between the lives of a driver.
            self._timer(driver, 100 * MS << (driver.deaths - 1), "driver")

    def validate(self) -> None:
        for driver in self._all:
            assert len(driver.running) <= driver.slots
            assert len(driver.paused) <= driver.config.pausable
            assert not driver.running & driver.paused
            assert driver.state == "up" or not driver.running | driver.paused
            assert {job.key for job in driver.policy.running()} == driver.running
            queued = [
                c
                for c in self._state.calls.values()
                if c.step is Step.QUEUE
                and c.generation
                and c.generation.model == driver.config.name
            ]
            assert len(queued) == len(driver.policy), "queued iff in that step"
            free = driver.state == "up" and len(driver.running) < driver.slots
            assert not (free and queued), "a slot is free while a call waits"
            assert not queued or driver.state in ("loading", "up", "waiting"), driver.state


def _load(driver: Driver) -> ModelLoad:
    """Its cells as the driver said, its calls as the kernel knows."""
    return msgspec.structs.replace(
        driver.load,
        slots=driver.slots,
        running=len(driver.running),
        waiting=len(driver.policy),
        paused=len(driver.paused),
    )


def _queue(driver: Driver) -> ModelQueue:
    statistics = driver.policy.statistics()
    return ModelQueue(
        model=driver.config.name,
        policy=driver.policy.name,
        slots=driver.slots,
        waiting=statistics.waiting,
        running=statistics.running,
        paused=len(driver.paused),
        prompt_tokens=statistics.prompt_tokens,
        output_tokens=statistics.output_tokens,
        clients=tuple(
            ModelClient(name=name, waiting=s.waiting, running=s.running, ahead=s.ahead)
            for name, s in statistics.clients.items()
        ),
    )


def _chat(call: Call) -> tuple[m.Chat, Generation]:
    if call.generation is None or not isinstance(call.request, m.Chat):
        raise KernelError("not a chat call", story=call.told())
    return call.request, call.generation
