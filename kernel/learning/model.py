"""The model of learning, reached as any program reaches one: by the kernel's chat syscall."""

from __future__ import annotations

from collections.abc import Sequence

from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Tool

DEADLINE_MS = 600_000
"""How long one answer may take, in milliseconds: learning is in nobody's way."""


class ChatModel:
    """``model`` (empty: the kernel's default) through ``client``, on behalf of ``user``, without
    memory: what is learned from is in the messages, and nothing else. Made by :meth:`reach`."""

    def __init__(
        self,
        client: AsyncClient,
        user: str,
        *,
        model: str = "",
        context: int = 0,
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        self._client, self._user, self._model = client, user, model
        self._context, self._deadline_ms = context, deadline_ms
        self._name = ""

    @classmethod
    async def reach(
        cls, client: AsyncClient, user: str, model: str = "", deadline_ms: int = DEADLINE_MS
    ) -> ChatModel:
        """The model with the context that the kernel knows of it; one that it does not know is
        refused when it is asked."""
        known = (await client.models(user=user)).models
        meant = [one for one in known if (one.name == model if model else one.default)]
        context = meant[0].context if meant else 0
        return cls(client, user, model=model, context=context, deadline_ms=deadline_ms)

    @property
    def name(self) -> str:
        return self._name

    @property
    def context(self) -> int:
        """In tokens; 0 where it is not known yet."""
        return self._context

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
    ) -> Chatted:
        reply = await self._client.chat(
            messages,
            model=self._model,
            memory=False,
            temperature=0.0,
            max_tokens=max_tokens,
            schema=schema,
            tools=tuple(tools),
            choice=choice,
            user=self._user,
            deadline_ms=self._deadline_ms,
        )
        self._name = reply.model
        return reply
