"""The judge's books on looking back and on forgetting: what was shown before it went, and what
is left when a receipt says that nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isovist.kernel.state.sim_world import Store
from isovist.syscalls import messages as m
from isovist.syscalls.operations import Drop

if TYPE_CHECKING:
    from isovist.kernel.state.sim_judge import Asked

Recalled = m.Rounds | m.Files | m.Prefetched


class RecallBooks:
    """Each method gives the rule that is broken, or an empty text."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._shown: dict[str, frozenset[str]] = {}
        """By word: the units that were shown before they are forgotten."""
        self._gone: dict[int, list[Drop]] = {}
        """By call (its identity): the units that it removes."""

    def recalled(self, asked: Asked, reply: Recalled, view: set[object]) -> str:
        """A recall shows units of the reader's view, and no more than was asked for."""
        request = asked.request
        if isinstance(reply, m.Files) and isinstance(request, m.MemoryFiles):
            if any(len(file.text) > request.limit for file in reply.files):
                return "too long a file"
        elif isinstance(reply, m.Prefetched):
            if reply.injected_tokens > reply.budget:
                return "more tokens than the budget"
        elif isinstance(reply, m.Rounds):
            if any(view.isdisjoint(self.store.places[r.unit]) for r in reply.rounds):
                return f"{reply} out of another view"
            return self._rounds(request, reply)
        return ""

    @staticmethod
    def _rounds(request: m.Request | None, reply: m.Rounds) -> str:
        rounds = [(shown.session, shown.round) for shown in reply.rounds]
        if isinstance(request, m.MemorySearch) and (
            len(set(rounds)) < len(rounds) or len(rounds) > request.k
        ):
            return "a round twice, or too many"
        if isinstance(request, m.MemoryRead):
            if not rounds:
                return "a reading of nothing is no error"
            if any(abs(number - request.round) > request.window for _, number in rounds):
                return "rounds outside the window"
        size = sum(len(shown.text) for shown in reply.rounds)
        if isinstance(request, m.FullContext) and size > request.limit:
            return "more context than asked for"
        return ""

    def drop(self, asked: Asked, op: Drop) -> str:
        self._gone.setdefault(id(asked), []).append(op)
        if not op.receipt:
            return f"{op} without a receipt"
        request = asked.request
        shown = self._shown.get(getattr(request, "confirm", ""), frozenset())
        if isinstance(request, m.ForgetMatching) and op.id not in shown:
            return f"{op} was not shown before"
        return ""

    def matched(self, asked: Asked, reply: m.Matched) -> str:
        """Shown first, then gone: all and only what was shown with the word."""
        request = asked.request
        if isinstance(request, m.ForgetUser):
            return "" if asked.who.operator else "an agent forgets a user"
        if not isinstance(request, m.ForgetMatching):
            return f"{reply} to what forgets nothing"
        if bool(request.confirm) != bool(reply.receipt):
            return f"{reply}: shown and gone are confused"
        if reply.receipt:
            ops = self._gone.pop(id(asked), [])
            if {op.id for op in ops} != self._shown.get(request.confirm, frozenset()):
                return f"{ops} is not what was shown"
            if not all(self.store.shows(op.partition, op.seq, "lexical") for op in ops):
                return f"{reply} before all is gone"
            return ""
        units = frozenset(unit.id for unit in reply.units)
        pair = (asked.user, asked.who.agent)
        if any(self.store.owners[unit] != pair for unit in units):
            return f"{reply} shows what is another's"
        if len(units) != reply.count or bool(units) != bool(reply.confirm):
            return f"{reply} counts what it does not show"
        self._shown[reply.confirm] = units
        return ""

    def receipt(self, asked: Asked, reply: m.ReceiptShown) -> str:
        if isinstance(asked.request, m.ReceiptOf) and asked.request.wait and not reply.issued_at:
            return f"{reply} before it is issued"
        gone = set(reply.units) - self.store.reborn
        left = [unit for units in self.store.units.values() for unit in gone & units.keys()]
        return f"a receipt, and {left} are still there" if left else ""
