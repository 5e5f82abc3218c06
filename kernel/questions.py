"""Vectors of questions: one at a time, in a thread, so that the loop serves others meanwhile.

The arithmetic lets go of the interpreter lock. The agents take turns, so whoever asks much stands
before nobody but itself.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from isovist.kernel.work import Work
from isovist.storage.dense import Vector

Then = Callable[[Vector | Exception], None]
"""What is done, on the loop, with a question's vector, or with why there is none."""


class _Question:
    __slots__ = ("answer", "text", "then", "wanted")

    def __init__(self, text: str, wanted: Callable[[], bool], then: Then) -> None:
        self.text, self.wanted, self.then = text, wanted, then
        self.answer: Vector | Exception = RuntimeError("not embedded")


class Questions:
    """``embed`` is called in the thread alone. ``wake_fd`` is readable when there is something to
    :meth:`collect`."""

    def __init__(self, embed: Callable[[str], Vector]) -> None:
        self._embed = embed
        self._waiting: Work[_Question] = Work()
        self._filled = threading.Condition()
        self._done: deque[_Question] = deque()
        self._closing = False
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="isovist-questions", daemon=True)
        self._thread.start()

    def ask(self, channel: int, text: str, wanted: Callable[[], bool], then: Then) -> None:
        """Embed ``text`` in the turn of ``channel``, unless it is no longer ``wanted`` by then."""
        with self._filled:
            self._waiting.add(channel, _Question(text, wanted, then))
            self._filled.notify()

    def collect(self) -> None:
        """Give out, on the loop, what is finished."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return
        while self._done:
            question = self._done.popleft()
            question.then(question.answer)

    def close(self) -> None:
        with self._filled:
            self._closing = True
            self._filled.notify()
        self._thread.join()
        os.close(self.wake_fd)

    def _run(self) -> None:
        while True:
            with self._filled:
                while not self._waiting and not self._closing:
                    self._filled.wait()
                if self._closing:
                    return
                question = self._waiting.pop()
            if not question.wanted():
                continue
            try:
                question.answer = self._embed(question.text)
            except Exception as e:  # handed to whoever asked
                question.answer = e
            self._done.append(question)
            os.eventfd_write(self.wake_fd, 1)
