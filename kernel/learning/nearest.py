"""The neighbours of an entry, by the search that the store has.

The store's search shows of equal texts one, the newest: an entry hides those that say the same word
for word. They are the surest twins, so they are looked for beside: among what was said before and
after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from isovist.kernel.state.lessons import Held
from isovist.syscalls.operations import SearchQuery
from isovist.syscalls.records import Mode, Unit

Search = Callable[[SearchQuery], Awaitable[Sequence[Unit]]]
"""Units of one destination, best first. It makes the query's vector where its mode needs one."""


def text_of(held: Held) -> str:
    """An entry as the unit that it is stored as."""
    return f"{held.situation}\n{held.lesson}"


async def nearest(search: Search, held: Held, k: int, now: int) -> list[Held]:
    """At most ``k`` other entries of the stream of ``held``, nearest first: those with the very
    same text, then those that both legs find. ``now`` in ns since 1970 UTC."""
    text = text_of(held)

    async def found(k: int, mode: Mode, *, since: int | None, until: int | None) -> list[Unit]:
        query = SearchQuery(text=text, k=k, mode=mode, now=now, since=since, until=until,
                            kinds=("lesson",), lexical_only=mode == "bm25")  # fmt: skip
        return [unit for unit in await search(query) if unit.stream == held.stream]

    # Of a destination that holds both streams, either may fill the first half.
    units = await found(2 * k, "hybrid", since=None, until=None)
    said = next((unit.said_at for unit in units if unit.id == held.id), None)
    if said is not None:  # it is shown itself, so an equal one is hidden
        before = await found(1, "bm25", since=None, until=said)
        after = await found(1, "bm25", since=said + 1, until=None)
        units = [unit for unit in (*before, *after) if unit.text == text] + units
    others = {unit.id: unit for unit in units if unit.id != held.id}
    return [_held(unit) for unit in others.values()][:k]


def _held(unit: Unit) -> Held:
    situation, _, lesson = unit.text.partition("\n")
    return Held(
        id=unit.id,
        version=unit.version,
        situation=situation,
        lesson=lesson,
        scope=unit.scope,
        stream="protected" if unit.stream == "protected" else "reusable",
    )
