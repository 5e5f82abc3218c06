"""Export and import as JSON lines, backups of the running store, and their return."""

from __future__ import annotations

import sys
import tempfile
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO

from isovist.kernel.cli.common import Common, Problem, attach, suggest
from isovist.kernel.cli.show import emit, note, say
from isovist.syscalls.client import Client, Pending
from isovist.syscalls.messages import Import, Imported

BATCH, BATCH_BYTES = 100, 700_000
"""Lines of one import call, so that none holds the kernel up for long, and their bytes: a request
must fit a frame."""
LONGEST = 900_000
"""Bytes of a line: more fit no request, and no line of an export has as many."""
BOM = b"\xef\xbb\xbf"
"""What some programs put before the first line."""


def export(common: Common, *, user: str) -> int:
    """Lines on standard output, oldest first, so that an import keeps the order."""
    # The kernel gives the newest first: lines wait in a file until the oldest is there.
    with tempfile.TemporaryFile() as spool:
        ends = array("q", (0,))
        with attach(common) as kernel:
            for line in kernel.export(user or None):
                ends.append(ends[-1] + spool.write(line.encode() + b"\n"))
        for place in range(len(ends) - 1, 0, -1):
            spool.seek(ends[place - 1])
            sys.stdout.write(spool.read(ends[place] - ends[place - 1]).decode())
    sys.stdout.flush()
    note(f"exported: {len(ends) - 1}")
    return 0


def import_(common: Common, file: str) -> int:
    """Take in the lines of ``file`` (empty: standard input); 1 where any was not taken."""
    stored = known = 0
    failed: list[str] = []
    with attach(common) as kernel, _opened(file) as lines:
        for batch, done in imported(kernel, _batches(lines, failed)):
            stored, known = stored + done.stored, known + done.known
            for why in done.failed:
                place, _, rest = why.removeprefix("line ").partition(": ")
                failed.append(f"line {batch[int(place)][0]}: {rest}")
    failed.sort(key=lambda why: int(why.removeprefix("line ").partition(":")[0]))
    if common.json:
        emit({"stored": stored, "known": known, "failed": failed})
    else:
        say(f"stored: {stored}, known already: {known}, not taken: {len(failed)}")
        for why in failed:
            note(why)
    return 1 if failed else 0


def imported(
    kernel: Client, batches: Iterable[list[tuple[int, str]]]
) -> Iterator[tuple[list[tuple[int, str]], Imported]]:
    """Each batch of numbered lines with what became of it. The next one is with the kernel already
    while one is stored: it never waits for us."""
    waiting: deque[tuple[list[tuple[int, str]], Pending]] = deque()
    for batch in batches:
        lines = tuple(text for _, text in batch)
        waiting.append((batch, kernel.submit(Import(lines=lines, deadline_ms=600_000))))
        if len(waiting) > 1:
            yield _result(*waiting.popleft())
    while waiting:
        yield _result(*waiting.popleft())


def _result(
    batch: list[tuple[int, str]], pending: Pending
) -> tuple[list[tuple[int, str]], Imported]:
    done = pending.result()
    assert isinstance(done, Imported)
    return batch, done


def _opened(file: str) -> BinaryIO:
    return Path(file).open("rb") if file else sys.stdin.buffer


def _batches(source: BinaryIO, failed: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Lines with their numbers, by batches; empty lines count and are left out. What is no text
    is told in ``failed``."""
    batch: list[tuple[int, str]] = []
    size = 0
    for number, line in enumerate(_lines(source), 1):
        try:
            text = _text(line)
        except ValueError as e:
            failed.append(f"line {number}: {e}")
            continue
        if not text:
            continue
        room = len(line) + 5
        if batch and (len(batch) == BATCH or size + room > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((number, text))
        size += room
    if batch:
        yield batch


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Line after line, the first without its mark; of one that is too long a beginning that is
    too long as well, so that no file fills the memory."""
    first = True
    while line := source.readline(LONGEST + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(LONGEST)
        yield line.removeprefix(BOM) if first else line
        first = False


def _text(line: bytes) -> str:
    """Raises :class:`ValueError` in words for people."""
    if len(line) > LONGEST:
        raise ValueError(f"longer than {LONGEST} bytes, as no line of an export is")
    try:
        return line.decode().strip()
    except UnicodeDecodeError as e:
        raise ValueError(f"not UTF-8: byte {line[e.start]:#04x} at {e.start}") from None


def backup(common: Common, path: Path) -> int:
    with attach(common) as kernel:
        done = kernel.backup(str(path.absolute()), deadline_ms=3_600_000)
    if common.json:
        emit({"path": done.path, "bytes": done.bytes})
    else:
        say(f"backup of {done.bytes:,} bytes in {done.path}")
    return 0


def restore(common: Common, path: Path) -> int:
    """Put a backup into a state folder that has no store yet, while no kernel runs there."""
    from isovist.kernel.lock import Lock
    from isovist.storage.backup import backup as copy

    database = common.config.database
    with Lock(common.config.lock):
        if database.exists():
            raise Problem(
                f"{database}: there is a store already, which is not replaced",
                "restore into another folder with --state, or move that one away",
                errno="EEXIST",
            )
        from isovist.storage.backup import contents

        if (long := contents(database)).is_dir() and not any(long.iterdir()):
            long.rmdir()  # a start left it, and the store is gone
        for left in ("-wal", "-shm"):
            # Of a store that somebody removed: it must not be taken for this one's.
            with suppress(FileNotFoundError):
                database.with_name(database.name + left).unlink()
        size = copy(path, database)
        _restored(common)
    if common.json:
        emit({"path": str(database), "bytes": size})
    else:
        say(f"restored {size:,} bytes to {database}")
        say(f"start it with: {suggest(common, 'up', '-d')}")
    return 0


def _restored(common: Common) -> None:
    """Have the chronicle go on over the store that was put back, and say so: where its file is
    here still it may be ahead of the store, and where it is not it begins anew."""
    import time

    from isovist.storage import schema
    from isovist.storage.chronicle import Chronicle, Noted, TablesOnly

    with closing(schema.open_file(common.config.database)) as db:
        keeper = TablesOnly(db)
        detail = {"lines": str(keeper.head().number)}
        if not common.config.chronicle.exists():
            keeper.begin_anew()
        chronicle = Chronicle(common.config.chronicle, keeper)
        detail |= chronicle.open()
        chronicle.append(
            [Noted(at=time.time_ns(), kind="restore", actor="operator", subject="store",
                   detail=detail)]
        )  # fmt: skip
