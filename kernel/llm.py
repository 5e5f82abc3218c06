"""Models as the shell sees them: a driver process each, and a counter of tokens beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from isovist.kernel.drivers import protocol as p
from isovist.kernel.drivers.supervisor import PATIENCE_S, DriverProcess
from isovist.kernel.models import ModelSpec
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.drivers import ModelConfig
from isovist.kernel.tokens import TokenCounter, counter_for
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.records import Message

log = structlog.get_logger()

PAUSABLE = 32
"""Requests that a driver keeps while they are paused, beside those that it works on."""


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
    ) -> None:
        self._specs = {s.name: s for s in specs}
        # A model that somebody installed comes before the scripted one, which is always there.
        self._default = default or next((s.name for s in specs if s.driver != "scripted"), "")
        self._nursery = nursery
        self._dispatch = dispatch
        self._clock = clock
        self._lives: dict[str, DriverProcess] = {}
        self._counters: dict[str, TokenCounter] = {}
        self._loads: dict[str, p.Load] = {}

    def configs(self) -> list[ModelConfig]:
        return [
            ModelConfig(
                s.name,
                s.driver,
                s.context,
                slots=s.at_a_time,
                default=s.name == self._default,
                pausable=PAUSABLE if s.driver == "llama" else 0,
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
                )
            )

    def abort(self, i: ins.Abort) -> None:
        self._tell(i.model, p.Abort(i.key))

    def pause(self, i: ins.Pause) -> None:
        self._tell(i.model, p.Pause(i.key))

    def resume(self, i: ins.Resume) -> None:
        self._tell(i.model, p.Resume(i.key))

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
        process = self._lives[model] = DriverProcess(
            *self._specs[model].command(), patience_s=PATIENCE_S
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
                        )
                    )
                case p.RequestFailed():
                    self._dispatch(
                        ev.DriverDone(
                            now=now,
                            model=model,
                            gen=gen,
                            key=message.key,
                            errno=message.errno,
                            message=message.message,
                        )
                    )
                case p.Load():
                    self._loads[model] = message
                case p.Up():
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
