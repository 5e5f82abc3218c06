"""Which tokens go into the next step: every running answer's next one, and a chunk of prompts.

An answer that is being written gets its token in every step, so that its stream keeps its pace
however long the prompts are that are read beside it: they only get what room a step has left. The
room is measured: while somebody waits for a next token, a step may read as much as it has time
for, and else as much as the model takes at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PACE_S = 0.25
"""Seconds that a step aims at while answers are written."""
LEAST = 32
"""Prompt tokens that a step reads at least, if there are any: a slow machine gets on as well."""
SLIVER = 16
"""A piece of a further prompt that is smaller is left for the next step: it would cost a pass
over the weights of its own."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """``tokens`` for ``sequence`` from position ``start``, which is how many it holds already.
    With ``choose`` the logits after the last token are wanted."""

    sequence: int
    start: int
    tokens: Sequence[int]
    choose: bool


class Reading(msgspec.Struct, frozen=True, gc=False):
    """A prompt of which ``left`` tokens (from 1) have not been computed."""

    key: int
    left: int


def chunks(reading: Sequence[Reading], room: int) -> list[tuple[int, int]]:
    """(key, tokens) of the prompts to read in this step: in order, each as far as room lasts.

    Invariants: the tokens sum to at most ``room`` and to at least one where there is room and
    somebody reads; only the last one may be cut, so the first that came is answered first.
    """
    taken: list[tuple[int, int]] = []
    for one in reading:
        size = min(one.left, room)
        if size <= 0 or (taken and size < min(one.left, SLIVER)):
            break
        taken.append((one.key, size))
        room -= size
    return taken


class Pace:
    """Learns how long steps take, and says how many prompt tokens the next may read.

    ``most``: what the model takes in one step.
    """

    _MEMORY = 0.3

    def __init__(self, most: int) -> None:
        self.most = most
        self._token_s = 0.0
        self._step_s = 0.0

    def room(self, writing: int) -> int:
        """Prompt tokens for a step in which ``writing`` answers get a token too."""
        if not writing or not self._token_s:
            return self.most
        # Where writing alone takes longer than the aim, prompts get as much time again: crawling
        # would make all wait longer.
        spare = int(max(PACE_S - self._step_s, self._step_s) / self._token_s)
        # Multiples suit the kernels of the matrix products.
        return max(min(LEAST, self.most), min(self.most, spare // LEAST * LEAST))

    def took(self, read: int, seconds: float) -> None:
        """A step has read so many prompt tokens (0: it only wrote) in so long."""
        if not read:
            self._step_s = self._mixed(self._step_s, seconds)
        elif read >= LEAST:
            self._token_s = self._mixed(self._token_s, max(0.0, seconds - self._step_s) / read)

    def _mixed(self, old: float, new: float) -> float:
        return new if not old else old + self._MEMORY * (new - old)
