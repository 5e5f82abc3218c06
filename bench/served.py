"""The server of llama.cpp as PyPI has it (xllamacpp), a slot an agent, asked over HTTP.

``python -m bench.served`` reads and prints a line of JSON, as :mod:`bench.locked` does.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import json
import os
import time
from typing import Any
from urllib.parse import urlsplit

from bench.locked import Outcome, Plan, answer, play

PATIENCE = 600.0
"""Seconds that an answer may take."""


def installed() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def _run(plan: Plan) -> Outcome:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = plan.model
    parameters.n_parallel = len(plan.agents)
    parameters.n_ctx = plan.context * len(plan.agents)  # it divides them among its slots
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    address = urlsplit(server.listening_address).netloc
    _ask(address, [{"role": "user", "content": "hi"}], 1, Outcome(seconds=0.0))
    return play(plan, lambda said, outcome: _ask(address, said, plan.tokens, outcome))


def _ask(address: str, said: list[dict[str, str]], tokens: int, outcome: Outcome) -> str:
    """Stream one answer; its text."""
    asked, first, pieces, made = time.perf_counter(), 0.0, [], 0
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    request = {
        "messages": said,
        "max_tokens": tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection.request(
        "POST",
        "/v1/chat/completions",
        json.dumps(request),
        {"Content-Type": "application/json"},
    )
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read(500)!r}")
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        made = (event.get("usage") or {}).get("completion_tokens", made)
        for choice in event.get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                first = first or time.perf_counter() - asked
                pieces.append(text)
    connection.close()
    outcome.output.append(made)
    outcome.first.append(first or time.perf_counter() - asked)
    return "".join(pieces)


if __name__ == "__main__":
    answer(_run)
    os._exit(0)  # the server's threads have no end of their own
