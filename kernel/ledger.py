"""The shell's part of the ledger: entries go to the writer, questions to the store at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from isovist.kernel.log import where
from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.writer import Writer
from isovist.storage.backend import Backend
from isovist.syscalls.errors import IsovistError, KernelError

log = structlog.get_logger()


class Ledger:
    """Carries out ``Enter`` and ``Ask``."""

    def __init__(
        self,
        store: Backend,
        writer: Writer,
        *,
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
    ) -> None:
        self._store, self._writer = store, writer
        self._now, self._dispatch = now, dispatch

    def instructions(self) -> dict[type[ins.Instruction], Callable[[Any], None]]:
        return {
            ins.Enter: lambda i: self._writer.enter(i.entry, partial(self._tell, i.number)),
            ins.Ask: self._ask,
        }

    def _ask(self, i: ins.Ask) -> None:
        answer: object
        try:
            answer = self._store.ask(i.question)
        except IsovistError as e:
            answer = e
        except Exception as e:
            log.error("broken rule", rule="the ledger raises typed errors only", why=where(e))
            answer = KernelError(f"the ledger broke: {type(e).__name__}")
        self._tell(i.number, answer)

    def _tell(self, number: int, answer: object) -> None:
        if isinstance(answer, IsovistError):
            self._dispatch(
                ev.NotEntered(
                    now=self._now(),
                    number=number,
                    errno=int(answer.errno),
                    message=answer.message,
                    field=answer.field,
                )
            )
        else:
            self._dispatch(ev.Entered(now=self._now(), number=number, answer=answer))
