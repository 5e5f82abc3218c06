"""What agents use of the host: measured beside the loop, every few seconds, for their quotas."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import structlog
import trio

from isovist.kernel.confinement.workspace import folder
from isovist.kernel.log import where
from isovist.kernel.state import events as ev

log = structlog.get_logger()

PAUSE_S = 0.5
"""Seconds between two looks, at least."""
SHARE = 20
"""A look takes no more than one part in so many of a core's time: after a long one the pause is
longer."""
BLOCK = 16384
"""Bytes that an entry of a folder counts as, at least: a million empty files fill a disk too, and
the usual file system has an inode for so many bytes."""


class Gauges(Protocol):
    """Who knows the processes of the host; see :class:`isovist.kernel.spawner.Spawner`."""

    def usage(self, pid: int) -> tuple[float, int] | None: ...


class Usage:
    """``running`` are the kernel's numbers of living processes, ``watched`` the agents whose
    workspace has a limit, with the limit; ``kept`` says how many bytes of an agent's files the
    kernel keeps."""

    def __init__(
        self,
        gauges: Gauges,
        workspaces: Path,
        *,
        running: Callable[[], Iterable[int]],
        watched: Callable[[], Mapping[str, int]],
        kept: Callable[[str], int],
        now: Callable[[], int],
        dispatch: Callable[[ev.Event], None],
    ) -> None:
        self._gauges, self._workspaces = gauges, workspaces
        self._running, self._watched, self._kept = running, watched, kept
        self._now, self._dispatch = now, dispatch

    async def run(self) -> None:
        took = 0.0
        while True:
            await trio.sleep(max(PAUSE_S, SHARE * took))
            pids, watched = list(self._running()), dict(self._watched())
            if not (pids or watched):
                continue
            began = trio.current_time()
            try:
                usage, workspaces = await trio.to_thread.run_sync(self._look, pids, watched)
                # Of the store's reader, which is the loop's.
                workspaces = {agent: n + self._kept(agent) for agent, n in workspaces.items()}
            except Exception as e:
                log.error("broken rule", rule="what agents use can be measured", why=where(e))
                continue
            took = trio.current_time() - began
            self._dispatch(ev.Sampled(now=self._now(), usage=usage, workspaces=workspaces))

    def _look(
        self, pids: list[int], watched: dict[str, int]
    ) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
        usage: dict[int, tuple[int, int]] = {}
        for pid in pids:
            found = self._gauges.usage(pid)
            if found is not None:
                usage[pid] = round(found[0] * 1e9), found[1]
        workspaces = {
            agent: size(folder(self._workspaces, agent), 2 * limit)
            for agent, limit in watched.items()
        }
        return usage, workspaces


def size(top: Path, enough: int) -> int:
    """Bytes that the files below ``top`` take on the disk; of more than ``enough`` it is not told
    how many. Links are not followed, and what goes meanwhile is not counted."""
    total, left = 0, [os.fspath(top)]
    while left and total <= enough:
        try:
            entries = os.scandir(left.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                except OSError:
                    continue
                total += max(BLOCK, found.st_blocks * 512)
                if total > enough:
                    break
    return total
