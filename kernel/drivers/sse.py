"""Server-sent events, as far as streamed answers use them: the data of each event."""

from __future__ import annotations

EVENT_BYTES = 1 << 20
"""An event that is longer is refused: nobody streams an answer in pieces of that size."""


class Events:
    """Turns bytes, cut anywhere, into the data of each whole event.

    On bytes, not on decoded lines: a line ends with CR, LF or both alone, and JSON may hold other
    characters that Unicode calls ends of lines. An event that no blank line ends does not count:
    a stream that breaks off in its middle gives all events before it and nothing of it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that ``piece`` completes. Raises :class:`ValueError` for an
        event above :data:`EVENT_BYTES`."""
        text = self._rest + piece
        # A CR at the very end may be the first half of a CR LF.
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = rest + held
        events = [data for line in lines if (data := self._line(line)) is not None]
        if self._size + len(self._rest) > EVENT_BYTES:
            raise ValueError("an event of the stream is too long")
        return events

    def _line(self, line: bytes) -> bytes | None:
        """The event that ``line`` ends, if it is blank and there is one."""
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
        return None  # comments keep a connection alive; other fields say nothing to us
