"""Random operations on files, through kernels that are killed, held against a plain model.

Four pairs write, put, roll back, move, share and delete the same few paths in all scopes; each
reply, and each refusal, must be the model's. In between they read, fetch and search, and find what
the model holds, in their view and nothing else. A kernel is killed while a step is under way; the
next one must hold all that was acknowledged, and of that step all or nothing.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.disk import scratch_folder
from bench.file_model import SCOPES, File, Model, Step, Version
from bench.kernels import BOUNDS, Kernels
from bench.machine import machine
from bench.report import Figure, Progress, Report, figure
from isovist.kernel.contents import INLINE
from isovist.syscalls.abi import files as f
from isovist.syscalls.client import Client, Pending
from isovist.syscalls.errors import Errno, IsovistError

USERS, AGENTS = ("ana", "bob"), ("mail", "plan")
PATHS = ("a", "b", "d", "d/x", "d/y/z", "e f/ü.md")
WORDS = (
    "anchor", "basket", "candle", "dolphin", "engine", "feather", "garden", "hammer", "island",
    "jacket", "kettle", "lantern", "marble", "needle", "orange", "pepper", "quartz", "ribbon",
    "saddle", "timber", "umbrella", "violin", "walnut", "yellow",
)  # fmt: skip
WHOLE = 100
"""Steps between two looks at all that is stored, beside those after each kill."""


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=10_000, help="operations (default 10,000)")
    parser.add_argument("--kills", type=int, default=40, help="kills among them (default 40)")


def run(options: argparse.Namespace, progress: Progress) -> Report:
    steps, kills = (300, 4) if options.quick else (options.steps, options.kills)
    began = time.monotonic()
    with TemporaryDirectory(prefix="isovist-files-", dir=scratch_folder()) as name:
        tally = Play(Path(name), options.seed, steps, kills, progress).run()
        ran_on = machine(Path(name))
    counts = tally.counts
    for problem in tally.problems[:20]:
        progress(problem)

    def told(name: str, unit: str, bar: str | None = None) -> Figure:
        return figure(f"files.{name}", float(counts[name]), unit, bar=bar)

    return Report(
        bench="files",
        machine=ran_on,
        config={
            "seed": options.seed, "steps": steps, "kills": kills, "versions": BOUNDS.versions,
            "seconds": round(time.monotonic() - began),
        },
        figures=[
            told("operations", "operations", f">= {steps}"),
            told("changes", "of them changes that took effect"),
            told("refused", "of them refused, as the model says"),
            told("long", f"versions of more than {INLINE} bytes"),
            told("kills", "kills", f">= {kills}"),
            told("doubtful_done", "steps under way at a kill that were done"),
            told("searches", "searches, each the same files as the model's"),
            told("compared", "versions read again, byte by byte"),
            figure("files.problems", float(len(tally.problems)), "differences", bar="== 0"),
        ],
    )  # fmt: skip


class Play:
    """One history. The first few of its ``problems`` say enough: it ends after ten."""

    def __init__(
        self, folder: Path, seed: object, steps: int, kills: int, progress: Progress | None = None
    ) -> None:
        self._folder, self._steps, self._progress = folder, steps, progress
        self._rng = random.Random(f"files {seed}")
        self._kills = set(self._rng.sample(range(1, steps), kills))
        self._model = Model(BOUNDS.versions)
        self._tally = Tally()
        self._clients: dict[tuple[str, str], Client] = {}

    def run(self) -> Tally:
        with Kernels(self._folder) as kernels:
            kernels.start()
            with kernels.attach() as k:
                for agent in AGENTS:
                    k.grant(agent, users=list(USERS), scopes=["user", "agent", "global"])
            self._attach(kernels)
            for number in range(self._steps):
                if len(self._tally.problems) >= 10:
                    break
                if number in self._kills:
                    self._kill(kernels, self._step())
                elif number % WHOLE == 0:
                    self._look_at_all()
                self._one()
                self._tally.counts["operations"] += 1
                if self._progress is not None and number % 500 == 0:
                    self._progress("operations", number, self._steps)
            self._look_at_all()
            self._close()
        return self._tally

    # -- steps

    def _one(self) -> None:
        draw = self._rng.random()
        if draw < 0.15:
            self._search()
        elif draw < 0.25:
            self._fetch()
        else:
            step = self._step()
            self._compare(step, self._model.take(step), self._ask(step))

    def _step(self) -> Step:
        rng = self._rng
        what = rng.choices(("write", "put", "rollback", "move", "delete"), (10, 2, 4, 4, 2))[0]
        user, agent = rng.choice(USERS), rng.choice(AGENTS)
        seen = self._model.seen_by(user, agent)
        scope, path = rng.choice(SCOPES), rng.choice(PATHS)
        if seen and rng.random() < (0.5 if what in ("write", "put") else 0.9):
            scope, path = rng.choice(sorted(seen))
        file = seen.get((scope, path))
        current = file.current.number if file else 0
        return Step(
            what=what,
            user=user,
            agent=agent,
            scope=scope,
            path=path,
            body=self._body() if what in ("write", "put") else b"",
            stream="protected" if rng.random() < 0.15 else "reusable",
            writable=rng.choice((None, None, True, False)),
            expect=rng.choice((*[None] * 6, *[current] * 3, 0, current + 1)),
            reason=rng.choice(("", "tidied", "because ana asked")),
            version=rng.randint(max(1, current - BOUNDS.versions - 1), current + 1),
            to_scope=rng.choice(("", *SCOPES)),
            to_path=rng.choice(("", *PATHS)),
        )

    def _body(self) -> bytes:
        rng = self._rng
        words = " ".join(rng.sample(WORDS, 2)).encode()
        if rng.random() < 0.1:
            return words + b"\n" + rng.choice(WORDS).encode() + b" of the rest\n" * 6000
        if rng.random() < 0.1:
            return b"\x00\xff" + rng.randbytes(40)
        return words + b" %d" % rng.randrange(1 << 30)

    def _request(self, step: Step) -> Any:
        """The request that a step makes. What is put lies in the workspace then."""
        named: dict[str, Any] = {
            "path": step.path,
            "scope": step.scope,
            "user": step.user,
            "expect": step.expect,
        }
        made: dict[str, Any] = {
            "reason": step.reason,
            "stream": step.stream,
            "writable": step.writable,
        }
        match step.what:
            case "write":
                return f.FileWrite(**named, **made, body=step.body)
            case "put":
                root = self._folder / "workspaces" / step.agent
                root.mkdir(parents=True, exist_ok=True)
                (root / "source").write_bytes(step.body)
                return f.FilePut(**named, **made, source="source")
            case "rollback":
                return f.FileRollback(**named, version=step.version, reason=step.reason)
            case "move":
                to: dict[str, Any] = {"to_scope": step.to_scope, "to_path": step.to_path}
                return f.FileMove(**named, **to, writable=step.writable)
            case _:
                return f.FileDelete(**named)

    def _ask(self, step: Step) -> Any:
        try:
            return self._clients[step.user, step.agent].call(self._request(step))
        except IsovistError as e:
            return e

    def _compare(self, step: Step, said: Errno | Version | None, reply: Any) -> None:
        counts = self._tally.counts
        if isinstance(said, Errno) or isinstance(reply, IsovistError):
            counts["refused"] += 1
            if not isinstance(reply, IsovistError) or reply.errno != said:
                self._problem(f"{step}: the model says {said!r}, the kernel {reply!r}")
            return
        counts["changes"] += 1
        if said is None:
            return
        counts["long"] += len(said.body) > INLINE and step.what != "move"
        told = (reply.version, reply.size, reply.hash)
        if told != (said.number, len(said.body), sha256(said.body).hexdigest()):
            self._problem(f"{step}: the model has {said.number}, the kernel told {told}")

    def _search(self) -> None:
        """Files by a word: all of the view that hold it, in their current version."""
        rng = self._rng
        user, agent, word = rng.choice(USERS), rng.choice(AGENTS), rng.choice(WORDS)
        hits = self._clients[user, agent].file_search(word, k=50, mode="bm25")
        found = {(hit.scope, hit.path, hit.version) for hit in hits.files}
        expected = {
            (*key, file.current.number)
            for key, file in self._model.seen_by(user, agent).items()
            if word.encode() in file.current.body
        }
        self._tally.counts["searches"] += 1
        if found != expected:
            self._problem(f"{user}, {agent} find {word} in {found}, not in {expected}")

    def _fetch(self) -> None:
        """A version, written out into the workspace."""
        user, agent = self._rng.choice(USERS), self._rng.choice(AGENTS)
        seen = self._model.seen_by(user, agent)
        if not seen:
            return
        scope, path = self._rng.choice(sorted(seen))
        version = self._rng.choice(seen[scope, path].versions)
        self._clients[user, agent].file_fetch(
            path, scope=scope, version=version.number, target="out/file", replace=True
        )
        self._tally.counts["compared"] += 1
        if (self._folder / "workspaces" / agent / "out" / "file").read_bytes() != version.body:
            self._problem(f"{scope} {path} {version.number}: other bytes were written out")

    # -- kills

    def _kill(self, kernels: Kernels, step: Step) -> None:
        """Kill the kernel while it does ``step``; see what the next one holds."""
        pending: Pending = self._clients[step.user, step.agent].submit(self._request(step))
        time.sleep(self._rng.random() ** 3 * 0.03)
        kernels.kill()
        reply: Any = None
        try:
            reply = pending.result()
        except IsovistError as e:
            reply = e
        self._close()
        self._tally.counts["kills"] += 1
        kernels.start()
        self._attach(kernels)
        after = self._model.copy()
        said = after.take(step)
        acknowledged = not (isinstance(reply, IsovistError) and reply.errno is Errno.EPIPE)
        if acknowledged:
            self._compare(step, said, reply)
        done = self._differences(after)
        if acknowledged or not done:
            self._model = after
            self._tally.counts["doubtful_done"] += not acknowledged and said != Errno.EPERM
            self._tally.problems += [f"after a kill in {step}: {what}" for what in done[:3]]
            return
        undone = self._differences(self._model)
        self._tally.problems += [f"half of {step} is there: {what}" for what in undone[:3]]

    def _look_at_all(self) -> None:
        self._tally.problems += self._differences(self._model)[:3]

    def _differences(self, model: Model) -> list[str]:
        """Where what the pairs are shown, of files and all their versions, is not the model's."""
        told: list[str] = []
        for (user, agent), k in self._clients.items():
            seen = model.seen_by(user, agent)
            listed = self._listed(k)
            if listed.keys() != seen.keys():
                told.append(f"{user}, {agent} see {sorted(listed)}, not {sorted(seen)}")
                continue
            for (scope, path), file in seen.items():
                who = f"{user}, {agent}: {scope} {path}"
                told += [f"{who}: {what}" for what in self._file(k, scope, path, file, user)]
        return told

    def _listed(self, k: Client) -> dict[tuple[str, str], f.FileInfo]:
        listed: dict[tuple[str, str], f.FileInfo] = {}
        after = ""
        while True:
            page = k.file_list(limit=7, after=after)
            listed |= {(one.scope, one.path): one for one in page.files}
            after = page.next
            if not after:
                return listed

    def _file(self, k: Client, scope: str, path: str, file: File, user: str) -> list[str]:
        log = k.file_log(path, scope=scope)
        info = log.file
        shown = (info.agent, info.user, info.stream, info.writable, info.version, info.versions)
        own = file.user if file.user == user else ""
        last = file.current.number
        if shown != (file.agent, own, file.stream, file.writable, last, len(file.versions)):
            return [f"the file is shown as {shown}"]
        versions = [
            (v.number, v.agent, v.action, v.reason, v.source) for v in reversed(file.versions)
        ]
        kept = [(v.version, v.agent, v.action, v.reason, v.source) for v in log.versions]
        if kept != versions:
            return [f"its versions are {kept}, not {versions}"]
        for version in file.versions:
            self._tally.counts["compared"] += 1
            data = k.file_read(path, scope=scope, version=version.number)
            if data.body != version.body:
                return [f"version {version.number} has other bytes"]
        return []

    # -- channels

    def _attach(self, kernels: Kernels) -> None:
        for user in USERS:
            for agent in AGENTS:
                self._clients[user, agent] = kernels.attach(agent, user)

    def _close(self) -> None:
        for k in self._clients.values():
            k.close()

    def _problem(self, what: str) -> None:
        self._tally.problems.append(what[:600])
