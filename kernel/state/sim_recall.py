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
        self._shown: dict[str, set[str]] = {}
        """By word: the units that were shown before they are forgotten, on whatever page."""
        self._named: dict[str, int] = {}
        """By word: how many units it names."""
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
        if isinstance(request, m.ForgetMatching):
            shown = self._shown.get(request.confirm, set())
            if not op.version:
                return f"{op} takes whatever version there is"
            if op.id not in shown and len(shown) == self._named.get(request.confirm, 0):
                return f"{op} was not shown before"
        return ""

    def matched(self, asked: Asked, reply: m.Matched) -> str:
        """Shown first, then gone: all and only what was named with the word, but what was changed
        meanwhile."""
        request = asked.request
        if isinstance(request, m.ForgetUser):
            return "" if asked.who.operator else "an agent forgets a user"
        if not isinstance(request, m.ForgetMatching):
            return f"{reply} to what forgets nothing"
        if request.confirm:
            return self._went(asked, request.confirm, reply)
        units = {unit.id for unit in reply.units}
        pair = (asked.user, asked.who.agent)
        if any(self.store.owners[unit] != pair for unit in units):
            return f"{reply} shows what is another's"
        page = max(0, min(request.limit, reply.count - request.offset))
        if len(units) != page or bool(reply.count) != bool(reply.confirm) or reply.receipt:
            return f"{reply} counts what it does not show"
        self._shown.setdefault(reply.confirm, set()).update(units)
        self._named[reply.confirm] = reply.count
        return ""

    def _went(self, asked: Asked, word: str, reply: m.Matched) -> str:
        ops = self._gone.pop(id(asked), [])
        if len(ops) != self._named.get(word, 0) or not self._shown[word] <= {op.id for op in ops}:
            return f"{ops} is not what was shown"
        gone = [op for op in ops if self.store.results.get((op.partition, op.seq))]
        if (reply.count, reply.skipped) != (len(gone), len(ops) - len(gone)):
            return f"{reply}, and {len(gone)} of {len(ops)} went"
        if bool(reply.receipt) != bool(gone) or reply.units or reply.confirm:
            return f"{reply}: shown and gone are confused"
        if not all(self.store.shows(op.partition, op.seq, "lexical") for op in ops):
            return f"{reply} before all is gone"
        return ""

    def receipt(self, asked: Asked, reply: m.ReceiptShown) -> str:
        if isinstance(asked.request, m.ReceiptOf) and asked.request.wait and not reply.issued_at:
            return f"{reply} before it is issued"
        gone = set(reply.units) - self.store.reborn
        left = [unit for units in self.store.units.values() for unit in gone & units.keys()]
        return f"a receipt, and {left} are still there" if left else ""
