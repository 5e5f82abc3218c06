"""``demo``: two users, three agents, one question, without memory and with it.

A kernel of its own over a store of its own, which is gone afterwards. What is printed comes from
the replies and from the store; of the facts below the program knows no more than that it said
them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.cli import serve
from isovist.kernel.cli.common import Common, Problem, attach, suggest
from isovist.kernel.cli.processes import exit_code
from isovist.kernel.cli.record import barrier_line
from isovist.kernel.cli.show import brief, emit, fields, ms, note, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.client import Client

ASKER, OTHER = "ana", "ben"
TOLD = {
    (ASKER, "profile"): (
        "My locker at the rowing club has the number 4718.",
        "My cat is called Zorvane.",
        "I am allergic to walnuts.",
    ),
    (ASKER, "task"): (
        "The code name of our new project is Velkarin.",
        "The project review is due on the 14th of May.",
        "The build server has moved to a host called Tandril.",
    ),
    (OTHER, "profile"): (
        "My locker at the fencing club is a blue one.",
        "My dog is called Quillip.",
        "My piano teacher is Mrs Ostrava.",
    ),
    (OTHER, "task"): (
        "The code name of our old printer is Gorbeck.",
        "The project budget is due on the 2nd of June.",
        "The test server has the number 9035.",
    ),
}
"""Who says what to which agent: made-up names and numbers, which no model can guess. The other
user's are decoys, near to the asker's in their words."""
QUESTION = "What are my cat and our new project called?"

WARM_MS = 60_000
"""How long the embedder may take to start and to embed what was told."""

WHY = {
    "pair": "private to this user and this agent",
    "user": "told to an agent of the user, open to all agents of that user",
    "agent": "learned by this agent, open to all of its users",
    "global": "open to everybody",
}
"""Why a unit of a scope is in a view."""


def demo(common: Common, *, model: str) -> int:
    model = _model(common, model)
    with _kernel(common, model) as here:
        report = _play(here, model)
    if common.json:
        emit(report)
    else:
        _print(report)
    return 0


def _model(common: Common, asked: str) -> str:
    """The model asked for, or the configured one, or smollm2, or whatever local model there is."""
    from isovist.kernel import models

    config = common.config
    if asked:
        return models.find(asked, config.models).name
    local = [s.name for s in models.installed(config.models) if s.driver != "scripted"]
    for name in (config.settings.model, "smollm2", *local):
        if name in local:
            return name
    raise Problem(
        "no local model is installed",
        f"{suggest(common, 'model', 'add', 'smollm2')} fetches one of 98 MB; "
        "isovist demo --model scripted does without",
    )


@contextmanager
def _kernel(common: Common, model: str) -> Iterator[Common]:
    """A kernel that ends with this block, or with this process; yields how to reach it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="isovist-") as folder:
        here = Common(state=Path(folder) / "s", debug=common.debug)
        settings = msgspec.structs.replace(here.config.settings, model=model)
        serve.start(here, msgspec.structs.replace(here.config, settings=settings), tied=True)
        try:
            yield here
        finally:
            serve.stop(here)


def _play(here: Common, model: str) -> dict[str, Any]:
    extractors: Counter[str] = Counter({"model": 0, "rules": 0})
    with attach(here) as kernel:
        for (user, agent), said in TOLD.items():
            _progress(f"{user} tells {agent} {len(said)} things")
            heard = _converse(kernel, agent, user, said)
            extractors.update(fact["extractor"] for fact in heard)
        _progress("the embedder starts")
        for user in (ASKER, OTHER):
            # The kernel is new. Nobody's question should be timed while it warms up.
            kernel.search(QUESTION, user=user, barrier_ms=WARM_MS)
        _progress(f"{ASKER} asks assistant without memory")
        (without,) = _converse(kernel, "assistant", ASKER, [QUESTION], "--json", "--no-memory")
        _progress(f"{ASKER} asks assistant with memory")
        (reply,) = _converse(kernel, "assistant", ASKER, [QUESTION], "--json")
        _progress(f"{OTHER} asks the same")
        (other,) = _converse(kernel, "assistant", OTHER, [QUESTION], "--json")
        record = kernel.why(reply["call"])
    views = [_view(here, agent, user) for agent, user in _readers()]
    private = {u["unit"] for view in views if view["user"] == ASKER for u in view["units"]}
    return {
        "question": QUESTION,
        "user": reply["user"],
        "answer_without": without["answer"],
        "answer_with": reply["answer"],
        "injected": _with_text(here, reply),
        "timings_ms": reply["timings_ms"],
        "model": reply["model"],
        "barrier": reply["barrier"],
        "tokens": {
            "budget": record.budget,
            "injected": record.injected_tokens,
            "prompt": record.prompt_tokens,
            "output": record.output_tokens,
        },
        "extractors": dict(extractors),
        "other_user": {
            "user": other["user"],
            "answer": other["answer"],
            "injected": _with_text(here, other),
            "foreign": sum(shown["unit"] in private for shown in other["injected"]),
        },
        "views": views,
    }


def _readers() -> list[tuple[str, str]]:
    agents = [*dict.fromkeys(agent for _, agent in TOLD), "assistant"]
    return [(agent, user) for user in (ASKER, OTHER) for agent in agents]


def _converse(
    kernel: Client, agent: str, user: str, said: Sequence[str], *args: str
) -> list[dict[str, Any]]:
    """Run an agent for ``user``, say something to it, and return what it prints: a JSON object a
    line. Raises a :class:`Problem` where it fails."""
    reads, writes = os.pipe()
    results, prints = os.pipe()
    with open(writes, "w") as to_agent, open(results) as from_agent:
        try:
            # It gets descriptors of its own; as long as we held these, neither end would close.
            spawned = kernel.spawn(agent, args=args, user=user, stdio=(reads, prints, prints))
        finally:
            os.close(reads)
            os.close(prints)
        # Some lines, far less than a pipe holds: nobody waits here.
        to_agent.write("".join(f"{line}\n" for line in said))
        to_agent.close()
        printed = from_agent.read()
    process = kernel.wait(spawned.pid).process
    if process.status != 0:
        last = process.stderr[-1] if process.stderr else process.reason
        raise Problem(
            f"agent {agent} ended with {exit_code(process.status)}: {safe(last)}",
            "isovist doctor checks the set-up; --debug shows more",
        )
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in printed.splitlines()]


def _view(here: Common, agent: str, user: str) -> dict[str, Any]:
    """All that ``agent`` can see when it acts for ``user``, as the kernel lists it."""
    with attach(here, agent, user) as reader:
        units = list(reader.memories())
    return {
        "agent": agent,
        "user": user,
        "units": [{"unit": u.id, "owner": u.agent, "scope": u.scope} for u in units],
    }


def _with_text(here: Common, reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The injected units of a reply with their texts, read in the view of its own reader."""
    with attach(here, "assistant", reply["user"]) as reader:
        return [
            {**shown, "text": reader.read(shown["unit"]).units[0].text}
            for shown in reply["injected"]
        ]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        note(f"… {text}")


def _print(report: dict[str, Any]) -> None:
    user, other, timings = report["user"], report["other_user"], report["timings_ms"]
    for (speaker, agent), said in TOLD.items():
        say(f"{speaker} told {agent}", "bold")
        for line in said:
            say(f"  {line}")
    found = report["extractors"]
    say(f"facts stored: {found['model']} as a model read them, {found['rules']} by rules")
    say()
    say(f"{user} asks assistant: {report['question']}", "bold")
    fields(
        [
            ("without memory", brief(report["answer_without"], 200)),
            ("with memory", brief(report["answer_with"], 200)),
            ("model", report["model"]),
            ("barrier", barrier_line(_barrier(report["barrier"]))),
            ("time", _times(timings)),
        ]
    )
    _print_injected(report["injected"])
    say(
        "  {injected} of a budget of {budget} tokens; prompt {prompt}, output {output}".format(
            **report["tokens"]
        ),
        "dim",
    )
    say()
    say(f"{other['user']} asks the same", "bold")
    foreign = f"{other['foreign']} of what only {user} may see"
    fields([("with memory", brief(other["answer"], 200)), ("was shown", foreign)])
    _print_injected(other["injected"])
    say()
    say("who sees what, and why", "bold")
    table(("AGENT", "FOR", "UNITS IN VIEW"), _seen(report["views"]))
    for scope in sorted({u["scope"] for view in report["views"] for u in view["units"]}):
        say(f"  {scope}: {WHY.get(scope, 'a scope of its own')}", "dim")


def _print_injected(injected: Sequence[dict[str, Any]]) -> None:
    if not injected:
        say("  nothing was injected")
        return
    rows = [
        (f"  {shown['unit']}", shown["owner"], shown["scope"], shown["tokens"],
         brief(shown["text"], 80)) for shown in injected
    ]  # fmt: skip
    table(("  INJECTED UNIT", "OWNER", "SCOPE", ">TOKENS", "TEXT"), rows)


def _seen(views: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for view in views:
        groups = Counter((u["scope"], u["owner"]) for u in view["units"])
        sees = [f"{n} of {owner} ({scope})" for (scope, owner), n in sorted(groups.items())]
        yield view["agent"], view["user"], ", ".join(sees) or "nothing"


def _barrier(barrier: dict[str, Any]) -> Any:
    from isovist.syscalls.records import Barrier

    return msgspec.convert(barrier, Barrier)


def _times(timings: dict[str, float]) -> str:
    stages = ("barrier", "retrieval", "model", "total")
    return ", ".join(f"{stage} {ms(timings[stage])}" for stage in stages)
