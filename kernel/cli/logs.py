"""``log``: what a detached kernel wrote, and with ``-f`` what it writes next."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from isovist.kernel.cli.common import Common, Problem, suggest
from isovist.kernel.cli.show import emit, safe
from isovist.syscalls.errors import Errno

POLL_SECONDS = 0.2
"""How often a followed log is looked at."""


def log(common: Common, *, follow: bool, lines: int) -> int:
    """The last ``lines`` lines (0: all). JSON as the kernel wrote it, pretty on a terminal.

    ``--json`` makes one array of them; with ``follow``, which has no end, an object a line.
    """
    file = common.config.log
    if not file.exists():
        raise Problem(
            f"no log at {file}",
            f"a kernel writes one when started with: {suggest(common, 'up', '-d')}",
            errno=Errno.ENOENT.name,
        )
    with Tail(file) as tail:
        recent: deque[str] = deque(tail.lines(), maxlen=lines or None)
        if common.json and not follow:
            emit([parse(line) for line in recent])
            return 0
        show = _shower(common.json)
        for line in recent:
            show(line)
        while follow:
            for line in tail.lines():
                show(line)
            time.sleep(POLL_SECONDS)
    return 0


class Tail:
    """Whole lines of a file that grows, may be cut, and may give its name to another file.

    Invariant: a line is given out once, when its end has been written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("rb")
        self._rest = b""

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def lines(self) -> Iterator[str]:
        """The lines that have come since the last time."""
        while True:
            # Looked up first: once the name has passed on, nobody writes to the old file.
            newer = self._newer()
            yield from self._read()
            if newer is None:
                return
            self._file.close()
            self._file, self._rest = newer, b""

    def _read(self) -> Iterator[str]:
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        while data := self._file.read(1 << 16):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")

    def _newer(self) -> BinaryIO | None:
        """The file that the name means now, if it is another one."""
        try:
            newer = self._path.open("rb")
        except FileNotFoundError:
            return None
        if os.path.sameopenfile(newer.fileno(), self._file.fileno()):
            newer.close()
            return None
        return newer


def parse(line: str) -> dict[str, Any]:
    """A line as an object; one that is no JSON (a traceback's) becomes its ``event``."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"event": line}


def _shower(json: bool) -> Callable[[str], None]:
    if json:
        return lambda line: emit(parse(line))
    if not sys.stdout.isatty():
        return lambda line: print(line, flush=True)
    from structlog.dev import ConsoleRenderer

    render = ConsoleRenderer(sort_keys=False)

    def show(line: str) -> None:
        try:
            entry = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            print(safe(line, lines=True))
            return
        clean = {k: safe(v, lines=True) if isinstance(v, str) else v for k, v in entry.items()}
        print(render(None, "", clean), flush=True)

    return show
