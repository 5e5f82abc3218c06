"""``top``, ``schedule`` and ``log --usage``: who uses the models, and in which order they serve."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from isovist.kernel.cli.common import Common, attach
from isovist.kernel.cli.show import emit, ms, plain, say, table

if TYPE_CHECKING:
    from isovist.syscalls.client import Client
    from isovist.syscalls.records import Model, Process, Usage

BEGINNING = "1970-01-01T00:00Z"


def usage(
    common: Common, by: Literal["agent", "user", "model"], since: str | None, until: str | None
) -> int:
    """What the records of all chat calls add up to."""
    with attach(common) as kernel:
        rows = kernel.metering(by, since or BEGINNING, until)
    if common.json:
        emit(rows)
        return 0
    if not rows:
        say("no chat call in that time")
        return 0
    heads = (
        by.upper(), ">CALLS", ">FAILED", ">PROMPT", ">CACHED", ">OUTPUT", ">INJECTED",
        ">QUEUE", ">BARRIER", ">RETRIEVAL", ">PREFILL", ">DECODE",
    )  # fmt: skip
    table(
        heads,
        (
            (
                row.name or "(forgotten)", row.calls, row.failed, row.prompt_tokens,
                row.cached_tokens, row.output_tokens, row.injected_tokens, ms(row.queue),
                ms(row.barrier), ms(row.retrieval), ms(row.prefill), ms(row.decode),
            )
            for row in rows
        ),
    )  # fmt: skip
    return 0


def schedule(common: Common, policy: str, model: str) -> int:
    with attach(common) as kernel:
        queues = kernel.schedule(policy, model)
    if common.json:
        emit(queues)
        return 0
    table(
        ("MODEL", "POLICY", ">SLOTS", ">RUNNING", ">WAITING", ">PAUSED", ">PROMPT", ">OUTPUT"),
        (
            (q.model, q.policy, q.slots, q.running, q.waiting, q.paused, q.prompt_tokens,
             q.output_tokens)
            for q in queues
        ),
    )  # fmt: skip
    clients = [(q.model, c.name, c.running, c.waiting, f"{c.ahead:,.0f}") for q in queues
               for c in q.clients]  # fmt: skip
    if clients:
        say()
        table(("MODEL", "CLIENT", ">RUNNING", ">WAITING", ">AHEAD"), clients)
    return 0


# -- top


def top(common: Common, *, once: bool, interval: float) -> int:
    """Who is served, and how fast, every ``interval`` seconds until Ctrl-C; ``once`` (and
    ``--json``): of one interval."""
    with suppress(KeyboardInterrupt), attach(common) as kernel:
        before = _sample(kernel)
        while True:
            time.sleep(interval)
            now = _sample(kernel)
            shown = _between(before, now)
            if common.json:
                emit(shown)
                return 0
            if not once and sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            _show(shown)
            if once:
                return 0
            before = now
    return 0


def _sample(kernel: Client) -> dict[str, Any]:
    at = time.monotonic()
    return {"at": at, "agents": kernel.metering("agent"), "of_models": kernel.metering("model"),
            "models": kernel.models().models,
            "processes": kernel.processes(usage=True).processes}  # fmt: skip


def _between(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What went on between two samples. A call that begins anew takes tokens back: a pace is never
    below 0."""
    seconds = now["at"] - before["at"]

    def paced(what: str) -> dict[str, dict[str, Any]]:
        old = {row.name: row for row in before[what]}
        return {row.name: plain(row) | _pace(old.get(row.name), row, seconds) for row in now[what]}

    idle = {"prompt_per_s": 0.0, "output_per_s": 0.0, "injected_tokens": 0}
    of_models = paced("of_models")
    return {
        "seconds": seconds,
        "models": [
            plain(model)
            | {name: of_models.get(model.name, idle)[name] for name in idle}
            for model in now["models"]
        ],
        "agents": list(paced("agents").values()),
        "processes": [plain(p) | {"load": _load(before["processes"], p, seconds)}
                      for p in now["processes"]],
    }  # fmt: skip


def _load(before: Iterable[Process], now: Process, seconds: float) -> float | None:
    """Processors that a process kept busy between two samples; ``None`` where nobody knows."""
    was = next((p.seconds for p in before if p.pid == now.pid), None)
    return None if was is None or now.seconds is None else max(0.0, (now.seconds - was) / seconds)


def _pace(before: Usage | None, now: Usage, seconds: float) -> dict[str, float]:
    def per_s(field: str) -> float:
        made: int = getattr(now, field) - (getattr(before, field) if before else 0)
        return max(0.0, made / seconds)

    return {"prompt_per_s": per_s("prompt_tokens"), "output_per_s": per_s("output_tokens")}


def _show(shown: dict[str, Any]) -> None:
    table(
        ("MODEL", "STATE", ">BUSY", ">QUEUE", ">KV", ">HOST", ">IN/S", ">OUT/S", ">INJECTED"),
        (
            (
                m["name"], m["state"], *load_cells(m["load"]), f"{m['prompt_per_s']:.1f}",
                f"{m['output_per_s']:.1f}", m["injected_tokens"],
            )
            for m in shown["models"]
        ),
    )  # fmt: skip
    say()
    busiest = sorted(shown["agents"], key=lambda a: (-a["output_per_s"], -a["running"], a["name"]))
    table(
        ("AGENT", ">RUNNING", ">QUEUE", ">IN/S", ">OUT/S", ">CALLS", ">PROMPT", ">CACHED",
         ">OUTPUT", ">INJECTED"),
        (
            (
                a["name"], a["running"], a["waiting"], f"{a['prompt_per_s']:.1f}",
                f"{a['output_per_s']:.1f}", a["calls"], a["prompt_tokens"], a["cached_tokens"],
                a["output_tokens"], a["injected_tokens"],
            )
            for a in busiest
        ),
    )  # fmt: skip
    if not shown["processes"]:
        return
    say()
    heaviest = sorted(shown["processes"], key=lambda p: (-(p["load"] or 0), p["pid"]))
    table(
        (">PID", "AGENT", "USER", "STATE", ">CALLS", ">CPU", ">MEMORY", ">LEVEL", ">NICE"),
        (
            (
                p["pid"], p["agent"], p["user"] or "-", p["state"], p["calls"],
                "-" if p["load"] is None else f"{p['load']:.0%}",
                "-" if p["memory"] is None else f"{p['memory'] / 2**20:.1f} MiB",
                p["priority"], p["nice"],
            )
            for p in heaviest
        ),
    )  # fmt: skip


def load_cells(load: dict[str, Any] | None) -> tuple[str, str, str, str]:
    """A model's busy slots, its queue, the share of its cells and its host memory in use."""
    if load is None:
        return "-", "-", "-", "-"
    return (
        f"{load['running']}/{load['slots']}",
        str(load["waiting"]),
        f"{_share(load['cells'], load['cells_total'])} of {load['cells_total']:,}"
        if load["cells_total"]
        else "-",
        f"{load['host_bytes'] / (1 << 20):.0f} MiB" if load["host_total"] else "-",
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}"


def loads(models: Iterable[Model]) -> dict[str, dict[str, Any] | None]:
    """By model: how busy it is, as ``--json`` shows it."""
    return {model.name: plain(model.load) if model.load else None for model in models}
