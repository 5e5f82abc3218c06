"""Output: one JSON value for programs, calm text for people.

Texts of memories and agents are data: before they reach a terminal, whatever could move its
cursor or change its colours becomes U+FFFD.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 10_000
"""Columns where the reader is a program: nothing is wrapped or cut."""


def emit(value: object) -> None:
    """Print ``value`` as the one JSON value on standard output; Structs become objects."""
    import msgspec

    data = msgspec.json.encode(plain(value))
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def plain(value: object) -> Any:
    """``value`` with its Structs as dicts. (On the wire many are arrays, for which no program
    that reads our output should have to know the order.)"""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def say(text: str = "", style: str = "") -> None:
    """A line (or several) for people on standard output."""
    if style:
        console().print(text, style=style)
    else:
        print(text)


def note(text: str) -> None:
    """A line for people on standard error, beside whatever standard output holds."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under bold heads. A column whose head starts with ``>`` is flush right."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        grid.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        grid.add_row(*(safe(str(cell)) for cell in row))
    console().print(grid)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """``name  value`` lines, names dimmed; pairs with an empty value are left out."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value not in ("", None):
            grid.add_row(name, safe(str(value), lines=True))
    console().print(grid)


def console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)


def safe(text: str, *, lines: bool = False) -> str:
    """``text`` without what a terminal would obey; on one line unless ``lines``."""
    if not lines:
        text = " ".join(text.split())
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def brief(text: str, limit: int = 60) -> str:
    """The first words of ``text``, at most ``limit`` characters."""
    text = safe(text)
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    return (cut.rpartition(" ")[0] or cut) + "…"


def moment(ns: int) -> str:
    """Nanoseconds since 1970 as local time."""
    return datetime.fromtimestamp(ns / 1e9, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ms(value: float) -> str:
    """Milliseconds with as many digits as matter."""
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"
