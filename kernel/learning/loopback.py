"""The learner's way to models: a channel of its own into its own kernel, opened at first use.

So its calls wait in the queues of models, under the same policy and quotas, fallbacks and metering
as anybody's, and the kernel's loop knows no second way to a driver. It attaches as an agent whose
name nobody else can have, asks for the user whose attempt is learned from, and without memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import trio

from isovist.kernel.channels import Pipes
from isovist.kernel.learning.model import ChatModel
from isovist.kernel.learning.roles import Model
from isovist.kernel.state.lessons import LEARNER
from isovist.kernel.state.users import own_user
from isovist.syscalls.aio import AsyncClient, serve
from isovist.syscalls.locate import Line
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Tool


class Loopback:
    """``attach`` opens a channel, ``model`` is who is asked (empty: the default), ``context`` says
    how many tokens it takes."""

    def __init__(
        self,
        attach: Callable[[Pipes], object],
        nursery: trio.Nursery,
        model: str,
        context: Callable[[str], int],
    ) -> None:
        self._attach, self._nursery = attach, nursery
        self.named, self._context = model, context
        self._client: AsyncClient | None = None
        self._opening = trio.Lock()

    def model(self, user: str) -> Model:
        return _Asked(self, user)

    @property
    def context(self) -> int:
        return self._context(self.named)

    async def client(self) -> AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await self._nursery.start(self._serve)
        return self._client

    async def _serve(
        self, *, task_status: trio.TaskStatus[AsyncClient] = trio.TASK_STATUS_IGNORED
    ) -> None:
        theirs_in, ours_out = os.pipe2(os.O_CLOEXEC)
        ours_in, theirs_out = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours_in, False)
        os.set_blocking(ours_out, False)
        self._attach(Pipes(ours_in, ours_out))
        try:
            async with serve(Line(theirs_in, theirs_out)) as client:
                await client.shake_hands(LEARNER)
                task_status.started(client)
                await trio.sleep_forever()
        finally:
            self._client = None


class _Asked:
    """A model, asked on behalf of one user."""

    def __init__(self, loopback: Loopback, user: str) -> None:
        self._loopback, self._user = loopback, user
        self._name = ""

    @property
    def name(self) -> str:
        return self._name or self._loopback.named

    @property
    def context(self) -> int:
        return self._loopback.context

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
    ) -> Chatted:
        client = await self._loopback.client()
        # An agent that is a user of its own is asked for as the learner's own user.
        user = own_user(LEARNER) if self._user.startswith("agent/") else self._user
        model = ChatModel(client, user, model=self._loopback.named, context=self.context)
        answer = await model.ask(
            messages, max_tokens=max_tokens, schema=schema, tools=tools, choice=choice
        )
        self._name = answer.model
        return answer
