"""What SQLite leaves behind although ``secure_delete`` is on, and its end.

Where cells move from one page of a tree to its neighbours, the old page keeps their bytes in the
*gap* between its cell pointers and its cells. There they outlive the row: nothing reads them, and
nothing overwrites them either. So the gaps of all pages of trees are overwritten in the file.

That is safe while nobody may write and the log is empty: all of the database is then in its file,
readers never look into gaps, and a crash half-way leaves gaps that are filled or empty, which
means the same. Formats: https://www.sqlite.org/fileformat2.html §1.6 and §1.8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from isovist.storage import schema

_TREE = (1, 5)
"""Types in the pointer map: the root of a tree, and any other page of one."""
_HEADER = {2: 12, 5: 12, 10: 8, 13: 8}
"""By a page's type: the bytes of its header, after which its cell pointers begin."""
_PENDING = 1 << 30
"""The byte whose page no database uses."""


def clear(path: Path, handle: int) -> bool:
    """Overwrite what gaps hold in the database at ``path``, whose log is empty; false where
    somebody has written since: then the log is to be emptied again.

    ``handle`` is the file, open for writing. Its owner closes it after SQLite has: to close any
    handle of a file ends all locks that this process holds on it.
    """
    db = schema.connect(path)
    try:
        db.execute("BEGIN IMMEDIATE")
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:
            db.execute("ROLLBACK")
            return False
        _fill(handle, db.execute("PRAGMA page_size").fetchone()[0])
        # Other connections may have pages in their caches as they were, and would write them back
        # with their next change. Any commit makes them read anew.
        db.execute("UPDATE meta SET value = value WHERE name = 'key'")
        db.execute("COMMIT")
        return True
    finally:
        db.close()


def _fill(handle: int, size: int) -> None:
    for number in _tree_pages(handle, size, os.fstat(handle).st_size // size):
        page = os.pread(handle, size, (number - 1) * size)
        low, high = _gap(page, number)
        if page.count(0, low, high) != high - low:
            os.pwrite(handle, bytes(high - low), (number - 1) * size + low)
    os.fsync(handle)


def _tree_pages(handle: int, size: int, count: int) -> Iterator[int]:
    """The numbers of the pages that belong to trees: page 1, and those that the pointer maps,
    which every file with incremental vacuum has, name as such."""
    yield 1
    stride = size // 5 + 1
    for first in range(2, count + 1, stride):
        at = first + (first == _PENDING // size + 1)
        entries = os.pread(handle, size, (at - 1) * size)
        mapped = range(at + 1, min(first + stride, count + 1))
        for place, number in enumerate(mapped):
            if entries[5 * place] in _TREE:
                yield number


def _gap(page: bytes, number: int) -> tuple[int, int]:
    """From where to where; empty for a page that is not understood."""
    start = 100 if number == 1 else 0
    header = _HEADER.get(page[start])
    if header is None:
        return 0, 0
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    low = start + header + 2 * cells
    high = int.from_bytes(page[start + 5 : start + 7], "big") or 1 << 16
    return (low, high) if low <= high <= len(page) else (0, 0)
