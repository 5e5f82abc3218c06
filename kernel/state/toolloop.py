"""The loop of a chat whose tools the kernel calls: ask the model, make its calls, ask again.

Each round passes the gates of :mod:`isovist.kernel.state.toolcalls` as the agent's own calls would.
After the last round the model is asked once more without a choice, so that every chat ends with a
text, or with calls that only the agent can make.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from isovist.kernel.state.answers import TOOLS, check_tools
from isovist.kernel.state.calls import Call, Generation, Loop, Step
from isovist.kernel.state.toolcalls import MOST, SHOWN, check_patterns
from isovist.syscalls import messages as m
from isovist.syscalls.abi.tools import ToolResult, ToolUse
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError
from isovist.syscalls.fence import escape
from isovist.syscalls.records import Message, Tool, ToolCall, ToolMade

if TYPE_CHECKING:
    from isovist.kernel.state.core import State

ROUNDS = 32
"""Most that a chat may ask for."""
LEAST = 400
"""Characters of a result that a model is shown at least, however many there are in a round."""
TURNS = 256 * 1024
"""Characters of all results of a chat: its reply has to fit a frame."""


class ToolLoops:
    def __init__(self, state: State) -> None:
        self._state = state

    def check(self, request: m.Chat) -> None:
        """Raise ``EINVAL`` where what is asked of the loop breaks a rule."""
        check_patterns(request.tools_of, "tools_of")
        if not 0 <= request.loop <= ROUNDS:
            raise CallerError(f"loop must be 0 to {ROUNDS}", field="loop")
        if request.tools_of and request.schema:
            raise CallerError("an answer has a schema or tools, not both", field="schema")

    def begin(self, call: Call) -> None:
        """Find the tools that are to be offered, and let the chat go on with them."""
        request, _ = _parts(call)
        who = self._state.channels[call.channel].who
        call.to(Step.TOOLS, self._state.now, "list")
        servers = self._state.tools.reach(who, request.tools_of)
        self._state.tools.when_up(call, servers, partial(self._offer, call))

    def _offer(self, call: Call) -> None:
        request, generation = _parts(call)
        who = self._state.channels[call.channel].who
        loop = generation.loop = Loop()
        tools = list(request.tools)
        own = {tool.name for tool in tools}
        for info in self._state.tools.listed(who, request.tools_of):
            if info.offered in own:
                continue  # the agent's own tool of that name comes first
            loop.names[info.offered] = info.name
            tools.append(Tool(info.offered, info.description[:SHOWN], info.parameters))
        call.request = replace(request, tools=tuple(tools))
        try:
            if len(tools) > TOOLS:
                raise CallerError(
                    f"tools_of offers {len(loop.names)} tools beside {len(own)}, the limit is "
                    f"{TOOLS}",
                    errno=Errno.EMSGSIZE,
                    field="tools_of",
                )
            check_tools(tools, request.choice)
            self._state.chats.begin(call)
        except IsovistError as e:
            self._state.fail(call, e)

    def goes_on(self, call: Call) -> bool:
        """The model has answered: with calls that the kernel makes now, or not (false)."""
        request, generation = _parts(call)
        loop, calls = generation.loop, generation.calls
        if loop is None or not calls or loop.round >= request.loop or len(calls) > MOST:
            return False
        if any(made.name not in loop.names for made in calls):
            return False
        text = "".join(generation.text)
        loop.round += 1
        loop.prompt_tokens += generation.prompt_tokens
        loop.output_tokens += generation.tokens
        loop.cached += generation.cached
        loop.prefill_ns += generation.prefill_ns
        loop.decode_ns += generation.decode_ns
        if request.stream:
            loop.text.append(text)
        self._state.admission.spent(call, generation.tokens)
        call.to(Step.TOOLS, self._state.now, f"round {loop.round}, {len(calls)} calls")
        loop.turns.append(Message("assistant", text, calls))
        uses = [ToolUse(loop.names[made.name], made.arguments) for made in calls]
        who = self._state.channels[call.channel].who
        then = partial(self._made, call, calls, self._state.now)
        self._state.tools.gather(call, who, uses, then)
        return True

    def _made(
        self, call: Call, calls: tuple[ToolCall, ...], since: int, results: tuple[ToolResult, ...]
    ) -> None:
        """The calls of a round have all ended, in whatever way: show the model how."""
        request, generation = _parts(call)
        loop = generation.loop
        if loop is None:
            raise KernelError("calls of no loop", story=call.told())
        ms = (self._state.now - since) // 1_000_000
        context = self._state.drivers.find(generation.model).context
        said = sum(len(turn.content or "") for turn in loop.turns)
        # A character is a quarter of a token, or so: a round fills a quarter of the context.
        room = max(LEAST, min(context, TURNS - said) // len(calls))
        for made, result in zip(calls, results, strict=True):
            loop.made.append(
                ToolMade(
                    round=loop.round,
                    name=result.name,
                    arguments=made.arguments[:SHOWN],
                    errno=result.errno,
                    message=result.message,
                    failed=result.failed,
                    characters=result.characters,
                    output=result.output,
                    effect=result.effect,
                    ms=ms,
                )
            )
            loop.turns.append(Message("tool", in_words(result, room), call=made.id))
        last = loop.round >= request.loop
        added = 1 + len(calls)
        call.request = replace(
            request,
            messages=(*request.messages, *loop.turns[-added:]),
            choice="none" if last else "auto",
        )
        generation.anew()
        generation.tries, generation.tokens = 0, 0
        self._state.chats.render(call)


def in_words(result: ToolResult, room: int) -> str:
    """A result as a model is shown it: data, in which nothing can pass for the kernel's words."""
    text = result.text
    if result.errno:
        text = f"Error: {result.message}"
    elif result.failed:
        text = f"Error: {text}"
    text = escape(text)
    if len(text) <= room and result.characters <= len(result.text):
        return text or "(no text)"
    return f"{text[:room]}\n(cut: {result.characters} characters in all)"


def _parts(call: Call) -> tuple[m.Chat, Generation]:
    if call.generation is None or not isinstance(call.request, m.Chat):
        raise KernelError("not a chat call", story=call.told())
    return call.request, call.generation
