"""The chat syscall, from its arrival to its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.answers import check_answer, check_turns, in_words, size
from isovist.kernel.state.audit import last_user_turn
from isovist.kernel.state.calls import Call, Generation, Step
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno, KernelError, WorldError
from isovist.syscalls.names import MAX_TEXT, check_barrier, check_kinds, check_name, check_text
from isovist.syscalls.operations import NEXT_ROUND, Outcome, SearchQuery
from isovist.syscalls.records import partition_of

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

DEFAULT_SHARE, DEFAULT_CEILING = 0.15, 1500
"""Default budget: this share of the model's context, at most so many tokens (design §7)."""
CANDIDATES = 24
"""Units that retrieval offers to rendering, which keeps a few of them."""
CHARACTERS = 32
"""No tokenizer makes text shorter than one token for so many characters, on the whole."""
QUERY = 2000
"""Characters of the last user turn that retrieval looks at."""


class Chats:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.Chat: self._chat, m.Models: self._models}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.Rendered: self._rendered}

    def _models(self, channel: Channel, frame: int, request: m.Models) -> None:
        models = self._state.drivers.models(loads=channel.who.operator)
        self._state.reply(channel, frame, m.ModelList(models=models))

    # -- a call's way

    def _chat(self, channel: Channel, frame: int, request: m.Chat) -> None:
        asked, driver = self._state.routing.route(channel.who.agent, request)
        check_chat(request, driver.context)
        self._state.loops.check(request)
        budget = default_budget(request.budget, driver.context)
        if not request.memory or request.units == 0:
            budget = 0
        check_barrier(request.barrier_ms)
        self._state.admission.check(channel.who, request, driver.config.name)
        call = self._state.memory.enter(channel, frame, request)
        self._state.admission.admit(call, driver.config.name, request.max_tokens)
        call.generation = Generation(driver.config.name, budget, asked=asked.config.name)
        self._state.drivers.ensure(driver)
        if request.tools_of:
            self._state.loops.begin(call)
        else:
            self.begin(call)

    def begin(self, call: Call) -> None:
        """All that it offers is known: look up what is in view, or ask at once."""
        request, _ = _parts(call)
        if self.query(call, self._state.calendar()) is None:
            # A call that looks nothing up has no write to wait for.
            self.render(call)
        else:
            self._state.memory.hold(call, request.wait, request.barrier_ms)

    def query(self, call: Call, now: int) -> SearchQuery | None:
        """What to look for: the last user turn; ``None`` where nothing is to be injected."""
        request, generation = _parts(call)
        text = last_user_turn(request)[:QUERY]
        if generation.budget == 0 or not text.strip():
            return None
        return SearchQuery(text=text, k=CANDIDATES, mode="hybrid", now=now, kinds=request.kinds)

    def render(self, call: Call) -> None:
        request, generation = _parts(call)
        driver = self._state.drivers.find(generation.model)
        call.to(Step.RENDER, self._state.now, f"{len(call.selection.candidates)} candidates")
        self._state.emit(
            ins.Render(
                call.key,
                generation.model,
                request.messages,
                call.selection,
                generation.budget,
                request.units,
                request.max_tokens,
                driver.context,
                request.tools,
                request.choice,
            )
        )

    def _rendered(self, event: ev.Rendered) -> None:
        call = self._state.calls.get(event.key)
        if call is None or call.step is not Step.RENDER:
            return
        generation = call.generation
        if generation is None:
            raise KernelError("rendered for no model", story=call.told())
        if event.injected_tokens > generation.budget:
            raise KernelError(
                f"{event.injected_tokens} tokens injected into a budget of {generation.budget}",
                story=call.told(),
            )
        generation.prompt = event.prompt
        generation.prompt_tokens = event.prompt_tokens
        shown = self._state.audits.shown
        generation.injected = tuple(shown(candidate, tokens) for candidate, tokens in event.shown)
        generation.injected_tokens = event.injected_tokens
        generation.counter = event.counter
        if isinstance(call.request, m.Prefetch):
            self._state.recall.rendered(call, event.block)
            return
        self._state.admission.rendered(call, event.prompt_tokens)
        drivers = self._state.drivers
        driver = drivers.find(generation.model)
        drivers.offer(call)
        drivers.ensure(driver)
        drivers.pump(driver)

    def decoded(self, call: Call, done: ev.DriverDone) -> None:
        """The model is done: keep the exchange where asked, then answer."""
        request, generation = _parts(call)
        generation.finish, generation.tokens = done.finish, done.output_tokens
        generation.cached = done.cached_tokens
        # The driver knows how it cut the prompt into tokens; the kernel has counted before.
        generation.prompt_tokens = done.prompt_tokens or generation.prompt_tokens
        generation.prefill_ns, generation.decode_ns = done.prefill_ns, done.decode_ns
        generation.logprobs += done.logprobs
        # Ids of nine letters and digits: the form that every endpoint takes back.
        generation.calls = tuple(
            replace(made, id=self._state.opaque("", call.id, at)[:9])
            for at, made in enumerate(done.calls)
        )
        if self._state.loops.goes_on(call):
            return
        if loop := generation.loop:
            generation.text[:0] = loop.text
            generation.prompt_tokens += loop.prompt_tokens
            generation.tokens += loop.output_tokens
            generation.told = loop.output_tokens
            generation.cached += loop.cached
            generation.prefill_ns += loop.prefill_ns
            generation.decode_ns += loop.decode_ns
        text = in_words("".join(generation.text), generation.calls)
        said = last_user_turn(request)
        if not (request.keep and said.strip() and text.strip()) or call.resolved is None:
            self._answer(call)
            return
        call.to(Step.KEEP, self._state.now)
        exchange = f"User: {said}\nAssistant: {text}".encode(errors="replace")[: MAX_TEXT - 8]
        try:
            self._state.memory.put(
                call,
                partition_of("pair", call.resolved.user, call.agent),
                text=check_text(exchange.decode(errors="ignore")),
                kind="conversation",
                stream="protected",
                session=request.session,
                round=NEXT_ROUND,
            )
        except WorldError as e:
            # The model has answered: a quota does not take the answer away.
            call.tell(self._state.now, f"not kept: {e.message}")
            self.kept(call)

    def kept(self, call: Call, outcome: Outcome | None = None) -> None:
        """The exchange is durable (``None``: not, or not yet, which does not take the answer
        away)."""
        self._answer(call, outcome)

    def _answer(self, call: Call, kept: Outcome | None = None) -> None:
        _, generation = _parts(call)
        if call.resolved is None:
            raise KernelError("an answer for nobody", story=call.told())
        call.leave(self._state.now)
        self._state.audits.record(call, generation.injected)
        self._state.finish(
            call,
            m.Chatted(
                text="".join(generation.text),
                call=call.id,
                model=generation.model,
                user=call.resolved.user,
                rule=call.resolved.rule,
                finish=generation.finish,
                injected=generation.injected,
                budget=generation.budget,
                counter=generation.counter,
                barrier=call.barrier,
                timings=call.timings(self._state.now),
                prompt_tokens=generation.prompt_tokens,
                output_tokens=generation.tokens,
                injected_tokens=generation.injected_tokens,
                kept=kept.id if kept else "",
                secrets=kept.secrets if kept else {},
                cached_tokens=generation.cached,
                calls=generation.calls,
                logprobs=tuple(generation.logprobs),
                made=tuple(generation.loop.made) if generation.loop else (),
                turns=tuple(generation.loop.turns) if generation.loop else (),
            ),
        )


def _parts(call: Call) -> tuple[m.Chat, Generation]:
    if call.generation is None or not isinstance(call.request, m.Chat):
        raise KernelError("not a chat call", story=call.told())
    return call.request, call.generation


def default_budget(asked: int | None, context: int) -> int:
    """Tokens that may be injected where the caller says ``asked``."""
    return min(int(context * DEFAULT_SHARE), DEFAULT_CEILING) if asked is None else asked


def check_chat(request: m.Chat, context: int) -> None:
    """Raise ``EINVAL`` where a field breaks its rule; ``context`` is the model's, in tokens."""
    if not request.messages:
        raise CallerError("messages is empty", field="messages")
    if not any(message.content for message in request.messages):
        raise CallerError("no message has any content", field="messages")
    if (long := size(request)) > context * CHARACTERS:
        # Nobody need count its tokens to know that it cannot fit.
        raise CallerError(
            f"messages and tools have {long} characters, a context of {context} tokens holds fewer",
            errno=Errno.EMSGSIZE,
            field="messages",
        )
    if not 1 <= request.max_tokens <= context:
        raise CallerError(
            f"max_tokens must be 1 to {context}, the model's context", field="max_tokens"
        )
    if not 0.0 <= request.temperature <= 2.0:
        raise CallerError("temperature must be 0 to 2", field="temperature")
    if not 0 <= request.seed < 1 << 32:
        raise CallerError("seed must be 0 to 4294967295", field="seed")
    if len(request.stop) > 8 or not all(1 <= len(s) <= 128 for s in request.stop):
        raise CallerError("stop takes at most 8 strings of 1 to 128 characters", field="stop")
    if request.budget is not None and not 0 <= request.budget <= context:
        raise CallerError(f"budget must be 0 to {context}, the model's context", field="budget")
    if not 0 <= request.units <= 64:
        raise CallerError("units must be 0 to 64", field="units")
    if request.session:
        check_name(request.session, "session")
    check_kinds(request.kinds)
    check_turns(request.messages)
    check_answer(request)
