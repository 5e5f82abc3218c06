"""Vectors of questions: in turn, skipped where nobody wants them any more, failures handed over."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from isovist.kernel.questions import Questions
from isovist.storage.dense import Vector


class Slow:
    """An embedder that begins when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def __call__(self, text: str) -> Vector:
        self.begun.release()
        assert self.let.acquire(timeout=60)
        if text == "bad":
            raise ValueError(text)
        return np.array([len(text)], dtype=np.float32)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def questions(slow: Slow) -> Iterator[Questions]:
    made = Questions(slow)
    yield made
    made.close()


def collect(questions: Questions, answers: list[object], count: int) -> None:
    while len(answers) < count:
        assert select.select([questions.wake_fd], [], [], 60)[0], "an answer is missing"
        questions.collect()


def test_channels_take_turns_and_the_unwanted_is_passed_over(
    questions: Questions, slow: Slow
) -> None:
    answers: list[object] = []

    def ask(channel: int, text: str, wanted: bool = True) -> None:
        questions.ask(
            channel, text, lambda: wanted, lambda vector: answers.append((text, type(vector)))
        )

    ask(1, "first")
    assert slow.begun.acquire(timeout=60)
    for text in ("greedy 1", "greedy 2"):
        ask(1, text)
    ask(2, "modest")
    ask(3, "given up", wanted=False)
    ask(1, "bad")
    slow.let.release(5)
    collect(questions, answers, 5)
    assert answers == [
        ("first", np.ndarray),
        ("greedy 1", np.ndarray),
        ("modest", np.ndarray),
        ("greedy 2", np.ndarray),
        ("bad", ValueError),
    ]
