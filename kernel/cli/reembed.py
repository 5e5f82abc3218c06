"""``memory reembed``: all vectors anew, with another embedder, beside a running kernel."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from isovist.kernel.cli.common import Common, Problem, suggest
from isovist.kernel.cli.show import emit, note, safe, say
from isovist.kernel.lock import Lock
from isovist.syscalls.errors import Errno, WorldError

if TYPE_CHECKING:
    from isovist.storage.reembed import Progress


def reembed(common: Common, kind: str) -> int:
    """Fill the next vectors, and put them in place unless a kernel runs on the old ones."""
    # Before numpy is imported for the first time: a kernel may need the other core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from isovist.storage import reembed as storage
    from isovist.storage.embedder import make_embedder

    config = common.config
    kind = kind or config.settings.embedder
    if not config.database.exists():
        raise Problem(
            f"there is no store at {config.database}",
            f"{suggest(common, 'up', '-d')} makes one",
            errno=Errno.ENOENT.name,
        )
    embedder = make_embedder(kind)
    progress, swapped = storage.Progress(0, 0), True
    if storage.current_space(config.database) != (embedder.name, embedder.dim):
        progress = storage.reembed(config.database, embedder, _show)
        swapped = _swap(common, embedder.name, embedder.dim)
    if common.json:
        emit({"embedder": embedder.name, "chunks": progress.total, "embedded": progress.done,
              "swapped": swapped})  # fmt: skip
    elif swapped:
        say(f"the store's vectors are of {safe(embedder.name)}")
    else:
        say(f"{progress.done} chunks have a vector of {safe(embedder.name)}")
        note(
            "the running kernel keeps the old ones; the next start with the new embedder takes"
            f" these: {suggest(common, 'down')}, then {suggest(common, 'up', '--embedder', kind)}"
        )
    return 0


def _swap(common: Common, name: str, dim: int) -> bool:
    """Put the next vectors in place; false where a kernel holds the store."""
    from isovist.storage import schema
    from isovist.storage.reembed import settle_space

    try:
        file = common.config.database
        with Lock(common.config.lock, file), closing(schema.open_file(file)) as db:
            settle_space(db, name, dim)
    except WorldError as e:
        if e.errno is Errno.EEXIST:
            return False
        raise
    return True


def _show(progress: Progress) -> None:
    """The state of things on a terminal's one line."""
    if sys.stderr.isatty():
        end = "\n" if progress.done >= progress.total else ""
        sys.stderr.write(f"\r{progress.done} of {progress.total} chunks embedded{end}")
        sys.stderr.flush()
