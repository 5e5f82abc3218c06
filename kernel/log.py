"""Logging: pretty on a terminal, JSON elsewhere. No memory text at the default level."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

import structlog


def configure(stream: TextIO, level: str = "info") -> None:
    """Send all logging of this process to ``stream``, one line an event."""
    pretty = stream.isatty()
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if pretty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Unfailing(stream))),
        cache_logger_on_first_use=False,
    )


class _Unfailing:
    """A stream that loses lines rather than raise: a full disk must not end who tells of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def where(e: Exception) -> list[str]:
    """Type and places of an exception, without its words: they may quote memory."""
    frames = traceback.extract_tb(e.__traceback__)
    return [type(e).__name__, *(f"{f.filename}:{f.lineno} {f.name}" for f in frames[-4:])]


def rotate(file: Path, limit: int = 16 << 20) -> None:
    """Keep one older log; called before the log is opened."""
    if file.exists() and file.stat().st_size > limit:
        file.replace(file.with_suffix(".log.1"))
