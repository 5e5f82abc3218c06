"""``model add`` and ``model list`` (or ``ls``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isovist.kernel.cli.common import Common, Problem, attach, suggest
from isovist.kernel.cli.metering import load_cells, loads
from isovist.kernel.cli.show import emit, note, plain, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.records import Model


def add(common: Common, name_or_path: str) -> int:
    from isovist.kernel import models

    spec = models.add(name_or_path, common.config.models, show=not common.json)
    if common.json:
        emit(spec)
        return 0
    say(f"model {safe(spec.name)} is installed" + (f": {spec.path}" if spec.path else ""))
    if _reachable(common) is not None:
        note(f"the running kernel sees it after {suggest(common, 'down')} and up again")
    return 0


def list_models(common: Common) -> int:
    """The installed models and the endpoints, with their state where a kernel runs."""
    from isovist.kernel import models

    running = _reachable(common) or {}
    busy = loads(running.values())
    fallbacks = common.config.settings.fallbacks
    listed = []
    for spec in models.available(common.config):
        live = running.get(spec.name)
        listed.append(
            {
                **plain(spec),
                "state": live.state if live else "",
                "default": live.default if live else False,
                "error": live.error if live else "",
                "rest_ms": live.rest_ms if live else 0,
                "fallbacks": live.fallbacks if live else fallbacks.get(spec.name, ()),
                "load": busy.get(spec.name),
            }
        )
    if common.json:
        emit(listed)
        return 0
    rows = [
        (
            m["name"] + (" (default)" if m["default"] else ""),
            m["driver"],
            _state(m),
            m["context"],
            *load_cells(m["load"]),
            ", ".join(m["fallbacks"]) or "-",
            m["error"] or m["path"] or (m["endpoint"] or {}).get("url") or "built in",
        )
        for m in listed
    ]
    heads = ("MODEL", "DRIVER", "STATE", ">CONTEXT", ">BUSY", ">QUEUE", ">KV", ">HOST",
             "FALLBACKS", "WHERE")  # fmt: skip
    table(heads, rows)
    return 0


def _state(model: dict[str, Any]) -> str:
    if model["state"] == "loading" and model["load"]:
        return f"loading {model['load']['loaded']:.0%}"
    if model["rest_ms"]:
        return f"{model['state']}, rests {model['rest_ms'] / 1000:.0f} s"
    return model["state"] or "-"


def _reachable(common: Common) -> dict[str, Model] | None:
    """The models of the kernel that runs, if one does."""
    try:
        with attach(common) as kernel:
            return {model.name: model for model in kernel.models().models}
    except Problem:
        return None
