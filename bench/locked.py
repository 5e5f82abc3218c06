"""What people write first: one llama-cpp-python model behind a lock, a thread for each agent.

``python -m bench.locked`` reads one line of JSON, asks, and prints one: the process of its own
keeps the model of the reference out of the measured one's memory.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench import ROOT
from bench.lanes import environment
from bench.report import CannotRun
from isovist.syscalls.records import Message

Conversation = tuple[Message, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """For each agent its turns, one after the other: what is said before each answer."""

    model: str
    context: int
    tokens: int
    agents: tuple[tuple[Conversation, ...], ...]


class Outcome(msgspec.Struct, kw_only=True):
    """``seconds`` for all; each answer's output tokens, time to the first of them, and prompt
    tokens (where known). ``kept``: the least share of what a conversation had computed that its
    next turn found again."""

    seconds: float
    output: list[int] = []
    first: list[float] = []
    prompt: list[int] = []
    kept: float = 1.0

    @property
    def rate(self) -> float:
        return sum(self.output) / self.seconds

    @property
    def mean_first(self) -> float:
        return sum(self.first) / len(self.first)


def ask(plan: Plan, module: str = "bench.locked") -> Outcome:
    """Run ``plan`` in a process of its own, ``module``'s. The answers of a turn join the next
    turn's messages."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=msgspec.json.encode(plan),
        capture_output=True,
        cwd=ROOT,
        env=environment(),
    )
    if done.returncode:
        raise CannotRun(f"the reference failed: {done.stderr.decode(errors='replace')[-500:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)


def play(plan: Plan, speak: Callable[[list[dict[str, str]], Outcome], str]) -> Outcome:
    """Let all agents ask at once, a thread each; ``speak`` gives the answer to what was said, and
    enters what it cost."""
    outcome = Outcome(seconds=0.0)
    gate = threading.Barrier(len(plan.agents) + 1)

    def agent(turns: tuple[Conversation, ...]) -> None:
        said: list[dict[str, str]] = []
        gate.wait()
        for turn in turns:
            said += [{"role": m.role, "content": m.content or ""} for m in turn]
            said.append({"role": "assistant", "content": speak(said, outcome)})

    threads = [threading.Thread(target=agent, args=(turns,)) for turns in plan.agents]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - start
    return outcome


def answer(run: Callable[[Plan], Outcome]) -> None:
    """Read a plan, run it, print the outcome: one line, whatever llama.cpp prints."""
    outcome = run(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan))
    sys.stdout.flush()
    os.write(1, b"\n" + msgspec.json.encode(outcome) + b"\n")


def _run(plan: Plan) -> Outcome:
    llama_cpp: Any = importlib.import_module("llama_cpp")
    llama = llama_cpp.Llama(plan.model, n_ctx=plan.context, n_batch=512, verbose=False)
    llama.create_chat_completion([{"role": "user", "content": "hi"}], max_tokens=1)
    llama.reset()
    lock = threading.Lock()

    def speak(said: list[dict[str, str]], outcome: Outcome) -> str:
        asked, first, pieces = time.perf_counter(), 0.0, []
        with lock:
            for part in llama.create_chat_completion(
                said, max_tokens=plan.tokens, temperature=0.0, stream=True
            ):
                text = part["choices"][0]["delta"].get("content")
                if text:
                    first = first or time.perf_counter() - asked
                    pieces.append(text)
        words = "".join(pieces)
        outcome.output.append(len(llama.tokenize(words.encode(), add_bos=False)))
        outcome.first.append(first or time.perf_counter() - asked)
        return words

    return play(plan, speak)


if __name__ == "__main__":
    answer(_run)
