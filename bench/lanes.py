"""*Lanes*: pipe pairs whose near ends one load generator holds, as so many agents would, and
whose far ends a child process serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bench import ROOT, SOURCE


class Lane:
    """The agent's end of a channel: its name and two descriptors, non-blocking."""

    def __init__(self, agent: str, reader: int, writer: int) -> None:
        self.agent, self.reader, self.writer = agent, reader, writer
        for fd in (reader, writer):
            os.set_blocking(fd, False)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class LanePairs:
    """Pipe pairs: ``ours`` for the load, ``theirs`` (agent, read fd, write fd) for a server.
    Closed on exit; theirs as soon as a server has them."""

    def __init__(self, agents: Sequence[str]) -> None:
        self.ours: list[Lane] = []
        self.theirs: list[tuple[str, int, int]] = []
        for agent in agents:
            requests, replies = os.pipe(), os.pipe()
            self.theirs.append((agent, requests[0], replies[1]))
            self.ours.append(Lane(agent, replies[0], requests[1]))

    def fds(self) -> tuple[int, ...]:
        return tuple(fd for _, *pair in self.theirs for fd in pair)

    def hand_over(self) -> None:
        for fd in self.fds():
            os.close(fd)
        self.theirs = []

    def close(self) -> None:
        self.hand_over()
        for lane in self.ours:
            lane.close()
        self.ours = []


def environment() -> dict[str, str]:
    """For our own child processes: this folder's benches, and the isovist that runs here."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    if str(SOURCE) in sys.path:
        paths.append(str(SOURCE))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
