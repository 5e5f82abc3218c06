"""A desk whose ledger is a real one, over tables in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from state_helpers import Desk

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.storage.ledger import KeepsLedger
from isovist.storage.schema import LEDGER
from isovist.syscalls import messages as m
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.ledger import Entry


class Tables(KeepsLedger):
    """``broken``: the disk refuses every entry."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        for statement in LEDGER:
            self._db.execute(statement)
        self.broken = False

    @contextmanager
    def _learning(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        if write and self.broken:
            raise IsovistError("full", errno=Errno.ENOSPC)
        if write:
            self._db.execute("BEGIN")
        yield self._db
        if write:
            self._db.execute("COMMIT")

    def one(self, entry: Entry) -> Any:
        """Its answer, or the error raised that refused it."""
        (answer,) = self.enter([entry])
        if isinstance(answer, IsovistError):
            raise answer
        return answer

    def close(self) -> None:
        self._db.close()


class LedgerDesk(Desk):
    """``call`` asks and lets the ledger answer until it is asked no more; entries are answered in
    order, questions at once. ``hold``: entries gather in ``held`` until :meth:`settle`."""

    def __init__(self, tables: Tables, **more: Any) -> None:
        self.tables = tables
        self.hold = False
        self.held: list[ins.Enter] = []
        self.said: list[ins.Instruction] = []
        super().__init__(**more)

    def tell(self, event: type[ev.Event], **fields: Any) -> list[ins.Instruction]:
        return self._carry_out(super().tell(event, **fields))

    def within(self, work: Callable[[], None]) -> None:
        """Do what another module of the state would do while it handles an event."""
        out: list[ins.Instruction] = []
        self.state._out = out
        work()
        self._carry_out(out)

    def _carry_out(self, out: list[ins.Instruction]) -> list[ins.Instruction]:
        self.said += out
        for asked in [i for i in out if isinstance(i, ins.Enter | ins.Ask)]:
            if isinstance(asked, ins.Ask):
                self._answer(asked.number, self.tables.ask(asked.question))
            elif self.hold:
                self.held.append(asked)
            else:
                self._enter(asked)
        return out

    def settle(self) -> None:
        """The ledger does what was held back."""
        self.hold = False
        held, self.held = self.held, []
        for asked in held:
            self._enter(asked)

    def _enter(self, asked: ins.Enter) -> None:
        try:
            (answer,) = self.tables.enter([asked.entry])
        except IsovistError as e:
            answer = e
        self._answer(asked.number, answer)

    def _answer(self, number: int, answer: object) -> None:
        if isinstance(answer, IsovistError):
            self.tell(ev.NotEntered, number=number, errno=int(answer.errno),
                      message=answer.message, field=answer.field)  # fmt: skip
        else:
            self.tell(ev.Entered, number=number, answer=answer)

    def call(self, channel: int, request: m.Request) -> Any:
        """The last word on it so far, or ``None``."""
        self.said = []
        self.ask(channel, request)
        return self.word()

    def word(self, frame: int | None = None) -> Any:
        """The last word on a frame (default: the newest) since the last ``call``."""
        frame = self.frame if frame is None else frame
        words = [i.message for i in self.said if isinstance(i, ins.Reply) and i.call == frame]
        return words[-1] if words else None
