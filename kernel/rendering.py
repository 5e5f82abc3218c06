"""Prompts, each made in a task of its own: its tokenizer may be slow."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Protocol

import trio

from isovist.kernel import injection
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.tokens import TokenCounter


class Counters(Protocol):
    """Who knows each model's tokenizer."""

    def counter(self, model: str) -> TokenCounter: ...


class Rendering:
    """Carries out ``Render``. ``fail`` ends a call; ``outstanding`` says which calls live.

    Invariant: ``_scopes`` holds all and only the calls whose prompt is being made.
    """

    def __init__(
        self,
        models: Counters,
        nursery: trio.Nursery,
        *,
        outstanding: Callable[[], Container[int]],
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._models, self._nursery, self._outstanding = models, nursery, outstanding
        self._now, self._dispatch, self._fail = now, dispatch, fail
        self._scopes: dict[int, trio.CancelScope] = {}

    def __len__(self) -> int:
        return len(self._scopes)

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {ins.Render: self._begin}

    def _begin(self, i: ins.Render) -> None:
        # Calls that have ended need no prompt any more.
        outstanding = self._outstanding()
        for key in [key for key in self._scopes if key not in outstanding]:
            self._scopes[key].cancel()
        scope = self._scopes[i.key] = trio.CancelScope()
        self._nursery.start_soon(self._render, i, scope)

    async def _render(self, i: ins.Render, scope: trio.CancelScope) -> None:
        counter = self._models.counter(i.model)
        rendered = None
        try:
            with scope:
                rendered = await injection.render(i, counter)
        except Exception as e:
            self._fail(i.key, e)
        finally:
            del self._scopes[i.key]
        if rendered is not None:
            self._dispatch(
                ev.Rendered(
                    now=self._now(),
                    key=i.key,
                    prompt=rendered.messages,
                    prompt_tokens=rendered.prompt_tokens,
                    shown=rendered.shown,
                    injected_tokens=rendered.injected_tokens,
                    counter=counter.name,
                    block=rendered.block,
                )
            )
