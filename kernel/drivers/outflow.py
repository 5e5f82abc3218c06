"""From a model's tokens to the text that may be sent: whole characters, and no stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Outflow:
    """Turns pieces of UTF-8 into text to send.

    Held back are the bytes of a character that is not yet complete, and text that may yet turn
    out to begin a stop string. Invariant: what has been given out holds no stop string and ends
    before the earliest one; at most the longest stop string less one character is held.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        """A stop string was met; nothing more comes out."""
        self._stop = tuple(stop)
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        """The text that ``piece`` sets free (often, but not always, its own)."""
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(piece)
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held in case a stop string came. Bytes of half a character are dropped."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop`` and is shorter than it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
