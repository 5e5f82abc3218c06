"""Whether splitter and writers run with a model through a whole kernel, whatever it answers.

The attempts are drawn from the seed; some are much longer than the model's context. Each part is
asked by itself; then attempts are submitted to kernels whose settings name the model, by either
writer. What the model makes of them is its own affair and only counted: a small one is often
unusable. That each part ends in one of the two known ways, and that the kernels serve on, is the
bar.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import structlog
import trio

from bench.host import Host, scratch
from bench.machine import machine
from bench.report import Figure, Progress, Report, figure
from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.model import ChatModel
from isovist.kernel.learning.roles import Unusable
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.lessons import CAP, STREAMS, VERDICTS, Attempt, Brief, Held
from isovist.syscalls.aio import AsyncClient, open_client
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message, Stream, Tool

ATTEMPTS, SUBMITTED, QUICK = 12, 4, 1
WRITERS: tuple[Literal["model"], Literal["agentic"]] = ("model", "agentic")
POLL_S = 0.05
SHOWN = 4
"""Entries at most that a writer is shown, of those that were written before for the same person."""
LONG = 12_000
"""Characters of output in every third attempt."""
PEOPLE = ("Mira Holt", "Juno Park", "Teo Lindqvist")
WISHES = ("dates as 31.12.2025", "no more than three sentences", "all file names in lower case")
TASKS = (
    ("Sort orders.csv by amount, largest first.", "sort -r", "sort -g -r, as amounts are numbers"),
    ("Count the errors in app.log for each hour.", "grep -c", "iconv first, as it is UTF-16"),
    ("Turn notes.txt into a list of dates.", "a pattern of digits", "both orders of day and month"),
    ("Join users.json and logins.json by id.", "ids as they are", "ids as text in both"),
    ("Put the larger of each pair of lines first.", "comparing texts", "comparing as numbers"),
)
_SAID = "row field value header line error warning retry done file path total skip"
WORDS = tuple(_SAID.split())

T = TypeVar("T")
log = structlog.get_logger()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="an installed model (default smollm2)")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help=f"default {ATTEMPTS}")
    parser.add_argument("--submit", type=int, default=SUBMITTED, help=f"default {SUBMITTED}")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    number, submit_ = (QUICK, QUICK) if options.quick else (options.attempts, options.submit)
    drawn_ = drawn(random.Random(options.seed), max(number, submit_))
    attempts, submitted = drawn_[:number], drawn_[:submit_]
    tally = Tally()
    with scratch() as folder, Host(Path(folder), model=options.model, embedder="hash") as host:
        facts = machine(Path(folder))
        trio.run(learn, tally, host, attempts, progress)
    for writer in WRITERS:
        given = Learning(writer=writer, review_after=0)
        with (
            scratch() as folder,
            Host(Path(folder), model=options.model, embedder="hash", learn=given) as host,
        ):
            trio.run(submit, tally, host, writer, submitted, progress)
    config: dict[str, object] = {
        "model": options.model,
        "context": tally.context,
        "attempts": number,
        "submitted": len(submitted),
        "seed": options.seed,
    }
    return Report(bench="learners", machine=facts, config=config, figures=tally.figures())


def drawn(rng: random.Random, number: int) -> list[Attempt]:
    """So many attempts: a person's wish, a try that fails, one that works or does not, output."""
    found = []
    for at in range(number):
        task, tried, better = rng.choice(TASKS)
        person = rng.randrange(len(PEOPLE))
        size = LONG if at % 3 == 0 else rng.randrange(80, 800)
        output = " ".join(rng.choices(WORDS, k=size // 5))
        outcome = rng.choice(VERDICTS)
        turns = (
            Message("user", f"{task} {WISHES[person]}, please. {PEOPLE[person]}"),
            Message("assistant", f"I try {tried}."),
            Message("tool", output),
            Message("assistant", f"That was wrong. I take {better}."),
        )
        found.append(
            Attempt(
                submission=f"s{at}",
                user=f"user{person}",
                agent="coder",
                task=task,
                trajectory=turns,
                outcome=outcome,
                tail=rng.choice(("", "all rows are right", "row 4 is wrong")),
                claim="It works.",
            )
        )
    return found


class Tally:
    """What has come of each part."""

    def __init__(self) -> None:
        self.context = 0
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    async def end_of(self, part: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """What the part gives; ``None`` where it has found the model unusable, or has failed."""
        self.counts[f"{part}.asked"] += 1
        started = time.monotonic()
        try:
            done = await work()
        except Unusable:
            return None
        except Exception as e:
            # The one thing that may not be, so it is counted and not passed on.
            log.error("a part has failed", part=part, error=f"{type(e).__name__}: {e}")
            self.counts["failures"] += 1
            return None
        finally:
            self.seconds += time.monotonic() - started
        self.counts[f"{part}.usable"] += 1
        return done

    def figures(self) -> list[Figure]:
        rows = []
        for part in ("splitter", "writer", "agentic"):
            rows.append(figure(f"{part}.asked", self.counts[f"{part}.asked"], "times"))
            rows.append(figure(f"{part}.usable", self.counts[f"{part}.usable"], "times"))
        for writer in WRITERS:
            rows += [
                figure(f"submitted.{writer}.{what}", self.counts[f"{writer}.{what}"], "attempts")
                for what in ("done", "unusable")
            ]
        rows += [
            figure(name, self.counts[name], unit)
            for name, unit in (
                ("operations", "entries"), ("questions", "calls"), ("prompts", "tokens"),
                ("answers", "tokens"),
            )
        ]  # fmt: skip
        rows.append(figure("seconds", self.seconds, "s"))
        rows.append(figure("failures", self.counts["failures"], "parts", bar="== 0"))
        rows.append(
            figure("serves", self.counts["serves"], "answers", bar=f"== {1 + len(WRITERS)}")
        )
        return rows


class Counted:
    """A model whose questions are counted."""

    def __init__(self, model: ChatModel, counts: Counter[str]) -> None:
        self._model, self._counts = model, counts

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def context(self) -> int:
        return self._model.context

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
    ) -> Chatted:
        self._counts["questions"] += 1
        answer = await self._model.ask(
            messages, max_tokens=max_tokens, schema=schema, tools=tools, choice=choice
        )
        self._counts["prompts"] += answer.prompt_tokens
        self._counts["answers"] += answer.output_tokens
        return answer


async def learn(tally: Tally, host: Host, attempts: Sequence[Attempt], progress: Progress) -> None:
    held: dict[tuple[str, Stream], list[Held]] = {}
    async with open_client(socket=host.folder / "socket") as k:
        for nth, attempt in enumerate(attempts):
            progress("attempts learned from", nth, len(attempts))
            await _one(tally, k, attempt, held)
        progress("attempts learned from", len(attempts), len(attempts))
        await _serves(tally, k)


async def submit(
    tally: Tally, host: Host, writer: str, attempts: Sequence[Attempt], progress: Progress
) -> None:
    """Hand the attempts in as any agent does, and wait until each has ended."""
    async with open_client(socket=host.folder / "socket") as k:
        for at, attempt in enumerate(attempts):
            progress(f"attempts submitted, {writer}", at, len(attempts))
            handed = await k.learn_submit(
                attempt.task,
                attempt.trajectory,
                outcome=attempt.outcome,
                verifier_tail=attempt.tail,
                claim=attempt.claim,
                user=attempt.user,
            )
            (one,) = handed.submissions
            while one.state in ("queued", "learning"):
                await trio.sleep(POLL_S)
                (one,) = (await k.learn_status(one.id, user=attempt.user)).submissions
            if one.state == "done":
                tally.counts[f"{writer}.done"] += 1
            elif "could be used" in one.error:
                tally.counts[f"{writer}.unusable"] += 1
            else:
                log.error("a submission has failed", state=one.state, error=one.error)
                tally.counts["failures"] += 1
        await _serves(tally, k)


async def _serves(tally: Tally, k: AsyncClient) -> None:
    answer = await k.chat("Are you there?", memory=False, max_tokens=4, user="user0")
    tally.counts["serves"] += bool(answer.output_tokens)


async def _one(
    tally: Tally, k: AsyncClient, attempt: Attempt, held: dict[tuple[str, Stream], list[Held]]
) -> None:
    model = Counted(await ChatModel.reach(k, attempt.user), tally.counts)
    tally.context = model.context
    streams = await tally.end_of("splitter", partial(ModelSplitter(model).split, attempt))
    said = [message.content or "" for message in attempt.trajectory]
    notes: dict[Stream, str] = {
        "reusable": (streams and streams.reusable) or said[-1],
        "protected": (streams and streams.protected) or said[0],
    }
    for stream in STREAMS:
        known = held.setdefault((attempt.user, stream), [])
        brief = Brief(
            stream=stream,
            text=notes[stream],
            entries=tuple(known[-SHOWN:]),
            scopes=CAP[stream],
            outcome=attempt.outcome,
        )
        for part, writer in (
            ("writer", ModelWriter(model)),
            ("agentic", AgenticWriter(model)),
        ):
            wanted = await tally.end_of(part, partial(writer.write, brief)) or ()
            tally.counts["operations"] += len(wanted)
            known += [
                Held(
                    id=f"{attempt.submission}-{part}-{at}",
                    version=1,
                    situation=one.situation,
                    lesson=one.lesson,
                    scope=one.scope,
                    stream=stream,
                )
                for at, one in enumerate(wanted)
                if not one.delete
            ]
