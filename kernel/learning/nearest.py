"""The neighbours of an entry, by the search that the store has.

The store's search shows of equal texts one, the newest: an entry hides those that say the same word
for word. They are the surest twins, so they are looked for beside: among what was said before and
after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from isovist.kernel.state.lessons import Held, entry_text, parts_of
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import Unit

KINDS = ("lesson",)
SEARCHES = 9
"""For equal texts, at most: they find four."""

Search = Callable[[SearchQuery], Awaitable[Sequence[Unit]]]
"""Units of one destination, best first. It makes the query's vector where its mode needs one."""


async def nearest(search: Search, held: Held, k: int, now: int) -> list[Held]:
    """At most ``k`` other entries of the stream of ``held``, nearest first: those with the very
    same text, then those that both legs find. ``now`` in ns since 1970 UTC."""
    text = entry_text(held.situation, held.lesson)
    # Of a destination that holds both streams, either may fill the first half.
    found = await search(SearchQuery(text=text, k=2 * k, mode="hybrid", now=now, kinds=KINDS))
    shown = next((unit for unit in found if unit.text == text), None)
    equal = await _equal(search, shown, now) if shown else []
    others = {
        unit.id: unit
        for unit in (*equal, *found)
        if unit.stream == held.stream and unit.id != held.id
    }
    return [_held(unit) for unit in others.values()][:k]


async def _equal(search: Search, shown: Unit, now: int) -> list[Unit]:
    """Units with the text of ``shown``, which hides them: of what was said before and after each
    that is known, the one that is shown then."""
    equal = [shown]
    windows: list[tuple[int | None, int | None]] = [
        (None, shown.said_at),
        (shown.said_at + 1, None),
    ]
    for _ in range(SEARCHES):
        if not windows:
            break
        since, until = windows.pop()
        query = SearchQuery(text=shown.text, k=1, mode="bm25", now=now, since=since, until=until,
                            kinds=KINDS, lexical_only=True)  # fmt: skip
        equals = [unit for unit in await search(query) if unit.text == shown.text]
        for unit in equals:
            equal.append(unit)
            windows += [(since, unit.said_at), (unit.said_at + 1, until)]
    return equal


def _held(unit: Unit) -> Held:
    situation, lesson = parts_of(unit.text)
    return Held(
        id=unit.id,
        version=unit.version,
        situation=situation,
        lesson=lesson,
        scope=unit.scope,
        stream="protected" if unit.stream == "protected" else "reusable",
    )
