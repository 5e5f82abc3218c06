"""The loop of a chat through a whole kernel: a real model calls a real server, by a grammar."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio
from driver_helpers import real_model
from kernel_helpers import client, running, short_folder

from isovist.kernel.models import SCRIPTED, ModelSpec
from isovist.kernel.tools.config import ToolSettings
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.records import Message, ToolRule

HANGS_S = 600
ASKED = "What time is it in Tokyo now? Its timezone is Asia/Tokyo."
TIME = ToolSettings(
    command=(sys.executable, "-m", "mcp_server_time", "--local-timezone", "Europe/Rome"),
    approve=("get_current_time",),
)


async def test_an_agent_calls_a_real_server_through_a_real_model() -> None:
    pytest.importorskip("mcp", reason="needs the extra: pip install 'isovist[mcp]'")
    spec = ModelSpec(name="real", driver="llama", path=real_model(), context=2048)
    with short_folder() as folder, trio.fail_after(HANGS_S):
        async with (
            running(Path(folder), models=[spec, SCRIPTED], model="real", tools={"time": TIME}) as (
                kernel
            ),
            client(kernel, "operator", operator=True) as k,
            client(kernel, "clerk") as clerk,
            client(kernel, "guest") as guest,
        ):
            await k.grant("clerk", tools=(ToolRule("time.get_current_time"),))
            replies = []

            async def ask() -> None:
                replies.append(
                    await clerk.chat(
                        (Message("user", ASKED),),
                        tools_of=("time.*",),
                        choice="time__get_current_time",
                        loop=1,
                        max_tokens=48,
                        memory=False,
                        deadline_ms=HANGS_S * 1000,
                    )
                )

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                while not (waiting := (await k.tools_approvals()).approvals):
                    assert not replies, replies
                    await trio.sleep(0.05)
                (one,) = waiting
                # The grammar of the tool's schema has bound what the model wrote.
                arguments = json.loads(one.arguments)
                assert set(arguments) == {"timezone"}
                await k.tools_answer(one.id, True, one.digest)
            (reply,) = replies
            (made,) = reply.made
            assert (made.name, made.errno, made.round) == ("time.get_current_time", 0, 1)
            assert json.loads(made.arguments) == arguments
            turn, result = reply.turns
            assert turn.calls[0].name == "time__get_current_time"
            if not made.failed:  # a small model may have named a zone that there is not
                assert json.loads(result.content or "")["timezone"] == arguments["timezone"]
            assert reply.text
            assert reply.calls == ()

            # Another agent is not offered it, and cannot make its model call it.
            with pytest.raises(CallerError) as e:
                await guest.chat(
                    ASKED, tools_of=("time.*",), choice="time__get_current_time", memory=False
                )
            assert (e.value.errno, e.value.field) == (Errno.EINVAL, "choice")
