"""Does an effect happen twice under one key, or mail get lost, when the kernel is killed?

A kernel is killed (``kill -9``), again and again over one store, in the midst of three kinds of
effect: calls of a tool of the kernel's that leaves a mark in a file, steps of an agent's own that
do so too, and messages between two agents. After each kill the next kernel must call nothing *under
way*; what nobody knows is refused under its key until a person, who looks at the marks, has said
what became of it. What was not answered is asked for again under the same key. In the end the marks
are counted, and both sides of the mail compared.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from bench.host import scratch
from bench.kernels import Kernels
from bench.machine import machine
from bench.report import Progress, Report, figure
from isovist.syscalls import messages as m
from isovist.syscalls.abi import tools
from isovist.syscalls.abi.effects import Effect
from isovist.syscalls.client import Client
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.records import ToolRule

USER = "ana"
KINDS = ("tool", "step", "mail")
MOST = 60
"""Answers after which a kernel is killed, at most."""
LATEST, AFTER = 10.0, 0.02
"""Seconds that these answers are waited for, and after them until the kill, at most."""
WORLD = '''
import os

def mark(word: str) -> str:
    """Leave a mark in the world."""
    fd = os.open("marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, word.encode() + b"\\n")
    os.close(fd)
    return f"marked {word}"
'''


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=100, help="kills (default 100)")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    if options.quick:
        options.runs = 5
    with scratch() as name:
        facts = machine(Path(name))
        told = kill(
            Path(name),
            f"{options.seed}",
            options.runs,
            lambda n: progress("kills", n, options.runs),
        )
    for line in told.problems[:20]:
        print(line, file=sys.stderr)
    # A few kills may find nobody at work.
    sought = None if options.quick else "> 0"
    figures = [
        figure("kills", told.kills, "kills", bar=f">= {options.runs}"),
        figure("answered", told.answered, "effects and messages, acknowledged"),
        figure("doubtful", told.doubtful, "effects and messages, cut off by a kill", bar=sought),
        figure("unknown", told.unknown, "effects that a kill left unknown", bar=sought),
        figure("unknown.happened", told.happened, "of them, by the marks in the world"),
        figure("started", told.started, "effects under way at a start", bar="== 0"),
        figure("twice", told.twice, "effects that happened twice under a key", bar="== 0"),
        figure("missing", told.missing, "effects that are done and did not happen", bar="== 0"),
        figure("mail", told.mail, "messages"),
        figure("mail.again", told.again, "messages that came more than once, under one id"),
        figure("mail.lost", told.lost, "messages", bar="== 0"),
        figure("mail.doubles", told.doubles, "doubles under another id", bar="== 0"),
        figure("mail.undead", told.undead, "messages that came after their ack", bar="== 0"),
        figure("problems", len(told.problems), "problems of any kind", bar="== 0"),
    ]
    config = {"seed": options.seed, "quick": options.quick, "runs": options.runs}
    return Report(bench="effects", machine=facts, config=config, figures=figures)


@dataclass
class Told:
    kills: int = 0
    answered: int = 0
    doubtful: int = 0
    unknown: int = 0
    happened: int = 0
    started: int = 0
    twice: int = 0
    missing: int = 0
    mail: int = 0
    again: int = 0
    lost: int = 0
    doubles: int = 0
    undead: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Desk:
    """What both agents know of all lives: they are not killed with the kernel.

    ``open`` are keys that were not answered; ``done`` those that were, each with its answer; and
    ``failed`` those that a person said had not happened."""

    marks: Path
    rng: random.Random
    told: Told
    last: int = 0
    open: set[str] = field(default_factory=set)
    done: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    ids: dict[str, set[str]] = field(default_factory=dict)
    """By text of a message: the ids that it came under."""
    came: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)

    def seen(self) -> Counter[str]:
        return Counter(self.marks.read_text().split()) if self.marks.exists() else Counter()

    # -- one agent acts and writes

    def work(self, k: Client, kind: str) -> None:
        """Until the kernel is gone; what was cut off comes first."""
        left = [key for key in self.open if key.startswith(kind)]
        for number in count(self.last):
            key = left.pop() if left else f"{kind}-{number}"
            self.last = max(self.last, number + 1)
            self.open.add(key)
            try:
                self.act(k, key)
            except IsovistError as e:
                if e.errno is Errno.EPIPE:
                    self.told.doubtful += 1
                    return
                if e.errno not in (Errno.EAGAIN, Errno.ESTALE):
                    self.told.problems.append(f"{key}: {e}")
                    return

    def act(self, k: Client, key: str) -> None:
        """Do what ``key`` stands for, and enter its answer. Raises what the kernel answers."""
        kind = key.split("-")[0]
        if kind == "mail":
            self.done[key] = k.send("post", key, key=key).id
        elif kind == "step":
            begun = k.effect_begin("mark", key, key=key)
            if begun.fresh:
                with self.marks.open("a") as file:
                    file.write(f"{key}\n")
                begun = k.effect_done(begun.effect.id, "marked")
            self._ended(key, begun.effect.state)
        else:
            said = msgspec.json.encode({"word": key}).decode()
            use = tools.ToolUse(name="world.mark", arguments=said, key=key)
            reply = k.call(tools.ToolsCall(calls=(use,)))
            if isinstance(reply, m.Failed):
                raise IsovistError(reply.message, errno=Errno(reply.errno), field=reply.field)
            if not isinstance(reply, tools.ToolResults):
                raise IsovistError(f"answered {type(reply).__name__}")
            (result,) = reply.results
            if result.errno and key not in self.failed:
                raise IsovistError(result.message, errno=Errno(result.errno))
            self._ended(key, "failed" if result.errno else "done")
        self.open.discard(key)
        self.told.answered += 1

    def _ended(self, key: str, state: str) -> None:
        if state != ("failed" if key in self.failed else "done"):
            self.told.problems.append(f"{key} is {state}")
        if state == "done":
            self.done[key] = key

    # -- the other one reads

    def read(self, k: Client, wait: float = 0.05) -> bool:
        """Take what there is; true iff there was anything. Raises what the kernel answers."""
        mails = k.receive(limit=8, wait=wait)
        for one in mails:
            self.ids.setdefault(one.text, set()).add(one.id)
            self.came[one.id] += 1
            if one.id in self.gone:
                self.told.undead += 1
        if mails and self.rng.random() < 0.8:
            k.ack(*mails)
            self.gone.update(one.id for one in mails)
        return bool(mails)

    def listen(self, k: Client) -> None:
        while True:
            try:
                self.read(k)
            except IsovistError as e:
                if e.errno is not Errno.EPIPE:
                    self.told.problems.append(f"post: {e}")
                return

    # -- a person

    def resolve(self, k: Client) -> None:
        """Look at the marks, and say what became of what nobody knows."""
        self.told.started += len(k.effects(states=("started",), limit=200))
        seen = self.seen()
        unknown: tuple[Effect, ...] = k.effects(states=("unknown",), limit=200)
        for effect in unknown:
            self.told.unknown += 1
            happened = seen[effect.key] > 0
            self.told.happened += happened
            k.effect_resolve(effect.id, "done" if happened else "failed", "a person looked")
            if not happened:
                self.failed.add(effect.key)

    def refused(self, k: Client) -> None:
        """What is unknown is refused under its key, and does not happen."""
        for effect in k.effects(states=("unknown",), limit=200):
            before = self.seen()[effect.key]
            try:
                self.act(k, effect.key)
                self.told.problems.append(f"{effect.key} is unknown, and was answered")
            except IsovistError as e:
                if e.errno is not Errno.ESTALE:
                    self.told.problems.append(f"{effect.key} is unknown, and said to be {e}")
            if self.seen()[effect.key] != before:
                self.told.problems.append(f"{effect.key} is unknown, and was repeated")


def kill(folder: Path, seed: str, runs: int, progress: Callable[[int], None]) -> Told:
    """``runs`` kills over one store in ``folder``."""
    state, world = folder / "kernel", folder / "world"
    state.mkdir()
    world.mkdir()
    (world / "world_marks.py").write_text(WORLD)
    (state / "isovist").mkdir()
    (state / "isovist" / "config.toml").write_text(
        f'[tools.world]\npython = "world_marks"\nfolder = "{world}"\n'
    )
    rng, told = random.Random(f"effects {seed}"), Told()
    desk = Desk(world / "marks", rng, told)
    with Kernels(state) as kernels:
        kernels.start()
        with kernels.attach() as operator:
            rules = (ToolRule(name="world.*"),)
            operator.grant("plan", (USER,), mail=("post",), tools=rules)
            operator.grant("post", (USER,))
        for number in range(runs):
            progress(number)
            _one(kernels, desk)
            kernels.start()
            with kernels.attach() as operator, kernels.attach("plan", user=USER) as plan:
                desk.refused(plan)
                desk.resolve(operator)
        with kernels.attach("plan", user=USER) as plan, kernels.attach("post", user=USER) as post:
            for key in sorted(desk.open):
                desk.act(plan, key)
            while desk.read(post):
                pass
    _count(desk)
    return told


def _one(kernels: Kernels, desk: Desk) -> None:
    """Load until the kernel is killed."""
    clients = {kind: kernels.attach("plan", user=USER) for kind in KINDS}
    clients["post"] = kernels.attach("post", user=USER)
    threads = [threading.Thread(target=desk.work, args=(clients[kind], kind)) for kind in KINDS]
    threads.append(threading.Thread(target=desk.listen, args=(clients["post"],)))
    for thread in threads:
        thread.start()
    wanted = desk.told.answered + desk.rng.randrange(MOST)
    until = time.monotonic() + LATEST
    while desk.told.answered < wanted and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(desk.rng.random() * AFTER)
    kernels.kill()
    desk.told.kills += 1
    for thread in threads:
        thread.join()
    for client in clients.values():
        client.close()


def _count(desk: Desk) -> None:
    told, seen = desk.told, desk.seen()
    told.twice = sum(times > 1 for times in seen.values())
    acted = [key for key in desk.done if not key.startswith("mail")]
    told.missing = sum(not seen[key] for key in acted)
    sent = [key for key in desk.done if key.startswith("mail")]
    told.mail = len(sent)
    told.lost = sum(desk.done[key] not in desk.ids.get(key, ()) for key in sent)
    told.doubles = sum(len(ids) > 1 for ids in desk.ids.values())
    told.again = sum(times > 1 for times in desk.came.values())
