"""Which unit supersedes which, over all partitions of a store.

Few units do, so this lives in dictionaries. A partition that holds both units, the newer one
without expiry, keeps a mark of its own on the older one's chunks; for all other pairs the newer
unit's partition remembers that it *wanders*, and each query looks whether its view holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isovist.storage.changes import NEVER, Link
from isovist.storage.columns import Part


class Links:
    """Invariants: ``_home`` maps all and only the living units that have a link to their part,
    which watches their slots; a link stays while its newer unit lives."""

    def __init__(self) -> None:
        self._older: dict[int, int] = {}
        self._newer: dict[int, set[int]] = {}
        self._home: dict[int, Part] = {}

    def load(self, links: Iterable[Link]) -> set[int]:
        """Enter links found on disk; gives the units (uids) to :meth:`enter` and :meth:`settle`."""
        for link in links:
            self._older[link.newer] = link.older
            self._newer.setdefault(link.older, set()).add(link.newer)
        return {*self._older, *self._newer}

    def add(self, newer: int, older: int) -> None:
        """``newer`` supersedes ``older``; whichever lives is to be entered, then settled."""
        self._older[newer] = older
        self._newer.setdefault(older, set()).add(newer)

    def watched(self, uid: int) -> bool:
        """Whether a unit is entered."""
        return uid in self._home

    def linked(self, uid: int) -> bool:
        return uid in self._older or uid in self._newer

    def enter(self, uid: int, part: Part, slots: Sequence[int]) -> None:
        """A linked unit lives in ``part``, in these slots."""
        self.leave(uid)
        self._home[uid] = part
        part.watched[uid] = list(slots)

    def leave(self, uid: int) -> None:
        """A linked unit leaves its part (it may be entered again elsewhere)."""
        part = self._home.pop(uid, None)
        if part is not None:
            part.watched.pop(uid, None)
            part.wandering.discard(uid)

    def inherit(self, newer: int, older: int) -> None:
        """``newer``, which superseded a unit that goes, supersedes ``older`` in its place (0: one
        that is here no more). Then that one is to be dropped."""
        part = self._home.get(newer)
        self._unlink(newer)
        if part is not None:
            part.wandering.discard(newer)
        if older:
            self.add(newer, older)
            self._settle_older(older)
        elif not self.linked(newer):
            self.leave(newer)

    def drop(self, uid: int) -> None:
        """A linked unit has left for good: what it superseded stands again, unless another unit
        supersedes it too."""
        self.leave(uid)
        older = self._unlink(uid)
        if older is None:
            return
        self._settle_older(older)
        if not self.linked(older):
            self.leave(older)

    def _unlink(self, newer: int) -> int | None:
        """``newer`` supersedes nothing any more; gives what it did."""
        older = self._older.pop(newer, None)
        if older is not None:
            self._newer[older].discard(newer)
            if not self._newer[older]:
                del self._newer[older]
        return older

    def settle(self, uid: int) -> None:
        """Set marks and wanderers right around ``uid``, as things now stand."""
        if uid in self._newer:
            self._settle_older(uid)
        if uid in self._older:
            self._settle_older(self._older[uid])

    def _settle_older(self, older: int) -> None:
        home = self._home.get(older)
        hide = False
        for newer in self._newer.get(older, ()):
            part = self._home.get(newer)
            if part is None:
                continue
            marked = part is home and self._expires(newer, part) == NEVER
            hide = hide or marked
            (part.wandering.discard if marked else part.wandering.add)(newer)
        if home is not None:
            home.mark(older, hide)

    def _stands(self, newer: int, part: Part, now: int) -> bool:
        """Whether ``newer``, of ``part``, still supersedes at ``now``: it has not expired, or one
        that will inherit from it has not. So a sweep changes nothing here."""
        older = self._older[newer]
        seen, asked = {older}, [newer]
        while asked:
            uid = asked.pop()
            if self._expires(uid, part) > now:
                return True
            seen.add(uid)
            heirs = self._newer.get(uid, set()) - seen
            asked += [heir for heir in heirs if self._home.get(heir) is part]
        return False

    @staticmethod
    def _expires(uid: int, part: Part) -> int:
        return int(part.expires[part.watched[uid][0]])

    def superseded(self, parts: Sequence[Part], now: int) -> dict[int, list[int]]:
        """By place of a part among ``parts``: its slots that a wandering unit of any of them
        hides at ``now``."""
        hidden: dict[int, list[int]] = {}
        places = {part.pid: at for at, part in enumerate(parts)}
        for part in parts:
            for newer in part.wandering:
                if not self._stands(newer, part, now):
                    continue
                older = self._older[newer]
                home = self._home.get(older)
                if home is not None and home.pid in places:
                    hidden.setdefault(places[home.pid], []).extend(home.watched[older])
        return hidden
