"""Which tokens go into the next step: every running answer's next one, and a chunk of prompts.

An answer that is being written gets its token in every step, so that its stream keeps its pace
however long the prompts are that are read beside it: they only get what room a step has left. The
room is measured: while somebody waits for a next token, a step may read as much as it has time
for (more, where more wait for their first token than for their next), and else as much as the model
takes at once. Pieces are cut so that llama.cpp computes them well.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PACE_S, LONGEST_S = 0.3, 1.0
"""Seconds that a step aims at while answers are written, and at most where more wait for their
first token than for their next."""
WHOLE, SHORT = 65, 52
"""Prompt tokens of one sequence from which llama.cpp's attention works in tiles (64, and one that
runs with the answers' next tokens), and from which so many are worth computing though fewer are
lacking. Measured after 208 tokens, ms: one piece of 63 tokens 207, of 64 148; eight of 56 1,526,
of 64 1,200."""
LEAST = 2 * WHOLE
"""Prompt tokens that a step reads at least, if there are any: smaller pieces cost more a token.
Measured: 3.0 ms in pieces of 64, 2.5 of 128, 2.3 of 256 and of 512."""


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


def chunks(reading: Sequence[Reading], room: int, most: int) -> list[tuple[int, int]]:
    """(key, tokens) of the prompts to read in this step: in order, as far as room lasts.

    ``most`` (at least ``room``) is what the model takes. Invariants: the tokens sum to at most
    ``most``, beyond ``room`` only for the end of the first prompt, and to at least one where there
    is room and somebody reads; only the last may be cut, so the first that came is answered first;
    a cut leaves no piece below ``WHOLE`` where it can be helped.
    """
    taken: list[tuple[int, int]] = []
    for one in reading:
        size = min(one.left, room)
        if 0 < one.left - size < WHOLE:
            if not taken and one.left <= most:
                size = one.left
            elif one.left >= 2 * WHOLE:
                size = one.left - WHOLE
        if size <= 0 or (taken and size < min(one.left, WHOLE)):
            break
        taken.append((one.key, size))
        if size < one.left:
            break
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

    def room(self, writing: int, reading: int = 1) -> int:
        """Prompt tokens for a step in which ``writing`` answers get a token too, while so many
        prompts are ``reading``."""
        if not writing or not self._token_s:
            return self.most
        # Large pieces take less time a token. Who reads gains by that what who writes loses.
        aim = min(PACE_S * max(1.0, reading / writing), LONGEST_S)
        # Where writing alone takes longer than the aim, prompts get as much time again: crawling
        # would make all wait longer.
        spare = int(max(aim - self._step_s, self._step_s) / self._token_s)
        return max(min(LEAST, self.most), min(self.most, spare // WHOLE * WHOLE))

    def took(self, read: int, writing: int, seconds: float) -> None:
        """A step has read so many prompt tokens, and written a token of so many answers, in so
        long."""
        if not writing:
            if read >= WHOLE:
                self._token_s = self._mixed(self._token_s, seconds / read)
        elif not read:
            self._step_s = self._mixed(self._step_s, seconds)
        elif not self._step_s or not self._token_s:
            self._step_s = max(0.0, seconds - read * self._token_s)
        else:
            # Both share in what the step took beyond what was expected: were it all laid to the
            # prompt's tokens, ever smaller pieces would seem ever dearer.
            share = seconds / (self._step_s + read * self._token_s)
            self._token_s = self._mixed(self._token_s, share * self._token_s)
            self._step_s = self._mixed(self._step_s, share * self._step_s)

    def _mixed(self, old: float, new: float) -> float:
        return new if not old else old + self._MEMORY * (new - old)
