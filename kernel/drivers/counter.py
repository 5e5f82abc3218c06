"""The counter: a model's vocabulary alone, so that a busy driver delays no budget.

Run as ``python -m isovist.kernel.drivers.counter --model PATH R W``. It shares the driver's
template and tokeniser, so its count of a prompt is the driver's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isovist.kernel.drivers.grammar import with_tools
from isovist.kernel.drivers.peer import Peer, Unusable, serve
from isovist.kernel.drivers.protocol import Count, Counted, CountPrompt, Up
from isovist.syscalls.errors import IsovistError

if TYPE_CHECKING:
    from isovist.kernel.drivers.gguf import Model


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    try:
        from isovist.kernel.drivers.gguf import Model
    except ImportError as e:
        raise Unusable(f"counting needs the extra: pip install 'isovist[llama]' ({e})") from e
    model = Model(arguments.model, vocab_only=True)
    peer.send(Up(0, model.tokenizer, model.name))
    while True:
        request = peer.receive()
        if not isinstance(request, Count | CountPrompt):
            continue
        try:
            peer.send(Counted(request.id, _counts(model, request)))
        except IsovistError as e:
            peer.fail(request.id, e)


def _counts(model: Model, request: Count | CountPrompt) -> tuple[int, ...]:
    if isinstance(request, CountPrompt):
        messages = with_tools(request.messages, request.tools, request.choice)
        return (len(model.prompt(messages)),)
    return tuple(len(model.tokenise(text, special=False)) for text in request.texts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="counter")
    parser.add_argument("--model", required=True)
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
