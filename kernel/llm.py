"""Models as the shell sees them: a driver process each, and a counter of tokens beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
import trio

from isovist.kernel.drivers import protocol as p
from isovist.kernel.drivers.supervisor import PATIENCE_S, DriverProcess
from isovist.kernel.models import ModelSpec
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.tokens import TokenCounter, counter_for
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError, error
from isovist.syscalls.operations import Context
from isovist.syscalls.records import Message, ModelLoad

log = structlog.get_logger()

FLUSH_S = PATIENCE_S
"""A driver that does not flush, write or take in a state within this is killed: its memory goes
with it."""
PAUSABLE = 32
"""Requests that a driver keeps while they are paused, beside those that it works on."""


def check_named(specs: Sequence[ModelSpec], named: Iterable[str]) -> None:
    """Raises ``ENOENT`` where a model is not there that the configuration names (empty: none)."""
    known = {spec.name for spec in specs}
    for name in named:
        if name and name not in known:
            why = f"the configuration names a model {name!r}, which is not there"
            raise CallerError(why, errno=Errno.ENOENT, field="config")


@dataclass(slots=True)
class _Asked:
    """What a driver was told to do: ``done`` when it has answered, or is gone without."""

    process: DriverProcess
    done: trio.Event = field(default_factory=trio.Event)
    answer: p.Kept | p.RequestFailed | None = None

    def answered(self, answer: p.Kept | p.RequestFailed) -> None:
        self.answer = answer
        self.done.set()


class Models:
    """Runs drivers on instruction and turns their words into events.

    Invariant: at most one driver process a model lives at a time; an event carries the number of
    the life that it comes from.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        default: str,
        nursery: trio.Nursery,
        dispatch: Callable[[ev.Event], None],
        clock: Callable[[], int],
        *,
        defaults: Mapping[str, str] | None = None,
        fallbacks: Mapping[str, Sequence[str]] | None = None,
        snapshots: bool = True,
    ) -> None:
        """``defaults`` (models by agent) and ``fallbacks`` (models by model) are as configured, and
        :func:`check_named` has passed them; without ``snapshots`` no driver is asked to keep states
        in files."""
        self._specs = {s.name: s for s in specs}
        # A model that somebody installed comes before the scripted one, which is always there.
        self._default = default or next((s.name for s in specs if s.driver != "scripted"), "")
        self._defaults, self._fallbacks = defaults or {}, fallbacks or {}
        self._snapshots = snapshots
        self._nursery = nursery
        self._dispatch = dispatch
        self._clock = clock
        self._lives: dict[str, DriverProcess] = {}
        self._counters: dict[str, TokenCounter] = {}
        self._loads: dict[str, p.Load] = {}
        self._asked: dict[int, _Asked] = {}
        """By number: what drivers were told to do with what they keep, and have not answered yet.
        Numbers are below 0, so that a failure is never taken for that of a chat."""
        self._last_asked = 0
        self._up: set[DriverProcess] = set()

    def configs(self) -> list[ModelConfig]:
        return [
            ModelConfig(
                s.name,
                s.driver,
                s.context,
                slots=s.at_a_time,
                default=s.name == self._default,
                pausable=PAUSABLE if s.driver == "llama" else 0,
                snapshots=s.driver == "llama" and self._snapshots,
                fallbacks=tuple(self._fallbacks.get(s.name, ())),
                agents=frozenset(a for a, model in self._defaults.items() if model == s.name),
            )
            for s in self._specs.values()
        ]

    def counter(self, model: str) -> TokenCounter:
        """The model's token counter: a process that loads the vocabulary alone, so that a busy
        driver keeps nobody waiting."""
        if model not in self._counters:
            self._counters[model] = counter_for(self._specs[model], self._nursery)
        return self._counters[model]

    def process(self, model: str) -> DriverProcess | None:
        """The living driver of ``model``, if there is one."""
        return self._lives.get(model)

    def start(self, i: ins.StartDriver) -> None:
        self._nursery.start_soon(self._live, i.model, i.gen)

    def decode(self, i: ins.Decode) -> None:
        prompt = i.prompt
        assert isinstance(prompt, tuple)
        messages: tuple[Message, ...] = prompt
        try:
            self._lives[i.model].send(
                p.Generate(
                    key=i.key,
                    messages=messages,
                    max_tokens=i.max_tokens,
                    temperature=i.temperature,
                    seed=i.seed,
                    stop=i.stop,
                    owner=i.owner,
                    logprobs=i.logprobs,
                    schema=i.schema,
                    tools=i.tools,
                    choice=i.choice,
                )
            )
        except IsovistError as e:
            if e.errno is Errno.EPIPE:
                return  # its death is an event of its own, and ends or repeats the same call
            self._dispatch(
                ev.DriverDone(
                    now=self._clock(),
                    model=i.model,
                    gen=i.gen,
                    key=i.key,
                    errno=int(e.errno),
                    message=e.message,
                    field=e.field,
                )
            )

    def abort(self, i: ins.Abort) -> None:
        self._tell(i.model, p.Abort(i.key))

    def pause(self, i: ins.Pause) -> None:
        self._tell(i.model, p.Pause(i.key))

    def resume(self, i: ins.Resume) -> None:
        self._tell(i.model, p.Resume(i.key))

    async def flush(self) -> None:
        """Have every driver drop what it keeps of prompts that came before. What it still works on
        it drops at its end. A driver that dies meanwhile keeps nothing either."""
        async with trio.open_nursery() as nursery:
            for model, process in self._lives.items():
                if process in self._up:
                    nursery.start_soon(self._flush, model, process)

    async def _flush(self, model: str, process: DriverProcess) -> None:
        with suppress(WorldError):  # it is gone, and its memory with it
            await self._ask(model, process, p.Flush)

    async def snapshot(self, model: str, context: Context, path: str, owner: str) -> int:
        """Have the living driver of ``model`` write what it holds of this context to ``path``;
        returns their tokens, 0 where it holds none and wrote nothing. Raises what the driver fails
        with, ``EPIPE`` where it is not up or dies."""
        snapshot = partial(
            p.Snapshot,
            messages=context.messages,
            path=path,
            owner=owner,
            tools=context.tools,
            choice=context.choice,
        )
        return await self._ask(model, self._living(model), snapshot)

    async def restore(self, model: str, path: str, owner: str) -> int:
        """Have the living driver of ``model`` take in a state; returns its tokens, 0 where it has
        no room. Raises as :meth:`snapshot`, ``ESTALE`` for another model file's."""
        restore = partial(p.Restore, path=path, owner=owner)
        return await self._ask(model, self._living(model), restore)

    def _living(self, model: str) -> DriverProcess:
        process = self._lives.get(model)
        if process is None or process not in self._up:
            raise WorldError(f"the driver of {model} is not up", errno=Errno.EPIPE)
        return process

    async def _ask(
        self, model: str, process: DriverProcess, make: Callable[[int], p.ToProcess]
    ) -> int:
        """Have a driver do something with what it keeps; returns for how many tokens."""
        self._last_asked -= 1
        number = self._last_asked
        asked = self._asked[number] = _Asked(process)
        try:
            process.send(make(number))
            with trio.move_on_after(FLUSH_S):
                await asked.done.wait()
            if not asked.done.is_set():
                log.warning("driver does not answer, stopping it", model=model)
                process.kill()
                await asked.done.wait()
        finally:
            del self._asked[number]
        match asked.answer:
            case p.Kept():
                return asked.answer.tokens
            case p.RequestFailed():
                raise error(asked.answer.errno, asked.answer.message)
            case _:
                raise WorldError(f"the driver of {model} is gone", errno=Errno.EPIPE)

    def load(self, model: str) -> p.Load | None:
        """What the driver of ``model`` last said of its slots, cells and memory, while it lives."""
        return self._loads.get(model)

    def _tell(self, model: str, message: p.ToProcess) -> None:
        process = self._lives.get(model)
        if process is not None and process.alive:
            try:
                process.send(message)
            except IsovistError:
                process.kill()

    def stop(self, i: ins.StopDriver) -> None:
        if (process := self._lives.get(i.model)) is not None:
            log.warning("driver does not answer, stopping it", model=i.model)
            process.kill()

    async def _live(self, model: str, gen: int) -> None:
        spec = self._specs[model]
        process = self._lives[model] = DriverProcess(
            *spec.command(),
            keep=spec.endpoint.keep if spec.endpoint else (),
            patience_s=PATIENCE_S,
        )

        def receive(message: p.FromProcess) -> None:
            now = self._clock()
            match message:
                case p.Token():
                    self._dispatch(
                        ev.Token(
                            now=now,
                            model=model,
                            gen=gen,
                            key=message.key,
                            text=message.text,
                            tokens=message.tokens,
                            logprobs=message.logprobs,
                        )
                    )
                case p.Finished():
                    self._dispatch(
                        ev.DriverDone(
                            now=now,
                            model=model,
                            gen=gen,
                            key=message.key,
                            finish=message.finish,
                            output_tokens=message.output_tokens,
                            prompt_tokens=message.prompt_tokens,
                            cached_tokens=message.cached_tokens,
                            prefill_ns=message.prefill_ns,
                            decode_ns=message.decode_ns,
                            calls=message.calls,
                            logprobs=message.logprobs,
                        )
                    )
                case p.RequestFailed() if message.key in self._asked:
                    self._asked[message.key].answered(message)
                case p.RequestFailed():
                    self._dispatch(
                        ev.DriverDone(
                            now=now,
                            model=model,
                            gen=gen,
                            key=message.key,
                            errno=message.errno,
                            message=message.message,
                            retry_ns=message.retry_ns,
                            field=message.field,
                        )
                    )
                case p.Kept() if message.id in self._asked:
                    self._asked[message.id].answered(message)
                case p.Load():
                    self._loads[model] = message
                    load = ModelLoad(
                        slots=message.slots,
                        cells=message.cells,
                        cells_total=message.cells_total,
                        host_bytes=message.host_bytes,
                        host_total=message.host_total,
                    )
                    self._dispatch(ev.DriverLoad(now=now, model=model, gen=gen, load=load))
                case p.Progress():
                    load = ModelLoad(slots=0, loaded=message.fraction)
                    self._dispatch(ev.DriverLoad(now=now, model=model, gen=gen, load=load))
                case p.Up():
                    self._up.add(process)
                    log.info("driver up", model=model, pid=process.pid, detail=message.detail)
                    self._dispatch(
                        ev.DriverUp(
                            now=now,
                            model=model,
                            gen=gen,
                            context=message.context,
                            tokenizer=message.tokenizer,
                            slots=message.slots,
                        )
                    )
                case _:
                    pass

        death = await process.run(receive)
        self._up.discard(process)
        for asked in self._asked.values():
            if asked.process is process:
                asked.done.set()
        if self._lives.get(model) is process:
            del self._lives[model]
            self._loads.pop(model, None)
        log.warning("driver gone", model=model, reason=death.reason)
        log.debug("its last words", model=model, stderr=death.stderr[-3:])
        self._dispatch(
            ev.DriverDied(
                now=self._clock(), model=model, gen=gen, reason=death.reason, fatal=death.fatal
            )
        )
